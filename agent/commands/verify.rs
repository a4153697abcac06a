//! `verify [--json]`: every mistake of settings, metadata and parameters at once.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::deployment::{group_not_allowed, malformed, of_hook, of_node};
use super::document::InputDocument;
use super::finding::{Finding, Findings, of_error, of_mistake};
use super::image_nodes::RequestedNodes;
use super::plan::ask;
use super::{document, image, image_nodes, print, template};
use crate::collect::{HEAT_PARAMS, is_of_file};
use crate::daemon::masking::without_url_users;
use crate::error::Result;
use crate::files::Tree;
use crate::http::without_userinfo;
use crate::metadata::Deployment;
use crate::metadata::template as hot;
use crate::process::{CommonOptions, exit};
use crate::report::text::{escaped, json_page};
use crate::report::{Code, Report};
use crate::settings::source_name::SourceName;
use crate::settings::{KEYS, Loaded, Warning};

/// Prints every mistake with key, rule and remedy.
///
/// # Errors
/// If standard output takes no more.
pub fn run(options: &CommonOptions, loaded: &Loaded, as_json: bool) -> Result<ExitCode> {
    let mut findings: Findings = loaded.warnings.iter().map(of_setting).collect();
    // Hooks are this machine's: a document from elsewhere is not measured by them.
    let root = if options.metadata.is_none() { Some(Tree::open(Path::new("/"))?) } else { None };
    let checked = match understood(options, loaded, root.as_ref(), &mut findings) {
        RequestedNodes::Document(document) => format!("settings and {} deployments", document::entries(&document).len()),
        RequestedNodes::Template(template) => format!("settings and {} deployments of the template", template.planned.len()),
        RequestedNodes::Nothing(why) => format!("settings{why}"),
    };
    print(&if as_json { document_of(&findings, &checked) } else { page(&findings, &checked) })?;
    Ok(if findings.mistakes == 0 { exit::OK } else { exit::FAILED })
}

/// Finds what is wrong with the document. `root`: this machine's, where the document is its own.
fn understood(options: &CommonOptions, loaded: &Loaded, root: Option<&Tree>, findings: &mut Findings) -> RequestedNodes {
    let asked = match document::read_any(options, &loaded.settings) {
        Ok(InputDocument::Document(document)) => RequestedNodes::Document(document),
        Ok(InputDocument::Template(document)) => {
            let file = options.metadata.as_deref().unwrap_or(Path::new("")).display().to_string();
            let read = hot::read(&document);
            template::check(&read, &file, loaded, findings);
            RequestedNodes::Template(read)
        }
        Err(error) => match &options.metadata {
            Some(file) => {
                let place = file.display().to_string();
                let odd = document::suspicious_lines(options).unwrap_or_default();
                if odd.is_empty() {
                    findings.push(of_error(&place, "", &error));
                }
                findings.extend(odd.into_iter().map(|mistake| of_mistake(&place, mistake)));
                RequestedNodes::Nothing(String::new())
            }
            // Without --metadata the settings alone can be checked before anything was ever collected.
            None => RequestedNodes::Nothing(format!(" alone ({error})")),
        },
    };
    if options.metadata.is_none() {
        findings.extend(sources(loaded));
    }
    let odd = document::warnings(options).unwrap_or_default().into_iter();
    findings.extend(odd.map(|warning| Finding { warns: true, ..of_mistake("heat-params", warning) }));
    let RequestedNodes::Document(document) = &asked else { return asked };
    deployments(document::entries(document), loaded, root, findings);
    if let Some(Value::Object(_) | Value::String(_) | Value::Number(_) | Value::Bool(_)) = document.get("deployments") {
        findings.push(Finding {
            place: "the metadata".to_owned(),
            key: "deployments".to_owned(),
            problem: "not a list".to_owned(),
            rule: "deployments must be a list of objects".to_owned(),
            remedy: "correct the document".to_owned(),
            warns: false,
        });
    }
    asked
}

/// `--image`: prints what keeps this root directory from being booted as many machines, and mistakes of its settings. With `--metadata`
/// also what the nodes of that document need and the image lacks.
///
/// # Errors
/// If a file cannot be looked at.
pub fn image(options: &CommonOptions, loaded: &Loaded, as_json: bool) -> Result<ExitCode> {
    let mut findings: Findings = loaded.warnings.iter().map(of_setting).collect();
    let root = Tree::open(Path::new("/"))?;
    findings.extend(image::check(&root, &loaded.settings)?);
    let mut checked = "settings and the image".to_owned();
    if let Some(file) = &options.metadata {
        let asked = understood(options, loaded, None, &mut findings);
        let nodes = image_nodes::check(&root, &asked, loaded, &ask, &mut findings)?;
        checked = format!(
            "settings, the image and what {nodes} kubernetes-node deployments of {} need",
            escaped(&file.display().to_string())
        );
        if nodes == 0 && !matches!(asked, RequestedNodes::Nothing(_)) {
            findings.push(Finding {
                place: file.display().to_string(),
                problem: "no kubernetes-node deployment is in it that says which programs a node needs".to_owned(),
                rule: "with --image the document says what the image must have".to_owned(),
                remedy: "give the template or metadata of a node, or leave --metadata out".to_owned(),
                ..Finding::default()
            });
        }
    }
    print(&if as_json { document_of(&findings, &checked) } else { page(&findings, &checked) })?;
    Ok(if findings.mistakes == 0 { exit::OK } else { exit::FAILED })
}

fn page(findings: &Findings, checked: &str) -> String {
    let mut lines: Vec<String> = findings
        .kept
        .iter()
        .map(|one| {
            let parts =
                [(&one.place, ""), (&one.key, ": "), (&one.problem, ": "), (&one.rule, "; rule: "), (&one.remedy, "; remedy: ")];
            let parts = parts.iter().filter(|(text, _)| !text.is_empty());
            let text: String = parts.map(|(text, before)| format!("{before}{}", escaped(&without_userinfo(text)))).collect();
            if one.warns { format!("note: {text}") } else { text }
        })
        .collect();
    if findings.left_out() > 0 {
        lines.push(format!("and {} more, which are only counted: correct these first", findings.left_out()));
    }
    lines.push(match findings.mistakes {
        0 => format!("{checked}: no mistakes"),
        1 => format!("{checked}: 1 mistake"),
        count => format!("{checked}: {count} mistakes"),
    });
    lines.join("\n") + "\n"
}

fn document_of(findings: &Findings, checked: &str) -> String {
    let of = |warns: bool| -> Vec<Value> {
        let of_kind = findings.kept.iter().filter(|one| one.warns == warns);
        of_kind
            .map(
                |one| json!({"place": one.place, "key": one.key, "problem": one.problem, "rule": one.rule, "remedy": one.remedy}),
            )
            .collect()
    };
    let page = json!({"schema_version": 1, "checked": checked, "mistakes": of(false), "notes": of(true), "left_out": findings.left_out()});
    json_page(&without_url_users(page))
}

fn of_setting(warning: &Warning) -> Finding {
    let default = KEYS.iter().find(|key| key.path == warning.key).map(|key| key.default);
    let remedy = match default {
        Some("") => "correct the value, or remove the key".to_owned(),
        Some(default) => format!("correct the value, or remove the key to use the default {default}"),
        None if warning.key.is_empty() => "correct the file".to_owned(),
        None => "correct or remove the key".to_owned(),
    };
    let value = warning.message.strip_suffix(&format!(" is not {}", warning.rule));
    Finding {
        place: warning.file.display().to_string(),
        key: warning.key.clone(),
        problem: value.map_or_else(|| warning.message.clone(), |value| format!("{value} is not allowed")),
        rule: warning.rule.clone(),
        remedy,
        warns: false,
    }
}

/// What the files that sources are learnt from have wrong.
fn sources(loaded: &Loaded) -> Vec<Finding> {
    let report = Report::kept();
    if document::collected(&loaded.settings, &report).is_err() {
        return Vec::new();
    }
    let events = report.events().into_iter().filter(|event| matches!(event.code, Code::MetadataPartInvalid | Code::SourceFailed));
    // Unknown names in it are ignored.
    let is_of_node = |source: &Option<String>| source.as_deref() == Some(SourceName::HeatParams.as_str());
    events
        .map(|event| Finding {
            warns: is_of_node(&event.source) && event.code == Code::MetadataPartInvalid,
            place: format!("source {}", event.source.unwrap_or_default()),
            problem: event.cause.unwrap_or(event.message),
            remedy: event.remedy.unwrap_or_else(|| event.code.remedy()).to_string(),
            ..Finding::default()
        })
        .collect()
}

fn deployments(entries: &[Value], loaded: &Loaded, root: Option<&Tree>, findings: &mut Findings) {
    let mut nodes = 0;
    let by_file = entries.iter().any(|entry| entry.get("id").and_then(Value::as_str).is_some_and(is_of_file));
    for (at, entry) in entries.iter().enumerate() {
        let deployment = match Deployment::parse(entry) {
            Ok(Some(deployment)) => deployment,
            Ok(None) => continue,
            Err(bad) => {
                let id = bad.id.as_deref().unwrap_or("no id");
                findings.extend(malformed(&bad, &format!("deployments.{at}: deployment {} ({id})", bad.name)));
                continue;
            }
        };
        let place = format!("deployments.{at}: deployment {} ({})", deployment.name, deployment.id);
        findings.extend(group_not_allowed(&deployment.group, loaded, &place));
        let brings_up = matches!(deployment.action(), "CREATE" | "UPDATE" | "");
        if deployment.group == "kubernetes-node" && brings_up && by_file && !is_of_file(&deployment.id) {
            findings.push(Finding {
                place,
                problem: format!("the node is configured by {HEAT_PARAMS}"),
                rule: "[node] source = \"heat-params\" in agent.toml".to_owned(),
                remedy: "remove the deployment from the template, or [node] source from agent.toml".to_owned(),
                ..Finding::default()
            });
        } else if deployment.group == "kubernetes-node" {
            nodes += u32::from(brings_up);
            findings.extend(of_node(&deployment, loaded, root, &place));
        } else {
            findings.extend(of_hook(&deployment, loaded, root, &place));
        }
    }
    if nodes > 1 {
        findings.push(Finding {
            place: "the metadata".to_owned(),
            key: "deployments".to_owned(),
            problem: format!("{nodes} kubernetes-node deployments"),
            rule: "a server has at most one".to_owned(),
            remedy: "keep one of them in the template".to_owned(),
            warns: false,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budgets::VERIFY_BYTES;
    use crate::settings::Settings;

    fn found_in(entries: &[Value], loaded: &Loaded, root: Option<&Tree>) -> Findings {
        let mut findings = Findings::default();
        deployments(entries, loaded, root, &mut findings);
        findings
    }

    /// Attack: 2,400 deployments with 100 unknown names each took 111 MiB, and 362 MiB as JSON.
    #[test]
    fn beyond_the_budget_findings_are_counted_and_that_is_said() {
        let config: Vec<String> = (0..60).map(|number| format!("k{number}: v")).collect();
        let entry = |number: usize| json!({"id": format!("{number}"), "name": "n".repeat(900), "group": "kubernetes-node", "config": config.join("\n")});
        let entries: Vec<Value> = (0..100).map(entry).collect();
        let findings = found_in(&entries, &Loaded { settings: Settings::default(), warnings: Vec::new() }, None);
        let all = findings.mistakes + findings.notes;
        assert!(all > 5_000 && findings.left_out() > 1_000 && findings.kept.len() + findings.left_out() == all, "{all}");
        let (text, json) = (page(&findings, "x"), document_of(&findings, "x"));
        assert!(text.len() < 2 * VERIFY_BYTES && json.len() < 2 * VERIFY_BYTES, "{} {}", text.len(), json.len());
        assert!(
            text.contains(&format!("\nand {} more, which are only counted", findings.left_out())),
            "{}",
            &text[text.len() - 200..]
        );
        let json: Value = crate::budgets::json::typed(&json).unwrap();
        assert_eq!(json["left_out"], findings.left_out());
        crate::report::schema::assert_fits("verify", &json);
        // One alone is shown however long it is.
        let mut one = Findings::default();
        one.push(Finding { problem: "x".repeat(2 * VERIFY_BYTES), ..Finding::default() });
        assert_eq!((one.kept.len(), one.left_out(), one.mistakes), (1, 0, 1));
    }

    #[test]
    fn all_mistakes_come_at_once_each_with_its_place() {
        let (volume, other) = ("7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4", "e41b7f92-0c6d-4f0a-b1d7-58a2f3c9d61");
        let entries = [
            json!({"id": "a", "name": "bad", "group": "script", "config": "x", "outputs": "none", "inputs": 3}),
            json!({"id": "b", "name": "node", "group": "kubernetes-node", "config": {"ROLE": "master", "TLS_DISABLED": "True",
                "KUBE_NODE_IP": "nowhere", "WAIT_TIMEOUT": "soon", "DOCKER_VOLUME": volume, "ETCD_VOLUME": other, "KUBE_TAGG": "v1",
                "CLUSTER_UUID": "5f1c3a52-8d0e-4c61-9b0e-2f6f6e1d7a10", "WAIT_HANDLE": "ftp://nowhere"}}),
            json!({"id": "c", "name": "object", "group": "script", "config": {}}),
            json!({"id": "d", "name": "puppet", "group": "puppet"}),
            json!({"id": "e", "name": "fine", "group": "script", "config": "#!/bin/sh"}),
        ];
        let mut loaded = Loaded { settings: Settings::default(), warnings: Vec::new() };
        loaded.settings.deploy.groups = Some(["script", "kubernetes-node"].map(str::to_owned).to_vec());
        let dir = tempfile::tempdir().unwrap();
        let findings = found_in(&entries, &loaded, Some(&Tree::open(dir.path()).unwrap()));
        let found: Vec<_> =
            findings.kept.iter().map(|one| format!("{} {}", one.place.split(": ").next().unwrap(), one.key)).collect();
        assert_eq!(
            found,
            [
                "deployments.0 inputs",
                "deployments.0 outputs",
                "deployments.1 KUBE_NODE_IP",
                "deployments.1 WAIT_TIMEOUT",
                "deployments.1 ETCD_VOLUME",
                "deployments.1 KUBE_TAGG",
                "deployments.1 WAIT_HANDLE",
                "deployments.2 config",
                "deployments.3 group",
                "deployments.3 group",
            ],
            "{}",
            page(&findings, "x")
        );
        assert!(findings.kept.iter().all(|one| !one.rule.is_empty() && !one.remedy.is_empty()), "{findings:?}");
    }

    /// Id and name are whatever a template says.
    #[test]
    fn no_password_of_a_url_is_shown_whatever_it_is_given_as() {
        let url = "https://usr:hush@proxy.example.org:3128";
        let entries = [
            json!({"id": url, "name": url, "group": "script", "inputs": 3}),
            json!({"id": "b", "name": url, "group": url, "config": "x"}),
            json!({"id": url, "name": "c", "group": "kubernetes-node", "config": {url: "x"}, "inputs": [{"name": url, "value": url}]}),
            json!({"id": url, "name": "d", "group": "kubernetes-node", "config": format!("'{url}': x\n")}),
        ];
        let mut loaded = Loaded { settings: Settings::default(), warnings: Vec::new() };
        loaded.settings.deploy.groups = Some(vec!["script".to_owned(), "kubernetes-node".to_owned()]);
        let findings = found_in(&entries, &loaded, None);
        assert!(findings.kept.len() > 4, "{findings:?}");
        for shown in [page(&findings, "x"), document_of(&findings, "x")] {
            assert!(shown.contains("******@proxy") && !shown.contains("hush"), "{shown}");
        }
    }

    /// SECURITY.md: an image whose groups allow kubernetes-node alone lets no parameter bring code, and none takes the agent's own safety away.
    #[test]
    fn options_need_the_permission_of_the_image() {
        let entry = json!({"id": "n", "name": "node", "group": "kubernetes-node", "config": {"ROLE": "minion", "KUBE_TAG": "v1.28.9",
            "STATIC_POD_URL": "https://pods.example.org/x", "KUBELET_OPTIONS": "--v=2 --authorization-mode=AlwaysAllow"}});
        let refused = |groups: Option<&[&str]>, allowed: &[&str]| {
            let mut loaded = Loaded { settings: Settings::default(), warnings: Vec::new() };
            loaded.settings.deploy.groups = groups.map(|groups| groups.iter().map(|&group| group.to_owned()).collect());
            loaded.settings.allow_options = allowed.iter().map(|&option| option.to_owned()).collect();
            let findings = found_in(std::slice::from_ref(&entry), &loaded, None);
            let keys =
                findings.kept.into_iter().map(|one| one.key).filter(|key| key.ends_with("OPTIONS") || key.starts_with("STATIC"));
            keys.collect::<Vec<_>>()
        };
        let node = Some(&["kubernetes-node"][..]);
        assert_eq!(refused(node, &[]), ["KUBELET_OPTIONS", "STATIC_POD_URL"]);
        assert_eq!(refused(None, &[]), ["KUBELET_OPTIONS"]);
        assert_eq!(refused(node, &["kubelet:--authorization-mode", "kubelet:--manifest-url"]), Vec::<String>::new());
    }
}
