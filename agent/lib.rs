//! From Heat's metadata to a healthy, signalled Kubernetes node.
//!
//! ```text
//! sources ─► collect ─► deploy ─► kubernetes/network/storage ─► converge ─► signal ─► Heat
//!  Heat, files  Snapshot   Work          Desired (pure)    DeploymentOutcome   outbox
//!                            └───────────── journal ◄─────────────────┴──► report
//! ```
//!
//! Which room may import which is the map in ARCHITECTURE.md, and `tests/check-layout` holds the code to it;
//! `report` receives events; nobody imports `commands`.

pub mod backoff;
pub mod budgets;
pub mod certificates;
pub mod clock;
pub mod collect;
pub mod commands;
mod concurrent;
pub mod converge;
pub mod daemon;
pub mod deploy;
pub mod desired;
pub mod digest;
pub mod error;
pub mod files;
pub mod freshness;
mod gather;
pub mod http;
pub mod identity;
pub mod keepers;
pub mod kubernetes;
pub mod legacy;
pub mod machine;
pub mod metadata;
pub mod network;
pub mod openstack;
mod output;
pub mod process;
pub mod programs;
pub mod progress;
pub mod reach;
pub mod report;
pub mod settings;
pub mod signal;
pub mod storage;
pub mod systemd;
pub mod watch;
