//! Files in the dialect of INI that Kubernetes' and KubeStack's cloud configurations are in (gcfg).

/// `[name]`.
pub(in crate::kubernetes) fn section(name: &'static str) -> String {
    format!("[{name}]\n")
}

/// `key = "value"`. In quotes nothing begins a comment, and two characters are escaped (magnum-node.md 7.3 no. 30). A
/// control character, which no parameter lets through, is left out: it could end the line.
pub(in crate::kubernetes) fn line(key: &'static str, value: &str) -> String {
    let mut out = format!("{key} = \"");
    for c in value.chars().filter(|c| !c.is_control()) {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push_str("\"\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a reader of gcfg takes one line apart: key and value, if it is one line with one value.
    fn read(text: &str) -> Option<(String, String)> {
        let line = text.strip_suffix('\n').filter(|line| !line.contains('\n'))?;
        let (key, rest) = line.split_once('=')?;
        let mut chars = rest.trim_start().chars();
        (chars.next()? == '"').then_some(())?;
        let mut value = String::new();
        loop {
            match chars.next()? {
                '"' => break,
                '\\' => match chars.next()? {
                    c @ ('"' | '\\') => value.push(c),
                    _ => return None,
                },
                c => value.push(c),
            }
        }
        let left: String = chars.collect();
        left.trim().is_empty().then(|| (key.trim().to_owned(), value))
    }

    #[test]
    fn odd_values_keep_their_meaning() {
        for value in ["", "a # b", "a;b", "say \"hi\"", "c:\\d", "[Global]", "a=b", " blanks "] {
            assert_eq!(read(&line("password", value)), Some(("password".to_owned(), value.to_owned())));
        }
        assert_eq!(line("a", "x\n[Global]\npassword=y"), "a = \"x[Global]password=y\"\n");
    }

    proptest::proptest! {
        #[test]
        fn no_value_begins_a_line_or_a_section(value in ".{0,60}|[\\[\\]\"\\\\;#=\n\r a]{0,20}") {
            let plain: String = value.chars().filter(|c| !c.is_control()).collect();
            proptest::prop_assert_eq!(read(&line("k", &value)), Some(("k".to_owned(), plain)));
        }
    }
}
