//! `adopt [--metadata FILE]`: what the first start takes over from the replaced tools, before it does.
//!
//! In: their settings, their cache, and their record of deployments. Out: a page: where Heat is asked, and what is to become of each
//! deployment of the last poll. Never: a change of anything; the daemon reads the same files at its start, and converts none.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Map, Value};

use super::{document, print};
use crate::budgets::{DOCUMENT_BYTES, LOCAL_BYTES, json};
use crate::collect::{LOCAL_DATA, read_document};
use crate::deploy::{EntryKind, GroupPolicy, Work, hooks, legacy_name, todo};
use crate::error::{Error, Result};
use crate::files::{FileKind, Tree};
use crate::http::redacted;
use crate::metadata::Deployment;
use crate::process::{CommonOptions, exit};
use crate::report::text::{escaped, harmless};
use crate::settings::os_collect_config::OsCollectConfig;
use crate::settings::source_name::SourceName;
use crate::settings::{NodeSource, Settings};

/// Where the replaced collector keeps what each source said last.
const CACHES: &str = "/var/lib/os-collect-config";

/// Prints the page: 0 if the daemon would run nothing at its start, 2 if it would.
///
/// # Errors
/// If a file cannot be read, or nothing was polled by the replaced tools and no document is given.
pub fn run(options: &CommonOptions, settings: &Settings) -> Result<ExitCode> {
    let root = Tree::open(Path::new("/"))?;
    let (place, polled) = match &options.metadata {
        Some(file) => (file.display().to_string(), document::read(options, settings)?),
        None => newest_cache(&root)?,
    };
    let Page { text, runs } = page(&root, settings, &place, &polled)?;
    print(&harmless(&text))?;
    Ok(if runs == 0 { exit::OK } else { exit::pending() })
}

/// What is shown, and how many deployments would be run.
struct Page {
    text: String,
    runs: usize,
}

fn page(root: &Tree, settings: &Settings, place: &str, polled: &Map<String, Value>) -> Result<Page> {
    let mut lines: Vec<(&str, String)> = sources(root, settings)?.into_iter().map(|source| ("source", source)).collect();
    if lines.is_empty() {
        lines.push((
            "source",
            format!("none: neither {} nor a boot copy names one", settings.sources.os_collect_config.display()),
        ));
    }
    let local = root.list(Path::new(LOCAL_DATA))?.len();
    if local > 0 {
        lines.push(("local data", format!("{local} files in {LOCAL_DATA}")));
    }
    let entries = document::entries(polled);
    lines.push(("deployments", format!("{} in {place}", entries.len())));
    let node_file = (settings.node_source == NodeSource::HeatParams).then_some(None);
    let policy = GroupPolicy { groups: settings.deploy.groups.clone(), node_file };
    // As the daemon judges a list of which it has no records.
    let pending = todo(entries.iter().cloned(), |_| None, &policy).into_iter();
    let kinds: BTreeMap<usize, EntryKind> = pending.map(|pending| (pending.at, pending.what)).collect();
    let mut runs = 0;
    for (at, entry) in entries.iter().enumerate() {
        let (shown, is_run) = fate(root, settings, entry, kinds.get(&at).copied())?;
        runs += usize::from(is_run);
        lines.push(("", shown));
    }
    lines.push(("at the start", if runs == 0 { "nothing is run".to_owned() } else { format!("{runs} of them are run") }));
    let text = lines.iter().map(|(name, text)| format!("{name:<14}{}\n", escaped(text))).collect();
    Ok(Page { text, runs })
}

/// What becomes of one entry, of which the daemon judges so, and whether it is run.
fn fate(root: &Tree, settings: &Settings, entry: &Value, kind: Option<EntryKind>) -> Result<(String, bool)> {
    let deployment = match Deployment::parse(entry) {
        Ok(Some(deployment)) => deployment,
        Ok(None) => return Ok(("a component without a part for this action: nothing is run".to_owned(), false)),
        Err(malformed) => {
            let name = if malformed.name.is_empty() { "an entry" } else { &malformed.name };
            let is_reported = malformed.id.is_some() && kind != Some(EntryKind::DuplicateId);
            let what = if is_reported { "reported to Heat as failed" } else { "ignored, as it has no id of its own" };
            return Ok((format!("{name}: {what}: {}", malformed.mistakes.join("; ")), false));
        }
    };
    let Deployment { id, name, group, .. } = &deployment;
    let how = if kind.is_some() { was_run(root, &settings.deploy.deployed_dir, id)? } else { None };
    let (what, is_run) = match (kind, how) {
        (None, _) if Work::of(group) == Work::Data => ("data, of which nothing is run".to_owned(), false),
        (None | Some(EntryKind::Malformed | EntryKind::DuplicateId), _) => ("another entry has its id".to_owned(), false),
        (_, Some(how)) => (format!("was run{how}: it is not run again"), false),
        (Some(EntryKind::Forbidden), _) => {
            ("reported to Heat as failed: its group is not allowed on this image".to_owned(), false)
        }
        (Some(EntryKind::NodeOfFile), _) => {
            ("reported to Heat as failed: the node is configured by heat-params".to_owned(), false)
        }
        (Some(EntryKind::DuplicateNode), _) => {
            ("reported to Heat as failed: another one would bring the node up as well".to_owned(), false)
        }
        (Some(EntryKind::WaitingNode), _) => ("not applied: a newer one brings the node up".to_owned(), false),
        (Some(EntryKind::Run(Work::Node)), _) => ("not applied yet: the node is brought up by it".to_owned(), true),
        (Some(EntryKind::Run(work)), _) => {
            match hooks::dispatch::job(&deployment, work, root, &settings.deploy.hook_dirs, None, |_| false) {
                Ok(_) => ("not run yet: it is run".to_owned(), true),
                Err(error) => (format!("reported to Heat as failed: {}", error.cause_first()), false),
            }
        }
    };
    Ok((format!("{name} ({id}, {group}): {what}"), is_run))
}

/// What the replaced tools recorded of a deployment; `None` where they did not run it.
fn was_run(root: &Tree, deployed: &Path, id: &str) -> Result<Option<String>> {
    let Some(file) = legacy_name(id).map(|name| deployed.join(name)) else { return Ok(None) };
    if root.facts(&file)?.is_none() {
        return Ok(None);
    }
    let result = root.read(&file.with_extension("notify.json"), DOCUMENT_BYTES as u64)?;
    let result = result.and_then(|result| json::small(&result));
    let status = result.as_ref().and_then(|result| result.get("deploy_status_code"));
    Ok(Some(status.map_or_else(
        || " (its result is not recorded)".to_owned(),
        |status| format!(" with status {}", status.as_str().map_or_else(|| status.to_string(), str::to_owned)),
    )))
}

/// Where each source is, as os-collect-config.conf says, else the boot copy; without secrets.
fn sources(root: &Tree, settings: &Settings) -> Result<Vec<String>> {
    let file = &settings.sources.os_collect_config;
    let config = OsCollectConfig::parse(&root.read(file, LOCAL_BYTES as u64)?.unwrap_or_default());
    let mut found = places(&file.display().to_string(), |source, key| config.get(source, key).map(str::to_owned));
    for file in &settings.sources.cfn_init_data {
        if !found.is_empty() {
            break;
        }
        let boot = root.read(file, LOCAL_BYTES as u64)?.and_then(|bytes| json::small(&bytes)).unwrap_or_default();
        let of = |source: &str, key: &str| {
            boot.get("os-collect-config")?.get(source)?.get(key)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
        };
        found = places(&file.display().to_string(), of);
    }
    Ok(found)
}

fn places(file: &str, value: impl Fn(&str, &str) -> Option<String>) -> Vec<String> {
    let place = |source: SourceName| {
        let url = value(source.as_str(), "metadata_url").or_else(|| value(source.as_str(), "auth_url"))?;
        Some(format!("{}: {}, by {file}", source.as_str(), redacted(&url)))
    };
    SourceName::REMOTE.into_iter().filter_map(place).collect()
}

/// What the source said that was polled last.
fn newest_cache(root: &Tree) -> Result<(String, Map<String, Value>)> {
    let mut newest: Option<((i64, i64), PathBuf)> = None;
    for path in SourceName::REMOTE.map(|source| Path::new(CACHES).join(format!("{}.json", source.as_str()))) {
        let facts = root.facts_followed(&path)?.filter(|facts| facts.kind == FileKind::File);
        let Some((_, seconds, nanoseconds)) = facts.map(|facts| facts.stamp) else { continue };
        if newest.as_ref().is_none_or(|(at, _)| *at < (seconds, nanoseconds)) {
            newest = Some(((seconds, nanoseconds), path));
        }
    }
    let Some((_, path)) = newest else {
        return Err(Error::refused(format!("the replaced tools have polled nothing: {CACHES} has no cache of a source"))
            .remedy("pass the server's metadata with --metadata FILE"));
    };
    Ok((path.display().to_string(), read_document(&path)?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::files::Attributes;

    fn put(root: &Tree, path: &str, content: &str) {
        root.create_dir_all(Path::new(path).parent().unwrap(), Attributes::mode(0o755)).unwrap();
        root.write(Path::new(path), content.as_bytes(), Attributes::mode(0o600)).unwrap();
    }

    #[test]
    fn the_page_says_where_heat_is_asked_and_what_becomes_of_each_deployment() {
        let dir = tempfile::tempdir().unwrap();
        let root = Tree::open(dir.path()).unwrap();
        let mut settings = Settings::default();
        settings.deploy.groups = Some(["script", "ansible", "kubernetes-node"].map(str::to_owned).into());
        put(
            &root,
            "/etc/os-collect-config.conf",
            "[cfn]\nmetadata_url = http://h:8000/v1/\nsecret_access_key = s3\n[heat]\nauth_url = https://u:s3@k/v3\n",
        );
        put(&root, &format!("{LOCAL_DATA}/mine"), "{}");
        put(&root, "/var/lib/heat-config/deployed/done.json", "");
        put(&root, "/var/lib/heat-config/deployed/told.json", "{}");
        put(&root, "/var/lib/heat-config/deployed/told.notify.json", "{\"deploy_status_code\": 3}");
        let entry =
            |id: &str, group: &str| json!({"id": id, "name": format!("of-{id}"), "group": group, "config": "x", "inputs": []});
        let groups = [
            ("done", "script"),
            ("told", "ansible"),
            ("new", "script"),
            ("node", "kubernetes-node"),
            ("data", "os-apply-config"),
            ("x", "other"),
            ("hook", "ansible"),
        ];
        let polled = Map::from_iter([(
            "deployments".to_owned(),
            Value::Array(
                groups
                    .iter()
                    .map(|(id, group)| entry(id, group))
                    .chain([json!({"id": "bad", "group": "script", "inputs": 7}), json!({"name": "none"})])
                    .collect(),
            ),
        )]);
        let found = page(&root, &settings, "the file", &polled).unwrap();
        assert_eq!(found.runs, 2);
        for line in [
            "source        cfn: http://h:8000/v1/, by /etc/os-collect-config.conf\n",
            "source        heat: https://k/v3, by /etc/os-collect-config.conf\n",
            "local data    1 files in /var/lib/os-collect-config/local-data\n",
            "deployments   9 in the file\n",
            "of-done (done, script): was run (its result is not recorded): it is not run again\n",
            "of-told (told, ansible): was run with status 3: it is not run again\n",
            "of-new (new, script): not run yet: it is run\n",
            "of-node (node, kubernetes-node): not applied yet: the node is brought up by it\n",
            "of-data (data, os-apply-config): data, of which nothing is run\n",
            "of-x (x, other): reported to Heat as failed: its group is not allowed on this image\n",
            "of-hook (hook, ansible): reported to Heat as failed: no hook for group \"ansible\" in ",
            "              an entry: reported to Heat as failed: ",
            "              none: ignored, as it has no id of its own: ",
            "at the start  2 of them are run\n",
        ] {
            assert!(found.text.contains(line), "{line}: {}", found.text);
        }
        assert!(!found.text.contains("s3"), "{}", found.text);
        // As the daemon takes a list: a second node, and a second entry of an id, are nothing to run.
        let twice = ["node", "other"]
            .map(|id| entry(id, "kubernetes-node"))
            .into_iter()
            .chain(["new", "new"].map(|id| entry(id, "script")));
        let twice = Map::from_iter([("deployments".to_owned(), Value::Array(twice.collect()))]);
        let found = page(&root, &settings, "f", &twice).unwrap();
        assert_eq!(found.runs, 1, "{}", found.text);
        assert!(
            found.text.contains("another one would bring the node up") && found.text.contains("another entry has its id"),
            "{}",
            found.text
        );
    }

    #[test]
    fn the_boot_copy_names_the_source_where_nothing_else_does_and_the_newest_cache_counts() {
        let dir = tempfile::tempdir().unwrap();
        let root = Tree::open(dir.path()).unwrap();
        let settings = Settings::default();
        assert!(newest_cache(&root).unwrap_err().suggested_remedy().is_some());
        let boot = json!({"os-collect-config": {"request": {"metadata_url": "http://h/x?temp_url_sig=s3"}}}).to_string();
        put(&root, "/var/lib/cloud/data/cfn-init-data", &boot);
        let found = page(&root, &settings, "f", &Map::new()).unwrap();
        assert!(
            found.text.starts_with("source        request: http://h/x?…, by /var/lib/cloud/data/cfn-init-data\n"),
            "{}",
            found.text
        );
        assert_eq!(found.runs, 0);
        assert!(
            page(&Tree::open(tempfile::tempdir().unwrap().path()).unwrap(), &settings, "f", &Map::new())
                .unwrap()
                .text
                .contains("none: neither")
        );
    }
}
