//! Provides the desired certificates: inspects, requests, makes, checks, and swaps sets of files as a whole.
//!
//! In: the certificates of a `Desired`, what lies on the node, who signs ([`CertificateBackend`]). Out: sets that are in place, and what is
//! remembered of them ([`CertificateRecord`]). Never: a change of what is in use before everything was found to belong together, or a
//! new request for what is right already.

mod decide;
mod inspection;
mod issue;
mod keeper;
mod places;
pub mod quorum;
mod record;
mod renewal;
mod rotation;
mod sets;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

pub use decide::CertificateVerdict;
pub use inspection::{CertificateInspection, Drift, InspectedCertificate, Watcher, inspect};
pub use keeper::{CertificateBackend, CertificateKeeper, CertificateSigner};
pub use places::InstalledPair;
pub use record::{CertificateRecord, KnownKey, RotationProgress, next, order_next_step};
pub use renewal::{Due, due, first_end};
pub(crate) use sets::remove_sets;

use self::decide::{CertificateAction, CertificateDecision, DecisionFacts};
use self::issue::{SigningTask, examine};
use self::keeper::{IssueFailure, REQUEST_LIMIT, Retry};
use self::places::{OwnKey, Places, given};
use self::sets::{WantedFile, put_in_place};
use crate::backoff::{Backoff, pause_before_deadline};
use crate::certificates::x509::X509;
use crate::converge::{Certificates, Failure, Owners, Prepared};
use crate::desired::{Certificate, CertificatePolicy, Desired, Issuer, Rotation, Signer};
use crate::error::{ConnectFailure, Context as _, Error, Result};
use crate::files::READ_LIMIT;
use crate::gather::Gather;
use crate::progress::StepId;
use crate::report::{Code, Event};

/// How long a clock that is wrong is waited for at most.
const CLOCK_LIMIT: Duration = Duration::from_mins(10);
/// How often such a clock is looked at.
const CLOCK_POLL: Duration = Duration::from_secs(1);
/// So many files that were installed are named; of more the number is.
const NAMED: usize = 4;
/// Between two tries.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

fn failed(error: &Error) -> Failure {
    let code = match (error.connect_failure(), error.answered()) {
        (Some(ConnectFailure::UnknownCa(_)), _) => Code::CertificateIssuerUntrusted,
        (Some(ConnectFailure::Clock), _) => Code::CertificateNotYetValid,
        (_, Some(401 | 403)) => Code::CertificatesRefused,
        _ => Code::CertificatesFailed,
    };
    Failure::from_error(code, StepId::Certificates, error)
}

impl<H: CertificateBackend> Certificates for CertificateKeeper<H> {
    type Record = CertificateRecord;

    async fn prepare(&self, desired: &Desired, deadline: Duration) -> std::result::Result<Prepared<CertificateRecord>, Failure> {
        if desired.trusted_paths().is_empty() {
            return Ok(Prepared::default());
        }
        let nobody = || Error::permanent("no issuer of certificates is configured");
        let trust = desired.trust.as_ref().ok_or_else(nobody).map_err(|error| failed(&error))?;
        let started = self.clock.start();
        self.wait_for_clock(deadline).await?;
        // Nobody waits for a renewal, and the node is not looked at while one is tried: the next look tries again.
        let deadline = if self.is_update { deadline } else { deadline.min(started.elapsed() + REQUEST_LIMIT * 2) };
        let mut pauses = PAUSES;
        let mut attempt: u32 = 1;
        let mut was_wrong = false;
        loop {
            let left = deadline.saturating_sub(started.elapsed());
            let stopped = match Box::pin(self.attempt(desired, trust, left)).await {
                Ok(prepared) => return Ok(prepared),
                Err(stopped) => stopped,
            };
            let left = deadline.saturating_sub(started.elapsed());
            let wait = pause_before_deadline(pauses.next_pause(), stopped.error.asked_pause(), left);
            let is_of_time = matches!(stopped.error.connect_failure(), Some(ConnectFailure::Clock | ConnectFailure::Expired));
            let may_pass = match stopped.retry {
                Retry::UntilDeadline => true,
                Retry::Once if !was_wrong => {
                    was_wrong = true;
                    true
                }
                Retry::Once | Retry::Never => is_of_time && started.elapsed() < self.clock_settles,
            };
            let Some(wait) = wait.filter(|_| may_pass) else { return Err(failed(&stopped.error)) };
            let event = Event::new(Code::CertificatesWaiting, format!("waiting for certificates: {}", stopped.error));
            self.emit(event.error(&stopped.error).attempt(attempt).next_try(wait));
            self.clock.wait(wait).await;
            attempt = attempt.saturating_add(1);
        }
    }

    fn commit(&self, prepared: &Prepared<CertificateRecord>) -> std::result::Result<(), Failure> {
        let before = self.note_change(prepared.record.as_ref()).map_err(|error| failed(&error))?;
        for (directory, set) in &prepared.sets {
            put_in_place(&self.root, directory, set).map_err(|error| failed(&error))?;
        }
        if !prepared.changes.is_empty() {
            self.emit(Event::new(Code::CertificatesChanged, format!("installed: {}", summary(&prepared.changes))));
        }
        match &prepared.record {
            Some(record) => self.remember(record.clone(), &before).map_err(|error| failed(&error)),
            None => Ok(()),
        }
    }
}

/// What was installed: a few by name, more by their number and where they are.
fn summary(paths: &BTreeSet<String>) -> String {
    if paths.len() <= NAMED {
        return paths.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    }
    let places: BTreeSet<&str> = paths.iter().filter_map(|path| path.rsplit_once('/')).map(|(place, _)| place).gather();
    format!("{} keys and certificates in {}", paths.len(), places.into_iter().collect::<Vec<_>>().join(", "))
}

impl<H: CertificateBackend> CertificateKeeper<H> {
    /// Certificates are judged by the clock: one that shows a time before the agent was built is waited for.
    async fn wait_for_clock(&self, deadline: Duration) -> std::result::Result<(), Failure> {
        let started = self.clock.start();
        let limit = deadline.min(CLOCK_LIMIT);
        let mut is_reported = false;
        loop {
            let now = self.clock.now();
            if now >= self.built {
                return Ok(());
            }
            let cause = format!("the clock shows {}, but this agent was built at {}", now.rfc3339(), self.built.rfc3339());
            if started.elapsed() >= limit {
                let remedy = Code::ClockWrong.entry().remedy;
                let error = Error::permanent(cause).rule("certificates are checked against the clock").remedy(remedy);
                return Err(failed(&error));
            }
            if !is_reported {
                self.emit(Event::new(Code::ClockWrong, "the clock is wrong: certificates wait until it is set").cause(cause));
                is_reported = true;
            }
            self.clock.wait(CLOCK_POLL.min(limit)).await;
        }
    }

    /// One try, from what lies on the disk: what an earlier one did is found there.
    async fn attempt(
        &self,
        desired: &Desired,
        trust: &CertificatePolicy,
        left: Duration,
    ) -> std::result::Result<Prepared<CertificateRecord>, IssueFailure> {
        let started = self.clock.start();
        let mut record = CertificateRecord::open(&self.state, self.progress.report())?;
        let mut places = Places::all(&self.root, desired)?;
        if record.foreign {
            places.remove_in_use();
        }
        let magnum = match &trust.issuer {
            Issuer::Magnum(access) => Some(self.backend.magnum(access)),
            Issuer::Given => None,
        };
        let (given, signing) = (self.given(desired)?, self.signing(desired)?);
        let now = self.clock.now();
        let known = DecisionFacts {
            desired,
            trust,
            places: &places,
            record: &record,
            generation: self.generation,
            rotation: self.takes_steps.then_some(trust.rotation),
            now,
            given: &given,
            signing: &signing,
        };
        let local = self.is_known(&known).then(|| known.decide(&in_place(desired, &places)).ok()).flatten();
        let (decision, issuer) = if let Some(decision) = local.filter(CertificateDecision::is_all_kept) {
            (decision, None)
        } else {
            let issuer = self.issuers(desired, trust, magnum.as_ref(), left).await?;
            (known.decide(&issuer)?, Some(issuer))
        };
        let tasks: Vec<SigningTask<'_>> = desired
            .certificates
            .iter()
            .zip(&decision.actions)
            .filter_map(|(wanted, action)| match action {
                CertificateAction::Sign(key) => Some(SigningTask { wanted, key: key.clone() }),
                CertificateAction::Keep(_) | CertificateAction::Take(_) => None,
            })
            .collect();
        let mut signed = BTreeMap::new();
        if let Some(issuer) = issuer.as_ref().filter(|_| !tasks.is_empty()) {
            let signers = self.signers(desired, magnum.as_ref(), issuer)?;
            let left = left.saturating_sub(started.elapsed());
            signed = self.issue(tasks, trust, &signers, &decision.signers, &mut record, left).await?;
        }
        let pairs = pairs(desired, &decision, signed);
        let now = self.clock.now();
        for (wanted, pair) in &pairs {
            let origin = if wanted.given.is_some() { "from the parameters" } else { "in place" };
            let cas = decision.signers.get(&wanted.signer).map(Vec::as_slice).unwrap_or_default();
            examine(wanted, pair, cas, now, origin)?;
        }
        let keys = self.keys_alone(desired, &mut record).await?;
        let record = self.record_after(record, desired, &decision, &pairs, &keys, issuer.is_some());
        Ok(self.make_ready(desired, &places, &decision, (&pairs, &keys), record)?)
    }

    /// Whether what is in place is compared with the issuer's CAs by updates alone, and no step of a CA rotation is due. A rollback may know no
    /// more than a token that has expired, and leaves certificates as they are.
    fn is_known(&self, known: &DecisionFacts<'_>) -> bool {
        let step = |turn: RotationProgress| rotation::step(known.record, known.rotation, self.generation, false) == turn.step;
        matches!(known.trust.issuer, Issuer::Magnum(_)) && !self.is_update && known.record.rotation.is_none_or(step)
    }

    /// The pairs that the parameters give.
    fn given(&self, desired: &Desired) -> Result<BTreeMap<String, InstalledPair>> {
        let mut pairs = BTreeMap::new();
        for wanted in &desired.certificates {
            let Some(pair) = &wanted.given else { continue };
            let read = |material| given(&self.root, material).map(|text| format!("{}\n", text.trim_end()));
            let parsed = read(&pair.certificate).and_then(|certificate| InstalledPair::parse(certificate, read(&pair.key)?));
            pairs.insert(wanted.name.clone(), parsed.context(|| format!("certificate {}, from the parameters", wanted.name))?);
        }
        Ok(pairs)
    }

    /// Public keys of the signing keys that are put beside a CA's certificate, by its path.
    fn signing(&self, desired: &Desired) -> Result<BTreeMap<String, Vec<u8>>> {
        let mut keys = BTreeMap::new();
        for ca in desired.cas.iter().filter(|ca| ca.key_path.is_some()) {
            if let Some(key) = self.signing_key(ca)? {
                keys.insert(ca.path.clone(), key.public_key().to_vec());
            }
        }
        Ok(keys)
    }

    /// Makes the sets ready, beside those in use.
    fn make_ready(
        &self,
        desired: &Desired,
        places: &Places,
        decision: &CertificateDecision,
        (pairs, keys): (&[(&Certificate, InstalledPair)], &[OwnKey<'_>]),
        record: CertificateRecord,
    ) -> Result<Prepared<CertificateRecord>> {
        let mut files = Vec::new();
        for ca in &desired.cas {
            let (path, owner) = (&ca.path, &ca.owner);
            let bundle = decision.bundles.get(path).map(Vec::as_slice).unwrap_or_default();
            // The same certificates stay byte for byte, so that nobody is restarted for a comment.
            let kept = places.cas.get(path).is_some_and(|there| there.as_slice() == bundle);
            let text = if kept { self.root.read(Path::new(path), READ_LIMIT)? } else { None };
            let content = match text {
                Some(text) => String::from_utf8_lossy(&text).into_owned(),
                None => bundle.iter().map(X509::to_pem).collect(),
            };
            files.push(WantedFile { path, content, owner, secret: false });
            if let (Some(path), Some(key)) = (&ca.key_path, &ca.signing_key) {
                let content = format!("{}\n", given(&self.root, key)?.trim_end());
                files.push(WantedFile { path, content, owner, secret: true });
            }
            // The signing key's own comes first in the bundle.
            if let (Some(path), Some(first)) = (&ca.signing_path, bundle.first()) {
                files.push(WantedFile { path, content: first.to_pem(), owner, secret: false });
            }
        }
        for (wanted, pair) in pairs {
            files.push(WantedFile { path: &wanted.path, content: pair.certificate.clone(), owner: &wanted.owner, secret: false });
            files.push(WantedFile { path: &wanted.key, content: pair.key.clone(), owner: &wanted.owner, secret: true });
        }
        for (wanted, key) in keys {
            files.push(WantedFile { path: &wanted.path, content: key.to_pem().to_owned(), owner: &wanted.owner, secret: true });
        }
        let mut prepared = Prepared { record: Some(record), ..Prepared::default() };
        for set in sets::sets(files, &Owners::read(&self.root)?)? {
            if !set.is_in_place(&self.root)? {
                prepared.changes.extend(set.changes(&self.root));
                prepared.sets.push((set.directory.clone(), set.make_ready(&self.root)?));
            }
        }
        Ok(prepared)
    }

    /// What is to be remembered once all this is in place.
    fn record_after(
        &self,
        mut record: CertificateRecord,
        desired: &Desired,
        decision: &CertificateDecision,
        pairs: &[(&Certificate, InstalledPair)],
        alone: &[OwnKey<'_>],
        asked: bool,
    ) -> CertificateRecord {
        let now = self.clock.now();
        let mut keys = BTreeMap::new();
        let of_certificates =
            pairs.iter().filter(|(wanted, _)| wanted.given.is_none()).map(|(wanted, pair)| (&wanted.name, &pair.private));
        for (name, key) in of_certificates.chain(alone.iter().map(|(wanted, key)| (&wanted.name, key))) {
            let fingerprint = key.fingerprint();
            let made = record.known(name, &fingerprint).is_some_and(|key| key.made);
            keys.insert(name.clone(), vec![KnownKey { fingerprint, made }]);
        }
        (record.keys, record.foreign) = (keys, false);
        if asked {
            record.rotation = decision.step.and_then(|step| rotation::turn(&record, step, decision.begins, self.generation, now));
        }
        let leaves = pairs.iter().filter_map(|(wanted, pair)| Some((wanted.name.clone(), pair.chain.first()?)));
        let cas = desired.cas.iter().filter_map(|ca| {
            Some((inspection::name_of(ca.signer), inspection::first_valid(decision.bundles.get(&ca.path)?, now)?))
        });
        record.reported = inspection::near_ends(leaves.chain(cas), now);
        record
    }

    /// What is remembered now. A CA rotation on top of another one is noted before anything of it is in place: cut off,
    /// it would pass for the next step of the old one. Orders were meant for that.
    fn note_change(&self, record: Option<&CertificateRecord>) -> Result<CertificateRecord> {
        let mut before = CertificateRecord::open(&self.state, self.progress.report())?;
        let first = |turn: &RotationProgress| turn.step == Rotation::TrustBoth && before.rotation.is_some_and(|old| old != *turn);
        if let Some(turn) = record.and_then(|record| record.rotation).filter(first) {
            before.ordered = None;
            CertificateRecord { rotation: Some(turn), ..before.clone() }.write(&self.state)?;
        }
        Ok(before)
    }

    /// Stores the record, and reports what changed with it.
    fn remember(&self, mut record: CertificateRecord, before: &CertificateRecord) -> Result<()> {
        let step = record.rotation.map(|turn| turn.step);
        // Somebody may have ordered the next one meanwhile.
        record.ordered = before.ordered.filter(|ordered| step.is_some_and(|step| *ordered > step));
        if record.rotation != before.rotation {
            let line = match step {
                Some(Rotation::TrustBoth) => "a new CA is trusted alongside the old one",
                Some(Rotation::Switch | Rotation::DropOld) => {
                    "the node's certificates are signed by the new CA; the old one is still trusted"
                }
                None => "the old CA is no longer trusted",
            };
            self.emit(Event::new(Code::CaRotationAdvanced, line));
            if let Some(next) = record.next_step() {
                self.emit(Event::new(Code::RotationWaiting, format!("waiting for the next step: {}", next.as_str())));
            }
        }
        inspection::report_near_ends(&record.reported, &before.reported, self.progress.report(), self.generation);
        if record == *before { Ok(()) } else { record.write(&self.state) }
    }

    fn emit(&self, event: Event) {
        let step = StepId::Certificates;
        self.progress.emit(&step, event.phase(step.phase()).step(step.to_string()).generation(self.generation));
    }
}

/// The CAs in place, by who signs: what the issuer gave when it was asked last.
fn in_place(desired: &Desired, places: &Places) -> BTreeMap<Signer, Vec<X509>> {
    let of = |path: &String| places.cas.get(path).cloned().unwrap_or_default();
    desired.cas.iter().map(|ca| (ca.signer, of(&ca.path))).gather()
}

/// Each desired certificate with the pair for it.
fn pairs<'a>(
    desired: &'a Desired,
    decision: &CertificateDecision,
    mut signed: BTreeMap<String, InstalledPair>,
) -> Vec<(&'a Certificate, InstalledPair)> {
    let pair = |wanted: &Certificate, action: &CertificateAction, signed: &mut BTreeMap<String, InstalledPair>| match action {
        CertificateAction::Keep(pair) | CertificateAction::Take(pair) => Some((**pair).clone()),
        CertificateAction::Sign(_) => signed.remove(&wanted.name),
    };
    let wanted_certificates = desired.certificates.iter().zip(&decision.actions);
    wanted_certificates.filter_map(|(wanted, action)| Some((wanted, pair(wanted, action, &mut signed)?))).collect()
}
