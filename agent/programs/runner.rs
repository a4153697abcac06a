//! The inside of a job's unit: `heat-node-agent hook-run DIR`.
//!
//! In: DIR/job.json. Out: DIR/output.log while it runs, DIR/result.json, whole and synced, as the last
//! act: it does not end, and keeps its lock, before that is written. Exactly one runner of a DIR ever
//! starts the program.

use std::collections::BTreeMap;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::str::SplitWhitespace;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::capture::{CapturedStream, ForwardedOutput, Log, OutputMasks, drain};
use super::mask::Mask;
use super::{
    GRACE, GROUP, GROUP_RESERVE, HookOutput, JOB, Job, JobFile, JobResult, LOCK, OUTPUT, POSTPONED, Postponed, RESULT,
    RESULT_RESERVE, RESULT_RESERVE_BYTES, STARTED, json_size, reserve_all,
};
use crate::backoff::Backoff;
use crate::budgets::{OUTPUTS, RESULT_BYTES};
use crate::clock::Clock;
use crate::error::remedy::Remedy;
use crate::error::{Context, Error, Result};
use crate::files::{Attributes, FileKind, Lock, Tree};
use crate::report::reason::FailureReason;
use crate::report::text::{escaped, shortened};

/// How long background processes of an ended program may keep its output open before we go on without them.
const STRAGGLERS: Duration = Duration::from_secs(2);
/// How long what the program said may take to be passed on: a journal or a disk that stands still must not keep its result forever.
const OUTPUT_DRAIN_LIMIT: Duration = Duration::from_mins(1);
/// Largest output file that goes to Heat, in bytes; Heat takes 1 MiB for everything.
const OUTPUT_FILE_LIMIT: u64 = 512 * 1024;
/// What a result has in JSON beside its texts, in bytes.
const RESULT_FRAME: usize = 4096;
/// How long the result of a job that may run again is tried to be written.
const DELIVERY_LIMIT: Duration = Duration::from_mins(1);
/// Pauses between the tries to write a result.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// Runs the job of a directory, at most once, and ends only when its result is written.
///
/// # Errors
/// If the job cannot be read, or there is no disk space for its files and for what it needs at its start and its end: it has not begun then,
/// and the agent begins it again. If its directory was removed while it ran. A program that fails is no error.
pub fn run(directory: &Path, clock: &Clock) -> Result<()> {
    run_in(&Tree::open(directory)?, &Tree::open(Path::new("/"))?, clock)
}

fn run_in(tree: &Tree, root: &Tree, clock: &Clock) -> Result<()> {
    let job: Job =
        tree.read_json(Path::new(JOB))?.ok_or_else(|| Error::permanent("there is no job.json").context(tree.base().display()))?;
    let begun = begin(tree, root, &job).map_err(|error| if error.is_out_of_space() { postponed(tree, &error) } else { error })?;
    let Some(Begun { _lock, log }) = begun else { return Ok(()) };
    let watch = clock.start();
    let mut ran = log.and_then(|log| run_program(tree, root, &job, &log)).unwrap_or_else(|error| JobResult {
        status: 127,
        stderr: FailureReason::of(&error).to_string(),
        not_started: Some(Box::new(FailureReason::of(&error))),
        ..JobResult::default()
    });
    ran.duration_ms = watch.millis();
    let _ = bound(&mut ran, RESULT_BYTES);
    // What may run again is begun anew by the agent: its result is not worth a process that keeps the file system in use until then.
    let limit = job.begun_mark.is_none().then_some(DELIVERY_LIMIT);
    deliver(tree, &ran, clock, limit)
}

/// A job that is marked as begun.
struct Begun {
    /// Held until the end: by it an agent without systemd knows that the job runs.
    _lock: Lock,
    /// Where its output goes, or why it cannot run.
    log: Result<Arc<Mutex<Log>>>,
}

/// Does what needs space and then marks the job as begun: what was made before that is made again by the next try, and nothing of the job
/// has run. `None`: somebody else runs it, or it has begun before.
///
/// # Errors
/// Then it has not begun. Whatever but a lack of space keeps its files from being made is found in what is given back: it does not pass.
fn begin(tree: &Tree, root: &Tree, job: &Job) -> Result<Option<Begun>> {
    let Some(lock) = tree.lock(Path::new(LOCK))? else { return Ok(None) };
    if tree.facts(Path::new(STARTED))?.is_some() {
        return Ok(None);
    }
    // What an earlier try lacked is not why this one does not begin; where it cannot be removed, nothing can be written either.
    let _ = tree.remove(Path::new(POSTPONED));
    // The one who prepared the job has done so, unless it is of an earlier version.
    reserve_all(tree, Path::new(""))?;
    let output = || tree.append(Path::new(OUTPUT), Attributes::mode(0o600)).map(Log::new);
    let log = match prepare(root, job).and_then(|()| output()) {
        Err(error) if error.is_out_of_space() => return Err(error),
        log => log,
    };
    if !tree.create_new(Path::new(STARTED), b"", Attributes::mode(0o600))? {
        return Ok(None);
    }
    let mark = |path: &String| root.create_new(Path::new(path), b"", Attributes::mode(0o600));
    let log = match job.begun_mark.as_ref().map_or(Ok(true), mark) {
        Ok(true) => log,
        // It has begun, without a result here: only what lies beside the mark may say how it ended.
        Ok(false) => return Ok(None),
        Err(error) if error.is_out_of_space() => {
            tree.remove(Path::new(STARTED))?;
            return Err(error);
        }
        Err(error) => Err(error),
    };
    Ok(Some(Begun { _lock: lock, log }))
}

/// Leaves word for the agent why nothing began.
fn postponed(tree: &Tree, error: &Error) -> Error {
    let remedy = error.typed_remedy().cloned();
    let error = error.clone().context("it was not started, because there is no space for its files");
    // Where even that fails, the agent finds by itself that there is no space for the result.
    if let Ok(bytes) = serde_json::to_vec(&Postponed { cause: error.to_string(), remedy }) {
        let _ = tree.write_reserved(Path::new(RESULT_RESERVE), Path::new(POSTPONED), &bytes);
    }
    error
}

/// Writes the result, for as long as `limit` says, or however long that takes: a runner that is gone without one means that nobody knows how
/// the program ended.
fn deliver(tree: &Tree, ran: &JobResult, clock: &Clock, limit: Option<Duration>) -> Result<()> {
    let mut pauses = PAUSES;
    let mut is_said = false;
    let since = clock.start();
    while let Err(error) = write_result(tree, ran) {
        if tree.is_removed() || limit.is_some_and(|limit| since.elapsed() >= limit) {
            return Err(error);
        }
        if !std::mem::replace(&mut is_said, true) {
            // The number may become somebody else's while this goes on.
            let _ = tree.remove(Path::new(GROUP));
            let remedy = error.suggested_remedy().map(|remedy| format!(" ({remedy})")).unwrap_or_default();
            let ended = format!("the program exited with status {}, but its result cannot be written yet", ran.status);
            // A closed standard error stops nothing.
            let _ = writeln!(std::io::stderr(), "heat-node-agent: {ended}; retrying until it can: {error}{remedy}");
        }
        clock.pause(pauses.next_pause());
    }
    Ok(())
}

/// Where there is no space for the whole result, a shortened one goes where space was reserved for it; one that cannot be shortened to that
/// waits for space.
fn write_result(tree: &Tree, ran: &JobResult) -> Result<()> {
    let Err(error) = tree.write_json(Path::new(RESULT), ran, Attributes::mode(0o600)) else {
        let _ = tree.remove(Path::new(RESULT_RESERVE));
        return Ok(());
    };
    let mut short = ran.clone();
    if !bound(&mut short, RESULT_RESERVE_BYTES - RESULT_FRAME) {
        return Err(error);
    }
    let bytes = serde_json::to_vec(&short).map_err(Error::permanent)?;
    tree.write_reserved(Path::new(RESULT_RESERVE), Path::new(RESULT), &bytes)
}

fn run_program(tree: &Tree, root: &Tree, job: &Job, log: &Arc<Mutex<Log>>) -> Result<JobResult> {
    let mask = Mask::of(&job.secrets, job.hide_output);
    let printed = if job.printed_secrets.is_empty() && !job.hide_printed {
        mask.clone()
    } else {
        Mask::of(&[&job.secrets[..], &job.printed_secrets].concat(), job.hide_output || job.hide_printed)
    };
    let (enough, waited) = std::io::pipe()?;
    let enough = Arc::new(enough);
    let mut child = spawn(job)?;
    // From here on there is a program: no error may leave it running with nobody who watches it.
    let group = Pid::from_raw(child.id().cast_signed());
    // For who ends the job.
    if let Err(error) = tree.write_reserved(Path::new(GROUP_RESERVE), Path::new(GROUP), group.to_string().as_bytes()) {
        return Ok(given_up(group, &error));
    }
    feed(&mut child, job.stdin.clone());
    let (streams, drained) = channel();
    let kept = [job.stdout_is_json, false]
        .map(|is_answer| CapturedStream { answer: is_answer.then_some(HookOutput::NoAnswer), ..CapturedStream::default() });
    let [stdout, stderr] = kept.map(|kept| Arc::new(Mutex::new(kept)));
    // What a hook answers has its outputs.
    let masks = OutputMasks { printed: &printed, answer: &mask };
    keep(child.stdout.take(), &enough, ForwardedOutput::new(std::io::stdout()), log, masks, &streams, &stdout);
    keep(child.stderr.take(), &enough, ForwardedOutput::new(std::io::stderr()), log, masks, &streams, &stderr);
    drop(streams);
    let (status, timed_out) = match wait(child, group, job.time_limit_ms.map(Duration::from_millis)) {
        Ok(ended) => ended,
        Err(error) => return Ok(given_up(group, &error)),
    };
    wait_for_streams(&drained, waited);
    let [(stdout, answer), (stderr, _)] = [stdout, stderr].map(|kept| {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        (kept.masked.text(), kept.answer.take().unwrap_or_default().with_printed_masked(&printed))
    });
    Ok(JobResult {
        status: status.code().unwrap_or_else(|| -status.signal().unwrap_or(1)),
        stdout: if matches!(answer, HookOutput::Answer(_)) { String::new() } else { stdout },
        answer,
        stderr,
        outputs: outputs(root, job, &mask),
        timed_out,
        not_started: None,
        unknown: None,
        duration_ms: 0,
    })
}

/// Ends a program that cannot be watched.
fn given_up(group: Pid, why: &Error) -> JobResult {
    // It may have ended just now.
    let _ = killpg(group, Signal::SIGKILL);
    let why = format!("heat-node-agent killed the program after starting it, because it could not be monitored: {why}");
    JobResult { status: -9, ..JobResult::unknown(why) }
}

fn prepare(root: &Tree, job: &Job) -> Result<()> {
    for directory in job.directories.iter().chain(&job.directory) {
        root.create_dir_all(Path::new(directory), Attributes::mode(0o700))?;
    }
    for file in &job.files {
        let path = Path::new(&file.path);
        if let Some(above) = path.parent() {
            root.create_dir_all(above, Attributes::mode(0o700))?;
        }
        root.write(path, file.content.as_bytes(), Attributes::mode(file.mode))?;
    }
    for path in job.outputs.values().map(Path::new) {
        match root.facts(path) {
            Ok(Some(facts)) if facts.kind == FileKind::Directory => drop(root.remove_dir_all(path)?),
            Ok(Some(_)) => drop(root.remove(path)?),
            Ok(None) => {}
            // No file has such a name: the script runs without that output.
            Err(error) if error.errno() == Some(Errno::ENAMETOOLONG) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn spawn(job: &Job) -> Result<Child> {
    let Some((program, arguments)) = job.argv.split_first() else { return Err(Error::permanent("the job names no program")) };
    #[expect(clippy::disallowed_methods, reason = "this is the module that starts programs")]
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    if let Some(called) = &job.called {
        command.arg0(called);
    }
    for (name, value) in &job.environment {
        // What the kernel cannot take as an environment variable would fail the whole start.
        if !name.is_empty() && !name.contains(['=', '\0']) {
            command.env(name, value.replace('\0', ""));
        }
    }
    if let Some(directory) = &job.directory {
        command.current_dir(directory);
    }
    if script(job, program).is_some_and(|script| names_no_program_by_crlf(&script.content)) {
        return Err(Error::permanent("its lines end in CR LF, so that the CR is taken for a part of its interpreter's name")
            .remedy(Remedy::stack_update("save the script with lines that end in LF (`dos2unix`), and update the stack")));
    }
    if let Some(name) = missing_env_program(job, program) {
        return Err(no_interpreter(&format!("{name} (first line: #!/usr/bin/env {name})")));
    }
    command.spawn().map_err(|error| spawn_failure(job, program, &error))
}

/// Where env(1) is.
const ENV: [&str; 2] = ["/usr/bin/env", "/bin/env"];

/// The script that is the program itself.
fn script<'a>(job: &'a Job, program: &str) -> Option<&'a JobFile> {
    job.files.iter().find(|file| file.path == program)
}

/// The words of the first line of a script that names its interpreter.
fn shebang(script: &JobFile) -> Option<SplitWhitespace<'_>> {
    Some(script.content.lines().next()?.strip_prefix("#!")?.split_whitespace())
}

/// Whether the first line ends as those of Windows do, and that is a part of its interpreter's name: behind an argument it may do no harm.
fn names_no_program_by_crlf(content: &str) -> bool {
    let line = content.split('\n').next().and_then(|line| line.strip_prefix("#!")?.strip_suffix('\r'));
    let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    match words.as_slice() {
        [_] => true,
        [env, name] => ENV.contains(env) && !name.starts_with('-') && !name.contains('='),
        _ => false,
    }
}

fn no_interpreter(name: &str) -> Error {
    Error::permanent(format!("its interpreter {} is not installed", shortened(&escaped(name), 200))).remedy(
        Remedy::stack_update_or(
            "install it on this node; or name another interpreter in the script's first line and update the stack",
        ),
    )
}

/// The interpreter that a script has looked up by env(1), where no directory of PATH holds it: env would end with 127, which a script may
/// end with too.
fn missing_env_program<'a>(job: &'a Job, program: &str) -> Option<&'a str> {
    let mut words = shebang(script(job, program)?)?;
    words.next().filter(|env| ENV.contains(env))?;
    // Without -S the kernel hands everything over as one name.
    let name = words.next()?;
    let is_plain = words.next().is_none() && !name.contains(['/', '=']) && !name.starts_with('-');
    let path = match job.environment.get("PATH") {
        Some(path) => path.into(),
        None => std::env::var_os("PATH")?,
    };
    let is_found = || std::env::split_paths(&path).any(|directory| directory.join(name).exists());
    (is_plain && !is_found()).then_some(name)
}

/// Why a program did not start. The kernel says of a script without its interpreter only that a file does not exist.
fn spawn_failure(job: &Job, program: &str, error: &std::io::Error) -> Error {
    let script = script(job, program);
    let interpreter = script.and_then(shebang).and_then(|mut words| words.next());
    match (error.raw_os_error(), interpreter) {
        (Some(2), Some(interpreter)) => no_interpreter(interpreter),
        (Some(8), None) if script.is_some() => Error::permanent("its first line names no interpreter")
            .remedy(Remedy::stack_update("begin the script with a line such as #!/bin/sh in the template and update the stack")),
        (number, _) => Error::permanent(error).context(format!("starting {program}")).remedy(match number {
            Some(8) => "the program is not one for this machine; install one that is",
            Some(2) => "install the program on this node",
            Some(13) => "look for a mount option noexec (`findmnt -T /var/lib/heat-config`) or a security module that forbids it",
            _ => "look at `journalctl -u heat-node-agent -n 50`",
        }),
    }
}

fn feed(child: &mut Child, text: String) {
    let Some(mut stdin) = child.stdin.take() else { return };
    // A program may end without reading its input: that is its right.
    let fed = std::thread::Builder::new().name("stdin".to_owned()).spawn(move || drop(stdin.write_all(text.as_bytes())));
    drop(fed);
}

fn keep(
    stream: Option<impl Read + AsFd + Send + 'static>,
    enough: &Arc<PipeReader>,
    mut to: impl Write + Send + 'static,
    log: &Arc<Mutex<Log>>,
    masks: OutputMasks<'_>,
    done: &Sender<()>,
    kept: &Arc<Mutex<CapturedStream>>,
) {
    if let Some(stream) = stream {
        let (kept, enough, log) = (Arc::clone(kept), Arc::clone(enough), Arc::clone(log));
        let (printed, answer, done) = (masks.printed.clone(), masks.answer.clone(), done.clone());
        let reader = std::thread::Builder::new().name("output".to_owned()).spawn(move || {
            drain(stream, &enough, &mut to, &log, &kept, OutputMasks { printed: &printed, answer: &answer });
            drop(done);
        });
        drop(reader);
    }
}

/// Waits for the program; at the time limit its whole process group gets SIGTERM, then SIGKILL.
fn wait(mut child: Child, group: Pid, limit: Option<Duration>) -> Result<(ExitStatus, bool)> {
    let (ended, end) = channel();
    std::thread::Builder::new()
        .name("wait".to_owned())
        .spawn(move || drop(ended.send(child.wait())))
        .context(|| "waiting for the program")?;
    let lost = || Error::transient("the end of the program was not observed");
    let Some(limit) = limit else { return Ok((end.recv().map_err(|_| lost())??, false)) };
    for (pause, signal) in [(limit, Signal::SIGTERM), (GRACE, Signal::SIGKILL)] {
        match end.recv_timeout(pause) {
            Ok(status) => return Ok((status?, signal == Signal::SIGKILL)),
            Err(RecvTimeoutError::Timeout) => {
                // It may have ended just now.
                let _ = killpg(group, signal);
            }
            Err(RecvTimeoutError::Disconnected) => return Err(lost()),
        }
    }
    Ok((end.recv().map_err(|_| lost())??, true))
}

/// The readers end when every holder of the pipes has; one that stays in the background is not waited for, but what was said until
/// then is read, however late the readers get their turn.
fn wait_for_streams(drained: &Receiver<()>, waited: PipeWriter) {
    // Nothing is ever sent: a wait ends when all senders are gone, or at its limit.
    if drained.recv_timeout(STRAGGLERS) == Err(RecvTimeoutError::Timeout) {
        drop(waited);
        let _ = drained.recv_timeout(OUTPUT_DRAIN_LIMIT);
    }
}

/// What went wrong with one output stands in its place: the program has run, and its result must not be lost for it.
///
/// However many and large the files are, no more of them is held at a time than a result may have: each is cut as it is read to the share
/// that its size leaves it.
fn outputs(root: &Tree, job: &Job, mask: &Mask) -> BTreeMap<String, String> {
    // What cannot be looked at is named when it is read.
    let size = |path: &str| root.facts_followed(Path::new(path)).map_or(Some(0), |facts| facts.map(|facts| facts.size));
    let there = job.outputs.iter().filter_map(|(name, path)| Some((name, path, size(path)?)));
    let there: Vec<_> = there.map(|(name, path, size)| (name, path, size.min(OUTPUT_FILE_LIMIT))).collect();
    let mut left = RESULT_BYTES;
    let each = json_size::share(there.iter().map(|(.., size)| usize::try_from(*size).unwrap_or(usize::MAX)), left);
    let mut found = BTreeMap::new();
    for (name, path, _) in there.iter().take(OUTPUTS) {
        let text = match root.read(Path::new(path), OUTPUT_FILE_LIMIT) {
            Ok(Some(bytes)) => String::from_utf8_lossy(&mask.hide(&bytes)).into_owned(),
            Ok(None) => continue,
            Err(error) => format!("[heat-node-agent could not read this output: {error}]"),
        };
        // A file may have grown since, or not report its size at all.
        let text = if text.len() > each.min(left) { json_size::cut(&text, each.min(left)) } else { text };
        left -= text.len();
        found.insert((*name).clone(), text);
    }
    if let Some((name, ..)) = there.get(OUTPUTS) {
        let more = there.len() - OUTPUTS;
        found.insert(
            (*name).clone(),
            format!("[heat-node-agent left out {more} outputs from here on: a result has at most {OUTPUTS}]"),
        );
    }
    found
}

/// Cuts the largest of what the program said and left, so that the result can be read again whatever it consists of. `false`: its names
/// alone are larger.
fn bound(ran: &mut JobResult, limit: usize) -> bool {
    let answer = if let HookOutput::Answer(answer) = &mut ran.answer { Some(answer) } else { None };
    let names = ran.outputs.keys().map(|name| json_size::size_of_name(name)).sum::<usize>()
        + answer.as_ref().map_or(0, |answer| answer.names());
    let texts = [&ran.stdout, &ran.stderr].into_iter().chain(ran.outputs.values()).map(|text| json_size::size(text));
    let sizes = texts.chain(answer.iter().flat_map(|answer| answer.sizes()));
    let each = json_size::share(sizes, limit.saturating_sub(names));
    for text in [&mut ran.stdout, &mut ran.stderr].into_iter().chain(ran.outputs.values_mut()) {
        *text = json_size::cut(text, each);
    }
    if let Some(answer) = answer {
        answer.cut(each);
    }
    names <= limit
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::mask::tests::hiding;
    use super::*;
    use crate::deploy::{DeploymentOutcome, SIGNAL_LIMIT, body};
    use crate::files::READ_LIMIT;
    use crate::programs::JobFile;
    use crate::watch::Watch;

    fn run_job(job: &Job) -> (tempfile::TempDir, JobResult) {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        tree.write_json(Path::new("job.json"), job, Attributes::mode(0o600)).unwrap();
        run(dir.path(), &Clock::system()).unwrap();
        let ran = tree.read_json(Path::new(RESULT)).unwrap().unwrap();
        (dir, ran)
    }

    fn shell(script: &str) -> Job {
        Job { argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(), ..Job::default() }
    }

    #[test]
    fn status_output_input_and_environment_come_and_go() {
        let mut job = shell("read line; echo \"$line $A\"; echo err >&2; exit 3");
        job.stdin = "hello\n".to_owned();
        job.environment.insert("A".to_owned(), "b c".to_owned());
        job.environment.insert("BAD=NAME".to_owned(), "x".to_owned());
        let (_dir, ran) = run_job(&job);
        assert_eq!((ran.status, ran.stdout.as_str(), ran.stderr.as_str()), (3, "hello b c\n", "err\n"));
    }

    #[test]
    fn a_program_is_called_by_the_name_that_the_job_gives_it() {
        let said = |called: Option<&str>| run_job(&Job { called: called.map(str::to_owned), ..shell("echo $0") }).1.stdout;
        assert_eq!([said(None), said(Some("hook-hiera"))], ["/bin/sh\n", "hook-hiera\n"]);
    }

    #[test]
    fn a_signal_is_a_negative_status_and_a_missing_program_is_127() {
        assert_eq!(run_job(&shell("kill -9 $$")).1.status, -9);
        let (_dir, ran) = run_job(&Job { argv: vec!["/nonexistent".to_owned()], ..Job::default() });
        assert_eq!(ran.status, 127);
        assert!(ran.not_started.unwrap().why().contains("starting /nonexistent"));
    }

    #[test]
    fn a_script_that_cannot_start_says_which_interpreter_it_lacks() {
        let dir = tempfile::tempdir().unwrap();
        for harmless in ["#!/usr/bin/perl -w\r\n", "#!/usr/bin/env -S sh -e\r\n", "#!/bin/sh\ntrue\r\n", "echo\r\n"] {
            assert!(!names_no_program_by_crlf(harmless), "{harmless:?}");
        }
        for (content, expected) in [
            ("#! /opt/bin/ruby -w\nputs 1\n", "its interpreter /opt/bin/ruby is not installed; remedy: install it on this node"),
            (
                "#!/usr/bin/env ruby9\nputs 1\n",
                "its interpreter ruby9 (first line: #!/usr/bin/env ruby9) is not installed; remedy: install it on this node",
            ),
            ("echo none\n", "its first line names no interpreter; remedy: begin the script with a line such as #!/bin/sh"),
            (
                "#!/bin/sh\r\ntrue\r\n",
                "its lines end in CR LF, so that the CR is taken for a part of its interpreter's name; remedy: save",
            ),
            ("#!/usr/bin/env sh\r\ntrue\r\n", "its lines end in CR LF"),
        ] {
            let path = dir.path().join(crate::digest::key_of(content)).display().to_string();
            let file = JobFile { path: path.clone(), content: content.to_owned(), mode: 0o700 };
            let job = Job { argv: vec![path], files: vec![file], ..Job::default() };
            // A child that another test is just starting may hold the script open for writing.
            let ran = loop {
                let (_dir, ran) = run_job(&job);
                if ran.not_started.as_ref().is_none_or(|why| !why.why().contains("Text file busy")) {
                    break ran;
                }
            };
            assert!(ran.not_started.as_ref().unwrap().to_string().starts_with(expected), "{ran:?}");
        }
    }

    #[test]
    fn the_time_limit_ends_the_whole_group() {
        let mut job = shell("sleep 600 & echo $!; sleep 600");
        // As long as the machine needs for the first line.
        let background = [300, 3_000, 60_000].into_iter().find_map(|limit| {
            job.time_limit_ms = Some(limit);
            let (_dir, ran) = run_job(&job);
            assert!(ran.timed_out && ran.status == -15, "{ran:?}");
            ran.stdout.trim().parse::<i32>().ok()
        });
        let stat = format!("/proc/{}/stat", background.unwrap());
        let runs = || {
            std::fs::read_to_string(&stat)
                .is_ok_and(|stat| ["(sh) ", "(sleep) "].iter().any(|name| stat.contains(name)) && !stat.contains(") Z "))
        };
        let (started, limit) = (Clock::system().start(), Duration::from_mins(2));
        while runs() {
            assert!(started.elapsed() < limit, "it was not ended");
            Watch::open().wait(Duration::from_millis(20));
        }
    }

    #[test]
    fn a_background_process_that_keeps_the_output_does_not_hold_us_up() {
        let (_dir, ran) = run_job(&shell("echo begun; sleep 600 & printf %s $!"));
        assert_eq!(ran.status, 0);
        // Also a line that has no end.
        let background = ran.stdout.strip_prefix("begun\n").and_then(|pid| pid.parse().ok());
        let background = Pid::from_raw(background.unwrap());
        assert_eq!(nix::sys::signal::kill(background, Signal::SIGKILL), Ok(()), "it was not waited for");
    }

    #[test]
    fn a_directory_runs_once_however_often_it_is_started() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let job = shell(&format!("echo ran >> {}/trace", dir.path().display()));
        tree.write_json(Path::new("job.json"), &job, Attributes::mode(0o600)).unwrap();
        for _ in 0..3 {
            run(dir.path(), &Clock::system()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(dir.path().join("trace")).unwrap(), "ran\n");
    }

    #[test]
    fn files_are_written_before_and_outputs_read_after_without_old_ones() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        let tree = Tree::open(dir.path()).unwrap();
        tree.write(Path::new("out.stale"), b"old", Attributes::mode(0o600)).unwrap();
        // A script of before left a directory; and no file can have so long a name.
        tree.create_dir_all(Path::new("out.directory/below"), Attributes::mode(0o700)).unwrap();
        let long = at(&"x".repeat(300));
        let job = Job {
            argv: vec![at("deep/script")],
            files: vec![JobFile {
                path: at("deep/script"),
                content: format!("#!/bin/sh\nprintf '%s' s3cret-value > {}\n", at("out.new")),
                mode: 0o700,
            }],
            outputs: [
                ("new", at("out.new")),
                ("stale", at("out.stale")),
                ("none", at("out.none")),
                ("dir", at("out.directory")),
                ("long", long),
            ]
            .map(|(name, path)| (name.to_owned(), path))
            .into(),
            secrets: vec!["s3cret-value".to_owned()],
            ..Job::default()
        };
        // A child that another test is just starting may hold the script open for writing: so long it cannot be run (ETXTBSY).
        let ran = loop {
            let (_job_dir, ran) = run_job(&job);
            if ran.not_started.as_ref().is_none_or(|why| !why.why().contains("Text file busy")) {
                break ran;
            }
        };
        assert_eq!(ran.status, 0, "{ran:?}");
        let unread = &ran.outputs["long"];
        assert!(unread.contains("could not read this output"), "{unread}");
        let others: Vec<_> = ran.outputs.iter().filter(|(name, _)| *name != "long").collect();
        assert_eq!(others, [(&"new".to_owned(), &"******".to_owned())]);
    }

    #[test]
    fn what_is_secret_by_its_name_is_masked_where_it_is_printed_and_handed_on_in_an_output() {
        let dir = tempfile::tempdir().unwrap();
        let left = dir.path().join("left").display().to_string();
        let mut job = shell(&format!("echo a printed-value; echo a printed-value >&2; printf printed-value > {left}"));
        job.outputs.insert("left".to_owned(), left);
        job.printed_secrets = vec!["printed-value".to_owned()];
        let (directory, ran) = run_job(&job);
        let log = std::fs::read_to_string(directory.path().join(OUTPUT)).unwrap();
        assert_eq!(
            (ran.stdout.as_str(), ran.stderr.as_str(), log.as_str()),
            ("a ******\n", "a ******\n", "a ******\na ******\n")
        );
        assert_eq!(ran.outputs["left"], "printed-value");
        let answer = r#"{"deploy_stdout": "a printed-value", "deploy_status_code": 0, "left": "printed-value"}"#;
        let hook = Job { stdout_is_json: true, outputs: BTreeMap::new(), ..shell(&format!("echo '{answer}'")) };
        let (_directory, ran) = run_job(&Job { printed_secrets: job.printed_secrets, ..hook });
        let HookOutput::Answer(answer) = &ran.answer else { panic!("{ran:?}") };
        assert_eq!((answer.stdout.as_str(), answer.outputs["left"].as_str()), ("a ******", Some("printed-value")));
    }

    #[test]
    fn of_a_job_with_too_many_secrets_nothing_is_shown() {
        let dir = tempfile::tempdir().unwrap();
        let left = dir.path().join("left").display().to_string();
        let mut job = shell(&format!("echo one; echo two; echo three >&2; echo four > {left}; exit 3"));
        job.outputs.insert("left".to_owned(), left);
        job.hide_output = true;
        let (directory, ran) = run_job(&job);
        let log = std::fs::read_to_string(directory.path().join(OUTPUT)).unwrap();
        assert_eq!((ran.status, log.matches("withheld").count()), (3, 2));
        for text in [&ran.stdout, &ran.stderr, &ran.outputs["left"]] {
            assert!(text.starts_with("[heat-node-agent withheld this output: ") && text.lines().count() == 1, "{text}");
        }
        job.argv = ["/bin/true".to_owned()].to_vec();
        assert_eq!(run_job(&job).1.stdout, "", "nothing was said, so nothing is withheld");
    }

    /// Attack: what a hook answered was masked before it was read, and its failure became a success.
    #[test]
    fn a_hooks_answer_keeps_its_status_whatever_is_secret() {
        let answer = r#"{"deploy_stderr": "hunter2222 failed", "deploy_status_code": 2, "out": "hunter2222"}"#;
        let mut job = shell(&format!("echo '{answer}'"));
        job.secrets = ["deploy", "hunter2222"].map(str::to_owned).to_vec();
        job.stdout_is_json = true;
        for hide_output in [false, true] {
            job.hide_output = hide_output;
            let (directory, ran) = run_job(&job);
            let log = std::fs::read_to_string(directory.path().join(OUTPUT)).unwrap();
            assert!(!log.contains("hunter2222") && !format!("{ran:?}").contains("hunter2222"), "{log} {ran:?}");
            let outcome = DeploymentOutcome::of_hook(ran);
            assert_eq!((outcome.status, outcome.outputs.len(), outcome.reason), (2, 1, None));
        }
        // What becomes an object by being masked was none: nobody knows how the hook ended.
        let mut job = shell("printf '%s' '{\"deploy_stdout\": \"a\"b\"c\", \"deploy_status_code\": 2}'");
        job.secrets = ["a\"b\"c", "deploy_status_code"].map(str::to_owned).to_vec();
        job.stdout_is_json = true;
        let outcome = DeploymentOutcome::of_hook(run_job(&job).1);
        assert_eq!(outcome.status, 1, "{outcome:?}");
    }

    /// Attack: what a hook answered was larger with its secrets masked than what is read again, and its success became a failure.
    #[test]
    fn a_hook_that_succeeded_is_a_success_however_much_of_its_answer_is_masked_or_cut() {
        let deep = format!("{}{}0{}", "[".repeat(100), "0,".repeat(13_000), "]".repeat(100));
        let text = "\u{1}".repeat(60_000);
        for (name, value) in
            [("numbers", format!("[{}70000001]", "70000001,".repeat(13_900))), ("deep", deep), ("text", json!(text).to_string())]
        {
            let dir = tempfile::tempdir().unwrap();
            let answer = dir.path().join("answer");
            #[expect(clippy::disallowed_methods, reason = "a file of a test")]
            std::fs::write(&answer, format!(r#"{{"deploy_status_code": 0, "deploy_stdout": "said", "out": {value}}}"#)).unwrap();
            let mut job = shell(&format!("cat {}", answer.display()));
            job.secrets = vec!["70000001".to_owned()];
            job.stdout_is_json = true;
            for hide_output in [false, true] {
                job.hide_output = hide_output;
                let (directory, ran) = run_job(&job);
                let written = std::fs::metadata(directory.path().join(RESULT)).unwrap().len();
                assert!(written <= RESULT_BYTES as u64 + 4096, "{name}: {written}");
                let mut short = ran.clone();
                assert!(bound(&mut short, RESULT_RESERVE_BYTES - RESULT_FRAME), "{name}");
                assert!(!bound(&mut ran.clone(), 5), "{name}");
                assert!(serde_json::to_vec(&short).unwrap().len() <= RESULT_RESERVE_BYTES, "{name}");
                for ran in [ran, short] {
                    let outcome = DeploymentOutcome::of_hook(ran);
                    assert_eq!((outcome.status, outcome.outputs.len(), outcome.reason), (0, 1, None), "{name} {hide_output}");
                }
            }
        }
    }

    #[test]
    fn where_the_whole_result_finds_no_room_a_shortened_one_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        // In the way of a new file as a full disk is.
        let mut job = shell("mkdir .result.json.hna-new; echo BEGIN; head -c 300000 /dev/zero; echo END; exit 3");
        job.directory = Some(dir.path().display().to_string());
        tree.write_json(Path::new("job.json"), &job, Attributes::mode(0o600)).unwrap();
        run(dir.path(), &Clock::system()).unwrap();
        let ran: JobResult = tree.read_json(Path::new(RESULT)).unwrap().unwrap();
        assert_eq!(ran.status, 3);
        assert!(ran.stdout.starts_with("BEGIN\n\0") && ran.stdout.ends_with("\0END\n"), "{}", ran.stdout.len());
        assert!(tree.facts(Path::new(RESULT)).unwrap().unwrap().size <= RESULT_RESERVE_BYTES as u64);
        assert_eq!(tree.facts(Path::new(RESULT_RESERVE)).unwrap(), None);
    }

    #[test]
    fn a_runner_keeps_its_lock_until_the_result_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let mut job = shell("echo done; mkdir result.json");
        job.directory = Some(dir.path().display().to_string());
        job.begun_mark = Some(dir.path().join("begun").display().to_string());
        tree.write_json(Path::new("job.json"), &job, Attributes::mode(0o600)).unwrap();
        let clock = Clock::manual(crate::clock::Timestamp(0));
        let (at, own) = (dir.path().to_owned(), clock.clone());
        let runner = std::thread::spawn(move || run(&at, &own));
        let (started, limit) = (Clock::system().start(), Duration::from_mins(1));
        // Several tries, and minutes by its clock.
        while clock.now().0 < 200_000 {
            assert!(!runner.is_finished(), "it gave up");
            assert!(started.elapsed() < limit, "it does not try again");
            Watch::open().wait(Duration::from_millis(5));
        }
        assert!(tree.lock(Path::new(LOCK)).unwrap().is_none());
        assert_eq!(tree.facts(Path::new(GROUP)).unwrap(), None, "the number may be somebody else's by now");
        tree.remove_dir_all(Path::new(RESULT)).unwrap();
        runner.join().unwrap().unwrap();
        let ran: JobResult = tree.read_json(Path::new(RESULT)).unwrap().unwrap();
        assert_eq!((ran.status, ran.stdout.as_str()), (0, "done\n"));
    }

    /// Attack: of a state directory that had become read-only a look at the journal was in use for ever, so that nobody could unmount and
    /// repair it.
    #[test]
    fn a_runner_of_what_may_run_again_gives_a_result_up_that_cannot_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let mut job = shell("mkdir result.json");
        job.directory = Some(dir.path().display().to_string());
        tree.write_json(Path::new("job.json"), &job, Attributes::mode(0o600)).unwrap();
        let clock = Clock::manual(crate::clock::Timestamp(0));
        let error = run(dir.path(), &clock).unwrap_err();
        assert!(error.to_string().contains("EISDIR"), "{error}");
        let seconds = clock.now().0 / 1000;
        assert!((60..100).contains(&seconds), "{seconds} s");
        assert!(tree.lock(Path::new(LOCK)).unwrap().is_some(), "nothing keeps the directory in use");
    }

    #[test]
    fn without_room_for_its_result_nothing_begins() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        tree.write_json(Path::new("job.json"), &shell("exit 0"), Attributes::mode(0o600)).unwrap();
        let full = tree.breaking_after(0).unwrap();
        let root = Tree::open(Path::new("/")).unwrap();
        assert!(run_in(&full, &root, &Clock::system()).is_err());
        assert_eq!(tree.facts(Path::new(STARTED)).unwrap(), None);
        run_in(&tree, &root, &Clock::system()).unwrap();
        assert_eq!(tree.read_json::<JobResult>(Path::new(RESULT)).unwrap().unwrap().status, 0);
    }

    /// Attack: a full disk below /var/lib/heat-config failed every deployment of the list for good, although none had begun.
    #[test]
    fn without_room_for_its_files_nothing_begins_and_the_cause_is_left_for_the_agent() {
        let (dir, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (tree, elsewhere) = (Tree::open(dir.path()).unwrap(), Tree::open(place.path()).unwrap());
        let script = place.path().join("scripts/one");
        let files = vec![JobFile { path: "scripts/one".to_owned(), content: "x".to_owned(), mode: 0o700 }];
        let mut job = Job { files, directories: vec!["made".to_owned()], ..shell("echo once >> \"$0\"") };
        job.argv.push(place.path().join("ran").display().to_string());
        tree.write_json(Path::new("job.json"), &job, Attributes::mode(0o600)).unwrap();
        let runs = || std::fs::read_to_string(place.path().join("ran")).unwrap_or_default().lines().count();
        for changes in 0.. {
            reserve_all(&tree, Path::new("")).unwrap();
            let tried = run_in(&tree, &elsewhere.full_after(changes).unwrap(), &Clock::system());
            let left: Option<Postponed> = tree.read_json(Path::new(POSTPONED)).unwrap();
            if tried.is_ok() {
                assert!(changes >= 3, "{changes}");
                break;
            }
            assert_eq!((tree.facts(Path::new(STARTED)).unwrap(), runs()), (None, 0), "{changes}");
            let left = left.unwrap();
            assert!(left.cause.contains("no space is left") && left.remedy.unwrap().contains("`df -h "), "{}", left.cause);
        }
        assert_eq!((script.exists(), runs()), (true, 1));
        run_in(&tree, &elsewhere, &Clock::system()).unwrap();
        assert_eq!(runs(), 1);
        // Whatever else is wrong with them ends it: nobody knows that it passes.
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        tree.write_json(Path::new("job.json"), &job, Attributes::mode(0o600)).unwrap();
        run_in(&tree, &elsewhere.breaking_after(0).unwrap(), &Clock::system()).unwrap();
        let ran: JobResult = tree.read_json(Path::new(RESULT)).unwrap().unwrap();
        assert!(ran.status == 127 && ran.not_started.unwrap().why().contains("EIO"));
        assert_eq!(runs(), 1);
    }

    /// Attack: with a state directory that was restored from a copy of before it began, a script ran twice.
    #[test]
    fn what_has_begun_in_a_run_that_the_state_does_not_know_of_does_not_begin_again() {
        let place = tempfile::tempdir().unwrap();
        let root = Tree::open(place.path()).unwrap();
        let ran = place.path().join("ran");
        let job = Job { begun_mark: Some("/one.begun".to_owned()), ..shell(&format!("echo once >> {}", ran.display())) };
        let begin = |root: &Tree| {
            let dir = tempfile::tempdir().unwrap();
            let tree = Tree::open(dir.path()).unwrap();
            tree.write_json(Path::new("job.json"), &job, Attributes::mode(0o600)).unwrap();
            let begun = run_in(&tree, root, &Clock::system());
            let is_present = |name| tree.facts(Path::new(name)).unwrap().is_some();
            (begun.is_ok(), is_present(STARTED), is_present(RESULT))
        };
        // A lack of space for the mark passes; nothing has begun.
        assert_eq!(begin(&root.full_after(0).unwrap()), (false, false, false));
        assert_eq!(begin(&root), (true, true, true));
        assert_eq!(begin(&root), (true, true, false), "begun, and nobody here knows how it ended");
        assert_eq!(std::fs::read_to_string(ran).unwrap(), "once\n");
    }

    /// Attack: without an inode left for its output, a script that had not begun was a failure for good.
    #[test]
    fn without_room_for_its_output_or_its_mark_nothing_begins() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let root = Tree::open(Path::new("/")).unwrap();
        let job = shell(&format!("echo once >> {}/ran", dir.path().display()));
        tree.write_json(Path::new("job.json"), &job, Attributes::mode(0o600)).unwrap();
        reserve_all(&tree, Path::new("")).unwrap();
        let runs = || std::fs::read_to_string(dir.path().join("ran")).unwrap_or_default().lines().count();
        // Of the output, of the mark, and of the mark once it is there.
        // From the second on the note of the one before is removed first.
        for (changes, file) in [(0, OUTPUT), (2, STARTED), (3, STARTED)] {
            let error = run_in(&tree.full_after(changes).unwrap(), &root, &Clock::system()).unwrap_err();
            assert!(error.is_out_of_space() && error.to_string().contains(&format!("/{file}")), "{error}");
            assert_eq!((tree.facts(Path::new(STARTED)).unwrap(), runs()), (None, 0), "{changes}");
        }
        run_in(&tree, &root, &Clock::system()).unwrap();
        assert_eq!((tree.read_json::<JobResult>(Path::new(RESULT)).unwrap().unwrap().status, runs()), (0, 1));
    }

    #[test]
    fn a_program_whose_group_cannot_be_recorded_does_not_run_on() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let mark = dir.path().display().to_string();
        let mut job = shell("sleep 600");
        job.environment.insert("MARK".to_owned(), mark.clone());
        tree.write_json(Path::new("job.json"), &job, Attributes::mode(0o600)).unwrap();
        // In the way of the file as a full disk is.
        tree.create_dir(Path::new(GROUP), Attributes::mode(0o700)).unwrap();
        run(dir.path(), &Clock::system()).unwrap();
        let ran: JobResult = tree.read_json(Path::new(RESULT)).unwrap().unwrap();
        let mark = format!("MARK={mark}");
        let runs = || {
            let processes = std::fs::read_dir("/proc").unwrap().filter_map(std::result::Result::ok);
            // A zombie has no environment any more.
            processes
                .filter_map(|process| std::fs::read(process.path().join("environ")).ok())
                .any(|environment| environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes()))
        };
        let started = Clock::system().start();
        while runs() {
            assert!(started.elapsed() < Duration::from_secs(20), "it runs on: {ran:?}");
            Watch::open().wait(Duration::from_millis(20));
        }
        assert_eq!((ran.status, ran.not_started), (-9, None));
        assert!(ran.stderr.contains("could not be monitored"), "{}", ran.stderr);
    }

    /// Attack: 2,000 outputs of 512 KiB were all held in memory before anything bounded them.
    #[test]
    fn what_is_held_of_outputs_is_bounded_in_sum_and_in_number() {
        let dir = tempfile::tempdir().unwrap();
        let (root, tree) = (Tree::open(Path::new("/")).unwrap(), Tree::open(dir.path()).unwrap());
        let put = |name: &str, text: &str| tree.write(Path::new(name), text.as_bytes(), Attributes::mode(0o600)).unwrap();
        let job = |names: &[String]| {
            let outputs = names.iter().map(|name| (name.clone(), dir.path().join(name).display().to_string())).collect();
            Job { outputs, ..Job::default() }
        };
        put("o00", &format!("BEGIN{}END", "x".repeat(520_000)));
        (1..20).for_each(|number| assert!(tree.link("o00", Path::new(&format!("o{number:02}"))).unwrap()));
        put("zz", "small");
        let names: Vec<String> = (0..20).map(|number| format!("o{number:02}")).chain(["none".into(), "zz".into()]).collect();
        let found = outputs(&root, &job(&names), &hiding(&[]));
        assert!(found.values().map(String::len).sum::<usize>() <= RESULT_BYTES && found.len() == 21, "{}", found.len());
        assert!(found["o19"].starts_with("BEGIN") && found["o19"].ends_with("END") && found["zz"] == "small", "each its share");
        let many: Vec<String> = (0..OUTPUTS + 7).map(|number| format!("p{number:04}")).collect();
        for name in &many {
            put(name, "x");
        }
        let found = outputs(&root, &job(&many), &hiding(&[]));
        assert!(found.len() == OUTPUTS + 1 && found["p1000"].contains("left out 7 outputs"), "{:?}", found.get("p1000"));
    }

    #[test]
    fn a_result_of_control_characters_is_bounded_as_json_and_stays_a_success() {
        let dir = tempfile::tempdir().unwrap();
        let names: Vec<String> = (0..6).map(|number| format!("o{number}")).collect();
        let at = |name: &String| dir.path().join(name).display().to_string();
        let places: Vec<String> = names.iter().map(at).collect();
        let reported = "{ printf BEGIN; head -c 520000 /dev/zero; printf END; }";
        let mut job = shell(&format!("{reported} | tee {}; {reported} >&2", places.join(" ")));
        job.outputs = names.iter().map(|name| (name.clone(), at(name))).collect();
        let (job_dir, ran) = run_job(&job);
        let written = std::fs::metadata(job_dir.path().join(RESULT)).unwrap().len();
        assert!(written <= RESULT_BYTES as u64 + 4096 && written < READ_LIMIT, "{written}");
        assert_eq!((ran.status, ran.outputs.len()), (0, 6));
        let declared: Vec<(String, bool)> = names.into_iter().map(|name| (name, false)).collect();
        let outcome = DeploymentOutcome::of_script(ran);
        assert!(!outcome.fails(&declared));
        let signal = serde_json::Value::Object(body(&outcome, &declared, SIGNAL_LIMIT));
        assert!(signal.to_string().len() <= SIGNAL_LIMIT && signal["deploy_status_code"] == 0);
        for name in declared.iter().map(|(name, _)| name.as_str()).chain(["deploy_stdout", "deploy_stderr"]) {
            let text = signal[name].as_str().unwrap();
            assert!(text.starts_with("BEGIN\0") && text.ends_with("\0END") && text.contains("cut by"), "{name}: {}", text.len());
        }
    }
}
