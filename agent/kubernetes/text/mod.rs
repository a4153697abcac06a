//! Writers of the text formats that components read.
//!
//! In: values. Out: text, quoted as its reader unquotes it. Never: a decision about what is written.

pub(super) mod environment;
pub(super) mod gcfg;
pub(super) mod kubeconfig;
pub(super) mod toml;
pub(super) mod yaml;
