//! systemd's signals. One task reads them from a connection of its own and hands copies to whoever listens, so
//! that a listener that is busy can neither stall the bus connection nor lose the rest.
//!
//! The connection lives as long as somebody listens: an idle agent is not woken by every unit of the machine.
//! systemd forgets the subscription when the connection closes.

use std::sync::Arc;

use futures_util::StreamExt as _;
use systemd_zbus::ManagerProxy;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use zbus::message::Type;
use zbus::proxy::CacheProperties;
use zbus::{Connection, MatchRule, MessageStream};

use super::bus::{SYSTEMD, SYSTEMD_PATH};
use super::names::{UNIT_PATHS, unit_of};

/// More than systemd sends in one turn of its loop on a busy node; who lags behind looks for himself.
const BUFFERED: usize = 1024;

/// Something that systemd said.
#[derive(Clone, Debug)]
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
        let manager = ManagerProxy::builder(&connection).cache_properties(CacheProperties::No).build().await?;
        // Unlike the plain streams below this one checks that the sender is who holds systemd's name: a job's result counts.
        let jobs = manager.receive_job_removed().await?;
        let of_manager = MatchRule::builder()
            .msg_type(Type::Signal)
            .sender(SYSTEMD)?
            .path(SYSTEMD_PATH)?
            .interface("org.freedesktop.systemd1.Manager")?
            .build();
        let of_units = MatchRule::builder()
            .msg_type(Type::Signal)
            .sender(SYSTEMD)?
            .path_namespace(UNIT_PATHS)?
            .interface("org.freedesktop.DBus.Properties")?
            .build();
        let units = MessageStream::for_match_rule(of_manager, &connection, Some(BUFFERED)).await?;
        let properties = MessageStream::for_match_rule(of_units, &connection, Some(BUFFERED)).await?;
        manager.subscribe().await?;
        let (sender, _) = broadcast::channel(BUFFERED);
        let weak = sender.downgrade();
        let task = tokio::spawn(async move {
            let mut jobs = jobs.fuse();
            let mut changes = futures_util::stream::select(units, properties);
            loop {
                // Nobody listening is no error: the hub is about to be dropped.
                tokio::select! {
                    Some(job) = jobs.next() => if let Ok(args) = job.args() {
                        drop(sender.send(Signal::JobRemoved { job: args.job().to_string(), result: (*args.result()).to_owned() }));
                    },
                    message = changes.next() => match message {
                        Some(Ok(message)) => if let Some(unit) = unit_named_by(&message) {
                            drop(sender.send(Signal::Unit(unit)));
                        },
                        // The bus went away: listeners see the end and look for themselves.
                        Some(Err(_)) | None => return,
                    },
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

/// Which unit a signal of the manager or of a unit's object is about.
fn unit_named_by(message: &zbus::Message) -> Option<String> {
    let header = message.header();
    let path = header.path()?.as_str();
    if path != SYSTEMD_PATH {
        return unit_of(path);
    }
    let body = message.body();
    match header.member()?.as_str() {
        "UnitNew" | "UnitRemoved" => body.deserialize::<(String, zbus::zvariant::ObjectPath<'_>)>().ok().map(|(unit, _)| unit),
        "JobRemoved" => {
            body.deserialize::<(u32, zbus::zvariant::ObjectPath<'_>, String, String)>().ok().map(|(_, _, unit, _)| unit)
        }
        _ => None,
    }
}

/// What one listener hears.
pub(super) struct Events {
    receiver: broadcast::Receiver<Signal>,
    _hub: Arc<Hub>,
}

/// What came next.
pub(super) enum Heard {
    /// A signal.
    Signal(Signal),
    /// Some were lost: anything may have changed.
    Gap,
    /// The bus went away.
    End,
}

impl Events {
    /// The next signal. Safe to drop while it waits.
    pub(super) async fn next(&mut self) -> Heard {
        match self.receiver.recv().await {
            Ok(signal) => Heard::Signal(signal),
            Err(RecvError::Lagged(_)) => Heard::Gap,
            Err(RecvError::Closed) => Heard::End,
        }
    }
}
