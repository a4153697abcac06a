//! What follows from a look at a node that has all that was asked, and what of it is reported: pure.

use std::collections::BTreeSet;

use super::drift::{Cause, SortedCauses};
use crate::daemon::pause::LastAttempt;
use crate::keepers::certificates::Due;

/// What is known of the node.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and the decision is a table over them")]
pub(super) struct DriftFacts {
    /// What differs from the parameters.
    pub(super) found: Vec<Cause>,
    /// The same by what was put back before.
    pub(super) sorted: SortedCauses,
    /// Units whose restarts ask etcd's members first: pending ones, and those of what is put back.
    pub(super) asking: BTreeSet<String>,
    /// Units are on their way: only files were judged.
    pub(super) is_arriving: bool,
    /// Something else is wrong with the node.
    pub(super) is_unhealthy: bool,
    /// What is due of its certificates.
    pub(super) due: Due,
    /// The operator ordered a step of a CA rotation.
    pub(super) is_ordered: bool,
    /// DRIFT=repair.
    pub(super) repairs: bool,
}

/// What is done before anything else.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FirstAction {
    /// The operator's order is carried out, and puts right whatever else is found.
    Order,
    /// Certificates are renewed, and `repairs` put back with that; what `stays` is about stays as it is found. Where a renewal has
    /// to wait, so have the restarts that one before left, and the rest is judged as if none were due.
    Renewal { stays: Vec<Cause>, repairs: Vec<Cause> },
    /// Nothing.
    Nothing,
}

/// What of the differences is put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repairs {
    Nothing,
    All,
    /// All, where etcd's members can spare this one; else the rest.
    Asking,
    /// All but the restarts that have to wait ([`DriftFacts::rest`]).
    Rest,
}

/// How the node is, with all that may be done without a word done.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DriftVerdict {
    /// Nothing differs.
    Same {
        /// The last try failed, and its pause lasts.
        drifted: bool,
        /// Somebody else put right what the last try could not: none of its steps is waited for any more.
        repaired: bool,
    },
    /// Something differs, which is reported.
    Differs {
        differences: Vec<String>,
        repairs: Repairs,
        /// Whether the node differs still when that succeeded.
        rest: bool,
    },
}

impl DriftFacts {
    /// Nothing can be judged yet: units are on their way, and no file differs.
    pub(super) fn is_early(&self) -> bool {
        self.is_arriving && self.found.is_empty() && !self.due.is_now()
    }

    pub(super) fn first(&self, tried: LastAttempt) -> FirstAction {
        let SortedCauses { contested, repairs } = &self.sorted;
        if tried.holds {
            FirstAction::Nothing
        } else if self.is_ordered {
            FirstAction::Order
        } else if self.due.is_now() && (self.is_unfinished() || self.due == Due::Expired) {
            // It restarts whoever still is to be restarted, once and with the new certificates.
            let (restarts, others) = self.found.iter().cloned().partition(Cause::is_unfinished);
            let (stays, repairs) = if self.repairs { (contested.clone(), repairs.clone()) } else { (others, restarts) };
            FirstAction::Renewal { stays, repairs }
        } else {
            FirstAction::Nothing
        }
    }

    /// Whether nothing is to be put back but restarts that were noted and not made: the agent's own work that was cut off, e.g. a renewal of
    /// certificates.
    fn is_unfinished(&self) -> bool {
        self.sorted.repairs.iter().all(Cause::is_unfinished)
    }

    /// What is put back while the restarts that ask have to wait.
    pub(super) fn rest(&self) -> Vec<Cause> {
        let asks = |cause: &Cause| cause.pending_restart().is_some_and(|unit| self.asking.contains(unit));
        self.sorted.repairs.iter().filter(|cause| !asks(cause)).cloned().collect()
    }

    fn put_back(&self, tried: LastAttempt) -> Repairs {
        let may = (self.repairs || self.is_unfinished()) && !tried.holds;
        match (may && !self.sorted.repairs.is_empty(), self.asking.is_empty(), self.due.is_now()) {
            (false, ..) => Repairs::Nothing,
            (true, true, _) => Repairs::All,
            (true, false, false) => Repairs::Asking,
            // They are left to the renewal: it comes after what else is put back, or was refused.
            (true, false, true) => Repairs::Rest,
        }
    }

    /// Whether the node differs whatever is put back.
    pub(super) fn has_left_over(&self) -> bool {
        self.is_unhealthy || self.found.iter().any(Cause::is_foreign) || !self.sorted.contested.is_empty()
    }

    /// After a renewal that is due was refused or failed. `too_small`: volumes that could not be grown, which nothing that is put back makes
    /// larger.
    pub(super) fn verdict(&self, tried: LastAttempt, too_small: Vec<String>) -> DriftVerdict {
        let mut differences: Vec<String> = self.found.iter().map(|cause| cause.text.clone()).collect();
        if self.due.is_now() && !self.is_unfinished() && !self.repairs {
            differences.push("no certificate is renewed until this is fixed".to_owned());
        }
        let rest = self.has_left_over() || !too_small.is_empty();
        differences.extend(too_small);
        // What is left of a plan then (unit files that systemd is to read again) changes nothing that runs.
        if differences.is_empty() {
            return DriftVerdict::Same { drifted: tried.holds && tried.failed, repaired: tried.failed && !tried.holds };
        }
        DriftVerdict::Differs { differences, repairs: self.put_back(tried), rest }
    }
}

#[cfg(test)]
mod tests {
    use super::super::drift::CauseKind;
    use super::*;
    use crate::clock::Timestamp;
    use crate::daemon::node::drift::Subject;

    const FRESH: LastAttempt = LastAttempt { holds: false, failed: false };
    const RESTS: LastAttempt = LastAttempt { holds: true, failed: true };
    const FAILED: LastAttempt = LastAttempt { holds: false, failed: true };
    const DUE: Due = Due::Now { late: false };

    fn ours(name: &str) -> Cause {
        Cause::new(CauseKind::File, Subject::Path(name.to_owned()), "changed", name.to_owned())
    }

    fn theirs() -> Cause {
        Cause::of_systemd("theirs", "theirs".to_owned())
    }

    /// A restart that was cut off.
    fn restart(unit: &str) -> Cause {
        Cause::new(CauseKind::Restart, Subject::Unit(unit.to_owned()), "", unit.to_owned())
    }

    /// These differ, of which another tool keeps writing `contested`.
    fn facts(found: &[Cause], contested: &[Cause], due: Due, repairs: bool) -> DriftFacts {
        let repaired = found.iter().filter(|cause| !cause.is_foreign() && !contested.contains(cause)).cloned().collect();
        let sorted = SortedCauses { contested: contested.to_vec(), repairs: repaired };
        DriftFacts {
            found: found.to_vec(),
            sorted,
            asking: BTreeSet::new(),
            is_arriving: false,
            is_unhealthy: false,
            due,
            is_ordered: false,
            repairs,
        }
    }

    #[test]
    fn what_comes_first_is_an_order_then_a_renewal_that_nothing_waits_for() {
        let (a, b, foreign, cut) = (ours("a"), ours("b"), theirs(), restart("u"));
        let both = [a.clone(), b.clone()];
        let (left, beside) = ([foreign.clone(), cut.clone()], [a.clone(), cut.clone()]);
        let renewal = |stays: &[&Cause], repairs: &[&Cause]| FirstAction::Renewal {
            stays: stays.iter().copied().cloned().collect(),
            repairs: repairs.iter().copied().cloned().collect(),
        };
        for (why, found, contested, due, repairs, tried, expected) in [
            ("nothing is due", &[][..], &[][..], Due::Nothing, true, FRESH, FirstAction::Nothing),
            ("not yet", &[], &[], Due::Later(Timestamp(1)), true, FRESH, FirstAction::Nothing),
            ("due", &[], &[], DUE, true, FRESH, renewal(&[], &[])),
            ("due, and tried a moment ago", &[], &[], DUE, true, RESTS, FirstAction::Nothing),
            ("due, and tried long ago", &[], &[], DUE, true, FAILED, renewal(&[], &[])),
            ("a repair comes before", &both[..1], &[], DUE, true, FRESH, FirstAction::Nothing),
            ("whoever repairs nothing repairs first by hand", &both[..1], &[], DUE, false, FRESH, FirstAction::Nothing),
            ("what another tool writes stays", &both[..1], &both[..1], DUE, true, FRESH, renewal(&[&a], &[])),
            ("so does what somebody added", std::slice::from_ref(&foreign), &[], DUE, false, FRESH, renewal(&[&foreign], &[])),
            ("a restart was cut off: the renewal makes it", &left, &[], DUE, true, FRESH, renewal(&[], &[&cut])),
            ("so it does where nothing is put back", &left, &[], DUE, false, FRESH, renewal(&[&foreign], &[&cut])),
            ("a restart was cut off, and its renewal failed", &left, &[], DUE, true, RESTS, FirstAction::Nothing),
            ("a repair comes before both", &beside, &[], DUE, true, FRESH, FirstAction::Nothing),
            ("expired, and nothing but a restart is put back", &beside, &[], Due::Expired, false, FRESH, renewal(&[&a], &[&cut])),
            ("expired: repairs go with it", &both, &both[..1], Due::Expired, true, FRESH, renewal(&[&a], &[&b])),
            ("expired, and nothing is put back", &both, &[], Due::Expired, false, FRESH, renewal(&[&a, &b], &[])),
            ("expired, and tried a moment ago", &both, &[], Due::Expired, true, RESTS, FirstAction::Nothing),
        ] {
            let mut facts = facts(found, contested, due, repairs);
            assert_eq!(facts.first(tried), expected, "{why}");
            facts.is_ordered = true;
            let ordered = if tried.holds { FirstAction::Nothing } else { FirstAction::Order };
            assert_eq!(facts.first(tried), ordered, "{why}, and ordered");
        }
    }

    #[test]
    fn what_differs_is_reported_and_put_back_where_drift_says_so() {
        let (a, foreign) = (ours("a"), theirs());
        let unfinished = restart("u");
        let full = [Cause::of_volume("runtime", "full".to_owned())];
        let (one, other) = ([a.clone()], [foreign.clone()]);
        let (all, cut_off) = ([a.clone(), foreign.clone()], [foreign.clone(), unfinished.clone()]);
        let beside = [a.clone(), unfinished.clone()];
        let hint = "no certificate is renewed until this is fixed";
        let same = |drifted, repaired| DriftVerdict::Same { drifted, repaired };
        let differs = |differences: &[&str], repairs, rest| DriftVerdict::Differs {
            differences: differences.iter().map(|&text| text.to_owned()).collect(),
            repairs: if repairs { Repairs::All } else { Repairs::Nothing },
            rest,
        };
        for (why, found, contested, due, repairs, tried, small, expected) in [
            ("nothing", &[][..], &[][..], Due::Nothing, true, FRESH, None, same(false, false)),
            ("nothing now, after a failure", &[], &[], Due::Nothing, true, FAILED, None, same(false, true)),
            ("nothing found, and the pause lasts", &[], &[], DUE, true, RESTS, None, same(true, false)),
            ("drift", &one, &[], Due::Nothing, true, FRESH, None, differs(&["a"], true, false)),
            ("drift that is only reported", &one, &[], Due::Nothing, false, FRESH, None, differs(&["a"], false, false)),
            ("a restart was cut off", &cut_off, &[], Due::Nothing, false, FRESH, None, differs(&["theirs", "u"], true, true)),
            ("and failed a moment ago", &cut_off[1..], &[], Due::Nothing, false, RESTS, None, differs(&["u"], false, false)),
            ("a volume is nobody's restart", &full, &[], Due::Nothing, false, FRESH, None, differs(&["full"], false, false)),
            ("beside drift it waits", &beside, &[], Due::Nothing, false, FRESH, None, differs(&["a", "u"], false, false)),
            ("and keeps a renewal waiting", &one, &[], DUE, false, FRESH, None, differs(&["a", hint], false, false)),
            ("a repair failed a moment ago", &one, &[], Due::Nothing, true, RESTS, None, differs(&["a"], false, false)),
            ("another tool writes it", &one, &one, Due::Nothing, true, FRESH, None, differs(&["a"], false, true)),
            ("somebody added something", &other, &[], Due::Nothing, true, FRESH, None, differs(&["theirs"], false, true)),
            ("both", &all, &[], Due::Nothing, true, FRESH, None, differs(&["a", "theirs"], true, true)),
            ("a volume", &[], &[], Due::Nothing, true, FRESH, Some("small"), differs(&["small"], false, true)),
            ("a volume beside drift", &one, &[], Due::Nothing, true, FRESH, Some("small"), differs(&["a", "small"], true, true)),
        ] {
            let facts = facts(found, contested, due, repairs);
            assert_eq!(facts.verdict(tried, small.map(str::to_owned).into_iter().collect()), expected, "{why}");
        }
        assert!(!facts(&one, &[], Due::Nothing, true).has_left_over() && facts(&one, &one, Due::Nothing, true).has_left_over());
        assert!(facts(&other, &[], Due::Nothing, true).has_left_over());
        let unhealthy = DriftFacts { is_unhealthy: true, ..facts(&one, &[], Due::Nothing, true) };
        assert_eq!(unhealthy.verdict(FRESH, Vec::new()), differs(&["a"], true, true), "its other problems are not put back");
    }

    /// Attack: a renewal was killed before its restarts; the next start made them while another member of etcd was down.
    #[test]
    fn restarts_that_were_cut_off_ask_etcds_members_and_wait_where_a_renewal_does() {
        let (a, etcd, docker) = (ours("a"), restart("etcd"), restart("docker"));
        let later = Due::Later(Timestamp(1));
        for (why, found, due, drift, tried, expected, rest) in [
            ("nothing is due", &[&etcd][..], Due::Nothing, false, FRESH, Repairs::Asking, &[][..]),
            ("nothing is due yet", &[&etcd], later, true, FRESH, Repairs::Asking, &[]),
            ("a renewal was refused", &[&etcd], DUE, false, FRESH, Repairs::Rest, &[]),
            ("it failed a moment ago", &[&etcd], Due::Nothing, true, RESTS, Repairs::Nothing, &[]),
            ("others ask nobody", &[&docker], DUE, false, FRESH, Repairs::All, &[&docker]),
            ("others do not wait", &[&docker, &etcd], DUE, true, FRESH, Repairs::Rest, &[&docker]),
            ("beside drift", &[&a, &etcd], Due::Nothing, true, FRESH, Repairs::Asking, &[&a]),
            ("beside drift, and a renewal follows", &[&a, &etcd], DUE, true, FRESH, Repairs::Rest, &[&a]),
            ("beside drift that is only reported", &[&a, &etcd], Due::Nothing, false, FRESH, Repairs::Nothing, &[&a]),
        ] {
            let found: Vec<Cause> = found.iter().copied().cloned().collect();
            let asking = found.contains(&etcd).then(|| "etcd".to_owned()).into_iter().collect();
            let facts = DriftFacts { asking, ..facts(&found, &[], due, drift) };
            let DriftVerdict::Differs { repairs, differences, .. } = facts.verdict(tried, Vec::new()) else { panic!("{why}") };
            assert_eq!((repairs, differences.len()), (expected, found.len()), "{why}");
            assert_eq!(facts.rest().iter().collect::<Vec<_>>(), rest, "{why}");
        }
    }

    #[test]
    fn units_on_their_way_are_waited_for_unless_a_file_differs_or_a_certificate_has_expired() {
        let is_early = |found: &[Cause], due| DriftFacts { is_arriving: true, ..facts(found, &[], due, true) }.is_early();
        assert!(is_early(&[], Due::Nothing));
        assert!(!is_early(&[ours("a")], Due::Nothing) && !is_early(&[], Due::Expired));
        assert!(!facts(&[], &[], Due::Nothing, true).is_early(), "they have arrived");
    }
}
