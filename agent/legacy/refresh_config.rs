//! os-refresh-config: the phases of a configuration, each a directory of programs (heat-protocol.md 6.1).

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::arguments::{self, Switch, Takes, ToolResult, Wrong};
use super::machine::{Machine, variable};
use crate::clock::Clock;
use crate::error::{Context, Error, Result};
use crate::files::{FileKind, READ_LIMIT, Tree};
use crate::output::print;
use crate::programs::child::Child;
use crate::report::text::harmless;

const BASE: &str = "/usr/libexec/os-refresh-config";
const OLD_BASE: &str = "/opt/stack/os-config-refresh";
const LOCK: &str = "/var/run/os-refresh-config.lock";
const PHASES: [&str; 4] = ["pre-configure", "configure", "post-configure", "migration"];
/// What `--log-level` takes, the quietest first.
const LEVELS: [&str; 5] = ["CRITICAL", "ERROR", "WARN", "INFO", "DEBUG"];

const SWITCHES: &[Switch] = &[
    (None, "print-base", Takes::Nothing, "print where the phases are and exit"),
    (None, "print-phases", Takes::Nothing, "print the phases, with tabs between, and exit"),
    (None, "log-level", Takes::One, "ERROR, WARN, CRITICAL, INFO (default) or DEBUG"),
    (None, "lockfile", Takes::One, "the file that is locked meanwhile (/var/run/os-refresh-config.lock)"),
    (None, "timeout", Takes::One, "seconds after which everything that runs is killed"),
];

/// Runs the tool.
pub(super) fn run(arguments: &[String]) -> ToolResult {
    let Some(given) = arguments::read("os-refresh-config", "", SWITCHES, arguments)? else { return Ok(0) };
    let level = given.value("log-level").unwrap_or("INFO");
    let Some(level) = LEVELS.iter().position(|known| *known == level) else {
        return Err(usage(&format!("argument --log-level: invalid choice: {level}")));
    };
    let timeout = given.value("timeout").map(str::parse::<i64>).transpose();
    let timeout = timeout.map_err(|_| usage("argument --timeout: it is no whole number"))?;
    if let Some(word) = given.words.first() {
        return Err(usage(&format!("unrecognized arguments: {word}")));
    }
    let machine = Machine::new()?;
    let base = base(&machine);
    if given.has("print-base") {
        print(&format!("{base}\n"))?;
        return Ok(0);
    }
    if given.has("print-phases") {
        print(&format!("{}\n", PHASES.join("\t")))?;
        return Ok(0);
    }
    let log = Log { level };
    let file = given.value("lockfile").unwrap_or(LOCK);
    let Some(lock) = machine.root.lock(&machine.path(file))? else {
        log.error(&format!("another one runs: {file} is locked"));
        return Ok(u8::try_from(Errno::EAGAIN as i32).unwrap_or(1));
    };
    lock.note(&format!("locked by process {} at {}\n", std::process::id(), Clock::system().now().rfc3339()))?;
    let timed_out = Arc::new(AtomicBool::new(false));
    if let Some(seconds) = timeout.and_then(|seconds| u64::try_from(seconds).ok()).filter(|seconds| *seconds > 0) {
        watch(Duration::from_secs(seconds), log, Arc::clone(&timed_out))?;
    }
    let status = phases(&machine, &base, log)?;
    // What is done is not to be killed any more.
    timed_out.store(true, Relaxed);
    lock.note("")?;
    Ok(status)
}

fn usage(what: &str) -> Wrong {
    Wrong::Usage {
        usage: "usage: os-refresh-config [OPTIONS]; os-refresh-config --help lists them".to_owned(),
        what: what.to_owned(),
    }
}

fn base(machine: &Machine) -> String {
    let is_there = |path: &str| machine.kind(path) == Some(FileKind::Directory);
    let usual = if is_there(OLD_BASE) && !is_there(BASE) { OLD_BASE } else { BASE };
    variable("OS_REFRESH_CONFIG_BASE_DIR").unwrap_or_else(|| usual.to_owned())
}

fn phases(machine: &Machine, base: &str, log: Log) -> Result<u8> {
    for phase in PHASES {
        let directory = Path::new(base).join(format!("{phase}.d"));
        log.debug(&format!("looking at {}", directory.display()));
        if machine.kind(&directory).is_none() {
            log.debug(&format!("there is no phase {phase}"));
            continue;
        }
        log.info(&format!("starting phase {phase}"));
        let status = run_parts(&directory)?;
        if status == 0 {
            log.info(&format!("completed phase {phase}"));
            continue;
        }
        log.error(&format!("phase {phase} ended with status {status}: the phases after it are not run"));
        let on_error = Path::new(base).join("error.d");
        if machine.kind(&on_error).is_some() {
            log.info("starting what error.d has for this");
            // Whatever becomes of it, the run has failed.
            let _ = run_parts(&on_error);
        }
        return Ok(1);
    }
    Ok(0)
}

fn run_parts(directory: &Path) -> Result<i32> {
    Child::own("dib-run-parts").argument(directory).pass()
}

/// Kills everything that runs below this process, once, when the time is up.
fn watch(limit: Duration, log: Log, is_over: Arc<AtomicBool>) -> Result<()> {
    let watch = move || {
        Clock::system().pause(limit);
        if !is_over.load(Relaxed) {
            log.error(&format!("the time is up after {} s: everything that runs is killed", limit.as_secs()));
            let below = || descendants(std::process::id()).unwrap_or_default();
            // Stopped first: a shell whose program is killed before itself would go on with the next one. One that ended by itself is no
            // trouble.
            for process in below() {
                let _ = kill(process, Signal::SIGSTOP);
            }
            // Our own child last: once it is gone this process ends, and with it this thread.
            for process in below().into_iter().rev() {
                let _ = kill(process, Signal::SIGKILL);
            }
        }
    };
    std::thread::Builder::new().name("timeout".to_owned()).spawn(watch).context(|| "starting the thread of the time limit")?;
    Ok(())
}

/// The processes below a process, parents first, as /proc has them (proc_pid_stat(5): the parent is the second word behind the name).
fn descendants(of: u32) -> Result<Vec<Pid>> {
    let proc = Tree::open(Path::new("/proc"))?;
    let mut parents = BTreeMap::new();
    for name in proc.list(Path::new(""))? {
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let Ok(Some(stat)) = proc.read(&Path::new(&name).join("stat"), READ_LIMIT) else { continue };
        let stat = String::from_utf8_lossy(&stat);
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse::<i32>().ok());
        parents.extend(parent.map(|parent| (pid, parent)));
    }
    let top = i32::try_from(of).map_err(Error::permanent)?;
    let above = |pid: i32| std::iter::successors(Some(pid), |pid| parents.get(pid).copied()).take(parents.len());
    let depth = |pid: i32| above(pid).position(|pid| pid == top);
    let mut below: Vec<_> = parents.keys().filter_map(|pid| Some((depth(*pid)?, *pid))).filter(|(depth, _)| *depth > 0).collect();
    below.sort_unstable();
    Ok(below.into_iter().map(|(_, pid)| Pid::from_raw(pid)).collect())
}

/// Lines on standard error, up to a level.
#[derive(Clone, Copy)]
struct Log {
    level: usize,
}

impl Log {
    fn error(self, text: &str) {
        self.line("ERROR", text);
    }

    fn info(self, text: &str) {
        self.line("INFO", text);
    }

    fn debug(self, text: &str) {
        self.line("DEBUG", text);
    }

    fn line(self, level: &str, text: &str) {
        if LEVELS.iter().take(self.level + 1).any(|shown| *shown == level) {
            let line = format!("[{}] (os-refresh-config) [{level}] {}\n", Clock::system().now().rfc3339(), harmless(text));
            // Nobody is left to tell where standard error is gone.
            let _ = std::io::stderr().lock().write_all(line.as_bytes());
        }
    }
}
