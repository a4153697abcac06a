"""Three masters that find each other by a discovery URL: the service is an etcd with the v2 API, as the public one is."""
import json

import pytest
from lib.common import GATEWAY, in_lab, wait_for
from lib.hosts import NET
from lib.masters import IPS, Masters, listed
from lib.pod_network import together

SERVICE = GATEWAY.rsplit(".", 1)[0] + ".30"
URL = f"http://{SERVICE}:2379/v2/keys/discovery/5d0f1e1c2b3a49"


def discovery(hosts):
    """A token for three."""
    host = hosts("d1", ip=SERVICE)
    host.exec("systemd-run", "-q", "--unit=discovery", "-p", "Type=notify", "etcd", "--enable-v2", "--data-dir", "/var/lib/etcd/discovery",
              "--listen-client-urls", f"http://{SERVICE}:2379", "--advertise-client-urls", f"http://{SERVICE}:2379")
    host.wait_for(f"curl -sf {URL}/_config/size -XPUT -d value=3")
    return host


def found() -> list[str]:
    """Who has told the service of itself."""
    said = json.loads(in_lab("curl", "-sf", URL).stdout)["node"].get("nodes", [])
    return sorted(one["value"] for one in said)


@pytest.mark.longer
def test_masters_find_each_other_by_a_discovery_url(hosts, signal_server, tmp_path):
    service = discovery(hosts)
    masters = Masters(hosts, signal_server, tmp_path, discovery=URL)
    first, second, third = masters.nodes
    members = [f"{name}=https://{ip}:2380" for name, ip in IPS.items()]

    # --- nobody begins before all are there ---
    masters.begin(first, second)
    wait_for(lambda: found() == members[:2], NET, "two that wait for the third one")
    assert not masters.healthy() and not any(node.server.signals("node") for node in masters.nodes)
    masters.begin(third)
    together(*(node.succeeds for node in masters.nodes))
    wait_for(lambda: all(node.healthy() for node in masters.nodes) and masters.healthy(), NET, "healthy masters")
    before = listed(first)
    assert found() == members and set(before) == {f"https://{ip}:2380" for ip in IPS.values()}
    assert not masters.mistakes()
    # Who knows the URL may join.
    assert all(node.host.sh(f"stat -c %a /etc/etcd/etcd.conf; grep -c '{URL}' /etc/etcd/etcd.conf") == "600\n1\n" for node in masters.nodes)
    assert not any(URL in node.host.sh("{ heat-node-agent status; heat-node-agent explain; journalctl --no-pager -u heat-node-agent; } || true")
                   for node in masters.nodes)

    # --- the service is needed once: neither an update nor a boot asks it again ---
    service.down()
    with masters.written_to():
        third.update(KUBEAPI_OPTIONS="--v=3")
        third.succeeds()
        third.host.reboot()
        wait_for(lambda: all(node.healthy() for node in masters.nodes) and masters.healthy(), NET, "healthy masters")
    assert listed(first) == before
