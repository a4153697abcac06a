//! Connections to the bus, and what its errors mean.

use std::time::Duration;

use serde::{Serialize, Serializer};
use tokio::sync::Mutex;
use zbus::connection::Builder;
use zbus::zvariant::{DynamicType, Signature, Structure};
use zbus::{Connection, Message};

use crate::clock::Clock;
use crate::error::{Error, ErrorKind};

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
            Fault::Late(after) => Self::transient(format!("systemd did not answer within {} s", after.as_secs())).as_bus_error(),
            Fault::Bus(zbus::Error::MethodError(name, text, _)) => {
                let text = text.unwrap_or_default();
                let remedy = remedy_of(&name, &text);
                let error = Self::new(kind_of(&name), if text.is_empty() { name.to_string() } else { text });
                match remedy {
                    Some(remedy) => error.remedy(remedy),
                    None => error,
                }
            }
            Fault::Bus(error) => match error {
                zbus::Error::InputOutput(_)
                | zbus::Error::Connection(..)
                | zbus::Error::Handshake(_)
                | zbus::Error::Failure(_) => Self::transient(format!("the system bus cannot be reached: {error}")).as_bus_error(),
                // The bus answers in zbus's own words where systemd's name has no owner for a moment.
                zbus::Error::FDO(error) => Self::transient(error).as_bus_error(),
                error => Self::permanent(error),
            },
        }
    }
}

/// Whether an error that was answered can pass by itself. What is not known does not.
fn kind_of(name: &str) -> ErrorKind {
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
        | "System.Error.EBUSY" => ErrorKind::Transient,
        _ => ErrorKind::Permanent,
    }
}

/// What to do about a refusal whose own words say only what was refused.
fn remedy_of(name: &str, text: &str) -> Option<&'static str> {
    if name == "org.freedesktop.DBus.Error.AccessDenied" {
        return Some(
            "a policy of this image forbids it, that of the bus (`grep -rl '<deny' /etc/dbus-1 /usr/share/dbus-1`) or of a security module \
             (`journalctl -k -g denied`): let root call systemd",
        );
    }
    // systemd keeps 16 MiB of /run free, or it reloads nothing.
    text.contains("not enough space available on /run").then_some(
        "`df -h /run` shows the file system: remove what does not belong there, or enlarge it: `mount -o remount,size=20% /run`",
    )
}

/// One call of a method of systemd.
#[derive(Debug)]
pub(super) struct Call<'a> {
    /// The object.
    pub(super) path: &'a str,
    pub(super) interface: &'a str,
    pub(super) method: &'a str,
    pub(super) arguments: Arguments,
}

impl<'a> Call<'a> {
    /// A call of the manager.
    pub(super) fn to_manager(method: &'a str, arguments: Arguments) -> Self {
        Self { path: SYSTEMD_PATH, interface: MANAGER, method, arguments }
    }
}

/// What a call is given. One type for all of them: zbus compiles a call, 20 kB, for each type of its arguments.
#[derive(Debug)]
pub(super) struct Arguments(Option<Structure<'static>>);

impl Arguments {
    pub(super) const NONE: Self = Self(None);

    /// A tuple of them.
    pub(super) fn of(arguments: impl Into<Structure<'static>>) -> Self {
        Self(Some(arguments.into()))
    }
}

impl DynamicType for Arguments {
    fn signature(&self) -> Signature {
        self.0.as_ref().map_or(Signature::Unit, DynamicType::signature)
    }
}

impl Serialize for Arguments {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Some(arguments) => arguments.serialize(serializer),
            None => serializer.serialize_unit(),
        }
    }
}

/// Where the bus is, and the connection for calls: made at the first call, and again after it broke.
#[derive(Debug)]
pub(super) struct BusConnection {
    /// `None`: the system bus.
    address: Option<String>,
    calls: Mutex<Option<Connection>>,
    clock: Clock,
}

impl BusConnection {
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

    /// The answer to one call. A connection that broke since the last call (dbus was restarted days ago) is made anew once.
    pub(super) async fn ask(&self, limit: Duration, call: &Call<'_>) -> Result<Message, Fault> {
        let (connection, used_before) = self.current().await?;
        match self.ask_over(&connection, limit, call).await {
            Err(fault) if fault.is_of_the_connection() => {
                self.forget(&connection).await;
                if !used_before || matches!(fault, Fault::Late(_)) {
                    return Err(fault);
                }
                let (connection, _) = self.current().await?;
                let answer = self.ask_over(&connection, limit, call).await;
                if answer.as_ref().is_err_and(Fault::is_of_the_connection) {
                    self.forget(&connection).await;
                }
                answer
            }
            answer => answer,
        }
    }

    async fn ask_over(&self, connection: &Connection, limit: Duration, call: &Call<'_>) -> Result<Message, Fault> {
        let Call { path, interface, method, arguments } = call;
        // Boxed: it is large, and stands twice in the future above.
        let answer = Box::pin(connection.call_method(Some(SYSTEMD), *path, Some(*interface), *method, arguments));
        match self.clock.limit(limit, answer).await {
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
    use zbus::zvariant::Value;

    use super::super::transient::Property;
    use super::*;

    #[test]
    fn what_passes_by_itself_is_distinguished_from_what_stays() {
        for (name, kind) in [
            ("org.freedesktop.DBus.Error.NoReply", ErrorKind::Transient),
            ("org.freedesktop.DBus.Error.NameHasNoOwner", ErrorKind::Transient),
            ("org.freedesktop.systemd1.NoSuchUnit", ErrorKind::Permanent),
            ("org.freedesktop.systemd1.UnitMasked", ErrorKind::Permanent),
            ("org.freedesktop.DBus.Error.AccessDenied", ErrorKind::Permanent),
        ] {
            assert_eq!(kind_of(name), kind, "{name}");
        }
    }

    #[test]
    fn what_a_policy_or_a_full_run_refuses_has_a_remedy() {
        let rejected = "Rejected send message, 5 matched rules; type=\"method_call\"";
        let full = "Refusing to reload, not enough space available on /run/systemd. Currently, 0B are free, but a safety buffer of 16.0M is enforced";
        for (name, text, command) in [
            ("org.freedesktop.DBus.Error.AccessDenied", rejected, Some("grep -rl '<deny' /etc/dbus-1")),
            ("System.Error.ENOSPC", full, Some("df -h /run")),
            ("org.freedesktop.systemd1.NoSuchUnit", "Unit x.service not found.", None),
        ] {
            let remedy = remedy_of(name, text);
            assert_eq!(remedy.is_some(), command.is_some(), "{name}");
            assert!(remedy.zip(command).is_none_or(|(remedy, command)| remedy.contains(command)), "{name}: {remedy:?}");
        }
    }

    fn sent(arguments: &(impl Serialize + DynamicType)) -> (String, Vec<u8>) {
        let message = Message::method_call("/", "Method").unwrap().build(arguments).unwrap();
        (message.body().signature().to_string(), message.body().data().to_vec())
    }

    #[test]
    fn arguments_are_sent_as_the_tuple_that_they_are() {
        assert_eq!(sent(&Arguments::NONE), (String::new(), Vec::new()));
        assert_eq!(sent(&Arguments::of(("x.service".to_owned(),))), sent(&("x.service",)));
        let words = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(sent(&Arguments::of((words.clone(), false, true))), sent(&(words, false, true)));
        let properties = || {
            let exec = Value::from(vec![("/bin/echo".to_owned(), vec!["echo".to_owned(), "$$x".to_owned()], false)]);
            vec![("Description", Value::from("x")), ("ExecStart", exec), ("TimeoutStartUSec", Value::from(3_u64))]
        };
        let auxiliary: Vec<(String, Vec<(&str, Value<'_>)>)> = Vec::new();
        let call = Arguments::of(("x.service".to_owned(), "fail", properties(), Vec::<(String, Vec<Property>)>::new()));
        assert_eq!(sent(&call), sent(&("x.service", "fail", properties(), auxiliary)));
        assert_eq!(sent(&call).0, "(ssa(sv)a(sa(sv)))");
    }

    #[tokio::test]
    async fn a_bus_that_is_not_there_is_a_transient_error() {
        let link = BusConnection::new(Some("unix:path=/nonexistent/bus"));
        let fault = link.ask(ANSWER, &Call::to_manager("Subscribe", Arguments::NONE)).await.unwrap_err();
        assert_eq!(Error::from(fault).kind(), ErrorKind::Transient);
    }
}
