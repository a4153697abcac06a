//! What is wrong with a parameter.

use std::fmt;

use super::table::Parameter;
use crate::error::Error;
use crate::http::without_userinfo;
use crate::report::text::{escaped, shortened};

/// Longest part of a bad value that a mistake repeats, in characters.
pub(super) const SHOWN: usize = 80;

/// Mistakes of one kind that are listed; the rest is counted, so that a hostile deployment fills neither the journal nor memory.
pub(in crate::kubernetes) const LISTED: usize = 50;

/// What every private key in PEM has.
pub(in crate::kubernetes) const PRIVATE_KEY: &str = "PRIVATE KEY-----";

/// The remedy of a value that breaks its rule.
pub(super) const CORRECT: &str = "correct the value in the template";

/// One thing that is wrong with the parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Name of the parameter, or `config` where the whole text is meant.
    pub parameter: String,
    /// The value as it may be shown: `***` for secrets; none where no value is at fault.
    pub value: Option<String>,
    /// What is wrong: `is not an IPv4 network`.
    pub problem: String,
    /// The rule in words.
    pub rule: String,
    /// What to change.
    pub remedy: String,
}

impl From<Mistake> for Error {
    fn from(mistake: Mistake) -> Self {
        Self::permanent(format!("{}: {}", mistake.parameter, mistake.problem)).rule(mistake.rule).remedy(mistake.remedy)
    }
}

impl Mistake {
    /// A mistake that is no matter of one value: something is missing, unknown or contradictory.
    #[must_use]
    pub fn general(parameter: &str, problem: impl Into<String>, rule: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            parameter: shown(parameter),
            value: None,
            problem: without_userinfo(&problem.into()).into_owned(),
            rule: rule.into(),
            remedy: remedy.into(),
        }
    }

    /// A broken value of an address is not repeated, whatever it looks like: nobody can tell where in it a password ends.
    pub(super) fn of_value(parameter: &Parameter, value: &str, problem: &str, remedy: impl Into<String>) -> Self {
        let hides = !parameter.secret && (parameter.kind.is_address() || value.contains(PRIVATE_KEY));
        let shown = || match value.rsplit_once('@') {
            _ if parameter.secret => "***".to_owned(),
            Some((_, host)) => shown(&format!("***@{host}")),
            None => shown(value),
        };
        let length = value.chars().count();
        Self {
            parameter: parameter.name.to_owned(),
            value: (!hides).then(shown),
            problem: if hides {
                format!("{problem} ({length} characters, not shown: they may contain a secret)")
            } else {
                problem.to_owned()
            },
            rule: parameter.kind.rule(),
            remedy: remedy.into(),
        }
    }
}

impl Mistake {
    /// What is wrong and by which rule, with its remedy only where that is more than to correct it: for a list of mistakes.
    #[must_use]
    pub fn with_own_remedy(&self) -> String {
        let remedy = if self.remedy == CORRECT { String::new() } else { format!("; {}", self.remedy) };
        format!("{}; rule: {}{remedy}", self.what(), self.rule)
    }

    pub(crate) fn what(&self) -> String {
        let value = self.value.as_ref().map(|value| format!("\"{value}\" ")).unwrap_or_default();
        format!("{}: {value}{}", self.parameter, self.problem)
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; rule: {}; remedy: {}", self.what(), self.rule, self.remedy)
    }
}

/// Bounded and without control characters: the text goes to terminals and to Heat.
pub(super) fn shown(text: &str) -> String {
    escaped(&shortened(text, SHOWN + 1))
}
