//! What `--type` asks of a value (heat-protocol.md 6.4). A newline at the end is never in the way.

use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::gather::Gather;

/// Whether a text is of a kind.
///
/// # Errors
/// If it is not, without a word of it; if nobody knows the kind.
pub(super) fn check(text: &str, kind: &str) -> Result<()> {
    let text: Vec<char> = text.chars().collect();
    let all = |least: usize, is: fn(char) -> bool| {
        let text = text.strip_suffix(&['\n']).unwrap_or(&text);
        text.len() >= least && text.iter().all(|c| is(*c))
    };
    let is_address = |c: char| c.is_ascii_alphanumeric() || "/.:-".contains(c);
    let fits = match kind {
        "raw" => true,
        "int" => all(1, |c| c.is_ascii_digit()),
        "default" => all(0, |c| c.is_ascii_alphanumeric() || c == '_'),
        "netaddress" | "netdevice" => all(0, is_address),
        "username" => all(1, |c| c.is_ascii_alphanumeric() || "_-".contains(c)),
        "dsn" => dsn(&text),
        "swiftdevices" => swift_devices(&text),
        other => return Err(Error::permanent(format!("there is no type {other}"))),
    };
    if fits { Ok(()) } else { Err(Error::permanent(format!("its value is not of the type {kind}"))) }
}

/// Where a pattern may have got to in a text, all ways at once.
struct Places<'t> {
    text: &'t [char],
    at: BTreeSet<usize>,
}

impl<'t> Places<'t> {
    fn start(text: &'t [char]) -> Self {
        Self { text, at: BTreeSet::from([0]) }
    }

    fn none(&self) -> Self {
        Self { text: self.text, at: BTreeSet::new() }
    }

    /// One or more of these characters.
    fn some(&self, is: impl Fn(char) -> bool) -> Self {
        let mut after = self.none();
        let mut reached = 0;
        for from in &self.at {
            // What was reached from an earlier place was reached by the same characters.
            for (at, _) in self.text.iter().enumerate().skip((*from).max(reached)).take_while(|(_, c)| is(**c)) {
                after.at.insert(at + 1);
                reached = at;
            }
        }
        after
    }

    /// Exactly this.
    fn word(&self, word: &str) -> Self {
        let word: Vec<char> = word.chars().collect();
        let follows = |at: &&usize| self.text.get(**at..).is_some_and(|rest| rest.starts_with(&word));
        Self { text: self.text, at: self.at.iter().filter(follows).map(|at| at + word.len()).gather() }
    }

    /// This, or nothing.
    fn maybe(&self, pattern: impl Fn(&Self) -> Self) -> Self {
        let mut after = pattern(self);
        after.at.extend(&self.at);
        after
    }

    fn is_end(&self) -> bool {
        let end = self.text.len();
        self.at.contains(&end) || (self.text.last() == Some(&'\n') && self.at.contains(&(end - 1)))
    }
}

/// `driver://[user[:password]][@host or path][/database][?name=value]`.
fn dsn(text: &[char]) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    Places::start(text)
        .some(|c| c.is_ascii_alphanumeric())
        .word("://")
        .maybe(|at| at.some(|c| is_name(c) || c == '+').maybe(|at| at.word(":").some(|c| c != '@')))
        .maybe(|at| at.maybe(|at| at.word("@")).some(|c| is_name(c) || "/.".contains(c)))
        .maybe(|at| at.word("/").some(is_name))
        .maybe(|at| at.word("?").some(|c| is_name(c) || c == '='))
        .is_end()
}

/// A list of `rNzN-device:%PORT%/name`.
fn swift_devices(text: &[char]) -> bool {
    let is_device = |c: char| c.is_ascii_alphanumeric() || ('.'..='_').contains(&c);
    let one = |at: &Places<'_>| -> BTreeSet<usize> {
        let device = at.word("r").some(|c| c.is_ascii_digit()).word("z").some(|c| c.is_ascii_digit()).word("-").some(is_device);
        device.word(":%PORT%/").some(|c| c != ',').maybe(|at| at.word(",")).at
    };
    let mut places = Places::start(text);
    let mut seen = BTreeSet::new();
    loop {
        let next: BTreeSet<_> = one(&places).difference(&seen).copied().gather();
        if next.is_empty() {
            return Places { text, at: seen }.is_end();
        }
        seen.extend(&next);
        places.at = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_of_the_types_that_the_patterns_of_the_original_give_them() {
        for (kind, good, bad) in [
            ("int", &["0", "007", "12\n"][..], &["", "-1", "1.0", "1\n\n", "\u{661}"][..]),
            ("default", &["", "a_1", "True", "a\n"], &["a b", "a-b", "é"]),
            ("netaddress", &["", "192.0.2.1/24", "::1", "a-b.c"], &["a_b", "[::1]"]),
            ("netdevice", &["eth0", "eth0.1"], &["eth 0"]),
            ("username", &["a-b_1"], &["", "a.b"]),
            ("raw", &["", "any thing\n\n"], &[]),
            (
                "dsn",
                &["mysql://u:p@h/db", "mysql://u:p@h.example/db?charset=utf8", "sqlite:////var/x.db", "a://", "sqlite://"],
                &["", "mysql:/x", "my-sql://u@h", "a://u@h/db?x=1&y=2", "mysql://u:p@ss@h/db"],
            ),
            (
                "swiftdevices",
                &["r1z1-192.0.2.1:%PORT%/d1", "r1z1-a:%PORT%/d1,r12z3-b:%PORT%/d2,"],
                &["", "r1z1-a:80/d1", "r1-a:%PORT%/d", "r1z1-a:%PORT%/d1,x"],
            ),
        ] {
            for text in good {
                assert!(check(text, kind).is_ok(), "{kind} {text:?}");
            }
            for text in bad {
                assert!(check(text, kind).is_err(), "{kind} {text:?}");
            }
        }
        assert!(check("x", "nothing").is_err());
    }

    #[test]
    fn a_long_text_is_not_looked_at_twice_from_everywhere() {
        assert!(check(&format!("a://{}!", "b/".repeat(20_000)), "dsn").is_err());
    }
}
