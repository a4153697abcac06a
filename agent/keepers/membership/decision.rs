//! What a member of etcd that is to start does first: pure.
//!
//! A member without data may be one of three: the first start of a new cluster's, which etcd itself sees to; one that was added and has
//! not started yet; or that of a machine which was replaced, whose cluster lists it as one that has run. The last must not start as it
//! was: it may have acknowledged what it has forgotten. etcd refuses it as long as it hears of the others ("has already been
//! bootstrapped"); it takes a new place only after the old one is given up.

use std::fmt::Write as _;
use std::time::Duration;

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

use super::address::{is_plain, is_same};
use crate::converge::MemberSituation;
use crate::converge::etcd::ListedMember;
use crate::desired::EtcdJoin;
use crate::error::remedy::Remedy;
use crate::error::{Error, Result};
use crate::report::text::{escaped, shortened};

/// The most that is quoted of what others say.
const QUOTED: usize = 100;

/// How long nobody must be there, at any other member's address, before a member without data begins a new cluster: a machine whose
/// network is a moment late must not take a cluster that is there for one that is not.
const UNHEARD: Duration = Duration::from_secs(30);

/// What is in the member's data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberData {
    /// No log: it never had a place, or lost what it had.
    Blank,
    /// A log, by which etcd knows its own place; whose it is, where that can be read.
    Present(Option<MemberIds>),
    /// No log, but what belongs to one.
    Damaged,
}

impl MemberData {
    /// Whether etcd knows its place by it.
    pub(super) fn is_present(self) -> bool {
        matches!(self, Self::Present(_))
    }

    /// The id of its member, where that can be read.
    pub(super) fn member(self) -> Option<u64> {
        if let Self::Present(Some(ids)) = self { Some(ids.member) } else { None }
    }
}

/// Whose data it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemberIds {
    pub(super) member: u64,
    pub(super) cluster: u64,
}

/// How a member that is listed answers its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberHealth {
    /// As healthy: it reaches a leader.
    Healthy,
    /// Somebody is there, or may be, and is not healthy.
    Unhealthy,
    /// Nobody is there.
    Silent,
}

/// A member, and how it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeenMember {
    pub(super) listed: ListedMember,
    pub(super) health: MemberHealth,
    /// Where it answers as healthy.
    pub(super) healthy_at: Option<String>,
}

impl SeenMember {
    fn is_at(&self, peer: &str) -> bool {
        is_at(&self.listed, peer)
    }

    /// Whether it was added, and has not started since.
    fn is_new(&self) -> bool {
        self.listed.name.is_empty() && self.listed.clients.is_empty()
    }

    /// As causes call it.
    fn shown(&self) -> String {
        let (name, id) = (&self.listed.name, self.listed.id);
        let shown = if name.is_empty() { format!("{id:x}, which never started") } else { quoted(name) };
        if self.listed.votes { shown } else { format!("{shown}, a learner") }
    }
}

/// What one of the others says of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClusterView {
    /// Where it was asked.
    pub(super) peer: String,
    /// The cluster's id.
    pub(super) cluster: u64,
    /// Its members.
    pub(super) members: Vec<SeenMember>,
}

impl ClusterView {
    /// Whether the one that was asked reaches a leader.
    fn is_of_healthy(&self) -> bool {
        self.members.iter().any(|member| member.is_at(&self.peer) && member.health == MemberHealth::Healthy)
    }

    fn is_same_list(&self, other: &Self) -> bool {
        let sorted = |view: &Self| {
            let mut members: Vec<ListedMember> = view.members.iter().map(|member| member.listed.clone()).collect();
            members.sort_unstable_by_key(|member| member.id);
            members
        };
        sorted(self) == sorted(other)
    }
}

/// All that is decided by.
#[derive(Clone, Debug)]
pub(super) struct MemberFacts<'a> {
    pub(super) join: &'a EtcdJoin,
    pub(super) situation: &'a MemberSituation,
    pub(super) data: MemberData,
    /// Of each of the others that answered.
    pub(super) views: Vec<ClusterView>,
    /// The others that are, or may be, there and could not be asked: why not.
    pub(super) unasked: Vec<String>,
    /// Whether this node knows that its cluster is there: it heard of it, or has begun to join it.
    pub(super) has_begun: bool,
}

impl MemberFacts<'_> {
    /// All that anybody lists.
    pub(super) fn members(&self) -> impl Iterator<Item = &SeenMember> {
        self.views.iter().flat_map(|view| &view.members)
    }
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    /// etcd starts with its data, or as its parameters say.
    Start,
    /// Nobody is there: it is asked again until that has lasted.
    Unheard,
    /// It joins the cluster of these: name and peer URL of each.
    Join(Vec<(String, String)>),
    /// The member of this id is removed.
    Remove(u64),
    /// A member is added.
    Add,
    /// The same beside a single one, which would have no quorum until it has started if it voted at once.
    AddLearner,
    /// The data of a member that was removed is put aside.
    SetAside,
}

/// Decides.
///
/// # Errors
/// Transient where the cluster has to be waited for, refused where the place must not be taken.
pub(super) fn decide(facts: &MemberFacts<'_>) -> Result<NextStep> {
    let join = facts.join;
    if let MemberData::Present(ids) = facts.data {
        return ids.map_or(Ok(NextStep::Start), |ids| with_data(facts, ids));
    }
    if let Some(unit) = &facts.situation.unmounted {
        return Err(Error::transient(format!("{unit} is not active, and {} may be on it", join.data))
            .rule("whether etcd's member has data is decided by what is mounted there")
            .remedy(format!("`systemctl status {unit}` says why; `systemctl start {unit}` mounts it; or remove it if nothing is to be mounted there")));
    }
    if facts.data == MemberData::Damaged {
        return Err(Error::refused(format!("{} has a snapshot of etcd's data and no log", join.data))
            .rule(
                "etcd does not know its place in the cluster without its log, and must not start as a new member \
                 beside what is left of an old one",
            )
            .remedy(format!("{}: the node then takes the place of its dead member", set_aside(join, "damaged"))));
    }
    match known(facts)? {
        Some(known) => in_cluster(facts, known),
        None => unheard(facts),
    }
}

/// What follows where none of the others says anything.
fn unheard(facts: &MemberFacts<'_>) -> Result<NextStep> {
    let join = facts.join;
    if facts.has_begun || join.existing {
        return Err(Error::transient("none of etcd's other members answers, and this node's member belongs to their cluster")
            .rule("a member without data may have acknowledged what it has lost, so it never begins a new cluster in the place of one that is there")
            .remedy(format!(
                "start etcd on the other masters, and check the network between them; if they have lost their data too, \
                 `rm {}` on each begins a new cluster where ETCD_INITIAL_CLUSTER_STATE is not existing",
                join.file
            )));
    }
    all_are_asked(facts)?;
    Ok(if facts.situation.unheard < UNHEARD { NextStep::Unheard } else { NextStep::Start })
}

/// Who is there and could not be asked may know that this node's member has run.
fn all_are_asked(facts: &MemberFacts<'_>) -> Result<()> {
    if facts.unasked.is_empty() {
        return Ok(());
    }
    Err(Error::transient(format!("it is not known what etcd's other members are: {}", facts.unasked.join("; ")))
        .rule("a member without data begins a new cluster only where all others that listen at their addresses were asked")
        .remedy("correct what keeps this node from asking them, or stop etcd there"))
}

/// What follows in a cluster that is there.
fn in_cluster(facts: &MemberFacts<'_>, known: &ClusterView) -> Result<NextStep> {
    let (join, members) = (facts.join, &known.members);
    let is_ours = known.cluster == first_cluster(&join.members, &join.token)
        // By the others: once its own is removed, it is to be added to the same one.
        || members.iter().any(|one| !one.is_at(&join.peer) && one.listed.id == first_id(&one.listed.peers, &join.token));
    let Some(own) = own(join, members)? else {
        if !is_ours {
            return Err(other_cluster(join, members, None));
        }
        others_are_healthy(members, None)?;
        may_change(facts, "has no place in its cluster")?;
        return Ok(if members.len() < 2 { NextStep::AddLearner } else { NextStep::Add });
    };
    let (name, clients) = (&own.listed.name, &own.listed.clients);
    if own.is_new() {
        is_confirmed(facts, known)?;
        return Ok(NextStep::Join(places(join, members)?));
    }
    if *name != join.name {
        return Err(refused_place(join, members, own, format!("the member {} is {}", join.peer, quoted(name))));
    }
    let is_of_token = own.listed.id == first_id(&own.listed.peers, &join.token);
    if clients.is_empty() {
        if !is_of_token && !join.existing {
            return Err(other_cluster(join, members, Some(own.listed.id)));
        }
        // One that was cut off before this member started does not know that it has.
        let was_formed = facts.has_begun || join.existing || members.iter().any(|member| !member.listed.clients.is_empty());
        if was_formed && !known.is_of_healthy() {
            return Err(Error::transient(
                "etcd's members that answer have no leader: whether this node's has ever started is not known",
            )
            .remedy(format!(
                "check `journalctl -u etcd` on the other masters; only if etcd has certainly never run on this node: \
                 `rm {} && systemctl restart {}`",
                join.file, join.unit
            )));
        }
        if !was_formed {
            all_are_asked(facts)?;
        }
        return Ok(NextStep::Start);
    }
    if own.health != MemberHealth::Silent && facts.situation.is_up {
        return Err(Error::transient(format!(
            "somebody answers at {}, where etcd's member {name} serves clients: it may be {} of this node, whose data is gone",
            quoted(&clients.join(", ")),
            join.unit
        ))
        .rule("a member that may be running is never removed")
        .remedy(format!("`systemctl stop {}` on this node; if somebody else answers there, end that machine", join.unit)));
    }
    if own.health != MemberHealth::Silent {
        return Err(Error::refused(format!(
            "etcd's member {name} is or may be running at {}, and its data is not on this machine",
            quoted(&clients.join(", "))
        ))
        .rule("a member that may be running is never removed")
        .remedy("find the machine that has this node's name and address, and end one of the two"));
    }
    if !is_ours {
        return Err(other_cluster(join, members, Some(own.listed.id)));
    }
    others_are_healthy(members, Some(own))?;
    // What this node could not join afterwards is found before.
    places(join, members)?;
    may_change(facts, "has lost its data, and has to be replaced")?;
    Ok(NextStep::Remove(own.listed.id))
}

/// Repairs and renewals come without anybody who waits for them.
fn may_change(facts: &MemberFacts<'_>, why: &str) -> Result<()> {
    if facts.situation.may_change {
        return Ok(());
    }
    Err(Error::refused(format!("etcd's member {} {why}", facts.join.name))
        .rule("only a deployment changes the members of etcd's cluster")
        .remedy(Remedy::said("`heat-node-agent rerun ID` of the node's deployment, or an update of the stack, does that")))
}

/// Whether a member that was removed may come back as a new one.
///
/// # Errors
/// Refused where it must not.
pub(super) fn may_come_back(facts: &MemberFacts<'_>) -> Result<()> {
    let join = facts.join;
    let has_place = |one: &&SeenMember| one.is_at(&join.peer) || one.listed.name == join.name;
    match facts.members().filter(has_place).find(|one| !one.is_new() && one.health != MemberHealth::Silent) {
        Some(other) => Err(Error::refused(format!(
            "this node's member of etcd was removed from its cluster, and another machine has its place: member {} {:x} runs at {}",
            other.shown(),
            other.listed.id,
            quoted(&other.listed.peers.join(", "))
        ))
        .rule("a name and an address are one machine's")
        .remedy("end one of the two machines that have this node's name or address")),
        None => may_change(facts, "was removed from its cluster"),
    }
}

/// Refuses data of another cluster, or of another member, by what the others list.
fn with_data(facts: &MemberFacts<'_>, ids: MemberIds) -> Result<NextStep> {
    let join = facts.join;
    let Some(first) = facts.views.first() else { return Ok(NextStep::Start) };
    if facts.views.iter().all(|view| view.cluster != ids.cluster) {
        return Err(Error::refused(format!(
            "{} is of etcd's cluster {:x}, and the member at {} belongs to cluster {:x}",
            join.data, ids.cluster, first.peer, first.cluster
        ))
        .rule("a member of one cluster never joins another")
        .remedy(format!(
            "attach this node's own etcd volume; or, if the other members have the right cluster, {}",
            set_aside(join, "other-cluster")
        )));
    }
    let is_healthy = |view: &&ClusterView| view.cluster == ids.cluster && view.is_of_healthy();
    let Some(view) = facts.views.iter().find(is_healthy) else { return Ok(NextStep::Start) };
    match view.members.iter().find(|member| member.listed.id == ids.member) {
        // A member that was removed never comes back with its data. One of the others may not know of an addition yet.
        None => {
            known(facts)?;
            Ok(NextStep::SetAside)
        }
        Some(one) if !one.listed.name.is_empty() && one.listed.name != join.name && !one.is_at(&join.peer) => {
            Err(Error::refused(format!("{} is of etcd's member {}", join.data, quoted(&one.listed.name)))
                .rule("each member has data of its own")
                .remedy(format!("attach this node's own etcd volume, or {}", set_aside(join, "other-member"))))
        }
        Some(_) => Ok(NextStep::Start),
    }
}

/// How an operator has the node begin without this data.
fn set_aside(join: &EtcdJoin, suffix: &str) -> String {
    format!("`mv {data} {data}.{suffix}` and `install -d -m 0700 -o etcd -g etcd {data}`", data = join.data)
}

/// A member that joins by a list that has changed since fetches its cluster from nobody, or from one that has left it: all that have run
/// must list the same.
fn is_confirmed(facts: &MemberFacts<'_>, known: &ClusterView) -> Result<()> {
    let has_run = |one: &&SeenMember| !one.is_at(&facts.join.peer) && !one.is_new();
    let confirms = |one: &SeenMember| facts.views.iter().any(|view| one.is_at(&view.peer) && view.is_same_list(known));
    match known.members.iter().filter(has_run).find(|one| !confirms(one)) {
        None => Ok(()),
        Some(other) => Err(Error::transient(format!("etcd's member {} has not confirmed the list of members", other.shown()))
            .rule("a member joins by a list that all others confirm")
            .remedy("check `journalctl -u etcd` there; ETCD_INITIAL_CLUSTER must name all members")),
    }
}

/// The list that counts: that of the members that are healthy, else of all that answer; nothing if none does.
fn known<'a>(facts: &'a MemberFacts<'_>) -> Result<Option<&'a ClusterView>> {
    let Some(first) = facts.views.first() else { return Ok(None) };
    if let Some(other) = facts.views.iter().find(|view| view.cluster != first.cluster) {
        let cause = format!(
            "the members that are listed belong to two clusters: {} to {:x}, {} to {:x}",
            first.peer, first.cluster, other.peer, other.cluster
        );
        return Err(Error::refused(cause).rule("members of one list form one cluster").remedy(
            "`reset` the masters of the cluster that is not wanted; a volume that another \
                     cluster wrote needs another one, or to be wiped",
        ));
    }
    let healthy: Vec<&ClusterView> = facts.views.iter().filter(|view| view.is_of_healthy()).collect();
    let counting = if healthy.is_empty() { facts.views.iter().collect() } else { healthy };
    let Some(first) = counting.first() else { return Ok(None) };
    match counting.iter().find(|view| !view.is_same_list(first)) {
        Some(other) => {
            Err(Error::transient(format!("etcd's members at {} and {} list different members", first.peer, other.peer))
                .remedy("check `journalctl -u etcd` on both, and the network between them"))
        }
        None => Ok(Some(first)),
    }
}

fn is_at(member: &ListedMember, peer: &str) -> bool {
    member.peers.iter().any(|url| is_same(url, peer))
}

/// The member that has this node's place.
fn own<'a>(join: &EtcdJoin, members: &'a [SeenMember]) -> Result<Option<&'a SeenMember>> {
    let found: Vec<&SeenMember> = members.iter().filter(|one| one.listed.name == join.name || one.is_at(&join.peer)).collect();
    match found[..] {
        [] => Ok(None),
        [own] if own.is_at(&join.peer) => Ok(Some(own)),
        [other] => {
            let cause =
                format!("etcd's member {} is at {}, and not at {}", join.name, quoted(&other.listed.peers.join(", ")), join.peer);
            Err(refused_place(join, members, other, cause))
        }
        [first, ..] => {
            let ids: Vec<String> = found.iter().map(|one| format!("{:x}", one.listed.id)).collect();
            let cause =
                format!("several members of etcd have the name {} or the address {}: {}", join.name, join.peer, ids.join(", "));
            Err(refused_place(join, members, first, cause))
        }
    }
}

fn refused_place(join: &EtcdJoin, members: &[SeenMember], own: &SeenMember, cause: String) -> Error {
    Error::refused(cause).rule("a node takes the place of the dead member of its own name and address alone").remedy(format!(
        "correct ETCD_INITIAL_CLUSTER and update the stack; or, if the member {:x} is dead, {}",
        own.listed.id,
        typed(join, members, Some(own.listed.id))
    ))
}

fn other_cluster(join: &EtcdJoin, members: &[SeenMember], own: Option<u64>) -> Error {
    Error::refused(format!(
        "the members that are listed are not known to be of cluster {}: none of their ids is made of it",
        join.token
    ))
    .rule(
        "a member of one cluster never joins another; ids tell clusters apart as long as one \
               member, or the list of members, is the first one",
    )
    .remedy(format!(
        "if `etcdctl member list` on another master shows the right cluster, {}; else correct \
             ETCD_INITIAL_CLUSTER or CLUSTER_UUID and update the stack",
        typed(join, members, own)
    ))
}

/// Whether a member may go, or come, beside these: all others must vote, and be healthy. etcd up to 3.5 takes a member only where each of
/// them has been connected for a while, and one learner at a time; and a removal that nothing can follow costs the cluster one. `gone`: which
/// one goes.
fn others_are_healthy(members: &[SeenMember], gone: Option<&SeenMember>) -> Result<()> {
    let others: Vec<&SeenMember> = members.iter().filter(|one| gone.is_none_or(|gone| one.listed.id != gone.listed.id)).collect();
    let is_well = |one: &&&SeenMember| one.listed.votes && one.health == MemberHealth::Healthy;
    let unhealthy: Vec<String> = others.iter().filter(|one| !is_well(one)).map(|one| one.shown()).collect();
    // Of two members that vote one has no quorum.
    if unhealthy.is_empty() && (others.len() > 1 || gone.is_none_or(|gone| !gone.listed.votes)) {
        return Ok(());
    }
    let (all, healthy) = (others.len() + 1, others.len() - unhealthy.len());
    let missing = if unhealthy.is_empty() {
        "too few for a quorum without this node's".to_owned()
    } else {
        format!("not healthy: {}", unhealthy.join(", "))
    };
    let what = gone.map_or("member of etcd cannot be added", |_| "dead member of etcd cannot be replaced");
    Err(Error::transient(format!("this node's {what}: {healthy} of {all} members are healthy ({missing})"))
        .rule("all other members must be healthy before one is replaced or added")
        .remedy("repair these members first: `journalctl -u etcd` on their masters"))
}

/// Each member as etcd's `initial-cluster` names it: only this node's own name matters there.
fn places(join: &EtcdJoin, members: &[SeenMember]) -> Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    for member in members {
        let name = if member.is_at(&join.peer) { join.name.clone() } else { format!("member-{:x}", member.listed.id) };
        for url in &member.listed.peers {
            if !is_plain(url) {
                return Err(Error::refused(format!("etcd lists a member at {}, which is no URL of a member", quoted(url))));
            }
            all.push((name.clone(), url.clone()));
        }
    }
    Ok(all)
}

/// The id that etcd gives to a member of a new cluster: the first 8 bytes of SHA-1 over its sorted peer URLs and the token (its package
/// `membership`, `member.go`).
pub(super) fn first_id(peers: &[String], token: &str) -> u64 {
    let mut peers = peers.to_vec();
    peers.sort_unstable();
    id_of(format!("{}{token}", peers.concat()).as_bytes())
}

/// The id that etcd gives to a new cluster: of the sorted ids of its members. It keeps it for its life.
pub(super) fn first_cluster(members: &[(String, String)], token: &str) -> u64 {
    let mut ids: Vec<u64> = members.iter().map(|(_, peer)| first_id(std::slice::from_ref(peer), token)).collect();
    ids.sort_unstable();
    id_of(&ids.into_iter().flat_map(u64::to_be_bytes).collect::<Vec<u8>>())
}

fn id_of(bytes: &[u8]) -> u64 {
    digest(&SHA1_FOR_LEGACY_USE_ONLY, bytes).as_ref().iter().take(8).fold(0, |id, byte| (id << 8) | u64::from(*byte))
}

fn quoted(text: &str) -> String {
    shortened(&escaped(text), QUOTED)
}

/// Where a healthy member that votes, and is not this node's, serves clients.
pub(super) fn healthy_url<'a>(join: &EtcdJoin, members: impl IntoIterator<Item = &'a SeenMember>) -> Option<&'a str> {
    let mut others = members.into_iter().filter(|one| one.listed.votes && !one.is_at(&join.peer));
    // It is typed by operators.
    others.find_map(|one| one.healthy_at.as_deref().filter(|url| is_plain(url)))
}

/// Where etcd has no learners.
pub(super) fn second_by_hand<'a>(join: &EtcdJoin, members: impl IntoIterator<Item = &'a SeenMember>) -> Error {
    Error::transient(format!("etcd's cluster has no member {}", join.peer))
        .rule("a second member is added by hand where etcd has no learners (before 3.4): until it runs, the two have no quorum")
        .remedy(typed(join, members, None))
}

/// What an operator types where the agent does not do it: on this node, at a member that is healthy.
pub(super) fn typed<'a>(join: &EtcdJoin, members: impl IntoIterator<Item = &'a SeenMember>, remove: Option<u64>) -> String {
    let Some(endpoint) = healthy_url(join, members) else {
        return "repair the other members first: `journalctl -u etcd` on their masters".to_owned();
    };
    let mut etcdctl = format!("ETCDCTL_API=3 etcdctl --endpoints {endpoint}");
    if let Some(identity) = &join.identity {
        let _ = write!(etcdctl, " --cacert {} --cert {} --key {}", identity.ca, identity.certificate, identity.key);
    }
    let remove = remove.map(|id| format!("`{etcdctl} member remove {id:x}`, then ")).unwrap_or_default();
    format!("on this node {remove}`{etcdctl} member add {} --peer-urls={}`", join.name, join.peer)
}
