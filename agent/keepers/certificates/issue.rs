//! Keys and certificates: made, signed, checked, and laid into the set in the making one by one, so that a run
//! that is cut off, or one of whose requests fails, is gone on with.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::keeper::{CertificateBackend, CertificateKeeper, CertificateSigner, IssueFailure, REQUEST_LIMIT};
use super::places::{InstalledPair, OwnKey, given, private};
use super::record::CertificateRecord;
use super::sets::{KEY_MODE, every, resolve, split, stage};

use crate::certificates::ca::SigningCa;
use crate::certificates::judge::{Flaw, check};
use crate::certificates::key::PrivateKey;
use crate::certificates::request::request;
use crate::certificates::x509::X509;
use crate::clock::Timestamp;
use crate::concurrent::all;
use crate::converge::Owners;
use crate::desired::{CaCertificate, Certificate, CertificatePolicy, Desired, KeyRequest, KeyType, Owner, Signer};
use crate::error::{ConnectFailure, Context as _, Error, Result};
use crate::files::{Attributes, FileKind, Tree};
use crate::gather::Gather;
use crate::report::text::duration;
use crate::report::{Code, Event, Phase};

/// Where an image has openssl.
const OPENSSL: [&str; 4] = ["/usr/bin/openssl", "/usr/local/bin/openssl", "/usr/sbin/openssl", "/bin/openssl"];

/// Life of what this node signs by itself: as long as Magnum's by default ([certificates] and [x509] of magnum.conf).
const SIGNED_LIFE: Duration = Duration::from_hours(5 * 365 * 24);

/// Who signs.
pub(super) enum Signers<'a, M> {
    Magnum(&'a M),
    /// This node, by who signs.
    Own(BTreeMap<Signer, SigningCa>),
}

/// A certificate that has to be signed, and the key that is there for it.
pub(super) struct SigningTask<'a> {
    pub(super) wanted: &'a Certificate,
    pub(super) key: Option<PrivateKey>,
}

impl<H: CertificateBackend> CertificateKeeper<H> {
    /// The issuer's CAs, by who signs. Magnum is asked, side by side; what the parameters give is read.
    pub(super) async fn issuers(
        &self,
        desired: &Desired,
        trust: &CertificatePolicy,
        magnum: Option<&impl CertificateSigner>,
        left: Duration,
    ) -> std::result::Result<BTreeMap<Signer, Vec<X509>>, IssueFailure> {
        let mut known: BTreeMap<Signer, Vec<X509>> = BTreeMap::new();
        let mut asked: Vec<Signer> = Vec::new();
        for ca in &desired.cas {
            let signer = ca.signer;
            if let Some(material) = &ca.given {
                let doing = || format!("the certificate of the CA {signer}");
                let text = given(&self.root, material).context(doing)?;
                known.insert(signer, X509::all_from_pem(&text).context(doing)?);
            } else if !asked.contains(&signer) {
                asked.push(signer);
            }
        }
        asked.retain(|signer| !known.contains_key(signer));
        match magnum {
            Some(magnum) => {
                let limit = left.min(REQUEST_LIMIT);
                let asking = asked.iter().map(async |signer| {
                    let answer = magnum.fetch_ca(*signer, limit).await.map_err(IssueFailure::outside)?;
                    let doing = || format!("the CA {signer} that Magnum returned");
                    let parsed = X509::all_from_pem(&answer);
                    let parsed = parsed.context(doing).map_err(|error| IssueFailure::wrong_answer(error, trust))?;
                    Ok::<_, IssueFailure>((*signer, parsed))
                });
                known.extend(all(asking).await.into_iter().collect::<std::result::Result<Vec<_>, _>>()?);
            }
            None => {
                if let Some(signer) = asked.first() {
                    return Err(Error::permanent(format!("no certificate of the CA {signer} was provided"))
                        .remedy("set CA_CERTIFICATE, and ETCD_CA_CERTIFICATE and FRONT_PROXY_CA_CERTIFICATE if they differ")
                        .into());
                }
            }
        }
        Ok(known)
    }

    /// The keys that this node signs with, and those that it puts beside a CA's certificate.
    pub(super) fn signing_key(&self, ca: &CaCertificate) -> Result<Option<PrivateKey>> {
        let Some(material) = &ca.signing_key else { return Ok(None) };
        let doing = || format!("the key of the CA {}", ca.signer);
        PrivateKey::from_pem(&given(&self.root, material).context(doing)?).context(doing).map(Some)
    }

    /// Who signs for this node.
    pub(super) fn signers<'a, M: CertificateSigner>(
        &self,
        desired: &Desired,
        magnum: Option<&'a M>,
        issuer: &BTreeMap<Signer, Vec<X509>>,
    ) -> Result<Signers<'a, M>> {
        if let Some(magnum) = magnum {
            return Ok(Signers::Magnum(magnum));
        }
        let mut own = BTreeMap::new();
        for ca in &desired.cas {
            let Some(key) = self.signing_key(ca)? else { continue };
            let doing = || format!("the CA {}", ca.signer);
            let known = issuer.get(&ca.signer).map(Vec::as_slice).unwrap_or_default();
            // One that does not belong to the key says so itself.
            let found = known.iter().find(|one| one.public_key == key.public_key()).or(known.first());
            if let Some(certificate) = found {
                own.insert(ca.signer, SigningCa::new(certificate.clone(), key).context(doing)?);
            }
        }
        Ok(Signers::Own(own))
    }

    /// Issues certificates side by side. What was done is kept if one of them fails.
    pub(super) async fn issue(
        &self,
        tasks: Vec<SigningTask<'_>>,
        trust: &CertificatePolicy,
        signers: &Signers<'_, impl CertificateSigner>,
        trusted: &BTreeMap<Signer, Vec<X509>>,
        record: &mut CertificateRecord,
        left: Duration,
    ) -> std::result::Result<BTreeMap<String, InstalledPair>, IssueFailure> {
        let started = self.clock.start();
        let owners = Owners::read(&self.root)?;
        let tasks = self.with_keys(tasks, trust.keys, &owners, record).await?;
        let now = self.clock.now();
        // Keys of RSA take their time.
        let limit = left.saturating_sub(started.elapsed()).min(REQUEST_LIMIT);
        let signing = tasks.iter().map(async |(wanted, key)| {
            let doing = || format!("certificate {}", wanted.name);
            let text = match signers {
                Signers::Magnum(magnum) => {
                    let request = request(wanted, key).context(doing)?;
                    let answer = magnum.sign(wanted.signer, &request, limit).await;
                    answer.map_err(|error| IssueFailure::outside(error.context(doing())))?
                }
                Signers::Own(own) => match own.get(&wanted.signer) {
                    Some(ca) => ca.sign(wanted, key, now, SIGNED_LIFE).context(doing)?,
                    None => return Err(nobody_signs(wanted).into()),
                },
            };
            let cas = trusted.get(&wanted.signer).map(Vec::as_slice).unwrap_or_default();
            let signed = InstalledPair::parse(format!("{}\n", text.trim_end()), key.to_pem().to_owned())
                .context(doing)
                .and_then(|pair| examine(wanted, &pair, cas, now, "as it was signed").map(|()| pair));
            let pair = signed.map_err(|error| match signers {
                Signers::Magnum(_) => IssueFailure::wrong_answer(error, trust),
                Signers::Own(_) => error.into(),
            })?;
            let owner = resolve(&owners, &wanted.owner, &wanted.path)?;
            stage(&self.root, &wanted.path, pair.certificate.as_bytes(), owner, false)?;
            Ok::<_, IssueFailure>((wanted.name.clone(), pair))
        });
        let mut done = BTreeMap::new();
        let mut failed: Option<IssueFailure> = None;
        for result in all(signing).await {
            match result {
                Ok((name, pair)) => drop(done.insert(name, pair)),
                // What stays wrong is reported before what may pass.
                Err(stopped) if failed.as_ref().is_none_or(|first| first.retry > stopped.retry) => {
                    failed = Some(stopped);
                }
                Err(_) => {}
            }
        }
        failed.map_or(Ok(done), Err)
    }

    /// Makes the keys that are missing; each is on the disk, and known as ours, before anybody hears of it.
    async fn with_keys<'a>(
        &self,
        tasks: Vec<SigningTask<'a>>,
        kind: KeyType,
        owners: &Owners,
        record: &mut CertificateRecord,
    ) -> Result<Vec<(&'a Certificate, PrivateKey)>> {
        let missing: Vec<&Certificate> = tasks.iter().filter(|task| task.key.is_none()).map(|task| task.wanted).collect();
        let made: Vec<PrivateKey> = match kind {
            KeyType::EcdsaP256 => missing.iter().map(|_| PrivateKey::generate()).collect::<Result<_>>()?,
            KeyType::Rsa(bits) => {
                let openssl = self.openssl("CERTIFICATE_KEYS")?;
                let make = |wanted: &&Certificate| {
                    let (name, path, owner) = (format!("certificate {}", wanted.name), wanted.key.clone(), wanted.owner.clone());
                    async move { self.make_rsa(&name, &path, &owner, openssl, bits, owners).await }
                };
                all(missing.iter().map(make)).await.into_iter().collect::<Result<_>>()?
            }
        };
        let mut made: BTreeMap<&str, PrivateKey> = missing.iter().map(|wanted| wanted.name.as_str()).zip(made).gather();
        for (name, key) in &made {
            record.remember(name, key.fingerprint(), true);
        }
        if !made.is_empty() {
            record.write(&self.state)?;
        }
        let mut all = Vec::new();
        for SigningTask { wanted, key } in tasks {
            let is_new = key.is_none();
            let Some(key) = key.or_else(|| made.remove(wanted.name.as_str())) else { continue };
            stage(&self.root, &wanted.key, key.to_pem().as_bytes(), resolve(owners, &wanted.owner, &wanted.key)?, true)?;
            if is_new {
                let event =
                    Event::new(Code::KeyGenerated, format!("generated the key of certificate {}: {}", wanted.name, wanted.key))
                        .detail();
                self.progress.report().emit(event.phase(Phase::Certificates).generation(self.generation));
            }
            all.push((wanted, key));
        }
        Ok(all)
    }

    /// The keys that belong to no certificate: the one in its place, one that a run which was cut off left, or a new one.
    pub(super) async fn keys_alone<'a>(&self, desired: &'a Desired, record: &mut CertificateRecord) -> Result<Vec<OwnKey<'a>>> {
        let owners = Owners::read(&self.root)?;
        let mut keys = Vec::new();
        for wanted in &desired.keys {
            let (directory, name) = split(&wanted.path)?;
            // What lies there on a copied disk is another node's.
            let in_use = private(&self.root, Path::new(&wanted.path))?.filter(|_| !record.foreign);
            let left = || {
                let sets = every(&self.root, directory)?;
                let found = sets.iter().map(|set| private(&self.root, &set.join(name))).collect::<Result<Vec<_>>>()?;
                let is_ours = |key: &PrivateKey| record.known(&wanted.name, &key.fingerprint()).is_some();
                Ok::<_, Error>(found.into_iter().flatten().find(is_ours))
            };
            let found = match in_use {
                Some(key) => Some(key),
                None => left()?,
            };
            let key = match found {
                Some(key) => key,
                None => self.make_key(wanted, &owners, record).await?,
            };
            keys.push((wanted, key));
        }
        Ok(keys)
    }

    async fn make_key(&self, wanted: &KeyRequest, owners: &Owners, record: &mut CertificateRecord) -> Result<PrivateKey> {
        let key = match wanted.kind {
            KeyType::EcdsaP256 => PrivateKey::generate()?,
            KeyType::Rsa(bits) => {
                let openssl = self.openssl("SERVICE_ACCOUNT_KEYS")?;
                self.make_rsa(&wanted.name, &wanted.path, &wanted.owner, openssl, bits, owners).await?
            }
        };
        record.remember(&wanted.name, key.fingerprint(), true);
        record.write(&self.state)?;
        stage(&self.root, &wanted.path, key.to_pem().as_bytes(), resolve(owners, &wanted.owner, &wanted.path)?, true)?;
        let event = Event::new(Code::KeyGenerated, format!("generated the key {}: {}", wanted.name, wanted.path)).detail();
        self.progress.report().emit(event.phase(Phase::Certificates).generation(self.generation));
        Ok(key)
    }

    /// The image's openssl. `parameter`: by which RSA keys are asked for.
    fn openssl(&self, parameter: &str) -> Result<&'static str> {
        let is_present = |path: &&&str| self.root.facts_followed(Path::new(path)).is_ok_and(|facts| facts.is_some());
        OPENSSL.iter().find(is_present).copied().ok_or_else(|| {
            Error::refused("RSA keys are required, but openssl, which generates them, is not installed")
                .rule("the agent itself generates only ECDSA keys")
                .remedy(format!("install openssl in the image, or set {parameter} to ecdsa-p256"))
        })
    }

    /// Has openssl make a key in a file that is there before, so that nobody else can read it at any time.
    async fn make_rsa(
        &self,
        name: &str,
        place: &str,
        owner: &Owner,
        openssl: &str,
        bits: u16,
        owners: &Owners,
    ) -> Result<PrivateKey> {
        let doing = || format!("generating the key of {name}");
        let owner = resolve(owners, owner, place)?;
        let path = super::sets::next_path(place)?;
        // An openssl that an earlier agent started may be at it: its file stays.
        if self.root.facts(&path)?.is_none_or(|facts| facts.kind != FileKind::File) {
            stage(&self.root, place, b"", owner, true)?;
        }
        let place = absolute(&self.root, &path);
        let size = format!("rsa_keygen_bits:{bits}");
        let argv = [openssl, "genpkey", "-algorithm", "RSA", "-pkeyopt", &size, "-out", &place].map(str::to_owned).to_vec();
        let ran = self.backend.run(&format!("key-{}", name.trim_start_matches("certificate ")), argv).await.context(doing)?;
        if ran.status != 0 {
            // Its output holds no key: that goes to the file.
            let message = crate::report::text::shortened(ran.stderr.trim(), 300);
            return Err(Error::permanent(format!("openssl exited with {}: {message}", ran.status)).context(doing()));
        }
        let text = self.root.read(&path, 64 * 1024)?.unwrap_or_default();
        let key = PrivateKey::from_pem(&String::from_utf8_lossy(&text)).context(doing)?;
        // openssl syncs nothing, and a certificate is asked for only when its key outlasts a power cut.
        self.root.write(&path, &text, Attributes { mode: KEY_MODE, owner: Some(owner) })?;
        Ok(key)
    }
}

/// A path of a tree as the whole machine knows it.
fn absolute(root: &Tree, path: &Path) -> String {
    root.on_machine(path).display().to_string()
}

fn nobody_signs(wanted: &Certificate) -> Error {
    let parameter = wanted.name.replace('-', "_").to_uppercase();
    Error::permanent(format!("certificate {} was not provided, and there is no CA key to sign it", wanted.name))
        .remedy(format!("set {parameter}_CERTIFICATE and {parameter}_KEY; on a master CA_KEY is enough for all of them"))
}

/// What to do about a certificate that is not valid yet.
const CLOCKS: &str = "`timedatectl` says whether this node's clock is synchronized. If not, `timedatectl set-ntp true` (where that fails, install \
                      chrony), and wait until it is. If it is, the clock of Magnum's hosts is ahead: correct it there; each run \
                      requests a new certificate";

/// Checks a pair before it is used.
///
/// # Errors
/// Its first flaw.
pub(super) fn examine(wanted: &Certificate, pair: &InstalledPair, cas: &[X509], now: Timestamp, origin: &str) -> Result<()> {
    check(wanted, &pair.chain, &pair.private, cas, now)
        .map_err(|flaw| error_of(flaw, now).context(format!("certificate {}, {origin}", wanted.name)))
}

/// What is said of a flaw, with what a wrong clock explains marked.
pub(super) fn error_of(flaw: Flaw, now: Timestamp) -> Error {
    let is_over = matches!(flaw, Flaw::Expired(_));
    match flaw {
        Flaw::NotYetValid(from) => Error::permanent(format!(
            "one of two clocks is wrong: the certificate is not valid before {}, and this node's clock shows {}, {} earlier",
            from.rfc3339(),
            now.rfc3339(),
            duration(from.since(now))
        ))
        .remedy(CLOCKS)
        .with_connect_failure(ConnectFailure::Clock),
        flaw => {
            let error = Error::permanent(flaw)
                .rule("a certificate is installed only if key, chain, validity, subject, names and usage are correct");
            if is_over { error.with_connect_failure(ConnectFailure::Expired) } else { error }
        }
    }
}
