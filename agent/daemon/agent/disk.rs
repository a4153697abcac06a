//! What the deployments left on disk, bounded in sum (budgets/mod.rs): the oldest go first.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::ledger::Ledger;
use super::view::result_key;
use crate::budgets::{JOBS_DISK, UNREADABLE_DISK, UNREADABLE_FILES};
use crate::daemon::host::Host;
use crate::deploy::hooks::script;
use crate::deploy::{DISCARDED, DeploymentRecord, DeploymentState, Journal};
use crate::error::Result;
use crate::files::{FileKind, Tree};
use crate::gather::Gather;
use crate::identity::{ASIDE, bytes_aside};
use crate::kubernetes::MEMBERSHIPS;
use crate::programs::{JOBS, Programs};
use crate::report::status::SetAsideStatus;
use crate::report::{Code, Event, Phase, Report};
use crate::signal::Outbox;

/// Files of a directory that was set aside that are counted: a store of images has millions, and its size in round numbers is
/// enough.
const COUNTED: usize = 20_000;

/// What is known of the disk.
#[derive(Debug, Default)]
pub(in crate::daemon) struct Disk {
    /// Of each deployment, by id.
    jobs: BTreeMap<String, u64>,
    /// Of all of them.
    pub(in crate::daemon) sum: u64,
    /// Of the states of other instances.
    pub(in crate::daemon) aside: u64,
    /// Of files of the state that could not be understood.
    pub(in crate::daemon) unreadable: u64,
    /// Data of services that was moved away.
    pub(in crate::daemon) set_aside: Vec<SetAsideStatus>,
    /// Records of which Heat lists none any more are still to be removed.
    pub(super) is_forgetting: bool,
}

/// Where deployments leave it.
pub(super) struct RetainedData<'a> {
    host: &'a Host,
    programs: &'a Programs,
    journal: &'a mut Journal,
    outbox: &'a Outbox,
}

impl Disk {
    /// Looks at what is there, once at the start.
    pub(super) fn measure(&mut self, kept: &mut RetainedData<'_>) -> Result<()> {
        // Whatever cannot be removed: what is there is measured and bounded all the same.
        let removed = kept.remove_leftovers();
        let measured = self.measure_all(kept).and_then(|()| {
            self.aside = bytes_aside(&kept.host.state)?;
            self.unreadable = bound_unreadable(&kept.host.state, &kept.host.report)?;
            self.set_aside = set_aside(&kept.host.root)?;
            self.bound(kept)
        });
        let measured = measured.and(removed.map_err(|error| error.context("removing what an interrupted agent left")));
        for place in &self.set_aside {
            let line = format!("{} contains {} that nothing uses", place.path, place.size());
            let event = Event::new(Code::OldDataKept, line).step(place.path.clone());
            kept.host.report.emit(event.phase(Phase::Settings).remedy(format!("once nobody needs it: {}", place.remove)));
        }
        measured
    }

    /// Counts what a deployment left, and removes what the oldest ones did where that is too much.
    pub(super) fn job_ended(&mut self, id: &str, kept: &mut RetainedData<'_>) -> Result<()> {
        let outputs = kept.journal.get(id).map(|record| record.outputs.clone()).unwrap_or_default();
        let outside = script::bytes_of(&kept.host.root, id, outputs.iter().map(|(name, _)| name))?;
        self.count(id, &BTreeMap::from([(script::name(id), outside)]), kept)?;
        self.bound(kept)
    }

    /// Counts what a deployment left; `outside` is what scripts left outside of the state, by name.
    fn count(&mut self, id: &str, outside: &BTreeMap<String, u64>, kept: &RetainedData<'_>) -> Result<()> {
        let Some(job) = kept.journal.get(id).map(DeploymentRecord::job) else { return Ok(()) };
        let outside = outside.get(&script::name(id)).copied().unwrap_or_default();
        let bytes = kept.programs.bytes(&job)? + kept.journal.legacy_bytes(id)? + outside;
        let before = self.jobs.insert(id.to_owned(), bytes).unwrap_or_default();
        self.sum = self.sum + bytes - before;
        Ok(())
    }

    fn measure_all(&mut self, kept: &RetainedData<'_>) -> Result<()> {
        let outside = script::bytes(&kept.host.root)?;
        let ids: Vec<String> = kept.journal.all().into_iter().map(|record| record.id.clone()).collect();
        (self.jobs, self.sum) = (BTreeMap::new(), 0);
        ids.iter().try_for_each(|id| self.count(id, &outside, kept))
    }

    fn bound(&mut self, kept: &mut RetainedData<'_>) -> Result<()> {
        if self.sum <= JOBS_DISK as u64 {
            return Ok(());
        }
        // What is forgotten or was run again is not there any more.
        self.measure_all(kept)?;
        let before = self.sum;
        let mut shed = BTreeSet::new();
        let bounded = self.remove_oldest(&mut shed, kept);
        // In one pass over the directory, and whatever else went wrong: it is counted as gone.
        let (_, forgotten) = script::forget(&kept.host.root, &shed.iter().cloned().collect::<Vec<_>>());
        if !shed.is_empty() {
            let line = format!("the output of {} deployments was removed, {} KiB", shed.len(), (before - self.sum) / 1024);
            let cause = format!("deployments may keep {} KiB on disk", JOBS_DISK / 1024);
            kept.host.report.emit(Event::new(Code::OutputsRemoved, line).phase(Phase::Deploy).cause(cause));
        }
        forgotten.and(bounded)
    }

    /// Removes what the oldest ended deployments left; whose, beside what lies outside of the state. Results that Heat may ask for
    /// go late, and those that wait for Heat last, once the outbox has what is sent of them.
    fn remove_oldest(&mut self, shed: &mut BTreeSet<String>, kept: &mut RetainedData<'_>) -> Result<()> {
        let ended: Vec<&DeploymentRecord> =
            kept.journal.all().into_iter().filter(|record| record.state >= DeploymentState::Finished).collect();
        let is_over = |record: &DeploymentRecord| record.state == DeploymentState::Signalled && record.withdrawn_from.is_none();
        let first = ended.iter().map(|record| (record.id.clone(), record.job(), is_over(record)));
        let superseded = ended.iter().filter(|record| record.withdrawn_from == Some(DeploymentState::Finished));
        let last = superseded.map(|record| (record.id.clone(), record.job(), true));
        let is_queued = |record: &&&DeploymentRecord| {
            record.state == DeploymentState::Finished
                && record.withdrawn_from.is_none()
                && kept.outbox.has(&result_key(&record.id))
        };
        let queued = ended.iter().filter(is_queued).map(|record| (record.id.clone(), record.job(), true));
        let mut failed = None;
        for (id, job, with_result) in first.chain(last).chain(queued).collect::<Vec<_>>() {
            // Some room, so that the next one need not do the same.
            if self.sum <= (JOBS_DISK / 4 * 3) as u64 {
                break;
            }
            let bytes = self.jobs.get(&id).copied().unwrap_or_default();
            if bytes <= DISCARDED {
                continue;
            }
            if with_result {
                kept.programs.discard_output(&job)?;
            } else {
                kept.programs.discard_output_keep_result(&job)?;
            }
            // On a full disk even what is shorter than before may not be written: what others left is removed all the same.
            failed = failed.or(kept.journal.discard_legacy_files(&id).err());
            self.count(&id, &BTreeMap::new(), kept)?;
            if self.jobs.get(&id).is_some_and(|rest| *rest < bytes) {
                shed.insert(id);
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

impl<'a> RetainedData<'a> {
    pub(super) fn of(host: &'a Host, programs: &'a Programs, ledger: &'a mut Ledger) -> Self {
        Self { host, programs, journal: &mut ledger.journal, outbox: &ledger.outbox }
    }

    /// Removes what a kill left: files of writes that were cut off, where nothing else would if the same name is not written again, and what
    /// deployments had whose records are removed. An agent that starts writes nothing yet, but jobs of an earlier one may.
    fn remove_leftovers(&self) -> Result<()> {
        let writes = self.journal.remove_partial_writes()? + self.remove_partial_writes_below(Path::new(""))?;
        for (gone, what) in [
            (writes, "temporary files of interrupted writes"),
            (self.remove_jobs_without_record()?, "files and directories of removed deployments"),
        ] {
            if gone > 0 {
                let line = format!("{gone} {what} were removed");
                self.host.report.emit(Event::new(Code::LeftoversRemoved, line).phase(Phase::Settings));
            }
        }
        Ok(())
    }

    fn remove_jobs_without_record(&self) -> Result<usize> {
        let records = self.journal.keys()?;
        let jobs = self.programs.forget_without_record(|job| Journal::is_without_record(job, &records))?;
        let recorded: BTreeSet<String> = self.journal.all().into_iter().map(|record| script::name(&record.id)).gather();
        let names = script::names(&self.host.root)?.into_iter().filter(|name| !name.is_empty() && !recorded.contains(name));
        let names: BTreeSet<String> = names.gather();
        if names.is_empty() {
            return Ok(jobs);
        }
        // The replaced tools' scripts have the same place.
        let (scripts, done) = script::forget_named(&self.host.root, &self.journal.removed(&names, script::name)?);
        done.map(|()| jobs + scripts)
    }

    fn remove_partial_writes_below(&self, directory: &Path) -> Result<usize> {
        let mut gone = self.host.state.remove_partial_writes(directory)?;
        for name in self.host.state.list(directory)? {
            let path = directory.join(&name);
            let is_jobs = directory == Path::new(JOBS);
            // Another instance's state has a budget of its own.
            if path == Path::new(ASIDE)
                || self.host.state.facts(&path)?.is_none_or(|facts| facts.kind != FileKind::Directory)
                || (is_jobs && self.programs.is_locked(&name.to_string_lossy())?)
            {
                continue;
            }
            gone += self.remove_partial_writes_below(&path)?;
        }
        Ok(gone)
    }
}

/// Removes the oldest of the state's files that could not be understood, beyond those to keep, and gives the bytes of the others.
/// Once at the start is enough: records and signals are read into memory only then.
fn bound_unreadable(state: &Tree, report: &Report) -> Result<u64> {
    let mut sum = 0;
    // The state's own directory has a few fixed names: they cannot add up, and are only counted.
    for directory in ["", "cache", "volumes", "deployments", "outbox"].map(Path::new) {
        let mut found = Vec::new();
        for name in state.list(directory)? {
            let path = directory.join(name);
            if path.extension().is_some_and(|end| end == "unreadable")
                && let Some(facts) = state.facts(&path)?
            {
                found.push((facts.stamp.1, facts.stamp.2, path, facts.size));
            }
        }
        // By the time at which they were renamed.
        found.sort_unstable_by(|one, other| other.cmp(one));
        let (mut bytes, mut gone) = (0, 0);
        for (at, (_, _, path, size)) in found.iter().enumerate() {
            bytes += size;
            let is_over = at >= UNREADABLE_FILES || (at > 0 && bytes > (UNREADABLE_DISK / 4) as u64);
            if is_over && !directory.as_os_str().is_empty() {
                state.remove_dir_all(path)?;
                (bytes, gone) = (bytes - size, gone + 1);
            }
        }
        sum += bytes;
        if gone > 0 {
            let line =
                format!("{gone} old files that could not be read were removed from {}", state.base().join(directory).display());
            let cause = format!("the newest {UNREADABLE_FILES} are kept, of at most {} KiB", UNREADABLE_DISK / 4 / 1024);
            report.emit(Event::new(Code::LeftoversRemoved, line).phase(Phase::Settings).cause(cause));
        }
    }
    Ok(sum)
}

/// What was moved away from the places of services: it may be somebody's, so it is reported and never removed.
fn set_aside(root: &Tree) -> Result<Vec<SetAsideStatus>> {
    let mut found = Vec::new();
    for membership in MEMBERSHIPS {
        for (path, mark) in [(membership.path, ".aside-"), (membership.store, ".before-volume-")] {
            let path = Path::new(path);
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { continue };
            let prefix = format!("{}{mark}", name.to_string_lossy());
            for name in root.list(parent)? {
                let is_ours =
                    name.to_str().and_then(|name| name.strip_prefix(&prefix)).is_some_and(|number| number.parse::<u32>().is_ok());
                let place: PathBuf = parent.join(&name);
                let is_new = !found.iter().any(|known: &SetAsideStatus| Path::new(&known.path) == place);
                if is_ours && is_new && root.facts(&place)?.is_some_and(|facts| facts.kind == FileKind::Directory) {
                    let (bytes, is_all) = root.bytes_below(&place, &mut COUNTED.clone())?;
                    let path = place.display().to_string();
                    found.push(SetAsideStatus { remove: format!("rm -rf {path}"), path, bytes, is_all });
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::daemon::agent::Agent;
    use crate::daemon::agent::completions::tests::{BOOT, open_in};
    use crate::deploy::{DeploymentOutcome, job_of};
    use crate::files::Attributes;
    use crate::metadata::Deployment;
    use crate::programs::JobResult;
    use crate::signal::{Destination, QueuedSignal};

    const MIB: u64 = 1024 * 1024;
    const RUN: &str = "run/heat-config/heat-config-script";

    /// A machine, and the agent on it.
    struct TestMachine {
        tree: Tree,
        agent: Agent,
        report: Report,
        _dir: tempfile::TempDir,
    }

    impl TestMachine {
        async fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let (agent, report) = open_in(dir.path(), BOOT, &json!({"deployments": []})).await;
            let tree = Tree::open(dir.path()).unwrap();
            Self { tree, agent, report, _dir: dir }
        }

        fn put(&self, path: &str, bytes: u64) {
            self.tree.create_dir_all(Path::new(path).parent().unwrap(), Attributes::mode(0o700)).unwrap();
            self.tree.append(Path::new(path), Attributes::mode(0o600)).unwrap().set_len(bytes).unwrap();
        }

        fn has(&self, path: &str) -> bool {
            self.tree.facts(Path::new(path)).unwrap().is_some()
        }

        fn bytes(&self, path: &str) -> u64 {
            self.tree.bytes_below(Path::new(path), &mut COUNTED.clone()).unwrap().0
        }

        /// Heat asks for something newer before it has this one's result.
        fn supersede(&mut self, id: &str) {
            let journal = &mut self.agent.ledger.journal;
            journal.mark_withdrawn(id, DeploymentState::Finished, "superseded before Heat could be told").unwrap();
        }

        /// Its signal is stored.
        fn queue(&self, id: &str) {
            let to = Destination::Url { url: "https://192.0.2.1/signal".into(), verb: "POST".into(), insecure: false };
            let entry = QueuedSignal::new(result_key(id), None, to, json!({}), self.agent.host.clock.now());
            self.agent.ledger.outbox.put(entry).unwrap();
        }

        /// A script that ended, with so much of each kind left; its job's directory.
        fn ended(&mut self, id: &str, log: u64, output: u64) -> String {
            let entry = json!({"id": id, "name": id, "group": "script", "config": "x", "outputs": [{"name": "o"}]});
            self.agent.ledger.register(&Deployment::parse(&entry).unwrap().unwrap(), None).unwrap();
            self.agent.ledger.journal.start(id, json!({})).unwrap();
            let directory = format!("state/work/{}", self.agent.ledger.journal.get(id).unwrap().job());
            self.put(&format!("{directory}/started"), 0);
            self.put(&format!("{directory}/output.log"), log);
            self.put(&format!("{RUN}/{}.o", script::name(id)), output);
            let outputs = [("o".to_owned(), "x".repeat(5_000))].into();
            let ran = JobResult { status: 3, outputs, ..JobResult::default() };
            self.tree.write_json(Path::new(&format!("{directory}/result.json")), &ran, Attributes::mode(0o600)).unwrap();
            self.agent.ledger.journal.finish(id, DeploymentOutcome::of("script", ran)).unwrap();
            directory
        }
    }

    /// Attack: an agent that was killed while it removed records left their jobs, secrets included, and their scripts for ever, and no budget
    /// counted them.
    #[tokio::test]
    async fn what_an_interrupted_removal_left_is_removed_at_the_next_start() {
        let mut place = TestMachine::new().await;
        let (odd, dotted) = ("odd id", "a.b");
        let mut jobs = BTreeMap::new();
        for id in ["gone", odd, dotted, "kept", "locked", "unreadable"] {
            jobs.insert(id, place.ended(id, 10, 10));
            place.put(&format!("{}/{}", script::WORKING, script::name(id))[1..], 10);
            if id != "kept" && id != "unreadable" {
                place.agent.ledger.journal.signalled(id, None).unwrap();
            }
        }
        // Another's, and one whose mark says only that it was run.
        place.put(&format!("{}/theirs", script::WORKING)[1..], 10);
        place.put("deployed/theirs.json", 0);
        let record = |id: &str| Path::new("state/deployments").join(format!("{}.json", crate::digest::key_of(id)));
        let aside = record("unreadable").with_extension("json.unreadable");
        place.tree.rename(&record("unreadable"), &aside).unwrap();
        let state = Arc::clone(&place.agent.host.state);
        let lock = state.lock(&Path::new("work").join(job_of("locked")).join("lock")).unwrap();
        // Killed behind the removal of the records.
        let journal = &mut place.agent.ledger.journal;
        journal.keep = 0;
        let (removed, done) = journal.prune(usize::MAX, |record| record.id == "kept" || record.id == "unreadable");
        done.unwrap();
        assert_eq!(removed.len(), 4, "{removed:?}");
        // It made a directory of its file, and left another beside it.
        let gone = format!("{}/gone", script::WORKING);
        place.tree.remove(Path::new(&gone)).unwrap();
        place.put(&format!("{gone}/x")[1..], 1);
        place.put(&format!("{gone}.log")[1..], 1);
        place.agent.measure_disk();
        for (id, expected) in
            [("gone", false), (odd, false), (dotted, false), ("kept", true), ("locked", true), ("unreadable", true)]
        {
            assert_eq!(place.has(&jobs[id]), expected, "{id}");
            let script = format!("{}/{}", script::WORKING, script::name(id));
            assert_eq!(place.has(&script[1..]), expected && id != "locked", "{id}");
        }
        assert!(place.has(&format!("{}/theirs", script::WORKING)[1..]));
        let lines: Vec<String> = place.report.events().into_iter().map(|event| event.message).collect();
        assert!(lines.contains(&"12 files and directories of removed deployments were removed".to_owned()), "{lines:?}");
        assert!(!place.has(&format!("{gone}.log")[1..]));
        drop(lock);
        place.agent.measure_disk();
        assert!(!place.has(&jobs["locked"]));
        let before = place.report.events().len();
        place.agent.measure_disk();
        assert_eq!(place.report.events().len(), before, "nothing is left to be said");
    }

    #[tokio::test]
    async fn what_superseded_deployments_left_is_bounded_with_all_the_rest_and_files_in_memory_count() {
        let mut place = TestMachine::new().await;
        let mut jobs = Vec::new();
        for number in 0..12 {
            let id = format!("d{number:02}");
            jobs.push(place.ended(&id, 10 * MIB, 5 * MIB));
            place.supersede(&id);
        }
        place.agent.measure_disk();
        let left = place.bytes("state/work") + place.bytes(RUN);
        assert!(left <= JOBS_DISK as u64 && left > 60 * MIB, "{left}");
        assert!(place.agent.disk.sum.abs_diff(left) < MIB, "{} is not {left}", place.agent.disk.sum);
        assert!(!place.has(&format!("{}/output.log", jobs[0])) && !place.has(&format!("{RUN}/d00.o")), "the oldest goes first");
        assert!(place.has(&format!("{}/output.log", jobs[11])) && place.has(&format!("{RUN}/d11.o")));
        assert!(place.has(&format!("{}/started", jobs[0])), "it never runs again");
        // Should Heat ask for it again, it goes on from there, with its whole result.
        assert_eq!(place.agent.ledger.journal.get("d00").unwrap().withdrawn_from, Some(DeploymentState::Finished));
        assert_eq!(place.agent.ledger.journal.outcome("d00").unwrap().unwrap().outputs.len(), 1);
        let reported: Vec<_> = place.report.events().into_iter().filter(|event| event.code == Code::OutputsRemoved).collect();
        assert_eq!(reported.len(), 1);
        place.agent.measure_disk();
        assert_eq!(place.bytes("state/work") + place.bytes(RUN), left, "a restart finds it so");
    }

    /// Attack: what the replaced tools find of deployments was counted nowhere, and a document of half a megabyte was written as 47 of them,
    /// mostly spaces before its lines.
    #[tokio::test]
    async fn what_the_replaced_tools_find_is_bounded_with_all_the_rest_and_never_swollen() {
        let mut place = TestMachine::new().await;
        let deep = |depth: usize| (0..depth).fold(json!(vec![0; 1000]), |inner, _| json!([inner]));
        let entry = json!({"id": "deep", "inputs": (0..50).map(|_| deep(80)).collect::<Vec<_>>()});
        place.ended("deep", 0, 0);
        place.agent.ledger.journal.start("deep", entry.clone()).unwrap();
        let size = place.tree.facts(Path::new("deployed/deep.json")).unwrap().unwrap().size;
        assert!(size <= 2 * entry.to_string().len() as u64 + 1024, "{size}");
        let text = place.tree.read(Path::new("deployed/deep.json"), 1 << 20).unwrap().unwrap();
        let written: serde_json::Value = crate::budgets::json::value(&text, 64 << 20).unwrap();
        assert_eq!(written["inputs"], entry["inputs"]);
        for number in 0..50 {
            let id = format!("d{number:02}");
            place.ended(&id, 0, 0);
            place.agent.ledger.journal.start(&id, json!({"id": id, "config": "x".repeat(3 << 20)})).unwrap();
            place.agent.ledger.journal.finish(&id, DeploymentOutcome::default()).unwrap();
            place.supersede(&id);
        }
        place.agent.measure_disk();
        let left = place.bytes("deployed");
        assert!(left <= JOBS_DISK as u64 && left > 60 * MIB, "{left}");
        // It is not run again by them, and is known as ours.
        let first = place.tree.read(Path::new("deployed/d00.json"), 1 << 20).unwrap().unwrap();
        assert!(first.len() < 200 && String::from_utf8_lossy(&first).contains("heat_node_agent"), "{} bytes", first.len());
        assert!(
            place.bytes("deployed/d49.json") > MIB
                || place.tree.facts(Path::new("deployed/d49.json")).unwrap().unwrap().size > MIB
        );
    }

    #[tokio::test]
    async fn results_of_superseded_deployments_go_last_and_their_status_stays() {
        let mut place = TestMachine::new().await;
        for number in 0..5 {
            let id = format!("d{number}");
            let directory = place.ended(&id, 0, 0);
            place.put(&format!("{directory}/result.json"), 30 * MIB);
            place.supersede(&id);
        }
        place.agent.measure_disk();
        assert!(place.bytes("state/work") <= JOBS_DISK as u64);
        let outcome = place.agent.ledger.journal.outcome("d0").unwrap().unwrap();
        assert_eq!((outcome.status, place.agent.ledger.journal.get("d0").unwrap().failed()), (3, true));
        assert!(outcome.stderr.contains("removed"), "{outcome:?}");
    }

    #[tokio::test]
    async fn a_result_whose_signal_waits_for_heat_goes_last_and_the_signal_stays() {
        let mut place = TestMachine::new().await;
        let mut results = Vec::new();
        for number in 0..5 {
            let id = format!("d{number}");
            results.push(format!("{}/result.json", place.ended(&id, 0, 0)));
            place.put(&results[number], 30 * MIB);
            if number > 0 {
                place.queue(&id);
            }
        }
        place.agent.measure_disk();
        assert!(place.bytes("state/work") <= JOBS_DISK as u64);
        assert!(place.has(&results[0]), "nothing is stored of what is to be sent of it");
        assert!(!place.has(&results[1]) && place.has(&results[4]), "the oldest go first");
        let ledger = &place.agent.ledger;
        assert!(
            ledger.outbox.has(&result_key("d1")) && ledger.journal.outcome("d1").unwrap().unwrap().stderr.contains("removed")
        );
    }

    #[tokio::test]
    async fn a_result_that_waits_for_heat_loses_its_log_and_nothing_that_is_sent() {
        let mut place = TestMachine::new().await;
        let jobs: Vec<String> = (0..12).map(|number| place.ended(&format!("d{number:02}"), 10 * MIB, 5 * MIB)).collect();
        place.agent.measure_disk();
        assert!(place.bytes("state/work") + place.bytes(RUN) <= JOBS_DISK as u64);
        assert!(jobs.iter().all(|job| place.has(&format!("{job}/result.json"))));
        assert_eq!(place.agent.ledger.journal.outcome("d00").unwrap().unwrap().outputs.len(), 1);
    }

    #[tokio::test]
    async fn what_writes_that_were_cut_off_left_is_removed_at_the_start_and_nothing_else() {
        let mut place = TestMachine::new().await;
        let gone = [
            "state/.node.json.hna-new",
            "state/deployments/.0a.json.hna-new",
            "state/work/ended/.result.json.hna-new",
            "deployed/.a.json.hna-new",
            "deployed/.a.notify.json.hna-new",
        ];
        let kept = [
            "state/work/live/.result.json.hna-new",
            "state/work/live/lock",
            "state/.hna-new",
            "state/deployments/0a.json.hna-new",
            "deployed/.a.json.swp",
            "deployed/below/.a.json.hna-new",
        ];
        for path in gone.iter().chain(&kept) {
            place.put(path, 7);
        }
        let _runner = place.tree.lock(Path::new("state/work/live/lock")).unwrap().unwrap();
        place.agent.measure_disk();
        assert!(!gone.iter().any(|path| place.has(path)), "{:?}", gone.map(|path| place.has(path)));
        assert!(kept.iter().all(|path| place.has(path)), "{:?}", kept.map(|path| place.has(path)));
        let reported: Vec<String> = place.report.events().into_iter().map(|event| event.message).collect();
        assert!(
            reported.iter().any(|line| line.starts_with("5 temporary files of interrupted writes were removed")),
            "{reported:?}"
        );
        place.agent.measure_disk();
        assert_eq!(place.report.events().len(), reported.len(), "nothing is said where nothing was left");
    }

    #[test]
    fn of_what_could_not_be_read_the_newest_stay_and_the_rest_goes_with_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let state = Tree::open(dir.path()).unwrap();
        let put = |path: &str, bytes: u64| {
            state.create_dir_all(Path::new(path).parent().unwrap(), Attributes::mode(0o700)).unwrap();
            state.append(Path::new(path), Attributes::mode(0o600)).unwrap().set_len(bytes).unwrap();
            // The kernel's clock moves by ticks.
            let stamp = |path: &str| state.facts(Path::new(path)).unwrap().unwrap().stamp;
            let (_, seconds, nanoseconds) = stamp(path);
            while (stamp("probe").1, stamp("probe").2) <= (seconds, nanoseconds) {
                state.write(Path::new("probe"), b"", Attributes::mode(0o600)).unwrap();
            }
        };
        state.write(Path::new("probe"), b"", Attributes::mode(0o600)).unwrap();
        for number in 0..20 {
            // Not the names decide.
            put(&format!("deployments/{:02}.unreadable", 50 - number), 10);
        }
        for path in ["deployments/a.json", "outbox/small.unreadable", "certificates.unreadable"] {
            put(path, 10);
        }
        for number in 0..3 {
            put(&format!("outbox/{number}.unreadable"), (UNREADABLE_DISK / 6) as u64);
        }
        let report = Report::kept();
        let bytes = bound_unreadable(&state, &report).unwrap();
        let left = |path: &str| state.list(Path::new(path)).unwrap();
        assert_eq!(
            left("deployments"),
            ["31.unreadable", "32.unreadable", "33.unreadable", "34.unreadable", "35.unreadable", "a.json"]
        );
        assert_eq!(left("outbox"), ["2.unreadable", "small.unreadable"]);
        assert!(left("").contains(&"certificates.unreadable".into()));
        assert_eq!(bytes, 50 + (UNREADABLE_DISK / 6) as u64 + 10 + 10);
        let reported: Vec<String> =
            report.events().iter().map(|event| format!("{} {}", event.code.entry().code, event.message)).collect();
        assert_eq!(reported.len(), 2, "{reported:?}");
        assert!(
            reported[0].starts_with("HNA-0690 15 old files") && reported[1].starts_with("HNA-0690 2 old files"),
            "{reported:?}"
        );
        assert_eq!(bound_unreadable(&state, &report).unwrap(), bytes);
        assert_eq!(report.events().len(), 2);
    }

    #[test]
    fn what_was_moved_away_is_reported_with_its_size_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let root = Tree::open(dir.path()).unwrap();
        let data = Path::new(MEMBERSHIPS[0].path);
        let (parent, name) = (data.parent().unwrap(), data.file_name().unwrap().to_string_lossy());
        for kept in [format!("{name}.aside-2/a"), format!("{name}.aside-x/a"), format!("{name}.mine/a"), format!("{name}/a")] {
            root.create_dir_all(parent.join(&kept).parent().unwrap(), Attributes::mode(0o700)).unwrap();
            root.write(&parent.join(&kept), b"12345", Attributes::mode(0o600)).unwrap();
        }
        let found = set_aside(&root).unwrap();
        let path = parent.join(format!("{name}.aside-2")).display().to_string();
        assert_eq!(found, [SetAsideStatus { remove: format!("rm -rf {path}"), path, bytes: 5, is_all: true }]);
    }
}
