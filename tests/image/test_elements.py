"""The elements by the rules of diskimage-builder itself."""
from lib.common import REPO, run

VENV = REPO / "target/image/venv"
ELEMENTS = (REPO / "image-build/elements", REPO / "tests/image/elements")


def test_the_elements_pass_dib_lint(image):
    lib = run(VENV / "bin/python", "-c", "import diskimage_builder, os; print(os.path.dirname(diskimage_builder.__file__) + '/lib')").stdout.strip()
    for folder in ELEMENTS:
        done = run(VENV / "bin/dib-lint", check=False, env={"ELEMENTS_DIR": str(folder), "LIB_DIR": lib, "PATH": f"{VENV}/bin:/usr/sbin:/usr/bin:/sbin:/bin"})
        assert done.returncode == 0 and done.stdout.endswith("PASS\n"), done.stdout + done.stderr
