#!/bin/bash
# Kubernetes 1.20.2 and the images of its pods, made from Debian 12's source package `kubernetes`, for the tests beside this file.
#
#   up.sh        programs and images: target/real-kubernetes/programs and .../images; quick once they are there
#   up.sh cloud  and the cloud controller manager, with the provider for OpenStack that 1.20 still has, and its image
#   up.sh e2e    and Kubernetes' own end-to-end tests, and the images that they ask for
#   up.sh packages
#                only what comes by apt
#   up.sh check  only whether what the variables below give is there
#
# HNA_KUBERNETES=DIR takes the programs from DIR, whatever their version: kube-apiserver, kube-controller-manager, kube-scheduler, kubelet,
# kube-proxy, kubectl and, as far as they are wanted, agnhost, add-ons, e2e.test and ginkgo. Then nothing is compiled that is in DIR.
# HNA_FLANNELD=FILE gives the pods flannel for a network, by this flanneld; it is not needed here, but a wrong one is told before minutes pass.
#
# The source comes by apt from where the machine itself gets its packages, and is verified by apt's own signatures. Debian 12's Go compiles it, also
# on a later release, which has none that old: it is unpacked and not installed. Needs root on Debian 12 or 13, and nothing prepared.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SOURCE=kubernetes VERSION=1.20.2 PACKAGED='1.20.5+really1.20.2-1.1*'
DIR=$HERE/../../target/real-kubernetes
mkdir -p "$DIR"
DIR=$(cd "$DIR" && pwd)
APT=$DIR/apt TREE=$DIR/gopath/src/k8s.io/kubernetes PROGRAMS=$DIR/programs IMAGES=$DIR/images LOG=$DIR/up.log
NAMES="kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl"
PACKAGES=(dpkg-dev go-bindata busybox-static gcc libc6-dev python3 socat
  bind9-dnsutils curl libc-bin netcat-openbsd)
COMPILER=(golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev)
export PATH=$DIR/compiler/usr/lib/go-1.19/bin:$PATH GOPATH=$DIR/gopath GOCACHE=$DIR/cache GO111MODULE=off CGO_ENABLED=0 GOFLAGS=-p=2 GOTOOLCHAIN=local
# Most of what the compiler does with less is to collect garbage.
export GOGC=400
# Without the clouds' own libraries (Amazon's, Google's, Microsoft's, VMware's), two fifths of all the code: no node here is told of a cloud.
TAGS=providerless

say() { printf '%s %s\n' "$(date +%T)" "$*"; }
die() { say "up.sh: $*" >&2; exit 1; }
logged() { # WHAT COMMAND...: its words go to the log
  local what=$1 since=$SECONDS; shift
  # In the background, or its first mistake would not end it.
  { say "$what"; "$@"; } >>"$LOG" 2>&1 </dev/null &
  wait $! || { tail -n 30 "$LOG" >&2; die "$what failed; see $LOG"; }
  say "$what: $((SECONDS - since)) s"
}
# What a stage is made from: the parts of this file and of those beside it that have a say in it.
made() { [ "$(cat "$DIR/$1.made" 2>/dev/null)" = "$2" ]; }
need() { # PACKAGE...
  local p missing=()
  for p in "$@"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  local get=(apt-get -qq -o DPkg::Lock::Timeout=600)
  export DEBIAN_FRONTEND=noninteractive
  "${get[@]}" install -y --no-install-recommends "${missing[@]}" || { "${get[@]}" update && "${get[@]}" install -y --no-install-recommends "${missing[@]}"; }
}
# apt with a list of sources of its own, so that the machine's stay as they are.
source_apt() {
  apt-get -qq -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$APT/parts" -o "Dir::State::Lists=$APT/lists" \
    -o "Dir::Cache=$APT/cache" -o APT::Sandbox::User=root "$@"
}
bookworm() { # deb|deb-src
  rm -rf "$APT"; mkdir -p "$APT"/{parts,lists/partial,cache/archives/partial}
  "$HERE/../host/host.sh" sources bookworm >"$APT/sources"
  # One of apt's two ways of writing it.
  if grep -q '^Types:' "$APT/sources"; then sed "s/^Types:.*/Types: $1/" "$APT/sources" >"$APT/parts/debian.sources"
  else sed -n "s/^deb /$1 /p" "$APT/sources" >"$APT/parts/debian.list"; fi
  source_apt update
}
get_compiler() {
  made compiler "${COMPILER[*]}" && return 0
  local package
  rm -rf "$DIR/compiler" "$DIR/compiler.made"
  bookworm deb
  (cd "$APT" && source_apt download "${COMPILER[@]}")
  for package in "$APT"/*.deb; do dpkg-deb -x "$package" "$DIR/compiler"; done
  rm -rf "$APT"
  echo "${COMPILER[*]}" >"$DIR/compiler.made"
}
get_source() {
  made tree "$PACKAGED" && [ -d "$TREE" ] && return 0
  rm -rf "$TREE" "$DIR/tree.made"; mkdir -p "$(dirname "$TREE")"
  bookworm deb-src
  (cd "$APT" && source_apt source --download-only "$SOURCE")
  local described=("$APT"/"$SOURCE"_*.dsc)
  # shellcheck disable=SC2053 # a pattern
  [[ $(sed -n 's/^Version: //p' "${described[0]}") == $PACKAGED ]] || die "${described[0]##*/} is not $PACKAGED"
  # apt has checked the signature of what it got. Debian's changes are left out: they are for its kubectl alone.
  dpkg-source --no-check --skip-patches -x "${described[0]}" "$TREE"
  # The copy that Kubernetes brings does not know Go 1.18 and later.
  rm -rf "$TREE/vendor/github.com/modern-go/reflect2"
  cp -r "$DIR/compiler/usr/share/gocode/src/github.com/modern-go/reflect2" "$TREE/vendor/github.com/modern-go/reflect2"
  rm -rf "$APT"
  echo "$PACKAGED" >"$DIR/tree.made"
}
# The one file of generated code that the tree does not bring: what the API server says of its own API.
generate() {
  local folders
  cd "$TREE"
  [ ! -s pkg/generated/openapi/zz_generated.openapi.go ] || return 0
  folders=$(grep -rl --include='*.go' '+k8s:openapi-gen=' cmd pkg plugin vendor/k8s.io/*/ |
    grep -v '/zz_generated\|^vendor/k8s.io/\(code-generator\|sample-apiserver\|kube-openapi\|gengo\)/' | xargs -n1 dirname | sort -u | sed 's,^,k8s.io/kubernetes/,' | paste -sd,)
  go build -o "$DIR/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
  "$DIR/openapi-gen" -i "$folders" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
    -h hack/boilerplate/boilerplate.generatego.txt -r "$DIR/openapi-violations"
}
flags() {
  local p words=(-s -w)
  for p in component-base/version client-go/pkg/version; do
    p=k8s.io/kubernetes/vendor/k8s.io/$p
    words+=(-X "$p.gitVersion=v$VERSION" -X "$p.gitMajor=1" -X "$p.gitMinor=20" -X "$p.gitTreeState=clean")
  done
  echo "${words[*]}"
}
compile_programs() {
  cd "$TREE"
  mkdir -p cmd/every "$PROGRAMS"
  cp "$HERE/programs.go" cmd/every/main.go
  go build -tags "$TAGS" -trimpath -ldflags "$(flags)" -o "$PROGRAMS/kubernetes" ./cmd/every
  local name
  for name in $NAMES; do ln -sfn kubernetes "$PROGRAMS/$name"; done
}
compile_agnhost() {
  cd "$TREE"
  mkdir -p "$PROGRAMS"
  go build -trimpath -ldflags '-s -w' -o "$PROGRAMS/agnhost" ./test/images/agnhost
}
compile_add_ons() {
  cd "$TREE"
  mkdir -p cmd/add-ons
  cp "$HERE/add_ons.go" cmd/add-ons/main.go
  go build -trimpath -ldflags '-s -w' -o "$DIR/add-ons" ./cmd/add-ons
}
compile_cloud() {
  cd "$TREE"
  mkdir -p cmd/cloud
  cp "$HERE/cloud.go" cmd/cloud/main.go
  go build -trimpath -ldflags "$(flags)" -o "$DIR/cloud" ./cmd/cloud
}
compile_e2e() {
  cd "$TREE"
  go-bindata -nometadata -o test/e2e/generated/bindata.go -pkg generated -ignore .jpg -ignore .png -ignore .md -ignore 'BUILD(\.bazel)?' \
    test/conformance/testdata/... test/e2e/testing-manifests/... test/e2e_node/testing-manifests/... test/images/... test/fixtures/...
  go test -c -vet=off -trimpath -ldflags "$(flags)" -o "$PROGRAMS/e2e.test" ./test/e2e
  go build -trimpath -ldflags '-s -w' -o "$PROGRAMS/ginkgo" ./vendor/github.com/onsi/ginkgo/ginkgo
}
compile_e2e_pods() {
  cd "$TREE"
  go build -trimpath -ldflags '-s -w' -o "$DIR/sample-apiserver" ./vendor/k8s.io/sample-apiserver
  go build -trimpath -ldflags '-s -w' -o "$DIR/nnp" ./test/images/nonewprivs
}

build_images() { # AGNHOST ADD-ONS
  cc -static -Os -s -o "$DIR/pause" "$HERE/pause.c"
  /usr/bin/python3 -B "$HERE/images.py" "$IMAGES" pause="$DIR/pause" busybox="$(command -v busybox)" agnhost="$1" add-ons="$2"
}
build_e2e_images() { # AGNHOST
  # Unpacked and not installed, or this machine would run it.
  local get=(apt-get -qq -o APT::Sandbox::User=root)
  rm -rf "$DIR/etcd"; mkdir -p "$DIR/etcd"
  cd "$DIR/etcd"
  "${get[@]}" download etcd-server || { "${get[@]}" update && "${get[@]}" download etcd-server; }
  dpkg-deb -x etcd-server_*.deb .
  /usr/bin/python3 -B "$HERE/images.py" "$IMAGES/e2e" busybox="$(command -v busybox)" agnhost="$1" etcd="$DIR/etcd/usr/bin/etcd" \
    sample-apiserver="$DIR/sample-apiserver" nnp="$DIR/nnp" tree="$TREE"
}

if [ -n "${HNA_KUBERNETES:-}" ]; then
  for name in $NAMES; do [ -x "$HNA_KUBERNETES/$name" ] || die "HNA_KUBERNETES=$HNA_KUBERNETES has no program $name"; done
fi
[ -z "${HNA_FLANNELD:-}" ] || "$HERE/../lib/flanneld.sh" >/dev/null
[ "${1:-}" != check ] || exit 0
exec 9>"$DIR/.lock"; flock 9
: >"$LOG"
[ "$(nice)" -ge 10 ] || renice -n 10 -p $$ >/dev/null # beside other parts of the tests
stage() { # NAME MADE-FROM COMMAND...
  local name=$1 from=$2; shift 2
  ! made "$name" "$from" || return 0
  rm -f "$DIR/$name.made"
  "$@"
  echo "$from" >"$DIR/$name.made"
}
# What is not in the folder that was given comes from the package.
given() { [ -n "${HNA_KUBERNETES:-}" ] && [ -x "$HNA_KUBERNETES/$1" ]; }
from_source() { logged "packages" need "${PACKAGES[@]}"; logged "compiler" get_compiler; logged "source" get_source; logged "generated code" generate; }
make_programs() { from_source; logged "programs" compile_programs; }
make_agnhost() { from_source; logged "agnhost" compile_agnhost; }
make_add_ons() { from_source; logged "stand-ins of add-ons" compile_add_ons; }
make_images() { logged "packages" need "${PACKAGES[@]}"; logged "images" build_images "$1" "$2"; }
if [ "${1:-}" = packages ]; then logged "packages" need "${PACKAGES[@]}"; exit; fi
FROM="$PACKAGED $(flags)"
given kubelet || stage programs "$FROM $TAGS $(md5sum <"$HERE/programs.go")" make_programs
agnhost=$PROGRAMS/agnhost
if given agnhost; then agnhost=$HNA_KUBERNETES/agnhost; else stage agnhost "$FROM" make_agnhost; fi
add_ons=$DIR/add-ons
if given add-ons; then add_ons=$HNA_KUBERNETES/add-ons; else stage add-ons "$FROM $(md5sum <"$HERE/add_ons.go")" make_add_ons; fi
stage images "$(md5sum "$agnhost" "$add_ons" "$HERE/pause.c" "$HERE/images.py")" make_images "$agnhost" "$add_ons"
if [ "${1:-}" = cloud ]; then
  make_cloud() {
    from_source
    logged "cloud controller manager" compile_cloud
    logged "its image" /usr/bin/python3 -B "$HERE/images.py" "$IMAGES" cloud="$DIR/cloud"
  }
  stage cloud "$FROM $(md5sum "$HERE/cloud.go" "$HERE/images.py")" make_cloud
fi
[ "${1:-}" = e2e ] || exit 0
# Who wants the cluster alone need not wait for them.
flock -u 9; exec 8>"$DIR/.lock-e2e"; flock 8
make_e2e() { from_source; logged "end-to-end tests" compile_e2e; }
make_e2e_pods() { from_source; logged "programs of their pods" compile_e2e_pods; }
given e2e.test || stage e2e "$FROM" make_e2e
stage e2e-pods "$FROM" make_e2e_pods
stage e2e-images "$(md5sum "$agnhost" "$DIR/sample-apiserver" "$DIR/nnp" "$HERE/images.py")" logged "images of their pods" build_e2e_images "$agnhost"
