//! Files for systemd's `EnvironmentFile=`.

/// One `KEY="value"` line.
///
/// Inside double quotes systemd takes a backslash before `"`, `\`, `` ` `` and `$` away and expands nothing
/// (systemd.exec(5)); a shell that reads the same file sees the same value.
pub(in crate::kubernetes) fn line(key: &str, value: &str) -> String {
    let mut out = format!("{key}=\"");
    for c in value.chars() {
        if matches!(c, '"' | '\\' | '`' | '$') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push_str("\"\n");
    out
}

/// The value, where a line that [`line`] made sets this variable.
pub(in crate::kubernetes) fn value(line: &str, key: &str) -> Option<String> {
    let mut chars = line.strip_prefix(key)?.strip_prefix("=\"")?.strip_suffix('"')?.chars();
    let mut out = String::new();
    while let Some(c) = chars.next() {
        out.push(if c == '\\' { chars.next()? } else { c });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_values_are_quoted_never_evaluated() {
        for (value, expected) in [
            ("plain", "K=\"plain\"\n"),
            ("a b # c", "K=\"a b # c\"\n"),
            ("$(reboot)`x`", "K=\"\\$(reboot)\\`x\\`\"\n"),
            ("say \"hi\" \\n", "K=\"say \\\"hi\\\" \\\\n\"\n"),
            ("http://u:p%40ss@proxy:3128", "K=\"http://u:p%40ss@proxy:3128\"\n"),
        ] {
            assert_eq!(line("K", value), expected);
            assert_eq!(super::value(expected.trim_end(), "K").as_deref(), Some(value));
            assert_eq!(super::value(expected.trim_end(), "L"), None);
        }
    }
}
