//! Group `script` (heat-protocol.md 5): inputs are environment variables, outputs are files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use nix::errno::Errno;

use crate::digest::{is_key, key_of};
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::gather::Gather;
use crate::metadata::Deployment;
use crate::programs::{Job, JobFile};

/// Where scripts are written and run; scripts written for heat-agents know it.
pub const WORKING: &str = "/var/lib/heat-config/heat-config-script";
/// Where scripts leave their outputs, as `ID.NAME`.
pub const OUTPUTS: &str = "/var/run/heat-config/heat-config-script";
/// Where `OUTPUTS` is on every machine with systemd.
const REAL_OUTPUTS: &str = "/run/heat-config/heat-config-script";

/// Files of a directory in the place of a script's output that are counted.
const COUNTED: usize = 1_000;

/// The job that a script deployment is. `is_secret`: of which further inputs it must not show the values.
///
/// # Errors
/// If its config is no text: there is nothing to run.
pub fn job(deployment: &Deployment, limit_ms: Option<u64>, is_secret: impl Fn(&str) -> bool) -> Result<Job> {
    let Some(script) = deployment.config.as_str() else {
        return Err(Error::permanent("config: not a string")
            .rule("the config of a script deployment is the script itself")
            .remedy("use OS::Heat::SoftwareConfig with config: |, or another group"));
    };
    let name = name(&deployment.id);
    let path = format!("{WORKING}/{name}");
    let outputs_path = format!("{OUTPUTS}/{name}");
    // The same place without the link /var/run, which a kernel before 5.6 keeps us from following (files/mod.rs).
    let real_path = format!("{REAL_OUTPUTS}/{name}");
    let mut environment: BTreeMap<String, String> =
        deployment.inputs.iter().map(|input| (input.name.clone(), input.environment_text())).gather();
    environment.insert("heat_outputs_path".to_owned(), outputs_path.clone());
    let outputs = deployment.outputs.iter().filter(|output| !output.name.contains(['/', '\0']));
    let outputs = outputs.map(|output| (output.name.clone(), format!("{real_path}.{}", output.name))).gather();
    let secrets = super::secrets(deployment, is_secret);
    Ok(Job {
        argv: vec![path.clone()],
        called: None,
        environment,
        directory: Some(WORKING.to_owned()),
        files: vec![JobFile { path, content: script.to_owned(), mode: 0o700 }],
        stdin: String::new(),
        outputs,
        directories: vec![REAL_OUTPUTS.to_owned()],
        time_limit_ms: limit_ms,
        stdout_is_json: false,
        begun_mark: None,
        hide_output: secrets.is_none(),
        secrets: secrets.unwrap_or_default(),
        printed_secrets: Vec::new(),
        hide_printed: false,
    })
}

/// Bytes of what scripts left outside of the state, by [`name`]: the script, and its outputs, which are in memory.
///
/// # Errors
/// If something cannot be looked at.
pub fn bytes(root: &Tree) -> Result<BTreeMap<String, u64>> {
    let mut sums = BTreeMap::new();
    for directory in [WORKING, REAL_OUTPUTS].map(Path::new) {
        for entry in root.list(directory)? {
            let Some(text) = entry.to_str() else { continue };
            *sums.entry(name_in(text).to_owned()).or_default() +=
                root.bytes_below(&directory.join(&entry), &mut COUNTED.clone())?.0;
        }
    }
    Ok(sums)
}

/// The names, as of [`name`], of scripts and outputs that are there.
///
/// # Errors
/// If the directories cannot be listed.
pub fn names(root: &Tree) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for directory in [WORKING, REAL_OUTPUTS].map(Path::new) {
        let listed = root.list(directory)?;
        names.extend(listed.iter().filter_map(|entry| entry.to_str()).map(|entry| name_in(entry).to_owned()));
    }
    Ok(names)
}

/// Whose a file is of this name: no [`name`] has a dot.
fn name_in(file: &str) -> &str {
    file.split_once('.').map_or(file, |(name, _)| name)
}

/// The same of one deployment, without going through the directories: its script, and the outputs that it declares.
///
/// # Errors
/// If something cannot be looked at.
pub fn bytes_of<'a>(root: &Tree, id: &str, outputs: impl Iterator<Item = &'a String>) -> Result<u64> {
    let name = name(id);
    let files = outputs.map(|output| Path::new(REAL_OUTPUTS).join(format!("{name}.{output}")));
    let own = [Path::new(WORKING).join(&name), Path::new(REAL_OUTPUTS).join(&name)];
    own.into_iter().chain(files).try_fold(0_u64, |sum, path| {
        match root.bytes_below(&path, &mut COUNTED.clone()) {
            Ok((bytes, _)) => Ok(sum.saturating_add(bytes)),
            // No file has such a name, so that the script left none.
            Err(error) if error.errno() == Some(Errno::ENAMETOOLONG) => Ok(sum),
            Err(error) => Err(error),
        }
    })
}

/// Removes what script deployments left, once their records are forgotten (R39): for all of them at once, because the directories are gone
/// through. How much that was, and the first failure: what is behind one that cannot be removed goes all the same.
pub fn forget(root: &Tree, ids: &[String]) -> (usize, Result<()>) {
    forget_named(root, &ids.iter().map(|id| name(id)).gather())
}

/// The same by [`name`].
pub fn forget_named(root: &Tree, names: &BTreeSet<String>) -> (usize, Result<()>) {
    let (mut gone, mut done) = (0, Ok(()));
    for directory in [WORKING, REAL_OUTPUTS].map(Path::new).into_iter().filter(|_| !names.is_empty()) {
        let entries = root.list(directory).unwrap_or_else(|error| {
            done = done.clone().and(Err(error));
            Vec::new()
        });
        for entry in entries.iter().filter(|entry| entry.to_str().is_some_and(|entry| names.contains(name_in(entry)))) {
            // A script may have made a directory of its file.
            match root.remove_dir_all(&directory.join(entry)) {
                Ok(_) => gone += 1,
                Err(error) => done = done.and(Err(error)),
            }
        }
    }
    (gone, done)
}

/// The name of its files: the id where it is a safe file name and could be no other id's key, as always with Heat; else its key (R21).
#[must_use]
pub fn name(id: &str) -> String {
    let plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)) && id.len() <= 128 && !is_key(id);
    if plain { id.to_owned() } else { key_of(id) }
}

#[cfg(test)]
mod tests {
    use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_script_finds_its_inputs_and_leaves_its_outputs_where_it_always_did() {
        let entry = json!({"id": "b1a6-02", "group": "script", "config": "#!/bin/sh\n",
            "inputs": [{"name": "count", "type": "Number", "value": 3}, {"name": "flag", "type": "String", "value": true}],
            "outputs": [{"name": "result"}, {"name": "../../etc/passwd"}]});
        let job = job(&Deployment::parse(&entry).unwrap().unwrap(), Some(5000), |_| false).unwrap();
        assert_eq!(job.argv, ["/var/lib/heat-config/heat-config-script/b1a6-02"]);
        assert_eq!(job.environment["count"], "3");
        assert_eq!(job.environment["flag"], "True");
        assert_eq!(job.environment["heat_outputs_path"], "/var/run/heat-config/heat-config-script/b1a6-02");
        let expected = "/run/heat-config/heat-config-script/b1a6-02.result".to_owned();
        assert_eq!(job.outputs, [("result".to_owned(), expected)].into());
        assert_eq!((job.files[0].mode, job.time_limit_ms), (0o700, Some(5000)));
    }

    #[test]
    fn an_id_never_leads_out_of_the_directory_and_an_object_is_no_script() {
        let entry = json!({"id": "a", "group": "script", "config": {"a": 1}});
        let malformed = Deployment::parse(&entry).unwrap_err();
        assert!(malformed.mistakes[0].contains("not a string"), "{malformed:?}");
        assert_eq!(name("../../x"), key_of("../../x"));
        // Attack: it took the other's file.
        assert_ne!(name(&key_of("../../x")), key_of("../../x"));
    }

    #[test]
    fn what_a_script_left_goes_with_its_record_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let file = |path: String| {
            tree.create_dir_all(Path::new(&path).parent().unwrap(), crate::files::Attributes::mode(0o700)).unwrap();
            tree.write(Path::new(&path), b"", crate::files::Attributes::mode(0o600)).unwrap();
            dir.path().join(&path[1..])
        };
        let gone = [file(format!("{WORKING}/a1")), file(format!("{REAL_OUTPUTS}/a1.x"))];
        let kept = [file(format!("{WORKING}/a11")), file(format!("{REAL_OUTPUTS}/a11.x"))];
        forget(&tree, &["a1".to_owned()]).1.unwrap();
        assert!(gone.iter().all(|path| !path.exists()) && kept.iter().all(|path| path.exists()));
    }

    #[test]
    fn the_directory_of_outputs_is_gone_through_once_for_any_number_of_records() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        for place in [WORKING, REAL_OUTPUTS] {
            tree.create_dir_all(Path::new(place), crate::files::Attributes::mode(0o700)).unwrap();
        }
        let ids: Vec<String> = (0..50).map(|number| format!("a{number}")).collect();
        let watch = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
        // With the end of each use between them the kernel does not take two openings for one.
        watch.add_watch(&dir.path().join(&REAL_OUTPUTS[1..]), AddWatchFlags::IN_OPEN | AddWatchFlags::IN_CLOSE).unwrap();
        let openings = || {
            let mut count = 0;
            while let Ok(events) = watch.read_events() {
                count += events.iter().filter(|event| event.mask.contains(AddWatchFlags::IN_OPEN)).count();
            }
            count
        };
        for id in &ids {
            forget(&tree, std::slice::from_ref(id)).1.unwrap();
        }
        assert_eq!(openings(), ids.len(), "that is how it is counted");
        forget(&tree, &ids).1.unwrap();
        assert_eq!(openings(), 1);
        forget(&tree, &[]).1.unwrap();
        assert_eq!(openings(), 0);
    }

    /// Attack: an output with a name that no file can have took the count of what all deployments left with it.
    #[test]
    fn an_output_that_no_file_can_be_takes_no_room() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let outputs = ["x".repeat(300), "o".to_owned()];
        tree.create_dir_all(Path::new(REAL_OUTPUTS), crate::files::Attributes::mode(0o700)).unwrap();
        let there = Path::new(REAL_OUTPUTS).join(format!("{}.o", name("a")));
        tree.write(&there, b"12345", crate::files::Attributes::mode(0o600)).unwrap();
        assert_eq!(bytes_of(&tree, "a", outputs.iter()).unwrap(), 5);
    }
}
