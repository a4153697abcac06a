//! Texts that have to fit once they are JSON. A control character is one byte of a program's output and six of JSON, so a
//! limit on what is read says nothing of what is written.

use serde_json::Value;

/// What a member of an object takes beside its name's letters and its value: quotes, colon, comma, blanks.
const MEMBER: usize = 6;

/// Stands where the middle of a text was left out.
const NOTE: &str = "\n[… cut by heat-node-agent …]\n";

/// Bytes that a text takes in ASCII-escaped JSON, the longest form that a server may count in, without its quotes.
#[must_use]
pub fn size(text: &str) -> usize {
    text.chars().map(size_of_char).sum()
}

/// Bytes that a value takes in the same form.
#[must_use]
pub fn size_of_value(value: &Value) -> usize {
    match value {
        Value::String(text) => size(text) + 2,
        Value::Array(items) => items.iter().map(|item| size_of_value(item) + 2).sum::<usize>() + 2,
        Value::Object(members) => members.iter().map(|(name, item)| size_of_name(name) + size_of_value(item)).sum::<usize>() + 2,
        scalar => scalar.to_string().len(),
    }
}

/// Bytes that the name of a member takes, with what stands between it and its value and behind that.
#[must_use]
pub fn size_of_name(name: &str) -> usize {
    size(name) + MEMBER
}

fn size_of_char(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' => 2,
        ' '..='~' => 1,
        c if (c as u32) > 0xffff => 12,
        _ => 6,
    }
}

/// The text where it fits `limit` bytes of JSON; else its beginning and, thrice as much, its end.
#[must_use]
pub fn cut(text: &str, limit: usize) -> String {
    if size(text) <= limit {
        return text.to_owned();
    }
    // Where there is hardly room for the note the end says most.
    let note = if limit > 4 * size(NOTE) { NOTE } else { "" };
    let space = limit.saturating_sub(size(note));
    let head = if note.is_empty() { 0 } else { space / 4 };
    let (beginning, taken) = leading(text.chars(), head);
    let (end, _) = leading(text.chars().rev(), space - taken);
    let (beginning, end) = (text.get(..beginning), text.len().checked_sub(end).and_then(|at| text.get(at..)));
    format!("{}{note}{}", beginning.unwrap_or_default(), end.unwrap_or_default())
}

/// Cuts a value that takes more than `limit` bytes of JSON: it becomes a text.
pub fn cut_value(value: &mut Value, limit: usize) {
    if size_of_value(value) > limit {
        let limit = limit.saturating_sub(2);
        *value = Value::String(match &*value {
            Value::String(text) => cut(text, limit),
            other => cut(&other.to_string(), limit),
        });
    }
}

/// How many bytes of text the first characters are that fit `space`, and what they take of it.
fn leading(chars: impl Iterator<Item = char>, space: usize) -> (usize, usize) {
    let (mut bytes, mut taken) = (0, 0);
    for c in chars {
        if taken + size_of_char(c) > space {
            break;
        }
        bytes += c.len_utf8();
        taken += size_of_char(c);
    }
    (bytes, taken)
}

/// The largest share that each of these sizes may have so that together they fit `budget`: small ones keep what they are, and
/// what they leave is for the large ones.
#[must_use]
pub fn share(sizes: impl IntoIterator<Item = usize>, budget: usize) -> usize {
    let mut sizes: Vec<usize> = sizes.into_iter().collect();
    sizes.sort_unstable();
    let (mut left, count) = (budget, sizes.len());
    for (at, size) in sizes.into_iter().enumerate() {
        let fair = left / (count - at);
        if size > fair {
            return fair;
        }
        left -= size;
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_texts_keep_what_they_are_and_large_ones_share_the_rest() {
        for (sizes, budget, expected) in [
            (vec![], 10, usize::MAX),
            (vec![3, 4], 10, usize::MAX),
            (vec![3, 20], 10, 7),
            (vec![20, 20], 10, 5),
            (vec![1, 20, 30], 11, 5),
            (vec![1, 1], 0, 0),
        ] {
            assert_eq!(share(sizes.clone(), budget), expected, "{sizes:?}");
        }
    }

    #[test]
    fn both_ends_of_what_is_cut_are_kept() {
        let text = format!("BEGIN{}END", "\u{1}".repeat(10_000));
        let kept = cut(&text, 6000);
        assert!(kept.starts_with("BEGIN\u{1}") && kept.ends_with("\u{1}END") && kept.contains("cut by"), "{}", kept.len());
        assert!((5900..=6000).contains(&size(&kept)), "{}", size(&kept));
        assert_eq!((cut("abc", 3), cut("abc", 2), cut("abc", 0)), ("abc".into(), "bc".into(), String::new()));
    }

    proptest! {
        #[test]
        fn what_is_cut_fits_as_json(text in "(\\PC|[\\x00-\\x1f]){0,300}", limit in 0_usize..900) {
            let kept = cut(&text, limit);
            prop_assert!(size(&kept) <= limit);
            prop_assert!(serde_json::to_string(&kept).unwrap().len() <= size(&kept) + 2);
        }
    }
}
