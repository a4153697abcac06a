//! cri-dockerd: docker for kubelets from 1.24 on, which no longer speak to it by themselves.

use crate::desired::{Dependency, Desired, Unit};
use crate::kubernetes::parts::daemon::Daemon;
use crate::kubernetes::parts::paths::{CNI_NETWORKS, CNI_PROGRAMS};
use crate::kubernetes::spec::cluster::{ClusterSpec, MachineFacts};
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::versions::quoted;

const UNIT: &str = "cri-docker.service";
const SOCKET: &str = "cri-docker.socket";
const DOCKER: &str = "docker.service";

/// Its part of the node.
pub(in crate::kubernetes) fn part(_spec: &NodeSpec, cluster: &ClusterSpec, _facts: &MachineFacts) -> Desired {
    let mut part = Desired::default();
    if !cluster.runtime.cri_dockerd {
        return part;
    }
    // Its project's own units have this pair: the socket /run/cri-dockerd.sock is handed over.
    part.units.push(Unit {
        name: SOCKET.to_owned(),
        enable: true,
        restart_on: [].into(),
        needs: [].into(),
        applies_files: false,
    });
    let mut words = vec![
        "--container-runtime-endpoint=fd://".to_owned(),
        "--network-plugin=cni".to_owned(),
        format!("--cni-bin-dir={CNI_PROGRAMS}"),
        format!("--cni-conf-dir={CNI_NETWORKS}"),
    ];
    if let Some(image) = &cluster.runtime.sandbox_image {
        words.push(format!("--pod-infra-container-image={image}"));
    }
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    let mut daemon = Daemon::new(UNIT, "cri-dockerd", "/etc/kubernetes/cri-dockerd");
    daemon.variables.push(("CRI_DOCKERD_ARGS", words.join(" ")));
    daemon.needs = [Dependency::Unit(DOCKER.to_owned()), Dependency::Unit(SOCKET.to_owned())].into();
    daemon.after = vec![DOCKER, SOCKET];
    daemon.unit_lines = format!("Requires={SOCKET}\n");
    daemon.service_lines.push_str("Type=notify\n");
    daemon.add(&mut part);
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fixtures::{arguments, master, value};

    #[test]
    fn docker_is_reached_through_it_from_1_24_on() {
        for (minor, there) in [(23, false), (24, true), (37, true)] {
            let desired = master(minor, &[("CERTIFICATES", "given"), ("SANDBOX_IMAGE", "pause:3.9")]);
            let unit = desired.units.iter().find(|unit| unit.name == UNIT);
            assert_eq!(unit.is_some(), there, "1.{minor}");
            if there {
                let words = arguments(&desired, UNIT);
                for (flag, expected) in [
                    ("container-runtime-endpoint", "fd://"),
                    ("cni-bin-dir", "/opt/cni/bin"),
                    ("cni-conf-dir", "/etc/cni/net.d"),
                    ("pod-infra-container-image", "pause:3.9"),
                ] {
                    assert_eq!(value(&words, flag), Some(expected));
                }
                assert!(desired.units.iter().any(|unit| unit.name == SOCKET && unit.enable));
            }
        }
    }
}
