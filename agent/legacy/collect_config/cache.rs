//! What was collected, as files: each document as it is, as it was first, and as it was at the last command that succeeded
//! (heat-protocol.md 1.7).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::super::log::Log;
use super::super::machine::Machine;
use super::options::Options;
use crate::clock::Clock;
use crate::collect::RunOrder;
use crate::digest;
use crate::error::Result;
use crate::files::{Attributes, READ_LIMIT, masked};
use crate::identity::{Identity, claim, owner};
use crate::metadata::{python_json, python_json_lines};

/// Its file lists the others.
const LIST: &str = "os_config_files";
/// Bytes of the longest name that is taken as it is: NAME_MAX less what is put around it. In the place of a longer one stands its digest.
const LONGEST: usize = 200;
/// Documents that are used again without being asked for: on a copied disk they are another server's.
const USED_AGAIN: [&str; 4] = ["ec2", "cfn", "heat", "request"];
/// The boot copy, and what of it says whose metadata is to be collected.
const BOOT: &str = "heat_local";
const SETTINGS: &str = "os-collect-config";

/// The directory of the files.
pub(super) struct Cache<'a> {
    pub(super) machine: &'a Machine,
    pub(super) options: &'a Options,
}

/// What a round has written.
#[derive(Debug, Default)]
pub(super) struct Stored {
    /// The files, in order.
    pub(super) paths: Vec<String>,
    /// Of them those that no command has seen yet.
    pub(super) changed: Vec<String>,
}

impl Cache<'_> {
    /// Writes the documents of a round; where one is new, their list and the copy of everything too.
    ///
    /// # Errors
    /// If something cannot be written.
    pub(super) fn store(&self, documents: &[(String, Value)], log: &mut Log) -> Result<Stored> {
        let root = &self.machine.root;
        let mut stored = Stored::default();
        let mut taken = BTreeSet::from([LIST.to_owned()]);
        for (key, document) in documents {
            self.make_directory()?;
            let path = self.path(&file_name(key, &mut taken));
            let text = python_json_lines(document, 1);
            let there = self.machine.path(&path);
            let (first, last) = (beside(&there, "orig"), beside(&there, "last"));
            let is_new = root.facts(&first)?.is_none();
            if is_new {
                root.write(&first, text.as_bytes(), Attributes::mode(0o600))?;
            }
            // What did not change is not written again.
            if root.read(&there, READ_LIMIT).ok().flatten().as_deref() != Some(text.as_bytes()) {
                root.write(&there, text.as_bytes(), Attributes::mode(0o600))?;
            }
            // The same bytes first: a number may be another one after it was written and read.
            let is_same = root.read(&last, READ_LIMIT).ok().flatten().as_deref() == Some(text.as_bytes());
            if is_new || !(is_same || self.is_known(&last, document, log)) {
                stored.changed.push(path.clone());
            }
            stored.paths.push(path);
        }
        if !stored.changed.is_empty() {
            let list = Value::from(stored.paths.clone());
            root.write(&self.machine.path(self.path(LIST)), python_json(&list).as_bytes(), Attributes::mode(0o600))?;
            // Nobody needs the copy to run the command.
            if let Err(error) = self.back_up(log) {
                log.warning(&format!("the copy for this boot is not complete: {error}"));
            }
        }
        Ok(stored)
    }

    /// Whether the last command that succeeded has seen a document. What cannot be read says nothing (heat-protocol.md R2).
    fn is_known(&self, last: &Path, document: &Value, log: &mut Log) -> bool {
        match self.machine.json(last) {
            Ok(seen) => seen.as_ref() == Some(document),
            Err(error) => {
                log.warning(&format!("{error}: it counts as changed"));
                false
            }
        }
    }

    /// Records that a command has seen these files.
    ///
    /// # Errors
    /// If something cannot be written.
    pub(super) fn commit(&self, changed: &[String]) -> Result<()> {
        for path in changed {
            let path = self.machine.path(path);
            self.machine.root.copy_file(&path, &beside(&path, "last"), Attributes::mode(0o600))?;
        }
        Ok(())
    }

    /// Whether another server has kept what is here (heat-protocol.md R16): the instance recorded beside it, or its boot copy, is another one.
    pub(super) fn is_anothers(&self, instance: Option<&Identity>, boot: Option<&Value>) -> bool {
        let is_another = |owner: &Identity| instance.is_some_and(|instance| !owner.is(instance));
        owner(&self.directory()).as_ref().is_some_and(is_another) || other_settings(self.kept(BOOT), boot).is_some()
    }

    /// Whom the last command that succeeded was told to ask, if the boot copy says something else now.
    pub(super) fn former(&self, boot: Option<&Value>) -> Option<Value> {
        other_settings(self.machine.json(beside(Path::new(&self.path(BOOT)), "last")).ok().flatten(), boot)
    }

    /// Which deployments were listed before; nothing where that was never kept.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn open_order(&self, clock: &Clock) -> Result<Option<RunOrder>> {
        let Ok(directory) = self.machine.root.subtree(&self.directory()) else { return Ok(None) };
        RunOrder::open(&directory, clock)
    }

    /// Records the same.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn keep_order(&self, order: &mut RunOrder, clock: &Clock) -> Result<()> {
        if !order.is_to_keep() {
            return Ok(());
        }
        self.make_directory()?;
        order.keep(&self.machine.root.subtree(&self.directory())?, clock)
    }

    /// Removes what would be used again.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub(super) fn forget(&self) -> Result<()> {
        for name in USED_AGAIN {
            let path = self.machine.path(self.path(name));
            for path in [&path, &beside(&path, "orig"), &beside(&path, "last")] {
                self.machine.root.remove(path)?;
            }
        }
        Ok(())
    }

    /// Records whose the files are, where there are any and that is known.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn claim(&self, instance: Option<&Identity>) -> Result<()> {
        let directory = self.directory();
        instance.filter(|_| self.machine.kind(&directory).is_some()).map_or(Ok(()), |instance| claim(&directory, instance))
    }

    /// What a source said last, as far as it was kept; `None` where nothing is or can be read.
    pub(super) fn kept(&self, key: &str) -> Option<Value> {
        self.machine.json(self.path(key)).ok().flatten()
    }

    fn make_directory(&self) -> Result<()> {
        if self.machine.kind(self.directory()).is_some() {
            return Ok(());
        }
        self.machine.root.create_dir(&self.directory(), Attributes::mode(masked(0o777))).map(drop)
    }

    fn directory(&self) -> PathBuf {
        self.machine.path(&self.options.cachedir)
    }

    /// As the original writes it: the directory as it is given.
    fn path(&self, name: &str) -> String {
        Path::new(&self.options.cachedir).join(format!("{name}.json")).display().to_string()
    }

    /// Copies the directory anew to where it is kept until the machine is started again.
    fn back_up(&self, log: &mut Log) -> Result<()> {
        let (from, to) = (self.directory(), self.machine.path(&self.options.backup));
        // What is there is removed first, and neither may be within the other, by whatever names and links they are given.
        let (here, there) = (resolved(&from), resolved(&to));
        if here.starts_with(&there) || there.starts_with(&here) {
            log.warning(&format!("nothing is copied to {}: it and {} overlap", to.display(), from.display()));
            return Ok(());
        }
        self.machine.root.remove_dir_all(&to)?;
        self.machine.copy(&from, &to)
    }
}

/// Whom a boot copy says to ask, if that of now says to ask somebody else. One that says nothing is no evidence.
fn other_settings(before: Option<Value>, now: Option<&Value>) -> Option<Value> {
    let before = before?.get_mut(SETTINGS)?.take();
    now?.get(SETTINGS).filter(|now| **now != before).map(|_| before)
}

/// Where a path leads, as far as it is there.
fn resolved(path: &Path) -> PathBuf {
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Err(_), Some(above), Some(name)) => resolved(above).join(name),
        (found, ..) => found.unwrap_or_else(|_| path.to_owned()),
    }
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(end);
    name.into()
}

/// A name for the file of a document, within its directory (heat-protocol.md R21) and of no other document (R20).
fn file_name(key: &str, taken: &mut BTreeSet<String>) -> String {
    let mut name: String = key.chars().map(|c| if c == '/' || c == '\0' { '_' } else { c }).collect();
    if name.len() > LONGEST {
        name = digest::hex(name.as_bytes());
    }
    let numbered = (2..).map(|number: u32| format!("{name}.{number}"));
    let free = std::iter::once(name.clone()).chain(numbered).find(|name| !taken.contains(name)).unwrap_or_else(|| name.clone());
    taken.insert(free.clone());
    free
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::files::Tree;
    use crate::identity::IdentityOrigin;

    #[test]
    fn what_no_command_has_seen_is_changed_and_a_copy_never_removes_its_source() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        let machine = Machine::new().unwrap();
        let line = ["--config-file", "/dev/null", "--cachedir", &at("cache"), "--backup-cachedir", &at("copies/of")];
        let mut options = Options::load(&machine, super::super::read(&line)).unwrap();
        let documents = [("a".to_owned(), json!({"x": 1, "y": 2})), ("../b".to_owned(), json!("text"))];
        let mut log = Log::new();
        let read = |name: &str| Tree::open(dir.path()).unwrap().read(Path::new(name), READ_LIMIT).unwrap();
        {
            let cache = Cache { machine: &machine, options: &options };
            let both = [at("cache/a.json"), at("cache/.._b.json")];
            for _ in 0..2 {
                assert_eq!(cache.store(&documents, &mut log).unwrap().changed, both, "no command has succeeded");
            }
            cache.commit(&both).unwrap();
            let reordered = [("a".to_owned(), json!({"y": 2, "x": 1})), documents[1].clone()];
            let stored = cache.store(&reordered, &mut log).unwrap();
            assert_eq!((stored.changed, stored.paths), (Vec::new(), both.to_vec()));
            assert_eq!(read("copies/of/a.json"), Some(b"{\n \"x\": 1,\n \"y\": 2\n}".to_vec()));
            // A power cut in the middle of a commit.
            machine.root.write(&dir.path().join("cache/a.json.last"), b"{\"x\"", Attributes::mode(0o600)).unwrap();
            assert_eq!(cache.store(&documents, &mut log).unwrap().changed, both[..1]);
            assert_eq!((cache.kept("a"), cache.kept("none")), (Some(documents[0].1.clone()), None));
        }
        for overlapping in ["", "cache", "cache/within"] {
            options.backup = at(overlapping);
            let changed = [("a".to_owned(), json!(overlapping))];
            let stored = Cache { machine: &machine, options: &options }.store(&changed, &mut log).unwrap();
            assert!(stored.changed.len() == 1 && read("cache/a.json").is_some() && read("cache/within/a.json").is_none());
        }
    }

    #[test]
    fn what_another_instance_kept_is_told_by_its_id_or_by_the_boot_copy() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("cache").display().to_string();
        let machine = Machine::new().unwrap();
        let options = Options::load(&machine, super::super::read(&["--config-file", "/dev/null", "--cachedir", &at])).unwrap();
        let cache = Cache { machine: &machine, options: &options };
        let id = |value: &str| Identity { origin: IdentityOrigin::Smbios, value: value.to_owned() };
        let (a, b) = (id("a"), id("b"));
        let (old, new, silent) = (json!({SETTINGS: {"x": 1}}), json!({SETTINGS: {"x": 2}}), json!({"y": 1}));
        cache.claim(Some(&a)).unwrap();
        assert!(machine.kind(&at).is_none() && !cache.is_anothers(Some(&a), Some(&old)), "nothing is made for nothing");
        let documents = [(BOOT.to_owned(), old.clone()), ("cfn".to_owned(), json!(1))];
        let stored = cache.store(&documents, &mut Log::new()).unwrap();
        assert!(!cache.is_anothers(Some(&b), None), "nobody said whose it is");
        cache.claim(Some(&a)).unwrap();
        for (instance, boot, is_anothers) in [
            (Some(&a), Some(&old), false),
            (Some(&a), Some(&silent), false),
            (Some(&a), Some(&new), true),
            (Some(&b), Some(&old), true),
            (Some(&b), None, true),
            (None, Some(&old), false),
            (None, None, false),
            (None, Some(&new), true),
        ] {
            assert_eq!(cache.is_anothers(instance, boot), is_anothers, "{instance:?} {boot:?}");
        }
        assert_eq!(cache.former(Some(&new)), None, "no command has seen it");
        cache.commit(&stored.changed).unwrap();
        assert_eq!((cache.former(Some(&new)), cache.former(Some(&old))), (Some(json!({"x": 1})), None));
        cache.forget().unwrap();
        assert!(cache.kept("cfn").is_none() && cache.kept(BOOT).is_some());
    }

    #[test]
    fn names_stay_in_the_directory_and_are_used_once() {
        let mut taken = BTreeSet::from([LIST.to_owned()]);
        let long = "é".repeat(300);
        let names: Vec<_> = ["a", "../a", "a", "a.2", "a", LIST, ".."].iter().map(|key| file_name(key, &mut taken)).collect();
        assert_eq!(names, ["a", ".._a", "a.2", "a.2.2", "a.3", "os_config_files.2", ".."]);
        let (one, two) = (file_name(&long, &mut taken), file_name(&format!("{long}x"), &mut taken));
        assert!(one != two && one.len() == 64, "{one}");
    }
}
