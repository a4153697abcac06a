//! `verify` of a Heat template: its deployments by the checks that a node makes, as far as their values are known.
//!
//! Where a value is not known here, the checks are made with several values that it may have. What is wrong with each of them, and does not
//! speak of that parameter, is wrong in the template.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::deployment::{group_not_allowed, malformed, of_hook, of_node};
use super::finding::{Finding, Findings, of_mistake};
use crate::kubernetes::{mistakes_of_values, possible_values, readable_config};
use crate::metadata::Deployment;
use crate::metadata::template::{Location, Planned, Template};
use crate::settings::Loaded;

/// How many ways of filling in what is not known are tried. In the first everything is empty, in the others each parameter has one of its
/// values.
const WAYS: usize = 24;

/// Finds what is wrong with a template that stands in `file`.
pub(super) fn check(template: &Template, file: &str, loaded: &Loaded, findings: &mut Findings) {
    let mut found = Vec::new();
    found.extend(template.problems.iter().map(|problem| Finding {
        place: place(file, &problem.location),
        key: problem.key.clone(),
        problem: problem.problem.clone(),
        rule: problem.rule.clone(),
        remedy: problem.remedy.clone(),
        warns: problem.warns,
    }));
    let mut nodes: BTreeMap<&str, usize> = BTreeMap::new();
    for planned in &template.planned {
        found.extend(one(planned, file, loaded));
        if let Some(server) =
            planned.server.as_deref().filter(|_| planned.entry.get("group").is_some_and(|group| group == "kubernetes-node"))
        {
            *nodes.entry(server).or_default() += 1;
            if nodes.get(server) == Some(&2) {
                found.push(Finding {
                    place: place(file, &planned.location),
                    key: "server".to_owned(),
                    problem: format!("a second kubernetes-node deployment on {server}"),
                    rule: "a server has at most one".to_owned(),
                    remedy: "keep one of them in the template".to_owned(),
                    warns: false,
                });
            }
        }
    }
    // A config has the same mistakes in each of its deployments.
    let mut reported = BTreeSet::new();
    findings.extend(found.into_iter().filter(|one| reported.insert((one.place.clone(), one.key.clone(), one.problem.clone()))));
}

fn one(planned: &Planned, file: &str, loaded: &Loaded) -> Vec<Finding> {
    let whole = place(file, &planned.location);
    let deployment = match Deployment::parse(&planned.entry) {
        Ok(Some(deployment)) => deployment,
        // A component without a part for the creation.
        Ok(None) => return Vec::new(),
        Err(bad) => return malformed(&bad, &whole),
    };
    let mut found: Vec<Finding> = group_not_allowed(&deployment.group, loaded, &whole).into_iter().collect();
    if deployment.group == "kubernetes-node" {
        found.extend(of_values(&deployment, planned, loaded));
    } else if !planned.open {
        found.extend(of_hook(&deployment, loaded, None, &whole));
    }
    let of_config = if deployment.group == "kubernetes-node" { readable_config(&deployment.config) } else { None };
    let is_in_config = |key: &str| of_config.iter().flat_map(Map::keys).any(|name| name.eq_ignore_ascii_case(key));
    for one in &mut found {
        let given = planned.locations.get(&one.key.to_ascii_uppercase());
        let location = given.or_else(|| planned.locations.get("CONFIG").filter(|_| is_in_config(&one.key)));
        one.place = place(file, location.unwrap_or(&planned.location));
    }
    found
}

/// What is wrong with the parameters, whatever those are that only Heat knows.
fn of_values(deployment: &Deployment, planned: &Planned, loaded: &Loaded) -> Vec<Finding> {
    let mut found: Vec<Finding> = mistakes_of_values(deployment).into_iter().map(|mistake| of_mistake("", mistake)).collect();
    if planned.open {
        return found;
    }
    let unknown = unknown(planned);
    if unknown.is_empty() {
        return of_node(deployment, loaded, None, "");
    }
    let (mut mistakes, mut notes) = (None, None);
    for way in 0..WAYS {
        let all = of_node(&filled(deployment, &unknown, way), loaded, None, "");
        let (warned, wrong): (Vec<Finding>, Vec<Finding>) = all.into_iter().partition(|one| one.warns);
        // Notes are made of a node that is understood.
        if wrong.is_empty() {
            keep_common(&mut notes, warned);
        }
        keep_common(&mut mistakes, wrong);
        if mistakes.as_ref().is_some_and(Vec::is_empty) && notes.as_ref().is_some_and(Vec::is_empty) {
            break;
        }
    }
    let common = mistakes.into_iter().chain(notes).flatten();
    let certain = common.filter(|one| !unknown.iter().any(|(name, _)| speaks_of(one, name)) && !found.contains(one));
    let certain: Vec<Finding> = certain.collect();
    found.extend(certain);
    found
}

/// Parameters that only Heat knows, each with values that it may have.
fn unknown(planned: &Planned) -> Vec<(&str, Vec<String>)> {
    let all = planned.unknown.iter().map(|name| (name.as_str(), possible_values(name)));
    all.filter(|(_, values)| !values.is_empty()).collect()
}

/// The deployment in the ways in which Heat may fill it; as it is where everything is known.
pub(super) fn ways<'a>(deployment: &'a Deployment, planned: &'a Planned) -> impl Iterator<Item = Deployment> + 'a {
    let unknown = unknown(planned);
    let count = if unknown.is_empty() { 1 } else { WAYS };
    (0..count).map(move |way| filled(deployment, &unknown, way))
}

/// The deployment with one of the ways in which Heat may fill it.
fn filled(deployment: &Deployment, unknown: &[(&str, Vec<String>)], way: usize) -> Deployment {
    let mut filled = deployment.clone();
    for (at, (name, values)) in unknown.iter().enumerate() {
        let choice = if way == 0 { values.len() - 1 } else { mixed(way, at) % values.len() };
        let value = values.get(choice).map_or(Value::Null, |value| Value::from(value.as_str()));
        for input in filled.inputs.iter_mut().filter(|input| input.name == *name) {
            input.value = value.clone();
        }
        if let Some(member) = filled.config.get_mut(*name) {
            *member = value;
        }
    }
    filled
}

/// A number that differs from way to way and from parameter to parameter, so that values meet in many pairs; the same at each run.
fn mixed(way: usize, at: usize) -> usize {
    let mut mixed = (way as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (at as u64 + 1).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    usize::try_from((mixed ^ (mixed >> 32)) & 0xffff).unwrap_or_default()
}

fn keep_common(kept: &mut Option<Vec<Finding>>, found: Vec<Finding>) {
    match kept {
        None => *kept = Some(found),
        Some(kept) => kept.retain(|one| found.contains(one)),
    }
}

/// Whether a finding names a parameter.
fn speaks_of(finding: &Finding, name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let inside = |c: char| c.is_ascii_alphanumeric() || c == '_';
    [&finding.key, &finding.problem, &finding.rule, &finding.remedy]
        .into_iter()
        .any(|text| text.split(|c| !inside(c)).any(|word| word == name))
}

/// As compilers say it.
fn place(file: &str, location: &Location) -> String {
    match (location.line, location.resource.as_str()) {
        (0, "") => file.to_owned(),
        (0, resource) => format!("{file}: {resource}"),
        (line, "") => format!("{file}:{line}"),
        (line, resource) => format!("{file}:{line}: {resource}"),
    }
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
