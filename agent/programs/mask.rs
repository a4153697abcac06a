//! Hiding secrets in what a program says.

use std::sync::Arc;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use crate::budgets::SECRET_TEXTS;
use crate::report::text::secret_texts;

/// What stands in a secret's place.
const HIDDEN: &[u8] = b"******";

/// The secrets of a job, to be looked for in whatever it says.
#[derive(Clone, Debug)]
pub(crate) struct Mask {
    /// `None`: there is more than can be looked for.
    finder: Option<AhoCorasick>,
    /// What is looked for, sorted.
    texts: Arc<[String]>,
}

impl Mask {
    /// What a job must not show: these texts, or nothing at all where that is withheld.
    pub(super) fn of(secrets: &[String], withheld: bool) -> Self {
        let mask = Self::hiding(secrets);
        if withheld { Self { finder: None, ..mask } } else { mask }
    }

    pub(crate) fn hiding(secrets: &[String]) -> Self {
        // The longest match, as one may be part of another. Other kinds are quicker and take 500 bytes for each byte of a secret.
        let kind = Some(AhoCorasickKind::ContiguousNFA);
        let mut texts: Vec<_> = secret_texts(secrets).map(str::to_owned).collect();
        texts.sort_unstable();
        texts.dedup();
        let finder = AhoCorasick::builder().kind(kind).match_kind(MatchKind::LeftmostLongest).build(&texts).ok();
        Self { finder, texts: texts.into() }
    }

    /// Whether nothing is shown at all.
    pub(super) fn withholds(&self) -> bool {
        self.finder.is_none()
    }

    /// Replaces each known secret by asterisks; where there are too many, a note takes the place of whatever is not blank.
    pub(crate) fn hide(&self, bytes: &[u8]) -> Vec<u8> {
        let Some(finder) = &self.finder else {
            if bytes.trim_ascii().is_empty() {
                return bytes.to_vec();
            }
            let most = SECRET_TEXTS / 1024;
            let why = format!(
                "the secret inputs of the deployment have more text than can be masked ({most} KiB, all its forms together)"
            );
            return format!("[heat-node-agent withheld this output: {why}]\n").into_bytes();
        };
        let mut out = Vec::with_capacity(bytes.len());
        finder.replace_all_with_bytes(bytes, &mut out, |_, _, out| {
            out.extend_from_slice(HIDDEN);
            true
        });
        out
    }
}

impl Mask {
    /// The same for a part of a stream, and the end of it that is not masked yet: it may be the beginning of a secret that goes on in what
    /// follows.
    pub(super) fn hide_but_end(&self, bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let Some(finder) = &self.finder else { return (self.hide(bytes), Vec::new()) };
        let open_from = self.open_from(bytes);
        let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
        // A secret that begins before that cannot become a longer one, or that would begin there.
        for found in finder.find_iter(bytes).take_while(|found| found.start() < open_from) {
            out.extend_from_slice(bytes.get(at..found.start()).unwrap_or_default());
            out.extend_from_slice(HIDDEN);
            at = found.end();
        }
        let (shown, rest) = bytes.get(at..).unwrap_or_default().split_at(open_from.saturating_sub(at));
        out.extend_from_slice(shown);
        (out, rest.to_vec())
    }

    /// Where the longest end of the bytes begins that is the beginning of a secret, and not all of it; their length, where there is none.
    fn open_from(&self, bytes: &[u8]) -> usize {
        let is_open = |end: &[u8]| {
            let at = self.texts.partition_point(|text| text.as_bytes() <= end);
            self.texts.get(at).is_some_and(|text| text.as_bytes().starts_with(end))
        };
        (0..bytes.len()).find(|from| bytes.get(*from..).is_some_and(is_open)).unwrap_or(bytes.len())
    }

    /// [`Self::hide`] for a text.
    pub(super) fn hide_text(&self, text: &str) -> String {
        String::from_utf8_lossy(&self.hide(text.as_bytes())).into_owned()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::programs) fn hiding(secrets: &[&str]) -> Mask {
        Mask::of(&secrets.iter().map(|&secret| secret.to_owned()).collect::<Vec<_>>(), false)
    }

    #[test]
    fn secrets_are_masked_everywhere_short_words_are_not() {
        assert_eq!(hiding(&["p%ssw0rd!", "abc"]).hide(b"a p%ssw0rd!p%ssw0rd! abc\xff"), b"a ************ abc\xff");
        // The longest of those that begin at one place.
        assert_eq!(hiding(&["secret", "secrets and lies"]).hide(b"secrets and lies, secrets"), b"******, ******s");
        assert_eq!(hiding(&[]).hide(b"shown"), b"shown");
    }

    #[test]
    fn what_may_be_the_beginning_of_a_secret_waits_for_what_follows() {
        let mask = hiding(&["abcdefgh", "abcdefgh\nij\nkl", "ghijklmn", "ij\nxxxxx"]);
        for (bytes, shown, rest) in [
            ("x abcde", "x ", "abcde"),
            ("abcdefgh", "", "abcdefgh"),
            ("abcdefgh ", "****** ", ""),
            ("abcdefgh\nij\n", "", "abcdefgh\nij\n"),
            ("abcdefgh\nij\nkl-", "******-", ""),
            // What is within a secret is not the beginning of another one.
            ("-abcdefgh\nix", "-******\nix", ""),
            ("abcdefghijkl", "******", "ijkl"),
            ("abcdefgh\nij\nxx", "******\n", "ij\nxx"),
            ("", "", ""),
        ] {
            let (out, left) = mask.hide_but_end(bytes.as_bytes());
            assert_eq!((std::str::from_utf8(&out).unwrap(), std::str::from_utf8(&left).unwrap()), (shown, rest), "{bytes:?}");
        }
    }

    proptest::proptest! {
        /// However a stream is cut into pieces, as much is hidden as in all of it at once.
        #[test]
        fn pieces_are_masked_as_the_whole_is(text in "[ab\\n]{0,60}", cuts in proptest::collection::vec(0_usize..20, 0..12)) {
            let mask = hiding(&["abbaab", "aabbab\naab", "bbbbbbb", "baabbab"]);
            let (mut out, mut open, mut left) = (Vec::new(), Vec::new(), text.as_bytes());
            for cut in cuts.into_iter().chain([usize::MAX]) {
                let (piece, behind) = left.split_at(cut.min(left.len()));
                open.extend_from_slice(piece);
                let (masked, rest) = mask.hide_but_end(&open);
                out.extend(masked);
                (open, left) = (rest, behind);
            }
            out.extend(mask.hide(&open));
            proptest::prop_assert_eq!(out, mask.hide(text.as_bytes()));
        }
    }

    /// Attack: six keys of 40 KiB took 126 MiB.
    #[test]
    fn as_many_secrets_as_are_masked_take_little_memory() {
        let texts: Vec<_> = (0..6_u64)
            .map(|n| {
                (0..2_000).map(|m| format!("{:020}", (n * 2_000 + m).wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect::<String>()
            })
            .collect();
        let mask = hiding(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        let memory = mask.finder.as_ref().map(AhoCorasick::memory_usage).unwrap();
        assert!(memory <= 8 * 1024 * 1024, "{memory}");
        assert_eq!(mask.hide(texts[5].as_bytes()), HIDDEN);
    }

    #[test]
    fn where_there_are_more_secrets_than_can_be_looked_for_nothing_is_shown() {
        let mask = Mask::of(&[], true);
        let shown = String::from_utf8(mask.hide(b"anything")).unwrap();
        assert_eq!(mask.hide(b" \n"), b" \n");
        assert!(mask.withholds() && shown.starts_with("[heat-node-agent withheld") && !shown.contains("anything"), "{shown}");
    }
}
