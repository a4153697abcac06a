//! What a look at files and documents found and has to be said, once as long as it holds.

use super::known_sources::{KnownSources, Refusal};
use super::local::LocalFiles;
use crate::error::Error;
use crate::report::reported_once::ReportedOnce;
use crate::report::status::left_over_remedy;
use crate::report::{Code, Event, Phase, Report};
use crate::settings::source_name::SourceName;

/// How many things that are not followed are remembered as reported: more than all sources can say at a time.
const REFUSED: usize = 32;

/// For people: the file with the settings of the replaced collector.
pub(super) const CONFIG: &str = "os-collect-config.conf";

/// What was reported and still holds.
pub(super) struct Findings {
    /// What documents say and is not followed.
    refused: ReportedOnce<Refusal>,
    /// Files of another instance.
    left_over: ReportedOnce<String>,
    /// Boot copies that other users can read, although they should not.
    exposed: ReportedOnce<String>,
    /// Why os-collect-config.conf cannot be read.
    unread: ReportedOnce<String>,
    /// That there is nowhere to read metadata from.
    nothing_known: bool,
    /// Why what a source said last is not known although it was kept.
    pub(super) unreadable: Vec<(SourceName, Error)>,
    /// Why it is not known in which order deployments were listed.
    pub(super) unreadable_order: Option<Error>,
}

impl Findings {
    pub(super) fn new() -> Self {
        Self {
            refused: ReportedOnce::with_limit(REFUSED),
            left_over: ReportedOnce::default(),
            exposed: ReportedOnce::default(),
            unread: ReportedOnce::default(),
            nothing_known: false,
            unreadable: Vec::new(),
            unreadable_order: None,
        }
    }

    /// Says what documents ask for and is not followed.
    pub(super) fn report_refused(&mut self, known_sources: &KnownSources, report: &Report) {
        let refused = known_sources.refusals();
        if refused.is_empty() {
            self.refused.clear();
        }
        for refusal in refused.iter().filter(|refusal| self.refused.mark_reported(refusal)) {
            report.emit(refusal.event());
        }
    }

    /// Says which files are not used because they are another instance's. `resource` is the one that they lead to.
    pub(super) fn report_left_over(&mut self, files: &LocalFiles, resource: Option<&str>, report: &Report) {
        for path in self.left_over.news(&files.origins.left_over) {
            let line =
                format!("{path} is ignored: this disk was copied from that of another instance, and the file is unchanged since");
            let event = Event::new(Code::SourceLeftOver, line).phase(Phase::Metadata).remedy(left_over_remedy(&path, resource));
            report.emit(event.step(path));
        }
    }

    /// Says which files other users could read, and which nobody can.
    pub(super) fn report_access(&mut self, files: &LocalFiles, report: &Report) {
        for line in self.exposed.news(&files.exposed) {
            report.emit(Event::new(Code::BootCopyExposed, line).phase(Phase::Metadata));
        }
        let unread = files.config.unread.as_ref().map(Error::to_string);
        if !self.unread.news(unread.as_slice()).is_empty()
            && let Some(error) = &files.config.unread
        {
            let message = format!("{CONFIG} cannot be read, so it is not known which sources it names");
            report.emit(Event::new(Code::SourceFailed, message).phase(Phase::Metadata).source(CONFIG).error(error));
        }
    }

    /// Says that there is nowhere to read metadata from, each time it comes to that.
    pub(super) fn report_nothing_known(&mut self, nothing: bool, files: &LocalFiles, report: &Report) {
        // Of a file that is not used because the disk is a copy it was said.
        if nothing && !self.nothing_known && files.origins.left_over.is_empty() {
            report.emit(Event::new(Code::NoSource, "no metadata source is known").phase(Phase::Metadata));
        }
        self.nothing_known = nothing;
    }
}
