//! What must hold between parameters, machine and installed programs.
//!
//! In: parameters, a spec, `MachineFacts`. Out: mistakes, each with rule and remedy. Never: a change of what is rendered.

pub(super) mod addresses;
pub(super) mod certificates;
pub(super) mod cluster;
pub(super) mod command_line;
pub(super) mod guarded_options;
pub mod installed;
pub(super) mod kernel;
pub(super) mod options;
pub(super) mod pod_network;
pub(super) mod ports;
pub(super) mod preflight;
pub mod upgrade;
