//! Making text from outside safe to show.

use std::borrow::Cow;
use std::fmt::Write;

use serde_json::{Map, Value};

use crate::http::CUT;

/// Escapes control characters, so that nothing from metadata can move a cursor, forge a line or a field.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if commands(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// A text that every database of Heat's stores: MySQL whose character set is `utf8` takes no character of four bytes, PostgreSQL no NUL. Heat has
/// accepted the signal when its database refuses it, and waits until the stack's timeout.
#[must_use]
pub fn storable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\0' || u32::from(c) > 0xffff { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    out
}

/// A text from outside as the last argument of a command that is shown: an id may be any text, and what is shown may be pasted into a
/// shell. One that looks like an option comes behind the `--` that ends options (POSIX.1-2017 XBD 12.2, guideline 10).
#[must_use]
pub fn argument(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:@%+=,/".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) && !text.starts_with('-') {
        return Cow::Borrowed(text);
    }
    let end_of_options = if text.starts_with('-') { "-- " } else { "" };
    Cow::Owned(format!("{end_of_options}'{}'", text.replace('\'', r"'\''")))
}

/// Whether a terminal may obey a character in place of showing it, or shows nothing: control characters of C0 and C1, DEL, ends of lines,
/// what turns the direction of text (Unicode 9, Bidi_Control), and what has no width, by which a name looks like another one.
fn commands(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2064}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Text from outside must not command the terminal that shows it; its lines stay lines.
#[must_use]
pub fn harmless(text: &str) -> String {
    text.split_inclusive(['\n', '\t'])
        .map(|piece| {
            let body = piece.trim_end_matches(['\n', '\t']);
            format!("{}{}", escaped(body), piece.get(body.len()..).unwrap_or_default())
        })
        .collect()
}

/// A JSON document as a page. What a terminal would obey is escaped as JSON escapes it, so the document stays the same document, in a
/// pipe as on a terminal.
#[must_use]
pub fn json_page(document: &Value) -> String {
    let mut out = String::new();
    for c in format!("{document:#}\n").chars() {
        // The parser's own line ends stand between values; those inside of texts are already escaped.
        if c != '\n' && commands(c) {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                // Nothing that a text takes can fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// The first `limit` characters, with [`CUT`] where something was cut off.
///
/// A text may be cut before its secrets are masked: what masks them looks at that mark for what is left of one. So it must stand at every cut,
/// and nothing else cuts a text that is shown (`tests/check-layout`).
#[must_use]
pub fn shortened(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.to_owned();
    }
    let mut out: String = text.chars().take(limit.saturating_sub(1)).collect();
    out.push(CUT);
    out
}

/// Pieces between which a line may be broken: words, and commands in backticks that fit into a line, so that they can be copied.
fn words(text: &str, width: usize) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let is_open =
            |piece: &&mut String| piece.matches('`').count() % 2 == 1 && piece.chars().count() + word.chars().count() < width;
        match all.last_mut().filter(is_open) {
            Some(command) => {
                command.push(' ');
                command.push_str(word);
            }
            None => all.push(word.to_owned()),
        }
    }
    all
}

/// Lines of at most `width` characters, broken at blanks where there are some.
#[must_use]
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in words(text, width) {
        let (has, more) = (line.chars().count(), word.chars().count());
        if has > 0 && has + 1 + more > width {
            lines.push(std::mem::take(&mut line));
        } else if has > 0 {
            line.push(' ');
        }
        for c in word.chars() {
            if line.chars().count() == width {
                lines.push(std::mem::take(&mut line));
            }
            line.push(c);
        }
    }
    lines.push(line);
    lines
}

/// `1m05s`, `5.2s`, `80ms`.
#[must_use]
pub fn duration(duration: std::time::Duration) -> String {
    let millis = duration.as_millis();
    match millis {
        0..1000 => format!("{millis}ms"),
        1000..60_000 => format!("{}.{}s", millis / 1000, millis % 1000 / 100),
        60_000..3_600_000 => format!("{}m{:02}s", millis / 60_000, millis / 1000 % 60),
        _ => format!("{}h{:02}m", millis / 3_600_000, millis / 60_000 % 60),
    }
}

/// The shortest secret that is hidden; what is shorter is a word of any text.
pub(super) const SHORTEST_SECRET: usize = 6;

/// Whether so many bytes of a secret, at its beginning or its end, say something: as many as are looked for at all, or half of it. Less is
/// the end of many a text.
pub(super) const fn says_something(length: usize, whole: usize) -> bool {
    length >= SHORTEST_SECRET || (length > 0 && 2 * length >= whole)
}

/// What is looked for in texts so that none shows one of these secrets: each without blanks around it, and each of its lines, as a journal
/// shows them one at a time.
pub(crate) fn secret_texts(secrets: &[String]) -> impl Iterator<Item = &str> {
    let is_line = |line: &&str| line.len() >= SHORTEST_SECRET && !line.starts_with("-----");
    let lines = secrets.iter().flat_map(move |secret| secret.lines().map(str::trim).filter(is_line));
    secrets.iter().map(|secret| secret.trim()).filter(|secret| secret.len() >= SHORTEST_SECRET).chain(lines)
}

/// Members whose names were masked: two that look alike then are still two.
pub(crate) fn with_unique_names(members: impl Iterator<Item = (String, Value)>) -> Map<String, Value> {
    let mut shown = Map::new();
    let mut alike = 1;
    for (name, value) in members {
        let mut own = name.clone();
        while shown.contains_key(&own) {
            alike += 1;
            own = format!("{name} ({alike})");
        }
        shown.insert(own, value);
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn control_characters_are_shown_not_obeyed() {
        assert_eq!(escaped("a\x1b[2Jb\nc\u{202e}d é"), "a\\u{1b}[2Jb\\nc\\u{202e}d é");
        // Attack: an input that was shown as `password`, with its value.
        assert_eq!(escaped("pas\u{200b}sword\u{feff}"), "pas\\u{200b}sword\\u{feff}");
    }

    #[test]
    fn an_id_is_one_argument_of_a_command_whatever_it_is() {
        for (id, shown) in [
            ("5aaff50d-2444-4751-b345-e554c5b90da5", "5aaff50d-2444-4751-b345-e554c5b90da5"),
            ("d1; touch /tmp/x #", "'d1; touch /tmp/x #'"),
            ("it's", r"'it'\''s'"),
            ("$(id)", "'$(id)'"),
            ("--all", "-- '--all'"),
            ("", "''"),
            ("é", "'é'"),
        ] {
            assert_eq!(argument(id), shown);
        }
    }

    #[test]
    fn a_json_page_commands_no_terminal_and_stays_the_same_document() {
        let hostile = "\u{1b}[31m\u{7f}\u{9b}31m\u{61c}\u{200e}\u{200f}\u{2028}\u{202a}\u{202e}\u{2066}\u{2069}\n\té😀";
        let document = serde_json::json!({hostile: [hostile]});
        let page = json_page(&document);
        assert!(page.chars().all(|c| c == '\n' || escaped(&c.to_string()) == c.to_string()), "{page:?}");
        assert!(page.contains("\\u009b") && page.contains("é😀"), "{page}");
        assert_eq!(crate::budgets::json::typed::<Value>(&page).unwrap(), document);
        for c in hostile.chars().filter(|c| !matches!(c, 'é' | '😀' | '[' | '3' | '1' | 'm')) {
            assert_ne!(escaped(&c.to_string()), c.to_string(), "{c:?}");
        }
    }

    #[test]
    fn long_texts_are_cut_and_say_so() {
        assert_eq!(shortened("abcdef", 4), "abc…");
        assert_eq!(shortened("abcd", 4), "abcd");
    }

    #[test]
    fn lines_break_between_words_and_commands_stay_whole() {
        assert_eq!(wrapped("aa bb cc", 5), ["aa bb", "cc"]);
        assert_eq!(wrapped("aaaaaaa bb", 3), ["aaa", "aaa", "a", "bb"]);
        assert_eq!(wrapped("", 3), [""]);
        assert_eq!(wrapped("run `a b c` now", 8), ["run", "`a b c`", "now"], "a command can be copied");
    }

    #[test]
    fn durations_read_at_a_glance() {
        for (millis, text) in [(80, "80ms"), (5250, "5.2s"), (65_000, "1m05s"), (7_260_000, "2h01m")] {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
    }
}
