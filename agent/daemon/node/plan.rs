//! What a deployment asks for, understood: its parameters as a node, and who waits for it.

use crate::desired::Desired;
use crate::digest::key_of_json;
use crate::kubernetes::{self, ImagePolicy, MachineFacts, Mistake, NodeSpec, Preflight};
use crate::metadata::Deployment;
use crate::signal::Handle;

/// A deployment whose parameters are right.
#[derive(Debug)]
pub(crate) struct NodePlan {
    pub(in crate::daemon) spec: NodeSpec,
    pub(in crate::daemon) desired: Desired,
    pub(in crate::daemon) digest: String,
    pub(in crate::daemon) wait: Option<Handle>,
}

/// Checks parameters and wait handle.
pub(crate) fn understand(deployment: &Deployment, facts: &MachineFacts, policy: &ImagePolicy) -> Result<NodePlan, Vec<Mistake>> {
    let handle = kubernetes::readable_parameters(deployment).wait_handle().map(|value| Handle::parse(&value)).transpose();
    // Only of what is new: a node in place is looked after, however large what asked for it is.
    if let Some(mistake) = kubernetes::too_large(deployment) {
        return Err(vec![mistake]);
    }
    let (spec, handle) = match (kubernetes::node_of(deployment, policy), handle) {
        (Ok(spec), Ok(handle)) => (spec, handle),
        (spec, handle) => {
            let mut mistakes = spec.err().unwrap_or_default();
            // A handle that is no value at all is named already.
            if let Some(error) = handle.err().filter(|_| mistakes.iter().all(|mistake| mistake.parameter != "WAIT_HANDLE")) {
                let rule = error.broken_rule().unwrap_or_default().to_owned();
                let remedy = error.suggested_remedy().unwrap_or_default().to_owned();
                mistakes.push(Mistake::general("WAIT_HANDLE or WAIT_CURL", error.to_string(), rule, remedy));
            }
            return Err(mistakes);
        }
    };
    let desired = kubernetes::render(&spec, facts).map_err(|mistake| vec![mistake])?;
    let digest = digest(&desired, spec.kube_version.as_deref());
    Ok(NodePlan { spec, desired, digest, wait: handle })
}

/// What a generation is known by: what the node looks like; where its signals go is not part of it. A version of the agent that
/// renders a node otherwise gives another one ([`crate::deploy::Generations::begin`] says what it does then).
fn digest(desired: &Desired, kube_version: Option<&str>) -> String {
    key_of_json(&(desired, kube_version))
}

impl NodePlan {
    /// The same plan, if this machine can carry it out.
    pub(in crate::daemon) fn supported_by(self, facts: &MachineFacts) -> Result<Self, Vec<Mistake>> {
        let mut mistakes = self.lacking(facts);
        if self.spec.preflight == Preflight::Refuse {
            mistakes.extend(kubernetes::preflight(&self.spec, facts));
        }
        if mistakes.is_empty() { Ok(self) } else { Err(mistakes) }
    }

    /// The node, and what it consists of.
    pub(crate) fn parts(&self) -> (&NodeSpec, &Desired) {
        (&self.spec, &self.desired)
    }

    /// What is asked for and the running kernel lacks.
    pub(crate) fn lacking(&self, facts: &MachineFacts) -> Vec<Mistake> {
        kubernetes::lacking(&self.spec, facts)
    }

    /// Whether a machine that is too small keeps the node from being begun.
    pub(crate) fn refuses_small_machines(&self) -> bool {
        self.spec.preflight == Preflight::Refuse
    }

    /// What the reader should know, although the node is brought up.
    pub(crate) fn warnings(&self, facts: &MachineFacts) -> Vec<Mistake> {
        let small = if self.spec.preflight == Preflight::Off { Vec::new() } else { kubernetes::preflight(&self.spec, facts) };
        self.spec.warnings.iter().cloned().chain(small).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::desired::{
        AddOn, CaCertificate, Certificate, CertificatePolicy, Dependency, Directory, EtcdAccess, EtcdMember, File, FlannelStore,
        Gate, GateProbe, Issuer, KeyRequest, KeyType, MagnumAccess, MagnumUser, Material, Object, Owner, RenewalSlot, Rotation,
        Signer, Unit,
    };
    use crate::signal::Destination;

    fn ca(given: &str) -> CaCertificate {
        CaCertificate {
            signer: Signer::Etcd,
            path: "/ca.crt".into(),
            owner: Owner::root(),
            given: Some(Material::Text(given.into())),
            signing_key: None,
            key_path: None,
            signing_path: None,
        }
    }

    fn trust(password: &str) -> CertificatePolicy {
        let user = MagnumUser::Trustee {
            auth_url: "https://keystone".into(),
            user_id: "u".into(),
            password: password.into(),
            trust_id: None,
        };
        let (url, cluster) = ("https://magnum".to_owned(), "c".to_owned());
        let access = MagnumAccess { url, cluster, bay: false, user, ca: None, insecure: false };
        CertificatePolicy {
            issuer: Issuer::Magnum(access),
            keys: KeyType::Rsa(4096),
            keys_asked: true,
            renew: true,
            rotation: Rotation::Switch,
            share: RenewalSlot::ALONE,
        }
    }

    fn small() -> Desired {
        Desired { files: vec![File::public("/etc/x", "a\n")], ..Desired::default() }
    }

    /// A node in place keeps its generation's number as long as this digest stays; where it changes on purpose, a new
    /// deployment that asks for the same makes a new generation once.
    #[test]
    fn the_digest_of_a_generation_stays_the_same_over_versions() {
        assert_eq!(digest(&Desired::default(), None), "3c81df6a4af7473f5dedb357509bfd2c");
        assert_eq!(digest(&small(), Some("v1.23.3")), "301c9e3172fb4ced6e5062e8971d5bd9");
        let trusting = Desired { cas: vec![ca("a")], trust: Some(trust("hush")), ..small() };
        assert_eq!(digest(&trusting, None), "543b3f94530532e587e0a4a4d6394bd6");
    }

    fn member() -> EtcdMember {
        let access = EtcdAccess { endpoint: "http://192.0.2.1:2379".into(), identity: None };
        EtcdMember {
            access,
            peer: "http://192.0.2.1:2380".into(),
            peer_identity: None,
            is_single: true,
            name: "m1".into(),
            keeps_v2: false,
        }
    }

    fn object() -> Object {
        Object {
            name: "x".into(),
            server: "https://127.0.0.1:6443".into(),
            collection: "/api".into(),
            object: "x".into(),
            body: Material::Text("{}".into()),
            identity: Some(crate::desired::ClientIdentity { certificate: "/c".into(), key: "/k".into(), ca: "/a".into() }),
            before: None,
            needs: BTreeSet::new(),
        }
    }

    #[test]
    fn each_part_of_a_node_counts_for_its_digest_and_no_password_does() {
        let etcd = || member().access;
        let (path, owner) = (|| "/x".to_owned(), Owner::root);
        let with = |change: fn(&mut File)| {
            let mut desired = small();
            desired.files.iter_mut().for_each(change);
            desired
        };
        let nodes = vec![
            Desired::default(),
            small(),
            with(|file| file.path.push('y')),
            with(|file| file.mode = 0o600),
            with(|file| file.owner = Owner::named("etcd")),
            with(|file| file.content.push('b')),
            with(|file| file.secret = true),
            Desired {
                directories: vec![Directory { path: path(), mode: 0o755, owner: owner(), needs: BTreeSet::new() }],
                ..small()
            },
            Desired {
                keys: vec![KeyRequest { name: "k".into(), path: path(), owner: Owner::root(), kind: KeyType::EcdsaP256 }],
                ..small()
            },
            Desired {
                units: vec![Unit {
                    name: "x.service".into(),
                    enable: true,
                    restart_on: BTreeSet::new(),
                    needs: BTreeSet::from([Dependency::FlannelKey]),
                    applies_files: false,
                }],
                ..small()
            },
            Desired {
                gates: vec![Gate {
                    name: "x".into(),
                    unit: None,
                    probe: GateProbe::Socket(path()),
                    consecutive: 3,
                    deadline: None,
                    needs: BTreeSet::new(),
                    remedy: String::new(),
                }],
                ..small()
            },
            // Of the same length: what a text that may be secret says counts as well.
            Desired { cas: vec![ca("a")], ..small() },
            Desired { cas: vec![ca("b")], ..small() },
            Desired {
                certificates: vec![Certificate {
                    name: "server".into(),
                    signer: Signer::Kubernetes,
                    common_name: "x".into(),
                    organisations: Vec::new(),
                    names: Vec::new(),
                    addresses: Vec::new(),
                    serves: true,
                    path: path(),
                    key: path(),
                    owner: owner(),
                    given: None,
                }],
                ..small()
            },
            Desired { trust: Some(trust("hush")), ..small() },
            Desired { objects: vec![object()], ..small() },
            Desired {
                add_ons: vec![AddOn {
                    name: "x".into(),
                    server: "https://127.0.0.1:6443".into(),
                    identity: None,
                    facts: vec![("registry", String::new())],
                    secrets: Vec::new(),
                    needs: BTreeSet::new(),
                }],
                ..small()
            },
            Desired {
                flannel: Some(FlannelStore { etcd: etcd(), prefix: path(), description: "{}".into(), writes: true }),
                ..small()
            },
            Desired { etcd: Some(member()), ..small() },
        ];
        let digests: BTreeSet<String> = nodes.iter().map(|desired| digest(desired, None)).collect();
        assert_eq!(digests.len(), nodes.len());
        assert!(!digests.contains(&digest(&small(), Some("v1.23.3"))));
        let asked_by = |password| digest(&Desired { trust: Some(trust(password)), ..small() }, None);
        assert_eq!(asked_by("hush"), asked_by("another"), "who asks Magnum changes nothing on the node");
        assert_eq!(format!("{:?}", ca("a")), format!("{:?}", ca("b")), "and nothing of a text is shown");
    }

    #[test]
    fn magnums_curl_line_is_a_wait_handle_too_and_a_bad_one_is_named() {
        let understood_as = |name: &str, value: &str| {
            let inputs = json!([{"name": name, "value": value}]);
            let config =
                json!({"ROLE": "minion", "KUBE_MASTER_IP": "192.0.2.1", "KUBE_NODE_IP": "192.0.2.2", "TLS_DISABLED": true});
            let entry = json!({"id": "i", "group": "kubernetes-node", "config": config, "inputs": inputs});
            understand(&Deployment::parse(&entry).unwrap().unwrap(), &MachineFacts::default(), &ImagePolicy::everything())
        };
        let understood = |curl| understood_as("WAIT_CURL", curl);
        let line = "curl -i -X POST -H 'X-Auth-Token: 5f0e' -H 'Accept: application/json' https://h:8004/v1/p/stacks/s/u/resources/r/signal";
        let endpoint = "https://h:8004/v1/p/stacks/s/u/resources/r/signal".to_owned();
        let token = Destination::Token { endpoint, token: "5f0e".into(), insecure: false };
        assert_eq!(understood(line).unwrap().wait, Some(Handle::Heat(token)));
        let mistakes = understood_as("WAIT_HANDLE_TOKEN", "5f0e").unwrap_err();
        assert!(mistakes[0].to_string().starts_with("WAIT_HANDLE or WAIT_CURL: "), "{}", mistakes[0]);
        assert_eq!(understood("").unwrap().wait, None, "Magnum leaves it empty where Heat maps nothing to it");
        let mistakes = understood("curl -X POST").unwrap_err();
        assert!(mistakes[0].to_string().starts_with("WAIT_HANDLE or WAIT_CURL: "), "{}", mistakes[0]);
        let mistakes = understood_as("WAIT_HANDLE", "null").unwrap_err();
        assert!(mistakes[0].to_string().contains("a TOKEN_SIGNAL handle has no signal attribute"), "{}", mistakes[0]);
    }
}
