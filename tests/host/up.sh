#!/bin/bash
# What the host tests need, by one command: packages and the cached roots.
set -euo pipefail
exec "$(dirname "$0")/host.sh" prepare
