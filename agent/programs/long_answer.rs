//! A hook's answer of any length, read as it comes (heat-protocol.md R34, R37): the status and the names are kept whole, and of long texts
//! both ends, so that a status which the hook gave never becomes its opposite for what else the hook said.
//!
//! Secrets are masked in a text before it is cut: of one that is cut nobody could find the halves.

use std::collections::VecDeque;

use serde_json::Value;

use super::hook_answer::{HookAnswer, HookOutput};
use super::mask::Mask;
use crate::budgets::json::JsonRejection;
use crate::budgets::python_json;
use crate::report::secret_finder::Stream;

/// Bytes of an answer that are kept. Heat takes no larger body (`max_json_body_size`).
const KEPT: usize = 1024 * 1024;
/// What a member takes in memory beside its name and value, and more than [`HookAnswer::read`] counts for it.
const MEMBER: usize = 256;
/// Values up to so many bytes are kept whole however many there are: each status is shorter.
const LEAST: usize = 256;
/// Bytes of a name at most.
const NAME: usize = 16 * 1024;
/// Bytes of a text that are read at a time.
const PIECE: usize = 4096;
/// Stands where the middle of a value was left out.
const NOTE: &str = "\n[… cut by heat-node-agent …]\n";
/// Stands in the place of the first member of those that are too many.
const LEFT_OUT: &str = "[heat-node-agent left out this output and others after it: the hook's answer has too many]";
/// Members that are kept however many there are.
const OWN: [&str; 3] = ["deploy_status_code", "deploy_stdout", "deploy_stderr"];

/// Reads an answer: as it is where it is short, else by its members.
#[derive(Debug)]
pub(super) struct AnswerReader<'m> {
    mask: &'m Mask,
    whole: Vec<u8>,
    members: Option<Members<'m>>,
}

impl<'m> AnswerReader<'m> {
    pub(super) fn new(mask: &'m Mask) -> Self {
        Self { mask, whole: Vec::new(), members: None }
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        if let Some(members) = &mut self.members {
            members.add(bytes);
            return;
        }
        self.whole.extend_from_slice(bytes);
        if self.whole.len() > KEPT {
            self.members = Some(Members::of(&std::mem::take(&mut self.whole), self.mask));
        }
    }

    /// What it was, its secrets masked.
    pub(super) fn end(self) -> HookOutput {
        let Self { mask, whole, members } = self;
        let text = match members {
            Some(members) => members.text(),
            None => Some(String::from_utf8_lossy(&whole).into_owned()),
        };
        let read = |text: Option<String>| text.map(|text| HookAnswer::read(&text));
        let answer = match read(text) {
            // More names than are held at once.
            Some(Err(JsonRejection::TooLarge(_) | JsonRejection::TooDeep)) if !whole.is_empty() => {
                read(Members::of(&whole, mask).text())
            }
            answer => answer,
        };
        match answer {
            Some(Ok(answer)) => HookOutput::Answer(Box::new(answer.masked(mask))),
            Some(Err(JsonRejection::TooLarge(_) | JsonRejection::TooDeep)) => HookOutput::TooLarge,
            Some(Err(JsonRejection::Json(_))) | None => HookOutput::NoAnswer,
        }
    }
}

/// Where in the object the reader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReaderState {
    Start,
    /// The first name, or the end.
    First,
    BeforeName,
    Name,
    Colon,
    Value,
    End,
    /// It is not one JSON object.
    Broken,
}

/// The members of the object so far.
#[derive(Debug)]
struct Members<'m> {
    mask: &'m Mask,
    place: ReaderState,
    /// Within quotes, and behind a backslash there.
    in_text: bool,
    escaped: bool,
    /// Lists and objects that are open within the value.
    depth: usize,
    /// As it is written.
    name: Vec<u8>,
    value: OpenValue<'m>,
    done: Vec<(String, Kept)>,
    size: usize,
    /// Bytes of a value that are kept.
    limit: usize,
    is_over: bool,
}

impl<'m> Members<'m> {
    fn of(bytes: &[u8], mask: &'m Mask) -> Self {
        let value = OpenValue::default();
        let (place, limit) = (ReaderState::Start, KEPT / 2);
        let (name, done) = (Vec::new(), Vec::new());
        let mut members =
            Self { mask, place, in_text: false, escaped: false, depth: 0, name, value, done, size: 0, limit, is_over: false };
        members.add(bytes);
        members
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.place = self.next(*byte);
        }
    }

    fn next(&mut self, byte: u8) -> ReaderState {
        let is_blank = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        match (self.place, byte) {
            (ReaderState::Name, _) => self.next_of_name(byte),
            (ReaderState::Value, _) => self.next_of_value(byte, is_blank),
            (place, _) if is_blank => place,
            // A byte order mark may be ignored (RFC 8259, section 8.1).
            (ReaderState::Start, 0xef | 0xbb | 0xbf) => ReaderState::Start,
            (ReaderState::Start, b'{') => ReaderState::First,
            (ReaderState::First | ReaderState::BeforeName, b'"') => {
                self.name.clear();
                ReaderState::Name
            }
            (ReaderState::First, b'}') => ReaderState::End,
            (ReaderState::Colon, b':') => ReaderState::Value,
            _ => ReaderState::Broken,
        }
    }

    fn next_of_name(&mut self, byte: u8) -> ReaderState {
        if byte == b'"' && !self.escaped {
            return ReaderState::Colon;
        }
        self.escaped = byte == b'\\' && !self.escaped;
        self.name.push(byte);
        if self.name.len() > NAME { ReaderState::Broken } else { ReaderState::Name }
    }

    fn next_of_value(&mut self, byte: u8, is_blank: bool) -> ReaderState {
        if self.in_text {
            self.in_text = byte != b'"' || self.escaped;
            self.escaped = byte == b'\\' && !self.escaped;
        } else {
            match byte {
                b',' | b'}' if self.depth == 0 => {
                    let next = if byte == b',' { ReaderState::BeforeName } else { ReaderState::End };
                    return if self.end_member() { next } else { ReaderState::Broken };
                }
                _ if is_blank && self.value.is_empty() => return ReaderState::Value,
                _ if is_blank => {}
                b'"' => self.in_text = true,
                b'[' | b'{' => self.depth += 1,
                b']' | b'}' if self.depth == 0 => return ReaderState::Broken,
                b']' | b'}' => self.depth -= 1,
                _ => {}
            }
        }
        if self.value.push(byte, self.limit, self.mask) { ReaderState::Value } else { ReaderState::Broken }
    }

    /// `false`: name or value is no JSON.
    fn end_member(&mut self) -> bool {
        let (Some(name), Some(value)) = (unescaped(&self.name), std::mem::take(&mut self.value).end()) else { return false };
        let is_own = OWN.contains(&name.as_str());
        // Of one that is there twice the last counts.
        if let Some((_, kept)) = self.done.iter_mut().filter(|_| is_own).find(|(known, _)| *known == name) {
            self.size = self.size - kept.len() + value.len();
            *kept = value;
        } else {
            self.size += MEMBER + name.len() + value.len();
            self.done.push((name, value));
        }
        while self.size > KEPT && self.limit > LEAST {
            self.limit = (self.limit / 2).max(LEAST);
            for (_, value) in &mut self.done {
                if !value.shrink(self.limit, self.mask) {
                    return false;
                }
            }
            self.size = self.done.iter().map(|(name, value)| MEMBER + name.len() + value.len()).sum();
        }
        if self.size > KEPT
            && !is_own
            && let Some((name, value)) = self.done.pop()
        {
            self.size -= MEMBER + name.len() + value.len();
            if !std::mem::replace(&mut self.is_over, true) {
                let note = Kept::Whole(Value::from(LEFT_OUT).to_string().into_bytes());
                self.size += MEMBER + name.len() + note.len();
                self.done.push((name, note));
            }
        }
        true
    }

    /// As a JSON text; nothing where it is no object or does not end.
    fn text(self) -> Option<String> {
        let mut text = String::from("{");
        for (name, value) in self.done {
            let comma = if text.len() > 1 { "," } else { "" };
            text.push_str(&format!("{comma}{}:{}", Value::String(name), value.text()));
        }
        text.push('}');
        (self.place == ReaderState::End).then_some(text)
    }
}

/// A value that has not ended.
#[derive(Debug, Default)]
struct OpenValue<'m> {
    /// As it is written; of a long one what has not been read yet.
    raw: Vec<u8>,
    long: Option<LongValue<'m>>,
}

impl<'m> OpenValue<'m> {
    fn is_empty(&self) -> bool {
        self.raw.is_empty() && self.long.is_none()
    }

    /// `false`: it is no JSON.
    fn push(&mut self, byte: u8, limit: usize, mask: &'m Mask) -> bool {
        self.raw.push(byte);
        match &mut self.long {
            None if self.raw.len() > limit => {
                let long = self.long.insert(LongValue::new(&mut self.raw, limit, mask));
                long.read(&mut self.raw, false)
            }
            Some(long) if self.raw.len() >= PIECE => long.read(&mut self.raw, false),
            _ => true,
        }
    }

    fn end(self) -> Option<Kept> {
        let mut raw = self.raw;
        let Some(mut long) = self.long else { return Some(Kept::Whole(raw)) };
        if long.is_text {
            raw.truncate(raw.trim_ascii_end().len());
            raw.pop_if(|byte| *byte == b'"')?;
        }
        long.read(&mut raw, true).then(|| Kept::Ends(long.end()))
    }
}

/// In the place of a list or an object that is too long to be kept whole.
const NO_TEXT: &[u8] = b"(left out: a list or an object that is too long to be sent)";

/// A value of which only the ends are kept, where it is a text. Of another one nothing is kept, and it is not looked at further.
#[derive(Debug)]
struct LongValue<'m> {
    is_text: bool,
    /// `None` where nothing is shown at all.
    stream: Option<Stream<'m>>,
    ends: Ends,
}

impl<'m> LongValue<'m> {
    /// Takes the quote at the beginning of a text.
    fn new(raw: &mut Vec<u8>, limit: usize, mask: &'m Mask) -> Self {
        let is_text = raw.first() == Some(&b'"');
        if is_text {
            raw.remove(0);
        }
        let mut ends = Ends { limit, ..Ends::default() };
        // In a list or an object a secret stands as JSON writes it, which masking does not know piece by piece.
        let stream = if is_text { mask.stream() } else { None };
        if !is_text {
            ends.add(NO_TEXT);
        } else if stream.is_none() {
            ends.add(&mask.hide(b"said"));
        }
        Self { is_text, stream, ends }
    }

    /// Takes what can be read by itself, at the end all.
    fn read(&mut self, raw: &mut Vec<u8>, is_end: bool) -> bool {
        if !self.is_text {
            raw.clear();
            return true;
        }
        let whole = if is_end { raw.len() } else { python_json::whole_characters(raw) };
        let piece: Vec<u8> = raw.drain(..whole).collect();
        let Some(text) = unescaped(&piece) else { return false };
        if let Some(stream) = &mut self.stream {
            stream.add(text.as_bytes());
            self.ends.add(&stream.shown());
        }
        true
    }

    fn end(mut self) -> Ends {
        if let Some(stream) = self.stream {
            self.ends.add(&stream.end());
        }
        self.ends
    }
}

/// What is kept of a value.
#[derive(Debug)]
enum Kept {
    /// As it is written.
    Whole(Vec<u8>),
    /// As it is meant, masked.
    Ends(Ends),
}

impl Kept {
    fn len(&self) -> usize {
        match self {
            Self::Whole(raw) => raw.len(),
            Self::Ends(ends) => ends.head.len() + ends.tail.len(),
        }
    }

    fn shrink(&mut self, limit: usize, mask: &Mask) -> bool {
        match self {
            Self::Whole(raw) if raw.len() > limit => {
                let mut raw = std::mem::take(raw);
                let long = Some(LongValue::new(&mut raw, limit, mask));
                let Some(ends) = (OpenValue { raw, long }).end() else { return false };
                *self = ends;
            }
            Self::Ends(ends) => ends.shrink(limit),
            Self::Whole(_) => {}
        }
        true
    }

    fn text(self) -> String {
        match self {
            Self::Whole(raw) => String::from_utf8_lossy(&raw).into_owned(),
            Self::Ends(ends) => Value::String(ends.text()).to_string(),
        }
    }
}

/// The beginning of a text and, thrice as much, its end.
#[derive(Debug, Default)]
struct Ends {
    limit: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    is_cut: bool,
}

impl Ends {
    fn add(&mut self, bytes: &[u8]) {
        let head = if self.is_cut || !self.tail.is_empty() { 0 } else { (self.limit / 4).saturating_sub(self.head.len()) };
        let (first, rest) = bytes.split_at(head.min(bytes.len()));
        self.head.extend_from_slice(first);
        self.tail.extend(rest);
        self.cut();
    }

    fn shrink(&mut self, limit: usize) {
        self.limit = limit;
        let surplus = self.head.split_off(self.head.len().min(limit / 4));
        if !self.is_cut {
            surplus.into_iter().rev().for_each(|byte| self.tail.push_front(byte));
        }
        self.cut();
        self.tail.shrink_to_fit();
        self.head.shrink_to_fit();
    }

    fn cut(&mut self) {
        let over = self.tail.len().saturating_sub(self.limit - self.limit / 4);
        self.tail.drain(..over);
        self.is_cut |= over > 0;
    }

    fn text(self) -> String {
        let tail = Vec::from(self.tail);
        if !self.is_cut {
            return String::from_utf8_lossy(&[self.head, tail].concat()).into_owned();
        }
        let head = String::from_utf8_lossy(&self.head);
        let head = head.trim_end_matches(char::REPLACEMENT_CHARACTER);
        let begun = tail.iter().take(3).take_while(|byte| (0x80..0xc0).contains(*byte)).count();
        format!("{head}{NOTE}{}", String::from_utf8_lossy(tail.get(begun..).unwrap_or_default()))
    }
}

/// What is written within the quotes of a JSON text.
fn unescaped(written: &[u8]) -> Option<String> {
    let quoted = format!("\"{}\"", String::from_utf8_lossy(written));
    match python_json::value(quoted.as_bytes(), usize::MAX) {
        Ok(Value::String(text)) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::mask::tests::hiding;
    use super::*;

    fn answer_to(text: &[u8], mask: &Mask) -> HookOutput {
        let mut reader = AnswerReader::new(mask);
        text.chunks(8191).for_each(|chunk| reader.add(chunk));
        reader.end()
    }

    fn answer(text: &str, mask: &Mask) -> HookAnswer {
        match answer_to(text.as_bytes(), mask) {
            HookOutput::Answer(answer) => *answer,
            other => panic!("{other:?}"),
        }
    }

    /// Attack: a hook that succeeded and printed more than 1 MiB was reported to Heat as failed.
    #[test]
    fn however_long_an_answer_is_its_status_and_names_are_read() {
        let text = |item: &str, count: usize| format!("BEGIN{}END", item.repeat(count));
        for (item, count) in
            [("ok: changed=false\n", 100_000), ("\u{1}", 1_000_000), ("é\u{1f600}", 700_000), ("\\\"\n", 900_000)]
        {
            for status in [0, 3] {
                let said = json!({"deploy_stdout": text(item, count), "a": [1, "x"], "deploy_status_code": status, "b": text(item, count)});
                for written in [said.to_string(), crate::metadata::python_json(&said), format!("\u{feff}{said:#}\n")] {
                    let answer = answer(&written, &hiding(&[]));
                    assert_eq!(
                        (answer.status, &answer.outputs["a"], &answer.invalid_status),
                        (status, &json!([1, "x"]), &None),
                        "{item:?}"
                    );
                    for text in [&answer.stdout, answer.outputs["b"].as_str().unwrap()] {
                        assert!(text.starts_with("BEGIN") && text.ends_with("END") && text.contains(NOTE), "{item:?}");
                        assert!(
                            text.trim_end_matches("END").ends_with(item) && !text.contains(char::REPLACEMENT_CHARACTER),
                            "{item:?}"
                        );
                        assert!((100_000..KEPT).contains(&text.len()), "{item:?} {}", text.len());
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_no_text_is_left_out_where_it_is_too_long_and_many_members_share_the_room() {
        let said = json!({"list": vec!["]}\""; 900_000], "deploy_status_code": "7", "n": 1});
        let one = answer(&said.to_string(), &hiding(&[]));
        let list = one.outputs["list"].as_str().unwrap();
        assert_eq!((one.status, &one.outputs["n"], list.as_bytes()), (7, &json!(1), NO_TEXT));
        let texts: serde_json::Map<_, _> = (0..900).map(|n| (n.to_string(), Value::from("x".repeat(5_000)))).collect();
        let many = answer(&format!("{:#}", Value::Object(texts)), &hiding(&[]));
        assert!(many.outputs.len() == 900 && many.outputs.values().all(|text| text.as_str().unwrap().len() < 1_100));
        for length in [40_000, 150_000] {
            let names: String = (0..length).map(|n| format!("\"{n}\":0,")).collect();
            let most = answer(&format!("{{{names}\"deploy_stdout\":\"o\",\"deploy_status_code\":0}}"), &hiding(&[]));
            assert_eq!((most.status, most.stdout.as_str()), (0, "o"));
            assert!(
                most.outputs.len() > 2_000 && most.outputs.values().any(|value| *value == LEFT_OUT),
                "{}",
                most.outputs.len()
            );
        }
    }

    #[test]
    fn a_secret_is_masked_wherever_a_text_is_cut() {
        let secret = "q83v\nEjRWeJCr\"ze8SNFZ4k";
        for before in (0..40).map(|n| KEPT / 8 + n - 20) {
            let text = format!("{}{}{}", "-".repeat(before), secret, "=".repeat(2 * KEPT));
            let both = format!(
                "{text}{}",
                text.chars().rev().collect::<String>().replace(&secret.chars().rev().collect::<String>(), secret)
            );
            let answer = answer(&json!({"a": both, "deploy_status_code": 0}).to_string(), &hiding(&[secret]));
            let kept = answer.outputs["a"].as_str().unwrap();
            for part in ["q83v", "EjRW", "ze8S", "Z4k"] {
                assert!(!kept.contains(part), "{before}");
            }
        }
        let withheld = answer(&json!({"a": "x".repeat(2 * KEPT), "deploy_status_code": 3}).to_string(), &Mask::of(&[], true));
        let note = withheld.outputs["a"].as_str().unwrap();
        assert!(withheld.status == 3 && note.starts_with("[heat-node-agent withheld") && note.len() < 300, "{note}");
    }

    #[test]
    fn what_is_not_one_object_to_its_end_is_no_answer() {
        let long = "x".repeat(2 * KEPT);
        for text in [
            long.clone(),
            format!("{{\"a\": \"{long}\""),
            format!("{{\"a\": \"{long}"),
            format!("{{\"a\": \"{long}\"}} {{}}"),
            format!("{{\"a\": \"{long}\",}}"),
            format!("{{\"a\": \"{long}\" 1}}"),
            format!("{{\"a\": \"{long}\\x\"}}"),
            format!("{{\"a\": \"{long}\", \"b\" 1}}"),
            format!("{{\"a\": {long}, \"b\": [}}"),
            format!("\"{long}\""),
        ] {
            assert_eq!(answer_to(text.as_bytes(), &hiding(&[])), HookOutput::NoAnswer, "{}", &text[text.len() - 12..]);
        }
    }

    proptest! {
        #[test]
        fn what_is_read_by_its_members_is_what_was_written(
            texts in proptest::collection::vec("(\\PC|[\\x00-\\x1f\"\\\\]){0,40}", 0..6),
            number in any::<i32>(),
        ) {
            let mut said: serde_json::Map<_, _> = texts.iter().map(|text| (text.clone(), json!([text, {text: number}]))).collect();
            said.insert("n".to_owned(), number.into());
            said.insert("t".to_owned(), texts.concat().into());
            let said = Value::Object(said);
            for written in [said.to_string(), crate::metadata::python_json(&said), format!("{said:#}")] {
                let mask = hiding(&[]);
                let text = Members::of(written.as_bytes(), &mask).text();
                prop_assert_eq!(text.unwrap().parse::<Value>().unwrap(), said.clone());
            }
        }
    }
}
