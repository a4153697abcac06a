use std::path::Path;

use serde_json::{Map, Value, json};

use super::*;
use crate::budgets::yaml;
use crate::files::Attributes;
use crate::metadata::template::read;
use crate::settings::Settings;

fn write(root: &Tree, path: &str, text: &str, mode: u32) {
    let path = Path::new(path);
    root.create_dir_all(path.parent().unwrap(), Attributes::mode(0o755)).unwrap();
    root.write(path, text.as_bytes(), Attributes::mode(mode)).unwrap();
}

fn entry(name: &str, role: &str) -> Value {
    let mut config = json!({"ROLE": role, "KUBE_TAG": "v1.28.9", "KUBE_NODE_IP": "192.0.2.11", "INSTANCE_NAME": name,
        "CERTIFICATES": "given", "CA_CERTIFICATE": "/ca.crt", "CA_KEY": "/ca.key", "KEYSTONE_AUTH_ENABLED": "false",
        "CONTAINER_RUNTIME": "containerd", "NETWORK_DRIVER": "none"});
    if role == "minion" {
        config["KUBE_MASTER_IP"] = json!("192.0.2.10");
        config["CERTIFICATES"] = json!("bootstrap");
        config["BOOTSTRAP_TOKEN"] = json!("abcdef.0123456789abcdef");
        config.as_object_mut().unwrap().remove("CA_KEY");
    }
    json!({"id": format!("id-{name}"), "name": name, "group": "kubernetes-node", "config": config})
}

fn loaded() -> Loaded {
    Loaded { settings: Settings::default(), warnings: Vec::new() }
}

/// An image with all that these entries need.
fn image(dir: &Path, entries: &[Value]) -> Tree {
    let root = Tree::open(dir).unwrap();
    for entry in entries {
        let deployment = Deployment::parse(entry).unwrap().unwrap();
        let plan = daemon::understand(&deployment, &MachineFacts::default(), &ImagePolicy::everything()).unwrap();
        for unit in plan.parts().1.units.iter().filter(|unit| !unit.applies_files) {
            let name = unit.name.trim_end_matches(".service");
            let path = format!("/usr/bin/{name}");
            write(&root, &format!("/usr/lib/systemd/system/{}", unit.name), &format!("ExecStart={path}\n"), 0o644);
            write(&root, &path, "x", 0o755);
        }
    }
    root
}

fn document(entries: &[Value]) -> RequestedNodes {
    RequestedNodes::Document(Map::from_iter([("deployments".to_owned(), Value::Array(entries.to_vec()))]))
}

/// How many nodes, and what is found.
fn found(root: &Tree, asked: &RequestedNodes) -> (usize, Vec<Finding>) {
    let mut findings = Findings::default();
    let nodes = check(root, asked, &loaded(), &|_| Ok(String::new()), &mut findings).unwrap();
    (nodes, findings.kept)
}

#[test]
fn what_two_nodes_need_is_one_line_that_names_both_with_role_and_version() {
    let entries = [entry("m", "master"), entry("w", "minion")];
    let dir = tempfile::tempdir().unwrap();
    let root = image(dir.path(), &entries);
    assert_eq!(found(&root, &document(&entries)), (2, Vec::new()));
    root.remove(Path::new("/usr/bin/kubelet")).unwrap();
    root.remove(Path::new("/usr/lib/systemd/system/etcd.service")).unwrap();
    let (nodes, all) = found(&root, &document(&entries));
    let lines: Vec<_> = all.iter().map(|one| (one.place.as_str(), one.problem.as_str(), one.warns)).collect();
    let etcd = "the unit is missing; looked for in /etc/systemd/system, /run/systemd/system, /usr/local/lib/systemd/system, \
                /usr/lib/systemd/system, /lib/systemd/system; needed by deployment m (master, Kubernetes v1.28.9)";
    let kubelet = "the program is missing; looked for in /usr/local/sbin, /usr/local/bin, /usr/sbin, /usr/bin, /sbin, /bin; needed by deployment m (master, Kubernetes v1.28.9), deployment w (minion, Kubernetes v1.28.9)";
    assert_eq!(nodes, 2);
    assert_eq!(lines, [("etcd.service", etcd, false), ("kubelet", kubelet, false)]);
    // A worker needs no etcd.
    assert_eq!(found(&root, &document(&entries[1..])).1.len(), 1);
}

#[test]
fn a_hook_that_the_image_lacks_is_named_and_a_script_needs_none() {
    let dir = tempfile::tempdir().unwrap();
    let root = Tree::open(dir.path()).unwrap();
    let entries = [
        json!({"id": "a", "name": "play", "group": "ansible", "config": "x"}),
        json!({"id": "b", "name": "run", "group": "script", "config": "#!/bin/sh"}),
    ];
    let (nodes, all) = found(&root, &document(&entries));
    assert_eq!((nodes, all.len()), (0, 1), "{all:?}");
    assert!(all[0].place == "deployment play" && all[0].key == "group", "{all:?}");
}

#[test]
fn a_kernel_without_a_module_that_a_parameter_selects_is_named() {
    let mut node = entry("w", "minion");
    node["config"]["PROXY_MODE"] = json!("ipvs");
    let dir = tempfile::tempdir().unwrap();
    let root = image(dir.path(), &[entry("w", "minion")]);
    write(&root, "/usr/sbin/ipset", "x", 0o755);
    assert_eq!(found(&root, &document(std::slice::from_ref(&node))).1, [], "no kernel is there to be looked at");
    write(&root, "/lib/modules/6.1.0/modules.dep", "kernel/overlay.ko:\n", 0o644);
    write(&root, "/lib/modules/6.1.0/modules.builtin", "kernel/y.ko\n", 0o644);
    let all = found(&root, &document(&[node])).1;
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(
        all[0].place == "PROXY_MODE" && all[0].problem.contains("lacks ip_vs") && all[0].problem.contains("deployment w"),
        "{all:?}"
    );
}

fn template(role: &str) -> RequestedNodes {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/master-template.yaml")).unwrap();
    let text = text.replacen("ROLE: master", &format!("ROLE: {role}"), 1);
    let read = read(&yaml::read(&text).unwrap_or_else(|rejection| panic!("{rejection:?}")));
    RequestedNodes::Template(read)
}

#[test]
fn a_template_says_what_its_nodes_need_whatever_only_heat_knows() {
    let dir = tempfile::tempdir().unwrap();
    let root = Tree::open(dir.path()).unwrap();
    let (nodes, all) = found(&root, &template("master"));
    assert_eq!(nodes, 1);
    for unit in ["etcd.service", "docker.service"] {
        let one = all.iter().find(|one| one.place == unit).unwrap_or_else(|| panic!("{unit} in {all:#?}"));
        assert!(one.problem.contains("the unit is missing") && one.problem.contains("(master"), "{one:?}");
    }
    assert!(all.iter().all(|one| !one.warns && !one.rule.is_empty() && !one.remedy.is_empty()), "{all:#?}");
}

#[test]
fn a_template_of_which_nothing_can_be_known_is_not_called_right() {
    let dir = tempfile::tempdir().unwrap();
    let root = Tree::open(dir.path()).unwrap();
    // No value makes a node of it.
    let (nodes, all) = found(&root, &template("mistress"));
    assert_eq!((nodes, all.len()), (1, 1), "{all:?}");
    assert!(all[0].problem.contains("cannot be known"), "{all:?}");
    let RequestedNodes::Template(mut open) = template("master") else { panic!() };
    for planned in &mut open.planned {
        planned.open = true;
    }
    let (nodes, all) = found(&root, &RequestedNodes::Template(open));
    assert_eq!((nodes, all.len()), (1, 1), "{all:?}");
}
