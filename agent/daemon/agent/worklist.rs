//! What is still to be done of the list in force.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::Value;

use crate::collect::Entries;
use crate::deploy::{EntryKind, PendingEntry, Work};
use crate::digest::key_of;
use crate::report::reported_once::ReportedOnce;
use crate::report::status::Condition;

/// How many malformed entries without an id are remembered as reported.
const REPORTED_LIMIT: usize = 256;

/// What is still to be done of the list in force.
pub(super) struct Worklist {
    entries: Arc<Entries>,
    /// Of the journal, when the list was gone through.
    revision: u64,
    /// What the list says is to be looked at anew.
    is_stale: bool,
    /// Why a node waits for another one, where one does.
    pub(super) held: Option<Condition>,
    /// What cannot be done.
    pub(super) rejected: VecDeque<PendingEntry>,
    /// In the order of the list. What ended leaves it, mostly at its front.
    pub(super) rest: VecDeque<PendingEntry>,
    /// How many of these bring a node up.
    pub(super) nodes: usize,
    /// Whether it was seen that nothing is wrong with a node that waits for its turn.
    pub(super) nodes_checked: bool,
    /// Whether there is more to do at once than was done in this turn.
    pub(super) has_more: bool,
    /// Digests of malformed entries without an id of their own that were reported; a new list does not change that.
    reported_once: ReportedOnce<String>,
}

impl Worklist {
    pub(super) fn new() -> Self {
        let (entries, rejected, rest) = (Arc::default(), VecDeque::new(), VecDeque::new());
        let reported_once = ReportedOnce::with_limit(REPORTED_LIMIT);
        Self {
            entries,
            revision: 0,
            is_stale: false,
            held: None,
            rejected,
            rest,
            nodes: 0,
            nodes_checked: false,
            has_more: false,
            reported_once,
        }
    }

    /// Whether this list was gone through, with the journal as it is.
    pub(super) fn is_of(&self, entries: &Arc<Entries>, revision: u64) -> bool {
        !self.is_stale && Arc::ptr_eq(entries, &self.entries) && self.revision == revision
    }

    /// Begins with a list that was gone through.
    pub(super) fn renew(&mut self, entries: Arc<Entries>, revision: u64, list: VecDeque<PendingEntry>) {
        (self.rest, self.rejected) = list.into_iter().partition(|item| matches!(item.what, EntryKind::Run(_)));
        self.nodes = self.rest.iter().filter(|item| item.what == EntryKind::Run(Work::Node)).count();
        (self.is_stale, self.held) = (false, None);
        (self.entries, self.revision, self.nodes_checked, self.has_more) = (entries, revision, false, false);
    }

    /// Marks a malformed entry without an id of its own as reported; whether it was not yet.
    pub(super) fn mark_reported(&mut self, entry: &Value) -> bool {
        self.reported_once.mark_reported(&key_of(&entry.to_string()))
    }

    /// Whether any such entry was reported.
    pub(super) fn was_malformed(&self) -> bool {
        !self.reported_once.reported().is_empty()
    }

    pub(super) fn entry(&self, at: usize) -> Option<Value> {
        self.entries.get(self.rest.get(at)?.at)
    }

    pub(super) fn rejected_at(&self, at: usize) -> Option<(PendingEntry, Value)> {
        let item = self.rejected.get(at)?.clone();
        let entry = self.entries.get(item.at)?;
        Some((item, entry))
    }

    /// A node has begun: what is to be said of one that waits for it is another matter now.
    pub(super) fn node_has_begun(&mut self) {
        self.is_stale |= self.held.is_some();
        self.has_more |= self.is_stale;
    }

    pub(super) fn done(&mut self, at: usize) {
        if self.rest.remove(at).is_some_and(|item| item.what == EntryKind::Run(Work::Node)) {
            self.nodes -= 1;
            // Another one may have waited for its end.
            self.is_stale = self.held.is_some();
            self.has_more |= self.is_stale;
        }
    }
}
