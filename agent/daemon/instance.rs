//! Whose machine this is, before anything of the state is opened (design.md 4, "Identity").

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use super::host::Host;
use super::node::spec_of;
use super::{page, status_file};
use crate::deploy::Generations;
use crate::desired::Desired;
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::identity::{Identity, InstanceRecord, claim, owner, prune_beside, succeed, take_back, take_back_deployed};
use crate::kubernetes::{self, MachineFacts};
use crate::output::print_error;
use crate::report::notify::Notify;
use crate::report::{Code, Event, Phase};
use crate::storage::mount_unit;
use crate::storage::probe::{DiskProbe, Mount};

/// How often an unknown identity is looked for: two small files.
const IDENTITY_POLL: Duration = Duration::from_secs(1);
/// How often it is said that it is still unknown.
const REMIND: u32 = 300;
/// Longest time for stopping a unit of another instance.
const STOPPING: Duration = Duration::from_mins(1);

impl Host {
    /// Waits until the identity is known and sees to it that the state is this instance's. `None`: the agent is to end,
    /// asked to by a signal, or with `once` because nobody says which instance this is.
    ///
    /// # Errors
    /// If the state can be neither read nor quarantined.
    pub(super) async fn settle(&self, once: bool) -> Result<Option<InstanceRecord>> {
        let machine = match Identity::of_machine(&self.root) {
            Ok(machine) => machine,
            Err(error) => {
                self.unknown(&error);
                if once {
                    print_error(&error);
                    return Ok(None);
                }
                match self.wait(error).await? {
                    Some(machine) => machine,
                    None => return Ok(None),
                }
            }
        };
        let record = match InstanceRecord::open(&self.state, &self.report)? {
            Some(record) if record.leaving.is_none() && record.instance.is(&machine) => record,
            Some(old) => self.change(old, machine).await?,
            None => {
                let record = InstanceRecord::new(machine, self.clock.now());
                record.write(&self.state)?;
                let line = format!("this is instance {}", record.instance);
                self.report.emit(Event::new(Code::IdentityRecorded, line).phase(Phase::Settings));
                record
            }
        };
        let deployed = &self.settings.deploy.deployed_dir;
        let mut is_back = false;
        if record.predecessor.is_some() {
            // After a kill there may be thousands of files to move.
            Notify::default().ready();
            is_back = take_back(&self.state, deployed, &record.instance)?;
        }
        is_back |= take_back_deployed(deployed, &record.instance)?;
        if is_back {
            let line = format!("this disk was that of {} before: the scripts that ran there do not run again", record.instance);
            self.report.emit(Event::new(Code::IdentityRecorded, line).phase(Phase::Settings));
        }
        // Less is known of a wrong backup then; nothing else depends on it.
        if let Err(error) = claim(&self.settings.deploy.deployed_dir, &record.instance) {
            let line = "the directory of the replaced tools' records cannot be marked as this instance's";
            self.report.emit(Event::new(Code::of_trouble(&error), line).phase(Phase::Settings).error(&error));
        }
        Ok(Some(record))
    }

    fn unknown(&self, error: &Error) {
        let event = Event::new(Code::IdentityUnknown, "the identity of this instance is not known yet: nothing is run or sent");
        self.report.emit(event.phase(Phase::Settings).step("identity").error(error).next_try(IDENTITY_POLL));
    }

    /// Ready as far as systemd is concerned, and alive; all else waits.
    async fn wait(&self, mut error: Error) -> Result<Option<Identity>> {
        let mut notify = Notify::default();
        notify.ready();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut reload = signal(SignalKind::hangup())?;
        let started = self.clock.now();
        let run_dir = Tree::open_or_create(&self.settings.run_dir, 0o755).ok();
        for round in 1_u32.. {
            let page = page::without_identity(started, &error);
            notify.status(&page.summary);
            if let Some(run_dir) = run_dir.as_ref().filter(|_| round == 1)
                && let Err(error) = status_file::write(run_dir, &page)
            {
                self.report
                    .emit(Event::new(Code::StateWriteFailed, "the status file cannot be written").step("status").error(&error));
            }
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = reload.recv() => {}
                () = self.clock.wait(IDENTITY_POLL) => {}
            }
            notify.alive(&self.clock);
            match Identity::of_machine(&self.root) {
                Ok(machine) => return Ok(Some(machine)),
                Err(newer) => error = newer,
            }
            if round % REMIND == 0 {
                self.unknown(&error);
            }
        }
        notify.stopping();
        Ok(None)
    }

    /// The disk was copied: its state is set aside and nothing of it is used.
    async fn change(&self, old: InstanceRecord, machine: Identity) -> Result<InstanceRecord> {
        // Stopping may take longer than systemd waits for a start.
        Notify::default().ready();
        self.retire_units().await;
        let beside = beside(&self.root, &self.settings.deploy.deployed_dir, &machine, &DiskProbe::machine().read_mounts()?)?;
        let record = succeed(&self.state, &beside, old, machine, self.clock.now())?;
        let gone = prune_beside(&self.settings.deploy.deployed_dir)?;
        if !gone.is_empty() {
            let line = format!("old records of the replaced tools were removed: {}", gone.join(", "));
            let event = Event::new(Code::LeftoversRemoved, line).phase(Phase::Settings);
            let place = self.settings.deploy.deployed_dir.parent().unwrap_or(Path::new("/")).display();
            self.report.emit(event.cause(format!("the newest are kept in {place}")));
        }
        if let Some(before) = &record.predecessor {
            let line = format!("this disk is a copy of instance {}; this is instance {}", before.instance, record.instance);
            let aside = self.settings.state_dir.join(format!("aside/{}", before.aside));
            let event = Event::new(Code::IdentityChanged, line).phase(Phase::Settings);
            self.report.emit(event.cause(format!("the state of {} was moved to {}", before.instance, aside.display())));
        }
        Ok(record)
    }

    /// They may run where the guard did not keep them from starting, e.g. because a container got another identity while
    /// it ran. Nor is a later boot to start them: the guard lets units pass once this instance has a node of its own, which
    /// may need others, or not have its files yet.
    async fn retire_units(&self) {
        let Some(systemd) = &self.systemd else { return };
        let former = match former_node(&self.state) {
            Ok(Some(former)) => former,
            Ok(None) => return,
            Err(error) => {
                let line = "the units of the other instance are not known, so they are not stopped";
                return self.report.emit(Event::new(Code::IdentityUnitStopped, line).error(&error));
            }
        };
        let units: Vec<_> = former.units.into_iter().filter(|unit| unit.enable).map(|unit| unit.name).collect();
        let disabled = async {
            // The mount point is asked for by a node without a volume too, and this disk is not attached any more.
            for volume in &former.volumes {
                self.root.remove(Path::new(&mount_unit::path(&volume.mount_point)))?;
            }
            systemd.disable(&units).await?;
            systemd.reload().await
        };
        if let Err(error) = disabled.await {
            let line = "the units of the other instance cannot be disabled";
            self.report.emit(Event::new(Code::IdentityUnitStopped, line).error(&error));
        }
        for unit in units {
            // Each may take half of what the watchdog allows.
            Notify::default().alive(&self.clock);
            // Large futures: rarely made, and not to be carried along by every start.
            let stopped = Box::pin(self.clock.limit(STOPPING, async {
                if !systemd.unit(&unit).await?.may_run_soon() {
                    return Ok(false);
                }
                systemd.stop(&unit).await.map(|_| true)
            }));
            let event = match stopped.await {
                Some(Ok(false)) => continue,
                Some(Ok(true)) => Event::new(Code::IdentityUnitStopped, format!("{unit} was stopped")),
                Some(Err(error)) => Event::new(Code::IdentityUnitStopped, format!("{unit} cannot be stopped")).error(&error),
                None => Event::new(Code::IdentityUnitStopped, format!("{unit} is still stopping")),
            };
            self.report.emit(event.unit(unit));
        }
    }
}

/// What goes with the state: the replaced tools' record, and on the root disk the memberships of services that an agent
/// configured: others run unguarded, with their stores open. A volume's are not looked at: what it holds is judged by its
/// marker.
///
/// A state directory may have come alone, from a wrong backup: what says which scripts this instance ran stays.
fn beside(root: &Tree, deployed: &Path, machine: &Identity, mounts: &[Mount]) -> Result<Vec<PathBuf>> {
    let is_own = owner(deployed).is_some_and(|owner| owner.is(machine));
    let mut found: Vec<PathBuf> = (!is_own).then(|| deployed.to_owned()).into_iter().collect();
    for membership in kubernetes::MEMBERSHIPS {
        let on_root = !mounts.iter().any(|mount| mount.point == membership.store);
        if on_root && root.facts(Path::new(membership.drop_in))?.is_some() {
            found.push(membership.path.into());
        }
    }
    Ok(found)
}

/// What the generation in place asks for; nothing where there is none.
fn former_node(state: &Tree) -> Result<Option<Desired>> {
    let Some(generation) = Generations::inspect(state) else { return Ok(None) };
    Ok(Some(kubernetes::render(&spec_of(&generation.entry)?, &MachineFacts::default())?))
}

/// Refused, if the state in `state_dir` is of another instance than this machine. Nothing is said where either is unknown,
/// or closed to whoever asks.
///
/// # Errors
/// Says whose it is.
pub(crate) fn check(state_dir: &Path) -> Result<()> {
    let known = || {
        let record = InstanceRecord::read(&Tree::open(state_dir).ok()?).ok()??;
        Some((record, Identity::of_machine(&Tree::open(Path::new("/")).ok()?).ok()?))
    };
    known().map_or(Ok(()), |(record, machine)| record.check(&machine))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Attributes;
    use crate::identity::IdentityOrigin;

    #[test]
    fn a_membership_goes_with_the_disk_that_it_lies_on() {
        let mount = |point: &str| Mount { number: "8:1".into(), point: point.into(), source: "/dev/sda1".into() };
        let (etcd, containers, swarm) = ("/var/lib/etcd/default.etcd", "/var/lib/docker/containers", "/var/lib/docker/swarm");
        let (both, only_etcd, worker) = (vec!["etcd", "docker"], vec!["etcd"], vec!["kubelet"]);
        for (configured, mounts, aside) in [
            (&both, vec!["/", "/var"], vec!["/d", etcd, containers, swarm]),
            (&both, vec!["/", "/var/lib/etcd"], vec!["/d", containers, swarm]),
            (&both, vec!["/", "/var/lib/docker", "/var/lib/docker/overlay2"], vec!["/d", etcd]),
            // Somebody else's docker keeps its containers.
            (&only_etcd, vec!["/"], vec!["/d", etcd]),
            (&worker, vec!["/"], vec!["/d", "/var/lib/kubelet/pki"]),
            (&vec![], vec!["/"], vec!["/d"]),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let root = Tree::open(dir.path()).unwrap();
            for service in configured {
                let place = PathBuf::from(format!("etc/systemd/system/{service}.service.d"));
                root.create_dir_all(&place, Attributes::mode(0o755)).unwrap();
                root.write(&place.join("50-heat-node-agent.conf"), b"", Attributes::mode(0o644)).unwrap();
            }
            let mounts: Vec<_> = mounts.into_iter().map(mount).collect();
            let aside: Vec<_> = aside.iter().map(PathBuf::from).collect();
            assert_eq!(beside(&root, Path::new("/d"), &machine("b"), &mounts).unwrap(), aside);
        }
    }

    /// Attack: with the state directory of another instance, this one's record of what had run went, and scripts ran twice.
    #[test]
    fn what_is_known_to_be_this_instances_stays_whoevers_the_state_is() {
        let dir = tempfile::tempdir().unwrap();
        let root = Tree::open(dir.path()).unwrap();
        let deployed = dir.path().join("deployed");
        let found = |instance| beside(&root, &deployed, &machine(instance), &[]).unwrap();
        assert_eq!(found("b"), std::slice::from_ref(&deployed), "it does not say whose it is");
        claim(&deployed, &machine("b")).unwrap();
        assert_eq!((found("b"), found("a")), (vec![], vec![deployed.clone()]));
        claim(&deployed, &machine("a")).unwrap();
        assert_eq!((found("b"), found("a")), (vec![deployed.clone()], vec![]));
    }

    fn machine(value: &str) -> Identity {
        Identity { origin: IdentityOrigin::CloudInit, value: value.to_owned() }
    }
}
