//! What follows once a remedy was carried out: every remedy ends with a command that is still needed, or with that the agent goes on by
//! itself. Journal, console, status, explain and Heat get their text from here. Pure.

use std::time::Duration;

/// How rooms that do not know the deployment write the command that tries the node again.
pub const RERUN: &str = "`heat-node-agent rerun ID`";

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowUp<'a> {
    /// It was given up: this deployment is to be run again.
    Rerun(&'a str),
    /// It is tried again, at the latest after this time.
    Continues(Duration),
    /// It is tried again, nobody knows when.
    TriesAgain,
    /// It runs by itself, and is measured again after this time at the latest.
    IsMeasured(Duration),
}

impl FollowUp<'_> {
    /// The remedy with what follows at its end. One that says so already stays as it is.
    #[must_use]
    pub fn of(self, remedy: &str) -> String {
        let mut remedy = remedy.trim_end().to_owned();
        if let Self::Rerun(id) = self {
            remedy = remedy.replace(RERUN, &format!("`heat-node-agent rerun {id}`"));
        }
        if remedy.is_empty()
            || ["by itself", "heat-node-agent rerun", "DRIFT=repair"].iter().any(|phrase| remedy.contains(phrase))
        {
            return remedy;
        }
        let is_of_stack = remedy.contains("update the stack");
        // Another way beside it starts nothing by itself.
        let has_ways = remedy.contains(';') || remedy.contains(". ");
        let ending = match self {
            Self::Rerun(id) if is_of_stack && has_ways => {
                format!("The agent carries out a stack update by itself; after anything else run `heat-node-agent rerun {id}`")
            }
            Self::Rerun(_) if is_of_stack => "The agent then carries it out by itself".to_owned(),
            Self::Rerun(id) => format!("Then run `heat-node-agent rerun {id}`"),
            Self::Continues(within) => format!("The agent then continues by itself within {} s", within.as_secs()),
            Self::TriesAgain => "The agent then tries again by itself".to_owned(),
            Self::IsMeasured(within) => format!("The agent notices by itself within {} s", within.as_secs()),
        };
        format!("{}. {ending}", remedy.trim_end_matches('.'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_ends_with_a_command_or_with_that_the_agent_goes_on_by_itself() {
        let (rerun, waits) = (FollowUp::Rerun("d1"), FollowUp::Continues(Duration::from_secs(30)));
        for (follow_up, remedy, expected) in [
            (rerun, "start it", "start it. Then run `heat-node-agent rerun d1`"),
            (rerun, "Start it.", "Start it. Then run `heat-node-agent rerun d1`"),
            (rerun, "correct X and update the stack", "correct X and update the stack. The agent then carries it out by itself"),
            (rerun, &format!("`a`, then {RERUN}"), "`a`, then `heat-node-agent rerun d1`"),
            (
                rerun,
                "attach it; or correct its id and update the stack",
                "attach it; or correct its id and update the stack. The agent carries out a stack update by itself; after anything else run \
                 `heat-node-agent rerun d1`",
            ),
            (rerun, "", ""),
            (waits, "attach it", "attach it. The agent then continues by itself within 30 s"),
            (FollowUp::TriesAgain, "start Heat", "start Heat. The agent then tries again by itself"),
            (waits, "systemd restarts it by itself", "systemd restarts it by itself"),
            (FollowUp::IsMeasured(Duration::from_mins(1)), "start it", "start it. The agent notices by itself within 60 s"),
        ] {
            let told = follow_up.of(remedy);
            assert_eq!(told, expected);
            assert_eq!(follow_up.of(&told), expected, "it is said once");
        }
    }
}
