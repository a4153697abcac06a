//! What each minor release of Kubernetes takes: flags, fields of configuration files, admission plugins, feature gates.
//!
//! In: a component, a minor, a name. Out: its [`Availability`]. Never: a guess, or a flag that is
//! written. The tables are the `.txt` files beside this one;
//! `docs/flags/renew` makes them from lists of real binaries and reference pages and from noted changes. A line is a
//! name and the minors that know it: `config 2-5,10-` is known from 1.2 to 1.5 and again from 1.10 on. A letter after a
//! range says whence, where it is not the minor's own list: `h` the real binary takes it without showing it, `c` a
//! binary with features cut out shows it, `b` the minors before and after know it, `n` a noted change or, after the
//! last list, no noted removal; `?` means that nothing is known. In all other minors it is known not to be there.

mod command_line;
mod feature_gates;

/// `v3.5.13` → (3, 5), and `6.1.0-25-cloud-amd64` → (6, 1).
pub(crate) fn two_numbers(tag: &str) -> Option<(u16, u16)> {
    let mut parts = tag.trim_start_matches('v').split(['.', '-', '+']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

mod removed_apis;
mod shell_words;
#[cfg(test)]
mod tests;

use std::fmt;

pub use command_line::{Checked, CommandLine, given};
pub use removed_apis::{RemovedApi, removed_annotation, removed_api};
pub use shell_words::{items, option, port, quoted, split, truth};

/// A minor release of Kubernetes 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Minor(u16);

/// A program of the Kubernetes release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// kube-apiserver
    ApiServer,
    /// kube-controller-manager
    ControllerManager,
    /// kube-scheduler
    Scheduler,
    /// kubelet
    Kubelet,
    /// kube-proxy
    Proxy,
}

/// A configuration file whose fields are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigKind {
    /// KubeletConfiguration, kubelet.config.k8s.io/v1beta1
    Kubelet,
    /// KubeProxyConfiguration, kubeproxy.config.k8s.io/v1alpha1
    Proxy,
}

/// What is known of a name in a minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// The minor takes it.
    Known,
    /// It is gone.
    Removed {
        /// The last minor that is known to have taken it.
        last: Minor,
        /// What to use in its place; empty if nothing is needed.
        instead: &'static str,
    },
    /// It comes later.
    NotYet {
        /// The first minor that is known to take it.
        first: Minor,
    },
    /// In no minor that is known.
    NeverThere,
    /// Nothing is known.
    Unknown,
    /// The minor is older than the oldest list.
    Unchecked,
}

impl Minor {
    /// The oldest minor whose flags are known.
    pub const OLDEST_CHECKED: Self = Self(2);
    /// The newest minor whose changes were noted. A newer one is taken for this one.
    pub const NEWEST: Self = Self(37);
    /// The last minor with lists of its own; of later ones only changes are noted.
    pub const LAST_LISTED: Self = Self(31);

    /// The minor of a version or image tag: `v1.28.9`, `1.31`, `v1.23.3-rancher1`.
    #[must_use]
    pub fn of_tag(tag: &str) -> Option<Self> {
        let rest = tag.strip_prefix('v').unwrap_or(tag).strip_prefix("1.")?;
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (digits, after) = rest.split_at(end);
        (after.is_empty() || after.starts_with(['.', '-', '+'])).then(|| digits.parse().ok().map(Self)).flatten()
    }

    /// The `28` of 1.28.
    #[must_use]
    pub fn number(self) -> u16 {
        self.0
    }

    /// So many minors later.
    #[must_use]
    pub fn plus(self, minors: u16) -> Self {
        Self(self.0.saturating_add(minors))
    }

    /// So many minors earlier.
    #[must_use]
    pub fn minus(self, minors: u16) -> Self {
        Self(self.0.saturating_sub(minors))
    }
}

impl fmt::Display for Minor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}", self.0)
    }
}

impl Component {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::ApiServer, Self::ControllerManager, Self::Scheduler, Self::Kubelet, Self::Proxy];

    /// The program's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kubelet => "kubelet",
            Self::Proxy => "kube-proxy",
        }
    }

    fn table(self) -> &'static str {
        match self {
            Self::ApiServer => include_str!("kube-apiserver.txt"),
            Self::ControllerManager => include_str!("kube-controller-manager.txt"),
            Self::Scheduler => include_str!("kube-scheduler.txt"),
            Self::Kubelet => include_str!("kubelet.txt"),
            Self::Proxy => include_str!("kube-proxy.txt"),
        }
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl ConfigKind {
    /// The `kind` of the file.
    #[must_use]
    pub fn kind(self) -> &'static str {
        match self {
            Self::Kubelet => "KubeletConfiguration",
            Self::Proxy => "KubeProxyConfiguration",
        }
    }

    /// The `apiVersion` of the file; none in a minor that reads no such file, or one of another form (magnum-node.md
    /// 5.1, 5.5).
    #[must_use]
    pub fn api_version(self, minor: Minor) -> Option<&'static str> {
        match self {
            Self::Kubelet => (minor.0 >= 10).then_some("kubelet.config.k8s.io/v1beta1"),
            Self::Proxy => (minor.0 >= 9).then_some("kubeproxy.config.k8s.io/v1alpha1"),
        }
    }

    fn table(self) -> &'static str {
        match self {
            Self::Kubelet => include_str!("kubelet-fields.txt"),
            Self::Proxy => include_str!("kube-proxy-fields.txt"),
        }
    }
}

/// The standing of a flag. `_` and `-` in its name are the same to every component (magnum-node.md 5).
#[must_use]
pub fn flag(component: Component, minor: Minor, name: &str) -> Availability {
    if minor < Minor::OLDEST_CHECKED {
        return Availability::Unchecked;
    }
    let name = name.replace('_', "-");
    if let Some(ranges) = row(component.table(), &name) {
        return availability(ranges, minor, instead(component.as_str(), &name));
    }
    // Each real binary was asked for every name that any list has. So what others know and this one never had is not there.
    let elsewhere = Component::ALL.iter().any(|other| row(other.table(), &name).is_some_and(|ranges| ranges != "-"));
    if elsewhere && minor <= Minor::LAST_LISTED { Availability::NeverThere } else { Availability::Unknown }
}

/// The standing of a field: `authentication.anonymous.enabled`, with or without the kind before it.
#[must_use]
pub fn field(kind: ConfigKind, minor: Minor, path: &str) -> Availability {
    let path = path.strip_prefix(kind.kind()).and_then(|rest| rest.strip_prefix('.')).unwrap_or(path);
    let table = kind.table();
    if let Some(ranges) = row(table, path) {
        return availability(ranges, minor, instead(kind.kind(), path));
    }
    // Below a type whose fields no list has, anything may be: `logging.*`.
    let mut above = path;
    while let Some((parent, _)) = above.rsplit_once('.') {
        if let Some(ranges) = row(table, &format!("{parent}.*")) {
            return match availability(ranges, minor, "") {
                Availability::Known => Availability::Unknown,
                other => other,
            };
        }
        above = parent;
    }
    if path.is_empty() { Availability::Unknown } else { Availability::NeverThere }
}

/// The standing of an admission plugin. An unknown one stops the API server.
#[must_use]
pub fn admission_plugin(minor: Minor, name: &str) -> Availability {
    if minor < Minor::OLDEST_CHECKED {
        return Availability::Unchecked;
    }
    match row(include_str!("admission-plugins.txt"), name) {
        Some(ranges) => availability(ranges, minor, instead("admission", name)),
        None => Availability::Unknown,
    }
}

/// A program with releases of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Companion {
    /// etcd's server 3.N
    Etcd,
    /// flanneld 0.N
    Flanneld,
}

/// Whether a companion's minor has a flag; none where that is not known. `-` and `_` are not the same to them.
#[must_use]
pub fn companion_flag(program: Companion, minor: u16, name: &str) -> Option<bool> {
    let (prefix, newest) = match program {
        Companion::Etcd => ("etcd ", 7),
        Companion::Flanneld => ("flanneld ", 20),
    };
    let rows = || include_str!("companions.txt").lines().filter_map(|line| line.strip_prefix(prefix)?.split_once(' '));
    let ranges = rows().find(|(of, _)| *of == name).map(|(_, ranges)| ranges)?;
    match availability(ranges, Minor(minor.min(newest)), "") {
        Availability::Known => Some(true),
        Availability::Unknown => None,
        // flanneld's oldest list is that of 0.5.
        _ if program == Companion::Flanneld && minor < 5 => None,
        _ => Some(false),
    }
}

/// The ranges of a name in a table.
fn row(table: &'static str, name: &str) -> Option<&'static str> {
    table.lines().find_map(|line| {
        line.split_once(' ').filter(|(of, _)| *of == name || of.strip_suffix(".*") == Some(name)).map(|(_, ranges)| ranges)
    })
}

/// What takes the place of a name; `*` stands for all components.
fn instead(of: &str, name: &str) -> &'static str {
    include_str!("instead.txt")
        .lines()
        .find_map(|line| {
            let (owner, rest) = line.split_once(' ')?;
            (owner == of || owner == "*").then(|| rest.strip_prefix(name)?.strip_prefix(' ')).flatten()
        })
        .unwrap_or_default()
}

fn availability(ranges: &'static str, minor: Minor, instead: &'static str) -> Availability {
    let minor = minor.min(Minor::NEWEST);
    let (mut before, mut after) = (None, None);
    for (first, last, known) in ranges.split(',').filter_map(range) {
        if (first..=last).contains(&minor) {
            return if known { Availability::Known } else { Availability::Unknown };
        }
        if known && last < minor {
            before = Some(last);
        }
        if known && minor < first && after.is_none() {
            after = Some(first);
        }
    }
    match (before, after) {
        (Some(last), _) => Availability::Removed { last, instead },
        (None, Some(first)) => Availability::NotYet { first },
        (None, None) => Availability::NeverThere,
    }
}

/// `2-5`, `10-`, `7h`, `22-?`: first and last minor, and whether it is known there.
fn range(text: &str) -> Option<(Minor, Minor, bool)> {
    let known = !text.ends_with('?');
    let numbers = text.trim_end_matches(|c: char| c == '?' || c.is_ascii_lowercase());
    let (first, last) = match numbers.split_once('-') {
        Some((first, "")) => (first.parse().ok()?, Minor::NEWEST.0),
        Some((first, last)) => (first.parse().ok()?, last.parse().ok()?),
        None => (numbers.parse().ok()?, numbers.parse().ok()?),
    };
    Some((Minor(first), Minor(last), known))
}
