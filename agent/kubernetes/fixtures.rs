//! Nodes for tests, and what is read back from what they get.

use serde_json::{Map, Value, json};

use super::parameters::read::Parameters;
use super::spec::node::NodeSpec;
use super::versions::split;
use super::{MachineFacts, render};
use crate::desired::{Certificate, Desired, File, Gate, GateProbe};
use crate::metadata::Deployment;

/// Every kind of change of the command lines that section 5.7 of magnum-node.md has, and both ends.
pub(super) const MINORS: [u16; 16] = [1, 2, 3, 5, 6, 7, 9, 10, 12, 15, 18, 19, 20, 24, 31, 37];

/// A cluster's main CA as text. Its subject is that of [`ETCDS_CA`], as Magnum's are alike.
pub(super) const MAIN_CA: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBkTCCATegAwIBAgIUC4wxrXJC7yRKP2DhHpt4TX7cV0MwCgYIKoZIzj0EAwIw\n\
FTETMBEGA1UEAwwKa3ViZXJuZXRlczAgFw0yNjExMjMxNzA4MzVaGA8yMTI2MTAz\n\
MDE3MDgzNVowFTETMBEGA1UEAwwKa3ViZXJuZXRlczBZMBMGByqGSM49AgEGCCqG\n\
SM49AwEHA0IABOYsDXJHlrmXzN+2KMZexIGXk0WOD5bVEaAgEr76vJa8Rqf0JyfB\n\
YvRZktRWaarYPoY/hjWxTbY2ixFrw+1hLFmjYzBhMB0GA1UdDgQWBBTuIBejoC3P\n\
2bxh2hQi6crsljx+2jAfBgNVHSMEGDAWgBTuIBejoC3P2bxh2hQi6crsljx+2jAP\n\
BgNVHRMBAf8EBTADAQH/MA4GA1UdDwEB/wQEAwIBBjAKBggqhkjOPQQDAgNIADBF\n\
AiAbevjzxkxshtX0DlWlQy8RoOgxAXO3WJOpnBAufplLPgIhAPlowpRHAddf7Kf8\n\
CyozB3qvoaDO7YXaS36TXF121aP8\n\
-----END CERTIFICATE-----\n\
";
/// Another CA.
pub(super) const ETCDS_CA: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBkTCCATegAwIBAgIUZXhjD8dSYzSO/YyfCYSWxVYkM08wCgYIKoZIzj0EAwIw\n\
FTETMBEGA1UEAwwKa3ViZXJuZXRlczAgFw0yNjExMjMxNzA4MzVaGA8yMTI2MTAz\n\
MDE3MDgzNVowFTETMBEGA1UEAwwKa3ViZXJuZXRlczBZMBMGByqGSM49AgEGCCqG\n\
SM49AwEHA0IABA/GCYlwFjHvaEzHSJ0c/pTOP/GrFMTePjO0V3jSEJ6wxQ5ixCwl\n\
a8nIfV/S5N2c+HLYlguKBp56ioAKLWAQfXujYzBhMB0GA1UdDgQWBBThSBdqTA6L\n\
lBzdErTRSR4aDvxMOTAfBgNVHSMEGDAWgBThSBdqTA6LlBzdErTRSR4aDvxMOTAP\n\
BgNVHRMBAf8EBTADAQH/MA4GA1UdDwEB/wQEAwIBBjAKBggqhkjOPQQDAgNIADBF\n\
AiEAwOT+IfcljmLSA2oEoGB5ISLs/8RP2EQPNxblp9ADEZkCICQeftCpTqgDVyUG\n\
LYkBn9NY1ESMgZ9e7gjOByRKm0Em\n\
-----END CERTIFICATE-----\n\
";
/// A CA of etcd's own that is known to be none of the cluster's.
pub(super) const ETCDS_OWN: &[(&str, &str)] =
    &[("CA_CERTIFICATE", MAIN_CA), ("ETCD_CA_CERTIFICATE", ETCDS_CA), ("ETCD_CA_KEY", "/given/etcd-ca.key")];

/// A master's parameters with changes; an empty value leaves one out.
pub(super) fn parameters(changes: &[(&str, &str)]) -> Parameters {
    let mut config = Map::new();
    let base = [
        ("KUBE_TAG", "v1.28.9"),
        ("KUBE_NODE_IP", "192.0.2.11"),
        ("INSTANCE_NAME", "blue-master-0"),
        ("CLUSTER_UUID", "c0ffee00-1111-4222-8333-444455556666"),
        ("CERTIFICATES", "given"),
        ("KEYSTONE_AUTH_ENABLED", "false"),
    ];
    for (name, value) in base.iter().chain(changes) {
        config.insert((*name).to_owned(), json!(value));
    }
    let tag = config["KUBE_TAG"].as_str().unwrap_or_default().to_owned();
    if ["v1.1.", "v1.2.", "v1.3.", "v1.4."].iter().any(|old| tag.starts_with(old)) {
        // The only one that kubelets take there.
        config.entry("CGROUP_DRIVER").or_insert(json!("cgroupfs"));
    }
    if tag.starts_with("v1.1.") {
        config.entry("HYPERKUBE_PREFIX").or_insert(json!("mirror.example.org/"));
    }
    add_certificates(&mut config);
    let deployment = Deployment::parse(&json!({"id": "i", "config": config})).unwrap().unwrap();
    Parameters::from_deployment(&deployment).unwrap()
}

/// What the parameters must give where the changes do not say otherwise: nobody reads the files here.
pub(super) fn add_certificates(config: &mut Map<String, Value>) {
    let is = |config: &Map<String, Value>, name: &str, value: &str| config.get(name).is_some_and(|one| one == value);
    let (given, bootstrap) = (is(config, "CERTIFICATES", "given"), is(config, "CERTIFICATES", "bootstrap"));
    let minion = is(config, "ROLE", "minion");
    let mut give = |name: &str, value: &str| {
        config.entry(name).or_insert(json!(value));
    };
    if bootstrap {
        give("BOOTSTRAP_TOKEN", "abcdef.0123456789abcdef");
    }
    if given || bootstrap {
        give("CA_CERTIFICATE", "/given/ca.crt");
    }
    if given && !minion {
        give("CA_KEY", "/given/ca.key");
    }
    if given && minion {
        for name in ["KUBELET", "PROXY"] {
            give(&format!("{name}_CERTIFICATE"), "/given/node.crt");
            give(&format!("{name}_KEY"), "/given/node.key");
        }
    }
    let minor = config.get("KUBE_TAG").and_then(|tag| crate::kubernetes::versions::Minor::of_tag(tag.as_str()?));
    let old = minor.is_some_and(|minor| minor.number() <= 9) && !is(config, "FLANNEL_RUNS_AS", "add-on");
    let other = config.get("NETWORK_DRIVER").is_some_and(|driver| driver != "flannel");
    if given && minion && (old || is(config, "FLANNEL_RUNS_AS", "unit")) && !other {
        config.entry("FLANNELD_CERTIFICATE").or_insert(json!("/given/flanneld.crt"));
        config.entry("FLANNELD_KEY").or_insert(json!("/given/flanneld.key"));
    }
    let several = |name: &str| config.get(name).and_then(|value| value.as_str()).is_some_and(|list| list.contains(','));
    if config.contains_key("ETCD_DISCOVERY_URL") || several("ETCD_INITIAL_CLUSTER") || several("MASTER_ADDRESSES") {
        config.entry("KUBE_SERVICE_ACCOUNT_KEY").or_insert(json!("/given/service-account.pub"));
        config.entry("KUBE_SERVICE_ACCOUNT_PRIVATE_KEY").or_insert(json!("/given/service-account.key"));
    }
}

/// What is wrong with a master, without rules and remedies.
pub(super) fn problems(changes: &[(&str, &str)]) -> Vec<String> {
    let mistakes = NodeSpec::from_parameters(&parameters(changes)).err().unwrap_or_default();
    mistakes.into_iter().map(|mistake| format!("{} {}", mistake.parameter, mistake.problem)).collect()
}

pub(super) fn spec(changes: &[(&str, &str)]) -> NodeSpec {
    NodeSpec::from_parameters(&parameters(changes)).unwrap()
}

pub(super) fn node(changes: &[(&str, &str)]) -> Desired {
    render(&spec(changes), &MachineFacts::default()).unwrap()
}

/// A master of a minor.
pub(super) fn master(minor: u16, changes: &[(&str, &str)]) -> Desired {
    let tag = format!("v1.{minor}.3");
    let all: Vec<_> = [("KUBE_TAG", tag.as_str())].into_iter().chain(changes.iter().copied()).collect();
    node(&all)
}

pub(super) fn file<'a>(desired: &'a Desired, path: &str) -> Option<&'a File> {
    desired.file(path)
}

pub(super) fn content<'a>(desired: &'a Desired, path: &str) -> &'a str {
    &file(desired, path).unwrap_or_else(|| panic!("{path} is not there")).content
}

/// The assignments of an environment file, read as systemd reads it: each on a line of its own, in double quotes.
pub(super) fn assignments(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let (key, rest) = line.split_once('=').unwrap_or_else(|| panic!("no assignment: {line:?}"));
        let inner =
            rest.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or_else(|| panic!("no value: {line:?}"));
        let (mut value, mut chars) = (String::new(), inner.chars());
        while let Some(c) = chars.next() {
            assert!(!matches!(c, '"' | '`' | '$'), "open quote or variable: {line:?}");
            let escaped = (c == '\\').then(|| chars.next().unwrap_or_else(|| panic!("{line:?}")));
            assert!(escaped.is_none_or(|c| "\"\\`$".contains(c)), "{line:?}");
            value.push(escaped.unwrap_or(c));
        }
        found.push((key.to_owned(), value));
    }
    found
}

/// The arguments that a unit gets from its environment files: in the order of its command line, split as systemd does.
pub(super) fn arguments(desired: &Desired, unit: &str) -> Vec<String> {
    let drop_in = content(desired, &format!("/etc/systemd/system/{unit}.d/50-heat-node-agent.conf"));
    let mut variables = std::collections::BTreeMap::new();
    for path in drop_in.lines().filter_map(|line| line.strip_prefix("EnvironmentFile=")).filter(|path| !path.is_empty()) {
        variables.extend(assignments(content(desired, path)));
    }
    let command = drop_in.lines().filter_map(|line| line.strip_prefix("ExecStart=")).next_back().unwrap();
    let names = command.split(' ').skip(1).map(|word| word.strip_prefix('$').unwrap_or_else(|| panic!("{word}")));
    names.flat_map(|name| split(variables.get(name).unwrap_or_else(|| panic!("{name} is in no file"))).unwrap()).collect()
}

/// The value of a flag among arguments; the last one holds.
pub(super) fn value<'a>(arguments: &'a [String], name: &str) -> Option<&'a str> {
    let prefix = format!("--{name}=");
    arguments.iter().rev().find_map(|word| word.strip_prefix(&prefix))
}

pub(super) fn gate<'a>(desired: &'a Desired, name: &str) -> Option<&'a Gate> {
    desired.gates.iter().find(|gate| gate.name == name)
}

/// What a gate asks.
pub(super) fn asked<'a>(desired: &'a Desired, name: &str) -> Option<&'a str> {
    match &gate(desired, name)?.probe {
        GateProbe::Http { url, .. } | GateProbe::HttpJson { url, .. } => Some(url),
        _ => None,
    }
}

pub(super) fn certificate<'a>(desired: &'a Desired, name: &str) -> Option<&'a Certificate> {
    desired.certificates.iter().find(|certificate| certificate.name == name)
}
