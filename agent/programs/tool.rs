//! Tools of the system (`ip`, `iptables`, `nft`, `firewall-cmd`) that our small units ask at boot, and programs that `plan` asks for
//! their release.
//!
//! They are children in the unit's own sandbox, and no jobs: a unit of ours is run again as often as needed, what it does can be
//! done twice, and its time limit is theirs.

use std::io::{ErrorKind, Write};
use std::process::{Command, Stdio};

use crate::error::{Context, Error, Result};

/// Where tools are looked for.
pub(super) const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a tool that ended wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolOutput {
    /// Whether it ended with 0.
    pub ok: bool,
    /// Its standard output.
    pub out: String,
    /// Its standard error, without blanks around it.
    pub err: String,
}

/// Runs a tool to its end; `None` where it is not installed.
///
/// # Errors
/// If it cannot be started or not be heard to the end.
pub fn ask<S: AsRef<str>>(tool: &str, arguments: &[S], input: &str) -> Result<Option<ToolOutput>> {
    let doing = || line(tool, arguments);
    #[expect(clippy::disallowed_methods, reason = "this is the module that starts programs")]
    let mut command = Command::new(tool);
    command
        .args(arguments.iter().map(AsRef::as_ref))
        .env_clear()
        .env("PATH", SEARCH_PATH)
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.context(doing)?,
    };
    if let Some(mut stdin) = child.stdin.take() {
        // One that ends before it has read everything says why by its status.
        let _ = stdin.write_all(input.as_bytes());
    }
    let ended = child.wait_with_output().context(doing)?;
    Ok(Some(ToolOutput {
        ok: ended.status.success(),
        out: String::from_utf8_lossy(&ended.stdout).into_owned(),
        err: String::from_utf8_lossy(&ended.stderr).trim().to_owned(),
    }))
}

/// The output of a tool that must be there and must succeed.
///
/// # Errors
/// If it is not there, or fails: with what it said.
pub fn output_of<S: AsRef<str>>(tool: &str, arguments: &[S], input: &str) -> Result<String> {
    match ask(tool, arguments, input)? {
        Some(ToolOutput { ok: true, out, .. }) => Ok(out),
        Some(ToolOutput { out, err, .. }) => {
            let said = if err.is_empty() { out.trim() } else { &err };
            Err(Error::permanent(if said.is_empty() { "it failed without output" } else { said }).context(line(tool, arguments)))
        }
        None => Err(Error::permanent(format!("{tool} is not installed"))
            .context(line(tool, arguments))
            .remedy(format!("install the package that contains {tool} in the image"))),
    }
}

/// The command as one reads it.
#[must_use]
pub fn line<S: AsRef<str>>(tool: &str, arguments: &[S]) -> String {
    let mut line = tool.to_owned();
    for argument in arguments {
        line.push(' ');
        line.push_str(argument.as_ref());
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tool_says_and_how_it_ends_is_reported() {
        let script = "read line; echo \"got $line in $LC_ALL\"; echo oh >&2; [ \"$line\" = well ]";
        for (input, ok) in [("well\n", true), ("ill\n", false)] {
            let answer = ask("sh", &["-c", script], input).unwrap().unwrap();
            assert_eq!(answer, ToolOutput { ok, out: format!("got {} in C\n", input.trim()), err: "oh".to_owned() });
        }
        assert_eq!(output_of("sh", &["-c", "echo well"], "").as_deref(), Ok("well\n"));
        for (script, said) in [("echo why >&2; exit 3", "why"), ("echo why; exit 3", "why"), ("exit 3", "without output")] {
            let error = output_of("sh", &["-c", script], "").unwrap_err();
            assert!(error.cause().contains(said) && error.to_string().starts_with("sh -c "), "{error}");
        }
    }

    #[test]
    fn a_tool_that_is_not_there_is_named() {
        assert_eq!(ask("no-such-tool", &["-x"], ""), Ok(None));
        let error = output_of("no-such-tool", &["-x"], "").unwrap_err();
        assert_eq!(error.to_string(), "no-such-tool -x: no-such-tool is not installed");
        assert!(error.suggested_remedy().is_some());
    }

    #[test]
    fn one_that_does_not_read_is_no_trouble() {
        assert!(ask("true", &[] as &[&str], &"x".repeat(1 << 20)).unwrap().unwrap().ok);
    }
}
