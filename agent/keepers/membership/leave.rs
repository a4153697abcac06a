//! How the node's member leaves etcd's cluster: for `reset`, and for a deployment that Heat deletes.
//!
//! Only where more than half of those that stay are healthy, and under the lock of all who change or restart members. Which member goes is on
//! disk before: its own etcd ends once it is removed, and nobody else may know it any more.

use std::path::Path;

use super::{CHANGE_LIMIT, FILE_LIMIT, LIFE, busy, changed_too_late, wal};
use crate::converge::etcd::{Etcd, Members};
use crate::desired::{Desired, EtcdAccess, EtcdMember};
use crate::error::{Error, Result};
use crate::files::{Attributes, Tree};
use crate::http::Http;
use crate::keepers::certificates::quorum::{KEY, take, unhealthy};
use crate::kubernetes::ETCD_DATA;
use crate::network::flannel::Api;
use crate::storage::probe::DiskProbe;

/// In the state directory: the member that leaves, or has left.
const LEAVING: &str = "etcd-leaving";
/// As causes call them.
const OWN: &str = "the node's etcd";
const OTHER: &str = "another member of etcd";

/// The node's member of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Member {
    /// It has none, or has given it up.
    None,
    /// Nobody can be asked, for this cause.
    Unknown(String),
    /// It began to leave, and its etcd, which ends once it is removed, does not answer.
    Leaving(LeavingMember),
    /// It is one of these.
    Of(OwnMembership),
}

/// A member and its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnMembership {
    /// The member's id.
    pub(crate) id: String,
    /// Members that vote, this one among them.
    pub(crate) all: usize,
    /// The others that do not answer as healthy, by name.
    pub(crate) unhealthy: Vec<String>,
    /// Where the others serve clients.
    pub(crate) others: Vec<String>,
}

/// A member that leaves its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeavingMember {
    /// The member's id.
    pub(crate) id: String,
    /// Where the others serve clients: one of them removes it. None, once it has left.
    pub(crate) others: Vec<String>,
}

/// What is done about a member that cannot leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unable {
    /// The operator is told.
    Refuse,
    /// It stays in the list of members.
    Abandon,
    /// The only member stays, and nobody is told: its cluster ends with it.
    Alone,
}

/// The member that leaves; none where there is nothing to leave.
///
/// # Errors
/// If it must not.
pub(crate) fn leaves(member: &Member, unable: Unable) -> Result<Option<LeavingMember>> {
    let abandons = unable == Unable::Abandon;
    let membership = match member {
        Member::None => return Ok(None),
        Member::Unknown(_) | Member::Leaving(_) if abandons => return Ok(None),
        Member::Leaving(own) => return Ok(Some(own.clone())),
        Member::Unknown(cause) => {
            return Err(Error::refused(format!("etcd cannot be asked for its members: {cause}"))
                .rule("a node leaves etcd's cluster before it is taken out: a member that is gone without leaving counts against the quorum")
                .remedy(
                    "start etcd and try again; or `heat-node-agent reset --abandon-etcd`, and remove the member on another master: \
                     etcdctl member list, etcdctl member remove ID",
                ));
        }
        Member::Of(membership) => membership,
    };
    let left = membership.all.saturating_sub(1);
    let healthy = left.saturating_sub(membership.unhealthy.len());
    match left {
        // Nobody is left to be told.
        0 if unable != Unable::Refuse => Ok(None),
        0 => Err(Error::refused("this node has the only member of etcd: the cluster ends with it")
            .remedy("give --abandon-etcd if that is meant; with its volume kept, etcd's data is there for a node that is brought up again")),
        _ if healthy > left / 2 => Ok(Some(LeavingMember { id: membership.id.clone(), others: membership.others.clone() })),
        _ if abandons => Ok(None),
        _ => Err(Error::refused(format!(
            "etcd would lose its quorum: of the {left} other members {healthy} would be healthy (not healthy: {})",
            membership.unhealthy.join(", ")
        ))
        .rule("more than half of the members that remain must be healthy")
        .remedy("repair these members first; `heat-node-agent reset --abandon-etcd` goes on and leaves this node's member in the list of members")),
    }
}

/// What is to leave, and by whose word.
pub(crate) struct Departure<'a> {
    pub(crate) http: &'a Http,
    pub(crate) root: &'a Tree,
    pub(crate) state: &'a Tree,
    /// All that the node was asked to be.
    pub(crate) asked: &'a [Desired],
    pub(crate) own: &'a EtcdMember,
}

impl<'a> Departure<'a> {
    /// Of a node that was asked to have a member.
    pub(crate) fn of(http: &'a Http, root: &'a Tree, state: &'a Tree, asked: &'a [Desired]) -> Option<Self> {
        let own = asked.iter().find_map(|desired| desired.etcd.as_ref())?;
        Some(Self { http, root, state, asked, own })
    }

    /// What etcd says of the node's own member: itself, or else one of those that the parameters list.
    pub(crate) async fn look(&self) -> Result<Member> {
        if has_left(self.state)? {
            return Ok(Member::None);
        }
        let leaving = recorded(self.state)?;
        let listed = self.asked.iter().filter_map(|desired| desired.etcd_join.as_ref()).flat_map(|join| &join.members);
        let own = self.at(&self.own.access.endpoint, OWN);
        let mut cause = None;
        for peer in [&self.own.peer].into_iter().chain(listed.map(|(_, peer)| peer)) {
            let list = match self.at(peer, OWN).listed().await {
                Ok((_, list)) => list,
                Err(error) => {
                    cause = cause.or(Some(error.to_string()));
                    continue;
                }
            };
            let asked = list.iter().find(|member| member.peers.contains(peer)).cloned();
            if let Some(members) = Members::of(list, &self.own.peer) {
                return self.whose(&own, members).await;
            }
            cause = cause.or_else(|| Some(format!("the one at {peer} does not list {}", self.own.peer)));
            for url in asked.iter().flat_map(|member| &member.clients) {
                // Who reaches a leader knows who was removed.
                if leaving.is_none() && own.is_healthy(url).await {
                    return Ok(Member::None);
                }
            }
        }
        Ok(match (leaving, cause) {
            (Some(leaving), _) => Member::Leaving(leaving),
            (None, Some(cause)) if self.may_have_data() => Member::Unknown(cause),
            (None, _) => Member::None,
        })
    }

    /// Whether the member with the own address is this node's: a server that was replaced may hear late that it is deleted.
    async fn whose(&self, own: &Etcd, members: Members) -> Result<Member> {
        let log = Path::new(ETCD_DATA).join("member/wal");
        let is_own = self.root.facts(&log)?.is_some()
            && self.root.list(&log)?.iter().any(|name| name.to_string_lossy().ends_with(".wal"))
            && wal::ids(self.root, &log).is_none_or(|ids| ids.member.to_string() == members.own);
        for url in members.all.iter().filter(|member| !is_own && member.id == members.own).flat_map(|member| &member.urls) {
            if own.is_healthy(url).await {
                return Ok(Member::None);
            }
        }
        Ok(Member::Of(OwnMembership {
            id: members.own.clone(),
            all: members.all.len(),
            unhealthy: unhealthy(own, &members).await,
            others: members.others().flat_map(|member| &member.urls).cloned().collect(),
        }))
    }

    fn may_have_data(&self) -> bool {
        let has_data = self.root.facts(Path::new(ETCD_DATA)).ok().flatten().is_some();
        let mounts = DiskProbe::machine().read_mounts().unwrap_or_default();
        has_data
            || self.asked.iter().flat_map(|desired| &desired.volumes).any(|volume| {
                Path::new(ETCD_DATA).starts_with(&volume.mount_point)
                    && !mounts.iter().any(|mount| mount.point == volume.mount_point)
            })
    }

    /// Has the member leave; true if it has.
    ///
    /// # Errors
    /// If it must not, or nobody removes it. It may have left all the same, where [`Self::look`] does not find it among the members.
    pub(crate) async fn leave(&self, unable: Unable) -> Result<bool> {
        let Some(leaving) = self.leaving(unable).await? else { return Ok(false) };
        let holder = format!("{} (leaves etcd)", self.own.peer);
        let lock = self.lock(&leaving, &holder).await?;
        // Who was asked through the lock knows of all that was done under it before.
        let removing = async {
            let Some(leaving) = self.leaving(unable).await? else { return Ok(false) };
            record(self.state, &leaving)?;
            self.remove(&leaving).await.map(|()| true)
        };
        let left = self.http.clock().limit(CHANGE_LIMIT, removing).await;
        for url in &leaving.others {
            // One that cannot be given back ends with its life.
            if let Some(api) = lock
                && self.at(url, OTHER).remove(api, KEY, &holder).await.is_ok()
            {
                break;
            }
        }
        left.ok_or_else(changed_too_late)?
    }

    async fn leaving(&self, unable: Unable) -> Result<Option<LeavingMember>> {
        match self.look().await? {
            // Nobody counts on a member that has no others, in whatever state it is.
            Member::Unknown(_) if unable == Unable::Alone && self.own.is_single => Ok(None),
            member => leaves(&member, unable),
        }
    }

    /// Takes the lock where there are keys: by the own member, or one of the others where that does not answer.
    async fn lock(&self, leaving: &LeavingMember, holder: &str) -> Result<Option<Api>> {
        for url in [&self.own.access.endpoint].into_iter().chain(&leaving.others) {
            let etcd = self.at(url, OTHER);
            if etcd.member_is_healthy().await && etcd.has_keys().await? {
                let api = etcd.api().await?;
                return take(&etcd, api, holder, LIFE).await?.map_or(Ok(Some(api)), |other| Err(busy(&other)));
            }
        }
        Ok(None)
    }

    /// Has a healthy one of the other members remove it, and asks its own etcd only if none does: that one ends as soon as it is removed,
    /// perhaps before it has answered (etcd answers 503, "server stopped").
    async fn remove(&self, leaving: &LeavingMember) -> Result<()> {
        let own = self.at(&self.own.access.endpoint, OWN);
        for url in &leaving.others {
            if own.is_healthy(url).await && self.at(url, OTHER).remove_member(&leaving.id).await.is_ok() {
                return Ok(());
            }
        }
        own.remove_member(&leaving.id).await
    }

    fn at(&self, endpoint: &str, whose: &'static str) -> Etcd {
        let access = EtcdAccess { endpoint: endpoint.to_owned(), identity: self.own.access.identity.clone() };
        Etcd::new(self.http, &access, whose)
    }

    /// Records that it has left, and that its etcd does not run any more.
    ///
    /// # Errors
    /// If that cannot be written.
    pub(crate) fn end(&self) -> Result<()> {
        match recorded(self.state)? {
            Some(leaving) => record(self.state, &LeavingMember { others: Vec::new(), ..leaving }),
            None => Ok(()),
        }
    }
}

/// Whether it has left.
///
/// # Errors
/// If the record cannot be read.
pub(crate) fn has_left(state: &Tree) -> Result<bool> {
    Ok(recorded(state)?.is_some_and(|leaving| leaving.others.is_empty()))
}

/// The member that leaves, or has left: its id before the URLs of the others, a line each.
fn recorded(state: &Tree) -> Result<Option<LeavingMember>> {
    let record = state.read(Path::new(LEAVING), FILE_LIMIT)?;
    let mut lines =
        record.iter().flat_map(|bytes| bytes.split(|byte| *byte == b'\n')).map(|line| String::from_utf8_lossy(line).into_owned());
    Ok(lines.next().map(|id| LeavingMember { id, others: lines.collect() }))
}

fn record(state: &Tree, leaving: &LeavingMember) -> Result<()> {
    let record = [std::slice::from_ref(&leaving.id), &leaving.others].concat().join("\n");
    state.write(Path::new(LEAVING), record.as_bytes(), Attributes::mode(0o600))
}

/// What is asked of the node from here on is a member of its own.
///
/// # Errors
/// If the record cannot be removed.
pub(crate) fn forget(state: &Tree) -> Result<()> {
    state.remove(Path::new(LEAVING)).map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use serde_json::{Value, json};

    use crate::clock::Clock;
    use crate::http::Tls;
    use crate::http::fake::{Act, Fake, ok, status};

    /// A node whose etcd serves peers and clients at one address, and one other member.
    struct Stage {
        dir: tempfile::TempDir,
        own: Fake,
        other: Fake,
    }

    const OWN_ID: &str = "1";

    impl Stage {
        async fn new() -> Self {
            Self { dir: tempfile::tempdir().unwrap(), own: Fake::start(vec![]).await, other: Fake::start(vec![]).await }
        }

        fn state(&self) -> Tree {
            Tree::open(self.dir.path()).unwrap()
        }

        /// The members, of which the first so many are listed: this one, the other one, dead ones.
        fn list(&self, ids: std::ops::RangeInclusive<u64>) -> Act {
            let at = |id: u64| match id {
                1 => self.own.base.clone(),
                2 => self.other.base.clone(),
                _ => "http://127.0.0.1:1".to_owned(),
            };
            let one = |id: u64| json!({"id": id, "name": format!("m{id}"), "peerURLs": [at(id)], "clientURLs": [at(id)]});
            ok(Value::from(ids.map(one).collect::<Vec<_>>()).to_string())
        }

        /// With a log of which nothing is known.
        async fn leave(&self, unable: Unable) -> Result<bool> {
            let log = Path::new(ETCD_DATA).join("member/wal");
            self.state().create_dir_all(&log, Attributes::mode(0o700)).unwrap();
            self.state().write(&log.join("0-0.wal"), b"?", Attributes::mode(0o600)).unwrap();
            self.leave_as_is(unable).await
        }

        async fn leave_as_is(&self, unable: Unable) -> Result<bool> {
            self.leave_of(unable, false).await
        }

        async fn leave_of(&self, unable: Unable, is_single: bool) -> Result<bool> {
            let (root, state) = (Arc::new(self.state()), self.state());
            let http = Http::new(Tls::default(), Arc::clone(&root), Clock::system());
            let access = EtcdAccess { endpoint: self.own.base.clone(), identity: None };
            let own = EtcdMember { access, peer: self.own.base.clone(), is_single };
            let members = vec![("m1".to_owned(), self.own.base.clone()), ("m2".to_owned(), self.other.base.clone())];
            let join = Some(Box::new(crate::desired::EtcdJoin::first_of(members)));
            let asked = [Desired { etcd: Some(own), etcd_join: join, ..Desired::default() }];
            let departure = Departure::of(&http, &root, &state, &asked).unwrap();
            let left = departure.leave(unable).await;
            if left.as_ref().is_ok_and(|left| *left) {
                assert!(!has_left(&state).unwrap());
                departure.end().unwrap();
                assert!(has_left(&state).unwrap());
                assert_eq!(departure.look().await.unwrap(), Member::None);
            }
            left
        }

        fn asked(&self) -> [Vec<String>; 2] {
            let path = |request: &String| request.split([' ', '?']).nth(1).unwrap_or_default().to_owned();
            [&self.own, &self.other].map(|server| server.requests().iter().map(path).collect())
        }
    }

    fn healthy() -> Act {
        ok(r#"{"health": "true"}"#)
    }

    fn version() -> Act {
        ok(r#"{"etcdserver": "3.4.23"}"#)
    }

    /// Answers to whoever takes the lock: it is healthy and has keys, nobody holds the lock, or this one.
    fn lock(holder: Option<&str>) -> Vec<Act> {
        use base64::Engine as _;
        let base64 = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let kvs: Vec<Value> =
            holder.iter().map(|holder| json!({"key": base64(KEY), "mod_revision": "6", "value": base64(holder)})).collect();
        vec![healthy(), version(), ok("{}"), ok(json!({"kvs": kvs}).to_string()), ok(r#"{"ID":"75","TTL":"120"}"#), done()]
    }

    fn done() -> Act {
        ok(r#"{"succeeded":true}"#)
    }

    const MEMBERS: &str = "/members";
    const HEALTH: &str = "/health";
    const TXN: &str = "/v3/kv/txn";

    #[tokio::test]
    async fn it_leaves_under_the_lock_by_what_is_found_there() {
        let stage = Stage::new().await;
        stage.own.play([vec![stage.list(1..=2)], lock(None), vec![stage.list(1..=2)]].concat());
        stage.other.play(vec![healthy(), healthy(), healthy(), version(), ok("{}"), version(), done()]);
        assert!(stage.leave(Unable::Alone).await.unwrap());
        let [own, other] = stage.asked();
        let keys = ["/v3/cluster/member/list", "/v3/kv/range", "/v3/lease/grant", TXN];
        assert_eq!(own, [&[MEMBERS, HEALTH, "/version"][..], &keys, &[MEMBERS]].concat());
        assert_eq!(other, [HEALTH, HEALTH, HEALTH, "/version", REMOVE, "/version", TXN]);
        // Once it has left nobody is asked.
        assert!(!stage.leave(Unable::Alone).await.unwrap());
        assert_eq!(stage.asked()[0].len(), own.len());
        forget(&stage.state()).unwrap();
        assert!(!has_left(&stage.state()).unwrap());
    }

    #[tokio::test]
    async fn it_stays_where_somebody_else_has_the_lock_or_the_quorum_would_go() {
        let stage = Stage::new().await;
        let why = |left: Result<bool>| left.unwrap_err().to_string();
        stage.own.play([vec![stage.list(1..=2)], lock(Some("m2 (joins etcd)"))].concat());
        stage.other.play(vec![healthy()]);
        assert!(why(stage.leave(Unable::Alone).await).contains("m2 (joins etcd) changes or restarts its member"));
        // Seen before the lock is asked for, and under it: somebody died in between. It is given back.
        stage.own.play(vec![stage.list(1..=3)]);
        let before = stage.asked()[0].len();
        assert!(why(stage.leave(Unable::Alone).await).contains("lose its quorum: of the 2 other members 1 would be healthy"));
        assert_eq!(stage.asked()[0].len(), before + 1);
        stage.own.play([vec![stage.list(1..=2)], lock(None), vec![stage.list(1..=3)]].concat());
        stage.other.play(vec![healthy(), healthy(), version(), done()]);
        assert!(why(stage.leave(Unable::Alone).await).contains("lose its quorum"));
        assert_eq!(stage.asked()[1].last().unwrap(), TXN);
        assert!(recorded(&stage.state()).unwrap().is_none(), "nothing is begun");
        // Whoever abandons it leaves it where it is.
        stage.own.play(vec![stage.list(1..=3)]);
        assert!(!stage.leave(Unable::Abandon).await.unwrap());
        // The last one stays; a reset asks for a word.
        stage.own.play(vec![stage.list(1..=1)]);
        assert!(!stage.leave(Unable::Alone).await.unwrap());
        assert!(why(stage.leave(Unable::Refuse).await).contains("the only member"));
        // Three at once: the others have gone while this one waited for the lock.
        stage.own.play([vec![stage.list(1..=2)], lock(None), vec![stage.list(1..=1)]].concat());
        stage.other.play(vec![healthy(), version(), done()]);
        assert!(!stage.leave(Unable::Alone).await.unwrap());
    }

    /// Attack: a server whose address and volume another one has heard that its deployment was deleted, and took the other one's member out.
    #[tokio::test]
    async fn a_member_that_runs_elsewhere_is_not_this_nodes() {
        let stage = Stage::new().await;
        let log = Path::new(ETCD_DATA).join("member/wal");
        stage.own.play(vec![stage.list(1..=2), healthy(), stage.list(1..=2), healthy()]);
        stage.state().create_dir_all(&log, Attributes::mode(0o700)).unwrap();
        // The data of another member, which nobody lists.
        stage.state().write(&log.join("0-0.wal"), wal::tests::LOG, Attributes::mode(0o600)).unwrap();
        assert!(!stage.leave_as_is(Unable::Alone).await.unwrap());
        stage.state().remove_dir_all(&log).unwrap();
        assert!(!stage.leave_as_is(Unable::Alone).await.unwrap());
        assert!(stage.asked()[1].is_empty() && recorded(&stage.state()).unwrap().is_none());
    }

    /// Killed behind the removal, its etcd has ended; or its etcd never came up.
    #[tokio::test]
    async fn a_member_whose_etcd_is_gone_leaves_by_the_others() {
        let stage = Stage::new().await;
        let gone = || status("404 Not Found", r#"{"error": "etcdserver: member not found", "code": 5}"#);
        let dead = || vec![Act::Close];
        // Its place is known to the other, which is healthy.
        stage.own.play(dead());
        let look = || vec![stage.list(1..=2), healthy()];
        stage.other.play([look(), lock(None), look(), vec![healthy(), version(), ok("{}"), version(), done()]].concat());
        assert!(stage.leave(Unable::Alone).await.unwrap());
        // The record of an earlier try, and nobody lists it any more.
        record(&stage.state(), &LeavingMember { id: OWN_ID.into(), others: vec![stage.other.base.clone()] }).unwrap();
        let look = || vec![stage.list(2..=2)];
        stage.other.play([look(), lock(None), look(), vec![healthy(), version(), gone(), version(), done()]].concat());
        assert!(stage.leave(Unable::Alone).await.unwrap());
        // Without a record it never was one; and where nobody says so, nothing is known.
        forget(&stage.state()).unwrap();
        stage.other.play(vec![stage.list(2..=2), healthy()]);
        assert!(!stage.leave(Unable::Alone).await.unwrap());
        stage.other.play(vec![stage.list(2..=2), ok(r#"{"health": "false"}"#)]);
        assert!(stage.leave(Unable::Alone).await.unwrap_err().to_string().contains("cannot be asked for its members"));
        // Of the only one, too, but nobody waits for it.
        assert!(!stage.leave_of(Unable::Alone, true).await.unwrap());
        assert!(stage.leave_of(Unable::Refuse, true).await.is_err());
    }

    async fn removed_by(others: Vec<Vec<Act>>, own: Vec<Act>) -> (bool, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let root = Arc::new(Tree::open(dir.path()).unwrap());
        let http = Http::new(Tls::default(), Arc::clone(&root), Clock::system());
        let mut servers = Vec::new();
        for acts in others {
            servers.push(Fake::start(acts).await);
        }
        let leaving = LeavingMember { id: "77".into(), others: servers.iter().map(|server| server.base.clone()).collect() };
        servers.push(Fake::start(own).await);
        let access = EtcdAccess { endpoint: servers.last().unwrap().base.clone(), identity: None };
        let own = EtcdMember { access, peer: String::new(), is_single: false };
        let result = Departure { http: &http, root: &root, state: &root, asked: &[], own: &own }.remove(&leaving).await;
        let path = |request: &String| request.split([' ', '?']).nth(1).unwrap_or_default().to_owned();
        let asked = servers.iter().zip(["a", "b", "own"].into_iter().skip(3 - servers.len())).flat_map(|(server, name)| {
            server.requests().iter().map(|request| format!("{name} {}", path(request))).collect::<Vec<_>>()
        });
        (result.is_ok(), asked.collect())
    }

    const REMOVE: &str = "/v3/cluster/member/remove";

    #[tokio::test]
    async fn a_healthy_other_member_removes_it_and_its_own_only_if_none_does() {
        let stopped = || status("503 Service Unavailable", r#"{"error": "etcdserver: server stopped", "code": 14}"#);
        let gone = || status("404 Not Found", r#"{"error": "etcdserver: member not found", "code": 5}"#);
        let sick = || vec![ok(r#"{"health": "false"}"#)];
        let paths =
            |words: &str| words.split_whitespace().collect::<Vec<_>>().chunks(2).map(|pair| pair.join(" ")).collect::<Vec<_>>();
        // The first that is healthy, and nobody else.
        let first = removed_by(vec![vec![healthy(), version(), ok("{}")], vec![]], vec![]).await;
        assert_eq!(first, (true, paths(&format!("a /health a /version a {REMOVE}"))));
        let second = removed_by(vec![sick(), vec![healthy(), version(), ok("{}")]], vec![]).await;
        assert_eq!(second, (true, paths(&format!("a /health b /health b /version b {REMOVE}"))));
        // One that was removed by a reset that was cut off is removed.
        let again = removed_by(vec![sick(), vec![healthy(), version(), gone()]], vec![]).await;
        assert_eq!(again, (true, paths(&format!("a /health b /health b /version b {REMOVE}"))));
        // What one refuses the next does, and the own at last.
        let own = removed_by(vec![vec![healthy(), version(), stopped()], sick()], vec![version(), ok("{}")]).await;
        assert_eq!(own, (true, paths(&format!("a /health a /version a {REMOVE} b /health own /version own {REMOVE}"))));
        let nobody = removed_by(vec![sick(), sick()], vec![version(), stopped()]).await;
        assert!(!nobody.0, "{nobody:?}");
    }
}
