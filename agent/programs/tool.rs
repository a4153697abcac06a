//! Tools of the system (`ip`, `iptables`, `nft`, `firewall-cmd`) that our small units ask at boot, and programs that `plan` and `verify --image`
//! ask for their release.
//!
//! They are children in the unit's own sandbox, and no jobs: a unit of ours is run again as often as needed, what it does can be
//! done twice, and its time limit is theirs.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::error::{Context, Error, Result};

/// Most bytes that are taken of a tool's output where all of it is needed.
const WHOLE: usize = 4 * 1024 * 1024;
/// Most bytes that are kept of the end of its standard error.
const SAID: usize = 64 * 1024;

/// What a tool that ended wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolOutput {
    /// Whether it ended with 0.
    pub ok: bool,
    /// Its standard output.
    pub out: String,
    /// Whether `out` is only the end of that, from the beginning of a line on.
    pub is_cut: bool,
    /// The end of its standard error, without blanks around it.
    pub err: String,
}

/// Runs a tool to its end; `None` where it is not installed.
///
/// # Errors
/// If it cannot be started or not be heard to the end, or writes more than 4 MiB.
pub fn ask<S: AsRef<str>>(tool: &str, arguments: &[S], input: &str) -> Result<Option<ToolOutput>> {
    match ask_end(tool, arguments, input, WHOLE)? {
        Some(ToolOutput { is_cut: true, .. }) => {
            Err(Error::permanent(format!("it wrote more than {} MiB", WHOLE >> 20)).context(line(tool, arguments)))
        }
        received => Ok(received),
    }
}

/// The same for a tool that may write any amount, of which the last `most` bytes are kept.
///
/// # Errors
/// If it cannot be started or not be heard to the end.
pub fn ask_end<S: AsRef<str>>(tool: &str, arguments: &[S], input: &str, most: usize) -> Result<Option<ToolOutput>> {
    let doing = || line(tool, arguments);
    let Some(mut running) = Running::start(tool, arguments, [Stdio::piped(), Stdio::piped(), Stdio::piped()])? else {
        return Ok(None);
    };
    running.hear(input, most).context(doing).map(Some)
}

/// The same without input for a program that nobody knows: one that has not ended within `limit` is killed, with all that it started.
///
/// # Errors
/// If it cannot be started or not be heard to the end, or has not ended by then.
pub fn ask_within<S: AsRef<str>>(tool: &str, arguments: &[S], limit: Duration) -> Result<Option<ToolOutput>> {
    let doing = || line(tool, arguments);
    let Some(mut running) = Running::in_group(tool, arguments)? else { return Ok(None) };
    let group =
        i32::try_from(running.0.id()).map(Pid::from_raw).map_err(|_| Error::permanent("its pid is no number of a group"))?;
    let (ended, is_ended) = channel::<()>();
    let watch = move || {
        let is_late = is_ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
        if is_late {
            let _ = killpg(group, Signal::SIGKILL);
        }
        is_late
    };
    let watcher = std::thread::Builder::new().spawn(watch)?;
    let heard = running.hear("", WHOLE);
    drop(ended);
    if watcher.join().unwrap_or(true) {
        return Err(Error::transient(format!("it has not ended after {} seconds", limit.as_secs())).context(doing()));
    }
    heard.context(doing).map(Some)
}

/// A child that does not outlive whoever listens to it.
#[derive(Debug)]
pub(super) struct Running(pub(super) Child);

impl Running {
    /// Starts a tool in the environment that all of them get, with these streams (input, output, errors); `None` where it is not installed.
    ///
    /// # Errors
    /// If it is there and cannot be started.
    pub(super) fn start<S: AsRef<str>>(tool: &str, arguments: &[S], streams: [Stdio; 3]) -> Result<Option<Self>> {
        Self::spawn(tool, arguments, Self::command(tool, arguments, streams))
    }

    /// The same without input, in a process group of its own.
    fn in_group<S: AsRef<str>>(tool: &str, arguments: &[S]) -> Result<Option<Self>> {
        let mut command = Self::command(tool, arguments, [Stdio::null(), Stdio::piped(), Stdio::piped()]);
        command.process_group(0);
        Self::spawn(tool, arguments, command)
    }

    /// Hears it to its end; of its output the last `most` bytes are kept.
    fn hear(&mut self, input: &str, most: usize) -> std::io::Result<ToolOutput> {
        let (out, err) = communicate(&mut self.0, input.as_bytes(), most, SAID)?;
        let ended = self.0.wait()?;
        let (is_cut, out) = out.text();
        Ok(ToolOutput { ok: ended.success(), out, is_cut, err: err.text().1.trim().to_owned() })
    }

    fn command<S: AsRef<str>>(tool: &str, arguments: &[S], streams: [Stdio; 3]) -> Command {
        let [input, output, errors] = streams;
        #[expect(clippy::disallowed_methods, reason = "this is the module that starts programs")]
        let mut command = Command::new(tool);
        command
            .args(arguments.iter().map(AsRef::as_ref))
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LC_ALL", "C")
            .stdin(input)
            .stdout(output)
            .stderr(errors);
        command
    }

    fn spawn<S: AsRef<str>>(tool: &str, arguments: &[S], mut command: Command) -> Result<Option<Self>> {
        match command.spawn() {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            other => Ok(Some(Self(other.context(|| line(tool, arguments))?))),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has been waited for is not killed: its pid may be another's by now.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Feeds a child and reads both its streams to their ends: one after the other, either side might wait for the other forever.
pub(super) fn communicate(
    child: &mut Child,
    input: &[u8],
    most: usize,
    said: usize,
) -> std::io::Result<(StreamTail, StreamTail)> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        if let Some(mut stdin) = stdin {
            // One that ends before it has read everything says why by its status.
            std::thread::Builder::new().spawn_scoped(scope, move || drop(stdin.write_all(input)))?;
        }
        let err = std::thread::Builder::new().spawn_scoped(scope, move || StreamTail::of(stderr, said))?;
        let out = StreamTail::of(stdout, most)?;
        let err = err.join().map_err(|_| std::io::Error::other("its standard error was not read"))??;
        Ok((out, err))
    })
}

/// The last bytes of a stream.
pub(super) struct StreamTail {
    pub(super) bytes: VecDeque<u8>,
    pub(super) is_cut: bool,
}

impl StreamTail {
    fn of(stream: Option<impl Read>, most: usize) -> std::io::Result<Self> {
        let mut end = Self { bytes: VecDeque::new(), is_cut: false };
        let Some(mut stream) = stream else { return Ok(end) };
        let mut buffer = [0_u8; 16 * 1024];
        loop {
            let count = match stream.read(&mut buffer) {
                Ok(0) => return Ok(end),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            end.bytes.extend(buffer.get(..count).unwrap_or_default());
            let over = end.bytes.len().saturating_sub(most);
            end.bytes.drain(..over);
            end.is_cut |= over > 0;
        }
    }

    /// Whether something is missing, and the text: then without the line in whose middle it would begin.
    fn text(self) -> (bool, String) {
        let mut bytes = Vec::from(self.bytes);
        if self.is_cut {
            let line = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
            bytes.drain(..line);
        }
        (self.is_cut, String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The output of a tool that must be there and must succeed.
///
/// # Errors
/// If it is not there, or fails: with what it said.
pub fn output_of<S: AsRef<str>>(tool: &str, arguments: &[S], input: &str) -> Result<String> {
    match ask(tool, arguments, input)? {
        Some(ToolOutput { ok: true, out, .. }) => Ok(out),
        Some(ToolOutput { out, err, .. }) => {
            let output = if err.is_empty() { out.trim() } else { &err };
            Err(Error::permanent(if output.is_empty() { "it failed without output" } else { output })
                .context(line(tool, arguments)))
        }
        None => Err(not_installed(tool, arguments)),
    }
}

pub(super) fn not_installed<S: AsRef<str>>(tool: &str, arguments: &[S]) -> Error {
    Error::permanent(format!("{tool} is not installed"))
        .context(line(tool, arguments))
        .remedy(format!("install the package that contains {tool} in the image"))
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
        let script = "read line; echo \"got $line in $LC_ALL\"; echo oh >&2; [ \"$line\" = good ]";
        for (input, ok) in [("good\n", true), ("bad\n", false)] {
            let answer = ask("sh", &["-c", script], input).unwrap().unwrap();
            assert_eq!(
                answer,
                ToolOutput { ok, out: format!("got {} in C\n", input.trim()), is_cut: false, err: "oh".to_owned() }
            );
        }
        assert_eq!(output_of("sh", &["-c", "echo good"], "").as_deref(), Ok("good\n"));
        for (script, output) in [("echo why >&2; exit 3", "why"), ("echo why; exit 3", "why"), ("exit 3", "without output")] {
            let error = output_of("sh", &["-c", script], "").unwrap_err();
            assert!(error.cause().contains(output) && error.to_string().starts_with("sh -c "), "{error}");
        }
    }

    #[test]
    fn a_tool_that_is_not_there_is_named() {
        assert_eq!(ask("no-such-tool", &["-x"], ""), Ok(None));
        let error = output_of("no-such-tool", &["-x"], "").unwrap_err();
        assert_eq!(error.to_string(), "no-such-tool -x: no-such-tool is not installed");
        assert!(error.suggested_remedy().is_some());
    }

    /// Attack: a kubelet that hung on `--version` held `plan` and `upgrade-check` for ever.
    #[test]
    fn one_that_hangs_is_killed_with_what_it_started() {
        let limit = Duration::from_millis(200);
        for script in ["sleep 1000", "sleep 1000 & exec sleep 1000", "exec >&- 2>&-; sleep 1000; true"] {
            let error = ask_within("sh", &["-c", script], limit).unwrap_err();
            assert!(error.cause().contains("not ended after"), "{error}");
        }
        let said = ask_within("sh", &["-c", "echo v1; echo oh >&2; exit 3"], Duration::from_mins(5)).unwrap().unwrap();
        assert_eq!((said.ok, said.out.as_str(), said.err.as_str()), (false, "v1\n", "oh"));
        assert_eq!(ask_within("no-such-tool", &["-x"], limit), Ok(None));
    }

    #[test]
    fn one_that_does_not_read_is_no_trouble() {
        assert!(ask("true", &[] as &[&str], &"x".repeat(1 << 20)).unwrap().unwrap().ok);
    }

    /// Attack: eight journals of 15 MB each took 232 MB.
    #[test]
    fn of_a_long_output_the_end_is_kept_from_the_beginning_of_a_line_on() {
        let lines = ["-c", "i=0; while [ $i -lt 9000 ]; do echo line-$i; echo oops-$i >&2; i=$((i + 1)); done; exit 3"];
        let received = ask_end("sh", &lines, "", 1000).unwrap().unwrap();
        assert!(
            received.out.starts_with("line-") && received.out.ends_with("line-8999\n") && received.is_cut && !received.ok,
            "{received:?}"
        );
        assert!((950..=1000).contains(&received.out.len()), "{}", received.out.len());
        assert!(received.err.ends_with("oops-8999") && received.err.len() <= SAID, "{}", received.err.len());
        let whole = ask_end("sh", &lines, "", 1 << 20).unwrap().unwrap();
        assert!(whole.out.starts_with("line-0\n") && !whole.is_cut);
        let one_line = ask_end("sh", &["-c", "head -c 100000 /dev/zero"], "", 1000).unwrap().unwrap();
        assert!(one_line.out.is_empty() && one_line.is_cut, "nobody knows what it would be the end of");
        let error = ask("sh", &["-c", "head -c 5000000 /dev/zero"], "").unwrap_err();
        assert!(error.cause().contains("more than 4 MiB"), "{error}");
    }

    #[test]
    fn one_that_answers_while_it_reads_is_heard_to_the_end() {
        let text = "x\n".repeat(1 << 19);
        assert_eq!(ask("cat", &[] as &[&str], &text).unwrap().unwrap().out, text);
    }
}
