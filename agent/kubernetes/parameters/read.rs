//! The parameters of one `kubernetes-node` deployment, read from its inputs and its config and
//! checked against the table. Every mistake is named at once; a secret value never is.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use reqwest::Url;
use serde_json::{Map, Value};

use super::config_text;
use super::kinds::ParameterKind;
use super::mistake::{CORRECT, LISTED, Mistake, PRIVATE_KEY};
use super::table::{Parameter, TABLE, find, nearest};
use crate::budgets::json;
use crate::http::without_userinfo;
use crate::metadata::{Deployment, python_text};

/// Inputs that Heat adds by itself to every deployment begin with this (heat-protocol.md 3.4); they are no parameters.
const HEAT_INPUT_PREFIX: &str = "deploy_";

/// Longest name that no parameter has and that a mistake repeats, in characters.
const LONGEST_NAME: usize = 64;

/// Unknown names of one place for which the parameter that was meant is looked for: each costs a comparison with the whole table.
const COMPARED: usize = 10;

/// A shorter secret is looked for as a whole name only: its letters are in many names.
const SHORTEST_SECRET: usize = 4;

/// The checked parameters. Their `Debug` masks secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Parameters {
    given: BTreeMap<&'static str, String>,
    stack: Option<String>,
}

impl fmt::Debug for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |name: &'static str, value| if is_secret(name) { "***".into() } else { without_userinfo(value) };
        f.debug_map().entries(self.given.iter().map(|(name, value)| (name, shown(name, value.as_str())))).finish()
    }
}

impl Parameters {
    /// Reads the inputs and the config; an input wins over the config's value of the same name.
    ///
    /// # Errors
    /// Every mistake at once.
    pub fn from_deployment(deployment: &Deployment) -> Result<Self, Vec<Mistake>> {
        let (parameters, mistakes) = Self::read(deployment);
        if mistakes.is_empty() { Ok(parameters) } else { Err(mistakes) }
    }

    /// What can be read, and every mistake: so that those between parameters are found along with those of values.
    pub(in crate::kubernetes) fn read(deployment: &Deployment) -> (Self, Vec<Mistake>) {
        let mut mistakes = Vec::new();
        let config = match config_text::map(&deployment.config) {
            Ok(map) => map,
            Err(mistake) => {
                mistakes.push(mistake);
                Map::new()
            }
        };
        let mut given = BTreeMap::new();
        let config: Vec<(&str, &Value)> = config.iter().map(|(name, value)| (name.as_str(), value)).collect();
        let inputs = deployment.inputs.iter().filter(|input| !input.name.starts_with(HEAT_INPUT_PREFIX));
        let inputs: Vec<(&str, &Value)> = inputs.map(|input| (input.name.as_str(), &input.value)).collect();
        let secrets = config.iter().chain(&inputs).filter(|(name, _)| is_secret(name));
        let secrets: Vec<String> = secrets.map(|(_, value)| python_text(value).trim().to_owned()).collect();
        collect(&config, "config", &secrets, &mut given, &mut mistakes);
        collect(&inputs, "the inputs", &secrets, &mut given, &mut mistakes);
        // `name/id`: the id alone stays the same when a stack is looked up by another name.
        let stack = deployment.resource().and_then(|(stack, _)| stack.rsplit('/').next().map(str::to_owned));
        (Self { given, stack: stack.filter(|id| !id.is_empty()) }, mistakes)
    }

    /// The value, or the table's default; nothing where neither is there.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        debug_assert!(TABLE.iter().any(|parameter| parameter.name == name), "{name} is not in the table");
        let default = || find(name).map(|parameter| parameter.default).filter(|default| !default.is_empty());
        self.given(name).or_else(default)
    }

    /// The items of a list, without empty ones.
    pub fn items<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        self.get(name).unwrap_or_default().split(',').filter(|item| !item.is_empty())
    }

    /// The value only where it was given.
    #[must_use]
    pub fn given(&self, name: &str) -> Option<&str> {
        self.given.get(name).map(String::as_str)
    }

    /// WAIT_HANDLE, Magnum's WAIT_CURL, or WAIT_HANDLE_ENDPOINT with its token, as it was given, a map where it is one; `signal` understands it. An empty map is
    /// NO_SIGNAL: Heat counts polls.
    #[must_use]
    pub fn wait_handle(&self) -> Option<Value> {
        let Some(handle) = self.get("WAIT_HANDLE").or_else(|| self.get("WAIT_CURL")) else {
            let (endpoint, token) = (self.get("WAIT_HANDLE_ENDPOINT"), self.get("WAIT_HANDLE_TOKEN"));
            // One without the other is named as a handle that cannot be understood.
            return (endpoint.is_some() || token.is_some()).then(|| serde_json::json!({"endpoint": endpoint, "token": token}));
        };
        let value = if handle.starts_with('{') { json::small(handle.as_bytes()) } else { None };
        value.or_else(|| Some(Value::from(handle))).filter(|value| !value.as_object().is_some_and(Map::is_empty))
    }

    /// A boolean parameter; absent without a default is false.
    #[must_use]
    pub fn is_true(&self, name: &str) -> bool {
        self.get(name) == Some("true")
    }

    /// A number; the kind's check has bounded it.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u32> {
        self.get(name)?.parse().ok()
    }

    /// Id of the stack that the deployment belongs to, where Heat sent it.
    #[must_use]
    pub fn stack(&self) -> Option<&str> {
        self.stack.as_deref()
    }

    /// Every secret value that was given, for masking: also the texts inside a handle's map and the password of a URL.
    #[must_use]
    pub fn secrets(&self) -> Vec<String> {
        let maps = self.secret_values().into_iter().filter_map(|value| json::small(value.as_bytes()));
        let texts = |map: Value| map.as_object().map(|map| map.values().filter_map(Value::as_str).map(str::to_owned).collect());
        let texts: Vec<Vec<String>> = maps.filter_map(texts).collect();
        self.secret_values().into_iter().chain(texts.into_iter().flatten()).collect()
    }

    /// The same as they were given, whole: what is harmless in a handle's map, the address of Keystone, say, is none by itself.
    #[must_use]
    pub fn secret_values(&self) -> Vec<String> {
        let secret = self.given.iter().filter(|(name, _)| is_secret(name)).map(|(_, value)| value.clone());
        let password = |value: &String| Url::parse(value).ok().and_then(|url| url.password().map(str::to_owned));
        // Of an object store's URL the signature.
        let query = self.given.get("STATIC_POD_URL").and_then(|url| Some(url.split_once('?')?.1.to_owned()));
        secret.chain(self.given.values().filter_map(password)).chain(query.filter(|query| !query.is_empty())).collect()
    }
}

fn is_secret(name: &str) -> bool {
    find(name).is_some_and(|parameter| parameter.secret)
}

/// The name of something that is no parameter, as it may be shown. What is in the place of a name by mistake may be a secret: one that
/// is known, or a key or a text that could be one.
fn unknown_name(name: &str, secrets: &[String]) -> String {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let holds = |secret: &String| name == secret || (secret.len() >= SHORTEST_SECRET && name.contains(secret.as_str()));
    let count = name.chars().count();
    if count <= LONGEST_NAME && name.chars().all(is_name) && !secrets.iter().any(holds) {
        return name.to_owned();
    }
    format!("*** ({count} characters)")
}

/// What an unknown name breaks.
const KNOWN_NAMES: &str = "only known names are accepted";

fn no_parameter(name: &str, meant: Option<&str>) -> Mistake {
    let remedy = match meant {
        Some(meant) => format!("did you mean {meant}? Otherwise remove it"),
        None => "remove it".to_owned(),
    };
    Mistake::general(name, "is not a parameter of kubernetes-node", KNOWN_NAMES, remedy)
}

fn collect(
    pairs: &[(&str, &Value)],
    place: &str,
    secrets: &[String],
    given: &mut BTreeMap<&'static str, String>,
    mistakes: &mut Vec<Mistake>,
) {
    let (mut seen, mut repeated, mut unknown) = (BTreeSet::new(), BTreeSet::new(), 0);
    for &(name, value) in pairs {
        let Some(parameter) = find(name) else {
            unknown += 1;
            if unknown <= LISTED {
                let meant = if unknown <= COMPARED { nearest(name) } else { None };
                mistakes.push(no_parameter(&unknown_name(name, secrets), meant));
            }
            continue;
        };
        if !seen.insert(parameter.name) {
            if repeated.insert(parameter.name) {
                let problem = format!("is given twice in {place}");
                mistakes.push(Mistake::general(
                    parameter.name,
                    problem,
                    "each name once, in any letter case",
                    "remove one of them",
                ));
            }
            continue;
        }
        match text_of(parameter, value) {
            None => {
                let remedy = format!("give {}", parameter.kind.rule());
                // It is not repeated: whatever hides a secret in a text looks for words, not for JSON.
                mistakes.push(Mistake { value: None, ..Mistake::of_value(parameter, "", "is a list or map", remedy) });
            }
            // Null, empty and absent are the same: Heat has no other way to leave an input out.
            Some(text) if text.is_empty() => {}
            // What a template, Python or JSON writes where there was no value: no name, image or option is called so.
            Some(text) if parameter.kind.is_free() && matches!(text.as_str(), "None" | "null") => {
                let remedy = "omit it or leave it empty in the template, or give a value";
                mistakes.push(Mistake::of_value(parameter, &text, "is the text of a null value", remedy));
            }
            Some(text) => match parameter.kind.normalised(&text) {
                // What is no secret is shown, and written for everybody to read.
                Some(value) if !parameter.secret && value.contains(PRIVATE_KEY) => mistakes.push(Mistake::general(
                    parameter.name,
                    "contains a private key",
                    format!("this parameter is public: {}", parameter.meaning),
                    "give the public part, and replace the key wherever it is already in use",
                )),
                Some(value) => {
                    given.insert(parameter.name, value);
                }
                None => mistakes.push(Mistake::of_value(parameter, &text, parameter.kind.problem(), CORRECT)),
            },
        }
    }
    if unknown > LISTED {
        let problem = format!("{} more names are not parameters of kubernetes-node", unknown - LISTED);
        mistakes.push(Mistake::general(place, problem, KNOWN_NAMES, "remove them"));
    }
}

/// A value as text: numbers and booleans as Heat renders them, lists joined by commas where a list is meant.
fn text_of(parameter: &Parameter, value: &Value) -> Option<String> {
    match (value, parameter.kind) {
        (Value::Null, _) => Some(String::new()),
        (Value::Object(_), ParameterKind::Handle | ParameterKind::Map) => Some(value.to_string()),
        (Value::Array(items), ParameterKind::List) if items.iter().all(|item| !item.is_array() && !item.is_object()) => {
            Some(items.iter().map(python_text).collect::<Vec<_>>().join(","))
        }
        (Value::Array(_) | Value::Object(_), _) => None,
        (scalar, _) => Some(python_text(scalar).trim().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(config: &Value, inputs: &[(&str, Value)]) -> Result<Parameters, Vec<Mistake>> {
        let inputs: Vec<_> = inputs.iter().map(|(name, value)| json!({"name": name, "type": "String", "value": value})).collect();
        let entry = json!({"id": "i", "group": "kubernetes-node", "config": config, "inputs": inputs});
        Parameters::from_deployment(&Deployment::parse(&entry).unwrap().unwrap())
    }

    fn mistakes(config: &Value, inputs: &[(&str, Value)]) -> Vec<String> {
        read(config, inputs).unwrap_err().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn any_letter_case_and_every_way_that_heat_renders_a_value() {
        let parameters = read(
            &json!({"kube_api_port": 8080, "KUBE_NODE_IP": "192.0.2.1"}),
            &[
                ("Tls_Disabled", json!("True")),
                ("kube_node_ip", json!("192.0.2.2\n")),
                ("DOCKER_VOLUME_SIZE", json!("10")),
                ("no_proxy", json!(["a", "b"])),
                ("ETCD_VOLUME", json!("")),
                ("INSTANCE_NAME", json!(null)),
                ("verify_ca", json!(false)),
                ("deploy_action", json!("CREATE")),
                ("deploy_stack_id", json!("bay/0a1b")),
                ("deploy_resource_name", json!("node")),
                ("WAIT_HANDLE", json!({"alarm_url": "http://192.0.2.9/x"})),
            ],
        )
        .unwrap();
        for (name, value) in [
            ("KUBE_API_PORT", Some("8080")),
            ("KUBE_NODE_IP", Some("192.0.2.2")),
            ("TLS_DISABLED", Some("true")),
            ("DOCKER_VOLUME_SIZE", Some("10")),
            ("NO_PROXY", Some("a,b")),
            ("ETCD_VOLUME", None),
            ("INSTANCE_NAME", None),
            ("VERIFY_CA", Some("false")),
            ("FLANNEL_BACKEND", Some("host-gw")),
        ] {
            assert_eq!(parameters.get(name), value, "{name}");
        }
        assert_eq!(parameters.stack(), Some("0a1b"));
        assert_eq!(parameters.secrets(), [r#"{"alarm_url":"http://192.0.2.9/x"}"#, "http://192.0.2.9/x"]);
        let proxy = read(&json!({"HTTP_PROXY": "http://user:hunter2@proxy.example.org", "ROLE": "master"}), &[]).unwrap();
        assert_eq!(proxy.secrets(), ["http://user:hunter2@proxy.example.org", "hunter2"]);
        assert_eq!(format!("{proxy:?}"), r#"{"HTTP_PROXY": "***", "ROLE": "master"}"#);
    }

    #[test]
    fn a_secret_in_the_place_of_a_name_is_not_repeated() {
        let key = "-----BEGIN PRIVATE KEY-----\nhush";
        let long = "h".repeat(65);
        for (name, expected) in [
            ("HTPP_PROXY", "HTPP_PROXY: is no"),
            ("some.other-name", "some.other-name: is no"),
            ("hunter2", "*** (7 characters): is no"),
            ("x-hunter2-y", "*** (11 characters): is no"),
            ("pass word", "*** (9 characters): is no"),
            (key, "*** (32 characters): is no"),
            (&long, "*** (65 characters): is no"),
        ] {
            let pairs = json!({"TRUSTEE_PASSWORD": "hunter2", name: "x"});
            for reported in [mistakes(&pairs, &[]), mistakes(&json!({"TRUSTEE_PASSWORD": "hunter2"}), &[(name, json!("x"))])] {
                assert!(reported.len() == 1 && reported[0].starts_with(expected), "{name}: {reported:?}");
            }
        }
        let twice = mistakes(&json!("hunter2: a\nhunter2: b\n"), &[]);
        assert!(twice.len() == 1 && twice[0].contains("has a name twice: line 2"), "{twice:?}");
        let twice = mistakes(&json!("ROLE: a\nROLE: b\n"), &[]);
        assert!(twice[0].contains("has ROLE twice: line 2"), "{twice:?}");
    }

    /// So many names come from no template: what they cost is linear, and what is said of them is bounded.
    #[test]
    fn of_many_unknown_or_repeated_names_the_first_are_listed_and_the_rest_is_counted() {
        let names: Map<String, Value> = (0..1_000).map(|number| (format!("KUBE_NODEIP{number:03}"), json!("x"))).collect();
        let found = mistakes(&Value::Object(names), &[]);
        assert_eq!(found.len(), LISTED + 1);
        assert!(found[COMPARED - 1].contains("did you mean KUBE_NODE_IP?"), "{found:?}");
        assert!(found[COMPARED].ends_with("remedy: remove it"), "{found:?}");
        assert_eq!(
            found[LISTED],
            "config: 950 more names are not parameters of kubernetes-node; rule: only known names are accepted; remedy: remove them"
        );
        let found = mistakes(&json!(null), &vec![("x", json!("y")); 20_000]);
        assert!(found.len() == LISTED + 1 && found[LISTED].starts_with("the inputs: 19950 more names"), "{found:?}");
        let found = mistakes(&json!(null), &vec![("ROLE", json!("master")); 20_000]);
        assert!(found.len() == 1 && found[0].contains("is given twice in the inputs"), "{found:?}");
    }

    /// 1 MiB of short lines is some hundred thousand values. Depth ends by the parser's own limit, or at the second level.
    #[test]
    fn yaml_is_bounded_by_the_memory_of_its_values_and_never_nested() {
        let keys: String = (0..40_000).map(|number| format!("k{number}:\n")).collect();
        let anchors = format!("a: &a [{}x]\nb: *a\n", "x,".repeat(1_000));
        for (text, problem) in [
            (format!("LABELS: [{}x]", "x,".repeat(200_000)), "is too long"),
            (format!("LABELS:\n{}", "- x\n".repeat(200_000)), "is too long"),
            (keys, "is too long"),
            (format!("a: \"{}\"", "x".repeat(crate::budgets::ANSWER_MEMORY)), "is too long"),
            (format!("a: {}", "[".repeat(500_000)), "config"),
            ("- ".repeat(50_000), "no key with a value"),
            ("? ".repeat(500_000), "config"),
            (anchors, "a nested value or an anchor"),
            ("a: *b\n".to_owned(), "config"),
        ] {
            let reported = mistakes(&json!(text), &[]);
            assert!(reported.len() == 1 && reported[0].contains(problem), "{}: {reported:?}", &text[..20.min(text.len())]);
        }
    }

    #[test]
    fn config_may_be_json_text_or_flat_lines() {
        for text in [
            r#"{"KUBE_NODE_IP": "192.0.2.1", "INSTANCE_NAME": "m"}"#,
            "---\n# a node\nKUBE_NODE_IP: 192.0.2.1  # fixed\nINSTANCE_NAME: 'm'\n\nROLE:\nVERIFY_CA: ~\n",
            "KUBE_NODE_IP: \"192.0.2.1\"\r\nINSTANCE_NAME: m\r\n",
        ] {
            let parameters = read(&json!(text), &[]).unwrap();
            assert_eq!(
                (parameters.get("KUBE_NODE_IP"), parameters.get("INSTANCE_NAME")),
                (Some("192.0.2.1"), Some("m")),
                "{text}"
            );
        }
        for (text, name, value) in [
            ("PASSWORD: 'it''s'", "PASSWORD", "it's"),
            ("KUBE_API_PORT: 06443\nINSTANCE_NAME: '1'", "KUBE_API_PORT", "6443"),
            ("NO_PROXY:\n- a\n- 192.0.2.0/24\n", "NO_PROXY", "a,192.0.2.0/24"),
            ("TLS_DISABLED: true", "TLS_DISABLED", "true"),
            ("CA_KEY: |\n  -----BEGIN X-----\n  AA\n  -----END X-----\n", "CA_KEY", "-----BEGIN X-----\nAA\n-----END X-----"),
            ("# nothing\n---\n# at all\n", "ROLE", ""),
        ] {
            assert_eq!(read(&json!(text), &[]).unwrap().get(name), Some(value).filter(|value| !value.is_empty()), "{text}");
        }
        for (text, place) in [
            ("KUBE_NODE_IP:\n  nested: 1\n", "line 2"),
            ("- a\n", "line 1"),
            ("ROLE: 'a\n", "line "),
            ("ROLE: master\nROLE: minion\n", "line 2"),
            ("{\"ROLE\": }", "line 1 column"),
            ("#!/bin/sh\necho: x; y\nexit", "line "),
            ("ROLE: &a master\nPASSWORD: *a\n", "line 1"),
            ("ROLE: !!python/name:os.system x\n", "line 1"),
            ("ROLE: master\n---\nROLE: minion\n", "line 2"),
            ("just words\n", "line 1"),
        ] {
            let found = mistakes(&json!(text), &[]).join("\n");
            assert!(found.starts_with("config: ") && found.contains(place) && found.contains("KEY: value"), "{text}: {found}");
        }
        assert!(mistakes(&json!([1]), &[])[0].contains("neither a map nor text"));
    }

    #[test]
    fn every_mistake_is_named_at_once_and_no_secret_is_shown() {
        let found = mistakes(
            &json!({"Role": "king", "HTTP_PROXY": "user:hunter2@proxy"}),
            &[
                ("FLANNEL_NETWORK_CIDR", json!("10.100.0.0/33")),
                ("kube_node_ip", json!("192.0.2.1")),
                ("KUBE_NODE_IP", json!("192.0.2.1")),
                ("KUBE_NODEIP", json!("x")),
                ("favourite\u{1b}colour", json!("red")),
                ("INSTANCE_NAME", json!("a\n[Service]")),
                ("DOCKER_VOLUME", json!({"id": 1})),
                ("REGION_NAME", json!("None")),
            ],
        );
        assert_eq!(
            found,
            [
                "ROLE: \"king\" is not allowed; rule: one of master, minion, control-plane, worker; remedy: correct the value in the template",
                "HTTP_PROXY: \"***\" is not an http URL; rule: http://host… or https://host…, at most 2048 characters; remedy: correct the value in the template",
                "FLANNEL_NETWORK_CIDR: \"10.100.0.0/33\" is not a network; rule: an IPv4 or IPv6 network: address/prefix length; remedy: correct the value in the template",
                "KUBE_NODE_IP: is given twice in the inputs; rule: each name once, in any letter case; remedy: remove one of them",
                "KUBE_NODEIP: is not a parameter of kubernetes-node; rule: only known names are accepted; remedy: did you mean KUBE_NODE_IP? Otherwise remove it",
                "*** (16 characters): is not a parameter of kubernetes-node; rule: only known names are accepted; remedy: remove it",
                "INSTANCE_NAME: \"a\\n[Service]\" is not a DNS label; rule: 1 to 63 lower-case letters, digits and -, neither beginning nor ending with - (a DNS label, RFC 1123); remedy: correct the value in the template",
                "DOCKER_VOLUME: is a list or map; rule: an OpenStack id: 8-4-4-4-12 lower-case hexadecimal digits; remedy: give an OpenStack id: 8-4-4-4-12 lower-case hexadecimal digits",
                "REGION_NAME: \"None\" is the text of a null value; rule: one word of at most 255 letters, digits and . _ : / @ + = ~ -; remedy: omit it or leave it empty in the template, or give a value",
            ]
        );
    }

    #[test]
    fn a_broken_url_and_a_private_key_are_never_repeated() {
        for (name, value) in [
            ("AUTH_URL", "https://u:hush/hush@h"),
            ("AUTH_URL", "https://u:hush#?hush@h"),
            ("AUTH_URL", "https://u:hush hush@h"),
            ("AUTH_URL", "u:hush@h"),
            ("MAGNUM_URL", "//u:hush@h"),
            ("AUTH_URL", "https://u:hush%40h"),
            ("STATIC_POD_URL", "https:/u:hush@h"),
            ("STATIC_POD_URL", "https:u:hush@h"),
            ("STATIC_POD_URL", "https:///u:hush@h"),
            ("INSECURE_REGISTRY_URL", "u:hush@h"),
            ("KUBE_NODE_IP", "http://u:hush/hush@h"),
            ("KUBE_SERVICE_ACCOUNT_KEY", "hush\n-----BEGIN PRIVATE KEY-----\nhush"),
            ("KUBE_SERVICE_ACCOUNT_KEY", "-----BEGIN PRIVATE KEY-----\nhush\n-----END PRIVATE KEY-----"),
            ("CA_CERTIFICATE", "-----BEGIN RSA PRIVATE KEY-----\\nhush\\n-----END RSA PRIVATE KEY-----"),
        ] {
            let found = mistakes(&json!({name: value}), &[]);
            assert!(found.len() == 1 && found[0].starts_with(name) && !found[0].contains("hush"), "{value}: {found:?}");
        }
        let found = mistakes(&json!({"AUTH_URL": "u:hush@h"}), &[]);
        assert_eq!(
            found,
            [
                "AUTH_URL: is not an http URL (8 characters, not shown: they may contain a secret); rule: http://host… or https://host…, at most 2048 characters; remedy: correct the value in the template"
            ]
        );
        let public = "-----BEGIN PUBLIC KEY-----\nAA\n-----END PUBLIC KEY-----";
        assert!(read(&json!({"KUBE_SERVICE_ACCOUNT_KEY": public}), &[]).is_ok());
    }

    proptest::proptest! {
        #[test]
        fn no_text_of_a_config_breaks_the_reader(text in "\\PC*|([A-Z_]{1,8}:[ ']{0,3}\\PC{0,9}\n){0,4}") {
            drop(read(&json!(text), &[]));
        }
    }
}
