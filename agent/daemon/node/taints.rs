//! Taints of a registered worker: only its kubelet's registration, or the operator, gives or removes them.
//!
//! In: what the parameters ask for, and asked for before. Out: what the API has otherwise, and the command that changes it.

use super::Node;
use super::monitor::node_object;
use super::plan::NodePlan;
use crate::desired::NODES;
use crate::gather::Gather;
use crate::keepers::node_conditions;
use crate::kubernetes::{self, NodeSpec, Role, taint_name};
use crate::metadata::Deployment;
use crate::report::text::argument;
use crate::report::{Code, Event, Phase};

impl Node {
    /// The taints that a node asks for, e.g. that of the generation before.
    pub(super) fn taints_of(&self, spec: Option<&NodeSpec>) -> Vec<String> {
        spec.map(|spec| kubernetes::taints(spec, &self.facts())).unwrap_or_default()
    }

    /// What the generation before had of the node's object: a kubelet that registered the node anew gave it labels and no annotations.
    pub(super) fn remember_node_object(&self, plan: &mut NodePlan, before: Option<&NodeSpec>) {
        if let Some(object) = plan.desired.objects.iter_mut().find(|object| object.collection == NODES) {
            object.before = before.and_then(|spec| kubernetes::node_object(spec, &self.facts()));
        }
    }

    /// Says where the API has other taints than a worker's parameters ask for, and returns that for Heat. `before`: those that they asked
    /// for until now.
    pub(super) async fn report_taints(
        &self,
        plan: &NodePlan,
        before: &[String],
        generation: u64,
        deployment: &Deployment,
    ) -> String {
        let Some(event) = self.differing_taints(plan, before).await else { return String::new() };
        let remedy = event.remedy.clone().unwrap_or_default();
        let said = format!("{}; {}\n", event.message, remedy);
        self.host.report.emit(event.generation(generation).deployment(&deployment.id, &deployment.name));
        said
    }

    async fn differing_taints(&self, plan: &NodePlan, before: &[String]) -> Option<Event> {
        let wanted = self.taints_of(Some(&plan.spec));
        if plan.spec.role == Role::Master || (wanted.is_empty() && before.is_empty()) {
            return None;
        }
        let node = node_object(&plan.desired)?;
        // Where the API does not say it is as it was.
        let found = node_conditions::taints(&self.http, &node).await.unwrap_or_else(|_| before.to_vec());
        differing(node.url.rsplit('/').next().unwrap_or("NODE"), &wanted, before, &found)
    }
}

fn differing(node: &str, wanted: &[String], before: &[String], found: &[String]) -> Option<Event> {
    let missing: Vec<&str> = wanted.iter().filter(|one| !found.contains(one)).map(String::as_str).gather();
    let is_left = |one: &&String| {
        wanted.iter().all(|other| taint_name(other) != taint_name(one))
            && found.iter().any(|other| taint_name(other) == taint_name(one))
    };
    let left: Vec<String> = before.iter().filter(is_left).map(|one| taint_name(one)).gather();
    if missing.is_empty() && left.is_empty() {
        return None;
    }
    let given = (!missing.is_empty()).then(|| format!("without {}", missing.join(", ")));
    let kept = (!left.is_empty()).then(|| format!("with {}", left.join(", ")));
    let how = given.into_iter().chain(kept).collect::<Vec<_>>().join(" and ");
    let removed = left.iter().map(|one| format!("{one}-"));
    // kubectl before 1.15 takes no taint without `=`.
    let with_value = |one: &&str| if one.contains('=') { (*one).to_owned() } else { one.replacen(':', "=:", 1) };
    let words = missing.iter().map(with_value).chain(removed).map(|word| argument(&word).into_owned());
    let command = format!("`kubectl taint nodes {} --overwrite {}`", argument(node), words.collect::<Vec<_>>().join(" "));
    let event = Event::new(Code::TaintsDiffer, format!("node {node} stays {how}"));
    Some(
        event
            .phase(Phase::Steady)
            .cause("a kubelet gives taints only when it registers its node, and may not change them")
            .remedy(command),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_api_has_otherwise_is_said_with_the_command_that_changes_it() {
        let list = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        for (wanted, before, found, expected) in [
            ("a=b:NoSchedule", "", "a=b:NoSchedule others:NoExecute", None),
            ("", "a=b:NoSchedule", "others:NoExecute", None),
            ("a=c:NoSchedule", "a=b:NoSchedule", "a=b:NoSchedule", Some(("without a=c:NoSchedule", "a=c:NoSchedule"))),
            ("", "a=b:NoSchedule", "a=b:NoSchedule x:NoExecute", Some(("with a:NoSchedule", "a:NoSchedule-"))),
            (
                "g:NoExecute",
                "a=b:NoSchedule",
                "a=b:NoSchedule",
                Some(("without g:NoExecute and with a:NoSchedule", "g=:NoExecute a:NoSchedule-")),
            ),
        ] {
            let said = differing("w1", &list(wanted), &list(before), &list(found));
            let said = said.map(|event| (event.message.clone(), event.remedy.clone().unwrap_or_default().to_string()));
            let expected = expected
                .map(|(how, words)| (format!("node w1 stays {how}"), format!("`kubectl taint nodes w1 --overwrite {words}`")));
            assert_eq!(said, expected, "{wanted} {before} {found}");
        }
    }
}
