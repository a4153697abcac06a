//! What a check found, and what it is about.

use std::fmt;

use crate::kubernetes::versions::Minor;

/// A release of Kubernetes: 1.28, or 1.28.9 where the patch release is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    /// Its minor, which the rules are about.
    pub minor: Minor,
    /// Its patch release.
    pub patch: Option<u16>,
}

impl Release {
    /// The first release that a text names: `Kubernetes v1.28.9`, `v1.28.9-rancher1`, `1.28`.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        text.split_whitespace().find_map(|word| {
            let minor = Minor::of_tag(word)?;
            let patch = word.trim_start_matches('v').split(['.', '-', '+']).nth(2).and_then(|patch| patch.parse().ok());
            Some(Self { minor, patch })
        })
    }

    /// As `KUBE_TAG` names it.
    #[must_use]
    pub fn tag(self) -> String {
        format!("v{}.{}", self.minor, self.patch.unwrap_or_default())
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.patch {
            Some(patch) => write!(f, "{}.{patch}", self.minor),
            None => write!(f, "{}", self.minor),
        }
    }
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Nothing is wrong.
    Ok,
    /// It could not be measured.
    Unknown,
    /// The upgrade must wait until that is put right.
    Problem,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What was checked.
    pub name: &'static str,
    /// What was found.
    pub verdict: Verdict,
    /// What there is, or why it is a problem or not known; one or more.
    pub findings: Vec<String>,
    /// What to do; none where nothing is wrong.
    pub remedies: Vec<String>,
}

impl Row {
    /// Without a finding yet.
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, verdict: Verdict::Ok, findings: Vec::new(), remedies: Vec::new() }
    }

    pub(super) fn ok(name: &'static str, finding: impl Into<String>) -> Self {
        Self { findings: vec![finding.into()], ..Self::new(name) }
    }

    pub(super) fn unknown(name: &'static str, cause: impl Into<String>, remedy: impl Into<String>) -> Self {
        let mut row = Self::new(name);
        row.add(Verdict::Unknown, cause, remedy);
        row
    }

    /// Adds a cause with its remedy; the worst of them is what the check found.
    pub(super) fn add(&mut self, verdict: Verdict, cause: impl Into<String>, remedy: impl Into<String>) {
        self.verdict = self.verdict.max(verdict);
        self.findings.push(cause.into());
        let remedy = remedy.into();
        if !self.remedies.contains(&remedy) {
            self.remedies.push(remedy);
        }
    }

    pub(super) fn problem(&mut self, cause: impl Into<String>, remedy: impl Into<String>) {
        self.add(Verdict::Problem, cause, remedy);
    }
}

/// The worst of all checks.
#[must_use]
pub fn verdict(rows: &[Row]) -> Verdict {
    rows.iter().map(|row| row.verdict).max().unwrap_or(Verdict::Unknown)
}

/// The first minor whose API server takes kubelets that are three minors older (Kubernetes' version skew policy; before, two).
const THREE_OLDER: u16 = 28;

/// How many minors a kubelet, or kube-proxy, may be older than an API server.
pub(super) fn most_behind(api_server: Minor) -> u16 {
    if api_server.number() >= THREE_OLDER { 3 } else { 2 }
}

/// The oldest kubelet that an API server takes.
pub(super) fn oldest_for(api_server: Minor) -> Minor {
    api_server.minus(most_behind(api_server))
}
