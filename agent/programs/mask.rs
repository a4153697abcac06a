//! Hiding secrets in what a program says.

use crate::budgets::SECRET_TEXTS;
use crate::report::secret_finder::{Finder, Stream};
use crate::report::text::secret_texts;

/// The secrets of a job, to be looked for in whatever it says.
#[derive(Clone, Debug)]
pub(crate) struct Mask {
    /// `None`: there is more than can be looked for.
    finder: Option<Finder>,
}

impl Mask {
    /// What a job must not show: these texts, or nothing at all where that is withheld.
    pub(super) fn of(secrets: &[String], hide_output: bool) -> Self {
        if hide_output { Self { finder: None } } else { Self::hiding(secrets) }
    }

    pub(crate) fn hiding(secrets: &[String]) -> Self {
        Self { finder: Some(Finder::new(secret_texts(secrets))) }
    }

    /// A stream to be masked as it comes; `None` where nothing is shown at all.
    pub(super) fn stream(&self) -> Option<Stream<'_>> {
        self.finder.as_ref().map(Stream::new)
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
        finder.hide(bytes)
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

    /// Attack: six keys of 40 KiB took 126 MiB.
    #[test]
    fn as_many_secrets_as_are_masked_take_little_memory() {
        let texts: Vec<_> = (0..6_u64)
            .map(|n| {
                (0..2_000).map(|m| format!("{:020}", (n * 2_000 + m).wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect::<String>()
            })
            .collect();
        let mask = hiding(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        let memory = mask.finder.as_ref().map(Finder::memory).unwrap();
        assert!(memory <= 8 * 1024 * 1024, "{memory}");
        assert_eq!(mask.hide(texts[5].as_bytes()), b"******");
    }

    #[test]
    fn where_there_are_more_secrets_than_can_be_looked_for_nothing_is_shown() {
        let mask = Mask::of(&[], true);
        let shown = String::from_utf8(mask.hide(b"anything")).unwrap();
        assert_eq!(mask.hide(b" \n"), b" \n");
        assert!(mask.withholds() && shown.starts_with("[heat-node-agent withheld") && !shown.contains("anything"), "{shown}");
    }
}
