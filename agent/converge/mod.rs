//! Makes a [`Desired`](crate::desired::Desired) true.
//!
//! In: a `Desired` and what is there ([`Observed`]). Out: a [`ChangePlan`] (pure, and what the command `plan` shows), and the
//! outcome of carrying it out: [`Converged`] or the first [`Failure`]. Steps that do not depend on each other run
//! side by side; waits are for events, with polling as a fallback.
//!
//! Never: the start of a program, a word to Heat, or knowledge of Kubernetes: what a node needs is in the
//! `Desired`, whether a volume may be touched is behind [`Volumes`].

mod add_ons;
mod backends;
pub(crate) mod diagnosis;
pub mod engine;
#[cfg(test)]
mod engine_tests;
pub(crate) mod etcd;
mod failure;
pub mod flannel;
pub(crate) mod gates;
pub(crate) mod graph;
pub mod health;
mod install;
mod membership;
pub mod observed;
pub mod offline;
mod owners;
mod pending;
pub mod plan;
mod prober;
mod refused_flag;
mod render;
pub mod retire;
pub mod store;
mod unified_diff;
mod units;
mod write;

pub use backends::{
    Applied, Certificates, EtcdMembership, FailureDetails, MemberChange, MemberSituation, MemberStep, Objects, Prepared, Prober,
    UnitManager, Volumes,
};
pub use engine::{BeforeChange, RunContext, SpecialRestarts, converge};
pub use failure::{ConvergeResult, Converged, Failure};
pub use observed::{Observed, PlannedStep, observe, observe_files};
pub use owners::Owners;
pub use pending::is_pending as has_pending_restart;
pub(crate) use pending::{
    note as note_pending_restart, read as pending_restarts, strike as strike_pending_restart, wait as have_restarts_wait,
    waiting as waiting_restarts,
};
pub use plan::{ChangePlan, plan};
pub use retire::{Original, Retired, RetiredFile};
