//! Which deployments are new, what kind of work each is, and the record that makes each run at most once.
//!
//! In: the snapshot's deployments. Out: [`Work`], carried out by `daemon`, and the [`Journal`],
//! whose states are `seen → running → finished → signalled`, each synced before the next is begun.
//! Never: a program that is started here, or a signal that is sent.

mod generation;
mod history;
pub mod hooks;
mod journal;
mod result;
pub mod unsent;
mod work;

pub use generation::{AppliedExtent, FILE as GENERATION, Generation, Generations, PreviousGeneration, Reference};
pub use history::{GenerationState, PastGeneration, WentBack};
pub use journal::{DISCARDED, DeploymentRecord, DeploymentState, Ending, Journal, choose, job_of, legacy_name};
pub use result::{DeploymentOutcome, SIGNAL_LIMIT, body, is_success, last_lines, last_output_suffix};
pub use work::{EntryKind, GroupPolicy, PendingEntry, Work, todo};

/// Set for the phases of os-refresh-config that the daemon runs: `55-heat-config` among them leaves the deployments to it.
pub const PHASES: &str = "HEAT_NODE_AGENT_PHASES";
