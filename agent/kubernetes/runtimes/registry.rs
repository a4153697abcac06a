//! A registry on a worker, with Swift behind it (`REGISTRY_ENABLED`; magnum-node.md 1.2 no. 8).
//!
//! Its credentials are in its configuration file, which is root's alone, never in a unit or on a command line. Where docker
//! is the runtime, docker runs it; else the program `registry` of the image.

use serde_json::{Map, json};

use crate::desired::{Dependency, Desired, File, Owner};
use crate::kubernetes::parts::daemon::Daemon;
use crate::kubernetes::spec::cluster::{ClusterSpec, MachineFacts, Registry};
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::spec::words::RuntimeKind;
use crate::kubernetes::text::yaml;
use crate::kubernetes::versions::quoted;

const UNIT: &str = "registry.service";
const CONFIGURATION: &str = "/etc/kubernetes/registry.yaml";
/// Where the registry's image looks for it.
const IN_CONTAINER: &str = "/etc/docker/registry/config.yml";
/// The last release with Swift as a store is 2.8.
const IMAGE: &str = "registry:2";
const PORT_IN_CONTAINER: u16 = 5000;

/// Its part of the node.
pub(in crate::kubernetes) fn part(_spec: &NodeSpec, cluster: &ClusterSpec, _facts: &MachineFacts) -> Desired {
    let mut part = Desired::default();
    let Some(registry) = &cluster.registry else { return part };
    let by_docker = cluster.runtime.kind == RuntimeKind::Docker;
    let listens_at = if by_docker { PORT_IN_CONTAINER } else { registry.port };
    part.files.push(File {
        path: CONFIGURATION.to_owned(),
        mode: 0o600,
        owner: Owner::root(),
        content: configuration(registry, listens_at),
        secret: true,
    });
    let words = if by_docker {
        vec![
            "run".to_owned(),
            "--rm".to_owned(),
            "--name=registry".to_owned(),
            format!("--publish={}:{PORT_IN_CONTAINER}", registry.port),
            format!("--volume={CONFIGURATION}:{IN_CONTAINER}:ro"),
            IMAGE.to_owned(),
        ]
    } else {
        vec!["serve".to_owned(), CONFIGURATION.to_owned()]
    };
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    let mut daemon = Daemon::new(UNIT, if by_docker { "docker" } else { "registry" }, "/etc/kubernetes/registry");
    daemon.variables.push(("REGISTRY_ARGS", words.join(" ")));
    daemon.restart_on.push(CONFIGURATION.to_owned());
    if by_docker {
        daemon.needs.insert(Dependency::Unit("docker.service".to_owned()));
        daemon.after.push("docker.service");
        // One that a cut of power left behind has the name still.
        daemon.service_lines.push_str("ExecStartPre=-docker rm --force registry\n");
    }
    daemon.add(&mut part);
    part
}

fn configuration(registry: &Registry, port: u16) -> String {
    let mut swift = Map::new();
    let region = registry.region.as_deref();
    let trust = registry.trust.as_ref().map(crate::kubernetes::spec::words::Secret::reveal);
    for (key, value) in [
        ("authurl", Some(registry.auth_url.as_str())),
        ("region", region),
        ("username", Some(registry.user.as_str())),
        ("password", Some(registry.password.reveal())),
        ("domainid", registry.domain.as_deref().filter(|_| registry.domain_is_id)),
        ("domain", registry.domain.as_deref().filter(|_| !registry.domain_is_id)),
        ("trustid", trust),
        ("container", Some(registry.container.as_str())),
    ] {
        if let Some(value) = value {
            swift.insert(key.to_owned(), json!(value));
        }
    }
    swift.insert("insecureskipverify".to_owned(), json!(registry.insecure));
    swift.insert("chunksize".to_owned(), json!(registry.chunk_size));
    yaml::document(&json!({
        "version": 0.1,
        "log": {"fields": {"service": "registry"}},
        "storage": {"cache": {"blobdescriptor": "inmemory"}, "swift": swift},
        "http": {"addr": format!(":{port}")},
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fixtures::{arguments, content, file, node};

    fn worker(changes: &[(&str, &str)]) -> Desired {
        let base = [
            ("ROLE", "minion"),
            ("KUBE_MASTER_IP", "192.0.2.5"),
            ("CERTIFICATES", "given"),
            ("REGISTRY_ENABLED", "True"),
            ("REGISTRY_PORT", "5005"),
            ("REGISTRY_CONTAINER", "docker_registry"),
            ("AUTH_URL", "https://keystone.example.org:5000/v3"),
            ("TRUSTEE_USERNAME", "trustee: \"x\""),
            ("TRUSTEE_PASSWORD", "pw-#: 'x'"),
            ("TRUSTEE_DOMAIN_ID", "5c6d7e8f"),
            ("TRUST_ID", "aa11bb22"),
        ];
        node(&base.into_iter().chain(changes.iter().copied()).collect::<Vec<_>>())
    }

    #[test]
    fn docker_or_the_images_own_program_runs_it() {
        for (runtime, words, port) in [
            (
                "docker",
                &[
                    "run",
                    "--rm",
                    "--name=registry",
                    "--publish=5005:5000",
                    "--volume=/etc/kubernetes/registry.yaml:/etc/docker/registry/config.yml:ro",
                    "registry:2",
                ][..],
                ":5000",
            ),
            ("containerd", &["serve", "/etc/kubernetes/registry.yaml"], ":5005"),
        ] {
            let desired = worker(&[("CONTAINER_RUNTIME", runtime)]);
            assert_eq!(arguments(&desired, UNIT), words);
            let config = file(&desired, CONFIGURATION).unwrap();
            assert!(config.secret && config.mode == 0o600);
            assert!(config.content.contains(&format!("addr: \"{port}\"\n")), "{}", config.content);
        }
        assert_eq!(file(&worker(&[("REGISTRY_ENABLED", "False")]), CONFIGURATION), None);
    }

    #[test]
    fn credentials_are_in_its_file_alone() {
        let desired = worker(&[]);
        assert_eq!(
            content(&desired, CONFIGURATION),
            "# Made by heat-node-agent from the parameters of the deployment; it is written again when they change.\n\
version: 0.1\nlog:\n  fields:\n    service: registry\nstorage:\n  cache:\n    blobdescriptor: inmemory\n  swift:\n    \
authurl: \"https://keystone.example.org:5000/v3\"\n    username: \"trustee: \\\"x\\\"\"\n    password: \"pw-#: 'x'\"\n    \
domainid: \"5c6d7e8f\"\n    trustid: aa11bb22\n    container: docker_registry\n    insecureskipverify: false\n    chunksize: 5242880\n\
http:\n  addr: \":5000\"\n"
        );
        for other in desired.files.iter().filter(|file| file.path != CONFIGURATION) {
            assert!(!other.content.contains("pw-#") && !other.content.contains("aa11bb22"), "{}", other.path);
        }
        let named = worker(&[("REGISTRY_DOMAIN", "magnum")]);
        assert!(content(&named, CONFIGURATION).contains("    domain: magnum\n"));
    }
}
