//! From a node's specification, and what its machine is, to everything that it should look like.
//!
//! In: a checked [`NodeSpec`], and [`MachineFacts`]. Out: one [`Desired`], in which nothing is defined twice. Never: a file, flag or
//! unit of its own: components make those.

use super::add_ons::{self, cloud_config, manifests};
use super::certificates;
use super::control_plane::{apiserver, bootstrap, controller_manager, etcd, haproxy, podmaster, scheduler};
use super::networks::{firewall, flannel, pod_network};
use super::parameters::mistake::{Mistake, PRIVATE_KEY};
use super::parts::daemon;
use super::runtimes::{containerd, cri_dockerd, crio, docker, registry};
use super::spec::cluster::{ClusterSpec, MachineFacts, UserOptions};
use super::spec::node::NodeSpec;
use super::spec::words::Role;
use super::versions::given;
use super::worker::{host, kube_proxy, kubelet, node_labels};
use crate::desired::{Desired, GivenFlags};
use crate::gather::Gather;
use crate::http::has_userinfo;

/// Renders a node: each component makes its part, and none knows the others' but where it is given to it here.
///
/// # Errors
/// Two parts have one file, unit or gate: a mistake of this program.
pub fn render(spec: &NodeSpec, facts: &MachineFacts) -> Result<Desired, Mistake> {
    let mut desired = merged(spec, facts).map_err(|what| twice(&what))?;
    let url = spec.kubernetes.as_ref().and_then(|cluster| cluster.node.static_pod_url.as_deref());
    let query = url.and_then(|url| url.split_once('?')).map(|(_, query)| query).filter(|query| !query.is_empty());
    close(&mut desired, query);
    Ok(desired)
}

fn merged(spec: &NodeSpec, facts: &MachineFacts) -> Result<Desired, String> {
    let mut desired = host::part(spec, facts);
    if let (Role::Master, Some(address)) = (spec.role, spec.address) {
        desired.merge(etcd::part(spec, address))?;
    }
    desired.merge(docker::part(spec, facts))?;
    if let Some(cluster) = &spec.kubernetes {
        add_cluster(spec, cluster, facts, &mut desired)?;
    }
    Ok(desired)
}

fn twice(what: &str) -> Mistake {
    let problem = format!("two components of the node define {what}");
    let rule = "every file, unit and gate of a node belongs to one component";
    Mistake::general("the parameters", problem, rule, "this is a bug of heat-node-agent: please report it with the parameters")
}

/// A file that holds a URL with a user name or password is its owner's alone, whichever part wrote it, and so is one with the query of a URL, which
/// may be a signature; one with a private key is secret, and closed to all but its owner and its group.
fn close(desired: &mut Desired, query: Option<&str>) {
    // Some of its characters are escaped in files that a shell reads.
    let has_query = |content: &str, query: &str| query.split(['$', '`', '\\', '"']).all(|part| content.contains(part));
    let has_credentials = |content: &str| has_userinfo(content) || query.is_some_and(|query| has_query(content, query));
    for file in desired.files.iter_mut().filter(|file| has_credentials(&file.content)) {
        file.mode &= 0o700;
        file.secret = true;
    }
    for file in desired.files.iter_mut().filter(|file| file.content.contains(PRIVATE_KEY)) {
        file.mode &= 0o770;
        file.secret = true;
    }
}

fn add_cluster(spec: &NodeSpec, cluster: &ClusterSpec, facts: &MachineFacts, desired: &mut Desired) -> Result<(), String> {
    type Part = fn(&NodeSpec, &ClusterSpec, &MachineFacts) -> Desired;
    const EVERYWHERE: &[Part] = &[
        containerd::part,
        crio::part,
        cri_dockerd::part,
        flannel::part,
        pod_network::part,
        kubelet::part,
        node_labels::part,
        kube_proxy::part,
        registry::part,
        haproxy::part,
        add_ons::part,
        firewall::part,
    ];
    let first: [Part; 3] = [certificates::part, cloud_config::part, daemon::shared_part];
    for part in first {
        desired.merge(part(spec, cluster, facts))?;
    }
    if spec.role == Role::Master {
        // Restarted for the files that their flags name.
        let given = &desired.files;
        let readers = [
            apiserver::part(spec, cluster, facts, given),
            controller_manager::part(cluster, facts, given),
            scheduler::part(cluster, facts, given),
        ];
        let others: [Part; 3] = [podmaster::part, bootstrap::part, manifests::part];
        for part in readers.into_iter().chain(others.map(|part| part(spec, cluster, facts))) {
            desired.merge(part)?;
        }
    }
    for part in EVERYWHERE {
        desired.merge(part(spec, cluster, facts))?;
    }
    certificates::add_readers(desired);
    let read = UserOptions::COMPONENTS.into_iter().filter(|component| UserOptions::is_component_on(*component, spec.role));
    desired.given_flags.extend(read.map(|component| GivenFlags {
        unit: format!("{}.service", component.as_str()),
        parameter: UserOptions::parameter(component),
        names: given(cluster.options.of(component)).into_iter().map(|(name, _)| name.replace('_', "-")).gather(),
    }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write as _;

    use serde_json::{Value, json};

    use super::*;
    use crate::desired::{Directory, File, Owner};
    use crate::error::Error;
    use crate::kubernetes::Parameters;
    use crate::kubernetes::parameters::heat_params;
    use crate::metadata::Deployment;

    fn rendered(deployment: &Value) -> Desired {
        let deployment = Deployment::parse(deployment).unwrap().unwrap();
        let parameters = Parameters::from_deployment(&deployment).unwrap();
        render(&NodeSpec::from_parameters(&parameters).unwrap(), &MachineFacts::default()).unwrap()
    }

    #[test]
    fn what_two_components_define_is_refused_but_for_the_same_directory() {
        let folder = |mode| Directory { path: "/d".into(), mode, owner: Owner::root(), needs: BTreeSet::new() };
        let part = |mode, file: &str| Desired {
            directories: vec![folder(mode)],
            files: vec![File::public(file, "")],
            ..Desired::default()
        };
        let mut desired = part(0o755, "/a");
        assert_eq!(desired.merge(part(0o755, "/b")), Ok(()));
        assert_eq!((desired.directories.len(), desired.files.len()), (1, 2));
        assert_eq!(desired.merge(part(0o755, "/a")), Err("file /a".to_owned()));
        assert_eq!(desired.merge(part(0o700, "/c")), Err("directory /d".to_owned()));
        let error = Error::from(twice("file /a"));
        assert!(error.to_string().contains("two components of the node define file /a"), "{error}");
        assert!(error.suggested_remedy().is_some_and(|remedy| remedy.contains("bug of heat-node-agent")));
    }

    #[test]
    fn a_file_with_a_private_key_is_secret_whoever_wrote_it() {
        for (content, mode, closed, secret) in [
            ("-----BEGIN RSA PRIVATE KEY-----\nAA", 0o644, 0o640, true),
            ("-----BEGIN PRIVATE KEY-----\nAA", 0o600, 0o600, true),
            ("-----BEGIN PUBLIC KEY-----\nAA", 0o644, 0o644, false),
        ] {
            let mut desired = Desired { files: vec![File { mode, ..File::public("/x", content) }], ..Desired::default() };
            close(&mut desired, None);
            assert_eq!((desired.files[0].mode, desired.files[0].secret), (closed, secret), "{content}");
        }
    }

    /// A Desired as text that a person can read and compare.
    fn text(desired: &Desired) -> String {
        let mut out = String::new();
        for one in &desired.directories {
            writeln!(out, "directory {} {:o} {}:{} {:?}", one.path, one.mode, one.owner.user, one.owner.group, one.needs)
                .unwrap();
        }
        for one in &desired.volumes {
            writeln!(out, "volume {one:?}").unwrap();
        }
        for one in &desired.files {
            let secret = if one.secret { " secret" } else { "" };
            writeln!(out, "file {} {:o} {}:{}{secret}", one.path, one.mode, one.owner.user, one.owner.group).unwrap();
            for line in one.content.lines() {
                writeln!(out, "  |{line}").unwrap();
            }
        }
        for one in &desired.units {
            writeln!(
                out,
                "unit {} enable={} helper={} restart_on={:?} needs={:?}",
                one.name, one.enable, one.applies_files, one.restart_on, one.needs
            )
            .unwrap();
        }
        for one in &desired.cas {
            writeln!(out, "CA {} {} {}:{}", one.signer, one.path, one.owner.user, one.owner.group).unwrap();
            writeln!(out, "  given={:?} signing_key={:?} key_path={:?}", one.given, one.signing_key, one.key_path).unwrap();
            if let Some(path) = &one.signing_path {
                writeln!(out, "  signing_path={path}").unwrap();
            }
        }
        for one in &desired.certificates {
            let (owner, subject) = (&one.owner, format!("CN={} O={}", one.common_name, one.organisations.join(",")));
            writeln!(
                out,
                "certificate {} by {}: {subject} {}:{} serves={}",
                one.name, one.signer, owner.user, owner.group, one.serves
            )
            .unwrap();
            writeln!(out, "  {} {} for {} {:?}", one.path, one.key, one.names.join(" "), one.addresses).unwrap();
            writeln!(out, "  given={:?}", one.given).unwrap();
        }
        for one in &desired.keys {
            writeln!(out, "key {} {} {:?} {}:{}", one.name, one.path, one.kind, one.owner.user, one.owner.group).unwrap();
        }
        if let Some(trust) = &desired.trust {
            writeln!(out, "trust {trust:?}").unwrap();
        }
        for one in &desired.gates {
            let deadline = one.deadline.map_or("run".to_owned(), |own| format!("{}s", own.as_secs()));
            writeln!(out, "gate {} {}x {deadline} {:?} needs={:?}", one.name, one.consecutive, one.probe, one.needs).unwrap();
        }
        for one in &desired.watched {
            writeln!(out, "watched {} {:?} needs={:?}", one.name, one.probe, one.needs).unwrap();
        }
        if let Some(flannel) = &desired.flannel {
            writeln!(
                out,
                "flannel {} at {} writes={} {:?}",
                flannel.prefix, flannel.etcd.endpoint, flannel.writes, flannel.etcd.identity
            )
            .unwrap();
        }
        for one in &desired.objects {
            writeln!(out, "object {} at {}{}/{} needs={:?}", one.name, one.server, one.collection, one.object, one.needs)
                .unwrap();
        }
        for one in &desired.add_ons {
            writeln!(out, "add-on {} at {} needs={:?} {:?}", one.name, one.server, one.needs, one.facts).unwrap();
        }
        out
    }

    #[test]
    fn nodes_render_to_the_golden_texts() {
        let base = json!({"KUBE_NODE_IP": "192.0.2.11", "INSTANCE_NAME": "bay-master-0", "TLS_DISABLED": "True",
            "CLUSTER_UUID": "c0ffee00-1111-4222-8333-444455556666"});
        let cases = [
            (
                "master-volumes",
                json!({"DOCKER_VOLUME": "7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4", "ETCD_VOLUME": "e41b7f92-0c6d-4f0a-b1d7-58a2f3c9d610"}),
            ),
            ("master", json!({"INSTANCE_NAME": null, "KUBE_NODE_IP": "2001:db8::11"})),
            (
                "minion",
                json!({"ROLE": "minion", "CGROUP_DRIVER": "systemd", "INSECURE_REGISTRY_URL": "registry.example.org:5000"}),
            ),
            (
                "master-proxy-discovery",
                json!({"HTTP_PROXY": "http://user:p$(x)`y`@proxy.example.org:3128", "NO_PROXY": ".example.org",
                    "ETCD_DISCOVERY_URL": "https://discovery.example.org/0f1e"}),
            ),
        ];
        for (name, changes) in cases {
            let mut config = base.clone();
            config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            let found = text(&rendered(&json!({"id": "i", "config": config})));
            compare(name, &found);
        }
    }

    fn compare(name: &str, found: &str) {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("agent/kubernetes/golden").join(format!("{name}.txt"));
        // HNA_RENEW_GOLDEN=1 writes them anew; a person reads the difference.
        if std::env::var_os("HNA_RENEW_GOLDEN").is_some() {
            let tree = crate::files::Tree::open_or_create(path.parent().unwrap(), 0o755).unwrap();
            tree.write(std::path::Path::new(path.file_name().unwrap()), found.as_bytes(), crate::files::Attributes::mode(0o644))
                .unwrap();
        }
        assert_eq!(found, std::fs::read_to_string(&path).unwrap(), "{name}");
    }

    /// Magnum's own parameters of either era at each band of versions (magnum-node.md 5.7).
    #[test]
    fn kubernetes_nodes_render_to_the_golden_texts() {
        for (minor, changes) in [
            (2, ""),
            (5, ""),
            (9, ""),
            (15, "CONTAINER_RUNTIME=docker"),
            (18, "CONTAINERD_VERSION=1.3.3"),
            (20, "CONTAINER_RUNTIME=docker"),
            (24, "CONTAINER_RUNTIME=docker"),
            (28, ""),
            (31, "CONTAINER_RUNTIME=cri-o"),
            // The networks that a node makes by itself.
            (
                9,
                "# flannel-unit\nFLANNEL_RUNS_AS=unit\nFLANNEL_BACKEND=vxlan\nFLANNEL_BACKEND_OPTIONS='{\"VNI\": 7}'\nFIREWALL=iptables-services\nPROXY_MODE=iptables",
            ),
            (
                31,
                "# flannel-unit\nCONTAINERD_VERSION=1.7.20\nFLANNEL_RUNS_AS=unit\nFLANNEL_BACKEND=host-gw\nFLANNEL_TAG=v0.25.1\nETCD_SERVER_IP=10.0.0.17\nFIREWALL=nftables\nPROXY_MODE=ipvs",
            ),
            (
                20,
                "# static-routes\nCONTAINER_RUNTIME=docker\nNETWORK_DRIVER=static-routes\nNODE_SUBNETS=10.0.0.101=10.100.1.0/24,10.0.0.131=10.100.2.0/24",
            ),
            (37, "CONTAINERD_VERSION=2.1.0\nETCD_TAG=v3.6.4\nETCD_DISCOVERY_URL=\nFLANNEL_BACKEND=host-gw"),
        ] {
            for (role, old, new) in [("master", "2016-master", "2026-master"), ("minion", "2016-minion", "2026-worker")] {
                let sample = if minor < 10 { old } else { new };
                let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubernetes/heat-params");
                let text_of = std::fs::read_to_string(folder.join(sample)).unwrap();
                let name = format!("INSTANCE_NAME=blue-{role}-0\n");
                let read = heat_params::parse(&format!("{text_of}\nKUBE_TAG=v1.{minor}.1\n{name}{changes}\n")).unwrap();
                let desired = rendered(&json!({"id": "i", "config": read.parameters}));
                let of = changes.strip_prefix("# ").map_or("", |comment| comment.lines().next().unwrap_or_default());
                let dash = if of.is_empty() { "" } else { "-" };
                compare(&format!("kubernetes-1.{minor}{dash}{of}-{role}"), &text(&desired));
            }
        }
    }

    #[test]
    fn every_need_is_fulfilled_by_something_that_is_desired() {
        for document in [
            include_str!("../../examples/master.json"),
            include_str!("../../examples/minion.json"),
            include_str!("../../examples/kubernetes-master.json"),
            include_str!("../../examples/kubernetes-minion.json"),
        ] {
            let document: Value = crate::budgets::json::typed(document).unwrap();
            let deployments = document["deployments"].as_array().unwrap();
            assert_eq!(deployments.len(), 1);
            let desired = rendered(&deployments[0]);
            let all =
                desired.directories.iter().flat_map(|one| &one.needs).chain(desired.units.iter().flat_map(|one| &one.needs));
            for need in all.chain(desired.gates.iter().flat_map(|one| &one.needs)) {
                assert!(desired.provides(need), "{need:?}");
            }
            for unit in &desired.units {
                let there = |path: &String| {
                    let is_certificate = desired.trusted_paths().contains(path.as_str());
                    is_certificate || desired.files.iter().any(|file| file.path == *path)
                };
                assert!(unit.restart_on.iter().all(there), "{}", unit.name);
            }
        }
    }

    #[test]
    fn the_example_template_uses_known_names() {
        let template = include_str!("../../examples/master-template.yaml");
        let (_, inputs) = template.split_once("input_values:").unwrap();
        let names: Vec<_> =
            inputs.lines().skip(1).take_while(|line| !line.is_empty()).filter_map(|line| line.trim().split(':').next()).collect();
        assert!(names.len() > 8);
        for name in names {
            assert!(crate::kubernetes::parameters::table::find(name).is_some(), "{name}");
            assert!(template.contains(&format!("{{name: {name}, type: ")), "{name} is not declared");
        }
    }

    #[test]
    fn every_name_that_the_code_asks_for_is_in_the_table() {
        let source = include_str!("parse/node.rs");
        let asked = source.split('"').filter(|part| part.len() > 3 && part.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'));
        let names: Vec<_> = asked.collect();
        assert!(names.len() > 20);
        for name in names {
            assert!(crate::kubernetes::parameters::table::find(name).is_some(), "{name}");
        }
    }
}
