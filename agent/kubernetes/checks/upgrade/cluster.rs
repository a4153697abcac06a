//! What runs in the cluster: API servers and kubelets.

use super::row::{Release, Row, Verdict, most_behind, oldest_for};
use crate::kubernetes::spec::words::Role;
use crate::kubernetes::versions::Minor;

/// An API server, as it says its release itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServer {
    /// Its master, by the address that it was asked at.
    pub name: String,
    /// Its release, or why that is not known.
    pub release: Result<Release, String>,
}

/// A kubelet, as its node's object has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubelet {
    /// The node's name.
    pub node: String,
    /// `status.nodeInfo.kubeletVersion`; none before its first report.
    pub release: Option<Release>,
    /// Whether the node is a master, whose kubelet asks its own API server.
    pub is_master: bool,
}

const NO_DOWNGRADE: &str = "choose the release that runs, or the next minor: an older API server may not understand what a newer one has \
                            stored. The way back is `heat-node-agent etcd restore` of a snapshot that the older release wrote";

/// Names in one line; of many, the first.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    const MOST: usize = 5;
    let all: Vec<&str> = names.collect();
    match all.split_at_checked(MOST) {
        Some((first, rest)) if !rest.is_empty() => format!("{} and {} more", first.join(", "), rest.len()),
        _ => all.join(", "),
    }
}

/// The API servers: within one minor of each other, and the release that is asked for within their reach.
#[must_use]
pub fn api_servers(role: Role, target: Release, servers: &[ApiServer]) -> Row {
    let mut row = Row::new("kube-apiserver");
    let known: Vec<(Release, &str)> =
        servers.iter().filter_map(|one| Some((*one.release.as_ref().ok()?, one.name.as_str()))).collect();
    let (lowest, highest) = (known.iter().min(), known.iter().max());
    if let (Some((low, low_name)), Some((high, high_name))) = (lowest, highest) {
        let mut releases: Vec<Release> = known.iter().map(|(release, _)| *release).collect();
        releases.sort_unstable();
        releases.dedup();
        row.findings.extend(releases.iter().map(|release| {
            let names = known.iter().filter(|(of, _)| of == release).map(|(_, name)| *name);
            format!("{release} runs at {}", listed(names))
        }));
        if high.minor.number() - low.minor.number() > 1 {
            row.problem(
                format!("{low_name} serves {} and {high_name} {}: API servers may be one minor apart", low.minor, high.minor),
                format!("upgrade the API server of {low_name} to {} first", high.minor.minus(1)),
            );
        }
        match role {
            Role::Master => steps_of_master(&mut row, target.minor, low.minor, high.minor),
            Role::Minion => steps_of_worker(&mut row, target.minor, low.minor, high.minor),
        }
    }
    for server in servers {
        if let Err(cause) = &server.release {
            row.add(
                Verdict::Unknown,
                format!("{} does not say its release: {cause}", server.name),
                "see that it runs (`systemctl status kube-apiserver` there), then check again",
            );
        }
    }
    row
}

fn steps_of_master(row: &mut Row, target: Minor, low: Minor, high: Minor) {
    if target < high {
        row.problem(format!("{high} runs: {target} would be a downgrade"), NO_DOWNGRADE);
    } else if target > low.plus(1) {
        row.problem(
            format!(
                "{target} is {} minors newer than {low}: an API server goes one minor at a time",
                target.number() - low.number()
            ),
            format!("go to {} first, on every master (KUBE_TAG=v{}.PATCH)", low.plus(1), low.plus(1)),
        );
    }
}

fn steps_of_worker(row: &mut Row, target: Minor, low: Minor, high: Minor) {
    if target > low {
        row.problem(
            format!("a kubelet or kube-proxy of {target} would be newer than an API server of {low}"),
            format!("upgrade every master to {target} first"),
        );
    } else if target < oldest_for(high) {
        row.problem(
            format!("a kubelet of {target} is too old for an API server of {high}, which takes {} and newer", oldest_for(high)),
            format!("choose a release from {} to {low}", oldest_for(high)),
        );
    }
}

/// The kubelets that this node may read: on a master those of all nodes, on a worker its own.
#[must_use]
pub fn kubelets(role: Role, target: Release, servers: &[ApiServer], found: &Result<Vec<Kubelet>, String>) -> Row {
    let name = if role == Role::Master { "kubelets" } else { "kubelet" };
    let all = match found {
        Ok(all) => all,
        Err(cause) => {
            return Row::unknown(
                name,
                format!("the nodes could not be read: {cause}"),
                "see that the API server answers, then check again",
            );
        }
    };
    let mut releases: Vec<Release> = all.iter().filter_map(|kubelet| kubelet.release).collect();
    releases.sort_unstable();
    let (Some(first), Some(last)) = (releases.first(), releases.last()) else {
        return Row::unknown(
            name,
            "no node has reported the release of its kubelet",
            "`kubectl get nodes` on a master shows which nodes are Ready",
        );
    };
    let range = if first == last { first.to_string() } else { format!("{first} to {last}") };
    let many = if all.len() == 1 { "node" } else { "nodes" };
    let mut row = Row::ok(name, format!("{range} on {} {many}", all.len()));
    let of = |matches: &dyn Fn(Minor) -> bool| {
        let those = all.iter().filter(|kubelet| kubelet.release.is_some_and(|release| matches(release.minor)));
        listed(those.map(|kubelet| kubelet.node.as_str()))
    };
    let known = || servers.iter().filter_map(|one| Some(one.release.as_ref().ok()?.minor));
    // A worker's kubelet may be led to any API server.
    let newer = all.iter().filter(|kubelet| {
        let api = if kubelet.is_master { known().max() } else { known().min() };
        kubelet.release.zip(api).is_some_and(|(release, api)| release.minor > api)
    });
    let newer = listed(newer.map(|kubelet| kubelet.node.as_str()));
    if !newer.is_empty() {
        row.problem(
            format!("the kubelet of {newer} is newer than an API server that it asks"),
            "upgrade the masters first, or install the older kubelet there again",
        );
    }
    match role {
        Role::Master if first.minor < oldest_for(target.minor) => {
            let (oldest, most) = (oldest_for(target.minor), most_behind(target.minor));
            row.problem(
                format!("the kubelet of {} is more than {most} minors older than {}", of(&|minor| minor < oldest), target.minor),
                format!("upgrade these nodes to {oldest} or later first"),
            );
        }
        Role::Minion if target.minor < last.minor => {
            row.problem(
                format!("{} runs: {} would be a downgrade", last.minor, target.minor),
                format!("choose {} or later; or replace the node by a new one of the older release", last.minor),
            );
        }
        _ => {}
    }
    let silent = all.iter().filter(|kubelet| kubelet.release.is_none()).map(|kubelet| kubelet.node.as_str());
    let silent = listed(silent);
    if !silent.is_empty() {
        row.add(
            Verdict::Unknown,
            format!("{silent} has not reported the release of its kubelet"),
            "`kubectl get nodes` on a master shows which nodes are Ready",
        );
    }
    row
}

/// What a worker cannot see.
#[must_use]
pub fn other_nodes(role: Role) -> Option<Row> {
    (role == Role::Minion).then(|| {
        Row::unknown(
            "other nodes",
            "a kubelet's identity may read its own node only: the kubelets and etcd of the cluster are not known here",
            "run `heat-node-agent upgrade-check` on a master too",
        )
    })
}
