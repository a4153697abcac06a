//! Whether packets arrive: connections that nobody needs to accept, because any answer to the first packet is one.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt::Ipv4Ttl};
use tokio::net::TcpSocket;

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
}
