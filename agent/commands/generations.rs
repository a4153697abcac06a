//! `generations [--json]`: the node's generations that the state keeps; it works when the daemon is down.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::{document, print};
use crate::clock::Timestamp;
use crate::daemon;
use crate::deploy::{Generation, Generations, PastGeneration};
use crate::error::{Error, Result};
use crate::process::exit;
use crate::report::status::SCHEMA_VERSION;
use crate::report::text::{escaped, harmless, json_page, wrapped};
use crate::settings::Settings;

/// Columns of a page.
const WIDTH: usize = 100;

/// Prints them, the newest first.
///
/// # Errors
/// If no node was ever asked for, or the state cannot be read.
pub fn run(settings: &Settings, json: bool) -> Result<ExitCode> {
    daemon::check_instance(&settings.state_dir)?;
    let newest = Generations::read(&document::open_state(settings)?)?.ok_or_else(|| {
        Error::permanent("no node has been configured on this machine yet")
            .remedy("`heat-node-agent explain` shows what it is waiting for")
    })?;
    print(&if json { json_page(&page(&newest)) } else { text(&newest) }).map(|()| exit::OK)
}

/// For people.
fn text(newest: &Generation) -> String {
    let mut out = String::new();
    for one in newest.history().iter().rev() {
        let when = one.details.ended.or(one.details.began).map_or("at an unknown time".to_owned(), Timestamp::rfc3339);
        out.push_str(&format!("{:>4}  {}\n", one.number, one.state_in_words(newest.in_place())));
        let mut lines = vec![format!("{when}, digest {}, deployment {}", one.digest, one.deployment)];
        lines.extend(changes(one).map(|changes| format!("changed: {changes}")));
        lines.extend(one.reason.as_ref().map(|reason| format!("why: {reason}")));
        for line in lines.iter().flat_map(|line| wrapped(&escaped(line), WIDTH - 6)) {
            out.push_str(&format!("      {line}\n"));
        }
    }
    let restorable = match newest.restorable() {
        Ok(kept) => format!("`heat-node-agent rollback` puts generation {} back\n", kept.number),
        Err(why) => format!("nothing can be rolled back: {why}\n"),
    };
    harmless(&format!("{out}{restorable}"))
}

/// The names of the parameters that it changed, where they are known.
fn changes(one: &PastGeneration) -> Option<String> {
    let (names, more) = (&one.details.changes, one.details.more);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!names.is_empty()).then(|| format!("{}{more}", names.join(", ")))
}

/// For programs (docs/schemas/generations.json).
fn page(newest: &Generation) -> Value {
    let in_place = newest.in_place();
    let one = |one: &PastGeneration| {
        json!({
            "number": one.number,
            "state": one.state_in_words(in_place),
            "digest": one.digest,
            "deployment": one.deployment,
            "began": one.details.began.map(Timestamp::rfc3339),
            "ended": one.details.ended.map(Timestamp::rfc3339),
            "changes": one.details.changes,
            "more_changes": one.details.more,
            "reason": one.reason.as_ref().map(ToString::to_string),
            "rolled_back_to": one.back.map(|back| back.to),
        })
    };
    json!({
        "schema_version": SCHEMA_VERSION,
        "in_place": in_place,
        "restorable": newest.restorable().ok().map(|kept| kept.number),
        "generations": newest.history().iter().rev().map(one).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::Clock;
    use crate::deploy::GenerationState;
    use crate::files::Tree;
    use crate::report::Report;
    use crate::report::schema::assert_fits;

    #[test]
    fn a_failed_update_is_listed_with_its_reason_and_without_any_value() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, clock) = (Arc::new(Tree::open(dir.path()).unwrap()), Clock::manual(Timestamp(60_000)));
        let mut generations = Generations::open(tree, clock, &Report::kept()).unwrap();
        let entry = |value: &str| json!({"config": {"REGISTRY_PASSWORD": value}});
        generations.begin("0123456789abcdef", "dep-1", entry("s3cret-one")).unwrap();
        generations.end(GenerationState::Applied, None, vec![]).unwrap();
        generations.begin("f", "dep-2", entry("s3cret-two")).unwrap();
        generations.restored().unwrap();
        generations.end(GenerationState::Rejected, Some("HNA-0502 etcd does not start".into()), vec![]).unwrap();
        let newest = generations.current().unwrap();
        let text = text(newest);
        assert_eq!(
            text,
            "   2  failed, rolled back to 1\n      1970-01-01T00:01:00Z, digest f, deployment dep-2\n      changed: REGISTRY_PASSWORD\n      \
             why: HNA-0502 etcd does not start\n   1  in place\n      1970-01-01T00:01:00Z, digest 0123456789abcdef, deployment dep-1\n\
             nothing can be rolled back: generation 1 is in place already\n"
        );
        let page = page(newest);
        assert_eq!((&page["in_place"], &page["generations"][0]["rolled_back_to"]), (&json!(1), &json!(1)));
        assert_fits("generations", &page);
        assert!(!page.to_string().contains("s3cret"));
    }
}
