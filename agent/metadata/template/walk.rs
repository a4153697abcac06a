//! What a template is made of, and what of it is found.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::budgets::yaml::{Member, YamlNode};
use crate::budgets::{DEPLOYMENTS, DOCUMENT_MEMORY};

/// The key by which a template is known.
pub(super) const VERSION: &str = "heat_template_version";
/// What is found of one template at most; more is of no use to a reader, and is counted by who asks.
const PROBLEM_LIMIT: usize = 2_000;

/// What a template says.
#[derive(Debug, Default)]
pub struct Template {
    /// In the order of the document; at their end configs that no deployment uses.
    pub planned: Vec<Planned>,
    /// What is wrong, or other than it looks.
    pub problems: Vec<TemplateProblem>,
}

/// A place in the template.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// Name of the resource; one within a group is `GROUP.resource_def`. Empty: the template itself.
    pub resource: String,
    /// Line, from 1; 0 where it is not known.
    pub line: usize,
}

/// One thing that is wrong with the template itself.
#[derive(Debug, PartialEq, Eq)]
pub struct TemplateProblem {
    /// Where.
    pub location: Location,
    /// Property, or name of an input.
    pub key: String,
    /// What is wrong.
    pub problem: String,
    /// What it must be.
    pub rule: String,
    /// What to do.
    pub remedy: String,
    /// Whether it is only worth knowing.
    pub warns: bool,
}

/// A deployment as Heat would deliver it at the creation of the stack.
#[derive(Debug)]
pub struct Planned {
    /// The deployment, or the config that none uses.
    pub location: Location,
    /// Its server in this template.
    pub server: Option<String>,
    /// As a server's metadata lists it; the value of an input that is not known is null.
    pub entry: Value,
    /// Inputs whose value only Heat knows, and names in a structured config.
    pub unknown: BTreeSet<String>,
    /// Whether more may be given than is known: by a function that makes the whole of `input_values` or of `config`.
    pub open: bool,
    /// Where each input is given or declared, by its name in capital letters; `CONFIG` is the config.
    pub locations: BTreeMap<String, Location>,
}

/// A resource, also one within a group.
pub(super) struct Resource<'a> {
    pub(super) location: Location,
    pub(super) kind: &'a str,
    pub(super) properties: Option<&'a YamlNode>,
    /// The word that a group replaces by the number of its member.
    pub(super) index: Option<&'a str>,
}

pub(super) struct Walk<'a> {
    pub(super) parameters: Option<&'a YamlNode>,
    pub(super) resources: &'a [Member],
    /// Memory that what is resolved may still take.
    pub(super) left: Cell<usize>,
    pub(super) planned: RefCell<Vec<Planned>>,
    pub(super) problems: RefCell<Vec<TemplateProblem>>,
}

impl Walk<'_> {
    pub(super) fn take(&self, bytes: usize) -> bool {
        let left = self.left.get().checked_sub(bytes);
        self.left.set(left.unwrap_or(0));
        left.is_some()
    }

    pub(super) fn too_large(&self) {
        let already = self.problems.borrow().iter().any(|problem| problem.key == VERSION);
        if !already {
            self.mistake(
                Location::default(),
                VERSION,
                format!("the template takes more than {} KiB of memory, or has more than {DEPLOYMENTS} deployments: the rest is not checked", DOCUMENT_MEMORY / 1024),
                "the agent limits the size of its input to bound its memory",
                "split the template",
            );
        }
    }

    pub(super) fn mistake(
        &self,
        location: Location,
        key: &str,
        problem: impl Into<String>,
        rule: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.found(location, key, problem.into(), rule.into(), remedy.into(), false);
    }

    pub(super) fn note(
        &self,
        location: Location,
        key: &str,
        problem: impl Into<String>,
        rule: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.found(location, key, problem.into(), rule.into(), remedy.into(), true);
    }

    fn found(&self, location: Location, key: &str, problem: String, rule: String, remedy: String, warns: bool) {
        let found = TemplateProblem { location, key: key.to_owned(), problem, rule, remedy, warns };
        let mut all = self.problems.borrow_mut();
        if all.len() < PROBLEM_LIMIT && !all.contains(&found) {
            all.push(found);
        }
    }
}

impl Planned {
    pub(super) fn add(&mut self, name: &str, is_known: bool, location: Location) {
        if !is_known {
            self.unknown.insert(name.to_owned());
        }
        self.locations.insert(name.to_ascii_uppercase(), location);
    }
}
