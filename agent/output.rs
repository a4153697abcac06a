//! Standard output and standard error of commands.
//!
//! In: what a command has to say. Out: bytes on standard output or standard error. Never: a message for the journal, or a control sequence of somebody
//! else's on a terminal.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};

use crate::error::{Error, Result};
use crate::http::without_userinfo;
use crate::programs::tool::{line, output_of};
use crate::report::text::harmless;

/// Writes to standard output. A terminal is shown what it would else obey; a pipe gets every byte. A reader that went away (`| head`)
/// is no error.
///
/// # Errors
/// If standard output takes no more for another reason.
pub fn print(text: &str) -> Result<()> {
    pass_on(text).map(drop)
}

/// The same for a page that sets colours of its own, which are the only commands to a terminal that pass.
///
/// # Errors
/// As [`print`].
pub(super) fn print_styled(text: &str) -> Result<()> {
    put(&if std::io::stdout().is_terminal() { Cow::Owned(harmless_but_styles(text)) } else { Cow::Borrowed(text) }).map(drop)
}

fn harmless_but_styles(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut pieces = text.split("\u{1b}[");
    out += &harmless(pieces.next().unwrap_or_default());
    for piece in pieces {
        // A style: numbers up to an m (ECMA-48, 8.3.117).
        let end = piece.find(|c: char| !c.is_ascii_digit() && c != ';').unwrap_or(piece.len());
        match piece.split_at(end) {
            (numbers, rest) if rest.starts_with('m') => {
                out += &format!("\u{1b}[{numbers}{}", harmless(rest));
            }
            _ => out += &harmless(&format!("\u{1b}[{piece}")),
        }
    }
    out
}

/// The same; whether there is still a reader, for who would go on forever.
pub(super) fn pass_on(text: &str) -> Result<bool> {
    put(&if std::io::stdout().is_terminal() { Cow::Owned(harmless(text)) } else { Cow::Borrowed(text) })
}

fn put(text: &str) -> Result<bool> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Error::from(error).context("writing to standard output")),
    }
}

/// Runs a small tool, and says the command once it is done.
pub(super) fn carry_out<S: AsRef<str>>(tool: &str, arguments: &[S]) -> Result<()> {
    output_of(tool, arguments, "")?;
    print(&format!("{}\n", line(tool, arguments)))
}

/// Writes to standard error what the reader should know and no error is.
pub(super) fn note(text: &str) {
    // Nobody is left to tell where standard error is gone too.
    let _ = writeln!(std::io::stderr().lock(), "heat-node-agent: note: {}", harmless(&without_userinfo(text)));
}

/// Writes the chain of an error to standard error, a line each.
pub fn print_error(error: &Error) {
    let mut stderr = std::io::stderr().lock();
    for (depth, line) in error.lines().iter().enumerate() {
        let indent = if depth == 0 { "heat-node-agent: " } else { "  " };
        // Nobody is left to tell where standard error is gone too.
        let _ = writeln!(stderr, "{indent}{}", harmless(&without_userinfo(line)));
    }
}

/// Writes what is wrong with the command line to standard error: an argument may hold anything.
pub fn print_usage(text: &str) {
    // Nobody is left to tell where standard error is gone too.
    let _ = write!(std::io::stderr().lock(), "{}", harmless(&without_userinfo(text)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_not_commanded_and_lines_stay_lines() {
        assert_eq!(harmless("a\tb\x1b[2J\r\nc"), "a\tb\\u{1b}[2J\\r\nc");
    }

    #[test]
    fn a_page_keeps_its_colours_and_nothing_else_commands() {
        let page = "\x1b[1;31mNOT RUNNING\x1b[0m\tx\n\x1b[2J\x1b[31\x1b]0;t\x07 \x1b[m";
        assert_eq!(harmless_but_styles(page), "\x1b[1;31mNOT RUNNING\x1b[0m\tx\n\\u{1b}[2J\\u{1b}[31\\u{1b}]0;t\\u{7} \x1b[m");
    }
}
