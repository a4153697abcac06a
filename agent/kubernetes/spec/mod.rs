//! What one node and its cluster are to be, as types.
//!
//! In: nothing; `parse` fills them. Out: `NodeSpec`, `ClusterSpec` and the questions that they answer by themselves. Never: a
//! mistake, a file, a flag.

pub mod cluster;
pub mod node;
pub(super) mod storage;
pub mod trust;
pub mod words;
