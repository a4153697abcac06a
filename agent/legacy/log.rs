//! What a tool says beside its output: lines on standard error as the replaced tools write them, with the time in UTC.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use nix::unistd::geteuid;

use super::machine::Machine;
use crate::clock::Clock;
use crate::files::Attributes;
use crate::report::text::harmless;

/// Lines of a tool.
pub(super) struct Log {
    clock: Clock,
    file: Option<File>,
}

impl Log {
    /// To standard error alone.
    pub(super) fn new() -> Self {
        Self { clock: Clock::system(), file: None }
    }

    /// To a file too, where the process is root's. A file that cannot be opened keeps nobody from working.
    pub(super) fn with_file(machine: &Machine, path: &Path) -> Self {
        let mode = machine.root.facts(path).ok().flatten().map_or(0o600, |facts| facts.mode & 0o777);
        let file = geteuid().is_root().then(|| machine.root.append(path, Attributes::mode(mode)).ok()).flatten();
        Self { clock: Clock::system(), file }
    }

    /// What goes its way.
    pub(super) fn info(&mut self, text: &str) {
        self.line("INFO", text);
    }

    /// What somebody should look at.
    pub(super) fn warning(&mut self, text: &str) {
        self.line("WARNING", text);
    }

    /// What keeps the tool from its work.
    pub(super) fn error(&mut self, text: &str) {
        self.line("ERROR", text);
    }

    fn line(&mut self, level: &str, text: &str) {
        let line = format!("[{}] [{level}] {}\n", self.clock.now().rfc3339(), harmless(text));
        // Nobody is left to tell where both are gone.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
        if let Some(file) = &mut self.file {
            let _ = file.write_all(line.as_bytes());
        }
    }
}
