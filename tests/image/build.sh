#!/bin/bash
# Builds a bootable Debian image with the project's elements, by diskimage-builder: target/image/node.raw. As root.
#
#   tests/image/build.sh TREE [ELEMENT...]
#
# DIB calls kpartx, which needs device-mapper; where the kernel has none, tools/kpartx stands in with loop devices.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tree=$(realpath "${1:?tree}"); shift
OUT=$PWD/target/image; mkdir -p "$OUT/cache"
exec 9>"$OUT/.lock"; flock 9
for p in debootstrap qemu-system-x86 qemu-utils genisoimage fdisk dosfstools sudo openssh-client python3-venv xfsprogs; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
if [ -n "${missing[*]:-}" ]; then
  install() { DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" 9>&-; }
  { install || { apt-get -qq update && install; }; } >"$OUT/apt.log" 2>&1 || { tail -n 20 "$OUT/apt.log" >&2; exit 1; }
fi
VENV=$OUT/venv
if ! "$VENV/bin/disk-image-create" --version >/dev/null 2>&1; then
  rm -rf "$VENV"; /usr/bin/python3 -m venv "$VENV"; "$VENV/bin/pip" install -q --no-cache-dir diskimage-builder==3.43.0
fi
mapfile -t uris < <(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources)
export DIB_RELEASE=bookworm DIB_DISTRIBUTION_MIRROR=${uris[0]} DIB_DEBIAN_SECURITY_MIRROR=${uris[1]:-${uris[0]}-security}
export DIB_DEBIAN_USE_DEBOOTSTRAP_CACHE=1 DIB_IMAGE_CACHE=$OUT/cache DIB_DEBUG_TRACE=${DIB_DEBUG_TRACE:-0} PYTHONDONTWRITEBYTECODE=1
export ELEMENTS_PATH=$PWD/image-build/elements:$PWD/tests/image/elements DIB_HEAT_NODE_AGENT_TREE=$tree
export PATH=$VENV/bin:$PATH TMP_DIR=$OUT
if ! grep -q device-mapper /proc/misc; then PATH=$PWD/tests/image/tools:$PATH; fi
rm -f "$OUT/node.raw"
disk-image-create -a amd64 -t raw --image-size 3 --image-cache "$OUT/cache" --no-tmpfs -o "$OUT/node" \
  debian-minimal vm block-device-mbr heat-node-agent heat-node-services heat-node-test "$@" 9>&- >"$OUT/build.log" 2>&1 ||
  { tail -n 40 "$OUT/build.log" >&2; exit 1; }
ls -l "$OUT/node.raw"
