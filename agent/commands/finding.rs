//! What `verify` found, in a document, in settings or in an image.

use crate::budgets::VERIFY_BYTES;
use crate::error::Error;
use crate::kubernetes::Mistake;

/// One thing that is wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Finding {
    /// File, source or deployment.
    pub(crate) place: String,
    /// Key or parameter; empty where the whole place is meant.
    pub(crate) key: String,
    pub(crate) problem: String,
    pub(crate) rule: String,
    pub(crate) remedy: String,
    /// Whether it is only reported: nothing has to be mended.
    pub(crate) warns: bool,
}

/// What is found, with its texts as far as the budget of a page goes.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) kept: Vec<Finding>,
    /// Bytes of their texts.
    bytes: usize,
    pub(super) mistakes: usize,
    pub(super) notes: usize,
}

impl Findings {
    pub(super) fn push(&mut self, finding: Finding) {
        let count = if finding.warns { &mut self.notes } else { &mut self.mistakes };
        *count += 1;
        let texts = [&finding.place, &finding.key, &finding.problem, &finding.rule, &finding.remedy];
        self.bytes = texts.iter().fold(self.bytes, |sum, text| sum.saturating_add(text.len()));
        if self.bytes <= VERIFY_BYTES || self.kept.is_empty() {
            self.kept.push(finding);
        }
    }

    pub(super) fn extend(&mut self, findings: impl IntoIterator<Item = Finding>) {
        findings.into_iter().for_each(|finding| self.push(finding));
    }

    /// How many are only counted.
    pub(super) fn left_out(&self) -> usize {
        self.mistakes + self.notes - self.kept.len()
    }
}

impl FromIterator<Finding> for Findings {
    fn from_iter<T: IntoIterator<Item = Finding>>(findings: T) -> Self {
        let mut all = Self::default();
        all.extend(findings);
        all
    }
}

/// What is wrong with a parameter.
pub(super) fn of_mistake(place: &str, mistake: Mistake) -> Finding {
    Finding {
        place: place.to_owned(),
        key: mistake.parameter,
        problem: mistake.value.map_or(mistake.problem.clone(), |value| format!("{value:?} {}", mistake.problem)),
        rule: mistake.rule,
        remedy: mistake.remedy,
        warns: false,
    }
}

/// What an error says.
pub(super) fn of_error(place: &str, key: &str, error: &Error) -> Finding {
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    Finding {
        place: place.to_owned(),
        key: key.to_owned(),
        problem: error.to_string(),
        rule: text(error.broken_rule()),
        remedy: text(error.suggested_remedy()),
        warns: false,
    }
}
