//! What is there: files, directories, owners of a tree, and units as systemd sees them. Reads only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use futures_util::future::try_join_all;

use super::owners::Owners;
use super::{UnitManager, pending};
use crate::desired::{Content, Desired, Volume, VolumeRole};
use crate::error::Result;
use crate::files::{FileKind, READ_LIMIT, Tree};
use crate::gather::Gather;
use crate::storage::thin_pool;
use crate::systemd::{UnitState, mount_unit};

/// How owners are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ownership {
    /// Every owner must be right: a running node.
    #[default]
    Exact,
    /// Those that the tree knows: a tree that somebody completes later.
    WhereKnown,
    /// Not at all: we may not change them.
    Ignored,
}

/// Something that is done as a whole: a volume that is brought up, a certificate that is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedStep {
    /// The volume's role, or the certificate's file.
    pub about: String,
    /// What it is, and why it is done.
    pub text: String,
}

/// What is at the path of a file or directory.
#[derive(Clone, PartialEq, Eq)]
pub struct PathState {
    /// What kind of thing.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// Numeric owner and group.
    pub owner: (u32, u32),
    /// The bytes, if it is a regular file.
    pub content: Option<Vec<u8>>,
}

impl std::fmt::Debug for PathState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The content may be a secret.
        write!(
            f,
            "PathState({:?}, {:o}, {:?}, {:?} bytes)",
            self.kind,
            self.mode,
            self.owner,
            self.content.as_ref().map(Vec::len)
        )
    }
}

/// Everything that a [`Desired`] speaks of, as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// By path; a path where nothing is is absent.
    pub files: BTreeMap<String, PathState>,
    /// By path; a path where nothing is is absent.
    pub directories: BTreeMap<String, PathState>,
    /// By name; empty for a tree without a systemd.
    pub units: BTreeMap<String, UnitState>,
    /// Which volumes have something in their place: mounted, or active as a pool.
    pub mounted: BTreeSet<VolumeRole>,
    /// Units whose files were written by a run that did not come to restarting them.
    pub pending: BTreeSet<String>,
    /// What is to be done about certificates; empty where nobody looked at them.
    pub certificates: Vec<PlannedStep>,
    /// The tree's users and groups.
    pub owners: Owners,
    /// How far they count.
    pub ownership: Ownership,
}

/// Looks at files and directories only: a tree without a systemd.
///
/// # Errors
/// If something is unreadable.
pub fn observe_files(desired: &Desired, tree: &Tree) -> Result<Observed> {
    let mut observed = Observed { owners: Owners::read(tree)?, ..Observed::default() };
    for file in &desired.files {
        if let Some(seen) = inspect(tree, &file.path, true)? {
            observed.files.insert(file.path.clone(), seen);
        }
    }
    for directory in &desired.directories {
        if let Some(seen) = inspect(tree, &directory.path, false)? {
            observed.directories.insert(directory.path.clone(), seen);
        }
    }
    Ok(observed)
}

/// Looks at everything: files and, with one question each, units and mount points.
///
/// # Errors
/// If something is unreadable or systemd cannot be reached.
pub async fn observe(desired: &Desired, tree: &Tree, units: &impl UnitManager) -> Result<Observed> {
    // Mount points first: of what a volume holds that is mounted meanwhile the files would be those that were there before, and look
    // as if somebody had changed them.
    let mut of_units = Observed::default();
    observe_units(desired, tree, units, &mut of_units).await?;
    let Observed { pending, units, mounted, .. } = of_units;
    Ok(Observed { units, mounted, pending, ..observe_files(desired, tree)? })
}

/// The part of [`observe`] that asks systemd.
pub(crate) async fn observe_units(
    desired: &Desired,
    tree: &Tree,
    units: &impl UnitManager,
    observed: &mut Observed,
) -> Result<()> {
    observed.pending = pending::read(tree);
    let states = try_join_all(desired.units.iter().map(|unit| units.unit(&unit.name))).await?;
    observed.units = desired.units.iter().map(|unit| unit.name.clone()).zip(states).gather();
    let unit_of = |volume: &Volume| match volume.content {
        Content::Xfs | Content::Btrfs => mount_unit(&volume.mount_point),
        Content::ThinPool => thin_pool::UNIT.to_owned(),
    };
    let names: Vec<String> = desired.volumes.iter().map(unit_of).collect();
    let mounts = try_join_all(names.iter().map(|name| units.is_active(name))).await?;
    let mounted = desired.volumes.iter().zip(mounts).filter(|(_, is_active)| *is_active);
    observed.mounted = mounted.map(|(volume, _)| volume.role).gather();
    Ok(())
}

/// What is at a path; for a link to a directory the directory's place counts as there, with nothing known of it.
pub(crate) fn inspect(tree: &Tree, path: &str, content: bool) -> Result<Option<PathState>> {
    let path = Path::new(path);
    let Some(facts) = tree.facts(path)? else { return Ok(None) };
    let content = match facts.kind {
        FileKind::File if content => tree.read(path, READ_LIMIT)?,
        _ => None,
    };
    let kind = match facts.kind {
        FileKind::Link if tree.subtree(path).is_ok() => FileKind::Link,
        FileKind::Link => FileKind::Other,
        kind => kind,
    };
    Ok(Some(PathState { kind, mode: facts.mode, owner: facts.owner, content }))
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;
    use futures_util::stream::BoxStream;

    use super::*;
    use crate::desired::{Directory, DiskName, FormatPolicy, Owner};
    use crate::files::Attributes;
    use crate::systemd::{Enabled, JobOutcome};

    /// A systemd that mounts a volume when it is asked about it: another moment, and it would have been mounted before.
    struct Mounting<'a>(&'a Tree);

    impl UnitManager for Mounting<'_> {
        async fn unit(&self, name: &str) -> Result<UnitState> {
            self.0.create_dir_all(Path::new("/var/lib/etcd/member"), Attributes::mode(0o700))?;
            Ok(UnitState { name: name.into(), active_state: "active".into(), ..UnitState::default() })
        }
        async fn start(&self, _name: &str) -> Result<JobOutcome> {
            Ok(JobOutcome::new("done"))
        }
        async fn restart(&self, _name: &str) -> Result<JobOutcome> {
            Ok(JobOutcome::new("done"))
        }
        async fn reset_failed(&self, _name: &str) -> Result<()> {
            Ok(())
        }
        async fn reload(&self) -> Result<()> {
            Ok(())
        }
        async fn enable(&self, _names: &[&str]) -> Result<Enabled> {
            Ok(Enabled { changed: false, absent: Vec::new() })
        }
        async fn stop(&self, _name: &str) -> Result<JobOutcome> {
            Ok(JobOutcome::new("done"))
        }
        async fn disable(&self, _names: &[String]) -> Result<()> {
            Ok(())
        }
        async fn changes(&self) -> Result<BoxStream<'static, String>> {
            Ok(futures_util::stream::empty().boxed())
        }
    }

    /// A node was said to differ from its parameters at a boot, 40 ms after a mount.
    #[tokio::test]
    async fn what_lies_on_a_volume_is_read_after_it_is_known_to_be_mounted() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let desired = Desired {
            directories: vec![Directory {
                path: "/var/lib/etcd/member".into(),
                mode: 0o700,
                owner: Owner::root(),
                needs: BTreeSet::new(),
            }],
            volumes: vec![Volume {
                role: VolumeRole::Etcd,
                disk: DiskName::Cinder("a".into()),
                mount_point: "/var/lib/etcd".into(),
                content: Content::Xfs,
                format: FormatPolicy::Never,
                hint: "/dev/vdc".into(),
                root_mode: 0o700,
                root_owner: Owner::root(),
                format_parameter: "ETCD_VOLUME_FORMAT",
                adopt: None,
                cluster: "c".into(),
                users: Vec::new(),
            }],
            ..Desired::default()
        };
        let observed = observe(&desired, &tree, &Mounting(&tree)).await.unwrap();
        assert!(observed.mounted.contains(&VolumeRole::Etcd));
        assert!(observed.directories.contains_key("/var/lib/etcd/member"), "read before the mount, and believed after it");
    }
}
