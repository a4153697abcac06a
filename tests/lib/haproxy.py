"""HAProxy on hosts, as Debian's package has it: the program, its unit and its user."""
from lib.hosts import Host, give

UNIT = "/usr/lib/systemd/system/haproxy.service"
USER = b"u haproxy - - /var/lib/haproxy\n"
# The hosts of these tests may not open as many files as 20,000 connections need.
FEWER = b'EXTRAOPTS="-n 1000"\n'


def install(host: Host):
    give(host, "/usr/sbin/haproxy", UNIT)
    host.put({"/usr/lib/sysusers.d/haproxy.conf": (USER, 0o644), "/etc/default/haproxy": (FEWER, 0o644)})
    host.sh("systemd-sysusers; mkdir -p /var/lib/haproxy; systemctl daemon-reload")
