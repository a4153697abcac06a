//! `certificates new-ca --out DIR`: CAs and the keys of service accounts, for an operator who has none.
//!
//! Made once: nothing that is there is overwritten. parameters.yaml is written last, so that whoever finds it finds all.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use nix::unistd::geteuid;

use crate::certificates::ca::SigningCa;
use crate::certificates::key::PrivateKey;
use crate::clock::{Clock, Timestamp};
use crate::commands::print;
use crate::desired::Signer;
use crate::error::{Context, Error, Result};
use crate::files::{Attributes, Tree};
use crate::process::exit;
use crate::programs::tool;
use crate::report::text::{escaped, shortened};

/// Longest `--name`, in characters: a CN has 64 at most (RFC 5280, upper bounds), and each CA's gets an end of its own.
const NAME_LIMIT: usize = 48;
const PARAMETERS: &str = "parameters.yaml";

/// A file in the making; a parameter's name, where its content is one.
struct GeneratedFile {
    file: &'static str,
    mode: u32,
    parameter: &'static str,
    content: String,
}

/// Makes the set, says what was made and what to guard.
///
/// # Errors
/// If something of the set is there, or the directory cannot be written; without openssl, if RSA is asked for.
pub fn run(out: &Path, name: &str, days: u32, keys: &str) -> Result<ExitCode> {
    let now = Clock::system().now();
    let made = set(name, days, &token_key(keys)?, now)?;
    let tree = directory(out)?;
    write(&tree, &made, now)?;
    print(&summary(tree.base(), &made, days))?;
    Ok(exit::OK)
}

/// A path as the shell means it: `..` too.
fn directory(out: &Path) -> Result<Tree> {
    let from = std::env::current_dir().context(|| "determining the current directory")?;
    let tree = Tree::open_or_create(&from.join(out), 0o700)?;
    let facts = tree.base().metadata().context(|| format!("inspecting {}", shown(tree.base())))?;
    if facts.mode() & 0o022 != 0 || ![0, geteuid().as_raw()].contains(&facts.uid()) {
        return Err(Error::refused(format!("{} can be changed by other users", shown(tree.base())))
            .rule("whoever can write there can put another CA in the place of the one that was made")
            .remedy("name a directory that does not exist yet, or make this one yours alone: chown it to yourself and `chmod 0700` it"));
    }
    Ok(tree)
}

/// A path for people.
fn shown(path: &Path) -> String {
    escaped(&path.display().to_string())
}

/// The private key of service accounts. `kind` is checked by the command line.
fn token_key(kind: &str) -> Result<PrivateKey> {
    let Some(bits) = kind.strip_prefix("rsa-") else { return PrivateKey::generate() };
    let doing = || "generating the service account key".to_owned();
    let size = format!("rsa_keygen_bits:{bits}");
    let ran = tool::ask("openssl", &["genpkey", "-algorithm", "RSA", "-pkeyopt", &size], "").context(doing)?;
    let ran = ran.ok_or_else(|| {
        Error::refused("openssl, which generates RSA keys, is not installed")
            .rule("Kubernetes' tokens are signed by RSA so that everybody can verify them")
            .remedy("install openssl, or use --service-account-keys ecdsa-p256 if nothing but Kubernetes verifies its tokens")
    })?;
    if !ran.ok {
        return Err(Error::permanent(format!("openssl failed: {}", shortened(&ran.err, 300))).context(doing()));
    }
    PrivateKey::from_pem(&ran.out).context(doing)
}

fn set(name: &str, days: u32, key: &PrivateKey, now: Timestamp) -> Result<Vec<GeneratedFile>> {
    if name.is_empty() || name.chars().count() > NAME_LIMIT || name.chars().any(char::is_control) {
        return Err(Error::refused(format!("--name {name:?} cannot be used"))
            .rule(format!("1 to {NAME_LIMIT} printable characters"))
            .remedy("use the cluster's name"));
    }
    // A life begins a day before now, for clocks that are behind.
    let life = Duration::from_hours(24 * (u64::from(days) + 1));
    let mut made = Vec::new();
    for (signer, files, parameters) in [
        (Signer::Kubernetes, ["ca.crt", "ca.key"], ["CA_CERTIFICATE", "CA_KEY"]),
        (Signer::Etcd, ["etcd-ca.crt", "etcd-ca.key"], ["ETCD_CA_CERTIFICATE", "ETCD_CA_KEY"]),
        (Signer::FrontProxy, ["front-proxy-ca.crt", "front-proxy-ca.key"], ["FRONT_PROXY_CA_CERTIFICATE", "FRONT_PROXY_CA_KEY"]),
    ] {
        let common_name = match signer {
            Signer::Kubernetes => format!("{name}-ca"),
            Signer::Etcd | Signer::FrontProxy => format!("{name}-{signer}-ca"),
        };
        let ca = SigningCa::create(&common_name, now, life)?;
        let contents = [ca.certificate.to_pem(), ca.key.to_pem().to_owned()];
        for (((file, parameter), content), mode) in files.into_iter().zip(parameters).zip(contents).zip([0o644, 0o600]) {
            made.push(GeneratedFile { file, mode, parameter, content });
        }
    }
    made.push(GeneratedFile {
        file: "service_account.key",
        mode: 0o644,
        parameter: "KUBE_SERVICE_ACCOUNT_KEY",
        content: key.public_pem(),
    });
    made.push(GeneratedFile {
        file: "service_account_private.key",
        mode: 0o600,
        parameter: "KUBE_SERVICE_ACCOUNT_PRIVATE_KEY",
        content: key.to_pem().to_owned(),
    });
    Ok(made)
}

fn write(tree: &Tree, made: &[GeneratedFile], now: Timestamp) -> Result<()> {
    let parameters = parameters(made, now);
    let all = || made.iter().map(|one| (one.file, one.mode, &one.content)).chain([(PARAMETERS, 0o600, &parameters)]);
    let mut there = Vec::new();
    for (file, ..) in all() {
        if tree.facts(Path::new(file))?.is_some() {
            there.push(file);
        }
    }
    if !there.is_empty() {
        return Err(refused(tree, &there));
    }
    for (file, mode, content) in all() {
        if !tree.create_new(Path::new(file), content.as_bytes(), Attributes::mode(mode))? {
            return Err(refused(tree, &[file]));
        }
    }
    Ok(())
}

fn refused(tree: &Tree, there: &[&str]) -> Error {
    let shown = shown(tree.base());
    let remedy = if there.contains(&PARAMETERS) {
        "name another directory".to_owned()
    } else {
        format!(
            "name another directory; if a run was interrupted here ({PARAMETERS} does not exist), its files are unused: remove them"
        )
    };
    Error::refused(format!("{} in {shown} would be overwritten", there.join(", ")))
        .rule("a CA is created once: what it signed is worthless without it")
        .remedy(remedy)
}

/// A Heat environment with each file as a parameter.
fn parameters(made: &[GeneratedFile], now: Timestamp) -> String {
    let mut text = format!(
        "# Made by heat-node-agent at {}. Whoever has this file can act as anybody in the cluster.\n\
         # All of it is for masters. Workers get only the certificates, never a CA's key.\n\
         parameters:\n  CERTIFICATES: given\n",
        now.rfc3339()
    );
    for one in made {
        text.push_str(&format!("  {}: |\n", one.parameter));
        text.extend(one.content.lines().flat_map(|line| ["    ", line, "\n"]));
    }
    text
}

fn summary(directory: &Path, made: &[GeneratedFile], days: u32) -> String {
    let shown = |file: &str| shown(&directory.join(file));
    let mut text = format!("created, valid for {days} days:\n");
    for one in made {
        let guard = if one.mode == 0o600 { "  (secret)" } else { "" };
        text.push_str(&format!("  {}{guard}\n", shown(one.file)));
    }
    text.push_str(&format!(
        "  {}  (secret: all of them, for a Heat environment)\n\
         Keep the directory safe, and a backup of it: whoever has the keys is the cluster's administrator,\n\
         and without them no master can be added. Masters need all of it, workers only the certificates.\n",
        shown(PARAMETERS)
    ));
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::certificates::judge;
    use crate::certificates::key::public_matches;
    use crate::certificates::x509::X509;
    use crate::desired::KeyType;

    const NOW: Timestamp = Timestamp(1_772_366_400_000);

    #[test]
    fn three_cas_and_a_key_pair_are_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let tree = directory(&dir.path().join("a/b")).unwrap();
        let made = set("blue", 100, &token_key("ecdsa-p256").unwrap(), NOW).unwrap();
        write(&tree, &made, NOW).unwrap();
        let bits = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!(bits(tree.base()), 0o700);
        let (mut subjects, mut keys) = (BTreeSet::new(), BTreeSet::new());
        let parameters = std::fs::read_to_string(tree.base().join(PARAMETERS)).unwrap();
        for one in &made {
            let path = tree.base().join(one.file);
            let content = std::fs::read_to_string(&path).unwrap();
            assert_eq!(bits(&path), one.mode, "{}", one.file);
            assert_eq!(one.mode == 0o600, content.contains("PRIVATE KEY"), "{}", one.file);
            let indented: String = content.lines().map(|line| format!("    {line}\n")).collect();
            assert!(parameters.contains(&format!("  {}: |\n{indented}", one.parameter)), "{parameters}");
            if let Ok(found) = X509::all_from_pem(&content) {
                let at = |days: u64| judge::check_ca(&found[0], NOW.after(Duration::from_hours(24 * days)));
                assert!(at(0).is_ok() && at(100).is_ok() && at(101).is_err());
                subjects.insert(found[0].subject.common_name.clone().unwrap());
            } else if let Ok(key) = PrivateKey::from_pem(&content) {
                keys.insert(key.fingerprint());
            }
        }
        assert_eq!(subjects, ["blue-ca", "blue-etcd-ca", "blue-front-proxy-ca"].map(str::to_owned).into());
        assert_eq!((keys.len(), bits(&tree.base().join(PARAMETERS))), (4, 0o600));

        let again = write(&tree, &set("blue", 100, &token_key("ecdsa-p256").unwrap(), NOW).unwrap(), NOW).unwrap_err();
        assert!(again.to_string().contains("would be overwritten"), "{again}");
        assert_eq!(std::fs::read_to_string(tree.base().join(PARAMETERS)).unwrap(), parameters);
        // Cut off after its first file: nothing is overwritten either, and the way out is shown.
        for file in tree.list(Path::new("")).unwrap().iter().filter(|file| *file != "ca.key") {
            tree.remove(Path::new(file)).unwrap();
        }
        let cut = write(&tree, &made, NOW).unwrap_err();
        assert!(cut.suggested_remedy().unwrap().contains("was interrupted here"), "{cut}");
        assert_eq!(tree.list(Path::new("")).unwrap(), ["ca.key"], "nothing is written beside it");
    }

    /// Attack: in a directory that everybody may write to, another user replaces a CA before it is used.
    #[test]
    fn a_directory_that_others_can_change_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for (mode, is_taken) in [(0o700, true), (0o755, true), (0o775, false), (0o1777, false)] {
            std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(directory(dir.path()).is_ok(), is_taken, "{mode:o}");
        }
        assert_eq!(shown(Path::new("/a\u{1}")), "/a\\u{1}");
    }

    #[test]
    fn a_name_that_no_subject_can_carry_is_refused() {
        for name in ["", "a\nb", &"x".repeat(NAME_LIMIT + 1)] {
            assert!(set(name, 1, &token_key("ecdsa-p256").unwrap(), NOW).is_err(), "{name:?}");
        }
    }

    /// What verifies tokens elsewhere knows RS256, and often nothing else.
    #[test]
    fn service_accounts_get_an_rsa_key_unless_another_is_asked_for() {
        for (asked, bits) in [("rsa-2048", Some(2048)), ("rsa-3072", Some(3072)), ("ecdsa-p256", None)] {
            let key = token_key(asked).unwrap();
            assert_eq!(key.key_type(), Some(bits.map_or(KeyType::EcdsaP256, KeyType::Rsa)), "{asked}");
            let made = set("blue", 1, &key, NOW).unwrap();
            let content = |file| made.iter().find(|one| one.file == file).map(|one| one.content.clone()).unwrap();
            let read = PrivateKey::from_pem(&content("service_account_private.key")).unwrap();
            assert_eq!(read.fingerprint(), key.fingerprint());
            assert_eq!(public_matches(&content("service_account.key"), &key), Ok(true));
        }
    }
}
