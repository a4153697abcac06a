//! What the deployments left on disk, bounded in sum (budgets/mod.rs): the oldest go first.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Agent;
use crate::budgets::{JOBS_DISK, UNREADABLE_DISK, UNREADABLE_FILES};
use crate::deploy::{Record, State};
use crate::error::Result;
use crate::files::{FileKind, Tree};
use crate::identity::bytes_aside;
use crate::kubernetes::MEMBERSHIPS;
use crate::report::status::SetAsideStatus;
use crate::report::{Code, Event, Phase, Report};

/// Files of a directory that was set aside that are counted: a store of images has millions, and its size in round numbers is
/// enough.
const COUNTED: usize = 20_000;

/// What is known of the disk.
#[derive(Debug, Default)]
pub(in crate::daemon) struct Disk {
    /// Of each deployment, by id.
    jobs: BTreeMap<String, u64>,
    /// Of all of them.
    pub(in crate::daemon) sum: u64,
    /// Of the states of other instances.
    pub(in crate::daemon) aside: u64,
    /// Of files of the state that could not be understood.
    pub(in crate::daemon) unreadable: u64,
    /// Data of services that was moved away.
    pub(in crate::daemon) set_aside: Vec<SetAsideStatus>,
}

impl Agent {
    /// Looks at what is there, once at the start.
    pub(in crate::daemon) fn measure_disk(&mut self) {
        let ids: Vec<String> = self.journal.all().into_iter().map(|record| record.id.clone()).collect();
        let measured = ids.iter().try_for_each(|id| self.measure(id)).and_then(|()| {
            self.disk.aside = bytes_aside(&self.state)?;
            self.disk.unreadable = bound_unreadable(&self.state, &self.report)?;
            self.disk.set_aside = set_aside(&self.root)?;
            self.bound_jobs()
        });
        if let Err(error) = measured {
            self.trouble("measuring the deployments' output", &error);
        }
        for place in &self.disk.set_aside {
            let line = format!("{} contains {} that nothing uses", place.path, place.size());
            let event = Event::new(Code::DataSetAside, line).step(place.path.clone());
            self.report.emit(event.phase(Phase::Settings).remedy(format!("once nobody needs it: {}", place.remove)));
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

/// Removes the oldest of the state's files that could not be understood, beyond those to keep, and gives the bytes of the others.
/// Once at the start is enough: records and signals are read into memory only then.
fn bound_unreadable(state: &Tree, report: &Report) -> Result<u64> {
    let mut sum = 0;
    // The state's own directory has a few fixed names: they cannot add up, and are only counted.
    for directory in ["", "cache", "volumes", "deployments", "outbox"].map(Path::new) {
        let mut found = Vec::new();
        for name in state.list(directory)? {
            let path = directory.join(name);
            if path.extension().is_some_and(|end| end == "unreadable")
                && let Some(facts) = state.facts(&path)?
            {
                found.push((facts.stamp.1, facts.stamp.2, path, facts.size));
            }
        }
        // By the time at which they were renamed.
        found.sort_by(|one, other| other.cmp(one));
        let (mut bytes, mut gone) = (0, 0);
        for (at, (_, _, path, size)) in found.iter().enumerate() {
            bytes += size;
            let is_over = at >= UNREADABLE_FILES || (at > 0 && bytes > (UNREADABLE_DISK / 4) as u64);
            if is_over && !directory.as_os_str().is_empty() {
                state.remove_dir_all(path)?;
                (bytes, gone) = (bytes - size, gone + 1);
            }
        }
        sum += bytes;
        if gone > 0 {
            let line =
                format!("{gone} old files that could not be read were removed from {}", state.base().join(directory).display());
            let cause = format!("the newest {UNREADABLE_FILES} are kept, of at most {} KiB", UNREADABLE_DISK / 4 / 1024);
            report.emit(Event::new(Code::LeftoversRemoved, line).phase(Phase::Settings).cause(cause));
        }
    }
    Ok(sum)
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
    fn of_what_could_not_be_read_the_newest_stay_and_the_rest_goes_with_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let state = Tree::open(dir.path()).unwrap();
        let put = |path: &str, bytes: u64| {
            state.create_dir_all(Path::new(path).parent().unwrap(), Attributes::mode(0o700)).unwrap();
            state.append(Path::new(path), Attributes::mode(0o600)).unwrap().set_len(bytes).unwrap();
            // The kernel's clock moves by ticks.
            let stamp = |path: &str| state.facts(Path::new(path)).unwrap().unwrap().stamp;
            let (_, seconds, nanoseconds) = stamp(path);
            while (stamp("probe").1, stamp("probe").2) <= (seconds, nanoseconds) {
                state.write(Path::new("probe"), b"", Attributes::mode(0o600)).unwrap();
            }
        };
        state.write(Path::new("probe"), b"", Attributes::mode(0o600)).unwrap();
        for number in 0..20 {
            // Not the names decide.
            put(&format!("deployments/{:02}.unreadable", 50 - number), 10);
        }
        for path in ["deployments/a.json", "outbox/small.unreadable", "certificates.unreadable"] {
            put(path, 10);
        }
        for number in 0..3 {
            put(&format!("outbox/{number}.unreadable"), (UNREADABLE_DISK / 6) as u64);
        }
        let report = Report::kept();
        let bytes = bound_unreadable(&state, &report).unwrap();
        let left = |path: &str| state.list(Path::new(path)).unwrap();
        assert_eq!(
            left("deployments"),
            ["31.unreadable", "32.unreadable", "33.unreadable", "34.unreadable", "35.unreadable", "a.json"]
        );
        assert_eq!(left("outbox"), ["2.unreadable", "small.unreadable"]);
        assert!(left("").contains(&"certificates.unreadable".into()));
        assert_eq!(bytes, 50 + (UNREADABLE_DISK / 6) as u64 + 10 + 10);
        let said: Vec<String> =
            report.events().iter().map(|event| format!("{} {}", event.code.entry().code, event.message)).collect();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].starts_with("HNA-0690 15 old files") && said[1].starts_with("HNA-0690 2 old files"), "{said:?}");
        assert_eq!(bound_unreadable(&state, &report).unwrap(), bytes);
        assert_eq!(report.events().len(), 2);
    }

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
