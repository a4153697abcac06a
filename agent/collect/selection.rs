//! Which sources are followed, and when one takes another one's place.

use std::sync::Arc;

use super::known_sources::{KnownSources, SourceHints};
use super::poll::AnswerStanding;
use super::source::{Demand, PollOutcome, Polled, Source};
use super::source_set::{HintOrigin, SourceSet};
use super::{Collector, OwnCredentials, SnapshotChange};
use crate::error::Result;
use crate::settings::source_name::SourceName;

impl Collector {
    /// Notes for each source by what it is to be asked from now on.
    pub(super) fn follow(&mut self, known_sources: &KnownSources) -> SnapshotChange {
        let mut change = SnapshotChange::default();
        for source in self.sources.iter_mut().filter(|source| source.name.is_remote()) {
            let set = known_sources.set(source.name).ok().flatten();
            let is_wanted = known_sources.wants(source.name) && known_sources.names(source.name);
            // It is known, and waited for, before its first poll, which may be splayed.
            let news = (is_wanted && source.state.last_try.is_none())
                .then(|| source.set_endpoint(&known_sources.place(source.name), &known_sources.key(source.name)))
                .flatten();
            change.sources |= news.is_some();
            let held = source.follow(is_wanted, set, &self.clock);
            news.into_iter().chain(held).for_each(|event| self.report.emit(event));
        }
        self.snapshot.own_credentials = self.credentials_by(known_sources);
        if change.sources {
            self.merge(false);
        }
        self.snapshot.is_unread = self.is_unread();
        change
    }

    /// With what the server may speak to Heat: the sets that were answered last, in this process or before. One that a document
    /// names proves nothing before an answer; only where none ever came, what there is is better than nothing.
    pub(super) fn credentials_by(&self, known_sources: &KnownSources) -> OwnCredentials {
        let given =
            self.sources.iter().find(|source| source.name == SourceName::File).and_then(|source| source.held.document.as_ref());
        if let Some(document) = given {
            return OwnCredentials::of_document(document);
        }
        let is_proven = self.sources.iter().any(|source| source.answered_by.is_some());
        let named = |source: &Source| known_sources.set(source.name).ok().flatten().filter(|_| !is_proven).cloned();
        let of = |source: &Source| source.answered_by.clone().or_else(|| named(source));
        OwnCredentials::new(self.sources.iter().filter_map(|source| Some((of(source)?, known_sources.ca(source.name)))))
    }

    /// The settings of the sources: what the files say, and stronger, what the answers say of their own and of each
    /// other's, so that new keys and another transport are followed without a restart. The newest answer is the strongest.
    ///
    /// An answer that was fetched under other local settings says nothing about these: somebody has
    /// pointed the server to another stack. Only where the files no longer say enough does it count.
    ///
    /// Worked out once: until an answer is settled or the files are read again nothing that it rests on changes.
    pub(super) fn known_sources(&mut self) -> Arc<KnownSources> {
        if let Some(known) = &self.known {
            return Arc::clone(known);
        }
        let known_sources = Arc::new(self.work_out());
        self.known = Some(Arc::clone(&known_sources));
        known_sources
    }

    fn work_out(&self) -> KnownSources {
        let mut known_sources = KnownSources::new(&self.settings.sources.order, self.settings.tls.allow_insecure);
        known_sources.prove(self.sources.iter().filter_map(|source| Some((source.name, source.answered_by.as_ref()?))));
        let files = SourceHints::by_files(&self.files);
        known_sources.files_digest = SourceHints::digest(&files);
        for hints in &files {
            known_sources.take(hints);
        }
        let complete = known_sources.is_complete();
        let counts =
            |source: &&Source| source.name.is_remote() && (source.held.files_digest == known_sources.files_digest || !complete);
        let mut answered: Vec<_> = self.sources.iter().filter(counts).collect();
        answered.sort_by_key(|source| (source.answer_number, source.state.last_good));
        if let Some(carried) = Self::carried(&answered, &known_sources) {
            known_sources.take(&carried);
        }
        for (source, document) in answered.iter().filter_map(|source| Some((source.name, source.held.document.as_ref()?))) {
            known_sources.take(&SourceHints::by_document(HintOrigin::Answer(source), document));
        }
        known_sources.hold(self.sources.iter().filter_map(|source| Some((source.name, source.answered_by.as_ref()?))));
        known_sources
    }

    /// What led to sources whose answers name none, where the document that said so is gone with the source that it was from. `files`
    /// is what the files alone say: where that is the same, nothing has to be carried on. Weaker than whatever an answer says.
    fn carried(sources: &[&Source], files: &KnownSources) -> Option<SourceHints> {
        let proven: Vec<_> = sources.iter().filter_map(|source| Some((*source, source.answered_by.as_ref()?))).collect();
        let is_silent = |source: &Source| {
            let document = source.held.document.as_ref();
            document.is_some_and(|document| SourceHints::by_document(HintOrigin::Answer(source.name), document).is_silent())
        };
        let is_carried = |(source, by): &&(&Source, &SourceSet)| {
            source.held.files_digest == files.files_digest
                && is_silent(source)
                && (source.took_over_digest.as_ref() == Some(&files.files_digest) || !files.leads_to(source.name, by))
        };
        let carried: Vec<_> = proven.iter().filter(is_carried).map(|(source, by)| (source.name, *by)).collect();
        let answering: Vec<_> = proven.iter().map(|(source, _)| source.name).collect();
        (!carried.is_empty()).then(|| SourceHints::carried(&carried, &answering))
    }

    /// What the answer of a poll counts as, by what is known when it lands: what led to its way may have been taken back, by Heat or
    /// by somebody on this machine, while the request was under way.
    pub(super) fn standing_of(&mut self, polled: &Polled) -> AnswerStanding {
        let (Some(set), false) = (&polled.set, polled.former) else { return AnswerStanding::AsAsked };
        let known_sources = self.known_sources();
        if known_sources.set(polled.source).ok().flatten().is_some_and(|now| now.is_same_way(set)) {
            return AnswerStanding::AsAsked;
        }
        if self.sources.iter().any(|source| source.name == polled.source && source.answered_by(set)) {
            // Its former way is known from here on, if it was not before.
            self.follow(&known_sources);
            return AnswerStanding::ByFormerWay;
        }
        AnswerStanding::TakenBack
    }

    /// Whether an answer may count that is the first by its way and would replace other ways. Somebody who has edited this machine's
    /// files since those answered is obeyed without that.
    ///
    /// # Errors
    /// Permanent, if it leads nowhere, or back.
    pub(super) fn check_handover(&self, polled: &Polled) -> Result<()> {
        let (PollOutcome::Document(document), Some(set), false) = (&polled.outcome, &polled.set, polled.former) else {
            return Ok(());
        };
        let Some(source) = self.sources.iter().find(|source| source.name == polled.source) else { return Ok(()) };
        if source.answered_by(set) {
            return Ok(());
        }
        let own =
            source.answered_by.iter().filter(|_| source.held.files_digest == polled.files_digest).map(|by| (source.name, by));
        let is_replaced =
            |other: &&Source| other.name != source.name && other.is_replaced() && other.held.files_digest == polled.files_digest;
        let others = self.sources.iter().filter(is_replaced).filter_map(|other| Some((other.name, other.answered_by.as_ref()?)));
        let replaced: Vec<_> = own.chain(others).collect();
        if replaced.is_empty() {
            return Ok(());
        }
        let hints = SourceHints::by_document(HintOrigin::Answer(source.name), document.document());
        hints.check_handover(source.name, document.lists_any(), &replaced)
    }

    /// Drops what sources said that are not asked any more. Whoever takes their place has just answered; while that answer
    /// is not `kept`, the cache of the old ones is all that a start without network has.
    pub(super) fn forget_retired(&mut self, by: SourceName, kept: bool) -> bool {
        let (mut any, mut gone_by_document) = (false, false);
        if !self.sources.iter().any(|source| source.name == by && source.demand == Demand::Followed) {
            return false;
        }
        let files_digest = self
            .sources
            .iter()
            .find(|source| source.name == by)
            .map(|source| source.held.files_digest.clone())
            .unwrap_or_default();
        for source in self.sources.iter_mut().filter(|source| source.is_replaced()) {
            any = true;
            // Not because the files say something else now.
            gone_by_document |= source.held.files_digest == files_digest;
            if source.answered_by.is_some() {
                self.report.emit(source.retired());
            }
            source.forget();
            if kept {
                source.remove_kept(&self.state, &self.report);
            }
        }
        if gone_by_document && let Some(source) = self.sources.iter_mut().find(|source| source.name == by) {
            source.took_over_digest = Some(files_digest);
        }
        any
    }
}
