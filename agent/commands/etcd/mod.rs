//! `etcd snapshot [FILE]`, `etcd restore FILE`: a snapshot by hand, and the way back from one after a disaster (`restore.rs`).

mod restore;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use nix::unistd::geteuid;

pub use self::restore::{RestoreArguments, restore};
use super::{document, print};
use crate::clock::Clock;
use crate::daemon;
use crate::desired::{Desired, EtcdMember, VolumeRole};
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::keepers::etcd_snapshots::{DIRECTORY, SnapshotKeeper};
use crate::process::{exit, runtime};
use crate::programs::Programs;
use crate::report::{Code, Event, Report};
use crate::settings::Settings;
use crate::systemd::Systemd;

/// The machine, and what it was asked to be.
struct Master {
    state: Arc<Tree>,
    root: Arc<Tree>,
    asked: Vec<Desired>,
    own: EtcdMember,
}

impl Master {
    fn open(settings: &Settings) -> Result<Self> {
        if !geteuid().is_root() {
            return Err(Error::permanent("only root has etcd's data and keys: run this command as root"));
        }
        daemon::check_instance(&settings.state_dir)?;
        let none = || Error::refused("this machine was not brought up as a master with etcd");
        if !settings.state_dir.is_dir() {
            return Err(none());
        }
        let state = Arc::new(document::open_state(settings)?);
        let root = Arc::new(Tree::open(Path::new("/"))?);
        let asked = daemon::asked_of_node(&state, &root)?;
        let own = asked.iter().find_map(|desired| desired.etcd.clone()).ok_or_else(none)?;
        Ok(Self { state, root, asked, own })
    }
}

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
        let keeper = SnapshotKeeper { root: &master.root, programs: &programs, clock: &clock, own: &master.own };
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
