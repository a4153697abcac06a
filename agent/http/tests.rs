//! The client against a scripted server.

use std::io::Write;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::fake::{Act, Fake, TestCa, ok, status};
use super::*;
use crate::budgets::CA_FILE;
use crate::error::ErrorKind;
use crate::files::Attributes;

/// A net: nobody waits for it.
const LIMIT: Duration = Duration::from_mins(2);

fn client() -> (tempfile::TempDir, Http) {
    with(Tls::default())
}

fn with(tls: Tls) -> (tempfile::TempDir, Http) {
    let dir = tempfile::tempdir().unwrap();
    let root = Arc::new(Tree::open(dir.path()).unwrap());
    (dir, Http::new(tls, root, Clock::system()))
}

#[tokio::test]
async fn the_request_goes_out_as_it_was_written_over_one_connection() {
    let fake = Fake::start(vec![ok("{}")]).await;
    let (_dir, http) = client();
    let path = "/v1/signal/arn%3Aopenstack%3Aheat%3A%3Ax/my%2520stack/a%2F%2Fb//c?t=a+b%2Bc&Signature=%3D";
    let url = format!("{}{path}", fake.base);
    let response = http.request(Request::new("POST", &url, LIMIT).json(b"{\"status\": 0}".to_vec())).await.unwrap();
    assert!(response.is_success());
    http.request(Request::new("GET", &url, LIMIT).header("x-auth-token", "t")).await.unwrap();
    let requests = fake.requests();
    assert!(requests[0].starts_with(&format!("POST {path} HTTP/1.1\r\n")), "{}", requests[0]);
    let head = requests[0].to_lowercase();
    assert!(
        head.contains("content-length: 13\r\n") && !head.contains("transfer-encoding") && !head.contains("accept-encoding"),
        "{head}"
    );
    assert!(head.contains("content-type: application/json\r\n") && head.contains("user-agent: heat-node-agent/"), "{head}");
    assert!(head.contains(&format!("host: {}\r\n", fake.base.trim_start_matches("http://"))), "{head}");
    assert!(requests[0].ends_with("{\"status\": 0}"));
    assert!(requests[1].to_lowercase().contains("x-auth-token: t\r\n"));
    assert_eq!(fake.connections(), 1);
}

/// Attack: tokens and signatures that a server or a proxy repeated in its error stood in the journal and in the status.
#[tokio::test]
async fn what_a_server_repeats_of_the_request_in_an_error_is_hidden() {
    // The last: as a Basic header says user and password.
    let echo = "<Message>token-0123456 0a1b2c3d4e5f a/b+c=d%2F a/b c=d/ s3cret-pass x dXNlcjpzM2NyZXQtcGFzcw==</Message>";
    let fake = Fake::start(vec![status("403 Forbidden", echo), ok(echo)]).await;
    let (_dir, http) = client();
    let base = fake.base.replace("://", "://user:s3cret-pass@");
    let url = format!("{base}/v1/signal?temp_url_sig=0a1b2c3d4e5f&Signature=a/b+c=d%2F&x=x");
    for expected in ["<Message>****** ****** ****** ****** ****** x ******==</Message>", echo] {
        let response = http.request(Request::new("GET", &url, LIMIT).header("x-auth-token", "token-0123456")).await.unwrap();
        assert_eq!(String::from_utf8(response.body).unwrap(), expected);
    }
}

/// Attack: hiding what an error of 3 MB repeats took 144 MB.
#[tokio::test]
async fn an_error_is_read_as_far_as_it_is_of_use_and_keeps_its_status() {
    let endless = Act::Endless(b"HTTP/1.1 502 Bad Gateway\r\n\r\n".to_vec(), b'%');
    let fake = Fake::start(vec![status("503 Busy", "x".repeat(3 << 20)), endless, status("500 Broken", "short")]).await;
    let (_dir, http) = client();
    let url = format!("{}/?Signature=0a1b2c3d4e5f", fake.base);
    for (code, length) in [(503, 64 * 1024), (502, 64 * 1024), (500, 5)] {
        let response = http.request(Request::new("GET", &url, LIMIT)).await.unwrap();
        assert_eq!((response.status, response.body.len()), (code, length));
    }
}

/// Attack: a password that Keystone repeated in another form was shown, and so was a signature in an address that cannot be called.
#[tokio::test]
async fn secrets_of_the_body_and_places_that_cannot_be_called_are_hidden() {
    let moved = |location: &str| Act::Answer("302 Found", vec![format!("Location: {location}")], Vec::new());
    let long = format!("/{}", "x".repeat(9000));
    let fake = Fake::start(vec![
        status("400 Bad Request", "sent pa%73s-word/1, pass-word\\/1 and pass-wor..."),
        moved("/login/0a1b2c3d4e5f#top"),
        moved("ftp://other.example/0a1b2c3d4e5f"),
        moved(&long),
    ])
    .await;
    let (_dir, http) = client();
    let url = format!("{}/v3?Signature=0a1b2c3d4e5f", fake.base);
    let mut request = Request::new("POST", &url, LIMIT).json(b"{}".to_vec());
    request.secrets = vec!["pass-word/1"];
    let response = http.request(request).await.unwrap();
    assert_eq!(String::from_utf8(response.body).unwrap(), "sent ******, ****** and ******...");
    for words in ["which cannot be called", "which cannot be called", "9001 bytes; at most 8192 are followed"] {
        let error = http.request(Request::new("GET", &url, LIMIT)).await.unwrap_err().to_string();
        assert!(error.contains(words) && !error.contains("0a1b2c3d4e5f"), "{error}");
    }
}

/// Attack: a signature that stood in the path of a place that an answer led to, or in the text of an answer that led nowhere, was shown.
#[tokio::test]
async fn what_an_answer_repeats_that_leads_elsewhere_is_hidden_too() {
    let answer =
        |line, location: &str, body: &str| Act::Answer(line, vec![format!("Location: {location}")], body.as_bytes().to_vec());
    let reported = "moved, Signature=0a1b2c3d4e5f";
    let fake = Fake::start(vec![
        answer("302 Found", "http://other.example.org/to/0A1B2C3D4E5F/x", reported),
        answer("301 Moved Permanently", "/to", reported),
        answer("307 Temporary Redirect", "/to", reported),
        status("403 Forbidden", reported),
    ])
    .await;
    let (_dir, http) = client();
    let url = format!("{}/v1/signal?Signature=0a1b2c3d4e5f", fake.base);
    let error = http.request(Request::new("GET", &url, LIMIT)).await.unwrap_err();
    assert!(error.to_string().contains("redirected to http://other.example.org/to/******/x"), "{error}");
    for method in ["PUT", "GET"] {
        let response = http.request(Request::new(method, &url, LIMIT)).await.unwrap();
        assert_eq!(String::from_utf8(response.body).unwrap(), "moved, Signature=******", "{method}");
    }
}

#[tokio::test]
async fn every_status_is_an_answer() {
    for (line, code) in
        [("204 No Content", 204), ("300 Multiple Choices", 300), ("403 AccessDenied", 403), ("500 InternalFailure", 500)]
    {
        let fake = Fake::start(vec![Act::Answer(line, vec!["Retry-After: 3".into()], b"why".to_vec())]).await;
        let (_dir, http) = client();
        let response = http.request(Request::new("GET", &fake.base, LIMIT)).await.unwrap();
        assert_eq!((response.status, response.retry_after()), (code, Some(Duration::from_secs(3))));
        assert_eq!(response.is_success(), code == 204);
    }
}

#[tokio::test]
async fn what_goes_wrong_is_said_in_words_and_without_secrets() {
    let elsewhere = || Act::Answer("302 Found", vec!["Location: http://elsewhere.example/?sig=hush".into()], Vec::new());
    let unencrypted = || Act::Answer("302 Found", vec!["Location: //127.0.0.1:1/x".into()], Vec::new());
    let back = || Act::Answer("307 Temporary Redirect", vec!["Location: /again".into()], Vec::new());
    for (act, kind, words) in [
        (Act::Cut(100, b"{".to_vec()), ErrorKind::Transient, "closed the connection before its answer was complete"),
        (Act::Close, ErrorKind::Transient, "127.0.0.1"),
        (Act::Endless(b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), b' '), ErrorKind::Permanent, "the answer is larger than 10000 bytes"),
        (ok(vec![b'x'; 10_001]), ErrorKind::Permanent, "the answer is larger than 10000 bytes"),
        (Act::Slow(LIMIT, Box::new(ok(""))), ErrorKind::Transient, "within 0.3 s"),
        (elsewhere(), ErrorKind::Permanent, "redirected to http://elsewhere.example/?…, which is not followed"),
        (unencrypted(), ErrorKind::Permanent, "redirected to http://127.0.0.1:1/x, which is not followed"),
        (back(), ErrorKind::Permanent, "more than 3 redirects"),
    ] {
        let fake = Fake::start(vec![act]).await;
        let (_dir, http) = client();
        let url = format!("{}/v1/?Signature=hush", fake.base);
        let limit = if words.starts_with("within") { Duration::from_millis(300) } else { LIMIT };
        let mut request = Request::new("GET", &url, limit);
        request.body_limit = 10_000;
        let error = http.request(request).await.unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(!error.lines().join("").contains("hush"), "{error}");
    }
}

/// The budgets count on it: a later hyper with another bound must be seen.
#[tokio::test]
async fn an_answers_head_is_bounded() {
    let answer = |head: String| Act::Raw(format!("HTTP/1.1 200 OK\r\n{head}content-length: 0\r\n\r\n").into_bytes());
    let line = |bytes: usize| format!("x: {}\r\n", "y".repeat(bytes));
    for (act, is_taken) in [
        (answer(line(300 << 10)), true),
        (answer(line(820 << 10)), false),
        (answer(line(9).repeat(90)), true),
        (answer(line(9).repeat(110)), false),
        (Act::Endless(b"HTTP/1.1 200 OK\r\nx: ".to_vec(), b'y'), false),
    ] {
        let fake = Fake::start(vec![act]).await;
        let (_dir, http) = client();
        let answer = http.request(Request::new("GET", &fake.base, LIMIT)).await;
        assert_eq!(answer.is_ok(), is_taken, "{answer:?}");
        if let Err(error) = answer {
            assert!(error.to_string().contains("408 KiB or more than 100 lines"), "{error}");
        }
    }
}

#[tokio::test]
async fn a_host_that_is_not_there_is_named() {
    let (_dir, http) = client();
    // Bound, so that nobody else gets the port, and nobody listens there.
    let bound = tokio::net::TcpSocket::new_v4().unwrap();
    bound.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let gone = bound.local_addr().unwrap();
    let error = http.request(Request::new("GET", &format!("http://{gone}/?s=hush"), LIMIT)).await.unwrap_err();
    assert_eq!((error.cause(), error.kind()), (format!("connection refused by {gone}").as_str(), ErrorKind::Transient));
    assert_eq!(error.to_string(), format!("GET http://{gone}/?…: connection refused by {gone}"));
    let error = http.request(Request::new("TRACE", "http://127.0.0.1/", LIMIT)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Permanent);
}

#[tokio::test]
async fn redirects_within_the_host_are_followed_but_never_turn_a_post_into_a_get() {
    let moved = |line| Act::Answer(line, vec!["Location: /there?x=%2F".into()], Vec::new());
    let (_dir, http) = client();
    let fake = Fake::start(vec![moved("301 Moved Permanently"), ok("found")]).await;
    assert_eq!(http.request(Request::new("GET", &fake.base, LIMIT)).await.unwrap().body, b"found");
    assert!(fake.requests()[1].starts_with("GET /there?x=%2F "));
    let fake = Fake::start(vec![moved("302 Found"), ok("found")]).await;
    assert_eq!(http.request(Request::new("POST", &fake.base, LIMIT).json(b"{}".to_vec())).await.unwrap().status, 302);
    let fake = Fake::start(vec![moved("308 Permanent Redirect"), status("200 OK", "found")]).await;
    http.request(Request::new("POST", &fake.base, LIMIT).json(b"{}".to_vec())).await.unwrap();
    assert!(fake.requests()[1].starts_with("POST /there") && fake.requests()[1].ends_with("{}"));
}

#[tokio::test]
async fn a_socket_is_spoken_to_whatever_the_url_says() {
    let (dir, http) = client();
    let path = dir.path().join("docker.sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = [0; 512];
        let _gone = stream.read(&mut head).await;
        let _gone = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK").await;
    });
    let response = http.over_unix_socket(&path).request(Request::new("GET", "http://localhost/_ping", LIMIT)).await.unwrap();
    assert_eq!(response.body, b"OK");
    let gone = http.over_unix_socket(&dir.path().join("none"));
    let error = gone.request(Request::new("GET", "http://localhost/_ping", LIMIT)).await.unwrap_err();
    assert!(error.cause().ends_with("/none does not exist"), "{error}");
}

#[tokio::test]
async fn certificates_are_verified_unless_settings_and_caller_both_say_otherwise() {
    let ca = TestCa::new("throw-away");
    let fake = Fake::start_tls(vec![ok("hi")], ca.identity("127.0.0.1", (2020, 2100))).await;
    let (pem, url) = (ca.pem(), format!("{}/?s=hush", fake.base));
    let (dir, http) = with(Tls { ca_file: Some("/ca.pem".into()), allow_insecure: false });
    let ask = |http: Http, insecure| {
        let url = url.clone();
        async move {
            let mut request = Request::new("GET", &url, LIMIT);
            request.insecure = insecure;
            http.request(request).await
        }
    };
    let error = ask(http.clone(), false).await.unwrap_err();
    assert!(error.to_string().contains("reading the certificate authorities in /ca.pem: no PEM certificate"), "{error}");
    let tree = Tree::open(dir.path()).unwrap();
    // The right file makes it work at the next try, without a restart.
    tree.write(Path::new("/ca.pem"), pem.as_bytes(), Attributes::mode(0o644)).unwrap();
    assert_eq!(ask(http.clone(), false).await.unwrap().body, b"hi");
    assert_eq!(ask(http, true).await.unwrap_err().kind(), ErrorKind::Refused);

    let (dir, unaware) = with(Tls { ca_file: None, allow_insecure: true });
    if let Err(error) = ask(unaware.clone(), false).await {
        assert_eq!(error.kind(), ErrorKind::Permanent, "{error}");
        assert!(error.suggested_remedy().unwrap().contains("ca_file"), "{error}");
        assert!(!error.lines().join("").contains("hush"));
    }
    assert_eq!(ask(unaware.clone(), true).await.unwrap().body, b"hi");
    Tree::open(dir.path()).unwrap().write(Path::new("/own.pem"), pem.as_bytes(), Attributes::mode(0o644)).unwrap();
    assert_eq!(ask(unaware.with_endpoint_ca(Path::new("/own.pem")), false).await.unwrap().body, b"hi");

    let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/", plain.local_addr().unwrap());
    std::thread::spawn(move || plain.accept().unwrap().0.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
    let error = unaware.with_endpoint_ca(Path::new("/own.pem")).request(Request::new("GET", &url, LIMIT)).await.unwrap_err();
    assert!(error.suggested_remedy().unwrap().contains("speaks https"), "{error}");
}

/// The SEC1 form of a PKCS#8 key on P-256: what the latter wraps.
fn sec1(pkcs8: &str) -> String {
    let lines: String = pkcs8.lines().filter(|line| !line.starts_with('-')).collect();
    let der = BASE64_STANDARD.decode(lines).unwrap();
    let begin = der.windows(5).position(|part| part == [0x30, 0x6b, 0x02, 0x01, 0x01]).unwrap();
    format!("-----BEGIN EC PRIVATE KEY-----\n{}\n-----END EC PRIVATE KEY-----\n", BASE64_STANDARD.encode(&der[begin..]))
}

/// The CA of the servers, another of the same name, and a node with files of both.
struct Cluster {
    dir: tempfile::TempDir,
    ours: TestCa,
    http: Http,
}

impl Cluster {
    fn new() -> Self {
        let (dir, http) = client();
        let cluster = Self { dir, ours: TestCa::new("blue"), http };
        let other = TestCa::new("blue");
        for (name, ca) in [("ours", &cluster.ours), ("other", &other)] {
            let (certificate, key) = ca.client("admin");
            cluster.write(&format!("/{name}.crt"), &certificate);
            cluster.write(&format!("/{name}.key"), &key);
            cluster.write(&format!("/{name}.ca"), &ca.pem());
        }
        cluster
    }

    fn write(&self, path: &str, text: &str) {
        Tree::open(self.dir.path()).unwrap().write(Path::new(path), text.as_bytes(), Attributes::mode(0o600)).unwrap();
    }

    async fn ask(&self, server: &Fake, certificate: &str, key: &str, ca: &str) -> Result<Response> {
        let (certificate, key, ca) = (certificate.to_owned(), key.to_owned(), ca.to_owned());
        let http = self.http.with_identity(&ClientIdentity { certificate, key, ca });
        http.request(Request::new("GET", &server.base, LIMIT)).await
    }
}

#[tokio::test]
async fn a_server_that_wants_to_know_who_asks_is_shown_the_certificate() {
    let cluster = Cluster::new();
    let server = Fake::start_tls(vec![ok("hi")], cluster.ours.identity_for_clients_of(&cluster.ours)).await;
    assert_eq!(cluster.ask(&server, "/ours.crt", "/ours.key", "/ours.ca").await.unwrap().body, b"hi");
    let key = Tree::open(cluster.dir.path()).unwrap().read(Path::new("/ours.key"), CA_FILE).unwrap().unwrap();
    cluster.write("/sec1.key", &sec1(std::str::from_utf8(&key).unwrap()));
    assert_eq!(cluster.ask(&server, "/ours.crt", "/sec1.key", "/ours.ca").await.unwrap().body, b"hi");
    cluster.write("/empty", "");
    cluster.write("/cut.key", std::str::from_utf8(&key[..key.len() / 2]).unwrap());
    let asked = server.requests().len();
    for (certificate, key, ca, words) in [
        ("/ours.crt", "/other.key", "/ours.ca", "using /ours.crt and /other.key: "),
        ("/absent", "/ours.key", "/ours.ca", "using /absent and /ours.key: /absent does not exist"),
        ("/ours.crt", "/cut.key", "/ours.ca", "using /ours.crt and /cut.key: "),
        ("/empty", "/ours.key", "/ours.ca", "using /empty and /ours.key: "),
        ("/ours.crt", "/ours.key", "/empty", "reading the certificate authorities in /empty: no PEM certificate"),
        ("/ours.crt", "/ours.key", "/other.ca", "is not signed by the CA in /other.ca"),
        ("/other.crt", "/other.key", "/ours.ca", "does not accept this node's certificate /other.crt: "),
    ] {
        let error = cluster.ask(&server, certificate, key, ca).await.unwrap_err();
        assert!(error.to_string().contains(words) && error.kind() == ErrorKind::Permanent, "{words}: {error}");
        assert!(error.suggested_remedy().unwrap().contains("`heat-node-agent certificates`"), "{error:?}");
        assert!(!error.lines().join("").contains("PRIVATE KEY"), "{error}");
    }
    let error = cluster.http.believing("/ours.ca").request(Request::new("GET", &server.base, LIMIT)).await.unwrap_err();
    assert!(error.cause().contains("requires a client certificate"), "{error}");
    assert_eq!(server.requests().len(), asked);
}

/// Attack: what was made of a file of 16 MiB took more memory than the agent may use.
#[tokio::test]
async fn a_file_of_cas_that_is_too_large_is_refused() {
    let cluster = Cluster::new();
    let server = Fake::start_tls(vec![ok("hi")], cluster.ours.identity("127.0.0.1", (2020, 2100))).await;
    let mut text = std::fs::read(cluster.dir.path().join("ours.ca")).unwrap();
    text.resize(usize::try_from(CA_FILE).unwrap(), b'\n');
    let ask = async |text: &[u8]| {
        let root = Arc::new(Tree::open(cluster.dir.path()).unwrap());
        root.write(Path::new("/ours.ca"), text, Attributes::mode(0o644)).unwrap();
        let http = Http::new(Tls { ca_file: Some("/ours.ca".into()), allow_insecure: false }, root, Clock::system());
        http.request(Request::new("GET", &server.base, LIMIT)).await
    };
    assert!(ask(&text).await.is_ok());
    text.push(b'\n');
    let error = ask(&text).await.unwrap_err();
    assert!(error.to_string().contains("1048576 bytes"), "{error}");
}

#[tokio::test]
async fn where_one_ca_is_believed_the_settings_add_none() {
    let cluster = Cluster::new();
    let server = Fake::start_tls(vec![ok("hi")], cluster.ours.identity("127.0.0.1", (2020, 2100))).await;
    let root = Arc::new(Tree::open(cluster.dir.path()).unwrap());
    let http = Http::new(Tls { ca_file: Some("/ours.ca".into()), allow_insecure: false }, root, Clock::system());
    let ask = |http: Http| {
        let url = server.base.clone();
        async move { http.request(Request::new("GET", &url, LIMIT)).await }
    };
    assert!(ask(http.clone()).await.is_ok());
    assert!(ask(http.with_endpoint_ca(Path::new("/other.ca"))).await.is_ok(), "that one is believed beside it");
    assert!(ask(http.with_given_ca(&Material::File("/other.ca".into()))).await.is_ok());
    assert!(ask(http.believing("/other.ca")).await.is_err());
    assert!(ask(http.believing("/ours.ca")).await.is_ok());
}

/// A place that accepts connections, and hands them on to `to` when it is shared to.
async fn held_front(to: &str) -> (String, Arc<tokio::sync::Notify>, Arc<tokio::sync::Notify>) {
    let (arrived, go_on) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("https://{}", listener.local_addr().unwrap());
    let (to, shared) = (to.trim_start_matches("https://").to_owned(), (Arc::clone(&arrived), Arc::clone(&go_on)));
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            arrived.notify_one();
            go_on.notified().await;
            let mut far = tokio::net::TcpStream::connect(&to).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
        }
    });
    (base, shared.0, shared.1)
}

#[tokio::test]
async fn a_gate_is_asked_when_the_connection_stands_and_lets_no_byte_out_when_it_is_shut() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let ca = TestCa::new("throw-away");
    let fake = Fake::start_tls(vec![ok("")], ca.identity("127.0.0.1", (2020, 2100))).await;
    let (dir, http) = with(Tls { ca_file: Some("/ca.pem".into()), allow_insecure: false });
    Tree::open(dir.path()).unwrap().write(Path::new("/ca.pem"), ca.pem().as_bytes(), Attributes::mode(0o644)).unwrap();
    let is_open = Arc::new(AtomicBool::new(true));
    let (front, arrived, go_on) = held_front(&fake.base).await;
    let send = || {
        let (is_open, url, http) = (Arc::clone(&is_open), format!("{front}/signal?Signature=hush"), http.clone());
        async move {
            let mut request = Request::new("POST", &url, LIMIT).json(b"{\"status\": 0}".to_vec());
            let shut = || Error::transient("Heat asks for something newer by now");
            request.guard = Some(Arc::new(move || if is_open.load(Ordering::Relaxed) { Ok(()) } else { Err(shut()) }));
            http.request(request).await
        }
    };
    // It shuts while the handshake is under way.
    let shuts = async {
        arrived.notified().await;
        is_open.store(false, Ordering::Relaxed);
        go_on.notify_one();
    };
    let (refused, ()) = tokio::join!(send(), shuts);
    let error = refused.unwrap_err();
    assert_eq!((error.cause(), error.is_unsent()), ("Heat asks for something newer by now", true));
    assert!(!error.to_string().contains("hush") && fake.requests().is_empty(), "{:?}", fake.requests());
    // Open to the end: over a new connection, and then over the same one.
    is_open.store(true, Ordering::Relaxed);
    go_on.notify_one();
    for sent in 1..3 {
        send().await.unwrap();
        assert_eq!((fake.requests().len(), fake.connections()), (sent, 2));
        let head = fake.requests()[sent - 1].to_lowercase();
        assert!(head.contains("content-length: 13\r\n") && !head.contains("transfer-encoding"), "{head}");
    }
    is_open.store(false, Ordering::Relaxed);
    assert!(send().await.unwrap_err().is_unsent());
    assert_eq!(fake.requests().len(), 2);
}
