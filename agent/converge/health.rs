//! Looks at the places of stores while their services run. Reads only.

use std::path::Path;

use nix::sys::statvfs::{FsFlags, statvfs};

use super::observed::Observed;
use crate::desired::DiskName;
use crate::storage::identity::matching;

use crate::desired::{Content, Desired, GateProbe, Volume, VolumeRole};
use crate::error::Error;
use crate::files::Tree;
use crate::identity::Identity;
use crate::report::{Code, Event, Phase};
use crate::storage::health::{StoreObservation, problem};
use crate::storage::probe::Disk;

/// Something that is wrong with a store.
#[derive(Debug)]
pub struct StoreProblem {
    role: String,
    /// The volume whose disk is away.
    without_disk: Option<VolumeRole>,
    fact: String,
    error: Error,
}

impl StoreProblem {
    /// The volume whose disk is away.
    #[must_use]
    pub fn lost(&self) -> Option<VolumeRole> {
        self.without_disk
    }

    /// The event that reports it.
    #[must_use]
    pub fn event(&self) -> Event {
        Event::new(Code::VolumeUnhealthy, self.error.to_string()).phase(Phase::Volume).step(&self.role).error(&self.error)
    }

    /// Whether its disk is away and nothing is in its place. So it looks at a boot, too, until udev has come to the disk's links.
    #[must_use]
    pub fn awaits_disk(&self, observed: &Observed) -> bool {
        self.without_disk.is_some_and(|role| !observed.mounted.contains(&role))
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        self.error.suggested_remedy().map(str::to_owned)
    }

    /// The volume's role, or the directory where it is on none.
    #[must_use]
    pub fn store(&self) -> &str {
        &self.role
    }

    /// In a few words.
    #[must_use]
    pub fn fact(&self) -> &str {
        &self.fact
    }

    /// In one line.
    #[must_use]
    pub fn cause(&self) -> String {
        self.error.to_string()
    }
}

/// What is wrong with the node's stores: those of volumes, which lie on one of the disks, and the runtime's wherever it is.
#[must_use]
pub fn problems(desired: &Desired, root: &Tree, disks: &[Disk]) -> Vec<StoreProblem> {
    let mut found = Vec::new();
    let on_volumes = desired.volumes.iter().map(|volume| (volume.mount_point.as_str(), Some(volume)));
    let elsewhere = desired.gates.iter().filter_map(|gate| match &gate.probe {
        GateProbe::Store(store) if desired.volumes.iter().all(|volume| volume.mount_point != store.path) => {
            Some((store.path.as_str(), None))
        }
        _ => None,
    });
    for (path, volume) in on_volumes.chain(elsewhere) {
        let gone = volume.is_some_and(|volume| !is_attached(disks, volume));
        let signs = signs(root, path, volume, gone);
        let role = volume.map_or_else(|| path.to_owned(), |volume| volume.role.as_str().to_owned());
        let without_disk = volume.filter(|_| gone).map(|volume| volume.role);
        found.extend(problem(path, &signs).map(|(fact, error)| StoreProblem { role, without_disk, fact, error }));
    }
    found
}

fn signs(root: &Tree, path: &str, volume: Option<&Volume>, gone: bool) -> StoreObservation {
    // Of a thin pool nothing is mounted: the directory lies on the root disk.
    let named = volume.filter(|volume| gone || volume.content != Content::ThinPool);
    let mut signs =
        StoreObservation { volume: named.map(|volume| volume.disk.as_str().to_owned()), gone, ..StoreObservation::default() };
    if gone {
        signs.server = Identity::server(root);
    }
    let place = Path::new(path);
    // A store that is not there is found by whoever looks at its service.
    if gone || root.facts(place).is_ok_and(|facts| facts.is_none()) {
        return signs;
    }
    if let Err(error) = root.list(place) {
        signs.unreadable = Some(error.to_string());
    }
    match statvfs(&root.on_machine(place)) {
        Ok(space) => {
            signs.read_only = space.flags().contains(FsFlags::ST_RDONLY);
            signs.free = Some(space.blocks_available().saturating_mul(space.fragment_size()));
        }
        Err(errno) => signs.unreadable = Some(errno.to_string()),
    }
    signs
}

/// Whether one of the disks carries the volume's id.
pub(crate) fn is_attached(disks: &[Disk], volume: &Volume) -> bool {
    !carriers(disks, &volume.disk).is_empty()
}

/// The disks that carry a volume's id.
pub(crate) fn carriers<'a>(disks: &'a [Disk], id: &DiskName) -> Vec<&'a Disk> {
    let names: Vec<_> = disks.iter().map(|disk| disk.names.clone()).collect();
    matching(id, &names).into_iter().filter_map(|at| disks.get(at)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::mount_unit::tests::volume;
    use crate::storage::probe::tests::put;

    #[test]
    fn a_disk_that_is_away_may_be_on_its_way_until_something_was_in_its_place() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "var/lib/docker/image", b"");
        let root = Tree::open(dir.path()).unwrap();
        let desired = Desired { volumes: vec![volume()], ..Desired::default() };
        let [problem] = &problems(&desired, &root, &[])[..] else { panic!("the disk is away") };
        let mut observed = Observed::default();
        assert!(problem.awaits_disk(&observed));
        observed.mounted.insert(volume().role);
        assert!(!problem.awaits_disk(&observed));
        let broken =
            StoreProblem { role: "docker".into(), without_disk: None, fact: String::new(), error: Error::permanent("EIO") };
        assert!(!broken.awaits_disk(&Observed::default()));
    }

    #[test]
    fn a_problem_of_the_root_disk_is_not_reported_for_the_volume_that_carries_a_pool() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "var/lib/docker/image", b"");
        let root = Tree::open(dir.path()).unwrap();
        let pool = Volume { content: Content::ThinPool, ..volume() };
        let named = Some(volume().disk.as_str().to_owned());
        for (volume, gone, expected) in
            [(&volume(), false, &named), (&pool, false, &None), (&pool, true, &named), (&volume(), true, &named)]
        {
            let signs = signs(&root, "/var/lib/docker", Some(volume), gone);
            assert_eq!((&signs.volume, signs.free.is_none()), (expected, gone), "{:?}", volume.content);
        }
    }
}
