//! The settings that one document has for one source, as they stand there.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::settings::source_name::SourceName;

/// The key of the list of deployments, unless the settings name others.
pub(super) const DEPLOYMENTS: &str = "deployments";

/// The setting that names a source's lists of deployments. Where it is not set for the source, the one for all sources holds.
pub(crate) const DEPLOYMENT_KEY: &str = "deployment_key";

/// The keys below which the documents of a source list deployments (heat-protocol.md R19). `given`: the values of that setting in a section.
pub(crate) fn deployment_keys(source: &str, given: impl Fn(&str) -> Vec<String>) -> Vec<String> {
    let keys = [source, "DEFAULT"].into_iter().map(given).find(|keys| !keys.is_empty());
    keys.unwrap_or_else(|| vec![DEPLOYMENTS.to_owned()])
}

/// The settings that one document has for one source; any of them may be missing. None is empty.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Section(BTreeMap<&'static str, Vec<String>>);

impl Section {
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.all(key).last().map(String::as_str)
    }

    pub(super) fn all(&self, key: &str) -> &[String] {
        self.0.get(key).map(Vec::as_slice).unwrap_or_default()
    }

    /// The values of the settings that a source cannot do without.
    ///
    /// # Errors
    /// Permanent, naming those that are missing.
    pub(super) fn complete<const N: usize>(&self, source: SourceName, needed: [&'static str; N]) -> Result<[&str; N]> {
        self.check(source, &needed)?;
        Ok(needed.map(|key| self.get(key).unwrap_or_default()))
    }

    /// Names those of these settings that are missing.
    ///
    /// # Errors
    /// Permanent, if any is.
    pub(super) fn check(&self, source: SourceName, needed: &[&str]) -> Result<()> {
        let missing: Vec<_> = needed.iter().copied().filter(|key| self.get(key).is_none()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let name = source.as_str();
        Err(Error::permanent(format!("the settings of {name} lack {}", missing.join(", ")))
            .rule(format!("{}; all from one document", needed.join(", ")))
            .remedy(format!("complete [{name}] in os-collect-config.conf, or the os-collect-config metadata of the server")))
    }

    /// What says nothing leaves what is there: null, empty and absent are the same (heat-protocol.md R5).
    pub(super) fn take(&mut self, key: &'static str, values: Vec<String>) {
        let values: Vec<_> = values.into_iter().filter(|value| !value.is_empty()).collect();
        if !values.is_empty() {
            self.0.insert(key, values);
        }
    }

    /// Takes over what another section says, key by key: only for settings that lead nowhere, and to tell files apart.
    pub(super) fn overlay(&mut self, stronger: &Self) {
        self.0.extend(stronger.0.iter().map(|(key, values)| (*key, values.clone())));
    }

    /// Takes a setting out.
    pub(super) fn remove(&mut self, key: &str) -> Vec<String> {
        self.0.remove(key).unwrap_or_default()
    }

    /// For digests, never shown.
    pub(super) fn values(&self) -> &BTreeMap<&'static str, Vec<String>> {
        &self.0
    }

    /// In bytes.
    pub(super) fn size(&self) -> usize {
        self.0.values().flatten().map(String::len).sum()
    }
}
