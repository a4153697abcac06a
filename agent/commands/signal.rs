//! `signal SUCCESS|FAILURE`: tells a wait condition, as cfn-signal and the handle's curl line did.

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::{Options, document, exit, print};
use crate::clock::Clock;
use crate::error::{Context, Error, Result};
use crate::files::Tree;
use crate::http::Http;
use crate::settings::Settings;
use crate::signal::{Handle, Status, Verdict, WaitSignal, judge, send};

/// How often a place that does not answer is tried, with growing pauses: half a minute in all.
const TRIES: u32 = 6;
/// Longest handle that is read from standard input, in bytes.
const HANDLE_LIMIT: u64 = 64 * 1024;

/// What the command line says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// SUCCESS or FAILURE.
    pub success: bool,
    /// One sentence.
    pub reason: Option<String>,
    /// JSON, or text.
    pub data: Option<String>,
    /// The id under which the wait condition counts the signal.
    pub id: Option<String>,
    /// The handle; `-`: read from standard input; absent: WAIT_HANDLE of the node's deployment.
    pub url: Option<String>,
}

/// Sends one signal and waits for Heat's answer.
///
/// # Errors
/// If no handle is known or it cannot be understood.
pub fn run(options: &Options, settings: &Settings, wanted: &Wanted) -> Result<ExitCode> {
    let handle = Handle::parse(&handle_value(options, settings, wanted)?)?;
    let status = if wanted.success { Status::Success } else { Status::Failure };
    let signal = WaitSignal {
        status,
        id: wanted.id.clone().unwrap_or_else(host_name),
        reason: wanted.reason.clone().unwrap_or_else(|| format!("{} by heat-node-agent signal", status.as_str())),
        data: wanted
            .data
            .as_deref()
            .map_or(Value::Null, |text| serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))),
    };
    let clock = Clock::system();
    let http = Http::new(settings.tls.clone(), Arc::new(Tree::open(Path::new("/"))?), clock.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let shown = handle.destination().shown();
    let body = handle.body(&signal);
    let cause = runtime.block_on(async {
        let mut pause = Duration::from_secs(1);
        let mut cause = String::new();
        for attempt in 1..=TRIES {
            let answer = send(&http, handle.destination(), &body).await;
            match judge(&answer) {
                Verdict::Delivered => return None,
                Verdict::Refused => return Some(answer.cause()),
                Verdict::Retry(_) if attempt == TRIES => cause = answer.cause(),
                Verdict::Retry(asked) => {
                    clock.wait(pause.max(asked.unwrap_or_default().min(pause * 4))).await;
                    pause *= 2;
                }
            }
        }
        Some(cause)
    });
    match cause {
        None => {
            print(&format!("{} taken by {shown}\n", status.as_str()))?;
            Ok(exit::OK)
        }
        Some(cause) => Err(Error::transient(cause)
            .context(format!("signalling {shown}"))
            .remedy("an expired token or URL cannot be renewed from here: update the stack for a new handle")),
    }
}

/// The signals of several nodes to one condition must not overwrite each other.
fn host_name() -> String {
    let name = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    format!("node-{}", name.split('.').next().unwrap_or_default())
}

fn handle_value(options: &Options, settings: &Settings, wanted: &Wanted) -> Result<Value> {
    match wanted.url.as_deref() {
        // A handle is a secret: from standard input it does not stand in the list of processes.
        Some("-") => {
            let mut text = String::new();
            std::io::stdin().take(HANDLE_LIMIT).read_to_string(&mut text).context(|| "reading the handle from standard input")?;
            Ok(Value::String(text.trim().to_owned()))
        }
        Some(url) => Ok(Value::String(url.to_owned())),
        None => {
            let node = document::node(&document::read(options, settings)?)?;
            let handle =
                node.inputs.iter().find(|input| input.name.eq_ignore_ascii_case("WAIT_HANDLE") && !input.value.is_null());
            handle.map(|input| input.value.clone()).ok_or_else(|| {
                Error::permanent("the node's deployment has no WAIT_HANDLE")
                    .remedy("name the handle with --url, or with --url - on standard input")
            })
        }
    }
}
