//! What must hold between the parameters of certificates, keys and tokens.

use super::cluster::Checks;
use crate::certificates::key::{PrivateKey, public_matches};
use crate::desired::{KeyType, Material, Signer};
use crate::kubernetes::certificates::wanted;
use crate::kubernetes::control_plane::bootstrap;
use crate::kubernetes::control_plane::etcd_access::{self, CLIENT_NAME, Clients};
use crate::kubernetes::parameters::mistake::Mistake;
use crate::kubernetes::parts::certificates::{FIRST_WITH_ECDSA_TOKENS, SERVER, service_account_keys};
use crate::kubernetes::parts::etcd_release;
use crate::kubernetes::spec::cluster::{ClusterSpec, EtcdCluster, MachineFacts};
use crate::kubernetes::spec::trust::{CLUSTER_CAS, PAIRS, PartialPair, parameters_of};
use crate::kubernetes::spec::words::CertificateSource;
use crate::kubernetes::spec::words::Role;

/// The first minor whose clients read their certificate again when its file changes (pull request 79083 of Kubernetes).
const FIRST_THAT_RELOADS: u16 = 18;

impl Checks<'_> {
    pub(in crate::kubernetes) fn certificates(&mut self) {
        self.partial_pair();
        self.joining_by_token();
        match self.spec.certificates {
            CertificateSource::None => self.wrong(
                "CERTIFICATES",
                "is none",
                "with TLS every component needs a certificate",
                "set CERTIFICATES to magnum, given or bootstrap",
            ),
            CertificateSource::Bootstrap if self.role == Role::Master => self.wrong(
                "CERTIFICATES",
                "is bootstrap on a master",
                "workers get their certificates from the masters; a master has nowhere to get one",
                "set it to magnum or given",
            ),
            CertificateSource::Bootstrap => self.bootstrap(),
            CertificateSource::Magnum => {
                self.magnum();
                self.refuse_given_with_magnum();
            }
            CertificateSource::Given => self.given(),
        }
        self.unused();
        self.address_of_kubelet();
        if self.role == Role::Master {
            self.clients_of_etcd();
        }
    }

    /// Whoever bears a bootstrap token gets a certificate of the cluster's CA, which must not be the key to etcd as well.
    fn clients_of_etcd(&mut self) {
        let old = etcd_release::asked(self.spec).filter(|asked| *asked < etcd_access::FIRST_WITH_NAMES);
        let (name, what) = match (etcd_access::clients(self.spec), old) {
            (Clients::Named, Some((major, minor))) => {
                ("ETCD_TAG", format!("selects etcd {major}.{minor}, which distinguishes clients only by their CA"))
            }
            (Clients::AnybodyForFlannel, _) => {
                let is_given = self.spec.trust.own_ca(Signer::Etcd).certificate.is_some();
                let what = if is_given { "is not known to be another CA than CA_CERTIFICATE" } else { "is missing" };
                ("ETCD_CA_CERTIFICATE", format!("{what}, and flannel on every worker is an etcd client"))
            }
            (Clients::AnybodyAsGiven, _) => (
                "ETCD_ADMIN_CERTIFICATE",
                format!(
                    "is given as an etcd client certificate signed by the cluster's CA, but its name is not known to be {CLIENT_NAME}"
                ),
            ),
            (Clients::Named | Clients::OfOwnCa, _) => return,
        };
        let remedy = match name {
            "ETCD_TAG" => {
                "use etcd 3.4 or later, or give etcd its own CA (ETCD_CA_CERTIFICATE and CA_CERTIFICATE as text, with different keys, and every CA above CA_CERTIFICATE in it)"
            }
            "ETCD_ADMIN_CERTIFICATE" => {
                "remove it and its key, so that the agent generates them; or give etcd its own CA (ETCD_CA_CERTIFICATE and CA_CERTIFICATE as text)"
            }
            _ => {
                "give etcd its own CA (ETCD_CA_CERTIFICATE and CA_CERTIFICATE as text, with different keys, and every CA above CA_CERTIFICATE in it); or set FLANNEL_RUNS_AS to add-on"
            }
        };
        if self.spec.lets_join_by_token() {
            let rule = format!("{}, and anyone with BOOTSTRAP_TOKEN can get one", etcd_access::RULE);
            self.wrong(name, what, rule, remedy);
        } else {
            self.warnings.push(Mistake::general(name, what, etcd_access::RULE, remedy));
        }
    }

    /// A key without its certificate, a certificate without its key, and keys of CAs where they must not be.
    fn partial_pair(&mut self) {
        let rule = "a certificate and its key belong together";
        for name in PAIRS {
            let (certificate, key) = parameters_of(name);
            let partial_pair = self.spec.trust.partial_pair(name);
            for (missing, there) in [(&certificate, &key), (&key, &certificate)] {
                let (here, other) = if *missing == key {
                    (&partial_pair.key, &partial_pair.certificate)
                } else {
                    (&partial_pair.certificate, &partial_pair.key)
                };
                if here.is_none() && other.is_some() {
                    self.wrong(missing, format!("is missing, but {there} is given"), rule, "give both or none");
                }
            }
        }
        for (signer, certificate, key) in CLUSTER_CAS {
            let partial_pair = self.spec.trust.own_ca(signer);
            let (has_certificate, has_key) = (partial_pair.certificate.is_some(), partial_pair.key.is_some());
            let from_magnum = signer == Signer::Kubernetes && self.spec.certificates == CertificateSource::Magnum;
            if has_key && self.role == Role::Minion {
                let rule = "whoever has a CA's key can impersonate anybody in the cluster; a worker signs nothing";
                self.wrong(key, "is given to a worker", rule, "give it to masters only");
            } else if has_key && !has_certificate && !from_magnum {
                self.wrong(certificate, format!("is missing, but {key} is given"), rule, "give both");
            }
        }
    }

    /// What masters need for workers that join by a token.
    fn joining_by_token(&mut self) {
        let minor = self.spec.minor;
        let joins = self.spec.certificates == CertificateSource::Bootstrap;
        let is_master = self.role == Role::Master;
        let lets_join = is_master && self.spec.lets_join_by_token();
        if (joins || lets_join) && minor.number() < bootstrap::FIRST_MINOR {
            let (name, remedy) =
                if is_master { ("BOOTSTRAP_TOKEN", "remove it") } else { ("CERTIFICATES", "set it to magnum or given") };
            let rule = format!("workers can join with a token since 1.{}", bootstrap::FIRST_MINOR);
            self.wrong(name, format!("selects TLS bootstrap, which {minor} does not support"), rule, remedy);
        }
        if is_master && !joins && self.spec.trust.ca(Signer::Kubernetes).key.is_none() {
            let asked = if lets_join { "BOOTSTRAP_TOKEN" } else { "CERT_MANAGER_API" };
            if lets_join || self.spec.control_plane.signs {
                let rule = format!("with {asked} the controller manager signs with the CA's key");
                self.wrong("CA_KEY", "is missing", rule, format!("give CA_KEY, or remove {asked}"));
            }
        }
    }

    fn bootstrap(&mut self) {
        if self.spec.bootstrap_token.is_none() {
            self.wrong(
                "BOOTSTRAP_TOKEN",
                "is missing",
                "a worker without a certificate needs a token to get one",
                "give the token that is set on the masters",
            );
        }
        let trust = &self.spec.trust;
        if trust.own_ca(Signer::Kubernetes).certificate.is_none() && trust.magnum.is_none() {
            self.wrong(
                "CA_CERTIFICATE",
                "is missing, and so are Magnum's URL and user",
                "a worker that joins with a token must be able to verify the masters",
                "give CA_CERTIFICATE, or MAGNUM_URL, CLUSTER_UUID and the trustee",
            );
        }
        let minor = self.spec.minor;
        if (bootstrap::FIRST_MINOR..FIRST_THAT_RELOADS).contains(&minor.number()) {
            self.warnings.push(Mistake::general(
                "CERTIFICATES",
                format!("is bootstrap, but kube-proxy {minor} reads the kubelet's certificate only when it starts"),
                format!("a renewed certificate is reloaded automatically since 1.{FIRST_THAT_RELOADS}"),
                "restart kube-proxy.service on the node after its kubelet has renewed: yearly, if the masters sign for one year",
            ));
        }
    }

    fn magnum(&mut self) {
        let is_present = |names: &[&str]| names.iter().any(|name| self.parameters.get(name).is_some());
        let mut missing = Vec::new();
        for (name, there) in [
            ("MAGNUM_URL", is_present(&["MAGNUM_URL"])),
            ("CLUSTER_UUID", is_present(&["CLUSTER_UUID", "BAY_UUID"])),
            ("TRUSTEE_USER_ID", is_present(&["TRUSTEE_USER_ID", "USER_TOKEN"])),
            // The creator's token needs neither.
            ("TRUSTEE_PASSWORD", is_present(&["TRUSTEE_PASSWORD", "USER_TOKEN"]) || !is_present(&["TRUSTEE_USER_ID"])),
            ("AUTH_URL", is_present(&["AUTH_URL", "USER_TOKEN"]) || !is_present(&["TRUSTEE_USER_ID"])),
        ] {
            if !there {
                missing.push(name);
            }
        }
        for name in missing {
            let rule = "Magnum issues certificates for its cluster only to the cluster's own user";
            self.wrong(name, "is missing", rule, format!("give {name}"));
        }
    }

    fn refuse_given_with_magnum(&mut self) {
        let cas = CLUSTER_CAS.into_iter().flat_map(|(_, certificate, key)| [certificate.to_owned(), key.to_owned()]);
        let pairs = PAIRS.into_iter().map(parameters_of).flat_map(|(certificate, key)| [certificate, key]);
        // Magnum itself gives CA_KEY, for CERT_MANAGER_API.
        let given = cas.chain(pairs).filter(|name| name != "CA_KEY" && self.parameters.given(name).is_some());
        for name in given.collect::<Vec<_>>() {
            let rule = "certificates must have one source, or the cluster's CA is ambiguous";
            self.wrong(&name, "is given together with CERTIFICATES=magnum", rule, "remove it, or set CERTIFICATES to given");
        }
    }

    /// A master signs for itself, or has everything given; a worker has everything given.
    fn given(&mut self) {
        let ca = self.spec.trust.own_ca(Signer::Kubernetes);
        if ca.certificate.is_none() && ca.key.is_none() {
            let rule = "with CERTIFICATES=given the parameters must contain the cluster's CA";
            self.wrong("CA_CERTIFICATE", "is missing", rule, "give it, as text or as a path on the node");
        }
        let wanted = wanted(self.spec, self.role);
        for (signer, _, key) in CLUSTER_CAS {
            let missing: Vec<String> = wanted
                .iter()
                .filter(|(name, by)| {
                    self.spec.trust.signer(*by) == signer && self.spec.trust.partial_pair(name) == PartialPair::default()
                })
                .map(|(name, _)| parameters_of(name).0)
                .collect();
            if missing.is_empty() || self.role == Role::Master && self.spec.trust.own_ca(signer).key.is_some() {
                continue;
            }
            let rule = "with CERTIFICATES=given a node needs its certificates, or a master the key to sign them with";
            if self.role == Role::Master {
                let problem = format!("is missing, and so {} {}", verb(missing.len()), missing.join(", "));
                self.wrong(key, problem, rule, format!("give {key} with its certificate, or all of these with their keys"));
            } else {
                for name in missing {
                    self.wrong(&name, "is missing", rule, format!("give {name} and its key, or set CERTIFICATES to bootstrap"));
                }
            }
        }
    }

    /// What is given and has no use here: said, because a private key lies about for nothing.
    fn unused(&mut self) {
        let wanted = wanted(self.spec, self.role);
        let magnum = self.spec.certificates == CertificateSource::Magnum;
        for name in PAIRS.into_iter().filter(|name| !magnum && wanted.iter().all(|(one, _)| one != name)) {
            let (certificate, key) = parameters_of(name);
            if self.spec.trust.pair(name).is_some() {
                self.warnings.push(Mistake::general(
                    &certificate,
                    format!("is given with {key}, but this node uses no such certificate"),
                    "a node's certificates depend on its role and version",
                    "remove both, so that no unused key is stored",
                ));
            }
        }
        if self.role == Role::Master
            && self.spec.control_plane.signs
            && !self.spec.signs()
            && self.spec.trust.ca(Signer::Kubernetes).key.is_some()
        {
            let minor = self.spec.minor;
            self.warnings.push(Mistake::general(
                "CERT_MANAGER_API",
                format!("is true, but the controller manager {minor} signs nothing"),
                "it signs certificates since 1.4",
                "set it to False",
            ));
        }
    }

    /// The API server reaches a kubelet by its node's address, and verifies it. A kubelet that joins by a token names its
    /// addresses itself; what is given may name them.
    fn address_of_kubelet(&mut self) {
        let made = wanted(self.spec, self.role).iter().any(|(name, _)| *name == "kubelet")
            && self.spec.trust.partial_pair("kubelet") == PartialPair::default();
        if made && self.address.is_none() && self.role == Role::Minion {
            self.warnings.push(Mistake::general(
                "KUBE_NODE_IP",
                "is missing, so the kubelet's certificate names no address",
                "the API server verifies kubelets by their addresses: `kubectl logs` and `exec` would fail on this node",
                "give the fixed address of the port",
            ));
        }
    }

    /// magnum-node.md 7.5 no. 59: one pair for all masters.
    pub(in crate::kubernetes) fn service_accounts(&mut self) {
        if self.role != Role::Master {
            return;
        }
        let plane = &self.spec.control_plane;
        let (public, private) = (plane.service_account_key.is_some(), plane.service_account_private_key.is_some());
        let text = |material: &Option<Material>| match material {
            Some(Material::Text(text)) => text.clone(),
            _ => String::new(),
        };
        let is_ec = |text: &str| {
            text.contains("BEGIN EC ")
                || PrivateKey::from_pem(text).is_ok_and(|key| !matches!(key.key_type(), Some(KeyType::Rsa(_))))
        };
        let minor = self.spec.minor;
        if public != private {
            let missing = if public { "KUBE_SERVICE_ACCOUNT_PRIVATE_KEY" } else { "KUBE_SERVICE_ACCOUNT_KEY" };
            self.wrong(
                missing,
                "is missing",
                "the two service account keys are a pair, the same on all masters",
                "give both or none",
            );
        }
        if let (Some(Material::Text(public)), Some(Material::Text(private))) =
            (&plane.service_account_key, &plane.service_account_private_key)
            // What is unreadable here may be readable to Kubernetes, and is its to refuse.
            && PrivateKey::from_pem(private).and_then(|private| public_matches(public, &private)) == Ok(false)
        {
            let rule = "what is signed with one key of the pair is verified with the other";
            let remedy = "give the public key of KUBE_SERVICE_ACCOUNT_PRIVATE_KEY: openssl pkey -in KEY -pubout";
            self.wrong("KUBE_SERVICE_ACCOUNT_KEY", "does not match KUBE_SERVICE_ACCOUNT_PRIVATE_KEY", rule, remedy);
        }
        let made = plane.service_account_key_type.filter(|_| !private);
        for (name, ec) in [
            ("KUBE_SERVICE_ACCOUNT_PRIVATE_KEY", is_ec(&text(&plane.service_account_private_key))),
            ("SERVICE_ACCOUNT_KEYS", made == Some(KeyType::EcdsaP256)),
        ] {
            if ec && minor.number() < FIRST_WITH_ECDSA_TOKENS {
                let rule = format!("before 1.{FIRST_WITH_ECDSA_TOKENS} service account tokens are signed only with RSA keys");
                self.wrong(name, format!("is an EC key, which {minor} cannot use for service accounts"), rule, "give an RSA key");
            }
        }
        if public || private || service_account_keys(self.spec, &MachineFacts::default()).is_none() {
            return;
        }
        let name = "KUBE_SERVICE_ACCOUNT_PRIVATE_KEY";
        let rule = "service account tokens signed by one master must be accepted by all";
        let remedy = "give all masters the same key pair";
        if !self.spec.is_first_master
            || self.spec.has_several_masters() && !matches!(self.spec.etcd.cluster, EtcdCluster::Discovery(_))
        {
            self.wrong(name, "is missing", rule, remedy);
        } else if self.spec.has_several_masters() {
            // How many masters a discovery URL stands for is not known.
            let problem = "is missing, which works only with a single master";
            self.warnings.push(Mistake::general(name, problem, rule, remedy));
        }
    }
}

/// On a master whose tokens are verified by `SERVER_KEY`: the API server would not start with one that it cannot take for that. For TLS
/// it is good in either form.
pub(in crate::kubernetes) fn unusable_for_tokens(cluster: &ClusterSpec, of: Role, facts: &MachineFacts) -> Option<Mistake> {
    let keys = service_account_keys(cluster, facts).filter(|_| of == Role::Master)?;
    let Some(Material::Text(own)) = cluster.trust.partial_pair("server").key.filter(|_| keys.verify.contains(&SERVER.key)) else {
        return None;
    };
    let is_rsa = PrivateKey::from_pem(&own).is_ok_and(|key| matches!(key.key_type(), Some(KeyType::Rsa(_))));
    let minor = cluster.minor;
    let refused = |problem: String, why: String| {
        let remedy = "give SERVER_KEY as RSA, or as `openssl ec -in KEY` prints it, or KUBE_SERVICE_ACCOUNT_KEY and KUBE_SERVICE_ACCOUNT_PRIVATE_KEY";
        Some(Mistake::general("SERVER_KEY", problem, why, remedy))
    };
    if minor.number() < FIRST_WITH_ECDSA_TOKENS && !is_rsa {
        let why = format!("before 1.{FIRST_WITH_ECDSA_TOKENS} service account tokens are signed only with RSA keys");
        return refused(format!("is an EC key, which {minor} cannot use for service accounts"), why);
    }
    if own.contains("BEGIN PRIVATE KEY") && !is_rsa {
        let why =
            "the API server verifies tokens with a public key, an RSA key, or an EC key in SEC1 form (BEGIN EC PRIVATE KEY)";
        return refused("is an EC key in PKCS#8, and is used as the service account key".to_owned(), why.to_owned());
    }
    None
}

fn verb(count: usize) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::NodeSpec;
    use crate::kubernetes::fixtures::{ETCDS_OWN, parameters};
    use crate::kubernetes::spec::cluster::Tokens;

    type Changes<'a> = &'a [&'a [(&'a str, &'a str)]];

    const WORKER: &[(&str, &str)] = &[("ROLE", "minion"), ("KUBE_MASTER_IP", "192.0.2.5"), ("INSTANCE_NAME", "blue-node-0")];
    const TOKEN: &[(&str, &str)] = &[("BOOTSTRAP_TOKEN", "abcdef.0123456789abcdef")];
    /// Nothing of what the fixtures give.
    const NOTHING: &[(&str, &str)] = &[("CA_CERTIFICATE", ""), ("CA_KEY", "")];
    const MAGNUM: &[(&str, &str)] = &[
        ("CERTIFICATES", "magnum"),
        ("MAGNUM_URL", "https://magnum.example.org:9511/v1"),
        ("TRUSTEE_USER_ID", "u"),
        ("TRUSTEE_PASSWORD", "p"),
        ("AUTH_URL", "https://keystone.example.org:5000/v3"),
    ];
    const EVERY_PAIR: &[(&str, &str)] = &[
        ("KUBELET_CERTIFICATE", "/given/kubelet.crt"),
        ("KUBELET_KEY", "/given/kubelet.key"),
        ("PROXY_CERTIFICATE", "/given/proxy.crt"),
        ("PROXY_KEY", "/given/proxy.key"),
        ("SERVER_CERTIFICATE", "/given/server.crt"),
        ("SERVER_KEY", "/given/server.key"),
        ("ADMIN_CERTIFICATE", "/given/admin.crt"),
        ("ADMIN_KEY", "/given/admin.key"),
        ("CONTROLLER_MANAGER_CERTIFICATE", "/given/controller-manager.crt"),
        ("CONTROLLER_MANAGER_KEY", "/given/controller-manager.key"),
        ("SCHEDULER_CERTIFICATE", "/given/scheduler.crt"),
        ("SCHEDULER_KEY", "/given/scheduler.key"),
        ("FRONT_PROXY_CERTIFICATE", "/given/front-proxy.crt"),
        ("FRONT_PROXY_KEY", "/given/front-proxy.key"),
        ("ETCD_SERVER_CERTIFICATE", "/given/etcd-server.crt"),
        ("ETCD_SERVER_KEY", "/given/etcd-server.key"),
        ("ETCD_ADMIN_CERTIFICATE", "/given/etcd-admin.crt"),
        ("ETCD_ADMIN_KEY", "/given/etcd-admin.key"),
    ];
    const THREE: &[(&str, &str)] = &[
        ("ETCD_INITIAL_CLUSTER", "blue-master-0=https://192.0.2.11:2380,b=https://192.0.2.12:2380,c=https://192.0.2.13:2380"),
        ("KUBE_SERVICE_ACCOUNT_KEY", ""),
        ("KUBE_SERVICE_ACCOUNT_PRIVATE_KEY", ""),
    ];

    fn spec(changes: Changes<'_>) -> Result<NodeSpec, Vec<Mistake>> {
        NodeSpec::from_parameters(&parameters(&changes.concat()))
    }

    fn mistakes(changes: Changes<'_>) -> Vec<String> {
        spec(changes).err().unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    #[test]
    #[allow(clippy::too_many_lines, reason = "one table")]
    fn each_contradiction_is_one_mistake() {
        let ec = [
            ("KUBE_TAG", "v1.5.3"),
            ("KUBE_SERVICE_ACCOUNT_KEY", "/given/sa.pub"),
            ("KUBE_SERVICE_ACCOUNT_PRIVATE_KEY", "-----BEGIN EC PRIVATE KEY-----\\nAA\\n-----END EC PRIVATE KEY-----\\n"),
        ];
        let old = |tag| [("KUBE_TAG", tag)];
        for (changes, expected) in [
            (&[&[("CERTIFICATES", "")][..]][..], "CERTIFICATES: is none"),
            (&[&[("CERTIFICATES", "bootstrap")]], "CERTIFICATES: is bootstrap on a master"),
            (&[MAGNUM, &[("MAGNUM_URL", "")]], "MAGNUM_URL: is missing"),
            (&[MAGNUM, &[("TRUSTEE_USER_ID", "")]], "TRUSTEE_USER_ID: is missing"),
            (&[MAGNUM, &[("TRUSTEE_PASSWORD", "")]], "TRUSTEE_PASSWORD: is missing"),
            (&[MAGNUM, &[("AUTH_URL", "")]], "AUTH_URL: is missing"),
            (&[MAGNUM, &[("CA_CERTIFICATE", "/given/ca.crt")]], "CA_CERTIFICATE: is given together with CERTIFICATES=magnum"),
            (&[MAGNUM, &[("CERT_MANAGER_API", "True")]], "CA_KEY: is missing; rule: with CERT_MANAGER_API"),
            // Halves of pairs, of either kind.
            (&[&[("SERVER_CERTIFICATE", "/given/server.crt")]], "SERVER_KEY: is missing, but SERVER_CERTIFICATE is given"),
            (&[&[("ETCD_ADMIN_KEY", "/given/admin.key")]], "ETCD_ADMIN_CERTIFICATE: is missing, but ETCD_ADMIN_KEY is given"),
            (&[&[("CA_CERTIFICATE", "")]], "CA_CERTIFICATE: is missing, but CA_KEY is given"),
            (&[&[("ETCD_CA_KEY", "/given/etcd-ca.key")]], "ETCD_CA_CERTIFICATE: is missing, but ETCD_CA_KEY is given"),
            (
                &[&[("FRONT_PROXY_CA_CERTIFICATE", "/given/front-proxy-ca.crt")]],
                "FRONT_PROXY_CA_KEY: is missing, and so is FRONT_PROXY_CERTIFICATE",
            ),
            (
                &[EVERY_PAIR, &[("CA_KEY", ""), ("ADMIN_KEY", ""), ("ADMIN_CERTIFICATE", "")]],
                "CA_KEY: is missing, and so is ADMIN_CERTIFICATE",
            ),
            (&[EVERY_PAIR, NOTHING], "CA_CERTIFICATE: is missing; rule: with CERTIFICATES=given"),
            (&[WORKER, &[("CA_KEY", "/given/ca.key")]], "CA_KEY: is given to a worker"),
            (&[WORKER, &[("ETCD_CA_KEY", "/given/ca.key")]], "ETCD_CA_KEY: is given to a worker"),
            (
                &[WORKER, &[("PROXY_CERTIFICATE", ""), ("PROXY_KEY", "")]],
                "PROXY_CERTIFICATE: is missing; rule: with CERTIFICATES=given",
            ),
            (
                &[WORKER, &old("v1.9.3"), &[("FLANNELD_CERTIFICATE", ""), ("FLANNELD_KEY", "")]],
                "FLANNELD_CERTIFICATE: is missing",
            ),
            // Joining by a token.
            (&[WORKER, &[("CERTIFICATES", "bootstrap"), ("BOOTSTRAP_TOKEN", "")]], "BOOTSTRAP_TOKEN: is missing"),
            (
                &[WORKER, &[("CERTIFICATES", "bootstrap"), ("CA_CERTIFICATE", "")]],
                "CA_CERTIFICATE: is missing, and so are Magnum's",
            ),
            (
                &[WORKER, &[("CERTIFICATES", "bootstrap")], &old("v1.11.3")],
                "CERTIFICATES: selects TLS bootstrap, which 1.11 does not support",
            ),
            (&[TOKEN, &old("v1.11.3")], "BOOTSTRAP_TOKEN: selects TLS bootstrap, which 1.11 does not support"),
            (&[TOKEN, MAGNUM], "CA_KEY: is missing; rule: with BOOTSTRAP_TOKEN"),
            // Service accounts.
            (
                &[&[("KUBE_SERVICE_ACCOUNT_KEY", "/given/sa.pub")]],
                "KUBE_SERVICE_ACCOUNT_PRIVATE_KEY: is missing; rule: the two service account keys are a pair",
            ),
            (&[THREE], "KUBE_SERVICE_ACCOUNT_PRIVATE_KEY: is missing; rule: service account tokens signed by one master"),
            (
                &[THREE, &old("v1.5.3")],
                "KUBE_SERVICE_ACCOUNT_PRIVATE_KEY: is missing; rule: service account tokens signed by one master",
            ),
            (
                &[
                    &[("ETCD_DISCOVERY_URL", "https://discovery.example.org/0f1e"), ("MASTER_INDEX", "1")],
                    &[("KUBE_SERVICE_ACCOUNT_KEY", ""), ("KUBE_SERVICE_ACCOUNT_PRIVATE_KEY", "")],
                ],
                "KUBE_SERVICE_ACCOUNT_PRIVATE_KEY: is missing; rule: service account tokens signed by one master",
            ),
            (&[&ec], "KUBE_SERVICE_ACCOUNT_PRIVATE_KEY: is an EC key, which 1.5 cannot use"),
            (
                &[&old("v1.5.3"), &[("SERVICE_ACCOUNT_KEYS", "ecdsa-p256")]],
                "SERVICE_ACCOUNT_KEYS: is an EC key, which 1.5 cannot use",
            ),
        ] {
            let found = mistakes(changes);
            assert_eq!(found.len(), 1, "{changes:?}: {found:?}");
            assert!(found[0].starts_with(expected), "{changes:?}: {}", found[0]);
        }
        // Each thing by its own name.
        let found = mistakes(&[MAGNUM, &[("SERVER_CERTIFICATE", "/given/a.crt"), ("SERVER_KEY", "/given/a.key")]]);
        assert!(
            found.len() == 2
                && found[0].starts_with("SERVER_CERTIFICATE: is given together with")
                && found[1].starts_with("SERVER_KEY: ")
        );
    }

    #[test]
    fn what_is_whole_is_taken() {
        let bootstrap: &[(&str, &str)] = &[("CERTIFICATES", "bootstrap")];
        for changes in [
            &[][..],
            &[WORKER],
            &[EVERY_PAIR, ETCDS_OWN, &[("CA_KEY", "")]],
            &[EVERY_PAIR, ETCDS_OWN],
            &[EVERY_PAIR, ETCDS_OWN, TOKEN],
            &[&[("ETCD_CA_CERTIFICATE", "/given/etcd-ca.crt"), ("ETCD_CA_KEY", "/given/etcd-ca.key")]],
            &[TOKEN],
            // Magnum's CERT_MANAGER_API gives the key alone.
            &[MAGNUM, &[("CERT_MANAGER_API", "True"), ("CA_KEY", "/given/ca.key")]],
            &[MAGNUM, TOKEN, &[("CA_KEY", "/given/ca.key")]],
            &[MAGNUM, &[("TRUSTEE_USER_ID", ""), ("TRUSTEE_PASSWORD", ""), ("AUTH_URL", ""), ("USER_TOKEN", "t")]],
            &[WORKER, bootstrap],
            &[MAGNUM, WORKER, bootstrap, &[("CA_CERTIFICATE", "")]],
            &[&[("KUBE_TAG", "v1.5.3")], ETCDS_OWN],
            &[THREE, ETCDS_OWN, &[("KUBE_TAG", "v1.5.3"), ("CERTIFICATE_KEYS", "ecdsa-p256")]],
            &[&[("KUBE_TAG", "v1.15.3"), ("TLS_DISABLED", "true"), ("CERTIFICATES", ""), ("KUBE_API_PORT", "8080")], TOKEN],
        ] {
            assert_eq!(mistakes(changes), Vec::<String>::new(), "{changes:?}");
            assert_eq!(spec(changes).unwrap().warnings, [], "{changes:?}");
        }
    }

    /// Issue: any certificate of the cluster was root of etcd. Without a token it is said, with one it is refused.
    #[test]
    fn an_etcd_that_takes_every_certificate_of_the_cluster_is_said_and_with_a_token_refused() {
        let flannel: &[(&str, &str)] = &[("KUBE_TAG", "v1.20.3"), ("FLANNEL_RUNS_AS", "unit")];
        let old: &[(&str, &str)] = &[("ETCD_TAG", "v3.3.25")];
        let admin: &[(&str, &str)] =
            &[("ETCD_ADMIN_CERTIFICATE", "/given/etcd-admin.crt"), ("ETCD_ADMIN_KEY", "/given/etcd-admin.key")];
        let key: &[(&str, &str)] = &[("CA_KEY", "/given/ca.key")];
        let files: &[(&str, &str)] = &[("ETCD_CA_CERTIFICATE", "/given/etcd-ca.crt"), ("ETCD_CA_KEY", "/given/etcd-ca.key")];
        for (changes, named, refused) in [
            (&[&[][..]][..], "", false),
            (&[old], "ETCD_TAG", true),
            (&[MAGNUM, key, old], "ETCD_TAG", true),
            (&[flannel], "ETCD_CA_CERTIFICATE", true),
            // The file is looked at when it is put in place: with a token it must bear the name.
            (&[admin], "ETCD_ADMIN_CERTIFICATE", false),
            (&[ETCDS_OWN, old], "", false),
            (&[ETCDS_OWN, flannel], "", false),
            (&[ETCDS_OWN, admin], "", false),
            // What is in these files is not known yet.
            (&[files, old], "ETCD_TAG", true),
            (&[files, flannel], "ETCD_CA_CERTIFICATE", true),
        ] {
            let warned: Vec<_> = spec(changes).unwrap().warnings.into_iter().map(|one| one.parameter).collect();
            assert_eq!(warned.join(" "), named, "{changes:?}");
            let with_token: Vec<_> = changes.iter().copied().chain([TOKEN]).collect();
            let found = mistakes(&with_token);
            assert_eq!(found.len(), usize::from(refused), "{changes:?}: {found:?}");
            assert!(found.iter().all(|one| one.starts_with(named) && one.contains("BOOTSTRAP_TOKEN")), "{found:?}");
        }
        let worker = spec(&[WORKER, old]).unwrap();
        assert_eq!(worker.warnings, [], "a worker has no etcd");
    }

    #[test]
    fn keys_of_service_accounts_belong_together() {
        let (one, other) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
        for (public, right) in [(&one, true), (&other, false)] {
            let public = public.public_pem();
            let pair = [("KUBE_SERVICE_ACCOUNT_KEY", public.as_str()), ("KUBE_SERVICE_ACCOUNT_PRIVATE_KEY", one.to_pem())];
            let found = mistakes(&[&pair]);
            assert_eq!(found.is_empty(), right, "{found:?}");
            // While the pair is changed both public keys are there, whichever signs.
            let both = format!("{}{}", other.public_pem(), one.public_pem());
            assert!(mistakes(&[&[("KUBE_SERVICE_ACCOUNT_KEY", both.as_str()), pair[1]]]).is_empty());
            assert!(
                found.iter().all(|one| one.starts_with("KUBE_SERVICE_ACCOUNT_KEY: does not match") && !one.contains("BEGIN"))
            );
        }
    }

    /// What Kubernetes reads as a public key: keyutil's ParsePublicKeysPEM. Of no account on a master that has a key of its own.
    #[test]
    fn an_ec_key_of_the_server_verifies_tokens_in_one_form_only() {
        let sec1 = PrivateKey::generate().unwrap().to_pem().to_owned();
        let pkcs8 = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let rsa = crate::certificates::fixtures::rsa_pkcs8();
        let pair = [("KUBE_SERVICE_ACCOUNT_KEY", "/given/sa.pub"), ("KUBE_SERVICE_ACCOUNT_PRIVATE_KEY", pkcs8.as_str())];
        let by_server = Tokens { verified_by_server_key: true, has_own_key: false };
        let (in_pkcs8, unusable) = ("SERVER_KEY: is an EC key in PKCS#8", "SERVER_KEY: is an EC key, which 1.5 cannot use");
        for (tag, key, more, tokens, expected) in [
            ("v1.28.9", &pkcs8, &[][..], by_server, Some(in_pkcs8)),
            ("v1.28.9", &pkcs8, &[], Tokens::default(), None),
            ("v1.28.9", &pkcs8, &pair, by_server, None),
            // Beside a key of the node's own it goes on verifying.
            ("v1.28.9", &pkcs8, &[], Tokens { has_own_key: true, ..by_server }, Some(in_pkcs8)),
            ("v1.28.9", &sec1, &[], by_server, None),
            ("v1.28.9", &rsa, &[], by_server, None),
            ("v1.5.3", &pkcs8, &[], by_server, Some(unusable)),
            ("v1.5.3", &sec1, &[], by_server, Some(unusable)),
            ("v1.5.3", &sec1, &[], Tokens::default(), None),
            ("v1.5.3", &rsa, &[], by_server, None),
        ] {
            let spec = spec(&[EVERY_PAIR, &[("KUBE_TAG", tag), ("SERVER_KEY", key)], more]).unwrap();
            let found = crate::kubernetes::lacking(&spec, &MachineFacts { tokens, ..MachineFacts::default() });
            let found: Vec<_> = found.iter().map(ToString::to_string).collect();
            assert_eq!(found.len(), usize::from(expected.is_some()), "{tag} {expected:?}: {found:?}");
            assert!(found.iter().all(|one| one.starts_with(expected.unwrap())), "{tag} {expected:?}: {found:?}");
        }
        let found = mistakes(&[&pair, &[("KUBE_TAG", "v1.5.3")]]);
        assert!(found.len() == 1 && found[0].starts_with("KUBE_SERVICE_ACCOUNT_PRIVATE_KEY: is an EC key"), "{found:?}");
    }

    #[test]
    fn a_kube_proxy_that_keeps_an_old_certificate_is_said() {
        for (tag, expected) in [("v1.12.3", 1), ("v1.17.3", 1), ("v1.18.3", 0)] {
            for (source, expected) in [("bootstrap", expected), ("given", 0)] {
                let found = spec(&[WORKER, &[("CERTIFICATES", source), ("KUBE_TAG", tag)]]).unwrap().warnings;
                assert_eq!(found.len(), expected, "{tag} {source}: {found:?}");
                assert!(found.iter().all(|one| one.remedy.contains("kube-proxy.service")), "{found:?}");
            }
        }
    }

    #[test]
    fn a_kubelet_whose_certificate_names_no_address_is_said() {
        let nowhere: &[(&str, &str)] = &[("KUBE_NODE_IP", "")];
        let bootstrap: &[(&str, &str)] = &[("CERTIFICATES", "bootstrap")];
        for (changes, expected) in [
            (&[MAGNUM, WORKER, nowhere][..], &["KUBE_NODE_IP"][..]),
            (&[MAGNUM, WORKER], &[]),
            (&[WORKER, nowhere], &[]),
            (&[WORKER, nowhere, bootstrap], &[]),
        ] {
            let found = spec(changes).unwrap().warnings;
            assert_eq!(found.iter().map(|one| one.parameter.as_str()).collect::<Vec<_>>(), expected, "{changes:?}");
        }
    }

    #[test]
    fn what_is_given_for_nothing_is_said() {
        for (changes, expected) in [
            (
                &[WORKER, EVERY_PAIR][..],
                &[
                    "SERVER_CERTIFICATE",
                    "ADMIN_CERTIFICATE",
                    "CONTROLLER_MANAGER_CERTIFICATE",
                    "SCHEDULER_CERTIFICATE",
                    "FRONT_PROXY_CERTIFICATE",
                    "ETCD_SERVER_CERTIFICATE",
                    "ETCD_ADMIN_CERTIFICATE",
                ][..],
            ),
            (&[&[("FLANNELD_CERTIFICATE", "/given/a.crt"), ("FLANNELD_KEY", "/given/a.key")]], &["FLANNELD_CERTIFICATE"]),
            (&[ETCDS_OWN, &[("KUBE_TAG", "v1.3.3"), ("CERT_MANAGER_API", "True")]], &["CERT_MANAGER_API"]),
            (
                &[THREE, &[("ETCD_INITIAL_CLUSTER", ""), ("ETCD_DISCOVERY_URL", "https://discovery.example.org/0f1e")]],
                &["KUBE_SERVICE_ACCOUNT_PRIVATE_KEY"],
            ),
        ] {
            let warned: Vec<_> = spec(changes).unwrap().warnings.into_iter().map(|one| one.parameter).collect();
            assert_eq!(warned, expected, "{changes:?}");
        }
    }
}
