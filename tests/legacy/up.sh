#!/bin/sh
# Makes ready what the tests here compare with, from PyPI: the tools in target/legacy/venv, and the source of heat-agents, whose package has no
# programs, in target/legacy/heat-agents. Also the sources of those whose own tests run their programs, and what runs these tests.
set -eu
cd "$(dirname "$0")/../.."
mkdir -p target
exec 9>target/legacy.lock
flock 9
pip=target/legacy/venv/bin/pip
[ -x target/legacy/venv/bin/os-collect-config ] || {
  /usr/bin/python3 -m venv target/legacy/venv
  $pip install -q os-apply-config==14.1.0 pystache==0.6.8 os-refresh-config==14.1.0 os-collect-config==14.1.0 dib-utils==0.0.11 requests
}
[ -x target/legacy/venv/bin/stestr ] ||
  $pip install -q wheel==0.48.0 stestr==4.2.1 fixtures==4.3.2 testtools==2.9.1 testscenarios==0.7.0 requests-mock==1.12.1
# source_of NAME FILE: pip looks what a source depends on, by the pbr, setuptools and wheel that are there
source_of() {
  [ -e "target/legacy/$1" ] || {
    $pip download -q --no-deps --no-build-isolation --no-binary :all: --dest target/legacy "$1==${2##*-}"
    mkdir -p "target/legacy/$1.new"
    tar xzf "target/legacy/$2.tar.gz" --strip-components=1 --no-same-owner --no-same-permissions -C "target/legacy/$1.new"
    mv "target/legacy/$1.new" "target/legacy/$1"
  }
}
source_of heat-agents heat_agents-13.0.0
source_of os-refresh-config os_refresh_config-14.1.0
source_of dib-utils dib-utils-0.0.11
