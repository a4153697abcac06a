//! Snapshots of etcd's keys in a directory beside its data, taken by its own tools: how they are named, when one is due, and how many stay.
//!
//! In: the node's member of etcd, its volume. Out: verified files that `etcd restore` takes. Never: a file that was not verified by the name
//! of one that was, or so little space left that etcd could stop for it.

mod tool;

use std::path::Path;
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use nix::unistd::geteuid;

pub(in crate::keepers) use self::tool::client_arguments;
pub(crate) use self::tool::{RestoredMember, Tools};
use self::tool::{restore, run_as_root, save, status};
use crate::clock::{Clock, Timestamp};
use crate::desired::EtcdMember;
use crate::error::{Context, Error, Result};
use crate::files::{Attributes, FileKind, Tree};
use crate::kubernetes::ETCD_DATA;
use crate::report::status::EtcdSnapshotsStatus;

const BUSY: &str = "another one is just being taken";
/// On the etcd volume.
pub(crate) const DIRECTORY: &str = "/var/lib/etcd/snapshots";
/// There, held by whoever takes one or needs one that is there.
pub(crate) const LOCK: &str = "lock";
/// The job of whoever takes one there.
pub(crate) const JOB: &str = "program-etcd-snapshot";
/// The end of the name that a snapshot has until it is verified.
const UNVERIFIED: &str = "unverified";
/// What etcdctl writes beside that.
const PART: &str = "unverified.part";
/// A snapshot is pages of the database, and a SHA-256 sum behind them.
const PAGE: u64 = 512;
const SUM: u64 = 32;
/// Space that stays free for etcd: as much as its database takes, a tenth of the file system up to the first of these, and the second at least.
const MOST_RESERVE: u64 = 1 << 30;
const LEAST_RESERVE: u64 = 128 << 20;
/// The first snapshot of a node that has none.
const FIRST: Duration = Duration::from_hours(1);
/// After a start of the agent etcd, too, may have just started.
const SETTLING: Duration = Duration::from_mins(1);

/// One that was verified.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Snapshot {
    pub(crate) taken: Timestamp,
    pub(crate) revision: u64,
    pub(crate) bytes: u64,
}

impl Snapshot {
    /// Sorted by time, and without what is special in a shell or to scp.
    pub(crate) fn name(&self) -> String {
        format!("{}-r{}.db", stamp(self.taken), self.revision)
    }

    fn of(name: &str, bytes: u64) -> Option<Self> {
        let (taken, revision) = name.strip_suffix(".db")?.split_once("-r")?;
        let one = Self { taken: parse_stamp(taken)?, revision: revision.parse().ok()?, bytes };
        (one.name() == name).then_some(one)
    }
}

/// `20260301T120000Z`.
pub(crate) fn stamp(at: Timestamp) -> String {
    at.rfc3339().replace(['-', ':'], "")
}

fn parse_stamp(text: &str) -> Option<Timestamp> {
    let part = |from: usize, to: usize| text.get(from..to);
    let date = format!("{}-{}-{}", part(0, 4)?, part(4, 6)?, part(6, 8)?);
    Timestamp::parse_rfc3339(&format!("{date}{}:{}:{}", part(8, 11)?, part(11, 13)?, text.get(13..)?))
}

/// How long until the next one, once the agent has started. A clock that was wrong holds up none.
pub(crate) fn first_pause(newest: Option<&Snapshot>, now: Timestamp, interval: Duration) -> Duration {
    let pause = match newest {
        Some(newest) if newest.taken <= now => interval.saturating_sub(now.since(newest.taken)),
        Some(_) => Duration::ZERO,
        None => interval.min(FIRST),
    };
    pause.max(SETTLING)
}

/// Space of a file system, in bytes.
#[derive(Clone, Copy, Debug)]
struct Space {
    free: u64,
    total: u64,
}

impl Space {
    fn of(root: &Tree, place: &Path) -> Result<Self> {
        let found = statvfs(&root.on_machine(place)).context(|| format!("inspecting {}", place.display()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.fragment_size());
        Ok(Self { free: bytes(found.blocks_available()), total: bytes(found.blocks()) })
    }

    /// How much must be free for a file of this size, where the database is as large.
    fn needed(self, size: u64) -> u64 {
        size + size.max((self.total / 10).min(MOST_RESERVE)).max(LEAST_RESERVE)
    }
}

/// Which of these, the oldest first, go before the next one is taken, so that so many bytes are free. The newest one stays.
fn to_free(kept: &[Snapshot], space: Space, size: u64) -> Option<usize> {
    let removable = kept.len().saturating_sub(1);
    let mut free = space.free;
    for (at, oldest) in kept.iter().take(removable).enumerate() {
        if free >= space.needed(size) {
            return Some(at);
        }
        free += oldest.bytes;
    }
    (free >= space.needed(size)).then_some(removable)
}

/// As `status` shows them.
pub(crate) fn shown(kept: &[Snapshot], failure: Option<&Error>) -> Option<EtcdSnapshotsStatus> {
    let newest = kept.last();
    (newest.is_some() || failure.is_some()).then(|| EtcdSnapshotsStatus {
        kept: kept.len(),
        newest: newest.map(|one| one.taken.rfc3339()),
        revision: newest.map(|one| one.revision),
        bytes: kept.iter().map(|one| one.bytes).sum(),
        wrong: failure.map(ToString::to_string),
        remedy: failure.and_then(|error| error.suggested_remedy().map(str::to_owned)),
    })
}

/// Those that are there, the oldest first.
///
/// # Errors
/// If the directory cannot be read.
pub(crate) fn kept(root: &Tree, now: Timestamp) -> Result<Vec<Snapshot>> {
    let mut all = Vec::new();
    for name in root.list(Path::new(DIRECTORY))? {
        let facts = root.facts(&Path::new(DIRECTORY).join(&name))?.filter(|facts| facts.kind == FileKind::File);
        all.extend(facts.zip(name.to_str()).and_then(|(facts, name)| Snapshot::of(name, facts.size)));
    }
    Ok(oldest_first(all, now))
}

/// Sorted by time. One of a time to come is of a clock that was wrong, and older than all.
fn oldest_first(mut all: Vec<Snapshot>, now: Timestamp) -> Vec<Snapshot> {
    all.sort_unstable_by(|one, other| (one.taken <= now, one).cmp(&(other.taken <= now, other)));
    all
}

/// Refuses what is no whole snapshot at sight: etcd's tools die of some of these.
pub(crate) fn check_whole(root: &Tree, file: &Path) -> Result<u64> {
    match root.facts_followed(file)? {
        Some(facts) if facts.kind == FileKind::File && facts.size > PAGE && facts.size % PAGE == SUM => Ok(facts.size),
        Some(facts) if facts.kind == FileKind::File => {
            Err(Error::refused(format!("{} bytes are no whole snapshot of etcd", facts.size))
                .rule("a snapshot is the database's pages and a checksum behind them"))
        }
        Some(_) => Err(Error::refused("it is no file")),
        None => Err(Error::refused("there is no such file")),
    }
    .map_err(|error| {
        error
            .context(format!("reading {}", file.display()))
            .remedy("use a file that `etcdctl snapshot save` or `heat-node-agent etcd snapshot` wrote")
    })
}

/// What snapshots are taken with.
pub(crate) struct SnapshotKeeper<'a> {
    pub(crate) root: &'a Tree,
    pub(crate) tools: Tools<'a>,
    pub(crate) clock: &'a Clock,
    pub(crate) own: &'a EtcdMember,
}

impl SnapshotKeeper<'_> {
    /// Takes one into the directory, and removes the oldest beyond so many; those that are there then.
    ///
    /// # Errors
    /// If none could be taken; the oldest of those that were there may have been removed to make room.
    pub(crate) async fn take(&self, most: usize) -> Result<Vec<Snapshot>> {
        self.try_to_take(most).await.map_err(|error| error.context("taking a snapshot of etcd"))
    }

    /// The same after the end of one that is just being taken.
    pub(crate) async fn take_in_turn(&self, most: usize) -> Result<Vec<Snapshot>> {
        loop {
            match self.take(most).await {
                Err(error) if error.cause() == BUSY => self.clock.wait(Duration::from_secs(1)).await,
                taken => return taken,
            }
        }
    }

    async fn try_to_take(&self, most: usize) -> Result<Vec<Snapshot>> {
        let size = self.database()?;
        let directory = Path::new(DIRECTORY);
        self.root.create_dir(directory, Attributes::mode(0o700))?;
        let is_own = |facts: crate::files::PathMetadata| facts.kind == FileKind::Directory && facts.owner.0 == geteuid().as_raw();
        if !self.root.facts(directory)?.is_some_and(is_own) {
            return Err(Error::refused(format!("{DIRECTORY} is no directory of root's"))
                .remedy(format!("`mv {DIRECTORY} {DIRECTORY}.other`")));
        }
        self.root.set_attributes(directory, Attributes::mode(0o700))?;
        let Some(_lock) = self.root.lock(&directory.join(LOCK))? else {
            return Err(Error::transient(BUSY).remedy("wait for its end"));
        };
        self.tools.programs.wait_for_former(self.tools.key).await?;
        // The rest of one that was cut off counts for nothing.
        self.clear(directory, "")?;
        let before = kept(self.root, self.clock.now())?;
        let space = Space::of(self.root, directory)?;
        let gone = to_free(&before, space, size).ok_or_else(|| no_space(directory, space, size))?;
        for oldest in before.iter().take(gone) {
            self.root.remove(&directory.join(oldest.name()))?;
        }
        let (revision, bytes) = self.save(directory, "").await?;
        let new = Snapshot { taken: self.clock.now(), revision, bytes };
        self.root.rename(&directory.join(UNVERIFIED), &directory.join(new.name()))?;
        let mut all = kept(self.root, self.clock.now())?;
        let over = all.len().saturating_sub(most.max(1));
        for oldest in all.drain(..over) {
            self.root.remove(&directory.join(oldest.name()))?;
        }
        Ok(all)
    }

    /// Takes one into a file that is not there yet; its revision.
    ///
    /// # Errors
    /// If it could not be taken: there is no such file then.
    pub(crate) async fn take_to(&self, file: &Path) -> Result<u64> {
        let refuse_existing = || match self.root.facts(file)? {
            Some(_) => Err(Error::refused(format!("{} is there already", file.display())).remedy("name another file")),
            None => Ok(()),
        };
        refuse_existing()?;
        let (Some(directory), Some(name)) = (file.parent(), file.file_name().and_then(|name| name.to_str())) else {
            return Err(Error::refused(format!("{} is no path of a file", file.display())));
        };
        let prefix = format!("{name}.");
        self.tools.programs.wait_for_former(self.tools.key).await?;
        self.clear(directory, &prefix)?;
        let (size, space) = (self.database()?, Space::of(self.root, directory)?);
        if space.free < space.needed(size) {
            return Err(no_space(directory, space, size));
        }
        let (revision, _) = self.save(directory, &prefix).await?;
        let taken = directory.join(format!("{prefix}{UNVERIFIED}"));
        // That took minutes.
        if let Err(refusal) = refuse_existing() {
            self.root.remove(&taken)?;
            return Err(refusal);
        }
        self.root.rename(&taken, file)?;
        Ok(revision)
    }

    /// The size of etcd's database.
    fn database(&self) -> Result<u64> {
        if self.own.keeps_v2 {
            return Err(Error::refused("Kubernetes up to 1.5 keeps its objects in etcd's v2 store, which snapshots lack")
                .remedy(format!("`etcdctl backup --data-dir {ETCD_DATA} --backup-dir DIRECTORY`")));
        }
        let facts = self.root.facts(&Path::new(ETCD_DATA).join("member/snap/db"))?;
        let none = || Error::transient(format!("etcd has no database in {ETCD_DATA}")).remedy("check `journalctl -u etcd`");
        facts.map(|facts| facts.size).ok_or_else(none)
    }

    /// Removes what one that was cut off left.
    fn clear(&self, directory: &Path, prefix: &str) -> Result<()> {
        let part = |name: &str| directory.join(format!("{prefix}{name}"));
        self.root.remove(&part(PART)).and_then(|_| self.root.remove(&part(UNVERIFIED))).map(drop)
    }

    /// Saves and verifies one; its revision and size.
    async fn save(&self, directory: &Path, prefix: &str) -> Result<(u64, u64)> {
        let file = directory.join(format!("{prefix}{UNVERIFIED}"));
        let saved = async {
            save(self.tools, &self.own.access, &file).await?;
            let size = check_whole(self.root, &file)?;
            self.root.set_attributes(&file, Attributes::mode(0o600))?;
            Ok((status(self.tools, &file).await?, size))
        };
        let saved = saved.await;
        if saved.is_err() {
            drop(self.clear(directory, prefix));
        }
        saved
    }
}

fn no_space(directory: &Path, space: Space, size: u64) -> Error {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    Error::transient(format!(
        "{} has {} MiB free, and a snapshot needs {}",
        directory.display(),
        mib(space.free),
        mib(space.needed(size))
    ))
    .rule("behind a snapshot as much must be free as etcd's database takes, and a tenth of the file system (128 MiB to 1 GiB)")
    .remedy("extend the volume, free space there, or turn snapshots off: [etcd] snapshot_interval = 0")
}

/// Verifies a snapshot; its revision.
///
/// # Errors
/// If it is no snapshot, or has been changed: the directory is not to be used then.
pub(crate) async fn verify(root: &Tree, tools: Tools<'_>, file: &Path) -> Result<u64> {
    check_whole(root, file)?;
    status(tools, file).await.map_err(|error| error.context(format!("reading {}", file.display())))
}

/// Makes the data of this member from a snapshot, in a directory that is not there yet on the file system of etcd's data.
///
/// # Errors
/// If there is no space, or the checksum is wrong.
pub(crate) async fn unpack(root: &Tree, tools: Tools<'_>, file: &Path, directory: &Path, member: &RestoredMember) -> Result<()> {
    let (size, data) = (check_whole(root, file)?, Path::new(ETCD_DATA));
    run_as_root(tools, &["install", "-d", "-m", "0700", "-o", "etcd", "-g", "etcd", ETCD_DATA]).await?;
    let (free, needed) = (Space::of(root, data)?.free, size + LEAST_RESERVE);
    // The database, and a log of 64 MB beside it.
    if free < needed {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        return Err(Error::transient(format!("{ETCD_DATA} has {} MiB free, and the snapshot needs {}", mib(free), mib(needed)))
            .remedy("extend the volume, or move what is beside etcd's data off it"));
    }
    restore(tools, file, directory, member).await?;
    run_as_root(tools, &["chown", "-hR", "etcd:etcd", &directory.display().to_string()]).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(1_772_366_400_000 + seconds * 1000)
    }

    fn snapshot(seconds: u64, mib: u64) -> Snapshot {
        Snapshot { taken: at(seconds), revision: 7 + seconds, bytes: mib << 20 }
    }

    #[test]
    fn a_name_says_when_and_of_which_revision_and_nothing_else_is_one() {
        let one = snapshot(0, 1);
        assert_eq!(one.name(), "20260301T120000Z-r7.db");
        assert_eq!(Snapshot::of(&one.name(), one.bytes), Some(one));
        for other in [
            "unverified",
            "20260301T120000Z-r7.db.part",
            "20260301T120000Z-r.db",
            "20261301T120000Z-r7.db",
            "20260301T120000Z-r07.db",
            "20260301T120000-r7.db",
            "lock",
            "-r7.db",
            "2026ä301T120000Z-r7.db",
        ] {
            assert_eq!(Snapshot::of(other, 1), None, "{other}");
        }
    }

    #[test]
    fn the_next_one_is_due_by_the_age_of_the_newest() {
        let hours = Duration::from_hours;
        for (newest, interval, expected) in [
            (Some(0), hours(12), hours(11)),
            (Some(0), hours(1), SETTLING),
            (Some(0), Duration::from_mins(30), SETTLING),
            (None, hours(12), hours(1)),
            (None, Duration::from_mins(2), Duration::from_mins(2)),
            // The clock was ahead once.
            (Some(7200), hours(12), SETTLING),
        ] {
            let newest = newest.map(|seconds| snapshot(seconds, 1));
            assert_eq!(first_pause(newest.as_ref(), at(3600), interval), expected, "{newest:?} {interval:?}");
        }
    }

    /// Review: once the clock had been ahead, each new snapshot was removed as the oldest.
    #[test]
    fn what_a_wrong_clock_named_is_the_oldest() {
        let of = |all: Vec<Snapshot>| -> Vec<u64> { all.iter().map(|one| one.revision - 7).collect() };
        let all = [900, 100, 200, 800].map(|seconds| snapshot(seconds, 1)).to_vec();
        assert_eq!(of(oldest_first(all.clone(), at(300))), [800, 900, 100, 200]);
        assert_eq!(of(oldest_first(all, at(1000))), [100, 200, 800, 900]);
    }

    #[test]
    fn the_oldest_make_room_and_the_newest_stays() {
        let kept: Vec<_> = (0..3).map(|at| snapshot(at, 100)).collect();
        let mib = |free: u64, total: u64| Space { free: free << 20, total: total << 20 };
        // 100 MiB for it, and 128 for etcd; of a larger disk a tenth, 1 GiB at most; of a larger database as much as that.
        for (space, size, kept, expected) in [
            (mib(228, 1000), 100, &kept[..], Some(0)),
            (mib(227, 1000), 100, &kept, Some(1)),
            (mib(100, 1000), 100, &kept, Some(2)),
            (mib(27, 1000), 100, &kept, None),
            (mib(227, 1000), 100, &kept[..1], None),
            (mib(227, 1000), 100, &[], None),
            (mib(300, 2000), 100, &[], Some(0)),
            (mib(1124, 100_000), 100, &[], Some(0)),
            (mib(1123, 100_000), 100, &[], None),
            (mib(1999, 4000), 1000, &[], None),
            (mib(2000, 4000), 1000, &[], Some(0)),
        ] {
            assert_eq!(to_free(kept, space, size << 20), expected, "{space:?} {size} {}", kept.len());
        }
    }

    #[test]
    fn what_was_cut_off_is_no_snapshot() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        tree.create_dir(Path::new("/d"), Attributes::mode(0o700)).unwrap();
        for (size, is_whole) in [(0, false), (32, false), (512, false), (20_512, true), (10_000, false), (20_480, false)] {
            tree.write(Path::new("/f"), &vec![0; size], Attributes::mode(0o600)).unwrap();
            assert_eq!(check_whole(&tree, Path::new("/f")).is_ok(), is_whole, "{size}");
        }
        assert!(check_whole(&tree, Path::new("/none")).unwrap_err().to_string().contains("no such file"));
        assert!(check_whole(&tree, Path::new("/d")).is_err());
    }

    #[test]
    fn files_of_others_are_neither_counted_nor_removed() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        assert_eq!(kept(&tree, at(3600)), Ok(Vec::new()));
        tree.create_dir_all(Path::new(DIRECTORY), Attributes::mode(0o700)).unwrap();
        for name in ["20260301T120001Z-r8.db", "20260301T120000Z-r7.db", "unverified", "mine.db", "lock"] {
            tree.write(&Path::new(DIRECTORY).join(name), b"x", Attributes::mode(0o600)).unwrap();
        }
        let found = kept(&tree, at(3600)).unwrap();
        assert_eq!(found.iter().map(Snapshot::name).collect::<Vec<_>>(), ["20260301T120000Z-r7.db", "20260301T120001Z-r8.db"]);
        // Whoever asks, one of a time to come is never the newest.
        let newest = kept(&tree, at(0)).unwrap().pop();
        assert_eq!(newest.map(|one| one.name()).as_deref(), Some("20260301T120000Z-r7.db"));
        let shown = shown(&found, None).unwrap();
        assert_eq!((shown.kept, shown.revision, shown.bytes, shown.wrong), (2, Some(8), 2, None));
        assert!(super::shown(&[], None).is_none());
        let failed = super::shown(&[], Some(&Error::transient("why").remedy("do"))).unwrap();
        assert_eq!((failed.kept, failed.wrong.as_deref(), failed.remedy.as_deref()), (0, Some("why"), Some("do")));
    }
}
