//! cfn-signal of heat-cfntools: a signal to a wait condition (heat-protocol.md 7.7).

use serde_json::Value;

use super::arguments::{Given, Switch, Takes, ToolResult, Wrong, read};
use super::machine::{Machine, variable};
use super::notify::deliver;
use crate::error::Error;
use crate::http::Tls;
use crate::identity::Identity;
use crate::process::runtime;
use crate::signal::{Destination, Handle, WaitSignal, WaitStatus};

const NAME: &str = "cfn-signal";
/// How often a place that does not answer is tried, with growing pauses: half a minute in all.
const TRIES: u32 = 6;
/// Options that only Amazon's tool of this name has: Heat's signals what a URL names.
const AMAZONS: [&str; 6] = ["--stack", "--resource", "--region", "--access-key", "--secret-key", "--credential-file"];

const SWITCHES: &[Switch] = &[
    (Some('s'), "success", Takes::One, "true (default), or anything else for a failure"),
    (Some('r'), "reason", Takes::One, "one sentence"),
    (Some('d'), "data", Takes::One, "a text for the wait condition's data"),
    (Some('i'), "id", Takes::One, "id of the signal; default: that of this server"),
    (Some('e'), "exit-code", Takes::One, "in place of --success: 0 is success"),
    (None, "exit", Takes::One, "the same"),
    (Some('k'), "insecure", Takes::Nothing, "do not verify certificates"),
];

/// Sends one signal, and ends with 0 once Heat has taken it.
pub(super) fn run(arguments: &[String]) -> ToolResult {
    let is_amazons = |word: &&String| AMAZONS.contains(&word.split('=').next().unwrap_or_default());
    if let Some(option) = arguments.iter().find(is_amazons) {
        return Err(Wrong::Usage {
            usage: "give the URL of a wait condition's handle".to_owned(),
            what: format!("{option} is an option of Amazon's cfn-signal: Heat's signals no resource of a stack by its name"),
        });
    }
    let Some(given) = read(NAME, " URL", SWITCHES, arguments)? else { return Ok(0) };
    let [url] = given.words.as_slice() else {
        let usage = format!("usage: {NAME} [OPTIONS] URL");
        return Err(Wrong::Usage { usage, what: "it takes one URL".to_owned() });
    };
    let is_insecure = given.has("insecure");
    // It does what curl did.
    let ca_file = variable("CURL_CA_BUNDLE").filter(|file| !file.is_empty()).map(Into::into);
    let handle = Handle::parse(&Value::String(url.clone()))?;
    let id = match given.value("id") {
        Some(id) => id.to_owned(),
        None => own_id()?,
    };
    let body = handle.body(&signal(&given, id));
    let mut destination = handle.destination().clone();
    if let Destination::Url { insecure, .. } = &mut destination {
        *insecure = is_insecure;
    }
    runtime()?
        .block_on(deliver(Tls { ca_file, allow_insecure: is_insecure }, &destination, &body, TRIES))
        .map_err(|failed| failed.error)?;
    Ok(0)
}

fn signal(given: &Given, id: String) -> WaitSignal {
    let code = given.value("exit-code").filter(|code| !code.is_empty()).or(given.value("exit")).filter(|code| !code.is_empty());
    let is_success = match code {
        Some(code) => code == "0",
        None => given.value("success").unwrap_or("true") == "true",
    };
    let text = |name, usual: &str| given.value(name).unwrap_or(usual).to_owned();
    WaitSignal {
        status: if is_success { WaitStatus::Success } else { WaitStatus::Failure },
        id,
        reason: text("reason", "Configuration Complete"),
        data: Value::String(text("data", "Application has completed configuration.")),
    }
}

/// The server's id, as far as the machine knows it; else its name.
fn own_id() -> Result<String, Error> {
    let identity = Identity::of_machine(&Machine::new()?.root).map(|identity| identity.value);
    Ok(identity
        .unwrap_or_else(|_| nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_signal_is_that_of_the_original() {
        let aws = Handle::parse(&json!("http://heat:8000/v1/waitcondition/arn%3A?Signature=x")).unwrap();
        let usual = |status: &str| json!({"Status": status, "Reason": "Configuration Complete", "UniqueId": "i", "Data": "Application has completed configuration."});
        for (line, status) in [
            ("", "SUCCESS"),
            ("-s true", "SUCCESS"),
            ("-s false", "FAILURE"),
            ("--success=True", "FAILURE"),
            ("-e 0", "SUCCESS"),
            ("-e 0 -s false", "SUCCESS"),
            ("-e 1", "FAILURE"),
            ("-e -1", "FAILURE"),
            ("--exit 3", "FAILURE"),
            ("--exit-code= --exit 0 -s no", "SUCCESS"),
            ("--exit-code= -s true", "SUCCESS"),
        ] {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let given = read(NAME, "", SWITCHES, &words).unwrap().unwrap();
            assert_eq!(aws.body(&signal(&given, "i".to_owned())), usual(status), "{line}");
        }
        let words = ["-r", "why not", "-d", "{}", "-k", "http://u"].map(str::to_owned);
        let given = read(NAME, "", SWITCHES, &words).unwrap().unwrap();
        let signal = signal(&given, "i".to_owned());
        assert_eq!((signal.reason.as_str(), signal.data, given.has("insecure")), ("why not", json!("{}"), true));
    }

    #[test]
    fn what_it_cannot_do_is_said() {
        for (line, says) in [
            ("", "one URL"),
            ("http://a http://b", "one URL"),
            ("--stack=s http://a", "Amazon's"),
            ("-e 0 --resource r", "Amazon's"),
            ("--nothing http://a", "unrecognized"),
        ] {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let Err(Wrong::Usage { what, .. }) = run(&words) else { panic!("{line}") };
            assert!(what.contains(says), "{line}: {what}");
        }
        assert!(matches!(run(&["not-a-url".to_owned()]), Err(Wrong::Failed(1, _))));
    }
}
