//! The status as metrics in Prometheus' text format, for the textfile collector of node_exporter. Pure.
//!
//! Of the format (<https://prometheus.io/docs/instrumenting/exposition_formats/>) that collector takes no timestamps of samples, and one
//! HELP and TYPE a name; `promtool check metrics` has nothing to say about these names. A metric of which nothing is known is left out.

use super::component::{ComponentState, ComponentStatus};
use super::condition_state::ConditionState;
use super::event::Phase;
use super::status::{DeploymentState, NodeState, NodeStatus, StatusDocument};
use crate::clock::Timestamp;

/// What every name begins with.
const PREFIX: &str = "heat_node_agent";

/// The whole file.
#[must_use]
pub fn page(status: &StatusDocument) -> String {
    let mut page = Page(String::new());
    page.family("build_info", "Version of the agent; always 1.", [(vec![("version", &*status.agent.version)], "1".to_owned())]);
    page.single("start_time_seconds", "When the agent started, since the epoch.", seconds(&status.agent.started));
    let phases = Phase::ALL.map(|phase| (vec![("phase", phase.as_str())], flag(phase == status.phase)));
    page.family("phase", "What the agent is doing: 1 for the current phase.", phases);
    page.single("degraded", "Whether something failed or waits: 1 where `heat-node-agent status` exits with 2.", {
        Some(flag(status.is_degraded()))
    });
    let good = status.sources.iter().filter_map(|source| {
        let at = source.last_good.as_deref().and_then(seconds)?;
        Some((vec![("source", &*source.name)], at))
    });
    page.family("source_last_success_timestamp_seconds", "When a metadata source last answered, since the epoch.", good);
    let failures = status.sources.iter().map(|source| (vec![("source", &*source.name)], source.failures.to_string()));
    page.family("source_failures", "Failed polls of a metadata source since its last answer.", failures);
    deployments(&mut page, status);
    page.single("signals_waiting", "Signals that Heat does not have yet.", Some(status.signals.len().to_string()));
    let oldest = status.signals.iter().filter_map(|signal| signal.since.as_deref()).filter_map(Timestamp::parse_rfc3339).min();
    page.single("signals_oldest_timestamp_seconds", "When the oldest signal that waits was stored, since the epoch.", {
        oldest.map(|at| (at.0 / 1000).to_string())
    });
    if let Some(node) = &status.node {
        self::node(&mut page, node);
    }
    page.0
}

fn deployments(page: &mut Page, status: &StatusDocument) {
    let listed = || status.deployments.iter().filter(|one| one.listed);
    let counts = DeploymentState::ALL.map(|state| {
        let count = listed().filter(|one| one.state == state).count();
        (vec![("state", state.as_str())], count.to_string())
    });
    page.family("deployments", "Deployments that the metadata lists, by state.", counts);
    let failed = listed().filter(|one| one.failed).count();
    page.single("deployments_failed", "Deployments that the metadata lists and that failed.", Some(failed.to_string()));
    let undelivered = listed().filter(|one| one.undelivered).count();
    page.single("deployments_undelivered", "Deployments that the metadata lists and whose result Heat never got.", {
        Some(undelivered.to_string())
    });
}

fn node(page: &mut Page, node: &NodeStatus) {
    page.single("node_generation", "Number of the node's newest generation of parameters.", Some(node.generation.to_string()));
    let states = NodeState::ALL.map(|state| (vec![("state", state.as_str())], flag(node.state == state)));
    page.family("node_state", "What became of that generation: 1 for its state.", states);
    let complete = node.in_place.or_else(|| (node.state == NodeState::Applied).then_some(node.generation));
    page.single(
        "node_generation_in_place",
        "Number of the generation that the node has as a whole.",
        complete.map(|number| number.to_string()),
    );
    page.single("node_drifted", "Whether the node differs from its parameters.", (!node.unchecked).then(|| flag(node.drifted)));
    let took =
        node.step_timings.iter().map(super::step_timing::StepTiming::ended_ms).max().filter(|_| node.state == NodeState::Applied);
    page.single("node_bring_up_seconds", "How long the newest bring-up of the node took.", took.map(from_ms));
    let up = node.components.iter().map(|one| (component(one), flag(one.state == ComponentState::Healthy)));
    page.family("component_up", "Whether a component of the node is healthy now, as measured.", up);
    let restarts = node.components.iter().map(|one| (component(one), one.restarts.to_string()));
    page.family("component_restarts", "How often systemd started a component's unit again by itself.", restarts);
    let ends = node.certificates.iter().flat_map(|all| &all.ends);
    let ends = ends.filter_map(|one| Some((vec![("certificate", &*one.name)], seconds(&one.end)?)));
    page.family("certificate_expiry_timestamp_seconds", "When a certificate of the node expires, since the epoch.", ends);
    let volumes =
        node.volumes.iter().filter_map(|one| Some((vec![("volume", &*one.name)], flag(one.state? == ConditionState::Ok))));
    page.family("volume_in_place", "Whether a volume of the node was found and is mounted.", volumes);
    let used = node.thin_pool.iter().flat_map(|pool| [("data", &pool.data_percent), ("metadata", &pool.metadata_percent)]);
    let used = used.filter_map(|(part, percent)| Some((vec![("part", part)], percent.clone()?)));
    page.family("thin_pool_used_percent", "How much of docker's thin pool is used.", used);
    let snapshots = node.etcd_snapshots.as_ref();
    page.single("etcd_snapshots", "Snapshots of etcd that are kept.", snapshots.map(|all| all.kept.to_string()));
    page.single(
        "etcd_snapshot_timestamp_seconds",
        "When the newest snapshot of etcd was taken, since the epoch.",
        snapshots.and_then(|all| seconds(all.newest.as_deref()?)),
    );
    page.single(
        "etcd_snapshot_failed",
        "Whether the newest try to take a snapshot of etcd failed.",
        snapshots.map(|all| flag(all.wrong.is_some())),
    );
    let wrong = node.thin_pool.as_ref().is_some_and(|pool| pool.wrong.is_some()) || node.has_volume_problem();
    page.single(
        "storage_problem",
        "Whether a volume in use or docker's thin pool needs somebody: one is full, gone or read-only.",
        Some(flag(wrong)),
    );
    let wrong = node.pod_network.as_ref().map(|network| network.wrong.len().to_string());
    page.single("pod_network_problems", "What is wrong with the pod network, counted.", wrong);
    let wrong = node.service_account_keys.as_ref().map(|keys| keys.wrong.len().to_string());
    page.single(
        "service_account_key_problems",
        "Other masters that do not verify this one's service account tokens, or whose tokens it does not verify.",
        wrong,
    );
}

fn component(one: &ComponentStatus) -> Vec<(&'static str, &str)> {
    vec![("component", &*one.name), ("unit", one.unit.as_deref().unwrap_or_default())]
}

/// Families of samples, all of them gauges: what is counted here may go down when the agent starts again.
struct Page(String);

impl Page {
    fn single(&mut self, name: &str, help: &str, value: Option<String>) {
        self.family(name, help, value.map(|value| (Vec::new(), value)));
    }

    fn family<'a>(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = (Vec<(&'a str, &'a str)>, String)>) {
        let mut lines = String::new();
        for (labels, value) in samples {
            let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            lines.push_str(&format!("{PREFIX}_{name}{labels} {value}\n"));
        }
        if !lines.is_empty() {
            self.0.push_str(&format!("# HELP {PREFIX}_{name} {help}\n# TYPE {PREFIX}_{name} gauge\n{lines}"));
        }
    }
}

/// A label's value: the three characters that the format escapes.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn flag(is: bool) -> String {
    u8::from(is).to_string()
}

fn seconds(at: &str) -> Option<String> {
    Timestamp::parse_rfc3339(at).map(|at| (at.0 / 1000).to_string())
}

fn from_ms(ms: u64) -> String {
    format!("{}.{:03}", ms / 1000, ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::status::ThinPoolStatus;
    use crate::report::status::{
        AgentStatus, CertificateEnd, CertificatesStatus, DeploymentStatus, MetadataStatus, SCHEMA_VERSION, SignalStatus,
        SourceStatus,
    };
    use crate::report::step_timing::StepTiming;
    use crate::report::volume::VolumeStatus;

    fn deployment(state: DeploymentState, listed: bool, failed: bool) -> DeploymentStatus {
        DeploymentStatus { state, listed, failed, undelivered: failed, ..DeploymentStatus::signalled() }
    }

    fn status() -> StatusDocument {
        let source = |name: &str, last_good: Option<&str>, failures| SourceStatus {
            name: name.into(),
            last_good: last_good.map(str::to_owned),
            older: false,
            failures,
            cause: None,
            remedy: None,
            next_try: None,
        };
        let end = |name: &str| CertificateEnd { name: name.into(), end: "2027-01-01T00:00:00Z".into() };
        let volume = |name: &str, state| VolumeStatus { name: name.into(), state, ..VolumeStatus::default() };
        let timing = |began_ms, took_ms| StepTiming { step: "gate etcd".into(), began_ms, took_ms, ..StepTiming::default() };
        StatusDocument {
            schema_version: SCHEMA_VERSION,
            agent: AgentStatus { version: "0.1 \"x\\y\n".into(), pid: 7, started: "2026-03-01T12:00:00Z".into() },
            identity: None,
            phase: Phase::Steady,
            summary: "ok".into(),
            sources: vec![source("cfn", Some("2026-03-01T12:00:01Z"), 0), source("heat", None, 3)],
            deployments: vec![
                deployment(DeploymentState::Signalled, true, false),
                deployment(DeploymentState::Finished, true, true),
                deployment(DeploymentState::Signalled, false, true),
            ],
            node: Some(NodeStatus {
                generation: 4,
                state: NodeState::Applied,
                drifted: true,
                step_timings: vec![timing(0, 1500), timing(1500, 38)],
                components: vec![
                    ComponentStatus { name: "etcd".into(), unit: Some("etcd.service".into()), ..ComponentStatus::default() },
                    ComponentStatus {
                        name: "api".into(),
                        state: ComponentState::Failed,
                        restarts: 11,
                        ..ComponentStatus::default()
                    },
                ],
                certificates: Some(CertificatesStatus {
                    ends: vec![end("server"), end("peer")],
                    ..CertificatesStatus::default()
                }),
                volumes: vec![
                    volume("etcd", Some(ConditionState::Ok)),
                    volume("runtime", Some(ConditionState::Waiting)),
                    volume("new", None),
                ],
                thin_pool: Some(ThinPoolStatus {
                    data_percent: Some("97.10".into()),
                    wrong: Some("97 % of the 800 MiB for data".into()),
                    ..ThinPoolStatus::default()
                }),
                ..NodeStatus::default()
            }),
            signals: vec![SignalStatus {
                to: "http://h/".into(),
                deployment: None,
                tries: 1,
                cause: None,
                remedy: None,
                since: Some("2026-03-01T12:00:02Z".into()),
                next_try: None,
            }],
            conditions: Vec::new(),
            metadata: MetadataStatus::default(),
            budgets: Vec::new(),
            set_aside: Vec::new(),
        }
    }

    #[test]
    fn every_fact_of_the_status_is_a_sample() {
        let page = page(&status());
        for line in [
            "heat_node_agent_build_info{version=\"0.1 \\\"x\\\\y\\n\"} 1",
            "heat_node_agent_start_time_seconds 1772366400",
            "heat_node_agent_phase{phase=\"steady\"} 1",
            "heat_node_agent_phase{phase=\"units\"} 0",
            "heat_node_agent_degraded 1",
            "heat_node_agent_source_last_success_timestamp_seconds{source=\"cfn\"} 1772366401",
            "heat_node_agent_source_failures{source=\"heat\"} 3",
            "heat_node_agent_deployments{state=\"signalled\"} 1",
            "heat_node_agent_deployments_failed 1",
            "heat_node_agent_deployments_undelivered 1",
            "heat_node_agent_signals_waiting 1",
            "heat_node_agent_signals_oldest_timestamp_seconds 1772366402",
            "heat_node_agent_node_generation 4",
            "heat_node_agent_node_state{state=\"applied\"} 1",
            "heat_node_agent_node_state{state=\"rejected\"} 0",
            "heat_node_agent_node_generation_in_place 4",
            "heat_node_agent_node_drifted 1",
            "heat_node_agent_volume_in_place{volume=\"etcd\"} 1",
            "heat_node_agent_volume_in_place{volume=\"runtime\"} 0",
            "heat_node_agent_thin_pool_used_percent{part=\"data\"} 97.10",
            "heat_node_agent_storage_problem 1",
            "heat_node_agent_node_bring_up_seconds 1.538",
            "heat_node_agent_component_up{component=\"etcd\",unit=\"etcd.service\"} 1",
            "heat_node_agent_component_up{component=\"api\",unit=\"\"} 0",
            "heat_node_agent_component_restarts{component=\"api\",unit=\"\"} 11",
            "heat_node_agent_certificate_expiry_timestamp_seconds{certificate=\"server\"} 1798761600",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in {page}");
        }
        assert!(!page.contains("volume=\"new\"") && !page.contains("part=\"metadata\""), "{page}");
        assert!(!page.contains("{source=\"heat\"} 0\n") && !page.contains("last_success_timestamp_seconds{source=\"heat\"}"));
    }

    /// What node_exporter refuses whole, and what `promtool check metrics` complains about.
    #[test]
    fn the_page_is_in_the_form_that_the_collector_takes() {
        let page = page(&status());
        let (mut seen, mut family, mut samples) = (Vec::new(), String::new(), Vec::new());
        assert!(page.ends_with('\n') && !page.contains("\n\n"));
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap();
                assert!(help.ends_with('.') && !seen.contains(&name.to_owned()), "{line}");
                seen.push(name.to_owned());
                family = name.to_owned();
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                assert_eq!(rest, format!("{family} gauge"));
            } else {
                let (sample, value) = line.rsplit_once(' ').unwrap();
                let name = sample.split('{').next().unwrap();
                assert_eq!(name, family, "{line}");
                assert!(value.parse::<f64>().is_ok(), "{line}");
                assert!(!samples.contains(&sample.to_owned()), "{line} twice");
                samples.push(sample.to_owned());
                for end in ["_total", "_count", "_sum", "_bucket", "_ms", "_gauge"] {
                    assert!(!name.ends_with(end), "{name}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let page = page(&StatusDocument { node: None, signals: Vec::new(), sources: Vec::new(), ..status() });
        for name in ["agent_node_", "certificate_expiry", "oldest", "source_"] {
            assert!(!page.contains(name), "{name} in {page}");
        }
        assert!(page.contains("heat_node_agent_signals_waiting 0\n"));
    }
}
