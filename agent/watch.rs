//! News about directories, by inotify, and about devices, by udev's netlink socket. Nobody may rely on it alone: every
//! waiter has a poll as the fallback.
//!
//! In: directories and files to watch. Out: that something may have changed there, or with a device or a route. Never: what has changed.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket};
use tokio::io::unix::AsyncFd;

/// Directories that are watched, for who may block.
pub struct Watch(Option<Inotify>);

impl Watch {
    /// Watches nothing yet. Without inotify the poll alone has to do.
    #[must_use]
    pub fn open() -> Self {
        Self(Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).ok())
    }

    /// Watches a directory for names that come. One that is not there cannot be watched yet; watching one again costs
    /// nothing.
    pub fn add(&self, directory: &Path) {
        self.add_for(directory, AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_ATTRIB);
    }

    /// Watches a file for what is written to it.
    pub fn add_written(&self, file: &Path) {
        self.add_for(file, AddWatchFlags::IN_MODIFY);
    }

    fn add_for(&self, path: &Path, news: AddWatchFlags) {
        let _watched = self.0.as_ref().map(|inotify| inotify.add_watch(path, news));
    }

    /// Waits for news, or for `limit` to pass.
    pub fn wait(&self, limit: Duration) {
        let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        // An interrupted wait is a short one: who waits looks again anyway.
        let _woken = match &self.0 {
            Some(inotify) => poll(&mut [PollFd::new(inotify.as_fd(), PollFlags::POLLIN)], timeout),
            None => poll(&mut [], timeout),
        };
        self.forget_news();
    }

    /// What exactly happened does not matter: who was woken looks at everything again.
    fn forget_news(&self) {
        while self.0.as_ref().is_some_and(|inotify| inotify.read_events().is_ok_and(|news| !news.is_empty())) {}
    }
}

impl AsRawFd for Watch {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_ref().map_or(-1, |inotify| inotify.as_fd().as_raw_fd())
    }
}

/// The same for the one loop, which must not block.
pub struct AsyncWatch(Option<AsyncFd<Watch>>);

impl AsyncWatch {
    /// Watches nothing yet. Within a runtime only.
    #[must_use]
    #[expect(
        deprecated,
        reason = "what replaces it is unsafe to call; a Watch keeps its descriptor open for as long as it lives"
    )]
    pub fn open() -> Self {
        let watch = Watch::open();
        Self(if watch.0.is_some() { AsyncFd::new(watch).ok() } else { None })
    }

    /// [`Watch::add`].
    pub fn add(&self, directory: &Path) {
        if let Some(fd) = &self.0 {
            fd.get_ref().add(directory);
        }
    }

    /// Waits for news; forever where there is no inotify. Safe to drop.
    pub async fn changed(&self) {
        let Some(fd) = &self.0 else { return std::future::pending().await };
        let Ok(mut ready) = fd.readable().await else { return std::future::pending().await };
        fd.get_ref().forget_news();
        ready.clear_ready();
    }
}

/// The multicast group in which udev announces a device once its links are made; the kernel's own is 1
/// (`libudev`, `udev_monitor_new_from_netlink(3)`).
const UDEV_GROUP: u32 = 2;

/// Devices that come, change and go, as udev announces them.
pub struct DeviceNews(Option<AsyncFd<OwnedFd>>);

impl DeviceNews {
    /// Listens. Within a runtime only; without such a socket the poll alone has to do.
    #[must_use]
    #[expect(deprecated, reason = "what replaces it is unsafe to call; the descriptor is owned for as long as this lives")]
    pub fn open() -> Self {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkKObjectUEvent).ok();
        let bound = socket.filter(|socket| bind(socket.as_raw_fd(), &NetlinkAddr::new(0, UDEV_GROUP)).is_ok());
        Self(bound.and_then(|socket| AsyncFd::new(socket).ok()))
    }

    /// Waits for news; forever where there is no socket. Safe to drop. Who sent it and what it says is not looked at: who
    /// was woken looks at the devices themselves.
    pub async fn changed(&self) {
        let Some(fd) = &self.0 else { return std::future::pending().await };
        let Ok(mut ready) = fd.readable().await else { return std::future::pending().await };
        // A message that does not fit is cut, and one that was lost (ENOBUFS) is followed by the next.
        while recv(fd.as_raw_fd(), &mut [0; 16], MsgFlags::empty()).is_ok() {}
        ready.clear_ready();
    }
}

/// The multicast groups in which the kernel announces links, of IPv4 addresses and of IPv4 routes (rtnetlink(7): `RTMGRP_LINK`,
/// `RTMGRP_IPV4_IFADDR`, `RTMGRP_IPV4_ROUTE`).
const ROUTE_GROUPS: u32 = 0x1 | 0x10 | 0x40;

/// Changes of links, addresses and routes, for who may block.
pub struct RouteNews(Option<OwnedFd>);

impl RouteNews {
    /// Listens; without such a socket the poll alone has to do.
    #[must_use]
    pub fn open() -> Self {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute).ok();
        Self(socket.filter(|socket| bind(socket.as_raw_fd(), &NetlinkAddr::new(0, ROUTE_GROUPS)).is_ok()))
    }

    /// Waits for news, or for `limit` to pass; whether there is any.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> bool {
        let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        match &self.0 {
            Some(socket) => poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], timeout).is_ok_and(|ready| ready > 0),
            None => poll(&mut [], timeout).is_ok_and(|_| false),
        }
    }

    /// Takes in what was said: who was woken looks at the routes themselves. What did not fit (ENOBUFS) ends it, and wakes again.
    pub fn forget(&self) {
        while self.0.as_ref().is_some_and(|socket| recv(socket.as_raw_fd(), &mut [0; 16], MsgFlags::empty()).is_ok()) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::files::{Attributes, Tree};

    #[test]
    fn a_file_that_comes_wakes_and_silence_ends_at_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let watch = Watch::open();
        watch.add(dir.path());
        let started = Clock::system().start();
        watch.wait(Duration::from_millis(60));
        assert!(started.elapsed() >= Duration::from_millis(50));
        Tree::open(dir.path()).unwrap().write(Path::new("x"), b"", Attributes::mode(0o600)).unwrap();
        let (started, limit) = (Clock::system().start(), Duration::from_mins(2));
        watch.wait(limit);
        assert!(started.elapsed() < limit);
        watch.wait(Duration::ZERO);
    }

    #[tokio::test]
    async fn what_udev_says_wakes_and_is_taken_in_whole() {
        use futures_util::FutureExt as _;
        use nix::sys::socket::{getsockname, sendto};

        let news = DeviceNews::open();
        let Some(fd) = &news.0 else { panic!("a netlink socket can be bound to udev's group") };
        let address: NetlinkAddr = getsockname(fd.as_raw_fd()).unwrap();
        assert_eq!(address.groups(), UDEV_GROUP);
        let sender =
            socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkKObjectUEvent).unwrap();
        let to = NetlinkAddr::new(address.pid(), 0);
        let clock = Clock::system();
        for _ in 0..3 {
            // One message alone: only privileged processes may send to the group.
            sendto(sender.as_raw_fd(), &[b'x'; 4096], &to, MsgFlags::empty()).unwrap();
        }
        assert_eq!(clock.limit(Duration::from_mins(2), news.changed()).await, Some(()));
        // The machine's own udev may say something at any time: only what was sent here must not be left.
        let mut left = [0; 1];
        while recv(fd.as_raw_fd(), &mut left, MsgFlags::empty()).is_ok() {
            assert_ne!(left, *b"x");
        }
        assert_eq!(news.changed().now_or_never(), None, "nothing is left to wake for");
    }
}
