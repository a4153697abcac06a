//! Values that nothing the agent writes may show: the secrets of the node's deployment. A program or service that got one may quote it in
//! what it says, and that becomes a cause.

use std::borrow::Cow;

use super::text::secret_texts;

/// What stands in its place.
const HIDDEN: &str = "******";

/// The values, the longest first: one may be part of another.
///
/// They are looked for one by one: texts are short and few, and a search for all at once takes 35 bytes of memory for each of theirs.
#[derive(Debug, Default)]
pub(super) struct Hidden(Vec<String>);

impl Hidden {
    pub(super) fn of(values: &[String]) -> Self {
        let mut all: Vec<String> = secret_texts(values).map(str::to_owned).collect();
        all.sort_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
        all.dedup();
        Self(all)
    }

    /// The text without them.
    pub(super) fn masked<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut shown = Cow::Borrowed(text);
        for value in &self.0 {
            if shown.contains(value.as_str()) {
                shown = Cow::Owned(shown.replace(value.as_str(), HIDDEN));
            }
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_their_long_lines_are_hidden_the_longest_first_and_short_words_are_not() {
        let key = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0LWtleS1saW5l\nc2hvcnQ=\n-----END PRIVATE KEY-----\n";
        let hidden =
            Hidden::of(&["secret".into(), "secrets and lies".into(), "abc".into(), " padded-value\n".into(), key.into()]);
        for (text, shown) in [
            ("secrets and lies, secrets", "******, ******s"),
            ("abc padded-value", "abc ******"),
            ("x c2VjcmV0LWtleS1saW5l y", "x ****** y"),
            ("-----BEGIN PRIVATE KEY----- is no secret", "-----BEGIN PRIVATE KEY----- is no ******"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(hidden.masked(text), shown);
        }
        assert!(hidden.masked(&format!("a {} b", key.trim())).starts_with("a ******"));
    }
}
