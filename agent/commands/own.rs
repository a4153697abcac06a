//! What the server itself may speak to Heat with, read from its metadata.

use serde_json::{Map, Value};

use crate::openstack::aws_signature::Keys;
use crate::openstack::keystone::{Credentials, Scope};
use crate::signal::Own;

/// What the server may speak to Heat with: the settings of its sources, as Heat and cloud-init give them.
pub(super) fn own(metadata: &Map<String, Value>) -> Own {
    let text = |source: &str, key: &str| {
        let value = metadata.get("os-collect-config")?.get(source)?.get(key)?.as_str()?;
        (!value.is_empty()).then(|| value.to_owned())
    };
    let cfn = || {
        let keys = Keys { access: text("cfn", "access_key_id")?, secret: text("cfn", "secret_access_key")? };
        Some((text("cfn", "metadata_url")?, keys))
    };
    let user = || {
        Some(Credentials {
            auth_url: text("heat", "auth_url")?,
            user_id: text("heat", "user_id")?,
            password: text("heat", "password")?,
            scope: Scope::Project(text("heat", "project_id")?),
            region: text("heat", "region_name"),
        })
    };
    Own { cfn: cfn(), user: user(), ca: None }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn own_of(sources: &Value) -> Own {
        own(json!({"os-collect-config": sources}).as_object().unwrap())
    }

    #[test]
    fn keys_and_user_are_taken_whole_or_not_at_all() {
        let cfn = json!({"metadata_url": "http://h:8000/v1/", "access_key_id": "A", "secret_access_key": "hush"});
        let heat =
            json!({"auth_url": "http://k:5000/v3", "user_id": "u", "password": "hush", "project_id": "p", "region_name": null});
        let own = own_of(&json!({"cfn": cfn, "heat": heat}));
        let (base, keys) = own.cfn.clone().unwrap();
        assert_eq!((base.as_str(), keys.access.as_str(), keys.secret.as_str()), ("http://h:8000/v1/", "A", "hush"));
        let user = own.user.clone().unwrap();
        assert_eq!((user.user_id.as_str(), user.password.as_str(), user.region), ("u", "hush", None));
        assert!(!format!("{own:?}").contains("hush"));
        // What Heat leaves of the transport that is no longer used (heat-protocol.md 3.5).
        for without in [
            json!({"cfn": {"metadata_url": "http://h/", "access_key_id": "A", "secret_access_key": null}}),
            json!({"cfn": []}),
            json!(null),
        ] {
            assert_eq!(own_of(&without), Own::default());
        }
    }
}
