"""What goes wrong with scripts, with Heat and with the machine itself, one failure after the other on one host."""
from lib.common import SET, TESTHOST, run
from lib.failures import REPORTED
from lib.node import UNIT, start

IP = "10.77.0.12"
# Seconds that a script may take here: while it runs, status is read more than once.
LIMIT = 45
SETTINGS = f"polling_interval = 5\nmin_polling_interval = 5\n[deploy]\ntime_limit = {LIMIT}\n"
CONF = "/etc/os-collect-config.conf"
CHECK = "#!/bin/sh\necho checking the settings\necho 'no settings for zone b' >&2\n[ -e /srv/settings ] || exit 3\n"
WAITS = "#!/bin/sh\necho 'waiting for the licence'\nuntil [ -e /srv/licence ]; do sleep 0.2; done\n"
ODD = "#!/usr/bin/python9\nprint('hello')\n"


class Server:
    """A server of scripts."""

    def __init__(self, stage):
        self.stage, self.host, self.heat = stage, stage.host, stage.server

    def script(self, name: str, text: str = "#!/bin/sh\necho done\n"):
        """A stack update that asks for this script alone."""
        self.heat.document["deployments"] = [self.heat.deployment(name, config=text)]
        self.heat.publish()
        self.host.exec("systemctl", "kill", "-s", "HUP", UNIT)


def scripts(server: Server):
    stage, host = server.stage, server.host
    failure = stage.failure("script-fails")
    server.script("check", CHECK)
    failure.shows("FAILED deployment check (exit status 3", "no settings for zone b", heat="check", failed=True)
    failure.way("Correct the script and update the stack", "update the stack with another script", lambda: server.script("check"),
                lambda: server.script("check", CHECK))
    failure.mended("write the settings", lambda: host.write("/srv/settings", "b\n"))

    # The limit counts from its start, which is a poll after this.
    failure = stage.failure("script-hangs", REPORTED + LIMIT)
    server.script("licence", WAITS)
    failure.seen("WAITING for deployment licence, which is running", "time limit ends it in", "waiting for the licence")
    failure.shows("FAILED deployment licence", "time limit", heat="licence", failed=True)

    def longer():
        """It was waiting for something that comes, if late."""
        host.write("/etc/heat-node-agent/agent.toml", SETTINGS.replace(f"= {LIMIT}", "= 300"))
        host.exec("systemd-run", "-q", f"--on-active={LIMIT + 3}", "--timer-property=AccuracySec=100ms", "touch", "/srv/licence")
    failure.mended("raise [deploy] time_limit", longer)

    failure = stage.failure("script-without-interpreter")
    server.script("odd", ODD)
    failure.shows("FAILED deployment odd", "python9", heat="odd", failed=True)
    failure.way("name another interpreter in the script's first line and update the stack", "update the stack with #!/usr/bin/python3",
                lambda: server.script("odd", ODD.replace("python9", "python3")), lambda: server.script("odd", ODD))
    failure.mended("install the interpreter", lambda: host.sh("ln -s python3 /usr/bin/python9"))


def heat(server: Server, other):
    stage = server.stage
    for status in (503, 403):
        failure = stage.failure(f"signal-{status}")
        server.heat.answer(status, method="POST")
        server.script("quick")
        failure.shows("WAITING for Heat to take the result of quick", str(status))
        failure.mended("end the fault in Heat", server.heat.behave)

    failure = stage.failure("heat-away")
    server.heat.stop()
    failure.shows("DEGRADED: Heat's metadata cannot be read (source cfn)")

    def at(old, new):
        server.host.exec("sed", "-i", f"s,{old.base},{new.base},", CONF)
    other.publish(server.heat.document)
    failure.way("correct metadata_url of [cfn] in /etc/os-collect-config.conf", "write the address that Heat has now into the file", lambda: at(server.heat, other),
                lambda: at(other, server.heat))
    failure.mended("start Heat", server.heat.start)


def full_root(server: Server):
    host = server.host
    disk = TESTHOST / SET / "run" / host.name / "rw"

    def resize(kib: int):
        run("mount", "-o", f"remount,size={kib}k", disk)
    failure = server.stage.failure("full-root")
    resize(int(host.sh("df --output=used -k / | tail -n 1")) + 4)
    server.script("late")
    failure.shows("FAILED", "no space is left")
    failure.mended("make room", lambda: resize(4 << 20))


def copied_disk(server: Server):
    host = server.host
    host.be_instance("copy")
    # The console is there before the agent is.
    host.write("/etc/tmpfiles.d/console.conf", "f /dev/console 0600\n")
    host.cut()
    host.boot(expect="")
    failure = server.stage.failure("copied-disk")
    failure.since_the_boot()
    failure.shows("/etc/os-collect-config.conf is ignored: this disk was copied")

    def copied_again():
        host.be_instance("copy-of-it")
        host.cut()
        host.boot(expect="")
    failure.way("In none: `systemctl disable", "", None, lambda: host.exec("systemctl", "enable", "--now", "heat-node-agent.service"),
                runs=("systemctl disable",), until=("NOT RUNNING",))
    failure.way("Found: write into the file", "write another resource's settings into the file",
                lambda: host.exec("sed", "-i", "s,^access_key_id = .*,access_key_id = 2222,", CONF), copied_again)
    failure.mended(runs=("openstack", "echo"))


def test_failures_of_scripts_and_their_machine(hosts, signal_server, stages):
    host, heat_server = hosts("n2", ip=IP, instance_id="original"), signal_server()
    server = Server(stages(host, heat_server))
    start(host, heat_server, SETTINGS)
    scripts(server)
    heat(server, signal_server(port=18001))
    full_root(server)
    copied_disk(server)
