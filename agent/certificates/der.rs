//! DER (X.690), the encoding of keys, requests and certificates: as much of it as those need.

pub(super) const BOOLEAN: u8 = 0x01;
pub(super) const INTEGER: u8 = 0x02;
pub(super) const BIT_STRING: u8 = 0x03;
pub(super) const OCTET_STRING: u8 = 0x04;
pub(super) const OBJECT_IDENTIFIER: u8 = 0x06;
pub(super) const UTF8_STRING: u8 = 0x0c;
pub(super) const UTC_TIME: u8 = 0x17;
pub(super) const GENERALIZED_TIME: u8 = 0x18;
pub(super) const BMP_STRING: u8 = 0x1e;
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

/// The bytes in the content of a BIT STRING, where they are whole ones.
pub(super) fn whole_bytes(content: &[u8]) -> Option<&[u8]> {
    content.split_first().filter(|(unused, _)| **unused == 0).map(|(_, bytes)| bytes)
}

/// An element as it was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Element<'a> {
    /// What it is.
    pub tag: u8,
    /// What is in it.
    pub content: &'a [u8],
    /// The whole of it, with tag and length.
    pub whole: &'a [u8],
}

/// Reads element after element. `None` is said of what is not DER, or not what was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The next element, whatever it is.
    pub(super) fn next(&mut self) -> Option<Element<'a>> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        // Tags of more than one byte are in no certificate.
        if tag & 0x1f == 0x1f {
            return None;
        }
        let (length, rest) = if first < 0x80 {
            (usize::from(first), rest)
        } else {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let length = digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit));
            // The shortest form is the only one, and 16 MB are enough.
            if digits.len() > 3 || digits.first().is_none_or(|digit| *digit == 0) || length < 0x80 {
                return None;
            }
            (length, rest)
        };
        let (content, rest) = rest.split_at_checked(length)?;
        let (whole, _) = self.0.split_at_checked(self.0.len() - rest.len())?;
        self.0 = rest;
        Some(Element { tag, content, whole })
    }

    /// The content of the next element if it has this tag; else it stays the next one.
    pub(super) fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let mut ahead = *self;
        let element = ahead.next().filter(|element| element.tag == tag)?;
        *self = ahead;
        Some(element.content)
    }

    /// As [`Reader::take`], to read on in it.
    pub(super) fn enter(&mut self, tag: u8) -> Option<Self> {
        self.take(tag).map(Self)
    }

    /// Every element up to the end.
    pub(super) fn all(mut self) -> Option<Vec<Element<'a>>> {
        let mut elements = Vec::new();
        while !self.is_empty() {
            elements.push(self.next()?);
        }
        Some(elements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_the_shortest_length_is_taken() {
        for (bytes, content) in [
            (&[4, 1, 7][..], Some(1)),
            (&[4, 0], Some(0)),
            (&[4, 2, 7], None),
            (&[4, 0x81, 1, 7], None),
            (&[4, 0x80, 7, 0, 0], None),
            (&[4, 0x82, 0, 0x80], None),
            (&[4, 0x84, 0, 0, 0, 1, 7], None),
            (&[0x1f, 1, 7], None),
            (&[4], None),
            (&[], None),
        ] {
            assert_eq!(Reader::new(bytes).next().map(|element| element.content.len()), content, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(tag in 0u8..0x1f, length in prop_oneof![0usize..300, 65_500usize..65_600]) {
            let content = vec![7; length];
            let (head, tail) = content.split_at(length / 3);
            let bytes = element(tag, &[head, tail]);
            let mut reader = Reader::new(&bytes);
            prop_assert!(reader.take(tag ^ 1).is_none());
            prop_assert_eq!(reader.take(tag), Some(content.as_slice()));
            prop_assert!(reader.is_empty());
            prop_assert!(Reader::new(&bytes[..bytes.len() - 1]).next().is_none());
        }

        #[test]
        fn any_bytes_are_read_to_their_end_or_refused(bytes: Vec<u8>) {
            let elements = Reader::new(&bytes).all();
            if let Some(elements) = elements {
                prop_assert_eq!(elements.iter().map(|element| element.whole.len()).sum::<usize>(), bytes.len());
            }
        }
    }
}
