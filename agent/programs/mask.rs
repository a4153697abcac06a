//! Hiding secrets in what a program says.

use std::sync::Arc;

use aho_corasick::MatchKind;
use aho_corasick::automaton::Automaton as _;
use aho_corasick::nfa::contiguous::NFA;

use crate::budgets::SECRET_TEXTS;
use crate::report::text::secret_texts;

/// What stands in a secret's place.
const HIDDEN: &[u8] = b"******";

/// The secrets of a job, to be looked for in whatever it says.
#[derive(Clone, Debug)]
pub(crate) struct Mask {
    /// `None`: there is more than can be looked for.
    finder: Option<Arc<NFA>>,
    /// Bytes of the longest secret.
    longest: usize,
}

impl Mask {
    /// What a job must not show: these texts, or nothing at all where that is withheld.
    pub(super) fn of(secrets: &[String], withheld: bool) -> Self {
        let mask = Self::hiding(secrets);
        if withheld { Self { finder: None, ..mask } } else { mask }
    }

    pub(crate) fn hiding(secrets: &[String]) -> Self {
        // The longest match, as one may be part of another. A DFA is quicker and takes 500 bytes for each byte of a secret.
        let finder = NFA::builder().match_kind(MatchKind::LeftmostLongest).build(secret_texts(secrets)).ok();
        Self { finder: finder.map(Arc::new), longest: secret_texts(secrets).map(str::len).max().unwrap_or_default() }
    }

    /// Bytes of the longest text that is looked for.
    pub(super) fn longest(&self) -> usize {
        self.longest
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
        let replaced = finder.try_replace_all_with_bytes(bytes, &mut out, |_, _, out| {
            out.extend_from_slice(HIDDEN);
            true
        });
        // It fails for searches that are anchored or meant for streams, which this one is not; shown is nothing then.
        if replaced.is_ok() { out } else { HIDDEN.to_vec() }
    }
}

impl Mask {
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

    /// Attack: six keys of 40 KiB took 126 MiB.
    #[test]
    fn as_many_secrets_as_are_masked_take_little_memory() {
        let texts: Vec<_> = (0..6_u64)
            .map(|n| {
                (0..2_000).map(|m| format!("{:020}", (n * 2_000 + m).wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect::<String>()
            })
            .collect();
        let mask = hiding(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        let memory = mask.finder.as_ref().map(|finder| finder.memory_usage()).unwrap();
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
