//! One source over the network, asked by itself: for os-collect-config by its own name, which follows no other source and keeps no list.

use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value};

use super::endpoint::Endpoint;
use super::poll::{PollCache, Tools};
use super::section::Section;
use super::source_set::{HintOrigin, SourceSet, keys};
use crate::error::Result;
use crate::http::Http;
use crate::openstack::keystone::Keystone;
use crate::settings::source_name::SourceName;

/// A source, with what the answer before left: tokens, and the condition by which an unchanged object is not sent again
/// (heat-protocol.md R14, R15).
pub struct SingleSource {
    endpoint: Endpoint,
    tools: Tools,
    memory: PollCache,
    document: Map<String, Value>,
}

impl SingleSource {
    /// The source with the settings that `values` gives by their names; nothing where they name none.
    ///
    /// # Errors
    /// If they are a part of what the source needs, or cannot be used.
    pub fn new(
        name: SourceName,
        values: impl Fn(&'static str) -> Vec<String>,
        http: &Http,
        keystone: Keystone,
        deadline: Duration,
    ) -> Result<Option<Self>> {
        let mut section = Section::default();
        for key in keys(name) {
            section.take(key, values(key));
        }
        let Some(set) = SourceSet::of(name, HintOrigin::Config, &section, false)? else { return Ok(None) };
        let endpoint = set.endpoint(None);
        let http = endpoint.ca().map_or_else(|| http.clone(), |ca| http.with_endpoint_ca(Path::new(ca)));
        let tools = Tools { http, keystone, deadline };
        Ok(Some(Self { endpoint, tools, memory: PollCache::default(), document: Map::new() }))
    }

    /// Asks once: what the source says now.
    ///
    /// # Errors
    /// No answer, or none that can be used.
    pub async fn ask(&mut self) -> Result<Map<String, Value>> {
        let mut memory = self.memory.clone();
        if let Some(read) = self.endpoint.fetch(&self.tools, &mut memory).await? {
            self.document = read()?;
        }
        // Only what was understood is what the next answer is compared with.
        self.memory = memory;
        Ok(self.document.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::clock::Clock;
    use crate::files::Tree;
    use crate::http::Tls;
    use crate::http::fake::{Act, Fake, ok, status};

    #[tokio::test]
    async fn what_did_not_change_is_not_sent_again_and_what_cannot_be_read_is_asked_for_again() {
        let tagged = |body: &str| Act::Answer("200 OK", vec!["ETag: \"a\"".to_owned()], body.as_bytes().to_vec());
        let heat = Fake::start(vec![tagged("[]"), tagged("{\"a\": 1}"), status("304 Not Modified", ""), ok("{\"a\": 2}")]).await;
        let clock = Clock::system();
        let http = Http::new(Tls::default(), Arc::new(Tree::open(Path::new("/")).unwrap()), clock.clone());
        let url = format!("{}/object", heat.base);
        let make = |values: &dyn Fn(&'static str) -> Vec<String>| {
            SingleSource::new(SourceName::Request, values, &http, Keystone::new(clock.clone()), Duration::from_secs(5)).unwrap()
        };
        assert!(make(&|_| vec![String::new()]).is_none());
        let mut source = make(&|key| if key == "metadata_url" { vec![url.clone()] } else { Vec::new() }).unwrap();
        assert!(source.ask().await.unwrap_err().to_string().contains("is a list"));
        for expected in [1, 1, 2] {
            assert_eq!(Value::Object(source.ask().await.unwrap()), json!({"a": expected}));
        }
        let conditional: Vec<_> = heat.requests().iter().map(|request| request.contains("if-none-match")).collect();
        assert_eq!(conditional, [false, false, true, true]);
    }
}
