#!/bin/sh
# Makes ready what the tests here compare with: os-apply-config from PyPI in target/legacy/venv, and heat-agents, which is not there, in
# target/legacy/heat-agents.
set -eu
cd "$(dirname "$0")/../.."
[ -x target/legacy/venv/bin/os-apply-config ] || {
  python3 -m venv target/legacy/venv
  target/legacy/venv/bin/pip install -q os-apply-config==14.1.0 pystache==0.6.8 os-refresh-config==14.1.0 dib-utils==0.0.11 requests
}
[ -e target/legacy/heat-agents ] || {
  git clone -q https://opendev.org/openstack/heat-agents target/legacy/heat-agents.new
  git -C target/legacy/heat-agents.new checkout -q e1d9131e
  mv target/legacy/heat-agents.new target/legacy/heat-agents
}
