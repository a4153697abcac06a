//! Where the sources over the network are and with what they are asked: learnt from what cloud-init, the image and Heat
//! left here, and from what Heat's own answers say (heat-protocol.md 1.5, 2.3 to 2.5).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::document::digest_of;
use super::endpoint::Endpoint;
use super::local::LocalFiles;
use super::source::DEPLOYMENTS;
use super::{cfn, heat, request};
use crate::error::{Error, Result};
use crate::settings::SourceName;
use crate::settings::os_collect_config::OsCollectConfig;

/// What is known so far. Never shown: most of it is secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Learnt {
    sections: BTreeMap<SourceName, Section>,
    /// The sources that whoever spoke last asks for; empty where nobody said.
    collectors: Vec<String>,
}

/// The settings of one source; any of them may be missing. None is empty.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Section(BTreeMap<&'static str, Vec<String>>);

/// The settings that a source has.
fn keys(source: SourceName) -> &'static [&'static str] {
    match source {
        SourceName::Cfn => cfn::KEYS,
        SourceName::Heat => heat::KEYS,
        SourceName::Request => request::KEYS,
        _ => &[],
    }
}

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
        let missing: Vec<_> = needed.into_iter().filter(|key| self.get(key).is_none()).collect();
        if missing.is_empty() {
            return Ok(needed.map(|key| self.get(key).unwrap_or_default()));
        }
        let name = source.as_str();
        Err(Error::permanent(format!("the settings of {name} lack {}", missing.join(", ")))
            .rule(format!("heat-protocol.md 2.3 to 2.5: {}", needed.join(", ")))
            .remedy(format!("complete [{name}] in os-collect-config.conf, or the os-collect-config metadata of the server")))
    }

    /// What says nothing leaves what is there: null, empty and absent are the same (heat-protocol.md R5).
    fn take(&mut self, key: &'static str, values: Vec<String>) {
        let values: Vec<_> = values.into_iter().filter(|value| !value.is_empty()).collect();
        if !values.is_empty() {
            self.0.insert(key, values);
        }
    }
}

impl Learnt {
    /// What the files on this machine say: the boot copy, and stronger, os-collect-config.conf.
    pub(super) fn from_files(files: &LocalFiles) -> Self {
        let mut learnt = Self::default();
        if let Some(hint) = &files.hint {
            // The file holds host and port, or the whole URL (heat-protocol.md 1.2, 2.3).
            let base = hint.trim_end_matches('/').trim_end_matches("/v1");
            learnt.section(SourceName::Cfn).take("metadata_url", vec![format!("{base}/v1/")]);
        }
        if let Some(Ok(boot)) = &files.boot {
            learnt.overlay_document(&boot.document);
        }
        learnt.overlay_config(&files.config);
        learnt
    }

    /// Takes over what a server's metadata says of its sources.
    pub(super) fn overlay_document(&mut self, document: &Map<String, Value>) {
        let Some(all) = document.get("os-collect-config") else { return };
        for source in SourceName::REMOTE {
            let Some(settings) = all.get(source.as_str()) else { continue };
            for key in keys(source) {
                self.section(source).take(key, texts(settings.get(key)));
            }
        }
        let collectors = texts(all.get("collectors"));
        if !collectors.is_empty() {
            self.collectors = collectors;
        }
    }

    fn overlay_config(&mut self, config: &OsCollectConfig) {
        for source in SourceName::REMOTE {
            for key in keys(source) {
                let values = |section| config.all(section, key).map(str::to_owned).collect();
                if *key == DEPLOYMENT_KEY {
                    self.section(source).take(key, values("DEFAULT"));
                }
                self.section(source).take(key, values(source.as_str()));
            }
        }
        let collectors = config.collectors();
        if !collectors.is_empty() {
            self.collectors = collectors;
        }
    }

    fn section(&mut self, source: SourceName) -> &mut Section {
        self.sections.entry(source).or_default()
    }

    /// Tells this set of settings from another one, without showing it.
    pub(super) fn digest(&self) -> String {
        let sections: Vec<_> = self.sections.values().map(|section| &section.0).collect();
        digest_of(format!("{:?} {sections:?}", self.collectors).as_bytes())
    }

    /// The same for one source.
    pub(super) fn key(&self, source: SourceName) -> String {
        digest_of(format!("{:?}", self.sections.get(&source).map(|section| &section.0)).as_bytes())
    }

    /// Whether the files, or Heat, ask for this source. Who names none of those in use leaves it open.
    pub(super) fn wants(&self, source: SourceName, order: &[SourceName]) -> bool {
        let named = |source: SourceName| self.asks_for(source.as_str());
        named(source) || !order.iter().any(|other| other.is_remote() && named(*other))
    }

    /// Whether a source is named, known here or not.
    pub(super) fn asks_for(&self, name: &str) -> bool {
        self.collectors.iter().any(|one| one == name)
    }

    /// Where a source is asked, or nothing where it is not configured.
    ///
    /// # Errors
    /// Permanent, if some settings are there and others missing or unusable.
    pub(super) fn endpoint(&self, source: SourceName) -> Result<Option<Endpoint>> {
        let Some(section) = self.sections.get(&source) else { return Ok(None) };
        Ok(match source {
            SourceName::Cfn => cfn::Endpoint::new(section)?.map(Endpoint::Cfn),
            SourceName::Heat => heat::Endpoint::new(section)?.map(Endpoint::Heat),
            SourceName::Request => request::Endpoint::new(section).map(Endpoint::Request),
            _ => None,
        })
    }

    /// Whether any source can be asked by this.
    pub(super) fn is_complete(&self) -> bool {
        SourceName::REMOTE.into_iter().any(|source| matches!(self.endpoint(source), Ok(Some(_))))
    }

    /// The top-level keys whose entries are deployments (heat-protocol.md R19).
    pub(super) fn deployment_keys(&self, source: SourceName) -> Vec<String> {
        let given = self.sections.get(&source).map(|section| section.all(DEPLOYMENT_KEY)).unwrap_or_default();
        if given.is_empty() { vec![DEPLOYMENTS.to_owned()] } else { given.to_vec() }
    }
}

/// Where it is not set for the source, the one for all sources holds.
pub(super) const DEPLOYMENT_KEY: &str = "deployment_key";

/// A text, or the texts of a list.
fn texts(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::String(one)) => vec![one.clone()],
        Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::collect::local::Boot;
    use SourceName::{Cfn, Heat, Request};

    const ORDER: [SourceName; 3] = SourceName::REMOTE;

    fn complete() -> Value {
        json!({"os-collect-config": {
            "cfn": {"metadata_url": "http://h:8000/v1/", "access_key_id": "A", "secret_access_key": "hush", "stack_name": "s",
                "path": "srv.Metadata"},
            "heat": {"auth_url": "http://k:5000/v3/", "user_id": "u", "password": "hush", "project_id": "p", "stack_id": "s/1",
                "resource_name": "srv", "region_name": null},
            "request": {"metadata_url": "http://swift/v1/o?temp_url_sig=hush"},
        }})
    }

    fn learnt(document: &Value) -> Learnt {
        let mut learnt = Learnt::default();
        learnt.overlay_document(document.as_object().unwrap());
        learnt
    }

    fn place(learnt: &Learnt, source: SourceName) -> String {
        learnt.endpoint(source).unwrap().unwrap().place()
    }

    #[test]
    fn settings_are_learnt_and_later_ones_win_unless_they_say_nothing() {
        let mut files = LocalFiles::default();
        files.boot = Some(Ok(Boot { document: complete().as_object().unwrap().clone(), ..Boot::default() }));
        files.config = OsCollectConfig::parse(
            b"[cfn]\nstack_name = t\nmetadata_url =\npath = a.Metadata\npath = b.Metadata\n[heat]\nresource_name = other\nuser_id=\n",
        );
        files.hint = Some("http://hint:8000".into());
        let known = Learnt::from_files(&files);
        assert_eq!(place(&known, Cfn), "http://h:8000/v1/ stack t a.Metadata b.Metadata");
        assert_eq!(place(&known, Heat), "Heat by http://k:5000/v3/ stack s/1 other");
        assert_eq!(place(&known, Request), "http://swift/v1/o?…");
        files.boot = None;
        files.config =
            OsCollectConfig::parse(b"[cfn]\nstack_name = t\naccess_key_id = A\nsecret_access_key = $x\npath = a.Metadata\n");
        for hint in ["http://hint:8000", "http://hint:8000/v1/", "http://hint:8000/v1"] {
            files.hint = Some(hint.into());
            let known = Learnt::from_files(&files);
            assert_eq!(place(&known, Cfn), "http://hint:8000/v1/ stack t a.Metadata");
            assert_eq!(known.sections[&Cfn].get("secret_access_key"), Some("$x"));
        }
        let mut learnt = learnt(&complete());
        let mut overlay = |said: Value| {
            let before = (learnt.digest(), ORDER.map(|source| learnt.key(source)));
            learnt.overlay_document(json!({"os-collect-config": said}).as_object().unwrap());
            let changed = |at: usize| learnt.key(ORDER[at]) != before.1[at];
            (learnt.digest() != before.0, [changed(0), changed(1), changed(2)])
        };
        for silent in [
            json!({"cfn": {"access_key_id": null, "path": "", "stack_name": 7}, "heat": {"password": null, "region_name": ""}}),
            json!({"cfn": null, "heat": [], "request": "x", "collectors": null}),
            json!([]),
        ] {
            assert_eq!(overlay(silent), (false, [false; 3]));
        }
        let paths = json!(["x.Metadata", "y.Metadata"]);
        assert_eq!(overlay(json!({"cfn": {"secret_access_key": "new", "path": paths}})), (true, [true, false, false]));
        assert_eq!(overlay(json!({"heat": {"region_name": "Two"}})), (true, [false, true, false]));
        assert_eq!(overlay(json!({"collectors": ["heat"]})), (true, [false; 3]));
        assert!(place(&learnt, Cfn).ends_with("stack s x.Metadata y.Metadata"));
        for source in ORDER {
            assert!(!format!("{:?}", learnt.endpoint(source)).contains("hush"));
        }
    }

    #[test]
    fn half_a_configuration_is_a_failure_and_none_is_silence() {
        for document in [
            json!({}),
            json!({"os-collect-config": []}),
            json!({"os-collect-config": {"cfn": {"metadata_url": null, "path": null}, "request": {"metadata_url": ""}}}),
            json!({"os-collect-config": {"heat": {"region_name": "RegionOne", "auth_url": "http://k", "password": null}}}),
        ] {
            for source in ORDER {
                assert_eq!(learnt(&document).endpoint(source).unwrap(), None, "{document}");
            }
            assert!(!learnt(&document).is_complete());
        }
        for (source, key, value, words) in [
            (Cfn, "metadata_url", json!(null), "lack metadata_url"),
            (Cfn, "stack_name", json!(""), "lack stack_name"),
            (Cfn, "secret_access_key", json!({}), "lack secret_access_key"),
            (Cfn, "path", json!(null), "lack path"),
            (Cfn, "path", json!("srv"), "path srv of cfn is not Resource.Metadata"),
            (Cfn, "path", json!([".Metadata"]), "is not Resource.Metadata"),
            (Heat, "auth_url", json!(null), "settings of heat lack auth_url"),
            (Heat, "password", json!(7), "lack password"),
            (Heat, "stack_id", json!(""), "lack stack_id"),
        ] {
            let mut document = complete();
            document["os-collect-config"][source.as_str()][key] = value;
            let error = learnt(&document).endpoint(source).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
            assert!(error.suggested_remedy().unwrap().contains(source.as_str()));
        }
    }

    #[test]
    fn who_is_asked_is_who_is_named_last_and_everybody_where_nobody_is() {
        let mut known = learnt(&complete());
        let wanted = |learnt: &Learnt, order: &[SourceName]| {
            order.iter().filter(|source| learnt.wants(**source, order)).map(|source| source.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(wanted(&known, &ORDER), ["cfn", "heat", "request"]);
        for (collectors, names) in [
            (json!(["ec2", "heat", "local"]), vec!["heat"]),
            (json!(["ec2", "cfn", "request"]), vec!["cfn", "request"]),
            (json!([]), vec!["cfn", "request"]),
            (json!(["ec2", "zaqar", "local"]), vec!["cfn", "heat", "request"]),
        ] {
            known.overlay_document(json!({"os-collect-config": {"collectors": collectors}}).as_object().unwrap());
            assert_eq!(wanted(&known, &ORDER), names, "{collectors}");
        }
        assert!(known.asks_for("zaqar"));
        // What this image does not use cannot keep the rest from being asked.
        known.overlay_config(&OsCollectConfig::parse(b"[DEFAULT]\ncollectors = heat\ncollectors = local\n"));
        assert_eq!(wanted(&known, &[Cfn, Request]), ["cfn", "request"]);
        assert_eq!(wanted(&known, &ORDER), ["heat"]);
    }

    #[test]
    fn deployments_are_under_the_keys_that_are_set() {
        let keys = |config: &[u8], source| {
            let mut learnt = Learnt::default();
            learnt.overlay_config(&OsCollectConfig::parse(config));
            learnt.deployment_keys(source)
        };
        assert_eq!(keys(b"", Cfn), ["deployments"]);
        let global = b"[DEFAULT]\ndeployment_key = one\ndeployment_key = two\n[cfn]\ndeployment_key = three\n";
        assert_eq!(keys(global, Heat), ["one", "two"]);
        assert_eq!(keys(global, Cfn), ["three"]);
        assert_eq!(keys(b"[DEFAULT]\ndeployment_key = one\n", Cfn), ["one"], "the global one holds for cfn too");
    }
}
