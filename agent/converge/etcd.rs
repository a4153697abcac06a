//! A client of etcd: the keys API v2 and v3, members and their health. v3 is spoken through etcd's own JSON gateway, whose path has
//! changed with its versions; 64-bit numbers are strings there.
//!
//! flannel uses v2 up to 0.17 and v3 from 0.18 on (seed-systems.md 8a).

use std::cell::OnceCell;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::budgets::json;
use crate::clock::patience;
use crate::desired::EtcdAccess;
use crate::error::{Context, Error, Result};
use crate::http::{Http, Request, Response};
use crate::network::flannel::Api;
use crate::openstack::aws_signature::encode;
use crate::report::text::{escaped, shortened};

/// A store that does not answer one request for so long is away.
const REQUEST_LIMIT: Duration = patience(Duration::from_secs(5));
/// A thousand leases are 0.3 MB in v3's gateway, all metrics of a member 0.1 MB; more is not read.
const ANSWER_LIMIT: usize = 2 * 1024 * 1024;
/// `errorCode` of v2: there is no such key; it is not what it was; it is there already.
const NOT_FOUND: u64 = 100;
const RACE_LOST: [u64; 2] = [101, 105];

/// The lease of a key that has no end in v3.
const NO_LEASE: &str = "0";

/// A key as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyValue {
    pub(crate) key: String,
    pub(crate) value: String,
    /// Of its last change: modifiedIndex, mod_revision.
    pub(crate) revision: String,
}

/// A member of the cluster, as etcd lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterMember {
    pub(crate) id: String,
    /// Empty for one that was added and has not started yet.
    pub(crate) name: String,
    /// Where it serves clients.
    pub(crate) urls: Vec<String>,
}

/// A member as others list it, learners among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedMember {
    pub(crate) id: u64,
    /// Empty for one that was added and has not started yet.
    pub(crate) name: String,
    /// Where its peers reach it.
    pub(crate) peers: Vec<String>,
    /// Where it serves clients; none until it has started for the first time.
    pub(crate) clients: Vec<String>,
    /// Whether it votes; a learner does not.
    pub(crate) votes: bool,
}

/// The members of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Members {
    /// The id of the member that answered.
    pub(crate) own: String,
    /// Those that vote, and this one.
    pub(crate) all: Vec<ClusterMember>,
}

impl Members {
    /// Those of a list, for the member of this id.
    pub(crate) fn of(listed: Vec<ListedMember>, own: u64) -> Self {
        let member = |one: ListedMember| ClusterMember { id: one.id.to_string(), name: one.name, urls: one.clients };
        let all = listed.into_iter().filter(|member| member.votes || member.id == own).map(member).collect();
        Self { own: own.to_string(), all }
    }

    /// Those but the one that answered.
    pub(crate) fn others(&self) -> impl Iterator<Item = &ClusterMember> {
        self.all.iter().filter(|member| member.id != self.own)
    }
}

/// One etcd.
#[derive(Debug)]
pub(crate) struct Etcd {
    http: Http,
    endpoint: String,
    /// Whose it is, for causes: `flannel's etcd`.
    whose: &'static str,
    /// What it is of; asked once.
    served: OnceCell<Served>,
}

/// What follows from a release.
#[derive(Clone, Copy, Debug)]
struct Served {
    /// Where the JSON gateway is.
    gateway: Option<&'static str>,
    /// Whether all members know learners.
    has_learners: bool,
}

impl Etcd {
    /// Certificates are read when the first connection is made.
    pub(crate) fn new(http: &Http, access: &EtcdAccess, whose: &'static str) -> Self {
        let http = http.identified_by(access.identity.as_ref());
        Self { http, endpoint: access.endpoint.trim_end_matches('/').to_owned(), whose, served: OnceCell::new() }
    }

    /// The newest API that it serves.
    pub(crate) async fn api(&self) -> Result<Api> {
        Ok(if self.gateway().await?.is_some() { Api::V3 } else { Api::V2 })
    }

    /// Whether its keys can be read and written here: the JSON gateway of v3 may be off.
    pub(crate) async fn has_keys(&self) -> Result<bool> {
        let Some(gateway) = self.gateway().await? else { return Ok(true) };
        let answer = self.send("POST", &format!("{gateway}/cluster/member/list"), Some("{}".to_owned())).await?;
        Ok(answer.status != 404)
    }

    /// The members of its cluster, as it lists them to peers, with or without the gateway; `own`: where it is reached by these.
    pub(crate) async fn members(&self, own: &str) -> Result<Members> {
        let (_, listed) = self.listed().await?;
        let me = listed.iter().find(|member| member.peers.iter().any(|url| url == own)).map(|member| member.id);
        let me =
            me.ok_or_else(|| Error::transient(format!("none of its members has the address {own}")).context(self.doing()))?;
        Ok(Members::of(listed, me))
    }

    /// The cluster's id, where the answer has it, and its members, as the one that is asked lists them to its peers, with or without
    /// the gateway. It answers without a quorum, too.
    pub(crate) async fn listed(&self) -> Result<(Option<u64>, Vec<ListedMember>)> {
        let answer = self.send("GET", "/members", None).await?;
        if !answer.is_success() {
            return Err(self.refusal(&answer));
        }
        let cluster = answer.header("x-etcd-cluster-id").and_then(|id| u64::from_str_radix(id, 16).ok());
        let texts = |member: &Value, name: &str| {
            let texts = member.get(name).and_then(Value::as_array).into_iter().flatten();
            texts.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<String>>()
        };
        let list = self.json(&answer)?;
        let members = list.as_array().into_iter().flatten().filter_map(|member| {
            let name = member.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
            let votes = member.get("isLearner") != Some(&Value::Bool(true));
            let (peers, clients) = (texts(member, "peerURLs"), texts(member, "clientURLs"));
            Some(ListedMember { id: member.get("id")?.as_u64()?, name, peers, clients, votes })
        });
        Ok((cluster, members.collect()))
    }

    /// Whether members and keys can be changed here: it is 3.0 or later, and its JSON gateway is on.
    pub(crate) async fn has_gateway(&self) -> Result<bool> {
        Ok(self.gateway().await?.is_some() && self.has_keys().await?)
    }

    /// Whether a member can be added that does not vote yet: all are 3.4 or later.
    pub(crate) async fn has_learners(&self) -> Result<bool> {
        self.served().await.map(|served| served.has_learners)
    }

    /// Adds a member that its peers reach at this URL, as a learner where etcd has them. etcd itself refuses a second learner, and one that
    /// votes for which more members would have to be started than are.
    pub(crate) async fn add_member(&self, peer: &str) -> Result<()> {
        let is_learner = self.has_learners().await?;
        let member = if is_learner { json!({"peerURLs": [peer], "isLearner": true}) } else { json!({"peerURLs": [peer]}) };
        self.ask_v3("cluster/member/add", &member).await.map(drop)
    }

    /// Has a learner vote. etcd refuses one that has not caught up with the leader.
    pub(crate) async fn promote_member(&self, id: u64) -> Result<()> {
        self.ask_v3("cluster/member/promote", &json!({"ID": id.to_string()})).await.map(drop)
    }

    /// Removes a member from the cluster, by its id in decimal; one that is not in it any more is removed. By the v3 API where its
    /// gateway is on, else by v2.
    pub(crate) async fn remove_member(&self, id: &str) -> Result<()> {
        if let Some(gateway) = self.gateway().await? {
            let body = json!({"ID": id}).to_string();
            let answer = self.send("POST", &format!("{gateway}/cluster/member/remove"), Some(body)).await?;
            let is_gone = String::from_utf8_lossy(&answer.body).contains("member not found");
            if answer.is_success() || is_gone {
                return Ok(());
            }
            if answer.status != 404 {
                return Err(self.refusal(&answer));
            }
        }
        // v2 writes ids in hexadecimal; a member that is gone is 410 there.
        let number: u64 = id.parse().map_err(|_| Error::permanent(format!("{id:?} is no id of a member")))?;
        let answer = self.send("DELETE", &format!("/v2/members/{number:x}"), None).await?;
        match answer.status {
            404 => Err(Error::permanent(format!("etcd {} serves neither its v3 gateway nor the v2 API", self.endpoint))
                .remedy(format!("remove the member by hand on any master: etcdctl member remove {number:x}"))),
            410 => Ok(()),
            _ if answer.is_success() => Ok(()),
            _ => Err(self.refusal(&answer)),
        }
    }

    /// Whether a member answers that it is healthy: it reaches a leader then.
    pub(crate) async fn is_healthy(&self, url: &str) -> bool {
        let answer = self.member_answer(url, "/health").await;
        let body = answer.and_then(|answer| json::answer(&answer.body).ok());
        let health = body.as_ref().and_then(|body| body.get("health"));
        health.is_some_and(|health| *health == json!("true") || *health == json!(true))
    }

    /// Whether a member has a leader, and so its cluster a quorum, by its metrics: it is not healthy either where its disk is full. Nothing
    /// where it gives no answer that says so.
    pub(crate) async fn has_leader(&self, url: &str) -> Option<bool> {
        let answer = self.member_answer(url, "/metrics").await?;
        let text = String::from_utf8_lossy(&answer.body);
        let value = text.lines().find_map(|line| line.strip_prefix("etcd_server_has_leader "))?;
        match value.trim() {
            "1" => Some(true),
            "0" => Some(false),
            _ => None,
        }
    }

    /// The release that a member says it is of (`etcdserver` of its `/version`); nothing where it gives no answer that says so.
    pub(crate) async fn release_at(&self, url: &str) -> Option<String> {
        let answer = self.member_answer(url, "/version").await?;
        json::answer(&answer.body).ok()?.get("etcdserver")?.as_str().map(str::to_owned)
    }

    /// What another member answers. One that lists an address in the clear, where this one speaks TLS, is not asked there.
    async fn member_answer(&self, url: &str, path: &str) -> Option<Response> {
        if self.endpoint.starts_with("https://") && !url.starts_with("https://") {
            return None;
        }
        let place = format!("{}{path}", url.trim_end_matches('/'));
        let request = Request { body_limit: ANSWER_LIMIT, ..Request::new("GET", &place, REQUEST_LIMIT) };
        self.http.request(request).await.ok().filter(Response::is_success)
    }

    /// Whether the member that it asks is healthy.
    pub(crate) async fn member_is_healthy(&self) -> bool {
        self.is_healthy(&self.endpoint).await
    }

    fn doing(&self) -> String {
        format!("asking {} {}", self.whose, self.endpoint)
    }

    /// Whether it serves an API at all.
    pub(crate) async fn serves(&self, api: Api) -> Result<bool> {
        match api {
            Api::V3 => Ok(self.gateway().await?.is_some()),
            Api::V2 => {
                // Where the API is off nothing has that path, and the answer is the server's own for such.
                let answer = self.send("GET", "/v2/keys/", None).await?;
                Ok(answer.is_success() || error_code(&answer).is_some())
            }
        }
    }

    /// A key.
    pub(crate) async fn get(&self, api: Api, key: &str) -> Result<Option<KeyValue>> {
        match api {
            Api::V2 => Ok(self.get_v2(&format!("/v2/keys{key}?quorum=true")).await?.and_then(|node| entry_v2(&node))),
            Api::V3 => Ok(self.range(&json!({"key": BASE64.encode(key)})).await?.pop()),
        }
    }

    /// The keys right below a directory, or with a prefix that ends like one.
    pub(crate) async fn list(&self, api: Api, directory: &str) -> Result<Vec<KeyValue>> {
        match api {
            Api::V2 => {
                let node = self.get_v2(&format!("/v2/keys{directory}?quorum=true")).await?;
                let nodes = node.as_ref().and_then(|node| node.get("nodes")?.as_array()).into_iter().flatten();
                Ok(nodes.filter_map(entry_v2).collect())
            }
            // What comes after everything that begins with the directory and "/".
            Api::V3 => {
                let [first, end] = ['/', '0'].map(|last| BASE64.encode(format!("{directory}{last}")));
                self.range(&json!({"key": first, "range_end": end})).await
            }
        }
    }

    /// Writes a key if it still is as it was found, or still is not there. `false`: somebody else was faster.
    pub(crate) async fn put(&self, api: Api, key: &str, value: &str, before: Option<&KeyValue>) -> Result<bool> {
        self.put_for(api, key, value, before, None).await
    }

    /// The same; etcd removes the key by itself after `life`.
    pub(crate) async fn put_for(
        &self,
        api: Api,
        key: &str,
        value: &str,
        before: Option<&KeyValue>,
        life: Option<Duration>,
    ) -> Result<bool> {
        match api {
            Api::V2 => {
                let condition = before.map_or("prevExist=false".to_owned(), |entry| format!("prevIndex={}", entry.revision));
                let ttl = life.map(|life| format!("&ttl={}", life.as_secs())).unwrap_or_default();
                let body = format!("value={}{ttl}", encode(value));
                let answer = self.send("PUT", &format!("/v2/keys{key}?{condition}"), Some(body)).await?;
                match (answer.is_success(), error_code(&answer)) {
                    (true, _) => Ok(true),
                    // It was there, and is gone: to be looked at again, too.
                    (_, Some(code)) if code == NOT_FOUND || RACE_LOST.contains(&code) => Ok(false),
                    _ => Err(self.refusal(&answer)),
                }
            }
            Api::V3 => {
                let name = BASE64.encode(key);
                // A key that is not there has revision 0.
                let revision = before.map_or("0", |entry| &entry.revision);
                let lease = match life {
                    Some(life) => self.lease(life).await?,
                    None => NO_LEASE.to_owned(),
                };
                let put = json!({"key": name, "value": BASE64.encode(value), "lease": lease});
                let body = json!({
                    "compare": [{"key": name, "target": "MOD", "result": "EQUAL", "mod_revision": revision}],
                    "success": [{"request_put": put}],
                });
                self.transact(&body).await
            }
        }
    }

    /// Removes a key that holds this value, and no other.
    pub(crate) async fn remove(&self, api: Api, key: &str, value: &str) -> Result<()> {
        match api {
            Api::V2 => {
                let answer = self.send("DELETE", &format!("/v2/keys{key}?prevValue={}", encode(value)), None).await?;
                let is_gone = error_code(&answer).is_some_and(|code| code == NOT_FOUND || RACE_LOST.contains(&code));
                if answer.is_success() || is_gone { Ok(()) } else { Err(self.refusal(&answer)) }
            }
            Api::V3 => {
                let name = BASE64.encode(key);
                let body = json!({
                    "compare": [{"key": name, "target": "VALUE", "result": "EQUAL", "value": BASE64.encode(value)}],
                    "success": [{"request_delete_range": {"key": name}}],
                });
                self.transact(&body).await.map(|_| ())
            }
        }
    }

    async fn lease(&self, life: Duration) -> Result<String> {
        let granted = self.ask_v3("lease/grant", &json!({"TTL": life.as_secs().to_string()})).await?;
        let lease = granted.get("ID").and_then(Value::as_str);
        lease.map(str::to_owned).ok_or_else(|| Error::transient("it granted a lease without an id").context(self.doing()))
    }

    async fn transact(&self, body: &Value) -> Result<bool> {
        // A failed comparison leaves the member out: false is its default.
        Ok(self.ask_v3("kv/txn", body).await?.get("succeeded") == Some(&Value::Bool(true)))
    }

    async fn get_v2(&self, path: &str) -> Result<Option<Value>> {
        let answer = self.send("GET", path, None).await?;
        if !answer.is_success() {
            return if error_code(&answer) == Some(NOT_FOUND) { Ok(None) } else { Err(self.refusal(&answer)) };
        }
        Ok(self.json(&answer)?.get_mut("node").map(Value::take))
    }

    async fn range(&self, body: &Value) -> Result<Vec<KeyValue>> {
        let answer = self.ask_v3("kv/range", body).await?;
        let entry = |one: &Value| {
            // A value of no length is left out.
            let text = |name: &str| BASE64.decode(one.get(name)?.as_str()?).ok();
            let revision = one.get("mod_revision")?.as_str()?.to_owned();
            let words =
                [text("key")?, text("value").unwrap_or_default()].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            let [key, value] = words;
            Some(KeyValue { key, value, revision })
        };
        Ok(answer.get("kvs").and_then(Value::as_array).into_iter().flatten().filter_map(entry).collect())
    }

    async fn ask_v3(&self, what: &str, body: &Value) -> Result<Value> {
        let Some(gateway) = self.gateway().await? else {
            return Err(self.without("v3", "flannel 0.18 and later reads only the v3 API", "use etcd 3.0 or later"));
        };
        let answer = self.send("POST", &format!("{gateway}/{what}"), Some(body.to_string())).await?;
        if answer.is_success() { self.json(&answer) } else { Err(self.refusal(&answer)) }
    }

    /// Where the JSON gateway of v3 is; nowhere before etcd 3.0.
    async fn gateway(&self) -> Result<Option<&'static str>> {
        self.served().await.map(|served| served.gateway)
    }

    async fn served(&self) -> Result<Served> {
        if let Some(served) = self.served.get() {
            return Ok(*served);
        }
        let answer = self.send("GET", "/version", None).await?;
        if !answer.is_success() {
            return Err(self.refusal(&answer));
        }
        let version = self.json(&answer)?;
        let of = |what: &str| version.get(what).and_then(Value::as_str).unwrap_or_default();
        let has_learners = numbers(of("etcdcluster")).is_some_and(|cluster| cluster >= (3, 4));
        Ok(*self.served.get_or_init(|| Served { gateway: gateway_of(of("etcdserver")), has_learners }))
    }

    /// A body of v2 is a form, of v3 JSON.
    async fn send(&self, method: &str, path: &str, body: Option<String>) -> Result<Response> {
        let url = format!("{}{path}", self.endpoint);
        let mut request = Request::new(method, &url, REQUEST_LIMIT);
        request.body_limit = ANSWER_LIMIT;
        if let Some(body) = body {
            let kind = if method == "PUT" { "application/x-www-form-urlencoded" } else { "application/json" };
            request = request.header("content-type", kind);
            request.body = Some(body.into_bytes());
        }
        self.http.request(request).await.context(|| format!("asking {}", self.whose))
    }

    fn json(&self, answer: &Response) -> Result<Value> {
        json::answer(&answer.body).map_err(|_| Error::transient("the answer is not JSON").context(self.doing()))
    }

    fn refusal(&self, answer: &Response) -> Error {
        let body = String::from_utf8_lossy(&answer.body);
        if answer.status == 404 {
            let rule = "flannel up to 0.17 reads only the v2 API; etcd 3.4 and later serves it with --enable-v2, 3.6 and later \
                        not at all";
            return self.without("v2", rule, "start etcd with --enable-v2, or install flannel 0.18 or later");
        }
        let cause = format!("it answered {}: {}", answer.status, shortened(&escaped(body.trim()), 200));
        match answer.status {
            401 | 403 => Error::permanent(cause)
                .remedy("allow the user of the node's certificate to read and write the key (etcdctl role grant-permission)"),
            _ => Error::transient(cause).remedy("check `journalctl -u etcd` on its node; the agent retries"),
        }
        .with_status(answer.status)
        .context(self.doing())
    }

    fn without(&self, api: &str, rule: &str, remedy: &str) -> Error {
        Error::permanent(format!("etcd {} does not serve the {api} API", self.endpoint)).rule(rule).remedy(remedy)
    }
}

/// 3.0 to 3.2 have an alpha, 3.3 a beta, later ones the final path.
fn gateway_of(server: &str) -> Option<&'static str> {
    match numbers(server)? {
        (..=2, _) => None,
        (3, ..=2) => Some("/v3alpha"),
        (3, 3) => Some("/v3beta"),
        _ => Some("/v3"),
    }
}

/// Major and minor of a release.
fn numbers(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split('.').map(str::parse::<u32>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn error_code(answer: &Response) -> Option<u64> {
    json::small(&answer.body)?.get("errorCode")?.as_u64()
}

fn entry_v2(node: &Value) -> Option<KeyValue> {
    let text = |name: &str| node.get(name)?.as_str().map(str::to_owned);
    Some(KeyValue { key: text("key")?, value: text("value")?, revision: node.get("modifiedIndex")?.to_string() })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::Clock;
    use crate::files::Tree;
    use crate::http::Tls;
    use crate::http::fake::{Fake, ok, status};

    #[test]
    fn the_gateway_is_where_that_version_of_etcd_has_it() {
        for (server, path) in [
            ("2.3.8", None),
            ("3.0.17", Some("/v3alpha")),
            ("3.2.32", Some("/v3alpha")),
            ("3.3.27", Some("/v3beta")),
            ("3.4.23", Some("/v3")),
            ("3.6.0-rc.1", Some("/v3")),
            ("4.0.0", Some("/v3")),
            ("", None),
            ("x.y", None),
        ] {
            assert_eq!(gateway_of(server), path, "{server}");
        }
    }

    /// Review: a member that could not be asked, or whose disk was full, counted as one without a leader.
    #[tokio::test]
    async fn whether_a_member_has_a_leader_is_known_only_where_it_says_so() {
        let says = |value: &str| ok(format!("# TYPE x gauge\netcd_server_has_leader {value}\netcd_other 7\n"));
        for (act, expected) in [
            (says("1"), Some(true)),
            (says("0"), Some(false)),
            (says("NaN"), None),
            (ok("etcd_server_has_leader_changes 1\n"), None),
            (status("503 Service Unavailable", "etcd_server_has_leader 0"), None),
        ] {
            let server = Fake::start(vec![act]).await;
            let dir = tempfile::tempdir().unwrap();
            let root = Arc::new(Tree::open(dir.path()).unwrap());
            let http = Http::new(Tls::default(), root, Clock::system());
            let at = |endpoint: &str| Etcd::new(&http, &EtcdAccess { endpoint: endpoint.to_owned(), identity: None }, "etcd");
            assert_eq!(at(&server.base).has_leader(&server.base).await, expected);
            // In the clear nobody is believed where there is TLS.
            assert_eq!(at("https://192.0.2.1:2379").has_leader(&server.base).await, None);
        }
    }

    #[tokio::test]
    async fn a_member_is_removed_by_the_api_that_is_there_and_one_that_is_gone_is_removed() {
        let v3 = || ok(r#"{"etcdserver": "3.4.23"}"#);
        let v2 = || ok(r#"{"etcdserver": "2.3.8"}"#);
        let not_found = r#"{"error": "etcdserver: member not found", "code": 5}"#;
        for (acts, asked, removed) in [
            (vec![v3(), ok("{}")], vec!["GET /version", "POST /v3/cluster/member/remove"], true),
            (vec![v3(), status("404 Not Found", not_found)], vec!["GET /version", "POST /v3/cluster/member/remove"], true),
            // The gateway is off, and v2 with it.
            (
                vec![v3(), status("404 Not Found", "404 page not found"), status("404 Not Found", "404 page not found")],
                vec!["GET /version", "POST /v3/cluster/member/remove", "DELETE /v2/members/ff"],
                false,
            ),
            (vec![v3(), status("500 Internal Server Error", "")], vec!["GET /version", "POST /v3/cluster/member/remove"], false),
            (vec![v2(), status("204 No Content", "")], vec!["GET /version", "DELETE /v2/members/ff"], true),
            (vec![v2(), status("410 Gone", "")], vec!["GET /version", "DELETE /v2/members/ff"], true),
        ] {
            let server = Fake::start(acts).await;
            let dir = tempfile::tempdir().unwrap();
            let root = Arc::new(Tree::open(dir.path()).unwrap());
            let http = Http::new(Tls::default(), root, Clock::system());
            let access = EtcdAccess { endpoint: server.base.clone(), identity: None };
            let result = Etcd::new(&http, &access, "etcd").remove_member("255").await;
            let lines: Vec<String> =
                server.requests().iter().map(|request| request.split(" HTTP/").next().unwrap_or_default().to_owned()).collect();
            assert_eq!((lines, result.is_ok()), (asked.into_iter().map(str::to_owned).collect(), removed), "{result:?}");
        }
    }
}
