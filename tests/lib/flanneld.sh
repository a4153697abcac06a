#!/bin/bash
# The version of the flanneld that HNA_FLANNELD=FILE gives to the tests: 0.26.1. Whatever is wrong with it is one line, before anything is built.
set -euo pipefail
wrong() { echo "HNA_FLANNELD=${HNA_FLANNELD:-}: $*" >&2; exit 64; }
[ -f "${HNA_FLANNELD:-}" ] || wrong "there is no such file"
[ -x "$HNA_FLANNELD" ] || wrong "it is not executable"
# It says it on stderr. A path with a folder: a bare name would be looked for in PATH.
said=$(timeout 10 "$(realpath -s "$HNA_FLANNELD")" --version 2>&1 </dev/null) || wrong "\`--version\` failed: ${said%%$'\n'*}"
[[ $said =~ ^v?([0-9]+\.[0-9]+\.[0-9]+)[^[:space:]]*$ ]] || wrong "\`--version\` does not say a version as flanneld does: ${said%%$'\n'*}"
echo "${BASH_REMATCH[1]}"
