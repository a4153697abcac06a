"""The ports of the node's services in the host's own firewall, on real systemd hosts, without the daemon."""
import json

import pytest

from lib.common import PYTHON, in_lab

IP = "10.77.0.11"
UNIT = "heat-node-firewall.service"
FILE = "/etc/heat-node-agent/firewall.json"
ETCD = {"what": "etcd clients", "protocol": "tcp", "ports": [2379, 2380], "from": "10.77.0.0/24"}
KUBELET = {"what": "kubelet", "protocol": "tcp", "ports": [10250, 10250], "from": None}
PODS = {"what": "pods", "protocol": "forwarded", "ports": None, "from": "10.100.0.0/16"}
OPEN = [ETCD, KUBELET, PODS]
NFTABLES = """#!/usr/sbin/nft -f
flush ruleset
table inet filter {
    chain input {
        type filter hook input priority filter; policy drop;
        ct state established,related accept comment "an operator's"
        iif lo accept
    }
    chain forward {
        type filter hook forward priority filter; policy accept;
        counter reject with icmp port-unreachable
    }
}
"""
# Debian has no iptables-services: this does what Fedora's unit and its helper do.
IPTABLES = """[Unit]
ConditionPathExists=/etc/sysconfig/iptables
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'iptables-restore </etc/sysconfig/iptables'
ExecReload=/bin/sh -c 'iptables-restore </etc/sysconfig/iptables'
ExecStop=/bin/sh -c 'iptables -P INPUT ACCEPT; iptables -F'
[Install]
WantedBy=multi-user.target
"""
SAVED = """*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A INPUT -m state --state RELATED,ESTABLISHED -j ACCEPT
-A INPUT -i lo -j ACCEPT
-A INPUT -j REJECT --reject-with icmp-host-prohibited
-A FORWARD -j REJECT --reject-with icmp-host-prohibited
COMMIT
"""


# The kernels on both sides answer, and what they answered is looked at once more at the end: no process needs to be quick.
ASK = """import socket, sys
s = socket.socket()
s.settimeout(2)
try:
    s.connect((sys.argv[1], int(sys.argv[2])))
except OSError as error:
    print(type(error).__name__)
"""


def is_open(port: int) -> bool:
    """Nobody listens: a port that is open answers by a reset."""
    return in_lab(PYTHON, "-c", ASK, IP, port).stdout.strip() == "ConnectionRefusedError"


def want(host, tool: str | None, openings: list, cleared: tuple[str, ...] = ()):
    host.write(FILE, json.dumps({"tool": tool, "cleared": cleared, "open": openings}))


def start(host, tool: str, service: str):
    """The host's firewall alone, then with our unit as the agent enables it."""
    host.install_agent()
    host.exec("systemctl", "enable", "-q", "--now", service)
    host.wait_for(lambda: not is_open(2379) and not is_open(10250), what="firewalld is active before its rules are")
    want(host, tool, OPEN)
    host.exec("systemctl", "enable", "-q", "--now", UNIT)
    assert is_open(2379) and is_open(2380) and is_open(10250) and not is_open(2381)


def changes_nothing(host, rules: str):
    before = host.sh(rules)
    done = host.exec("heat-node-agent", "firewall")
    assert (done.stdout, host.sh(rules)) == ("", before)


def test_nftables(hosts):
    host = hosts("n1", ip=IP, base="base")
    host.write("/etc/nftables.conf", NFTABLES)
    # An accept in a table of our own opens nothing, which is why there is none.
    host.sh("nft 'table inet own { chain input { type filter hook input priority -10; tcp dport 2379 accept; }; }'; systemctl start nftables")
    assert not is_open(2379)
    start(host, "nftables", "nftables.service")
    rules = "nft -a list ruleset"
    changes_nothing(host, rules)
    listed = host.sh(rules)
    assert 'comment "heat-node-agent: etcd clients tcp 2379-2380 from 10.77.0.0/24"' in listed
    assert listed.count("heat-node-agent: pods") == 2 and listed.count("heat-node-agent: ") == 4
    # Whoever makes the ruleset anew drops ours, and they come back with it.
    for verb in ("reload", "restart"):
        host.exec("systemctl", verb, "nftables.service")
        host.wait_for(lambda: is_open(2379), what=f"after a {verb}")
    # Fewer, then none. What is the operator's stays.
    want(host, "nftables", [KUBELET])
    host.exec("systemctl", "reload", UNIT)
    assert not is_open(2379) and is_open(10250)
    want(host, "nftables", [])
    host.exec("systemctl", "reload", UNIT)
    assert not is_open(10250) and "heat-node-agent" not in host.sh(rules) and "an operator's" in host.sh(rules)
    # What was made for nftables goes where FIREWALL becomes off, and does not come back with the firewall.
    want(host, "nftables", OPEN)
    host.exec("systemctl", "reload", UNIT)
    assert is_open(2379)
    want(host, None, [], ("nftables",))
    host.exec("systemctl", "restart", UNIT)
    assert not is_open(2379) and "heat-node-agent" not in host.sh(rules) and "an operator's" in host.sh(rules)
    changes_nothing(host, rules)
    host.exec("systemctl", "reload", "nftables.service")
    assert host.is_active(UNIT) and "heat-node-agent" not in host.sh(rules)
    # At boot, too.
    want(host, "nftables", OPEN)
    host.sh("nft flush ruleset")  # the network namespace outlives PID 1 here
    host.reboot()
    assert is_open(10250) and not is_open(22)


def test_iptables_services(hosts):
    host = hosts("n1", ip=IP, base="base")
    host.put({"/etc/sysconfig/iptables": (SAVED.encode(), 0o600), "/etc/systemd/system/iptables.service": (IPTABLES.encode(), 0o644)})
    start(host, "iptables-services", "iptables.service")
    changes_nothing(host, "iptables -S; sha256sum /etc/sysconfig/iptables; stat -c %a:%Y /etc/sysconfig/iptables")
    assert host.sh("stat -c %a /etc/sysconfig/iptables") == "600\n"
    assert host.sh("iptables -S | grep -c 'heat-node-agent: '") == "4\n"
    # What is saved has them already: there is no moment without.
    host.sh("iptables-restore </etc/sysconfig/iptables")
    assert is_open(2379) and is_open(10250)
    for verb in ("reload", "restart"):
        host.exec("systemctl", verb, "iptables.service")
        assert is_open(2379), verb
    assert host.is_active(UNIT)
    # Another firewall is named that is there, too: its own rules come, the earlier one's go.
    want(host, "nftables", OPEN, ("iptables-services",))
    host.exec("systemctl", "restart", UNIT)
    assert not is_open(2379) and host.read("/etc/sysconfig/iptables") == SAVED
    assert "heat-node-agent" not in host.sh("iptables -S")
    want(host, "iptables-services", OPEN)
    host.exec("systemctl", "restart", UNIT)
    assert is_open(2379)
    want(host, None, [], ("iptables-services", "firewalld"))  # what is not installed has nothing to give back
    host.exec("systemctl", "restart", UNIT)
    assert not is_open(2379) and host.read("/etc/sysconfig/iptables") == SAVED
    assert "heat-node-agent" not in host.sh("iptables -S")


def test_firewalld(hosts):
    host = hosts("n1", ip=IP, base="firewalld")
    start(host, "firewalld", "firewalld.service")
    host.exec("firewall-cmd", "--add-port=7777/tcp")  # an operator's, not permanent
    rules = "firewall-cmd --list-all-policies; firewall-cmd --permanent --list-all-policies; firewall-cmd --list-all"
    changes_nothing(host, rules)
    # A change needs no reload, which would drop what is not permanent.
    want(host, "firewalld", [KUBELET])
    host.exec("systemctl", "reload", UNIT)
    assert not is_open(2379) and is_open(10250) and is_open(7777)
    host.exec("firewall-cmd", "--reload")
    assert not is_open(2379) and is_open(10250)
    host.exec("systemctl", "restart", "firewalld.service")
    host.wait_for(lambda: is_open(10250))
    assert host.is_active(UNIT)
    want(host, None, [], ("firewalld",))
    host.exec("systemctl", "restart", UNIT)
    assert not is_open(10250) and "heat-node" not in host.sh("firewall-cmd --permanent --get-policies")
    # While firewalld does not run nobody can be told; its next start is waited for.
    want(host, "firewalld", OPEN)
    host.exec("systemctl", "restart", UNIT)
    assert is_open(2379)
    host.exec("systemctl", "stop", "firewalld.service")
    want(host, None, [], ("firewalld",))
    host.exec("systemctl", "restart", UNIT)
    host.exec("systemctl", "start", "firewalld.service")
    host.wait_for(lambda: "heat-node" not in host.sh("firewall-cmd --permanent --get-policies"), what="our policies go")
    assert not is_open(2379)


@pytest.mark.parametrize("tool, words", [("firewalld", "firewall-cmd is not installed"), ("nftables", "nft is not installed")])
def test_a_tool_that_is_not_there_is_named(hosts, tool, words):
    host = hosts("n1", ip=IP, base="base")
    host.install_agent()
    host.sh("rm -f /usr/sbin/nft")
    want(host, tool, OPEN)
    done = host.exec("heat-node-agent", "firewall", check=False)
    assert done.returncode == 1 and words in done.stderr and "remedy: install" in done.stderr
