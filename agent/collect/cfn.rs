//! The source `cfn`: heat-api-cfn's `DescribeStackResource`, Heat's default transport (heat-protocol.md 2.3).
//!
//! Where to ask and with which keys is learnt from what cloud-init, the image and Heat itself left.

use futures_util::future::join_all;
use serde_json::{Map, Value};

use super::document;
use super::poll::{FetchedDocument, PollCache, Tools, refusal};
use super::section::{DEPLOYMENT_KEY, Section};
use crate::budgets::json;
use crate::digest;
use crate::error::{Error, Result};
use crate::http::{self, Request, Response};
use crate::openstack::aws_signature::{Keys, describe_stack_resource_url};
use crate::report::text::{escaped, shortened};
use crate::settings::source_name::SourceName;

pub(super) const KEYS: &[&str] =
    &["metadata_url", "access_key_id", "secret_access_key", "stack_name", "path", "ca_certificate", DEPLOYMENT_KEY];

/// Those that it cannot do without.
pub(super) const NEEDED: [&str; 5] = ["metadata_url", "access_key_id", "secret_access_key", "stack_name", "path"];

/// Whom to ask for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CfnEndpoint {
    metadata_url: String,
    keys: Keys,
    stack: String,
    /// `Resource.Field[.key…]`.
    paths: Vec<String>,
    pub(super) ca: Option<String>,
}

impl CfnEndpoint {
    pub(super) fn new(section: &Section) -> Result<Option<Self>> {
        // A hint file alone is left by cloud-init for other tools.
        if ["access_key_id", "secret_access_key", "path"].iter().all(|key| section.get(key).is_none()) {
            return Ok(None);
        }
        let [metadata_url, access, secret, stack, _] = section.complete(SourceName::Cfn, NEEDED)?.map(str::to_owned);
        let paths = section.all("path").to_vec();
        if let Some(path) = paths.iter().find(|path| path.split('.').any(str::is_empty) || !path.contains('.')) {
            return Err(Error::permanent(format!(
                "cfn path {} is not of the form RESOURCE.Metadata",
                escaped(&shortened(path, 80))
            ))
            .rule("os-collect-config's [cfn] path is LOGICAL_RESOURCE.Metadata[.KEY]")
            .remedy("correct [cfn] in os-collect-config.conf, or the os-collect-config metadata of the server"));
        }
        let ca = section.get("ca_certificate").map(str::to_owned);
        Ok(Some(Self { metadata_url, keys: Keys { access, secret }, stack, paths, ca }))
    }

    /// Where Heat is asked.
    pub(super) fn address(&self) -> &str {
        &self.metadata_url
    }

    /// The base URL with the keys that sign for it.
    pub(super) fn signer(&self) -> (String, Keys) {
        (self.metadata_url.clone(), self.keys.clone())
    }

    /// For people, without keys.
    pub(super) fn place(&self) -> String {
        format!("{} stack {} {}", http::redacted(&self.metadata_url), self.stack, self.paths.join(" "))
    }

    /// Asks, one request a path, side by side.
    pub(super) async fn fetch(&self, tools: &Tools, memory: &mut PollCache) -> Result<FetchedDocument> {
        let answers = join_all(self.paths.iter().map(|path| self.fetch_path(tools, path))).await;
        let bodies = answers.into_iter().collect::<Result<Vec<_>>>()?;
        let digests: String = bodies.iter().map(|body| digest::hex(body)).collect();
        let raw = digest::hex(format!("{digests}{}", self.paths.join("\0")).as_bytes());
        if memory.raw.as_ref() == Some(&raw) {
            return Ok(None);
        }
        memory.raw = Some(raw);
        let paths = self.paths.clone();
        Ok(Some(Box::new(move || {
            let mut document = Map::new();
            for (path, body) in paths.iter().zip(bodies) {
                document.extend(metadata(&body, path)?);
            }
            Ok(document)
        })))
    }

    async fn fetch_path(&self, tools: &Tools, path: &str) -> Result<Vec<u8>> {
        // Heat's resource names may not hold a dot (heat-protocol.md 2.3).
        let resource = path.split('.').next().unwrap_or_default();
        let url = describe_stack_resource_url(&self.metadata_url, &self.stack, resource, &self.keys)?;
        let request = Request::new("GET", &url, tools.deadline).header("content-type", "application/json");
        let response = tools.http.request(request).await?;
        if response.status == 200 {
            return Ok(response.body);
        }
        Err(self.refusal(&response, resource))
    }

    fn refusal(&self, response: &Response, resource: &str) -> Error {
        let stack = &self.stack;
        let (code, message) = aws_error(&response.body);
        let parts: Vec<_> = [code.as_str(), message.as_str()].into_iter().filter(|part| !part.is_empty()).collect();
        let remedy = match (response.status, code.as_str()) {
            (400, "InvalidParameterValue") => {
                format!(
                    "the stack {stack} or its resource {resource} does not exist any more: check `openstack stack show {stack}`; if the stack was deleted, this server can be deleted too"
                )
            }
            (400, "IncompleteSignature") | (403, "MissingAuthenticationToken") => {
                "a proxy may be changing the URL: connect to Heat's CloudFormation API directly".to_owned()
            }
            (401 | 403, _) => format!(
                "`openstack stack show {stack}`: if suspended, `openstack stack resume {stack}`; if deleted, this server can be deleted too. Else \
                 the server's keys were revoked, or path names another resource than this server ({resource}): update the stack, or correct \
                 [cfn] in os-collect-config.conf"
            ),
            (404, _) => "metadata_url does not lead to Heat's CloudFormation API (http://HOST:8000/v1/): correct it".to_owned(),
            (500, _) => {
                "check the log of heat-api-cfn; Heat also answers this way to an access key that no longer exists".to_owned()
            }
            (502..=504 | 429, _) => "Heat's API or its load balancer is overloaded or down; the agent retries".to_owned(),
            _ => "check that metadata_url leads to Heat's CloudFormation API".to_owned(),
        };
        refusal(response, "Heat", &parts.join(": "), remedy)
    }
}

/// The object that a path names in an answer.
fn metadata(body: &[u8], path: &str) -> Result<Map<String, Value>> {
    let mut answer = document::parse(body)?;
    let detail = answer
        .pointer_mut("/DescribeStackResourceResponse/DescribeStackResourceResult/StackResourceDetail")
        .ok_or_else(|| {
            Error::permanent("the answer is not a DescribeStackResource response")
                .rule("the answer of DescribeStackResource has the resource\'s Metadata")
                .remedy("check that metadata_url leads to Heat's CloudFormation API")
        })?;
    let mut keys = path.split('.').skip(1);
    let field = keys.next().unwrap_or("Metadata");
    let none = |key: &str| {
        Error::permanent(format!("the answer has no {} ({})", escaped(&shortened(key, 80)), escaped(&shortened(path, 80))))
    };
    // Taken out, not copied: it may be large.
    let mut at = detail.get_mut(field).ok_or_else(|| none(field))?.take();
    drop(answer);
    // Some releases give the object as text.
    if let Some(text) = at.as_str() {
        at = document::parse(text.as_bytes())?;
    }
    for key in keys {
        at = at.get_mut(key).ok_or_else(|| none(key))?.take();
    }
    match at {
        Value::Object(map) => Ok(map),
        other => Err(document::not_an_object(document::kind(&other))),
    }
}

/// Code and first line of the message of an error answer, which is XML whatever was asked for.
fn aws_error(body: &[u8]) -> (String, String) {
    let text = String::from_utf8_lossy(body);
    let between = |start: &str, end: &str| {
        let (_, rest) = text.split_once(start)?;
        Some(rest.split_once(end).map_or(rest, |(inner, _)| inner).to_owned())
    };
    let json = || json::small(body);
    let in_json = |key: &str| Some(json()?.pointer(&format!("/ErrorResponse/Error/{key}"))?.as_str()?.to_owned());
    let tidy = |text: Option<String>| {
        let text = text.unwrap_or_default();
        escaped(&shortened(text.lines().next().unwrap_or_default().trim(), 200))
    };
    let code = between("<Code>", "</Code>").or_else(|| in_json("Code"));
    let message = between("<Message>", "</Message>").or_else(|| in_json("Message"));
    (tidy(code), tidy(message))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_metadata_is_found_in_every_form_that_heat_gives_it() {
        let answer = |metadata: Value| {
            json!({"DescribeStackResourceResponse": {"DescribeStackResourceResult": {"StackResourceDetail": {"Metadata": metadata}}}}).to_string()
        };
        let object = json!({"deployments": [], "sub": {"a": {"b": 1}, "l": [1]}});
        for (body, path, expected) in [
            (answer(object.clone()), "s.Metadata", object.clone()),
            (answer(json!(object.to_string())), "s.Metadata", object.clone()),
            (answer(json!({})), "s.Metadata", json!({})),
            (answer(object.clone()), "s.Metadata.sub.a", json!({"b": 1})),
        ] {
            assert_eq!(Value::Object(metadata(body.as_bytes(), path).unwrap()), expected);
        }
        for (body, path, words) in [
            (answer(json!("")), "s.Metadata", "the document is empty"),
            (answer(json!(null)), "s.Metadata", "is null, not an object"),
            (answer(json!([1])), "s.Metadata", "is a list"),
            (answer(object.clone()), "s.Metadata.none", "has no none"),
            (answer(object.clone()), "s.Metadata.sub.l.0", "has no 0"),
            (answer(object.clone()), "s.Description", "has no Description"),
            ("{}".to_owned(), "s.Metadata", "not a DescribeStackResource response"),
            (" <DescribeStackResourceResponse/>".to_owned(), "s.Metadata", "is XML, not JSON"),
            ("7".to_owned(), "s.Metadata", "not a DescribeStackResource response"),
        ] {
            let error = metadata(body.as_bytes(), path).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn an_error_answer_gives_its_code_and_the_first_line() {
        for (body, code, message) in [
            (
                "<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</Code><Message>User is not authorized\nTraceback</Message></Error></ErrorResponse>",
                "AccessDenied",
                "User is not authorized",
            ),
            ("{\"ErrorResponse\": {\"Error\": {\"Code\": \"X\", \"Message\": \"y\\u001b\"}}}", "X", "y\\u{1b}"),
            ("<html>404 Not Found</html>", "", ""),
            ("<Code>cut", "cut", ""),
            ("", "", ""),
        ] {
            assert_eq!(aws_error(body.as_bytes()), (code.to_owned(), message.to_owned()));
        }
    }
}
