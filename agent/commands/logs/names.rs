//! What a name means: a deployment, or a component of the node.
//!
//! `NAME.service` is always the unit. Any other name is a deployment's where one has exactly this id or name, then a component's, then
//! the beginning of an id.

use crate::daemon::{NodeUnits, UNIT};
use crate::deploy::{DeploymentRecord, choose};
use crate::error::{Error, Result};
use crate::network::FIREWALL_UNIT;

/// Units beside those of the node whose journals are of use.
pub(in crate::commands) const UNITS: [&str; 10] = [
    UNIT,
    "heat-node-agent-guard.service",
    "heat-node-pod-network.service",
    FIREWALL_UNIT,
    "cloud-init-local.service",
    "cloud-init.service",
    // Since cloud-init 24.3: the process of all stages, and the network stage's new name.
    "cloud-init-main.service",
    "cloud-init-network.service",
    "cloud-config.service",
    "cloud-final.service",
];

/// The container runtime, whichever the node has.
const RUNTIME: &str = "runtime";
/// The agent itself.
const AGENT: &str = "agent";
/// Names of deployments that an error lists.
const LISTED: usize = 8;

/// What is meant.
#[derive(Debug)]
pub(super) enum Selection<'a> {
    /// A deployment; and the unit of the same name, which is not meant.
    Deployment(&'a DeploymentRecord, Option<String>),
    /// A unit.
    Unit(String),
}

/// What a name means.
///
/// # Errors
/// If there is nothing of that name: with what there is; or more than one deployment whose id begins so.
pub(super) fn selected<'a>(name: &str, records: &'a [DeploymentRecord], units: &NodeUnits) -> Result<Selection<'a>> {
    let unit = unit_of(name, units);
    if let Some(unit) = unit.clone().filter(|_| name.ends_with(".service")) {
        return Ok(Selection::Unit(unit));
    }
    let newest = |is: fn(&DeploymentRecord, &str) -> bool| records.iter().rev().find(|record| is(record, name));
    let known = newest(|record, name| record.id == name).or_else(|| newest(|record, name| record.name == name));
    match (known, unit) {
        (Some(record), unit) => Ok(Selection::Deployment(record, unit)),
        (None, Some(unit)) => Ok(Selection::Unit(unit)),
        (None, None) if !name.is_empty() && records.iter().any(|record| record.id.starts_with(name)) => {
            choose(&records.iter().collect::<Vec<_>>(), name).map(|record| Selection::Deployment(record, None))
        }
        (None, None) => Err(unknown(name, records, units)),
    }
}

fn unit_of(name: &str, units: &NodeUnits) -> Option<String> {
    match (name, units.runtime) {
        (RUNTIME, runtime) => runtime.map(str::to_owned),
        (AGENT, _) => Some(UNIT.to_owned()),
        _ => {
            let unit = format!("{}.service", name.strip_suffix(".service").unwrap_or(name));
            all(units).find(|one| *one == unit).map(str::to_owned)
        }
    }
}

fn all(units: &NodeUnits) -> impl Iterator<Item = &str> {
    units.all.iter().map(String::as_str).filter(|unit| !UNITS.contains(unit)).chain(UNITS)
}

/// What can be named beside deployments: `etcd, kubelet, runtime (containerd), agent, …`.
pub(super) fn components(units: &NodeUnits) -> String {
    let plain = |unit: &str| unit.strip_suffix(".service").unwrap_or(unit).to_owned();
    let runtime = units.runtime.map(|unit| format!("{RUNTIME} ({})", plain(unit)));
    all(units).map(plain).chain(runtime).collect::<Vec<_>>().join(", ")
}

fn unknown(name: &str, records: &[DeploymentRecord], units: &NodeUnits) -> Error {
    let mut names: Vec<&str> = records.iter().rev().map(|record| record.name.as_str()).filter(|name| !name.is_empty()).collect();
    names.dedup();
    let more = if names.len() > LISTED { ", …" } else { "" };
    names.truncate(LISTED);
    let deployments = if names.is_empty() { "none".to_owned() } else { names.join(", ") + more };
    Error::permanent(format!("there is no deployment and no component {name:?}"))
        .rule(format!("there are the components {}; deployments: {deployments}", components(units)))
        .remedy(
            "`heat-node-agent logs` lists the deployments with their ids; `journalctl -u UNIT` shows any other unit's journal",
        )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::{Clock, Timestamp};
    use crate::deploy::{DeploymentOutcome, Journal};
    use crate::files::Tree;
    use crate::metadata::SignalTarget;
    use crate::report::Report;

    fn records(ids_and_names: &[(&str, &str)]) -> Vec<DeploymentRecord> {
        let dir = tempfile::tempdir().unwrap();
        let state = Arc::new(Tree::open(dir.path()).unwrap());
        let mut journal = Journal::open(state, None, 9, Clock::manual(Timestamp(0)), &Report::kept()).unwrap();
        let mut record = |(id, name): &(&str, &str)| {
            journal.refuse(id, name, SignalTarget::None, None, DeploymentOutcome::default()).unwrap();
            journal.get(id).unwrap().clone()
        };
        ids_and_names.iter().map(&mut record).collect()
    }

    #[test]
    fn a_unit_has_its_ending_a_deployment_its_exact_name_and_a_component_comes_before_the_beginning_of_an_id() {
        let all = ["kubelet.service", "containerd.service"].map(str::to_owned).to_vec();
        let node = NodeUnits { all, runtime: Some("containerd.service") };
        let records = records(&[("e1", "setup"), ("kube-9", "kubelet"), ("x1", "x"), ("ee", "setup")]);
        let shown = |name: &str| match selected(name, &records, &node) {
            Ok(Selection::Deployment(record, beside)) => format!("{} {beside:?}", record.id),
            Ok(Selection::Unit(unit)) => unit,
            Err(error) => error.to_string(),
        };
        for (name, expected) in [
            ("kubelet.service", "kubelet.service"),
            ("kubelet", "kube-9 Some(\"kubelet.service\")"),
            ("containerd", "containerd.service"),
            ("runtime", "containerd.service"),
            ("agent", "heat-node-agent.service"),
            ("heat-node-agent", "heat-node-agent.service"),
            ("setup", "ee None"),
            ("kube-", "kube-9 None"),
            ("e", "2 deployments match \"e\""),
            ("docker", "there is no deployment and no component \"docker\""),
            ("", "there is no deployment and no component \"\""),
        ] {
            assert_eq!(shown(name), expected, "{name}");
        }
        let error = selected("docker", &records, &node).unwrap_err();
        let lines = error.lines().join("\n");
        assert!(lines.contains("kubelet, containerd, heat-node-agent,") && lines.contains("runtime (containerd)"), "{lines}");
        assert!(lines.contains("deployments: setup, x, kubelet, setup"), "{lines}");
        assert!(selected("runtime", &[], &NodeUnits::default()).unwrap_err().lines().join("\n").contains("deployments: none"));
    }
}
