//! `etcd restore FILE [--dry-run] [--new-cluster]`: this master's member becomes the only one of a new cluster, with the keys of a snapshot.
//!
//! The snapshot is unpacked beside the data while everything runs: what is wrong with it is found before anything is stopped. From then on a
//! marker in the state directory says which new cluster it is, so that the command, run again, goes on: by the ids in the data it knows whether
//! that was replaced.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use super::master::{BY_HAND, Master};
use crate::clock::{Clock, patience};
use crate::commands::{print, units};
use crate::converge::etcd::Etcd;
use crate::converge::{note_pending_restart, strike_pending_restart};
use crate::daemon::{RESET, UNIT};
use crate::error::{Error, Result};
use crate::files::{Lock, Tree};
use crate::http::Http;
use crate::keepers::etcd_snapshots::{DIRECTORY, LOCK, RestoredMember, Tools, stamp, unpack, verify};
use crate::keepers::membership::restore::{RestoreMarker, check_volume, is_restored, joining, look, replace};
use crate::kubernetes::{ETCD_DATA, ETCD_READERS, ETCD_UNIT};
use crate::process::{exit, runtime};
use crate::programs::Programs;
use crate::report::text::harmless;
use crate::report::{Code, Event, Report};
use crate::settings::Settings;
use crate::systemd::Systemd;

/// In the directory of etcd's data: the data of the new cluster until that takes its place.
const UNPACKED: &str = "restoring";
/// A member without others is healthy as soon as it has read its data, of 8 GB at most.
const HEALTH_LIMIT: Duration = patience(Duration::from_mins(5));
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// The remedy of each step that can be resumed.
const AGAIN: &str = "run it again with the same file: it goes on where it was interrupted";

/// What the command line says.
#[derive(Clone, Debug)]
pub struct RestoreArguments {
    /// The snapshot.
    pub file: PathBuf,
    /// Only list what would be done.
    pub dry_run: bool,
    /// What is newer than the snapshot is given up, and the other members have to join anew.
    pub new_cluster: bool,
}

/// Restores etcd, and prints each step once it is done.
///
/// # Errors
/// If it must not be done: nothing was changed then. If a step fails: run again, it goes on.
pub fn restore(settings: &Settings, wanted: &RestoreArguments) -> Result<ExitCode> {
    let master = Master::open(settings)?;
    let report = Report::to_journal(false);
    let done = runtime()?.block_on(async {
        let clock = Clock::system();
        let systemd = Systemd::connect().await?;
        let programs = Programs::new(Arc::clone(&master.state), Some(systemd.clone()), clock.clone())?;
        let http = Http::new(settings.tls.clone(), Arc::clone(&master.root), clock.clone());
        let file = std::path::absolute(&wanted.file)?;
        Restore { master: &master, clock, systemd, programs, http, report: &report, file }.run(wanted).await
    });
    report.flush();
    done
}

struct Restore<'a> {
    master: &'a Master,
    clock: Clock,
    systemd: Systemd,
    programs: Programs,
    http: Http,
    report: &'a Report,
    file: PathBuf,
}

impl Restore<'_> {
    fn tools(&self) -> Tools<'_> {
        Tools { programs: &self.programs, key: BY_HAND }
    }

    async fn run(&self, wanted: &RestoreArguments) -> Result<ExitCode> {
        let Master { state, root, asked, own, .. } = self.master;
        if own.keeps_v2 {
            return Err(Error::refused("Kubernetes up to 1.5 keeps its objects in etcd's v2 store, which snapshots lack"));
        }
        if state.facts(Path::new(RESET))?.is_some() {
            return Err(
                Error::refused("a reset of this node was begun and has not ended").remedy("end it: `heat-node-agent reset`")
            );
        }
        let begun = marker(state, &self.file)?;
        check_volume(asked)?;
        let was_replaced = begun.as_ref().map_or(Ok(false), |marker| is_restored(root, &self.member(&marker.token)))?;
        // Behind the replacement the quorum is that of the new cluster.
        if !was_replaced {
            self.permitted(begun.is_some()).await.map_err(|error| error.context("restoring etcd"))?;
        }
        let _kept = self.keep_snapshots()?;
        // Behind the replacement the file is not needed any more, and may be gone.
        let revision = match begun.as_ref().filter(|_| was_replaced).and_then(|marker| marker.revision) {
            Some(verified) => verified,
            None => verify(root, self.tools(), &self.file).await?,
        };
        let rest = format!(
            "start {ETCD_UNIT} with the member {} alone, restart the API server, start heat-node-agent.service",
            own.name
        );
        let lines = if was_replaced {
            vec!["resume the restore that has begun: it has replaced the data already".to_owned(), rest]
        } else {
            vec![
                format!("unpack {} (revision {revision}) into {ETCD_DATA}/{UNPACKED}", self.file.display()),
                format!("stop heat-node-agent.service and {ETCD_UNIT}"),
                format!("move {ETCD_DATA}/member to member.replaced-TIME, and the new cluster's data into its place"),
                rest,
            ]
        };
        if wanted.dry_run {
            let lines: String = lines.iter().map(|line| format!("would {line}\n")).collect();
            return print(&harmless(&lines)).map(|()| exit::pending());
        }
        if !wanted.new_cluster {
            return Err(Error::refused(format!(
                "everything written to etcd after revision {revision} would be lost, and the other members would have to join again"
            ))
            .remedy("pass --new-cluster to confirm; --dry-run lists what would be done"));
        }
        self.carry_out(begun, was_replaced, revision).await.map_err(|error| {
            let error = if matches!(RestoreMarker::read(state), Ok(None)) {
                error
            } else {
                let remedy = error.suggested_remedy().map_or_else(|| AGAIN.to_owned(), |own| format!("{own}; then {AGAIN}"));
                error.remedy(remedy)
            };
            error.context("restoring etcd")
        })
    }

    /// The agent, which takes snapshots until it is stopped, removes none meanwhile: it might be this one.
    fn keep_snapshots(&self) -> Result<Option<Lock>> {
        if self.file.parent() != Some(Path::new(DIRECTORY)) {
            return Ok(None);
        }
        let held = self.master.root.lock(&Path::new(DIRECTORY).join(LOCK))?;
        held.map(Some).ok_or_else(|| {
            Error::refused("the agent is just taking a snapshot, for which it may remove the oldest")
                .remedy("try again in a minute")
        })
    }

    fn member(&self, token: &str) -> RestoredMember {
        let own = &self.master.own;
        RestoredMember { name: own.name.clone(), peer: own.peer.clone(), token: token.to_owned() }
    }

    async fn permitted(&self, has_begun: bool) -> Result<()> {
        let Master { asked, own, .. } = self.master;
        look(&self.http, asked, own).await.permits(has_begun)
    }

    async fn carry_out(&self, begun: Option<RestoreMarker>, was_replaced: bool, revision: u64) -> Result<ExitCode> {
        let Master { state, root, asked, own, .. } = self.master;
        let at = stamp(self.clock.now());
        let has_begun = begun.is_some();
        let (agent_ran, token) = match begun {
            Some(marker) => (marker.agent_ran, marker.token),
            None => (self.systemd.unit(UNIT).await?.may_run_soon(), format!("restored-{at}-{}-{}", own.name, std::process::id())),
        };
        let member = self.member(&token);
        let join = asked.iter().find_map(|desired| desired.etcd_join.as_deref());
        let marker = RestoreMarker {
            schema: 1,
            file: self.file.clone(),
            token,
            agent_ran,
            is_done: false,
            member: Some((own.name.clone(), own.peer.clone())),
            revision: Some(revision),
            left: joining(own, join, &at),
        };
        let unpacked = Path::new(ETCD_DATA).join(UNPACKED);
        if was_replaced {
            said("resumed the restore that had begun: it has replaced the data already")?;
        } else {
            root.remove_dir_all(&unpacked)?;
            if let Err(error) = unpack(root, self.tools(), &self.file, &unpacked, &member).await {
                // What is wrong with the file is what the operator needs; the next run removes the rest in any case.
                drop(root.remove_dir_all(&unpacked));
                return Err(error);
            }
            marker.write(state)?;
            said(&format!("unpacked revision {revision}"))?;
            // To verify and to unpack took minutes, in which others may have come up.
            if let Err(refusal) = self.permitted(has_begun).await {
                root.remove_dir_all(&unpacked)?;
                // One that was cut off has stopped the agent: only its marker knows that.
                if !has_begun {
                    RestoreMarker::remove(state)?;
                }
                return Err(refusal);
            }
        }
        units::stop(&self.systemd, UNIT).await?;
        let lock = units::lock_state(state, &self.clock).await?;
        // An agent that somebody started meanwhile has taken it for cut off.
        marker.write(state)?;
        if !was_replaced {
            units::stop(&self.systemd, ETCD_UNIT).await?;
            self.note_readers().await?;
            let kept = replace(root, join, &unpacked, &at)?;
            let kept = kept.map(|kept| format!("; the data before is {}", kept.display())).unwrap_or_default();
            said(&format!("replaced the data{kept}"))?;
        }
        root.remove_dir_all(&unpacked)?;
        units::succeeded(ETCD_UNIT, &self.systemd.start(ETCD_UNIT).await?)?;
        self.until_healthy().await?;
        said("etcd is healthy")?;
        self.restart_readers().await?;
        print(&harmless(&closing(&own.name, &marker.left)))?;
        let line = format!("etcd was restored from {} (revision {revision})", self.file.display());
        self.report.emit(Event::new(Code::EtcdRestored, line).cause("the operator asked for it"));
        // An agent that starts takes one that is not done for cut off.
        RestoreMarker { is_done: true, ..marker }.write(state)?;
        drop(lock);
        if agent_ran {
            units::succeeded(UNIT, &self.systemd.start(UNIT).await?)?;
        }
        // The last: while it is there the command, run again, does what is left.
        RestoreMarker::remove(state).map(|_| exit::OK)
    }

    /// Notes who goes on with what it knows of the data before, also where this is cut off behind the replacement.
    async fn note_readers(&self) -> Result<()> {
        for unit in ETCD_READERS {
            if self.systemd.unit(unit).await?.may_run() {
                note_pending_restart(&self.master.root, unit)?;
            }
        }
        Ok(())
    }

    async fn restart_readers(&self) -> Result<()> {
        for unit in ETCD_READERS {
            if self.systemd.unit(unit).await?.may_run() {
                units::succeeded(unit, &self.systemd.restart(unit).await?)?;
                said(&format!("restarted {unit}"))?;
            }
            strike_pending_restart(&self.master.root, unit)?;
        }
        Ok(())
    }

    async fn until_healthy(&self) -> Result<()> {
        let (etcd, since) = (Etcd::new(&self.http, &self.master.own.access, "the restored etcd"), self.clock.start());
        while !etcd.member_is_healthy().await {
            if since.elapsed() >= HEALTH_LIMIT {
                return Err(Error::transient("etcd has its new data, and is not healthy yet")
                    .remedy(format!("`journalctl -u {ETCD_UNIT} -n 50` says why")));
            }
            self.clock.wait(LOOK_PAUSE).await;
        }
        Ok(())
    }
}

/// The restore in progress; refused if it is from another file.
fn marker(state: &Tree, file: &Path) -> Result<Option<RestoreMarker>> {
    match RestoreMarker::read(state)? {
        Some(other) if other.file != file => {
            Err(Error::refused(format!("a restore from {} has begun and has not ended", other.file.display()))
                .remedy("run it again with that file; or `systemctl start heat-node-agent`, which gives it up where it is"))
        }
        begun => Ok(begun),
    }
}

/// What there is now, and what is to be done on the other masters.
fn closing(name: &str, others: &[String]) -> String {
    let mut text = format!("etcd is restored: {name} is the only member of a new cluster.\n");
    if !others.is_empty() {
        text.push_str("Left to do, one master after the other, each when etcd is healthy on the one before:\n");
        text.extend(others.iter().map(|line| format!("  {line}\n")));
    }
    text
}

fn said(line: &str) -> Result<()> {
    print(&harmless(&format!("done: {line}\n")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Attributes;
    use crate::keepers::membership::restore::end_cut_off;

    fn begun(file: &Path) -> RestoreMarker {
        let member = Some(("m1".to_owned(), "http://192.0.2.1:2380".to_owned()));
        let (file, token, left) = (file.to_owned(), "t".to_owned(), vec!["on m2: systemctl stop etcd".to_owned()]);
        RestoreMarker { schema: 1, file, token, agent_ran: true, is_done: false, member, revision: Some(7), left }
    }

    #[test]
    fn a_restore_goes_on_with_its_own_file_alone() {
        let dir = tempfile::tempdir().unwrap();
        let state = Tree::open(dir.path()).unwrap();
        let (file, other) = (Path::new("/a.db"), Path::new("/b.db"));
        assert_eq!(marker(&state, file), Ok(None));
        let begun = begun(file);
        begun.write(&state).unwrap();
        assert_eq!(marker(&state, file), Ok(Some(begun)));
        assert!(marker(&state, other).unwrap_err().cause().contains("/a.db has begun"));
        state.write(Path::new("etcd-restore.json"), b"{", Attributes::mode(0o600)).unwrap();
        assert!(marker(&state, file).unwrap_err().suggested_remedy().unwrap().contains("rm "));
    }

    /// Attack: behind a restore that had been cut off, and a reboot, the same command weeks later said that etcd was restored, and had
    /// replaced nothing.
    #[test]
    fn a_restore_that_was_cut_off_is_over_once_the_agent_has_started() {
        let dir = tempfile::tempdir().unwrap();
        let (state, report) = (Tree::open(dir.path()).unwrap(), Report::kept());
        let told = || report.events().iter().filter(|event| event.code == Code::EtcdRestoreUnfinished).count();
        let file = Path::new("/a.db");
        let begun = begun(file);
        end_cut_off(&state, &state, &report).unwrap();
        assert_eq!(told(), 0);
        begun.write(&state).unwrap();
        end_cut_off(&state, &state, &report).unwrap();
        assert_eq!((marker(&state, file), told()), (Ok(None), 1));
        // As the command itself starts the agent.
        RestoreMarker { is_done: true, ..begun }.write(&state).unwrap();
        end_cut_off(&state, &state, &report).unwrap();
        assert_eq!((marker(&state, file), told()), (Ok(None), 1));
        state.write(Path::new("etcd-restore.json"), b"{", Attributes::mode(0o600)).unwrap();
        end_cut_off(&state, &state, &report).unwrap();
        assert_eq!((marker(&state, file), told()), (Ok(None), 2));
    }
}
