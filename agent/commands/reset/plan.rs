//! What a reset does, in which order, and what it refuses: pure.

use crate::desired::{Content, Desired, DiskName, Volume};
use crate::error::{Error, Result};
use crate::keepers::membership::leave::{LeavingMember, Member, OnUnable, plan_departure};
use crate::report::text::{argument, escaped};

/// What the command line says.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    /// Only list what would be done.
    pub dry_run: bool,
    /// The node's volumes are wiped.
    pub volumes: bool,
    /// The serial of each, as the operator typed it.
    pub serials: Vec<String>,
    /// Go on although etcd loses its quorum or cannot be asked.
    pub abandon_etcd: bool,
}

impl Arguments {
    /// What is done about a member of etcd that cannot leave.
    pub(super) fn on_unable(&self) -> OnUnable {
        if self.abandon_etcd { OnUnable::Abandon } else { OnUnable::Refuse }
    }
}

/// What was found on the machine.
#[derive(Clone, Debug)]
pub(super) struct ResetFacts {
    /// What the newest generation asks for, and the one before it until the newest is in place.
    pub(super) asked: Vec<Desired>,
    /// Scripts and hooks that run now.
    pub(super) running: Vec<String>,
    /// The node's member of etcd.
    pub(super) member: Member,
}

/// One thing that is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ResetStep {
    /// The agent is stopped and disabled.
    StopAgent,
    /// This member leaves etcd's cluster.
    LeaveEtcd(LeavingMember),
    /// The agent's rules leave the host's firewall.
    ClearFirewall,
    /// These units are stopped, in this order, and disabled.
    StopUnits(Vec<String>),
    /// What made the node known to others is removed.
    RemoveMemberships,
    /// These directories are no mount points of volumes any more.
    Unmount(Vec<String>),
    /// Files, keys and drop-ins are removed.
    RemoveFiles,
    /// This volume is overwritten with zeros.
    Wipe(DiskName),
    /// The agent's own state is removed.
    RemoveState,
}

impl ResetStep {
    /// As one reads it.
    pub(super) fn text(&self) -> String {
        match self {
            Self::StopAgent => "stop and disable heat-node-agent.service".to_owned(),
            Self::LeaveEtcd(own) => format!("remove this node's member {} from etcd's cluster", own.id),
            Self::ClearFirewall => "remove the agent's rules from the host's firewall".to_owned(),
            Self::StopUnits(units) => format!("stop and disable {}", units.join(", ")),
            Self::RemoveMemberships => {
                "remove etcd's member data, docker's containers and the kubelet's keys from the root disk".to_owned()
            }
            Self::Unmount(places) => format!("unmount {}; what is on the volumes stays", places.join(", ")),
            Self::RemoveFiles => "remove the files, keys and drop-ins that the agent wrote".to_owned(),
            Self::Wipe(disk) => format!("overwrite all of volume {disk} with zeros"),
            Self::RemoveState => "remove the agent's state".to_owned(),
        }
    }
}

/// The steps, in their order.
///
/// # Errors
/// If the reset must not be done as it is asked for; nothing was changed then.
pub(super) fn steps(found: &ResetFacts, wanted: &Arguments) -> Result<Vec<ResetStep>> {
    if let Some(name) = found.running.first() {
        let id = argument(name);
        return Err(Error::refused(format!("deployment {} is running", escaped(name)))
            .rule("a node is not taken out while a script or hook works on it")
            .remedy(format!("wait for its end (`heat-node-agent status --wait`), or `heat-node-agent stop {id}`")));
    }
    let wiped = wiped(found, wanted)?;
    let departure = plan_departure(&found.member, wanted.on_unable())?;
    let units = units(&found.asked);
    let places: Vec<String> =
        volumes(&found.asked).filter(|one| one.content != Content::ThinPool).fold(Vec::new(), |mut all, one| {
            if !all.contains(&one.mount_point) {
                all.push(one.mount_point.clone());
            }
            all
        });
    let mut steps = vec![ResetStep::StopAgent];
    steps.extend(departure.map(ResetStep::LeaveEtcd));
    steps.extend([ResetStep::ClearFirewall, ResetStep::StopUnits(units), ResetStep::RemoveMemberships]);
    steps.extend(Some(places).filter(|places| !places.is_empty()).map(ResetStep::Unmount));
    steps.push(ResetStep::RemoveFiles);
    steps.extend(wiped.into_iter().map(ResetStep::Wipe));
    steps.push(ResetStep::RemoveState);
    Ok(steps)
}

/// The volumes to wipe: all that the node has, each by the serial that was typed.
fn wiped(found: &ResetFacts, wanted: &Arguments) -> Result<Vec<DiskName>> {
    let mut disks: Vec<&Volume> = Vec::new();
    for volume in volumes(&found.asked) {
        if !disks.iter().any(|one| one.disk == volume.disk) {
            disks.push(volume);
        }
    }
    let names = || disks.iter().map(|volume| volume.disk.as_str()).collect::<Vec<_>>().join(", ");
    if let Some(other) = wanted.serials.iter().find(|serial| !disks.iter().any(|volume| volume.disk.as_str() == *serial)) {
        let there = if disks.is_empty() { "it has none".to_owned() } else { format!("it has {}", names()) };
        return Err(
            Error::refused(format!("{other} is no volume of this node: {there}")).rule("only the node's own volumes are wiped")
        );
    }
    if !wanted.volumes {
        return Ok(Vec::new());
    }
    if let Some(missing) = disks.iter().find(|volume| !wanted.serials.iter().any(|serial| serial == volume.disk.as_str())) {
        return Err(Error::refused(format!("--volumes without the serial of the {} volume", missing.role))
            .rule("everything on a volume that is wiped is lost: the serial of each is to be typed")
            .remedy(format!("add --serial {}, if that volume is to be wiped", missing.disk)));
    }
    if let Some(pool) = disks.iter().find(|volume| volume.content == Content::ThinPool) {
        return Err(Error::refused(format!("volume {} holds a thin pool, which is not wiped by this command", pool.disk))
            .remedy("reset without --volumes, then `vgremove docker` and `pvremove` of its disk"));
    }
    Ok(disks.into_iter().map(|volume| volume.disk.clone()).collect())
}

fn volumes(asked: &[Desired]) -> impl Iterator<Item = &Volume> {
    asked.iter().flat_map(|desired| &desired.volumes)
}

/// The units that the node runs, the last that was started first; each once.
fn units(asked: &[Desired]) -> Vec<String> {
    let mut units: Vec<String> = Vec::new();
    for unit in asked.iter().flat_map(|desired| desired.units.iter().rev()) {
        if !unit.applies_files && !units.contains(&unit.name) {
            units.push(unit.name.clone());
        }
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keepers::membership::leave::OwnMembership;
    use crate::kubernetes::{self, ImagePolicy, MachineFacts};
    use crate::metadata::Deployment;

    const VDB: &str = "7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4";
    const VDC: &str = "e41b7f92-0c6d-4f0a-b1d7-58a2f3c9d610";

    fn found(member: Member) -> ResetFacts {
        let inputs = serde_json::json!({"ROLE": "master", "INSTANCE_NAME": "m", "KUBE_NODE_IP": "192.0.2.1", "CLUSTER_UUID": VDC,
            "TLS_DISABLED": "True", "DOCKER_VOLUME": VDB, "ETCD_VOLUME": VDC});
        let entry = serde_json::json!({"id": "i", "group": "kubernetes-node", "config": inputs});
        let spec = kubernetes::node_of(&Deployment::parse(&entry).unwrap().unwrap(), &ImagePolicy::everything()).unwrap();
        ResetFacts { asked: vec![kubernetes::render(&spec, &MachineFacts::default()).unwrap()], running: Vec::new(), member }
    }

    fn of(all: usize, unhealthy: &[&str]) -> Member {
        let unhealthy = unhealthy.iter().map(|&name| name.to_owned()).collect();
        Member::Of(OwnMembership { id: 77, all, unhealthy, others: leaving().others })
    }

    fn leaving() -> LeavingMember {
        LeavingMember { id: 77, others: vec!["https://192.0.2.2:2379".into()] }
    }

    #[test]
    fn membership_goes_first_then_services_then_files_then_volumes_and_the_state_last() {
        let wanted = Arguments { volumes: true, serials: vec![VDC.into(), VDB.into()], ..Arguments::default() };
        let steps = steps(&found(of(3, &[])), &wanted).unwrap();
        assert_eq!(
            steps,
            [
                ResetStep::StopAgent,
                ResetStep::LeaveEtcd(leaving()),
                ResetStep::ClearFirewall,
                ResetStep::StopUnits(vec!["docker.service".into(), "etcd.service".into()]),
                ResetStep::RemoveMemberships,
                ResetStep::Unmount(vec!["/var/lib/etcd".into(), "/var/lib/docker".into()]),
                ResetStep::RemoveFiles,
                ResetStep::Wipe(DiskName::Cinder(VDC.into())),
                ResetStep::Wipe(DiskName::Cinder(VDB.into())),
                ResetStep::RemoveState,
            ]
        );
    }

    #[test]
    fn a_member_leaves_only_where_more_than_half_of_the_others_are_healthy() {
        let unknown = || Member::Unknown("no answer".into());
        for (member, abandons, expected) in [
            (Member::None, false, Ok(None)),
            (of(3, &[]), false, Ok(Some(77))),
            (of(2, &[]), false, Ok(Some(77))),
            (of(4, &["a"]), false, Ok(Some(77))),
            (of(3, &["a"]), false, Err("lose its quorum")),
            (of(5, &["a", "b"]), false, Err("lose its quorum")),
            (of(3, &["a"]), true, Ok(None)),
            (of(1, &[]), false, Err("the only member")),
            (of(1, &[]), true, Ok(None)),
            (unknown(), false, Err("cannot list etcd's members")),
            (unknown(), true, Ok(None)),
            (Member::Leaving(leaving()), false, Ok(Some(77))),
            (Member::Leaving(leaving()), true, Ok(None)),
        ] {
            let wanted = Arguments { abandon_etcd: abandons, ..Arguments::default() };
            match (steps(&found(member.clone()), &wanted), expected) {
                (Ok(steps), Ok(id)) => {
                    let left =
                        steps.iter().find_map(|step| if let ResetStep::LeaveEtcd(own) = step { Some(own.id) } else { None });
                    assert_eq!(left, id, "{member:?}");
                }
                (Err(error), Err(words)) => assert!(error.cause().contains(words), "{error}"),
                (other, _) => panic!("{member:?} {abandons}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_volume_is_wiped_only_by_its_own_serial_and_nothing_while_a_script_runs() {
        let refused = |found: ResetFacts, volumes, serials: &[&str]| {
            let serials = serials.iter().map(|&serial| serial.to_owned()).collect();
            steps(&found, &Arguments { volumes, serials, ..Arguments::default() }).err().map(|error| error.cause().to_owned())
        };
        let node = || found(Member::None);
        assert_eq!(refused(node(), false, &[]), None);
        assert_eq!(refused(node(), true, &[VDB, VDC]), None);
        assert!(refused(node(), true, &[VDB]).unwrap().contains("without the serial of the etcd volume"));
        assert!(refused(node(), true, &[VDB, VDC, "7c1f4d0e"]).unwrap().contains("7c1f4d0e is no volume of this node"));
        let busy = ResetFacts { running: vec!["setup".into()], ..node() };
        assert!(refused(busy, false, &[]).unwrap().contains("setup is running"));
        let hostile = ResetFacts { running: vec!["$(reboot)".into()], ..node() };
        let remedy = steps(&hostile, &Arguments::default()).unwrap_err().suggested_remedy().unwrap_or_default().to_owned();
        assert!(remedy.ends_with("`heat-node-agent stop '$(reboot)'`"), "{remedy}");
        let mut pool = node();
        pool.asked[0].volumes[0].content = Content::ThinPool;
        assert!(refused(pool.clone(), true, &[VDB, VDC]).unwrap().contains("thin pool"));
        let unmounted = steps(&pool, &Arguments::default()).unwrap();
        assert!(unmounted.contains(&ResetStep::Unmount(vec!["/var/lib/docker".into()])), "{unmounted:?}");
    }
}
