//! Asks services over HTTP how they are.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::Prober;
use crate::clock::patience;
use crate::desired::ClientIdentity;
use crate::error::{Error, Result};
use crate::http::{Http, Request, Response};

/// A healthy service answers a question about its health at once.
const DEADLINE: Duration = patience(Duration::from_secs(5));
/// An answer about health is short; more is not read.
const ANSWER_LIMIT: usize = 1024 * 1024;

impl Prober for Http {
    async fn get_json(&self, url: &str, identity: Option<&ClientIdentity>) -> Result<Value> {
        // Derived anew at each question: certificates change.
        let derived = identity.map(|identity| self.with_identity(identity));
        let response = derived.as_ref().unwrap_or(self).request(question(url)).await?;
        json(&response, url)
    }

    async fn get_text(&self, url: &str, authority: Option<&str>, identity: Option<&ClientIdentity>) -> Result<String> {
        let derived = match (identity, authority) {
            (Some(identity), _) => Some(self.with_identity(identity)),
            (None, authority) => authority.map(|file| self.believing(file)),
        };
        let response = derived.as_ref().unwrap_or(self).request(question(url)).await?;
        if !(200..300).contains(&response.status) {
            return Err(Error::transient(format!("{url} answered {}", response.status)));
        }
        Ok(String::from_utf8_lossy(&response.body).into_owned())
    }

    async fn docker(&self, socket: &str, path: &str) -> Result<Value> {
        let url = format!("http://localhost{path}");
        let response = self.over_unix_socket(Path::new(socket)).request(question(&url)).await?;
        json(&response, path)
    }

    async fn connect(&self, socket: &str) -> Result<()> {
        let connected = tokio::net::UnixStream::connect(socket).await;
        connected.map(drop).map_err(|error| Error::transient(format!("connecting to {socket}: {error}")))
    }
}

/// On a connection of its own: whether a service accepts one is part of how it is, and one that is kept open takes 20 KB for as long as the
/// node is measured.
fn question(url: &str) -> Request<'_> {
    let mut request = Request::new("GET", url, DEADLINE).header("connection", "close");
    request.body_limit = ANSWER_LIMIT;
    request
}

/// The JSON of an answer; docker's /_ping answers plain text, which is taken as a string.
fn json(response: &Response, asked: &str) -> Result<Value> {
    if !(200..300).contains(&response.status) {
        return Err(Error::transient(format!("{asked} answered {}", response.status)).with_status(response.status));
    }
    let text = String::from_utf8_lossy(&response.body);
    Ok(crate::budgets::json::small(&response.body).unwrap_or_else(|| Value::String(text.into_owned())))
}
