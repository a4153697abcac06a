//! Files on this machine: the boot copies of the metadata, the replaced collector's settings, and
//! the document given by `--metadata`.

use std::path::Path;

use serde_json::{Map, Value};

use super::document::{self, digest_of};
use crate::error::{Context, Error, Result};
use crate::files::{READ_LIMIT, Tree};
use crate::settings::Sources;
use crate::settings::os_collect_config::OsCollectConfig;

/// What the files say; read again at each poll, parsed again only if a byte changed.
#[derive(Debug, Default)]
pub(super) struct LocalFiles {
    boot_raw: Option<String>,
    /// The boot copies, merged in order; `None` where there is none.
    pub(super) boot: Option<Result<Boot>>,
    config_raw: Option<String>,
    /// os-collect-config.conf.
    pub(super) config: OsCollectConfig,
    /// `http://host:8000`, left by cloud-init for old templates (heat-protocol.md 2.3).
    pub(super) hint: Option<String>,
}

/// The server's metadata as it was at first boot.
#[derive(Clone, Debug, Default)]
pub(super) struct Boot {
    /// Digest of the files.
    pub(super) raw: String,
    pub(super) document: Map<String, Value>,
    /// Files that could not be used.
    pub(super) odd: Vec<String>,
}

/// Where [`LocalFiles::hint`] is unless os-collect-config.conf names another file.
const HINT: &str = "/var/lib/heat-cfntools/cfn-metadata-server";

impl LocalFiles {
    /// Reads the files anew. Gives oddities of os-collect-config.conf when it changed.
    pub(super) fn refresh(&mut self, root: &Tree, sources: &Sources) -> Vec<String> {
        self.refresh_boot(root, sources);
        self.refresh_config(root, &sources.os_collect_config)
    }

    fn refresh_boot(&mut self, root: &Tree, sources: &Sources) {
        let files: Vec<_> = sources.cfn_init_data.iter().map(|path| (path, root.read(path, READ_LIMIT))).collect();
        let mut all = Vec::new();
        for (path, content) in &files {
            all.extend_from_slice(path.as_os_str().as_encoded_bytes());
            all.push(0);
            match content {
                Ok(content) => all.extend_from_slice(content.as_deref().unwrap_or_default()),
                Err(error) => all.extend_from_slice(error.cause().as_bytes()),
            }
        }
        let raw = digest_of(&all);
        if self.boot_raw.as_ref() == Some(&raw) {
            return;
        }
        let mut boot = Boot { raw: raw.clone(), ..Boot::default() };
        self.boot_raw = Some(raw);
        let (mut good, mut first_error) = (false, None);
        for (path, content) in files {
            let parsed = content
                .and_then(|content| content.map(|bytes| document::object(&bytes)).transpose())
                .context(|| format!("reading {}", path.display()));
            match parsed {
                Ok(None) => {}
                Ok(Some(document)) => {
                    good = true;
                    boot.document.extend(document);
                }
                Err(error) => {
                    boot.odd.push(error.to_string());
                    first_error.get_or_insert(error);
                }
            }
        }
        self.boot = match first_error {
            // One copy that can be read is enough: both say the same.
            _ if good => Some(Ok(boot)),
            Some(error) => Some(Err(error.remedy("see whether cloud-init ran to its end; the disk may be full or damaged"))),
            None => None,
        };
    }

    fn refresh_config(&mut self, root: &Tree, path: &Path) -> Vec<String> {
        let content = root.read(path, READ_LIMIT).map(Option::unwrap_or_default);
        let raw = match &content {
            Ok(bytes) => digest_of(bytes),
            Err(error) => error.to_string(),
        };
        let mut odd = Vec::new();
        if self.config_raw.as_ref() != Some(&raw) {
            self.config_raw = Some(raw);
            match content {
                Ok(bytes) => {
                    self.config = OsCollectConfig::parse(&bytes);
                    let lines = self.config.odd_lines.iter();
                    odd.extend(lines.map(|line| format!("{} line {line}: neither section nor key = value", path.display())));
                }
                // What it said last stays in force.
                Err(error) => odd.push(error.to_string()),
            }
        }
        let hint = self.config.get("cfn", "heat_metadata_hint").unwrap_or(HINT);
        let content = root.read(Path::new(hint), 4096).ok().flatten().unwrap_or_default();
        self.hint = std::str::from_utf8(&content).ok().map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned);
        odd
    }
}

/// Reads a document for `--metadata`: a whole server document, or a bare list of deployments.
///
/// # Errors
/// If the file is missing, too large, no JSON, or neither of the two.
pub fn read_document(path: &Path) -> Result<Map<String, Value>> {
    parse_document(&read_file(path)?).context(|| format!("reading {}", path.display()))
}

pub(super) fn read_file(path: &Path) -> Result<Vec<u8>> {
    let path = std::path::absolute(path)?;
    // Not below the tree that the node is in: with `apply --root` the document is outside of it.
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Error::permanent(format!("{} is no file", path.display())));
    };
    let content = Tree::open(parent)?.read(Path::new(name), READ_LIMIT)?;
    content.ok_or_else(|| Error::permanent("there is no such file").context(format!("reading {}", path.display())))
}

pub(super) fn parse_document(bytes: &[u8]) -> Result<Map<String, Value>> {
    match document::parse(bytes)? {
        Value::Object(document) => Ok(document),
        list @ Value::Array(_) => Ok(Map::from_iter([("deployments".to_owned(), list)])),
        other => Err(document::not_an_object(document::kind(&other)).rule("a server's metadata, or a list of deployments")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::files::Attributes;
    use crate::settings::Settings;

    fn put(tree: &Tree, path: &str, content: &str) {
        let path = Path::new(path);
        tree.create_dir_all(path.parent().unwrap(), Attributes::mode(0o755)).unwrap();
        tree.write(path, content.as_bytes(), Attributes::mode(0o600)).unwrap();
    }

    #[test]
    fn boot_copies_are_merged_and_a_broken_one_does_not_hide_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let sources = Settings::default().sources;
        let mut files = LocalFiles::default();
        assert!(files.refresh(&tree, &sources).is_empty() && files.boot.is_none());
        put(&tree, "/var/lib/heat-cfntools/cfn-init-data", "{");
        files.refresh(&tree, &sources);
        let error = files.boot.clone().unwrap().unwrap_err();
        assert!(error.to_string().contains("cfn-init-data: the JSON ends too early"), "{error}");
        put(&tree, "/var/lib/cloud/data/cfn-init-data", "{\"a\": 1}");
        files.refresh(&tree, &sources);
        let boot = files.boot.clone().unwrap().unwrap();
        assert_eq!((Value::Object(boot.document), boot.odd.len()), (json!({"a": 1}), 1));
        put(&tree, "/var/lib/heat-cfntools/cfn-init-data", "{\"a\": 2, \"b\": 3}");
        files.refresh(&tree, &sources);
        assert_eq!(Value::Object(files.boot.clone().unwrap().unwrap().document), json!({"a": 1, "b": 3}));
    }

    #[test]
    fn the_replaced_collectors_settings_are_read_again_when_they_change() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let sources = Settings::default().sources;
        let mut files = LocalFiles::default();
        put(&tree, "/etc/os-collect-config.conf", "[cfn]\nstack_name = a\nrubbish\n");
        put(&tree, HINT, "http://h:8000\n");
        assert_eq!(files.refresh(&tree, &sources).len(), 1);
        assert!(files.refresh(&tree, &sources).is_empty(), "said once");
        assert_eq!((files.config.get("cfn", "stack_name"), files.hint.as_deref()), (Some("a"), Some("http://h:8000")));
        put(&tree, "/etc/os-collect-config.conf", "[cfn]\nstack_name = b\nheat_metadata_hint = /elsewhere\n");
        files.refresh(&tree, &sources);
        assert_eq!((files.config.get("cfn", "stack_name"), files.hint.as_deref()), (Some("b"), None));
    }

    #[test]
    fn a_document_is_a_servers_metadata_or_a_list_of_deployments() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let path = dir.path().join("document.json");
        for (text, document) in [("{\"a\": 1}", json!({"a": 1})), ("[{\"id\": \"x\"}]", json!({"deployments": [{"id": "x"}]}))] {
            put(&tree, "document.json", text);
            assert_eq!(Value::Object(read_document(&path).unwrap()), document);
        }
        put(&tree, "document.json", "7");
        assert!(read_document(&path).unwrap_err().to_string().contains("document.json: the metadata is a number"));
        assert!(read_document(&dir.path().join("none")).unwrap_err().to_string().contains("no such file"));
        assert!(read_document(Path::new("/")).is_err());
    }
}
