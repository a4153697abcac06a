//! The config drive that Nova attaches to a server: its files, read off the device, so that nothing is mounted and the kernel reads no
//! foreign file system.
//!
//! Nova's is ISO 9660 (ECMA-119) by default: sector 16 has the place of the root directory, a directory is a list of records, and a
//! file lies in one piece. Of vfat it is only said that it is not read.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::{Context, Error, Result};

/// Its labels (heat-protocol.md R22).
const LABELS: [&str; 2] = ["config-2", "CONFIG-2"];

/// In bytes: ECMA-119, 6.1.2.
const SECTOR: usize = 2048;

/// Longest directory that is gone through, in bytes; Nova's have a few names.
const DIRECTORY: usize = 64 * 1024;

/// A record's flags: ECMA-119, 9.1.6.
const IS_DIRECTORY: u8 = 0x02;
const HAS_MORE_PARTS: u8 = 0x80;

/// Where a file or directory lies: first sector and bytes, ECMA-119, 9.1.
#[derive(Clone, Copy)]
struct Extent {
    sector: u32,
    bytes: usize,
}

/// A file of the drive, below `dev` of this machine; `None` where there is no drive, or no such file on it.
///
/// # Errors
/// If the drive cannot be read, is none, or the file is longer than `limit` bytes.
pub fn read(dev: &Path, path: &[&str], limit: usize) -> Result<Option<Vec<u8>>> {
    let links = LABELS.map(|label| dev.join("disk/by-label").join(label));
    let Some(link) = links.iter().find(|link| link.exists()) else { return Ok(None) };
    let doing = || format!("reading {} of the config drive {}", path.join("/"), link.display());
    let device = File::open(link).map_err(Error::from).context(doing)?;
    file(&device, path, limit).context(doing)
}

fn file(device: &File, path: &[&str], limit: usize) -> Result<Option<Vec<u8>>> {
    let volume = bytes(device, Extent { sector: 16, bytes: SECTOR })?;
    if volume.get(..6) != Some(b"\x01CD001".as_slice()) {
        return Err(Error::permanent("it is no ISO 9660 file system")
            .remedy("set config_drive_format = iso9660 in nova.conf, or have cloud-init in the image, which reads vfat"));
    }
    let mut at = volume.get(156..).and_then(Extent::of).ok_or_else(damaged)?;
    for (number, name) in path.iter().enumerate() {
        let is_last = number + 1 == path.len();
        if at.bytes > DIRECTORY {
            return Err(damaged());
        }
        let directory = bytes(device, at)?;
        let Some((extent, flags)) = find(&directory, name)? else { return Ok(None) };
        if (flags & IS_DIRECTORY == 0) != is_last || flags & HAS_MORE_PARTS != 0 {
            return Err(damaged());
        }
        at = extent;
    }
    if at.bytes > limit {
        return Err(Error::permanent(format!("it has {} bytes, of which at most {limit} are read", at.bytes)));
    }
    bytes(device, at).map(Some)
}

fn damaged() -> Error {
    Error::permanent("its directory tree is damaged, or it is not a config drive")
        .remedy("rebuild the server, which recreates the drive")
}

fn bytes(device: &File, at: Extent) -> Result<Vec<u8>> {
    let mut read = vec![0; at.bytes];
    device.read_exact_at(&mut read, u64::from(at.sector) * SECTOR as u64)?;
    Ok(read)
}

impl Extent {
    fn of(record: &[u8]) -> Option<Self> {
        let number = |at: usize| record.get(at..at + 4).and_then(|four| four.try_into().ok()).map(u32::from_le_bytes);
        Some(Self { sector: number(2)?, bytes: usize::try_from(number(10)?).ok()? })
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const USER_DATA: [&str; 3] = ["openstack", "latest", "user_data"];

    /// A drive as Nova makes it, where udev shows it.
    fn drive(label: &str, user_data: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let (files, links) = (dir.path().join("files"), dir.path().join("disk/by-label"));
        for (path, text) in [("openstack/latest/user_data", user_data), ("ec2/latest/meta-data.json", "{}")] {
            let path = crate::files::Tree::open_or_create(&files, 0o755).map(|tree| (tree, path)).unwrap();
            path.0.create_dir_all(Path::new(path.1).parent().unwrap(), crate::files::Attributes::mode(0o755)).unwrap();
            path.0.write(Path::new(path.1), text.as_bytes(), crate::files::Attributes::mode(0o644)).unwrap();
        }
        crate::files::Tree::open_or_create(&links, 0o755).unwrap();
        #[expect(clippy::disallowed_methods, reason = "a test asks the program that Nova uses")]
        let made = Command::new("genisoimage")
            .args(["-quiet", "-ldots", "-allow-lowercase", "-allow-multidot", "-l", "-J", "-r", "-V", label, "-o"])
            .args([&links.join(label), &files])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        dir
    }

    #[test]
    fn the_files_of_novas_drive_are_read_under_both_labels() {
        let long = "x".repeat(60_000);
        for (label, text) in [("config-2", "hello"), ("CONFIG-2", long.as_str())] {
            let dir = drive(label, text);
            let read = |path: &[&str]| read(dir.path(), path, 65_535);
            assert_eq!(read(&USER_DATA).unwrap().as_deref(), Some(text.as_bytes()), "{label}");
            assert_eq!(read(&["ec2", "latest", "meta-data.json"]).unwrap().as_deref(), Some(&b"{}"[..]));
            assert_eq!(read(&["openstack", "latest", "none"]).unwrap(), None);
            assert!(read(&["openstack", "latest"]).is_err() && read(&["openstack", "latest", "user_data", "x"]).is_err());
        }
        let dir = drive("config-2", &long);
        assert!(read(dir.path(), &USER_DATA, 1000).unwrap_err().to_string().contains("60000 bytes"));
        assert_eq!(read(tempfile::tempdir().unwrap().path(), &USER_DATA, 1000).unwrap(), None, "no drive");
    }

    #[test]
    fn what_is_no_drive_or_a_damaged_one_is_an_error_and_no_panic() {
        let dir = drive("config-2", "hello");
        let image = dir.path().join("disk/by-label/config-2");
        let whole = std::fs::read(&image).unwrap();
        let put = |bytes: &[u8]| {
            let mut file = File::options().write(true).truncate(true).open(&image).unwrap();
            std::io::Write::write_all(&mut file, bytes).unwrap();
        };
        put(b"mkfs.fat");
        assert!(read(dir.path(), &USER_DATA, 1000).is_err(), "too short");
        put(&vec![0; 100_000]);
        let error = read(dir.path(), &USER_DATA, 1000).unwrap_err();
        assert!(error.to_string().contains("no ISO 9660") && error.suggested_remedy().unwrap().contains("config_drive_format"));
        // Each byte of the volume's descriptor and of the first directories, damaged.
        for at in (16 * SECTOR..whole.len().min(32 * SECTOR)).step_by(7) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0xff;
            put(&bytes);
            drop(read(dir.path(), &USER_DATA, 1000));
        }
    }
}
