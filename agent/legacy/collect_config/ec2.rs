//! The source `ec2`: the metadata service of EC2, directory by directory (heat-protocol.md 2.2).

use std::pin::Pin;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::clock::Clock;
use crate::error::{Context, Error, Result};
use crate::http::{Http, Request, redacted};

/// Where the service is.
pub(super) const USUAL: &str = "http://169.254.169.254/latest/meta-data";

/// What one walk may ask and keep: a service that leads in a circle ends it.
const REQUESTS: usize = 500;
const BYTES: usize = 1024 * 1024;
const DEPTH: usize = 16;

/// The time limits of so many requests are that of a walk.
const WALK: u32 = 6;

/// One walk.
struct Walk<'a> {
    http: &'a Http,
    deadline: Duration,
    requests: usize,
    bytes: usize,
}

/// Everything that the service has.
///
/// # Errors
/// If anything cannot be fetched, or there is more than an instance's metadata can be.
pub(super) async fn metadata(http: &Http, clock: &Clock, url: &str, deadline: Duration) -> Result<Value> {
    let mut walk = Walk { http, deadline, requests: REQUESTS, bytes: BYTES };
    let found = clock.limit(deadline * WALK, walk.at(format!("{url}/"), DEPTH)).await;
    let found = found.unwrap_or_else(|| Err(Error::transient("the service answers too slowly")));
    found.context(|| format!("reading {}", redacted(url)))
}

impl Walk<'_> {
    /// A directory, where the URL ends with a slash; else the text of a value.
    fn at(&mut self, url: String, depth: usize) -> Pin<Box<dyn Future<Output = Result<Value>> + '_>> {
        Box::pin(async move {
            let text = self.text(&url).await?;
            if !url.ends_with('/') {
                return Ok(Value::String(text));
            }
            let depth = depth.checked_sub(1).ok_or_else(|| Error::permanent("the directories of the service have no end"))?;
            let mut members = Map::new();
            for entry in text.split('\n').filter(|entry| !entry.is_empty()) {
                // A key of SSH is listed as NUMBER=NAME.
                let entry = entry.split_once('=').map_or(entry.to_owned(), |(number, _)| format!("{number}/"));
                let value = self.at(format!("{url}{}", in_url(&entry)), depth).await?;
                members.insert(entry.strip_suffix('/').unwrap_or(&entry).to_owned(), value);
            }
            Ok(Value::Object(members))
        })
    }

    async fn text(&mut self, url: &str) -> Result<String> {
        self.requests = self.requests.checked_sub(1).ok_or_else(|| Error::permanent("the service has too many entries"))?;
        let mut request = Request::new("GET", url, self.deadline);
        request.body_limit = self.bytes;
        let response = self.http.request(request).await?;
        if !response.is_success() {
            return Err(Error::transient(format!("the service answered {}", response.status)));
        }
        self.bytes = self.bytes.saturating_sub(response.body.len());
        Ok(String::from_utf8_lossy(&response.body).into_owned())
    }
}

/// An entry as a part of a URL: what may not stand there as its bytes (RFC 3986, 2.1).
fn in_url(entry: &str) -> String {
    let part = |byte: u8| if byte.is_ascii_graphic() { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    entry.bytes().map(part).collect()
}
