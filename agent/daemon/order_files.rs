//! Orders of the operator (`rerun`, `stop`, `forget`, `certificates rotate`, `repair`, `rollback`), as files in `requests/` of the state directory;
//! those to `stop` in that of the run directory, because what they end may have filled the disk, and runs no longer than the boot.
//!
//! A command writes an order and waits for its answer; whoever holds the state directory carries it out: the daemon, or
//! without one the command itself (not `repair` and `rollback`, which only the daemon can). An order is done once or not at all, wherever it is cut off: what is meant is written
//! into it before anything is changed (of a `stop`: where that can be written), each change can be made twice without harm, the last one says that it is done,
//! and orders come before anything else at a start.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::node::check_rollback;
use crate::budgets::json;
use crate::clock::Timestamp;
use crate::collect::Entries;
use crate::converge::pending_restarts;
use crate::deploy::{
    AppliedExtent, DeploymentRecord, DeploymentState, Ending, Generation, GenerationState, Journal, choose, hooks,
};
use crate::desired::Rotation;
use crate::error::{Error, ErrorKind, Result};
use crate::files::{Attributes, Tree};
use crate::keepers::certificates::{self, order_next_step};
use crate::programs::Programs;
use crate::report::text::{argument, escaped};
use crate::report::{Code, Event, Report};
use crate::signal::Outbox;
use crate::watch::AsyncWatch;

/// The directory, below the state directory and the run directory.
pub(crate) const DIRECTORY: &str = "requests";
/// Largest order, in bytes.
const LIMIT: u64 = 16 * 1024;
/// Orders that are looked at in one go.
const AT_ONCE: usize = 64;
/// Answers that nobody took, and orders that were quarantined, of which so many are kept: more than are given at a time.
const KEPT: usize = 2 * AT_ONCE;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// A deployment that ended is run once more.
    Rerun,
    /// A script or hook that runs is ended.
    Stop,
    /// A deployment's record goes, as if it had never been seen.
    Forget,
    /// The node goes one step on in a CA rotation.
    Rotate,
    /// What differs from the node's parameters is put back.
    Repair,
    /// The generation before is put back.
    Rollback,
}

impl Order {
    fn as_str(self) -> &'static str {
        match self {
            Self::Rerun => "rerun",
            Self::Stop => "stop",
            Self::Forget => "forget",
            Self::Rotate => "rotate",
            Self::Repair => "repair",
            Self::Rollback => "rollback",
        }
    }
}

/// An order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OrderFile {
    schema: u32,
    order: Order,
    /// As the operator wrote it, of a rollback the number of a generation; nothing where the order is about no deployment.
    deployment: String,
    /// The id that it meant, the step or the generation that it leads to, once that was looked up.
    #[serde(default)]
    resolved: Option<String>,
    /// When the record that it meant was made: one of another time was made after the order was carried out.
    #[serde(default)]
    seen: Option<Timestamp>,
}

impl OrderFile {
    pub(crate) fn new(order: Order, deployment: &str) -> Self {
        Self { schema: 1, order, deployment: deployment.to_owned(), resolved: None, seen: None }
    }

    /// The next step of a CA rotation, which is the one that is next now: two who order it at the same time mean the same.
    pub(crate) fn rotate(state: &Tree) -> Self {
        let next = certificates::CertificateRecord::inspect(state).next_step();
        Self { resolved: next.map(|step| step.as_str().to_owned()), ..Self::new(Order::Rotate, "") }
    }
}

/// What became of an order, for the operator.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OrderResult {
    /// Whether it was carried out.
    pub(crate) done: bool,
    /// What to print.
    pub(crate) lines: Vec<String>,
}

/// An order that was carried out or refused.
#[derive(Debug)]
pub(crate) struct Served {
    /// Whether the order lies below the run directory.
    in_run_dir: bool,
    path: PathBuf,
    answer: OrderResult,
    /// Id of the deployment that was changed.
    pub(crate) about: Option<String>,
    /// Whether the node has something to do now.
    pub(crate) node: bool,
}

/// Tells the commands that wait what became of their orders. Whoever hears it may ask for the status next: that is to
/// know of it by then.
pub(crate) fn deliver(state: &Tree, run_dir: Option<&Tree>, served: &[Served]) -> Result<()> {
    for Served { in_run_dir, path, answer, .. } in served {
        let tree = run_dir.filter(|_| *in_run_dir).unwrap_or(state);
        tree.write_json(&answer_to(path), answer, Attributes::mode(0o600))?;
        tree.remove(path)?;
    }
    Ok(())
}

/// Where the answer to an order is.
pub(crate) fn answer_to(request: &Path) -> PathBuf {
    request.with_extension("answer")
}

/// Makes the directory where it is not there.
pub(crate) fn make_directory(state: &Tree) -> Result<()> {
    state.create_dir(Path::new(DIRECTORY), Attributes::mode(0o700))
}

/// Watches the directories, of which it makes that of the state.
pub(super) fn watch(state: &Tree, run_dir: Option<&Tree>) -> Result<AsyncWatch> {
    make_directory(state)?;
    let watch = AsyncWatch::open();
    for tree in [Some(state), run_dir].into_iter().flatten() {
        watch.add(&tree.base().join(DIRECTORY));
    }
    Ok(watch)
}

/// Whether an order lies there that was not carried out yet.
pub(super) fn is_any_waiting(state: &Tree) -> bool {
    let names = state.list(Path::new(DIRECTORY)).unwrap_or_default();
    names.iter().any(|name| Path::new(name).extension().is_some_and(|end| end == "json"))
}

/// Everything that orders change. Only for who holds the lock of the state directory.
pub(crate) struct OrderContext<'a> {
    pub(crate) state: &'a Tree,
    pub(crate) run_dir: Option<&'a Tree>,
    /// A signal is on its way, or what became of one is not recorded: only what has no result yet can be changed.
    pub(crate) is_sending: bool,
    pub(crate) root: &'a Tree,
    pub(crate) journal: &'a mut Journal,
    pub(crate) outbox: &'a Outbox,
    pub(crate) programs: &'a Programs,
    pub(crate) report: &'a Report,
    /// What the metadata lists; `None`: there is no list.
    pub(crate) listed: Option<&'a Entries>,
    /// `None`: the daemon is down, and a command carries its order out itself.
    pub(crate) daemon: Option<NodeState>,
    pub(crate) repairs: &'a mut Repairs,
    pub(crate) rollbacks: &'a mut Rollbacks,
    /// The newest generation of the node.
    pub(crate) generation: Option<&'a Generation>,
}

/// Between orders to repair the node and the node's task, which does it: an order lies until that has answered. One that is cut off is
/// begun anew, which finds less to do.
#[derive(Debug, Default)]
pub(crate) struct Repairs {
    /// An order waits for a repair that is to be asked for.
    pub(crate) wanted: bool,
    /// There is an order that is not answered yet, whether or not it is its time. What became of a repair that nobody waits for is no answer to
    /// the next order.
    pub(crate) awaited: bool,
    /// What became of the last repair, until an order takes it.
    pub(crate) outcome: Option<Result<Vec<String>>>,
}

/// The same between orders to roll back and the node's task.
#[derive(Debug, Default)]
pub(crate) struct Rollbacks {
    /// An order was taken: the generation before is to be put back.
    pub(crate) wanted: bool,
    /// What became of the last rollback, until an order takes it.
    pub(crate) outcome: Option<Result<Vec<String>>>,
}

impl Rollbacks {
    /// What is said of one that has succeeded.
    pub(crate) fn done(number: u64) -> Vec<String> {
        vec![
            format!("generation {number} is in place again, and healthy"),
            "it stays until Heat sends a new deployment, or `heat-node-agent rerun ID` applies the newest one again".to_owned(),
        ]
    }
}

/// What the daemon is doing with the node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeState {
    /// It is being worked on: what is remembered of its certificates is then in other hands.
    pub(crate) is_busy: bool,
    /// The result of its deployment is not recorded yet.
    pub(crate) is_unrecorded: bool,
    /// Nothing of it waits for another deployment: it has all of a generation, or is being changed.
    pub(crate) is_in_place: bool,
    /// How much of its generation the node has; nothing while it is being changed, and before there is one.
    pub(crate) extent: Option<AppliedExtent>,
}

impl OrderContext<'_> {
    /// Carries out what lies there, oldest first; what became of it is reported by [`deliver`].
    ///
    /// # Errors
    /// If something cannot be read or written; the order stays and is taken up again.
    pub(crate) fn serve(&mut self, served: &mut Vec<Served>) -> Result<()> {
        self.repairs.awaited = false;
        let in_run_dir = self.run_dir.map_or(Ok(()), |run_dir| self.serve_in(run_dir, true, served));
        let in_state = self.serve_in(self.state, false, served);
        if !self.repairs.awaited {
            self.repairs.outcome = None;
        }
        in_run_dir.and(in_state)
    }

    fn serve_in(&mut self, tree: &Tree, in_run_dir: bool, served: &mut Vec<Served>) -> Result<()> {
        let names = tree.list(Path::new(DIRECTORY))?;
        let paths: Vec<PathBuf> = names.iter().map(|name| Path::new(DIRECTORY).join(name)).collect();
        let is = |path: &&PathBuf, end: &str| path.extension().is_some_and(|extension| extension == end);
        let done = |path: &&PathBuf| is(path, "answer") || is(path, "unreadable");
        // What begins with a dot is on its way to being written.
        let hidden = |path: &&PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        for path in paths.iter().filter(|path| !hidden(path) && !done(path)).take(AT_ONCE) {
            match Self::read(tree, path) {
                Ok(Some(request)) if self.waits(request.order) || self.awaits_repair(request.order) => {
                    self.repairs.awaited |= request.order == Order::Repair;
                }
                Ok(Some(request)) if request.order == Order::Rollback && self.begins_rollback(tree, path, &request)? => {}
                Ok(Some(request)) => served.push(Served { in_run_dir, ..self.answer(tree, path, request)? }),
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::Permanent => {
                    self.report
                        .emit(Event::new(Code::RequestUnreadable, format!("{} was quarantined", path.display())).error(&error));
                    tree.rename(path, &path.with_extension("unreadable"))?;
                }
                Err(error) => return Err(error),
            }
        }
        // Each kind by itself: what was quarantined does not push an answer out that somebody waits for.
        for end in ["answer", "unreadable"] {
            let old: Vec<_> = paths.iter().filter(|path| is(path, end)).collect();
            let gone = old.len().saturating_sub(KEPT);
            for path in old.iter().take(gone) {
                tree.remove_dir_all(path)?;
            }
            if gone > 0 && end == "unreadable" {
                let place = tree.base().join(DIRECTORY);
                let line = format!("{gone} old orders that could not be read were removed from {}", place.display());
                self.report.emit(Event::new(Code::LeftoversRemoved, line).cause(format!("the newest {KEPT} are kept")));
            }
        }
        Ok(())
    }

    /// Whether it is not yet the time for an order.
    fn waits(&self, order: Order) -> bool {
        if order == Order::Rollback && self.daemon.is_some_and(|node| node.is_busy || node.is_unrecorded) {
            // Whoever gives it while an update is being applied means the one before: taken afterwards it would undo that update.
            return self.generation.is_none_or(|one| one.state != GenerationState::Applying);
        }
        // One that would be refused is refused while whoever gives it still sees why.
        let can_wait = order == Order::Repair || order == Order::Rotate && pending_restarts(self.root).is_empty();
        let is_busy = can_wait && self.daemon.is_some_and(|node| node.is_busy);
        is_busy || (self.is_sending && order != Order::Stop)
    }

    /// Whether this is an order to repair that nobody has carried out yet: that is asked for.
    fn awaits_repair(&mut self, order: Order) -> bool {
        let awaits = order == Order::Repair && self.repairs.outcome.is_none() && self.refuse_repair().is_ok();
        self.repairs.wanted |= awaits;
        awaits
    }

    /// Whether a rollback is to be carried out for this order, or is being carried out: that it was taken, and where it leads, is in the
    /// order first.
    fn begins_rollback(&mut self, tree: &Tree, path: &Path, request: &OrderFile) -> Result<bool> {
        if self.daemon.is_none() {
            // One that was taken is gone on with by the next daemon.
            return Ok(request.resolved.is_some());
        }
        if self.rollbacks.outcome.is_some() {
            return Ok(false);
        }
        if self.rollbacks.wanted || self.generation.is_some_and(|one| one.state == GenerationState::Restoring) {
            return Ok(true);
        }
        if request.resolved.as_deref().is_some_and(|number| self.has_put_back(number)) {
            return Ok(false);
        }
        let Ok(number) = self.check_rollback(request) else { return Ok(false) };
        let taken = OrderFile { resolved: Some(number.to_string()), ..OrderFile::new(Order::Rollback, &request.deployment) };
        tree.write_json(path, &taken, Attributes::mode(0o600))?;
        self.rollbacks.wanted = true;
        Ok(true)
    }

    /// Whether the node is back at this generation by an order.
    fn has_put_back(&self, number: &str) -> bool {
        let back = self.generation.filter(|current| current.state == GenerationState::Rejected).and_then(|one| one.back);
        back.is_some_and(|back| back.by_hand && back.to.to_string() == number)
    }

    fn check_rollback(&self, request: &OrderFile) -> Result<u64> {
        let asked = match request.deployment.as_str() {
            "" => None,
            text => Some(text.parse().map_err(|_| Error::refused(format!("{text:?} is no number of a generation")))?),
        };
        check_rollback(self.state, self.root, self.generation, asked)
    }

    fn rollback(&mut self, request: &OrderFile) -> Result<Vec<String>> {
        if self.daemon.is_none() {
            return Err(Error::refused("the daemon is down, and it alone rolls the node back")
                .remedy("start it: systemctl start heat-node-agent; `heat-node-agent rollback --dry-run` works without it"));
        }
        if let Some(outcome) = self.rollbacks.outcome.take() {
            return outcome;
        }
        if let Some(number) = request.resolved.as_deref().filter(|number| self.has_put_back(number)) {
            return Ok(Rollbacks::done(number.parse().unwrap_or_default()));
        }
        self.check_rollback(request)?;
        Err(Error::transient("the node has not been rolled back yet"))
    }

    /// Only a node that has all that was asked is put back: else that would carry out an update that failed.
    fn refuse_repair(&self) -> Result<()> {
        let (why, remedy) = match self.daemon.map(|node| node.extent) {
            None => (
                "the daemon is down, and it alone repairs the node",
                "start it: systemctl start heat-node-agent; `heat-node-agent repair --dry-run` works without it",
            ),
            Some(Some(AppliedExtent::Whole)) => return Ok(()),
            Some(Some(AppliedExtent::Part)) => (
                "the node's last update failed on the way, and a repair would carry it out",
                "try the update again: heat-node-agent rerun ID (`heat-node-agent status` lists the ids)",
            ),
            Some(Some(AppliedExtent::Nothing) | None) => {
                ("no node is in place on this machine", "`heat-node-agent explain` shows what the node is waiting for")
            }
        };
        Err(Error::refused(why).remedy(remedy))
    }

    fn repair(&mut self) -> Result<Vec<String>> {
        let outcome = self.repairs.outcome.take();
        self.refuse_repair()?;
        outcome.unwrap_or_else(|| Err(Error::transient("the node has not been repaired yet")))
    }

    fn read(tree: &Tree, path: &Path) -> Result<Option<OrderFile>> {
        if path.extension().is_none_or(|end| end != "json") {
            return Err(Error::permanent("its name does not end in .json").context(format!("reading {}", path.display())));
        }
        let Some(bytes) = tree.read(path, LIMIT)? else { return Ok(None) };
        let request: OrderFile =
            json::typed(&bytes).map_err(|rejection| Error::from(rejection).context(format!("reading {}", path.display())))?;
        if request.schema != 1 {
            return Err(
                Error::permanent(format!("schema {} is not 1", request.schema)).context(format!("reading {}", path.display()))
            );
        }
        Ok(Some(request))
    }

    fn answer(&mut self, tree: &Tree, path: &Path, mut request: OrderFile) -> Result<Served> {
        let rotates = request.order == Order::Rotate;
        let done = match request.order {
            Order::Rotate => self.rotate(tree, path, &mut request).map(|lines| (None, lines)),
            Order::Repair => self.repair().map(|lines| (None, lines)),
            Order::Rollback => self.rollback(&request).map(|lines| (None, lines)),
            _ => self.carry_out(tree, path, &mut request).map(|(id, lines)| (Some(id), lines)),
        };
        match done {
            Ok((about, lines)) => {
                let answer = OrderResult { done: true, lines: tidy(&lines) };
                Ok(Served { in_run_dir: false, path: path.to_owned(), answer, about, node: rotates })
            }
            Err(error) if error.kind() == ErrorKind::Transient => Err(error),
            Err(error) => {
                let about = match request.order {
                    Order::Rotate => "the CA",
                    Order::Repair | Order::Rollback => "the node",
                    _ => &request.deployment,
                };
                let line = format!("the request to {} {about} was refused", request.order.as_str());
                // A repair that failed was begun, and what failed was reported where it happened.
                if !matches!(request.order, Order::Repair | Order::Rollback) || error.kind() == ErrorKind::Refused {
                    self.report.emit(Event::new(Code::RequestRefused, line).error(&error));
                }
                let answer = OrderResult { done: false, lines: tidy(&error.lines()) };
                Ok(Served { in_run_dir: false, path: path.to_owned(), answer, about: None, node: false })
            }
        }
    }

    /// Which step is meant is written into the order first: where that is no longer the next one, it was taken.
    fn rotate(&mut self, tree: &Tree, path: &Path, request: &mut OrderFile) -> Result<Vec<String>> {
        let next = certificates::CertificateRecord::inspect(self.state).next_step();
        let meant = request.resolved.as_deref().and_then(Rotation::from_word);
        let (verb, step) = if let Some(taken) = meant.filter(|step| next != Some(*step)) {
            ("requested on this node before", taken)
        } else {
            // Cut off, the step before may not have reached them yet.
            if let Some(unit) = pending_restarts(self.root).pop_first() {
                let cause = format!("{unit} is still to be restarted with the files of the step before");
                return Err(Error::refused(cause)
                    .rule("a step of a CA rotation is taken once the one before is complete")
                    .remedy(match self.daemon {
                        Some(node) if !node.is_in_place => {
                            "the node's last deployment failed and left it so: `heat-node-agent rerun ID` (`heat-node-agent explain` names it) \
                             or an update of the stack restarts it; then try again"
                        }
                        _ => "try again when the agent has restarted it: `heat-node-agent certificates` lists it until then",
                    }));
            }
            request.resolved = next.map(|step| step.as_str().to_owned());
            tree.write_json(path, request, Attributes::mode(0o600))?;
            let step = order_next_step(self.state)?;
            let line = format!("the CA rotation step {} was requested on this node", step.as_str());
            self.report.emit(Event::new(Code::RotationOrdered, line));
            ("requested on this node", step)
        };
        let what = match step {
            Rotation::TrustBoth => "both CAs are trusted; pods that use the API are to be restarted before the next step",
            Rotation::Switch => "its certificates are signed by the new CA; both are trusted",
            Rotation::DropOld => "the old CA is no longer trusted",
        };
        let when = match self.daemon {
            Some(node) if !node.is_in_place => {
                "it will be taken with the node's next deployment, because the last one failed (`heat-node-agent explain`; `heat-node-agent rerun ID`)"
            }
            Some(_) => "it is being taken now; `heat-node-agent certificates` shows when it is done",
            None => "the daemon is down: it will be taken when the daemon starts (systemctl start heat-node-agent)",
        };
        Ok(vec![format!("{verb}: {} ({what})", step.as_str()), when.to_owned()])
    }

    fn carry_out(&mut self, tree: &Tree, path: &Path, request: &mut OrderFile) -> Result<(String, Vec<String>)> {
        let id = if let Some(id) = &request.resolved {
            id.clone()
        } else {
            let chosen = choose(&self.journal.all(), &request.deployment)?;
            let id = chosen.id.clone();
            (request.resolved, request.seen) = (Some(id.clone()), Some(chosen.seen));
            let noted = tree.write_json(path, request, Attributes::mode(0o600));
            // What is stopped twice is found ended: that need not wait for room.
            noted.or_else(|error| if request.order == Order::Stop { Ok(()) } else { Err(error) })?;
            id
        };
        let meant =
            |record: &&DeploymentRecord| request.order == Order::Rerun || request.seen.is_none_or(|seen| seen == record.seen);
        let Some(record) = self.journal.get(&id).filter(meant).cloned() else {
            return if request.order == Order::Forget {
                Ok((id.clone(), vec![format!("deployment {id} is forgotten")]))
            } else {
                Err(Error::permanent(format!("deployment {id} is no longer recorded")))
            };
        };
        let lines = match request.order {
            Order::Forget => self.forget(&record)?,
            Order::Stop => self.stop(&record)?,
            Order::Rerun | Order::Rotate | Order::Repair | Order::Rollback => self.rerun(path, &record)?,
        };
        Ok((id, lines))
    }

    fn rerun(&mut self, path: &Path, record: &DeploymentRecord) -> Result<Vec<String>> {
        let order = path.to_string_lossy();
        let DeploymentRecord { id, name, group, .. } = record;
        if record.order.as_deref() != Some(&*order) {
            self.refuse_running(record)?;
            if record.state == DeploymentState::Seen {
                return Err(Error::refused(format!("deployment {name} ({id}) has not run yet: it waits for its turn"))
                    .remedy("`heat-node-agent explain` shows what it is waiting for"));
            }
            if self.is_unlisted(id) {
                return Err(Error::refused(format!("deployment {name} ({id}) is no longer in the metadata"))
                    .rule("only a deployment in the metadata can be run")
                    .remedy("update the stack to have Heat deploy it again"));
            }
            self.outbox.discard_for(id)?;
            self.programs.forget(&record.job())?;
            self.journal.rerun(id, &order)?;
            let message = format!("deployment {name} ({group}) is run again at the operator's request");
            self.report.emit(Event::new(Code::DeploymentRerun, message).deployment(id, name));
        }
        let mut lines = vec![format!("deployment {name} ({id}, {group}) is run again"), self.when()];
        lines.push("Heat accepts its new result only while the resource is still waiting for one (IN_PROGRESS)".to_owned());
        Ok(lines)
    }

    /// Records that it is to be ended; whoever holds the lock does so next ([`Ending`]).
    fn stop(&mut self, record: &DeploymentRecord) -> Result<Vec<String>> {
        let DeploymentRecord { id, name, group, state, .. } = record;
        if record.ending.is_none() {
            let refusal = match state {
                DeploymentState::Seen => {
                    Some(("has not started: there is nothing to stop", "update the stack to have it replaced"))
                }
                DeploymentState::Finished | DeploymentState::Signalled => {
                    Some(("has already ended", "`heat-node-agent logs` shows its output"))
                }
                DeploymentState::Running if !record.is_job() => {
                    Some(("configures the node and cannot be stopped", "update the stack: a newer deployment replaces it"))
                }
                DeploymentState::Running => None,
            };
            if let Some((why, remedy)) = refusal {
                return Err(Error::refused(format!("deployment {name} ({id}) {why}")).remedy(remedy));
            }
            self.journal.end_early(id, Ending::Stopped, self.report);
            let message = format!("deployment {name} ({group}) is being stopped at the operator's request");
            self.report.emit(Event::new(Code::DeploymentStopping, message).deployment(id, name));
        }
        if let Some(Ending::Replaced(why)) = &record.ending {
            return Ok(vec![
                format!("deployment {name} ({id}, {group}) has already ended: {why}"),
                "nothing is reported to Heat".to_owned(),
            ]);
        }
        let mut lines = vec![
            format!("deployment {name} ({id}, {group}) is stopped: every process of its unit is killed"),
            "Heat receives FAILURE, \"stopped by the operator\", if it is still waiting".to_owned(),
        ];
        if self.daemon.is_none() {
            lines.push(
                "the daemon is down: this is reported to Heat when the daemon starts (systemctl start heat-node-agent)"
                    .to_owned(),
            );
        }
        Ok(lines)
    }

    fn forget(&mut self, record: &DeploymentRecord) -> Result<Vec<String>> {
        let DeploymentRecord { id, name, .. } = record;
        self.refuse_running(record)?;
        self.outbox.discard_for(id)?;
        self.programs.forget(&record.job())?;
        hooks::script::forget(self.root, std::slice::from_ref(id)).1?;
        self.journal.forget(id)?;
        let message = format!("deployment {name} was forgotten at the operator's request");
        self.report.emit(Event::new(Code::DeploymentForgotten, message).deployment(id, name));
        let listed = if self.is_unlisted(id) {
            "the metadata does not list it: it is gone permanently".to_owned()
        } else {
            format!("if the metadata lists it, it runs as a new one; {}", self.when())
        };
        Ok(vec![format!("deployment {name} ({id}) is forgotten"), listed])
    }

    fn is_unlisted(&self, id: &str) -> bool {
        self.listed.is_some_and(|list| !list.lists(id))
    }

    fn refuse_running(&self, record: &DeploymentRecord) -> Result<()> {
        if record.state == DeploymentState::Running || self.programs.is_locked(&record.job())? {
            let DeploymentRecord { id, name, .. } = record;
            // Only scripts and hooks can be stopped.
            let way = if record.is_job() {
                format!("stop it: heat-node-agent stop {}", argument(id))
            } else {
                "update the stack: a newer deployment of the node takes its place".to_owned()
            };
            return Err(Error::refused(format!("deployment {name} ({id}) is running now"))
                .rule("a deployment never runs twice at the same time")
                .remedy(format!("wait for it to end: heat-node-agent status --wait; or {way}")));
        }
        Ok(())
    }

    fn when(&self) -> String {
        if self.daemon.is_some() {
            "it starts when those before it have ended; `heat-node-agent status --wait` waits for it".to_owned()
        } else {
            "the daemon is down: it starts when the daemon does (systemctl start heat-node-agent)".to_owned()
        }
    }
}

/// For a terminal: names of deployments are from outside.
fn tidy(lines: &[String]) -> Vec<String> {
    lines.iter().map(|line| escaped(line)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::clock::Clock;
    use crate::deploy::{DeploymentOutcome, Generations};
    use crate::http::{Http, Tls};
    use crate::metadata::Deployment;
    use crate::openstack::keystone::Keystone;
    use crate::signal::{Destination, QueuedSignal, Sender, SignalSubject};

    /// A state directory as a daemon leaves it, reopened for every order as after a crash.
    struct StateDirectory {
        dir: tempfile::TempDir,
        report: Report,
        now: std::cell::Cell<u64>,
        busy: std::cell::Cell<bool>,
        extent: std::cell::Cell<Option<AppliedExtent>>,
        repairs: std::cell::RefCell<Repairs>,
        rollbacks: std::cell::RefCell<Rollbacks>,
        generation: std::cell::RefCell<Option<Generation>>,
        sending: std::cell::Cell<bool>,
        down: std::cell::Cell<bool>,
    }

    struct Opened {
        state: Arc<Tree>,
        run_dir: Tree,
        root: Arc<Tree>,
        journal: Journal,
        outbox: Outbox,
        programs: Programs,
    }

    impl StateDirectory {
        fn new() -> Self {
            let (dir, report) = (tempfile::tempdir().unwrap(), Report::kept());
            let (extent, repairs) = (Some(AppliedExtent::Whole).into(), std::cell::RefCell::default());
            let place = Self {
                dir,
                report,
                now: 1000.into(),
                busy: false.into(),
                extent,
                repairs,
                rollbacks: std::cell::RefCell::default(),
                generation: std::cell::RefCell::default(),
                sending: false.into(),
                down: false.into(),
            };
            make_directory(&place.open().state).unwrap();
            place
        }

        fn open(&self) -> Opened {
            let clock = Clock::manual(Timestamp(self.now.get()));
            let root = Arc::new(Tree::open(self.dir.path()).unwrap());
            let state = Arc::new(Tree::open_or_create(&self.dir.path().join("state"), 0o700).unwrap());
            let http = Http::new(Tls::default(), Arc::clone(&root), clock.clone());
            let sender = Sender::new(http, Keystone::new(clock.clone()), clock.clone());
            Opened {
                journal: Journal::open(
                    Arc::clone(&state),
                    Some(&self.dir.path().join("deployed")),
                    9,
                    clock.clone(),
                    &self.report,
                )
                .unwrap(),
                outbox: Outbox::open(Arc::clone(&state), sender, clock.clone(), self.report.clone()).unwrap(),
                programs: Programs::new(Arc::clone(&state), None, clock).unwrap(),
                run_dir: Tree::open_or_create(&self.dir.path().join("run"), 0o755).unwrap(),
                state,
                root,
            }
        }

        fn order(&self, name: &str, order: &Value) {
            let path = Path::new(DIRECTORY).join(name);
            self.open().state.write_json(&path, order, Attributes::mode(0o600)).unwrap();
        }

        fn serve(&self, listed: Option<bool>) -> Vec<String> {
            self.try_serve(listed).unwrap()
        }

        fn try_serve(&self, listed: Option<bool>) -> Result<Vec<String>> {
            let mut opened = self.open();
            let ids = opened.journal.all().into_iter().map(|record| json!({"id": record.id})).filter(|_| listed == Some(true));
            let listed = listed.map(|_| Entries::new(ids.collect()).unwrap());
            let generation = self.generation.borrow();
            let mut context = OrderContext {
                state: &opened.state,
                run_dir: Some(&opened.run_dir),
                is_sending: self.sending.get(),
                root: &opened.root,
                journal: &mut opened.journal,
                outbox: &opened.outbox,
                programs: &opened.programs,
                report: &self.report,
                listed: listed.as_ref(),
                daemon: (!self.down.get()).then(|| NodeState {
                    is_busy: self.busy.get(),
                    is_unrecorded: false,
                    is_in_place: true,
                    extent: self.extent.get(),
                }),
                repairs: &mut self.repairs.borrow_mut(),
                rollbacks: &mut self.rollbacks.borrow_mut(),
                generation: generation.as_ref(),
            };
            let mut served = Vec::new();
            context.serve(&mut served)?;
            // Who hears of it looks at the status next: nobody does before that says so.
            for one in &served {
                let tree = if one.in_run_dir { &opened.run_dir } else { &*opened.state };
                assert!(tree.read(&one.path, LIMIT).unwrap().is_some(), "{one:?}");
            }
            deliver(&opened.state, Some(&opened.run_dir), &served)?;
            Ok(served.into_iter().filter_map(|one| one.about).collect())
        }

        fn answer(&self, name: &str) -> Option<(bool, String)> {
            let answer: Option<OrderResult> = self.open().state.read_json(&answer_to(&Path::new(DIRECTORY).join(name))).unwrap();
            answer.map(|answer| (answer.done, answer.lines.join("; ")))
        }

        /// A deployment that ended, with a result that Heat does not have and output on the disk.
        fn ended(&self, id: &str) {
            let mut opened = self.open();
            let deployment =
                Deployment::parse(&json!({"id": id, "name": "setup", "group": "script", "config": "x"})).unwrap().unwrap();
            opened.journal.register(&deployment).unwrap();
            opened.journal.start(id, json!({})).unwrap();
            opened.journal.finish(id, DeploymentOutcome::refused("no")).unwrap();
            let job = opened.journal.get(id).unwrap().job();
            opened.programs.prepare(&job, &crate::programs::Job::default()).unwrap();
            let about = SignalSubject { id: id.into(), name: "setup".into(), resource: None, result: true };
            let destination = Destination::Url { url: "http://192.0.2.1/".into(), verb: "POST".into(), insecure: false };
            opened
                .outbox
                .put(QueuedSignal::new(format!("result {id}"), Some(about), destination, json!({}), Timestamp(1)))
                .unwrap();
        }

        fn state_of(&self, id: &str) -> Option<DeploymentState> {
            self.open().journal.get(id).map(|record| record.state)
        }
    }

    #[test]
    fn a_rerun_clears_what_the_earlier_run_left_and_is_done_once() {
        let place = StateDirectory::new();
        place.ended("a1");
        place.order("1.json", &json!({"schema": 1, "order": "rerun", "deployment": "setup"}));
        assert_eq!(place.serve(Some(true)), ["a1"]);
        let (done, text) = place.answer("1.json").unwrap();
        assert!(done && text.contains("setup (a1, script) is run again"), "{text}");
        let mut opened = place.open();
        assert_eq!(opened.journal.get("a1").unwrap().state, DeploymentState::Seen);
        assert!(opened.outbox.waiting().is_empty());
        assert!(!opened.programs.directory(&opened.journal.get("a1").unwrap().job()).exists());
        assert!(opened.state.list(Path::new(DIRECTORY)).unwrap().iter().all(|name| name != "1.json"));
        // Cut off before the order was removed, and the new run has ended since: it is not run a third time.
        opened.journal.finish("a1", DeploymentOutcome::default()).unwrap();
        place.order("1.json", &json!({"schema": 1, "order": "rerun", "deployment": "setup", "resolved": "a1"}));
        place.serve(Some(true));
        assert_eq!(place.state_of("a1"), Some(DeploymentState::Finished));
        assert!(place.answer("1.json").unwrap().0);
    }

    #[test]
    fn what_is_forgotten_is_gone_and_a_second_look_at_the_order_finds_it_done() {
        let place = StateDirectory::new();
        place.ended("a1");
        for _ in 0..2 {
            place.order("1.json", &json!({"schema": 1, "order": "forget", "deployment": "a", "resolved": "a1"}));
            place.serve(Some(true));
            assert!(place.answer("1.json").unwrap().0);
            assert_eq!(place.state_of("a1"), None);
        }
        assert!(!place.dir.path().join("deployed/a1.json").exists());
        assert!(place.open().outbox.waiting().is_empty());
    }

    #[test]
    fn what_must_not_be_is_refused_with_its_reason() {
        let place = StateDirectory::new();
        place.ended("a1");
        place.ended("b2");
        place.open().journal.start("b2", json!({})).unwrap();
        for (name, order, listed, words) in [
            ("1.json", json!({"schema": 1, "order": "rerun", "deployment": "a1"}), Some(false), "no longer in the metadata"),
            ("2.json", json!({"schema": 1, "order": "rerun", "deployment": "b2"}), Some(true), "is running now"),
            ("3.json", json!({"schema": 1, "order": "forget", "deployment": "b"}), Some(true), "is running now"),
            ("4.json", json!({"schema": 1, "order": "rerun", "deployment": "setup"}), None, "2 deployments match"),
            ("5.json", json!({"schema": 1, "order": "forget", "deployment": "zz"}), None, "no deployment"),
        ] {
            place.order(name, &order);
            place.serve(listed);
            let (done, text) = place.answer(name).unwrap();
            assert!(!done && text.contains(words), "{name}: {text}");
        }
        assert_eq!(
            (place.state_of("a1"), place.state_of("b2")),
            (Some(DeploymentState::Finished), Some(DeploymentState::Running))
        );
        assert_eq!(place.open().outbox.waiting().len(), 2);
        assert!(place.report.events().iter().all(|event| event.code != Code::DeploymentRerun));
    }

    #[test]
    fn what_runs_is_refused_with_the_way_to_end_it() {
        let place = StateDirectory::new();
        for (group, way) in [("script", "or stop it: heat-node-agent stop script"), ("kubernetes-node", "or update the stack: ")]
        {
            let entry = json!({"id": group, "name": "r", "group": group, "config": "x"});
            let deployment = Deployment::parse(&entry).unwrap().unwrap();
            let mut opened = place.open();
            opened.journal.register(&deployment).unwrap();
            opened.journal.start(group, json!({})).unwrap();
            let name = format!("{group}.json");
            place.order(&name, &json!({"schema": 1, "order": "rerun", "deployment": group}));
            place.serve(Some(true));
            let (done, text) = place.answer(&name).unwrap();
            assert!(!done && text.contains(way), "{text}");
        }
    }

    #[test]
    fn only_a_script_that_runs_is_stopped_and_the_order_is_carried_out_once() {
        let place = StateDirectory::new();
        for id in ["run", "end"] {
            place.ended(id);
        }
        place.open().journal.start("run", json!({})).unwrap();
        let entry = |id: &str, group: &str| {
            let entry = json!({"id": id, "name": id, "group": group, "config": "x"});
            Deployment::parse(&entry).unwrap().unwrap()
        };
        place.open().journal.register(&entry("seen", "script")).unwrap();
        place.open().journal.register(&entry("node", "kubernetes-node")).unwrap();
        place.open().journal.start("node", json!({})).unwrap();
        let ending = |id: &str| place.open().journal.get(id).unwrap().ending.clone();
        for (name, id, done, words) in [
            ("1.json", "end", false, "has already ended"),
            ("2.json", "seen", false, "has not started"),
            ("3.json", "node", false, "a newer deployment replaces it"),
            ("4.json", "none", false, "no deployment"),
            ("5.json", "run", true, "every process of its unit is killed; Heat receives FAILURE"),
            ("6.json", "run", true, "every process of its unit is killed"),
        ] {
            place.order(name, &json!({"schema": 1, "order": "stop", "deployment": id}));
            place.serve(None);
            let (was_done, text) = place.answer(name).unwrap();
            assert!(was_done == done && text.contains(words), "{name}: {text}");
        }
        assert_eq!(["run", "end", "seen", "node"].map(ending), [Some(Ending::Stopped), None, None, None]);
        let reported = |code| place.report.events().iter().filter(|event| event.code == code).count();
        assert_eq!((reported(Code::DeploymentStopping), place.state_of("run")), (1, Some(DeploymentState::Running)));
        // Cut off before its answer, and the script has ended since: the same order means no other run.
        place.open().journal.finish("run", DeploymentOutcome::refused("stopped")).unwrap();
        place.order("7.json", &json!({"schema": 1, "order": "stop", "deployment": "run", "resolved": "run"}));
        place.serve(None);
        assert!(place.answer("7.json").unwrap().0);
        place.order("8.json", &json!({"schema": 1, "order": "rerun", "deployment": "run"}));
        place.serve(Some(true));
        assert_eq!((place.state_of("run"), ending("run")), (Some(DeploymentState::Seen), None));
    }

    #[test]
    fn a_job_that_is_locked_is_left_alone_whatever_the_record_says() {
        let place = StateDirectory::new();
        place.ended("a1");
        let opened = place.open();
        let lock = Path::new("work").join(opened.journal.get("a1").unwrap().job()).join("lock");
        let _held = opened.state.lock(&lock).unwrap().unwrap();
        place.order("1.json", &json!({"schema": 1, "order": "forget", "deployment": "a1"}));
        place.serve(None);
        assert!(!place.answer("1.json").unwrap().0);
    }

    #[test]
    fn what_is_no_order_is_quarantined_and_logged_and_leftovers_are_bounded() {
        let place = StateDirectory::new();
        place.ended("a1");
        for (name, order) in [
            ("1.json", json!({"schema": 1, "order": "reboot", "deployment": "a1"})),
            ("2.json", json!({"schema": 1, "order": "rerun", "deployment": "a1", "force": true})),
            ("3.json", json!({"schema": 2, "order": "rerun", "deployment": "a1"})),
            ("4.txt", json!("rerun a1")),
        ] {
            place.order(name, &order);
            place.serve(None);
            assert!(place.dir.path().join("state/requests").join(name).with_extension("unreadable").exists(), "{name}");
        }
        assert_eq!(place.report.events().iter().filter(|event| event.code == Code::RequestUnreadable).count(), 4);
        assert_eq!(place.state_of("a1"), Some(DeploymentState::Finished));
        let opened = place.open();
        for number in 0..=KEPT {
            let (answer, aside) = (format!("{number:03}.answer"), format!("z{number:03}.unreadable"));
            opened.state.create_dir(&Path::new(DIRECTORY).join(answer), Attributes::mode(0o700)).unwrap();
            opened.state.create_dir(&Path::new(DIRECTORY).join(aside), Attributes::mode(0o700)).unwrap();
        }
        place.serve(None);
        let left = place.open().state.list(Path::new(DIRECTORY)).unwrap();
        assert_eq!(left.len(), 2 * KEPT);
        assert!(left.iter().any(|name| *name == *format!("{KEPT:03}.answer")), "of each kind the oldest went");
        let reported: Vec<_> = place.report.events().into_iter().filter(|event| event.code == Code::LeftoversRemoved).collect();
        assert_eq!(reported.len(), 1, "{reported:?}");
    }

    #[test]
    fn an_order_to_forget_whose_answer_cannot_be_written_is_not_carried_out_twice() {
        let place = StateDirectory::new();
        place.ended("a1");
        place.order("1.json", &json!({"schema": 1, "order": "forget", "deployment": "a1"}));
        let (opened, answer) = (place.open(), Path::new(DIRECTORY).join("1.answer"));
        opened.state.create_dir(&answer, Attributes::mode(0o700)).unwrap();
        assert_eq!(place.try_serve(None).unwrap_err().kind(), ErrorKind::Transient);
        assert_eq!(place.state_of("a1"), None);
        // Meanwhile the deployment runs as a new one; that is not what the order meant.
        place.now.set(2000);
        place.ended("a1");
        opened.state.remove_dir_all(&answer).unwrap();
        place.serve(None);
        assert!(place.answer("1.json").unwrap().0);
        assert_eq!(place.state_of("a1"), Some(DeploymentState::Finished));
        assert_eq!(place.report.events().iter().filter(|event| event.code == Code::DeploymentForgotten).count(), 1);
    }

    #[test]
    fn a_step_of_a_ca_rotation_is_ordered_once_wherever_the_order_is_cut_off() {
        use certificates::{CertificateRecord, RotationProgress};
        let place = StateDirectory::new();
        let order = json!({"schema": 1, "order": "rotate", "deployment": ""});
        let done = |step| {
            let rotation = Some(RotationProgress { step, generation: 1, since: Timestamp(0) });
            CertificateRecord { rotation, ..CertificateRecord::default() }.write(&place.open().state).unwrap();
        };
        let ordered = || CertificateRecord::inspect(&place.open().state).ordered;
        place.order("1.json", &order);
        place.serve(None);
        let (was_done, text) = place.answer("1.json").unwrap();
        assert!(!was_done && text.contains("no CA rotation is in progress"), "{text}");

        done(Rotation::TrustBoth);
        place.busy.set(true);
        place.order("2.json", &order);
        place.serve(None);
        assert_eq!((place.answer("2.json"), ordered()), (None, None), "it waits while the node is worked on");
        place.busy.set(false);
        // Cut off before its answer was reported.
        let mut opened = place.open();
        opened.state.create_dir(&Path::new(DIRECTORY).join("2.answer"), Attributes::mode(0o700)).unwrap();
        place.try_serve(None).unwrap_err();
        assert_eq!(ordered(), Some(Rotation::Switch));
        // The step is taken, and then the same order met again: it is not the next step.
        done(Rotation::Switch);
        opened = place.open();
        opened.state.remove_dir_all(&Path::new(DIRECTORY).join("2.answer")).unwrap();
        place.serve(None);
        let (was_done, text) = place.answer("2.json").unwrap();
        assert!(was_done && text.contains("switch"), "{text}");
        assert_eq!(ordered(), None);
        // Attack: a step was taken while units of the one before were still to be restarted.
        let note = Path::new("run/heat-node-agent/pending-restarts.json");
        opened.root.create_dir_all(note.parent().unwrap(), Attributes::mode(0o755)).unwrap();
        opened.root.write(note, b"[\"etcd.service\"]", Attributes::mode(0o600)).unwrap();
        place.busy.set(true);
        place.order("4.json", &order);
        place.serve(None);
        place.busy.set(false);
        let (was_done, text) = place.answer("4.json").unwrap();
        assert!(!was_done && text.contains("etcd.service is still to be restarted"), "{text}");
        opened.root.remove(note).unwrap();
        // Attack: a second operator's order waited for the step of the first one, and meant the next one then.
        let second = json!({"schema": 1, "order": "rotate", "deployment": "", "resolved": "switch"});
        place.order("5.json", &second);
        place.serve(None);
        let (was_done, text) = place.answer("5.json").unwrap();
        assert!(was_done && text.contains("requested on this node before: switch"), "{text}");
        assert_eq!(ordered(), None);
        // A new order is the next one.
        place.order("3.json", &order);
        place.serve(None);
        assert!(place.answer("3.json").unwrap().0);
        assert_eq!(ordered(), Some(Rotation::DropOld));
        assert_eq!(place.report.events().iter().filter(|event| event.code == Code::RotationOrdered).count(), 2);
    }

    #[test]
    fn a_rollback_is_begun_once_the_node_is_at_rest_and_its_order_survives_the_daemon() {
        let place = StateDirectory::new();
        let order =
            |name: &str, number: &str| place.order(name, &json!({"schema": 1, "order": "rollback", "deployment": number}));
        let wanted = || std::mem::take(&mut place.rollbacks.borrow_mut().wanted);
        order("1.json", "");
        place.serve(None);
        let (done, text) = place.answer("1.json").unwrap();
        assert!(!done && text.contains("no node is in place"), "{text}");
        // A node that was updated, with the record of what that replaced.
        let entry = |id: &str, options: &str| {
            let config = json!({"ROLE": "minion", "KUBE_MASTER_IP": "192.0.2.1", "KUBE_NODE_IP": "192.0.2.2", "TLS_DISABLED": true,
                "KUBELET_OPTIONS": options});
            json!({"id": id, "group": "kubernetes-node", "config": config})
        };
        let state = || place.open().state;
        let mut generations = Generations::open(state(), Clock::system(), &place.report).unwrap();
        for (id, options) in [("a", "--v=2"), ("b", "--v=3")] {
            generations.begin(id, id, entry(id, options)).unwrap();
            generations.end(GenerationState::Applied, None, Vec::new()).unwrap();
        }
        let record = json!({"generation": 2, "deployment": "b", "files": {}, "running": [], "enabled": [], "unhealthy": [], "obstacle": null});
        state().write_json(Path::new("former.json"), &record, Attributes::mode(0o600)).unwrap();
        let learn = |generations: &Generations| *place.generation.borrow_mut() = generations.current().cloned();
        learn(&generations);
        for (number, words) in [("7", "are not kept"), ("2", "is in place already"), ("x", "no number")] {
            order("2.json", number);
            place.serve(None);
            let (done, text) = place.answer("2.json").unwrap();
            assert!(!done && text.contains(words) && !wanted(), "{text}");
        }
        // Without a daemon nothing is begun, whatever is asked for.
        place.down.set(true);
        for number in ["", "1", "7"] {
            order("2.json", number);
            place.serve(None);
            let (done, text) = place.answer("2.json").unwrap();
            assert!(!done && text.contains("the daemon is down") && text.contains("systemctl start heat-node-agent"), "{text}");
        }
        place.down.set(false);
        let record = Path::new("former.json");
        let whole = state().read(record, LIMIT).unwrap().unwrap();
        state().write(record, b"{", Attributes::mode(0o600)).unwrap();
        order("2.json", "1");
        place.serve(None);
        let (done, text) = place.answer("2.json").unwrap();
        assert!(!done && text.contains("is damaged") && text.contains("remedy: update the stack") && !wanted(), "{text}");
        state().write(record, &whole, Attributes::mode(0o600)).unwrap();
        order("3.json", "1");
        place.busy.set(true);
        place.serve(None);
        assert!(!wanted() && place.answer("3.json").is_none(), "it waits while the node is worked on");
        place.busy.set(false);
        place.serve(None);
        assert!(wanted() && place.answer("3.json").is_none());
        generations.restore().unwrap();
        learn(&generations);
        place.serve(None);
        assert!(!wanted() && place.answer("3.json").is_none(), "it is under way");
        place.down.set(true);
        place.serve(None);
        assert!(place.answer("3.json").is_none(), "it is left to the next daemon, which goes on with it");
        place.down.set(false);
        // The daemon died when it was done, before it had answered.
        generations.put_back(None, Vec::new()).unwrap();
        learn(&generations);
        place.serve(None);
        let (done, text) = place.answer("3.json").unwrap();
        assert!(done && text.contains("generation 1 is in place again") && !wanted(), "{text}");
        order("4.json", "");
        place.serve(None);
        assert!(place.answer("4.json").unwrap().1.contains("generation 1 is in place already"), "a new order is another one");
        // Attack: given while an update was being applied it waited, and then took that update back.
        generations.begin("c", "c", entry("c", "--v=4")).unwrap();
        learn(&generations);
        place.busy.set(true);
        order("5.json", "");
        place.serve(None);
        let (done, text) = place.answer("5.json").unwrap();
        assert!(!done && text.contains("generation 3 is being applied") && text.contains("status --wait") && !wanted(), "{text}");
    }

    #[test]
    fn a_repair_is_asked_for_once_the_node_is_at_rest_and_its_order_is_answered_by_what_became_of_it() {
        let place = StateDirectory::new();
        let order = |name| place.order(name, &json!({"schema": 1, "order": "repair", "deployment": ""}));
        let take_wanted = || std::mem::take(&mut place.repairs.borrow_mut().wanted);
        order("1.json");
        place.busy.set(true);
        place.serve(None);
        assert!(!take_wanted() && place.answer("1.json").is_none(), "it waits while the node is worked on");
        place.busy.set(false);
        // Cut off between the two: it is asked for again.
        for _ in 0..2 {
            place.serve(None);
            assert!(take_wanted() && place.answer("1.json").is_none());
        }
        place.repairs.borrow_mut().outcome = Some(Ok(vec!["put back: /etc/x differs".to_owned()]));
        order("2.json");
        place.serve(None);
        assert_eq!(place.answer("1.json").unwrap(), (true, "put back: /etc/x differs".to_owned()));
        assert!(
            take_wanted() && place.answer("2.json").is_none(),
            "an order takes what became of a repair of before to nobody else"
        );
        place.repairs.borrow_mut().outcome = Some(Err(Error::permanent("etcd does not answer")));
        place.serve(None);
        let (done, text) = place.answer("2.json").unwrap();
        assert!(!done && text.contains("etcd does not answer"), "{text}");
        // Attack: an update that failed on the way had the order refused, the look behind it ended the repair, and the next order was told of a
        // node that nobody had looked at.
        order("4.json");
        place.serve(None);
        assert!(take_wanted() && place.repairs.borrow().awaited);
        place.extent.set(Some(AppliedExtent::Part));
        place.serve(None);
        assert!(place.answer("4.json").is_some() && !place.repairs.borrow().awaited, "refused: nobody waits any more");
        place.repairs.borrow_mut().outcome = Some(Ok(vec!["nothing differs".to_owned()]));
        place.serve(None);
        place.extent.set(Some(AppliedExtent::Whole));
        order("5.json");
        place.serve(None);
        assert!(take_wanted() && place.answer("5.json").is_none(), "an order is answered by what was done for it");
        place.repairs.borrow_mut().outcome = Some(Ok(Vec::new()));
        place.serve(None);
        for (extent, words) in
            [(Some(AppliedExtent::Part), "rerun ID"), (Some(AppliedExtent::Nothing), "no node is in place"), (None, "no node")]
        {
            place.extent.set(extent);
            order("3.json");
            place.serve(None);
            let (done, text) = place.answer("3.json").unwrap();
            assert!(!done && text.contains(words) && !take_wanted(), "{text}");
        }
    }

    #[test]
    fn a_name_from_outside_does_not_command_the_operators_terminal() {
        let place = StateDirectory::new();
        let entry = json!({"id": "a1", "name": "x\u{1b}[2Jy", "group": "script", "config": "x"});
        place.open().journal.register(&Deployment::parse(&entry).unwrap().unwrap()).unwrap();
        for (name, order) in [("1.json", "rerun"), ("2.json", "forget")] {
            place.order(name, &json!({"schema": 1, "order": order, "deployment": "a1"}));
            place.serve(None);
            let (done, text) = place.answer(name).unwrap();
            assert!(done == (order == "forget") && text.contains("x\\u{1b}[2Jy"), "{text}");
        }
    }
}
