//! What a deployment of a group is as a program to run: pure, but for the search of a hook's file.
//!
//! In: a deployment, its inputs, the directories of hooks. Out: a `Job`, or why there is none. Never: the start of it.

pub mod dispatch;
pub mod script;

use std::path::{Path, PathBuf};

use super::work::Work;
use crate::budgets::SECRET_TEXTS;
use crate::error::{Error, Result};
use crate::files::{FileKind, Tree};
use crate::metadata::{Deployment, Input, Traces};
use crate::programs::Job;

/// Groups whose hooks this program is itself, where the image has no file for them (heat-protocol.md 5).
const OWN: [&str; 3] = ["json-file", "apply-config", "hiera"];

/// Inputs whose values are never shown.
const SECRET_INPUTS: [&str; 2] = ["deploy_password", "deploy_signal_id"];

/// The job for a group with a hook: the image's, or this program by the hook's name. `is_secret`: of which further inputs it must not show the values.
///
/// # Errors
/// If there is no hook, or one that others than root may change (R56).
pub fn external(
    deployment: &Deployment,
    root: &Tree,
    first: &[PathBuf],
    limit_ms: Option<u64>,
    is_secret: impl Fn(&str) -> bool,
) -> Result<Job> {
    if let Some(hook) = find(&deployment.group, root, first)? {
        let (path, called) = match hook {
            Hook::File(path) => (path, None),
            // Of the process that runs the job: there also where the file was replaced since (R42).
            Hook::Own(name) => ("/proc/self/exe".to_owned(), Some(format!("hook-{name}"))),
        };
        if called.is_none() {
            root.check_only_root_changes(Path::new(&path))?;
        }
        let secrets = secrets(deployment, is_secret);
        return Ok(Job {
            argv: vec![path],
            called,
            stdin: deployment.to_hook_json().to_string(),
            time_limit_ms: limit_ms,
            stdout_is_json: true,
            hide_output: secrets.is_none(),
            secrets: secrets.unwrap_or_default(),
            ..Job::default()
        });
    }
    let searched: Vec<String> = first.iter().map(|path| path.display().to_string()).collect();
    Err(Error::permanent(format!("no hook for group {:?} in {}", deployment.group, searched.join(", ")))
        .rule("a group without a built-in hook needs an executable of the same name")
        .remedy("install the hook in the image, or use the group script"))
}

/// How the file of a group's hook is called: the harmless characters of its name, which may be none.
#[must_use]
pub fn file_name(group: &str) -> String {
    group.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
}

/// What runs the deployments of a group.
enum Hook {
    File(String),
    /// This program, by the name of a group.
    Own(String),
}

/// The hook of a group: the image's file goes first.
fn find(group: &str, root: &Tree, directories: &[PathBuf]) -> Result<Option<Hook>> {
    let name = file_name(group);
    for directory in directories.iter().filter(|_| !name.is_empty()) {
        let path = format!("{}/{name}", directory.display());
        if root.facts_followed(Path::new(&path))?.is_some_and(|facts| facts.kind != FileKind::Directory) {
            return Ok(Some(Hook::File(path)));
        }
    }
    Ok(OWN.contains(&name.as_str()).then_some(Hook::Own(name)))
}

/// Whether the hook of a group reads the metadata by os-apply-config: it gets them from who starts it.
#[must_use]
pub fn reads_metadata(group: &str) -> bool {
    matches!(file_name(group).as_str(), "apply-config" | "hiera")
}

/// Whether a deployment of a group can run code: a script, or a hook that there is (it writes files as root). Without an image at hand every
/// hook counts.
#[must_use]
pub fn runs_code(group: &str, root: Option<&Tree>, directories: &[PathBuf]) -> bool {
    match Work::of(group) {
        Work::Script => true,
        Work::Hook => root.is_none_or(|root| find(group, root, directories).is_ok_and(|found| found.is_some())),
        Work::Node | Work::Data => false,
    }
}

/// What must be masked in any output: whatever may be seen of the inputs whose names are secret. `None` where that is too much.
fn secrets(deployment: &Deployment, is_secret: impl Fn(&str) -> bool) -> Option<Vec<String>> {
    let mut traces = Traces::within(SECRET_TEXTS);
    let is_secret = |input: &&Input| SECRET_INPUTS.contains(&input.name.as_str()) || is_secret(&input.name);
    deployment.inputs.iter().filter(is_secret).for_each(|input| input.trace(&mut traces));
    traces.all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;
    use crate::files::Attributes;

    #[test]
    fn a_hook_is_found_by_the_harmless_letters_of_its_group_and_must_be_roots() {
        let dir = tempfile::tempdir().unwrap();
        let hooks = dir.path().join("usr/libexec/heat-config/hooks");
        let at = [PathBuf::from("/usr/libexec/heat-config/hooks")];
        let hook = hooks.join("ansible");
        let tree = Tree::open(dir.path()).unwrap();
        tree.create_dir_all(Path::new("/usr/libexec/heat-config/hooks"), Attributes::mode(0o755)).unwrap();
        tree.write(Path::new("/usr/libexec/heat-config/hooks/ansible"), b"#!/bin/sh\n", Attributes::mode(0o755)).unwrap();
        let deployment = |group: &str| {
            Deployment::parse(&json!({"id": "a", "group": group, "inputs": [{"name": "deploy_password", "value": "s3cret!"}]}))
                .unwrap()
                .unwrap()
        };
        let mode = |mode| std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o755);
        let job = external(&deployment("../an/si.ble"), &tree, &at, None, |_| false).unwrap();
        assert_eq!(job.argv, ["/usr/libexec/heat-config/hooks/ansible"]);
        assert_eq!(job.secrets, ["s3cret!", r"s3cret\!"], "as it is, and as bash quotes it");
        let handle = json!({"id": "a", "group": "x", "inputs": [{"name": "deploy_password", "value": "s3cret!"},
            {"name": "HANDLE", "value": {"token": "t0ken!!"}}, {"name": "other", "value": "shown"}]});
        let secrets = secrets(&Deployment::parse(&handle).unwrap().unwrap(), |name| name == "HANDLE").unwrap();
        assert!(secrets.contains(&"t0ken!!".to_owned()) && !secrets.iter().any(|one| one.contains("shown")), "{secrets:?}");
        let code = |group: &str, root| runs_code(group, root, &at);
        assert!(code("script", Some(&tree)) && code("ansible", Some(&tree)) && code("puppet", None));
        for group in ["kubernetes-node", "Heat::Ungrouped", "os-apply-config", "scrpit"] {
            assert!(!code(group, Some(&tree)), "{group}");
        }
        mode(0o775);
        assert!(
            external(&deployment("ansible"), &tree, &at, None, |_| false)
                .unwrap_err()
                .to_string()
                .contains("can be changed by users other than root")
        );
        assert!(
            external(&deployment("puppet"), &tree, &at, None, |_| false)
                .unwrap_err()
                .to_string()
                .contains("no hook for group \"puppet\"")
        );
        assert!(external(&deployment("../.."), &tree, &at, None, |_| false).is_err());
    }

    #[test]
    fn this_program_is_the_hook_where_the_image_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let at = [PathBuf::from("/hooks")];
        let job = |group: &str| {
            let entry =
                json!({"id": "a", "group": group, "config": {}, "inputs": [{"name": "deploy_password", "value": "s3cret!"}]});
            external(&Deployment::parse(&entry).unwrap().unwrap(), &tree, &at, Some(7), |_| false)
        };
        for group in OWN {
            let own = job(group).unwrap();
            assert_eq!((own.argv, own.called), (vec!["/proc/self/exe".to_owned()], Some(format!("hook-{group}"))));
            assert_eq!((own.time_limit_ms, own.stdout_is_json, own.secrets[0].as_str()), (Some(7), true, "s3cret!"));
            assert!(own.stdin.contains(&format!("\"group\":\"{group}\"")) && runs_code(group, Some(&tree), &at), "{}", own.stdin);
        }
        assert!(job("hook-json-file").is_err() && job("puppet").is_err());
        tree.create_dir_all(Path::new("/hooks"), Attributes::mode(0o755)).unwrap();
        tree.write(Path::new("/hooks/hiera"), b"#!/bin/sh\n", Attributes::mode(0o755)).unwrap();
        let images = job("hiera").unwrap();
        assert_eq!((images.argv, images.called), (vec!["/hooks/hiera".to_owned()], None), "the image's own goes first");
        tree.write(Path::new("/hooks/hiera"), b"#!/bin/sh\n", Attributes::mode(0o777)).unwrap();
        assert!(job("hiera").is_err(), "one that cannot be trusted is not passed over");
    }
}
