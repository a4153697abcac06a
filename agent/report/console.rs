//! One line on the console for each phase: what `openstack console log show` gives when nothing else answers.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Code;
use super::catalog::Priority;
use super::event::{Event, Phase};
use super::text::{escaped, shortened};

/// The console must neither become our controlling terminal nor make us wait.
const NO_TERMINAL: i32 = OFlag::O_NOCTTY.bits() | OFlag::O_NONBLOCK.bits();
/// The room for what a line says.
const ROOM: usize = 160;
/// The room for why something failed: the unit's own last lines, which may name it, are at its end.
const ROOM_OF_FAILURE: usize = 1000;
/// Milliseconds that a console may take before it has room again: at 115200 baud the longest line takes a tenth of a second.
const PATIENCE: u16 = 250;
/// How often it may make room for a piece of one line.
const PIECES: usize = 256;

/// Writes to the console where phase or state changes.
#[derive(Debug)]
pub(super) struct Console {
    device: Option<File>,
    last: Option<(Phase, &'static str, &'static str)>,
    /// Why something failed, until something else is begun.
    failure: Option<String>,
}

impl Console {
    /// The machine's console; stays silent where it cannot be opened.
    #[expect(clippy::disallowed_methods, reason = "a device, not a file: nothing to write whole or sync")]
    pub(super) fn open() -> Self {
        let device = std::fs::OpenOptions::new().write(true).custom_flags(NO_TERMINAL).open("/dev/console").ok();
        Self { device, last: None, failure: None }
    }

    /// Says nothing.
    pub(super) fn none() -> Self {
        Self { device: None, last: None, failure: None }
    }

    /// Shows an event on the console, if it changes the picture.
    pub(super) fn show(&mut self, event: &Event) {
        let Some(line) = self.line(event) else { return };
        if let Some(device) = &mut self.device {
            write(device, line.as_bytes(), PATIENCE);
        }
    }

    fn line(&mut self, event: &Event) -> Option<String> {
        let phase = event.phase.filter(|_| !event.is_detail)?;
        let entry = event.code.entry();
        let state = match entry.priority {
            Priority::Error => "failed",
            Priority::Warning => "waiting",
            Priority::Notice if waits(event.code) => "waiting",
            Priority::Notice | Priority::Info => "ok",
        };
        let why = event.cause.as_deref().unwrap_or(&event.message);
        // What follows a failure reports it to Heat. The failure itself stays the last line, and is shown once.
        let is_of_failure = |failure: &String| match entry.priority {
            Priority::Error => why.contains(failure) || failure.contains(why),
            _ => phase == Phase::Signal,
        };
        if self.failure.as_ref().is_some_and(is_of_failure) {
            return None;
        }
        // What else goes on beside it is no new beginning.
        let is_beginning = state == "ok" && matches!(phase, Phase::Deploy | Phase::Plan | Phase::Steady);
        if entry.priority == Priority::Error {
            self.failure = Some(why.to_owned());
        } else if is_beginning {
            self.failure = None;
        }
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
        let room = if entry.priority == Priority::Error { ROOM_OF_FAILURE } else { ROOM };
        line.push_str(&format!(" msg=\"{}\"", shortened(&escaped(why), room)));
        let remedy = event.remedy.as_deref().unwrap_or(entry.remedy);
        if entry.priority == Priority::Error && !remedy.is_empty() && !why.contains(remedy) {
            line.push_str(&format!(" remedy=\"{}\"", shortened(&escaped(remedy), ROOM_OF_FAILURE)));
        }
        line.push_str("\r\n");
        Some(line)
    }
}

/// Whether a message that is worth a look is about something that goes on, not about something that was done.
fn waits(code: Code) -> bool {
    matches!(
        code,
        Code::VolumeWaiting
            | Code::VolumeFormatting
            | Code::VolumeGrowing
            | Code::StoreMoving
            | Code::CertificatesWaiting
            | Code::RotationWaiting
            | Code::ObjectWaiting
            | Code::RenewalWaits
            | Code::GateWaiting
            | Code::FlannelKeyWaiting
    )
}

/// Writes a line to a console that may be busy with the kernel's own. One that does not take it must not stop the agent.
fn write(device: &mut File, mut line: &[u8], patience: u16) {
    for _ in 0..PIECES {
        match device.write(line) {
            Ok(count @ 1..) => line = line.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock && has_room(device, patience) => {}
            _ => return,
        }
        if line.is_empty() {
            return;
        }
    }
}

fn has_room(device: &File, patience: u16) -> bool {
    poll(&mut [PollFd::new(device.as_fd(), PollFlags::POLLOUT)], PollTimeout::from(patience)).is_ok_and(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;

    use nix::fcntl::{FcntlArg, fcntl};

    use super::*;

    #[test]
    fn one_line_a_phase_and_state_with_nothing_dangerous_in_it() {
        let mut console = Console { device: None, last: None, failure: None };
        let waiting = Event::new(Code::VolumeWaiting, "volume\x1b[0m 1").phase(Phase::Volume);
        assert_eq!(
            console.line(&waiting).unwrap(),
            "heat-node-agent phase=volume state=waiting code=HNA-0302 msg=\"volume\\u{1b}[0m 1\"\r\n"
        );
        assert_eq!(console.line(&waiting), None);
        let mounted = Event::new(Code::VolumeMounted, "mounted").phase(Phase::Volume);
        assert!(console.line(&mounted).unwrap().contains("phase=volume state=ok code=HNA-0307"));
        assert_eq!(console.line(&Event::new(Code::SourceFailed, "no phase")), None);
        // What is waited for is named in a few words; what failed is shown whole, as far as it fits.
        let long = |words: usize| format!("{} address already in use", "x ".repeat(words));
        let line = console.line(&Event::new(Code::GateWaiting, long(100)).phase(Phase::Gates)).unwrap();
        assert!(line.ends_with("x…\"\r\n") && !line.contains("address"), "{line}");
        let red = Event::new(Code::GateRed, "red").phase(Phase::Gates).cause(long(450)).remedy("free the port");
        let line = console.line(&red).unwrap();
        assert!(line.contains("state=failed code=HNA-0703"), "{line}");
        assert!(line.ends_with(" address already in use\" remedy=\"free the port\"\r\n"), "{line}");
        // It stays the last line, whatever reports it to Heat.
        let failed = Event::new(Code::NodeFailed, "n").phase(Phase::Units).cause(format!("gate etcd: {}", long(450)));
        let sent = Event::new(Code::SignalDelivered, "sent").phase(Phase::Signal);
        assert_eq!((console.line(&failed), console.line(&sent)), (None, None));
        // What was done does not wait.
        let done = Event::new(Code::CertificatesChanged, "installed").phase(Phase::Certificates);
        assert!(console.line(&done).unwrap().contains("phase=certificates state=ok code=HNA-0611"));
        assert_eq!(console.line(&Event::new(Code::FileWritten, "wrote /x").phase(Phase::Files).detail()), None);
        // With a new beginning it is news again.
        assert!(console.line(&Event::new(Code::AgentStarted, "begun").phase(Phase::Plan)).is_some());
        let line = console.line(&Event::new(Code::UnitFailed, long(800)).phase(Phase::Units)).unwrap();
        assert!(line.contains("x…\" remedy=\""), "{line}");
    }

    #[test]
    fn a_line_waits_for_a_busy_console_and_not_for_a_dead_one() {
        let (mut reader, pipe) = std::io::pipe().unwrap();
        fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        let mut device = File::from(OwnedFd::from(pipe));
        while device.write(&[b'-'; 512]).is_ok() {}
        write(&mut device, b"nobody reads\n", 10);
        let busy = std::thread::spawn(move || write(&mut device, b"whole\n", 60_000));
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        busy.join().unwrap();
        assert!(text.ends_with("-whole\n") && !text.contains("nobody"), "{} bytes", text.len());
    }
}
