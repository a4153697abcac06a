//! The list of deployments as it is held: each as its own text, which takes a sixth of the memory of its values, with what the
//! whole agent asks of all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use serde_json::Value;

use crate::budgets::{DEPLOYMENTS, DOCUMENT_BYTES, DOCUMENT_MEMORY, json};
use crate::clock::Timestamp;
use crate::digest;
use crate::error::{Error, Result};
use crate::gather::Gather;

/// A stack and one of its resources.
pub(super) type Resource = (String, String);

/// Ids of the newest entry of each resource; of several where they are of the same second, as nobody can say which is newer.
type Newest = BTreeMap<Resource, BTreeSet<String>>;

/// The list in force, in Heat's order.
#[derive(Default)]
pub struct Entries {
    texts: Vec<Arc<str>>,
    /// Of every entry that has one, in the order of the list.
    ids: Vec<Arc<str>>,
    /// How many have none.
    unidentified: usize,
    index: OnceLock<Index>,
}

struct Index {
    ids: Arc<BTreeSet<String>>,
    newest: Arc<Newest>,
    made: BTreeMap<u64, Timestamp>,
}

impl Entries {
    /// Takes a list over, entry by entry.
    ///
    /// # Errors
    /// If there are more than may be, or they are too long.
    pub fn new(list: Vec<Value>) -> Result<Self> {
        let over = |what: String| {
            Error::permanent(what)
                .rule("the agent limits the size of its input to bound its memory")
                .remedy("list fewer deployments for this server, or shorter ones")
        };
        if list.len() > DEPLOYMENTS {
            return Err(over(format!("the document lists {} deployments; at most {DEPLOYMENTS} are accepted", list.len())));
        }
        let (mut entries, mut bytes) = (Self::default(), 0);
        for entry in list {
            match entry.get("id").and_then(Value::as_str).filter(|id| !id.is_empty()) {
                Some(id) => entries.ids.push(id.into()),
                None => entries.unidentified += 1,
            }
            let text = entry.to_string();
            bytes += text.len();
            if bytes > DOCUMENT_BYTES {
                return Err(over(format!("the deployments take more than {DOCUMENT_BYTES} bytes")));
            }
            entries.texts.push(text.into());
        }
        Ok(entries)
    }

    /// What documents list below these keys.
    ///
    /// # Errors
    /// As [`Entries::new`].
    pub(crate) fn below<'a>(keys: &[String], documents: impl IntoIterator<Item = &'a Value>) -> Result<Self> {
        let lists = documents.into_iter().flat_map(|document| keys.iter().filter_map(|key| document.get(key)?.as_array()));
        Self::new(lists.flatten().cloned().collect())
    }

    /// This list behind another one; the texts of both are shared.
    pub(super) fn behind(&self, first: &Self) -> Self {
        let both = |first: &[Arc<str>], then: &[Arc<str>]| first.iter().chain(then).cloned().collect();
        Self {
            texts: both(&first.texts, &self.texts),
            ids: both(&first.ids, &self.ids),
            unidentified: first.unidentified + self.unidentified,
            index: OnceLock::new(),
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// How many have no id, so that they can be neither run nor signalled.
    #[must_use]
    pub fn unidentified(&self) -> usize {
        self.unidentified
    }

    /// One of them, read anew; nothing beyond the end.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<Value> {
        // It was written by us: it can be read.
        json::value(self.texts.get(at)?.as_bytes(), DOCUMENT_MEMORY).ok()
    }

    /// All of them, each read when its turn comes.
    pub fn values(&self) -> impl Iterator<Item = Value> {
        (0..self.len()).filter_map(|at| self.get(at))
    }

    /// The texts: compact JSON.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().map(|text| &**text)
    }

    /// Whether one has this id.
    #[must_use]
    pub fn lists(&self, id: &str) -> bool {
        self.ids.iter().any(|one| **one == *id)
    }

    /// The ids.
    #[must_use]
    pub fn ids(&self) -> Arc<BTreeSet<String>> {
        Arc::clone(&self.index().ids)
    }

    /// The id of the newest entry for each stack and resource.
    #[must_use]
    pub fn newest(&self) -> Arc<Newest> {
        Arc::clone(&self.index().newest)
    }

    /// When the newest entry of each resource was made, by the hash of stack and resource: names may be long, and are not needed to compare. Without
    /// those that do not say it.
    pub(super) fn made(&self) -> &BTreeMap<u64, Timestamp> {
        &self.index().made
    }

    /// The stack and resource of this hash.
    pub(super) fn resource(&self, hash: u64) -> Option<&Resource> {
        self.index().newest.keys().find(|resource| hash_of(resource) == hash)
    }

    /// Memory that they take.
    pub(super) fn weight(&self) -> usize {
        let texts: usize = self.texts.iter().chain(&self.ids).map(|text| text.len() + 40).sum();
        // The index has ids, stacks and resources once more.
        texts + self.len() * 400
    }

    fn index(&self) -> &Index {
        self.index.get_or_init(|| {
            let ids = self.ids.iter().map(ToString::to_string).gather();
            let mut newest: BTreeMap<Resource, (String, BTreeSet<String>)> = BTreeMap::new();
            for entry in self.values() {
                let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
                let (id, made) = (text("id"), text("creation_time"));
                if let Some(resource) = resource_of(&entry) {
                    let slot = newest.entry(resource).or_default();
                    if slot.0 < made {
                        *slot = (made, BTreeSet::from([id]));
                    } else if slot.0 == made {
                        slot.1.insert(id);
                    }
                }
            }
            let time = |(resource, (made, _)): (&Resource, &(String, BTreeSet<String>))| {
                Some((hash_of(resource), Timestamp::parse_rfc3339(made)?))
            };
            let made = newest.iter().filter_map(time).gather();
            let newest = newest.into_iter().map(|(resource, (_, ids))| (resource, ids)).gather();
            Index { ids: Arc::new(ids), newest: Arc::new(newest), made }
        })
    }
}

/// The same in each version of the agent: it is kept on disk.
fn hash_of(resource: &Resource) -> u64 {
    let digest = digest::of(resource);
    u64::from_str_radix(digest.get(..16).unwrap_or_default(), 16).unwrap_or_default()
}

fn resource_of(entry: &Value) -> Option<Resource> {
    Some((input(entry, "deploy_stack_id")?, input(entry, "deploy_resource_name")?))
}

/// The hash of an entry's stack and resource, where it says when it was made.
pub(super) fn dated_resource(entry: &Value) -> Option<u64> {
    Timestamp::parse_rfc3339(entry.get("creation_time").and_then(Value::as_str)?)?;
    resource_of(entry).map(|resource| hash_of(&resource))
}

/// The text of an input.
fn input(entry: &Value, name: &str) -> Option<String> {
    let inputs = entry.get("inputs").and_then(Value::as_array)?;
    let input = inputs.iter().find(|input| input.get("name").and_then(Value::as_str) == Some(name))?;
    input.get("value").and_then(Value::as_str).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_is_given_back_as_it_came() {
        let list = vec![json!({"id": "a", "x": [1, {"y": "é\u{1}"}]}), json!(7), json!({"id": ""}), json!({"id": "b"})];
        let entries = Entries::new(list.clone()).unwrap();
        assert_eq!(entries.values().collect::<Vec<_>>(), list);
        assert_eq!((entries.len(), entries.unidentified(), entries.get(4)), (4, 2, None));
        assert!(entries.lists("b") && !entries.lists("") && entries.ids().contains("a"));
    }

    #[test]
    fn more_than_may_be_is_refused_with_the_number() {
        let error = Entries::new(vec![json!(0); DEPLOYMENTS + 1]).err().unwrap();
        assert!(error.to_string().contains("lists 2501 deployments; at most 2500"), "{error}");
        // 4 bytes that are written as 18.
        let long = json!({"id": "a", "inputs": vec![1e15; DOCUMENT_BYTES / 18]});
        assert!(Entries::new(vec![long]).err().unwrap().to_string().contains("more than 3145728 bytes"));
        assert!(Entries::new(vec![json!({}); DEPLOYMENTS]).is_ok());
    }
}
