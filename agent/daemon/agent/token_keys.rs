//! Keys of service accounts, compared with those of other masters: when, and what is said of it.
//!
//! Soon after a change of the node, and every few minutes. What is wrong is reported once it was found twice in a row: a master that has
//! just been updated may not have said its keys yet. No update waits for it, or fails because of it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::subject::Subject;
use super::task::BackgroundTask;
use crate::backoff::{Backoff, Damper};
use crate::daemon::host::Host;
use crate::daemon::node::Node;
use crate::deploy::{AppliedExtent, Reference};
use crate::error::{Error, ErrorKind, Result};
use crate::http::Http;
use crate::keepers::token_keys::{KeyComparison, TokenKeyMaster, compare};
use crate::report::reported_once::ReportedOnce;
use crate::report::status::ServiceAccountKeysStatus;
use crate::report::{Code, Event, Phase};

/// Between two looks.
const EVERY: Duration = Duration::from_mins(5);
/// The same while something is wrong.
const AGAIN: Duration = Duration::from_secs(30);
/// Between two tries in vain.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(15), EVERY);
/// An API that is away says so itself; so many tries in vain are more than a restart.
const TRIES: u32 = 5;
/// As messages call it.
const STEP: &str = "service account keys";

/// What was found, and when it is looked at again.
pub(in crate::daemon) struct TokenKeyComparisons {
    host: Rc<Host>,
    http: Rc<Http>,
    task: BackgroundTask<(), Result<KeyComparison>>,
    master: Subject<TokenKeyMaster>,
    /// Until the next look.
    damper: Damper,
    /// What was wrong at the newest look.
    last: Vec<String>,
    reported: ReportedOnce<String>,
    shown: ServiceAccountKeysStatus,
    /// Why the newest looks failed, and how many of them.
    failure: Option<(Error, u32)>,
}

impl TokenKeyComparisons {
    pub(super) fn new(host: Rc<Host>, http: Rc<Http>) -> Self {
        Self {
            host,
            http,
            task: BackgroundTask::default(),
            master: Subject::unknown(),
            damper: Damper::new(PAUSES),
            last: Vec::new(),
            reported: ReportedOnce::default(),
            shown: ServiceAccountKeysStatus::default(),
            failure: None,
        }
    }

    /// As `status` shows it; nothing where there is nothing to compare.
    pub(in crate::daemon) fn status(&self) -> Option<ServiceAccountKeysStatus> {
        self.master.get()?;
        let failure = self.failure.as_ref().filter(|(error, tries)| is_news(error, *tries)).map(|(error, _)| error);
        let wrong = Code::TokenKeysDiffer.entry().remedy;
        let remedy = (!self.shown.wrong.is_empty()).then(|| wrong.to_owned());
        let status = ServiceAccountKeysStatus {
            unknown: failure.map(ToString::to_string),
            remedy: remedy.or_else(|| failure.map(|_| Code::TokenKeysNotCompared.entry().remedy.to_owned())),
            ..self.shown.clone()
        };
        (status.masters > 0 || status.unknown.is_some()).then_some(status)
    }

    /// How long until they are compared; nothing where there is nothing to compare, or it is on its way.
    pub(super) fn until_due(&self) -> Option<Duration> {
        self.master.get().filter(|_| !self.task.is_busy()).map(|_| self.damper.left())
    }

    /// Starts to compare them where that is due. `reference`: the node in place; none while it is brought up.
    pub(super) fn begin(&mut self, reference: Option<&Reference>, node: &Node) {
        let Some(reference) = reference.filter(|reference| reference.extent == AppliedExtent::Whole) else {
            // It may have other keys afterwards; and one that was given up half way may not have all of them.
            self.task.stop();
            self.master = Subject::unknown();
            return;
        };
        let there = (reference.generation, reference.extent);
        if !self.master.is_of(there) {
            self.master = Subject::found(there, node.token_keys(reference));
            self.damper.release();
        }
        if self.until_due() == Some(Duration::ZERO) {
            self.start();
        }
    }

    fn start(&mut self) {
        let Some(master) = self.master.get().cloned() else { return };
        let (root, http) = (Arc::clone(&self.host.root), Rc::clone(&self.http));
        self.task.start((), async move { compare(&http, &root, &master).await });
    }

    /// Waits until they are compared, or could not be. Safe to drop.
    pub(super) async fn ended(&mut self) -> Result<KeyComparison> {
        self.task.ended().await.1
    }

    /// Takes that in.
    pub(super) fn record(&mut self, compared: Result<KeyComparison>) {
        match compared {
            Ok(found) => self.take(found),
            Err(error) => self.report_failure(error),
        }
    }

    fn take(&mut self, found: KeyComparison) {
        self.failure = None;
        self.damper.release();
        self.damper.hold_for(if found.wrong.is_empty() { EVERY } else { AGAIN }, &self.host.clock);
        let confirmed: Vec<String> = found.wrong.iter().filter(|wrong| self.last.contains(wrong)).cloned().collect();
        let was_reported = !self.reported.reported().is_empty();
        for wrong in self.reported.news(&confirmed) {
            self.host.report.emit(Event::new(Code::TokenKeysDiffer, wrong).phase(Phase::Steady).step(STEP));
        }
        if was_reported && found.wrong.is_empty() {
            let line = "all masters verify each other's service account tokens again";
            self.host.report.emit(Event::new(Code::TokenKeysAgree, line).phase(Phase::Steady).step(STEP));
        }
        if self.shown.since.is_empty() || self.shown.wrong != confirmed {
            self.shown.since = self.host.clock.now().rfc3339();
        }
        (self.shown.masters, self.shown.wrong) = (found.masters, confirmed);
        self.last = found.wrong;
    }

    /// Says why, once a cause; what was found before stays.
    fn report_failure(&mut self, error: Error) {
        let pause = self.damper.hold_by(|pause| error.asked_pause().unwrap_or(pause).clamp(pause, EVERY), &self.host.clock);
        let before = self.failure.take().filter(|(before, _)| before.cause() == error.cause());
        let (was_news, tries) = before.map_or((false, 1), |(before, tries)| (is_news(&before, tries), tries.saturating_add(1)));
        if is_news(&error, tries) && !was_news {
            let line = "service account keys were not compared with those of other masters";
            self.host.report.emit(Event::new(Code::TokenKeysNotCompared, line).step(STEP).next_try(pause).error(&error));
        }
        self.failure = Some((error, tries));
    }
}

fn is_news(error: &Error, tries: u32) -> bool {
    error.kind() != ErrorKind::Transient || tries >= TRIES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, Timestamp};
    use crate::files::Tree;
    use crate::http::Tls;

    fn comparisons() -> (tempfile::TempDir, TokenKeyComparisons) {
        let dir = tempfile::tempdir().unwrap();
        let tree = Arc::new(Tree::open(dir.path()).unwrap());
        let clock = Clock::manual(Timestamp(1_772_366_400_000));
        let http = Http::new(Tls::default(), Arc::clone(&tree), clock.clone());
        let host = Host::in_directory(tree, clock);
        let mut all = TokenKeyComparisons::new(Rc::new(host), Rc::new(http));
        let master = TokenKeyMaster {
            server: "https://127.0.0.1:6443".to_owned(),
            node: "m1".to_owned(),
            identity: None,
            sign: ["/sa.key".to_owned()].into(),
            verify: ["/sa.key".to_owned()].into(),
        };
        all.master = Subject::found((1, AppliedExtent::Whole), Some(master));
        (dir, all)
    }

    fn told(all: &TokenKeyComparisons) -> Vec<Code> {
        all.host.report.events().iter().map(|event| event.code).collect()
    }

    fn found(wrong: &[&str]) -> KeyComparison {
        KeyComparison { masters: 2, wrong: wrong.iter().map(|text| (*text).to_owned()).collect() }
    }

    #[test]
    fn what_is_wrong_twice_is_reported_once_and_shown_until_it_ends() {
        let (_dir, mut all) = comparisons();
        assert_eq!((all.status(), all.until_due()), (None, Some(Duration::ZERO)));
        all.record(Ok(found(&[])));
        assert_eq!((all.status().unwrap().masters, all.until_due()), (2, Some(EVERY)));
        all.host.clock.advance(EVERY);
        all.record(Ok(found(&["m2"])));
        assert_eq!((all.status().unwrap().wrong, told(&all), all.until_due()), (Vec::new(), Vec::new(), Some(AGAIN)));
        all.record(Ok(found(&["m2"])));
        let status = all.status().unwrap();
        assert_eq!((status.wrong, status.since.as_str()), (vec!["m2".to_owned()], "2026-03-01T12:05:00Z"));
        assert!(status.remedy.unwrap().contains("KUBE_SERVICE_ACCOUNT_PRIVATE_KEY"));
        for wrong in [&["m2"][..], &["m2", "m3"], &["m2", "m3"], &["m3"]] {
            all.record(Ok(found(wrong)));
        }
        assert_eq!(told(&all), [Code::TokenKeysDiffer; 2]);
        all.record(Ok(found(&[])));
        let status = all.status().unwrap();
        assert_eq!((status.wrong, status.remedy, told(&all).last()), (Vec::new(), None, Some(&Code::TokenKeysAgree)));
        all.record(Ok(found(&["m2"])));
        all.record(Ok(found(&[])));
        assert_eq!(told(&all).len(), 3, "it was wrong once, and its end is no news");
        // On a node without other masters there is nothing to show.
        all.record(Ok(KeyComparison::default()));
        assert_eq!(all.status(), None);
    }

    #[test]
    fn what_keeps_it_from_being_compared_is_said_once_a_cause() {
        let (_dir, mut all) = comparisons();
        for try_ in 1..=7 {
            all.record(Err(Error::transient("connection refused")));
            assert_eq!(all.status().is_some(), try_ >= 5, "{try_}: a restart is no news");
        }
        assert_eq!((told(&all), all.until_due()), (vec![Code::TokenKeysNotCompared], Some(EVERY)));
        all.record(Err(Error::permanent("there is no such file")));
        all.record(Err(Error::permanent("there is no such file")));
        assert_eq!((told(&all).len(), all.status().unwrap().unknown.as_deref()), (2, Some("there is no such file")));
        all.record(Ok(found(&[])));
        assert_eq!(all.status().unwrap().unknown, None);
    }
}
