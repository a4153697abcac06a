//! Why something failed, as one text for Heat and for the journal.

use crate::error::Error;
use crate::kubernetes::Mistake;
use crate::report::reason::{BETWEEN, REMEDY};
use crate::report::{Code, Report};

/// A reason stays readable in Heat's resource list and below the size of its column.
pub(super) const REASON_LIMIT: usize = 2000;

/// Bytes of the mistakes that one journal entry names. Those of any honest deployment fit; `verify` lists all.
const CAUSE_LIMIT: usize = 16 * 1024;

/// Every mistake in one error, as far as they fit into a journal entry.
pub(super) fn bad_parameters(mistakes: &[Mistake]) -> Error {
    let mut all = String::new();
    for (at, mistake) in mistakes.iter().enumerate() {
        // What is to be done about all of them is said once, at the end.
        let (text, between) = (mistake.with_own_remedy(), if at == 0 { "" } else { BETWEEN });
        if at > 0 && all.len() + text.len() > CAUSE_LIMIT {
            all.push_str(&format!("{BETWEEN}and {} more: heat-node-agent verify lists them", mistakes.len() - at));
            break;
        }
        all.push_str(between);
        all.push_str(&text);
    }
    Error::permanent(all)
        .remedy("correct the parameters in the template and update the stack. The agent then carries it out by itself")
}

/// `HNA-0502 what: why; rule: …; remedy: …`: one sentence for Heat.
pub(super) fn sentence(report: &Report, code: Code, error: &Error) -> String {
    let mut text = format!("{} {}", code.entry().code, error);
    if let Some(rule) = error.broken_rule() {
        text.push_str(&format!("; rule: {rule}"));
    }
    if let Some(remedy) = error.suggested_remedy() {
        text.push_str(&format!("{REMEDY}{remedy}"));
    }
    report.cut(&text, REASON_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_fill_one_journal_entry_and_no_more() {
        let mistake = |number: usize| Mistake::general(&format!("NAME_{number}"), "is wrong", "a rule", "a remedy");
        let few: Vec<_> = (0..2).map(mistake).collect();
        let text = bad_parameters(&few).to_string();
        assert_eq!(text, "NAME_0: is wrong; rule: a rule; a remedy | NAME_1: is wrong; rule: a rule; a remedy");
        let many: Vec<_> = (0..90_000).map(mistake).collect();
        let text = bad_parameters(&many).to_string();
        assert!(text.len() < 17_000, "{}", text.len());
        let listed = text.matches("NAME_").count();
        assert!(text.ends_with(&format!(" | and {} more: heat-node-agent verify lists them", 90_000 - listed)), "{listed}");
    }
}
