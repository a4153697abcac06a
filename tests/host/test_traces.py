"""HNA_LOG: what libraries trace, for who looks into a fault. No secret is among it."""
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from lib.plain import Plain, deployments

SECRETS = ("hush-key", "hush-signature", "hush-output")


def test_what_libraries_trace_can_be_had_and_holds_no_secret(tmp_path, monkeypatch):
    posted = []

    class Heat(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, body: bytes):
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            document = json.dumps({"deployments": listed, "os-collect-config": settings})
            self.answer(json.dumps({"DescribeStackResourceResponse": {"DescribeStackResourceResult": {
                "StackResourceDetail": {"Metadata": document}}}}).encode())

        def do_POST(self):
            posted.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.answer(b"{}")

        def log_message(self, *_):
            pass

    heat = ThreadingHTTPServer(("127.0.0.1", 0), Heat)
    base = f"http://127.0.0.1:{heat.server_port}/v1"
    settings = {"collectors": ["cfn"], "cfn": {"metadata_url": f"{base}/", "access_key_id": "1" * 32, "secret_access_key": "hush-key",
                                               "stack_name": "s", "path": "server.Metadata"}}
    listed = deployments(1)
    made = time.strftime("%Y-%m-%dT%H%%3A%M%%3A%SZ", time.gmtime())
    url = f"{base}/signal/arn%3Aopenstack%3Aheat%3A%3Ap%3Astacks/s/u/resources/r?Timestamp={made}&Signature=hush-signature"
    listed[0]["config"] = "#!/bin/sh\nprintf hush-output >\"$heat_outputs_path.secret\"\n"
    listed[0]["outputs"] = [{"name": "secret", "type": "String", "error_output": False}]
    listed[0]["inputs"] += [{"name": "deploy_signal_id", "type": "String", "value": url}, {"name": "deploy_signal_verb", "type": "String", "value": "POST"}]
    threading.Thread(target=heat.serve_forever, daemon=True).start()
    try:
        agent = Plain(tmp_path / "agent")
        agent.conf.write_text("[DEFAULT]\ncollectors = cfn\n[cfn]\n" + "".join(f"{k} = {v}\n" for k, v in settings["cfn"].items()))
        monkeypatch.setenv("HNA_LOG", "debug")
        assert agent.start("--once").wait(timeout=300) == 0, agent.said()
    finally:
        heat.shutdown()
        heat.server_close()
    assert posted and b"hush-output" in posted[0]
    said = agent.said()
    assert "DEBUG reqwest::connect" in said and "DEBUG hyper_util" in said and "HNA-0802" in said, said[-4000:]
    assert not [secret for secret in SECRETS if secret in said], said[-4000:]
