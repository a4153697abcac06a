//! What runs on a master: etcd, the API server and who stands around it.
//!
//! In: a `NodeSpec` and `MachineFacts`. Out: their parts of the `Desired`. Never: a read of parameters.

pub(super) mod apiserver;
pub(super) mod bootstrap;
pub(super) mod controller_manager;
pub(super) mod etcd;
pub(super) mod etcd_access;
pub(super) mod haproxy;
pub(super) mod podmaster;
pub(super) mod scheduler;
