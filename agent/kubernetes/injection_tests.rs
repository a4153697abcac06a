//! No value of a parameter can add a line, a key, a section, a flag or a word to any file of a node: whatever the value,
//! files have the shape that a plain value gives them.

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Map, Value, json};

use super::parameters::heat_params;
use super::parameters::kinds::ParameterKind;
use super::parameters::table::{Parameter, TABLE};
use super::versions::Minor;
use super::{MachineFacts, node_of, render};
use crate::metadata::Deployment;

/// Values that an attacker or a typing error would try, without a comma, which makes a list longer.
const HOSTILE: &str = "[a-z\"'\\\\$%#;:=\\[\\]{}<>|&`!*?~^()@/ \t-]{1,24}|--[a-z]{1,8}=[a-z]{1,8} --[a-z]{1,8}|[a-z]{1,4} #[a-z]{1,4}|%[a-zA-Z%]|\\$\\{[A-Z]{1,8}\\}|[a-z]{1,5}\"?\\]?\n?\\[?[A-Z][a-z]{1,6}\\]?\n?[A-Z][a-z]{1,5}=[a-z]{1,5}";

/// The parameters whose value is nearly free.
fn free() -> Vec<&'static Parameter> {
    // Options are flags by their nature; each is checked by the table of versions.
    TABLE
        .iter()
        .filter(|row| {
            matches!(
                row.kind,
                ParameterKind::Word | ParameterKind::Text | ParameterKind::List | ParameterKind::HostPort | ParameterKind::Url
            )
        })
        .collect()
}

pub(super) fn sample(name: &str) -> Map<String, Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubernetes/heat-params").join(name);
    heat_params::parse(&std::fs::read_to_string(path).unwrap()).unwrap().parameters
}

/// Path → its lines without what stands behind the key, and how many words a unit makes of each variable.
fn shape(config: &Map<String, Value>) -> Option<BTreeMap<String, Vec<String>>> {
    let entry = json!({"id": "i", "group": "kubernetes-node", "config": config});
    let spec = node_of(&Deployment::parse(&entry).unwrap().unwrap(), &crate::kubernetes::ImagePolicy::everything()).ok()?;
    let desired = render(&spec, &MachineFacts::default()).unwrap();
    let files = desired.files.into_iter().map(|file| {
        let lines = file.content.split('\n').map(skeleton).collect();
        (file.path, lines)
    });
    Some(files.collect())
}

/// The same where a registry's host is `plain`: it is the name of a directory and of a section, so that one as harmless as that word gives
/// them its name.
fn with_plain_host(shape: BTreeMap<String, Vec<String>>, host: &str) -> BTreeMap<String, Vec<String>> {
    if host.is_empty() || !host.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return shape;
    }
    let plain = |text: String, of: &str| if text == of.replace("plain", host) { of.to_owned() } else { text };
    let of_line = |line| plain(plain(line, "[host.\"https://plain\"]"), "[host.\"http://plain\"]");
    let of_file = |(path, lines): (String, Vec<String>)| {
        let lines = lines.into_iter().map(of_line).collect();
        (plain(path, "/etc/containerd/certs.d/plain/hosts.toml"), lines)
    };
    shape.into_iter().map(of_file).collect()
}

fn skeleton(line: &str) -> String {
    let line = line.trim_end();
    if line.starts_with(['#', '[']) || line.is_empty() {
        return line.to_owned();
    }
    // A text of a JSON list, whole as it stands; what it says is a value, unless it is a setting of its own.
    if let Ok(text) = crate::budgets::json::typed::<String>(line.trim().trim_end_matches(',')) {
        let setting = text.split_once('=').map_or("", |(key, _)| key);
        return format!("item {setting}");
    }
    let at = line.find(['=', ':']).unwrap_or(line.len());
    let (key, value) = line.split_at(at);
    // Only the variables of environment files are split into words.
    if !value.starts_with("=\"") || !key.bytes().all(|b| b.is_ascii_uppercase() || b == b'_') {
        return format!("{key} ");
    }
    // Where a flag's value holds a blank, the unit must still make one word of it.
    let flags: Vec<&str> = value.split(['"', '\'', ' ', '\\']).filter(|word| word.starts_with("--")).collect();
    let names: Vec<&str> = flags.iter().filter_map(|flag| flag.split('=').next()).collect();
    format!("{key} {}", names.join(" "))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn no_value_changes_the_shape_of_any_file(
        which in any::<Index>(),
        value in HOSTILE,
        master in any::<bool>(),
        minor in 2..=Minor::NEWEST.number(),
    ) {
        let rows = free();
        let row = which.get(&rows);
        let mut config = sample(if master { "2026-master" } else { "2026-worker" });
        config.insert("KUBE_TAG".to_owned(), json!(format!("v1.{minor}.1")));
        if minor < 7 {
            config.insert("CONTAINER_RUNTIME".to_owned(), json!("docker"));
            config.insert("CGROUP_DRIVER".to_owned(), json!("cgroupfs"));
        } else {
            config.insert("CONTAINERD_VERSION".to_owned(), json!("1.7.2"));
        }
        // Every part that a parameter can switch on.
        config.insert("REGISTRY_ENABLED".to_owned(), json!(true));
        config.insert("HTTP_PROXY".to_owned(), json!("http://proxy.example.org:3128"));
        config.insert("KUBELET_OPTIONS".to_owned(), json!(""));
        let (plain, value) = match row.kind {
            ParameterKind::Url => ("http://x.example.org/".to_owned(), format!("http://x.example.org/{value}")),
            _ => ("plain".to_owned(), value),
        };
        // Nothing but white space is as if it were not given.
        let plain = if value.trim().is_empty() { String::new() } else { plain };
        config.insert(row.name.to_owned(), json!(plain));
        // A parameter that refuses a plain word is none of the free ones; it does not count as tried.
        let expected = shape(&config);
        prop_assume!(expected.is_some());
        config.insert(row.name.to_owned(), json!(value));
        // What is refused is in no file.
        if let Some(found) = shape(&config) {
            let found = with_plain_host(found, value.trim());
            prop_assert_eq!(Some(found), expected, "{}={:?}", row.name, value);
        }
    }
}
