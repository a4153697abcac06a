//! What all sources say together.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::document::digest_of;
use super::entries::Entries;
use super::node_file::{NodeFile, is_of_file};
use super::own_credentials::OwnCredentials;
use crate::clock::{Moment, Timestamp};
use crate::freshness::{Freshness, ListAnswer};
use crate::metadata::Deployment;
use crate::settings::source_name::SourceName;

/// The merged metadata and the state of every source.
#[derive(Clone, Default)]
pub struct Snapshot {
    /// All top-level keys but `deployments`, a later source's value in place of an earlier one's.
    pub metadata: Map<String, Value>,
    /// The list in force, in Heat's order. `None`: no source said anything about it, which is not an
    /// empty list (heat-protocol.md R12).
    pub deployments: Option<Arc<Entries>>,
    /// By name: the sources that are configured, whether they were asked yet or not, or have been.
    pub sources: BTreeMap<&'static str, SourceState>,
    /// The authoritative source that answered in this process; `None` before the first answer, whatever
    /// the caches hold. Its document may have no list of deployments: see [`Snapshot::listing`].
    pub authority: Option<AuthoritativeAnswer>,
    /// Whose answer in this process the list in force is from; `None` where there is no list, or it is from a cache or a
    /// file of this machine. Only this says anything of a deployment: an answer without a list lists nothing and removes
    /// nothing (heat-protocol.md R12).
    pub listing: Option<AuthoritativeAnswer>,
    /// When the newest answer arrived whose list was in force. What is in force never goes back in time: another list takes its
    /// place only by an answer to a request that began later.
    pub received: Moment,
    /// The source whose next answer brings the list in force: what it answered last is not known to be newer than that one.
    pub awaited: Option<&'static str>,
    /// When the newest such answer arrived. Whatever becomes of its source, nothing rests on a list that was asked for before: Heat may
    /// have moved on.
    pub contested_at: Option<Moment>,
    /// Of metadata and deployments together, SHA-256.
    pub digest: String,
    /// With what the server may speak to Heat.
    pub own_credentials: OwnCredentials,
    /// A file that may name a source that speaks for Heat is there and cannot be read.
    pub is_unread: bool,
    /// The file that configures the node; `None` where a deployment of Heat's does. Its deployment is the first of the list.
    pub node_file: Option<NodeFile>,
    /// That one alone.
    pub node_entry: Option<Arc<Entries>>,
    /// The list in force without it.
    pub heat_list: Option<Arc<Entries>>,
}

/// How one source fares.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct SourceState {
    /// Where it is read, without secrets.
    pub place: String,
    /// When it last delivered, in this process or before.
    pub last_good: Option<Timestamp>,
    /// When it was last tried.
    pub last_try: Option<Timestamp>,
    /// Failed tries since the last good one.
    pub failures: u32,
    /// Why the last try failed.
    pub cause: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
    /// When it is tried again.
    pub next_try: Option<Timestamp>,
    /// SHA-256 of its document.
    pub digest: Option<String>,
}

/// The source whose answer counts, with that answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthoritativeAnswer {
    /// The source.
    pub source: &'static str,
    /// How new its document is.
    pub list_answer: ListAnswer,
}

/// One source's share in a snapshot.
#[derive(Clone)]
pub(super) struct Layer {
    pub(super) source: SourceName,
    /// Without `deployments`.
    pub(super) document: Arc<Map<String, Value>>,
    pub(super) deployments: Option<Arc<Entries>>,
    /// What it answered in this process.
    pub(super) answered: Option<ListAnswer>,
    /// When that answer arrived.
    pub(super) received: Moment,
    /// Whether its last poll succeeded.
    pub(super) healthy: bool,
}

impl Layer {
    /// Whether it speaks for Heat now: the boot copy is as old as the server (heat-protocol.md R11).
    fn authoritative(&self) -> bool {
        self.source.speaks_for_heat()
    }

    /// As whom it answered in this process, if it speaks for Heat.
    fn authority(&self) -> Option<AuthoritativeAnswer> {
        let list_answer = self.answered.filter(|_| self.authoritative())?;
        Some(AuthoritativeAnswer { source: self.source.as_str(), list_answer })
    }

    /// Whose word counts. The best of equals is the last: that keeps the choice the same while two
    /// sources both answer.
    fn rank(&self) -> (bool, bool, bool) {
        (self.authoritative(), self.answered.is_some(), self.answered.is_some() && self.healthy)
    }
}

/// The authoritative source that speaks for Heat now.
fn authority(layers: &[Layer]) -> Option<AuthoritativeAnswer> {
    layers.iter().filter(|layer| layer.authority().is_some()).max_by_key(|layer| layer.rank())?.authority()
}

impl Snapshot {
    /// The deployments in force that are well-formed, parsed one by one.
    pub(crate) fn parsed(&self) -> impl Iterator<Item = Deployment> {
        let entries = self.deployments.iter().flat_map(|list| list.values());
        entries.filter_map(|entry| Deployment::of(entry).ok().flatten())
    }

    /// Takes over who answered, and the list in force with the answer that it is from: the two come from the same layer. `true`
    /// where another list is in force now.
    ///
    /// Of two answers the one is newer whose request began after the other one had arrived. Which source is preferred changes
    /// when one fails, and that alone brings no older list back.
    pub(super) fn receive(&mut self, layers: &[Layer]) -> bool {
        let is_other = self.receive_list(layers) | self.receive_file(layers);
        if is_other {
            self.deployments = match (&self.node_entry, &self.heat_list) {
                (Some(node), Some(list)) => Some(Arc::new(list.behind(node))),
                (node, list) => node.clone().or_else(|| list.clone()),
            };
        }
        is_other
    }

    /// The same with the file that configures the node: it speaks for the node and for nothing else.
    fn receive_file(&mut self, layers: &[Layer]) -> bool {
        let Some(file) = &mut self.node_file else { return false };
        let Some(layer) = layers.iter().find(|layer| layer.source == SourceName::HeatParams) else { return false };
        let is_other = layer.deployments.as_ref().map(Arc::as_ptr) != self.node_entry.as_ref().map(Arc::as_ptr);
        file.answer = layer.answered;
        if is_other {
            file.id = layer.deployments.as_ref().and_then(|list| list.ids().first().cloned());
            self.node_entry.clone_from(&layer.deployments);
        }
        is_other
    }

    fn receive_list(&mut self, layers: &[Layer]) -> bool {
        self.authority = authority(layers);
        self.awaited = None;
        let best = layers
            .iter()
            .filter(|layer| layer.deployments.is_some() && layer.source != SourceName::HeatParams)
            .filter(|layer| layer.authoritative() || self.authority.is_none())
            .max_by_key(|layer| layer.rank());
        let listing = best.and_then(Layer::authority);
        let is_older =
            |answer: &&AuthoritativeAnswer| self.listing.as_ref() != Some(answer) && answer.list_answer.began <= self.received;
        if let Some((answer, layer)) = listing.as_ref().filter(is_older).zip(best) {
            self.awaited = Some(answer.source);
            self.contested_at = self.contested_at.max(Some(layer.received));
            return false;
        }
        if let Some(layer) = best.filter(|_| listing.is_some()) {
            self.received = self.received.max(layer.received);
        }
        let list = best.and_then(|layer| layer.deployments.clone());
        let is_other = list.as_ref().map(Arc::as_ptr) != self.heat_list.as_ref().map(Arc::as_ptr);
        (self.heat_list, self.listing) = (list, listing);
        is_other
    }

    /// Merges, weakest layer first. Only the list in force may stay from before.
    pub(super) fn merge(&mut self, layers: &[Layer], sources: BTreeMap<&'static str, SourceState>) {
        // The old one goes first: two at a time are more memory than one.
        self.metadata = Map::new();
        for layer in layers {
            self.metadata.extend(layer.document.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        self.sources = sources;
        self.receive(layers);
        self.redigest();
    }

    /// Makes the digest anew.
    pub(super) fn redigest(&mut self) {
        self.digest = digest_of(&self.metadata, self.deployments.as_deref());
    }

    /// Whether the list in force has an entry with this id.
    #[must_use]
    pub fn lists(&self, id: &str) -> bool {
        self.deployments.as_ref().is_some_and(|list| list.lists(id))
    }

    /// Whether every source was asked in this process, whatever it said.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        !self.sources.is_empty() && self.sources.values().all(|source| source.last_try.is_some())
    }

    /// Whether there is a source that could answer: the boot copy never changes and local data asks for nothing, so who has
    /// nothing else cannot be waited for.
    #[must_use]
    pub fn is_expected(&self) -> bool {
        let heat = |name: &&'static str| SourceName::from_word(name).is_none_or(SourceName::speaks_for_heat);
        self.is_unread || self.sources.is_empty() || self.sources.keys().any(heat)
    }

    /// How new the list in force is. A newer answer without a list, of the same source or another one, says nothing of a
    /// deployment. After an answer of another source that is not known to be the older one, nothing rests on the list until whoever
    /// speaks for Heat was asked again.
    #[must_use]
    pub fn freshness(&self) -> Freshness {
        match &self.listing {
            Some(listing) if self.contested_at >= Some(listing.list_answer.began) => Freshness::Awaited,
            Some(listing) => Freshness::Answered(listing.list_answer),
            None if self.is_expected() => Freshness::Awaited,
            None => Freshness::Unasked,
        }
    }

    /// The same for one deployment: that of the file is as new as the file was read.
    #[must_use]
    pub fn freshness_of(&self, id: &str) -> Freshness {
        self.file_of(id).map_or_else(|| self.freshness(), NodeFile::freshness)
    }

    /// The file that a deployment is of, or was.
    #[must_use]
    pub fn file_of(&self, id: &str) -> Option<&NodeFile> {
        self.node_file.as_ref().filter(|_| is_of_file(id))
    }

    /// The whole document, `deployments` included, as a server's metadata looks.
    #[must_use]
    pub fn document(&self) -> Map<String, Value> {
        let mut document = self.metadata.clone();
        if let Some(deployments) = &self.deployments {
            document.insert("deployments".to_owned(), Value::Array(deployments.values().collect()));
        }
        document
    }

    /// The same as JSON, without the memory that the values of a long list would take.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = Value::Object(self.metadata.clone()).to_string();
        if let Some(list) = &self.deployments {
            text.pop();
            let comma = if self.metadata.is_empty() { "" } else { "," };
            let entries: Vec<&str> = list.texts().collect();
            text += &format!("{comma}\"deployments\":[{}]}}", entries.join(","));
        }
        text
    }
}

impl fmt::Debug for Snapshot {
    /// Without the metadata, which holds passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("deployments", &self.deployments.as_ref().map(|list| list.len()))
            .field("sources", &self.sources)
            .field("authority", &self.authority)
            .field("listing", &self.listing)
            .field("digest", &self.digest)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::clock::Clock;

    /// The `n`th of a run.
    fn moment(n: u64) -> Moment {
        let clock = Clock::manual(Timestamp(0));
        (0..n).fold(Moment::EARLIER, |_, _| clock.moment())
    }

    fn answer_at(n: u64) -> ListAnswer {
        ListAnswer::new(moment(n), [Duration::ZERO; 2])
    }

    fn layer(source: SourceName, document: &Value, ids: Option<&[&str]>, answered: Option<u64>, healthy: bool) -> Layer {
        Layer {
            source,
            document: Arc::new(document.as_object().unwrap().clone()),
            deployments: ids.map(|ids| Arc::new(Entries::new(ids.iter().map(|id| json!({"id": id})).collect()).unwrap())),
            answered: answered.map(answer_at),
            received: answered.map(moment).unwrap_or_default(),
            healthy,
        }
    }

    fn merged(layers: &[Layer]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        snapshot.merge(layers, BTreeMap::new());
        snapshot
    }

    /// What it shows, the layers, who of them is listed, who speaks.
    type Case = (&'static str, Vec<Layer>, Option<&'static str>, Option<&'static str>);

    #[test]
    fn deployments_come_from_who_speaks_for_heat_now() {
        use SourceName::{Cfn, File, HeatLocal};
        let none = json!({});
        let boot = |ids| layer(HeatLocal, &json!({}), ids, Some(1), true);
        let table: [Case; 9] = [
            ("nobody said anything", vec![layer(Cfn, &none, None, None, true)], None, None),
            ("the boot copy before anybody answered", vec![boot(Some(&["boot"]))], Some("boot"), None),
            (
                "a cache is better than the boot copy",
                vec![boot(Some(&["boot"])), layer(Cfn, &none, Some(&["cache"]), None, true)],
                Some("cache"),
                None,
            ),
            (
                "an answer is better than a cache",
                vec![layer(Cfn, &none, Some(&["cfn"]), Some(5), true), layer(File, &none, Some(&["file"]), None, true)],
                Some("cfn"),
                Some("cfn"),
            ),
            (
                "absent is not empty, and the boot copy does not come back",
                vec![boot(Some(&["boot"])), layer(Cfn, &none, None, Some(5), true)],
                None,
                Some("cfn"),
            ),
            (
                "the last good one stays while its source fails",
                vec![boot(Some(&["boot"])), layer(Cfn, &none, Some(&["cfn"]), Some(5), false)],
                Some("cfn"),
                Some("cfn"),
            ),
            (
                "a healthy source is better than a failing one",
                vec![layer(Cfn, &none, Some(&["cfn"]), Some(5), true), layer(File, &none, Some(&["file"]), Some(9), false)],
                Some("cfn"),
                Some("cfn"),
            ),
            (
                "of two that answer the later one, whenever it answered",
                vec![layer(Cfn, &none, Some(&["cfn"]), Some(9), true), layer(File, &none, Some(&["file"]), Some(5), true)],
                Some("file"),
                Some("file"),
            ),
            (
                "one that has the key",
                vec![layer(Cfn, &none, Some(&["cfn"]), Some(9), true), layer(File, &none, None, Some(5), true)],
                Some("cfn"),
                Some("file"),
            ),
        ];
        for (case, layers, id, authority) in table {
            let snapshot = merged(&layers);
            assert_eq!(snapshot.deployments.is_some(), id.is_some(), "{case}");
            assert!(id.is_none_or(|id| snapshot.lists(id)), "{case}");
            assert_eq!(snapshot.authority.map(|authority| authority.source), authority, "{case}");
        }
    }

    #[test]
    fn keys_are_merged_shallowly_and_freshness_is_that_of_the_poll() {
        let snapshot = merged(&[
            layer(
                SourceName::HeatLocal,
                &json!({"a": 1, "os-collect-config": {"cfn": {"x": 1}, "heat": {}}}),
                Some(&[]),
                Some(1),
                true,
            ),
            layer(SourceName::Cfn, &json!({"b": 2, "os-collect-config": {"cfn": {}}}), Some(&["x"]), Some(7), true),
        ]);
        assert_eq!(
            Value::Object(snapshot.document()),
            json!({"a": 1, "b": 2, "os-collect-config": {"cfn": {}}, "deployments": [{"id": "x"}]})
        );
        assert!(snapshot.freshness().covers(moment(6)) && !snapshot.freshness().covers(moment(7)));
        assert!(snapshot.lists("x") && !snapshot.lists("y"));
        assert_eq!(merged(&[layer(SourceName::HeatLocal, &json!({}), None, Some(9), true)]).authority, None);
    }

    #[test]
    fn the_text_is_the_document() {
        let one = Map::from_iter([("a".to_owned(), json!("é"))]);
        for metadata in [Map::new(), one] {
            for list in [None, Some(vec![]), Some(vec![json!({"id": "1"}), json!({"id": "2", "x": [null]})])] {
                let deployments = list.map(|list| Arc::new(Entries::new(list).unwrap()));
                let snapshot = Snapshot { metadata: metadata.clone(), deployments, ..Snapshot::default() };
                let read = crate::budgets::json::answer(snapshot.text().as_bytes()).unwrap();
                assert_eq!(read, Value::Object(snapshot.document()));
            }
        }
    }

    #[test]
    fn freshness_is_that_of_the_list_in_force() {
        use SourceName::{Cfn, HeatLocal, Request};
        let none = json!({});
        let expected = BTreeMap::from([("cfn", SourceState::default())]);
        let began = |n| Freshness::Answered(answer_at(n));
        let table = [
            ("an answer without a list", vec![layer(Cfn, &none, None, Some(5), true)], Freshness::Awaited),
            (
                "the same beside the boot copy",
                vec![layer(HeatLocal, &none, Some(&["a"]), Some(1), true), layer(Cfn, &none, None, Some(5), true)],
                Freshness::Awaited,
            ),
            ("an empty list", vec![layer(Cfn, &none, Some(&[]), Some(5), true)], began(5)),
            (
                "the list of a source that fails since, and a newer answer without a list",
                vec![layer(Cfn, &none, None, Some(9), true), layer(Request, &none, Some(&["a"]), Some(3), false)],
                began(3),
            ),
            (
                "a cached list, and an answer of another source without a list",
                vec![layer(Cfn, &none, Some(&["a"]), None, true), layer(Request, &none, None, Some(9), true)],
                Freshness::Awaited,
            ),
        ];
        for (case, layers, freshness) in table {
            let mut snapshot = Snapshot::default();
            snapshot.merge(&layers, expected.clone());
            assert_eq!(snapshot.freshness(), freshness, "{case}");
            snapshot.receive(&layers);
            assert_eq!(snapshot.freshness(), freshness, "{case}");
        }
    }

    #[test]
    fn the_list_in_force_never_goes_back_in_time() {
        use SourceName::{Cfn, Request};
        let none = json!({});
        let cfn = |ids, began| layer(Cfn, &none, ids, Some(began), true);
        let request = |ids, began, healthy| layer(Request, &none, ids, Some(began), healthy);
        let (old, new): (Option<&[&str]>, Option<&[&str]>) = (Some(&["old"]), Some(&["new"]));
        // Preferred and newest: the one in use.
        let steps = [
            ("the one that is preferred", vec![cfn(old, 3), request(new, 5, true)], "new", Some(5), None),
            ("it fails: the other one's list is older", vec![cfn(old, 3), request(new, 5, false)], "new", Some(5), Some("cfn")),
            ("and the same again", vec![cfn(old, 3), request(new, 5, false)], "new", Some(5), Some("cfn")),
            ("it is gone with what it said", vec![cfn(old, 3)], "new", Some(5), Some("cfn")),
            ("the other one answers again", vec![cfn(old, 7), request(new, 5, false)], "old", Some(7), None),
            (
                "what answers again, to a request from before that",
                vec![cfn(old, 7), request(new, 6, true)],
                "old",
                Some(7),
                Some("request"),
            ),
            ("and then a newer one", vec![cfn(old, 7), request(new, 8, true)], "new", Some(8), None),
        ];
        let mut snapshot = Snapshot::default();
        for (case, layers, id, began, awaited) in steps {
            for wholly in [true, false] {
                if wholly {
                    snapshot.merge(&layers, BTreeMap::new());
                } else {
                    assert!(!snapshot.receive(&layers), "{case}");
                }
                assert!(snapshot.lists(id), "{case}");
                assert_eq!(snapshot.listing.as_ref().map(|one| one.list_answer.began), began.map(moment), "{case}");
                assert_eq!(snapshot.awaited, awaited, "{case}");
            }
        }
        // An answer without a list says nothing, and does not bring an older list back either.
        snapshot.receive(&[cfn(old, 7), request(None, 9, true)]);
        assert!(snapshot.lists("new") && snapshot.awaited == Some("cfn"));
        assert!(snapshot.receive(&[request(None, 9, true)]));
        assert!(snapshot.deployments.is_none() && snapshot.freshness() == Freshness::Awaited);
        assert!(!snapshot.receive(&[cfn(old, 7), request(None, 9, true)]) && snapshot.deployments.is_none());
    }

    #[test]
    fn an_answer_is_newer_if_its_request_began_after_the_other_one_had_arrived() {
        let list: Option<&[&str]> = Some(&["a"]);
        let mut slow = layer(SourceName::Cfn, &json!({}), list, Some(1), true);
        slow.received = moment(4);
        let mut snapshot = Snapshot::default();
        snapshot.receive(std::slice::from_ref(&slow));
        for (began, awaited) in [(2, Some("request")), (5, None)] {
            // Side by side nobody knows which of the two looked later.
            let other = layer(SourceName::Request, &json!({}), list, Some(began), true);
            snapshot.receive(&[slow.clone(), other]);
            assert_eq!(snapshot.awaited, awaited, "{began}");
        }
    }

    /// Attack: what the preferred source said was forgotten when the poll that was to confirm it failed, and a result left on the list that
    /// it had replaced.
    #[test]
    fn nothing_rests_on_a_list_that_another_answer_put_in_doubt_until_somebody_was_asked_again() {
        use SourceName::{Cfn, Request};
        let none = json!({});
        let cfn = |began| layer(Cfn, &none, Some(&["old"]), Some(began), true);
        let request = |healthy| Layer { received: moment(8), ..layer(Request, &none, Some(&["new"]), Some(4), healthy) };
        let mut snapshot = Snapshot::default();
        snapshot.receive(&[cfn(5), layer(Request, &none, None, None, false)]);
        assert_eq!(snapshot.freshness(), Freshness::Answered(answer_at(5)));
        for healthy in [true, false] {
            snapshot.receive(&[cfn(5), request(healthy)]);
            assert_eq!((snapshot.freshness(), snapshot.lists("old")), (Freshness::Awaited, true), "{healthy}");
        }
        snapshot.receive(&[cfn(7), request(false)]);
        assert_eq!(snapshot.freshness(), Freshness::Awaited, "its request began before the other one's answer came");
        snapshot.receive(&[cfn(9), request(false)]);
        assert_eq!(snapshot.freshness(), Freshness::Answered(answer_at(9)));
    }

    #[test]
    fn the_digest_distinguishes_absent_from_empty() {
        let of = |ids| merged(&[layer(SourceName::Cfn, &json!({}), ids, Some(1), true)]).digest;
        assert_ne!(of(None), of(Some(&[])));
        assert_eq!(of(Some(&["a"])), of(Some(&["a"])));
    }
}
