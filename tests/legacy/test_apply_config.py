"""os-apply-config beside its original: the same inputs, the same status, output and files. What differs is in docs/legacy.md."""
import json
import os
import random
import stat

import pytest

from lib.legacy import tree

METADATA = {
    "text": "a <b> & \"c\"", "number": 3, "float": 1.5, "small": 1e-7, "large": 1e22, "whole": 2.0, "true": True, "false": False, "null": None,
    "empty": "", "zero": 0, "none": [], "void": {}, "list": ["x", 2, None, True, {"name": "in", "text": "inner"}],
    "object": {"text": "of the object", "deep": {"é": "ü\U0001f600", "with-dash": [1, [2]]}}, "a.b": "unreachable", "lines": "1\n2\n", "": {"": "nameless"},
    "host": "192.0.2.1/24", "dsn": "mysql://u:p@h.example/db?charset=utf8", "user": "some-one",
    "swift": "r1z1-192.0.2.1:%PORT%/d1,r1z2-192.0.2.2:%PORT%/d2", "spaced": "a b", "int": "007", "newline": "12\n",
}
TEMPLATES = [
    "{{text}}|{{{text}}}|{{&text}}|{{ & text }}|{{missing}}|{{null}}", "{{number}} {{float}} {{small}} {{large}} {{whole}} {{true}} {{false}}",
    "{{list}} {{object}} {{object.deep}} {{object.deep.é}} {{object.deep.with-dash}} {{list.0}} {{a.b}} {{.}}",
    "{{#list}}[{{.}} {{name}} {{text}}]{{/list}}", "{{#object}}{{text}} {{#deep}}{{text}}{{number}}{{/deep}}{{/object}}",
    "{{#number}}{{.}}{{/number}}{{#text}}{{.}}{{/text}}{{#true}}{{.}}{{/true}}{{#false}}f{{/false}}{{#null}}n{{/null}}{{#empty}}e{{/empty}}{{#zero}}z{{/zero}}",
    "{{^missing}}1{{/missing}}{{^false}}2{{/false}}{{^none}}3{{/none}}{{^void}}4{{/void}}{{^number}}5{{/number}}{{^list}}6{{/list}}",
    "begin\n  {{#true}}\n  line\n  {{/true}}\nend\n", "begin\n  {{#true}} \n  line\n{{/true}} x\nend", "{{! comment }}\nx {{! one\ntwo }} y\n  {{! alone }}  \nz\n",
    "{{=<% %>=}}<% text %> {{text}}\n<%={{ }}=%>\n{{number}}", "{{=| |=}}|text| |#list|<|.|>|/list|", "{{= [ ] =}}\n[text]", "a\r\n{{#true}}\r\nb\r\n{{/true}}\r\nc",
    "  {{>part}}\n{{>part}} tail {{> no-such-part }}", "start {{#true}} never closed {{text}}", "x {{#false}} y {{#list}} z", "{{#true}}{{#list}}{{/true}}{{/list}}",
    "{{/text}}", "{{#text}}{{/other}}", "{{ = =}}", "{{= one =}}", "{{text", "{{}} and {{text}}", "{{ }}", "{{{text}} {{{number}}}", "{{{{number}}}}", "{{#}}x{{/}}",
    "{{\n number \n}}", "{{..}}", "{{ .text }}", "{{text }}{{ text}}{{\ttext\t}}", "{{lines}}{{#lines}}\nx\n{{/lines}}", "{{>again}}", "",
    "{{#list}}{{#list}}{{.}}{{/list}}{{/list}}", "\ufeff{{text}}", "{{text.more}}{{object.deep.missing}}{{object..}}", "{{#object.deep}}{{é}}{{/object.deep}}",
    "{{!=}}{{=a}}", "{{& }}", "{{{ }}}", "{{^true}}\nno\n{{/true}}\n{{^false}}\nyes\n{{/false}}", "\t{{#true}}\t\n\tx\n\t{{/true}}",
]


def ready(pair, metadata=None):
    pair.write("m.json", json.dumps(METADATA if metadata is None else metadata))
    return ["-m", "m.json", "--fallback-metadata", "none.json", "-t", "templates", "-o", "out"]


@pytest.mark.parametrize("number", range(len(TEMPLATES)))
def test_template(pair, number):
    arguments = ready(pair)
    pair.write("templates/etc/file.conf", TEMPLATES[number])
    pair.write("part.mustache", "<{{text}}>\n\n  more\n")
    pair.write("again.mustache", "{{>again}}")
    pair.same("os-apply-config", *arguments)


def test_random_templates(pair):
    """What nobody would write: tags in each other, half, with blanks and other delimiters."""
    arguments, chance = ready(pair), random.Random(21)
    pieces = ["{{", "}}", "{", "}", "{{{", "}}}", "#", "/", "^", "!", "&", ">", "=", " ", "\n", "\t", "\r\n", "text", "list", "true", ".", "{{#list}}", "{{/list}}",
              "{{^none}}", "{{/none}}", "{{=<< >>=}}", "<<", ">>", "{{text}}", "{{>part}}", "x"]
    pair.write("part.mustache", "{{number}}\np")
    for _ in range(40):
        # One file that cannot be rendered fails all of them, so a few are enough each time.
        for name in range(3):
            pair.write(f"templates/{name}", "".join(chance.choice(pieces) for _ in range(chance.randrange(1, 14))))
        pair.same("os-apply-config", *arguments)


KEYS = [
    ("text", "raw"), ("text", "default"), ("number", "int"), ("number", "default"), ("float", "default"), ("float", "netaddress"), ("large", "raw"), ("small", "raw"),
    ("whole", "raw"), ("true", "default"), ("false", "raw"), ("null", "raw"), ("empty", "default"), ("empty", "int"), ("zero", "int"), ("list", "raw"),
    ("list", "default"), ("list.0", "default"), ("list.-1.name", "default"), ("list.2", "raw"), ("list.9", "raw"), ("list.x", "raw"), ("list. 1 ", "raw"),
    ("list.0_1", "raw"), ("list.1.x", "raw"), ("object", "raw"), ("object.deep", "raw"), ("object.deep.é", "raw"), ("object.deep.with-dash.1.0", "int"), ("a.b", "raw"), (".", "raw"),
    ("missing", "raw"), ("host", "netaddress"), ("host", "netdevice"), ("host", "default"), ("dsn", "dsn"), ("text", "dsn"), ("user", "username"), ("text", "username"),
    ("swift", "swiftdevices"), ("text", "swiftdevices"), ("int", "int"), ("newline", "int"), ("lines", "int"), ("text", "no-such-type"), ("missing", "no-such-type"),
]


@pytest.mark.parametrize("default", [None, "", "-5", "the default"])
def test_keys(pair, default):
    arguments = ready(pair) + ([] if default is None else ["--key-default", default])
    for key, kind in KEYS if default in (None, "") else KEYS[:10] + KEYS[-12:]:
        pair.same("os-apply-config", *arguments, "--key", key, "--type", kind)


def test_boolean_keys(pair):
    arguments = ready(pair)
    statuses = {key: pair.same("os-apply-config", *arguments, "--boolean-key", key) for key in ("true", "false", "number", "missing", "null", "text")}
    assert statuses == {"true": 0, "false": 1, "number": 255, "missing": 255, "null": 255, "text": 255}
    pair.same("os-apply-config", *arguments, "--boolean-key", "false", "--key", "number")
    pair.same("os-apply-config", *arguments, "--boolean-key", "false", "--key", "")


def test_where_metadata_comes_from(pair):
    pair.write("a.json", '{"from": "a", "o": {"a": 1, "both": [1, 2]}, "l": {"x": 1}}')
    pair.write("b.json", '{"from": "b", "o": {"b": 2, "both": [3]}, "l": null}')
    pair.write("c.json", '{"from": "c", "l": {"y": 2}}')
    pair.write("list.json", '["a.json", "gone.json", "", null, "c.json"]')
    pair.write("empty.json", "[]")
    for name, text in {"no": "not json", "array": "[1]", "null": "null", "word": '"x"', "blank": ""}.items():
        pair.write(f"{name}.json", text)
    pair.write("templates/all", "{{from}} {{o}} {{l}}")
    for tail in (["-t", "templates", "-o", "out"], ["--key", "o", "--type", "raw"]):
        for arguments, env in [
            (["-m", "a.json", "b.json"], {}), (["-m", "b.json", "a.json", "c.json"], {}), (["-m", "a.json", "-m", "b.json"], {}), (["--meta", "a.json"], {}),
            (["-m", "b.json", "--fallback-metadata", "a.json"], {}), (["--fallback-metadata", "a.json", "b.json"], {"OS_CONFIG_FILES": "c.json"}),
            ([], {"OS_CONFIG_FILES": "a.json::gone.json:b.json"}), (["-m", "c.json"], {"OS_CONFIG_FILES": "a.json"}), (["-m"], {"OS_CONFIG_FILES": "a.json"}),
            (["--os-config-files", "list.json"], {}), (["--os-config-files=empty.json"], {}), ([], {"OS_CONFIG_FILES_PATH": "list.json"}),
            (["--os-config-files", "no.json"], {}), (["--os-config-files", "a.json"], {}), (["--os-config-files", "gone.json"], {}),
            (["-m", "a.json", "no.json"], {}), (["-m", "a.json", "array.json", "null.json", "word.json"], {}), (["-m", "blank.json"], {}), (["-m", "."], {}),
            ([], {"OS_CONFIG_FILES": ""}),
        ]:
            pair.same("os-apply-config", *arguments, *tail, env=env)


def test_command_lines(pair):
    arguments = ready(pair)
    pair.write("templates/x", "{{text}}")
    for more in [["--key"], ["nonsense"], ["--no-such-option"], ["--ke", "text"], ["-x"], ["--validate=1"], ["-v"], ["--valid"], ["-s", "object"], ["-s", "text"],
                 ["-s", "gone"], ["--subhash=object.deep"], ["--print-templates"], ["--key", "text", "--type"], ["-o"]]:
        pair.same("os-apply-config", *arguments, *more)
    assert pair.same("os-apply-config", "--print-templates", env={"OS_CONFIG_APPLIER_TEMPLATES": "/some/where"}) == 0
    pair.same("os-apply-config", "--print-templates")
    pair.same("os-config-applier", *arguments, "--key", "number")
    for option in ("--version", "--help", "-h"):
        real, ours = pair.run("os-apply-config", option)
        assert (ours[0], real[0]) == (0, 0) and ours[1].split()[0] == real[1].split()[0], option


def test_executable_templates(pair):
    arguments = ready(pair)
    for name, text in {"etc/cat": "#!/bin/cat\n", "etc/script": "#!/bin/sh\necho \"$VAR in ${PWD##*/}\" | sed s/ours/real/\ncat\n", "etc/deaf": "#!/bin/sh\necho deaf\n",
                       "etc/none": "#!/bin/sh\nexit 0\n", "etc/loud": "#!/bin/sh\necho loud >&2\n"}.items():
        pair.write(f"templates/{name}", text, 0o755)
    assert pair.same("os-apply-config", *arguments, env={"VAR": "here"}) == 0
    assert "out/etc/cat" in tree(pair.sides[1])
    pair.write("templates/etc/other", "{{text}}")
    pair.write("templates/etc/fails", "#!/bin/sh\necho why >&2\nexit 3\n", 0o755)
    assert pair.same("os-apply-config", *arguments) == 1
    assert "out/etc/other" not in tree(pair.sides[1])
    pair.write("templates/etc/fails", "no program\n", 0o755)
    assert pair.same("os-apply-config", *arguments) == 1


CONTROLS = [
    "", "# nothing\n", "{}", "[]", "mode: 0640\n", "mode: 0\n", "mode: '0640'\n", "mode: 640\n", "mode: 1000\n", "mode: 0x1ff\n", "mode: true\n", "mode:\n", "mode: 0o640\n",
    "mode: 0_640\n", "mode: 6:40\n", "allow_empty: false\n", "allow_empty: no\n", "allow_empty: 0\n", "allow_empty: 'false'\n", "owner: root\n", "owner: 0\n", "owner: '0'\n",
    "owner: no-such-user\n", "owner: 3999999999\n", "group: daemon\nowner: daemon\n", "group: 1\n", "group: no-such-group\n", "group: []\n", "no_such_key: 1\n", "- a list\n", "text\n",
    "{mode: 0600, allow_empty: false, owner: root}", "mode: 0600\nmode: 0640\n", "mode: [", "a: b: c\n", "---\nmode: 0600\n", "mode: 0600\n---\nmode: 0644\n", "5", "true", "false", "''",
]


@pytest.mark.parametrize("body", ["", "text {{number}}\n"])
def test_control_files(pair, body):
    for number, control in enumerate(CONTROLS):
        arguments = ready(pair)
        pair.each(lambda side: (side / "templates").mkdir(exist_ok=True))
        for name in ("new", "there"):
            pair.write(f"templates/{name}", body)
            pair.write(f"templates/{name}.oac", control)
        pair.each(lambda side: (side / "out/new").unlink(missing_ok=True))
        pair.write("out/there", f"before {number}", 0o600)
        pair.same("os-apply-config", *arguments)
        owners = [[(stat.st_uid, stat.st_gid) for stat in (path.stat() for path in sorted((side / "out").rglob("*")))] for side in pair.sides]
        assert owners[0] == owners[1], control


def test_what_is_there_already(pair):
    arguments = ready(pair)
    pair.write("templates/etc/plain", "{{text}}")
    pair.write("templates/etc/linked", "{{text}}")
    pair.write("templates/deep/er/file", "{{number}}")
    pair.write("templates/.hidden", "h")
    pair.write("templates/only.oac", "mode: 0600\n")
    pair.write("target", "of the link", 0o640)
    pair.write("elsewhere/inner", "{{text}}")

    def links(side):
        (side / "out/etc").mkdir(parents=True)
        (side / "out/etc/linked").symlink_to(os.path.relpath(side / "target", side / "out/etc"))
        (side / "templates/to-file").symlink_to("etc/plain")
        (side / "templates/to-directory").symlink_to("../elsewhere")
    pair.each(links)
    pair.write("out/etc/plain", "before", 0o4755)
    for _ in range(2):
        assert pair.same("os-apply-config", *arguments) == 0
    assert tree(pair.sides[1])["out/etc/linked"][:2] == ("file", 0o640)
    pair.each(lambda side: (side / "templates/broken").symlink_to("nowhere"))
    assert pair.same("os-apply-config", *arguments) == 1
    pair.each(lambda side: (side / "templates/broken").unlink())
    pair.write("templates/latin", b"caf\xe9")
    assert pair.same("os-apply-config", *arguments) == 1
    assert pair.same("os-apply-config", "-m", "m.json", "-t", "no/such/tree", "-o", "out") == 0


def test_a_file_that_is_as_it_should_be_is_left_alone(pair):
    """R44: here both differ."""
    arguments = ready(pair)
    pair.write("templates/file", "{{text}}")
    before = []
    for _ in range(2):
        pair.run("os-apply-config", *arguments)
        before.append([(side / "out/file").stat().st_ino for side in pair.sides])
    assert before[0][1] == before[1][1]
    pair.each(lambda side: (side / "out/file").chmod(0o600))
    pair.write("m.json", '{"text": "another"}')
    assert pair.same("os-apply-config", *arguments) == 0
    assert tree(pair.sides[1])["out/file"] == ("file", 0o600, b"another")


def test_credentials_are_for_their_owner_alone(pair):
    """R51, R52: here both differ."""
    arguments = ready(pair, {"secret": "hush hush"})
    for name in ("etc/os-collect-config.conf", "var/run/heat-config/heat-config"):
        pair.write(f"templates/{name}", "{{secret}}")
    real, ours = pair.run("os-apply-config", *arguments)
    assert (real[0], ours[0]) == (0, 0)
    modes = [[stat.S_IMODE((side / "out" / name).stat().st_mode) for name in ("etc/os-collect-config.conf", "var/run/heat-config/heat-config")]
             for side in pair.sides]
    assert modes == [[0o644, 0o644], [0o600, 0o600]]
    real, ours = pair.run("os-apply-config", "-m", "m.json", "--key", "secret")
    assert (real[0], ours[0]) == (1, 1) and b"hush" in real[2] and b"hush" not in ours[2]


def test_what_others_can_change_is_not_run(pair):
    """R56: here both differ; only as root."""
    if os.geteuid():
        pytest.skip("as root only")
    arguments = ready(pair)
    pair.write("templates/run", "#!/bin/sh\necho ran\n", 0o777)
    real, ours = pair.run("os-apply-config", *arguments)
    assert (real[0], ours[0]) == (0, 1) and b"can be changed by users other than root" in ours[2]
