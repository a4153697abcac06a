//! The agent's own reason of a failure taken apart: `HNA-0502 one mistake | another; remedy: what to do`. Pure.

/// Between several causes of one failure. Each has a line of its own where people read it.
pub const BETWEEN: &str = " | ";
/// Before what is to be done.
pub const REMEDY: &str = "; remedy: ";

/// The parts of a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reason {
    /// `HNA-0502`, if it begins with a code.
    pub(super) code: Option<String>,
    /// Why, without the code.
    pub(super) cause: String,
    /// What to do, if it says so.
    pub(super) remedy: Option<String>,
}

/// Takes a reason apart.
pub(super) fn parts(reason: &str) -> Reason {
    let (code, rest) = match reason.split_once(' ') {
        Some((word, rest)) if word.starts_with("HNA-") => (Some(word.to_owned()), rest),
        _ => (None, reason),
    };
    let (cause, remedy) = rest.rsplit_once(REMEDY).map_or((rest, None), |(cause, remedy)| (cause, Some(remedy.to_owned())));
    Reason { code, cause: cause.to_owned(), remedy }
}

/// Each cause of one failure.
pub(super) fn causes(cause: &str) -> impl Iterator<Item = &str> {
    cause.split(BETWEEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_has_a_code_causes_and_one_remedy() {
        let reason = parts("HNA-0502 ROLE: is wrong; rule: a rule | NAME: is wrong; rule: another; remedy: correct them");
        assert_eq!((reason.code.as_deref(), reason.remedy.as_deref()), (Some("HNA-0502"), Some("correct them")));
        let all: Vec<&str> = causes(&reason.cause).collect();
        assert_eq!(all, ["ROLE: is wrong; rule: a rule", "NAME: is wrong; rule: another"]);
        let plain = Reason { code: None, cause: "it exceeded its time limit".into(), remedy: None };
        assert_eq!(parts("it exceeded its time limit"), plain);
    }
}
