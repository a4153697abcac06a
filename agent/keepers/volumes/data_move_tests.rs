//! The move with a fake systemd, and with cp, diff and rm as they do it: on directories of this process.

use std::path::Path;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use super::super::test_keeper::keeper as keeper_with;
use super::super::*;
use super::{COPY, DATA};
use crate::converge::{Failure, Volumes};
use crate::desired::Owner;
use crate::error::{Error, Result};
use crate::files::{Attributes, Tree};
use crate::report::Code;
use crate::storage::marker::{FILE, VolumeRecord};
use crate::storage::mount_unit::tests::volume;
use crate::storage::probe::tests::{machine, put};

const PLACE: &str = "run/heat-node-agent/move/etcd";
const MEMBER: &str = "default.etcd/member/snap/db";
const TABLE: &str = "proc/self/mountinfo";
/// Read at both ends only, so a hole.
const SIZE: i64 = 2 << 30;

/// A machine on which `run/…/move/etcd` is the volume while it is mounted there.
#[derive(Debug)]
struct Machine {
    root: PathBuf,
    log: Mutex<Vec<String>>,
    running: Mutex<bool>,
    ends_after: Mutex<Option<usize>>,
    /// What the copy turns out as, where it is not the original.
    corrupts: bool,
    /// The copy takes longer than any deadline.
    endless: bool,
}

impl Machine {
    fn call(&self, line: impl Into<String>) -> Result<()> {
        self.log.lock().unwrap().push(line.into());
        let mut left = self.ends_after.lock().unwrap();
        if let Some(0) = *left {
            return Err(Error::permanent("ended"));
        }
        *left = left.map(|left| left - 1);
        Ok(())
    }

    fn tree(&self) -> Tree {
        Tree::open(&self.root).unwrap()
    }

    fn table(&self) -> String {
        std::fs::read_to_string(self.root.join(TABLE)).unwrap()
    }

    fn content(&self, path: &str) -> Option<Vec<u8>> {
        std::fs::read(self.root.join(path.trim_start_matches('/'))).ok()
    }
}

impl VolumeBackend for Machine {
    async fn reload(&self) -> Result<()> {
        Ok(())
    }
    async fn start(&self, unit: &str) -> Result<()> {
        assert_eq!(unit, "var-lib-etcd.mount");
        if self.table().contains(" /var/lib/etcd ") {
            return self.call("mount");
        }
        // The volume's content at its last place.
        let tree = self.tree();
        assert!(tree.list(Path::new("var/lib/etcd")).unwrap().is_empty(), "the mount point is empty");
        tree.rename(Path::new("volume"), Path::new("var/lib/etcd")).unwrap();
        put(&self.root, TABLE, format!("{}9 1 252:16 / /var/lib/etcd rw - xfs /dev/vdb rw\n", self.table()).as_bytes());
        self.call("mount")
    }
    async fn stop(&self, unit: &str) -> Result<()> {
        if unit == "etcd.service" {
            *self.running.lock().unwrap() = false;
            return self.call("stop etcd");
        }
        assert!(unit.starts_with("run-heat"), "{unit}");
        if self.root.join(PLACE).exists() {
            self.tree().rename(Path::new(PLACE), Path::new("volume")).unwrap();
            let rest: String = self.table().split_inclusive('\n').filter(|line| !line.contains(PLACE)).collect();
            put(&self.root, TABLE, rest.as_bytes());
        }
        self.call("unstage")
    }
    async fn may_run(&self, unit: &str) -> Result<bool> {
        Ok(match unit {
            "etcd.service" => *self.running.lock().unwrap(),
            _ => self.root.join(PLACE).exists() && unit.contains("move"),
        })
    }
    async fn mount(&self, what: &str, place: &str, _: &str, options: &str) -> Result<()> {
        if place.contains("inspect") {
            return Err(Error::permanent("no whole file system"));
        }
        assert!(what.ends_with("vdb") && place.ends_with(PLACE) && options.contains("nodev") && !options.contains("ro,"));
        let tree = self.tree();
        tree.create_dir_all(Path::new("run/heat-node-agent/move"), Attributes::mode(0o700)).unwrap();
        tree.rename(Path::new("volume"), Path::new(PLACE)).unwrap();
        put(&self.root, TABLE, format!("{}9 1 252:16 / /{PLACE} rw - xfs /dev/vdb rw\n", self.table()).as_bytes());
        self.call("stage")
    }
    async fn run(&self, key: &str, argv: Vec<String>) -> Result<ProgramOutput> {
        let words: Vec<&str> = argv.iter().map(String::as_str).collect();
        if words[0] == "mkfs.xfs" {
            let record: VolumeRecord = self.tree().read_json(Path::new("state/volumes/etcd.json")).unwrap().unwrap();
            let mut disk = b"XFSB".repeat(16);
            disk[4..8].copy_from_slice(&4096_u32.to_be_bytes());
            disk[8..16].copy_from_slice(&(u64::try_from(SIZE).unwrap() / 4096).to_be_bytes());
            let uuid = u128::from_str_radix(&record.fs_uuid.replace('-', ""), 16).unwrap();
            disk[32..48].copy_from_slice(&uuid.to_be_bytes());
            make_disk(&self.root, &disk);
            self.tree().create_dir_all(Path::new("volume"), Attributes::mode(0o700)).unwrap();
            self.call("mkfs")?;
            return Ok(ProgramOutput::default());
        }
        assert_eq!(key, "program-move-etcd");
        assert!(self.root.join("state/volumes/etcd-move.json").exists(), "the record comes first");
        let db = |path: &str| format!("{path}/member/snap/db");
        let mut status = 0;
        match words[..] {
            ["rm", "-rf", "--", copy] => {
                self.tree().remove_dir_all(Path::new(copy)).unwrap();
            }
            ["cp", "-a", "--", from, copy] => {
                assert!(!*self.running.lock().unwrap(), "nothing is copied from under a running member");
                assert!(self.content(&db(copy)).is_none(), "never into a copy that is there");
                if self.endless {
                    std::future::pending::<()>().await;
                }
                let bytes = if self.corrupts { b"torn".to_vec() } else { self.content(&db(from)).unwrap() };
                put(&self.root, db(copy).trim_start_matches('/'), &bytes);
            }
            ["diff", "-r", "--no-dereference", one, other] => {
                status = i32::from(self.content(&db(one)) != self.content(&db(other)));
            }
            ["sync", "-f", _] => {}
            ref other => panic!("{other:?}"),
        }
        self.call(words[0])?;
        Ok(ProgramOutput { status, stdout: "Files differ\n".into(), ..ProgramOutput::default() })
    }
    async fn wait_stopped(&self, _: &str) -> Result<()> {
        Ok(())
    }
    fn ids(&self, _: &Owner) -> Result<(u32, u32)> {
        let meta = nix::sys::stat::stat(&self.root).unwrap();
        Ok((meta.st_uid, meta.st_gid))
    }
}

fn make_disk(root: &Path, head: &[u8]) {
    put(root, "dev/vdb", head);
    let sectors = std::fs::read_to_string(root.join("sys/class/block/vdb/size")).unwrap();
    nix::unistd::truncate(&root.join("dev/vdb"), SIZE.max(sectors.trim().parse::<i64>().unwrap() * 512)).unwrap();
}

fn keeper(root: &Path) -> VolumeKeeper<Machine> {
    machine(root, &[]);
    make_disk(root, &[]);
    put(root, "sys/class/block/vdb/size", format!("{}\n", SIZE / 512).as_bytes());
    put(root, &format!("var/lib/etcd/{MEMBER}"), b"objects");
    let backend = Machine {
        root: root.to_owned(),
        log: Mutex::default(),
        running: Mutex::new(true),
        ends_after: Mutex::new(None),
        corrupts: false,
        endless: false,
    };
    let keeper = keeper_with(root, backend);
    keeper.progress.begin_run(Some("d1"));
    keeper
}

const MINUTE: Duration = Duration::from_mins(1);
const CALLS: [&str; 9] = ["mkfs", "stage", "rm", "stop etcd", "cp", "diff", "sync", "unstage", "mount"];

fn log(keeper: &VolumeKeeper<Machine>) -> Vec<String> {
    std::mem::take(&mut *keeper.backend.log.lock().unwrap())
}

fn is_moved(keeper: &VolumeKeeper<Machine>) {
    assert_eq!(keeper.backend.content(&format!("var/lib/etcd/{MEMBER}")).unwrap(), b"objects");
    assert_eq!(
        keeper.backend.content(&format!("var/lib/etcd.before-volume-1/{MEMBER}")).unwrap(),
        b"objects",
        "nothing is removed"
    );
    assert!(keeper.root.facts(Path::new("state/volumes/etcd-move.json")).unwrap().is_none());
    assert!(!keeper.backend.root.join("var/lib/etcd").join(COPY).exists());
}

#[tokio::test]
async fn the_data_is_copied_compared_and_then_used() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = keeper(dir.path());
    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(true));
    assert_eq!(log(&keeper), CALLS);
    is_moved(&keeper);
    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(false));
}

#[tokio::test]
async fn an_end_after_any_call_converges() {
    for at in 0..CALLS.len() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = keeper(dir.path());
        *keeper.backend.ends_after.lock().unwrap() = Some(at);
        let failure = keeper.bring_up(&volume(), MINUTE).await.unwrap_err();
        assert!(failure.cause.contains("ended"), "{at}");
        assert_eq!(log(&keeper)[..=at], CALLS[..=at], "{at}");
        names_stopped_services(&failure, at >= 3);
        *keeper.backend.ends_after.lock().unwrap() = None;
        assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(true), "{at}");
        is_moved(&keeper);
    }
}

fn names_stopped_services(failure: &Failure, is_stopped: bool) {
    assert_eq!(failure.cause.ends_with("; etcd.service stays stopped until the move continues"), is_stopped, "{failure:?}");
    assert_eq!(failure.remedy.ends_with(", then `heat-node-agent rerun d1`"), is_stopped, "{failure:?}");
}

/// The engine cannot know what was stopped, so it is reported before the engine loses patience.
#[tokio::test(start_paused = true)]
async fn a_copy_at_the_deadline_is_reported_with_who_is_stopped_for_it_and_taken_up() {
    let dir = tempfile::tempdir().unwrap();
    let mut keeper = keeper(dir.path());
    keeper.backend.endless = true;
    let call = keeper.clock.limit(MINUTE + Duration::from_secs(5), Box::pin(keeper.bring_up(&volume(), MINUTE))).await;
    let failure = call.unwrap().unwrap_err();
    assert_eq!((failure.code, failure.doing().as_str()), (Code::VolumeFailed, "volume etcd: deadline"));
    assert!(failure.cause.starts_with("not finished at the deadline; "), "{failure:?}");
    names_stopped_services(&failure, true);
    let event = keeper.progress.report().events().last().unwrap().clone();
    assert!(event.message.contains("etcd.service stays stopped") && event.remedy.is_some_and(|it| it.contains("rerun")));
    keeper.backend.endless = false;
    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(true));
    is_moved(&keeper);
}

#[tokio::test]
async fn what_cannot_be_moved_stops_nothing_or_changes_nothing() {
    // A volume that is too small: the member goes on.
    let dir = tempfile::tempdir().unwrap();
    let small = keeper(dir.path());
    put(dir.path(), "sys/class/block/vdb/size", b"8192\n");
    let failure = small.bring_up(&volume(), MINUTE).await.unwrap_err();
    assert!(failure.cause.ends_with("needs 128 MiB") && failure.remedy.contains("larger"), "{failure:?}");
    assert!(*small.backend.running.lock().unwrap());
    // A copy that is not the original is never put in use.
    let dir = tempfile::tempdir().unwrap();
    let mut corrupted = keeper(dir.path());
    corrupted.backend.corrupts = true;
    let failure = corrupted.bring_up(&volume(), MINUTE).await.unwrap_err();
    assert!(failure.cause.contains("diff") && failure.cause.contains("Files differ"), "{failure:?}");
    names_stopped_services(&failure, true);
    assert!(!dir.path().join("volume").join(DATA).exists());
    assert_eq!(corrupted.backend.content(&format!("var/lib/etcd/{MEMBER}")).unwrap(), b"objects");
    // A volume with a member of its own: neither is taken for the other.
    put(dir.path(), &format!("volume/{MEMBER}"), b"another");
    let failure = corrupted.bring_up(&volume(), MINUTE).await.unwrap_err();
    assert!(failure.code == Code::VolumeRefused && failure.cause.contains("they differ"), "{failure:?}");
    assert_eq!(corrupted.backend.content(&format!("var/lib/etcd/{MEMBER}")).unwrap(), b"objects");
}

/// A node whose member would not come back is not stopped for a refusal.
#[tokio::test]
async fn what_is_refused_is_refused_while_the_member_runs() {
    let huge = |root: &Path| {
        let file = Path::new("var/lib/etcd/default.etcd/more");
        put(root, file.to_str().unwrap(), b"");
        nix::unistd::truncate(&root.join(file), 6 << 40).unwrap();
        put(root, "sys/class/block/vdb/size", format!("{}\n", (8_u64 << 40) / 512).as_bytes());
        nix::unistd::truncate(&root.join("dev/vdb"), 8 << 40).unwrap();
    };
    let member = |root: &Path| put(root, &format!("volume/{MEMBER}"), b"another");
    let beside = |root: &Path| put(root, "var/lib/etcd/notes", b"");
    for (make, cause) in [
        (&huge as &dyn Fn(&Path), "has free "),
        (&member, "they differ"),
        (&beside, "/var/lib/etcd/notes is beside default.etcd"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let keeper = keeper(dir.path());
        make(dir.path());
        let failure = keeper.bring_up(&volume(), MINUTE).await.unwrap_err();
        assert!(failure.code == Code::VolumeRefused && failure.cause.contains(cause), "{failure:?}");
        assert!(*keeper.backend.running.lock().unwrap(), "{cause}");
        names_stopped_services(&failure, false);
        assert!(!keeper.backend.table().contains(PLACE), "{cause}");
    }
}

/// An adopted volume carries nobody's mark until ours is on it; then the member that was moved onto it is ours, too.
#[tokio::test]
async fn a_volume_is_marked_before_a_member_is_on_it() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = keeper(dir.path());
    *keeper.backend.ends_after.lock().unwrap() = Some(4);
    assert!(keeper.bring_up(&volume(), MINUTE).await.is_err());
    assert_eq!(log(&keeper)[1..], ["stage", "rm", "stop etcd", "cp", "unstage"]);
    let marked = [PLACE, "volume"].iter().any(|place| keeper.backend.root.join(place).join(FILE).exists());
    assert!(marked && !keeper.backend.root.join("volume").join(DATA).exists());
}
