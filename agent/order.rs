//! Sorting and gathering, small: the standard library's sort is 6 kB of code for each type that is sorted, and
//! collecting into a `BTreeMap` or `BTreeSet` sorts. The lists here are short.

use std::cmp::Ordering;

/// Sorts; equal items keep their order.
pub fn sort<T: Ord>(items: &mut [T]) {
    sort_by(items, T::cmp);
}

/// Sorts by a comparison, a total order; what is equal in it keeps its order.
pub fn sort_by<T>(items: &mut [T], compare: impl Fn(&T, &T) -> Ordering) {
    let mut places = places(items.len(), &|one, other| match (items.get(one), items.get(other)) {
        (Some(one), Some(other)) => compare(one, other),
        _ => Ordering::Equal,
    });
    carry(&mut places, &mut |one, other| items.swap(one, other));
}

/// A map or set of these. Of equal keys the last one's value stays.
pub fn gather<C: Default + Extend<I>, I>(items: impl IntoIterator<Item = I>) -> C {
    let mut all = C::default();
    all.extend(items);
    all
}

/// Where each of `count` items belongs.
fn places(count: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> Vec<usize> {
    let mut sorted: Vec<usize> = (0..count).collect();
    #[allow(clippy::disallowed_methods, reason = "the one instance of it")]
    sorted.sort_by(|one, other| compare(*one, *other));
    let mut places = vec![0; count];
    for (place, from) in sorted.into_iter().enumerate() {
        if let Some(to) = places.get_mut(from) {
            *to = place;
        }
    }
    places
}

/// Brings each item to its place: one swap an item at most.
fn carry(places: &mut [usize], swap: &mut dyn FnMut(usize, usize)) {
    for here in 0..places.len() {
        while let Some(to) = places.get(here).copied().filter(|to| *to != here) {
            swap(here, to);
            places.swap(here, to);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_sorts_as_the_standard_library_does(items: Vec<(u8, String)>) {
            let (mut ours, mut theirs) = (items.clone(), items.clone());
            sort(&mut ours);
            #[allow(clippy::disallowed_methods, reason = "what ours is held against")]
            theirs.sort();
            prop_assert_eq!(&ours, &theirs);
            // Stable: by the first member alone the second ones stay as they came.
            let (mut ours, mut theirs) = (items.clone(), items);
            sort_by(&mut ours, |one, other| one.0.cmp(&other.0));
            #[allow(clippy::disallowed_methods, reason = "what ours is held against")]
            theirs.sort_by_key(|item| item.0);
            prop_assert_eq!(ours, theirs);
        }

        #[test]
        fn what_is_gathered_is_what_is_collected(items: Vec<(u8, u8)>) {
            let gathered: BTreeMap<u8, u8> = gather(items.clone());
            prop_assert_eq!(gathered, items.into_iter().collect::<BTreeMap<_, _>>());
        }
    }
}
