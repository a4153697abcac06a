#!/bin/bash
# Stop what up.sh started, by its pid files.  --purge also removes the state (the cache stays).
set -euo pipefail
. "$(dirname "$0")/lib.sh"
if [ -d "$RUN" ]; then
  # the OpenStack services drain for up to a minute: nothing here needs that
  # shellcheck disable=SC2086 # a list
  halt 20 $OPENSTACK
  halt 150 rabbitmq mariadb redis
fi
# epmd detaches itself from rabbitmq: in our namespace it can only be ours
if [ -e "/run/netns/lab-$HB_LAB" ]; then
  for p in $(ip netns pids "lab-$HB_LAB"); do
    [ "$(cat "/proc/$p/comm" 2>/dev/null)" != epmd ] || kill "$p" 2>/dev/null || :
  done
  for _ in $(seq 30); do [ -n "$(ip netns pids "lab-$HB_LAB")" ] || break; sleep 0.1; done
fi
# goes only if no host or test server is left on it
"$HB/../host/host.sh" lab down "$HB_LAB"
[ "${1:-}" != --purge ] || rm -rf "$HB_STATE"
