//! What has to be done to make a [`Desired`] true: pure.

use std::collections::BTreeSet;
use std::fmt;

use super::observed::{Observed, Ownership, PathState, PlannedStep};
use crate::desired::{
    CaCertificate, Certificate, Content, Dependency, Desired, Directory, File, FormatPolicy, Owner, Unit, Volume,
};
use crate::files::FileKind;
use crate::gather::Gather;
use crate::storage::thin_pool::POOL;
use crate::systemd::UnitState;

/// The difference between a [`Desired`] and what is there. Every list is in the order of the `Desired`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangePlan {
    /// Directories to make or to give another mode or owner.
    pub directories: Vec<DirectoryChange>,
    /// Files to write or to give another mode or owner.
    pub files: Vec<FileChange>,
    /// Whether systemd has to read its unit files again.
    pub reload: bool,
    /// Units to enable for the next boot.
    pub enable: Vec<String>,
    /// Units that apply files once, whose files change.
    pub helpers: Vec<String>,
    /// Units to start.
    pub start: Vec<String>,
    /// Running units one of whose files changes.
    pub restart: Vec<String>,
    /// Volumes to find and mount.
    pub volumes: Vec<PlannedStep>,
    /// Certificates, keys and CAs to make or to put right.
    pub certificates: Vec<PlannedStep>,
    /// What of these changes nothing takes back; nothing where there is no change, or no generation to go back to.
    pub irreversible: Vec<String>,
}

/// What changes about a file.
#[derive(Clone, PartialEq, Eq)]
pub struct FileChange {
    /// Absolute path.
    pub path: String,
    /// What is there now; `None` if no regular file is.
    pub before: Option<String>,
    /// What will be there.
    pub after: String,
    /// Whether the bytes change; if not, only mode or owner do.
    pub rewrites: bool,
    /// What will change about mode and owner.
    pub attributes: AttributeChange,
    /// Whether the content is masked where people look.
    pub secret: bool,
}

impl fmt::Debug for FileChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The content may be a secret.
        write!(f, "FileChange({}, rewrites: {}, {:?})", self.path, self.rewrites, self.attributes)
    }
}

/// What changes about a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryChange {
    /// Absolute path.
    pub path: String,
    /// Whether it has to be made.
    pub new: bool,
    /// What will change about mode and owner.
    pub attributes: AttributeChange,
}

/// Mode and owner before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeChange {
    /// The mode that it has; `None` if it is not there.
    pub mode_before: Option<u32>,
    /// The mode that it gets.
    pub mode: u32,
    /// The numeric owner that it has; `None` if it is not there.
    pub owner_before: Option<(u32, u32)>,
    /// The owner that it gets.
    pub owner: Owner,
    /// The same in numbers; `None` if this tree lacks the user or group, or owners play no part.
    pub owner_number: Option<(u32, u32)>,
    /// Whether the owner changes (it counts as changing where it is not known yet).
    pub owner_changes: bool,
}

impl ChangePlan {
    /// Whether everything is as desired.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Compares. Volumes count as done where something is mounted in their place; whose it is, is looked at when they
/// are brought up.
#[must_use]
pub fn plan(desired: &Desired, observed: &Observed) -> ChangePlan {
    let files: Vec<FileChange> = desired.files.iter().filter_map(|file| file_change(file, observed)).collect();
    let changed: BTreeSet<&str> = files.iter().filter(|change| change.rewrites).map(|change| change.path.as_str()).gather();
    let mut plan = ChangePlan {
        directories: desired.directories.iter().filter_map(|directory| directory_change(directory, observed)).collect(),
        reload: changed.iter().any(|path| is_unit_file(path)),
        volumes: desired.volumes.iter().filter(|volume| !observed.mounted.contains(&volume.role)).map(volume_step).collect(),
        certificates: observed.certificates.clone(),
        ..ChangePlan::default()
    };
    for unit in &desired.units {
        let Some(state) = observed.units.get(&unit.name) else { continue };
        let pending = observed.pending.contains(&unit.name) || unit.restart_on.iter().any(|path| changed.contains(path.as_str()));
        if unit.enable && must_be_enabled(unit, state, &changed) {
            plan.enable.push(unit.name.clone());
        }
        if unit.applies_files {
            if pending {
                plan.helpers.push(unit.name.clone());
            }
        } else if pending && (state.is_active() || state.is_settling()) {
            plan.restart.push(unit.name.clone());
        } else if !state.is_active() {
            plan.start.push(unit.name.clone());
        }
        plan.reload |= state.need_daemon_reload;
    }
    // systemd keeps telling the old enablement until it has read its files again.
    plan.reload |= !plan.enable.is_empty();
    plan.files = files;
    plan
}

/// The certificate of a CA in words, as `plan` shows it.
pub(crate) fn describe_ca(ca: &CaCertificate) -> String {
    let signing = ca.signing_path.as_ref().map(|path| format!(", with the signing certificate at {path}"));
    let key = ca.key_path.as_ref().map(|path| format!(" and its key at {path}"));
    let further = [signing, key].into_iter().flatten().collect::<String>();
    format!("certificate of the CA {} at {}{further}", ca.signer, ca.path)
}

/// A certificate in words, as `plan` shows it.
pub(crate) fn describe_certificate(certificate: &Certificate) -> String {
    let mut subject = format!("CN={}", certificate.common_name);
    certificate.organisations.iter().for_each(|organisation| subject.push_str(&format!(", O={organisation}")));
    let names = certificate.names.iter().cloned().chain(certificate.addresses.iter().map(ToString::to_string));
    let names: Vec<String> = names.collect();
    let names = if names.is_empty() { String::new() } else { format!(" for {}", names.join(", ")) };
    let (signer, path, key) = (certificate.signer, &certificate.path, &certificate.key);
    format!("certificate {} ({subject}){names}, signed by {signer}, at {path} with its key at {key}", certificate.name)
}

fn volume_step(volume: &Volume) -> PlannedStep {
    PlannedStep { about: volume.role.as_str().to_owned(), text: describe_volume(volume) }
}

/// A volume in words, as `plan` shows it.
pub(crate) fn describe_volume(volume: &Volume) -> String {
    let format = match volume.format {
        FormatPolicy::IfBlank => "formatted if blank",
        FormatPolicy::IfNoSignature => "formatted if it has no signature",
        FormatPolicy::Never => "never formatted",
    };
    let place = match volume.content {
        Content::Xfs | Content::Btrfs => format!("mounted on {}", volume.mount_point),
        Content::ThinPool => format!("the thin pool {POOL} for {}", volume.mount_point),
    };
    format!("{} volume {} (Heat calls it {}): {place}, {format}", volume.role, volume.disk, volume.hint)
}

/// Whether systemd reads this path as a unit file or a drop-in.
pub(crate) fn is_unit_file(path: &str) -> bool {
    path.contains("/systemd/system/")
}

/// Whether a path lies on one of the volumes, so that it can be written only when that is mounted.
pub(crate) fn volume_below<'a>(desired: &'a Desired, path: &str) -> Option<&'a Volume> {
    let below =
        |volume: &&Volume| path.strip_prefix(volume.mount_point.trim_end_matches('/')).is_some_and(|rest| rest.starts_with('/'));
    desired.volumes.iter().filter(below).max_by_key(|volume| volume.mount_point.len())
}

/// What has to be there before a file can be written: the volume and the directories with needs that it lies in.
pub(crate) fn needs_of_file(desired: &Desired, path: &str) -> BTreeSet<Dependency> {
    let mut needs: BTreeSet<Dependency> =
        volume_below(desired, path).into_iter().map(|volume| Dependency::Volume(volume.role)).gather();
    let above = |directory: &&Directory| {
        !directory.needs.is_empty()
            && path.strip_prefix(directory.path.trim_end_matches('/')).is_some_and(|rest| rest.starts_with('/'))
    };
    needs.extend(desired.directories.iter().filter(above).map(|directory| Dependency::Directory(directory.path.clone())));
    needs
}

/// What changes about one file; `None` if nothing does.
pub(crate) fn file_change(file: &File, observed: &Observed) -> Option<FileChange> {
    let seen = observed.files.get(&file.path);
    let content = seen.and_then(|seen| seen.content.as_deref());
    let rewrites = content != Some(file.content.as_bytes());
    let attributes = attribute_change(seen.filter(|seen| seen.kind == FileKind::File), file.mode, &file.owner, observed);
    (rewrites || attributes.is_some()).then(|| FileChange {
        path: file.path.clone(),
        before: content.map(|bytes| String::from_utf8_lossy(bytes).into_owned()),
        after: file.content.clone(),
        rewrites,
        attributes: attributes.unwrap_or_else(|| attributes_of(seen, file.mode, &file.owner, observed)),
        // What is replaced may be a key that somebody put there.
        secret: file.secret || content.is_some_and(holds_private_key),
    })
}

/// Whether a text has a private key in PEM.
fn holds_private_key(text: &[u8]) -> bool {
    let marker = b"PRIVATE KEY-----";
    text.windows(marker.len()).any(|part| part == marker)
}

/// What changes about one directory; `None` if nothing does.
pub(crate) fn directory_change(directory: &Directory, observed: &Observed) -> Option<DirectoryChange> {
    let seen = observed.directories.get(&directory.path);
    match seen.map(|seen| seen.kind) {
        // Somebody moved it on purpose: what it leads to is theirs.
        Some(FileKind::Link) => None,
        Some(FileKind::Directory) => attribute_change(seen, directory.mode, &directory.owner, observed)
            .map(|attributes| DirectoryChange { path: directory.path.clone(), new: false, attributes }),
        _ => Some(DirectoryChange {
            path: directory.path.clone(),
            new: true,
            attributes: attributes_of(None, directory.mode, &directory.owner, observed),
        }),
    }
}

fn attributes_of(seen: Option<&PathState>, mode: u32, owner: &Owner, observed: &Observed) -> AttributeChange {
    let owner_number = match observed.ownership {
        Ownership::Ignored => None,
        Ownership::Exact | Ownership::WhereKnown => observed.owners.resolve(owner),
    };
    let owner_before = seen.map(|seen| seen.owner);
    let owner_changes = match observed.ownership {
        Ownership::Ignored => false,
        Ownership::WhereKnown => owner_number.is_some() && owner_number != owner_before,
        Ownership::Exact => owner_number.is_none() || owner_number != owner_before,
    };
    AttributeChange {
        mode_before: seen.map(|seen| seen.mode),
        mode,
        owner_before,
        owner: owner.clone(),
        owner_number,
        owner_changes,
    }
}

fn attribute_change(seen: Option<&PathState>, mode: u32, owner: &Owner, observed: &Observed) -> Option<AttributeChange> {
    let change = attributes_of(seen, mode, owner, observed);
    (change.mode_before != Some(mode) || change.owner_changes).then_some(change)
}

fn must_be_enabled(unit: &Unit, state: &UnitState, changed: &BTreeSet<&str>) -> bool {
    let own_file_changes =
        || changed.iter().any(|path| is_unit_file(path) && path.rsplit('/').next() == Some(unit.name.as_str()));
    match state.unit_file_state.as_str() {
        "disabled" | "enabled-runtime" | "linked" | "linked-runtime" => true,
        // Its file comes with this plan, or not at all; the latter is found out when it is to be started.
        "" => state.is_missing(),
        "enabled" | "masked" => false,
        // static, alias, indirect, generated and what newer versions say: its new file may have an [Install] section.
        _ => own_file_changes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::{DiskName, VolumeRole};

    fn unit(name: &str, restart_on: &[&str], applies_files: bool) -> Unit {
        Unit {
            name: name.into(),
            enable: !applies_files,
            restart_on: restart_on.iter().map(|path| (*path).to_owned()).collect(),
            needs: BTreeSet::new(),
            applies_files,
        }
    }

    fn state(active: &str, file: &str) -> UnitState {
        UnitState {
            active_state: active.into(),
            unit_file_state: file.into(),
            load_state: "loaded".into(),
            ..UnitState::default()
        }
    }

    fn seen(content: &str, mode: u32) -> PathState {
        PathState { kind: FileKind::File, mode, owner: (0, 0), content: Some(content.into()) }
    }

    #[test]
    fn units_are_touched_only_where_something_changed() {
        // state of the unit, state of its file, does its file change, is a restart pending -> enable, start, restart
        for (active, file, changes, pending, expected) in [
            ("active", "enabled", false, false, (false, false, false)),
            ("active", "enabled", true, false, (false, false, true)),
            ("active", "enabled", false, true, (false, false, true)),
            ("reloading", "enabled", false, false, (false, false, false)),
            ("activating", "enabled", false, false, (false, true, false)),
            ("activating", "enabled", true, false, (false, false, true)),
            ("inactive", "disabled", false, false, (true, true, false)),
            ("inactive", "disabled", true, true, (true, true, false)),
            ("failed", "static", true, false, (false, true, false)),
            ("active", "alias", false, false, (false, false, false)),
            ("active", "enabled-runtime", false, false, (true, false, false)),
            ("inactive", "masked", false, false, (false, true, false)),
        ] {
            let desired = Desired {
                files: vec![File::public("/etc/x.conf", "new")],
                units: vec![unit("x.service", &["/etc/x.conf"], false)],
                ..Desired::default()
            };
            let mut observed = Observed::default();
            observed.files.insert("/etc/x.conf".into(), seen(if changes { "old" } else { "new" }, 0o644));
            observed.units.insert("x.service".into(), state(active, file));
            observed.pending.extend(pending.then(|| "x.service".to_owned()));
            let plan = plan(&desired, &observed);
            let got = (!plan.enable.is_empty(), !plan.start.is_empty(), !plan.restart.is_empty());
            assert_eq!(got, expected, "{active} {file} {changes} {pending}");
            assert_eq!(plan.reload, expected.0, "enabling takes effect only after a reload");
            assert_eq!(plan.is_empty(), expected == (false, false, false));
        }
    }

    #[test]
    fn a_helper_runs_only_when_its_files_change() {
        let desired = Desired {
            files: vec![File::public("/etc/sysctl.d/k.conf", "a=1")],
            units: vec![unit("systemd-sysctl.service", &["/etc/sysctl.d/k.conf"], true)],
            ..Desired::default()
        };
        let mut observed = Observed::default();
        observed.units.insert("systemd-sysctl.service".into(), state("inactive", "static"));
        assert_eq!(plan(&desired, &observed).helpers, ["systemd-sysctl.service"]);
        observed.files.insert("/etc/sysctl.d/k.conf".into(), seen("a=1", 0o644));
        assert!(plan(&desired, &observed).is_empty());
    }

    #[test]
    fn a_unit_file_that_changes_or_is_newer_than_read_needs_a_reload() {
        for (path, content, newer, reload) in [
            ("/etc/systemd/system/x.service", "old", false, true),
            ("/etc/systemd/system/x.service.d/10.conf", "old", false, true),
            ("/etc/systemd/system/x.service", "new", false, false),
            ("/etc/systemd/system/x.service", "new", true, true),
            ("/etc/x.conf", "old", false, false),
        ] {
            let desired = Desired {
                files: vec![File::public(path, "new")],
                units: vec![unit("x.service", &[], false)],
                ..Desired::default()
            };
            let mut observed = Observed::default();
            observed.files.insert(path.into(), seen(content, 0o644));
            observed.units.insert("x.service".into(), UnitState { need_daemon_reload: newer, ..state("active", "enabled") });
            assert_eq!(plan(&desired, &observed).reload, reload, "{path} {content} {newer}");
        }
    }

    #[test]
    fn mode_and_owner_count_as_the_tree_knows_them() {
        let mut file = File::public("/etc/key", "k");
        for (mode, owner, ownership, expected) in [
            (0o644, "root", Ownership::Exact, None),
            (0o600, "root", Ownership::Exact, Some(false)),
            (0o644, "etcd", Ownership::Exact, Some(true)),
            (0o644, "etcd", Ownership::WhereKnown, None),
            (0o644, "etcd", Ownership::Ignored, None),
        ] {
            (file.mode, file.owner) = (mode, Owner::named(owner));
            let desired = Desired { files: vec![file.clone()], ..Desired::default() };
            let mut observed = Observed { ownership, ..Observed::default() };
            observed.files.insert("/etc/key".into(), seen("k", 0o644));
            let plan = plan(&desired, &observed);
            let got = plan.files.first().map(|change| change.attributes.owner_changes);
            assert_eq!(got, expected, "{mode:o} {owner} {ownership:?}");
            assert!(plan.files.iter().all(|change| !change.rewrites));
        }
    }

    #[test]
    fn a_private_key_that_is_replaced_is_not_shown() {
        let desired = Desired { files: vec![File::public("/etc/key", "public")], ..Desired::default() };
        for (before, secret) in [("-----BEGIN EC PRIVATE KEY-----\nhush", true), ("-----BEGIN PUBLIC KEY-----", false)] {
            let mut observed = Observed::default();
            observed.files.insert("/etc/key".into(), seen(before, 0o644));
            let plan = plan(&desired, &observed);
            assert_eq!(plan.files[0].secret, secret);
            assert!(!plan.render().contains("hush"), "{}", plan.render());
        }
    }

    #[test]
    fn a_file_waits_for_the_volume_and_the_directories_that_it_lies_in() {
        let volume = |role, mount_point: &str| Volume {
            role,
            disk: DiskName::Cinder("c".into()),
            hint: "/dev/vdb".into(),
            content: Content::Xfs,
            mount_point: mount_point.into(),
            root_mode: 0o700,
            root_owner: Owner::root(),
            format: FormatPolicy::IfBlank,
            format_parameter: "DOCKER_VOLUME_FORMAT",
            adopt: None,
            cluster: "k".into(),
            users: vec![],
        };
        let desired = Desired {
            volumes: vec![volume(VolumeRole::Runtime, "/var/lib"), volume(VolumeRole::Etcd, "/var/lib/etcd")],
            directories: vec![Directory {
                path: "/var/lib/etcd/data".into(),
                mode: 0o700,
                owner: Owner::root(),
                needs: BTreeSet::from([Dependency::Volume(VolumeRole::Etcd)]),
            }],
            ..Desired::default()
        };
        for (path, needs) in [
            ("/etc/x", vec![]),
            ("/var/library", vec![]),
            ("/var/lib/x", vec![Dependency::Volume(VolumeRole::Runtime)]),
            ("/var/lib/etcd/x", vec![Dependency::Volume(VolumeRole::Etcd)]),
            (
                "/var/lib/etcd/data/x",
                vec![Dependency::Volume(VolumeRole::Etcd), Dependency::Directory("/var/lib/etcd/data".into())],
            ),
        ] {
            assert_eq!(needs_of_file(&desired, path), needs.into_iter().collect(), "{path}");
        }
    }
}
