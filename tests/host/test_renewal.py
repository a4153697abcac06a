"""Three masters whose certificates are due for a renewal at the same moment: a real etcd, which somebody writes to all the time, must
never be without its quorum."""
import contextlib
import re

import pytest
import yaml
from lib import stand_ins
from lib.certificates import Authority, aged
from lib.cluster import ETCD, VERSION, Node, parameters
from lib.common import wait_for
from lib.node import UNIT, start
from lib.pod_network import together

IPS = {f"m{number}": f"10.77.0.{20 + number}" for number in (1, 2, 3)}
# Writes to the first member that takes it, and notes what no member took.
WRITER = f"""
export ETCDCTL_API=3
number=0
while [ ! -e /run/written ]; do
  number=$((number + 1)); done=
  for ip in {' '.join(IPS.values())}; do
    etcdctl --command-timeout=4s --endpoints https://$ip:2379 --cacert {ETCD}/ca.crt --cert /root/writer/admin.crt \\
      --key /root/writer/admin.key put /writer $number >/dev/null 2>&1 && {{ done=$ip; break; }}
  done
  echo "$number ${{done:-nobody}}" >>/root/writes
  sleep 0.2
done
"""
LOCK = "/heat-node-agent/renewal"


class Masters:
    def __init__(self, hosts, signal_server, folder):
        machines = together(*(lambda n=name, ip=ip: hosts(n, ip=ip) for name, ip in IPS.items()))
        machines[0].install_agent()
        machines[0].exec("heat-node-agent", "certificates", "new-ca", "--out", "/root/ca")
        given = yaml.safe_load(machines[0].read("/root/ca/parameters.yaml"))["parameters"]
        members = ",".join(f"{name}=https://{ip}:2380" for name, ip in IPS.items())
        self.nodes = [
            Node(host, signal_server(port=18000 + number),
                 parameters("master", name, ip, IPS["m1"], ETCD_INITIAL_CLUSTER=members, MASTER_INDEX=number,
                            CLUSTER_UUID="5f1c3a52-8d0e-4c61-9b0e-2f6f6e1d7a10", **given))
            for number, (host, (name, ip)) in enumerate(zip(machines, IPS.items()))]
        for name in ("CA", "ETCD_CA", "FRONT_PROXY_CA"):
            for half in ("CERTIFICATE", "KEY"):
                (folder / f"{name}_{half}").write_text(given[f"{name}_{half}"])
        self.authorities = {place: Authority.there(folder / name, folder / f"{name}_CERTIFICATE", folder / f"{name}_KEY") for place, name in (
            ("/etc/kubernetes/certs", "CA"), (ETCD, "ETCD_CA"), ("/etc/kubernetes/certs/front-proxy", "FRONT_PROXY_CA"))}

    def up(self):
        for node in self.nodes:
            stand_ins.into(node.host, VERSION)
            node.publish()
            start(node.host, node.server, "polling_interval = 5\n")
        together(*(node.succeeds for node in self.nodes))

    def each(self, *words: str):
        together(*(lambda node=node: node.host.exec(*words) for node in self.nodes))

    def age(self, since_days: float, left_days: float):
        """All certificates of all masters, in the same moment."""
        for node in self.nodes:
            for path, folder, *_ in node.certificates():
                aged(node.at(f"{path}.crt"), self.authorities[folder], since_days, left_days)

    def mistakes(self) -> list[str]:
        """The table of certificates is that of the first master, whose name the others do not have, where etcd knows its clients by name."""
        others = ("does not name {'m1'}", "does not name {'etcd-client.heat-node-agent'}")
        return [m for node in self.nodes for m in node.mistakes() if not m.endswith(others)]

    def events(self, name: str) -> list[str]:
        return [e.get("HNA_CAUSE", "") for node in self.nodes for e in node.host.journal(HNA_EVENT=name)]

    def issued(self) -> list[dict]:
        return [node.issued() for node in self.nodes]

    def renewed(self, before: list[dict]) -> list[bool]:
        return [all(now[path] != then[path] for path in then) for now, then in zip(self.issued(), before)]

    def healthy(self) -> bool:
        where = ",".join(f"https://{ip}:2379" for ip in IPS.values())
        with contextlib.suppress(Exception):
            return self.nodes[0].etcdctl("endpoint", "health", endpoint=where, seconds=5).count("is healthy") == len(IPS)
        return False

    @contextlib.contextmanager
    def written_to(self):
        """What no member took is found at the end."""
        host = self.nodes[0].host
        host.sh(f"mkdir -p /root/writer; cp -L {ETCD}/admin.crt {ETCD}/admin.key /root/writer/; rm -f /run/written /root/writes")
        host.write("/root/write", WRITER, 0o755)
        host.exec("systemd-run", "-q", "--unit=writer", "bash", "/root/write")
        yield
        host.sh("touch /run/written")
        wait_for(lambda: not host.is_active("writer.service"), 60, "the writer's end")
        lost = [line for line in host.read("/root/writes").splitlines() if line.endswith("nobody")]
        written = len(host.read("/root/writes").splitlines())
        print(f"{written} writes, {len(lost)} of them lost")
        assert written > 10 and not lost, lost


@pytest.fixture
def masters(hosts, signal_server, tmp_path):
    found = Masters(hosts, signal_server, tmp_path)
    found.up()
    return found


def test_masters_renew_one_by_one_and_expired_ones_at_once(masters):
    wait_for(masters.healthy, 120, "etcd of three members")
    # The writer's own certificate is not touched by what follows.
    with masters.written_to():
        masters.each("systemctl", "stop", UNIT)
        masters.age(since_days=200, left_days=60)
        before = masters.issued()
        # --- a member is down: nobody takes the second one ---
        masters.nodes[2].host.exec("systemctl", "stop", "etcd")
        together(*(lambda node=node: node.host.exec("systemctl", "start", UNIT) for node in masters.nodes[:2]))
        wait_for(lambda: len([c for c in masters.events("RenewalWaiting") if "unhealthy: m3" in c]) == 2, 120, "two masters that wait")
        assert masters.renewed(before) == [False] * 3
        page = masters.nodes[0].status()["node"]["certificates"]["waits"]
        assert "the renewal waits" in page["cause"] and "m3" in page["cause"], page
        masters.nodes[2].host.exec("systemctl", "start", "etcd", "kube-apiserver")

        # --- all are due at once: one after the other, under the key in etcd ---
        masters.nodes[2].host.exec("systemctl", "start", UNIT)
        wait_for(lambda: all(masters.renewed(before)), 240, "renewed certificates on all masters")
        wait_for(lambda: all(node.healthy() for node in masters.nodes) and masters.healthy(), 120, "healthy masters")
    assert not masters.mistakes()
    wait_for(lambda: LOCK not in masters.nodes[0].etcdctl("get", "--prefix", "/heat-node-agent"), 60, "the lock given back")
    restarts = [re.findall(r"Started etcd", node.host.sh("journalctl -u etcd --no-pager -o cat")) for node in masters.nodes]
    print(f"starts of etcd: {[len(one) for one in restarts]}, waits: {masters.events('RenewalWaiting')}")

    # --- the cluster was off until all of them had expired: nobody waits for a quorum that cannot come ---
    masters.each("systemctl", "stop", UNIT)
    masters.age(since_days=200, left_days=-1)
    expired = masters.issued()
    masters.each("systemctl", "kill", "--signal=KILL", "etcd")
    masters.each("systemctl", "start", UNIT)
    wait_for(lambda: all(masters.renewed(expired)), 240, "renewed certificates in place of expired ones")
    wait_for(lambda: all(node.healthy() for node in masters.nodes) and masters.healthy(), 240, "healthy masters")
    assert not masters.mistakes()
