#!/usr/bin/env python3
"""A cluster of Magnum's, made through its own objects, as its conductor makes one before a driver begins; with the trust that a driver makes for its
nodes: magnum_cluster.py CONFIG NAME, with the Python of tests/cloud. Prints what the nodes are told, as JSON.

Magnum itself has had no driver since its one for Heat went, and so the trust is made here as that driver made it."""
import json
import os
import sys
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "heat"))

from magnum.common import context  # noqa: E402
from magnum.common import service  # noqa: E402
from magnum.conductor.handlers.common import cert_manager  # noqa: E402
from magnum import objects  # noqa: E402
from stack import Session  # noqa: E402

config, name = sys.argv[1:3]
E = os.environ
auth_url = E["OS_AUTH_URL"]
service.prepare_service(["magnum", "--config-file", config])

owner = Session(auth_url, "demo", E["OS_PASSWORD"], "demo")
admin = Session(auth_url, "admin", E["ADMIN_PASS"], "admin")
project = admin.get(f"{auth_url}/projects", name="demo")["projects"][0]["id"]
user = admin.get(f"{auth_url}/users", name="demo")["users"][0]["id"]
domain = admin.get(f"{auth_url}/domains", name="magnum")["domains"][0]["id"]

as_owner = context.RequestContext(user_id=user, project_id=project, is_admin=False)
template = objects.ClusterTemplate(as_owner, uuid=str(uuid.uuid4()), name=name, project_id=project, user_id=user, image_id="kubernetes", coe="kubernetes",
                                   cluster_distro="debian", labels={}, server_type="vm", tls_disabled=False)
template.create()
cluster = objects.Cluster(as_owner, uuid=str(uuid.uuid4()), name=name, project_id=project, user_id=user, cluster_template_id=template.uuid,
                          status="CREATE_COMPLETE", labels={}, create_timeout=60)
cert_manager.generate_certificates_to_cluster(cluster, context=as_owner)
cluster.create()

password = uuid.uuid4().hex
trustee = admin.request("POST", f"{auth_url}/users", {"user": {"name": f"{cluster.uuid}_demo", "domain_id": domain, "password": password}})[0]["user"]["id"]
trust = owner.request("POST", f"{auth_url}/OS-TRUST/trusts", {"trust": {
    "trustor_user_id": user, "trustee_user_id": trustee, "project_id": project, "impersonation": True,
    "roles": [{"name": "member"}]}})[0]["trust"]["id"]
print(json.dumps({"MAGNUM_URL": owner.endpoint("container-infra"), "AUTH_URL": auth_url, "CLUSTER_UUID": cluster.uuid, "CLUSTER_NAME": name,
                  "TRUSTEE_USER_ID": trustee, "TRUSTEE_PASSWORD": password, "TRUST_ID": trust}))
