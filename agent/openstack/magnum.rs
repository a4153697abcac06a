//! Magnum's certificate API (magnum-node.md 4.1, 4.2).
//!
//! In: whom to ask and as whom. Out: PEM texts as Magnum gave them; whether they are right is judged by who asked.
//! Never: a look at which CA is meant by a subject, because Magnum gives all of them the same one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::keystone::{Credentials, Keystone, Scope};
use crate::budgets::json;
use crate::desired::{MagnumAccess, MagnumUser, Signer};
use crate::error::remedy::{AfterRemedy, Remedy};
use crate::error::{ConnectFailure, Context, Error, ErrorKind, Result};
use crate::http::{Http, Request, Response};
use crate::report::text::{escaped, shortened};

/// Largest answer, in bytes: a certificate and the request that it was made for.
const ANSWER_LIMIT: usize = 1024 * 1024;

/// The query argument and member of requests that Magnum knows from 13.0 on.
const TYPE: &str = "ca_cert_type";

const RULE: &str = "Magnum's API returns JSON with the certificate in `pem`";

/// A cluster's certificates at Magnum. One token serves all requests; it is asked for anew after a 401.
#[derive(Debug)]
pub struct Magnum<'a> {
    http: Http,
    keystone: &'a Keystone,
    access: &'a MagnumAccess,
    /// `None`: the creator's own token is used as it is.
    user: Option<Credentials>,
    /// This Magnum has one CA for everything, and takes the type for a mistake.
    untyped: AtomicBool,
}

impl<'a> Magnum<'a> {
    /// Asks nobody yet.
    #[must_use]
    pub fn new(http: &Http, keystone: &'a Keystone, access: &'a MagnumAccess) -> Self {
        let http = access.ca.as_ref().map_or_else(|| http.clone(), |ca| http.with_given_ca(ca));
        let user = match &access.user {
            MagnumUser::Token(_) => None,
            MagnumUser::Trustee { auth_url, user_id, password, trust_id } => Some(Credentials {
                auth_url: auth_url.clone(),
                user_id: user_id.clone(),
                password: password.clone(),
                // Where Magnum was told to make no trusts, the parameter is empty (magnum-node.md 4.2).
                scope: trust_id.clone().filter(|id| !id.is_empty()).map_or(Scope::None, Scope::Trust),
                region: None,
            }),
        };
        Self { http, keystone, access, user, untyped: AtomicBool::new(access.bay) }
    }

    /// The certificate of a CA, as PEM with a line end after it. A Magnum that knows one CA only (before 13.0)
    /// gives it for each.
    ///
    /// # Errors
    /// Transient: not reachable, overloaded. Permanent: refused, or an answer that is none.
    pub async fn fetch_ca(&self, signer: Signer, deadline: Duration) -> Result<String> {
        let url = |typed| {
            let query = if typed { format!("?{TYPE}={signer}") } else { String::new() };
            format!("{}/certificates/{}{query}", self.access.url, self.access.cluster)
        };
        let ask = |typed, deadline| async move { self.send(Request::new("GET", &url(typed), deadline)).await };
        self.certificate(ask, deadline).await.context(|| format!("requesting the certificate of the CA {signer} from Magnum"))
    }

    /// Has a request signed; the certificate as PEM with a line end after it.
    ///
    /// # Errors
    /// As [`Magnum::fetch_ca`].
    pub async fn sign(&self, signer: Signer, request: &str, deadline: Duration) -> Result<String> {
        let url = format!("{}/certificates", self.access.url);
        let cluster = if self.access.bay { "bay_uuid" } else { "cluster_uuid" };
        let body = |typed| {
            let mut body = json!({cluster: self.access.cluster, "csr": request});
            if let (true, Some(members)) = (typed, body.as_object_mut()) {
                members.insert(TYPE.to_owned(), signer.as_str().into());
            }
            body.to_string().into_bytes()
        };
        let (url, body) = (url.as_str(), &body);
        let ask = |typed, deadline| async move { self.send(Request::new("POST", url, deadline).json(body(typed))).await };
        self.certificate(ask, deadline).await.context(|| format!("requesting a certificate signed by Magnum's CA {signer}"))
    }

    /// Asks with the type of the CA, unless this Magnum turned out not to know any, and takes the certificate out of the answer.
    async fn certificate<F: Future<Output = Result<Response>>>(
        &self,
        ask: impl Fn(bool, Duration) -> F,
        deadline: Duration,
    ) -> Result<String> {
        let started = self.keystone.clock.start();
        let typed = !self.untyped.load(Ordering::Relaxed);
        let mut response = ask(typed, deadline).await?;
        if typed && response.status == 400 && error_message(&response).is_some_and(|message| message.contains(TYPE)) {
            self.untyped.store(true, Ordering::Relaxed);
            response = ask(false, deadline.saturating_sub(started.elapsed())).await?;
        }
        if response.is_success() { pem(&response) } else { Err(self.refusal(&response)) }
    }

    async fn send(&self, request: Request<'_>) -> Result<Response> {
        self.ask(request).await.map_err(|error| self.with_place(error))
    }

    /// Names the parameter that leads to a server which cannot be reached, or is not trusted: Magnum's own address is one, Keystone's the
    /// other.
    fn with_place(&self, error: Error) -> Error {
        let of_keystone = |host: &str| self.user.as_ref().is_some_and(|user| user.auth_url.contains(host));
        let parameter = |host: &str| match (self.access.url.contains(host), of_keystone(host)) {
            (true, true) => "AUTH_URL and MAGNUM_URL",
            (true, false) => "MAGNUM_URL",
            (false, _) => "AUTH_URL",
        };
        let remedy = match error.connect_failure() {
            Some(ConnectFailure::Name(host)) => Remedy::stack_update_or(format!(
                "if `openstack catalog list` shows another name, correct {} in the template and update the stack. If not, and `resolvectl dns || cat \
                 /etc/resolv.conf` lists other name servers than your cloud's, correct the Neutron subnet and reboot the node; else have the name added to them, \
                 until `getent hosts {host}` prints an address",
                parameter(host)
            )),
            Some(ConnectFailure::Refused { peer, .. }) => Remedy::stack_update_or(format!(
                "start the service at {peer}; if the address is wrong, correct {} in the template and update the stack",
                parameter(peer)
            )),
            // What answers may be anybody: only a CA that the operator knows is trusted.
            Some(ConnectFailure::UnknownCa(peer)) => Remedy::new(
                format!(
                    "if `openstack catalog list` lacks {peer}, correct {} and update the stack. Else `openssl s_client -connect {peer} \
                     </dev/null` names the CA in its last \"i:\". Your cloud's root CA: set OPENSTACK_CA to its PEM text and \
                     update the stack. Unknown: ask who runs {peer}. An intermediate CA: have them send it too",
                    parameter(peer)
                ),
                AfterRemedy::LastWayResumes,
            ),
            // Of an answer that is larger than any certificate, say, no parameter of the node's is the cause but who was asked.
            None if error.kind() == ErrorKind::Permanent && error.suggested_remedy().is_none() => Remedy::stack_update_or(
                "give the cause to an admin of Magnum, if AUTH_URL and MAGNUM_URL lead to Keystone and Magnum themselves and not to a proxy",
            ),
            Some(ConnectFailure::Silence | ConnectFailure::Clock | ConnectFailure::Expired) | None => return error,
        };
        error.remedy(remedy)
    }

    async fn ask(&self, mut request: Request<'_>) -> Result<Response> {
        request.body_limit = ANSWER_LIMIT;
        request.insecure = self.access.insecure;
        // Newer ones answer 406 without it, older ones do not know it (magnum-node.md 4.1).
        let request = request.header("openstack-api-version", "container-infra latest");
        match (&self.user, &self.access.user) {
            (None, MagnumUser::Token(token)) => {
                let request = request.header("x-auth-token", token).header("accept", "application/json");
                self.http.request(request).await
            }
            (user, _) => {
                let user = user.as_ref().ok_or_else(|| Error::permanent("no user is configured to ask it"))?;
                // The URL is absolute: no catalog is needed, and a token without scope has none.
                self.keystone.request(&self.http, user, "container-infra", request).await
            }
        }
    }

    fn refusal(&self, response: &Response) -> Error {
        let status = response.status;
        let message = error_message(response).unwrap_or_else(|| "no details".to_owned());
        let cluster = &self.access.cluster;
        let permanent = |remedy: &str| (ErrorKind::Permanent, Remedy::from(remedy));
        let (kind, remedy) = match status {
            400 => permanent(&format!(
                "check that the cluster in the parameters exists (`openstack coe cluster show {cluster}`), and that [x509] in magnum.conf \
                 allows subjectAltName, keyUsage and extendedKeyUsage"
            )),
            401 if self.user.is_none() => (
                ErrorKind::Permanent,
                Remedy::stack_update(
                    "USER_TOKEN has expired: update the stack so that the node gets a new one, or provide the certificates \
                     (CERTIFICATES=given)",
                ),
            ),
            401 => permanent(
                "Magnum does not accept the token that Keystone issued: check that AUTH_URL leads to the Keystone that \
                 Magnum uses ([keystone_authtoken] in magnum.conf)",
            ),
            403 => (ErrorKind::Permanent, self.of_refused_user()),
            404 => permanent(&format!(
                "check that MAGNUM_URL leads to Magnum's v1 API (https://HOST:9511/v1), and the cluster with `openstack coe cluster show {cluster}`"
            )),
            406 => permanent("this Magnum accepts no API version that this node supports: check that MAGNUM_URL leads to Magnum"),
            408 | 409 | 429 | 500.. => (ErrorKind::Transient, of_fault(response).into()),
            _ => permanent("check that MAGNUM_URL leads to Magnum itself and not to a proxy"),
        };
        Error::new(kind, format!("Magnum answered {status}: {message}"))
            .remedy(remedy)
            .retry_after(response.retry_after())
            .with_status(status)
    }

    /// What to do about a user who may not have the certificates. Magnum's default policy lets the cluster's own trustee have them without a
    /// role, and names that user CLUSTER_PROJECT (its trust_manager.py).
    fn of_refused_user(&self) -> Remedy {
        let policy =
            "have \"or rule:cluster_user\" added to certificate:get and certificate:create in policy.yaml on Magnum's API hosts";
        match &self.user {
            None => Remedy::stack_update_or(format!(
                "{policy}; if that is so already, set USER_TOKEN to a token of this cluster's trustee and update the stack"
            )),
            Some(user) if user.scope == Scope::None => Remedy::stack_update_or(format!(
                "set TRUST_ID in the template, which Magnum 17 and later need, and update the stack. On an older Magnum, {policy}"
            )),
            Some(user) => Remedy::new(
                format!(
                    "as admin, `openstack user show {}`: the name begins with the id of the user's cluster. If that is not {}, the template \
                     mixes two clusters: set CLUSTER_UUID, TRUSTEE_USER_ID, TRUSTEE_PASSWORD and TRUST_ID to those in Magnum's database \
                     (table cluster, this stack_id) and update the stack. If it is, {policy}",
                    user.user_id, self.access.cluster
                ),
                AfterRemedy::LastWayResumes,
            ),
        }
    }
}

/// What to do about a fault of Magnum's own. Its middleware gives each request the id that its logs have.
fn of_fault(response: &Response) -> String {
    let is_id = |id: &&str| {
        id.starts_with("req-") && id.len() < 64 && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let id = response.header("x-openstack-request-id").filter(is_id);
    let lines = id.map_or_else(|| "the error of this time".to_owned(), |id| format!("the lines with {id}"));
    format!(
        "`openstack coe service list`: if magnum-conductor is down, start it on Magnum's hosts. If it is up, {lines} in the logs of magnum-api \
         and magnum-conductor there name the fault: correct it"
    )
}

/// The certificate in an answer, or several.
fn pem(response: &Response) -> Result<String> {
    let unlike = |why: &str| {
        Error::permanent(format!("the answer {why}"))
            .rule(RULE)
            .remedy("check that MAGNUM_URL leads to Magnum itself and not to a proxy")
    };
    // The parser's words could show parts of the answer.
    let body = json::answer(&response.body).map_err(|_| unlike("is not JSON"))?;
    let pem = body.get("pem").and_then(Value::as_str).map(str::trim).filter(|pem| !pem.is_empty());
    pem.map(|pem| format!("{pem}\n")).ok_or_else(|| unlike("contains no certificate"))
}

/// What a refusal says, in Magnum's form, its middleware's or WSME's.
fn error_message(response: &Response) -> Option<String> {
    let body = json::small(&response.body)?;
    let found = ["/errors/0/detail", "/errors/0/title", "/error/message", "/faultstring", "/title"].into_iter();
    let mut found = found.filter_map(|pointer| body.pointer(pointer)?.as_str()).filter(|text| !text.is_empty());
    found.next().map(|text| escaped(&shortened(text.lines().next().unwrap_or_default(), 200)))
}

#[cfg(test)]
#[path = "magnum_tests.rs"]
mod tests;
