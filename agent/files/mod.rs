//! The one writer of files.
//!
//! Everything is reached through a handle of a directory ([`Tree`]) and never leaves it: symbolic
//! links are resolved inside the tree (openat2, `RESOLVE_IN_ROOT`; on kernels before 5.6 a walk that
//! does the same by steps). A file is written whole beside its target with its final owner and mode before
//! the first byte, synced, renamed over it, and its directory synced: a reader sees the old or the
//! new content, after a power cut too.
//!
//! In: paths below a [`Tree`], contents, owners and modes. Out: files on disk, facts about them, or an [`Error`] that names the path. Never:
//! a path outside the tree, or half a file.

mod error_context;
mod reserve;
mod trusted;

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, fsync, symlinkat, unlinkat};
use rustix::fs::{RenameFlags, renameat_with};
use serde_json::error::Category;

use crate::budgets::json::{self, JsonRejection};
use crate::error::{Error, ErrorKind, Result};
use crate::report::text::argument;
use crate::report::{Code, Event, Report};
use error_context::{At, Operation};

/// Largest file that [`Tree::read`] takes into memory unless told otherwise, in bytes.
pub const READ_LIMIT: u64 = 16 * 1024 * 1024;

/// The end of the name, beside a file, under which its next content is made.
const NEW: &str = ".hna-new";

/// Buffer for a file whose size the kernel does not report, and the least that `Read::read_to_end` takes without a probe of its own.
const UNSIZED: u64 = 4095;
const LEAST: usize = 64;

/// How many symbolic links a path may have, as in the kernel.
const LINKS: usize = 40;

/// Mode and owner of a file or directory. `None` keeps what the writing process gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits, e.g. `0o600`.
    pub mode: u32,
    /// Numeric owner and group.
    pub owner: Option<(u32, u32)>,
}

impl Attributes {
    /// These permission bits, owner as the process has it.
    #[must_use]
    pub const fn mode(mode: u32) -> Self {
        Self { mode, owner: None }
    }
}

/// What is found at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link (never followed at the last component).
    Link,
    /// A device, socket or pipe.
    Other,
}

/// Facts about a path, of the path itself where it is a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMetadata {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Size in bytes.
    pub size: u64,
    /// Inode and time of its last change (seconds, nanoseconds): it is another one after any change of content, mode or owner.
    pub stamp: (u64, i64, i64),
}

/// A directory and what is below it.
#[derive(Debug)]
pub struct Tree {
    root: OwnedFd,
    base: PathBuf,
    changes: Changes,
}

/// How many changes may be made yet, and how every later one fails; `None`: any number.
#[derive(Clone, Debug, Default)]
struct Changes(Option<(Arc<AtomicU32>, Errno)>);

impl Changes {
    fn of(number: u32, errno: Errno) -> Self {
        Self(Some((Arc::new(AtomicU32::new(number)), errno)))
    }

    /// To be asked before each change.
    fn take(&self) -> nix::Result<()> {
        let take = |changes: &Arc<AtomicU32>| changes.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
        match &self.0 {
            Some((changes, errno)) if !take(changes) => Err(*errno),
            _ => Ok(()),
        }
    }
}

/// An exclusive lock, held until dropped.
#[derive(Debug)]
pub struct Lock {
    file: File,
    changes: Changes,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file would release it too, but only once no other thread is between fork and exec, whose child has the file as well.
        let _ = self.file.unlock();
    }
}

impl Lock {
    /// Says something in the file that is locked, in the place of what it said, synced. What is not longer than that needs no more room on
    /// the disk.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn note(&self, text: &str) -> Result<()> {
        let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
        let write = || {
            if length > self.file.metadata()?.len() {
                self.changes.take()?;
            }
            // The old length last: it is given up only where the new text is there.
            self.file.write_all_at(text.as_bytes(), 0)?;
            self.file.set_len(length)?;
            self.file.sync_all()
        };
        write().map_err(|error| Error::from(error).context("writing to the file that is locked"))
    }

    /// Whether nothing is said in it.
    ///
    /// # Errors
    /// If it cannot be looked at.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.file.metadata()?.len() == 0)
    }
}

impl Tree {
    /// Opens an existing directory.
    ///
    /// # Errors
    /// If `base` is not there, not a directory, or not accessible.
    pub fn open(base: &Path) -> Result<Self> {
        let root = openat(nix::fcntl::AT_FDCWD, base, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|errno| {
                let error = Operation { verb: "opening directory", path: base.to_owned() }.failed(errno);
                if errno == Errno::ENOENT { error.with_missing_directory(base) } else { error }
            })?;
        Ok(Self { root, base: base.to_owned(), changes: Changes::default() })
    }

    /// The same directory, in which so many changes (a file made, a new one synced, one renamed, removed) can be made and every later one fails: what
    /// a kill or a full disk at that point leaves, for tests.
    ///
    /// # Errors
    /// As [`Tree::open`].
    pub fn breaking_after(&self, changes: u32) -> Result<Self> {
        Ok(Self { changes: Changes::of(changes, Errno::EIO), ..Self::open(&self.base)? })
    }

    /// The same with a disk that has space for so many changes, for tests.
    ///
    /// # Errors
    /// As [`Tree::open`].
    pub fn full_after(&self, changes: u32) -> Result<Self> {
        Ok(Self { changes: Changes::of(changes, Errno::ENOSPC), ..Self::open(&self.base)? })
    }

    /// To be asked before each change.
    fn change(&self) -> nix::Result<()> {
        self.changes.take()
    }

    /// The name beside a name under which its next content is made; what a crash left there is removed.
    fn beside(&self, parent: &OwnedFd, name: &OsString) -> nix::Result<OsString> {
        let mut temporary = OsString::from(".");
        temporary.push(name);
        temporary.push(NEW);
        self.unlink(parent, &temporary, UnlinkatFlags::NoRemoveDir)?;
        Ok(temporary)
    }

    /// Removes a name, if it is there.
    fn unlink(&self, parent: &OwnedFd, name: &OsString, flags: UnlinkatFlags) -> nix::Result<bool> {
        self.change()?;
        match unlinkat(parent, name.as_os_str(), flags) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Puts what was made beside a name into its place.
    fn put(&self, parent: &OwnedFd, temporary: &OsString, name: &OsString) -> nix::Result<()> {
        self.change()?;
        renameat(parent, temporary.as_os_str(), parent, name.as_os_str())?;
        fsync(parent)
    }

    /// Opens a directory, making it (and its parents, 0755) with `mode` first if it is not there.
    ///
    /// # Errors
    /// If it can be neither opened nor made.
    pub fn open_or_create(base: &Path, mode: u32) -> Result<Self> {
        let (anchor, rest) = if base.is_absolute() { (Path::new("/"), base) } else { (Path::new("."), base) };
        let parent = Self::open(anchor)?;
        if let Some(above) = rest.parent() {
            parent.create_dir_all(above, Attributes::mode(0o755))?;
        }
        parent.create_dir(rest, Attributes::mode(mode))?;
        Self::open(base)
    }

    /// The directory that this tree was opened by.
    #[must_use]
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// A path of the tree as the whole machine knows it, for what takes no directory handle. Links in it are followed out of the tree.
    #[must_use]
    pub fn on_machine(&self, path: &Path) -> PathBuf {
        self.base.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// A tree rooted at a directory of this tree.
    ///
    /// # Errors
    /// If it is not there or not a directory.
    pub fn subtree(&self, path: &Path) -> Result<Self> {
        let root = self.open_at(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY).at(|| self.doing("opening directory", path))?;
        Ok(Self { root, base: self.full(path), changes: self.changes.clone() })
    }

    /// Reads a whole file; `None` if there is none.
    ///
    /// # Errors
    /// If it is larger than `limit` bytes, not a regular file, or unreadable.
    pub fn read(&self, path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
        let fd = match self.open_at(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK) {
            Ok(fd) => fd,
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
            Err(errno) => return Err(self.doing("reading", path).failed(errno)),
        };
        let (file, size) = self.regular(fd, path)?;
        // One read takes all of it: with an empty buffer the first ones are tiny. Files of /proc are said to be empty.
        let size = if size == 0 { UNSIZED } else { size.min(limit) };
        let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0).saturating_add(1).max(LEAST));
        file.take(limit.saturating_add(1)).read_to_end(&mut bytes).at(|| self.doing("reading", path))?;
        if bytes.len() as u64 > limit {
            return Err(Error::permanent(format!("larger than {limit} bytes")).context(self.doing("reading", path)));
        }
        Ok(Some(bytes))
    }

    /// Opens a file for reading in pieces; `None` if there is none. Its last component is not followed.
    ///
    /// # Errors
    /// If it is not a regular file, or cannot be opened.
    pub fn open_file(&self, path: &Path) -> Result<Option<File>> {
        // Without O_NONBLOCK opening a pipe waits for who writes into it.
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = self.try_parent(path).and_then(|(parent, name)| openat(&parent, name.as_os_str(), flags, Mode::empty()));
        match opened {
            Ok(fd) => self.regular(fd, path).map(|(file, _)| Some(file)),
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
            Err(Errno::ELOOP) => Err(self.not_regular(path)),
            Err(errno) => Err(self.doing("reading", path).failed(errno)),
        }
    }

    /// The file, and how large it is said to be.
    fn regular(&self, fd: OwnedFd, path: &Path) -> Result<(File, u64)> {
        let stat = fstat(&fd).at(|| self.doing("reading", path))?;
        let is_regular = SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFREG;
        if is_regular { Ok((File::from(fd), u64::try_from(stat.st_size).unwrap_or(0))) } else { Err(self.not_regular(path)) }
    }

    fn not_regular(&self, path: &Path) -> Error {
        Error::permanent("not a regular file").context(self.doing("reading", path))
    }

    /// Reads a JSON file of ours; `None` if there is none.
    ///
    /// # Errors
    /// If it is unreadable, would take too much memory, or is not the expected JSON; the latter is [`crate::error::ErrorKind::Permanent`].
    pub fn read_json<T: serde::de::DeserializeOwned>(&self, path: &Path) -> Result<Option<T>> {
        let Some(bytes) = self.read(path, READ_LIMIT)? else { return Ok(None) };
        json::state(&bytes).map(Some).map_err(|rejection| {
            let error = match rejection {
                JsonRejection::Json(error) => not_expected(&error),
                JsonRejection::TooLarge(_) | JsonRejection::TooDeep => rejection.into(),
            };
            error.context(self.doing("reading", path))
        })
    }

    /// Reads a file of the agent's state. One that cannot be understood is the same as none: it is renamed to
    /// `NAME.unreadable`, never deleted, and logged as `code` (heat-protocol.md R2).
    ///
    /// # Errors
    /// If it can be neither read nor quarantined.
    pub fn read_state<T: serde::de::DeserializeOwned>(&self, path: &Path, report: &Report, code: Code) -> Result<Option<T>> {
        match self.read_json(path) {
            Err(error) if error.kind() == ErrorKind::Permanent => self.quarantine(path, report, code, &error).map(|()| None),
            other => other,
        }
    }

    /// Renames a file of the state that cannot be used, and says so.
    ///
    /// # Errors
    /// If it cannot be renamed.
    pub fn quarantine(&self, path: &Path, report: &Report, code: Code, why: &Error) -> Result<()> {
        self.rename(path, &path.with_extension("unreadable"))?;
        report.emit(Event::new(code, format!("{} was quarantined", path.display())).error(why));
        Ok(())
    }

    /// Writes a file whole: after a crash or power cut either the old or the new content is there.
    ///
    /// # Errors
    /// If any step fails; the old content is then still in place.
    pub fn write(&self, path: &Path, bytes: &[u8], attributes: Attributes) -> Result<()> {
        self.written(path, attributes, |file| file.write_all(bytes))
    }

    fn written(&self, path: &Path, attributes: Attributes, content: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
        let doing = || self.doing("writing", path);
        let (parent, name) = self.parent(path)?;
        let temporary = self.beside(&parent, &name).at(doing)?;
        self.change().at(doing)?;
        let made = create(&parent, &temporary).and_then(|fd| finish_synced(fd, content, attributes));
        if made.is_err() {
            // What there is of it must not be what keeps the disk full.
            let _ = unlinkat(&parent, temporary.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
        made.and_then(|()| self.put(&parent, &temporary, &name)).at(doing)
    }

    /// Copies a file of any size in pieces, its last link followed, with [`Tree::write`]'s promise. `false` if there is none.
    ///
    /// # Errors
    /// If it is no regular file, or a step fails; what was at `to` is then still in place.
    pub fn copy_file(&self, from: &Path, to: &Path, attributes: Attributes) -> Result<bool> {
        let fd = match self.open_at(from, OFlag::O_RDONLY | OFlag::O_NONBLOCK) {
            Ok(fd) => fd,
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(false),
            Err(errno) => return Err(self.doing("reading", from).failed(errno)),
        };
        let (mut source, _) = self.regular(fd, from)?;
        self.written(to, attributes, |file| io::copy(&mut source, file).map(drop)).map(|()| true)
    }

    /// Writes a value as JSON with [`Tree::write`].
    ///
    /// # Errors
    /// As [`Tree::write`].
    pub fn write_json<T: serde::Serialize>(&self, path: &Path, value: &T, attributes: Attributes) -> Result<()> {
        let mut bytes = serde_json::to_vec(value).map_err(Error::permanent).at(|| self.doing("writing", path))?;
        bytes.push(b'\n');
        self.write(path, &bytes, attributes)
    }

    /// Makes a file that must not exist yet, synced with its directory. `false` if it exists: of any
    /// number of callers exactly one gets `true`.
    ///
    /// # Errors
    /// If it cannot be made for another reason: then it is not there.
    pub fn create_new(&self, path: &Path, bytes: &[u8], attributes: Attributes) -> Result<bool> {
        let (parent, name) = self.parent(path)?;
        let finish = |fd| {
            self.change()?;
            finish_synced(fd, |file| file.write_all(bytes), attributes)?;
            fsync(&parent)
        };
        match self.change().and_then(|()| create(&parent, &name)).map(finish) {
            Ok(Ok(())) => Ok(true),
            Err(Errno::EEXIST) => Ok(false),
            Err(errno) => Err(self.doing("making", path).failed(errno)),
            Ok(Err(errno)) => {
                // Half made it would count as made, after a power cut too.
                let _ = unlinkat(&parent, name.as_os_str(), UnlinkatFlags::NoRemoveDir).and_then(|()| fsync(&parent));
                Err(self.doing("making", path).failed(errno))
            }
        }
    }

    /// Opens a file for appending, made with `attributes` if it is not there.
    ///
    /// # Errors
    /// If it can be neither opened nor made.
    pub fn append(&self, path: &Path, attributes: Attributes) -> Result<File> {
        let (parent, name) = self.parent(path)?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_APPEND | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = self.change().and_then(|()| openat(&parent, name.as_os_str(), flags, mode(attributes.mode)));
        let fd = opened.at(|| self.doing("opening", path))?;
        fchmod(&fd, mode(attributes.mode)).at(|| self.doing("opening", path))?;
        Ok(File::from(fd))
    }

    /// Makes a directory with exactly these attributes; leaves an existing one as it is.
    ///
    /// # Errors
    /// If it cannot be made or something else is in its place.
    pub fn create_dir(&self, path: &Path, attributes: Attributes) -> Result<()> {
        let Some(Component::Normal(_)) = path.components().next_back() else { return Ok(()) };
        let (parent, name) = self.parent(path)?;
        match self.change().and_then(|()| mkdirat(&parent, name.as_os_str(), mode(attributes.mode))) {
            Ok(()) => {
                self.set_attributes(path, attributes)?;
                fsync(&parent).at(|| self.doing("making directory", path))
            }
            Err(Errno::EEXIST) => match self.facts_followed(path)?.map(|facts| facts.kind) {
                Some(FileKind::Directory) => Ok(()),
                _ => Err(self.not_a_directory(path)),
            },
            Err(errno) => Err(self.doing("making directory", path).failed(errno)),
        }
    }

    /// What is in the place of a directory, and how to take it away.
    fn not_a_directory(&self, path: &Path) -> Error {
        let shown = self.full(path).display().to_string();
        let cause = match self.read_link(path) {
            Ok(Some(target)) => format!("{shown} is a link to {}, which is not a directory", target.display()),
            _ => "it exists but is not a directory".to_owned(),
        };
        let word = argument(&shown);
        let remedy = format!(
            "`ls -ld {word}` shows what is there: unless somebody needs it, `rm {word}`; the agent then makes the directory"
        );
        Error::permanent(cause).remedy(remedy).context(self.doing("making directory", path))
    }

    /// Makes a directory and its parents; existing ones stay as they are.
    ///
    /// # Errors
    /// As [`Tree::create_dir`].
    pub fn create_dir_all(&self, path: &Path, attributes: Attributes) -> Result<()> {
        let mut so_far = PathBuf::new();
        for component in path.components() {
            so_far.push(component);
            if matches!(component, Component::Normal(_)) {
                self.create_dir(&so_far, attributes)?;
            }
        }
        Ok(())
    }

    /// Gives an existing file or directory these attributes.
    ///
    /// # Errors
    /// If it is a link, not there, or the change is not allowed.
    pub fn set_attributes(&self, path: &Path, attributes: Attributes) -> Result<()> {
        let doing = || self.doing("setting the mode of", path);
        let (parent, name) = self.parent(path)?;
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let fd = openat(&parent, name.as_os_str(), flags, Mode::empty()).at(doing)?;
        if let Some((user, group)) = attributes.owner {
            fchown(&fd, Some(Uid::from_raw(user)), Some(Gid::from_raw(group))).at(doing)?;
        }
        fchmod(&fd, mode(attributes.mode)).at(doing)
    }

    /// Takes from group and others whatever they may do with a file; links are followed. Whether they could do anything.
    ///
    /// # Errors
    /// If it is not there, or the change is not allowed.
    pub fn make_private(&self, path: &Path) -> Result<bool> {
        let doing = || self.doing("setting the mode of", path);
        let fd = self.open_at(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK).at(doing)?;
        let is_open = facts_of(&fstat(&fd).at(doing)?).mode & 0o077 != 0;
        if is_open {
            fchmod(&fd, mode(0o600)).at(doing)?;
        }
        Ok(is_open)
    }

    /// What is at a path; `None` if nothing. The last component is not followed.
    ///
    /// # Errors
    /// If the path cannot be looked at.
    pub fn facts(&self, path: &Path) -> Result<Option<PathMetadata>> {
        let (parent, name) = match self.try_parent(path) {
            Ok(found) => found,
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
            Err(errno) => return Err(self.doing("inspecting", path).failed(errno)),
        };
        match fstatat(&parent, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(facts_of(&stat))),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.doing("inspecting", path).failed(errno)),
        }
    }

    /// Those of these names that a directory has, a link that leads nowhere too; none where there is no such directory. It asks for nothing
    /// but the names, so that looking for many of them costs little.
    ///
    /// # Errors
    /// If the directory cannot be looked at.
    pub fn present<'n>(&self, directory: &Path, names: &'n [String]) -> Result<Vec<&'n str>> {
        let doing = || self.doing("inspecting", directory);
        let fd = match self.open_at(directory, OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
            Ok(fd) => fd,
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(Vec::new()),
            Err(errno) => return Err(doing().failed(errno)),
        };
        let mut found = Vec::new();
        for name in names {
            match fstatat(&fd, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
                Ok(_) => found.push(name.as_str()),
                Err(Errno::ENOENT) => {}
                Err(errno) => return Err(doing().failed(errno)),
            }
        }
        Ok(found)
    }

    /// What a path leads to, links followed inside the tree; `None` if nothing.
    ///
    /// # Errors
    /// If the path cannot be looked at.
    pub fn facts_followed(&self, path: &Path) -> Result<Option<PathMetadata>> {
        match self.open_at(path, OFlag::O_PATH) {
            Ok(fd) => Ok(Some(facts_of(&fstat(&fd).at(|| self.doing("inspecting", path))?))),
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
            Err(errno) => Err(self.doing("inspecting", path).failed(errno)),
        }
    }

    /// Where a symbolic link leads, as it is written; `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be looked at.
    pub fn read_link(&self, path: &Path) -> Result<Option<OsString>> {
        let found = self.try_parent(path).and_then(|(parent, name)| readlinkat(&parent, name.as_os_str()));
        match found {
            Ok(target) => Ok(Some(target)),
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EINVAL) => Ok(None),
            Err(errno) => Err(self.doing("inspecting", path).failed(errno)),
        }
    }

    /// Makes or replaces a symbolic link, atomically. `false` if it already points there.
    ///
    /// # Errors
    /// If the directory is not writable or something other than a link is in its place.
    pub fn link(&self, target: &str, path: &Path) -> Result<bool> {
        match self.facts(path)?.map(|facts| facts.kind) {
            None | Some(FileKind::Link) => self.link_over(target, path),
            Some(_) => Err(Error::permanent("it exists but is not a symbolic link").context(self.doing("linking", path))),
        }
    }

    /// As [`Tree::link`]; a file in its place is replaced, too.
    ///
    /// # Errors
    /// If the directory is not writable or a directory is in its place.
    pub fn link_over(&self, target: &str, path: &Path) -> Result<bool> {
        let doing = || self.doing("linking", path);
        let (parent, name) = self.parent(path)?;
        match readlinkat(&parent, name.as_os_str()) {
            Ok(there) if there.as_encoded_bytes() == target.as_bytes() => return Ok(false),
            Ok(_) | Err(Errno::ENOENT | Errno::EINVAL) => {}
            Err(errno) => return Err(doing().failed(errno)),
        }
        let temporary = self.beside(&parent, &name).at(doing)?;
        self.change().at(doing)?;
        symlinkat(target, &parent, temporary.as_os_str()).at(doing)?;
        self.put(&parent, &temporary, &name).at(doing).map(|()| true)
    }

    /// Removes a file or link, synced. `false` if there was none.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove(&self, path: &Path) -> Result<bool> {
        let doing = || self.doing("removing", path);
        let (parent, name) = match self.try_parent(path) {
            Ok(found) => found,
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(false),
            Err(errno) => return Err(doing().failed(errno)),
        };
        let removed = self.unlink(&parent, &name, UnlinkatFlags::NoRemoveDir).at(doing)?;
        if removed {
            fsync(&parent).at(doing)?;
        }
        Ok(removed)
    }

    /// Removes a directory with everything in it; links in it are removed, not followed. `false` if
    /// there was none.
    ///
    /// # Errors
    /// If something in it cannot be removed.
    pub fn remove_dir_all(&self, path: &Path) -> Result<bool> {
        match self.facts(path)? {
            None => return Ok(false),
            Some(facts) if facts.kind != FileKind::Directory => return self.remove(path),
            Some(_) => {}
        }
        for name in self.list(path)? {
            self.remove_dir_all(&path.join(name))?;
        }
        let (parent, name) = self.parent(path)?;
        self.unlink(&parent, &name, UnlinkatFlags::RemoveDir).at(|| self.doing("removing", path))?;
        fsync(&parent).at(|| self.doing("removing", path)).map(|()| true)
    }

    /// Removes what writes that were cut off left in a directory; how many files. Only for a time when nobody writes there: a write
    /// that goes on would lose what it has.
    ///
    /// # Errors
    /// If the directory cannot be looked at, or something cannot be removed.
    pub fn remove_partial_writes(&self, directory: &Path) -> Result<usize> {
        let mut gone = 0;
        for name in self.list(directory)? {
            let target = name.to_str().and_then(|name| name.strip_prefix('.')?.strip_suffix(NEW));
            let path = directory.join(&name);
            if target.is_some_and(|target| !target.is_empty())
                && self.facts(&path)?.is_some_and(|facts| matches!(facts.kind, FileKind::File | FileKind::Link))
            {
                gone += usize::from(self.remove(&path)?);
            }
        }
        Ok(gone)
    }

    /// Renames within the tree, replacing a file at `to`; both directories are synced.
    ///
    /// # Errors
    /// If either directory is not there or the rename is refused.
    pub fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let doing = || self.doing("renaming", from);
        let (from_parent, from_name) = self.parent(from)?;
        let (to_parent, to_name) = self.parent(to)?;
        self.change().at(doing)?;
        renameat(&from_parent, from_name.as_os_str(), &to_parent, to_name.as_os_str()).at(doing)?;
        fsync(&to_parent).at(doing)?;
        fsync(&from_parent).at(doing)
    }

    /// Exchanges two names within the tree in one step, of which a power cut leaves all or nothing; both directories are synced. False if the
    /// kernel or the file system cannot (renameat2(2)): nothing has changed then.
    ///
    /// # Errors
    /// If either is not there or the exchange is refused.
    pub fn exchange(&self, one: &Path, other: &Path) -> Result<bool> {
        let doing = || self.doing("exchanging", one);
        let (one_parent, one_name) = self.parent(one)?;
        let (other_parent, other_name) = self.parent(other)?;
        self.change().at(doing)?;
        match renameat_with(&one_parent, one_name.as_os_str(), &other_parent, other_name.as_os_str(), RenameFlags::EXCHANGE) {
            Ok(()) => {}
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => return Ok(false),
            Err(error) => return Err(Errno::from_raw(error.raw_os_error())).at(doing),
        }
        fsync(&other_parent).at(doing)?;
        fsync(&one_parent).at(doing)?;
        Ok(true)
    }

    /// The names in a directory, sorted; empty if it is not there.
    ///
    /// # Errors
    /// If it is no directory or unreadable.
    pub fn list(&self, path: &Path) -> Result<Vec<OsString>> {
        let doing = || self.doing("listing", path);
        let fd = match self.open_at(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
            Ok(fd) => fd,
            Err(Errno::ENOENT) => return Ok(Vec::new()),
            Err(errno) => return Err(doing().failed(errno)),
        };
        let mut names = Vec::new();
        for entry in Dir::from_fd(fd).at(doing)? {
            let name = entry.at(doing)?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Bytes of all files below a path, of as many as `most`; whether that was all of them.
    ///
    /// # Errors
    /// If something cannot be looked at.
    pub fn bytes_below(&self, path: &Path, most: &mut usize) -> Result<(u64, bool)> {
        let Some(left) = most.checked_sub(1) else { return Ok((0, false)) };
        *most = left;
        match self.facts(path)? {
            Some(facts) if facts.kind == FileKind::Directory => {
                let (mut sum, mut all) = (0_u64, true);
                for name in self.list(path)? {
                    let (bytes, whole) = self.bytes_below(&path.join(name), most)?;
                    (sum, all) = (sum.saturating_add(bytes), all && whole);
                    if !all {
                        break;
                    }
                }
                Ok((sum, all))
            }
            Some(facts) => Ok((facts.size, true)),
            None => Ok((0, true)),
        }
    }

    /// Whether the file system reports the types of files in a directory (`d_type`), by the directory's entry for itself.
    ///
    /// # Errors
    /// If it is no directory or unreadable.
    pub fn reports_file_types(&self, path: &Path) -> Result<bool> {
        let doing = || self.doing("listing", path);
        let fd = self.open_at(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY).at(doing)?;
        for entry in Dir::from_fd(fd).at(doing)?.iter() {
            let entry = entry.at(doing)?;
            if entry.file_name().to_bytes() == b"." {
                return Ok(entry.file_type().is_some());
            }
        }
        Ok(false)
    }

    /// Takes an exclusive lock on a file (made if needed) without waiting; `None` if somebody has it, or had it and has removed the file
    /// meanwhile.
    ///
    /// # Errors
    /// If the file cannot be opened or made.
    pub fn lock(&self, path: &Path) -> Result<Option<Lock>> {
        let (parent, name) = self.parent(path)?;
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = openat(&parent, name.as_os_str(), flags, mode(0o600)).map_err(|errno| {
            let error = self.doing("locking", path).failed(errno);
            let is_foreign = matches!(errno, Errno::EISDIR | Errno::ELOOP | Errno::ENXIO);
            let remedy = || format!("remove {}: it is not the agent's, which makes a file there", self.full(path).display());
            if is_foreign { error.remedy(remedy()) } else { error }
        })?;
        self.locked(fd, path)
    }

    /// The same of a file that is there; `None` also if there is none.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn lock_existing(&self, path: &Path) -> Result<Option<Lock>> {
        let fd = match self.open_at(path, OFlag::O_RDWR | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK) {
            Ok(fd) => fd,
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
            Err(errno) => return Err(self.doing("locking", path).failed(errno)),
        };
        self.locked(fd, path)
    }

    fn locked(&self, fd: OwnedFd, path: &Path) -> Result<Option<Lock>> {
        let file = File::from(fd);
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => {
                return Err(Error::from(error).context(format!("locking {}", self.full(path).display())));
            }
        }
        // Whoever had the lock may have removed the file: the next one locks another.
        let is_there = fstat(&file).at(|| self.doing("locking", path))?.st_nlink > 0;
        Ok(is_there.then(|| Lock { file, changes: self.changes.clone() }))
    }

    fn parent(&self, path: &Path) -> Result<(OwnedFd, OsString)> {
        self.try_parent(path).map_err(|errno| {
            let error = self.doing("opening the directory of", path).failed(errno);
            if errno == Errno::ENOENT { error.with_missing_directory(&self.missing_above(path)) } else { error }
        })
    }

    /// The first directory on the way to a path that is not there.
    fn missing_above(&self, path: &Path) -> PathBuf {
        let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
        above.reverse();
        // One that was removed while it is open has no name any more.
        let is_gone = |directory: &&&Path| match self.facts_followed(directory) {
            Ok(found) => found.is_none() || (directory.as_os_str().is_empty() && self.is_removed()),
            Err(_) => false,
        };
        match above.iter().find(is_gone) {
            Some(directory) if directory.as_os_str().is_empty() => self.base.clone(),
            found => self.full(found.copied().unwrap_or(path)),
        }
    }

    /// Whether this directory itself was removed since it was opened.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        fstat(&self.root).is_ok_and(|stat| stat.st_nlink == 0)
    }

    fn try_parent(&self, path: &Path) -> nix::Result<(OwnedFd, OsString)> {
        let Some(Component::Normal(name)) = path.components().next_back() else { return Err(Errno::EINVAL) };
        let parent = path.parent().unwrap_or_else(|| Path::new(""));
        let fd = self.open_at(parent, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        Ok((fd, name.to_owned()))
    }

    fn open_at(&self, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
        let relative: PathBuf = path.components().filter(|part| !matches!(part, Component::RootDir)).collect();
        let relative = if relative.as_os_str().is_empty() { PathBuf::from(".") } else { relative };
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        match openat2(&self.root, relative.as_path(), how) {
            // EAGAIN: something was renamed or mounted anywhere on the machine meanwhile, so that it cannot tell where `..` leads (openat2(2)).
            Err(Errno::ENOSYS | Errno::EPERM | Errno::EAGAIN) => self.walk(&relative, flags),
            other => other,
        }
    }

    /// openat2 for kernels before 5.6 (and seccomp filters that do not know it), and where it is to be tried again: part by part, each link read and put in the
    /// place of its name, with this tree's directory as the root of all of them.
    fn walk(&self, relative: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
        let part = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        // The directories gone down so far, so that `..` needs no question to the kernel.
        let mut above: Vec<OwnedFd> = Vec::new();
        let mut left: Vec<OsString> = parts_backwards(relative);
        let mut links = 0;
        while let Some(name) = left.pop() {
            match name.as_encoded_bytes() {
                b"/" => above.clear(),
                b"." => {}
                b".." => drop(above.pop()),
                _ => {
                    let at = above.last().unwrap_or(&self.root);
                    let fd = openat(at, name.as_os_str(), part, Mode::empty())?;
                    match facts_of(&fstat(&fd)?).kind {
                        FileKind::Link if links == LINKS => return Err(Errno::ELOOP),
                        FileKind::Link => {
                            links += 1;
                            left.extend(parts_backwards(Path::new(&readlinkat(&fd, "")?)));
                        }
                        _ if left.is_empty() => {
                            return openat(at, name.as_os_str(), flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty());
                        }
                        FileKind::Directory => above.push(fd),
                        FileKind::File | FileKind::Other => return Err(Errno::ENOTDIR),
                    }
                }
            }
        }
        openat(above.last().unwrap_or(&self.root), ".", flags | OFlag::O_CLOEXEC, Mode::empty())
    }

    fn full(&self, path: &Path) -> PathBuf {
        self.base.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn doing(&self, verb: &'static str, path: &Path) -> Operation {
        Operation { verb, path: self.full(path) }
    }
}

/// What is wrong with JSON, without a word of it: the parser's own text repeats values, and a value may be a signed URL or a password.
fn not_expected(error: &serde_json::Error) -> Error {
    let (line, column) = (error.line(), error.column());
    let what = match error.classify() {
        Category::Io => "it cannot be read",
        Category::Syntax => "it is not JSON",
        Category::Data => "a value does not have the expected form",
        Category::Eof => "it ends too early",
    };
    Error::permanent(format!("{what}: line {line}, column {column}"))
}

/// Permission bits as a new file or directory of another program would have them: without those that the process's umask takes away.
#[must_use]
pub fn masked(bits: u32) -> u32 {
    let mask = nix::sys::stat::umask(mode(0o077));
    nix::sys::stat::umask(mask);
    bits & !mask.bits()
}

/// The parts of a path, the first one last.
fn parts_backwards(path: &Path) -> Vec<OsString> {
    path.components().rev().map(|part| part.as_os_str().to_owned()).collect()
}

/// A file that must not exist yet. Born 0600: nobody else can open it before owner and mode are final.
fn create(parent: &OwnedFd, name: &OsString) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(parent, name.as_os_str(), flags, mode(0o600))
}

fn finish_synced(fd: OwnedFd, content: impl FnOnce(&mut File) -> io::Result<()>, attributes: Attributes) -> nix::Result<()> {
    if let Some((user, group)) = attributes.owner {
        fchown(&fd, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
    }
    let mut file = File::from(fd);
    content(&mut file).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32)))?;
    // The last: a new owner and a write take set-user-ID away (chown(2), write(2)).
    fchmod(&file, mode(attributes.mode))?;
    fsync(&file)
}

fn mode(bits: u32) -> Mode {
    Mode::from_bits_truncate(bits)
}

fn facts_of(stat: &FileStat) -> PathMetadata {
    let kind = match SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) {
        SFlag::S_IFREG => FileKind::File,
        SFlag::S_IFDIR => FileKind::Directory,
        SFlag::S_IFLNK => FileKind::Link,
        _ => FileKind::Other,
    };
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let stamp = (stat.st_ino, stat.st_ctime, stat.st_ctime_nsec);
    PathMetadata { kind, mode: stat.st_mode & 0o7777, owner: (stat.st_uid, stat.st_gid), size, stamp }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn tree() -> (tempfile::TempDir, Tree) {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        (dir, tree)
    }

    /// A busy machine: of a link that leads over `..` the kernel could not say whether it stays inside while anything was renamed anywhere
    /// (openat2(2), EAGAIN), and what read it failed: a look at a node, and with it the operator's order to repair it.
    #[test]
    fn two_names_are_exchanged_in_one_step() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let (one, other) = (Path::new("a/member"), Path::new("b"));
        tree.create_dir_all(one, Attributes::mode(0o700)).unwrap();
        tree.write(other, b"file", Attributes::mode(0o600)).unwrap();
        assert!(tree.exchange(one, other).unwrap());
        assert_eq!(std::fs::read(dir.path().join(one)).unwrap(), b"file");
        assert!(dir.path().join(other).is_dir());
        let missing = tree.exchange(one, Path::new("missing")).unwrap_err();
        assert!(missing.to_string().contains("ENOENT"), "{missing}");
    }

    #[test]
    fn what_others_rename_meanwhile_keeps_nobody_from_following_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        tree.create_dir_all(Path::new("etc/sysctl.d"), Attributes::mode(0o755)).unwrap();
        tree.write(Path::new("etc/sysctl.conf"), b"x", Attributes::mode(0o644)).unwrap();
        std::os::unix::fs::symlink("../sysctl.conf", dir.path().join("etc/sysctl.d/99-sysctl.conf")).unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for name in ["one", "other"] {
                tree.write(Path::new(name), b"", Attributes::mode(0o644)).unwrap();
                let (tree, is_over, away) = (&tree, &is_over, format!("{name}.away"));
                scope.spawn(move || {
                    while !is_over.load(Relaxed) {
                        renameat(&tree.root, name, &tree.root, away.as_str()).unwrap();
                        renameat(&tree.root, away.as_str(), &tree.root, name).unwrap();
                    }
                });
            }
            let link = Path::new("etc/sysctl.d/99-sysctl.conf");
            let failed = (0..20_000).find_map(|_| tree.facts_followed(link).err());
            is_over.store(true, Relaxed);
            assert_eq!(failed.map(|error| error.to_string()), None);
        });
    }

    #[test]
    fn a_file_is_written_whole_with_its_mode_and_leaves_nothing_beside_it() {
        let (_dir, tree) = tree();
        let path = Path::new("/a/b/secret");
        tree.create_dir_all(Path::new("/a/b"), Attributes::mode(0o750)).unwrap();
        tree.write(path, b"one", Attributes::mode(0o600)).unwrap();
        tree.write(path, b"two", Attributes::mode(0o640)).unwrap();
        assert_eq!(tree.read(path, 10).unwrap().as_deref(), Some(&b"two"[..]));
        let facts = tree.facts(path).unwrap().unwrap();
        assert_eq!((facts.kind, facts.mode), (FileKind::File, 0o640));
        assert_eq!(tree.list(Path::new("/a/b")).unwrap(), ["secret"]);
        assert_eq!(tree.facts(Path::new("/a/b")).unwrap().unwrap().mode, 0o750);
    }

    #[test]
    fn what_cannot_be_understood_is_named_by_its_place_and_not_repeated() {
        let (_dir, tree) = tree();
        let path = Path::new("x");
        for (text, words) in [
            ("{\n\"a\": \"https://h/?Signature=hush\"}", "a value does not have the expected form: line 2, column "),
            ("{\"hush\": 3}", "a value does not have the expected form: line 1, column "),
            ("\"hush\"", "a value does not have the expected form: line 1, column "),
            ("{\"a\": hush}", "it is not JSON: line 1, column "),
            ("{\"a\": ", "it ends too early: line 1, column "),
        ] {
            tree.write(path, text.as_bytes(), Attributes::mode(0o600)).unwrap();
            let error = tree.read_json::<BTreeMap<String, Vec<String>>>(path).unwrap_err();
            let report = error.lines().join("\n");
            assert!(report.contains(words) && !report.contains("hush"), "{text}: {report}");
            assert_eq!(error.kind(), ErrorKind::Permanent);
        }
    }

    #[test]
    fn a_partially_written_temporary_file_of_a_crash_is_in_nobodys_way() {
        let (dir, tree) = tree();
        tree.write(Path::new(".x.hna-new"), b"half", Attributes::mode(0o600)).unwrap();
        tree.write(Path::new("x"), b"whole", Attributes::mode(0o600)).unwrap();
        assert_eq!(tree.read(Path::new("x"), 10).unwrap().as_deref(), Some(&b"whole"[..]));
        assert!(!dir.path().join(".x.hna-new").exists());
    }

    #[test]
    fn a_tree_that_breaks_makes_so_many_changes_and_no_more() {
        let (_dir, tree) = tree();
        // A temporary name is removed, made, and renamed.
        for changes in 0..4 {
            let path = Path::new("x");
            tree.write(path, b"old", Attributes::mode(0o600)).unwrap();
            let result = tree.breaking_after(changes).unwrap().write(path, b"new", Attributes::mode(0o600));
            assert_eq!(result.is_ok(), changes == 3, "{changes}");
            let expected: &[u8] = if changes == 3 { b"new" } else { b"old" };
            assert_eq!(tree.read(path, 10).unwrap().as_deref(), Some(expected), "{changes}");
        }
    }

    #[test]
    fn links_never_lead_out_of_the_tree() {
        let outside = tempfile::tempdir().unwrap();
        let (dir, tree) = tree();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("out")).unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("root")).unwrap();
        assert!(tree.write(Path::new("out/file"), b"x", Attributes::mode(0o600)).is_err());
        tree.write(Path::new("root/file"), b"x", Attributes::mode(0o600)).unwrap();
        tree.write(Path::new("../../file2"), b"x", Attributes::mode(0o600)).unwrap();
        assert!(outside.path().read_dir().unwrap().next().is_none());
        assert!(dir.path().join("file").exists() && dir.path().join("file2").exists());
    }

    /// Attack: of a link in the place of a unit's directory the remedy spoke of a full disk.
    #[test]
    fn what_is_in_the_place_of_a_directory_is_named_with_the_way_to_take_it_away() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let (place, target) = (dir.path().join("etc/x.service.d"), "/elsewhere");
        tree.create_dir(Path::new("etc"), Attributes::mode(0o755)).unwrap();
        std::os::unix::fs::symlink(target, &place).unwrap();
        let error = |path: &str| tree.create_dir_all(Path::new(path), Attributes::mode(0o755)).unwrap_err();
        let found = error("etc/x.service.d/y");
        assert!(found.cause().contains(&format!("{} is a link to {target}", place.display())), "{found}");
        assert!(found.suggested_remedy().unwrap().contains(&format!("`rm {}`", place.display())), "{found}");
        // A directory elsewhere is one.
        tree.create_dir(Path::new("elsewhere"), Attributes::mode(0o755)).unwrap();
        tree.create_dir_all(Path::new("etc/x.service.d/y"), Attributes::mode(0o755)).unwrap();
        tree.write(Path::new("file"), b"", Attributes::mode(0o644)).unwrap();
        assert!(error("file/y").suggested_remedy().unwrap().contains(&format!("`ls -ld {}`", dir.path().join("file").display())));
    }

    #[test]
    fn a_file_that_is_opened_is_no_link_pipe_or_directory() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let path = |name: &str| dir.path().join(name);
        tree.create_dir(Path::new("directory"), Attributes::mode(0o755)).unwrap();
        nix::unistd::mkfifo(&path("pipe"), Mode::S_IRWXU).unwrap();
        tree.write(Path::new("file"), b"words", Attributes::mode(0o600)).unwrap();
        std::os::unix::fs::symlink("file", path("link")).unwrap();
        for name in ["directory", "pipe", "link"] {
            let error = tree.open_file(Path::new(name)).unwrap_err().to_string();
            assert!(error.contains("not a regular file"), "{name}: {error}");
        }
        let mut text = String::new();
        tree.open_file(Path::new("file")).unwrap().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "words");
        assert!(tree.open_file(Path::new("none")).unwrap().is_none() && tree.open_file(Path::new("file/x")).unwrap().is_none());
    }

    #[test]
    fn both_ways_of_opening_follow_links_inside_the_tree_alone() {
        let outside = tempfile::tempdir().unwrap();
        let (dir, tree) = tree();
        tree.create_dir_all(Path::new("a/b"), Attributes::mode(0o755)).unwrap();
        tree.write(Path::new("a/b/file"), b"x", Attributes::mode(0o600)).unwrap();
        let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, dir.path().join(name)).unwrap();
        link("b", "a/relative");
        link("/a/b", "absolute");
        link("../../../../../../a/b/file", "up");
        link("relative/file", "a/twice");
        link("loop", "loop");
        link("../absolute/../relative/.", "a/around");
        link(outside.path().to_str().unwrap(), "out");
        for (path, found) in [
            ("a/b/file", true),
            ("/a/b/file", true),
            ("a/relative/file", true),
            ("absolute/file", true),
            ("up", true),
            ("a/twice", true),
            ("a/around/file", true),
            ("../a/../a/b/file", true),
            ("a/b/../../up", true),
            ("loop", false),
            ("out", false),
            ("a/b/file/..", false),
            ("a/none", false),
        ] {
            let path = Path::new(path);
            let relative = path.strip_prefix("/").unwrap_or(path);
            let kind = |fd: nix::Result<OwnedFd>| fd.map(|fd| facts_of(&fstat(&fd).unwrap()).kind).map_err(|_| ());
            let expected = if found { Ok(FileKind::File) } else { Err(()) };
            assert_eq!(kind(tree.open_at(path, OFlag::O_RDONLY)), expected, "{}", path.display());
            assert_eq!(kind(tree.walk(relative, OFlag::O_RDONLY)), expected, "walking {}", path.display());
        }
        for path in [".", "a", "absolute", "a/..", "a/b/.."] {
            assert!(tree.walk(Path::new(path), OFlag::O_RDONLY | OFlag::O_DIRECTORY).is_ok(), "{path}");
        }
    }

    #[test]
    fn a_link_in_place_of_a_file_is_replaced_not_followed() {
        let (dir, tree) = tree();
        tree.write(Path::new("target"), b"kept", Attributes::mode(0o600)).unwrap();
        std::os::unix::fs::symlink("target", dir.path().join("name")).unwrap();
        tree.write(Path::new("name"), b"new", Attributes::mode(0o600)).unwrap();
        assert_eq!(tree.read(Path::new("target"), 10).unwrap().as_deref(), Some(&b"kept"[..]));
        assert_eq!(tree.facts(Path::new("name")).unwrap().unwrap().kind, FileKind::File);
    }

    #[test]
    fn exactly_one_caller_makes_a_new_file() {
        let (_dir, tree) = tree();
        assert!(tree.create_new(Path::new("once"), b"", Attributes::mode(0o600)).unwrap());
        assert!(!tree.create_new(Path::new("once"), b"", Attributes::mode(0o600)).unwrap());
    }

    /// Attack: a mark that was made and could not be synced stayed, and a job that had never begun counted as one that was lost.
    #[test]
    fn what_could_not_be_finished_is_not_there() {
        let (_dir, tree) = tree();
        let once = Path::new("once");
        let made = |changes| tree.breaking_after(changes).unwrap().create_new(once, b"x", Attributes::mode(0o600));
        for changes in [0, 1] {
            assert!(made(changes).is_err());
            assert_eq!(tree.facts(once).unwrap(), None, "{changes}");
        }
        assert!(made(2).unwrap());
        assert_eq!(tree.read(once, 10).unwrap().as_deref(), Some(&b"x"[..]));
    }

    #[test]
    fn a_lock_is_held_by_one() {
        let (_dir, tree) = tree();
        let held = tree.lock(Path::new("lock")).unwrap();
        assert!(held.is_some());
        assert!(tree.lock(Path::new("lock")).unwrap().is_none());
        drop(held);
        assert!(tree.lock(Path::new("lock")).unwrap().is_some());
        tree.create_dir(Path::new("directory"), Attributes::mode(0o700)).unwrap();
        let error = tree.lock(Path::new("directory")).err().unwrap();
        assert!(error.suggested_remedy().unwrap().starts_with("remove "), "{error}");
    }

    #[test]
    fn a_lock_of_a_file_that_is_gone_is_nobodys() {
        let (_dir, tree) = tree();
        let lock = Path::new("lock");
        assert!(tree.lock_existing(lock).unwrap().is_none());
        let held = tree.lock(lock).unwrap();
        assert!(tree.lock_existing(lock).unwrap().is_none() && held.is_some());
        drop(held);
        let held = tree.lock_existing(lock).unwrap();
        assert!(held.is_some());
        tree.remove(lock).unwrap();
        assert!(tree.lock_existing(lock).unwrap().is_none());
    }

    #[test]
    fn a_file_of_any_size_is_copied_whole_or_not_at_all() {
        let (_dir, tree) = tree();
        let [from, link, to] = ["from", "link", "to"].map(Path::new);
        let large = vec![b'x'; 17 << 20];
        tree.write(from, &large, Attributes::mode(0o600)).unwrap();
        tree.link("from", link).unwrap();
        assert!(tree.copy_file(link, to, Attributes::mode(0o640)).unwrap());
        let facts = tree.facts(to).unwrap().unwrap();
        assert_eq!((facts.kind, facts.mode, facts.size), (FileKind::File, 0o640, 17 << 20));
        tree.write(from, b"new", Attributes::mode(0o600)).unwrap();
        for changes in 0..3 {
            assert!(tree.full_after(changes).unwrap().copy_file(from, to, Attributes::mode(0o600)).is_err());
            assert_eq!(tree.facts(to).unwrap().unwrap().size, 17 << 20);
        }
        assert!(!tree.copy_file(Path::new("none"), to, Attributes::mode(0o600)).unwrap());
        tree.create_dir(Path::new("dir"), Attributes::mode(0o700)).unwrap();
        assert!(tree.copy_file(Path::new("dir"), to, Attributes::mode(0o600)).is_err());
    }

    #[test]
    fn what_is_absent_too_large_or_no_file_is_distinguished() {
        let (_dir, tree) = tree();
        assert_eq!(tree.read(Path::new("none/there"), 10).unwrap(), None);
        tree.write(Path::new("big"), b"12345", Attributes::mode(0o600)).unwrap();
        assert!(tree.read(Path::new("big"), 4).unwrap_err().to_string().contains("larger than 4 bytes"));
        tree.create_dir(Path::new("dir"), Attributes::mode(0o700)).unwrap();
        assert!(tree.read(Path::new("dir"), 4).is_err());
        assert!(!tree.remove(Path::new("none")).unwrap());
        assert!(tree.remove_dir_all(Path::new("dir")).unwrap());
    }

    #[test]
    fn names_are_looked_for_without_following_them() {
        let (_dir, tree) = tree();
        tree.create_dir_all(Path::new("a/b.d"), Attributes::mode(0o755)).unwrap();
        tree.write(Path::new("a/file"), b"x", Attributes::mode(0o600)).unwrap();
        tree.link("/nowhere", Path::new("a/link")).unwrap();
        tree.link("a", Path::new("to-a")).unwrap();
        let names = ["b.d", "c", "file", "link"].map(str::to_owned);
        for (directory, found) in [
            ("a", &["b.d", "file", "link"][..]),
            ("/to-a", &["b.d", "file", "link"]),
            ("none", &[]),
            ("a/file", &[]),
            ("a/link", &[]),
        ] {
            assert_eq!(tree.present(Path::new(directory), &names).unwrap(), found, "{directory}");
        }
    }

    #[test]
    fn a_symbolic_link_is_made_once() {
        let (_dir, tree) = tree();
        assert!(tree.link("/usr/lib/x.service", Path::new("x.service")).unwrap());
        assert!(!tree.link("/usr/lib/x.service", Path::new("x.service")).unwrap());
        assert!(tree.link("/usr/lib/y.service", Path::new("x.service")).unwrap());
        assert_eq!(tree.read_link(Path::new("x.service")).unwrap().unwrap(), "/usr/lib/y.service");
        tree.write(Path::new("file"), b"", Attributes::mode(0o600)).unwrap();
        assert!(tree.link("target", Path::new("file")).is_err());
        assert_eq!(tree.read_link(Path::new("file")).unwrap(), None);
        assert!(tree.link_over("target", Path::new("file")).unwrap());
        assert_eq!(tree.read_link(Path::new("file")).unwrap().unwrap(), "target");
    }
    #[test]
    fn what_stands_on_the_way_to_a_file_is_named_with_the_command_to_look() {
        let (dir, tree) = tree();
        tree.link("loop", Path::new("loop")).unwrap();
        tree.write(Path::new("file"), b"", Attributes::mode(0o600)).unwrap();
        tree.create_dir(Path::new("a"), Attributes::mode(0o700)).unwrap();
        let at = |path: &str| dir.path().join(path).display().to_string();
        let write = |path: &str| tree.write(Path::new(path), b"", Attributes::mode(0o600)).unwrap_err();
        for (path, words) in [
            ("loop/x", format!("`namei -l {}`", at("loop/x"))),
            ("file/x", format!("`namei -l {}`", at("file/x"))),
            ("a/b/c/x", format!("the directory {} is missing", at("a/b"))),
        ] {
            let error = write(path);
            assert!(error.suggested_remedy().is_some_and(|remedy| remedy.contains(&words)), "{path}: {error:?}");
        }
        let none = Tree::open(&dir.path().join("none")).unwrap_err();
        assert!(none.suggested_remedy().unwrap().contains(&format!("mkdir -p {}", at("none"))), "{none:?}");
        let gone = Tree::open_or_create(&dir.path().join("gone"), 0o700).unwrap();
        tree.remove_dir_all(Path::new("gone")).unwrap();
        let error = gone.write(Path::new("d/x"), b"", Attributes::mode(0o600)).unwrap_err();
        assert!(error.suggested_remedy().unwrap().contains(&format!("the directory {} is missing", at("gone"))), "{error:?}");
    }
}
