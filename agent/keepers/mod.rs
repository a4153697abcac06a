//! What stands above `converge` and keeps one kind of thing each: volumes, certificates, objects of the API.
//!
//! In: wishes of the `Desired` and the hands of a run. Out: outcomes of steps, and what is in place. Never: the order of steps,
//! which is for `converge`.

pub mod certificates;
pub(super) mod objects;
pub mod volumes;
