//! As whom this node asks etcd.

use super::certificates::{ETCD_AUTHORITY, ETCD_CLIENT};
use crate::desired::ClientIdentity;

/// As whom this node asks etcd over TLS.
pub(in crate::kubernetes) fn client_identity() -> ClientIdentity {
    ClientIdentity {
        certificate: ETCD_CLIENT.certificate.to_owned(),
        key: ETCD_CLIENT.key.to_owned(),
        authority: ETCD_AUTHORITY.to_owned(),
    }
}
