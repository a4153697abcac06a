"""Objects of nodes in the API of a master, asked for on the master as its administrator."""
import json

CERTS = "/etc/kubernetes/certs"


def ask(host, path: str, *words: str, body: dict | None = None) -> dict:
    """Below /api/v1/nodes."""
    sent = ("-d", json.dumps(body)) if body else ()
    return json.loads(host.exec("curl", "-s", "--cacert", f"{CERTS}/ca.crt", "--cert", f"{CERTS}/admin.crt", "--key", f"{CERTS}/admin.key",
                                *words, *sent, f"https://127.0.0.1:6443/api/v1/nodes{path}").stdout)


def node(host, name: str) -> dict:
    return ask(host, f"/{name}")


def notes(host, name: str) -> dict[str, str]:
    return node(host, name)["metadata"].get("annotations", {})


def patch(host, name: str, body: dict, part: str = ""):
    ask(host, f"/{name}{part}", "-X", "PATCH", "-H", "content-type: application/merge-patch+json", body=body)
