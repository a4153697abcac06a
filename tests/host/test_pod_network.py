"""The network of pods on real systemd hosts, without the daemon: flannel's subnet to a real docker, static routes.

A pod is a network namespace on the node's bridge; what the kernel forwards to it, it forwards to a container."""
import json
import re

IP, PEER = "10.77.0.11", "10.77.0.12"
UNIT = "heat-node-pod-network.service"
FILE = "/etc/heat-node-agent/pod-network.json"
# What the agent writes for docker, as far as it matters here.
DOCKER = f"""[Unit]
Requires={UNIT}
After={UNIT}
[Service]
EnvironmentFile=-/run/flannel/docker
ExecStart=
ExecStart=/usr/sbin/dockerd -H fd:// $DOCKER_NETWORK_OPTIONS
"""
# As a flanneld that is slow to get its lease and says nothing to systemd: until somebody in this boot waits for it.
FLANNELD = f"""[Service]
ExecStart=/bin/sh -c 'until journalctl -q --no-pager -o cat -b -u {UNIT} | grep -q "^waiting, "; do sleep 0.2; done; mkdir -p /run/flannel; cp /etc/subnet.env /run/flannel/.new; mv /run/flannel/.new /run/flannel/subnet.env; exec sleep infinity'
[Install]
WantedBy=multi-user.target
"""


def subnet_env(subnet: str, mtu: int = 1450, masquerade: str = "true") -> str:
    return f"FLANNEL_NETWORK=10.100.0.0/16\nFLANNEL_SUBNET={subnet}\nFLANNEL_MTU={mtu}\nFLANNEL_IPMASQ={masquerade}\n"


def want(host, kind: str, **fields):
    host.write(FILE, json.dumps({kind: fields}))


def pod(host, bridge: str, address: str, router: str):
    host.sh(f"""sysctl -qw net.ipv4.ip_forward=1
        ip netns add pod; ip link add to-pod type veth peer name eth0 netns pod; ip link set to-pod master {bridge} up
        ip -n pod addr add {address} dev eth0; ip -n pod link set eth0 up; ip -n pod route add default via {router}""")


def reaches(host, address: str) -> bool:
    return host.exec("ip", "netns", "exec", "pod", "ping", "-c", "1", "-W", "3", address, check=False).returncode == 0


def reach(*pairs):
    """Waits: the first packet may be lost while neighbours are looked for."""
    for host, address in pairs:
        host.wait_for(lambda: reaches(host, address), what=f"{address} from the pod of {host.name}")


def network(host) -> str:
    """Everything that the unit makes, to compare."""
    return host.sh("ip -4 -o addr | cut -d: -f2-; ip -4 route show table main; iptables -S FORWARD; cat /run/flannel/docker 2>/dev/null || :")


def said(host) -> str:
    return "\n".join(entry["MESSAGE"] for entry in host.journal(UNIT, boot=0))


def bridge(host) -> list[str]:
    return [line.split()[3] for line in host.sh("ip -4 -o addr show dev docker0").splitlines()]


def docker_gets_the_subnet(host) -> str:
    """The network that the unit makes."""
    host.install_agent()
    want(host, "docker-bridge", network="10.100.0.0/16", bridge="docker0")
    host.put({"/etc/systemd/system/docker.service.d/pods.conf": (DOCKER.encode(), 0o644), "/etc/subnet.env": (subnet_env("10.100.26.1/24").encode(), 0o644),
              "/etc/systemd/system/flanneld.service": (FLANNELD.encode(), 0o644)})
    # One of an earlier life, and a subnet file of an earlier network: flanneld has not written its own yet.
    host.sh(f"""ip link add docker0 type bridge; ip addr add 172.17.0.1/16 dev docker0
        mkdir -p /run/flanneld; printf 'FLANNEL_SUBNET=172.30.1.1/24\\nFLANNEL_MTU=1472\\n' >/run/flanneld/subnet.env
        systemctl daemon-reload; systemctl enable -q flanneld {UNIT} docker.service; systemctl start flanneld docker""")
    for words in ("/run/flanneld/subnet.env contains 172.30.1.0/24, which is not within 10.100.0.0/16", "ip link del dev docker0\nit had 172.17.0.1/16"):
        host.wait_for(lambda: words in said(host), what=words)

    assert bridge(host) == ["10.100.26.1/24"]
    assert json.loads(host.sh("docker network inspect bridge"))[0]["Options"]["com.docker.network.driver.mtu"] == "1450"
    # flannel masquerades: docker must not, or pods elsewhere would see the node's address.
    assert "MASQUERADE" not in host.sh("iptables -t nat -S POSTROUTING")

    # A second run changes nothing.
    before = network(host)
    host.exec("heat-node-agent", "pod-network")
    assert network(host) == before and host.exec("heat-node-agent", "pod-network").stdout == ""
    return before


def pods_get_through_a_closed_chain(host, peer):
    """docker drops what is forwarded; a peer's pods get through all the same, and would not without the rules."""
    peer.sh(f"ip link add br1 type bridge; ip addr add 10.100.27.1/24 dev br1; ip link set br1 up; ip route add 10.100.26.0/24 via {IP}")
    host.sh(f"ip route add 10.100.27.0/24 via {PEER}")
    pod(peer, "br1", "10.100.27.2/24", "10.100.27.1")
    pod(host, "docker0", "10.100.26.2/24", "10.100.26.1")
    reach((peer, "10.100.26.2"), (host, "10.100.27.2"))
    rules = [line for line in host.sh("iptables -S FORWARD; iptables -S DOCKER-USER").splitlines() if "heat-node-agent" in line]
    assert len(rules) == 4
    host.sh("\n".join(rule.replace("-A", "iptables -D") for rule in rules))
    assert not reaches(peer, "10.100.26.2")
    host.exec("systemctl", "reload", UNIT)
    reach((peer, "10.100.26.2"))
    # A container of docker's own too, which docker 28 keeps other nodes from.
    host.sh("""mkdir /run/image; cd /run/image; for file in /bin/sleep $(ldd /bin/sleep | grep -o '/[^ ]*'); do mkdir -p .$(dirname $file); cp $file .$file; done
        tar -c . | docker import - sleep >/dev/null; docker run -d --name sleep sleep /bin/sleep 1000; rm -r /run/image""")
    reach((peer, host.sh("docker inspect -f '{{.NetworkSettings.IPAddress}}' sleep").strip()))
    host.sh("docker rm -f sleep")


def subnet_changes_under_docker(host):
    """The bridge stays until docker is stopped."""
    host.write("/run/flannel/subnet.env", subnet_env("10.100.30.1/24", 1400, "false"))
    done = host.exec("heat-node-agent", "pod-network")
    assert "docker0 has 10.100.26.1/24 and is kept, because docker is running" in done.stderr and bridge(host) == ["10.100.26.1/24"]
    direct = " --allow-direct-routing" if "--allow-direct-routing" in host.sh("dockerd --help") else ""
    assert host.read("/run/flannel/docker") == f'DOCKER_NETWORK_OPTIONS="--bip=10.100.30.1/24 --mtu=1400{direct}"\n'
    host.exec("systemctl", "stop", "docker.socket", "docker.service")
    assert "because containers are attached to it" in host.exec("heat-node-agent", "pod-network").stderr
    host.sh("ip netns del pod; while ip link show to-pod; do sleep 0.1; done 2>/dev/null")
    assert "ip link del dev docker0" in host.exec("heat-node-agent", "pod-network").stdout

    # Garbage is refused by its line, and does not become an option of docker.
    host.write("/run/flannel/subnet.env", "FLANNEL_SUBNET=10.100.31.1/24 --insecure-registry=x\nFLANNEL_MTU=1450\n")
    done = host.exec("heat-node-agent", "pod-network", check=False)
    assert done.returncode == 1 and "reading /run/flannel/subnet.env" in done.stderr and "not an IPv4 address" in done.stderr
    assert "10.100.30.1" in host.read("/run/flannel/docker")


def docker_waits_for_the_subnet_at_boot(host):
    """A boot without the agent."""
    host.write("/etc/subnet.env", subnet_env("10.100.40.1/24"))
    host.sh("iptables -F FORWARD")  # the network namespace outlives PID 1 here
    host.reboot()
    assert not host.is_active("heat-node-agent.service") and host.is_active("docker.service")
    assert bridge(host) == ["10.100.40.1/24"] and re.search(r"waiting, \d+ s: flannel's subnet file", said(host))
    assert "-A FORWARD -d 10.100.0.0/16 -m comment --comment heat-node-agent -j ACCEPT" in network(host)


def test_docker_gets_flannels_subnet_at_each_boot(hosts):
    host = hosts("n1", ip=IP)
    before = docker_gets_the_subnet(host)
    assert "-P FORWARD DROP" in before
    pods_get_through_a_closed_chain(host, hosts("n2", ip=PEER, base="base"))
    subnet_changes_under_docker(host)
    docker_waits_for_the_subnet_at_boot(host)


def set_up_routes(n1, n2, peers: list) -> str:
    """The network of the first node, whose pods reach those of the other."""
    nodes = ((n1, "10.0.1", peers), (n2, "10.0.2", peers[:1]))
    for host, net, others in nodes:
        host.install_agent()
        # The own subnet among the peers, as kubernetes-ansible has it, is left out.
        want(host, "routes", network="10.0.0.0/16", bridge="kbr0", address=f"{net}.1/24", peers=others)
        host.exec("systemctl", "enable", "-q", "--now", UNIT)
        # A docker that closes the chain.
        host.sh("iptables -P FORWARD DROP")
        pod(host, "kbr0", f"{net}.2/24", f"{net}.1")
    reach((n1, "10.0.2.2"), (n2, "10.0.1.2"))
    assert "proto 72" not in n1.sh("ip route show 10.0.1.0/24") and "proto 72" in n1.sh("ip route show 10.0.2.0/24")
    before = network(n1)
    assert n1.exec("heat-node-agent", "pod-network").stdout == "" and network(n1) == before
    return before


def routes_come_back(n1, n2, before: str):
    """Each thing that is taken away comes back, and nothing goes down meanwhile; all of it is there after a boot."""
    index = n1.sh("ip -o link show eth0; ip -o link show kbr0")
    n1.sh("ip route del 10.0.2.0/24; ip addr add 10.0.9.1/24 dev kbr0; iptables -F FORWARD")
    n1.exec("systemctl", "reload", UNIT)
    n1.wait_for(lambda: network(n1) == before, what="what was taken away")
    assert n1.sh("ip -o link show eth0; ip -o link show kbr0") == index

    # A host's network namespace outlives its PID 1 here: what a reboot takes with it is taken by hand.
    n1.sh("ip netns del pod; ip link del kbr0; ip route flush proto 72; iptables -F FORWARD")
    n1.reboot()
    pod(n1, "kbr0", "10.0.1.2/24", "10.0.1.1")
    n1.wait_for(lambda: network(n1) == before, what="the bridge's carrier")
    reach((n1, "10.0.2.2"), (n2, "10.0.1.2"))


def other_peers(n1):
    """What we made goes, what others made stays, and what cannot be is named without holding up the rest."""
    n1.sh(f"ip route add 10.0.7.0/24 via {PEER}; ip route add 10.0.8.0/24 via 10.77.0.99; ip route add default via 10.77.0.1")
    want(n1, "routes", network="10.0.0.0/16", bridge="kbr0", address="10.0.1.1/24", peers=[
        {"subnet": "10.0.3.0/24", "node": "198.51.100.3"}, {"subnet": "10.0.7.0/24", "node": PEER}, {"subnet": "10.0.8.0/24", "node": PEER},
        {"subnet": "10.0.4.0/24", "node": PEER}])
    done = n1.exec("heat-node-agent", "pod-network", check=False)
    assert done.returncode == 1
    assert f"198.51.100.3 is not on the network segment of this node's {IP}: it is reached through 10.77.0.1" in done.stderr
    assert "it already has a route via 10.77.0.99 dev eth0 that is not the agent's" in done.stderr
    routes = n1.sh("ip route")
    assert "10.0.2.0/24" not in routes and "10.0.3.0/24" not in routes
    assert f"10.0.7.0/24 via {PEER} dev eth0 \n" in routes and "10.0.8.0/24 via 10.77.0.99" in routes
    assert f"10.0.4.0/24 via {PEER} dev eth0 proto 72" in routes


def bridge_of_somebody_else(n1, peers: list):
    """It keeps what it has, and is named."""
    n1.sh("ip netns del pod; ip link del kbr0; ip link add kbr0 type bridge; ip addr add 192.0.2.1/24 dev kbr0")
    done = n1.exec("heat-node-agent", "pod-network", check=False)
    assert done.returncode == 1 and "it exists, the agent did not create it, and it has 192.0.2.1/24" in done.stderr
    assert "POD_BRIDGE" in done.stderr and "inet 192.0.2.1/24" in n1.sh("ip -4 -o addr show dev kbr0")
    # One without address and ports is taken, and is ours from then on: another address takes the place of the first.
    n1.sh("ip addr flush dev kbr0")
    n1.exec("heat-node-agent", "pod-network", check=False)
    assert "inet 10.0.1.1/24" in n1.sh("ip -4 -o addr show dev kbr0") and "alias heat-node-agent" in n1.sh("ip link show kbr0")
    want(n1, "routes", network="10.0.0.0/16", bridge="kbr0", address="10.0.6.1/24", peers=peers[1:])
    n1.exec("heat-node-agent", "pod-network")
    assert n1.sh("ip -4 -o addr show dev kbr0 | awk '{print $4}'") == "10.0.6.1/24\n"


def another_bridge_and_no_network(n1, peers: list):
    """What we made goes, whatever else is there stays."""
    want(n1, "routes", network="10.0.0.0/16", bridge="kbr1", address="10.0.6.1/24", peers=peers[1:])
    n1.exec("heat-node-agent", "pod-network")
    assert "kbr0" not in n1.sh("ip link") and "proto 72" in n1.sh("ip route")
    n1.write("/etc/cni/net.d/10-heat-node-agent.conflist", "{}")
    n1.write("/etc/cni/net.d/20-other.conflist", "{}")
    want(n1, "nothing")
    n1.exec("systemctl", "restart", UNIT)
    assert "kbr1" not in n1.sh("ip link") and "proto 72" not in n1.sh("ip route") and f"10.0.7.0/24 via {PEER} dev eth0 \n" in n1.sh("ip route")
    assert "comment heat-node-agent" not in n1.sh("iptables -S FORWARD") and n1.sh("ls /etc/cni/net.d") == "20-other.conflist\n"

    # An interface of that name that is none of ours.
    want(n1, "routes", network="10.0.0.0/16", bridge="kbr0", address="10.0.1.1/24", peers=peers[1:])
    n1.sh("ip link add kbr0 type veth peer name other")
    done = n1.exec("heat-node-agent", "pod-network", check=False)
    assert done.returncode == 1 and "creating the bridge kbr0: it exists and is not a bridge" in " ".join(done.stderr.replace("\n ", ":").split()).replace("heat-node-agent: ", "")


def test_static_routes_come_back_and_follow_the_parameters(hosts):
    n1, n2 = hosts("n1", ip=IP, base="base"), hosts("n2", ip=PEER, base="base")
    peers = [{"subnet": "10.0.1.0/24", "node": IP}, {"subnet": "10.0.2.0/24", "node": PEER}]
    before = set_up_routes(n1, n2, peers)
    routes_come_back(n1, n2, before)
    other_peers(n1)
    bridge_of_somebody_else(n1, peers)
    another_bridge_and_no_network(n1, peers)


def test_routes_come_once_the_network_does(hosts):
    """At boot the network may be down: the unit does not hold up the runtime, and tries on by itself."""
    n1, n2 = hosts("n1", ip=IP, base="base"), hosts("n2", ip=PEER, base="base")
    peers = [{"subnet": "10.0.2.0/24", "node": PEER}, {"subnet": "10.0.3.0/24", "node": "10.77.0.13"}]
    n1.install_agent()
    n1.sh("ip link set eth0 down")
    want(n1, "routes", network="10.0.0.0/16", bridge="kbr0", address="10.0.1.1/24", peers=peers)
    n1.exec("systemctl", "enable", "-q", "--now", UNIT)
    assert n1.is_active(UNIT) and "proto 72" not in n1.sh("ip route")
    n1.wait_for(lambda: f"{PEER} is unreachable" in said(n1) and "2 of 2 routes are missing" in n1.sh(f"systemctl show -P StatusText {UNIT}"))
    # A run by hand ends, and says so.
    assert n1.exec("heat-node-agent", "pod-network", check=False).returncode == 1
    n1.sh(f"ip link set eth0 up; ip addr replace {IP}/24 dev eth0")
    n1.wait_for(lambda: n1.sh("ip route").count("proto 72") == 2, what="both routes")
    n1.wait_for(lambda: "all routes were set after" in said(n1), what="the end of trying")
    n1.wait_for(lambda: n1.sh(f"systemctl show -P SubState {UNIT}") == "exited\n", what="the end of the process")
    assert n1.is_active(UNIT) and n2.name
