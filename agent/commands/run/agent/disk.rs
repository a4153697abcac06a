//! What the deployments left on disk, bounded in sum (budgets.rs): the oldest go first.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Agent;
use crate::budgets::JOBS_DISK;
use crate::deploy::{Record, State};
use crate::error::Result;
use crate::files::{FileKind, Tree};
use crate::identity::bytes_aside;
use crate::kubernetes::MEMBERSHIPS;
use crate::report::status::SetAsideStatus;
use crate::report::{Code, Event, Phase};

/// Files of a directory that was set aside that are counted: a store of images has millions, and its size in round numbers is
/// enough.
const COUNTED: usize = 20_000;

/// What is known of the disk.
#[derive(Debug, Default)]
pub(in crate::commands::run) struct Disk {
    /// Of each deployment, by id.
    jobs: BTreeMap<String, u64>,
    /// Of all of them.
    pub(in crate::commands::run) sum: u64,
    /// Of the states of other instances.
    pub(in crate::commands::run) aside: u64,
    /// Data of services that was moved away.
    pub(in crate::commands::run) set_aside: Vec<SetAsideStatus>,
}

impl Agent {
    /// Looks at what is there, once at the start.
    pub(in crate::commands::run) fn measure_disk(&mut self) {
        let ids: Vec<String> = self.journal.all().into_iter().map(|record| record.id.clone()).collect();
        let measured = ids.iter().try_for_each(|id| self.measure(id)).and_then(|()| {
            self.disk.aside = bytes_aside(&self.state)?;
            self.disk.set_aside = set_aside(&self.root)?;
            self.bound_jobs()
        });
        if let Err(error) = measured {
            self.trouble("measuring what the deployments left", &error);
        }
        for place in &self.disk.set_aside {
            let line = format!("{} holds {} that nothing uses", place.path, place.size());
            let event = Event::new(Code::DataSetAside, line).step(place.path.clone());
            self.report.emit(event.phase(Phase::Settings).remedy(format!("when nobody needs it any more: {}", place.remove)));
        }
    }

    /// Counts what a deployment left, and removes what the oldest ones did where that is too much.
    pub(super) fn job_ended(&mut self, id: &str) -> Result<()> {
        self.measure(id)?;
        self.bound_jobs()
    }

    fn measure(&mut self, id: &str) -> Result<()> {
        let Some(job) = self.journal.get(id).map(Record::job) else { return Ok(()) };
        let bytes = self.programs.bytes(&job)? + self.journal.legacy_bytes(id)?;
        let before = self.disk.jobs.insert(id.to_owned(), bytes).unwrap_or_default();
        self.disk.sum = self.disk.sum + bytes - before;
        Ok(())
    }

    fn bound_jobs(&mut self) -> Result<()> {
        if self.disk.sum <= JOBS_DISK as u64 {
            return Ok(());
        }
        // What is forgotten or was run again is not there any more.
        // One that was let go may come back and needs its result then.
        let is_over = |record: &Record| record.state == State::Signalled && record.let_go.is_none();
        let records: Vec<(String, String, bool)> =
            self.journal.all().into_iter().map(|record| (record.id.clone(), record.job(), is_over(record))).collect();
        self.disk.jobs.clear();
        self.disk.sum = 0;
        for (id, ..) in &records {
            self.measure(id)?;
        }
        let (mut shed, before) = (0, self.disk.sum);
        for (id, job, _) in records.iter().filter(|(.., is_over)| *is_over) {
            // Some room, so that the next one need not do the same.
            if self.disk.sum <= (JOBS_DISK / 4 * 3) as u64 {
                break;
            }
            if self.disk.jobs.get(id).is_some_and(|bytes| *bytes > 0) {
                self.programs.shed(job)?;
                self.journal.shed_legacy(id)?;
                self.measure(id)?;
                shed += 1;
            }
        }
        if shed > 0 {
            let line = format!("the output of {shed} deployments was removed, {} KiB", (before - self.disk.sum) / 1024);
            let cause = format!("deployments may keep {} KiB on disk", JOBS_DISK / 1024);
            self.report.emit(Event::new(Code::OutputsRemoved, line).phase(Phase::Deploy).cause(cause));
        }
        Ok(())
    }
}

/// What was moved away from the places of services: it may be somebody's, so it is told and never removed.
fn set_aside(root: &Tree) -> Result<Vec<SetAsideStatus>> {
    let mut found = Vec::new();
    for membership in MEMBERSHIPS {
        for (path, mark) in [(membership.path, ".aside-"), (membership.store, ".before-volume-")] {
            let path = Path::new(path);
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { continue };
            let prefix = format!("{}{mark}", name.to_string_lossy());
            for name in root.list(parent)? {
                let is_ours =
                    name.to_str().and_then(|name| name.strip_prefix(&prefix)).is_some_and(|number| number.parse::<u32>().is_ok());
                let place: PathBuf = parent.join(&name);
                let is_new = !found.iter().any(|known: &SetAsideStatus| Path::new(&known.path) == place);
                if is_ours && is_new && root.facts(&place)?.is_some_and(|facts| facts.kind == FileKind::Directory) {
                    let (bytes, is_all) = root.bytes_below(&place, &mut COUNTED.clone())?;
                    let path = place.display().to_string();
                    found.push(SetAsideStatus { remove: format!("rm -rf {path}"), path, bytes, is_all });
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Attributes;

    #[test]
    fn what_was_moved_away_is_told_with_its_size_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let root = Tree::open(dir.path()).unwrap();
        let data = Path::new(MEMBERSHIPS[0].path);
        let (parent, name) = (data.parent().unwrap(), data.file_name().unwrap().to_string_lossy());
        for kept in [format!("{name}.aside-2/a"), format!("{name}.aside-x/a"), format!("{name}.mine/a"), format!("{name}/a")] {
            root.create_dir_all(parent.join(&kept).parent().unwrap(), Attributes::mode(0o700)).unwrap();
            root.write(&parent.join(&kept), b"12345", Attributes::mode(0o600)).unwrap();
        }
        let found = set_aside(&root).unwrap();
        let path = parent.join(format!("{name}.aside-2")).display().to_string();
        assert_eq!(found, [SetAsideStatus { remove: format!("rm -rf {path}"), path, bytes: 5, is_all: true }]);
    }
}
