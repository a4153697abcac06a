//! The settings of the agent: what the files say (fragments) → merged → checked and typed.
//!
//! In: `agent.toml` and `agent.toml.d/*.toml` below `/usr/lib`, `/run` and `/etc/heat-node-agent`, each
//! stronger than the one before, drop-ins stronger than every `agent.toml`. Out: [`Settings`], complete,
//! and every mistake as a [`Warning`]. Never: a half-read file. A bad main file is an error (exit 64),
//! so that the agent does not run with settings that nobody meant; a bad drop-in is skipped with a warning.

mod fragment;
pub mod os_collect_config;
pub mod source_name;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use fragment::{KEYS, SettingKey, distance};

use crate::error::{Error, ErrorKind, Result};
use crate::files::{FileKind, Tree};
use crate::http::Tls;
use fragment::{Fragment, Mistake};
use source_name::SourceName;

/// Where the agent keeps its state, unless it is told another place.
pub(crate) const STATE_DIR: &str = "/var/lib/heat-node-agent";

/// Weakest first (design.md 3, as systemd's own files).
const DIRECTORIES: [&str; 3] = ["/usr/lib/heat-node-agent", "/run/heat-node-agent", "/etc/heat-node-agent"];

/// Name of the file of metrics in the run directory; the collector takes only what ends so.
const METRICS: &str = "heat-node-agent.prom";

/// Largest settings file, in bytes.
const FILE_LIMIT: u64 = 1024 * 1024;

/// Checked and complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Longest pause between two polls of a source.
    pub polling_interval: Duration,
    /// Shortest pause, right after a change.
    pub min_polling_interval: Duration,
    /// The first poll over the network comes a random part of this later.
    pub splay: Duration,
    /// Where journal, outbox and caches live.
    pub state_dir: PathBuf,
    /// Where `status.json` lives.
    pub run_dir: PathBuf,
    /// Which of the numbers for polling the files say; os-collect-config.conf counts for the others.
    pub explicit: ExplicitSettings,
    /// Where metadata comes from.
    pub sources: Sources,
    /// How deployments are run.
    pub deploy: Deploy,
    /// Whom we believe over TLS.
    pub tls: Tls,
    /// What drives the node.
    pub node_source: NodeSource,
    /// How many times their own deadline the gates of the node's services may be measured.
    pub patience: u32,
    /// Whether a node goes back to the generation before where an update fails.
    pub rollback: bool,
    /// Options that parameters may set although the agent guards them.
    pub allow_options: Vec<String>,
    /// Between two snapshots of etcd; `None`: none are taken.
    pub snapshot_interval: Option<Duration>,
    /// How many snapshots of etcd are kept.
    pub snapshots_kept: usize,
    /// What is done of the replaced tools' work beside deployments.
    pub legacy: Legacy,
    /// Whether each phase prints a line on the console.
    pub console: bool,
    /// Where the metrics go, as the files say; empty: nowhere. See [`Settings::metrics_file`].
    pub metrics: Option<PathBuf>,
    /// Whether what is found is written to the conditions of the node's own object in Kubernetes.
    pub node_conditions: bool,
}

/// Which numbers the settings files say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "a set of names, each asked for by itself")]
pub struct ExplicitSettings {
    /// `polling_interval`.
    pub polling_interval: bool,
    /// `min_polling_interval`.
    pub min_polling_interval: bool,
    /// `splay`.
    pub splay: bool,
    /// `sources.timeout`.
    pub timeout: bool,
}

/// Where metadata comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    /// Sources in use, weakest first.
    pub order: Vec<SourceName>,
    /// The boot copies of the server's metadata, in merge order.
    pub cfn_init_data: Vec<PathBuf>,
    /// The replaced collector's settings.
    pub os_collect_config: PathBuf,
    /// Whether a disk with the label of Nova's config drive is believed, where no boot copy is there. Whoever attaches a disk to the server can
    /// give it that label.
    pub config_drive: bool,
    /// Where the metadata service is that is believed, where neither a boot copy nor a config drive is there.
    pub metadata_service: Option<String>,
    /// Deadline of one request.
    pub timeout: Duration,
}

/// How deployments are run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deploy {
    /// Groups that this image allows; `None` allows all.
    pub groups: Option<Vec<String>>,
    /// Limit for one hook; `None` is none.
    pub time_limit: Option<Duration>,
    /// How long one goes on after Heat replaced its deployment or took it away.
    pub replaced_grace: Duration,
    /// Where hooks are looked for, first match wins.
    pub hook_dirs: Vec<PathBuf>,
    /// The replaced tools' record.
    pub deployed_dir: PathBuf,
    /// How many finished records are kept.
    pub keep: usize,
}

/// What is done of the replaced tools' work beside deployments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Legacy {
    /// Whether the phases of os-refresh-config are run where the metadata changed.
    pub phases: bool,
}

/// What drives the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeSource {
    /// A deployment of the group `kubernetes-node`.
    Deployment,
    /// `/etc/sysconfig/heat-params`.
    HeatParams,
}

/// One mistake in a settings file; the agent goes on without that key or file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Which file.
    pub file: PathBuf,
    /// Key path, e.g. `deploy.groups`; empty where the whole file is meant.
    pub key: String,
    /// What is wrong and what was done.
    pub message: String,
    /// What the value must be; empty where no value is at fault.
    pub rule: String,
    /// Whether the whole file is skipped.
    pub skipped: bool,
}

/// Settings and what was odd about their files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Complete.
    pub settings: Settings,
    /// Every mistake that did not stop us.
    pub warnings: Vec<Warning>,
}

impl Settings {
    /// Where the metrics go; `None`: nowhere.
    #[must_use]
    pub fn metrics_file(&self) -> Option<PathBuf> {
        let path = self.metrics.clone().unwrap_or_else(|| self.run_dir.join(METRICS));
        Some(path).filter(|path| !path.as_os_str().is_empty())
    }
}

impl Default for Settings {
    fn default() -> Self {
        Fragment::default().into()
    }
}

/// Reads all settings below `root`; `only` replaces all other files.
///
/// # Errors
/// Permanent, with every mistake of the file in it, if a main file is unreadable or wrong. `main` turns
/// that into exit 64, on which systemd does not restart the agent.
pub fn load(root: &Tree, only: Option<&Path>) -> Result<Loaded> {
    match read(root, only)? {
        (_, Some(unusable)) => Err(unusable),
        (loaded, None) => Ok(loaded),
    }
}

/// The same with every mistake of every file as a warning, for `verify`; a file that would stop the agent is left out.
///
/// # Errors
/// If the working directory is not known.
pub fn check(root: &Tree, only: Option<&Path>) -> Result<Loaded> {
    read(root, only).map(|(loaded, _)| loaded)
}

/// Everything that the files say, and why the agent must not run with it.
fn read(root: &Tree, only: Option<&Path>) -> Result<(Loaded, Option<Error>)> {
    let mut merged = Fragment::default();
    let mut warnings = Vec::new();
    let mut unusable = None;
    let mut main = |path: &Path, must: bool| {
        let stops = read_main(root, path, must, &mut merged, &mut warnings).err();
        unusable = unusable.take().or(stops);
    };
    if let Some(only) = only {
        main(&std::path::absolute(only)?, true);
        return Ok((Loaded { settings: merged.into(), warnings }, unusable));
    }
    for directory in DIRECTORIES {
        main(&Path::new(directory).join("agent.toml"), false);
    }
    for path in drop_ins(root, &mut warnings) {
        if let Some(fragment) = read_drop_in(root, &path, &mut warnings) {
            merged.overlay(fragment);
        }
    }
    Ok((Loaded { settings: merged.into(), warnings }, unusable))
}

/// A file whose mistakes stop the agent. `must`: it has to be there.
fn read_main(root: &Tree, path: &Path, must: bool, merged: &mut Fragment, warnings: &mut Vec<Warning>) -> Result<()> {
    let mut whole = |why: &str| {
        warnings.push(whole_file(path, why));
        unusable(path, why)
    };
    let bytes = match root.read(path, FILE_LIMIT) {
        Ok(Some(bytes)) => bytes,
        Ok(None) if must => return Err(whole("there is no such file")),
        Ok(None) => return Ok(()),
        Err(error) => return Err(whole(error.cause())),
    };
    let (fragment, mistakes) = Fragment::parse(&bytes);
    let wrong: Vec<_> = mistakes.iter().filter(|mistake| !mistake.harmless).map(Mistake::to_string).collect();
    let skipped = !wrong.is_empty();
    warnings.extend(mistakes.into_iter().map(|mistake| warning(path, mistake, skipped)));
    if skipped {
        return Err(unusable(path, &wrong.join("; ")));
    }
    merged.overlay(fragment);
    Ok(())
}

/// A file that cannot be used at all.
fn whole_file(path: &Path, why: &str) -> Warning {
    Warning { file: path.to_owned(), key: String::new(), message: why.to_owned(), rule: String::new(), skipped: true }
}

fn unusable(path: &Path, why: &str) -> Error {
    Error::permanent(why)
        .context(format!("reading settings {}", path.display()))
        .rule("heat-node-agent.toml(5)")
        .remedy("correct the file; `heat-node-agent verify` lists every mistake")
}

fn warning(path: &Path, mistake: Mistake, skipped: bool) -> Warning {
    Warning { file: path.to_owned(), key: mistake.key, message: mistake.message, rule: mistake.rule, skipped }
}

/// The drop-ins in force: by file name over all three directories, the stronger directory masking the
/// same name in a weaker one.
fn drop_ins(root: &Tree, warnings: &mut Vec<Warning>) -> Vec<PathBuf> {
    let mut by_name = BTreeMap::new();
    for directory in DIRECTORIES {
        let directory = Path::new(directory).join("agent.toml.d");
        match root.list(&directory) {
            Ok(names) => {
                let wanted = names.into_iter().filter(|name| Path::new(name).extension().is_some_and(|end| end == "toml"));
                by_name.extend(wanted.map(|name| (name.clone(), directory.join(name))));
            }
            Err(error) => {
                warnings.push(whole_file(&directory, error.cause()));
            }
        }
    }
    by_name.into_values().collect()
}

/// The fragment, or nothing where the file is masked or wrong.
fn read_drop_in(root: &Tree, path: &Path, warnings: &mut Vec<Warning>) -> Option<Fragment> {
    let bytes = match root.read(path, FILE_LIMIT) {
        Ok(bytes) => bytes?,
        // A link to /dev/null, or to anything else that is no file: the customary way to mask a name.
        Err(error) if error.kind() == ErrorKind::Permanent && is_link(root, path) => return None,
        Err(error) => {
            warnings.push(whole_file(path, error.cause()));
            return None;
        }
    };
    let (fragment, mistakes) = Fragment::parse(&bytes);
    let skipped = mistakes.iter().any(|mistake| !mistake.harmless);
    warnings.extend(mistakes.into_iter().map(|mistake| warning(path, mistake, skipped)));
    (!skipped).then_some(fragment)
}

fn is_link(root: &Tree, path: &Path) -> bool {
    root.facts(path).ok().flatten().is_some_and(|facts| facts.kind == FileKind::Link)
}

impl From<Fragment> for Settings {
    /// The merged files with the defaults of [`KEYS`] for what they do not say. Values were checked file by file.
    fn from(merged: Fragment) -> Self {
        let seconds = |key: &str, or: u64| Duration::from_secs(merged.number(key).unwrap_or(or));
        let path = |key: &str, or: &str| PathBuf::from(merged.text(key).unwrap_or(or));
        let paths = |key: &str, or: &[&str]| match merged.texts(key) {
            Some(given) => given.into_iter().map(PathBuf::from).collect(),
            None => or.iter().map(PathBuf::from).collect(),
        };
        let is_on = |key: &str, or: bool| merged.switch(key).unwrap_or(or);
        let explicit = ExplicitSettings {
            polling_interval: merged.has("polling_interval"),
            min_polling_interval: merged.has("min_polling_interval"),
            splay: merged.has("splay"),
            timeout: merged.has("sources.timeout"),
        };
        let polling_interval = seconds("polling_interval", 60);
        let order = merged.texts("sources.order");
        let order = order.map(|words| words.iter().filter_map(|word| SourceName::from_word(word)).collect());
        Self {
            polling_interval,
            min_polling_interval: seconds("min_polling_interval", 1).min(polling_interval),
            splay: seconds("splay", 0),
            state_dir: path("state.dir", STATE_DIR),
            run_dir: path("run.dir", "/run/heat-node-agent"),
            explicit,
            sources: Sources {
                order: order.unwrap_or_else(|| SourceName::ORDER.to_vec()),
                cfn_init_data: paths(
                    "sources.cfn_init_data",
                    &["/var/lib/heat-cfntools/cfn-init-data", "/var/lib/cloud/data/cfn-init-data"],
                ),
                os_collect_config: path("sources.os_collect_config", "/etc/os-collect-config.conf"),
                config_drive: is_on("sources.config_drive", false),
                metadata_service: merged.text("sources.metadata_service").filter(|url| !url.is_empty()).map(str::to_owned),
                timeout: seconds("sources.timeout", 10),
            },
            deploy: Deploy {
                groups: merged.texts("deploy.groups"),
                time_limit: merged.number("deploy.time_limit").filter(|seconds| *seconds > 0).map(Duration::from_secs),
                replaced_grace: seconds("deploy.replaced_grace", 30),
                hook_dirs: paths("deploy.hook_dirs", &["/usr/libexec/heat-config/hooks", "/var/lib/heat-config/hooks"]),
                deployed_dir: path("deploy.deployed_dir", "/var/lib/heat-config/deployed"),
                keep: usize::try_from(merged.number("deploy.keep").unwrap_or(200)).unwrap_or(usize::MAX),
            },
            tls: Tls {
                ca_file: merged.text("tls.ca_file").map(PathBuf::from),
                allow_insecure: is_on("tls.allow_insecure", false),
            },
            node_source: match merged.text("node.source") {
                Some("heat-params") => NodeSource::HeatParams,
                _ => NodeSource::Deployment,
            },
            patience: merged.number("node.patience").and_then(|factor| factor.try_into().ok()).unwrap_or(1),
            rollback: is_on("node.rollback", true),
            allow_options: merged.texts("node.allow_options").unwrap_or_default(),
            snapshot_interval: Some(seconds("etcd.snapshot_interval", 43_200)).filter(|interval| !interval.is_zero()),
            snapshots_kept: usize::try_from(merged.number("etcd.snapshots_kept").unwrap_or(5)).unwrap_or(usize::MAX),
            legacy: Legacy { phases: is_on("legacy.phases", false) },
            console: is_on("report.console", true),
            metrics: merged.text("report.metrics").map(PathBuf::from),
            node_conditions: is_on("report.node_conditions", false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Attributes;

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Tree) {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        for (path, content) in files {
            let path = Path::new(path);
            tree.create_dir_all(path.parent().unwrap(), Attributes::mode(0o755)).unwrap();
            tree.write(path, content.as_bytes(), Attributes::mode(0o644)).unwrap();
        }
        (dir, tree)
    }

    #[test]
    fn no_file_at_all_is_fine() {
        let (_dir, tree) = tree(&[]);
        let loaded = load(&tree, None).unwrap();
        assert_eq!(loaded, Loaded { settings: Settings::default(), warnings: Vec::new() });
        assert_eq!(loaded.settings.polling_interval, Duration::from_mins(1));
        assert_eq!(loaded.settings.deploy.time_limit, None);
    }

    #[test]
    fn the_stronger_file_wins_key_by_key_and_a_same_name_masks() {
        let (dir, tree) = tree(&[
            (
                "/usr/lib/heat-node-agent/agent.toml",
                "polling_interval = 10\nsplay = 5\n[deploy]\ngroups = [\"script\"]\nkeep = 7\n",
            ),
            ("/run/heat-node-agent/agent.toml", "polling_interval = 20\n[node]\npatience = 3\n"),
            ("/etc/heat-node-agent/agent.toml", "polling_interval = 30\n[tls]\nca_file = \"/etc/ca.pem\"\n"),
            ("/usr/lib/heat-node-agent/agent.toml.d/50-a.toml", "splay = 50\n[deploy]\ntime_limit = 9\n"),
            ("/etc/heat-node-agent/agent.toml.d/50-a.toml", "[deploy]\ntime_limit = 60\n"),
            ("/run/heat-node-agent/agent.toml.d/60-b.toml", "[deploy]\ntime_limit = 61\n"),
            ("/usr/lib/heat-node-agent/agent.toml.d/70-c.toml", "splay = 70\n"),
            ("/usr/lib/heat-node-agent/agent.toml.d/readme", "not toml"),
        ]);
        std::os::unix::fs::symlink("/dev/null", dir.path().join("etc/heat-node-agent/agent.toml.d/70-c.toml")).unwrap();
        tree.create_dir(Path::new("/dev"), Attributes::mode(0o755)).unwrap();
        // Inside a test's tree /dev/null can only be something else that is no file.
        tree.create_dir(Path::new("/dev/null"), Attributes::mode(0o755)).unwrap();
        let Loaded { settings, warnings } = load(&tree, None).unwrap();
        assert_eq!(warnings, []);
        assert_eq!((settings.polling_interval.as_secs(), settings.splay.as_secs()), (30, 5));
        assert_eq!(settings.deploy.time_limit, Some(Duration::from_secs(61)));
        assert_eq!((settings.patience, Settings::default().patience), (3, 1));
        assert_eq!((settings.deploy.groups, settings.deploy.keep), (Some(vec!["script".to_owned()]), 7));
        assert_eq!(settings.tls.ca_file, Some("/etc/ca.pem".into()));
    }

    #[test]
    fn a_bad_drop_in_is_skipped_and_every_mistake_is_named() {
        let (_dir, tree) = tree(&[
            ("/etc/heat-node-agent/agent.toml.d/1.toml", "polling_interval = 5\nthis is not toml\n"),
            ("/etc/heat-node-agent/agent.toml.d/2.toml", "polling_interval = 0\nsplay = \"long\"\n[deploy]\nkeep = 3\n"),
            ("/etc/heat-node-agent/agent.toml.d/3.toml", "poling_interval = 5\nsplay = 4\n[tls]\nca = 1\n[zzz]\na = 1\n"),
        ]);
        let Loaded { settings, warnings } = load(&tree, None).unwrap();
        assert_eq!((settings.polling_interval.as_secs(), settings.splay.as_secs(), settings.deploy.keep), (60, 4, 200));
        let shown: Vec<_> =
            warnings.iter().map(|w| format!("{} {} {} {}", w.file.display(), w.key, w.message, w.skipped)).collect();
        let all = shown.join("\n");
        for part in [
            "1.toml  line 2",
            "2.toml polling_interval",
            "from 1 to 3600",
            "2.toml splay",
            "3.toml poling_interval",
            "did you mean polling_interval?",
            "3.toml tls.ca",
            "did you mean tls.ca_file?",
            "3.toml zzz",
            "false",
        ] {
            assert!(all.contains(part), "{part} in:\n{all}");
        }
        assert_eq!(warnings.iter().filter(|warning| warning.skipped).count(), 3);
    }

    #[test]
    fn a_bad_main_file_stops_the_agent() {
        for bad in ["polling_interval = 9999", "[deploy", "[node]\nsource = \"both\"\n[state]\ndir = \"var\"", "\u{0}"] {
            let (_dir, tree) = tree(&[("/etc/heat-node-agent/agent.toml", bad)]);
            let error = load(&tree, None).unwrap_err();
            let checked = check(&tree, None).unwrap();
            assert!(checked.warnings.iter().all(|warning| warning.skipped) && !checked.warnings.is_empty());
            assert_eq!(checked.settings, Settings::default());
            assert_eq!(error.kind(), ErrorKind::Permanent);
            assert!(error.to_string().contains("agent.toml"), "{error}");
        }
        let (_dir, tree) = tree(&[]);
        tree.create_dir_all(Path::new("/etc/heat-node-agent/agent.toml"), Attributes::mode(0o755)).unwrap();
        assert!(load(&tree, None).is_err());
    }

    #[test]
    fn one_given_file_replaces_all_others() {
        let (_dir, tree) =
            tree(&[("/etc/heat-node-agent/agent.toml", "splay = 5\n"), ("/tmp/mine.toml", "keep = 1\n[deploy]\nkeep = 1\n")]);
        let loaded = load(&tree, Some(Path::new("/tmp/mine.toml"))).unwrap();
        assert_eq!((loaded.settings.splay, loaded.settings.deploy.keep), (Duration::ZERO, 1));
        assert!(loaded.warnings[0].message.contains("did you mean deploy.keep?"), "{:?}", loaded.warnings);
        assert!(load(&tree, Some(Path::new("/tmp/none.toml"))).unwrap_err().to_string().contains("no such file"));
    }

    #[test]
    fn the_documented_defaults_are_those_in_force() {
        let reported = KEYS.iter().filter(|key| !key.default.is_empty());
        let lines: Vec<_> = reported.map(|key| format!("{} = {}", key.path, key.default)).collect();
        let (fragment, mistakes) = Fragment::parse(lines.join("\n").as_bytes());
        assert_eq!(mistakes.iter().map(ToString::to_string).collect::<Vec<_>>(), [""; 0]);
        assert_eq!(Settings { explicit: ExplicitSettings::default(), ..fragment.into() }, Settings::default());
    }
}
