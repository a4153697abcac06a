//! A source over the network: where it is asked, and one poll of it.

use super::poll::{FetchedDocument, PollCache, Tools};
use super::{cfn, heat, request, zaqar};
use crate::error::Result;

/// Whom to ask for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Cfn(cfn::CfnEndpoint),
    Heat(heat::HeatEndpoint),
    Request(request::TempUrlEndpoint),
    Zaqar(zaqar::QueueEndpoint),
}

impl Endpoint {
    /// For people, without secrets.
    pub(super) fn place(&self) -> String {
        match self {
            Self::Cfn(endpoint) => endpoint.place(),
            Self::Heat(endpoint) => endpoint.place(),
            Self::Request(endpoint) => endpoint.place(),
            Self::Zaqar(endpoint) => endpoint.place(),
        }
    }

    /// The URL that credentials are used at first. It may hold secrets.
    pub(super) fn address(&self) -> &str {
        match self {
            Self::Cfn(endpoint) => endpoint.address(),
            Self::Heat(endpoint) => endpoint.address(),
            Self::Request(endpoint) => endpoint.address(),
            Self::Zaqar(endpoint) => endpoint.address(),
        }
    }

    /// The CA of its own that it has.
    pub(super) fn ca(&self) -> Option<&str> {
        match self {
            Self::Cfn(endpoint) => endpoint.ca.as_deref(),
            Self::Heat(endpoint) => endpoint.ca.as_deref(),
            Self::Request(endpoint) => endpoint.ca.as_deref(),
            Self::Zaqar(endpoint) => endpoint.ca.as_deref(),
        }
    }

    /// The same, to give it one.
    pub(super) fn ca_mut(&mut self) -> &mut Option<String> {
        match self {
            Self::Cfn(endpoint) => &mut endpoint.ca,
            Self::Heat(endpoint) => &mut endpoint.ca,
            Self::Request(endpoint) => &mut endpoint.ca,
            Self::Zaqar(endpoint) => &mut endpoint.ca,
        }
    }

    /// Asks once.
    ///
    /// # Errors
    /// No answer, or none that can be used; `Error::asked_pause` is what the server asks us to wait.
    pub(super) async fn fetch(&self, tools: &Tools, memory: &mut PollCache) -> Result<FetchedDocument> {
        match self {
            Self::Cfn(endpoint) => endpoint.fetch(tools, memory).await,
            Self::Heat(endpoint) => endpoint.fetch(tools, memory).await,
            Self::Request(endpoint) => endpoint.fetch(tools, memory).await,
            Self::Zaqar(endpoint) => endpoint.fetch(tools, memory).await,
        }
    }
}
