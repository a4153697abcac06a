//! From parameters to a checked `NodeSpec`.
//!
//! In: `Parameters`. Out: a `NodeSpec` that every check accepted, or every mistake at once. Never: a file, a flag.

pub(super) mod cluster;
pub(super) mod node;
