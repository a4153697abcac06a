#!/bin/bash
# Stop what up.sh started, by its pid files.  --purge also removes the state (the cache stays).
set -euo pipefail
. "$(dirname "$0")/lib.sh"
exec "$HB/down.sh" "$@"
