use std::collections::BTreeMap;

use futures_util::future::ready;
use serde_json::json;

use super::*;
use crate::desired::Desired;
use crate::error::Error;
use crate::files::Attributes;
use crate::kubernetes::{self, ImagePolicy, MachineFacts, NodeSpec};
use crate::machine::installed::UnitFiles;
use crate::metadata::Deployment;

const KERNEL: &str = "/lib/modules/6.1.0";
const MODULES: [&str; 2] = ["kernel/fs/overlayfs/overlay.ko.xz", "kernel/fs/xfs/xfs.ko"];

/// A master with every kind of need, but for these parameters; null takes one away.
fn node(changes: &serde_json::Value) -> (NodeSpec, Desired) {
    let volume = "7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4";
    let mut entry = json!({"id": "i", "name": "n", "group": "kubernetes-node", "config": {"ROLE": "master", "KUBE_TAG": "v1.28.9",
        "KUBE_NODE_IP": "192.0.2.11", "INSTANCE_NAME": "m", "CLUSTER_UUID": "c0ffee00-1111-4222-8333-444455556666", "CERTIFICATES": "given",
        "CA_CERTIFICATE": "/ca.crt", "CA_KEY": "/ca.key", "KEYSTONE_AUTH_ENABLED": "false", "CONTAINER_RUNTIME": "containerd",
        "CONTAINERD_VERSION": "1.6.20", "ETCD_VOLUME": volume, "NETWORK_DRIVER": "static-routes",
        "NODE_SUBNETS": "192.0.2.11=10.100.1.0/24,192.0.2.12=10.100.2.0/24"}});
    for (name, value) in changes.as_object().unwrap() {
        entry["config"][name] = value.clone();
    }
    entry["config"].as_object_mut().unwrap().retain(|_, value| !value.is_null());
    let deployment = Deployment::parse(&entry).unwrap().unwrap();
    let spec = kubernetes::node_of(&deployment, &ImagePolicy::everything());
    let spec = spec.unwrap_or_else(|mistakes| panic!("{mistakes:?}"));
    let desired = kubernetes::render(&spec, &MachineFacts::default()).unwrap();
    (spec, desired)
}

/// An image with all that a node needs.
struct Image {
    root: Tree,
    _dir: tempfile::TempDir,
    spec: NodeSpec,
    desired: Desired,
    releases: BTreeMap<&'static str, &'static str>,
}

impl Image {
    fn new() -> Self {
        Self::of("Kubernetes v1.28.9", &json!({}))
    }

    fn of(kubernetes: &'static str, changes: &serde_json::Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (spec, desired) = node(changes);
        let releases = BTreeMap::from([
            ("kube-apiserver", kubernetes),
            ("kube-controller-manager", kubernetes),
            ("kube-scheduler", kubernetes),
            ("kubelet", kubernetes),
            ("kube-proxy", kubernetes),
            ("etcd", "etcd Version: 3.5.9"),
            ("containerd", "containerd github.com/containerd/containerd 1.6.20"),
        ]);
        let image = Self { root: Tree::open(dir.path()).unwrap(), _dir: dir, spec, desired, releases };
        for unit in image.desired.units.iter().filter(|unit| !unit.applies_files) {
            let name = unit.name.trim_end_matches(".service");
            image.write(
                &format!("/usr/lib/systemd/system/{}", unit.name),
                &format!("[Service]\nExecStart=/usr/bin/{name} $ARGS\n"),
                0o644,
            );
            image.write(&format!("/usr/bin/{name}"), "x", 0o755);
        }
        for plugin in lacking_cni(&image.root, &image.desired) {
            image.write(&plugin, "x", 0o755);
        }
        image.write("/usr/sbin/mkfs.xfs", "x", 0o755);
        image.write("/usr/sbin/xfs_growfs", "x", 0o755);
        image.modules(&MODULES);
        image
    }

    fn write(&self, path: &str, text: &str, mode: u32) {
        let path = Path::new(path);
        self.root.create_dir_all(path.parent().unwrap(), Attributes::mode(0o755)).unwrap();
        self.root.write(path, text.as_bytes(), Attributes::mode(mode)).unwrap();
    }

    fn modules(&self, files: &[&str]) {
        let lines: String = files.iter().map(|file| format!("{file}:\n")).collect();
        self.write(&format!("{KERNEL}/modules.dep"), &format!("kernel/x.ko:\n{lines}"), 0o644);
        self.write(&format!("{KERNEL}/modules.builtin"), "kernel/y.ko\n", 0o644);
    }

    fn remove(&self, path: &str) {
        self.root.remove(Path::new(path)).unwrap();
    }

    async fn missing(&self) -> Vec<MissingItem> {
        let machine = InstalledPrograms { root: &self.root, units: UnitFiles::Image, spec: &self.spec, desired: &self.desired };
        let ask = |name: &'static str, _| -> futures_util::future::LocalBoxFuture<'_, Result<String>> {
            let output = self.releases.get(name).map(|output| (*output).to_owned());
            Box::pin(ready(output.ok_or_else(|| Error::permanent("it does not answer"))))
        };
        missing(&machine, &ask).await.unwrap().into_iter().collect()
    }
}

#[tokio::test]
async fn an_image_with_everything_lacks_nothing() {
    let image = Image::new();
    assert_eq!(image.missing().await, []);
    // The test means something: there is something to be missed of each kind.
    assert!(image.desired.units.iter().filter(|unit| !unit.applies_files).count() > 6);
    assert!(!kubernetes::checks::installed::cni_programs(&image.desired).is_empty() && !image.desired.volumes.is_empty());
    assert!(image.desired.gates.iter().any(|gate| matches!(gate.probe, GateProbe::Store(_))));
}

#[tokio::test]
async fn an_add_on_that_the_image_lacks_is_named() {
    let image = Image::of("Kubernetes v1.28.9", &json!({"ADDONS": "dns"}));
    let [lacking] = &image.missing().await[..] else { panic!() };
    assert_eq!(lacking.place, "ADDONS");
    assert!(lacking.problem.starts_with("ADDONS names dns, but the image has no directory /usr/share/"), "{lacking:?}");
    image.write(
        "/usr/share/heat-node-agent/addons/dns/a.yaml",
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {a: '{{x}}'}}",
        0o644,
    );
    assert!(image.missing().await[0].problem.contains("a.yaml, line 1: {{x}} is unknown"));
    image.write("/usr/share/heat-node-agent/addons/dns/a.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}", 0o644);
    assert_eq!(image.missing().await, []);
}

#[tokio::test]
async fn each_thing_that_is_missing_is_named_alone_with_where_it_was_looked_for_and_who_needs_it() {
    type Break = fn(&mut Image);
    let table: [(Break, &str, &str, &str); 12] = [
        (
            |image| image.remove("/usr/lib/systemd/system/etcd.service"),
            "etcd.service",
            "the unit is missing; looked for in /etc/systemd/system, /run/systemd/system",
            "the node runs etcd.service",
        ),
        (
            |image| {
                image.root.create_dir_all(Path::new("/etc/systemd/system"), Attributes::mode(0o755)).unwrap();
                image.root.link("/dev/null", Path::new("/etc/systemd/system/kubelet.service")).unwrap();
            },
            "/etc/systemd/system/kubelet.service",
            "the unit is masked",
            "the node runs kubelet.service",
        ),
        (
            |image| image.remove("/usr/bin/kubelet"),
            "kubelet",
            "the program is missing; looked for in /usr/local/sbin, /usr/local/bin, /usr/sbin",
            "kubelet.service runs it",
        ),
        (
            |image| image.write("/usr/bin/kubelet", "x", 0o644),
            "/usr/bin/kubelet",
            "the program cannot be executed",
            "kubelet.service runs it",
        ),
        (
            |image| {
                image.write(
                    "/usr/lib/systemd/system/etcd.service",
                    "[Service]\nExecStart=/bin/sh -c \"exec /usr/bin/etcd\"\n",
                    0o644,
                );
                image.write("/bin/sh", "x", 0o755);
                image.remove("/usr/bin/etcd");
            },
            "/usr/bin/etcd",
            "the program is missing",
            "etcd.service runs it",
        ),
        (
            |image| {
                image.write("/usr/lib/systemd/system/etcd.service", "[Service]\nExecStart=-etcd-wrapper\n", 0o644);
            },
            "etcd-wrapper",
            "the program is missing; looked for in /usr/local/sbin, /usr/local/bin, /usr/sbin",
            "etcd.service runs it",
        ),
        (
            |image| {
                image.write("/usr/lib/systemd/system/etcd.service", "[Service]\nExecStart=/usr/bin/podman run x etcd\n", 0o644);
            },
            "/usr/bin/podman",
            "the program is missing",
            "etcd.service runs it",
        ),
        (
            |image| image.remove("/opt/cni/bin/bridge"),
            "/opt/cni/bin/bridge",
            "the CNI plugin is missing",
            "no pod gets a network",
        ),
        (|image| image.remove("/usr/sbin/mkfs.xfs"), "mkfs.xfs", "looked for in /usr/local/sbin", "it makes the etcd volume"),
        (
            |image| image.modules(&MODULES[1..]),
            "overlay",
            "no kernel of the image has this module",
            "storage driver overlay2 needs it",
        ),
        (
            |image| image.modules(&MODULES[..1]),
            "xfs",
            "no kernel of the image has this module",
            "the etcd volume is mounted by it",
        ),
        (
            |image| {
                image.releases.insert("containerd", "containerd version 0.2.3");
            },
            "containerd",
            "containerd 0.2 is installed, which has no CRI v1",
            "containerd.service gets only settings that its release supports",
        ),
    ];
    for (break_it, place, problem, rule) in table {
        let mut image = Image::new();
        break_it(&mut image);
        let found = image.missing().await;
        assert_eq!(found.len(), 1, "{place}: {found:#?}");
        assert!(found[0].place == place && found[0].problem.contains(problem) && found[0].rule.contains(rule), "{found:#?}");
        assert!(!found[0].remedy.is_empty(), "{found:#?}");
    }
}

/// `kubectl port-forward` failed there, and nothing had said so.
#[tokio::test]
async fn socat_is_needed_where_the_kubelet_on_the_host_uses_docker_without_cri_dockerd() {
    let docker = json!({"KUBE_TAG": "v1.20.2", "CONTAINER_RUNTIME": "docker", "CONTAINERD_VERSION": null});
    let image = Image::of("Kubernetes v1.20.2", &docker);
    let missing = image.missing().await;
    let found: Vec<_> = missing.iter().map(|need| (need.place.as_str(), need.rule.as_str())).collect();
    assert_eq!(found, [("socat", "kubelet.service runs it")], "{missing:#?}");
    assert!(missing[0].problem.contains("port-forward") && missing[0].remedy.contains("socat"), "{missing:#?}");
    image.write("/usr/local/bin/socat", "x", 0o755);
    assert_eq!(image.missing().await, []);
}

/// kube-proxy of 1.20.2 balanced by iptables, and said so in its log alone.
#[tokio::test]
async fn ipset_is_needed_where_a_kube_proxy_on_the_host_is_in_mode_ipvs() {
    let image = Image::of("Kubernetes v1.28.9", &json!({"KUBEPROXY_OPTIONS": "--proxy-mode=ipvs"}));
    let missing = image.missing().await;
    let found: Vec<_> = missing.iter().map(|need| (need.place.as_str(), need.rule.as_str())).collect();
    assert_eq!(found, [("ipset", "kube-proxy.service runs it")], "{missing:#?}");
    assert!(missing[0].problem.contains("mode ipvs") && missing[0].remedy.contains("another mode"), "{missing:#?}");
    image.write("/usr/sbin/ipset", "x", 0o755);
    assert_eq!(image.missing().await, []);
}

#[tokio::test]
async fn a_unit_that_the_parameters_bring_needs_none_in_the_image_and_templates_serve_instances() {
    let mut image = Image::new();
    image.remove("/usr/lib/systemd/system/etcd.service");
    image
        .desired
        .files
        .push(crate::desired::File::public("/etc/systemd/system/etcd.service", "[Service]\nExecStart=/usr/bin/etcd\n"));
    assert_eq!(image.missing().await, []);
    image.write("/lib/systemd/system/x@.service", "x", 0o644);
    assert_eq!(unit_file(&image.root, "x@1.service").as_deref(), Some("/lib/systemd/system/x@.service"));
    assert_eq!(unit_file(&image.root, "y@1.service"), None);
}

#[tokio::test]
async fn a_unit_that_leads_nowhere_is_not_called_masked_and_what_grows_a_volume_is_needed_too() {
    let image = Image::new();
    image.root.create_dir_all(Path::new("/etc/systemd/system"), Attributes::mode(0o755)).unwrap();
    image.root.link("/opt/kubelet.service", Path::new("/etc/systemd/system/kubelet.service")).unwrap();
    image.remove("/usr/sbin/xfs_growfs");
    let missing = image.missing().await;
    let found: Vec<_> = missing.iter().map(|need| (need.place.as_str(), need.problem.as_str(), need.rule.as_str())).collect();
    let [unit, growing] = found.as_slice() else { panic!("{found:?}") };
    let problem = "the unit is a link to /opt/kubelet.service, which is missing";
    assert_eq!(*unit, ("/etc/systemd/system/kubelet.service", problem, "the node runs kubelet.service"));
    assert_eq!((growing.0, growing.2), ("xfs_growfs", "it grows the etcd volume"));
}

#[tokio::test]
async fn an_image_without_a_kernel_is_not_blamed_for_its_modules_and_one_of_several_is_enough() {
    let image = Image::new();
    image.modules(&[]);
    assert_eq!(image.missing().await.len(), 2);
    image.write("/lib/modules/6.2.0/modules.dep", &MODULES.map(|file| format!("{file}:\n")).concat(), 0o644);
    image.write("/lib/modules/6.2.0/modules.builtin", "kernel/y.ko\n", 0o644);
    assert_eq!(image.missing().await, []);
    assert_eq!(crate::machine::facts::of_image(&image.root).kernel, Some((6, 2)));
    for file in ["6.1.0/modules.dep", "6.2.0/modules.dep"] {
        image.remove(&format!("/lib/modules/{file}"));
    }
    assert_eq!(image.missing().await, []);
}
