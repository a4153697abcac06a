//! `verify`: every mistake of settings, metadata and parameters at once.

use std::process::ExitCode;

use super::{Options, document, exit, print, run};
use crate::error::Result;
use crate::metadata::Deployment;
use crate::settings::Loaded;

/// Prints every mistake with key, rule and remedy.
///
/// # Errors
/// If the metadata that was asked for cannot be read at all.
pub fn run(options: &Options, loaded: &Loaded) -> Result<ExitCode> {
    let mut mistakes: Vec<String> = loaded
        .warnings
        .iter()
        .map(|warning| format!("{}: {}: {}", warning.file.display(), warning.key, warning.message))
        .collect();
    let mut checked = 0;
    // Without --metadata the settings alone can be checked before anything was ever collected.
    let document = match document::read(options, &loaded.settings) {
        Ok(document) => Some(document),
        Err(error) if options.metadata.is_some() => return Err(error),
        Err(_) => None,
    };
    let mut nodes = 0;
    for entry in document.as_ref().map_or(&[][..], document::entries) {
        checked += 1;
        match Deployment::parse(entry) {
            Err(malformed) => mistakes.extend(malformed.mistakes.iter().map(|mistake| {
                format!("deployment {} ({}): {mistake}", malformed.name, malformed.id.as_deref().unwrap_or("no id"))
            })),
            Ok(Some(deployment)) if deployment.group == "kubernetes-node" => {
                nodes += u32::from(matches!(deployment.action(), "CREATE" | "UPDATE" | ""));
                if let Err(found) = run::understand(&deployment) {
                    mistakes.extend(
                        found.iter().map(|mistake| format!("deployment {} ({}): {mistake}", deployment.name, deployment.id)),
                    );
                }
            }
            Ok(Some(deployment)) => {
                let allowed = loaded.settings.deploy.groups.as_ref().is_none_or(|groups| groups.contains(&deployment.group));
                if !allowed {
                    mistakes.push(format!(
                        "deployment {} ({}): group {:?} is not allowed; rule: [deploy] groups in agent.toml; remedy: allow it in the image",
                        deployment.name, deployment.id, deployment.group
                    ));
                }
            }
            Ok(None) => {}
        }
    }
    if nodes > 1 {
        mistakes
            .push(format!("{nodes} kubernetes-node deployments; rule: one a server; remedy: keep one of them in the template"));
    }
    if mistakes.is_empty() {
        let what = if document.is_some() {
            format!("settings and {checked} deployments")
        } else {
            "settings (no metadata was collected yet)".to_owned()
        };
        print(&format!("{what}: no mistakes\n"))?;
        return Ok(exit::OK);
    }
    print(&format!("{}\n{} mistakes\n", mistakes.join("\n"), mistakes.len()))?;
    Ok(exit::FAILED)
}
