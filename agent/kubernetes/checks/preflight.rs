//! Whether the machine is large enough for its role.

use crate::kubernetes::parameters::mistake::Mistake;
use crate::kubernetes::spec::cluster::MachineFacts;
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::spec::words::Role;

/// CPUs and MiB of memory below which a role does not work. Masters: what kubeadm's own preflight asks of a control plane
/// (2 CPUs, 1700 MB); workers: the smallest flavor on which a kubelet with its reservations leaves room for pods.
const LEAST: [(Role, u32, u64); 2] = [(Role::Master, 2, 1700), (Role::Minion, 1, 900)];

/// MiB free where the runtime keeps images, if it has no volume: below it the kubelet evicts pods as soon as they start.
const LEAST_DISK: u64 = 2048;

/// What the machine lacks; nothing where it is not known.
#[must_use]
pub fn preflight(spec: &NodeSpec, facts: &MachineFacts) -> Vec<Mistake> {
    let mut lacks = Vec::new();
    let mut lack = |what: String, rule: String, remedy: &str| lacks.push(Mistake::general("PREFLIGHT", what, rule, remedy));
    let who = if spec.role == Role::Master { "master" } else { "worker" };
    let flavor = "use a larger flavor, or set PREFLIGHT to off";
    for (_, cpus, memory) in LEAST.into_iter().filter(|(of, ..)| *of == spec.role) {
        if let Some(there) = facts.cpus.filter(|there| *there < cpus) {
            let count = |cpus: u32| format!("{cpus} CPU{}", if cpus == 1 { "" } else { "s" });
            lack(format!("finds {}", count(there)), format!("a {who} needs at least {}", count(cpus)), flavor);
        }
        if let Some(there) = facts.memory.filter(|there| *there < memory) {
            lack(format!("finds {there} MiB of memory"), format!("a {who} needs at least {memory} MiB of memory"), flavor);
        }
    }
    if let Some(there) = facts.disk.filter(|there| spec.runtime_volume.is_none() && *there < LEAST_DISK) {
        let least = format!("without DOCKER_VOLUME, images and containers need at least {LEAST_DISK} MiB free on the root disk");
        lack(format!("finds {there} MiB free"), least, "use DOCKER_VOLUME or a larger disk, or set PREFLIGHT to off");
    }
    if let Some(cluster) = &spec.kubernetes {
        let minor = cluster.minor;
        if facts.unified_cgroups && minor.number() < 19 {
            let rule = format!("kubelet {minor} needs cgroup v1 and exits without it");
            let remedy = "use an image that boots with cgroup v1 (systemd.unified_cgroup_hierarchy=0 on its kernel's command line, \
                          which systemd 256 and later refuse)";
            lack("finds only cgroup v2".to_owned(), rule, remedy);
        }
        if let Some(swap) = facts.swap.filter(|swap| *swap > 0 && minor.number() >= 8 && !cluster.node.swap) {
            let rule = "since 1.8 the kubelet exits on a machine with swap".to_owned();
            lack(format!("finds {swap} MiB of swap"), rule, "remove swap from the image, or set SWAP to allow");
        }
    }
    lacks
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::metadata::Deployment;

    fn lacks(config: &serde_json::Value, facts: &MachineFacts) -> Vec<String> {
        let entry = json!({"id": "i", "group": "kubernetes-node", "config": config});
        let spec = crate::kubernetes::node_of(
            &Deployment::parse(&entry).unwrap().unwrap(),
            &crate::kubernetes::ImagePolicy::everything(),
        )
        .unwrap();
        preflight(&spec, facts).iter().map(|mistake| mistake.problem.clone()).collect()
    }

    #[test]
    fn a_kubelet_that_the_machine_would_stop_is_named() {
        let node = |tag: &str, more: &str| {
            let mut config = json!({"ROLE": "minion", "KUBE_MASTER_IP": "192.0.2.5", "KUBE_NODE_IP": "192.0.2.31", "KUBE_TAG": tag,
                "INSTANCE_NAME": "n", "CERTIFICATES": "bootstrap",
                "BOOTSTRAP_TOKEN": "abcdef.0123456789abcdef", "CA_CERTIFICATE": "/given/ca.crt"});
            config[more.split('=').next().unwrap()] = json!(more.split('=').nth(1));
            config
        };
        let facts = MachineFacts { unified_cgroups: true, swap: Some(512), ..MachineFacts::default() };
        assert_eq!(lacks(&node("v1.18.2", "ROLE=minion"), &facts), ["finds only cgroup v2", "finds 512 MiB of swap"]);
        assert_eq!(lacks(&node("v1.28.9", "ROLE=minion"), &facts), ["finds 512 MiB of swap"]);
        assert!(lacks(&node("v1.28.9", "SWAP=allow"), &facts).is_empty());
        assert!(lacks(&node("v1.28.9", "ROLE=minion"), &MachineFacts { swap: Some(0), ..facts }).is_empty());
    }

    #[test]
    fn what_a_role_lacks_is_named_and_the_unknown_is_not() {
        let master = json!({"KUBE_NODE_IP": "192.0.2.11", "TLS_DISABLED": true});
        let minion = json!({"ROLE": "minion"});
        let volume = json!({"ROLE": "minion", "DOCKER_VOLUME": "7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4", "CLUSTER_UUID": "c0ffee00-1111-4222-8333-444455556666"});
        let small = MachineFacts { memory: Some(990), cpus: Some(1), disk: Some(100), ..MachineFacts::default() };
        let large = MachineFacts { memory: Some(2048), cpus: Some(2), disk: Some(20_000), ..MachineFacts::default() };
        assert_eq!(lacks(&master, &small), ["finds 1 CPU", "finds 990 MiB of memory", "finds 100 MiB free"]);
        assert_eq!(lacks(&minion, &small), ["finds 100 MiB free"]);
        assert!(lacks(&volume, &small).is_empty());
        for document in [&master, &minion] {
            assert!(lacks(document, &large).is_empty() && lacks(document, &MachineFacts::default()).is_empty());
        }
    }
}
