//! The thin pool by a fake LVM that keeps its state in a file, as a disk does.

use std::path::Path;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use super::super::test_keeper::{extend, keeper as keeper_with};
use super::super::*;
use super::thin_pool;
use crate::converge::Volumes;
use crate::desired::{Content, Owner, Volume, VolumeRole};
use crate::error::{Error, Result};
use crate::report::Code;
use crate::storage::marker::VolumeState;
use crate::storage::mount_unit::tests::volume as etcd_volume;
use crate::storage::probe::tests::{machine, put};
use crate::storage::thin_pool::DATA;

const NODE: &str = "dev/vdb";
const SIZE: usize = 4 << 20;
const HOLDER: &str = "sys/class/block/vdb/holders/dm-0";

/// A machine with LVM: `stage` is what LVM has come to (label, group, torn, pool).
#[derive(Debug)]
struct Machine {
    root: PathBuf,
    log: Mutex<Vec<String>>,
    stage: Mutex<&'static str>,
    /// What a group was marked with.
    tags: Mutex<String>,
    /// The call after which the agent is ended.
    ends_after: Mutex<Option<usize>>,
    /// Lines of LVM about groups of the same name on other disks.
    others: &'static str,
    /// What `lvs` says of how full the pool is.
    fill: Mutex<&'static str>,
    /// MiB that LVM takes of the disk, and of the pool's data.
    size: Mutex<(u64, u64)>,
}

impl Machine {
    fn call(&self, line: &str) -> Result<()> {
        self.log.lock().unwrap().push(line.to_owned());
        let mut left = self.ends_after.lock().unwrap();
        if let Some(0) = *left {
            return Err(Error::permanent("ended"));
        }
        *left = left.map(|left| left - 1);
        Ok(())
    }

    /// The disk as LVM labels it.
    fn label(&self, uuid: &str) {
        let mut disk = vec![0; SIZE];
        disk[512..520].copy_from_slice(b"LABELONE");
        disk[512 + 24..512 + 32].copy_from_slice(b"LVM2 001");
        disk[512 + 32..512 + 64].copy_from_slice(uuid.replace('-', "").as_bytes());
        put(&self.root, NODE, &disk);
    }
}

impl VolumeBackend for Machine {
    async fn reload(&self) -> Result<()> {
        self.call("reload")
    }
    async fn start(&self, unit: &str) -> Result<()> {
        assert_eq!((unit, *self.stage.lock().unwrap()), (thin_pool::UNIT, "pool"), "made before it is activated");
        put(&self.root, &format!("{HOLDER}/dm/name"), DATA.as_bytes());
        self.call("start")
    }
    async fn stop(&self, unit: &str) -> Result<()> {
        panic!("{unit} is stopped");
    }
    async fn may_run(&self, _unit: &str) -> Result<bool> {
        Ok(false)
    }
    async fn mount(&self, _: &str, place: &str, _: &str, _: &str) -> Result<()> {
        panic!("{place} is mounted");
    }
    async fn run(&self, key: &str, argv: Vec<String>) -> Result<ProgramOutput> {
        let words = argv.iter().map(String::as_str).collect::<Vec<_>>();
        if key == "program-lvm-fill" {
            assert_eq!((words[0], words[1], *words.last().unwrap()), ("lvm", "lvs", "docker/docker-pool"));
            let fill = *self.fill.lock().unwrap();
            let status = i32::from(fill.is_empty()) * 5;
            self.log.lock().unwrap().push("fill".to_owned());
            return Ok(ProgramOutput {
                status,
                stdout: format!("  {fill}\n"),
                stderr: "  Failed to find logical volume\n".into(),
            });
        }
        assert_eq!((words[0], key), ("lvm", if words[1] == "pvcreate" { "program-mkfs-runtime" } else { "program-lvm-runtime" }));
        let mut stage = self.stage.lock().unwrap();
        let (member, data) = *self.size.lock().unwrap();
        if words.contains(&"vg_uuid,pv_name") {
            let ours = if ["", "label"].contains(&*stage) { "" } else { "  oUr|/dev/vdb\n" };
            return Ok(ProgramOutput { stdout: format!("{ours}{}", self.others), ..ProgramOutput::default() });
        }
        if words.contains(&"lv_size,lv_metadata_size,vg_size,vg_free,vg_extent_size") {
            let free = member - data;
            let sizes = [data << 20, 8 << 20, member << 20, free << 20, 4 << 20].map(|size| size.to_string());
            return Ok(ProgramOutput { stdout: format!("  {}\n", sizes.join("|")), ..ProgramOutput::default() });
        }
        let reported = match (words[1], *stage) {
            ("pvcreate", "") => {
                self.label(words[words.len() - 3]);
                self.call("pvcreate")?;
                String::new()
            }
            ("pvs", "") => return Ok(ProgramOutput { status: 5, ..ProgramOutput::default() }),
            ("pvs", "label") => format!("  |||{}\n", member << 20),
            ("pvs", _) => format!("  docker|{}|oUr|{}\n", self.tags.lock().unwrap(), member << 20),
            ("pvresize", "pool") => {
                let sectors = std::fs::read_to_string(self.root.join("sys/class/block/vdb/size")).unwrap();
                self.size.lock().unwrap().0 = sectors.trim().parse::<u64>().unwrap() / 2048;
                self.call("pvresize")?;
                return Ok(ProgramOutput::default());
            }
            ("lvextend", "pool") => {
                assert!(
                    words.ends_with(&["docker/docker-pool", words[words.len() - 1]])
                        && words[words.len() - 1].ends_with("/dev/vdb")
                );
                let size = words[words.iter().position(|word| *word == "--size").unwrap() + 1].trim_end_matches('b');
                self.size.lock().unwrap().1 = size.parse::<u64>().unwrap() >> 20;
                self.call("lvextend")?;
                return Ok(ProgramOutput::default());
            }
            ("lvs", "group") => String::new(),
            ("lvs", "torn") => "  lvol0|linear\n".to_owned(),
            ("lvs", "pool") => "  docker-pool|thin-pool\n".to_owned(),
            ("vgcreate", "label") => {
                *self.tags.lock().unwrap() =
                    words.iter().filter(|word| word.starts_with("hna.")).copied().collect::<Vec<_>>().join(",");
                *stage = "group";
                self.call("vgcreate")?;
                return Ok(ProgramOutput::default());
            }
            ("lvremove", "torn") => {
                *stage = "group";
                self.call("lvremove")?;
                return Ok(ProgramOutput::default());
            }
            ("lvcreate", "group") => {
                // A power cut in its middle leaves its parts.
                *stage = "torn";
                self.call("lvcreate")?;
                *stage = "pool";
                return Ok(ProgramOutput::default());
            }
            other => panic!("{other:?}"),
        };
        if words[1] == "pvcreate" {
            *stage = "label";
        }
        Ok(ProgramOutput { stdout: reported, ..ProgramOutput::default() })
    }
    async fn wait_stopped(&self, _key: &str) -> Result<()> {
        Ok(())
    }
    fn ids(&self, _owner: &Owner) -> Result<(u32, u32)> {
        panic!("a pool has no owner");
    }
}

fn volume() -> Volume {
    Volume {
        role: VolumeRole::Runtime,
        content: Content::ThinPool,
        mount_point: "/var/lib/docker".into(),
        users: vec!["docker.service".into()],
        ..etcd_volume()
    }
}

fn keeper(root: &Path) -> VolumeKeeper<Machine> {
    machine(root, &vec![0; SIZE]);
    let backend = Machine {
        root: root.to_owned(),
        log: Mutex::default(),
        stage: Mutex::new(""),
        tags: Mutex::default(),
        ends_after: Mutex::new(None),
        others: "",
        fill: Mutex::default(),
        size: Mutex::new((4, 3)),
    };
    keeper_with(root, backend)
}

const MINUTE: Duration = Duration::from_mins(1);
const CALLS: [&str; 5] = ["pvcreate", "vgcreate", "lvcreate", "reload", "start"];

fn log(keeper: &VolumeKeeper<Machine>) -> Vec<String> {
    std::mem::take(&mut *keeper.backend.log.lock().unwrap())
}

#[tokio::test]
async fn a_blank_volume_becomes_the_pool_and_is_then_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = keeper(dir.path());
    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(true));
    assert_eq!(log(&keeper), CALLS);
    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(false));
    assert!(log(&keeper).is_empty());
    assert_eq!(misplaced(&keeper.probe, &keeper.probe.read_disks().unwrap(), &[&volume()]).unwrap().len(), 0);
    // A rebuilt server: LVM has activated it, the record is gone, the tags say whose it is.
    keeper.state.remove(Path::new("volumes/runtime.json")).unwrap();
    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(true));
    assert_eq!(log(&keeper), ["reload", "start"]);
    // Another cluster's.
    keeper.state.remove(Path::new("volumes/runtime.json")).unwrap();
    let failure = keeper.bring_up(&Volume { cluster: "beef".into(), ..volume() }, MINUTE).await.unwrap_err();
    assert!(failure.cause.contains("store of cluster c0ffee") && failure.code == Code::VolumeRefused, "{failure:?}");
    assert!(log(&keeper).is_empty());
}

#[tokio::test]
async fn how_full_the_pool_is_is_asked_now_and_then_and_reported_when_it_nears_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = keeper(dir.path());
    let fills = PoolUsageCache::default();
    let inspection = async || {
        let disks = keeper.probe.read_disks().unwrap();
        keeper.inspect_pool(&volume(), &disks, &fills).await
    };
    let reports = || keeper.progress.report().events().iter().filter(|event| event.code == Code::PoolNearlyFull).count();
    assert!(inspection().await.is_none(), "there is none yet");
    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(true));
    log(&keeper);
    let answers = |answer| *keeper.backend.fill.lock().unwrap() = answer;
    answers("102005473280|113246208|43.10|12.00");
    let first = inspection().await.unwrap();
    assert_eq!((first.fill.unwrap().data, first.wrong), (4310, None));
    answers("102005473280|113246208|91.00|12.00");
    keeper.clock.advance(MINUTE * 4);
    assert!(inspection().await.unwrap().wrong.is_none() && log(&keeper) == ["fill"], "not asked again");
    keeper.clock.advance(MINUTE);
    let full = inspection().await.unwrap();
    assert!(full.wrong.unwrap().to_string().contains("91.00 %") && full.since > first.since);
    answers("102005473280|113246208|92.00|12.00");
    keeper.clock.advance(MINUTE);
    let fuller = inspection().await.unwrap();
    assert_eq!((fuller.fill.unwrap().data, fuller.since, reports()), (9200, full.since, 1), "reported once");
    // LVM that says nothing is no empty pool.
    for answer in ["", "1|2||"] {
        answers(answer);
        keeper.clock.advance(MINUTE);
        let wrong = inspection().await.unwrap().wrong.unwrap();
        assert!(wrong.to_string().starts_with("LVM does not report how full docker/docker-pool is: "), "{wrong}");
    }
    answers("102005473280|113246208|10.00|1.00");
    keeper.clock.advance(MINUTE);
    assert!(inspection().await.unwrap().wrong.is_none());
    log(&keeper);
    // A volume that is a file system, and a disk that is gone.
    let disks = keeper.probe.read_disks().unwrap();
    assert!(keeper.inspect_pool(&etcd_volume(), &disks, &fills).await.is_none());
    assert!(keeper.inspect_pool(&volume(), &[], &fills).await.is_none() && log(&keeper).is_empty());
}

#[tokio::test]
async fn an_end_after_any_call_converges() {
    for at in 0..CALLS.len() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = keeper(dir.path());
        *keeper.backend.ends_after.lock().unwrap() = Some(at);
        let failure = keeper.bring_up(&volume(), MINUTE).await.unwrap_err();
        assert!(failure.cause.contains("ended"), "{at}: {failure:?}");
        assert_eq!(log(&keeper), CALLS[..=at]);
        *keeper.backend.ends_after.lock().unwrap() = None;
        if at == 0 {
            // The label is on the disk and nothing more: it is made once more, with the same UUID, by force.
            *keeper.backend.stage.lock().unwrap() = "";
        }
        let uuid = keeper.record(&volume()).unwrap().unwrap().fs_uuid;
        assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(true), "{at}");
        let record = keeper.record(&volume()).unwrap().unwrap();
        assert_eq!((record.fs_uuid, record.state), (uuid, VolumeState::InPlace));
        let again: &[&str] = match at {
            0 => &["pvcreate", "vgcreate", "lvcreate", "reload", "start"],
            1 => &["lvcreate", "reload", "start"],
            2 => &["lvremove", "lvcreate", "reload", "start"],
            _ => &["reload", "start"],
        };
        assert_eq!(log(&keeper), again, "{at}");
    }
}

#[tokio::test]
async fn what_else_is_on_the_disk_is_refused_and_untouched() {
    for (content, words) in [(&b"XFSB"[..], "contains xfs"), (b"noise", "unknown data")] {
        let dir = tempfile::tempdir().unwrap();
        let keeper = keeper(dir.path());
        let mut disk = vec![0; SIZE];
        disk[..content.len()].copy_from_slice(content);
        put(dir.path(), NODE, &disk);
        let failure = keeper.bring_up(&volume(), MINUTE).await.unwrap_err();
        assert!(failure.cause.contains(words), "{failure:?}");
        assert!(log(&keeper).is_empty() && keeper.record(&volume()).unwrap().is_none());
    }
}

#[tokio::test]
async fn a_group_of_the_same_name_on_another_disk_is_refused_before_anything_is_done() {
    for (calls, others) in [(1, "  oThEr|/dev/sda\n"), (2, "  oThEr|/dev/sda\n"), (3, "  oThEr|/dev/sda\n")] {
        let dir = tempfile::tempdir().unwrap();
        let mut keeper = keeper(dir.path());
        *keeper.backend.ends_after.lock().unwrap() = Some(calls - 1);
        assert!(keeper.bring_up(&volume(), MINUTE).await.is_err());
        *keeper.backend.ends_after.lock().unwrap() = None;
        if calls == 1 {
            *keeper.backend.stage.lock().unwrap() = "label";
            let uuid = keeper.record(&volume()).unwrap().unwrap();
            keeper.write_record(&volume(), &uuid.fs_type, &uuid.fs_uuid, 0, VolumeState::Formatted, None).unwrap();
        }
        log(&keeper);
        keeper.backend.others = others;
        let failure = keeper.bring_up(&volume(), MINUTE).await.unwrap_err();
        assert_eq!(failure.code, Code::VolumeRefused);
        assert!(failure.cause.contains("oThEr on /dev/sda") && failure.cause.contains("/dev/vdb"), "{failure:?}");
        assert!(failure.remedy.contains("vgrename oThEr"), "{failure:?}");
        assert!(log(&keeper).is_empty(), "{calls}");
        keeper.backend.others = "";
        assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(true), "{calls}");
    }
}

#[tokio::test]
async fn a_pool_follows_its_disk_also_where_it_was_extended_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let mut keeper = keeper(dir.path());
    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(true));
    assert_eq!(keeper.record(&volume()).unwrap().unwrap().size, 4 << 20);
    log(&keeper);
    extend(dir.path(), 1024);
    let disks = keeper.probe.read_disks().unwrap();
    // Not while another group has its name.
    keeper.backend.others = "  oThEr|/dev/sda\n";
    let failure = keeper.grow(&volume(), &disks).await.unwrap_err();
    assert!(failure.cause.contains("oThEr on /dev/sda") && log(&keeper).is_empty(), "{failure:?}");
    keeper.backend.others = "";
    keeper.growths.forget();
    assert_eq!(keeper.grow(&volume(), &disks).await, Ok(true));
    assert_eq!(log(&keeper), ["pvresize", "lvextend"]);
    assert_eq!(*keeper.backend.size.lock().unwrap(), (1024, 956), "95 % of what is left beside the metadata");
    assert_eq!(keeper.grow(&volume(), &disks).await, Ok(false));
    // A rebuilt server finds it on a disk that was extended meanwhile.
    keeper.state.remove(Path::new("volumes/runtime.json")).unwrap();
    extend(dir.path(), 2048);
    put(dir.path(), NODE, &std::fs::read(dir.path().join(NODE)).unwrap());
    nix::unistd::truncate(&dir.path().join(NODE), 2048 << 20).unwrap();
    assert_eq!(keeper.bring_up(&volume(), MINUTE).await, Ok(true));
    assert_eq!(log(&keeper), ["reload", "start", "pvresize", "lvextend"]);
    assert_eq!(keeper.record(&volume()).unwrap().unwrap().size, 2048 << 20);
}
