//! The table of contents: from the command line to the command.

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use heat_node_agent::commands::command_line::{CertificatesAction, Cli, Command};
use heat_node_agent::commands::{self, Options, Order, exit, print_error};
use heat_node_agent::error::Result;
use heat_node_agent::files::Tree;
use heat_node_agent::report::catalog::journal_catalog;
use heat_node_agent::settings::{Loaded, check, load};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Nothing to do where the terminal is gone.
            let _ = error.print();
            return if error.use_stderr() { exit::usage() } else { exit::OK };
        }
    };
    match run(cli) {
        Ok(code) => code,
        Err(error) => {
            print_error(&error);
            exit::FAILED
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    let mut options = Options { settings: cli.settings, state: cli.state, metadata: None };
    if let Command::HookRun { directory } = &cli.command {
        return commands::hook_run::run(directory);
    }
    if let Command::Catalog = &cli.command {
        return commands::print(&journal_catalog()).map(|()| exit::OK);
    }
    if let Command::PortHolders { ports } = &cli.command {
        return commands::port_holders::run(ports);
    }
    if let Command::PodNetwork = &cli.command {
        return commands::pod_network::run();
    }
    if let Command::Firewall = &cli.command {
        return commands::firewall::run();
    }
    if let Command::Certificates { action: Some(CertificatesAction::NewCa { out, name, days }), .. } = &cli.command {
        return commands::certificates::new_ca(out, name, *days);
    }
    if let Command::Verify { json, image, metadata } = cli.command {
        options.metadata = metadata;
        // Settings that the agent could not run with are mistakes among others.
        let loaded = check(&Tree::open(Path::new("/"))?, options.settings.as_deref())?;
        let loaded = with_state(loaded, &options);
        return if image { commands::verify::image(&loaded, json) } else { commands::verify::run(&options, &loaded, json) };
    }
    if let Command::InstanceGuard = cli.command {
        // A mistake in the settings stops the agent; it must not stop etcd and docker at the next boot.
        let loaded = check(&Tree::open(Path::new("/"))?, options.settings.as_deref())?;
        return commands::instance_guard::run(&with_state(loaded, &options).settings);
    }
    let loaded = match settings(&options) {
        Ok(loaded) => loaded,
        Err(error) => {
            if let Command::Explain { json } = cli.command {
                return commands::status::explain_settings(&error, json);
            }
            print_error(&error);
            return Ok(exit::usage());
        }
    };
    let mut with = |metadata| {
        options.metadata = metadata;
        options.clone()
    };
    match cli.command {
        Command::Run { once, metadata } => commands::run::run(&with(metadata), loaded, once),
        Command::Status { json, wait, watch } => {
            commands::status::run(&loaded.settings, commands::status::Wanted { json, wait, watch })
        }
        Command::Explain { json } => commands::status::explain(&loaded.settings, json),
        Command::Timeline { svg } => commands::timeline::run(&loaded.settings, svg),
        Command::Plan { metadata, root } => commands::plan::run(&with(metadata), &loaded.settings, root.as_deref()),
        Command::Apply { root, metadata } => commands::apply::run(&with(metadata), &loaded.settings, &root),
        Command::Metadata { key, source, json, show_secrets, metadata } => {
            let wanted = commands::metadata::Wanted { key, source, show_secrets, json };
            commands::metadata::run(&with(metadata), &loaded.settings, &wanted)
        }
        Command::Logs { name, follow } => commands::logs::run(&loaded.settings, name.as_deref(), follow),
        Command::Signal { status, reason, data, id, url, metadata } => {
            let wanted = commands::signal::Wanted { success: status == "SUCCESS", reason, data, id, url };
            commands::signal::run(&with(metadata), &loaded.settings, &wanted)
        }
        Command::Rerun { deployment } => commands::order::run(&loaded.settings, Order::Rerun, &deployment),
        Command::Stop { deployment } => commands::order::run(&loaded.settings, Order::Stop, &deployment),
        Command::Forget { deployment } => commands::order::run(&loaded.settings, Order::Forget, &deployment),
        Command::Certificates { action: Some(_), .. } => commands::order::run(&loaded.settings, Order::Rotate, ""),
        Command::Certificates { json, action: None } => commands::certificates::run(&loaded.settings, json),
        Command::HookRun { .. }
        | Command::Catalog
        | Command::PodNetwork
        | Command::PortHolders { .. }
        | Command::Firewall
        | Command::Verify { .. }
        | Command::InstanceGuard => Ok(exit::OK),
    }
}

fn settings(options: &Options) -> Result<Loaded> {
    Ok(with_state(load(&Tree::open(Path::new("/"))?, options.settings.as_deref())?, options))
}

fn with_state(mut loaded: Loaded, options: &Options) -> Loaded {
    if let Some(state) = &options.state {
        loaded.settings.state_dir.clone_from(state);
    }
    loaded
}
