//! `signal SUCCESS|FAILURE`: signals a wait condition, as cfn-signal and the handle's curl line did.

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::{document, print};
use crate::backoff::Backoff;
use crate::budgets::json::{self, JsonRejection};
use crate::clock::Clock;
use crate::collect::{OwnCredentials, read_document};
use crate::daemon::wait_id;
use crate::error::{Context, Error, Result};
use crate::files::Tree;
use crate::http::Http;
use crate::kubernetes;
use crate::metadata::Deployment;
use crate::openstack::keystone::Keystone;
use crate::process::{CommonOptions, exit, runtime};
use crate::report::Report;
use crate::settings::Settings;
use crate::signal::{DeliveryMethod, Handle, Sender, WaitSignal, WaitStatus};

/// How often a place that does not answer is tried, with growing pauses: half a minute in all.
const TRIES: u32 = 6;
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(16));
/// Longest handle that is read from standard input, in bytes.
const HANDLE_LIMIT: u64 = 64 * 1024;

/// What to do where the node's own handle is not known.
const NAME_IT: &str = "pass the handle with --url, or on standard input with --url -";

/// What the command line says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
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
pub fn run(options: &CommonOptions, settings: &Settings, wanted: &Arguments) -> Result<ExitCode> {
    // Neither a daemon nor root is needed where the handle is given: then what was collected only helps.
    let collector = document::collected(settings, &Report::kept());
    let collected = match &options.metadata {
        Some(file) => read_document(file),
        None => collector.as_ref().map_err(Clone::clone).and_then(document::merged),
    };
    let own = match (&options.metadata, &collector) {
        (Some(_), _) => collected.as_ref().map(OwnCredentials::of_document).unwrap_or_default(),
        (None, Ok(collector)) => collector.snapshot().own_credentials.clone(),
        (None, Err(_)) => OwnCredentials::default(),
    };
    let (handle, id) = match &wanted.url {
        Some(url) => {
            // The signals of several nodes to one condition must not overwrite each other.
            let id = format!("node-{}", host_name().split('.').next().unwrap_or_default());
            (Handle::parse(&Value::String(given(url)?))?, id)
        }
        None => of_node(&document::node(&collected?).map_err(|error| error.remedy(NAME_IT))?)?,
    };
    let status = if wanted.success { WaitStatus::Success } else { WaitStatus::Failure };
    let signal = WaitSignal {
        status,
        id: wanted.id.clone().unwrap_or(id),
        reason: wanted.reason.clone().unwrap_or_else(|| format!("{} by heat-node-agent signal", status.as_str())),
        data: wanted.data.as_deref().map_or(Ok(Value::Null), data)?,
    };
    let clock = Clock::system();
    let http = Http::new(settings.tls.clone(), Arc::new(Tree::open(Path::new("/"))?), clock.clone());
    let sender = Sender::new(http, Keystone::new(clock.clone()), clock);
    let way = runtime()?.block_on(deliver(&sender, &handle, &signal, &own))?;
    let shown = handle.destination().shown();
    let how = if way == DeliveryMethod::AsGiven { String::new() } else { format!(", {}", way.shown()) };
    print(&format!("{} accepted by {shown}{how}\n", status.as_str()))?;
    Ok(exit::OK)
}

/// JSON as what it is, any other text as a string.
fn data(text: &str) -> Result<Value> {
    match json::answer(text.as_bytes()) {
        Err(rejection @ (JsonRejection::TooLarge(_) | JsonRejection::TooDeep)) => {
            Err(Error::from(rejection).context("reading --data"))
        }
        read => Ok(read.unwrap_or_else(|_| Value::String(text.to_owned()))),
    }
}

/// Tries until Heat takes or refuses it, half a minute at most.
async fn deliver(sender: &Sender, handle: &Handle, signal: &WaitSignal, own: &OwnCredentials) -> Result<DeliveryMethod> {
    let sent = sender.deliver(handle.destination(), &handle.body(signal), own, PAUSES, TRIES).await;
    sent.map_err(|(kind, answer)| {
        let remedy =
            answer.remedy.as_deref().unwrap_or("check with `openstack stack show STACK` that the stack is still waiting");
        let error = Error::new(kind, answer.cause).remedy(remedy);
        error.context(format!("signalling {}", handle.destination().shown()))
    })
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
        Error::permanent("the node's deployment has no WAIT_HANDLE or WAIT_CURL that accepts a signal").remedy(NAME_IT)
    })?;
    Ok((Handle::parse(&handle)?, wait_id(node, &host_name())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::clock::Timestamp;
    use crate::error::ErrorKind;
    use crate::http::Tls;
    use crate::http::fake::{Act, Fake, ok, status};

    async fn sent(script: Vec<Act>) -> (Result<DeliveryMethod>, Vec<String>) {
        let fake = Fake::start(script).await;
        let clock = Clock::manual(Timestamp(0));
        let http = Http::new(Tls::default(), Arc::new(Tree::open(Path::new("/")).unwrap()), clock.clone());
        let sender = Sender::new(http, Keystone::new(clock.clone()), clock);
        let endpoint = format!("{}/v1/p/stacks/s/u/resources/h/signal", fake.base);
        let handle = Handle::parse(&json!({"endpoint": endpoint, "token": "hush"})).unwrap();
        let signal = WaitSignal { status: WaitStatus::Success, id: "n".into(), reason: "r".into(), data: Value::Null };
        let way = deliver(&sender, &handle, &signal, &OwnCredentials::default()).await;
        (way, fake.requests())
    }

    #[tokio::test]
    async fn what_is_busy_is_tried_again_and_what_refuses_is_not() {
        let (way, requests) = sent(vec![status("503 Busy", ""), Act::Close, ok("null")]).await;
        assert_eq!((way, requests.len()), (Ok(DeliveryMethod::AsGiven), 3));
        assert!(requests[2].ends_with(r#"{"status":"SUCCESS","reason":"r","data":null,"id":"n"}"#), "{}", requests[2]);
        let (way, requests) = sent(vec![status("503 Busy", "")]).await;
        assert_eq!((way.unwrap_err().kind(), requests.len()), (ErrorKind::Transient, 6));
        let (way, requests) = sent(vec![status("401 Unauthorized", "")]).await;
        let error = way.unwrap_err();
        assert_eq!((error.kind(), requests.len()), (ErrorKind::Permanent, 1));
        assert!(error.cause().contains("the handle's token has expired or was revoked"), "{error}");
        assert!(error.suggested_remedy().is_some() && !error.lines().join(" ").contains("hush"), "{error}");
    }

    #[test]
    fn the_nodes_own_handle_is_signalled_under_its_own_id() {
        let node = |inputs: Value| {
            let entry = json!({"id": "i", "group": "kubernetes-node", "inputs": inputs});
            of_node(&Deployment::parse(&entry).unwrap().unwrap())
        };
        let server = json!({"name": "deploy_server_id", "value": "0e2c"});
        let swift = "https://swift/v1/AUTH_1/s/h?temp_url_sig=x&temp_url_expires=2";
        let (handle, id) = node(json!([server, {"name": "WAIT_HANDLE", "value": {"alarm_url": swift}}])).unwrap();
        assert_eq!((handle, id), (Handle::parse(&json!(swift)).unwrap(), "node-0e2c".to_owned()));
        for without in [json!([server]), json!([server, {"name": "WAIT_HANDLE", "value": {}}])] {
            assert_eq!(node(without).unwrap_err().suggested_remedy(), Some(NAME_IT));
        }
    }
}
