//! Where certificates and keys lie, and who has which; `certificates` asks for them.

use crate::desired::{ClientIdentity, KeyType, Material};
use crate::kubernetes::spec::cluster::{ClusterSpec, MachineFacts};

/// A certificate and its key.
pub(in crate::kubernetes) struct Pair {
    pub(in crate::kubernetes) certificate: &'static str,
    pub(in crate::kubernetes) key: &'static str,
}

impl Pair {
    /// Who shows it to a server of the cluster.
    pub(in crate::kubernetes) fn client(&self) -> ClientIdentity {
        ClientIdentity { certificate: self.certificate.to_owned(), key: self.key.to_owned(), ca: CLUSTER_CA.to_owned() }
    }
}

macro_rules! pair {
    ($stem:literal) => {
        Pair { certificate: concat!($stem, ".crt"), key: concat!($stem, ".key") }
    };
}

/// The cluster's main CA.
pub(in crate::kubernetes) const CLUSTER_CA: &str = "/etc/kubernetes/certs/ca.crt";
/// The one of its certificates that the key below belongs to.
pub(in crate::kubernetes) const SIGNING_CA: &str = "/etc/kubernetes/certs/ca-signing.crt";
/// Its key, on masters that sign.
pub(in crate::kubernetes) const CLUSTER_CA_KEY: &str = "/etc/kubernetes/certs/ca.key";
/// What the API server shows; Magnum's Keystone webhook shows it, too.
pub(in crate::kubernetes) const SERVER: Pair = pair!("/etc/kubernetes/certs/server");
/// The kubelet, as a client and as a server.
pub(in crate::kubernetes) const KUBELET: Pair = pair!("/etc/kubernetes/certs/kubelet");
/// kube-proxy as a client.
pub(in crate::kubernetes) const PROXY: Pair = pair!("/etc/kubernetes/certs/proxy");
/// The administrator, which root and the API server (towards kubelets) are.
pub(in crate::kubernetes) const ADMIN: Pair = pair!("/etc/kubernetes/certs/admin");
/// The controller manager, as a client and as a server of its health.
pub(in crate::kubernetes) const CONTROLLER_MANAGER: Pair = pair!("/etc/kubernetes/certs/controller-manager");
/// The scheduler, as a client and as a server of its health.
pub(in crate::kubernetes) const SCHEDULER: Pair = pair!("/etc/kubernetes/certs/scheduler");
/// The CA of the API server as a proxy.
pub(in crate::kubernetes) const FRONT_PROXY_CA: &str = "/etc/kubernetes/certs/front-proxy/ca.crt";
/// The API server as a proxy.
pub(in crate::kubernetes) const FRONT_PROXY: Pair = pair!("/etc/kubernetes/certs/front-proxy/server");
/// CN of that certificate, which the API server then lets act for others.
pub(in crate::kubernetes) const FRONT_PROXY_NAME: &str = "front-proxy";
/// etcd's CA.
pub(in crate::kubernetes) const ETCD_CA: &str = "/etc/etcd/certs/ca.crt";
/// etcd as a server and as a peer.
pub(in crate::kubernetes) const ETCD_SERVER: Pair = pair!("/etc/etcd/certs/server");
/// The API server as etcd's client.
pub(in crate::kubernetes) const ETCD_CLIENT: Pair = pair!("/etc/etcd/certs/admin");
/// CN of etcd's certificates, of its servers, peers and clients.
pub(in crate::kubernetes) const ETCD_NAME: &str = "etcd";
/// Public key of service accounts, where the parameters give one as text.
pub(in crate::kubernetes) const SERVICE_ACCOUNT: &str = "/etc/kubernetes/certs/service_account.key";
/// Private key of service accounts, where the parameters give one as text, or the node makes its own.
pub(in crate::kubernetes) const SERVICE_ACCOUNT_PRIVATE: &str = "/etc/kubernetes/certs/service_account_private.key";

/// The first minor that signs service accounts' tokens by ECDSA keys; before, by RSA alone.
pub(in crate::kubernetes) const FIRST_WITH_ECDSA_TOKENS: u16 = 6;

/// The first minor whose API server takes several `--service-account-key-file` (a list since 1.5; ECDSA since 1.6).
const FIRST_WITH_SEVERAL_KEYS: u16 = 6;

/// Files with the keys that service accounts' tokens are verified and signed by.
pub(in crate::kubernetes) struct ServiceAccountKeys<'a> {
    /// The first is that of new tokens.
    pub(in crate::kubernetes) verify: Vec<&'a str>,
    pub(in crate::kubernetes) sign: &'a str,
    /// The kind of the key that the node makes for it, where it makes one.
    pub(in crate::kubernetes) made: Option<KeyType>,
}

/// The keys, if there are any.
///
/// All masters must have the same (magnum-node.md 7.5 no. 59). A single master that is given none makes a pair of its own, RSA unless
/// `SERVICE_ACCOUNT_KEYS` says otherwise: RS256 is what every verifier of tokens knows. One whose tokens are signed by the API server's
/// own key, as on Magnum's nodes up to 6.x, keeps that key until the parameter asks for another; the API server then goes on taking what
/// the old one signed. Below 1.6 keys have to be RSA.
pub(in crate::kubernetes) fn service_account_keys<'a>(
    cluster: &'a ClusterSpec,
    facts: &MachineFacts,
) -> Option<ServiceAccountKeys<'a>> {
    let control_plane = &cluster.control_plane;
    if let Some(private) = &control_plane.service_account_private_key {
        let sign = path_of(private, SERVICE_ACCOUNT_PRIVATE);
        let verify = control_plane.service_account_key.as_ref().map_or(sign, |public| path_of(public, SERVICE_ACCOUNT));
        return Some(ServiceAccountKeys { verify: vec![verify], sign, made: None });
    }
    if !cluster.tls {
        return None;
    }
    let servers = || Some(ServiceAccountKeys { verify: vec![SERVER.key], sign: SERVER.key, made: None });
    let signed_by_server = facts.tokens.verified_by_server_key;
    let knows_several = cluster.minor.number() >= FIRST_WITH_SEVERAL_KEYS;
    let (asked, is_own) = (control_plane.service_account_key_type, facts.tokens.has_own_key);
    if signed_by_server && !is_own && (asked.is_none() || !knows_several) {
        return servers();
    }
    // As before: without a pair for all of them such masters have no tokens.
    if cluster.has_several_masters() && !knows_several && !matches!(cluster.trust.keys, KeyType::Rsa(_)) {
        return None;
    }
    // Several masters cannot each make one: where that is not refused, as with a discovery URL, the first one does.
    let mut verify = vec![SERVICE_ACCOUNT_PRIVATE];
    if signed_by_server && knows_several {
        verify.push(SERVER.key);
    }
    Some(ServiceAccountKeys { verify, sign: SERVICE_ACCOUNT_PRIVATE, made: Some(asked.unwrap_or(DEFAULT_SERVICE_ACCOUNT_KEY)) })
}

/// RS256: what every verifier of tokens knows.
const DEFAULT_SERVICE_ACCOUNT_KEY: KeyType = KeyType::Rsa(2048);

/// Where it lies on the node: as it is named, else where its text is written to.
pub(in crate::kubernetes) fn path_of<'a>(material: &'a Material, written: &'a str) -> &'a str {
    match material {
        Material::File(path) => path,
        Material::Text(_) => written,
    }
}

/// Whether the minor has the API server as a proxy of aggregated APIs (`--proxy-client-cert-file`).
pub(in crate::kubernetes) fn has_front_proxy(cluster: &ClusterSpec) -> bool {
    cluster.tls && cluster.minor.number() >= 7
}
