//! os-collect-config: metadata is collected, kept in files, and a command is run where it changed (heat-protocol.md 1).

mod cache;
mod ec2;
mod options;
mod sources;

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use super::arguments::{self, RELEASE, ToolResult};
use super::log::Log;
use super::machine::Machine;
use super::polled::{POLLED, Polled, REPLACED};
use crate::backoff::{Backoff, random};
use crate::clock::Clock;
use crate::collect::hide_boot_copies;
use crate::error::{Context, Error, Result};
use crate::metadata::python_json_lines;
use crate::output::print;
use crate::process::runtime;
use crate::programs::child::Child;
use cache::{Cache, Stored};
use options::{Options, SWITCHES};
use sources::{Owner, Sources};

/// As the original's, the command does not end with the terminal: it may be a long one.
const SHIELDED: &str = "trap '' HUP; exec /bin/sh -c \"$0\"";

/// Runs the tool.
pub(super) fn run(arguments: &[String]) -> ToolResult {
    let Some(given) = arguments::read("os-collect-config", " [COLLECTOR ...]", SWITCHES, arguments)? else { return Ok(0) };
    if given.has("version") {
        print(&format!("{RELEASE} (heat-node-agent {})\n", env!("CARGO_PKG_VERSION")))?;
        return Ok(0);
    }
    let machine = Machine::new()?;
    let options = Options::load(&machine, given)?;
    if options.print_cachedir {
        print(&format!("{}\n", options.cachedir))?;
        return Ok(0);
    }
    let clock = Clock::system();
    let sources = Sources::new(&options, &clock)?;
    let tool = Tool { machine, options, sources, clock, log: Log::new(), status: 0 };
    Ok(runtime()?.block_on(tool.serve())?)
}

struct Tool {
    machine: Machine,
    options: Options,
    sources: Sources,
    clock: Clock,
    log: Log,
    /// Of the last command that failed.
    status: u8,
}

impl Tool {
    /// Until it is ended, or all is done that was asked for.
    async fn serve(mut self) -> Result<u8> {
        let mut reload = signal(SignalKind::hangup()).context(|| "waiting for SIGHUP")?;
        if !self.options.one_time {
            let splay = self.options.splay.mul_f64(random());
            self.clock.wait(splay).await;
        }
        let mut pauses = self.pauses();
        loop {
            let Some(command) = self.options.command.clone().filter(|_| !self.options.print) else {
                let cache = Cache { machine: &self.machine, options: &self.options };
                let documents = self.sources.collect(&cache, &Owner::of(&cache), false, &mut self.log).await;
                print(&format!("{}\n", python_json_lines(&documents.into_iter().collect(), 1)))?;
                return Ok(0);
            };
            let is_changed = match self.round(&command).await {
                // A disk that is full for now: the next poll tries again.
                Err(error) if !self.options.one_time => {
                    self.log.error(&error.to_string());
                    false
                }
                done => done?,
            };
            if self.options.one_time {
                return Ok(self.status);
            }
            // Where something changed more may follow at once: deployments wait for each other (heat-protocol.md R7).
            // Also behind a command that failed: what mends it may be in them.
            let is_reloaded = self.reload(false);
            if is_changed || is_reloaded {
                pauses = self.pauses();
            }
            tokio::select! {
                () = self.clock.wait(pauses.next_pause()) => {}
                _ = reload.recv() => {
                    self.reload(true);
                    pauses = self.pauses();
                }
            }
        }
    }

    fn pauses(&self) -> Backoff {
        let (first, longest) = self.options.pauses;
        // A pause of nothing would ask without end.
        Backoff::new(first.max(Duration::from_millis(100)), longest.max(Duration::from_millis(100)))
    }

    /// Collects once, and runs the command where something changed. Whether it did, and the command succeeded.
    async fn round(&mut self, command: &str) -> Result<bool> {
        let cache = Cache { machine: &self.machine, options: &self.options };
        for line in hide_boot_copies(&self.machine.root) {
            self.log.info(&line);
        }
        let owner = Owner::of(&cache);
        if owner.is_another {
            self.log.warning(&format!("what is kept in {} is another server's: it is not used", self.options.cachedir));
            cache.forget()?;
        }
        let begun = Polled::seconds(self.clock.now());
        let documents = self.sources.collect(&cache, &owner, true, &mut self.log).await;
        let polled = if self.sources.have_just_listed(&self.options) { begun.to_string() } else { String::new() };
        let Stored { paths, changed } = cache.store(&documents, &mut self.log)?;
        cache.claim(owner.instance.as_ref())?;
        if changed.is_empty() && !self.options.force {
            return Ok(false);
        }
        let files = paths.join(":");
        self.log.info(&format!("Executing {command} with OS_CONFIG_FILES={files}"));
        let shell = Child::new("/bin/sh").argument("-c").argument(SHIELDED).argument(command);
        let shell = shell.variable("OS_CONFIG_FILES", files).variable(POLLED, polled);
        let status = shell.variable(REPLACED, self.sources.replaced(&self.options).join("\n")).pass()?;
        if status == 0 {
            cache.commit(&changed)?;
        } else {
            self.log.error(&format!("{command} ended with status {status}: it is run again with the next poll"));
            // As the system cuts it.
            self.status = status.to_le_bytes()[0];
        }
        Ok(status == 0 && !changed.is_empty())
    }

    /// Reads the settings anew, and takes them over where they are others, or that is asked for. Whether it did. Those that cannot be used leave what
    /// there was.
    fn reload(&mut self, is_asked: bool) -> bool {
        let loaded = Options::load(&self.machine, self.options.values.given().clone());
        let taken = loaded.and_then(|options| {
            if options.digest == self.options.digest && !is_asked {
                return Ok(false);
            }
            // A file that is empty or missing for a moment: the metadata, with its passwords, would go to the output.
            if options.print || options.command.is_none() {
                return Err(Error::permanent("they name no command any more"));
            }
            self.sources = self.sources.renewed(&options)?;
            self.options = options;
            Ok(true)
        });
        taken.unwrap_or_else(|error| {
            self.log.error(&format!("the settings stay as they were: {error}"));
            false
        })
    }
}

/// A command line, for tests.
#[cfg(test)]
fn read(line: &[&str]) -> arguments::Given {
    let line: Vec<_> = line.iter().map(|&word| word.to_owned()).collect();
    arguments::read("os-collect-config", "", SWITCHES, &line).unwrap().unwrap()
}
