//! What systemd says of a unit, as plain words: newer versions add words, and an unknown one must not cost the rest.

use std::time::Duration;

use super::properties::{self, PropertyValue};

/// What systemd takes for the exit status of a program that it could not run.
const EXIT_EXEC: i32 = 203;

/// A unit as systemd saw it at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitState {
    /// `etcd.service`.
    pub name: String,
    /// `loaded`, `not-found`, `masked`, `bad-setting`, …
    pub load_state: String,
    /// `active`, `activating`, `inactive`, `failed`, …
    pub active_state: String,
    /// `running`, `exited`, `auto-restart`, `mounted`, …
    pub sub_state: String,
    /// `enabled`, `disabled`, `static`, `alias`, …; empty where there is no unit file.
    pub unit_file_state: String,
    /// Result of a service or mount: `success`, `exit-code`, `timeout`, …; empty for other kinds.
    pub result: String,
    /// Exit status or signal of the main process.
    pub exec_main_status: i32,
    /// The first program that it runs, as its unit names it; empty for other kinds.
    pub program: String,
    /// Where the unit file is; empty where there is none.
    pub fragment_path: String,
    /// Whether the unit's files are newer than what systemd read.
    pub need_daemon_reload: bool,
    /// The main process; 0 if none runs.
    pub main_pid: u32,
    /// How often systemd restarted it by itself (0 before systemd 235).
    pub n_restarts: u32,
    /// Whether a job waits for it: at a boot it may be down only because its turn has not come.
    pub job_queued: bool,
    /// How long it has been up, where it is (org.freedesktop.systemd1(5), `ActiveEnterTimestampMonotonic`).
    pub up_for: Option<Duration>,
    /// How it went down last, since boot; nothing where it was never up.
    pub left: Option<Departure>,
}

/// How a unit went down, apart from failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// A job stopped it: `systemctl stop`, or that of a unit that it is bound to.
    Stopped,
    /// Its main process ended, and nobody had asked systemd for that.
    Ended,
}

/// Whether a unit in this ActiveState is up.
pub(super) fn is_active(active_state: &str) -> bool {
    matches!(active_state, "active" | "reloading" | "refreshing")
}

impl UnitState {
    /// Whether no unit file of this name exists (and nothing else made the unit).
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.load_state == "not-found"
    }

    /// Whether it is up; one that reloads is.
    #[must_use]
    pub fn is_active(&self) -> bool {
        is_active(&self.active_state)
    }

    /// Whether something of it may run; also in states that only newer versions know.
    #[must_use]
    pub fn may_run(&self) -> bool {
        !matches!(self.active_state.as_str(), "inactive" | "failed" | "")
    }

    /// The same, or a job is queued for it: between two tries a unit may be inactive, and its start wait for its turn.
    #[must_use]
    pub fn may_run_soon(&self) -> bool {
        self.may_run() || self.job_queued
    }

    /// Whether it is on its way to another state, or waits for its turn.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        self.job_queued
            || matches!(self.active_state.as_str(), "activating" | "reloading" | "refreshing" | "deactivating" | "maintenance")
    }

    /// Whether it failed and systemd does nothing more about it.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.active_state == "failed"
    }

    /// Whether systemd could not even run its program: the file is not there, or is none that can be run (systemd.exec(5):
    /// EXIT_EXEC). Trying again does not help.
    #[must_use]
    pub fn cannot_be_run(&self) -> bool {
        !self.is_active() && self.result == "exit-code" && self.exec_main_status == EXIT_EXEC
    }

    /// One line for a cause: `failed (exit-code, status 1)`.
    #[must_use]
    pub fn describe(&self) -> String {
        if self.load_state != "loaded" && !self.load_state.is_empty() {
            return format!("{} ({})", self.active_state, self.load_state);
        }
        match self.result.as_str() {
            "" | "success" => format!("{} ({})", self.active_state, self.sub_state),
            _ if self.cannot_be_run() => {
                let program = if self.program.is_empty() { "its program" } else { &self.program };
                format!("{} ({}: 203/EXEC, {program} does not exist or cannot be run)", self.active_state, self.sub_state)
            }
            // Its program did not fail, or never began.
            "exit-code" if self.exec_main_status == 0 => {
                format!("{} ({}: exit-code of a command that runs before its program)", self.active_state, self.sub_state)
            }
            "exit-code" => format!("{} ({}: exit-code, status {})", self.active_state, self.sub_state, self.exec_main_status),
            result => format!("{} ({}: {result})", self.active_state, self.sub_state),
        }
    }
}

/// A unit's state with the job that is queued for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UnitWithJob {
    pub(super) state: UnitState,
    /// Object path of the queued job.
    pub(super) job: Option<String>,
}

impl UnitWithJob {
    /// From `Properties.GetAll` over all interfaces of the unit. `uptime`: what the machine's monotonic clock shows.
    pub(super) fn from_properties(name: &str, body: &[u8], little_endian: bool, uptime: Duration) -> Option<Self> {
        let mut state = UnitState { name: name.to_owned(), ..UnitState::default() };
        let (mut job, mut came_up) = (None, Duration::ZERO);
        let (mut left_at, mut process_ended_at) = (0, 0);
        let text = |text| String::from_utf8_lossy(text).into_owned();
        properties::read(body, little_endian, |key, value| match (key, value) {
            (b"LoadState", PropertyValue::Text(word)) => state.load_state = text(word),
            (b"ActiveState", PropertyValue::Text(word)) => state.active_state = text(word),
            (b"SubState", PropertyValue::Text(word)) => state.sub_state = text(word),
            (b"UnitFileState", PropertyValue::Text(word)) => state.unit_file_state = text(word),
            (b"Result", PropertyValue::Text(word)) => state.result = text(word),
            (b"FragmentPath", PropertyValue::Text(path)) => state.fragment_path = text(path),
            (b"ExecMainStatus", PropertyValue::Signed(status)) => state.exec_main_status = status,
            (b"ExecStart", PropertyValue::Program(path)) => state.program = text(path),
            (b"NeedDaemonReload", PropertyValue::Flag(flag)) => state.need_daemon_reload = flag,
            (b"MainPID", PropertyValue::Unsigned(pid)) => state.main_pid = pid,
            (b"NRestarts", PropertyValue::Unsigned(count)) => state.n_restarts = count,
            (b"ActiveEnterTimestampMonotonic", PropertyValue::Long(at)) => came_up = Duration::from_micros(at),
            (b"ActiveExitTimestampMonotonic", PropertyValue::Long(at)) => left_at = at,
            (b"ExecMainExitTimestampMonotonic", PropertyValue::Long(at)) => process_ended_at = at,
            (b"Job", PropertyValue::Job(id, path)) if id != 0 => job = Some(text(path)),
            _ => {}
        })?;
        state.job_queued = job.is_some();
        state.up_for = (state.is_active() && !came_up.is_zero()).then(|| uptime.saturating_sub(came_up));
        // A stop takes a unit out of `active` before it asks its process to end.
        state.left = (left_at > 0 && !state.is_active()).then_some(if (1..=left_at).contains(&process_ended_at) {
            Departure::Ended
        } else {
            Departure::Stopped
        });
        Some(Self { state, job })
    }

    /// Nothing runs and nothing is about to.
    pub(super) fn is_stopped(&self) -> bool {
        self.job.is_none() && matches!(self.state.active_state.as_str(), "inactive" | "failed" | "")
    }
}

/// What enabling units did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Enabled {
    /// Whether a link was made or taken away.
    pub changed: bool,
    /// Units that start an enabled one at boot and are not on this machine (reported by systemd from about 250 on).
    pub absent: Vec<String>,
}

/// How a job ended, in systemd's word: `done`, `failed`, `canceled`, `timeout`, `dependency`, `skipped`, …
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobOutcome {
    /// The word.
    pub result: String,
}

impl JobOutcome {
    /// An outcome by its word.
    #[must_use]
    pub fn new(result: impl Into<String>) -> Self {
        Self { result: result.into() }
    }

    /// Whether the job did what it was for.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.result == "done"
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use zbus::zvariant::serialized::Context;
    use zbus::zvariant::{LE, ObjectPath, StructureBuilder, Value, to_bytes};

    use super::*;

    fn state(active: &str) -> UnitState {
        UnitState { active_state: active.into(), load_state: "loaded".into(), ..UnitState::default() }
    }

    #[test]
    fn words_of_newer_systemds_are_kept_and_harmless() {
        for (word, active, settling, failed) in [
            ("active", true, false, false),
            ("reloading", true, true, false),
            ("refreshing", true, true, false),
            ("activating", false, true, false),
            ("deactivating", false, true, false),
            ("inactive", false, false, false),
            ("failed", false, false, true),
            ("pondering", false, false, false),
        ] {
            let state = state(word);
            assert_eq!((state.is_active(), state.is_settling(), state.is_failed()), (active, settling, failed), "{word}");
            assert_eq!(state.may_run(), !matches!(word, "inactive" | "failed"), "{word}");
            assert_eq!(state.may_run_soon(), state.may_run(), "{word}");
            assert!(UnitState { job_queued: true, ..state.clone() }.may_run_soon(), "{word}");
        }
    }

    #[test]
    fn properties_of_any_kind_of_unit_are_read() {
        let job = |id: u32| {
            let path = ObjectPath::try_from("/org/freedesktop/systemd1/job/7").unwrap();
            Value::from(StructureBuilder::new().add_field(id).add_field(path).build().unwrap())
        };
        let mut properties = HashMap::from([
            ("LoadState", Value::from("loaded")),
            ("ActiveState", Value::from("inactive")),
            ("Result", Value::from("exit-code")),
            ("ExecMainStatus", Value::from(3_i32)),
            ("NeedDaemonReload", Value::from(true)),
            ("Job", job(7)),
        ]);
        let seen = |properties: &HashMap<&str, Value<'_>>| {
            let body = to_bytes(Context::new_dbus(LE, 0), properties).unwrap();
            UnitWithJob::from_properties("x.service", &body, true, Duration::from_secs(100)).unwrap()
        };
        let first = seen(&properties);
        assert_eq!(first.job.as_deref(), Some("/org/freedesktop/systemd1/job/7"));
        assert!(!first.is_stopped() && first.state.need_daemon_reload && first.state.is_settling());
        assert_eq!((first.state.exec_main_status, first.state.n_restarts), (3, 0));
        assert_eq!(first.state.up_for, None);
        let mut up = properties.clone();
        up.extend([("ActiveState", Value::from("active")), ("ActiveEnterTimestampMonotonic", Value::from(40_000_000_u64))]);
        assert_eq!((seen(&up).state.up_for, seen(&up).state.left), (Some(Duration::from_mins(1)), None));
        assert_eq!(first.state.left, None);
        for (left_at, process_ended_at, left) in [
            (50_u64, 60_u64, Departure::Stopped),
            (50, 50, Departure::Ended),
            (50, 49, Departure::Ended),
            // It has no main process.
            (50, 0, Departure::Stopped),
        ] {
            let mut down = properties.clone();
            down.insert("ActiveExitTimestampMonotonic", Value::from(left_at));
            down.insert("ExecMainExitTimestampMonotonic", Value::from(process_ended_at));
            assert_eq!(seen(&down).state.left, Some(left), "{left_at} {process_ended_at}");
        }
        properties.insert("Job", job(0));
        let second = seen(&properties);
        assert!(second.is_stopped() && !second.state.is_settling());
    }

    #[test]
    fn a_cause_says_the_state_and_why() {
        let mut failed =
            UnitState { sub_state: "failed".into(), result: "exit-code".into(), exec_main_status: 203, ..state("failed") };
        assert_eq!(failed.describe(), "failed (failed: 203/EXEC, its program does not exist or cannot be run)");
        failed.program = "/usr/bin/etcd".into();
        assert_eq!(failed.describe(), "failed (failed: 203/EXEC, /usr/bin/etcd does not exist or cannot be run)");
        failed.exec_main_status = 1;
        assert_eq!(failed.describe(), "failed (failed: exit-code, status 1)");
        failed.exec_main_status = 0;
        assert_eq!(failed.describe(), "failed (failed: exit-code of a command that runs before its program)");
        failed.load_state = "masked".into();
        assert_eq!(failed.describe(), "failed (masked)");
    }
}
