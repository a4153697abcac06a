//! dib-run-parts: the programs of a directory, one after the other, in the order of their numbers (heat-protocol.md 6.2).

use std::cmp::Ordering;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

use super::arguments::ToolResult;
use super::machine::{Machine, variable};
use crate::clock::Clock;
use crate::error::{Context, Error, Result};
use crate::files::FileKind;
use crate::output::print;
use crate::programs::child::Child;
use crate::report::text::harmless;

/// Says that the files of environment.d have been read: bash, which alone can read them, starts this program again with it.
const INSIDE: &str = "--environment-is-read";
/// Reads those files and goes on. Nothing of them is traced: values may be secrets (heat-protocol.md R52).
const SOURCE: &str = r#"set -ue -o pipefail; program=$1 directory=$2; shift 2; for file; do source "$file"; done; exec -a dib-run-parts "$program" --environment-is-read "$directory""#;
/// Where, from a directory of scripts, their environment is.
const ENVIRONMENT: &str = "../environment.d";
/// Bytes of names that may pass a filter of the environment's own.
const NAMES: u64 = 16 * 1024 * 1024;

/// Runs the tool.
pub(super) fn run(arguments: &[String]) -> ToolResult {
    let mut words = arguments.iter().map(String::as_str);
    let (first, second) = (words.next(), words.next());
    let (option, directory) = match first {
        Some(option @ ("--list" | INSIDE)) => (option, second.unwrap_or_default()),
        _ => ("", first.unwrap_or_default()),
    };
    let machine = Machine::new()?;
    if directory.is_empty() || machine.kind(directory) != Some(FileKind::Directory) {
        return Err(Error::permanent(format!("{directory:?} is no directory of scripts"))
            .remedy("call it as dib-run-parts [--list] DIRECTORY")
            .into());
    }
    if option == "--list" {
        print(&scripts(&machine, directory)?.iter().map(|name| format!("{directory}/{name}\n")).collect::<String>())?;
        return Ok(0);
    }
    let environment = if option == INSIDE { Vec::new() } else { environment(&machine, directory)? };
    if environment.is_empty() {
        return Ok(run_all(&machine, directory)?);
    }
    for file in &environment {
        machine.check_program(Path::new(directory).join(ENVIRONMENT), Path::new(file).file_name().unwrap_or_default())?;
    }
    for file in &environment {
        say(&format!("reading the environment of {file}"));
    }
    let own = std::env::current_exe().context(|| "looking for this program")?;
    let bash =
        ["-c", SOURCE, "dib-run-parts"].into_iter().fold(Child::new("bash"), Child::argument).argument(own).argument(directory);
    Ok(shell_status(environment.iter().fold(bash, Child::argument).pass()?))
}

fn run_all(machine: &Machine, directory: &str) -> Result<u8> {
    let clock = Clock::system();
    let mut took: Vec<(String, Duration)> = Vec::new();
    let scripts = scripts(machine, directory)?;
    // Before the first one: half of a phase is worse than none of it.
    scripts.iter().try_for_each(|name| machine.check_program(directory, name))?;
    for name in scripts {
        let script = format!("{directory}/{name}");
        say(&format!("Running {script}"));
        let since = clock.start();
        let status = run_one(&script);
        if status != 0 {
            return Ok(status);
        }
        took.push((name.clone(), since.elapsed()));
        say(&format!("{name} completed"));
    }
    let mut table = vec![
        "--- PROFILING ---".to_owned(),
        format!("Target: {}", Path::new(directory).file_name().unwrap_or_default().display()),
    ];
    table.push(format!("{:<40} {:>10}", "Script", "Seconds"));
    table.extend(took.into_iter().map(|(name, took)| format!("{name:<40} {:>10.3}", took.as_secs_f64())));
    table.push("--- END PROFILING ---".to_owned());
    for line in &table {
        say(line);
    }
    Ok(0)
}

/// Runs one as a shell would: what has no line that names its interpreter is a script of bash.
fn run_one(script: &str) -> u8 {
    let ended = match Child::new(script).pass() {
        Err(error) if error.errno() == Some(Errno::ENOEXEC) => Child::new("bash").argument(script).pass(),
        ended => ended,
    };
    match ended {
        Ok(status) => shell_status(status),
        Err(error) => {
            say(&error.to_string());
            if error.errno() == Some(Errno::ENOENT) { 127 } else { 126 }
        }
    }
}

/// A status as a shell has it: 128 and the number of the signal that ended a program.
fn shell_status(status: i32) -> u8 {
    u8::try_from(if status < 0 { 128 - status } else { status }).unwrap_or(1)
}

/// The names of what is to be run, in order.
fn scripts(machine: &Machine, directory: &str) -> Result<Vec<String>> {
    let is_program = |name: &String| access(&machine.path(directory).join(name), AccessFlags::X_OK).is_ok();
    let names = files(machine, directory)?.into_iter().filter(is_program);
    let mut names: Vec<_> = match variable("RUN_PARTS_REGEX").filter(|pattern| !pattern.is_empty()) {
        None => names.filter(|name| is_usual(name, "_-")).collect(),
        Some(pattern) => {
            let grep = ["-E", "-e"].into_iter().fold(Child::new("grep"), Child::argument).argument(pattern);
            let all: String = names.map(|name| format!("{name}\n")).collect();
            String::from_utf8_lossy(&grep.hear(all.as_bytes(), NAMES)?.out).lines().map(str::to_owned).collect()
        }
    };
    names.sort_by(|a, b| by_number(a, b));
    Ok(names)
}

/// The files of the environment beside a directory, in the order of their bytes: the original sorts by the number at the beginning of
/// the whole path, where there is none.
fn environment(machine: &Machine, directory: &str) -> Result<Vec<String>> {
    let beside = format!("{directory}/{ENVIRONMENT}");
    if machine.kind(&beside) != Some(FileKind::Directory) {
        return Ok(Vec::new());
    }
    let mut names: Vec<_> = files(machine, &beside)?.into_iter().filter(|name| is_usual(name, "_.-")).collect();
    names.sort_unstable();
    Ok(names.into_iter().map(|name| format!("{beside}/{name}")).collect())
}

/// Regular files of a directory, also those that links lead to.
fn files(machine: &Machine, directory: &str) -> Result<Vec<String>> {
    let path = machine.path(directory).canonicalize().context(|| format!("listing {directory}"))?;
    let names = machine.root.list(&path)?;
    let is_file = |name: &String| machine.kind(path.join(name)) == Some(FileKind::File);
    Ok(names.into_iter().filter_map(|name| name.into_string().ok()).filter(is_file).collect())
}

fn is_usual(name: &str, others: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c))
}

/// By the number that a name begins with, which is 0 where there is none; those of the same number by their bytes (`sort -n`).
fn by_number(a: &str, b: &str) -> Ordering {
    let (x, y) = (Leading::of(a), Leading::of(b));
    let sizes = || (x.whole.len(), x.whole, x.fraction).cmp(&(y.whole.len(), y.whole, y.fraction));
    let by_value = match (x.is_negative, y.is_negative) {
        (false, false) => sizes(),
        (true, true) => sizes().reverse(),
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
    };
    by_value.then_with(|| a.cmp(b))
}

/// A number of any length, without zeros that change nothing.
struct Leading<'n> {
    is_negative: bool,
    whole: &'n str,
    fraction: &'n str,
}

impl<'n> Leading<'n> {
    fn of(name: &'n str) -> Self {
        let name = name.trim_start_matches([' ', '\t']);
        let digits = |text: &'n str| text.split_at(text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len());
        let (whole, rest) = digits(name.strip_prefix('-').unwrap_or(name));
        let fraction = rest.strip_prefix('.').map_or("", |rest| digits(rest).0);
        let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
        Self { is_negative: name.starts_with('-') && !(whole.is_empty() && fraction.is_empty()), whole, fraction }
    }
}

fn say(text: &str) {
    let line = format!("dib-run-parts {} {}\n", Clock::system().now().rfc3339(), harmless(text));
    // Nobody is left to tell where standard error is gone.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_the_order_of_their_numbers() {
        let mut names = [
            "100_x",
            "10-b",
            "10-B",
            "abc",
            "010-a",
            "9-z",
            "-5neg",
            "00",
            "-10",
            "1.5",
            "1.25",
            "-0a",
            "99999999999999999999999",
        ];
        names.sort_by(|a, b| by_number(a, b));
        // Printed by LC_ALL=C sort -n.
        assert_eq!(
            names,
            [
                "-10",
                "-5neg",
                "-0a",
                "00",
                "abc",
                "1.25",
                "1.5",
                "9-z",
                "010-a",
                "10-B",
                "10-b",
                "100_x",
                "99999999999999999999999"
            ]
        );
    }
}
