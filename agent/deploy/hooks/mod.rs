//! What a deployment of a group is as a program to run: pure, but for the search of a hook's file.

pub mod script;

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::files::{FileKind, Tree};
use crate::metadata::Deployment;
use crate::programs::Job;

/// Inputs whose values are never shown.
const SECRET_INPUTS: [&str; 2] = ["deploy_password", "deploy_signal_id"];

/// The job for a group that has a hook of its own in the image.
///
/// # Errors
/// If there is no hook, or one that others than root may change (R56).
pub fn external(deployment: &Deployment, root: &Tree, first: &[PathBuf], limit_ms: Option<u64>) -> Result<Job> {
    let name: String = deployment.group.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect();
    let searched: Vec<String> = first.iter().map(|path| path.display().to_string()).collect();
    for directory in &searched {
        let path = format!("{directory}/{name}");
        // A link is as good as what it leads to; whoever may write the directory may put another one there.
        let Some(facts) = root.facts_followed(Path::new(&path))? else { continue };
        if name.is_empty() || facts.kind == FileKind::Directory {
            continue;
        }
        for (path, facts) in [(&path, Some(facts)), (directory, root.facts_followed(Path::new(directory))?)] {
            let Some(facts) = facts.filter(|facts| facts.mode & 0o022 != 0 || facts.owner.0 != 0) else { continue };
            return Err(Error::refused(format!(
                "{path} can be changed by users other than root (mode {:04o}, owner {})",
                facts.mode, facts.owner.0
            ))
            .rule("hooks run as root, so only root may be able to write them")
            .remedy(format!("chown root {path} && chmod go-w {path} in the image")));
        }
        return Ok(Job {
            argv: vec![path],
            stdin: deployment.to_hook_json().to_string(),
            time_limit_ms: limit_ms,
            secrets: secrets(deployment),
            ..Job::default()
        });
    }
    Err(Error::permanent(format!("no hook for group {:?} in {}", deployment.group, searched.join(", ")))
        .rule("a group without a built-in hook needs an executable of the same name")
        .remedy("install the hook in the image, or use the group script"))
}

/// Values of the deployment's inputs that must be masked in any output.
fn secrets(deployment: &Deployment) -> Vec<String> {
    SECRET_INPUTS.iter().filter_map(|name| deployment.text_input(name)).map(str::to_owned).collect()
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
        let job = external(&deployment("../an/si.ble"), &tree, &at, None).unwrap();
        assert_eq!((job.argv[0].as_str(), job.secrets), ("/usr/libexec/heat-config/hooks/ansible", vec!["s3cret!".to_owned()]));
        mode(0o775);
        assert!(
            external(&deployment("ansible"), &tree, &at, None)
                .unwrap_err()
                .to_string()
                .contains("can be changed by users other than root")
        );
        assert!(
            external(&deployment("puppet"), &tree, &at, None).unwrap_err().to_string().contains("no hook for group \"puppet\"")
        );
        assert!(external(&deployment("../.."), &tree, &at, None).is_err());
    }
}
