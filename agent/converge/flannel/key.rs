//! The description of flannel's network in etcd: masters write it by compare-and-set, the others wait until it is there
//! (seed-systems.md 8a).
//!
//! Never: another range while nodes have leases of the old one. They keep their subnets until their leases end, a day later, and
//! flanneld takes none that does not fit.

use serde_json::{Map, Value, json};

use crate::budgets::json;
use crate::converge::etcd::{Etcd, KeyValue};
use crate::desired::FlannelStore;
use crate::error::remedy::Remedy;
use crate::error::{Error, ErrorKind, Result};
use crate::network::flannel::{Api, Version, api, check};
use crate::network::routes;
use crate::report::text::{escaped, shortened};

/// The most that is quoted of what others wrote.
const QUOTED: usize = 200;
/// How many leases are named.
const NAMED: usize = 3;

/// Where the description is.
pub(super) fn path(store: &FlannelStore) -> String {
    format!("{}/config", store.prefix.trim_end_matches('/'))
}

/// Where the leases are.
pub(super) fn directory(store: &FlannelStore) -> String {
    format!("{}/subnets", store.prefix.trim_end_matches('/'))
}

/// One look, by every API that the installed flanneld may read; by both where its release is not known.
pub(super) async fn settle(etcd: &Etcd, store: &FlannelStore, flanneld: Option<Version>) -> Result<bool> {
    if store.writes {
        checked(store, flanneld)?;
    }
    let wanted = parse(&store.description).ok_or_else(|| {
        Error::permanent("the configuration is not a JSON object").context("reading the network from the parameters")
    })?;
    let Some(version) = flanneld else {
        let mut served = Vec::new();
        for api in [Api::V2, Api::V3] {
            if etcd.serves(api).await? {
                served.push(api);
            }
        }
        // Whoever waits is content with one of them: the master has an etcd, and perhaps a flanneld, of its own.
        let mut last = Err(Error::permanent(format!("etcd {} serves neither the v2 nor the v3 API", store.etcd.endpoint)));
        let mut wrote = false;
        for api in served {
            last = settle_by(etcd, store, api, &wanted).await;
            match (&last, store.writes) {
                (Ok(written), true) => wrote |= written,
                (Ok(_), false) => break,
                (Err(_), true) => return last,
                (Err(_), false) => {}
            }
        }
        return last.map(|_| wrote);
    };
    settle_by(etcd, store, api(version), &wanted).await
}

/// What the step would refuse for good, before anything of the node is changed. An etcd that cannot be asked (at a first bring-up none
/// runs yet) refuses nothing.
pub(super) async fn refuse(etcd: &Etcd, store: &FlannelStore, flanneld: Option<Version>) -> Result<()> {
    checked(store, flanneld)?;
    let Some(wanted) = parse(&store.description) else { return Ok(()) };
    let apis = flanneld.map_or_else(|| vec![Api::V2, Api::V3], |version| vec![api(version)]);
    for api in apis {
        let Ok(Some(entry)) = etcd.get(api, &path(store)).await else { continue };
        let there = parse(&entry.value);
        if let Err(error) = keep_leases(etcd, store, api, there.as_ref(), &wanted).await
            && error.kind() == ErrorKind::Refused
        {
            return Err(error);
        }
    }
    Ok(())
}

/// Whether the flanneld that is installed takes the description.
fn checked(store: &FlannelStore, flanneld: Option<Version>) -> Result<()> {
    check(&store.description, flanneld).map_err(|wrong| {
        Error::refused(format!("{} flannel's network configuration {}", wrong.field, wrong.problem))
            .rule(wrong.rule)
            .remedy(Remedy::stack_update("correct flannel's network parameters (FLANNEL_*) and update the stack"))
    })
}

async fn settle_by(etcd: &Etcd, store: &FlannelStore, api: Api, wanted: &Map<String, Value>) -> Result<bool> {
    let key = path(store);
    let found = etcd.get(api, &key).await?;
    if let Some(entry) = &found {
        let there = parse(&entry.value);
        if there.as_ref().is_some_and(|there| if store.writes { there == wanted } else { fits(there, wanted) }) {
            return Ok(false);
        }
        if !store.writes {
            let cause =
                format!("{key} is {}, but this node's parameters say {}", quoted(&entry.value), quoted(&store.description));
            return Err(Error::transient(cause)
                .rule("every node of a cluster has the same pod network and the same backend")
                .remedy("set the same FLANNEL_* parameters on all nodes of the cluster; update the masters first"));
        }
        keep_leases(etcd, store, api, there.as_ref(), wanted).await?;
    } else if !store.writes {
        return Err(Error::transient(format!("etcd has no {key}, which the first master writes"))
            .remedy("check `heat-node-agent explain` on a master, and that this node uses the right etcd (ETCD_SERVER_IP)"));
    }
    if etcd.put(api, &key, store.description.trim(), found.as_ref()).await? {
        Ok(true)
    } else {
        Err(Error::transient(format!("another master wrote {key} at the same time")).remedy("the agent checks again"))
    }
}

/// Refuses another range while nodes live by the old one.
async fn keep_leases(
    etcd: &Etcd,
    store: &FlannelStore,
    api: Api,
    there: Option<&Map<String, Value>>,
    wanted: &Map<String, Value>,
) -> Result<()> {
    if there.map(range) == Some(range(wanted)) {
        return Ok(());
    }
    let leases = etcd.list(api, &directory(store)).await?;
    if leases.is_empty() {
        return Ok(());
    }
    let old = there.map_or_else(|| "something that is not a JSON object".to_owned(), words);
    let prefix = directory(store);
    let remove = match api {
        Api::V2 => format!("etcdctl rm --recursive {prefix}"),
        Api::V3 => format!("ETCDCTL_API=3 etcdctl del --prefix {prefix}/"),
    };
    let more = leases.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Err(Error::refused(format!(
        "the pod network cannot change from {old} to {} while nodes have subnets in it: {}{more}",
        words(wanted),
        leases.iter().take(NAMED).map(lease).collect::<Vec<_>>().join(", ")
    ))
    .rule("nodes keep the subnets that they have leased, and flanneld accepts none from another range")
    .remedy(Remedy::stack_update(format!(
        "restore the old range in the parameters; or drain the cluster, stop flanneld and the container runtime on every node, \
         remove the leases ({remove}), and update the stack"
    ))))
}

fn lease(entry: &KeyValue) -> String {
    match routes::lease(&entry.key, &entry.value) {
        Some(peer) => format!("{} of node {}", peer.subnet, peer.node),
        None => shortened(&escaped(entry.key.rsplit('/').next().unwrap_or_default()), 50),
    }
}

fn quoted(text: &str) -> String {
    let compact = json::answer(text.as_bytes()).map_or_else(|_| text.trim().to_owned(), |value| value.to_string());
    shortened(&escaped(&compact), QUOTED)
}

/// A description as flannel takes it: letter case of names plays no part, what is not said has its default, and without a
/// backend it is udp (seed-systems.md 8a).
fn parse(text: &str) -> Option<Map<String, Value>> {
    let Some(Value::Object(read)) = json::small(text.as_bytes()) else { return None };
    let mut all = lower(read);
    let mut backend = match all.remove("backend") {
        Some(Value::Object(backend)) => lower(backend),
        _ => Map::new(),
    };
    backend.entry("type").or_insert_with(|| json!("udp"));
    all.insert("backend".to_owned(), Value::Object(backend));
    let is_long = || all.get("network").and_then(Value::as_str).is_some_and(|net| net.ends_with("/24"));
    if !all.contains_key("subnetlen") && !is_long() {
        all.insert("subnetlen".to_owned(), json!(24));
    }
    for (name, default) in [("enableipv4", true), ("enableipv6", false), ("enablenftables", false)] {
        if all.get(name) == Some(&Value::Bool(default)) {
            all.remove(name);
        }
    }
    Some(all)
}

fn lower(map: Map<String, Value>) -> Map<String, Value> {
    map.into_iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.to_ascii_lowercase(), value)).collect()
}

/// Everything but the backend and what goes with it: what subnets are dealt out by.
fn range(description: &Map<String, Value>) -> Map<String, Value> {
    let of_range = |name: &str| !matches!(name, "backend" | "enablenftables");
    description.iter().filter(|(name, _)| of_range(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn words(description: &Map<String, Value>) -> String {
    let shown = |name: &str| description.get(name).map(|value| escaped(value.as_str().unwrap_or(&value.to_string())));
    let mut text = shown("network").unwrap_or_else(|| "no network".to_owned());
    for (name, label) in [("subnetlen", " in subnets of /"), ("subnetmin", " from "), ("subnetmax", " to ")] {
        if let Some(value) = shown(name) {
            text.push_str(label);
            text.push_str(&value);
        }
    }
    shortened(&text, QUOTED)
}

/// Whether a node that does not write can live by it: the same network and the same backend.
fn fits(there: &Map<String, Value>, wanted: &Map<String, Value>) -> bool {
    let kind = |of: &Map<String, Value>| of.get("backend").and_then(|backend| backend.get("type")).cloned();
    there.get("network") == wanted.get("network") && kind(there) == kind(wanted)
}
