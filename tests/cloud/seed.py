#!/usr/bin/env python3
"""What a cloud's operator does once.

seed.py users NAME:TYPE:URL...   a user, a service and its endpoints for each, and Magnum's domain
seed.py ready HOST...            wait until Nova's and Cinder's own processes have reported
seed.py objects                  what examples/heat/environments name: an image, a flavor, the network public, and the project's own private;
                                 and a network that another project shares
"""
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "heat"))

from stack import Refused, Session  # noqa: E402

E = os.environ
s = Session(E["OS_AUTH_URL"], "admin", E["ADMIN_PASS"], "admin")
ensure, grant = s.ensure, s.grant


def users(*endpoints: str):
    project = ensure("project", "projects", {"name": "service", "domain_id": "default"})
    role = {name: ensure("role", "roles", {"name": name}) for name in ("admin", "service")}
    for endpoint in endpoints:
        name, kind, url = endpoint.split(":", 2)
        user = ensure("user", "users", {"name": name, "domain_id": "default"}, password=E["CLOUD_PASS"])
        for one in role.values():
            grant(f"projects/{project}/users/{user}/roles/{one}")
        service = ensure("service", "services", {"name": name, "type": kind})
        for interface in ("public", "internal", "admin"):
            ensure("endpoint", "endpoints", {"service_id": service, "interface": interface}, url=url, region_id=E["OS_REGION_NAME"])
    domain = ensure("domain", "domains", {"name": "magnum"})
    user = ensure("user", "users", {"name": "magnum_domain_admin", "domain_id": domain}, password=E["CLOUD_PASS"])
    grant(f"domains/{domain}/users/{user}/roles/{role['admin']}")


def ready(*hosts: str):
    """Each process reports on its own."""
    expected = {"nova-conductor", "nova-scheduler", "cinder-scheduler", "cinder-volume", *hosts}
    end = time.monotonic() + 300
    while True:
        try:
            up = s.get(f"{s.endpoint('compute')}/os-services")["services"] + s.get(f"{s.endpoint('volumev3')}/os-services")["services"]
        except Refused as e:
            up = []
            why = e
        else:
            named = [f"nova-{of['host']}" if of["binary"] == "nova-compute" else of["binary"] for of in up if of["state"] == "up"]
            why = f"only {sorted(named)} are up"
            if expected <= set(named):
                return
        if time.monotonic() > end:
            sys.exit(str(why))
        time.sleep(0.5)


def objects():
    image, network, compute = s.endpoint("image"), s.endpoint("network") + "/v2.0", s.endpoint("compute")
    made = s.request("POST", f"{image}/v2/images", {"name": "kubernetes", "disk_format": "raw", "container_format": "bare", "visibility": "public"})[0]
    upload(f"{image}/v2/images/{made['id']}/file")
    s.request("POST", f"{compute}/flavors", {"flavor": {"name": "m1.medium", "ram": 4096, "disk": 40, "vcpus": 2}})
    demo = Session(s.auth_url, "demo", E["DEMO_PASS"], "demo")
    for name, cidr, owner, extra in (
            ("public", "203.0.113.0/24", s, {"router:external": True, "provider:network_type": "flat", "provider:physical_network": "outside"}),
            ("shared", "198.51.100.0/24", s, {"shared": True}), ("private", "192.0.2.0/24", demo, {})):
        made = owner.request("POST", f"{network}/networks", {"network": {"name": name, **extra}})[0]["network"]["id"]
        owner.request("POST", f"{network}/subnets", {"subnet": {"name": name, "network_id": made, "cidr": cidr, "ip_version": 4}})


def upload(url: str):
    import urllib.request
    request = urllib.request.Request(url, b"no image", {"Content-Type": "application/octet-stream", "X-Auth-Token": s.token}, method="PUT")
    urllib.request.urlopen(request, timeout=180).close()


if __name__ == "__main__":
    {"users": users, "ready": ready, "objects": objects}[sys.argv[1]](*sys.argv[2:])
