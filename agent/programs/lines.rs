//! A tool whose output has no end that anybody knows: it is taken a line at a time, as it comes, and never held whole.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use super::tool::{Running, line, not_installed};
use crate::error::{Context, Error, Result};

/// A line of a tool's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// The line without its end.
    Whole(&'a [u8]),
    /// It was longer than is taken; nothing of it is known.
    TooLong,
}

/// Runs a tool and hands on each line of its standard output until it ends or `take` says that there is nobody to hear more (`false`).
/// What it says on standard error goes to ours.
///
/// # Errors
/// If it is not installed, cannot be heard, or fails; whatever `take` fails with.
pub fn each<S: AsRef<str>>(
    tool: &str,
    arguments: &[S],
    longest: usize,
    mut take: impl FnMut(Line<'_>) -> Result<bool>,
) -> Result<()> {
    let doing = || line(tool, arguments);
    let Some(mut running) = Running::start(tool, arguments, [Stdio::null(), Stdio::piped(), Stdio::inherit()])? else {
        return Err(not_installed(tool, arguments));
    };
    let Some(stdout) = running.0.stdout.take() else { return Ok(()) };
    if !lines(BufReader::new(stdout), longest, &mut take).map_err(|error| error.context(doing()))? {
        return Ok(());
    }
    let ended = running.0.wait().context(doing)?;
    if ended.success() { Ok(()) } else { Err(Error::permanent(format!("it failed: {ended}")).context(doing())) }
}

/// Whether the end was reached, and not the listener's patience.
fn lines(mut from: impl BufRead, longest: usize, take: &mut impl FnMut(Line<'_>) -> Result<bool>) -> Result<bool> {
    let mut read = Vec::new();
    let mut is_rest = false;
    loop {
        read.clear();
        // One byte more than the longest line: its end.
        from.by_ref().take(longest as u64 + 1).read_until(b'\n', &mut read).context(|| "reading the output")?;
        let is_end = read.last() == Some(&b'\n');
        if read.is_empty() {
            return Ok(true);
        }
        let whole = if is_end { read.get(..read.len() - 1).unwrap_or_default() } else { &read };
        let goes_on = match (is_rest, is_end || read.len() <= longest) {
            (false, true) => take(Line::Whole(whole))?,
            (false, false) => take(Line::TooLong)?,
            (true, _) => true,
        };
        if !goes_on {
            return Ok(false);
        }
        is_rest = !is_end && read.len() > longest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(text: &[u8], longest: usize) -> Vec<String> {
        let mut all = Vec::new();
        let end = lines(text, longest, &mut |line| {
            all.push(match line {
                Line::Whole(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                Line::TooLong => "(too long)".to_owned(),
            });
            Ok(true)
        });
        assert_eq!(end, Ok(true));
        all
    }

    #[test]
    fn a_line_that_is_too_long_is_one_line_however_long_it_is() {
        assert_eq!(received(b"a\n\nbcd\nend", 3), ["a", "", "bcd", "end"]);
        assert_eq!(
            received(b"a\nabcd\nb\nabcdefghijklm\nc\nabcdefgh", 3),
            ["a", "(too long)", "b", "(too long)", "c", "(too long)"]
        );
        assert_eq!(received(b"", 3), [""; 0]);
    }

    /// Without a bound this reads until there is no memory left.
    #[test]
    fn a_tool_without_an_end_is_ended_when_nobody_hears_it_and_takes_no_memory() {
        let (mut count, mut long) = (0, 0);
        each("sh", &["-c", "head -c 50000000 /dev/zero; echo; while :; do echo y; done"], 4096, |line| {
            long += usize::from(line == Line::TooLong);
            count += 1;
            Ok(count < 1000)
        })
        .unwrap();
        assert_eq!((count, long), (1000, 1));
    }

    #[test]
    fn one_that_fails_or_is_not_there_is_named() {
        let error = each("sh", &["-c", "exit 3"], 9, |_| Ok(true)).unwrap_err();
        assert_eq!(error.to_string(), "sh -c exit 3: it failed: exit status: 3");
        let error = each("no-such-tool", &["-x"], 9, |_| Ok(true)).unwrap_err();
        assert_eq!(error.to_string(), "no-such-tool -x: no-such-tool is not installed");
    }
}
