//! Units of a node in place that do not come to rest: on their way right after a boot, which is waited for, and those that never
//! arrive or die again and again, which is drift.
//!
//! systemd starts most of the node's units again without end, so that none of them ever becomes `failed`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use super::drift::Cause;
use crate::clock::{Clock, Stopwatch};
use crate::gather::Gather;
use crate::systemd::UnitState;

/// How long units may be on their way before the node is looked at as it is.
const ARRIVAL: Duration = Duration::from_mins(5);

/// What is remembered from one look to the next.
#[derive(Debug, Default)]
pub(super) struct UnsettledUnits {
    since: RefCell<Option<Stopwatch>>,
    restarts: RefCell<BTreeMap<String, u32>>,
    /// A node in place was looked at since the start.
    inspected: Cell<bool>,
    /// A look found them all arrived, or waited for long enough.
    arrived: Cell<bool>,
}

impl UnsettledUnits {
    pub(super) fn is_first_inspection(&self) -> bool {
        !self.inspected.get()
    }

    pub(super) fn mark_inspected(&self) {
        self.inspected.set(true);
    }

    /// What a look finds of it. `None`: some units are on their way, or died since the last look, and that has not lasted for long.
    pub(super) fn inspect(&self, units: &BTreeMap<String, UnitState>, clock: &Clock) -> Option<Vec<Cause>> {
        let now = units.iter().map(|(name, state)| (name.clone(), state.n_restarts)).gather();
        let before = self.restarts.replace(now);
        // systemd counts from 235 on.
        let again =
            |(name, state): (&String, &UnitState)| before.get(name).map_or(0, |before| state.n_restarts.saturating_sub(*before));
        let mut since = self.since.borrow_mut();
        if !units.iter().any(|(name, state)| state.is_settling() || again((name, state)) > 0) {
            *since = None;
            self.arrived.set(true);
            return Some(Vec::new());
        }
        if since.get_or_insert_with(|| clock.start()).elapsed() < ARRIVAL {
            return None;
        }
        self.arrived.set(true);
        // One that is down is named by its state.
        let dying = units.iter().filter(|(name, state)| state.is_active() && again((name, state)) > 0).map(|(name, state)| {
            let text = format!("{name} keeps dying, {} times so far", state.n_restarts);
            Cause::of_systemd(name, text)
        });
        Some(dying.collect())
    }

    /// Whether units are on their way that never arrived since the agent's start: as after a boot.
    pub(super) fn is_boot(&self) -> bool {
        !self.arrived.get()
    }

    /// The node was touched: what its units did meanwhile is covered by that report.
    pub(super) fn forget(&self) {
        self.restarts.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    /// What a look finds at a unit in this state, started again by systemd so many times.
    fn found(unsettled: &UnsettledUnits, active: &str, n_restarts: u32, clock: &Clock) -> Option<usize> {
        let state = UnitState { active_state: active.to_owned(), n_restarts, ..UnitState::default() };
        unsettled.inspect(&BTreeMap::from([("x.service".to_owned(), state)]), clock).map(|causes| causes.len())
    }

    #[test]
    fn units_on_their_way_are_waited_for_and_not_for_ever() {
        let (clock, unsettled) = (Clock::manual(Timestamp(0)), UnsettledUnits::default());
        let inspection = |active| found(&unsettled, active, 0, &clock);
        assert_eq!((inspection("activating"), unsettled.is_boot()), (None, true));
        assert_eq!((inspection("active"), inspection("activating"), unsettled.is_boot()), (Some(0), None, false));
        clock.advance(Duration::from_secs(299));
        assert_eq!(inspection("activating"), None);
        clock.advance(Duration::from_secs(1));
        assert_eq!((inspection("activating"), inspection("activating")), (Some(0), Some(0)), "its state says it");
        assert_eq!((inspection("active"), inspection("deactivating")), (Some(0), None), "it arrived, and goes another time");
    }

    #[test]
    fn who_dies_again_and_again_is_named_although_it_is_up_at_each_look() {
        let (clock, unsettled) = (Clock::manual(Timestamp(0)), UnsettledUnits::default());
        let looks = |from: u32, step: u32| -> Vec<Option<usize>> {
            let inspection = |count: u32| {
                clock.advance(Duration::from_mins(1));
                found(&unsettled, if count == 2 { "activating" } else { "active" }, from + count * step, &clock)
            };
            (0..8).map(inspection).collect()
        };
        assert_eq!(looks(7, 3), [Some(0), None, None, None, None, None, Some(1), Some(1)]);
        // One death, or a start by hand, which counts anew.
        assert_eq!(found(&unsettled, "active", 28, &clock), Some(0));
        assert_eq!(found(&unsettled, "active", 29, &clock), None);
        assert_eq!(found(&unsettled, "active", 0, &clock), Some(0));
        // What it did while the node was touched is covered by that report.
        unsettled.forget();
        assert_eq!(found(&unsettled, "active", 9, &clock), Some(0));
    }
}
