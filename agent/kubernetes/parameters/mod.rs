//! Parameters as a deployment gives them.
//!
//! In: the config of a deployment. Out: `Parameters` by the one table of names, or every mistake. Never: what follows from two
//! of them together, which is for `parse` and `checks`.

pub(super) mod config_text;
pub mod heat_params;
pub mod kinds;
pub mod mistake;
pub mod read;
pub mod samples;
pub mod table;
