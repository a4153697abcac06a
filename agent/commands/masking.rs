//! Hiding secrets in documents that are shown.

use serde_json::{Map, Value};

use crate::budgets::json;
use crate::http::redacted;
use crate::kubernetes::is_secret_parameter;

/// What stands in a secret's place.
const MASK: &str = "******";

/// Members whose values are secret wherever they stand, in lower case.
const SECRET: [&str; 9] = [
    "secret_access_key",
    "password",
    "deploy_password",
    "deploy_signal_id",
    "token",
    "user_token",
    "wait_handle",
    "curl_cli",
    "secret",
];

/// How the names that templates give to their own secrets end.
const SECRET_ENDS: [&str; 4] = ["password", "_passwd", "_secret", "_token"];

/// The same document with secrets masked: by member name, and in `{name, value}` inputs by their name.
pub(super) fn masked(value: &Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.iter().map(masked).collect()),
        Value::Object(members) => Value::Object(masked_members(members)),
        Value::String(text) => Value::String(masked_text(text)),
        scalar => scalar.clone(),
    }
}

fn masked_text(text: &str) -> String {
    // A wait condition handle's attribute `signal` is JSON as text, whatever the input is called that carries it.
    let inner = if text.trim_start().starts_with('{') { json::small(text.as_bytes()) } else { None };
    match inner.map(|inner| (masked(&inner), inner)) {
        Some((shown, inner)) if shown != inner => shown.to_string(),
        // A pre-signed URL is a key by itself, whatever it is called.
        None if text.contains("Signature=") || text.contains("temp_url_sig=") => redacted(text),
        // A curl line of Heat's or Magnum's with its token.
        None if text.to_ascii_lowercase().contains("x-auth-token") => MASK.to_owned(),
        Some(_) | None => text.to_owned(),
    }
}

fn masked_members(members: &Map<String, Value>) -> Map<String, Value> {
    let named = members.get("name").and_then(Value::as_str).is_some_and(is_secret);
    members
        .iter()
        .map(|(key, value)| {
            let hide = is_secret(key) || (named && (key == "value" || key == "default"));
            let shown = if hide && !value.is_null() && value != "" { Value::String(MASK.to_owned()) } else { masked(value) };
            (key.clone(), shown)
        })
        .collect()
}

fn is_secret(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    SECRET.contains(&lower.as_str()) || SECRET_ENDS.iter().any(|end| lower.ends_with(end)) || is_secret_parameter(name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_hidden_by_member_and_by_the_name_of_an_input() {
        let document = json!({"os-collect-config": {"cfn": {"secret_access_key": "s3", "stack_name": "n"}},
            "deployments": [{"inputs": [{"name": "deploy_signal_id", "value": "http://h?Signature=s3"}, {"name": "TRUSTEE_PASSWORD", "value": "s3"},
                {"name": "who", "value": "world"}, {"name": "deploy_password", "value": null}]}]});
        let shown = masked(&document);
        assert!(!shown.to_string().contains("s3"), "{shown}");
        assert_eq!(shown["deployments"][0]["inputs"][2]["value"], "world");
        assert_eq!(shown["os-collect-config"]["cfn"]["stack_name"], "n");
        assert_eq!(shown["deployments"][0]["inputs"][3]["value"], Value::Null);
        let handle = r#"{"auth_url": "http://k/v3", "password": "s3", "alarm_url": "http://h?Signature=s3"}"#;
        let shown = masked(&json!([{"name": "handle", "value": handle}])).to_string();
        assert!(!shown.contains("s3") && shown.contains("http://k/v3"), "{shown}");
        for plain in [r#"{"a":  1}"#, "{ echo a; }"] {
            assert_eq!(masked(&json!(plain)), json!(plain));
        }
        for theirs in [
            json!({"name": "admin_password", "value": "s3"}),
            json!({"name": "Api_Token", "value": "s3"}),
            json!({"name": "wait", "value": "curl -H 'X-Auth-Token: s3' http://h"}),
        ] {
            assert!(!masked(&theirs).to_string().contains("s3"), "{theirs}");
        }
        assert_eq!(masked(&json!({"metadata_url": "http://h/v1/x?temp_url_sig=s3"})), json!({"metadata_url": "http://h/v1/x?…"}));
    }
}
