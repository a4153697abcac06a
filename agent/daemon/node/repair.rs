//! A repair that the operator ordered: what differs is put back now and once, whatever DRIFT says, and whoever fights for it.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::drift::{self, Cause, DriftRecord};
use super::in_place::spec_of;
use crate::clock::{Clock, Stopwatch};
use crate::converge;
use crate::deploy::{AppliedExtent, GENERATION, Generation, Generations};
use crate::desired::Desired;
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::keepers::certificates;
use crate::kubernetes;
use crate::machine::facts;
use crate::systemd::Systemd;

/// What differs from a node's parameters, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Differences {
    /// What a repair puts back.
    pub(crate) put_back: Vec<String>,
    /// Somebody else's, which is left alone.
    pub(crate) left: Vec<String>,
}

impl Differences {
    fn of(causes: &[Cause]) -> Self {
        let (left, put_back): (Vec<&Cause>, Vec<&Cause>) = causes.iter().partition(|cause| cause.is_foreign());
        let texts = |causes: Vec<&Cause>| causes.into_iter().map(|cause| cause.text.clone()).collect();
        Self { put_back: texts(put_back), left: texts(left) }
    }
}

/// How long a node may be impossible to look at, e.g. while a disk is busy or units are starting, before an order is answered by that.
const PATIENCE: Duration = Duration::from_secs(30);
/// The interval at which it is looked at meanwhile.
const INTERVAL: Duration = Duration::from_secs(2);

/// The repair that is carried out by the next look that sees the node.
#[derive(Debug, Default)]
pub(super) struct OrderedRepair(RefCell<Option<RepairRun>>);

#[derive(Debug)]
struct RepairRun {
    since: Stopwatch,
    /// A look has begun since it was ordered; what an earlier one finds answers nobody.
    is_begun: bool,
    found: Option<Differences>,
    failure: Option<Error>,
}

impl OrderedRepair {
    /// Whether that is a new order: one that nobody has answered yet stays the same.
    pub(super) fn order(&self, clock: &Clock) -> bool {
        let is_new = !self.is_ordered();
        self.0.borrow_mut().get_or_insert_with(|| RepairRun {
            since: clock.start(),
            is_begun: false,
            found: None,
            failure: None,
        });
        is_new
    }

    /// A look begins: what one found that was broken off is not what this one finds.
    pub(super) fn begins(&self) {
        if let Some(run) = &mut *self.0.borrow_mut() {
            (run.is_begun, run.found, run.failure) = (true, None, None);
        }
    }

    /// How soon the node is looked at (again) for it.
    pub(super) fn interval(&self) -> Option<Duration> {
        self.is_ordered().then_some(INTERVAL)
    }

    pub(super) fn is_ordered(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// Whether the look that is under way carries it out.
    pub(super) fn is_begun(&self) -> bool {
        self.0.borrow().as_ref().is_some_and(|run| run.is_begun)
    }

    /// Nobody waits for it any more.
    pub(super) fn cancel(&self) {
        *self.0.borrow_mut() = None;
    }

    /// This is found.
    pub(super) fn finds(&self, causes: &[Cause]) {
        if let Some(run) = self.0.borrow_mut().as_mut().filter(|run| run.is_begun) {
            run.found = Some(Differences::of(causes));
        }
    }

    /// Putting it back failed.
    pub(super) fn fails(&self, error: Error) {
        if let Some(run) = self.0.borrow_mut().as_mut().filter(|run| run.is_begun) {
            run.failure = Some(error);
        }
    }

    /// What became of it, now that a look has ended; nothing where none was ordered, or the node could not be seen and is looked at again.
    pub(super) fn ends(&self, inspection: Option<&Error>) -> Option<Result<Vec<String>>> {
        let mut ordered = self.0.borrow_mut();
        let run = ordered.take()?;
        if !run.is_begun || (run.found.is_none() && run.since.elapsed() < PATIENCE) {
            *ordered = Some(run);
            return None;
        }
        let Some(found) = run.found else {
            if let Some(error) = inspection {
                return Some(Err(Error::permanent(error.to_string()).context("inspecting the node")));
            }
            let cause = "units of the node are still starting, or something else is wrong with it, so it cannot be compared";
            return Some(Err(Error::permanent(cause).remedy("`heat-node-agent explain` shows what it is waiting for")));
        };
        Some(match run.failure {
            Some(error) => Err(error.context("repairing the node")),
            None => Ok(lines(&found)),
        })
    }
}

fn lines(found: &Differences) -> Vec<String> {
    let put_back = found.put_back.iter().map(|text| format!("put back: {text}"));
    let left = found.left.iter().map(|text| format!("left alone: {text}"));
    let lines: Vec<String> = put_back.chain(left).collect();
    if lines.is_empty() { vec!["nothing differs from the node's parameters".to_owned()] } else { lines }
}

/// What the node in place was asked to be, from the state as it is on disk.
///
/// # Errors
/// If no node is in place, or this version cannot read what it was asked.
pub(crate) fn in_place(state: &Tree, root: &Tree) -> Result<(Desired, AppliedExtent)> {
    let no_node = || Error::refused("no node is in place on this machine").remedy("`heat-node-agent explain` shows why");
    let reference = Generations::inspect(state).as_ref().and_then(Generation::reference).ok_or_else(no_node)?;
    if reference.extent == AppliedExtent::Nothing {
        return Err(no_node());
    }
    Ok((kubernetes::render(&spec_of(&reference.entry)?, &facts::of_machine(root))?, reference.extent))
}

/// All that the node was asked to be that may be on the machine: by the newest generation, however far it came, unless it was rolled
/// back, and by the one before it until the newest is in place. Nothing where there is no generation.
///
/// # Errors
/// If this version cannot read what was asked.
pub(crate) fn asked(state: &Tree, root: &Tree) -> Result<Vec<Desired>> {
    let Some(generation) = state.read_json::<Generation>(Path::new(GENERATION))? else { return Ok(Vec::new()) };
    let facts = facts::of_machine(root);
    let read = |entry: &Arc<Value>| Ok(kubernetes::render(&spec_of(entry)?, &facts)?);
    generation.present_entries().into_iter().map(read).collect()
}

/// The units of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeUnits {
    /// Those that it runs, and those that apply its files.
    pub(crate) all: Vec<String>,
    /// The one of them that containers run by.
    pub(crate) runtime: Option<&'static str>,
}

/// What the node has: by the generation in place, else by the newest deployment, however far that came; nothing where there is none that this version understands.
pub(crate) fn units(state: &Tree, root: &Tree) -> NodeUnits {
    let asked = || {
        let newest = Generations::inspect(state)?;
        let entry = newest.reference().map_or(newest.entry, |reference| reference.entry);
        let spec = spec_of(&entry).ok()?;
        let desired = kubernetes::render(&spec, &facts::of_machine(root)).ok()?;
        let all: Vec<String> = desired.units.into_iter().filter(|unit| !unit.is_start_blocked()).map(|unit| unit.name).collect();
        let runtime = Some(kubernetes::runtime_unit(&spec)).filter(|unit| all.iter().any(|one| one == unit));
        Some(NodeUnits { all, runtime })
    };
    asked().unwrap_or_default()
}

/// What a repair would find; nothing is changed, and no daemon is asked.
pub(crate) async fn preview(state: &Tree) -> Result<Differences> {
    let root = Tree::open(Path::new("/"))?;
    let (desired, extent) = in_place(state, &root)?;
    if extent == AppliedExtent::Part {
        return Err(Error::refused("the node's last update failed on the way, and a repair would carry it out")
            .remedy("try the update again: heat-node-agent rerun ID (`heat-node-agent status` lists the ids)"));
    }
    let systemd = Systemd::connect().await?;
    let mut observed = converge::observe(&desired, &root, &systemd).await?;
    if !desired.trusted_paths().is_empty() {
        let inspection = certificates::inspect(&root, &desired, Clock::system().now())?;
        observed.certificates = inspection.to_put_back(&desired).map(certificates::Drift::step).collect();
    }
    let mut found = drift::causes(&converge::plan(&desired, &observed), &observed);
    found.extend(DriftRecord::inspect(state).compare(drift::beside(&desired, &root)?).0);
    Ok(Differences::of(&found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    #[test]
    fn an_order_is_answered_by_what_was_put_back_what_was_left_or_why_it_failed() {
        let (repair, clock) = (OrderedRepair::default(), Clock::manual(Timestamp(0)));
        let ours = Cause::of_volume("runtime", "/etc/x differs".to_owned());
        let theirs = Cause::of_systemd("etcd", "etcd fails to start".to_owned());
        repair.finds(std::slice::from_ref(&ours));
        assert!(!repair.is_ordered() && repair.ends(None).is_none(), "nobody asked");
        let after = |action: &dyn Fn()| {
            assert!(repair.order(&clock) && repair.interval().is_some());
            repair.begins();
            action();
            repair.ends(None).unwrap()
        };
        assert_eq!(after(&|| repair.finds(&[])).unwrap(), ["nothing differs from the node's parameters"]);
        let both = after(&|| repair.finds(&[theirs.clone(), ours.clone()])).unwrap();
        assert_eq!(both, ["put back: /etc/x differs", "left alone: etcd fails to start"]);
        let failed = after(&|| {
            repair.finds(std::slice::from_ref(&ours));
            repair.fails(Error::permanent("no room"));
        });
        assert!(failed.unwrap_err().to_string().contains("no room"));
        assert!(!repair.is_ordered() && repair.interval().is_none());
    }

    /// CI: a disk was busy at the one look that the order had, and the node stayed as it was.
    #[test]
    fn an_order_outlasts_looks_that_do_not_see_the_node() {
        let busy = Error::transient("/dev/vdc is in use");
        for (why, last, answer) in [("nothing seen", None, "cannot be compared"), ("an error", Some(&busy), "/dev/vdc is in use")]
        {
            let (repair, clock) = (OrderedRepair::default(), Clock::manual(Timestamp(0)));
            assert!(repair.order(&clock), "{why}");
            repair.begins();
            assert!(repair.ends(Some(&busy)).is_none() && repair.ends(None).is_none(), "{why}");
            clock.advance(PATIENCE.saturating_sub(Duration::from_millis(1)));
            assert!(!repair.order(&clock), "{why}: it is the same order");
            assert!(repair.ends(last).is_none() && repair.is_ordered(), "{why}");
            clock.advance(Duration::from_millis(1));
            assert!(repair.ends(last).unwrap().unwrap_err().to_string().contains(answer), "{why}");
            assert!(!repair.is_ordered(), "{why}");
        }
        let (repair, clock) = (OrderedRepair::default(), Clock::manual(Timestamp(0)));
        assert!(repair.order(&clock) && repair.ends(Some(&busy)).is_none());
        // One that was under way when it was ordered.
        repair.finds(&[]);
        assert!(repair.ends(None).is_none() && !repair.is_begun(), "what it found is older than the order");
        repair.begins();
        repair.finds(&[]);
        repair.begins();
        assert!(repair.ends(None).is_none(), "what it found was broken off");
        repair.finds(&[]);
        assert_eq!(repair.ends(None).unwrap().unwrap(), ["nothing differs from the node's parameters"], "the next look saw it");
    }
}
