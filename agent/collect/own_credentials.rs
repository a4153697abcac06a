//! With what the server may speak to Heat itself, beside asking for its metadata.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::known_sources::SourceHints;
use super::source_set::{HintOrigin, SourceSet};
use crate::openstack::aws_signature::Keys;
use crate::openstack::keystone::{Credentials, Scope};
use crate::settings::source_name::SourceName;

/// The server's own credentials, each with the address that the same document named for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnCredentials {
    /// Base URL of heat-api-cfn and the server's key pair.
    pub cfn: Option<(String, Keys)>,
    /// The server's stack user.
    pub user: Option<Credentials>,
    /// CA certificates that are named for these endpoints.
    pub ca: Option<PathBuf>,
}

impl OwnCredentials {
    /// Of the sets by which sources are asked, each with the CA that this machine's files name for it.
    pub(super) fn new<'a>(sets: impl Iterator<Item = (SourceSet, Option<&'a str>)>) -> Self {
        let mut credentials = Self::default();
        for (set, ca) in sets {
            credentials.cfn = credentials.cfn.or_else(|| set.signer());
            credentials.user = credentials.user.or_else(|| set.user());
            credentials.ca = credentials.ca.or_else(|| set.endpoint(ca).ca().map(PathBuf::from));
        }
        credentials
    }

    /// What one document names, that of `--metadata`: signals need no more of a set than an address and the credentials for it.
    #[must_use]
    pub fn of_document(document: &Map<String, Value>) -> Self {
        let hints = SourceHints::by_document(HintOrigin::Given, document);
        let text = |source, key| hints.of(source)?.get(key).map(str::to_owned);
        let cfn = || {
            let keys =
                Keys { access: text(SourceName::Cfn, "access_key_id")?, secret: text(SourceName::Cfn, "secret_access_key")? };
            Some((text(SourceName::Cfn, "metadata_url")?, keys))
        };
        let user = |source| {
            Some(Credentials {
                auth_url: text(source, "auth_url")?,
                user_id: text(source, "user_id")?,
                password: text(source, "password")?,
                scope: Scope::Project(text(source, "project_id")?),
                region: text(source, "region_name"),
            })
        };
        Self { cfn: cfn(), user: user(SourceName::Heat).or_else(|| user(SourceName::Zaqar)), ca: None }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn credentials_of(sources: &Value) -> OwnCredentials {
        OwnCredentials::of_document(json!({"os-collect-config": sources}).as_object().unwrap())
    }

    #[test]
    fn keys_and_user_are_taken_whole_or_not_at_all() {
        let cfn = json!({"metadata_url": "http://h:8000/v1/", "access_key_id": "A", "secret_access_key": "hush"});
        let heat =
            json!({"auth_url": "http://k:5000/v3", "user_id": "u", "password": "hush", "project_id": "p", "region_name": null});
        let credentials = credentials_of(&json!({"cfn": cfn, "heat": heat}));
        let (base, keys) = credentials.cfn.clone().unwrap();
        assert_eq!((base.as_str(), keys.access.as_str(), keys.secret.as_str()), ("http://h:8000/v1/", "A", "hush"));
        let user = credentials.user.clone().unwrap();
        assert_eq!((user.user_id.as_str(), user.password.as_str(), user.region), ("u", "hush", None));
        assert!(!format!("{credentials:?}").contains("hush"));
        // What Heat leaves of the transport that is no longer used (heat-protocol.md 3.5).
        for without in [
            json!({"cfn": {"metadata_url": "http://h/", "access_key_id": "A", "secret_access_key": null}}),
            json!({"cfn": []}),
            json!(null),
        ] {
            assert_eq!(credentials_of(&without), OwnCredentials::default());
        }
    }
}
