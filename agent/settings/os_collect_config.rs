//! The settings file of the collector that this agent replaces: the INI dialect of oslo.config, read
//! tolerantly (heat-protocol.md 1.3).
//!
//! Values are taken verbatim: no `$` is expanded (R23). An empty value is the same as none (R5). A line
//! that cannot be read is named and skipped.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::budgets::json;

/// Settings that are numbers of seconds.
const SECONDS: [(&str, &str); 5] = [
    ("DEFAULT", "polling_interval"),
    ("DEFAULT", "min_polling_interval"),
    ("DEFAULT", "splay"),
    ("cfn", "timeout"),
    ("request", "timeout"),
];

/// Settings that lead to the metadata of one server.
const SERVER: [(&str, &str); 7] = [
    ("cfn", "access_key_id"),
    ("cfn", "stack_name"),
    ("cfn", "path"),
    ("heat", "user_id"),
    ("heat", "stack_id"),
    ("request", "metadata_url"),
    ("zaqar", "queue_id"),
];

/// What the file says. Never shown: it holds keys and passwords.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct OsCollectConfig {
    /// Values by section and key, in the order of the file.
    values: BTreeMap<(String, String), Vec<String>>,
    /// Numbers of lines that are neither section, comment, continuation nor setting.
    pub suspicious_lines: Vec<usize>,
}

impl OsCollectConfig {
    /// Reads a file; whatever it holds, something comes out.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut parsed = Self::default();
        let mut section = "DEFAULT".to_owned();
        // The key that an indented line continues.
        let mut open: Option<(String, String)> = None;
        for (at, line) in text.lines().enumerate() {
            let trimmed = line.trim();
            if trimmed.is_empty() {
                open = None;
            } else if line.starts_with(['#', ';']) {
                // A comment stands only at the beginning of a line; it does not end a value.
            } else if line.starts_with([' ', '\t']) {
                match open.as_ref().and_then(|key| parsed.values.get_mut(key)).and_then(|values| values.last_mut()) {
                    Some(value) => {
                        value.push('\n');
                        value.push_str(trimmed);
                    }
                    None => parsed.suspicious_lines.push(at + 1),
                }
            } else if let Some(name) = trimmed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                name.trim().clone_into(&mut section);
                open = None;
            } else if let Some((key, value)) = trimmed.split_once(['=', ':']).filter(|(key, _)| !key.trim().is_empty()) {
                let key = (section.clone(), key.trim().to_owned());
                parsed.values.entry(key.clone()).or_default().push(unquoted(value.trim()).to_owned());
                open = Some(key);
            } else {
                parsed.suspicious_lines.push(at + 1);
                open = None;
            }
        }
        parsed
    }

    /// Takes over what a later file says: its values stand behind those that are there.
    pub fn extend(&mut self, later: Self) {
        for (key, values) in later.values {
            self.values.entry(key).or_default().extend(values);
        }
        self.suspicious_lines.extend(later.suspicious_lines);
    }

    /// The last value of a key that is not empty.
    #[must_use]
    pub fn get(&self, section: &str, key: &str) -> Option<&str> {
        self.all(section, key).last()
    }

    /// All values of a key that are not empty.
    pub fn all(&self, section: &str, key: &str) -> impl DoubleEndedIterator<Item = &str> {
        let values = self.values.get(&(section.to_owned(), key.to_owned()));
        values.into_iter().flatten().map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A number of seconds; none where it is no number from 0 to 3600.
    #[must_use]
    pub fn seconds(&self, section: &str, key: &str) -> Option<Duration> {
        let seconds: f64 = self.get(section, key)?.parse().ok()?;
        (0.0..=3600.0).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
    }

    /// The numbers that cannot be used, each with its rule.
    pub fn invalid_numbers(&self) -> impl Iterator<Item = String> {
        let odd =
            SECONDS.iter().filter(|(section, key)| self.get(section, key).is_some() && self.seconds(section, key).is_none());
        odd.map(|(section, key)| format!("[{section}] {key} is not a number of seconds from 0 to 3600; it is ignored"))
    }

    /// Whether it leads to a server's metadata, and not only says how to look for it.
    #[must_use]
    pub fn names_a_server(&self) -> bool {
        SERVER.iter().any(|(section, key)| self.get(section, key).is_some())
    }

    /// `collectors` as repeated lines, as a JSON list or separated by commas (R29).
    #[must_use]
    pub fn collectors(&self) -> Vec<String> {
        self.all("DEFAULT", "collectors").flat_map(listed).collect()
    }
}

/// The words of a list in any spelling that was seen in the field. The file has at most [`crate::budgets::LOCAL_BYTES`].
fn listed(value: &str) -> Vec<String> {
    if let Ok(words) = json::typed::<Vec<String>>(value) {
        return words;
    }
    let bare = value.trim_start_matches('[').trim_end_matches(']');
    let words = bare.split([',', '\n']).map(|word| word.trim().trim_matches(['"', '\'']).to_owned());
    words.filter(|word| !word.is_empty()).collect()
}

/// Without the quotes around it, if both ends have the same one.
fn unquoted(value: &str) -> &str {
    for quote in ['"', '\''] {
        if let Some(inner) = value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return inner;
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_dialect_is_read_as_the_replaced_collector_read_it() {
        let parsed = OsCollectConfig::parse(
            b"[DEFAULT]\ncommand = os-refresh-config\ncollectors = ec2\ncollectors = cfn\n\n# comment\n; too\n[cfn]\n\
              metadata_url: http://h:8000/v1/\nsecret_access_key = a$b${c}#d;e = f\naccess_key_id = \"quoted\"\nstack_name = 'x\n\
              path = one.Metadata\npath = two.Metadata\nca_certificate =\n[ heat ]\nuser_id = a = b\nauth_url = one\n  two\nregion_name=\n",
        );
        for (section, key, value) in [
            ("DEFAULT", "command", Some("os-refresh-config")),
            ("cfn", "metadata_url", Some("http://h:8000/v1/")),
            ("cfn", "secret_access_key", Some("a$b${c}#d;e = f")),
            ("cfn", "access_key_id", Some("quoted")),
            ("cfn", "stack_name", Some("'x")),
            ("cfn", "path", Some("two.Metadata")),
            ("cfn", "ca_certificate", None),
            ("heat", "user_id", Some("a = b")),
            ("heat", "auth_url", Some("one\ntwo")),
            ("heat", "region_name", None),
            ("nowhere", "x", None),
        ] {
            assert_eq!(parsed.get(section, key), value, "{section} {key}");
        }
        assert_eq!(parsed.all("cfn", "path").collect::<Vec<_>>(), ["one.Metadata", "two.Metadata"]);
        assert_eq!(parsed.collectors(), ["ec2", "cfn"]);
        assert_eq!(parsed.suspicious_lines, [0; 0]);
    }

    #[test]
    fn seconds_are_numbers_in_reason() {
        let parsed = OsCollectConfig::parse(b"[DEFAULT]\npolling_interval = 7.5\nsplay = nan\n[cfn]\ntimeout = 3601\n");
        assert_eq!(parsed.seconds("DEFAULT", "polling_interval"), Some(Duration::from_millis(7500)));
        assert_eq!((parsed.seconds("DEFAULT", "splay"), parsed.seconds("cfn", "timeout")), (None, None));
        let odd: Vec<_> = parsed.invalid_numbers().collect();
        assert!(odd.len() == 2 && odd[0].starts_with("[DEFAULT] splay is not a number"), "{odd:?}");
        assert!(!parsed.names_a_server() && OsCollectConfig::parse(b"[heat]\nuser_id = u\n").names_a_server());
    }

    #[test]
    fn lists_are_taken_in_every_spelling() {
        for text in [
            "collectors = [\"ec2\", \"cfn\"]",
            "collectors = ec2,cfn",
            "collectors = ['ec2', 'cfn']",
            "collectors = ec2\n  cfn",
            "collectors = ec2\ncollectors = cfn",
        ] {
            assert_eq!(OsCollectConfig::parse(text.as_bytes()).collectors(), ["ec2", "cfn"], "{text}");
        }
    }

    #[test]
    fn lines_that_cannot_be_read_are_named_and_skipped() {
        let parsed = OsCollectConfig::parse(
            b"  floating\n[cfn\nnonsense\n= x\n[cfn]\npath = a.Metadata\n\n  after a blank line\n\xff = \xfe\n",
        );
        assert_eq!(parsed.suspicious_lines, [1, 2, 3, 4, 8]);
        assert_eq!(parsed.get("cfn", "path"), Some("a.Metadata"));
    }

    proptest! {
        #[test]
        fn nothing_brings_it_down(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(OsCollectConfig::parse(&bytes).collectors().iter().all(|word| !word.is_empty()));
        }

        #[test]
        fn a_value_comes_out_as_it_went_in(value in "[!-~&&[^\"']][ -~&&[^\"']]{0,30}[!-~&&[^\"']]") {
            let parsed = OsCollectConfig::parse(format!("[cfn]\nsecret_access_key = {value}\n").as_bytes());
            prop_assert_eq!(parsed.get("cfn", "secret_access_key"), Some(value.as_str()));
        }
    }
}
