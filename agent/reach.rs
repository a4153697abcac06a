//! Whether packets arrive: connections that nobody needs to accept, because any answer to the first packet is one.
//!
//! In: two addresses, or a host and a port. Out: whether a packet arrived, was turned back, or got no answer. Never: a byte of payload, or what follows from the answer.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt::Ipv4Ttl};
use tokio::net::{TcpSocket, TcpStream};

use crate::clock::Clock;

/// A packet and its answer take milliseconds. Shorter than the kernel's search for a neighbour (3 s), whose end looks like an answer.
const LIMIT: Duration = Duration::from_secs(2);
/// `discard` (RFC 863): whoever hears of it needs no line in a log.
const PORT: u16 = 9;

/// What came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketOutcome {
    /// Whoever has the address answered, by taking or refusing the connection.
    Arrived,
    /// Somebody on the way, or a firewall, said that it goes no further (ICMP).
    TurnedBack,
    /// Nobody said anything.
    Silence,
    /// It could not be asked: the own address is not there, no route, a firewall of this machine.
    NotAsked,
}

impl PacketOutcome {
    /// Whether the packet came as far as another machine.
    #[must_use]
    pub fn is_heard(self) -> bool {
        matches!(self, Self::Arrived | Self::TurnedBack)
    }
}

/// Sends a first packet from one of this machine's addresses. `one_hop`: whoever would have to pass it on turns it back, before
/// any firewall of its own sees it (RFC 1812, 5.3.1).
pub async fn ask(clock: &Clock, from: Ipv4Addr, to: Ipv4Addr, one_hop: bool) -> PacketOutcome {
    let Ok(socket) = TcpSocket::new_v4() else { return PacketOutcome::NotAsked };
    let ready = socket.bind(SocketAddr::from((from, 0))).is_ok() && (!one_hop || setsockopt(&socket, Ipv4Ttl, &1).is_ok());
    if !ready {
        return PacketOutcome::NotAsked;
    }
    match clock.limit(LIMIT, socket.connect(SocketAddr::from((to, PORT)))).await {
        None => PacketOutcome::Silence,
        Some(Ok(_)) => PacketOutcome::Arrived,
        Some(Err(error)) => match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ECONNREFUSED | Errno::ECONNRESET) => PacketOutcome::Arrived,
            Some(Errno::EHOSTUNREACH) => PacketOutcome::TurnedBack,
            Some(Errno::ETIMEDOUT) => PacketOutcome::Silence,
            _ => PacketOutcome::NotAsked,
        },
    }
}

/// As [`LIMIT`], but longer than the kernel's search for a neighbour, whose end is the answer that nobody has the address.
const LISTEN_LIMIT: Duration = Duration::from_secs(5);

/// Whether anybody takes connections at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortOutcome {
    /// Somebody does.
    Taken,
    /// It was refused, the address has nobody, or no packet came back in time.
    Nobody,
    /// It is not known: the name has no address, or this machine has no network to ask by.
    NotAsked,
}

/// Opens a connection to each address of a name, or to an address, and closes it at once.
pub async fn listens(clock: &Clock, host: &str, port: u16) -> PortOutcome {
    let Some(Ok(addresses)) = clock.limit(LISTEN_LIMIT, tokio::net::lookup_host((host, port))).await else {
        return PortOutcome::NotAsked;
    };
    let mut outcome = PortOutcome::NotAsked;
    for address in addresses {
        let error = match clock.limit(LISTEN_LIMIT, TcpStream::connect(address)).await {
            Some(Ok(_)) => return PortOutcome::Taken,
            Some(Err(error)) => error.raw_os_error().map(Errno::from_raw),
            None => Some(Errno::ETIMEDOUT),
        };
        // Of an address that there is no route to, as IPv6 beside IPv4, nothing is known.
        if matches!(error, Some(Errno::ECONNREFUSED | Errno::ECONNRESET | Errno::EHOSTUNREACH | Errno::ETIMEDOUT)) {
            outcome = PortOutcome::Nobody;
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_refusal_is_an_answer_and_an_address_of_others_cannot_be_asked_from() {
        let clock = Clock::system();
        let [own, other, unrelated] = [[127, 0, 0, 1], [127, 0, 0, 9], [192, 0, 2, 1]].map(Ipv4Addr::from);
        for (from, to, one_hop, answer) in [
            (own, other, false, PacketOutcome::Arrived),
            // Nobody has to pass on what is meant for this machine.
            (own, other, true, PacketOutcome::Arrived),
            (unrelated, other, false, PacketOutcome::NotAsked),
        ] {
            assert_eq!(ask(&clock, from, to, one_hop).await, answer, "{from} {to}");
        }
    }

    #[tokio::test]
    async fn who_takes_no_connection_is_nobody_and_who_cannot_be_asked_may_be_somebody() {
        let clock = Clock::system();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let taken = listener.local_addr().unwrap().port();
        for (host, port, answer) in [
            // One that accepts and never answers.
            ("127.0.0.1", taken, PortOutcome::Taken),
            ("localhost", taken, PortOutcome::Taken),
            ("127.0.0.1", 1, PortOutcome::Nobody),
            ("no-such-host.invalid", 1, PortOutcome::NotAsked),
        ] {
            assert_eq!(listens(&clock, host, port).await, answer, "{host} {port}");
        }
    }
}
