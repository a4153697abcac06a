//! Writes conditions to the node's own object in the API, as its kubelet.
//!
//! In: what the conditions are to be. Out: since when each of them is so. Only conditions of the types given are written: the patch is a
//! strategic merge, by which the API merges `status.conditions` by their `type` (`patchMergeKey` of Kubernetes' API reference, core/v1
//! `NodeStatus`), so that those of the kubelet and of others stay. Node authorizer and `NodeRestriction` let a kubelet change the status of
//! its own node, and of no other.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::api;
use super::objects::{error_message, taint_text};
use crate::budgets::json::{self, JsonRejection};
use crate::clock::{Timestamp, patience};
use crate::desired::ClientIdentity;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::gather::Gather;
use crate::http::{Http, Response};
use crate::report::node_conditions::NodeCondition;

/// An API that does not answer one request for so long is away.
const REQUEST_LIMIT: Duration = patience(Duration::from_secs(10));
/// A node has annotations of 256 KiB at the most, and a list of images; more is not read.
const ANSWER_LIMIT: usize = 1024 * 1024;
/// The one kind of patch that merges conditions by their type.
pub(super) const PATCH: &str = "application/strategic-merge-patch+json";
const DOING: &str = "writing conditions of this node to the cluster's API";

/// The node's object, and as whom it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeObject {
    /// `https://192.0.2.5:6443/api/v1/nodes/node-1`.
    pub url: String,
    /// The kubelet's; none in a cluster without TLS, as the kubelet itself has none there.
    pub identity: Option<ClientIdentity>,
}

/// Whether there is a problem, and since when that is so, by type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transitions(BTreeMap<String, (bool, Timestamp)>);

impl Transitions {
    /// Those that the API has.
    fn of_node(node: &Value) -> Self {
        let conditions = node.pointer("/status/conditions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let of = |one: &Value| {
            let text = |key: &str| one.get(key).and_then(Value::as_str);
            let is_problem = match text("status")? {
                "True" => true,
                "False" => false,
                _ => return None,
            };
            let since = Timestamp::parse_rfc3339(text("lastTransitionTime")?)?;
            Some((text("type")?.to_owned(), (is_problem, since)))
        };
        Self(conditions.iter().filter_map(of).gather())
    }

    /// Since when a condition is as it is.
    fn since(&self, condition: &NodeCondition, now: Timestamp) -> Timestamp {
        let before = self.0.get(condition.kind).filter(|(is_problem, _)| *is_problem == condition.is_problem);
        before.map_or(now, |(_, since)| *since)
    }

    /// The patch of the status, and what is so after it.
    fn patch(&self, conditions: &[NodeCondition], now: Timestamp) -> (Value, Self) {
        let mut after = self.clone();
        let mut all = Vec::new();
        for one in conditions {
            let since = self.since(one, now);
            after.0.insert(one.kind.to_owned(), (one.is_problem, since));
            all.push(json!({
                "type": one.kind,
                "status": if one.is_problem { "True" } else { "False" },
                "reason": one.reason,
                "message": one.message,
                "lastHeartbeatTime": now.rfc3339(),
                "lastTransitionTime": since.rfc3339(),
            }));
        }
        (json!({"status": {"conditions": all}}), after)
    }
}

/// Writes them. `known`: since when they are so; without it the API is asked first, as after a restart.
///
/// # Errors
/// Transient: the API is away, or does not have the node (404). Else what it refuses, with its status.
pub async fn write(
    http: &Http,
    node: &NodeObject,
    conditions: &[NodeCondition],
    known: Option<Transitions>,
) -> Result<Transitions> {
    // The certificate may have been renewed: what is derived anew reads it again.
    let http = http.identified_by(node.identity.as_ref());
    let known = if let Some(known) = known {
        known
    } else {
        let answer = send(&http, "GET", &node.url, None).await?;
        let object = json::answer(&answer.body);
        Transitions::of_node(&object.map_err(|rejection| unreadable(&rejection))?)
    };
    let (patch, after) = known.patch(conditions, http.clock().now());
    send(&http, "PATCH", &format!("{}/status", node.url), Some(&patch)).await?;
    Ok(after)
}

/// Its taints, as kubectl takes them.
///
/// # Errors
/// As those of [`write()`].
pub async fn taints(http: &Http, node: &NodeObject) -> Result<Vec<String>> {
    let answer = send(&http.identified_by(node.identity.as_ref()), "GET", &node.url, None).await?;
    let node = json::answer(&answer.body).map_err(|rejection| unreadable(&rejection))?;
    let taints = node.pointer("/spec/taints").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    Ok(taints.iter().map(taint_text).gather())
}

async fn send(http: &Http, method: &str, url: &str, body: Option<&Value>) -> Result<Response> {
    let mut request = api::request((method, url), api::JSON, body.map(|body| (PATCH, body)), REQUEST_LIMIT);
    request.body_limit = ANSWER_LIMIT;
    let answer = http.request(request).await.context(|| DOING)?;
    if answer.status == 200 { Ok(answer) } else { Err(refusal(method, &answer)) }
}

fn unreadable(rejection: &JsonRejection) -> Error {
    let what = match rejection {
        JsonRejection::Json(_) => "is not JSON",
        JsonRejection::TooLarge(_) | JsonRejection::TooDeep => "is too large, or nested too deeply, to be read",
    };
    Error::transient(format!("the answer {what}")).context(DOING)
}

fn refusal(method: &str, response: &Response) -> Error {
    let status = response.status;
    let (kind, remedy) = match status {
        401 => (
            ErrorKind::Permanent,
            "the API server does not trust the kubelet's certificate: compare the CA that signed it with --client-ca-file",
        ),
        403 => (
            ErrorKind::Permanent,
            "use the authorization mode Node with the admission plugin NodeRestriction, which let a kubelet patch the status of its own \
             node, or bind the ClusterRole system:node to its user",
        ),
        404 => (ErrorKind::Transient, "the agent writes them once the kubelet has registered the node"),
        408 | 409 | 429 | 500.. => (ErrorKind::Transient, "check the journals of the API server and etcd; the agent retries"),
        _ => {
            (ErrorKind::Permanent, "check the API server's journal; [report] node_conditions = false turns these conditions off")
        }
    };
    Error::new(kind, format!("the API answered {status} to {method}: {}", error_message(response)))
        .rule("Kubernetes: Node authorization and NodeRestriction, nodes/status")
        .remedy(remedy)
        .retry_after(response.retry_after())
        .with_status(status)
        .context(DOING)
}

#[cfg(test)]
#[path = "node_conditions_tests.rs"]
mod tests;
