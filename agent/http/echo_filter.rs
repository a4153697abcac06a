//! What a server, or a proxy before it, repeats of a request: credentials are taken out of its errors in the forms in which they come
//! back: percent-encoded, as JSON, HTML and Python write a text, also several times or half, in other letters, wrapped, or cut; and as a whole
//! in hex and in base64, as a Basic header and a log of bytes have it.

use std::collections::HashSet;
use std::ops::Range;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD};

use crate::report::secret_finder::masked_at;

/// Characters of a value that are known again wherever they stand together.
const PIECE: usize = 8;
/// Characters of the shortest value that is looked for, as whole; what is shorter is a word of any text.
const SHORTEST: usize = 6;
/// How often a text is decoded: each proxy on the way may have encoded it once more.
const PASSES: usize = 8;

/// Bytes of values, all together, that are looked for in hex and base64 as well: those forms take up to 100 bytes of memory for each.
/// Whoever has more of them (a token of Keystone's has some hundred) has the others looked for as they are.
const ENCODED: usize = 16 * 1024;

/// A character of a text in its plain form, and where in the text it stands.
#[derive(Clone, Copy)]
struct Plain {
    byte: u8,
    from: usize,
    to: usize,
}

/// What must not be repeated: every piece of it, with its length.
#[derive(Debug, Default)]
pub(super) struct Echoes {
    pieces: HashSet<(u8, [u8; PIECE])>,
    /// Bytes of values that are looked for in other encodings.
    encoded: usize,
}

impl Echoes {
    /// Adds values. Takes some 20 bytes of memory for each of theirs, and for those of other forms what [`ENCODED`] says: to be made when an answer is an error, and not to be kept.
    pub(super) fn extend(&mut self, values: impl IntoIterator<Item = String>) {
        for value in values {
            self.add(&value);
            self.extend_encoded(&value);
        }
    }

    /// Adds the hex and base64 forms of a value alone: its own words may stand in a text.
    pub(super) fn extend_encoded(&mut self, value: &str) {
        let read = bytes_of(&unescaped(value.as_bytes()));
        for bytes in [value.as_bytes(), &read].into_iter().take(if read == value.as_bytes() { 1 } else { 2 }) {
            if bytes.len() < SHORTEST || self.encoded + bytes.len() > ENCODED {
                continue;
            }
            self.encoded += bytes.len();
            self.add(&bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
            self.add(&BASE64_STANDARD_NO_PAD.encode(bytes));
            self.add(&BASE64_URL_SAFE_NO_PAD.encode(bytes));
        }
    }

    fn add(&mut self, value: &str) {
        let plain = bytes_of(&plain(value.as_bytes()));
        if plain.len() >= SHORTEST {
            self.pieces.extend(plain.windows(PIECE.min(plain.len())).filter_map(piece));
        }
    }

    /// The text without them.
    ///
    /// Takes 48 bytes of memory for each of the text's, which is why the bodies of errors are short.
    pub(super) fn hidden(&self, text: &[u8]) -> Vec<u8> {
        if self.pieces.is_empty() {
            return text.to_vec();
        }
        let plain = plain(text);
        let bytes = bytes_of(&plain);
        let places = self.found(&bytes).map(|Range { start, end }| {
            let from = plain.get(start).map_or(text.len(), |one| one.from);
            let to = plain.get(end.saturating_sub(1)).map_or(text.len(), |one| one.to);
            from..to
        });
        masked_at(text, places)
    }

    /// Where something of them stands, from the beginning on.
    fn found<'a>(&'a self, bytes: &'a [u8]) -> impl Iterator<Item = Range<usize>> + 'a {
        let lengths: Vec<usize> =
            (SHORTEST..=PIECE).rev().filter(|length| self.pieces.iter().any(|(one, _)| usize::from(*one) == *length)).collect();
        (0..bytes.len()).filter_map(move |start| {
            let of =
                |length: &usize| bytes.get(start..start + length).and_then(piece).is_some_and(|one| self.pieces.contains(&one));
            lengths.iter().copied().find(of).map(|length| start..start + length)
        })
    }
}

/// At most [`PIECE`] characters.
fn piece(bytes: &[u8]) -> Option<(u8, [u8; PIECE])> {
    let mut piece = [0; PIECE];
    piece.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some((u8::try_from(bytes.len()).ok()?, piece))
}

/// A text without what its ways differ in: decoded, in small letters, without blanks, ends of lines, and the plus that stands for one.
fn plain(text: &[u8]) -> Vec<Plain> {
    let mut all = unescaped(text);
    all.retain(|one| !one.byte.is_ascii_whitespace() && one.byte != b'+');
    for one in &mut all {
        one.byte.make_ascii_lowercase();
    }
    all
}

/// A text decoded, as often as that changes it.
fn unescaped(text: &[u8]) -> Vec<Plain> {
    let mut all: Vec<_> = text.iter().enumerate().map(|(at, byte)| Plain { byte: *byte, from: at, to: at + 1 }).collect();
    for _ in 0..PASSES {
        let before = all.len();
        all = decoded(&all);
        if all.len() == before {
            break;
        }
    }
    all
}

fn bytes_of(text: &[Plain]) -> Vec<u8> {
    text.iter().map(|one| one.byte).collect()
}

fn decoded(text: &[Plain]) -> Vec<Plain> {
    let (mut out, mut at) = (Vec::with_capacity(text.len()), 0);
    while let Some(one) = text.get(at) {
        let (byte, count) = escape(text.get(at..).unwrap_or_default()).unwrap_or((one.byte, 1));
        let to = text.get(at + count - 1).map_or(one.to, |last| last.to);
        out.push(Plain { byte, from: one.from, to });
        at += count;
    }
    out
}

/// The character that an escape stands for, as URLs, JSON and HTML know them, and how many its own are.
fn escape(text: &[Plain]) -> Option<(u8, usize)> {
    const NAMES: [(&str, u8); 5] = [("&amp;", b'&'), ("&lt;", b'<'), ("&gt;", b'>'), ("&quot;", b'"'), ("&apos;", b'\'')];
    /// As long as the longest that is known, `&#x0000ff;`.
    const LONGEST: usize = 10;
    if !matches!(text.first()?.byte, b'%' | b'\\' | b'&') {
        return None;
    }
    let start: Vec<u8> = text.iter().take(LONGEST).map(|one| one.byte).collect();
    let digits = |range: Range<usize>, base: u32| {
        let digits = std::str::from_utf8(start.get(range)?).ok().filter(|digits| !digits.starts_with('+'))?;
        u32::from_str_radix(digits, base).ok().and_then(|code| u8::try_from(code).ok())
    };
    match (start.first()?, start.get(1)?) {
        (b'%', _) => Some((digits(1..3, 16)?, 3)),
        (b'\\', b'u') => Some((digits(2..6, 16)?, 6)),
        (b'\\', b'n' | b'r' | b't') => Some((b' ', 2)),
        (b'\\', b'x') => Some((digits(2..4, 16)?, 4)),
        (b'\\', other @ (b'/' | b'"' | b'\'' | b'\\')) => Some((*other, 2)),
        (b'&', b'#') => {
            let end = start.iter().position(|byte| *byte == b';')?;
            let is_hex = matches!(start.get(2)?, b'x' | b'X');
            Some((if is_hex { digits(3..end, 16)? } else { digits(2..end, 10)? }, end + 1))
        }
        (b'&', _) => NAMES.iter().find(|(name, _)| start.starts_with(name.as_bytes())).map(|(name, byte)| (*byte, name.len())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::MASK;

    const SIGNATURE: &str = "Qw3rTy/uIoP+asDfGhJkLzXcVbNm0123456789=";

    fn hiding(values: &[&str]) -> Echoes {
        let mut echoes = Echoes::default();
        echoes.extend(values.iter().map(|&value| value.to_owned()));
        echoes
    }

    /// Attack: a signature that came back without its padding, in another encoding, wrapped, or cut was shown.
    #[test]
    fn a_value_is_known_again_in_whatever_form_it_is_repeated() {
        let encoded = "Qw3rTy%2FuIoP%2BasDfGhJkLzXcVbNm0123456789%3D";
        for value in [SIGNATURE, encoded] {
            let echoes = hiding(&[value]);
            for form in [
                SIGNATURE.to_owned(),
                encoded.to_owned(),
                encoded.replace("%3D", ""),
                encoded.replace("%2F", "%2f"),
                SIGNATURE.replace('=', "%3D"),
                encoded.replace('%', "%2525"),
                SIGNATURE.replace('=', "&#61;").replace('/', "&#x2F;"),
                SIGNATURE.replace('/', "\\/").replace('=', "\\u003d"),
                SIGNATURE.replace('/', "\\x2f"),
                SIGNATURE.to_uppercase(),
                format!("{}\\n{}", &SIGNATURE[..20], &SIGNATURE[20..]),
                SIGNATURE[..SIGNATURE.len() - 2].to_owned(),
                SIGNATURE[3..30].to_owned(),
                SIGNATURE.replace('+', " "),
            ] {
                let shown = echoes.hidden(format!("bad signature '{form}' given").as_bytes());
                let shown = String::from_utf8(shown).unwrap();
                let left = shown.strip_prefix("bad signature '").and_then(|shown| shown.strip_suffix("' given")).unwrap();
                // What only fills up the end of a value is no part of it.
                assert!(left.replace(['=', '/'], "").replace("%3D", "").replace("&#61;", "") == MASK, "{form}: {shown}");
            }
        }
    }

    /// Attack: the password that a proxy had repeated as it stands in a Basic header was shown, and so was one in hex.
    #[test]
    fn a_value_is_known_again_in_hex_and_in_base64() {
        let mut echoes = hiding(&["p@ss?w0rd>~/", "a%2Fb%2Fc%2Fd"]);
        echoes.extend_encoded("admin:p%40ss%3Fw0rd%3E~/");
        for form in [
            "704073733f773072643e7e2f",
            "7040737 33F773072643E7E2F",
            "612f622f632f64",
            "cEBzcz93MHJkPn4v",
            "cEBzcz93MHJkPn4v%0A",
            "YS9iL2MvZA==",
            "YSUyRmIlMkZjJTJGZA",
            "YWRtaW46cEBzcz93MHJkPn4v",
            "61646d696e3a7040",
        ] {
            let shown = String::from_utf8(echoes.hidden(format!("not {form} here").as_bytes())).unwrap();
            let left = shown.strip_prefix("not ").and_then(|shown| shown.strip_suffix(" here")).unwrap();
            assert_eq!(left.replace("%0A", "").replace('=', ""), MASK, "{form}: {shown}");
        }
        // The name alone is no secret.
        assert_eq!(echoes.hidden(b"administrator admin:"), b"administrator admin:");
        let url_safe = hiding(&["~~~???~~~???"]);
        for form in ["fn5-Pz8_fn5-Pz8_", "fn5+Pz8/fn5+Pz8/"] {
            assert_eq!(url_safe.hidden(form.as_bytes()), MASK.as_bytes(), "{form}");
        }
    }

    /// However long the values are and however many, so much of them is encoded and no more.
    #[test]
    fn what_is_known_of_other_forms_is_bounded() {
        let mut echoes = Echoes::default();
        echoes.extend((0..100).map(|number| format!("{number:04}").repeat(1000)));
        assert!(echoes.encoded <= ENCODED && echoes.pieces.len() <= 100 * 4000 + 6 * ENCODED, "{}", echoes.pieces.len());
    }

    #[test]
    fn one_value_within_another_does_not_leave_its_rest_and_words_stay() {
        for inner in ["Qw3rTy/uIoP", "rTy/uIoP", "0123456789="] {
            let shown = hiding(&[inner, SIGNATURE]).hidden(SIGNATURE.as_bytes());
            assert_eq!(String::from_utf8(shown).unwrap(), MASK, "{inner}");
        }
        let echoes = hiding(&["hunter2", "short", "a-longer-value"]);
        for (text, shown) in [
            ("hunter2 hunter short a-longer", "****** hunter short ******"),
            ("100 % of it \\ & &; %zz &#; \\u12", "100 % of it \\ & &; %zz &#; \\u12"),
            ("", ""),
        ] {
            assert_eq!(String::from_utf8(echoes.hidden(text.as_bytes())).unwrap(), shown);
        }
        assert_eq!(hiding(&[]).hidden(b"\xff\x00%"), b"\xff\x00%");
        assert_eq!(echoes.hidden(b"\xffhunter2\xff"), b"\xff******\xff");
    }
}
