//! What sources and signals share when they speak to OpenStack.
//!
//! In: credentials and names as Heat's metadata gives them. Out: URLs and signatures, ready to be
//! sent by [`crate::http`]. Nothing in here touches the network, a file or the clock.

pub mod aws_signature;
