//! The installed programs are asked before anything is written or stopped.
//!
//! An answer counts as long as the program is the same file: where no program changed, none is started.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;

use super::Node;
use crate::converge::Failure;
use crate::desired::Desired;
use crate::error::{Error, Result};
use crate::keepers::volumes;
use crate::kubernetes::NodeSpec;
use crate::machine::installed::{Machine, RULE, found, release};
use crate::network::flannel::{Version, version_of};
use crate::report::{Code, Event, Phase};
use crate::systemd::Systemd;

/// A program that says nothing for so long is not waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a file is known by: inode and time of change.
type Stamp = (u64, i64, i64);

/// Answers by path.
pub(in crate::daemon) type Answers = RefCell<BTreeMap<String, (Stamp, String)>>;

impl Node {
    /// Asks each program that changed since it was asked, and refuses what it is known not to take.
    pub(in crate::daemon) async fn check_installed(
        &self,
        spec: &NodeSpec,
        desired: &Desired,
        systemd: &Systemd,
        generation: u64,
    ) -> std::result::Result<(), Failure> {
        let step = self.progress.begin_next("installed programs");
        let machine = Machine { root: &self.root, systemd, spec, desired };
        let ask = |name, path| -> LocalBoxFuture<'_, Result<String>> { Box::pin(self.ask(name, path, systemd)) };
        let verdicts = machine.judge(&ask, self.flanneld.get()).await;
        self.flanneld.set(verdicts.flanneld);
        for (program, verdict) in verdicts.odd {
            let cause = verdict.odd.unwrap_or_default();
            let event = Event::new(Code::ProgramOdd, cause.clone()).phase(Phase::Units).generation(generation);
            self.report.emit(event.unit(program.unit).cause(cause).remedy(verdict.remedy));
        }
        if verdicts.refused.is_empty() {
            self.progress.end(&step);
            return Ok(());
        }
        let failure = Failure::new(Code::ProgramRefuses, step.clone(), verdicts.refused).rule(RULE).remedy(verdicts.remedy);
        self.progress.fail(&step, &failure.step, &failure.cause, &failure.remedy);
        self.report.emit(failure.event().generation(generation));
        Err(failure)
    }

    /// The release of flannel, where its program says one; the pods' network is looked at by the API that it reads.
    pub(in crate::daemon) async fn flanneld(&self, systemd: &Systemd) -> Option<Version> {
        if self.flanneld.get().is_none() {
            // One that is not there is missed by its unit.
            let said = self.ask("flanneld-of-pods", found(&self.root, "flanneld")?, systemd).await.ok()?;
            self.flanneld.set(version_of(&said));
        }
        self.flanneld.get()
    }

    async fn ask(&self, name: &str, path: String, systemd: &Systemd) -> Result<String> {
        let stamp = self.root.facts_followed(Path::new(&path))?.map(|facts| facts.stamp).unwrap_or_default();
        let known = self.answers.borrow().get(&path).filter(|(of, _)| *of == stamp).map(|(_, said)| said.clone());
        if let Some(said) = known {
            return Ok(said);
        }
        let argv = vec![path.clone(), "--version".to_owned()];
        let (hands, key) = (self.hands(systemd), format!("program-{name}-release"));
        // Large, and rarely needed: on the heap.
        let asking = Box::pin(volumes::Hands::run(&hands, &key, argv));
        let ran = self.clock.limit(PATIENCE, asking).await;
        let ran = ran.ok_or_else(|| Error::transient(format!("it has said nothing for {} seconds", PATIENCE.as_secs())))??;
        let said = release(ran.stdout, ran.stderr);
        self.answers.borrow_mut().insert(path, (stamp, said.clone()));
        Ok(said)
    }
}
