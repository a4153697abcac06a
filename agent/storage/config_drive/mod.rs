//! The config drive that Nova attaches to a server: its files, read off the device, so that nothing is mounted and the kernel reads no
//! foreign file system. Nova makes it as ISO 9660 or, with `config_drive_format = vfat`, as vfat.

mod device;
mod iso9660;
mod vfat;

use std::fs::File;
use std::path::Path;

use crate::error::{Context, Error, Result};

/// Its labels (heat-protocol.md R22).
const LABELS: [&str; 2] = ["config-2", "CONFIG-2"];

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
    if let Some(drive) = iso9660::Drive::of(device)? {
        drive.file(path, limit)
    } else if let Some(drive) = vfat::Drive::of(device)? {
        drive.file(path, limit)
    } else {
        Err(Error::permanent("it is neither ISO 9660 nor vfat, the formats in which Nova makes config drives")
            .remedy("detach the disk that has the label of a config drive, or rebuild the server, which recreates the drive"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::process::Command;

    use super::device::{bytes, u16_at};
    use super::*;

    const USER_DATA: [&str; 3] = ["openstack", "latest", "user_data"];

    /// What Nova's program makes a drive with, but for the files.
    #[derive(Clone, Copy, Debug)]
    enum Format {
        Iso,
        /// MiB, and bits of an entry of the table.
        Vfat(u64, &'static str),
    }

    /// Nova's own is the second.
    const FORMATS: [Format; 4] = [Format::Iso, Format::Vfat(64, "16"), Format::Vfat(2, "12"), Format::Vfat(64, "32")];

    #[expect(clippy::disallowed_methods, reason = "a test asks the programs that Nova uses")]
    fn run(program: &str, arguments: &[&str], paths: &[&Path]) {
        let made = Command::new(program).args(arguments).args(paths).output().unwrap();
        assert!(made.status.success(), "{program}: {made:?}");
    }

    /// A drive as Nova makes it, where udev shows it.
    fn drive(format: Format, label: &str, user_data: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let (files, links) = (dir.path().join("files"), dir.path().join("disk/by-label"));
        for (path, text) in [("openstack/latest/user_data", user_data), ("ec2/latest/meta-data.json", "{}")] {
            let path = crate::files::Tree::open_or_create(&files, 0o755).map(|tree| (tree, path)).unwrap();
            path.0.create_dir_all(Path::new(path.1).parent().unwrap(), crate::files::Attributes::mode(0o755)).unwrap();
            path.0.write(Path::new(path.1), text.as_bytes(), crate::files::Attributes::mode(0o644)).unwrap();
        }
        crate::files::Tree::open_or_create(&links, 0o755).unwrap();
        let image = links.join(label);
        match format {
            Format::Iso => {
                let arguments = ["-quiet", "-ldots", "-allow-lowercase", "-allow-multidot", "-l", "-J", "-r", "-V", label, "-o"];
                run("genisoimage", &arguments, &[&image, &files]);
            }
            Format::Vfat(size, bits) => {
                File::options().write(true).create_new(true).open(&image).unwrap().set_len(size << 20).unwrap();
                run("mkfs.vfat", &["-n", label, "-F", bits], &[&image]);
                // Nova mounts it and copies; this gives the same directories without a kernel that has vfat.
                run("mcopy", &["-s", "-i"], &[&image, &files.join("openstack"), &files.join("ec2"), Path::new("::")]);
            }
        }
        dir
    }

    #[test]
    fn the_files_of_novas_drives_are_read_under_both_labels() {
        let long = (0..60_000).map(|n| char::from(b'a' + u8::try_from(n % 23).unwrap())).collect::<String>();
        for format in FORMATS {
            for (label, text) in [("config-2", "hello"), ("CONFIG-2", long.as_str())] {
                let dir = drive(format, label, text);
                let read = |path: &[&str]| read(dir.path(), path, 65_535);
                assert_eq!(read(&USER_DATA).unwrap().as_deref(), Some(text.as_bytes()), "{format:?} {label}");
                assert_eq!(read(&["ec2", "latest", "meta-data.json"]).unwrap().as_deref(), Some(&b"{}"[..]), "{format:?}");
                assert_eq!(read(&["openstack", "latest", "none"]).unwrap(), None, "{format:?}");
                assert!(read(&["openstack", "latest"]).is_err() && read(&["openstack", "latest", "user_data", "x"]).is_err());
            }
            let dir = drive(format, "config-2", &long);
            assert!(read(dir.path(), &USER_DATA, 1000).unwrap_err().to_string().contains("60000 bytes"));
        }
        assert_eq!(read(tempfile::tempdir().unwrap().path(), &USER_DATA, 1000).unwrap(), None, "no drive");
    }

    #[test]
    fn what_is_no_drive_or_a_damaged_one_is_an_error_and_no_panic() {
        for format in FORMATS {
            let dir = drive(format, "config-2", "hello");
            let image = dir.path().join("disk/by-label/config-2");
            let device = File::options().read(true).write(true).open(&image).unwrap();
            // The first sectors, the tables or the volume's descriptor, and the first directories: each byte that says something, damaged.
            let whole = bytes(&device, 0, 1 << 20).unwrap_or_else(|_| std::fs::read(&image).unwrap());
            for at in (0..whole.len()).filter(|at| whole[*at] != 0).step_by(5) {
                for damage in [0xff, 0x01, 0x80] {
                    device.write_all_at(&[whole[at] ^ damage], at as u64).unwrap();
                    drop(read(dir.path(), &USER_DATA, 1000));
                }
                device.write_all_at(&whole[at..=at], at as u64).unwrap();
            }
            assert_eq!(read(dir.path(), &USER_DATA, 1000).unwrap().as_deref(), Some(&b"hello"[..]), "mended");
            // Cut off anywhere.
            for length in [0, 511, 513, 16 * 2048, 17 * 2048 + 1, 40_000] {
                device.set_len(length).unwrap();
                assert!(read(dir.path(), &USER_DATA, 1000).is_err(), "{format:?}: {length} bytes");
            }
            device.set_len(100_000).unwrap();
            device.write_all_at(&vec![0; 100_000], 0).unwrap();
            let error = read(dir.path(), &USER_DATA, 1000).unwrap_err();
            assert!(error.to_string().contains("neither ISO 9660 nor vfat") && error.suggested_remedy().is_some());
        }
    }

    /// A chain of clusters that leads back to itself, and one that ends too early.
    #[test]
    fn a_table_of_clusters_that_is_wrong_ends_the_reading() {
        for bits in ["12", "16", "32"] {
            let dir = drive(Format::Vfat(if bits == "12" { 2 } else { 64 }, bits), "config-2", &"x".repeat(60_000));
            let image = dir.path().join("disk/by-label/config-2");
            let device = File::options().read(true).write(true).open(&image).unwrap();
            let boot = bytes(&device, 0, 512).unwrap();
            let (table, width) = (u64::from(u16_at(&boot, 14).unwrap()) * 512, bits.parse::<u64>().unwrap());
            let read = || read(dir.path(), &USER_DATA, 65_535);
            assert_eq!(read().unwrap().unwrap().len(), 60_000);
            for entry in [0x00_u8, 0xff, 0x03] {
                device.write_all_at(&vec![entry; usize::try_from(200 * width / 8).unwrap()], table).unwrap();
                let error = read().unwrap_err();
                assert!(error.to_string().contains("damaged"), "{bits} {entry}: {error}");
            }
        }
    }
}
