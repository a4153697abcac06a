//! Connections to the bus, and what its errors mean.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::Mutex;
use zbus::Connection;
use zbus::connection::Builder;

use crate::clock::Clock;
use crate::error::{Error, Kind};

/// systemd's name on the bus.
pub(super) const SYSTEMD: &str = "org.freedesktop.systemd1";
/// The manager's object.
pub(super) const SYSTEMD_PATH: &str = "/org/freedesktop/systemd1";
/// The manager's interface.
pub(super) const MANAGER: &str = "org.freedesktop.systemd1.Manager";

/// As long as sd-bus itself waits for an answer.
pub(super) const ANSWER: Duration = Duration::from_secs(25);
/// A reload runs every generator before it answers; `systemctl` grants it as much.
pub(super) const RELOAD_ANSWER: Duration = Duration::from_mins(3);

/// Why a call gave nothing.
#[derive(Debug)]
pub(super) enum Fault {
    /// The bus or systemd said so.
    Bus(zbus::Error),
    /// No answer in time.
    Late(Duration),
}

impl From<zbus::Error> for Fault {
    fn from(error: zbus::Error) -> Self {
        Self::Bus(error)
    }
}

impl Fault {
    /// The D-Bus name of the error that the other side answered with.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Bus(zbus::Error::MethodError(name, _, _)) => Some(name.as_str()),
            _ => None,
        }
    }

    /// Whether the connection itself is at fault.
    fn is_of_the_connection(&self) -> bool {
        matches!(
            self,
            Self::Late(_)
                | Self::Bus(
                    zbus::Error::InputOutput(_)
                        | zbus::Error::Connection(..)
                        | zbus::Error::Handshake(_)
                        | zbus::Error::Failure(_)
                )
        )
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Late(after) => Self::transient(format!("systemd did not answer within {} s", after.as_secs())),
            Fault::Bus(zbus::Error::MethodError(name, text, _)) => {
                let text = text.unwrap_or_default();
                Self::new(kind_of(&name), if text.is_empty() { name.to_string() } else { text })
            }
            Fault::Bus(error) => match error {
                zbus::Error::InputOutput(_)
                | zbus::Error::Connection(..)
                | zbus::Error::Handshake(_)
                | zbus::Error::Failure(_) => Self::transient(format!("the system bus cannot be reached: {error}")),
                // The bus answers in zbus's own words where systemd's name has no owner for a moment.
                zbus::Error::FDO(error) => Self::transient(error),
                error => Self::permanent(error),
            },
        }
    }
}

/// Whether an error that was answered can pass by itself. What is not known does not.
fn kind_of(name: &str) -> Kind {
    match name {
        // systemd is away for a moment: daemon-reexec, dbus restart, start of the machine, too many reloads.
        "org.freedesktop.DBus.Error.ServiceUnknown"
        | "org.freedesktop.DBus.Error.NameHasNoOwner"
        | "org.freedesktop.DBus.Error.NoReply"
        | "org.freedesktop.DBus.Error.Disconnected"
        | "org.freedesktop.DBus.Error.Timeout"
        | "org.freedesktop.DBus.Error.TimedOut"
        | "org.freedesktop.DBus.Error.LimitsExceeded"
        | "org.freedesktop.DBus.Error.NoMemory"
        | "org.freedesktop.DBus.Error.NoServer"
        | "org.freedesktop.DBus.Error.Spawn.ExecFailed"
        | "org.freedesktop.DBus.Error.Spawn.ChildExited"
        | "org.freedesktop.systemd1.ShuttingDown"
        | "org.freedesktop.systemd1.TransactionIsDestructive"
        | "System.Error.ENOTCONN"
        | "System.Error.ECONNRESET"
        | "System.Error.EAGAIN"
        | "System.Error.EBUSY" => Kind::Transient,
        _ => Kind::Permanent,
    }
}

/// Where the bus is, and the connection for calls: made at the first call, and again after it broke.
#[derive(Debug)]
pub(super) struct Link {
    /// `None`: the system bus.
    address: Option<String>,
    calls: Mutex<Option<Connection>>,
    clock: Clock,
}

impl Link {
    pub(super) fn new(address: Option<&str>) -> Self {
        Self { address: address.map(str::to_owned), calls: Mutex::new(None), clock: Clock::system() }
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// A connection of its own.
    pub(super) async fn open(&self) -> Result<Connection, Fault> {
        let builder = match &self.address {
            Some(address) => Builder::address(address.as_str())?,
            None => Builder::system()?,
        };
        match self.clock.limit(ANSWER, builder.build()).await {
            Some(connection) => Ok(connection?),
            None => Err(Fault::Late(ANSWER)),
        }
    }

    /// Runs one call. A connection that broke since the last call (dbus was restarted days ago) is made anew once.
    pub(super) async fn call<T, F: Future<Output = zbus::Result<T>> + Send>(
        &self,
        limit: Duration,
        call: impl Fn(Connection) -> F + Sync,
    ) -> Result<T, Fault> {
        // Boxed: what follows is compiled once for each kind of answer, not for each call.
        self.call_boxed(limit, &|connection| call(connection).boxed()).await
    }

    async fn call_boxed<'a, T>(
        &self,
        limit: Duration,
        call: &(dyn Fn(Connection) -> BoxFuture<'a, zbus::Result<T>> + Sync),
    ) -> Result<T, Fault> {
        let (connection, used_before) = self.current().await?;
        match self.one_call(call(connection.clone()), limit).await {
            Err(fault) if fault.is_of_the_connection() => {
                self.forget(&connection).await;
                if !used_before || matches!(fault, Fault::Late(_)) {
                    return Err(fault);
                }
                let (connection, _) = self.current().await?;
                let answer = self.one_call(call(connection.clone()), limit).await;
                if answer.as_ref().is_err_and(Fault::is_of_the_connection) {
                    self.forget(&connection).await;
                }
                answer
            }
            answer => answer,
        }
    }

    async fn one_call<T>(&self, call: BoxFuture<'_, zbus::Result<T>>, limit: Duration) -> Result<T, Fault> {
        match self.clock.limit(limit, call).await {
            Some(answer) => Ok(answer?),
            None => Err(Fault::Late(limit)),
        }
    }

    async fn current(&self) -> Result<(Connection, bool), Fault> {
        let mut calls = self.calls.lock().await;
        if let Some(connection) = &*calls {
            return Ok((connection.clone(), true));
        }
        let connection = self.open().await?;
        *calls = Some(connection.clone());
        Ok((connection, false))
    }

    /// Gives up a broken connection, unless another call already did and made a new one.
    async fn forget(&self, broken: &Connection) {
        let mut calls = self.calls.lock().await;
        if calls.as_ref().is_some_and(|connection| connection.unique_name() == broken.unique_name()) {
            *calls = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_by_itself_is_told_from_what_stays() {
        for (name, kind) in [
            ("org.freedesktop.DBus.Error.NoReply", Kind::Transient),
            ("org.freedesktop.DBus.Error.NameHasNoOwner", Kind::Transient),
            ("org.freedesktop.systemd1.NoSuchUnit", Kind::Permanent),
            ("org.freedesktop.systemd1.UnitMasked", Kind::Permanent),
            ("org.freedesktop.DBus.Error.AccessDenied", Kind::Permanent),
        ] {
            assert_eq!(kind_of(name), kind, "{name}");
        }
    }

    #[tokio::test]
    async fn a_bus_that_is_not_there_is_a_transient_error() {
        let link = Link::new(Some("unix:path=/nonexistent/bus"));
        let fault = link.call(ANSWER, |connection| async move { Ok(connection.unique_name().is_some()) }).await.unwrap_err();
        assert_eq!(Error::from(fault).kind(), Kind::Transient);
    }
}
