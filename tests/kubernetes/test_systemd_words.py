"""The model of systemd's words: what is worth reading. tests/host/test_systemd_words.py compares it with a real systemd."""
import pytest
from lib.systemd_words import Service, environment_file, expand, service, split


@pytest.mark.parametrize("text, values", [
    ('A="x y" # z\n', {"A": "x y# z"}), ("A=x y # z\n", {"A": "x y # z"}), ("#A=1\n;B=2\nC=3", {"C": "3"}),
    ("A=\nB= \n", {"A": "", "B": ""}),
    ('A="a\\"b\\\\c\\$d\\n"\n', {"A": 'a"b\\c$d\\n'}), ("A='a\\n\"b'\n", {"A": 'a\\n"b'}), ("A=a\\\nb\nC=1\n", {"A": "ab", "C": "1"}),
    ('A="a"\'b\'c\n', {"A": "abc"}), ("no equals\nA=1\n", {"A": "1"}), ("0A=1\n", {})])
def test_environment_files(text, values):
    assert environment_file(text) == values


@pytest.mark.parametrize("text, words", [
    ("a  b\tc", ["a", "b", "c"]), ("", []), ('""', [""]), ('--a="b c" d', ["--a=b c", "d"]), ("'a \"b'", ['a "b']),
    ('a\\ b "c\\"d"', ["a b", 'c"d']),
    ("--a=x\\\\y", ["--a=x\\y"])])
def test_words(text, words):
    assert split(text) == words


def test_variables():
    assert expand(["$A", "$A", "x${A}", "$B", "$$A", "$C", "$", "$A-b", "a$A"], {"A": 'p "q r"', "B": ""}) == ["$A", "p", "q r", 'xp "q r"',
                                                                                                               "$A", "a$A"]


def test_a_drop_in_drops_the_unit_s_own(tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base/x.service").write_text("[Unit]\nEnvironmentFile=/no\n"
                                             "[Service]\nEnvironmentFile=-/etc/x\nExecStart=/usr/bin/x \\\n  $OLD\n")
    folder = tmp_path / "etc/systemd/system/x.service.d"
    folder.mkdir(parents=True)
    (tmp_path / "etc/new").write_text('NEW="--a=\\"b c\\" --d"\n')
    assert service(tmp_path, "x.service", tmp_path / "base").words(tmp_path)[0] == ["/usr/bin/x"]
    (folder / "50.conf").write_text("[Service]\nEnvironmentFile=\nEnvironmentFile=/etc/new\nExecStart=\nExecStart=x $NEW\n")
    assert service(tmp_path, "x.service", tmp_path / "base").words(tmp_path)[0] == ["x", "--a=b c", "--d"]
    (tmp_path / "etc/new").unlink()
    with pytest.raises(FileNotFoundError):
        service(tmp_path, "x.service", tmp_path / "base").words(tmp_path)


def test_two_commands_are_a_mistake(tmp_path):
    made = Service()
    made.read("[Service]\nExecStart=a\nExecStart=b\n")
    with pytest.raises(ValueError, match="2 ExecStart"):
        made.words(tmp_path)
