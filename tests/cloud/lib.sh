# shellcheck shell=bash disable=SC2034 # who sources it uses it
# Settings and services of the cloud beside the Heat of tests/heat (sourced, never run): the same Keystone, database, queue and scripts, in a
# folder and a namespace of its own.
CL=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export HNA_HEAT_DIR=${HNA_HEAT_DIR:-$CL/../../target/cloud} HB_LAB=${HB_LAB:-openstack} HB_LOCK=$CL/cloud.lock
# Three hosts: what must not share one finds room.
COMPUTES="nova-compute-1 nova-compute-2 nova-compute-3"
CLOUD="glance placement nova-api nova-conductor nova-scheduler neutron cinder-api cinder-scheduler cinder-volume magnum-api magnum-conductor"
export HB_BESIDE="$CLOUD $COMPUTES"
. "$CL/../heat/lib.sh"
GLANCE_PORT=9292 PLACEMENT_PORT=8778 NOVA_PORT=8774 NEUTRON_PORT=9696 CINDER_PORT=8776 MAGNUM_PORT=9511
DATABASES="glance placement nova_api nova_cell0 nova neutron cinder magnum"

serve() { # NAME PORT CONFIG
  HB_ACCESS=$LOG/access-$1.log start "$1" "$V/bin/python" -B "$HB/serve.py" "$1" "$2" "$3"
}
other_service() {
  export PYTHONPATH=$ETC/cloud-plugins:$CL/plugins
  case $1 in
  glance) serve glance $GLANCE_PORT "$ETC/glance/glance-api.conf" ;;
  placement) serve placement $PLACEMENT_PORT "$ETC/placement/placement.conf" ;;
  nova-api) serve nova-api $NOVA_PORT "$ETC/nova/nova.conf" ;;
  nova-compute-*) start "$1" "$V/bin/nova-compute" --config-file "$ETC/nova/nova.conf" --config-file "$ETC/nova/${1#nova-}.conf" ;;
  nova-*) start "$1" "$V/bin/$1" --config-file "$ETC/nova/nova.conf" ;;
  neutron) serve neutron $NEUTRON_PORT "$ETC/neutron/neutron.conf" ;;
  cinder-api) serve cinder-api $CINDER_PORT "$ETC/cinder/cinder.conf" ;;
  cinder-*) start "$1" "$V/bin/$1" --config-file "$ETC/cinder/cinder.conf" ;;
  magnum-api) serve magnum-api $MAGNUM_PORT "$ETC/magnum/magnum.conf" ;;
  magnum-conductor) start "$1" "$V/bin/$1" --config-file "$ETC/magnum/magnum.conf" ;;
  *) die "no service $1" ;;
  esac
}
# Of those without a port seed.py asks Nova and Cinder whether they are up.
other_answering() {
  case $1 in
  glance) in_lab curl -s -o /dev/null "http://$HB_IP:$GLANCE_PORT/" ;;
  placement) in_lab curl -sf -o /dev/null "http://$HB_IP:$PLACEMENT_PORT/" ;;
  nova-api) in_lab curl -sf -o /dev/null "http://$HB_IP:$NOVA_PORT/" ;;
  neutron) in_lab curl -sf -o /dev/null "http://$HB_IP:$NEUTRON_PORT/" ;;
  cinder-api) in_lab curl -s -o /dev/null "http://$HB_IP:$CINDER_PORT/" ;;
  magnum-api) in_lab curl -sf -o /dev/null "http://$HB_IP:$MAGNUM_PORT/" ;;
  *) running "$1" ;;
  esac
}
