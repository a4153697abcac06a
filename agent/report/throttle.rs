//! Folding of repeats: the 1st, 2nd, 4th, 8th … of the same message is written, with a count.

use std::collections::HashMap;

use super::event::Event;
use super::{Code, catalog::Priority};

/// How many different messages are remembered; a flood of different ones starts afresh.
const REMEMBERED: usize = 256;

/// What has been said of what, in which words, how often.
#[derive(Debug, Default)]
pub(super) struct RepeatThrottle(HashMap<(Code, String, String), u64>);

impl RepeatThrottle {
    /// The event as it is to be written, or nothing where it is folded away.
    pub(super) fn pass(&mut self, mut event: Event) -> Option<Event> {
        let subject = subject(&event);
        if event.is_detail {
            return Some(event);
        }
        if event.code.entry().priority > Priority::Notice {
            // A normal message about a thing ends the series of complaints about it.
            self.0.retain(|(_, of, _), _| *of != subject);
            return Some(event);
        }
        if self.0.len() >= REMEMBERED {
            self.0.clear();
        }
        let count = self.0.entry((event.code, subject, event.message.clone())).or_default();
        *count += 1;
        if !count.is_power_of_two() {
            return None;
        }
        if *count > 1 {
            event.message = format!("{} (said {count} times)", event.message);
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
        assert_eq!(written[3].1, "no answer (said 8 times)");
        assert!(folder.pass(Event::new(Code::SourceFailed, "x").source("other")).is_some());
        assert!(folder.pass(Event::new(Code::SourceFailed, "another answer").source("cfn")).is_some());
        assert!(folder.pass(Event::new(Code::SourceRecovered, "back").source("cfn")).is_some());
        assert_eq!(folder.pass(failed()).unwrap().message, "no answer");
    }
}
