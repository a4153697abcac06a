"""tests/demo --stand-ins: a minute. tests/real-kubernetes/test_demo.py has the default."""
from lib.demo import screen


def test_the_demonstration_ends_with_one_screen_that_says_what_happened():
    [stood_in] = [line for line in screen("--stand-ins").splitlines() if line.startswith("stand-ins ")]
    assert "Kubernetes v" in stood_in, stood_in
