//! What volumes need of other rooms: systemd, programs, the passwd file.

use std::rc::Rc;
use std::sync::Arc;

use crate::converge::Owners;
use crate::converge::volumes::{self, Ran};
use crate::desired::Owner;
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::programs::{Found, Job, Programs};
use crate::systemd::{JobOutcome, Systemd};

/// Longest time for making a file system.
const MKFS_LIMIT_MS: u64 = 15 * 60 * 1000;

/// The hands that carry out what the interlock decided.
#[derive(Debug)]
pub(super) struct Hands {
    pub(super) systemd: Systemd,
    pub(super) programs: Rc<Programs>,
    pub(super) root: Arc<Tree>,
}

fn done(what: &str, outcome: &JobOutcome) -> Result<()> {
    if outcome.is_done() {
        return Ok(());
    }
    let said = format!("systemd says {}", outcome.result);
    // A job that somebody else's replaced says nothing of the unit; one that failed fails again.
    let error = if outcome.result == "canceled" { Error::transient(said) } else { Error::permanent(said) };
    Err(error.context(what).remedy(format!("journalctl -u {what} says why")))
}

impl volumes::Hands for Hands {
    async fn reload(&self) -> Result<()> {
        self.systemd.reload().await
    }

    async fn start(&self, unit: &str) -> Result<()> {
        done(unit, &self.systemd.start(unit).await?)
    }

    async fn stop(&self, unit: &str) -> Result<()> {
        done(unit, &self.systemd.stop(unit).await?)
    }

    async fn may_run(&self, unit: &str) -> Result<bool> {
        Ok(self.systemd.unit(unit).await?.may_run())
    }

    async fn mount(&self, what: &str, place: &str, fs_type: &str, options: &str) -> Result<()> {
        done(place, &self.systemd.start_transient_mount(what, place, fs_type, options).await?)
    }

    async fn run(&self, key: &str, argv: Vec<String>) -> Result<Ran> {
        let job = Job { argv, time_limit_ms: Some(MKFS_LIMIT_MS), ..Job::default() };
        if self.programs.look(key).await? != Found::Running {
            self.programs.forget(key)?;
            self.programs.prepare(key, &job)?;
        }
        // Not `run_again`: a program that vanished is not run again and again, where a bus that is away may be asked again.
        let lost = || Error::permanent(format!("{} ended without a result", Programs::unit(key)));
        let ran = self.programs.run(key).await?.ok_or_else(lost)?;
        self.programs.forget(key)?;
        match ran.not_started {
            Some(why) => Err(Error::permanent(why)),
            None => Ok(Ran { status: ran.status, stdout: ran.stdout, stderr: ran.stderr }),
        }
    }

    async fn wait_stopped(&self, key: &str) -> Result<()> {
        self.systemd.wait_until_stopped(&Programs::unit(key)).await?;
        self.programs.forget(key)
    }

    fn ids(&self, owner: &Owner) -> Result<(u32, u32)> {
        Owners::read(&self.root)?
            .resolve(owner)
            .ok_or_else(|| Error::permanent(format!("there is no {}:{} on this machine", owner.user, owner.group)))
    }
}
