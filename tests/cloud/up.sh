#!/bin/bash
# A real Keystone, Glance, Placement, Nova, Neutron, Cinder, Magnum and Heat, in the network namespace lab-openstack on 10.77.0.1; as root,
# without systemd, idempotent. Nova's hosts are its own fake driver, Cinder's volumes too; Neutron binds ports for which nobody moves a packet.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
"$HB/up.sh"
exec 9>"$HB_DIR/.lock"; flock 9
T0=$EPOCHREALTIME
lap() { printf '%-24s %6.1f s\n' "$1" "$(echo "$EPOCHREALTIME - $2" | bc)" | tee -a "$HB_STATE/times" >&2; }
umask 077

SECRETS=$HB_STATE/secrets
grep -q ^CLOUD_PASS= "$SECRETS" || echo "CLOUD_PASS=$(head -c 18 /dev/urandom | base64 | tr '+/' 'ab')" >>"$SECRETS"
set -a; . "$SECRETS"; set +a

# --- databases, configuration, schema ---------------------------------------------------------------
t=$EPOCHREALTIME
for d in $DATABASES; do
  echo "CREATE DATABASE IF NOT EXISTS $d; GRANT ALL ON $d.* TO $d@localhost IDENTIFIED BY '$DB_PASS';"
done | mariadb --no-defaults --socket="$RUN/mysql.sock" -uroot
database() { echo "mysql+pymysql://$1:$DB_PASS@localhost/$1?unix_socket=$RUN/mysql.sock&charset=utf8mb3"; }
# as USER [SECTION]: who a service is to Keystone and to the others
as() { cat <<C
[${2:-keystone_authtoken}]
auth_type = password
auth_url = $KS/v3
username = $1
password = $CLOUD_PASS
project_name = service
user_domain_id = default
project_domain_id = default
region_name = RegionOne
C
  if [ -z "${2:-}" ]; then
    printf '%s\n' "www_authenticate_uri = $KS" "service_token_roles = service" "service_token_roles_required = true"
  fi
}
common() { cat <<C
[DEFAULT]
debug = ${HB_DEBUG:-false}
transport_url = rabbit://hna:$AMQP_PASS@127.0.0.1:$AMQP_PORT/
state_path = $HB_STATE/$1
my_ip = $HB_IP
[oslo_messaging_rabbit]
heartbeat_in_pthread = false
[oslo_concurrency]
lock_path = $HB_STATE/lock
C
}
for s in glance placement nova neutron cinder magnum; do mkdir -p "$ETC/$s" "$HB_STATE/$s"; done
mkdir -p "$HB_STATE/lock" "$HB_STATE/glance"/{images,staging,tasks}

{ printf '%s\n' '[DEFAULT]' 'enabled_backends = file:file' "node_staging_uri = file://$HB_STATE/glance/staging" \
    "worker_self_reference_url = http://$HB_IP:$GLANCE_PORT" \
    '[glance_store]' 'default_backend = file' '[file]' "filesystem_store_datadir = $HB_STATE/glance/images" \
    '[os_glance_staging_store]' "filesystem_store_datadir = $HB_STATE/glance/staging" \
    '[os_glance_tasks_store]' "filesystem_store_datadir = $HB_STATE/glance/tasks" \
    '[database]' "connection = $(database glance)" \
    '[paste_deploy]' 'flavor = keystone' "config_file = $V/etc/glance/glance-api-paste.ini"
  as glance; } >"$ETC/glance/glance-api.conf"

{ printf '%s\n' '[placement_database]' "connection = $(database placement)" '[api]' 'auth_strategy = keystone'
  as placement; } >"$ETC/placement/placement.conf"

cp "$V/etc/nova/api-paste.ini" "$ETC/nova/"
{ common nova
  cat <<C
[DEFAULT]
compute_driver = fake.FakeDriver
[api]
auth_strategy = keystone
[api_database]
connection = $(database nova_api)
[database]
connection = $(database nova)
[glance]
api_servers = http://$HB_IP:$GLANCE_PORT
[cinder]
catalog_info = volumev3:cinder:publicURL
os_region_name = RegionOne
[vnc]
enabled = false
[service_user]
send_service_user_token = true
C
  as nova; as nova service_user; as nova neutron; as nova placement; as nova cinder; } >"$ETC/nova/nova.conf"
for c in $COMPUTES; do
  c=${c#nova-}
  mkdir -p "$HB_STATE/nova/$c"
  printf '%s\n' '[DEFAULT]' "host = $c" "state_path = $HB_STATE/nova/$c" >"$ETC/nova/$c.conf"
done

# Neutron finds mechanism drivers by the entry points of installed packages.
mkdir -p "$ETC/cloud-plugins/cloud_ports-1.dist-info"
printf 'Metadata-Version: 2.1\nName: cloud-ports\nVersion: 1\n' >"$ETC/cloud-plugins/cloud_ports-1.dist-info/METADATA"
printf '[neutron.ml2.mechanism_drivers]\nbound = cloud_ports:Bound\n' >"$ETC/cloud-plugins/cloud_ports-1.dist-info/entry_points.txt"
{ common neutron
  cat <<C
[DEFAULT]
core_plugin = ml2
service_plugins = router
api_paste_config = $V/etc/neutron/api-paste.ini
notify_nova_on_port_status_changes = false
notify_nova_on_port_data_changes = false
[database]
connection = $(database neutron)
[ml2]
type_drivers = flat,vxlan
tenant_network_types = vxlan
mechanism_drivers = bound
extension_drivers = port_security
[ml2_type_flat]
flat_networks = outside
[ml2_type_vxlan]
vni_ranges = 1:1000
C
  as neutron; } >"$ETC/neutron/neutron.conf"

{ common cinder
  cat <<C
[DEFAULT]
auth_strategy = keystone
api_paste_config = $V/etc/cinder/api-paste.ini
resource_query_filters_file = $V/etc/cinder/resource_filters.json
enabled_backends = fake
glance_api_servers = http://$HB_IP:$GLANCE_PORT
[fake]
volume_driver = cloud_volumes.Roomy
volume_backend_name = fake
[coordination]
backend_url = file://$HB_STATE/cinder/coordination
[database]
connection = $(database cinder)
[service_user]
send_service_user_token = true
C
  as cinder; as cinder service_user; as cinder nova; } >"$ETC/cinder/cinder.conf"

# Where its conductor cannot say why it refuses, the API waits: a minute by default.
{ common magnum
  cat <<C
[DEFAULT]
rpc_response_timeout = 10
[api]
host = $HB_IP
port = $MAGNUM_PORT
api_paste_config = $V/etc/magnum/api-paste.ini
[certificates]
cert_manager_type = x509keypair
[database]
connection = $(database magnum)
[trust]
trustee_domain_name = magnum
trustee_domain_admin_name = magnum_domain_admin
trustee_domain_admin_password = $CLOUD_PASS
trustee_domain_admin_domain_name = magnum
trustee_keystone_interface = public
C
  as magnum; as magnum keystone_auth; } >"$ETC/magnum/magnum.conf"

if [ ! -e "$HB_STATE/.cloud-synced" ]; then
  export PYTHONPATH=$ETC/cloud-plugins:$CL/plugins
  with() { in_lab nice "$V/bin/$1" --config-file "$ETC/$2" "${@:3}" >>"$LOG/$1.log" 2>&1 || { tail -n 20 "$LOG/$1.log" >&2; die "$*"; }; }
  nova() { with nova-manage nova/nova.conf "$@"; }
  ( with glance-manage glance/glance-api.conf db_sync; with placement-manage placement/placement.conf db sync; with cinder-manage cinder/cinder.conf db sync ) & a=$!
  ( with neutron-db-manage neutron/neutron.conf upgrade heads; with magnum-db-manage magnum/magnum.conf upgrade ) & b=$!
  nova api_db sync
  nova cell_v2 map_cell0 --database_connection "$(database nova_cell0)"
  nova cell_v2 list_cells
  grep -q cell1 "$LOG/nova-manage.log" || nova cell_v2 create_cell --name cell1
  nova db sync
  wait $a; wait $b
  touch "$HB_STATE/.cloud-synced"
fi
lap "cloud's schema" "$t"

# --- services -------------------------------------------------------------------------------------
t=$EPOCHREALTIME
ENDPOINTS=("glance:image:http://$HB_IP:$GLANCE_PORT" "placement:placement:http://$HB_IP:$PLACEMENT_PORT"
  "nova:compute:http://$HB_IP:$NOVA_PORT/v2.1" "neutron:network:http://$HB_IP:$NEUTRON_PORT"
  "cinder:volumev3:http://$HB_IP:$CINDER_PORT/v3/%(project_id)s" "magnum:container-infra:http://$HB_IP:$MAGNUM_PORT/v1")
export OS_AUTH_URL=$KS/v3 OS_REGION_NAME=RegionOne
[ -e "$HB_STATE/.cloud-users" ] || { in_lab "$HB_PY" -B "$CL/seed.py" users "${ENDPOINTS[@]}" && touch "$HB_STATE/.cloud-users"; }
rm -f "$HB_STATE/token" # it holds a catalog
# Nova's conductor and scheduler end where Placement does not answer yet.
service placement 9>&-; wait_for placement
for s in $CLOUD $COMPUTES; do service "$s" 9>&-; done
for s in $CLOUD $COMPUTES; do wait_for "$s"; done
# shellcheck disable=SC2086 # a list
in_lab "$HB_PY" -B "$CL/seed.py" ready $COMPUTES
if [ ! -e "$HB_STATE/.cloud-seeded" ]; then
  in_lab nice "$V/bin/nova-manage" --config-file "$ETC/nova/nova.conf" cell_v2 discover_hosts >>"$LOG/nova-manage.log" 2>&1
  in_lab "$HB_PY" -B "$CL/seed.py" objects
  touch "$HB_STATE/.cloud-seeded"
fi
lap "cloud's services" "$t"
lap "cloud, total" "$T0"
