//! The keeper itself, whom it asks, and why a try of it ends.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, Timestamp};
use crate::desired::{MagnumAccess, Signer};
use crate::error::{Error, ErrorKind, Result};
use crate::files::Tree;
use crate::keepers::volumes::ProgramOutput;
use crate::openstack::magnum::Magnum;
use crate::progress::Progress;

/// How long one request may take: Magnum's own calls between its services end after a minute.
pub(super) const REQUEST_LIMIT: Duration = Duration::from_mins(1);

/// Who signs at another place: Magnum.
pub trait CertificateSigner {
    /// The certificate of an authority as PEM.
    fn fetch_authority(&self, signer: Signer, deadline: Duration) -> impl Future<Output = Result<String>>;
    /// Has a request signed; the certificate as PEM.
    fn sign(&self, signer: Signer, request: &str, deadline: Duration) -> impl Future<Output = Result<String>>;
}

impl CertificateSigner for Magnum<'_> {
    async fn fetch_authority(&self, signer: Signer, deadline: Duration) -> Result<String> {
        Magnum::fetch_authority(self, signer, deadline).await
    }

    async fn sign(&self, signer: Signer, request: &str, deadline: Duration) -> Result<String> {
        Magnum::sign(self, signer, request, deadline).await
    }
}

/// What the keeper asks of other rooms: who signs, and programs.
pub trait CertificateBackend {
    /// Magnum, for all requests of one try.
    fn magnum<'a>(&'a self, access: &'a MagnumAccess) -> impl CertificateSigner + 'a;
    /// Runs an external program as a transient unit, which goes on under its key when the agent ends.
    fn run(&self, key: &str, argv: Vec<String>) -> impl Future<Output = Result<ProgramOutput>>;
}

/// Keeps certificates in their places.
#[derive(Debug)]
pub struct CertificateKeeper<H> {
    /// The other rooms.
    pub backend: H,
    /// The machine's root directory.
    pub root: Arc<Tree>,
    /// The agent's state directory.
    pub state: Arc<Tree>,
    /// The clock.
    pub clock: Clock,
    /// The clock is wrong before this: when the agent was built.
    pub built: Timestamp,
    /// So long, from now on, the clock may not have been set from the network yet: what a wrong one explains is tried again.
    pub clock_settles: Duration,
    /// Where the run's progress is kept, and its events go.
    pub progress: Progress,
    /// The generation that is put in place.
    pub generation: u64,
    /// Whether a stack update asks for it. The issuer's authorities are asked for then although no parameter changed: a change
    /// of authority at Magnum changes none of a worker's.
    pub is_update: bool,
}

/// Why a try ended.
pub(super) struct IssueFailure {
    pub(super) error: Error,
    /// Whether it may pass by itself: somebody outside does not answer.
    pub(super) is_transient: bool,
}

impl IssueFailure {
    /// By what somebody outside answered.
    pub(super) fn outside(error: Error) -> Self {
        Self { is_transient: error.kind() == ErrorKind::Transient, error }
    }
}

/// What goes wrong on this machine stays wrong.
impl From<Error> for IssueFailure {
    fn from(error: Error) -> Self {
        Self { error, is_transient: false }
    }
}
