//! Whose the state is: `identity.json`, and what happens to the state of another instance.
//!
//! The order of writes makes a kill between any two steps harmless: the record of the old instance stays in its place
//! until everything else is set aside, and says under which number; whoever finds it goes on there.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Identity;
use crate::budgets::{ASIDE_DISK, DOCUMENT_MEMORY, LEGACY_MARKS, json};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::files::{Attributes, FileKind, READ_LIMIT, Tree};
use crate::report::{Code, Report};

const FILE: &str = "identity.json";
/// In a directory outside of the state: whose that is.
const OWNER: &str = ".heat-node-agent-instance";
/// Kept by `collect`: digests of the files from which sources were learnt.
pub const LEARNT: &str = "learnt.json";
/// Where states of other instances lie.
pub const ASIDE: &str = "aside";
/// The newest generation of the node; there once this instance's own metadata asked for one.
const NODE: &str = "node.json";
/// The group of the deployments that bring it up.
const NODE_GROUP: &str = "kubernetes-node";
/// How many former states are kept whole. Of those before them stays what keeps an instance that comes back from running scripts again, and
/// from taking its own settings for another one's.
const KEEP: usize = 3;
/// Of how many former states that is kept, if they have no more marks than one node.
const KEEP_MARKS: usize = 50;
const MARKS: &str = "marks";
/// Files that are counted at most: more than the agent ever has.
const FILES: usize = 100_000;

/// Files by path with the SHA-256 of what was in them.
pub type Leftovers = BTreeMap<String, String>;

/// Whose the state is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceRecord {
    /// Format of this file.
    pub schema: u32,
    /// The instance.
    pub instance: Identity,
    /// When the agent first saw it.
    pub since: Timestamp,
    /// The number under which this state is being set aside.
    #[serde(default)]
    pub leaving: Option<u32>,
    /// The instance that this disk was copied from.
    #[serde(default)]
    pub predecessor: Option<Predecessor>,
}

/// The instance that had the disk before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predecessor {
    /// Its identity.
    pub instance: Identity,
    /// When the copy was noticed.
    pub until: Timestamp,
    /// Where its state lies, below `aside` of the state directory.
    pub aside: u32,
    /// From what it learnt its sources: not ours while it is unchanged.
    pub files: Leftovers,
}

impl InstanceRecord {
    /// The record of an instance that finds no other one's.
    #[must_use]
    pub fn new(instance: Identity, since: Timestamp) -> Self {
        Self { schema: 1, instance, since, leaving: None, predecessor: None }
    }

    /// Reads the record; `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be read or understood.
    pub fn read(state: &Tree) -> Result<Option<Self>> {
        state.read_json(Path::new(FILE))
    }

    /// Reads the record. One that cannot be understood is quarantined and logged: that a record is partially written and the disk a copy
    /// is far less likely than a partially written record alone, and a node must not lose what it knows to have run.
    ///
    /// # Errors
    /// If it can be neither read nor quarantined.
    pub fn open(state: &Tree, report: &Report) -> Result<Option<Self>> {
        state.read_state(Path::new(FILE), report, Code::StateFileQuarantined)
    }

    /// Stores the record.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, state: &Tree) -> Result<()> {
        state.write_json(Path::new(FILE), self, Attributes::mode(0o600))
    }

    /// Refused, if the state is not that of this machine.
    ///
    /// # Errors
    /// Says whose it is.
    pub fn check(&self, machine: &Identity) -> Result<()> {
        if self.instance.is(machine) {
            return Ok(());
        }
        Err(Error::refused(format!("the state on this disk belongs to instance {}; this machine is {machine}", self.instance))
            .rule("a copied disk must not act as the instance that it was copied from")
            .remedy("heat-node-agent.service quarantines it when it starts; check `systemctl status heat-node-agent`"))
    }
}

/// Puts the state of another instance aside, with what lies `beside` it elsewhere, and records the new one. Nothing is deleted;
/// [`take_back`] is to follow.
///
/// # Errors
/// If something cannot be renamed; the next call goes on from there.
pub fn succeed(
    state: &Tree,
    beside: &[PathBuf],
    mut old: InstanceRecord,
    machine: Identity,
    now: Timestamp,
) -> Result<InstanceRecord> {
    let beside = beside.iter().filter_map(|path| RelatedDirectory::open(path)).collect::<Vec<_>>();
    let number = if let Some(number) = old.leaving {
        number
    } else {
        let taken = beside.iter().map(RelatedDirectory::numbers).chain([numbers(state)]);
        let number = taken.collect::<Result<Vec<_>>>()?.into_iter().flatten().max().unwrap_or(0).saturating_add(1);
        old.leaving = Some(number);
        old.write(state)?;
        number
    };
    let aside = Path::new(ASIDE).join(number.to_string());
    let mut files = old.predecessor.as_ref().map(|before| before.files.clone()).unwrap_or_default();
    // A kill may have come after it was moved.
    let known_sources = match state.read_json::<Leftovers>(Path::new(LEARNT)) {
        Ok(None) | Err(_) => state.read_json(&aside.join(LEARNT)).ok().flatten(),
        Ok(here) => here,
    };
    files.extend(known_sources.unwrap_or_default());
    // The disk may have come back, e.g. by a rebuild with an image of the copy: what led this instance before is its own.
    for place in state.list(Path::new(ASIDE))?.iter().map(|number| Path::new(ASIDE).join(number)) {
        if state.read_json::<InstanceRecord>(&place.join(FILE)).ok().flatten().is_some_and(|record| record.instance.is(&machine))
        {
            let own = state.read_json::<Leftovers>(&place.join(LEARNT)).ok().flatten().unwrap_or_default();
            files.retain(|path, digest| own.get(path) != Some(digest));
        }
    }
    state.create_dir_all(&aside, Attributes::mode(0o700))?;
    for name in state.list(Path::new(""))? {
        if !["lock", ASIDE, FILE].iter().any(|kept| name == *kept) {
            let mut target = name.clone();
            // A command may have written a request after the kill.
            while state.facts(&aside.join(&target))?.is_some() {
                target.push("+");
            }
            state.rename(Path::new(&name), &aside.join(&target))?;
        }
    }
    for one in &beside {
        one.set_aside(number)?;
    }
    state.write_json(&aside.join(FILE), &old, Attributes::mode(0o600))?;
    let predecessor = Some(Predecessor { instance: old.instance, until: now, aside: number, files });
    let record = InstanceRecord { predecessor, ..InstanceRecord::new(machine, now) };
    record.write(state)?;
    Ok(record)
}

/// Takes back what says which scripts this instance has run, where its disk was another one's in between, so that nothing runs twice; in
/// `deployed`, the replaced tools' record, too. What it knew of the node stays set aside: the node's units were disabled since, and its
/// deployment brings it up again. Then states older than those kept are deleted. Whether there was anything; after a kill the next call
/// goes on.
///
/// # Errors
/// If something cannot be looked at, renamed or removed.
pub fn take_back(state: &Tree, deployed: &Path, machine: &Identity) -> Result<bool> {
    let mut is_any = false;
    for number in numbers(state)?.into_iter().rev() {
        let place = Path::new(ASIDE).join(number.to_string());
        let record = state.read_json::<InstanceRecord>(&place.join(FILE)).ok().flatten();
        if !record.is_some_and(|record| record.instance.is(machine)) {
            continue;
        }
        let records = place.join("deployments");
        let mut of_node = Vec::new();
        for name in state.list(&records)? {
            let record = state.read_json::<Value>(&records.join(&name)).ok().flatten().unwrap_or_default();
            let text = |member: &str| record.get(member).and_then(Value::as_str);
            if text("group").is_none_or(|group| group == NODE_GROUP) {
                of_node.push((name, text("id").unwrap_or_default().to_owned()));
            }
        }
        // Before the records what those lead to.
        if let Some(beside) = RelatedDirectory::open(deployed) {
            let is_nodes = |name: &OsStr| {
                let name = name.to_str().unwrap_or(OWNER);
                // The agent's own: whose it is, and the lock.
                name.starts_with('.')
                    || of_node.iter().any(|(_, id)| name.strip_prefix(id.as_str()).is_some_and(|rest| rest.starts_with('.')))
            };
            is_any |= move_missing(&beside.parent, &beside.target(number), Path::new(&beside.name), is_nodes)?;
        }
        for directory in [MARKS, "work"] {
            is_any |= move_missing(state, &place.join(directory), Path::new(directory), |_| false)?;
        }
        let is_nodes = |name: &OsStr| of_node.iter().any(|(file, _)| file == name);
        is_any |= move_missing(state, &records, Path::new("deployments"), is_nodes)?;
    }
    prune(state)?;
    Ok(is_any)
}

/// How the names of files in the replaced tools' record end, behind a deployment's id, which may have dots itself.
const DEPLOYED_FILES: [&str; 4] = [".notify.json", ".json", ".begun", ".unsent"];

/// The same of the replaced tools' record alone: the state may have been removed where another instance had the disk, as `reset` does. What
/// was moved away says itself whose it is. What is not known to be a script's stays.
///
/// # Errors
/// If something cannot be looked at or renamed.
pub fn take_back_deployed(deployed: &Path, machine: &Identity) -> Result<bool> {
    let Some(beside) = RelatedDirectory::open(deployed) else { return Ok(false) };
    let mut is_any = false;
    for number in beside.numbers()?.into_iter().rev() {
        let place = beside.target(number);
        if owner(&beside.parent.base().join(&place)).as_ref() != Some(machine) {
            continue;
        }
        let is_scripts = |name: &OsStr| {
            let name = name.to_str()?;
            let id = DEPLOYED_FILES.iter().find_map(|end| name.strip_suffix(end))?;
            // It may have moved just now.
            let file = |folder: &Path| beside.parent.read(&folder.join(format!("{id}.json")), READ_LIMIT).ok().flatten();
            let entry = file(&place).or_else(|| file(Path::new(&beside.name)))?;
            // An empty one is a mark, by which a script does not run again.
            let entry = if entry.is_empty() { Value::Null } else { json::value(&entry, DOCUMENT_MEMORY).ok()? };
            Some(entry.get("group").is_none_or(|group| group != NODE_GROUP))
        };
        is_any |= move_missing(&beside.parent, &place, Path::new(&beside.name), |name| {
            name == OWNER || !is_scripts(name).unwrap_or(false)
        })?;
    }
    Ok(is_any)
}

/// Moves what is in one directory and not in another one there, but for what stays. Whether there was anything.
fn move_missing(tree: &Tree, from: &Path, to: &Path, stays: impl Fn(&OsStr) -> bool) -> Result<bool> {
    let mut is_any = false;
    for name in tree.list(from)?.iter().filter(|name| !stays(name)) {
        if tree.facts(&to.join(name))?.is_none() {
            tree.create_dir_all(to, Attributes::mode(0o700))?;
            tree.rename(&from.join(name), &to.join(name))?;
            is_any = true;
        }
    }
    Ok(is_any)
}

/// Whether a unit that an agent configured on this disk may start: not with the membership of the instance that the disk
/// was copied from.
///
/// # Errors
/// Says why not.
pub fn may_start(root: &Tree, state: &Tree) -> Result<()> {
    let Some(record) = InstanceRecord::read(state)? else { return Ok(()) };
    record.check(&Identity::of_machine(root)?)?;
    match &record.predecessor {
        Some(before) if state.facts(Path::new(NODE))?.is_none() => {
            Err(Error::refused(format!("the node configured here belongs to instance {}", before.instance))
                .rule("a copied disk must not join a cluster as the instance that it was copied from")
                .remedy("it starts once a kubernetes-node deployment configures this server"))
        }
        _ => Ok(()),
    }
}

/// Records in a directory outside of the state whose it is.
///
/// # Errors
/// If it cannot be written.
pub fn claim(directory: &Path, instance: &Identity) -> Result<()> {
    if owner(directory).as_ref() == Some(instance) {
        return Ok(());
    }
    Tree::open_or_create(directory, 0o700)?.write_json(Path::new(OWNER), instance, Attributes::mode(0o600))
}

/// Whose such a directory is; nothing where it does not say so.
#[must_use]
pub fn owner(directory: &Path) -> Option<Identity> {
    Tree::open(directory).ok()?.read_json(Path::new(OWNER)).ok().flatten()
}

/// A directory outside of the state that goes with it.
struct RelatedDirectory {
    parent: Tree,
    name: OsString,
}

impl RelatedDirectory {
    /// `None` where there is nothing, nor ever was.
    fn open(path: &Path) -> Option<Self> {
        let (parent, name) = (path.parent()?, path.file_name()?);
        Some(Self { parent: Tree::open(parent).ok()?, name: name.to_owned() })
    }

    fn target(&self, number: u32) -> PathBuf {
        let mut name = self.name.clone();
        name.push(format!(".aside-{number}"));
        name.into()
    }

    /// The numbers under which it was moved away, the oldest first.
    fn numbers(&self) -> Result<Vec<u32>> {
        numbered(&self.parent, Path::new(""), &format!("{}.aside-", self.name.to_string_lossy()))
    }

    fn set_aside(&self, number: u32) -> Result<()> {
        let here = Path::new(&self.name);
        if self.parent.facts(here)?.is_some() { self.parent.rename(here, &self.target(number)) } else { Ok(()) }
    }
}

/// The numbers behind a prefix among the names of a directory, the smallest first.
fn numbered(tree: &Tree, directory: &Path, prefix: &str) -> Result<Vec<u32>> {
    let names = tree.list(directory)?;
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| name.to_str()?.strip_prefix(prefix)?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Those under which states were set aside, oldest first.
fn numbers(state: &Tree) -> Result<Vec<u32>> {
    numbered(state, Path::new(ASIDE), "")
}

fn prune(state: &Tree) -> Result<()> {
    let numbers = numbers(state)?;
    let (mut bytes, mut marks) = (0, 0);
    for (at, number) in numbers.iter().rev().enumerate() {
        let place = Path::new(ASIDE).join(number.to_string());
        bytes += state.bytes_below(&place, &mut FILES.clone())?.0;
        if at < KEEP && (at == 0 || bytes <= ASIDE_DISK as u64) {
            continue;
        }
        let is_known = state.facts(&place.join(FILE))?.is_some();
        if is_known && at < KEEP_MARKS {
            marks += reduce_state(state, &place)?;
        }
        if !is_known || at >= KEEP_MARKS || marks > LEGACY_MARKS {
            state.remove_dir_all(&place)?;
        }
    }
    Ok(())
}

/// Leaves of a former state whose it is, from what it learnt its sources, and an empty mark of each script that ran. How many marks.
fn reduce_state(state: &Tree, place: &Path) -> Result<usize> {
    let (records, marks) = (place.join("deployments"), place.join(MARKS));
    state.create_dir_all(&marks, Attributes::mode(0o700))?;
    for name in state.list(&records)? {
        // One that cannot be read may have run.
        let record = state.read_json::<Value>(&records.join(&name)).ok().flatten();
        let is_scripts = record.is_none_or(|record| {
            let text = |member: &str| record.get(member).and_then(Value::as_str);
            text("group").is_some_and(|group| group != NODE_GROUP) && text("state") != Some("seen")
        });
        if let Some(key) = name.to_str().and_then(|name| name.strip_suffix(".json")).filter(|_| is_scripts) {
            state.write(&marks.join(key), b"", Attributes::mode(0o600))?;
        }
    }
    for name in state.list(place)? {
        if ![FILE, LEARNT, MARKS].iter().any(|kept| name == *kept) {
            remove(state, &place.join(name))?;
        }
    }
    Ok(state.list(&marks)?.len())
}

/// The same of what lay beside the state: the files by which the replaced tools, and the agent, know that a script ran, without content.
fn reduce_deployed(tree: &Tree, place: &Path) -> Result<usize> {
    for name in tree.list(place)?.into_iter().filter(|name| name != OWNER) {
        let path = place.join(&name);
        let end = DEPLOYED_FILES.iter().find(|end| name.to_str().is_some_and(|name| name.ends_with(*end)));
        let is_entry = end.is_some_and(|end| *end == ".json");
        if tree.facts(&path)?.is_some_and(|facts| facts.kind == FileKind::File && facts.size == 0) && is_entry {
            continue;
        }
        let entry = || json::value(&tree.read(&path, READ_LIMIT).ok()??, DOCUMENT_MEMORY).ok();
        if is_entry && entry().is_none_or(|entry| entry.get("group").is_none_or(|group| group != NODE_GROUP)) {
            tree.write(&path, b"", Attributes::mode(0o600))?;
        } else {
            remove(tree, &path)?;
        }
    }
    Ok(tree.list(place)?.len())
}

fn remove(tree: &Tree, path: &Path) -> Result<()> {
    match tree.facts(path)?.map(|facts| facts.kind) {
        Some(FileKind::Directory) => tree.remove_dir_all(path).map(drop),
        _ => tree.remove(path).map(drop),
    }
}

/// Bytes of the former states that are kept.
///
/// # Errors
/// If they cannot be looked at.
pub fn bytes_aside(state: &Tree) -> Result<u64> {
    Ok(state.bytes_below(Path::new(ASIDE), &mut FILES.clone())?.0)
}

/// Removes what lies beside a directory of our own (`NAME.aside-N`) but the newest few; of older ones stays that a script ran. Only for the
/// replaced tools' record: a store's data is its owner's. Gives the names of what is gone.
///
/// # Errors
/// If something cannot be removed.
pub fn prune_beside(path: &Path) -> Result<Vec<String>> {
    let Some(beside) = RelatedDirectory::open(path) else { return Ok(Vec::new()) };
    let (mut gone, mut marks) = (Vec::new(), 0);
    for (at, number) in beside.numbers()?.into_iter().rev().enumerate().skip(KEEP) {
        let target = beside.target(number);
        let is_known = beside.parent.facts(&target.join(OWNER))?.is_some();
        if is_known && at < KEEP_MARKS {
            marks += reduce_deployed(&beside.parent, &target)?;
        }
        if !is_known || at >= KEEP_MARKS || marks > LEGACY_MARKS {
            beside.parent.remove_dir_all(&target)?;
            gone.push(target.display().to_string());
        }
    }
    Ok(gone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::IdentityOrigin;

    fn id(value: &str) -> Identity {
        Identity { origin: IdentityOrigin::CloudInit, value: value.to_owned() }
    }

    /// A disk with the state of instance `a`, and the replaced tools' record beside it.
    struct Disk {
        dir: tempfile::TempDir,
        state: Tree,
    }

    impl Disk {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let state = Tree::open_or_create(&dir.path().join("state"), 0o700).unwrap();
            let disk = Self { dir, state };
            disk.put("state/lock", "");
            disk.fill("a");
            InstanceRecord::new(id("a"), Timestamp(1)).write(&disk.state).unwrap();
            disk
        }

        fn put(&self, path: &str, content: &str) {
            let tree = Tree::open(self.dir.path()).unwrap();
            tree.create_dir_all(Path::new(path).parent().unwrap(), Attributes::mode(0o700)).unwrap();
            tree.write(Path::new(path), content.as_bytes(), Attributes::mode(0o600)).unwrap();
        }

        fn fill(&self, who: &str) {
            self.put("state/outbox/1.json", who);
            self.put("state/deployments/1.json", who);
            self.put("state/node.json", who);
            self.put("state/learnt.json", &format!("{{\"/etc/os-collect-config.conf\": \"{who}\"}}"));
            self.put("deployed/1.json", who);
        }

        fn beside(&self) -> Vec<PathBuf> {
            vec![self.dir.path().join("deployed"), self.dir.path().join("not/there")]
        }

        fn read(&self, path: &str) -> Option<String> {
            std::fs::read_to_string(self.dir.path().join(path)).ok()
        }

        fn succeed(&self, machine: &str, now: u64) -> Result<InstanceRecord> {
            let old = InstanceRecord::read(&self.state).unwrap().unwrap();
            succeed(&self.state, &self.beside(), old, id(machine), Timestamp(now))
        }

        fn take_back(&self, machine: &str) -> bool {
            take_back(&self.state, &self.dir.path().join("deployed"), &id(machine)).unwrap()
        }

        fn names(&self) -> Vec<OsString> {
            self.state.list(Path::new("")).unwrap()
        }
    }

    #[test]
    fn the_state_of_another_instance_is_set_aside_whole() {
        let disk = Disk::new();
        let record = disk.succeed("b", 2).unwrap();
        assert_eq!((record.instance.value.as_str(), record.since, record.leaving), ("b", Timestamp(2), None));
        let before = record.predecessor.clone().unwrap();
        assert_eq!(
            (before.instance.value.as_str(), before.aside, before.files["/etc/os-collect-config.conf"].as_str()),
            ("a", 1, "a")
        );
        assert_eq!(InstanceRecord::read(&disk.state).unwrap(), Some(record));
        assert_eq!(disk.names(), ["aside", "identity.json", "lock"]);
        for path in [
            "state/aside/1/outbox/1.json",
            "state/aside/1/deployments/1.json",
            "state/aside/1/node.json",
            "deployed.aside-1/1.json",
        ] {
            assert_eq!(disk.read(path).as_deref(), Some("a"), "{path}");
        }
        assert!(disk.read("state/aside/1/identity.json").unwrap().contains("\"a\"") && disk.read("deployed/1.json").is_none());
    }

    /// Attack: what was to be taken back was pruned before.
    #[test]
    fn what_is_pruned_is_never_what_is_to_be_taken_back() {
        let disk = Disk::new();
        disk.put("state/deployments/1.json", "{\"group\":\"script\"}");
        for (now, machine) in ["b", "c", "d", "a"].iter().enumerate() {
            disk.succeed(machine, now as u64).unwrap();
            assert_eq!(disk.take_back(machine), *machine == "a");
            disk.fill(machine);
        }
        let left = |place: &str| disk.state.list(Path::new(place)).unwrap();
        assert_eq!((left("aside").len(), left("aside/1")), (4, vec![FILE.into(), LEARNT.into(), MARKS.into()]));
    }

    /// Attack: after four other instances a disk that came back had lost everything: its settings were taken for another one's, and every
    /// script ran a second time.
    #[test]
    fn of_long_gone_instances_it_stays_known_what_ran_and_what_led_them() {
        let disk = Disk::new();
        let deployed = disk.dir.path().join("deployed");
        disk.put("state/deployments/1.json", "{\"group\":\"script\",\"state\":\"running\"}");
        disk.put("state/deployments/2.json", "{\"group\":\"kubernetes-node\",\"id\":\"two\"}");
        disk.put("state/deployments/3.json", "{\"group\":\"script\",\"state\":\"seen\"}");
        disk.put("state/deployments/4.json", "torn");
        disk.put("state/marks/!1", "");
        disk.put("deployed/4.json", "{torn");
        disk.put("deployed/1.json", "{\"group\":\"script\",\"inputs\":[]}");
        disk.put("deployed/1.notify.json", "{}");
        disk.put("deployed/1.begun", "");
        disk.put("deployed/two.json", "{\"group\":\"kubernetes-node\"}");
        disk.put("deployed/old.json", "");
        let mut files = Leftovers::default();
        for (now, machine) in ["b", "c", "d", "e", "f", "g", "a"].iter().enumerate() {
            claim(&deployed, &InstanceRecord::read(&disk.state).unwrap().unwrap().instance).unwrap();
            files = disk.succeed(machine, now as u64).unwrap().predecessor.unwrap().files;
            assert_eq!(prune_beside(&deployed).unwrap(), [] as [String; 0]);
            let is_back = disk.take_back(machine) | take_back_deployed(&deployed, &id(machine)).unwrap();
            assert_eq!(is_back, *machine == "a", "{machine}");
            if *machine != "a" {
                disk.fill(machine);
            }
        }
        assert!(files.values().all(|learnt| learnt != "a"), "its own settings lead it: {files:?}");
        let left = |place: &str| Tree::open(disk.dir.path()).unwrap().list(Path::new(place)).unwrap();
        assert_eq!(left("state/marks"), ["!1", "1", "4"], "one that cannot be read may have run");
        assert_eq!(left("deployed"), ["1.json", "4.json", "old.json"], "the node's deployment brings it up again");
        assert_eq!(disk.state.list(Path::new("deployments")).unwrap(), [] as [&str; 0]);
        assert_eq!(left("state/aside").len(), 7);
    }

    /// Attack: a boot volume was attached to another server for a repair, and back: every script ran a second time.
    #[test]
    fn a_disk_that_comes_back_to_its_instance_knows_what_ran_there() {
        let disk = Disk::new();
        disk.put("state/deployments/1.json", "{\"group\":\"script\"}");
        disk.put("state/deployments/2.json", "{\"group\":\"kubernetes-node\",\"id\":\"two\"}");
        disk.put("state/work/1/result.json", "a");
        disk.put("state/marks/!1", "");
        disk.succeed("b", 2).unwrap();
        assert!(!disk.take_back("b"));
        disk.put("state/deployments/3.json", "{\"group\":\"script\"}");
        disk.succeed("a", 3).unwrap();
        disk.put(&format!("deployed.aside-1/{OWNER}"), "{}");
        disk.put("deployed.aside-1/two.json", "the node's");
        disk.put("deployed.aside-1/three.json", "");
        // A kill may have come after the first of them was taken back.
        disk.state.create_dir_all(Path::new("marks"), Attributes::mode(0o700)).unwrap();
        disk.state.rename(Path::new("aside/1/marks/!1"), Path::new("marks/!1")).unwrap();
        assert!(disk.take_back("a"));
        assert_eq!(disk.read("deployed/three.json").as_deref(), Some(""));
        assert!(disk.read("deployed/1.json").is_some() && disk.read("deployed/two.json").is_none());
        assert_eq!(disk.names(), ["aside", "deployments", "identity.json", "lock", "marks", "work"]);
        assert_eq!(disk.state.list(Path::new("deployments")).unwrap(), ["1.json"]);
        assert_eq!(disk.read("state/work/1/result.json").as_deref(), Some("a"));
        assert!(disk.read("state/aside/2/deployments/3.json").is_some() && disk.read("state/aside/1/node.json").is_some());
        assert!(!disk.take_back("a"), "once");
    }

    /// Attack: the state was removed while another instance had the disk, and every script ran a second time.
    #[test]
    fn without_a_state_the_replaced_tools_record_says_what_ran() {
        let disk = Disk::new();
        let deployed = disk.dir.path().join("deployed");
        for (number, owner) in [(1, "a"), (2, "b")] {
            claim(&disk.dir.path().join(format!("deployed.aside-{number}")), &id(owner)).unwrap();
        }
        for (name, text) in [
            ("1/script.json", r#"{"group": "script"}"#),
            ("1/script.notify.json", "{}"),
            ("1/empty.json", ""),
            ("1/setup.v2.json", r#"{"group": "script"}"#),
            ("1/script.v2.json", r#"{"group": "kubernetes-node"}"#),
            ("1/node.json", r#"{"group": "kubernetes-node"}"#),
            ("1/node.notify.json", "{}"),
            ("1/broken.json", "{"),
            ("2/other.json", r#"{"group": "script"}"#),
        ] {
            disk.put(&format!("deployed.aside-{name}"), text);
        }
        let before = Tree::open(&deployed).unwrap().list(Path::new("")).unwrap().len();
        assert!(take_back_deployed(&deployed, &id("a")).unwrap());
        for (name, is_back) in [
            ("script", true),
            ("script.notify", true),
            ("setup.v2", true),
            ("script.v2", false),
            ("empty", true),
            ("node", false),
            ("node.notify", false),
            ("broken", false),
            ("other", false),
        ] {
            assert_eq!(disk.read(&format!("deployed/{name}.json")).is_some(), is_back, "{name}");
        }
        assert_eq!(Tree::open(&deployed).unwrap().list(Path::new("")).unwrap().len(), before + 4);
        assert!(!take_back_deployed(&deployed, &id("a")).unwrap(), "once");
        assert!(!take_back_deployed(&deployed, &id("c")).unwrap());
    }

    #[test]
    fn a_kill_between_any_two_steps_is_gone_on_from() {
        // Steps are renames: whatever part of them was made, the rest follows under the same number.
        let names = ["outbox", "deployments", "node.json", "learnt.json"];
        for done in 0..=names.len() + 1 {
            let disk = Disk::new();
            let mut old = InstanceRecord::read(&disk.state).unwrap().unwrap();
            old.leaving = Some(1);
            old.write(&disk.state).unwrap();
            disk.state.create_dir_all(Path::new("aside/1"), Attributes::mode(0o700)).unwrap();
            for name in names.iter().take(done) {
                disk.state.rename(Path::new(name), &Path::new("aside/1").join(name)).unwrap();
            }
            if done > names.len() {
                let outside = Tree::open(disk.dir.path()).unwrap();
                outside.rename(Path::new("deployed"), Path::new("deployed.aside-1")).unwrap();
                disk.put("state/aside/1/identity.json", "written, and then the kill");
            }
            disk.put("state/outbox/later.json", "after the kill");
            // The copy may have been copied again in between.
            let record = disk.succeed("c", 3).unwrap();
            let before = record.predecessor.unwrap();
            assert_eq!((record.instance.value.as_str(), before.instance.value.as_str(), before.aside), ("c", "a", 1), "{done}");
            assert_eq!(before.files["/etc/os-collect-config.conf"], "a", "{done}");
            assert_eq!(disk.names(), ["aside", "identity.json", "lock"], "{done}");
            assert_eq!(disk.state.list(Path::new("aside")).unwrap(), ["1"], "{done}");
            assert_eq!(disk.read("deployed.aside-1/1.json").as_deref(), Some("a"), "{done}");
        }
    }

    #[test]
    fn former_states_are_bounded_and_no_number_comes_twice() {
        let disk = Disk::new();
        // Somebody took the first one away, but not what lay beside.
        disk.put("deployed.aside-1/old.json", "older");
        for (now, machine) in ["b", "c", "d", "e"].iter().enumerate() {
            let record = disk.succeed(machine, now as u64).unwrap();
            assert!(!disk.take_back(machine));
            assert_eq!(record.predecessor.unwrap().aside as usize, now + 2);
            disk.fill(machine);
        }
        assert_eq!(disk.state.list(Path::new("aside")).unwrap(), ["2", "3", "4", "5"]);
        assert_eq!(disk.read("deployed.aside-1/old.json").as_deref(), Some("older"));
        // What an instance did not use stays that of the one before it.
        disk.state.remove(Path::new("learnt.json")).unwrap();
        assert_eq!(disk.succeed("f", 9).unwrap().predecessor.unwrap().files["/etc/os-collect-config.conf"], "d");
    }

    #[test]
    fn an_instance_that_comes_back_has_its_own_files() {
        let disk = Disk::new();
        disk.succeed("b", 2).unwrap();
        disk.put("state/learnt.json", "{\"/etc/os-collect-config.conf\": \"b\", \"/boot-copy\": \"b\"}");
        assert_eq!(disk.succeed("c", 3).unwrap().predecessor.unwrap().files.len(), 2);
        disk.state.remove(Path::new("learnt.json")).unwrap();
        assert_eq!(disk.succeed("b", 4).unwrap().predecessor.unwrap().files, Leftovers::new());
        // Of instance a nothing is known that b's files did not replace.
        disk.put("state/learnt.json", "{\"/boot-copy\": \"new\"}");
        let files = disk.succeed("a", 5).unwrap().predecessor.unwrap().files;
        assert_eq!(files, Leftovers::from([("/boot-copy".into(), "new".into())]));
    }

    #[test]
    fn units_start_only_for_the_instance_that_asked_for_them() {
        let disk = Disk::new();
        let root = |value: Option<&str>| {
            let dir = tempfile::tempdir().unwrap();
            let tree = Tree::open(dir.path()).unwrap();
            if let Some(value) = value {
                tree.create_dir_all(Path::new("/run/cloud-init"), Attributes::mode(0o755)).unwrap();
                tree.write(Path::new("/run/cloud-init/.instance-id"), value.as_bytes(), Attributes::mode(0o644)).unwrap();
            }
            (dir, tree)
        };
        let may = |value| may_start(&root(value).1, &disk.state).map_err(|error| error.to_string());
        assert_eq!(may(Some("a")), Ok(()));
        assert!(may(Some("b")).unwrap_err().contains("belongs to instance a (cloud-init); this machine is b (cloud-init)"));
        assert!(may(None).unwrap_err().contains("has not recorded an instance id"));
        disk.succeed("b", 2).unwrap();
        assert!(may(Some("b")).unwrap_err().contains("the node configured here belongs to instance a"));
        disk.put("state/node.json", "{}");
        assert_eq!(may(Some("b")), Ok(()));
        disk.state.remove(Path::new(FILE)).unwrap();
        assert_eq!(may(None), Ok(()), "a tree that `apply` made");
    }

    #[test]
    fn a_partially_written_record_is_quarantined_and_the_state_kept() {
        let (disk, report) = (Disk::new(), Report::kept());
        disk.put("state/identity.json", "{\"schema\": 1");
        assert_eq!(InstanceRecord::open(&disk.state, &report).unwrap(), None);
        assert_eq!(report.events()[0].code, Code::StateFileQuarantined);
        assert_eq!(disk.read("state/outbox/1.json").as_deref(), Some("a"));
    }

    #[test]
    fn what_is_set_aside_is_bounded_and_only_what_is_ours() {
        let disk = Disk::new();
        for number in 1..=6 {
            disk.put(&format!("deployed.aside-{number}/x.json"), "{}");
        }
        disk.put("deployed.aside-mine/x.json", "{}");
        disk.put("deployed/x.json", "{}");
        let gone = prune_beside(&disk.dir.path().join("deployed")).unwrap();
        assert_eq!(gone, ["deployed.aside-3", "deployed.aside-2", "deployed.aside-1"]);
        let left = Tree::open(disk.dir.path()).unwrap().list(Path::new("")).unwrap();
        let expected = ["deployed", "deployed.aside-4", "deployed.aside-5", "deployed.aside-6", "deployed.aside-mine", "state"];
        assert_eq!(left, expected);
        for number in 1..=3 {
            disk.put(&format!("state/aside/{number}/big"), "");
            let tree = Tree::open(disk.dir.path()).unwrap();
            let file = tree.append(Path::new(&format!("state/aside/{number}/big")), Attributes::mode(0o600)).unwrap();
            file.set_len(ASIDE_DISK as u64 * 2 / 3).unwrap();
        }
        prune(&disk.state).unwrap();
        assert_eq!(disk.state.list(Path::new("aside")).unwrap(), ["3"], "the newest stays");
    }
}
