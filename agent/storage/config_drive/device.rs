//! What is read of a drive in any format: bytes, and numbers of its structures.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::error::{Error, Result};

/// Longest directory that is gone through, in bytes; Nova's have a few names.
pub(super) const DIRECTORY: usize = 64 * 1024;

pub(super) fn damaged() -> Error {
    Error::permanent("its directory tree is damaged, or it is not a config drive")
        .remedy("rebuild the server, which recreates the drive")
}

pub(super) fn within(bytes: usize, limit: usize) -> Result<()> {
    if bytes > limit {
        return Err(Error::permanent(format!("it has {bytes} bytes, of which at most {limit} are read")));
    }
    Ok(())
}

pub(super) fn bytes(device: &File, at: u64, length: usize) -> Result<Vec<u8>> {
    let mut read = vec![0; length];
    device.read_exact_at(&mut read, at)?;
    Ok(read)
}

/// A number of a structure on the drive, little-endian.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).and_then(|two| two.try_into().ok()).map(u16::from_le_bytes)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map(u32::from_le_bytes)
}
