//! How far a disk is read before it counts as blank: which places, in which order, and what is made of them. Pure but for the
//! reader that it is given; `probe.rs` gives the disk's.
//!
//! Nobody can read a large volume whole while a node waits for it. So everything near both ends is read, then the beginning of
//! each place where partitioning tools put a partition, then places spread evenly over the disk. docs/volumes.md lists the same
//! for operators.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::signatures::{Signature, find_inside, find_mark, is_zero};
use crate::clock::Stopwatch;
use crate::gather::Gather;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const GIB: u64 = 1024 * MIB;
const SECTOR: u64 = 512;

/// How much of either end is read whole, in bytes.
const DEPTH: u64 = 16 * MIB;
/// What is read of a place where something may begin, in bytes: superblocks lie up to 64 KiB in (btrfs, gfs2, ReiserFS).
const PIECE: u64 = 72 * KIB;
/// Tools of today begin partitions at multiples of 1 MiB (libparted, util-linux, gdisk): so far each of them is read.
const EVERY_MIB: u64 = 2 * GIB;
/// The cylinder that tools without LBA aligned to: 255 heads of 63 sectors. BIOS addresses have room for 1024 of them.
const CYLINDER: u64 = 255 * 63 * SECTOR;
const CYLINDERS: u64 = 1024;
/// Beyond that, whole numbers of GiB are read, and the MiB behind each, where a first partition of 1 MiB + n GiB ends.
const EVERY_GIB: u64 = 1024;
/// First sectors below 1 MiB: behind the shortest GPT of disks with 512 and 4096 bytes a sector, behind the first track, and
/// the alignments that tools chose for flash and RAID.
const FIRST_SECTORS: [u64; 8] = [34, 40, 48, 63, 64, 128, 256, 1024];
/// Evenly spread places that are read at least, whatever it takes, and at most.
const SAMPLES: (u64, u64) = (512, 4096);
/// How long a survey may have taken when it begins another sample beyond the least number.
const SAMPLING: Duration = Duration::from_secs(20);

/// What a survey came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// How many places were read.
    pub places: u64,
    /// Bytes that were read, and the disk's.
    pub bytes: u64,
    /// Size of the disk in bytes.
    pub size: u64,
    /// Evenly spread places that were left out for lack of time.
    pub left_out: u64,
    /// The first thing that is not zero; a signature where there is one.
    pub found: Option<SurveyFinding>,
}

/// Something on a disk that was thought to be blank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SurveyFinding {
    /// A file system or the like, by the place where it begins.
    Begins(u64, Signature),
    /// The mark of something that ends about here, or lies around it.
    Mark(u64, Signature),
    /// Bytes of no known kind, by the first of them.
    Data(u64),
}

/// What is looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SurveyTarget {
    /// Bytes may be anything, as on a volume that is encrypted below the guest; only signatures count.
    pub unknown_data: bool,
    /// What stands in everything that our own interrupted mkfs left: its UUID.
    pub ours: Option<Vec<u8>>,
}

/// Shared by a survey and who waits for it: how many places were read. A survey that nobody waits for any more ends.
#[derive(Clone, Debug, Default)]
pub struct SurveyProgress(Arc<AtomicU64>);

impl SurveyProgress {
    /// Places read so far.
    #[must_use]
    pub fn places(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn is_awaited(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl Survey {
    /// `8,323 places were read, 615 of 102,400 MiB`.
    #[must_use]
    pub fn summary(&self) -> String {
        let (read, all) = (grouped(self.bytes.div_ceil(MIB)), grouped(self.size.div_ceil(MIB)));
        let places = grouped(self.places);
        let mut text = format!("{places} places were read, {read} of {all} MiB");
        if self.left_out > 0 {
            text.push_str(&format!(" ({} samples left out: the disk is slow)", grouped(self.left_out)));
        }
        text
    }
}

/// Reads a disk of `size` bytes by `read`, which fills a buffer from a place.
///
/// # Errors
/// The first error of the reader, or that nobody waits for the answer.
pub fn survey(
    size: u64,
    wanted: &SurveyTarget,
    watch: &Stopwatch,
    progress: &SurveyProgress,
    read: impl FnMut(&mut [u8], u64) -> io::Result<()>,
) -> io::Result<Survey> {
    let buffer = vec![0; usize::try_from(MIB).unwrap_or_default()];
    let mut reading = Reading { read, wanted, progress, buffer, survey: Survey { size, ..Survey::default() } };
    for (at, length) in near(size) {
        reading.visit(at, length)?;
        if reading.is_named() {
            return Ok(reading.survey);
        }
    }
    if reading.is_settled() {
        return Ok(reading.survey);
    }
    for at in beginnings(size) {
        reading.visit(at, PIECE)?;
        if reading.is_settled() {
            return Ok(reading.survey);
        }
    }
    let samples = samples(size);
    for (nth, at) in samples.iter().enumerate() {
        if nth as u64 >= SAMPLES.0 && watch.elapsed() >= SAMPLING {
            reading.survey.left_out = (samples.len() - nth) as u64;
            break;
        }
        reading.visit(*at, PIECE)?;
        if reading.is_settled() {
            break;
        }
    }
    Ok(reading.survey)
}

struct Reading<'a, R> {
    read: R,
    wanted: &'a SurveyTarget,
    progress: &'a SurveyProgress,
    buffer: Vec<u8>,
    survey: Survey,
}

impl<R: FnMut(&mut [u8], u64) -> io::Result<()>> Reading<'_, R> {
    /// A signature was found: nothing else can change what becomes of the disk.
    fn is_named(&self) -> bool {
        matches!(self.survey.found, Some(SurveyFinding::Begins(..) | SurveyFinding::Mark(..)))
    }

    /// Nothing else that is found can change what becomes of the disk.
    fn is_settled(&self) -> bool {
        self.is_named() || (self.survey.found.is_some() && !self.wanted.unknown_data)
    }

    /// How many bytes there are from a place on, up to `length`.
    fn there(&self, at: u64, length: u64) -> usize {
        let there = self.survey.size.saturating_sub(at).min(length);
        usize::try_from(there).unwrap_or_default().min(self.buffer.len())
    }

    fn fill(&mut self, at: u64, length: u64) -> io::Result<usize> {
        if !self.progress.is_awaited() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "the scan was cancelled"));
        }
        let there = self.there(at, length);
        let Some(bytes) = self.buffer.get_mut(..there) else { return Ok(0) };
        (self.read)(bytes, at)?;
        self.survey.bytes += there as u64;
        self.progress.0.fetch_add(1, Ordering::Relaxed);
        Ok(there)
    }

    fn visit(&mut self, at: u64, length: u64) -> io::Result<()> {
        let mut there = self.fill(at, length)?;
        self.survey.places += 1;
        let bytes = self.buffer.get(..there).unwrap_or_default();
        if is_zero(bytes) {
            return Ok(());
        }
        let first = at + bytes.iter().position(|byte| *byte != 0).unwrap_or_default() as u64;
        // A whole MiB says more; where everything is noise it would be the whole disk.
        if length < MIB && !self.wanted.unknown_data {
            there = self.fill(at, MIB)?;
        }
        let bytes = self.buffer.get(..there).unwrap_or_default();
        if let Some(ours) = &self.wanted.ours
            && bytes.windows(ours.len().max(1)).any(|window| window == ours)
        {
            return Ok(());
        }
        // Marks have places that are multiples of up to 4 KiB.
        let mark = || find_mark(bytes).filter(|_| there as u64 > PIECE && at.is_multiple_of(MIB));
        if let Some(signature) = find_inside(bytes) {
            self.survey.found = Some(SurveyFinding::Begins(at, signature));
        } else if let Some((inside, signature)) = mark() {
            self.survey.found = Some(SurveyFinding::Mark(at + inside as u64, signature));
        } else if self.survey.found.is_none() {
            self.survey.found = Some(SurveyFinding::Data(first));
        }
        Ok(())
    }
}

/// Both ends, whole; before that, for the sake of a name for what is there, where partitions begin in the first of them.
fn near(size: u64) -> Vec<(u64, u64)> {
    let sectors = FIRST_SECTORS.iter().map(|sector| sector * SECTOR);
    let cylinders = (1..=DEPTH / CYLINDER).flat_map(|nth| [nth * CYLINDER, nth * CYLINDER + 63 * SECTOR]);
    let pieces = sectors.chain(cylinders).filter(|at| *at < size).map(|at| (at, PIECE));
    let tail = size.saturating_sub(DEPTH) / MIB;
    let head = 0..(DEPTH / MIB).min(size.div_ceil(MIB));
    let tail = tail.max(head.end)..size.div_ceil(MIB);
    pieces.chain(head.chain(tail).map(|mib| (mib * MIB, MIB))).collect()
}

/// Where partitions begin beyond the first end, each place once, in their order on the disk.
fn beginnings(size: u64) -> BTreeSet<u64> {
    let aligned = (0..EVERY_MIB / MIB).map(|mib| mib * MIB);
    let cylinders = (1..=CYLINDERS).flat_map(|nth| [nth * CYLINDER, nth * CYLINDER + 63 * SECTOR]);
    let round = (1..=EVERY_GIB).flat_map(|gib| [gib * GIB, gib * GIB + MIB]);
    // `mkpart 0% 50%` is rounded to the MiB on either side.
    let percent = (1..100).map(|percent| size / 100 * percent / MIB * MIB).flat_map(|at| [at, at + MIB]);
    let all = aligned.chain(cylinders).chain(round).chain(percent);
    all.filter(|at| *at >= DEPTH && *at < size.saturating_sub(DEPTH)).gather()
}

/// Evenly spread places at multiples of 1 MiB, in such an order that each beginning of the list is spread evenly, too.
fn samples(size: u64) -> Vec<u64> {
    let taken = beginnings(size);
    let (_, most) = SAMPLES;
    let bits = most.trailing_zeros();
    let mut seen = BTreeSet::new();
    let place = |nth: u64| {
        let turned = nth.reverse_bits() >> (u64::BITS - bits);
        let at = u128::from(size) * u128::from(turned) / u128::from(most);
        u64::try_from(at).unwrap_or_default() / MIB * MIB
    };
    let is_new = |at: &u64| *at >= DEPTH && *at < size.saturating_sub(DEPTH) && !taken.contains(at) && seen.insert(*at);
    (0..most).map(place).filter(is_new).collect()
}

/// A place on a disk in words: `1 MiB`, `sector 63`.
#[must_use]
pub fn place(at: u64) -> String {
    match at {
        0 => "its beginning".to_owned(),
        at if at.is_multiple_of(GIB) => format!("{} GiB", at / GIB),
        at if at.is_multiple_of(MIB) => format!("{} MiB", at / MIB),
        at if at.is_multiple_of(SECTOR) => format!("sector {}", at / SECTOR),
        at => format!("byte {at}"),
    }
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
#[path = "survey_tests.rs"]
mod tests;
