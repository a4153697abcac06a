//! `DRAIN`: an update that restarts the container runtime, or changes Kubernetes' minor, has the node emptied of pods first, and take pods again
//! once it has succeeded or was rolled back.
//!
//! Nothing that fails on the way holds up the update beyond a limit. Pods are kept off a node by the agent only if nobody else did: a file in
//! the state directory says so from before the first request on, and the node takes pods again only if it is there.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use super::Node;
use super::in_place::InPlace;
use super::monitor::node_object;
use super::once::mark;
use crate::converge;
use crate::desired::Desired;
use crate::error::{Error, ErrorKind, Result};
use crate::keepers::drain::Drain;
use crate::kubernetes::{NodeSpec, runtime_unit};
use crate::report::text::{argument, shortened};
use crate::report::{Code, Event, Phase};
use crate::systemd::Systemd;

/// That the agent keeps pods off the node.
const CORDONED: &str = "cordoned.json";
const STEP: &str = "drain";
/// The longest time that pods are waited for.
const LONGEST: Duration = Duration::from_mins(5);
/// The same of the API for what takes one request.
const API_LIMIT: Duration = Duration::from_secs(10);

/// Why an update drains the node first; nothing where it does not.
pub(super) fn reason(before: &NodeSpec, after: &NodeSpec, restart: &[String]) -> Option<&'static str> {
    if !after.drain || after.kubernetes.is_none() {
        None
    } else if restart.iter().any(|unit| unit == runtime_unit(after)) {
        Some("its container runtime is to be restarted")
    } else if before.minor() != after.minor() {
        Some("it goes to another minor of Kubernetes")
    } else {
        None
    }
}

impl Node {
    /// Empties the node before such an update; whatever comes of that, the update goes on.
    pub(super) async fn drain_first(
        &self,
        before: &InPlace,
        (spec, desired): (&NodeSpec, &Desired),
        systemd: &Systemd,
        replaced: &BTreeSet<String>,
        (generation, deadline): (u64, Duration),
    ) {
        if !spec.drain {
            return;
        }
        // What cannot be looked at now fails where it is needed.
        let Ok(mut observed) = converge::observe(desired, &self.host.root, systemd).await else { return };
        observed.pending.extend(replaced.iter().cloned());
        let Some(why) = reason(&before.spec, spec, &converge::plan(desired, &observed).restart) else { return };
        let step = self.progress.begin_next(STEP);
        let limit = (deadline / 4).min(LONGEST);
        let event = match self.drain(before, generation, limit).await {
            Ok(left) if left.is_empty() => Event::new(Code::NodeDrained, format!("drained the node, as {why}")),
            Ok(left) => {
                let line =
                    format!("{} pods are left on the node after {} s, and the update goes on", left.len(), limit.as_secs());
                failed(line, &before.desired, KubectlVerb::Drain).cause(shortened(&left.join("; "), 1000))
            }
            Err(error) => failed("the node could not be drained, and the update goes on", &before.desired, KubectlVerb::Drain)
                .cause(error.to_string()),
        };
        self.host.report.emit(event.phase(Phase::Units).step(STEP).generation(generation));
        self.progress.end(&step);
    }

    /// The pods that are left.
    async fn drain(&self, before: &InPlace, generation: u64, limit: Duration) -> Result<Vec<String>> {
        let node = node_object(&before.desired);
        let (node, cluster) = node
            .zip(before.spec.kubernetes.as_ref())
            .ok_or_else(|| Error::refused("its name in the cluster's API is not known"))?;
        let (drain, running) = (Drain::of(&self.http, &node), self.host.clock.start());
        match drain.is_cordoned(limit.min(API_LIMIT)).await? {
            None => return Ok(Vec::new()),
            Some(true) => {}
            Some(false) => {
                mark(&self.host.state, CORDONED, generation)?;
                if let Err(error) = drain.cordon(true, limit.min(API_LIMIT)).await {
                    // One that was not answered may have been carried out.
                    if error.kind() != ErrorKind::Transient {
                        self.host.state.remove(Path::new(CORDONED))?;
                    }
                    return Err(error);
                }
            }
        }
        drain.evict(cluster.minor.number(), limit.saturating_sub(running.elapsed())).await
    }

    /// Has the node take pods again where the agent kept them off.
    pub(super) async fn uncordon(&self, desired: &Desired, generation: u64) {
        if !self.is_cordoned() {
            return;
        }
        let uncordoned = async {
            if let Some(node) = node_object(desired) {
                let drain = Drain::of(&self.http, &node);
                if drain.is_cordoned(API_LIMIT).await? == Some(true) {
                    drain.cordon(false, API_LIMIT).await?;
                }
            }
            self.host.state.remove(Path::new(CORDONED))
        };
        let event = match uncordoned.await {
            Ok(_) => Event::new(Code::NodeDrained, "the node takes pods again"),
            Err(error) => failed("the node is still cordoned", desired, KubectlVerb::Uncordon).cause(error.to_string()),
        };
        self.host.report.emit(event.phase(Phase::Steady).step(STEP).generation(generation));
    }

    /// A node that stays cordoned after an update that failed is the operator's as soon as it takes pods: the next cordon is theirs.
    pub(super) async fn leave_cordon_to_others(&self, desired: &Desired) -> Result<()> {
        let Some(node) = node_object(desired).filter(|_| self.is_cordoned()) else { return Ok(()) };
        if Drain::of(&self.http, &node).is_cordoned(API_LIMIT).await.is_ok_and(|cordoned| cordoned == Some(false)) {
            self.host.state.remove(Path::new(CORDONED))?;
        }
        Ok(())
    }

    /// Says that an update that failed leaves the node without pods.
    pub(super) fn report_cordoned(&self, desired: &Desired, generation: u64) {
        if self.is_cordoned() {
            let line = "the node stays cordoned until an update succeeds";
            self.host.report.emit(failed(line, desired, KubectlVerb::Uncordon).step(STEP).generation(generation));
        }
    }

    fn is_cordoned(&self) -> bool {
        self.host.state.facts(Path::new(CORDONED)).is_ok_and(|facts| facts.is_some())
    }
}

/// What the operator does by hand where the agent could not.
#[derive(Clone, Copy)]
enum KubectlVerb {
    Drain,
    Uncordon,
}

/// That something could not be done, with the command for it.
fn failed(line: impl Into<String>, desired: &Desired, verb: KubectlVerb) -> Event {
    let node = node_object(desired);
    let name = node.as_ref().and_then(|node| node.url.rsplit('/').next()).unwrap_or("NODE");
    let name = argument(name);
    Event::new(Code::DrainFailed, line).remedy(match verb {
        KubectlVerb::Drain => format!("`kubectl drain {name} --ignore-daemonsets --delete-emptydir-data`"),
        KubectlVerb::Uncordon => format!("`kubectl uncordon {name}`"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::node::spec_of;
    use crate::daemon::node::upgrade::tests::entry;

    fn spec(tag: &str, drain: bool) -> NodeSpec {
        spec_of(&entry(tag, if drain { &[("DRAIN", "true")] } else { &[] })).unwrap()
    }

    #[test]
    fn a_node_is_drained_where_its_containers_end_or_its_kubelet_is_another_and_it_is_asked_for() {
        let (runtime, minor) = (Some("its container runtime is to be restarted"), Some("it goes to another minor of Kubernetes"));
        for (after, drain, restart, expected) in [
            ("v1.28.9", true, vec!["containerd.service", "kubelet.service"], runtime),
            ("v1.28.9", true, vec!["docker.service"], None),
            ("v1.28.9", true, vec!["kubelet.service"], None),
            ("v1.29.3", true, vec!["kubelet.service"], minor),
            ("v1.29.3", false, vec!["containerd.service"], None),
        ] {
            let restart: Vec<String> = restart.into_iter().map(str::to_owned).collect();
            assert_eq!(reason(&spec("v1.28.9", false), &spec(after, drain), &restart), expected, "{after} {drain} {restart:?}");
        }
    }
}
