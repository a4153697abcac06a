//! The table of contents: from the command line to the command.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use heat_node_agent::commands::{self, Options, exit, print_error};
use heat_node_agent::error::Result;
use heat_node_agent::files::Tree;
use heat_node_agent::report::catalog::journal_catalog;
use heat_node_agent::settings::{Loaded, load};

/// Takes an OpenStack instance from first boot to a healthy Kubernetes node that Heat knows about.
#[derive(Parser)]
#[command(name = "heat-node-agent", version, max_term_width = 100)]
struct Cli {
    /// Settings file in place of those of the system
    #[arg(long, global = true, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// State directory in place of /var/lib/heat-node-agent
    #[arg(long, global = true, value_name = "DIR")]
    state: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The daemon
    Run {
        /// One full pass, then end: 1 if a deployment failed
        #[arg(long)]
        once: bool,
        /// A metadata document in place of the sources
        #[arg(long, value_name = "FILE")]
        metadata: Option<PathBuf>,
    },
    /// Phase, sources, deployments, node and signals; works when the daemon is down
    Status {
        /// The whole document
        #[arg(long)]
        json: bool,
    },
    /// What would change: a diff of each file, a list of unit and volume actions; 2 if anything
    Plan {
        /// A metadata document in place of what was collected
        #[arg(long, value_name = "FILE")]
        metadata: Option<PathBuf>,
        /// A directory tree in place of this machine
        #[arg(long, value_name = "DIR")]
        root: Option<PathBuf>,
    },
    /// Writes the same files and unit enablement into a directory tree, offline
    Apply {
        /// The directory tree; never `/`
        #[arg(long, value_name = "DIR")]
        root: PathBuf,
        /// A metadata document in place of what was collected
        #[arg(long, value_name = "FILE")]
        metadata: Option<PathBuf>,
    },
    /// Every mistake of settings, metadata and parameters at once
    Verify {
        /// A metadata document in place of what was collected
        #[arg(long, value_name = "FILE")]
        metadata: Option<PathBuf>,
    },
    /// What was collected, secrets masked
    Metadata {
        /// One value, by its dotted key
        #[arg(long)]
        key: Option<String>,
        /// Show secrets too
        #[arg(long)]
        show_secrets: bool,
        /// A metadata document in place of what was collected
        #[arg(long, value_name = "FILE")]
        metadata: Option<PathBuf>,
    },
    /// Tells a wait condition
    Signal {
        /// SUCCESS or FAILURE
        #[arg(value_parser = ["SUCCESS", "FAILURE"])]
        status: String,
        /// One sentence
        #[arg(long)]
        reason: Option<String>,
        /// JSON or text
        #[arg(long)]
        data: Option<String>,
        /// The id under which it is counted; the same id overwrites
        #[arg(long)]
        id: Option<String>,
        /// The handle: URL, JSON of its signal attribute or its curl line; `-` reads it from standard input
        #[arg(long, value_name = "HANDLE")]
        url: Option<String>,
        /// A metadata document in place of what was collected
        #[arg(long, value_name = "FILE")]
        metadata: Option<PathBuf>,
    },
    /// Runs a recorded job, at most once
    #[command(hide = true)]
    HookRun {
        /// The job's directory
        directory: PathBuf,
    },
    /// Prints the journal catalog
    #[command(hide = true)]
    Catalog,
}

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
    let loaded = match settings(&options) {
        Ok(loaded) => loaded,
        Err(error) => {
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
        Command::Status { json } => commands::status::run(&loaded.settings, json),
        Command::Plan { metadata, root } => commands::plan::run(&with(metadata), &loaded.settings, root.as_deref()),
        Command::Apply { root, metadata } => commands::apply::run(&with(metadata), &loaded.settings, &root),
        Command::Verify { metadata } => commands::verify::run(&with(metadata), &loaded),
        Command::Metadata { key, show_secrets, metadata } => {
            commands::metadata::run(&with(metadata), &loaded.settings, key.as_deref(), show_secrets)
        }
        Command::Signal { status, reason, data, id, url, metadata } => {
            let wanted = commands::signal::Wanted { success: status == "SUCCESS", reason, data, id, url };
            commands::signal::run(&with(metadata), &loaded.settings, &wanted)
        }
        Command::HookRun { .. } | Command::Catalog => Ok(exit::OK),
    }
}

fn settings(options: &Options) -> Result<Loaded> {
    let mut loaded = load(&Tree::open(Path::new("/"))?, options.settings.as_deref())?;
    if let Some(state) = &options.state {
        loaded.settings.state_dir.clone_from(state);
    }
    Ok(loaded)
}
