//! The node's member of etcd: what its cluster says of it, and how it leaves.

use std::path::Path;

use super::plan::{EtcdMembership, LeavingMember, Member};
use crate::converge::etcd::Etcd;
use crate::desired::{Desired, EtcdAccess, EtcdMember};
use crate::error::Result;
use crate::files::Tree;
use crate::http::Http;
use crate::keepers::certificates::quorum::unhealthy;
use crate::kubernetes::ETCD_DATA;
use crate::storage::probe::DiskProbe;

/// As causes call them.
const OWN: &str = "the node's etcd";
const OTHER: &str = "another member of etcd";

/// What etcd says of the node's own member; `leaving`: the one that a reset before began to remove.
pub(super) async fn look(
    http: &Http,
    root: &Tree,
    asked: &[Desired],
    own: &EtcdMember,
    leaving: Option<LeavingMember>,
) -> Member {
    let has_data = root.facts(Path::new(ETCD_DATA)).ok().flatten().is_some();
    let mounts = DiskProbe::machine().read_mounts().unwrap_or_default();
    let is_away = asked.iter().flat_map(|desired| &desired.volumes).any(|volume| {
        Path::new(ETCD_DATA).starts_with(&volume.mount_point) && !mounts.iter().any(|mount| mount.point == volume.mount_point)
    });
    if !has_data && !is_away {
        return Member::None;
    }
    let etcd = Etcd::new(http, &own.access, OWN);
    match (Etcd::new(http, &own.as_peer(), OWN).members(&own.peer).await, leaving) {
        (Err(_), Some(leaving)) => Member::Leaving(leaving),
        (Err(error), None) => Member::Unknown(error.to_string()),
        (Ok(members), _) => Member::Of(EtcdMembership {
            id: members.own.clone(),
            all: members.all.len(),
            unhealthy: unhealthy(&etcd, &members).await,
            others: members.others().flat_map(|member| &member.urls).cloned().collect(),
        }),
    }
}

/// Has a healthy one of the other members remove it, and asks its own etcd only if none does: that one ends as soon as it is removed,
/// perhaps before it has answered (etcd answers 503, "server stopped").
///
/// # Errors
/// If nobody removes it: what the last one said.
pub(super) async fn remove(http: &Http, access: &EtcdAccess, leaving: &LeavingMember) -> Result<()> {
    let own = Etcd::new(http, access, OWN);
    for url in &leaving.others {
        let other = Etcd::new(http, &EtcdAccess { endpoint: url.clone(), identity: access.identity.clone() }, OTHER);
        if own.is_healthy(url).await && other.remove_member(&leaving.id).await.is_ok() {
            return Ok(());
        }
    }
    own.remove_member(&leaving.id).await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::Clock;
    use crate::http::Tls;
    use crate::http::fake::{Act, Fake, ok, status};

    async fn removed_by(others: Vec<Vec<Act>>, own: Vec<Act>) -> (bool, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let http = Http::new(Tls::default(), Arc::new(Tree::open(dir.path()).unwrap()), Clock::system());
        let mut servers = Vec::new();
        for acts in others {
            servers.push(Fake::start(acts).await);
        }
        let leaving = LeavingMember { id: "77".into(), others: servers.iter().map(|server| server.base.clone()).collect() };
        servers.push(Fake::start(own).await);
        let access = EtcdAccess { endpoint: servers.last().unwrap().base.clone(), identity: None };
        let result = remove(&http, &access, &leaving).await;
        let path = |request: &String| request.split([' ', '?']).nth(1).unwrap_or_default().to_owned();
        let asked = servers.iter().zip(["a", "b", "own"].into_iter().skip(3 - servers.len())).flat_map(|(server, name)| {
            server.requests().iter().map(|request| format!("{name} {}", path(request))).collect::<Vec<_>>()
        });
        (result.is_ok(), asked.collect())
    }

    const REMOVE: &str = "/v3/cluster/member/remove";

    #[tokio::test]
    async fn a_healthy_other_member_removes_it_and_its_own_only_if_none_does() {
        let healthy = || ok(r#"{"health": "true"}"#);
        let version = || ok(r#"{"etcdserver": "3.4.23"}"#);
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
