//! PEM (RFC 7468), the text form of keys, requests and certificates.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::{Error as Damage, PemObject, SectionKind};

use crate::error::{Error, Result};

/// Bytes of base64 in a line (RFC 7468, 2).
const LINE: usize = 64;

/// What stands between BEGIN and END, of which kind; in order.
///
/// # Errors
/// Cut off or damaged, or holding something of another kind than those that are known: without any part of the text.
pub(super) fn read(text: &str) -> Result<Vec<(SectionKind, Vec<u8>)>> {
    <(SectionKind, Vec<u8>)>::pem_slice_iter(text.as_bytes()).collect::<std::result::Result<Vec<_>, _>>().map_err(|damage| {
        Error::permanent(cause(&damage)).rule("PEM: RFC 7468").remedy("provide the complete text, with its line breaks")
    })
}

/// How many texts begin in it, of whatever kind.
pub(super) fn count(text: &str) -> usize {
    text.lines().filter(|line| line.starts_with("-----BEGIN ")).count()
}

fn cause(damage: &Damage) -> &'static str {
    match damage {
        Damage::MissingSectionEnd { .. } => "the text is truncated: its END line is missing",
        Damage::Base64Decode(_) => "the text is damaged: it is not valid base64",
        Damage::SectionTooLarge => "the text is too long",
        _ => "the text is damaged: it is not valid PEM",
    }
}

/// The text of something in DER, with a line end after it.
pub(super) fn write(label: &str, der: &[u8]) -> String {
    let body = STANDARD.encode(der);
    let lines: String = body.as_bytes().chunks(LINE).map(|line| format!("{}\n", line.escape_ascii())).collect();
    format!("-----BEGIN {label}-----\n{lines}-----END {label}-----\n")
}
