//! The keeper itself, whom it asks, and why a try of it ends.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, Timestamp};
use crate::desired::{CertificatePolicy, Issuer, MagnumAccess, Signer};
use crate::error::remedy::Remedy;
use crate::error::{ConnectFailure, Error, ErrorKind, Result};
use crate::files::Tree;
use crate::keepers::volumes::ProgramOutput;
use crate::openstack::magnum::Magnum;
use crate::progress::Progress;
use crate::report::text::argument;

/// How long one request may take: Magnum's own calls between its services end after a minute.
pub(super) const REQUEST_LIMIT: Duration = Duration::from_mins(1);
/// What to do about a certificate of Magnum's that is not what was asked for: no parameter can be corrected.
fn wrong_answer(trust: &CertificatePolicy) -> Remedy {
    let cluster = if let Issuer::Magnum(access) = &trust.issuer { &access.cluster } else { "CLUSTER" };
    Remedy::stack_update_or(format!(
        "give the cause to an admin of Magnum: what it returned cannot be used, and no parameter changes that; `openstack coe ca show {}` \
         shows its CA",
        argument(cluster)
    ))
}

/// Who signs at another place: Magnum.
pub trait CertificateSigner {
    /// The certificate of a CA as PEM.
    fn fetch_ca(&self, signer: Signer, deadline: Duration) -> impl Future<Output = Result<String>>;
    /// Has a request signed; the certificate as PEM.
    fn sign(&self, signer: Signer, request: &str, deadline: Duration) -> impl Future<Output = Result<String>>;
}

impl CertificateSigner for Magnum<'_> {
    async fn fetch_ca(&self, signer: Signer, deadline: Duration) -> Result<String> {
        Magnum::fetch_ca(self, signer, deadline).await
    }

    async fn sign(&self, signer: Signer, request: &str, deadline: Duration) -> Result<String> {
        Magnum::sign(self, signer, request, deadline).await
    }
}

/// What the keeper asks of other modules: who signs, and programs.
pub trait CertificateBackend {
    /// Magnum, for all requests of one try.
    fn magnum<'a>(&'a self, access: &'a MagnumAccess) -> impl CertificateSigner + 'a;
    /// Runs an external program as a transient unit, which goes on under its key when the agent ends.
    fn run(&self, key: &str, argv: Vec<String>) -> impl Future<Output = Result<ProgramOutput>>;
}

/// Keeps certificates in their places.
#[derive(Debug)]
pub struct CertificateKeeper<H> {
    /// The other modules.
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
    /// Whether a stack update asks for it. The issuer's CAs are asked for then although no parameter changed: a CA
    /// rotation at Magnum changes none of a worker's.
    pub is_update: bool,
    /// Whether a CA rotation may take its next step: an update or the operator's order asks for it. Any other run leaves it where it is, as the
    /// other nodes may not have come so far.
    pub takes_steps: bool,
}

/// Why a try ended.
pub(super) struct IssueFailure {
    pub(super) error: Error,
    pub(super) retry: Retry,
}

/// Whether what failed is tried again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Retry {
    Never,
    /// An answer was wrong. Magnum's CA may have changed between two requests.
    Once,
    /// It may pass by itself: somebody outside does not answer.
    UntilDeadline,
}

impl IssueFailure {
    /// By what somebody outside answered.
    pub(super) fn outside(error: Error) -> Self {
        let retry = if error.kind() == ErrorKind::Transient { Retry::UntilDeadline } else { Retry::Never };
        Self { error, retry }
    }

    /// By a certificate of an issuer outside that is wrong. What a wrong clock explains is said with the clocks.
    pub(super) fn wrong_answer(error: Error, trust: &CertificatePolicy) -> Self {
        match error.connect_failure() {
            Some(ConnectFailure::Clock) => error.into(),
            Some(_) => error.remedy(wrong_answer(trust)).into(),
            None => Self { error: error.remedy(wrong_answer(trust)), retry: Retry::Once },
        }
    }
}

/// What goes wrong on this machine stays wrong.
impl From<Error> for IssueFailure {
    fn from(error: Error) -> Self {
        Self { error, retry: Retry::Never }
    }
}
