#!/bin/bash
# A real Keystone, heat-api, heat-api-cfn, heat-engine, Swift and Zaqar, with MariaDB, RabbitMQ and Redis, in the network
# namespace lab-hna on 10.77.0.1; as root, without systemd, idempotent.
#
#   up.sh [venv]    venv: only the virtual environment with Heat's code, for tests that run nothing of it
set -euo pipefail
. "$(dirname "$0")/lib.sh"
mkdir -p "$RUN" "$LOG" "$ETC"
exec 9>"$HB_DIR/.lock"; flock 9
T0=$EPOCHREALTIME; : >"$HB_STATE/times"
lap() { printf '%-24s %6.1f s\n' "$1" "$(echo "$EPOCHREALTIME - $2" | bc)" | tee -a "$HB_STATE/times" >&2; }

# --- packages -------------------------------------------------------------------------------------
t=$EPOCHREALTIME
missing=()
for p in rabbitmq-server mariadb-server ${QUEUES:+redis-server} curl jq iproute2 procps bc python3 python3-venv python3-pytest; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
if [ ${#missing[@]} -gt 0 ]; then
  say "apt: installing ${missing[*]}"
  # the packages' own services must not start on the machine
  policy=/usr/sbin/policy-rc.d
  if [ ! -e $policy ]; then trap 'rm -f $policy' EXIT; printf '#!/bin/sh\nexit 101\n' >$policy; chmod 755 $policy; fi
  apt() { DEBIAN_FRONTEND=noninteractive nice apt-get -qq -o DPkg::Lock::Timeout=600 "$@" >>"$LOG/apt.log" 2>&1 9>&-; }
  apt install -y --no-install-recommends "${missing[@]}" || { apt update; apt install -y --no-install-recommends "${missing[@]}"; } ||
    { tail -n 20 "$LOG/apt.log" >&2; die "apt-get install ${missing[*]}"; }
fi
lap "packages" "$t"

t=$EPOCHREALTIME
UV=$HB_CACHE/uv/bin/uv
export UV_CACHE_DIR=$HB_CACHE/uvcache UV_PYTHON_DOWNLOADS=never PYTHONDONTWRITEBYTECODE=
if [ ! -x "$UV" ]; then
  rm -rf "$HB_CACHE/uv"; "$HB_PY" -m venv "$HB_CACHE/uv"
  "$HB_CACHE/uv/bin/pip" install -q --no-cache-dir uv
fi
if ! cmp -s "$V/.lock" "$HB_LOCK"; then
  rm -rf "$V"; "$UV" venv -q -p "$HB_PY" "$V"
  nice "$UV" pip install -q --compile-bytecode -p "$V/bin/python" -r "$HB_LOCK"
  cp "$HB_LOCK" "$V/.lock"
fi
lap "virtual environment" "$t"
[ "${1:-}" != venv ] || exit 0

# --- secrets: made once, for this state only ------------------------------------------------------
SECRETS=$HB_STATE/secrets
if [ ! -s "$SECRETS" ]; then
  word() { head -c 18 /dev/urandom | base64 | tr '+/' 'ab'; }
  ( umask 077
    for n in ADMIN_PASS HEAT_PASS DOMAIN_PASS DEMO_PASS DB_PASS AMQP_PASS; do echo "$n=$(word)"; done >"$SECRETS.new"
    # heat takes exactly 32 characters
    echo "AUTH_KEY=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')" >>"$SECRETS.new"
    mv "$SECRETS.new" "$SECRETS" )
fi
set -a; . "$SECRETS"; set +a
umask 077

# --- network, database, message queue -------------------------------------------------------------
t=$EPOCHREALTIME
D=$HB_STATE/mysql
if [ ! -e "$D/.done" ]; then
  rm -rf "$D"
  nice mariadb-install-db --no-defaults --user=root --datadir="$D" --skip-test-db \
    --auth-root-authentication-method=socket >"$LOG/mariadb-install.log" 2>&1
  touch "$D/.done"
fi
R=$HB_STATE/rabbit; mkdir -p "$R"
cat >"$ETC/rabbitmq.conf" <<C
listeners.tcp.1 = 127.0.0.1:$AMQP_PORT
default_user = hna
default_pass = $AMQP_PASS
loopback_users = none
disk_free_limit.absolute = 50MB
C
cat >"$ETC/rabbitmq.sh" <<C
export HOME=$R RABBITMQ_NODENAME=hna@localhost RABBITMQ_MNESIA_BASE=$R/mnesia RABBITMQ_LOG_BASE=$LOG \\
  RABBITMQ_CONFIG_FILE=$ETC/rabbitmq.conf RABBITMQ_CONF_ENV_FILE=/dev/null RABBITMQ_ENABLED_PLUGINS_FILE=$R/plugins \\
  RABBITMQ_PID_FILE=$RUN/rabbit.own RABBITMQ_DIST_PORT=$DIST_PORT RABBITMQ_GENERATED_CONFIG_DIR=$R \\
  ERL_EPMD_ADDRESS=127.0.0.1 ERL_EPMD_PORT=$EPMD_PORT RABBITMQ_IGNORE_SIGINT=true \\
  RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none'
C
echo '[].' >"$R/plugins"
# Only now: whoever takes a lab down that nobody uses must not find it empty while the database is made.
"$HB/../host/host.sh" lab up "$HB_LAB" "$HB_IP/24"
service mariadb 9>&-; service rabbitmq 9>&-
[ -z "$QUEUES" ] || service redis 9>&-
wait_for mariadb
for d in keystone heat; do
  echo "CREATE DATABASE IF NOT EXISTS $d; GRANT ALL ON $d.* TO $d@localhost IDENTIFIED BY '$DB_PASS';"
done | mariadb --no-defaults --socket="$RUN/mysql.sock" -uroot
lap "database" "$t"

# --- keystone, heat, swift and zaqar configuration -------------------------------------------------------
t=$EPOCHREALTIME
database() { echo "mysql+pymysql://$1:$DB_PASS@localhost/$1?unix_socket=$RUN/mysql.sock&charset=utf8mb3"; }
mkdir -p "$ETC/keystone/fernet-keys" "$ETC/keystone/credential-keys" "$ETC/heat/environment.d" "$ETC/heat/plugins"
cat >"$ETC/keystone/keystone.conf" <<C
[DEFAULT]
debug = ${HB_DEBUG:-false}
[database]
connection = $(database keystone)
[token]
provider = fernet
expiration = 14400
[fernet_tokens]
key_repository = $ETC/keystone/fernet-keys
[credential]
key_repository = $ETC/keystone/credential-keys
# stock: 15 minutes, after which every pre-signed signal URL of heat is 403
auth_ttl = ${HB_AUTH_TTL:-240}
[identity]
password_hash_rounds = 4
C
credentials() { cat <<C
auth_type = password
auth_url = $KS
username = heat
password = $HEAT_PASS
project_name = service
user_domain_id = default
project_domain_id = default
C
}
cat >"$ETC/heat/heat.conf" <<C
[DEFAULT]
debug = ${HB_DEBUG:-false}
transport_url = rabbit://hna:$AMQP_PASS@127.0.0.1:$AMQP_PORT/
heat_metadata_server_url = $CF
heat_waitcondition_server_url = $CF/v1/waitcondition
stack_user_domain_name = heat
stack_domain_admin = heat_domain_admin
stack_domain_admin_password = $DOMAIN_PASS
region_name_for_services = RegionOne
num_engine_workers = ${HB_ENGINE_WORKERS:-2}
auth_encryption_key = $AUTH_KEY
environment_dir = $ETC/heat/environment.d
template_dir = $ETC/heat/templates
plugin_dirs = $ETC/heat/plugins
[paste_deploy]
api_paste_config = $V/etc/heat/api-paste.ini
[database]
connection = $(database heat)
[oslo_policy]
policy_file = $ETC/heat/policy.yaml
[oslo_messaging_rabbit]
heartbeat_in_pthread = false
[oslo_concurrency]
lock_path = $HB_STATE/lock
[clients_keystone]
auth_uri = $KS
[ec2authtoken]
$(credentials)
[trustee]
$(credentials | grep -v ^project)
[keystone_authtoken]
# stock: 5 minutes, for so long a revoked token goes on
token_cache_time = 5
www_authenticate_uri = $KS
region_name = RegionOne
$(credentials)
C
# heat >= 22 enforces "role:heat_stack_user and project_id:%(project_id)s" for the cfn API but passes no
# target: with the stock policy every cfn action, and so POLL_SERVER_CFN, is 403 for everybody.
# HB_STOCK_POLICY=1 keeps that behaviour.
if [ -n "${HB_STOCK_POLICY:-}" ]; then echo '{}' >"$ETC/heat/policy.yaml"; else
  echo '"cloudformation:DescribeStackResource": "role:heat_stack_user or role:reader"' >"$ETC/heat/policy.yaml"
fi
# One replica in a folder, and nothing behind the proxy that a client could reach past it.
mkdir -p "$ETC/swift" "$HB_STATE/swift/d1"
cat >"$ETC/swift/swift.conf" <<C
[swift-hash]
swift_hash_path_suffix = $AUTH_KEY
[storage-policy:0]
name = one
default = yes
C
for s in account:$((SWIFT_PORT + 1)) container:$((SWIFT_PORT + 2)) object:$((SWIFT_PORT + 3)); do
  port=${s#*:} s=${s%:*}
  if [ ! -e "$ETC/swift/$s.ring.gz" ]; then
    ring() { "$V/bin/swift-ring-builder" "$ETC/swift/$s.builder" "$@" >>"$LOG/swift-ring.log" 2>&1; }
    ring create 4 1 0
    ring add --region 1 --zone 1 --ip 127.0.0.1 --port "$port" --device d1 --weight 1
    ring rebalance || [ $? = 1 ] # 1: a warning
  fi
  cat >"$ETC/swift/$s.conf" <<C
[DEFAULT]
user = root
swift_dir = $ETC/swift
devices = $HB_STATE/swift
mount_check = false
bind_port = $port
[pipeline:main]
pipeline = $s-server
[app:$s-server]
use = egg:swift#$s
C
done
cat >"$ETC/swift/proxy.conf" <<C
[DEFAULT]
user = root
swift_dir = $ETC/swift
[pipeline:main]
pipeline = catch_errors gatekeeper healthcheck tempurl authtoken keystoneauth copy versioned_writes proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
[filter:healthcheck]
use = egg:swift#healthcheck
[filter:tempurl]
use = egg:swift#tempurl
[filter:copy]
use = egg:swift#copy
[filter:versioned_writes]
use = egg:swift#versioned_writes
allow_versioned_writes = true
[filter:keystoneauth]
use = egg:swift#keystoneauth
operator_roles = admin, member
[filter:authtoken]
paste.filter_factory = keystonemiddleware.auth_token:filter_factory
www_authenticate_uri = $KS
delay_auth_decision = true
$(credentials)
C
mkdir -p "$ETC/zaqar"
cat >"$ETC/zaqar/zaqar.conf" <<C
[DEFAULT]
debug = ${HB_DEBUG:-false}
auth_strategy = keystone
[drivers]
message_store = redis
management_store = redis
[drivers:message_store:redis]
# stock: a tenth of a second, which a busy machine does not keep
uri = redis://$RUN/redis.sock?socket_timeout=30
[drivers:management_store:redis]
uri = redis://$RUN/redis.sock?socket_timeout=30
[signed_url]
secret_key = $AUTH_KEY
[keystone_authtoken]
token_cache_time = 5
www_authenticate_uri = $KS
$(credentials)
C
# What heat's engine needs to do its part here:
# * Its first object of a TEMP_URL_SIGNAL wait condition, which it reads as bytes, is compared with a text (heat 27): not
#   equal, so the condition fails on "Failed to parse JSON data: b'in progress'" before anybody signals. (SwiftSignal
#   decodes it.) On a stock heat no guest can complete such a condition.
# * It asks Nova whether the server still exists before it waits for a DELETE deployment. There is no Nova here, but in tests/cloud.
cat >"$ETC/heat/plugins/here.py" <<C
from heat.engine.clients.os import swift


class Both(str):
    def __eq__(self, other):
        return str(self) == (other.decode() if isinstance(other, bytes) else other)
    __hash__ = str.__hash__


swift.IN_PROGRESS = Both(swift.IN_PROGRESS)
C
[ -n "${HB_BESIDE:-}" ] || cat >>"$ETC/heat/plugins/here.py" <<C

from heat.engine.clients.os import nova
nova.NovaClientPlugin.get_server = lambda self, server: server
C
cp -n "$V"/etc/heat/environment.d/* "$ETC/heat/environment.d/" 2>/dev/null || :
if [ ! -e "$HB_STATE/.synced" ]; then
  manage() { in_lab nice "$V/bin/keystone-manage" --config-file "$ETC/keystone/keystone.conf" "$@" >>"$LOG/keystone-manage.log" 2>&1; }
  ( manage db_sync && manage fernet_setup --keystone-user root --keystone-group root &&
    manage credential_setup --keystone-user root --keystone-group root &&
    OS_BOOTSTRAP_PASSWORD=$ADMIN_PASS manage bootstrap --bootstrap-region-id RegionOne \
      --bootstrap-admin-url "$KS" --bootstrap-public-url "$KS" --bootstrap-internal-url "$KS" ) & k=$!
  ( in_lab nice "$V/bin/heat-manage" --config-file "$ETC/heat/heat.conf" db_sync >>"$LOG/heat-manage.log" 2>&1 ) & h=$!
  wait $k || { tail -n 20 "$LOG/keystone-manage.log" >&2; die "keystone-manage"; }
  wait $h || { tail -n 20 "$LOG/heat-manage.log" >&2; die "heat-manage db_sync"; }
  touch "$HB_STATE/.synced"
fi
lap "configuration, schema" "$t"

# --- services -------------------------------------------------------------------------------------
t=$EPOCHREALTIME
cat >"$HB_STATE/openrc" <<C
export OS_IDENTITY_API_VERSION=3 OS_AUTH_URL=$KS/v3 OS_REGION_NAME=RegionOne
export OS_USERNAME=demo OS_PASSWORD=$DEMO_PASS OS_PROJECT_NAME=demo
export OS_USER_DOMAIN_ID=default OS_PROJECT_DOMAIN_ID=default
C
rm -f "$HB_STATE/token"
export OS_AUTH_URL=$KS/v3 OS_PASSWORD=$DEMO_PASS
service keystone 9>&-
for s in rabbitmq ${QUEUES:+redis}; do wait_for "$s"; done
# these start while keystone does: they ask it nothing before their first request
for s in heat-engine heat-api heat-api-cfn swift $QUEUES; do service "$s" 9>&-; done
wait_for keystone
if [ ! -e "$HB_STATE/.seeded-swift$QUEUES" ]; then
  in_lab "$HB_PY" -B "$HB/seed.py" "$KS" "$HT" "$CF" "$SW" "${QUEUES:+$ZQ}" RegionOne
  touch "$HB_STATE/.seeded-swift$QUEUES"
fi
for s in heat-api heat-api-cfn heat-engine swift $QUEUES; do wait_for "$s"; done
lap "services" "$t"
lap "total" "$T0"
