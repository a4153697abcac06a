//! The source `heat`: the metadata of the server's resource from Heat's own API, with a token of the server's stack user
//! (POLL_SERVER_HEAT, heat-protocol.md 2.4).

use serde_json::{Map, Value};

use super::document;
use super::poll::{FetchedDocument, PollCache, Tools, refusal};
use super::section::{DEPLOYMENT_KEY, Section};
use crate::budgets::json;
use crate::digest;
use crate::error::{Context, Error, Result};
use crate::http::{Request, Response, redacted};
use crate::openstack::aws_signature::encode;
use crate::openstack::keystone::{Credentials, Scope};
use crate::report::text::{escaped, shortened};
use crate::settings::source_name::SourceName;

pub(super) const KEYS: &[&str] = &[
    "auth_url",
    "user_id",
    "password",
    "project_id",
    "stack_id",
    "resource_name",
    "region_name",
    "ca_certificate",
    DEPLOYMENT_KEY,
];

/// Those that it cannot do without.
pub(super) const NEEDED: [&str; 6] = ["auth_url", "user_id", "password", "project_id", "stack_id", "resource_name"];

/// Heat's type in Keystone's catalog.
const SERVICE: &str = "orchestration";

/// Whom to ask for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeatEndpoint {
    credentials: Credentials,
    /// `name/uuid`.
    stack: String,
    resource: String,
    pub(super) ca: Option<String>,
}

impl HeatEndpoint {
    pub(super) fn new(section: &Section) -> Result<Option<Self>> {
        // Heat leaves region_name where it takes the rest away.
        if ["user_id", "password", "stack_id", "resource_name"].iter().all(|key| section.get(key).is_none()) {
            return Ok(None);
        }
        let [auth_url, user_id, password, project_id, stack, resource] =
            section.complete(SourceName::Heat, NEEDED)?.map(str::to_owned);
        let region = section.get("region_name").map(str::to_owned);
        let credentials = Credentials { auth_url, user_id, password, scope: Scope::Project(project_id), region };
        Ok(Some(Self { credentials, stack, resource, ca: section.get("ca_certificate").map(str::to_owned) }))
    }

    /// Where tokens are asked for.
    pub(super) fn address(&self) -> &str {
        &self.credentials.auth_url
    }

    /// The server's stack user.
    pub(super) fn user(&self) -> Credentials {
        self.credentials.clone()
    }

    pub(super) fn place(&self) -> String {
        format!("Heat at {}, stack {} {}", redacted(&self.credentials.auth_url), self.stack, self.resource)
    }

    pub(super) async fn fetch(&self, tools: &Tools, memory: &mut PollCache) -> Result<FetchedDocument> {
        let stack = match &memory.stack {
            Some(known) => known.clone(),
            None => self.full_stack_id(tools).await?,
        };
        let url = format!("/stacks/{stack}/resources/{}/metadata", encode(&self.resource));
        let response = self.get(tools, &url, true).await?;
        // One that is gone may come back under the same name.
        memory.stack = Some(stack).filter(|_| response.status == 200);
        if response.status != 200 {
            return Err(self.refusal(&response));
        }
        let raw = digest::hex(&response.body);
        if memory.raw.as_ref() == Some(&raw) {
            return Ok(None);
        }
        memory.raw = Some(raw);
        Ok(Some(Box::new(move || metadata(&response.body))))
    }

    /// `name/uuid` as path segments. Heat configures both; with one of them it is asked where the stack is, once.
    async fn full_stack_id(&self, tools: &Tools) -> Result<String> {
        if let Some((name, uuid)) = self.stack.split_once('/') {
            return Ok(format!("{}/{}", encode(name), encode(uuid)));
        }
        let doing = || format!("looking up the stack {}", escaped(&shortened(&self.stack, 80)));
        let response = self.get(tools, &format!("/stacks/{}", encode(&self.stack)), false).await?;
        if !(300..400).contains(&response.status) {
            return Err(self.refusal(&response)).context(doing);
        }
        let found = response.header("location").and_then(|location| location.split_once("/stacks/")).map(|(_, stack)| stack);
        let found = found.filter(|stack| stack.split('/').filter(|part| !part.is_empty()).count() == 2);
        let found = found.filter(|stack| stack.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~%/".contains(&byte)));
        let none = || Error::permanent("Heat does not return its location").remedy("set stack_id to NAME/UUID of the stack");
        found.map(str::to_owned).ok_or_else(none).context(doing)
    }

    async fn get(&self, tools: &Tools, url: &str, follow: bool) -> Result<Response> {
        let mut request = Request::new("GET", url, tools.deadline);
        request.follow = follow;
        tools.keystone.request(&tools.http, &self.credentials, SERVICE, request).await
    }

    fn refusal(&self, response: &Response) -> Error {
        let (stack, resource) = (&self.stack, &self.resource);
        let remedy = match response.status {
            401 => "Heat refuses a token that Keystone has just issued: check [keystone_authtoken] in heat.conf and the log of heat-api"
                .to_owned(),
            403 => format!("user_id is not that of the server {resource}, or project_id not that of the stack {stack}: correct [heat] in os-collect-config.conf, or update the stack"),
            404 => format!("the stack {stack} is gone, or stack_id is wrong: check `openstack stack show {stack}`; a server of a deleted stack can be deleted too"),
            502..=504 | 429 => "Heat's API or its load balancer is overloaded or down; the agent retries".to_owned(),
            _ => "check the log of heat-api, and that the orchestration endpoint in Keystone's catalog leads to Heat's API".to_owned(),
        };
        refusal(response, "Heat", &fault(&response.body), remedy)
    }
}

/// The metadata in an answer.
fn metadata(body: &[u8]) -> Result<Map<String, Value>> {
    match document::object(body)?.shift_remove("metadata") {
        Some(Value::Object(metadata)) => Ok(metadata),
        Some(other) => Err(document::not_an_object(document::kind(&other))),
        None => Err(Error::permanent("the answer has no metadata")
            .rule("Heat's resource metadata API answers {\"metadata\": …}")
            .remedy("check that the orchestration endpoint in Keystone's catalog leads to Heat's API")),
    }
}

/// What an error answer says: Heat's own words, else those of the middleware before it.
fn fault(body: &[u8]) -> String {
    let body = json::small(body).unwrap_or_default();
    let message = ["/error/message", "/explanation", "/title"].iter().find_map(|at| body.pointer(at)?.as_str());
    escaped(&shortened(message.unwrap_or_default().lines().next().unwrap_or_default().trim(), 200))
}
