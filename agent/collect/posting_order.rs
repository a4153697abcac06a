//! Which message of a queue has the newest metadata.
//!
//! Heat's engines store a server's metadata one after the other, but post it to the queue afterwards, each at its own pace, and without looking at
//! what the others posted (`_push_metadata_software_deployments` in heat/engine/service_software_config.py; an object in Swift they write again
//! until the last one is the newest). Where deployments of one server change at the same time, the last message may lack what one before it has,
//! and Heat would wait until its timeout for a deployment that nobody runs.

use std::collections::HashMap;
use std::time::Duration;

use crate::budgets::json::{self, JsonRejection};
use crate::clock::Timestamp;

/// How long after a deployment was made a message without it may still be posted: Heat asks Keystone for a token in between.
const POSTED_WITHIN: Duration = Duration::from_secs(30);

/// How long after its `creation_time` a deployment is in the database: Heat stores its configuration first, and then asks an engine for the
/// deployment (`rpc_response_timeout`).
const STORED_WITHIN: Duration = Duration::from_mins(1);

/// Times are in whole seconds.
const ROUNDING: Duration = Duration::from_secs(1);

/// The deployments that a message lists, by their ids; those without a time say nothing about the order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PostedList {
    /// When the message was posted, by the clock of Zaqar's server.
    posted: Option<Timestamp>,
    entries: HashMap<String, PostedEntry>,
}

#[derive(Debug, PartialEq, Eq)]
struct PostedEntry {
    /// Stack and resource: they stay, while each change gives the deployment another id.
    deployment: Option<String>,
    made: Timestamp,
}

impl PostedList {
    /// Reads a message's body.
    ///
    /// # Errors
    /// If it is no JSON.
    pub(super) fn read(body: &str, posted: Option<Timestamp>) -> Result<Self, JsonRejection> {
        let mut list = Self { posted, entries: HashMap::new() };
        json::items(json::member(body, "deployments")?.filter(|text| text.starts_with('[')).unwrap_or("[]"), &mut |entry| {
            let made = text(entry, "creation_time")?.and_then(|time| Timestamp::parse_rfc3339(&time));
            if let (Some(id), Some(made)) = (text(entry, "id")?, made) {
                list.entries.insert(id, PostedEntry { deployment: deployment(entry)?, made });
            }
            Ok(())
        })?;
        Ok(list)
    }

    /// Whether Heat made this list before `earlier`, which was posted before it.
    pub(super) fn is_older_than(&self, earlier: &Self) -> bool {
        // Of what both list the times say only that the clocks of Heat and of the queue differ.
        let is_new = |(id, entry): (&String, &PostedEntry)| {
            !earlier.entries.contains_key(id) && earlier.posted.is_some_and(|posted| entry.made > posted.after(ROUNDING))
        };
        // One that lists all that the earlier one does, and more, lacks nothing that Heat waits for, however old its configurations are.
        if self.is_later_than(earlier) || self.covers(earlier) || self.entries.iter().any(is_new) {
            return false;
        }
        // What has just been made may be missing because it was removed, too. To run that harms less than not to run what Heat waits for.
        let is_awaited = |(id, entry): (&String, &PostedEntry)| {
            !self.entries.contains_key(id) && self.posted.is_some_and(|posted| posted <= entry.made.after(POSTED_WITHIN))
        };
        earlier.is_later_than(self) || earlier.entries.iter().any(is_awaited)
    }

    /// Whether it has each deployment of the other one, in the same form or a newer one.
    fn covers(&self, other: &Self) -> bool {
        let has = |(id, entry): (&String, &PostedEntry)| {
            let is_form =
                |own: &PostedEntry| own.deployment.is_some() && own.deployment == entry.deployment && own.made >= entry.made;
            self.entries.contains_key(id) || self.entries.values().any(is_form)
        };
        other.entries.iter().all(has)
    }

    /// Whether it has a newer form of a deployment, or lacks one that was there before another one of its own was made.
    fn is_later_than(&self, other: &Self) -> bool {
        let of: HashMap<_, _> =
            self.entries.values().filter_map(|entry| Some((entry.deployment.as_ref()?, entry.made))).collect();
        let newest = self.entries.values().map(|entry| entry.made).max().unwrap_or_default();
        other.entries.iter().any(|(id, entry)| {
            let made = entry.deployment.as_ref().and_then(|deployment| of.get(deployment));
            !self.entries.contains_key(id) && made.map_or(entry.made.after(STORED_WITHIN) < newest, |made| *made > entry.made)
        })
    }
}

/// A member that is a text.
fn text(entry: &str, name: &str) -> Result<Option<String>, JsonRejection> {
    Ok(json::member(entry, name)?.and_then(|text| json::typed(text).ok()))
}

fn deployment(entry: &str) -> Result<Option<String>, JsonRejection> {
    let (mut stack, mut resource) = (None, None);
    json::items(json::member(entry, "inputs")?.filter(|text| text.starts_with('[')).unwrap_or("[]"), &mut |input| {
        match text(input, "name")?.as_deref() {
            Some("deploy_stack_id") => stack = text(input, "value")?,
            Some("deploy_resource_name") => resource = text(input, "value")?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(stack.zip(resource).map(|(stack, resource)| format!("{stack}\n{resource}")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Deployments as `NAME` and how many seconds after noon they were made: their ids are both.
    fn posted(entries: &[(&str, u64)], second: u64) -> PostedList {
        let noon = Timestamp::parse_rfc3339("2026-03-01T12:00:00Z").unwrap();
        let at = |second| noon.after(Duration::from_secs(second));
        let entry = |(name, made): &(&str, u64)| {
            json!({"id": format!("{name}{made}"), "creation_time": at(*made).rfc3339(), "inputs": [
                {"name": "deploy_stack_id", "value": "s/1"}, {"name": "x", "value": {"y": 1}}, {"name": "deploy_resource_name", "value": name}]})
        };
        let body = json!({"deployments": entries.iter().map(entry).collect::<Vec<_>>(), "os-collect-config": {}});
        PostedList::read(&body.to_string(), Some(at(second))).unwrap()
    }

    #[test]
    fn a_list_that_was_posted_late_is_older() {
        for (case, earlier, later, is_older) in [
            ("the same", (&[("a", 0), ("b", 0)][..], 1), (&[("a", 0), ("b", 0)][..], 2), false),
            ("one was changed", (&[("a", 0), ("b", 0)], 1), (&[("a", 0), ("b", 100)], 101), false),
            ("the other one had been changed", (&[("a", 99), ("b", 100)], 101), (&[("a", 99), ("b", 0)], 102), true),
            ("both were, however late it comes", (&[("a", 100), ("b", 100)], 101), (&[("a", 0), ("b", 100)], 1000), true),
            ("one is new", (&[("a", 100)], 101), (&[("a", 100), ("b", 100)], 102), false),
            ("the new one is not in it yet", (&[("a", 100), ("b", 100)], 101), (&[("a", 100)], 130), true),
            ("it is gone again", (&[("a", 100), ("b", 100)], 101), (&[("a", 100)], 131), false),
            ("the first one is not in it yet", (&[("a", 100)], 101), (&[], 102), true),
            ("an old one is gone", (&[("a", 0), ("b", 0)], 1), (&[("a", 0)], 100), false),
            ("two are gone, one after the other", (&[("a", 0), ("b", 0)], 100), (&[("a", 0)], 101), false),
            ("one is gone, and another one was changed", (&[("a", 100), ("b", 90)], 101), (&[("a", 110)], 111), false),
            ("one had gone before the other was changed", (&[("a", 110)], 111), (&[("a", 100), ("b", 90)], 112), true),
            ("one was stored long after its configuration", (&[("a", 100)], 101), (&[("a", 100), ("b", 40)], 102), false),
            ("and one is new", (&[("a", 100)], 101), (&[("a", 100), ("b", 40), ("c", 200)], 201), false),
            (
                "one is new where another one is gone for long",
                (&[("a", 100), ("b", 102)], 103),
                (&[("a", 100), ("c", 110)], 111),
                false,
            ),
            ("one is made where Heat's clock is ahead", (&[("a", 110), ("b", 111)], 103), (&[("a", 110)], 104), true),
            ("one is gone, and another one is new", (&[("a", 100), ("b", 90)], 101), (&[("a", 100), ("c", 110)], 111), false),
            ("one is new where another one is gone", (&[("a", 100), ("b", 102)], 103), (&[("a", 100), ("c", 104)], 105), true),
        ] {
            assert_eq!(posted(later.0, later.1).is_older_than(&posted(earlier.0, earlier.1)), is_older, "{case}");
        }
    }

    #[test]
    fn what_has_no_time_says_nothing_about_the_order() {
        let one = posted(&[("a", 0)], 1);
        let of = |body: Value| PostedList::read(&body.to_string(), one.posted).unwrap();
        for body in [
            json!({}),
            json!({"deployments": {"id": "a0"}}),
            json!({"deployments": [7, {"id": 7, "creation_time": "2026-03-01T12:00:00Z"}, {"id": "b", "creation_time": "soon"}]}),
        ] {
            assert_eq!(of(body.clone()).entries, HashMap::new(), "{body}");
            assert!(!one.is_older_than(&of(body)));
        }
        // Nor does a removal, where it is not known when the message was posted.
        let mut unknown = posted(&[], 2);
        assert!(unknown.is_older_than(&one));
        unknown.posted = None;
        assert!(!unknown.is_older_than(&one));
        let without_inputs = of(json!({"deployments": [{"id": "a5", "creation_time": "2026-03-01T12:00:05Z", "inputs": 7}]}));
        assert!(without_inputs.entries["a5"].deployment.is_none());
        assert!(PostedList::read("{\"deployments\": [{]}", None).is_err());
    }
}
