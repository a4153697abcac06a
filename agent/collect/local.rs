//! Files on this machine: the boot copies of the metadata, the replaced collector's settings and local
//! data, and the given document by `--metadata`.

use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use serde_json::{Map, Value};

use super::collector_config::CollectorConfig;
use super::file_origins::{FileOrigins, read_safe, safe};
use super::user_data::{MetadataService, UserData};
use super::{document, node_file};
use crate::budgets::{DOCUMENT_BYTES, LOCAL_BYTES, LOCAL_MEMORY, yaml};
use crate::digest;
use crate::error::{Context, Error, Result};
use crate::files::{FileKind, Tree};
use crate::settings::Sources;

/// What the files say; read again at each poll, parsed again only if a byte changed.
#[derive(Default)]
pub(super) struct LocalFiles {
    boot_raw: Option<String>,
    /// The boot copies, merged in order; `None` where there is none.
    pub(super) boot: Option<Result<Boot>>,
    pub(super) drive: UserData,
    pub(super) service: MetadataService,
    /// Whether the metadata service is to be asked.
    pub(super) awaits_service: bool,
    /// Where the boot copy is from, where no file has it.
    pub(super) user_data_of: Option<&'static str>,
    /// Boot copies that other users could read, or still can.
    pub(super) exposed: Vec<String>,
    /// os-collect-config.conf.
    pub(super) config: CollectorConfig,
    /// `http://host:8000`, left by cloud-init for old templates (heat-protocol.md 2.3).
    pub(super) hint: Option<String>,
    /// The operator's own documents, merged; `None` where there is none.
    pub(super) local: Option<Result<Boot>>,
    /// The file that configures the node, until its source takes it; `None` where it is not looked for, or is another instance's.
    pub(super) node: Option<Result<Vec<u8>>>,
    /// Whether it is looked for.
    pub(super) has_node: bool,
    /// Whose the files are that lead to a server.
    pub(super) origins: FileOrigins,
}

/// The server's metadata as it was at first boot.
#[derive(Clone, Default)]
pub(super) struct Boot {
    /// Digest of the files.
    pub(super) raw: String,
    pub(super) document: Map<String, Value>,
    /// Files that could not be used.
    pub(super) warnings: Vec<String>,
}

impl std::fmt::Debug for Boot {
    /// Without the document, which holds passwords.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Boot").field("warnings", &self.warnings).finish_non_exhaustive()
    }
}

/// Where cloud-init leaves the first metadata.
const BOOT_COPIES: [&str; 2] = ["/var/lib/heat-cfntools/cfn-init-data", "/var/lib/cloud/data/cfn-init-data"];

/// Where the first metadata is where no cloud-init left it on this machine.
const DRIVE: &str = "user data of the config drive";
const SERVICE: &str = "user data of the metadata service";

/// Where the replaced collector's source `local` looked, unless os-collect-config.conf names other directories.
pub const LOCAL_DATA: &str = "/var/lib/os-collect-config/local-data";

/// The file that names the endpoint of Heat's metadata server, unless os-collect-config.conf names another one.
pub const HINT: &str = "/var/lib/heat-cfntools/cfn-metadata-server";

impl LocalFiles {
    /// Reads the files anew. Gives oddities of os-collect-config.conf when it changed.
    pub(super) fn refresh(&mut self, root: &Tree, sources: &Sources) -> Vec<String> {
        self.origins.clear();
        self.refresh_boot(root, sources);
        let mut warnings = self.config.refresh(root, &sources.os_collect_config, &mut self.origins);
        self.refresh_hint(root, &mut warnings);
        self.local = self.read_local(root).transpose();
        self.node = if self.has_node { self.read_node(root) } else { None };
        warnings
    }

    fn read_node(&mut self, root: &Tree) -> Option<Result<Vec<u8>>> {
        let path = Path::new(node_file::HEAT_PARAMS);
        match read_safe(root, path, LOCAL_BYTES as u64) {
            Ok(None) => Some(Err(node_file::missing())),
            Ok(content) => self.origins.own(path, content).map(Ok),
            Err(error) => Some(Err(error)),
        }
    }

    fn refresh_boot(&mut self, root: &Tree, sources: &Sources) {
        let mut exposed = Vec::new();
        let read = |path: &PathBuf| -> Result<Option<Vec<u8>>> {
            let content = read_safe(root, path, LOCAL_BYTES as u64)?;
            exposed.extend(content.as_ref().and_then(|_| hide(root, path)));
            Ok(self.origins.own(path, content))
        };
        let mut files: Vec<_> = sources.cfn_init_data.iter().zip(sources.cfn_init_data.iter().map(read)).collect();
        self.exposed = exposed;
        let is_without = !files.is_empty() && files.iter().all(|(_, content)| matches!(content, Ok(None)));
        let found = if is_without { self.read_user_data(root, sources) } else { None };
        self.user_data_of = found.as_ref().map(|(place, _)| *place);
        self.awaits_service =
            is_without && found.is_none() && sources.metadata_service.is_some() && !self.service.user_data.is_known();
        let place = PathBuf::from(self.user_data_of.unwrap_or_default());
        files.extend(found.map(|(_, content)| (&place, Ok(Some(content)))));
        let mut all = Vec::new();
        for (path, content) in &files {
            all.extend_from_slice(path.as_os_str().as_encoded_bytes());
            all.push(0);
            match content {
                Ok(content) => {
                    let digest = content.as_ref().map(|content| digest::hex(content));
                    all.extend_from_slice(digest.unwrap_or_default().as_bytes());
                }
                Err(error) => all.extend_from_slice(error.cause().as_bytes()),
            }
        }
        let raw = digest::hex(&all);
        if self.boot_raw.as_ref() == Some(&raw) {
            return;
        }
        let mut boot = Boot { raw: raw.clone(), ..Boot::default() };
        self.boot_raw = Some(raw);
        let (mut good, mut first_error) = (false, None);
        for (path, content) in files {
            let parsed = content
                .and_then(|content| {
                    content
                        .map(|bytes| document::object_within(&bytes, LOCAL_MEMORY / sources.cfn_init_data.len().max(1)))
                        .transpose()
                })
                .context(|| format!("reading {}", path.display()));
            match parsed {
                Ok(None) => {}
                Ok(Some(document)) => {
                    good = true;
                    boot.document.extend(document);
                }
                Err(error) => {
                    boot.warnings.push(error.to_string());
                    first_error.get_or_insert(error);
                }
            }
        }
        self.boot = match first_error {
            // One copy that can be read is enough: both say the same.
            _ if good => Some(Ok(boot)),
            Some(error) if error.suggested_remedy().is_some() => Some(Err(error)),
            Some(error) => Some(Err(error.remedy("check whether cloud-init completed; the disk may be full or damaged"))),
            None => None,
        };
    }

    /// The first metadata where no cloud-init left it, and where it is from.
    fn read_user_data(&mut self, root: &Tree, sources: &Sources) -> Option<(&'static str, Vec<u8>)> {
        let of_drive = if sources.config_drive { self.drive.of_drive(root) } else { None };
        let of_service = || sources.metadata_service.as_ref().and_then(|_| self.service.user_data.known());
        of_drive.map(|found| (DRIVE, found)).or_else(|| of_service().map(|found| (SERVICE, found)))
    }

    /// It names Heat, and no server.
    fn refresh_hint(&mut self, root: &Tree, warnings: &mut Vec<String>) {
        let hint = self.config.settings.get("cfn", "heat_metadata_hint").unwrap_or(HINT);
        let content = read_safe(root, Path::new(hint), 4096).unwrap_or_else(|error| {
            warnings.push(format!("{hint} is ignored: {error}"));
            None
        });
        let content = content.unwrap_or_default();
        self.hint = std::str::from_utf8(&content).ok().map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned);
    }

    /// Whether a file that names the server's sources is there and cannot be read: that nobody is named does not follow from it.
    pub(super) fn is_unread(&self) -> bool {
        self.config.unread.is_some() || matches!(self.boot, Some(Err(_)))
    }

    /// The source `local` (heat-protocol.md 2.6): a document a file. One bad file makes the whole source fail, because
    /// what it meant to override is not known.
    fn read_local(&mut self, root: &Tree) -> Result<Option<Boot>> {
        let before = self.local.take().and_then(Result::ok);
        let mut paths: Vec<_> = self.config.settings.all("local", "path").collect();
        if paths.is_empty() {
            paths.push(LOCAL_DATA);
        }
        let mut files = Vec::new();
        for directory in paths.into_iter().map(Path::new) {
            if root.facts_followed(directory)?.is_none_or(|facts| facts.kind != FileKind::Directory) {
                continue;
            }
            safe(root, directory)?;
            files.extend(root.list(directory)?.into_iter().filter(|name| !name.as_encoded_bytes().starts_with(b".")).map(
                |name| {
                    let path = directory.join(&name);
                    (name, path)
                },
            ));
        }
        files.sort_unstable();
        let (mut all, mut documents, mut size) = (Vec::new(), Vec::new(), 0);
        for (_, path) in files {
            if root.facts_followed(&path)?.is_none_or(|facts| facts.kind == FileKind::Directory) {
                continue;
            }
            let Some(bytes) = read_safe(root, &path, LOCAL_BYTES as u64)? else { continue };
            size += bytes.len();
            if size > LOCAL_BYTES {
                return Err(
                    Error::permanent(format!("local data is larger than {LOCAL_BYTES} bytes")).context("reading local data")
                );
            }
            all.extend_from_slice(path.as_os_str().as_encoded_bytes());
            all.push(0);
            all.extend_from_slice(digest::hex(&bytes).as_bytes());
            documents.push((path, bytes));
        }
        if documents.is_empty() {
            return Ok(None);
        }
        let mut local = Boot { raw: digest::hex(&all), ..Boot::default() };
        if let Some(before) = before.filter(|before| before.raw == local.raw) {
            return Ok(Some(before));
        }
        let budget = LOCAL_MEMORY / documents.len();
        for (path, bytes) in documents {
            let read = document::object_within(&bytes, budget).context(|| format!("reading {}", path.display()))?;
            local.document.extend(read);
        }
        // Only Heat asks for deployments.
        if local.document.shift_remove("deployments").is_some() {
            local.warnings.push("deployments in local data are ignored".to_owned());
        }
        Ok(Some(local))
    }
}

/// Keeps the boot copies from other users: they hold the server's password (heat-protocol.md R51). What is to be said of that.
pub fn hide_boot_copies(root: &Tree) -> Vec<String> {
    let is_own =
        |path: &&Path| geteuid().is_root() && root.facts(path).is_ok_and(|facts| facts.is_some()) && safe(root, path).is_ok();
    BOOT_COPIES.map(Path::new).into_iter().filter(is_own).filter_map(|path| hide(root, path)).collect()
}

/// Keeps a file, which root alone can change, from other users. What is to be said of that.
fn hide(root: &Tree, path: &Path) -> Option<String> {
    let shown = path.display();
    match root.make_private(path) {
        Ok(false) => None,
        Ok(true) => Some(format!("{shown} has mode 0600 now: its mode let other users read it")),
        Err(error) => Some(format!("{shown} is not for root alone: {error}")),
    }
}

/// Reads a document for `--metadata`: a whole server document, or a bare list of deployments.
///
/// # Errors
/// If the file is missing, too large, no JSON, or neither of the two.
pub fn read_document(path: &Path) -> Result<Map<String, Value>> {
    parse_document(&read_file(path)?).context(|| format!("reading {}", path.display()))
}

/// The document of a file that the caller names: JSON, or YAML, as `verify` and `plan` take it.
///
/// # Errors
/// If it is neither, or no document.
pub(super) fn parse_given(bytes: &[u8]) -> Result<Map<String, Value>> {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    if is_yaml(text) { as_document(yaml::read(text)?.root.to_json()) } else { parse_document(bytes) }
}

/// Whether a document is read as YAML. What begins like JSON, or is no text at all, is read as JSON, which says more exactly what is wrong with it.
#[must_use]
pub fn is_yaml(text: &str) -> bool {
    let text = text.trim_start();
    !text.is_empty() && !text.starts_with(['{', '[', '<'])
}

/// Reads a file that the caller names, bounded.
///
/// # Errors
/// If it is not there, is too large or cannot be read.
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    let path = std::path::absolute(path)?;
    // Not below the tree that the node is in: with `apply --root` the document is outside of it.
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Error::permanent(format!("{} is not a regular file", path.display())));
    };
    let content = Tree::open(parent)?.read(Path::new(name), DOCUMENT_BYTES as u64)?;
    content.ok_or_else(|| Error::permanent("there is no such file").context(format!("reading {}", path.display())))
}

pub(super) fn parse_document(bytes: &[u8]) -> Result<Map<String, Value>> {
    as_document(document::parse(bytes)?)
}

/// A server's metadata, or a list of deployments, as the document of a server.
///
/// # Errors
/// If it is neither.
pub fn as_document(value: Value) -> Result<Map<String, Value>> {
    match value {
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

    /// With YAML, in which `verify` and `plan` find no mistake, the daemon had no metadata.
    #[test]
    fn a_given_document_is_yaml_too() {
        let document = json!({"deployments": [{"id": "a", "group": "script", "config": "x"}]});
        let text = "# ours\ndeployments:\n- id: a\n  group: script\n  config: x\n";
        for (text, expected) in [
            (text, Ok(document.clone())),
            ("- id: a\n  group: script\n  config: x\n", Ok(document.clone())),
            (r#"{"deployments": [{"id": "a", "group": "script", "config": "x"}]}"#, Ok(document)),
            ("{\"deployments\": [", Err("the JSON ends too early")),
            ("deployments: [", Err("the YAML is broken")),
            ("text", Err("not an object")),
            ("", Err("JSON")),
        ] {
            match (parse_given(text.as_bytes()), expected) {
                (found, Ok(expected)) => assert_eq!(found.map(Value::Object).unwrap(), expected, "{text}"),
                (found, Err(part)) => assert!(found.clone().unwrap_err().to_string().contains(part), "{text}: {found:?}"),
            }
        }
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
        assert_eq!((Value::Object(boot.document), boot.warnings.len()), (json!({"a": 1}), 1));
        put(&tree, "/var/lib/heat-cfntools/cfn-init-data", "{\"a\": 2, \"b\": 3}");
        files.refresh(&tree, &sources);
        assert_eq!(Value::Object(files.boot.clone().unwrap().unwrap().document), json!({"a": 1, "b": 3}));
    }

    #[test]
    fn a_boot_copy_is_for_root_alone() {
        let sources = Settings::default().sources;
        let [linked, boot] = BOOT_COPIES;
        for mode in [0o644, 0o640, 0o604, 0o755] {
            let dir = tempfile::tempdir().unwrap();
            let tree = Tree::open(dir.path()).unwrap();
            let mode_of = |path: &str| tree.facts(Path::new(path)).unwrap().unwrap().mode;
            put(&tree, boot, "{\"a\": 1}");
            tree.create_dir_all(Path::new("/var/lib/heat-cfntools"), Attributes::mode(0o755)).unwrap();
            tree.link(boot, Path::new(linked)).unwrap();
            for by_link in [false, true] {
                tree.set_attributes(Path::new(boot), Attributes::mode(mode)).unwrap();
                let mut files = LocalFiles::default();
                let mut read = || {
                    files.refresh(&tree, &sources);
                    files.exposed.clone()
                };
                let said = if by_link { hide_boot_copies(&tree) } else { read() };
                if by_link && !geteuid().is_root() {
                    continue;
                }
                assert!(said.len() == 1 && said[0].ends_with("has mode 0600 now: its mode let other users read it"), "{said:?}");
                assert_eq!(mode_of(boot), 0o600);
                assert!(if by_link { hide_boot_copies(&tree) } else { read() }.is_empty(), "said once");
            }
            // What others may write is nobody's word, and where it leads nobody knows.
            tree.set_attributes(Path::new(boot), Attributes::mode(0o666)).unwrap();
            assert!(hide_boot_copies(&tree).is_empty() && mode_of(boot) == 0o666);
        }
    }

    /// The drive is made as Nova makes it; without cloud-init nobody else reads it.
    #[test]
    fn where_no_cloud_init_left_anything_the_config_drive_is_the_boot_copy() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let mut sources = Settings::default().sources;
        let mut files = LocalFiles::default();
        put(&tree, "/dev/disk/by-label/config-2", "no file system");
        files.refresh(&tree, &sources);
        assert!(files.drive.failures.is_empty(), "whoever may attach a disk could name another Heat: the image has to permit it");
        sources.config_drive = true;
        files.refresh(&tree, &sources);
        let said = std::mem::take(&mut files.drive.failures);
        assert!(said.len() == 1 && said[0].to_string().contains("the config drive"), "{said:?}");
        files.refresh(&tree, &sources);
        assert!(files.drive.failures.is_empty() && files.boot.is_none() && !files.is_unread(), "said once, nothing waits");

        let part = "Content-Type: text/x-cfninitdata\nContent-Disposition: attachment; filename=\"cfn-init-data\"\n\n{\"a\": 1}";
        let user_data = format!("Content-Type: multipart/mixed; boundary=\"=b\"\n\n--=b\n{part}\n--=b--\n");
        put(&tree, "/files/openstack/latest/user_data", &user_data);
        let (image, content) = (dir.path().join("dev/disk/by-label/config-2"), dir.path().join("files"));
        #[expect(clippy::disallowed_methods, reason = "a test asks the program that Nova uses")]
        let made = std::process::Command::new("genisoimage")
            .args(["-quiet", "-ldots", "-allow-lowercase", "-allow-multidot", "-l", "-J", "-r", "-V", "config-2", "-o"])
            .args([&image, &content])
            .output();
        assert!(made.unwrap().status.success());
        assert!(files.refresh(&tree, &sources).is_empty());
        assert_eq!(Value::Object(files.boot.clone().unwrap().unwrap().document), json!({"a": 1}));
        assert!(files.user_data_of == Some(DRIVE) && files.origins.digests.is_empty(), "a copied disk does not bring it along");
        put(&tree, "/var/lib/cloud/data/cfn-init-data", "{\"a\": 2}");
        files.refresh(&tree, &sources);
        assert_eq!(
            Value::Object(files.boot.clone().unwrap().unwrap().document),
            json!({"a": 2}),
            "cloud-init's word is the first"
        );
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
        assert_eq!((files.config.settings.get("cfn", "stack_name"), files.hint.as_deref()), (Some("a"), Some("http://h:8000")));
        put(&tree, "/etc/os-collect-config.conf", "[cfn]\nstack_name = b\nheat_metadata_hint = /elsewhere\n");
        files.refresh(&tree, &sources);
        assert_eq!((files.config.settings.get("cfn", "stack_name"), files.hint.as_deref()), (Some("b"), None));
    }

    #[test]
    fn local_data_is_merged_by_name_and_only_from_files_that_nobody_else_writes() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let sources = Settings::default().sources;
        let mut files = LocalFiles::default();
        let mut read = |tree: &Tree| {
            files.refresh(tree, &sources);
            files.local.clone().transpose().map(|local| local.map(|local| (Value::Object(local.document), local.warnings.len())))
        };
        assert_eq!(read(&tree), Ok(None));
        tree.create_dir_all(Path::new(LOCAL_DATA), Attributes::mode(0o750)).unwrap();
        assert_eq!(read(&tree), Ok(None), "an empty directory is no failure");
        put(&tree, &format!("{LOCAL_DATA}/20-b.json"), "{\"a\": 2, \"b\": 2, \"deployments\": [{\"id\": \"x\"}]}");
        put(&tree, &format!("{LOCAL_DATA}/10-a"), "{\"a\": 1, \"c\": 1}");
        put(&tree, &format!("{LOCAL_DATA}/.hidden"), "no json");
        put(&tree, &format!("{LOCAL_DATA}/sub/x"), "no json");
        assert_eq!(read(&tree), Ok(Some((json!({"a": 2, "b": 2, "c": 1}), 1))));
        // Elsewhere too, by the name of the file and not of the directory.
        put(&tree, "/etc/os-collect-config.conf", &format!("[local]\npath = /srv/local\npath = {LOCAL_DATA}\n"));
        put(&tree, "/srv/local/15-c", "{\"a\": 3, \"d\": 3}");
        assert_eq!(read(&tree), Ok(Some((json!({"a": 2, "b": 2, "c": 1, "d": 3}), 1))));
        let file = format!("{LOCAL_DATA}/10-a");
        for (mode, owner, words) in [
            (0o602, None, "(mode 0602, owner "),
            (0o620, None, "(mode 0620, owner "),
            (0o600, Some((1, 1)), "(mode 0600, owner 1)"),
        ] {
            if owner.is_some() && !geteuid().is_root() {
                continue;
            }
            tree.set_attributes(Path::new(&file), Attributes { mode, owner }).unwrap();
            let error = read(&tree).unwrap_err();
            let reported = error.to_string();
            assert!(reported.contains("10-a can be changed by") && reported.contains(words), "{error}");
            assert!(error.suggested_remedy().unwrap().contains("chmod go-w"), "{error:?}");
        }
        for (text, words) in [("{", "10-a: the JSON ends too early"), ("[]", "10-a: the metadata is a list, not an object")] {
            tree.remove(Path::new(&file)).unwrap();
            put(&tree, &file, text);
            let error = read(&tree).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        put(&tree, &file, "{}");
        tree.set_attributes(Path::new(LOCAL_DATA), Attributes::mode(0o777)).unwrap();
        assert!(read(&tree).unwrap_err().to_string().contains("local-data can be changed by"));
    }

    /// Attack: the boot copy, and who the server is, were read from files that anybody could write.
    #[test]
    fn what_leads_to_heat_is_taken_only_from_where_nobody_else_writes() {
        let sources = Settings::default().sources;
        let (boot, conf) = ("/var/lib/cloud/data/cfn-init-data", "/etc/os-collect-config.conf");
        for (path, mode) in [(boot, 0o666), ("/var/lib/cloud/data", 0o777), (conf, 0o620), ("/etc", 0o1777)] {
            let dir = tempfile::tempdir().unwrap();
            let tree = Tree::open(dir.path()).unwrap();
            put(&tree, boot, "{\"a\": 1}");
            put(&tree, conf, "[cfn]\nstack_name = a\n");
            tree.set_attributes(Path::new(path), Attributes::mode(mode)).unwrap();
            let mut files = LocalFiles::default();
            files.refresh(&tree, &sources);
            let is_boots = path.starts_with("/var");
            let error = if is_boots { files.boot.clone().unwrap().unwrap_err() } else { files.config.unread.clone().unwrap() };
            assert!(error.to_string().contains("can be changed by users other than root"), "{error}");
            assert!(error.suggested_remedy().unwrap().starts_with("chown root"), "{error:?}");
            assert_eq!(files.config.settings.get("cfn", "stack_name"), is_boots.then_some("a"));
            assert!(files.is_unread());
            tree.set_attributes(Path::new(path), Attributes::mode(0o700)).unwrap();
            files.refresh(&tree, &sources);
            assert!(
                matches!(&files.boot, Some(Ok(_)))
                    && files.config.settings.get("cfn", "stack_name") == Some("a")
                    && !files.is_unread()
            );
        }
    }

    /// It names whom the server's keys are shown to.
    #[test]
    fn a_hint_that_others_may_change_names_nobody_and_is_reported() {
        let sources = Settings::default().sources;
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        put(&tree, HINT, "http://192.0.2.1:8000\n");
        for (path, mode, hint) in [
            (HINT, 0o600, Some("http://192.0.2.1:8000")),
            (HINT, 0o666, None),
            (HINT, 0o600, Some("http://192.0.2.1:8000")),
            ("/var/lib/heat-cfntools", 0o777, None),
        ] {
            tree.set_attributes(Path::new(path), Attributes::mode(mode)).unwrap();
            let mut files = LocalFiles::default();
            let warnings = files.refresh(&tree, &sources);
            assert_eq!(files.hint.as_deref(), hint, "{path} {mode:o}");
            let reported =
                warnings.iter().any(|line| line.starts_with(HINT) && line.contains("can be changed by users other than root"));
            assert_eq!(reported, hint.is_none(), "{warnings:?}");
        }
    }

    #[test]
    fn what_a_copied_disk_brings_along_is_not_used_until_it_changes() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let sources = Settings::default().sources;
        let (boot, conf) = ("/var/lib/cloud/data/cfn-init-data", "/etc/os-collect-config.conf");
        put(&tree, boot, "{\"a\": 1}");
        put(&tree, conf, "[cfn]\nstack_name = old\naccess_key_id = k\n");
        let mut before = LocalFiles::default();
        before.refresh(&tree, &sources);
        assert_eq!(before.origins.digests.keys().collect::<Vec<_>>(), [conf, boot]);
        let mut files = LocalFiles::default();
        files.origins.predecessors = before.origins.digests.clone();
        files.refresh(&tree, &sources);
        assert!(files.boot.is_none() && files.config.settings.get("cfn", "stack_name").is_none());
        assert_eq!(
            (files.origins.left_over.as_slice(), files.origins.digests.len()),
            (&[boot.to_owned(), conf.to_owned()][..], 0)
        );
        assert_eq!(files.config.resource, None);
        put(&tree, conf, "# right\n[cfn]\nstack_name = old\naccess_key_id = k\n");
        files.refresh(&tree, &sources);
        assert_eq!((files.config.settings.get("cfn", "stack_name"), files.origins.left_over.len()), (Some("old"), 1));
        assert_eq!(files.origins.digests.keys().collect::<Vec<_>>(), [conf]);
        // The image's own settings lead to no server: every instance of it has them.
        put(&tree, conf, "[DEFAULT]\ncommand = os-refresh-config\npolling_interval = 10\n");
        files.refresh(&tree, &sources);
        assert!(files.origins.digests.is_empty() && files.config.settings.seconds("DEFAULT", "polling_interval").is_some());
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
