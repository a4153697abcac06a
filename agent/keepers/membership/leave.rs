//! How the node's member leaves etcd's cluster: for `reset`, and for a deployment that Heat deletes.
//!
//! Only where more than half of those that stay are healthy, and under the lock of all who change or restart members. Which member goes is on
//! disk before: its own etcd ends once it is removed, and nobody else may know it any more. Where etcd serves no API that the agent speaks
//! its own tool removes the member, without a lock: etcd itself refuses what would cost the quorum.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::address::is_same;
use super::{CHANGE_LIMIT, FILE_LIMIT, LIFE, busy, changed_too_late, data, knows_cluster, move_aside, put_aside};
use crate::converge::etcd::{Etcd, ListedMember, Members};
use crate::desired::{Desired, EtcdAccess, EtcdMember, Volume};
use crate::error::{Error, Result};
use crate::files::{Attributes, Tree};
use crate::http::Http;
use crate::keepers::certificates::quorum::{KEY, take, unhealthy};
use crate::keepers::etcd_snapshots::client_arguments;
use crate::kubernetes::ETCD_DATA;
use crate::network::flannel::Api;
use crate::programs::{Job, Programs};
use crate::report::text::{escaped, shortened};
use crate::storage::probe::DiskProbe;

/// In the state directory: the member that leaves, or has left.
const LEAVING: &str = "etcd-leaving";
/// Below it in etcd, by id: the members that are to leave and cannot, each for so long.
const LEAVERS: &str = "/heat-node-agent/etcd-leaves";
const LEAVER_LIFE: Duration = Duration::from_mins(3);
/// How long etcd's own tool may take.
const TOOL_LIMIT_MS: u64 = 15 * 1000;
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
    pub(crate) id: u64,
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
    pub(crate) id: u64,
    /// Where the others serve clients: one of them removes it. None, once it has left.
    pub(crate) others: Vec<String>,
}

/// What is done about a member that cannot leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnUnable {
    /// The operator hears of it.
    Refuse,
    /// It stays in the list of members.
    Abandon,
    /// The only member stays, and nobody hears of it: its cluster ends with it.
    Alone,
}

/// The member that leaves; none where there is nothing to leave.
///
/// # Errors
/// If it must not.
pub(crate) fn plan_departure(member: &Member, on_unable: OnUnable) -> Result<Option<LeavingMember>> {
    let abandons = on_unable == OnUnable::Abandon;
    let membership = match member {
        Member::None => return Ok(None),
        Member::Unknown(_) | Member::Leaving(_) if abandons => return Ok(None),
        Member::Leaving(own) => return Ok(Some(own.clone())),
        Member::Unknown(cause) => {
            return Err(Error::refused(format!("cannot list etcd's members: {cause}"))
                .rule("a node must leave etcd's cluster before it is decommissioned: a member that disappears still counts toward the quorum")
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
        0 if on_unable != OnUnable::Refuse => Ok(None),
        0 => Err(Error::refused("this node has the only member of etcd: the cluster would be lost with it")
            .remedy("pass --abandon-etcd to confirm; if its volume is kept, a node that is brought up again has the data")),
        _ if healthy > left / 2 => Ok(Some(LeavingMember { id: membership.id, others: membership.others.clone() })),
        _ if abandons => Ok(None),
        _ => Err(Error::refused(format!(
            "etcd would lose its quorum: of the {left} other members {healthy} would be healthy (not healthy: {})",
            membership.unhealthy.join(", ")
        ))
        .rule("more than half of the members that remain must be healthy")
        .remedy("repair these members first; `heat-node-agent reset --abandon-etcd` continues and leaves this node's member in the list of members")),
    }
}

/// What is to leave, and by whose word.
pub(crate) struct EtcdDeparture<'a> {
    pub(crate) http: &'a Http,
    pub(crate) root: &'a Tree,
    pub(crate) state: &'a Tree,
    pub(crate) programs: &'a Programs,
    /// All that the node was asked to be.
    pub(crate) asked: &'a [Desired],
    pub(crate) own: &'a EtcdMember,
}

impl<'a> EtcdDeparture<'a> {
    /// Of a node that was asked to have a member.
    pub(crate) fn of(
        http: &'a Http,
        root: &'a Tree,
        state: &'a Tree,
        programs: &'a Programs,
        asked: &'a [Desired],
    ) -> Option<Self> {
        let own = asked.iter().find_map(|desired| desired.etcd.as_ref())?;
        Some(Self { http, root, state, programs, asked, own })
    }

    /// What etcd says of the node's own member: itself, or else one of those that the parameters list. Where these show that it was
    /// removed, that is recorded at once: they may not be there to be asked again.
    pub(crate) async fn look(&self) -> Member {
        self.find().await.unwrap_or_else(|error| Member::Unknown(error.to_string()))
    }

    async fn find(&self) -> Result<Member> {
        let leaving = self.recorded_for_own_data()?;
        if leaving.as_ref().is_some_and(|leaving| leaving.others.is_empty()) {
            return Ok(Member::None);
        }
        let data = data(self.root, ETCD_DATA)?;
        let joins = || self.asked.iter().filter_map(|desired| desired.etcd_join.as_ref());
        let listed = joins().flat_map(|join| &join.members).map(|(_, peer)| peer);
        let own = self.at(&self.own.access.endpoint, OWN);
        let mut cause = None;
        for peer in [&self.own.peer].into_iter().chain(listed) {
            let list = match self.at_peer(peer).listed().await {
                Ok((_, list)) => list,
                Err(error) => {
                    cause = cause.or(Some(error.to_string()));
                    continue;
                }
            };
            let at = |place: &str| list.iter().find(|one| one.peers.iter().any(|url| is_same(url, place)));
            let by_id = data.member().and_then(|id| list.iter().find(|one| one.id == id));
            // Whose data has another id is not the one at this address.
            let at_own = || at(&self.own.peer).filter(|_| data.member().is_none());
            if let Some(one) = by_id.or_else(at_own) {
                // A server that was replaced may hear late that it is deleted.
                let is_own = by_id.is_some() || (data.is_present() && data.member().is_none());
                if !is_own && is_any_healthy(&own, &one.clients).await {
                    return Ok(Member::None);
                }
                let id = one.id;
                return Ok(self.membership(&own, id, list).await);
            }
            cause = cause.or_else(|| Some(format!("the one at {peer} does not list {}", self.own.peer)));
            // Who reaches a leader knows who was removed.
            if let Some(one) = at(peer)
                && is_any_healthy(&own, &one.clients).await
            {
                return self.end().map(|()| Member::None);
            }
        }
        // A volume that is not there was never needed where etcd never began.
        let may_have_data = || -> Result<bool> {
            let is_away = || is_away(self.asked.iter().flat_map(|desired| &desired.volumes));
            let knows_cluster = || joins().all(|join| knows_cluster(self.root, join).unwrap_or(true));
            Ok(data.is_present() || (is_away()? && knows_cluster()))
        };
        Ok(match (leaving, cause) {
            (Some(leaving), _) => Member::Leaving(leaving),
            (None, Some(cause)) if may_have_data()? => Member::Unknown(cause),
            (None, _) => Member::None,
        })
    }

    async fn membership(&self, own: &Etcd, id: u64, list: Vec<ListedMember>) -> Member {
        let members = Members::of(list, id);
        Member::Of(OwnMembership {
            id,
            all: members.all.len(),
            unhealthy: unhealthy(own, &members).await,
            others: members.others().flat_map(|member| &member.urls).cloned().collect(),
        })
    }

    /// Whether the cluster loses something with this member: it reaches a leader.
    pub(crate) async fn is_healthy(&self) -> bool {
        self.at(&self.own.access.endpoint, OWN).member_is_healthy().await
    }

    /// Whether all members that are healthy are to leave: nobody remains who needs a quorum. Says so of this one first.
    ///
    /// # Errors
    /// If etcd cannot be asked.
    pub(crate) async fn all_leave(&self) -> Result<bool> {
        let members = self.at_peer(&self.own.peer).members(&self.own.peer).await?;
        let own = self.at(&self.own.access.endpoint, OWN);
        let (api, key) = (own.api().await?, format!("{LEAVERS}/{}", members.own));
        let before = own.get(api, &key).await?;
        own.put_for(api, &key, &members.own, before.as_ref(), Some(LEAVER_LIFE)).await?;
        let leavers = own.list(api, LEAVERS).await?;
        for member in members.others().filter(|member| !leavers.iter().any(|entry| entry.value == member.id)) {
            if is_any_healthy(&own, &member.urls).await {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Has the member leave; true if it has. Whoever abandons it goes on whatever fails.
    ///
    /// # Errors
    /// If it must not, or nobody removes it. It may have left all the same, where [`Self::look`] does not find it among the members.
    pub(crate) async fn leave(&self, on_unable: OnUnable) -> Result<bool> {
        match self.leave_if_able(on_unable).await {
            Err(_) if on_unable == OnUnable::Abandon => Ok(false),
            left => left,
        }
    }

    async fn leave_if_able(&self, on_unable: OnUnable) -> Result<bool> {
        let Some(leaving) = self.leaving(on_unable).await? else { return Ok(false) };
        // As the one of a renewal, which this node may have been cut off in, ends.
        let holder = format!("{} (member {})", self.own.peer, leaving.id);
        let Some(api) = self.lock(&leaving, &holder).await? else {
            return self.remove_by_tool(&leaving).await.map(|()| true);
        };
        // Who was asked through the lock knows of all that was done under it before.
        let removing = async {
            let Some(leaving) = self.leaving(on_unable).await? else { return Ok(false) };
            record(self.state, &leaving)?;
            self.remove(&leaving).await.map(|()| true)
        };
        let left = self.http.clock().limit(CHANGE_LIMIT, removing).await;
        for url in &leaving.others {
            // One that cannot be given back ends with its life.
            if self.at(url, OTHER).remove(api, KEY, &holder).await.is_ok() {
                break;
            }
        }
        left.ok_or_else(changed_too_late)?
    }

    async fn leaving(&self, on_unable: OnUnable) -> Result<Option<LeavingMember>> {
        match self.look().await {
            // Nobody counts on a member that has no others, in whatever state it is.
            Member::Unknown(_) if on_unable == OnUnable::Alone && self.own.is_single => Ok(None),
            member => plan_departure(&member, on_unable),
        }
    }

    /// Takes the lock, by the own member, or one of the others where that is not healthy; none where etcd serves no API for it.
    async fn lock(&self, leaving: &LeavingMember, holder: &str) -> Result<Option<Api>> {
        let mut failed = None;
        for url in [&self.own.access.endpoint].into_iter().chain(&leaving.others) {
            let etcd = self.at(url, OTHER);
            if etcd.member_is_healthy().await {
                if !etcd.has_keys().await? {
                    return Ok(None);
                }
                let api = etcd.api().await?;
                match take(&etcd, api, holder, LIFE).await {
                    Ok(other) => return other.map_or(Ok(Some(api)), |other| Err(busy(&other))),
                    // A learner locks nothing itself.
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
        }
        let nobody = || Error::refused("no member of etcd is healthy").remedy("check `journalctl -u etcd` on the other masters");
        Err(failed.unwrap_or_else(nobody))
    }

    /// Has a healthy one of the other members remove it, and asks its own etcd only if none does: that one ends as soon as it is removed,
    /// perhaps before it has answered (etcd answers 503, "server stopped").
    async fn remove(&self, leaving: &LeavingMember) -> Result<()> {
        let own = self.at(&self.own.access.endpoint, OWN);
        for url in &leaving.others {
            if own.is_healthy(url).await && self.at(url, OTHER).remove_member(&leaving.id.to_string()).await.is_ok() {
                return Ok(());
            }
        }
        own.remove_member(&leaving.id.to_string()).await
    }

    async fn remove_by_tool(&self, leaving: &LeavingMember) -> Result<()> {
        let mut argv = vec!["etcdctl".to_owned(), format!("--endpoints={}", leaving.others.join(","))];
        argv.extend(client_arguments(self.own.access.identity.as_ref()));
        argv.extend(["member".to_owned(), "remove".to_owned(), format!("{:x}", leaving.id)]);
        let by_hand = format!("on another master: `ETCDCTL_API=3 {}`", argv.join(" "));
        record(self.state, leaving)?;
        let environment = BTreeMap::from([("ETCDCTL_API".to_owned(), "3".to_owned())]);
        let job = Job { argv, environment, time_limit_ms: Some(TOOL_LIMIT_MS), ..Job::default() };
        let lost = || Error::transient("etcdctl ended without a result");
        let ran = self.programs.run_anew("program-etcdctl", &job).await?.ok_or_else(lost)?;
        if let Some(why) = &ran.not_started {
            forget(self.state)?;
            return Err(Error::permanent(format!("etcd serves no API to the agent, and etcdctl cannot be run: {why}"))
                .rule("where etcd accepts clients by name, only etcdctl can change its members")
                .remedy(by_hand));
        }
        if ran.status == 0 || ran.stderr.contains("member not found") {
            return Ok(());
        }
        let said = shortened(&escaped(ran.stderr.trim()), 200);
        Err(Error::refused(format!("etcdctl could not remove the member: {said}")).remedy(by_hand))
    }

    fn at(&self, endpoint: &str, whose: &'static str) -> Etcd {
        let access = EtcdAccess { endpoint: endpoint.to_owned(), identity: self.own.access.identity.clone() };
        Etcd::new(self.http, &access, whose)
    }

    fn at_peer(&self, peer: &str) -> Etcd {
        let access = EtcdAccess { endpoint: peer.to_owned(), ..self.own.as_peer() };
        Etcd::new(self.http, &access, OWN)
    }

    /// The member that leaves, or has left. By its data the node may be another one since.
    fn recorded_for_own_data(&self) -> Result<Option<LeavingMember>> {
        let own = data(self.root, ETCD_DATA)?.member();
        Ok(recorded(self.state)?.filter(|leaving| own.is_none_or(|own| own == leaving.id)))
    }

    /// Whether it has left.
    ///
    /// # Errors
    /// If the record cannot be read.
    pub(crate) fn has_left(&self) -> Result<bool> {
        Ok(self.recorded_for_own_data()?.is_some_and(|leaving| leaving.others.is_empty()))
    }

    /// Records that it has left.
    ///
    /// # Errors
    /// If that cannot be written.
    pub(crate) fn end(&self) -> Result<()> {
        match self.recorded_for_own_data()? {
            Some(leaving) => record(self.state, &LeavingMember { others: Vec::new(), ..leaving }),
            None => Ok(()),
        }
    }
}

async fn is_any_healthy(etcd: &Etcd, urls: &[String]) -> bool {
    for url in urls {
        if etcd.is_healthy(url).await {
            return true;
        }
    }
    false
}

/// The id before the URLs of the others, a line each.
fn recorded(state: &Tree) -> Result<Option<LeavingMember>> {
    let record = state.read(Path::new(LEAVING), FILE_LIMIT)?.unwrap_or_default();
    let record = String::from_utf8_lossy(&record);
    let mut lines = record.lines().map(str::to_owned);
    let id = lines.next().and_then(|id| id.parse().ok());
    Ok(id.map(|id| LeavingMember { id, others: lines.collect() }))
}

/// Whether a member of this node has left, and nothing was asked of the node since.
///
/// # Errors
/// If the record cannot be read.
pub(crate) fn any_member_left(state: &Tree) -> Result<bool> {
    Ok(recorded(state)?.is_some_and(|leaving| leaving.others.is_empty()))
}

fn record(state: &Tree, leaving: &LeavingMember) -> Result<()> {
    let record = [&[leaving.id.to_string()], &leaving.others[..]].concat().join("\n");
    state.write(Path::new(LEAVING), record.as_bytes(), Attributes::mode(0o600))
}

/// What is asked of the node from here on is a member of its own. The data of the one that has left never starts again: whether the others
/// can be asked then is not known. True if there was such data, which has been moved. While its volume is not there the record is kept.
///
/// # Errors
/// If the data cannot be moved, or the record not be removed.
pub(crate) fn come_back(root: &Tree, state: &Tree, desired: &Desired) -> Result<bool> {
    let left = recorded(state)?.filter(|leaving| leaving.others.is_empty()).map(|leaving| leaving.id);
    let Some(left) = left else { return forget(state).map(|()| false) };
    let is_moved = data(root, ETCD_DATA)?.member() == Some(left);
    if is_moved {
        match desired.etcd_join.as_deref() {
            Some(join) => put_aside(root, join)?,
            None => move_aside(root, ETCD_DATA)?,
        }
    } else if is_away(&desired.volumes)? {
        return Ok(false);
    }
    forget(state).map(|()| is_moved)
}

/// Whether a volume that etcd's data is on is not mounted. The mounts are read only where there is such a volume.
///
/// # Errors
/// If they cannot be read: that is not the same as a volume that is not mounted.
pub(super) fn is_away<'a>(volumes: impl IntoIterator<Item = &'a Volume>) -> Result<bool> {
    is_away_by(&DiskProbe::machine(), volumes)
}

fn is_away_by<'a>(probe: &DiskProbe, volumes: impl IntoIterator<Item = &'a Volume>) -> Result<bool> {
    let mut volumes = volumes.into_iter().filter(|volume| Path::new(ETCD_DATA).starts_with(&volume.mount_point)).peekable();
    if volumes.peek().is_none() {
        return Ok(false);
    }
    let mounts = probe.read_mounts()?;
    Ok(volumes.any(|volume| !mounts.iter().any(|mount| mount.point == volume.mount_point)))
}

fn forget(state: &Tree) -> Result<()> {
    state.remove(Path::new(LEAVING)).map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use serde_json::{Value, json};

    use super::super::wal;
    use crate::clock::Clock;
    use crate::desired::{Content, DiskName, EtcdJoin, FormatPolicy, Owner, VolumeRole};
    use crate::http::Tls;
    use crate::http::fake::{Act, Fake, ok, status};

    /// A node whose etcd serves peers and clients at one address, and one other member.
    struct Stage {
        dir: tempfile::TempDir,
        own: Fake,
        other: Fake,
    }

    const OWN_ID: u64 = 1;

    fn programs(state: &Arc<Tree>) -> Programs {
        Programs::new(Arc::clone(state), None, Clock::system()).unwrap()
    }

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
        async fn leave(&self, on_unable: OnUnable) -> Result<bool> {
            self.data(b"?");
            self.leave_as_is(on_unable).await
        }

        async fn leave_as_is(&self, on_unable: OnUnable) -> Result<bool> {
            self.leave_of(on_unable, false).await
        }

        async fn leave_of(&self, on_unable: OnUnable, is_single: bool) -> Result<bool> {
            let asked = self.asked_for(is_single);
            let left = self.with(&asked, async |departure| departure.leave(on_unable).await).await;
            if left.as_ref().is_ok_and(|left| *left) {
                self.with(&asked, async |departure| {
                    assert!(!departure.has_left().unwrap());
                    departure.end().unwrap();
                    assert!(departure.has_left().unwrap());
                    assert_eq!(departure.look().await, Member::None);
                })
                .await;
            }
            left
        }

        async fn look(&self) -> Member {
            self.with(&self.asked_for(false), async |departure| departure.look().await).await
        }

        async fn with<T>(&self, asked: &[Desired], ask: impl AsyncFnOnce(&EtcdDeparture<'_>) -> T) -> T {
            let root = Arc::new(self.state());
            let (http, programs) = (Http::new(Tls::default(), Arc::clone(&root), Clock::system()), programs(&root));
            ask(&EtcdDeparture::of(&http, &root, &root, &programs, asked).unwrap()).await
        }

        fn asked_for(&self, is_single: bool) -> [Desired; 1] {
            let access = EtcdAccess { endpoint: self.own.base.clone(), identity: None };
            let own = EtcdMember {
                access,
                peer: self.own.base.clone(),
                peer_identity: None,
                is_single,
                name: "m1".into(),
                keeps_v2: false,
            };
            let members = vec![("m1".to_owned(), self.own.base.clone()), ("m2".to_owned(), self.other.base.clone())];
            let join = Some(Box::new(EtcdJoin::first_of(members)));
            [Desired { etcd: Some(own), etcd_join: join, ..Desired::default() }]
        }

        fn data(&self, log: &[u8]) {
            let folder = Path::new(ETCD_DATA).join("member/wal");
            self.state().create_dir_all(&folder, Attributes::mode(0o700)).unwrap();
            self.state().write(&folder.join("0-0.wal"), log, Attributes::mode(0o600)).unwrap();
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
        assert!(stage.leave(OnUnable::Alone).await.unwrap());
        let [own, other] = stage.asked();
        let keys = ["/v3/cluster/member/list", "/v3/kv/range", "/v3/lease/grant", TXN];
        assert_eq!(own, [&[MEMBERS, HEALTH, "/version"][..], &keys, &[MEMBERS]].concat());
        assert_eq!(other, [HEALTH, HEALTH, HEALTH, "/version", REMOVE, "/version", TXN]);
        // Once it has left nobody is asked.
        assert!(!stage.leave(OnUnable::Alone).await.unwrap());
        assert_eq!(stage.asked()[0].len(), own.len());
        forget(&stage.state()).unwrap();
        assert!(recorded(&stage.state()).unwrap().is_none());
    }

    #[tokio::test]
    async fn it_stays_where_somebody_else_has_the_lock_or_the_quorum_would_go() {
        let stage = Stage::new().await;
        let why = |left: Result<bool>| left.unwrap_err().to_string();
        stage.own.play([vec![stage.list(1..=2)], lock(Some("m2 joins etcd"))].concat());
        stage.other.play(vec![healthy()]);
        assert!(why(stage.leave(OnUnable::Alone).await).contains("m2 joins etcd changes or restarts its member"));
        // Seen before the lock is asked for, and under it: somebody died in between. It is given back.
        stage.own.play(vec![stage.list(1..=3)]);
        let before = stage.asked()[0].len();
        assert!(why(stage.leave(OnUnable::Alone).await).contains("lose its quorum: of the 2 other members 1 would be healthy"));
        assert_eq!(stage.asked()[0].len(), before + 1);
        stage.own.play([vec![stage.list(1..=2)], lock(None), vec![stage.list(1..=3)]].concat());
        stage.other.play(vec![healthy(), healthy(), version(), done()]);
        assert!(why(stage.leave(OnUnable::Alone).await).contains("lose its quorum"));
        assert_eq!(stage.asked()[1].last().unwrap(), TXN);
        assert!(recorded(&stage.state()).unwrap().is_none(), "nothing is begun");
        // Whoever abandons it leaves it where it is, and waits for nobody.
        stage.own.play([vec![stage.list(1..=2)], lock(Some("m2 joins etcd"))].concat());
        stage.other.play(vec![healthy()]);
        assert!(!stage.leave(OnUnable::Abandon).await.unwrap());
        stage.own.play(vec![stage.list(1..=3)]);
        assert!(!stage.leave(OnUnable::Abandon).await.unwrap());
        // The last one stays; a reset asks for a word.
        stage.own.play(vec![stage.list(1..=1)]);
        assert!(!stage.leave(OnUnable::Alone).await.unwrap());
        assert!(why(stage.leave(OnUnable::Refuse).await).contains("the only member"));
        // Three at once: the others have gone while this one waited for the lock.
        stage.own.play([vec![stage.list(1..=2)], lock(None), vec![stage.list(1..=1)]].concat());
        stage.other.play(vec![healthy(), version(), done()]);
        assert!(!stage.leave(OnUnable::Alone).await.unwrap());
    }

    /// Attack: a server whose address and volume another one has heard that its deployment was deleted, and took the other one's member out.
    #[tokio::test]
    async fn a_member_that_runs_elsewhere_is_not_this_nodes() {
        let stage = Stage::new().await;
        let log = Path::new(ETCD_DATA).join("member/wal");
        stage.own.play(vec![stage.list(1..=2), healthy(), stage.list(1..=2), healthy()]);
        // The data of another member, which nobody lists.
        stage.data(wal::tests::LOG);
        assert!(!stage.leave_as_is(OnUnable::Alone).await.unwrap());
        stage.state().remove_dir_all(&log).unwrap();
        assert!(!stage.leave_as_is(OnUnable::Alone).await.unwrap());
        assert!(stage.asked()[1].is_empty() && recorded(&stage.state()).unwrap().is_none());
    }

    /// Killed behind the removal, its etcd has ended; or its etcd never came up.
    #[tokio::test]
    async fn a_member_whose_etcd_is_gone_leaves_by_the_others() {
        let stage = Stage::new().await;
        let dead = || vec![Act::Close];
        // Its place is known to the other, which is healthy.
        stage.own.play(dead());
        let look = || vec![stage.list(1..=2), healthy()];
        stage.other.play([look(), lock(None), look(), vec![healthy(), version(), ok("{}"), version(), done()]].concat());
        assert!(stage.leave(OnUnable::Alone).await.unwrap());
        // The record of an earlier try: who reaches a leader does not list it any more, whatever API that one has.
        let others = vec![stage.other.base.clone()];
        record(&stage.state(), &LeavingMember { id: OWN_ID, others: others.clone() }).unwrap();
        stage.other.play(vec![stage.list(2..=2), ok(r#"{"health": "false"}"#)]);
        assert_eq!(stage.look().await, Member::Leaving(LeavingMember { id: OWN_ID, others }));
        stage.other.play(vec![stage.list(2..=2), healthy()]);
        assert!(!stage.leave(OnUnable::Alone).await.unwrap());
        assert_eq!(recorded(&stage.state()).unwrap().unwrap().others, Vec::<String>::new());
        // Without a record it never was one; and where nobody says so, nothing is known.
        forget(&stage.state()).unwrap();
        stage.other.play(vec![stage.list(2..=2), healthy()]);
        assert!(!stage.leave(OnUnable::Alone).await.unwrap());
        stage.other.play(vec![stage.list(2..=2), ok(r#"{"health": "false"}"#)]);
        assert!(stage.leave(OnUnable::Alone).await.unwrap_err().to_string().contains("cannot list etcd's members"));
        // Of the only one, too, but nobody waits for it. Nor for a directory that no etcd ever wrote to.
        assert!(!stage.leave_of(OnUnable::Alone, true).await.unwrap());
        assert!(stage.leave_of(OnUnable::Refuse, true).await.is_err());
        stage.state().remove_dir_all(&Path::new(ETCD_DATA).join("member/wal")).unwrap();
        assert_eq!(stage.look().await, Member::None);
    }

    /// Attack: where etcd knows its clients by name there is no gateway, and nothing was ever answered.
    #[tokio::test]
    async fn without_an_api_etcds_own_tool_is_asked_and_nobody_waits_for_one_that_is_not_there() {
        let stage = Stage::new().await;
        let off = || status("404 Not Found", "404 page not found");
        stage.own.play(vec![stage.list(1..=2), healthy(), version(), off()]);
        stage.other.play(vec![healthy()]);
        let error = stage.leave(OnUnable::Alone).await.unwrap_err();
        assert_eq!(error.kind(), crate::error::ErrorKind::Permanent, "{error}");
        let [own, other] = stage.asked();
        assert_eq!(
            (own, other),
            (
                vec![MEMBERS, HEALTH, "/version", "/v3/cluster/member/list"].into_iter().map(str::to_owned).collect(),
                vec![HEALTH.to_owned()]
            )
        );
        stage.own.play(vec![stage.list(1..=2), healthy(), version(), off()]);
        stage.other.play(vec![healthy()]);
        assert!(!stage.leave(OnUnable::Abandon).await.unwrap());
    }

    #[tokio::test]
    async fn a_lock_that_this_node_held_for_a_renewal_is_its_own() {
        let stage = Stage::new().await;
        stage.own.play([vec![stage.list(1..=2)], lock(Some("m1 (member 1)")), vec![stage.list(1..=2)]].concat());
        stage.other.play(vec![healthy(), healthy(), healthy(), version(), ok("{}"), version(), done()]);
        assert!(stage.leave(OnUnable::Alone).await.unwrap());
    }

    #[tokio::test]
    async fn a_member_is_this_nodes_by_the_id_of_its_data_first() {
        let stage = Stage::new().await;
        let base = &stage.own.base;
        let list =
            |id: u64, peer: &str| ok(json!([{"id": id, "name": "m1", "peerURLs": [peer], "clientURLs": [base]}]).to_string());
        let of = |member: Member| if let Member::Of(own) = member { Some(own.id) } else { None };
        stage.own.play(vec![list(7, &format!("{}/", base.to_uppercase())), ok(r#"{"health": "false"}"#)]);
        assert_eq!(of(stage.look().await), Some(7), "the same address, written in another way");
        // Wherever it announces itself, and whoever is healthy there.
        let own = wal::tests::IDS.member;
        stage.data(wal::tests::LOG);
        stage.own.play(vec![list(own, "http://192.0.2.9:2380"), healthy()]);
        assert_eq!(of(stage.look().await), Some(own));
        // What left before was another one.
        record(&stage.state(), &LeavingMember { id: OWN_ID, others: Vec::new() }).unwrap();
        stage.own.play(vec![list(own, "http://192.0.2.9:2380"), healthy()]);
        assert_eq!(of(stage.look().await), Some(own));
        record(&stage.state(), &LeavingMember { id: own, others: Vec::new() }).unwrap();
        assert_eq!(stage.look().await, Member::None);
        // The server at its address now is another one, whose etcd is just restarting.
        forget(&stage.state()).unwrap();
        stage.own.play(vec![list(7, base), ok(r#"{"health": "false"}"#), ok(r#"{"health": "false"}"#)]);
        assert_eq!(of(stage.look().await), None, "its data is of a member that is not listed");
    }

    /// Attack: none of the others answered in time when the node was asked for again, and etcd was started with what it had left behind.
    #[tokio::test]
    async fn the_data_of_the_member_that_has_left_is_put_aside_whoever_answers() {
        let stage = Stage::new().await;
        let (tree, asked) = (stage.state(), stage.asked_for(false));
        let join = asked[0].etcd_join.as_deref().unwrap();
        tree.create_dir_all(Path::new("/etc/etcd"), Attributes::mode(0o755)).unwrap();
        let own = wal::tests::IDS.member;
        for (id, others, stays) in [(OWN_ID, vec![], true), (own, vec![stage.other.base.clone()], true), (own, vec![], false)] {
            stage.data(wal::tests::LOG);
            record(&tree, &LeavingMember { id, others }).unwrap();
            assert_ne!(come_back(&tree, &tree, &asked[0]).unwrap(), stays, "{id}");
            assert_eq!(data(&tree, ETCD_DATA).unwrap().is_present(), stays, "{id}");
            assert!(recorded(&tree).unwrap().is_none());
        }
        let file = tree.read(Path::new(&join.file), FILE_LIMIT).unwrap().unwrap();
        assert!(String::from_utf8(file).unwrap().contains("existing"), "etcd does not begin a cluster of its own");
        // Masters that find each other by discovery get no list.
        stage.data(wal::tests::LOG);
        record(&tree, &LeavingMember { id: own, others: Vec::new() }).unwrap();
        assert!(come_back(&tree, &tree, &Desired::default()).unwrap() && !data(&tree, ETCD_DATA).unwrap().is_present());
        // It may be on a volume that is mounted later.
        record(&tree, &LeavingMember { id: own, others: Vec::new() }).unwrap();
        let volume = Volume {
            role: VolumeRole::Etcd,
            disk: DiskName::Cinder("c".to_owned()),
            hint: "/dev/vdc".to_owned(),
            content: Content::Xfs,
            mount_point: "/var/lib/etcd".to_owned(),
            root_mode: 0o700,
            root_owner: Owner::root(),
            format: FormatPolicy::IfBlank,
            format_parameter: "ETCD_VOLUME_FORMAT",
            adopt: None,
            cluster: "k".to_owned(),
            users: vec![],
        };
        let away = Desired { volumes: vec![volume], ..Desired::default() };
        assert!(!come_back(&tree, &tree, &away).unwrap() && recorded(&tree).unwrap().is_some());
        // Without a table of mounts nobody can say so; where no volume is asked for, nobody has to.
        let blind = DiskProbe::at(stage.dir.path());
        assert!(is_away_by(&blind, &away.volumes).is_err() && !is_away_by(&blind, &[]).unwrap());
    }

    /// All masters of a stack are deleted, and one of them is dead.
    #[tokio::test]
    async fn nobody_needs_a_quorum_where_all_that_are_healthy_leave() {
        use base64::Engine as _;
        let stage = Stage::new().await;
        for (leavers, other_is_healthy, expected) in [(&["1", "2"][..], true, true), (&["1"], true, false), (&["1"], false, true)]
        {
            let keys: Vec<Value> = leavers
                .iter()
                .map(|id| {
                    let [key, value] = [format!("{LEAVERS}/{id}"), (*id).to_owned()]
                        .map(|text| base64::engine::general_purpose::STANDARD.encode(text));
                    json!({"key": key, "mod_revision": "6", "value": value})
                })
                .collect();
            let (none, granted) = (ok(r#"{"header":{}}"#), ok(r#"{"ID":"75","TTL":"120"}"#));
            stage.own.play(vec![stage.list(1..=3), version(), none, granted, done(), ok(json!({"kvs": keys}).to_string())]);
            stage.other.play(vec![if other_is_healthy { healthy() } else { ok(r#"{"health": "false"}"#) }]);
            let asked = stage.asked_for(false);
            let all_leave = stage.with(&asked, async |departure| departure.all_leave().await.unwrap()).await;
            assert_eq!(all_leave, expected, "{leavers:?} {other_is_healthy}");
        }
    }

    async fn removed_by(others: Vec<Vec<Act>>, own: Vec<Act>) -> (bool, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let root = Arc::new(Tree::open(dir.path()).unwrap());
        let http = Http::new(Tls::default(), Arc::clone(&root), Clock::system());
        let mut servers = Vec::new();
        for acts in others {
            servers.push(Fake::start(acts).await);
        }
        let leaving = LeavingMember { id: 77, others: servers.iter().map(|server| server.base.clone()).collect() };
        servers.push(Fake::start(own).await);
        let access = EtcdAccess { endpoint: servers.last().unwrap().base.clone(), identity: None };
        let own = EtcdMember {
            access,
            peer: String::new(),
            peer_identity: None,
            is_single: false,
            name: String::new(),
            keeps_v2: false,
        };
        let result = EtcdDeparture { http: &http, root: &root, state: &root, programs: &programs(&root), asked: &[], own: &own }
            .remove(&leaving)
            .await;
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
