//! The command line. The manual page and the shell completions are made from it.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Takes an OpenStack instance from first boot to a healthy Kubernetes node that Heat knows about.
#[derive(Debug, Parser)]
#[command(name = "heat-node-agent", version, max_term_width = 100)]
pub struct Cli {
    /// Settings file in place of those of the system
    #[arg(long, global = true, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// State directory in place of /var/lib/heat-node-agent
    #[arg(long, global = true, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
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
    ///
    /// Ends with 0 if all is well and 2 if something is degraded or the daemon is down. With --wait it ends with 0 once
    /// everything that Heat asks for is done and Heat knows, 1 as soon as something failed that waiting does not mend, 75
    /// when the time is up.
    Status {
        /// The whole document (docs/schemas/status.json)
        #[arg(long)]
        json: bool,
        /// Until all is well or something failed, for so many seconds at most; without a number for ever
        #[arg(long, value_name = "SECONDS", require_equals = true)]
        wait: Option<Option<u64>>,
        /// Again at every change, until it is interrupted
        #[arg(long, conflicts_with = "wait")]
        watch: bool,
    },
    /// Why the node is not ready: every condition from source to signal, and the first that fails
    ///
    /// Each condition is ok, waiting, FAILED or pending (it waits for those before it). The one marked => is the first that
    /// failed, or if none did the first that is waited for: since when, what was tried how often, when next, why, and what
    /// to do. Works when the daemon is down. Ends with 1 if a condition failed, 64
    /// if settings cannot be used.
    Explain {
        /// The tree as a document (docs/schemas/explain.json)
        #[arg(long)]
        json: bool,
    },
    /// The newest bring-up of the node against time: each step, what it waited for, how long it took
    ///
    /// Marked is the critical path: from the step that ended last, or failed, back through the need that ended last. The
    /// whole can be no shorter than these steps. Works when the daemon is down, and while the node is brought up.
    Timeline {
        /// A picture in place of the page, to standard output
        #[arg(long)]
        svg: bool,
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
    ///
    /// Each with its place, key, rule and remedy. Ends with 1 if there is any, also one that the agent itself only warns of:
    /// an unknown key, a drop-in that it skips.
    Verify {
        /// The list as a document (docs/schemas/verify.json)
        #[arg(long)]
        json: bool,
        /// Whether this root directory is an image that is fit to be booted: no state, keys or ids of a machine, all tools
        /// there, the unit enabled
        #[arg(long, conflicts_with = "metadata")]
        image: bool,
        /// A metadata document in place of what was collected
        #[arg(long, value_name = "FILE")]
        metadata: Option<PathBuf>,
    },
    /// What was collected, secrets masked
    Metadata {
        /// One value, by its dotted key; items of a list by their number, from the end with a minus
        #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
        key: Option<String>,
        /// What one source said last, in place of all merged
        #[arg(long, value_name = "SOURCE", conflicts_with = "metadata")]
        source: Option<String>,
        /// The value with where it is from, as a document (docs/schemas/metadata.json)
        #[arg(long)]
        json: bool,
        /// Show secrets too
        #[arg(long)]
        show_secrets: bool,
        /// A metadata document in place of what was collected
        #[arg(long, value_name = "FILE")]
        metadata: Option<PathBuf>,
    },
    /// Tells a wait condition
    ///
    /// The one of --url, else WAIT_HANDLE of the node's own deployment. A place that does not answer is tried for half a
    /// minute. Ends with 0 once it took the signal. A handle is as good as a password: by --url - it stays out of the list
    /// of processes.
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
    /// Runs a deployment that ended once more
    ///
    /// A script is never repeated by itself; this is the explicit order to do so. A node whose generation was rejected is
    /// tried again. The earlier output and a result that Heat does not have yet are dropped; the new result is signalled,
    /// and Heat takes it only while the resource still waits for one (IN_PROGRESS). Refused while the deployment runs, or
    /// if the metadata does not list it any more. Without a daemon it runs when the daemon starts.
    Rerun {
        /// Id, the beginning of one, or a name that only one deployment has
        #[arg(value_name = "ID")]
        deployment: String,
    },
    /// Ends a script or hook that runs, with everything that it started
    ///
    /// Its processes get SIGTERM and ten seconds later SIGKILL. Heat hears FAILURE with the reason, if it still waits; the
    /// deployments behind it go on. One that Heat has replaced is ended by itself after the setting deploy.replaced_grace. Refused for a
    /// deployment that does not run, and for kubernetes-node: there a newer deployment takes the place of the older one.
    Stop {
        /// Id, the beginning of one, or a name that only one deployment has
        #[arg(value_name = "ID")]
        deployment: String,
    },
    /// Removes the record of a deployment, as if it had never been seen
    ///
    /// One that the metadata lists runs again as a new one at the next pass; any other is gone for good. Its output, a
    /// result that Heat does not have yet, and the replaced tools' record of it go too. Refused while it runs.
    Forget {
        /// Id, the beginning of one, or a name that only one deployment has
        #[arg(value_name = "ID")]
        deployment: String,
    },
    /// The output of a deployment, known secrets masked; without a name the list of what there is
    ///
    /// Of several deployments of one name it is the newest. For a component of the node the command that shows its journal
    /// is printed.
    Logs {
        /// Id, the beginning of one, or a name
        name: Option<String>,
        /// Goes on until the deployment ends
        #[arg(long, short)]
        follow: bool,
    },
    /// The node's certificates: file, issuer, names, end and who reads them
    ///
    /// Each is ok, near its end (past two thirds of its life), EXPIRED, MISSING or FLAWED, and then says why and what to do.
    /// It looks at the files of this machine by the parameters of the newest generation, as root; the daemon need not run. A key is
    /// never shown, only the fingerprint of the one for service accounts, which is the same on all masters.
    ///
    /// Ends with 0 if all are well, 2 if one is near its end, expired, flawed or missing.
    #[command(args_conflicts_with_subcommands = true)]
    Certificates {
        /// The list as a document (docs/schemas/certificates.json)
        #[arg(long)]
        json: bool,
        /// What to do, in place of the list.
        #[command(subcommand)]
        action: Option<CertificatesAction>,
    },
    /// Runs a recorded job, at most once
    #[command(hide = true)]
    HookRun {
        /// The job's directory
        directory: PathBuf,
    },
    /// Whether the node's services may start on this machine
    #[command(hide = true)]
    InstanceGuard,
    /// Who listens on TCP ports
    #[command(hide = true)]
    PortHolders {
        /// The ports
        ports: Vec<u16>,
    },
    /// Makes this node's part of the network of pods: docker's bridge, a bridge and routes, rules
    ///
    /// From /etc/heat-node-agent/pod-network.json. heat-node-pod-network.service runs it at each boot, without the daemon.
    /// It waits for flannel's subnet as long as it takes, says each thing that it does, and does nothing twice.
    PodNetwork,
    /// Opens the ports of the node's services in the host's firewall
    ///
    /// From /etc/heat-node-agent/firewall.json, in nftables, firewalld or what iptables.service restores.
    /// heat-node-firewall.service runs it after those. Rules that are no longer asked for go, nobody else's are touched.
    Firewall,
    /// Prints the journal catalog
    #[command(hide = true)]
    Catalog,
}

/// What `certificates` does besides listing them.
#[derive(Debug, Subcommand)]
pub enum CertificatesAction {
    /// Moves this node one step on in a change of authority: trust both, switch, drop the old one
    ///
    /// Each step needs that all nodes of the cluster have done the one before: look at `heat-node-agent certificates` on
    /// each. The same by Heat is the parameter CA_ROTATION. Refused where no change of authority is under way.
    Rotate,
    /// Makes authorities and a key pair of service accounts for an operator who has none
    ///
    /// Three authorities (kubernetes, etcd, front-proxy), each with a subject and a key of its own, the keys of service
    /// accounts, and parameters.yaml with all of it for Heat. It needs neither root nor a daemon, and overwrites nothing.
    NewCa {
        /// Where to; made if it is not there, for its owner alone
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// What the subjects begin with
        #[arg(long, value_name = "CN", default_value = "kubernetes")]
        name: String,
        /// How long they are good for
        #[arg(long, value_name = "N", default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36_500))]
        days: u32,
    },
}
