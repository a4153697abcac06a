//! Words of a command line: read as a shell reads them, written as systemd reads them.

/// Splits as a POSIX shell does (quotes, backslash), but expands nothing: `$`, `` ` ``, `*` and `~` are plain characters.
///
/// # Errors
/// What is wrong with the text, as a phrase.
pub fn split(text: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            ' ' | '\t' => words.extend(word.take()),
            c if c.is_control() => return Err("contains a line break or another control character"),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or("contains a quote that is never closed")? {
                        '\'' => break,
                        c => push(word, c)?,
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or("contains a quote that is never closed")? {
                        '"' => break,
                        '\\' => match chars.next().ok_or("contains a quote that is never closed")? {
                            c @ ('"' | '\\' | '$' | '`') => word.push(c),
                            c => {
                                word.push('\\');
                                push(word, c)?;
                            }
                        },
                        c => push(word, c)?,
                    }
                }
            }
            '\\' => push(word.get_or_insert_default(), chars.next().ok_or("ends with a backslash")?)?,
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

fn push(word: &mut String, c: char) -> Result<(), &'static str> {
    if c.is_control() {
        return Err("contains a line break or another control character");
    }
    word.push(c);
    Ok(())
}

/// A word as it stands in a variable that a unit expands as `$VAR`.
///
/// systemd splits the value at blanks, takes quotes away and a backslash before any character (systemd.service(5),
/// "Command lines"); what it expanded it expands no further. Only `\\` and `\"` are written: older ones read other
/// pairs as in C.
#[must_use]
pub fn quoted(word: &str) -> String {
    let plain = |c: char| !c.is_whitespace() && !matches!(c, '"' | '\'' | '\\');
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    let mut out = String::from('"');
    for c in word.chars() {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
    out
}

/// The items of a list as a component reads it; none where it holds a quote or a control character.
///
/// pflag's StringSlice takes the value for a line of CSV, where `"a"` is the item `a`. No item that a component knows needs quotes, so
/// they are not read but refused.
#[must_use]
pub fn items(list: &str) -> Option<Vec<&str>> {
    (!list.contains(|c: char| c == '"' || c.is_control())).then(|| list.split(',').collect())
}

/// A port as plain decimal digits. pflag takes a sign, `0x` and the like and, behind a zero, octal digits, too.
#[must_use]
pub fn port(text: &str) -> Option<u16> {
    let plain = text == "0" || (!text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit()));
    plain.then(|| text.parse().ok()).flatten()
}

/// The value of a flag in users' options: `--name=value` or `--name value`; the last one holds.
#[must_use]
pub fn option(options: &str, name: &str) -> Option<String> {
    let words = split(options).unwrap_or_default();
    let mut found = None;
    for (at, word) in words.iter().enumerate() {
        let (flag, value) = word.split_once('=').map_or((word.as_str(), None), |(flag, value)| (flag, Some(value)));
        if flag.trim_start_matches('-').replace('_', "-") == name && flag.starts_with('-') {
            found = value.or(words.get(at + 1).map(String::as_str)).map(str::to_owned);
        }
    }
    found
}

/// A switch as Go's strconv.ParseBool reads it.
#[must_use]
pub fn truth(value: &str) -> Option<bool> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_found_as_components_take_it() {
        for (options, expected) in [
            ("--proxy-mode=ipvs", Some("ipvs")),
            ("--v=2 --proxy_mode 'ipvs'", Some("ipvs")),
            ("-proxy-mode=a --proxy-mode=b", Some("b")),
            ("--proxy-mode", None),
            ("proxy-mode=ipvs --v=2", None),
            ("", None),
        ] {
            assert_eq!(option(options, "proxy-mode").as_deref(), expected, "{options}");
        }
    }
}
