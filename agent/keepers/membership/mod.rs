//! The place of this node's member in etcd's cluster, where the parameters list its members (`decision.rs`, pure, decides).
//!
//! All is found in the list of members, so that neither a crash nor a machine that is replaced once more loses anything: a member that the
//! cluster does not have is added. Whoever changes the list holds the lock under which masters renew certificates, too: a member that
//! restarts is none to count on.
//!
//! In: the list of the parameters, what the others answer. Out: an environment file for etcd, at most one change of its members at a time.
//! Never: the removal of a member that may be running, or beside another one that is not healthy; a member without data that starts where its
//! cluster counts on what it had. Whoever starts etcd: from the beginning of a run on that file keeps it from starting without data, until
//! it is settled how it may.

mod address;
mod decision;
#[cfg(test)]
mod decision_tests;
pub(crate) mod leave;
pub(crate) mod restore;
#[cfg(test)]
mod tests;
mod wal;

use std::path::Path;
use std::time::Duration;

use self::address::{host_and_port, is_same};
use self::decision::{
    ClusterView, MemberData, MemberFacts, MemberHealth, NextStep, SeenMember, decide, healthy_url, may_come_back, second_by_hand,
    typed,
};
use super::certificates::quorum::{KEY, take};
use crate::concurrent::all;
use crate::converge::etcd::{Etcd, ListedMember};
use crate::converge::{EtcdMembership, MemberChange, MemberSituation, MemberStep};
use crate::desired::{ClientIdentity, EtcdAccess, EtcdJoin, removed_data};
use crate::error::{Error, ErrorKind, Result};
use crate::files::{Attributes, Tree};
use crate::http::Http;
use crate::network::flannel::Api;
use crate::reach::{self, PortOutcome};

/// How long etcd keeps the lock of one that died with it, and how long a change under it may take: far less.
const LIFE: Duration = Duration::from_mins(2);
const CHANGE_LIMIT: Duration = Duration::from_mins(1);
/// The environment file is one line for each member.
const FILE_LIMIT: u64 = 64 * 1024;
/// As causes call it.
const ETCD: &str = "etcd's member";

/// First line of the file that keeps etcd from starting until the others were asked; it says nothing of their cluster.
const HELD: &str = "# Made by heat-node-agent: etcd does not start without data before the other members were asked.";
const MADE: &str = "# Made by heat-node-agent: how etcd starts without data, where it had a place or has a new one. With data it reads none of this.";

impl EtcdMembership for Http {
    fn hold(&self, root: &Tree, join: &EtcdJoin) -> Result<()> {
        // Keep the knowledge that the cluster exists.
        if data(root, &join.data)?.is_present() || knows_cluster(root, join)? {
            return block(root, join);
        }
        write(root, join, HELD, &alone(join))
    }

    fn protect(&self, root: &Tree, join: &EtcdJoin) -> Result<()> {
        if data(root, &join.data)?.is_present() { block(root, join) } else { Ok(()) }
    }

    async fn settle(&self, root: &Tree, join: &EtcdJoin, situation: &MemberSituation) -> Result<MemberStep> {
        let found = inspect(self, root, join, situation).await?;
        let next = decide(&found);
        let is_blank = !found.data.is_present();
        let may_start = matches!(next, Ok(NextStep::Start | NextStep::Unheard | NextStep::Join(_)));
        // Before anything else: the next one to start etcd may be a boot.
        if is_blank && !may_start && (join.existing || !found.views.is_empty()) {
            block(root, join)?;
        }
        match next? {
            NextStep::Start if is_blank => root.remove(Path::new(&join.file)).map(|_| MemberStep::Start),
            NextStep::Start => block(root, join).map(|()| MemberStep::Start),
            NextStep::Unheard => Ok(MemberStep::Unheard),
            NextStep::Join(places) => write(root, join, MADE, &places).map(|()| MemberStep::Start),
            NextStep::Remove(id) => has_api(self, &found, Some(id)).await.map(|()| MemberStep::Change(MemberChange::Remove(id))),
            NextStep::Add => has_api(self, &found, None).await.map(|()| MemberStep::Change(MemberChange::Add)),
            NextStep::AddLearner => has_learners(self, &found).await.map(|()| MemberStep::Change(MemberChange::Add)),
            NextStep::SetAside => Ok(MemberStep::Change(MemberChange::SetAside)),
        }
    }

    async fn promote(&self, join: &EtcdJoin) -> Result<bool> {
        let at = |endpoint: &str, identity: &Option<ClientIdentity>| {
            Etcd::new(self, &EtcdAccess { endpoint: endpoint.to_owned(), identity: identity.clone() }, ETCD)
        };
        let (_, list) = at(&join.peer, &join.peer_identity).listed().await?;
        let is_own = |one: &&ListedMember| one.peers.iter().any(|url| is_same(url, &join.peer));
        let Some(own) = list.iter().find(is_own).filter(|own| !own.votes) else { return Ok(false) };
        // A learner changes and locks nothing itself.
        let urls = list.iter().filter(|one| one.votes).flat_map(|one| &one.clients);
        let mut voter = None;
        for url in urls.filter(|url| join.identity.is_none() || url.starts_with("https://")) {
            let etcd = at(url, &join.identity);
            if etcd.member_is_healthy().await {
                voter = Some(etcd);
                break;
            }
        }
        let Some(etcd) = voter else { return Err(nobody_is_healthy()) };
        if !etcd.has_gateway().await? {
            return Err(Error::transient("etcd's member is a learner, and etcd serves no v3 API over its JSON gateway")
                .remedy(format!("on another master: `etcdctl member promote {:x}`", own.id)));
        }
        let holder = format!("{} joins etcd", join.name);
        if let Some(other) = take(&etcd, Api::V3, &holder, LIFE).await? {
            return Err(busy(&other));
        }
        let promoted = etcd.promote_member(own.id).await;
        // One that cannot be given back ends with its life.
        drop(etcd.remove(Api::V3, KEY, &holder).await);
        promoted.map(|()| true)
    }

    async fn change(&self, root: &Tree, join: &EtcdJoin, situation: &MemberSituation, change: MemberChange) -> Result<bool> {
        let found = inspect(self, root, join, situation).await?;
        if change == MemberChange::SetAside {
            if decide(&found)? != NextStep::SetAside {
                return Ok(false);
            }
            may_come_back(&found)?;
            return put_aside(root, join).map(|()| true);
        }
        let Some(etcd) = voter(self, &found) else { return Err(nobody_is_healthy()) };
        let holder = format!("{} joins etcd", join.name);
        if let Some(other) = take(&etcd, Api::V3, &holder, LIFE).await? {
            return Err(busy(&other));
        }
        let changing = change_locked(self, root, join, situation, &etcd, change);
        let done = self.clock().limit(CHANGE_LIMIT, changing).await;
        // Between removal and addition nobody else has its turn: of the members that are left each may be needed. One whose answer is lost
        // may have been carried out.
        let may_be_removed = match &done {
            Some(Ok(is_done)) => *is_done,
            Some(Err(error)) => error.kind() == ErrorKind::Transient,
            None => true,
        };
        if !(may_be_removed && matches!(change, MemberChange::Remove(_))) {
            // A lock that cannot be given back ends with its life; what was changed is changed all the same.
            drop(etcd.remove(Api::V3, KEY, &holder).await);
        }
        done.ok_or_else(changed_too_late)?
    }
}

fn busy(other: &str) -> Error {
    Error::transient(format!("{other} changes or restarts its member of etcd"))
        .rule("masters do so one at a time")
        .remedy("wait: its lock ends with its work, or after 15 minutes at most")
}

fn changed_too_late() -> Error {
    Error::transient("etcd's members could not be changed in time").remedy("check `journalctl -u etcd` on the other masters")
}

/// What an update may do to the cluster's members, for whoever plans it: nobody is asked for that.
///
/// # Errors
/// If the data's directory cannot be read.
pub fn foretold(root: &Tree, join: &EtcdJoin) -> Result<Option<String>> {
    Ok((data(root, &join.data)? == MemberData::Blank).then(|| {
        format!(
            "etcd's member {} has no data in {}: if the other members list it as one that has run, and it does not answer, it is \
             removed from their cluster and added again, which cannot be undone",
            join.name, join.data
        )
    }))
}

/// The change, if it still is what comes next now that nobody else changes anything.
async fn change_locked(
    http: &Http,
    root: &Tree,
    join: &EtcdJoin,
    situation: &MemberSituation,
    etcd: &Etcd,
    change: MemberChange,
) -> Result<bool> {
    let found = inspect(http, root, join, situation).await?;
    match (decide(&found)?, change) {
        (NextStep::Remove(id), MemberChange::Remove(wanted)) if id == wanted => {
            block(root, join)?;
            etcd.remove_member(&id.to_string()).await.map(|()| true)
        }
        (NextStep::AddLearner, MemberChange::Add) if !etcd.has_learners().await? => Ok(false),
        (NextStep::Add | NextStep::AddLearner, MemberChange::Add) => etcd.add_member(&join.peer).await.map(|()| true),
        _ => Ok(false),
    }
}

/// Puts the data of a member that was removed aside, in the place of what an earlier one left. Whoever starts etcd then has it start without
/// data no more than before.
fn put_aside(root: &Tree, join: &EtcdJoin) -> Result<()> {
    block(root, join)?;
    move_aside(root, &join.data)
}

/// The same, where nothing keeps etcd from starting without data.
fn move_aside(root: &Tree, data: &str) -> Result<()> {
    let aside = removed_data(data);
    root.remove_dir_all(Path::new(&aside))?;
    root.rename(&Path::new(data).join("member"), Path::new(&aside))
}

/// A healthy one of the others that vote, to ask and to change things at.
fn voter(http: &Http, facts: &MemberFacts<'_>) -> Option<Etcd> {
    let endpoint = healthy_url(facts.join, facts.members())?.to_owned();
    Some(Etcd::new(http, &EtcdAccess { endpoint, identity: facts.join.identity.clone() }, ETCD))
}

/// Whether the members can be changed by the API that the agent speaks.
async fn has_api(http: &Http, facts: &MemberFacts<'_>, remove: Option<u64>) -> Result<()> {
    let Some(etcd) = voter(http, facts) else { return Err(nobody_is_healthy()) };
    if etcd.has_gateway().await? {
        return Ok(());
    }
    Err(Error::transient("etcd's members have to change for this node's, and etcd serves no v3 API over its JSON gateway")
        .rule(
            "the agent changes members through that gateway alone; etcd before 3.0 has none, and it is \
             off where etcd knows its clients by name",
        )
        .remedy(typed(facts.join, facts.members(), remove)))
}

/// Whether a second member can be added without harm to the first one.
async fn has_learners(http: &Http, facts: &MemberFacts<'_>) -> Result<()> {
    let Some(etcd) = voter(http, facts) else { return Err(nobody_is_healthy()) };
    if etcd.has_learners().await? && etcd.has_gateway().await? {
        return Ok(());
    }
    Err(second_by_hand(facts.join, facts.members()))
}

fn nobody_is_healthy() -> Error {
    Error::transient("none of etcd's other members is healthy").remedy("check `journalctl -u etcd` on their masters")
}

/// What one of the others said, or why nothing.
enum Heard {
    List(ClusterView),
    /// Nobody listens there.
    Nobody,
    /// Somebody does, or may, and could not be asked.
    Unasked(Error),
}

/// Looks once at what is decided by.
async fn inspect<'a>(http: &Http, root: &Tree, join: &'a EtcdJoin, situation: &'a MemberSituation) -> Result<MemberFacts<'a>> {
    let data = data(root, &join.data)?;
    let has_begun = knows_cluster(root, join)?;
    let (views, unasked) = (Vec::new(), Vec::new());
    let mut found = MemberFacts { join, situation, data, views, unasked, has_begun };
    if situation.is_running && data.is_present() {
        return Ok(found);
    }
    let at = |endpoint: &str, identity: &Option<ClientIdentity>| {
        Etcd::new(http, &EtcdAccess { endpoint: endpoint.to_owned(), identity: identity.clone() }, ETCD)
    };
    let others = join.members.iter().map(|(_, peer)| peer).filter(|peer| !is_same(peer, &join.peer));
    let mut lists = Vec::new();
    for (peer, heard) in all(others.map(async |peer| (peer, ask(http, &at(peer, &join.peer_identity), peer).await))).await {
        match heard {
            Heard::List(list) => lists.push(list),
            Heard::Nobody => {}
            Heard::Unasked(error) => found.unasked.push(format!("{peer}: {}", error.cause_first())),
        }
    }
    let mut urls: Vec<&String> = lists.iter().flat_map(|list| &list.members).flat_map(|one| &one.listed.clients).collect();
    urls.sort_unstable();
    urls.dedup();
    let answers = all(urls.iter().map(async |url| {
        // Where there is TLS nobody is believed in the clear.
        if (join.identity.is_none() || url.starts_with("https://")) && at(url, &join.identity).is_healthy(url).await {
            return MemberHealth::Healthy;
        }
        // But who listens there may be alive.
        if is_nobody_at(http, url).await { MemberHealth::Silent } else { MemberHealth::Unhealthy }
    }))
    .await;
    let health: Vec<(String, MemberHealth)> = urls.into_iter().cloned().zip(answers).collect();
    for member in lists.iter_mut().flat_map(|list| &mut list.members) {
        let at = |wanted| health.iter().find(|(url, health)| *health == wanted && member.listed.clients.contains(url));
        let (healthy_at, unhealthy) = (at(MemberHealth::Healthy), at(MemberHealth::Unhealthy));
        member.health = healthy_at.or(unhealthy).map_or(MemberHealth::Silent, |(_, health)| *health);
        member.healthy_at = healthy_at.map(|(url, _)| url.clone());
    }
    found.views = lists;
    Ok(found)
}

/// Asks one of the others for its list.
async fn ask(http: &Http, etcd: &Etcd, peer: &str) -> Heard {
    let error = match etcd.listed().await {
        Ok((Some(cluster), members)) => {
            let seen = |listed| SeenMember { listed, health: MemberHealth::Silent, healthy_at: None };
            return Heard::List(ClusterView { peer: peer.to_owned(), cluster, members: members.into_iter().map(seen).collect() });
        }
        Ok((None, _)) => Error::transient("its list does not say of which cluster it is"),
        Err(error) => error,
    };
    // Whatever failed: who takes a connection is there.
    if is_nobody_at(http, peer).await { Heard::Nobody } else { Heard::Unasked(error) }
}

/// Whether certainly nobody listens at a URL, as far as a network can say.
async fn is_nobody_at(http: &Http, url: &str) -> bool {
    let Some((host, port)) = host_and_port(url) else { return false };
    reach::listens(http.clock(), &host, port).await == PortOutcome::Nobody
}

/// What of a member is in its directory. etcd that refused to start leaves an empty store there, and no log.
fn data(root: &Tree, folder: &str) -> Result<MemberData> {
    let member = Path::new(folder).join("member");
    let holds = |part: &str, suffix: &str| {
        let place = member.join(part);
        if root.facts(&place)?.is_none() {
            return Ok(false);
        }
        Ok::<bool, Error>(root.list(&place)?.iter().any(|name| name.to_string_lossy().ends_with(suffix)))
    };
    Ok(match (holds("wal", ".wal")?, holds("snap", ".snap")?) {
        (true, _) => MemberData::Present(wal::ids(root, &member.join("wal"))),
        (false, true) => MemberData::Damaged,
        (false, false) => MemberData::Blank,
    })
}

/// Has etcd, whoever starts it, start with data alone. Without any it would take the place of the removed member, or with the same id
/// and an empty log the one that it had before: asked to join a cluster that it knows nobody of, it ends at once and writes no log.
fn block(root: &Tree, join: &EtcdJoin) -> Result<()> {
    write(root, join, MADE, &alone(join))
}

/// Whether the file says that this node has heard of its cluster, or has begun to join it.
fn knows_cluster(root: &Tree, join: &EtcdJoin) -> Result<bool> {
    Ok(root.read(Path::new(&join.file), FILE_LIMIT)?.is_some_and(|file| !file.starts_with(HELD.as_bytes())))
}

fn alone(join: &EtcdJoin) -> [(String, String); 1] {
    [(join.name.clone(), join.peer.clone())]
}

/// Has etcd join the cluster of these. What is there already is not written again.
fn write(root: &Tree, join: &EtcdJoin, head: &str, places: &[(String, String)]) -> Result<()> {
    let list: Vec<String> = places.iter().map(|(name, url)| format!("{name}={url}")).collect();
    let content = format!("{head}\nETCD_INITIAL_CLUSTER=\"{}\"\nETCD_INITIAL_CLUSTER_STATE=\"existing\"\n", list.join(","));
    let path = Path::new(&join.file);
    if root.read(path, FILE_LIMIT)?.is_some_and(|there| there == content.as_bytes()) {
        return Ok(());
    }
    root.write(path, content.as_bytes(), Attributes::mode(0o644))
}
