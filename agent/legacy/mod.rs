//! The replaced tools by their own names: a link called `os-apply-config` to this program is an os-apply-config (heat-protocol.md 5, 6,
//! Appendix B).
//!
//! In: the name that the program was started by, its arguments and the environment. Out: what the tool of that name prints and writes, and
//! the status that it ends with. Never: a change of the agent's state, or a connection to the running agent.

mod apply_config;
mod arguments;
mod cfn_signal;
mod collect_config;
mod heat_config;
mod hooks;
mod log;
mod machine;
mod mustache;
mod notify;
mod polled;
mod refresh_config;
mod run_parts;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use arguments::ToolResult;

/// Runs the tool whose name this program was started by; `None` where it is none of them.
#[must_use]
pub fn enter(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter();
    let called = arguments.next()?;
    let name = Path::new(&called).file_name()?.to_str()?.to_owned();
    let tool = tool(&name)?;
    // What is no UTF-8 names no file that these tools could be told of.
    let arguments: Vec<_> = arguments.map(|argument| argument.to_string_lossy().into_owned()).collect();
    Some(ExitCode::from(arguments::status(&name, tool(&arguments))))
}

fn tool(name: &str) -> Option<fn(&[String]) -> ToolResult> {
    match name {
        "os-apply-config" | "os-config-applier" => Some(apply_config::run),
        "os-collect-config" => Some(collect_config::run),
        "heat-config-notify" => Some(notify::run),
        "cfn-signal" => Some(cfn_signal::run),
        "55-heat-config" => Some(heat_config::run),
        "os-refresh-config" => Some(refresh_config::run),
        "dib-run-parts" => Some(run_parts::run),
        // heat-agents calls its files so, and diskimage-builder installs them by the name of the group alone.
        _ => {
            let group = name.strip_prefix("hook-").map_or(name, |hook| hook.strip_suffix(".py").unwrap_or(hook));
            hooks::of(group)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_names_of_the_tools_enter() {
        for name in [
            "os-apply-config",
            "os-config-applier",
            "os-collect-config",
            "55-heat-config",
            "heat-config-notify",
            "cfn-signal",
            "script",
            "hook-script",
            "hook-json-file.py",
            "hiera",
        ] {
            assert!(tool(name).is_some(), "{name}");
        }
        for name in ["heat-node-agent", "script.py", "hook-", "os-apply-config.py", "hook-hook-script", ""] {
            assert!(tool(name).is_none() && enter([OsString::from(name)]).is_none(), "{name}");
        }
        for name in ["/usr/bin/os-apply-config", "./os-config-applier", "os-apply-config"] {
            assert!(enter([OsString::from(name), "--version".into()]).is_some(), "{name}");
        }
    }
}
