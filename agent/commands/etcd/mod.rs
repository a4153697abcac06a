//! `etcd snapshot [FILE]`, `etcd restore FILE`: a snapshot by hand, and the way back from one after a disaster (`restore.rs`).

mod master;
mod restore;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use self::master::{BY_HAND, Master};
pub use self::restore::{RestoreArguments, restore};
use super::print;
use crate::clock::Clock;
use crate::desired::VolumeRole;
use crate::error::{Error, Result};
use crate::keepers::etcd_snapshots::{DIRECTORY, JOB, SnapshotKeeper, Tools};
use crate::process::{exit, runtime};
use crate::programs::Programs;
use crate::report::{Code, Event, Report};
use crate::settings::Settings;
use crate::systemd::Systemd;

/// Takes a snapshot now.
///
/// # Errors
/// If there is no etcd, or it could not be taken: nothing is left of it then.
pub fn snapshot(settings: &Settings, file: Option<&Path>) -> Result<ExitCode> {
    let master = Master::open(settings)?;
    let has_volume = master.asked.iter().flat_map(|desired| &desired.volumes).any(|volume| volume.role == VolumeRole::Etcd);
    if file.is_none() && !has_volume {
        return Err(Error::refused("this master has no etcd volume")
            .rule(format!("{DIRECTORY} is on the etcd volume"))
            .remedy("name a file: `heat-node-agent etcd snapshot FILE`"));
    }
    let report = Report::to_journal(false);
    let taken = runtime()?.block_on(async {
        let clock = Clock::system();
        let programs = Programs::new(Arc::clone(&master.state), Some(Systemd::connect().await?), clock.clone())?;
        let key = if file.is_some() { BY_HAND } else { JOB };
        let keeper =
            SnapshotKeeper { root: &master.root, tools: Tools { programs: &programs, key }, clock: &clock, own: &master.own };
        if let Some(file) = file {
            let file = std::path::absolute(file)?;
            let revision = keeper.take_to(&file).await?;
            return Ok(format!("took a snapshot of etcd, revision {revision}: {}", file.display()));
        }
        let all = keeper.take(settings.snapshots_kept).await?;
        let newest = all.last().map(|one| format!("{DIRECTORY}/{}", one.name())).unwrap_or_default();
        Ok(format!("took snapshot {newest} of etcd; {} are kept", all.len()))
    });
    let done = taken.and_then(|line: String| {
        report.emit(Event::new(Code::EtcdSnapshotTaken, &line).step("etcd snapshot"));
        print(&format!("{line}\n")).map(|()| exit::OK)
    });
    report.flush();
    done
}
