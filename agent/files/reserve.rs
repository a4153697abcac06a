//! Disk space that is reserved before it is needed, for what must be written although the disk is full by then.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::fsync;

use super::error_context::At;
use super::{Tree, mode};
use crate::error::Result;

impl Tree {
    /// Reserves disk space for so many bytes, which [`Tree::write_reserved`] uses later. Not synced: a file system that allocates late
    /// reserves the blocks at the write all the same, and after a power cut nobody asks for the space any more.
    ///
    /// # Errors
    /// If the disk does not have the space; none is taken then.
    pub fn reserve(&self, path: &Path, bytes: usize) -> Result<()> {
        let doing = || self.doing("reserving disk space for", path);
        let (parent, name) = self.parent(path)?;
        self.change().at(doing)?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = openat(&parent, name.as_os_str(), flags, mode(0o600)).at(doing)?;
        File::from(fd).write_all(&vec![b'\n'; bytes]).at(doing).inspect_err(|_| drop(self.remove(path)))
    }

    /// Writes a file whole, as [`Tree::write`] does, in the space that was reserved for it, which is gone afterwards.
    ///
    /// # Errors
    /// If any step fails; the old content is then still in place, and so is the reserved space.
    pub fn write_reserved(&self, reserved: &Path, path: &Path, bytes: &[u8]) -> Result<()> {
        let doing = || self.doing("writing", path);
        let (parent, name) = self.parent(reserved)?;
        let flags = OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(&parent, name.as_os_str(), flags, Mode::empty()).at(doing)?);
        // The length last: blocks that are given back could be taken by somebody else before a second try.
        file.write_all(bytes).at(doing)?;
        file.set_len(bytes.len() as u64).at(doing)?;
        fsync(&file).at(doing)?;
        self.rename(reserved, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_into_reserved_space_replaces_the_file_and_uses_the_space_up() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let (reserved, path) = (Path::new("reserved"), Path::new("file"));
        assert!(tree.write_reserved(reserved, path, b"x").is_err(), "nothing was reserved");
        for text in [&b"first"[..], b"second, which is longer than the space"] {
            tree.reserve(reserved, 10).unwrap();
            tree.write_reserved(reserved, path, text).unwrap();
            assert_eq!(tree.read(path, 100).unwrap().as_deref(), Some(text));
            assert_eq!(tree.list(Path::new("")).unwrap(), ["file"]);
        }
        tree.reserve(reserved, 10).unwrap();
        tree.create_dir(Path::new("directory"), crate::files::Attributes::mode(0o700)).unwrap();
        assert!(tree.write_reserved(reserved, Path::new("directory"), b"x").is_err());
        tree.write_reserved(reserved, path, b"third").unwrap();
    }
}
