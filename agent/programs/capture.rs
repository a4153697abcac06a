//! Keeping a program's output: head and tail in memory, all of it (to a limit) in a file and the journal.

use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::hook_answer::HookOutput;
use super::long_answer::AnswerReader;
use super::mask::Mask;
use crate::report::text::harmless;

/// Bytes kept of the beginning of each stream.
const HEAD: usize = 64 * 1024;
/// Bytes kept of the end of each stream.
const TAIL: usize = 384 * 1024;
/// Bytes that the output file may grow to.
const FILE_LIMIT: u64 = 16 * 1024 * 1024;
/// A line longer than this is passed on in pieces.
const LINE: usize = 16 * 1024;
/// Bytes that a pipe may hold (the kernel's own limit is 1 MiB, its default 64 KiB): as many are read of one whose writers never stop.
const PIPE: usize = 1024 * 1024;

/// The beginning and the end of a stream of any length.
#[derive(Debug, Default)]
pub(super) struct HeadAndTail {
    head: Vec<u8>,
    tail: std::collections::VecDeque<u8>,
    dropped: u64,
}

impl HeadAndTail {
    pub(super) fn add(&mut self, mut bytes: &[u8]) {
        let space = HEAD.saturating_sub(self.head.len()).min(bytes.len());
        let (first, rest) = bytes.split_at(space);
        self.head.extend_from_slice(first);
        bytes = rest;
        self.tail.extend(bytes);
        if self.tail.len() > TAIL {
            let over = self.tail.len() - TAIL;
            self.tail.drain(..over);
            self.dropped += over as u64;
        }
    }

    /// As text, bytes that are no UTF-8 replaced, with a note where something was left out.
    pub(super) fn text(&mut self) -> String {
        let mut bytes = std::mem::take(&mut self.head);
        if self.dropped > 0 {
            bytes.extend_from_slice(format!("\n[… {} bytes left out …]\n", self.dropped).as_bytes());
        }
        bytes.extend(self.tail.drain(..));
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// What is kept of a stream.
#[derive(Debug, Default)]
pub(super) struct CapturedStream {
    /// With its secrets masked.
    pub(super) masked: HeadAndTail,
    /// The answer of a hook, where that is asked for: none until the stream has ended.
    pub(super) answer: Option<HookOutput>,
}

/// The output file that both streams share.
#[derive(Debug)]
pub(super) struct Log {
    file: File,
    written: u64,
}

impl Log {
    pub(super) fn new(file: File) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self { file, written: 0 }))
    }

    /// A full disk must not end the program whose output it is: what cannot be written is dropped.
    fn add(&mut self, bytes: &[u8]) {
        if self.written <= FILE_LIMIT && self.file.write_all(bytes).is_ok() {
            self.written += bytes.len() as u64;
        }
    }
}

/// Where a program's output is passed on to: where that is a terminal, it is shown what it would else obey.
pub(super) struct ForwardedOutput<W> {
    to: W,
    is_terminal: bool,
}

impl<W: Write + IsTerminal> ForwardedOutput<W> {
    pub(super) fn new(to: W) -> Self {
        Self { is_terminal: to.is_terminal(), to }
    }
}

impl<W: Write> Write for ForwardedOutput<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.is_terminal {
            self.to.write_all(harmless(&String::from_utf8_lossy(bytes)).as_bytes())?;
            return Ok(bytes.len());
        }
        self.to.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

/// Waits for something to read (or the end of it), and for `enough` to hang up: which of them is there.
fn news(from: &impl AsFd, enough: &impl AsFd) -> (bool, bool) {
    let mut both = [from.as_fd(), enough.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    loop {
        match poll(&mut both, PollTimeout::NONE) {
            Ok(_) => break both.map(|fd| fd.any().unwrap_or(true)).into(),
            Err(Errno::EINTR) => {}
            // Reading will show it.
            Err(_) => break (true, false),
        }
    }
}

/// What is hidden of a program's output.
#[derive(Clone, Copy)]
pub(super) struct OutputMasks<'a> {
    /// In what it prints.
    pub(super) printed: &'a Mask,
    /// In what a hook answers.
    pub(super) answer: &'a Mask,
}

/// Reads one stream to its end, line by line: masked, to the file, to the journal, and head and tail kept. Lines that may be the beginning of
/// a secret wait for what follows. Once `enough` has hung
/// up, what the pipe holds is read and nothing waited for.
pub(super) fn drain(
    mut from: impl Read + AsFd,
    enough: &impl AsFd,
    to: &mut impl Write,
    log: &Arc<Mutex<Log>>,
    kept: &Arc<Mutex<CapturedStream>>,
    masks: OutputMasks<'_>,
) {
    let mut stream = masks.printed.stream();
    let mut is_blank = true;
    let mut buffer = [0_u8; 8192];
    let mut left = PIPE;
    let is_answer = kept.lock().unwrap_or_else(PoisonError::into_inner).answer.is_some();
    let mut answer = is_answer.then(|| AnswerReader::new(masks.answer));
    loop {
        let (is_present, is_enough) = news(&from, enough);
        if !is_present || left == 0 {
            break;
        }
        let count = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        let read = buffer.get(..count).unwrap_or_default();
        if let Some(answer) = &mut answer {
            answer.add(read);
        }
        if is_enough {
            left = left.saturating_sub(count);
        }
        is_blank &= read.trim_ascii().is_empty();
        let Some(stream) = &mut stream else { continue };
        for piece in read.split_inclusive(|byte| *byte == b'\n') {
            stream.add(piece);
            if piece.ends_with(b"\n") || stream.held() >= LINE {
                pass_on(&stream.shown(), to, log, kept);
            }
        }
    }
    if let Some(answer) = answer {
        let answer = answer.end();
        kept.lock().unwrap_or_else(PoisonError::into_inner).answer = Some(answer);
    }
    match stream {
        Some(stream) => pass_on(&stream.end(), to, log, kept),
        // A note takes the place of all of it.
        None if !is_blank => pass_on(&masks.printed.hide(b"said"), to, log, kept),
        None => {}
    }
}

fn pass_on(masked: &[u8], to: &mut impl Write, log: &Arc<Mutex<Log>>, kept: &Arc<Mutex<CapturedStream>>) {
    if masked.is_empty() {
        return;
    }
    // A journal that does not take the line costs the line, not the program.
    let _ = to.write_all(masked);
    log.lock().unwrap_or_else(PoisonError::into_inner).add(masked);
    kept.lock().unwrap_or_else(PoisonError::into_inner).masked.add(masked);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::mask::tests::hiding;
    use super::*;
    use crate::files::{Attributes, Tree};

    #[test]
    fn the_end_of_a_long_output_is_kept_and_the_gap_named() {
        let mut kept = HeadAndTail::default();
        kept.add(b"first\n");
        for _ in 0..200 {
            kept.add(&[b'x'; 4096]);
        }
        kept.add(b"last\n");
        let text = kept.text();
        assert!(text.starts_with("first\n") && text.ends_with("last\n"));
        assert!(text.len() <= HEAD + TAIL + 64 && text.contains("bytes left out"));
    }

    #[test]
    fn a_terminal_does_not_obey_what_a_program_says_and_a_pipe_gets_every_byte() {
        let reported = "o\u{1b}]0;PWN\u{7}\u{9b}\u{202e}\tx\n".as_bytes();
        for (is_terminal, shown) in [(false, reported), (true, "o\\u{1b}]0;PWN\\u{7}\\u{9b}\\u{202e}\tx\n".as_bytes())] {
            let mut to = ForwardedOutput { to: Vec::new(), is_terminal };
            to.write_all(reported).unwrap();
            assert_eq!(to.to, shown, "{}", String::from_utf8_lossy(&to.to));
        }
    }

    /// What a program's output is kept as.
    fn kept(reported: &str, mask: &Mask) -> String {
        let (from, mut writer) = std::io::pipe().unwrap();
        let reported = reported.to_owned();
        let saying = std::thread::spawn(move || writer.write_all(reported.as_bytes()));
        let (enough, _waited) = std::io::pipe().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let log = Log::new(Tree::open(dir.path()).unwrap().append(Path::new("log"), Attributes::mode(0o600)).unwrap());
        let kept: Arc<Mutex<CapturedStream>> = Arc::default();
        drain(from, &enough, &mut std::io::sink(), &log, &kept, OutputMasks { printed: mask, answer: mask });
        saying.join().unwrap().unwrap();
        kept.lock().unwrap().masked.text()
    }

    #[test]
    fn a_key_of_several_lines_is_masked_and_so_is_a_secret_that_a_long_line_is_cut_in() {
        let (one, two) = ("MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEA", "q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQ");
        let key = format!("-----BEGIN PRIVATE KEY-----\r\n{one}\r\n{two}\n-----END PRIVATE KEY-----\n");
        let mask = &hiding(&[&key, "q83vEjRW"]);
        assert_eq!(kept(&key, mask), "******\n");
        assert_eq!(kept(&format!("{two}\n{one}\n"), mask), "******\n******\n");
        // As a traced shell and a JSON document show it.
        assert_eq!(kept(&format!("+ x=$'{one}\\n{two}\\n'"), mask), "+ x=$'******\\n******\\n'");
        for before in LINE - one.len() - 1..=LINE + 1 {
            let text = kept(&format!("{}{one}{}\n", "-".repeat(before), "-".repeat(LINE)), mask);
            assert!(text.contains("-******-") && !text.contains(&one[1..7]) && !text.contains(&one[one.len() - 7..]), "{before}");
        }
    }

    /// Attack: a key of 20 KB on one line, and one of short lines, were shown whole.
    #[test]
    fn a_secret_is_masked_however_long_it_is_and_however_short_its_lines_are() {
        let long: String = (0..2_500).map(|n| format!("{n:08x}")).collect();
        let short = "ab1\ncd2\nef3\ngh4";
        let mask = &hiding(&[&long, short]);
        for (reported, shown) in [
            (format!("a{long}b\n"), "a******b\n".to_owned()),
            (format!("{}{long}{long}\nend", "-".repeat(LINE - 7)), format!("{}************\nend", "-".repeat(LINE - 7))),
            (format!("{short}\nab1\ncd2\n{short}"), "******\nab1\ncd2\n******".to_owned()),
            (format!("ab1\n{short} ab1\n"), "ab1\n****** ab1\n".to_owned()),
            // Attack: of one that is cut off, all that was said of it was shown.
            (format!("x {}", long.get(..19_000).unwrap()), "x ******".to_owned()),
        ] {
            assert_eq!(kept(&reported, mask), shown);
        }
    }

    /// Says another line whenever one is passed on.
    struct LineReporter(Option<std::io::PipeWriter>);

    impl Write for LineReporter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if let Some(pipe) = &mut self.0 {
                pipe.write_all(bytes)?;
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_the_pipe_holds_is_read_however_late_and_no_more_is_waited_for() {
        for (reported, says_on, expected) in
            [("", false, 0..1), ("one\ntwo", false, 7..8), ("on and on\n", true, PIPE..PIPE + 8192)]
        {
            let (from, mut writer) = std::io::pipe().unwrap();
            writer.write_all(reported.as_bytes()).unwrap();
            let mut to = LineReporter(says_on.then(|| writer.try_clone().unwrap()));
            let (enough, waited) = std::io::pipe().unwrap();
            drop(waited);
            let dir = tempfile::tempdir().unwrap();
            let log = Log::new(Tree::open(dir.path()).unwrap().append(Path::new("log"), Attributes::mode(0o600)).unwrap());
            drain(from, &enough, &mut to, &log, &Arc::default(), OutputMasks { printed: &hiding(&[]), answer: &hiding(&[]) });
            assert!(expected.contains(&std::fs::read(dir.path().join("log")).unwrap().len()), "{reported}");
            drop(writer);
        }
    }
}
