"""Three masters with a real etcd, given CAs and a list of members; further ones that join them; somebody who writes to etcd, and somebody who asks
API servers, all the time."""
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

ALL = {f"m{number}": f"10.77.0.{20 + number}" for number in range(1, 6)}
IPS = {name: ip for name, ip in ALL.items() if name <= "m3"}
# Writes to the first member that takes it within $1 seconds, beginning with the last one that did, and notes what no member took.
WRITER = f"""
export ETCDCTL_API=3
number=0; done=
while [ ! -e /run/written ]; do
  number=$((number + 1)); last=$done; done=
  for ip in $last {' '.join(IPS.values())}; do
    etcdctl --command-timeout=$1s --endpoints https://$ip:2379 --cacert {ETCD}/ca.crt --cert /root/writer/admin.crt \\
      --key /root/writer/admin.key put /writer/$number $number >/dev/null 2>&1 && {{ done=$ip; break; }}
  done
  echo "$number ${{done:-nobody}}" >>/root/writes
  sleep 0.2
done
"""
# Asks each of these API servers for objects that it has from etcd, and notes what each says within $1 seconds.
CLIENT = """
seconds=$1; shift
while [ ! -e /run/asked ]; do
  for ip; do
    said=$(curl -sS -m $seconds -o /dev/null -w '%{http_code}' --cacert /root/client/ca.crt --cert /root/client/admin.crt \\
      --key /root/client/admin.key https://$ip:6443/apis/rbac.authorization.k8s.io/v1/clusterroles 2>&1) || :
    echo "$(date +%T) $ip $said" >>/root/answers
  done
  sleep 0.5
done
"""


def listed(node, seconds: int = 30) -> dict[str, int]:
    """Id of each member by its peer URL."""
    members = json.loads(node.etcdctl("member", "list", "-w", "json", seconds=seconds))["members"]
    return {member["peerURLs"][0]: member["ID"] for member in members}


def initial_cluster(names) -> str:
    return ",".join(f"{name}=https://{ALL[name]}:2380" for name in names)


class Masters:
    """is_shared: one CA signs for all, so that etcd knows its clients by a name in their certificate, as with Magnum's."""

    def __init__(self, hosts, signal_server, folder, is_shared: bool = False, discovery: str = "", names=tuple(IPS)):
        """discovery: a URL by which the members find each other, in place of the list of these names."""
        self.hosts, self.signal_server = hosts, signal_server
        machines = self.booted(*names)
        machines[0].install_agent()
        machines[0].exec("heat-node-agent", "certificates", "new-ca", "--out", "/root/ca")
        given = yaml.safe_load(machines[0].read("/root/ca/parameters.yaml"))["parameters"]
        if is_shared:
            given |= {f"ETCD_CA_{half}": given[f"CA_{half}"] for half in ("CERTIFICATE", "KEY")}
        self.given = given | {"CLUSTER_UUID": "5f1c3a52-8d0e-4c61-9b0e-2f6f6e1d7a10"}
        self.given |= {"ETCD_DISCOVERY_URL": discovery} if discovery else {"ETCD_INITIAL_CLUSTER": initial_cluster(names)}
        self.nodes = [self.master(host) for host in machines]
        for name in ("CA", "ETCD_CA", "FRONT_PROXY_CA"):
            for half in ("CERTIFICATE", "KEY"):
                (folder / f"{name}_{half}").write_text(given[f"{name}_{half}"])
        self.cas = {place: CA.there(folder / name, folder / f"{name}_CERTIFICATE", folder / f"{name}_KEY") for place, name in (
            ("/etc/kubernetes/certs", "CA"), (ETCD, "ETCD_CA"), ("/etc/kubernetes/certs/front-proxy", "FRONT_PROXY_CA"))}

    def booted(self, *names: str) -> list:
        return together(*(lambda n=name: self.hosts(n, ip=ALL[n]) for name in names))

    def master(self, host) -> Node:
        number = int(host.name.removeprefix("m"))
        return Node(host, self.signal_server(port=18000 + number),
                    parameters("master", host.name, ALL[host.name], IPS["m1"], MASTER_INDEX=number - 1, **self.given))

    def grow(self, *names: str, before=lambda node: None) -> list[Node]:
        """As a stack that gets more masters: all learn of the longer list, and the new ones begin, each behind what is done with it before."""
        self.given["ETCD_INITIAL_CLUSTER"] = initial_cluster([*(node.host.name for node in self.nodes), *names])
        old = list(self.nodes)
        more = [self.master(host) for host in self.booted(*names)]
        for node in old:
            node.update(ETCD_INITIAL_CLUSTER=self.given["ETCD_INITIAL_CLUSTER"])
        for node in more:
            before(node)
        self.begin(*more)
        self.nodes += more
        return more

    def begin(self, *nodes: Node, settings: str = "", version: str = VERSION):
        for node in nodes:
            stand_ins.into(node.host, version)
            node.publish(KUBE_TAG=f"v{version}")
            start(node.host, node.server, f"polling_interval = 5\n{settings}")

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
        where = ",".join(f"https://{ALL[node.host.name]}:2379" for node in self.nodes)
        with contextlib.suppress(Exception):
            return self.nodes[0].etcdctl("endpoint", "health", endpoint=where, seconds=5).count("is healthy") == len(self.nodes)
        return False

    @contextlib.contextmanager
    def written_to(self, quorum: bool = True, by: Node | None = None):
        """What no member took is found at the end, and every write that one took must be there; without a quorum at times none takes some."""
        host = (by or self.nodes[0]).host
        host.sh(f"mkdir -p /root/writer; cp -L {ETCD}/admin.crt {ETCD}/admin.key /root/writer/; rm -f /run/written /root/writes")
        host.write("/root/write", WRITER, 0o755)
        host.exec("systemd-run", "-q", "--unit=writer", "bash", "/root/write", 4 * slack())
        yield
        # What was done meanwhile may have taken two seconds.
        wait_for(lambda: int(host.sh("grep -vc nobody /root/writes || true") or 0) > 10, 300, "more than ten writes")
        host.sh("touch /run/written")
        wait_for(lambda: not host.is_active("writer.service"), 300, "the writer's end")
        lines = host.read("/root/writes").splitlines()
        taken = self.taken(host)
        print(f"{len(lines)} writes, {len(lines) - len(taken)} of them taken by nobody")
        assert len(taken) > 10 and (len(taken) == len(lines) or not quorum), lines
        self.have("/writer/", taken)

    @staticmethod
    def taken(host) -> set[str]:
        """What was written until now from this host, and a member took."""
        return {number for number, by in map(str.split, host.read("/root/writes").splitlines()) if by != "nobody"}

    @contextlib.contextmanager
    def answered(self, *nodes: Node):
        """A client of these masters' API servers gets what it asks for, each time."""
        host, ips = nodes[0].host, [ALL[node.host.name] for node in nodes]
        host.sh("mkdir -p /root/client; cp -L /etc/kubernetes/certs/{ca,admin}.crt /etc/kubernetes/certs/admin.key /root/client/; rm -f /run/asked /root/answers")
        host.write("/root/ask", CLIENT, 0o755)
        host.exec("systemd-run", "-q", "--unit=client", "bash", "/root/ask", 10 * slack(), *ips)
        yield
        asked = lambda ip: host.sh(f"grep -c ' {ip} ' /root/answers || true")  # noqa: E731
        wait_for(lambda: all(int(asked(ip) or 0) > 10 for ip in ips), 300, "more than ten answers of each")
        host.sh("touch /run/asked")
        wait_for(lambda: not host.is_active("client.service"), 300, "the client's end")
        lines = host.read("/root/answers").splitlines()
        wrong = [line for line in lines if not line.endswith(" 200")]
        print(f"{len(lines)} answers of {', '.join(ips)}, {len(wrong)} of them wrong")
        assert not wrong, "one of them is not answered:\n" + "\n".join(wrong)

    def have(self, prefix: str, names: set[str]):
        """Each of these keys, with its own name as value, as every member reads it from a quorum."""
        for node in self.nodes:
            lines = node.etcdctl("get", "--prefix", "--consistency=l", prefix).splitlines()
            found = dict(zip(lines[::2], lines[1::2]))
            lost = sorted(name for name in names if found.get(prefix + name) != name)
            assert not lost, f"{node.host.name} lacks {lost}"
