"""tests/demo as it is without options: a master of the real programs, and a pod on it."""
from lib import real_kubernetes
from lib.demo import screen


def test_the_demonstration_brings_up_a_real_master_with_a_pod(programs, testhost):
    shown = screen()
    [real] = [line for line in shown.splitlines() if line.startswith("real ")]
    assert f"Kubernetes v{real_kubernetes.version()}" in real, shown
    assert "\n$ kubectl exec hello -- hostname\nhello\n" in shown and shown.endswith("; the pod runs\n"), shown
