//! Hiding secrets in texts of any origin: by the names that stand before them, and by their values, wherever they stand.

use serde_json::Value;

use super::by_name::masked_words;
use super::{MemberView, hides_value, json_within, masked, masked_config, masked_text, views};
use crate::budgets::KNOWN_SECRETS;
use crate::http::{MASK, redacted, without_userinfo};
use crate::metadata::{Input, Traces};
use crate::programs::Mask;
use crate::report::text::json_page;

/// Values that must not be shown anywhere, from documents that hold them.
#[derive(Debug)]
pub(crate) struct KnownSecrets(Traces);

impl Default for KnownSecrets {
    fn default() -> Self {
        Self(Traces::within(KNOWN_SECRETS))
    }
}

impl KnownSecrets {
    /// None yet, and no more than so many bytes.
    pub(crate) fn within(bytes: usize) -> Self {
        Self(Traces::within(bytes))
    }

    /// Learns whatever [`masked`] hides in a document. No copy of it is made, which would take as much memory as a document may.
    pub(crate) fn learn(&mut self, document: &Value) {
        match document {
            Value::Array(items) => items.iter().for_each(|item| self.learn(item)),
            Value::Object(members) => {
                for (name, value, view) in views(members) {
                    gaps(name, &masked_text(name), &mut self.0);
                    match view {
                        MemberView::Config(text) => self.learn_text(text, &masked_config(text)),
                        MemberView::Hidden => self.0.add_value("", value),
                        MemberView::Inside => self.learn(value),
                    }
                }
            }
            Value::String(text) => self.learn_text(text, &masked_text(text)),
            _ => {}
        }
    }

    /// The same of an input of a deployment.
    pub(crate) fn learn_input(&mut self, input: &Input) {
        gaps(&input.name, &masked_text(&input.name), &mut self.0);
        if hides_value(&input.name, &input.value) {
            self.0.add_value("", &input.value);
        } else {
            self.learn(&input.value);
        }
    }

    /// Learns values as they are.
    pub(crate) fn extend(&mut self, values: impl IntoIterator<Item = String>) {
        values.into_iter().for_each(|value| self.0.insert(&value));
    }

    /// All that was learnt, one by one; `None` if there is more than can be looked for.
    pub(crate) fn all(self) -> Option<Vec<String>> {
        self.0.all()
    }

    /// All that was learnt, ready to be looked for.
    pub(crate) fn mask(&self) -> TextMask {
        TextMask(self.0.clone().all().map(|all| Mask::hiding(&all)))
    }

    /// What of a text is not in what is shown of it.
    fn learn_text(&mut self, text: &str, shown: &str) {
        if shown == MASK {
            return self.0.add_value("", &Value::from(text));
        }
        if text == shown {
            return;
        }
        match json_within(text) {
            // One that is shown otherwise than as JSON is hidden whole.
            Some(inner) if json_within(shown).is_some() => self.learn(&inner),
            _ => gaps(text, shown, &mut self.0),
        }
    }
}

/// Masks texts of any origin.
#[derive(Debug)]
pub(crate) struct TextMask(Option<Mask>);

impl TextMask {
    /// The text without known secrets, without what stands behind the name of a secret, without private keys, signatures of URLs, and
    /// users of URLs. A whole JSON document is masked as such. Nothing of it where there are more secrets than can be looked for.
    pub(crate) fn masked(&self, text: &str) -> String {
        let Some(known) = &self.0 else {
            return "[withheld by heat-node-agent: the metadata has more secrets than can be looked for]\n".to_owned();
        };
        let text = match json_within(text) {
            Some(document @ (Value::Object(_) | Value::Array(_))) => json_page(&masked(&document)),
            _ => masked_words(&without_signatures(&Keys::default().hide(text))),
        };
        without_known(known, &text)
    }

    /// The same for entries of a journal, as they come.
    pub(crate) fn by_entry(self) -> EntryMask {
        EntryMask { text: self, keys: Keys::default(), inside: 0 }
    }

    fn entry(&self, text: &str) -> String {
        let Some(known) = &self.0 else {
            return "[withheld by heat-node-agent: the metadata has more secrets than can be looked for]".to_owned();
        };
        let text = match json_within(text) {
            Some(Value::Object(_) | Value::Array(_)) => masked_text(text),
            _ => masked_words(&without_signatures(text)),
        };
        without_known(known, &text)
    }
}

fn without_known(known: &Mask, text: &str) -> String {
    without_userinfo(&String::from_utf8_lossy(&known.hide(text.as_bytes()))).into_owned()
}

/// What was in the places of the masks in a text; a signed URL, whose query is not shown, counts whole.
fn gaps(text: &str, shown: &str, secrets: &mut Traces) {
    if text == shown {
        return;
    }
    if !shown.contains(MASK) {
        secrets.insert(text);
        // A config that cannot be read is not shown at all; what it calls a secret may stand elsewhere without the rest of it.
        let words = masked_words(text);
        if words.contains(MASK) {
            gaps(text, &words, secrets);
        }
        return;
    }
    let mut rest = text;
    for (at, piece) in shown.split(MASK).enumerate() {
        let found = if piece.is_empty() { (at > 0).then_some(rest.len()) } else { rest.find(piece) };
        let Some(place) = found.or((at == 0).then_some(0)) else { return };
        if let Some(secret) = rest.get(..place).map(str::trim).filter(|secret| at > 0 && !secret.is_empty()) {
            secrets.insert(secret);
            first_words(secret).for_each(|word| secrets.insert(&word));
        }
        rest = rest.get(place + piece.len()..).unwrap_or_default();
    }
}

/// The secret in a text of which more was masked, because nobody can tell where it ends: the word right behind its name, and behind `Bearer`
/// and its kind the next.
fn first_words(masked: &str) -> impl Iterator<Item = String> {
    let mut words =
        masked.split(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ',' | ';')).filter(|word| !word.is_empty());
    let first = words.next();
    let is_scheme = |word: &&str| word.len() < 10 && word.chars().all(char::is_alphabetic);
    let second = first.filter(is_scheme).and_then(|_| words.next());
    first.filter(|word| !is_scheme(word)).into_iter().chain(second).map(str::to_owned).collect::<Vec<_>>().into_iter()
}

/// The blocks of private keys in a text, also of one that has no end, or none of whose beginning is there, and that comes in pieces.
#[derive(Debug, Default)]
struct Keys {
    is_inside: bool,
}

impl Keys {
    fn hide(&mut self, text: &str) -> String {
        let mut out = String::new();
        self.is_inside |= ends_a_key(text);
        for line in text.split_inclusive('\n') {
            let begins = line.contains("-----BEGIN ") && line.contains("PRIVATE KEY");
            let ends = line.contains("-----END ") && line.contains("PRIVATE KEY");
            if begins {
                out.push_str(line.split("-----BEGIN ").next().unwrap_or_default());
            }
            if begins || (self.is_inside && ends) {
                out.push_str(MASK);
                out.push('\n');
            } else if !self.is_inside {
                out.push_str(line);
            }
            self.is_inside = (self.is_inside || begins) && !ends;
        }
        out
    }
}

/// Whether a text begins within a key: it ends one before any begins.
fn ends_a_key(text: &str) -> bool {
    let (begin, end) = (text.find("-----BEGIN "), text.find("-----END "));
    let end = end.filter(|end| begin.is_none_or(|begin| begin > *end)).and_then(|end| text.get(end..));
    end.and_then(|rest| rest.lines().next()).is_some_and(|line| line.contains("PRIVATE KEY"))
}

/// The most entries that a private key may go on over, a line each. One whose end never comes must not hide all that follows.
const LONGEST_KEY: usize = 400;

/// Masks a journal, entry by entry.
#[derive(Debug)]
pub(crate) struct EntryMask {
    text: TextMask,
    keys: Keys,
    /// Entries since a key began.
    inside: usize,
}

impl EntryMask {
    /// What [`TextMask::masked`] masks; JSON stays in its line.
    pub(crate) fn masked(&mut self, entry: &str) -> String {
        self.inside = if self.keys.is_inside { self.inside + 1 } else { 0 };
        if self.inside > LONGEST_KEY {
            (self.keys, self.inside) = (Keys::default(), 0);
        }
        let was_inside = self.keys.is_inside;
        let shown = self.keys.hide(entry);
        let shown = if shown.is_empty() && was_inside { MASK.to_owned() } else { shown };
        self.text.entry(shown.strip_suffix('\n').filter(|_| !entry.ends_with('\n')).unwrap_or(&shown))
    }
}

/// The same with signed URLs shown without their queries.
fn without_signatures(text: &str) -> String {
    if !["Signature=", "temp_url_sig="].iter().any(|sign| text.contains(sign)) {
        return text.to_owned();
    }
    let is_end = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | '`' | '\\');
    let mut out = String::new();
    for piece in text.split_inclusive(is_end) {
        let word = piece.trim_end_matches(is_end);
        if word.contains("Signature=") || word.contains("temp_url_sig=") {
            let at = word.find("http").unwrap_or_default();
            let (before, url) = word.split_at(at);
            out.push_str(before.split('?').next().unwrap_or_default());
            out.push_str(&redacted(url));
            out.push_str(piece.get(word.len()..).unwrap_or_default());
        } else {
            out.push_str(piece);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const KEY: &str = "-----BEGIN RSA PRIVATE KEY-----\nc2VjcmV0LWtleS1saW5lLW9uZQ==\n-----END RSA PRIVATE KEY-----\n";

    #[test]
    fn what_is_masked_in_metadata_is_masked_wherever_it_stands() {
        let mut known = KnownSecrets::default();
        known.learn(&json!({
            "os-collect-config": {"cfn": {"secret_access_key": "s3-access-key"}},
            "deployments": [{"inputs": [
                {"name": "deploy_signal_id", "value": "http://heat/x?Signature=s3signature%3D"},
                {"name": "db_password", "value": "s3 \"quoted\" word"},
                {"name": "CA_KEY", "value": KEY},
                {"name": "handle", "value": "curl -i -H 'X-Auth-Token: s3-token-value' http://h"},
                {"name": "header", "value": "Authorization: Bearer s3-bearer-value; x"},
                {"name": "more", "value": "{\"password\": \"s3-in-json\", \"user\": \"public-user\"}"},
                {"name": "url", "value": "https://bob:s3-in-url@h/v3"},
                {"name": "api_token", "value": {"a": ["s3-in-map"]}},
            ]}, {"group": "kubernetes-node", "config": "a: [\npassword: s3-unparseable\n"}],
        }));
        let text = "a s3-access-key b http://heat/x?Signature=s3signature%3D c s3 \"quoted\" word d s3 \\\"quoted\\\" word \
                    c2VjcmV0LWtleS1saW5lLW9uZQ== s3-token-value s3-bearer-value s3-in-json bob:s3-in-url s3-in-map s3-unparseable public-user";
        let shown = known.mask().masked(text);
        assert!(!shown.contains("s3") && !shown.contains("c2Vj") && shown.contains("public-user"), "{shown}");
        assert!(shown.starts_with("a ****** b "), "{shown}");
    }

    /// Review: each of thousands of secret inputs had a budget of its own, and the sum was looked at at the end.
    #[test]
    fn what_is_learnt_is_bounded_while_it_is_learnt() {
        let inputs: Vec<_> = (0..200).map(|n| json!({"name": "db_password", "value": format!("{n:0>4000}")})).collect();
        let mut known = KnownSecrets::within(64 * 1024);
        known.learn(&json!({"inputs": inputs}));
        known.extend(["one more".to_owned()]);
        let held = format!("{known:?}").len();
        assert!(held < 1024, "{held}");
        assert_eq!(known.all(), None);
        let mut known = KnownSecrets::within(64 * 1024);
        known.learn(&json!({"inputs": [{"name": "db_password", "value": "s3-value"}]}));
        known.extend(["one more".to_owned()]);
        assert_eq!(known.all().unwrap(), ["one more", "s3-value"]);
    }

    #[test]
    fn a_journal_is_masked_entry_by_entry_and_a_key_may_go_over_several() {
        let mut known = KnownSecrets::default();
        known.learn(&json!({"inputs": [{"name": "db_password", "value": "s3-known-value"}]}));
        let mut mask = known.mask().by_entry();
        for (entry, shown) in [
            ("plain", "plain"),
            ("", ""),
            ("a s3-known-value b", "a ****** b"),
            ("--token=s3cret x", "--token=****** x"),
            ("GET http://h/x?Signature=s3cret: 403", "GET http://h/x?… 403"),
            (r#"{"level": "info", "n":1}"#, r#"{"level": "info", "n":1}"#),
            (r#"{"level": "info", "token":"s3cret"}"#, r#"{"level":"info","token":"******"}"#),
            ("one\n  two s3-known-value\n", "one\n  two ******\n"),
            ("key: -----BEGIN RSA PRIVATE KEY-----", "key: ******"),
            ("c2VjcmV0", "******"),
            ("c2VjcmV1", "******"),
            ("-----END RSA PRIVATE KEY-----", "******"),
            ("plain again", "plain again"),
        ] {
            assert_eq!(mask.masked(entry), shown, "{entry}");
        }
        mask.masked("-----BEGIN PRIVATE KEY-----");
        let shown: Vec<String> = (0..500).map(|_| mask.masked("c2VjcmV0")).collect();
        assert_eq!(shown.iter().filter(|line| *line == "******").count(), LONGEST_KEY, "an end that never comes");
    }

    #[test]
    fn what_nobody_knows_is_masked_by_its_form() {
        let known = KnownSecrets::default().mask();
        for text in [
            format!("before\nNov 23 host x: {KEY}after\n"),
            "before\nkubelet: --token=s3cret after\nafter\n".to_owned(),
            "before\nGET http://h/v1/x?temp_url_sig=s3cret&a=b: 403\nafter\n".to_owned(),
            "before\nGET \"http://h/v1/x?a=b&Signature=s3cret\": 403\nafter\n".to_owned(),
            "before\nhttp://u:s3cret@h/ failed\nafter\n".to_owned(),
            "before\nsecret_access_key: s3cret\nafter\n".to_owned(),
        ] {
            let shown = known.masked(&text);
            assert!(!shown.contains("s3cret") && !shown.contains("c2Vj"), "{shown}");
            assert!(shown.starts_with("before\n") && shown.ends_with("after\n"), "{shown}");
        }
        let open = known.masked("x -----BEGIN PRIVATE KEY-----\nc2Vjcm\nc2Vjcn\n");
        assert!(open.starts_with("x ******") && !open.contains("c2Vj"), "{open}");
        let ended = known.masked("c2Vjcm\nhost x: c2Vjcn\nhost x: -----END PRIVATE KEY-----\nafter\n");
        assert_eq!(ended, "******\nafter\n", "of a text whose beginning was cut off");
        let shown = known.masked("{\"password\": \"s3cret\", \"a\": 1}");
        assert!(!shown.contains("s3cret") && shown.contains("\"a\": 1"), "{shown}");
    }
}
