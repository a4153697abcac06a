//! The script or hook that runs, and whether it is to be ended before its own end: what Heat says of it, and its grace.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use nix::errno::Errno;

use super::task::BackgroundTask;
use super::view::withdrawal_reason;
use crate::clock::{Clock, Moment, Stopwatch, Timestamp};
use crate::collect::Snapshot;
use crate::daemon::node::deadline::DeadlineInputs;
use crate::deploy::{DeploymentRecord, Ending};
use crate::error::{Error, Result};
use crate::programs::{JobResult, Programs};
use crate::report::text::duration;

/// A job that ends before its program is started this often is reported as failed.
const FAILED_START_LIMIT: u32 = 5;

/// How long a deployment may wait for space for its files, from when it was first seen. Heat tells its agents no timeout of a stack; it is
/// an hour unless somebody says otherwise (heat.conf, `stack_action_timeout`), and Heat's own timeout must not be the first news.
const SPACE_LIMIT: Duration = Duration::from_mins(50);

/// One script or hook at a time.
pub(in crate::daemon) struct JobTask {
    programs: Rc<Programs>,
    /// By the deployment's id.
    task: BackgroundTask<String, Result<Option<JobResult>>>,
    /// What the newest answer of Heat says of it.
    judged: Option<Judged>,
    /// Heat waits for it no more, since then.
    grace: Option<Grace>,
    /// It is being ended.
    pub(super) is_ending: bool,
    /// How often a job ended before its program was started, by deployment.
    failed_starts: BTreeMap<String, u32>,
    /// Since when there has been no room to begin any: those behind the first one wait as long.
    without_space: Option<Stopwatch>,
    /// The last one of which it was said that it is taken up.
    resumed: Option<String>,
}

struct Judged {
    id: String,
    /// The answer that it is judged by.
    answer: Option<Moment>,
    gone: Option<String>,
}

struct Grace {
    id: String,
    since: Stopwatch,
    /// When the grace was over: an answer to a poll that began later decides.
    over: Option<Moment>,
}

/// How far a grace is.
pub(super) enum GraceState {
    /// It begins now.
    Begins,
    /// It lasts.
    Lasts,
    /// It was over at this moment.
    Over(Moment),
}

impl JobTask {
    pub(super) fn new(programs: Rc<Programs>) -> Self {
        let (judged, grace, failed_starts) = (None, None, BTreeMap::new());
        let task = BackgroundTask::default();
        Self { programs, task, judged, grace, is_ending: false, failed_starts, without_space: None, resumed: None }
    }

    /// Id of the deployment whose script or hook runs.
    pub(in crate::daemon) fn id(&self) -> Option<&str> {
        self.task.about().map(String::as_str)
    }

    /// Marks that this one is reported as taken up; whether it was not yet.
    pub(super) fn mark_resumed(&mut self, id: &str) -> bool {
        self.resumed.replace(id.to_owned()).is_none_or(|resumed| resumed != id)
    }

    /// Starts a prepared job, or takes it up where it has begun.
    pub(super) fn run(&mut self, id: String, key: String) {
        let programs = Rc::clone(&self.programs);
        self.task.start(id, async move { programs.run(&key).await });
    }

    /// Watches a job that has begun.
    pub(super) fn follow(&mut self, record: &DeploymentRecord) {
        let (programs, key) = (Rc::clone(&self.programs), record.job());
        self.task.start(record.id.clone(), async move { programs.follow(&key).await });
    }

    /// Ends a job, in the place of who only watched it.
    pub(super) fn end(&mut self, record: &DeploymentRecord) {
        let (programs, key) = (Rc::clone(&self.programs), record.job());
        self.is_ending = true;
        self.task.start(record.id.clone(), async move { programs.end(&key).await });
    }

    /// The end of what runs, after which the task is empty.
    pub(super) async fn ended(&mut self) -> (String, Result<Option<JobResult>>) {
        let ended = self.task.ended().await;
        (self.judged, self.grace, self.is_ending) = (None, None, false);
        ended
    }

    /// Counts a job that ended before its program was started; `true` when that is no accident any more.
    pub(super) fn count_failed_start(&mut self, id: &str) -> bool {
        let count = self.failed_starts.entry(id.to_owned()).or_default();
        *count += 1;
        *count >= FAILED_START_LIMIT
    }

    /// Whether a job that found no space for its files has waited for it long enough, and was tried more than once.
    pub(super) fn waited_for_space(&mut self, record: &DeploymentRecord, clock: &Clock) -> bool {
        self.programs.is_postponed(&record.job()) && self.waited(&record.id, Some(record.seen), clock)
    }

    /// The same for what could not be recorded before it begins, because of `error`; `seen`: when it was first seen, where that is recorded.
    pub(super) fn waited_for_space_to_record(&mut self, id: &str, seen: Option<Timestamp>, error: &Error, clock: &Clock) -> bool {
        let is_of_space = matches!(error.errno(), Some(Errno::ENOSPC | Errno::EDQUOT | Errno::EROFS));
        if !is_of_space {
            return false;
        }
        self.without_space.get_or_insert_with(|| clock.start());
        self.waited(id, seen, clock)
    }

    /// One could be begun.
    pub(super) fn has_space(&mut self) {
        self.without_space = None;
    }

    fn waited(&mut self, id: &str, seen: Option<Timestamp>, clock: &Clock) -> bool {
        let is_tried = self.count_failed_start(id);
        let seen_for = |seen| DeadlineInputs { made: "", seen, timeout: SPACE_LIMIT }.waiting_time(clock.now());
        let without_space = self.without_space.as_ref().map_or(Duration::ZERO, Stopwatch::elapsed);
        is_tried && seen.map_or(Duration::ZERO, seen_for).max(without_space) >= SPACE_LIMIT
    }

    /// It is run again by order of the operator.
    pub(super) fn forget_failed_starts(&mut self, id: &str) {
        self.failed_starts.remove(id);
    }

    /// Why Heat waits for the running one no more: looked up once for each answer.
    pub(super) fn judge(&mut self, record: &DeploymentRecord, snapshot: &Snapshot) -> Option<String> {
        let answer = snapshot.listing.as_ref().map(|listing| listing.list_answer.began);
        let known = self.judged.as_ref().filter(|judged| judged.id == record.id && judged.answer == answer);
        if let Some(judged) = known {
            return judged.gone.clone();
        }
        let gone = withdrawal_reason(snapshot, record);
        self.judged = Some(Judged { id: record.id.clone(), answer, gone: gone.clone() });
        gone
    }

    /// Heat does not wait for it: how far its grace is.
    pub(super) fn wait(&mut self, record: &DeploymentRecord, limit: Duration, clock: &Clock) -> GraceState {
        let Some(grace) = self.grace.as_mut().filter(|grace| grace.id == record.id) else {
            self.grace = Some(Grace { id: record.id.clone(), since: clock.start(), over: None });
            return GraceState::Begins;
        };
        if grace.since.elapsed() < limit {
            GraceState::Lasts
        } else {
            GraceState::Over(*grace.over.get_or_insert_with(|| clock.moment()))
        }
    }

    /// Heat waits for it. Whether it did not before.
    pub(super) fn cancel_grace(&mut self) -> bool {
        self.grace.take().is_some()
    }

    /// How long until the running one has had its grace.
    pub(super) fn until_grace_is_over(&self, limit: Duration) -> Option<Duration> {
        let grace = self.grace.as_ref().filter(|grace| grace.over.is_none() && !self.is_ending)?;
        Some(limit.saturating_sub(grace.since.elapsed()))
    }

    /// What there is to say of the end of a running script or hook before it is there.
    pub(in crate::daemon) fn planned_stop(&self, record: &DeploymentRecord, grace: Duration) -> Option<String> {
        match &record.ending {
            Some(Ending::Stopped) => return Some("it is being stopped at the operator's request".to_owned()),
            Some(Ending::Replaced(why)) => return Some(format!("it is being stopped: {why}")),
            None => {}
        }
        let judged = self.judged.as_ref().filter(|judged| judged.id == record.id)?;
        let grace = duration(grace);
        judged.gone.as_ref().map(|why| format!("{why}; it is stopped {grace} after that was learnt, if Heat then confirms it"))
    }

    /// Nothing is known of its end, for now.
    pub(super) fn keep(&mut self, id: &str) {
        self.task.start(id.to_owned(), std::future::pending());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::files::Tree;

    #[test]
    fn what_there_is_no_room_for_is_given_up_after_fifty_minutes_and_five_tries() {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::manual(crate::clock::BUILT);
        let state = Arc::new(Tree::open(dir.path()).unwrap());
        let mut task = JobTask::new(Rc::new(Programs::new(state, None, clock.clone()).unwrap()));
        let (full, other) = (Error::from(Errno::ENOSPC), Error::from(Errno::EACCES));
        // One that was recorded when it was first seen, and one that never could be.
        for seen in [Some(clock.now()), None] {
            let id = format!("{seen:?}");
            let mut tries =
                |error: &Error| (0..FAILED_START_LIMIT).map(|_| task.waited_for_space_to_record(&id, seen, error, &clock)).last();
            assert_eq!(tries(&full), Some(false), "{id}: there may be room soon");
            clock.advance(SPACE_LIMIT);
            assert_eq!((tries(&other), tries(&full)), (Some(false), Some(true)), "{id}");
            // Those behind it have waited as long.
            let mut tries = |error: &Error| {
                (0..FAILED_START_LIMIT).map(|_| task.waited_for_space_to_record("next", None, error, &clock)).last()
            };
            assert_eq!(tries(&full), Some(true));
            task.has_space();
        }
        let long_ago = clock.now();
        clock.advance(SPACE_LIMIT);
        assert!(!task.waited_for_space_to_record("new", Some(long_ago), &full, &clock), "once is no proof");
    }
}
