//! `rerun ID`, `stop ID`, `forget ID`, `certificates rotate`, `repair`, `rollback`: operator requests ("orders") to the daemon. If no daemon is running, the
//! command carries them out itself, except `repair` and `rollback`, which only the daemon can.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use super::{document, print};
use crate::clock::Clock;
use crate::daemon::order_files::{
    DIRECTORY, Order, OrderContext, OrderFile, OrderResult, Repairs, Rollbacks, answer_to, deliver, make_directory,
};
use crate::deploy::{DeploymentRecord, Ending, Journal};
use crate::error::{Error, Result};
use crate::files::{Attributes, Tree};
use crate::http::Http;
use crate::openstack::keystone::Keystone;
use crate::process::exit;
use crate::programs::Programs;
use crate::report::text::harmless;
use crate::report::{Code, Event, Report};
use crate::settings::Settings;
use crate::signal::{Outbox, Sender};
use crate::watch::Watch;

/// How long the daemon may take to answer: it answers at once unless a signal is just on its way.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same for a repair or a rollback, which is answered when it is done: after restarts, and when gates have passed.
const REPAIR_PATIENCE: Duration = Duration::from_mins(20);
/// The fallback poll for inotify, and how often it is looked whether the daemon is still there.
const POLL: Duration = Duration::from_millis(500);

/// Gives the order and prints what became of it.
///
/// # Errors
/// If the state directory cannot be used, or nobody answers.
pub fn run(settings: &Settings, order: Order, deployment: &str) -> Result<ExitCode> {
    crate::daemon::check_instance(&settings.state_dir)?;
    let state = Arc::new(document::open_state(settings)?);
    let clock = Clock::system();
    // An order to stop needs no room on the disk, and outlives no boot: nor does what it stops.
    let run_dir = Tree::open_or_create(&settings.run_dir, 0o755);
    let tree = if order == Order::Stop { Arc::new(run_dir?) } else { Arc::clone(&state) };
    make_directory(&tree)?;
    let path = Path::new(DIRECTORY).join(format!("{:013}-{}.json", clock.now().0, std::process::id()));
    let request = if order == Order::Rotate { OrderFile::rotate(&state) } else { OrderFile::new(order, deployment) };
    tree.write_json(&path, &request, Attributes::mode(0o600))?;
    let watch = Watch::open();
    watch.add(&tree.base().join(DIRECTORY));
    let since = clock.start();
    let patience = if matches!(order, Order::Repair | Order::Rollback) { REPAIR_PATIENCE } else { PATIENCE };
    while since.elapsed() < patience {
        if let Some(answer) = tree.read_json::<OrderResult>(&answer_to(&path))? {
            tree.remove(&answer_to(&path))?;
            return show(&answer);
        }
        // Whoever ends while it holds the lock leaves the order to us, or to the next daemon.
        if let Some(_held) = state.lock(Path::new("lock"))? {
            serve_here(settings, &state, &clock)?;
        }
        // Carried out here it is answered, but for a rollback that a daemon has begun and the next one ends.
        watch.wait(POLL);
    }
    Err(Error::transient(format!("the daemon has not answered within {} s", patience.as_secs()))
        .context(format!("waiting for the answer to {}", tree.base().join(&path).display()))
        .remedy("the request stays queued until the daemon gets to it; `heat-node-agent explain` shows what the daemon is doing"))
}

/// Ends what was ordered to be stopped; the next daemon has Heat hear of it.
fn end_stopped(state: &Arc<Tree>, journal: &mut Journal, clock: &Clock, report: &Report) -> Result<()> {
    let stopping: Vec<DeploymentRecord> =
        journal.running_jobs().filter(|record| record.ending == Some(Ending::Stopped)).cloned().collect();
    if stopping.is_empty() {
        return Ok(());
    }
    crate::process::runtime()?.block_on(async {
        let programs = Programs::new(Arc::clone(state), crate::daemon::connect(report).await?, clock.clone())?;
        for record in stopping {
            // One that has ended by itself has its own result, which the daemon takes.
            if programs.end(&record.job()).await?.is_none() {
                let (event, outcome) = crate::daemon::stopped(&record, clock, report);
                report.emit(event);
                // The daemon finds that it ended without a result, and reports that.
                if let Err(error) = journal.finish(&record.id, outcome) {
                    let message = format!("the end of deployment {} cannot be recorded", record.name);
                    report.emit(Event::new(Code::of_trouble(&error), message).deployment(&record.id, &record.name).error(&error));
                }
            }
        }
        Ok(())
    })
}

/// Success, or the refusal as the error that it is.
fn show(answer: &OrderResult) -> Result<ExitCode> {
    if answer.done {
        print(&harmless(&format!("{}\n", answer.lines.join("\n"))))?;
        return Ok(exit::OK);
    }
    let mut lines = answer.lines.iter().rev();
    let last = Error::refused(lines.next().map_or("refused", String::as_str));
    Err(lines.fold(last, Error::context))
}

/// Carries out all orders that wait, as the daemon would.
fn serve_here(settings: &Settings, state: &Arc<Tree>, clock: &Clock) -> Result<()> {
    let report = Report::to_journal(false);
    let root = Arc::new(Tree::open(Path::new("/"))?);
    let deploy = &settings.deploy;
    let http = Http::new(settings.tls.clone(), Arc::clone(&root), clock.clone());
    let sender = Sender::new(http, Keystone::new(clock.clone()), clock.clone());
    let mut journal = Journal::open(Arc::clone(state), Some(&deploy.deployed_dir), deploy.keep, clock.clone(), &report)?;
    let outbox = Outbox::open(Arc::clone(state), sender, clock.clone(), report.clone())?;
    let programs = Programs::new(Arc::clone(state), None, clock.clone())?;
    let snapshot = document::collected(settings, &report)?.snapshot().clone();
    let run_dir = Tree::open_or_create(&settings.run_dir, 0o755).ok();
    let mut context = OrderContext {
        state,
        run_dir: run_dir.as_ref(),
        is_sending: false,
        root: &root,
        journal: &mut journal,
        outbox: &outbox,
        programs: &programs,
        report: &report,
        listed: snapshot.deployments.as_deref(),
        daemon: None,
        repairs: &mut Repairs::default(),
        rollbacks: &mut Rollbacks::default(),
        generation: None,
    };
    let mut done = Vec::new();
    let served = context.serve(&mut done);
    let served = served.and(end_stopped(state, &mut journal, clock, &report)).and(deliver(state, run_dir.as_ref(), &done));
    report.flush();
    served.map_err(|error| error.context("carrying out a request, which stays in requests/ until it is done"))
}
