//! Writes DER (X.690), the encoding of keys, requests and certificates: as much of it as those need.

pub(super) const BOOLEAN: u8 = 0x01;
pub(super) const INTEGER: u8 = 0x02;
pub(super) const BIT_STRING: u8 = 0x03;
pub(super) const OCTET_STRING: u8 = 0x04;
pub(super) const OBJECT_IDENTIFIER: u8 = 0x06;
pub(super) const UTF8_STRING: u8 = 0x0c;
pub(super) const UTC_TIME: u8 = 0x17;
pub(super) const GENERALIZED_TIME: u8 = 0x18;
pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;

/// Content of object identifiers (RFC 5280, appendix A; RFC 2985; RFC 5480).
pub(super) mod oid {
    pub(in super::super) const COMMON_NAME: &[u8] = &[0x55, 4, 3];
    pub(in super::super) const ORGANISATION: &[u8] = &[0x55, 4, 10];
    pub(in super::super) const SUBJECT_KEY_IDENTIFIER: &[u8] = &[0x55, 0x1d, 14];
    pub(in super::super) const KEY_USAGE: &[u8] = &[0x55, 0x1d, 15];
    pub(in super::super) const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 17];
    pub(in super::super) const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 19];
    pub(in super::super) const AUTHORITY_KEY_IDENTIFIER: &[u8] = &[0x55, 0x1d, 35];
    pub(in super::super) const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 37];
    pub(in super::super) const SERVER_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
    pub(in super::super) const CLIENT_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];
    pub(in super::super) const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 14];
    pub(in super::super) const PRIME256V1: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
}

/// Tag `[number]` of something constructed.
pub(super) const fn context(number: u8) -> u8 {
    0xa0 | number
}

/// Tag `[number]` of something primitive that is tagged implicitly.
pub(super) const fn context_primitive(number: u8) -> u8 {
    0x80 | number
}

/// An element of these parts, one after the other.
pub(super) fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut bytes = vec![tag];
    if let Ok(short @ 0..0x80) = u8::try_from(length) {
        bytes.push(short);
    } else {
        let digits = length.to_be_bytes();
        let zeros = digits.iter().take_while(|digit| **digit == 0).count();
        bytes.extend(u8::try_from(digits.len() - zeros).map(|count| 0x80 | count));
        bytes.extend(digits.iter().skip(zeros));
    }
    for part in parts {
        bytes.extend_from_slice(part);
    }
    bytes
}

/// A BIT STRING of whole bytes.
pub(super) fn bit_string(bytes: &[u8]) -> Vec<u8> {
    element(BIT_STRING, &[&[0], bytes])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use x509_parser::der_parser::der::parse_der;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(length in prop_oneof![0usize..300, 65_500usize..65_600]) {
            let content = vec![7; length];
            let (head, tail) = content.split_at(length / 3);
            let bytes = element(OCTET_STRING, &[head, tail]);
            let (rest, read) = parse_der(&bytes).unwrap();
            prop_assert_eq!((rest.len(), read.as_slice().unwrap()), (0, content.as_slice()));
            prop_assert!(parse_der(&bytes[..bytes.len() - 1]).is_err());
        }
    }
}
