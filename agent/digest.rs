//! SHA-256 as text: tells contents apart, and makes safe names of what comes from outside.
//!
//! In: bytes, or a value as JSON. Out: 64 hexadecimal digits, or the first 32 as a name. Never: protection of a
//! secret that can be guessed.

use std::io::{Result, Write};

use ring::digest::{Context, SHA256};

/// Incremental SHA-256.
pub struct Sha256(Context);

impl Default for Sha256 {
    fn default() -> Self {
        Self(Context::new(&SHA256))
    }
}

impl std::fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sha256")
    }
}

impl Sha256 {
    /// Feeds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest in 64 hexadecimal digits.
    #[must_use]
    pub fn hex(self) -> String {
        let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
        self.0.finish().as_ref().iter().flat_map(|byte| [byte >> 4, byte & 15]).map(digit).collect()
    }
}

impl Write for Sha256 {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The digest of bytes in 64 hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let mut digest = Sha256::default();
    digest.update(bytes);
    digest.hex()
}

/// The digest of a value as JSON: what is digested is what its serialization says, and no more.
#[must_use]
pub fn of(value: &impl serde::Serialize) -> String {
    // Maps with names that are no texts are not given to it. Writing into the digest itself would compile each type once more.
    hex(&serde_json::to_vec(value).unwrap_or_default())
}

/// A name for the files and the unit of a thing with an id from outside: 32 hexadecimal digits of its digest.
#[must_use]
pub fn key_of(id: &str) -> String {
    short(hex(id.as_bytes()))
}

/// Whether a text could be what [`key_of`] gives.
#[must_use]
pub fn is_key(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// The same for what a value is as JSON.
#[must_use]
pub fn key_of_json(value: &impl serde::Serialize) -> String {
    short(of(value))
}

fn short(mut digest: String) -> String {
    digest.truncate(32);
    digest
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn keys_are_safe_names_whatever_the_id() {
        let key = key_of("../../etc/passwd\n");
        assert!(key.len() == 32 && key.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_ne!(key, key_of("other"));
    }

    #[test]
    fn a_digest_is_the_same_whether_bytes_come_at_once_or_one_by_one() {
        // FIPS 180-2, appendix B.1.
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let mut digest = Sha256::default();
        b"abc".chunks(1).for_each(|byte| digest.update(byte));
        assert_eq!((hex(b"abc").as_str(), digest.hex().as_str()), (known, known));
    }

    #[test]
    fn the_digest_of_a_value_is_that_of_its_json() {
        let value = ("a b", None::<u32>, BTreeMap::from([("c", vec!["d"])]));
        assert_eq!(of(&value), hex(br#"["a b",null,{"c":["d"]}]"#));
    }
}
