//! Why a unit died: what it said last, who holds its port, which file system is full.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use nix::sys::statvfs::statvfs;

use super::FailureDetails;
use super::refused_flag::{self, refused_flag};
use crate::clock::Clock;
use crate::desired::{Desired, GateProbe};
use crate::error::remedy::Remedy;
use crate::files::Tree;
use crate::gather::Gather;
use crate::kubernetes::REGISTRATION;
use crate::machine::listeners::{Holder, refused_ports};
use crate::report::text::{escaped, shortened};

/// The longest wait for the last words of a unit that failed.
const WORDS_LIMIT: Duration = Duration::from_secs(15);
/// The most that is quoted of them: lines, and characters of all. With what stands before it a cause fits into five lines of a terminal.
const WORDS: (usize, usize) = (5, 280);
/// Characters of one of them.
const LINE: usize = 200;
/// The most lines that are quoted where the reason is known.
const QUOTE_WITH_CAUSE: usize = 2;

/// What the C library says of ENOSPC, which programs repeat with or without its capital.
const NO_SPACE: &str = "no space left on device";
/// Where the services of a node write, beside its volumes. One of each file system is named: the first.
const WRITTEN_PATHS: [&str; 7] =
    ["/var/lib/etcd", "/var/lib/docker", "/var/lib/containerd", "/var/lib/kubelet", "/var/log", "/run", "/"];
/// With less than this a file system is full for whoever writes more than a few lines: some of it is kept for root.
const FULL_BELOW: u64 = 1024 * 1024;

/// What a program that cannot run says of the node, without capitals, what that means, and what mends it: the kubelet (pkg/kubelet/cm and
/// cmd/kubelet/app of Kubernetes 1.20; the words are those of 1.5 to 1.34), and etcd (raft/log.go of 3.1 to 3.5).
const KNOWN_LINES: [(&str, &str, &str); 3] = [
    (
        "mountpoint for cpu not found",
        "the cgroup controller cpu is not mounted",
        "move this node's pods: `kubectl drain NODE --ignore-daemonsets --delete-emptydir-data --timeout=2m` (with the kubelet down \
         they cannot end, so it times out: go on then). Then reboot the node, never two masters at once: systemd mounts the controller at boot. \
         Then `kubectl uncordon NODE`, as no pods are scheduled on a drained node.",
    ),
    (
        "running with swap on is not supported",
        "swap is on",
        "`swapoff -a`, and take what `swapon --show` lists out of /etc/fstab and the image. systemd restarts the unit by itself.",
    ),
    (
        "was the raft log corrupted, truncated, or lost",
        "its data is older than what it has confirmed to its cluster, as on a disk that was put back to an earlier state",
        "If the other members have a quorum, have this one replaced by an empty one, which gets its data from them: `systemctl stop etcd`, then \
         `mv /var/lib/etcd/default.etcd/member /var/lib/etcd/default.etcd/member.old`.",
    ),
];

/// Why a unit died, as far as can be seen from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CrashCause {
    /// What was found out, which comes before how the unit ended.
    pub(crate) fact: String,
    /// What the unit said last, which comes after it.
    pub(crate) quote: String,
    /// What mends it, where that is known.
    pub(crate) remedy: Option<Remedy>,
}

impl CrashCause {
    /// The cause with what is known of it.
    pub(crate) fn with(&self, cause: &str) -> String {
        let between = if self.fact.is_empty() { "" } else { "; " };
        format!("{}{between}{cause}{}", self.fact, self.quote)
    }
}

/// Finds out why a unit died.
pub(crate) async fn diagnose(
    desired: &Desired,
    unit: &str,
    root: &Tree,
    clock: &Clock,
    words: &impl FailureDetails,
) -> CrashCause {
    let output = without_stack_traces(&clock.limit(WORDS_LIMIT, words.failure_details(unit)).await.unwrap_or_default());
    let mut why = CrashCause::default();
    let full = if lacks_space(&output) { full_places(desired, root) } else { Vec::new() };
    if let Some(first) = full.first() {
        why.fact = format!("no space is left on {}", full.join(", "));
        why.remedy = Some(
            format!(
                "`df -h {first}` and `df -i {first}` show whether space or inodes are used up, `du -xhd2 {first}` what uses the space, `du -xd2 \
                 --inodes {first}` the inodes. Delete logs, and files that you put there, but nothing that services keep there (a pod's \
                 files: `kubectl delete pod NAME`); else enlarge that file system."
            )
                .into(),
        );
    }
    let taken = find_port_holder(desired, unit, &output, words);
    if let Some(holder) = clock.limit(WORDS_LIMIT, taken).await.flatten() {
        let before = if why.fact.is_empty() { String::new() } else { format!("{}; ", why.fact) };
        why.fact = format!("{before}{}", holder.summary());
        let remedy = format!(
            "{} (disable it too, or it is back at the next boot). If it is needed, configure another port for {}.",
            holder.remedy(),
            holder.unit.as_deref().unwrap_or(&holder.name)
        );
        why.remedy = Some(remedy.into());
    }
    if why.remedy.is_none() {
        why.remedy = refused_flag(&output).and_then(|flag| refused_flag::remedy(desired, unit, &flag));
    }
    if why.remedy.is_none()
        && let Some((_, fact, remedy)) = known_line(&output)
    {
        (why.fact, why.remedy) = ((*fact).to_owned(), Some(remedy.replace("NODE", node_name(desired)).into()));
    }
    // What is known of it needs no long proof.
    let lines = if why.fact.is_empty() { WORDS.0 } else { QUOTE_WITH_CAUSE };
    why.quote = last_lines_suffix(unit, &output, lines);
    why
}

/// Why a process does not answer, where the kernel says so: its state in /proc/PID/stat (proc_pid_stat(5)).
pub(crate) fn hang_cause(unit: &str, stat: &str) -> Option<CrashCause> {
    // The program's name stands in parentheses, and may hold some.
    let (_, fields) = stat.rsplit_once(')')?;
    let (fact, remedy) = match fields.trim_start().chars().next()? {
        'T' => (
            format!("the process of {unit} was paused by a signal (SIGSTOP, state T)"),
            format!("`systemctl kill --kill-who=main -s CONT {unit}` resumes it."),
        ),
        't' => (
            format!("the process of {unit} is held by a debugger (state t)"),
            format!("End the debugger, or `systemctl restart {unit}`."),
        ),
        'D' => (
            format!("the process of {unit} waits for a disk or a network file system (state D)"),
            "`journalctl -k -n 50` shows of which. A restart would wait for it too.".to_owned(),
        ),
        _ => return None,
    };
    Some(CrashCause { fact, quote: String::new(), remedy: Some(remedy.into()) })
}

/// The last lines without Go's traces: a Kubernetes program that ends by a fatal log line (exit status 255) or a panic (2) writes the
/// stack of each goroutine after it, dozens of lines that would take the place of the cause.
fn without_stack_traces(output: &[String]) -> Vec<String> {
    let is_place = |line: Option<&String>| line.is_some_and(|line| line.starts_with('\t'));
    let is_head = |line: &str| line.starts_with("goroutine ") && line.ends_with("]:");
    let is_trace = |at: usize, line: &String| is_head(line) || is_place(Some(line)) || is_place(output.get(at + 1));
    let kept: Vec<String> = output
        .iter()
        .enumerate()
        .filter(|(at, line)| !line.trim().is_empty() && !is_trace(*at, line))
        .map(|(_, line)| line.clone())
        .collect();
    kept.into_iter().rev().take(WORDS.0).rev().collect()
}

/// What mends the node where one of these lines says what it lacks.
fn known_line(output: &[String]) -> Option<&'static (&'static str, &'static str, &'static str)> {
    let has = |text: &str| output.iter().any(|line| line.to_ascii_lowercase().contains(text));
    KNOWN_LINES.iter().find(|(text, ..)| has(text))
}

/// What kubectl calls this node; a word in its place where the agent does not ask the API for it.
pub(crate) fn node_name(desired: &Desired) -> &str {
    match desired.gate(REGISTRATION).map(|gate| &gate.probe) {
        Some(GateProbe::HttpJson { url, .. }) => url.rsplit('/').next().unwrap_or("NODE"),
        _ => "NODE",
    }
}

fn lacks_space(output: &[String]) -> bool {
    output.iter().any(|line| line.to_ascii_lowercase().contains(NO_SPACE))
}

/// Where nothing more can be written, one place of each file system.
fn full_places(desired: &Desired, root: &Tree) -> Vec<String> {
    let volumes = desired.volumes.iter().map(|volume| volume.mount_point.as_str());
    let mut seen = BTreeSet::new();
    let is_full = |place: &&str| {
        statvfs(&root.on_machine(Path::new(place))).is_ok_and(|space| {
            let free = space.blocks_available().saturating_mul(space.fragment_size());
            let is_full = free < FULL_BELOW || (space.files() > 0 && space.files_available() == 0);
            seen.insert(space.filesystem_id()) && is_full
        })
    };
    volumes.chain(WRITTEN_PATHS).filter(is_full).map(|path| mount_point(root, path)).collect()
}

/// Where the file system of this path is mounted: what fills it may lie beside the path.
fn mount_point(root: &Tree, path: &str) -> String {
    let device = |place: &Path| statvfs(&root.on_machine(place)).ok().map(|space| space.filesystem_id());
    let path = Path::new(path);
    let id = device(path);
    let top = path.ancestors().take_while(|place| device(place) == id).last();
    top.unwrap_or(path).display().to_string()
}

/// What a unit said last, for the end of a cause: the newest lines, as many as are short enough. What it says at each try stands
/// there once.
fn last_lines_suffix(unit: &str, output: &[String], count: usize) -> String {
    let mut lines: Vec<&str> = output.iter().map(|line| line.trim()).filter(|line| !line.is_empty()).collect();
    lines.dedup();
    let mut words = String::new();
    for line in lines.into_iter().rev().take(count) {
        let line = shortened(&escaped(line), LINE);
        if words.is_empty() {
            words = line;
        } else if words.chars().count() + line.chars().count() <= WORDS.1 {
            words = format!("{line} / {words}");
        } else {
            break;
        }
    }
    if words.is_empty() { words } else { format!(" (last lines of {unit}: {words})") }
}

/// Who else holds a port of a unit that failed: one that the unit itself said it could not listen on, or the one of a gate of its
/// own, which somebody may answer in its place.
async fn find_port_holder(desired: &Desired, unit: &str, output: &[String], words: &impl FailureDetails) -> Option<Holder> {
    let refused = refused_ports(output);
    let of_gates =
        desired.gates.iter().filter(|gate| gate.unit.as_deref() == Some(unit)).filter_map(|gate| own_port(&gate.probe));
    let ports: BTreeSet<u16> = refused.iter().copied().chain(of_gates).gather();
    if ports.is_empty() {
        return None;
    }
    // A gate may ask another service of the node, and who serves for a unit may run in a scope.
    let is_in_the_way = |holder: &Holder| match holder.unit.as_deref() {
        Some(holding) if holding == unit => false,
        Some(holding) if !refused.contains(&holder.port) => {
            holding.ends_with(".service") && desired.units.iter().all(|unit| unit.name != holding)
        }
        _ => refused.contains(&holder.port),
    };
    words.holders(&ports).await.into_iter().find(is_in_the_way)
}

/// The port of this machine that a gate asks.
fn own_port(probe: &GateProbe) -> Option<u16> {
    let (GateProbe::Http { url, .. } | GateProbe::HttpJson { url, .. }) = probe else { return None };
    let (_, rest) = url.split_once("://")?;
    let (host, port) = rest.split('/').next()?.rsplit_once(':')?;
    let is_own = host.starts_with("127.") || host == "localhost" || host == "[::1]";
    port.parse().ok().filter(|_| is_own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_hangs_has_its_cause_where_the_kernel_knows_it() {
        let cause = |stat: &str| hang_cause("kubelet.service", stat).map(|why| why.with("kubelet.service hangs"));
        let stopped = hang_cause("kubelet.service", "7 (kube) let) T 1 7 7 0 -1").unwrap();
        assert_eq!(
            stopped.with("it hangs"),
            "the process of kubelet.service was paused by a signal (SIGSTOP, state T); it hangs"
        );
        assert_eq!(stopped.remedy.unwrap().as_str(), "`systemctl kill --kill-who=main -s CONT kubelet.service` resumes it.");
        assert_eq!(
            cause("7 (kubelet) D 1 7 7").as_deref(),
            Some("the process of kubelet.service waits for a disk or a network file system (state D); kubelet.service hangs")
        );
        assert!(cause("7 (kubelet) t 1").unwrap().starts_with("the process of kubelet.service is held by a debugger"));
        // One that sleeps or runs may wait for anything; of one that has ended nothing is known.
        for unknown in ["7 (kubelet) S 1 7 7", "7 (T) R 1", "", "7 (kubelet)", "rubbish"] {
            assert_eq!(cause(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn a_fact_comes_before_how_a_unit_ended() {
        let why = |fact: &str, quote: &str| {
            CrashCause { fact: fact.to_owned(), quote: quote.to_owned(), remedy: None }.with("x.service ended")
        };
        assert_eq!(why("", ""), "x.service ended");
        assert_eq!(why("", " (last lines of x.service: a; b)"), "x.service ended (last lines of x.service: a; b)");
        let taken = why("port 1 is held by y", " (last lines of x.service: in use)");
        assert_eq!(taken, "port 1 is held by y; x.service ended (last lines of x.service: in use)");
    }

    #[test]
    fn a_lack_of_space_is_known_by_what_the_kernel_calls_it() {
        for (line, lacks) in [
            ("wal: write /var/lib/etcd/member/wal/1.tmp: no space left on device", true),
            ("No space left on device", true),
            ("no space", false),
        ] {
            assert_eq!(lacks_space(&["starting".to_owned(), line.to_owned()]), lacks, "{line}");
        }
        assert!(!lacks_space(&[]));
    }

    #[test]
    fn what_a_kubelet_lacks_on_its_node_has_its_own_remedy() {
        for (line, fact) in [
            ("failed to run Kubelet: mountpoint for cpu not found", Some("the cgroup controller cpu is not mounted")),
            ("failed to run Kubelet: Running with swap on is not supported, please disable swap!", Some("swap is on")),
            ("failed to run Kubelet: mountpoint for cpu found", None),
            (
                "panic: tocommit(2063) is out of range [lastIndex(1977)]. Was the raft log corrupted, truncated, or lost?",
                Some(
                    "its data is older than what it has confirmed to its cluster, as on a disk that was put back to an earlier state",
                ),
            ),
        ] {
            let found = known_line(&["starting".to_owned(), line.to_owned()]);
            assert_eq!(found.map(|(_, fact, _)| *fact), fact, "{line}");
        }
    }

    /// As kubelet 1.20.2 ends at a label that it may not set: status 255, and its last fifty lines are stacks.
    #[test]
    fn the_stacks_of_a_go_program_are_not_taken_for_its_last_words() {
        let fatal = "F1124 10:23:17.070581   17430 server.go:187] unknown 'kubernetes.io' or 'k8s.io' labels specified";
        let more = "--node-labels in the 'kubernetes.io' namespace must begin with an allowed prefix";
        let exited = "kubelet.service: Main process exited, code=exited, status=255/EXCEPTION";
        let mut output = vec!["Started kubelet.", fatal, more];
        for _ in 0..40 {
            output.extend([
                "goroutine 1 [running]:",
                "k8s.io/kubernetes/vendor/k8s.io/klog/v2.stacks(0x1)",
                "\tk8s.io/kubernetes/vendor/k8s.io/klog/v2/klog.go:1026 +0x8a",
                "",
                "created by k8s.io/kubernetes/pkg/scheduler/framework/runtime.newMetricsRecorder",
                "\tk8s.io/kubernetes/pkg/scheduler/framework/runtime/metrics_recorder.go:60 +0x118",
            ]);
        }
        output.push(exited);
        let kept = without_stack_traces(&output.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>());
        assert_eq!(kept, ["Started kubelet.", fatal, more, exited]);
        let panic: Vec<String> =
            ["panic: boom", "goroutine 7 [running]:", "main.main()", "\t/x.go:1 +0x1"].map(str::to_owned).to_vec();
        assert_eq!(without_stack_traces(&panic), ["panic: boom"]);
        let many: Vec<String> = (0..9).map(|at| format!("line {at}")).collect();
        assert_eq!(without_stack_traces(&many), ["line 4", "line 5", "line 6", "line 7", "line 8"]);
    }

    #[test]
    fn a_file_system_with_room_is_not_called_full_and_what_is_looked_through_is_the_whole_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = Tree::open(dir.path()).unwrap();
        root.create_dir_all(Path::new("/var/lib/kubelet"), crate::files::Attributes::mode(0o755)).unwrap();
        assert_eq!(mount_point(&root, "/var/lib/kubelet"), "/");
        assert_eq!(mount_point(&Tree::open(Path::new("/")).unwrap(), "/proc/sys"), "/proc");
        assert!(full_places(&Desired::default(), &root).is_empty());
    }
}
