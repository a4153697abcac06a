//! What a task of its own works on, of the node in place.

use crate::deploy::AppliedExtent;

/// A generation, and how much of it the node has.
pub(super) type InPlace = (u64, AppliedExtent);

/// Looked for once in each of these; that there is none is known as well.
pub(super) struct Subject<T>(Option<(InPlace, Option<T>)>);

impl<T> Subject<T> {
    /// No node is in place.
    pub(super) fn unknown() -> Self {
        Self(None)
    }

    /// What was found there.
    pub(super) fn found(there: InPlace, found: Option<T>) -> Self {
        Self(Some((there, found)))
    }

    /// It, where there is one.
    pub(super) fn get(&self) -> Option<&T> {
        self.0.as_ref()?.1.as_ref()
    }

    /// Whether it was looked for there.
    pub(super) fn is_of(&self, there: InPlace) -> bool {
        self.0.as_ref().is_some_and(|(known, _)| *known == there)
    }
}
