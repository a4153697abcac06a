use super::*;
use crate::clock::Timestamp;
use crate::desired::VolumeRole;
use crate::storage::mount_unit::tests::volume;

const ID: &str = "7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4";
const SERIAL: &str = "7c1f4d0e-93a2-4b86-8";

fn evidence(change: fn(&mut Evidence)) -> Evidence {
    let disk = DiskEvidence { serial: SERIAL.into(), size: 1 << 30, blank: true, ..DiskEvidence::default() };
    let survey = Some(Survey::default());
    let mut evidence = Evidence { matches: vec!["/dev/vdc".into()], disk, survey, ..Evidence::default() };
    change(&mut evidence);
    evidence
}

fn holds(evidence: &mut Evidence, kinds: &[&'static str]) {
    evidence.disk.blank = false;
    let one = |kind: &&'static str| Signature { kind, uuid: Some("u1".into()), ..Signature::default() };
    evidence.disk.signatures = kinds.iter().map(one).collect();
}

fn saw(evidence: &mut Evidence, found: SurveyFinding) {
    evidence.survey = Some(Survey { found: Some(found), ..Survey::default() });
}

fn begins(at: u64) -> SurveyFinding {
    SurveyFinding::Begins(at, Signature { kind: "ext4", uuid: Some("u1".into()), ..Signature::default() })
}

fn gpt() -> Signature {
    Signature { kind: "gpt", ..Signature::default() }
}

fn record(evidence: &mut Evidence, state: VolumeState, uuid: &str) {
    evidence.record = Some(VolumeRecord {
        schema: 1,
        role: VolumeRole::Etcd,
        cluster: "c0ffee".into(),
        volume: ID.into(),
        fs_type: "xfs".into(),
        fs_uuid: uuid.into(),
        state,
        what: None,
        size: 0,
        at: Timestamp(0),
    });
}

fn marker(evidence: &mut Evidence, cluster: &str, role: VolumeRole, volume: &str) {
    let (cluster, volume) = (cluster.to_owned(), volume.to_owned());
    evidence.marker =
        MarkerEvidence::Found(VolumeMarker { schema: 1, cluster, role, volume, fs_uuid: "u1".into(), made_at: String::new() });
}

/// One word for a decision, so that a row of a table is one line.
fn word(decision: &FormatDecision) -> String {
    match decision {
        FormatDecision::Wait(_) => "wait".to_owned(),
        FormatDecision::Format { force: false } => "format".to_owned(),
        FormatDecision::Format { force: true } => "format again".to_owned(),
        FormatDecision::ReadMarker => "read marker".to_owned(),
        FormatDecision::Survey(SurveyTarget { unknown_data: true, .. }) => "survey through noise".to_owned(),
        FormatDecision::Survey(SurveyTarget { ours: Some(_), .. }) => "survey for ours".to_owned(),
        FormatDecision::Survey(_) => "survey".to_owned(),
        FormatDecision::Reuse => "reuse".to_owned(),
        FormatDecision::Refuse { found, remedy, .. } => format!("{found} => {remedy}"),
    }
}

/// Policy, whether `VOLUME_ADOPT` names the volume, evidence, expected decision (for refusals the beginning).
type Row = (FormatPolicy, bool, fn(&mut Evidence), &'static str);

#[rustfmt::skip] // One row, one line.
#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn the_whole_interlock() {
    use FormatPolicy::{IfBlank, IfNoSignature, Never};
    use VolumeState::{Formatted, Formatting, InPlace};
    use VolumeRole::{Etcd, Runtime};
    let rows: &[Row] = &[
        // Which disk.
        (IfBlank, false, |e| e.matches.clear(), "wait"),
        (IfBlank, true, |e| e.matches.push("/dev/sda".into()), "2 disks have 7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4: /dev/vdc, /dev/sda => "),
        // The mount point.
        (IfBlank, false, |e| e.below = MountPointContent::Store, "/var/lib/etcd is not empty => `systemctl stop etcd.service; mv /var/lib/etcd /var/lib/etcd.before`"),
        (IfBlank, false, |e| e.below = MountPointContent::Running("etcd.service".into()), "etcd.service is running with its store in /var/lib/etcd on another disk => `systemctl stop etcd.service`"),
        (IfBlank, false, |e| e.below = MountPointContent::OtherMount("/dev/vdd".into()), "/dev/vdd is mounted at /var/lib/etcd => `umount /var/lib/etcd`"),
        (IfBlank, true, |e| e.disk.mounts.push("/mnt".into()), "/dev/vdc is mounted at /mnt => `umount /mnt`"),
        (IfBlank, false, |e| { e.disk.mounts = vec!["/var/lib/etcd".into(), "/var/lib/etcd/x".into()]; record(e, Formatted, "u1"); holds(e, &["xfs"]); }, "reuse"),
        (IfBlank, false, |e| { e.disk.mounts.push("/var/lib/etcd".into()); holds(e, &["xfs"]); record(e, InPlace, "u1"); e.disk.busy = true; e.below = MountPointContent::Store; }, "reuse"),
        (IfBlank, false, |e| { e.disk.mounts.push("/var/lib/etcd".into()); holds(e, &["xfs"]); }, "read marker"),
        (IfBlank, false, |e| { e.disk.mounts.push("/var/lib/etcd".into()); holds(e, &["xfs"]); marker(e, "c0ffee", Etcd, ID); }, "reuse"),
        (IfBlank, false, |e| { e.disk.mounts.push("/var/lib/etcd".into()); holds(e, &["xfs"]); e.marker = MarkerEvidence::Absent; }, "/dev/vdc contains xfs (UUID u1), which this agent did not make => `openstack volume show "),
        (IfBlank, true, |e| { e.disk.mounts.push("/var/lib/etcd".into()); holds(e, &["btrfs"]); e.marker = MarkerEvidence::Absent; }, "/dev/vdc is mounted at /var/lib/etcd but contains btrfs (UUID u1) => `umount /var/lib/etcd`"),
        (IfBlank, true, |e| { e.disk.mounts.push("/var/lib/etcd".into()); e.disk.unreadable = Some("EIO".into()); }, "/dev/vdc is mounted at /var/lib/etcd but cannot be identified"),
        // Who uses it.
        (IfBlank, false, |e| e.disk.size = 0, "wait"),
        (IfBlank, false, |e| e.disk.unreadable = Some("EIO".into()), "/dev/vdc cannot be read: EIO => "),
        (IfBlank, false, |e| e.disk.read_only = true, "/dev/vdc is read-only => "),
        (IfNoSignature, true, |e| e.disk.partitions.push("vdc1".into()), "/dev/vdc has partitions: vdc1 => to discard them: `sfdisk --delete /dev/vdc && wipefs -a /dev/vdc && blkdiscard -z"),
        (IfNoSignature, true, |e| e.disk.holders.push("dm-0".into()), "/dev/vdc is part of dm-0 => "),
        (IfNoSignature, true, |e| e.disk.swap = true, "/dev/vdc is used as swap => `swapoff /dev/vdc`"),
        (IfNoSignature, true, |e| e.disk.busy = true, "/dev/vdc is held exclusively by another process => "),
        // Nothing on it.
        (IfBlank, false, |_| (), "format"),
        (IfNoSignature, false, |_| (), "format"),
        (Never, false, |_| (), "/dev/vdc has no file system => ETCD_VOLUME_FORMAT=if-blank"),
        (IfBlank, true, |e| e.disk.blank = false, "/dev/vdc contains unknown data => ETCD_VOLUME_FORMAT=if-no-signature"),
        (IfNoSignature, false, |e| e.disk.blank = false, "format"),
        (Never, true, |e| e.disk.blank = false, "/dev/vdc has no file system => "),
        // Not before it was read in depth.
        (IfBlank, false, |e| e.survey = None, "survey"),
        (IfBlank, true, |e| { e.survey = None; e.disk.blank = false; }, "survey"),
        (IfNoSignature, false, |e| e.survey = None, "survey through noise"),
        (IfNoSignature, false, |e| { e.survey = None; record(e, InPlace, "u1"); }, "survey"),
        (IfBlank, false, |e| { e.survey = None; record(e, Formatting, "0b7e1122-3344-4566-b788-99aabbccddee"); }, "survey for ours"),
        (IfNoSignature, false, |e| { e.survey = None; record(e, Formatting, "u1"); }, "survey through noise"),
        (Never, false, |e| e.survey = None, "/dev/vdc has no file system"),
        (IfBlank, true, |e| saw(e, begins(1 << 20)), "/dev/vdc contains ext4 (UUID u1) that begins at 1 MiB, but no partition table lists it: the table seems to have been wiped => `losetup --find --show --read-only --offset 1048576 /dev/vdc` makes it available for inspection; to destroy its data: `wipefs -a /dev/vdc && blkdiscard -z"),
        (IfNoSignature, true, |e| saw(e, begins(63 * 512)), "/dev/vdc contains ext4 (UUID u1) that begins at sector 63, but no"),
        (IfNoSignature, true, |e| saw(e, SurveyFinding::Mark(5 << 30, gpt())), "/dev/vdc has a signature of gpt at 5 GiB => `wipefs /dev/vdc` may show more; to destroy its data: `wipefs -a /dev/vdc && blkdiscard -z"),
        (IfBlank, true, |e| saw(e, SurveyFinding::Data(3 << 29)), "/dev/vdc contains unknown data at 1536 MiB => ETCD_VOLUME_FORMAT=if-no-signature, if it is encrypted"),
        (IfBlank, true, |e| { saw(e, SurveyFinding::Data(77)); record(e, Formatting, "u1"); }, "/dev/vdc contains unknown data at byte 77 => "),
        (IfBlank, true, |e| { saw(e, SurveyFinding::Data(77)); record(e, InPlace, "u1"); }, "/dev/vdc contains unknown data at byte 77, but this agent created or used a file system there => inspect it"),
        (IfNoSignature, false, |e| saw(e, SurveyFinding::Data(1 << 20)), "format"),
        (IfNoSignature, false, |e| { saw(e, SurveyFinding::Data(1 << 20)); record(e, Formatted, "u1"); }, "/dev/vdc contains unknown data at 1 MiB, but this agent"),
        // Something that is no store.
        (IfNoSignature, true, |e| holds(e, &["LVM2_member"]), "/dev/vdc contains LVM2_member (UUID u1) => to destroy its data: `wipefs -a /dev/vdc && blkdiscard -z /dev/vdc`"),
        (IfNoSignature, true, |e| holds(e, &["swap"]), "/dev/vdc contains swap"),
        (IfNoSignature, true, |e| holds(e, &["xfs", "gpt"]), "/dev/vdc contains xfs (UUID u1) and gpt"),
        (IfNoSignature, true, |e| { holds(e, &["gpt"]); record(e, InPlace, "u1"); }, "/dev/vdc contains gpt"),
        // An interrupted mkfs of ours.
        (IfBlank, false, |e| record(e, Formatting, "u1"), "format"),
        (IfBlank, false, |e| { record(e, Formatting, "u1"); e.disk.blank = false; }, "/dev/vdc contains unknown data => ETCD_VOLUME_FORMAT=if-no-signature, if it is encrypted below this machine; or to destroy its data: `wipefs -a /dev/vdc && blkdiscard -z"),
        (IfNoSignature, false, |e| { record(e, Formatting, "u1"); e.disk.blank = false; }, "format"),
        (Never, false, |e| { record(e, Formatting, "u1"); holds(e, &["xfs"]); e.marker = MarkerEvidence::Absent; }, "/dev/vdc contains xfs (UUID u1), which this agent did not make"),
        (IfBlank, false, |e| { record(e, Formatting, "u1"); holds(e, &["xfs"]); }, "read marker"),
        (IfBlank, false, |e| { record(e, Formatting, "u1"); holds(e, &["xfs"]); e.marker = MarkerEvidence::Absent; }, "format again"),
        (IfBlank, false, |e| { record(e, Formatting, "u1"); holds(e, &["xfs"]); e.marker = MarkerEvidence::Unreadable("bad superblock".into()); }, "format again"),
        (IfBlank, false, |e| { record(e, Formatting, "u1"); holds(e, &["xfs"]); marker(e, "c0ffee", Etcd, ID); }, "reuse"),
        (IfBlank, false, |e| { record(e, Formatting, "u1"); holds(e, &["xfs"]); marker(e, "other", Etcd, ID); }, "/dev/vdc contains the etcd store of cluster other"),
        (IfBlank, false, |e| { record(e, Formatting, "u1"); holds(e, &["xfs"]); e.marker = MarkerEvidence::Absent; e.etcd_member = MemberEvidence::In("default.etcd"); }, "/dev/vdc contains xfs (UUID u1), which this agent did not make, with an etcd member in it"),
        (IfBlank, false, |e| { record(e, Formatting, "u2"); holds(e, &["xfs"]); e.marker = MarkerEvidence::Absent; }, "/dev/vdc contains xfs (UUID u1), which this agent did not make"),
        (IfBlank, false, |e| { record(e, Formatting, "u1"); holds(e, &["ext4"]); e.marker = MarkerEvidence::Absent; }, "/dev/vdc contains ext4 (UUID u1), which this agent did not make"),
        (IfBlank, false, |e| { record(e, Formatting, "u1"); holds(e, &["xfs", "dos"]); }, "/dev/vdc contains xfs (UUID u1) and dos"),
        (Never, false, |e| record(e, Formatting, "u1"), "/dev/vdc has no file system"),
        // A file system of ours, known by the record.
        (Never, false, |e| { record(e, InPlace, "u1"); holds(e, &["xfs"]); }, "reuse"),
        (IfBlank, false, |e| { record(e, Formatted, "u1"); holds(e, &["xfs"]); }, "reuse"),
        (IfBlank, false, |e| { record(e, InPlace, "u2"); holds(e, &["xfs"]); }, "read marker"),
        (IfBlank, false, |e| record(e, InPlace, "u1"), "format"),
        (IfNoSignature, false, |e| { record(e, InPlace, "u1"); e.disk.blank = false; }, "/dev/vdc contains unknown data, but this agent created or used a file system there => inspect it by hand"),
        (IfNoSignature, true, |e| { record(e, Formatted, "u1"); e.disk.blank = false; }, "/dev/vdc contains unknown data, but this agent created"),
        (IfBlank, false, |e| { record(e, InPlace, "u1"); e.disk.blank = false; }, "/dev/vdc contains unknown data, but this agent created"),
        // A file system with a marker.
        (IfNoSignature, true, |e| holds(e, &["ext4"]), "read marker"),
        (Never, false, |e| { holds(e, &["xfs"]); marker(e, "c0ffee", Etcd, ID); e.etcd_member = MemberEvidence::In("default.etcd"); }, "reuse"),
        (IfBlank, false, |e| { holds(e, &["xfs"]); marker(e, "other", Etcd, ID); }, "/dev/vdc contains the etcd store of cluster other => `openstack volume show "),
        (IfBlank, false, |e| { holds(e, &["xfs"]); marker(e, "c0ffee", Runtime, ID); }, "/dev/vdc contains the runtime store of cluster c0ffee"),
        (IfBlank, false, |e| { holds(e, &["xfs"]); marker(e, "c0ffee", Etcd, "v9"); }, "/dev/vdc contains a copy of volume v9 => `openstack volume show "),
        (IfBlank, true, |e| { holds(e, &["xfs"]); marker(e, "c0ffee", Etcd, "v9"); e.etcd_member = MemberEvidence::In("default.etcd"); }, "reuse"),
        (IfBlank, true, |e| { holds(e, &["xfs"]); marker(e, "other", Etcd, ID); }, "reuse"),
        // A file system without one.
        (IfNoSignature, false, |e| { holds(e, &["ext4"]); e.marker = MarkerEvidence::Absent; }, "/dev/vdc contains ext4 (UUID u1), which this agent did not make => `openstack volume show "),
        (IfBlank, true, |e| { holds(e, &["ext4"]); e.marker = MarkerEvidence::Absent; }, "reuse"),
        (IfBlank, true, |e| { holds(e, &["xfs"]); e.marker = MarkerEvidence::Unreadable("no".into()); }, "/dev/vdc contains xfs (UUID u1), which cannot be inspected: no"),
        // One with a marker that says nothing.
        (IfBlank, false, |e| { holds(e, &["xfs"]); e.marker = MarkerEvidence::Damaged("its marker is damaged: eof".into()); }, "/dev/vdc contains xfs (UUID u1), but its marker is damaged: eof => `openstack volume show "),
        (IfBlank, true, |e| { holds(e, &["xfs"]); e.marker = MarkerEvidence::Damaged("no".into()); }, "reuse"),
        (IfBlank, true, |e| { holds(e, &["xfs"]); e.marker = MarkerEvidence::Damaged("no".into()); e.etcd_member = MemberEvidence::In("default.etcd"); }, "/dev/vdc contains xfs (UUID u1), but no, with an etcd member in it"),
        (IfNoSignature, false, |e| { record(e, Formatting, "u1"); holds(e, &["xfs"]); e.marker = MarkerEvidence::Damaged("no".into()); }, "/dev/vdc contains xfs (UUID u1), but no => `openstack volume show "),
        (IfNoSignature, true, |e| holds(e, &["boot sector"]), "/dev/vdc contains boot sector (UUID u1) => to destroy its data: `wipefs -a /dev/vdc && blkdiscard -z /dev/vdc`"),
        // Foreign etcd members, whatever the parameters say.
        (IfBlank, true, |e| { holds(e, &["xfs"]); e.marker = MarkerEvidence::Absent; e.etcd_member = MemberEvidence::In("default.etcd"); }, "/dev/vdc contains xfs (UUID u1), which this agent did not make, with an etcd member in it => `mount /dev/vdc /mnt && mv /mnt/default.etcd /mnt/default.etcd.before; umount /mnt`, then VOLUME_ADOPT="),
        (IfBlank, true, |e| { holds(e, &["xfs"]); e.marker = MarkerEvidence::Absent; e.etcd_member = MemberEvidence::In("member"); }, "/dev/vdc contains xfs (UUID u1), which this agent did not make, with an etcd member in it => `mount /dev/vdc /mnt && mv /mnt/member /mnt/member.before; umount /mnt`, then VOLUME_ADOPT="),
        (IfBlank, true, |e| { holds(e, &["xfs"]); e.marker = MarkerEvidence::Damaged("no".into()); e.etcd_member = MemberEvidence::Unknown; }, "/dev/vdc contains xfs (UUID u1), but no; there may be an etcd member in it => inspect it by hand: `mount -o ro,norecovery,nouuid /dev/vdc /mnt`"),
        (IfBlank, false, |e| { record(e, Formatting, "u1"); holds(e, &["xfs"]); e.marker = MarkerEvidence::Unreadable("bad superblock".into()); e.etcd_member = MemberEvidence::Unknown; }, "/dev/vdc contains xfs (UUID u1), which cannot be inspected: bad superblock; there may be"),
        (Never, false, |e| { holds(e, &["xfs"]); marker(e, "c0ffee", Etcd, ID); e.etcd_member = MemberEvidence::Unknown; }, "reuse"),
        (IfBlank, true, |e| { holds(e, &["xfs"]); marker(e, "other", Etcd, ID); e.etcd_member = MemberEvidence::In("default.etcd"); }, "/dev/vdc contains the etcd store of cluster other, with an etcd member in it"),
    ];
    for (number, (policy, adopt, change, expected)) in rows.iter().enumerate() {
        let volume = Volume { format: *policy, adopt: adopt.then(|| SERIAL.to_owned()), ..volume() };
        let found = word(&decide(&volume, &evidence(*change)));
        let good = if expected.starts_with("/dev") || expected.contains("=>") {
            found.starts_with(expected)
        } else {
            found == *expected
        };
        assert!(good, "row {number}: {found}\nexpected: {expected}");
    }
}

#[test]
fn an_ephemeral_disk_keeps_the_label_that_it_is_known_by() {
    let volume = Volume { disk: DiskName::Label("ephemeral0".into()), ..volume() };
    let adopted = Volume { adopt: Some("ephemeral0".into()), ..volume.clone() };
    let found = |kind: &'static str| {
        let mut found = evidence(|e| e.marker = MarkerEvidence::Absent);
        holds(&mut found, &[kind]);
        found.disk.serial = "ephemeral0".into();
        found
    };
    let anew = "to destroy its data: `mkfs.xfs -f -L ephemeral0 /dev/vdc`, then VOLUME_ADOPT=ephemeral0";
    for (volume, kind, expected) in [
        (
            &volume,
            "ext4",
            "/dev/vdc contains ext4 (UUID u1), which this agent did not make => `lsblk -fo +SERIAL /dev/vdc` shows what it is. Wrong volume: correct DOCKER_DISK in the template. Right volume, and its data is to be used as /var/lib/etcd: set VOLUME_ADOPT=ephemeral0 there. Then update the stack. Only if nobody needs the data, DESTROY it: `mkfs.xfs -f -L ephemeral0 /dev/vdc`, then VOLUME_ADOPT=ephemeral0 in the template and update the stack".to_owned(),
        ),
        (&adopted, "ext4", "reuse".to_owned()),
        (&adopted, "vfat", format!("/dev/vdc contains vfat (UUID u1) => {anew}")),
    ] {
        assert_eq!(word(&decide(volume, &found(kind))), expected);
    }
}

#[test]
fn another_serial_adopts_nothing() {
    let volume = Volume { adopt: Some("e41b7f92-0c6d-4f0a-b".into()), ..volume() };
    let found = evidence(|e| {
        holds(e, &["xfs"]);
        e.marker = MarkerEvidence::Absent;
    });
    assert!(matches!(decide(&volume, &found), FormatDecision::Refuse { .. }));
}

proptest::proptest! {
    /// Whatever else is true: nothing recognised is ever formatted, but the remains of our own mkfs.
    #[test]
    fn no_signature_is_ever_formatted_over(
        blank: bool, read_only: bool, swap: bool, busy: bool, mounted in 0..3_usize, kinds in proptest::collection::vec(0..4_usize, 1..3),
        policy in 0..3_usize, adopt: bool, recorded in 0..3_usize, read in 0..4_usize, member: bool,
    ) {
        let mut found = evidence(|_| ());
        let known = ["xfs", "ext4", "gpt", "swap"];
        holds(&mut found, &kinds.iter().map(|at| known[*at]).collect::<Vec<_>>());
        found.disk = DiskEvidence { read_only, swap, busy, blank, ..found.disk };
        found.disk.mounts = ["/var/lib/etcd", "/mnt"][..mounted].iter().map(|s| (*s).to_owned()).collect();
        found.etcd_member = if member { MemberEvidence::In("member") } else { MemberEvidence::Absent };
        match recorded { 0 => {}, 1 => record(&mut found, VolumeState::Formatting, "u2"), _ => record(&mut found, VolumeState::InPlace, "u2") }
        match read { 0 => {}, 1 => found.marker = MarkerEvidence::Absent, 2 => marker(&mut found, "c0ffee", VolumeRole::Etcd, ID), _ => marker(&mut found, "x", VolumeRole::Etcd, ID) }
        let format = [FormatPolicy::IfBlank, FormatPolicy::IfNoSignature, FormatPolicy::Never][policy];
        let volume = Volume { format, adopt: adopt.then(|| SERIAL.to_owned()), ..volume() };
        let formatted = matches!(decide(&volume, &found), FormatDecision::Format { .. });
        proptest::prop_assert!(!formatted);
    }

    /// Whatever else is true: a disk is made a file system on only after it was read in depth, and nothing with a name was found.
    #[test]
    fn nothing_is_formatted_unread(blank: bool, policy in 0..3_usize, adopt: bool, recorded in 0..4_usize, seen in 0..4_usize) {
        let mut found = evidence(|_| ());
        found.disk.blank = blank;
        match recorded { 0 => {}, 1 => record(&mut found, VolumeState::Formatting, "u1"), 2 => record(&mut found, VolumeState::Formatted, "u1"), _ => record(&mut found, VolumeState::InPlace, "u1") }
        match seen { 0 => found.survey = None, 1 => saw(&mut found, begins(1 << 20)), 2 => saw(&mut found, SurveyFinding::Mark(7, gpt())), _ => saw(&mut found, SurveyFinding::Data(9)) }
        let format = [FormatPolicy::IfBlank, FormatPolicy::IfNoSignature, FormatPolicy::Never][policy];
        let volume = Volume { format, adopt: adopt.then(|| SERIAL.to_owned()), ..volume() };
        let formatted = matches!(decide(&volume, &found), FormatDecision::Format { .. });
        proptest::prop_assert!(!formatted || (seen == 3 && format == FormatPolicy::IfNoSignature && recorded < 2));
    }

    /// mkfs is made to overwrite only what carries the UUID that was drawn for it.
    #[test]
    fn force_means_that_the_disk_holds_what_is_recorded(
        blank: bool, kinds in proptest::collection::vec(0..4_usize, 0..3), policy in 0..3_usize, adopt: bool,
        recorded in 0..4_usize, same: bool, read in 0..4_usize,
    ) {
        let mut found = evidence(|_| ());
        let known = ["xfs", "ext4", "gpt", "swap"];
        holds(&mut found, &kinds.iter().map(|at| known[*at]).collect::<Vec<_>>());
        found.disk.blank = blank;
        let uuid = if same { "u1" } else { "u2" };
        match recorded { 0 => {}, 1 => record(&mut found, VolumeState::Formatting, uuid), 2 => record(&mut found, VolumeState::Formatted, uuid), _ => record(&mut found, VolumeState::InPlace, uuid) }
        match read { 0 => {}, 1 => found.marker = MarkerEvidence::Absent, 3 => found.marker = MarkerEvidence::Damaged(String::new()), _ => marker(&mut found, "c0ffee", VolumeRole::Etcd, ID) }
        let format = [FormatPolicy::IfBlank, FormatPolicy::IfNoSignature, FormatPolicy::Never][policy];
        let volume = Volume { format, adopt: adopt.then(|| SERIAL.to_owned()), ..volume() };
        if decide(&volume, &found) == (FormatDecision::Format { force: true }) {
            proptest::prop_assert!(format != FormatPolicy::Never);
            proptest::prop_assert!(!matches!(found.marker, MarkerEvidence::Found(_) | MarkerEvidence::Damaged(_) | MarkerEvidence::Unread));
            proptest::prop_assert!(found.record.is_some_and(|record| record.state == VolumeState::Formatting && is_recorded(&record, &found.disk)));
        }
    }
}
