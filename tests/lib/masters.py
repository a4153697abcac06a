"""Three masters with a real etcd, given CAs and a list of members; and somebody who writes to it all the time."""
import contextlib
import json

import yaml

from lib import stand_ins
from lib.certificates import CA, aged
from lib.cluster import ETCD, VERSION, Node, parameters
from lib.common import wait_for
from lib.failures import slack
from lib.node import start
from lib.pod_network import together

IPS = {f"m{number}": f"10.77.0.{20 + number}" for number in (1, 2, 3)}
# Writes to the first member that takes it within $1 seconds, and notes what no member took.
WRITER = f"""
export ETCDCTL_API=3
number=0
while [ ! -e /run/written ]; do
  number=$((number + 1)); done=
  for ip in {' '.join(IPS.values())}; do
    etcdctl --command-timeout=$1s --endpoints https://$ip:2379 --cacert {ETCD}/ca.crt --cert /root/writer/admin.crt \\
      --key /root/writer/admin.key put /writer/$number $number >/dev/null 2>&1 && {{ done=$ip; break; }}
  done
  echo "$number ${{done:-nobody}}" >>/root/writes
  sleep 0.2
done
"""


def listed(node, seconds: int = 30) -> dict[str, int]:
    """Id of each member by its peer URL."""
    members = json.loads(node.etcdctl("member", "list", "-w", "json", seconds=seconds))["members"]
    return {member["peerURLs"][0]: member["ID"] for member in members}


class Masters:
    """is_shared: one CA signs for all, so that etcd knows its clients by a name in their certificate, as with Magnum's."""

    def __init__(self, hosts, signal_server, folder, is_shared: bool = False):
        machines = together(*(lambda n=name, ip=ip: hosts(n, ip=ip) for name, ip in IPS.items()))
        machines[0].install_agent()
        machines[0].exec("heat-node-agent", "certificates", "new-ca", "--out", "/root/ca")
        given = yaml.safe_load(machines[0].read("/root/ca/parameters.yaml"))["parameters"]
        if is_shared:
            given |= {f"ETCD_CA_{half}": given[f"CA_{half}"] for half in ("CERTIFICATE", "KEY")}
        members = ",".join(f"{name}=https://{ip}:2380" for name, ip in IPS.items())
        self.nodes = [
            Node(host, signal_server(port=18000 + number),
                 parameters("master", name, ip, IPS["m1"], ETCD_INITIAL_CLUSTER=members, MASTER_INDEX=number,
                            CLUSTER_UUID="5f1c3a52-8d0e-4c61-9b0e-2f6f6e1d7a10", **given))
            for number, (host, (name, ip)) in enumerate(zip(machines, IPS.items()))]
        for name in ("CA", "ETCD_CA", "FRONT_PROXY_CA"):
            for half in ("CERTIFICATE", "KEY"):
                (folder / f"{name}_{half}").write_text(given[f"{name}_{half}"])
        self.cas = {place: CA.there(folder / name, folder / f"{name}_CERTIFICATE", folder / f"{name}_KEY") for place, name in (
            ("/etc/kubernetes/certs", "CA"), (ETCD, "ETCD_CA"), ("/etc/kubernetes/certs/front-proxy", "FRONT_PROXY_CA"))}

    def begin(self, *nodes: Node):
        for node in nodes:
            stand_ins.into(node.host, VERSION)
            node.publish()
            start(node.host, node.server, "polling_interval = 5\n")

    def up(self):
        self.begin(*self.nodes)
        together(*(node.succeeds for node in self.nodes))

    def each(self, *words: str):
        together(*(lambda node=node: node.host.exec(*words) for node in self.nodes))

    def age(self, since_days: float, left_days: float):
        """All certificates of all masters, in the same moment."""
        for node in self.nodes:
            for path, folder, *_ in node.certificates():
                aged(node.at(f"{path}.crt"), self.cas[folder], since_days, left_days)

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
    def written_to(self, quorum: bool = True):
        """What no member took is found at the end, and every write that one took must be there; without a quorum at times none takes some."""
        host = self.nodes[0].host
        host.sh(f"mkdir -p /root/writer; cp -L {ETCD}/admin.crt {ETCD}/admin.key /root/writer/; rm -f /run/written /root/writes")
        host.write("/root/write", WRITER, 0o755)
        host.exec("systemd-run", "-q", "--unit=writer", "bash", "/root/write", 4 * slack())
        yield
        # What was done meanwhile may have taken two seconds.
        wait_for(lambda: int(host.sh("grep -vc nobody /root/writes || true") or 0) > 10, 300, "more than ten writes")
        host.sh("touch /run/written")
        wait_for(lambda: not host.is_active("writer.service"), 300, "the writer's end")
        lines = [line.split() for line in host.read("/root/writes").splitlines()]
        taken = {number for number, by in lines if by != "nobody"}
        print(f"{len(lines)} writes, {len(lines) - len(taken)} of them taken by nobody")
        assert len(taken) > 10 and (len(taken) == len(lines) or not quorum), lines
        self.have("/writer/", taken)

    def have(self, prefix: str, names: set[str]):
        """Each of these keys, with its own name as value, as every member reads it from a quorum."""
        for node in self.nodes:
            lines = node.etcdctl("get", "--prefix", "--consistency=l", prefix).splitlines()
            found = dict(zip(lines[::2], lines[1::2]))
            lost = sorted(name for name in names if found.get(prefix + name) != name)
            assert not lost, f"{node.host.name} lacks {lost}"
