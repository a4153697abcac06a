//! Keeps watch on the network of pods of a node in place: leases, routes and packets, a few times a minute. flannel loses events and does
//! not always try again (seed-systems.md 8d), and nothing else on the node would notice.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use super::Node;
use super::findings::{EVERY, Finding, RouteAction, SPREAD_MS};
use crate::clock::Stopwatch;
use crate::converge::flannel::inspection::{SubnetInspection, code, inspect};
use crate::converge::flannel::packets::{self, PacketVerdict};
use crate::converge::flannel::{Leases, PodNetwork as _};
use crate::converge::has_pending_restart;
use crate::deploy::{AppliedExtent, Reference};
use crate::desired::{GateProbe, Peers, PodRoutes};
use crate::error::Error;
use crate::network::POD_NETWORK_UNIT;
use crate::report::status::PodNetworkStatus;
use crate::report::{Code, Event, Phase};

/// Until the second look at what is wrong: flanneld hears of a lease within milliseconds, where it hears of it. So it is reported within
/// 6 s, and a restart of flanneld still ends within 10 s.
const AGAIN: Duration = Duration::from_millis(1500);
/// Between two looks at packets, as long as they arrive at the same peers.
const PACKETS_EVERY: Duration = Duration::from_mins(1);

/// What is watched.
struct Watched {
    pods: PodRoutes,
    gate: String,
    repair: bool,
    generation: u64,
}

impl Watched {
    /// Nothing where the node has no such network.
    fn of(node: &Node, reference: &Reference) -> Option<Self> {
        let in_place = node.in_place(reference).ok()?;
        let repair = in_place.spec.repair;
        let mut watched = in_place.desired.gates.iter().find_map(|gate| match &gate.probe {
            GateProbe::PodRoutes(pods) => {
                Some(Self { pods: pods.clone(), gate: gate.name.clone(), repair, generation: reference.generation })
            }
            _ => None,
        })?;
        // After a failed update a restart may be what would carry it out.
        watched.repair &= reference.extent == AppliedExtent::Whole || !has_pending_restart(&node.host.root, watched.unit());
        Some(watched)
    }

    fn unit(&self) -> &'static str {
        match self.pods.peers {
            Peers::Leases(_) => "flanneld.service",
            Peers::Given(_) => POD_NETWORK_UNIT,
        }
    }

    fn event(&self, code: Code, line: &str) -> Event {
        Event::new(code, line).phase(Phase::Steady).gate(&self.gate).unit(self.unit()).generation(self.generation)
    }

    fn status(&self, inspection: &SubnetInspection, wrong: &[Finding]) -> PodNetworkStatus {
        PodNetworkStatus {
            driver: if matches!(self.pods.peers, Peers::Leases(_)) { "flannel host-gw" } else { "static-routes" }.to_owned(),
            subnet: inspection.subnet.map(|subnet| subnet.to_string()),
            peers: inspection.others.len(),
            wrong: wrong.iter().map(|finding| finding.cause.clone()).collect(),
            remedy: wrong.first().map(|finding| finding.code.entry().remedy.to_owned()),
            since: String::new(),
        }
    }
}

/// Packets, as they arrived last.
struct Packets {
    since: Stopwatch,
    of: SubnetInspection,
    bad: Option<Finding>,
}

impl Node {
    /// Watches until something of it changes, against `shown`; nothing where there is no such network. Safe to drop.
    pub(in crate::daemon) async fn watch_pods(
        &self,
        reference: &Reference,
        shown: Option<PodNetworkStatus>,
    ) -> Option<PodNetworkStatus> {
        let systemd = self.host.systemd.as_ref()?;
        let watched = Watched::of(self, reference)?;
        let flanneld = match &watched.pods.peers {
            Peers::Leases(_) => self.known.machine.flanneld(&self.backend(systemd), &self.host).await,
            Peers::Given(_) => None,
        };
        let (mut leases, mut packets, mut round) = (None, None, 0);
        loop {
            let spread = RandomState::new().build_hasher().finish() % SPREAD_MS;
            let is_unsure = self.pods.borrow().is_unsure();
            self.host.clock.wait(if is_unsure { AGAIN } else { EVERY + Duration::from_millis(spread) }).await;
            let peers = match &watched.pods.peers {
                Peers::Leases(store) => leases.get_or_insert_with(|| Leases::open(&self.http, store, flanneld)).read().await,
                Peers::Given(_) => Ok(Vec::new()),
            };
            let unknown = |error: &Error| Finding { code: Code::LeasesUnknown, cause: error.to_string() };
            let (inspection, found) = match peers.and_then(|peers| inspect(&self.host.root, &watched.pods, &peers)) {
                Ok(inspection) => {
                    let mut found: Vec<Finding> =
                        inspection.wrong.iter().map(|wrong| Finding { code: code(wrong), cause: wrong.to_string() }).collect();
                    let is_due = packets.as_ref().is_none_or(|last: &Packets| {
                        last.bad.is_some() || last.of != inspection || last.since.elapsed() >= PACKETS_EVERY
                    });
                    if is_due {
                        round += 1;
                        let bad = self.packets(&watched, &inspection, round).await;
                        packets = Some(Packets { since: self.host.clock.start(), of: inspection.clone(), bad });
                    }
                    found.extend(packets.as_ref().and_then(|last| last.bad.clone()));
                    (inspection, found)
                }
                Err(error) => {
                    // Certificates may have changed: the next connection reads them.
                    leases = None;
                    (SubnetInspection::default(), vec![unknown(&error)])
                }
            };
            let is_unknown = inspection == SubnetInspection::default();
            let actions = self.pods.borrow_mut().take(found, watched.repair, &self.host.clock);
            for action in actions {
                self.carry_out(&watched, &action).await;
            }
            let mut status = watched.status(&inspection, self.pods.borrow().reported_once.reported());
            if let Some(shown) = &shown {
                if is_unknown {
                    (status.subnet, status.peers) = (shown.subnet.clone(), shown.peers);
                }
                status.since.clone_from(&shown.since);
                if status == *shown {
                    continue;
                }
            }
            if shown.as_ref().is_none_or(|shown| shown.wrong != status.wrong) {
                status.since = self.host.clock.now().rfc3339();
            }
            return Some(status);
        }
    }

    async fn packets(&self, watched: &Watched, inspection: &SubnetInspection, round: usize) -> Option<Finding> {
        let questions = inspection.questions(&self.host.root, round).unwrap_or_default();
        match packets::verdict(&self.http.send(&questions).await) {
            PacketVerdict::Ok => None,
            PacketVerdict::Lost(peers) => {
                Some(Finding { code: Code::PodPacketsLost, cause: packets::lost(watched.pods.network, &peers) })
            }
            PacketVerdict::Silent(peers) => {
                let cause = format!("pod traffic does not reach {}", packets::named(&peers));
                Some(Finding { code: Code::PeerSilent, cause })
            }
        }
    }

    async fn carry_out(&self, watched: &Watched, action: &RouteAction) {
        match action {
            RouteAction::Report(finding) => {
                let remedy = finding.code.remedy();
                self.host.report.emit(watched.event(finding.code, &finding.cause).cause(&finding.cause).remedy(remedy));
            }
            RouteAction::Recovered => {
                self.host.report.emit(watched.event(Code::PodNetworkRecovered, "the pod network has recovered"));
            }
            RouteAction::Repair(cause) => {
                let unit = watched.unit();
                self.host
                    .report
                    .emit(watched.event(Code::PodNetworkRepair, &format!("{unit} is restarted: {cause}")).cause(cause));
                let Some(systemd) = &self.host.systemd else { return };
                if let Err(error) = systemd.restart(unit).await {
                    self.host.report.emit(watched.event(Code::UnitFailed, &format!("{unit} cannot be restarted")).error(&error));
                }
            }
        }
    }
}
