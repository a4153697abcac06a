//! Cinder volumes: which disk is meant, what is on it, and whether it may be touched.
//!
//! In: what `probe` reads of devices (the only place that does, but for `config_drive`, which decides nothing) and what is asked of a
//! [`Volume`](crate::desired::Volume). Out: the interlock's decision and the texts of mount units.
//! Never: a write to a device, mkfs, a mount; `keepers/volumes` does what was decided.

pub mod config_drive;
pub mod driver;
pub mod health;
pub mod identity;
pub mod interlock;
pub mod marker;
pub mod mkfs;
pub mod mount_unit;
pub mod probe;
pub mod signatures;
pub mod survey;
pub mod thin_pool;
