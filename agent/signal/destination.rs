//! Where a signal goes (heat-protocol.md 7.1-7.4, 7.6).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::http::redacted;
use crate::metadata::SignalTarget;
use crate::openstack::aws_signature::encode;
use crate::openstack::keystone::Credentials;
use crate::openstack::zaqar::Queue;

/// An address that takes signals. Its Debug output shows no more than [`Destination::shown`].
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Destination {
    /// A URL that carries its own authority (CFN_SIGNAL, TEMP_URL_SIGNAL): called byte for byte.
    Url {
        /// The URL.
        url: String,
        /// `POST` or `PUT`.
        verb: String,
        /// Whether a curl line asks not to verify the certificate; the settings decide.
        #[serde(default)]
        insecure: bool,
    },
    /// A token of the handle (TOKEN_SIGNAL).
    Token {
        /// The resource's signal URL.
        endpoint: String,
        /// X-Auth-Token.
        token: String,
        /// As above.
        #[serde(default)]
        insecure: bool,
    },
    /// A user of the deployment or handle (HEAT_SIGNAL): a token of its own for Heat's native API.
    User {
        /// Whose token.
        credentials: Credentials,
        /// The resource's signal URL; from `/` on, what comes after the endpoint in Keystone's catalog.
        to: String,
    },
    /// The queue of a handle (ZAQAR_SIGNAL), which Heat reads.
    Queue(Queue),
}

impl Destination {
    /// Where a deployment's result goes, if anywhere.
    #[must_use]
    pub fn of(target: &SignalTarget) -> Option<Self> {
        match target {
            SignalTarget::Url { url, verb } => Some(Self::Url { url: url.clone(), verb: verb.clone(), insecure: false }),
            SignalTarget::Heat { credentials, stack, resource } => {
                // The parts of the stack are quoted already, the slash between them stays (heat-protocol.md 3.4).
                let to = format!("/stacks/{stack}/resources/{}/signal", encode(resource));
                Some(Self::User { credentials: credentials.clone(), to })
            }
            SignalTarget::None | SignalTarget::Unsupported { .. } => None,
        }
    }

    /// The URL, or below which it is.
    fn url(&self) -> &str {
        match self {
            Self::Url { url, .. } | Self::Token { endpoint: url, .. } => url,
            Self::User { to, .. } if !to.starts_with('/') => to,
            // The endpoint is known only with the catalog.
            Self::User { credentials, .. } | Self::Queue(Queue { credentials, .. }) => &credentials.auth_url,
        }
    }

    /// Who answers.
    #[must_use]
    pub(super) fn service(&self) -> &'static str {
        if matches!(self, Self::Queue(_)) { "Zaqar" } else { "Heat" }
    }

    /// Scheme, host and resource: what may be shown, and short enough to be read.
    #[must_use]
    pub fn shown(&self) -> String {
        if let Self::User { credentials, to } = self
            && to.starts_with('/')
        {
            let resource = to.rsplit_once("/resources/").map_or("", |(_, resource)| resource).trim_end_matches("/signal");
            return format!("Heat's resource {resource} through {}", redacted(&credentials.auth_url));
        }
        if let Self::Queue(queue) = self {
            return queue.shown("through");
        }
        let whole = redacted(self.url());
        let Some((before, resource)) = whole.split_once("/resources/") else { return whole };
        let authority_end = before.find("://").and_then(|at| before.get(at + 3..)?.find('/').map(|end| at + 3 + end));
        format!("{}/…/resources/{resource}", before.get(..authority_end.unwrap_or(before.len())).unwrap_or_default())
    }

    /// Host and port: signals for one place wait for each other, those for different places do not. Where Heat's or Zaqar's own is
    /// not known before Keystone answers, it is Keystone's.
    #[must_use]
    pub fn place(&self) -> String {
        let url = self.url();
        let after_scheme = url.split_once("://").map_or(url, |(_, rest)| rest);
        let authority = after_scheme.split(['/', '?', '#']).next().unwrap_or_default();
        authority.rsplit('@').next().unwrap_or_default().to_ascii_lowercase()
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Url { verb, .. } => verb,
            Self::Token { .. } => "token",
            Self::User { .. } => "user",
            Self::Queue(_) => "queue",
        };
        write!(f, "Destination({kind} {})", self.shown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(url: &str) -> Destination {
        Destination::Url { url: url.into(), verb: "PUT".into(), insecure: false }
    }

    fn credentials() -> Credentials {
        Credentials {
            auth_url: "https://Keystone.example:5000/v3".into(),
            user_id: "u1".into(),
            password: "hush".into(),
            scope: crate::openstack::keystone::Scope::Project("p1".into()),
            region: None,
        }
    }

    #[test]
    fn places_are_hosts_with_ports_and_nothing_secret_is_shown() {
        let destination = url("http://user:pw@Heat.example:8000/v1/x?Signature=secret");
        assert_eq!(destination.place(), "heat.example:8000");
        assert!(!destination.shown().contains("secret") && !destination.shown().contains("pw"));
        let signal = url("http://10.0.0.1:8000/v1/signal/arn%3Aopenstack%3Astacks/s/u/resources/node?Signature=secret");
        assert_eq!(signal.shown(), "http://10.0.0.1:8000/…/resources/node?…");
        let user = |to: &str| Destination::User { credentials: credentials(), to: to.into() };
        let catalog = user("/stacks/s/u/resources/wait%20handle/signal");
        assert_eq!(catalog.place(), "keystone.example:5000");
        assert_eq!(catalog.shown(), "Heat's resource wait%20handle through https://keystone.example:5000/v3");
        assert_eq!(user("http://h:8004/v1/p/stacks/s/u/resources/h/signal").place(), "h:8004");
        let token = Destination::Token { endpoint: "http://h/resources/r/signal".into(), token: "hush".into(), insecure: false };
        let queue = Destination::Queue(Queue { credentials: credentials(), name: "s-handle-x".into() });
        assert_eq!(queue.place(), "keystone.example:5000");
        assert_eq!(queue.shown(), "Zaqar through https://keystone.example:5000/v3, queue s-handle-x");
        for destination in [signal, catalog, token, queue] {
            let debug = format!("{destination:?}");
            assert!(!debug.contains("hush") && !debug.contains("secret"), "{debug}");
        }
    }

    #[test]
    fn a_result_by_the_native_api_goes_to_the_resource_by_its_quoted_name() {
        let target =
            SignalTarget::Heat { credentials: credentials(), stack: "my%20stack/0a1b".into(), resource: "join node/é".into() };
        let to = "/stacks/my%20stack/0a1b/resources/join%20node%2F%C3%A9/signal".to_owned();
        assert_eq!(Destination::of(&target), Some(Destination::User { credentials: credentials(), to }));
        assert_eq!(Destination::of(&SignalTarget::Unsupported { name: "HEAT_SIGNAL without deploy_password".into() }), None);
    }
}
