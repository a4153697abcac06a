//! The source `request`: an object that Heat puts into Swift at each change, behind a signed URL (POLL_TEMP_URL,
//! heat-protocol.md 2.5).

use super::document;
use super::poll::{FetchedDocument, PollCache, Tools, refusal};
use super::section::{DEPLOYMENT_KEY, Section};
use crate::digest;
use crate::error::{Error, Result};
use crate::http::{Request, Response, redacted};

pub(super) const KEYS: &[&str] = &["metadata_url", "ca_certificate", DEPLOYMENT_KEY];

/// Those that it cannot do without.
pub(super) const NEEDED: [&str; 1] = ["metadata_url"];

/// Whom to ask.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct TempUrlEndpoint {
    /// Whoever has it can read the metadata.
    url: String,
    pub(super) ca: Option<String>,
}

impl std::fmt::Debug for TempUrlEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.place())
    }
}

impl TempUrlEndpoint {
    pub(super) fn new(section: &Section) -> Option<Self> {
        let url = section.get("metadata_url")?.to_owned();
        Some(Self { url, ca: section.get("ca_certificate").map(str::to_owned) })
    }

    /// Where the object is.
    pub(super) fn address(&self) -> &str {
        &self.url
    }

    pub(super) fn place(&self) -> String {
        redacted(&self.url)
    }

    pub(super) async fn fetch(&self, tools: &Tools, memory: &mut PollCache) -> Result<FetchedDocument> {
        // By default Swift answers with the first copy that it finds, which may lag behind the others.
        let mut request = Request::new("GET", &self.url, tools.deadline).header("x-newest", "true");
        if let Some((name, value)) = &memory.condition {
            request = request.header(name, value);
        }
        let conditional = memory.condition.is_some();
        let response = tools.http.request(request).await?;
        match response.status {
            200 => {}
            304 if conditional => return Ok(None),
            _ => return Err(refused(&response)),
        }
        let raw = digest::hex(&response.body);
        let same = memory.raw.as_ref() == Some(&raw);
        memory.raw = Some(raw);
        // One of the two: Swift answers 304 as soon as either holds, and dates go by whole seconds.
        let condition = |name, header| Some((name, response.header(header)?.to_owned()));
        memory.condition = condition("if-none-match", "etag").or_else(|| condition("if-modified-since", "last-modified"));
        Ok(if same { None } else { Some(Box::new(move || document::object(&response.body))) })
    }
}

fn refused(response: &Response) -> Error {
    let remedy = match response.status {
        401 | 403 => {
            "the URL has expired, or the key that signed it (Temp-URL-Key of the account) was changed: update the stack, so that \
             the server gets a new one"
        }
        404 => {
            "the object was deleted, with its stack or by hand: check `openstack stack show STACK`; updating the stack writes it again"
        }
        408 | 429 | 500.. => "Swift or its proxy is overloaded or down; the agent retries",
        _ => "check that metadata_url leads to the object that Heat wrote",
    };
    refusal(response, "the object store", "", remedy)
}
