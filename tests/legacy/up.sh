#!/bin/sh
# Makes ready what the tests here compare with, from PyPI: the tools in target/legacy/venv, and the source of heat-agents, whose package has no
# programs, in target/legacy/heat-agents.
set -eu
cd "$(dirname "$0")/../.."
mkdir -p target
exec 9>target/legacy.lock
flock 9
[ -x target/legacy/venv/bin/os-collect-config ] || {
  /usr/bin/python3 -m venv target/legacy/venv
  target/legacy/venv/bin/pip install -q os-apply-config==14.1.0 pystache==0.6.8 os-refresh-config==14.1.0 os-collect-config==14.1.0 dib-utils==0.0.11 requests
}
[ -e target/legacy/heat-agents ] || {
  target/legacy/venv/bin/pip download -q --no-deps --no-binary :all: --dest target/legacy heat-agents==13.0.0
  mkdir -p target/legacy/heat-agents.new
  tar xzf target/legacy/heat_agents-13.0.0.tar.gz --strip-components=1 -C target/legacy/heat-agents.new
  mv target/legacy/heat-agents.new target/legacy/heat-agents
}
