//! The source `cfn`: heat-api-cfn's `DescribeStackResource`, Heat's default transport (heat-protocol.md 2.3).
//!
//! Where to ask and with which keys is learnt from what cloud-init, the image and Heat itself left.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Map, Value};

use super::document::{self, digest_of, text};
use super::local::LocalFiles;
use crate::error::{Error, Kind, Result};
use crate::http::{self, Http, Request, Response};
use crate::openstack::aws_signature::{Keys, describe_stack_resource_url};
use crate::report::text::{escaped, shortened};
use crate::settings::os_collect_config::OsCollectConfig;

/// What is known so far; any part may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Learnt {
    metadata_url: Option<String>,
    access: Option<String>,
    secret: Option<Secret>,
    stack: Option<String>,
    paths: Vec<String>,
    ca: Option<PathBuf>,
}

/// Never shown.
#[derive(Clone, PartialEq, Eq)]
struct Secret(String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

/// Whom to ask for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    metadata_url: String,
    keys: Keys,
    stack: String,
    /// `Resource.Field[.key…]`.
    paths: Vec<String>,
    pub(super) ca: Option<PathBuf>,
}

/// An answer that differs byte for byte from the one before.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) raw: String,
    pub(super) document: Map<String, Value>,
}

/// Why nothing came, and how long the server asks us to wait.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: Error,
    pub(super) retry_after: Option<Duration>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, retry_after: None }
    }
}

impl Learnt {
    /// What the files on this machine say: the boot copy, and stronger, os-collect-config.conf.
    pub(super) fn from_files(files: &LocalFiles) -> Self {
        let mut learnt = Self::default();
        if let Some(hint) = &files.hint {
            // The file holds host and port, or the whole URL (heat-protocol.md 1.2, 2.3).
            let base = hint.trim_end_matches('/').trim_end_matches("/v1");
            learnt.metadata_url = Some(format!("{base}/v1/"));
        }
        if let Some(Ok(boot)) = &files.boot {
            learnt.overlay_document(&boot.document);
        }
        learnt.overlay_config(&files.config);
        learnt
    }

    /// Takes over what a server's metadata says of this source; null and empty say nothing (heat-protocol.md R5).
    pub(super) fn overlay_document(&mut self, document: &Map<String, Value>) {
        let Some(cfn) = document.get("os-collect-config").and_then(|all| all.get("cfn")) else { return };
        let paths = match cfn.get("path") {
            Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect(),
            Some(Value::String(one)) => vec![one.as_str()],
            _ => Vec::new(),
        };
        self.overlay(|key| text(cfn, key), &paths);
    }

    fn overlay_config(&mut self, config: &OsCollectConfig) {
        let paths: Vec<_> = config.all("cfn", "path").collect();
        self.overlay(|key| config.get("cfn", key), &paths);
    }

    fn overlay<'a>(&mut self, get: impl Fn(&str) -> Option<&'a str>, paths: &[&str]) {
        let take = |slot: &mut Option<String>, key| {
            if let Some(value) = get(key) {
                *slot = Some(value.to_owned());
            }
        };
        take(&mut self.metadata_url, "metadata_url");
        take(&mut self.access, "access_key_id");
        take(&mut self.stack, "stack_name");
        if let Some(secret) = get("secret_access_key") {
            self.secret = Some(Secret(secret.to_owned()));
        }
        if let Some(ca) = get("ca_certificate") {
            self.ca = Some(ca.into());
        }
        let paths: Vec<String> = paths.iter().filter(|path| !path.is_empty()).map(|path| (*path).to_owned()).collect();
        if !paths.is_empty() {
            self.paths = paths;
        }
    }

    /// Tells this set of settings from another one, without showing it.
    pub(super) fn digest(&self) -> String {
        let secret = self.secret.as_ref().map_or("", |secret| &secret.0);
        digest_of(format!("{self:?}\0{secret}").as_bytes())
    }

    /// The endpoint, or nothing where this source is not configured.
    ///
    /// # Errors
    /// Permanent, if some settings are there and others missing or unusable.
    pub(super) fn endpoint(&self) -> Result<Option<Endpoint>> {
        // A hint file alone is left by cloud-init for other tools.
        if self.access.is_none() && self.secret.is_none() && self.paths.is_empty() {
            return Ok(None);
        }
        let incomplete = |why: String| {
            Err(Error::permanent(why)
                .rule("heat-protocol.md 2.3: metadata_url, access_key_id, secret_access_key, stack_name, path")
                .remedy("complete [cfn] in os-collect-config.conf, or the os-collect-config metadata of the server"))
        };
        let (Some(metadata_url), Some(access), Some(secret), Some(stack)) =
            (&self.metadata_url, &self.access, &self.secret, &self.stack)
        else {
            let missing = [
                ("metadata_url", self.metadata_url.is_none()),
                ("access_key_id", self.access.is_none()),
                ("secret_access_key", self.secret.is_none()),
                ("stack_name", self.stack.is_none()),
            ];
            let names: Vec<_> = missing.into_iter().filter(|(_, missing)| *missing).map(|(name, _)| name).collect();
            return incomplete(format!("the settings of cfn lack {}", names.join(", ")));
        };
        if self.paths.is_empty() {
            return incomplete("the settings of cfn lack path".to_owned());
        }
        if let Some(path) = self.paths.iter().find(|path| path.split('.').any(str::is_empty) || !path.contains('.')) {
            return incomplete(format!("path {} of cfn is not Resource.Metadata", escaped(&shortened(path, 80))));
        }
        Ok(Some(Endpoint {
            metadata_url: metadata_url.clone(),
            keys: Keys { access: access.clone(), secret: secret.0.clone() },
            stack: stack.clone(),
            paths: self.paths.clone(),
            ca: self.ca.clone(),
        }))
    }
}

impl Endpoint {
    /// For people, without keys.
    pub(super) fn place(&self) -> String {
        format!("{} stack {} {}", http::redacted(&self.metadata_url), self.stack, self.paths.join(" "))
    }

    /// Asks, one request a path, side by side. `None`: byte for byte what `known` is the digest of.
    pub(super) async fn fetch(
        &self,
        http: &Http,
        deadline: Duration,
        known: Option<&str>,
    ) -> std::result::Result<Option<Fetched>, Failure> {
        let answers = join_all(self.paths.iter().map(|path| self.fetch_path(http, deadline, path))).await;
        let mut bodies = Vec::new();
        for answer in answers {
            bodies.push(answer?);
        }
        let digests: String = bodies.iter().map(|body| digest_of(body)).collect();
        let raw = digest_of(format!("{digests}{}", self.paths.join("\0")).as_bytes());
        if known == Some(&raw) {
            return Ok(None);
        }
        let mut document = Map::new();
        for (path, body) in self.paths.iter().zip(&bodies) {
            document.extend(metadata(body, path)?);
        }
        Ok(Some(Fetched { raw, document }))
    }

    async fn fetch_path(&self, http: &Http, deadline: Duration, path: &str) -> std::result::Result<Vec<u8>, Failure> {
        // Heat's resource names may not hold a dot (heat-protocol.md 2.3).
        let resource = path.split('.').next().unwrap_or_default();
        let url = describe_stack_resource_url(&self.metadata_url, &self.stack, resource, &self.keys)?;
        let request = Request::new("GET", &url, deadline).header("content-type", "application/json");
        let response = http.request(request).await?;
        if response.status == 200 {
            return Ok(response.body);
        }
        Err(Failure { retry_after: response.retry_after(), error: self.refusal(&response, resource) })
    }

    fn refusal(&self, response: &Response, resource: &str) -> Error {
        let (code, message) = aws_error(&response.body);
        let status = response.status;
        let kind = if (400..500).contains(&status) && status != 408 && status != 429 { Kind::Permanent } else { Kind::Transient };
        let said: Vec<_> = [code.as_str(), message.as_str()].into_iter().filter(|part| !part.is_empty()).collect();
        let said = if said.is_empty() { "nothing more".to_owned() } else { said.join(": ") };
        let remedy = match (status, code.as_str()) {
            (400, "InvalidParameterValue") => {
                format!(
                    "the stack {} or its resource {resource} is gone: check `openstack stack show`; a server of a deleted stack can be deleted too",
                    self.stack
                )
            }
            (400, "IncompleteSignature") | (403, "MissingAuthenticationToken") => {
                "a proxy in between may change the URL: reach Heat's CloudFormation API directly".to_owned()
            }
            (403, _) => format!(
                "the server's keys were revoked, or the stack was deleted or suspended, or path names a resource other than this server ({resource}): \
                 update the stack, or correct [cfn] in os-collect-config.conf"
            ),
            (404, _) => "metadata_url does not lead to Heat's CloudFormation API (http://HOST:8000/v1/): correct it".to_owned(),
            (500, _) => "look at the log of heat-api-cfn; Heat also answers so to an access key that no longer exists".to_owned(),
            (502..=504 | 429, _) => "Heat's API or the balancer before it is overloaded or down; it is tried again".to_owned(),
            _ => "check that metadata_url leads to Heat's CloudFormation API".to_owned(),
        };
        Error::new(kind, format!("Heat answered {status} {said}")).remedy(remedy)
    }
}

/// The object that a path names in an answer.
fn metadata(body: &[u8], path: &str) -> Result<Map<String, Value>> {
    if body.trim_ascii_start().starts_with(b"<") {
        return Err(Error::permanent("Heat answers XML, wanted JSON")
            .rule("heat-protocol.md 2.3: ContentType=JSON")
            .remedy("check that metadata_url leads to heat-api-cfn itself and that no proxy answers in its place"));
    }
    let answer = document::parse(body)?;
    let detail =
        answer.pointer("/DescribeStackResourceResponse/DescribeStackResourceResult/StackResourceDetail").ok_or_else(|| {
            Error::permanent("the answer is not that of DescribeStackResource")
                .rule("heat-protocol.md 2.3")
                .remedy("check that metadata_url leads to Heat's CloudFormation API")
        })?;
    let mut keys = path.split('.').skip(1);
    let field = keys.next().unwrap_or("Metadata");
    let none = |key: &str| {
        Error::permanent(format!("the answer has no {} ({})", escaped(&shortened(key, 80)), escaped(&shortened(path, 80))))
    };
    let field = detail.get(field).ok_or_else(|| none(field))?;
    // Some releases give the object as text.
    let owned = field.as_str().map(|text| document::parse(text.as_bytes())).transpose()?;
    let mut at = owned.as_ref().unwrap_or(field);
    for key in keys {
        at = at.get(key).ok_or_else(|| none(key))?;
    }
    match at {
        Value::Object(map) => Ok(map.clone()),
        other => Err(document::not_an_object(document::kind(other))),
    }
}

/// Code and first line of the message of an error answer, which is XML whatever was asked for.
fn aws_error(body: &[u8]) -> (String, String) {
    let text = String::from_utf8_lossy(body);
    let between = |start: &str, end: &str| {
        let (_, rest) = text.split_once(start)?;
        Some(rest.split_once(end).map_or(rest, |(inner, _)| inner).to_owned())
    };
    let json = || serde_json::from_slice::<Value>(body).ok();
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
    use crate::collect::local::Boot;

    fn complete() -> Value {
        json!({"os-collect-config": {"cfn": {"metadata_url": "http://h:8000/v1/", "access_key_id": "A", "secret_access_key": "hush",
            "stack_name": "s", "path": "srv.Metadata"}}})
    }

    fn learnt(document: &Value) -> Learnt {
        let mut learnt = Learnt::default();
        learnt.overlay_document(document.as_object().unwrap());
        learnt
    }

    #[test]
    fn settings_are_learnt_and_later_ones_win_unless_they_say_nothing() {
        let mut files = LocalFiles::default();
        files.boot = Some(Ok(Boot { document: complete().as_object().unwrap().clone(), ..Boot::default() }));
        files.config = OsCollectConfig::parse(b"[cfn]\nstack_name = t\nmetadata_url =\npath = a.Metadata\npath = b.Metadata\n");
        files.hint = Some("http://hint:8000".into());
        let endpoint = Learnt::from_files(&files).endpoint().unwrap().unwrap();
        assert_eq!(endpoint.place(), "http://h:8000/v1/ stack t a.Metadata b.Metadata");
        files.boot = None;
        files.config =
            OsCollectConfig::parse(b"[cfn]\nstack_name = t\naccess_key_id = A\nsecret_access_key = $x\npath = a.Metadata\n");
        for hint in ["http://hint:8000", "http://hint:8000/v1/", "http://hint:8000/v1"] {
            files.hint = Some(hint.into());
            let endpoint = Learnt::from_files(&files).endpoint().unwrap().unwrap();
            assert_eq!((endpoint.metadata_url.as_str(), endpoint.keys.secret.as_str()), ("http://hint:8000/v1/", "$x"));
        }
        let mut learnt = learnt(&complete());
        let before = learnt.digest();
        learnt.overlay_document(
            json!({"os-collect-config": {"cfn": {"access_key_id": null, "path": "", "stack_name": 7}}}).as_object().unwrap(),
        );
        assert_eq!(learnt.digest(), before);
        learnt.overlay_document(
            json!({"os-collect-config": {"cfn": {"secret_access_key": "new", "path": ["x.Metadata", "y.Metadata"]}}})
                .as_object()
                .unwrap(),
        );
        assert_ne!(learnt.digest(), before);
        assert_eq!(learnt.endpoint().unwrap().unwrap().paths, ["x.Metadata", "y.Metadata"]);
        assert!(!format!("{learnt:?}").contains("new"));
    }

    #[test]
    fn half_a_configuration_is_a_failure_and_none_is_silence() {
        assert_eq!(Learnt::default().endpoint().unwrap(), None);
        assert_eq!(
            learnt(&json!({"os-collect-config": {"cfn": {"metadata_url": null, "path": null}}})).endpoint().unwrap(),
            None
        );
        assert_eq!(learnt(&json!({"os-collect-config": []})).endpoint().unwrap(), None);
        for (key, value, words) in [
            ("metadata_url", json!(null), "lack metadata_url"),
            ("stack_name", json!(""), "lack stack_name"),
            ("secret_access_key", json!({}), "lack secret_access_key"),
            ("path", json!(null), "lack path"),
            ("path", json!("srv"), "path srv of cfn is not Resource.Metadata"),
            ("path", json!([".Metadata"]), "is not Resource.Metadata"),
        ] {
            let mut document = complete();
            document["os-collect-config"]["cfn"][key] = value;
            let error = learnt(&document).endpoint().unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
            assert!(error.suggested_remedy().is_some());
        }
    }

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
            (answer(json!("")), "s.Metadata", "ends too early"),
            (answer(json!(null)), "s.Metadata", "is null, wanted an object"),
            (answer(json!([1])), "s.Metadata", "is a list"),
            (answer(object.clone()), "s.Metadata.none", "has no none"),
            (answer(object.clone()), "s.Metadata.sub.l.0", "has no 0"),
            (answer(object.clone()), "s.Description", "has no Description"),
            ("{}".to_owned(), "s.Metadata", "not that of DescribeStackResource"),
            (" <DescribeStackResourceResponse/>".to_owned(), "s.Metadata", "answers XML, wanted JSON"),
            ("7".to_owned(), "s.Metadata", "not that of DescribeStackResource"),
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
