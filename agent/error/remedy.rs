//! What an operator can do about a failure, and what it takes once that is done. Both are said where the failure is made, and nobody reads
//! them out of the words again.

use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

/// What follows once a remedy was carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AfterRemedy {
    /// What was given up is to be run again, what is tried again goes on: whoever shows the remedy knows which of them.
    #[default]
    Resume,
    /// Nothing: it is an update of the stack, which the agent carries out by itself.
    StackUpdate,
    /// An update of the stack is one of its ways, after which nothing is to be done; after the others it is as with `Resume`.
    StackUpdateOrResume,
    /// Its last way alone needs the deployment run again; those before it are updates of the stack.
    LastWayResumes,
    /// The remedy says it itself.
    Said,
}

/// What an operator can do, and what follows. It reads as its text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub struct Remedy {
    text: Box<str>,
    then: AfterRemedy,
}

/// As records have it; those of earlier versions have the text alone, which says what follows.
#[derive(Deserialize)]
#[serde(untagged)]
enum Stored {
    Text(String),
    Whole {
        text: String,
        #[serde(default)]
        then: AfterRemedy,
    },
}

impl From<Stored> for Remedy {
    fn from(stored: Stored) -> Self {
        match stored {
            Stored::Text(text) => Self::new(text, AfterRemedy::Said),
            Stored::Whole { text, then } => Self::new(text, then),
        }
    }
}

impl Remedy {
    /// A remedy after which this follows.
    #[must_use]
    pub fn new(text: impl Into<String>, then: AfterRemedy) -> Self {
        Self { text: text.into().into_boxed_str(), then }
    }

    /// An update of the stack, and nothing else.
    #[must_use]
    pub fn stack_update(text: impl Into<String>) -> Self {
        Self::new(text, AfterRemedy::StackUpdate)
    }

    /// Several ways, of which one is an update of the stack.
    #[must_use]
    pub fn stack_update_or(text: impl Into<String>) -> Self {
        Self::new(text, AfterRemedy::StackUpdateOrResume)
    }

    /// A text that says itself what follows.
    #[must_use]
    pub fn said(text: impl Into<String>) -> Self {
        Self::new(text, AfterRemedy::Said)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// What follows.
    #[must_use]
    pub fn then(&self) -> AfterRemedy {
        self.then
    }

    /// Another text, after which the same follows.
    #[must_use]
    pub fn with_text(&self, text: impl Into<String>) -> Self {
        Self::new(text, self.then)
    }
}

impl Deref for Remedy {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<&str> for Remedy {
    fn from(text: &str) -> Self {
        Self::new(text, AfterRemedy::Resume)
    }
}

impl From<String> for Remedy {
    fn from(text: String) -> Self {
        Self::new(text, AfterRemedy::Resume)
    }
}

impl From<&String> for Remedy {
    fn from(text: &String) -> Self {
        Self::new(text, AfterRemedy::Resume)
    }
}

impl From<&Self> for Remedy {
    fn from(remedy: &Self) -> Self {
        remedy.clone()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_record_keeps_what_follows_and_one_of_an_earlier_version_is_read() {
        let remedy = Remedy::stack_update("correct it");
        assert_eq!(serde_json::from_value::<Remedy>(json!(remedy)).unwrap(), remedy);
        assert_eq!(serde_json::from_value::<Remedy>(json!("wipe it")).unwrap(), Remedy::said("wipe it"));
    }
}
