//! The status document as a file.

use std::path::Path;

use super::masking::without_url_users;
use crate::budgets::json;
use crate::error::{Error, Result};
use crate::files::{Attributes, Tree};
use crate::http::may_have_userinfo;
use crate::report::status::StatusDocument;

/// Name of the status file in the run directory.
pub(crate) const FILE: &str = "status.json";

/// Writes the document where everybody may read it. Where that fails, what is there is removed: it would be taken for what is so now.
pub(super) fn write(run_dir: &Tree, page: &StatusDocument) -> Result<()> {
    let mut text = serde_json::to_string(page).map_err(Error::permanent)?;
    // A page is written at each poll, and hardly any has something to mask. JSON as it is written here escapes neither mark.
    if may_have_userinfo(&text) {
        text = without_url_users(json::of(page)?).to_string();
    }
    text.push('\n');
    run_dir.write(Path::new(FILE), text.as_bytes(), Attributes::mode(0o644)).inspect_err(|_| {
        // The error of the write says why.
        drop(run_dir.remove_dir_all(Path::new(FILE)));
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::Snapshot;
    use crate::daemon::of_state;
    use crate::report::status::Condition;

    #[test]
    fn what_cannot_be_replaced_is_not_left_to_be_believed() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let page = of_state(&Snapshot::default(), &[], None, &[], &tree);
        // A directory, of which the remedy said that a restart of the agent puts the file in its place.
        tree.create_dir_all(&Path::new(FILE).join("x"), Attributes::mode(0o755)).unwrap();
        assert!(write(&tree, &page).is_err() && !dir.path().join(FILE).exists());
        write(&tree, &page).unwrap();
        assert!(dir.path().join(FILE).is_file());
    }

    #[test]
    fn no_password_of_a_url_is_in_the_status_file() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let mut page = of_state(&Snapshot::default(), &[], None, &[], &tree);
        write(&tree, &page).unwrap();
        let whole = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert_eq!(whole, format!("{}\n", without_url_users(serde_json::to_value(&page).unwrap())), "nothing is to be masked");
        page.summary = "source cfn fails: http://u:hush@h/v1/ \"x\"".to_owned();
        let cause = Some("gate: GET https://u:hu\"sh@h".to_owned());
        page.conditions = vec![Condition { cause, ..Condition::default() }];
        write(&tree, &page).unwrap();
        let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert!(!text.contains("hu") && text.contains("http://******@h/v1/"), "{text}");
        let shown: StatusDocument = json::typed(&text).unwrap();
        assert_eq!(shown, StatusDocument { summary: shown.summary.clone(), conditions: shown.conditions.clone(), ..page });
    }
}
