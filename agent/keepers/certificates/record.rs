//! What is remembered of keys and of a CA rotation: `certificates.json` in the state directory.
//!
//! It holds no key, only SHA-256 of public ones. On a copied disk it is set aside with the rest of the state: what lies in
//! the directories then is another instance's, and nothing of it is kept.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::desired::Rotation;
use crate::error::{Error, Result};
use crate::files::{Attributes, Tree};
use crate::identity;
use crate::report::{Code, Report};

const FILE: &str = "certificates.json";

/// What is remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CertificateRecord {
    /// Format of this file.
    pub schema: u32,
    /// By the certificate's name: the key in place, and perhaps one in the making.
    pub keys: BTreeMap<String, Vec<KnownKey>>,
    /// A CA rotation that is under way.
    pub rotation: Option<RotationProgress>,
    /// The step that the operator ordered on this node, beyond the one that is done.
    pub ordered: Option<Rotation>,
    /// Certificates whose near end was reported, by name.
    #[serde(rename = "told")]
    pub reported: BTreeMap<String, Timestamp>,
    /// What lies in the directories is of the instance that the disk was copied from.
    pub foreign: bool,
}

/// A key that is this node's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownKey {
    /// SHA-256 of its public key.
    pub fingerprint: String,
    /// Whether the agent made it. One that it found is kept whatever kind it is of.
    pub made: bool,
}

/// How far a CA rotation is on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RotationProgress {
    /// The step that is done.
    pub step: Rotation,
    /// The generation with which it was done.
    pub generation: u64,
    /// When it was done.
    pub since: Timestamp,
}

impl CertificateRecord {
    /// Reads the record. One that cannot be understood is quarantined and logged; without one, keys in place are kept where their
    /// certificates are right.
    ///
    /// # Errors
    /// If it can be neither read nor quarantined.
    pub fn open(state: &Tree, report: &Report) -> Result<Self> {
        let was_present = |name: &Path| Ok::<_, Error>(state.facts(name)?.is_some());
        let never = !was_present(Path::new(FILE))? && !was_present(&Path::new(FILE).with_extension("unreadable"))?;
        if let Some(record) = state.read_state(Path::new(FILE), report, Code::StateFileQuarantined)? {
            return Ok(record);
        }
        let copied = identity::InstanceRecord::read(state).ok().flatten().is_some_and(|record| record.predecessor.is_some());
        Ok(Self { schema: 1, foreign: never && copied, ..Self::default() })
    }

    /// The record for callers that only read.
    #[must_use]
    pub fn inspect(state: &Tree) -> Self {
        state.read_json(Path::new(FILE)).ok().flatten().unwrap_or_default()
    }

    /// Stores it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, state: &Tree) -> Result<()> {
        state.write_json(Path::new(FILE), self, Attributes::mode(0o600))
    }

    /// The key of a certificate, if it is this node's.
    #[must_use]
    pub fn known(&self, name: &str, fingerprint: &str) -> Option<&KnownKey> {
        self.keys.get(name)?.iter().find(|key| key.fingerprint == fingerprint)
    }

    /// Remembers a key.
    pub(super) fn remember(&mut self, name: &str, fingerprint: String, made: bool) {
        if self.known(name, &fingerprint).is_none() {
            self.keys.entry(name.to_owned()).or_default().push(KnownKey { fingerprint, made });
        }
    }

    /// Whether the operator ordered a step that is not done yet.
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        self.rotation.zip(self.ordered).is_some_and(|(turn, step)| step > turn.step)
    }

    /// The next step of the CA rotation that is under way.
    #[must_use]
    pub fn next_step(&self) -> Option<Rotation> {
        next(self.rotation?.step)
    }
}

/// The step after a step.
#[must_use]
pub fn next(step: Rotation) -> Option<Rotation> {
    match step {
        Rotation::TrustBoth => Some(Rotation::Switch),
        Rotation::Switch => Some(Rotation::DropOld),
        Rotation::DropOld => None,
    }
}

/// Orders the next step of a CA rotation on this node; the next run of the node takes it. Ordered twice it is the same
/// order.
///
/// # Errors
/// Refused, if none is under way.
pub fn order_next_step(state: &Tree) -> Result<Rotation> {
    let mut record: CertificateRecord = state.read_json(Path::new(FILE))?.unwrap_or_default();
    let step = record.next_step().ok_or_else(|| {
        Error::refused("no CA rotation is in progress on this node")
            .rule("a rotation begins when the issuer provides a CA different from the current one")
            .remedy("change the CA first (`openstack coe ca rotate CLUSTER`, or CA_CERTIFICATE and CA_KEY), and update the stack")
    })?;
    record.ordered = Some(step);
    record.write(state)?;
    Ok(step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Identity, IdentityOrigin, Predecessor};

    fn state() -> (tempfile::TempDir, Tree) {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        (dir, tree)
    }

    #[test]
    fn a_step_is_ordered_only_while_a_change_is_under_way() {
        let (_dir, tree) = state();
        assert_eq!(order_next_step(&tree).unwrap_err().kind(), crate::error::ErrorKind::Refused);
        for (done, ordered) in [
            (Rotation::TrustBoth, Some(Rotation::Switch)),
            (Rotation::Switch, Some(Rotation::DropOld)),
            (Rotation::DropOld, None),
        ] {
            let rotation = Some(RotationProgress { step: done, generation: 1, since: Timestamp(0) });
            CertificateRecord { rotation, ..CertificateRecord::default() }.write(&tree).unwrap();
            assert_eq!(order_next_step(&tree).ok(), ordered);
            assert_eq!(order_next_step(&tree).ok(), ordered, "twice is once");
            assert_eq!(CertificateRecord::inspect(&tree).ordered, ordered);
        }
    }

    #[test]
    fn only_a_copied_disk_without_a_record_makes_what_lies_there_anothers() {
        let identity = |value: &str| Identity { origin: IdentityOrigin::Smbios, value: value.into() };
        let before =
            Predecessor { instance: identity("a"), until: Timestamp(0), aside: 1, files: identity::Leftovers::default() };
        let copied =
            identity::InstanceRecord { predecessor: Some(before), ..identity::InstanceRecord::new(identity("b"), Timestamp(0)) };
        // Is the disk a copy, what is the record -> is it another's?
        for (is_copy, record, foreign) in [
            (false, None, false),
            (true, None, true),
            (true, Some("{torn"), false),
            (true, Some(r#"{"schema": 1}"#), false),
            (true, Some(r#"{"schema": 1, "foreign": true}"#), true),
        ] {
            let (_dir, tree) = state();
            if is_copy {
                copied.write(&tree).unwrap();
            }
            if let Some(text) = record {
                tree.write(Path::new(FILE), text.as_bytes(), Attributes::mode(0o600)).unwrap();
            }
            for time in ["first", "second"] {
                let opened = CertificateRecord::open(&tree, &Report::kept()).unwrap();
                assert_eq!(opened.foreign, foreign, "{is_copy} {record:?} {time}");
            }
        }
    }
}
