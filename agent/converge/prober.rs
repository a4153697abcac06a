//! Asks services over HTTP how they are.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::Prober;
use crate::clock::patience;
use crate::desired::ClientIdentity;
use crate::error::{ConnectFailure, Error, Result};
use crate::http::{Http, Request, Response};

/// A healthy service answers a question about its health at once.
const DEADLINE: Duration = patience(Duration::from_secs(5));
/// An answer about health is short; more is not read.
const ANSWER_LIMIT: usize = 1024 * 1024;
/// What a client of HTTP/2, and so of gRPC, says first: the preface and SETTINGS without any (RFC 9113 3.4). The server's own SETTINGS are its
/// first answer.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Bytes of the head of a frame, of which the fourth is its type.
const FRAME_HEAD: usize = 9;
const SETTINGS: u8 = 4;

impl Prober for Http {
    async fn get_json(&self, url: &str, identity: Option<&ClientIdentity>) -> Result<Value> {
        // Derived anew at each question: certificates change.
        let derived = identity.map(|identity| self.with_identity(identity));
        let response = derived.as_ref().unwrap_or(self).request(question(url)).await?;
        json(&response, url)
    }

    async fn get_text(&self, url: &str, ca: Option<&str>, identity: Option<&ClientIdentity>) -> Result<String> {
        let derived = match (identity, ca) {
            (Some(identity), _) => Some(self.with_identity(identity)),
            (None, ca) => ca.map(|file| self.believing(file)),
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

    async fn answers_grpc(&self, socket: &str) -> Result<()> {
        let doing = |what: &str, error: std::io::Error| Error::transient(format!("{what} {socket}: {error}"));
        let mut stream = UnixStream::connect(socket).await.map_err(|error| match error.kind() {
            // Nobody takes the connections that wait: unix(7), EAGAIN.
            std::io::ErrorKind::WouldBlock => {
                Error::transient(format!("{socket} takes no more connections")).with_connect_failure(ConnectFailure::Silence)
            }
            _ => doing("connecting to", error),
        })?;
        // The kernel accepts connections of a process that hangs.
        let mut head = [0; FRAME_HEAD];
        stream.write_all(PREFACE).await.map_err(|error| doing("asking", error))?;
        stream.read_exact(&mut head).await.map_err(|error| doing("asking", error))?;
        if head.get(3) != Some(&SETTINGS) {
            return Err(Error::transient(format!("what answers at {socket} does not speak gRPC")));
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::sync::Arc;

    use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
    use tokio::net::UnixListener;

    use super::*;
    use crate::clock::Clock;
    use crate::files::Tree;
    use crate::http::Tls;

    /// Asks a service that reads the preface and then says this; nothing where it has not answered for a while.
    async fn asked(answer: &'static [u8]) -> Option<Result<()>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut preface = vec![0; PREFACE.len()];
            stream.read_exact(&mut preface).await.unwrap();
            assert_eq!(preface, PREFACE);
            stream.write_all(answer).await.unwrap();
            if answer.is_empty() {
                std::future::pending::<()>().await;
            }
        });
        let http = Http::new(Tls::default(), Arc::new(Tree::open(dir.path()).unwrap()), Clock::system());
        let answer = Clock::system().limit(Duration::from_millis(500), http.answers_grpc(path.to_str().unwrap())).await;
        serving.abort();
        answer
    }

    #[tokio::test]
    async fn a_service_that_takes_no_more_connections_does_not_answer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let listener = socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).unwrap();
        bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let http = Http::new(Tls::default(), Arc::new(Tree::open(dir.path()).unwrap()), Clock::system());
        let _first = UnixStream::connect(&path).await.unwrap();
        let error = http.answers_grpc(path.to_str().unwrap()).await.unwrap_err();
        assert!(matches!(error.connect_failure(), Some(ConnectFailure::Silence)), "{error:?}");
        assert!(error.to_string().contains("takes no more connections"), "{error}");
    }

    #[tokio::test]
    async fn a_service_that_accepts_a_connection_and_says_nothing_does_not_answer() {
        assert!(asked(b"\0\0\x06\x04\0\0\0\0\0\0\x05\0\0\x40\0").await.unwrap().is_ok());
        assert!(asked(b"").await.is_none());
        for (answer, cause) in [(&b"HTTP/1.1 400 Bad Request\r\n"[..], "does not speak gRPC"), (&b"\0\0"[..], "asking")] {
            let error = asked(answer).await.unwrap().unwrap_err();
            assert!(error.to_string().contains(cause), "{error}");
        }
    }
}
