//! What sources over the network are asked with: HTTP clients and tokens, kept from one poll to the next.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::endpoint::Endpoint;
use super::poll::Tools;
use crate::http::Http;
use crate::openstack::keystone::Keystone;
use crate::settings::source_name::SourceName;

/// The clients of all sources.
pub(super) struct Clients {
    http: Http,
    keystone: Keystone,
    /// Those for endpoints with a CA of their own, kept so that their connections stay open.
    own: BTreeMap<SourceName, (PathBuf, Http)>,
}

impl Clients {
    pub(super) fn new(http: Http, keystone: Keystone) -> Self {
        Self { http, keystone, own: BTreeMap::new() }
    }

    /// The tokens that the sources use.
    pub(super) fn keystone(&self) -> &Keystone {
        &self.keystone
    }

    /// The client of endpoints that have no CA of their own.
    pub(super) fn http(&self) -> &Http {
        &self.http
    }

    /// With what one endpoint of a source is asked.
    pub(super) fn tools(&mut self, name: SourceName, endpoint: &Endpoint, deadline: Duration) -> Tools {
        Tools { http: self.http_for(name, endpoint), keystone: self.keystone.clone(), deadline }
    }

    fn http_for(&mut self, name: SourceName, endpoint: &Endpoint) -> Http {
        let Some(ca) = endpoint.ca().map(Path::new) else { return self.http.clone() };
        match self.own.get(&name) {
            Some((known, http)) if known == ca => http.clone(),
            _ => {
                let http = self.http.with_endpoint_ca(ca);
                self.own.insert(name, (ca.to_owned(), http.clone()));
                http
            }
        }
    }
}
