//! Whose data a log of etcd's is: each of its files begins with a record that says so.
//!
//! A frame is 8 bytes, little endian, the lowest 56 bits of which are the record's length; where the highest bit is set the three lowest of the
//! highest byte say how many bytes fill it up to 8 (etcd, `server/storage/wal`: `encoder.go`, `decoder.go`). A record is protobuf with type
//! (1), checksum (2) and data (3) (`walpb/record.proto`); that of type 1 holds the ids of the node (1) and the cluster (2)
//! (`etcdserverpb/etcdserver.proto`).

use std::io::Read as _;
use std::path::Path;

use super::decision::MemberIds;
use crate::files::Tree;

/// The first record is a checksum's, the second is the one that is read: 70 bytes in all.
const HEAD: u64 = 512;
/// The type of the record.
const METADATA: u64 = 1;

/// The ids by the newest file of a log; nothing where it is not of the known form, which is etcd's own to judge.
pub(super) fn ids(root: &Tree, folder: &Path) -> Option<MemberIds> {
    let names = root.list(folder).ok()?;
    let newest = names.iter().filter(|name| name.to_string_lossy().ends_with(".wal")).max()?;
    let mut head = Vec::new();
    root.open_file(&folder.join(newest)).ok()??.take(HEAD).read_to_end(&mut head).ok()?;
    read(&head)
}

fn read(mut head: &[u8]) -> Option<MemberIds> {
    loop {
        let (frame, rest) = head.split_first_chunk::<8>()?;
        let top = frame[7];
        let length = usize::try_from(u64::from_le_bytes(*frame) & 0x00ff_ffff_ffff_ffff).ok()?;
        let filler = if top & 0x80 == 0 { 0 } else { usize::from(top & 0x07) };
        if length == 0 {
            return None;
        }
        let record = rest.get(..length)?;
        if number(record, 1)? == METADATA {
            let metadata = bytes(record, 3)?;
            return Some(MemberIds { member: number(metadata, 1)?, cluster: number(metadata, 2)? });
        }
        head = rest.get(length.checked_add(filler)?..)?;
    }
}

/// A field of a message.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn number(message: &[u8], wanted: u64) -> Option<u64> {
    match field(message, wanted)? {
        Field::Number(number) => Some(number),
        Field::Bytes(_) => None,
    }
}

fn bytes(message: &[u8], wanted: u64) -> Option<&[u8]> {
    match field(message, wanted)? {
        Field::Bytes(bytes) => Some(bytes),
        Field::Number(_) => None,
    }
}

/// Messages of a log have numbers and bytes alone.
fn field(mut message: &[u8], wanted: u64) -> Option<Field<'_>> {
    loop {
        let tag = varint(&mut message)?;
        let value = match tag & 7 {
            0 => Field::Number(varint(&mut message)?),
            2 => {
                let length = usize::try_from(varint(&mut message)?).ok()?;
                let value = message.get(..length)?;
                message = message.get(length..)?;
                Field::Bytes(value)
            }
            _ => return None,
        };
        if tag >> 3 == wanted {
            return Some(value);
        }
    }
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The first 80 bytes that etcd 3.4.23 wrote for a cluster of one.
    pub(in super::super) const LOG: &[u8] = &[
        0x04, 0, 0, 0, 0, 0, 0, 0x84, 0x08, 0x04, 0x10, 0, 0, 0, 0, 0, // a checksum, filled up
        0x20, 0, 0, 0, 0, 0, 0, 0, 0x08, 0x01, 0x10, 0x9f, 0xb4, 0xe5, 0xfc, 0x05, 0x1a, 0x16, 0x08, 0xa8, 0x91, 0xaa, 0x8a,
        0xa7, 0xe0, 0xd1, 0xd2, 0xda, 0x01, 0x10, 0x96, 0xfa, 0xcb, 0x90, 0xf5, 0xf2, 0xb4, 0xf8, 0xff, 0x01, // whose it is
        0x0d, 0, 0, 0, 0, 0, 0, 0x83, 0x08, 0x05, 0x10, 0xea, 0xa8, 0xe6, 0x15, 0x1a, 0x04, 0x08, 0, 0x10, 0, 0, 0, 0,
    ];
    /// As that etcd listed itself.
    pub(in super::super) const IDS: MemberIds = MemberIds { member: 15_755_076_947_241_765_032, cluster: 0xfff0_d397_5212_fd16 };

    #[test]
    fn a_log_says_whose_it_is_or_nothing() {
        assert_eq!(read(LOG), Some(IDS));
        for length in 0..56 {
            assert_eq!(read(&LOG[..length]), None, "{length}");
        }
        assert_eq!(read(&[0xff; 512]), None);
        assert_eq!(read(&[0; 512]), None, "a file that is only reserved");
    }
}
