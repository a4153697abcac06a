#!/bin/bash
# Take single services away under a running agent: service.sh stop|start NAME...
set -euo pipefail
. "$(dirname "$0")/lib.sh"
verb=${1:-}; shift || :
case $verb in
stop) halt 20 "$@" ;;
start)
  set -a; . "$HB_STATE/openrc"; set +a; umask 077
  for s in "$@"; do service "$s"; done
  for s in "$@"; do wait_for "$s"; done ;;
*) sed -n 2p "$0"; exit 64 ;;
esac
