//! The keeper against CAs that sign with other code than ours, on a disk that breaks at any change.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertificateSigningRequestParams, IsCa, KeyPair, date_time_ymd};

use super::*;
use crate::certificates::ca::SigningCa;
use crate::certificates::key::PrivateKey;
use crate::clock::{Clock, Timestamp};
use crate::desired::{CaCertificate, GivenPair, KeyRequest, KeyType, MagnumAccess, MagnumUser, Material, Owner, RenewalSlot};
use crate::files::{Attributes, FileKind, Tree};
use crate::identity::{Identity, IdentityOrigin, InstanceRecord as Whose};
use crate::keepers::volumes::ProgramOutput;
use crate::progress::Progress;
use crate::report::Report;

const KUBERNETES: &str = "/etc/kubernetes/certs";
const ETCD: &str = "/etc/etcd/certs";
const STATE: &str = "/var/lib/heat-node-agent";
const LIMIT: Duration = Duration::from_mins(2);

pub(super) fn now() -> Timestamp {
    Timestamp::parse_rfc3339("2026-06-01T12:00:00Z").unwrap()
}

/// A CA at the other place; all have the same subject.
struct Ca {
    pem: String,
    issuer: rcgen::Issuer<'static, KeyPair>,
}

impl Ca {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2040, 1, 1));
        params.distinguished_name.push(rcgen::DnType::CommonName, "cluster");
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: rcgen::Issuer::new(params, key) }
    }

    fn sign(&self, request: &str, (year, month): (i32, u8), change: impl FnOnce(&mut CertificateParams)) -> String {
        let mut request = CertificateSigningRequestParams::from_pem(request).unwrap();
        let params = &mut request.params;
        (params.not_before, params.not_after) = (date_time_ymd(year, month, 1), date_time_ymd(year + 1, month, 1));
        change(params);
        request.signed_by(&self.issuer).unwrap().pem()
    }
}

/// What the next signature is instead of a right one.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    Away,
    /// And asks to be left alone for an hour.
    Busy,
    Refused,
    Truncated,
    NoCertificate,
    Expired,
    NotYetValid,
    OtherCa,
    OtherName,
    OtherSubject,
    ForeignKey,
}

/// Magnum, and programs.
#[derive(Default)]
struct Outside {
    cas: RefCell<BTreeMap<Signer, Ca>>,
    asked: RefCell<Vec<String>>,
    wrong: RefCell<VecDeque<Wrong>>,
    /// What openssl finds: the mode of its file before it begins.
    found: RefCell<Vec<(String, u32)>>,
    root: RefCell<Option<PathBuf>>,
    /// What is signed lives from the first day of this month on, for a year.
    since: Cell<(i32, u8)>,
    /// How long it takes until a CA is returned.
    slowness: Cell<Duration>,
    /// How long signatures may take.
    limits: RefCell<Vec<Duration>>,
    /// Files that openssl left.
    left: RefCell<Vec<u64>>,
    clock: RefCell<Option<Clock>>,
}

impl Outside {
    fn take_asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.borrow_mut())
    }

    fn rotate(&self) {
        for signer in [Signer::Kubernetes, Signer::Etcd] {
            self.cas.borrow_mut().insert(signer, Ca::new());
        }
    }

    fn ca(&self, signer: Signer) -> X509 {
        X509::all_from_pem(&self.cas.borrow()[&signer].pem).unwrap().remove(0)
    }
}

impl CertificateSigner for Rc<Outside> {
    async fn fetch_ca(&self, signer: Signer, _deadline: Duration) -> Result<String> {
        self.asked.borrow_mut().push(format!("CA {signer}"));
        if let Some(clock) = &*self.clock.borrow() {
            clock.advance(self.slowness.get());
        }
        Ok(self.cas.borrow()[&signer].pem.clone())
    }

    async fn sign(&self, signer: Signer, request: &str, deadline: Duration) -> Result<String> {
        self.limits.borrow_mut().push(deadline);
        self.asked.borrow_mut().push(format!("sign {signer}"));
        let cas = self.cas.borrow();
        let right = |change: &dyn Fn(&mut CertificateParams)| cas[&signer].sign(request, self.since.get(), change);
        Ok(match self.wrong.borrow_mut().pop_front() {
            None => right(&|_| {}),
            Some(Wrong::Away) => return Err(Error::transient("Magnum does not answer").retry_after(Some(Duration::from_secs(7)))),
            Some(Wrong::Busy) => return Err(Error::transient("Magnum answers 503").retry_after(Some(Duration::from_hours(1)))),
            Some(Wrong::Refused) => return Err(Error::permanent("Magnum answers 403").with_status(403)),
            Some(Wrong::Truncated) => right(&|_| {}).chars().take(200).collect(),
            Some(Wrong::NoCertificate) => "<html>".to_owned(),
            Some(Wrong::Expired) => right(&|params| params.not_after = date_time_ymd(2026, 5, 31)),
            Some(Wrong::NotYetValid) => right(&|params| params.not_before = date_time_ymd(2026, 6, 2)),
            Some(Wrong::OtherCa) => Ca::new().sign(request, self.since.get(), |_| {}),
            Some(Wrong::OtherName) => right(&|params| params.subject_alt_names.clear()),
            Some(Wrong::OtherSubject) => right(&|params| params.distinguished_name = rcgen::DistinguishedName::new()),
            Some(Wrong::ForeignKey) => {
                let key = PrivateKey::generate().unwrap();
                let request = crate::certificates::request::request(&server(), &key).unwrap();
                cas[&signer].sign(&request, self.since.get(), |_| {})
            }
        })
    }
}

impl CertificateBackend for Rc<Outside> {
    fn magnum<'a>(&'a self, _access: &'a MagnumAccess) -> impl CertificateSigner + 'a {
        Self::clone(self)
    }

    async fn run(&self, _key: &str, argv: Vec<String>) -> Result<ProgramOutput> {
        use std::os::unix::fs::PermissionsExt as _;
        let place = argv.last().unwrap();
        let mode = std::fs::metadata(place).unwrap().permissions().mode() & 0o7777;
        self.found.borrow_mut().push((argv[..argv.len() - 1].join(" "), mode));
        // An ECDSA key stands in for what openssl would make.
        let root = Tree::open(self.root.borrow().as_ref().unwrap()).unwrap();
        let below = Path::new(place).strip_prefix(root.base()).unwrap();
        let owner = root.facts(below).unwrap().unwrap().owner;
        root.write(below, PrivateKey::generate()?.to_pem().as_bytes(), Attributes { mode, owner: Some(owner) })?;
        self.left.borrow_mut().push(root.facts(below)?.unwrap().stamp.0);
        Ok(ProgramOutput::default())
    }
}

fn wanted_certificate(name: &str, signer: Signer, directory: &str, file: &str, common_name: &str) -> Certificate {
    Certificate {
        name: name.into(),
        signer,
        common_name: common_name.into(),
        organisations: vec![],
        names: vec![],
        addresses: vec![],
        serves: false,
        path: format!("{directory}/{file}.crt"),
        key: format!("{directory}/{file}.key"),
        owner: Owner::root(),
        given: None,
    }
}

pub(super) fn server() -> Certificate {
    Certificate {
        names: vec!["kubernetes".into()],
        addresses: vec!["192.0.2.1".parse().unwrap()],
        serves: true,
        ..wanted_certificate("server", Signer::Kubernetes, KUBERNETES, "server", "kubernetes")
    }
}

fn ca(signer: Signer, directory: &str) -> CaCertificate {
    let path = format!("{directory}/ca.crt");
    CaCertificate { signer, path, owner: Owner::root(), given: None, signing_key: None, key_path: None, signing_path: None }
}

fn magnum() -> Issuer {
    Issuer::Magnum(MagnumAccess {
        url: "https://magnum.example.org:9511/v1".into(),
        cluster: "c".into(),
        bay: false,
        user: MagnumUser::Token("t".into()),
        ca: None,
        insecure: false,
    })
}

pub(super) fn desired() -> Desired {
    let admin = Certificate {
        organisations: vec!["system:masters".into()],
        ..wanted_certificate("admin", Signer::Kubernetes, KUBERNETES, "admin", "admin")
    };
    Desired {
        cas: vec![ca(Signer::Kubernetes, KUBERNETES), ca(Signer::Etcd, ETCD)],
        certificates: vec![server(), admin, wanted_certificate("etcd-server", Signer::Etcd, ETCD, "server", "etcd")],
        trust: Some(CertificatePolicy {
            issuer: magnum(),
            keys: KeyType::EcdsaP256,
            keys_asked: false,
            renew: false,
            rotation: Rotation::TrustBoth,
            share: RenewalSlot::ALONE,
        }),
        ..Desired::default()
    }
}

fn rotating(rotation: Rotation) -> Desired {
    let desired = desired();
    Desired { trust: desired.trust.clone().map(|trust| CertificatePolicy { rotation, ..trust }), ..desired }
}

/// A machine in a directory, whose root is whoever runs the tests.
struct Node {
    _dir: tempfile::TempDir,
    root: Tree,
    clock: Clock,
    report: Report,
    outside: Rc<Outside>,
    /// The generation of the last run that ended.
    done: Cell<u64>,
}

impl Node {
    fn new() -> Self {
        // In memory where that is possible: there is a sync after each of thousands of changes.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let root = Tree::open(dir.path()).unwrap();
        for path in [KUBERNETES, ETCD, STATE, "/usr/bin"] {
            root.create_dir_all(Path::new(path), Attributes::mode(0o755)).unwrap();
        }
        let (user, group) = (nix::unistd::geteuid(), nix::unistd::getegid());
        root.write(Path::new("/etc/passwd"), format!("root:x:{user}:{group}::/:\n").as_bytes(), Attributes::mode(0o644)).unwrap();
        root.write(Path::new("/etc/group"), format!("root:x:{group}:\n").as_bytes(), Attributes::mode(0o644)).unwrap();
        let outside = Outside::default();
        outside.rotate();
        outside.since.set((2026, 3));
        *outside.root.borrow_mut() = Some(dir.path().to_owned());
        Self {
            _dir: dir,
            root,
            clock: Clock::manual(now()),
            report: Report::kept(),
            outside: Rc::new(outside),
            done: Cell::new(0),
        }
    }

    fn state(&self) -> Tree {
        self.root.subtree(Path::new(STATE)).unwrap()
    }

    /// The keeper on a disk that breaks after so many changes.
    fn keeper(&self, generation: u64, changes: Option<u32>) -> CertificateKeeper<Rc<Outside>> {
        let root = self.root.breaking_after(changes.unwrap_or(u32::MAX)).unwrap();
        CertificateKeeper {
            backend: Rc::clone(&self.outside),
            state: Arc::new(root.subtree(Path::new(STATE)).unwrap()),
            root: Arc::new(root),
            clock: self.clock.clone(),
            built: Timestamp(0),
            clock_settles: Duration::ZERO,
            progress: Progress::new(self.report.clone(), self.clock.clone()),
            generation,
            is_update: false,
            takes_steps: true,
        }
    }

    async fn run_breaking(
        &self,
        desired: &Desired,
        generation: u64,
        changes: Option<u32>,
    ) -> std::result::Result<Prepared<CertificateRecord>, Failure> {
        // A generation is new until a run of it ends.
        let is_update = self.done.get() != generation;
        let keeper = CertificateKeeper { is_update, ..self.keeper(generation, changes) };
        let prepared = keeper.prepare(desired, LIMIT).await?;
        keeper.commit(&prepared)?;
        self.done.set(generation);
        Ok(prepared)
    }

    async fn run(&self, desired: &Desired, generation: u64) -> std::result::Result<Prepared<CertificateRecord>, Failure> {
        self.run_breaking(desired, generation, None).await
    }

    fn inspect(&self, desired: &Desired) -> CertificateInspection {
        inspect(&self.root, desired, self.clock.now()).unwrap()
    }

    fn read(&self, path: &str) -> Option<String> {
        Some(String::from_utf8(self.root.read(Path::new(path), 1 << 20).unwrap()?).unwrap())
    }

    fn write(&self, path: &str, text: &str, mode: u32) {
        self.root.write(Path::new(path), text.as_bytes(), Attributes::mode(mode)).unwrap();
    }

    fn key(&self, path: &str) -> Option<String> {
        self.read(path).map(|text| PrivateKey::from_pem(&text).unwrap().fingerprint())
    }

    /// Fingerprints of the keys in use, by their paths.
    fn keys(&self, desired: &Desired) -> BTreeMap<String, String> {
        desired.certificates.iter().filter_map(|wanted| Some((wanted.key.clone(), self.key(&wanted.key)?))).collect()
    }

    /// Every file and link with what is in it.
    fn everything(&self) -> Vec<String> {
        let mut all = Vec::new();
        for directory in [KUBERNETES, ETCD] {
            for name in self.root.list(Path::new(directory)).unwrap() {
                let path = Path::new(directory).join(&name);
                let target = self.root.read_link(&path).unwrap();
                let content = self.root.read(&path, 1 << 20).ok().flatten();
                // The set in the making is not in use.
                if name != "..next" {
                    all.push(format!("{} {target:?} {content:?}", path.display()));
                }
            }
        }
        all
    }

    fn codes(&self) -> Vec<Code> {
        self.report.events().iter().map(|event| event.code).collect()
    }

    fn count(&self, code: Code) -> usize {
        self.codes().iter().filter(|one| **one == code).count()
    }

    /// No key is in use without its certificate, nor beside another one's.
    fn belongs_together(&self, desired: &Desired, when: &str) {
        for wanted in &desired.certificates {
            let Some(key) = self.read(&wanted.key) else { continue };
            let certificate = self.read(&wanted.path).unwrap_or_else(|| panic!("{when}: {} without its certificate", wanted.key));
            let pair = InstalledPair::parse(certificate, key).unwrap();
            assert_eq!(pair.chain[0].public_key, pair.private.public_key(), "{when}: {} is another one's", wanted.key);
        }
    }
}

fn is_key(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension == "key")
}

fn subjects(bundle: &str) -> usize {
    X509::all_from_pem(bundle).unwrap().len()
}

#[tokio::test]
async fn a_fresh_node_gets_what_it_needs_once_and_asks_nobody_again() {
    let (node, desired) = (Node::new(), desired());
    let prepared = node.run(&desired, 1).await.unwrap();
    assert_eq!(prepared.changes, desired.trusted_paths().into_iter().map(str::to_owned).collect());
    let asked: BTreeSet<String> = node.outside.take_asked().into_iter().collect();
    assert_eq!(asked.len(), 4, "{asked:?}");
    let inspection = node.inspect(&desired);
    assert!(
        inspection.drift.is_empty() && inspection.items.iter().all(|item| item.verdict == CertificateVerdict::Right),
        "{inspection:?}"
    );
    for (path, mode) in [("server.crt", 0o644), ("server.key", 0o600), ("ca.crt", 0o644), ("admin.key", 0o600)] {
        let path = Path::new(KUBERNETES).join(path);
        assert_eq!(node.root.facts(&path).unwrap().unwrap().kind, FileKind::Link);
        assert_eq!(node.root.facts_followed(&path).unwrap().unwrap().mode, mode, "{}", path.display());
    }
    assert_eq!((node.count(Code::KeyGenerated), node.count(Code::CertificatesChanged)), (3, 1));

    let before = node.everything();
    for generation in [1, 1] {
        let again = node.run(&desired, generation).await.unwrap();
        assert!(again.changes.is_empty() && again.sets.is_empty(), "{again:?}");
        assert_eq!(node.outside.take_asked(), Vec::<String>::new());
    }
    // An update asks whether the CAs are the same yet, and nothing else.
    let update = CertificateKeeper { is_update: true, ..node.keeper(2, None) };
    let prepared = update.prepare(&desired, LIMIT).await.unwrap();
    assert!(prepared.sets.is_empty());
    update.commit(&prepared).unwrap();
    assert_eq!(node.outside.take_asked(), ["CA kubernetes", "CA etcd"]);
    // Attack: a rollback asked, as whom the generation before named: of a token that had expired every one failed.
    node.outside.rotate();
    let back = CertificateKeeper { takes_steps: false, ..node.keeper(1, None) };
    assert!(back.prepare(&desired, LIMIT).await.unwrap().sets.is_empty());
    assert_eq!(node.outside.take_asked(), Vec::<String>::new());
    assert_eq!(node.everything(), before);
}

#[tokio::test]
async fn cut_off_at_any_change_a_first_issue_is_gone_on_with() {
    let desired = desired();
    let mut cuts = 0;
    loop {
        let node = Node::new();
        let done = node.run_breaking(&desired, 1, Some(cuts)).await.is_ok();
        let when = format!("after {cuts} changes");
        node.belongs_together(&desired, &when);
        let in_use = node.keys(&desired);
        // A key that is known as ours and lies in a set is the one that is used in the end.
        let known = CertificateRecord::inspect(&node.state()).keys;
        let begun = |wanted: &Certificate| {
            let (directory, name) = sets::split(&wanted.key).unwrap();
            let sets = sets::every(&node.root, directory).unwrap();
            let fingerprints: Vec<String> = sets.iter().filter_map(|set| node.key(set.join(name).to_str().unwrap())).collect();
            let known = known.get(&wanted.name).cloned().unwrap_or_default();
            known.into_iter().map(|key| key.fingerprint).find(|known| fingerprints.contains(known))
        };
        let begun: BTreeMap<String, String> =
            desired.certificates.iter().filter_map(|wanted| Some((wanted.key.clone(), begun(wanted)?))).collect();
        node.run(&desired, 1).await.unwrap_or_else(|failure| panic!("{when}: {failure:?}"));
        let inspection = node.inspect(&desired);
        assert!(inspection.drift.is_empty(), "{when}: {inspection:?}");
        let after = node.keys(&desired);
        for (path, key) in in_use.iter().chain(&begun) {
            assert_eq!(after.get(path), Some(key), "{when}: a new key at {path}");
        }
        assert!(node.run(&desired, 1).await.unwrap().sets.is_empty(), "{when}: something is left over");
        if done {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 50, "{cuts}");
}

#[tokio::test]
async fn cut_off_at_any_change_of_a_rotation_what_is_in_use_is_right() {
    // What a step is to do: how many CAs there are then, and whether the leaves are others.
    let steps = [(Rotation::TrustBoth, 2, false), (Rotation::Switch, 2, true), (Rotation::DropOld, 1, false)];
    for (at, (rotation, cas, leaves)) in steps.into_iter().enumerate() {
        let mut cuts = 0;
        loop {
            let node = Node::new();
            node.run(&desired(), 1).await.unwrap();
            node.outside.rotate();
            for (generation, (rotation, ..)) in (2..).zip(&steps[..at]) {
                node.run(&rotating(*rotation), generation).await.unwrap();
            }
            let (desired, generation) = (rotating(rotation), 2 + at as u64);
            let (keys, server) = (node.keys(&desired), node.read("/etc/kubernetes/certs/server.crt"));
            let done = node.run_breaking(&desired, generation, Some(cuts)).await.is_ok();
            let when = format!("{rotation:?}, after {cuts} changes");
            for inspection in ["cut off", "gone on with"] {
                let found = node.inspect(&desired);
                assert!(found.drift.is_empty(), "{when}, {inspection}: {found:?}");
                assert_eq!(node.keys(&desired), keys, "{when}, {inspection}");
                node.run(&desired, generation).await.unwrap();
            }
            assert_eq!(subjects(&node.read("/etc/etcd/certs/ca.crt").unwrap()), cas, "{when}");
            assert_eq!(node.read("/etc/kubernetes/certs/server.crt") != server, leaves, "{when}");
            if done {
                break;
            }
            cuts += 1;
        }
        assert!(cuts > 10, "{cuts}");
    }
}

#[tokio::test]
async fn a_stack_update_finds_a_ca_rotation_although_no_parameter_changed() {
    let node = Node::new();
    node.run(&desired(), 1).await.unwrap();
    node.outside.rotate();
    assert!(node.run(&desired(), 1).await.unwrap().sets.is_empty());
    let update = CertificateKeeper { is_update: true, ..node.keeper(1, None) };
    let prepared = update.prepare(&desired(), LIMIT).await.unwrap();
    assert!(prepared.changes.contains("/etc/etcd/certs/ca.crt"), "{:?}", prepared.changes);
}

#[tokio::test]
async fn a_ca_rotation_waits_for_each_step_and_says_so() {
    let node = Node::new();
    let old = node.outside.ca(Signer::Etcd);
    node.run(&desired(), 1).await.unwrap();
    node.outside.rotate();
    let new = node.outside.ca(Signer::Etcd);
    let ca = || X509::all_from_pem(&node.read("/etc/etcd/certs/ca.crt").unwrap()).unwrap();
    // However far the parameter goes, one update takes one step.
    let prepared = node.run(&rotating(Rotation::DropOld), 2).await.unwrap();
    let readers = ["/etc/etcd/certs/ca.crt", "/etc/kubernetes/certs/ca.crt"];
    assert_eq!(prepared.changes, readers.map(str::to_owned).into_iter().collect());
    assert_eq!(ca(), [new.clone(), old.clone()]);
    assert_eq!((node.count(Code::CaRotationAdvanced), node.count(Code::RotationWaiting)), (1, 1));
    assert_eq!(CertificateRecord::inspect(&node.state()).rotation.map(|turn| turn.step), Some(Rotation::TrustBoth));
    // A second run of it takes none, the operator's order does.
    assert!(node.run(&rotating(Rotation::DropOld), 2).await.unwrap().sets.is_empty());
    assert_eq!(order_next_step(&node.state()).unwrap(), Rotation::Switch);
    let prepared = node.run(&rotating(Rotation::TrustBoth), 2).await.unwrap();
    assert!(prepared.changes.iter().all(|path| !path.ends_with("ca.crt") && !is_key(path)), "{:?}", prepared.changes);
    assert_eq!((prepared.changes.len(), ca()), (3, vec![new.clone(), old]));
    assert_eq!(CertificateRecord::inspect(&node.state()).ordered, None);
    let prepared = node.run(&rotating(Rotation::DropOld), 3).await.unwrap();
    assert_eq!((prepared.changes.len(), ca()), (2, vec![new]));
    assert_eq!(CertificateRecord::inspect(&node.state()).rotation, None);
    assert_eq!((node.count(Code::CaRotationAdvanced), node.count(Code::RotationWaiting)), (3, 2));
}

#[tokio::test]
async fn what_is_signed_wrongly_has_one_cause_and_replaces_nothing() {
    for (wrong, cause) in [
        (Wrong::Refused, "Magnum answers 403"),
        (Wrong::Truncated, "certificate server"),
        (Wrong::NoCertificate, "certificate server"),
        (Wrong::Expired, "it expired at 2026-05-31T00:00:00Z"),
        (Wrong::NotYetValid, "the certificate is not valid before 2026-06-02T00:00:00Z"),
        (Wrong::OtherCa, "it is not signed by"),
        (Wrong::OtherName, "it does not name kubernetes"),
        (Wrong::OtherSubject, "its subject is"),
        (Wrong::ForeignKey, "the key does not match"),
    ] {
        let node = Node::new();
        node.run(&desired(), 1).await.unwrap();
        // Another address: the certificate has to be signed again.
        let mut moved = desired();
        moved.certificates[0].addresses = vec!["192.0.2.2".parse().unwrap()];
        let (before, keys) = (node.everything(), node.keys(&moved));
        // Magnum's CA may change between two requests: what it returns is asked for once more.
        let is_final = matches!(wrong, Wrong::Refused | Wrong::Expired | Wrong::NotYetValid);
        node.outside.wrong.borrow_mut().extend(vec![wrong; if is_final { 1 } else { 2 }]);
        let failure = node.run(&moved, 2).await.unwrap_err();
        assert!(failure.cause.contains(cause), "{wrong:?}: {failure:?}");
        assert!(node.outside.wrong.borrow().is_empty(), "{wrong:?}");
        let code = match wrong {
            Wrong::Refused => Code::CertificatesRefused,
            Wrong::NotYetValid => Code::CertificateNotYetValid,
            _ => Code::CertificatesFailed,
        };
        assert_eq!((failure.code, failure.doing().as_str()), (code, "certificates"), "{wrong:?}");
        assert!(!failure.cause.contains("PRIVATE KEY") && !failure.remedy.is_empty());
        assert_eq!(node.everything(), before, "{wrong:?}");
        // No parameter can be corrected.
        let is_of_magnum = !matches!(wrong, Wrong::Refused | Wrong::NotYetValid);
        assert_eq!(failure.remedy.contains("an admin of Magnum"), is_of_magnum, "{wrong:?}: {failure:?}");
        // The fault goes: the same key, the new address.
        node.outside.wrong.borrow_mut().extend(vec![wrong; usize::from(!is_final)]);
        node.run(&moved, 2).await.unwrap();
        assert!(node.inspect(&moved).drift.is_empty());
        assert_eq!(node.keys(&moved), keys);
    }
}

#[tokio::test]
async fn a_renewal_is_given_up_in_two_minutes_so_that_the_node_is_looked_at() {
    for (is_update, least, most) in [(false, 60, 120), (true, 17 * 60, 20 * 60)] {
        let node = Node::new();
        node.outside.wrong.borrow_mut().extend([Wrong::Away; 2000]);
        let keeper = CertificateKeeper { is_update, ..node.keeper(1, None) };
        let began = node.clock.now();
        keeper.prepare(&desired(), Duration::from_mins(20)).await.unwrap_err();
        let took = node.clock.now().since(began).as_secs();
        assert!((least..=most).contains(&took), "{is_update}: {took} s");
    }
}

#[tokio::test]
async fn a_pause_of_an_hour_that_a_server_asks_for_ends_no_tries() {
    let node = Node::new();
    node.outside.wrong.borrow_mut().push_back(Wrong::Busy);
    let began = node.clock.now();
    node.keeper(1, None).prepare(&desired(), Duration::from_mins(9)).await.unwrap();
    assert!(node.clock.now().since(began) < Duration::from_mins(9));
}

#[tokio::test]
async fn who_does_not_answer_is_asked_again_until_the_deadline_and_only_for_what_is_missing() {
    let node = Node::new();
    node.outside.wrong.borrow_mut().extend([Wrong::Away, Wrong::Away]);
    node.run(&desired(), 1).await.unwrap();
    let asked = node.outside.take_asked();
    assert_eq!(asked.iter().filter(|line| line.starts_with("sign")).count(), 5, "{asked:?}");
    assert_eq!(node.count(Code::CertificatesWaiting), 1);
    let node = Node::new();
    node.outside.wrong.borrow_mut().extend([Wrong::Away; 200]);
    let failure = node.run(&desired(), 1).await.unwrap_err();
    assert!(failure.cause.contains("Magnum does not answer"), "{failure:?}");
    let waited = node.clock.now().since(now());
    assert!(waited <= LIMIT && waited > LIMIT / 2, "{waited:?}");
}

#[tokio::test]
async fn files_that_magnum_left_are_taken_as_they_are_or_replaced_as_a_whole() {
    let issued = Node::new();
    // Another cluster's that is long gone.
    let gone = Node { clock: Clock::manual(Timestamp::parse_rfc3339("2022-06-01T12:00:00Z").unwrap()), ..Node::new() };
    gone.outside.since.set((2022, 3));
    gone.run(&desired(), 1).await.unwrap();
    issued.run(&desired(), 1).await.unwrap();
    let paths = desired().trusted_paths().into_iter().map(str::to_owned).collect::<Vec<_>>();
    let adopt = |node: &Node, from: &Node| {
        for path in &paths {
            node.write(path, &from.read(path).unwrap(), if is_key(path) { 0o440 } else { 0o644 });
        }
    };
    let node = Node { outside: Rc::clone(&issued.outside), ..Node::new() };
    adopt(&node, &issued);
    let prepared = node.run(&desired(), 1).await.unwrap();
    assert!(prepared.changes.is_empty() && prepared.sets.len() == 2, "{prepared:?}");
    assert!(node.inspect(&desired()).drift.is_empty());
    assert_eq!(node.keys(&desired()), issued.keys(&desired()));
    assert_eq!(node.count(Code::KeyGenerated), 0);
    assert!(node.run(&desired(), 1).await.unwrap().sets.is_empty());
    // They are this node's from then on: another name keeps the key.
    let mut moved = desired();
    moved.certificates[0].addresses = vec!["192.0.2.2".parse().unwrap()];
    node.run(&moved, 2).await.unwrap();
    assert_eq!(node.keys(&moved), issued.keys(&moved));

    // Everything is made anew, and at no moment a key lies beside another one's certificate.
    let mut cuts = 0;
    loop {
        let node = Node::new();
        adopt(&node, &gone);
        let done = node.run_breaking(&desired(), 1, Some(cuts)).await.is_ok();
        node.belongs_together(&desired(), &format!("after {cuts} changes"));
        node.run(&desired(), 1).await.unwrap();
        assert!(node.inspect(&desired()).drift.is_empty(), "after {cuts} changes");
        assert_eq!(subjects(&node.read("/etc/etcd/certs/ca.crt").unwrap()), 1, "a foreign CA is not trusted");
        if done {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 60, "{cuts}");
}

#[tokio::test]
async fn a_copied_disk_keeps_no_key_and_trusts_no_ca_of_the_other_instance() {
    let node = Node::new();
    node.run(&desired(), 1).await.unwrap();
    let (state, before) = (node.state(), node.keys(&desired()));
    let identity = |value: &str| Identity { origin: IdentityOrigin::Smbios, value: value.into() };
    Whose::new(identity("a"), now()).write(&state).unwrap();
    crate::identity::succeed(&state, &[], Whose::open(&state, &node.report).unwrap().unwrap(), identity("b"), now()).unwrap();
    node.outside.rotate();
    // Cut off in the middle it stays another's.
    node.outside.wrong.borrow_mut().push_back(Wrong::Refused);
    node.run(&desired(), 1).await.unwrap_err();
    node.run(&desired(), 1).await.unwrap();
    for (path, key) in node.keys(&desired()) {
        assert_ne!(before[&path], key, "{path}");
    }
    assert_eq!(subjects(&node.read("/etc/etcd/certs/ca.crt").unwrap()), 1);
    // From then on they are its own.
    let own = node.keys(&desired());
    let mut moved = desired();
    moved.certificates[0].names.push("another".into());
    node.run(&moved, 2).await.unwrap();
    assert_eq!(node.keys(&moved), own);
}

#[tokio::test]
async fn near_its_end_a_certificate_is_reported_once_or_renewed_with_its_key() {
    let node = Node::new();
    node.run(&desired(), 1).await.unwrap();
    let keys = node.keys(&desired());
    let watcher = Watcher::default();
    let watch =
        |watcher: &Watcher| watcher.inspect(&node.root, &node.state(), &desired(), 1, node.clock.now(), &node.report).unwrap();
    let first = watch(&watcher);
    assert!(Rc::ptr_eq(&first, &watch(&watcher)), "nothing changed: not judged again");
    node.clock.advance(Duration::from_hours(24 * 180));
    for watcher in [&watcher, &watcher, &Watcher::default()] {
        let inspection = watch(watcher);
        assert_eq!(
            (inspection.near_ends().len(), inspection.drift.len(), due(&inspection, &desired(), node.clock.now())),
            (3, 0, Due::Nothing)
        );
    }
    node.run(&desired(), 1).await.unwrap();
    assert_eq!(node.count(Code::CertificateNearExpiry), 3, "once each, also after a restart and another run");
    assert_eq!(node.outside.take_asked().len(), 5, "not asked for by itself");
    let mut renewing = desired();
    renewing.trust.as_mut().unwrap().renew = true;
    assert!(due(&watch(&watcher), &renewing, node.clock.now()).is_now());
    node.outside.since.set((2026, 11));
    node.outside.wrong.borrow_mut().push_back(Wrong::Away);
    assert_eq!(node.run(&renewing, 1).await.unwrap().changes.len(), 3);
    assert_eq!((node.keys(&renewing), node.inspect(&renewing).near_ends().len()), (keys, 0));
    assert_eq!(node.run(&renewing, 1).await.unwrap().sets, []);
    // A file that somebody changed is judged again.
    let inspection = watch(&watcher);
    let set = node.root.read_link(Path::new("/etc/etcd/certs/..data")).unwrap().unwrap();
    node.root.set_attributes(&Path::new(ETCD).join(set).join("server.key"), Attributes::mode(0o644)).unwrap();
    assert_eq!((inspection.drift.len(), watch(&watcher).drift.len()), (0, 1));
    assert_eq!(node.run(&renewing, 1).await.unwrap().changes.len(), 0, "put right without a restart");
    assert_eq!(watch(&watcher).drift.len(), 0);
}

#[tokio::test]
async fn what_expired_is_renewed_by_itself_and_is_no_drift_then() {
    let node = Node::new();
    let mut renewing = desired();
    renewing.trust.as_mut().unwrap().renew = true;
    node.run(&renewing, 1).await.unwrap();
    let keys = node.keys(&renewing);
    node.clock.advance(Duration::from_hours(24 * 400));
    let inspection = node.inspect(&renewing);
    let now = node.clock.now();
    assert_eq!(
        (due(&inspection, &renewing, now), inspection.drift.len(), inspection.to_put_back(&renewing).count()),
        (Due::Expired, 3, 0)
    );
    // Only reported, it is what it was: something to be put back.
    assert_eq!((due(&inspection, &desired(), now), inspection.to_put_back(&desired()).count()), (Due::Nothing, 3));
    // What has expired is signed again beside what is only near its end, which has its own time.
    node.outside.since.set((2027, 6));
    assert_eq!(node.run(&desired(), 1).await.unwrap().changes.len(), 3);
    let inspection = node.inspect(&renewing);
    assert_eq!((node.keys(&renewing), inspection.drift.len(), due(&inspection, &renewing, now)), (keys, 0, Due::Nothing));
}

#[tokio::test]
async fn rsa_keys_are_made_by_openssl_into_files_that_nobody_else_can_read() {
    let node = Node::new();
    let mut wanted = desired();
    wanted.trust.as_mut().unwrap().keys = KeyType::Rsa(3072);
    let failure = node.run(&wanted, 1).await.unwrap_err();
    assert!(
        failure.cause.contains("openssl, which generates them, is not installed") && failure.remedy.contains("ecdsa-p256"),
        "{failure:?}"
    );
    node.write("/usr/bin/openssl", "", 0o755);
    node.run(&wanted, 1).await.unwrap();
    let line = "/usr/bin/openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:3072 -out".to_owned();
    assert_eq!(*node.outside.found.borrow(), [(line.clone(), 0o600), (line.clone(), 0o600), (line, 0o600)]);
    // Not the file that openssl wrote and nobody synced.
    for wanted in &wanted.certificates {
        let stamp = node.root.facts_followed(Path::new(&wanted.key)).unwrap().unwrap().stamp;
        assert!(!node.outside.left.borrow().contains(&stamp.0), "{}", wanted.key);
    }
}

#[tokio::test]
async fn what_a_slow_magnum_took_already_is_not_there_for_signatures() {
    let node = Node::new();
    *node.outside.clock.borrow_mut() = Some(node.clock.clone());
    node.outside.slowness.set(Duration::from_secs(50));
    node.run(&desired(), 1).await.unwrap();
    assert_eq!(*node.outside.limits.borrow(), [Duration::from_secs(20); 3]);
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_quarantined_by_a_look_too() {
    let node = Node::new();
    node.run(&desired(), 1).await.unwrap();
    node.write(&format!("{STATE}/certificates.json"), "{torn", 0o600);
    node.clock.advance(Duration::from_hours(24 * 180));
    Watcher::default().inspect(&node.root, &node.state(), &desired(), 1, node.clock.now(), &node.report).unwrap();
    assert_eq!(node.read(&format!("{STATE}/certificates.unreadable")).as_deref(), Some("{torn"));
    assert_eq!(node.count(Code::StateFileQuarantined), 1);
}

#[tokio::test]
async fn a_ca_stays_trusted_where_the_certificates_expired_meanwhile() {
    let node = Node::new();
    node.run(&desired(), 1).await.unwrap();
    node.outside.rotate();
    node.outside.since.set((2027, 4));
    node.clock.advance(Duration::from_hours(24 * 365));
    node.run(&desired(), 2).await.unwrap();
    assert_eq!(subjects(&node.read("/etc/etcd/certs/ca.crt").unwrap()), 2);
    assert_eq!(CertificateRecord::inspect(&node.state()).rotation.map(|turn| turn.step), Some(Rotation::TrustBoth));
}

#[tokio::test]
async fn a_change_on_top_of_a_change_begins_anew_wherever_it_is_cut_off() {
    let wanted = rotating(Rotation::DropOld);
    for cuts in 0.. {
        let node = Node::new();
        node.run(&wanted, 1).await.unwrap();
        node.outside.rotate();
        node.run(&wanted, 2).await.unwrap();
        // An order for the old change is none for the new one.
        order_next_step(&node.state()).unwrap();
        node.outside.rotate();
        let server = node.read("/etc/kubernetes/certs/server.crt");
        let done = node.run_breaking(&wanted, 3, Some(cuts)).await.is_ok();
        for _ in 0..2 {
            node.run(&wanted, 3).await.unwrap();
            let record = CertificateRecord::inspect(&node.state());
            let turn = record.rotation.map(|turn| (turn.step, turn.generation));
            assert_eq!((turn, record.ordered), (Some((Rotation::TrustBoth, 3)), None), "{cuts}");
            assert_eq!(subjects(&node.read("/etc/etcd/certs/ca.crt").unwrap()), 3, "{cuts}");
            assert_eq!(node.read("/etc/kubernetes/certs/server.crt"), server, "{cuts}");
        }
        if done {
            assert!(cuts > 10, "{cuts}");
            assert_eq!(node.count(Code::CaRotationAdvanced), 2);
            return;
        }
    }
}

#[tokio::test]
async fn a_wrong_clock_is_waited_for_and_not_judged_by() {
    for (built, fails) in [(now().after(Duration::from_secs(30)), false), (now().after(Duration::from_hours(9)), true)] {
        let node = Node::new();
        let keeper = CertificateKeeper { built, ..node.keeper(1, None) };
        let prepared = keeper.prepare(&desired(), Duration::from_mins(20)).await;
        assert_eq!(node.count(Code::ClockWrong), 1);
        assert_eq!(prepared.is_err(), fails);
        if let Err(failure) = prepared {
            assert!(failure.remedy.contains("NTP") && failure.cause.contains("the clock shows"), "{failure:?}");
            assert_eq!(node.clock.now().since(now()), CLOCK_LIMIT);
            assert!(node.outside.take_asked().is_empty());
        }
    }
}

/// Attack: for a clock that was wrong for the first seconds of a boot the deployment failed at once.
#[tokio::test]
async fn after_a_boot_what_a_wrong_clock_explains_is_tried_again() {
    let settles = Duration::from_mins(3);
    let minute = Duration::from_mins(1);
    for (clock_settles, wrong, succeeds, took) in [
        (settles, 2, true, Duration::ZERO..settles),
        (settles, 9999, false, settles..settles + minute),
        (Duration::ZERO, 2, false, Duration::ZERO..minute),
    ] {
        let node = Node::new();
        node.outside.wrong.borrow_mut().extend(vec![Wrong::NotYetValid; wrong]);
        let keeper = CertificateKeeper { clock_settles, is_update: true, ..node.keeper(1, None) };
        let running = node.clock.start();
        let failure = keeper.prepare(&desired(), Duration::from_mins(20)).await.err();
        assert_eq!(
            failure.as_ref().map(|failure| failure.code),
            (!succeeds).then_some(Code::CertificateNotYetValid),
            "{failure:?}"
        );
        assert!(failure.is_none_or(|failure| failure.remedy.contains("timedatectl")));
        assert!(took.contains(&running.elapsed()), "{:?}", running.elapsed());
        assert_eq!(node.count(Code::CertificatesWaiting) > 0, !clock_settles.is_zero());
    }
}

/// The parameters give CA and signing key; the node signs by itself.
fn own(ca: &SigningCa) -> Desired {
    let mut desired = desired();
    for one in &mut desired.cas {
        one.given = Some(Material::Text(ca.certificate.to_pem()));
        one.signing_key = Some(Material::Text(ca.key.to_pem().to_owned()));
    }
    desired.cas[0].key_path = Some(format!("{KUBERNETES}/ca.key"));
    desired.trust.as_mut().unwrap().issuer = Issuer::Given;
    desired
}

#[tokio::test]
async fn a_master_signs_by_the_keys_of_the_parameters_and_keeps_the_signing_one_beside_its_certificate() {
    let ca = |name: &str| SigningCa::create(name, now(), Duration::from_hours(24 * 3650)).unwrap();
    let (first, second) = (ca("first"), ca("second"));
    let node = Node::new();
    node.run(&own(&first), 1).await.unwrap();
    assert!(node.inspect(&own(&first)).drift.is_empty());
    assert_eq!(node.key("/etc/kubernetes/certs/ca.key"), Some(first.key.fingerprint()));
    assert!(node.outside.take_asked().is_empty() && node.run(&own(&first), 2).await.unwrap().sets.is_empty());
    // The new CA's key comes with it, and its certificate first.
    node.run(&own(&second), 3).await.unwrap();
    let bundle = X509::all_from_pem(&node.read("/etc/kubernetes/certs/ca.crt").unwrap()).unwrap();
    assert_eq!(bundle, [second.certificate.clone(), first.certificate.clone()]);
    // A key that is not theirs.
    let mut wrong = own(&second);
    wrong.cas[0].signing_key = Some(Material::Text(ca("third").key.to_pem().to_owned()));
    let before = node.everything();
    let failure = node.run(&wrong, 4).await.unwrap_err();
    assert!(failure.cause.contains("CA_KEY matches none"), "{failure:?}");
    assert_eq!(node.everything(), before);
    // Neither given nor a key to sign with.
    let mut nobody = own(&first);
    nobody.cas.iter_mut().for_each(|one| (one.signing_key, one.key_path) = (None, None));
    let failure = Node::new().run(&nobody, 1).await.unwrap_err();
    assert!(failure.remedy.contains("SERVER_CERTIFICATE and SERVER_KEY"), "{failure:?}");
}

#[tokio::test]
async fn given_pairs_are_checked_and_put_in_place_by_text_or_by_file() {
    let ca = SigningCa::create("own", now(), Duration::from_hours(24 * 3650)).unwrap();
    let key = PrivateKey::generate().unwrap();
    let pem = |wanted: &Certificate| ca.sign(wanted, &key, now(), Duration::from_hours(24)).unwrap();
    let given = |certificate: Material, key: Material| {
        let mut desired = own(&ca);
        desired.certificates.truncate(1);
        desired.certificates[0].given = Some(GivenPair { certificate, key });
        desired
    };
    let text = |text: &str| Material::Text(text.trim_end().to_owned());
    let node = Node::new();
    let by_text = given(text(&pem(&server())), text(key.to_pem()));
    node.run(&by_text, 1).await.unwrap();
    assert!(node.inspect(&by_text).drift.is_empty());
    assert_eq!(node.key("/etc/kubernetes/certs/server.key"), Some(key.fingerprint()));
    assert!(CertificateRecord::inspect(&node.state()).keys.is_empty(), "a given key is not ours to keep");
    node.write("/etc/server.pem", &pem(&server()), 0o644);
    let by_file = given(Material::File("/etc/server.pem".into()), text(key.to_pem()));
    assert_eq!(node.run(&by_file, 2).await.unwrap().changes.len(), 1, "another certificate for the same key");
    let other = pem(&Certificate { common_name: "other".into(), ..server() });
    for (wrong, cause) in [
        (given(Material::File("/etc/none.pem".into()), text(key.to_pem())), "there is no file /etc/none.pem"),
        (given(text(&other), text(key.to_pem())), "its subject is"),
        (given(text(&pem(&server())), text(PrivateKey::generate().unwrap().to_pem())), "the key does not match"),
        (given(text("nothing"), text(key.to_pem())), "certificate server, from the parameters"),
    ] {
        let before = node.everything();
        let failure = node.run(&wrong, 3).await.unwrap_err();
        assert!(failure.cause.contains(cause), "{cause}: {failure:?}");
        assert_eq!(node.everything(), before);
    }
}

/// The key of service accounts' tokens: made once, kept whatever kind it is of, and not a copied disk's.
#[tokio::test]
async fn a_key_without_a_certificate_is_made_once_and_lies_in_the_set_of_its_directory() {
    let path = format!("{KUBERNETES}/service_account_private.key");
    let wanted = Desired {
        keys: vec![KeyRequest {
            name: "service-accounts".into(),
            path: path.clone(),
            owner: Owner::root(),
            kind: KeyType::Rsa(2048),
        }],
        ..desired()
    };
    let node = Node::new();
    let failure = node.run(&wanted, 1).await.unwrap_err();
    assert!(failure.remedy.contains("SERVICE_ACCOUNT_KEYS"), "{failure:?}");
    node.write("/usr/bin/openssl", "", 0o755);
    // Cut off at any change, the next run goes on with the same key.
    let mut keys = BTreeSet::new();
    for changes in [1, 2, 3, 5, 8, 13, 21] {
        let _ = node.run_breaking(&wanted, 1, Some(changes)).await;
        keys.extend(node.key(&path));
    }
    node.run(&wanted, 1).await.unwrap();
    keys.extend(node.key(&path));
    assert_eq!(keys.len(), 1);
    let line = "/usr/bin/openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out".to_owned();
    assert_eq!(node.outside.found.borrow().last(), Some(&(line, 0o600)));
    assert_eq!(node.root.read_link(Path::new(&path)).unwrap(), Some("..data/service_account_private.key".into()));
    assert_eq!(node.inspect(&wanted).drift, []);
    // Another kind, another generation: what is there stays.
    let made = node.outside.found.borrow().len();
    let mut other = wanted.clone();
    other.keys[0].kind = KeyType::EcdsaP256;
    node.run(&other, 2).await.unwrap();
    assert_eq!((node.key(&path).into_iter().collect::<BTreeSet<_>>(), node.outside.found.borrow().len()), (keys.clone(), made));
    // Its loss is drift, and puts a new one in its place.
    node.root.remove(Path::new(&path)).unwrap();
    let drift: Vec<_> = node.inspect(&wanted).drift.iter().map(|drift| drift.step().text).collect();
    assert_eq!(drift, [format!("{path}: it is missing")]);
    node.run(&other, 3).await.unwrap();
    assert_eq!(node.inspect(&wanted).drift, []);
    // What an earlier parameter left there as a file stays in use, as a file of the set.
    let given = PrivateKey::generate().unwrap();
    node.root.remove(Path::new(&path)).unwrap();
    node.write(&path, given.to_pem(), 0o600);
    node.run(&other, 4).await.unwrap();
    assert_eq!(node.key(&path), Some(given.fingerprint()));
    // On a copied disk it is another node's.
    CertificateRecord { foreign: true, ..CertificateRecord::default() }.write(&node.state()).unwrap();
    node.run(&other, 5).await.unwrap();
    assert!(node.key(&path).is_some_and(|key| key != given.fingerprint()));
}
