//! Values that a parameter may have where only Heat knows it: what is wrong whichever of them it has is wrong in the template.
//!
//! They are samples, not all that there are: whoever uses them must not conclude anything about a parameter that is not known itself.

use super::kinds::ParameterKind;
use super::table::find;

/// Values by which other parameters are allowed or not.
const EXAMPLES: &[(&str, &[&str])] = &[
    ("KUBE_TAG", &["v1.2.7", "v1.9.11", "v1.15.12", "v1.20.15", "v1.24.17", "v1.28.9", "v1.31.4"]),
    ("ETCD_TAG", &["v2.3.8", "v3.3.27", "v3.5.9"]),
    ("CONTAINERD_VERSION", &["1.4.4", "1.7.20", "2.0.1"]),
    ("FLANNEL_TAG", &["v0.9.1", "v0.22.0"]),
    ("DOCKER_STORAGE_DRIVER", &["overlay2", "overlay", "btrfs", "devicemapper"]),
    ("DOCKER_VOLUME", &["7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4", "0a5c3c1e-7f6b-4d7e-9a51-6f1f4b1f0d11"]),
    ("ETCD_VOLUME", &["e41b7f92-0c6d-4f0a-b1d7-58a2f3c9d610", "b7c0a3d4-2b64-4a5e-8b1d-93e2d1f0c7a8"]),
    ("ADMISSION_CONTROL_LIST", &["NamespaceLifecycle,NodeRestriction", "ServiceAccount"]),
    ("VOLUME_DRIVER", &["cinder"]),
];

/// Values of a parameter, and the empty one last; nothing for a name that is none.
#[must_use]
pub fn values(name: &str) -> Vec<String> {
    let Some(parameter) = find(name) else { return Vec::new() };
    let examples = EXAMPLES.iter().find(|(name, _)| *name == parameter.name).map(|(_, values)| *values);
    let number = |least: u32, most: u32| vec![least.to_string(), (least / 2 + most / 2).to_string(), most.to_string()];
    let given = examples.or(match parameter.kind {
        ParameterKind::Choice(words) => Some(words),
        ParameterKind::Bool => Some(&["true", "false"]),
        ParameterKind::Number(..) | ParameterKind::Handle => None,
        ParameterKind::Port => Some(&["6443", "8080", "443"]),
        ParameterKind::Ip => Some(&["192.0.2.11", "198.51.100.7", "2001:db8::11"]),
        ParameterKind::Cidr => Some(&["192.0.2.0/24", "10.77.0.0/16", "172.20.0.0/16", "2001:db8::/64"]),
        ParameterKind::Url => Some(&["https://u.example.org/v1", "http://192.0.2.5:8000/v3"]),
        ParameterKind::Uuid => Some(&["7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4", "c0ffee00-1111-4222-8333-444455556666"]),
        ParameterKind::Label => Some(&["node-1", "other-name"]),
        ParameterKind::Domain => Some(&["cluster.local", "other.example"]),
        ParameterKind::HostPort => Some(&["registry.example.org:5000", "192.0.2.7"]),
        ParameterKind::List => Some(&["a,b", "192.0.2.11"]),
        ParameterKind::Map => Some(&["{}"]),
        ParameterKind::Material => Some(&["/given/one.pem", "/given/other.pem"]),
        ParameterKind::Pem => Some(&["-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----"]),
        ParameterKind::BootstrapToken => Some(&["abcdef.0123456789abcdef"]),
        ParameterKind::Version => Some(&["v1.28.9"]),
        ParameterKind::Word | ParameterKind::Text => Some(&["v1.2.3", "other"]),
        ParameterKind::Options => Some(&["--v=2", "--v=3"]),
    });
    let mut all: Vec<String> = match (given, parameter.kind) {
        (Some(given), _) => given.iter().map(|value| (*value).to_owned()).collect(),
        (None, ParameterKind::Number(least, most)) => number(least, most),
        (None, _) => vec!["https://h.example.org/v1/wait".to_owned()],
    };
    all.push(String::new());
    all
}

#[cfg(test)]
mod tests {
    use super::super::table::TABLE;
    use super::*;

    #[test]
    fn each_value_obeys_the_rule_of_its_parameter() {
        for parameter in TABLE {
            let all = values(&parameter.name.to_ascii_lowercase());
            assert!(all.len() > 1, "{}", parameter.name);
            for value in all.iter().filter(|value| !value.is_empty()) {
                assert!(parameter.kind.normalised(value).is_some(), "{} {value}", parameter.name);
            }
        }
        assert!(EXAMPLES.iter().all(|(name, _)| find(name).is_some()));
        assert!(values("KUBE_TAGG").is_empty());
    }
}
