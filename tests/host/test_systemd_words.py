"""The model of systemd's words (tests/lib/systemd_words.py), by which trees are judged that nobody boots, against a real systemd."""
from pathlib import Path

from lib import systemd_words
from lib.hosts import packages

FILES = [
    'A=plain\nB="two words"\nC=\'single $x \\n\'\nD="q \\" b \\\\ d \\$ t \\` n \\n"\n',
    "# comment=1\n; other=2\n  E = spaced out  \nF=a#b;c\nG=\nnonsense line\nH=x=y\n1BAD=1\n",
    'I="one"two\nJ=a"b"c\nK="one" \'two\'\nL=back\\slash\\ \nM="line\\\ngoes on"\nN=line\\\ngoes on\nO="line\nend"\nP=\\"x\\"\n',
    '# a comment \\\nQ=in the comment\nR=5\n',
    'S="--a=1 --b=\\"x y\\" --c=\'p q\' --d=m\\\\ n --e= --f=\\"\\" \\"\\" --g=$A ${A} %h"\nT="a\\\\\\\\b \\"c\\\\\\"d\\" \'e\\\\\'f\' "\n',
    'U="--x=\\"open and blanks"\nV=" \t lead and trail \t"\nW="--l=a=b,c=d --m=*?[x] --n=~ --o=\xe4\xf6 --p=&;|<>"\n',
]
LINES = ["$A $B $C $D", "$E $F $G $H", "$I $J $K $L $M $N $O $P", "$Q $R", "$S", "$T", "$U", "$V", "$W",
         "${S} x${A}y $$A $$ $ a$A $A-b ${A-b} ${A x",
         "\"a b\" 'c d' e\\x20f \\\"g\\\" \"h\\\"i\" 100%% \"\" j\\tk", "$NOBODY ${NOBODY} end"]


def test_words_are_those_of_systemd(hosts, tmp_path):
    host = hosts("words")
    host.write("/usr/local/bin/words", "#!/bin/sh\nout=$1; shift\nfor word; do printf '%s\\0' \"$word\"; done >$out\n", 0o755)
    wrong = []
    for number, text in enumerate(FILES):
        host.write(f"/etc/words-{number}", text)
        (tmp_path / "etc").mkdir(exist_ok=True)
        (tmp_path / f"etc/words-{number}").write_text(text)
    environments = "".join(f"EnvironmentFile=/etc/words-{number}\n" for number in range(len(FILES)))
    units = {}
    for number, line in enumerate(LINES):
        units[number] = f"[Service]\nType=oneshot\n{environments}ExecStart=/usr/local/bin/words /run/words-{number} {line}\n"
        host.write(f"/etc/systemd/system/words-{number}.service", units[number])
    host.exec("systemctl", "daemon-reload")
    host.exec("systemctl", "start", *(f"words-{number}.service" for number in units))
    for number, unit in units.items():
        model = systemd_words.Service(release=int(packages()["systemd"].split(".")[0]))
        model.read(unit)
        real = host.exec("cat", f"/run/words-{number}").stdout.split("\0")[:-1]
        thought = model.words(Path(tmp_path))[0][2:]
        if real != thought:
            wrong.append(f"{LINES[number]}\n  systemd {real}\n  model   {thought}")
    assert not wrong, "\n".join(wrong)
