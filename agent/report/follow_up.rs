//! What follows once a remedy was carried out: every remedy ends with a command that is still needed, or with that the agent goes on by
//! itself. Journal, console, status, explain and Heat get their text from here. Pure.

use std::borrow::Cow;
use std::time::Duration;

use super::Code;
use super::text::argument;
use crate::error::remedy::{AfterRemedy, Remedy};

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

/// A resource that has failed takes no result (heat-protocol.md 7.0): what is run again mends the node, and Heat sees it by an update.
pub(super) const STAYS_FAILED: &str = "Heat shows the failure until the next stack update";

/// Heat's convergence engine takes an update of a stack in progress.
const IN_PROGRESS: &str = "A stack in progress may be updated";

impl FollowUp<'_> {
    /// The remedy with what follows at its end. One that says so already stays as it is.
    #[must_use]
    pub fn of(self, remedy: &Remedy) -> Remedy {
        let text = remedy.trim_end();
        if text.is_empty() {
            return Remedy::said("");
        }
        let id = if let Self::Rerun(id) = self { argument(id) } else { Cow::default() };
        let ending = match (remedy.then(), self) {
            (AfterRemedy::Said, _) => return Remedy::said(text),
            (AfterRemedy::LastWayResumes, Self::Rerun(_)) => {
                return Remedy::said(format!("{}, then `heat-node-agent rerun {id}`", text.trim_end_matches('.')));
            }
            (AfterRemedy::StackUpdateOrResume, Self::Rerun(_)) => {
                format!("If you did not update the stack, run `heat-node-agent rerun {id}`. {STAYS_FAILED}")
            }
            (AfterRemedy::StackUpdate, Self::Rerun(_)) => "The agent then continues by itself".to_owned(),
            (AfterRemedy::Resume, Self::Rerun(_)) => format!("Then run `heat-node-agent rerun {id}`. {STAYS_FAILED}"),
            (AfterRemedy::StackUpdate, Self::Continues(_) | Self::TriesAgain) => {
                format!("{IN_PROGRESS}. The agent then continues by itself")
            }
            (_, Self::Continues(within)) => format!("The agent then continues by itself within {} s", within.as_secs()),
            (_, Self::TriesAgain) => "The agent then tries again by itself".to_owned(),
            (_, Self::IsMeasured(within)) => format!("The agent will notice within {} s", within.as_secs()),
        };
        Remedy::said(format!("{}. {ending}", text.trim_end_matches('.')))
    }
}

impl Code {
    /// The remedy that the catalog has for every failure of this code.
    #[must_use]
    pub fn remedy(self) -> Remedy {
        let then = match self {
            Self::NodeParametersInvalid
            | Self::DeploymentMalformed
            | Self::DeploymentInterrupted
            | Self::RolledBack
            | Self::CertificateIssuerUntrusted => AfterRemedy::StackUpdate,
            Self::DeploymentFailed
            | Self::CertificatesFailed
            | Self::CertificatesRefused
            | Self::AddOnFailed
            | Self::ProgramIncompatible
            | Self::ProgramReleaseDiffers
            | Self::SignalUndeliverable => AfterRemedy::StackUpdateOrResume,
            Self::VolumeUnhealthy
            | Self::VolumeMissing
            | Self::DeploymentNotStarted
            | Self::DeploymentNoHook
            | Self::DeploymentTimedOut
            | Self::DeploymentAlreadyRun
            | Self::ReplacedDeploymentStopped
            | Self::RollbackFailed
            | Self::DeploymentStopped
            | Self::DriftNotRepaired
            | Self::UpdateIncomplete
            | Self::CertificateNearExpiry
            | Self::RotationWaiting
            | Self::RouteMissing
            | Self::PeerOffSegment
            | Self::ComponentFailed
            | Self::ComponentStopped
            | Self::ComponentCrashLoops
            | Self::ComponentHangs
            | Self::UnitDiedInBringUp
            | Self::OutboxEntryCorrupt
            | Self::SignalExpired => AfterRemedy::Said,
            _ => AfterRemedy::Resume,
        };
        Remedy::new(self.entry().remedy, then)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_ends_with_a_command_or_with_that_the_agent_goes_on_by_itself() {
        let (rerun, waits) = (FollowUp::Rerun("d1"), FollowUp::Continues(Duration::from_secs(30)));
        let update = Remedy::stack_update;
        for (follow_up, remedy, expected) in [
            (
                rerun,
                "start it".into(),
                "start it. Then run `heat-node-agent rerun d1`. Heat shows the failure until the next stack update",
            ),
            (
                rerun,
                "Start it.".into(),
                "Start it. Then run `heat-node-agent rerun d1`. Heat shows the failure until the next stack update",
            ),
            (
                rerun,
                update("correct X and update the stack"),
                "correct X and update the stack. The agent then continues by itself",
            ),
            (
                rerun,
                Remedy::new("To KEEP it: update the stack. To DESTROY it: `a`", AfterRemedy::LastWayResumes),
                "To KEEP it: update the stack. To DESTROY it: `a`, then `heat-node-agent rerun d1`",
            ),
            (
                rerun,
                Remedy::stack_update_or("attach it; or correct its id and update the stack"),
                "attach it; or correct its id and update the stack. If you did not update the stack, run `heat-node-agent rerun d1`. Heat \
                 shows the failure until the next stack update",
            ),
            (rerun, "".into(), ""),
            (waits, "attach it".into(), "attach it. The agent then continues by itself within 30 s"),
            (waits, update("correct X"), "correct X. A stack in progress may be updated. The agent then continues by itself"),
            (FollowUp::TriesAgain, "start Heat".into(), "start Heat. The agent then tries again by itself"),
            (waits, Remedy::said("systemd restarts it"), "systemd restarts it"),
            // Words alone decide nothing.
            (
                waits,
                "see why it ended by itself".into(),
                "see why it ended by itself. The agent then continues by itself within 30 s",
            ),
            (FollowUp::IsMeasured(Duration::from_mins(1)), "start it".into(), "start it. The agent will notice within 60 s"),
        ] {
            let told = follow_up.of(&remedy);
            assert_eq!(told.as_str(), expected);
            assert_eq!(follow_up.of(&told), told, "it is said once");
        }
    }

    #[test]
    fn what_follows_a_remedy_of_the_catalog_agrees_with_its_words() {
        let says = ["update the stack", "Update the stack", "by itself", "heat-node-agent rerun", "DRIFT=repair"];
        let disagrees = |code: &&Code| {
            let remedy = code.remedy();
            (remedy.then() != AfterRemedy::Resume) != says.iter().any(|words| remedy.contains(words))
        };
        let found: Vec<String> =
            Code::ALL.iter().filter(disagrees).map(|code| format!("{code:?}: {}", code.remedy().as_str())).collect();
        assert!(found.is_empty(), "{found:#?}");
    }
}
