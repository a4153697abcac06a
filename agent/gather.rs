//! Maps and sets of what an iterator gives.
//!
//! In: an iterator. Out: a map or a set. Never: a sort.

/// Makes a map or a set of what an iterator gives.
pub(crate) trait Gather: Iterator + Sized {
    /// Inserts one item after the other; of equal keys the last value counts.
    ///
    /// `collect` sorts before it builds: the sort alone is compiled for each kind of item, 5 KB each time. Insertion is there anyway.
    fn gather<C: Default + Extend<Self::Item>>(self) -> C {
        let mut all = C::default();
        all.extend(self);
        all
    }
}

impl<I: Iterator> Gather for I {}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn what_is_gathered_is_what_would_be_collected() {
        let items = [(2, "b"), (1, "a"), (2, "c"), (0, "")];
        assert_eq!(items.into_iter().gather::<BTreeMap<_, _>>(), items.into_iter().collect());
        assert_eq!(items.into_iter().gather::<BTreeSet<_>>(), items.into_iter().collect());
    }
}
