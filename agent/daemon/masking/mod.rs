//! Hiding secrets in documents that are shown.
//!
//! In: documents that hold secrets (metadata, parameters, the agent's state), and a text that is to be shown. Out: the text with each
//! secret, and each private key, replaced. Never: a file; those who call it read and write.

use serde_json::{Map, Value};

use crate::budgets::json;
use crate::http::{MASK, redacted, without_userinfo};
use crate::kubernetes::{config_as_yaml, is_broken_url, readable_config};
use crate::report::text::with_unique_names;

mod by_name;
mod by_value;

use by_name::{is_secret, masked_words};
pub(crate) use by_value::{EntryMask, KnownSecrets, TextMask};

/// The group, or the tool of a component's part, whose config is parameters.
const NODE_GROUP: &str = "kubernetes-node";

/// The same document with secrets masked: by member name, and in `{name, value}` inputs by their name.
pub(crate) fn masked(value: &Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.iter().map(masked).collect()),
        Value::Object(members) => Value::Object(masked_members(members)),
        Value::String(text) => Value::String(masked_text(text)),
        scalar => scalar.clone(),
    }
}

/// The same document with the user names and passwords of URLs masked, and nothing else.
pub(crate) fn without_url_users(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(without_userinfo(&text).into_owned()),
        Value::Array(items) => items.into_iter().map(without_url_users).collect(),
        Value::Object(members) => {
            let shown = members.into_iter().map(|(key, value)| (without_userinfo(&key).into_owned(), without_url_users(value)));
            Value::Object(with_unique_names(shown))
        }
        scalar => scalar,
    }
}

/// JSON as text, as a wait condition handle's attribute `signal` is, whatever the input is called that carries it; also a list, or
/// text that was encoded twice.
fn json_within(text: &str) -> Option<Value> {
    let text = text.trim().trim_start_matches('\u{feff}').trim_start();
    if text.starts_with(['{', '[', '"']) { json::small(text.as_bytes()) } else { None }
}

/// JSON without the blanks between its values.
fn without_blanks(json: &str) -> String {
    let (mut is_inside, mut is_escaped) = (false, false);
    let mut is_shown = |c: char| {
        let is_blank = !is_inside && matches!(c, ' ' | '\t' | '\r' | '\n');
        is_inside ^= c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        !is_blank
    };
    json.chars().filter(|c| is_shown(*c)).collect()
}

fn masked_text(text: &str) -> String {
    // A text within a text has twice its backslashes, so that their depth is the logarithm of the length.
    let inner = json_within(text);
    match inner.map(|inner| masked(&inner).to_string()) {
        // As it is written, where what was judged is all that it says: a name may stand in it twice, of which the parser keeps the last.
        Some(shown) if without_blanks(text.trim()) == shown => text.to_owned(),
        Some(shown) => shown,
        // A pre-signed URL is a key by itself, whatever it is called.
        None if text.contains("Signature=") || text.contains("temp_url_sig=") => redacted(text),
        None if text.contains("PRIVATE KEY-----") => MASK.to_owned(),
        None => without_userinfo(&masked_words(text)).into_owned(),
    }
}

/// How a member of an object is shown.
enum MemberView<'a> {
    /// As the group's own config, which is read as the agent reads it, in whatever form it is written.
    Config(&'a str),
    Hidden,
    /// With whatever it holds masked by itself.
    Inside,
}

/// Whether nothing of a value of this name is shown.
fn hides_value(name: &str, value: &Value) -> bool {
    // A URL that is none: nobody can tell where in it a password ends.
    let is_hidden = is_secret(name) || value.as_str().is_some_and(|text| is_broken_url(name, text));
    is_hidden && !value.is_null() && value != ""
}

fn views(members: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value, MemberView<'_>)> {
    let named = members.get("name").and_then(Value::as_str);
    let of_node = ["group", "tool"].iter().any(|key| members.get(*key).is_some_and(|value| value == NODE_GROUP));
    members.iter().map(move |(key, value)| {
        let name = named.filter(|_| key == "value" || key == "default").unwrap_or(key);
        let view = match value {
            Value::String(text) if of_node && key == "config" => MemberView::Config(text),
            value if hides_value(name, value) => MemberView::Hidden,
            _ => MemberView::Inside,
        };
        (key, value, view)
    })
}

fn masked_members(members: &Map<String, Value>) -> Map<String, Value> {
    let shown = views(members).map(|(key, value, view)| match view {
        MemberView::Config(text) => (key.clone(), Value::String(masked_config(text))),
        // What is in the place of a name may be a text with a secret.
        MemberView::Hidden => (masked_text(key), Value::String(MASK.to_owned())),
        MemberView::Inside => (masked_text(key), masked(value)),
    });
    with_unique_names(shown)
}

/// A config as text: as YAML, without its comments, which may hold anything. One that cannot be read is not shown at all.
fn masked_config(text: &str) -> String {
    match readable_config(&Value::String(text.to_owned())) {
        Some(parameters) if parameters.is_empty() => String::new(),
        Some(parameters) if text.trim_start().starts_with('{') => Value::Object(masked_members(&parameters)).to_string(),
        Some(parameters) => config_as_yaml(masked_members(&parameters)),
        None => format!("<not parseable: {} bytes, masked; --show-secrets shows it>", text.len()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_url_parameter_that_is_no_url_and_a_private_key_are_masked_whole() {
        for value in ["https:/u:s3@h", "u:s3@h", "//u:s3@h", "https://u:s3/q@h", "https://u:s3%40h", "https://u s:s3@h"] {
            let name = "STATIC_POD_URL";
            let inputs = json!([{"name": name, "value": value}, {"name": "x", "value": "-----BEGIN PRIVATE KEY-----\ns3"}]);
            let config = format!("static_pod_url: '{value}'\n");
            let shown = masked(&json!({"inputs": inputs, "group": "kubernetes-node", "config": config})).to_string();
            assert!(!shown.contains("s3"), "{shown}");
        }
        let good = json!({"name": "AUTH_URL", "value": "https://keystone.example.org:5000/v3"});
        assert_eq!(masked(&good), good);
    }

    #[test]
    fn json_as_text_is_masked_in_whatever_form_it_is_a_text() {
        let secret = json!({"auth_url": "http://k/v3", "password": "s3 s3"});
        let (once, list) = (secret.to_string(), json!(["x", secret]).to_string());
        for text in [
            json!(once).to_string(),
            json!(json!(once).to_string()).to_string(),
            json!({"a": [list]}).to_string(),
            list,
            format!("\u{feff}{once}"),
            format!("\u{a0}{once}"),
            format!("{once} x"),
            r#"{"auth_url": "http://k/v3", "password": "s3", "password": null}"#.to_owned(),
            r#"["http://k/v3", {"token": "s3", "x": 1, "token": ""}]"#.to_owned(),
            r#"{"u": {"password": "s3"}, "u": "http://k/v3"}"#.to_owned(),
            format!("x={once}"),
            format!("{},}}", once.trim_end_matches('}')),
            json!(once).to_string().trim_end_matches('"').to_owned(),
            format!("{{\"a\": \"{}\", {}", "x".repeat(3 << 20), &once[1..]),
            "password: s3\nauth_url: http://k/v3\n".to_owned(),
        ] {
            let shown = masked(&json!([{"name": "handle", "value": text}])).to_string();
            assert!(!shown.contains("s3") && shown.contains("http://k/v3"), "{text:.200}: {shown:.400}");
        }
    }

    #[test]
    fn names_are_masked_as_texts_are_and_stay_as_many() {
        let key = "-----BEGIN PRIVATE KEY-----\ns3";
        let handle = json!({"password": "s3"}).to_string();
        let names = json!({"https://u:s3@h": 1, "https://v:s3@h": 2, "http://h/x?Signature=s3": 3, key: 4, handle: 5, "X-Auth-Token": null});
        let shown = masked(&names);
        assert!(!shown.to_string().contains("s3") && shown.as_object().unwrap().len() == 6, "{shown}");
        assert_eq!((&shown["https://******@h"], &shown["https://******@h (2)"]), (&json!(1), &json!(2)));
        assert!(shown.get("X-Auth-Token").is_some(), "{shown}");
        let shown = without_url_users(json!({"https://u:s3@h": "x", "https://v:s3@h": "y"}));
        assert_eq!(shown, json!({"https://******@h": "x", "https://******@h (2)": "y"}));
        let entry =
            json!({"id": "https://u:s3@h", "name": "https://u:s3@h", "inputs": [{"name": "https://u:s3@h", "value": "x"}]});
        assert!(!masked(&entry).to_string().contains("s3"));
        let config = json!({"group": "kubernetes-node", "config": "'https://u:s3@h': x\nROLE: master\n"});
        assert!(!masked(&config).to_string().contains("s3"));
    }

    #[test]
    fn a_config_is_masked_by_the_table_of_parameters_in_whatever_form_it_is_written() {
        let shown = |key: &str, config: &str| {
            let shown = masked(&json!({key: "kubernetes-node", "config": config}));
            assert!(!shown.to_string().contains("s3"), "{shown}");
            shown["config"].as_str().unwrap().to_owned()
        };
        for key in ["group", "tool"] {
            let yaml = "# was s3\nROLE: master\nca_key: s3\nBOOTSTRAP_TOKEN: [s3, s3]\nHTTP_PROXY: 'http://u:s3@p'\nAUTH_URL: http://u:s3@k/v3\n";
            assert_eq!(
                shown(key, yaml).replace('"', ""),
                "ROLE: master\nca_key: ******\nBOOTSTRAP_TOKEN: ******\nHTTP_PROXY: ******\nAUTH_URL: http://******@k/v3\n"
            );
            assert_eq!(shown(key, r#"{"ROLE": "minion", "CA_KEY": "s3"}"#), r#"{"ROLE":"minion","CA_KEY":"******"}"#);
            for bad in ["{\"CA_KEY\": \"s3\"", "CA_KEY: {a: s3}", "CA_KEY: s3\nCA_KEY: s3", "CA_KEY: &x s3", "s3", "- s3"] {
                let wanted = format!("<not parseable: {} bytes, masked; --show-secrets shows it>", bad.len());
                assert_eq!(shown(key, bad), wanted);
            }
            assert_eq!(shown(key, ""), "");
        }
        // Another group's is code.
        assert_eq!(masked(&json!({"group": "script", "config": "a: b # c"})), json!({"group": "script", "config": "a: b # c"}));
    }

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
        assert_eq!(masked(&json!({"auth_url": "http://u:s3@h/v3"})), json!({"auth_url": "http://******@h/v3"}));
        assert_eq!(masked(&json!({"metadata_url": "http://h/v1/x?temp_url_sig=s3"})), json!({"metadata_url": "http://h/v1/x?…"}));
    }
}
