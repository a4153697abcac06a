//! A task of the loop: one thing at a time, beside whatever other tasks do.

use std::future::{Future, pending};

use futures_util::future::LocalBoxFuture;

/// What runs in it, and what that is about.
pub(in crate::daemon) struct BackgroundTask<K, T>(Option<(K, LocalBoxFuture<'static, T>)>);

impl<K, T> Default for BackgroundTask<K, T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<K: Clone, T> BackgroundTask<K, T> {
    /// Starts this, in the place of what runs.
    pub(super) fn start(&mut self, about: K, running: impl Future<Output = T> + 'static) {
        self.0 = Some((about, Box::pin(running)));
    }

    pub(super) fn stop(&mut self) {
        self.0 = None;
    }

    pub(super) fn is_busy(&self) -> bool {
        self.0.is_some()
    }

    /// What runs is about this.
    pub(in crate::daemon) fn about(&self) -> Option<&K> {
        self.0.as_ref().map(|(about, _)| about)
    }

    /// The end of what runs, after which the task is empty; never, while it is empty. Safe to drop.
    pub(super) async fn ended(&mut self) -> (K, T) {
        let Some((about, running)) = &mut self.0 else { return pending().await };
        let ended = running.await;
        let about = about.clone();
        self.stop();
        (about, ended)
    }
}
