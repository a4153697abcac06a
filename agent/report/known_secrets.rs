//! Values that nothing the agent writes may show: the secrets of the node's deployment. A program or service that got one may quote it in
//! what it says, and that becomes a cause.

use std::borrow::Cow;
use std::ops::Range;

use super::secret_finder::masked_at;
use super::text::{says_something, secret_texts};
use crate::http::{CUT, MASK};

/// The values, each once.
///
/// They are looked for one by one: texts are short and few, and a [`super::secret_finder::Finder`] takes 24 bytes of memory for each of theirs.
#[derive(Debug, Default)]
pub(super) struct Hidden(Vec<String>);

impl Hidden {
    pub(super) fn of(values: &[String]) -> Self {
        let mut all: Vec<String> = secret_texts(values).map(str::to_owned).collect();
        all.sort_unstable();
        all.dedup();
        Self(all)
    }

    /// The text without them.
    pub(super) fn masked<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let text = if text.contains(CUT) { Cow::Owned(self.masked_at_cuts(text)) } else { Cow::Borrowed(text) };
        let places = self.places(&text);
        if places.is_empty() {
            return text;
        }
        Cow::Owned(String::from_utf8_lossy(&masked_at(text.as_bytes(), places)).into_owned())
    }

    /// From where to where one of them stands, in order.
    fn places(&self, text: &str) -> Vec<Range<usize>> {
        let mut places = Vec::new();
        for value in &self.0 {
            let mut at = 0;
            while let Some(found) = text.get(at..).and_then(|rest| rest.find(value.as_str())) {
                places.push(at + found..at + found + value.len());
                at += found + value.chars().next().map_or(1, char::len_utf8);
            }
        }
        places.sort_unstable_by_key(|place| place.start);
        places
    }

    /// Whoever shortens a text may cut it within a secret: what is left of that, before or behind the mark of the cut, is not shown either.
    fn masked_at_cuts(&self, text: &str) -> String {
        let mut pieces: Vec<Cow<'_, str>> = text.split(CUT).map(Cow::Borrowed).collect();
        let last = pieces.len() - 1;
        for (at, piece) in pieces.iter_mut().enumerate() {
            if let Some(left) = (at < last).then(|| self.longest(|secret| ends_in_beginning(piece, secret))).flatten() {
                *piece = Cow::Owned(format!("{}{MASK}", piece.get(..piece.len() - left).unwrap_or_default()));
            }
            if let Some(left) = (at > 0).then(|| self.longest(|secret| begins_with_end(piece, secret))).flatten() {
                *piece = Cow::Owned(format!("{MASK}{}", piece.get(left..).unwrap_or_default()));
            }
        }
        pieces.join(CUT.encode_utf8(&mut [0; 4]))
    }

    fn longest(&self, of: impl Fn(&str) -> usize) -> Option<usize> {
        let left = self.0.iter().map(|secret| (of(secret), secret.len()));
        left.filter(|(length, whole)| says_something(*length, *whole)).map(|(length, _)| length).max()
    }
}

/// Bytes of the longest end of the text with which the secret begins.
fn ends_in_beginning(text: &str, secret: &str) -> usize {
    let ends = secret.char_indices().map(|(at, _)| at).rev();
    let public = public_beginning(secret);
    ends.filter(|at| *at > public).find(|at| secret.get(..*at).is_some_and(|part| text.ends_with(part))).unwrap_or(0)
}

/// Bytes at the beginning of a secret that are not secret: scheme and host of a URL, which shortened URLs keep, unless a user is named there.
fn public_beginning(secret: &str) -> usize {
    let Some((scheme @ ("http" | "https"), rest)) = secret.split_once("://") else { return 0 };
    // A password may have a slash in it.
    let host = if rest.contains('@') { 0 } else { rest.find(['/', '?', '#']).unwrap_or(rest.len()) };
    let slash = usize::from(host > 0 && rest.get(host..).is_some_and(|behind| behind.starts_with('/')));
    if host > 0 { scheme.len() + "://".len() + host + slash } else { 0 }
}

/// Bytes of the longest beginning of the text with which the secret ends.
fn begins_with_end(text: &str, secret: &str) -> usize {
    let begins = secret.char_indices().map(|(at, _)| at);
    let part = begins.skip(1).filter_map(|at| secret.get(at..)).find(|part| text.starts_with(part));
    part.map_or(0, str::len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_their_lines_are_hidden_the_longest_first_and_short_words_are_not() {
        let key = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0LWtleS1saW5l\nc2hvcnQ=\n-----END PRIVATE KEY-----\n";
        let hidden =
            Hidden::of(&["secret".into(), "secrets and lies".into(), "abc".into(), " padded-value\n".into(), key.into()]);
        for (text, shown) in [
            ("secrets and lies, secrets", "******, ******s"),
            ("abc padded-value", "abc ******"),
            ("x c2VjcmV0LWtleS1saW5l y", "x ****** y"),
            // Attack: a line of fewer than 16 characters was shown.
            ("x c2hvcnQ= y", "x ****** y"),
            ("-----BEGIN PRIVATE KEY----- is no secret", "-----BEGIN PRIVATE KEY----- is no ******"),
            ("nothing", "nothing"),
            // Attack: of a service's last words, cut before they were masked, most of a password was shown.
            ("pw=secrets and l… | next", "pw=******… | next"),
            ("… and lies, …", "…******, …"),
            ("…s and lies…secrets a…", "…******…******…"),
            // As at the end of a stream: half of a value says something, less does not.
            ("the sec…ret", "the ******…******"),
            ("the se…et", "the se…et"),
            ("pw: secre…", "pw: ******…"),
            ("pw: \"padd…\"", "pw: \"padd…\""),
            // Attack: of two that overlap the end of the second was shown.
            ("secrets and liesecret", "******"),
        ] {
            assert_eq!(hidden.masked(text), shown);
        }
        assert!(hidden.masked(&format!("a {} b", key.trim())).starts_with("a ******"));
        // Where a signal went is no secret; what signs it is.
        let secrets = [
            "http://heat:8000/v1/signal/arn?Signature=x",
            "https://user:pw@cloud/a",
            "https://user:p/w@cloud/",
            "https://query?token=abc",
            "https://next?to=a/b",
        ];
        let hidden = Hidden::of(&secrets.map(str::to_owned));
        for (text, shown) in [
            ("to http://heat:8000/…/resources/node?…", "to http://heat:8000/…/resources/node?…"),
            ("to http://heat:8000/v1…", "to ******…"),
            ("to https://user:p…", "to ******…"),
            ("to https://user:p/…", "to ******…"),
            ("to https://query?token=…", "to ******…"),
            ("to https://next?to=a/…", "to ******…"),
        ] {
            assert_eq!(hidden.masked(text), shown);
        }
    }
}
