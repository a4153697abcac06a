//! One line on the console for each phase: what `openstack console log show` gives when nothing else answers.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use nix::fcntl::OFlag;

use super::catalog::Priority;
use super::event::{Event, Phase};
use super::text::{escaped, shortened};

/// The console must neither become our controlling terminal nor make us wait.
const NO_TERMINAL: i32 = OFlag::O_NOCTTY.bits() | OFlag::O_NONBLOCK.bits();
/// The room for what a line says.
const ROOM: usize = 160;
/// The room for why something failed: the unit's own last lines, which may name it, are at its end.
const ROOM_OF_FAILURE: usize = 1000;

/// Writes to the console where phase or state changes.
#[derive(Debug)]
pub(super) struct Console {
    device: Option<std::fs::File>,
    last: Option<(Phase, &'static str, &'static str)>,
}

impl Console {
    /// The machine's console; stays silent where it cannot be opened.
    #[expect(clippy::disallowed_methods, reason = "a device, not a file: nothing to write whole or sync")]
    pub(super) fn open() -> Self {
        let device = std::fs::OpenOptions::new().write(true).custom_flags(NO_TERMINAL).open("/dev/console").ok();
        Self { device, last: None }
    }

    /// Says nothing.
    pub(super) fn none() -> Self {
        Self { device: None, last: None }
    }

    /// Tells the console of an event, if it changes the picture.
    pub(super) fn tell(&mut self, event: &Event) {
        let Some(line) = self.line(event) else { return };
        if let Some(device) = &mut self.device {
            // A console that does not take the line must not stop the agent.
            let _ = device.write_all(line.as_bytes());
        }
    }

    fn line(&mut self, event: &Event) -> Option<String> {
        let phase = event.phase?;
        let entry = event.code.entry();
        let state = match entry.priority {
            Priority::Error => "failed",
            Priority::Warning | Priority::Notice => "waiting",
            Priority::Info => "ok",
        };
        let picture = (phase, state, entry.code);
        let same = self.last.is_some_and(|(phase, state, _)| (phase, state) == (picture.0, picture.1));
        self.last = Some(picture);
        if same {
            return None;
        }
        let mut line = format!("heat-node-agent phase={} state={state} code={}", phase.as_str(), entry.code);
        for (key, value) in [("unit", &event.unit), ("gate", &event.gate), ("deployment", &event.deployment_name)] {
            if let Some(value) = value {
                line.push_str(&format!(" {key}={}", escaped(value)));
            }
        }
        let why = event.cause.as_deref().unwrap_or(&event.message);
        let room = if entry.priority == Priority::Error { ROOM_OF_FAILURE } else { ROOM };
        line.push_str(&format!(" msg=\"{}\"\r\n", shortened(&escaped(why), room)));
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Code;

    #[test]
    fn one_line_a_phase_and_state_with_nothing_dangerous_in_it() {
        let mut console = Console { device: None, last: None };
        let waiting = Event::new(Code::VolumeWaiting, "volume\x1b[0m 1").phase(Phase::Volume);
        assert_eq!(
            console.line(&waiting).unwrap(),
            "heat-node-agent phase=volume state=waiting code=HNA-0302 msg=\"volume\\u{1b}[0m 1\"\r\n"
        );
        assert_eq!(console.line(&waiting), None);
        let mounted = Event::new(Code::VolumeMounted, "mounted").phase(Phase::Volume);
        assert!(console.line(&mounted).unwrap().contains("phase=volume state=ok code=HNA-0307"));
        assert_eq!(console.line(&Event::new(Code::SourceFailed, "no phase")), None);
        // What is waited for is named in a few words; what failed is told whole, as far as it goes.
        let long = |words: usize| format!("{} address already in use", "x ".repeat(words));
        let line = console.line(&Event::new(Code::GateWaiting, long(100)).phase(Phase::Gates)).unwrap();
        assert!(line.ends_with("x…\"\r\n") && !line.contains("address"), "{line}");
        let line = console.line(&Event::new(Code::GateRed, "red").phase(Phase::Gates).cause(long(450))).unwrap();
        assert!(line.contains("state=failed code=HNA-0703") && line.ends_with(" address already in use\"\r\n"), "{line}");
        let line = console.line(&Event::new(Code::UnitFailed, long(800)).phase(Phase::Units)).unwrap();
        assert!(line.ends_with("x…\"\r\n"), "{line}");
    }
}
