use std::io::Read;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use super::attempt::{Attempts, is_fleeting};
use super::format::random_uuid;
use super::place::is_mounted_from_its_disk;
use super::test_keeper::{LINK, extend, keeper as keeper_with, link};
use super::*;
use crate::clock::{Clock, Timestamp};
use crate::converge::{Failure, Volumes};
use crate::desired::{Content, Desired, DiskName, Owner, Volume, VolumeRole};
use crate::error::{Error, Result};
use crate::files::{Attributes, Tree};
use crate::report::Code;
use crate::storage::interlock::{DiskEvidence, Evidence};
use crate::storage::marker::{FILE, VolumeMarker, VolumeRecord, VolumeState};
use crate::storage::mount_unit::tests::volume;
use crate::storage::probe::tests::{machine, put};
use crate::storage::probe::{Disk, DiskProbe};

const NODE: &str = "dev/vdb";
const TABLE: &str = "proc/self/mountinfo";
const SIZE: usize = 4 << 20;

/// A machine whose mounts are lines in a table, and whose file system content is `inside`.
#[derive(Debug)]
struct Machine {
    root: PathBuf,
    log: Mutex<Vec<String>>,
    inside: Vec<(&'static str, String)>,
    running: Vec<&'static str>,
    mkfs: &'static str,
    refuses_mounts: bool,
    /// How many calls fail before the bus is back.
    away: Mutex<u32>,
}

impl Machine {
    fn say(&self, line: String) {
        self.log.lock().unwrap().push(line);
    }

    fn bus(&self) -> Result<()> {
        let mut away = self.away.lock().unwrap();
        if *away > 0 {
            *away -= 1;
            return Err(Error::transient("the bus is away"));
        }
        Ok(())
    }

    fn table(&self) -> String {
        std::fs::read_to_string(self.root.join(TABLE)).unwrap()
    }

    fn mount_at(&self, place: &str) -> Result<()> {
        if self.refuses_mounts {
            return Err(Error::permanent("job failed"));
        }
        for (name, content) in &self.inside {
            put(&self.root, &format!("{place}/{name}"), content.as_bytes());
        }
        Tree::open(&self.root).unwrap().create_dir_all(Path::new(place), Attributes::mode(0o755)).unwrap();
        put(&self.root, TABLE, format!("{}9 1 252:16 / {place} rw - xfs /dev/vdb rw\n", self.table()).as_bytes());
        Ok(())
    }
}

impl VolumeBackend for Machine {
    async fn reload(&self) -> Result<()> {
        self.bus()?;
        self.say("reload".into());
        Ok(())
    }
    async fn start(&self, unit: &str) -> Result<()> {
        self.say(format!("start {unit}"));
        assert_eq!(unit, "var-lib-etcd.mount");
        self.mount_at("/var/lib/etcd")
    }
    async fn stop(&self, unit: &str) -> Result<()> {
        self.say(format!("stop {unit}"));
        let place = format!(" /{} ", unit.trim_end_matches(".mount").replace("\\x2d", "@").replace('-', "/").replace('@', "-"));
        let rest = self.table().split_inclusive('\n').filter(|line| !line.contains(&place)).collect::<String>();
        put(&self.root, TABLE, rest.as_bytes());
        Ok(())
    }
    async fn may_run(&self, unit: &str) -> Result<bool> {
        self.bus()?;
        Ok(self.running.contains(&unit))
    }
    async fn mount(&self, _what: &str, place: &str, fs_type: &str, options: &str) -> Result<()> {
        self.say(format!("inspect {fs_type} {options}"));
        self.mount_at(place)
    }
    async fn wait_stopped(&self, key: &str) -> Result<()> {
        self.bus()?;
        self.say(format!("wait {key}"));
        Ok(())
    }
    async fn run(&self, key: &str, argv: Vec<String>) -> Result<ProgramOutput> {
        if key == "program-grow-etcd" {
            self.say(argv.join(" ").replace(&format!("{}/", self.root.display()), "/"));
            let failed = ProgramOutput { status: 1, stdout: String::new(), stderr: "no room\n".into() };
            return Ok(if self.mkfs == "good" { ProgramOutput::default() } else { failed });
        }
        if key == "program-label-etcd" {
            self.say(argv.join(" "));
            let stderr = "restorecon: no policy\n".into();
            let failed = ProgramOutput { status: 255, stderr, ..ProgramOutput::default() };
            return Ok(if self.mkfs == "good" { ProgramOutput::default() } else { failed });
        }
        if key == "program-modprobe" {
            self.say(argv.join(" "));
            let stderr = "modprobe: FATAL: Module xfs not found in directory /lib/modules/6.1.0\n".into();
            return Ok(if self.mkfs == "good" {
                ProgramOutput::default()
            } else {
                ProgramOutput { status: 1, stderr, ..ProgramOutput::default() }
            });
        }
        assert_eq!(key, "program-mkfs-etcd");
        self.say(
            argv.iter()
                .map(|arg| {
                    if arg.starts_with("uuid=") {
                        "uuid=U"
                    } else if arg.starts_with('/') {
                        "NODE"
                    } else {
                        arg
                    }
                })
                .collect::<Vec<_>>()
                .join(" "),
        );
        let record: VolumeRecord =
            Tree::open(&self.root.join("state")).unwrap().read_json(Path::new("volumes/etcd.json")).unwrap().unwrap();
        assert_eq!(
            (record.state, argv.contains(&format!("uuid={}", record.fs_uuid))),
            (VolumeState::Formatting, true),
            "the record comes first"
        );
        match self.mkfs {
            "good" => put(&self.root, NODE, &xfs(&record.fs_uuid)),
            "lies" => {}
            "breaks" => {
                put(&self.root, NODE, &[b"torn".to_vec(), vec![0; SIZE - 4]].concat());
                return Ok(ProgramOutput { status: 1, stdout: String::new(), stderr: "I/O error\n".into() });
            }
            "is ended" => return Ok(ProgramOutput { status: -9, ..ProgramOutput::default() }),
            words => return Ok(ProgramOutput { status: 1, stdout: String::new(), stderr: format!("\n{words}\n") }),
        }
        Ok(ProgramOutput::default())
    }
    fn ids(&self, owner: &Owner) -> Result<(u32, u32)> {
        assert_eq!(owner.user, "etcd");
        let meta = nix::sys::stat::stat(&self.root).unwrap();
        Ok((meta.st_uid, meta.st_gid))
    }
}

fn xfs(uuid: &str) -> Vec<u8> {
    let mut disk = vec![0; SIZE];
    disk[..8].copy_from_slice(b"XFSB\0\0\x10\0");
    disk[8..16].copy_from_slice(&(SIZE as u64 / 4096).to_be_bytes());
    disk[32..48].copy_from_slice(&u128::from_str_radix(&uuid.replace('-', ""), 16).unwrap().to_be_bytes());
    disk
}

const UUID: &str = "0b7e1122-3344-4566-b788-99aabbccddee";

fn keeper(root: &Path, content: &[u8]) -> VolumeKeeper<Machine> {
    machine(root, content);
    let backend = Machine {
        root: root.to_owned(),
        log: Mutex::default(),
        inside: vec![],
        running: vec![],
        mkfs: "good",
        refuses_mounts: false,
        away: Mutex::default(),
    };
    keeper_with(root, backend)
}

fn recorded(keeper: &VolumeKeeper<Machine>, state: VolumeState) {
    keeper.write_record(&volume(), "xfs", UUID, SIZE as u64, state, None).unwrap();
}

fn codes(keeper: &VolumeKeeper<Machine>) -> Vec<Code> {
    keeper.progress.report().events().iter().map(|event| event.code).collect()
}

fn log(keeper: &VolumeKeeper<Machine>) -> Vec<String> {
    std::mem::take(&mut *keeper.backend.log.lock().unwrap())
}

fn marker_of(volume: &str) -> String {
    let marker = VolumeMarker {
        schema: 1,
        cluster: "c0ffee".into(),
        role: VolumeRole::Etcd,
        volume: volume.into(),
        fs_uuid: UUID.into(),
        made_at: "then".into(),
    };
    serde_json::to_string(&marker).unwrap()
}

const MINUTE: Duration = Duration::from_mins(1);

#[tokio::test]
async fn a_blank_volume_is_recorded_formatted_mounted_marked_and_then_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = keeper(dir.path(), &vec![0; SIZE]);
    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(true));
    assert_eq!(log(&keeper), ["mkfs.xfs -q -K -n ftype=1 -m uuid=U -L hna-etcd NODE", "reload", "start var-lib-etcd.mount"]);
    let reported = codes(&keeper);
    assert_eq!(reported[..2], [Code::VolumeFound, Code::VolumeSurveyed]);
    assert_eq!(reported[2..], [Code::VolumeFormatting, Code::VolumeFormatted, Code::VolumeMounted]);
    let read = keeper.progress.report().events().iter().find(|event| event.code == Code::VolumeSurveyed).unwrap().message.clone();
    assert!(read.ends_with("places were read, 5 of 4 MiB, all zeros"), "{read}");
    let marker: VolumeMarker = keeper.root.read_json(Path::new("var/lib/etcd/.heat-node-agent")).unwrap().unwrap();
    let record = keeper.record(&volume()).unwrap().unwrap();
    assert_eq!((marker.cluster.as_str(), marker.volume, marker.fs_uuid), ("c0ffee", volume().disk.to_string(), record.fs_uuid));
    assert_eq!(record.state, VolumeState::InPlace);
    assert_eq!(keeper.root.facts(Path::new("var/lib/etcd")).unwrap().unwrap().mode, 0o700);

    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(false));
    assert!(log(&keeper).is_empty() && codes(&keeper).len() == 5);
    // After a reboot that lost the mount: mounted again, never formatted again.
    keeper.backend.stop("var-lib-etcd.mount").await.unwrap();
    keeper.root.remove(Path::new("var/lib/etcd/.heat-node-agent")).unwrap();
    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(true));
    assert_eq!(log(&keeper), ["stop var-lib-etcd.mount", "reload", "start var-lib-etcd.mount"]);
}

#[tokio::test]
async fn where_selinux_is_on_a_new_file_system_is_labelled_before_anybody_uses_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut keeper = keeper(dir.path(), &vec![0; SIZE]);
    put(dir.path(), "sys/fs/selinux/enforce", b"1");
    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(true));
    let labels = "restorecon -F -- /var/lib/etcd /var/lib/etcd/.heat-node-agent";
    assert_eq!(log(&keeper)[2..], ["start var-lib-etcd.mount", labels]);
    // Without labels it is not in place, and the next try sees to them.
    recorded(&keeper, VolumeState::Formatted);
    keeper.backend.mkfs = "is not asked";
    let failure = keeper.bring_up(&volume(), Duration::ZERO).await.unwrap_err();
    assert!(failure.cause.contains(labels) && failure.cause.contains("restorecon: no policy"), "{failure:?}");
    assert_eq!(keeper.record(&volume()).unwrap().unwrap().state, VolumeState::Formatted);
    keeper.backend.mkfs = "good";
    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(true));
    assert_eq!(log(&keeper).last().map(String::as_str), Some(labels));
}

#[tokio::test]
async fn a_disk_that_never_answers_keeps_two_threads_and_no_other_disk_from_being_read() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = keeper(dir.path(), &vec![0; SIZE]);
    let disks = keeper.probe.read_disks().unwrap();
    let disk = |name: &str| disks.iter().find(|disk| disk.node.ends_with(name)).unwrap();
    // The disk answers when the writer goes.
    let (disk_io, answers) = std::io::pipe().unwrap();
    let mut tries = Vec::new();
    for _ in 0..4 {
        let mut disk_io = disk_io.try_clone().unwrap();
        let work = move |_: &DiskProbe, _: &Disk| Ok(disk_io.read(&mut [0]).map(drop)?);
        // A try that is given up before its time leaves its thread behind all the same.
        tries.push(keeper.clock.limit(Duration::from_millis(50), keeper.run_blocking(disk("vdb"), work)).await);
    }
    let silent = Err(Error::transient(format!("{} does not answer within 60 s", disk("vdb").node.display())));
    assert_eq!(tries, [None, None, Some(silent.clone()), Some(silent)]);
    assert_eq!(keeper.run_blocking(disk("vda"), |_, _| Ok(())).await, Ok(()));
    drop(answers);
    // The threads end in their own time.
    while keeper.run_blocking(disk("vdb"), |_, _| Ok(())).await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_disk_that_mkfs_refuses_is_never_forced() {
    let dir = tempfile::tempdir().unwrap();
    let mut keeper = keeper(dir.path(), &vec![0; SIZE]);
    keeper.backend.mkfs = "vdb appears to contain something";
    for _ in 0..2 {
        let failure = keeper.bring_up(&volume(), MINUTE).await.unwrap_err();
        assert_eq!((failure.code, failure.doing().as_str()), (Code::VolumeRefused, "volume etcd: mkfs"));
        assert!(failure.cause.ends_with("ended with status 1: vdb appears to contain something"), "{failure:?}");
        assert!(failure.remedy.contains("wipefs") && failure.remedy.contains("blkdiscard"), "{failure:?}");
        assert_eq!(keeper.record(&volume()), Ok(None), "nothing of ours is on the disk");
        assert_eq!(log(&keeper), ["mkfs.xfs -q -K -n ftype=1 -m uuid=U -L hna-etcd NODE"]);
    }
}

#[tokio::test]
async fn a_file_system_that_the_kernel_cannot_mount_is_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let mut keeper = keeper(dir.path(), &vec![0; SIZE]);
    put(dir.path(), "proc/filesystems", b"nodev\toverlay\n\text4\n");
    keeper.backend.mkfs = "no module";
    let failure = keeper.bring_up(&volume(), MINUTE).await.unwrap_err();
    assert_eq!((failure.code, failure.doing().as_str()), (Code::VolumeFailed, "volume etcd: mkfs"));
    let cause = "the kernel has no xfs, and the volume was not formatted: modprobe: FATAL: Module xfs not found in directory ";
    assert!(failure.cause.starts_with(cause) && failure.remedy.contains("modprobe xfs"), "{failure:?}");
    assert_eq!((keeper.record(&volume()), log(&keeper)), (Ok(None), vec!["modprobe xfs".to_owned()]), "nothing was begun");
    // An image with it, or one that loads it.
    keeper.backend.mkfs = "good";
    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(true));
    assert_eq!(log(&keeper)[..2], ["modprobe xfs", "mkfs.xfs -q -K -n ftype=1 -m uuid=U -L hna-etcd NODE"]);
}

#[tokio::test]
async fn a_mkfs_that_was_ended_has_refused_nothing_and_is_run_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut keeper = keeper(dir.path(), &vec![0; SIZE]);
    keeper.backend.mkfs = "is ended";
    let failure = keeper.bring_up(&volume(), MINUTE).await.unwrap_err();
    assert_eq!((failure.code, failure.doing().as_str()), (Code::VolumeFailed, "volume etcd: mkfs"));
    assert!(failure.cause.ends_with(" was killed by signal 9: it printed nothing"), "{failure:?}");
    assert!(failure.rule.is_none() && !failure.remedy.contains("blkdiscard"), "{failure:?}");
    keeper.backend.mkfs = "good";
    log(&keeper);
    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(true));
    assert_eq!(log(&keeper)[..2], ["wait program-mkfs-etcd", "mkfs.xfs -q -K -n ftype=1 -m uuid=U -L hna-etcd NODE"]);
}

#[tokio::test]
async fn what_a_broken_mkfs_left_is_forced_only_if_it_carries_the_recorded_uuid() {
    for (mkfs, cause) in [("breaks", "status 1: I/O error"), ("lies", "does not contain what mkfs.xfs should have created")] {
        let dir = tempfile::tempdir().unwrap();
        let mut keeper = keeper(dir.path(), &vec![0; SIZE]);
        keeper.backend.mkfs = mkfs;
        let failure = keeper.bring_up(&volume(), MINUTE).await.unwrap_err();
        assert!(failure.cause.contains(cause) && failure.code == Code::VolumeFailed, "{failure:?}");
        let record = keeper.record(&volume()).unwrap().unwrap();
        assert_eq!(record.state, VolumeState::Formatting);
        keeper.backend.mkfs = "good";
        log(&keeper);
        put(dir.path(), NODE, &[b"torn".to_vec(), vec![0; SIZE - 4]].concat());
        let failure = keeper.bring_up(&volume(), MINUTE).await.unwrap_err();
        assert!(failure.cause.contains("unknown data") && failure.remedy.contains("blkdiscard"), "{failure:?}");
        assert_eq!(log(&keeper), ["wait program-mkfs-etcd"]);
        put(dir.path(), NODE, &xfs(&record.fs_uuid));
        assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(true));
        let done = log(&keeper);
        assert!(done[1].starts_with("inspect xfs ro,") && done[2].starts_with("stop run-heat"), "looked into before: {done:?}");
        assert_eq!(done[3], "mkfs.xfs -q -K -f -n ftype=1 -m uuid=U -L hna-etcd NODE");
        assert_eq!(keeper.record(&volume()).unwrap().unwrap().fs_uuid, record.fs_uuid, "a retry draws no other UUID");
    }
}

#[tokio::test]
async fn a_blank_disk_after_a_crash_before_mkfs_takes_the_ordinary_path() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = keeper(dir.path(), &vec![0; SIZE]);
    recorded(&keeper, VolumeState::Formatting);
    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(true));
    assert_eq!(log(&keeper)[..2], ["wait program-mkfs-etcd", "mkfs.xfs -q -K -n ftype=1 -m uuid=U -L hna-etcd NODE"]);
}

#[tokio::test]
async fn a_bus_that_is_away_costs_time_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = keeper(dir.path(), &vec![0; SIZE]);
    *keeper.backend.away.lock().unwrap() = 3;
    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(true));
    assert_eq!(log(&keeper).iter().filter(|line| line.starts_with("mkfs")).count(), 1);
    keeper.backend.stop("var-lib-etcd.mount").await.unwrap();
    keeper.root.remove(Path::new("var/lib/etcd/.heat-node-agent")).unwrap();
    *keeper.backend.away.lock().unwrap() = 999;
    let failure = keeper.bring_up(&volume(), Duration::from_secs(5)).await.unwrap_err();
    assert_eq!((failure.code, failure.cause.as_str()), (Code::VolumeFailed, "the bus is away"));
}

#[tokio::test]
async fn a_link_to_another_disk_is_never_mounted() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = keeper(dir.path(), &xfs(UUID));
    recorded(&keeper, VolumeState::Formatted);
    keeper.root.remove(Path::new(LINK)).unwrap();
    put(dir.path(), "dev/vdc", b"");
    let by_uuid = format!("dev/disk/by-uuid/{UUID}");
    link(dir.path(), &by_uuid, "../../vdc");
    let failure = keeper.bring_up(&volume(), MINUTE).await.unwrap_err();
    assert!(failure.cause.contains("with the same UUID") && failure.remedy.contains("blkid"), "{failure:?}");
    assert!(log(&keeper).is_empty() && !dir.path().join("etc/systemd/system/var-lib-etcd.mount").exists());
    keeper.root.remove(Path::new(&by_uuid)).unwrap();
    let failure = keeper.bring_up(&volume(), Duration::from_secs(3)).await.unwrap_err();
    assert!(failure.cause.contains("udev has not created the link"), "{failure:?}");
    link(dir.path(), &by_uuid, "../../vdb");
    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(true));
    // What is recorded counts, not the name that udev prefers by now.
    link(dir.path(), LINK, "../../vdb");
    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(false));
    assert_eq!(is_mounted_from_its_disk(&keeper.probe, &volume()), Ok(true));
    put(dir.path(), "sys/class/block/vdb/dev", b"252:32\n");
    assert_eq!(is_mounted_from_its_disk(&keeper.probe, &volume()), Ok(false));
}

#[test]
fn what_may_pass_is_inspected_again() {
    let clock = Clock::manual(Timestamp(0));
    let attempts = |deadline| Attempts { started: clock.start(), deadline, found: false, waiting: false };
    let record: VolumeRecord = serde_json::from_value(serde_json::json!({
        "schema": 1, "role": "etcd", "cluster": "c", "volume": "v", "fs_type": "xfs", "fs_uuid": UUID, "state": "formatting", "at": 0
    }))
    .unwrap();
    for (busy, unreadable, formatting, mounted, since, left, fleeting) in [
        (false, false, true, false, 0, MINUTE, false),
        (true, false, false, false, 7, MINUTE, true),
        (true, false, false, false, 8, MINUTE, false),
        (true, false, false, false, 2, Duration::ZERO, true),
        (true, false, false, false, 3, Duration::ZERO, false),
        (false, true, false, false, 0, MINUTE, true),
        (false, true, false, false, 8, MINUTE, false),
        (true, false, true, false, 8, MINUTE, true),
        (true, false, true, false, 8, Duration::ZERO, false),
        (true, false, true, true, 8, MINUTE, false),
    ] {
        let disk = DiskEvidence {
            busy,
            unreadable: unreadable.then(|| "ENXIO".to_owned()),
            mounts: mounted.then(|| "/mnt".to_owned()).into_iter().collect(),
            ..DiskEvidence::default()
        };
        let evidence = Evidence { disk, record: formatting.then(|| record.clone()), ..Evidence::default() };
        assert_eq!(is_fleeting(&evidence, Duration::from_secs(since), &attempts(left)), fleeting, "{evidence:?} for {since} s");
    }
}

/// A look at the node in place.
async fn grow(keeper: &VolumeKeeper<Machine>) -> std::result::Result<bool, Failure> {
    keeper.grow(&volume(), &keeper.probe.read_disks().unwrap()).await
}

#[tokio::test]
async fn what_was_extended_is_grown_once() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = keeper(dir.path(), &vec![0; SIZE]);
    assert_eq!(grow(&keeper).await, Ok(false), "nothing is known of it");
    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(true));
    assert_eq!(keeper.record(&volume()).unwrap().unwrap().size, SIZE as u64);
    log(&keeper);
    extend(dir.path(), 19);
    assert_eq!(grow(&keeper).await, Ok(false), "less than XFS can use");
    extend(dir.path(), 20);
    // A deployment's run does it as well as a look at the running node.
    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(true));
    extend(dir.path(), 40);
    assert_eq!(grow(&keeper).await, Ok(true));
    assert_eq!(log(&keeper), ["xfs_growfs -d /var/lib/etcd"; 2]);
    assert_eq!(codes(&keeper)[5..], [Code::VolumeGrowing, Code::VolumeGrown].repeat(2));
    assert_eq!((keeper.bring_up(&volume(), MINUTE).await, grow(&keeper).await), (Ok(false), Ok(false)));
    assert!(log(&keeper).is_empty());
    // Another kind of file system, and a volume that is not mounted.
    let what = keeper.record(&volume()).unwrap().unwrap().what;
    keeper.write_record(&volume(), "ext4", UUID, 1, VolumeState::InPlace, what.clone()).unwrap();
    assert_eq!(grow(&keeper).await, Ok(true));
    assert_eq!(log(&keeper), ["resize2fs /dev/vdb"]);
    keeper.write_record(&volume(), "ext4", UUID, 1, VolumeState::InPlace, what).unwrap();
    keeper.backend.stop("var-lib-etcd.mount").await.unwrap();
    assert_eq!(grow(&keeper).await, Ok(false));
}

#[tokio::test]
async fn a_growth_that_fails_is_reported_fails_nothing_else_and_is_tried_ever_more_seldom() {
    let dir = tempfile::tempdir().unwrap();
    let mut keeper = keeper(dir.path(), &vec![0; SIZE]);
    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(true));
    log(&keeper);
    extend(dir.path(), 20);
    keeper.backend.mkfs = "breaks";
    // A deployment brings its node up all the same.
    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(false));
    assert_eq!(codes(&keeper)[5..], [Code::VolumeGrowing, Code::VolumeNotGrown]);
    // A look every half a minute for a day: each one hears of it, few try.
    for _ in 0..2 * 60 * 24 {
        keeper.clock.advance(Duration::from_secs(30));
        let failure = grow(&keeper).await.unwrap_err();
        assert_eq!((failure.code, failure.doing().as_str()), (Code::VolumeFailed, "grow"));
        assert_eq!(failure.cause, "xfs_growfs -d /var/lib/etcd ended with status 1: no room");
    }
    let tries = log(&keeper).len();
    assert!((20..=35).contains(&tries), "{tries}");
    assert_eq!(codes(&keeper).iter().filter(|code| **code == Code::VolumeNotGrown).count(), tries, "each try is reported");
    // Who extends it further, or asks by a new deployment, does not wait; and what is repaired is forgotten.
    extend(dir.path(), 40);
    assert!(grow(&keeper).await.is_err() && grow(&keeper).await.is_err());
    keeper.growths.forget();
    assert!(grow(&keeper).await.is_err());
    assert_eq!(log(&keeper).len(), 2);
    keeper.backend.mkfs = "good";
    keeper.clock.advance(MINUTE);
    assert_eq!((grow(&keeper).await, grow(&keeper).await), (Ok(true), Ok(false)));
}

#[tokio::test]
async fn noise_is_formatted_once_and_the_allowance_is_used_up_then() {
    let dir = tempfile::tempdir().unwrap();
    let noise = vec![7; SIZE];
    let keeper = keeper(dir.path(), &noise);
    let allowed = Volume { format: crate::desired::FormatPolicy::IfNoSignature, ..volume() };
    assert_eq!(keeper.bring_up(&allowed, MINUTE).await, Ok(true));
    let message = keeper
        .progress
        .report()
        .events()
        .iter()
        .find(|event| event.code == Code::VolumeFormatting)
        .map(|event| event.message.clone());
    assert!(
        message.is_some_and(|message| message.ends_with("discarding what is on it: ETCD_VOLUME_FORMAT allows it, this once"))
    );
    keeper.backend.stop("var-lib-etcd.mount").await.unwrap();
    keeper.root.remove(Path::new("var/lib/etcd/.heat-node-agent")).unwrap();
    log(&keeper);
    put(dir.path(), NODE, &noise);
    let failure = keeper.bring_up(&allowed, MINUTE).await.unwrap_err();
    assert!(failure.cause.contains("but this agent created or used a file system there"), "{failure:?}");
    assert!(log(&keeper).is_empty());
}

#[tokio::test]
async fn what_begins_inside_a_disk_is_refused_by_name_and_left_as_it_is() {
    let mib = 1 << 20;
    let torn = |uuid: &str| {
        let mut disk = vec![0; SIZE];
        let number = u128::from_str_radix(&uuid.replace('-', ""), 16).unwrap();
        disk[2 * mib..2 * mib + 16].copy_from_slice(&number.to_be_bytes());
        disk
    };
    for (content, state, cause) in [
        (
            [vec![0; mib], xfs(UUID)[..SIZE - mib].to_vec()].concat(),
            None,
            "contains xfs (UUID 0b7e1122-3344-4566-b788-99aabbccddee) that begins at 1 MiB",
        ),
        (torn(UUID), None, "contains unknown data at 2 MiB"),
        (torn("1b7e1122-3344-4566-b788-99aabbccddee"), Some(VolumeState::Formatting), "contains unknown data at 2 MiB"),
        // What our own mkfs left behind a power cut is nobody else's.
        (torn(UUID), Some(VolumeState::Formatting), ""),
        (torn(UUID), Some(VolumeState::Formatted), "contains unknown data at 2 MiB, but this agent created"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let keeper = keeper(dir.path(), &content);
        if let Some(state) = state {
            recorded(&keeper, state);
        }
        let found = keeper.bring_up(&volume(), MINUTE).await;
        assert_eq!(found.is_ok(), cause.is_empty(), "{found:?}");
        if let Err(failure) = found {
            assert!(failure.code == Code::VolumeRefused && failure.cause.contains(cause), "{failure:?}");
            assert!(
                std::fs::read(dir.path().join(NODE)).unwrap() == content
                    && log(&keeper).iter().all(|line| line.starts_with("wait"))
            );
        }
    }
}

#[tokio::test]
async fn a_marked_volume_is_looked_into_and_used_without_a_byte_changed() {
    for (name, marker, member, outcome) in [
        ("ours", Some(marker_of(volume().disk.as_str())), true, "reuse"),
        ("a copy", Some(marker_of("other")), true, "contains a copy of volume other"),
        ("none", None, false, "which this agent did not make"),
        ("a member", None, true, "with an etcd member in it"),
        ("damaged", Some("{".into()), false, "its marker is damaged"),
        ("a member, and a marker too long to be read", Some("x".repeat(65 * 1024)), true, "with an etcd member in it"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut keeper = keeper(dir.path(), &xfs(UUID));
        keeper.backend.inside.extend(marker.map(|marker| (FILE, marker)));
        keeper.backend.inside.extend(member.then(|| ("default.etcd/member/snap/db", String::new())));
        let before = std::fs::read(dir.path().join(NODE)).unwrap();
        let found = keeper.bring_up(&volume(), MINUTE).await;
        assert_eq!(std::fs::read(dir.path().join(NODE)).unwrap(), before);
        let inspect =
            ["inspect xfs ro,nosuid,nodev,noexec,norecovery,nouuid", "stop run-heat\\x2dnode\\x2dagent-inspect-etcd.mount"];
        let log = log(&keeper);
        assert_eq!(log[..2], inspect, "{name}");
        if outcome == "reuse" {
            assert_eq!(
                (found, log.len(), codes(&keeper)),
                (Ok(true), 4, vec![Code::VolumeFound, Code::VolumeReused, Code::VolumeMounted]),
                "{name}"
            );
            let marker: VolumeMarker = keeper.root.read_json(Path::new("var/lib/etcd/.heat-node-agent")).unwrap().unwrap();
            assert_eq!(marker.made_at, "then");
        } else {
            let failure = found.unwrap_err();
            assert!(failure.cause.contains(outcome) && !failure.remedy.is_empty(), "{name}: {failure:?}");
            assert_eq!((log.len(), codes(&keeper)), (2, vec![Code::VolumeFound, Code::VolumeRefused]), "{name}");
        }
    }
}

#[tokio::test]
async fn a_live_store_is_never_mounted_over() {
    let dir = tempfile::tempdir().unwrap();
    let mut keeper = keeper(dir.path(), &vec![0; SIZE]);
    keeper.backend.running.push("etcd.service");
    let failure = keeper.bring_up(&volume(), MINUTE).await.unwrap_err();
    assert!(failure.cause.contains("etcd.service is running"), "{failure:?}");
    keeper.backend.running.clear();
    put(dir.path(), "var/lib/etcd/default/member", b"");
    let failure = keeper.bring_up(&volume(), MINUTE).await.unwrap_err();
    assert!(failure.cause.contains("/var/lib/etcd is not empty"), "{failure:?}");
    assert!(log(&keeper).is_empty());
}

#[tokio::test]
async fn a_missing_disk_is_waited_for_until_the_deadline_and_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = keeper(dir.path(), &vec![0; SIZE]);
    put(dir.path(), "sys/class/block/vdb/serial", b"another");
    keeper.root.remove(Path::new(LINK)).unwrap();
    let failure = keeper.bring_up(&volume(), Duration::from_secs(5)).await.unwrap_err();
    assert_eq!(failure.code, Code::VolumeMissing);
    assert!(
        failure.cause.contains("volume 7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4 is not attached (no disk has that serial; present: vda (4 MiB, serial root, no bus), vdb (4 MiB, serial another, no bus)), for 5 s by now"),
        "{}",
        failure.cause
    );
    assert_eq!(codes(&keeper), [Code::VolumeWaiting, Code::VolumeMissing]);
}

#[tokio::test]
async fn a_damaged_record_is_quarantined_and_allows_nothing_more() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = keeper(dir.path(), &xfs(UUID));
    put(dir.path(), "state/volumes/etcd.json", b"{\"schema\": 1,");
    let failure = keeper.bring_up(&volume(), MINUTE).await.unwrap_err();
    assert!(failure.cause.contains("which this agent did not make"), "{failure:?}");
    assert_eq!(codes(&keeper), [Code::StateFileQuarantined, Code::VolumeFound, Code::VolumeRefused]);
    assert!(dir.path().join("state/volumes/etcd.unreadable").exists());
}

#[tokio::test]
async fn a_mount_that_fails_names_its_unit() {
    let dir = tempfile::tempdir().unwrap();
    let mut keeper = keeper(dir.path(), &vec![0; SIZE]);
    keeper.backend.refuses_mounts = true;
    let failure = keeper.bring_up(&volume(), MINUTE).await.unwrap_err();
    assert_eq!((failure.doing().as_str(), failure.unit.as_deref()), ("volume etcd: mount", Some("var-lib-etcd.mount")));
    // The next try goes on behind the mkfs.
    keeper.backend.refuses_mounts = false;
    log(&keeper);
    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(true));
    assert_eq!(log(&keeper), ["reload", "start var-lib-etcd.mount"]);
}

#[test]
fn uuids_are_random_and_of_version_4() {
    let (one, other) = (random_uuid().unwrap(), random_uuid().unwrap());
    assert_ne!(one, other);
    assert!(crate::kubernetes::parameters::kinds::ParameterKind::Uuid.normalised(&one).is_some(), "{one}");
    assert!(one.get(14..15) == Some("4") && one.get(19..20).is_some_and(|digit| "89ab".contains(digit)), "{one}");
}

/// A member that runs, its data, and the drop-in that an earlier deployment left.
fn runs_beside(keeper: &mut VolumeKeeper<Machine>, drop_in: &str) {
    keeper.backend.running.push("etcd.service");
    put(&keeper.backend.root, "var/lib/etcd/default.etcd/member/snap/db", b"data");
    put(&keeper.backend.root, "etc/systemd/system/etcd.service.d/50-heat-node-agent.conf", drop_in.as_bytes());
}

fn desired(volumes: &[Volume]) -> Desired {
    Desired { volumes: volumes.to_vec(), ..Desired::default() }
}

#[tokio::test]
async fn who_runs_without_a_volume_is_asked_for_none_before_its_disk_is_there() {
    const WITHOUT: &str = "[Unit]\n";
    let late = Volume { disk: DiskName::Cinder("ffff4d0e-93a2-4b86-8d55-2f60c6b1a9e4".into()), ..volume() };
    let early = async |volume: &Volume, drop_in: Option<&str>| {
        let dir = tempfile::tempdir().unwrap();
        let mut keeper = keeper(dir.path(), &vec![0; SIZE]);
        if let Some(text) = drop_in {
            runs_beside(&mut keeper, text);
        } else {
            keeper.backend.running.push("etcd.service");
        }
        let checked = keeper.check_places(&desired(std::slice::from_ref(volume)), Duration::ZERO, true).await;
        assert!(log(&keeper).is_empty(), "nothing is done");
        (checked, codes(&keeper))
    };
    let (checked, reported) = early(&late, Some(WITHOUT)).await;
    let failure = checked.unwrap_err();
    assert_eq!((failure.code, failure.doing().as_str()), (Code::VolumeMissing, "volume etcd: find"));
    assert_eq!(reported, [Code::VolumeMissing]);
    // The disk is there; a first boot, whose engine is as the image has it; a unit that asks for the volume already.
    for (volume, drop_in, reported) in [
        (&volume(), Some(WITHOUT), vec![Code::VolumeSurveyed]),
        (&late, None, vec![]),
        (&late, Some("[Unit]\nAssertPathIsMountPoint=/var/lib/etcd\n"), vec![]),
    ] {
        assert_eq!(early(volume, drop_in).await, (Ok(()), reported), "{drop_in:?}");
    }
}

#[tokio::test]
async fn what_could_only_be_refused_later_is_refused_before_anything_is_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let mut keeper = keeper(dir.path(), &[b"torn".to_vec(), vec![1; SIZE - 4]].concat());
    runs_beside(&mut keeper, "[Unit]\n");
    let refusal = keeper.check_places(&desired(&[volume()]), MINUTE, true).await.unwrap_err();
    assert_eq!(refusal.code, Code::VolumeRefused, "{refusal:?}");

    // The disk is another store's, as after a change of the runtime.
    put(dir.path(), TABLE, format!("{}9 1 252:16 / /var/lib/docker rw - xfs /dev/vdb rw\n", keeper.backend.table()).as_bytes());
    let other = Volume { role: VolumeRole::Runtime, mount_point: "/var/lib/containerd".into(), users: vec![], ..volume() };
    let refusal = keeper.check_places(&desired(&[other]), MINUTE, true).await.unwrap_err();
    assert!(refusal.cause.contains("in use as /var/lib/docker") && refusal.remedy.contains("CONTAINER_RUNTIME"), "{refusal:?}");
    let here = Volume { role: VolumeRole::Runtime, mount_point: "/var/lib/docker".into(), users: vec![], ..volume() };
    assert_eq!(keeper.check_places(&desired(std::slice::from_ref(&here)), MINUTE, true).await, Ok(()));
    let pool = Volume { content: Content::ThinPool, ..here };
    assert!(keeper.check_places(&desired(&[pool]), MINUTE, true).await.unwrap_err().cause.contains("in use as /var/lib/docker"));
}

/// Attack: an update wrote its files before it waited for a disk that was in use before, and left the node half way.
#[tokio::test]
async fn an_update_waits_for_a_disk_that_was_in_use_before_it_writes_anything() {
    let late = Volume { disk: DiskName::Cinder("ffff4d0e-93a2-4b86-8d55-2f60c6b1a9e4".into()), ..volume() };
    for (state, is_deployment, waits) in
        [(VolumeState::InPlace, true, true), (VolumeState::InPlace, false, false), (VolumeState::Formatted, true, false)]
    {
        let dir = tempfile::tempdir().unwrap();
        let keeper = keeper(dir.path(), &vec![0; SIZE]);
        keeper.write_record(&late, "xfs", UUID, SIZE as u64, state, None).unwrap();
        let checked = keeper.check_places(&desired(std::slice::from_ref(&late)), Duration::ZERO, is_deployment).await;
        assert_eq!(checked.err().map(|failure| failure.code), waits.then_some(Code::VolumeMissing), "{state:?} {is_deployment}");
        assert!(log(&keeper).is_empty(), "nothing is done");
    }
}

#[tokio::test]
async fn no_store_is_taken_off_its_volume_by_parameters_that_leave_it_out() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = keeper(dir.path(), &vec![0; SIZE]);
    assert_eq!(keeper.check_places(&desired(&[]), MINUTE, true).await, Ok(()));
    recorded(&keeper, VolumeState::InPlace);
    assert_eq!(keeper.check_places(&desired(&[]), MINUTE, true).await, Ok(()), "nothing is mounted");
    keeper.backend.mount_at("/var/lib/etcd").unwrap();
    assert_eq!(keeper.check_places(&desired(&[volume()]), MINUTE, false).await, Ok(()));
    let other = Volume { disk: DiskName::Cinder("ffff4d0e-93a2-4b86-8d55-2f60c6b1a9e4".into()), ..volume() };
    for volumes in [&[][..], &[other]] {
        // A repair may be of a part of the node alone, as a renewal of what has expired is.
        if volumes.is_empty() {
            assert_eq!(keeper.check_places(&desired(volumes), MINUTE, false).await, Ok(()));
        }
        let refusal = keeper.check_places(&desired(volumes), MINUTE, true).await.unwrap_err();
        assert_eq!((refusal.code, refusal.doing().as_str()), (Code::VolumeRefused, "volume etcd: check"));
        assert!(
            refusal.cause.contains("7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4, which the parameters no longer name"),
            "{refusal:?}"
        );
    }
    assert_eq!(codes(&keeper), [Code::VolumeRefused, Code::VolumeRefused]);
    // The same disk by another name is the interlock's to judge.
    let link = Volume { disk: DiskName::Link("virtio-7c1f4d0e-93a2-4b86-8".into()), ..volume() };
    assert_eq!(keeper.check_places(&desired(&[link]), MINUTE, true).await, Ok(()));
    // Taken off by hand, and another disk in its place: the record is of the past.
    keeper.backend.stop("var-lib-etcd.mount").await.unwrap();
    put(dir.path(), TABLE, format!("{}9 1 252:0 / /var/lib/etcd rw - xfs /dev/vda rw\n", keeper.backend.table()).as_bytes());
    assert_eq!(keeper.check_places(&desired(&[]), MINUTE, true).await, Ok(()));
}
