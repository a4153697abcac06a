//! Typed documents: what Heat's server metadata says, checked field by field.
//!
//! In: JSON from `collect`. Out: [`Deployment`]s, or a [`Malformed`] that still knows how to reach
//! Heat. It never runs, writes or fetches anything.

mod deployment;
mod input;

pub use deployment::{Deployment, Malformed, Output, SignalTarget};
pub use input::{Input, Traces, python_text};
