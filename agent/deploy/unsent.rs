//! Results that Heat does not have yet: what 55-heat-config leaves beside the record of a deployment until its result has been sent
//! (heat-protocol.md R30, R31).
//!
//! `ID.unsent` is made before the deployment begins, is locked while it runs, and goes when Heat has the result. One that nobody has locked
//! belongs to a run that was cut off, or to a result that Heat did not take. It has room for a status, so that a disk that the deployment
//! has filled does not lose it.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::error::Result;
use crate::files::{Attributes, Lock, READ_LIMIT, Tree};
use crate::metadata::{python_json, python_json_lines};
use crate::report::text::shortened;

/// What there is to say of a deployment that was cut off.
pub const INTERRUPTED: &str = "interrupted: 55-heat-config was ended, or the machine restarted, while it ran; what it did is unknown, and it is not run again";
/// Bytes of the room for a status: a block of most file systems.
const SPACE: usize = 4096;
/// Bytes of a status, or of the reason for which the rest of a result is lost: both, encoded, fit into the room.
const SHORT: usize = 300;

/// The mark of a deployment whose record this is.
#[must_use]
pub fn mark(deployed: &Path) -> PathBuf {
    deployed.with_extension("unsent")
}

/// Where a result is also kept for people.
#[must_use]
pub fn result_file(deployed: &Path) -> PathBuf {
    deployed.with_extension("notify.json")
}

/// Refusals of a result one after the other that Keystone's own trouble looks like: the second since 1970 of the first, and how many.
fn refused_file(deployed: &Path) -> PathBuf {
    deployed.with_extension("refused")
}

/// Records such a refusal in the second `now` since 1970. The second of the first one, and how many there are with this one.
///
/// # Errors
/// If that cannot be read or written.
pub fn refused(tree: &Tree, deployed: &Path, now: i64) -> Result<(i64, u32)> {
    let file = refused_file(deployed);
    let kept = tree.read(&file, SPACE as u64)?.unwrap_or_default();
    let known = String::from_utf8_lossy(&kept)
        .split_once(' ')
        .and_then(|(since, count)| Some((since.parse().ok().filter(|since| *since <= now)?, count.trim().parse::<u32>().ok()?)));
    let (since, before) = known.unwrap_or((now, 0));
    let count = before.saturating_add(1);
    tree.write(&file, format!("{since} {count}\n").as_bytes(), Attributes::mode(0o600))?;
    Ok((since, count))
}

/// Another answer came: the next refusal is a first one.
///
/// # Errors
/// If that cannot be recorded.
pub fn refused_no_more(tree: &Tree, deployed: &Path) -> Result<()> {
    tree.remove(&refused_file(deployed)).map(drop)
}

/// Whether the result of a deployment is still to be sent.
///
/// # Errors
/// If that cannot be looked at.
pub fn is_open(tree: &Tree, deployed: &Path) -> Result<bool> {
    Ok(tree.facts(&mark(deployed))?.is_some())
}

/// Takes the mark away: Heat has the result, or never takes it.
///
/// # Errors
/// If it cannot be removed.
pub fn settle(tree: &Tree, deployed: &Path) -> Result<()> {
    refused_no_more(tree, deployed)?;
    tree.remove(&mark(deployed)).map(drop)
}

/// A result that is kept.
#[derive(Debug)]
pub struct KeptResult {
    /// JSON.
    pub text: Vec<u8>,
    /// When it was written, in seconds since 1970.
    pub written: i64,
}

/// A result to tell, which no other process tells meanwhile.
#[derive(Debug)]
pub struct Unsent {
    lock: Lock,
    deployed: PathBuf,
}

impl Unsent {
    /// Makes the record of a deployment, whole or not at all, and before it the mark. `None` where there is a record, or another process is
    /// at it: what is begun is never begun again, whatever becomes of it, and by one alone.
    ///
    /// # Errors
    /// If there is no room for either; nothing has begun then.
    pub fn begin(tree: &Tree, deployed: &Path, record: &[u8]) -> Result<Option<Self>> {
        if tree.facts(deployed)?.is_some() {
            return Ok(None);
        }
        let Some(lock) = tree.lock(&mark(deployed))? else { return Ok(None) };
        Self::begin_locked(tree, deployed, record, lock)
    }

    fn begin_locked(tree: &Tree, deployed: &Path, record: &[u8], lock: Lock) -> Result<Option<Self>> {
        // Another run may have begun it since, and its mark is not empty.
        if tree.facts(deployed)?.is_some() {
            if lock.is_empty()? {
                settle(tree, deployed)?;
            }
            return Ok(None);
        }
        let begun = lock
            .note(&" ".repeat(SPACE))
            // Of an earlier run of the same deployment.
            .and_then(|()| refused_no_more(tree, deployed))
            .and_then(|()| tree.remove(&result_file(deployed)))
            .and_then(|_| tree.write(deployed, record, Attributes::mode(0o600)));
        if begun.is_err() {
            // The record may be in its place, and only not synced. A mark alone is of nothing that has begun.
            let _ = tree.remove(deployed).and_then(|_| settle(tree, deployed));
        }
        begun.map(|()| Some(Self { lock, deployed: deployed.to_owned() }))
    }

    /// What an earlier run left; `None` where there is nothing, or another process is at it.
    ///
    /// # Errors
    /// If it cannot be looked at.
    pub fn take(tree: &Tree, deployed: &Path) -> Result<Option<Self>> {
        Ok(tree.lock_existing(&mark(deployed))?.map(|lock| Self { lock, deployed: deployed.to_owned() }))
    }

    /// The result; `None` where the run was cut off before there was one.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn result(&self, tree: &Tree) -> Result<Option<KeptResult>> {
        for file in [result_file(&self.deployed), mark(&self.deployed)] {
            let (Some(facts), Some(text)) = (tree.facts(&file)?, tree.read(&file, READ_LIMIT)?) else { continue };
            let text = text.trim_ascii();
            if !text.is_empty() {
                return Ok(Some(KeptResult { text: text.to_vec(), written: facts.stamp.1 }));
            }
        }
        Ok(None)
    }

    /// Keeps the result, or, where there is no room for it, the status that it says.
    ///
    /// # Errors
    /// If it is not kept whole.
    pub fn keep(&self, tree: &Tree, result: &Value) -> Result<()> {
        let file = result_file(&self.deployed);
        tree.write(&file, python_json_lines(result, 2).as_bytes(), Attributes::mode(0o600))
            .or_else(|error| self.lock.note(&short(result, &error.to_string())).and(Err(error)))
    }
}

/// What fits into the room of the mark.
fn short(result: &Value, why: &str) -> String {
    let status = result.get("deploy_status_code").cloned().unwrap_or_else(|| 0.into());
    // A longer one is a text, and failure (heat-protocol.md 7).
    let status = if python_json(&status).len() <= SHORT { status } else { 1.into() };
    let why = format!("the rest of the result is lost: {}", shortened(why, SHORT));
    python_json(&json!({"deploy_status_code": status, "deploy_stderr": why}))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::budgets::json::value;

    const RECORD: &str = "a.json";

    fn tree() -> (tempfile::TempDir, Tree) {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        (dir, tree)
    }

    fn put(tree: &Tree, name: &str, text: &str) {
        tree.write(Path::new(name), text.as_bytes(), Attributes::mode(0o600)).unwrap();
    }

    /// Attack: one run had looked for the record, another one began and was cut off, and the first took its mark away.
    #[test]
    fn what_another_run_began_meanwhile_keeps_its_mark() {
        let (_dir, tree) = tree();
        let record = Path::new(RECORD);
        let begin = || {
            let lock = tree.lock(&mark(record)).unwrap().unwrap();
            assert!(Unsent::begin_locked(&tree, record, b"{}", lock).unwrap().is_none());
        };
        put(&tree, RECORD, "{}");
        begin();
        assert!(!is_open(&tree, record).unwrap(), "a mark that it made itself goes again");
        put(&tree, "a.unsent", &" ".repeat(SPACE));
        put(&tree, "a.notify.json", "{\"deploy_status_code\": 3}");
        begin();
        let left = Unsent::take(&tree, record).unwrap().unwrap();
        assert_eq!(left.result(&tree).unwrap().unwrap().text, b"{\"deploy_status_code\": 3}");
    }

    /// Attack: SIGKILL between the making of the record and its content: it was deployed, and nobody could tell where its result goes.
    #[test]
    fn nobody_ever_sees_half_a_record() {
        let (_dir, tree) = tree();
        let (record, text) = (Path::new(RECORD), vec![b'x'; 4 << 20]);
        let is_over = AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            let look = scope.spawn(|| {
                let mut seen = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    seen.extend(tree.facts(record).unwrap().map(|facts| facts.size));
                }
                seen
            });
            for _ in 0..5 {
                drop(Unsent::begin(&tree, record, &text).unwrap().unwrap());
                tree.remove(record).unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
            look.join().unwrap()
        });
        assert!(seen.iter().all(|size| *size == 4 << 20), "{:?}", seen.iter().min());
    }

    /// Attack: a script filled the disk and succeeded, and Heat heard that it had been interrupted.
    #[test]
    fn a_status_needs_no_room_that_was_not_there_before() {
        for status in [json!(0), json!(-9), json!("7"), json!("x".repeat(9000))] {
            let (dir, tree) = tree();
            let record = Path::new(RECORD);
            drop(Unsent::begin(&tree, record, b"{}").unwrap().unwrap());
            let full = Tree::open(dir.path()).unwrap().full_after(0).unwrap();
            let unsent = Unsent::take(&full, record).unwrap().unwrap();
            let result = json!({"deploy_status_code": status, "deploy_stdout": "out"});
            assert!(unsent.keep(&full, &result).is_err(), "its file has no room");
            let kept = value(&unsent.result(&full).unwrap().unwrap().text, 1 << 16).unwrap();
            let expected = if status.to_string().len() > SHORT { json!(1) } else { status };
            assert_eq!(kept["deploy_status_code"], expected);
            assert!(kept["deploy_stderr"].as_str().unwrap().contains("lost"), "{kept}");
        }
    }
}
