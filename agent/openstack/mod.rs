//! What sources and signals share when they speak to OpenStack.
//!
//! In: credentials and names as Heat's metadata gives them. Out: URLs and signatures, ready to be
//! sent by [`crate::http`], Keystone's tokens, certificates by Magnum, and queues of Zaqar. Never: a file.

pub mod aws_signature;
pub mod keystone;
pub mod magnum;
pub mod zaqar;
