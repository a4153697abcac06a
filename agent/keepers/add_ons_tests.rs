//! Add-ons at an API that stores objects.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::clock::{Clock, Timestamp};
use crate::files::Attributes;
use crate::http::Tls;
use crate::machine::add_ons::PLACE;

const DEADLINE: Duration = Duration::from_mins(10);
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/dns/deployments/dns";

/// What the API holds, and what it was asked.
#[derive(Default)]
struct Store {
    objects: BTreeMap<String, Value>,
    /// Method, path and status of each request that writes.
    writes: Vec<String>,
    /// So many requests are not answered at all.
    away: usize,
    /// Names that are refused.
    refused: Option<&'static str>,
    /// So many discoveries pass before the group example.org is there.
    undefined: usize,
}

impl Store {
    fn answer(&mut self, method: &str, path: &str, body: &[u8]) -> (u16, Value) {
        let failure = |status: u16, message: String| (status, json!({"kind": "Status", "status": "Failure", "message": message}));
        let kinds = |kinds: &[(&str, &str, bool)]| {
            let of =
                |(kind, name, namespaced): &(&str, &str, bool)| json!({"kind": kind, "name": name, "namespaced": namespaced});
            (200, json!({"resources": kinds.iter().map(of).collect::<Vec<_>>()}))
        };
        match path {
            "/api/v1" => {
                return kinds(&[
                    ("Namespace", "namespaces", false),
                    ("Service", "services", true),
                    ("Service", "services/proxy", true),
                ]);
            }
            "/apis/apps/v1" => return kinds(&[("Deployment", "deployments", true), ("Scale", "deployments/scale", true)]),
            "/apis/example.org/v1" if self.undefined == 0 => return kinds(&[("Thing", "things", false)]),
            // Its first definition is served before the second one.
            "/apis/example.org/v1" if self.undefined == 1 => {
                self.undefined = 0;
                return kinds(&[("Other", "others", false)]);
            }
            _ if path.starts_with("/apis/") && path.matches('/').count() == 3 => {
                self.undefined = self.undefined.saturating_sub(1);
                return failure(404, "the server could not find the requested resource".to_owned());
            }
            _ => {}
        }
        if method == "GET" {
            let found = self.objects.get(path).cloned();
            return found.map_or_else(|| failure(404, format!("{path} not found")), |found| (200, found));
        }
        let mut object: Value = json::typed(body).unwrap();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let place = if method == "POST" { format!("{path}/{name}") } else { path.to_owned() };
        let namespace =
            place.split_once("/namespaces/").and_then(|(_, rest)| rest.split_once('/')).map(|(name, _)| name.to_owned());
        let known = self.objects.get(&place).map(|known| known["metadata"]["resourceVersion"].clone());
        let answer = if self.refused == Some(&*name) {
            failure(422, format!("Deployment.apps \"{name}\" is invalid: spec.replicas: Invalid value: -1"))
        } else if namespace.is_some_and(|name| !self.objects.contains_key(&format!("/api/v1/namespaces/{name}"))) {
            failure(404, "namespaces \"dns\" not found".to_owned())
        } else if (method == "POST") == known.is_some()
            || (method == "PUT" && Some(&object["metadata"]["resourceVersion"]) != known.as_ref())
        {
            failure(409, format!("{name} already exists, or was modified"))
        } else {
            object["metadata"]["resourceVersion"] = json!((self.writes.len() + 1).to_string());
            object["metadata"]["uid"] = json!("u");
            self.objects.insert(place.clone(), object.clone());
            (if method == "POST" { 201 } else { 200 }, object)
        };
        self.writes.push(format!("{method} {place} {}", answer.0));
        answer
    }
}

/// A request's head and body; nothing where the client has gone.
async fn request(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..at]).to_lowercase();
            let length =
                head.lines().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |text| text.parse().unwrap());
            if bytes.len() >= at + 4 + length {
                let first = String::from_utf8_lossy(&bytes[..at]).lines().next()?.to_owned();
                return Some((first, bytes[at + 4..at + 4 + length].to_vec()));
            }
        }
        match stream.read(&mut piece).await.ok()? {
            0 => return None,
            read => bytes.extend_from_slice(&piece[..read]),
        }
    }
}

struct Cluster {
    _dir: tempfile::TempDir,
    root: Arc<Tree>,
    server: String,
    store: Arc<Mutex<Store>>,
}

impl Cluster {
    async fn with(manifests: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = Arc::new(Tree::open(dir.path()).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let store = Arc::new(Mutex::new(Store::default()));
        let shared = Arc::clone(&store);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let store = Arc::clone(&shared);
                tokio::spawn(async move {
                    while let Some((first, body)) = request(&mut stream).await {
                        let mut words = first.split(' ');
                        let (method, path) = (words.next().unwrap(), words.next().unwrap());
                        let answer = {
                            let mut store = store.lock().unwrap();
                            if store.away > 0 {
                                store.away -= 1;
                                None
                            } else {
                                Some(store.answer(method, path, &body))
                            }
                        };
                        let Some((status, body)) = answer else { return };
                        let body = body.to_string();
                        let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n", body.len());
                        stream.write_all((head + &body).as_bytes()).await.unwrap();
                    }
                });
            }
        });
        let cluster = Self { _dir: dir, root, server, store };
        cluster.write(manifests);
        cluster
    }

    fn write(&self, manifests: &str) {
        let folder = format!("{PLACE}/dns");
        self.root.create_dir_all(Path::new(&folder), Attributes::mode(0o755)).unwrap();
        self.root.write(Path::new(&format!("{folder}/a.yaml")), manifests.as_bytes(), Attributes::mode(0o644)).unwrap();
    }

    fn http(&self) -> Http {
        Http::new(Tls::default(), Arc::clone(&self.root), Clock::manual(Timestamp(0)))
    }

    /// What one master does, and the causes that it told on the way.
    async fn apply(&self) -> (Result<Applied>, Vec<String>) {
        let add_on = AddOn {
            name: "dns".into(),
            server: self.server.clone(),
            identity: None,
            facts: Vec::new(),
            secrets: Vec::new(),
            needs: BTreeSet::new(),
        };
        let waits = Mutex::new(Vec::new());
        let told = |error: &Error, _: u32, _: Duration| waits.lock().unwrap().push(error.cause_first());
        let applied = self.http().apply(&add_on, &self.root, DEADLINE, &told).await;
        (applied, waits.into_inner().unwrap())
    }

    fn writes(&self) -> Vec<String> {
        std::mem::take(&mut self.store.lock().unwrap().writes)
    }
}

/// Written the other way round.
fn manifests(replicas: u64) -> String {
    format!(
        "{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: dns, namespace: dns}}, spec: {{replicas: {replicas}}}}}\n---\n\
         {{apiVersion: v1, kind: Service, metadata: {{name: dns, namespace: dns, labels: {{addonmanager.kubernetes.io/mode: EnsureExists}}}}, \
         spec: {{clusterIP: 10.254.0.1{replicas}}}}}\n---\n\
         {{apiVersion: v1, kind: Namespace, metadata: {{name: dns}}}}\n"
    )
}

fn counts(made: usize, changed: usize, unchanged: usize) -> Applied {
    Applied { made, changed, unchanged }
}

#[tokio::test]
async fn objects_are_made_once_and_put_right_where_they_differ() {
    let cluster = Cluster::with(&manifests(0)).await;
    assert_eq!(cluster.apply().await.0.unwrap(), counts(3, 0, 0));
    let made =
        ["POST /api/v1/namespaces/dns 201", &format!("POST {DEPLOYMENT} 201"), "POST /api/v1/namespaces/dns/services/dns 201"];
    assert_eq!(cluster.writes(), made);
    assert_eq!(cluster.apply().await.0.unwrap(), counts(0, 0, 3));
    // What others add stays; what is made once is left alone.
    cluster.store.lock().unwrap().objects.get_mut(DEPLOYMENT).unwrap()["metadata"]["labels"]["theirs"] = json!("1");
    cluster.write(&manifests(2));
    assert_eq!(cluster.apply().await.0.unwrap(), counts(0, 1, 2));
    assert_eq!(cluster.writes(), [format!("PUT {DEPLOYMENT} 200")]);
    let store = cluster.store.lock().unwrap();
    let deployment = &store.objects[DEPLOYMENT];
    assert_eq!(deployment["spec"]["replicas"], 2);
    assert_eq!(deployment["metadata"]["labels"], json!({"heat-node-agent/add-on": "dns", "theirs": "1"}));
    assert_eq!(store.objects["/api/v1/namespaces/dns/services/dns"]["spec"]["clusterIP"], "10.254.0.10");
}

#[tokio::test]
async fn of_two_masters_each_object_is_made_once() {
    let cluster = Cluster::with(&manifests(1)).await;
    let (one, other) = tokio::join!(cluster.apply(), cluster.apply());
    let (one, other) = (one.0.unwrap(), other.0.unwrap());
    assert_eq!((one.made + other.made, one.changed + other.changed), (3, 0), "{one:?} {other:?}");
    let writes = cluster.writes();
    let with = |status: &str| writes.iter().filter(|line| line.ends_with(status)).collect::<BTreeSet<_>>();
    assert_eq!((with(" 201").len(), writes.iter().filter(|line| line.ends_with(" 201")).count()), (3, 3), "{writes:?}");
    assert!(!with(" 409").is_empty() && with(" 200").is_empty(), "they met, and nobody overwrote the other: {writes:?}");
}

#[tokio::test]
async fn an_api_that_is_away_is_waited_for_and_the_cause_is_told() {
    let cluster = Cluster::with(&manifests(1)).await;
    cluster.store.lock().unwrap().away = 20;
    let (applied, told) = cluster.apply().await;
    assert_eq!(applied.unwrap(), counts(3, 0, 0));
    assert!(!told.is_empty() && told.iter().all(|cause| cause.contains("127.0.0.1")), "{told:?}");
    cluster.store.lock().unwrap().away = usize::MAX;
    let error = cluster.apply().await.0.unwrap_err();
    assert!(error.kind() == ErrorKind::Transient && error.to_string().contains("/addons/dns/a.yaml, line "), "{error}");
}

#[tokio::test]
async fn what_the_api_refuses_is_named_with_its_file_and_its_message() {
    let cluster = Cluster::with(&manifests(1)).await;
    cluster.store.lock().unwrap().refused = Some("dns");
    cluster
        .store
        .lock()
        .unwrap()
        .objects
        .insert("/api/v1/namespaces/dns".to_owned(), json!({"metadata": {"resourceVersion": "1"}}));
    cluster.write(&manifests(1).replace("{name: dns}", "{name: other}"));
    let (error, told) = cluster.apply().await;
    let error = error.unwrap_err();
    let words = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Permanent);
    for part in ["a.yaml, line 1", "making deployment dns/dns", "422: Deployment.apps \"dns\" is invalid: spec.replicas"] {
        assert!(words.contains(part), "{part}: {words}");
    }
    assert!(error.suggested_remedy().unwrap().contains("a.yaml, line 1 in the image") && told.is_empty(), "{error:?}");
    // What came before it stays, and nothing came after it.
    assert_eq!(cluster.writes(), ["POST /api/v1/namespaces/other 201".to_owned(), format!("POST {DEPLOYMENT} 422")]);
}

#[tokio::test]
async fn a_kind_that_the_api_does_not_have_is_waited_for_if_it_may_come() {
    let thing = |version: &str, kind: &str| format!("{{apiVersion: {version}, kind: {kind}, metadata: {{name: a}}}}\n");
    let cluster = Cluster::with(&thing("example.org/v1", "Thing")).await;
    cluster.store.lock().unwrap().undefined = 3;
    let (applied, told) = cluster.apply().await;
    assert_eq!((applied.unwrap(), told.len()), (counts(1, 0, 0), 3));
    let missing =
        ["the API has no example.org/v1", "the API has no example.org/v1", "the API has no kind Thing in example.org/v1"];
    assert_eq!(told, missing);
    assert_eq!(cluster.writes(), ["POST /apis/example.org/v1/things/a 201"]);
    for (version, kind, expected) in [
        ("policy/v1beta1", "PodDisruptionBudget", "the API has no policy/v1beta1"),
        ("apps/v1", "Deploymnt", "the API has no kind Deploymnt in apps/v1"),
        ("networking.k8s.io/v1beta1", "Ingress", "the API has no networking.k8s.io/v1beta1"),
    ] {
        cluster.write(&thing(version, kind));
        let (error, told) = cluster.apply().await;
        let error = error.unwrap_err();
        assert!(error.kind() == ErrorKind::Permanent && error.cause_first().contains(expected) && told.is_empty(), "{error}");
    }
    // Until the deadline.
    cluster.write(&thing("snapshot.storage.k8s.io/v1", "VolumeSnapshotClass"));
    assert_eq!(cluster.apply().await.0.unwrap_err().kind(), ErrorKind::Transient);
    cluster.write("{apiVersion: v1, kind: Service, metadata: {name: a, namespace: dns}}");
    let error = cluster.apply().await.0.unwrap_err();
    assert!(error.kind() == ErrorKind::Transient && error.to_string().contains("namespaces \"dns\" not found"), "{error}");
}
