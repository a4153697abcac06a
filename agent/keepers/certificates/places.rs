//! What lies on the node: CAs and pairs of certificate and key, in use or left by a run that was cut off.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use super::sets::{every, split};
use crate::certificates::key::PrivateKey;
use crate::certificates::x509::X509;
use crate::desired::{Certificate, Desired, KeyRequest, Material};
use crate::error::{Context as _, Error, Result};
use crate::files::Tree;

/// Largest file with certificates or a key that is read, in bytes.
const LIMIT: u64 = 1024 * 1024;

/// A certificate with those between it and the CA, and its key.
#[derive(Clone, PartialEq, Eq)]
pub struct InstalledPair {
    /// As PEM, byte for byte as it was read or given.
    pub certificate: String,
    /// As PEM.
    pub key: String,
    /// The certificate, read; the node's own first.
    pub chain: Vec<X509>,
    /// The key, read.
    pub private: PrivateKey,
}

impl fmt::Debug for InstalledPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InstalledPair({:?}, {:?})", self.chain.first().map(X509::fingerprint), self.private)
    }
}

impl InstalledPair {
    /// Reads both.
    ///
    /// # Errors
    /// In words, without any part of the key.
    pub fn parse(certificate: String, key: String) -> Result<Self> {
        let chain = X509::all_from_pem(&certificate).context(|| "the certificate")?;
        let private = PrivateKey::from_pem(&key).context(|| "the key")?;
        Ok(Self { certificate, key, chain, private })
    }
}

/// A key without a certificate, and its private half.
pub(super) type OwnKey<'a> = (&'a KeyRequest, PrivateKey);

/// What is found for one certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PairFiles {
    /// Neither certificate nor key, or one of them alone.
    Missing(String),
    /// Files that cannot be understood.
    Unreadable(String),
    /// Both.
    Pair(Box<InstalledPair>),
}

impl PairFiles {
    pub(super) fn pair(&self) -> Option<&InstalledPair> {
        match self {
            Self::Pair(pair) => Some(pair),
            Self::Missing(_) | Self::Unreadable(_) => None,
        }
    }
}

/// Everything that lies where the certificates are to be.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    /// Certificates at the path of a CA; nothing where they cannot be understood.
    pub(super) cas: BTreeMap<String, Vec<X509>>,
    /// By the certificate's name.
    pub(super) in_use: BTreeMap<String, PairFiles>,
    /// Pairs of all sets, also of those that are not in use, by the certificate's name.
    pub(super) pending: BTreeMap<String, Vec<InstalledPair>>,
    /// Keys by the certificate's name, the one in use first: their certificates are perhaps not there.
    pub(super) keys: BTreeMap<String, Vec<PrivateKey>>,
}

impl Places {
    /// Looks at what is in use.
    pub(super) fn in_use(tree: &Tree, desired: &Desired) -> Result<Self> {
        let mut places = Self::default();
        for ca in &desired.cas {
            let text = text(tree, Path::new(&ca.path))?;
            let found = text.and_then(|text| X509::all_from_pem(&text).ok()).unwrap_or_default();
            places.cas.insert(ca.path.clone(), found);
        }
        for wanted in &desired.certificates {
            places.in_use.insert(wanted.name.clone(), found(tree, Path::new(&wanted.path), Path::new(&wanted.key))?);
        }
        Ok(places)
    }

    /// Looks at what runs that were cut off left, too.
    pub(super) fn all(tree: &Tree, desired: &Desired) -> Result<Self> {
        let mut places = Self::in_use(tree, desired)?;
        for wanted in &desired.certificates {
            let (directory, name) = split(&wanted.path)?;
            let (of_key, key) = split(&wanted.key)?;
            let mut keys: Vec<PrivateKey> = private(tree, Path::new(&wanted.key))?.into_iter().collect();
            for set in every(tree, of_key)? {
                keys.extend(private(tree, &set.join(key))?);
                if directory == of_key
                    && let PairFiles::Pair(pair) = found(tree, &set.join(name), &set.join(key))?
                {
                    places.pending.entry(wanted.name.clone()).or_default().push(*pair);
                }
            }
            places.keys.insert(wanted.name.clone(), keys);
        }
        Ok(places)
    }

    /// Takes away what is in use: it is another instance's.
    pub(super) fn remove_in_use(&mut self) {
        (self.cas, self.in_use) = Default::default();
    }

    /// The pair in use for a certificate.
    pub(super) fn pair(&self, wanted: &Certificate) -> Option<&InstalledPair> {
        self.in_use.get(&wanted.name)?.pair()
    }
}

fn found(tree: &Tree, certificate: &Path, key: &Path) -> Result<PairFiles> {
    let missing = |path: &Path| Ok(PairFiles::Missing(format!("{} is missing", path.display())));
    let (certificate, key) = match (text(tree, certificate)?, text(tree, key)?) {
        (Some(found), Some(key)) => (found, key),
        (None, _) => return missing(certificate),
        (_, None) => return missing(key),
    };
    Ok(match InstalledPair::parse(certificate, key) {
        Ok(pair) => PairFiles::Pair(Box::new(pair)),
        Err(error) => PairFiles::Unreadable(error.to_string()),
    })
}

/// A key that can be read; one that is only partially written is none.
pub(super) fn private(tree: &Tree, path: &Path) -> Result<Option<PrivateKey>> {
    Ok(text(tree, path)?.and_then(|text| PrivateKey::from_pem(&text).ok()))
}

/// The text of a file; `None` where no regular file of a sane size is.
fn text(tree: &Tree, path: &Path) -> Result<Option<String>> {
    match tree.read(path, LIMIT) {
        Ok(bytes) => Ok(bytes.and_then(|bytes| String::from_utf8(bytes).ok())),
        // A directory, a device, a disk image: not what is looked for.
        Err(error) if error.kind() == crate::error::ErrorKind::Permanent => Ok(None),
        Err(error) => Err(error),
    }
}

/// What a parameter gives, by value or by the name of a file.
///
/// # Errors
/// If the file is not there or cannot be read.
pub(super) fn given(tree: &Tree, material: &Material) -> Result<String> {
    match material {
        Material::Text(text) => Ok(text.clone()),
        Material::File(path) => text(tree, Path::new(path))?.ok_or_else(|| {
            Error::permanent(format!("there is no file {path}"))
                .rule("a parameter names a file that must exist on the node where the agent's unit can see it: not in /root, /home or /tmp")
                .remedy(format!("install {path} in the image, write it with cloud-init, or put its content into the parameter"))
        }),
    }
}
