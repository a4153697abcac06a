//! etcd on a master: its release, its members, its snapshots.

use std::time::Duration;

use super::row::{Row, Verdict};
use crate::network::flannel::{Version, version_of};

/// A member, as it answers itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdMemberState {
    /// Its name; its peer's address until it has started.
    pub name: String,
    /// What its `/version` says, where it answers.
    pub release: Option<String>,
    /// Whether it says that it is healthy.
    pub healthy: bool,
    /// Whether it has ever started.
    pub started: bool,
}

/// The newest snapshot of this master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LatestSnapshot {
    /// So old.
    Taken(Duration),
    /// There is none.
    None,
    /// This master has no etcd volume, where the agent would keep them.
    NoVolume,
    /// Kubernetes keeps its objects in the v2 store, which snapshots lack.
    OfV2,
    /// It could not be looked for.
    Unreadable(String),
}

/// So old, a snapshot lacks too much.
const RECENT: Duration = Duration::from_hours(1);

const RELEASE: &str = "etcd";
const MEMBERS: &str = "etcd members";
const SNAPSHOT: &str = "etcd snapshot";

fn shown((major, minor): Version) -> String {
    format!("{major}.{minor}")
}

/// One minor at a time, and never back. A major counts as one: 3.0 follows 2.3.
fn is_step((from_major, from): Version, (to_major, to): Version) -> bool {
    match to_major.checked_sub(from_major) {
        Some(0) => to <= from.saturating_add(1),
        Some(1) => (from_major, from) == (2, 3) && to == 0,
        _ => false,
    }
}

/// The release that is installed, against those that run.
#[must_use]
pub fn etcd_release(installed: &Result<String, String>, members: &Result<Vec<EtcdMemberState>, String>) -> Row {
    let members = match members {
        Ok(members) => members,
        Err(cause) => return Row::unknown(RELEASE, format!("the members are not known: {cause}"), NO_MEMBERS),
    };
    let running: Vec<(Version, &str)> =
        members.iter().filter_map(|one| Some((version_of(one.release.as_deref()?)?, one.name.as_str()))).collect();
    let (Some((low, low_name)), Some((high, high_name))) = (running.iter().min(), running.iter().max()) else {
        return Row::unknown(RELEASE, "no member says its release", NO_MEMBERS);
    };
    let runs = if low == high { format!("{} runs", shown(*low)) } else { format!("{} to {} run", shown(*low), shown(*high)) };
    let mut row = match installed.as_ref().map(|text| (text, version_of(text))) {
        Ok((text, Some(new))) => {
            let mut row = Row::ok(RELEASE, format!("{runs}, {} is installed", text.trim_start_matches("etcd Version: ")));
            if new < *high {
                row.problem(
                    format!("{high_name} runs {}, and {} is installed here: that would be a downgrade", shown(*high), shown(new)),
                    format!("install etcd {} or later", shown(*high)),
                );
            } else if !is_step(*low, new) {
                row.problem(
                    format!(
                        "{low_name} runs {}, and {} is installed here: etcd goes one minor at a time",
                        shown(*low),
                        shown(new)
                    ),
                    format!("install the minor after {} first, on every master", shown(*low)),
                );
            }
            row
        }
        Ok((_, None)) => {
            Row::unknown(RELEASE, format!("{runs}; `etcd --version` names no release"), "check what is installed as etcd")
        }
        Err(cause) => Row::unknown(
            RELEASE,
            format!("{runs}; the installed etcd does not say its release: {cause}"),
            "check what is installed as etcd",
        ),
    };
    let silent: Vec<&str> = members.iter().filter(|one| one.release.is_none()).map(|one| one.name.as_str()).collect();
    if !silent.is_empty() {
        row.add(Verdict::Unknown, format!("{} does not say its release", silent.join(", ")), NO_MEMBERS);
    }
    row
}

const NO_MEMBERS: &str = "see that etcd runs on every master (`systemctl status etcd`), then check again";

/// Whether each member is there and healthy: a restart of one costs the quorum else.
#[must_use]
pub fn etcd_members(members: &Result<Vec<EtcdMemberState>, String>) -> Row {
    let members = match members {
        Ok(members) => members,
        Err(cause) => return Row::unknown(MEMBERS, format!("they are not known: {cause}"), NO_MEMBERS),
    };
    let many = if members.len() == 1 { "member" } else { "members" };
    let healthy = members.iter().filter(|member| member.healthy).count();
    let mut row = Row::ok(MEMBERS, format!("{healthy} of {} {many} healthy", members.len()));
    for member in members.iter().filter(|member| !member.healthy) {
        let (name, state) = (&member.name, if member.started { "is not healthy" } else { "has not started yet" });
        row.problem(
            format!("member {name} {state}: with another one restarting, etcd may lose its quorum"),
            "see that etcd runs there (`journalctl -u etcd`), or remove the member if its server is gone (`etcdctl member remove`)",
        );
    }
    row
}

/// Whether there is a way back.
#[must_use]
pub fn etcd_snapshot(newest: &LatestSnapshot) -> Row {
    let take = "take one: `heat-node-agent etcd snapshot`";
    let mut row = Row::new(SNAPSHOT);
    match newest {
        LatestSnapshot::Taken(age) if *age <= RECENT => {
            row.findings.push(format!("the newest one of this master is {} old", minutes(*age)));
        }
        LatestSnapshot::Taken(age) => {
            row.problem(
                format!("the newest one of this master is {} old: what was written since would be lost", minutes(*age)),
                take,
            );
        }
        LatestSnapshot::None => row.problem("this master has none: without one there is no way back", take),
        LatestSnapshot::NoVolume => row.add(
            Verdict::Unknown,
            "this master has no etcd volume, and the agent keeps no snapshots elsewhere",
            "take one, if there is none yet: `heat-node-agent etcd snapshot FILE`",
        ),
        LatestSnapshot::OfV2 => row.add(
            Verdict::Unknown,
            "Kubernetes up to 1.5 keeps its objects in etcd's v2 store, which snapshots lack",
            "`etcdctl backup --data-dir /var/lib/etcd/default.etcd --backup-dir DIRECTORY`",
        ),
        LatestSnapshot::Unreadable(cause) => row.add(Verdict::Unknown, format!("they could not be listed: {cause}"), take),
    }
    row
}

/// `17 minutes`, `5 hours`, `3 days`.
fn minutes(age: Duration) -> String {
    let minutes = age.as_secs() / 60;
    let (number, unit) = match minutes {
        0..120 => (minutes, "minute"),
        120..2880 => (minutes / 60, "hour"),
        _ => (minutes / 1440, "day"),
    };
    format!("{number} {unit}{}", if number == 1 { "" } else { "s" })
}
