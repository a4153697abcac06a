//! systemd's signals. One task reads them from a connection of its own and hands copies to whoever listens, so
//! that a listener that is busy can neither stall the bus connection nor lose the rest.
//!
//! The connection lives as long as somebody listens: an idle agent is not woken by every unit of the machine.
//! systemd forgets the subscription when the connection closes.

use std::sync::Arc;

use std::future::ready;

use futures_util::StreamExt as _;
use futures_util::stream::{BoxStream, SelectAll};
use systemd_zbus::JobRemoved;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use zbus::message::Type;
use zbus::zvariant::ObjectPath;
use zbus::{Connection, MatchRule, Message, MessageStream};

use super::bus::{Arguments, MANAGER, SYSTEMD, SYSTEMD_PATH};
use super::names::{UNIT_PATHS, object_path, unit_of};

/// More than systemd sends in one turn of its loop on a busy node; who lags behind looks for himself.
const BUFFERED: usize = 1024;

/// What may wait of one unit for whoever follows a few: systemd reports a change in two or three signals.
const OF_ONE_UNIT: usize = 16;

/// The bus itself, by its name as a sender.
const BUS: &str = "org.freedesktop.DBus";

/// Something that systemd said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// A job ended.
    JobRemoved {
        /// Object path of the job.
        job: String,
        /// Its result.
        result: String,
    },
    /// Something about a unit changed.
    Unit(String),
}

/// The task that reads; ends with the last listener.
#[derive(Debug)]
pub(super) struct Hub {
    sender: broadcast::WeakSender<Signal>,
    task: tokio::task::AbortHandle,
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Hub {
    /// Subscribes on a fresh connection. When this returns, no later signal is missed.
    pub(super) async fn start(connection: Connection) -> zbus::Result<Arc<Self>> {
        let signals = || MatchRule::builder().msg_type(Type::Signal);
        let of_manager = signals().sender(SYSTEMD)?.path(SYSTEMD_PATH)?.interface(MANAGER)?.build();
        let of_units =
            signals().sender(SYSTEMD)?.path_namespace(UNIT_PATHS)?.interface("org.freedesktop.DBus.Properties")?.build();
        let of_owner = signals().sender(BUS)?.member("NameOwnerChanged")?.arg(0, SYSTEMD)?.build();
        let mut messages = SelectAll::new();
        for rule in [of_manager, of_units, of_owner] {
            messages.push(MessageStream::for_match_rule(rule, &connection, Some(BUFFERED)).await?);
        }
        let subscribed =
            connection.call_method(Some(SYSTEMD), SYSTEMD_PATH, Some(MANAGER), "Subscribe", &Arguments::NONE).await?;
        let mut reader = Reader { systemd: sender(&subscribed) };
        let (sender, _) = broadcast::channel(BUFFERED);
        let weak = sender.downgrade();
        let task = tokio::spawn(async move {
            // An error: the bus went away. Listeners see the end and look for themselves.
            while let Some(Ok(message)) = messages.next().await {
                for signal in reader.read(&message).into_iter().flatten() {
                    // Nobody listening is no error: the hub is about to be dropped.
                    drop(sender.send(signal));
                }
            }
        });
        Ok(Arc::new(Self { sender: weak, task: task.abort_handle() }))
    }

    /// Listens from now on; `None` once the bus went away.
    pub(super) fn listen(self: &Arc<Self>) -> Option<Events> {
        let receiver = self.sender.upgrade()?.subscribe();
        Some(Events { receiver, _hub: Arc::clone(self) })
    }
}

/// Names of these units as something about them changes: the bus lets no signal of another unit through to this connection. Ends
/// when the bus goes away.
pub(super) async fn follow(connection: Connection, units: &[String]) -> zbus::Result<BoxStream<'static, String>> {
    let mut messages = SelectAll::new();
    for unit in units {
        let rule = MatchRule::builder().msg_type(Type::Signal).sender(SYSTEMD)?.path(object_path(unit))?;
        let rule = rule.interface("org.freedesktop.DBus.Properties")?.build();
        messages.push(MessageStream::for_match_rule(rule, &connection, Some(OF_ONE_UNIT)).await?);
    }
    connection.call_method(Some(SYSTEMD), SYSTEMD_PATH, Some(MANAGER), "Subscribe", &Arguments::NONE).await?;
    let unit = |message: Message| message.header().path().and_then(|path| unit_of(path));
    let names =
        messages.take_while(|message| ready(message.is_ok())).filter_map(move |message| ready(message.ok().and_then(unit)));
    Ok(names.boxed())
}

/// Tells what messages say.
struct Reader {
    /// Who holds systemd's name. A job's result counts from nobody else: anyone on the bus can send us a signal.
    systemd: Option<String>,
}

impl Reader {
    /// What a message says of a job and of a unit.
    fn read(&mut self, message: &Message) -> [Option<Signal>; 2] {
        let header = message.header();
        let (Some(path), Some(member)) = (header.path(), header.member()) else { return [None, None] };
        if member == "NameOwnerChanged" {
            let body = message.body();
            if let (Some(BUS), Ok((_, _, owner))) = (sender(message).as_deref(), body.deserialize::<(&str, &str, &str)>()) {
                self.systemd = Some(owner.to_owned());
            }
            return [None, None];
        }
        if path != SYSTEMD_PATH {
            return [None, unit_of(path).map(Signal::Unit)];
        }
        if let Some(removed) = JobRemoved::from_message(message.clone()) {
            let Ok(args) = removed.args() else { return [None, None] };
            let counts = self.systemd.is_some() && self.systemd == sender(message);
            let job = Signal::JobRemoved { job: args.job().to_string(), result: (*args.result()).to_owned() };
            return [counts.then_some(job), Some(Signal::Unit((*args.unit()).to_owned()))];
        }
        let body = message.body();
        let unit = match member.as_str() {
            "UnitNew" | "UnitRemoved" => body.deserialize::<(&str, ObjectPath<'_>)>().ok().map(|(unit, _)| unit.to_owned()),
            _ => None,
        };
        [None, unit.map(Signal::Unit)]
    }
}

/// Who sent a message: the bus writes it, so that it is true.
fn sender(message: &Message) -> Option<String> {
    message.header().sender().map(ToString::to_string)
}

/// What one listener hears.
pub(super) struct Events {
    receiver: broadcast::Receiver<Signal>,
    _hub: Arc<Hub>,
}

/// What came next.
pub(super) enum EventOutcome {
    /// A signal.
    Signal(Signal),
    /// Some were lost: anything may have changed.
    Gap,
    /// The bus went away.
    End,
}

impl Events {
    /// The next signal. Safe to drop while it waits.
    pub(super) async fn next(&mut self) -> EventOutcome {
        match self.receiver.recv().await {
            Ok(signal) => EventOutcome::Signal(signal),
            Err(RecvError::Lagged(_)) => EventOutcome::Gap,
            Err(RecvError::Closed) => EventOutcome::End,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;
    use zbus::zvariant::{DynamicType, ObjectPath};

    use super::*;

    fn signal(from: &str, path: &str, interface: &str, member: &str, body: &(impl Serialize + DynamicType)) -> Message {
        Message::signal(path, interface, member).unwrap().sender(from).unwrap().build(body).unwrap()
    }

    fn removed(from: &str) -> Message {
        let job = ObjectPath::try_from("/org/freedesktop/systemd1/job/7").unwrap();
        signal(from, SYSTEMD_PATH, MANAGER, "JobRemoved", &(7_u32, job, "etcd.service", "failed"))
    }

    fn owner(from: &str, name: &str) -> Message {
        signal(from, "/org/freedesktop/DBus", BUS, "NameOwnerChanged", &(SYSTEMD, ":1.0", name))
    }

    #[test]
    fn a_jobs_result_counts_from_who_holds_systemds_name_alone() {
        let mut reader = Reader { systemd: Some(":1.0".to_owned()) };
        let unit = Some(Signal::Unit("etcd.service".to_owned()));
        let job = Some(Signal::JobRemoved { job: "/org/freedesktop/systemd1/job/7".to_owned(), result: "failed".to_owned() });
        assert_eq!(reader.read(&removed(":1.0")), [job.clone(), unit.clone()]);
        assert_eq!(reader.read(&removed(":1.9")), [None, unit.clone()]);
        // Anybody may say that the name has another owner; the bus alone is believed.
        assert_eq!(reader.read(&owner(":1.9", ":1.9")), [None, None]);
        assert_eq!(reader.read(&removed(":1.9")), [None, unit.clone()]);
        assert_eq!(reader.read(&owner(BUS, ":1.9")), [None, None]);
        assert_eq!(reader.read(&removed(":1.9")), [job, unit.clone()]);
        assert_eq!(reader.read(&removed(":1.0")), [None, unit.clone()]);
        assert_eq!(Reader { systemd: None }.read(&removed(":1.9")), [None, unit]);
    }

    #[test]
    fn a_signal_is_about_the_unit_that_it_names_or_comes_from() {
        let mut reader = Reader { systemd: None };
        let path = ObjectPath::try_from("/org/freedesktop/systemd1/unit/etcd_2eservice").unwrap();
        let unit = Some(Signal::Unit("etcd.service".to_owned()));
        let new = signal(":1.0", SYSTEMD_PATH, MANAGER, "UnitNew", &("etcd.service", &path));
        let changed = signal(":1.0", path.as_str(), "org.freedesktop.DBus.Properties", "PropertiesChanged", &("x",));
        assert_eq!(reader.read(&new), [None, unit.clone()]);
        assert_eq!(reader.read(&changed), [None, unit]);
        assert_eq!(reader.read(&signal(":1.0", SYSTEMD_PATH, MANAGER, "Reloading", &(true,))), [None, None]);
    }
}
