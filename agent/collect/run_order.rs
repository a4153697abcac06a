//! Whether an answer is older than what was listed before it.
//!
//! What answers for Heat may have several copies of the metadata: a database cluster behind its API, an object store. A copy that lags behind lists, of a
//! resource, the run that Heat has replaced in place of the newer one. Heat takes any result for that of the run that it waits for now, so nothing may rest
//! on such an answer: it counts as a failed poll, and what was listed stays in force. The newer run is known from any source, and from an earlier life of the
//! agent.
//!
//! Heat itself goes back to an earlier run only where it rolls back an update that had replaced the deployment's resource. So what a source goes on to
//! answer for [`CONFIRMED_AFTER`], while nobody lists the newer run, is what Heat says.
//!
//! The agent and os-collect-config by its link each keep such a record, and each reads the other's where it takes its place. What is known of a resource is
//! therefore ordered by itself ([`LastRun`]): of two records the one counts that has seen more, whoever wrote it, and however often they are exchanged.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::entries::{Entries, Resource, dated_resource};
use crate::budgets::DEPLOYMENTS;
use crate::clock::{Clock, Moment, Timestamp, millis, uptime};
use crate::error::{Error, Result};
use crate::files::{Attributes, Tree};
use crate::report::text::shortened;

/// For how long an earlier run in place of a newer one is not believed, from the first answer that lists it so: much longer than replicas usually lag.
const CONFIRMED_AFTER: Duration = Duration::from_mins(5);

/// How much of that the time between two answers counts at most: where nobody asked for an hour, two answers may be of two replicas that lag.
const LONGEST_GAP: Duration = Duration::from_secs(100);

/// What is known, for the next life of the agent: `run --once` would know nothing, and never see the end of that time.
pub(super) const STATE: &str = "cache/order.json";

/// Another number at each boot, within which the time that the machine is up tells how long ago something was, whatever the clock was set to.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// What is known of the runs of a resource. Of two the greater one has seen more: first by the newest run that it knows, then by how often Heat went back
/// since that one, then by the run that is in force, then by how often that was doubted in vain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub(super) struct LastRun {
    /// When the newest run was made that was ever listed.
    newest: Timestamp,
    /// How often an earlier run was confirmed since then.
    rollbacks: u32,
    /// When the run was made that is in force: that one, or an earlier one that was confirmed.
    made: Timestamp,
    /// How often a doubt of it has ended.
    doubts_ended: u32,
}

impl LastRun {
    fn new(made: Timestamp) -> Self {
        Self { newest: made, made, ..Self::default() }
    }

    /// A list has it that is not to be doubted.
    fn listed(self, made: Timestamp) -> Self {
        if made > self.newest {
            return Self::new(made);
        }
        Self { made, rollbacks: self.rollbacks.saturating_add(u32::from(made < self.made)), ..self }
    }

    /// It is as it is, whatever another list said.
    fn end_doubt(&mut self) {
        self.doubts_ended = self.doubts_ended.saturating_add(1);
    }
}

/// The same of each resource, by the hash of stack and resource ([`Entries::made`]).
type LastRuns = BTreeMap<u64, LastRun>;

/// The run of each resource that is in force, by what was ever listed.
#[derive(Default)]
pub(crate) struct RunOrder {
    runs: LastRuns,
    /// For each resource: for how long an earlier run has been listed, where neither the newer one was listed nor another list of that source believed
    /// meanwhile.
    doubts: BTreeMap<u64, Doubt>,
    /// Whether what is on disk is not what is to be there.
    is_to_keep: bool,
}

/// How long an earlier run has been listed.
struct Doubt {
    counted: Duration,
    /// When it was listed last, in this life of the agent.
    seen: Moment,
    /// How long before that it was, where that was in an earlier one.
    before: Duration,
    /// By this source.
    source: String,
}

impl Doubt {
    fn new(source: &str, clock: &Clock) -> Self {
        Self { counted: Duration::ZERO, seen: clock.moment(), before: Duration::ZERO, source: source.to_owned() }
    }

    /// It is listed again.
    fn count(&mut self, clock: &Clock) {
        self.counted += (clock.since(self.seen) + self.before).min(LONGEST_GAP);
        (self.seen, self.before) = (clock.moment(), Duration::ZERO);
    }
}

/// The same on disk, in milliseconds.
#[derive(serde::Serialize, serde::Deserialize)]
struct KeptDoubt {
    counted: u64,
    /// Since the boot.
    seen: u64,
    source: String,
}

/// As it lies on disk.
#[derive(serde::Serialize, serde::Deserialize)]
struct KeptOrder {
    runs: LastRuns,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    doubts: BTreeMap<u64, KeptDoubt>,
    boot: String,
}

/// Another one whenever a file is another one; nothing where there is none, or it cannot be looked at.
pub(crate) type Stamp = Option<(u64, i64, i64)>;

/// That of a file.
pub(super) fn stamp(root: &Tree, path: &Path) -> Stamp {
    root.facts(path).ok().flatten().map(|facts| facts.stamp)
}

/// What is the same until the next boot.
fn boot() -> String {
    std::fs::read_to_string(BOOT).unwrap_or_default().trim().to_owned()
}

impl RunOrder {
    /// What an earlier life of the agent knew; nothing where that was never kept.
    ///
    /// # Errors
    /// If it cannot be read: then what is kept of the lists themselves says it ([`RunOrder::of_lists`]).
    pub(crate) fn open(state: &Tree, clock: &Clock) -> Result<Option<Self>> {
        let Some(kept) = state.read_json::<KeptOrder>(Path::new(STATE))? else { return Ok(None) };
        let KeptOrder { runs, doubts, boot: of } = kept;
        let (boot, now) = (boot(), millis(uptime()));
        // Nobody knows how long before a boot it was; one that is asked once a boot is to follow in the end, too.
        let is_this_boot = !boot.is_empty() && of == boot;
        let doubt = |kept: KeptDoubt| Doubt {
            counted: Duration::from_millis(kept.counted),
            before: if is_this_boot { Duration::from_millis(now.saturating_sub(kept.seen)) } else { LONGEST_GAP },
            ..Doubt::new(&kept.source, clock)
        };
        let doubts = doubts.into_iter().map(|(resource, kept)| (resource, doubt(kept))).collect();
        Ok(Some(Self { runs, doubts, is_to_keep: false }))
    }

    /// What another collector keeps in its directory; nothing where it keeps nothing.
    ///
    /// # Errors
    /// If that cannot be read.
    pub(super) fn known_in(root: &Tree, directory: &Path, clock: &Clock) -> Result<Self> {
        if root.facts(&directory.join(STATE))?.is_none() {
            return Ok(Self::default());
        }
        Ok(Self::open(&root.subtree(directory)?, clock)?.unwrap_or_default())
    }

    /// The stamp of what another collector keeps in its directory.
    pub(crate) fn stamp_in(root: &Tree, directory: &Path) -> Stamp {
        stamp(root, &directory.join(STATE))
    }

    /// Takes over what another collector has listed, where that has seen more; doubts too, so that this one can end them.
    pub(crate) fn take_over(&mut self, mut former: Self) {
        for (resource, run) in former.runs {
            let known = self.runs.entry(resource).or_default();
            if run < *known {
                continue;
            }
            if run > *known {
                *known = run;
                self.doubts.remove(&resource);
                self.is_to_keep = true;
            }
            let Some(doubt) = former.doubts.remove(&resource) else { continue };
            if self.doubts.get(&resource).is_none_or(|own| own.counted < doubt.counted) {
                self.doubts.insert(resource, doubt);
            }
        }
    }

    /// It is to be kept in another directory from now on.
    pub(crate) fn moves(&mut self) {
        self.is_to_keep = true;
    }

    /// Takes over what the agent itself listed, for the collector that comes after it.
    ///
    /// # Errors
    /// If that cannot be read.
    pub(crate) fn take_over_from(&mut self, root: &Tree, directory: &Path, clock: &Clock) -> Result<()> {
        Self::known_in(root, directory, clock).map(|former| self.take_over(former))
    }

    /// Takes note of what a list of this source says, or refuses it.
    ///
    /// # Errors
    /// Transient, if it lists an earlier run of a resource in place of one that is known, and that has not been confirmed yet.
    pub(crate) fn check(&mut self, list: &Entries, source: &str, clock: &Clock) -> Result<()> {
        let mut refused = None;
        for (resource, made) in list.made() {
            if self.runs.get(resource).is_none_or(|known| known.made <= *made) {
                // Whatever else the list says: this run there is.
                self.is_to_keep |= self.listed(*resource, *made);
                if self.doubts.remove(resource).is_some() {
                    self.end_doubt(*resource);
                }
                continue;
            }
            self.is_to_keep = true;
            let doubt = self.doubts.entry(*resource).and_modify(|doubt| doubt.count(clock));
            let doubt = doubt.or_insert_with(|| Doubt::new(source, clock));
            if doubt.counted < CONFIRMED_AFTER {
                refused = refused.or(Some((*resource, *made)));
            }
        }
        if let Some((resource, made)) = refused {
            self.prune(list);
            return Err(self.older(list, resource, made));
        }
        // What was in doubt is believed.
        for (resource, made) in list.made() {
            self.listed(*resource, *made);
        }
        // Also of what this list does not name: its source is up to date, and its next answer that is older begins a time of its own. Another source may
        // list other deployments.
        let is_over = |(resource, doubt): (&u64, &Doubt)| {
            (doubt.source == source || list.made().contains_key(resource)).then_some(*resource)
        };
        for resource in self.doubts.iter().filter_map(is_over).collect::<Vec<_>>() {
            self.doubts.remove(&resource);
            self.end_doubt(resource);
        }
        self.prune(list);
        Ok(())
    }

    fn end_doubt(&mut self, resource: u64) {
        self.runs.entry(resource).and_modify(LastRun::end_doubt);
        self.is_to_keep = true;
    }

    /// A run of a resource is in force. Whether that was not known.
    fn listed(&mut self, resource: u64, made: Timestamp) -> bool {
        let known = self.runs.get(&resource).copied();
        let run = known.map_or(LastRun::new(made), |known| known.listed(made));
        self.runs.insert(resource, run);
        known != Some(run)
    }

    /// The ids of what a document lists below these keys, and of whose resource another run is in force: what a source said may be older than what another
    /// one, or a refused answer, has listed since, and may have been withdrawn by a rollback.
    pub(crate) fn replaced(&self, keys: &[String], document: &Value) -> Vec<String> {
        let Ok(listed) = Entries::below(keys, [document]) else { return Vec::new() };
        let is_another =
            |resource: &u64| self.runs.get(resource).is_some_and(|run| listed.made().get(resource) != Some(&run.made));
        let is_replaced = |entry: &Value| dated_resource(entry).is_some_and(|resource| is_another(&resource));
        let id = |entry: Value| entry.get("id").and_then(Value::as_str).map(str::to_owned);
        listed.values().filter(is_replaced).filter_map(id).collect()
    }

    /// What lists of before say, where it was never kept.
    pub(crate) fn of_lists(lists: impl IntoIterator<Item = impl Borrow<Entries>>) -> Self {
        let mut order = Self::default();
        lists.into_iter().for_each(|list| order.take_over(Self::of_list(list.borrow())));
        order
    }

    /// What a list says by itself.
    pub(super) fn of_list(list: &Entries) -> Self {
        let runs = list.made().iter().map(|(resource, made)| (*resource, LastRun::new(*made))).collect();
        Self { runs, ..Self::default() }
    }

    /// Whether what is on disk is not what is to be there.
    pub(crate) fn is_to_keep(&self) -> bool {
        self.is_to_keep
    }

    /// Puts on disk what is known: before what an answer says is used.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn keep(&mut self, state: &Tree, clock: &Clock) -> Result<()> {
        if !self.is_to_keep {
            return Ok(());
        }
        let now = millis(uptime());
        let doubt = |doubt: &Doubt| KeptDoubt {
            counted: millis(doubt.counted),
            seen: now.saturating_sub(millis(clock.since(doubt.seen) + doubt.before)),
            source: doubt.source.clone(),
        };
        let doubts = self.doubts.iter().map(|(resource, one)| (*resource, doubt(one))).collect();
        let kept = KeptOrder { runs: self.runs.clone(), doubts, boot: boot() };
        state.create_dir(Path::new("cache"), Attributes::mode(0o700))?;
        state.write_json(Path::new(STATE), &kept, Attributes::mode(0o600))?;
        self.is_to_keep = false;
        Ok(())
    }

    fn older(&self, list: &Entries, resource: u64, made: Timestamp) -> Error {
        let shown = |(stack, name): &Resource| format!("{} of stack {}", shortened(name, 64), shortened(stack, 100));
        let name = list.resource(resource).map(shown).unwrap_or_default();
        let newer = self.runs.get(&resource).map(|run| run.made.rfc3339()).unwrap_or_default();
        Error::transient(format!(
            "the answer is older than one before it: it lists a deployment of resource {name} that was made at {}, where one of {newer} was listed",
            made.rfc3339()
        ))
        .rule("Heat takes any result for that of the deployment that it waits for now, so no result is sent on the word of an older list")
        .remedy(format!(
            "if this goes on, a replica behind the source lags: check the replication of the object store, or of Heat's database. If Heat has rolled back an \
             update of the stack, the agent follows once polls have answered so for {} s",
            CONFIRMED_AFTER.as_secs()
        ))
    }

    /// Of resources that are listed no more, the ones that were made first go first.
    fn prune(&mut self, list: &Entries) {
        let surplus = self.runs.len().saturating_sub(2 * DEPLOYMENTS);
        if surplus == 0 {
            return;
        }
        let others = self.runs.iter().filter(|(resource, _)| !list.made().contains_key(resource));
        let mut others: Vec<(Timestamp, u64)> = others.map(|(resource, run)| (run.made, *resource)).collect();
        others.sort_unstable();
        for (_, resource) in others.into_iter().take(surplus) {
            self.runs.remove(&resource);
            self.doubts.remove(&resource);
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
        order.check(&list(&[("a", 10), ("b", 10)]), "cfn", clock).unwrap();
        order.check(&list(&[("a", 10), ("b", 20)]), "cfn", clock).unwrap();
        order
    }

    #[test]
    fn an_answer_that_goes_back_to_an_earlier_run_is_refused_until_it_is_confirmed() {
        let clock = Clock::manual(Timestamp(100_000));
        let mut order = after_a_replacement(&clock);
        let earlier_run = list(&[("a", 10), ("b", 10)]);
        let error = order.check(&earlier_run, "cfn", &clock).unwrap_err().to_string();
        let times = "made at 1970-01-01T00:00:10Z, where one of 1970-01-01T00:00:20Z";
        assert!(error.contains(&format!("resource b of stack s/1 that was {times}")), "{error}");
        clock.advance(LONGEST_GAP);
        // The newer one was listed meanwhile: the time begins anew.
        assert!(order.check(&list(&[("a", 10), ("b", 20)]), "cfn", &clock).is_ok());
        // Attack: two answers an hour apart, of two replicas that lag.
        for gap in [LONGEST_GAP, CONFIRMED_AFTER * 12, LONGEST_GAP] {
            assert!(order.check(&earlier_run, "cfn", &clock).is_err());
            clock.advance(gap);
        }
        assert!(order.check(&earlier_run, "cfn", &clock).is_ok() && order.check(&earlier_run, "cfn", &clock).is_ok());
        // Attack: a source that lists nothing of it ended the time each time.
        assert!(order.check(&list(&[("b", 9)]), "cfn", &clock).is_err());
        for _ in 0..3 {
            clock.advance(LONGEST_GAP);
            assert!(order.check(&list(&[("z", 1)]), "request", &clock).is_ok());
            assert_eq!(order.check(&list(&[("b", 9)]), "cfn", &clock).is_ok(), order.doubts.is_empty());
        }
        assert!(order.doubts.is_empty() && order.check(&earlier_run, "cfn", &clock).is_ok());
        // Attack: what is new in a list that is refused was not known.
        assert!(
            order.check(&list(&[("a", 9), ("b", 12)]), "cfn", &clock).is_err()
                && order.check(&earlier_run, "cfn", &clock).is_err()
        );
        assert!(order.check(&list(&[("a", 10), ("b", 12)]), "cfn", &clock).is_ok());
        // Another resource has a time of its own.
        assert!(order.check(&list(&[("a", 9), ("b", 10)]), "cfn", &clock).is_err());
        // From here on that one counts.
        assert!(order.check(&list(&[("a", 10), ("b", 15)]), "cfn", &clock).is_ok());
        assert!(order.check(&earlier_run, "cfn", &clock).is_err());
    }

    #[test]
    fn what_leaves_or_comes_is_not_older() {
        let clock = Clock::manual(Timestamp(100_000));
        for later in
            [&[][..], &[("a", 10)], &[("c", 1), ("b", 20)], &[("b", 10), ("b", 20)], &[("b", 20), ("b", 10)], &[("b", 21)]]
        {
            assert!(after_a_replacement(&clock).check(&list(later), "cfn", &clock).is_ok(), "{later:?}");
        }
        // A copy may lag in between as well: what has left comes back as the run that it was, or as a newer one.
        let mut order = after_a_replacement(&clock);
        order.check(&list(&[]), "cfn", &clock).unwrap();
        assert!(order.check(&list(&[("b", 10)]), "cfn", &clock).is_err());
        assert!(order.check(&list(&[("b", 20)]), "cfn", &clock).is_ok());
        let undated = Entries::new(vec![json!({"id": "b-1", "inputs": [
            {"name": "deploy_stack_id", "value": "s/1"}, {"name": "deploy_resource_name", "value": "b"}]})]);
        assert!(order.check(&undated.unwrap(), "cfn", &clock).is_ok(), "it says nothing of its age");
    }

    #[test]
    fn another_life_of_the_agent_knows_the_runs_and_goes_on_with_the_time() {
        let clock = Clock::manual(Timestamp(100_000));
        let dir = tempfile::tempdir().unwrap();
        let state = Tree::open(dir.path()).unwrap();
        assert!(RunOrder::open(&state, &clock).unwrap().is_none());
        let mut order = after_a_replacement(&clock);
        order.check(&list(&[]), "cfn", &clock).unwrap();
        order.keep(&state, &clock).unwrap();
        let next = |list: &Entries| {
            let mut order = RunOrder::open(&state, &clock).unwrap().unwrap();
            let is_believed = order.check(list, "cfn", &clock).is_ok();
            order.keep(&state, &clock).unwrap();
            is_believed
        };
        let kept = || state.read_json::<KeptOrder>(Path::new(STATE)).unwrap().unwrap();
        // So much later, or behind a boot. The wall clock says nothing of it.
        let change = |change: &dyn Fn(&mut KeptOrder)| {
            let mut kept = kept();
            change(&mut kept);
            state.write_json(Path::new(STATE), &kept, Attributes::mode(0o600)).unwrap();
        };
        let later =
            |by: u64| change(&|kept| kept.doubts.values_mut().for_each(|doubt| doubt.seen = doubt.seen.saturating_sub(by)));
        let lagging = list(&[("b", 10)]);
        assert!(!next(&lagging));
        clock.set(Timestamp(99_000_000));
        assert!(!next(&lagging) && kept().doubts.len() == 1);
        later(200_000);
        assert!(!next(&lagging));
        let reboot = || change(&|kept| kept.boot = "another".to_owned());
        reboot();
        assert!(!next(&lagging));
        reboot();
        assert!(next(&lagging) && next(&lagging), "what was believed stays so");
        assert!(kept().doubts.is_empty());
        // What is up to date ends it, also where it does not list the resource.
        assert!(next(&list(&[("b", 30)])) && !next(&lagging) && next(&list(&[("a", 10)])));
        assert!(kept().doubts.is_empty() && !next(&lagging));
        state.write(Path::new(STATE), b"{", Attributes::mode(0o600)).unwrap();
        assert!(RunOrder::open(&state, &clock).is_err());
    }

    /// Attack: os-collect-config by link had listed the newer run, which its command did not begin; the daemon in its place followed the rollback; by link
    /// again, the withdrawn run was begun, for the greater time counted.
    #[test]
    fn of_two_records_that_are_exchanged_the_one_that_followed_heat_counts() {
        let clock = Clock::manual(Timestamp(100_000));
        let (dir, first, second) = (tempfile::tempdir().unwrap(), Path::new("links"), Path::new("daemon"));
        let tree = Tree::open(dir.path()).unwrap();
        let life = |own: &Path, other: &Path, of: &mut dyn FnMut(&mut RunOrder)| {
            tree.create_dir(own, Attributes::mode(0o700)).unwrap();
            let state = tree.subtree(own).unwrap();
            let mut order = RunOrder::open(&state, &clock).unwrap().unwrap_or_default();
            order.take_over_from(&tree, other, &clock).unwrap();
            of(&mut order);
            order.keep(&state, &clock).unwrap();
        };
        let follow = |to: u64| {
            let (clock, list) = (&clock, list(&[("b", to)]));
            move |order: &mut RunOrder| {
                while order.check(&list, "cfn", clock).is_err() {
                    clock.advance(LONGEST_GAP);
                }
            }
        };
        let document = |run: u64| json!({"d": list(&[("b", run)]).values().collect::<Vec<_>>()});
        let replaced = |order: &RunOrder, run: u64| order.replaced(&["d".to_owned()], &document(run));
        life(first, second, &mut follow(20));
        life(second, first, &mut follow(10));
        // Again and again, in whatever order: nothing that is exchanged brings it back.
        for (own, other) in [(first, second), (second, first), (first, second), (first, second)] {
            life(own, other, &mut |order| {
                assert_eq!((replaced(order, 20), replaced(order, 10)), (vec!["b-20".to_owned()], vec![]));
                order.check(&list(&[("b", 10)]), "cfn", &clock).unwrap();
            });
        }
        // Heat asks for it again; then a newer one is replaced by each of them in turn.
        for (own, other, run) in
            [(first, second, 20), (second, first, 15), (first, second, 30), (second, first, 29), (first, second, 9)]
        {
            life(own, other, &mut follow(run));
            life(other, own, &mut |order| assert_eq!(order.runs.values().next().unwrap().made, Timestamp(run * 1000), "{run}"));
        }
        // What a collector without such a record has listed counts where it is news.
        let mut order = RunOrder::open(&tree.subtree(first).unwrap(), &clock).unwrap().unwrap();
        for (run, in_force) in [(30, 9), (20, 9), (31, 31)] {
            order.take_over(RunOrder::of_list(&list(&[("b", run)])));
            assert_eq!(order.runs.values().next().unwrap().made, Timestamp(in_force * 1000), "{run}");
        }
    }

    /// Attack: daemon and links in turn, the one told by a replica that lagged each time, the other by one that did not: at the fourth time the first one
    /// believed it.
    #[test]
    fn a_doubt_that_another_collector_has_ended_is_none() {
        let clock = Clock::manual(Timestamp(100_000));
        let dir = tempfile::tempdir().unwrap();
        let trees = ["links", "daemon"].map(|name| {
            Tree::open(dir.path()).unwrap().create_dir(Path::new(name), Attributes::mode(0o700)).unwrap();
            Tree::open(&dir.path().join(name)).unwrap()
        });
        let told = |at: usize, told: &[(&str, u64)]| {
            let mut order = RunOrder::open(&trees[at], &clock).unwrap().unwrap_or_default();
            order.take_over_from(&trees[1 - at], Path::new(""), &clock).unwrap();
            let is_believed = order.check(&list(told), "cfn", &clock).is_ok();
            order.keep(&trees[at], &clock).unwrap();
            // Behind a boot, so that a pause counts.
            for tree in &trees {
                let Some(mut kept) = tree.read_json::<KeptOrder>(Path::new(STATE)).unwrap() else { continue };
                kept.boot = "another".to_owned();
                tree.write_json(Path::new(STATE), &kept, Attributes::mode(0o600)).unwrap();
            }
            is_believed
        };
        let (lagging, current) = (&[("b", 10)][..], &[("b", 20)][..]);
        assert!(told(0, current) && told(1, current));
        for ends in [current, &[], &[("c", 1)]] {
            for at in [0, 1, 0, 0, 1, 1] {
                assert!(!told(at, lagging) && told(1 - at, ends), "{at}");
            }
        }
        // Where nobody ends it, the time goes on whoever asks.
        assert!(!told(0, lagging) && !told(1, lagging) && !told(0, lagging) && told(1, lagging));
        assert!(told(0, lagging));
    }

    #[test]
    fn no_more_is_remembered_than_two_lists_may_have() {
        let clock = Clock::manual(Timestamp(100_000));
        let mut order = RunOrder::default();
        for round in 0..4 {
            let names: Vec<_> = (0..DEPLOYMENTS).map(|n| format!("{round}-{n}")).collect();
            let entries: Vec<_> = names.iter().map(|name| (name.as_str(), 10 + round)).collect();
            order.check(&list(&entries), "cfn", &clock).unwrap();
            assert!(order.runs.len() <= 2 * DEPLOYMENTS);
        }
        assert!(
            order.check(&list(&[("3-0", 1)]), "cfn", &clock).is_err() && order.check(&list(&[("0-0", 1)]), "cfn", &clock).is_ok()
        );
        // Nor by lists that are refused, each with other names.
        order.check(&list(&[("x", 20)]), "cfn", &clock).unwrap();
        for round in 4..8 {
            let names: Vec<_> = (1..DEPLOYMENTS).map(|n| format!("{round}-{n}")).collect();
            let entries: Vec<_> = names.iter().map(|name| (name.as_str(), 30 + round)).chain([("x", 10)]).collect();
            assert!(order.check(&list(&entries), "cfn", &clock).is_err());
            assert!(order.runs.len() <= 2 * DEPLOYMENTS && order.doubts.len() == 1);
        }
    }
}
