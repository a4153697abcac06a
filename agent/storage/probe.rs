//! The one reader of devices: sysfs, /dev, the mount table, the two ends of a disk, and the places of a survey (`survey.rs`). It
//! never writes, and opens nothing but the disk that was asked for.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::mem;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::identity::Names;
use super::interlock::DiskEvidence;
use super::signatures::{LUKS2_SECOND, SECOND_HEADERS, SPAN, find, is_zero, luks2_second};
use super::survey::{Survey, SurveyProgress, SurveyTarget, survey};
use crate::clock::Stopwatch;
use crate::error::{Context, Result};

/// Longest serial or page that is read, in bytes: VPD pages are at most 64 KiB, useful ones far smaller.
const PAGE: usize = 4096;

/// What a mount table mostly fits into, in bytes.
const TABLE: usize = 16 * 1024;

/// Where the kernel lists devices; a test gives a tree of its own.
#[derive(Clone, Debug)]
pub struct DiskProbe {
    sys: PathBuf,
    dev: PathBuf,
    proc: PathBuf,
}

/// A disk, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// `major:minor`, the only name that the kernel never gives twice at one time.
    pub number: String,
    /// A node that leads to it.
    pub node: PathBuf,
    /// Directory in sysfs.
    sys: PathBuf,
    /// Its names.
    pub names: Names,
}

/// The disks as the newest look found them, for whoever looks again and again: they are read anew once the kernel has announced a device
/// since, or a name in one of the directories of names has changed.
#[derive(Debug, Default)]
pub struct KnownDisks(RefCell<Option<Listing>>);

#[derive(Debug)]
struct Listing {
    mark: DeviceMark,
    /// Two looks found the same mark. What happened between the first one's mark and its end need not show in the second's: a device is
    /// announced before it is gone, and a directory that changes twice within a tick of the clock shows one time of change.
    is_settled: bool,
    disks: Rc<[Disk]>,
}

/// What is another one after each change of a device or of one of its names: how many events the kernel has announced, and of each
/// directory of names inode and time of change.
#[derive(Debug, PartialEq, Eq)]
struct DeviceMark {
    announced: String,
    directories: [Option<(u64, u64, i64, i64)>; 3],
}

impl KnownDisks {
    /// [`DiskProbe::read_disks`].
    ///
    /// # Errors
    /// As there.
    pub fn read(&self, probe: &DiskProbe) -> Result<Rc<[Disk]>> {
        let mark = probe.mark();
        let mut newest = self.0.borrow_mut();
        let known = newest.take().filter(|known| mark.as_ref() == Some(&known.mark));
        let is_settled = known.is_some();
        let disks = match known.filter(|known| known.is_settled) {
            Some(known) => known.disks,
            None => Rc::from(probe.read_disks()?),
        };
        *newest = mark.map(|mark| Listing { mark, is_settled, disks: Rc::clone(&disks) });
        Ok(disks)
    }
}

/// A line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// `major:minor`.
    pub number: String,
    /// Where.
    pub point: String,
    /// What, as mount(8) was given it.
    pub source: String,
}

impl DiskProbe {
    /// The machine's own.
    #[must_use]
    pub fn machine() -> Self {
        Self::at(Path::new("/"))
    }

    /// Reads below `sys`, `dev` and `proc` of this directory.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        Self { sys: root.join("sys"), dev: root.join("dev"), proc: root.join("proc") }
    }

    /// Every disk and every part of one, with all its names.
    ///
    /// # Errors
    /// If sysfs cannot be listed.
    pub fn read_disks(&self) -> Result<Vec<Disk>> {
        let class = self.sys.join("class/block");
        let mut disks = Vec::new();
        for entry in std::fs::read_dir(&class).context(|| format!("listing {}", class.display()))? {
            let name = entry.context(|| format!("listing {}", class.display()))?.file_name();
            let sys = class.join(&name);
            // What vanished since the listing.
            let Some(number) = line(&sys.join("dev")) else { continue };
            let is_partition = sys.join("partition").exists();
            let serials = if is_partition { Vec::new() } else { serials(&sys) };
            let names = Names { serials, is_partition, ..Names::default() };
            disks.push(Disk { number, node: self.dev.join(&name), sys, names });
        }
        disks.sort_unstable_by(|one, other| one.sys.cmp(&other.sys));
        self.add_links("disk/by-id", &mut disks, |names| &mut names.links);
        self.add_links("disk/by-label", &mut disks, |names| &mut names.labels);
        Ok(disks)
    }

    /// Whether udev has made names of disks.
    #[must_use]
    pub fn has_udev(&self) -> bool {
        self.dev.join("disk").exists()
    }

    /// `None` where the kernel does not say how many events it has announced.
    fn mark(&self) -> Option<DeviceMark> {
        let announced = line(&self.sys.join("kernel/uevent_seqnum"))?;
        // Nodes, and what udev makes of an event some time later.
        let directories = ["", "disk/by-id", "disk/by-label"].map(|directory| {
            let meta = std::fs::metadata(self.dev.join(directory)).ok()?;
            Some((meta.dev(), meta.ino(), meta.ctime(), meta.ctime_nsec()))
        });
        Some(DeviceMark { announced, directories })
    }

    /// A link is matched by the device number of the node that it leads to: in a container nodes may lie under names
    /// that sysfs does not know, and known names may be other disks.
    fn add_links(&self, directory: &str, disks: &mut [Disk], list: fn(&mut Names) -> &mut Vec<String>) {
        let directory = self.dev.join(directory);
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            let (path, Ok(link)) = (entry.path(), entry.file_name().into_string()) else { continue };
            let number_of_link = number(&path);
            let disk = if let Some(number) = number_of_link {
                disks.iter_mut().find(|disk| disk.number == number)
            } else {
                let Ok(target) = path.canonicalize() else { continue };
                disks.iter_mut().find(|disk| disk.node.file_name() == target.file_name())
            };
            let Some(disk) = disk else { continue };
            if number(&disk.node).as_ref() != Some(&disk.number)
                && let Ok(target) = path.canonicalize()
            {
                disk.node = target;
            }
            list(&mut disk.names).push(link);
        }
        for disk in disks {
            list(&mut disk.names).sort_unstable();
        }
    }

    /// Everything that the interlock wants to know of one disk, but what lies in its file system.
    ///
    /// # Errors
    /// If the mount table cannot be read.
    pub fn read_evidence(&self, disk: &Disk, serial: &str) -> Result<DiskEvidence> {
        let mounts = self.read_mounts()?;
        let mut evidence = DiskEvidence {
            serial: serial.to_owned(),
            size: size(disk).unwrap_or(0),
            read_only: line(&disk.sys.join("ro")).as_deref() == Some("1"),
            partitions: children(&disk.sys, |path| path.join("partition").exists()),
            holders: self.holders(disk),
            mounts: mounts.into_iter().filter(|mount| mount.number == disk.number).map(|mount| mount.point).collect(),
            swap: self.is_swap(disk),
            ..DiskEvidence::default()
        };
        if evidence.size > 0
            && let Err(error) = read_ends(disk, &mut evidence)
        {
            evidence.unreadable = Some(error.to_string());
        }
        Ok(evidence)
    }

    /// Reads a disk in the depth that is asked of one before it counts as blank. It takes seconds, and on a slow disk minutes.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn survey(&self, disk: &Disk, wanted: &SurveyTarget, watch: &Stopwatch, progress: &SurveyProgress) -> io::Result<Survey> {
        let file = open(disk, 0)?;
        // What is read here is not read again: neither ahead of it nor after it does the cache hold anything. Advice alone.
        let advise = |at: u64, length: usize, advice| {
            let (at, length) = (i64::try_from(at).unwrap_or(0), i64::try_from(length).unwrap_or(0));
            let _advised = posix_fadvise(&file, at, length, advice);
        };
        advise(0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM);
        survey(size(disk).unwrap_or(0), wanted, watch, progress, |buffer, at| {
            file.read_exact_at(buffer, at)?;
            advise(at, buffer.len(), PosixFadviseAdvice::POSIX_FADV_DONTNEED);
            Ok(())
        })
    }

    /// What is built on a disk, by the names that device mapper gave.
    #[must_use]
    pub fn holders(&self, disk: &Disk) -> Vec<String> {
        let directory = disk.sys.join("holders");
        let name = |holder: String| line(&directory.join(&holder).join("dm/name")).unwrap_or(holder);
        children(&directory, |_| true).into_iter().map(name).collect()
    }

    /// The mount table of this process.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read_mounts(&self) -> Result<Vec<Mount>> {
        let path = self.proc.join("self/mountinfo");
        // The kernel makes the table anew for each read.
        let mut text = Vec::with_capacity(TABLE);
        let read = File::open(&path).and_then(|mut file| file.read_to_end(&mut text));
        read.context(|| format!("reading {}", path.display()))?;
        let mut mounts: Vec<Mount> = String::from_utf8_lossy(&text).lines().filter_map(mount).collect();
        for mount in mounts.iter_mut().filter(|mount| mount.number.starts_with("0:") && mount.source.starts_with("/dev/")) {
            // btrfs shows a number of its own, which is no disk's.
            mount.number = number(Path::new(&mount.source)).unwrap_or_else(|| mem::take(&mut mount.number));
        }
        Ok(mounts)
    }

    /// Whether a path below /dev leads to this disk; `None` if it leads nowhere.
    #[must_use]
    pub fn leads_to(&self, path: &str, disk: &Disk) -> Option<bool> {
        let target = self.dev.join(path.trim_start_matches("/dev/")).canonicalize().ok()?;
        Some(match number(&target) {
            Some(number) => number == disk.number,
            None => disk.node.canonicalize().is_ok_and(|node| node == target),
        })
    }

    /// Keeps a disk's node and number from being given to another one for as long as the file is open. It is no claim:
    /// mkfs can still ask for the disk alone.
    ///
    /// # Errors
    /// If the node does not lead to this disk any more.
    pub fn hold(&self, disk: &Disk) -> Result<File> {
        open(disk, 0).context(|| format!("opening {}", disk.node.display()))
    }

    fn is_swap(&self, disk: &Disk) -> bool {
        let text = std::fs::read_to_string(self.proc.join("swaps")).unwrap_or_default();
        text.lines().skip(1).filter_map(|line| line.split_whitespace().next()).any(|path| {
            let path = unescaped(path);
            Path::new(&path) == disk.node || number(Path::new(&path)).as_ref() == Some(&disk.number)
        })
    }
}

/// The disks in words, for whoever misses one: kernel name, size, serial, bus; and where serials may come from udev alone that it is away.
#[must_use]
pub fn describe(disks: &[Disk], has_udev: bool) -> String {
    let (known, unidentified): (Vec<&Disk>, Vec<&Disk>) = disks
        .iter()
        .filter(|disk| !disk.names.is_partition && size(disk).is_some_and(|size| size > 0))
        .partition(|disk| !disk.names.serials.is_empty());
    let described = known.iter().filter_map(|disk| {
        let size = size(disk)?;
        let name = disk.sys.file_name()?.to_string_lossy();
        let bus = std::fs::read_link(disk.sys.join("device/subsystem")).ok();
        let bus = bus.as_ref().and_then(|path| path.file_name()).map_or("no bus".into(), |bus| bus.to_string_lossy());
        let serial = disk.names.serials.first()?;
        Some(format!("{name} ({} MiB, serial {serial}, {bus})", size >> 20).replace(char::is_control, "?"))
    });
    // Loop devices and what else can be no Cinder volume: there may be many.
    let others = match unidentified.len() {
        0 => None,
        1 => Some("1 disk without a serial".to_owned()),
        more => Some(format!("{more} disks without a serial")),
    };
    // Of disks that are not virtio it reads the serial.
    let without_udev = (!unidentified.is_empty() && !has_udev)
        .then(|| "no udev has looked at them: `systemctl status systemd-udevd`".to_owned());
    let all: Vec<String> = described.chain(others).chain(without_udev).collect();
    if all.is_empty() { "no disks".to_owned() } else { all.join(", ") }
}

/// Bytes. sysfs counts 512-byte sectors, whatever the disk's own are.
#[must_use]
pub fn size(disk: &Disk) -> Option<u64> {
    Some(line(&disk.sys.join("size"))?.parse::<u64>().ok()?.saturating_mul(512))
}

fn read_ends(disk: &Disk, evidence: &mut DiskEvidence) -> io::Result<()> {
    let file = open(disk, 0)?;
    let span = usize::try_from(evidence.size).unwrap_or(SPAN).min(SPAN);
    let (mut head, mut tail) = (vec![0; span], vec![0; span]);
    file.read_exact_at(&mut head, 0)?;
    file.read_exact_at(&mut tail, evidence.size - span as u64)?;
    evidence.signatures = find(&head, &tail, evidence.size);
    for at in SECOND_HEADERS {
        let mut magic = [0; LUKS2_SECOND.len()];
        if at < evidence.size {
            file.read_exact_at(&mut magic, at)?;
        }
        if magic == *LUKS2_SECOND {
            evidence.signatures.push(luks2_second());
        }
    }
    evidence.blank = is_zero(&head) && is_zero(&tail);
    let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
    digest.update(&head);
    digest.update(&tail);
    evidence.digest = digest.finish().as_ref().try_into().ok();
    drop(file);
    // O_EXCL without O_CREAT asks the kernel whether anybody (a mount, device mapper, MD) claims the disk (open(2)).
    match open(disk, nix::libc::O_EXCL) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            evidence.busy = true;
            Ok(())
        }
        Err(error) => Err(error),
    }
}

#[expect(clippy::disallowed_methods, reason = "the one reader of devices; it opens them read-only")]
fn open(disk: &Disk, flags: i32) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(flags | nix::libc::O_NONBLOCK).open(&disk.node)?;
    let meta = file.metadata()?;
    // The node may have been given to another disk since it was looked up.
    if meta.file_type().is_block_device() && number_of(meta.rdev()) != disk.number {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("{} is a different disk now", disk.node.display())));
    }
    Ok(file)
}

/// What a disk says of itself: virtio-blk has `serial`, `NVMe` the controller's, SCSI its VPD pages.
fn serials(sys: &Path) -> Vec<String> {
    // Loop devices and their kind have none.
    let has_device = sys.join("device").exists();
    let texts = ["serial", "device/serial"].into_iter().take(if has_device { 2 } else { 1 });
    let texts = texts.filter_map(|name| line(&sys.join(name)));
    let pages = ["device/vpd_pg80", "device/vpd_pg83"].into_iter().filter(|_| has_device);
    let pages = pages.flat_map(|name| runs(&bytes(&sys.join(name))));
    let mut all: Vec<String> = texts.chain(pages).filter(|text| !text.is_empty()).collect();
    all.dedup();
    all
}

/// The runs of printable text in a binary page: designators of any kind, without believing their lengths.
fn runs(page: &[u8]) -> Vec<String> {
    let printable = page.split(|byte| !(b' '..=b'~').contains(byte));
    printable.map(|run| String::from_utf8_lossy(run).trim().to_owned()).filter(|run| run.len() >= super::identity::CUT).collect()
}

fn bytes(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A page that is not there or not readable says nothing; the next name may.
    if let Ok(file) = File::open(path) {
        bytes.reserve_exact(PAGE + 1);
        let _read = file.take(PAGE as u64).read_to_end(&mut bytes);
    }
    bytes
}

fn line(path: &Path) -> Option<String> {
    let text = bytes(path);
    (!text.is_empty()).then(|| String::from_utf8_lossy(&text).trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned())
}

fn children(directory: &Path, wanted: impl Fn(&Path) -> bool) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.filter(|entry| wanted(&entry.path())).filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

/// `major:minor` of a block device's node.
fn number(path: &Path) -> Option<String> {
    let meta = std::fs::metadata(path).ok()?;
    meta.file_type().is_block_device().then(|| number_of(meta.rdev()))
}

fn number_of(device: u64) -> String {
    format!("{}:{}", nix::sys::stat::major(device), nix::sys::stat::minor(device))
}

/// A line of mountinfo (`proc_pid_mountinfo(5))`: number, point and, after the separator, the source.
fn mount(line: &str) -> Option<Mount> {
    let (mount, rest) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(2);
    let (number, point) = (fields.next()?, fields.nth(1)?);
    Some(Mount { number: number.to_owned(), point: unescaped(point), source: unescaped(rest.split(' ').nth(1)?) })
}

/// The kernel writes blanks, tabs, line ends and backslashes as three octal digits.
fn unescaped(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(byte) = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            out.push(byte);
            rest = after.get(3..).unwrap_or_default();
        } else {
            out.push(*first);
            rest = after;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::desired::DiskName;
    use crate::files::{Attributes, Tree};
    use crate::storage::identity::matching;

    const ID: &str = "7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4";

    pub(crate) fn put(root: &Path, path: &str, bytes: &[u8]) {
        let tree = Tree::open(root).unwrap();
        let path = Path::new(path);
        tree.create_dir_all(path.parent().unwrap(), Attributes::mode(0o755)).unwrap();
        tree.write(path, bytes, Attributes::mode(0o644)).unwrap();
    }

    /// A machine with a mounted root disk vda and a blank virtio disk.
    pub(crate) fn machine(root: &Path, content: &[u8]) {
        for (name, number, serial) in [("vda", "252:0", "root"), ("vdb", "252:16", &ID[..20])] {
            put(root, &format!("sys/class/block/{name}/dev"), format!("{number}\n").as_bytes());
            put(root, &format!("sys/class/block/{name}/serial"), serial.as_bytes());
            put(root, &format!("sys/class/block/{name}/size"), format!("{}\n", content.len() / 512).as_bytes());
            put(root, &format!("sys/class/block/{name}/ro"), b"0\n");
        }
        put(root, "sys/class/block/vda1/dev", b"252:1\n");
        put(root, "sys/class/block/vda1/partition", b"1\n");
        put(root, "sys/class/block/vda/vda1/partition", b"1\n");
        put(root, "dev/vdb", content);
        put(root, "proc/self/mountinfo", b"22 1 252:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n");
        put(root, "proc/swaps", b"Filename Type Size Used Priority\n");
        put(root, "proc/filesystems", b"nodev\toverlay\n\text4\n\txfs\n");
    }

    #[test]
    fn disks_are_listed_with_every_name() {
        let dir = tempfile::tempdir().unwrap();
        machine(dir.path(), &[0; 4096]);
        let scsi = [&b"\0\x83\0\x30\x02\x01\0\x2c"[..], b"QEMU    QEMU HARDDISK   e41b7f92-0c6d-4f0a-b1d7-58a2f3c9d610"].concat();
        put(dir.path(), "sys/class/block/sda/dev", b"8:0\n");
        put(dir.path(), "sys/class/block/sda/device/vpd_pg83", &scsi);
        put(dir.path(), "sys/class/block/loop3/dev", b"7:3\n");
        put(dir.path(), "dev/loop3", b"");
        put(dir.path(), "dev/disk/by-id/x", b"");
        std::os::unix::fs::symlink("../../loop3", dir.path().join("dev/disk/by-id/virtio-3b8e6c52-7f10-4d2a-9")).unwrap();
        std::os::unix::fs::symlink("../../gone", dir.path().join("dev/disk/by-id/virtio-gone")).unwrap();
        let disks = DiskProbe::at(dir.path()).read_disks().unwrap();
        let names: Vec<_> = disks.iter().map(|disk| disk.names.clone()).collect();
        let node = |id: &str| {
            matching(&DiskName::Cinder(id.into()), &names)
                .iter()
                .map(|at| disks[*at].node.file_name().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(node(ID), ["vdb"]);
        assert_eq!(node("e41b7f92-0c6d-4f0a-b1d7-58a2f3c9d610"), ["sda"]);
        assert_eq!(node("3b8e6c52-7f10-4d2a-9c84-d06f1e2a5b97"), ["loop3"]);
        assert!(node("11111111-7f10-4d2a-9c84-d06f1e2a5b97").is_empty());
        assert_eq!(disks.iter().filter(|disk| !disk.names.is_partition).count(), 4);
        let bus = dir.path().join("sys/class/block/vdb/device/subsystem");
        put(dir.path(), "sys/class/block/vdb/device/x", b"");
        put(dir.path(), "sys/class/block/vda1/size", b"8\n");
        std::os::unix::fs::symlink("../../../../bus/virtio", bus).unwrap();
        put(dir.path(), "sys/class/block/vdb/size", b"41943040\n");
        let expected = "vda (0 MiB, serial root, no bus), vdb (20480 MiB, serial 7c1f4d0e-93a2-4b86-8, virtio)";
        assert_eq!(describe(&disks, false), expected);
        put(dir.path(), "sys/class/block/loop3/size", b"8\n");
        assert_eq!(describe(&disks, true), format!("{expected}, 1 disk without a serial"));
        let remark = "no udev has looked at them: `systemctl status systemd-udevd`";
        assert_eq!(describe(&disks, false), format!("{expected}, 1 disk without a serial, {remark}"));
        assert_eq!(describe(&[], false), "no disks");
    }

    #[test]
    fn known_disks_are_read_anew_after_each_event_and_each_change_of_a_name() {
        let dir = tempfile::tempdir().unwrap();
        machine(dir.path(), &[0; 4096]);
        put(dir.path(), "dev/disk/by-id/x", b"");
        let (probe, known) = (DiskProbe::at(dir.path()), KnownDisks::default());
        let announce = |count: &str| put(dir.path(), "sys/kernel/uevent_seqnum", count.as_bytes());
        // What no event tells of, so that it shows whether the disks were read.
        let add = |name: &str| put(dir.path(), &format!("sys/class/block/{name}/dev"), b"7:9\n");
        let read = || known.read(&probe).unwrap().len();
        assert_eq!(read(), 3);
        add("a");
        assert_eq!(read(), 4, "nothing is known of events");
        announce("100\n");
        assert_eq!(read(), 4);
        add("b");
        assert_eq!(read(), 5, "one look is no reason to believe the next");
        add("c");
        assert_eq!(read(), 5, "nothing was announced");
        announce("101\n");
        assert_eq!(read(), 6);
        add("d");
        assert_eq!((read(), read()), (7, 7));
        for (number, directory) in ["dev/disk/by-id", "dev/disk/by-label", "dev"].into_iter().enumerate() {
            add(&format!("e{number}"));
            assert_eq!(read(), 7 + number, "{directory}");
            // Not within the tick of the clock in which it changed last.
            let before = probe.mark();
            let is_later = |_| {
                put(dir.path(), &format!("{directory}/new"), b"");
                probe.mark() != before
            };
            assert!((0..100_000).any(is_later), "{directory}");
            assert_eq!(read(), 8 + number, "{directory}");
            assert_eq!((read(), read()), (8 + number, 8 + number));
        }
    }

    #[test]
    fn a_disk_is_read_at_both_ends() {
        for (change, blank, kinds) in [
            (None, true, &[][..]),
            (Some((2 * SPAN, &b"x"[..])), true, &[]),
            (Some((4 * SPAN - 1, b"x")), false, &[]),
            (Some((0, b"XFSB")), false, &["xfs"]),
            (Some((SPAN, b"SKUL\xba\xbe")), true, &["crypto_LUKS"]),
            (Some((2 * SPAN, b"SKUL\xba\xbe")), true, &["crypto_LUKS"]),
        ] {
            let mut content = vec![0; 4 * SPAN];
            if let Some((at, bytes)) = change {
                content[at..at + bytes.len()].copy_from_slice(bytes);
            }
            let dir = tempfile::tempdir().unwrap();
            machine(dir.path(), &content);
            let probe = DiskProbe::at(dir.path());
            let disk = probe.read_disks().unwrap().into_iter().find(|disk| disk.node.ends_with("vdb")).unwrap();
            let evidence = probe.read_evidence(&disk, &ID[..20]).unwrap();
            let found: Vec<_> = evidence.signatures.iter().map(|one| one.kind).collect();
            assert_eq!((evidence.blank, found.as_slice(), evidence.size), (blank, kinds, 4 * SPAN as u64), "{change:?}");
            assert_eq!((evidence.busy, evidence.swap, evidence.unreadable), (false, false, None));
            assert!(evidence.digest.is_some());
        }
    }

    #[test]
    fn a_link_is_followed_to_its_disk() {
        let dir = tempfile::tempdir().unwrap();
        machine(dir.path(), &[0; 4096]);
        put(dir.path(), "dev/vdc", b"");
        put(dir.path(), "dev/disk/by-uuid/x", b"");
        for (link, target) in [("own", "../../vdb"), ("copy", "../../vdc"), ("gone", "../../vdd")] {
            std::os::unix::fs::symlink(target, dir.path().join("dev/disk/by-uuid").join(link)).unwrap();
        }
        let probe = DiskProbe::at(dir.path());
        let disk = probe.read_disks().unwrap().into_iter().find(|disk| disk.node.ends_with("vdb")).unwrap();
        for (link, leads) in [("own", Some(true)), ("copy", Some(false)), ("gone", None), ("none", None)] {
            assert_eq!(probe.leads_to(&format!("/dev/disk/by-uuid/{link}"), &disk), leads, "{link}");
        }
    }

    #[test]
    fn use_by_others_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        machine(dir.path(), &[0; 8192]);
        put(dir.path(), "sys/class/block/vdb/holders/dm-0", b"");
        put(dir.path(), "sys/class/block/vdb/vdb1/partition", b"1\n");
        put(dir.path(), "sys/class/block/vdb/ro", b"1\n");
        put(dir.path(), "proc/self/mountinfo", b"30 22 252:16 / /mnt/a\\040b rw - xfs /dev/vdb rw\nodd\n");
        let node = dir.path().join("dev/vdb");
        put(dir.path(), "proc/swaps", format!("Filename\n{} partition 1 0 -2\n", node.display()).as_bytes());
        let probe = DiskProbe::at(dir.path());
        let disk = probe.read_disks().unwrap().into_iter().find(|disk| disk.node == node).unwrap();
        let evidence = probe.read_evidence(&disk, "").unwrap();
        assert_eq!((evidence.partitions, evidence.holders), (vec!["vdb1".to_owned()], vec!["dm-0".to_owned()]));
        assert_eq!((evidence.mounts, evidence.read_only, evidence.swap), (vec!["/mnt/a b".to_owned()], true, true));
        put(dir.path(), "sys/class/block/vdb/size", b"1000\n");
        assert!(probe.read_evidence(&disk, "").unwrap().unreadable.is_some());
    }

    proptest::proptest! {
        #[test]
        fn no_table_breaks_it(text in "\\PC*", page in proptest::collection::vec(0..=255_u8, 0..64)) {
            let _ = (mount(&text), unescaped(&text), runs(&page));
        }
    }
}
