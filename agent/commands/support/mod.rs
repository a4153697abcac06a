//! `support [--out FILE]`: one archive with what the agent and the node say of themselves. Every text on its way into it is masked at one
//! place (`Archive::add`).
//!
//! In: the agent's state, its journal, and the output of a fixed list of commands. Out: a tar archive. Never: an unmasked text, or a
//! change of the node.

mod tar;

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nix::unistd::{geteuid, gethostname};

use super::logs::names::UNITS;
use super::print;
use super::secrets::known_secrets;
use crate::clock::{Clock, Timestamp};
use crate::daemon;
use crate::daemon::masking::{KnownSecrets, TextMask};
use crate::error::{Error, Result};
use crate::files::{Attributes, Tree};
use crate::process::{CommonOptions, exit};
use crate::programs::tool::{ToolOutput, ask_end, line};
use crate::report::text::harmless;
use crate::settings::Settings;

/// Most bytes of one part; of a longer one the end is kept.
const PART: usize = 2 * 1024 * 1024;
/// Most bytes of all parts; what comes later is left out, and said.
const WHOLE: usize = 48 * 1024 * 1024;
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
    /// Whether only the end of it is there.
    is_cut: bool,
}

/// What a part is the output of.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    /// One of the agent's own commands, which mask what they show.
    Own,
    /// The machine's state. Nothing of a deployment is expected in it.
    System,
    /// Texts of any program, deployments' own included.
    Journal,
}

/// Writes the archive, and prints where it is.
///
/// # Errors
/// If this is not root, the file exists, or it cannot be written.
pub fn run(options: &CommonOptions, settings: &Settings, out: Option<&Path>) -> Result<ExitCode> {
    if !geteuid().is_root() {
        return Err(Error::permanent("only root can read the agent's state and the journals: run this command as root"));
    }
    let now = Clock::system().now();
    let path = std::path::absolute(out.map_or_else(|| default_path(now), Path::to_owned))?;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Error::permanent(format!("{} is no path of a file", path.display())));
    };
    let (directory, name) = (Tree::open(parent)?, Path::new(name));
    if !directory.create_new(name, b"", Attributes::mode(0o600))? {
        return Err(Error::refused(format!("{} exists", path.display())).remedy("give another file by --out, or remove it"));
    }
    let (known, unread) = known_secrets(settings);
    let written = write_archive(&directory, name, options, settings, (&known, unread.as_ref()), now);
    let bytes = written.inspect_err(|_| {
        // Half of an archive is none. What kept it from being written is the news.
        let _ = directory.remove(name);
    })?;
    print(&harmless(&format!(
        "{} ({} KiB): {}; read it before you pass it on (tar -xf)\n",
        path.display(),
        bytes.div_ceil(1024),
        unread.map_or("known secrets are masked in it".to_owned(), |error| format!(
            "without the journals, as the secrets in them are not known: {error}"
        ))
    )))?;
    Ok(exit::OK)
}

/// How many bytes it has.
fn write_archive(
    directory: &Tree,
    name: &Path,
    options: &CommonOptions,
    settings: &Settings,
    (known, unread): (&KnownSecrets, Option<&Error>),
    now: Timestamp,
) -> Result<u64> {
    let mut file = directory.append(name, Attributes::mode(0o600))?;
    let mut archive = Archive::new(&mut file, known.mask(), unread.map(ToString::to_string), now, WHOLE);
    for (origin, name, words) in wanted(settings) {
        archive.add(&origin, &name, || part_of(&origin, &name, &words, options))?;
    }
    let bytes = archive.end()?;
    file.sync_all()?;
    Ok(bytes)
}

fn default_path(now: Timestamp) -> PathBuf {
    let host = gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let host: String = host.chars().filter(is_plain).collect();
    let time: String = now.rfc3339().chars().filter(char::is_ascii_alphanumeric).collect();
    PathBuf::from(format!("/var/tmp/heat-node-agent-support-{host}-{time}.tar"))
}

/// Each part's name, and the command that says it.
fn wanted(settings: &Settings) -> Vec<(Origin, String, Vec<String>)> {
    let fixed = |origin: Origin, parts: &[(&str, &[&str])]| -> Vec<(Origin, String, Vec<String>)> {
        let part = |(name, words): &(&str, &[&str])| {
            let origin = if name.starts_with("journal/") { Origin::Journal } else { origin.clone() };
            (origin, (*name).to_owned(), words.iter().map(|&word| word.to_owned()).collect())
        };
        parts.iter().map(part).collect()
    };
    let journal = |unit: String| {
        let words = ["journalctl", "-b", "--no-pager", "-o", "short-iso", "-n", LINES, "-u", &unit].map(str::to_owned);
        (Origin::Journal, format!("journal/{unit}.txt"), words.to_vec())
    };
    let fixed = fixed(Origin::Own, &OWN).into_iter().chain(fixed(Origin::System, &SYSTEM));
    fixed.chain(units(settings).into_iter().map(journal)).collect()
}

/// A part as it is: nothing of this leaves the process but by [`Archive::add`].
fn part_of(origin: &Origin, name: &str, words: &[String], options: &CommonOptions) -> Part {
    if *origin != Origin::Own {
        return limited(name, words);
    }
    let agent = std::env::current_exe().map_or_else(|_| "heat-node-agent".to_owned(), |path| path.display().to_string());
    let mut all = Vec::new();
    for (flag, path) in [("--settings", &options.settings), ("--state", &options.state)] {
        all.extend(path.iter().flat_map(|path| [flag.to_owned(), path.display().to_string()]));
    }
    all.extend_from_slice(words);
    // As its people know it, whatever its path is.
    transcript(name, &agent, &all, &format!("heat-node-agent {}", words.join(" ")))
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
fn limited(name: &str, words: &[String]) -> Part {
    let all: Vec<String> = ["-k", "5", LIMIT].map(str::to_owned).into_iter().chain(words.iter().cloned()).collect();
    transcript(name, "timeout", &all, &line("", words))
}

/// The command, what it says, and how it ended where that was no success. JSON stays JSON.
fn transcript(name: &str, tool: &str, arguments: &[String], shown: &str) -> Part {
    let shown = shown.trim();
    let mut is_cut = false;
    let text = match ask_end(tool, arguments, "", PART) {
        Ok(Some(ToolOutput { ok, out, err, .. })) if out.starts_with('{') => {
            if ok || err.is_empty() {
                out
            } else {
                format!("{out}{err}\n")
            }
        }
        Ok(Some(received)) => {
            is_cut = received.is_cut;
            let err = if received.err.is_empty() { String::new() } else { format!("{}\n", received.err) };
            let end = if received.ok { "" } else { "(its exit code was not 0)\n" };
            format!("$ {shown}\n{}{err}{end}", received.out)
        }
        Ok(None) => format!("$ {shown}\n({tool} is not installed)\n"),
        Err(error) => format!("$ {shown}\n({error})\n"),
    };
    Part { name: name.to_owned(), text, is_cut }
}

/// An archive on its way to its file, one masked part after the other: no more than one is held.
struct Archive<W> {
    to: W,
    mask: TextMask,
    /// Why secrets are not known by their values, where they are not.
    unread: Option<String>,
    now: Timestamp,
    /// Bytes that parts may still have.
    left: usize,
    /// Bytes written.
    bytes: u64,
    list: String,
}

impl<W: Write> Archive<W> {
    fn new(to: W, mask: TextMask, unread: Option<String>, now: Timestamp, left: usize) -> Self {
        Self { to, mask, unread, now, left, bytes: 0, list: String::new() }
    }

    fn add(&mut self, origin: &Origin, name: &str, part: impl FnOnce() -> Part) -> Result<()> {
        if let (Origin::Journal, Some(why)) = (origin, &self.unread) {
            let _ = writeln!(self.list, "{:>9}  {name}  (left out, as its secrets are not known: {why})", 0);
            return Ok(());
        }
        let part = part();
        let text = self.mask.masked(&part.text);
        if text.len() > self.left {
            let _ = writeln!(self.list, "{:>9}  {name}  (left out: the archive is full)", 0);
            return Ok(());
        }
        self.left -= text.len();
        let _ = writeln!(self.list, "{:>9}  {name}  {}", text.len(), if part.is_cut { "(its end)" } else { "" });
        self.file(&part.name, text.as_bytes())
    }

    fn file(&mut self, name: &str, content: &[u8]) -> Result<()> {
        let name = format!("heat-node-agent-support/{name}");
        self.bytes += tar::add(&mut self.to, &name, content, self.now.0 / 1000)?;
        Ok(())
    }

    /// Writes the list of contents, and the archive's end; how many bytes it all is.
    fn end(mut self) -> Result<u64> {
        let head = format!("heat-node-agent {} at {}; bytes and names:\n", env!("CARGO_PKG_VERSION"), self.now.rfc3339());
        let list = self.mask.masked(&(head + &self.list));
        self.file("CONTENTS", list.as_bytes())?;
        Ok(self.bytes + tar::end(&mut self.to)?)
    }
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
            let archive = String::from_utf8(packed(&known, None, WHOLE, &names, &form)).unwrap();
            assert!(!archive.contains("s3cret"), "{form}");
            assert!(names.iter().all(|name| archive.contains(&format!("heat-node-agent-support/{name}\0"))));
        }
    }

    #[test]
    fn an_archive_that_is_full_says_what_is_missing() {
        let names: Vec<String> = (0..14).map(|at| format!("part-{at}")).collect();
        let archive = packed(&KnownSecrets::default(), None, 12 * 4100, &names, &format!("begin\n{}\nend\n", "é".repeat(2040)));
        let text = String::from_utf8_lossy(&archive).into_owned();
        assert_eq!(text.matches("begin\n").count(), 12);
        assert!(text.contains("part-0  (its end)") && text.contains("part-13  (left out: the archive is full)"), "{text}");
    }

    /// Attack: where the metadata could not be read, journals showed its secrets.
    #[test]
    fn where_secrets_are_not_known_the_journals_are_left_out() {
        let names = ["journal/kernel.txt", "disks/free.txt", "status.txt"].map(str::to_owned);
        let archive = packed(&KnownSecrets::default(), Some("it is torn"), WHOLE, &names, "connecting as s3cret\n");
        let text = String::from_utf8_lossy(&archive).into_owned();
        assert_eq!(text.matches("s3cret").count(), 2, "{text}");
        assert!(text.contains("journal/kernel.txt  (left out, as its secrets are not known: it is torn)"), "{text}");
    }

    fn packed(known: &KnownSecrets, unread: Option<&str>, left: usize, names: &[String], text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut archive = Archive::new(&mut bytes, known.mask(), unread.map(str::to_owned), Timestamp(0), left);
        for name in names {
            let origin = if name.starts_with("journal/") { Origin::Journal } else { Origin::System };
            archive.add(&origin, name, || Part { name: name.clone(), text: text.to_owned(), is_cut: true }).unwrap();
        }
        let count = archive.end().unwrap();
        assert_eq!(count, bytes.len() as u64);
        bytes
    }

    #[test]
    fn what_a_program_says_stands_behind_its_command_with_its_end() {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let limited = |of: &[&str]| limited("x", &words(of)).text;
        assert_eq!(limited(&["echo", "a"]), "$ echo a\na\n");
        assert_eq!(limited(&["sh", "-c", "echo why >&2; exit 3"]).lines().last(), Some("(its exit code was not 0)"));
        assert!(limited(&["no-such-tool"]).contains("no-such-tool"));
        assert_eq!(limited(&["echo", "{\"a\": 1}"]), "{\"a\": 1}\n");
    }
}
