//! One settings file: all optional, as it says; and the table of all keys.

use std::collections::BTreeMap;
use std::fmt;

use toml::{Table, Value};

use super::source_name::SourceName;
use crate::http::split;

/// What a value must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueRule {
    /// A whole number in a range.
    Number(u64, u64),
    /// The same, or 0 for none.
    NumberOrNone(u64, u64),
    /// `true` or `false`.
    Switch,
    /// An absolute path without `..`.
    Path,
    /// A list of such paths.
    Paths,
    /// A list of texts, none of them empty.
    Words,
    /// A list of names of sources, each once.
    Sources,
    /// A list of options of components, as `kubelet:--config`.
    Options,
    /// A path that node_exporter's textfile collector takes, or an empty text for none.
    MetricsFile,
    /// The address of a metadata service, or an empty text for none.
    MetadataService,
    /// One of these words.
    OneOf(&'static [&'static str]),
}

/// One key: the source of the checks, of the manual page and of `verify`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingKey {
    /// As in the file, tables joined by dots.
    pub path: &'static str,
    rule: ValueRule,
    /// In TOML; empty where leaving the key out means something that no value says.
    pub default: &'static str,
    /// For people.
    pub meaning: &'static str,
}

impl SettingKey {
    /// What a value must be, in words.
    #[must_use]
    pub fn rule(&self) -> String {
        // No key takes a table, so this says what it takes.
        self.rule.check(&Value::Table(Table::new())).err().unwrap_or_default()
    }
}

const fn key(path: &'static str, rule: ValueRule, default: &'static str, meaning: &'static str) -> SettingKey {
    SettingKey { path, rule, default, meaning }
}

/// Every key.
pub const KEYS: &[SettingKey] = &[
    key("polling_interval", ValueRule::Number(1, 3600), "60", "Seconds between two polls of a source while nothing changes."),
    key(
        "min_polling_interval",
        ValueRule::Number(1, 3600),
        "1",
        "Seconds until the next poll after a change; doubled at each poll up to polling_interval.",
    ),
    key("splay", ValueRule::Number(0, 3600), "0", "The first network poll after a boot is delayed by up to this many seconds."),
    key("state.dir", ValueRule::Path, "\"/var/lib/heat-node-agent\"", "Directory for journal, outbox and caches; mode 0700."),
    key("run.dir", ValueRule::Path, "\"/run/heat-node-agent\"", "status.json."),
    key(
        "sources.order",
        ValueRule::Sources,
        "[\"heat_local\", \"local\", \"cfn\", \"heat\", \"request\", \"zaqar\", \"file\"]",
        "Sources in use; a later one overrides an earlier one.",
    ),
    key(
        "sources.cfn_init_data",
        ValueRule::Paths,
        "[\"/var/lib/heat-cfntools/cfn-init-data\", \"/var/lib/cloud/data/cfn-init-data\"]",
        "Where cloud-init or Ignition leave the server's first metadata.",
    ),
    key(
        "sources.os_collect_config",
        ValueRule::Path,
        "\"/etc/os-collect-config.conf\"",
        "Settings of os-collect-config, which are followed.",
    ),
    key(
        "sources.config_drive",
        ValueRule::Switch,
        "false",
        "Whether the first metadata is read from a disk labelled config-2 where cloud-init left none; any disk with that label is believed.",
    ),
    key(
        "sources.metadata_service",
        ValueRule::MetadataService,
        "\"\"",
        "Address of the metadata service whose user data has the first metadata where cloud-init left none, as http://169.254.169.254.",
    ),
    key(
        "sources.timeout",
        ValueRule::Number(1, 600),
        "10",
        "Time limit in seconds for one request to a source, from name lookup to last byte.",
    ),
    key("deploy.groups", ValueRule::Words, "", "Deployment groups that this image allows; default: all."),
    key("deploy.time_limit", ValueRule::Number(0, 7 * 86_400), "0", "Time limit of a hook in seconds; 0 for no limit."),
    key(
        "deploy.replaced_grace",
        ValueRule::Number(0, 3600),
        "30",
        "Seconds that a script or hook may keep running once Heat has replaced or removed its deployment; then its unit is stopped.",
    ),
    key(
        "deploy.hook_dirs",
        ValueRule::Paths,
        "[\"/usr/libexec/heat-config/hooks\", \"/var/lib/heat-config/hooks\"]",
        "Directories in which hooks are searched; the first match wins.",
    ),
    key(
        "deploy.deployed_dir",
        ValueRule::Path,
        "\"/var/lib/heat-config/deployed\"",
        "The replaced tools' record of what was run, respected and kept up to date.",
    ),
    key("deploy.keep", ValueRule::Number(1, 100_000), "200", "How many records of finished deployments are kept."),
    key("tls.ca_file", ValueRule::Path, "", "PEM file of CAs to trust in addition to the system's."),
    key(
        "tls.allow_insecure",
        ValueRule::Switch,
        "false",
        "Whether parameters may turn off the verification of an endpoint's certificate.",
    ),
    key(
        "node.source",
        ValueRule::OneOf(&["deployment", "heat-params"]),
        "\"deployment\"",
        "What configures the node: a kubernetes-node deployment, or /etc/sysconfig/heat-params, the file that cloud-init writes for Magnum.",
    ),
    key(
        "node.patience",
        ValueRule::Number(1, 100),
        "1",
        "Factor by which the services' deadlines for becoming healthy are multiplied; the wait condition's deadline is unaffected.",
    ),
    key(
        "node.rollback",
        ValueRule::Switch,
        "true",
        "Whether a node goes back to the generation before where an update fails and nothing irreversible is part of it.",
    ),
    key(
        "node.allow_options",
        ValueRule::Options,
        "[]",
        "Options that parameters may set although they override the agent's safety settings, or bring code: [\"kubelet:--config\"].",
    ),
    key(
        "etcd.snapshot_interval",
        // More often, snapshots of etcd would be all that its disk does.
        ValueRule::NumberOrNone(60, 30 * 86_400),
        "43200",
        "Seconds between two snapshots of etcd into /var/lib/etcd/snapshots of a master with an etcd volume, 60 at least; 0 for none.",
    ),
    key("etcd.snapshots_kept", ValueRule::Number(1, 1000), "5", "How many snapshots of etcd are kept, the newest ones."),
    key(
        "legacy.phases",
        ValueRule::Switch,
        "false",
        "Whether the daemon runs the image's phases of os-refresh-config (pre-configure.d and so on) whenever the metadata changed.",
    ),
    key("report.console", ValueRule::Switch, "true", "Whether each phase prints a line on the console."),
    key(
        "report.metrics",
        ValueRule::MetricsFile,
        "",
        "File with metrics for the textfile collector of Prometheus' node_exporter; \"\" for none; default: heat-node-agent.prom in run.dir.",
    ),
    key(
        "report.node_conditions",
        ValueRule::Switch,
        "false",
        "Whether the agent writes what it finds to the conditions of its own node in Kubernetes.",
    ),
];

/// What one file says: the values of the keys in it, each of which is what its rule wants.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Fragment(BTreeMap<&'static str, Value>);

/// A mistake in one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    /// Key path; empty for the whole file.
    pub(super) key: String,
    pub(super) message: String,
    /// What the value must be; empty where no value is at fault.
    pub(super) rule: String,
    /// The rest of the file can be used: an unknown key.
    pub(super) harmless: bool,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() { f.write_str(&self.message) } else { write!(f, "{}: {}", self.key, self.message) }
    }
}

impl Fragment {
    /// Parses and checks a file; every mistake at once. The fragment counts only if none is harmful.
    pub(super) fn parse(bytes: &[u8]) -> (Self, Vec<Mistake>) {
        let whole = |message: String| {
            (Self::default(), vec![Mistake { key: String::new(), message, rule: String::new(), harmless: false }])
        };
        let Ok(text) = std::str::from_utf8(bytes) else { return whole("the file is not UTF-8".to_owned()) };
        let table: Table = match text.parse() {
            Ok(table) => table,
            Err(error) => return whole(syntax(text, &error)),
        };
        let (mut fragment, mut mistakes) = (Self::default(), Vec::new());
        fragment.take(table, "", &mut mistakes);
        if mistakes.iter().any(|mistake| !mistake.harmless) {
            return (Self::default(), mistakes);
        }
        (fragment, mistakes)
    }

    /// What `stronger` says takes the place of what is here, key by key.
    pub(super) fn overlay(&mut self, stronger: Self) {
        self.0.extend(stronger.0);
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    pub(super) fn number(&self, key: &str) -> Option<u64> {
        self.0.get(key)?.as_integer()?.try_into().ok()
    }

    pub(super) fn switch(&self, key: &str) -> Option<bool> {
        self.0.get(key)?.as_bool()
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.as_str()
    }

    pub(super) fn texts(&self, key: &str) -> Option<Vec<String>> {
        Some(self.0.get(key)?.as_array()?.iter().filter_map(Value::as_str).map(str::to_owned).collect())
    }

    /// The values of known keys that are what their rules want; everything else is a mistake.
    fn take(&mut self, table: Table, prefix: &str, mistakes: &mut Vec<Mistake>) {
        for (name, value) in table {
            // A dot in a name was written in quotes: it is no path.
            let name = if name.contains('.') { format!("\"{name}\"") } else { name };
            let path = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
            if let Some(key) = KEYS.iter().find(|key| key.path == path) {
                if let Err(rule) = key.rule.check(&value) {
                    let message = format!("{} is not {rule}", shown(&value));
                    mistakes.push(Mistake { key: path, message, rule, harmless: false });
                } else {
                    self.0.insert(key.path, value);
                }
                continue;
            }
            let is_section = KEYS.iter().any(|key| key.path.split_once('.').is_some_and(|(section, _)| section == path));
            match value {
                Value::Table(inner) if is_section => self.take(inner, &path, mistakes),
                _ if is_section => mistakes.push(Mistake {
                    message: format!("is a section: [{path}]"),
                    key: path,
                    rule: "a section must contain keys".to_owned(),
                    harmless: false,
                }),
                _ => {
                    let hint = nearest(&path).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
                    let message = format!("unknown key, ignored{hint}");
                    mistakes.push(Mistake { key: path, message, rule: "only known keys are used".to_owned(), harmless: true });
                }
            }
        }
    }
}

/// `line 3: …`, without the file's text, which may hold secrets.
fn syntax(text: &str, error: &toml::de::Error) -> String {
    let at = error.span().map_or(0, |span| span.start);
    let line = text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
    format!("line {line}: {}", error.message())
}

impl ValueRule {
    fn check(self, value: &Value) -> Result<(), String> {
        let path = |value: &Value| {
            value
                .as_str()
                .map(std::path::Path::new)
                .is_some_and(|path| path.is_absolute() && !path.components().any(|part| part == std::path::Component::ParentDir))
        };
        let word = |value: &Value| value.as_str().is_some_and(|word| !word.is_empty());
        let list = |each: &dyn Fn(&Value) -> bool| value.as_array().is_some_and(|items| items.iter().all(each));
        let number = value.as_integer().and_then(|n| u64::try_from(n).ok());
        let (good, rule) = match self {
            Self::Number(min, max) => {
                (number.is_some_and(|n| (min..=max).contains(&n)), format!("a whole number from {min} to {max}"))
            }
            Self::NumberOrNone(min, max) => (
                number.is_some_and(|n| n == 0 || (min..=max).contains(&n)),
                format!("a whole number from {min} to {max}, or 0 for none"),
            ),
            Self::Switch => (value.is_bool(), "true or false".to_owned()),
            Self::Path => (path(value), "an absolute path without ..".to_owned()),
            Self::Paths => (list(&path), "a list of absolute paths without ..".to_owned()),
            Self::Words => (list(&word), "a list of non-empty strings".to_owned()),
            Self::Sources => {
                let names = SourceName::ORDER.map(SourceName::as_str);
                let known = |item: &Value| item.as_str().is_some_and(|word| names.contains(&word));
                let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
                let twice = items.iter().enumerate().any(|(at, item)| items.iter().skip(at + 1).any(|other| other == item));
                (list(&known) && !twice && !items.is_empty(), format!("a list of one or more of {}, each once", names.join(", ")))
            }
            Self::Options => (
                list(&|item| item.as_str().is_some_and(is_option)),
                format!("a list of COMPONENT:--flag, each component one of {}", COMPONENTS.join(", ")),
            ),
            Self::MetricsFile => {
                let is_taken = |text: &str| {
                    text.is_empty() || (path(value) && std::path::Path::new(text).extension().is_some_and(|end| end == "prom"))
                };
                (value.as_str().is_some_and(is_taken), "an absolute path without .. that ends in .prom, or empty".to_owned())
            }
            Self::MetadataService => {
                let is_address = |text: &str| split(text).is_some_and(|parts| !parts.userinfo && parts.target.is_empty());
                let is_taken = |text: &str| text.is_empty() || is_address(text);
                (value.as_str().is_some_and(is_taken), "the address of a server, as http://169.254.169.254, or empty".to_owned())
            }
            Self::OneOf(words) => {
                (value.as_str().is_some_and(|word| words.contains(&word)), format!("one of {}", words.join(", ")))
            }
        };
        if good { Ok(()) } else { Err(rule) }
    }
}

/// Components that take options from parameters.
const COMPONENTS: [&str; 5] = ["kubelet", "kube-proxy", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];

fn is_option(text: &str) -> bool {
    let flag = |flag: &str| !flag.is_empty() && flag.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    text.split_once(":--").is_some_and(|(component, name)| COMPONENTS.contains(&component) && flag(name))
}

/// A value for a message: short, because nobody knows what was written into the wrong key.
fn shown(value: &Value) -> String {
    match value {
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(switch) => switch.to_string(),
        other => format!("this {}", other.type_str()),
    }
}

/// The known key that the written one was probably meant to be.
fn nearest(written: &str) -> Option<&'static str> {
    let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
    let score = |key: &SettingKey| {
        let whole = distance(written, key.path);
        // The right key in the wrong section, or the beginning of one.
        if last(written) == last(key.path) || (written.len() > 3 && key.path.starts_with(written)) { whole.min(1) } else { whole }
    };
    KEYS.iter().min_by_key(|key| score(key)).filter(|key| score(key) <= 3).map(|key| key.path)
}

/// How many letters must be changed, added or removed (Levenshtein).
#[must_use]
pub fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, letter) in one.chars().enumerate() {
        let mut next = Vec::with_capacity(row.len());
        next.push(above + 1);
        for ((diagonal, up), other) in row.iter().zip(row.iter().skip(1)).zip(&other) {
            let left = next.last().copied().unwrap_or_default();
            next.push((diagonal + usize::from(letter != *other)).min(up + 1).min(left + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Settings;
    use super::*;

    /// A value that is not the default, for every key.
    fn other_values() -> String {
        let lines: Vec<_> = KEYS
            .iter()
            .map(|key| {
                let value = match key.rule {
                    ValueRule::Number(_, max) | ValueRule::NumberOrNone(_, max) => max.to_string(),
                    ValueRule::Switch => (key.default == "false").to_string(),
                    ValueRule::Path => "\"/other\"".to_owned(),
                    ValueRule::Paths => "[\"/other\"]".to_owned(),
                    ValueRule::Words => "[\"other\"]".to_owned(),
                    ValueRule::Sources => "[\"cfn\"]".to_owned(),
                    ValueRule::Options => "[\"kubelet:--config\"]".to_owned(),
                    ValueRule::MetricsFile => "\"\"".to_owned(),
                    ValueRule::MetadataService => "\"http://[fe80::1%25eth0]:80\"".to_owned(),
                    ValueRule::OneOf(words) => format!("\"{}\"", words[1]),
                };
                format!("{} = {value}", key.path)
            })
            .collect();
        lines.join("\n")
    }

    #[test]
    fn every_key_of_the_table_is_read_and_overlaid() {
        let mut merged = Fragment::default();
        for line in other_values().lines() {
            let (fragment, mistakes) = Fragment::parse(line.as_bytes());
            assert_eq!(mistakes, []);
            assert_ne!(Settings::from(fragment.clone()), Settings::default(), "{line}");
            merged.overlay(fragment);
        }
        assert_eq!(merged, Fragment::parse(other_values().as_bytes()).0);
        let before = merged.clone();
        merged.overlay(Fragment::default());
        assert_eq!(merged, before);
    }

    #[test]
    fn wrong_values_are_named_with_their_rule() {
        for (text, message) in [
            ("polling_interval = 0", "polling_interval: 0 is not a whole number from 1 to 3600"),
            ("polling_interval = -1", "polling_interval: -1 is not a whole number from 1 to 3600"),
            ("polling_interval = 1.5", "polling_interval: 1.5 is not a whole number from 1 to 3600"),
            ("polling_interval = \"60\"", "polling_interval: this string is not a whole number from 1 to 3600"),
            ("[tls]\nallow_insecure = 1", "tls.allow_insecure: 1 is not true or false"),
            (
                "[node]\nallow_options = [\"kubelet:--config\", \"docker:--host\"]",
                "node.allow_options: this array is not a list of COMPONENT:--flag, each component one of kubelet, kube-proxy, \
                 kube-apiserver, kube-controller-manager, kube-scheduler",
            ),
            ("[tls]\nca_file = \"ca.pem\"", "tls.ca_file: this string is not an absolute path without .."),
            ("[state]\ndir = \"/var/../etc\"", "state.dir: this string is not an absolute path without .."),
            ("[deploy]\ngroups = [\"script\", 1]", "deploy.groups: this array is not a list of non-empty strings"),
            (
                "[sources]\norder = [\"cfn\", \"cfn\"]",
                "sources.order: this array is not a list of one or more of heat_local, local, cfn, heat, request, zaqar, file, each once",
            ),
            (
                "[sources]\norder = [\"ec2\"]",
                "sources.order: this array is not a list of one or more of heat_local, local, cfn, heat, request, zaqar, file, each once",
            ),
            ("[node]\nsource = \"magnum\"", "node.source: this string is not one of deployment, heat-params"),
            ("[node]\npatience = 0", "node.patience: 0 is not a whole number from 1 to 100"),
            (
                "[etcd]\nsnapshot_interval = 59",
                "etcd.snapshot_interval: 59 is not a whole number from 60 to 2592000, or 0 for none",
            ),
            (
                "[report]\nmetrics = \"/var/lib/node_exporter/agent.txt\"",
                "report.metrics: this string is not an absolute path without .. that ends in .prom, or empty",
            ),
            ("deploy = 1", "deploy: is a section: [deploy]"),
        ] {
            let (fragment, mistakes) = Fragment::parse(text.as_bytes());
            assert_eq!(mistakes.iter().map(ToString::to_string).collect::<Vec<_>>(), [message]);
            assert_eq!(fragment, Fragment::default());
        }
    }

    /// Attack: a key in quotes is one key with a dot in its name, and took effect as if it were in a section.
    #[test]
    fn a_key_in_quotes_is_no_key_of_a_section() {
        for (text, message) in [
            ("\"deploy.keep\" = 3", "\"deploy.keep\": unknown key, ignored; did you mean deploy.keep?"),
            ("[deploy]\n\"keep.x\" = 3", "deploy.\"keep.x\": unknown key, ignored"),
        ] {
            let (fragment, mistakes) = Fragment::parse(text.as_bytes());
            assert_eq!(mistakes.iter().map(ToString::to_string).collect::<Vec<_>>(), [message]);
            assert!(mistakes[0].harmless && fragment == Fragment::default());
        }
    }

    #[test]
    fn the_nearest_key_is_suggested_where_one_is_near() {
        for (written, near) in [
            ("poling_interval", Some("polling_interval")),
            ("polling-interval", Some("polling_interval")),
            ("deploy.group", Some("deploy.groups")),
            ("ca_file", Some("tls.ca_file")),
            ("node.sources", Some("node.source")),
            ("colour", None),
        ] {
            assert_eq!(nearest(written), near, "{written}");
        }
    }

    proptest! {
        #[test]
        fn no_file_brings_the_agent_down(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Fragment::parse(&bytes);
        }

        #[test]
        fn no_toml_brings_the_agent_down(key in "[a-z_.]{1,12}", value in "[0-9\\[\\]\"{}=, a-z]{0,12}") {
            let _ = Fragment::parse(format!("{key} = {value}").as_bytes());
        }
    }
}
