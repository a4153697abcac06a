//! JSON as Python's `json` module writes and reads it (heat-protocol.md 4.2 g): `NaN`, `Infinity`, `-Infinity`, numbers beyond what a
//! computer counts with (`1e999`), and halves of surrogate pairs, of which RFC 8259 has none. Heat, its agents and their hooks are programs
//! in Python: one such value makes no whole document, answer or result unreadable.

use serde_json::Value;

use super::json::{self, JsonRejection};

/// What Python's `json` writes where JSON has no number: the one with a sign before the other, which it ends with.
pub const NON_JSON_NUMBERS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// Reads a value that takes at most `budget` bytes of memory. Numbers that JSON has not are texts, as they are written; half a surrogate
/// pair is U+FFFD.
///
/// # Errors
/// If it would take more, or is neither JSON nor what Python writes.
pub fn value(bytes: &[u8], budget: usize) -> Result<Value, JsonRejection> {
    json::value(bytes, budget).or_else(|rejection| {
        let may_be_pythons = matches!(&rejection, JsonRejection::Json(error) if !error.is_eof());
        let quoted = |number: &[u8]| [b"\"", number, b"\""].concat();
        let read = may_be_pythons.then(|| json::value(&rewritten(bytes, quoted), budget).ok()).flatten();
        read.ok_or(rejection)
    })
}

/// The members of one object, each with the text of its value as it is written. Whether that can be taken is not decided yet.
///
/// # Errors
/// As [`json::members`].
pub fn members(text: &str) -> Result<Vec<(String, &str)>, JsonRejection> {
    let rejection = match json::members(text) {
        Err(rejection @ JsonRejection::Json(_)) => rejection,
        other => return other,
    };
    // Something as long in the place of each number, a value that is no name: where those and halves of pairs are all that is wrong with the
    // text, each value is where it was.
    let stand_in = |number: &[u8]| [b"[", " ".repeat(number.len().saturating_sub(2)).as_bytes(), b"]"].concat();
    let stood_in = rewritten(text.as_bytes(), stand_in);
    let Ok(stood_in) = std::str::from_utf8(&stood_in) else { return Err(rejection) };
    Ok(json::members(stood_in)?.into_iter().map(|(name, value)| (name, as_written(text, stood_in, value))).collect())
}

/// A text of Python's as JSON, with this in the place of each number that JSON has not, and U+FFFD in that of half a surrogate pair.
fn rewritten(bytes: &[u8], replaced: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let (mut rest, mut in_text) = (bytes, false);
    while !rest.is_empty() {
        let (length, is_non_json) = if in_text { (0, false) } else { number(rest) };
        let (taken, half) = match rest {
            [b'"', ..] => (1, None),
            [b'\\', b'u', ..] if in_text => escape(rest),
            [b'\\', _, ..] if in_text => (2, None),
            _ => (length.max(1), None),
        };
        in_text ^= rest.first() == Some(&b'"');
        let (copied, after) = rest.split_at(taken);
        if is_non_json {
            out.extend(replaced(copied));
        } else {
            out.extend_from_slice(half.unwrap_or(copied));
        }
        rest = after;
    }
    out
}

/// Bytes of the number at the beginning, 0 where there is none, and whether it is one that JSON has not.
fn number(rest: &[u8]) -> (usize, bool) {
    if let Some(word) = NON_JSON_NUMBERS.into_iter().find(|word| rest.starts_with(word.as_bytes())) {
        return (word.len(), true);
    }
    let is_of_number = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E');
    let length = rest.iter().take_while(|byte| is_of_number(byte)).count();
    let value = rest.get(..length).and_then(|word| std::str::from_utf8(word).ok()).and_then(|word| word.parse::<f64>().ok());
    (length, value.is_some_and(f64::is_infinite))
}

/// What stands for half a surrogate pair, as long as that: U+FFFD.
const HALF_A_PAIR: &str = "\\ufffd";

/// Bytes of the `\u` escape at the beginning, a pair of two as one, and what stands in for one that is half a pair.
fn escape(rest: &[u8]) -> (usize, Option<&'static [u8]>) {
    let unit = |at: usize| {
        let digits = rest.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    match (unit(0), unit(6)) {
        (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => (12, None),
        (Some(0xd800..=0xdfff), _) => (6, Some(HALF_A_PAIR.as_bytes())),
        _ => (2, None),
    }
}

/// Bytes of a piece of a JSON text up to the last place where it can be read by itself: within no escape and no character of several bytes.
#[must_use]
pub fn whole_characters(piece: &[u8]) -> usize {
    let mut at = 0;
    // A pair of surrogates is the longest.
    while let Some(rest @ [first, ..]) = piece.get(at..).filter(|rest| rest.len() > 12) {
        let follows = |byte: &&u8| (0x80..0xc0).contains(*byte);
        at += match first {
            b'\\' => match escape(rest).0 {
                2 if rest.get(1) == Some(&b'u') => 6,
                length => length,
            },
            0xc0.. => 1 + rest.iter().skip(1).take(3).take_while(follows).count(),
            _ => 1,
        };
    }
    at
}

/// What stands in a text where a piece of another one as long stands.
fn as_written<'a>(text: &'a str, other: &str, piece: &str) -> &'a str {
    let from = piece.as_ptr().addr().saturating_sub(other.as_ptr().addr());
    text.get(from..from + piece.len()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pythons_json_takes_refuses_nothing_else() {
        let text = r#"{"a": NaN, "b": [-Infinity, Infinity, 1], "c": "NaN \" -Infinity \\", "NaN": "\ud800x", "d": "\ud83d\ude00 \udc00\\ud800"}"#;
        let expected = serde_json::json!({"a": "NaN", "b": ["-Infinity", "Infinity", 1], "c": "NaN \" -Infinity \\", "NaN": "\u{fffd}x",
            "d": "\u{1f600} \u{fffd}\\ud800"});
        assert_eq!(value(text.as_bytes(), 1 << 20).unwrap(), expected);
        for bad in ["{\"a\": nan}", "{\"a\": NaN1}", "{\"a\": xNaN}", "{\"a\": --Infinity}", "{\"a\": NaN", "{\"a\": \"\\ud80\"}"]
        {
            assert!(matches!(value(bad.as_bytes(), 1 << 20), Err(JsonRejection::Json(_))), "{bad}");
            assert!(members(bad).is_err() || bad.contains("ud80"), "{bad}");
        }
        for bad in ["{NaN: 1}", "{\"a\": 1NaN}", "{\"a\": NaN NaN}", "{\"a\": -NaN}"] {
            assert!(members(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn members_have_their_values_as_they_are_written_and_names_that_are_text() {
        let text = r#"{"a": NaN, "\udcff\ud83d\ude00\"": [Infinity], "\\udcff": "\ud800", "c": 1}"#;
        let expected = [("a", "NaN"), ("\u{fffd}\u{1f600}\"", "[Infinity]"), ("\\udcff", "\"\\ud800\""), ("c", "1")];
        assert_eq!(members(text).unwrap(), expected.map(|(name, value)| (name.to_owned(), value)));
    }
}
