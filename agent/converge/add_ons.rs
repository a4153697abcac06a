//! Whether what an add-on has the cluster run does run: its workloads by their own status, and what the first pod that does not run waits
//! for.

use serde_json::Value;

use super::Prober;
use crate::desired::AddOn;
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::machine::add_ons::{Manifest, read};
use crate::report::text::{escaped, shortened};

/// The most that is quoted of what the API says. A container runtime names the image three times before it says why it cannot be pulled.
const QUOTED: usize = 600;
/// Pods of one workload that are looked at.
const PODS: usize = 10;
/// A pod that has not got far yet; why, only its events say.
const ON_ITS_WAY: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// Asks the API for each workload of an add-on.
///
/// # Errors
/// In words: the first workload that is not as it should be, with the reason of a pod of it.
pub(super) async fn ready(root: &Tree, prober: &impl Prober, add_on: &AddOn) -> Result<()> {
    // Their texts are not held while the API is asked.
    let workload = |manifest: Manifest| Some((plural(&manifest)?, Manifest { body: String::new(), ..manifest }));
    let workloads: Vec<_> = read(root, add_on)?.into_iter().filter_map(workload).collect();
    for (plural, manifest) in workloads {
        let namespace = manifest.namespace_or_default();
        let (kind, name) = (manifest.kind.to_lowercase(), &manifest.name);
        let place = format!("{}/apis/{}/namespaces/{namespace}", add_on.server, manifest.api_version);
        let object = match prober.get_json(&format!("{place}/{plural}/{name}"), add_on.identity.as_ref()).await {
            Err(error) if error.answered() == Some(404) => {
                return Err(Error::transient(format!("{kind} {namespace}/{name} does not exist")));
            }
            object => object?,
        };
        let Some(lack) = lack(&manifest.kind, &object) else { continue };
        let pods = format!("{}/api/v1/namespaces/{namespace}/pods?limit={PODS}{}", add_on.server, selector(&object));
        let pods = prober.get_json(&pods, add_on.identity.as_ref()).await?;
        let why = why(&object, &pods).map(|why| format!(": {why}")).unwrap_or_default();
        return Err(Error::transient(format!("{kind} {namespace}/{name}: {lack}{why}")));
    }
    Ok(())
}

/// Where objects of its kind lie, if it has pods.
fn plural(manifest: &Manifest) -> Option<&'static str> {
    match (manifest.api_version.as_str(), manifest.kind.as_str()) {
        ("apps/v1", "Deployment") => Some("deployments"),
        ("apps/v1", "DaemonSet") => Some("daemonsets"),
        ("apps/v1", "StatefulSet") => Some("statefulsets"),
        ("batch/v1", "Job") => Some("jobs"),
        _ => None,
    }
}

fn text<'v>(value: &'v Value, pointer: &str) -> Option<&'v str> {
    value.pointer(pointer)?.as_str().filter(|text| !text.is_empty())
}

fn items<'v>(value: &'v Value, pointer: &str) -> impl Iterator<Item = &'v Value> {
    value.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

/// A condition that is True.
fn condition<'v>(object: &'v Value, kind: &str) -> Option<&'v Value> {
    items(object, "/status/conditions").find(|one| text(one, "/type") == Some(kind) && text(one, "/status") == Some("True"))
}

/// What a workload lacks; nothing where it is as it should be.
fn lack(kind: &str, object: &Value) -> Option<String> {
    let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_u64);
    let status = |name: &str| number(&format!("/status/{name}")).unwrap_or_default();
    if kind == "Job" {
        if condition(object, "Complete").is_some() {
            return None;
        }
        let failed = condition(object, "Failed");
        let message = failed.and_then(|failed| text(failed, "/message")).unwrap_or("it failed");
        return Some(if failed.is_some() { quoted(message) } else { "it has not completed".to_owned() });
    }
    // Counted for another form of it.
    if status("observedGeneration") < number("/metadata/generation").unwrap_or_default() {
        return Some("its controller has not looked at it yet: check the controller manager".to_owned());
    }
    let (wanted, updated, available) = match kind {
        "DaemonSet" => (status("desiredNumberScheduled"), status("updatedNumberScheduled"), status("numberAvailable")),
        "StatefulSet" => (number("/spec/replicas").unwrap_or(1), status("updatedReplicas"), status("readyReplicas")),
        _ => (number("/spec/replicas").unwrap_or(1), status("updatedReplicas"), status("availableReplicas")),
    };
    // Of an update, those of the form before may still be available.
    let good = updated.min(available);
    (good < wanted).then(|| format!("{good} of {wanted} pods are available"))
}

/// The part of a query that selects the pods of a workload.
fn selector(object: &Value) -> String {
    let labels = object.pointer("/spec/selector/matchLabels").and_then(Value::as_object).into_iter().flatten();
    let labels: Vec<String> = labels.filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?))).collect();
    // All that labels consist of may stand in a query as it is (RFC 3986 3.4).
    if labels.is_empty() { String::new() } else { format!("&labelSelector={}", labels.join(",")) }
}

/// What keeps a workload's pods from running, in the words of the one that says most.
fn why(object: &Value, pods: &Value) -> Option<String> {
    let of_pods = items(pods, "/items").filter_map(of_pod).max_by_key(|(weight, _)| *weight).map(|(_, why)| why);
    let failure = || {
        let message = text(condition(object, "ReplicaFailure")?, "/message")?;
        Some(format!("its pods cannot be made: {}", quoted(message)))
    };
    of_pods.or_else(failure)
}

/// Why a pod does not run, and how much that says; nothing of one that does.
fn of_pod(pod: &Value) -> Option<(u8, String)> {
    if condition(pod, "Ready").is_some() || text(pod, "/status/phase") == Some("Succeeded") {
        return None;
    }
    let name = text(pod, "/metadata/name").unwrap_or_default();
    let containers = || items(pod, "/status/initContainerStatuses").chain(items(pod, "/status/containerStatuses"));
    let with = |reason: &str, message: Option<&str>| {
        message.map_or_else(|| reason.to_owned(), |message| format!("{reason}: {}", quoted(message)))
    };
    // A container that cannot run says why (ImagePullBackOff, CrashLoopBackOff, CreateContainerConfigError).
    let mut waiting = containers().filter_map(|one| Some((text(one, "/state/waiting/reason")?, one)));
    if let Some((reason, one)) = waiting.find(|(reason, _)| !ON_ITS_WAY.contains(reason)) {
        return Some((3, format!("pod {name}: {}", with(reason, text(one, "/state/waiting/message")))));
    }
    let scheduled = items(pod, "/status/conditions").find(|one| text(one, "/type") == Some("PodScheduled"));
    if let Some(one) = scheduled.filter(|one| text(one, "/status") == Some("False")) {
        return Some((
            2,
            format!("pod {name} is Pending: {}", with(text(one, "/reason").unwrap_or("not scheduled"), text(one, "/message"))),
        ));
    }
    let on = text(pod, "/spec/nodeName").map(|node| format!(" on {node}")).unwrap_or_default();
    let state = match text(pod, "/status/phase") {
        Some("Pending") => "its containers are being made; a node makes none without a pod network or its sandbox image",
        Some("Running") => "it runs and is not ready",
        Some(other) => other,
        None => "no node has taken it yet",
    };
    Some((1, format!("pod {name}{on}: {state}")))
}

fn quoted(text: &str) -> String {
    escaped(&shortened(text.lines().next().unwrap_or_default(), QUOTED))
}

#[cfg(test)]
#[path = "add_ons_tests.rs"]
mod tests;
