//! Looks for many texts at once in whatever comes in pieces, and hides them: an automaton (Aho and Corasick, 1975) whose state is carried
//! over the pieces, so that each byte is looked at once however the texts and the stream are made.
//!
//! Of texts that overlap in a stream all is hidden, as one.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::text::says_something;
use crate::http::MASK;

/// A text without what stands at these places, given in order: what overlaps is hidden as one.
pub(crate) fn masked_at(text: &[u8], places: impl IntoIterator<Item = Range<usize>>) -> Vec<u8> {
    let (mut out, mut at) = (Vec::with_capacity(text.len()), 0);
    for Range { start, end } in places {
        if start >= at {
            out.extend_from_slice(text.get(at..start).unwrap_or_default());
            out.extend_from_slice(MASK.as_bytes());
        }
        at = at.max(end);
    }
    out.extend_from_slice(text.get(at..).unwrap_or_default());
    out
}

/// A beginning of one or more texts. 24 bytes: there are as many as the texts have different beginnings.
#[derive(Clone, Copy, Debug, Default)]
struct Node {
    /// The first that is longer by a byte; those follow each other in the order of that byte, up to the first one of the next node.
    first: u32,
    /// The longest other beginning with which this one ends.
    shorter: u32,
    length: u32,
    /// Of the longest text with which this beginning ends; 0 where there is none.
    found: u32,
    /// Of the longest beginning with which it ends and which is not shown where nothing follows.
    open: u32,
    /// The last byte of it.
    byte: u8,
}

/// The texts to be hidden.
#[derive(Clone, Debug)]
pub(crate) struct Finder {
    nodes: Arc<[Node]>,
}

impl Finder {
    /// Of texts that are not empty.
    pub(crate) fn new<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        let mut texts: Vec<&[u8]> = texts.filter(|text| !text.is_empty()).map(str::as_bytes).collect();
        texts.sort_unstable();
        texts.dedup();
        // Shorter beginnings come first: whatever a node refers to is there when it is made.
        let mut nodes = vec![Node::default()];
        let mut left = VecDeque::from([(0, texts.as_slice())]);
        let mut at = 0;
        while let Some((parent, with)) = left.pop_front() {
            let Node { length, byte, .. } = node(&nodes, at);
            let shorter = if length > 1 { step(&nodes, node(&nodes, parent).shorter, byte) } else { 0 };
            let (depth, short) = (length as usize, node(&nodes, shorter));
            // Sorted: a text that ends here is the first.
            let longer = with.iter().position(|text| text.len() > depth).and_then(|from| with.get(from..)).unwrap_or_default();
            let is_open = longer.iter().any(|text| says_something(depth, text.len()));
            let first = id(nodes.len());
            for group in longer.chunk_by(|one, other| one.get(depth) == other.get(depth)) {
                let byte = group.first().and_then(|text| text.get(depth)).copied().unwrap_or_default();
                nodes.push(Node { length: length + 1, byte, ..Node::default() });
                left.push_back((at, group));
            }
            if let Some(own) = nodes.get_mut(at as usize) {
                own.first = first;
                own.shorter = shorter;
                own.found = if longer.len() < with.len() { length } else { short.found };
                own.open = if is_open { length } else { short.open };
            }
            at += 1;
        }
        Self { nodes: nodes.into() }
    }

    /// A text without them.
    pub(crate) fn hide(&self, text: &[u8]) -> Vec<u8> {
        let mut stream = Stream::new(self);
        stream.add(text);
        stream.cut(stream.seen)
    }

    /// Bytes of memory.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.nodes)
    }
}

fn id(at: usize) -> u32 {
    // Budgets bound all texts to some hundred KiB.
    u32::try_from(at).unwrap_or(u32::MAX)
}

fn node(nodes: &[Node], at: u32) -> Node {
    nodes.get(at as usize).copied().unwrap_or_default()
}

/// The longest beginning with which this one and a byte end.
fn step(nodes: &[Node], mut at: u32, byte: u8) -> u32 {
    loop {
        let Node { first, shorter, .. } = node(nodes, at);
        let end = nodes.get(at as usize + 1).map_or(nodes.len(), |next| next.first as usize);
        let longer = nodes.get(first as usize..end).unwrap_or_default();
        if let Ok(place) = longer.binary_search_by_key(&byte, |longer| longer.byte) {
            return first + id(place);
        }
        if at == 0 {
            return 0;
        }
        at = shorter;
    }
}

/// A stream from which they are taken out. What may be the beginning of one waits for what follows.
#[derive(Debug)]
pub(crate) struct Stream<'a> {
    nodes: &'a [Node],
    /// The longest beginning with which it ends as yet.
    at: u32,
    /// Bytes of it as yet.
    seen: usize,
    /// The last of them, which are not handed out yet.
    held: VecDeque<u8>,
    /// What is to be hidden of those: from where to where, none within another.
    covered: VecDeque<(usize, usize)>,
    /// Up to where what was hidden has its asterisks.
    masked: usize,
}

impl<'a> Stream<'a> {
    pub(crate) fn new(finder: &'a Finder) -> Self {
        Self { nodes: &finder.nodes, at: 0, seen: 0, held: VecDeque::new(), covered: VecDeque::new(), masked: 0 }
    }

    /// Takes what comes next.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.at = step(self.nodes, self.at, *byte);
            self.seen += 1;
            self.cover(node(self.nodes, self.at).found);
        }
        self.held.extend(bytes);
    }

    /// Bytes that are held back.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// What can be shown by now.
    pub(crate) fn shown(&mut self) -> Vec<u8> {
        self.cut(self.seen - node(self.nodes, self.at).length as usize)
    }

    /// The rest, as nothing follows. What it ends with may be the beginning of a text that was cut off: it is hidden where it is long
    /// enough to be looked for at all, or half of the text.
    pub(crate) fn end(mut self) -> Vec<u8> {
        self.cover(node(self.nodes, self.at).open);
        self.cut(self.seen)
    }

    /// Hides that many of the last bytes.
    fn cover(&mut self, length: u32) {
        if length == 0 {
            return;
        }
        let mut from = self.seen - length as usize;
        while let Some((start, _)) = self.covered.pop_back_if(|(_, end)| *end > from) {
            from = from.min(start);
        }
        self.covered.push_back((from, self.seen));
    }

    /// Hands out what is held up to there.
    fn cut(&mut self, limit: usize) -> Vec<u8> {
        let mut at = self.seen - self.held.len();
        let mut out = Vec::with_capacity(limit.saturating_sub(at));
        while at < limit {
            let (from, to) = self.covered.front().copied().unwrap_or((limit, limit));
            if from > at || from == to {
                let count = from.min(limit) - at;
                out.extend(self.held.drain(..count));
                at += count;
                continue;
            }
            if from >= self.masked {
                out.extend_from_slice(MASK.as_bytes());
            }
            // What follows may overlap it, and is hidden by the same asterisks.
            self.masked = to;
            let end = to.min(limit);
            self.held.drain(..end - at);
            at = end;
            if to <= limit {
                self.covered.pop_front();
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::text::SHORTEST_SECRET;
    use super::*;

    fn hiding(texts: &[&str]) -> Finder {
        Finder::new(texts.iter().copied())
    }

    /// Looks at each place for each text.
    fn simply(texts: &[&str], stream: &str, is_cut: bool) -> String {
        let bytes = stream.as_bytes();
        let mut ranges: Vec<_> = texts
            .iter()
            .flat_map(|text| {
                (0..bytes.len()).filter(|at| bytes[*at..].starts_with(text.as_bytes())).map(|at| (at, at + text.len()))
            })
            .collect();
        if is_cut {
            let is_open = |end: &[u8]| {
                texts.iter().any(|text| {
                    text.len() > end.len()
                        && text.as_bytes().starts_with(end)
                        && (end.len() >= SHORTEST_SECRET || 2 * end.len() >= text.len())
                })
            };
            ranges.extend((0..bytes.len()).find(|at| is_open(&bytes[*at..])).map(|at| (at, bytes.len())));
        }
        ranges.sort_unstable();
        let (mut out, mut at) = (String::new(), 0);
        for (from, to) in ranges {
            if from >= at {
                out.push_str(&stream[at..from]);
                out.push_str(MASK);
            }
            at = at.max(to);
        }
        out + &stream[at..]
    }

    proptest::proptest! {
        /// However a stream is cut into pieces, as much is hidden as in all of it at once.
        #[test]
        fn pieces_are_masked_as_the_whole_is(text in "[ab\\n]{0,60}", cuts in proptest::collection::vec(0_usize..20, 0..12)) {
            let texts = ["abbaab", "aabbab\naab", "bbbbbbb", "baabbab", "bbbbbbbbbba", "\naaab"];
            let finder = hiding(&texts);
            let (mut stream, mut out, mut left) = (Stream::new(&finder), Vec::new(), text.as_bytes());
            for cut in cuts.into_iter().chain([usize::MAX]) {
                let (piece, behind) = left.split_at(cut.min(left.len()));
                stream.add(piece);
                out.extend(stream.shown());
                proptest::prop_assert!(stream.held() < 11);
                left = behind;
            }
            out.extend(stream.end());
            proptest::prop_assert_eq!(String::from_utf8(out).unwrap(), simply(&texts, &text, true));
            proptest::prop_assert_eq!(String::from_utf8(finder.hide(text.as_bytes())).unwrap(), simply(&texts, &text, false));
        }
    }

    #[test]
    fn what_may_be_the_beginning_of_a_text_waits_for_what_follows() {
        let finder = hiding(&["abcdefgh", "abcdefgh\nij\nkl", "ghijklmn", "ij\nxxxxx"]);
        for (text, shown, held) in [
            ("x abcde", "x ", 5),
            ("abcdefgh", "", 8),
            ("abcdefgh ", "****** ", 0),
            ("abcdefgh\nij\n", "", 12),
            ("abcdefgh\nij\nkl-", "******-", 0),
            ("-abcdefgh\nix", "-******\nix", 0),
            // Its beginning is hidden already.
            ("abcdefghijkl", "******", 6),
            ("abcdefghijklmn.", "******.", 0),
            ("abcdefgh\nij\nxx", "******\n", 5),
            ("", "", 0),
        ] {
            let mut stream = Stream::new(&finder);
            stream.add(text.as_bytes());
            assert_eq!((String::from_utf8(stream.shown()).unwrap().as_str(), stream.held()), (shown, held), "{text:?}");
        }
    }

    /// Attack: of "hunter2-Passw0rd-XYZ", cut off by its last letter, all was shown.
    #[test]
    fn what_is_cut_off_within_a_text_is_not_shown_where_it_says_something() {
        let finder = hiding(&["hunter2-Passw0rd-XYZ", "abc-efgh"]);
        for (text, shown) in [
            ("pw=hunter2-Passw0rd-XY", "pw=******"),
            ("pw=hunter", "pw=******"),
            // Five of twenty letters are a word of any text.
            ("pw=hunte", "pw=hunte"),
            ("abc-", "******"),
            ("abc", "abc"),
            ("pw=hunter2-Passw0rd-XYZ", "pw=******"),
        ] {
            let mut stream = Stream::new(&finder);
            stream.add(text.as_bytes());
            assert_eq!(String::from_utf8(stream.end()).unwrap(), shown, "{text}");
        }
    }

    /// Attack: a secret of 100,000 equal letters, and shorter ones, took 11 s for 400 KB of output. Steps are counted, not time.
    #[test]
    fn each_byte_is_looked_at_once_whatever_the_texts_are() {
        let long = "a".repeat(100_000) + "b";
        let texts: Vec<String> = (6..100).map(|n| "a".repeat(n)).chain([long]).collect();
        let finder = hiding(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        let (mut stream, mut moved, mut out) = (Stream::new(&finder), 0, Vec::new());
        for line in ["a".repeat(8192), "aaaaa\n".to_owned()].iter().cycle().take(200) {
            stream.add(line.as_bytes());
            let held = stream.held();
            out.extend(stream.shown());
            moved += held - stream.held();
        }
        assert!(moved <= 100 * (8192 + 6) && stream.covered.len() <= 2, "{moved}");
        assert_eq!(stream.seen, 100 * (8192 + 6));
        out.extend(stream.end());
        assert_eq!(out, "******\n".repeat(100).as_bytes());
    }
}
