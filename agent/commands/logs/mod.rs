//! `logs [NAME] [--lines N] [--follow]`: the output of a deployment, with known secrets masked as it was stored; of a component the
//! journal of its unit, masked as it is read.
//!
//! In: a name (of a deployment or a component) and how much of its output is wanted. Out: that output, on standard output. Never:
//! a secret that the agent knows, or a control character that the terminal would obey.

pub(super) mod names;
mod unit;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use self::names::Selection;
use super::{document, note, print};
use crate::daemon::{self, NodeUnits};
use crate::deploy::{DeploymentRecord, DeploymentState, Journal};
use crate::error::{Context, Error, Result};
use crate::files::Tree;
use crate::http::without_userinfo;
use crate::process::exit;
use crate::programs::{OUTPUT, RESULT, job_dir};
use crate::report::text::escaped;
use crate::report::text::harmless;
use crate::settings::Settings;
use crate::watch::Watch;

/// The fallback poll for inotify.
const POLL: Duration = Duration::from_secs(1);

/// Bytes of the longest piece of a line that is in memory.
const PIECE: usize = 64 * 1024;

/// Entries of a component's journal, where the command line does not say how many.
const LINES: u32 = 500;

/// What the command line says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arguments<'a> {
    /// A deployment or a component; nothing: what there is.
    pub name: Option<&'a str>,
    /// The newest entries of a component's journal.
    pub lines: Option<u32>,
    /// To the end of the deployment, of a journal until interrupted.
    pub follow: bool,
}

/// Prints the output of the newest deployment of that name or id, or the journal of a component; without a name what there is.
///
/// # Errors
/// If nothing of that name is known, or the state directory cannot be read.
pub fn run(settings: &Settings, wanted: Arguments<'_>) -> Result<ExitCode> {
    let state = document::open_state(settings)?;
    let records = Journal::inspect(&state)?;
    let units = daemon::units_of_node(&state, &Tree::open(Path::new("/"))?);
    let Some(name) = wanted.name else { return print(&list(&state, &records, &units)?).map(|()| exit::OK) };
    let (record, beside) = match names::selected(name, &records, &units)? {
        Selection::Deployment(record, beside) => (record, beside),
        Selection::Unit(unit) => {
            let extent = unit::Extent { lines: wanted.lines.unwrap_or(LINES), follow: wanted.follow };
            return unit::show(settings, &unit, extent).map(|()| exit::OK);
        }
    };
    if let Some(unit) = beside {
        note(&format!("{name} is a deployment of this name; the component's journal: heat-node-agent logs {unit}"));
    }
    if wanted.lines.is_some() {
        return Err(Error::refused(format!("{name} is a deployment, whose output is shown whole"))
            .rule("--lines is for the journals of components"));
    }
    output(settings, &state, record, wanted.follow)
}

/// Prints the output of a deployment.
fn output(settings: &Settings, state: &Tree, record: &DeploymentRecord, follow: bool) -> Result<ExitCode> {
    if record.group == "kubernetes-node" {
        print("the agent itself did this; its messages: heat-node-agent logs agent\n")?;
        if record.outcome.is_none() {
            return Ok(exit::OK);
        }
    }
    let directory = settings.state_dir.join(job_dir(&record.job()));
    let watch = Watch::open();
    loop {
        watch.add(&directory);
        // Asked before the last line is read: whatever was written until then is shown.
        let ended = record.group == "kubernetes-node" || !follow || directory.join(RESULT).exists();
        // No link and no pipe is followed: what a script leaves in its directory is the script's.
        let output = job_dir(&record.job()).join(OUTPUT);
        match state.open_file(&output).context(|| format!("reading the output of deployment {}", record.name))? {
            Some(file) => {
                pass_on(BufReader::new(file), &watch, &directory, follow)?;
                return print(&unprinted(record)).map(|()| exit::OK);
            }
            None if ended => {
                let record = DeploymentRecord { outcome: Journal::whole(state, record)?, ..record.clone() };
                return print(&stored(&record)).map(|()| exit::OK);
            }
            None => watch.wait(POLL),
        }
    }
}

/// Line by line, to its end; with `follow` to the end of the deployment.
fn pass_on(mut from: impl BufRead, watch: &Watch, directory: &Path, follow: bool) -> Result<()> {
    watch.add_written(&directory.join(OUTPUT));
    loop {
        let ended = !follow || directory.join(RESULT).exists();
        pieces(&mut from, print)?;
        if ended {
            return Ok(());
        }
        watch.wait(POLL);
    }
}

/// What can be read by now, in lines; one without an end comes in pieces, which do not cut a character.
fn pieces(from: &mut impl BufRead, mut show: impl FnMut(&str) -> Result<()>) -> Result<()> {
    let mut line = Vec::new();
    loop {
        let space = PIECE.saturating_sub(line.len()) as u64;
        let read = from.by_ref().take(space).read_until(b'\n', &mut line).context(|| "reading the output")?;
        let whole = if read == 0 { line.len() } else { whole_characters(&line) };
        let rest = line.split_off(whole);
        if !line.is_empty() {
            show(&String::from_utf8_lossy(&line))?;
        }
        if read == 0 {
            return Ok(());
        }
        line = rest;
    }
}

/// How many bytes there are before a character that is cut off.
fn whole_characters(line: &[u8]) -> usize {
    let tail = line.len().saturating_sub(3);
    let last = line.get(tail..).and_then(|bytes| bytes.iter().rposition(|byte| *byte >= 0xC0)).map(|at| tail + at);
    let is_cut =
        |at: &usize| std::str::from_utf8(line.get(*at..).unwrap_or_default()).is_err_and(|error| error.error_len().is_none());
    last.filter(is_cut).unwrap_or(line.len())
}

/// What is known of a run that left no output file.
fn stored(record: &DeploymentRecord) -> String {
    match &record.outcome {
        Some(outcome) => harmless(&format!("{}{}", outcome.stdout, outcome.stderr)) + &unprinted(record),
        None if record.state == DeploymentState::Seen => "it has not run yet\n".to_owned(),
        None => format!("no output; {}\n", record.notes().unwrap_or("it may have just started")),
    }
}

/// Why it failed, where its output cannot say so: it was not started, ended at its limit, or interrupted.
fn unprinted(record: &DeploymentRecord) -> String {
    let outcome = record.outcome.as_ref().filter(|outcome| !outcome.from_agent);
    let reason = outcome.and_then(|outcome| outcome.reason.as_ref());
    reason.map_or(String::new(), |reason| format!("heat-node-agent: {}\n", escaped(&reason.to_string())))
}

fn list(state: &Tree, records: &[DeploymentRecord], units: &NodeUnits) -> Result<String> {
    let mut lines = vec![format!("{:<36} {:<9} {:<10} {:>9} NAME", "ID", "STATE", "GROUP", "BYTES")];
    for record in records.iter().rev() {
        let output = job_dir(&record.job()).join(OUTPUT);
        let size = state.facts(&output)?.map_or("-".to_owned(), |facts| facts.size.to_string());
        let shown = |text: &str| escaped(&without_userinfo(text));
        let (id, group, name) = (shown(&record.id), shown(&record.group), shown(&record.name));
        lines.push(format!("{id:<36} {:<9} {group:<10} {size:>9} {name}", record.state.as_str()));
    }
    lines.push(format!("components: {}", names::components(units)));
    Ok(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::{Clock, Timestamp};
    use crate::deploy::DeploymentOutcome;
    use crate::metadata::SignalTarget;
    use crate::report::Report;

    #[test]
    fn a_line_without_an_end_comes_in_pieces_that_cut_no_character() {
        let text = format!("a\né{}\nend", "é".repeat(100_000));
        let mut shown = Vec::new();
        pieces(&mut text.as_bytes(), |piece| {
            shown.push(piece.to_owned());
            Ok(())
        })
        .unwrap();
        assert_eq!(shown.concat(), text);
        assert!(shown.iter().all(|piece| piece.len() <= PIECE) && shown[0] == "a\n", "{}", shown.len());
        let mut longest = 0;
        let mut sparse = BufReader::new(std::io::repeat(0).take(1 << 22));
        pieces(&mut sparse, |piece| {
            longest = longest.max(piece.len());
            Ok(())
        })
        .unwrap();
        assert_eq!(longest, PIECE);
        let mut bad = &b"\xe9\xe9 x\n\xe2\x82"[..];
        let mut all = String::new();
        pieces(&mut bad, |piece| {
            all.push_str(piece);
            Ok(())
        })
        .unwrap();
        assert_eq!(all, "\u{fffd}\u{fffd} x\n\u{fffd}");
    }

    #[test]
    fn the_list_shows_no_password_of_a_url() {
        let dir = tempfile::tempdir().unwrap();
        let state = Arc::new(Tree::open(dir.path()).unwrap());
        let mut journal = Journal::open(Arc::clone(&state), None, 9, Clock::manual(Timestamp(0)), &Report::kept()).unwrap();
        let url = "https://usr:hush@proxy.example.org";
        journal.refuse(url, url, SignalTarget::None, None, DeploymentOutcome::default()).unwrap();
        let shown = list(&state, &Journal::inspect(&state).unwrap(), &NodeUnits::default()).unwrap();
        assert!(shown.contains("https://******@proxy.example.org") && !shown.contains("hush"), "{shown}");
    }

    #[test]
    fn a_reason_that_no_output_says_is_shown_once() {
        let dir = tempfile::tempdir().unwrap();
        let state = Arc::new(Tree::open(dir.path()).unwrap());
        let mut journal = Journal::open(state, None, 9, Clock::manual(Timestamp(0)), &Report::kept()).unwrap();
        let silent =
            DeploymentOutcome { status: 127, reason: Some("not started: \x1b[2J".into()), ..DeploymentOutcome::default() };
        for (id, outcome, shown) in [
            ("a", silent, "heat-node-agent: not started: \\u{1b}[2J\n"),
            ("b", DeploymentOutcome::refused("HNA-0406 why"), "HNA-0406 why"),
            ("c", DeploymentOutcome { stdout: "done\n".into(), ..DeploymentOutcome::default() }, "done\n"),
        ] {
            journal.refuse(id, "", SignalTarget::None, None, outcome).unwrap();
            assert_eq!(stored(journal.get(id).unwrap()).trim_end(), shown.trim_end());
        }
    }
}
