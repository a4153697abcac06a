//! What the newest metadata says of a deployment: listed, superseded, gone.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::collect::{AuthoritativeAnswer, Snapshot};
use crate::deploy::DeploymentRecord;
use crate::settings::source_name::SourceName;
use crate::signal::MetadataView;

/// The outbox' key of a deployment's result.
pub(super) fn result_key(id: &str) -> String {
    format!("result {id}")
}

/// Whether what is not in the list is gone for Heat. No list is not an empty list (heat-protocol.md R12), a cached one may be
/// out of date, and a file of `--metadata` does not speak for what Heat asked for before.
pub(super) fn is_heats_list(snapshot: &Snapshot) -> bool {
    let heat = |listing: &AuthoritativeAnswer| listing.source != SourceName::File.as_str();
    snapshot.deployments.is_some() && snapshot.listing.as_ref().is_some_and(heat)
}

/// Whether a deployment that is not in the list is gone: by Heat's word, or by that of the file that it is of.
pub(super) fn is_judged(snapshot: &Snapshot, id: &str) -> bool {
    snapshot.file_of(id).map_or_else(|| is_heats_list(snapshot), |file| file.answer.is_some())
}

/// Ids of the listed deployments.
pub(in crate::daemon) fn ids(snapshot: &Snapshot) -> Arc<BTreeSet<String>> {
    snapshot.deployments.as_ref().map(|list| list.ids()).unwrap_or_default()
}

/// Whether a source that answered was let in by Keystone. A temporary URL is Swift's own, a file nobody's.
fn asks_keystone(source: &str) -> bool {
    [SourceName::Cfn, SourceName::Heat, SourceName::Zaqar].iter().any(|name| name.as_str() == source)
}

/// Why Heat waits for a deployment no more: its entry is gone, or one of the same resource is newer. `None` while it may
/// wait, or where no answer of Heat's own says so.
pub(super) fn withdrawal_reason(snapshot: &Snapshot, record: &DeploymentRecord) -> Option<String> {
    let list = snapshot.deployments.as_ref().filter(|_| is_heats_list(snapshot))?;
    let is_listed = list.lists(&record.id);
    let newest = record.resource.as_ref().and_then(|resource| list.newest().get(resource).cloned());
    match newest.filter(|newest| !newest.contains(&record.id)).and_then(|newest| newest.into_iter().next()) {
        Some(newer) => Some(format!("Heat replaced it by {newer}")),
        None if is_listed => None,
        None => Some("it was removed from the metadata".to_owned()),
    }
}

/// What the outbox needs of a snapshot.
pub(super) fn view(snapshot: &Snapshot) -> MetadataView {
    let (freshness, own) = (snapshot.freshness(), snapshot.own_credentials.clone());
    let asked_keystone = snapshot.authority.as_ref().is_some_and(|authority| asks_keystone(authority.source));
    let node_file = snapshot.node_file.clone();
    if !is_heats_list(snapshot) {
        return MetadataView { freshness, asked_keystone, own, node_file, ..MetadataView::default() };
    }
    let (listed, newest) = snapshot.deployments.as_ref().map(|list| (list.ids(), list.newest())).unwrap_or_default();
    MetadataView { listed: Some(listed), newest, freshness, asked_keystone, own, node_file }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::clock::Moment;
    use crate::collect::{Entries, SourceState};
    use crate::freshness::{Freshness, ListAnswer};

    /// Of no request in this run.
    fn answer() -> ListAnswer {
        ListAnswer::new(Moment::EARLIER, [std::time::Duration::ZERO; 2])
    }

    fn snapshot(source: Option<&'static str>, entries: Option<&[(&str, &str)]>) -> Snapshot {
        let entry = |(id, made): &(&str, &str)| {
            json!({"id": id, "creation_time": made, "inputs": [
                {"name": "deploy_stack_id", "value": "s/1"}, {"name": "deploy_resource_name", "value": "r"}]})
        };
        Snapshot {
            deployments: entries.map(|entries| Arc::new(Entries::new(entries.iter().map(entry).collect()).unwrap())),
            sources: [("cfn", SourceState::default())].into(),
            authority: source.map(|source| AuthoritativeAnswer { source, list_answer: answer() }),
            listing: source.filter(|_| entries.is_some()).map(|source| AuthoritativeAnswer { source, list_answer: answer() }),
            ..Snapshot::default()
        }
    }

    #[test]
    fn only_a_list_of_heats_own_says_that_something_is_gone() {
        for (source, entries, lists) in [
            (Some("cfn"), Some(&[("a", "1")][..]), true),
            (Some("cfn"), None, false),
            (Some("file"), Some(&[]), false),
            (None, Some(&[]), false),
        ] {
            let view = view(&snapshot(source, entries));
            assert_eq!(view.listed.is_some(), lists, "{source:?} {entries:?}");
            let received = source.filter(|_| entries.is_some());
            let freshness = received.map_or(Freshness::Awaited, |_| Freshness::Answered(answer()));
            assert_eq!((view.freshness, view.asked_keystone), (freshness, source == Some("cfn")));
        }
    }

    #[test]
    fn of_two_entries_of_a_resource_the_later_one_counts() {
        let resource = ("s/1".to_owned(), "r".to_owned());
        for order in [
            [("old", "2026-03-01T12:00:00Z"), ("new", "2026-03-01T12:00:01Z")],
            [("new", "2026-03-01T12:00:01Z"), ("old", "2026-03-01T12:00:00Z")],
        ] {
            assert_eq!(view(&snapshot(Some("cfn"), Some(&order))).newest[&resource], ["new".to_owned()].into());
        }
        // Attack: of two of the same second, both of which ran, the second one's result was never sent.
        let same = "2026-03-01T12:00:00Z";
        let view = view(&snapshot(Some("cfn"), Some(&[("one", same), ("other", same), ("older", "2026-03-01T11:59:59Z")])));
        assert_eq!(["one", "other", "older"].map(|id| view.asks_for(id, Some(&resource))), [true, true, false]);
    }

    #[test]
    fn a_deployment_is_gone_where_heats_own_list_lacks_it_or_has_a_newer_one_of_its_resource() {
        let dir = tempfile::tempdir().unwrap();
        let state = Arc::new(crate::files::Tree::open(dir.path()).unwrap());
        let mut journal = crate::deploy::Journal::open(
            state,
            None,
            9,
            crate::clock::Clock::manual(crate::clock::Timestamp(1)),
            &crate::report::Report::kept(),
        )
        .unwrap();
        let target = crate::metadata::SignalTarget::None;
        let resource = Some(("s/1".to_owned(), "r".to_owned()));
        journal.refuse("a", "a", target, resource, crate::deploy::DeploymentOutcome::default()).unwrap();
        let record = journal.get("a").unwrap();
        for (source, entries, expected) in [
            (Some("cfn"), Some(&[("a", "1")][..]), None),
            (Some("cfn"), Some(&[]), Some("it was removed from the metadata")),
            (Some("cfn"), Some(&[("b", "2")]), Some("Heat replaced it by b")),
            (Some("cfn"), Some(&[("b", "0")]), Some("Heat replaced it by b")),
            (Some("cfn"), Some(&[("b", "2"), ("a", "1")]), Some("Heat replaced it by b")),
            // Of the same second, or older: nobody can say that it is newer.
            (Some("cfn"), Some(&[("b", "1"), ("a", "1"), ("c", "0")]), None),
            (Some("cfn"), None, None),
            (Some("file"), Some(&[]), None),
            (None, Some(&[]), None),
        ] {
            assert_eq!(withdrawal_reason(&snapshot(source, entries), record).as_deref(), expected, "{source:?} {entries:?}");
        }
    }

    #[test]
    fn whoever_has_only_the_boot_copy_is_not_waited_for() {
        let mut boot = snapshot(None, None);
        boot.sources = [("heat_local", SourceState::default())].into();
        assert_eq!(view(&boot).freshness, Freshness::Unasked);
        boot.sources.insert("local", SourceState::default());
        assert_eq!(view(&boot).freshness, Freshness::Unasked, "nor whoever has local files only");
        boot.sources.clear();
        assert_eq!(view(&boot).freshness, Freshness::Awaited, "nothing is known yet");
    }
}
