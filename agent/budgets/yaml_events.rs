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

/// Memory of the tokens that one character may begin and end (measured: two of 180 bytes, in a queue that grows by doubling).
const TOKENS: usize = 400;

/// Characters without one of which no token ends where another one begins.
const SEPARATORS: &str = ",[]{}:?!&*\"'#|>%@`";

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
    /// The text was cut off.
    is_cut: Cell<bool>,
}

/// Where a character stands since the last event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before what comes next.
    Lead,
    /// In a block scalar, which is one token up to the next event.
    Block,
    /// In a scalar up to this quote: one token.
    Quoted(char),
    /// Behind a backslash in double quotes.
    Escaped,
    /// Behind a single quote, of which a second one is a part of the scalar.
    Ended,
    /// Anywhere else.
    Tokens,
}

impl Place {
    fn after(self, c: char) -> Self {
        match (self, c) {
            (Self::Lead, '|' | '>') | (Self::Block, _) => Self::Block,
            (Self::Lead, '"' | '\'') => Self::Quoted(c),
            (Self::Lead, c) if c.is_whitespace() || ":-?,".contains(c) => Self::Lead,
            (Self::Quoted('"'), '\\') => Self::Escaped,
            (Self::Escaped, _) => Self::Quoted('"'),
            (Self::Quoted('\''), '\'') => Self::Ended,
            (Self::Ended, '\'') => Self::Quoted('\''),
            (Self::Quoted(quote), c) if quote != c => Self::Quoted(quote),
            _ => Self::Tokens,
        }
    }

    fn is_scalar(self) -> bool {
        matches!(self, Self::Block | Self::Quoted(_) | Self::Escaped)
    }
}

/// The text as the parser gets it.
struct Feed<'a> {
    text: Chars<'a>,
    /// Characters that were handed out.
    at: usize,
    /// The text behind the last event, and how many characters stand before it.
    behind: (Chars<'a>, usize),
    allowance: Rc<Allowance>,
    /// Bytes that tokens of what was handed out since the last event may take.
    taken: usize,
    place: Place,
}

impl Feed<'_> {
    /// Begins to count anew where an event has come since. The parser looks a few characters ahead.
    fn settle(&mut self) {
        let settled = self.allowance.settled.get();
        if settled <= self.behind.1 {
            return;
        }
        while self.behind.1 < settled && self.behind.0.next().is_some() {
            self.behind.1 += 1;
        }
        (self.taken, self.place) = (0, Place::Lead);
        let ahead = self.at.saturating_sub(self.behind.1);
        for c in self.behind.0.clone().take(ahead) {
            self.count(c);
        }
    }

    fn count(&mut self, c: char) {
        let place = self.place.after(c);
        let is_in_scalar = self.place.is_scalar() || (self.place == Place::Ended && place.is_scalar());
        if !is_in_scalar && SEPARATORS.contains(c) {
            self.taken += TOKENS;
        }
        self.place = place;
    }
}

impl Iterator for Feed<'_> {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        self.settle();
        let c = self.text.next()?;
        self.at += 1;
        self.count(c);
        if self.taken > self.allowance.bytes.get() {
            self.allowance.is_cut.set(true);
            self.text = "".chars();
            return None;
        }
        Some(c)
    }
}

/// The events of a text, one after the other.
pub(crate) struct YamlEvents<'a> {
    parser: Parser<'a, BufferedInput<Feed<'a>>>,
    allowance: Rc<Allowance>,
}

impl<'a> YamlEvents<'a> {
    pub(crate) fn of(text: &'a str) -> Self {
        let allowance = Rc::new(Allowance::default());
        let feed = Feed {
            text: text.chars(),
            at: 0,
            behind: (text.chars(), 0),
            allowance: Rc::clone(&allowance),
            taken: 0,
            place: Place::Lead,
        };
        Self { parser: Parser::new_from_iter(feed), allowance }
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
                self.allowance.settled.set(span.end.index());
                Ok((event, span))
            }
            Err(error) => Err(YamlRejection::Yaml(error.marker().line(), error.info().to_owned())),
        })
    }
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

    /// Attack: 2 MB of a list in a list took 380 MB before its first event.
    #[test]
    fn tokens_that_the_scanner_keeps_are_bounded() {
        let zeros = "0,".repeat(MIB);
        for (begin, of) in [
            ("a: [[", "0,"),
            ("[[", "0,"),
            ("\"x\" [[", "0,"),
            ("'x' [[", "0,"),
            ("'x''y' [[", "0,"),
            ("\"x\\\"y\" [[", "0,"),
            ("- |\n  text\n- [[", "0,"),
            ("? >\n  text\n: [[", "0,"),
            ("[[", "\"\" "),
            ("[[", "!a "),
            ("[[", "&a "),
            ("[[", "*a "),
            ("[[", "a #\n "),
            ("[[", "[ "),
        ] {
            let rest = if of == "0," { zeros.clone() } else { of.repeat(MIB / of.len()) };
            let (result, settled) = read(&format!("{begin}{rest}"), MIB);
            let is_refused = matches!(result, Err(YamlRejection::TooLarge));
            // What the scanner itself refuses early takes nothing.
            assert!(is_refused || (matches!(result, Err(YamlRejection::Yaml(..))) && settled < 64), "{begin}{of}: {result:?}");
        }
    }

    #[test]
    fn a_long_scalar_or_a_long_list_is_no_queue_of_tokens() {
        let json = "{\"a\": [1, 2], 'b': c},".repeat(MIB / 20);
        let block = format!("a: |\n  {json}\nb: >-\n  {json}\nc: 1\n");
        let double = format!("a: \"{}\"\nb: 1\n", json.replace('"', "\\\""));
        let single = format!("- '{}'\n- 1\n", json.replace('\'', "''"));
        let list = format!("a: [{}0]\n", "\"0\", ".repeat(MIB / 5));
        for (text, events) in [(block, 12), (double, 10), (single, 8), (list, 10 + MIB / 5)] {
            assert_eq!(read(&text, 64 * 1024).0.ok(), Some(events), "{}", &text[..40]);
        }
    }
}
