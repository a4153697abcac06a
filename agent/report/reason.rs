//! Why a deployment failed, in its parts: they travel from where the failure is made to Heat, the records and the pages, each of which puts
//! them together in its own way. Nobody takes a sentence apart.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::remedy::Remedy;
use crate::error::{BETWEEN, Error};

/// How going back from a failed update ended, which tells whose the steps are that the node shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RollbackEnd {
    /// The node is as the generation before asked, and healthy.
    RolledBack,
    /// It failed for the cause that is reported.
    SameCause,
    /// It failed for a cause of its own: the steps show that one, and not the update's.
    OtherCause,
    /// It was not begun: the steps are the update's.
    NotBegun,
}

/// What became of a node after its update failed: in words, and how that ended.
#[derive(Clone, Debug)]
pub struct RollbackOutcome {
    /// For people.
    pub text: String,
    /// For whoever decides by it.
    pub end: RollbackEnd,
}

/// Code, causes, rule and remedy of a failure. It reads as one sentence: `HNA-0502 one mistake | another; remedy: what to do`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub struct FailureReason {
    /// `HNA-0502`, where the failure is one of the catalog.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Why, each cause by itself.
    pub causes: Vec<String>,
    /// What became of the node then: that it was rolled back, or why it was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollback: Option<String>,
    /// How that ended; nothing in records of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollback_end: Option<RollbackEnd>,
    /// By whose rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// What to do, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Remedy>,
}

/// As records have it; those of earlier versions have a sentence.
#[derive(Deserialize)]
#[serde(untagged)]
enum Stored {
    Sentence(String),
    Parts {
        #[serde(default)]
        code: Option<String>,
        #[serde(default)]
        causes: Vec<String>,
        #[serde(default)]
        rollback: Option<String>,
        #[serde(default)]
        rollback_end: Option<RollbackEnd>,
        #[serde(default)]
        rule: Option<String>,
        #[serde(default)]
        remedy: Option<Remedy>,
    },
}

impl From<Stored> for FailureReason {
    fn from(stored: Stored) -> Self {
        match stored {
            Stored::Sentence(sentence) => sentence.into(),
            Stored::Parts { code, causes, rollback, rollback_end, rule, remedy } => {
                Self { code, causes, rollback, rollback_end, rule, remedy }
            }
        }
    }
}

impl FailureReason {
    /// Cause and remedy of an error, without a code.
    #[must_use]
    pub fn of(error: &Error) -> Self {
        Self {
            code: None,
            causes: error.causes(),
            rollback: None,
            rollback_end: None,
            rule: error.broken_rule().map(str::to_owned),
            remedy: error.typed_remedy().cloned(),
        }
    }

    /// The same reason, where it is a failure of the catalog.
    #[must_use]
    pub fn with_code(mut self, code: &str) -> Self {
        self.code = Some(code.to_owned());
        self
    }

    /// The same reason, with what became of the node then.
    #[must_use]
    pub fn with_rollback(mut self, outcome: Option<RollbackOutcome>) -> Self {
        (self.rollback, self.rollback_end) = outcome.map(|outcome| (outcome.text, outcome.end)).unzip();
        self
    }

    /// The error that it was made of, as far as it is known.
    #[must_use]
    pub fn error(self) -> Error {
        let mut causes = self.ended().into_iter();
        let first = Error::permanent(causes.next().unwrap_or_default());
        let error = causes.fold(first, Error::and);
        let error = self.remedy.into_iter().fold(error, Error::remedy);
        self.rule.into_iter().fold(error, Error::rule)
    }

    /// Every cause, what became of the node, and the rule, in one line.
    #[must_use]
    pub fn why(&self) -> String {
        self.lines().join(BETWEEN)
    }

    /// Each cause by itself, with what became of the node at the end of the last.
    fn ended(&self) -> Vec<String> {
        let mut lines = self.causes.clone();
        if let (Some(last), Some(rollback)) = (lines.last_mut(), &self.rollback) {
            last.push_str(&format!("; {rollback}"));
        }
        lines
    }

    /// The same, and the rule behind it.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines = self.ended();
        if let (Some(last), Some(rule)) = (lines.last_mut(), &self.rule) {
            last.push_str(&format!("; rule: {rule}"));
        }
        lines
    }

    /// Adds words to what it says last of the causes.
    pub fn add(&mut self, words: &str) {
        match self.causes.last_mut() {
            Some(cause) => cause.push_str(words),
            None => self.causes.push(words.to_owned()),
        }
    }

    /// What it takes of memory, in bytes.
    #[must_use]
    pub fn weight(&self) -> usize {
        let texts = [self.code.as_deref(), self.rollback.as_deref(), self.rule.as_deref(), self.remedy.as_deref()];
        texts.into_iter().flatten().map(str::len).sum::<usize>() + self.causes.iter().map(|cause| cause.len() + 24).sum::<usize>()
    }

    /// The same with every text put through this.
    #[must_use]
    pub fn map(&self, with: impl Fn(&str) -> String) -> Self {
        Self {
            code: self.code.clone(),
            causes: self.causes.iter().map(|cause| with(cause)).collect(),
            rollback: self.rollback.as_deref().map(&with),
            rollback_end: self.rollback_end,
            rule: self.rule.as_deref().map(&with),
            remedy: self.remedy.as_ref().map(|remedy| remedy.with_text(with(remedy))),
        }
    }

    /// No longer than so many characters as a sentence: the rule and then the end of the causes are left out before the remedy is.
    #[must_use]
    pub fn shortened(&self, limit: usize) -> Self {
        use super::text::shortened;
        let length = |reason: &Self| reason.to_string().chars().count();
        if length(self) <= limit {
            return self.clone();
        }
        let mut short = Self { rule: None, ..self.clone() };
        let over = length(&short).saturating_sub(limit);
        if over > 0 {
            let causes = short.why();
            short.rollback = None;
            let space = causes.chars().count().saturating_sub(over);
            // One that leaves no room for its cause is itself too long.
            if space < limit / 4 {
                short.remedy = short.remedy.map(|remedy| remedy.with_text(shortened(&remedy, limit / 2)));
            }
            let rest = length(&Self { causes: Vec::new(), ..short.clone() });
            short.causes = vec![shortened(&causes, limit.saturating_sub(rest))];
        }
        short
    }
}

impl fmt::Display for FailureReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(code) = &self.code {
            write!(f, "{code} ")?;
        }
        f.write_str(&self.why())?;
        match &self.remedy {
            Some(remedy) => write!(f, "; remedy: {remedy}"),
            None => Ok(()),
        }
    }
}

impl From<String> for FailureReason {
    fn from(cause: String) -> Self {
        Self { causes: vec![cause], ..Self::default() }
    }
}

impl From<&str> for FailureReason {
    fn from(cause: &str) -> Self {
        cause.to_owned().into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn two_mistakes() -> FailureReason {
        let error = Error::permanent("ROLE: is wrong").and("NAME: is wrong; remedy: none").rule("a rule").remedy("correct them");
        FailureReason::of(&error).with_code("HNA-0502")
    }

    #[test]
    fn a_reason_has_a_code_causes_and_one_remedy() {
        let reason = two_mistakes();
        assert_eq!(reason.causes, ["ROLE: is wrong", "NAME: is wrong; remedy: none"]);
        assert_eq!(
            reason.to_string(),
            "HNA-0502 ROLE: is wrong | NAME: is wrong; remedy: none; rule: a rule; remedy: correct them"
        );
    }

    #[test]
    fn records_keep_the_parts_and_the_sentence_of_an_earlier_version_is_shown_as_it_is() {
        let reason = two_mistakes();
        assert_eq!(serde_json::from_value::<FailureReason>(json!(reason)).unwrap(), reason);
        let old = "HNA-0502 ROLE: is wrong; remedy: correct it";
        assert_eq!(serde_json::from_value::<FailureReason>(json!(old)).unwrap().to_string(), old);
    }

    #[test]
    fn a_reason_that_is_too_long_keeps_its_code_and_what_to_do() {
        let long = FailureReason { causes: vec!["x".repeat(500), "y".repeat(500)], ..two_mistakes() };
        for limit in [200, 400, 1000] {
            let short = long.shortened(limit);
            assert!(short.to_string().chars().count() <= limit, "{limit}: {short}");
            assert_eq!((short.code.as_deref(), short.remedy.as_deref()), (Some("HNA-0502"), Some("correct them")));
        }
        let remedy = Some(Remedy::from("z".repeat(900)));
        let both = FailureReason { remedy, ..long };
        let short = both.shortened(400);
        assert!(short.to_string().chars().count() <= 400 && short.causes[0].starts_with("xxxx"), "{short}");
    }
}
