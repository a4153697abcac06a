//! The API server as others wait for it.

/// Its gate, which whoever talks to the API on a master waits for.
pub(in crate::kubernetes) const GATE: &str = "apiserver";
