//! Snapshots of the node's etcd onto its volume: when one is taken. `[etcd] snapshot_interval` says how often, or turns them off.
//!
//! None is begun while the node is brought up; one that is under way then goes on. What fails is tried again ever more slowly, and said once a cause.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::subject::Subject;
use super::task::BackgroundTask;
use crate::backoff::{Backoff, Damper};
use crate::daemon::host::Host;
use crate::daemon::node::Node;
use crate::deploy::{AppliedExtent, Reference};
use crate::desired::EtcdMember;
use crate::error::{Error, Result};
use crate::keepers::etcd_snapshots::{JOB, Snapshot, SnapshotKeeper, Tools, first_pause, kept, shown};
use crate::programs::Programs;
use crate::report::status::EtcdSnapshotsStatus;
use crate::report::{Code, Event};

/// Between two tries in vain.
const PAUSES: Backoff = Backoff::new(Duration::from_mins(5), Duration::from_hours(1));
/// As messages call it.
const STEP: &str = "etcd snapshot";

/// What was taken, and when the next one is.
pub(in crate::daemon) struct EtcdSnapshots {
    host: Rc<Host>,
    programs: Rc<Programs>,
    task: BackgroundTask<(), Result<Vec<Snapshot>>>,
    member: Subject<EtcdMember>,
    /// Whether the first pause was chosen, by what was there then.
    has_begun: bool,
    /// Until the next try.
    damper: Damper,
    failure: Option<Error>,
}

impl EtcdSnapshots {
    pub(super) fn new(host: Rc<Host>, programs: Rc<Programs>) -> Self {
        Self {
            host,
            programs,
            task: BackgroundTask::default(),
            member: Subject::unknown(),
            has_begun: false,
            damper: Damper::new(PAUSES),
            failure: None,
        }
    }

    /// As `status` shows them; nothing where there is no member to take one of.
    pub(in crate::daemon) fn status(&self) -> Option<EtcdSnapshotsStatus> {
        self.member.get()?;
        // The directory itself: `etcd snapshot` and operators take and remove some, too.
        match kept(&self.host.root, self.host.clock.now()) {
            Ok(kept) => shown(&kept, self.failure.as_ref()),
            Err(error) => shown(&[], Some(self.failure.as_ref().unwrap_or(&error))),
        }
    }

    /// How long until one is taken; nothing where there is nothing to take one of, or one is being taken.
    pub(super) fn until_due(&self) -> Option<Duration> {
        self.member.get().filter(|_| !self.task.is_busy()).map(|_| self.damper.left())
    }

    /// Starts to take one where that is due. `reference`: the node in place; none while it is brought up.
    pub(super) fn begin(&mut self, reference: Option<&Reference>, node: &Node) {
        let Some(interval) = self.host.settings.snapshot_interval else { return };
        let Some(reference) = reference.filter(|reference| reference.extent != AppliedExtent::Nothing) else {
            self.member = Subject::unknown();
            return;
        };
        let there = (reference.generation, reference.extent);
        if !self.member.is_of(there) {
            let member = node.etcd_on_volume(reference).filter(|member| !member.keeps_v2);
            if member.is_some() && !self.has_begun {
                let now = self.host.clock.now();
                // Where they cannot be read the first try says why.
                let found = kept(&self.host.root, now).unwrap_or_default();
                self.damper.hold_for(first_pause(found.last(), now, interval), &self.host.clock);
                self.has_begun = true;
            }
            self.member = Subject::found(there, member);
        }
        if self.until_due() == Some(Duration::ZERO) {
            self.start();
        }
    }

    fn start(&mut self) {
        let Some(member) = self.member.get().cloned() else { return };
        let (root, programs, clock) = (Arc::clone(&self.host.root), Rc::clone(&self.programs), self.host.clock.clone());
        let most = self.host.settings.snapshots_kept;
        self.task.start((), async move {
            let tools = Tools { programs: &programs, key: JOB };
            SnapshotKeeper { root: &root, tools, clock: &clock, own: &member }.take(most).await
        });
    }

    /// Waits until one is taken, or was not. Safe to drop.
    pub(super) async fn ended(&mut self) -> Result<Vec<Snapshot>> {
        self.task.ended().await.1
    }

    /// Takes that in.
    pub(super) fn record(&mut self, taken: Result<Vec<Snapshot>>) {
        let interval = self.host.settings.snapshot_interval.unwrap_or(Duration::MAX);
        match taken {
            Ok(all) => {
                self.failure = None;
                self.damper.release();
                self.damper.hold_for(interval, &self.host.clock);
                if let Some(newest) = all.last() {
                    let line = format!("took snapshot {} of etcd; {} are kept", newest.name(), all.len());
                    self.host.report.emit(Event::new(Code::EtcdSnapshotTaken, line).step(STEP));
                }
            }
            Err(error) => {
                let pause = self.damper.hold_by(|pause| pause.min(interval), &self.host.clock);
                if self.failure.as_ref().is_none_or(|before| before.cause() != error.cause()) {
                    let event = Event::new(Code::EtcdSnapshotFailed, "no snapshot of etcd could be taken").step(STEP);
                    self.host.report.emit(event.next_try(pause).error(&error));
                }
                self.failure = Some(error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, Timestamp};
    use crate::files::Tree;

    fn snapshots() -> (tempfile::TempDir, EtcdSnapshots) {
        let dir = tempfile::tempdir().unwrap();
        let tree = Arc::new(Tree::open(dir.path()).unwrap());
        let clock = Clock::manual(Timestamp(1_772_366_400_000));
        let programs = Rc::new(Programs::new(Arc::clone(&tree), None, clock.clone()).unwrap());
        let host = Host::in_directory(tree, clock);
        (dir, EtcdSnapshots::new(Rc::new(host), programs))
    }

    fn told(all: &EtcdSnapshots, code: Code) -> usize {
        all.host.report.events().iter().filter(|event| event.code == code).count()
    }

    #[test]
    fn a_failure_is_said_once_a_cause_and_tried_again_ever_more_slowly() {
        let (_dir, mut all) = snapshots();
        let mut pauses = Vec::new();
        for cause in ["no etcdctl", "no etcdctl", "no etcdctl", "no space", "no space", "no space"] {
            all.record(Err(Error::transient(cause)));
            pauses.push(all.damper.left().as_secs() / 60);
        }
        assert_eq!(pauses, [5, 10, 20, 40, 60, 60]);
        assert_eq!(told(&all, Code::EtcdSnapshotFailed), 2);
        assert_eq!(all.status(), None, "there is no member, and nothing wrong with its snapshots");
        let access = crate::desired::EtcdAccess { endpoint: "http://127.0.0.1:2379".to_owned(), identity: None };
        let own = EtcdMember {
            access,
            peer: "http://127.0.0.1:2380".to_owned(),
            peer_identity: None,
            is_single: true,
            name: "m".to_owned(),
            keeps_v2: false,
        };
        all.member = Subject::found((1, AppliedExtent::Whole), Some(own));
        assert_eq!(all.status().unwrap().wrong.as_deref(), Some("no space"));
        let taken = Snapshot { taken: Timestamp(1_772_366_400_000), revision: 5, bytes: 9 };
        let directory = std::path::Path::new(crate::keepers::etcd_snapshots::DIRECTORY);
        all.host.root.create_dir_all(directory, crate::files::Attributes::mode(0o700)).unwrap();
        all.host.root.write(&directory.join(taken.name()), b"123456789", crate::files::Attributes::mode(0o600)).unwrap();
        all.record(Ok(vec![taken]));
        let status = all.status().unwrap();
        assert_eq!((status.kept, status.bytes, status.wrong, all.damper.left()), (1, 9, None, Duration::from_hours(12)));
        // Who takes one by hand, or removes one, is no news to anybody.
        all.host.root.remove_dir_all(directory).unwrap();
        assert_eq!(all.status(), None);
        all.record(Err(Error::transient("no space")));
        assert_eq!(
            (told(&all, Code::EtcdSnapshotFailed), told(&all, Code::EtcdSnapshotTaken), all.damper.left().as_secs()),
            (3, 1, 300)
        );
    }

    #[test]
    fn without_a_member_on_a_volume_nothing_is_due_or_shown() {
        let (_dir, all) = snapshots();
        assert_eq!((all.until_due(), all.status()), (None, None));
    }
}
