"""The servers that Nova has made of examples/heat, booted as hosts: each with the id, the name and the user data that Nova has of it, with its
port's address, and with the volumes that Cinder says are attached to it.

cloud-init, etcd, containerd, certificates, routes and Heat's signals are real; Kubernetes' programs are stand-ins."""
import json
from functools import partial

from conftest import HOSTS
from lib import cloud_init, stand_ins
from lib.cloud import EXAMPLES
from lib.cloud_init import UNIT, config_drive, image
from lib.common import GATEWAY, REPO, run, wait_for
from lib.hosts import Host, agent_binary
from lib.pod_network import together

CLUSTER = EXAMPLES / "kubecluster.yaml"
# What the hosts' image has.
IMAGE = {"kube_tag": "v1.31.4", "containerd_version": "1.6.20", "etcd_tag": "v3.4.23", "subnet_cidr": "10.77.0.0/24"}
# In a container cloud-init does not look for disks by itself.
DATA_SOURCE = "datasource_list: [ConfigDrive, None]\n"


def test_novas_servers_become_nodes(cloud, stack_name, tmp_path, request):
    run(agent_binary(), "certificates", "new-ca", "--out", tmp_path / "ca")
    given = (CLUSTER, EXAMPLES / "environments/minimal.yaml", tmp_path / "ca/parameters.yaml")
    cloud.create(stack_name, *given, minion_docker_volume_size=1, **IMAGE)
    names = ("kube-master-0", "kube-minion-0")
    wait_for(lambda: cloud.servers(stack_name).keys() == set(names), 900, "deployments", every=3)
    servers, ports, volumes = (cloud.named(kind) for kind in ("servers", "ports", "volumes"))
    hosts = {name: Host(name.removeprefix("kube-")) for name in names}
    request.node.stash[HOSTS] = list(hosts.values())

    def boot(name: str):
        host, server, folder = hosts[name], servers[name], tmp_path / name
        folder.mkdir()
        attached = {volume["volumeId"] for volume in cloud.attachments(server["id"])}
        disks = {f"vd{letter}": (f"{of['size']}G", of["id"]) for letter, of in zip("bcd", (of for of in volumes.values() if of["id"] in attached))}
        config_drive(folder, server["id"], cloud.user_data(server["id"]), server["id"], name)
        (folder / "source").write_text(DATA_SOURCE)
        files = image(folder, enabled=False) | {"/etc/cloud/cloud.cfg.d/91-datasource.cfg": folder / "source"}
        host.up(base=cloud_init.BASE, ip=ports[name]["fixed_ips"][0]["ip_address"], gateway=GATEWAY, instance_id="", files=files,
                volumes={**disks, "vdz": ("16M", server["id"])})
        stand_ins.into(host, "1.31.4")
        host.put(stand_ins.CNI_PROGRAMS)
        host.sh("install -d -m 755 /usr/share/heat-node-agent/addons /usr/share/heat-node-agent/addons/coredns")
        host.put({"/usr/share/heat-node-agent/addons/coredns/coredns.yaml": (REPO / "image-build/addons/coredns/coredns.yaml", 0o644)})
        host.exec("systemctl", "enable", "-q", UNIT)
        host.exec("systemctl", "start", "--no-block", UNIT)
    try:
        together(*(partial(boot, name) for name in names))
        cloud.heat.wait(stack_name, seconds=1800)
        for name, host in hosts.items():
            code, said = cloud_init.status(host)
            assert code == 0 and "DataSourceConfigDrive" in said, said
            assert cloud_init.record(host)["instance"] == {"origin": "cloud-init", "value": servers[name]["id"]}
            mounted = host.sh("findmnt -rno SOURCE,TARGET -t ext4,xfs")
            print(name, mounted)
        out = cloud.heat.outputs(stack_name)
        assert out["versions"] == {"masters": {"0": "v1.31.4"}, "minions": {"0": "v1.31.4"}}
        assert set(json.loads(out["wait_data"])) == set(names)
        assert out["masters"] == {"0": ports[names[0]]["fixed_ips"][0]["ip_address"]}
    finally:
        for host in hosts.values():
            host.down()
