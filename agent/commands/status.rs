//! `status [-v] [--json] [--wait[=SECONDS]] [--watch]`, `explain [--json]`: what the daemon last said of itself; they work when
//! it is down.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use nix::unistd::geteuid;
use serde_json::{Value, json};
use sysinfo::Disks;

use super::{document, print, print_error, print_styled, terminal};
use crate::budgets::json;
use crate::clock::Clock;
use crate::collect::Snapshot;
use crate::daemon;
use crate::daemon::status_file::FILE;
use crate::deploy::{DeploymentRecord, Generations, Journal, last_lines, last_output_suffix};
use crate::error::{Error, Result};
use crate::files::{READ_LIMIT, Tree};
use crate::process::exit;
use crate::programs::Programs;
use crate::report::Report;
use crate::report::condition_state::ConditionState;
use crate::report::explain::{headline, page, tree};
use crate::report::screen::{self, screen};
use crate::report::status::{
    Condition, ConditionId, DeploymentState, DeploymentStatus, SCHEMA_VERSION, StatusDocument, WaitProgress,
};
use crate::report::text::{argument, json_page};
use crate::settings::Settings;
use crate::signal::Outbox;
use crate::watch::Watch;

/// The fallback poll for inotify: a daemon that ends writes nothing.
const POLL: Duration = Duration::from_secs(1);

/// What the command line of `status` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// The document in place of the page.
    pub json: bool,
    /// Until every condition is met, or one has failed, or so many seconds have passed, if that is limited.
    pub wait: Option<Option<u64>>,
    /// At every change.
    pub watch: bool,
    /// With all that there is.
    pub verbose: bool,
}

/// Prints the page, or the document: once, when the wait is over, or at every change.
///
/// # Errors
/// If nothing is known of the agent on this machine, or it cannot be read.
pub fn run(settings: &Settings, wanted: Arguments) -> Result<ExitCode> {
    if let Some(seconds) = wanted.wait {
        return wait(settings, seconds.map_or(Duration::MAX, Duration::from_secs), wanted);
    }
    let watch = watch(settings);
    let (mut shown, mut trouble) = (None, None);
    loop {
        match read(settings) {
            Ok((status, running)) => {
                if shown.is_none() {
                    warn_if_foreign_state(settings);
                }
                if shown.as_ref() != Some(&(status.clone(), running)) {
                    show(&status, running, wanted)?;
                }
                if !wanted.watch {
                    return Ok(if status.is_degraded() || !running { exit::pending() } else { exit::OK });
                }
                shown = Some((status, running));
                trouble = None;
            }
            Err(error) if !wanted.watch => return Err(error),
            // It may start yet.
            Err(error) => {
                if trouble.as_ref() != Some(&error) {
                    print_error(&error);
                }
                trouble = Some(error);
            }
        }
        watch.wait(POLL);
    }
}

/// Until every condition is met (0) or one failed (1), or until the time is up (75). A daemon that is down is waited for too: it may be starting.
fn wait(settings: &Settings, limit: Duration, wanted: Arguments) -> Result<ExitCode> {
    let since = Clock::system().start();
    let watch = watch(settings);
    loop {
        let known = read(settings);
        let verdict = known.as_ref().map_or(WaitProgress::Waiting, |(status, running)| status.verdict(*running));
        let left = limit.saturating_sub(since.elapsed());
        if verdict == WaitProgress::Waiting && !left.is_zero() {
            watch.wait(POLL.min(left));
            continue;
        }
        if known.is_ok() {
            warn_if_foreign_state(settings);
        }
        match &known {
            Ok((status, running)) if wanted.json => show(status, *running, wanted)?,
            Ok((status, running)) => print(&format!("{}\n", outcome(verdict, &headline(&tree(status, *running)))))?,
            Err(error) => print_error(error),
        }
        return Ok(match verdict {
            WaitProgress::Done => exit::OK,
            WaitProgress::Failed => exit::FAILED,
            WaitProgress::Waiting => exit::timed_out(),
        });
    }
}

/// What the wait ended with. Done is what Heat asks for: a drop-in that is skipped, say, does not undo that.
fn outcome(verdict: WaitProgress, headline: &str) -> String {
    match verdict {
        WaitProgress::Done if !headline.starts_with("OK") => {
            format!("OK: everything is done and reported to Heat; but {headline}")
        }
        WaitProgress::Waiting => format!("timed out: {headline}"),
        _ => headline.to_owned(),
    }
}

fn watch(settings: &Settings) -> Watch {
    let watch = Watch::open();
    watch.add(&settings.run_dir);
    watch
}

fn show(status: &StatusDocument, running: bool, wanted: Arguments) -> Result<()> {
    let disks = disks(status);
    if !wanted.json {
        let now = Clock::system().now();
        return print_styled(&screen(status, running, now, free_space(&disks).as_deref(), terminal::style(wanted.verbose)));
    }
    print(&json_page(&document(status, running, &disks)?))
}

/// The status for programs: the daemon's document, and what can only be said at this moment (docs/schemas/status.json).
fn document(status: &StatusDocument, running: bool, disks: &[DiskSpace]) -> Result<Value> {
    let mut value = json::of(status)?;
    if let Some(agent) = value.get_mut("agent").and_then(|agent| agent.as_object_mut()) {
        agent.insert("running".to_owned(), running.into());
    }
    if let Some(page) = value.as_object_mut() {
        let (overall, line) = screen::headline(status, running);
        page.insert("overall".to_owned(), overall.as_str().into());
        page.insert("headline".to_owned(), line.into());
        let disk = |disk: &DiskSpace| json!({"path": disk.path, "free_mib": disk.free >> 20, "size_mib": disk.size >> 20});
        page.insert("disks".to_owned(), disks.iter().map(disk).collect());
    }
    Ok(value)
}

/// Prints the tree of conditions; 1 if one of them failed.
///
/// # Errors
/// If nothing is known of the agent on this machine, or it cannot be read.
pub fn explain(settings: &Settings, json: bool, all: bool) -> Result<ExitCode> {
    let (status, running) = read(settings)?;
    warn_if_foreign_state(settings);
    show_tree(&tree(&status, running), json, all)
}

/// The tree of a machine whose settings cannot be read: its first condition.
///
/// # Errors
/// If standard output takes no more.
pub fn explain_settings(error: &Error, json: bool) -> Result<ExitCode> {
    let settings = Condition {
        name: ConditionId::Settings,
        state: ConditionState::Failed,
        first: true,
        cause: Some(error.to_string()),
        remedy: error.suggested_remedy().map(str::to_owned),
        ..Condition::default()
    };
    show_tree(&[settings], json, true).map(|_| exit::usage())
}

/// The tree of conditions for programs (docs/schemas/explain.json).
fn tree_document(tree: &[Condition], failed: bool) -> Value {
    json!({"schema_version": SCHEMA_VERSION, "summary": headline(tree), "failed": failed, "conditions": tree})
}

fn show_tree(tree: &[Condition], json: bool, all: bool) -> Result<ExitCode> {
    let failed = tree.iter().any(|condition| matches!(condition.state, ConditionState::Failed | ConditionState::Degraded));
    if json {
        print(&json_page(&tree_document(tree, failed)))?;
    } else {
        print(&page(tree, Clock::system().now(), all, terminal::width()))?;
    }
    Ok(if failed { exit::FAILED } else { exit::OK })
}

/// On standard error, where the state is another instance's: the page is then too.
pub(crate) fn warn_if_foreign_state(settings: &Settings) {
    if let Err(error) = daemon::check_instance(&settings.state_dir) {
        print_error(&error);
    }
}

/// What is known, and whether the daemon runs: its status file, or without one what it left on disk.
pub(crate) fn read(settings: &Settings) -> Result<(StatusDocument, bool)> {
    let reported: Option<StatusDocument> = match Tree::open(&settings.run_dir) {
        Ok(tree) => tree.read_json(Path::new(FILE)).map_err(|error| {
            error.remedy("it is damaged or of another version: systemctl restart heat-node-agent rewrites it")
        })?,
        Err(_) => None,
    };
    let is_reported = reported.is_some();
    let mut status = reported.map_or_else(|| of_state(settings), Ok)?;
    quote(settings, &mut status);
    if is_reported && is_running(status.agent.pid) {
        return Ok((status, true));
    }
    // Without /proc nobody can be found.
    let lock = Tree::open(&settings.state_dir).ok().and_then(|state| state.facts(Path::new(daemon::LOCK)).ok().flatten());
    let daemon = Tree::open(Path::new("/proc")).ok().and_then(|proc| daemon_of(&proc, lock.map(|lock| lock.stamp.0)));
    if let Some(pid) = daemon {
        without_status_file(&mut status, pid, &settings.run_dir);
    }
    Ok((status, daemon.is_some()))
}

/// What is known is older than the daemon that runs: it has not written its status file, which a full disk keeps it from.
fn without_status_file(status: &mut StatusDocument, pid: u32, run_dir: &Path) {
    (status.agent.pid, status.agent.started) = (pid, String::new());
    let (file, run_dir) = (run_dir.join(FILE).display().to_string(), argument(&run_dir.display().to_string()).into_owned());
    status.conditions.retain(|one| one.name != ConditionId::State);
    status.conditions.push(Condition {
        name: ConditionId::State,
        state: ConditionState::Failed,
        fact: Some("it runs, but has not written its status".to_owned()),
        cause: Some(format!("the agent (pid {pid}) has not written {file}: what is shown here is what was known before")),
        remedy: Some(format!(
            "`df -h {run_dir}` and `df -i {run_dir}` show whether space or inodes are used up: make room there. The agent then writes it by \
             itself within 60 s. If there is room, `journalctl -u heat-node-agent -n 50` shows what keeps the agent from it"
        )),
        ..Condition::default()
    });
}

/// What scripts that failed or still run said last, and when those are ended: for root alone, as the status file is for everybody, and a script may say what nobody else is to see.
fn quote(settings: &Settings, status: &mut StatusDocument) {
    let is_wanted = |one: &&mut DeploymentStatus| {
        one.group != "kubernetes-node" && (one.listed && one.failed || one.state == DeploymentState::Running)
    };
    let mut wanted = status.deployments.iter_mut().filter(is_wanted).peekable();
    if wanted.peek().is_none() {
        return;
    }
    let Ok(state) = document::open_state(settings) else { return };
    let Ok(records) = Journal::inspect(&state) else { return };
    for one in wanted {
        if one.state == DeploymentState::Running {
            if let Some(record) = records.iter().find(|record| record.id == one.id) {
                follow(&state, record, one);
            }
            continue;
        }
        let outcome =
            records.iter().find(|record| record.id == one.id).and_then(|record| Journal::whole(&state, record).ok().flatten());
        if let Some(suffix) = outcome.and_then(|outcome| outcome.failure_details()).as_deref().map(last_output_suffix) {
            one.causes = one.why();
            if let Some(last) = one.causes.last_mut().filter(|cause| !cause.contains(&suffix)) {
                last.push_str(&suffix);
            }
        }
    }
}

/// What a job that runs said last, and when its time is up.
fn follow(state: &Tree, record: &DeploymentRecord, one: &mut DeploymentStatus) {
    let job = record.job();
    // Nothing of this keeps the rest from being shown.
    one.said_last = Programs::end_of_output(state, &job).ok().flatten().and_then(|end| last_lines(&end));
    let limit = Programs::time_limit(state, &job).ok().flatten();
    one.given_up = record.started.zip(limit).map(|(began, limit)| began.after(limit).rfc3339());
}

/// Reads the state directory as it is, without the daemon's lock.
fn of_state(settings: &Settings) -> Result<StatusDocument> {
    let root = Tree::open(Path::new("/"))?;
    let state = match document::open_state(settings) {
        Ok(state) => state,
        // Where the daemon never ran, there is nothing to know of it but that.
        Err(_) if geteuid().is_root() => return Ok(daemon::of_state(&Snapshot::default(), &[], None, &[], &root)),
        Err(error) => {
            return Err(Error::permanent(format!("no daemon has written its status since boot, and {}", error.cause())));
        }
    };
    let collector = document::collected(settings, &Report::kept())?;
    let (records, generation, waiting) = (Journal::inspect(&state)?, Generations::inspect(&state), Outbox::inspect(&state)?);
    Ok(daemon::of_state(collector.snapshot(), &records, generation.as_ref(), &waiting, &root))
}

/// Room on a disk.
struct DiskSpace {
    path: String,
    free: u64,
    size: u64,
}

/// Room on the disks that the node's work fills, asked for now: the first thing to look at when a node is unhealthy.
fn disks(status: &StatusDocument) -> Vec<DiskSpace> {
    let volumes = status.node.iter().flat_map(|node| &node.volumes).map(|volume| volume.place.as_str());
    let places: Vec<&str> =
        ["/", "/var", "/var/lib/docker", "/var/lib/etcd", "/var/lib/containerd", "/var/lib/kubelet", "/var/log"]
            .into_iter()
            .chain(volumes)
            .collect();
    let mut found: Vec<DiskSpace> = Vec::new();
    for disk in Disks::new_with_refreshed_list().iter().flatten() {
        let path = disk.mount_point().display().to_string();
        if places.contains(&path.as_str()) && found.iter().all(|other| other.path != path) {
            found.push(DiskSpace { path, free: disk.available_space(), size: disk.total_space() });
        }
    }
    found
}

/// `/ 3.1 of 9.8 GiB`, all in one line.
fn free_space(disks: &[DiskSpace]) -> Option<String> {
    let tenths = |bytes: u64| bytes.saturating_mul(10) >> 30;
    let gib = |bytes: u64| format!("{}.{}", tenths(bytes) / 10, tenths(bytes) % 10);
    let all: Vec<_> = disks.iter().map(|disk| format!("{} {} of {} GiB", disk.path, gib(disk.free), gib(disk.size))).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// The daemon's process, by its unit. `lock`: the inode of the file that it locks, where that can be seen; an agent with another state directory is
/// another daemon.
fn daemon_of(proc: &Tree, lock: Option<u64>) -> Option<u32> {
    let locks = proc.read(Path::new("locks"), READ_LIMIT).ok().flatten().unwrap_or_default();
    let locks = String::from_utf8_lossy(&locks);
    // Who holds no lock that can be seen may hold this one all the same: without rights, or from within another namespace of processes.
    let is_anothers = |pid: &u32| {
        let held: Vec<u64> = locks.lines().filter_map(|line| locked_by(*pid, line)).collect();
        lock.is_some_and(|lock| !held.is_empty() && !held.contains(&lock))
    };
    // One that has ended meanwhile is in none.
    let in_unit = |pid: &u32| {
        let cgroups = proc.read(Path::new(&format!("{pid}/cgroup")), READ_LIMIT).ok().flatten().unwrap_or_default();
        String::from_utf8_lossy(&cgroups).lines().any(|line| line.ends_with(&format!("/{}", daemon::UNIT)))
    };
    let pids = proc.list(Path::new(".")).ok()?.into_iter().filter_map(|name| name.to_str()?.parse().ok());
    pids.filter(|pid| is_agent(proc, *pid) && !is_anothers(pid)).find(in_unit)
}

/// The inode of the file that this process has locked, by a line of /proc/locks (proc_locks(5)): `1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF`.
fn locked_by(pid: u32, line: &str) -> Option<u64> {
    let mut words = line.split_whitespace().skip_while(|word| *word != "FLOCK").skip(3);
    let is_it = words.next()?.parse() == Ok(pid);
    words.next().filter(|_| is_it)?.rsplit(':').next()?.parse().ok()
}

/// Whether the process that wrote the status is still there, and still an agent.
fn is_running(pid: u32) -> bool {
    Tree::open(Path::new("/proc")).is_ok_and(|proc| is_agent(&proc, pid))
}

fn is_agent(proc: &Tree, pid: u32) -> bool {
    let name = proc.read(Path::new(&format!("{pid}/comm")), READ_LIMIT);
    // The kernel keeps the first 15 characters of a name.
    name.ok().flatten().is_some_and(|name| name.starts_with(b"heat-node-agent"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::schema::assert_fits;

    #[test]
    fn documents_fit_their_schemas() {
        let room = DiskSpace { path: "/var".to_owned(), free: 3 << 30, size: 9 << 30 };
        for status in screen::tests::all() {
            for running in [true, false] {
                assert_fits("status", &document(&status, running, std::slice::from_ref(&room)).unwrap());
                let tree = tree(&status, running);
                assert_fits("explain", &tree_document(&tree, running));
            }
        }
    }

    #[test]
    fn the_end_of_a_wait_and_its_exit_code_say_the_same() {
        assert_eq!(outcome(WaitProgress::Done, "OK: every condition is met"), "OK: every condition is met");
        assert!(outcome(WaitProgress::Done, "FAILED at settings").starts_with("OK: "));
        assert_eq!(outcome(WaitProgress::Waiting, "FAILED at daemon"), "timed out: FAILED at daemon");
        assert_eq!(outcome(WaitProgress::Failed, "FAILED at node"), "FAILED at node");
    }

    #[test]
    fn a_status_file_that_cannot_be_read_is_reported_with_the_way_out() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        tree.write(Path::new(FILE), b"{", crate::files::Attributes::mode(0o644)).unwrap();
        let settings = Settings { run_dir: dir.path().to_owned(), ..Settings::default() };
        assert!(read(&settings).unwrap_err().suggested_remedy().unwrap().contains("restart"));
    }

    /// Attack: with a full /run the status of a daemon that had ended was believed, and the one that ran was to be started.
    #[test]
    fn a_daemon_that_cannot_write_its_status_runs_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        for (pid, name, cgroup) in [
            (11, "heat-node-agent", "0::/user.slice/session-1.scope"),
            (12, "sleep", "0::/system.slice/heat-node-agent.service"),
            (13, "heat-node-agent", "5:cpu:/x\n1:name=systemd:/system.slice/heat-node-agent.service"),
        ] {
            let tree = Tree::open(dir.path()).unwrap();
            tree.create_dir(Path::new(&pid.to_string()), crate::files::Attributes::mode(0o755)).unwrap();
            for (file, text) in [("comm", name), ("cgroup", cgroup)] {
                let (path, mode) = (format!("{pid}/{file}"), crate::files::Attributes::mode(0o644));
                tree.write(Path::new(&path), format!("{text}\n").as_bytes(), mode).unwrap();
            }
        }
        let proc = Tree::open(dir.path()).unwrap();
        assert_eq!(daemon_of(&proc, None), Some(13));
        // Attack: the daemon of another state directory was taken for the one that had ended.
        for (lines, lock, found) in [
            ("1: FLOCK  ADVISORY  WRITE 13 fe:00:70 0 EOF\n2: POSIX  ADVISORY  WRITE 9 fe:00:71 0 EOF\n", 71, None),
            ("1: FLOCK  ADVISORY  WRITE 13 fe:00:70 0 EOF\n2: FLOCK  ADVISORY  WRITE 13 fe:00:71 0 EOF\n", 71, Some(13)),
            ("1: -> FLOCK  ADVISORY  WRITE 12 fe:00:70 0 EOF\n", 71, Some(13)),
        ] {
            proc.write(Path::new("locks"), lines.as_bytes(), crate::files::Attributes::mode(0o644)).unwrap();
            assert_eq!(daemon_of(&proc, Some(lock)), found, "{lines}");
        }
        proc.remove_dir_all(Path::new("13")).unwrap();
        assert_eq!(daemon_of(&proc, None), None);
        // What cannot be understood of the metadata is said first.
        for mut status in
            screen::tests::all().into_iter().filter(|one| one.conditions.iter().all(|one| one.name != ConditionId::Metadata))
        {
            without_status_file(&mut status, 13, Path::new("/run/x"));
            let (_, line) = screen::headline(&status, true);
            let is_known = status.identity.as_ref().is_some_and(|identity| identity.instance.is_some());
            assert!(!is_known || line == "FAILED the agent's own work: it runs, but has not written its status", "{line}");
            assert!(status.is_degraded() && status.verdict(true) != WaitProgress::Done);
            let page =
                screen(&status, true, Clock::system().now(), None, screen::Style { width: 100, color: false, verbose: false });
            assert!(page.contains("/run/x") && !page.contains("systemctl start") && !page.contains("running for ,"), "{page}");
        }
    }
}
