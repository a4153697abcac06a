use super::*;
use crate::report::condition::Condition;
use crate::report::event::Phase;
use crate::report::status::{
    AgentStatus, CertificatesStatus, DeploymentStatus, MetadataStatus, PodNetworkStatus, SCHEMA_VERSION, SignalStatus,
    SourceStatus, ThinPoolStatus,
};
use crate::report::volume::VolumeStatus;

fn component(name: &str, state: ComponentState, problem: Option<&str>) -> ComponentStatus {
    let cause = problem.map(|_| "its last lines: password=hush".to_owned());
    ComponentStatus { name: name.into(), state, problem: problem.map(str::to_owned), cause, ..ComponentStatus::default() }
}

/// A node of which everything is known, and nothing is wrong.
fn fine() -> StatusDocument {
    let node = NodeStatus {
        generation: 4,
        state: NodeState::Applied,
        components: vec![component("etcd", ComponentState::Healthy, None), component("kubelet", ComponentState::Healthy, None)],
        certificates: Some(CertificatesStatus {
            first_to_expire: "server".into(),
            first_expiry: "2027-01-01T00:00:00Z".into(),
            ..CertificatesStatus::default()
        }),
        pod_network: Some(PodNetworkStatus::default()),
        volumes: vec![VolumeStatus {
            name: "etcd".into(),
            place: "/var/lib/etcd".into(),
            state: Some(ConditionState::Ok),
            ..VolumeStatus::default()
        }],
        ..NodeStatus::default()
    };
    StatusDocument {
        schema_version: SCHEMA_VERSION,
        agent: AgentStatus { version: "0.1".into(), pid: 7, started: "2026-03-01T12:00:00Z".into() },
        identity: None,
        phase: Phase::Steady,
        summary: String::new(),
        sources: vec![source(2)],
        deployments: vec![deployment("script", false, true)],
        node: Some(node),
        signals: vec![signal(2)],
        conditions: vec![Condition { name: "settings".into(), state: ConditionState::Ok, ..Condition::default() }],
        metadata: MetadataStatus::default(),
        budgets: Vec::new(),
        set_aside: Vec::new(),
    }
}

fn source(failures: u32) -> SourceStatus {
    SourceStatus {
        name: "cfn".into(),
        last_good: None,
        older: false,
        failures,
        cause: Some("why".into()),
        remedy: None,
        next_try: None,
    }
}

fn signal(tries: u32) -> SignalStatus {
    let to = "http://heat/v1/signal".into();
    SignalStatus { to, deployment: None, tries, cause: None, remedy: None, since: None, next_try: None }
}

fn deployment(group: &str, failed: bool, listed: bool) -> DeploymentStatus {
    DeploymentStatus { id: "1f".into(), group: group.into(), listed, failed, ..DeploymentStatus::signalled() }
}

fn with(change: impl FnOnce(&mut StatusDocument, &mut NodeStatus)) -> Vec<NodeCondition> {
    let mut status = fine();
    let mut node = status.node.take().unwrap();
    change(&mut status, &mut node);
    status.node = Some(node);
    of(&status)
}

#[test]
fn a_node_without_a_problem_has_every_condition_false_and_each_says_so_in_its_own_words() {
    let all = with(|_, _| {});
    assert_eq!(all.iter().map(|one| one.kind).collect::<Vec<_>>(), KINDS);
    assert!(all.iter().all(|one| !one.is_problem && !one.message.is_empty()), "{all:?}");
    for word in all.iter().flat_map(|one| [one.kind, one.reason]) {
        assert!(word.starts_with(|c: char| c.is_ascii_uppercase()) && word.chars().all(|c| c.is_ascii_alphanumeric()), "{word}");
    }
    assert!(KINDS.iter().all(|kind| kind.starts_with("HeatNode") && kind.ends_with("Problem")));
}

#[test]
fn certificates_that_need_attention_say_what_for() {
    let rotation = || Condition { cause: Some("a CA rotation is waiting".into()), ..Condition::default() };
    let all = with(|_, node| node.certificates.as_mut().unwrap().waits = Some(rotation()));
    let found = all.iter().find(|one| one.kind == "HeatNodeCertificateProblem").unwrap();
    assert_eq!((found.is_problem, found.message.as_str()), (true, "a CA rotation is waiting"));
}

#[test]
fn each_fact_is_a_problem_of_one_condition_and_says_what_it_is_about() {
    type Change = fn(&mut StatusDocument, &mut NodeStatus);
    let table: [(Change, &str, &str, &str); 15] = [
        (
            |_, node| node.components[1] = component("kubelet", ComponentState::Failed, Some("crash-looping (11 restarts)")),
            "HeatNodeComponentProblem",
            "ComponentFailed",
            "kubelet crash-looping (11 restarts)",
        ),
        (
            |_, node| node.components[0] = component("etcd", ComponentState::Degraded, None),
            "HeatNodeComponentProblem",
            "ComponentIsDegraded",
            "etcd degraded",
        ),
        (|_, node| node.drifted = true, "HeatNodeDriftProblem", "NodeDiffersFromParameters", "it differs from its parameters"),
        (
            |_, node| (node.drifted, node.differences) = (true, vec!["/etc/a\n".into(), "/etc/b".into()]),
            "HeatNodeDriftProblem",
            "NodeDiffersFromParameters",
            "/etc/a\\n, /etc/b",
        ),
        (
            |_, node| node.certificates.as_mut().unwrap().waits = Some(Condition::default()),
            "HeatNodeCertificateProblem",
            "CertificatesNeedAttention",
            "server expires first, at 2027-01-01T00:00:00Z",
        ),
        (
            |_, node| node.volumes[0].state = Some(ConditionState::Failed),
            "HeatNodeVolumeProblem",
            "VolumeFailed",
            "volume etcd (/var/lib/etcd) failed",
        ),
        (
            |_, node| node.volumes[0].state = Some(ConditionState::Waiting),
            "HeatNodeVolumeProblem",
            "VolumeIsMissing",
            "volume etcd (/var/lib/etcd) is not in place yet",
        ),
        (
            |_, node| node.thin_pool = Some(ThinPoolStatus { wrong: Some("it is full".into()), ..ThinPoolStatus::default() }),
            "HeatNodeVolumeProblem",
            "ThinPoolNeedsAttention",
            "it is full",
        ),
        (
            |_, node| node.pod_network.as_mut().unwrap().wrong = vec!["a".into(), "b".into()],
            "HeatNodePodNetworkProblem",
            "PodNetworkIsIncorrect",
            "a; b",
        ),
        (
            |_, node| node.state = NodeState::Rejected,
            "HeatNodeDeploymentProblem",
            "UpdateFailed",
            "generation 4 of the node failed",
        ),
        (
            |status, _| status.deployments = vec![deployment("script", true, true)],
            "HeatNodeDeploymentProblem",
            "DeploymentFailed",
            "deployment n (1f) failed",
        ),
        (
            |status, _| status.sources = vec![source(3)],
            "HeatNodeOrchestrationProblem",
            "SourceUnreachable",
            "metadata source cfn does not answer",
        ),
        (
            |status, _| status.signals = vec![signal(3), signal(0)],
            "HeatNodeOrchestrationProblem",
            "SignalsWaiting",
            "signals that Heat does not have yet: 1",
        ),
        (
            |status, _| status.deployments[0].undelivered = true,
            "HeatNodeOrchestrationProblem",
            "ResultUndelivered",
            "Heat never got the result of deployment n (1f)",
        ),
        (
            |status, _| status.conditions[0].state = ConditionState::Failed,
            "HeatNodeAgentProblem",
            "AgentNeedsAttention",
            "settings failed",
        ),
    ];
    for (change, kind, reason, message) in table {
        let problems: Vec<_> = with(change).into_iter().filter(|one| one.is_problem).collect();
        let found: Vec<_> = problems.iter().map(|one| (one.kind, one.reason, one.message.as_str())).collect();
        assert_eq!(found, [(kind, reason, message)]);
    }
}

#[test]
fn what_is_not_known_is_left_out_and_before_anything_was_measured_that_is_all() {
    let all = with(|_, node| {
        (node.certificates, node.pod_network) = (None, None);
        node.volumes[0].state = None;
    });
    let kinds: Vec<_> = all.iter().map(|one| one.kind).collect();
    assert_eq!(kinds, [COMPONENTS.name, DRIFT.name, DEPLOYMENTS.name, HEAT.name, AGENT.name]);
    assert_eq!(with(|_, node| node.components.clear()), []);
    assert_eq!(of(&StatusDocument { node: None, ..fine() }), []);
    // What Heat no longer asks for is no problem.
    assert!(with(|status, _| status.deployments = vec![deployment("script", true, false)]).iter().all(|one| !one.is_problem));
}

#[test]
fn a_message_quotes_no_output_of_a_program_and_is_short() {
    let all = with(|_, node| {
        let broken = |number: u32| component(&format!("c{number}"), ComponentState::Failed, Some("not running"));
        node.components = (0..200).map(broken).collect();
    });
    let message = &all[0].message;
    assert!(message.chars().count() == MESSAGE && message.ends_with('…') && !message.contains("hush"), "{message}");
}
