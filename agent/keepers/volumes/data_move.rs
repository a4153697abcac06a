//! Moves etcd's data from the root disk to the volume that the node was given later: stop, copy, compare, switch.
//!
//! Nothing is stopped before the volume is mounted aside, marked and found to have the room. The copy gets its name, by one rename, only after it was
//! compared with the original; the original then leaves the mount point under another name and is never removed. A record is
//! written before the first step. At any moment the one data directory that may be used is: below the mount point, until it
//! was renamed; on the volume, after. Two that differ are refused, whoever made them.

use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;
use serde::{Deserialize, Serialize};

use super::attempt::{AttemptFailure, AttemptResult, Attempts, ReadyDisk, event, failed, refused, transient_stop};
use super::keeper::{ProgramOutput, VolumeBackend, VolumeKeeper};
use crate::clock::Timestamp;
use crate::converge::Failure;
use crate::desired::{Volume, VolumeRole};
use crate::error::remedy::{AfterRemedy, Remedy};
use crate::error::{Context, Error, Result};
use crate::files::Attributes;
use crate::report::Code;
use crate::storage::interlock::FormatDecision;
use crate::storage::marker::SCHEMA;
use crate::storage::mount_unit;
use crate::storage::probe::size;

/// etcd's data directory in its store.
const DATA: &str = "default.etcd";
/// The copy while it is made.
const COPY: &str = ".heat-node-agent.copy";
/// The same for every program of a move, so that the next agent finds one that still runs.
pub const KEY: &str = "program-move-etcd";
/// What a volume must have beyond the data, in bytes: etcd writes its log in pieces of 64 MB.
const SPARE: u64 = 128 * 1024 * 1024;

/// `volumes/etcd-move.json`: a move has begun.
#[derive(Debug, Serialize, Deserialize)]
struct StartedMove {
    schema: u32,
    volume: String,
    at: Timestamp,
}

impl<H: VolumeBackend> VolumeKeeper<H> {
    /// Whether a member's data lies below the mount point, on the root disk.
    pub(super) fn has_data_below(&self, volume: &Volume) -> Result<bool> {
        if volume.role != VolumeRole::Etcd || self.probe.read_mounts()?.iter().any(|mount| mount.point == volume.mount_point) {
            return Ok(false);
        }
        Ok(self.root.facts(&Path::new(&volume.mount_point).join(DATA).join("member"))?.is_some())
    }

    /// What an agent left that was ended in a move: a copy that goes on, and the volume in the place where it is copied to.
    pub(super) async fn clean_up_move(&self, volume: &Volume, attempts: &Attempts) -> AttemptResult<()> {
        let of_move = |error: &Error| transient_stop("move", error);
        if self.state.facts(&record_path(volume)).map_err(|error| of_move(&error))?.is_none() {
            return Ok(());
        }
        self.wait_for_job(KEY, "a copy", "move", attempts).await?;
        let staging = mount_unit::name(&staging(volume));
        if self.backend.may_run(&staging).await.map_err(|error| of_move(&error))? {
            self.backend.stop(&staging).await.map_err(|error| of_move(&error))?;
        }
        Ok(())
    }

    /// Moves the data onto the volume, which is not mounted yet, and leaves the mount point empty.
    pub(super) async fn move_data(&self, volume: &Volume, found: &ReadyDisk) -> AttemptResult<()> {
        let of_move = |error: &Error| transient_stop("move", error);
        let started = self.clock.start();
        let old = Path::new(&volume.mount_point).join(DATA);
        self.check_mount_point_empty(volume)?;
        let (held, _) = self.root.bytes_below(&old, &mut usize::MAX.clone()).map_err(|error| of_move(&error))?;
        let needed = held.saturating_add(SPARE);
        let has = size(&found.disk).unwrap_or(0);
        if has < needed {
            return Err(too_small(volume, &old, "has", has, needed));
        }
        self.begin(volume)?;
        let place = staging(volume);
        let device = found.disk.node.display().to_string();
        self.backend.mount(&device, &place, &found.fs_type, "nosuid,nodev,noexec").await.map_err(|error| of_move(&error))?;
        let copied = match self.make_ready(volume, found, &old, &place, needed).await {
            Ok(()) => self.stop_and_copy(volume, &old, &place).await,
            refused => refused,
        };
        let unmounted = self.backend.stop(&mount_unit::name(&place)).await.map_err(|error| of_move(&error));
        copied?;
        unmounted?;
        let kept = self.set_aside(volume)?;
        let message = format!("the {} store was moved to volume {}; the old copy is {kept}", volume.role, volume.disk);
        self.progress.report().emit(event(Code::StoreMoved, volume, message).step("move").duration(started.elapsed()));
        Ok(())
    }

    /// The mount would hide it, and is refused for that: better before anything is stopped.
    fn check_mount_point_empty(&self, volume: &Volume) -> AttemptResult<()> {
        let names = self.root.list(Path::new(&volume.mount_point)).map_err(|error| transient_stop("move", &error))?;
        let Some(other) = names.iter().find(|name| *name != DATA) else { return Ok(()) };
        let other = Path::new(&volume.mount_point).join(other);
        Err(refused(FormatDecision::Refuse {
            found: format!("{} is beside {DATA}", other.display()),
            rule: "only a member's data is moved to its volume, and a volume is never mounted over anything else".to_owned(),
            remedy: format!("move it elsewhere: `mv {} /root/`", other.display()).into(),
        })
        .into())
    }

    /// All that can be refused while the member still runs. The volume is mounted at `place`.
    async fn make_ready(&self, volume: &Volume, found: &ReadyDisk, old: &Path, place: &str, needed: u64) -> AttemptResult<()> {
        let of_move = |error: &Error| transient_stop("move", error);
        let tree = self.root.subtree(Path::new(place)).map_err(|error| of_move(&error))?;
        if tree.facts(Path::new(DATA)).map_err(|error| of_move(&error))?.is_some() {
            for unit in &volume.users {
                if self.backend.may_run(unit).await.map_err(|error| of_move(&error))? {
                    return Err(two_members(old, place));
                }
            }
            return Ok(());
        }
        // Ours from here on, also for an agent that finds a member on it.
        self.mark(volume, found, place).map_err(|error| failed("mark", &error))?;
        self.run_checked(&["rm", "-rf", "--", &format!("{place}/{COPY}")]).await?;
        let space = statvfs(&self.root.on_machine(Path::new(place)))
            .context(|| format!("inspecting {place}"))
            .map_err(|error| of_move(&error))?;
        let free = space.blocks_available().saturating_mul(space.fragment_size());
        if free < needed { Err(too_small(volume, old, "has free", free, needed)) } else { Ok(()) }
    }

    async fn stop_and_copy(&self, volume: &Volume, old: &Path, place: &str) -> AttemptResult<()> {
        let of_move = |error: &Error| transient_stop("move", error);
        let message =
            format!("moving {} to volume {}; {} is stopped meanwhile", old.display(), volume.disk, volume.users.join(", "));
        self.progress.report().emit(event(Code::StoreMoving, volume, message).step("move"));
        for unit in &volume.users {
            self.backend.stop(unit).await.map_err(|error| of_move(&error))?;
            if self.backend.may_run(unit).await.map_err(|error| of_move(&error))? {
                return Err(of_move(&Error::transient(format!("{unit} was stopped, but is running again"))));
            }
        }
        self.copy(old, place).await
    }

    /// Adds whom a move that is not over keeps stopped. Its unit asserts the mount, and a node whose deployment failed is not
    /// looked after: nobody goes on unasked.
    pub(super) async fn add_stopped_units(&self, volume: &Volume, failure: &mut Failure) {
        if !matches!(self.state.facts(&record_path(volume)), Ok(Some(_))) {
            return;
        }
        for unit in &volume.users {
            // Of a systemd that does not answer the worse is assumed.
            if self.backend.may_run(unit).await.unwrap_or(false) {
                return;
            }
        }
        failure.cause.push_str(&format!("; {} stays stopped until the move continues", volume.users.join(", ")));
        failure.remedy = Remedy::new(failure.remedy.as_str(), AfterRemedy::LastWayResumes);
    }

    /// Forgets the move, if there was one.
    pub(super) fn end_move(&self, volume: &Volume) -> Result<()> {
        self.state.remove(&record_path(volume)).map(drop)
    }

    fn begin(&self, volume: &Volume) -> AttemptResult<()> {
        let begun = StartedMove { schema: SCHEMA, volume: volume.disk.as_str().to_owned(), at: self.clock.now() };
        let write = || {
            self.state.create_dir(Path::new("volumes"), Attributes::mode(0o700))?;
            self.state.write_json(&record_path(volume), &begun, Attributes::mode(0o600))
        };
        write().map_err(|error| Failure { code: Code::StateWriteFailed, ..failed("move", &error) }.into())
    }

    /// Copies and compares; what is on the volume already is compared only.
    async fn copy(&self, old: &Path, place: &str) -> AttemptResult<()> {
        let of_move = |error: &Error| transient_stop("move", error);
        let (from, to, copy) = (old.display().to_string(), format!("{place}/{DATA}"), format!("{place}/{COPY}"));
        let volume = self.root.subtree(Path::new(place)).map_err(|error| of_move(&error))?;
        if volume.facts(Path::new(DATA)).map_err(|error| of_move(&error))?.is_some() {
            let same = self.program(&["diff", "-r", "--no-dereference", &from, &to]).await?;
            // If they are, a move was cut off after its last rename.
            return if same.status == 0 { Ok(()) } else { Err(two_members(old, place)) };
        }
        self.run_checked(&["cp", "-a", "--", &from, &copy]).await?;
        self.run_checked(&["diff", "-r", "--no-dereference", &from, &copy]).await?;
        self.run_checked(&["sync", "-f", place]).await?;
        volume.rename(Path::new(COPY), Path::new(DATA)).map_err(|error| failed("move", &error).into())
    }

    /// A program that has to succeed.
    async fn run_checked(&self, argv: &[&str]) -> AttemptResult<()> {
        let ran = self.program(argv).await?;
        if ran.status == 0 {
            return Ok(());
        }
        let words = [&ran.stderr, &ran.stdout].into_iter().flat_map(|text| text.lines()).next().unwrap_or("it printed nothing");
        let error = Error::permanent(format!("`{}` {}: {words}", argv.join(" "), ran.end()));
        Err(failed("move", &error.remedy("nothing was changed on the root disk; the next attempt copies again")).into())
    }

    async fn program(&self, argv: &[&str]) -> AttemptResult<ProgramOutput> {
        let argv = argv.iter().map(|word| (*word).to_owned()).collect();
        self.backend.run(KEY, argv).await.map_err(|error| transient_stop("move", &error))
    }

    /// The original leaves the mount point; the directory that it is kept in. Only the data is renamed: a directory of the
    /// image cannot be on every file system (rename(2), EXDEV of overlayfs).
    fn set_aside(&self, volume: &Volume) -> AttemptResult<String> {
        let old = Path::new(&volume.mount_point).join(DATA);
        let aside = || -> Result<String> {
            let mut number = 1;
            loop {
                let kept = format!("{}.before-volume-{number}", volume.mount_point);
                let data = Path::new(&kept).join(DATA);
                if self.root.facts(&data)?.is_none() {
                    self.root.create_dir(Path::new(&kept), Attributes::mode(0o700))?;
                    self.root.rename(&old, &data)?;
                    return Ok(kept);
                }
                number += 1;
            }
        };
        aside().map_err(|error| failed("move", &error).into())
    }
}

/// Where the volume is mounted while data is moved onto it.
fn staging(volume: &Volume) -> String {
    format!("/run/heat-node-agent/move/{}", volume.role)
}

fn two_members(old: &Path, place: &str) -> AttemptFailure {
    let from = old.display();
    refused(FormatDecision::Refuse {
        found: format!("both {from} and the volume ({place}/{DATA}) contain an etcd member, and they differ"),
        rule: "only one of the two data directories can be this member's; another member's is never started".to_owned(),
        remedy: format!("find out which one is right, and rename the other: `mv {from} {from}.before`").into(),
    })
    .into()
}

fn too_small(volume: &Volume, old: &Path, has: &str, found: u64, needed: u64) -> AttemptFailure {
    let (name, old) = (&volume.disk, old.display());
    let words = format!("volume {name} {has} {} MiB, and {old} with its spare room needs {} MiB", found >> 20, needed >> 20);
    Failure::from_error(Code::VolumeRefused, "move", &Error::refused(words).remedy("use a larger ETCD_VOLUME")).into()
}

fn record_path(volume: &Volume) -> PathBuf {
    PathBuf::from(format!("volumes/{}-move.json", volume.role))
}

#[cfg(test)]
#[path = "data_move_tests.rs"]
mod tests;
