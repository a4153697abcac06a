//! What a hook of the image answers: one JSON object on its standard output (heat-protocol.md 4.2 g, R34).
//!
//! It is read here and nowhere else, before anything of it is masked or cut: of a text in which something was replaced nobody knows any
//! more whether the hook succeeded.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::json_size;
use super::mask::Mask;
use crate::budgets::ANSWER_MEMORY;
use crate::budgets::json::{self, JsonRejection};
use crate::budgets::python_json::{self, NON_JSON_NUMBERS};
use crate::report::text::with_unique_names;

/// How a program's standard output was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookOutput {
    /// Not at all: a program that is no hook, or a result of an earlier version's runner.
    #[default]
    Unread,
    /// It is no JSON object, so nobody knows whether the tool behind the hook succeeded (R13).
    NoAnswer,
    /// Earlier versions kept no more than 1 MiB of it, and nobody knows either.
    TooLarge,
    /// It is one.
    Answer(Box<HookAnswer>),
}

impl HookOutput {
    pub(super) fn is_unread(&self) -> bool {
        *self == Self::Unread
    }

    /// The same with further secrets masked in what a hook printed, and not in its outputs.
    pub(super) fn with_printed_masked(self, mask: &Mask) -> Self {
        match self {
            Self::Answer(answer) => Self::Answer(Box::new(answer.with_printed_masked(mask))),
            other => other,
        }
    }
}

/// The members of the object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookAnswer {
    /// `deploy_status_code`; 1 where that is no number.
    pub status: i32,
    /// `deploy_stdout`.
    pub stdout: String,
    /// `deploy_stderr`.
    pub stderr: String,
    /// All others, in their order.
    pub outputs: Map<String, Value>,
    /// `deploy_status_code` as it was written, where that is no number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "unclear")]
    pub invalid_status: Option<String>,
}

impl HookAnswer {
    /// The answer in a text.
    ///
    /// # Errors
    /// As [`lenient_object`].
    pub fn read(text: &str) -> Result<Self, JsonRejection> {
        let mut outputs = lenient_object(text)?;
        let mut text = |name: &str| match outputs.shift_remove(name) {
            Some(Value::String(text)) => text,
            Some(Value::Null) | None => String::new(),
            Some(other) => other.to_string(),
        };
        let (stdout, stderr) = (text("deploy_stdout"), text("deploy_stderr"));
        let code = outputs.shift_remove("deploy_status_code").unwrap_or_default();
        let (status, invalid_status) = match status(&code) {
            Some(status) => (status, None),
            // A text that JSON lacks a number for is shown as it was written.
            None => (
                1,
                Some(
                    code.as_str().filter(|code| NON_JSON_NUMBERS.contains(code)).map_or_else(|| code.to_string(), str::to_owned),
                ),
            ),
        };
        Ok(Self { status, stdout, stderr, outputs, invalid_status })
    }

    /// The same with the secrets masked in every value, and in the names within values.
    pub(super) fn masked(mut self, mask: &Mask) -> Self {
        self.stdout = mask.hide_text(&self.stdout);
        self.stderr = mask.hide_text(&self.stderr);
        self.invalid_status = self.invalid_status.map(|code| mask.hide_text(&code));
        for value in self.outputs.values_mut() {
            match value {
                Value::String(text) => *text = mask.hide_text(text),
                Value::Null | Value::Bool(_) => {}
                // One note for all of it: one a value might be many times as long as the answer.
                value if mask.withholds() => *value = Value::String(mask.hide_text(&value.to_string())),
                value => hide_within(value, mask),
            }
        }
        self
    }

    fn with_printed_masked(mut self, mask: &Mask) -> Self {
        self.stdout = mask.hide_text(&self.stdout);
        self.stderr = mask.hide_text(&self.stderr);
        self
    }

    /// What each of its texts takes in JSON.
    pub(super) fn sizes(&self) -> impl Iterator<Item = usize> {
        let texts = [&self.stdout, &self.stderr].into_iter().chain(&self.invalid_status).map(|text| json_size::size(text));
        texts.chain(self.outputs.values().map(json_size::size_of_value))
    }

    /// What the names of its members take in JSON.
    pub(super) fn names(&self) -> usize {
        self.outputs.keys().map(|name| json_size::size_of_name(name)).sum()
    }

    /// Cuts each text and each value that is larger than this in JSON.
    pub(super) fn cut(&mut self, each: usize) {
        for text in [&mut self.stdout, &mut self.stderr].into_iter().chain(&mut self.invalid_status) {
            *text = json_size::cut(text, each);
        }
        self.outputs.values_mut().for_each(|value| json_size::cut_value(value, each));
    }
}

/// What a text takes in memory beside its bytes.
const TEXT: usize = 128;

/// The members of one JSON object. A value that is JSON and cannot be taken (too large, too deep, a number beyond what a computer counts
/// with) becomes the text that it is written as: it must not cost the hook its status. So does what Python's `json` writes and reads
/// (heat-protocol.md 4.2 g) and JSON has not.
///
/// # Errors
/// If it is not a single JSON object, or has more members than can be held.
pub fn lenient_object(text: &str) -> Result<Map<String, Value>, JsonRejection> {
    // RFC 8259, section 8.1: a reader may ignore a byte order mark, and Python's does.
    let text = text.trim_start_matches('\u{feff}');
    let members = python_json::members(text)?;
    let mut outputs = Map::with_capacity(members.len());
    let mut left = ANSWER_MEMORY;
    for (name, text) in members {
        // A text as a whole takes no more than what it is written as.
        let space = if text.starts_with('"') { left.max(text.len() + TEXT) } else { left };
        let value = json::value(text.as_bytes(), space).unwrap_or_else(|_| Value::String(text.to_owned()));
        left = left.saturating_sub(json::weight(&value));
        outputs.insert(name, value);
    }
    Ok(outputs)
}

/// A status as a hook may write it; an empty one is none. Nothing for what is no whole number that a status can be.
fn status(code: &Value) -> Option<i32> {
    match code {
        Value::Null => Some(0),
        Value::Number(number) => number.as_i64().and_then(|n| i32::try_from(n).ok()),
        Value::String(code) if code.is_empty() => Some(0),
        Value::String(code) => code.parse().ok(),
        _ => None,
    }
}

fn hide_within(value: &mut Value, mask: &Mask) {
    match value {
        Value::Null | Value::Bool(_) => {}
        Value::String(text) => *text = mask.hide_text(text),
        Value::Number(number) => {
            let text = number.to_string();
            let hidden = mask.hide_text(&text);
            if hidden != text {
                *value = Value::String(hidden);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| hide_within(item, mask)),
        Value::Object(members) => {
            let hidden = std::mem::take(members).into_iter().map(|(name, mut value)| {
                hide_within(&mut value, mask);
                (mask.hide_text(&name), value)
            });
            *members = with_unique_names(hidden);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::mask::tests::hiding;
    use super::*;

    #[test]
    fn an_answer_is_one_object_and_its_status_a_number() {
        for (text, status) in [
            (r#"{"deploy_stdout": "o", "deploy_status_code": 0, "x": "1"}"#, 0),
            (r#"{"deploy_status_code": "3"}"#, 3),
            (r#"{"deploy_status_code": -9}"#, -9),
            (r#"{"deploy_status_code": ""}"#, 0),
            (r#"{"deploy_status_code": null}"#, 0),
            ("{}", 0),
            (r#"{"deploy_status_code": "many"}"#, 1),
            (r#"{"deploy_status_code": 4294967296}"#, 1),
            (r#"{"deploy_status_code": 0.5}"#, 1),
            (r#"{"deploy_status_code": false}"#, 1),
        ] {
            assert_eq!(HookAnswer::read(text).unwrap().status, status, "{text}");
        }
        for text in ["", "[1]", "5", "{", "id\n{}", "{}{}"] {
            assert!(matches!(HookAnswer::read(text), Err(JsonRejection::Json(_))), "{text}");
        }
        let answer = HookAnswer::read(r#"{"b": 1, "deploy_stdout": [1], "deploy_stderr": null, "a": {"x": "1"}}"#).unwrap();
        assert_eq!((answer.stdout.as_str(), answer.stderr.as_str()), ("[1]", ""));
        assert_eq!(
            answer.outputs.into_iter().collect::<Vec<_>>(),
            [("b".to_owned(), json!(1)), ("a".to_owned(), json!({"x": "1"}))]
        );
    }

    /// Attack: a hook that succeeded was reported as failed for a value that the agent does not take.
    #[test]
    fn a_value_that_cannot_be_taken_becomes_its_text_and_the_answer_stays_one() {
        let deep = format!("{}0{}", "[".repeat(500), "]".repeat(500));
        let many = format!("[{}0]", "0,".repeat(60_000));
        for value in [deep.as_str(), &many, "1e999", &"9".repeat(400), "\"\\ud800\"", "[1e999]"] {
            let text = format!("\u{feff}{{\"out\": {value}, \"deploy_status_code\": 0, \"small\": [1]}}");
            let answer = HookAnswer::read(&text).unwrap();
            let shown = value.get(..40).unwrap_or(value);
            assert_eq!(
                (answer.status, &answer.outputs["out"], &answer.outputs["small"]),
                (0, &json!(value), &json!([1])),
                "{shown}"
            );
        }
        // All of them together take no more than one may.
        let lists: String = (0..20).map(|n| format!("\"{n}\": [{}0],", "0,".repeat(9_000))).collect();
        let answer = HookAnswer::read(&format!("{{{lists}\"deploy_status_code\": 3}}")).unwrap();
        assert!(answer.outputs["0"].is_array() && answer.outputs["19"].is_string() && answer.status == 3);
        let names = format!("{{{}\"deploy_status_code\": 0}}", (0..30_000).map(|n| format!("\"{n}\":0,")).collect::<String>());
        assert!(matches!(HookAnswer::read(&names), Err(JsonRejection::TooLarge(_))));
    }

    /// Attack: a hook that succeeded was reported as failed for a NaN of Python's, and nobody heard why.
    #[test]
    fn what_python_writes_for_numbers_that_json_lacks_is_kept_as_text() {
        let text = r#"{"load": NaN, "most": [1, Infinity], "least": {"a": -Infinity, "NaN": "\"NaN: [NaN, \\"}, "n": "NaN", "deploy_status_code": 0}"#;
        let answer = HookAnswer::read(text).unwrap();
        assert_eq!((answer.status, &answer.invalid_status), (0, &None));
        let expected =
            json!({"load": "NaN", "most": "[1, Infinity]", "least": r#"{"a": -Infinity, "NaN": "\"NaN: [NaN, \\"}"#, "n": "NaN"});
        assert_eq!(Value::Object(answer.outputs), expected);
        for text in
            ["NaN", "{NaN: 1}", r#"{"a": -NaN}"#, r#"{"a": 1NaN}"#, r#"{"a": NaN1}"#, r#"{"a": Infinity.5}"#, r#"{"a": nan}"#]
        {
            assert!(matches!(HookAnswer::read(text), Err(JsonRejection::Json(_))), "{text}");
        }
    }

    /// A status that is no number is a failure, and its reason names it.
    #[test]
    fn a_status_that_is_no_number_is_named() {
        for (code, shown) in [("NaN", "NaN"), ("Infinity", "Infinity"), (r#""many""#, "\"many\""), ("[1]", "[1]"), ("0.5", "0.5")]
        {
            let answer = HookAnswer::read(&format!(r#"{{"deploy_status_code": {code}}}"#)).unwrap();
            assert_eq!((answer.status, answer.invalid_status.as_deref()), (1, Some(shown)), "{code}");
        }
        let secret = HookAnswer::read(r#"{"deploy_status_code": "hunter2222"}"#).unwrap().masked(&hiding(&["hunter2222"]));
        assert_eq!(secret.invalid_status.as_deref(), Some("\"******\""));
        assert_eq!(HookAnswer::read(r#"{"deploy_status_code": "3"}"#).unwrap().invalid_status, None);
    }

    /// Attack: a secret that is part of `deploy_status_code` made a failed hook a success.
    #[test]
    fn values_are_masked_and_the_names_and_the_status_stay() {
        let answer = r#"{"deploy_stderr": "deploy 7012345", "deploy_status_code": 2, "out": [{"deploy": 7012345, "x": null}], "n": 7012345}"#;
        let masked = HookAnswer::read(answer).unwrap().masked(&hiding(&["deploy", "_status_code", "7012345"]));
        assert_eq!((masked.status, masked.stderr.as_str()), (2, "****** ******"));
        assert_eq!(Value::Object(masked.outputs), json!({"out": [{"******": "******", "x": null}], "n": "******"}));
    }

    /// Attack: of a map whose names held secrets one member was left.
    #[test]
    fn two_names_that_look_alike_once_they_are_masked_stay_two() {
        let answer = json!({"of": {"u1:hunter2": 1, "u2": 2, "u1:hunter3": {"hunter3": 3, "hunter2": 4}, "u1:****** (2)": 5}});
        let masked = HookAnswer::read(&answer.to_string()).unwrap().masked(&hiding(&["hunter2", "hunter3"]));
        let inner = json!({"******": 3, "****** (2)": 4});
        assert_eq!(masked.outputs["of"], json!({"u1:******": 1, "u2": 2, "u1:****** (2)": inner, "u1:****** (2) (3)": 5}));
    }

    /// Attack: an answer that became larger by being masked was reported as failed.
    #[test]
    fn however_much_is_masked_the_answer_stays_one() {
        let answer =
            HookAnswer::read(&json!({"out": vec![70_000_001; 13_900], "deploy_status_code": 0, "b": true}).to_string()).unwrap();
        let masked = answer.clone().masked(&hiding(&["70000001"]));
        assert_eq!((masked.status, &masked.outputs["out"][13_899]), (0, &json!("******")));
        let withheld = answer.masked(&Mask::of(&[], true));
        let note = withheld.outputs["out"].as_str().unwrap();
        assert!(note.starts_with("[heat-node-agent withheld") && withheld.outputs["b"] == true, "{note}");
        let blank = HookAnswer::read(r#"{"deploy_status_code": "3", "deploy_stdout": "", "err": " ", "none": null}"#).unwrap();
        assert_eq!(blank.clone().masked(&Mask::of(&[], true)), blank, "there is nothing to withhold");
    }

    #[test]
    fn what_is_cut_is_as_large_as_its_names_and_texts_may_be() {
        let mut answer = HookAnswer::read(
            &json!({"list": vec!["x"; 9_000], "text": "y".repeat(9_000), "n": 1, "deploy_stdout": "\u{1}".repeat(9_000)})
                .to_string(),
        )
        .unwrap();
        answer.cut(1000);
        assert!(answer.sizes().all(|size| size <= 1002), "{:?}", answer.sizes().collect::<Vec<_>>());
        assert!(answer.outputs["n"] == 1 && answer.outputs["list"].as_str().unwrap().starts_with("[\"x\""));
        assert_eq!(answer.names(), 3 * 6 + "listtextn".len());
    }
}
