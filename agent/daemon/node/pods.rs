//! Keeps watch on the network of pods of a node in place: leases, routes and packets, a few times a minute. flannel loses events and does
//! not always try again (seed-systems.md 8d), and nothing else on the node would notice.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use super::Node;
use crate::clock::{Stopwatch, Timestamp};
use crate::converge::flannel::look::{Sight, code, look};
use crate::converge::flannel::packets::{self, Verdict};
use crate::converge::flannel::{Leases, PodNetwork as _};
use crate::converge::has_pending_restart;
use crate::deploy::{Extent, Reference};
use crate::desired::{Peers, PodRoutes, Probe};
use crate::error::Error;
use crate::kubernetes::{self, Leave};
use crate::metadata::Deployment;
use crate::network::POD_NETWORK_UNIT;
use crate::report::damper::Damper;
use crate::report::status::PodNetworkStatus;
use crate::report::{Code, Event, Phase};

/// Between two looks, and up to half a second more, so that the nodes of a cluster do not ask etcd at the same moment.
const EVERY: Duration = Duration::from_secs(4);
const SPREAD_MS: u64 = 500;
/// Until the second look at what is wrong: flanneld hears of a lease within milliseconds, where it hears of it. So it is told within
/// 6 s, and a restart of flanneld still ends within 10 s.
const AGAIN: Duration = Duration::from_millis(1500);
/// Between two looks at packets, as long as they arrive at the same peers.
const PACKETS_EVERY: Duration = Duration::from_mins(1);
/// A unit is not restarted again for the same cause before this has passed.
const REPAIRED_FOR: Duration = Duration::from_hours(1);
/// Nor for another one before this has.
const BETWEEN_REPAIRS: Duration = Duration::from_mins(1);

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    code: Code,
    cause: String,
}

/// What a look leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Effect {
    /// It is wrong for the second time.
    Tell(Finding),
    /// The unit that sets routes is restarted for this cause.
    Repair(String),
    /// All is right again.
    Well,
}

/// What was found before.
#[derive(Debug, Default)]
pub(in crate::daemon) struct Memory {
    last: Vec<Finding>,
    told: Damper<Finding>,
    repaired: Vec<(String, Timestamp)>,
}

impl Memory {
    /// Whether something was wrong at the last look alone.
    fn is_unsure(&self) -> bool {
        self.last.iter().any(|finding| !self.told.reported().contains(finding))
    }

    /// Takes in what a look found.
    fn take(&mut self, found: Vec<Finding>, repair: bool, now: Timestamp) -> Vec<Effect> {
        let confirmed: Vec<Finding> = found.iter().filter(|finding| self.last.contains(finding)).cloned().collect();
        // One of several causes that went says nothing of the others.
        let has_recovered = found.is_empty() && !self.told.reported().is_empty();
        let mut effects: Vec<Effect> = self.told.news(&confirmed).into_iter().map(Effect::Tell).collect();
        effects.extend(has_recovered.then_some(Effect::Well));
        self.repaired.retain(|(_, at)| now.since(*at) < REPAIRED_FOR);
        let rests = self.repaired.iter().any(|(_, at)| now.since(*at) < BETWEEN_REPAIRS);
        let is_new = |finding: &&Finding| {
            matches!(finding.code, Code::RouteMissing | Code::RouteElsewhere | Code::RouteOwn)
                && !self.repaired.iter().any(|(cause, _)| *cause == finding.cause)
        };
        let causes: Vec<String> = self.told.reported().iter().filter(is_new).map(|finding| finding.cause.clone()).collect();
        if let Some(first) = causes.first().filter(|_| repair && !rests) {
            effects.push(Effect::Repair(first.clone()));
            // One restart is for all of them.
            self.repaired.extend(causes.iter().map(|cause| (cause.clone(), now)));
        }
        self.last = found;
        effects
    }
}

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
        let deployment = Deployment::parse(&reference.entry).ok().flatten()?;
        let spec = kubernetes::node_of(&deployment, &Leave::everything()).ok()?;
        let gates = kubernetes::render(&spec, &node.facts()).gates.into_iter();
        let mut watched = gates.into_iter().find_map(|gate| match gate.probe {
            Probe::PodRoutes(pods) => Some(Self { pods, gate: gate.name, repair: spec.repair, generation: reference.generation }),
            _ => None,
        })?;
        // After a failed update a restart may be what would carry it out.
        watched.repair &= reference.extent == Extent::Whole || !has_pending_restart(&node.root, watched.unit());
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

    fn status(&self, sight: &Sight, wrong: &[Finding]) -> PodNetworkStatus {
        PodNetworkStatus {
            driver: if matches!(self.pods.peers, Peers::Leases(_)) { "flannel host-gw" } else { "static-routes" }.to_owned(),
            subnet: sight.subnet.map(|subnet| subnet.to_string()),
            peers: sight.others.len(),
            wrong: wrong.iter().map(|finding| finding.cause.clone()).collect(),
            remedy: wrong.first().map(|finding| finding.code.entry().remedy.to_owned()),
            since: String::new(),
        }
    }
}

/// Packets, as they arrived last.
struct Packets {
    since: Stopwatch,
    of: Sight,
    bad: Option<Finding>,
}

impl Node {
    /// Watches until something of it changes, against `shown`; nothing where there is no such network. Safe to drop.
    pub(in crate::daemon) async fn watch_pods(
        &self,
        reference: &Reference,
        shown: Option<PodNetworkStatus>,
    ) -> Option<PodNetworkStatus> {
        let systemd = self.systemd.as_ref()?;
        let watched = Watched::of(self, reference)?;
        let flanneld = match &watched.pods.peers {
            Peers::Leases(_) => self.flanneld(systemd).await,
            Peers::Given(_) => None,
        };
        let (mut leases, mut packets, mut turn) = (None, None, 0);
        loop {
            let spread = RandomState::new().build_hasher().finish() % SPREAD_MS;
            let is_unsure = self.pod_memory.borrow().is_unsure();
            self.clock.wait(if is_unsure { AGAIN } else { EVERY + Duration::from_millis(spread) }).await;
            let peers = match &watched.pods.peers {
                Peers::Leases(store) => leases.get_or_insert_with(|| Leases::open(&self.http, store, flanneld)).read().await,
                Peers::Given(_) => Ok(Vec::new()),
            };
            let unknown = |error: &Error| Finding { code: Code::LeasesUnknown, cause: error.to_string() };
            let (sight, found) = match peers.and_then(|peers| look(&self.root, &watched.pods, &peers)) {
                Ok(sight) => {
                    let mut found: Vec<Finding> =
                        sight.wrong.iter().map(|wrong| Finding { code: code(wrong), cause: wrong.to_string() }).collect();
                    let is_due = packets.as_ref().is_none_or(|last: &Packets| {
                        last.bad.is_some() || last.of != sight || last.since.elapsed() >= PACKETS_EVERY
                    });
                    if is_due {
                        turn += 1;
                        let bad = self.packets(&watched, &sight, turn).await;
                        packets = Some(Packets { since: self.clock.start(), of: sight.clone(), bad });
                    }
                    found.extend(packets.as_ref().and_then(|last| last.bad.clone()));
                    (sight, found)
                }
                Err(error) => {
                    // Certificates may have changed: the next connection reads them.
                    leases = None;
                    (Sight::default(), vec![unknown(&error)])
                }
            };
            let is_unknown = sight == Sight::default();
            let effects = self.pod_memory.borrow_mut().take(found, watched.repair, self.clock.now());
            for effect in effects {
                self.carry_out(&watched, &effect).await;
            }
            let mut status = watched.status(&sight, self.pod_memory.borrow().told.reported());
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
                status.since = self.clock.now().rfc3339();
            }
            return Some(status);
        }
    }

    async fn packets(&self, watched: &Watched, sight: &Sight, turn: usize) -> Option<Finding> {
        let questions = sight.questions(&self.root, turn).unwrap_or_default();
        match packets::verdict(&self.http.send(&questions).await) {
            Verdict::Well => None,
            Verdict::Lost(peers) => {
                Some(Finding { code: Code::PodPacketsLost, cause: packets::lost(watched.pods.network, &peers) })
            }
            Verdict::Silent(peers) => {
                let cause = format!("pod traffic does not reach {}", packets::named(&peers));
                Some(Finding { code: Code::PeerSilent, cause })
            }
        }
    }

    async fn carry_out(&self, watched: &Watched, effect: &Effect) {
        match effect {
            Effect::Tell(finding) => {
                let remedy = finding.code.entry().remedy;
                self.report.emit(watched.event(finding.code, &finding.cause).cause(&finding.cause).remedy(remedy));
            }
            Effect::Well => self.report.emit(watched.event(Code::PodNetworkWell, "the pod network has recovered")),
            Effect::Repair(cause) => {
                let unit = watched.unit();
                self.report.emit(watched.event(Code::PodNetworkRepair, &format!("{unit} is restarted: {cause}")).cause(cause));
                let Some(systemd) = &self.systemd else { return };
                if let Err(error) = systemd.restart(unit).await {
                    self.report.emit(watched.event(Code::UnitFailed, &format!("{unit} cannot be restarted")).error(&error));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(cause: &str) -> Finding {
        Finding { code: Code::RouteMissing, cause: cause.to_owned() }
    }

    /// What each look, 4 s after the last one, leads to.
    fn looks(memory: &mut Memory, repair: bool, found: &[&[Finding]]) -> Vec<Vec<Effect>> {
        let mut now = Timestamp(0);
        let mut look = |found: &&[Finding]| {
            now = now.after(EVERY);
            memory.take(found.to_vec(), repair, now)
        };
        found.iter().map(&mut look).collect()
    }

    #[test]
    fn what_is_wrong_twice_is_told_once_and_its_end_too() {
        let (a, b) = (missing("a"), missing("b"));
        let told = |finding: &Finding| Effect::Tell(finding.clone());
        let only = |finding: &Finding| vec![finding.clone()];
        let both = [a.clone(), b.clone()];
        let effects = looks(
            &mut Memory::default(),
            false,
            &[&[], &only(&a), &[], &only(&a), &only(&a), &only(&a), &both, &both, &only(&b), &[], &[]],
        );
        let none = Vec::new;
        let expected =
            [none(), none(), none(), none(), vec![told(&a)], none(), none(), vec![told(&b)], none(), vec![Effect::Well], none()];
        assert_eq!(effects, expected);
    }

    #[test]
    fn what_was_wrong_once_is_looked_at_again_soon() {
        let (mut memory, a) = (Memory::default(), missing("a"));
        let found: [(&[Finding], bool); 4] =
            [(&[], false), (std::slice::from_ref(&a), true), (std::slice::from_ref(&a), false), (&[], false)];
        for (found, unsure) in found {
            memory.take(found.to_vec(), false, Timestamp(0));
            assert_eq!(memory.is_unsure(), unsure, "{found:?}");
        }
    }

    #[test]
    fn a_unit_is_restarted_once_for_a_cause_and_never_in_a_loop() {
        let a = [missing("a")];
        let count =
            |effects: &[Vec<Effect>]| effects.iter().flatten().filter(|effect| matches!(effect, Effect::Repair(_))).count();
        // For ten minutes, as it stays and as it comes and goes.
        let stays: Vec<&[Finding]> = vec![&a; 150];
        assert_eq!(count(&looks(&mut Memory::default(), true, &stays)), 1);
        assert_eq!(count(&looks(&mut Memory::default(), false, &stays)), 0);
        let comes: Vec<&[Finding]> = [&a[..], &a, &[], &[]].repeat(40);
        assert_eq!(count(&looks(&mut Memory::default(), true, &comes)), 1);
        // What no restart mends.
        for code in [Code::PeerOffSegment, Code::PodPacketsLost, Code::LeasesUnknown, Code::RouteLeftOver, Code::PeerSilent] {
            let other = [Finding { code, cause: "x".to_owned() }];
            let stays: Vec<&[Finding]> = vec![&other; 10];
            assert_eq!(count(&looks(&mut Memory::default(), true, &stays)), 0, "{code:?}");
        }
        // Two at once are one restart; another one later waits a minute.
        let two = [missing("a"), missing("b")];
        let stays: Vec<&[Finding]> = vec![&two; 40];
        assert_eq!(count(&looks(&mut Memory::default(), true, &stays)), 1);
        let later: Vec<&[Finding]> = [vec![&two[..1]; 5], vec![&two; 25]].concat();
        let effects = looks(&mut Memory::default(), true, &later);
        let at: Vec<usize> = (0..effects.len()).filter(|at| count(&effects[*at..=*at]) == 1).collect();
        assert!(at.len() == 2 && EVERY * u32::try_from(at[1] - at[0]).unwrap() >= BETWEEN_REPAIRS, "{at:?}");
    }

    #[test]
    fn a_missing_route_is_told_within_ten_seconds() {
        assert!(2 * (EVERY + Duration::from_millis(SPREAD_MS)) < Duration::from_secs(10));
    }
}
