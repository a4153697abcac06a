//! The network of pods while the node is brought up: its description in etcd, this node's subnet, routes to the pods of the others,
//! and whether packets go that way.
//!
//! In: flannel's part of a `Desired`, its leases in etcd, the kernel's routes and addresses. Out: whether each gate holds and, if not, what
//! is wrong; on masters the key in etcd. Never: a route, which flanneld or a unit of ours sets; a lease, which is flanneld's.

pub mod inspection;
mod keeper;
mod key;
pub mod packets;
#[cfg(test)]
mod tests;

use futures_util::future::join_all;

use super::etcd::Etcd;
use crate::desired::{FlannelStore, Peer};
use crate::error::Result;
use crate::http::Http;
use crate::network::flannel::{Api, Version, api};
use crate::network::routes;
use crate::reach;
pub(super) use keeper::FlannelConfigWaiter;
use packets::{Question, Replies};

/// As causes call it.
const ETCD: &str = "flannel's etcd";

/// What the network of pods is asked.
pub trait PodNetwork {
    /// Looks once at the description in etcd; a node that writes it puts it there, or changes it. True if it wrote.
    /// `flanneld`: the installed release, which says by which API it reads.
    fn describe(&self, store: &FlannelStore, flanneld: Option<Version>) -> impl Future<Output = Result<bool>>;
    /// What [`PodNetwork::describe`] would refuse for good, found without a change.
    fn refuse(&self, store: &FlannelStore, flanneld: Option<Version>) -> impl Future<Output = Result<()>>;
    /// Everybody with a lease, this node too.
    fn leases(&self, store: &FlannelStore, flanneld: Option<Version>) -> impl Future<Output = Result<Vec<Peer>>>;
    /// Sends packets to the pods of each.
    fn send(&self, questions: &[Question]) -> impl Future<Output = Vec<Replies>>;
}

impl PodNetwork for Http {
    async fn describe(&self, store: &FlannelStore, flanneld: Option<Version>) -> Result<bool> {
        key::settle(&Etcd::new(self, &store.etcd, ETCD), store, flanneld).await
    }

    async fn refuse(&self, store: &FlannelStore, flanneld: Option<Version>) -> Result<()> {
        key::refuse(&Etcd::new(self, &store.etcd, ETCD), store, flanneld).await
    }

    async fn leases(&self, store: &FlannelStore, flanneld: Option<Version>) -> Result<Vec<Peer>> {
        Leases::open(self, store, flanneld).read().await
    }

    async fn send(&self, questions: &[Question]) -> Vec<Replies> {
        let clock = self.clock();
        let ask = async |question: &Question| {
            let Question { peer, bridge, node } = *question;
            let (far, near) = (packets::far(peer.subnet), packets::near(peer.subnet));
            let ask = |from, to, one_hop| reach::ask(clock, from, to, one_hop);
            let (control, far, near) = tokio::join!(ask(node, far, true), ask(bridge, far, true), ask(bridge, near, false));
            Replies { peer, control, far, near }
        };
        join_all(questions.iter().map(ask)).await
    }
}

/// flannel's leases, read again and again over one connection.
#[derive(Debug)]
pub struct Leases {
    etcd: Etcd,
    directory: String,
    /// By which API; where the release is not known, the one that has leases.
    api: std::cell::Cell<Option<Api>>,
}

impl Leases {
    /// Connects when it is read first.
    #[must_use]
    pub fn open(http: &Http, store: &FlannelStore, flanneld: Option<Version>) -> Self {
        let api = std::cell::Cell::new(flanneld.map(api));
        Self { etcd: Etcd::new(http, &store.etcd, ETCD), directory: key::directory(store), api }
    }

    /// Everybody with a lease of host-gw, this node too.
    ///
    /// # Errors
    /// If etcd cannot be asked.
    pub async fn read(&self) -> Result<Vec<Peer>> {
        if let Some(api) = self.api.get() {
            return self.list(api).await;
        }
        for api in [Api::V3, Api::V2] {
            if self.etcd.serves(api).await? {
                let found = self.list(api).await?;
                if !found.is_empty() {
                    self.api.set(Some(api));
                    return Ok(found);
                }
            }
        }
        Ok(Vec::new())
    }

    async fn list(&self, api: Api) -> Result<Vec<Peer>> {
        let found = self.etcd.list(api, &self.directory).await?;
        Ok(found.iter().filter_map(|entry| routes::lease(&entry.key, &entry.value)).collect())
    }
}
