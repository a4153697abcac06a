//! What runs in the cluster, and what this node has. Reads, and asks; changes nothing.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::ready;
use serde_json::Value;

use crate::budgets::yaml::{self, Content, YamlNode};
use crate::budgets::{DOCUMENT_BYTES, OBJECT_BYTES, OBJECT_MEMORY, json};
use crate::clock::{Clock, patience};
use crate::commands::plan::ask;
use crate::concurrent::all;
use crate::converge::etcd::Etcd;
use crate::desired::{Desired, EtcdMember, VolumeRole};
use crate::error::{Error, Result};
use crate::files::{FileKind, Tree};
use crate::gather::Gather;
use crate::http::{Http, Request, split};
use crate::keepers::etcd_snapshots::kept;
use crate::keepers::objects::error_message;
use crate::kubernetes::checks::installed::{Program, ProgramVerdict};
use crate::kubernetes::checks::upgrade::{
    ApiAccess, ApiServer, EtcdMemberState, InstalledRelease, Kubelet, LatestSnapshot, ManifestObject, OtherPrograms, Release,
    api_access,
};
use crate::kubernetes::versions::Component;
use crate::kubernetes::{self, MASTER_LABELS, MachineFacts, NodeSpec, Role};
use crate::machine::add_ons::PLACE;
use crate::machine::installed::{InstalledPrograms, UnitFiles};
use crate::openstack::aws_signature::encode;
use crate::process::runtime;
use crate::report::text::escaped;
use crate::settings::Settings;
use crate::systemd::Systemd;

/// An API that does not answer one request for so long is away.
const REQUEST_LIMIT: Duration = patience(Duration::from_secs(10));
/// Nodes in one answer of the API: each takes some ten KiB, with its images.
const PAGE: usize = 50;
/// The most nodes that Kubernetes supports are 5000.
const PAGES: usize = 100;
const ETCD: &str = "the node's etcd";

/// The node, and where it is looked at.
pub(super) struct Node<'a> {
    pub(super) root: &'a Tree,
    pub(super) settings: &'a Settings,
    pub(super) access: &'a ApiAccess,
    /// As it is.
    pub(super) spec: &'a NodeSpec,
    /// As it is to be.
    pub(super) future: Option<&'a NodeSpec>,
}

/// What was found.
pub(super) struct Measured {
    pub(super) servers: Vec<ApiServer>,
    pub(super) kubelets: std::result::Result<Vec<Kubelet>, String>,
    pub(super) installed: Vec<InstalledRelease>,
    /// The programs other than Kubernetes', where it is known how they would be run.
    pub(super) others: Option<OtherPrograms>,
    pub(super) objects: Vec<ManifestObject>,
    pub(super) unreadable: Vec<String>,
    /// What the installed etcd says.
    pub(super) etcd: std::result::Result<String, String>,
    pub(super) members: std::result::Result<Vec<EtcdMemberState>, String>,
    pub(super) snapshot: LatestSnapshot,
}

/// Looks at everything.
pub(super) fn measure(node: &Node<'_>, facts: &MachineFacts) -> Result<Measured> {
    let desired = kubernetes::render(node.spec, facts)?;
    let next = node.future.map(|future| kubernetes::render(future, facts)).transpose()?;
    let clock = Clock::system();
    let http = Http::new(node.settings.tls.clone(), Arc::new(Tree::open(Path::new("/"))?), clock.clone());
    let (objects, unreadable) = manifests(node);
    runtime()?.block_on(async {
        let members = members(&http, desired.etcd.as_ref()).await;
        let api = http.identified_by(node.access.identity.as_ref());
        let servers = servers(&api, node, members.as_ref().ok()).await;
        let programs = programs(node, next.as_ref().unwrap_or(&desired)).await?;
        Ok(Measured {
            servers,
            kubelets: kubelets(&api, node).await.map_err(|error| error.to_string()),
            snapshot: snapshot(node.root, &desired, &clock),
            members: members.map(|(states, _)| states),
            installed: programs.installed,
            others: node.future.map(|_| programs.others),
            etcd: programs.etcd,
            objects,
            unreadable,
        })
    })
}

/// An object that the API answers with; of an answer of 403 and the like its message.
async fn object(api: &Http, url: &str) -> Result<Value> {
    let mut request = Request::new("GET", url, REQUEST_LIMIT).header("accept", "application/json");
    request.body_limit = OBJECT_BYTES;
    let answer = api.request(request).await?;
    if answer.status != 200 {
        return Err(Error::permanent(format!("the API answered {} {}", answer.status, error_message(&answer))));
    }
    json::value(&answer.body, OBJECT_MEMORY).map_err(|_| Error::permanent("the API's answer cannot be read as JSON"))
}

/// The API servers of the masters that are known: this one's, those that the parameters name, those with a member of etcd.
async fn servers(api: &Http, node: &Node<'_>, members: Option<&(Vec<EtcdMemberState>, BTreeSet<String>)>) -> Vec<ApiServer> {
    let own = node.access.address.map(kubernetes::host_of);
    let with_etcd = members.map(|(_, hosts)| hosts.clone()).unwrap_or_default();
    let others: BTreeSet<String> =
        node.access.other_masters().chain(with_etcd).filter(|host| Some(host) != own.as_ref()).gather();
    let here = if node.spec.role == Role::Master { "this master".to_owned() } else { node.access.server.clone() };
    let places = std::iter::once((here, node.access.server.clone()));
    let places = places.chain(others.into_iter().map(|host| (host.clone(), node.access.server_at(&host))));
    all(places.map(async |(name, server)| {
        let said = object(api, &format!("{server}/version")).await.map_err(|error| error.to_string());
        let release = said.and_then(|said| {
            let version = said.get("gitVersion").and_then(Value::as_str).unwrap_or_default();
            Release::of(version).ok_or_else(|| format!("its /version names no release: \"{}\"", escaped(version)))
        });
        ApiServer { name, release }
    }))
    .await
}

/// The kubelets of all nodes, or on a worker this one's.
async fn kubelets(api: &Http, node: &Node<'_>) -> Result<Vec<Kubelet>> {
    let kubelet = |object: &Value| {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str);
        let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
        let name = text("/metadata/name")?;
        let is_own = name == node.access.node && node.spec.role == Role::Master;
        Some(Kubelet {
            node: name.to_owned(),
            release: text("/status/nodeInfo/kubeletVersion").and_then(Release::of),
            is_master: is_own || labels.is_some_and(|labels| MASTER_LABELS.iter().any(|label| labels.contains_key(*label))),
        })
    };
    let nodes = format!("{}/api/v1/nodes", node.access.server);
    if node.spec.role == Role::Minion {
        let own = object(api, &format!("{nodes}/{}", node.access.node)).await?;
        return Ok(kubelet(&own).into_iter().collect());
    }
    let (mut found, mut next) = (Vec::new(), String::new());
    for _ in 0..PAGES {
        let page = object(api, &format!("{nodes}?limit={PAGE}{next}")).await?;
        found.extend(page.get("items").and_then(Value::as_array).into_iter().flatten().filter_map(kubelet));
        match page.pointer("/metadata/continue").and_then(Value::as_str).filter(|token| !token.is_empty()) {
            Some(token) => next = format!("&continue={}", encode(token)),
            None => return Ok(found),
        }
    }
    Err(Error::permanent(format!("there are more than {} nodes", PAGE * PAGES)))
}

/// The members of etcd as each says, and the hosts at which they serve clients.
async fn members(http: &Http, own: Option<&EtcdMember>) -> std::result::Result<(Vec<EtcdMemberState>, BTreeSet<String>), String> {
    let Some(own) = own else { return Err("this node has none".to_owned()) };
    let etcd = Etcd::new(http, &own.access, ETCD);
    let (_, listed) = Etcd::new(http, &own.as_peer(), ETCD).listed().await.map_err(|error| error.to_string())?;
    let hosts = listed.iter().filter(|member| !member.peers.contains(&own.peer)).flat_map(|member| &member.clients);
    let hosts = hosts.filter_map(|url| {
        let authority = split(url)?.authority;
        Some(authority.rsplit_once(':').map_or(authority, |(host, _)| host).to_owned())
    });
    let hosts = hosts.gather();
    let states = all(listed.iter().map(async |member| {
        let is_own = member.peers.contains(&own.peer);
        let url = if is_own { Some(&own.access.endpoint) } else { member.clients.first() };
        let (healthy, release) = match url {
            Some(url) => (etcd.is_healthy(url).await, etcd.release_at(url).await),
            None => (false, None),
        };
        let started = !member.name.is_empty();
        let name = if started { &member.name } else { member.peers.first().unwrap_or(&member.name) };
        EtcdMemberState { name: name.clone(), release, healthy, started }
    }))
    .await;
    Ok((states, hosts))
}

/// What the programs of this host say.
struct Programs {
    installed: Vec<InstalledRelease>,
    others: OtherPrograms,
    etcd: std::result::Result<String, String>,
}

async fn programs(node: &Node<'_>, desired: &Desired) -> Result<Programs> {
    let systemd = Systemd::connect().await?;
    let said: RefCell<Vec<(&'static str, std::result::Result<String, String>)>> = RefCell::default();
    let machine = InstalledPrograms {
        root: node.root,
        units: UnitFiles::Running(&systemd),
        spec: node.future.unwrap_or(node.spec),
        desired,
    };
    let verdicts = machine
        .judge(
            &|name, path| {
                let answer = ask(&path);
                let text = answer.as_ref().map_err(ToString::to_string);
                said.borrow_mut().push((name, text.map(|text| text.lines().next().unwrap_or_default().trim().to_owned())));
                Box::pin(ready(answer))
            },
            None,
        )
        .await;
    let is_of_kubernetes = |name: &str| Component::ALL.iter().any(|component| component.as_str() == name);
    let mut others = OtherPrograms::default();
    let is_other = |program: Option<Program>, verdict: &ProgramVerdict| {
        verdict.helper.is_some() || program.is_none_or(|one| !is_of_kubernetes(one.name))
    };
    for (_, verdict) in verdicts.refusals.iter().filter(|(program, verdict)| is_other(*program, verdict)) {
        others.refused.push((verdict.refused.join("; "), verdict.remedy.clone()));
    }
    for (program, cause) in verdicts.missing.iter().filter(|(program, _)| !is_of_kubernetes(program.name)) {
        let remedy = format!("install {} in the image, or correct the unit", program.name);
        others.refused.push((format!("{} is not installed: {cause}", program.name), remedy));
    }
    for (_, verdict) in verdicts.warnings.into_iter().filter(|(program, _)| !is_of_kubernetes(program.name)) {
        let all = if verdict.is_unknown { &mut others.unknown } else { &mut others.warnings };
        all.push((verdict.warning.unwrap_or_default(), verdict.remedy));
    }
    let mut said = said.into_inner();
    let mut answer = |name: &str| {
        let at = said.iter().position(|(of, _)| *of == name);
        at.map_or_else(|| Err("no unit of this host runs it from a file".to_owned()), |at| said.swap_remove(at).1)
    };
    let etcd = answer("etcd");
    let installed = Component::ALL.into_iter().map(|component| {
        let release = answer(component.as_str())
            .and_then(|text| Release::of(&text).ok_or_else(|| format!("it names no release: \"{}\"", escaped(&text))));
        InstalledRelease { component, release }
    });
    Ok(Programs { installed: installed.collect(), others, etcd })
}

/// The newest snapshot that the agent keeps here.
fn snapshot(root: &Tree, desired: &Desired, clock: &Clock) -> LatestSnapshot {
    if desired.etcd.as_ref().is_some_and(|own| own.keeps_v2) {
        return LatestSnapshot::OfV2;
    }
    if !desired.volumes.iter().any(|volume| volume.role == VolumeRole::Etcd) {
        return LatestSnapshot::NoVolume;
    }
    let now = clock.now();
    match kept(root, now) {
        // One of a time to come is of a clock that was wrong.
        Ok(all) => all
            .last()
            .filter(|newest| newest.taken <= now)
            .map_or(LatestSnapshot::None, |newest| LatestSnapshot::Taken(now.since(newest.taken))),
        Err(error) => LatestSnapshot::Unreadable(error.to_string()),
    }
}

/// The objects of static pods and of the add-ons that the parameters ask for, and why some could not be read.
fn manifests(node: &Node<'_>) -> (Vec<ManifestObject>, Vec<String>) {
    let (mut objects, mut unreadable) = (Vec::new(), Vec::new());
    let mut read = |folder: &str, is_static: bool| {
        let names = node.root.list(Path::new(folder)).unwrap_or_else(|error| {
            unreadable.push(error.to_string());
            Vec::new()
        });
        // As the kubelet, and the agent with add-ons, choose them.
        let names = names.iter().filter_map(|name| name.to_str());
        for name in names.filter(|name| !name.starts_with('.') && (is_static || name.strip_suffix(".yaml").is_some())) {
            let file = format!("{folder}/{name}");
            match documents(node.root, &file) {
                Ok(documents) => documents.iter().for_each(|one| take(one, &file, is_static, ("", ""), &mut objects)),
                Err(error) => unreadable.push(format!("{file}: {error}")),
            }
        }
    };
    // What the deployment that is asked for adds counts as well as what is in place.
    let next = node.future.and_then(api_access);
    let both = || std::iter::once(node.access).chain(&next);
    for folder in both().map(|access| access.manifests.as_str()).collect::<BTreeSet<_>>() {
        read(folder, true);
    }
    for add_on in both().flat_map(|access| &access.add_ons).collect::<BTreeSet<_>>() {
        read(&format!("{PLACE}/{add_on}"), false);
    }
    (objects, unreadable)
}

fn documents(root: &Tree, file: &str) -> Result<Vec<YamlNode>> {
    let path = Path::new(file);
    if !root.facts_followed(path)?.is_some_and(|facts| facts.kind == FileKind::File) {
        return Ok(Vec::new());
    }
    let text = root.read(path, DOCUMENT_BYTES as u64)?.unwrap_or_default();
    let text = String::from_utf8(text).map_err(|_| Error::permanent("it is not UTF-8"))?;
    yaml::read_all(&text).map_err(Error::from)
}

/// One document: an object, or a list of them. Items of a list of one kind (`PodList`) may leave out what the list says for all of them:
/// `inherited`, its version and kind.
fn take(node: &YamlNode, file: &str, is_static: bool, inherited: (&str, &str), objects: &mut Vec<ManifestObject>) {
    let text = |key: &str| node.get(key).and_then(YamlNode::text).filter(|text| !text.is_empty());
    let (version, kind) = (text("apiVersion").unwrap_or(inherited.0), text("kind").unwrap_or(inherited.1));
    if let (Some(Content::List(items)), Some(of)) = (node.get("items").map(|items| &items.content), kind.strip_suffix("List")) {
        let inherited = if of.is_empty() { ("", "") } else { (version, of) };
        return items.iter().for_each(|item| take(item, file, is_static, inherited, objects));
    }
    if kind.is_empty() {
        return;
    }
    let annotations = node.get("metadata").and_then(|metadata| metadata.get("annotations")).and_then(YamlNode::members);
    let annotations = annotations.into_iter().flatten().filter(|_| is_static).map(|one| one.name.clone()).collect();
    objects.push(ManifestObject {
        place: format!("{file}, line {}", node.line),
        api_version: version.to_owned(),
        kind: kind.to_owned(),
        annotations,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_found_in_lists_and_in_several_documents_and_annotations_in_static_pods_alone() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  annotations: {x.example.org/y: '1'}\n---\n\
                    apiVersion: v1\nkind: List\nitems:\n- apiVersion: policy/v1beta1\n  kind: PodDisruptionBudget\n---\n# nothing\n---\n\
                    apiVersion: policy/v1beta1\nkind: PodDisruptionBudgetList\nitems:\n- metadata: {name: x}\n";
        let objects = |is_static| {
            let mut objects = Vec::new();
            for node in yaml::read_all(text).unwrap() {
                take(&node, "f", is_static, ("", ""), &mut objects);
            }
            objects
        };
        let shown = |objects: &[ManifestObject]| {
            objects
                .iter()
                .map(|one| format!("{} {} {} {:?}", one.place, one.api_version, one.kind, one.annotations))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            shown(&objects(true)),
            [
                "f, line 1 v1 Pod [\"x.example.org/y\"]",
                "f, line 10 policy/v1beta1 PodDisruptionBudget []",
                "f, line 18 policy/v1beta1 PodDisruptionBudget []",
            ]
        );
        assert_eq!(shown(&objects(false))[0], "f, line 1 v1 Pod []");
    }
}
