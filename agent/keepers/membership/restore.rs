//! etcd is restored from a snapshot as a new cluster of this node's member: whether it may be, and how its data is replaced.
//!
//! In: the node's member, what the others answer. Out: data of a new cluster in the place of the old, which lies beside. Never: a new cluster
//! beside one that has a quorum, or may have one as far as a network can say.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::address::is_same;
use super::decision::{MemberData, SeenMember, first_cluster};
use super::leave::is_away;
use super::{ETCD, Heard, ask, block, data, is_nobody_at};
use crate::concurrent::all;
use crate::converge::etcd::Etcd;
use crate::desired::{Desired, EtcdAccess, EtcdJoin, EtcdMember};
use crate::error::remedy::Remedy;
use crate::error::{Error, Result};
use crate::files::{Attributes, Tree};
use crate::http::Http;
use crate::keepers::etcd_snapshots::{RestoredMember, client_arguments};
use crate::kubernetes::{ETCD_DATA, ETCD_READERS, ETCD_UNIT};
use crate::report::{Code, Event, Report};

/// In the state directory while a restore has been begun and has not ended.
const MARKER: &str = "etcd-restore.json";

/// What is left to do on this master, where the agent does not do it by itself.
const RESTARTS: &str = "The agent starts etcd and restarts the API server, controller manager and scheduler by itself, unless something else differs \
on the node or its last update failed: then `systemctl start etcd`, and `systemctl restart kube-apiserver kube-controller-manager kube-scheduler`.";

/// A restore that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RestoreMarker {
    pub(crate) schema: u32,
    /// The snapshot.
    pub(crate) file: PathBuf,
    /// Of the new cluster.
    pub(crate) token: String,
    /// Whether the agent ran before.
    #[serde(rename = "starts_agent")]
    pub(crate) agent_ran: bool,
    /// Whether only the agent is still to be started.
    #[serde(default)]
    pub(crate) is_done: bool,
    /// The node's member, by its name and its peers' address.
    #[serde(default)]
    pub(crate) member: Option<(String, String)>,
    /// Of the snapshot, which was verified.
    #[serde(default)]
    pub(crate) revision: Option<u64>,
    /// What is left to do on the other masters once the data is replaced, a line each.
    #[serde(default)]
    pub(crate) left: Vec<String>,
}

impl RestoreMarker {
    /// The restore in progress.
    ///
    /// # Errors
    /// If the marker cannot be read; the remedy removes it.
    pub(crate) fn read(state: &Tree) -> Result<Option<Self>> {
        let path = state.base().join(MARKER);
        let begins_anew =
            |error: Error| error.remedy(format!("`rm {}`, then run the restore again: it begins anew", path.display()));
        state.read_json(Path::new(MARKER)).map_err(begins_anew)
    }

    /// Whether the data is that of this restore, as far as can be seen.
    fn is_in_place(&self, root: &Tree) -> bool {
        let member = self.member.clone().map(|(name, peer)| RestoredMember { name, peer, token: self.token.clone() });
        member.is_some_and(|member| is_restored(root, &member).unwrap_or_default())
    }

    pub(crate) fn write(&self, state: &Tree) -> Result<()> {
        state.write_json(Path::new(MARKER), self, Attributes::mode(0o600))
    }

    /// True: there was one.
    pub(crate) fn remove(state: &Tree) -> Result<bool> {
        state.remove(Path::new(MARKER))
    }
}

/// Ends a restore that was cut off, and reports it: the agent has started, etcd is used from here on, and who restores it later means the
/// snapshot and not what became of it. Who has to be restarted with the new data was noted before it was replaced.
pub(crate) fn end_cut_off(root: &Tree, state: &Tree, report: &Report) -> Result<()> {
    // One that cannot be read has not ended either.
    let begun = RestoreMarker::read(state).unwrap_or_default();
    if !RestoreMarker::remove(state)? || begun.as_ref().is_some_and(|begun| begun.is_done) {
        return Ok(());
    }
    let file = begun.as_ref().map_or(String::new(), |begun| format!(" from {}", begun.file.display()));
    let event = Event::new(Code::EtcdRestoreUnfinished, format!("a restore of etcd{file} was interrupted and has not ended"));
    report.emit(match begun.filter(|begun| begun.is_in_place(root)) {
        Some(begun) if begun.left.is_empty() => {
            event.cause("the snapshot is in place, and no other master is listed").remedy(Remedy::said(RESTARTS))
        }
        Some(begun) => event.cause("the snapshot is in place; the other masters still belong to the old cluster").remedy(
            Remedy::said(format!(
                "{RESTARTS} Then, one master after the other, each when etcd is healthy on the one before: {}.",
                begun.left.join("; ")
            )),
        ),
        None => event,
    });
    Ok(())
}

/// What of etcd's cluster runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Living {
    /// Whether this node's etcd has a leader, and so a quorum.
    pub(crate) own: bool,
    /// Where others are.
    pub(crate) others: Vec<String>,
    /// Others that are, or may be, there and could not be asked: why not.
    pub(crate) unasked: Vec<String>,
}

impl Living {
    /// Whether etcd may be restored. `has_begun`: a restore was cut off, behind which etcd may be whatever it is.
    ///
    /// # Errors
    /// Refused where a quorum lives, or may.
    pub(crate) fn permits(&self, has_begun: bool) -> Result<()> {
        let rule = "a restore begins a new cluster, and gives up what the old one has";
        if let Some(other) = self.others.first() {
            return Err(Error::refused(format!("etcd's member at {other} has a leader: its cluster has a quorum"))
                .rule(rule)
                .remedy(
                    "have this master join that cluster (an update of the stack does); only if that cluster is to be given up, \
                 `systemctl stop heat-node-agent etcd` on all other masters",
                ));
        }
        if !self.unasked.is_empty() {
            return Err(Error::refused(format!("whether others have a quorum is not known: {}", self.unasked.join("; ")))
                .rule(rule)
                .remedy("`systemctl stop heat-node-agent etcd` there, or correct what keeps this node from asking"));
        }
        if self.own && !has_begun {
            return Err(Error::refused("this node's etcd has a quorum").rule(rule).remedy(format!(
                "nothing has to be restored; only if what it holds is to be given up for the snapshot, `systemctl stop {ETCD_UNIT}` and again"
            )));
        }
        Ok(())
    }
}

/// Looks at the node's own member and at all that it, or the parameters, list.
pub(crate) async fn look(http: &Http, asked: &[Desired], own: &EtcdMember) -> Living {
    let peers_access = |peer: &str| EtcdAccess { endpoint: peer.to_owned(), ..own.as_peer() };
    let client = Etcd::new(http, &own.access, ETCD);
    let joins = asked.iter().filter_map(|desired| desired.etcd_join.as_deref());
    let mut peers: Vec<String> = joins.flat_map(|join| &join.members).map(|(_, peer)| peer.clone()).collect();
    if let Ok((_, list)) = Etcd::new(http, &peers_access(&own.peer), ETCD).listed().await {
        peers.extend(list.into_iter().flat_map(|member| member.peers));
    }
    peers.retain(|peer| !is_same(peer, &own.peer));
    peers.sort_unstable();
    peers.dedup();
    let mut found = Living::default();
    match seen_at(http, &client, &own.access.endpoint).await {
        Seen::Leader => found.own = true,
        Seen::None => {}
        Seen::Unknown => found.unasked.push(format!("{}: no answer says whether it has a leader", own.access.endpoint)),
    }
    let mut urls = Vec::new();
    for (peer, heard) in
        all(peers.iter().map(async |peer| (peer, ask(http, &Etcd::new(http, &peers_access(peer), ETCD), peer).await))).await
    {
        match heard {
            // Its own clients' address, and no other's: this node may be listed there.
            Heard::List(view) => {
                let is_it = |member: &SeenMember| member.listed.peers.iter().any(|url| is_same(url, peer));
                match view.members.into_iter().find(is_it) {
                    // One that has had no leader since its start lists no address of its own, and opens none.
                    Some(member) => urls.extend(member.listed.clients),
                    None => found.unasked.push(format!("{peer}: it is not in its own list of members")),
                }
            }
            Heard::Nobody => {}
            Heard::Unasked(error) => found.unasked.push(format!("{peer}: {}", error.cause_first())),
        }
    }
    for url in urls {
        match seen_at(http, &client, &url).await {
            Seen::Leader => found.others.push(url),
            Seen::None => {}
            Seen::Unknown => found.unasked.push(format!("{url}: no answer says whether it has a leader")),
        }
    }
    found
}

/// What is known of a member.
enum Seen {
    /// It has a leader, as most members of its cluster do then.
    Leader,
    /// It has none, or nobody is there.
    None,
    /// Somebody is there, or may be.
    Unknown,
}

async fn seen_at(http: &Http, client: &Etcd, url: &str) -> Seen {
    match client.has_leader(url).await {
        Some(true) => Seen::Leader,
        Some(false) => Seen::None,
        None if is_nobody_at(http, url).await => Seen::None,
        None => Seen::Unknown,
    }
}

/// Refuses to write below the mount point of a volume that is not there.
///
/// # Errors
/// If etcd's volume is not mounted, or nobody can say whether it is.
pub(crate) fn check_volume(asked: &[Desired]) -> Result<()> {
    if is_away(asked.first().into_iter().flat_map(|desired| &desired.volumes))? {
        return Err(Error::refused("the etcd volume is not mounted").remedy("`heat-node-agent status` says why; mount it first"));
    }
    Ok(())
}

/// Whether the data is that of this new cluster.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn is_restored(root: &Tree, member: &RestoredMember) -> Result<bool> {
    let cluster = first_cluster(&[(member.name.clone(), member.peer.clone())], &member.token);
    Ok(matches!(data(root, ETCD_DATA)?, MemberData::Present(Some(ids)) if ids.cluster == cluster))
}

/// Puts what was unpacked in the place of the data, while etcd is stopped; where the data lies now, if there was any. Cut off in the middle, the
/// data is the old or the new, and never none, with which a member without a list would start a cluster that is empty; only where the file
/// system cannot exchange two names is there a moment without.
///
/// # Errors
/// If something cannot be renamed: the same once more goes on.
pub(crate) fn replace(root: &Tree, join: Option<&EtcdJoin>, unpacked: &Path, stamp: &str) -> Result<Option<PathBuf>> {
    if let Some(join) = join {
        block(root, join)?;
    }
    let folder = Path::new(ETCD_DATA);
    let member = folder.join("member");
    let unpacked = unpacked.join("member");
    if root.facts(&member)?.is_none() {
        root.rename(&unpacked, &member)?;
        return Ok(None);
    }
    let mut aside = folder.join(format!("member.replaced-{stamp}"));
    // A run that was killed in this very second has left one.
    while root.facts(&aside)?.is_some() {
        aside.as_mut_os_string().push("x");
    }
    // The next run removes what is unpacked: the old data must not be there, not even for a moment.
    root.rename(&unpacked, &aside)?;
    if !root.exchange(&aside, &member)? {
        root.rename(&aside, &unpacked)?;
        root.rename(&member, &aside)?;
        root.rename(&unpacked, &member)?;
    }
    Ok(Some(aside))
}

/// What is to be typed so that the others join the new cluster, a line each: first all members of the old one end, so that nobody who joins
/// hears of two clusters. The API server there believes that etcd's revisions only grow.
pub(crate) fn joining(own: &EtcdMember, join: Option<&EtcdJoin>, stamp: &str) -> Vec<String> {
    let mut etcdctl = format!("ETCDCTL_API=3 etcdctl --endpoints={}", own.access.endpoint);
    for argument in client_arguments(own.access.identity.as_ref()) {
        etcdctl.push(' ');
        etcdctl.push_str(&argument);
    }
    let others: Vec<_> = join.iter().flat_map(|join| &join.members).filter(|(_, peer)| !is_same(peer, &own.peer)).collect();
    let readers = ETCD_READERS.map(|unit| unit.trim_end_matches(".service")).join(" ");
    let end = |(name, _): &&(String, String)| {
        format!(
            "on {name}: systemctl stop heat-node-agent etcd {readers}; mv {ETCD_DATA}/member {ETCD_DATA}/member.replaced-{stamp}"
        )
    };
    let join = |(name, peer): &&(String, String)| {
        [
            format!("here: {etcdctl} member add {name} --peer-urls={peer}"),
            format!("on {name}: systemctl start heat-node-agent; heat-node-agent repair"),
        ]
    };
    others.iter().map(end).chain(others.iter().flat_map(join)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Attributes;

    #[test]
    fn nothing_is_restored_where_a_quorum_lives_or_may() {
        let here = |urls: &[&str]| urls.iter().map(|&url| url.to_owned()).collect::<Vec<_>>();
        for (own, others, unasked, has_begun, expected) in [
            (false, &[][..], &[][..], false, None),
            (true, &[], &[], false, Some("this node's etcd has a quorum")),
            (true, &[], &[], true, None),
            (false, &["https://192.0.2.2:2379"], &[], false, Some("192.0.2.2:2379 has a leader")),
            (true, &["https://192.0.2.2:2379"], &[], true, Some("192.0.2.2:2379 has a leader")),
            (false, &[], &["https://192.0.2.3:2380: bad certificate"], false, Some("bad certificate")),
            (false, &[], &["https://192.0.2.3:2380: bad certificate"], true, Some("bad certificate")),
        ] {
            let living = Living { own, others: here(others), unasked: here(unasked) };
            match (living.permits(has_begun), expected) {
                (Ok(()), None) => {}
                (Err(error), Some(words)) => {
                    assert!(error.cause().contains(words) && error.suggested_remedy().is_some(), "{error}");
                }
                (other, _) => panic!("{living:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn data_is_replaced_once_and_what_was_there_is_kept_wherever_it_is_cut_off() {
        let stage_one = |tree: &Tree, folder: &str| {
            let folder = Path::new(ETCD_DATA).join(folder);
            tree.create_dir_all(&folder, Attributes::mode(0o700)).unwrap();
            tree.write(&folder.join("of"), folder.to_str().unwrap().as_bytes(), Attributes::mode(0o600)).unwrap();
        };
        let stage_new = |tree: &Tree| {
            stage_one(tree, "restoring/member");
            Path::new(ETCD_DATA).join("restoring")
        };
        let stage = || {
            let dir = tempfile::tempdir().unwrap();
            let tree = Tree::open(dir.path()).unwrap();
            stage_one(&tree, "member");
            stage_new(&tree);
            (dir, tree)
        };
        let unpacked = Path::new(ETCD_DATA).join("restoring");
        let of = |tree: &Tree, folder: &str| {
            let found = tree.read(&Path::new(ETCD_DATA).join(folder).join("of"), 999).unwrap();
            found.map(|text| String::from_utf8(text).unwrap().contains("restoring"))
        };
        for changes in 0..=2 {
            let (dir, tree) = stage();
            let cut = Tree::open(dir.path()).unwrap().breaking_after(changes).unwrap();
            let first = replace(&cut, None, &unpacked, "1");
            assert_eq!(first.is_ok(), changes == 2, "{changes}");
            assert_eq!(of(&tree, "member"), Some(changes == 2), "{changes}: there is data whenever the power fails");
            let mut aside = first.as_ref().ok().cloned().flatten();
            if first.is_err() {
                let again = stage_new(&tree);
                // In the same second.
                aside = replace(&tree, None, &again, "1").unwrap();
            }
            assert_eq!(of(&tree, "member"), Some(true));
            assert_eq!(of(&tree, aside.unwrap().file_name().unwrap().to_str().unwrap()), Some(false), "{changes}");
        }
    }

    #[test]
    fn the_others_are_told_what_to_type() {
        let member = |number: u32| (format!("m{number}"), format!("http://192.0.2.{number}:2380"));
        let access = EtcdAccess { endpoint: "http://127.0.0.1:2379".to_owned(), identity: None };
        let own = EtcdMember {
            access,
            peer: member(1).1,
            peer_identity: None,
            is_single: false,
            name: "m1".to_owned(),
            keeps_v2: false,
        };
        let join = EtcdJoin::first_of(vec![member(1), member(2), member(3)]);
        let lines = joining(&own, Some(&join), "T");
        assert_eq!(lines.len(), 6);
        assert!(lines[1].starts_with("on m3: systemctl stop heat-node-agent etcd kube-apiserver "), "{lines:?}");
        assert_eq!(
            lines[2],
            "here: ETCDCTL_API=3 etcdctl --endpoints=http://127.0.0.1:2379 member add m2 --peer-urls=http://192.0.2.2:2380"
        );
        assert!(lines[0].starts_with("on m2: systemctl stop heat-node-agent etcd kube-apiserver "), "{lines:?}");
        assert!(joining(&own, None, "T").is_empty());
    }
}
