//! Input values of a deployment and their two text forms (heat-protocol.md 3.3, R35).

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::python::{python_json, python_quoted, python_text};
use crate::budgets::json;

/// The longest of the forms of a list or a map that are looked for whole, in bytes: of a longer one the scalars within are enough.
const WHOLE: usize = 4096;

/// One input: name, declared type, value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Input {
    /// Name as in the template.
    pub name: String,
    /// `String`, `Number`, `CommaDelimitedList`, `Json` or `Boolean`.
    pub kind: String,
    /// The value; JSON null where the entry has none.
    pub value: Value,
    /// What else the entry says of it, `description` and `default` for example: for hooks, which read the entry as Heat gives it.
    pub others: Map<String, Value>,
}

impl Input {
    /// The text that a script finds in its environment.
    ///
    /// Strings are passed as they are; null and missing values are empty. A value of another kind that was declared
    /// `String` (or not declared at all) gets Python's text form, as scripts written for heat-agents expect; every other
    /// one is JSON text.
    #[must_use]
    pub fn environment_text(&self) -> String {
        environment_text(&self.kind, &self.value)
    }

    /// Adds every text by which a program that has this input may show its value or a part of it: the value as a script and as a hook
    /// get it, and each scalar within it, JSON within text included; as it is, without the blanks around it (which a shell drops), and as
    /// JSON and Python write it.
    pub fn trace(&self, traces: &mut Traces) {
        traces.add_value(&self.kind, &self.value);
        // What a template has in its place where nothing is given.
        self.others.get("default").into_iter().for_each(|default| traces.add_scalars(default));
    }
}

fn environment_text(kind: &str, value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null if kind != "String" => String::new(),
        value if kind == "String" => python_text(value),
        value @ (Value::Array(_) | Value::Object(_)) => python_json(value),
        value => value.to_string(),
    }
}

/// Texts to be hidden, of a bounded number of bytes.
#[derive(Clone, Debug)]
pub struct Traces {
    texts: BTreeSet<String>,
    /// Bytes that may still be added; `None` once there were more.
    left: Option<usize>,
}

impl Traces {
    /// None yet, and no more than so many bytes.
    #[must_use]
    pub fn within(bytes: usize) -> Self {
        Self { texts: BTreeSet::new(), left: Some(bytes) }
    }

    /// All of them; `None` if there were more than the bytes allow.
    #[must_use]
    pub fn all(self) -> Option<Vec<String>> {
        self.left.map(|_| self.texts.into_iter().collect())
    }

    /// Adds every text by which the value of an input of this kind may show: see [`Input::trace`].
    pub fn add_value(&mut self, kind: &str, value: &Value) {
        let compact = (!value.is_string()).then(|| value.to_string());
        // The others are about as long.
        if let Some(compact) = compact.filter(|text| text.len() <= WHOLE) {
            for text in [compact, environment_text(kind, value), python_text(value), python_json(value)] {
                self.add(&text);
            }
        }
        self.add_scalars(value);
    }

    /// Adds one as it is.
    pub fn insert(&mut self, text: &str) {
        if text.is_empty() || self.left.is_none() || self.texts.contains(text) {
            return;
        }
        self.left = self.left.and_then(|left| left.checked_sub(text.len()));
        if self.left.is_none() {
            self.texts.clear();
        } else {
            self.texts.insert(text.to_owned());
        }
    }

    fn add(&mut self, text: &str) {
        // The environment has no NUL, and a shell puts one blank between words.
        let (without_nul, words) = (text.replace('\0', ""), text.split_whitespace().collect::<Vec<_>>().join(" "));
        for text in [text, text.trim(), &without_nul, without_nul.trim(), &words] {
            self.insert(text);
        }
    }

    fn add_scalars(&mut self, value: &Value) {
        // Of a longer text the forms would only be made to be thrown away.
        let Some(left) = self.left else { return };
        match value {
            Value::Null | Value::Bool(_) => {}
            Value::Number(number) => self.add(&number.to_string()),
            Value::Array(items) => items.iter().for_each(|item| self.add_scalars(item)),
            Value::Object(members) => members.values().for_each(|item| self.add_scalars(item)),
            Value::String(text) if text.len() > left => self.insert(text),
            Value::String(text) => {
                for quoted in [value.to_string(), python_json(value), python_quoted(text)] {
                    self.add(quoted.get(1..quoted.len() - 1).unwrap_or_default());
                }
                // A text within a text has twice its backslashes, so that their depth is the logarithm of the length.
                let inner = text.trim_start().starts_with(['{', '[', '"']).then(|| json::small(text.trim().as_bytes())).flatten();
                if let Some(inner) = inner {
                    self.add_scalars(&inner);
                }
                signatures(text).for_each(|value| self.add(value));
                if text.len() <= SHELL_QUOTED {
                    for quoted in &shell_quoted(text) {
                        self.add(quoted);
                    }
                }
                self.add(text);
            }
        }
    }
}

/// Bytes of the longest text whose quoted forms in a shell are looked for: of a longer one they would take the room of other secrets.
const SHELL_QUOTED: usize = 4 * 1024;

/// A text as shells show it, without the quotes around it: `set -x` and `${X@Q}` of bash, `export -p` of dash, `declare -p`, `printf %q`, and
/// the `$'…'` of the last two.
///
/// bash writes by their bytes, in octal, what its locale cannot show: in that of C, which a unit without `LANG` has, all that is not ASCII.
fn shell_quoted(text: &str) -> [String; 7] {
    let with_backslashes = |special: fn(char) -> bool| {
        text.chars().fold(String::new(), |mut out, c| {
            out.extend(special(c).then_some('\\'));
            out.push(c);
            out
        })
    };
    let ansi = |in_octal: fn(char) -> bool| {
        text.chars().fold(String::new(), |mut out, c| {
            let letter = ANSI_ESCAPES.iter().find(|(of, _)| *of == c).map(|(_, letter)| *letter);
            match letter {
                Some(letter) => out.extend(['\\', letter]),
                None if c.is_ascii_control() || in_octal(c) => out.push_str(&octal(c)),
                None => out.push(c),
            }
            out
        })
    };
    // dash puts apostrophes that follow each other between one pair of quotation marks.
    let mut of_dash = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\'') {
        let (before, from) = rest.split_at(at);
        let behind = from.trim_start_matches('\'');
        let (run, _) = from.split_at(from.len() - behind.len());
        of_dash.extend([before, "'\"", run, "\"'"]);
        rest = behind;
    }
    of_dash.push_str(rest);
    // A tilde is special at the beginning of a path, of which a text may have several.
    let of_printf = with_backslashes(|c| " \t!\"$&'()*,;<>?[\\]^`{|}".contains(c));
    [
        text.replace('\'', r"'\''"),
        // Python's shlex.quote.
        text.replace('\'', "'\"'\"'"),
        of_dash,
        with_backslashes(|c| matches!(c, '"' | '$' | '`' | '\\')),
        of_printf.replace(":~", ":\\~").replace("=~", "=\\~"),
        ansi(|c| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')),
        ansi(|c| !c.is_ascii()),
    ]
}

/// The letters of bash's `$'…'`.
const ANSI_ESCAPES: [(char, char); 10] = [
    ('\\', '\\'),
    ('\'', '\''),
    ('\x07', 'a'),
    ('\x08', 'b'),
    ('\t', 't'),
    ('\n', 'n'),
    ('\x0b', 'v'),
    ('\x0c', 'f'),
    ('\r', 'r'),
    ('\x1b', 'E'),
];

fn octal(c: char) -> String {
    c.encode_utf8(&mut [0; 4]).bytes().map(|byte| format!("\\{byte:03o}")).collect()
}

/// Least length of a value in a URL's query that counts as its signature: that of Heat's signed URLs has 44 characters, of Swift's 40.
const SIGNATURE: usize = 32;

/// What makes a signed URL a secret: a client that shows the request line (`curl -v`) shows it without the host before it.
fn signatures(text: &str) -> impl Iterator<Item = &str> {
    let query = text.trim().split_once("://").and_then(|(_, rest)| rest.split_once('?')).map(|(_, query)| query);
    let values =
        query.into_iter().flat_map(|query| query.split('&')).filter_map(|pair| pair.split_once('=')).map(|(_, value)| value);
    values.filter(|value| value.len() >= SIGNATURE)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const BYTES: usize = 64 * 1024;

    fn traces_of(input: &Input) -> Option<Vec<String>> {
        let mut traces = Traces::within(BYTES);
        input.trace(&mut traces);
        traces.all()
    }

    #[test]
    fn texts_are_those_that_existing_scripts_expect() {
        // The right-hand sides were printed by CPython's str() and json.dumps().
        for (kind, value, text) in [
            ("String", json!("as it is $HOME"), "as it is $HOME"),
            ("String", json!(true), "True"),
            ("String", json!(null), "None"),
            ("String", json!(3), "3"),
            ("String", json!([1, {"a": null}]), "[1, {'a': None}]"),
            ("String", json!(["it's", "say \"x\"", "b'\"", "l\n"]), r#"["it's", 'say "x"', 'b\'"', 'l\n']"#),
            ("Number", json!(3), "3"),
            ("Number", json!("4"), "4"),
            ("Boolean", json!(true), "true"),
            ("Json", json!({"a": [1, "é"], "b": {}}), r#"{"a": [1, "\u00e9"], "b": {}}"#),
            ("Json", json!(null), ""),
            ("CommaDelimitedList", json!(["a", "b"]), r#"["a", "b"]"#),
        ] {
            let input = Input { name: "x".into(), kind: kind.into(), value: value.clone(), ..Input::default() };
            assert_eq!(input.environment_text(), text, "{kind} {value}");
        }
    }

    /// Attack: of 120 secrets 30 were shown by what shells write of them.
    #[test]
    fn what_shells_and_python_write_of_a_secret_has_a_trace_of_it_whole() {
        let script = |shell: &str| match shell {
            "bash" => "set +x; printf '%q\\n' \"$X\"; echo \"${X@Q}\"; declare -p X; set -x; : \"$X\"",
            "dash" => "export -p; set -x; : \"$X\"",
            _ => "import os, shlex; print(repr(os.environ['X']), shlex.quote(os.environ['X']))",
        };
        for secret in [
            "P\u{e4}sswort-Geheim77",
            "user:~Geheim77",
            "a=~b c",
            "ab''cd'e",
            "tab\tbell\x07esc\x1b\x0b\x01end",
            "l\u{2028}m\u{85}n\u{a0}o",
            "Geheim\u{feff}Wort\u{200b}rund\u{202e}acht\u{e0001}zehn\u{ad}drei\u{e000}\u{301}\u{110bd}",
            "$`\"\\x",
        ] {
            let input = Input { name: "x".into(), kind: "String".into(), value: json!(secret), ..Input::default() };
            let traces = traces_of(&input).unwrap();
            for (program, locale) in [("bash", "C"), ("bash", "C.UTF-8"), ("dash", "C"), ("python3", "C.UTF-8")] {
                #[expect(clippy::disallowed_methods, reason = "a test asks the programs themselves")]
                let mut command = std::process::Command::new(program);
                command.args(["-c", script(program)]).env_clear();
                let done = command.envs([("X", secret), ("LC_ALL", locale), ("PATH", "/usr/bin:/bin")]).output().unwrap();
                let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
                // Each line that shows it shows it in a form that is looked for: whatever is left is what stands around it.
                let hidden = traces.iter().fold(said.clone(), |text, trace| text.replace(trace.as_str(), "***"));
                for piece in secret.split(|c: char| !c.is_ascii_alphanumeric()).filter(|piece| piece.len() > 3) {
                    assert!(!hidden.contains(piece), "{program} {locale}: {piece} in {hidden}\n{traces:?}");
                }
                assert!(hidden.contains("***"), "{program} {locale}: {said}");
            }
        }
    }

    /// Attack: a secret that was no text was shown by a script that printed it.
    #[test]
    fn whatever_a_program_may_show_of_a_value_is_known() {
        let handle = json!({"endpoint": "http://h/v1", "token": "gAAAA s3"});
        for (kind, value, shown) in [
            ("String", json!("hush"), &["hush"][..]),
            ("String", json!(" hush \n"), &["hush", " hush \n"]),
            ("String", json!("hush\u{0} hush"), &["hush hush"]),
            ("String", json!("hush \t hush"), &["hush hush"]),
            ("Number", json!(70_123_456_789_u64), &["70123456789"]),
            ("String", json!(70_123_456_789_u64), &["70123456789"]),
            ("Json", handle.clone(), &["http://h/v1", "gAAAA s3", r#"{"endpoint": "http://h/v1", "token": "gAAAA s3"}"#]),
            ("String", handle.clone(), &["gAAAA s3", "{'endpoint': 'http://h/v1', 'token': 'gAAAA s3'}"]),
            ("String", json!(handle.to_string()), &["gAAAA s3", r#"{"endpoint":"http://h/v1","token":"gAAAA s3"}"#]),
            ("String", json!(json!(handle.to_string()).to_string()), &["gAAAA s3"]),
            ("CommaDelimitedList", json!(["one", {"a": ["two"]}]), &["one", "two", r#"["one", {"a": ["two"]}]"#]),
            (
                "String",
                json!("http://h:8000/v1/signal/a?Timestamp=2026&Signature=uFxGmBVZ7WzMOmZrY3q0cX8R1P2s3T4u5V6w7X8y9Z0%3D"),
                &["uFxGmBVZ7WzMOmZrY3q0cX8R1P2s3T4u5V6w7X8y9Z0%3D"],
            ),
            ("Json", json!({"a": "é\"q"}), &["é\"q", "é\\\"q", "\\u00e9\\\"q"]),
            // Attack: as bash 5.2 and dash 0.5.12 show it.
            (
                "String",
                json!("it's-a \"Secret\"!1x$y z,w\\q~"),
                &[
                    r#"it'\''s-a "Secret"!1x$y z,w\q~"#,
                    r#"it'"'"'s-a "Secret"!1x$y z,w\q~"#,
                    r#"it's-a \"Secret\"!1x\$y z,w\\q~"#,
                    r#"it\'s-a\ \"Secret\"\!1x\$y\ z\,w\\q~"#,
                ],
            ),
            ("String", json!("a'b\tc\nd\\e"), &[r"a\'b\tc\nd\\e"]),
        ] {
            let input = Input { name: "x".into(), kind: kind.into(), value, ..Input::default() };
            let traces = traces_of(&input).unwrap();
            assert!(shown.iter().all(|&text| traces.contains(&text.to_owned())), "{shown:?}: {traces:?}");
            assert!(traces.contains(&input.environment_text().trim().to_owned()), "{traces:?}");
        }
        let nothing = Input { name: "x".into(), kind: "Json".into(), value: json!(null), ..Input::default() };
        assert_eq!(traces_of(&nothing).unwrap(), ["None", "null"], "too short to be hidden");
        let large =
            Input { name: "x".into(), kind: "Json".into(), value: json!(vec!["hush".to_owned(); WHOLE]), ..Input::default() };
        assert_eq!(traces_of(&large).unwrap(), ["hush"]);
        // Attack: beside a long text none of the forms that JSON gives it was known.
        let quoted = format!("\"{}\"", "x".repeat(WHOLE));
        let long = Input { name: "x".into(), kind: "Json".into(), value: json!({"a": quoted}), ..Input::default() };
        assert!(traces_of(&long).unwrap().contains(&format!("\\\"{}\\\"", "x".repeat(WHOLE))));
    }

    /// Attack: a list of 50,000 strings took ten times its size.
    #[test]
    fn more_than_can_be_hidden_is_said_and_not_held() {
        let mut traces = Traces::within(BYTES);
        let many: Vec<_> = (0..50_000).map(|n| format!("secret \"{n}\"")).collect();
        Input { name: "x".into(), kind: "Json".into(), value: json!(many), ..Input::default() }.trace(&mut traces);
        assert!(traces.texts.iter().map(String::len).sum::<usize>() <= BYTES);
        assert_eq!(traces.all(), None);
        assert_eq!(
            traces_of(&Input {
                name: "x".into(),
                kind: "String".into(),
                value: json!("x".repeat(BYTES + 1)),
                ..Input::default()
            }),
            None
        );
    }
}
