"""What OpenStack's own client says to command lines, by its own parsers; run by Heat's virtual environment, which has the client and its plugins.

From stdin a JSON list of lists of words, each without the name of the program; on stdout what is wrong with each, or nothing.
"""
import contextlib
import io
import json
import os
import sys

from openstackclient.shell import OpenStackShell


def complaint(words: list[str]) -> str:
    """As the program itself begins, up to where a command would ask the cloud."""
    shell, said = OpenStackShell(), io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            shell.options, rest = shell.parser.parse_known_args(words)
            shell.configure_logging()
            shell.initialize_app(rest)
            factory, name, rest = shell.command_manager.find_command(rest)
            factory(shell, shell.options).get_parser(name).parse_args(rest)
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    except ValueError as unknown:
        return str(unknown)
    return ""


for name in [name for name in os.environ if name.startswith("OS_")]:
    del os.environ[name]
json.dump([complaint(words) for words in json.load(sys.stdin)], sys.stdout)
