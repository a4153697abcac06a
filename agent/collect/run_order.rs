//! Whether an answer is older than one that came before it.
//!
//! What answers for Heat may have several copies of the metadata: a database cluster behind its API, an object store. A copy that lags behind lists, of a
//! resource, the run that Heat has replaced in place of the newer one. Heat takes any result for that of the run that it waits for now, so nothing may rest
//! on such an answer: it counts as a failed poll, and what was listed stays in force.
//!
//! Heat itself goes back to an earlier run only where it rolls back an update that had replaced the deployment's resource. So what is still answered
//! [`CONFIRMED_AFTER`] later is what Heat says.

use std::collections::BTreeMap;
use std::time::Duration;

use super::entries::Entries;
use crate::budgets::DEPLOYMENTS;
use crate::clock::{Clock, Moment, Timestamp, patience};
use crate::error::{Error, Result};

/// How long a source has to go on listing an earlier run before that is believed.
const CONFIRMED_AFTER: Duration = patience(Duration::from_mins(1));

/// When the newest run of each resource was made that an answer has listed.
#[derive(Default)]
pub(super) struct RunOrder {
    /// By the hash of stack and resource ([`Entries::made`]).
    newest: BTreeMap<u64, Timestamp>,
    /// When the first answer came that listed an earlier run, where none has listed the newer one since.
    doubted: Option<Moment>,
}

impl RunOrder {
    /// Takes note of what a list says, or refuses it.
    ///
    /// # Errors
    /// Transient, if it lists an earlier run of a resource than a list before it, and that has not been confirmed yet.
    pub(super) fn check(&mut self, list: &Entries, clock: &Clock) -> Result<()> {
        let is_earlier = |(resource, made): &(&u64, &Timestamp)| self.newest.get(resource).is_some_and(|newest| newest > *made);
        let Some((resource, made)) = list.made().iter().find(is_earlier).map(|(resource, made)| (*resource, *made)) else {
            self.confirm();
            self.learn(list);
            return Ok(());
        };
        let since = *self.doubted.get_or_insert_with(|| clock.moment());
        if clock.since(since) >= CONFIRMED_AFTER {
            self.confirm();
            self.learn(list);
            return Ok(());
        }
        let name = list.resource(resource).map(|(stack, name)| format!("{name} of stack {stack}")).unwrap_or_default();
        let newer = self.newest.get(&resource).map(|newest| newest.rfc3339()).unwrap_or_default();
        Err(Error::transient(format!(
            "the answer is older than one before it: it lists a deployment of resource {name} that was made at {}, where one of {newer} was listed",
            made.rfc3339()
        ))
        .rule("Heat takes any result for that of the deployment that it waits for now, so no result is sent on the word of an older list")
        .remedy(format!(
            "if this goes on, a replica behind the source lags: check the replication of the object store, or of Heat's database. If Heat has rolled back an \
             update of the stack, the agent follows within {} s",
            CONFIRMED_AFTER.as_secs()
        )))
    }

    /// The list that was in force is what a source says now.
    pub(super) fn confirm(&mut self) {
        self.doubted = None;
    }

    /// Takes note of a list that is believed.
    pub(super) fn learn(&mut self, list: &Entries) {
        self.newest.extend(list.made().iter().map(|(resource, made)| (*resource, *made)));
        // Of resources that are listed no more, the ones that were made first go first.
        while self.newest.len() > 2 * DEPLOYMENTS {
            let listed = list.made();
            let oldest = self.newest.iter().filter(|(resource, _)| !listed.contains_key(resource)).min_by_key(|(_, made)| **made);
            let Some(oldest) = oldest.map(|(resource, _)| *resource) else { return };
            self.newest.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Deployments as resource and the second in which each was made.
    fn list(entries: &[(&str, u64)]) -> Entries {
        let entry = |(name, second): &(&str, u64)| {
            json!({"id": format!("{name}-{second}"), "creation_time": Timestamp(second * 1000).rfc3339(), "inputs": [
                {"name": "deploy_stack_id", "value": "s/1"}, {"name": "deploy_resource_name", "value": name}]})
        };
        Entries::new(entries.iter().map(entry).collect()).unwrap()
    }

    fn after_a_replacement(clock: &Clock) -> RunOrder {
        let mut order = RunOrder::default();
        order.check(&list(&[("a", 10), ("b", 10)]), clock).unwrap();
        order.check(&list(&[("a", 10), ("b", 20)]), clock).unwrap();
        order
    }

    #[test]
    fn an_answer_that_goes_back_to_an_earlier_run_is_refused_until_it_is_confirmed() {
        let clock = Clock::manual(Timestamp(100_000));
        let mut order = after_a_replacement(&clock);
        let earlier_run = list(&[("a", 10), ("b", 10)]);
        let error = order.check(&earlier_run, &clock).unwrap_err().to_string();
        assert!(
            error.contains("resource b of stack s/1 that was made at 1970-01-01T00:00:10Z, where one of 1970-01-01T00:00:20Z"),
            "{error}"
        );
        clock.advance(CONFIRMED_AFTER / 2);
        // The newer one was listed meanwhile: the count begins anew.
        assert!(order.check(&list(&[("a", 10), ("b", 20)]), &clock).is_ok());
        assert!(order.check(&earlier_run, &clock).is_err());
        clock.advance(CONFIRMED_AFTER / 2);
        assert!(order.check(&earlier_run, &clock).is_err());
        // That what is in force was said again, too.
        order.confirm();
        assert!(order.check(&earlier_run, &clock).is_err());
        clock.advance(CONFIRMED_AFTER);
        assert!(order.check(&earlier_run, &clock).is_ok() && order.check(&earlier_run, &clock).is_ok());
        // From here on that one counts.
        assert!(order.check(&list(&[("a", 10), ("b", 15)]), &clock).is_ok());
        assert!(order.check(&earlier_run, &clock).is_err());
    }

    #[test]
    fn what_leaves_or_comes_is_not_older() {
        let clock = Clock::manual(Timestamp(100_000));
        for later in
            [&[][..], &[("a", 10)], &[("c", 1), ("b", 20)], &[("b", 10), ("b", 20)], &[("b", 20), ("b", 10)], &[("b", 21)]]
        {
            assert!(after_a_replacement(&clock).check(&list(later), &clock).is_ok(), "{later:?}");
        }
        // A copy may lag in between as well: what has left comes back as the run that it was, or as a newer one.
        let mut order = after_a_replacement(&clock);
        order.check(&list(&[]), &clock).unwrap();
        assert!(order.check(&list(&[("b", 10)]), &clock).is_err());
        assert!(order.check(&list(&[("b", 20)]), &clock).is_ok());
        let undated = Entries::new(vec![json!({"id": "b-1", "inputs": [
            {"name": "deploy_stack_id", "value": "s/1"}, {"name": "deploy_resource_name", "value": "b"}]})]);
        assert!(order.check(&undated.unwrap(), &clock).is_ok(), "it says nothing of its age");
    }

    #[test]
    fn no_more_is_remembered_than_two_lists_may_have() {
        let clock = Clock::manual(Timestamp(100_000));
        let mut order = RunOrder::default();
        for round in 0..4 {
            let names: Vec<_> = (0..DEPLOYMENTS).map(|n| format!("{round}-{n}")).collect();
            let entries: Vec<_> = names.iter().map(|name| (name.as_str(), 10 + round)).collect();
            order.check(&list(&entries), &clock).unwrap();
            assert!(order.newest.len() <= 2 * DEPLOYMENTS);
        }
        assert!(order.check(&list(&[("3-0", 1)]), &clock).is_err() && order.check(&list(&[("0-0", 1)]), &clock).is_ok());
    }
}
