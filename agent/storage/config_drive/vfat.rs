//! FAT12, FAT16 and FAT32 with long names (Microsoft, "FAT: General Overview of On-Disk Format", 1.03): a file is a chain of clusters, and a
//! long name stands in entries of its own, in front of the short one.

use std::fs::File;

use super::device::{DIRECTORY, bytes, damaged, u16_at, u32_at, within};
use crate::error::Result;

/// An entry of a directory, in bytes.
const ENTRY: u8 = 32;

/// Attributes of an entry.
const LABEL: u8 = 0x08;
const SUBDIRECTORY: u8 = 0x10;
/// Of a part of a long name: no other entry has all four of read-only, hidden, system and label.
const LONG_NAME: u8 = 0x0f;

/// The first byte of an entry that was removed, and of one behind the last.
const REMOVED: u8 = 0xe5;
const END: u8 = 0;

/// Characters of a long name in one entry: where their 16 bits are.
const CHARACTERS: [usize; 13] = [1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30];

/// One of this format.
pub(super) struct Drive<'a> {
    device: &'a File,
    /// The first table of clusters, in bytes from the beginning.
    table: u64,
    /// Bits of an entry of the table: 12, 16 or 32.
    bits: u32,
    /// How many clusters there are; the first one is number 2.
    clusters: u32,
    /// Bytes of a cluster.
    cluster: usize,
    /// The first cluster, in bytes from the beginning.
    data: u64,
    root: Place,
}

/// Where a directory or file begins.
#[derive(Clone, Copy)]
enum Place {
    /// The root directory of FAT12 and FAT16 lies before the clusters: bytes from the beginning, and its length.
    Fixed(u64, usize),
    Cluster(u32),
}

/// What a directory says of a name.
struct Entry {
    is_directory: bool,
    first: u32,
    bytes: usize,
}

impl<'a> Drive<'a> {
    /// The drive, where it is of this format.
    pub(super) fn of(device: &'a File) -> Result<Option<Self>> {
        let Ok(boot) = bytes(device, 0, 512) else { return Ok(None) };
        let is_fat = boot.get(54..57) == Some(b"FAT") || boot.get(82..87) == Some(b"FAT32");
        if !is_fat || boot.get(510..) != Some(&[0x55, 0xaa]) {
            return Ok(None);
        }
        Self::laid_out(device, &boot).ok_or_else(damaged).map(Some)
    }

    /// By the first sector; nothing, where its numbers contradict each other.
    fn laid_out(device: &'a File, boot: &[u8]) -> Option<Self> {
        let small = |at: usize| u16_at(boot, at).map(u32::from);
        let either = |short: u32, long: usize| if short == 0 { u32_at(boot, long) } else { Some(short) };
        let sector = small(11).filter(|bytes| (512..=4096).contains(bytes))?;
        let of_cluster = boot.get(13).copied().map(u32::from).filter(|sectors| sectors.is_power_of_two())?;
        let (reserved, tables, root_entries) = (small(14)?, boot.get(16).copied().map(u32::from)?, small(17)?);
        let (sectors, of_table) = (either(small(19)?, 32)?, either(small(22)?, 36)?);
        let root = reserved.checked_add(of_table.checked_mul(tables)?)?;
        let of_root = (root_entries * u32::from(ENTRY)).div_ceil(sector);
        let data = root.checked_add(of_root)?;
        let clusters = sectors.checked_sub(data)? / of_cluster;
        let bits = if clusters < 4085 {
            12
        } else if clusters < 65_525 {
            16
        } else {
            32
        };
        let at = |number: u32| u64::from(number) * u64::from(sector);
        Some(Self {
            device,
            table: at(reserved),
            bits,
            clusters,
            cluster: (of_cluster * sector) as usize,
            data: at(data),
            root: if bits == 32 {
                Place::Cluster(u32_at(boot, 44)?)
            } else {
                Place::Fixed(at(root), (of_root * sector) as usize)
            },
        })
    }

    pub(super) fn file(&self, path: &[&str], limit: usize) -> Result<Option<Vec<u8>>> {
        let mut at = self.root;
        for (number, name) in path.iter().enumerate() {
            let Some(entry) = find(&self.directory(at)?, name) else { return Ok(None) };
            let is_last = number + 1 == path.len();
            if entry.is_directory == is_last {
                return Err(damaged());
            }
            if is_last {
                within(entry.bytes, limit)?;
                let mut content = self.chain(entry.first, entry.bytes)?;
                if content.len() < entry.bytes {
                    return Err(damaged());
                }
                content.truncate(entry.bytes);
                return Ok(Some(content));
            }
            at = Place::Cluster(entry.first);
        }
        Ok(None)
    }

    fn directory(&self, at: Place) -> Result<Vec<u8>> {
        match at {
            Place::Fixed(at, length) => bytes(self.device, at, length.min(DIRECTORY)),
            Place::Cluster(first) => self.chain(first, DIRECTORY),
        }
    }

    /// The clusters of a chain, until its end or until they have so many bytes. An empty file has none.
    fn chain(&self, first: u32, enough: usize) -> Result<Vec<u8>> {
        let (mut read, mut next) = (Vec::new(), first);
        while read.len() < enough {
            if !(2..self.clusters.saturating_add(2)).contains(&next) {
                return Err(damaged());
            }
            let at = self.data + u64::from(next - 2) * self.cluster as u64;
            read.extend(bytes(self.device, at, self.cluster)?);
            next = self.after(next)?;
            if next >= self.end() {
                break;
            }
        }
        Ok(read)
    }

    /// From this number on, the table says that a chain ends.
    fn end(&self) -> u32 {
        match self.bits {
            12 => 0xff8,
            16 => 0xfff8,
            _ => 0x0fff_fff8,
        }
    }

    /// What the table says of a cluster.
    fn after(&self, cluster: u32) -> Result<u32> {
        let at = u64::from(cluster) * u64::from(self.bits) / 8;
        let entry = bytes(self.device, self.table + at, if self.bits == 32 { 4 } else { 2 })?;
        let short = || u16_at(&entry, 0).map(u32::from);
        let found = match self.bits {
            // Two entries share three bytes.
            12 => short().map(|two| if cluster.is_multiple_of(2) { two & 0xfff } else { two >> 4 }),
            16 => short(),
            _ => u32_at(&entry, 0).map(|four| four & 0x0fff_ffff),
        };
        found.ok_or_else(damaged)
    }
}

/// The entry of a name, in any letter case.
fn find(directory: &[u8], name: &str) -> Option<Entry> {
    let mut long = Vec::new();
    for entry in directory.chunks_exact(usize::from(ENTRY)) {
        let [first, .., attributes] = *entry.get(..12)? else { return None };
        if first == END {
            return None;
        }
        if first == REMOVED {
            long.clear();
        } else if attributes & LONG_NAME == LONG_NAME {
            // Its last part comes first.
            let part = CHARACTERS.iter().filter_map(|at| u16_at(entry, *at)).take_while(|character| *character != 0);
            long.splice(..0, part);
        } else {
            let named = if long.is_empty() { short_name(entry) } else { String::from_utf16_lossy(&long) };
            long.clear();
            if attributes & LABEL == 0 && named.eq_ignore_ascii_case(name) {
                let high = u16_at(entry, 20)?;
                return Some(Entry {
                    is_directory: attributes & SUBDIRECTORY != 0,
                    first: u32::from(high) << 16 | u32::from(u16_at(entry, 26)?),
                    bytes: usize::try_from(u32_at(entry, 28)?).ok()?,
                });
            }
        }
    }
    None
}

/// Eight characters and three of an extension, both filled with spaces.
fn short_name(entry: &[u8]) -> String {
    let part = |from: usize, to: usize| String::from_utf8_lossy(entry.get(from..to).unwrap_or_default()).trim_end().to_owned();
    match (part(0, 8), part(8, 11)) {
        (name, extension) if extension.is_empty() => name,
        (name, extension) => format!("{name}.{extension}"),
    }
}
