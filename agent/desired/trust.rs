//! Certificates and CAs that a node should have, and who signs them.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::owner::Owner;

/// Who signs (magnum-node.md 4.1: three CAs from 13.0 on, all with the same subject, so that they never mix).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Signer {
    /// The cluster's main CA: API server, kubelets, clients.
    Kubernetes,
    /// etcd's clients and peers.
    Etcd,
    /// The API server as a proxy of aggregated APIs.
    FrontProxy,
}

impl Signer {
    /// As Magnum's certificate API spells the type.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kubernetes => "kubernetes",
            Self::Etcd => "etcd",
            Self::FrontProxy => "front-proxy",
        }
    }
}

impl fmt::Display for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The certificate of a CA at one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CaCertificate {
    /// Which one.
    pub signer: Signer,
    /// Absolute path.
    pub path: String,
    /// Owner and group.
    pub owner: Owner,
    /// The certificate, where the parameters give it; else the issuer gives it.
    pub given: Option<Material>,
    /// The key that this node signs with, where the parameters give it. It never lies on the node unless `key_path` says so.
    pub signing_key: Option<Material>,
    /// Where that key is put, for a controller manager that signs.
    pub key_path: Option<String>,
    /// Where the one certificate that it belongs to is put: the controller manager takes no bundle as its own
    /// (Kubernetes, pkg/controller/certificates/signer: "expected 1 certificate"), which `path` is while the CA changes.
    pub signing_path: Option<String>,
}

/// A certificate with its key, as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Certificate {
    /// Short name: `server`, `kubelet`.
    pub name: String,
    /// Who signs it.
    pub signer: Signer,
    /// CN of the subject.
    pub common_name: String,
    /// O of the subject: the groups that Kubernetes sees.
    pub organisations: Vec<String>,
    /// DNS names of its subjectAltName.
    pub names: Vec<String>,
    /// Addresses of its subjectAltName.
    pub addresses: Vec<IpAddr>,
    /// Whether it is good for serving, besides being good for a client.
    pub serves: bool,
    /// Absolute path of the certificate.
    pub path: String,
    /// Absolute path of the key, mode 0600.
    pub key: String,
    /// Owner of both.
    pub owner: Owner,
    /// Certificate and key, where the parameters give them; else the issuer signs.
    pub given: Option<GivenPair>,
}

/// A private key that is nobody's certificate's: it is made once, and one that lies in its place stays, whatever kind it is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyRequest {
    /// Short name: `service-accounts`.
    pub name: String,
    /// Absolute path, mode 0600.
    pub path: String,
    /// Owner.
    pub owner: Owner,
    /// The kind that is made.
    pub kind: KeyType,
}

/// A certificate and its key as the parameters give them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GivenPair {
    /// The certificate, perhaps with those between it and the CA behind it.
    pub certificate: Material,
    /// Its key.
    pub key: Material,
}

/// Text that a parameter gives, or a file of the node that it names.
#[derive(Clone, PartialEq, Eq, Serialize)]
pub enum Material {
    /// The text itself; it may be a secret.
    Text(String),
    /// Absolute path on the node.
    File(String),
}

impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text"),
            Self::File(path) => write!(f, "File({path})"),
        }
    }
}

/// How certificates are signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CertificatePolicy {
    /// Who signs what the parameters do not give.
    pub issuer: Issuer,
    /// Kind of the keys that are made.
    pub keys: KeyType,
    /// Whether the parameters ask for that kind. Else RSA keys that the node made stay, whatever is usual now: all versions read
    /// them, and tokens of service accounts may be signed by one.
    pub keys_asked: bool,
    /// Whether what is past two thirds of its life is renewed, or only reported.
    pub renew: bool,
    /// How far a CA rotation may go on this node.
    pub rotation: Rotation,
    /// When in the time that is left for a renewal this node renews.
    pub share: RenewalSlot,
}

/// A node's place among those that renew the same certificates: nodes with different places do not renew at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RenewalSlot {
    /// From 0.
    pub at: u32,
    /// How many places there are; at least 1.
    pub of: u32,
    /// How long the places are spread over at most.
    pub spread: Duration,
}

impl RenewalSlot {
    /// Nobody else: it renews as soon as a renewal is due.
    pub const ALONE: Self = Self { at: 0, of: 1, spread: Duration::ZERO };
}

/// Who signs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Issuer {
    /// Magnum's certificate API (magnum-node.md 4.1).
    Magnum(MagnumAccess),
    /// This node itself, with the keys of [`CaCertificate::signing_key`]; without one all certificates are given.
    Given,
}

/// Magnum and as whom it is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MagnumAccess {
    /// `https://magnum:9511/v1`.
    pub url: String,
    /// Id of the cluster.
    pub cluster: String,
    /// Whether it is a bay: the member of requests is `bay_uuid` (Magnum 2.x), not `cluster_uuid`.
    pub bay: bool,
    /// Who asks.
    pub user: MagnumUser,
    /// Who signed Magnum's and Keystone's certificates (`OPENSTACK_CA`), believed beside the system's CAs.
    #[serde(rename = "authority")]
    pub ca: Option<Material>,
    /// Whether their certificates are not verified (`VERIFY_CA=False`); the settings must allow it.
    pub insecure: bool,
}

/// Who asks Magnum (magnum-node.md 4.2). Passwords, trusts and tokens are not serialized: a node with new ones is no other node.
#[derive(Clone, PartialEq, Eq, Serialize)]
pub enum MagnumUser {
    /// The cluster's trustee, from 3.x on.
    Trustee {
        /// Keystone.
        auth_url: String,
        /// User id.
        user_id: String,
        /// Password.
        #[serde(skip)]
        password: String,
        /// Trust that the token is scoped to (17.x and later); without one it has no scope.
        #[serde(skip)]
        trust_id: Option<String>,
    },
    /// The creator's own token (2.x).
    Token(#[serde(skip)] String),
}

impl fmt::Debug for MagnumUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trustee { auth_url, user_id, .. } => {
                f.debug_struct("Trustee").field("auth_url", auth_url).field("user_id", user_id).finish_non_exhaustive()
            }
            Self::Token(_) => f.write_str("Token"),
        }
    }
}

/// Kind of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum KeyType {
    /// ECDSA on P-256, made by the agent itself.
    #[default]
    EcdsaP256,
    /// RSA with so many bits, made by the image's openssl.
    Rsa(u16),
}

/// How far a CA rotation may go (magnum-node.md 2.8): each step needs that all nodes have done the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rotation {
    /// The new CA is trusted beside the old one.
    #[default]
    TrustBoth,
    /// The node's own certificates are signed by the new one.
    Switch,
    /// The old one is no longer trusted.
    DropOld,
}

impl Rotation {
    /// As the parameter CA_ROTATION spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TrustBoth => "trust-both",
            Self::Switch => "switch",
            Self::DropOld => "drop-old",
        }
    }

    /// Reads what [`Rotation::as_str`] writes.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::TrustBoth, Self::Switch, Self::DropOld].into_iter().find(|step| step.as_str() == word)
    }
}

/// Files by which a client shows who it is, and knows whom it speaks to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClientIdentity {
    /// Path of the certificate.
    pub certificate: String,
    /// Path of its key.
    pub key: String,
    /// Path of the CA that signed the server's certificate; no other is believed.
    #[serde(rename = "authority")]
    pub ca: String,
}
