//! A source over the network: where it is asked, and one poll of it.

use std::time::Duration;

use serde_json::{Map, Value};

use super::{cfn, heat, request};
use crate::error::{Error, Kind, Result};
use crate::http::{Http, Response};
use crate::openstack::keystone::Keystone;

/// Whom to ask for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Cfn(cfn::Endpoint),
    Heat(heat::Endpoint),
    Request(request::Endpoint),
}

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
pub(super) struct Memory {
    /// Digest of the bytes.
    pub(super) raw: Option<String>,
    /// A header that asks for the document only if it is another one.
    pub(super) condition: Option<(&'static str, String)>,
    /// `name/uuid` of a stack of which only one of the two is configured.
    pub(super) stack: Option<String>,
}

/// An answer, to be read: `None` where it is byte for byte what it was.
pub(super) type Answer = Option<Box<dyn FnOnce() -> Result<Map<String, Value>> + Send>>;

impl Endpoint {
    /// For people, without secrets.
    pub(super) fn place(&self) -> String {
        match self {
            Self::Cfn(endpoint) => endpoint.place(),
            Self::Heat(endpoint) => endpoint.place(),
            Self::Request(endpoint) => endpoint.place(),
        }
    }

    /// The URL that credentials are used at first. It may hold secrets.
    pub(super) fn address(&self) -> &str {
        match self {
            Self::Cfn(endpoint) => endpoint.address(),
            Self::Heat(endpoint) => endpoint.address(),
            Self::Request(endpoint) => endpoint.address(),
        }
    }

    /// The authority of its own that it has.
    pub(super) fn ca(&self) -> Option<&str> {
        match self {
            Self::Cfn(endpoint) => endpoint.ca.as_deref(),
            Self::Heat(endpoint) => endpoint.ca.as_deref(),
            Self::Request(endpoint) => endpoint.ca.as_deref(),
        }
    }

    /// The same, to give it one.
    pub(super) fn ca_mut(&mut self) -> &mut Option<String> {
        match self {
            Self::Cfn(endpoint) => &mut endpoint.ca,
            Self::Heat(endpoint) => &mut endpoint.ca,
            Self::Request(endpoint) => &mut endpoint.ca,
        }
    }

    /// Asks once.
    ///
    /// # Errors
    /// No answer, or none that can be used; [`Error::asked_pause`] is what the server asks us to wait.
    pub(super) async fn fetch(&self, tools: &Tools, memory: &mut Memory) -> Result<Answer> {
        match self {
            Self::Cfn(endpoint) => endpoint.fetch(tools, memory).await,
            Self::Heat(endpoint) => endpoint.fetch(tools, memory).await,
            Self::Request(endpoint) => endpoint.fetch(tools, memory).await,
        }
    }
}

/// An answer that tells of a failure.
pub(super) fn refusal(response: &Response, who: &str, said: &str, remedy: impl std::fmt::Display) -> Error {
    let status = response.status;
    let kind = if (400..500).contains(&status) && status != 408 && status != 429 { Kind::Permanent } else { Kind::Transient };
    let said = if said.is_empty() { "no details" } else { said };
    Error::new(kind, format!("{who} answered {status} {said}")).remedy(remedy).retry_after(response.retry_after())
}
