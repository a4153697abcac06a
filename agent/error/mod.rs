//! What can go wrong, in a form that a caller can decide on and an operator can act on.
//!
//! An [`Error`] says what was being done (and to what), why it failed, by whose rule, and what to
//! do about it; its [`ErrorKind`] tells a caller whether trying again makes sense. Layers add context
//! with [`Error::context`]; `main` prints the chain, one line each.
//!
//! In: an error of the kernel, the network, a parser, or words. Out: an [`Error`]. Never: a decision about what follows.

pub mod remedy;
mod system;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use remedy::Remedy;

/// Whether trying the same thing again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The other side or the machine may recover: try again later.
    Transient,
    /// The same try gives the same answer until somebody changes something.
    Permanent,
    /// We could go on, but a safety rule forbids it.
    Refused,
}

/// What stood in the way, where that is one of a few kinds on which somebody decides: whoever knows where an address comes from can name
/// the place to correct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectFailure {
    /// This name cannot be resolved.
    Name(String),
    /// Nobody listens there.
    Refused {
        /// Host and port.
        peer: String,
        /// A command that tries the connection from this node, where there is one.
        trial: Option<String>,
    },
    /// The certificate of this host and port is not of a CA that this node trusts.
    UnknownCa(String),
    /// It accepted the request and answered nothing in time.
    Silence,
    /// The time of a certificate is over, by this node's clock.
    Expired,
    /// This node's clock, or the one of whoever signed a certificate, is wrong.
    Clock,
}

/// Between several causes of one failure, where they stand in one line.
pub const BETWEEN: &str = " | ";

/// Shorthand used throughout the agent.
pub type Result<T> = std::result::Result<T, Error>;

/// One failure: what was done, the cause, the rule behind it and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    /// Outermost first.
    doing: Vec<String>,
    cause: String,
    /// What is wrong beside the cause, each by itself.
    others: Vec<String>,
    rule: Option<String>,
    remedy: Option<Remedy>,
    retry_after: Option<Duration>,
    answered: Option<u16>,
    unsent: bool,
    bus: bool,
    errno: Option<Errno>,
    connect_failure: Option<ConnectFailure>,
}

impl Error {
    /// A failure that may pass by itself.
    #[must_use]
    pub fn transient(cause: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Transient, cause)
    }

    /// A failure that stays until somebody changes something.
    #[must_use]
    pub fn permanent(cause: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Permanent, cause)
    }

    /// Something that we refuse to do.
    #[must_use]
    pub fn refused(cause: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Refused, cause)
    }

    /// A failure of the given kind.
    #[must_use]
    pub fn new(kind: ErrorKind, cause: impl fmt::Display) -> Self {
        Self(Box::new(Inner {
            kind,
            doing: Vec::new(),
            cause: cause.to_string(),
            others: Vec::new(),
            rule: None,
            remedy: None,
            retry_after: None,
            answered: None,
            unsent: false,
            bus: false,
            errno: None,
            connect_failure: None,
        }))
    }

    /// Names the path that was at stake: where the kernel's refusal alone would not help, the remedy says where to look.
    #[must_use]
    pub fn at(mut self, path: &Path) -> Self {
        if self.0.remedy.is_none() {
            self.0.remedy = self.0.errno.and_then(|errno| system::remedy(errno, path)).map(Remedy::from);
        }
        if self.0.errno == Some(Errno::ENOSPC) {
            self.0.cause = system::no_space(path);
        }
        self
    }

    /// Names the directory whose absence is behind it, with how it comes to be.
    #[must_use]
    pub fn with_missing_directory(self, directory: &Path) -> Self {
        self.remedy(system::missing(directory))
    }

    /// Adds what was being done, to what: `"writing /etc/etcd/etcd.conf"`.
    #[must_use]
    pub fn context(mut self, doing: impl fmt::Display) -> Self {
        self.0.doing.insert(0, doing.to_string());
        self
    }

    /// Names the rule (specification, Heat file, design section) that was broken.
    #[must_use]
    pub fn rule(mut self, rule: impl fmt::Display) -> Self {
        self.0.rule = Some(rule.to_string());
        self
    }

    /// Says what the operator can do.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<Remedy>) -> Self {
        self.0.remedy = Some(remedy.into());
        self
    }

    /// Adds something else that is wrong, which the same remedy is for.
    #[must_use]
    pub fn and(mut self, cause: impl Into<String>) -> Self {
        self.0.others.push(cause.into());
        self
    }

    /// Keeps the pause that the server asked for, if it did (Retry-After).
    #[must_use]
    pub fn retry_after(mut self, pause: Option<Duration>) -> Self {
        self.0.retry_after = pause;
        self
    }

    /// Keeps the HTTP status with which a server refused.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.0.answered = Some(status);
        self
    }

    /// Notes that nothing of the request reached the server that it was meant for: there was no connection, or no token for it.
    #[must_use]
    pub fn unsent(mut self) -> Self {
        self.0.unsent = true;
        self
    }

    /// Notes that the system bus, or systemd on it, did not answer.
    #[must_use]
    pub fn as_bus_error(mut self) -> Self {
        self.0.bus = true;
        self
    }

    /// Notes what stood in the way.
    #[must_use]
    pub fn with_connect_failure(mut self, connect_failure: ConnectFailure) -> Self {
        self.0.connect_failure = Some(connect_failure);
        self
    }

    /// What stood in the way, where that is one of a few kinds.
    #[must_use]
    pub fn connect_failure(&self) -> Option<&ConnectFailure> {
        self.0.connect_failure.as_ref()
    }

    /// Whether trying again can help.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Why it failed, without the context.
    #[must_use]
    pub fn cause(&self) -> &str {
        &self.0.cause
    }

    /// The broken rule, where one was named.
    #[must_use]
    pub fn broken_rule(&self) -> Option<&str> {
        self.0.rule.as_deref()
    }

    /// What the operator can do, where it is known.
    #[must_use]
    pub fn suggested_remedy(&self) -> Option<&str> {
        self.0.remedy.as_deref()
    }

    /// The same with what follows once it was carried out.
    #[must_use]
    pub fn typed_remedy(&self) -> Option<&Remedy> {
        self.0.remedy.as_ref()
    }

    /// Everything that is wrong, each by itself: the displayed chain, then what was added to it.
    #[must_use]
    pub fn causes(&self) -> Vec<String> {
        let first = self.0.doing.iter().map(|doing| format!("{doing}: ")).collect::<String>() + &self.0.cause;
        std::iter::once(first).chain(self.0.others.iter().cloned()).collect()
    }

    /// How long the server asked us to wait before the next try.
    #[must_use]
    pub fn asked_pause(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// The HTTP status with which a server refused; none where the failure is another.
    #[must_use]
    pub fn answered(&self) -> Option<u16> {
        self.0.answered
    }

    /// Whether nothing of the request reached the server that it was meant for.
    #[must_use]
    pub fn is_unsent(&self) -> bool {
        self.0.unsent
    }

    /// Whether the system bus, or systemd on it, did not answer.
    #[must_use]
    pub fn is_bus_error(&self) -> bool {
        self.0.bus
    }

    /// Whether the kernel refused a call because no space is left, on the disk or in a quota.
    #[must_use]
    pub fn is_out_of_space(&self) -> bool {
        matches!(self.0.errno, Some(Errno::ENOSPC | Errno::EDQUOT))
    }

    /// With what the kernel refused a call, where it did.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        self.0.errno
    }

    /// Whether the kernel refused a call, which for the agent's own state means the disk or its permissions.
    #[must_use]
    pub fn is_kernel_error(&self) -> bool {
        self.0.errno.is_some()
    }

    /// The same as the displayed chain with the fact first, for people: what was being done follows in brackets, so that a text that is cut
    /// off keeps what matters.
    #[must_use]
    pub fn cause_first(&self) -> String {
        let Some(first) = self.0.doing.first() else { return self.to_string() };
        let is_deed = first.split(' ').next().is_some_and(|word| word.ends_with("ing"));
        format!("{} ({}{})", self.0.cause.trim_end_matches('.'), if is_deed { "while " } else { "" }, self.0.doing.join(": "))
    }

    /// The chain for a terminal: outermost context first, then cause, rule and remedy.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines = self.0.doing.clone();
        lines.push(self.0.cause.clone());
        lines.extend(self.0.others.iter().cloned());
        lines.extend(self.0.rule.iter().map(|rule| format!("rule: {rule}")));
        lines.extend(self.0.remedy.iter().map(|remedy| format!("remedy: {remedy}")));
        lines
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for doing in &self.0.doing {
            write!(f, "{doing}: ")?;
        }
        f.write_str(&self.0.cause)?;
        self.0.others.iter().try_for_each(|cause| write!(f, "{BETWEEN}{cause}"))
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        let errno = error.raw_os_error().map(Errno::from_raw);
        // The number behind it is for programmers.
        let words = error.to_string();
        let mut error = Self::transient(words.split(" (os error ").next().unwrap_or(&words));
        error.0.errno = errno;
        error
    }
}

impl From<nix::Error> for Error {
    fn from(errno: nix::Error) -> Self {
        let mut error = Self::transient(errno);
        error.0.errno = Some(errno);
        error
    }
}

/// Adds context to any result whose error can become an [`Error`].
pub trait Context<T> {
    /// Says what was being done when it failed; evaluated only on failure.
    fn context<D: fmt::Display>(self, doing: impl FnOnce() -> D) -> Result<T>;
}

impl<T, E: Into<Error>> Context<T> for std::result::Result<T, E> {
    fn context<D: fmt::Display>(self, doing: impl FnOnce() -> D) -> Result<T> {
        self.map_err(|error| error.into().context(doing()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_reads_from_the_outside_in() {
        let error = Error::permanent("no such unit")
            .context("starting etcd.service")
            .context("bringing the node up")
            .rule("every unit must exist")
            .remedy("install etcd");
        assert_eq!(error.to_string(), "bringing the node up: starting etcd.service: no such unit");
        assert_eq!(error.cause_first(), "no such unit (while bringing the node up: starting etcd.service)");
        assert_eq!(Error::permanent("gone").context("GET http://h/").cause_first(), "gone (GET http://h/)");
        assert_eq!(Error::permanent("gone.").cause_first(), "gone.");
        assert_eq!(
            error.lines(),
            [
                "bringing the node up",
                "starting etcd.service",
                "no such unit",
                "rule: every unit must exist",
                "remedy: install etcd"
            ]
        );
    }
}
