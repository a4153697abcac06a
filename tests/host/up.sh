#!/bin/bash
# What the host tests need, by one command: packages and the cached roots.
#
#   up.sh [--suite SUITE]    of another release of Debian than bookworm (host.sh: HNA_SUITE)
set -euo pipefail
case $# in
  0) ;;
  2) [ "$1" = --suite ] || { sed -n '4p' "$0" >&2; exit 64; }; export HNA_SUITE=$2 ;;
  *) sed -n '4p' "$0" >&2; exit 64 ;;
esac
exec "$(dirname "$0")/host.sh" prepare
