//! How full docker's thin pool is, while it is in use. LVM alone knows it, and is asked by a job, so not at every look.

use std::cell::RefCell;
use std::time::Duration;

use super::attempt::event;
use super::keeper::{VolumeBackend, VolumeKeeper};
use super::place::is_pool_active;
use super::pool::complaint;
use crate::clock::{Stopwatch, Timestamp};
use crate::converge::health::carriers;
use crate::desired::{Content, Volume};
use crate::error::{Error, Result};
use crate::report::Code;
use crate::storage::probe::Disk;
use crate::storage::thin_pool::{self, POOL, PoolUsage};

/// Between two questions.
const PAUSE: Duration = Duration::from_mins(5);
/// The same while something is wrong: whoever makes room wants to see it.
const PAUSE_OF_WRONG: Duration = Duration::from_mins(1);
/// LVM answers at once, unless one of its disks does not.
const LIMIT: Duration = Duration::from_secs(30);

/// What was seen of the pool last. It outlives the keepers, each of which looks once.
#[derive(Debug, Default)]
pub struct PoolUsageCache(RefCell<Option<(Stopwatch, PoolInspection)>>);

/// What a look at the pool came to.
#[derive(Clone, Debug)]
pub struct PoolInspection {
    /// How full it is, where LVM says it.
    pub fill: Option<PoolUsage>,
    /// What is wrong, with the remedy.
    pub wrong: Option<Error>,
    /// Since when something is wrong, or nothing.
    pub since: Timestamp,
}

impl<H: VolumeBackend> VolumeKeeper<H> {
    /// How full the pool on a volume is, by a question that is a few minutes old at most; none where there is no pool in use.
    pub async fn inspect_pool(&self, volume: &Volume, disks: &[Disk], fills: &PoolUsageCache) -> Option<PoolInspection> {
        let in_use = match carriers(disks, &volume.disk)[..] {
            [disk] if volume.content == Content::ThinPool => is_pool_active(&self.probe, disk),
            _ => false,
        };
        if !in_use {
            fills.0.replace(None);
            return None;
        }
        let before = fills.0.borrow().clone();
        let pause = |inspection: &PoolInspection| if inspection.wrong.is_some() { PAUSE_OF_WRONG } else { PAUSE };
        if let Some((_, inspection)) = before.as_ref().filter(|(asked, inspection)| asked.elapsed() < pause(inspection)) {
            return Some(inspection.clone());
        }
        let before = before.map(|(_, inspection)| inspection);
        let (fill, wrong) = match self.clock.limit(LIMIT, self.ask_fill()).await {
            Some(Ok(fill)) => (Some(fill), thin_pool::shortage(&fill, volume)),
            Some(Err(error)) => (None, Some(error)),
            None => (None, Some(Error::transient(format!("it did not answer within {} s", LIMIT.as_secs())))),
        };
        let wrong = match (fill, wrong) {
            (None, Some(error)) => {
                let remedy = format!("`lvs {POOL}`; check `journalctl -k` for disk errors");
                Some(error.context(format!("LVM does not report how full {POOL} is")).remedy(remedy))
            }
            (_, wrong) => wrong,
        };
        let is_as_before = |before: &PoolInspection| before.wrong.is_some() == wrong.is_some();
        let since = before.as_ref().filter(|before| is_as_before(before)).map_or_else(|| self.clock.now(), |before| before.since);
        if let Some(error) = wrong.as_ref().filter(|_| before.is_none_or(|before| before.wrong.is_none())) {
            self.progress.report().emit(event(Code::PoolNearlyFull, volume, error.cause_first()).error(error));
        }
        let inspection = PoolInspection { fill, wrong, since };
        fills.0.replace(Some((self.clock.start(), inspection.clone())));
        Some(inspection)
    }

    async fn ask_fill(&self) -> Result<PoolUsage> {
        let ran = self.backend.run("program-lvm-fill", thin_pool::ask_fill()).await?;
        if ran.status != 0 {
            return Err(Error::transient(complaint(&ran)));
        }
        thin_pool::fill(&ran.stdout).ok_or_else(|| Error::transient(format!("it answered {:?}", ran.stdout.trim())))
    }
}
