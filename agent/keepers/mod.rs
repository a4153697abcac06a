//! What stands above `converge` and keeps one kind of thing each: volumes, certificates, objects of the API, the node's conditions there, its
//! place in etcd's cluster, snapshots of etcd.
//!
//! In: what the `Desired` asks for and the means of a run. Out: outcomes of steps, and what is in place. Never: the order of steps,
//! which is for `converge`.

mod add_ons;
mod api;
pub mod certificates;
pub(crate) mod drain;
pub(crate) mod etcd_snapshots;
pub mod membership;
pub mod node_conditions;
pub(super) mod objects;
pub mod token_keys;
pub mod volumes;
