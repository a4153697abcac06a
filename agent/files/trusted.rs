//! Who could put something else at a path.

use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::geteuid;

use super::error_context::At;
use super::{FileKind, LINKS, PathMetadata, Tree, facts_of, parts_backwards};
use crate::error::{Error, Result};

/// What goes with root's powers is taken only from where nobody else can put anything.
const RULE: &str =
    "only root may be able to change what runs or is read as root: the file, every directory on the way to it and every link";

impl Tree {
    /// Goes to what a path leads to, part by part from the tree's own directory on, and through every link: each directory, each link and
    /// what is at the end must belong to root (or to the user that this process runs as), and nobody else may write it. A directory with
    /// the sticky bit counts as one that others write: they could make what is not there yet. Where nothing is, nothing is wrong.
    ///
    /// # Errors
    /// If somebody else could put something else there, naming the place; if it cannot be looked at.
    pub fn check_only_root_changes(&self, path: &Path) -> Result<()> {
        self.check_from(path, 0)
    }

    /// The same of what is in a directory that somebody has named whom the caller obeys: of the way to it (`/tmp`) nothing is asked, of the
    /// directory itself and of everything from there on all is, also outside of it where a link or `..` leads there. Only there a directory of root's
    /// with the sticky bit will do on the way to what is there: nobody else can put anything into its place.
    ///
    /// # Errors
    /// As [`Tree::check_only_root_changes`]; `directory` must be absolute and without links.
    pub fn check_only_root_changes_within(&self, directory: &Path, name: &Path) -> Result<()> {
        let above = directory.components().filter(|part| matches!(part, Component::Normal(_))).count().saturating_sub(1);
        self.check_from(&directory.join(name), above)
    }

    /// `trusted`: of how many directories at the beginning nothing is asked.
    fn check_from(&self, path: &Path, trusted: usize) -> Result<()> {
        let part = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let doing = || self.doing("inspecting", path);
        let root = fstat(&self.root).map(|stat| facts_of(&stat)).at(doing)?;
        self.check_own(Path::new("/"), &root)?;
        let (mut unasked, mut is_outside, mut is_in_sticky) = (trusted, false, false);
        // The directories gone down so far, each by its handle and name.
        let mut above: Vec<(OwnedFd, PathBuf)> = Vec::new();
        let mut left = parts_backwards(path);
        let mut links = 0;
        while let Some(name) = left.pop() {
            match Path::new(&name).components().next() {
                Some(Component::RootDir) => {
                    is_outside = trusted > 0 && links > 0;
                    above.clear();
                }
                Some(Component::ParentDir) => {
                    above.pop();
                    if above.len() <= trusted && trusted > 0 && !is_outside {
                        // The way counts again, from its beginning.
                        is_outside = true;
                        left.extend(above.drain(..).rev().filter_map(|(_, path)| path.file_name().map(ToOwned::to_owned)));
                    }
                }
                Some(Component::Normal(_)) => {
                    let (at, below) = above.last().map_or((&self.root, Path::new("/")), |(fd, path)| (fd, path));
                    let here = below.join(&name);
                    let fd = match openat(at, name.as_os_str(), part, Mode::empty()) {
                        Err(Errno::ENOENT | Errno::ENOTDIR) if !is_in_sticky => return Ok(()),
                        other => other.at(doing)?,
                    };
                    let facts = fstat(&fd).map(|stat| facts_of(&stat)).at(doing)?;
                    if facts.kind != FileKind::Directory {
                        unasked = 0;
                    }
                    if unasked > 0 {
                        unasked -= 1;
                    } else if is_outside && facts.kind == FileKind::Directory && facts.mode & 0o1000 != 0 && facts.owner.0 == 0 {
                        is_in_sticky = true;
                    } else {
                        self.check_own(&here, &facts)?;
                    }
                    if facts.kind != FileKind::Link {
                        above.push((fd, here));
                    } else if links == LINKS {
                        return Err(doing().failed(Errno::ELOOP));
                    } else {
                        links += 1;
                        left.extend(parts_backwards(Path::new(&readlinkat(&fd, "").at(doing)?)));
                    }
                }
                Some(Component::CurDir | Component::Prefix(_)) | None => {}
            }
        }
        Ok(())
    }

    fn check_own(&self, path: &Path, facts: &PathMetadata) -> Result<()> {
        let me = geteuid().as_raw();
        let (is_own, is_link) = ([0, me].contains(&facts.owner.0), facts.kind == FileKind::Link);
        // A link's mode says nothing: whoever writes its directory may replace it.
        if is_own && (is_link || facts.mode & 0o022 == 0) {
            return Ok(());
        }
        let path = self.full(path).display().to_string();
        let (what, remedy) = if is_link {
            ("link ", format!("chown -h root {path}, or remove it"))
        } else {
            ("", format!("chown root {path} && chmod go-w {path}, or use another place"))
        };
        let (mode, owner) = (facts.mode, facts.owner.0);
        let cause = format!("{what}{path} can be changed by users other than root (mode {mode:04o}, owner {owner})");
        Err(Error::refused(cause).rule(RULE).remedy(remedy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Attributes;

    #[test]
    fn of_a_directory_that_was_named_its_place_does_not_count_but_all_within_does() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        for (folder, mode) in [("/tmp", 0o1777), ("/tmp/named", 0o755), ("/tmp/open", 0o777), ("/etc", 0o755), ("/all", 0o777)] {
            tree.create_dir(Path::new(folder), Attributes::mode(mode)).unwrap();
        }
        for (file, mode) in [
            ("/tmp/named/own", 0o755),
            ("/tmp/named/open", 0o757),
            ("/tmp/open/own", 0o755),
            ("/tmp/own", 0o755),
            ("/tmp/writable", 0o777),
            ("/all/own", 0o755),
            ("/etc/own", 0o755),
        ] {
            tree.write(Path::new(file), b"x", Attributes::mode(mode)).unwrap();
        }
        for (target, link) in [
            ("/etc/own", "safe"),
            ("own", "near"),
            ("/tmp/own", "out"),
            ("../own", "up"),
            ("../named/own", "back"),
            ("../../etc/own", "over"),
            ("../open/own", "beside"),
            ("/tmp/writable", "writable"),
            ("/tmp/gone", "gone"),
            ("/all/own", "all"),
        ] {
            tree.link(target, &Path::new("/tmp/named").join(link)).unwrap();
        }
        for (directory, name, refused) in [
            ("/tmp/named", "own", ""),
            ("/tmp/named", "none", ""),
            ("/tmp/named", "safe", ""),
            ("/tmp/named", "near", ""),
            ("/tmp/named", "open", "/tmp/named/open can be"),
            ("/tmp/named", "out", ""),
            ("/tmp/named", "up", ""),
            ("/tmp/named", "back", ""),
            ("/tmp/named", "over", ""),
            ("/tmp/named", "beside", "/tmp/open can be"),
            ("/tmp/named", "writable", "/tmp/writable can be"),
            ("/tmp/named", "gone", "/gone"),
            ("/tmp/named", "all", "/all can be"),
            ("/all", "own", "/all can be"),
            ("/tmp/open", "own", "/tmp/open can be"),
            ("/etc", "own", ""),
            ("/tmp", "own", "/tmp can be"),
        ] {
            let found = tree.check_only_root_changes_within(Path::new(directory), Path::new(name));
            assert_eq!(found.is_ok(), refused.is_empty(), "{directory} {name}: {found:?}");
            assert!(found.err().is_none_or(|error| error.to_string().contains(refused)), "{directory} {name}");
        }
    }

    /// Attack: a hook, or local data, behind a link that others can turn elsewhere.
    #[test]
    fn nobody_else_may_change_any_part_of_the_way() {
        type Change = fn(&Tree);
        fn mode(tree: &Tree, path: &str, mode: u32) {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(tree.full(Path::new(path)), mode).unwrap();
        }
        fn owner(tree: &Tree, path: &str) {
            std::os::unix::fs::lchown(tree.full(Path::new(path)), Some(1000), None).unwrap();
        }
        let table: [(&str, Change, &str); 19] = [
            ("/a/d/file", |_| {}, ""),
            ("/a/d/none", |_| {}, ""),
            ("/a/none/file", |_| {}, ""),
            ("/a/d/link", |_| {}, ""),
            ("/a/folder/file", |_| {}, ""),
            ("/a/d/loop", |_| {}, "loop"),
            ("/a/d/file", |tree| mode(tree, "/a/d/file", 0o666), "/a/d/file can be changed"),
            ("/a/d/file", |tree| mode(tree, "/a/d/file", 0o664), "/a/d/file can be changed"),
            ("/a/d/file", |tree| owner(tree, "/a/d/file"), "as root: /a/d/file can be changed"),
            ("/a/d/file", |tree| mode(tree, "/a/d", 0o1777), "/a/d can be changed"),
            ("/a/d/file", |tree| mode(tree, "/a", 0o777), "/a can be changed"),
            ("/a/d/file", |tree| owner(tree, "/a"), "as root: /a can be changed"),
            ("/a/d/link", |tree| mode(tree, "/b", 0o777), "/b can be changed"),
            ("/a/d/link", |tree| owner(tree, "/b"), "as root: /b can be changed"),
            ("/a/d/link", |tree| owner(tree, "/a/d/link"), "as root: /a/d/link can be changed"),
            // What the link leads to is a link itself, in a directory that others write.
            ("/a/d/far", |tree| mode(tree, "/c", 0o777), "/c can be changed"),
            ("/a/folder/file", |tree| mode(tree, "/c", 0o777), "/c can be changed"),
            ("/a/d/../../c/on", |tree| mode(tree, "/c", 0o777), "/c can be changed"),
            ("/a/d/file", |tree| mode(tree, "/", 0o777), "can be changed"),
        ];
        for (path, change, expected) in table {
            if expected.starts_with("as root") && !geteuid().is_root() {
                continue;
            }
            let expected = expected.trim_start_matches("as root: ");
            let dir = tempfile::tempdir().unwrap();
            let tree = Tree::open(dir.path()).unwrap();
            for folder in ["/a/d", "/b", "/c"] {
                tree.create_dir_all(Path::new(folder), Attributes::mode(0o755)).unwrap();
            }
            for file in ["/a/d/file", "/b/file"] {
                tree.write(Path::new(file), b"x", Attributes::mode(0o644)).unwrap();
            }
            for (target, link) in [
                ("../../b/file", "/a/d/link"),
                ("/c/on", "/a/d/far"),
                ("../b/file", "/c/on"),
                ("/c/down", "/a/folder"),
                ("/a/d", "/c/down"),
                ("loop", "/a/d/loop"),
            ] {
                tree.link(target, Path::new(link)).unwrap();
            }
            change(&tree);
            let found = tree.check_only_root_changes(Path::new(path));
            if expected.is_empty() {
                assert_eq!(found, Ok(()), "{path}");
                continue;
            }
            let error = found.unwrap_err();
            assert!(error.to_string().contains(expected), "{path} {expected}: {error}");
            assert!(expected == "loop" || error.suggested_remedy().unwrap().contains("chown"), "{error:?}");
        }
    }
}
