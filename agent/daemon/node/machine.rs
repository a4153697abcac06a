//! What is known of the machine. The installed programs are asked before anything is written or stopped.
//!
//! An answer counts as long as the program is the same file: where no program changed, none is started.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;

use futures_util::future::LocalBoxFuture;

use super::backend::MachineBackend;
use crate::converge::Failure;
use crate::daemon::host::Host;
use crate::error::remedy::Remedy;
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::keepers::volumes;
use crate::kubernetes::MachineFacts;
use crate::machine::facts;
use crate::machine::installed::{InstalledPrograms, PATIENCE, RULE, found, release};
use crate::network::flannel::{Version, version_of};
use crate::progress::Progress;
use crate::report::{Code, Event, Phase};

/// What a file is known by: inode and time of change.
type Stamp = (u64, i64, i64);

/// What the machine is, and what the node's programs say of their releases.
#[derive(Debug, Default)]
pub(super) struct KnownMachine {
    facts: OnceCell<MachineFacts>,
    /// Answers by path.
    answers: RefCell<BTreeMap<String, (Stamp, String)>>,
    /// The release of flannel that is installed.
    flanneld: Cell<Option<Version>>,
}

impl KnownMachine {
    /// What the machine is, looked at once, when the first node asks for it; and what is on it now.
    pub(super) fn facts(&self, root: &Tree) -> MachineFacts {
        facts::anew(root, self.facts.get_or_init(|| facts::of_machine(root)).clone())
    }

    /// Asks each program that changed since it was asked, and refuses what it is known not to take.
    pub(super) async fn check_programs(
        &self,
        machine: &InstalledPrograms<'_>,
        backend: &MachineBackend,
        host: &Host,
        progress: &Progress,
        generation: u64,
    ) -> std::result::Result<(), Failure> {
        let step = progress.begin_next("installed programs");
        let ask = |name, path| -> LocalBoxFuture<'_, Result<String>> { Box::pin(self.ask(name, path, backend, host)) };
        let verdicts = machine.judge(&ask, self.flanneld.get()).await;
        self.flanneld.set(verdicts.flanneld);
        let (refused, remedy) = (verdicts.refused(), verdicts.remedy());
        let differing = verdicts.warnings.into_iter().map(|of| (Code::ProgramReleaseDiffers, of));
        for (code, (program, verdict)) in differing.chain(verdicts.lacking.map(|of| (Code::HelperMissing, of))) {
            let cause = verdict.warning.unwrap_or_default();
            let event = Event::new(code, cause.clone()).phase(Phase::Units).generation(generation);
            host.report.emit(event.unit(program.unit).cause(cause).remedy(verdict.remedy));
        }
        if refused.is_empty() {
            progress.end(&step);
            return Ok(());
        }
        let remedy = progress.remedy_of_failure(&Remedy::stack_update_or(remedy));
        let failure = Failure::new(Code::ProgramIncompatible, step.clone(), refused).rule(RULE).remedy(remedy);
        progress.fail(&step, &failure.step, &failure.cause, &failure.remedy);
        host.report.emit(failure.event().generation(generation));
        Err(failure)
    }

    /// The release of flannel, where its program says one; the pods' network is looked at by the API that it reads.
    pub(super) async fn flanneld(&self, backend: &MachineBackend, host: &Host) -> Option<Version> {
        // One that is not there is missed by its unit. One that is the same file is not run again.
        let reported = self.ask("flanneld-of-pods", found(&host.root, "flanneld")?, backend, host).await.ok()?;
        self.flanneld.set(version_of(&reported));
        self.flanneld.get()
    }

    async fn ask(&self, name: &str, path: String, backend: &MachineBackend, host: &Host) -> Result<String> {
        let stamp = host.root.facts_followed(Path::new(&path))?.map(|facts| facts.stamp).unwrap_or_default();
        let known = self.answers.borrow().get(&path).filter(|(of, _)| *of == stamp).map(|(_, reported)| reported.clone());
        if let Some(reported) = known {
            return Ok(reported);
        }
        let argv = vec![path.clone(), "--version".to_owned()];
        let key = format!("program-{name}-release");
        // Large, and rarely needed: on the heap.
        let asking = Box::pin(volumes::VolumeBackend::run(backend, &key, argv));
        let ran = host.clock.limit(PATIENCE, asking).await;
        let ran = ran.ok_or_else(|| Error::transient(format!("it has said nothing for {} seconds", PATIENCE.as_secs())))??;
        let reported = release(ran.stdout, ran.stderr);
        self.answers.borrow_mut().insert(path, (stamp, reported.clone()));
        Ok(reported)
    }
}
