//! What is on a disk, recognized by its first and last MiB, and what begins further in.
//!
//! The rule of the interlock is "no signature of any kind", so this knows everything that is met on volumes, not only
//! what the agent can mount. Offsets and magic numbers are those of each format's own on-disk documentation; the
//! bytes are hostile and none of them can make it panic.

/// How much of either end is read, in bytes.
pub const SPAN: usize = 1024 * 1024;

/// One thing found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// As blkid(8) and mount(8) spell it: `xfs`, `ext4`, `LVM2_member`, `gpt`.
    pub kind: &'static str,
    /// Label, where the format has one and it is set.
    pub label: Option<String>,
    /// UUID, where the format has one.
    pub uuid: Option<String>,
    /// How much of the disk it takes, in bytes, where that is of use here: xfs, ext, btrfs.
    pub size: Option<u64>,
}

impl Signature {
    /// `xfs "data" (UUID …)`.
    #[must_use]
    pub fn description(&self) -> String {
        let label = self.label.as_ref().map(|label| format!(" \"{label}\"")).unwrap_or_default();
        let uuid = self.uuid.as_ref().map(|uuid| format!(" (UUID {uuid})")).unwrap_or_default();
        format!("{}{label}{uuid}", self.kind)
    }

    /// Whether the agent can mount it as a store.
    #[must_use]
    pub fn is_mountable(&self) -> bool {
        matches!(self.kind, "xfs" | "ext4" | "ext3") && self.uuid.is_some()
    }
}

/// Formats that are recognized by fixed bytes from the start of the disk, and of which nothing more is of use here.
const FIXED: &[(&str, usize, &[u8])] = &[
    ("apfs", 32, b"NXSB"),
    ("bcache", 4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    ("bcachefs", 4096 + 24, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"),
    ("BitLocker", 3, b"-FVE-FS-"),
    ("ceph_bluestore", 0, b"bluestore block device"),
    ("erofs", 1024, b"\xe2\xe1\xf5\xe0"),
    ("exfat", 3, b"EXFAT   "),
    ("f2fs", 1024, b"\x10\x20\xf5\xf2"),
    ("f2fs", 4096 + 1024, b"\x10\x20\xf5\xf2"),
    ("gfs2", 65_536, b"\x01\x16\x19\x70"),
    ("hfsplus", 1024, b"H+\x00\x04"),
    ("jfs", 32_768, b"JFS1"),
    ("LVM1_member", 0, b"HM\x01\x00"),
    ("nilfs2", 1024 + 6, b"\x34\x34"),
    ("ocfs2", 2048, b"OCFSV2"),
    ("ocfs2", 4096, b"OCFSV2"),
    ("reiserfs", 65_536 + 52, b"ReIsEr"),
    ("reiserfs", 8192 + 52, b"ReIsEr"),
    ("squashfs", 0, b"hsqs"),
    ("squashfs", 0, b"sqsh"),
    ("stratis", 512 + 4, b"!Stra0tis\x86\xff\x02^\x41rh"),
    ("udf", 32_768 + 1, b"BEA01"),
    ("vdo", 0, b"dmvdo001"),
    ("zonefs", 0, b"SFOZ"),
];

/// The ends of a disk.
struct Disk<'a> {
    head: &'a [u8],
    tail: &'a [u8],
    size: u64,
}

/// Everything that is recognised. `head` and `tail` are the first and last [`SPAN`] bytes, or all of a smaller disk.
#[must_use]
pub fn find(head: &[u8], tail: &[u8], size: u64) -> Vec<Signature> {
    let disk = Disk { head, tail, size };
    let fixed = FIXED.iter().filter(|(_, at, magic)| disk.is(*at, magic)).map(|(kind, ..)| plain(kind));
    let parsed = [xfs, ext, btrfs, swap, lvm2, luks, gpt, dos, iso9660, zfs, drbd].into_iter().filter_map(|parser| parser(&disk));
    let mut found: Vec<Signature> = parsed.chain(raid(&disk)).chain(fixed).collect();
    found.dedup();
    // Whatever it boots. Of the volumes that read as noise one in 65,536 is refused for it, and has its remedy.
    if found.is_empty() && disk.is(510, BOOT) {
        found.push(plain("boot sector"));
    }
    found
}

/// Whether every byte is zero.
#[must_use]
pub fn is_zero(bytes: &[u8]) -> bool {
    // By blocks: byte by byte, a survey of a large disk would spend its time here.
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|block| ZEROS.get(..block.len()) == Some(block))
}

/// What keeps its mark at its end or in a ring of places: kind, what the mark's places are multiples of, offset, mark. Of MD,
/// the magic number is followed by the version.
const MARKS: &[(&str, usize, usize, &[u8])] = &[
    ("gpt", 512, 0, b"EFI PART\x00\x00\x01\x00"),
    ("linux_raid_member", 4096, 0, b"\xfc\x4e\x2b\xa9\x01\x00\x00\x00"),
    ("linux_raid_member", 4096, 0, b"\xfc\x4e\x2b\xa9\x00\x00\x00\x00"),
    ("drbd", 4096, 60, b"\x83\x74\x02\x6a"),
    ("drbd", 4096, 60, b"\x83\x74\x02\x6b"),
    ("drbd", 4096, 60, b"\x83\x74\x02\x6c"),
    ("drbd", 4096, 60, b"\x83\x74\x02\x6d"),
    // The second header of LUKS2, whose first one was overwritten, lies at 16 KiB or more behind it.
    ("crypto_LUKS", 4096, 0, LUKS2_SECOND),
    ("zfs_member", 1024, 0, b"\x0c\xb1\xba\0\0\0\0\0"),
    ("zfs_member", 1024, 0, b"\0\0\0\0\0\xba\xb1\x0c"),
];

/// What begins with these bytes, which are of the inside of a disk. A survey looks at thousands of places, and of those that
/// hold noise one in 65,536 has any given two bytes: so formats with so short a magic number must make sense otherwise, too.
#[must_use]
pub fn find_inside(bytes: &[u8]) -> Option<Signature> {
    // Nothing is known of where it ends.
    let disk = Disk { head: bytes, tail: &[], size: u64::MAX };
    let at_most = |at: usize, most: u32| disk.le32(at).is_some_and(|value| value <= most);
    let is_sound = |signature: &Signature| match signature.kind {
        // Blocks of 1 KiB to 64 KiB; revision 0 or 1.
        "ext2" | "ext3" | "ext4" | "jbd" => at_most(1024 + 24, 6) && at_most(1024 + 76, 1),
        "nilfs2" => disk.le32(1024) == Some(2),
        "boot sector" => false,
        _ => true,
    };
    let found: Vec<Signature> = find(bytes, &[], u64::MAX).into_iter().filter(is_sound).collect();
    // The boot sector of a file system may pass for a partition table.
    let at = found.iter().position(|one| one.kind != "dos").unwrap_or_default();
    found.into_iter().nth(at)
}

/// A mark of something that ends in these bytes or has it in several places, with the mark's place in them.
#[must_use]
pub fn find_mark(bytes: &[u8]) -> Option<(usize, Signature)> {
    MARKS.iter().find_map(|(kind, step, offset, mark)| {
        let places = (0..bytes.len()).step_by(*step).map(|at| at + offset);
        let at = places.into_iter().find(|at| bytes.get(*at..at + mark.len()) == Some(*mark))?;
        Some((at - offset, plain(kind)))
    })
}

impl Disk<'_> {
    fn bytes(&self, at: usize, length: usize) -> Option<&[u8]> {
        self.head.get(at..at.checked_add(length)?)
    }

    fn is(&self, at: usize, magic: &[u8]) -> bool {
        self.bytes(at, magic.len()) == Some(magic)
    }

    /// Bytes by their place on the disk, where that lies in the tail.
    fn tail_bytes(&self, at: u64, length: usize) -> Option<&[u8]> {
        let start = self.size.checked_sub(self.tail.len() as u64)?;
        let at = usize::try_from(at.checked_sub(start)?).ok()?;
        self.tail.get(at..at.checked_add(length)?)
    }

    fn le16(&self, at: usize) -> Option<u16> {
        Some(u16::from_le_bytes(self.bytes(at, 2)?.try_into().ok()?))
    }

    fn le32(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes(at, 4)?.try_into().ok()?))
    }

    fn be32(&self, at: usize) -> Option<u32> {
        Some(u32::from_be_bytes(self.bytes(at, 4)?.try_into().ok()?))
    }

    fn text(&self, at: usize, length: usize) -> Option<String> {
        text(self.bytes(at, length)?)
    }

    fn uuid(&self, at: usize) -> Option<String> {
        uuid(self.bytes(at, 16)?)
    }
}

fn plain(kind: &'static str) -> Signature {
    Signature { kind, ..Signature::default() }
}

/// Text up to the first zero byte, without what a terminal would obey.
fn text(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next()?).trim().replace(char::is_control, "?");
    (!text.is_empty()).then_some(text)
}

fn uuid(bytes: &[u8]) -> Option<String> {
    let mut out = String::with_capacity(36);
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            out.push('-');
        }
        out.extend([byte >> 4, byte & 15].into_iter().filter_map(|digit| char::from_digit(digit.into(), 16)));
    }
    (!is_zero(bytes)).then_some(out)
}

fn xfs(disk: &Disk) -> Option<Signature> {
    let size = || u64::from(disk.be32(4)?).checked_mul(u64::from(disk.be32(8)?) << 32 | u64::from(disk.be32(12)?));
    disk.is(0, b"XFSB").then(|| Signature { kind: "xfs", label: disk.text(108, 12), uuid: disk.uuid(32), size: size() })
}

/// ext2, ext3 and ext4 share the superblock at 1024; the features tell them apart (Linux, fs/ext4/ext4.h).
fn ext(disk: &Disk) -> Option<Signature> {
    if disk.le16(1024 + 56)? != 0xef53 {
        return None;
    }
    let (compatible, incompatible, read_only) = (disk.le32(1024 + 92)?, disk.le32(1024 + 96)?, disk.le32(1024 + 100)?);
    // Everything beyond what ext3 knows: incompat beyond filetype, recover, journal_dev, meta_bg; ro_compat beyond
    // sparse_super, large_file, btree_dir.
    let beyond_ext3 = incompatible & !0x1e != 0 || read_only & !0x7 != 0;
    let kind = match () {
        () if incompatible & 0x8 != 0 => "jbd",
        () if beyond_ext3 => "ext4",
        () if compatible & 0x4 != 0 => "ext3",
        () => "ext2",
    };
    // Blocks of 1024 << n bytes; their count has an upper half where the feature 64bit says so.
    let upper = if incompatible & 0x80 == 0 { 0 } else { u64::from(disk.le32(1024 + 336)?) };
    let block = 1024_u64.checked_shl(disk.le32(1024 + 24)?);
    let size = block.and_then(|block| block.checked_mul(upper << 32 | u64::from(disk.le32(1024 + 4)?)));
    Some(Signature { kind, label: disk.text(1024 + 120, 16), uuid: disk.uuid(1024 + 104), size })
}

/// mkfs.btrfs writes a magic number of its own until it is done (btrfs-progs, `BTRFS_MAGIC_TEMPORARY`).
fn btrfs(disk: &Disk) -> Option<Signature> {
    let at = 64 * 1024;
    let is_btrfs = disk.is(at + 64, b"_BHRfS_M") || disk.is(at + 64, b"!BHRfS_M");
    // What the file system takes of this one disk.
    let size = || Some(u64::from(disk.le32(at + 213)?) << 32 | u64::from(disk.le32(at + 209)?));
    is_btrfs.then(|| Signature { kind: "btrfs", label: disk.text(at + 299, 256), uuid: disk.uuid(at + 32), size: size() })
}

/// The signature lies at the end of the first page, whose size is that of the machine that made it.
fn swap(disk: &Disk) -> Option<Signature> {
    let page = [4096, 8192, 16_384, 32_768, 65_536].into_iter().find(|page| {
        [&b"SWAPSPACE2"[..], b"SWAP-SPACE", b"S1SUSPEND\0", b"S2SUSPEND\0", b"ULSUSPEND\0"]
            .iter()
            .any(|magic| disk.is(page - 10, magic))
    })?;
    let new = disk.is(page - 10, b"SWAPSPACE2");
    Some(Signature {
        kind: "swap",
        label: new.then(|| disk.text(1024 + 28, 16)).flatten(),
        uuid: new.then(|| disk.uuid(1024 + 12)).flatten(),
        size: None,
    })
}

/// The label lies in one of the first four sectors.
fn lvm2(disk: &Disk) -> Option<Signature> {
    let at = (0..4).map(|sector| sector * 512).find(|at| disk.is(*at, b"LABELONE") && disk.is(at + 24, b"LVM2 001"))?;
    Some(Signature { uuid: disk.text(at + 32, 32), ..plain("LVM2_member") })
}

/// Begins the second header of LUKS2, which outlives an overwritten first one.
pub(super) const LUKS2_SECOND: &[u8; 6] = b"SKUL\xba\xbe";

/// Where it may lie beyond the first MiB, in bytes (LUKS2 On-Disk Format 1.1.3, 2.1: the larger sizes of a header).
pub(super) const SECOND_HEADERS: [u64; 3] = [1 << 20, 2 << 20, 4 << 20];

/// The second header lies at a power of two from 16 KiB to 4 MiB.
fn luks(disk: &Disk) -> Option<Signature> {
    let first = disk.is(0, b"LUKS\xba\xbe");
    let second = || (14..=19).map(|power| 1_usize << power).any(|at| disk.is(at, LUKS2_SECOND));
    if !first && !second() {
        return None;
    }
    let label = if disk.is(6, b"\0\x02") { disk.text(24, 48) } else { None };
    let uuid = if first { disk.text(168, 40) } else { None };
    Some(Signature { label: label.filter(|_| first), uuid, ..plain("crypto_LUKS") })
}

/// What a second header that lies beyond the first MiB makes of the disk.
pub(super) fn luks2_second() -> Signature {
    plain("crypto_LUKS")
}

/// DRBD keeps its block in the last 4 KiB (internal metadata, 8.x and 9: the magic has one place in both).
fn drbd(disk: &Disk) -> Option<Signature> {
    let at = (disk.size & !0xfff).checked_sub(4096)?;
    let magic = disk.tail_bytes(at + 60, 4)?;
    matches!(magic, b"\x83\x74\x02\x6a" | b"\x83\x74\x02\x6b" | b"\x83\x74\x02\x6c" | b"\x83\x74\x02\x6d").then(|| plain("drbd"))
}

fn gpt(disk: &Disk) -> Option<Signature> {
    let backup = |sector: u64| disk.size.checked_sub(sector).and_then(|at| disk.tail_bytes(at, 8)) == Some(b"EFI PART");
    (disk.is(512, b"EFI PART") || disk.is(4096, b"EFI PART") || backup(512) || backup(4096)).then(|| plain("gpt"))
}

/// Ends a boot sector.
const BOOT: &[u8] = b"\x55\xaa";

/// Boot sectors: FAT and NTFS, else a partition table whose entries are plausible.
fn dos(disk: &Disk) -> Option<Signature> {
    if disk.is(3, b"NTFS    ") {
        return Some(plain("ntfs"));
    }
    if !disk.is(510, BOOT) {
        return None;
    }
    let fat32 = disk.is(82, b"FAT32   ");
    if fat32 || disk.is(54, b"FAT") || disk.is(54, b"MSDOS") {
        return Some(Signature {
            kind: "vfat",
            label: disk.text(if fat32 { 71 } else { 43 }, 11).filter(|label| label != "NO NAME"),
            ..Signature::default()
        });
    }
    let entries = disk.bytes(446, 64)?.chunks_exact(16);
    let plausible = entries.into_iter().all(|entry| match entry {
        [status, _, _, _, kind, _, _, _, _, _, _, _, size @ ..] => matches!(status, 0 | 0x80) && (*kind == 0 || !is_zero(size)),
        _ => false,
    });
    plausible.then(|| plain("dos"))
}

fn iso9660(disk: &Disk) -> Option<Signature> {
    let at = 32_768;
    disk.is(at + 1, b"CD001").then(|| Signature { label: disk.text(at + 40, 32), ..plain("iso9660") })
}

/// Uberblocks lie from 128 KiB on in each of the labels, two of which are at either end of the disk.
fn zfs(disk: &Disk) -> Option<Signature> {
    let label = 256 * 1024;
    let is_uberblock = |bytes: Option<&[u8]>| matches!(bytes, Some(b"\x0c\xb1\xba\0\0\0\0\0" | b"\0\0\0\0\0\xba\xb1\x0c"));
    let blocks = || (0..2_usize).flat_map(|label| (128..256_usize).map(move |kib| (label, kib * 1024)));
    let end = disk.size - disk.size % label as u64;
    let in_tail = |(nth, at): (usize, usize)| Some(end.checked_sub(2 * label as u64)? + (nth * label + at) as u64);
    let found = blocks().any(|(nth, at)| is_uberblock(disk.bytes(nth * label + at, 8)))
        || blocks().any(|place| is_uberblock(in_tail(place).and_then(|at| disk.tail_bytes(at, 8))));
    found.then(|| plain("zfs_member"))
}

/// MD keeps its superblock at the end (0.90, 1.0), the start (1.1) or 4 KiB in (1.2); BIOS RAIDs at the end.
fn raid(disk: &Disk) -> Option<Signature> {
    const MAGIC: &[u8] = b"\xfc\x4e\x2b\xa9";
    let whole = |at: u64, bytes: &[u8]| disk.tail_bytes(at, bytes.len()) == Some(bytes);
    let old = (disk.size & !0xffff).checked_sub(0x1_0000);
    // Aligned to 4 KiB, 8 KiB before the end.
    let version_1_0 = disk.size.checked_sub(8 * 1024).map(|at| at & !0xfff);
    let big_endian = b"\xa9\x2b\x4e\xfc";
    if old.is_some_and(|at| whole(at, MAGIC) || whole(at, big_endian)) {
        return Some(plain("linux_raid_member"));
    }
    if let Some(at) = version_1_0.filter(|at| whole(*at, MAGIC)) {
        let uuid = disk.tail_bytes(at + 16, 16).and_then(uuid);
        return Some(Signature { label: disk.tail_bytes(at + 32, 32).and_then(text), uuid, ..plain("linux_raid_member") });
    }
    for at in [0, 4096] {
        if disk.is(at, MAGIC) {
            return Some(Signature { label: disk.text(at + 32, 32), uuid: disk.uuid(at + 16), ..plain("linux_raid_member") });
        }
    }
    let at_end = |back: u64, bytes: &[u8]| disk.size.checked_sub(back).is_some_and(|at| whole(at, bytes));
    if at_end(1024, b"Intel Raid ISM Cfg Sig. ") {
        return Some(plain("isw_raid_member"));
    }
    at_end(512, b"\xde\x11\xde\x11").then(|| plain("ddf_raid_member"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 4 * SPAN;

    /// A disk of zeros with these bytes at these places; negative ones count from the end.
    fn disk(bytes: &[(i64, &[u8])]) -> Vec<u8> {
        let mut disk = vec![0; SIZE];
        for (at, bytes) in bytes {
            let from = if *at < 0 { SIZE } else { 0 };
            let at = from.checked_add_signed(isize::try_from(*at).unwrap()).unwrap();
            disk[at..at + bytes.len()].copy_from_slice(bytes);
        }
        disk
    }

    fn kinds(disk: &[u8]) -> Vec<&'static str> {
        let span = SPAN.min(disk.len());
        find(&disk[..span], &disk[disk.len() - span..], disk.len() as u64).iter().map(|one| one.kind).collect()
    }

    #[test]
    fn each_format_is_known_by_its_bytes() {
        const ENTRY: &[u8] = b"\x80\0\0\0\x83\0\0\0\0\x08\0\0\0\0\x01\0";
        /// Bytes with their places, and the kinds that they make.
        type Row = (&'static [(i64, &'static [u8])], &'static [&'static str]);
        let rows: &[Row] = &[
            (&[], &[]),
            (&[(0, b"XFSB")], &["xfs"]),
            (&[(1080, b"\x53\xef")], &["ext2"]),
            (&[(1080, b"\x53\xef"), (1116, b"\x04\0\0\0\x02\0\0\0\x03\0\0\0")], &["ext3"]),
            (&[(1080, b"\x53\xef"), (1116, b"\x04\0\0\0\x42\0\0\0")], &["ext4"]),
            (&[(1080, b"\x53\xef"), (1120, b"\x08\0\0\0")], &["jbd"]),
            (&[(65_600, b"_BHRfS_M")], &["btrfs"]),
            (&[(65_600, b"!BHRfS_M")], &["btrfs"]),
            (&[(4086, b"SWAPSPACE2")], &["swap"]),
            (&[(65_526, b"SWAPSPACE2")], &["swap"]),
            (&[(1536, b"LABELONE"), (1560, b"LVM2 001")], &["LVM2_member"]),
            (&[(0, b"LUKS\xba\xbe\0\x02")], &["crypto_LUKS"]),
            (&[(16_384, b"SKUL\xba\xbe\0\x02")], &["crypto_LUKS"]),
            (&[(-65_536, b"\xfc\x4e\x2b\xa9")], &["linux_raid_member"]),
            (&[(-8192, b"\xfc\x4e\x2b\xa9\x01")], &["linux_raid_member"]),
            (&[(0, b"\xfc\x4e\x2b\xa9\x01")], &["linux_raid_member"]),
            (&[(4096, b"\xfc\x4e\x2b\xa9\x01")], &["linux_raid_member"]),
            (&[(-512, b"\xde\x11\xde\x11")], &["ddf_raid_member"]),
            (&[(512, b"EFI PART")], &["gpt"]),
            (&[(-512, b"EFI PART")], &["gpt"]),
            (&[(-4096, b"EFI PART")], &["gpt"]),
            (&[(-4036, b"\x83\x74\x02\x6b")], &["drbd"]),
            (&[(-4036, b"\x83\x74\x02\x6d")], &["drbd"]),
            (&[(5120, b"\x10\x20\xf5\xf2")], &["f2fs"]),
            (&[(1024, b"\x10\x20\xf5\xf2"), (5120, b"\x10\x20\xf5\xf2")], &["f2fs"]),
            (&[(1024, b"\xe2\xe1\xf5\xe0")], &["erofs"]),
            (&[(510, b"\x55\xaa"), (446, ENTRY)], &["dos"]),
            (&[(510, b"\x55\xaa")], &["dos"]),
            (&[(510, b"\x55\xaa"), (446, b"\x17")], &["boot sector"]),
            (&[(0, b"hsqs"), (510, b"\x55\xaa"), (446, b"\x17")], &["squashfs"]),
            (&[(510, b"\x55\xaa"), (82, b"FAT32   ")], &["vfat"]),
            (&[(510, b"\x55\xaa"), (54, b"FAT16   ")], &["vfat"]),
            (&[(3, b"NTFS    "), (510, b"\x55\xaa")], &["ntfs"]),
            (&[(32_769, b"CD001")], &["iso9660"]),
            (&[(0, b"hsqs")], &["squashfs"]),
            (&[(131_072, b"\x0c\xb1\xba\0\0\0\0\0")], &["zfs_member"]),
            (&[(-131_072, b"\x0c\xb1\xba\0\0\0\0\0")], &["zfs_member"]),
            (&[(4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81")], &["bcache"]),
            (&[(0, b"bluestore block device\n")], &["ceph_bluestore"]),
            (&[(0, b"XFSB"), (-512, b"EFI PART")], &["xfs", "gpt"]),
        ];
        for (bytes, expected) in rows {
            assert_eq!(kinds(&disk(bytes)), *expected, "{bytes:?}");
        }
    }

    #[test]
    fn labels_and_uuids_are_read_and_harmless() {
        let id: [u8; 16] = *b"\x0b\x7e\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee";
        let bytes = disk(&[(0, b"XFSB"), (32, &id), (108, b"da\x1bta\0")]);
        let found = find(&bytes[..SPAN], &bytes[SIZE - SPAN..], SIZE as u64);
        assert_eq!(found[0].description(), "xfs \"da?ta\" (UUID 0b7e1122-3344-5566-7788-99aabbccddee)");
        assert!(found[0].is_mountable() && !plain("xfs").is_mountable());
    }

    #[test]
    fn what_the_machines_own_tools_make_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("disk");
        for (argv, kind, uuid) in [
            (&["mkfs.xfs", "-q", "-m", "uuid=0b7e1122-3344-4566-b788-99aabbccddee", "-L", "hna-etcd"][..], "xfs", true),
            (&["mkfs.ext4", "-q", "-F", "-U", "0b7e1122-3344-4566-b788-99aabbccddee", "-L", "hna-etcd"], "ext4", true),
            (&["mkfs.ext3", "-q", "-F", "-U", "0b7e1122-3344-4566-b788-99aabbccddee", "-L", "hna-etcd"], "ext3", true),
            (&["mkfs.ext2", "-q", "-F", "-U", "0b7e1122-3344-4566-b788-99aabbccddee", "-L", "hna-etcd"], "ext2", true),
            (&["mkfs.btrfs", "-q", "-f", "-U", "0b7e1122-3344-4566-b788-99aabbccddee", "-L", "hna-etcd"], "btrfs", true),
            (&["mkswap", "-q", "-U", "0b7e1122-3344-4566-b788-99aabbccddee", "-L", "hna-etcd"], "swap", true),
            (&["mkfs.vfat", "-n", "hna-etcd"], "vfat", false),
        ] {
            let tree = crate::files::Tree::open(dir.path()).unwrap();
            let empty = tree.append(std::path::Path::new("disk"), crate::files::Attributes::mode(0o600)).unwrap();
            empty.set_len(0).unwrap();
            empty.set_len(400 * SPAN as u64).unwrap();
            #[expect(clippy::disallowed_methods, reason = "a test makes its fixture")]
            let made = std::process::Command::new(argv[0]).args(&argv[1..]).arg(&file).output();
            // Not every machine that builds the agent has every tool.
            if !made.is_ok_and(|made| made.status.success()) {
                continue;
            }
            let bytes = std::fs::read(&file).unwrap();
            let size = (kind != "swap" && kind != "vfat").then_some(bytes.len() as u64);
            let found = find(&bytes[..SPAN], &bytes[bytes.len() - SPAN..], bytes.len() as u64);
            let uuid = uuid.then(|| "0b7e1122-3344-4566-b788-99aabbccddee".to_owned());
            let label = Some(if kind == "vfat" { "HNA-ETCD" } else { "hna-etcd" }.to_owned());
            assert_eq!(
                found,
                [Signature { kind, label: if kind == "vfat" { found[0].label.clone() } else { label }, uuid, size }],
                "{argv:?}"
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_break_it(head in proptest::collection::vec(0..=255_u8, 0..2048), tail in proptest::collection::vec(0..=255_u8, 0..2048), size in 0..u64::MAX) {
            proptest::prop_assert!(find(&head, &tail, size).len() < FIXED.len());
        }

        #[test]
        fn no_broken_file_system_breaks_it(kind in 0..FIXED.len(), cut in 0..SPAN, noise in proptest::collection::vec(0..=255_u8, 0..64), at in 0..70_000_usize) {
            let (_, place, magic) = FIXED[kind];
            let mut bytes = vec![0_u8; 2 * SPAN];
            bytes[place..place + magic.len()].copy_from_slice(magic);
            bytes[0..4].copy_from_slice(b"XFSB");
            bytes[at..at + noise.len()].copy_from_slice(&noise);
            proptest::prop_assert!(find(&bytes[..cut], &bytes[2 * SPAN - cut..], 2 * SPAN as u64).len() < FIXED.len());
        }
    }
}
