//! What a node asks of the running kernel, and whether it is there; and whatever else of the machine makes it impossible.

use super::certificates;
use crate::kubernetes::networks::pod_network;
use crate::kubernetes::parameters::mistake::Mistake;
use crate::kubernetes::spec::cluster::{ClusterSpec, MachineFacts, NetworkDriver};
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::worker::host::flannel_modules;
use crate::kubernetes::worker::kube_proxy;
use crate::kubernetes::worker::reservations;

/// Modules that a node may need, whose absence is looked for.
pub const MODULES: [&str; 9] = ["ip_vs", "ip_vs_rr", "ip_vs_wrr", "ip_vs_sh", "nf_tables", "vxlan", "tun", "ipip", "wireguard"];

/// What is asked for and the machine cannot give; nothing where it is not known.
#[must_use]
pub fn lacking(spec: &NodeSpec, facts: &MachineFacts) -> Vec<Mistake> {
    let Some(cluster) = &spec.kubernetes else { return Vec::new() };
    let mut mistakes = kube_proxy::lacking(cluster, facts);
    mistakes.extend(of_flannel(cluster, facts));
    mistakes.extend(reservations::too_large(cluster, facts));
    mistakes.extend(certificates::unusable_for_tokens(cluster, spec.role, facts));
    mistakes.extend(pod_network::in_the_way(spec, cluster, facts));
    mistakes
}

/// flanneld would wait for its device forever.
fn of_flannel(cluster: &ClusterSpec, facts: &MachineFacts) -> Option<Mistake> {
    let backend =
        Some(cluster.networks.flannel.backend.as_str()).filter(|_| cluster.networks.driver == NetworkDriver::Flannel)?;
    let missing = flannel_modules(backend).iter().find(|module| facts.lacking_modules.contains(module))?;
    Some(Mistake::general(
        "FLANNEL_BACKEND",
        format!("selects {backend}, but the kernel lacks {missing}"),
        format!("flannel's {backend} backend needs the module {missing}"),
        "give another backend, or another kernel",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fixtures::spec;

    #[test]
    fn what_the_kernel_lacks_is_refused_by_name_and_the_unknown_is_not() {
        let none = MachineFacts::default();
        let bare = MachineFacts { kernel: Some((4, 18)), lacking_modules: MODULES.to_vec(), ..MachineFacts::default() };
        let full = MachineFacts { kernel: Some((6, 1)), ..MachineFacts::default() };
        for (changes, expected) in [
            (&[][..], &[][..]),
            (&[("PROXY_MODE", "iptables")], &[]),
            (&[("PROXY_MODE", "ipvs")], &["PROXY_MODE selects ipvs, but the kernel lacks ip_vs, ip_vs_rr, ip_vs_wrr, ip_vs_sh"]),
            (
                &[("KUBEPROXY_OPTIONS", "--proxy-mode=ipvs")],
                &["KUBEPROXY_OPTIONS selects ipvs, but the kernel lacks ip_vs, ip_vs_rr, ip_vs_wrr, ip_vs_sh"],
            ),
            (
                &[("PROXY_MODE", "nftables"), ("KUBE_TAG", "v1.31.2")],
                &[
                    "PROXY_MODE selects nftables, but the kernel lacks nf_tables",
                    "PROXY_MODE selects nftables, but the kernel is Linux 4.18",
                ],
            ),
            (&[("FLANNEL_BACKEND", "vxlan")], &["FLANNEL_BACKEND selects vxlan, but the kernel lacks vxlan"]),
            (&[("FLANNEL_BACKEND", "vxlan"), ("NETWORK_DRIVER", "calico")], &[]),
        ] {
            let spec = spec(changes);
            let found = |facts| {
                let mistakes = lacking(&spec, facts).into_iter();
                mistakes.map(|mistake| format!("{} {}", mistake.parameter, mistake.problem)).collect::<Vec<_>>()
            };
            assert_eq!(found(&bare), expected, "{changes:?}");
            assert!(found(&none).is_empty() && found(&full).is_empty(), "{changes:?}");
        }
    }
}
