//! heat-config-notify: the result of a deployment on standard input goes to Heat (heat-protocol.md 4.4, 7).

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::arguments::{ToolResult, Wrong};
use super::machine::{Machine, variable};
use crate::backoff::Backoff;
use crate::budgets::json::JsonRejection;
use crate::budgets::{DOCUMENT_MEMORY, python_json};
use crate::clock::Clock;
use crate::collect::OwnCredentials;
use crate::deploy::unsent;
use crate::error::{Context, Error, ErrorKind};
use crate::files::{READ_LIMIT, Tree};
use crate::http::{Http, Tls};
use crate::metadata::{Deployment, SignalTarget, python_json};
use crate::openstack::keystone::Keystone;
use crate::output::note;
use crate::process::runtime;
use crate::programs::{json_size, lenient_object};
use crate::signal::{Destination, Sender};

/// Bytes of a signal as ASCII-escaped JSON: what the replaced tool cut at, below the 1 MiB that Heat takes.
const BODY: usize = 950_000;
/// How often a place that does not answer is tried where somebody calls this tool by hand, with growing pauses: two minutes in all.
const TRIES: u32 = 10;
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// How it ends where the result may be taken later, for 55-heat-config alone (`EX_TEMPFAIL` of sysexits.h).
pub(super) const LATER: u8 = 75;
/// How it ends for 55-heat-config where it was refused, and Keystone's own trouble looks the same (`EX_NOPERM`).
pub(super) const DOUBTFUL: u8 = 77;
/// What a result tells in texts of any length.
const STREAMS: [&str; 2] = ["deploy_stdout", "deploy_stderr"];

/// Sends the result on standard input for the deployment in the file that the first argument names. The second one, which 55-heat-config
/// gives, is its length in bytes: of one that ends before, because 55-heat-config was killed, nobody knows what it says. For 55-heat-config it
/// is tried once: later Heat may wait for another result at the same place.
pub(super) fn run(arguments: &[String]) -> ToolResult {
    let usage = || "usage: heat-config-notify DEPLOYMENT.json < RESULT.json".to_owned();
    let Some(file) = arguments.first() else {
        return Err(Wrong::Failed(1, Error::permanent("it needs the file of a deployment").remedy(usage())));
    };
    let mut text = Vec::new();
    std::io::stdin().take(READ_LIMIT + 1).read_to_end(&mut text).context(|| "reading the result from standard input")?;
    let machine = Machine::new()?;
    let entry = machine.python_json(file)?.ok_or_else(|| Error::permanent(format!("there is no {file}")).remedy(usage()))?;
    let target = match Deployment::parse(&entry) {
        Ok(deployment) => deployment.map_or(SignalTarget::None, |deployment| deployment.signal_target()),
        // What is wrong with it was for its hook to find; where its result goes is known all the same.
        Err(malformed) => malformed.target,
    };
    if let SignalTarget::Unsupported { name } = &target {
        return Err(Error::permanent(format!("{name} cannot be sent")).into());
    }
    let deployed = machine.path(file);
    let Some(destination) = Destination::of(&target) else { return Ok(0) };
    let is_whole = u64::try_from(text.len()).is_ok_and(|length| length <= READ_LIMIT);
    let result = match arguments.get(1) {
        _ if !is_whole => unreadable("has more than 16 MiB"),
        // It is on disk, and the next run tells it.
        Some(length) if *length != text.len().to_string() && unsent::is_open(&machine.root, &deployed)? => {
            return Err(Wrong::Failed(LATER, Error::transient("55-heat-config ended before it had handed the result over")));
        }
        Some(length) if *length != text.len().to_string() => unreadable(CUT_OFF),
        _ => read(&String::from_utf8_lossy(&text)),
    };
    let body = Value::Object(cut(result));
    let tls =
        Tls { ca_file: variable("REQUESTS_CA_BUNDLE").filter(|file| !file.is_empty()).map(Into::into), allow_insecure: false };
    let is_kept = arguments.len() > 1;
    let tries = if is_kept { 1 } else { TRIES };
    runtime()?.block_on(deliver(tls, &destination, &body, tries)).map_err(|failed| status_of(failed, is_kept))?;
    // Heat has it, whoever sent it: it is not sent again.
    if let Err(error) = unsent::settle(&machine.root, &deployed) {
        note(&error.to_string());
    }
    Ok(0)
}

/// Why Heat does not have a signal.
#[derive(Debug)]
pub(super) struct Undelivered {
    pub(super) error: Error,
    /// Keystone's own trouble looks like this answer.
    is_doubtful: bool,
}

impl From<Error> for Undelivered {
    fn from(error: Error) -> Self {
        Self { error, is_doubtful: false }
    }
}

/// A result that may be taken later is another failure for 55-heat-config, which keeps it, than for whoever calls this tool by hand.
fn status_of(Undelivered { error, is_doubtful }: Undelivered, is_kept: bool) -> Wrong {
    let status = match error.kind() {
        ErrorKind::Transient if is_kept => LATER,
        _ if is_kept && is_doubtful => DOUBTFUL,
        _ => 1,
    };
    Wrong::Failed(status, error)
}

/// Of a result whose end is missing.
const CUT_OFF: &str = "begins as JSON and ends too early, or is damaged";

/// The result, which is nothing where it is no JSON (heat-protocol.md 4.4), and a failure where it begins as JSON. What is no object Heat would
/// take for success without a word: it becomes the text of one (R46). What the replaced tool reads and this one cannot is no success: nobody
/// knows what it says.
fn read(text: &str) -> Map<String, Value> {
    match lenient_object(text) {
        Ok(result) => result,
        Err(JsonRejection::Json(_)) => {
            let Ok(other) = python_json::value(text.as_bytes(), DOCUMENT_MEMORY) else {
                if text.trim_start_matches('\u{feff}').trim_start().starts_with(['{', '[', '"']) {
                    return unreadable(CUT_OFF);
                }
                note("the result on standard input is no JSON: it is reported to Heat as a success without details");
                return Map::new();
            };
            Map::from_iter([(STREAMS[0].to_owned(), Value::String(python_json(&other)))])
        }
        Err(refused) => unreadable(&format!("cannot be held: {}", Error::from(refused))),
    }
}

/// A failure in the place of a result that nobody can read.
fn unreadable(why: &str) -> Map<String, Value> {
    let text = format!("heat-config-notify: the result on standard input {why}: it counts as failed");
    note(&text);
    Map::from_iter([("deploy_status_code".to_owned(), Value::from(1)), (STREAMS[1].to_owned(), Value::String(text))])
}

/// The same within what Heat takes: of long texts beginning and end are left (heat-protocol.md R37).
fn cut(mut result: Map<String, Value>) -> Map<String, Value> {
    let size = |result: &Map<String, Value>| {
        result.iter().map(|(name, value)| json_size::size_of_name(name) + json_size::size_of_value(value)).sum::<usize>()
    };
    let all = size(&result);
    if all <= BODY {
        return result;
    }
    // The outputs give way only where the streams alone cannot.
    let is_stream = |name: &String| STREAMS.contains(&name.as_str());
    let others: usize =
        result.iter().filter(|(name, _)| !is_stream(name)).map(|(_, value)| json_size::size_of_value(value)).sum();
    let names: usize = result.keys().map(|name| json_size::size_of_name(name)).sum();
    let space = BODY.saturating_sub(names);
    for (streams, budget) in [(false, space / 2), (true, space.saturating_sub(others.min(space / 2)))] {
        let sizes =
            result.iter().filter(|(name, _)| is_stream(name) == streams).map(|(_, value)| json_size::size_of_value(value));
        let each = json_size::share(sizes, budget);
        result.iter_mut().filter(|(name, _)| is_stream(name) == streams).for_each(|(_, value)| json_size::cut_value(value, each));
    }
    result
}

/// Tries so often until Heat takes or refuses it.
pub(super) async fn deliver(tls: Tls, destination: &Destination, body: &Value, tries: u32) -> Result<(), Undelivered> {
    let clock = Clock::system();
    let http = Http::new(tls, Arc::new(Tree::open(Path::new("/"))?), clock.clone());
    let sender = Sender::new(http, Keystone::new(clock.clone()), clock);
    match sender.deliver(destination, body, &OwnCredentials::default(), PAUSES, tries).await {
        Ok(_) => Ok(()),
        Err((kind, answer)) => {
            let is_doubtful = answer.code == Some(401) || Sender::is_doubtful(destination, &answer);
            let error = Error::new(kind, answer.cause).context(format!("signalling {}", destination.shown()));
            Err(Undelivered { error, is_doubtful })
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        let Value::Object(map) = value else { unreachable!() };
        map
    }

    #[test]
    fn a_result_is_an_object_whatever_it_was() {
        for (text, result) in [
            (r#"{"a": 1}"#, json!({"a": 1})),
            ("5", json!({"deploy_stdout": "5"})),
            (r#"["x"]"#, json!({"deploy_stdout": "[\"x\"]"})),
            ("", json!({})),
            ("not json", json!({})),
            // Attack: Python's json writes and reads these, and Heat heard of success.
            (r#"{"deploy_status_code": 1, "load": NaN}"#, json!({"deploy_status_code": 1, "load": "NaN"})),
            (r#"{"deploy_status_code": 1, "load": 1e999}"#, json!({"deploy_status_code": 1, "load": "1e999"})),
            (
                r#"{"deploy_status_code": 1, "deploy_stdout": "\udcff"}"#,
                json!({"deploy_status_code": 1, "deploy_stdout": r#""\udcff""#}),
            ),
            (r#"{"deploy_status_code": 1, "\udcff": "x"}"#, json!({"deploy_status_code": 1, "\u{fffd}": "x"})),
        ] {
            assert_eq!(Value::Object(read(text)), result, "{text}");
        }
    }

    /// Attack: of a result whose sender was killed the beginning was read, and Heat heard of success.
    #[test]
    fn what_ends_too_early_is_no_success() {
        for whole in
            [r#"{"load": NaN, "deploy_stdout": "é\n\ud83d\ude00", "deploy_status_code": 3}"#, r#"["x", {"a": 1}]"#, r#""text""#]
        {
            assert!(!read(whole).contains_key("deploy_stderr"), "{whole}");
            for (at, _) in whole.char_indices().skip(1) {
                assert_eq!(read(&whole[..at])["deploy_status_code"], 1, "{}", &whole[..at]);
            }
        }
    }

    #[test]
    fn only_what_is_kept_and_may_be_taken_later_has_a_status_of_its_own() {
        let (unreachable, refused) = (Error::transient("503"), Error::permanent("401"));
        for (error, is_doubtful, is_kept, expected) in [
            (&unreachable, false, true, LATER),
            (&unreachable, false, false, 1),
            (&refused, false, true, 1),
            (&refused, true, true, DOUBTFUL),
            (&refused, true, false, 1),
        ] {
            let failed = Undelivered { error: error.clone(), is_doubtful };
            let Wrong::Failed(status, _) = status_of(failed, is_kept) else { unreachable!() };
            assert_eq!(status, expected);
        }
    }

    #[test]
    fn what_cannot_be_held_is_no_success() {
        let names: String = (0..30_000).map(|n| format!("\"{n}\":0,")).collect();
        let result = read(&format!("{{{names}\"deploy_status_code\": 0}}"));
        assert_eq!(result["deploy_status_code"], 1, "{result:?}");
        let deep = format!("{}0{}", "[".repeat(500), "]".repeat(500));
        let result = read(&format!("{{\"deploy_status_code\": 1, \"out\": {deep}}}"));
        assert_eq!((&result["deploy_status_code"], result["out"].is_string()), (&json!(1), true));
        let long = "x".repeat(3_000_000);
        assert_eq!(read(&json!({"deploy_stdout": long}).to_string())["deploy_stdout"], long, "a text is no JSON of a text");
    }

    #[test]
    fn what_is_short_stays_and_of_what_is_long_both_ends_do() {
        let long = format!("BEGIN{}END", "x".repeat(2_000_000));
        let result =
            cut(object(json!({"out": "kept", "deploy_stdout": long, "deploy_stderr": "short", "deploy_status_code": 3})));
        let stdout = result["deploy_stdout"].as_str().unwrap();
        assert!(stdout.starts_with("BEGIN") && stdout.ends_with("END") && stdout.len() > 900_000, "{}", stdout.len());
        assert_eq!(
            (&result["out"], &result["deploy_stderr"], &result["deploy_status_code"]),
            (&json!("kept"), &json!("short"), &json!(3))
        );
    }

    proptest! {
        // Each of these makes and counts megabytes.
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn whatever_there_is_fits(lengths in proptest::collection::vec(0_usize..900_000, 4)) {
            let text = |at: usize, c: &str| c.repeat(lengths[at]);
            let result = cut(object(json!({"deploy_stdout": text(0, "x"), "deploy_stderr": text(1, "\u{1}"), "a": text(2, "é"), "b": [text(3, "y")]})));
            prop_assert!(python_json(&Value::Object(result)).len() <= BODY + 100);
        }
    }
}
