//! Failures of a request in an operator's words.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use rustls::{AlertDescription, CertificateError};

use crate::error::{ConnectFailure, Error, ErrorKind};

/// Whom we talked to, for messages.
#[derive(Clone, Debug, Default)]
pub(super) struct Peer {
    /// Host and port, or the path of a socket.
    pub(super) name: String,
    /// The host alone.
    pub(super) host: String,
    /// Whether a proxy of the environment may stand between.
    pub(super) proxied: bool,
    /// Scheme, host and port; nothing of a local socket.
    pub(super) origin: Option<String>,
    /// Where the CA stands that alone is believed.
    pub(super) ca: Option<String>,
    /// Path of the certificate that this node shows.
    pub(super) shown_certificate: Option<String>,
}

impl Peer {
    fn shown(&self) -> String {
        if self.proxied { format!("{} (through the proxy set in the environment)", self.name) } else { self.name.clone() }
    }
}

impl Peer {
    /// What to do, and a command that tries the connection from here; it ends by itself.
    fn trial(&self, check: &str) -> String {
        if self.proxied {
            return format!("{check}, from the proxy on");
        }
        self.command().map_or_else(|| check.to_owned(), |command| format!("{check}; {command}"))
    }

    fn command(&self) -> Option<String> {
        let origin = self.origin.as_ref().filter(|_| !self.proxied)?;
        Some(format!("`curl -sS -m 5 -o /dev/null {origin} && echo it answers` checks it from this node"))
    }
}

/// The deadline of the whole request is over.
pub(super) fn no_answer(peer: &Peer, limit: Duration) -> Error {
    // What is left of a deadline has many digits.
    let tenths = (limit.as_secs_f32() * 10.0).round() / 10.0;
    Error::transient(format!("no answer from {} within {tenths} s", peer.shown()))
        .remedy(peer.trial("check route, security groups and load"))
        .with_connect_failure(ConnectFailure::Silence)
}

/// What the client library says, without URL.
pub(super) fn describe(error: reqwest::Error, peer: &Peer, connect_limit: Duration) -> Error {
    let error = error.without_url();
    let shown = peer.shown();
    if let Some(tls) = find(&error) {
        return describe_tls(tls, peer);
    }
    if error.is_dns() {
        return Error::transient(format!("name {} cannot be resolved", peer.host))
            .remedy(format!(
                "`getent hosts {}` checks it. Correct the name, or this node's name servers in /etc/resolv.conf",
                peer.host
            ))
            .with_connect_failure(ConnectFailure::Name(peer.host.clone()));
    }
    if error.is_timeout() {
        return Error::transient(format!("no connection to {shown} within {} s", connect_limit.as_secs()))
            .remedy(peer.trial("check route, security groups and floating IP"));
    }
    let protocol = find::<hyper::Error>(&error);
    // hyper asks for this by a method in its server alone.
    if protocol.is_some_and(|error| error.is_parse() && error.to_string().contains("head is too large")) {
        // hyper's bounds, the first of which it looks at between two reads: its buffer may have twice as much. reqwest has no setting for it.
        return Error::transient(format!("the head of the answer of {shown} has more than 408 KiB or more than 100 lines"))
            .rule("what comes from outside is bounded in size")
            .remedy("check that the endpoint's host and port are those of the service");
    }
    if protocol.is_some_and(hyper::Error::is_parse) {
        return not_http(&error, &shown);
    }
    if protocol.is_some_and(hyper::Error::is_incomplete_message) {
        return cut_off(&shown);
    }
    match find_io(&error) {
        Some(io::ErrorKind::ConnectionRefused) => Error::transient(format!("connection refused by {shown}"))
            .remedy(peer.trial("start the service, or correct host and port of the endpoint"))
            .with_connect_failure(ConnectFailure::Refused { peer: shown, trial: peer.command() }),
        Some(io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable) => {
            Error::transient(format!("no route to {shown}")).remedy(peer.trial("check the routes: `ip route`"))
        }
        Some(io::ErrorKind::NotFound) => {
            Error::transient(format!("{shown} does not exist")).remedy("check that its service is running")
        }
        Some(io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof) => cut_off(&shown),
        // So the client library describes chunks that are none.
        Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => not_http(&error, &shown),
        _ if error.is_builder() => Error::permanent(format!("the request cannot be built: {}", innermost(&error))),
        _ => Error::transient(format!("talking to {shown} failed: {}", innermost(&error))),
    }
}

fn cut_off(shown: &str) -> Error {
    Error::transient(format!("{shown} closed the connection before its answer was complete"))
}

fn not_http(error: &reqwest::Error, shown: &str) -> Error {
    Error::transient(format!("{shown} does not speak HTTP: {}", innermost(error)))
        .remedy("check that the endpoint's host and port are those of the service")
}

fn describe_tls(error: &rustls::Error, peer: &Peer) -> Error {
    let shown = &peer.shown();
    let why = match error {
        rustls::Error::InvalidCertificate(why) => why,
        rustls::Error::AlertReceived(alert) if is_about_us(*alert, peer) => return describe_refusal(*alert, peer),
        _ => {
            return Error::permanent(format!("TLS with {shown} failed: {error}"))
                .remedy("check that the endpoint speaks https on this port, with TLS 1.2 or later");
        }
    };
    if let (Some(ca), CertificateError::UnknownIssuer | CertificateError::BadSignature) = (&peer.ca, why) {
        return Error::permanent(format!("the certificate of {shown} is not signed by the CA in {ca}"))
            .rule(format!("TLS certificates are verified: {error}"))
            .remedy(
                "compare both with `heat-node-agent certificates`: after a CA change, the services that read it are restarted",
            );
    }
    let (cause, remedy) = match why {
        CertificateError::UnknownIssuer => (
            "is signed by a CA that this node does not trust",
            "set [tls] ca_file in /etc/heat-node-agent/agent.toml to a file with that CA, and `systemctl restart heat-node-agent`",
        ),
        CertificateError::BadSignature => (
            "is signed by a different CA with the same name as the one that this node trusts",
            "set [tls] ca_file in /etc/heat-node-agent/agent.toml to a file with the present CA, and `systemctl restart heat-node-agent`",
        ),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            ("has expired", "renew the endpoint's certificate; check the clock of this node")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => (
            "is not valid yet",
            "compare the clocks: `date -u` shows this node's; `timedatectl` says whether it is set from the network",
        ),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            ("is for another name", "use the certificate's name in the endpoint, or renew the certificate with this name")
        }
        _ => ("cannot be used", "renew the endpoint's certificate, or provide its CA ([tls] ca_file in agent.toml)"),
    };
    // At a first boot the clock may be behind until it is set from the network: that passes.
    let passes = matches!(why, CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. });
    let kind = if passes { ErrorKind::Transient } else { ErrorKind::Permanent };
    let error = Error::new(kind, format!("the certificate of {shown} {cause}"))
        .rule(format!("TLS certificates are verified: {error}"))
        .remedy(remedy);
    match why {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            error.with_connect_failure(ConnectFailure::UnknownCa(peer.name.clone()))
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            error.with_connect_failure(ConnectFailure::Expired)
        }
        _ => error,
    }
}

/// Whether an alert of the server is about what this node showed, or did not show (RFC 8446 6.2, RFC 5246 7.2.2). A signature that
/// does not verify, as under another CA of the same name, is reported as a decrypt error.
fn is_about_us(alert: AlertDescription, peer: &Peer) -> bool {
    use AlertDescription as Alert;
    matches!(
        alert,
        Alert::CertificateRequired
            | Alert::NoCertificate
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
    ) || (alert == Alert::DecryptError && peer.shown_certificate.is_some())
}

fn describe_refusal(alert: AlertDescription, peer: &Peer) -> Error {
    let shown = peer.shown();
    match &peer.shown_certificate {
        Some(certificate) => {
            Error::permanent(format!("{shown} does not accept this node's certificate {certificate}: {alert:?}")).remedy(
                "it must be signed by a CA that the server trusts, be within its validity period and be valid for a \
                 client: check `heat-node-agent certificates`, and the server's list of CAs",
            )
        }
        None => Error::permanent(format!("{shown} requires a client certificate: {alert:?}"))
            .remedy("connect with a certificate, or let the server serve this URL without one"),
    }
}

/// The chain of causes, looking into I/O errors too: they do not name what they wrap as their source.
fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| {
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        wrapped.map(|wrapped| wrapped as &(dyn StdError + 'static)).or_else(|| error.source())
    })
}

pub(super) fn find<T: StdError + 'static>(error: &reqwest::Error) -> Option<&T> {
    chain(error).find_map(|error| error.downcast_ref())
}

fn find_io(error: &reqwest::Error) -> Option<io::ErrorKind> {
    chain(error).filter_map(|error| error.downcast_ref::<io::Error>()).map(io::Error::kind).last()
}

/// The last cause: the layers above it say only "error sending request".
pub(super) fn innermost(error: &reqwest::Error) -> String {
    chain(error).last().map(ToString::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node whose clock was behind at its first boot failed at once, with the clock set seconds later.
    #[test]
    fn a_certificate_that_is_not_valid_yet_is_waited_for_and_one_that_has_expired_is_not() {
        let peer = Peer { name: "h:5000".into(), host: "h".into(), ..Peer::default() };
        let kind = |why| describe_tls(&rustls::Error::InvalidCertificate(why), &peer).kind();
        assert_eq!(kind(CertificateError::NotValidYet), ErrorKind::Transient);
        assert_eq!([CertificateError::Expired, CertificateError::UnknownIssuer].map(kind), [ErrorKind::Permanent; 2]);
    }
}
