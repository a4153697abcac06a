//! What `systemctl --root DIR enable` would link, from the `[Install]` section of a unit file found in DIR.

use std::collections::BTreeSet;
use std::path::Path;

use crate::error::Result;
use crate::files::{FileKind, READ_LIMIT, Tree};
use crate::systemd::UNIT_DIRECTORIES;

/// Where links go.
const ADMINISTRATOR: &str = "/etc/systemd/system";

/// A symbolic link: where it is and where it points.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnitLink {
    pub(crate) path: String,
    pub(crate) target: String,
}

/// The links of a unit, or in words why there are none.
pub(crate) type Links = std::result::Result<Vec<UnitLink>, String>;

/// Finds a unit in a tree and says which links enable it, those of `Also=` included.
pub(crate) fn links(tree: &Tree, unit: &str) -> Result<Links> {
    let mut found = Vec::new();
    let mut known = BTreeSet::new();
    let mut names = vec![unit.to_owned()];
    while let Some(name) = names.pop() {
        if !known.insert(name.clone()) {
            continue;
        }
        let (path, text) = match find(tree, &name)? {
            Ok(file) => file,
            Err(_) if name != unit => continue,
            Err(why) => return Ok(Err(why)),
        };
        let section = Install::parse(&text);
        let Some(links) = section.links(&name, &path) else {
            return Ok(Err(format!(
                "the [Install] section of {path} uses a specifier or a name that only systemd on the node can resolve"
            )));
        };
        found.extend(links);
        names.extend(section.also);
    }
    found.sort_unstable();
    found.dedup();
    if found.is_empty() {
        return Ok(Err(format!("{unit} has no [Install] section: other units start it")));
    }
    Ok(Ok(found))
}

/// Path and text of a unit's file; an instance has the file of its template.
pub(crate) fn find(tree: &Tree, unit: &str) -> Result<std::result::Result<(String, String), String>> {
    let template = unit.split_once('@').and_then(|(prefix, rest)| Some(format!("{prefix}@.{}", rest.rsplit_once('.')?.1)));
    for name in std::iter::once(unit.to_owned()).chain(template.filter(|name| name != unit)) {
        for directory in UNIT_DIRECTORIES {
            let path = format!("{directory}/{name}");
            let Some(facts) = tree.facts(Path::new(&path))? else { continue };
            let text = match facts.kind {
                FileKind::File | FileKind::Link => tree.read(Path::new(&path), READ_LIMIT).ok().flatten(),
                FileKind::Directory | FileKind::Other => None,
            };
            // A link to /dev/null is no regular file, wherever /dev/null is in this tree.
            return Ok(match text {
                Some(text) if !text.is_empty() => Ok((path, String::from_utf8_lossy(&text).into_owned())),
                _ => Err(format!("{path} masks {unit}")),
            });
        }
    }
    Ok(Err(format!("this tree has no unit file for {unit}")))
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Install {
    wanted_by: Vec<String>,
    required_by: Vec<String>,
    upheld_by: Vec<String>,
    alias: Vec<String>,
    also: Vec<String>,
    default_instance: Option<String>,
}

impl Install {
    fn parse(text: &str) -> Self {
        let mut section = Self::default();
        let mut inside = false;
        let mut logical = String::new();
        for line in text.lines() {
            let line = line.trim();
            if line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(begun) = line.strip_suffix('\\') {
                logical.push_str(begun);
                logical.push(' ');
                continue;
            }
            logical.push_str(line);
            let whole = std::mem::take(&mut logical);
            let whole = whole.trim();
            if whole.starts_with('[') {
                inside = whole == "[Install]";
            } else if inside && let Some((key, value)) = whole.split_once('=') {
                section.set(key.trim(), value.trim());
            }
        }
        section
    }

    fn set(&mut self, key: &str, value: &str) {
        let list = match key {
            "WantedBy" => &mut self.wanted_by,
            "RequiredBy" => &mut self.required_by,
            "UpheldBy" => &mut self.upheld_by,
            "Alias" => &mut self.alias,
            "Also" => &mut self.also,
            "DefaultInstance" => {
                self.default_instance = Some(value.to_owned());
                return;
            }
            _ => return,
        };
        // An empty assignment clears the list.
        if value.is_empty() {
            list.clear();
        }
        list.extend(value.split_whitespace().map(|name| name.trim_matches('"').to_owned()));
    }

    /// `None` if a name cannot be resolved here.
    fn links(&self, unit: &str, path: &str) -> Option<Vec<UnitLink>> {
        let unit = match (unit.split_once("@."), &self.default_instance) {
            (Some((prefix, kind)), Some(instance)) => format!("{prefix}@{instance}.{kind}"),
            _ => unit.to_owned(),
        };
        let link = |path: String, target: &str| UnitLink { path, target: target.to_owned() };
        let mut links = Vec::new();
        for (names, kind) in [(&self.wanted_by, "wants"), (&self.required_by, "requires"), (&self.upheld_by, "upholds")] {
            for name in names {
                let name = resolve(name, &unit)?;
                links.push(link(format!("{ADMINISTRATOR}/{name}.{kind}/{unit}"), path));
            }
        }
        for name in &self.alias {
            let name = resolve(name, &unit)?;
            let place = format!("{ADMINISTRATOR}/{name}");
            if place != path {
                links.push(link(place, path));
            }
        }
        Some(links)
    }
}

/// Resolves `%i`, `%p`, `%n`, `%%`; the others depend on the node.
fn resolve(name: &str, unit: &str) -> Option<String> {
    let stem = unit.rsplit_once('.').map_or(unit, |(stem, _)| stem);
    let (prefix, instance) = stem.split_once('@').unwrap_or((stem, ""));
    let mut out = String::new();
    let mut letters = name.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        match letters.next()? {
            'i' => out.push_str(instance),
            'p' => out.push_str(prefix),
            'n' => out.push_str(unit),
            '%' => out.push('%'),
            _ => return None,
        }
    }
    (!out.is_empty() && !out.contains('/') && out != "." && out != "..").then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Attributes;

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Tree) {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        for (path, text) in files {
            tree.create_dir_all(Path::new(path).parent().unwrap(), Attributes::mode(0o755)).unwrap();
            tree.write(Path::new(path), text.as_bytes(), Attributes::mode(0o644)).unwrap();
        }
        (dir, tree)
    }

    fn shown(links: Links) -> Vec<String> {
        links
            .unwrap()
            .iter()
            .map(|link| format!("{} -> {}", link.path.trim_start_matches("/etc/systemd/system/"), link.target))
            .collect()
    }

    #[test]
    fn the_links_are_those_that_systemctl_makes() {
        let docker = "[Unit]\nWantedBy=no.target\n[Install]\n# x\nWantedBy=a.target \\\n  b.target\nRequiredBy=c.target\nAlias=d.service docker.service\nAlso=docker.socket gone.service\n";
        let (_dir, tree) = tree(&[
            ("/usr/lib/systemd/system/docker.service", docker),
            ("/lib/systemd/system/docker.socket", "[Install]\nWantedBy=x.target\nWantedBy=\nWantedBy=sockets.target\n"),
            ("/etc/systemd/system/getty@.service", "[Install]\nWantedBy=getty-%p-%i.target\nDefaultInstance=tty1\n"),
            ("/lib/systemd/system/plain.service", "[Service]\n"),
            ("/lib/systemd/system/odd.service", "[Install]\nWantedBy=%H.target\n"),
            ("/lib/systemd/system/evil.service", "[Install]\nAlias=../../shadow\n"),
            ("/etc/systemd/system/masked.service", ""),
        ]);
        let docker = "/usr/lib/systemd/system/docker.service";
        assert_eq!(
            shown(links(&tree, "docker.service").unwrap()),
            [
                format!("a.target.wants/docker.service -> {docker}"),
                format!("b.target.wants/docker.service -> {docker}"),
                format!("c.target.requires/docker.service -> {docker}"),
                format!("d.service -> {docker}"),
                format!("docker.service -> {docker}"),
                "sockets.target.wants/docker.socket -> /lib/systemd/system/docker.socket".to_owned(),
            ]
        );
        let getty = "/etc/systemd/system/getty@.service";
        assert_eq!(
            shown(links(&tree, "getty@.service").unwrap()),
            [format!("getty-getty-tty1.target.wants/getty@tty1.service -> {getty}")]
        );
        assert_eq!(
            shown(links(&tree, "getty@tty7.service").unwrap()),
            [format!("getty-getty-tty7.target.wants/getty@tty7.service -> {getty}")]
        );
        for (unit, why) in [
            ("plain.service", "plain.service has no [Install] section: other units start it"),
            ("none.service", "this tree has no unit file for none.service"),
            ("masked.service", "/etc/systemd/system/masked.service masks masked.service"),
            (
                "odd.service",
                "the [Install] section of /lib/systemd/system/odd.service uses a specifier or a name that only systemd on the node can resolve",
            ),
            (
                "evil.service",
                "the [Install] section of /lib/systemd/system/evil.service uses a specifier or a name that only systemd on the node can resolve",
            ),
        ] {
            assert_eq!(links(&tree, unit).unwrap().unwrap_err(), why);
        }
    }

    #[test]
    fn a_link_to_dev_null_masks() {
        let (_dir, tree) = tree(&[("/etc/systemd/system/other", "")]);
        tree.link("/dev/null", Path::new("/etc/systemd/system/x.service")).unwrap();
        assert!(links(&tree, "x.service").unwrap().unwrap_err().contains("masks"));
    }
}
