//! Templates of this repository, and ones that are broken.

use std::path::Path;

use super::*;
use crate::budgets::yaml;
use crate::metadata::template::read;
use crate::settings::Settings;

/// What only Heat knows.
const UNKNOWN: &str = "{get_param: p}";

fn found(text: &str) -> Vec<String> {
    let document = yaml::read(text).unwrap_or_else(|rejection| panic!("{rejection:?}"));
    let mut findings = Findings::default();
    check(&read(&document), "t.yaml", &Loaded { settings: Settings::default(), warnings: Vec::new() }, &mut findings);
    findings
        .kept
        .iter()
        .map(|one| format!("{}{} {}: {}", if one.warns { "note " } else { "" }, one.place, one.key, one.problem))
        .collect()
}

fn text_of(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// `examples/master-template.yaml` with one text in the place of another.
fn example(from: &str, to: &str) -> String {
    let text = text_of("examples/master-template.yaml");
    assert_eq!(text.matches(from).count(), 1, "{from}");
    text.replacen(from, to, 1)
}

#[test]
fn the_templates_of_this_repository_have_no_mistake() {
    for name in [
        "examples/master-template.yaml",
        "tests/heat/templates/node.yaml",
        "tests/heat/templates/wait.yaml",
        "tests/heat/templates/signals.yaml",
        "tests/heat/templates/update.yaml",
    ] {
        assert_eq!(found(&text_of(name)), Vec::<String>::new(), "{name}");
    }
    // It leaves the declaration of its inputs to Heat.
    let cluster = found(&text_of("tests/heat/templates/cluster.yaml"));
    assert!(
        cluster.len() == 3 && cluster.iter().all(|one| one.starts_with("note ") && one.contains("inputs are not declared: ")),
        "{cluster:?}"
    );
}

#[test]
fn a_literal_is_checked_as_on_the_node_and_named_with_resource_and_line() {
    let mut wrong = Vec::new();
    for (from, to, expected) in [
        ("        ROLE: master\n", "        ROLE: mistress\n", "t.yaml:95: deployment ROLE: \"mistress\" is not allowed"),
        (
            "        TLS_DISABLED: true\n",
            "        TLS_DISABLED: 3\n",
            "t.yaml:99: deployment TLS_DISABLED: \"3\" is neither true nor false",
        ),
        (
            "KUBE_NODE_IP: {get_attr: [port, fixed_ips, 0, ip_address]}",
            "KUBE_NODE_IP: 10.77.0.999",
            "t.yaml:98: deployment KUBE_NODE_IP: \"10.77.0.999\" is not an IP address",
        ),
        (
            "        - {name: ROLE, type: String}\n",
            "        - {name: ROEL, type: String}\n        - {name: ROLE, type: String}\n",
            "t.yaml:67: config ROEL: is not a parameter of kubernetes-node",
        ),
        (
            "type: String, default: if-blank}\n        - {name: ETCD_VOLUME, ",
            "type: String, default: sometimes}\n        - {name: ETCD_VOLUME, ",
            "t.yaml:73: config DOCKER_VOLUME_FORMAT: \"sometimes\" is not allowed",
        ),
        // The default of a parameter is what a stack gets that is given nothing else.
        (
            "    default: c0ffee00-1111-4222-8333-444455556666",
            "    default: none of it",
            "t.yaml:97: deployment CLUSTER_UUID: \"none of it\" is not an OpenStack id",
        ),
        (
            "  timeout: {type: number, default: 3600}",
            "  timeout: {type: number, default: 0}",
            "t.yaml:103: deployment WAIT_TIMEOUT: \"0\" is not a number in the range",
        ),
        // Between values that are known.
        (
            "DOCKER_VOLUME: {get_resource: docker_volume}",
            "DOCKER_VOLUME: {get_resource: docker_volume}\n        WAIT_ID: {}",
            "t.yaml:101: deployment WAIT_ID: is a list or map",
        ),
        (
            "      group: kubernetes-node\n",
            "      group: kubernetes-node\n      config: |\n        ROLE: minion\n        KUBE_TAGG: v1.28.9\n",
            "t.yaml:67: config KUBE_TAGG: is not a parameter of kubernetes-node",
        ),
        (
            "      group: kubernetes-node\n",
            "      group: kubernetes-node\n      config: \"a: [b\"\n",
            "t.yaml:66: config config: is not YAML: line 2",
        ),
    ] {
        let mut all = found(&example(from, to));
        all.retain(|one| !one.starts_with("note "));
        if !(all.len() == 1 && all[0].starts_with(expected)) {
            wrong.push(format!("{to}: {all:?}, not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn what_only_heat_knows_is_no_mistake_and_what_is_wrong_all_the_same_is_one() {
    let node = |values: &str| {
        format!(
            "heat_template_version: rocky\nparameters: {{p: {{type: json}}}}\nresources:\n  c: {{type: 'OS::Heat::SoftwareConfig', properties: {{group: kubernetes-node}}}}\n  \
             d:\n    type: OS::Heat::SoftwareDeployment\n    properties:\n      config: {{get_resource: c}}\n      input_values: {values}\n"
        )
    };
    let mistakes = |values: &str| found(&node(values)).into_iter().filter(|one| !one.starts_with("note ")).collect::<Vec<_>>();
    for values in [
        UNKNOWN.to_owned(),
        format!("{{map_merge: [{UNKNOWN}, {{ROLE: minion}}]}}"),
        format!("{{ROLE: {UNKNOWN}, KUBE_TAG: {UNKNOWN}, CERTIFICATES: {UNKNOWN}, KUBE_NODE_IP: {UNKNOWN}}}"),
        // Kubernetes 1.28 has no kubelet without TLS, an older one has.
        format!("{{ROLE: master, KUBE_TAG: {UNKNOWN}, TLS_DISABLED: true, KUBE_NODE_IP: 192.0.2.11}}"),
        // Whether the node is one of the members is Heat's to know.
        format!(
            "{{ROLE: master, TLS_DISABLED: true, KUBE_TAG: v1.9.11, KUBE_NODE_IP: {UNKNOWN}, INSTANCE_NAME: a, ETCD_INITIAL_CLUSTER: 'a=http://192.0.2.77:2380'}}"
        ),
        // As is whether a network holds the address.
        format!(
            "{{ROLE: master, TLS_DISABLED: true, KUBE_TAG: v1.9.11, KUBE_NODE_IP: 10.254.0.9, PORTAL_NETWORK_CIDR: {UNKNOWN}, INSTANCE_NAME: {UNKNOWN}}}"
        ),
        format!(
            "{{ROLE: minion, KUBE_TAG: v1.28.9, CA_KEY: {UNKNOWN}, CA_CERTIFICATE: {UNKNOWN}, CERTIFICATES: {UNKNOWN}, WAIT_HANDLE: {UNKNOWN}, KUBE_MASTER_IP: {UNKNOWN}, KUBE_NODE_IP: {UNKNOWN}, MAGNUM_URL: {UNKNOWN}, CLUSTER_UUID: {UNKNOWN}, INSTANCE_NAME: a}}"
        ),
    ] {
        assert_eq!(mistakes(&values), Vec::<String>::new(), "{values}");
    }
    for (values, expected) in [
        (format!("{{map_merge: [{UNKNOWN}, {{ROLE: minor}}]}}"), "t.yaml:9: d ROLE: \"minor\" is not allowed"),
        (format!("{{ROLE: {UNKNOWN}, KUBE_TAGG: {UNKNOWN}}}"), "t.yaml:9: d KUBE_TAGG: is not a parameter"),
        // Whatever the version is, two volumes cannot be one.
        (
            format!(
                "{{ROLE: master, TLS_DISABLED: true, KUBE_NODE_IP: 192.0.2.11, WAIT_TIMEOUT: {UNKNOWN}, CLUSTER_UUID: c0ffee00-1111-4222-8333-444455556666, DOCKER_VOLUME: 7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4, ETCD_VOLUME: 7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4}}"
            ),
            "t.yaml:9: d ETCD_VOLUME: ",
        ),
        (
            format!("{{ROLE: master, TLS_DISABLED: true, INSTANCE_NAME: {UNKNOWN}, KUBE_TAG: v1.9.11}}"),
            "t.yaml:5: d KUBE_NODE_IP: is missing",
        ),
    ] {
        let all = mistakes(&values);
        let [one] = &all[..] else { panic!("{values}: {all:?}") };
        assert!(one.starts_with(expected), "{values}: {one}");
    }
}

#[test]
fn other_groups_and_servers_are_looked_at_too() {
    let two = example(
        "  wait_handle:\n",
        "  again:\n    type: OS::Heat::SoftwareDeployment\n    properties: {config: {get_resource: config}, server: {get_resource: server}, \
              input_values: {ROLE: minion, KUBE_MASTER_IP: 192.0.2.5, TLS_DISABLED: true, KUBE_NODE_IP: 192.0.2.6}}\n\n  wait_handle:\n",
    );
    assert_eq!(
        found(&two),
        [
            "note t.yaml:107: again KUBE_MASTER_IP: is not declared in the inputs of config",
            "t.yaml:105: again server: a second kubernetes-node deployment on server"
        ]
    );
    let script = "heat_template_version: rocky\nresources:\n  c: {type: 'OS::Heat::SoftwareConfig', properties: {group: script, config: {get_file: a.sh}, inputs: [a]}}\n  \
                  d: {type: 'OS::Heat::SoftwareDeployment', properties: {config: {get_resource: c}}}\n";
    assert_eq!(found(script), ["t.yaml:3: c inputs[0]: is a text, not a map"]);
    let mut loaded = Loaded { settings: Settings::default(), warnings: Vec::new() };
    loaded.settings.deploy.groups = Some(vec!["script".to_owned()]);
    let mut findings = Findings::default();
    check(&read(&yaml::read(&text_of("examples/master-template.yaml")).unwrap()), "t.yaml", &loaded, &mut findings);
    assert_eq!((findings.mistakes, findings.kept[0].key.as_str()), (1, "group"), "{findings:?}");
}
