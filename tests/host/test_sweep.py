"""The agent is killed at every system call by which it changes something that outlives it: the deployments'
journal, the outbox, the work directory of a job and the job's runner (hook-run).

The calls are listed by a run under strace, then each of this run's share (lib/sweep.py) is a case of its own: strace kills the process on entering
that call (the kernel then does not carry it out), a fresh agent runs, and afterwards
  * the script ran once at most, and exactly once unless Heat was told that it was interrupted,
  * there is one result: every accepted signal has the same body,
  * the signal was delivered, and nothing is left over.
"""
import collections
import json
import re
import time

from lib.hosts import Host
from lib.node import heard_out, status_of
from lib.signal_server import SignalServer
from lib.sweep import chosen

IP = "10.77.0.11"
STATE = ("/var/lib/heat-node-agent", "/var/lib/heat-config", "/run/heat-config")
TRACE = "/var/tmp/ran"
# By file: made, written, synced, named, removed, given a mode. By socket: what systemd, Heat and the journal get.
CALLS = "openat,mkdirat,write,fsync,fchmod,fchown,renameat,unlinkat,flock,sendmsg,sendto,writev,clone,clone3,kill"
SCRIPT = f"#!/bin/sh\necho ran >>{TRACE}\nsync {TRACE}\nprintf done >$heat_outputs_path.o\necho out\n"
WRAPPER = "/usr/local/bin/hook-run-under-strace"


def prepare(host: Host, server: SignalServer):
    host.install_agent()
    host.sh("mkdir -p /etc/systemd/system/heat-deployment-.service.d")
    # The job's unit runs the agent's own executable; a drop-in for the prefix puts strace in front of it, once.
    host.write(WRAPPER, "#!/bin/sh\nif [ -e /run/hook-strace ]; then args=$(cat /run/hook-strace); rm /run/hook-strace; "
               "/usr/bin/strace $args /usr/bin/heat-node-agent hook-run \"$1\"; code=$?; echo $code >/run/hook-code; exit $code; fi\nexec /usr/bin/heat-node-agent hook-run \"$1\"\n", 0o755)
    host.write("/etc/systemd/system/heat-deployment-.service.d/strace.conf",
               f"[Service]\nExecStart=\nExecStart={WRAPPER} /var/lib/heat-node-agent/work/deployment-%j\n")
    host.exec("systemctl", "daemon-reload")
    cfn = server.settings()["cfn"]
    host.write("/etc/os-collect-config.conf", "[cfn]\n" + "".join(f"{k} = {v}\n" for k, v in cfn.items()), 0o600)
    host.write("/etc/heat-node-agent/agent.toml", "[sources]\ntimeout = 60\n")


def listed(text: str) -> collections.Counter:
    """Calls of the traced process's first thread, the one that works: those that are no reads."""
    counts = collections.Counter()
    first = None
    for line in text.splitlines():
        match = re.match(r"(\d+) +(\w+)\((.*)", line)
        if not match:
            continue
        first = first or match[1]
        if match[1] == first:
            counts[match[2]] += 1
    return counts


def wipe(host: Host):
    host.sh("rm -rf " + " ".join(STATE) + f" {TRACE} /run/hook-strace /run/hook-code")


def agent(host: Host, *prefix: str) -> int:
    return host.exec(*prefix, "/usr/bin/heat-node-agent", "run", "--once", check=False).returncode


def finish(host: Host):
    """Passes of fresh agents: one may end with a retry pending, whose pause is seconds, and one that tells of a failure ends with 1 each time.
    What never ends is in the verdict."""
    end, passes = time.monotonic() + 600, 0
    while agent(host) or status_of(host)["signals"]:
        passes += 1
        waits = host.sh("ls /var/lib/heat-node-agent/outbox", check=False)
        if passes >= 3 and (not waits or time.monotonic() > end):
            break
        time.sleep(1 if waits else 0)


def verdict(host: Host, server: SignalServer, case: str) -> str | None:
    """What is wrong after this case, or nothing."""
    finish(host)
    ran = int(host.sh(f"wc -l <{TRACE} || echo 0", check=False).split()[0])
    bodies = [s.body for s in server.signals("d", accepted=True)]
    results = {(json.loads(b)["deploy_status_code"], json.loads(b).get("o")) for b in bodies}
    if ran > 1:
        return f"{case}: the script ran {ran} times"
    if len(set(bodies)) != 1:
        return f"{case}: {len(set(bodies))} different results: {results}"
    (code, out), = results
    if code == 0 and (ran, out) != (1, "done"):
        return f"{case}: success was signalled, but the script ran {ran} times and left {out}"
    if code != 0 and "interrupted" not in str(code):
        return f"{case}: a failure that nobody explains: {code}"
    left = host.sh("ls /var/lib/heat-node-agent/outbox")
    return f"{case}: left in the outbox: {left}" if left else None


def verdict_of_newer(host: Host, server: SignalServer, case: str) -> str | None:
    """Heat asks for something newer before the next agent runs: what was not accepted before is never sent after."""
    heard_out(server)  # what the killed one had sent may be answered a moment after its end
    newer = "#!/bin/sh\nprintf newer >$heat_outputs_path.o\n"
    server.document["deployments"] = [server.deployment("d", config=newer, outputs=["o"], action="UPDATE")]
    server.publish()
    before = len(server.signals("d", accepted=True))
    finish(host)
    after = server.signals("d", accepted=True)[before:]
    stale = [s.json() for s in after if s.json().get("o") != "newer"]
    # Once more, word for word, where the answer came too late.
    return f"{case}: sent for the newer one: {stale or after}" if stale or len({s.body for s in after}) != 1 else None


def sweep(host: Host, server: SignalServer, where: str) -> tuple[list[str], collections.Counter]:
    def fresh():
        wipe(host)
        server.forget()
        server.document["deployments"] = [server.deployment("d", config=SCRIPT, outputs=["o"])]
        server.publish()

    def under(options: str) -> int:
        """The status of the traced process: 137 where it was killed."""
        if where == "agent":
            return agent(host, "strace", *options.split())
        host.write("/run/hook-strace", options)

        def code() -> str:
            agent(host)
            return host.read("/run/hook-code").strip()
        return int(host.wait_for(code, what="the end of the traced runner"))

    def killed(call: str, at: int) -> bool:
        """False where this run made fewer of these calls: what the journal and the bus get varies a little."""
        fresh()
        status = under(f"-f -qq -o /dev/null -e trace={call} -e inject={call}:signal=KILL:when={at}")
        # 1: a signal that was not answered in time.
        assert status in (137, 0, 1), f"{where} ended with {status} at {call} no. {at}"
        return status == 137

    counts = []
    for _ in range(3):
        fresh()
        under(f"-f -qq -o /run/calls -e trace={CALLS}")
        counts.append(listed(host.read("/run/calls")))
        assert verdict(host, server, f"{where} without a kill") is None
    # How much the journal and the bus get follows the load of the machine: every call is tried that any run made.
    calls = {call: max(count[call] for count in counts) for call in set().union(*counts)}
    surely = {call: min(count[call] for count in counts) for call in calls}
    wrong = []
    kills = collections.Counter()
    points = chosen([(call, at) for call, count in sorted(calls.items()) for at in range(1, count + 1)])
    for call, at in points:
        if not killed(call, at):
            continue
        kills[call] += 1
        problem = verdict(host, server, f"{where} killed at {call} no. {at} of {calls[call]}")
        if problem:
            wrong.append(problem)
        # The steps that a result passes through, once more, with a newer list before the next agent.
        if where == "agent" and call in ("renameat", "unlinkat", "sendmsg", "sendto") and killed(call, at):
            kills["then newer"] += 1
            problem = verdict_of_newer(host, server, f"{where} killed at {call} no. {at}, then newer")
            if problem:
                wrong.append(problem)
    # A sweep that kills nothing proves nothing. The load may have been higher when the calls were listed than when they were tried.
    tried = collections.Counter(call for call, at in points if at <= surely[call])
    for call, count in tried.items():
        assert kills[call] >= max(1, count // 2), f"{where}: only {kills[call]} of {count} kills at {call}"
    return wrong, kills


def test_a_kill_at_any_call_loses_nothing_and_does_nothing_twice(hosts, signal_server, record_property):
    server = signal_server()
    host = hosts("n1", ip=IP)
    prepare(host, server)
    everything = []
    for where in ("agent", "hook-run"):
        wrong, calls = sweep(host, server, where)
        print(f"{where}: " + ", ".join(f"{call} {count}" for call, count in sorted(calls.items())) + f"; {sum(calls.values())} kills")
        assert calls["renameat"] and calls["fsync"], calls
        everything += wrong
    assert not everything, "\n".join(everything)
