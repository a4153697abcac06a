//! Keystone's tokens: one for a user and project, used for its whole life (heat-protocol.md 7.5, R15).
//!
//! In: the credentials of a stack user, as Heat's metadata gives them. Out: a [`Session`] with a token
//! and the public endpoints of the catalog, or the answer to a request that carried that token.
//! Never: version discovery, or any other link that Keystone advertises (R25); a password or a token in
//! an error or in Debug output; a look at this node's wall clock, which may be wrong.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::budgets::json::{self, JsonRejection};
use crate::budgets::{ENDPOINTS_MEMORY, KEYSTONE_ANSWER, LARGE_KEYSTONE_ANSWER, SESSIONS_MEMORY};
use crate::clock::{Clock, Stopwatch, Timestamp};
use crate::error::remedy::{AfterRemedy, Remedy};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::http::{self, Http, Request, Response};
use crate::report::text::{escaped, shortened};

/// How many tokens are kept. Each HEAT_SIGNAL deployment has a user of its own, and needs it once or twice.
const KEPT: usize = 64;

/// A new token is asked for so long before the old one ends, or a tenth of its life if that is less.
const MARGIN: Duration = Duration::from_mins(2);

/// Taken for the life of a token whose answer does not say: Keystone's default. A 401 corrects it.
const USUAL_LIFE: Duration = Duration::from_hours(1);

/// A catalog this old in which an endpoint is missed is asked for anew, with its token: somebody may have registered it.
const CATALOG_AGE: Duration = Duration::from_mins(5);

/// For the one catalog beyond [`KEYSTONE_ANSWER`], or the one list of messages, that this process holds.
pub static LARGE: Semaphore = Semaphore::const_new(1);

/// The services that are spoken to: what else is in a large cloud's catalog would be kept once for each user.
const SERVICES: [&str; 2] = ["orchestration", "messaging"];

/// A stack user, as `os-collect-config` metadata or the inputs of a deployment name it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// `https://keystone:5000/v3`; `/v2.0` or no version are taken for it.
    pub auth_url: String,
    /// The user's id, not its name.
    pub user_id: String,
    /// Verbatim.
    pub password: String,
    /// What the token is to be good for.
    #[serde(rename = "project_id", with = "stored_scope")]
    pub scope: Scope,
    /// Region of the endpoints; `None` takes the first.
    pub region: Option<String>,
}

impl Credentials {
    /// About the memory that it takes beside itself.
    #[must_use]
    pub fn weight(&self) -> usize {
        let scope = match &self.scope {
            Scope::Project(id) | Scope::Trust(id) => id.len(),
            Scope::None => 0,
        };
        let region = self.region.as_ref().map_or(0, String::len);
        self.auth_url.len() + self.user_id.len() + self.password.len() + scope + region
    }
}

/// What a token is good for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A project, by its id: a stack user's own.
    Project(String),
    /// What a trust delegates, by its id: a cluster's trustee from Magnum 17.x on (magnum-node.md 4.2).
    Trust(String),
    /// Nothing in particular: it says who the user is. Its answer has no catalog.
    None,
}

/// Metadata and the outbox name a project, and nothing else.
mod stored_scope {
    use serde::{Deserialize, Deserializer, Serializer, ser::Error};

    use super::Scope;

    pub(super) fn serialize<S: Serializer>(scope: &Scope, to: S) -> Result<S::Ok, S::Error> {
        match scope {
            Scope::Project(id) => to.serialize_str(id),
            Scope::Trust(_) | Scope::None => Err(S::Error::custom("only a user with a project is stored")),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Scope, D::Error> {
        String::deserialize(from).map(Scope::Project)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Credentials");
        shown.field("auth_url", &http::redacted(&self.auth_url)).field("user_id", &self.user_id);
        shown.field("scope", &self.scope).field("region", &self.region).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Where tokens are made. The configured scheme, host and path are kept; only the version is set.
    fn tokens_url(&self) -> String {
        let mut base = self.auth_url.trim_end_matches('/');
        for version in ["/v3", "/v2.0"] {
            base = base.strip_suffix(version).unwrap_or(base).trim_end_matches('/');
        }
        format!("{base}/v3/auth/tokens")
    }
}

/// A token and where it leads.
#[derive(Clone)]
pub struct Session {
    /// For `X-Auth-Token`; a secret.
    pub token: String,
    endpoints: Arc<Vec<CatalogEndpoint>>,
    /// Runs since before the token was asked for.
    age: Stopwatch,
    life: Duration,
}

/// A public endpoint of one of [`SERVICES`].
#[derive(Debug)]
struct CatalogEndpoint {
    service_type: String,
    /// `region_id` and its older name.
    regions: [String; 2],
    url: String,
}

impl CatalogEndpoint {
    /// About the memory that it takes.
    fn weight(&self) -> usize {
        size_of::<Self>() + self.service_type.len() + self.url.len() + self.regions.iter().map(String::len).sum::<usize>()
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("endpoints", &self.endpoints).field("life", &self.life).finish_non_exhaustive()
    }
}

impl Session {
    /// The public endpoint of a service, without a slash at its end. No region, or an empty one, takes the first.
    ///
    /// # Errors
    /// Permanent, if the catalog has none, or none in this region.
    pub fn endpoint(&self, service_type: &str, region: Option<&str>) -> Result<String> {
        let offered = || self.endpoints.iter().filter(|endpoint| endpoint.service_type == service_type);
        let region = region.filter(|region| !region.is_empty());
        let found = offered().find(|endpoint| region.is_none_or(|region| endpoint.regions.iter().any(|one| one == region)));
        if let Some(endpoint) = found {
            return Ok(endpoint.url.trim_end_matches('/').to_owned());
        }
        let mut regions: Vec<_> = offered().flat_map(|endpoint| &endpoint.regions).map(String::as_str).collect();
        regions.retain(|region| !region.is_empty());
        regions.dedup();
        let error = match region {
            Some(region) if !regions.is_empty() => Error::permanent(format!(
                "Keystone's catalog has no {service_type} endpoint in region {}; there is one in {}",
                tidy(region),
                tidy(&regions.join(", "))
            ))
            .remedy("correct region_name: [heat] or [zaqar] in os-collect-config.conf, or region_name_for_services in heat.conf"),
            _ => Error::permanent(format!("Keystone's catalog has no public {service_type} endpoint"))
                .remedy("register it: `openstack endpoint create SERVICE public URL`"),
        };
        Err(error.rule("an endpoint is found by its type, interface public, and region"))
    }

    fn weight(&self) -> usize {
        self.token.len() + self.endpoints.iter().map(CatalogEndpoint::weight).sum::<usize>()
    }

    fn is_usable(&self) -> bool {
        self.age.elapsed() + MARGIN.min(self.life / 10) < self.life
    }
}

/// The tokens of this process. Cheap to clone; clones share them.
#[derive(Clone)]
pub struct Keystone {
    pub(super) clock: Clock,
    /// The one used last at the end.
    slots: Arc<Mutex<Vec<Arc<Slot>>>>,
}

/// The token of one user.
struct Slot {
    /// [`Credentials::tokens_url`], user, scope and password: who does not have it gets no token by the name alone, and
    /// a wait handle that names the server's own user cannot have that one's token sent to an address of its choice.
    key: (String, String, Scope, String),
    /// Held while a token is asked for: whoever comes meanwhile waits for the same answer.
    asking: tokio::sync::Mutex<()>,
    state: Mutex<TokenState>,
}

#[derive(Default)]
struct TokenState {
    session: Option<Session>,
    /// How often a token was asked for.
    tries: u64,
    /// How the last try failed.
    failed: Option<Error>,
}

impl Slot {
    /// About the memory that it takes.
    fn weight(&self) -> usize {
        let (url, user, scope, password) = &self.key;
        let scope = match scope {
            Scope::Project(id) | Scope::Trust(id) => id.len(),
            Scope::None => 0,
        };
        let session = self.state().session.as_ref().map_or(0, Session::weight);
        size_of::<Self>() + url.len() + user.len() + scope + password.len() + session
    }

    fn state(&self) -> MutexGuard<'_, TokenState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Keystone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keystone").finish_non_exhaustive()
    }
}

impl Keystone {
    /// Without any token yet.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { clock, slots: Arc::default() }
    }

    /// The token of a user: the one that is there while it lasts, else a new one. Simultaneous callers
    /// share one request and its outcome.
    ///
    /// # Errors
    /// Keystone is not reachable or does not give a token; [`Error::asked_pause`] is what it asks us to wait.
    pub async fn session(&self, http: &Http, credentials: &Credentials, deadline: Duration) -> Result<Session> {
        self.session_over(http, credentials, deadline, false).await
    }

    /// As [`Keystone::session`]; `insecure` as in [`Request::insecure`].
    async fn session_over(&self, http: &Http, credentials: &Credentials, deadline: Duration, insecure: bool) -> Result<Session> {
        let slot = self.slot(credentials);
        let seen = slot.state().tries;
        let started = self.clock.start();
        let busy = || {
            Error::transient(format!("no answer from Keystone to a concurrent request within {} s", deadline.as_secs()))
                .context(asking_for(credentials))
        };
        let _asking = self.clock.limit(deadline, slot.asking.lock()).await.ok_or_else(busy)?;
        {
            let state = slot.state();
            if let Some(session) = state.session.as_ref().filter(|session| session.is_usable()) {
                return Ok(session.clone());
            }
            if let Some(error) = state.failed.as_ref().filter(|_| state.tries != seen) {
                return Err(error.clone());
            }
        }
        let answer = self.authenticate(http, credentials, deadline.saturating_sub(started.elapsed()), insecure).await;
        let mut state = slot.state();
        state.tries += 1;
        state.session = answer.as_ref().ok().cloned();
        state.failed = answer.as_ref().err().cloned();
        drop(state);
        self.bound();
        answer
    }

    /// Forgets a token that a service answered with 401, unless a newer one is there already.
    pub fn refused(&self, credentials: &Credentials, session: &Session) {
        let slot = self.slot(credentials);
        let mut state = slot.state();
        if state.session.as_ref().is_some_and(|kept| kept.token == session.token) {
            state.session = None;
        }
    }

    /// Sends a request with a token, and after a 401 once more with a new one. A URL that begins with
    /// `/` is below the public endpoint of `service_type`; a version that the endpoint ends with is not repeated. All of it together has the request's deadline. Whether certificates are
    /// verified holds for Keystone's too.
    ///
    /// # Errors
    /// As [`Keystone::session`], [`Session::endpoint`] and [`Http::request`].
    pub async fn request(
        &self,
        http: &Http,
        credentials: &Credentials,
        service_type: &str,
        request: Request<'_>,
    ) -> Result<Response> {
        let started = self.clock.start();
        let mut again = true;
        loop {
            let left = || request.deadline.saturating_sub(started.elapsed());
            // Without a token and an endpoint nothing is sent.
            let session = self.session_over(http, credentials, left(), request.insecure).await.map_err(Error::unsent)?;
            let url = if request.url.starts_with('/') {
                let base = session.endpoint(service_type, credentials.region.as_deref()).map_err(|error| {
                    if session.age.elapsed() >= CATALOG_AGE {
                        self.refused(credentials, &session);
                    }
                    error.unsent()
                })?;
                encrypted_still(&base, credentials, http.may_skip_verification()).map_err(Error::unsent)?;
                let version = request.url.split('/').nth(1).map(|version| format!("/{version}")).unwrap_or_default();
                format!("{}{}", base.strip_suffix(&version).unwrap_or(&base), request.url)
            } else {
                request.url.to_owned()
            };
            let mut whole = Request { url: &url, deadline: left(), ..request.clone() };
            // It never gets this, but whoever answers at both places may show it.
            whole.secrets.push(&credentials.password);
            whole = whole.header("x-auth-token", session.token.as_str()).header("accept", "application/json");
            let response = http.request(whole).await?;
            if response.status != 401 || !again {
                return Ok(response);
            }
            again = false;
            self.refused(credentials, &session);
        }
    }

    /// Forgets the tokens that were not used for longest, where all of them take more memory than they may.
    fn bound(&self) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sum: usize = slots.iter().map(|slot| slot.weight()).sum();
        while sum > SESSIONS_MEMORY && !slots.is_empty() {
            sum -= slots.remove(0).weight();
        }
    }

    fn slot(&self, credentials: &Credentials) -> Arc<Slot> {
        let Credentials { user_id, password, scope, .. } = credentials;
        let key = (credentials.tokens_url(), user_id.clone(), scope.clone(), password.clone());
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let known = slots.iter().position(|slot| slot.key == key);
        let slot = known.map_or_else(
            || Arc::new(Slot { key, asking: tokio::sync::Mutex::default(), state: Mutex::default() }),
            |at| slots.remove(at),
        );
        if slots.len() >= KEPT {
            slots.remove(0);
        }
        slots.push(Arc::clone(&slot));
        slot
    }

    async fn authenticate(&self, http: &Http, credentials: &Credentials, deadline: Duration, insecure: bool) -> Result<Session> {
        let mut auth = json!({
            "identity": {"methods": ["password"],
                "password": {"user": {"id": credentials.user_id, "password": credentials.password}}},
        });
        let scope = match &credentials.scope {
            Scope::Project(id) => Some(json!({"project": {"id": id}})),
            Scope::Trust(id) => Some(json!({"OS-TRUST:trust": {"id": id}})),
            Scope::None => None,
        };
        if let (Some(scope), Some(auth)) = (scope, auth.as_object_mut()) {
            auth.insert("scope".to_owned(), scope);
        }
        let body = json!({ "auth": auth });
        let url = credentials.tokens_url();
        let mut request = Request::new("POST", &url, deadline).json(body.to_string().into_bytes());
        request.body_limit = KEYSTONE_ANSWER;
        request.large = Some((LARGE_KEYSTONE_ANSWER, &LARGE));
        request.insecure = insecure;
        request.secrets = vec![&credentials.password];
        // From before the request: the answer may come late.
        let age = self.clock.start();
        let doing = || asking_for(credentials);
        let response = http.request(request.header("accept", "application/json")).await.context(doing)?;
        if !response.is_success() {
            return Err(refusal(&response, credentials).context(doing()));
        }
        session(&response, age).context(doing)
    }
}

/// The token of a Keystone that is asked over https is not sent in clear because its catalog says so (design.md 9).
fn encrypted_still(base: &str, credentials: &Credentials, allowed: bool) -> Result<()> {
    let https = |url: &str| http::split(url).is_some_and(|parts| parts.scheme == "https");
    if allowed || https(base) || !https(&credentials.auth_url) {
        return Ok(());
    }
    let (auth, base) = (http::redacted(&credentials.auth_url), http::redacted(base));
    Err(Error::refused(format!("Keystone at {auth} names {base}: its token would travel in clear text"))
        .rule("https is never downgraded to http")
        .remedy(
            "register the public endpoint with https (`openstack endpoint set --url URL ENDPOINT`), or, if the network is trusted, set [tls] \
             allow_insecure = true in agent.toml",
        ))
}

fn asking_for(credentials: &Credentials) -> String {
    format!("requesting a token for user {} from Keystone", tidy(&credentials.user_id))
}

fn session(response: &Response, age: Stopwatch) -> Result<Session> {
    let unlike = |why: &str| {
        Error::permanent(format!("the answer {why}"))
            .rule("Keystone's API: POST /v3/auth/tokens")
            .remedy("check that auth_url leads to Keystone itself and not to a proxy")
    };
    let token = response.header("x-subject-token").map(str::trim).filter(|token| !token.is_empty());
    let token = token.ok_or_else(|| unlike("contains no token"))?.to_owned();
    let read = read_token(&response.body);
    let (life, endpoints) = read.map_err(|rejection| match rejection {
        // The parser's words could show parts of the answer.
        JsonRejection::Json(_) => unlike("is not JSON"),
        JsonRejection::TooDeep => unlike("is nested too deeply"),
        JsonRejection::TooLarge(budget) => {
            unlike(&format!("has a catalog that would take more than {} KiB of memory", budget / 1024))
        }
    })?;
    let life = life.filter(|life| !life.is_zero()).unwrap_or(USUAL_LIFE);
    Ok(Session { token, endpoints: Arc::new(endpoints), age, life })
}

/// The life of a token and the endpoints of its catalog, of which nothing else is ever in memory but its text.
fn read_token(body: &[u8]) -> std::result::Result<(Option<Duration>, Vec<CatalogEndpoint>), JsonRejection> {
    // What is no UTF-8 is no JSON either; the reader says so.
    let body = std::str::from_utf8(body).unwrap_or_default();
    let token = Members(json::members(body)?).raw("token");
    let token = Members::of(token)?;
    let time = |name: &str| Ok(Timestamp::parse_rfc3339(&token.text(name)?));
    let life = time("issued_at")?.zip(time("expires_at")?).map(|(from, until)| until.since(from));
    let catalog = token.list("catalog");
    drop(token);
    let (mut endpoints, mut weight) = (Vec::new(), 0);
    json::items(catalog, &mut |service| {
        let service = Members::of(service)?;
        let service_type = service.text("type")?;
        if !SERVICES.contains(&service_type.as_str()) {
            return Ok(());
        }
        let list = service.list("endpoints");
        drop(service);
        json::items(list, &mut |endpoint| {
            let endpoint = Members::of(endpoint)?;
            if endpoint.text("interface")? == "public" {
                let regions = [endpoint.text("region_id")?, endpoint.text("region")?];
                let endpoint = CatalogEndpoint { service_type: service_type.clone(), regions, url: endpoint.text("url")? };
                weight += endpoint.weight();
                if weight > ENDPOINTS_MEMORY {
                    return Err(JsonRejection::TooLarge(ENDPOINTS_MEMORY));
                }
                endpoints.push(endpoint);
            }
            Ok(())
        })
    })?;
    Ok((life, endpoints))
}

/// The members of an object, each as the text of its value.
struct Members<'a>(Vec<(String, &'a str)>);

impl<'a> Members<'a> {
    /// Those of a value; none of one that is no object.
    fn of(value: &'a str) -> std::result::Result<Self, JsonRejection> {
        match json::members(value) {
            Err(JsonRejection::Json(_)) => Ok(Self(Vec::new())),
            members => members.map(Self),
        }
    }

    fn raw(&self, name: &str) -> &'a str {
        self.0.iter().rfind(|(known, _)| known == name).map_or("null", |(_, value)| value)
    }

    /// A member that is a list; an empty one for any other.
    fn list(&self, name: &str) -> &'a str {
        Some(self.raw(name)).filter(|value| value.starts_with('[')).unwrap_or("[]")
    }

    /// A member that is a text; an empty one for any other.
    fn text(&self, name: &str) -> std::result::Result<String, JsonRejection> {
        match json::value(self.raw(name).as_bytes(), ENDPOINTS_MEMORY)? {
            Value::String(text) => Ok(text),
            _ => Ok(String::new()),
        }
    }
}

fn refusal(response: &Response, credentials: &Credentials) -> Error {
    let status = response.status;
    let body = json::small(&response.body);
    let message = body.as_ref().and_then(|body| body.pointer("/error/message")?.as_str());
    // Keystone itself said it, no proxy and no other service at this address.
    let known = message.is_some();
    let message = message.unwrap_or("no details");
    // Keystone repeats what it was sent where that does not fit its schema; what is too short for the HTTP client to know again is here.
    let message = if message.contains(&credentials.password) {
        "a message that contains a secret, not shown".to_owned()
    } else {
        tidy(message)
    };
    let trustee = !matches!(credentials.scope, Scope::Project(_));
    let (kind, remedy) = match status {
        401 | 403 | 404 if trustee && known => (ErrorKind::Permanent, of_trustee(credentials)),
        401 => (
            ErrorKind::Permanent,
            "Heat disables the user while the stack is suspended and removes it with the stack: resume the stack, or update it so that \
             the server gets new credentials; check `openstack stack show STACK`"
                .into(),
        ),
        404 => (ErrorKind::Permanent, "auth_url does not lead to Keystone's v3 API (http://HOST:5000/v3): correct it".into()),
        408 | 429 | 500.. => (ErrorKind::Transient, "Keystone or its load balancer is overloaded or down; the agent retries".into()),
        _ => (ErrorKind::Permanent, "check auth_url, user_id, and project_id or trust".into()),
    };
    Error::new(kind, format!("Keystone answered {status}: {message}"))
        .remedy(remedy)
        .retry_after(response.retry_after())
        .with_status(status)
}

/// What to do about a cluster's trustee that Keystone does not accept: Magnum removes it and its trust with the cluster, and replaces both
/// when credentials are rotated (magnum-node.md 4.2). Nobody can read the password.
fn of_trustee(credentials: &Credentials) -> Remedy {
    let user = tidy(&credentials.user_id);
    let text = format!(
        "as admin, `openstack user show {user}`. If there is no such user, or it is enabled, the template is out of date: set \
         TRUSTEE_USER_ID, TRUSTEE_PASSWORD and TRUST_ID to those in Magnum's database (table cluster) and update the stack. If the user \
         is disabled, `openstack user set --enable {user}`"
    );
    Remedy::new(text, AfterRemedy::LastWayResumes)
}

fn tidy(text: &str) -> String {
    escaped(&shortened(text.lines().next().unwrap_or_default(), 200))
}

#[cfg(test)]
#[path = "keystone_tests.rs"]
mod tests;
