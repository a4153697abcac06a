//! `timeline [--svg]`: the newest bring-up of the node against time; it works when the daemon is down.

use std::process::ExitCode;

use super::terminal::{WIDTH, width};
use super::{print, status};
use crate::clock::{Clock, Timestamp};
use crate::error::{Error, Result};
use crate::process::exit;
use crate::report::condition_state::ConditionState;
use crate::report::status::{NodeState, NodeStatus};
use crate::report::step_timing::StepTiming;
use crate::report::text::shortened;
use crate::report::timeline::{page, svg};
use crate::settings::Settings;

/// Prints the page, or the picture.
///
/// # Errors
/// If no bring-up is known of this machine, or it cannot be read.
pub fn run(settings: &Settings, picture: bool) -> Result<ExitCode> {
    let (status, running) = status::read(settings)?;
    let node = status.node.filter(|node| !node.step_timings.is_empty()).ok_or_else(|| {
        Error::permanent("no bring-up of a node is recorded on this machine")
            .remedy("this version records each one; heat-node-agent explain shows what the node is waiting for")
    })?;
    status::warn_if_foreign_state(settings);
    let (title, step_timings) = titled_laps(&node, running, Clock::system().now());
    let text = if picture { svg(&title, &step_timings) } else { page(&title, &step_timings, width()) };
    print(&text).map(|()| exit::OK)
}

/// The title, and the step_timings as they are now.
fn titled_laps(node: &NodeStatus, running: bool, now: Timestamp) -> (String, Vec<StepTiming>) {
    let goes_on = node.state == NodeState::Applying;
    let mut title = format!("generation {} {}", node.generation, node.state.in_words());
    if goes_on {
        title.push_str(if running { ", so far" } else { ", until the daemon stopped" });
    }
    let mut step_timings = node.step_timings.clone();
    for timing in step_timings.iter_mut().filter(|timing| goes_on && running && timing.state == ConditionState::Waiting) {
        // The document is as old as its newest step.
        let step = node.steps.iter().find(|step| step.name.as_str() == timing.step);
        let since = step.and_then(|step| Timestamp::parse_rfc3339(step.since.as_deref()?));
        let so_far = since.map_or(0, |since| u64::try_from(now.since(since).as_millis()).unwrap_or_default());
        timing.took_ms = timing.took_ms.max(so_far);
    }
    (shortened(&title, WIDTH), step_timings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::status::Condition;

    #[test]
    fn what_goes_on_has_taken_as_long_as_it_has_by_now() {
        let timing = |step: &str, state| StepTiming { step: step.into(), took_ms: 500, state, ..StepTiming::default() };
        let since = Some("1970-01-01T00:00:10Z".to_owned());
        let mut node = NodeStatus {
            generation: 3,
            state: NodeState::Applying,
            step_timings: vec![timing("volume etcd", ConditionState::Waiting), timing("plan", ConditionState::Ok)],
            steps: vec![Condition { name: "volume etcd".into(), since, ..Condition::default() }],
            ..NodeStatus::default()
        };
        let took = |node: &NodeStatus, running| {
            let (title, step_timings) = titled_laps(node, running, Timestamp(70_000));
            (title, step_timings.iter().map(|timing| timing.took_ms).collect::<Vec<_>>())
        };
        assert_eq!(took(&node, true), ("generation 3 applying, so far".into(), vec![60_000, 500]));
        assert_eq!(took(&node, false).1, [500, 500], "nobody works on it");
        node.state = NodeState::Rejected;
        assert_eq!(took(&node, true), ("generation 3 failed".into(), vec![500, 500]));
    }
}
