//! ISO 9660 (ECMA-119): sector 16 has the place of the root directory, a directory is a list of records, and a file lies in one piece.

use std::fs::File;

use super::device::{DIRECTORY, bytes, damaged, u32_at, within};
use crate::error::Result;

/// In bytes: ECMA-119, 6.1.2.
const SECTOR: usize = 2048;

/// A record's flags: ECMA-119, 9.1.6.
const IS_DIRECTORY: u8 = 0x02;
const HAS_MORE_PARTS: u8 = 0x80;

/// One of this format.
pub(super) struct Drive<'a> {
    device: &'a File,
    root: Extent,
}

/// Where a file or directory lies: first sector and bytes, ECMA-119, 9.1.
#[derive(Clone, Copy)]
struct Extent {
    sector: u32,
    bytes: usize,
}

impl<'a> Drive<'a> {
    /// The drive, where it is of this format.
    pub(super) fn of(device: &'a File) -> Result<Option<Self>> {
        // Shorter than its first sectors, it may still be of the other format.
        let Ok(volume) = bytes(device, 16 * SECTOR as u64, SECTOR) else { return Ok(None) };
        if volume.get(..6) != Some(b"\x01CD001".as_slice()) {
            return Ok(None);
        }
        let root = volume.get(156..).and_then(Extent::of).ok_or_else(damaged)?;
        Ok(Some(Self { device, root }))
    }

    pub(super) fn file(&self, path: &[&str], limit: usize) -> Result<Option<Vec<u8>>> {
        let mut at = self.root;
        for (number, name) in path.iter().enumerate() {
            let is_last = number + 1 == path.len();
            if at.bytes > DIRECTORY {
                return Err(damaged());
            }
            let Some((extent, flags)) = find(&self.read(at)?, name)? else { return Ok(None) };
            if (flags & IS_DIRECTORY == 0) != is_last || flags & HAS_MORE_PARTS != 0 {
                return Err(damaged());
            }
            at = extent;
        }
        within(at.bytes, limit)?;
        self.read(at).map(Some)
    }

    fn read(&self, at: Extent) -> Result<Vec<u8>> {
        bytes(self.device, u64::from(at.sector) * SECTOR as u64, at.bytes)
    }
}

impl Extent {
    fn of(record: &[u8]) -> Option<Self> {
        Some(Self { sector: u32_at(record, 2)?, bytes: usize::try_from(u32_at(record, 10)?).ok()? })
    }
}

/// A name's record: its place and flags. Names are compared without the version, in any letter case, and as the standard has them: what makes
/// the drive writes `_` for a `-`.
fn find(directory: &[u8], name: &str) -> Result<Option<(Extent, u8)>> {
    let name = name.replace('-', "_");
    for sector in directory.chunks(SECTOR) {
        let mut rest = sector;
        // No record crosses a sector's end; behind the last one are zeros.
        while let Some(length) = rest.first().copied().map(usize::from).filter(|length| *length > 0) {
            let record = rest.get(..length).ok_or_else(damaged)?;
            let named = record.get(32).and_then(|length| record.get(33..33 + usize::from(*length))).ok_or_else(damaged)?;
            let named = named.split(|byte| *byte == b';').next().unwrap_or_default();
            if named.strip_suffix(b".").unwrap_or(named).eq_ignore_ascii_case(name.as_bytes()) {
                return Ok(Some((Extent::of(record).ok_or_else(damaged)?, record.get(25).copied().unwrap_or_default())));
            }
            rest = rest.get(length..).unwrap_or_default();
        }
    }
    Ok(None)
}
