//! One deployment as `verify` looks at it, of a document or of a template.

use super::finding::{Finding, of_error, of_mistake};
use crate::daemon;
use crate::deploy::hooks;
use crate::error::Result;
use crate::files::Tree;
use crate::kubernetes::ImagePolicy;
use crate::machine::{add_ons, facts};
use crate::metadata::{Deployment, Malformed};
use crate::settings::Loaded;

/// What of an entry is not as it has to be.
pub(super) fn malformed(malformed: &Malformed, place: &str) -> Vec<Finding> {
    let of = |mistake: &String| {
        let (key, problem) = mistake.split_once(": ").unwrap_or(("", mistake));
        Finding {
            place: place.to_owned(),
            key: key.to_owned(),
            problem: problem.to_owned(),
            rule: "a deployment must be an object with id, group, inputs, outputs, options".to_owned(),
            remedy: "correct the template".to_owned(),
            warns: false,
        }
    };
    malformed.mistakes.iter().map(of).collect()
}

/// A group that this image does not allow.
pub(super) fn group_not_allowed(group: &str, loaded: &Loaded, place: &str) -> Option<Finding> {
    let groups = loaded.settings.deploy.groups.as_ref().filter(|groups| !groups.iter().any(|one| one == group))?;
    Some(Finding {
        place: place.to_owned(),
        key: "group".to_owned(),
        problem: format!("{group:?} is not allowed on this image"),
        rule: format!("[deploy] groups in agent.toml allows: {}", groups.join(", ")),
        remedy: "use an allowed group, or have the image allow it".to_owned(),
        warns: false,
    })
}

/// What the parameters of a node break. With `root` it is this machine's, and what the machine lacks is said too.
pub(super) fn of_node(deployment: &Deployment, loaded: &Loaded, root: Option<&Tree>, place: &str) -> Vec<Finding> {
    // What a machine lacks is this machine's to say, not a document's.
    let facts = root.map(facts::of_machine).unwrap_or_default();
    let policy = ImagePolicy::of(&loaded.settings, |group| hooks::runs_code(group, root, &loaded.settings.deploy.hook_dirs));
    match daemon::understand(deployment, &facts, &policy) {
        Ok(plan) => {
            // With PREFLIGHT=refuse a machine that is too small is a mistake: the daemon begins nothing.
            let refuses = plan.refuses_small_machines();
            let lacking = plan.lacking(&facts).into_iter().map(|mistake| of_mistake(place, mistake));
            let warnings = plan.warnings(&facts).into_iter().map(|warning| {
                let warns = !(refuses && warning.parameter == "PREFLIGHT");
                Finding { warns, ..of_mistake(place, warning) }
            });
            let add_ons = root.map(|root| add_ons::mistakes(root, plan.parts().1)).unwrap_or_default();
            let add_ons = add_ons.iter().map(|error| of_error(place, "ADDONS", error));
            lacking.chain(warnings).chain(add_ons).collect()
        }
        Err(mistakes) => mistakes.into_iter().map(|mistake| of_mistake(place, mistake)).collect(),
    }
}

/// What keeps the hook of any other group from being run. Without `root` only scripts are looked at: hooks are a machine's.
pub(super) fn of_hook(deployment: &Deployment, loaded: &Loaded, root: Option<&Tree>, place: &str) -> Option<Finding> {
    match deployment.group.as_str() {
        "script" => hooks::script::job(deployment, None, |_| false).err().map(|error| of_error(place, "", &error)),
        "Heat::Ungrouped" | "os-apply-config" => None,
        _ => {
            let hook = root.map(|root| hooks::external(deployment, root, &loaded.settings.deploy.hook_dirs, None, |_| false));
            hook.and_then(Result::err).map(|error| of_error(place, "group", &error))
        }
    }
}
