//! From templates to files: all of them are rendered before the first one is written (heat-protocol.md 6.3).

use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access, getegid, geteuid};
use serde_json::Value;

use super::super::log::Log;
use super::super::machine::Machine;
use super::super::mustache;
use super::control::Control;
use crate::error::{Context, Error, Result};
use crate::files::{Attributes, FileKind, READ_LIMIT, masked};
use crate::metadata::python_json;
use crate::programs::child::Child;

/// What says how the output of the template of this name is written.
const CONTROL: &str = ".oac";
/// How deep directories of templates are looked into.
const DEPTH: usize = 64;
/// What has credentials in it, wherever the root of the output is: such a file is born for its owner alone (heat-protocol.md R51).
const SECRET: [&str; 2] = ["etc/os-collect-config.conf", "var/run/heat-config/heat-config"];

/// The templates, and what becomes of them.
pub(super) struct Templates<'a> {
    /// The machine.
    pub(super) machine: &'a Machine,
    /// The directory of the templates.
    pub(super) root: &'a str,
    /// The directory below which files are written.
    pub(super) output: &'a str,
    /// The metadata.
    pub(super) config: &'a Value,
}

struct Rendered {
    path: PathBuf,
    body: String,
    control: Control,
    is_secret: bool,
}

impl Templates<'_> {
    /// Renders all templates, and writes those files that are another than before.
    ///
    /// # Errors
    /// If a template cannot be rendered: nothing is written then. If a file cannot be written.
    pub(super) fn install(&self, only_render: bool, log: &mut Log) -> Result<()> {
        let mut templates = Vec::new();
        self.find(Path::new(""), DEPTH, &mut templates)?;
        let rendered: Vec<_> = templates.iter().map(|name| self.render(name)).collect::<Result<_>>()?;
        for file in rendered.iter().filter(|_| !only_render) {
            self.write(file, log)?;
        }
        Ok(())
    }

    fn template(&self, name: &Path) -> PathBuf {
        self.machine.path(self.root).join(name)
    }

    /// Every file of the tree; links to directories are not gone through.
    fn find(&self, below: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<()> {
        let directory = self.template(below);
        let names = if self.root.is_empty() || self.machine.kind(&directory) != Some(FileKind::Directory) {
            Vec::new()
        } else {
            self.machine.root.list(&directory)?
        };
        for name in names {
            let path = below.join(&name);
            match self.machine.root.facts(&directory.join(&name))?.map(|facts| facts.kind) {
                Some(FileKind::Directory) if depth == 0 => {
                    return Err(Error::permanent(format!("{} is too deep in the tree of templates", path.display())));
                }
                Some(FileKind::Directory) => self.find(&path, depth - 1, found)?,
                Some(FileKind::Link) if self.machine.kind(directory.join(&name)) == Some(FileKind::Directory) => {}
                _ if name.as_encoded_bytes().ends_with(CONTROL.as_bytes()) => {}
                _ => found.push(path),
            }
        }
        Ok(())
    }

    fn render(&self, name: &Path) -> Result<Rendered> {
        let template = self.template(name);
        let doing = || format!("rendering {}", template.display());
        let body =
            if self.is_executable(&template) { self.run(name, &template) } else { self.mustache(&template) }.context(doing)?;
        let mut control = template.clone().into_os_string();
        control.push(CONTROL);
        let control = match self.machine.kind(&control) {
            Some(FileKind::File) => self.machine.text(&control)?.unwrap_or_default(),
            _ => String::new(),
        };
        let control = Control::read(&control).context(|| format!("reading {}{CONTROL}", template.display()))?;
        let is_secret = SECRET.iter().any(|secret| Path::new(secret) == name);
        Ok(Rendered { path: self.machine.path(self.output).join(name), body, control, is_secret })
    }

    fn is_executable(&self, template: &Path) -> bool {
        self.machine.kind(template) == Some(FileKind::File) && access(template, AccessFlags::X_OK).is_ok()
    }

    fn run(&self, name: &Path, template: &Path) -> Result<String> {
        self.machine.check_program(self.root, name)?;
        let heard = Child::new(template).hear(python_json(self.config).as_bytes(), READ_LIMIT)?;
        if heard.status != 0 {
            let said = String::from_utf8_lossy(&heard.err).trim().to_owned();
            return Err(Error::permanent(format!("it ended with status {}: {said}", heard.status)));
        }
        if heard.is_cut {
            return Err(Error::permanent(format!("it wrote more than {} MiB", READ_LIMIT >> 20)));
        }
        String::from_utf8(heard.out).map_err(|_| Error::permanent("what it wrote is not UTF-8"))
    }

    fn mustache(&self, template: &Path) -> Result<String> {
        let text = self.machine.text(template)?.ok_or_else(|| Error::permanent("it leads to no file"))?;
        mustache::render(&text, self.config, &|name| self.machine.exact_text(format!("{name}.mustache")))
    }

    fn write(&self, file: &Rendered, log: &mut Log) -> Result<()> {
        let root = &self.machine.root;
        let (path, shown) = (file.path.as_path(), file.path.display());
        let (there, own) = (root.facts_followed(path)?, root.facts(path)?);
        if !file.control.allow_empty && file.body.is_empty() {
            if there.is_some() {
                log.info(&format!("deleting {shown}"));
                root.remove(path)?;
            } else {
                log.info(&format!("not creating empty {shown}"));
            }
            return Ok(());
        }
        let usual = if file.is_secret { 0o600 } else { 0o644 };
        // A mode of nothing says nothing, as it always did.
        let mode = file.control.mode.filter(|mode| *mode != 0).or(there.map(|facts| facts.mode & 0o1777)).unwrap_or(usual);
        let owner = match (file.control.owner, file.control.group, there) {
            (None, None, None) => None,
            (owner, group, there) => {
                let (user, its_group) = there.map_or((geteuid().as_raw(), getegid().as_raw()), |facts| facts.owner);
                Some((owner.unwrap_or(user), group.unwrap_or(its_group)))
            }
        };
        let is_same = |facts: crate::files::PathMetadata| {
            facts.kind == FileKind::File && facts.mode == mode && owner.is_none_or(|owner| owner == facts.owner)
        };
        if own.is_some_and(is_same) && root.read(path, READ_LIMIT)?.is_some_and(|bytes| bytes == file.body.as_bytes()) {
            log.info(&format!("{shown} is as it should be"));
            return Ok(());
        }
        log.info(&format!("writing {shown}"));
        if let Some(directory) = path.parent() {
            root.create_dir_all(directory, Attributes::mode(masked(0o777)))?;
        }
        root.write(path, file.body.as_bytes(), Attributes { mode, owner })
    }
}
