//! The metadata as files, for programs that read them as os-collect-config left them: OS_CONFIG_FILES names them.
//!
//! In: a job, the metadata in force. Out: the job with the files that its runner writes. Never: a file that is written here.

use std::iter::once;

use crate::collect::Snapshot;
use crate::deploy::Work;
use crate::programs::{Job, JobFile};

/// Where a program that reads the metadata finds them: in memory, for root alone.
const DOCUMENTS: &str = "/run/heat-config/metadata";

/// The job, with what os-collect-config would have listed for it: the metadata in force, and the configs that no hook runs
/// (heat-protocol.md 2.8), in files that the next such job replaces.
pub(super) fn with_metadata(mut job: Job, snapshot: &Snapshot) -> Job {
    let data = snapshot.parsed().filter(|one| Work::of(&one.group) == Work::Data && one.config.is_object());
    let documents = once(snapshot.text()).chain(data.map(|one| one.config.to_string()));
    let file = |(number, content)| JobFile { path: format!("{DOCUMENTS}/{number}.json"), content, mode: 0o600 };
    job.files.extend(documents.enumerate().map(file));
    let paths: Vec<&str> = job.files.iter().map(|file| file.path.as_str()).collect();
    job.environment.insert("OS_CONFIG_FILES".to_owned(), paths.join(":"));
    job
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::collect::Entries;

    #[test]
    fn os_apply_config_finds_the_metadata_and_what_no_hook_runs() {
        let entries = [
            json!({"id": "a", "name": "n", "group": "apply-config", "config": "", "inputs": []}),
            json!({"id": "b", "name": "m", "group": "os-apply-config", "config": {"two": 2}, "inputs": []}),
            json!({"id": "c", "name": "o", "group": "Heat::Ungrouped", "config": "text", "inputs": []}),
        ];
        let metadata = serde_json::Map::from_iter([("one".to_owned(), json!(1))]);
        let snapshot =
            Snapshot { metadata, deployments: Some(Arc::new(Entries::new(entries.to_vec()).unwrap())), ..Snapshot::default() };
        let job = with_metadata(Job::default(), &snapshot);
        let [first, second] = job.files.as_slice() else { panic!("{:?}", job.files) };
        let document = crate::budgets::json::answer(first.content.as_bytes()).unwrap();
        assert_eq!((&document["one"], document["deployments"].as_array().unwrap().len()), (&json!(1), 3));
        assert_eq!((second.content.as_str(), first.mode), ("{\"two\":2}", 0o600));
        assert_eq!(job.environment["OS_CONFIG_FILES"], "/run/heat-config/metadata/0.json:/run/heat-config/metadata/1.json");
    }
}
