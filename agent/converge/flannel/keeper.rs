//! Waits until flannel's network is described in etcd.

use std::time::Duration;

use super::{PodNetwork, key};
use crate::backoff::Backoff;
use crate::clock::{Clock, Stopwatch};
use crate::converge::Failure;
use crate::desired::FlannelStore;
use crate::error::ErrorKind;
use crate::network::flannel::Version;
use crate::progress::{Progress, StepId};
use crate::report::{Code, Event};

/// Between two looks.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));

/// What the step works with.
pub(crate) struct FlannelConfigWaiter<'a, P> {
    pub(crate) network: &'a P,
    pub(crate) flanneld: Option<Version>,
    pub(crate) clock: &'a Clock,
    pub(crate) progress: &'a Progress,
    pub(crate) generation: u64,
    pub(crate) running: &'a Stopwatch,
    pub(crate) deadline: Duration,
}

impl<P: PodNetwork> FlannelConfigWaiter<'_, P> {
    /// Waits until etcd has the description; true if this node wrote it.
    ///
    /// # Errors
    /// At once where waiting is of no use, else at the deadline with the last cause.
    pub(crate) async fn until_present(&self, store: &FlannelStore) -> Result<bool, Failure> {
        let mut pauses = PAUSES;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let error = match self.network.describe(store, self.flanneld).await {
                Ok(written) => {
                    if written {
                        let line = format!("wrote flannel's network configuration to {}", key::path(store));
                        self.emit(Event::new(Code::FlannelKeyWritten, line));
                    }
                    return Ok(written);
                }
                Err(error) => error,
            };
            let left = self.deadline.saturating_sub(self.running.elapsed());
            if error.kind() != ErrorKind::Transient || left.is_zero() {
                return Err(Failure::from_error(Code::FlannelKeyFailed, StepId::FlannelKey, &error));
            }
            let line = "flannel's network configuration is not in etcd yet";
            let pause = pauses.next_pause();
            self.emit(Event::new(Code::FlannelKeyWaiting, line).attempt(attempt).next_try(pause).error(&error));
            self.clock.wait(pause.min(left)).await;
        }
    }

    fn emit(&self, event: Event) {
        let step = StepId::FlannelKey;
        self.progress.emit(&step, event.phase(step.phase()).step(step.to_string()).generation(self.generation));
    }
}
