//! Manifests in a directory tree.

use std::collections::BTreeSet;

use super::*;
use crate::budgets::json;
use crate::desired::SecretFact;
use crate::files::Attributes;

fn facts() -> Vec<(&'static str, String)> {
    let of = |name, value: &str| (name, value.to_owned());
    vec![
        of("api_address", "192.0.2.11"),
        of("api_port", "6443"),
        of("cinder_csi_plugin_tag", ""),
        of("cloud_provider_tag", "v1.28.0"),
        of("cluster_domain", "cluster.local"),
        of("cluster_name", ""),
        of("coredns_tag", ""),
        of("csi_attacher_tag", ""),
        of("csi_liveness_probe_tag", "v2.9.1"),
        of("csi_node_driver_registrar_tag", ""),
        of("csi_provisioner_tag", ""),
        of("csi_resizer_tag", ""),
        of("dashboard_tag", ""),
        of("dns_service_ip", "10.254.0.10"),
        of("kubernetes_version", "v1.28.9"),
        of("metrics_server_tag", ""),
        of("openstack_ca", ""),
        of("pod_network", "10.100.0.0/16"),
        of("registry", "registry.example.org/mirror/"),
        of("service_network", "10.254.0.0/16"),
    ]
}

fn add_on(name: &str) -> AddOn {
    let secret = |name, value: &str| SecretFact { name, value: value.to_owned(), parameters: "AUTH_URL" };
    let secrets = vec![secret("cloud_config", CLOUD), secret("cloud_controller_config", CLOUD), secret("no_secret", "")];
    AddOn { name: name.into(), server: String::new(), identity: None, facts: facts(), secrets, needs: BTreeSet::new() }
}

const CLOUD: &str = "[Global]\npassword = \"pa#s{{registry}}\"\n";

/// An image with these files of the add-on `dns`.
struct Image {
    _dir: tempfile::TempDir,
    tree: Tree,
}

impl Image {
    fn with(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        for (name, text) in files {
            let path = format!("{PLACE}/dns/{name}");
            tree.create_dir_all(Path::new(&path).parent().unwrap(), Attributes::mode(0o755)).unwrap();
            tree.write(Path::new(&path), text.as_bytes(), Attributes::mode(0o644)).unwrap();
        }
        Self { _dir: dir, tree }
    }

    fn read(&self) -> Result<Vec<Manifest>> {
        read(&self.tree, &add_on("dns"))
    }
}

const SERVICE: &str = "\
# A comment.
apiVersion: v1
kind: Service
metadata:
  name: dns
  namespace: kube-system
  labels: {app: dns}
  creationTimestamp: null
spec:
  clusterIP: \"{{dns_service_ip}}\"
  ports: [{port: 53, protocol: UDP}]
status: {loadBalancer: {}}
";

#[test]
fn manifests_become_objects_in_the_order_in_which_they_are_made() {
    let second = "\
apiVersion: v1
kind: List
items:
- {apiVersion: apps/v1, kind: Deployment, metadata: {name: dns, namespace: kube-system}, spec: {image: '{{registry|docker.io/}}dns:{{ coredns_tag|1.9 }}'}}
- {apiVersion: v1, kind: Namespace, metadata: {name: dns}}
---
---
apiVersion: v1
kind: Secret
metadata: {name: key, labels: {addonmanager.kubernetes.io/mode: EnsureExists}}
stringData: {word: hush}
data: {other: YQ==}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: rules}
data:
  rules: |
    {{ $labels.pod }} of {{cluster_domain}} {{.Values}} {{ open
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: 'system:dns'}
";
    let image = Image::with(&[("10-service.yaml", SERVICE), ("20-more.yaml", second), ("README", "{{"), (".hidden.yaml", "{{")]);
    let found = image.read().unwrap();
    let order: Vec<String> = found.iter().map(|one| format!("{} {}", one.kind, one.name)).collect();
    assert_eq!(
        order,
        ["Namespace dns", "ClusterRole system:dns", "Secret key", "ConfigMap rules", "Service dns", "Deployment dns"]
    );
    let body = |at: usize| -> Value { json::typed(&found[at].body).unwrap() };
    assert_eq!(
        body(4),
        json!({"apiVersion": "v1", "kind": "Service", "spec": {"clusterIP": "10.254.0.10", "ports": [{"port": 53, "protocol": "UDP"}]},
            "metadata": {"name": "dns", "namespace": "kube-system", "labels": {"app": "dns", "heat-node-agent/add-on": "dns"}}})
    );
    assert_eq!(body(2)["data"], json!({"other": "YQ==", "word": "aHVzaA=="}));
    assert_eq!(body(2).get("stringData"), None);
    assert_eq!(body(3)["data"]["rules"], "{{ $labels.pod }} of cluster.local {{.Values}} {{ open\n");
    assert_eq!(body(5)["spec"]["image"], "registry.example.org/mirror/dns:1.9");
    let once: Vec<_> = found.iter().filter(|one| one.made_once).map(|one| &*one.name).collect();
    assert_eq!(once, ["key"]);
    assert_eq!(found[4].namespace.as_deref(), Some("kube-system"));
    assert!(found[4].place.ends_with("/addons/dns/10-service.yaml, line 2"), "{}", found[4].place);
}

#[test]
fn a_mistake_in_a_manifest_is_named_with_its_place() {
    let object = |more: &str| format!("apiVersion: v1\nkind: ConfigMap\n{more}");
    for (text, expected) in [
        (
            object("metadata: {name: a}\ndata:\n  b: '{{dns}}'\n"),
            "line 5: {{dns}} is unknown; a manifest may name api_address, api_port,",
        ),
        (
            object("metadata: {name: '{{cluster_name}}'}\n"),
            "{{cluster_name}} has no value in this cluster; {{cluster_name|TEXT}} gives it one",
        ),
        (object("metadata: {name: a}\ndata: {{dns_service_ip}}\n"), "a value that begins with {{ stands in quotes"),
        (object("metadata: {name: a}\nkind: b\n"), "line 4: kind is given twice"),
        (object("metadata: {name: ../../secrets/a}\n"), "metadata.name must be names"),
        (object("metadata: {name: a?b}\n"), "metadata.name must be names"),
        (object("metadata: {name: a, namespace: b/c}\n"), "metadata.namespace is no name"),
        (object("metadata: {name: a, labels: [b]}\n"), "metadata.labels is no map"),
        (object("metadata: {generateName: a}\n"), "metadata.name must be names"),
        ("kind: ConfigMap\nmetadata: {name: a}\n".to_owned(), "apiVersion, kind and metadata.name"),
        ("apiVersion: v1\nkind: List\n".to_owned(), "the list has no items"),
        ("- a\n".to_owned(), "it is no object"),
        ("a: !!python/object b\n".to_owned(), "has no place here"),
        ("a: [\n".to_owned(), "reading"),
        (String::new(), "has no manifest"),
        (object(&format!("metadata: {{name: a}}\ndata: {{a: {}}}\n", "x".repeat(ADD_ON_BYTES))), "take more than 1024 KiB"),
    ] {
        let error = Image::with(&[("a.yaml", &text)]).read().unwrap_err();
        let words = error.to_string();
        assert!(words.contains(expected) && words.contains("/addons/dns"), "{expected}: {words}");
        assert!(error.suggested_remedy().is_some(), "{words}");
    }
}

#[test]
fn what_others_may_write_is_not_applied() {
    for (path, mode) in [("", 0o775), ("/dns", 0o757), ("/dns/a.yaml", 0o646)] {
        let image = Image::with(&[("a.yaml", SERVICE)]);
        let path = format!("{PLACE}{path}");
        image.tree.set_attributes(Path::new(&path), Attributes::mode(mode)).unwrap();
        let error = image.read().unwrap_err();
        assert!(error.cause().contains(&format!("{path} can be changed by users other than root (mode {mode:04o}")), "{error}");
    }
}

#[test]
fn a_name_without_a_directory_is_one_mistake_that_names_those_there_are() {
    let image = Image::with(&[("a.yaml", SERVICE)]);
    let error = read(&image.tree, &add_on("coredns")).unwrap_err();
    assert_eq!(error.to_string(), format!("ADDONS names coredns, but the image has no directory {PLACE}/coredns"));
    assert!(error.broken_rule().unwrap().ends_with("this one has: dns"), "{error:?}");
    let desired = Desired { add_ons: vec![add_on("coredns"), add_on("dns"), add_on("x")], ..Desired::default() };
    assert_eq!(mistakes(&image.tree, &desired).len(), 2);
    let bare = tempfile::tempdir().unwrap();
    let error = read(&Tree::open(bare.path()).unwrap(), &add_on("dns")).unwrap_err();
    assert!(error.broken_rule().unwrap().ends_with("this one has: none"), "{error:?}");
}

/// What `image-build/stage` puts into an image.
#[test]
fn the_add_ons_of_this_repository_are_whole() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("image-build/addons");
    let names: Vec<String> =
        std::fs::read_dir(&source).unwrap().map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.contains(&"coredns".to_owned()) && names.contains(&"metrics-server".to_owned()), "{names:?}");
    for name in &names {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        for file in std::fs::read_dir(source.join(name)).unwrap() {
            let file = file.unwrap();
            let path = format!("{PLACE}/{name}/{}", file.file_name().into_string().unwrap());
            tree.create_dir_all(Path::new(&path).parent().unwrap(), Attributes::mode(0o755)).unwrap();
            tree.write(Path::new(&path), &std::fs::read(file.path()).unwrap(), Attributes::mode(0o644)).unwrap();
        }
        let objects: Vec<Value> = read(&tree, &add_on(name)).unwrap().iter().map(|one| json::typed(&one.body).unwrap()).collect();
        check_whole(name, &objects);
        let of = |kind: &str| objects.iter().filter(|one| one["kind"] == kind).collect::<Vec<_>>();
        if name == "coredns" {
            assert_eq!(of("Service")[0]["spec"]["clusterIP"], "10.254.0.10");
            assert!(of("ConfigMap")[0]["data"]["Corefile"].as_str().unwrap().contains("kubernetes cluster.local in-addr.arpa"));
        }
        if ["cinder-csi", "openstack-cloud-controller-manager"].contains(&name.as_str()) {
            let data = &of("Secret")[0]["data"];
            assert_eq!(
                (&data["cloud-config"], &data["ca-bundle.crt"]),
                (&json!(BASE64_STANDARD.encode(CLOUD)), &json!("")),
                "{name}"
            );
        }
    }
}

/// All that the objects of an add-on name of each other is there, and their images come from the registry.
fn check_whole(name: &str, objects: &[Value]) {
    let of = |kind: &str| objects.iter().filter(|one| one["kind"] == kind).collect::<Vec<_>>();
    let exists = |kind: &str, name: &Value| of(kind).iter().any(|one| one["metadata"]["name"] == *name);
    let covers =
        |labels: &Value, selector: &Value| selector.as_object().unwrap().iter().all(|(key, value)| labels[key] == *value);
    let workloads = [of("Deployment"), of("DaemonSet")].concat();
    assert!(!workloads.is_empty(), "{name}");
    for workload in &workloads {
        let pod = &workload["spec"]["template"];
        let labels = &pod["metadata"]["labels"];
        assert!(covers(labels, &workload["spec"]["selector"]["matchLabels"]), "{name}: it selects its pods");
        assert!(of("Service").iter().all(|service| covers(labels, &service["spec"]["selector"])), "{name}: so does each Service");
        assert!(exists("ServiceAccount", &pod["spec"]["serviceAccountName"]), "{name}: its pods' account is made");
        let volumes = pod["spec"]["volumes"].as_array().unwrap();
        for volume in volumes {
            let (map, secret) = (&volume["configMap"]["name"], &volume["secret"]["secretName"]);
            assert!(map.is_null() || exists("ConfigMap", map), "{name}: the ConfigMap {map} is made");
            assert!(secret.is_null() || exists("Secret", secret), "{name}: the Secret {secret} is made");
        }
        for container in pod["spec"]["containers"].as_array().unwrap() {
            let image = container["image"].as_str().unwrap();
            let tag = image.strip_prefix("registry.example.org/mirror/").and_then(|image| image.split_once(':'));
            assert!(tag.is_some_and(|(_, tag)| tag.contains('.')), "{image}");
            for mount in container["volumeMounts"].as_array().into_iter().flatten() {
                assert!(volumes.iter().any(|volume| volume["name"] == mount["name"]), "{name}: the volume {mount} is there");
            }
        }
    }
    for binding in of("ClusterRoleBinding").iter().chain(&of("RoleBinding")) {
        assert!(exists("ServiceAccount", &binding["subjects"][0]["name"]), "{name}: a binding is for its account");
        let (kind, role) = (binding["roleRef"]["kind"].as_str().unwrap(), &binding["roleRef"]["name"]);
        let is_kubernetes_own =
            ["system:auth-delegator", "extension-apiserver-authentication-reader"].iter().any(|own| role == own);
        assert!(is_kubernetes_own || exists(kind, role), "{name}: the role {role} is made");
    }
}

/// A ConfigMap, an argument or an annotation shows it to whoever may read those.
#[test]
fn secrets_stand_in_objects_of_their_kind_alone() {
    let object = |kind: &str, text: &str| {
        format!("apiVersion: v1\nkind: {kind}\nmetadata: {{name: a, namespace: b}}\nstringData:\n  file: \"{text}\"\n")
    };
    let manifests = Image::with(&[("a.yaml", &object("Secret", "{{cloud_config}}"))]).read().unwrap();
    let body: Value = json::typed(&manifests[0].body).unwrap();
    // What it says in braces is its own.
    assert_eq!(body["data"]["file"], BASE64_STANDARD.encode(CLOUD));
    for (kind, text, expected, remedy) in [
        (
            "ConfigMap",
            "{{cloud_config}}",
            "{{cloud_config}} is a secret: only objects of kind Secret may name it",
            "the manifest",
        ),
        ("Secret", "{{no_secret}}", "{{no_secret}} has no value in this cluster: it comes from AUTH_URL", "give the parameters"),
        ("Secret", "{{other}}", "service_network, cloud_config, cloud_controller_config, no_secret", "the manifest"),
    ] {
        let error = Image::with(&[("a.yaml", &object(kind, text))]).read().unwrap_err();
        let said = format!("{error} {:?}", error.suggested_remedy());
        assert!(said.contains(expected) && said.contains(remedy) && !said.contains("pa#s"), "{kind} {text}: {said}");
    }
}
