//! Permission for a master to restart its own member of etcd: who else is healthy, and a key in etcd that one master holds at a time.
//!
//! The key has a life, so that a master that died with it holds up the others no longer than that. Nothing here changes etcd but
//! that key.

use std::collections::BTreeSet;
use std::time::Duration;

use super::renewal::{Lock, QuorumState, RestartPermission, judge};
use crate::clock::Timestamp;
use crate::concurrent::all;
use crate::converge::etcd::{Etcd, Members};
use crate::desired::{EtcdAccess, EtcdMember};
use crate::error::{ConnectFailure, Error, Result};
use crate::gather::Gather;
use crate::http::Http;
use crate::network::flannel::Api;
use crate::report::text::{escaped, shortened};

/// The key of the master that renews, or changes its member.
pub(in crate::keepers) const KEY: &str = "/heat-node-agent/renewal";
/// How long etcd keeps it: longer than a renewal may take ([`RUN_LIMIT`]), so that it outlasts every renewal.
const LIFE: Duration = Duration::from_mins(15);
/// How long a renewal under the lock may take.
pub const RUN_LIMIT: Duration = Duration::from_mins(14);
/// A master's turn, where no key can be held.
const TURN: Duration = Duration::from_mins(20);
/// A renewal begins between these, from the turn's begin on.
const SPARE: Duration = Duration::from_mins(1);
const OPEN: Duration = Duration::from_mins(5);
/// How often somebody else may be faster before the next look tries again.
const TRIES: u32 = 3;

/// As causes call it.
const ETCD: &str = "the node's etcd";

/// Whether this master may renew now.
#[derive(Debug, PartialEq, Eq)]
pub enum Permission {
    /// It may; what it holds is to be given back afterwards.
    Go(RenewalLease),
    /// Not now, for this cause.
    Wait(String),
}

impl Permission {
    /// What follows where the own member cannot be asked. One whose certificate has expired serves nobody: there is nothing to protect.
    #[must_use]
    pub fn without_answer(error: &Error) -> Self {
        match error.connect_failure() {
            Some(ConnectFailure::Expired) => Self::Go(RenewalLease::Nothing),
            _ => Self::Wait(error.to_string()),
        }
    }
}

/// That it is this master's turn, where there are others: by a key in etcd, or by the clock.
#[derive(Debug, PartialEq, Eq)]
pub enum RenewalLease {
    /// Nobody else is there, or nobody is asked.
    Nothing,
    /// Its turn by the clock.
    Clock,
    /// The key in etcd, with this value.
    Key(Api, String),
}

impl RenewalLease {
    /// Whether the turn ends, so that the renewal has to be done in time.
    #[must_use]
    pub fn has_lease(&self) -> bool {
        *self != Self::Nothing
    }
}

/// Asks etcd for permission.
///
/// # Errors
/// If etcd cannot be asked: without its members' health nobody knows what a restart costs.
pub async fn ask(http: &Http, member: &EtcdMember, late: bool) -> Result<Permission> {
    let etcd = Etcd::new(http, &member.access, ETCD);
    let members = Etcd::new(http, &member.as_peer(), ETCD).members(&member.peer).await?;
    let quorum_state = |lock, unhealthy| QuorumState { members: members.all.len(), unhealthy, lock, late };
    match judge(&quorum_state(Lock::Unasked, unhealthy(&etcd, &members).await)) {
        RestartPermission::Go => return Ok(Permission::Go(RenewalLease::Nothing)),
        RestartPermission::Wait(cause) => return Ok(Permission::Wait(cause)),
        RestartPermission::Lock => {}
    }
    if !etcd.has_keys().await? {
        // Where etcd knows its clients by name its gateway is off, and there is no key to hold.
        let ids: Vec<&str> = members.all.iter().map(|member| member.id.as_str()).collect();
        let lock = turn(http.clock().now(), &members.own, &ids).map_or(Lock::Ours, Lock::NotYet);
        return Ok(match judge(&quorum_state(lock, Vec::new())) {
            RestartPermission::Wait(cause) => Permission::Wait(cause),
            RestartPermission::Go | RestartPermission::Lock => Permission::Go(RenewalLease::Clock),
        });
    }
    let (api, name) = (etcd.api().await?, own_name(&members));
    let lock = take(&etcd, api, &name, LIFE).await?.map_or(Lock::Ours, Lock::Theirs);
    let is_ours = lock == Lock::Ours;
    // Somebody may have begun and ended, or died, since they were asked.
    let unhealthy = if is_ours { unhealthy(&etcd, &members).await } else { Vec::new() };
    match judge(&quorum_state(lock, unhealthy)) {
        RestartPermission::Wait(cause) => {
            if is_ours {
                etcd.remove(api, KEY, &name).await?;
            }
            Ok(Permission::Wait(cause))
        }
        RestartPermission::Go | RestartPermission::Lock => Ok(Permission::Go(RenewalLease::Key(api, name))),
    }
}

/// Whether the own member does not answer, or has no leader, and may be restarted without its permission: the others have a quorum without it, or
/// nobody has one. `peers`: where the others serve their peers, as far as the parameters say.
pub async fn may_restart_unhealthy(http: &Http, member: &EtcdMember, peers: &[&str]) -> bool {
    let etcd = Etcd::new(http, &member.access, ETCD);
    if etcd.member_is_healthy().await {
        return false;
    }
    let at =
        |peer: &str| Etcd::new(http, &EtcdAccess { endpoint: peer.to_owned(), ..member.as_peer() }, "another member of etcd");
    // A member that has no quorum serves its list all the same.
    let lists = all(peers.iter().map(async |peer| at(peer).listed().await.ok())).await;
    let answering = lists.iter().flatten().count();
    let urls: BTreeSet<&String> = lists.iter().flatten().flat_map(|(_, list)| list).flat_map(|one| &one.clients).gather();
    let has_leader = all(urls.iter().map(|url| etcd.is_healthy(url))).await.contains(&true);
    // Of two members each is needed, whatever is done.
    !has_leader || peers.len() < 2 || answering > peers.len().div_ceil(2)
}

/// Gives the lock back if the own member is healthy; whether that was done. Until then the others had better wait, until its life ends.
///
/// # Errors
/// If etcd cannot be asked.
pub async fn release_lease(http: &Http, member: &EtcdMember, held: &RenewalLease) -> Result<bool> {
    let RenewalLease::Key(api, name) = held else { return Ok(true) };
    // A new connection, which shows the new certificate.
    let etcd = Etcd::new(http, &member.access, ETCD);
    if !etcd.member_is_healthy().await {
        return Ok(false);
    }
    etcd.remove(*api, KEY, name).await.map(|()| true)
}

/// When the next turn of this member begins; nothing: now. Each turn is one member's, in the order of their ids, and a renewal that
/// begins in its first minutes ends within it ([`RUN_LIMIT`]), with a minute to spare for clocks that differ.
fn turn(now: Timestamp, own: &str, ids: &[&str]) -> Option<Timestamp> {
    let count = u64::try_from(ids.len()).unwrap_or(1).max(1);
    let rank = u64::try_from(ids.iter().filter(|id| **id < own).count()).unwrap_or_default();
    let length = u64::try_from(TURN.as_millis()).unwrap_or(1);
    let (round, into) = (now.0 / (length * count), now.0 % (length * count));
    let begin = rank * length;
    let open = begin + u64::try_from(SPARE.as_millis()).unwrap_or_default()..begin + u64::try_from(OPEN.as_millis()).unwrap_or(1);
    if open.contains(&into) {
        return None;
    }
    let rounds = if into < open.start { round } else { round + 1 };
    Some(Timestamp(rounds * length * count + open.start))
}

/// Takes the lock for so long; who has it, where that is somebody else. What this node held when it was cut off is its own.
pub(in crate::keepers) async fn take(etcd: &Etcd, api: Api, name: &str, life: Duration) -> Result<Option<String>> {
    for _ in 0..TRIES {
        let found = etcd.get(api, KEY).await?;
        if let Some(other) = found.as_ref().filter(|entry| member_of(&entry.value) != member_of(name)) {
            return Ok(Some(shortened(&escaped(&other.value), 100)));
        }
        if etcd.put_for(api, KEY, name, found.as_ref(), Some(life)).await? {
            return Ok(None);
        }
    }
    Ok(Some("another node, which was faster,".to_owned()))
}

/// By this a node knows what it held itself, for whatever purpose.
fn member_of(name: &str) -> &str {
    name.rsplit_once('(').map_or(name, |(_, member)| member)
}

/// The same at each try, and no other member's.
fn own_name(members: &Members) -> String {
    let own = members.all.iter().find(|member| member.id == members.own);
    format!("{} (member {})", own.map(|member| member.name.as_str()).unwrap_or_default(), members.own)
}

/// The other members that do not answer as healthy, by name.
pub(crate) async fn unhealthy(etcd: &Etcd, members: &Members) -> Vec<String> {
    let others: Vec<_> = members.others().collect();
    let answers = all(others.iter().map(async |member| {
        // It may have several ways to it; one that works is enough.
        let asked = all(member.urls.iter().map(|url| etcd.is_healthy(url))).await;
        asked.contains(&true)
    }));
    let unhealthy = others.iter().zip(answers.await).filter(|(_, is_healthy)| !is_healthy);
    let shown = |name: &str, id: &str| {
        if name.is_empty() { format!("{id}, which never started") } else { shortened(&escaped(name), 100) }
    };
    unhealthy.map(|(member, _)| shown(&member.name, &member.id)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD as BASE64;
    use serde_json::{Value, json};

    use super::*;
    use crate::clock::Clock;
    use crate::files::Tree;
    use crate::http::Tls;
    use crate::http::fake::{Act, Fake, ok, status};

    const M1: &str = "m1 (member 1)";

    fn http() -> (tempfile::TempDir, Http) {
        let dir = tempfile::tempdir().unwrap();
        let root = Arc::new(Tree::open(dir.path()).unwrap());
        (dir, Http::new(Tls::default(), root, Clock::system()))
    }

    fn asked(server: &Fake) -> Vec<String> {
        let of = |request: &String| {
            let line = request.split(" HTTP/").next().unwrap_or_default().to_owned();
            let body: Value =
                crate::budgets::json::typed(request.split("\r\n\r\n").nth(1).unwrap_or_default()).unwrap_or_default();
            let put = &body["success"][0]["request_put"];
            let text = |value: &Value| String::from_utf8(BASE64.decode(value.as_str().unwrap_or_default()).unwrap()).unwrap();
            match (put.is_null(), body["success"][0]["request_delete_range"].is_null(), body["TTL"].is_null()) {
                (false, ..) => format!("{line} put {} {}", text(&put["value"]), put["lease"]),
                (_, false, _) => format!("{line} delete"),
                (.., false) => format!("{line} {}", body["TTL"]),
                _ => line,
            }
        };
        server.requests().iter().map(of).collect()
    }

    fn version() -> Act {
        ok(r#"{"etcdserver":"3.5.9","etcdcluster":"3.5.0"}"#)
    }

    /// As etcd 3.5 tells its peers; learners do not vote. This node's own member is where that is asked.
    async fn peers(others: &[&str]) -> Fake {
        let server = Fake::start(vec![]).await;
        let mut all = vec![json!({"id": 1, "peerURLs": [server.base], "name": "m1", "clientURLs": ["http://192.0.2.1:2379"]})];
        for (number, url) in (2..).zip(others) {
            all.push(
                json!({"id": number, "peerURLs": ["http://192.0.2.9:2380"], "name": format!("m{number}"), "clientURLs": [url]}),
            );
        }
        all.push(
            json!({"id": 9, "peerURLs": ["http://192.0.2.8:2380"], "isLearner": true, "clientURLs": ["http://127.0.0.1:1"]}),
        );
        server.play(vec![ok(Value::from(all).to_string())]);
        server
    }

    fn healthy() -> Act {
        ok(r#"{"health":"true","reason":""}"#)
    }

    fn key(holder: Option<&str>) -> Act {
        let entry = |holder| json!({"key": BASE64.encode(KEY), "mod_revision": "6", "value": BASE64.encode(holder)});
        ok(json!({"header": {"revision": "8"}, "kvs": holder.into_iter().map(entry).collect::<Vec<_>>()}).to_string())
    }

    fn granted() -> Act {
        ok(r#"{"ID":"7587869013464921875","TTL":"900"}"#)
    }

    fn txn(succeeded: bool) -> Act {
        ok(json!({"header": {}, "succeeded": succeeded}).to_string())
    }

    fn member(server: &Fake, peers: &Fake) -> EtcdMember {
        EtcdMember {
            access: EtcdAccess { endpoint: server.base.clone(), identity: None },
            peer: peers.base.clone(),
            peer_identity: None,
            is_single: false,
            name: "m1".to_owned(),
            keeps_v2: false,
        }
    }

    /// What is answered, and what etcd was asked for, where each of the two others answers these in turn.
    async fn play(before: Vec<Act>, others: [Vec<Act>; 2]) -> (Result<Permission>, Vec<String>) {
        let (_dir, http) = http();
        let [second, third] = others;
        let (second, third) = (Fake::start(second).await, Fake::start(third).await);
        let peers = peers(&[&second.base, &third.base]).await;
        let server = Fake::start([vec![version()], before].concat()).await;
        let answer = ask(&http, &member(&server, &peers), false).await;
        (answer, asked(&server))
    }

    fn waits(answer: &Result<Permission>) -> &str {
        match answer {
            Ok(Permission::Wait(cause)) => cause,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn one_master_at_a_time_gets_permission_and_only_while_the_others_are_healthy() {
        let all_healthy = || vec![healthy(), healthy()];
        let inspected = ["GET /version", "POST /v3/cluster/member/list"];
        let took =
            ["POST /v3/kv/range", "POST /v3/lease/grant \"900\"", "POST /v3/kv/txn put m1 (member 1) \"7587869013464921875\""];
        let held = || Permission::Go(RenewalLease::Key(Api::V3, M1.to_owned()));
        let on = || ok("{}");
        let (answer, asked) = play(vec![on(), key(None), granted(), txn(true)], [all_healthy(), all_healthy()]).await;
        assert_eq!(
            (answer.unwrap(), asked),
            (held(), [&inspected[..], &took].concat().iter().map(|line| (*line).to_owned()).collect())
        );
        // What it held when it was cut off is its own, with a new life.
        let (answer, asked) = play(vec![on(), key(Some(M1)), granted(), txn(true)], [all_healthy(), all_healthy()]).await;
        assert_eq!((answer.unwrap(), asked.len()), (held(), 5));

        let (answer, asked) = play(vec![on(), key(Some("m3 (member 3)"))], [all_healthy(), all_healthy()]).await;
        assert!(waits(&answer).contains("m3") && asked.len() == 3, "{answer:?} {asked:?}");
        // Faster by a moment: looked at again.
        let (answer, _) =
            play(vec![on(), key(None), granted(), txn(false), key(Some("m2 (member 2)"))], [all_healthy(), all_healthy()]).await;
        assert!(waits(&answer).contains("m2"));
        // One that is down is found before the lock is asked for.
        let (answer, asked) = play(vec![], [vec![ok(r#"{"health":"false"}"#)], all_healthy()]).await;
        assert!(waits(&answer).ends_with("unhealthy: m2") && asked.is_empty(), "{answer:?} {asked:?}");
        // And one that went down meanwhile after it was got, which is given back.
        let gone = vec![healthy(), status("503 Service Unavailable", "")];
        let (answer, asked) = play(vec![on(), key(None), granted(), txn(true), txn(true)], [all_healthy(), gone]).await;
        assert!(waits(&answer).ends_with("m3") && asked.last().unwrap().ends_with("txn delete"), "{answer:?} {asked:?}");
        // Without an answer nobody knows what a restart costs.
        let (answer, _) =
            play(vec![on(), key(None), status("503 Service Unavailable", "no leader")], [all_healthy(), all_healthy()]).await;
        assert!(answer.unwrap_err().to_string().contains("the node's etcd"));
    }

    #[tokio::test]
    async fn a_single_member_asks_for_no_lock_and_the_keys_api_is_the_old_one_before_3() {
        let (_dir, http) = http();
        let alone = peers(&[]).await;
        assert_eq!(ask(&http, &member(&alone, &alone), false).await.unwrap(), Permission::Go(RenewalLease::Nothing));

        let other = Fake::start(vec![healthy(), healthy()]).await;
        let peers = peers(&[&other.base]).await;
        let absent = status("404 Not Found", r#"{"errorCode":100,"message":"Key not found"}"#);
        let made = status("201 Created", r#"{"action":"create"}"#);
        let old = ok(r#"{"etcdserver":"2.3.8","etcdcluster":"2.3.0"}"#);
        let server = Fake::start(vec![old, absent, made]).await;
        let Permission::Go(held) = ask(&http, &member(&server, &peers), false).await.unwrap() else { panic!() };
        let requests = server.requests();
        assert!(
            requests[2].starts_with("PUT /v2/keys/heat-node-agent/renewal?prevExist=false ") && requests[2].ends_with("&ttl=900"),
            "{requests:?}"
        );
        // It is given back by a member that is healthy again, and stays where that one is not.
        let gone = ok(r#"{"action":"compareAndDelete"}"#);
        let server = Fake::start(vec![healthy(), gone]).await;
        assert_eq!(release_lease(&http, &member(&server, &peers), &held).await, Ok(true));
        assert!(
            server.requests()[1].starts_with("DELETE /v2/keys/heat-node-agent/renewal?prevValue=m1"),
            "{:?}",
            server.requests()
        );
        let server = Fake::start(vec![status("503 Service Unavailable", "")]).await;
        let held = RenewalLease::Key(Api::V2, M1.to_owned());
        assert_eq!(release_lease(&http, &member(&server, &peers), &held).await, Ok(false));
        assert_eq!(server.requests().len(), 1);
    }

    /// Attack: a repair that would have healed the own member asked that member, and waited for ever.
    #[tokio::test]
    async fn a_member_that_does_not_answer_is_healed_where_that_costs_no_quorum() {
        let unhealthy = || ok(r#"{"health":"false"}"#);
        for (own, others, is_there, expected) in [
            ("own answers", [healthy as fn() -> Act, healthy], [true, true], false),
            ("", [healthy, healthy], [true, true], true),
            ("the others may need it", [healthy, healthy], [true, false], false),
            ("nobody has a quorum", [unhealthy, unhealthy], [true, false], true),
            ("nobody is there", [unhealthy, unhealthy], [false, false], true),
        ] {
            let (_dir, http) = http();
            let answers = if own == "own answers" { vec![healthy()] } else { vec![status("503 Service Unavailable", "{}")] };
            let (server, mut bases, mut fakes) = (Fake::start(answers).await, Vec::new(), Vec::new());
            for (other, is_there) in others.into_iter().zip(is_there) {
                let client = Fake::start(vec![other()]).await;
                let list = json!([{"id": 2, "peerURLs": ["http://192.0.2.2:2380"], "name": "m2", "clientURLs": [client.base]}]);
                let peer =
                    Fake::start(vec![if is_there { ok(list.to_string()) } else { status("503 Service Unavailable", "") }]).await;
                bases.push(peer.base.clone());
                fakes.extend([client, peer]);
            }
            let peers: Vec<&str> = bases.iter().map(String::as_str).collect();
            assert_eq!(may_restart_unhealthy(&http, &member(&server, &server), &peers).await, expected, "{own} {is_there:?}");
        }
    }

    #[tokio::test]
    async fn where_the_gateway_is_off_masters_take_turns_by_the_clock() {
        let off = status("404 Not Found", "404 page not found");
        let (answer, asked) = play(vec![off], [vec![healthy()], vec![healthy()]]).await;
        match answer.unwrap() {
            Permission::Go(held) => assert!(held.has_lease()),
            Permission::Wait(cause) => assert!(cause.contains("this one's turn begins at "), "{cause}"),
        }
        assert_eq!(asked.len(), 2, "no key is asked for: {asked:?}");
    }

    /// Else the masters of a cluster that was off for long would wait for each other, where all were cut off behind the renewal.
    #[test]
    fn a_member_whose_certificate_has_expired_is_no_reason_to_wait() {
        let silent = Error::transient("etcd does not answer");
        assert_eq!(Permission::without_answer(&silent), Permission::Wait("etcd does not answer".to_owned()));
        let expired = silent.with_connect_failure(ConnectFailure::Expired).context("asking etcd");
        assert_eq!(Permission::without_answer(&expired), Permission::Go(RenewalLease::Nothing));
    }

    #[test]
    fn no_two_turns_overlap_and_each_comes() {
        let (ids, minute) = (["30", "100", "7"], 60_000);
        let hour = 60 * minute;
        let mut begins = Vec::new();
        for second in 0..3 * 3600 {
            let now = Timestamp(1_772_366_400_000 + second * 1000);
            for own in ids {
                match turn(now, own, &ids) {
                    None => begins.push((own, now)),
                    Some(next) => {
                        assert!(next > now && next.0 - now.0 <= hour, "{own} {now:?} {next:?}");
                        assert_eq!(turn(next, own, &ids), None);
                    }
                }
            }
        }
        let longest = u64::try_from(RUN_LIMIT.as_millis()).unwrap();
        for (own, at) in &begins {
            let meets = |(other, then): &&(&str, Timestamp)| other != own && then.0 >= at.0 && then.0 <= at.0 + longest + minute;
            assert_eq!(begins.iter().find(meets), None, "{own} at {at:?}");
        }
        for own in ids {
            assert!(begins.iter().any(|(one, _)| *one == own));
        }
        assert_eq!(turn(Timestamp(2 * minute), "1", &["1"]), None);
    }
}
