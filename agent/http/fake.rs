//! A server on the loopback that does what its script says, for tests of everything that speaks HTTP.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::clock::Clock;

/// What the server does with one request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Answers with this status line, header lines and body, and keeps the connection.
    Answer(&'static str, Vec<String>, Vec<u8>),
    /// Promises this many bytes, sends the given ones and closes.
    Cut(usize, Vec<u8>),
    /// Sends a body without end.
    Endless,
    /// Closes without a word.
    Close,
    /// Waits before it goes on.
    Slow(Duration, Box<Act>),
}

/// 200 with a body.
pub(crate) fn ok(body: impl Into<Vec<u8>>) -> Act {
    Act::Answer("200 OK", Vec::new(), body.into())
}

/// A failure with a body.
pub(crate) fn status(line: &'static str, body: impl Into<Vec<u8>>) -> Act {
    Act::Answer(line, Vec::new(), body.into())
}

/// The server; it ends with the test's runtime.
#[derive(Debug)]
pub(crate) struct Fake {
    /// `http://127.0.0.1:PORT`.
    pub(crate) base: String,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    script: Vec<Act>,
    requests: Vec<String>,
    connections: usize,
}

impl Fake {
    /// Starts with a script, one act a request; the last one is repeated.
    pub(crate) async fn start(script: Vec<Act>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State { script, ..State::default() }));
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                shared.lock().unwrap().connections += 1;
                tokio::spawn(serve(stream, Arc::clone(&shared)));
            }
        });
        Self { base, state }
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
}

async fn serve(mut stream: TcpStream, state: Arc<Mutex<State>>) {
    while let Some(request) = read_request(&mut stream).await {
        let mut act = {
            let mut state = state.lock().unwrap();
            state.requests.push(request);
            if state.script.len() > 1 { state.script.remove(0) } else { state.script[0].clone() }
        };
        while let Act::Slow(pause, next) = act {
            Clock::system().wait(pause).await;
            act = *next;
        }
        if !play(&mut stream, act).await {
            return;
        }
    }
}

/// `false` where the connection is to end.
async fn play(stream: &mut TcpStream, act: Act) -> bool {
    match act {
        Act::Answer(line, headers, body) => {
            let headers: String = headers.iter().flat_map(|header| [header.as_str(), "\r\n"]).collect();
            let head = format!("HTTP/1.1 {line}\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
            // In one piece: two would wait for each other's acknowledgement.
            stream.write_all(&[head.as_bytes(), &body].concat()).await.is_ok()
        }
        Act::Cut(promised, body) => {
            let _gone = stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {promised}\r\n\r\n").as_bytes()).await;
            let _gone = stream.write_all(&body).await;
            false
        }
        Act::Endless => {
            let _gone = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
            while stream.write_all(&[b' '; 4096]).await.is_ok() {}
            false
        }
        Act::Close | Act::Slow(..) => false,
    }
}

async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
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
