//! The command line. The manual page and the shell completions are made from it.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::kubernetes::checks::upgrade::Release;

/// Turns an OpenStack instance into a healthy Kubernetes node and reports the result to Heat.
#[derive(Debug, Parser)]
#[command(name = "heat-node-agent", version, max_term_width = 100)]
pub struct Cli {
    /// Settings file to use instead of the system's
    #[arg(long, global = true, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// State directory to use instead of /var/lib/heat-node-agent
    #[arg(long, global = true, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemon
    Run {
        /// Make one full pass, then exit: with 1 if a deployment failed
        #[arg(long)]
        once: bool,
        /// Metadata document to use instead of the sources
        #[arg(long, value_name = "FILE")]
        metadata: Option<PathBuf>,
    },
    /// Show the current state on one screen: the node, its components, volumes, sources, deployments, signals
    ///
    /// The first line is READY, WAITING for something, DEGRADED, FAILED or NOT RUNNING. What is healthy is counted; what waits or fails is
    /// shown with its cause, its next try and what to do. Works while the daemon is down. Lines follow the width of the terminal; colours
    /// are for terminals, unless NO_COLOR is set.
    ///
    /// Exits with 0 if everything is OK and 2 if something is degraded or the daemon is down. With --wait it exits with 0 once
    /// everything that Heat requested is done and reported, with 1 as soon as something fails for good, and with 75
    /// on timeout.
    Status {
        /// Print the whole status as JSON
        #[arg(long)]
        json: bool,
        /// Show everything: all deployments with their ids, whole texts, budgets, data that was set aside
        #[arg(short, long, conflicts_with = "json")]
        verbose: bool,
        /// Wait until everything is OK or something failed, for at most SECONDS; without a number, wait indefinitely
        #[arg(long, value_name = "SECONDS", require_equals = true)]
        wait: Option<Option<u64>>,
        /// Print again at every change, until interrupted
        #[arg(long, conflicts_with = "wait")]
        watch: bool,
    },
    /// Show why the node is not ready: every condition from source to signal, and the first that fails
    ///
    /// Each condition is ok, waiting, FAILED or pending (waiting for earlier ones). The one marked => is the first that
    /// failed or, if none did, the first that is waiting: since when, how often it was tried, when the next attempt is, why, and what
    /// to do. Works while the daemon is down. Exits with 1 if a condition failed, 64
    /// if settings cannot be used.
    Explain {
        /// Print the tree as JSON
        #[arg(long)]
        json: bool,
        /// Also list what is healthy instead of counting it
        #[arg(long, conflicts_with = "json")]
        all: bool,
    },
    /// Show the latest bring-up of the node over time: each step, what it waited for, how long it took
    ///
    /// The critical path is marked: from the step that ended last, or failed, back through the dependency that ended last. The
    /// whole cannot take less time than these steps. Works while the daemon is down, and during a bring-up.
    Timeline {
        /// Print an SVG picture instead of text
        #[arg(long)]
        svg: bool,
    },
    /// Show what would change: a summary, a diff of each file, the unit and volume actions; exits with 2 if there are changes
    Plan {
        /// Metadata document to use instead of the collected metadata
        #[arg(long, value_name = "FILE")]
        metadata: Option<PathBuf>,
        /// Directory tree to use instead of this machine
        #[arg(long, value_name = "DIR")]
        root: Option<PathBuf>,
        /// Print the plan as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what the first start takes over from os-collect-config and heat-agents, and what it would run; exits with 2 if it would run anything
    ///
    /// Changes nothing, and needs no daemon. Reads os-collect-config.conf, what the replaced tools polled last, and their record of deployments.
    Adopt {
        /// Metadata document to use instead of what the replaced tools polled last
        #[arg(long, value_name = "FILE")]
        metadata: Option<PathBuf>,
    },
    /// List the node's generations: number, state, when, digest, deployment, which parameters changed, why one failed
    ///
    /// The newest first, sixteen at most. Only names of parameters are shown, no values. Works while the daemon is down.
    Generations {
        /// Print the list as JSON
        #[arg(long)]
        json: bool,
    },
    /// Put the generation before the one in place back, at once, whatever Heat asks for
    ///
    /// Asks the daemon, and waits until it is done and the gates have passed. The generation stays in place until Heat sends a new
    /// deployment, or `heat-node-agent rerun ID` applies the newest one again; nothing is sent to Heat. Only the generation before the newest is
    /// kept: `heat-node-agent generations` lists which. Refused, before anything is changed, if volumes, certificates or keys, flannel's
    /// configuration, the etcd member or objects of the cluster's API differ between the two, and while the daemon is down.
    Rollback {
        /// Number of the generation; default: the last whole one before the newest
        #[arg(value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        generation: Option<u64>,
        /// Only list what would change, as `plan` does, without the daemon; exits with 2 if there is anything
        #[arg(long)]
        dry_run: bool,
    },
    /// Check whether this node may go to another release of Kubernetes, and show in which order its cluster must
    ///
    /// Changes nothing. Without VERSION, the release is KUBE_TAG of the newest deployment. Compares it with what runs (API servers, kubelets,
    /// etcd), with the programs that are installed, and with what parameters, static pods and add-ons ask for. Each check is ok, a PROBLEM, or
    /// not known, with its cause and remedy. A worker sees its own node and the API server: the whole cluster is checked on a master.
    ///
    /// Exits with 0 if nothing is wrong, 1 if something is, and 2 if nothing is but something could not be checked.
    UpgradeCheck {
        /// Release to check: 1.29, or v1.29.4
        #[arg(value_name = "VERSION", value_parser = release)]
        version: Option<Release>,
        /// Metadata document to use instead of the collected metadata
        #[arg(long, value_name = "FILE")]
        metadata: Option<PathBuf>,
        /// Print the checks as JSON
        #[arg(long)]
        json: bool,
    },
    /// Restore what differs from the node's parameters, once, regardless of DRIFT
    ///
    /// Asks the daemon, and waits until it is done: files, modes and owners, units, certificates, as after a deployment, with only the
    /// restarts needed. Also what another tool keeps changing is put back. What somebody added beside the node's files is listed and
    /// left alone. Refused while the daemon is down, or if the last update failed: `heat-node-agent rerun ID` tries that again.
    Repair {
        /// Only list what would be put back, without the daemon; exits with 2 if there is anything
        #[arg(long)]
        dry_run: bool,
    },
    /// Take the node out: leave etcd's cluster, stop the services, remove files, keys and the agent's state
    ///
    /// In this order: the agent is stopped and disabled; its member leaves etcd's cluster; rules leave the host's firewall; services are
    /// stopped and disabled; memberships and keys on the root disk are removed; volumes are unmounted; files and drop-ins, last the state are
    /// removed. Volumes keep their data, but for that of a member that has left etcd. Refused, before anything is changed, if etcd would
    /// lose its quorum or cannot be asked, and while a script runs. Nothing is sent to Heat.
    ///
    /// Interrupted, it goes on when it is run again with the same options; until then the agent does not start. Afterwards
    /// `systemctl enable --now heat-node-agent` brings the node up again as a new one. Not put back: files that the image had in the
    /// place of the agent's. Scripts that ran do not run again.
    Reset {
        /// Only list what would be done; exits with 2 if there is anything
        #[arg(long)]
        dry_run: bool,
        /// Overwrite the node's volumes with zeros too; each needs its --serial
        #[arg(long)]
        volumes: bool,
        /// Cinder id or link of a volume that is wiped, as `status` shows it; once for each
        #[arg(long, value_name = "SERIAL", requires = "volumes")]
        serial: Vec<String>,
        /// Continue even if etcd loses its quorum, is lost with this node, or cannot be reached
        #[arg(long)]
        abandon_etcd: bool,
    },
    /// Write the same files and unit enablement into a directory tree, offline
    Apply {
        /// Directory tree; must not be `/`
        #[arg(long, value_name = "DIR")]
        root: PathBuf,
        /// Metadata document to use instead of the collected metadata
        #[arg(long, value_name = "FILE")]
        metadata: Option<PathBuf>,
    },
    /// List every mistake in settings, metadata and parameters
    ///
    /// Each with its location, key, rule and remedy. Exits with 1 if there is any, including those that the agent itself only warns about:
    /// an unknown key, a skipped drop-in.
    ///
    /// With --metadata the file is a server's metadata or a list of deployments (JSON or YAML), Magnum's heat-params, or a Heat template.
    /// Of a template each software deployment is checked as on the node, with file and line. Values that only Heat knows (parameters without
    /// a default, attributes, ids) are not mistakes; parameters with a default have it. Nested templates in files of their own are named.
    ///
    /// With --image and --metadata also whether the image has what the nodes of that file need, for their roles and versions: units, programs
    /// (asked for their releases), CNI plugins, kernel modules, hooks. Each thing that is missing is one line, with what needs it and where it
    /// was looked for.
    Verify {
        /// Print the list as JSON
        #[arg(long)]
        json: bool,
        /// Check whether this root directory is an image that may be booted: no state, keys or ids of a machine, all tools
        /// installed, the unit enabled
        #[arg(long)]
        image: bool,
        /// Metadata document or Heat template to use instead of the collected metadata
        #[arg(long, value_name = "FILE")]
        metadata: Option<PathBuf>,
    },
    /// Show the collected metadata, with secrets masked
    Metadata {
        /// Show one value, by its dotted key; list items by index, negative from the end
        #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
        key: Option<String>,
        /// Show the last document of one source instead of the merged metadata
        #[arg(long, value_name = "SOURCE", conflicts_with = "metadata")]
        source: Option<String>,
        /// Print the value and its origin as JSON
        #[arg(long)]
        json: bool,
        /// Show secrets too
        #[arg(long)]
        show_secrets: bool,
        /// Metadata document to use instead of the collected metadata
        #[arg(long, value_name = "FILE")]
        metadata: Option<PathBuf>,
    },
    /// Signal a wait condition
    ///
    /// The one of --url, or WAIT_HANDLE of the node's own deployment. If the endpoint does not answer, it is retried for half a
    /// minute. Exits with 0 once the signal is accepted. A handle is as sensitive as a password: --url - keeps it out of the list
    /// of processes.
    Signal {
        /// SUCCESS or FAILURE
        #[arg(value_parser = ["SUCCESS", "FAILURE"])]
        status: String,
        /// Reason, one sentence
        #[arg(long)]
        reason: Option<String>,
        /// Data, JSON or text
        #[arg(long)]
        data: Option<String>,
        /// Id of the signal; a signal with the same id overwrites it
        #[arg(long)]
        id: Option<String>,
        /// Handle: URL, JSON of its signal attribute or its curl line; `-` reads it from standard input
        #[arg(long, value_name = "HANDLE")]
        url: Option<String>,
        /// Metadata document to use instead of the collected metadata
        #[arg(long, value_name = "FILE")]
        metadata: Option<PathBuf>,
    },
    /// Run a finished deployment again
    ///
    /// A script is never repeated automatically; this requests it explicitly. A node whose generation was rejected is
    /// tried again. The earlier output and any unsent result are discarded; the new result is signalled,
    /// and Heat accepts it only while the resource is still waiting for one (IN_PROGRESS). Refused while the deployment runs, or
    /// if the metadata no longer lists it. Without a daemon it runs when the daemon starts.
    Rerun {
        /// Id, the beginning of one, or a name that only one deployment has
        #[arg(value_name = "ID")]
        deployment: String,
    },
    /// Stop a running script or hook, with everything that it started
    ///
    /// Its processes receive SIGTERM and, ten seconds later, SIGKILL. Heat receives FAILURE with the reason, if it is still waiting; the
    /// deployments behind it continue. One that Heat has replaced is stopped automatically after the setting deploy.replaced_grace. Refused for a
    /// deployment that is not running, and for kubernetes-node, where a newer deployment replaces the older one.
    Stop {
        /// Id, the beginning of one, or a name that only one deployment has
        #[arg(value_name = "ID")]
        deployment: String,
    },
    /// Remove the record of a deployment, as if it had never been seen
    ///
    /// One that the metadata lists runs again as a new one at the next pass; any other is gone permanently. Its output, any
    /// unsent result, and the replaced tools' record of it are removed too. Refused while it is running.
    Forget {
        /// Id, the beginning of one, or a name that only one deployment has
        #[arg(value_name = "ID")]
        deployment: String,
    },
    /// Show the output of a deployment, or the journal of a component since boot, with secrets masked; without a name, list both
    ///
    /// A component is a unit of the node or the agent by its name without .service: kubelet, etcd, agent; `runtime` is the container
    /// runtime in use. NAME.service is always the unit. Any other name is a deployment's if one has exactly this id or name (the newest,
    /// if several do), then a component's, then the beginning of an id.
    ///
    /// Masked: the value of every secret that the metadata holds, wherever it occurs; what stands behind the name of a secret; private
    /// keys; signed URLs; users in URLs. Output of a deployment is masked by that deployment's own secrets, when it is stored. Not masked: a
    /// secret that the metadata does not hold and no name announces, or that a program shows in another form or in fewer than 6
    /// characters.
    Logs {
        /// Component, or id of a deployment, the beginning of one, or a name
        name: Option<String>,
        /// Most entries of a component's journal, the newest [default: 500]
        #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        lines: Option<u32>,
        /// Continue until the deployment ends; a component's journal until interrupted
        #[arg(long, short)]
        follow: bool,
    },
    /// List the node's certificates: file, issuer, names, expiry and which units read them
    ///
    /// Each is ok, EXPIRING (two thirds of its validity have passed), EXPIRED, MISSING or INVALID, with the reason and what to do.
    /// Reads the files of this machine according to the newest generation, as root; the daemon need not be running. A key is
    /// never shown, only the fingerprint of the one for service accounts, which is the same on all masters where the parameters give it.
    ///
    /// Exits with 0 if all are OK, 2 if one is close to expiry, expired, missing or invalid.
    #[command(args_conflicts_with_subcommands = true)]
    Certificates {
        /// Print the list as JSON
        #[arg(long)]
        json: bool,
        /// Action to perform instead of listing.
        #[command(subcommand)]
        action: Option<CertificatesAction>,
    },
    /// Take a snapshot of etcd, or restore etcd from one after a disaster
    Etcd {
        /// Action to perform.
        #[command(subcommand)]
        action: EtcdAction,
    },
    /// Write one archive for support: diagnostics of the agent and the node, with secrets masked
    ///
    /// Contains status, explain, timeline, plan, verify, certificates and metadata as the commands print them, the journals of the agent,
    /// of every unit of the node and of the kernel since boot, disks, versions, network. The value of every secret that the metadata
    /// holds is masked wherever it occurs, as are values behind the names of secrets, private keys and signed URLs. Read it before you
    /// pass it on: nobody knows what a program wrote to its journal. Works while the daemon is down. Mode 0600; overwrites nothing.
    Support {
        /// File to write; default: /var/tmp/heat-node-agent-support-HOST-TIME.tar
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Run a recorded job, at most once
    #[command(hide = true)]
    HookRun {
        /// The job's directory
        directory: PathBuf,
    },
    /// Check whether the node's services may start on this machine
    #[command(hide = true)]
    InstanceGuard,
    /// Show which processes listen on TCP ports
    #[command(hide = true)]
    PortHolders {
        /// The ports
        ports: Vec<u16>,
    },
    /// Set up this node's part of the pod network: docker's bridge, or a bridge with routes, and rules
    ///
    /// From /etc/heat-node-agent/pod-network.json. heat-node-pod-network.service runs it at each boot, without the daemon.
    /// It waits for flannel's subnet as long as necessary, reports each action, and does nothing twice.
    PodNetwork,
    /// Open the ports of the node's services in the host's firewall
    ///
    /// From /etc/heat-node-agent/firewall.json, in nftables, firewalld or what iptables.service restores.
    /// heat-node-firewall.service runs it after those. The agent's rules that are no longer needed are removed; others are not touched.
    Firewall,
    /// Print the journal catalog
    #[command(hide = true)]
    Catalog,
}

/// The release that an argument is.
fn release(text: &str) -> Result<Release, String> {
    Release::of(text)
        .filter(|_| !text.contains(char::is_whitespace))
        .ok_or_else(|| "a release of Kubernetes: 1.29, or v1.29.4".to_owned())
}

/// What `etcd` does.
#[derive(Debug, Subcommand)]
pub enum EtcdAction {
    /// Take a snapshot of this master's etcd now
    ///
    /// Verified, mode 0600. Without FILE it goes to /var/lib/etcd/snapshots on the etcd volume, where the agent takes one each
    /// etcd.snapshot_interval (agent.toml), and the oldest beyond etcd.snapshots_kept are removed. It holds all that Kubernetes keeps, secrets
    /// too: copy it to another machine, and keep it as safe as etcd itself. Works while the daemon is down, and while etcd has no quorum.
    Snapshot {
        /// File to write, which must not exist
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Restore etcd from a snapshot, as a new cluster whose only member is this master
    ///
    /// For a cluster that has lost its quorum or its data. Refused while this master's etcd or another member has a leader, or may
    /// have one and cannot be asked, and for a file that is no intact snapshot: nothing was changed then. The keys are unpacked beside the data while
    /// everything runs; then the agent and etcd are stopped, the data is moved to member.replaced-TIME, and both are started again. Nothing is deleted.
    ///
    /// Members of the old cluster cannot join the new one; the command prints what to do on the other masters. Interrupted, it goes on when
    /// it is run again with the same file.
    Restore {
        /// Snapshot, as `etcd snapshot` or `etcdctl snapshot save` wrote it
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Only list what would be done; exits with 2 if it is not refused
        #[arg(long)]
        dry_run: bool,
        /// Confirm that all that was written after the snapshot is given up, and that other members have to join anew
        #[arg(long)]
        new_cluster: bool,
    },
}

/// What `certificates` does besides listing them.
#[derive(Debug, Subcommand)]
pub enum CertificatesAction {
    /// Advance this node one step in a CA rotation: trust both, switch, drop the old one
    ///
    /// Each step requires that all nodes of the cluster have completed the previous one: check `heat-node-agent certificates` on
    /// each. In Heat, the parameter CA_ROTATION does the same. Refused if no CA rotation is in progress.
    Rotate,
    /// Create CAs and a service account key pair for an operator who has none
    ///
    /// Creates three CAs (kubernetes, etcd, front-proxy), each with its own subject and key, the service
    /// account keys, and parameters.yaml with all of it for Heat. Needs neither root nor a daemon, and overwrites nothing.
    NewCa {
        /// Output directory; created if missing, accessible only to its owner
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// Prefix of the subjects
        #[arg(long, value_name = "CN", default_value = "kubernetes")]
        name: String,
        /// Validity in days
        #[arg(long, value_name = "N", default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36_500))]
        days: u32,
        /// Type of the service account keys; openssl generates RSA keys
        #[arg(long, value_name = "TYPE", default_value = "rsa-2048", value_parser = ["rsa-2048", "rsa-3072", "rsa-4096", "ecdsa-p256"])]
        service_account_keys: String,
    },
}
