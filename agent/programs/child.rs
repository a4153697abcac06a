//! Programs that a replaced tool starts: children in its own environment and directory, as its own would be.

use std::ffi::OsStr;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use super::tool::{Running, communicate};
use crate::error::{Context, Result};

/// A program to start.
#[derive(Debug)]
pub struct Child {
    program: PathBuf,
    command: Command,
}

/// What a child that ended wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// The status that it ended with, or the negative number of the signal that ended it.
    pub status: i32,
    /// Its standard output.
    pub out: Vec<u8>,
    /// Whether only the ends of what it wrote are kept.
    pub is_cut: bool,
    /// Its standard error.
    pub err: Vec<u8>,
}

impl Child {
    /// A program by its path, or by its name in PATH.
    #[must_use]
    pub fn new(program: impl AsRef<Path>) -> Self {
        let program = program.as_ref().to_owned();
        #[expect(clippy::disallowed_methods, reason = "this file is part of the module that starts programs")]
        let command = Command::new(&program);
        Self { program, command }
    }

    /// This program by the name of another tool, also where its file was replaced since it was started.
    #[must_use]
    pub fn own(name: &str) -> Self {
        Self::new("/proc/self/exe").called(name)
    }

    /// By another name than that of its file, which it finds as its first argument.
    #[must_use]
    pub fn called(mut self, name: &str) -> Self {
        self.command.arg0(name);
        self
    }

    /// With this argument.
    #[must_use]
    pub fn argument(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    /// With this variable.
    #[must_use]
    pub fn variable(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// In this directory.
    #[must_use]
    pub fn directory(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    /// Runs it to its end with this input; of each stream at most the last `most` bytes are kept.
    ///
    /// # Errors
    /// If it cannot be started or not be heard to the end.
    pub fn hear(mut self, input: &[u8], most: u64) -> Result<Heard> {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let mut running = self.start()?;
        let (out, err) = communicate(&mut running.0, input, most, most).context(|| self.doing())?;
        let ended = running.0.wait().context(|| self.doing())?;
        let is_cut = out.is_cut || err.is_cut;
        Ok(Heard { status: status(ended), out: out.bytes.into(), is_cut, err: err.bytes.into() })
    }

    /// Runs it to its end with our own streams; the status as in [`Heard`].
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn pass(mut self) -> Result<i32> {
        let mut running = self.start()?;
        running.0.wait().map(status).context(|| self.doing())
    }

    fn start(&mut self) -> Result<Running> {
        self.command.spawn().map(Running).context(|| self.doing())
    }

    fn doing(&self) -> String {
        format!("running {}", self.program.display())
    }
}

fn status(ended: ExitStatus) -> i32 {
    ended.code().or_else(|| ended.signal().map(|signal| -signal)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Child {
        Child::new("sh").argument("-c").argument(script)
    }

    #[test]
    fn a_child_has_our_environment_and_what_is_given() {
        let heard = sh("cat; echo \"$PATH|$x\"; pwd; echo oh >&2; exit 3")
            .variable("x", "é")
            .directory(Path::new("/"))
            .hear(b"in\n", 1 << 20)
            .unwrap();
        let out = format!("in\n{}|é\n/\n", std::env::var("PATH").unwrap());
        assert_eq!(heard, Heard { status: 3, out: out.into_bytes(), is_cut: false, err: b"oh\n".to_vec() });
    }

    #[test]
    fn signals_are_negative_and_ends_are_kept() {
        assert_eq!(sh("kill -9 $$").hear(b"", 10).unwrap().status, -9);
        let heard = sh("echo 0123456789abc").hear(b"", 4).unwrap();
        assert_eq!((heard.out.as_slice(), heard.is_cut), (&b"abc\n"[..], true));
        assert!(Child::new("/no/such/program").hear(b"", 4).is_err());
        assert_eq!(sh("exit 7").pass(), Ok(7));
        assert_eq!(sh("echo $0").called("other").hear(b"", 9).unwrap().out, b"other\n");
    }
}
