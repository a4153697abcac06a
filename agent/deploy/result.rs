//! A deployment's outcome and the body by which Heat hears of it (heat-protocol.md 7.0).

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::budgets::{STATUS_REASON, json};
use crate::error::remedy::Remedy;
use crate::gather::Gather;
use crate::programs::{HookAnswer, HookOutput, JobResult, json_size};
use crate::report::Code;
use crate::report::follow_up::FollowUp;
use crate::report::reason::FailureReason;
use crate::report::status::{ended_with, script_remedy};
use crate::report::text::{duration, escaped, shortened, storable};

/// Largest body that goes to Heat, in bytes of ASCII-escaped JSON: Heat takes 1 MiB (`max_json_body_size`).
pub const SIGNAL_LIMIT: usize = 900 * 1024;

/// Members of a signal that are no outputs.
const OWN: [&str; 3] = ["deploy_status_code", "deploy_stdout", "deploy_stderr"];
/// What is left of each output at least, in bytes of JSON.
const LEAST: usize = 64;

/// Lines that are quoted of what a program said last.
const QUOTED: usize = 2;

/// Why a hook's result is unknown.
const NO_ANSWER: &str = "the hook's output is not a single JSON object, so its result is unknown; let it print its answer alone, and all else on standard error";

/// The same of an answer that was not kept.
const TOO_LARGE: &str = "the hook's output is larger than the agent keeps, so its result is unknown; let it print less";

/// How a deployment ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeploymentOutcome {
    /// 0 is success; negative numbers are signals.
    pub status: i32,
    /// Standard output.
    #[serde(default)]
    pub stdout: String,
    /// Standard error.
    #[serde(default)]
    pub stderr: String,
    /// Values of outputs that exist.
    #[serde(default)]
    pub outputs: BTreeMap<String, Value>,
    /// Where the agent itself, not the program, decided on failure.
    #[serde(default)]
    pub reason: Option<FailureReason>,
    /// Whether the output is the agent's own words, because no program said anything.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "is_agents_own")]
    pub from_agent: bool,
}

/// Why a program was ended.
fn overrun(millis: u64) -> FailureReason {
    let why = format!(
        "it exceeded its time limit ([deploy] time_limit in agent.toml) and was ended after {}",
        duration(Duration::from_millis(millis))
    );
    FailureReason::from(why).with_code(Code::DeploymentTimedOut.entry().code)
}

/// Why a program was not even begun.
fn unstarted(why: FailureReason) -> FailureReason {
    let mut causes = why.causes.into_iter();
    let first = causes.next().map(|cause| format!("it could not be started: {cause}"));
    let code = why.code.or_else(|| Some(Code::DeploymentNotStarted.entry().code.to_owned()));
    FailureReason { code, causes: first.into_iter().chain(causes).collect(), ..why }
}

/// The last lines of an output that say anything.
#[must_use]
pub fn last_lines(output: &str) -> Option<String> {
    let lines: Vec<&str> = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines.get(lines.len().saturating_sub(QUOTED)..).unwrap_or_default().join(" / ");
    (!last.is_empty()).then(|| shortened(&last, QUOTED * 100))
}

/// What a program said last, for the end of a cause.
#[must_use]
pub fn last_output_suffix(words: &str) -> String {
    format!("; last output: {words}")
}

impl DeploymentOutcome {
    /// A failure that the agent itself found.
    #[must_use]
    pub fn refused(reason: impl Into<FailureReason>) -> Self {
        let reason = reason.into();
        Self { status: 1, stderr: reason.to_string(), reason: Some(reason), from_agent: true, ..Self::default() }
    }

    /// A success, with what did not work in its output.
    #[must_use]
    pub fn success_despite(reason: impl Into<FailureReason>) -> Self {
        Self { status: 0, reason: None, ..Self::refused(reason) }
    }

    /// What a job left, by the group of its deployment.
    #[must_use]
    pub fn of(group: &str, ran: JobResult) -> Self {
        if group == "script" { Self::of_script(ran) } else { Self::of_hook(ran) }
    }

    /// The memory that it takes.
    #[must_use]
    pub fn weight(&self) -> usize {
        let outputs = self.outputs.iter().map(|(name, value)| name.len() + 96 + json::weight(value));
        self.stdout.len() + self.stderr.len() + self.reason.as_ref().map_or(0, FailureReason::weight) + outputs.sum::<usize>()
    }

    /// Status and reason alone, the reason no longer than this.
    #[must_use]
    pub fn shortened(&self, limit: usize) -> Self {
        let reason = self.reason.as_ref().map(|reason| reason.shortened(limit / 4));
        Self { status: self.status, reason, ..Self::default() }
    }

    /// What a script left: output files become outputs.
    #[must_use]
    pub fn of_script(ran: JobResult) -> Self {
        // A program that exits with 0 at SIGTERM did not do its work all the same.
        let status = if ran.timed_out && ran.status == 0 { 124 } else { ran.status };
        let from_agent = ran.not_started.is_some();
        let reason = if ran.timed_out {
            Some(overrun(ran.duration_ms))
        } else {
            ran.not_started.map(|why| unstarted(*why)).or(ran.unknown.map(FailureReason::from))
        };
        let outputs = ran.outputs.into_iter().map(|(name, text)| (name, Value::String(text))).gather();
        Self { status, stdout: ran.stdout, stderr: ran.stderr, outputs, reason, from_agent }
    }

    /// What an external hook said (heat-protocol.md 4.2 g, R34): its JSON on standard output, but the exit status wins:
    /// a hook that failed is never reported as success.
    #[must_use]
    pub fn of_hook(mut ran: JobResult) -> Self {
        let answer = match std::mem::take(&mut ran.answer) {
            HookOutput::Answer(answer) => Ok(*answer),
            HookOutput::NoAnswer => Err(NO_ANSWER.to_owned()),
            HookOutput::TooLarge => Err(TOO_LARGE.to_owned()),
            HookOutput::Unread => HookAnswer::read(&ran.stdout).map_err(|_| NO_ANSWER.to_owned()),
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(why) => {
                let unclear = ran.status == 0 && !ran.stdout.trim().is_empty();
                let mut outcome = Self::of_script(ran);
                if unclear {
                    // R13: without its JSON nobody knows whether the tool behind the hook succeeded.
                    outcome.status = 1;
                    outcome.reason = Some(why.into());
                }
                return outcome;
            }
        };
        // What the hook itself failed with says more.
        let unclear = answer.invalid_status.filter(|_| ran.status == 0).map(|code| {
            format!(
                "the hook's deploy_status_code is {}, which is no whole number as JSON has them (RFC 8259, section 6), so its result is unknown; let it answer 0, or the status of what failed",
                shortened(&code, QUOTED * 100)
            )
        });
        let status = match (ran.status, ran.timed_out, answer.status) {
            (0, true, 0) => 124,
            (0, _, answered) => answered,
            (status, _, _) => status,
        };
        Self {
            status,
            stdout: answer.stdout,
            stderr: if answer.stderr.is_empty() { ran.stderr } else { answer.stderr },
            outputs: answer.outputs.into_iter().gather(),
            reason: ran.timed_out.then(|| overrun(ran.duration_ms)).or(unclear.map(FailureReason::from)),
            from_agent: false,
        }
    }

    /// Whether the program or the agent says that it failed.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        self.status != 0
    }

    /// What a program said last: the end of its errors, else of its output.
    #[must_use]
    pub fn failure_details(&self) -> Option<String> {
        last_lines(&self.stderr).or_else(|| last_lines(&self.stdout)).filter(|_| !self.from_agent)
    }

    /// As Heat is to hear of a script or hook that failed, where no error output is declared in which it says why itself: the reason is
    /// a sentence with the exit status, what it said last and what to do about this deployment.
    #[must_use]
    pub fn explained(mut self, declared: &[(String, bool)], id: &str) -> Self {
        let speaks_itself = declared.iter().any(|(_, error_output)| *error_output);
        if !self.is_failure() || (self.reason.is_none() && speaks_itself) {
            return self;
        }
        let words = self.failure_details();
        let mut reason = self.reason.take().unwrap_or_else(|| {
            let why = FailureReason::from(ended_with(self.status));
            why.with_code(Code::DeploymentFailed.entry().code)
        });
        // Once: where it was kept explained, the words are at its end.
        if let Some(suffix) = words.as_deref().map(last_output_suffix).filter(|suffix| !reason.why().contains(suffix)) {
            reason.add(&suffix);
        }
        let remedy = reason.remedy.map(|own| FollowUp::Rerun(id).of(&own));
        reason.remedy = Some(remedy.unwrap_or_else(|| Remedy::said(script_remedy(id, reason.code.as_deref()))));
        self.reason = Some(reason);
        self
    }

    /// Whether Heat will take it as failure: by its status, or by a declared error output that is there (heat-protocol.md
    /// 7.0).
    #[must_use]
    pub fn fails(&self, declared: &[(String, bool)]) -> bool {
        let given = |name: &String| self.outputs.get(name).is_some_and(|value| !is_blank(value));
        self.is_failure() || declared.iter().any(|(name, error_output)| *error_output && given(name))
    }
}

/// The signal's body: never larger than `limit`, always an object that starts with `{`.
///
/// Heat shows, as the reason of a failure, the values of declared error outputs and the status code. So a reason of the
/// agent's own goes into every declared error output, or, where none is declared, after the number in the status code:
/// Heat takes any text but `0` there as failure and prints it (heat-protocol.md 7.0; Heat's
/// `engine/service_software_config.py`, signal_software_deployment).
#[must_use]
pub fn body(outcome: &DeploymentOutcome, declared: &[(String, bool)], limit: usize) -> Map<String, Value> {
    let mut body = Map::new();
    // Of a name that is declared twice Heat takes both.
    let means_failure = |name: &String| declared.iter().any(|(other, error_output)| *error_output && other == name);
    let names = declared.iter().filter(|(_, error_output)| *error_output).map(|(name, _)| name.len());
    let error_outputs = names.clone().count();
    // Heat puts its name before each.
    let share = STATUS_REASON.min(limit / 8).saturating_sub(names.sum()) / error_outputs.max(1);
    for (name, _) in declared {
        if let Some(value) = outcome.outputs.get(name) {
            let is_error = means_failure(name);
            // R50: an empty error output would fail a deployment that succeeded.
            if !(is_error && is_blank(value)) {
                let value = if is_error { as_status_reason(value, share) } else { value.clone() };
                body.insert(name.clone(), value);
            }
        }
    }
    let mut status = Value::from(outcome.status);
    if let Some(reason) = outcome.reason.as_ref().filter(|_| outcome.is_failure()).map(FailureReason::to_string) {
        let reason = json_size::cut(&storable(&escaped(&reason)), share);
        for (name, _) in declared.iter().filter(|(_, error_output)| *error_output) {
            body.entry(name.clone()).or_insert_with(|| Value::String(reason.clone()));
        }
        if error_outputs == 0 {
            status = Value::String(format!("{} ({reason})", outcome.status));
        }
    }
    body.insert("deploy_status_code".to_owned(), status);
    body.insert("deploy_stdout".to_owned(), Value::String(String::new()));
    body.insert("deploy_stderr".to_owned(), Value::String(String::new()));
    if json_size::size_of_value(&Value::Object(body.clone())) > limit / 2 {
        trim_outputs(&mut body, declared, limit / 2);
    }
    let space = limit.saturating_sub(json_size::size_of_value(&Value::Object(body.clone())));
    // The shorter stream is kept whole where it fits half of the room; the longer one gives way.
    let each = json_size::share([&outcome.stdout, &outcome.stderr].map(|text| json_size::size(text)), space);
    body.insert("deploy_stdout".to_owned(), Value::String(json_size::cut(&outcome.stdout, each)));
    body.insert("deploy_stderr".to_owned(), Value::String(json_size::cut(&outcome.stderr, each)));
    body
}

/// An error output as Heat can store it: it is a part of the reason as well, by Python's `str`.
fn as_status_reason(value: &Value, limit: usize) -> Value {
    match value {
        Value::String(text) => Value::String(json_size::cut(&storable(text), limit)),
        value => {
            let text = value.to_string();
            // Python has a space behind each comma and colon, and longer words for true, false and null.
            let stored = json_size::cut(&storable(&text), limit / 2);
            if stored == text { value.clone() } else { Value::String(stored) }
        }
    }
}

/// The member of a kept result that says in types what its body says in a sentence.
const TYPED: &str = "heat_node_agent";

/// What a body does not show.
#[derive(Serialize, Deserialize)]
struct Unshown {
    status: i32,
    reason: Option<FailureReason>,
    from_agent: bool,
}

/// A body as it is kept beside the deployment's entry, from which [`of_kept`] reads the outcome. An output of the same name keeps its place.
pub(super) fn kept(outcome: &DeploymentOutcome, mut body: Map<String, Value>) -> Map<String, Value> {
    let unshown = Unshown { status: outcome.status, reason: outcome.reason.clone(), from_agent: outcome.from_agent };
    if let Ok(unshown) = serde_json::to_value(unshown) {
        body.entry(TYPED).or_insert(unshown);
    }
    body
}

/// The outcome of a kept result. One of an earlier version has its reason only as the sentence behind the number of the status, which
/// stays one.
pub(super) fn of_kept(mut body: Map<String, Value>) -> DeploymentOutcome {
    let typed = body.get(TYPED).and_then(|unshown| Unshown::deserialize(unshown).ok());
    if typed.is_some() {
        body.shift_remove(TYPED);
    }
    let mut text = |name: &str| match body.shift_remove(name) {
        Some(Value::String(text)) => text,
        _ => String::new(),
    };
    let (stdout, stderr, code) = (text("deploy_stdout"), text("deploy_stderr"), body.shift_remove("deploy_status_code"));
    let Unshown { status, reason, from_agent } = typed.unwrap_or_else(|| of_status(code.as_ref(), &stderr));
    DeploymentOutcome { status, stdout, stderr, outputs: body.into_iter().gather(), reason, from_agent }
}

/// Whether Heat takes a status for success: what Python takes for false, and the text `0` (heat-protocol.md 7).
#[must_use]
pub fn is_success(status: &Value) -> bool {
    match status {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty() || text == "0",
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
    }
}

/// What the status of a body of an earlier version, or of the replaced tools, says: `3`, `"3"`, or `"1 (the reason)"`.
fn of_status(code: Option<&Value>, stderr: &str) -> Unshown {
    let (number, reason) = match code {
        Some(Value::String(code)) => code.split_once(' ').unwrap_or((code, "")),
        _ => ("", ""),
    };
    let reason = reason.strip_prefix('(').and_then(|reason| reason.strip_suffix(')'));
    let given = code.and_then(Value::as_i64).and_then(|status| i32::try_from(status).ok());
    // Of a hook that the replaced tools ran: it need not say so.
    let given = given.or_else(|| is_success(code.unwrap_or(&Value::Null)).then_some(0));
    let status = given.or_else(|| number.parse().ok()).unwrap_or(1);
    Unshown { status, reason: reason.map(FailureReason::from), from_agent: reason == Some(stderr) }
}

fn is_blank(value: &Value) -> bool {
    value.is_null() || value.as_str().is_some_and(|text| text.trim().is_empty())
}

/// Outputs that fill half of a signal are cut, the largest first, both ends kept. Where not even their names fit, the last that
/// were declared are left out: never one whose presence means failure.
fn trim_outputs(body: &mut Map<String, Value>, declared: &[(String, bool)], limit: usize) {
    let own = |name: &str| OWN.contains(&name);
    let mut named: usize = body
        .iter()
        .map(|(name, value)| json_size::size_of_name(name) + if own(name) { json_size::size_of_value(value) } else { LEAST })
        .sum();
    for (name, _) in declared.iter().rev().filter(|(name, error_output)| !error_output && !own(name)) {
        if named <= limit {
            break;
        }
        if body.remove(name).is_some() {
            named = named.saturating_sub(json_size::size_of_name(name) + LEAST);
        }
    }
    let outputs = body.iter().filter(|(name, _)| !own(name));
    let least = outputs.clone().count() * LEAST;
    let space = limit.saturating_sub(named.saturating_sub(least));
    let each = json_size::share(outputs.map(|(_, value)| json_size::size_of_value(value)), space).max(LEAST);
    for (_, value) in body.iter_mut().filter(|(name, _)| !own(name)) {
        json_size::cut_value(value, each);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Attack: a hook of the replaced tools that succeeded and printed nothing was reported as failed.
    #[test]
    fn the_status_of_a_foreign_hook_is_what_heat_makes_of_it() {
        for (code, status) in [
            (None, 0),
            (Some(json!(null)), 0),
            (Some(json!(false)), 0),
            (Some(json!("")), 0),
            (Some(json!("0")), 0),
            (Some(json!(0.0)), 0),
            (Some(json!(0)), 0),
            (Some(json!(3)), 3),
            (Some(json!("3")), 3),
            (Some(json!("1 (why)")), 1),
            (Some(json!(true)), 1),
            (Some(json!("x")), 1),
            (Some(json!(1e30)), 1),
        ] {
            let body: Map<String, Value> = code.iter().map(|code| ("deploy_status_code".to_owned(), code.clone())).collect();
            assert_eq!(of_kept(body).status, status, "{code:?}");
        }
    }

    fn ran(status: i32, stdout: &str) -> JobResult {
        JobResult { status, stdout: stdout.to_owned(), stderr: "err".to_owned(), ..JobResult::default() }
    }

    #[test]
    fn the_exit_status_wins_over_what_a_hook_prints() {
        for (status, stdout, expected) in [
            (0, r#"{"deploy_stdout": "o", "deploy_status_code": 0, "x": "1"}"#, 0),
            (0, r#"{"deploy_status_code": "3"}"#, 3),
            (0, r#"{"deploy_status_code": ""}"#, 0),
            (0, r#"{"deploy_status_code": "many"}"#, 1),
            (0, r#"{"deploy_status_code": null}"#, 0),
            (3, r#"{"deploy_stdout": "o"}"#, 3),
            (3, r#"{"deploy_status_code": 0}"#, 3),
            (0, "5", 1),
            (0, "container-id\n{}", 1),
            (0, "", 0),
            (-9, "", -9),
        ] {
            assert_eq!(DeploymentOutcome::of_hook(ran(status, stdout)).status, expected, "{status} {stdout}");
        }
        let outcome = DeploymentOutcome::of_hook(ran(0, r#"{"deploy_stdout": "o", "x": {"a": 1}}"#));
        assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str(), &outcome.outputs["x"]), ("o", "err", &json!({"a": 1})));
    }

    #[test]
    fn a_status_that_is_no_number_is_the_reason_and_names_the_rule() {
        let outcome = DeploymentOutcome::of_hook(ran(0, r#"{"deploy_status_code": NaN, "load": Infinity}"#));
        assert_eq!((outcome.status, &outcome.outputs["load"]), (1, &json!("Infinity")));
        let reason = outcome.reason.unwrap().to_string();
        assert!(reason.contains("deploy_status_code is NaN") && reason.contains("RFC 8259"), "{reason}");
        // What the hook failed with says more.
        assert_eq!(DeploymentOutcome::of_hook(ran(7, r#"{"deploy_status_code": NaN}"#)).reason, None);
    }

    #[test]
    fn the_body_holds_declared_outputs_and_only_those_that_exist() {
        let outcome = DeploymentOutcome {
            outputs: [("a", json!("1")), ("undeclared", json!("2")), ("e", json!(" "))].map(|(k, v)| (k.to_owned(), v)).into(),
            stdout: "out".into(),
            ..DeploymentOutcome::default()
        };
        let declared = [("a".to_owned(), false), ("b".to_owned(), false), ("e".to_owned(), true)];
        assert_eq!(
            Value::Object(body(&outcome, &declared, SIGNAL_LIMIT)),
            json!({"a": "1", "deploy_status_code": 0, "deploy_stdout": "out", "deploy_stderr": ""})
        );
    }

    /// Attack: what a script said last was left out where it happened to be a part of the agent's own words.
    #[test]
    fn what_a_script_said_last_is_in_the_reason_once_whatever_it_is() {
        for words in ["1", "status", "no such file"] {
            let ran = DeploymentOutcome { status: 1, stderr: format!("{words}\n"), ..DeploymentOutcome::default() };
            let once = ran.explained(&[], "d");
            assert!(once.reason.as_ref().unwrap().why().ends_with(&last_output_suffix(words)), "{:?}", once.reason);
            assert_eq!(once.clone().explained(&[], "d").reason, once.reason, "said once");
        }
    }

    /// Heat had answered 200, its MySQL refused the reason, and the deployment stayed in progress until the stack's timeout.
    #[test]
    fn what_becomes_the_reason_in_heat_is_stored_by_every_database() {
        let said = "so \u{1f600} \u{1b}[31m\0 w\u{f6}rld";
        let failed = DeploymentOutcome { status: 3, stderr: format!("{said}\n"), ..DeploymentOutcome::default() };
        let body_of =
            |outcome: &DeploymentOutcome, declared: &[(String, bool)]| Value::Object(body(outcome, declared, SIGNAL_LIMIT));
        let found = body_of(&failed.clone().explained(&[], "id"), &[]);
        let status = found["deploy_status_code"].as_str().unwrap();
        assert!(
            status.contains(r"so \u{1f600} \u{1b}[31m\u{0} w\u{f6}rld".replace(r"w\u{f6}rld", "w\u{f6}rld").as_str()),
            "{status}"
        );
        assert_eq!(found["deploy_stderr"], format!("{said}\n"), "an output is stored as JSON");

        let declared: Vec<_> = [("why", true), ("map", true), ("value", false)].map(|(name, is)| (name.to_owned(), is)).into();
        let outputs = [("why", json!(said)), ("map", json!({"a": [said]})), ("value", json!(said))];
        let outputs = outputs.map(|(name, value)| (name.to_owned(), value)).into();
        let found = body_of(&DeploymentOutcome { outputs, ..DeploymentOutcome::default() }, &declared);
        assert_eq!(found["why"], "so \\u{1f600} \u{1b}[31m\\u{0} w\u{f6}rld");
        assert!(found["map"].is_string() && !found["map"].to_string().contains('\u{1f600}'), "{found}");
        assert_eq!(found["value"], said);
        assert_eq!(
            body_of(
                &DeploymentOutcome { outputs: [("map".to_owned(), json!({"a": "\u{f6}"}))].into(), ..failed.clone() },
                &declared
            )["map"],
            json!({"a": "\u{f6}"})
        );

        // Altogether as long as its column.
        let long = DeploymentOutcome {
            outputs: [("why".to_owned(), json!("\u{20ac}".repeat(100_000))), ("map".to_owned(), json!(vec!["x"; 50_000]))].into(),
            ..failed
        };
        let found = body_of(&long, &declared);
        let bytes = |name: &str| found[name].as_str().map_or_else(|| found[name].to_string().len(), str::len);
        assert!(bytes("why") + bytes("map") <= STATUS_REASON && bytes("why") > 5_000, "{} {}", bytes("why"), bytes("map"));
    }

    #[test]
    fn heat_can_show_the_agents_own_reason() {
        let refused = DeploymentOutcome::refused("HNA-0502: KUBE_API_PORT: not a port");
        let plain = body(&refused, &[], SIGNAL_LIMIT);
        assert_eq!(plain["deploy_status_code"], json!("1 (HNA-0502: KUBE_API_PORT: not a port)"));
        let declared = body(&refused, &[("error".to_owned(), true), ("x".to_owned(), false)], SIGNAL_LIMIT);
        assert_eq!(declared["deploy_status_code"], json!(1));
        assert_eq!(declared["error"], json!("HNA-0502: KUBE_API_PORT: not a port"));
        assert!(!declared.contains_key("x"));
    }

    #[test]
    fn a_large_output_keeps_its_end_and_fits() {
        let outcome = DeploymentOutcome {
            stdout: "é".repeat(1_000_000) + "END",
            stderr: "x".repeat(100),
            status: 1,
            ..DeploymentOutcome::default()
        };
        let body = body(&outcome, &[], SIGNAL_LIMIT);
        assert!(body["deploy_stdout"].as_str().unwrap().ends_with("END"));
        assert!(json_size::size_of_value(&Value::Object(body)) <= SIGNAL_LIMIT);
    }

    #[test]
    fn outputs_share_the_room_and_those_that_mean_failure_stay() {
        let large = |name: &str, value: Value| (name.to_owned(), value);
        let outputs = [
            large("small", json!("whole")),
            large("text", json!(format!("BEGIN{}END", "\u{1}".repeat(400_000)))),
            large("list", json!(vec!["x"; 300_000])),
            large("error", json!("\u{1}".repeat(400_000))),
        ];
        let declared: Vec<_> = outputs.iter().map(|(name, _)| (name.clone(), name == "error")).collect();
        let outcome = DeploymentOutcome { outputs: outputs.into(), stdout: "said".into(), ..DeploymentOutcome::default() };
        let all = body(&outcome, &declared, SIGNAL_LIMIT);
        assert!(json_size::size_of_value(&Value::Object(all.clone())) <= SIGNAL_LIMIT);
        assert_eq!((&all["small"], &all["deploy_stdout"]), (&json!("whole"), &json!("said")));
        let text = |name: &str| all[name].as_str().unwrap();
        assert!(text("text").starts_with("BEGIN") && text("text").ends_with("END"), "{}", text("text").len());
        assert!(text("list").starts_with("[\"x\"") && text("list").ends_with("\"x\"]"));
        // More names than a signal holds.
        let declared: Vec<_> = (0..20_000).map(|number| (format!("output-{number}"), number == 19_999)).collect();
        let outputs = declared.iter().map(|(name, _)| (name.clone(), json!("v")));
        let outcome = DeploymentOutcome { outputs: outputs.collect(), ..DeploymentOutcome::default() };
        let some = body(&outcome, &declared, SIGNAL_LIMIT);
        assert!(json_size::size_of_value(&Value::Object(some.clone())) <= SIGNAL_LIMIT && some.len() > 5000);
        assert!(some.contains_key("output-19999") && some.contains_key("output-0"));
    }

    proptest! {
        #[test]
        fn no_outcome_makes_a_body_over_the_limit(out in ".{0,400}", err in ".{0,400}", value in ".{0,900}", limit in 600_usize..2000) {
            let outcome = DeploymentOutcome { stdout: out, stderr: err, outputs: [("o".to_owned(), Value::String(value))].into(), ..DeploymentOutcome::default() };
            let body = Value::Object(body(&outcome, &[("o".to_owned(), false)], limit));
            prop_assert!(body.to_string().len() <= limit.max(700), "{}", body.to_string().len());
        }
    }
}
