//! A look at certificates in place: how each one is, what somebody changed, what nears its end. It changes nothing.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use super::decide::{CertificateVerdict, verdict};
use super::places::{Places, private};
use super::record::CertificateRecord;

use super::sets::{KEY_MODE, PUBLIC_MODE};
use crate::certificates::judge::{ValidityPhase, check_ca, life, renewal_due};
use crate::certificates::x509::X509;
use crate::clock::Timestamp;
use crate::converge::{Owners, PlannedStep};
use crate::desired::{Desired, Owner, Signer};
use crate::error::Result;
use crate::files::Tree;
use crate::gather::Gather;
use crate::report::{Code, Event, Phase, Report};

/// One certificate or CA as it lies on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedCertificate {
    /// `server`, `CA etcd`.
    pub name: String,
    /// Its file.
    pub path: String,
    /// How it is.
    pub verdict: CertificateVerdict,
    /// What is in the file: the node's certificate first, or all CAs.
    pub chain: Vec<X509>,
    /// When it ends.
    pub end: Option<Timestamp>,
}

/// Something that is not as it was put in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// The file.
    pub path: String,
    /// What is wrong with it, in words.
    pub why: String,
}

impl Drift {
    /// What is to be done about it.
    #[must_use]
    pub fn step(&self) -> PlannedStep {
        PlannedStep { about: self.path.clone(), text: format!("{}: {}", self.path, self.why) }
    }
}

/// What a look found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateInspection {
    /// In the order of the desired certificates, CAs first.
    pub items: Vec<InspectedCertificate>,
    /// What is to be put back.
    pub drift: Vec<Drift>,
}

impl CertificateInspection {
    /// Names and ends of what is past two thirds of its life.
    #[must_use]
    pub fn near_ends(&self) -> BTreeMap<String, Timestamp> {
        let near = self.items.iter().filter(|item| item.verdict == CertificateVerdict::NearEnd);
        near.filter_map(|item| Some((item.name.clone(), item.end?))).gather()
    }

    /// What is to be put back: all drift but what a renewal puts right by itself.
    pub fn to_put_back<'a>(&'a self, desired: &'a Desired) -> impl Iterator<Item = &'a Drift> {
        let renews = desired.trust.as_ref().is_some_and(|trust| trust.renew);
        let is_renewed = move |drift: &&Drift| {
            renews && signed(self, desired).any(|item| item.path == drift.path && item.is_outside_its_time())
        };
        self.drift.iter().filter(move |drift| !is_renewed(drift))
    }

    /// When the verdicts may be others, although no file changed.
    fn until(&self, now: Timestamp) -> Timestamp {
        let times =
            self.items.iter().flat_map(|item| &item.chain).flat_map(|one| [one.not_before, renewal_due(one), one.not_after]);
        times.filter(|time| *time > now).min().unwrap_or(Timestamp(u64::MAX))
    }
}

/// Inspects everything that is desired.
///
/// # Errors
/// If something is unreadable.
pub fn inspect(root: &Tree, desired: &Desired, now: Timestamp) -> Result<CertificateInspection> {
    let places = Places::in_use(root, desired)?;
    let owners = Owners::read(root)?;
    let mut inspection = CertificateInspection::default();
    let mut trusted: BTreeMap<Signer, &[X509]> = BTreeMap::new();
    for ca in &desired.cas {
        let chain = places.cas.get(&ca.path).map(Vec::as_slice).unwrap_or_default();
        trusted.entry(ca.signer).or_insert(chain);
        let item = InspectedCertificate {
            name: name_of(ca.signer),
            path: ca.path.clone(),
            verdict: of_ca(&ca.path, chain, now),
            chain: chain.to_vec(),
            end: first_valid(chain, now).or(chain.first()).map(|one| one.not_after),
        };
        inspection.add(item, root, &owners, [(ca.path.as_str(), PUBLIC_MODE)], &ca.owner)?;
        if let Some(path) = &ca.key_path {
            inspection.attributes(root, &owners, path, KEY_MODE, &ca.owner)?;
        }
        if let Some(path) = &ca.signing_path {
            inspection.attributes(root, &owners, path, PUBLIC_MODE, &ca.owner)?;
        }
    }
    for wanted in &desired.certificates {
        let Some(found) = places.in_use.get(&wanted.name) else { continue };
        let cas = trusted.get(&wanted.signer).copied().unwrap_or_default();
        let chain = found.pair().map(|pair| pair.chain.clone()).unwrap_or_default();
        let end = chain.first().map(|leaf| leaf.not_after);
        let verdict = verdict(wanted, found, cas, now);
        let item = InspectedCertificate { name: wanted.name.clone(), path: wanted.path.clone(), verdict, chain, end };
        inspection.add(
            item,
            root,
            &owners,
            [(wanted.path.as_str(), PUBLIC_MODE), (wanted.key.as_str(), KEY_MODE)],
            &wanted.owner,
        )?;
    }
    for wanted in &desired.keys {
        if private(root, Path::new(&wanted.path))?.is_none() {
            let is_present = root.facts_followed(Path::new(&wanted.path))?.is_some();
            let why = if is_present { "it contains no private key" } else { "it is missing" };
            inspection.drift.push(Drift { path: wanted.path.clone(), why: why.to_owned() });
        } else {
            inspection.attributes(root, &owners, &wanted.path, KEY_MODE, &wanted.owner)?;
        }
    }
    Ok(inspection)
}

impl CertificateInspection {
    fn add<const N: usize>(
        &mut self,
        item: InspectedCertificate,
        root: &Tree,
        owners: &Owners,
        files: [(&str, u32); N],
        owner: &Owner,
    ) -> Result<()> {
        let why = match &item.verdict {
            CertificateVerdict::Right | CertificateVerdict::NearEnd => None,
            CertificateVerdict::Missing(why) | CertificateVerdict::Unreadable(why) => Some(why.clone()),
            CertificateVerdict::Flawed(flaw) => Some(flaw.to_string()),
        };
        match why {
            Some(why) => self.drift.push(Drift { path: item.path.clone(), why }),
            None => {
                for (path, mode) in files {
                    self.attributes(root, owners, path, mode, owner)?;
                }
            }
        }
        self.items.push(item);
        Ok(())
    }

    fn attributes(&mut self, root: &Tree, owners: &Owners, path: &str, mode: u32, owner: &Owner) -> Result<()> {
        let why = match root.facts_followed(Path::new(path))? {
            None => "it is missing".to_owned(),
            Some(facts) if facts.mode != mode => format!("its mode is {:04o}, not {mode:04o}", facts.mode),
            Some(facts) if owners.resolve(owner).is_some_and(|numbers| numbers != facts.owner) => {
                format!("its owner is not {}:{}", owner.user, owner.group)
            }
            Some(_) => return Ok(()),
        };
        self.drift.push(Drift { path: path.to_owned(), why });
        Ok(())
    }
}

/// As a certificate among the others.
pub(super) fn name_of(signer: Signer) -> String {
    format!("CA {signer}")
}

/// The first of a bundle that lives.
pub(super) fn first_valid(bundle: &[X509], now: Timestamp) -> Option<&X509> {
    bundle.iter().find(|one| check_ca(one, now).is_ok())
}

fn of_ca(path: &str, chain: &[X509], now: Timestamp) -> CertificateVerdict {
    match (first_valid(chain, now), chain.first()) {
        (Some(one), _) if life(one, now) == ValidityPhase::Fresh => CertificateVerdict::Right,
        (Some(_), _) => CertificateVerdict::NearEnd,
        (None, Some(first)) => check_ca(first, now).map_or_else(CertificateVerdict::Flawed, |()| CertificateVerdict::Right),
        (None, None) => CertificateVerdict::Missing(format!("{path} contains no certificate")),
    }
}

/// Those that are past two thirds of their lives, with their ends.
pub(super) fn near_ends<'a>(all: impl Iterator<Item = (String, &'a X509)>, now: Timestamp) -> BTreeMap<String, Timestamp> {
    all.filter(|(_, one)| life(one, now) != ValidityPhase::Fresh).map(|(name, one)| (name, one.not_after)).gather()
}

/// Tells of each end once.
pub(super) fn report_near_ends(
    ends: &BTreeMap<String, Timestamp>,
    reported: &BTreeMap<String, Timestamp>,
    report: &Report,
    generation: u64,
) {
    for (name, end) in ends.iter().filter(|(name, end)| reported.get(*name) != Some(end)) {
        let event = Event::new(Code::CertificateNearExpiry, format!("certificate {name} expires at {}", end.rfc3339()));
        report.emit(event.generation(generation).phase(Phase::Certificates));
    }
}

/// Looks again and again at a node in place, and judges afresh only when a file changed or its time came.
#[derive(Debug, Default)]
pub struct Watcher(RefCell<Option<Judged>>);

#[derive(Debug)]
struct Judged {
    generation: u64,
    stamps: Vec<Option<Stamps>>,
    at: Timestamp,
    until: Timestamp,
    inspection: Rc<CertificateInspection>,
}

/// Of what lies at a path, and of what it leads to.
type Stamps = ((u64, i64, i64), (u64, i64, i64));

impl Watcher {
    /// Looks; what is near its end is reported once.
    ///
    /// # Errors
    /// If something is unreadable.
    pub fn inspect(
        &self,
        root: &Tree,
        state: &Tree,
        desired: &Desired,
        generation: u64,
        now: Timestamp,
        report: &Report,
    ) -> Result<Rc<CertificateInspection>> {
        let mut stamps = Vec::new();
        for path in desired.trusted_paths() {
            let path = Path::new(path);
            let both = (root.facts(path)?, root.facts_followed(path)?);
            stamps.push(both.0.zip(both.1).map(|(here, there)| (here.stamp, there.stamp)));
        }
        if let Some(judged) = &*self.0.borrow()
            && (judged.generation, &judged.stamps) == (generation, &stamps)
            && (judged.at..judged.until).contains(&now)
        {
            return Ok(Rc::clone(&judged.inspection));
        }
        let inspection = Rc::new(inspect(root, desired, now)?);
        let mut record = CertificateRecord::open(state, report)?;
        let ends = inspection.near_ends();
        if ends != record.reported {
            report_near_ends(&ends, &record.reported, report, generation);
            record.reported = ends;
            record.write(state)?;
        }
        let judged = Judged { generation, stamps, at: now, until: inspection.until(now), inspection: Rc::clone(&inspection) };
        *self.0.borrow_mut() = Some(judged);
        Ok(inspection)
    }
}

/// The certificates that the issuer may sign again: not the CAs, and not what is given.
pub(super) fn signed<'a>(
    inspection: &'a CertificateInspection,
    desired: &'a Desired,
) -> impl Iterator<Item = &'a InspectedCertificate> {
    let signed = |item: &&InspectedCertificate| {
        desired.certificates.iter().any(|wanted| wanted.name == item.name && wanted.given.is_none())
    };
    inspection.items.iter().filter(signed)
}
