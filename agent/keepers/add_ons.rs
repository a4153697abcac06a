//! Applies the add-ons of the image through the cluster's API.
//!
//! In: an [`AddOn`], whose manifests are read of the image. Out: how many of its objects were made and changed. Masters may do so at the same
//! time: who comes second finds the object, and writes nothing. What a manifest does not say stays as others want it, and nothing is ever
//! removed.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use serde_json::Value;

use super::objects::{self, Api, Settled, error_message, until_deadline};
use crate::budgets::json;
use crate::converge::{Applied, Objects};
use crate::desired::{AddOn, Material, Object};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::files::Tree;
use crate::http::{Http, Request};
use crate::machine::add_ons::{Manifest, read};

/// A list of kinds is short; more is not read.
const ANSWER_LIMIT: usize = 1024 * 1024;

/// Kubernetes' own groups with a dot, without `.k8s.io` behind them, which groups of definitions may end with as well (Kubernetes API
/// reference, 1.9 to 1.37).
const OWN_GROUPS: [&str; 14] = [
    "admissionregistration",
    "apiextensions",
    "apiregistration",
    "authentication",
    "authorization",
    "certificates",
    "coordination",
    "discovery",
    "events",
    "networking",
    "node",
    "rbac.authorization",
    "scheduling",
    "storage",
];

impl Objects for Http {
    async fn ensure(&self, object: &Object, deadline: Duration) -> Result<bool> {
        objects::ensure(self, object, deadline).await
    }

    async fn apply(
        &self,
        add_on: &AddOn,
        root: &Tree,
        deadline: Duration,
        waits: &impl Fn(&Error, u32, Duration),
    ) -> Result<Applied> {
        apply(self, add_on, root, deadline, waits).await
    }
}

/// Makes sure that the API holds every object.
///
/// # Errors
/// Transient: the API was away, or did not have what an object needs, until the deadline. Else the first mistake of a manifest, or what the
/// API says of it.
async fn apply(
    http: &Http,
    add_on: &AddOn,
    root: &Tree,
    deadline: Duration,
    waits: &impl Fn(&Error, u32, Duration),
) -> Result<Applied> {
    let running = http.clock().start();
    let http = http.identified_by(add_on.identity.as_ref());
    let (mut kinds, mut applied) = (Kinds { http: &http, add_on, known: BTreeMap::new() }, Applied::default());
    for mut manifest in read(root, add_on)? {
        let left = deadline.saturating_sub(running.elapsed());
        // Moved: it is there once.
        let mut object = kinds.object(&manifest.name, Material::Text(std::mem::take(&mut manifest.body)));
        let attempt = async |limit| {
            kinds.place(&mut object, &manifest, limit).await?;
            Api::new(&http, &object)?.made_once(manifest.made_once).settle(limit).await
        };
        let settled = until_deadline(&http, left, attempt, waits).await.map_err(|error| {
            let is_of_rights = matches!(error.answered(), Some(401 | 403));
            let is_wrong = error.kind() == ErrorKind::Permanent && error.answered().is_some() && !is_of_rights;
            let remedy = format!("correct {} in the image, or use one made for this Kubernetes version", manifest.place);
            let error = if is_wrong { error.remedy(remedy) } else { error };
            error.context(format!("applying {}", manifest.place))
        })?;
        match settled {
            Settled::Made => applied.made += 1,
            Settled::Changed => applied.changed += 1,
            Settled::Unchanged => applied.unchanged += 1,
        }
    }
    Ok(applied)
}

/// The kinds of each version of an API group, as the API itself lists them.
struct Kinds<'a> {
    http: &'a Http,
    add_on: &'a AddOn,
    known: BTreeMap<String, Vec<Kind>>,
}

struct Kind {
    name: String,
    plural: String,
    is_namespaced: bool,
}

impl Kinds<'_> {
    /// An object, not placed yet.
    fn object(&self, name: &str, body: Material) -> Object {
        Object {
            name: name.to_owned(),
            server: self.add_on.server.clone(),
            collection: String::new(),
            object: name.to_owned(),
            body,
            identity: self.add_on.identity.clone(),
            before: None,
            needs: std::collections::BTreeSet::new(),
        }
    }

    /// Where the object of a manifest lies, and how it is named there.
    async fn place(&mut self, object: &mut Object, manifest: &Manifest, limit: Duration) -> Result<()> {
        let Manifest { api_version, kind, name, .. } = manifest;
        let base = if api_version.contains('/') { format!("/apis/{api_version}") } else { format!("/api/{api_version}") };
        let found = self.list(&base, api_version, limit).await?.iter().find(|one| one.name == *kind);
        let Some(found) = found else {
            // A definition that was made a moment ago is served soon.
            self.known.remove(api_version);
            return Err(unknown(&format!("the API has no kind {kind} in {api_version}"), api_version));
        };
        let word = kind.to_lowercase();
        (object.name, object.collection) = if found.is_namespaced {
            let namespace = manifest.namespace_or_default();
            (format!("{word} {namespace}/{name}"), format!("{base}/namespaces/{namespace}/{}", found.plural))
        } else {
            (format!("{word} {name}"), format!("{base}/{}", found.plural))
        };
        Ok(())
    }

    async fn list(&mut self, base: &str, api_version: &str, limit: Duration) -> Result<&[Kind]> {
        match self.known.entry(api_version.to_owned()) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => {
                let doing = || format!("asking the cluster's API for the kinds of {api_version}");
                let url = format!("{}{base}", self.add_on.server);
                let mut request = Request::new("GET", &url, limit).header("accept", "application/json");
                request.body_limit = ANSWER_LIMIT;
                let answer = self.http.request(request).await.context(doing)?;
                match answer.status {
                    200 => {}
                    404 => return Err(unknown(&format!("the API has no {api_version}"), api_version)),
                    status => {
                        let message = error_message(&answer);
                        let kind = if matches!(status, 401 | 403) { ErrorKind::Permanent } else { ErrorKind::Transient };
                        return Err(Error::new(kind, format!("the API answered {status}: {message}"))
                            .retry_after(answer.retry_after())
                            .with_status(status)
                            .remedy("check the journals of the API server and etcd")
                            .context(doing()));
                    }
                }
                let body = json::answer(&answer.body);
                let body = body.map_err(|_| Error::transient("the answer is not JSON").context(doing()))?;
                let resources = body.get("resources").and_then(Value::as_array).into_iter().flatten();
                Ok(place.insert(resources.filter_map(kind_of).collect()))
            }
        }
    }
}

/// A resource of a list, unless it is a part of another one (`deployments/scale`).
fn kind_of(resource: &Value) -> Option<Kind> {
    let text = |key: &str| resource.get(key).and_then(Value::as_str).map(str::to_owned);
    let plural = text("name").filter(|name| !name.contains('/'))?;
    let is_namespaced = resource.get("namespaced").and_then(Value::as_bool)?;
    Some(Kind { name: text("kind")?, plural, is_namespaced })
}

/// What Kubernetes itself does not have it will not get; anything else may be what an add-on is about to define.
fn unknown(cause: &str, api_version: &str) -> Error {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let is_own = !group.contains('.') || group.strip_suffix(".k8s.io").is_some_and(|group| OWN_GROUPS.contains(&group));
    let kind = if is_own { ErrorKind::Permanent } else { ErrorKind::Transient };
    let remedy =
        "correct the manifest in the image, use one made for this Kubernetes version, or apply the add-on that defines it first";
    Error::new(kind, cause).remedy(remedy)
}

#[cfg(test)]
#[path = "add_ons_tests.rs"]
mod tests;
