//! Typed documents: what Heat's server metadata says, checked field by field.
//!
//! In: JSON from `collect`. Out: [`Deployment`]s, or a [`Malformed`] that still knows how to reach
//! Heat; from a template the entries that Heat will make of it. Never: a run, a write, a request.

mod deployment;
mod input;
mod python;
pub mod template;

pub use deployment::{Deployment, Malformed, Output, SignalTarget};
pub use input::{Input, Traces};
pub use python::{python_json, python_json_lines, python_json_sorted, python_text};
