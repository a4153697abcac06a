//! Making text from outside safe to show.

/// Escapes control characters, so that nothing from metadata can move a cursor, forge a line or a field.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}') {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// The first `limit` characters, with `…` where something was cut off.
#[must_use]
pub fn shortened(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.to_owned();
    }
    let mut out: String = text.chars().take(limit.saturating_sub(1)).collect();
    out.push('…');
    out
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn control_characters_are_shown_not_obeyed() {
        assert_eq!(escaped("a\x1b[2Jb\nc\u{202e}d é"), "a\\u{1b}[2Jb\\nc\\u{202e}d é");
    }

    #[test]
    fn long_texts_are_cut_and_say_so() {
        assert_eq!(shortened("abcdef", 4), "abc…");
        assert_eq!(shortened("abcd", 4), "abcd");
    }

    #[test]
    fn durations_read_at_a_glance() {
        for (millis, text) in [(80, "80ms"), (5250, "5.2s"), (65_000, "1m05s"), (7_260_000, "2h01m")] {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
    }
}
