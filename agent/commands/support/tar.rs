//! A tar archive of small regular files, as POSIX' ustar: every tar reads it. Pure. A crate would bring links, owners and extended headers, of
//! which none is needed here.

use std::io::Write;

/// A header, and what a file is padded to.
const BLOCK: usize = 512;
/// Longest name of a file.
const NAME: usize = 100;

/// Writes a file of mode 0600 and root's own, and says how many bytes that took. `modified`: seconds since the epoch. Of a name that is too long
/// the beginning is taken.
///
/// # Errors
/// If it cannot be written.
pub(super) fn add(to: &mut impl Write, name: &str, content: &[u8], modified: u64) -> std::io::Result<u64> {
    let padding = vec![0; content.len().next_multiple_of(BLOCK) - content.len()];
    for bytes in [&header(name, content.len(), modified), content, &padding] {
        to.write_all(bytes)?;
    }
    Ok((BLOCK + content.len() + padding.len()) as u64)
}

/// Writes the end of an archive.
///
/// # Errors
/// If it cannot be written.
pub(super) fn end(to: &mut impl Write) -> std::io::Result<u64> {
    to.write_all(&[0; 2 * BLOCK]).map(|()| 2 * BLOCK as u64)
}

fn header(name: &str, size: usize, modified: u64) -> Vec<u8> {
    let (zero, checksum) = (format!("{:07o}\0", 0), " ".repeat(8));
    let fields: [(&str, usize); 11] = [
        (name.get(..name.floor_char_boundary(NAME)).unwrap_or(name), NAME),
        ("0000600\0", 8),
        (&zero, 8),
        (&zero, 8),
        (&format!("{size:011o}\0"), 12),
        (&format!("{modified:011o}\0"), 12),
        (&checksum, 8),
        // A regular file, which is no link to anything.
        ("0", 1),
        ("", 100),
        ("ustar\u{0}00", 8),
        ("", BLOCK - 265),
    ];
    let mut header = Vec::with_capacity(BLOCK);
    for (text, width) in fields {
        let end = header.len() + width;
        header.extend_from_slice(text.as_bytes());
        header.resize(end, 0);
    }
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    let sum = format!("{sum:06o}\0 ");
    for (byte, digit) in header.iter_mut().skip(148).zip(sum.bytes()) {
        *byte = digit;
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::tool::output_of;

    #[test]
    fn tar_takes_the_archive() {
        let dir = tempfile::tempdir().unwrap();
        let long = "x".repeat(120);
        let path = dir.path().join("a.tar");
        #[expect(clippy::disallowed_methods, reason = "a file of a test")]
        let mut file = std::fs::File::create(&path).unwrap();
        let files = [("s/a", &b"hello\n"[..]), ("s/empty", b""), (&*long, &[b'x'; 1025])];
        let sizes = files.map(|(name, content)| add(&mut file, name, content, 1_772_366_400).unwrap());
        assert_eq!((sizes, end(&mut file).unwrap()), ([1024, 512, 2048], 1024));
        let path = path.to_str().unwrap();
        let listed = output_of("tar", &["-tvf", path, "--numeric-owner"], "").unwrap();
        let rows: Vec<Vec<&str>> = listed.lines().map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(rows[0][..3], ["-rw-------", "0/0", "6"]);
        assert!(rows[0][3].starts_with("2026-03-0") && rows[0][5] == "s/a", "{listed}");
        assert_eq!((rows[1][2], rows[2][2], rows[2][5].len()), ("0", "1025", NAME));
        assert_eq!(output_of("tar", &["-xOf", path, "s/a"], "").unwrap(), "hello\n");
    }
}
