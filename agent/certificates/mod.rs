//! X.509: keys, requests, certificates, and whether they belong together.
//!
//! In: PEM texts and requested certificates ([`crate::desired::Certificate`]). Out: keys, signing requests, signed certificates, and
//! verdicts in words. Never: a file, the network or the wall clock; keys come from the system's random numbers. Never: a private key
//! that is shown, not by `Debug` either.
//!
//! Signatures are made and verified by ring and webpki, certificates are read by x509-parser. Requests and certificates are written in
//! `der`, because rcgen cannot write what is asked for here (see Cargo.toml, at rustls-webpki).

pub mod ca;
mod der;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod judge;
pub mod key;
#[cfg(test)]
mod openssl_tests;
mod pem;
pub mod request;
pub mod x509;
