//! Why something failed, as one text for Heat and for the journal.

use crate::error::remedy::Remedy;
use crate::error::{BETWEEN, Error};
use crate::kubernetes::Mistake;
use crate::report::reason::FailureReason;
use crate::report::{Code, Report};

/// A reason stays readable in Heat's resource list and below the size of its column.
pub(super) const REASON_LIMIT: usize = 2000;

/// Bytes of the mistakes that one journal entry names. Those of any realistic deployment fit; `verify` lists all.
const CAUSE_LIMIT: usize = 16 * 1024;

/// Every mistake in one error, as far as they fit into a journal entry.
pub(super) fn bad_parameters(mistakes: &[Mistake]) -> Error {
    let (mut all, mut taken) = (Vec::new(), 0_usize);
    for (at, mistake) in mistakes.iter().enumerate() {
        // What is to be done about all of them is said once, at the end.
        let text = mistake.with_own_remedy();
        taken += text.len() + BETWEEN.len();
        if at > 0 && taken > CAUSE_LIMIT {
            all.push(format!("and {} more: heat-node-agent verify lists them", mistakes.len() - at));
            break;
        }
        all.push(text);
    }
    let mut all = all.into_iter();
    let first = Error::permanent(all.next().unwrap_or_default());
    all.fold(first, Error::and).remedy(Remedy::stack_update("correct the parameters in the template and update the stack"))
}

/// Why something failed, for Heat and the records: masked, and no longer than Heat shows.
pub(super) fn reason(report: &Report, code: Code, error: &Error) -> FailureReason {
    bounded(report, code, FailureReason::of(error))
}

/// A reason as Heat and the records take it.
pub(super) fn bounded(report: &Report, code: Code, reason: FailureReason) -> FailureReason {
    reason.with_code(code.entry().code).map(|text| report.masked(text).into_owned()).shortened(REASON_LIMIT)
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
