//! Writers of the text formats that components read.
//!
//! In: values. Out: text, quoted as its reader unquotes it. Never: a decision about what is written.

pub(super) mod environment;
pub(super) mod gcfg;
pub(super) mod kubeconfig;
pub(super) mod toml;
pub(super) mod yaml;

/// The first line of the files that the agent renders.
pub(in crate::kubernetes) const MADE: &str =
    "# Made by heat-node-agent from the parameters of the deployment; it is written again when they change.\n";
