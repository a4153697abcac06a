# shellcheck shell=bash disable=SC2034 # who sources it uses it
# Settings and services of the real Heat that the tests talk to (sourced, never run).
HB=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$HB/../lib/proc.sh"
HB_DIR=${HNA_HEAT_DIR:-$HB/../../target/heat}
mkdir -p "$HB_DIR/state" "$HB_DIR/cache"
HB_DIR=$(cd "$HB_DIR" && pwd)
HB_STATE=$HB_DIR/state          # databases, configurations, logs, pids, secrets: removed by down.sh --purge
HB_CACHE=$HB_DIR/cache          # virtual environment and uv's cache: worth keeping
HB_PY=${HB_PY:-/usr/bin/python3}
HB_LOCK=${HB_LOCK:-$HB/heat.lock} # what the virtual environment holds
# Everything runs in this network namespace, so default ports are free, nothing listens in the machine's
# own, and hosts on the same bridge reach the endpoints as a guest reaches a cloud's.
HB_LAB=${HB_LAB:-hna}
HB_IP=${HB_IP:-10.77.0.1}
KEYSTONE_PORT=5000 HEAT_PORT=8004 CFN_PORT=8000 SWIFT_PORT=8080 ZAQAR_PORT=8888 AMQP_PORT=5672 EPMD_PORT=4369 DIST_PORT=25672
KS=http://$HB_IP:$KEYSTONE_PORT HT=http://$HB_IP:$HEAT_PORT CF=http://$HB_IP:$CFN_PORT SW=http://$HB_IP:$SWIFT_PORT ZQ=http://$HB_IP:$ZAQAR_PORT
V=$HB_CACHE/venv
RUN=$HB_STATE/run LOG=$HB_STATE/log ETC=$HB_STATE/etc
# tests/cloud, which tests no transport, does without queues.
QUEUES=zaqar; [ -z "${HB_BESIDE:-}" ] || QUEUES=
OPENSTACK="${HB_BESIDE:-} $QUEUES swift heat-api-cfn heat-api heat-engine keystone"
export HB_IP

say() { printf '%s %s\n' "$(date +%T)" "$*" >&2; }
die() { say "ERROR: $*"; exit 1; }
in_lab() { ip netns exec "lab-$HB_LAB" "$@"; }
running() { recorded "$RUN/$1.pid" >/dev/null; }

# start NAME CMD...: in the background in the namespace, with a pid file and a log. As nice as anybody, whoever made it ready: beside
# hosts that take all of the machine, services at a lower priority answer nobody in time.
start() {
  local n=$1; shift
  ! running "$n" || return 0
  # `ip netns exec` becomes the command: the pid stays, and by setsid it is the process group too
  (renice -n 0 -p $BASHPID; exec setsid ip netns exec "lab-$HB_LAB" "$@") >>"$LOG/$n.log" 2>&1 </dev/null &
  record "$RUN/$n.pid" $!
}
# service NAME: how each one is started
service() {
  case $1 in
  mariadb)
    # a socket only; sqlite does not do: heat-engine dies on "database is locked"
    start mariadb mariadbd --no-defaults --user=root --datadir="$HB_STATE/mysql" --socket="$RUN/mysql.sock" --pid-file="$RUN/mariadbd.own" \
      --skip-networking --max-connections=400 --character-set-server=utf8mb3 \
      --innodb-flush-log-at-trx-commit=0 --innodb-buffer-pool-size=64M --innodb-log-file-size=32M ;;
  rabbitmq) ( . "$ETC/rabbitmq.sh"; start rabbitmq /usr/lib/rabbitmq/bin/rabbitmq-server ) ;;
  keystone) HB_ACCESS=$LOG/access-keystone.log start keystone "$V/bin/python" -B "$HB/serve.py" keystone "$KEYSTONE_PORT" "$ETC/keystone/keystone.conf" ;;
  heat-engine) start heat-engine "$V/bin/heat-engine" --config-file "$ETC/heat/heat.conf" ;;
  heat-api) HB_ACCESS=$LOG/access-heat-api.log start heat-api "$V/bin/python" -B "$HB/serve.py" heat-api "$HEAT_PORT" "$ETC/heat/heat.conf" ;;
  heat-api-cfn) HB_ACCESS=$LOG/access-heat-api-cfn.log start heat-api-cfn "$V/bin/python" -B "$HB/serve.py" heat-api-cfn "$CFN_PORT" "$ETC/heat/heat.conf" ;;
  swift) HB_ACCESS=$LOG/access-swift.log start swift "$V/bin/python" -B "$HB/serve_swift.py" "$SWIFT_PORT" "$ETC/swift" ;;
  # a socket only, and nothing on disk: messages live for an hour at most
  redis) start redis redis-server --port 0 --unixsocket "$RUN/redis.sock" --save "" --appendonly no --dir "$HB_STATE" --daemonize no ;;
  # it looks for its configuration in HOME, and takes no argument
  zaqar) HOME=$ETC/zaqar HB_ACCESS=$LOG/access-zaqar.log start zaqar "$V/bin/python" -B "$HB/serve.py" zaqar "$ZAQAR_PORT" "$ETC/zaqar/zaqar.conf" ;;
  *) other_service "$1" ;;
  esac
}
other_service() { die "no service $1"; } # what else runs beside Heat: tests/cloud
# answering NAME: one look whether it serves
answering() {
  case $1 in
  mariadb) mariadb-admin --no-defaults --socket="$RUN/mysql.sock" ping ;;
  rabbitmq) in_lab timeout 30 bash -c "exec 3<>/dev/tcp/127.0.0.1/$AMQP_PORT" ;;
  keystone) in_lab curl -sf -o /dev/null "$KS/v3" ;;
  heat-api) in_lab curl -sf -o /dev/null "$HT/healthcheck" ;;
  heat-api-cfn) in_lab curl -sf -o /dev/null "$CF/healthcheck" ;;
  heat-engine) in_lab "$HB_PY" -B "$HB/stack.py" ready ;;
  swift) in_lab curl -sf -o /dev/null "$SW/healthcheck" ;;
  redis) redis-cli -s "$RUN/redis.sock" ping ;;
  zaqar) in_lab curl -s -o /dev/null "$ZQ/" ;;
  *) other_answering "$1" ;;
  esac
}
other_answering() { die "no service $1"; }
wait_for() { # NAME
  local end=$((SECONDS + 600))
  until answering "$1" >/dev/null 2>&1; do
    running "$1" || { tail -n 20 "$LOG/$1.log" >&2; die "$1 ended"; }
    [ $SECONDS -lt $end ] || { tail -n 20 "$LOG/$1.log" >&2; die "$1 does not answer"; }
    sleep 0.2
  done
}
# signal SIGNAL NAME...: to the whole process group of each
signal() {
  local sig=$1 n p; shift
  for n in "$@"; do
    ! p=$(recorded "$RUN/$n.pid") || kill "-$sig" -- "-$p" 2>/dev/null || :
  done
}
# gone NAME...: none of them, nor a child of theirs, is left
gone() {
  local n p
  for n in "$@"; do
    { read -r p _ <"$RUN/$n.pid"; } 2>/dev/null || continue
    ! recorded "$RUN/$n.pid" >/dev/null || return 1
    ! pgrep -g "$p" -r D,R,S,T >/dev/null || return 1
  done
}
# halt PATIENCE NAME...: TERM, then KILL after PATIENCE tenths of a second
halt() {
  local n patience=$1; shift
  signal TERM "$@"
  for _ in $(seq "$patience"); do ! gone "$@" || break; sleep 0.1; done
  gone "$@" || { kill_groups "$@"; for _ in $(seq 600); do ! gone "$@" || break; sleep 0.1; done; }
  for n in "$@"; do rm -f "$RUN/$n.pid"; done
}
# children may outlive the recorded leader of their group: only processes of our namespace are meant
kill_groups() {
  local n p q
  for n in "$@"; do
    { read -r p _ <"$RUN/$n.pid"; } 2>/dev/null || continue
    for q in $(pgrep -g "$p"); do
      [ "$(ip netns identify "$q" 2>/dev/null)" != "lab-$HB_LAB" ] || kill -KILL "$q" 2>/dev/null || :
    done
  done
}
