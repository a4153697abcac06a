//! A server on the loopback that does what its script says, for tests of everything that speaks HTTP.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;

use crate::clock::Clock;

/// What the server does with one request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Answers with this status line, header lines and body, and keeps the connection.
    Answer(&'static str, Vec<String>, Vec<u8>),
    /// Promises this many bytes, sends the given ones and closes.
    Cut(usize, Vec<u8>),
    /// Sends these bytes in place of an answer and closes.
    Raw(Vec<u8>),
    /// Sends these bytes, then this one again and again.
    Endless(Vec<u8>, u8),
    /// Sends these bytes, then a blank after each pause.
    Drip(Vec<u8>, Duration),
    /// Closes without a word.
    Close,
    /// Waits before it goes on.
    Slow(Duration, Box<Act>),
    /// Waits until the test lets it go on.
    Held(Arc<Notify>, Box<Act>),
}

/// 200 with a body.
pub(crate) fn ok(body: impl Into<Vec<u8>>) -> Act {
    Act::Answer("200 OK", Vec::new(), body.into())
}

/// A failure with a body.
pub(crate) fn status(line: &'static str, body: impl Into<Vec<u8>>) -> Act {
    Act::Answer(line, Vec::new(), body.into())
}

/// Keystone's answer: a token for four hours, with Heat at `base`.
pub(crate) fn token(name: &str, base: &str) -> Act {
    token_to(name, "orchestration", &format!("{base}/v1/p"))
}

/// The same with Zaqar at `base`.
pub(crate) fn zaqar_token(name: &str, base: &str) -> Act {
    token_to(name, "messaging", &format!("{base}/v2"))
}

fn token_to(name: &str, service: &str, url: &str) -> Act {
    let endpoint = json!({"interface": "public", "region": "One", "region_id": "One", "url": url});
    let (issued, expires) = ("2026-11-21T09:03:26.000000Z", "2026-11-21T13:03:26.000000Z");
    let services = json!([{"type": service, "endpoints": [endpoint]}]);
    let body = json!({"token": {"issued_at": issued, "expires_at": expires, "catalog": services}});
    Act::Answer("201 CREATED", vec![format!("X-Subject-Token: {name}")], body.to_string().into_bytes())
}

/// The server; it ends with the test's runtime.
#[derive(Debug)]
pub(crate) struct Fake {
    /// `http://127.0.0.1:PORT` or `https://…`.
    pub(crate) base: String,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    script: Vec<Act>,
    requests: Vec<String>,
    connections: usize,
    /// Bytes of [`Act::Endless`] that somebody took.
    bytes_sent: usize,
    identity: Option<Arc<ServerConfig>>,
}

impl Fake {
    /// Starts with a script, one act a request; the last one is repeated.
    pub(crate) async fn start(script: Vec<Act>) -> Self {
        Self::listen("http", State { script, ..State::default() }).await
    }

    /// The same over TLS.
    pub(crate) async fn start_tls(script: Vec<Act>, identity: Arc<ServerConfig>) -> Self {
        Self::listen("https", State { script, identity: Some(identity), ..State::default() }).await
    }

    async fn listen(scheme: &str, state: State) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("{scheme}://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let identity = {
                    let mut state = shared.lock().unwrap();
                    state.connections += 1;
                    state.identity.clone()
                };
                let state = Arc::clone(&shared);
                tokio::spawn(async move {
                    match identity {
                        None => serve(stream, state).await,
                        Some(identity) => {
                            if let Ok(stream) = TlsAcceptor::from(identity).accept(stream).await {
                                serve(stream, state).await;
                            }
                        }
                    }
                });
            }
        });
        Self { base, state }
    }

    /// Shows this identity from the next connection on; `None` speaks no TLS at all.
    pub(crate) fn present(&self, identity: Option<Arc<ServerConfig>>) {
        self.state.lock().unwrap().identity = identity;
    }

    /// Replaces what is left of the script.
    pub(crate) fn play(&self, script: Vec<Act>) {
        self.state.lock().unwrap().script = script;
    }

    /// All requests so far: head and body as they came.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.clone()
    }

    /// How many connections were made.
    pub(crate) fn connections(&self) -> usize {
        self.state.lock().unwrap().connections
    }

    /// How much of endless bodies was taken.
    pub(crate) fn bytes_sent(&self) -> usize {
        self.state.lock().unwrap().bytes_sent
    }
}

/// A CA that lives as long as a test.
pub(crate) struct TestCa(CertifiedIssuer<'static, KeyPair>);

impl TestCa {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// What clients need to believe it.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A server's identity for a name or address, good from one year to another.
    pub(crate) fn identity(&self, name: &str, years: (i32, i32)) -> Arc<ServerConfig> {
        self.server(name, years, None)
    }

    /// The same of one that talks only to clients of a CA.
    pub(crate) fn identity_for_clients_of(&self, clients: &Self) -> Arc<ServerConfig> {
        self.server("127.0.0.1", (2020, 2100), Some(clients))
    }

    /// A client's certificate and its key in PKCS#8, as PEM.
    pub(crate) fn client(&self, name: &str) -> (String, String) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    fn server(&self, name: &str, years: (i32, i32), clients: Option<&Self>) -> Arc<ServerConfig> {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(years.0, 1, 1), date_time_ymd(years.1, 1, 1));
        let key = KeyPair::generate().unwrap();
        let chain = vec![params.signed_by(&key, &self.0).unwrap().der().clone()];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions().unwrap();
        let config = match clients {
            None => config.with_no_client_auth(),
            Some(ca) => {
                let mut roots = RootCertStore::empty();
                roots.add(ca.0.der().clone()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
                config.with_client_cert_verifier(verifier)
            }
        };
        Arc::new(config.with_single_cert(chain, key).unwrap())
    }
}

async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, state: Arc<Mutex<State>>) {
    while let Some(request) = read_request(&mut stream).await {
        let mut act = {
            let mut state = state.lock().unwrap();
            state.requests.push(request);
            if state.script.len() > 1 { state.script.remove(0) } else { state.script[0].clone() }
        };
        loop {
            act = match act {
                Act::Slow(pause, next) => {
                    Clock::system().wait(pause).await;
                    *next
                }
                Act::Held(until, next) => {
                    until.notified().await;
                    *next
                }
                _ => break,
            };
        }
        if !play(&mut stream, act, &state).await {
            return;
        }
    }
}

/// `false` where the connection is to end.
async fn play(stream: &mut (impl AsyncWrite + Unpin), act: Act, state: &Mutex<State>) -> bool {
    match act {
        Act::Answer(line, headers, body) => {
            let headers: String = headers.iter().flat_map(|header| [header.as_str(), "\r\n"]).collect();
            let head = format!("HTTP/1.1 {line}\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
            // In one piece: two would wait for each other's acknowledgement.
            let sent = stream.write_all(&[head.as_bytes(), &body].concat()).await.is_ok() && stream.flush().await.is_ok();
            sent && !head.contains("Connection: close")
        }
        Act::Cut(promised, body) => {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {promised}\r\n\r\n");
            let _gone = stream.write_all(&[head.as_bytes(), &body].concat()).await;
            false
        }
        Act::Raw(bytes) => {
            let _gone = stream.write_all(&bytes).await;
            false
        }
        Act::Endless(begin, byte) => {
            let _gone = stream.write_all(&begin).await;
            let piece = [byte; 4096];
            while let Ok(n) = stream.write(&piece).await {
                state.lock().unwrap().bytes_sent += n;
            }
            false
        }
        Act::Drip(begin, pause) => {
            let mut gone = stream.write_all(&begin).await.is_err();
            while !gone {
                Clock::system().wait(pause).await;
                gone = stream.write_all(b" ").await.is_err();
            }
            false
        }
        Act::Close | Act::Slow(..) | Act::Held(..) => false,
    }
}

async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        if bytes.first() == Some(&0x16) {
            // TLS where none is spoken: servers answer that with a complaint in plain text.
            return Some(String::new());
        }
        if let Some(end) = bytes.windows(4).position(|part| part == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
            let length =
                head.lines().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |length| length.parse().unwrap());
            if bytes.len() >= end + 4 + length {
                return Some(String::from_utf8_lossy(&bytes).into_owned());
            }
        }
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return None,
            Ok(n) => bytes.extend_from_slice(&buffer[..n]),
        }
    }
}
