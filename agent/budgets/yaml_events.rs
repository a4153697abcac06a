//! The events of a YAML text, with a bound on what the parser itself holds between two of them.
//!
//! A flow list or map may turn out to be a key up to its end, so the scanner keeps every token of it until then: some 400 bytes for two
//! characters of `[[0,0,…`. It gets its characters from here, one by one, and no more of them once the tokens that they may have become
//! would take more than is left of the text's budget.

use std::cell::Cell;
use std::rc::Rc;
use std::str::Chars;

use saphyr_parser::{BufferedInput, Event, Parser, Span};

use super::{DEPTH, DOCUMENT_MEMORY};
use crate::error::Error;

/// Memory of a token (measured: 180 bytes, in a queue that grows by doubling).
const TOKEN: usize = 200;

/// What ends a scalar without quotes in a flow list or map.
const FLOW: &str = ",[]{}";

/// Why a text is not taken.
#[derive(Debug)]
pub enum YamlRejection {
    /// It would take more memory than it may.
    TooLarge,
    /// It is not YAML, or has something that has no place in such a document: its line, and what is wrong.
    Yaml(usize, String),
}

impl From<YamlRejection> for Error {
    fn from(rejection: YamlRejection) -> Self {
        match rejection {
            YamlRejection::TooLarge => {
                Self::permanent(format!("the YAML would take more than {} KiB of memory", DOCUMENT_MEMORY / 1024))
                    .rule("the agent limits the size of its input to bound its memory")
                    .remedy("split the document")
            }
            YamlRejection::Yaml(line, what) => Self::permanent(format!("the YAML is broken at line {line}: {what}"))
                .rule(format!("YAML 1.1, one document, nested at most {DEPTH} levels deep")),
        }
    }
}

/// What of a text the parser may still have, and where it stands.
#[derive(Default)]
struct Allowance {
    /// Bytes that tokens may take.
    bytes: Cell<usize>,
    /// Characters up to the end of the last event.
    settled: Cell<usize>,
    /// Whether a flow list or map is open there.
    in_flow: Cell<bool>,
    /// The text was cut off.
    is_cut: Cell<bool>,
}

/// What a character is a part of, as the scanner reads it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ScanState {
    /// A token may begin with the next character.
    Between,
    /// Behind `-`, `?` or `:`, which begins a scalar where no blank follows.
    Indicator,
    /// An anchor, a tag or an alias.
    Property,
    /// A scalar without quotes.
    Plain,
    /// A scalar up to this quote.
    Quoted(char),
    /// Behind a backslash in double quotes.
    Escaped,
    /// Behind a single quote, of which a second one is a part of the scalar.
    Ended,
    /// A block scalar: only the parser knows where it ends.
    Block,
    /// Up to the end of the line.
    Comment,
    /// A line that begins with `%`, of which the scanner keeps each word.
    Directive,
}

/// Reads a text as the scanner does, as far as that is needed to count its tokens. In doubt it counts more.
#[derive(Clone)]
struct TokenCounter<'a> {
    text: Chars<'a>,
    /// Characters that were read.
    at: usize,
    before: char,
    place: ScanState,
    /// Tokens from the beginning on.
    tokens: usize,
    /// Flow lists and maps that were opened, from the beginning on.
    opened: usize,
}

impl<'a> TokenCounter<'a> {
    fn of(text: &'a str) -> Self {
        Self { text: text.chars(), at: 0, before: '\n', place: ScanState::Between, tokens: 0, opened: 0 }
    }

    /// Reads a character; `in_flow`: within a flow list or map, or perhaps.
    fn next(&mut self, in_flow: bool) -> Option<char> {
        let c = self.text.next()?;
        self.at += 1;
        // `---` and `...` are tokens wherever a line begins with them.
        self.tokens += usize::from(is_line_end(self.before) && matches!(c, '-' | '.'));
        self.place = self.after(c, in_flow);
        self.before = c;
        Some(c)
    }

    fn after(&mut self, c: char, in_flow: bool) -> ScanState {
        match self.place {
            ScanState::Quoted('"') if c == '\\' => ScanState::Escaped,
            ScanState::Escaped => ScanState::Quoted('"'),
            ScanState::Quoted('\'') if c == '\'' => ScanState::Ended,
            ScanState::Ended if c == '\'' => ScanState::Quoted('\''),
            ScanState::Between | ScanState::Ended => self.begin(c, in_flow),
            ScanState::Indicator | ScanState::Property if is_blank(c) => ScanState::Between,
            ScanState::Indicator | ScanState::Plain => self.within_plain(c, in_flow),
            ScanState::Property if in_flow && FLOW.contains(c) => self.begin(c, in_flow),
            ScanState::Quoted(quote) if c == quote => ScanState::Between,
            ScanState::Comment | ScanState::Directive if is_line_end(c) => ScanState::Between,
            ScanState::Directive => {
                self.tokens += usize::from(is_blank(c));
                ScanState::Directive
            }
            place @ (ScanState::Property | ScanState::Quoted(_) | ScanState::Block | ScanState::Comment) => place,
        }
    }

    fn begin(&mut self, c: char, in_flow: bool) -> ScanState {
        if is_blank(c) {
            return ScanState::Between;
        }
        if c == '#' && is_blank(self.before) {
            return ScanState::Comment;
        }
        // With the key that the scanner puts before a value's.
        self.tokens += 1 + usize::from(c == ':');
        match c {
            '%' if is_line_end(self.before) => ScanState::Directive,
            '|' | '>' if !in_flow => ScanState::Block,
            '&' | '!' | '*' => ScanState::Property,
            '"' | '\'' => ScanState::Quoted(c),
            // The value of a key in quotes may stand right behind it.
            ':' if matches!(self.before, '"' | '\'' | ']' | '}') => ScanState::Between,
            ':' | '?' | '-' => ScanState::Indicator,
            c if FLOW.contains(c) => {
                self.opened += usize::from(matches!(c, '[' | '{'));
                ScanState::Between
            }
            _ => ScanState::Plain,
        }
    }

    fn within_plain(&mut self, c: char, in_flow: bool) -> ScanState {
        if c == '#' && is_blank(self.before) {
            return ScanState::Comment;
        }
        if in_flow && FLOW.contains(c) {
            return self.begin(c, in_flow);
        }
        if is_blank(c) && self.before == ':' {
            self.tokens += 2;
            return ScanState::Between;
        }
        // In a flow list a scalar goes on in the next line; elsewhere the parser says where it does.
        if is_line_end(c) && !in_flow { ScanState::Between } else { ScanState::Plain }
    }
}

/// The text as the parser gets it.
struct Feed<'a> {
    /// Up to what was handed out.
    counter: TokenCounter<'a>,
    /// Up to the last event.
    settled: TokenCounter<'a>,
    allowance: Rc<Allowance>,
}

impl Feed<'_> {
    /// Begins to count anew where an event has come since. The parser looks a few characters ahead, or has read far ahead where a list
    /// turned out to be no key.
    fn settle(&mut self) {
        if self.allowance.settled.get() <= self.settled.at {
            return;
        }
        let handed_out = self.counter.at;
        while self.settled.at < self.allowance.settled.get() && self.settled.next(true).is_some() {}
        // An event ends where a token does.
        self.settled.place = ScanState::Between;
        self.counter = self.settled.clone();
        while self.counter.at < handed_out && self.read().is_some() {}
    }

    fn read(&mut self) -> Option<char> {
        let in_flow = self.allowance.in_flow.get() || self.counter.opened > self.settled.opened;
        self.counter.next(in_flow)
    }
}

impl Iterator for Feed<'_> {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        if self.allowance.is_cut.get() {
            return None;
        }
        self.settle();
        let c = self.read()?;
        let tokens = self.counter.tokens.saturating_sub(self.settled.tokens);
        if tokens.saturating_mul(TOKEN) > self.allowance.bytes.get() {
            self.allowance.is_cut.set(true);
            return None;
        }
        Some(c)
    }
}

/// The events of a text, one after the other.
pub(crate) struct YamlEvents<'a> {
    parser: Parser<'a, BufferedInput<Feed<'a>>>,
    allowance: Rc<Allowance>,
    text: &'a str,
    /// Of each list and map that is open, whether it is a flow one.
    open: Vec<bool>,
    /// Characters and bytes up to which the text was walked.
    walked: (usize, usize),
}

impl<'a> YamlEvents<'a> {
    pub(crate) fn of(text: &'a str) -> Self {
        let allowance = Rc::new(Allowance::default());
        let feed = Feed { counter: TokenCounter::of(text), settled: TokenCounter::of(text), allowance: Rc::clone(&allowance) };
        Self { parser: Parser::new_from_iter(feed), allowance, text, open: Vec::new(), walked: (0, 0) }
    }

    /// The next event, for which the parser may take so many bytes.
    pub(crate) fn next(&mut self, bytes: usize) -> Option<Result<(Event<'a>, Span), YamlRejection>> {
        self.allowance.bytes.set(bytes);
        let event = self.parser.next()?;
        if self.allowance.is_cut.get() {
            return Some(Err(YamlRejection::TooLarge));
        }
        Some(match event {
            Ok((event, span)) => {
                self.settle(&event, span);
                Ok((event, span))
            }
            Err(error) => Err(YamlRejection::Yaml(error.marker().line(), error.info().to_owned())),
        })
    }

    fn settle(&mut self, event: &Event<'a>, span: Span) {
        match event {
            Event::SequenceStart(..) | Event::MappingStart(..) => {
                let begins =
                    span.end.index() > span.start.index() && matches!(self.char_at(span.end.index() - 1), Some('[' | '{'));
                // Within a flow list everything is flow, also a pair without braces.
                let is_flow = begins || self.open.last().is_some_and(|is_flow| *is_flow);
                self.open.push(is_flow);
            }
            Event::SequenceEnd | Event::MappingEnd => drop(self.open.pop()),
            _ => {}
        }
        self.allowance.in_flow.set(self.open.last() == Some(&true));
        self.allowance.settled.set(span.end.index());
    }

    /// A character that is not before the last one that was asked for.
    fn char_at(&mut self, at: usize) -> Option<char> {
        let (mut characters, mut bytes) = self.walked;
        if at < characters {
            (characters, bytes) = (0, 0);
        }
        let rest = self.text.get(bytes..)?;
        let (offset, c) = rest.char_indices().nth(at - characters)?;
        self.walked = (at, bytes + offset);
        Some(c)
    }
}

fn is_line_end(c: char) -> bool {
    matches!(c, '\n' | '\r')
}

/// As YAML has it: no other white space ends a token.
fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t') || is_line_end(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many events there are, and how many characters were read.
    fn read(text: &str, bytes: usize) -> (Result<usize, YamlRejection>, usize) {
        let mut events = YamlEvents::of(text);
        let mut count = 0;
        let result = loop {
            match events.next(bytes) {
                None => break Ok(count),
                Some(Err(rejection)) => break Err(rejection),
                Some(Ok(_)) => count += 1,
            }
        };
        (result, events.allowance.settled.get())
    }

    const MIB: usize = 1 << 20;

    /// Attack: 2 MB of a list in a list took 380 MB before its first event; and, where something made the count stop, again.
    #[test]
    fn tokens_that_the_scanner_keeps_are_bounded() {
        for (begin, of) in [
            ("a: [[", "0,"),
            ("[[", "0,"),
            ("\"x\" [[", "0,"),
            ("'x' [[", "0,"),
            ("'x''y' [[", "0,"),
            ("\"x\\\"y\" [[", "0,"),
            ("- |\n  text\n- [[", "0,"),
            ("? >\n  text\n: [[", "0,"),
            ("a: [| [", "0,"),
            ("a: [> [", "0,"),
            ("a: [-\" [", "0,"),
            ("a: [-' [", "0,"),
            ("a: [:\" [", "0,"),
            ("a: [x, | [", "0,"),
            ("- {a: | [", "0,"),
            ("[[a\n\"b,", "0,"),
            ("[[#\n\"]]\" , | [", "0,"),
            ("[[\"a\" \"]\": | [", "0,"),
            ("[\u{a0}\" [", "0,"),
            ("[\u{2003}| [", "0,"),
            ("[[!<x]> | [", "0,"),
            ("[[", "\"\" "),
            ("[[", "!a "),
            ("[[", "&a "),
            ("[[", "*a "),
            ("[[", "a #\n "),
            ("[[", "[ "),
            ("[[", "\n---"),
            ("[[", "\n..."),
            ("%X", " a"),
        ] {
            let (result, settled) = read(&format!("{begin}{}", of.repeat(MIB / of.len())), MIB);
            let is_refused = matches!(result, Err(YamlRejection::TooLarge));
            // What the scanner itself refuses early takes nothing.
            assert!(is_refused || (matches!(result, Err(YamlRejection::Yaml(..))) && settled < 64), "{begin}{of}: {result:?}");
        }
    }

    #[test]
    fn what_is_no_queue_of_tokens_is_read_within_little() {
        let json = "{\"a\": [1, 2], 'b': c},".repeat(MIB / 20);
        let text = "echo 1, 2: [x]; ".repeat(MIB / 16);
        for (text, events) in [
            (format!("a: |\n  {json}\nb: >-\n  {json}\nc: 1\n"), 12),
            (format!("a: &a |\n  {json}\nb: !!str |\n  {json}\nc: # why\n  |\n  {json}\nd: 1\n"), 14),
            (format!("a: \"{}\"\nb: 1\n", json.replace('"', "\\\"")), 10),
            (format!("- '{}'\n- 1\n", json.replace('\'', "''")), 8),
            (format!("deployments:\n- {{\"id\": \"x\", \"config\":\"{text}\"}}\n"), 15),
            (format!("a: {}\nb: 1\n", "x, ".repeat(MIB / 3)), 10),
            (format!("{}a: 1\n", format!("# {}\n", "#, [x]: ".repeat(20)).repeat(5_000)), 8),
            (format!("a: [{}0]\n", "\"0\", ".repeat(MIB / 5)), 10 + MIB / 5),
        ] {
            assert_eq!(read(&text, 64 * 1024).0.ok(), Some(events), "{}", &text[..40]);
        }
        // A whole document in one list or map is kept as tokens, within the budget of a document.
        let one =
            format!("{{{}\"z\": 1}}", "\"name\": {\"type\": \"string\", \"description\": \"Name, of: it\"},\n".repeat(3_000));
        assert!(read(&one, DOCUMENT_MEMORY).0.is_ok(), "{} bytes", one.len());
    }
}
