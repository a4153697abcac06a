//! `signal SUCCESS|FAILURE`: tells a wait condition, as cfn-signal and the handle's curl line did.

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::own::own;
use super::run::wait_id;
use super::{Options, document, exit, print};
use crate::clock::Clock;
use crate::error::{Context, Error, Kind, Result};
use crate::files::Tree;
use crate::http::Http;
use crate::kubernetes;
use crate::metadata::Deployment;
use crate::openstack::keystone::Keystone;
use crate::settings::Settings;
use crate::signal::{Handle, Own, Sender, Status, Verdict, WaitSignal, Way, judge};

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
/// If no handle is known or it cannot be understood, or Heat does not take the signal.
pub fn run(options: &Options, settings: &Settings, wanted: &Wanted) -> Result<ExitCode> {
    // Neither a daemon nor root is needed where the handle is given: then what was collected only helps.
    let collected = document::read(options, settings);
    let own = collected.as_ref().map(own).unwrap_or_default();
    let (handle, id) = match &wanted.url {
        Some(url) => {
            // The signals of several nodes to one condition must not overwrite each other.
            let id = format!("node-{}", host_name().split('.').next().unwrap_or_default());
            (Handle::parse(&Value::String(given(url)?))?, id)
        }
        None => of_node(&document::node(&collected?)?)?,
    };
    let status = if wanted.success { Status::Success } else { Status::Failure };
    let signal = WaitSignal {
        status,
        id: wanted.id.clone().unwrap_or(id),
        reason: wanted.reason.clone().unwrap_or_else(|| format!("{} by heat-node-agent signal", status.as_str())),
        data: wanted
            .data
            .as_deref()
            .map_or(Value::Null, |text| serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))),
    };
    let clock = Clock::system();
    let http = Http::new(settings.tls.clone(), Arc::new(Tree::open(Path::new("/"))?), clock.clone());
    let sender = Sender::new(http, Keystone::new(clock.clone()), clock.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let way = runtime.block_on(deliver(&sender, &clock, &handle, &signal, &own))?;
    let shown = handle.destination().shown();
    let how = if way == Way::AsGiven { String::new() } else { format!(", {}", way.shown()) };
    print(&format!("{} taken by {shown}{how}\n", status.as_str()))?;
    Ok(exit::OK)
}

/// Tries until Heat takes or refuses it, half a minute at most.
async fn deliver(sender: &Sender, clock: &Clock, handle: &Handle, signal: &WaitSignal, own: &Own) -> Result<Way> {
    let body = handle.body(signal);
    let mut pause = Duration::from_secs(1);
    for attempt in 1.. {
        let (answer, way) = sender.send(handle.destination(), &body, own).await;
        let asked = match judge(&answer) {
            Verdict::Delivered => return Ok(way),
            Verdict::Retry(asked) if attempt < TRIES => asked,
            verdict => {
                let kind = if verdict == Verdict::Refused { Kind::Permanent } else { Kind::Transient };
                let remedy = answer.remedy.as_deref().unwrap_or("check with `openstack stack show` that the stack still waits");
                let error = Error::new(kind, answer.cause).remedy(remedy);
                return Err(error.context(format!("signalling {}", handle.destination().shown())));
            }
        };
        clock.wait(pause.max(asked.unwrap_or_default().min(pause * 4))).await;
        pause *= 2;
    }
    Ok(Way::AsGiven)
}

fn host_name() -> String {
    nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The handle on the command line.
fn given(url: &str) -> Result<String> {
    if url != "-" {
        return Ok(url.to_owned());
    }
    // A handle is a secret: from standard input it does not stand in the list of processes.
    let mut text = String::new();
    std::io::stdin().take(HANDLE_LIMIT).read_to_string(&mut text).context(|| "reading the handle from standard input")?;
    Ok(text.trim().to_owned())
}

/// The handle of the node's deployment, and the id by which the agent itself signals it: the same one overwrites.
fn of_node(node: &Deployment) -> Result<(Handle, String)> {
    let handle = kubernetes::readable_parameters(node).wait_handle().ok_or_else(|| {
        Error::permanent("the node's deployment has no WAIT_HANDLE or WAIT_CURL that takes a signal")
            .remedy("name the handle with --url, or with --url - on standard input")
    })?;
    Ok((Handle::parse(&handle)?, wait_id(node, &host_name())))
}
