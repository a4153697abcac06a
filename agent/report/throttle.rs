//! Folding of repeats: the 1st, 2nd, 4th, 8th … of the same message is written, with a count; and each new cause of it, up to a limit.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};

use super::event::Event;
use super::{Code, catalog::Priority};

/// How many different messages are remembered; a flood of different ones starts afresh.
const REMEMBERED: usize = 256;
/// How many causes of the same message are told apart. Some have a number or an address in them that is another one each time.
const CAUSES: usize = 4;

/// What has been logged: the message and its subject.
#[derive(Debug, Default)]
pub(super) struct RepeatThrottle {
    series: HashMap<(Code, String, String), Series>,
    /// Makes the hashes of causes.
    hasher: RandomState,
}

/// The repeats of one message.
#[derive(Debug, Default)]
struct Series {
    count: u64,
    /// Hashes of its causes so far.
    causes: Vec<u64>,
}

impl Series {
    /// Whether a cause is another one than those before. Beyond the limit none is.
    fn is_new(&mut self, cause: u64) -> bool {
        let is_new = self.causes.len() < CAUSES && !self.causes.contains(&cause);
        if is_new {
            self.causes.push(cause);
        }
        is_new
    }
}

impl RepeatThrottle {
    /// The event as it is to be written, or nothing where it is folded away.
    pub(super) fn pass(&mut self, mut event: Event) -> Option<Event> {
        let subject = subject(&event);
        if event.is_detail {
            return Some(event);
        }
        if event.code.entry().priority > Priority::Notice {
            // A normal message about a thing ends the series of complaints about it.
            self.series.retain(|(_, of, _), _| *of != subject);
            return Some(event);
        }
        if self.series.len() >= REMEMBERED {
            self.series.clear();
        }
        let series = self.series.entry((event.code, subject, event.message.clone())).or_default();
        series.count += 1;
        let is_new = series.is_new(self.hasher.hash_one(&event.cause));
        // What only waits may wait for one thing after the other.
        if series.count > 1 && (!is_new || event.code.entry().priority > Priority::Warning) {
            if !series.count.is_power_of_two() {
                return None;
            }
            event.message = format!("{} (repeated {} times)", event.message, series.count);
        }
        Some(event)
    }
}

/// What the message is about.
fn subject(event: &Event) -> String {
    [&event.source, &event.deployment_id, &event.unit, &event.gate, &event.step]
        .iter()
        .map(|field| field.as_deref().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\u{1f}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_are_written_at_powers_of_two_until_something_good_happens() {
        let mut folder = RepeatThrottle::default();
        let failed = || Event::new(Code::SourceFailed, "no answer").source("cfn");
        let written: Vec<_> = (1..=9).filter_map(|n| folder.pass(failed()).map(|event| (n, event.message))).collect();
        assert_eq!(written.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1, 2, 4, 8]);
        assert_eq!(written[3].1, "no answer (repeated 8 times)");
        assert!(folder.pass(Event::new(Code::SourceFailed, "x").source("other")).is_some());
        assert!(folder.pass(Event::new(Code::SourceFailed, "another answer").source("cfn")).is_some());
        assert!(folder.pass(Event::new(Code::SourceRecovered, "back").source("cfn")).is_some());
        assert_eq!(folder.pass(failed()).unwrap().message, "no answer");
    }

    /// The third, different drift under one agent was folded like the same drift once more.
    #[test]
    fn a_new_cause_is_no_repeat() {
        let mut throttle = RepeatThrottle::default();
        let mut pass = |cause: &str| throttle.pass(Event::new(Code::NodeDrift, "drift").cause(cause)).map(|event| event.message);
        let plain = Some("drift".to_owned());
        assert_eq!(pass("kubelet.conf"), plain);
        assert_eq!(pass("etcd.conf"), plain);
        assert_eq!(pass("etcd.service"), plain);
        assert_eq!([pass("etcd.conf"), pass("etcd.conf")], [Some("drift (repeated 4 times)".to_owned()), None]);
        assert_eq!(pass("docker.service"), plain);
        // A cause that is different each time, as by a number in it, is still bounded.
        assert_eq!([pass("1"), pass("2"), pass("3")], [None, Some("drift (repeated 8 times)".to_owned()), None]);
    }
}
