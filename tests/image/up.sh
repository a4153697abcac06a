#!/bin/bash
# The image that tests/image boots: a Debian with the project's elements, by diskimage-builder; target/image/node.raw. As root.
#
#   tests/image/up.sh                       a no-op where nothing of what goes in has changed
#   DIB_RELEASE=trixie tests/image/up.sh    of another release than bookworm: target/image/trixie/node.raw, which the tests take where they are given
#                                           the same DIB_RELEASE
#
# Goes in: the release build (image-build/build made it before), the documents, the elements. What was downloaded is kept
# in target/image/cache. Where the kernel has no device-mapper, tools/kpartx stands in for the one that DIB calls.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
DIB=3.43.0
TARGET=${CARGO_TARGET_DIR:-$PWD/target}
KEPT=$PWD/target/image
VENV=$KEPT/venv OUT=$KEPT
export DIB_RELEASE=${DIB_RELEASE:-bookworm}
[ "$DIB_RELEASE" = bookworm ] || OUT=$KEPT/$DIB_RELEASE
mkdir -p "$OUT" "$KEPT/cache"
exec 9>"$KEPT/.lock"; flock 9
clean() { # mounts and loop devices of a build that was ended in the middle; kpartx's stand-in makes loops on loops
  local at=$OUT/dib_ place device file
  while read -r place; do umount -l "$place"; done < <(awk -v at="$at" 'index($5, at) == 1 {print $5}' /proc/self/mountinfo | sort -r)
  while read -r device file; do
    case $file in "$at"*) "$PWD/tests/image/tools/kpartx" -d "$device" || :; losetup -d "$device" ;; esac
  done < <(losetup -n -O NAME,BACK-FILE)
  rm -rf --one-file-system "$at"*
}
clean
trap clean EXIT
since=$SECONDS
lap() { printf '%-10s %4d s\n' "$1" $((SECONDS - since)); since=$SECONDS; }

# --- packages and diskimage-builder ----------------------------------------------------------------
packages=(debootstrap qemu-system-x86 qemu-utils genisoimage openssh-client fdisk dosfstools mtools sudo xfsprogs python3-venv)
if grep -q device-mapper /proc/misc; then packages+=(kpartx); else PATH=$PWD/tests/image/tools:$PATH; fi
missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
if [ ${#missing[@]} -gt 0 ]; then
  install() { DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "${missing[@]}" 9>&-; }
  { install || { apt-get -qq -o DPkg::Lock::Timeout=600 update && install; }; } >"$OUT/apt.log" 2>&1 || { tail -n 20 "$OUT/apt.log" >&2; exit 1; }
fi
if [ "$(cat "$VENV/.version" 2>/dev/null)" != "$DIB" ]; then
  rm -rf "$VENV"
  /usr/bin/python3 -m venv "$VENV"
  "$VENV/bin/pip" install -q --no-cache-dir "diskimage-builder==$DIB" 'setuptools<81'
  echo "$DIB" >"$VENV/.version"
fi
lap packages

# --- what goes in ----------------------------------------------------------------------------------
image-build/documents
image-build/stage
tree=$TARGET/image/root
made_from=$({
  echo "$DIB $DIB_RELEASE"
  find "$tree" image-build/elements tests/image/elements tests/image/up.sh -type f -not -name README.rst -printf '%m ' -exec sha256sum {} +
} | sha256sum)
lap tree
if [ -s "$OUT/node.raw" ] && [ "$(cat "$OUT/node.ok" 2>/dev/null)" = "$made_from" ]; then exit; fi
rm -f "$OUT/node.raw" "$OUT/node.ok"

# --- the image -------------------------------------------------------------------------------------
# The machine's own mirrors, where it names some.
mapfile -t uris < <(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources 2>/dev/null)
if [ -n "${uris[0]:-}" ]; then
  export DIB_DISTRIBUTION_MIRROR=${uris[0]} DIB_DEBIAN_SECURITY_MIRROR=${uris[1]:-${uris[0]%/}-security}
fi
export DIB_DEBIAN_USE_DEBOOTSTRAP_CACHE=1 DIB_DEBOOTSTRAP_CACHE=1 DIB_IMAGE_CACHE=$KEPT/cache PYTHONDONTWRITEBYTECODE=1
export ELEMENTS_PATH=$PWD/image-build/elements:$PWD/tests/image/elements DIB_HEAT_NODE_AGENT_TREE=$tree TMP_DIR=$OUT
PATH=$PATH:$VENV/bin
disk-image-create -a amd64 -t raw --image-size 3 --image-cache "$KEPT/cache" --no-tmpfs -o "$OUT/node" \
  debian-minimal vm block-device-mbr heat-node-agent heat-node-services heat-node-test 9>&- >"$OUT/build.log" 2>&1 ||
  { tail -n 40 "$OUT/build.log" >&2; exit 1; }
echo "$made_from" >"$OUT/node.ok"
lap image
