//! A unified diff of two texts. Pure.
//!
//! Myers' algorithm is the crate's; its text front end would bring every other algorithm it has into the binary.

use std::fmt::Write as _;

use similar::algorithms::{Capture, Replace, myers};
use similar::{DiffOp, DiffTag, group_diff_ops};

/// Unchanged lines shown around a change.
const CONTEXT: usize = 3;

/// The difference as `diff -u` writes it, without its two header lines; empty where there is none.
pub(crate) fn hunks(before: &str, after: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.split_inclusive('\n').collect(), after.split_inclusive('\n').collect());
    let mut captured = Replace::new(Capture::new());
    let Ok(()) = myers::diff(&mut captured, old.as_slice(), 0..old.len(), new.as_slice(), 0..new.len());
    let mut out = String::new();
    for group in group_diff_ops(captured.into_inner().into_ops(), CONTEXT) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let removed = range(first.old_range().start, last.old_range().end);
        let added = range(first.new_range().start, last.new_range().end);
        // Writing to a String cannot fail.
        let _ = writeln!(out, "@@ -{removed} +{added} @@");
        for op in &group {
            hunk(&mut out, op, &old, &new);
        }
    }
    out
}

fn hunk(out: &mut String, op: &DiffOp, old: &[&str], new: &[&str]) {
    if op.tag() == DiffTag::Equal {
        lines(out, ' ', old.get(op.old_range()).unwrap_or_default());
    } else {
        lines(out, '-', old.get(op.old_range()).unwrap_or_default());
        lines(out, '+', new.get(op.new_range()).unwrap_or_default());
    }
}

fn lines(out: &mut String, sign: char, lines: &[&str]) {
    for line in lines {
        out.push(sign);
        out.push_str(line);
        if !line.ends_with('\n') {
            out.push_str("\n\\ No newline at end of file\n");
        }
    }
}

/// `start,length` counted from 1; the length is left out where it is 1, and an empty range starts before its place.
fn range(start: usize, end: usize) -> String {
    match end - start {
        0 => format!("{start},0"),
        1 => format!("{}", start + 1),
        length => format!("{},{length}", start + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_that_of_diff_u() {
        // The right-hand sides were printed by GNU diff -u (headers left out).
        let numbers = |skip: &[u32]| (1..=20).filter(|n| !skip.contains(n)).map(|n| format!("{n}\n")).collect::<String>();
        for (before, after, expected) in [
            ("", "", ""),
            ("a\n", "a\n", ""),
            ("", "x\n", "@@ -0,0 +1 @@\n+x\n"),
            ("x\ny\n", "", "@@ -1,2 +0,0 @@\n-x\n-y\n"),
            ("a\nb\n", "a\nc", "@@ -1,2 +1,2 @@\n a\n-b\n+c\n\\ No newline at end of file\n"),
            (
                &numbers(&[]),
                &numbers(&[2, 15]),
                "@@ -1,5 +1,4 @@\n 1\n-2\n 3\n 4\n 5\n@@ -12,7 +11,6 @@\n 12\n 13\n 14\n-15\n 16\n 17\n 18\n",
            ),
        ] {
            assert_eq!(hunks(before, after), expected);
        }
    }
}
