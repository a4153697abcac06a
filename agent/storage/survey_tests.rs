use std::collections::BTreeMap;

use super::*;
use crate::clock::{Clock, Timestamp};

/// A disk of zeros with these bytes at these places.
#[derive(Clone, Default)]
struct Disk {
    size: u64,
    content: BTreeMap<u64, Vec<u8>>,
}

impl Disk {
    fn of(size: u64, content: &[(u64, &[u8])]) -> Self {
        Self { size, content: content.iter().map(|(at, bytes)| (*at, bytes.to_vec())).collect() }
    }

    fn read(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        let end = at + buffer.len() as u64;
        if end > self.size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buffer.fill(0);
        for (from, bytes) in self.content.range(..end) {
            for (byte, place) in bytes.iter().zip(*from..) {
                if let Some(inside) = place.checked_sub(at).and_then(|inside| buffer.get_mut(usize::try_from(inside).unwrap())) {
                    *inside = *byte;
                }
            }
        }
        Ok(())
    }

    fn survey(&self, wanted: &SurveyTarget) -> Survey {
        let progress = SurveyProgress::default();
        let watch = Clock::manual(Timestamp(0)).start();
        survey(self.size, wanted, &watch, &progress.clone(), |buffer, at| self.read(buffer, at)).unwrap()
    }
}

const BLANK: SurveyTarget = SurveyTarget { unknown_data: false, ours: None };
const NOISE: SurveyTarget = SurveyTarget { unknown_data: true, ours: None };

/// Bytes with their places.
type Bytes = &'static [(u64, &'static [u8])];

/// Each kind with the bytes that it has from its beginning on.
const KINDS: &[(&str, Bytes)] = &[
    ("xfs", &[(0, b"XFSB")]),
    ("ext4", &[(1080, b"\x53\xef"), (1116, b"\x04\0\0\0\x42\0\0\0")]),
    ("ext2", &[(1080, b"\x53\xef")]),
    ("btrfs", &[(65_600, b"_BHRfS_M")]),
    ("gfs2", &[(65_536, b"\x01\x16\x19\x70")]),
    ("reiserfs", &[(65_588, b"ReIsEr")]),
    ("jfs", &[(32_768, b"JFS1")]),
    ("f2fs", &[(1024, b"\x10\x20\xf5\xf2")]),
    ("ntfs", &[(3, b"NTFS    "), (510, b"\x55\xaa")]),
    ("vfat", &[(82, b"FAT32   "), (510, b"\x55\xaa")]),
    ("exfat", &[(3, b"EXFAT   "), (510, b"\x55\xaa")]),
    ("nilfs2", &[(1024, b"\x02\0\0\0\0\0\x34\x34")]),
    ("swap", &[(4086, b"SWAPSPACE2")]),
    ("LVM2_member", &[(512, b"LABELONE"), (536, b"LVM2 001")]),
    ("crypto_LUKS", &[(0, b"LUKS\xba\xbe\0\x02")]),
    ("linux_raid_member", &[(4096, b"\xfc\x4e\x2b\xa9\x01")]),
    ("bcache", &[(4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81")]),
    ("iso9660", &[(32_769, b"CD001")]),
    ("squashfs", &[(0, b"hsqs")]),
    ("ceph_bluestore", &[(0, b"bluestore block device\n")]),
    ("dos", &[(510, b"\x55\xaa"), (450, b"\x83"), (458, b"\x01\0\0\0")]),
];

/// Where partitions begin, on a disk of 100 GiB.
const STARTS: &[(u64, &str)] = &[
    (34 * SECTOR, "sector 34"),
    (40 * SECTOR, "sector 40"),
    (63 * SECTOR, "sector 63"),
    (128 * SECTOR, "sector 128"),
    (MIB, "1 MiB"),
    (7 * MIB, "7 MiB"),
    (CYLINDER, "sector 16065"),
    (513 * MIB, "513 MiB"),
    (1000 * CYLINDER, "sector 16065000"),
    (2 * GIB, "2 GiB"),
    (50 * GIB, "50 GiB"),
    (50 * GIB + MIB, "51201 MiB"),
    (33 * GIB, "33 GiB"),
    (100 * GIB - 5 * MIB, "102395 MiB"),
];

#[test]
fn whatever_begins_where_a_partition_may_begin_is_found_by_name() {
    for (kind, bytes) in KINDS {
        for (start, name) in STARTS {
            let content: Vec<_> = bytes.iter().map(|(at, bytes)| (start + at, *bytes)).collect();
            for wanted in [BLANK, NOISE] {
                let found = Disk::of(100 * GIB, &content).survey(&wanted).found;
                let Some(SurveyFinding::Begins(at, signature)) = &found else { panic!("{kind} at {name}: {found:?}") };
                assert_eq!((signature.kind, at, place(*at).as_str()), (*kind, start, *name));
            }
        }
    }
}

#[test]
fn a_blank_disk_is_read_in_thousands_of_places() {
    for (size, places, mib) in
        [(100 * GIB, 8_300..8_700, 570..640), (64 << 40, 10_000..14_000, 600..1000), (3 * GIB, 3_500..4_000, 290..310)]
    {
        let survey = Disk::of(size, &[]).survey(&BLANK);
        assert!(survey.found.is_none() && survey.left_out == 0);
        assert!(places.contains(&survey.places) && mib.contains(&(survey.bytes / MIB)), "{}", survey.summary());
    }
    // What both ends make up is read to the last byte.
    for size in [SECTOR, 3 * MIB + SECTOR, 16 * MIB, 32 * MIB] {
        let survey = Disk::of(size, &[(size - 1, b"x")]).survey(&BLANK);
        assert_eq!(survey.found, Some(SurveyFinding::Data(size - 1)), "{size}");
    }
    let survey = Survey { places: 7512, bytes: 570 * MIB, size: 100 * GIB, left_out: 1200, found: None };
    assert_eq!(survey.summary(), "7,512 places were read, 570 of 102,400 MiB (1,200 samples left out: the disk is slow)");
}

#[test]
fn data_of_no_known_kind_is_found_in_depth_and_in_any_larger_piece() {
    let size = 100 * GIB;
    for at in [SECTOR, MIB - 1, 9 * MIB + 77, 16 * MIB - 1, 700 * MIB + 5, size - 16 * MIB, size - 2 * MIB - 1, size - 1] {
        assert_eq!(Disk::of(size, &[(at, b"x")]).survey(&BLANK).found, Some(SurveyFinding::Data(at)), "{at}");
    }
    // No hole between samples is larger than a share of the disk.
    let mut all: Vec<u64> = samples(size).into_iter().chain(beginnings(size)).collect();
    all.sort_unstable();
    let widest = all.windows(2).map(|two| two[1] - two[0]).max().unwrap();
    assert!(widest <= size / 4096 + MIB, "{widest}");
    // However few of them there is time for.
    let mut few = samples(size);
    few.truncate(512);
    few.sort_unstable();
    assert!(few.windows(2).all(|two| two[1] - two[0] <= size / 512 * 3));
}

#[test]
fn marks_at_the_end_of_what_is_gone_are_known() {
    let size = 10 * GIB;
    let raid = size - 2 * MIB - 8192;
    for (at, bytes, kind) in [
        (raid, &b"\xfc\x4e\x2b\xa9\x01\0\0\0"[..], "linux_raid_member"),
        (size - 3 * MIB - 512, b"EFI PART\0\0\x01\0", "gpt"),
        (size - 3 * MIB - 4096 + 60, b"\x83\x74\x02\x6b", "drbd"),
        (size - 3 * MIB - 131_072, b"\x0c\xb1\xba\0\0\0\0\0", "zfs_member"),
        (5 * MIB, b"SKUL\xba\xbe\0\x02", "crypto_LUKS"),
        (MIB + 131_072, b"SKUL\xba\xbe\0\x02", "crypto_LUKS"),
        (5 * MIB + 131_072, b"\x0c\xb1\xba\0\0\0\0\0", "zfs_member"),
    ] {
        let found = Disk::of(size, &[(at, bytes)]).survey(&BLANK).found;
        let Some(SurveyFinding::Mark(_, signature) | SurveyFinding::Begins(_, signature)) = &found else {
            panic!("{kind}: {found:?}")
        };
        assert_eq!(signature.kind, kind);
    }
}

#[test]
fn noise_is_no_signature() {
    let noise = |size: u64, seed: u64| {
        let mut state = seed;
        move |buffer: &mut [u8], _: u64| {
            assert!(buffer.len() as u64 <= size);
            for eight in buffer.chunks_mut(8) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                eight.copy_from_slice(&(state ^ state >> 29).to_be_bytes()[..eight.len()]);
            }
            Ok(())
        }
    };
    let (progress, watch) = (SurveyProgress::default(), Clock::manual(Timestamp(0)).start());
    let survey = survey(4 * GIB, &NOISE, &watch, &progress.clone(), noise(4 * GIB, 7)).unwrap();
    assert_eq!(survey.found, Some(SurveyFinding::Data(34 * SECTOR)));
    // Two bytes that a format has make no signature of noise.
    for (at, bytes) in [(1080, &b"\x53\xef"[..]), (1030, b"\x34\x34"), (510, b"\x55\xaa")] {
        let mut content = vec![0xa5; 72 << 10];
        content[at..at + bytes.len()].copy_from_slice(bytes);
        assert_eq!(find_inside(&content), None, "{at}");
    }
}

#[test]
fn what_carries_the_uuid_that_was_drawn_for_it_is_ours() {
    let uuid = *b"\x0b\x7e\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee";
    let header = [&b"XFSB"[..], &[0; 28], &uuid].concat();
    let disk = Disk::of(8 * GIB, &[(2 * GIB, &header), (4 * GIB, b"log"), (4 * GIB + 300, &uuid)]);
    let ours = SurveyTarget { unknown_data: false, ours: Some(uuid.to_vec()) };
    assert_eq!(disk.survey(&ours).found, None);
    assert!(matches!(disk.survey(&BLANK).found, Some(SurveyFinding::Begins(at, _)) if at == 2 * GIB));
    let another = SurveyTarget { ours: Some(vec![7; 16]), ..BLANK };
    assert!(disk.survey(&another).found.is_some());
}

#[test]
fn a_slow_disk_is_read_as_far_as_it_must_be_and_that_is_said() {
    let (clock, progress) = (Clock::manual(Timestamp(0)), SurveyProgress::default());
    let read = |buffer: &mut [u8], _: u64| {
        clock.advance(Duration::from_millis(20));
        buffer.fill(0);
        Ok(())
    };
    let survey = survey(100 * GIB, &BLANK, &clock.start(), &progress.clone(), read).unwrap();
    let least = near(100 * GIB).len() + beginnings(100 * GIB).len();
    assert_eq!(survey.places, least as u64 + SAMPLES.0);
    assert!(survey.left_out > 3000 && survey.summary().contains("samples left out: the disk is slow"), "{}", survey.summary());
    assert_eq!(progress.places(), survey.places);
}

#[test]
fn a_survey_ends_at_an_error_or_when_nobody_waits() {
    let watch = Clock::manual(Timestamp(0)).start();
    let zeros = |buffer: &mut [u8], _: u64| {
        buffer.fill(0);
        Ok(())
    };
    let alone = SurveyProgress::default();
    assert_eq!(survey(GIB, &BLANK, &watch, &alone, zeros).unwrap_err().kind(), io::ErrorKind::Interrupted);
    let awaited = alone.clone();
    assert!(survey(GIB, &BLANK, &watch, &awaited, zeros).is_ok());
    let broken = |_: &mut [u8], at: u64| if at < 40 * MIB { Ok(()) } else { Err(io::Error::from_raw_os_error(5)) };
    assert!(survey(GIB, &BLANK, &watch, &awaited, broken).is_err());
}
