//! The one speaker of D-Bus, and it speaks to systemd only.
//!
//! In: names of units and what to do with them. Out: states and results in systemd's own words, as plain strings:
//! newer versions add words, and none of them may cost an answer (219 to 257 are spoken to).
//!
//! A job's end is an event, with a poll as the fallback: signals are lost over a daemon-reload, a daemon-reexec
//! or a restart of the bus. A bus that goes away is a transient error; the next call makes a new connection.
//!
//! Never: a property out of a cache, metadata in a unit's properties, or a decision.

mod bus;
mod events;
mod names;
mod properties;
mod transient;
mod unit;

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt as _};
use tokio::sync::Mutex;
use zbus::Message;
use zbus::zvariant::{Endian, ObjectPath, Value};

use crate::clock::uptime;
use crate::concurrent::all;
use crate::error::{Context as _, Error, Result};
use bus::{ANSWER, Arguments, BusConnection, Call, Fault, RELOAD_ANSWER, SYSTEMD_PATH};
use events::{EventOutcome, Events, Hub, Signal};
pub use names::{escape_path, mount_unit};
use transient::{Dialect, Property};
pub use transient::{TransientService, TransientStart};
use unit::UnitWithJob;
pub use unit::{Departure, Enabled, JobOutcome, UnitState};

/// Where systemd looks for units, strongest first (systemd.unit(5)); above them are only the drop-ins of `systemctl set-property`.
pub const UNIT_DIRECTORIES: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// What every kind of unit has.
const UNIT_INTERFACE: &str = "org.freedesktop.systemd1.Unit";
/// The D-Bus name of the error that a unit of this name is loaded already.
const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
/// The D-Bus names of the errors that there is nothing to stop or to kill.
const NOTHING_THERE: [&str; 2] = ["org.freedesktop.systemd1.NoSuchUnit", "org.freedesktop.systemd1.NoSuchProcess"];
/// The signal that no process can ignore.
const SIGKILL: i32 = nix::sys::signal::Signal::SIGKILL as i32;
/// How often a unit is looked at where no signal came.
const POLL: Duration = Duration::from_secs(2);
/// How a job gets along with those that are queued: it takes the place of a conflicting one.
const REPLACE: &str = "replace";
/// How many looks in a row may fail before a wait is given up: a bus that restarts is back long before.
const LOST_INSPECTIONS: u32 = 15;

/// The handle to systemd. Cheap to clone; clones share their connections.
#[derive(Clone, Debug)]
pub struct Systemd(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    link: BusConnection,
    /// Lives as long as somebody listens.
    hub: Mutex<Weak<Hub>>,
}

/// What is done to a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Start,
    Restart,
    Stop,
}

impl Verb {
    fn as_str(self) -> &'static str {
        match self {
            Self::Start => "starting",
            Self::Restart => "restarting",
            Self::Stop => "stopping",
        }
    }

    /// The manager's method for it.
    fn method(self) -> &'static str {
        match self {
            Self::Start => "StartUnit",
            Self::Restart => "RestartUnit",
            Self::Stop => "StopUnit",
        }
    }
}

impl Systemd {
    /// Connects to the system bus.
    ///
    /// # Errors
    /// If there is no bus or no systemd on it; [`crate::error::ErrorKind::Transient`].
    pub async fn connect() -> Result<Self> {
        Self::at(None).await
    }

    /// Connects to a bus by its D-Bus address.
    ///
    /// # Errors
    /// As [`Systemd::connect`].
    pub async fn connect_to(address: &str) -> Result<Self> {
        Self::at(Some(address)).await
    }

    async fn at(address: Option<&str>) -> Result<Self> {
        let systemd = Self(Arc::new(Inner { link: BusConnection::new(address), hub: Mutex::new(Weak::new()) }));
        let ping =
            Call { path: SYSTEMD_PATH, interface: "org.freedesktop.DBus.Peer", method: "Ping", arguments: Arguments::NONE };
        systemd.0.link.ask(ANSWER, &ping).await.context(|| "connecting to systemd over the system bus")?;
        Ok(systemd)
    }

    /// What `systemd-escape --path` prints for a path.
    #[must_use]
    pub fn escape_path(path: &str) -> String {
        escape_path(path)
    }

    /// Has systemd reloaded its unit files.
    ///
    /// # Errors
    /// If systemd cannot be reached or refuses.
    pub async fn reload(&self) -> Result<()> {
        let reload = Call::to_manager("Reload", Arguments::NONE);
        self.0.link.ask(RELOAD_ANSWER, &reload).await.context(|| "reloading systemd's unit files")?;
        Ok(())
    }

    /// Looks at a unit: one round trip. A unit that does not exist is no error ([`UnitState::is_missing`]). Its name is the one that was asked
    /// for, where systemd reports an alias under its own.
    ///
    /// # Errors
    /// If systemd cannot be reached or the name is no unit name.
    pub async fn unit(&self, name: &str) -> Result<UnitState> {
        Ok(UnitState { name: name.to_owned(), ..self.inspect(name).await?.state })
    }

    /// Looks at several units side by side.
    ///
    /// # Errors
    /// As [`Systemd::unit`], for the first of them.
    pub async fn units(&self, names: impl IntoIterator<Item = &String>) -> Result<Vec<UnitState>> {
        all(names.into_iter().map(|name| self.unit(name))).await.into_iter().collect()
    }

    /// Whether a unit is up. Where nothing else is asked this is one word in the place of some two hundred properties.
    ///
    /// # Errors
    /// If systemd cannot be reached; a unit that does not exist is not up.
    pub async fn is_active(&self, name: &str) -> Result<bool> {
        let path = names::object_path(name);
        let arguments = Arguments::of((UNIT_INTERFACE.to_owned(), "ActiveState".to_owned()));
        let call = Call { path: &path, interface: "org.freedesktop.DBus.Properties", method: "Get", arguments };
        let word = self.0.link.ask(ANSWER, &call).await.and_then(|answer| {
            let body = answer.body();
            let word: Value<'_> = body.deserialize()?;
            String::try_from(word).map_err(|error| Fault::Bus(error.into()))
        });
        Ok(unit::is_active(&word.context(|| format!("reading the state of {name}"))?))
    }

    /// Starts a unit and waits for the end of its start job.
    ///
    /// # Errors
    /// If systemd cannot be reached or makes no job of it (no such unit, masked). A job that fails is an outcome.
    pub async fn start(&self, name: &str) -> Result<JobOutcome> {
        self.change(name, Verb::Start).await
    }

    /// Restarts a unit (starts it if it is down) and waits for the end of the job.
    ///
    /// # Errors
    /// As [`Systemd::start`].
    pub async fn restart(&self, name: &str) -> Result<JobOutcome> {
        self.change(name, Verb::Restart).await
    }

    /// Stops a unit and waits for the end of the job.
    ///
    /// # Errors
    /// As [`Systemd::start`].
    pub async fn stop(&self, name: &str) -> Result<JobOutcome> {
        self.change(name, Verb::Stop).await
    }

    /// Ends every process of a unit's control group: they are asked by SIGTERM and, after `grace`, no longer asked (SIGKILL).
    /// Returns when nothing of it runs.
    ///
    /// # Errors
    /// If systemd cannot be reached or refuses. A unit that does not exist is ended.
    pub async fn end(&self, name: &str, grace: Duration) -> Result<()> {
        self.ask_to_end(name, "StopUnit", Arguments::of((name.to_owned(), REPLACE))).await?;
        let clock = self.0.link.clock();
        while clock.limit(grace, self.wait_until_stopped(name)).await.transpose()?.is_none() {
            self.ask_to_end(name, "KillUnit", Arguments::of((name.to_owned(), "all", SIGKILL))).await?;
        }
        Ok(())
    }

    async fn ask_to_end(&self, name: &str, method: &str, arguments: Arguments) -> Result<()> {
        match self.0.link.ask(ANSWER, &Call::to_manager(method, arguments)).await {
            Err(fault) if fault.name().is_some_and(|error| NOTHING_THERE.contains(&error)) => Ok(()),
            answer => answer.map(drop).context(|| format!("ending {name}")),
        }
    }

    /// Clears the failed state of a unit and the counter of its start limit. A unit that is not loaded has neither.
    ///
    /// # Errors
    /// If systemd cannot be reached.
    pub async fn reset_failed(&self, name: &str) -> Result<()> {
        let reset = Call::to_manager("ResetFailedUnit", Arguments::of((name.to_owned(),)));
        match self.0.link.ask(ANSWER, &reset).await {
            Err(fault) if fault.name() == Some("org.freedesktop.systemd1.NoSuchUnit") => Ok(()),
            answer => answer.map(drop).context(|| format!("resetting {name}")),
        }
    }

    /// Enables units for every boot, as `systemctl enable` does. systemd must read its unit files again afterwards, or it
    /// goes on telling the old state.
    ///
    /// # Errors
    /// If systemd cannot be reached or a unit has no file or is masked.
    pub async fn enable(&self, names: &[&str]) -> Result<Enabled> {
        let (runtime, force) = (false, true);
        // Not systemd-zbus's call: its closed set of words turns "destination not present" into an error after the work is done.
        let words: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let call = Call::to_manager("EnableUnitFiles", Arguments::of((words, runtime, force)));
        let changes = self.0.link.ask(ANSWER, &call).await.and_then(|answer| changes_of(&answer));
        let mut enabled = Enabled::default();
        for (kind, path, _) in changes.context(|| format!("enabling {}", names.join(", ")))? {
            match kind.as_str() {
                "symlink" | "unlink" => enabled.changed = true,
                "destination not present" => enabled.absent.push(path),
                _ => {}
            }
        }
        Ok(enabled)
    }

    /// Disables units, as `systemctl disable` does. systemd must read its unit files again afterwards.
    ///
    /// # Errors
    /// If systemd cannot be reached or refuses.
    pub async fn disable(&self, names: &[String]) -> Result<()> {
        let runtime = false;
        let call = Call::to_manager("DisableUnitFiles", Arguments::of((names.to_vec(), runtime)));
        self.0.link.ask(ANSWER, &call).await.context(|| format!("disabling {}", names.join(", ")))?;
        Ok(())
    }

    /// Has systemd run a program; returns once it took it.
    ///
    /// # Errors
    /// If systemd cannot be reached or refuses.
    pub async fn start_transient_service(&self, service: &TransientService) -> Result<TransientStart> {
        let name = &service.name;
        let mut dialect = Dialect::Full;
        let mut reset = false;
        loop {
            let properties = transient::service_properties(service, dialect);
            let Err(fault) = self.run_transient(name, "fail", properties).await else {
                return Ok(TransientStart::Started);
            };
            match fault.name() {
                // Before 236: "Cannot set property CollectMode, or unknown property."
                Some("org.freedesktop.DBus.Error.PropertyReadOnly") if dialect == Dialect::Full => dialect = Dialect::Old,
                Some(UNIT_EXISTS) if !reset => {
                    if !self.inspect(name).await?.is_stopped() {
                        return Ok(TransientStart::AlreadyThere);
                    }
                    // The failed remains of an earlier run, which a systemd before 236 keeps.
                    self.reset_failed(name).await?;
                    reset = true;
                }
                _ => return Err(Error::from(fault).context(format!("starting {name}"))),
            }
        }
    }

    /// Mounts by a transient mount unit and waits for the end of its job.
    ///
    /// # Errors
    /// As [`Systemd::start`].
    pub async fn start_transient_mount(&self, what: &str, where_: &str, fstype: &str, options: &str) -> Result<JobOutcome> {
        let name = mount_unit(where_);
        let events = self.events().await?;
        let properties = || transient::mount_properties(what, fstype, options);
        let mut started = self.run_transient(&name, REPLACE, properties()).await;
        if started.as_ref().is_err_and(|fault| fault.name() == Some(UNIT_EXISTS)) && self.inspect(&name).await?.is_stopped() {
            // The failed remains of an earlier mount.
            self.reset_failed(&name).await?;
            started = self.run_transient(&name, REPLACE, properties()).await;
        }
        let job = started.context(|| format!("mounting {what} on {where_}"))?;
        let outcome = self.end_of_job(&name, Verb::Start, &job, events).await?;
        if !outcome.is_done() {
            // systemd would keep the failed unit, and with it its name. What it says of the mount is in the journal.
            drop(self.reset_failed(&name).await);
        }
        Ok(outcome)
    }

    /// Waits until nothing of a unit runs and no job is queued for it; at once if it is not loaded.
    ///
    /// # Errors
    /// If systemd cannot be reached for half a minute.
    pub async fn wait_until_stopped(&self, name: &str) -> Result<UnitState> {
        let mut events = Some(self.events().await?);
        let mut lost = 0;
        loop {
            match self.inspect(name).await {
                Ok(seen) if seen.is_stopped() => return Ok(seen.state),
                Ok(_) => lost = 0,
                Err(error) => tolerate(&mut lost, error)?,
            }
            self.wait_for_news(&mut events, |signal| match signal {
                Signal::Unit(unit) if unit == name => Some(()),
                _ => None,
            })
            .await;
        }
    }

    /// Names of units about which something changed, from now on. Ends when the bus goes away; some may be missing
    /// where very many change at once: who waits for one unit also looks at it from time to time.
    ///
    /// # Errors
    /// If systemd cannot be reached.
    pub async fn changes(&self) -> Result<BoxStream<'static, String>> {
        let events = self.events().await?;
        let names = futures_util::stream::unfold(events, |mut events| async move {
            loop {
                match events.next().await {
                    EventOutcome::Signal(Signal::Unit(unit)) => return Some((unit, events)),
                    EventOutcome::Signal(Signal::JobRemoved { .. }) | EventOutcome::Gap => {}
                    EventOutcome::End => return None,
                }
            }
        });
        Ok(names.boxed())
    }

    /// Names of these units as something about them changes, from now on, over a connection of its own: whoever listens for as long
    /// as the node is there is not woken by every other unit of the machine. Ends when the bus goes away.
    ///
    /// # Errors
    /// If systemd cannot be reached.
    pub async fn changes_of(&self, units: &[String]) -> Result<BoxStream<'static, String>> {
        let follow = async {
            let connection = self.0.link.open().await?;
            match self.0.link.clock().limit(ANSWER, events::follow(connection, units)).await {
                Some(changes) => Ok(changes?),
                None => Err(Fault::Late(ANSWER)),
            }
        };
        follow.await.context(|| "subscribing to the signals of the node's units")
    }

    async fn inspect(&self, name: &str) -> Result<UnitWithJob> {
        let path = names::object_path(name);
        // An empty interface name asks for the properties of all of them, so that one call serves every kind of unit.
        let call = Call {
            path: &path,
            interface: "org.freedesktop.DBus.Properties",
            method: "GetAll",
            arguments: Arguments::of((String::new(),)),
        };
        let seen = self.0.link.ask(ANSWER, &call).await.and_then(|answer| {
            let body = answer.body();
            let little_endian = body.data().context().endian() == Endian::Little;
            let seen = (*body.signature() == "a{sv}")
                .then(|| UnitWithJob::from_properties(name, body.data(), little_endian, uptime()))
                .flatten();
            seen.ok_or_else(|| Fault::Bus(zbus::Error::Failure("systemd's answer is not a valid D-Bus reply".to_owned())))
        });
        seen.context(|| format!("reading the state of {name}"))
    }

    async fn change(&self, name: &str, verb: Verb) -> Result<JobOutcome> {
        // Listening begins before the call: a job can end before its call is answered.
        let events = self.events().await?;
        let call = Call::to_manager(verb.method(), Arguments::of((name.to_owned(), REPLACE)));
        let job = self.0.link.ask(ANSWER, &call).await.and_then(|answer| job_of(&answer));
        let job = job.context(|| format!("{} {name}", verb.as_str()))?;
        self.end_of_job(name, verb, &job, events).await
    }

    async fn run_transient(
        &self,
        name: &str,
        mode: &'static str,
        properties: Vec<Property>,
    ) -> std::result::Result<String, Fault> {
        let auxiliary: Vec<(String, Vec<Property>)> = Vec::new();
        let call = Call::to_manager("StartTransientUnit", Arguments::of((name.to_owned(), mode, properties, auxiliary)));
        job_of(&self.0.link.ask(ANSWER, &call).await?)
    }

    async fn end_of_job(&self, name: &str, verb: Verb, job: &str, events: Events) -> Result<JobOutcome> {
        let mut events = Some(events);
        let mut lost = 0;
        loop {
            let ended = self.wait_for_news(&mut events, |signal| match signal {
                Signal::JobRemoved { job: ended, result } if ended == job => Some(result),
                _ => None,
            });
            if let Some(result) = ended.await {
                return Ok(JobOutcome { result });
            }
            match self.inspect(name).await {
                Ok(seen) if seen.job.as_deref() == Some(job) => lost = 0,
                // The signal was lost. The job is gone, so that the unit's state is what became of it.
                Ok(seen) => return Ok(outcome_from_state(verb, &seen.state)),
                Err(error) => tolerate(&mut lost, error)?,
            }
        }
    }

    /// The first signal that `wanted` takes; `None` when it is time to look without one.
    async fn wait_for_news<T>(&self, events: &mut Option<Events>, wanted: impl Fn(Signal) -> Option<T>) -> Option<T> {
        let clock = self.0.link.clock();
        let poll = clock.wait(POLL);
        tokio::pin!(poll);
        loop {
            let Some(listener) = events else {
                poll.await;
                *events = self.events().await.ok();
                return None;
            };
            tokio::select! {
                () = &mut poll => return None,
                received = listener.next() => match received {
                    EventOutcome::Signal(signal) => if let Some(news) = wanted(signal) { return Some(news) },
                    EventOutcome::Gap => return None,
                    EventOutcome::End => *events = None,
                },
            }
        }
    }

    async fn events(&self) -> Result<Events> {
        let mut shared = self.0.hub.lock().await;
        if let Some(events) = shared.upgrade().and_then(|hub| hub.listen()) {
            return Ok(events);
        }
        let start = async {
            let connection = self.0.link.open().await?;
            match self.0.link.clock().limit(ANSWER, Hub::start(connection)).await {
                Some(hub) => Ok(hub?),
                None => Err(Fault::Late(ANSWER)),
            }
        };
        let hub = start.await.context(|| "subscribing to systemd's signals")?;
        *shared = Arc::downgrade(&hub);
        hub.listen().ok_or_else(|| {
            Error::transient("the connection to the system bus was lost").context("subscribing to systemd's signals")
        })
    }
}

/// Lets a look that failed pass, as long as it may pass by itself and it was not too often in a row.
fn tolerate(lost: &mut u32, error: Error) -> Result<()> {
    *lost += 1;
    if error.kind() == crate::error::ErrorKind::Transient && *lost < LOST_INSPECTIONS { Ok(()) } else { Err(error) }
}

/// The object path of the job that systemd answered with.
fn job_of(answer: &Message) -> std::result::Result<String, Fault> {
    let body = answer.body();
    let job: ObjectPath<'_> = body.deserialize()?;
    Ok(job.to_string())
}

/// What enabling did: kind, link and target of each change.
fn changes_of(answer: &Message) -> std::result::Result<Vec<(String, String, String)>, Fault> {
    let (_, changes): (bool, Vec<(String, String, String)>) = answer.body().deserialize()?;
    Ok(changes)
}

/// What became of a job whose end was not heard.
fn outcome_from_state(verb: Verb, state: &UnitState) -> JobOutcome {
    let is_done = match verb {
        Verb::Start | Verb::Restart => {
            state.is_active() || (!state.is_failed() && matches!(state.result.as_str(), "" | "success"))
        }
        Verb::Stop => !state.is_active(),
    };
    JobOutcome::new(if is_done { "done" } else { "failed" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_whose_end_was_not_heard_is_judged_by_the_state() {
        let state = |active: &str, result: &str| UnitState {
            active_state: active.to_owned(),
            result: result.to_owned(),
            ..UnitState::default()
        };
        for (verb, active, result, outcome) in [
            (Verb::Start, "active", "success", "done"),
            (Verb::Start, "inactive", "success", "done"),
            (Verb::Start, "failed", "exit-code", "failed"),
            (Verb::Restart, "activating", "exit-code", "failed"),
            (Verb::Stop, "inactive", "", "done"),
            (Verb::Stop, "failed", "timeout", "done"),
            (Verb::Stop, "active", "success", "failed"),
        ] {
            assert_eq!(outcome_from_state(verb, &state(active, result)).result, outcome, "{verb:?} {active} {result}");
        }
    }

    #[tokio::test]
    async fn without_a_bus_there_is_a_transient_error() {
        let error = Systemd::connect_to("unix:path=/nonexistent/bus").await.unwrap_err();
        assert_eq!(error.kind(), crate::error::ErrorKind::Transient);
        assert!(error.to_string().starts_with("connecting to systemd over the system bus: "), "{error}");
    }
}
