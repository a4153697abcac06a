#!/usr/bin/env python3
"""Keystone data for heat, idempotent: services, endpoints, users, roles, the
stack user domain.  Plain v3 API calls, a fraction of a second, where the
openstack command line would take 2 s per object."""
import os
import sys

from stack import Session

ks, heat, cfn, swift, zaqar, region = sys.argv[1:7]
E = os.environ
s = Session(f"{ks}/v3", "admin", E["ADMIN_PASS"], "admin")
ensure, grant = s.ensure, s.grant

project = ensure("project", "projects", {"name": "service", "domain_id": "default"})
demo = ensure("project", "projects", {"name": "demo", "domain_id": "default"})
role = {n: ensure("role", "roles", {"name": n}) for n in
        ("admin", "member", "service", "heat_stack_user", "heat_stack_owner")}
u_heat = ensure("user", "users", {"name": "heat", "domain_id": "default"}, password=E["HEAT_PASS"])
u_demo = ensure("user", "users", {"name": "demo", "domain_id": "default"}, password=E["DEMO_PASS"])
for r in ("admin", "service"):
    grant(f"projects/{project}/users/{u_heat}/roles/{role[r]}")
for r in ("member", "heat_stack_owner"):
    grant(f"projects/{demo}/users/{u_demo}/roles/{role[r]}")
domain = ensure("domain", "domains", {"name": "heat"})
u_domain = ensure("user", "users", {"name": "heat_domain_admin", "domain_id": domain}, password=E["DOMAIN_PASS"])
grant(f"domains/{domain}/users/{u_domain}/roles/{role['admin']}")
for name, kind, url in (("heat", "orchestration", f"{heat}/v1/%(tenant_id)s"), ("heat-cfn", "cloudformation", f"{cfn}/v1"),
                        ("swift", "object-store", f"{swift}/v1/AUTH_%(tenant_id)s"),
                        *([("zaqar", "messaging", zaqar)] if zaqar else [])):
    service = ensure("service", "services", {"name": name, "type": kind})
    for interface in ("public", "internal", "admin"):
        ensure("endpoint", "endpoints", {"service_id": service, "interface": interface}, url=url, region_id=region)
