//! `/etc/sysconfig/heat-params` of both eras (magnum-node.md 3), read as a shell would read it and never run.
//!
//! Magnum's file holds assignments: the first era's was written by cloud-init, the later one's by an unquoted here-document
//! of the deployment's script, which expands every value a first time before a shell that reads the file expands it again.
//! Of both expansions only the quoting is done here. A `$` or a backquote stays what it is: what a shell would put in its
//! place is no parameter, and a value that was damaged by it is reported by its own rule.

use serde_json::{Map, Value};

use super::mistake::Mistake;
use super::table::find;
use crate::error::Error;

/// Longest file that is read, in bytes; the largest known has 12 KiB.
const LIMIT: usize = 1 << 20;

/// What a file says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeatParams {
    /// Known parameters; of a name that is given more than once, the last (magnum-node.md 7.3 no. 34).
    pub parameters: Map<String, Value>,
    /// What the reader should know: unknown names, values that a shell would expand.
    pub warnings: Vec<Mistake>,
}

/// Whether a text that is no JSON looks like the file: its first line that says something is an assignment.
#[must_use]
pub fn is_heat_params(text: &str) -> bool {
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    first.is_some_and(|line| assignment(line).is_some())
}

/// Reads the file.
///
/// # Errors
/// Every line that is no assignment, with its number: what else a shell would do there is not guessed at.
pub fn parse(text: &str) -> Result<HeatParams, Vec<Mistake>> {
    if text.len() > LIMIT {
        return Err(vec![odd("heat-params", "is too long", "remove what is not an assignment")]);
    }
    let mut read = HeatParams::default();
    let mut mistakes = Vec::new();
    let mut rest = text;
    let (mut line, mut counted) = (1, 0);
    while !rest.is_empty() {
        let at = text.len() - rest.len();
        line += text.get(counted..at).unwrap_or_default().matches('\n').count();
        counted = at;
        let trimmed = rest.trim_start_matches([' ', '\t', '\r']);
        if trimmed.starts_with(['\n', '#']) || trimmed.is_empty() {
            rest = after_line(trimmed);
            continue;
        }
        let Some((name, value)) = assignment(trimmed) else {
            mistakes.push(odd(&format!("heat-params line {line}"), "is not an assignment", "remove the line"));
            rest = after_line(trimmed);
            continue;
        };
        // A name that is not known is left out, and may have lines; but not those of other parameters.
        let has_lines = find(name).is_none_or(|parameter| parameter.kind.has_lines());
        match word(value, line, has_lines) {
            Ok((word, left)) => {
                take(name, word, &mut read);
                rest = after_line(left);
            }
            Err(what) => {
                mistakes.push(odd(name, &format!("cannot be parsed at line {line}: {what}"), "correct the quotes"));
                rest = after_line(value);
            }
        }
    }
    if mistakes.is_empty() { Ok(read) } else { Err(mistakes) }
}

/// The same for the source of a node's parameters: them, and what their reader should know.
///
/// # Errors
/// One, with every line that is no assignment.
pub fn read(text: &str) -> Result<(Map<String, Value>, Vec<String>), Error> {
    let read = parse(text).map_err(|mistakes| {
        let all: Vec<String> = mistakes.iter().map(|one| format!("{} {}", one.parameter, one.problem)).collect();
        Error::permanent(all.join(", "))
            .rule("lines of KEY=\"value\" in shell syntax; nothing is evaluated")
            .remedy("correct the file, or what writes it; it is read again by itself")
    })?;
    Ok((read.parameters, read.warnings.iter().map(ToString::to_string).collect()))
}

/// The here-document with the parameters in the text of Magnum's script (from 9.x on), as the script would write it: its
/// first expansion is done, and [`parse`] does the second.
#[must_use]
pub fn of_script(script: &str) -> Option<String> {
    let mut lines = script.lines();
    let opening =
        lines.by_ref().find(|line| line.contains("<<") && line.to_ascii_lowercase().replace('-', "_").contains("heat_params"))?;
    let (_, word) = opening.rsplit_once("<<")?;
    let tabs = word.starts_with('-');
    let word = word.trim_start_matches('-').split_whitespace().next()?;
    let end = word.trim_matches(['"', '\'', '\\']);
    let expands = end == word;
    let mut out = String::new();
    for line in lines {
        let line = if tabs { line.trim_start_matches('\t') } else { line };
        if line == end {
            return Some(out);
        }
        out.push_str(&if expands { unescaped(line, "\\$`") } else { line.to_owned() });
        out.push('\n');
    }
    None
}

fn odd(place: &str, problem: &str, remedy: &str) -> Mistake {
    Mistake::general(place, problem, "lines of KEY=\"value\" in shell syntax; nothing is evaluated", remedy)
}

fn after_line(text: &str) -> &str {
    text.split_once('\n').map_or("", |(_, rest)| rest)
}

/// Name and what follows the `=`.
fn assignment(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_prefix("export ").map_or(text, str::trim_start);
    let (name, value) = text.split_once('=')?;
    let good = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && name.len() <= 128;
    good.then_some((name, value))
}

/// Whether the quotes around a text belong together: the lines of a value that has several are none that begin other values, and a value
/// that may not have several ends with its line. Else a lost quote would make one value of two, and a mistake would show a password.
fn is_whole(text: &str, has_lines: bool) -> bool {
    let mut lines = text.split('\n').skip(1).peekable();
    if !has_lines {
        return lines.all(|line| line.trim().is_empty());
    }
    while let Some(line) = lines.next() {
        let last = lines.peek().is_none();
        // The padding of base64 is a `=` as well, but no quote follows it.
        if assignment(line.trim_start()).is_some_and(|(_, value)| value.starts_with(['"', '\'']) || last && value.is_empty()) {
            return false;
        }
    }
    true
}

/// Whether a backslash at a line's end joins it with an assignment: two values would become one, and a mistake would show the second.
fn joins_assignment(text: &str) -> bool {
    text.split("\\\n").skip(1).any(|next| assignment(next.trim_start()).is_some())
}

const JOINED: &str = "a backslash at the end of a line joins it with another assignment";

/// One word of a shell that begins in this line, and what stands behind it on its line.
fn word(text: &str, line: usize, has_lines: bool) -> Result<(Word, &str), String> {
    let open_quote = |at: usize| {
        let line = line + text.get(..at).unwrap_or_default().matches('\n').count();
        format!("the quote opened in line {line} is not closed before line {}", line + 1)
    };
    let mut out = Word::default();
    let (mut from, mut chars) = (0, text.char_indices());
    while let Some((at, c)) = chars.next() {
        let at = from + at;
        let rest = text.get(at + c.len_utf8()..).unwrap_or_default();
        match c {
            '\'' => {
                let end = rest.find('\'').ok_or("a single quote is not closed")?;
                let inner = rest.get(..end).unwrap_or_default();
                if !is_whole(inner, has_lines) {
                    return Err(open_quote(at));
                }
                out.text.push_str(inner);
                (from, chars) = behind(text, at + 1 + end + 1);
            }
            '"' => {
                let end = closing(rest).ok_or("a double quote is not closed")?;
                let inner = rest.get(..end).unwrap_or_default();
                let plain = unescaped(inner, "\\$`\"");
                if !is_whole(&plain, has_lines) {
                    return Err(open_quote(at));
                }
                if joins_assignment(inner) {
                    return Err(JOINED.to_owned());
                }
                out.expands |= has_expansion(inner);
                out.text.push_str(&plain);
                (from, chars) = behind(text, at + 1 + end + 1);
            }
            '\\' => match chars.next() {
                Some((_, '\n')) if rest.lines().nth(1).is_some_and(|next| assignment(next.trim_start()).is_some()) => {
                    return Err(JOINED.to_owned());
                }
                Some((_, '\n')) => {}
                Some((_, c)) => out.text.push(c),
                None => return Err("there is a backslash at the end".to_owned()),
            },
            '\r' if !rest.trim_start_matches([' ', '\t', '\r']).starts_with('\n') && !rest.is_empty() => {
                return Err("a carriage return that ends no line follows the value".to_owned());
            }
            '\n' | '\r' => return Ok((out, text.get(at..).unwrap_or_default())),
            ' ' | '\t' => {
                let left = rest.trim_start_matches([' ', '\t', '\r']);
                return if left.is_empty() || left.starts_with(['\n', '#']) {
                    Ok((out, left))
                } else {
                    Err("a command follows the assignment".to_owned())
                };
            }
            ';' | '&' | '|' | '<' | '>' | '(' | ')' => return Err("a command follows the assignment".to_owned()),
            c => {
                out.expands |= matches!(c, '$' | '`');
                out.text.push(c);
            }
        }
    }
    Ok((out, ""))
}

#[derive(Default)]
struct Word {
    text: String,
    /// A shell would put something in the place of a part of it.
    expands: bool,
}

/// The characters from there on, whose indices count from there.
fn behind(text: &str, from: usize) -> (usize, std::str::CharIndices<'_>) {
    (from, text.get(from..).unwrap_or_default().char_indices())
}

/// Where the double quote ends.
fn closing(text: &str) -> Option<usize> {
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => drop(chars.next()),
            '"' => return Some(at),
            _ => {}
        }
    }
    None
}

/// Takes the backslash before these characters, and before a line's end both, away.
fn unescaped(text: &str, special: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match chars.peek() {
            Some('\n') if c == '\\' => drop(chars.next()),
            Some(&next) if c == '\\' && special.contains(next) => {
                out.push(next);
                chars.next();
            }
            _ => out.push(c),
        }
    }
    out
}

/// Whether text in double quotes holds a `$` or backquote that is not escaped.
fn has_expansion(text: &str) -> bool {
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => drop(chars.next()),
            '`' | '$' => return true,
            _ => {}
        }
    }
    false
}

fn take(name: &str, word: Word, read: &mut HeatParams) {
    let Some(parameter) = find(name) else {
        read.warnings.push(Mistake::general(
            name,
            "is not a parameter of kubernetes-node",
            "unknown names in heat-params are ignored",
            "no action is needed unless the name is misspelt",
        ));
        return;
    };
    if word.expands {
        read.warnings.push(Mistake::general(
            parameter.name,
            "contains a $ or a backquote, which is taken literally",
            "nothing in heat-params is evaluated; Magnum's own scripts would have expanded it",
            "no action is needed if the value is intended",
        ));
    }
    read.parameters.remove(parameter.name);
    read.parameters.insert(parameter.name.to_owned(), Value::String(word.text));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Vec<(String, String)> {
        parse(text).unwrap().parameters.into_iter().map(|(name, value)| (name, value.as_str().unwrap().to_owned())).collect()
    }

    /// Attack: each quote, and each line, was looked for from the beginning: minutes for a text of the longest kind.
    #[test]
    fn many_quotes_and_many_lines_are_read_once() {
        let quotes = format!("PASSWORD={}\n", "'x'".repeat(LIMIT / 3 - 10));
        assert_eq!(values(&quotes)[0].1.len(), LIMIT / 3 - 10);
        let lines = format!("{}PASSWORD='x", "#\n".repeat(LIMIT / 2 - 10));
        let mistakes = parse(&lines).unwrap_err();
        assert!(mistakes[0].problem.contains(&format!("at line {}", LIMIT / 2 - 9)), "{mistakes:?}");
    }

    #[test]
    fn values_are_what_a_shell_would_read() {
        for (line, value) in [
            (r#"PASSWORD="plain""#, "plain"),
            (r#"PASSWORD="say \"hi\" \\ \$HOME \`x\`""#, r#"say "hi" \ $HOME `x`"#),
            (r#"PASSWORD="a\nb \x""#, r"a\nb \x"),
            (r"PASSWORD='it is $5 \n'", r"it is $5 \n"),
            (r"PASSWORD=ROUND_ROBIN", "ROUND_ROBIN"),
            (r"PASSWORD=a\ b", "a b"),
            (r#"PASSWORD=a"b c"'d'"#, "ab cd"),
            ("PASSWORD=", ""),
            ("export PASSWORD=x # said", "x"),
            ("  PASSWORD=\"x\"\t\r\n", "x"),
            ("PASSWORD=\"line\n\"\n# end", "line\n"),
            ("PASSWORD=\"one \\\nline\"", "one line"),
            ("PASSWORD=\"p$word `id` $(id)\"", "p$word `id` $(id)"),
            ("password=\"lower\"", "lower"),
        ] {
            assert_eq!(values(line), [("PASSWORD".to_owned(), value.to_owned())], "{line}");
        }
    }

    #[test]
    fn the_last_of_a_name_wins_and_unknown_names_are_warned_of() {
        let read = parse("KUBE_TAG=\"v1.18.2\"\nNEW_ADDON_TAG=\"x\"\nUSERNAME=\"$(reboot)\"\nKUBE_TAG=v1.19.1\n").unwrap();
        assert_eq!(read.parameters["KUBE_TAG"], "v1.19.1");
        assert_eq!(read.parameters["USERNAME"], "$(reboot)");
        let warned: Vec<_> = read.warnings.iter().map(|warning| warning.parameter.as_str()).collect();
        assert_eq!(warned, ["NEW_ADDON_TAG", "USERNAME"]);
    }

    #[test]
    fn what_is_no_assignment_is_named_by_its_line() {
        let mistakes = parse("ROLE=master\nset -x\nARCH=x; reboot\nREGION_NAME=\"open\nA=(b)\n").unwrap_err();
        let found: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 4, "{found:?}");
        // Attack: what stood behind it was dropped.
        let lost = parse("TENANT_NAME=t\rKUBE_TAG=v1.28.9\rREGION_NAME=r\nROLE=x\r\n").unwrap_err();
        assert!(
            lost.len() == 1 && lost[0].problem.ends_with("line 1: a carriage return that ends no line follows the value"),
            "{lost:?}"
        );
        for (found, expected) in found.iter().zip([
            "heat-params line 2: is not an assignment",
            "ARCH: cannot be parsed at line 3: a command follows",
            "REGION_NAME: cannot be parsed at line 4: a double quote is not closed",
            "A: cannot be parsed at line 5: a command follows",
        ]) {
            assert!(found.starts_with(expected), "{found}");
        }
        for text in ["ROLE=master\\\nPASSWORD=hunter2\n", "ROLE=\"master\\\n  PASSWORD=hunter2\"\n"] {
            let found = parse(text).unwrap_err()[0].to_string();
            assert!(found.contains("line 1: a backslash at the end of a line joins it") && !found.contains("hunter2"), "{found}");
        }
        assert_eq!(parse("KUBELET_OPTIONS=\"--a=1 \\\n  --b=2\"\n").unwrap().parameters["KUBELET_OPTIONS"], "--a=1   --b=2");
        assert!(
            !is_heat_params("#!/bin/sh\necho hello\n") && is_heat_params("\n# made\nROLE=\"x\"") && !is_heat_params("{\"a\": 1}")
        );
    }

    #[test]
    fn a_lost_quote_takes_no_other_line_and_shows_none() {
        for (text, lines) in [
            ("ROLE=master\nUSERNAME='owner\"\nPASSWORD=\"hush\"\nTENANT_NAME='x'\n", vec![2]),
            ("USERNAME=\"owner\nPASSWORD=\"hush\"\nROLE=\"x\"\n", vec![1]),
            ("FLANNEL_SUBNET_MIN=\"99999null\nPASSWORD=\"hush\"\n", vec![1]),
            ("CA_CERTIFICATE=\"-----BEGIN X-----\nAA==\nPASSWORD=\"hush\"\n", vec![1]),
            ("CA_CERTIFICATE='-----BEGIN X-----\nPASSWORD=\"hush\"\nROLE='x'\n", vec![1]),
            ("NEW_ADDON=\"x\nPASSWORD=\"hush\"\n", vec![1]),
            ("PASSWORD=\"hush\nhush\"\n", vec![1, 2]),
            ("ROLE=\"master\"\"\nPASSWORD=\"hush\"\n", vec![1]),
        ] {
            let found: Vec<_> = parse(text).unwrap_err().iter().map(ToString::to_string).collect();
            assert_eq!(found.len(), lines.len(), "{text}: {found:?}");
            for (found, line) in found.iter().zip(lines) {
                assert!(found.contains(&format!("line {line}")) && !found.contains("hush"), "{text}: {found}");
            }
        }
        let error = parse("A=x\nUSERNAME='owner\"\nPASSWORD='hush'\n").unwrap_err()[0].to_string();
        assert!(
            error.starts_with("USERNAME: cannot be parsed at line 2: the quote opened in line 2 is not closed before line 3;"),
            "{error}"
        );
    }

    #[test]
    fn pem_and_what_is_not_known_may_have_lines() {
        let text =
            "CA_KEY=\"-----BEGIN X-----\nQQ==\nQg=\n-----END X-----\n\"\nNEW_ADDON='{\"a\": 1,\n\"b=\": 2}'\nROLE=master\n";
        let read = parse(text).unwrap();
        assert_eq!(read.parameters["CA_KEY"], "-----BEGIN X-----\nQQ==\nQg=\n-----END X-----\n");
        assert_eq!(read.parameters["ROLE"], "master");
    }

    #[test]
    fn the_here_document_of_a_script_is_expanded_twice() {
        let script = "set -x\nHEAT_PARAMS=/etc/sysconfig/heat-params\n[ -f ${HEAT_PARAMS} ] || {\n    cat > ${HEAT_PARAMS} <<EOF\nPASSWORD=\"a\\\\\\$b\\\\\\\\c \\\"d\\\"\"\nROLE=\"master\"\nEOF\n}\nexit\n";
        let file = of_script(script).unwrap();
        // The here-document makes \$ of \\\$ and \\ of \\\\, and leaves the quotes; the shell that reads it does the rest.
        assert_eq!(file, "PASSWORD=\"a\\$b\\\\c \\\"d\\\"\"\nROLE=\"master\"\n");
        assert_eq!(values(&file), [("PASSWORD".to_owned(), "a$b\\c \"d\"".to_owned()), ("ROLE".to_owned(), "master".to_owned())]);
        let quoted = "cat >/etc/sysconfig/heat-params <<-\"END\"\n\tPASSWORD=\"a\\\\$\"\n\tEND\n";
        assert_eq!(of_script(quoted).as_deref(), Some("PASSWORD=\"a\\\\$\"\n"));
        assert_eq!((of_script("cat > x <<EOF\nEOF\n"), of_script("cat > heat-params <<EOF\nROLE=x\n")), (None, None));
    }

    proptest::proptest! {
        #[test]
        fn no_text_breaks_the_reader(text in "(\\PC|[\n\"'\\\\$`= ]){0,60}") {
            drop(parse(&text));
            drop(of_script(&text));
        }

        /// What Magnum's template writes for a value that a shell-quoting writer prepared is read back whole.
        #[test]
        fn a_quoted_value_is_read_back(value in "[^\0\r\n]{0,40}") {
            let mut quoted = String::new();
            for c in value.chars() {
                if matches!(c, '"' | '\\' | '`' | '$') { quoted.push('\\'); }
                quoted.push(c);
            }
            let text = format!("PASSWORD=\"{quoted}\"\n");
            proptest::prop_assert_eq!(values(&text), [("PASSWORD".to_owned(), value)]);
        }
    }
}
