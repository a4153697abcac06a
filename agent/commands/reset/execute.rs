//! The steps of a reset, carried out. Each may find that it was done before.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::marker::ResetMarker;
use super::plan::{Arguments, ResetStep};
use crate::clock::Clock;
use crate::commands::{print, units};
use crate::daemon::{RESET, UNIT};
use crate::deploy::Journal;
use crate::desired::{Desired, DiskName};
use crate::error::{Error, Result};
use crate::files::{Attributes, Lock, Tree};
use crate::gather::Gather;
use crate::http::Http;
use crate::keepers::certificates::remove_sets;
use crate::keepers::membership::leave::EtcdDeparture;
use crate::kubernetes::{self, MEMBERSHIPS};
use crate::network::{FIREWALL, FIREWALL_UNIT, FirewallFile};
use crate::programs::Programs;
use crate::programs::tool::output_of;
use crate::report::Report;
use crate::settings::Settings;
use crate::storage::identity::matching;
use crate::storage::mount_unit;
use crate::storage::probe::{Disk, DiskProbe};
use crate::systemd::Systemd;

/// Every pod, where systemd makes their control groups.
const PODS: &str = "kubepods.slice";
/// Below these a directory that is left empty was the agent's; others may be a package's. /srv/kubernetes itself is the agent's package's: the
/// agent's unit can write below it, and not make it.
const OWN_DIRECTORIES: [&str; 4] = ["/etc/systemd/system/", "/etc/kubernetes", "/etc/etcd/", "/srv/kubernetes/"];

/// What the steps work with.
pub(super) struct Execution<'a> {
    pub(super) settings: &'a Settings,
    pub(super) state: &'a Arc<Tree>,
    pub(super) root: &'a Arc<Tree>,
    pub(super) systemd: &'a Systemd,
    pub(super) http: &'a Http,
    pub(super) programs: &'a Programs,
    pub(super) clock: &'a Clock,
    pub(super) report: &'a Report,
    pub(super) asked: &'a [Desired],
    pub(super) wanted: &'a Arguments,
    pub(super) marker: ResetMarker,
    pub(super) lock: Option<Lock>,
}

impl Execution<'_> {
    pub(super) async fn carry_out(&mut self, step: &ResetStep) -> Result<()> {
        match step {
            ResetStep::StopAgent => self.stop_agent().await,
            ResetStep::LeaveEtcd(_) => self.leave_etcd().await,
            ResetStep::ClearFirewall => self.clear_firewall().await,
            ResetStep::StopUnits(units) => self.stop_units(units).await,
            ResetStep::RemoveMemberships => self.remove_memberships(),
            ResetStep::Unmount(places) => self.unmount(places).await,
            ResetStep::RemoveFiles => self.remove_files().await,
            ResetStep::Wipe(disk) => wipe(disk),
            ResetStep::RemoveState => self.remove_state(),
        }
    }

    async fn stop_agent(&mut self) -> Result<()> {
        units::stop(self.systemd, UNIT).await?;
        self.disable(&[UNIT.to_owned()]).await?;
        self.lock = Some(units::lock_state(self.state, self.clock).await?);
        Ok(())
    }

    async fn leave_etcd(&mut self) -> Result<()> {
        let departure = EtcdDeparture::of(self.http, self.root, self.state, self.programs, self.asked);
        let Some(departure) = departure else { return Ok(()) };
        let has_left = departure.leave(self.wanted.on_unable()).await?;
        if !has_left {
            print("the node's member stays in etcd's list of members\n")?;
        }
        (self.marker.etcd_is_left, self.marker.data_is_of_nobody) = (true, has_left);
        self.marker.write(self.state)
    }

    /// Rules that a firewall keeps beyond a reboot go by the unit that made them.
    async fn clear_firewall(&self) -> Result<()> {
        let Some(file) = self.root.read_json::<FirewallFile>(Path::new(FIREWALL))? else { return Ok(()) };
        let cleared = file.cleared.into_iter().chain(file.tool).collect();
        let cleared = FirewallFile { tool: None, cleared, open: Vec::new() };
        self.root.write_json(Path::new(FIREWALL), &cleared, Attributes::mode(0o644))?;
        units::succeeded(FIREWALL_UNIT, &self.systemd.restart(FIREWALL_UNIT).await?)
    }

    async fn stop_units(&mut self, units: &[String]) -> Result<()> {
        // From here on etcd is down, and nobody can be asked any more.
        self.marker.etcd_is_left = true;
        self.marker.write(self.state)?;
        for unit in units.iter().map(String::as_str).chain([PODS]) {
            units::stop(self.systemd, unit).await?;
        }
        let enabled = self.asked.iter().flat_map(|desired| &desired.units).filter(|unit| unit.enable);
        let enabled: BTreeSet<&String> = enabled.map(|unit| &unit.name).gather();
        self.disable(&enabled.into_iter().cloned().collect::<Vec<_>>()).await
    }

    async fn disable(&self, units: &[String]) -> Result<()> {
        // One whose file a reset before removed is still known to systemd until then, and cannot be disabled.
        self.systemd.reload().await?;
        let mut there = Vec::new();
        for unit in units {
            if !self.systemd.unit(unit).await?.is_missing() {
                there.push(unit.clone());
            }
        }
        if there.is_empty() { Ok(()) } else { self.systemd.disable(&there).await }
    }

    /// Those on the root disk; of a volume only the data of a member that has left: with it etcd would never start again.
    fn remove_memberships(&self) -> Result<()> {
        let mounts = DiskProbe::machine().read_mounts()?;
        for membership in MEMBERSHIPS {
            let is_ours = self.root.facts(Path::new(membership.drop_in))?.is_some();
            let on_root = !mounts.iter().any(|mount| mount.point == membership.store);
            let of_nobody = self.marker.data_is_of_nobody && membership.path == kubernetes::ETCD_DATA;
            if is_ours && (on_root || of_nobody) {
                self.root.remove_dir_all(Path::new(membership.path))?;
            }
        }
        Ok(())
    }

    async fn unmount(&self, places: &[String]) -> Result<()> {
        for place in places {
            let unit = mount_unit::name(place);
            units::stop(self.systemd, &unit).await.map_err(|error| {
                error.remedy(format!("`fuser -vm {place}` shows who uses it: end that, or reboot, after which nothing starts it"))
            })?;
            self.disable(std::slice::from_ref(&unit)).await?;
            self.root.remove(Path::new(&mount_unit::path(place)))?;
        }
        Ok(())
    }

    async fn remove_files(&self) -> Result<()> {
        for desired in self.asked {
            let keys = desired.trusted_paths();
            let join = desired.etcd_join.iter().map(|join| join.file.as_str());
            for path in desired.files.iter().map(|file| file.path.as_str()).chain(keys.iter().copied()).chain(join) {
                self.root.remove(Path::new(path))?;
            }
            let directories: BTreeSet<&Path> = keys.iter().filter_map(|path| Path::new(path).parent()).gather();
            for directory in directories {
                remove_sets(self.root, directory)?;
            }
            // Children stand behind their parents.
            for directory in desired.directories.iter().rev().map(|directory| directory.path.as_str()) {
                let path = Path::new(directory);
                let is_own = OWN_DIRECTORIES.iter().any(|own| directory.starts_with(own));
                if is_own && self.root.facts(path)?.is_some() && self.root.list(path)?.is_empty() {
                    self.root.remove_dir_all(path)?;
                }
            }
        }
        self.systemd.reload().await
    }

    /// What says that a script ran stays in the replaced tools' record, so that none runs twice; the node's deployment may.
    fn remove_state(&self) -> Result<()> {
        let deploy = &self.settings.deploy;
        let mut journal =
            Journal::open(Arc::clone(self.state), Some(&deploy.deployed_dir), deploy.keep, self.clock.clone(), self.report)?;
        let nodes = journal.all().into_iter().filter(|record| record.group == "kubernetes-node");
        let nodes: Vec<String> = nodes.map(|record| record.id.clone()).collect();
        for id in nodes {
            journal.forget(&id)?;
        }
        // The generation is what a reset goes on by: it goes last but for the marker.
        for last in [false, true] {
            for name in self.state.list(Path::new(""))? {
                if name != "lock" && name != RESET && (name == "node.json") == last {
                    self.state.remove_dir_all(Path::new(&name))?;
                }
            }
        }
        if let Ok(run_dir) = Tree::open(&self.settings.run_dir) {
            for name in run_dir.list(Path::new(""))? {
                run_dir.remove_dir_all(Path::new(&name))?;
            }
        }
        self.state.remove(Path::new(RESET)).map(drop)
    }
}

/// Zeros everywhere: what the next bring-up takes for blank.
fn wipe(name: &DiskName) -> Result<()> {
    let probe = DiskProbe::machine();
    let disks = probe.read_disks()?;
    let names: Vec<_> = disks.iter().map(|disk| disk.names.clone()).collect();
    let selected: Vec<&Disk> = matching(name, &names).into_iter().filter_map(|at| disks.get(at)).collect();
    let [disk] = selected[..] else {
        return Err(Error::refused(format!("{} disks are volume {name}", selected.len())).remedy("attach exactly this volume"));
    };
    let holders = probe.holders(disk);
    let mount = probe.read_mounts()?.into_iter().find(|mount| mount.number == disk.number);
    if let Some(user) = mount.map(|mount| format!("mounted on {}", mount.point)).or_else(|| holders.first().cloned()) {
        return Err(Error::refused(format!("volume {name} is in use: {user}")).remedy("end that use"));
    }
    output_of("blkdiscard", &["--zeroout", &disk.node.display().to_string()], "").map(drop)
}
