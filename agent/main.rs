//! Dispatches the command line to the commands.

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use heat_node_agent::commands::command_line::{CertificatesAction, Cli, Command, EtcdAction};
use heat_node_agent::commands::{self, CommonOptions, Order, exit, print_error, print_usage};
use heat_node_agent::daemon;
use heat_node_agent::error::Result;
use heat_node_agent::files::Tree;
use heat_node_agent::report::catalog::journal_catalog;
use heat_node_agent::report::{TRACES, trace_libraries};
use heat_node_agent::settings::{Loaded, check, load};

fn main() -> ExitCode {
    if let Some(code) = heat_node_agent::legacy::enter(std::env::args_os()) {
        return code;
    }
    let cli = match command_line() {
        Ok(cli) => cli,
        Err(error) => {
            if error.use_stderr() {
                print_usage(&error.render().to_string());
                return exit::usage();
            }
            // Nothing to do where the terminal is gone.
            let _ = error.print();
            return exit::OK;
        }
    };
    // A mistake in it is no reason not to run.
    if let Some(arguments) = std::env::var(TRACES).ok().filter(|arguments| !arguments.is_empty())
        && let Err(error) = trace_libraries(&arguments)
    {
        print_error(&error);
    }
    match run(cli) {
        Ok(code) => code,
        Err(error) => {
            print_error(&error);
            exit::FAILED
        }
    }
}

/// Reads the command line, on a thread of its own: what builds the commands and their options takes 170 KB of stack, which the daemon would
/// hold for as long as it runs. With the thread it goes back to the kernel.
fn command_line() -> std::result::Result<Cli, clap::Error> {
    let read = std::thread::Builder::new().name("command-line".to_owned()).spawn(Cli::try_parse);
    read.ok().and_then(|thread| thread.join().ok()).unwrap_or_else(Cli::try_parse)
}

fn run(cli: Cli) -> Result<ExitCode> {
    let mut options = CommonOptions { settings: cli.settings, state: cli.state, metadata: None };
    let mut with = |metadata| {
        options.metadata = metadata;
        options.clone()
    };
    match cli.command {
        // Without settings: run by the agent's own units and jobs, or on another machine.
        Command::HookRun { directory } => commands::hook_run::run(&directory),
        Command::Catalog => commands::print(&journal_catalog()).map(|()| exit::OK),
        Command::PortHolders { ports } => commands::port_holders::run(&ports),
        Command::PodNetwork => commands::pod_network::run(),
        Command::Firewall => commands::firewall::run(),
        Command::Certificates { action: Some(CertificatesAction::NewCa { out, name, days, service_account_keys }), .. } => {
            commands::certificates::new_ca(&out, &name, days, &service_account_keys)
        }
        // Settings that the agent could not run with are mistakes among others.
        Command::Verify { json, image, metadata } => {
            let options = with(metadata);
            let loaded = checked(&options)?;
            if image { commands::verify::image(&options, &loaded, json) } else { commands::verify::run(&options, &loaded, json) }
        }
        // A mistake in the settings stops the agent; it must not stop etcd and docker at the next boot.
        Command::InstanceGuard => commands::instance_guard::run(&checked(&options)?.settings),
        Command::Run { once, metadata } => with_settings(&with(metadata), |options, loaded| daemon::run(options, loaded, once)),
        Command::Status { json, verbose, wait, watch } => {
            let arguments = commands::status::Arguments { json, wait, watch, verbose };
            with_settings(&options, |_, loaded| commands::status::run(&loaded.settings, arguments))
        }
        Command::Explain { json, all } => match settings(&options) {
            Ok(loaded) => commands::status::explain(&loaded.settings, json, all),
            Err(error) => commands::status::explain_settings(&error, json),
        },
        Command::Timeline { svg } => with_settings(&options, |_, loaded| commands::timeline::run(&loaded.settings, svg)),
        Command::Adopt { metadata } => {
            with_settings(&with(metadata), |options, loaded| commands::adopt::run(options, &loaded.settings))
        }
        Command::Generations { json } => with_settings(&options, |_, loaded| commands::generations::run(&loaded.settings, json)),
        Command::Plan { metadata, root, json } => with_settings(&with(metadata), |options, loaded| {
            commands::plan::run(options, &loaded.settings, root.as_deref(), json)
        }),
        Command::UpgradeCheck { version, metadata, json } => with_settings(&with(metadata), |options, loaded| {
            commands::upgrade_check::run(options, &loaded.settings, version, json)
        }),
        Command::Support { out } => {
            with_settings(&options, |options, loaded| commands::support::run(options, &loaded.settings, out.as_deref()))
        }
        Command::Rollback { generation, dry_run: false } => {
            let wanted = generation.map(|number| number.to_string()).unwrap_or_default();
            with_settings(&options, |_, loaded| {
                commands::rollback::refuse_early(&loaded.settings, generation)?;
                commands::order::run(&loaded.settings, Order::Rollback, &wanted)
            })
        }
        Command::Rollback { generation, dry_run: true } => {
            with_settings(&options, |_, loaded| commands::rollback::preview(&loaded.settings, generation))
        }
        Command::Repair { dry_run: false } => order(&options, Order::Repair, ""),
        Command::Repair { dry_run: true } => with_settings(&options, |_, loaded| commands::repair::preview(&loaded.settings)),
        Command::Reset { dry_run, volumes, serial, abandon_etcd } => {
            let arguments = commands::reset::Arguments { dry_run, volumes, serials: serial, abandon_etcd };
            with_settings(&options, |_, loaded| commands::reset::run(&loaded.settings, &arguments))
        }
        Command::Etcd { action: EtcdAction::Snapshot { file } } => {
            with_settings(&options, |_, loaded| commands::etcd::snapshot(&loaded.settings, file.as_deref()))
        }
        Command::Etcd { action: EtcdAction::Restore { file, dry_run, new_cluster } } => {
            let arguments = commands::etcd::RestoreArguments { file, dry_run, new_cluster };
            with_settings(&options, |_, loaded| commands::etcd::restore(&loaded.settings, &arguments))
        }
        Command::Apply { root, metadata } => {
            with_settings(&with(metadata), |options, loaded| commands::apply::run(options, &loaded.settings, &root))
        }
        Command::Metadata { key, source, json, show_secrets, metadata } => {
            let arguments = commands::metadata::Arguments { key, source, show_secrets, json };
            with_settings(&with(metadata), |options, loaded| commands::metadata::run(options, &loaded.settings, &arguments))
        }
        Command::Logs { name, lines, follow } => {
            let arguments = commands::logs::Arguments { name: name.as_deref(), lines, follow };
            with_settings(&options, |_, loaded| commands::logs::run(&loaded.settings, arguments))
        }
        Command::Signal { status, reason, data, id, url, metadata } => {
            let arguments = commands::signal::Arguments { success: status == "SUCCESS", reason, data, id, url };
            with_settings(&with(metadata), |options, loaded| commands::signal::run(options, &loaded.settings, &arguments))
        }
        Command::Rerun { deployment } => order(&options, Order::Rerun, &deployment),
        Command::Stop { deployment } => order(&options, Order::Stop, &deployment),
        Command::Forget { deployment } => order(&options, Order::Forget, &deployment),
        Command::Certificates { action: Some(CertificatesAction::Rotate), .. } => order(&options, Order::Rotate, ""),
        Command::Certificates { json, action: None } => {
            with_settings(&options, |_, loaded| commands::certificates::run(&loaded.settings, json))
        }
    }
}

fn order(options: &CommonOptions, order: Order, deployment: &str) -> Result<ExitCode> {
    with_settings(options, |_, loaded| commands::order::run(&loaded.settings, order, deployment))
}

/// Runs a command with the settings; without them it is one error, by an exit code that systemd does not restart on.
fn with_settings(options: &CommonOptions, command: impl FnOnce(&CommonOptions, Loaded) -> Result<ExitCode>) -> Result<ExitCode> {
    match settings(options) {
        Ok(loaded) => command(options, loaded),
        Err(error) => {
            print_error(&error);
            Ok(exit::usage())
        }
    }
}

/// The settings with their mistakes listed, not refused.
fn checked(options: &CommonOptions) -> Result<Loaded> {
    Ok(with_state(check(&Tree::open(Path::new("/"))?, options.settings.as_deref())?, options))
}

fn settings(options: &CommonOptions) -> Result<Loaded> {
    Ok(with_state(load(&Tree::open(Path::new("/"))?, options.settings.as_deref())?, options))
}

fn with_state(mut loaded: Loaded, options: &CommonOptions) -> Loaded {
    if let Some(state) = &options.state {
        loaded.settings.state_dir.clone_from(state);
    }
    loaded
}
