//! Pending restarts: a run that wrote a file and ended before it restarted who reads it (crash, upgrade, a
//! failure elsewhere) leaves a file that is right and a unit that runs with the old one. The next run would see no
//! difference. So what is to be restarted is noted before the first file is written, and struck out when it is done.
//!
//! The note lies below /run, because a reboot starts every unit with the new files anyway.

use std::collections::BTreeSet;
use std::path::Path;

use crate::error::Result;
use crate::files::{Attributes, Tree};
use crate::gather::Gather;

/// Where the agent's status lies, too.
const DIRECTORY: &str = "/run/heat-node-agent";
const NOTE: &str = "/run/heat-node-agent/pending-restarts.json";
/// Of these, whose restart nobody but the looks at the node makes.
const WAITING: &str = "/run/heat-node-agent/waiting-restarts.json";

/// The units with a pending restart. An unreadable note counts as none: nobody can know whose.
pub(crate) fn read(tree: &Tree) -> BTreeSet<String> {
    named(tree, NOTE)
}

/// Whether a file that this unit reads was written and the unit was not restarted since.
#[must_use]
pub fn is_pending(root: &Tree, unit: &str) -> bool {
    read(root).contains(unit)
}

/// Notes the units with a pending restart; no note where there is none.
pub(crate) fn write(tree: &Tree, pending: &BTreeSet<String>) -> Result<()> {
    let note = Path::new(NOTE);
    if pending.is_empty() {
        tree.remove(note)?;
    } else {
        tree.create_dir_all(Path::new(DIRECTORY), Attributes::mode(0o755))?;
        tree.write_json(note, pending, Attributes::mode(0o600))?;
    }
    // Whoever is noted again later does not wait yet.
    wait(tree, &waiting(tree))
}

fn named(tree: &Tree, file: &str) -> BTreeSet<String> {
    tree.read_json(Path::new(file)).ok().flatten().unwrap_or_default()
}

/// Whose pending restarts wait for etcd's members: an update or a rollback, which asks nobody, makes them only if it changes what they read.
pub(crate) fn waiting(tree: &Tree) -> BTreeSet<String> {
    named(tree, WAITING)
}

/// Has these restarts wait, of those that are pending, and no others.
pub(crate) fn wait(tree: &Tree, units: &BTreeSet<String>) -> Result<()> {
    let file = Path::new(WAITING);
    let units: BTreeSet<String> = units.intersection(&read(tree)).cloned().gather();
    if units == waiting(tree) {
        return Ok(());
    }
    if units.is_empty() { tree.remove(file).map(drop) } else { tree.write_json(file, &units, Attributes::mode(0o600)) }
}

/// These wait no more: what they read changes.
pub(crate) fn release(tree: &Tree, units: &BTreeSet<String>) -> Result<()> {
    let waiting = waiting(tree);
    if waiting.is_disjoint(units) { Ok(()) } else { wait(tree, &waiting.difference(units).cloned().gather()) }
}

/// Notes that this unit is to be restarted, beside those that are noted already.
pub(crate) fn note(tree: &Tree, unit: &str) -> Result<()> {
    let mut pending = read(tree);
    if pending.insert(unit.to_owned()) { write(tree, &pending) } else { Ok(()) }
}

/// This unit was restarted.
pub(crate) fn strike(tree: &Tree, unit: &str) -> Result<()> {
    let mut pending = read(tree);
    if pending.remove(unit) { write(tree, &pending) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_waits_while_it_is_pending_and_nothing_new_is_to_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let of = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<String>>();
        wait(&tree, &of(&["etcd", "api"])).unwrap();
        assert_eq!((waiting(&tree), tree.list(Path::new("/")).unwrap().len()), (of(&[]), 0), "nothing is pending");
        write(&tree, &of(&["etcd", "api", "kubelet"])).unwrap();
        wait(&tree, &of(&["etcd", "api", "other"])).unwrap();
        assert_eq!(waiting(&tree), of(&["etcd", "api"]));
        release(&tree, &of(&["api", "kubelet"])).unwrap();
        assert_eq!(waiting(&tree), of(&["etcd"]));
        strike(&tree, "etcd").unwrap();
        note(&tree, "etcd").unwrap();
        assert_eq!(waiting(&tree), of(&[]), "it was restarted meanwhile");
        wait(&tree, &of(&[])).unwrap();
        assert_eq!((waiting(&tree), tree.facts(Path::new(WAITING)).unwrap().is_none()), (of(&[]), true));
    }

    #[test]
    fn a_pending_restart_survives_until_it_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        assert!(read(&tree).is_empty());
        write(&tree, &BTreeSet::new()).unwrap();
        assert!(tree.list(Path::new("/")).unwrap().is_empty(), "nothing is written where nothing is pending");
        let pending = BTreeSet::from(["etcd.service".to_owned()]);
        write(&tree, &pending).unwrap();
        assert_eq!(read(&tree), pending);
        write(&tree, &BTreeSet::new()).unwrap();
        assert!(read(&tree).is_empty());
        tree.write(Path::new(NOTE), b"{torn", Attributes::mode(0o600)).unwrap();
        assert!(read(&tree).is_empty());
    }
}
