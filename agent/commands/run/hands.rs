//! What volumes need of other rooms: systemd, programs, the passwd file.

use std::rc::Rc;
use std::sync::Arc;

use crate::converge::Owners;
use crate::converge::volumes::{self, Ran};
use crate::desired::Owner;
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::programs::{Job, Programs, key_of};
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
    Err(Error::transient(format!("systemd says {}", outcome.result))
        .context(what)
        .remedy(format!("journalctl -u {what} says why")))
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

    async fn is_active(&self, unit: &str) -> Result<bool> {
        Ok(self.systemd.unit(unit).await?.is_active())
    }

    async fn mount(&self, what: &str, place: &str, fs_type: &str, options: &str) -> Result<()> {
        done(place, &self.systemd.start_transient_mount(what, place, fs_type, options).await?)
    }

    async fn run(&self, argv: Vec<String>) -> Result<Ran> {
        let key = format!("program-{}", key_of(&argv.join("\u{1f}")));
        let job = Job { argv, time_limit_ms: Some(MKFS_LIMIT_MS), ..Job::default() };
        let ran = self.programs.run_again(&key, &job).await?;
        Ok(Ran { status: ran.status, stdout: ran.stdout, stderr: ran.not_started.unwrap_or(ran.stderr) })
    }

    fn ids(&self, owner: &Owner) -> Result<(u32, u32)> {
        Owners::read(&self.root)?
            .resolve(owner)
            .ok_or_else(|| Error::permanent(format!("there is no {}:{} on this machine", owner.user, owner.group)))
    }
}
