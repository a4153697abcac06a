//! Where the sources over the network are and with what they are asked: learnt from what cloud-init, the image and Heat
//! left here, and from what Heat's own answers say (heat-protocol.md 1.5, 2.3 to 2.5).
//!
//! Documents are taken one after the other, the strongest last. For each source the strongest that has a whole set for it is
//! followed; settings of two documents are never put together (design.md 9). No document leads from https to http.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::local::LocalFiles;
use super::section::{DEPLOYMENT_KEY, DEPLOYMENTS, Section};
use super::source_set::{HintOrigin, SourceSet, keys, needed};
use crate::digest;
use crate::error::{Context, Error, Result};
use crate::gather::Gather;
use crate::report::{Code, Event, Phase};
use crate::settings::os_collect_config::OsCollectConfig;
use crate::settings::source_name::SourceName;

/// The CA that an endpoint's certificate is from.
const CA: &str = "ca_certificate";

/// What one document says of the sources. Never shown: most of it is secret.
pub(super) struct SourceHints {
    origin: HintOrigin,
    sections: BTreeMap<SourceName, Section>,
    /// The sources of which it has a setting that they need, were it only an empty text.
    mentioned: Vec<SourceName>,
    /// The sources that it asks for; empty where it says nothing of that.
    collectors: Vec<String>,
}

impl SourceHints {
    fn nothing(origin: HintOrigin) -> Self {
        Self { origin, sections: BTreeMap::new(), mentioned: Vec::new(), collectors: Vec::new() }
    }

    /// Whether it means a source to be asked, with what the source needs or without: it is among the collectors, or, where a file of
    /// this machine says nothing of these, a setting that it needs is there. What lists `heat_local` too is os-collect-config's own default,
    /// written out, which means the sources that happen to be configured; the hint file is left by cloud-init for other tools.
    fn names(&self, source: SourceName) -> bool {
        let lists = |name: SourceName| self.collectors.iter().any(|one| one == name.as_str());
        let is_file = matches!(self.origin, HintOrigin::BootCopy | HintOrigin::Config);
        let is_listed = lists(source) && !lists(SourceName::HeatLocal);
        is_listed || (is_file && self.collectors.is_empty() && self.mentioned.contains(&source))
    }

    /// What a server's metadata says of its sources.
    pub(super) fn by_document(origin: HintOrigin, document: &Map<String, Value>) -> Self {
        let mut hints = Self::nothing(origin);
        let Some(all) = document.get("os-collect-config") else { return hints };
        for source in SourceName::REMOTE {
            let Some(settings) = all.get(source.as_str()) else { continue };
            // What Heat takes away it sets to null.
            let is_present = |key: &&str| settings.get(key).is_some_and(|value| !value.is_null());
            if needed(source).iter().any(is_present) || !(settings.is_object() || settings.is_null()) {
                hints.mentioned.push(source);
            }
            for key in keys(source) {
                hints.section(source).take(key, texts(settings.get(key)));
            }
        }
        hints.collectors = texts(all.get("collectors"));
        hints
    }

    /// The ways that led to answers which name no source: what was learnt is not changed by them.
    pub(super) fn carried(ways: &[(SourceName, &SourceSet)], answering: &[SourceName]) -> Self {
        let sections = ways.iter().map(|(source, set)| (*source, set.section().clone())).gather();
        let collectors = answering.iter().map(|source| source.as_str().to_owned()).collect();
        Self { sections, collectors, ..Self::nothing(HintOrigin::Before) }
    }

    /// Whether it says nothing of any source.
    pub(super) fn is_silent(&self) -> bool {
        self.collectors.is_empty() && self.sections.values().all(|section| section.values().is_empty())
    }

    /// Whether it leads from `new` to `old`, which is the way that led to it.
    fn leads_back(&self, new: SourceName, old: SourceName, by: &SourceSet) -> bool {
        let named = self.sections.get(&old).and_then(|section| {
            let mut section = section.clone();
            section.remove(DEPLOYMENT_KEY);
            SourceSet::of(old, self.origin, &section, false).ok().flatten()
        });
        let asks_for = |source: SourceName| self.collectors.iter().any(|one| one == source.as_str());
        if new == old {
            return named.is_some_and(|named| named.is_same_way(by));
        }
        asks_for(old) && !asks_for(new) && named.is_none_or(|named| named.is_same_way(by))
    }

    /// Why this answer of `new` lets none of the ways go that it is to replace. It has to be Heat's word for this server: with a
    /// deployment, or with something about the sources. And it must not lead back, or the two would replace each other forever.
    ///
    /// # Errors
    /// Permanent, if it is not.
    pub(super) fn check_handover(&self, new: SourceName, lists_any: bool, replaced: &[(SourceName, &SourceSet)]) -> Result<()> {
        let rule =
            "a source takes another one's place once its answer lists a deployment or names sources, and does not lead back";
        let remedy = "correct the os-collect-config metadata of the server in Heat: it names this source in place of the old one";
        let error = |cause: String| Err(Error::permanent(cause).rule(rule).remedy(remedy));
        let kept = replaced.iter().map(|(old, by)| format!("{} by {}", old.as_str(), by.place())).collect::<Vec<_>>().join(", ");
        if self.is_silent() && !lists_any {
            return error(format!("the answer names no source and lists no deployment, so it does not replace {kept}"));
        }
        if replaced.iter().any(|(old, by)| self.leads_back(new, *old, by)) {
            return error(format!("the answer leads back to {kept}"));
        }
        Ok(())
    }

    /// What it says of one source.
    pub(super) fn of(&self, source: SourceName) -> Option<&Section> {
        self.sections.get(&source)
    }

    fn by_config(config: &OsCollectConfig) -> Self {
        let mut hints = Self::nothing(HintOrigin::Config);
        for source in SourceName::REMOTE {
            for key in keys(source) {
                let values = |section| config.all(section, key).map(str::to_owned).collect();
                if *key == DEPLOYMENT_KEY {
                    hints.section(source).take(key, values("DEFAULT"));
                } else if needed(source).contains(key) && config.all(source.as_str(), key).next().is_some() {
                    hints.mentioned.push(source);
                }
                hints.section(source).take(key, values(source.as_str()));
            }
        }
        hints.collectors = config.collectors();
        hints
    }

    /// What the files on this machine say, the weakest first: hint file, boot copy, os-collect-config.conf.
    pub(super) fn by_files(files: &LocalFiles) -> Vec<Self> {
        let mut all = Vec::new();
        let mut hinted = Section::default();
        if let Some(hint) = &files.hint {
            // The file holds host and port, or the whole URL (heat-protocol.md 1.2, 2.3).
            let base = hint.trim_end_matches('/').trim_end_matches("/v1");
            hinted.take("metadata_url", vec![format!("{base}/v1/")]);
            let sections = BTreeMap::from([(SourceName::Cfn, hinted.clone())]);
            all.push(Self { sections, ..Self::nothing(HintOrigin::Hint) });
        }
        let boot = files.boot.as_ref().and_then(|boot| boot.as_ref().ok());
        all.extend(boot.map(|boot| Self::by_document(HintOrigin::BootCopy, &boot.document)));
        all.push(Self::by_config(&files.config.settings));
        // Where a file of this machine names keys and no address, it means the one that cloud-init left beside it.
        let names_keys =
            |section: &&mut Section| ["access_key_id", "secret_access_key", "path"].iter().any(|key| section.get(key).is_some());
        for section in all.iter_mut().filter_map(|hints| hints.sections.get_mut(&SourceName::Cfn)).filter(names_keys) {
            let mut whole = hinted.clone();
            whole.overlay(section);
            *section = whole;
        }
        all
    }

    /// Tells what the files say from what they said at another time, without showing it.
    pub(super) fn digest(files: &[Self]) -> String {
        let mut sections: BTreeMap<_, _> = SourceName::REMOTE.map(|source| (source, Section::default())).into_iter().gather();
        let mut collectors: &[String] = &[];
        for hints in files {
            for (source, section) in &hints.sections {
                sections.entry(*source).or_default().overlay(section);
            }
            if !hints.collectors.is_empty() {
                collectors = &hints.collectors;
            }
        }
        let sections: Vec<_> = sections.values().map(Section::values).collect();
        digest::of(&(collectors, sections))
    }

    fn section(&mut self, source: SourceName) -> &mut Section {
        self.sections.entry(source).or_default()
    }
}

/// What this machine's files, and answers, add to whichever set is used: nothing of it leads anywhere.
#[derive(Clone, Default)]
struct Extras {
    /// Top-level keys whose lists are deployments.
    deployment_keys: Vec<String>,
    /// Believed where the set names no CA; only os-collect-config.conf gives it.
    ca: Option<String>,
}

/// Something in a document that is not followed, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    code: Code,
    source: SourceName,
    /// What is not followed, and why.
    cause: String,
    /// What the agent goes on using.
    instead: String,
    remedy: String,
}

impl Refusal {
    pub(super) fn event(&self) -> Event {
        let what = match self.code {
            Code::SourceIncomplete => "is described incompletely",
            _ => "would be asked over http where https is in use: refused",
        };
        let message = format!("metadata source {} {what}: {}; {}", self.source.as_str(), self.cause, self.instead);
        let event = Event::new(self.code, message).phase(Phase::Metadata).source(self.source.as_str());
        event.cause(self.cause.clone()).remedy(self.remedy.clone())
    }
}

/// What is known so far.
#[derive(Clone)]
pub(super) struct KnownSources {
    /// Digest of what the files say of the sources.
    pub(super) files_digest: String,
    /// The sources that this image uses, weakest first.
    order: Vec<SourceName>,
    /// Whether the settings allow to go from https to http.
    may_leave_https: bool,
    sets: BTreeMap<SourceName, SourceSet>,
    /// Why the strongest document that names a source does not count.
    incomplete: BTreeMap<SourceName, Error>,
    extras: BTreeMap<SourceName, Extras>,
    /// The sources that whoever spoke last asks for; empty where nobody said.
    collectors: Vec<String>,
    /// What would have led from https to http.
    downgrades: Vec<Refusal>,
    /// The sources that have answered, and whether over https.
    proven: BTreeMap<SourceName, bool>,
}

impl KnownSources {
    /// Nothing yet.
    pub(super) fn new(order: &[SourceName], may_leave_https: bool) -> Self {
        Self {
            files_digest: String::new(),
            order: order.iter().copied().filter(|source| source.is_remote()).collect(),
            may_leave_https,
            sets: BTreeMap::new(),
            incomplete: BTreeMap::new(),
            extras: BTreeMap::new(),
            collectors: Vec::new(),
            downgrades: Vec::new(),
            proven: BTreeMap::new(),
        }
    }

    /// Notes the sets by which sources answered last.
    pub(super) fn prove<'a>(&mut self, answered: impl Iterator<Item = (SourceName, &'a SourceSet)>) {
        self.proven = answered.map(|(source, set)| (source, set.is_https())).gather();
    }

    /// Takes over what a stronger document says, or nothing of it where it leads from https to http.
    pub(super) fn take(&mut self, hints: &SourceHints) {
        let mut next = self.with(hints);
        if self.may_leave_https {
            *self = next;
        } else if let Some(source) = next.leaves_https(&self.sets, &self.wanted()) {
            self.refuse(hints.origin, source, &next);
        } else {
            if matches!(hints.origin, HintOrigin::Answer(_)) {
                next.drop_plain_beside_https(hints.origin, self);
            }
            *self = next;
        }
    }

    /// Where https is in use already, an answer adds no source over http: whoever answers there could list anything. Those that
    /// this machine's files name, or that have answered before, stay. The rest of the answer is followed.
    fn drop_plain_beside_https(&mut self, origin: HintOrigin, before: &Self) {
        let is_https = |known: &Self, source: &SourceName| known.sets.get(source).is_some_and(SourceSet::is_https);
        let (wanted, wanted_before) = (self.wanted(), before.wanted());
        let in_use = wanted_before.iter().any(|source| is_https(before, source)) || self.proven.values().any(|https| *https);
        if !in_use || !wanted.iter().any(|source| is_https(self, source)) {
            return;
        }
        let is_new = |source: &SourceName| !wanted_before.contains(source) && self.proven.get(source) != Some(&false);
        let added: Vec<_> = wanted.into_iter().filter(|source| !is_https(self, source) && is_new(source)).collect();
        let next = self.clone();
        self.sets.retain(|source, _| !added.contains(source));
        for source in added {
            self.refuse(origin, source, &next);
        }
    }

    /// With what a stronger document says.
    fn with(&self, hints: &SourceHints) -> Self {
        let mut next = self.clone();
        for source in SourceName::REMOTE {
            let mut section = hints.sections.get(&source).cloned().unwrap_or_default();
            let extras = next.extras.entry(source).or_default();
            let deployment_keys = section.remove(DEPLOYMENT_KEY);
            if !deployment_keys.is_empty() {
                extras.deployment_keys = deployment_keys;
            }
            if hints.origin == HintOrigin::Config {
                extras.ca = section.get(CA).map(str::to_owned);
            }
            let asked_for = hints.collectors.iter().any(|one| one == source.as_str());
            let named = hints.names(source);
            match SourceSet::of(source, hints.origin, &section, asked_for || named) {
                // Where another document has what it needs, its name alone is enough.
                Ok(None) if named && !next.sets.contains_key(&source) => {
                    let bare = section.check(source, needed(source)).context(|| format!("reading {}", hints.origin));
                    next.incomplete.extend(bare.err().map(|error| (source, error)));
                }
                Ok(None) => {}
                Ok(Some(set)) => {
                    next.incomplete.remove(&source);
                    next.sets.insert(source, set);
                }
                Err(error) => drop(next.incomplete.insert(source, error)),
            }
        }
        if !hints.collectors.is_empty() {
            next.collectors.clone_from(&hints.collectors);
        }
        next
    }

    /// The sets by which sources answered last are not left for http either: not for a stronger document, and not because the
    /// one that named them is gone.
    pub(super) fn hold<'a>(&mut self, answered: impl Iterator<Item = (SourceName, &'a SourceSet)>) {
        let answered: BTreeMap<_, _> = answered.map(|(source, set)| (source, set.clone())).gather();
        let before: Vec<_> = answered.keys().copied().collect();
        // One that is in force already is left when another one answers.
        let Some(source) = self.leaves_https(&answered, &before).filter(|_| !self.may_leave_https) else { return };
        let next = self.clone();
        let origin = next.sets.get(&source).or_else(|| next.sets.values().next()).map_or(HintOrigin::Before, |set| set.origin);
        self.collectors = answered.keys().map(|source| source.as_str().to_owned()).collect();
        for (source, set) in answered {
            self.incomplete.remove(&source);
            self.sets.insert(source, set);
        }
        self.refuse(origin, source, &next);
    }

    /// The source that would be asked over http although it, or all there was before, was asked over https.
    fn leaves_https(&self, before: &BTreeMap<SourceName, SourceSet>, wanted_before: &[SourceName]) -> Option<SourceName> {
        let downgraded = |source: &SourceName| {
            let (old, new) = (before.get(source), self.sets.get(source));
            old.zip(new).is_some_and(|(old, new)| old.is_https() && !new.is_https())
        };
        if let Some(source) = self.order.iter().copied().find(downgraded) {
            return Some(source);
        }
        let https =
            |sets: &BTreeMap<SourceName, SourceSet>, source: &SourceName| sets.get(source).is_some_and(SourceSet::is_https);
        let wanted = self.wanted();
        let left =
            wanted_before.iter().any(|source| https(before, source)) && !wanted.iter().any(|source| https(&self.sets, source));
        wanted.first().copied().filter(|_| left)
    }

    fn refuse(&mut self, origin: HintOrigin, source: SourceName, next: &Self) {
        let place = next.sets.get(&source).map(SourceSet::place).unwrap_or_default();
        let kept = self.wanted().into_iter().find_map(|source| Some((source, self.sets.get(&source)?)));
        let instead = kept.map_or_else(String::new, |(source, set)| {
            format!("the agent keeps using {} by {}, from {}", source.as_str(), set.place(), set.origin)
        });
        self.downgrades.push(Refusal {
            code: Code::SourceDowngrade,
            source,
            cause: format!("{origin} names {place}"),
            instead,
            remedy: "name an https endpoint there (the endpoints in Keystone's catalog, Heat's configuration, or os-collect-config.conf); \
                     or, if the network is trusted, set [tls] allow_insecure = true in agent.toml"
                .to_owned(),
        });
    }

    /// Everything in the documents that is not followed.
    pub(super) fn refusals(&self) -> Vec<Refusal> {
        let half = |(source, error): (&SourceName, &Error)| {
            let set = self.sets.get(source)?;
            Some(Refusal {
                code: Code::SourceIncomplete,
                source: *source,
                cause: error.to_string(),
                instead: format!("this is ignored; the agent keeps using {}, from {}", set.place(), set.origin),
                remedy: error.suggested_remedy().unwrap_or_default().to_owned(),
            })
        };
        self.incomplete
            .iter()
            .filter(|(source, _)| self.order.contains(source))
            .filter_map(half)
            .chain(self.downgrades.clone())
            .collect()
    }

    /// Whether the files, or Heat, ask for this source. Who names none of those in use leaves it open.
    pub(super) fn wants(&self, source: SourceName) -> bool {
        self.order.contains(&source)
            && (self.asks_for(source.as_str()) || !self.order.iter().any(|other| self.asks_for(other.as_str())))
    }

    /// The sources that are asked for and can be asked.
    fn wanted(&self) -> Vec<SourceName> {
        self.order.iter().copied().filter(|source| self.wants(*source) && self.sets.contains_key(source)).collect()
    }

    /// Whether a source is named, known here or not.
    pub(super) fn asks_for(&self, name: &str) -> bool {
        self.collectors.iter().any(|one| one == name)
    }

    /// The set by which a source is to be asked, or nothing where it is not configured or not asked for.
    ///
    /// # Errors
    /// Permanent, if documents name it and none of them completely.
    pub(super) fn set(&self, source: SourceName) -> std::result::Result<Option<&SourceSet>, &Error> {
        if !self.wants(source) {
            return Ok(None);
        }
        match (self.sets.get(&source), self.incomplete.get(&source)) {
            (None, Some(error)) => Err(error),
            (set, _) => Ok(set),
        }
    }

    /// Where a source is asked, for people.
    pub(super) fn place(&self, source: SourceName) -> String {
        match self.set(source) {
            Ok(set) => set.map(SourceSet::place).unwrap_or_default(),
            Err(_) => "incomplete settings".to_owned(),
        }
    }

    /// Whether a source is to be asked by this set.
    pub(super) fn leads_to(&self, source: SourceName, set: &SourceSet) -> bool {
        self.set(source).is_ok_and(|known| known.is_some_and(|known| known.is_same_way(set)))
    }

    /// Whether documents name a source, completely or not.
    pub(super) fn names(&self, source: SourceName) -> bool {
        self.sets.contains_key(&source) || self.incomplete.contains_key(&source)
    }

    /// Tells by what a source is asked from anything else, without showing it; empty where it is not asked.
    pub(super) fn key(&self, source: SourceName) -> String {
        match self.set(source) {
            Ok(None) => String::new(),
            Ok(Some(set)) => set.key(self.ca(source), &self.deployment_keys(source)),
            Err(error) => digest::hex(error.to_string().as_bytes()),
        }
    }

    /// Whether any source can be asked by this.
    pub(super) fn is_complete(&self) -> bool {
        !self.sets.is_empty()
    }

    /// The CA that this machine's files name for a source.
    pub(super) fn ca(&self, source: SourceName) -> Option<&str> {
        self.extras.get(&source)?.ca.as_deref()
    }

    /// The top-level keys whose entries are deployments (heat-protocol.md R19).
    pub(super) fn deployment_keys(&self, source: SourceName) -> Vec<String> {
        let given = self.extras.get(&source).map(|extras| extras.deployment_keys.clone()).unwrap_or_default();
        if given.is_empty() { vec![DEPLOYMENTS.to_owned()] } else { given }
    }
}

/// A text, or the texts of a list.
fn texts(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::String(one)) => vec![one.clone()],
        Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
#[path = "known_sources_tests.rs"]
mod tests;
