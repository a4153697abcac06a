//! Takes away what a generation brought that the one before it, which the node goes back to, does not ask for: the edge of a rollback.
//!
//! Safe to drop at any moment and to run again: a file is restored or removed only as long as it holds what the abandoned generation
//! wrote, and a unit is stopped only as long as it runs.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use super::plan::is_unit_file;
use crate::error::Result;
use crate::files::{Attributes, READ_LIMIT, Tree};

/// What lay at a path before a generation wrote there.
#[derive(Clone, PartialEq, Eq)]
pub struct Original {
    /// The whole content.
    pub content: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
}

/// A file that the generation before does not ask for.
#[derive(Clone, PartialEq, Eq)]
pub struct RetiredFile {
    /// Absolute path.
    pub path: String,
    /// What the abandoned generation wrote: whatever else lies there is somebody else's, and stays.
    pub written: String,
    /// What lay there before; `None` if nothing did.
    pub original: Option<Original>,
}

impl fmt::Debug for RetiredFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The content may be a secret.
        write!(f, "RetiredFile({})", self.path)
    }
}

/// All that the abandoned generation brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retired {
    /// Files to restore or remove.
    pub files: Vec<RetiredFile>,
    /// Units that read one of those files and run on: restarted where one of the files changes.
    pub readers: BTreeSet<String>,
    /// Units to stop.
    pub stop: Vec<String>,
    /// Units to disable.
    pub disable: Vec<String>,
}

/// What was done to the files.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RetiredFiles {
    /// One line for each, as an event says it.
    pub(crate) lines: Vec<String>,
    /// Whether systemd has to read its unit files again.
    pub(crate) reload: bool,
}

impl Retired {
    /// Whether there is nothing to take away.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Files that still hold what the abandoned generation wrote.
    ///
    /// # Errors
    /// If one of them cannot be read.
    pub(crate) fn present(&self, root: &Tree) -> Result<Vec<&RetiredFile>> {
        let mut present = Vec::new();
        for file in &self.files {
            let is_unchanged =
                root.read(Path::new(&file.path), READ_LIMIT)?.is_some_and(|bytes| bytes == file.written.as_bytes());
            let is_restored = file.original.as_ref().is_some_and(|original| original.content == file.written.as_bytes());
            if is_unchanged && !is_restored {
                present.push(file);
            }
        }
        Ok(present)
    }
}

/// Restores or removes these.
///
/// # Errors
/// If one of them cannot be written or removed; the next run finishes it.
pub(crate) fn files(root: &Tree, files: &[&RetiredFile]) -> Result<RetiredFiles> {
    let mut done = RetiredFiles::default();
    for file in files {
        let path = Path::new(&file.path);
        let verb = if let Some(Original { content, mode, owner }) = &file.original {
            root.write(path, content, Attributes { mode: *mode, owner: Some(*owner) })?;
            "restored"
        } else {
            root.remove(path)?;
            "removed"
        };
        done.lines.push(format!("{verb} {}", file.path));
        done.reload |= is_unit_file(&file.path);
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retired(path: &str, original: Option<&str>) -> RetiredFile {
        let original = original.map(|text| Original { content: text.into(), mode: 0o640, owner: (0, 0) });
        RetiredFile { path: path.into(), written: "ours\n".into(), original }
    }

    #[test]
    fn what_a_generation_brought_is_taken_away_and_what_somebody_wrote_since_stays() {
        let folder = tempfile::tempdir().unwrap();
        let root = Tree::open(folder.path()).unwrap();
        root.create_dir_all(Path::new("/etc/systemd/system/x.service.d"), Attributes::mode(0o755)).unwrap();
        let put = |path: &str, text: &str| root.write(Path::new(path), text.as_bytes(), Attributes::mode(0o644)).unwrap();
        let read = |path: &str| root.read(Path::new(path), 100).unwrap().map(|bytes| String::from_utf8(bytes).unwrap());
        let new = "/etc/systemd/system/x.service.d/50-heat-node-agent.conf";
        for path in [new, "/etc/replaced", "/etc/edited"] {
            put(path, "ours\n");
        }
        let all = Retired {
            files: vec![
                retired(new, None),
                retired("/etc/replaced", Some("theirs\n")),
                retired("/etc/edited", None),
                retired("/etc/never-written", None),
                retired("/etc/same", Some("ours\n")),
            ],
            ..Retired::default()
        };
        put("/etc/edited", "edited since\n");
        put("/etc/same", "ours\n");
        let done = files(&root, &all.present(&root).unwrap()).unwrap();
        assert_eq!(done.lines, [format!("removed {new}"), "restored /etc/replaced".to_owned()]);
        assert!(done.reload);
        assert_eq!((read(new), read("/etc/replaced").as_deref()), (None, Some("theirs\n")));
        assert_eq!((read("/etc/edited").as_deref(), read("/etc/same").as_deref()), (Some("edited since\n"), Some("ours\n")));
        assert_eq!(root.facts(Path::new("/etc/replaced")).unwrap().unwrap().mode, 0o640);
        // A second run, after a crash: nothing is left to do, and what was restored is not removed.
        assert_eq!(files(&root, &all.present(&root).unwrap()).unwrap(), RetiredFiles::default());
        assert_eq!(read("/etc/replaced").as_deref(), Some("theirs\n"));
    }
}
