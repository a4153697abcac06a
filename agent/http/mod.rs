//! The one HTTP client: what asks sources, sends signals, and looks at health endpoints.
//!
//! In: a [`Request`] with a URL that is sent byte for byte as it is written, and a deadline. Out: the
//! answer as it came ([`Response`], any status), or an [`Error`] in an operator's words.
//! Never: a request through a proxy to the metadata address or to this machine (heat-protocol.md R26);
//! a redirect to another host (design.md 7); an unverified certificate unless the settings and the
//! caller both ask for it; a query string or a user name in an error, because they hold signatures.

mod echo_filter;
mod failure;
#[cfg(test)]
pub(crate) mod fake;
mod gate;
mod response;
#[cfg(test)]
mod tests;
mod url;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::{HOST, HeaderName, HeaderValue, LOCATION};
use reqwest::{Certificate, Client, ClientBuilder, Identity, Method};
use tokio::sync::Semaphore;

use crate::budgets::CA_FILE;
use crate::clock::{Clock, patience};
use crate::desired::{ClientIdentity, Material};
use crate::error::{Context, Error, Result};
use crate::files::Tree;
use echo_filter::Echoes;
use failure::Peer;
pub use gate::SendGuard;
pub use response::{LONGEST_ASKED, Response};
use url::Target;
pub use url::{CUT, MASK, Parts, has_userinfo, may_have_userinfo, redacted, split, without_userinfo};

/// Largest body that is taken into memory unless the request says otherwise, in bytes.
pub const BODY_LIMIT: usize = crate::budgets::DOCUMENT_BYTES;

/// For a connection with its TLS handshake: four packets that ask for the first are sent within it (RFC 6298 2), and a server under load
/// has seconds for the second.
const CONNECT_LIMIT: Duration = patience(Duration::from_secs(10));

/// How many redirects within one host are followed.
const REDIRECTS: usize = 3;
/// The longest address that a redirect may lead to, in bytes: signed URLs have some hundred.
const LOCATION_LIMIT: usize = 8 * 1024;

/// Whom we believe over TLS: the `[tls]` part of the settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// PEM file of CA certificates, trusted beside the system's.
    pub ca_file: Option<PathBuf>,
    /// Whether a request may ask for an unverified connection at all.
    pub allow_insecure: bool,
}

/// One request. Never shown: URL, headers and body hold secrets.
#[derive(Clone)]
pub struct Request<'a> {
    /// `GET`, `HEAD`, `POST`, `PUT`, `PATCH` or `DELETE`.
    pub method: &'a str,
    /// Sent byte for byte (heat-protocol.md 7.1); refused where that is not possible.
    pub url: &'a str,
    /// Name and value.
    pub headers: Vec<(&'static str, String)>,
    /// Sent with Content-Length, never in chunks (heat-protocol.md R46).
    pub body: Option<Vec<u8>>,
    /// Values of the body that nothing may show, should an error repeat them: passwords.
    pub secrets: Vec<&'a str>,
    /// For everything from the name lookup to the last byte.
    pub deadline: Duration,
    /// Reading stops beyond this many bytes of body, with an error.
    pub body_limit: usize,
    /// Beyond `body_limit`: up to so many bytes for the one request that has the permit, until its answer is dropped.
    pub large: Option<(usize, &'static Semaphore)>,
    /// Whether this endpoint's parameters ask not to verify its certificate; [`Tls::allow_insecure`] must allow it.
    pub insecure: bool,
    /// Whether a redirect within the host is followed, or is the answer.
    pub follow: bool,
    /// Asked right before the first byte leaves, when the connection stands, each time that it does: what the request rests on may
    /// have changed while a token, a name or a handshake was waited for. Only for a request with a body.
    pub guard: Option<SendGuard>,
}

/// What a request carries that nothing may show: tokens, and the values of its URL's query, which sign it. As they are written, and as a
/// server reads them.
fn carried(target: &Target, headers: &[(&'static str, String)]) -> Vec<String> {
    let is_secret = |name: &str| matches!(name, "authorization" | "x-auth-token" | "x-subject-token");
    let headers = headers.iter().filter(|(name, _)| is_secret(name)).filter_map(|(_, value)| value.rsplit(' ').next());
    let written =
        target.url.query().unwrap_or_default().split('&').map(|pair| pair.split_once('=').map_or(pair, |(_, value)| value));
    let read = target.url.query_pairs().map(|(_, value)| value.into_owned());
    let all = headers.chain(target.url.password()).chain(written).map(str::to_owned).chain(read);
    all.collect()
}

impl<'a> Request<'a> {
    /// A request without headers and body.
    #[must_use]
    pub fn new(method: &'a str, url: &'a str, deadline: Duration) -> Self {
        Self {
            method,
            url,
            headers: Vec::new(),
            body: None,
            secrets: Vec::new(),
            deadline,
            body_limit: BODY_LIMIT,
            large: None,
            insecure: false,
            follow: true,
            guard: None,
        }
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Sets a JSON body and its content type.
    #[must_use]
    pub fn json(mut self, body: Vec<u8>) -> Self {
        self.body = Some(body);
        self.header("content-type", "application/json")
    }
}

/// How certificates are treated; each has its own client, made when first needed, because reading
/// the system's roots takes longer than a whole poll over plain HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TlsVerification {
    /// No TLS is spoken: no roots are read.
    Plain,
    Verified,
    Unverified,
}

/// How one endpoint differs from all others.
#[derive(Clone, Debug, Default)]
struct EndpointOptions {
    ca: Option<TrustedCa>,
    /// Certificate and key by which this node shows who it is.
    identity: Option<(PathBuf, PathBuf)>,
    /// All requests go through this socket, whatever their URL says.
    socket: Option<PathBuf>,
}

/// An endpoint's own CA.
#[derive(Clone, Debug)]
struct TrustedCa {
    certificates: Material,
    /// No other is believed, not the system's either.
    alone: bool,
}

/// The client. Cheap to clone; clones share their connections, which are kept alive.
#[derive(Clone, Debug)]
pub struct Http(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    tls: Tls,
    endpoint: EndpointOptions,
    /// Where the files of certificates and keys are read from.
    root: Arc<Tree>,
    clock: Clock,
    /// By trust and by whether proxies are left out.
    clients: Mutex<BTreeMap<(TlsVerification, bool), Client>>,
}

impl Http {
    /// A client that reads CAs below `root` and measures deadlines by `clock`. Reads nothing yet.
    #[must_use]
    pub fn new(tls: Tls, root: Arc<Tree>, clock: Clock) -> Self {
        Self(Arc::new(Inner { tls, endpoint: EndpointOptions::default(), root, clock, clients: Mutex::default() }))
    }

    /// The same for an endpoint with a CA of its own (`ca_certificate` of os-collect-config), believed beside the system's.
    #[must_use]
    pub fn with_endpoint_ca(&self, file: &Path) -> Self {
        self.with_ca(Material::File(file.to_string_lossy().into_owned()), false)
    }

    /// The same for an endpoint whose CA a parameter gives (`OPENSTACK_CA`), believed beside the system's.
    #[must_use]
    pub fn with_given_ca(&self, ca: &Material) -> Self {
        self.with_ca(ca.clone(), false)
    }

    /// The same for a service of this node or its cluster: it is spoken to directly, and the CA in this file alone is
    /// believed. The file is read when the first connection is made: what is derived anew sees a new CA.
    #[must_use]
    pub fn believing(&self, file: &str) -> Self {
        self.with_ca(Material::File(file.to_owned()), true)
    }

    /// As [`Http::believing`], to a server that wants to know who asks.
    #[must_use]
    pub fn with_identity(&self, identity: &ClientIdentity) -> Self {
        let ClientIdentity { certificate, key, ca } = identity;
        let ca = Some(TrustedCa { certificates: Material::File(ca.clone()), alone: true });
        self.derived(EndpointOptions { ca, identity: Some((certificate.into(), key.into())), socket: None })
    }

    /// The same as whom an identity names; without one as nobody.
    #[must_use]
    pub fn identified_by(&self, identity: Option<&ClientIdentity>) -> Self {
        identity.map_or_else(|| self.clone(), |identity| self.with_identity(identity))
    }

    /// The same over a local socket (a container runtime's), e.g. with `http://localhost/_ping` as URL.
    #[must_use]
    pub fn over_unix_socket(&self, socket: &Path) -> Self {
        self.derived(EndpointOptions { socket: Some(socket.to_owned()), ..EndpointOptions::default() })
    }

    fn with_ca(&self, certificates: Material, alone: bool) -> Self {
        self.derived(EndpointOptions { ca: Some(TrustedCa { certificates, alone }), ..EndpointOptions::default() })
    }

    /// The clock that deadlines are measured by.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// What a parameter gives; nothing where the file that it names is not there.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(&self, material: &Material) -> Result<Vec<u8>> {
        match material {
            Material::Text(text) => Ok(text.clone().into_bytes()),
            Material::File(path) => Ok(self.0.root.read(Path::new(path), CA_FILE)?.unwrap_or_default()),
        }
    }

    /// Whether a request may ask for an unverified connection at all: the settings alone decide.
    #[must_use]
    pub fn may_skip_verification(&self) -> bool {
        self.0.tls.allow_insecure
    }

    fn derived(&self, endpoint: EndpointOptions) -> Self {
        let Inner { tls, root, clock, .. } = &*self.0;
        let (tls, root, clock) = (tls.clone(), Arc::clone(root), clock.clone());
        Self(Arc::new(Inner { tls, endpoint, root, clock, clients: Mutex::default() }))
    }

    /// The CA that alone is believed.
    fn sole_ca(&self) -> Option<&Material> {
        self.0.endpoint.ca.as_ref().filter(|ca| ca.alone).map(|ca| &ca.certificates)
    }

    /// Sends a request and reads the whole answer; a status that stands for a failure is an answer too.
    ///
    /// # Errors
    /// Transient: not reachable, no answer in time, cut off. Permanent: a URL that cannot be sent as it
    /// is written, a certificate that is not trusted, a body beyond its limit, a redirect elsewhere.
    /// Refused: an unverified connection that the settings do not allow.
    pub async fn request(&self, request: Request<'_>) -> Result<Response> {
        let doing = format!("{} {}", request.method, redacted(request.url));
        let method = match request.method {
            known @ ("GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE") => {
                known.parse::<Method>().map_err(Error::permanent)?
            }
            _ => return Err(Error::permanent("unknown method").rule("a method is one of RFC 9110 and 5789").context(doing)),
        };
        let mut target = Target::new(request.url)?;
        if request.insecure && target.secure && !self.0.tls.allow_insecure {
            return Err(Error::refused("the parameters ask not to verify the certificate, but the settings do not allow that")
                .rule("parameters alone never turn verification off")
                .remedy("provide the endpoint's CA ([tls] ca_file), or set [tls] allow_insecure = true in agent.toml")
                .context(doing));
        }
        let limit = request.deadline;
        let exchange = async {
            let mut former = Vec::new();
            for _ in 0..=REDIRECTS {
                let mut response = self.exchange(&method, &target, &request).await?;
                if response.is_success() {
                    return Ok(response);
                }
                let mut echoes = Echoes::default();
                echoes.extend(request.secrets.iter().map(|&secret| secret.to_owned()));
                for one in former.iter().chain([&target]) {
                    echoes.extend(carried(one, &request.headers));
                    // As the Basic header that the client makes of them.
                    if let Some(password) = one.url.password() {
                        echoes.extend_encoded(&format!("{}:{password}", one.url.username()));
                    }
                }
                response.hide(&echoes);
                if !request.follow {
                    return Ok(response);
                }
                match redirect(&method, &target, &response, &echoes)? {
                    Some(next) => former.push(std::mem::replace(&mut target, next)),
                    None => return Ok(response),
                }
            }
            Err(Error::permanent(format!("more than {REDIRECTS} redirects")))
        };
        // On the heap: the state of a request is large, and callers await it deep in their own.
        let answer = self.0.clock.limit(limit, Box::pin(exchange)).await;
        answer.unwrap_or_else(|| Err(failure::no_answer(&self.peer_of(request.url), limit))).context(|| doing)
    }

    async fn exchange(&self, method: &Method, target: &Target, request: &Request<'_>) -> Result<Response> {
        let (trust, direct) = self.class(target, request.insecure);
        let peer = self.peer(target, direct);
        let client = self.client(trust, direct)?;
        let host = HeaderValue::from_str(&target.authority).map_err(|_| Error::permanent("the URL's host is not plain ASCII"))?;
        // The host as it is written, not as parsed: signatures cover it (heat-protocol.md 2.3).
        let mut builder = client.request(method.clone(), target.url.clone()).header(HOST, host);
        for (name, value) in &request.headers {
            let name = HeaderName::from_static(name);
            // The value may be a secret: it is not repeated.
            let value =
                HeaderValue::from_str(value).map_err(|_| Error::permanent(format!("header {name} has control characters")))?;
            builder = builder.header(name, value);
        }
        builder = match (&request.body, &request.guard) {
            (Some(body), Some(guard)) => builder.body(gate::behind(body.clone(), guard)),
            (Some(body), None) => builder.body(body.clone()),
            (None, _) => builder,
        };
        let describe = |error: reqwest::Error| {
            if let Some(shut) = gate::refusal(&error) {
                return shut;
            }
            let is_unsent = error.is_connect();
            let error = failure::describe(error, &peer, CONNECT_LIMIT);
            let error = if is_unsent { error.unsent() } else { error };
            if error.kind() == crate::error::ErrorKind::Permanent {
                // The next try reads the CAs again: somebody may have put the right one there.
                self.clients().remove(&(trust, direct));
            }
            error
        };
        // No connection is made for what may not leave anyway.
        request.guard.as_ref().map_or(Ok(()), |guard| guard()).map_err(Error::unsent)?;
        let answer = builder.send().await.map_err(describe)?;
        response::read(answer, request.body_limit, request.large, describe).await
    }

    /// Which client a target needs.
    fn class(&self, target: &Target, insecure: bool) -> (TlsVerification, bool) {
        let direct = self.0.endpoint.socket.is_some() || self.sole_ca().is_some() || target.never_proxied();
        // A proxy that is itself spoken to over TLS needs the roots for plain URLs too.
        let trust = match (target.secure || (!direct && url::proxy_over_tls()), insecure) {
            (false, _) => TlsVerification::Plain,
            (true, false) => TlsVerification::Verified,
            (true, true) => TlsVerification::Unverified,
        };
        (trust, direct)
    }

    fn peer(&self, target: &Target, direct: bool) -> Peer {
        let EndpointOptions { socket, identity, .. } = &self.0.endpoint;
        Peer {
            name: socket.as_ref().map_or_else(|| target.authority.clone(), |socket| socket.display().to_string()),
            host: target.host.clone(),
            origin: socket.is_none().then(|| {
                let scheme = if target.secure { "https" } else { "http" };
                format!("{scheme}://{}/", target.authority)
            }),
            proxied: !direct && url::proxy_set(target.secure),
            ca: self.sole_ca().map(shown),
            shown_certificate: identity.as_ref().map(|(certificate, _)| certificate.display().to_string()),
        }
    }

    fn peer_of(&self, url: &str) -> Peer {
        Target::new(url).map_or_else(|_| Peer::default(), |target| self.peer(&target, self.class(&target, false).1))
    }

    fn clients(&self) -> std::sync::MutexGuard<'_, BTreeMap<(TlsVerification, bool), Client>> {
        self.0.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client(&self, trust: TlsVerification, direct: bool) -> Result<Client> {
        if let Some(client) = self.clients().get(&(trust, direct)) {
            return Ok(client.clone());
        }
        // Fails only where it was done before.
        let _already = rustls::crypto::ring::default_provider().install_default();
        let mut builder = builder();
        if direct {
            builder = builder.no_proxy();
        }
        if let Some(socket) = &self.0.endpoint.socket {
            builder = builder.unix_socket(socket.as_path());
        }
        builder = match trust {
            TlsVerification::Plain => builder.tls_backend_preconfigured(without_tls()),
            TlsVerification::Verified if self.sole_ca().is_some() => builder.tls_certs_only(self.ca_certificates()?),
            TlsVerification::Verified => builder.tls_certs_merge(self.ca_certificates()?),
            TlsVerification::Unverified => builder.tls_danger_accept_invalid_certs(true),
        };
        if let Some((certificate, key)) = self.0.endpoint.identity.as_ref().filter(|_| trust != TlsVerification::Plain) {
            builder = builder.identity(self.identity(certificate, key)?);
        }
        let client = builder.build().map_err(|error| self.unprepared(&failure::innermost(&error)))?;
        self.clients().insert((trust, direct), client.clone());
        Ok(client)
    }

    fn unprepared(&self, why: &str) -> Error {
        let remedy = match &self.0.endpoint.identity {
            Some(_) => "check `heat-node-agent certificates`: the agent replaces a certificate and key that do not match",
            None => "install the system's CA certificates, or provide the endpoint's CA ([tls] ca_file)",
        };
        let error = Error::permanent(why).remedy(remedy);
        match &self.0.endpoint.identity {
            Some((certificate, key)) => error.context(format!("using {} and {}", certificate.display(), key.display())),
            None => error.context("preparing TLS"),
        }
    }

    /// What this node shows to a server: PKCS#8, SEC1 and PKCS#1 keys are read (RFC 5958, 5915, 8017).
    fn identity(&self, certificate: &Path, key: &Path) -> Result<Identity> {
        let mut both = Vec::new();
        for file in [certificate, key] {
            let bytes = self.0.root.read(file, CA_FILE)?;
            both.extend(bytes.ok_or_else(|| self.unprepared(&format!("{} does not exist", file.display())))?);
            both.push(b'\n');
        }
        Identity::from_pem(&both).map_err(|error| self.unprepared(&failure::innermost(&error)))
    }

    fn ca_certificates(&self) -> Result<Vec<Certificate>> {
        let system = self.0.tls.ca_file.as_ref().filter(|_| self.sole_ca().is_none());
        let system = system.map(|file| Material::File(file.to_string_lossy().into_owned()));
        let own = self.0.endpoint.ca.as_ref().map(|own| own.certificates.clone());
        let mut all = Vec::new();
        for ca in system.into_iter().chain(own) {
            let found = Certificate::from_pem_bundle(&self.read(&ca)?).unwrap_or_default();
            if found.is_empty() {
                let remedy = if self.sole_ca().is_some() {
                    "check `heat-node-agent certificates`"
                } else {
                    "put the endpoint's CA there in PEM format, or correct [tls] ca_file (ca_certificate in os-collect-config, OPENSTACK_CA)"
                };
                let doing = format!("reading the certificate authorities in {}", shown(&ca));
                return Err(Error::permanent("no PEM certificate in it").remedy(remedy).context(doing));
            }
            all.extend(found);
        }
        Ok(all)
    }
}

/// Where a CA stands.
fn shown(ca: &Material) -> String {
    match ca {
        Material::File(path) => path.clone(),
        Material::Text(_) => "the parameters".to_owned(),
    }
}

/// Believes nobody, and remembers no sessions: room for 256 of them would be held for a client that never has one.
fn without_tls() -> rustls::ClientConfig {
    let mut config = rustls::ClientConfig::builder().with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
    config.resumption = rustls::client::Resumption::disabled();
    config
}

#[expect(clippy::disallowed_methods, reason = "this is the one HTTP client")]
fn builder() -> ClientBuilder {
    Client::builder()
        .user_agent(concat!("heat-node-agent/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_LIMIT)
        // Redirects are followed here, where host and method can be looked at.
        .redirect(reqwest::redirect::Policy::none())
        .pool_max_idle_per_host(2)
}

/// Where an answer sends us; `None` where it is to be taken as it is.
///
/// A POST that is sent on by 301, 302 or 303 would become a GET (RFC 9110 15.4): the answer to that
/// would be mistaken for the answer to the POST.
fn redirect(method: &Method, from: &Target, response: &Response, echoes: &Echoes) -> Result<Option<Target>> {
    let followed = match response.status {
        301..=303 => matches!(*method, Method::GET | Method::HEAD),
        307 | 308 => true,
        _ => false,
    };
    let Some(location) = response.header(LOCATION.as_str()).filter(|_| followed) else { return Ok(None) };
    if location.len() > LOCATION_LIMIT {
        let problem = format!("redirected to an address of {} bytes; at most {LOCATION_LIMIT} are followed", location.len());
        return Err(Error::permanent(problem).rule("the agent limits the size of its input to bound its memory"));
    }
    let next = from.url.join(location).map_err(|_| Error::permanent("redirected to something that is not a URL"))?;
    // What was carried in the query may be in its path.
    let shown = || String::from_utf8_lossy(&echoes.hidden(redacted(next.as_str()).as_bytes())).into_owned();
    let next = Target::new(next.as_str())
        .map_err(|_| Error::permanent(format!("redirected to {}, which cannot be called as it is written", shown())))?;
    if (next.secure, &next.host, next.url.port_or_known_default()) != (from.secure, &from.host, from.url.port_or_known_default())
    {
        return Err(Error::permanent(format!("redirected to {}, which is not followed", shown()))
            .rule("redirects to other hosts are not followed")
            .remedy("correct the endpoint in Keystone's catalog or in Heat's configuration"));
    }
    Ok(Some(next))
}
