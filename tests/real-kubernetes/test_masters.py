"""Three masters of Kubernetes' real programs, whose etcd has three members, and a worker, all with HAProxy: another master leads when the one that
leads is killed, a change that goes over the masters one after the other costs a client of the worker's HAProxy at most one request, and a master
whose API server is stopped stays Ready; one with another key for the tokens of service accounts is named by all."""
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from lib import haproxy
from lib.common import run, wait_for
from lib.failures import slack
from lib.pod_network import together
from lib.real_kubernetes import ADMIN, NET, RealCluster, RealNode, cluster_in, pod, service

pytestmark = pytest.mark.longer
ADDRESSES = {"m1": "10.77.0.21", "m2": "10.77.0.22", "m3": "10.77.0.23", "w1": "10.77.0.31"}
MASTERS = ("m1", "m2", "m3")
PROGRAMS = ("kube-controller-manager", "kube-scheduler")
# The programs' own defaults: of a lease in seconds, and the longest time between two looks at it (2 s and at random up to 1.2 times as much more).
LEASE, LOOK = 15, 4.4
# After which a node that has not been heard of is NotReady (--node-monitor-grace-period of 1.20).
GRACE = 40
# Five requests a second, each a connection of its own, whether those before have been answered or not: of the kubelet, which is known by its
# certificate, and of kube-proxy, whose rights are objects of the API.
CLIENT = """
number=0
ask() {
  local begun=$(date +%T.%3N) code=0 said
  said=$(curl -sS -m 10 -o /dev/null -w '%{http_code} after %{time_total} s' --cacert $1/ca.crt --cert $1/$2.crt --key $1/$2.key https://127.0.0.1:6443$3 2>&1) ||
    code=$?
  echo "$code $begun $2 $number ${said//$'\\n'/ }" >>/root/answers
}
while [ ! -e /run/asked ]; do
  number=$((number + 1))
  if [ $((number % 2)) = 0 ]; then ask /etc/kubernetes/certs kubelet /api/v1/nodes/w1 & else ask /etc/kubernetes/certs proxy /api/v1/services & fi
  sleep 0.2
done
wait
"""
# A line of HAProxy's log: which server, milliseconds of waiting, connecting and all, how it ended; tries after the first, with a plus where the last one
# went to another server.
LOGGED = re.compile(r" masters/(\S+) (-?\d+)/(-?\d+)/(\d+) \d+ (\S\S) \d+/\d+/\d+/\d+/(\+?\d+) ")
TEMPLATE = {part: value for part, value in pod("web", "w1", "netexec", "--http-port=8080").items() if part in ("metadata", "spec")}
WEB = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
       "spec": {"replicas": 1, "selector": {"matchLabels": {"name": "web"}}, "template": TEMPLATE}}
REQUEST = '{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}'


def new_pair() -> dict:
    """Both parameters of a pair of keys for the tokens of service accounts."""
    private = run("openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048").stdout
    return {"KUBE_SERVICE_ACCOUNT_PRIVATE_KEY": private, "KUBE_SERVICE_ACCOUNT_KEY": run("openssl", "pkey", "-pubout", input=private).stdout}


class Cluster(RealCluster):
    """Of three masters and a worker."""
    addresses, subnets = ADDRESSES, {name: f"10.100.{number}.0/24" for number, name in enumerate(ADDRESSES, 1)}

    def __init__(self, *given):
        super().__init__(*given)
        self.keys = new_pair()

    def inputs_of(self, name: str, **more) -> dict:
        own = {}
        if name in MASTERS:
            members = ",".join(f"{one}=https://{ADDRESSES[one]}:2380" for one in MASTERS)
            own = {"MASTER_INDEX": MASTERS.index(name), "ETCD_INITIAL_CLUSTER": members, **self.keys}
        return super().inputs_of(name, API_BALANCER="haproxy", MASTER_ADDRESSES=",".join(ADDRESSES[one] for one in MASTERS), **own, **more)

    def boot(self, name: str, **more) -> RealNode:
        node = super().boot(name, **more)
        haproxy.install(node.host)
        return node

    def leader(self, program: str) -> dict:
        """Its lease."""
        return self.get("lease", "-n", "kube-system", program)["spec"]


@pytest.fixture(scope="module")
def shared(programs, testhost, tmp_path_factory) -> Iterator[Cluster]:
    with cluster_in(tmp_path_factory.mktemp("masters"), Cluster) as cluster:
        since = time.monotonic()
        together(*(lambda n=n: cluster.boot(n).up() for n in ADDRESSES))
        cluster.is_ready(*ADDRESSES)
        print(f"three masters and a worker: {time.monotonic() - since:.0f} s")
        yield cluster


def are_quiet(cluster: Cluster):
    for name, node in cluster.nodes.items():
        wait_for(node.is_quiet, NET, f"nothing to do on {name}", every=1)


def component(node: RealNode, name: str) -> dict:
    """What the status of a node says of it."""
    return next(c for c in node.status()["node"]["components"] if c["name"] == name)


def says(node: RealNode, word: str) -> tuple[int, str]:
    done = node.host.exec("heat-node-agent", word, check=False)
    return done.returncode, " ".join(done.stdout.split())


def test_another_master_leads_in_its_time_when_the_leader_is_killed(cluster):
    are_quiet(cluster)
    before = {program: cluster.leader(program) for program in PROGRAMS}
    assert {one["leaseDurationSeconds"] for one in before.values()} == {LEASE}
    killed = {program: one["holderIdentity"].split("_")[0] for program, one in before.items()}
    others = [name for name in ADDRESSES if name not in killed.values()]
    started = {name: node.started() for name, node in cluster.nodes.items()}
    restarts = {program: component(cluster.nodes[name], program)["restarts"] for program, name in killed.items()}
    since = {}
    for program, name in killed.items():
        node = cluster.nodes[name]
        node.host.exec("systemctl", "kill", "-s", "KILL", f"{program}.service")
        since[program] = time.monotonic()
        # systemd waits five seconds before it starts it again.
        found = wait_for(lambda: (c := component(node, program))["state"] != "healthy" and c, NET, f"the end of {program} in the status of {name}")
        status, page = says(node, "status")
        print(f"{program} of {name} is killed; its status after {time.monotonic() - since[program]:.1f} s: {status} {page}")
        assert found["state"] == "degraded" and "was killed by signal 9 and is about to be restarted" in found["cause"], found
        assert status == 2 and program in page and program in says(node, "explain")[1], page
    # Nobody makes its pod now, and nobody finds a node for it.
    cluster.apply(WEB)
    assert [name for name in others if says(cluster.nodes[name], "status")[0] != 0] == []
    led = {}

    def are_led() -> bool:
        for program in PROGRAMS:
            now = cluster.leader(program)
            if program not in led and now["holderIdentity"] != before[program]["holderIdentity"]:
                led[program] = now, time.monotonic() - since[program]
        return len(led) == len(PROGRAMS)
    wait_for(are_led, NET, "leaders")
    for program, (lease, seconds) in led.items():
        name = lease["holderIdentity"].split("_")[0]
        print(f"{program}: {name} leads {seconds:.1f} s after that of {killed[program]} was killed")
        assert name in MASTERS and name != killed[program] and seconds < (LEASE + 2 * LOOK) * slack(), (program, name, seconds)
    wait_for(lambda: cluster.get("deployment", "web")["status"].get("availableReplicas") == 1, NET, "the pod of a deployment", every=1)
    print(f"a pod of a deployment is there after {time.monotonic() - max(since.values()):.1f} s")

    def follows(program: str, name: str) -> bool:
        node, found = cluster.nodes[name], component(cluster.nodes[name], program)
        return found["state"] == "healthy" and found["restarts"] == restarts[program] + 1 and node.is_quiet()
    for program, name in killed.items():
        wait_for(lambda: follows(program, name), NET, f"{program} of {name} is healthy", every=1)
    # As long as it would take for one of them to be a leader by its own clock.
    time.sleep(LEASE + 2 * LOOK)
    for program, name in killed.items():
        lease, run_ = cluster.leader(program), cluster.nodes[name].started()[program]
        assert lease["holderIdentity"] == led[program][0]["holderIdentity"] and lease["renewTime"] > led[program][0]["renewTime"], lease
        assert lease["leaseTransitions"] == before[program]["leaseTransitions"] + 1, lease
        words = "\n".join(e["MESSAGE"] for e in cluster.nodes[name].host.journal(f"{program}.service", **{"_SYSTEMD_INVOCATION_ID": run_}))
        assert "attempting to acquire leader lease" in words and "successfully acquired lease" not in words, words
    assert {name: node.restarted(started[name]) for name, node in cluster.nodes.items()} == {
        name: {program for program in PROGRAMS if killed[program] == name} for name in ADDRESSES}
    are_quiet(cluster)
    cluster.is_ready(*ADDRESSES)
    cluster.kubectl("delete", "deployment", "web")


@contextmanager
def asked(node: RealNode) -> Iterator[list[str]]:
    """The list has all answers of a steady client of the node's HAProxy, at the end."""
    host, answers = node.host, []
    host.sh("rm -f /run/asked /root/answers")
    host.write("/root/ask", CLIENT, 0o755)
    host.exec("systemd-run", "-q", "--unit=client", "bash", "/root/ask")
    wait_for(lambda: host.exists("/root/answers"), NET, "the first answer")
    yield answers
    host.sh("touch /run/asked")
    wait_for(lambda: not host.is_active("client.service"), NET, "the client's end")
    answers += host.read("/root/answers").splitlines()


def failed(answers: list[str]) -> list[str]:
    return [line for line in answers if not re.match(r"0 \S+ \w+ \d+ 200 ", line)]


def goes(node: RealNode, **parameters):
    started, since = node.started(), time.monotonic()
    node.update(**parameters)
    node.succeeds()
    restarted = node.restarted(started)
    print(f"{node.name} {parameters}: {time.monotonic() - since:.1f} s, {', '.join(sorted(restarted))}")
    # Without an API server for 10 s these two are no leaders any more, and end: systemd starts them again.
    assert {"kube-apiserver"} <= restarted <= {"kube-apiserver", *PROGRAMS}, restarted


def test_a_change_that_goes_over_the_masters_costs_a_client_of_haproxy_one_request_at_most(cluster):
    are_quiet(cluster)
    worker, masters, since = cluster.nodes["w1"], [cluster.nodes[name] for name in MASTERS], time.time()
    with asked(worker) as answers:
        for node in masters:
            goes(node, KUBEAPI_OPTIONS="--event-ttl=2h")
        # Until the last one is used again.
        time.sleep(10)
    logged = [(e["MESSAGE"], found) for e in worker.host.journal(SYSLOG_IDENTIFIER="haproxy") if float(e["__REALTIME_TIMESTAMP"]) > since * 1e6
              and (found := LOGGED.search(e["MESSAGE"]))]
    slow = sorted((float(line.split()[-2]) for line in answers if line.endswith(" s")), reverse=True)[:5]
    print(f"{len(answers)} requests, {len(failed(answers))} failed; the slowest took {slow} s; by server "
          f"{dict(Counter(found[1] for _, found in logged))}, by end {dict(Counter(found[5] for _, found in logged))}, "
          f"by further tries {dict(Counter(found[6] for _, found in logged))}")
    print("\n".join([*failed(answers), *(line for line, found in logged if found[5] != "--" or found[6] != "0")]))
    assert len(answers) > 100 and len(failed(answers)) <= 1, "\n".join(failed(answers))
    # All of them had their part of it.
    assert {f"master-{number}" for number in range(len(MASTERS))} <= {found[1] for _, found in logged}
    are_quiet(cluster)
    cluster.is_ready(*ADDRESSES)
    # Who changes all of them at once takes the API away; and the client says so.
    with asked(worker) as answers:
        together(*(lambda node=node: goes(node, KUBEAPI_OPTIONS=None) for node in masters))
    print(f"all masters at once: {len(answers)} requests, {len(failed(answers))} failed")
    assert len(failed(answers)) > 1
    are_quiet(cluster)
    cluster.is_ready(*ADDRESSES)


def reached(node: RealNode) -> set[str]:
    """The addresses at which this node's HAProxy has connections to API servers."""
    lines = node.host.sh("ss -Htnp state established dport = :6443").splitlines()
    return {line.split()[3].rsplit(":", 1)[0] for line in lines if '"haproxy"' in line}


def test_a_master_whose_api_server_is_stopped_stays_ready_and_goes_back_to_it(cluster):
    are_quiet(cluster)
    node, others = cluster.nodes["m2"], {ADDRESSES[name] for name in MASTERS if name != "m2"}
    started = node.started()
    lease = lambda: cluster.get("lease", "-n", "kube-node-lease", "m2")["spec"]["renewTime"]  # noqa: E731
    wait_for(lambda: reached(node) == {"127.0.0.1"}, NET, "HAProxy of m2 at its own API server", every=1)
    node.host.exec("systemctl", "stop", "kube-apiserver.service")
    since = time.monotonic()
    # Who makes it heard of, and who writes the rules of services, both see what comes meanwhile.
    cluster.apply(pod("echo", "m2", "netexec", "--http-port=8080"), service("echo", {"name": "echo"}, 8080))
    cluster.address_of("echo")
    print(f"m2 runs a pod {time.monotonic() - since:.1f} s after the end of its API server, by {reached(node)}")
    assert reached(node) and reached(node) <= others
    address, before = cluster.get("service", "echo")["spec"]["clusterIP"], lease()
    wait_for(lambda: node.host.exec("curl", "-sS", "-m", "5", f"http://{address}:8080/hostname").stdout == "echo", NET, "the service on m2", every=1)
    seen = Counter()
    while time.monotonic() - since < GRACE + 30:
        seen[cluster.conditions()["m2"]["Ready"]] += 1
        time.sleep(1)
    print(f"m2 without its API server for {time.monotonic() - since:.0f} s: Ready {dict(seen)}; {says(node, 'status')[1]}")
    assert set(seen) == {"True"} and lease() > before
    states = {name: component(node, name)["state"] for name in ("kubelet", "kube-proxy", "haproxy", "kube-apiserver")}
    assert states.pop("kube-apiserver") != "healthy" and set(states.values()) == {"healthy"}, states
    node.host.exec("systemctl", "start", "kube-apiserver.service")
    since = time.monotonic()
    wait_for(lambda: reached(node) == {"127.0.0.1"}, NET, "HAProxy of m2 at its own API server again", every=0.5)
    print(f"m2 is back at its own API server after {time.monotonic() - since:.1f} s")
    are_quiet(cluster)
    cluster.is_ready(*ADDRESSES)
    # These two have no other API server by which they would lead.
    assert {"kube-apiserver"} <= node.restarted(started) <= {"kube-apiserver", *PROGRAMS}
    cluster.kubectl("delete", "pod,service", "echo")


def token_of(node: RealNode) -> str:
    """Of a service account, signed by this master's API server."""
    path = "/api/v1/namespaces/default/serviceaccounts/default/token"
    return json.loads(node.host.exec("kubectl", "--kubeconfig", ADMIN, "create", "--raw", path, "-f", "-", input=REQUEST).stdout)["status"]["token"]


def answer(node: RealNode, token: str) -> str:
    """What this master's API server makes of it: a status of HTTP."""
    return node.host.exec("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--cacert", "/etc/kubernetes/certs/ca.crt",
                          "-H", f"Authorization: Bearer {token}", "https://127.0.0.1:6443/version").stdout


def wrong_keys(node: RealNode) -> list[str]:
    """What its status says of other masters' keys."""
    return (node.status()["node"]["service_account_keys"] or {}).get("wrong", [])


def test_service_account_keys_are_changed_in_three_updates_without_a_refused_token(cluster):
    """As docs/certificates.md says, each of them over the masters one after the other: every token is taken by every master all the while."""
    are_quiet(cluster)
    masters, old, new, since = [cluster.nodes[name] for name in MASTERS], cluster.keys, new_pair(), time.time()
    tokens = [token_of(node) for node in masters]
    both = "\n".join(pair["KUBE_SERVICE_ACCOUNT_KEY"].strip() for pair in (old, new)) + "\n"
    for step in ({"KUBE_SERVICE_ACCOUNT_KEY": both}, {"KUBE_SERVICE_ACCOUNT_PRIVATE_KEY": new["KUBE_SERVICE_ACCOUNT_PRIVATE_KEY"]}):
        for node in masters:
            node.update(**step)
            node.succeeds()
            tokens += [token_of(one) for one in masters]
            assert {answer(one, token) for one in masters for token in tokens} == {"200"}, (node.name, list(step))
    tokens = [token_of(node) for node in masters]
    cluster.keys = new
    for node in masters:
        node.update(KUBE_SERVICE_ACCOUNT_KEY=new["KUBE_SERVICE_ACCOUNT_KEY"])
        node.succeeds()
        tokens.append(token_of(node))
        assert {answer(one, token) for one in masters for token in tokens} == {"200"}, node.name
    differing = [entry for node in masters for entry in node.host.journal(HNA_EVENT="TokenKeysDiffer") if float(entry["__REALTIME_TIMESTAMP"]) > since * 1e6]
    assert differing == [] and not any(wrong_keys(node) for node in masters)


def test_a_master_with_another_service_account_key_is_named_and_its_tokens_are_refused(cluster):
    are_quiet(cluster)
    m1, m2, m3 = masters = [cluster.nodes[name] for name in MASTERS]
    assert {answer(other, token_of(one)) for one in masters for other in masters} == {"200"}
    m3.update(**new_pair())
    m3.succeeds()
    assert (answer(m1, token_of(m3)), answer(m3, token_of(m1)), answer(m2, token_of(m1))) == ("401", "401", "200")
    # It looks at once and again half a minute later, the others every five minutes.
    wait_for(lambda: len(wrong_keys(m3)) == 2, NET, "what m3 says of the others", every=1)
    wait_for(lambda: len(wrong_keys(m1)) == len(wrong_keys(m2)) == 1, 2 * NET, "what the others say of m3", every=1)
    assert "those of m3, which does not verify tokens that this master signs" in wrong_keys(m1)[0], wrong_keys(m1)
    m3.update(**cluster.keys)
    m3.succeeds()
    wait_for(lambda: not any(wrong_keys(node) for node in masters), NET, "the end of it", every=1)
    assert all(node.host.journal(HNA_EVENT="TokenKeysAgree") for node in masters)
    assert answer(m1, token_of(m3)) == "200"
