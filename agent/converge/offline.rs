//! `apply --root DIR`: the same files, directories and unit enablement in a directory tree, e.g. of an image.
//!
//! In: a `Desired` and a directory. Out: what was done and what was left to the node. It never leaves the directory,
//! never touches the running machine, and makes no keys; a second run writes nothing.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::install::{self, UnitLink};
use super::observed::{Observed, Ownership, observe_files};
use super::plan::{
    AttributeChange, ChangePlan, describe_ca, describe_certificate, describe_volume, needs_of_file, plan as compare,
};
use super::write;
use crate::desired::{Dependency, Desired};
use crate::error::{Context as _, Error, Result};
use crate::files::{FileKind, Tree};

/// What a run did, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Written, made, linked.
    pub done: Vec<String>,
    /// Left to the node, or not allowed to us.
    pub omitted: Vec<String>,
}

/// Opens a directory to apply to.
///
/// # Errors
/// If it is not there, or is the root of the running machine, by whatever name.
pub fn open(directory: &Path) -> Result<Tree> {
    let identity = |path: &Path| -> Result<(u64, u64)> {
        let facts = std::fs::metadata(path).context(|| format!("inspecting {}", path.display()))?;
        Ok((facts.dev(), facts.ino()))
    };
    if identity(directory)? == identity(Path::new("/"))? {
        return Err(Error::refused(format!("{} is the running machine's root", directory.display()))
            .rule("apply works on the directory tree of another machine; the daemon configures the running one")
            .remedy("Name the root directory of the image or of a mounted disk."));
    }
    Tree::open(directory)
}

/// What [`apply`] would do; nothing is written.
///
/// # Errors
/// As [`apply`].
pub fn plan(desired: &Desired, directory: &Path) -> Result<ChangePlan> {
    let tree = open(directory)?;
    let mut plan = work_out(desired, &tree)?;
    for unit in desired.units.iter().filter(|unit| unit.enable) {
        if let Ok(links) = install::links(&tree, &unit.name)?
            && !links.iter().map(|link| is_linked(&tree, link)).collect::<Result<Vec<_>>>()?.into_iter().all(|there| there)
        {
            plan.enable.push(unit.name.clone());
        }
    }
    Ok(plan)
}

/// Applies a `Desired` to a directory tree.
///
/// # Errors
/// If the directory is refused ([`open`]) or something in it cannot be read or written.
pub fn apply(desired: &Desired, directory: &Path) -> Result<Applied> {
    let tree = open(directory)?;
    let plan = work_out(desired, &tree)?;
    let mut applied = Applied::default();
    for change in &plan.directories {
        write::directory(&tree, change)?;
        applied.done.push(format!("{} directory {}", if change.new { "created" } else { "changed" }, change.path));
    }
    for change in &plan.files {
        write::file(&tree, change)?;
        applied.done.push(format!("wrote {}", change.path));
    }
    list_owners(desired, &plan, &tree, &mut applied)?;
    list_requirements(desired, &tree, &mut applied)?;
    for unit in desired.units.iter().filter(|unit| unit.enable) {
        match install::links(&tree, &unit.name)? {
            Err(why) => applied.omitted.push(format!("enable {}: {why}", unit.name)),
            Ok(links) => {
                for UnitLink { path, target } in links {
                    write::parents(&tree, Path::new(&path))?;
                    if tree.link(&target, Path::new(&path))? {
                        applied.done.push(format!("linked {path} to {target}"));
                    }
                }
            }
        }
    }
    let late = deferred(desired);
    applied
        .omitted
        .extend(late.iter().map(|path| format!("{path}: needs something that only the node has; done on the node itself")));
    applied.omitted.extend(desired.cas.iter().map(describe_ca).map(|text| format!("{text}: done on the node itself")));
    applied
        .omitted
        .extend(desired.certificates.iter().map(describe_certificate).map(|text| format!("{text}: done on the node itself")));
    applied.omitted.extend(desired.keys.iter().map(|key| format!("key {} at {}: done on the node itself", key.name, key.path)));
    applied.omitted.extend(desired.volumes.iter().map(|volume| format!("{}: done on the node itself", describe_volume(volume))));
    Ok(applied)
}

/// The plan without what has to wait for the node.
fn work_out(desired: &Desired, tree: &Tree) -> Result<ChangePlan> {
    let ownership = if nix::unistd::geteuid().is_root() { Ownership::WhereKnown } else { Ownership::Ignored };
    let observed = Observed { ownership, ..observe_files(desired, tree)? };
    let mut plan = compare(desired, &observed);
    let late = deferred(desired);
    plan.files.retain(|change| !late.contains(change.path.as_str()));
    plan.directories.retain(|change| !late.contains(change.path.as_str()));
    (plan.reload, plan.volumes) = (false, Vec::new());
    Ok(plan)
}

/// Directories and files that need a volume, a unit or a gate, directly or through another directory.
fn deferred(desired: &Desired) -> BTreeSet<&str> {
    let mut late: BTreeSet<&str> = BTreeSet::new();
    let waits = |needs: &BTreeSet<Dependency>, late: &BTreeSet<&str>| {
        needs.iter().any(|need| match need {
            Dependency::Directory(path) => late.contains(path.as_str()),
            Dependency::Volume(_)
            | Dependency::Unit(_)
            | Dependency::Gate(_)
            | Dependency::Object(_)
            | Dependency::AddOn(_)
            | Dependency::FlannelKey
            | Dependency::EtcdMember
            | Dependency::Certificates => true,
        })
    };
    // Parents come before children, but a need may name any directory: as many rounds as the longest chain.
    for _ in &desired.directories {
        for directory in &desired.directories {
            let of_place = needs_of_file(desired, &directory.path);
            if waits(&directory.needs, &late) || waits(&of_place, &late) {
                late.insert(&directory.path);
            }
        }
    }
    let files: Vec<&str> = desired
        .files
        .iter()
        .filter(|file| waits(&needs_of_file(desired, &file.path), &late))
        .map(|file| file.path.as_str())
        .collect();
    late.extend(files);
    late
}

/// Says which units the drop-ins require and the tree lacks: on a node the service is refused, and nobody would know why.
fn list_requirements(desired: &Desired, tree: &Tree, applied: &mut Applied) -> Result<()> {
    for file in desired.files.iter().filter(|file| file.path.contains(".service.d/")) {
        for unit in file.content.lines().filter_map(|line| line.strip_prefix("Requires=")) {
            if let Err(why) = install::find(tree, unit)? {
                applied
                    .omitted
                    .push(format!("install {unit}: {why}, and without it {} keeps its service from starting", file.path));
            }
        }
    }
    Ok(())
}

/// Says which owners could not be given: we are not root, or the tree lacks the user.
fn list_owners(desired: &Desired, plan: &ChangePlan, tree: &Tree, applied: &mut Applied) -> Result<()> {
    let owners = super::Owners::read(tree)?;
    let is_root = nix::unistd::geteuid().is_root();
    let mut list = |path: &str, change: &AttributeChange| {
        let owner = &change.owner;
        if !is_root {
            applied.omitted.push(format!("owner {}:{} of {path}: not root", owner.user, owner.group));
        } else if owners.resolve(owner).is_none() {
            applied.omitted.push(format!("owner {}:{} of {path}: the tree has no such user or group", owner.user, owner.group));
        }
    };
    for directory in &desired.directories {
        if let Some(change) = plan.directories.iter().find(|change| change.path == directory.path) {
            list(&change.path, &change.attributes);
        }
    }
    for change in &plan.files {
        list(&change.path, &change.attributes);
    }
    Ok(())
}

/// Whether a link is there; where it points is looked at when it is made.
fn is_linked(tree: &Tree, link: &UnitLink) -> Result<bool> {
    Ok(tree.facts(Path::new(&link.path))?.is_some_and(|facts| facts.kind == FileKind::Link))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::{Content, Directory, DiskName, File, FormatPolicy, Owner, Unit, Volume, VolumeRole};
    use crate::files::Attributes;

    fn desired() -> Desired {
        let mut key = File::public("/etc/etcd/key", "secret");
        (key.mode, key.owner) = (0o600, Owner::named("nobody-there"));
        let on_volume = BTreeSet::from([Dependency::Volume(VolumeRole::Etcd)]);
        let directory = |path: &str, needs: &BTreeSet<Dependency>| Directory {
            path: path.into(),
            mode: 0o750,
            owner: Owner::root(),
            needs: needs.clone(),
        };
        Desired {
            directories: vec![
                directory("/etc/etcd", &BTreeSet::new()),
                directory("/var/lib/etcd/member", &on_volume),
                directory("/srv/below", &BTreeSet::from([Dependency::Directory("/var/lib/etcd/member".into())])),
            ],
            files: vec![
                key,
                File::public("/usr/lib/systemd/system/etcd.service", "[Install]\nWantedBy=multi-user.target\n"),
                File::public("/srv/below/late", "x"),
            ],
            units: vec![Unit {
                name: "etcd.service".into(),
                enable: true,
                restart_on: BTreeSet::new(),
                needs: BTreeSet::new(),
                applies_files: false,
            }],
            volumes: vec![Volume {
                role: VolumeRole::Etcd,
                disk: DiskName::Cinder("c-1".into()),
                hint: "/dev/vdc".into(),
                content: Content::Xfs,
                mount_point: "/var/lib/etcd".into(),
                root_mode: 0o700,
                root_owner: Owner::root(),
                format: FormatPolicy::Never,
                format_parameter: "ETCD_VOLUME_FORMAT",
                adopt: None,
                cluster: "k".into(),
                users: vec![],
            }],
            ..Desired::default()
        }
    }

    #[test]
    fn a_tree_gets_files_and_links_and_a_second_run_writes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let before = plan(&desired(), dir.path()).unwrap();
        assert_eq!(
            before.files.iter().map(|change| change.path.as_str()).collect::<Vec<_>>(),
            ["/etc/etcd/key", "/usr/lib/systemd/system/etcd.service"]
        );
        assert!(dir.path().read_dir().unwrap().next().is_none(), "a plan writes nothing");

        let applied = apply(&desired(), dir.path()).unwrap();
        assert_eq!(
            applied.done,
            [
                "created directory /etc/etcd",
                "wrote /etc/etcd/key",
                "wrote /usr/lib/systemd/system/etcd.service",
                "linked /etc/systemd/system/multi-user.target.wants/etcd.service to /usr/lib/systemd/system/etcd.service",
            ]
        );
        assert!(applied.omitted.iter().any(|line| line.starts_with("owner nobody-there:nobody-there of /etc/etcd/key: ")));
        for late in ["/var/lib/etcd/member: ", "/srv/below: ", "/srv/below/late: ", "etcd volume c-1 "] {
            assert!(applied.omitted.iter().any(|line| line.starts_with(late)), "{late}: {:?}", applied.omitted);
        }
        let tree = Tree::open(dir.path()).unwrap();
        assert_eq!(tree.facts(Path::new("/etc/etcd/key")).unwrap().unwrap().mode, 0o600);
        assert_eq!(tree.facts(Path::new("/etc/etcd")).unwrap().unwrap().mode, 0o750);
        assert_eq!(tree.facts(Path::new("/srv")).unwrap(), None);

        assert_eq!(apply(&desired(), dir.path()).unwrap().done, Vec::<String>::new());
        assert!(plan(&desired(), dir.path()).unwrap().is_empty());
    }

    #[test]
    fn a_unit_that_a_drop_in_requires_is_named_where_the_tree_lacks_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut desired = Desired::default();
        desired.files.push(File::public("/etc/systemd/system/etcd.service.d/50-x.conf", "[Unit]\nRequires=guard.service\n"));
        let missing = |desired: &Desired| apply(desired, dir.path()).unwrap().omitted;
        let reported = missing(&desired);
        assert!(
            reported.len() == 1 && reported[0].starts_with("install guard.service: this tree has no unit file for guard.service"),
            "{reported:?}"
        );
        desired.files.push(File::public("/usr/lib/systemd/system/guard.service", "[Service]\n"));
        assert_eq!(missing(&desired), Vec::<String>::new());
    }

    #[test]
    fn the_running_machine_is_refused_by_every_name() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        tree.link("/", Path::new("root")).unwrap();
        for name in [Path::new("/"), Path::new("/etc/.."), &dir.path().join("root"), &dir.path().join("root/tmp/..")] {
            let error = apply(&desired(), name).unwrap_err();
            assert_eq!(error.kind(), crate::error::ErrorKind::Refused, "{}", name.display());
        }
        assert!(apply(&desired(), &dir.path().join("none")).is_err());
    }

    #[test]
    fn links_in_the_tree_lead_nowhere_else() {
        let outside = tempfile::tempdir().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        tree.create_dir(Path::new("etc"), Attributes::mode(0o755)).unwrap();
        tree.link(outside.path().to_str().unwrap(), Path::new("/etc/etcd")).unwrap();
        tree.link("/../../../../../tmp", Path::new("/usr")).unwrap();
        // The links dangle inside the tree: whether that fails or not, nothing outside is touched.
        drop(apply(&desired(), dir.path()));
        assert!(outside.path().read_dir().unwrap().next().is_none());
        assert!(!Path::new("/tmp/lib/systemd/system/etcd.service").exists());
    }
}
