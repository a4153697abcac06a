//! What is still to be done of the list in force.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::Value;

use crate::collect::Entries;
use crate::deploy::{EntryKind, Todo, Work};
use crate::digest::key_of;
use crate::report::damper::Damper;

/// How many malformed entries without an id are remembered as reported.
const REPORTED_LIMIT: usize = 256;

/// What is still to be done of the list in force.
pub(super) struct Worklist {
    entries: Arc<Entries>,
    /// Of the journal, when the list was gone through.
    revision: u64,
    /// What cannot be done.
    pub(super) wrong: VecDeque<Todo>,
    /// In the order of the list. What ended leaves it, mostly at its front.
    pub(super) rest: VecDeque<Todo>,
    /// How many of these bring a node up.
    pub(super) nodes: usize,
    /// Whether it was seen that nothing is wrong with a node that waits for its turn.
    pub(super) is_judged: bool,
    /// Whether there is more to do at once than was done in this turn.
    pub(super) goes_on: bool,
    /// Digests of malformed entries without an id of their own that were reported; a new list does not change that.
    damper: Damper<String>,
}

impl Worklist {
    pub(super) fn new() -> Self {
        let (entries, wrong, rest) = (Arc::default(), VecDeque::new(), VecDeque::new());
        let damper = Damper::with_limit(REPORTED_LIMIT);
        Self { entries, revision: 0, wrong, rest, nodes: 0, is_judged: false, goes_on: false, damper }
    }

    /// Whether this list was gone through, with the journal as it is.
    pub(super) fn is_of(&self, entries: &Arc<Entries>, revision: u64) -> bool {
        Arc::ptr_eq(entries, &self.entries) && self.revision == revision
    }

    /// Begins with a list that was gone through.
    pub(super) fn renew(&mut self, entries: Arc<Entries>, revision: u64, list: VecDeque<Todo>) {
        (self.rest, self.wrong) = list.into_iter().partition(|item| matches!(item.what, EntryKind::Do(_)));
        self.nodes = self.rest.iter().filter(|item| item.what == EntryKind::Do(Work::Node)).count();
        (self.entries, self.revision, self.is_judged, self.goes_on) = (entries, revision, false, false);
    }

    /// Whether a malformed entry without an id of its own was not reported yet.
    pub(super) fn is_news(&mut self, entry: &Value) -> bool {
        self.damper.is_news(&key_of(&entry.to_string()))
    }

    /// Whether any such entry was reported.
    pub(super) fn was_malformed(&self) -> bool {
        !self.damper.reported().is_empty()
    }

    pub(super) fn entry(&self, at: usize) -> Option<Value> {
        self.entries.get(self.rest.get(at)?.at)
    }

    pub(super) fn wrong_at(&self, at: usize) -> Option<(Todo, Value)> {
        let item = self.wrong.get(at)?.clone();
        let entry = self.entries.get(item.at)?;
        Some((item, entry))
    }

    pub(super) fn done(&mut self, at: usize) {
        if self.rest.remove(at).is_some_and(|item| item.what == EntryKind::Do(Work::Node)) {
            self.nodes -= 1;
        }
    }
}
