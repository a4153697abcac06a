//! What `verify` found, in a document, in settings or in an image.

/// One thing that is wrong.
#[derive(Debug, Default)]
pub(crate) struct Finding {
    /// File, source or deployment.
    pub(crate) place: String,
    /// Key or parameter; empty where the whole place is meant.
    pub(crate) key: String,
    pub(crate) problem: String,
    pub(crate) rule: String,
    pub(crate) remedy: String,
    /// Whether it is only reported: nothing has to be mended.
    pub(crate) warns: bool,
}
