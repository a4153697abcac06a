//! The generation before, put back by the operator's `rollback`: by the rules of a rollback, and with what the update recorded.
//!
//! That the node is on its way there is on disk before the first change ([`GenerationState::Restoring`]), and stays until it has
//! arrived: an agent that finds it goes on, so that a kill ends in one of the two generations.

use std::path::Path;

use super::bring_up::{Done, error_of};
use super::outline::Outline;
use super::rollback::{FORMER, Previous, REPLACED, Replaced, event, in_words, irreversible, rollback_failed, rolled_back};
use super::{Node, spec_of};
use crate::converge;
use crate::daemon::reason::bounded;
use crate::deploy::{AppliedExtent, DeploymentOutcome, Generation, Generations};
use crate::desired::Desired;
use crate::error::{Error, ErrorKind, Result};
use crate::files::Tree;
use crate::kubernetes::{self, MachineFacts};
use crate::machine::facts;
use crate::machine::installed::{Ask, InstalledPrograms, UnitFiles};
use crate::metadata::Deployment;
use crate::report::reason::{FailureReason, RollbackEnd, RollbackOutcome};
use crate::report::{Code, Phase};
use crate::systemd::Systemd;

/// What the operator can have put back, with what the newest generation asks for; `asked`: only this one.
///
/// # Errors
/// If nothing can be put back, with the reason.
fn way(state: &Tree, current: &Generation, asked: Option<u64>, facts: &MachineFacts) -> Result<(Previous, Desired)> {
    let in_place = current.in_place();
    if let Some(asked) = asked.filter(|asked| in_place == Some(*asked)) {
        return Err(Error::refused(format!("generation {asked} is in place already")));
    }
    let kept = current.restorable()?;
    let (number, newest) = (kept.number, current.number);
    if let Some(asked) = asked.filter(|asked| *asked != number) {
        return Err(Error::refused(format!("the parameters of generation {asked} are not kept"))
            .rule(format!("only the generation before the newest is kept: {number}"))
            .remedy("update the stack with the parameters of that generation"));
    }
    let update = format!("update the stack with the parameters of generation {number}: a deployment may change that");
    let read = |entry, number: u64| {
        spec_of(entry).map_err(|error| Error::refused(format!("generation {number}: {}", error.cause())).remedy(&*update))
    };
    let spec = read(&kept.entry, number)?;
    let desired = kubernetes::render(&spec, facts)?;
    let after = kubernetes::render(&read(&current.entry, newest)?, facts)?;
    let parts = irreversible(&desired, &after);
    if !parts.is_empty() {
        return Err(Error::refused(format!("between generations {number} and {newest} there are changes of {}", in_words(&parts)))
            .rule("what nothing takes back is never rolled back: volumes, certificates and keys, flannel's configuration, etcd's member, objects")
            .remedy(update));
    }
    let damaged = |error: Error| match error.kind() {
        ErrorKind::Permanent => {
            let cause = format!("the record of what generation {newest} replaced is damaged: {error}");
            Error::refused(cause).remedy(&*update)
        }
        _ => error,
    };
    let Some(replaced) = record_of(state, newest).map_err(damaged)? else {
        return Err(Error::refused(format!("what generation {newest} replaced is not recorded")).remedy(&*update));
    };
    if let Some(obstacle) = replaced.obstacle() {
        return Err(Error::refused(obstacle).remedy(&*update));
    }
    let previous = Previous { number, spec, desired, replaced };
    // It can be read as a whole, before anything is begun.
    previous.retired(&after).map_err(damaged)?;
    Ok((previous, after))
}

/// What this generation replaced, where one of the two files says so.
fn record_of(state: &Tree, generation: u64) -> Result<Option<Replaced>> {
    let mut damaged = None;
    for name in [FORMER, REPLACED] {
        match state.read_json::<Replaced>(Path::new(name)) {
            Ok(Some(record)) if record.is_of(generation) => return Ok(Some(record)),
            Err(error) if error.kind() == ErrorKind::Permanent => damaged = Some(error),
            other => drop(other?),
        }
    }
    damaged.map_or(Ok(None), Err)
}

/// The number of the generation that the operator's order puts back.
///
/// # Errors
/// If it is refused, with the reason.
pub(in crate::daemon) fn check(state: &Tree, root: &Tree, current: Option<&Generation>, asked: Option<u64>) -> Result<u64> {
    let current = current.ok_or_else(no_node)?;
    way(state, current, asked, &facts::of_machine(root)).map(|(previous, _)| previous.number)
}

fn no_node() -> Error {
    Error::refused("no node is in place on this machine").remedy("`heat-node-agent explain` shows what the node is waiting for")
}

/// What a rollback would do; nothing is changed, and no daemon is asked.
#[derive(Debug)]
pub(crate) struct Preview {
    /// The generation that would be in place.
    pub(crate) number: u64,
    /// What changes on the way there.
    pub(crate) plan: converge::ChangePlan,
    /// What only the generation in place asks for, and goes, in words.
    pub(crate) retired: Vec<String>,
}

/// Looks what `rollback` would do.
///
/// # Errors
/// If it would be refused, or the machine cannot be looked at.
pub(crate) async fn preview(state: &Tree, asked: Option<u64>, ask: &Ask<'_>) -> Result<Preview> {
    let root = Tree::open(Path::new("/"))?;
    let current = Generations::read(state)?.ok_or_else(no_node)?;
    let (previous, after) = way(state, &current, asked, &facts::of_machine(&root))?;
    let systemd = Systemd::connect().await?;
    check_programs(&root, &systemd, &previous, ask).await?;
    let observed = converge::observe(&previous.desired, &root, &systemd).await?;
    let retired = previous.retired(&after)?;
    let file = |file: &converge::RetiredFile| {
        let verb = if file.original.is_some() { "restore" } else { "remove" };
        format!("{verb} {}", file.path)
    };
    let units =
        |verb: &'static str, units: &[String]| -> Vec<String> { units.iter().map(|unit| format!("{verb} {unit}")).collect() };
    let retired: Vec<String> = [units("stop", &retired.stop), units("disable", &retired.disable)]
        .into_iter()
        .flatten()
        .chain(retired.files.iter().map(file))
        .collect();
    Ok(Preview { number: previous.number, plan: converge::plan(&previous.desired, &observed), retired })
}

/// That the installed programs take what the generation before asks of them: after an upgrade they may be too new for it.
async fn check_programs(root: &Tree, systemd: &Systemd, previous: &Previous, ask: &Ask<'_>) -> Result<()> {
    let Previous { number, spec, desired, .. } = previous;
    let machine = InstalledPrograms { root, units: UnitFiles::Running(systemd), spec, desired };
    machine.judge(ask, None).await.check().map_err(|error| {
        error.remedy(format!("install the programs of generation {number}, then run `heat-node-agent rollback` again; until then the node stays as it is"))
    })
}

/// Refuses what [`preview`] would, before the daemon is asked.
///
/// # Errors
/// If the installed programs do not take what the generation before asks of them.
pub(crate) async fn refuse_early(state: &Tree, asked: Option<u64>, ask: &Ask<'_>) -> Result<()> {
    let root = Tree::open(Path::new("/"))?;
    let Some(current) = Generations::read(state)? else { return Ok(()) };
    // Whatever else keeps the node from going back is said by the daemon.
    let Ok((previous, _)) = way(state, &current, asked, &facts::of_machine(&root)) else { return Ok(()) };
    check_programs(&root, &Systemd::connect().await?, &previous, ask).await
}

/// What of an update to `after` nothing takes back, so that a failure of it is not rolled back: nothing where no generation is in place as
/// a whole, or it cannot be read.
pub(crate) fn parts_not_taken_back(state: &Tree, after: &Desired, facts: &MachineFacts) -> Vec<String> {
    let whole =
        Generations::inspect(state).as_ref().and_then(Generation::reference).filter(|one| one.extent == AppliedExtent::Whole);
    let before = whole.and_then(|whole| kubernetes::render(&spec_of(&whole.entry).ok()?, facts).ok());
    before.map(|before| irreversible(&before, after).iter().map(ToString::to_string).collect()).unwrap_or_default()
}

impl Node {
    /// Puts the generation before `current` back, whose way there is recorded.
    pub(in crate::daemon) async fn put_generation_back(&self, current: Generation) -> Done {
        let number = current.back.map_or(0, |back| back.to);
        let line = format!("rolling the node back to generation {number} at the operator's request");
        self.host
            .report
            .emit(event(Code::RollbackBegun, number, line).phase(Phase::Units).cause("`heat-node-agent rollback` was run"));
        self.remembered.forget_left();
        let result = self.reach_former(&current).await;
        let step_timings = self.progress.step_timings();
        let outcome = match result {
            Ok(()) => {
                self.host.report.emit(rolled_back(number));
                DeploymentOutcome::default()
            }
            Err(error) => {
                self.host.report.emit(rollback_failed(number, &current.deployment).error(&error));
                let text = format!("the rollback to generation {number} failed");
                let rollback = Some(RollbackOutcome { text, end: RollbackEnd::SameCause });
                let why = FailureReason::of(&error).with_rollback(rollback);
                DeploymentOutcome::refused(bounded(&self.host.report, Code::RollbackFailed, why))
            }
        };
        let restored = outcome.reason.is_none();
        Done { outcome, step_timings, wait: None, changed_machine: true, restored }
    }

    async fn reach_former(&self, current: &Generation) -> Result<()> {
        if let Ok(Some(deployment)) = Deployment::parse(&current.entry) {
            self.set_secrets(&deployment);
        }
        let (previous, after) = way(&self.host.state, current, None, &self.facts())?;
        let outline = Outline::of(&previous.spec, &previous.desired, &self.hostname());
        self.known.outline.replace(Some(outline));
        let retired = previous.retired(&after)?;
        let reached = self.reach(&previous, retired, previous.spec.deadline, &current.deployment).await;
        reached.map_err(|failure| error_of(&failure))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::clock::Clock;
    use crate::deploy::GenerationState;
    use crate::files::Attributes;
    use crate::report::Report;

    fn entry(id: &str, more: &Value) -> Value {
        let mut config = json!({"ROLE": "minion", "KUBE_MASTER_IP": "192.0.2.1", "KUBE_NODE_IP": "192.0.2.2", "TLS_DISABLED": true,
            "CLUSTER_UUID": "8c2b6d4e-5a8f-4c43-9d6a-1f6f4c1c2a11"});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"id": id, "group": "kubernetes-node", "config": config})
    }

    /// A node that was updated by `more`, and the record of what that replaced, of this generation.
    fn updated(more: &Value, record: u64) -> (tempfile::TempDir, Tree, Generation) {
        let dir = tempfile::tempdir().unwrap();
        let tree = || Tree::open(dir.path()).unwrap();
        let mut generations = Generations::open(Arc::new(tree()), Clock::system(), &Report::kept()).unwrap();
        for (id, more) in [("a", &json!({})), ("b", more)] {
            generations.begin(id, id, entry(id, more)).unwrap();
            generations.end(GenerationState::Applied, None, Vec::new()).unwrap();
        }
        let replaced = json!({"generation": record, "deployment": "b", "files": {}, "running": [], "enabled": [], "unhealthy": [],
            "obstacle": null});
        tree().write_json(Path::new(FORMER), &replaced, Attributes::mode(0o600)).unwrap();
        let (state, current) = (tree(), generations.current().unwrap().clone());
        (dir, state, current)
    }

    #[test]
    fn an_order_is_refused_with_its_reason_before_anything_is_changed() {
        let options = json!({"KUBELET_OPTIONS": "--v=3"});
        let volume = json!({"DOCKER_VOLUME": "8c2b6d4e-5a8f-4c43-9d6a-1f6f4c1c2a11"});
        for (why, more, record, asked, expected) in [
            ("the one before", &options, 2, None, Ok(1)),
            ("by its number", &options, 2, Some(1), Ok(1)),
            ("the one in place", &options, 2, Some(2), Err("generation 2 is in place already")),
            ("one that nobody keeps", &options, 2, Some(7), Err("the parameters of generation 7 are not kept")),
            ("no record", &options, 1, None, Err("what generation 2 replaced is not recorded")),
            ("what nothing takes back", &volume, 2, None, Err("between generations 1 and 2 there are changes of volumes")),
        ] {
            let (_dir, state, current) = updated(more, record);
            let got = way(&state, &current, asked, &MachineFacts::default()).map(|(previous, _)| previous.number);
            match (got, expected) {
                (Ok(number), Ok(expected)) => assert_eq!(number, expected, "{why}"),
                (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{why}: {error}"),
                (got, _) => panic!("{why}: {got:?}"),
            }
        }
    }

    /// Attack: the record's content was damaged, and a rollback that could not be carried out left the node as one that had failed.
    #[test]
    fn an_order_is_refused_where_the_record_of_what_was_replaced_is_damaged() {
        let (_dir, state, current) = updated(&json!({"HTTP_PROXY": "http://192.0.2.1:3128"}), 2);
        let found = || way(&state, &current, None, &MachineFacts::default());
        let (previous, after) = found().unwrap();
        let path = previous.retired(&after).unwrap().files[0].path.clone();
        let whole = state.read(Path::new(FORMER), 1 << 20).unwrap().unwrap();
        let mut undecodable: Value = crate::budgets::json::typed(&whole).unwrap();
        undecodable["files"] = json!({path: {"content": "%", "mode": 0o600, "owner": [0, 0]}});
        let put = |name: &str, bytes: &[u8]| state.write(Path::new(name), bytes, Attributes::mode(0o600)).unwrap();
        for damaged in [b"{".to_vec(), b"[]".to_vec(), undecodable.to_string().into_bytes()] {
            put(FORMER, &damaged);
            let error = found().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
            assert!(error.to_string().contains("the record of what generation 2 replaced is damaged: "), "{error}");
            assert!(
                error.suggested_remedy().unwrap().contains("update the stack with the parameters of generation 1"),
                "{error}"
            );
        }
        // The same record lies in the other file until the update's end is written down whole.
        put(FORMER, b"{");
        put(REPLACED, &whole);
        assert_eq!(found().unwrap().0.number, 1);
    }

    #[test]
    fn a_plan_names_what_of_an_update_nothing_takes_back() {
        let (_dir, state, _current) = updated(&json!({"KUBELET_OPTIONS": "--v=3"}), 2);
        let parts = |more: &Value| {
            let desired = kubernetes::render(&spec_of(&entry("c", more)).unwrap(), &MachineFacts::default()).unwrap();
            parts_not_taken_back(&state, &desired, &MachineFacts::default())
        };
        assert_eq!(parts(&json!({"KUBELET_OPTIONS": "--v=4"})), Vec::<String>::new());
        assert_eq!(parts(&json!({"DOCKER_VOLUME": "8c2b6d4e-5a8f-4c43-9d6a-1f6f4c1c2a11"})), ["volumes"]);
    }
}
