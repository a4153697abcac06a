#!/bin/bash
# Throw-away hosts whose PID 1 is a real systemd, in systemd-nspawn.
#
#   host.sh prepare                     packages, and the cached roots `base`, `node`, `cloud` and `firewalld`, of another suite than the machine's own `tools` (quick once
#                                       they are there)
#   host.sh versions                    packages of those roots, and their versions
#   host.sh starts PROGRAM              whether that of this machine, asked for its --version, starts on the root `base`
#   host.sh sources SUITE               apt's sources of this machine, for that suite of Debian
#   host.sh lent PROGRAM|FOLDER...      of each program it and its libraries, of each folder its files, made for the hosts' release: lines of NAME FILE, the
#                                       latter on this machine, and its own where both are of one release
#   host.sh lab up LAB [IP/LEN] | lab down LAB
#                                       a network namespace lab-LAB with bridge br0; no link to the machine's own net
#   host.sh up HOST [--base NAME] [--net LAB:IP/LEN] [--gw IP] [--vdb SIZE[:VOLUME-ID]] [--vdc ...] [--instance-id ID]
#                   [--file DST=SRC]... [--bind SRC[:DST]]... [--bind-ro SRC[:DST]]... [--cgroup 1|0] [--upper tmpfs|disk]
#                                       boot it; prints the state that systemd ends in and the seconds it took
#   host.sh exec HOST CMD...            run CMD inside; stdin, stdout and the exit status are kept
#   host.sh leader HOST                 pid of its PID 1 as the machine sees it
#   host.sh bus HOST                    address of its system bus, usable from outside
#   host.sh attach HOST DEV SIZE[:ID]   hot-plug a volume (an ID seen before brings its old content)
#   host.sh detach HOST DEV             take it away; the content stays until the host is down
#   host.sh link HOST up|down           its cable
#   host.sh cut HOST | boot HOST        power cut, keeping the disks; boot from the same disks
#   host.sh reboot HOST                 orderly power-off, then boot
#   host.sh down HOST [--keep-volumes]  power-off and removal
#   host.sh down-all                    everything of this set ($HNA_TEST_SET, by default "hand"), whatever state a failed test left it in
#   host.sh list
#
# The base `image` is the root of the image that tests/image/up.sh made (HNA_IMAGE: of another such file), with its own agent and
# cloud-init. Needs root. Nothing is registered with a systemd or machined of the machine, which may have none.
# State, caches and volumes: $HNA_TEST_DIR, by default target/testhost of the repository. HNA_SUITE: the release of Debian that roots are made
# of, by default bookworm; bullseye, trixie and forky are known too, each with caches of its own beside bookworm's.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$HERE/../lib/proc.sh"
TH=${HNA_TEST_DIR:-$HERE/../../target/testhost}
# A set of hosts of their own, so that a test session's sweep does not take what somebody boots by hand.
SET=${HNA_TEST_SET:-hand}
mkdir -p "$TH/$SET/run" "$TH/$SET/volumes"
IMAGE=${HNA_IMAGE:-$HERE/../../target/image/node.raw}
TH=$(cd "$TH" && pwd) RUN=$TH/$SET/run VOLUMES_DIR=$TH/$SET/volumes
use_suite() { # the caches are those of this release
  SUITE=$1
  if [ "$SUITE" = bookworm ]; then CACHE=$TH/cache; else CACHE=$TH/cache-$SUITE; fi
  mkdir -p "$CACHE"
}
use_suite "${HNA_SUITE:-bookworm}"
# Names of the machine (namespaces, groups) carry the set, so that two sets may hold hosts of the same name side by side.
CGROUP_PARENT=hna-testhost-$SET
die() { echo "host.sh: $*" >&2; exit 1; }

# --- caches ---------------------------------------------------------------------------------------
PACKAGES="systemd-container mmdebstrap util-linux mount iproute2 procps xfsprogs e2fsprogs strace jq curl bc shellcheck python3 python3-jsonschema python3-pytest
  lvm2 cryptsetup-bin btrfs-progs f2fs-tools ntfs-3g dosfstools squashfs-tools erofs-utils bcache-tools drbd-utils genisoimage mtools fdisk
  containernetworking-plugins"
BASE_PACKAGES=systemd,systemd-sysv,dbus,udev,libpam-systemd,iproute2,iptables,nftables,conntrack,e2fsprogs,xfsprogs,util-linux,kmod,procps,iputils-ping,ca-certificates,openssl,curl,jq,strace,ethtool,lsof,python3-minimal
# Off, so that whatever a test boots must switch on what it needs, as on a fresh image.
# Docker's client is a package of its own since trixie.
case $SUITE in bullseye | bookworm) docker=docker.io ;; *) docker="docker.io docker-cli" ;; esac
NODE_COMMAND="apt-get -qq update
apt-get -qq install -y --no-install-recommends $docker containerd etcd-server etcd-client
"'systemctl disable --no-reload docker.service docker.socket containerd.service etcd.service
rm -rf /var/lib/etcd/*'
# The real cloud-init, with what its stock settings want to find. The network is made from outside (`up --net`), and the root
# has no translations: cloud-init must look for neither. Of SSH keys the first boot makes only one, for the time it takes.
CLOUD_COMMAND='apt-get -qq update
apt-get -qq install -y --no-install-recommends cloud-init locales openssh-server sudo
printf "%s\n" "network: {config: disabled}" "locale: C.UTF-8" "ssh_genkeytypes: [ed25519]" >/etc/cloud/cloud.cfg.d/90-testhost.cfg
rm -f /etc/ssh/ssh_host_*'
# What tests take from this machine where both are of the same Debian.
TOOLS_COMMAND='apt-get -qq update
apt-get -qq install -y --no-install-recommends lvm2 btrfs-progs rpm socat haproxy
systemctl mask --no-reload lvm2-monitor.service lvm2-lvmpolld.socket dm-event.socket haproxy.service'
# Off: a host's firewall is on where a test says so.
FIREWALLD_COMMAND='apt-get -qq update
apt-get -qq install -y --no-install-recommends firewalld
systemctl disable --no-reload firewalld.service'

prepare() {
  exec 9>"$CACHE/.lock"; flock 9
  local p missing=()
  for p in $PACKAGES; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    export DEBIAN_FRONTEND=noninteractive
    nice apt-get -qq -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "${missing[@]}" >"$CACHE/apt.log" 2>&1 ||
      { nice apt-get -qq -o DPkg::Lock::Timeout=600 update && nice apt-get -qq -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "${missing[@]}"; } >"$CACHE/apt.log" 2>&1 ||
      { tail -n 20 "$CACHE/apt.log" >&2; die "apt-get install ${missing[*]}"; }
  fi
  promtool
  base base "$SUITE" "$BASE_PACKAGES"
  layer node base "$NODE_COMMAND"
  layer cloud node "$CLOUD_COMMAND"
  layer firewalld base "$FIREWALLD_COMMAND"
  is_own || layer tools node "$TOOLS_COMMAND"
}
machine() { . /etc/os-release && echo "${VERSION_CODENAME:-}"; }
is_own() { [ "$SUITE" = "$(machine)" ]; }
# Prometheus' own reader of metrics, out of its package: installed, that would start a server. Since trixie the reader has a package of its own.
promtool() {
  [ ! -x "$TH/promtool" ] || return 0
  local folder package=promtool; folder=$(mktemp -d)
  case $(machine) in bullseye | bookworm) package=prometheus ;; esac
  (cd "$folder" && { nice apt-get -qq download $package || { nice apt-get -qq -o DPkg::Lock::Timeout=600 update && nice apt-get -qq download $package; }; }) \
    >"$CACHE/apt.log" 2>&1 || { tail -n 20 "$CACHE/apt.log" >&2; die "apt-get download $package"; }
  dpkg-deb --fsys-tarfile "$folder"/*.deb | tar -xO ./usr/bin/promtool >"$TH/promtool.new"
  chmod 755 "$TH/promtool.new"; mv "$TH/promtool.new" "$TH/promtool"; rm -rf "$folder"
}
# The machine's own apt sources (a mirror or proxy is set there), for another suite than its own.
sources() {
  local f own
  own=$(machine)
  [ -n "$own" ] || die "/etc/os-release names no release of Debian"
  for f in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list /etc/apt/sources.list.d/*.sources; do
    grep -qsw "$own" "$f" || continue
    # What is being released has no point updates, and sid no fixes apart.
    case $1 in
    sid) sed -E "/^Suites:/s/\\b$own-[a-z]+//g; s/\\b$own\\b/sid/g" "$f" | awk -v RS= -v ORS='\n\n' '!/\nSuites: *\n/' ;;
    *) sed "s/\\b$own\\b/$1/g" "$f" ;;
    esac
    return
  done
  die "no Debian apt sources on this machine"
}
made() { [ "$(cat "$CACHE/$1.ok" 2>/dev/null)" = "$2" ]; }
base() { # NAME SUITE PACKAGES: a root made by mmdebstrap; NAME.ok holds what it was made from
  local name=$1 suite=$2 packages=$3
  made "$name" "$suite $packages" && return 0
  rm -rf "${CACHE:?}/$name" "$CACHE/$name.ok" "$CACHE/$name.tmp"; mkdir -p "$CACHE/$name.tmp"
  # An empty machine-id: each host gets its own at its first boot, which is not "first boot" for presets.
  # /var/log/journal: the journal must outlive a reboot for tests that compare boots.
  # A mirror that stands still is past its date everywhere alike.
  local validity=(); mapfile -t validity < <(apt-config dump | sed -n 's/^Acquire::Check-/--aptopt=&/p')
  # shellcheck disable=SC2016 # $1 is for mmdebstrap's hooks
  sources "$suite" | nice mmdebstrap --quiet "${validity[@]}" --variant=minbase --mode=root --format=directory --include="$packages" \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --customize-hook='rm -rf "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/*' \
    --customize-hook='rm -f "$1"/etc/hostname "$1"/etc/resolv.conf; : >"$1"/etc/machine-id; mkdir -p "$1"/var/log/journal' \
    "$suite" "$CACHE/$name.tmp" - >"$CACHE/$name.log" 2>&1 || { tail -n 20 "$CACHE/$name.log" >&2; die "root $name"; }
  mv "$CACHE/$name.tmp" "$CACHE/$name"
  echo "$suite $packages" >"$CACHE/$name.ok"
}
lowers() { # NAME: its overlay lowerdir string
  if [ -e "$CACHE/$1.parent" ]; then echo "$CACHE/$1:$(lowers "$(cat "$CACHE/$1.parent")")"; else echo "$CACHE/$1"; fi
}
layer() { # NAME PARENT COMMAND: what COMMAND changes in a chroot of PARENT
  local name=$1 parent=$2 command=$3 work=$CACHE/.layer.$1
  local def; def="$(md5sum <"$CACHE/$parent.ok") $command"
  made "$name" "$def" && return 0
  ! mountpoint -q "$work/root" || umount "$work/root"
  rm -rf "$work" "${CACHE:?}/$name" "$CACHE/$name.ok"; mkdir -p "$work"/{root,upper,work}
  mount -t overlay overlay -o "lowerdir=$(lowers "$parent"),upperdir=$work/upper,workdir=$work/work" "$work/root"
  local root=$work/root rc=0
  sources "$SUITE" >"$root/etc/apt/sources.list.d/debian.sources"
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"; chmod 755 "$root/usr/sbin/policy-rc.d"
  # shellcheck disable=SC2016
  nice unshare -m sh -ec 'mount -t proc proc "$1/proc"; mount --rbind /dev "$1/dev"; cp -L /etc/resolv.conf "$1/etc/resolv.conf" 2>/dev/null || :
    DEBIAN_FRONTEND=noninteractive chroot "$1" sh -ec "$2"' sh "$root" "$command" >"$CACHE/$name.log" 2>&1 </dev/null || rc=$?
  rm -rf "$root/etc/apt/sources.list.d/debian.sources" "$root/usr/sbin/policy-rc.d" "$root/etc/resolv.conf" "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/archives/*.deb
  umount "$root"
  [ $rc = 0 ] || { tail -n 20 "$CACHE/$name.log" >&2; die "layer $name: status $rc"; }
  mv "$work/upper" "$CACHE/$name"; rm -rf "$work"
  echo "$parent" >"$CACHE/$name.parent"; echo "$def" >"$CACHE/$name.ok"
}

lent() { # NAME...
  local name file folder layers=() listed
  # shellcheck disable=SC2016 # the inner shells expand them
  local list='for name in "$@"; do
      if [ -d "$name" ]; then find "$name" -type f; continue; fi
      echo "$name"; ldd "$name" 2>/dev/null | sed -nE "s,^[^/]*(/[^ ]+) \(0x.*,\1,p"
    done | sort -u | while read -r name; do file=$(readlink -e "$name") || { echo "host.sh: no file $name" >&2; exit 1; }; echo "$name $file"; done'
  if is_own; then sh -ec "$list" sh "$@"; return; fi
  IFS=: read -ra layers <<<"$(lowers tools)"
  # shellcheck disable=SC2016
  listed=$(unshare -m sh -ec 'mount -t overlay overlay -o "ro,lowerdir=$1" /mnt; shift; exec chroot /mnt sh -ec "$@"' sh "$(lowers tools)" "$list" sh "$@")
  while read -r name file; do
    for folder in "${layers[@]}"; do
      [ ! -f "$folder$file" ] || { echo "$name $folder$file"; continue 2; }
    done
    die "no file $name in the root of $SUITE"
  done <<<"$listed"
}

# --- networks -------------------------------------------------------------------------------------
lab() {
  local ns=lab-$2
  case $1 in
  up)
    [ -e "/run/netns/$ns" ] || ip netns add "$ns"
    touch "$RUN/.$ns"
    ip -n "$ns" link set lo up
    ip -n "$ns" link show br0 >/dev/null 2>&1 || ip -n "$ns" link add br0 type bridge
    # Of its own: else it is that of one of the hosts, and changes as they come and go, which cuts off those that run until they ask anew.
    ip -n "$ns" link set br0 address 02:00:0a:4d:00:01
    [ -z "${3:-}" ] || ip -n "$ns" addr replace "$3" dev br0
    ip -n "$ns" link set br0 up ;;
  down)
    # while something (a Heat, a test's server) runs in it, or a host is on its bridge, it stays
    if [ -e "/run/netns/$ns" ]; then
      [ -z "$(ip netns pids "$ns")$(ip -n "$ns" -o link show master br0 2>/dev/null)" ] || return 0
      ip netns del "$ns"
    fi
    rm -f "$RUN/.$ns" ;;
  *) die "lab up|down LAB" ;;
  esac
}

# --- volumes --------------------------------------------------------------------------------------
volume() { # SIZE ID: prints the loop device
  [ -e "$VOLUMES_DIR/$2.img" ] || truncate -s "$1" "$VOLUMES_DIR/$2.img"
  losetup --find --show "$VOLUMES_DIR/$2.img"
}
new_id() { cat /proc/sys/kernel/random/uuid; }
id_of() { case $1 in *:*) echo "${1#*:}";; *) new_id;; esac; }
# virtio-blk shows the first 20 characters of a Cinder volume's id as the serial
volume_rule() { # DEV LOOP ID: the udev rules that give a loop device a virtio disk's names
  local k=${2#/dev/} s=${3:0:20}
  cat <<RULE
KERNEL=="$k", SYMLINK+="$1 disk/by-id/virtio-$s", ENV{ID_SERIAL}="$s", ENV{ID_BUS}="virtio", ENV{SYSTEMD_READY}="1", TAG+="systemd"
KERNEL=="$k", IMPORT{builtin}="blkid", OPTIONS+="watch"
KERNEL=="$k", ENV{ID_FS_USAGE}=="filesystem|other", ENV{ID_FS_UUID_ENC}=="?*", SYMLINK+="disk/by-uuid/\$env{ID_FS_UUID_ENC}"
KERNEL=="$k", ENV{ID_FS_USAGE}=="filesystem|other", ENV{ID_FS_LABEL_ENC}=="?*", SYMLINK+="disk/by-label/\$env{ID_FS_LABEL_ENC}"
RULE
}
write_rules() { # of $VOLUMES
  local v rules=$1/root/etc/udev/rules.d
  mkdir -p "$rules"
  for v in "${VOLUMES[@]}"; do
    # shellcheck disable=SC2086 # DEV LOOP ID
    volume_rule $v
  done >"$rules/59-testhost.rules"
}

# --- processes ------------------------------------------------------------------------------------
# supervisor (a shell that starts nspawn again when the host reboots itself) > systemd-nspawn > PID 1 of the host
child_of() { local c=; { read -r c _ <"/proc/$1/task/$1/children"; } 2>/dev/null || :; echo "$c"; }
leader_of() { local n; n=$(child_of "$1"); [ -z "$n" ] || child_of "$n"; }
supervisor() { recorded "$RUN/$1/nspawn.pid"; }
leader() { # asked afresh each time: a reboot from inside makes a new one
  local s l
  s=$(supervisor "$1") || die "$1 is not running"
  l=$(leader_of "$s")
  [ -n "$l" ] || die "$1 has no PID 1 right now"
  echo "$l"
}
inside() { # HOST CMD...
  local l; l=$(leader "$1"); shift
  # the net namespace too, or udevadm waits forever
  nsenter -t "$l" -m -u -i -n -p -C -r -w -- \
    env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LANG=C.UTF-8 "$@"
}
hierarchies() { local b; for b in unified systemd cpu cpuacct cpuset memory devices freezer blkio pids; do [ ! -e "/sys/fs/cgroup/$b/cgroup.procs" ] || echo "/sys/fs/cgroup/$b"; done
  # a machine with cgroup2 only
  [ ! -e /sys/fs/cgroup/cgroup.controllers ] || echo /sys/fs/cgroup; }
make_cgroup() { # DIR: nspawn makes payload/ and supervisor/ below it, so two hosts must not share one
  local f
  mkdir -p "$1"
  case $1 in */cpuset/*)
    for f in cpus mems; do [ -n "$(cat "$1/cpuset.$f")" ] || cat "$1/../cpuset.$f" >"$1/cpuset.$f"; done
    echo 1 >"$1/cgroup.clone_children" ;;
  esac
}
drop_cgroups() { # HOST
  local b
  for b in $(hierarchies); do
    [ ! -d "$b/$CGROUP_PARENT/$1" ] || find "$b/$CGROUP_PARENT/$1" -depth -type d -exec rmdir {} + 2>/dev/null || :
  done
}
mount_image() { # DIR: the file system of the image's first partition, only ever read; the loop device goes with the mount
  local start
  ! mountpoint -q "$1" || return 0
  start=$(partx -g -o START -n 1 "$IMAGE")
  mkdir -p "$1"
  mount -o "ro,noload,loop,offset=$((start * 512))" "$IMAGE" "$1"
}
fit_image() { # ROOT: what is otherwise in a container than in a machine
  # The root is no disk that could be checked or mounted anew.
  : >"$1/etc/fstab"
  # In a container cloud-init's generator looks for no disks, and would leave it off.
  echo 'policy: enabled' >"$1/etc/cloud/ds-identify.cfg"
  # There is no console to ask at, no iSCSI in a network namespace, and the network is made from outside: networkd would wait for
  # udev to name an interface that is not in this /sys.
  local unit
  for unit in systemd-firstboot.service iscsid.{socket,service} open-iscsi.service systemd-networkd.{socket,service} systemd-networkd-wait-online.service; do
    ln -sfn /dev/null "$1/etc/systemd/system/$unit"
  done
}
mount_root() { # HOST
  local d=$RUN/$1 lower
  mkdir -p "$d/rw" "$d/root"
  if [ "$UPPER" = tmpfs ] && ! mountpoint -q "$d/rw"; then mount -t tmpfs -o mode=755,size=4G tmpfs "$d/rw"; fi
  mkdir -p "$d/rw/upper" "$d/rw/work"
  if [ "$BASE" = image ]; then mount_image "$d/image"; lower=$d/image; else lower=$(lowers "$BASE"); fi
  mountpoint -q "$d/root" || mount -t overlay overlay -o "lowerdir=$lower,upperdir=$d/rw/upper,workdir=$d/rw/work" "$d/root"
}
write_init() { # FILE: what runs just before systemd
  {
    # PID 1 in a container asks for udev events only if udev's socket is there when it starts: a placeholder, which the socket unit replaces
    echo '#!/bin/sh'
    echo 'mkdir -p /run/udev; : >/run/udev/control'
    # Sysctls without a namespace are the machine's own. What node software sets gets a private copy.
    cat <<'INIT'
mkdir -p /run/testhost/sys
for k in kernel/panic kernel/panic_on_oops kernel/pid_max kernel/threads-max kernel/core_pattern kernel/sysrq kernel/keys/root_maxkeys kernel/keys/root_maxbytes \
  vm/overcommit_memory vm/panic_on_oom vm/max_map_count vm/swappiness vm/dirty_ratio vm/dirty_background_ratio \
  fs/inotify/max_user_watches fs/inotify/max_user_instances fs/file-max fs/nr_open fs/aio-max-nr fs/may_detach_mounts; do
  [ -e /proc/sys/$k ] || continue
  f=/run/testhost/sys/$(echo $k | tr / .); cat /proc/sys/$k >$f; mount --bind $f /proc/sys/$k
done
INIT
    if [ "$CGROUP" = 0 ]; then cat <<'INIT'
mount -o remount,bind,rw /sys/fs/cgroup
for c in /sys/fs/cgroup/*; do [ -L $c ] || mount -o remount,bind,rw $c; done
INIT
    fi
    # A container has no index of the kernel's modules. Debian 11's libkmod cannot look up any module then, and says ENOSYS, at which
    # systemd-modules-load fails; with an index that has none, none is found, which is no failure.
    if [ "$SUITE" = bullseye ]; then cat <<'INIT'
if [ ! -e /lib/modules/$(uname -r) ]; then mkdir -p /lib/modules/$(uname -r); depmod; fi
INIT
    fi
    # as cloud-init at every boot, from what the metadata service says of the instance
    cat <<'INIT'
if [ -s /usr/local/share/testhost-instance-id ]; then
  mkdir -p /run/cloud-init /var/lib/cloud/data
  cp /usr/local/share/testhost-instance-id /run/cloud-init/.instance-id
  cp /usr/local/share/testhost-instance-id /var/lib/cloud/data/instance-id
fi
INIT
    echo 'exec /lib/systemd/systemd'
  } >"$1"
  chmod 755 "$1"
}

# --- hosts ----------------------------------------------------------------------------------------
load_conf() { [ -e "$RUN/$1/conf" ] || die "no host $1"; . "$RUN/$1/conf"; }
save_conf() { declare -p BASE NETNS CGROUP UPPER BINDS VOLUMES | sed 's/^declare/declare -g/' >"$RUN/$1/conf"; }
boot() { # HOST
  local h=$1 d=$RUN/$1 t0=$EPOCHREALTIME b v
  load_conf "$h"
  ! supervisor "$h" >/dev/null || die "$h runs already"
  mount_root "$h"
  mkdir -p "$d/root/usr/local/sbin"; write_init "$d/root/usr/local/sbin/testhost-init"
  write_rules "$d"
  local args=(--quiet --register=no --keep-unit --capability=all --machine="$SET-$h" --hostname="$h" -D "$d/root" --console=pipe
    --resolv-conf=off --timezone=off --link-journal=no --setenv="product_name=OpenStack Nova"
    --network-namespace-path="/run/netns/$NETNS" "${BINDS[@]}" --bind=/dev/kmsg)
  for v in "${VOLUMES[@]}"; do read -r _ b _ <<<"$v"; args+=(--bind="$b"); done
  [ ! -e /dev/fuse ] || args+=(--bind=/dev/fuse)
  local groups; groups=$(hierarchies)
  for b in $groups; do make_cgroup "$b/$CGROUP_PARENT"; make_cgroup "$b/$CGROUP_PARENT/$h"; done
  (
    for b in $groups; do echo "$BASHPID" >"$b/$CGROUP_PARENT/$h/cgroup.procs"; done
    # /sys writable: systemd-udevd runs only then, and .device units are real
    export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=$CGROUP SYSTEMD_SECCOMP=0 SYSTEMD_NSPAWN_TMPFS_TMP=0 SYSTEMD_NSPAWN_API_VFS_WRITABLE=1
    # --keep-unit: nspawn ends with 133 where the host asked for a reboot
    # shellcheck disable=SC2016
    exec setsid sh -c 'while :; do systemd-nspawn "$@"; [ $? = 133 ] || exit; done' sh "${args[@]}" /usr/local/sbin/testhost-init </dev/null >>"$d/console.log" 2>&1
  ) &
  local s=$! l=; record "$d/nspawn.pid" $s; disown
  ended() { alive $s || { tail -n 5 "$d/console.log" >&2; die "$h: nspawn ended"; }; }
  until [ -n "$l" ] && [ "$(cat "/proc/$l/comm" 2>/dev/null)" = systemd ]; do ended; sleep 0.1; l=$(leader_of $s); done
  until [ -S "/proc/$l/root/run/dbus/system_bus_socket" ]; do ended; sleep 0.1; done
  # Whoever is not answered in time by a bus that is only just starting has not heard how the boot ends, and asks again.
  local state=; for _ in 1 2 3 4 5; do
    state=$(inside "$h" systemctl is-system-running --wait || true)
    case $state in running | degraded | maintenance | stopping) break ;; esac
    ended; sleep 0.5
  done
  inside "$h" udevadm settle -t 300 || true # jobs are done; udev may still make links to volumes
  echo "$h $state $(echo "$EPOCHREALTIME - $t0" | bc)s"
}
up() {
  local h=$1 d=$RUN/$1; shift
  [ ! -e "$d" ] || die "$h is there already"
  BASE=base NETNS=hna-$SET-$h CGROUP=1 UPPER=tmpfs BINDS=() VOLUMES=()
  local net='' gw='' instance f v spec id loop files=() volumes=()
  while [ $# -gt 0 ]; do
    case $1 in
    --base) BASE=$2;; --cgroup) CGROUP=$2;; --upper) UPPER=$2;; --net) net=$2;; --gw) gw=$2;; --instance-id) instance=$2;;
    --vd[b-z]) volumes+=("${1#--} $2");;
    --bind) BINDS+=("--bind=$2");; --bind-ro) BINDS+=("--bind-ro=$2");; --file) files+=("$2");;
    *) die "unknown option $1";;
    esac
    shift 2
  done
  if [ "$BASE" = image ]; then [ -s "$IMAGE" ] || die "no image $IMAGE: tests/image/up.sh"
  else [ -e "$CACHE/$BASE.ok" ] || die "no root $BASE: host.sh prepare"; fi
  mkdir -p "$d"; save_conf "$h" # first, so that down finds whatever comes into being from here on
  for v in "${volumes[@]}"; do
    spec=${v#* } id=$(id_of "${v#* }")
    echo "$id" >>"$d/volume-ids"
    loop=$(volume "${spec%%:*}" "$id")
    VOLUMES+=("${v%% *} $loop $id"); save_conf "$h"
  done
  # Without its directory no host has it: one was ended before it could remove it.
  [ ! -e "/run/netns/$NETNS" ] || ip netns del "$NETNS"
  ip netns add "$NETNS"; ip -n "$NETNS" link set lo up
  if [ -n "$net" ]; then
    ip -n "lab-${net%%:*}" link add "v-$h" type veth peer name eth0 netns "$NETNS"
    ip -n "lab-${net%%:*}" link set "v-$h" master br0 up
    ip -n "$NETNS" addr add "${net#*:}" dev eth0; ip -n "$NETNS" link set eth0 up
    [ -z "$gw" ] || ip -n "$NETNS" route add default via "$gw"
  fi
  echo "${net%%:*}" >"$d/lab"
  mount_root "$h"
  [ "$BASE" != image ] || fit_image "$d/root"
  echo "$h" >"$d/root/etc/hostname"
  printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$h" >"$d/root/etc/hosts"
  # the identity of the instance, where the machine has no SMBIOS to show; see write_init. An empty ID: nobody says it.
  instance=${instance-$(new_id)}
  mkdir -p "$d/root/usr/local/share"; printf %s "${instance:+$instance$'\n'}" >"$d/root/usr/local/share/testhost-instance-id"
  for f in "${files[@]}"; do mkdir -p "$d/root$(dirname "${f%%=*}")"; cp -a "${f#*=}" "$d/root${f%%=*}"; done
  boot "$h"
}
attach() { # HOST DEV SIZE[:ID]
  load_conf "$1"
  local id loop mm; id=$(id_of "$3")
  loop=$(volume "${3%%:*}" "$id")
  VOLUMES+=("$2 $loop $id"); save_conf "$1"; write_rules "$RUN/$1"
  echo "$id" >>"$RUN/$1/volume-ids"
  supervisor "$1" >/dev/null || return 0 # at the next boot, then
  mm=$(cat "/sys/block/${loop#/dev/}/dev")
  inside "$1" sh -c "mknod -m 660 $loop b ${mm%:*} ${mm#*:} 2>/dev/null || :; udevadm control --reload; udevadm trigger --action=add /sys/block/${loop#/dev/}; udevadm settle -t 300"
}
detach() { # HOST DEV
  load_conf "$1"
  local v loop='' rest=()
  for v in "${VOLUMES[@]}"; do if [ "${v%% *}" = "$2" ]; then read -r _ loop _ <<<"$v"; else rest+=("$v"); fi; done
  [ -n "$loop" ] || die "$1 has no $2"
  VOLUMES=("${rest[@]}"); save_conf "$1"
  # without its rule first: the kernel's own "change" on losetup -d would bring the links back
  write_rules "$RUN/$1"
  if supervisor "$1" >/dev/null; then
    inside "$1" sh -c "udevadm control --reload; udevadm trigger --action=remove /sys/block/${loop#/dev/}; udevadm settle -t 300; rm -f $loop"
  fi
  losetup -d "$loop"
}
halt() { # HOST SIGNAL-TO-PID-1 SECONDS: then it is killed
  local s n l signal=$2 end=$((SECONDS + $3))
  if s=$(supervisor "$1"); then
    n=$(child_of "$s") l=$(leader_of "$s")
    # half booted, it would not hear a request
    [ -S "/proc/$l/root/run/dbus/system_bus_socket" ] || signal=KILL
    # shellcheck disable=SC2086 # none or one
    kill -s "$signal" ${l:-$n $s} 2>/dev/null || :
    while alive "$s" && [ $SECONDS -lt $end ]; do sleep 0.1; done
    # shellcheck disable=SC2086
    ! alive "$s" || kill -KILL "$s" $n $l 2>/dev/null || :
    # What it has mounted and open goes with it.
    for _ in $(seq 300); do alive "${l:-$s}" || alive "$s" || break; sleep 0.1; done
  fi
  drop_cgroups "$1"
  rm -f "$RUN/$1/nspawn.pid"
  rmdir "/run/systemd/nspawn/propagate/$SET-$1" 2>/dev/null || :
}
unmount() { # everything mounted at or below a directory, deepest first
  local m
  findmnt -rno TARGET | awk -v d="$1" '$0 == d || index($0, d "/") == 1' | sort -r | while read -r m; do umount "$m" 2>/dev/null || umount -l "$m"; done
}
down() { # HOST [--keep-volumes]
  local h=$1 d=$RUN/$1 v loop id
  [ -d "$d" ] || return 0
  VOLUMES=() NETNS=hna-$SET-$h
  [ ! -s "$d/conf" ] || . "$d/conf"
  halt "$h" RTMIN+4 20
  unmount "$d"
  for v in "${VOLUMES[@]}"; do
    read -r _ loop _ <<<"$v"
    losetup -d "$loop" 2>/dev/null || :
  done
  if [ "${2:-}" != --keep-volumes ] && [ -e "$d/volume-ids" ]; then
    while read -r id; do rm -f "$VOLUMES_DIR/$id.img"; done <"$d/volume-ids"
  fi
  [ ! -e "/run/netns/$NETNS" ] || ip netns del "$NETNS"
  # the bridge's end goes with the namespace, a little later: a host of the same name may come at once
  local lab; lab=$(cat "$d/lab" 2>/dev/null || :)
  [ -z "$lab" ] || ip -n "lab-$lab" link del "v-$h" 2>/dev/null || :
  rm -rf "$d"
}
down_all() {
  local d b l
  for d in "$RUN"/*/; do [ ! -d "$d" ] || down "$(basename "$d")" & done; wait
  # leftovers of hosts that died half made
  unmount "$RUN"
  losetup -nO NAME,BACK-FILE | awk -v d="$VOLUMES_DIR/" 'index($2, d) == 1 {print $1}' | while read -r l; do losetup -d "$l"; done
  rm -rf "${VOLUMES_DIR:?}"/*
  for l in "$RUN"/.lab-*; do [ ! -e "$l" ] || lab down "${l##*/.lab-}"; done
  for b in $(hierarchies); do rmdir "$b/$CGROUP_PARENT" 2>/dev/null || :; done
}

verb=${1:-}; [ $# = 0 ] || shift
case $verb in
prepare) prepare;;
versions) dpkg-query --admindir="$CACHE/cloud/var/lib/dpkg" --show;;
starts)
  # shellcheck disable=SC2016 # the inner shell expands them
  unshare -m sh -ec 'mount --bind "$(dirname "$1")" "$2/mnt"; exec chroot "$2" "/mnt/$(basename "$1")" --version' sh "$(realpath "$1")" "$CACHE/base";;
sources) sources "$1";;
lent) lent "$@";;
lab) lab "$@";;
up) up "$@";;
exec) inside "$@";;
leader) leader "$1";;
bus) echo "unix:path=/proc/$(leader "$1")/root/run/dbus/system_bus_socket";;
attach) attach "$@";;
detach) detach "$@";;
link) ip -n "lab-$(cat "$RUN/$1/lab")" link set "v-$1" "$2";;
cut) halt "$1" KILL 60;;
boot) boot "$1";;
reboot) halt "$1" RTMIN+4 200; boot "$1";; # systemd itself gives up what does not stop after 90 s
down) down "$@";;
down-all) down_all;;
list) for d in "$RUN"/*/; do [ ! -d "$d" ] || basename "$d"; done;;
*) sed -n '2,28p' "$0"; exit 64;;
esac
