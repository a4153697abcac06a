//! A queue of Zaqar by its API v2, with a token of the user that Heat names with it (heat-protocol.md 2.7, 7.3): the metadata is read from one,
//! and a signal is posted to one.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::aws_signature::encode;
use super::keystone::{Credentials, Keystone, Scope};
use crate::budgets::json;
use crate::digest;
use crate::error::Result;
use crate::http::{Http, Request, Response, redacted};
use crate::report::text::{escaped, shortened};

/// Zaqar's type in Keystone's catalog.
const SERVICE: &str = "messaging";

/// Largest body of a message, in bytes of JSON: Zaqar takes a request of 256 KiB (`max_messages_post_size`).
pub const MESSAGE_LIMIT: usize = 250 * 1024;

/// Seconds that Zaqar keeps a message for Heat, which reads it once it waits for it. By default Zaqar takes up to two weeks (`max_message_ttl`).
const LIFE: u32 = 24 * 60 * 60;

/// A queue, and who may use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// Whose token.
    pub credentials: Credentials,
    /// Its name, which Heat calls `queue_id`.
    pub name: String,
}

impl Queue {
    /// What is asked for, for [`Queue::request`].
    #[must_use]
    pub fn messages(&self, below: &str) -> String {
        format!("/v2/queues/{}/messages{below}", encode(&self.name))
    }

    /// A request to Zaqar's endpoint in the user's catalog.
    ///
    /// # Errors
    /// As [`Keystone::request`].
    pub async fn request(&self, http: &Http, keystone: &Keystone, request: Request<'_>) -> Result<Response> {
        // Zaqar wants to know its clients apart by a UUID: the user is the same after a restart, and in a log of Zaqar's too.
        let mut client = digest::hex(self.credentials.user_id.as_bytes());
        client.truncate(32);
        let request = request.header("client-id", client);
        let request = match &self.credentials.scope {
            Scope::Project(id) => request.header("x-project-id", id),
            Scope::Trust(_) | Scope::None => request,
        };
        keystone.request(http, &self.credentials, SERVICE, request).await
    }

    /// For people.
    #[must_use]
    pub fn shown(&self, through: &str) -> String {
        format!("Zaqar {through} {}, queue {}", redacted(&self.credentials.auth_url), escaped(&shortened(&self.name, 80)))
    }

    /// What to do about an answer, where that does not depend on what was asked for.
    #[must_use]
    pub fn remedy(&self, status: u16) -> String {
        match status {
            401 => "Zaqar refuses a token that Keystone has just issued: check [keystone_authtoken] in zaqar.conf and its log"
                .to_owned(),
            404 => "the messaging endpoint in Keystone's catalog does not lead to Zaqar's API v2: correct it".to_owned(),
            429 | 502..=504 => "Zaqar or its load balancer is overloaded or down: check both".to_owned(),
            _ => format!("check Zaqar's log, and `openstack messaging queue stats {}`", escaped(&shortened(&self.name, 80))),
        }
    }
}

/// A request's body: one message, which is the JSON of an object.
#[must_use]
pub fn message(body: &Value) -> String {
    format!("{{\"messages\":[{{\"body\":{body},\"ttl\":{LIFE}}}]}}")
}

/// What an answer says for itself, or nothing.
#[must_use]
pub fn said(body: &[u8]) -> String {
    let body = json::small(body).unwrap_or_default();
    let said = ["/description", "/error/message", "/title"].iter().find_map(|at| body.pointer(at)?.as_str());
    escaped(&shortened(said.unwrap_or_default().lines().next().unwrap_or_default().trim(), 200))
}
