//! The agent: what it consists of. `run.rs` is its loop, one thread that does several things at once:
//!
//! * the sources are polled (`collect`),
//! * one script or hook runs, in the order of the list (`job.rs`), or the image's phases of os-refresh-config (`phases.rs`),
//! * the node is brought up or compared with its parameters, its pod routes and components are watched (`node_task.rs`),
//! * the node's conditions in Kubernetes are written (`node_conditions.rs`), snapshots of its etcd taken (`etcd_snapshots.rs`), and its keys of
//!   service accounts compared with those of other masters (`token_keys.rs`),
//! * signals are sent (`signal`).
//!
//! Each runs in a [`task`]. Whenever one of them makes progress, its result is taken in (`completions.rs`, with `view.rs` for what the newest
//! metadata says of a deployment) and the operator's requests are carried out (`orders.rs`). [`Agent::decide`] then looks at the whole state
//! afresh: it stops scripts and hooks that must end (`ending.rs`) and starts what may be started (`begin.rs`). All that must not be lost is on disk before the next step begins (`ledger.rs`).
//!
//! In: polls, ended hooks, the node's results, answers of Heat, orders of the operator. Out: what is started next, records, signals, the
//! status. Never: anything that blocks the loop, or a start that is not recorded yet.

mod begin;
mod completions;
mod disk;
mod documents;
pub(crate) mod ending;
mod etcd_snapshots;
mod failure_pause;
mod job;
mod ledger;
mod node_conditions;
mod node_task;
mod orders;
mod phases;
mod publisher;
mod run;
mod subject;
mod task;
mod token_keys;
mod unrecorded;
pub(super) mod view;
mod worklist;

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use self::disk::{Disk, RetainedData};
use self::etcd_snapshots::EtcdSnapshots;
use self::failure_pause::FailurePause;
use self::job::JobTask;
use self::ledger::Ledger;
use self::node_conditions::NodeConditions;
use self::node_task::NodeTask;
use self::phases::Phases;
use self::publisher::Publisher;
use self::token_keys::TokenKeyComparisons;
use self::view::view;
use self::worklist::Worklist;
use super::host::Host;
use super::node::Node;
use super::order_files::{self, Repairs, Rollbacks};
use crate::clock::Timestamp;
use crate::collect::Collector;
use crate::deploy::DeploymentRecord;
use crate::error::Result;
use crate::http::Http;
use crate::kubernetes::parameters::heat_params;
use crate::programs::Programs;
use crate::progress::Progress;
use crate::report::status::Condition;
use crate::report::{Code, Event, Phase, Report};
use crate::settings::Settings;
use crate::signal::{MetadataView, Outbox, Sender};
use crate::watch::AsyncWatch;

/// Orders of the operator.
struct Orders {
    /// Wakes the loop when one comes.
    arrivals: AsyncWatch,
    /// Repairs that were ordered.
    repairs: Repairs,
    /// Rollbacks that were ordered.
    rollbacks: Rollbacks,
}

/// The daemon.
pub(super) struct Agent {
    pub(super) host: Rc<Host>,
    pub(super) started: Timestamp,
    /// Whose machine and state this is.
    pub(super) instance: crate::identity::InstanceRecord,
    pub(super) collector: Collector,
    programs: Rc<Programs>,
    pub(super) ledger: Ledger,
    /// What is still to be done of the list in force.
    worklist: Worklist,
    pub(super) job_task: JobTask,
    pub(super) phases: Phases,
    pub(super) node_task: NodeTask,
    /// How far bringing the node up is.
    pub(super) progress: Progress,
    /// What is on disk.
    pub(super) disk: Disk,
    pub(super) trouble: FailurePause,
    pub(super) publisher: Publisher,
    orders: Orders,
}

impl Agent {
    pub(super) fn open(host: Host, metadata: Option<PathBuf>, instance: crate::identity::InstanceRecord) -> Result<Self> {
        let host = Rc::new(host);
        let Host { settings, root, state, systemd, clock, report } = &*host;
        let http = Rc::new(Http::new(settings.tls.clone(), Arc::clone(root), clock.clone()));
        let progress = Progress::new(report.clone(), clock.clone());
        let publisher = Publisher::open(Rc::clone(&host));
        let mut collector = Collector::new(
            settings.clone(),
            Arc::clone(root),
            Arc::clone(state),
            (*http).clone(),
            clock.clone(),
            report.clone(),
            metadata,
        )
        .with_node_file(heat_params::read);
        collector.quarantine_unreadable();
        collector.belong_to(&instance, publisher.run_dir.as_ref());
        let keystone = collector.keystone().clone();
        let sender = Sender::new((*http).clone(), keystone.clone(), clock.clone());
        let outbox = Outbox::open(Arc::clone(state), sender, clock.clone(), report.clone())?;
        let ledger = Ledger::open(Rc::clone(&host), outbox, progress.clone())?;
        let programs = Rc::new(Programs::new(Arc::clone(state), systemd.clone(), clock.clone())?);
        let conditions = NodeConditions::new(Rc::clone(&host), Rc::clone(&http));
        let snapshots = EtcdSnapshots::new(Rc::clone(&host), Rc::clone(&programs));
        let token_keys = TokenKeyComparisons::new(Rc::clone(&host), Rc::clone(&http));
        let node = Node::new(Rc::clone(&host), http, keystone, Rc::clone(&programs), progress.clone());
        let arrivals = order_files::watch(state, publisher.run_dir.as_ref())?;
        warn_of_settings(settings, report);
        report.emit(
            Event::new(Code::AgentStarted, format!("heat-node-agent {} started", env!("CARGO_PKG_VERSION")))
                .phase(Phase::Settings),
        );
        Ok(Self {
            started: clock.now(),
            instance,
            collector,
            ledger,
            worklist: Worklist::new(),
            job_task: JobTask::new(Rc::clone(&programs)),
            phases: Phases::open(Rc::clone(&host), Rc::clone(&programs))?,
            node_task: NodeTask::new(node, conditions, snapshots, token_keys, clock),
            programs,
            progress,
            disk: Disk::default(),
            trouble: FailurePause::new(Rc::clone(&host)),
            publisher,
            orders: Orders { arrivals, repairs: Repairs::default(), rollbacks: Rollbacks::default() },
            host,
        })
    }

    /// Looks at what deployments left on disk, once at the start.
    pub(super) fn measure_disk(&mut self) {
        if let Err(error) = self.programs.forget_ended_looks() {
            self.trouble.record("forgetting what an earlier run looked at", &error);
        }
        let mut kept = RetainedData::of(&self.host, &self.programs, &mut self.ledger);
        if let Err(error) = self.disk.measure(&mut kept) {
            self.trouble.record("measuring the deployments' output", &error);
        }
    }

    /// Counts what a deployment left on disk.
    fn count_output(&mut self, id: &str) -> Result<()> {
        let mut kept = RetainedData::of(&self.host, &self.programs, &mut self.ledger);
        self.disk.job_ended(id, &mut kept)
    }

    /// What signals need to know of the newest metadata.
    fn view(&self) -> MetadataView {
        view(self.collector.snapshot())
    }

    /// Why deployments wait that could be begun.
    pub(super) fn held(&self) -> impl Iterator<Item = &Condition> {
        self.ledger.held.iter().chain(&self.worklist.held)
    }

    /// The deployment whose script or hook runs now.
    pub(super) fn running(&self) -> Option<&DeploymentRecord> {
        self.job_task.id().and_then(|id| self.ledger.journal.get(id))
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("phase", &self.publisher.phase).finish_non_exhaustive()
    }
}

/// What is allowed, or asked for and not done, is said at each start.
fn warn_of_settings(settings: &Settings, report: &Report) {
    if settings.tls.allow_insecure {
        let line = "[tls] allow_insecure lets parameters turn off the verification of certificates";
        report.emit(Event::new(Code::InsecureTls, line).step("tls"));
    }
}
