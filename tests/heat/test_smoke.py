"""The real Heat itself: every template of templates/ completes by requests made by hand."""
import json

from lib.common import wait_for
from lib.heat import inputs


def test_signals_complete_a_stack_and_a_host_reaches_heat(heat, hosts, stack_name):
    heat.create(stack_name, "signals", who="tester")
    host = hosts("n1", ip="10.77.0.11", base="base")
    hello = heat.deployment(stack_name, "hello")
    assert inputs(hello)["who"] == "tester" and inputs(hello)["deploy_signal_verb"] == "POST"

    mark = heat.mark()
    seen = json.loads(host.exec("curl", "-sf", heat.poll_url(stack_name)).stdout)["DescribeStackResourceResponse"]
    assert {d["name"] for d in seen["DescribeStackResourceResult"]["StackResourceDetail"]["Metadata"]["deployments"]} == {"hello", "quiet"}
    body = json.dumps({"greeting": "hello tester", "deploy_stdout": "out", "deploy_stderr": "", "deploy_status_code": 0})
    host.exec("curl", "-sf", "-X", "POST", "-H", "Content-Type: application/json", "-d", body, inputs(hello)["deploy_signal_id"])
    # A line comes when its answer goes out.
    wait_for(lambda: [r.method for r in heat.requests("heat-api-cfn", mark, client=host.ip)] == ["GET", "POST"], 300, "both lines of the access log")

    assert heat.answer(stack_name, "second", echo="hello tester!") == 200
    heat.wait(stack_name)
    out = heat.outputs(stack_name)
    assert (out["greeting"], out["echo"], out["stdout"], out["code"]) == ("hello tester", "hello tester!", "out", 0)
    assert "secret_access_key = " in heat.conf(heat.server_settings(stack_name))


def test_node_completes_by_its_wait_condition_and_deployments(heat, stack_name):
    heat.create(stack_name, "node", docker_volume="v-1", docker_volume_size=4)
    node = inputs(heat.deployment(stack_name, "node"))
    assert (node["ROLE"], node["DOCKER_VOLUME"], node["DOCKER_VOLUME_SIZE"], node["TLS_DISABLED"]) == ("master", "v-1", 4, "True")
    script = inputs(heat.deployment(stack_name, "script"))
    assert (script["text"], script["count"], script["flag"], script["map"]) == ("wörld", 7, True, {"b": [1, "two"]})
    assert heat.answer(stack_name, "script", greeting="g", values="v") == 200
    assert heat.answer(stack_name, "node", node_name="node-1", generation="1", timings={"etcd": 1.5}) == 200
    url = json.loads(node["WAIT_HANDLE"])["alarm_url"]
    assert heat.signal(url, {"status": "SUCCESS", "reason": "ready", "data": "d", "id": "1"}, method="PUT") == 200
    heat.wait(stack_name)
    out = heat.outputs(stack_name)
    assert out["node_name"] == "node-1" and out["timings"] == {"etcd": 1.5} and json.loads(out["wait_data"]) == {"1": "d"}


def test_an_error_output_fails_the_deployment(heat, stack_name):
    heat.create(stack_name, "signals")
    assert heat.answer(stack_name, "hello", error="it broke") == 200
    assert "it broke" in heat.wait(stack_name, "CREATE_FAILED")


def test_wait_conditions_of_every_kind(heat, stack_name):
    heat.create(stack_name, "wait")
    out = heat.handles(stack_name)
    for n in ("1", "2", "3"):
        # the handle's type decides about the body, not the transport
        body = {"status": "SUCCESS", "reason": "r", "data": n, "id": n}
        assert heat.signal(out["endpoint"], body, headers={"X-Auth-Token": out["token"]}) == 200
        assert heat.signal(json.loads(out["cfn_signal"])["alarm_url"], body, method="PUT") == 200
        temp, mark = json.loads(out["temp_signal"])["alarm_url"], heat.mark()
        assert heat.signal(temp, body, method="PUT") == 201
        heat.consumed(temp, mark)
        assert heat.signal(out["swift_url"], body, method="PUT") == 201
        body = {"Status": "SUCCESS", "Reason": "r", "Data": n, "UniqueId": n}
        assert heat.signal(out["aws_url"], body, method="PUT") == 200
    for key, place in (("heat_signal", "alarm_url"), ("zaqar_signal", "queue_id")):
        assert set(json.loads(out[key])) >= {"auth_url", "user_id", "password", "project_id", place}
    done = ("token_wait", "cfn_wait", "temp_wait", "swift_wait", "aws_wait", "no_wait")
    wait_for(lambda: all(heat.resource_status(stack_name, r) == "CREATE_COMPLETE" for r in done), 300, str(done))
    for key in ("token_data", "cfn_data", "temp_data", "swift_data", "aws_data"):
        data = heat.outputs(stack_name)[key]
        assert (json.loads(data) if isinstance(data, str) else data) == {"1": "1", "2": "2", "3": "3"}, key


def test_an_update_asks_again(heat, stack_name):
    heat.create(stack_name, "update", text="one")
    for name in ("create-update", "component"):
        assert heat.answer(stack_name, name, out="1") == 200
    heat.wait(stack_name)
    before = heat.deployment(stack_name, "create-update")
    heat.update(stack_name, "update", text="two")

    def renewed(name):
        d = heat.deployment(stack_name, name)
        return inputs(d).get("text") == "two" and inputs(d)["deploy_action"] == "UPDATE" and d
    for name in ("create-update", "component"):
        assert wait_for(lambda: renewed(name), 300)["id"] != before["id"]
        assert heat.answer(stack_name, name, out="2") == 200
    heat.wait(stack_name, "UPDATE_COMPLETE")
    assert heat.outputs(stack_name)["out"] == "2"


def test_heat_goes_away_and_comes_back(heat, hosts, stack_name):
    heat.create(stack_name, "signals")
    url = inputs(heat.deployment(stack_name, "hello"))["deploy_signal_id"]
    heat.stop("heat-api-cfn")
    assert heat.signal(url, {"deploy_status_code": 0}) == 0
    heat.start("heat-api-cfn")
    assert heat.signal(url, {"deploy_status_code": 0, "greeting": "late"}) == 200
    assert heat.answer(stack_name, "second") == 200
    heat.wait(stack_name)
