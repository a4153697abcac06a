//! Holds the documents that programs read to their schemas in docs/schemas: for tests alone.
//!
//! What draft 2020-12 has and these schemas use is known here, and any other keyword fails. The crates for it bring second versions of
//! crates that the agent has; the host tests hold the same schemas to what a running agent says, by python3-jsonschema.

use serde_json::{Map, Value};

use crate::files::Tree;

/// Keywords that say nothing of what is allowed.
const NOTES: [&str; 4] = ["$schema", "$defs", "title", "description"];

/// The schema of a command's document.
fn schema(command: &str) -> Value {
    let folder =
        Tree::open(std::path::Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap().subtree(std::path::Path::new("docs/schemas"));
    let text = folder.unwrap().read(std::path::Path::new(&format!("{command}.json")), 1 << 20).unwrap().unwrap();
    crate::budgets::json::typed(std::str::from_utf8(&text).unwrap()).unwrap()
}

/// Fails where a document is not as its command's schema says.
#[track_caller]
pub(crate) fn assert_fits(command: &str, document: &Value) {
    let schema = schema(command);
    let mut wrong = Vec::new();
    check(&schema, &schema, document, command, &mut wrong);
    assert!(wrong.is_empty(), "{}\n{document:#}", wrong.join("\n"));
}

fn check(root: &Value, schema: &Value, value: &Value, at: &str, wrong: &mut Vec<String>) {
    let rules = schema.as_object().unwrap();
    for (keyword, rule) in rules {
        let fits = match keyword.as_str() {
            "type" => has_type(rule, value),
            "const" => rule == value,
            "enum" => rule.as_array().unwrap().contains(value),
            "minimum" => value.as_f64().is_none_or(|number| number >= rule.as_f64().unwrap()),
            "minProperties" => value.as_object().is_none_or(|members| members.len() as u64 >= rule.as_u64().unwrap()),
            "maxProperties" => value.as_object().is_none_or(|members| members.len() as u64 <= rule.as_u64().unwrap()),
            "minItems" => value.as_array().is_none_or(|items| items.len() as u64 >= rule.as_u64().unwrap()),
            "required" => value
                .as_object()
                .is_none_or(|members| rule.as_array().unwrap().iter().all(|name| members.contains_key(name.as_str().unwrap()))),
            "anyOf" => rule.as_array().unwrap().iter().any(|one| {
                let mut found = Vec::new();
                check(root, one, value, at, &mut found);
                found.is_empty()
            }),
            "$ref" => {
                let target = root.pointer(rule.as_str().unwrap().trim_start_matches('#')).unwrap();
                check(root, target, value, at, wrong);
                true
            }
            "properties" | "additionalProperties" => true,
            "items" | "prefixItems" => {
                for (number, item) in value.as_array().into_iter().flatten().enumerate() {
                    let places = rules.get("prefixItems").and_then(|places| places.get(number));
                    if let Some(rule) = places.or_else(|| rules.get("items")).filter(|rule| **rule != Value::Bool(false)) {
                        check(root, rule, item, &format!("{at}[{number}]"), wrong);
                    } else if rules.get("items") == Some(&Value::Bool(false)) {
                        wrong.push(format!("{at}[{number}]: one too many"));
                    }
                }
                true
            }
            other => {
                assert!(NOTES.contains(&other), "{at}: the keyword {other} of the schema is not known here");
                true
            }
        };
        if !fits {
            wrong.push(format!("{at}: {value} is not as {keyword} {rule} asks for"));
        }
    }
    check_members(root, rules, value, at, wrong);
}

fn check_members(root: &Value, rules: &Map<String, Value>, value: &Value, at: &str, wrong: &mut Vec<String>) {
    let known = rules.get("properties").and_then(Value::as_object);
    let others = rules.get("additionalProperties");
    for (name, member) in value.as_object().into_iter().flatten() {
        let at = format!("{at}.{name}");
        match (known.and_then(|known| known.get(name)), others) {
            (Some(rule), _) => check(root, rule, member, &at, wrong),
            (None, Some(Value::Bool(false))) => wrong.push(format!("{at}: the schema has no such member")),
            (None, Some(rule)) if rule.is_object() => check(root, rule, member, &at, wrong),
            (None, _) => {}
        }
    }
}

fn has_type(rule: &Value, value: &Value) -> bool {
    let is = |name: &str| match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other} is no type"),
    };
    match rule {
        Value::Array(names) => names.iter().any(|name| is(name.as_str().unwrap())),
        name => is(name.as_str().unwrap()),
    }
}

#[test]
fn what_a_schema_does_not_allow_is_found() {
    let page = serde_json::json!({"schema_version": 1, "source": null, "key": "a.b", "masked": true, "value": [1]});
    let with = |change: fn(&mut Map<String, Value>)| {
        let mut page = page.clone();
        change(page.as_object_mut().unwrap());
        let schema = schema("metadata");
        let mut wrong = Vec::new();
        check(&schema, &schema, &page, "metadata", &mut wrong);
        wrong.join("; ")
    };
    assert_eq!(with(|_| {}), "");
    for (change, expected) in [
        ((|page| drop(page.remove("masked"))) as fn(&mut Map<String, Value>), "required"),
        (|page| drop(page.insert("more".into(), Value::Null)), "no such member"),
        (|page| drop(page.insert("masked".into(), "yes".into())), "type"),
        (|page| drop(page.insert("schema_version".into(), 2.into())), "const"),
    ] {
        assert!(with(change).contains(expected), "{expected}: {}", with(change));
    }
}
