//! As whom this node asks etcd.

use super::certificates::{ETCD_CA, ETCD_CLIENT, ETCD_SERVER};
use crate::desired::ClientIdentity;

/// As whom this node asks etcd over TLS.
pub(in crate::kubernetes) fn client_identity() -> ClientIdentity {
    ClientIdentity { ca: ETCD_CA.to_owned(), ..ETCD_CLIENT.client() }
}

/// As whom a master asks where etcd's members serve each other, like its own member.
pub(in crate::kubernetes) fn server_identity() -> ClientIdentity {
    ClientIdentity { ca: ETCD_CA.to_owned(), ..ETCD_SERVER.client() }
}
