//! A tar archive of small regular files, as POSIX' ustar: every tar reads it. Pure. A crate would bring links, owners and extended headers, of
//! which none is needed here.

/// A header, and what a file is padded to.
const BLOCK: usize = 512;
/// Longest name of a file.
const NAME: usize = 100;

/// The whole archive: a file each with its name and content, all of mode 0600 and root's own. `modified`: seconds since the epoch. Of a name that is too long
/// the beginning is taken.
pub(super) fn archive<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>, modified: u64) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, content) in files {
        out.extend_from_slice(&header(name, content.len(), modified));
        out.extend_from_slice(content);
        out.resize(out.len().next_multiple_of(BLOCK), 0);
    }
    out.resize(out.len() + 2 * BLOCK, 0);
    out
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
        std::fs::write(&path, archive([("s/a", &b"hello\n"[..]), ("s/empty", b""), (&*long, &[b'x'; 1025])], 1_772_366_400))
            .unwrap();
        let path = path.to_str().unwrap();
        let listed = output_of("tar", &["-tvf", path, "--numeric-owner"], "").unwrap();
        let rows: Vec<Vec<&str>> = listed.lines().map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(rows[0][..3], ["-rw-------", "0/0", "6"]);
        assert!(rows[0][3].starts_with("2026-03-0") && rows[0][5] == "s/a", "{listed}");
        assert_eq!((rows[1][2], rows[2][2], rows[2][5].len()), ("0", "1025", NAME));
        assert_eq!(output_of("tar", &["-xOf", path, "s/a"], "").unwrap(), "hello\n");
    }
}
