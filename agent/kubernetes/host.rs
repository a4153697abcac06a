//! What every node needs of its host: kernel modules, kernel settings, directories.
//!
//! The agent loads and sets nothing itself: it writes the files that the distribution's own units
//! apply, at this boot and at every later one, and a gate measures the effect.

use std::collections::BTreeSet;

use crate::desired::{Desired, Directory, File, Gate, Need, Owner, Probe, Unit};
use crate::order::gather;

const MODULES_FILE: &str = "/etc/modules-load.d/heat-node-agent.conf";
const SYSCTL_FILE: &str = "/etc/sysctl.d/90-heat-node-agent.conf";
const MODULES_UNIT: &str = "systemd-modules-load.service";
const SYSCTL_UNIT: &str = "systemd-sysctl.service";

const MODULES: &str = "\
# Made by heat-node-agent.
# br_netfilter: iptables sees the traffic of bridges; overlay: the storage driver of the container runtime.
br_netfilter
overlay
";

const SETTINGS: &str = "\
# Made by heat-node-agent.
# A node routes between its pods and the network, and kube-proxy's rules must see bridged packets.
net.ipv4.ip_forward = 1
net.bridge.bridge-nf-call-iptables = 1
net.bridge.bridge-nf-call-ip6tables = 1
";

/// Refuses on a copy of a disk; its unit comes with the agent.
pub const GUARD: &str = "heat-node-agent-guard.service";

/// In the unit section of every service that holds a membership, keys or containers: on a copy of a disk it must not start
/// as the instance that the disk was copied from.
pub(super) const GUARDED: &str = "\
# Not as another instance, if this disk is a copy.
Requires=heat-node-agent-guard.service
After=heat-node-agent-guard.service
";

/// Adds the host's part.
pub(super) fn add(desired: &mut Desired) {
    for path in ["/etc/kubernetes", "/srv/kubernetes"] {
        desired.directories.push(directory(path));
    }
    desired.files.push(File::public(MODULES_FILE, MODULES));
    desired.files.push(File::public(SYSCTL_FILE, SETTINGS));
    let modules: BTreeSet<_> = gather([MODULES_FILE.to_owned()]);
    desired.units.push(helper(MODULES_UNIT, modules.clone(), BTreeSet::new()));
    // The bridge settings exist only once br_netfilter is loaded, so new modules mean that settings are applied again.
    let settings = gather(modules.into_iter().chain([SYSCTL_FILE.to_owned()]));
    desired.units.push(helper(SYSCTL_UNIT, settings, gather([Need::Unit(MODULES_UNIT.to_owned())])));
    desired.gates.push(Gate {
        name: "sysctl".to_owned(),
        unit: Some(SYSCTL_UNIT.to_owned()),
        probe: Probe::Sysctl(vec![("net/ipv4/ip_forward".to_owned(), 1), ("net/bridge/bridge-nf-call-iptables".to_owned(), 1)]),
        consecutive: 1,
        needs: gather([Need::Unit(SYSCTL_UNIT.to_owned())]),
        remedy: format!("`journalctl -u {MODULES_UNIT} -u {SYSCTL_UNIT}`; look for a file in /etc/sysctl.d that sorts after 90-heat-node-agent.conf"),
    });
}

/// A root-owned directory that everybody may enter.
pub(super) fn directory(path: &str) -> Directory {
    Directory { path: path.to_owned(), mode: 0o755, owner: Owner::root(), needs: BTreeSet::new() }
}

fn helper(name: &str, restart_on: BTreeSet<String>, needs: BTreeSet<Need>) -> Unit {
    // The distribution enables these by itself.
    Unit { name: name.to_owned(), enable: false, restart_on, needs, applies_files: true }
}
