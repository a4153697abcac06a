"""Texts that get installed are read where the repository is not: none names a file of it."""
import re

import pytest
from lib.common import REPO

# As image-build/stage has them; the manual pages are made from docs, by the program.
TEXTS = sorted(path for pattern in ("units/*.service", "units/*.preset", "units/*.conf", "units/*.catalog", "units/components/*",
                                    "image-build/addons/*/*.yaml", "image-build/debian/p*")
               for path in REPO.glob(pattern))
# A source file, a page, or a program of the build. The path of an address is none: https://kubernetes.io/docs/.
OF_THE_REPOSITORY = re.compile(r"(?<![\w/.:-])(?:[\w/-]+\.rs|(?:docs|agent|tests|image-build|benches)/[\w./-]+|[\w/-]+\.md)\b")


def named(text: str) -> list[str]:
    return [match.group(0) for match in OF_THE_REPOSITORY.finditer(text)]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(REPO)))
def test_no_installed_text_names_a_file_of_the_repository(path):
    assert named(path.read_text()) == []


def test_such_a_name_is_recognised_and_an_address_is_not():
    text = "# asked to (SECURITY.md), as files/mod.rs does; docs/add-ons.md, https://kubernetes.io/docs/reference/, etcd.service"
    assert named(text) == ["SECURITY.md", "files/mod.rs", "docs/add-ons.md"]
    assert len(TEXTS) > 20
