//! Standard output and standard error of commands.

use std::io::Write;

use crate::error::{Error, Result};

/// Writes to standard output. A reader that went away (`| head`) is no error.
///
/// # Errors
/// If standard output takes no more for another reason.
pub fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::from(error).context("writing to standard output"))
        }
        _ => Ok(()),
    }
}

/// Writes the chain of an error to standard error, a line each.
pub fn print_error(error: &Error) {
    let mut stderr = std::io::stderr().lock();
    for (depth, line) in error.lines().iter().enumerate() {
        let indent = if depth == 0 { "heat-node-agent: " } else { "  " };
        // Nobody is left to tell where standard error is gone too.
        let _ = writeln!(stderr, "{indent}{line}");
    }
}
