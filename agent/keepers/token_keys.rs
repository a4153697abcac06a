//! Whether the masters of a cluster verify the service account tokens that the others sign.
//!
//! In: the key files of this master, and the masters' nodes in the API. Out: a sentence for each other master with which that is not so.
//! Each master says in an annotation of its own node by which keys it signs and verifies: by the first digits of SHA-256 of the public
//! keys (SubjectPublicKeyInfo), which no key can be made from. Never: a key.
//!
//! What other nodes say is read strictly, and of masters alone: a kubelet may write annotations of its own node, and from 1.16 on not the
//! labels by which masters are known (`NodeRestriction`).

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::api;
use super::objects::error_message;
use crate::budgets::{OBJECT_MEMORY, json};
use crate::certificates::key::public_keys;
use crate::clock::patience;
use crate::desired::{ClientIdentity, NODES};
use crate::digest;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::files::{READ_LIMIT, Tree};
use crate::gather::Gather;
use crate::http::{Http, Response};
use crate::report::text::{escaped, shortened};

/// The annotation: `signs=3b1f09d2c4e5a687 verifies=3b1f09d2c4e5a687,90aa17c3d2b4e5f6`.
const ANNOTATION: &str = "heat-node-agent/service-account-keys";
/// Digits of a digest: none of a handful of keys is taken for another one by chance.
const DIGITS: usize = 16;
/// More keys than that nobody has.
const MOST_KEYS: usize = 64;
/// Every master that the agent makes has this label, of whichever minor.
const LABEL: &str = "node-role.kubernetes.io/master";
/// Masters in one answer; etcd has seven members at the most.
const MASTERS: usize = 30;
/// An API that does not answer one request for so long is away.
const REQUEST_LIMIT: Duration = patience(Duration::from_secs(10));
const DOING: &str = "comparing service account keys with other masters";
const PATCH: &str = "application/merge-patch+json";

/// A master, and how it reaches its API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenKeyMaster {
    /// Base URL of the API.
    pub server: String,
    /// The name of its node.
    pub node: String,
    /// As whom the API is asked; nobody in a cluster without TLS.
    pub identity: Option<ClientIdentity>,
    /// Files of the keys by which it signs.
    pub sign: BTreeSet<String>,
    /// Files of the keys by which it verifies.
    pub verify: BTreeSet<String>,
}

/// What a look found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyComparison {
    /// How many other masters say their keys.
    pub masters: usize,
    /// What is wrong, a sentence for each of them.
    pub wrong: Vec<String>,
}

/// Digests of a master's keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TokenKeys {
    signs: BTreeSet<String>,
    verifies: BTreeSet<String>,
}

impl TokenKeys {
    fn of_files(root: &Tree, master: &TokenKeyMaster) -> Result<Self> {
        let digests = |paths: &BTreeSet<String>| -> Result<BTreeSet<String>> {
            let mut all = BTreeSet::new();
            for path in paths {
                let context = || format!("reading {path}");
                let text = root.read(Path::new(path), READ_LIMIT)?;
                let text = text.ok_or_else(|| Error::permanent("there is no such file")).context(context)?;
                let keys = public_keys(&String::from_utf8_lossy(&text)).context(context)?;
                all.extend(keys.iter().map(|key| digest_of(key)));
            }
            Ok(all)
        };
        Ok(Self { signs: digests(&master.sign)?, verifies: digests(&master.verify)? })
    }

    fn note(&self) -> String {
        format!("signs={} verifies={}", words(&self.signs), words(&self.verifies))
    }

    /// Nothing where it is not as this agent writes it.
    fn of_note(text: &str) -> Option<Self> {
        let digests = |text: &str| -> Option<BTreeSet<String>> {
            let is_digest = |word: &str| word.len() == DIGITS && word.bytes().all(|byte| byte.is_ascii_hexdigit());
            let all: BTreeSet<String> = text.split(',').filter(|word| !word.is_empty()).map(str::to_owned).gather();
            (all.len() <= MOST_KEYS && all.iter().all(|word| is_digest(word))).then_some(all)
        };
        let (signs, verifies) = text.strip_prefix("signs=")?.split_once(" verifies=")?;
        Some(Self { signs: digests(signs)?, verifies: digests(verifies)? })
    }

    /// Whose tokens are not verified by whom, of this master and another one; nothing where all are.
    fn difference(&self, name: &str, other: &Self) -> Option<String> {
        let lacking = |signs: &BTreeSet<String>, verifies: &BTreeSet<String>| words(signs.difference(verifies));
        let (there, here) = (lacking(&self.signs, &other.verifies), lacking(&other.signs, &self.verifies));
        let there = (!there.is_empty()).then(|| format!("does not verify tokens that this master signs (key {there})"));
        let here = (!here.is_empty()).then(|| format!("signs tokens that this master does not verify (key {here})"));
        let both: Vec<String> = there.into_iter().chain(here).collect();
        (!both.is_empty()).then(|| {
            let what = both.join(", and ");
            format!("service account keys differ from those of {name}, which {what}: expected while the masters are updated one after the other")
        })
    }
}

fn digest_of(public_key: &[u8]) -> String {
    let mut digits = digest::hex(public_key);
    digits.truncate(DIGITS);
    digits
}

fn words<'a>(all: impl IntoIterator<Item = &'a String>) -> String {
    all.into_iter().map(String::as_str).collect::<Vec<_>>().join(",")
}

/// Says by which keys this master signs and verifies, where its node does not say it yet, and compares them with those of the others.
///
/// # Errors
/// If a key file cannot be read. Transient: the API is away, or does not have the node. Else what it refuses.
pub async fn compare(http: &Http, root: &Tree, own: &TokenKeyMaster) -> Result<KeyComparison> {
    let keys = TokenKeys::of_files(root, own).context(|| DOING)?;
    // Its certificate may have been renewed: what is derived anew reads it again.
    let http = http.identified_by(own.identity.as_ref());
    let nodes = format!("{}{NODES}", own.server);
    let node = format!("{nodes}/{}", own.node);
    let written = read(&send(&http, "GET", &node, None).await?)?;
    if note(&written) != Some(keys.note().as_str()) {
        send(&http, "PATCH", &node, Some(&json!({"metadata": {"annotations": {ANNOTATION: keys.note()}}}))).await?;
    }
    let list =
        read(&send(&http, "GET", &format!("{nodes}?labelSelector={}&limit={MASTERS}", LABEL.replace('/', "%2F")), None).await?)?;
    let mut found = KeyComparison::default();
    for node in list.get("items").and_then(Value::as_array).into_iter().flatten().filter(|node| is_present_master(node)) {
        let name = node.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let Some(other) = note(node).and_then(TokenKeys::of_note).filter(|_| name != own.node) else { continue };
        found.masters += 1;
        found.wrong.extend(keys.difference(&escaped(&shortened(name, 64)), &other));
    }
    Ok(found)
}

fn note(node: &Value) -> Option<&str> {
    node.pointer("/metadata/annotations")?.get(ANNOTATION)?.as_str()
}

/// A master whose kubelet is heard of: of one that left, the node stays until somebody deletes it, and Ready is Unknown.
fn is_present_master(node: &Value) -> bool {
    let is_master = node.pointer("/metadata/labels").is_some_and(|labels| labels.get(LABEL).is_some());
    let conditions = node.pointer("/status/conditions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let has = |one: &Value, key: &str, value: &str| one.get(key).is_some_and(|text| text == value);
    let is_silent = conditions.iter().any(|one| has(one, "type", "Ready") && has(one, "status", "Unknown"));
    is_master && !is_silent && node.pointer("/metadata/deletionTimestamp").is_none()
}

fn read(answer: &Response) -> Result<Value> {
    json::value(&answer.body, OBJECT_MEMORY).map_err(|rejection| Error::from(rejection).context(DOING))
}

async fn send(http: &Http, method: &str, url: &str, body: Option<&Value>) -> Result<Response> {
    let request = api::request((method, url), api::JSON, body.map(|body| (PATCH, body)), REQUEST_LIMIT);
    let answer = http.request(request).await.context(|| DOING)?;
    let kind = match answer.status {
        200 => return Ok(answer),
        // While CAs are changed it may not trust the administrator for a moment.
        401 | 404 | 408 | 409 | 429 | 500.. => ErrorKind::Transient,
        _ => ErrorKind::Permanent,
    };
    Err(Error::new(kind, format!("the API answered {} to {method}: {}", answer.status, error_message(&answer)))
        .retry_after(answer.retry_after())
        .with_status(answer.status)
        .context(DOING))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::certificates::key::PrivateKey;
    use crate::clock::{Clock, Timestamp};
    use crate::files::Attributes;
    use crate::http::Tls;
    use crate::http::fake::{Fake, ok, status};

    fn keys(signs: &[u64], verifies: &[u64]) -> TokenKeys {
        let digests = |all: &[u64]| all.iter().map(|number| format!("{number:016x}")).collect();
        TokenKeys { signs: digests(signs), verifies: digests(verifies) }
    }

    #[test]
    fn each_master_has_to_verify_what_the_others_sign() {
        const HERE: &str = "signs tokens that this master does not verify (key 0000000000000002)";
        const THERE: &str = "does not verify tokens that this master signs (key 0000000000000001)";
        for (own, other, expected) in [
            (keys(&[1], &[1]), keys(&[1], &[1]), None),
            // The three updates by which a pair is replaced, one master after the other.
            (keys(&[1], &[1, 2]), keys(&[1], &[1]), None),
            (keys(&[2], &[1, 2]), keys(&[1], &[1, 2]), None),
            (keys(&[2], &[2]), keys(&[2], &[1, 2]), None),
            // Another pair in one step.
            (keys(&[1], &[1]), keys(&[2], &[2]), Some(format!("{THERE}, and {HERE}"))),
            (keys(&[1], &[1, 2]), keys(&[2], &[2]), Some(THERE.to_owned())),
            (keys(&[1], &[1]), keys(&[2], &[1, 2]), Some(HERE.to_owned())),
            // The API server and the controller manager sign by keys of their own.
            (keys(&[1, 2], &[1, 2]), keys(&[2], &[2]), Some(THERE.to_owned())),
        ] {
            let said = expected
                .map(|what| format!("service account keys differ from those of m2, which {what}: expected while the masters are updated one after the other"));
            assert_eq!(own.difference("m2", &other), said, "{own:?} {other:?}");
        }
    }

    #[test]
    fn what_a_node_says_is_read_as_it_was_written_and_else_not_at_all() {
        for known in [keys(&[1], &[1]), keys(&[1, 2], &[3, 4, 5]), keys(&[], &[1])] {
            assert_eq!(TokenKeys::of_note(&known.note()), Some(known));
        }
        let many = (0..65).map(|number| format!("{number:016x}")).collect::<Vec<_>>().join(",");
        for text in
            ["", "signs=1 verifies=1", "signs=zzzzzzzzzzzzzzzz verifies=", "verifies= signs=", &format!("signs= verifies={many}")]
        {
            assert_eq!(TokenKeys::of_note(text), None, "{text}");
        }
    }

    struct Cluster {
        fake: Fake,
        http: Http,
        root: Arc<Tree>,
        own: TokenKeyMaster,
        _dir: tempfile::TempDir,
    }

    impl Cluster {
        async fn start(key: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let root = Arc::new(Tree::open(dir.path()).unwrap());
            root.write(Path::new("/sa.key"), key.as_bytes(), Attributes::mode(0o600)).unwrap();
            let http = Http::new(Tls::default(), Arc::clone(&root), Clock::manual(Timestamp(0)));
            let fake = Fake::start(vec![ok("")]).await;
            let files = BTreeSet::from(["/sa.key".to_owned()]);
            let own = TokenKeyMaster {
                server: fake.base.clone(),
                node: "m1".to_owned(),
                identity: None,
                sign: files.clone(),
                verify: files,
            };
            Self { fake, http, root, own, _dir: dir }
        }

        async fn compare(&self) -> Result<KeyComparison> {
            compare(&self.http, &self.root, &self.own).await
        }
    }

    fn node(name: &str, note: &str) -> Value {
        json!({"metadata": {"name": name, "labels": {LABEL: ""}, "annotations": {ANNOTATION: note}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    }

    #[tokio::test]
    async fn a_master_says_its_keys_once_and_compares_those_of_the_masters_that_are_there() {
        let key = PrivateKey::generate().unwrap();
        let cluster = Cluster::start(key.to_pem()).await;
        let digest = key.fingerprint().chars().take(16).collect::<String>();
        let (same, theirs) = (format!("signs={digest} verifies={digest}"), keys(&[7], &[7]).note());
        let mut gone = node("m4", &theirs);
        gone["status"]["conditions"][0]["status"] = json!("Unknown");
        let mut deleted = node("m5", &theirs);
        deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let mut worker = node("w1", &theirs);
        worker["metadata"]["labels"] = json!({});
        let all = [node("m1", "old"), node("m2", &same), node("m3", &theirs), gone, deleted, worker, node("m6", "signs=x")];
        let list = json!({"items": all}).to_string();
        let before = cluster.fake.requests().len();
        cluster.fake.play(vec![ok(node("m1", "old").to_string()), ok("{}"), ok(list.clone())]);
        let found = cluster.compare().await.unwrap();
        let wrong = keys(&[7], &[7]);
        let own = TokenKeys::of_note(&same).unwrap();
        assert_eq!(found, KeyComparison { masters: 2, wrong: vec![own.difference("m3", &wrong).unwrap()] });
        let requests = cluster.fake.requests().split_off(before);
        let [_, patch, asked] = &requests[..] else { panic!("{requests:?}") };
        let (head, body) = patch.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("PATCH /api/v1/nodes/m1 HTTP/1.1\r\n") && head.to_lowercase().contains(PATCH), "{head}");
        let body: Value = json::typed(body).unwrap();
        assert_eq!(body, json!({"metadata": {"annotations": {ANNOTATION: same}}}));
        assert!(
            asked.starts_with("GET /api/v1/nodes?labelSelector=node-role.kubernetes.io%2Fmaster&limit=30 HTTP/1.1"),
            "{asked}"
        );
        // The same again writes nothing.
        let before = cluster.fake.requests().len();
        cluster.fake.play(vec![ok(node("m1", &same).to_string()), ok(list)]);
        assert_eq!(cluster.compare().await.unwrap(), found);
        assert!(cluster.fake.requests().split_off(before).iter().all(|request| request.starts_with("GET ")));
    }

    #[tokio::test]
    async fn what_cannot_be_compared_is_an_error_and_no_difference() {
        let cluster = Cluster::start("no key").await;
        let error = cluster.compare().await.unwrap_err();
        assert!(error.to_string().contains("reading /sa.key") && error.kind() == ErrorKind::Permanent, "{error}");
        let cluster = Cluster::start(PrivateKey::generate().unwrap().to_pem()).await;
        for (line, code, kind) in [
            ("403 Forbidden", 403, ErrorKind::Permanent),
            ("404 Not Found", 404, ErrorKind::Transient),
            ("503 Service Unavailable", 503, ErrorKind::Transient),
        ] {
            cluster.fake.play(vec![status(line, r#"{"message": "no"}"#)]);
            let error = cluster.compare().await.unwrap_err();
            assert_eq!((error.kind(), error.answered()), (kind, Some(code)));
        }
    }
}
