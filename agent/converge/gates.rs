//! Measurements that must be good before Heat hears SUCCESS.
//!
//! A gate is measured at each event of its unit and, as the net, after a pause that grows. It is green after several
//! good answers in a row of one and the same process.

use std::path::Path;
use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt as _};
use serde_json::Value;

use super::{Failure, Prober, Units};
use crate::clock::{Clock, Stopwatch};
use crate::desired::{Gate, Probe};
use crate::files::Tree;
use crate::report::text::{escaped, shortened};
use crate::report::{Code, Event, Phase, Report};

/// The first pause after a bad answer; doubles up to [`LONGEST_PAUSE`], and starts again at each event.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Between good answers: long enough for a service that dies young to show it.
const GOOD_PAUSE: Duration = Duration::from_millis(250);
/// A measurement that takes longer is a bad one.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// The most that is quoted of an unexpected answer.
const QUOTED: usize = 200;

/// What a gate is measured with.
pub(super) struct Measure<'a, U, P> {
    pub(super) root: &'a Tree,
    pub(super) units: &'a U,
    pub(super) prober: &'a P,
    pub(super) clock: &'a Clock,
    pub(super) report: &'a Report,
    pub(super) generation: u64,
    /// Since when the whole run goes on, and how long it may.
    pub(super) running: &'a Stopwatch,
    pub(super) deadline: Duration,
}

impl<U: Units, P: Prober> Measure<'_, U, P> {
    /// Waits until the gate is green.
    ///
    /// # Errors
    /// At the deadline, with the last answer; before, if the gate's unit failed and systemd leaves it at that.
    pub(super) async fn until_green(&self, gate: &Gate) -> Result<(), Failure> {
        let taken = self.clock.start();
        let mut changes: Option<BoxStream<'static, String>> = None;
        let mut pause = FIRST_PAUSE;
        let mut attempt = 0;
        let mut good = 0;
        let mut process = None;
        loop {
            attempt += 1;
            let cause = match self.clock.limit(ANSWER_LIMIT, self.measure(gate)).await {
                Some(Ok(now)) => {
                    good = if now == process { good + 1 } else { 1 };
                    process = now;
                    if good >= u32::from(gate.consecutive.max(1)) {
                        let event = Event::new(Code::GateGreen, format!("gate {} is green", gate.name)).duration(taken.elapsed());
                        self.tell(gate, event);
                        return Ok(());
                    }
                    None
                }
                Some(Err(cause)) => Some(cause),
                None => Some(format!("no answer within {} s", ANSWER_LIMIT.as_secs())),
            };
            let left = self.deadline.saturating_sub(self.running.elapsed());
            let Some(cause) = cause else {
                if left.is_zero() {
                    return Err(red(gate, "it was good, but not often enough in a row".to_owned()));
                }
                self.clock.wait(GOOD_PAUSE).await;
                continue;
            };
            good = 0;
            if let Some(failure) = self.failed_unit(gate, &cause).await {
                return Err(failure);
            }
            if left.is_zero() {
                return Err(red(gate, cause));
            }
            self.tell(
                gate,
                Event::new(Code::GateWaiting, format!("gate {} is not green yet: {cause}", gate.name))
                    .attempt(attempt)
                    .next_try(pause)
                    .cause(cause),
            );
            if changes.is_none() && gate.unit.is_some() {
                changes = self.units.changes().await.ok();
            }
            let heard = self.wait(gate, &mut changes, pause.min(left)).await;
            pause = if heard { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        }
    }

    /// Waits for news of the gate's unit, or for the pause to end; true if there was news.
    async fn wait(&self, gate: &Gate, changes: &mut Option<BoxStream<'static, String>>, pause: Duration) -> bool {
        let timer = self.clock.wait(pause);
        tokio::pin!(timer);
        let (Some(stream), Some(unit)) = (changes.as_mut(), &gate.unit) else {
            timer.await;
            return false;
        };
        loop {
            tokio::select! {
                () = &mut timer => return false,
                name = stream.next() => match name {
                    Some(name) if name == *unit => {
                        // systemd tells of one change in several signals: measure once for all of them.
                        self.clock.wait(FIRST_PAUSE.min(pause) / 2).await;
                        return true;
                    }
                    Some(_) => {}
                    None => {
                        // The bus went away: the next round listens anew.
                        *changes = None;
                        timer.await;
                        return false;
                    }
                },
            }
        }
    }

    /// A unit that failed and that systemd does not start again: waiting longer is of no use.
    async fn failed_unit(&self, gate: &Gate, cause: &str) -> Option<Failure> {
        let unit = gate.unit.as_deref()?;
        let state = self.units.unit(unit).await.ok()?;
        let failure = || {
            let cause = format!("{unit} is {}; gate {}: {cause}", state.describe(), gate.name);
            Failure::new(Code::UnitFailed, format!("gate {}", gate.name), cause).unit(unit)
        };
        state.is_failed().then(failure)
    }

    fn tell(&self, gate: &Gate, event: Event) {
        let event = event.phase(Phase::Gates).generation(self.generation).gate(&gate.name);
        self.report.emit(match &gate.unit {
            Some(unit) => event.unit(unit),
            None => event,
        });
    }

    /// One measurement, good: main process and number of restarts of the gate's unit, because good answers count together
    /// only while these stay. Bad: the cause in words.
    async fn measure(&self, gate: &Gate) -> Result<Option<(u32, u32)>, String> {
        ask(self.root, self.prober, &gate.probe).await?;
        let Some(unit) = &gate.unit else { return Ok(None) };
        let state = self.units.unit(unit).await.map_err(|error| error.to_string())?;
        // Somebody else may answer in its place. A unit that applied settings has done its work and may be down.
        if !matches!(gate.probe, Probe::Sysctl(_)) && !state.is_active() {
            return Err(format!("the answer is good, but {unit} is {}", state.describe()));
        }
        Ok(Some((state.main_pid, state.n_restarts)))
    }
}

/// One question: whether the answer is as it should be, else the cause in words.
async fn ask(root: &Tree, prober: &impl Prober, probe: &Probe) -> Result<(), String> {
    match probe {
        Probe::HttpJson { url, key, value } => {
            let answer = prober.get_json(url).await.map_err(|error| error.to_string())?;
            expect(&answer, key, value)
        }
        Probe::Docker { socket, storage_driver, data_root } => {
            let info = prober.docker(socket, "/info").await.map_err(|error| error.to_string())?;
            expect(&info, "Driver", storage_driver)?;
            expect(&info, "DockerRootDir", data_root)
        }
        Probe::Http { url, body, authority } => {
            let answer = prober.get_text(url, authority.as_deref()).await.map_err(|error| error.to_string())?;
            match body {
                Some(body) if answer.trim() != body => Err(format!("the answer is {}, not {body}", quoted(answer.trim()))),
                _ => Ok(()),
            }
        }
        Probe::Sysctl(settings) => settings.iter().try_for_each(|(key, least)| at_least(root, key, *least)),
    }
}

/// Time is up.
fn red(gate: &Gate, cause: String) -> Failure {
    let failure = Failure::new(Code::GateRed, format!("gate {}", gate.name), cause).remedy(&gate.remedy);
    match &gate.unit {
        Some(unit) => failure.unit(unit),
        None => failure,
    }
}

/// The member `key` of an answer must be `value`, as text: etcd's health is a string in one version, a boolean in another.
fn expect(answer: &Value, key: &str, value: &str) -> Result<(), String> {
    let found = match answer.get(key) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => return Err(format!("the answer has no {key}: {}", quoted(&answer.to_string()))),
    };
    if found == value { Ok(()) } else { Err(format!("{key} is {}, not {value}", quoted(&found))) }
}

fn quoted(text: &str) -> String {
    shortened(&escaped(text), QUOTED)
}

fn at_least(root: &Tree, key: &str, least: u64) -> Result<(), String> {
    const LIMIT: u64 = 4096;
    let bytes = root.read(&Path::new("/proc/sys").join(key), LIMIT).map_err(|error| error.to_string())?;
    let Some(bytes) = bytes else { return Err(format!("the kernel has no setting {key}")) };
    let text = String::from_utf8_lossy(&bytes);
    match text.trim().parse::<u64>() {
        Ok(number) if number >= least => Ok(()),
        _ => Err(format!("{key} is {}, not {least} or more", quoted(text.trim()))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use std::sync::Arc;

    use super::*;
    use crate::files::Attributes;
    use crate::http::fake::{Authority, Fake, ok, status};
    use crate::http::{Http, Tls};

    #[test]
    fn an_answer_is_compared_as_text() {
        for (answer, bad) in [
            (json!({"health": "true"}), None),
            (json!({"health": true, "reason": ""}), None),
            (json!({"health": "false"}), Some("health is false, not true")),
            (json!({"x": "\u{1b}"}), Some("the answer has no health: {\"x\":\"\\u001b\"}")),
            (json!("OK"), Some("the answer has no health: \"OK\"")),
        ] {
            assert_eq!(expect(&answer, "health", "true").err().as_deref(), bad, "{answer}");
        }
    }

    /// The API server is believed by the cluster's authority alone, and only while it says that it is well.
    #[tokio::test]
    async fn an_https_gate_believes_the_authority_in_its_file_and_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let root = Arc::new(Tree::open(dir.path()).unwrap());
        let ours = Authority::new("blue");
        for (path, authority) in [("/ca.crt", &ours), ("/other.crt", &Authority::new("blue"))] {
            root.write(Path::new(path), authority.pem().as_bytes(), Attributes::mode(0o644)).unwrap();
        }
        let starting = || status("500 Internal Server Error", "[-]etcd failed: reason withheld\nhealthz check failed");
        let server = Fake::start_tls(vec![starting(), ok("not ok"), ok("ok\n")], ours.identity("127.0.0.1", (2020, 2090))).await;
        let http = Http::new(Tls::default(), root, Clock::system());
        let url = format!("{}/readyz", server.base);
        let question = |file: Option<&str>| Probe::Http {
            url: url.clone(),
            body: Some("ok".to_owned()),
            authority: file.map(str::to_owned),
        };
        let tree = Tree::open(dir.path()).unwrap();
        for stranger in [None, Some("/other.crt"), Some("/absent.crt")] {
            let cause = ask(&tree, &http, &question(stranger)).await.unwrap_err();
            assert!(server.requests().is_empty(), "{stranger:?}: {cause}");
        }
        assert_eq!(ask(&tree, &http, &question(Some("/ca.crt"))).await.unwrap_err(), format!("{url} answers 500"));
        assert_eq!(ask(&tree, &http, &question(Some("/ca.crt"))).await.unwrap_err(), "the answer is not ok, not ok");
        assert_eq!(ask(&tree, &http, &question(Some("/ca.crt"))).await, Ok(()));
        assert!(server.requests().iter().all(|request| request.starts_with("GET /readyz ")));
        // A name that the certificate does not have.
        server.present(Some(ours.identity("192.0.2.11", (2020, 2090))));
        let another = Http::new(Tls::default(), Arc::new(Tree::open(dir.path()).unwrap()), Clock::system());
        let cause = ask(&tree, &another, &question(Some("/ca.crt"))).await.unwrap_err();
        assert!(!cause.contains("answer"), "{cause}");
    }

    #[test]
    fn kernel_settings_are_read_below_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        tree.create_dir_all(Path::new("/proc/sys/net/ipv4"), Attributes::mode(0o755)).unwrap();
        tree.write(Path::new("/proc/sys/net/ipv4/ip_forward"), b"1\n", Attributes::mode(0o644)).unwrap();
        assert_eq!(at_least(&tree, "net/ipv4/ip_forward", 1), Ok(()));
        assert_eq!(at_least(&tree, "net/ipv4/ip_forward", 2).unwrap_err(), "net/ipv4/ip_forward is 1, not 2 or more");
        assert_eq!(at_least(&tree, "net/bridge/x", 1).unwrap_err(), "the kernel has no setting net/bridge/x");
    }
}
