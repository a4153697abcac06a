//! etcd's own tools. `etcdutl` works on files from 3.5 on, and alone does from 3.6 on; before, and for what is asked of a server, there is
//! `etcdctl`, which speaks the v3 API before 3.4 only if ETCDCTL_API=3 asks for it.

use std::collections::BTreeMap;
use std::path::Path;

use crate::budgets::json;
use crate::desired::{ClientIdentity, EtcdAccess};
use crate::error::{Error, Result};
use crate::programs::{Job, Programs};
use crate::report::text::{escaped, shortened};

/// For whom a tool runs: each has one at a time, and whoever asks anew waits for the end of what was asked before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tools<'a> {
    pub(crate) programs: &'a Programs,
    /// Of the job.
    pub(crate) key: &'static str,
}

/// A database has 8 GB at most.
const TRANSFER_LIMIT_MS: u64 = 15 * 60 * 1000;
const CLIENT: &str = "etcdctl";
const UTILITY: &str = "etcdutl";

/// The member that a snapshot becomes the data of: the only one of a cluster of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RestoredMember {
    pub(crate) name: String,
    pub(crate) peer: String,
    /// No member of another cluster has it, so that none of them finds its peers here.
    pub(crate) token: String,
}

/// As whom etcdctl asks: paths, no secrets.
pub(in crate::keepers) fn client_arguments(identity: Option<&ClientIdentity>) -> impl Iterator<Item = String> {
    let given = identity.map(|own| [("cacert", &own.ca), ("cert", &own.certificate), ("key", &own.key)]);
    given.into_iter().flatten().map(|(name, path)| format!("--{name}={path}"))
}

/// Saves the keys of a server into a file, by way of FILE.part.
pub(super) async fn save(tools: Tools<'_>, access: &EtcdAccess, file: &Path) -> Result<()> {
    let mut argv = vec![CLIENT.to_owned(), format!("--endpoints={}", access.endpoint)];
    argv.extend(client_arguments(access.identity.as_ref()));
    argv.extend(["snapshot".to_owned(), "save".to_owned(), file.display().to_string()]);
    match run(tools, argv).await? {
        Ran::Ended(_) => Ok(()),
        Ran::NotStarted(why) => Err(not_installed(&why)),
    }
}

/// The revision of a snapshot whose pages are sound.
pub(super) async fn status(tools: Tools<'_>, file: &Path) -> Result<u64> {
    let words = ["--write-out=json", "snapshot", "status"].map(str::to_owned);
    let said = offline(tools, words.into_iter().chain([file.display().to_string()]).collect()).await?;
    let status = json::answer(said.trim().as_bytes()).map_err(Error::from)?;
    let revision = status.get("revision").and_then(serde_json::Value::as_u64);
    revision.ok_or_else(|| Error::permanent("etcd's tool names no revision of the snapshot"))
}

pub(super) async fn restore(tools: Tools<'_>, file: &Path, directory: &Path, member: &RestoredMember) -> Result<()> {
    let words = vec![
        "snapshot".to_owned(),
        "restore".to_owned(),
        file.display().to_string(),
        format!("--data-dir={}", directory.display()),
        format!("--name={}", member.name),
        format!("--initial-cluster={}={}", member.name, member.peer),
        format!("--initial-advertise-peer-urls={}", member.peer),
        format!("--initial-cluster-token={}", member.token),
    ];
    offline(tools, words).await.map(drop)
}

/// Has root's programs give something to etcd's user.
pub(super) async fn run_as_root(tools: Tools<'_>, argv: &[&str]) -> Result<()> {
    match run(tools, argv.iter().map(|&word| word.to_owned()).collect()).await? {
        Ran::Ended(_) => Ok(()),
        Ran::NotStarted(why) => Err(Error::permanent(why)),
    }
}

/// By the tool for files where it is installed.
async fn offline(tools: Tools<'_>, words: Vec<String>) -> Result<String> {
    let argv = |tool: &str| [vec![tool.to_owned()], words.clone()].concat();
    if let Ran::Ended(said) = run(tools, argv(UTILITY)).await? {
        return Ok(said);
    }
    match run(tools, argv(CLIENT)).await? {
        Ran::Ended(said) => Ok(said),
        Ran::NotStarted(why) => Err(not_installed(&why)),
    }
}

fn not_installed(why: &str) -> Error {
    Error::permanent(format!("{CLIENT} cannot be run: {why}")).remedy(
        "install etcd's client tools in the image (Debian: etcd-client), or turn snapshots off: [etcd] snapshot_interval = 0",
    )
}

enum Ran {
    /// It ended well; its standard output.
    Ended(String),
    NotStarted(String),
}

async fn run(tools: Tools<'_>, argv: Vec<String>) -> Result<Ran> {
    let environment = BTreeMap::from([("ETCDCTL_API".to_owned(), "3".to_owned())]);
    let tool = argv.first().cloned().unwrap_or_default();
    let job = Job { argv, environment, time_limit_ms: Some(TRANSFER_LIMIT_MS), ..Job::default() };
    let lost = || Error::transient(format!("{tool} ended without a result"));
    let ran = tools.programs.run_anew(tools.key, &job).await?.ok_or_else(lost)?;
    if let Some(why) = &ran.not_started {
        return Ok(Ran::NotStarted(why.causes.join(": ")));
    }
    if ran.status == 0 {
        return Ok(Ran::Ended(ran.stdout));
    }
    if ran.timed_out {
        return Err(Error::transient(format!("{tool} has not ended after {} minutes", TRANSFER_LIMIT_MS / 60_000))
            .remedy("check `journalctl -u etcd`"));
    }
    Err(Error::transient(format!("{tool} failed: {}", reason(&ran.stderr))).remedy("check `journalctl -u etcd`"))
}

/// Why it failed, among the lines of its log.
fn reason(stderr: &str) -> String {
    let lines = || stderr.lines().map(str::trim).filter(|line| !line.is_empty());
    let why = lines().rev().find_map(|line| line.strip_prefix("Error: "));
    // One that died says so first.
    shortened(&escaped(why.or_else(|| lines().find(|line| !line.starts_with('{'))).unwrap_or("it said nothing")), 300)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_found_among_the_lines_of_a_log() {
        for (said, expected) in [
            (
                "{\"level\":\"info\"}\nError: snapshot missing hash but --skip-hash-check=false\n",
                "snapshot missing hash but --skip-hash-check=false",
            ),
            ("unexpected fault address 0x7\nfatal error: fault\n[signal SIGBUS]\n", "unexpected fault address 0x7"),
            ("{\"level\":\"info\"}\n", "it said nothing"),
            ("", "it said nothing"),
        ] {
            assert_eq!(reason(said), expected);
        }
    }

    #[test]
    fn a_client_shows_itself_by_paths() {
        let path = |name: &str| format!("/etc/etcd/certs/{name}");
        let own = ClientIdentity { certificate: path("admin.crt"), key: path("admin.key"), ca: path("ca.crt") };
        let shown: Vec<_> = client_arguments(Some(&own)).collect();
        assert_eq!(
            shown,
            ["--cacert=/etc/etcd/certs/ca.crt", "--cert=/etc/etcd/certs/admin.crt", "--key=/etc/etcd/certs/admin.key"]
        );
        assert_eq!(client_arguments(None).count(), 0);
    }
}
