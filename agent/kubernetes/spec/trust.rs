//! What the parameters say of certificates: which of them they give, who signs the others, and how those are made.

use super::words::CertificateSource;
use crate::desired::{
    CertificatePolicy, GivenPair, Issuer, KeyType, MagnumAccess, MagnumUser, Material, RenewalSlot, Rotation, Signer,
};
use crate::kubernetes::parameters::read::Parameters;

/// Every certificate that parameters may give: by its name, of which theirs are made (`ETCD_SERVER_KEY`).
pub(in crate::kubernetes) const PAIRS: [&str; 10] = [
    "kubelet",
    "proxy",
    "server",
    "admin",
    "controller-manager",
    "scheduler",
    "front-proxy",
    "etcd-server",
    "etcd-admin",
    "flanneld",
];

/// Every CA, with the parameters of its certificate and its key.
pub(in crate::kubernetes) const CLUSTER_CAS: [(Signer, &str, &str); 3] = [
    (Signer::Kubernetes, "CA_CERTIFICATE", "CA_KEY"),
    (Signer::Etcd, "ETCD_CA_CERTIFICATE", "ETCD_CA_KEY"),
    (Signer::FrontProxy, "FRONT_PROXY_CA_CERTIFICATE", "FRONT_PROXY_CA_KEY"),
];

/// What is given, and how the rest is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustSpec {
    /// `CERTIFICATE_KEYS`, else what the version reads.
    pub keys: KeyType,
    /// Whether `CERTIFICATE_KEYS` says so.
    pub keys_asked: bool,
    /// Whether `CERTIFICATE_RENEWAL` is `renew`, where it is given.
    pub renew: Option<bool>,
    /// `CA_ROTATION`.
    pub rotation: Rotation,
    /// Magnum, where the parameters know it and a user of it.
    pub magnum: Option<MagnumAccess>,
    /// In the order of [`CLUSTER_CAS`].
    cas: Vec<PartialPair>,
    /// In the order of [`PAIRS`].
    pairs: Vec<PartialPair>,
}

/// A certificate and its key, each of which may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::kubernetes) struct PartialPair {
    pub(in crate::kubernetes) certificate: Option<Material>,
    pub(in crate::kubernetes) key: Option<Material>,
}

impl PartialPair {
    fn read(parameters: &Parameters, certificate: &str, key: &str) -> Self {
        Self { certificate: material(parameters, certificate), key: material(parameters, key) }
    }
}

impl TrustSpec {
    /// Reads it; `keys` is what holds without `CERTIFICATE_KEYS`.
    pub(in crate::kubernetes) fn from_parameters(parameters: &Parameters, keys: KeyType) -> Self {
        Self {
            keys: parameters.given("CERTIFICATE_KEYS").and_then(key_type).unwrap_or(keys),
            keys_asked: parameters.given("CERTIFICATE_KEYS").is_some(),
            renew: parameters.given("CERTIFICATE_RENEWAL").map(|word| word == "renew"),
            rotation: match parameters.get("CA_ROTATION") {
                Some("switch") => Rotation::Switch,
                Some("drop-old") => Rotation::DropOld,
                _ => Rotation::TrustBoth,
            },
            magnum: magnum(parameters),
            cas: CLUSTER_CAS.iter().map(|(_, certificate, key)| PartialPair::read(parameters, certificate, key)).collect(),
            pairs: PAIRS
                .iter()
                .map(|name| {
                    let (certificate, key) = parameters_of(name);
                    PartialPair::read(parameters, &certificate, &key)
                })
                .collect(),
        }
    }

    /// How certificates are signed. Without a given CA a worker that joins by a token asks Magnum for it.
    pub(in crate::kubernetes) fn signing_policy(&self, source: CertificateSource, share: RenewalSlot) -> CertificatePolicy {
        let from_magnum = match source {
            CertificateSource::Magnum => true,
            CertificateSource::Bootstrap => self.ca(Signer::Kubernetes).certificate.is_none(),
            CertificateSource::Given | CertificateSource::None => false,
        };
        let magnum = self.magnum.clone().filter(|_| from_magnum);
        let issuer = magnum.map_or(Issuer::Given, Issuer::Magnum);
        CertificatePolicy {
            keys: self.keys,
            keys_asked: self.keys_asked,
            renew: self.renew.unwrap_or_else(|| self.can_renew(&issuer)),
            rotation: self.rotation,
            share,
            issuer,
        }
    }

    /// Whether the source signs again without anybody's help. The creator's token of Magnum's first releases ends within hours, so it
    /// is good for a stack update only.
    fn can_renew(&self, issuer: &Issuer) -> bool {
        match issuer {
            Issuer::Magnum(access) => matches!(access.user, MagnumUser::Trustee { .. }),
            Issuer::Given => self.cas.iter().any(|partial_pair| partial_pair.key.is_some()),
        }
    }

    /// What is given of one CA alone.
    pub(in crate::kubernetes) fn own_ca(&self, signer: Signer) -> &PartialPair {
        const NOTHING: &PartialPair = &PartialPair { certificate: None, key: None };
        let all = CLUSTER_CAS.iter().zip(&self.cas);
        all.into_iter().find(|((one, ..), _)| *one == signer).map_or(NOTHING, |(_, partial_pair)| partial_pair)
    }

    /// What is given of the CA that stands behind a signer.
    pub(in crate::kubernetes) fn ca(&self, signer: Signer) -> &PartialPair {
        self.own_ca(self.signer(signer))
    }

    /// The main CA stands in for another one as a whole: never one's certificate with another's key.
    pub(in crate::kubernetes) fn signer(&self, signer: Signer) -> Signer {
        if *self.own_ca(signer) == PartialPair::default() { Signer::Kubernetes } else { signer }
    }

    /// What is given of a certificate.
    pub(in crate::kubernetes) fn partial_pair(&self, name: &str) -> PartialPair {
        PAIRS
            .iter()
            .zip(&self.pairs)
            .find(|(one, _)| **one == name)
            .map(|(_, partial_pair)| partial_pair.clone())
            .unwrap_or_default()
    }

    /// A certificate that is given, with its key.
    pub(in crate::kubernetes) fn pair(&self, name: &str) -> Option<GivenPair> {
        let partial_pair = self.partial_pair(name);
        partial_pair.certificate.zip(partial_pair.key).map(|(certificate, key)| GivenPair { certificate, key })
    }
}

/// Names of the parameters that give a certificate and its key.
pub(in crate::kubernetes) fn parameters_of(name: &str) -> (String, String) {
    let stem = name.to_ascii_uppercase().replace('-', "_");
    (format!("{stem}_CERTIFICATE"), format!("{stem}_KEY"))
}

/// The kind of key that a parameter names.
pub(in crate::kubernetes) fn key_type(word: &str) -> Option<KeyType> {
    match word {
        "ecdsa-p256" => Some(KeyType::EcdsaP256),
        "rsa-2048" => Some(KeyType::Rsa(2048)),
        "rsa-3072" => Some(KeyType::Rsa(3072)),
        "rsa-4096" => Some(KeyType::Rsa(4096)),
        _ => None,
    }
}

/// PEM text with real line ends (Magnum sends two characters for each: magnum-node.md 3), or the file that is named.
pub(in crate::kubernetes) fn material(parameters: &Parameters, name: &str) -> Option<Material> {
    let text = parameters.get(name)?;
    Some(if text.starts_with('/') {
        Material::File(text.to_owned())
    } else {
        Material::Text(format!("{}\n", text.replace("\\n", "\n").trim_end()))
    })
}

/// magnum-node.md 4.2: the cluster's own user from Magnum 3.x on, before it the creator's token.
fn magnum(parameters: &Parameters) -> Option<MagnumAccess> {
    let text = |name: &str| parameters.get(name).map(str::to_owned);
    let trustee = text("TRUSTEE_USER_ID").zip(text("TRUSTEE_PASSWORD")).zip(text("AUTH_URL"));
    let trustee = trustee.map(|((user_id, password), auth_url)| MagnumUser::Trustee {
        auth_url,
        user_id,
        password,
        trust_id: text("TRUST_ID"),
    });
    let cluster = text("CLUSTER_UUID");
    Some(MagnumAccess {
        url: text("MAGNUM_URL")?.trim_end_matches('/').to_owned(),
        bay: cluster.is_none(),
        cluster: cluster.or_else(|| text("BAY_UUID"))?,
        user: trustee.or_else(|| text("USER_TOKEN").map(MagnumUser::Token))?,
        ca: material(parameters, "OPENSTACK_CA"),
        insecure: !parameters.is_true("VERIFY_CA"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fixtures::spec;
    use crate::kubernetes::parameters::table::find;

    const CA: &str = "-----BEGIN CERTIFICATE-----\\nAA\\n-----END CERTIFICATE-----\\n";
    const MAGNUM: &[(&str, &str)] = &[("CERTIFICATES", "magnum"), ("MAGNUM_URL", "https://magnum.example.org:9511/v1/")];

    fn trust(changes: &[&[(&str, &str)]]) -> CertificatePolicy {
        let cluster = spec(&changes.concat()).kubernetes.unwrap();
        cluster.trust.signing_policy(cluster.certificates, RenewalSlot::ALONE)
    }

    #[test]
    fn every_certificate_and_ca_has_its_parameters() {
        for (certificate, key) in PAIRS
            .iter()
            .map(|name| parameters_of(name))
            .chain(CLUSTER_CAS.iter().map(|(_, certificate, key)| ((*certificate).to_owned(), (*key).to_owned())))
        {
            let kinds = [&certificate, &key].map(|name| find(name).unwrap_or_else(|| panic!("{name}")));
            assert_eq!(kinds.map(|row| row.secret), [false, true], "{certificate} {key}");
            assert!(
                kinds.iter().all(|row| row.kind == crate::kubernetes::parameters::kinds::ParameterKind::Material),
                "{certificate}"
            );
        }
    }

    /// magnum-node.md 4.1, 4.2: both eras, with and without trusts.
    #[test]
    fn magnum_is_asked_as_its_era_does() {
        let trustee = [("TRUSTEE_USER_ID", "u"), ("TRUSTEE_PASSWORD", "p"), ("AUTH_URL", "https://keystone.example.org:5000/v3")];
        let user = |trust_id: Option<&str>| MagnumUser::Trustee {
            auth_url: "https://keystone.example.org:5000/v3".to_owned(),
            user_id: "u".to_owned(),
            password: "p".to_owned(),
            trust_id: trust_id.map(str::to_owned),
        };
        let old: &[(&str, &str)] = &[("CLUSTER_UUID", ""), ("BAY_UUID", "c0ffee00-1111-4222-8333-444455556666")];
        for (changes, bay, insecure, expected) in [
            (&[MAGNUM, &trustee, &[("TRUST_ID", "t")]][..], false, false, user(Some("t"))),
            (&[MAGNUM, &trustee, &[("TRUST_ID", ""), ("VERIFY_CA", "False")]], false, true, user(None)),
            (&[MAGNUM, &trustee, &[("USER_TOKEN", "x"), ("OPENSTACK_CA", CA)]], false, false, user(None)),
            (&[MAGNUM, old, &[("USER_TOKEN", "x")]], true, false, MagnumUser::Token("x".to_owned())),
        ] {
            let Issuer::Magnum(access) = trust(changes).issuer else { panic!("{changes:?}") };
            assert_eq!((access.bay, access.insecure), (bay, insecure), "{changes:?}");
            let ca = changes.concat().iter().any(|(name, _)| *name == "OPENSTACK_CA");
            assert_eq!(access.ca.is_some(), ca, "{changes:?}");
            assert!(access.user == expected, "{changes:?}: {:?}", access.user);
            assert_eq!(
                (access.url.as_str(), access.cluster.as_str()),
                ("https://magnum.example.org:9511/v1", "c0ffee00-1111-4222-8333-444455556666")
            );
        }
    }

    #[test]
    fn how_certificates_are_made_follows_parameters_and_version() {
        for (changes, keys, renew, rotation) in [
            (&[][..], KeyType::EcdsaP256, true, Rotation::TrustBoth),
            (
                &[("CERTIFICATE_KEYS", "rsa-3072"), ("CERTIFICATE_RENEWAL", "warn")],
                KeyType::Rsa(3072),
                false,
                Rotation::TrustBoth,
            ),
            (&[("CERTIFICATE_KEYS", "rsa-2048"), ("CA_ROTATION", "switch")], KeyType::Rsa(2048), true, Rotation::Switch),
            (&[("CERTIFICATE_KEYS", "rsa-4096"), ("CA_ROTATION", "drop-old")], KeyType::Rsa(4096), true, Rotation::DropOld),
            // Below 1.6 the API server's key signs service accounts' tokens only if it is RSA.
            (&[("KUBE_TAG", "v1.5.3")], KeyType::Rsa(2048), true, Rotation::TrustBoth),
            (&[("KUBE_TAG", "v1.5.3"), ("CERTIFICATE_KEYS", "ecdsa-p256")], KeyType::EcdsaP256, true, Rotation::TrustBoth),
            (
                &[("KUBE_TAG", "v1.5.3"), ("ROLE", "minion"), ("KUBE_MASTER_IP", "192.0.2.5")],
                KeyType::EcdsaP256,
                false,
                Rotation::TrustBoth,
            ),
            (
                &[
                    ("KUBE_TAG", "v1.5.3"),
                    ("KUBE_SERVICE_ACCOUNT_KEY", "/given/sa.pub"),
                    ("KUBE_SERVICE_ACCOUNT_PRIVATE_KEY", "/given/sa.key"),
                ],
                KeyType::EcdsaP256,
                true,
                Rotation::TrustBoth,
            ),
            (&[("KUBE_TAG", "v1.6.0")], KeyType::EcdsaP256, true, Rotation::TrustBoth),
        ] {
            let found = trust(&[changes]);
            assert_eq!((found.keys, found.renew, found.rotation), (keys, renew, rotation), "{changes:?}");
            assert_eq!(found.issuer, Issuer::Given);
        }
    }

    /// A source that signs without anybody's help renews by itself; what is given explicitly counts everywhere.
    #[test]
    fn renewal_is_the_default_where_the_source_can_renew() {
        let trustee = [("TRUSTEE_USER_ID", "u"), ("TRUSTEE_PASSWORD", "p"), ("AUTH_URL", "https://keystone.example.org:5000/v3")];
        let cluster = [("CLUSTER_UUID", "c0ffee00-1111-4222-8333-444455556666")];
        let token = [("USER_TOKEN", "x")];
        let worker = [("ROLE", "minion"), ("KUBE_MASTER_IP", "192.0.2.5")];
        let joins = [
            ("CERTIFICATES", "bootstrap"),
            ("BOOTSTRAP_TOKEN", "abcdef.0123456789abcdef"),
            ("CA_KEY", ""),
            ("CA_CERTIFICATE", CA),
        ];
        let (warn, renew) = ([("CERTIFICATE_RENEWAL", "warn")], [("CERTIFICATE_RENEWAL", "renew")]);
        for (case, changes, expected) in [
            ("a master with a CA's key", &[&[][..]][..], true),
            ("the same, told not to", &[&warn], false),
            ("Magnum and the cluster's trustee", &[MAGNUM, &cluster, &trustee], true),
            ("the same, told not to", &[MAGNUM, &cluster, &trustee, &warn], false),
            ("the creator's token", &[MAGNUM, &cluster, &token], false),
            ("the same, told to", &[MAGNUM, &cluster, &token, &renew], true),
            ("a worker that joins by a token: its kubelet renews", &[&worker, &joins], false),
        ] {
            assert_eq!(trust(changes).renew, expected, "{case}");
        }
    }

    #[test]
    fn the_main_ca_stands_in_for_the_others_as_a_whole() {
        let cluster = spec(&[("ETCD_CA_CERTIFICATE", CA), ("ETCD_CA_KEY", "/given/etcd-ca.key")]).kubernetes.unwrap();
        let file = |path: &str| Some(Material::File(path.to_owned()));
        let of = |signer| cluster.trust.ca(signer).clone();
        assert_eq!(of(Signer::FrontProxy), PartialPair { certificate: file("/given/ca.crt"), key: file("/given/ca.key") });
        assert_eq!(
            of(Signer::Etcd),
            PartialPair {
                certificate: Some(Material::Text("-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n".to_owned())),
                key: file("/given/etcd-ca.key")
            }
        );
    }
}
