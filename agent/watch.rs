//! News about directories, by inotify. Nobody may rely on it alone: every waiter has a poll as the net under it.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
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

    /// Waits for news; for ever where there is no inotify. Safe to drop.
    pub async fn changed(&self) {
        let Some(fd) = &self.0 else { return std::future::pending().await };
        let Ok(mut ready) = fd.readable().await else { return std::future::pending().await };
        fd.get_ref().forget_news();
        ready.clear_ready();
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
        let started = Clock::system().start();
        watch.wait(Duration::from_secs(20));
        assert!(started.elapsed() < Duration::from_secs(10));
        watch.wait(Duration::ZERO);
    }
}
