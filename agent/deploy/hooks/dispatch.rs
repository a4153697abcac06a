//! The job of any deployment that is a program.

use std::path::PathBuf;

use super::{external, script};
use crate::deploy::work::Work;
use crate::error::Result;
use crate::files::Tree;
use crate::metadata::Deployment;
use crate::programs::Job;

/// A script's, or the one of its group's hook.
///
/// # Errors
/// As those of [`script::job`] and [`external`].
pub fn job(
    deployment: &Deployment,
    work: Work,
    root: &Tree,
    first: &[PathBuf],
    limit_ms: Option<u64>,
    is_secret: impl Fn(&str) -> bool,
) -> Result<Job> {
    match work {
        Work::Script => script::job(deployment, limit_ms, is_secret),
        _ => external(deployment, root, first, limit_ms, is_secret),
    }
}
