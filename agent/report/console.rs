//! One line on the console for each phase: what `openstack console log show` gives when nothing else answers.

use std::borrow::Cow;
use std::collections::BTreeSet;
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
const SPACE: usize = 400;
/// The room for why something failed: the unit's own last lines, which may name it, are at its end.
const SPACE_OF_FAILURE: usize = 1000;
/// Milliseconds that a console may take before it has room again: at 115200 baud the longest line takes a tenth of a second.
const PATIENCE: u16 = 250;
/// How often it may make room for a piece of one line.
const PIECES: usize = 256;

/// So many lines are remembered as shown.
const MOST: usize = 200;

/// A line that was shown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shown {
    phase: Phase,
    state: &'static str,
    is_complaint: bool,
    /// Of what waits or failed the code and what it is about.
    about: String,
}

/// A failure that was shown.
#[derive(Debug)]
struct ShownFailure {
    /// The gate, unit and source that failed, as far as it names them.
    subjects: [Option<String>; 3],
    why: String,
}

impl ShownFailure {
    fn of(event: &Event, why: &str) -> Self {
        Self { subjects: subjects(event).map(Option::<&String>::cloned), why: why.to_owned() }
    }

    /// Whether another failure is this one, as what ends with it reports it. One of another gate, unit or source has a cause of its own,
    /// however that reads.
    fn is_same(&self, event: &Event, why: &str) -> bool {
        let mut named = self.subjects.iter().zip(subjects(event)).filter_map(|(one, other)| one.as_ref().zip(other));
        named.all(|(one, other)| one == other) && (why.contains(&self.why) || self.why.contains(why))
    }
}

/// The gate, unit and source that an event is about.
fn subjects(event: &Event) -> [Option<&String>; 3] {
    [event.gate.as_ref(), event.unit.as_ref(), event.source.as_ref()]
}

/// Writes to the console where phase or state changes.
#[derive(Debug)]
pub(super) struct Console {
    device: Option<File>,
    /// What was shown since the last beginning.
    shown: BTreeSet<Shown>,
    /// Phase and state of the newest line.
    last: Option<(Phase, &'static str)>,
    /// What failed, until something else is begun.
    failure: Option<ShownFailure>,
    /// The same of an update from before its rollback began: a rollback that fails too ends with that failure, whatever it met itself.
    failure_of_update: Option<ShownFailure>,
    /// What of a node in place is wrong, by its unit or gate, with its line: the last line says so while anything is.
    wrong: Vec<(String, String)>,
}

impl Console {
    /// The machine's console; stays silent where it cannot be opened.
    #[expect(clippy::disallowed_methods, reason = "a device, not a file: nothing to write whole or sync")]
    pub(super) fn open() -> Self {
        // Where a file takes what would go to the console, what an earlier run wrote stays.
        let device = std::fs::OpenOptions::new().append(true).custom_flags(NO_TERMINAL).open("/dev/console").ok();
        Self { device, shown: BTreeSet::new(), last: None, failure: None, failure_of_update: None, wrong: Vec::new() }
    }

    /// Says nothing.
    pub(super) fn none() -> Self {
        Self { device: None, shown: BTreeSet::new(), last: None, failure: None, failure_of_update: None, wrong: Vec::new() }
    }

    /// Shows an event on the console, if it changes the picture.
    pub(super) fn show(&mut self, event: &Event) {
        let Some(line) = self.line(event) else { return };
        if let Some(device) = &mut self.device {
            write(device, line.as_bytes(), PATIENCE);
        }
    }

    fn line(&mut self, event: &Event) -> Option<String> {
        let phase = event.phase?;
        let entry = event.code.entry();
        let state = match entry.priority {
            Priority::Error => "failed",
            Priority::Warning | Priority::Notice if waits(event.code) => "waiting",
            // The agent works on: nothing waits for what was done, or is no more than suspicious.
            Priority::Warning => "degraded",
            Priority::Notice | Priority::Info => "ok",
        };
        if event.is_detail {
            // What is over may be no news yet, and is not shown again as wrong all the same.
            self.note(event, phase, state);
            return None;
        }
        let why = event.cause.as_deref().unwrap_or(&event.message);
        // What else goes on beside it is no new beginning.
        let is_beginning =
            event.code == Code::RollbackBegun || (state == "ok" && matches!(phase, Phase::Deploy | Phase::Plan | Phase::Steady));
        // What follows a failure reports it to Heat, or ends what was under way beside it. The failure itself stays the last line, and is
        // shown once.
        let is_of_failure = |failure: &ShownFailure| match entry.priority {
            Priority::Error => failure.is_same(event, why),
            _ => phase == Phase::Signal || (state == "ok" && !is_beginning),
        };
        let is_of_update =
            |failure: &ShownFailure| entry.priority == Priority::Error && self.failure.is_some() && why.contains(&failure.why);
        if self.failure.as_ref().is_some_and(is_of_failure) || self.failure_of_update.as_ref().is_some_and(is_of_update) {
            return None;
        }
        if entry.priority == Priority::Error {
            self.failure = Some(ShownFailure::of(event, why));
        } else if is_beginning {
            let before = self.failure.take();
            self.failure_of_update = before.filter(|_| event.code == Code::RollbackBegun);
        }
        // A node that is changed, or was, is measured anew.
        if matches!(event.code, Code::NodePlanned | Code::NodeConverged | Code::NodeUnchanged | Code::RolledBack) {
            self.wrong.clear();
        }
        let is_news = self.is_news(phase, state, event, is_beginning);
        let is_of_component = self.note(event, phase, state);
        let still_wrong = self.wrong.last().filter(|_| is_of_component && state == "ok").map(|(_, line)| line.as_str());
        is_news.then(|| text(event, phase, state) + still_wrong.unwrap_or_default())
    }

    /// Keeps what is wrong with a component of a node in place. Whether the event is about one.
    fn note(&mut self, event: &Event, phase: Phase, state: &'static str) -> bool {
        let Some(subject) = event.gate.as_ref().or(event.unit.as_ref()).filter(|_| phase == Phase::Steady) else { return false };
        let is_over = matches!(event.code, Code::ComponentRecovered | Code::PodNetworkRecovered);
        if is_over || state != "ok" {
            self.wrong.retain(|(other, _)| other != subject);
        }
        if state != "ok" {
            self.wrong.push((subject.clone(), text(event, phase, state)));
            let surplus = self.wrong.len().saturating_sub(MOST);
            self.wrong.drain(..surplus);
        }
        true
    }
}

/// An event as one line.
fn text(event: &Event, phase: Phase, state: &str) -> String {
    let entry = event.code.entry();
    let why = match &event.cause {
        // Its cause is the rule alone: what was found is in the message.
        Some(rule) if event.code == Code::NodeParametersSuspicious => format!("{}; {rule}", event.message).into(),
        cause => Cow::from(cause.as_deref().unwrap_or(&event.message)),
    };
    // What goes wrong with a node in place does so in no phase of bringing it up.
    let of_phase = if phase == Phase::Steady && state != "ok" { String::new() } else { format!(" phase={}", phase.as_str()) };
    let mut line = format!("heat-node-agent{of_phase} state={state} code={}", entry.code);
    for (key, value) in [("unit", &event.unit), ("gate", &event.gate), ("deployment", &event.deployment_name)] {
        if let Some(value) = value {
            line.push_str(&format!(" {key}={}", escaped(value)));
        }
    }
    let space = if entry.priority == Priority::Error { SPACE_OF_FAILURE } else { SPACE };
    line.push_str(&format!(" msg=\"{}\"", shortened(&quoted(&why), space)));
    let remedy = event.remedy_in_words();
    if state != "ok" && !remedy.is_empty() && !why.contains(&*remedy) {
        line.push_str(&format!(" remedy=\"{}\"", shortened(&quoted(&remedy), SPACE_OF_FAILURE)));
    }
    line + "\r\n"
}

/// A value between quotation marks, so that a program can take the line apart.
fn quoted(text: &str) -> String {
    escaped(text).replace('"', "\\\"")
}

impl Console {
    /// Whether this phase was not shown in this state yet: what only goes on is shown once, and what comes right again after a complaint.
    fn is_news(&mut self, phase: Phase, state: &'static str, event: &Event, is_beginning: bool) -> bool {
        if is_beginning {
            self.shown.clear();
        }
        let entry = event.code.entry();
        let is_complaint = entry.priority <= Priority::Warning;
        let named = [event.unit.as_deref(), event.gate.as_deref(), event.source.as_deref()];
        // Where nothing is named, what is complained about is in the cause.
        let cause = event.cause.as_deref().filter(|_| named.iter().all(Option::is_none));
        let subject = [Some(entry.code), cause].into_iter().chain(named);
        if self.shown.len() >= MOST {
            self.shown.clear();
        }
        let about = match state {
            "ok" => String::new(),
            _ if is_complaint => subject.flatten().collect::<Vec<_>>().join(" "),
            _ => entry.code.to_owned(),
        };
        if state == "ok" {
            self.shown.retain(|shown| shown.phase != phase || !shown.is_complaint);
        } else if is_complaint {
            self.shown.retain(|shown| shown.phase != phase || shown.state != "ok");
        }
        let is_new = self.shown.insert(Shown { phase, state, is_complaint, about });
        // A beginning right after one says nothing more; each complaint does.
        let is_news = is_new && (is_complaint || self.last != Some((phase, state)));
        if is_news {
            self.last = Some((phase, state));
        }
        is_news
    }
}

/// Whether a message that is worth a look is about something that goes on, not about something that was done.
fn waits(code: Code) -> bool {
    matches!(
        code,
        Code::VolumeWaiting
            | Code::VolumeGrowing
            | Code::StoreMoving
            | Code::CertificatesWaiting
            | Code::RotationWaiting
            | Code::ObjectWaiting
            | Code::RenewalWaiting
            | Code::GateWaiting
            | Code::FlannelKeyWaiting
            | Code::EtcdMemberWaiting
            | Code::IdentityUnknown
            | Code::NoSource
            | Code::SourceLeftOver
            | Code::DeploymentReplaced
            | Code::RollbackBegun
            | Code::ClockWrong
            | Code::UnitDiedInBringUp
            | Code::SignalRetry
            | Code::SignalRefused
            | Code::OutboxFull
    )
}

/// Writes a line to a console that may be busy with the kernel's own. One that does not take it must not stop the agent.
fn write(device: &mut File, mut line: &[u8], patience: u16) {
    for _ in 0..PIECES {
        match device.write(line) {
            Ok(count @ 1..) => line = line.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock && has_space(device, patience) => {}
            _ => return,
        }
        if line.is_empty() {
            return;
        }
    }
}

fn has_space(device: &File, patience: u16) -> bool {
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
        let mut console = Console::none();
        let waiting = Event::new(Code::VolumeWaiting, "volume\x1b[0m 1").phase(Phase::Volume);
        assert_eq!(
            console.line(&waiting).unwrap(),
            "heat-node-agent phase=volume state=waiting code=HNA-0302 msg=\"volume\\u{1b}[0m 1\" remedy=\"Check the attachment: \
             `openstack server volume list SERVER`. The device name does not matter.\"\r\n"
        );
        assert_eq!(console.line(&waiting), None);
        let mounted = Event::new(Code::VolumeMounted, "mounted").phase(Phase::Volume);
        assert!(console.line(&mounted).unwrap().contains("phase=volume state=ok code=HNA-0307"));
        assert_eq!(console.line(&Event::new(Code::SourceFailed, "no phase")), None);
        // What was done does not wait, nor does what is suspicious or went wrong beside the node.
        for (code, state) in [
            (Code::NodeParametersSuspicious, "degraded"),
            (Code::ReplacedDeploymentStopped, "degraded"),
            (Code::UnitHelperFailed, "degraded"),
            (Code::UnitDiedInBringUp, "waiting"),
            (Code::SignalRetry, "waiting"),
        ] {
            let line = Console::none().line(&Event::new(code, "said").phase(Phase::Units)).unwrap();
            assert!(line.contains(&format!(" state={state} ")), "{line}");
        }
        let done = Event::new(Code::CertificatesChanged, "installed").phase(Phase::Certificates);
        assert!(console.line(&done).unwrap().contains("phase=certificates state=ok code=HNA-0611"));
        // What was found, and the rule that it breaks.
        let small = Event::new(Code::NodeParametersSuspicious, "PREFLIGHT finds 1 CPU").cause("a master needs at least 2 CPUs");
        let line = console.line(&small.phase(Phase::Plan)).unwrap();
        assert!(line.contains("msg=\"PREFLIGHT finds 1 CPU; a master needs at least 2 CPUs\""), "{line}");
        // What is waited for is named in a few words; what failed is shown whole, as far as it fits.
        let long = |words: usize| format!("{} address already in use", "x ".repeat(words));
        let line = console.line(&Event::new(Code::GateWaiting, long(300)).phase(Phase::Gates)).unwrap();
        assert!(line.contains("x…\" remedy=\"If this persists") && !line.contains("address"), "{line}");
        let red = Event::new(Code::GateTimedOut, "red").phase(Phase::Gates).cause(long(450)).remedy("free the port");
        let line = console.line(&red).unwrap();
        assert!(line.contains("state=failed code=HNA-0703"), "{line}");
        assert!(line.ends_with(" address already in use\" remedy=\"free the port\"\r\n"), "{line}");
        // It stays the last line, whatever reports it to Heat.
        let failed = Event::new(Code::NodeFailed, "n").phase(Phase::Units).cause(format!("gate etcd: {}", long(450)));
        let sent = Event::new(Code::SignalDelivered, "sent").phase(Phase::Signal);
        assert_eq!((console.line(&failed), console.line(&sent)), (None, None));
        let done = Event::new(Code::CertificatesChanged, "installed").phase(Phase::Certificates);
        assert_eq!(console.line(&done), None);
        assert_eq!(console.line(&Event::new(Code::FileWritten, "wrote /x").phase(Phase::Files).detail()), None);
        // With a new beginning it is news again.
        assert!(console.line(&Event::new(Code::AgentStarted, "begun").phase(Phase::Plan)).is_some());
        let line = console.line(&Event::new(Code::UnitFailed, long(800)).phase(Phase::Units)).unwrap();
        assert!(line.contains("x…\" remedy=\""), "{line}");
    }

    /// Attack: one component recovered, and the last line said "ok" while another one was down.
    #[test]
    fn while_anything_is_wrong_the_last_line_says_so() {
        let mut console = Console::none();
        let mut show = |code: Code, unit: &str, cause: &str| {
            let event = Event::new(code, format!("component {unit}")).phase(Phase::Steady).unit(unit).cause(cause);
            console.line(&event).unwrap_or_default()
        };
        assert!(show(Code::ComponentFailed, "kubelet.service", "it said \"no\"").contains("msg=\"it said \\\"no\\\"\""));
        show(Code::ComponentStopped, "etcd.service", "it was stopped");
        let lines = show(Code::ComponentRecovered, "etcd.service", "");
        let lines: Vec<&str> = lines.lines().collect();
        assert!(lines.len() == 2 && lines[0].contains("state=ok") && lines[1].contains("unit=kubelet.service"), "{lines:?}");
        let lines = show(Code::ComponentRecovered, "kubelet.service", "");
        assert!(lines.lines().count() <= 1 && !lines.contains("state=failed"), "{lines}");
        // Attack: one that was healthy again, and said so later, was shown as wrong behind the recovery of another one.
        show(Code::ComponentFailed, "kubelet.service", "again");
        show(Code::ComponentStopped, "etcd.service", "again");
        let quiet =
            Event::new(Code::ComponentRecovered, "component kubelet").phase(Phase::Steady).unit("kubelet.service").detail();
        assert_eq!(console.line(&quiet), None);
        let loud = Event::new(Code::ComponentRecovered, "component etcd").phase(Phase::Steady).unit("etcd.service");
        assert!(!console.line(&loud).unwrap_or_default().contains("state=failed"));
    }

    #[test]
    fn after_a_rollback_the_failure_is_the_last_line_again() {
        let mut console = Console::none();
        let mut show = |code: Code, phase: Phase, cause: &str| console.line(&Event::new(code, "line").phase(phase).cause(cause));
        assert!(show(Code::UnitFailed, Phase::Units, "etcd.service is masked").is_some());
        assert!(show(Code::RollbackBegun, Phase::Units, "etcd.service is masked").unwrap().contains("state=waiting"));
        let line = show(Code::UnitFailed, Phase::Units, "etcd.service is masked").unwrap();
        assert!(line.contains("state=failed") && line.contains("masked"), "{line}");
        let later = [(Code::RollbackFailed, "unit etcd.service: "), (Code::NodeFailed, "")];
        for (code, before) in later {
            assert_eq!(show(code, Phase::Units, &format!("{before}etcd.service is masked")), None, "{code:?}");
        }
        // Where it succeeds, why it was needed.
        assert!(show(Code::RollbackBegun, Phase::Units, "no such flag").is_some());
        assert!(show(Code::RolledBack, Phase::Steady, "the node is back").is_some());
        assert!(show(Code::NodeFailed, Phase::Units, "no such flag").unwrap().contains("state=failed"));
    }

    /// Attack: beside "gate a: no answer within 5 s" the same words of another gate were taken for the failure that was shown.
    #[test]
    fn a_failure_of_another_unit_is_shown_although_its_cause_is_a_part_of_the_first_ones() {
        let mut console = Console::none();
        let failed = |code: Code, cause: &str| Event::new(code, "line").phase(Phase::Gates).cause(cause);
        let first = failed(Code::GateTimedOut, "containerd is up; no answer within 5 s").gate("containerd");
        assert!(console.line(&first).is_some());
        let other = failed(Code::GateTimedOut, "no answer within 5 s").gate("kubelet");
        assert!(console.line(&other).is_some_and(|line| line.contains("gate=kubelet")));
        // What ends the deployment names nothing itself, and is no other failure.
        assert_eq!(console.line(&failed(Code::NodeFailed, "gate kubelet: no answer within 5 s")), None);
    }

    /// A busy machine: the rollback found the unit in another moment of its start, and the failure was shown a third time.
    #[test]
    fn what_a_rollback_met_itself_does_not_show_the_updates_failure_again() {
        let mut console = Console::none();
        let mut show = |code: Code, cause: &str| console.line(&Event::new(code, "line").phase(Phase::Units).cause(cause));
        assert!(show(Code::UnitFailed, "port 2379 is held (still activating)").is_some());
        assert!(show(Code::RollbackBegun, "port 2379 is held (still activating)").is_some());
        assert!(show(Code::UnitFailed, "port 2379 is held (start-post)").is_some());
        assert_eq!(show(Code::NodeFailed, "etcd: port 2379 is held (still activating); the rollback failed too"), None);
        assert_eq!(show(Code::SignalQueued, "a signal"), None, "the failure stays the last line");
        // Another update fails, and is not rolled back.
        assert!(console.line(&Event::new(Code::NodePlanned, "generation 3").phase(Phase::Plan)).is_some());
        let again = Event::new(Code::UnitFailed, "line").phase(Phase::Units).cause("port 2379 is held (still activating)");
        assert!(console.line(&again).is_some());
    }

    #[test]
    fn what_goes_on_is_shown_once_and_each_complaint_until_it_came_right() {
        use Phase::{Gates, Metadata, Units, Volume};
        let mut console = Console::none();
        let mut is_shown =
            |code: Code, unit: &str, phase: Phase| console.line(&Event::new(code, unit).unit(unit).phase(phase)).is_some();
        for (code, unit, phase, expected) in [
            (Code::VolumeFound, "", Volume, true),
            (Code::VolumeFormatting, "", Volume, false),
            (Code::UnitStarted, "a", Units, true),
            (Code::GateWaiting, "a", Gates, true),
            (Code::GatePassed, "a", Gates, true),
            // Another phase between them is no reason to show one again.
            (Code::UnitStarted, "b", Units, false),
            (Code::GateWaiting, "b", Gates, false),
            (Code::GatePassed, "b", Gates, false),
            // A volume that is missing is not hidden by one that is there.
            (Code::VolumeWaiting, "", Volume, true),
            (Code::UnitDiedInBringUp, "a", Units, true),
            (Code::UnitDiedInBringUp, "a", Units, false),
            (Code::UnitDiedInBringUp, "b", Units, true),
            (Code::UnitStarted, "a", Units, true),
            (Code::SourceFailed, "", Metadata, true),
            (Code::SourceRecovered, "", Metadata, true),
            (Code::SourceFailed, "", Metadata, true),
        ] {
            assert_eq!(is_shown(code, unit, phase), expected, "{code:?} {unit}");
        }
        let mut is_drift_shown =
            |cause: &str| console.line(&Event::new(Code::NodeDrift, "differs").phase(Phase::Steady).cause(cause)).is_some();
        assert_eq!(["/a is gone", "/a is gone", "/b differs"].map(&mut is_drift_shown), [true, false, true]);
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
