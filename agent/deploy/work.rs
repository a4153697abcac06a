//! What is to be done for each entry of the metadata: pure.

use std::collections::{BTreeMap, HashSet, VecDeque};

use serde_json::Value;

use super::journal::{DeploymentRecord, DeploymentState};
use crate::clock::Timestamp;
use crate::metadata::Deployment;

/// What the image builder allows (design.md 4).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupPolicy {
    /// Groups that may run; `None`: all.
    pub groups: Option<Vec<String>>,
    /// Where a file configures the node: its deployment, if it can be read.
    pub node_file: Option<Option<String>>,
}

/// Kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Group `script`, built in.
    Script,
    /// An executable of the group's name in a hook directory.
    Hook,
    /// Group `kubernetes-node`, done by the agent itself.
    Node,
    /// Group `Heat::Ungrouped` or `os-apply-config`: data for others, nothing to run and nobody waits (heat-protocol.md 2.8).
    Data,
}

impl Work {
    /// What a group is.
    #[must_use]
    pub fn of(group: &str) -> Self {
        match group {
            "script" => Self::Script,
            "kubernetes-node" => Self::Node,
            "Heat::Ungrouped" | "os-apply-config" => Self::Data,
            _ => Self::Hook,
        }
    }
}

/// What an entry asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// To be begun, or gone on with.
    Run(Work),
    /// Its group is not allowed here.
    Forbidden,
    /// One of several kubernetes-node deployments of which nobody can say which one counts: none of them is done (design.md 5).
    DuplicateNode,
    /// Another kubernetes-node deployment counts: it has begun, or is newer.
    WaitingNode,
    /// It is to bring a node up that a file configures.
    NodeOfFile,
    /// It cannot be understood.
    Malformed,
    /// It cannot be understood, and has the id of another entry that can: it is nothing of its own.
    DuplicateId,
}

/// An entry that asks for something. The entry itself stays in the list, from which it is read when its turn comes: the list may
/// be long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingEntry {
    /// Its place in the list.
    pub at: usize,
    /// Its id; empty where it has none.
    pub id: String,
    /// What it asks for.
    pub what: EntryKind,
}

/// How strong a kubernetes-node deployment is against the others of its list, the strongest last. Heat makes a replacement before it removes
/// what it replaces, and lists both until the replacement has succeeded: the older one is done only if the newer one leaves.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct NodeClaim {
    has_begun: bool,
    /// The operator had it run again.
    is_ordered: bool,
    /// By Heat's clock.
    made: String,
}

impl NodeClaim {
    fn of(record: Option<&DeploymentRecord>, deployment: &Deployment) -> Self {
        let state = record.map(|record| record.state);
        Self {
            has_begun: state == Some(DeploymentState::Running),
            is_ordered: state == Some(DeploymentState::Seen) && record.is_some_and(|record| record.order.is_some()),
            made: deployment.creation_time.clone(),
        }
    }
}

/// A kubernetes-node deployment of the list.
struct ListedNode {
    claim: NodeClaim,
    has_ended: bool,
    /// When it was first seen, or ended; nothing where that is not recorded.
    since: Option<Timestamp>,
}

impl ListedNode {
    /// Whether it has ended and another one, which has not, waits for it to go: Heat made that one earlier, and it was there before. One
    /// that came after the end is what Heat wants now, whatever the clock says by which both were made.
    fn outlasts(&self, other: &Self) -> bool {
        let came_later = match (self.since, other.since) {
            (Some(ended), Some(seen)) => seen > ended,
            (_, seen) => seen.is_none(),
        };
        self.has_ended && !other.has_ended && self.claim > other.claim && !came_later
    }
}

/// Goes through the list in its order (R20: equal names are told apart by id).
pub fn todo<'a>(
    entries: impl Iterator<Item = Value>,
    known: impl Fn(&str) -> Option<&'a DeploymentRecord>,
    policy: &GroupPolicy,
) -> VecDeque<PendingEntry> {
    let mut ids = HashSet::new();
    let mut nodes = BTreeMap::new();
    let mut list = VecDeque::new();
    for (at, entry) in entries.enumerate() {
        let deployment = match Deployment::of(entry) {
            Ok(Some(deployment)) => deployment,
            Ok(None) => continue,
            Err(malformed) => {
                list.push_back(PendingEntry { at, id: malformed.id.unwrap_or_default(), what: EntryKind::Malformed });
                continue;
            }
        };
        if !ids.insert(deployment.id.clone()) {
            continue;
        }
        let work = Work::of(&deployment.group);
        if work == Work::Data {
            continue;
        }
        let record = known(&deployment.id);
        let has_ended = record.is_some_and(|record| record.state >= DeploymentState::Finished);
        // DELETE, SUSPEND and RESUME of an old one may stand beside a new one; of those that bring a node up one counts.
        let brings_up = work == Work::Node && matches!(deployment.action(), "CREATE" | "UPDATE" | "");
        let is_other = |id: &Option<String>| id.as_ref() != Some(&deployment.id);
        let is_of_file = brings_up && policy.node_file.as_ref().is_some_and(is_other);
        if brings_up && !is_of_file {
            let since = record.map(|record| if has_ended { record.finished } else { Some(record.seen) });
            let node = ListedNode { claim: NodeClaim::of(record, &deployment), has_ended, since: since.flatten() };
            nodes.insert(deployment.id.clone(), node);
        }
        if has_ended {
            continue;
        }
        if is_of_file {
            list.push_back(PendingEntry { at, id: deployment.id, what: EntryKind::NodeOfFile });
            continue;
        }
        let allowed = policy.groups.as_ref().is_none_or(|groups| groups.contains(&deployment.group));
        list.push_back(PendingEntry {
            at,
            id: deployment.id,
            what: if allowed { EntryKind::Run(work) } else { EntryKind::Forbidden },
        });
    }
    let waits = |node: &&ListedNode| nodes.values().any(|other| other.outlasts(node));
    let eligible: Vec<&ListedNode> = nodes.values().filter(|node| !node.has_ended && !waits(node)).collect();
    let strongest = eligible.iter().map(|node| &node.claim).max();
    let alike = eligible.iter().filter(|node| Some(&node.claim) == strongest).count();
    for item in list.iter_mut().filter(|item| item.what == EntryKind::Run(Work::Node)) {
        match nodes.get(&item.id) {
            Some(node) if waits(&node) || Some(&node.claim) != strongest => item.what = EntryKind::WaitingNode,
            Some(_) if alike > 1 => item.what = EntryKind::DuplicateNode,
            _ => {}
        }
    }
    let is_done = |id: &str| known(id).is_some_and(|record| record.state >= DeploymentState::Finished);
    // Of what has ended nothing is said again; this comes before the judgement on copies.
    list.retain(|item| item.what != EntryKind::Malformed || !is_done(&item.id));
    for item in list.iter_mut().filter(|item| item.what == EntryKind::Malformed && ids.contains(&item.id)) {
        item.what = EntryKind::DuplicateId;
    }
    list
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn entry(id: &str, group: &str, action: &str) -> Value {
        json!({"id": id, "name": "same", "group": group, "config": "x", "inputs": [{"name": "deploy_action", "value": action}]})
    }

    fn names(entries: &[Value], policy: &GroupPolicy) -> Vec<String> {
        names_with(entries, |_| None, policy)
    }

    fn names_with<'a>(
        entries: &[Value],
        known: impl Fn(&str) -> Option<&'a DeploymentRecord>,
        policy: &GroupPolicy,
    ) -> Vec<String> {
        let list = todo(entries.iter().cloned(), known, policy);
        assert!(list.iter().all(|item| entries[item.at]["id"].as_str().unwrap_or_default() == item.id));
        let name = |item: &PendingEntry| match item.what {
            EntryKind::Run(work) => format!("{} {work:?}", item.id),
            what => format!("{} {what:?}", item.id).to_lowercase(),
        };
        list.iter().map(name).collect()
    }

    #[test]
    fn the_list_is_worked_in_its_order_and_ids_distinguish_equal_names() {
        let entries = [
            entry("a", "script", "CREATE"),
            entry("b", "ansible", "CREATE"),
            entry("c", "kubernetes-node", "CREATE"),
            entry("d", "Heat::Ungrouped", "CREATE"),
            entry("a", "script", "CREATE"),
            json!({"id": 5, "name": "x"}),
        ];
        assert_eq!(names(&entries, &GroupPolicy::default()), ["a Script", "b Hook", "c Node", " malformed"]);
    }

    #[test]
    fn groups_that_the_image_does_not_allow_are_named() {
        let policy = GroupPolicy { groups: Some(vec!["kubernetes-node".to_owned()]), ..GroupPolicy::default() };
        let entries = [entry("a", "script", "CREATE"), entry("b", "kubernetes-node", "CREATE")];
        assert_eq!(names(&entries, &policy), ["a forbidden", "b Node"]);
    }

    #[test]
    fn where_a_file_configures_the_node_no_deployment_of_heats_does() {
        let node = |id, action| entry(id, "kubernetes-node", action);
        let entries =
            [node("file", ""), node("a", "CREATE"), node("b", "UPDATE"), node("c", "DELETE"), entry("d", "script", "CREATE")];
        let with =
            |id: Option<&str>| names(&entries, &GroupPolicy { node_file: Some(id.map(str::to_owned)), ..GroupPolicy::default() });
        assert_eq!(with(Some("file")), ["file Node", "a nodeoffile", "b nodeoffile", "c Node", "d Script"]);
        assert_eq!(with(None)[0], "file nodeoffile", "as long as the file cannot be read, nobody's");
    }

    #[test]
    fn two_nodes_are_none_but_the_end_of_an_old_one_may_stand_beside_a_new_one() {
        let node = |id, action| entry(id, "kubernetes-node", action);
        assert_eq!(
            names(&[node("a", "CREATE"), node("b", "UPDATE")], &GroupPolicy::default()),
            ["a duplicatenode", "b duplicatenode"]
        );
        assert_eq!(names(&[node("a", "DELETE"), node("b", "CREATE")], &GroupPolicy::default()), ["a Node", "b Node"]);
    }

    /// Records of `a`, in this state.
    fn known(state: DeploymentState) -> DeploymentRecord {
        serde_json::from_value(
            json!({"schema": 1, "id": "a", "name": "same", "group": "kubernetes-node", "action": "CREATE", "state": state,
            "resource": null, "target": {"transport": "none"}, "outputs": [], "seen": 1}),
        )
        .unwrap()
    }

    #[test]
    fn a_node_that_takes_over_from_one_that_ended_is_brought_up() {
        let entries = [entry("a", "kubernetes-node", "CREATE"), entry("b", "kubernetes-node", "CREATE")];
        let (seen, running, ended) = (DeploymentState::Seen, DeploymentState::Running, DeploymentState::Finished);
        let (alike, earlier, later) = (["0", "0"], ["0", "1"], ["1", "0"]);
        for (state, made, expected) in [
            (seen, alike, &["a duplicatenode", "b duplicatenode"][..]),
            (seen, earlier, &["a waitingnode", "b Node"]),
            (seen, later, &["a Node", "b waitingnode"]),
            (running, alike, &["a Node", "b waitingnode"]),
            (running, earlier, &["a Node", "b waitingnode"]),
            (running, later, &["a Node", "b waitingnode"]),
            (ended, alike, &["b Node"]),
            (ended, earlier, &["b Node"]),
            // By a clock of Heat's that was ahead: it was not there when that ended.
            (ended, later, &["b Node"]),
            (DeploymentState::Signalled, earlier, &["b Node"]),
        ] {
            let mut entries = entries.clone();
            for (entry, made) in entries.iter_mut().zip(made) {
                entry["creation_time"] = json!(format!("2026-03-01T12:00:0{made}Z"));
            }
            let record = known(state);
            let names = |entries: &[Value], record: &DeploymentRecord| {
                names_with(entries, |id| (id == "a").then_some(record), &GroupPolicy::default())
            };
            assert_eq!(names(&entries, &record), expected, "{state:?} {made:?}");
            assert_eq!(names(&entries[1..], &record), ["b Node"], "the other one left");
            // By order of the operator.
            let ordered = DeploymentRecord { order: Some("1".into()), ..known(seen) };
            assert_eq!(names(&entries, &ordered), ["a Node", "b waitingnode"]);
        }
    }

    #[test]
    fn of_two_nodes_of_which_one_ended_heat_asks_for_the_one_that_came_after_that() {
        let entries = ["5", "1", "0"].map(|made| {
            let id = ["c", "b", "", "", "", "a"][made.parse::<usize>().unwrap()];
            let mut entry = entry(id, "kubernetes-node", "CREATE");
            entry["creation_time"] = json!(format!("2026-03-01T12:00:0{made}Z"));
            entry
        });
        let of = |id: &str, state, seen, finished: Option<u64>| DeploymentRecord {
            id: id.to_owned(),
            seen: Timestamp(seen),
            finished: finished.map(Timestamp),
            ..known(state)
        };
        let (ended, seen) = (DeploymentState::Finished, DeploymentState::Seen);
        for (b, c, expected) in [
            // Both were there before it ended: Heat asks for them again only if it goes.
            (Some(2), Some(2), &["b waitingnode", "c waitingnode"][..]),
            (Some(9), Some(2), &["b Node", "c waitingnode"]),
            // The one that came later does not wait for one that waits.
            (Some(2), Some(9), &["b waitingnode", "c Node"]),
            (Some(9), Some(9), &["b Node", "c waitingnode"]),
            (None, Some(2), &["b Node", "c waitingnode"]),
        ] {
            let records =
                [Some(of("a", ended, 1, Some(5))), b.map(|at| of("b", seen, at, None)), c.map(|at| of("c", seen, at, None))];
            let find = |id: &str| records.iter().flatten().find(|record| record.id == id);
            assert_eq!(names_with(&entries, find, &GroupPolicy::default()), expected, "{b:?} {c:?}");
        }
    }

    #[test]
    fn a_malformed_copy_says_nothing_of_the_deployment_whose_id_it_has() {
        let component = json!({"configs": [{"actions": ["CREATE"], "tool": "script", "config": {}}]});
        let action = json!([{"name": "deploy_action", "value": "CREATE"}]);
        for bad in [
            json!({"id": "a", "name": "copy", "group": "script", "inputs": 5}),
            json!({"id": "a", "name": "copy", "group": "script", "config": 7}),
            json!({"id": "a", "name": "copy", "group": "script"}),
            json!({"id": "a", "name": "copy", "group": "component", "config": component, "inputs": action}),
        ] {
            for entries in [[bad.clone(), entry("a", "script", "CREATE")], [entry("a", "script", "CREATE"), bad.clone()]] {
                let names: BTreeSet<_> = names(&entries, &GroupPolicy::default()).into_iter().collect();
                assert_eq!(names, ["a duplicateid", "a Script"].map(str::to_owned).into(), "{bad}");
                let record = known(DeploymentState::Signalled);
                assert!(
                    names_with(&entries, |_| Some(&record), &GroupPolicy::default()).is_empty(),
                    "nothing is said of what has ended"
                );
            }
            assert_eq!(names(&[bad], &GroupPolicy::default()), ["a malformed"]);
        }
    }
}
