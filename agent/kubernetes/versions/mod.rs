//! Kubernetes versions. (Interim shape of the contract; the tables take its place.)

use std::fmt;

/// A minor release of Kubernetes 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Minor(u16);

impl Minor {
    /// Of an image tag: `v1.28.9-rancher1`.
    #[must_use]
    pub fn of_tag(tag: &str) -> Option<Self> {
        tag.trim_start_matches('v').strip_prefix("1.")?.split(['.', '-', '+']).next()?.parse().ok().map(Self)
    }

    /// 28 for 1.28.
    #[must_use]
    pub fn number(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Minor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}", self.0)
    }
}

/// What has flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
    /// kubelet.
    Kubelet,
    /// kube-proxy.
    Proxy,
}

/// What a user's options are worth.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// What, rule, remedy.
    pub mistakes: Vec<(String, String, String)>,
    /// Taken, but not known.
    pub warnings: Vec<String>,
}

/// The command line of a component: only what the minor knows.
#[derive(Clone, Debug)]
pub struct CommandLine {
    flags: Vec<(String, String)>,
}

impl CommandLine {
    /// An empty one.
    #[must_use]
    pub fn new(_component: Component, _minor: Minor) -> Self {
        Self { flags: Vec::new() }
    }

    /// Sets one of our own flags; ignored where the minor does not know it. Returns whether it was taken.
    pub fn set(&mut self, name: &'static str, value: impl Into<String>) -> bool {
        self.flags.push((name.to_owned(), value.into()));
        true
    }

    /// Whether the flag is set.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.flags.iter().any(|(flag, _)| flag == name)
    }

    /// A user's options: they win over ours.
    pub fn options(&mut self, text: &str) -> Checked {
        for word in text.split_whitespace() {
            let (name, value) = word.trim_start_matches('-').split_once('=').unwrap_or((word.trim_start_matches('-'), "true"));
            self.flags.retain(|(flag, _)| flag != name);
            self.flags.push((name.to_owned(), value.to_owned()));
        }
        Checked::default()
    }

    /// One word a flag: `--name=value`.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        self.flags.iter().map(|(name, value)| format!("--{name}={value}")).collect()
    }

    /// The words as the value of one variable that a unit expands as `$VAR`.
    #[must_use]
    pub fn environment_value(&self) -> String {
        self.words().join(" ")
    }
}
