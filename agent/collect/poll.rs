//! What one poll of a source over the network is given, and what it brings.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::error::remedy::Remedy;
use crate::error::{Error, ErrorKind, Result};
use crate::http::{Http, Response};
use crate::openstack::keystone::Keystone;

/// With what to ask.
pub(super) struct Tools {
    pub(super) http: Http,
    pub(super) keystone: Keystone,
    /// For one poll.
    pub(super) deadline: Duration,
}

/// What the answer before left for the next poll of the same endpoint. It dies with the process: what a cache file holds
/// need not be what the server said last.
#[derive(Clone, Default)]
pub(super) struct PollCache {
    /// Digest of the bytes.
    pub(super) raw: Option<String>,
    /// A header that asks for the document only if it is another one.
    pub(super) condition: Option<(&'static str, String)>,
    /// `name/uuid` of a stack of which only one of the two is configured.
    pub(super) stack: Option<String>,
    /// Whether the document that is held was delivered by these settings, in this process or before.
    pub(super) held: bool,
}

/// An answer, to be read: `None` where it is byte for byte what it was.
pub(super) type FetchedDocument = Option<Box<dyn FnOnce() -> Result<Map<String, Value>> + Send>>;

/// An answer that stands for a failure.
pub(super) fn refusal(response: &Response, who: &str, document: &str, remedy: impl Into<Remedy>) -> Error {
    let status = response.status;
    let kind =
        if (400..500).contains(&status) && status != 408 && status != 429 { ErrorKind::Permanent } else { ErrorKind::Transient };
    let document = if document.is_empty() { "no details" } else { document };
    Error::new(kind, format!("{who} answered {status} {document}")).remedy(remedy).retry_after(response.retry_after())
}

/// What an answer counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerStanding {
    /// As the one of the way that it was asked by.
    AsAsked,
    /// As one of a way that answered before and is to be replaced: it says what it says, and replaces nothing.
    ByFormerWay,
    /// As none: nothing leads to its way any more, and it never answered before.
    TakenBack,
}
