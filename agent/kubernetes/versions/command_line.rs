//! The command line of a component: only what its minor knows.

use super::shell_words::{items, port, quoted, split, truth};
use super::{Availability, Component, Minor, admission_plugin, feature_gates, flag};
use crate::report::text::shortened;

/// Flags whose value is a map or a set, with what ends a key in an item. Our items and the user's stand beside each
/// other; the user's win.
const MAPS: [(&str, char); 11] = [
    ("disable-admission-plugins", '='),
    ("eviction-hard", '<'),
    ("eviction-minimum-reclaim", '='),
    ("eviction-soft", '<'),
    ("eviction-soft-grace-period", '='),
    (FEATURE_GATES, '='),
    ("kube-reserved", '='),
    ("node-labels", '='),
    ("register-with-taints", '\0'),
    ("runtime-config", '='),
    ("system-reserved", '='),
];

/// Flags whose value the component reads as one line of CSV (pflag's StringSlice), where the agent judges or compares the items.
const LISTS: [&str; 16] = [
    "admission-control",
    "allowed-unsafe-sysctls",
    "authorization-always-allow-paths",
    "authorization-mode",
    "cluster-dns",
    "controllers",
    "disable-admission-plugins",
    "enable-admission-plugins",
    "enforce-node-allocatable",
    "etcd-servers",
    "oidc-signing-algs",
    "requestheader-allowed-names",
    "requestheader-extra-headers-prefix",
    "requestheader-group-headers",
    "requestheader-username-headers",
    "tls-cipher-suites",
];

/// Values that stop a component, by the first and last minor that refuse it: component, flag, minors, whether the value
/// is refused, the rule, the remedy (magnum-node.md 5.1 to 5.5).
type BadValue = (Component, &'static str, u16, u16, fn(&str) -> bool, &'static str, &'static str);
const BAD_VALUES: [BadValue; 10] = [
    (Component::ApiServer, "insecure-port", 20, 23, |value| value != "0", "0 only", "use --secure-port"),
    (Component::ApiServer, "secure-port", 20, u16::MAX, |value| value == "0", "1 to 65535", "leave it out, or name a port"),
    (Component::ApiServer, "storage-backend", 13, u16::MAX, |value| value == "etcd2", "etcd3", "move the data to etcd3 first"),
    (
        Component::ControllerManager,
        "cloud-provider",
        32,
        u16::MAX,
        foreign_cloud,
        EXTERNAL,
        "use the external cloud controller manager",
    ),
    (Component::Kubelet, "cloud-provider", 32, u16::MAX, foreign_cloud, EXTERNAL, "use the external cloud controller manager"),
    // The provider in Kubernetes' own tree ended with 1.25.
    (Component::ApiServer, "cloud-provider", 26, u16::MAX, is_openstack, EXTERNAL, "use the external cloud controller manager"),
    (Component::ControllerManager, "cloud-provider", 26, 31, is_openstack, EXTERNAL, "use the external cloud controller manager"),
    (Component::Kubelet, "cloud-provider", 26, 31, is_openstack, EXTERNAL, "use the external cloud controller manager"),
    (Component::Kubelet, "container-runtime", 24, 26, |value| value != "remote", "remote", "use --container-runtime-endpoint"),
    (Component::Proxy, "proxy-mode", 26, u16::MAX, |value| value == "userspace", "iptables, ipvs or nftables", "use iptables"),
];

/// Switches with which a component does something else than serve for as long as the node runs (its own description of them).
const ENDS: [(Component, &str, &str); 5] = [
    (Component::Kubelet, "really-crash-for-testing", "end where it would go on"),
    (Component::Kubelet, "runonce", "run the static pods and end"),
    (Component::Proxy, "cleanup", "remove its rules and end"),
    (Component::Proxy, "cleanup-iptables", "remove its rules and end"),
    (Component::Proxy, "init-only", "set up the host and end"),
];

const FEATURE_GATES: &str = "feature-gates";
const EXTERNAL: &str = "external, or nothing";

fn foreign_cloud(value: &str) -> bool {
    !value.is_empty() && value != "external"
}

fn is_openstack(value: &str) -> bool {
    value == "openstack"
}

/// A component's flags.
#[derive(Clone, Debug)]
pub struct CommandLine {
    component: Component,
    minor: Minor,
    flags: Vec<Flag>,
}

#[derive(Clone, Debug)]
struct Flag {
    name: String,
    values: Vec<String>,
    ours: bool,
}

/// What was found in a user's options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// What is wrong, its rule, its remedy. Such an option is not taken.
    pub mistakes: Vec<(String, String, String)>,
    /// What is taken, but may be wrong.
    pub warnings: Vec<String>,
}

impl CommandLine {
    /// An empty one.
    #[must_use]
    pub fn new(component: Component, minor: Minor) -> Self {
        Self { component, minor, flags: Vec::new() }
    }

    /// Sets our own flag, whose value replaces one that was set before. It is not taken, and false is the answer, where
    /// the minor is not known to have it, and where the value holds a control character.
    pub fn set(&mut self, name: &'static str, value: impl Into<String>) -> bool {
        self.put(name, vec![value.into()])
    }

    /// Sets our own flag of which the component takes several, each with one of these values.
    pub fn set_all(&mut self, name: &'static str, values: &[&str]) -> bool {
        self.put(name, values.iter().map(|value| (*value).to_owned()).collect())
    }

    fn put(&mut self, name: &str, values: Vec<String>) -> bool {
        let taken = matches!(flag(self.component, self.minor, name), Availability::Known | Availability::Unchecked);
        if !taken || values.iter().any(|value| value.chars().any(char::is_control)) {
            return false;
        }
        let name = name.replace('_', "-");
        match self.flags.iter_mut().find(|flag| flag.name == name) {
            Some(flag) => flag.values = values,
            None => self.flags.push(Flag { name, values, ours: true }),
        }
        true
    }

    /// Whether a flag is set, by us or by the user.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        let name = name.replace('_', "-");
        self.flags.iter().any(|flag| flag.name == name)
    }

    /// Adds a user's options. They win over what was set before; maps are merged, and what the user gives twice is
    /// given twice.
    pub fn add_user_options(&mut self, text: &str) -> Checked {
        let mut checked = Checked::default();
        let words = match split(text) {
            Ok(words) => words,
            Err(problem) => {
                checked.mistake(
                    format!("the text {problem}"),
                    "one line of flags, quoted as in a shell".to_owned(),
                    "close the quotes and write all flags on one line".to_owned(),
                );
                return checked;
            }
        };
        let mut given: Vec<Flag> = Vec::new();
        for flag in flags_of(words) {
            let (name, value) = match flag {
                Ok(flag) => flag,
                Err(word) => {
                    checked.mistake(
                        format!("\"{}\" is not a flag", shown(&word)),
                        "--name=value, --name value or --name".to_owned(),
                        "quote a value that contains spaces".to_owned(),
                    );
                    continue;
                }
            };
            if !self.is_taken(&name, &value, &mut checked) {
                continue;
            }
            match given.iter_mut().find(|flag| flag.name == name) {
                Some(flag) => flag.values.push(value),
                None => given.push(Flag { name, values: vec![value], ours: false }),
            }
        }
        for flag in given {
            self.take(flag, &mut checked);
        }
        // Both styles at once stop the API server (magnum-node.md 5.2).
        let new_style = |flag: &Flag| matches!(flag.name.as_str(), "enable-admission-plugins" | "disable-admission-plugins");
        if self.has("admission-control") && self.flags.iter().any(new_style) {
            self.flags.retain(|flag| flag.name != "admission-control");
            checked.mistake(
                "--admission-control and --enable-admission-plugins or --disable-admission-plugins are both given".to_owned(),
                "only one of the two styles".to_owned(),
                "use --enable-admission-plugins and --disable-admission-plugins".to_owned(),
            );
        }
        checked
    }

    /// Whether the minor may have it; says so if not.
    fn is_taken(&self, name: &str, value: &str, checked: &mut Checked) -> bool {
        let (component, minor) = (self.component, self.minor);
        let rule = format!("only flags of {component} {minor}");
        let mistake = match flag(component, minor, name) {
            Availability::Known | Availability::Unchecked => None,
            Availability::Removed { last, instead } => {
                Some((format!("--{name} was removed: {component} {last} is the last known to have it"), remedy(name, instead)))
            }
            Availability::NotYet { first } => Some((
                format!("--{name} was added in {component} {first}"),
                format!("remove --{name}, or use Kubernetes {first} or later"),
            )),
            Availability::NeverThere => Some((format!("--{name} is not a flag of {component}"), format!("remove --{name}"))),
            Availability::Unknown => {
                checked.warnings.push(format!("--{name}: it is unknown whether {component} {minor} has it"));
                None
            }
        };
        if let Some((what, remedy)) = mistake {
            checked.mistake(what, rule, remedy);
            return false;
        }
        if matches!(name, "help" | "version") {
            checked.mistake(
                format!("--{name} makes {component} print something and exit"),
                "only flags with which the component keeps running".to_owned(),
                format!("remove --{name}"),
            );
            return false;
        }
        let ends = ENDS.iter().find(|(of, flag, _)| *of == component && *flag == name);
        if let Some((.., what)) = ends.filter(|_| truth(value) != Some(false)) {
            checked.mistake(
                format!("--{name} makes {component} {what}"),
                "only flags with which the component serves".to_owned(),
                format!("leave --{name} out"),
            );
            return false;
        }
        let bad = BAD_VALUES.iter().find(|(of, flag, first, last, refused, ..)| {
            *of == component && *flag == name && (*first..=*last).contains(&minor.number()) && refused(value)
        });
        if let Some((.., rule, remedy)) = bad {
            let what = format!("--{name}={} stops {component} {minor}", shown(value));
            checked.mistake(what, (*rule).to_owned(), (*remedy).to_owned());
            return false;
        }
        if let Some((problem, rule, remedy)) = refused_value(name, value) {
            checked.mistake(format!("--{name}={} {problem}", shown(value)), rule.to_owned(), remedy.to_owned());
            return false;
        }
        if component == Component::ApiServer && (name.ends_with("admission-plugins") || name == "admission-control") {
            return self.knows_plugins(name, value, checked);
        }
        if name == FEATURE_GATES {
            return self.knows_gates(value, checked);
        }
        true
    }

    fn knows_gates(&self, value: &str, checked: &mut Checked) -> bool {
        let (component, minor) = (self.component, self.minor);
        let gates = feature_gates::judge(minor, value);
        checked.warnings.extend(gates.warnings.into_iter().map(|warning| format!("--{FEATURE_GATES}: {warning}")));
        let remedy = match gates.rest.as_str() {
            "" => format!("remove --{FEATURE_GATES}"),
            rest => format!("give --{FEATURE_GATES}={rest}"),
        };
        let rule =
            format!("{component} {minor} does not start with a feature gate that it lacks or that is locked to the other value");
        let is_good = gates.refused.is_empty();
        for what in gates.refused {
            checked.mistake(format!("--{FEATURE_GATES}: {what}"), rule.clone(), remedy.clone());
        }
        is_good
    }

    fn knows_plugins(&self, name: &str, value: &str, checked: &mut Checked) -> bool {
        let before = checked.mistakes.len();
        for plugin in items(value).unwrap_or_default().into_iter().filter(|plugin| !plugin.is_empty()) {
            let plugin = shown(plugin);
            let (what, instead) = match admission_plugin(self.minor, &plugin) {
                Availability::Known | Availability::Unchecked => continue,
                Availability::Unknown => {
                    checked
                        .warnings
                        .push(format!("--{name}: it is unknown whether {} has the admission plugin {plugin}", self.minor));
                    continue;
                }
                Availability::Removed { last, instead } => (format!("was removed: {last} is the last known to have it"), instead),
                Availability::NotYet { first } => (format!("was added in {first}"), ""),
                Availability::NeverThere => ("does not exist".to_owned(), ""),
            };
            let rule = format!("only admission plugins of Kubernetes {}", self.minor);
            checked.mistake(format!("--{name}: admission plugin {plugin} {what}"), rule, remedy(&plugin, instead));
        }
        checked.mistakes.len() == before
    }

    fn take(&mut self, mut given: Flag, checked: &mut Checked) {
        let ends = MAPS.iter().find(|(name, _)| *name == given.name).map(|(_, end)| *end);
        let position = self.flags.iter().position(|flag| flag.name == given.name);
        let ours = position.map(|position| self.flags.remove(position));
        if let Some(end) = ends {
            let before = ours.iter().flat_map(|flag| &flag.values).map(String::as_str);
            given.values = vec![merged(before.chain(given.values.iter().map(String::as_str)), end)];
        } else if let Some(ours) = ours.filter(|flag| flag.ours && flag.values != given.values) {
            checked.warnings.push(format!("--{} replaces the agent's own value {}", given.name, ours.values.join(" ")));
        }
        match position {
            Some(position) => self.flags.insert(position, given),
            None => self.flags.push(given),
        }
    }

    /// One word per flag, `--name=value`, in the order in which they were first set: a user's value takes the place of ours.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let words = |flag: &Flag| flag.values.iter().map(|value| format!("--{}={value}", flag.name)).collect::<Vec<_>>();
        self.flags.iter().flat_map(words).collect()
    }

    /// The words as the value of one variable which a unit expands as `$VAR` (systemd.service(5), "Command lines").
    #[must_use]
    pub fn environment_value(&self) -> String {
        self.words().iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    }
}

impl Checked {
    fn mistake(&mut self, what: String, rule: String, remedy: String) {
        self.mistakes.push((what, rule, remedy));
    }
}

/// What is wrong with a value that the component would read otherwise than it looks; the rule and the remedy.
fn refused_value(name: &str, value: &str) -> Option<(&'static str, &'static str, &'static str)> {
    if LISTS.contains(&name) && items(value).is_none() {
        return Some(("contains a quote", "comma-separated items without quotes", "write the items without quotes"));
    }
    ((name == "port" || name.ends_with("-port")) && port(value).is_none()).then_some((
        "is not a plain port number",
        "0 to 65535 in decimal digits, without a sign, a prefix or a leading zero",
        "write the port in decimal digits",
    ))
}

/// The flags of a user's options with their values, as the component reads them; what is none is left out.
#[must_use]
pub fn given(text: &str) -> Vec<(String, String)> {
    flags_of(split(text).unwrap_or_default()).into_iter().filter_map(Result::ok).collect()
}

/// Each flag with its value; a word that is neither is an error.
fn flags_of(words: Vec<String>) -> Vec<Result<(String, String), String>> {
    let mut words = words.into_iter().peekable();
    let mut flags = Vec::new();
    while let Some(word) = words.next() {
        let Some((name, value)) = parse(&word) else {
            flags.push(Err(word));
            continue;
        };
        // A flag without a value is a switch; pflag reads it as true.
        let value = value
            .or_else(|| words.next_if(|next| !next.starts_with('-') || next.chars().nth(1).is_some_and(|c| c.is_ascii_digit())))
            .unwrap_or_else(|| "true".to_owned());
        flags.push(Ok((name, value)));
    }
    flags
}

/// `--name=value`, `--name`; with one dash only what has one letter, as pflag has it.
fn parse(word: &str) -> Option<(String, Option<String>)> {
    let (body, short) = match word.strip_prefix("--") {
        Some(body) => (body, false),
        None => (word.strip_prefix('-')?, true),
    };
    let (name, value) = match body.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None if short && body.len() > 1 && body.is_char_boundary(1) => {
            let (name, value) = body.split_at(1);
            (name, Some(value))
        }
        None => (body, None),
    };
    let good = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    (good && name.starts_with(|c: char| c.is_ascii_alphanumeric()) && !(short && name.len() > 1))
        .then(|| (name.replace('_', "-"), value.map(str::to_owned)))
}

/// Items of several lists, the last of each key at the place of the first.
fn merged<'a>(values: impl Iterator<Item = &'a str>, end: char) -> String {
    let key = |item: &'a str| {
        // A taint is `key=value:effect`; its value is no part of what it is.
        let (name, effect) = if end == '\0' { item.split_once(':').unwrap_or((item, "")) } else { (item, "") };
        (name.split(if end == '\0' { '=' } else { end }).next().unwrap_or(name), effect)
    };
    let mut items: Vec<&str> = Vec::new();
    for item in values.flat_map(|value| value.split(',')).filter(|item| !item.is_empty()) {
        match items.iter_mut().find(|other| key(other) == key(item)) {
            Some(other) => *other = item,
            None => items.push(item),
        }
    }
    items.join(",")
}

fn remedy(name: &str, instead: &str) -> String {
    let name = if name.starts_with(|c: char| c.is_ascii_uppercase()) { name.to_owned() } else { format!("--{name}") };
    if instead.is_empty() { format!("remove {name}") } else { format!("instead of {name}: {instead}") }
}

/// The beginning of a user's word.
fn shown(word: &str) -> String {
    shortened(word, 60)
}
