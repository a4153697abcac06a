//! `support [--out FILE]`: one archive with what the agent and the node say of themselves. Every text on its way into it is masked at one
//! place (`pack`).

mod tar;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::logs::names::UNITS;
use super::print;
use super::secrets::known_secrets;
use crate::clock::{Clock, Timestamp};
use crate::daemon;
use crate::daemon::masking::KnownSecrets;
use crate::error::{Error, Result};
use crate::files::{Attributes, Tree};
use crate::process::{Options, exit};
use crate::programs::tool::{ToolOutput, ask, line};
use crate::report::text::harmless;
use crate::settings::Settings;
use nix::unistd::{geteuid, gethostname};

/// How much there may be.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Most bytes of one part; of a longer one the end is kept.
    part: usize,
    /// Most bytes of all parts; what comes later is left out, and named.
    whole: usize,
}

const LIMITS: Limits = Limits { part: 4 * 1024 * 1024, whole: 48 * 1024 * 1024 };
/// Seconds that a program has.
const LIMIT: &str = "30";
/// Lines of a unit's journal.
const LINES: &str = "4000";

/// What the agent's own commands say.
const OWN: [(&str, &[&str]); 10] = [
    ("status.txt", &["status", "-v"]),
    ("status.json", &["status", "--json"]),
    ("explain.txt", &["explain"]),
    ("timeline.txt", &["timeline"]),
    ("plan.txt", &["plan"]),
    ("verify.txt", &["verify"]),
    ("certificates.txt", &["certificates"]),
    ("metadata.json", &["metadata"]),
    ("deployments.txt", &["logs"]),
    ("repair.txt", &["repair", "--dry-run"]),
];

/// What the system says. Nothing here changes anything, and nothing waits for anybody over the network.
const SYSTEM: [(&str, &[&str]); 28] = [
    ("versions/kernel.txt", &["uname", "-a"]),
    ("versions/os-release.txt", &["cat", "/etc/os-release"]),
    ("versions/systemd.txt", &["systemctl", "--version"]),
    ("versions/kubelet.txt", &["kubelet", "--version"]),
    ("versions/etcd.txt", &["etcd", "--version"]),
    ("versions/docker.txt", &["docker", "--version"]),
    ("versions/containerd.txt", &["containerd", "--version"]),
    ("disks/lsblk.txt", &["lsblk", "-o", "NAME,SIZE,TYPE,FSTYPE,MOUNTPOINT,SERIAL,UUID,RO,MODEL"]),
    ("disks/by-id.txt", &["ls", "-l", "/dev/disk/by-id"]),
    ("disks/free.txt", &["df", "-hT"]),
    ("disks/inodes.txt", &["df", "-i"]),
    ("disks/mounts.txt", &["findmnt"]),
    ("disks/lvm.txt", &["lvs", "-a"]),
    ("network/addresses.txt", &["ip", "-d", "address"]),
    ("network/routes.txt", &["ip", "route", "show", "table", "all"]),
    ("network/neighbours.txt", &["ip", "neighbour"]),
    ("network/listeners.txt", &["ss", "-ltnp"]),
    ("network/resolv.conf", &["cat", "/etc/resolv.conf"]),
    ("network/hosts", &["cat", "/etc/hosts"]),
    ("network/iptables.txt", &["iptables-save"]),
    ("network/nftables.txt", &["nft", "list", "ruleset"]),
    ("system/failed-units.txt", &["systemctl", "list-units", "--failed", "--all", "--no-pager"]),
    ("system/units.txt", &["systemctl", "list-units", "--all", "--no-pager"]),
    ("system/memory.txt", &["cat", "/proc/meminfo"]),
    ("system/processes.txt", &["ps", "-eo", "pid,ppid,user,stat,rss,etimes,comm"]),
    ("system/clock.txt", &["date", "-u"]),
    ("system/uptime.txt", &["uptime"]),
    ("journal/kernel.txt", &["journalctl", "-k", "-b", "--no-pager", "-o", "short-iso", "-n", LINES]),
];

/// One file of the archive, as it was found.
#[derive(Debug)]
struct Part {
    name: String,
    text: String,
}

/// Writes the archive, and prints where it is.
///
/// # Errors
/// If this is not root, the file exists, or it cannot be written.
pub fn run(options: &Options, settings: &Settings, out: Option<&Path>) -> Result<ExitCode> {
    if !geteuid().is_root() {
        return Err(Error::permanent("only root can read the agent's state and the journals: run this command as root"));
    }
    let now = Clock::system().now();
    let path = std::path::absolute(out.map_or_else(|| default_path(now), Path::to_owned))?;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Error::permanent(format!("{} is no path of a file", path.display())));
    };
    let directory = Tree::open(parent)?;
    if directory.facts(Path::new(name))?.is_some() {
        return Err(Error::refused(format!("{} exists", path.display())).remedy("give another file by --out, or remove it"));
    }
    let (known, unread) = known_secrets(settings);
    let archive = pack(&collect(options, settings), &known, now, LIMITS);
    directory.write(Path::new(name), &archive, Attributes::mode(0o600))?;
    print(&harmless(&format!(
        "{} ({} KiB): {}; read it before you pass it on (tar -xf)\n",
        path.display(),
        archive.len().div_ceil(1024),
        unread.map_or("known secrets are masked in it".to_owned(), |error| format!(
            "the metadata cannot be read, so its secrets are NOT masked by their values: {error}"
        ))
    )))?;
    Ok(exit::OK)
}

fn default_path(now: Timestamp) -> PathBuf {
    let host = gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let host: String = host.chars().filter(is_plain).collect();
    let time: String = now.rfc3339().chars().filter(char::is_ascii_alphanumeric).collect();
    PathBuf::from(format!("/var/tmp/heat-node-agent-support-{host}-{time}.tar"))
}

/// All parts, as they are: nothing of this leaves the process but by [`pack`].
fn collect(options: &Options, settings: &Settings) -> Vec<Part> {
    let agent = std::env::current_exe().map_or_else(|_| "heat-node-agent".to_owned(), |path| path.display().to_string());
    let mut global = Vec::new();
    for (flag, path) in [("--settings", &options.settings), ("--state", &options.state)] {
        global.extend(path.iter().flat_map(|path| [flag.to_owned(), path.display().to_string()]));
    }
    let own = |(name, arguments): &(&str, &[&str])| {
        let words = global.iter().cloned().chain(arguments.iter().map(|&word| word.to_owned()));
        // As its people know it, whatever its path is.
        Part {
            name: (*name).to_owned(),
            text: said(&agent, &words.collect::<Vec<_>>(), &format!("heat-node-agent {}", arguments.join(" "))),
        }
    };
    let system = |(name, words): &(&str, &[&str])| {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        Part { name: (*name).to_owned(), text: limited(&words) }
    };
    let mut parts: Vec<Part> = OWN.iter().map(own).chain(SYSTEM.iter().map(system)).collect();
    for unit in units(settings) {
        let words = ["journalctl", "-b", "--no-pager", "-o", "short-iso", "-n", LINES, "-u", &unit].map(str::to_owned);
        parts.push(Part { name: format!("journal/{unit}.txt"), text: limited(&words) });
    }
    parts
}

/// Units of the node in place, and those beside them.
fn units(settings: &Settings) -> Vec<String> {
    let mut units: Vec<String> = UNITS.map(str::to_owned).to_vec();
    let state = Tree::open(&settings.state_dir);
    let desired = state.and_then(|state| daemon::in_place(&state, &Tree::open(Path::new("/"))?));
    for unit in desired.map(|(desired, _)| desired.units).unwrap_or_default() {
        if !units.contains(&unit.name) {
            units.push(unit.name);
        }
    }
    units
}

/// What a program says within its time.
fn limited(words: &[String]) -> String {
    let all: Vec<String> = ["-k", "5", LIMIT].map(str::to_owned).into_iter().chain(words.iter().cloned()).collect();
    said("timeout", &all, &line("", words))
}

/// The command, what it says, and how it ended where that was no success. JSON stays JSON.
fn said(tool: &str, arguments: &[String], shown: &str) -> String {
    match ask(tool, arguments, "") {
        Ok(Some(ToolOutput { ok, out, err })) if out.trim_start().starts_with('{') => {
            if ok || err.is_empty() {
                out
            } else {
                format!("{out}{err}\n")
            }
        }
        Ok(Some(ToolOutput { ok, out, err })) => {
            let err = if err.is_empty() { String::new() } else { format!("{err}\n") };
            let end = if ok { "" } else { "(its exit code was not 0)\n" };
            format!("$ {}\n{out}{err}{end}", shown.trim())
        }
        Ok(None) => format!("$ {}\n({tool} is not installed)\n", shown.trim()),
        Err(error) => format!("$ {}\n({error})\n", shown.trim()),
    }
}

/// The archive, with everything masked.
fn pack(parts: &[Part], known: &KnownSecrets, now: Timestamp, limits: Limits) -> Vec<u8> {
    let mask = known.mask();
    let (mut files, mut bytes, mut list) = (Vec::new(), 0, String::new());
    for part in parts {
        // Masked before it is cut: what is cut in the middle is not known any more.
        let masked = mask.masked(&part.text);
        let from = masked.ceil_char_boundary(masked.len().saturating_sub(limits.part));
        let (note, end) = (if from > 0 { "(its end)" } else { "" }, masked.get(from..).unwrap_or_default());
        if bytes + end.len() > limits.whole {
            list.push_str(&format!("{:>9}  {}  (left out: the archive is full)\n", 0, part.name));
            continue;
        }
        bytes += end.len();
        list.push_str(&format!("{:>9}  {}  {note}\n", end.len(), part.name));
        files.push((format!("heat-node-agent-support/{}", part.name), end.to_owned()));
    }
    let head = format!("heat-node-agent {} at {}; bytes and names:\n", env!("CARGO_PKG_VERSION"), now.rfc3339());
    files.insert(0, ("heat-node-agent-support/CONTENTS".to_owned(), head + &list));
    tar::archive(files.iter().map(|(name, text)| (name.as_str(), text.as_bytes())), now.0 / 1000)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A secret in every part, in each form that a part may have: it is nowhere in the archive.
    #[test]
    fn no_secret_of_any_part_is_in_the_archive() {
        let mut known = KnownSecrets::default();
        known.learn(&json!({"deployments": [{"inputs": [{"name": "db_password", "value": "s3cret-known"}]}]}));
        let key = "-----BEGIN PRIVATE KEY-----\ns3cret+line\n-----END PRIVATE KEY-----";
        let forms = [
            "bare s3cret-known here".to_owned(),
            "{\"a\": {\"password\": \"s3cret\"}, \"b\": \"s3cret-known\"}".to_owned(),
            "$ journalctl\nkubelet[1]: --token=s3cret\n".to_owned(),
            "GET http://u:s3cret@h/ and http://h/?Signature=s3cret\n".to_owned(),
            format!("host x[1]: {key}\n"),
            "Authorization: Bearer s3cret\n".to_owned(),
        ];
        let names = OWN.iter().chain(&SYSTEM).map(|(name, _)| (*name).to_owned());
        let names: Vec<String> = names.chain(UNITS.map(|unit| format!("journal/{unit}.txt"))).collect();
        for form in forms {
            let parts: Vec<Part> = names.iter().map(|name| Part { name: name.clone(), text: form.clone() }).collect();
            let archive = String::from_utf8(pack(&parts, &known, Timestamp(0), LIMITS)).unwrap();
            assert!(!archive.contains("s3cret"), "{form}");
            assert!(names.iter().all(|name| archive.contains(&format!("heat-node-agent-support/{name}\0"))));
        }
    }

    #[test]
    fn a_part_that_is_too_long_keeps_its_end_and_an_archive_that_is_full_says_what_is_missing() {
        let (known, limits) = (KnownSecrets::default(), Limits { part: 4096, whole: 12 * 4096 });
        let part = |name: &str| Part { name: name.to_owned(), text: format!("begin\n{}\nend\n", "é".repeat(4096)) };
        let archive = pack(&(0..14).map(|at| part(&format!("part-{at}"))).collect::<Vec<_>>(), &known, Timestamp(0), limits);
        assert!(archive.len() < 16 * 4096 && !archive.windows(6).any(|bytes| bytes == b"begin\n"));
        let head = String::from_utf8_lossy(&archive[..4096]).into_owned();
        assert!(head.contains("part-0  (its end)") && head.contains("part-13  (left out"), "{head}");
    }

    #[test]
    fn what_a_program_says_stands_behind_its_command_with_its_end() {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        assert_eq!(limited(&words(&["echo", "a"])), "$ echo a\na\n");
        assert_eq!(limited(&words(&["sh", "-c", "echo why >&2; exit 3"])).lines().last(), Some("(its exit code was not 0)"));
        assert!(limited(&words(&["no-such-tool"])).contains("no-such-tool"));
        assert_eq!(limited(&words(&["echo", "{\"a\": 1}"])), "{\"a\": 1}\n");
    }
}
