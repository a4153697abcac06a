//! What is to be done for each entry of the metadata: pure.

use std::collections::HashSet;

use serde_json::Value;

use super::journal::{Record, State};
use crate::metadata::{Deployment, Malformed};

/// What the image builder allows (design.md 4).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Groups that may run; `None`: all.
    pub groups: Option<Vec<String>>,
}

/// Kind of work.
#[derive(Clone, Debug, PartialEq)]
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

/// An entry that asks for something.
#[derive(Clone, Debug, PartialEq)]
pub enum Todo {
    /// To be begun, or gone on with.
    Do {
        /// The entry.
        deployment: Box<Deployment>,
        /// Its kind.
        work: Work,
        /// How far it is; `None`: never seen.
        state: Option<State>,
    },
    /// Its group is not allowed here.
    Forbidden(Box<Deployment>),
    /// More than one kubernetes-node deployment that has not ended: none of them is done (design.md 5).
    Twice(Box<Deployment>),
    /// It cannot be understood.
    Malformed(Box<Malformed>, Value),
    /// It cannot be understood, and has the id of another entry that can: it is nothing of its own.
    Copy(Box<Malformed>, Value),
}

/// Goes through the list in its order (R20: equal names are told apart by id).
pub fn todo<'a>(entries: &[Value], known: impl Fn(&str) -> Option<&'a Record>, policy: &Policy) -> Vec<Todo> {
    let mut ids = HashSet::new();
    let mut nodes = Vec::new();
    let mut list = Vec::new();
    for entry in entries {
        let deployment = match Deployment::parse(entry) {
            Ok(Some(deployment)) => deployment,
            Ok(None) => continue,
            Err(malformed) => {
                list.push(Todo::Malformed(malformed, entry.clone()));
                continue;
            }
        };
        if !ids.insert(deployment.id.clone()) {
            continue;
        }
        let work = match deployment.group.as_str() {
            "script" => Work::Script,
            "kubernetes-node" => Work::Node,
            "Heat::Ungrouped" | "os-apply-config" => Work::Data,
            _ => Work::Hook,
        };
        if work == Work::Data {
            continue;
        }
        let state = known(&deployment.id).map(|record| record.state);
        if state.is_some_and(|state| state >= State::Finished) {
            continue;
        }
        // DELETE, SUSPEND and RESUME of an old one may stand beside a new one; two that bring a node up may not. One that has
        // ended is what the other one takes over from: Heat makes a replacement before it removes what it replaces.
        if work == Work::Node && matches!(deployment.action(), "CREATE" | "UPDATE" | "") {
            nodes.push(deployment.id.clone());
        }
        let deployment = Box::new(deployment);
        let allowed = policy.groups.as_ref().is_none_or(|groups| groups.contains(&deployment.group));
        list.push(if allowed { Todo::Do { deployment, work, state } } else { Todo::Forbidden(deployment) });
    }
    if nodes.len() > 1 {
        for item in &mut list {
            if let Todo::Do { deployment, work: Work::Node, .. } = item
                && nodes.contains(&deployment.id)
            {
                *item = Todo::Twice(deployment.clone());
            }
        }
    }
    let is_done = |id: &str| known(id).is_some_and(|record| record.state >= State::Finished);
    list.into_iter()
        .filter_map(|item| match item {
            Todo::Malformed(malformed, entry) => match malformed.id.as_deref() {
                // Before the judgement on copies: of what has ended nothing is said again at each look.
                Some(id) if is_done(id) => None,
                Some(id) if ids.contains(id) => Some(Todo::Copy(malformed, entry)),
                _ => Some(Todo::Malformed(malformed, entry)),
            },
            other => Some(other),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn entry(id: &str, group: &str, action: &str) -> Value {
        json!({"id": id, "name": "same", "group": group, "inputs": [{"name": "deploy_action", "value": action}]})
    }

    fn names(list: &[Todo]) -> Vec<String> {
        list.iter()
            .map(|item| match item {
                Todo::Do { deployment, work, .. } => format!("{} {work:?}", deployment.id),
                Todo::Forbidden(deployment) => format!("{} forbidden", deployment.id),
                Todo::Twice(deployment) => format!("{} twice", deployment.id),
                Todo::Malformed(malformed, _) => format!("{:?} malformed", malformed.id),
                Todo::Copy(malformed, _) => format!("{:?} copy", malformed.id),
            })
            .collect()
    }

    #[test]
    fn the_list_is_worked_in_its_order_and_ids_tell_equal_names_apart() {
        let entries = [
            entry("a", "script", "CREATE"),
            entry("b", "ansible", "CREATE"),
            entry("c", "kubernetes-node", "CREATE"),
            entry("d", "Heat::Ungrouped", "CREATE"),
            entry("a", "script", "CREATE"),
            json!({"id": 5, "name": "x"}),
        ];
        assert_eq!(names(&todo(&entries, |_| None, &Policy::default())), ["a Script", "b Hook", "c Node", "None malformed"]);
    }

    #[test]
    fn groups_that_the_image_does_not_allow_are_named() {
        let policy = Policy { groups: Some(vec!["kubernetes-node".to_owned()]) };
        let entries = [entry("a", "script", "CREATE"), entry("b", "kubernetes-node", "CREATE")];
        assert_eq!(names(&todo(&entries, |_| None, &policy)), ["a forbidden", "b Node"]);
    }

    #[test]
    fn two_nodes_are_none_but_the_end_of_an_old_one_may_stand_beside_a_new_one() {
        let node = |id, action| entry(id, "kubernetes-node", action);
        assert_eq!(
            names(&todo(&[node("a", "CREATE"), node("b", "UPDATE")], |_| None, &Policy::default())),
            ["a twice", "b twice"]
        );
        assert_eq!(names(&todo(&[node("a", "DELETE"), node("b", "CREATE")], |_| None, &Policy::default())), ["a Node", "b Node"]);
    }

    /// Records of `a`, in this state.
    fn known(state: State) -> Record {
        serde_json::from_value(
            json!({"schema": 1, "id": "a", "name": "same", "group": "kubernetes-node", "action": "CREATE", "state": state,
            "resource": null, "target": {"transport": "none"}, "outputs": [], "seen": 1}),
        )
        .unwrap()
    }

    #[test]
    fn a_node_that_takes_over_from_one_that_ended_is_brought_up() {
        let entries = [entry("a", "kubernetes-node", "CREATE"), entry("b", "kubernetes-node", "CREATE")];
        for (state, expected) in [
            (State::Seen, &["a twice", "b twice"][..]),
            (State::Running, &["a twice", "b twice"]),
            (State::Finished, &["b Node"]),
            (State::Signalled, &["b Node"]),
        ] {
            let record = known(state);
            assert_eq!(names(&todo(&entries, |id| (id == "a").then_some(&record), &Policy::default())), expected, "{state:?}");
        }
    }

    #[test]
    fn a_malformed_copy_says_nothing_of_the_deployment_whose_id_it_has() {
        let bad = json!({"id": "a", "name": "copy", "group": "script", "inputs": 5});
        for entries in [[bad.clone(), entry("a", "script", "CREATE")], [entry("a", "script", "CREATE"), bad.clone()]] {
            let names: BTreeSet<_> = names(&todo(&entries, |_| None, &Policy::default())).into_iter().collect();
            assert_eq!(names, ["Some(\"a\") copy", "a Script"].map(str::to_owned).into());
            let record = known(State::Signalled);
            assert!(todo(&entries, |_| Some(&record), &Policy::default()).is_empty(), "nothing is said of what has ended");
        }
        assert_eq!(names(&todo(&[bad], |_| None, &Policy::default())), ["Some(\"a\") malformed"]);
    }
}
