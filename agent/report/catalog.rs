//! Every message that the agent can write to the journal: one table, from which the codes, the
//! `MESSAGE_IDs`, the catalog that `journalctl -x` shows and the manual page are made.

use std::fmt::Write as _;

/// How a command of a remedy ends that takes the id of the deployment which the message is about.
pub(super) const ID: &str = " ID`";
/// Where a command of a remedy takes the name of a unit.
pub(super) const UNIT: &str = "UNIT";

/// Importance of a message, as in syslog(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Something failed and somebody has to look.
    Error,
    /// Something is odd, the agent goes on.
    Warning,
    /// Normal, but worth a look.
    Notice,
    /// Normal.
    Info,
}

macro_rules! messages {
    ($($name:ident = $code:literal, $priority:ident, $id:literal, $subject:literal, $body:literal, $remedy:literal;)*) => {
        /// A message of the agent; the documentation of each variant is its catalog subject.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code {
            $(#[doc = $subject] $name,)*
        }

        impl Code {
            /// All messages in the order of their codes.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Everything that the table says of this message.
            #[must_use]
            pub const fn entry(self) -> &'static CatalogEntry {
                match self {
                    $(Self::$name => &CatalogEntry {
                        name: stringify!($name), code: $code, priority: Priority::$priority,
                        message_id: $id, subject: $subject, body: $body, remedy: $remedy,
                    },)*
                }
            }
        }
    };
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct CatalogEntry {
    /// `HNA_EVENT`.
    pub name: &'static str,
    /// `HNA_CODE`.
    pub code: &'static str,
    /// `PRIORITY`.
    pub priority: Priority,
    /// `MESSAGE_ID`, 32 hexadecimal digits. Never changes once released.
    pub message_id: &'static str,
    /// One line: what happened.
    pub subject: &'static str,
    /// What it means.
    pub body: &'static str,
    /// What to do.
    pub remedy: &'static str,
}

messages! {
    AgentStarted = "HNA-0101", Info, "6db037ac68c444ef891e24f9dc151c72",
        "The agent has started",
        "The agent has read its settings, locked its state directory and begun to work.",
        "`heat-node-agent status` shows what it is doing.";
    SettingsUnknownKey = "HNA-0102", Warning, "1d85ca66df98456c87da674ea4d78a64",
        "A settings file has an unknown key",
        "The key is ignored; everything else in the file is used. A misspelt key is the usual reason.",
        "Correct or remove the key. `heat-node-agent verify` lists every mistake at once.";
    SettingsFileSkipped = "HNA-0103", Warning, "c7f1d767d5c64e3184090e614d0e2309",
        "A settings file cannot be used",
        "The whole file is skipped; the other files are used.",
        "Correct the file and restart heat-node-agent.service. `heat-node-agent verify` names the line and the rule.";
    AgentStopping = "HNA-0104", Info, "d34ce3c88cba4ca28da938c3ffecc35c",
        "The agent is stopping",
        "Running deployments continue in their own units; the agent collects their results when it next starts.",
        "";
    MessagesLost = "HNA-0105", Warning, "ac205d89c59a490b8b5bb04a79579074",
        "Messages were lost because the journal did not accept them",
        "The journal was slow or stopped; the agent did not wait for it.",
        "`systemctl status systemd-journald` and `df -h /var/log` show why.";
    InsecureTls = "HNA-0106", Warning, "42c97e2128dc4145874b2555cf706ab6",
        "TLS certificates of an endpoint are not verified",
        "The settings allow it and the parameters request it: anyone who controls the network can read and change the traffic to this endpoint.",
        "Give the CA of the endpoint instead ([tls] ca_file) and remove allow_insecure.";
    StateFileQuarantined = "HNA-0107", Warning, "29c0434add2f4aea820809f2dd429d6d",
        "A file of the agent's state was unreadable and was quarantined",
        "It was renamed, not deleted. The agent continues without it.",
        "Inspect it: its name now ends in `.unreadable`. `journalctl -k -p warning` shows errors of its disk. A deployment whose record is lost is treated as new only if the replaced tools' record does not list it.";
    StateWriteFailed = "HNA-0108", Error, "f6d293f5aebd46ac821f0ea606a8c37f",
        "The agent's state cannot be written",
        "Nothing is started that could not be recorded; the agent retries.",
        "If `df -h /var/lib/heat-node-agent` or `df -i /var/lib/heat-node-agent` shows 100 %, free space there, but delete nothing in that directory. If not, `journalctl -k` shows why it cannot be written.";
    NoSystemd = "HNA-0109", Warning, "8bfb4816ad954f28857f48d088f750e0",
        "No systemd answers on the system bus",
        "Scripts run as children of the agent; nodes cannot be configured on this machine.",
        "Start the agent on a machine that runs systemd, with dbus.service up.";
    StateLocked = "HNA-0110", Error, "c105bcf9e073447b8790cf60feeae2bb",
        "Another agent has locked the state directory",
        "Or it uses the same [deploy] deployed_dir. Two agents would take each other's deployments for lost.",
        "Stop the other agent (`systemctl stop heat-node-agent`), or give this one a --state directory and a [deploy] deployed_dir of its own.";
    IdentityRecorded = "HNA-0111", Info, "fa4378ac43db489d813314f1c3d089cb",
        "The agent's state is bound to this instance",
        "The instance is recorded with the state, so that a copy of this disk is recognised as a copy.",
        "";
    IdentityUnknown = "HNA-0112", Warning, "5e9b667bb22447a0bf0299af5b4a46b7",
        "The identity of this instance is not known yet",
        "Neither SMBIOS (in a virtual machine) nor cloud-init (in a container) has provided it. Until it is known, the agent opens no state, runs nothing and sends nothing.",
        "Check that the hypervisor gives the server a SMBIOS UUID (`cat /sys/class/dmi/id/product_uuid`), or in a container that cloud-init ran (`cloud-init status --long`).";
    IdentityChanged = "HNA-0113", Warning, "8aca6d65589e48f2a9d54b66c9b2ce3c",
        "This disk is a copy of another instance's",
        "The other instance's state is quarantined: none of its signals is sent, none of its deployments is run, and its etcd and docker are not started.",
        "The agent continues with this instance's own metadata. The quarantined state is in `aside` in the state directory.";
    IdentityUnitStopped = "HNA-0114", Warning, "72b85af6f55a43b08f0b4ec24502db06",
        "A unit of another instance was running and was stopped",
        "The disk is a copy; the unit was configured for the original instance.",
        "`journalctl -b -u UNIT` shows what it did. heat-node-agent-guard.service normally prevents it from starting.";
    RequestUnreadable = "HNA-0116", Warning, "02118c5c9fe34a69a1b9cafc251e3ac7",
        "An unreadable operator request was quarantined",
        "It was renamed, not deleted, and nothing was done. Requests are written by `heat-node-agent rerun`, `stop`, `forget`, `repair`, `rollback` and `certificates rotate` of the same version.",
        "Run the command again, then remove the renamed file (`*.unreadable` in /var/lib/heat-node-agent/requests, of `stop` in /run/heat-node-agent/requests).";
    RequestRefused = "HNA-0117", Notice, "74d07ea15f7542fb8cb9d126ca3a7d3e",
        "An operator's request was refused",
        "Nothing was changed. The command that made the request prints the reason, too.",
        "Run the command again once its reason is gone.";
    BusUnreachable = "HNA-0118", Error, "295acdea1d793f00c57fd8d6bbc3fbb0",
        "systemd does not answer on the system bus",
        "What needs systemd waits; running units are not affected. The agent retries.",
        "Check `systemctl status dbus.service` and `journalctl -b -u dbus.service`; `systemctl daemon-reexec` restarts systemd's own manager. Where both are in order, the bus's policy for systemd (/usr/share/dbus-1/system.d/org.freedesktop.systemd1.conf) may be missing.";
    StepFailed = "HNA-0119", Error, "0f59af82a51b7af09a0ad94c9b78f17d",
        "A step of the agent itself failed",
        "It is neither the disk nor the system bus: the cause says what failed, and at what. The agent retries.",
        "Correct what failed, if that lies outside the agent. If nothing outside the agent explains it, report it as a bug, with `journalctl -u heat-node-agent`.";
    OldDataKept = "HNA-0183", Notice, "4e9e8edd96594c02952f44ecb0f58117",
        "A service's old data was moved away and kept",
        "Its disk was copied from another instance, or it was moved to a volume. Nothing uses it; the agent never removes it, because somebody may still need it.",
        "Remove it once nobody needs it. `heat-node-agent status --json` lists all of it under set_aside, each with its command.";
    SourceInUse = "HNA-0201", Info, "ffd5bc7866684207863ee5a400d9d2d6",
        "A metadata source is in use",
        "The source was found in files written by cloud-init, Heat or the image, or in the settings.",
        "";
    SourceFailed = "HNA-0202", Warning, "fdd98955fd474c428c0f58f7399e1fef",
        "A metadata source cannot be read",
        "Its last good document remains in force. The agent keeps retrying with increasing delays.",
        "`curl -sS -m 5 -o /dev/null URL && echo it answers`, with the URL in the cause, checks the endpoint from this node; `openstack stack show STACK` whether the stack still exists.";
    SourceRecovered = "HNA-0203", Info, "187c2b55f9394722857261fdbb65dad2",
        "A metadata source can be read again",
        "The source responds again after failures.",
        "";
    MetadataChanged = "HNA-0204", Info, "7a82cd45ac9446348de9b6056ae40e52",
        "The metadata changed",
        "A source delivered a document that differs from the previous one.",
        "`heat-node-agent metadata` shows it, masked.";
    NoSource = "HNA-0205", Warning, "3d6acd0a57654ecc816719d1ed1acd37",
        "No metadata source is known yet",
        "Neither cfn-init-data nor os-collect-config.conf exists, and no source is configured.",
        "Check that cloud-init ran (`cloud-init status --long`) and that the server uses user_data_format SOFTWARE_CONFIG, or write os-collect-config.conf.";
    MetadataPartInvalid = "HNA-0206", Warning, "0db8327eeb9349f38a15001162bcc58a",
        "A part of the metadata cannot be understood",
        "The part is ignored; everything else is used.",
        "Correct that part of the metadata. It is usually a mistake in the Heat template.";
    SourceRetired = "HNA-0207", Info, "aab25c785d1e40c9943a7583d96d371a",
        "A metadata source is no longer polled",
        "Heat or os-collect-config.conf names other sources, or its settings were removed; another source has answered, or this one never did.",
        "Unless software_config_transport was changed, check os-collect-config.conf and cfn-init-data.";
    SourceLeftOver = "HNA-0210", Warning, "fc7f82c4c5334eb7b02c6e8231b17567",
        "A file left by the instance that this disk was copied from is ignored",
        "Its content is the other instance's and would lead to that server's metadata. It is used as soon as it changes.",
        "Let cloud-init or the operator write it for this server. If the content is correct for this server too, any change of the file confirms it: `echo >>FILE`.";
    BootCopyExposed = "HNA-0211", Info, "e18f04302e25fb42e94351c15455b466",
        "The server's first metadata was readable by other users",
        "cfn-init-data holds the password or the keys with which this server speaks to Heat, and cloud-init leaves it with mode 0644. The agent gives it mode 0600.",
        "If somebody who must not have them was on this machine, replace the server in the stack: the new one gets credentials of its own.";
    SourceDowngrade = "HNA-0275", Warning, "a6bdc2c47d444188bd486cfd77962d27",
        "A change of a metadata source from https to http is refused",
        "Credentials and metadata would travel in clear text. All source settings in the document are ignored; the agent keeps the ones it has.",
        "Name an https endpoint: in Keystone's catalog, Heat's configuration, or os-collect-config.conf. Where the network is trusted, set [tls] allow_insecure = true in agent.toml.";
    SourceIncomplete = "HNA-0276", Warning, "b2a026c72048420a8d36dbf07814b67a",
        "A document describes a metadata source incompletely",
        "The endpoint and credentials of a source must come from one document; they are never completed from another. The document's settings for this source are ignored.",
        "Correct the os-collect-config metadata of the server, or the section in os-collect-config.conf, so that one document has all of it.";
    SourceReplacementPending = "HNA-0277", Notice, "e2a2f399d21a463c97951d5f6e0d09f6",
        "A replaced metadata source stays in use until the new one answers",
        "It is polled a quarter as often, also after restarts, and its documents are used. It is dropped as soon as the new source has answered once.",
        "If the new source does not answer, correct its settings in Heat: the old source delivers the correction.";
    SourceAnswerOlder = "HNA-0278", Info, "fa5e8411ed034a84b99d09d7d4916a08",
        "A source that answers is not used yet, because its answer is older",
        "The source that is preferred now answered before the newest list of deployments did, or at the same time. The newest list stays in force, so nothing that Heat has withdrawn is run or reported.",
        "The next answer of the source takes over.";
    FormerListUnread = "HNA-0279", Warning, "f0579c9370eb4968a886342cba602037",
        "A record of the replaced collector cannot be read",
        "os-collect-config keeps what each source said last. From it the agent learns which deployments Heat has replaced, so that no answer of a replica that lags is taken for the newest. Nothing else is taken from the file, and the agent works without it.",
        "Remove the file if it is damaged: no program but os-collect-config reads it.";
    VolumeFound = "HNA-0301", Info, "11ba224dd2da49cb84bc8fe6578b2262",
        "A volume was found",
        "The disk with the Cinder id is attached.",
        "";
    VolumeWaiting = "HNA-0302", Notice, "e064b8479e3c4dbf8d48892cf8db60c2",
        "A volume is not attached yet",
        "The agent waits for the disk whose serial is the start of the Cinder id; it continues as soon as udev reports it. The message lists the disks that are present.",
        "Check the attachment: `openstack server volume list SERVER`. The device name does not matter.";
    VolumeFormatting = "HNA-0303", Notice, "c528336a1d5a46498b50e1fc6ac8d598",
        "A blank volume is being formatted",
        "Every safety check passed; the decision is recorded before the first byte is written.",
        "";
    VolumeFormatted = "HNA-0304", Info, "ddf5e65cda2442828f06729080c8ce18",
        "A volume was formatted",
        "It now carries the agent's marker.",
        "";
    VolumeReused = "HNA-0305", Info, "138627afc39c4ce28ece04b14a933122",
        "A volume's file system is used as it is",
        "It carries the marker of this cluster and role, or VOLUME_ADOPT names it.",
        "";
    VolumeRefused = "HNA-0306", Error, "91acff0eec864c34837d91fc47f5214a",
        "A volume is refused",
        "The disk holds data that is not this node's, or something else is using it. Nothing was written to it.",
        "Check that the right volume is attached (`openstack server volume list SERVER`). Only then override the refusal, by the one command or parameter for this disk in `heat-node-agent explain`.";
    VolumeMounted = "HNA-0307", Info, "2d3ba9a101b949918d1b8565142bcbe1",
        "A volume is mounted",
        "A mount unit mounts it at every boot.",
        "";
    VolumeMissing = "HNA-0308", Error, "72f26e3e600a40e089ae367700789fb6",
        "A volume did not appear in time",
        "The deadline of the node's wait condition is near, so the failure is reported to Heat now.",
        "Attach the volume (`openstack server add volume SERVER VOLUME`), then `heat-node-agent rerun ID`; or correct its id in the template and update the stack.";
    VolumeFailed = "HNA-0309", Error, "84772c3978ac43e085558b223b7764f0",
        "A volume could not be prepared",
        "The safety checks passed, but a step failed: the record, mkfs, the mount unit or the marker.",
        "Fix the cause that `heat-node-agent explain` shows (`journalctl -k -n 50` has the disk's own errors). The next attempt resumes from the record.";
    VolumeGrowing = "HNA-0310", Notice, "2f7335b195b844cabf62549ab87d1a4d",
        "A volume was extended; its file system is being grown",
        "The disk is larger than the file system on it. The file system is grown while in use; this cannot be undone.",
        "";
    VolumeGrown = "HNA-0311", Info, "3cc2de719d2b437a96c3b0a4637c1ee6",
        "The file system of a volume was grown",
        "It fills its disk.",
        "";
    VolumeNotGrown = "HNA-0312", Error, "a82dc28b2a064b57a2613882105b46d9",
        "A volume was extended, but its file system could not be grown",
        "The store keeps its old size. The agent retries after a delay that grows from a minute to an hour, and at once with a new deployment.",
        "Grow the file system by hand (`xfs_growfs` or `btrfs filesystem resize max` with its mount point, `resize2fs` with its device), or let the agent retry.";
    StoreRefused = "HNA-0320", Error, "f121532679844a89b560956aff7ca9a9",
        "The container runtime's storage driver cannot work here",
        "The kernel, the runtime's version or the file system lacks what the driver needs, or the store holds another driver's images. Nothing was stopped.",
        "Use another storage driver (DOCKER_STORAGE_DRIVER), or a kernel, runtime and file system that support this one. Images are never wiped.";
    StoreMoving = "HNA-0321", Notice, "8f7415b30051428c90a189e5ade377d5",
        "A store is being moved from the root disk to its volume",
        "Its service is stopped, its data copied and verified, and only then used from the volume. The original stays on the root disk under another name.",
        "Once nobody needs the old copy, remove it: `heat-node-agent status --json` lists it under set_aside, with the command.";
    StoreMoved = "HNA-0322", Notice, "ae6d0637bd2e4388a44b8e1789432343",
        "A store was moved to its volume",
        "The copy was verified against the original before use.",
        "Once nobody needs the old copy (/var/lib/etcd.before-volume-1, say), remove it: `heat-node-agent status --json` lists it under set_aside, with the command.";
    VolumeUnhealthy = "HNA-0323", Error, "3e149024331a4aab83be1cfa6d392e44",
        "A volume in use is missing, read-only, or full",
        "Its services cannot work; they are not restarted in a loop.",
        "Missing: attach it again, then `heat-node-agent repair`, unless DRIFT is repair. Read-only: see `journalctl -k`, detach it, attach it again, and update the stack. Full: extend it; file system and services follow by themselves.";
    VolumeSurveyed = "HNA-0394", Info, "60ee2e2e12274beeaefcbac55777242d",
        "A volume that may be blank was read in depth",
        "The message says how much of it was read.",
        "";
    PoolNearlyFull = "HNA-0395", Error, "c410607e3280452cbce984eab51237d4",
        "Docker's thin pool is nearly full",
        "85 % of its data or metadata space is used. From 90 % on docker creates no new layers or containers; a full pool stops those that write.",
        "Extend the volume: `openstack --os-volume-api-version 3.42 volume set --size GIB VOLUME`; the pool grows with it. `docker system prune` frees space too, but on a Kubernetes node it also removes stopped containers with their logs.";
    DeploymentRecorded = "HNA-0401", Info, "011d2856e36d4d4282b45de7c0eee3d0",
        "A new deployment was recorded",
        "It runs after those before it in the list have ended.",
        "";
    DeploymentStarted = "HNA-0402", Info, "50924fa3850a469587994ccb89c286ca",
        "A deployment is running",
        "HNA_UNIT names its unit: `journalctl -u` shows the output.",
        "";
    DeploymentSucceeded = "HNA-0403", Info, "b7094472af9e48438a205450b901d9d5",
        "A deployment succeeded",
        "Its result is stored and sent to Heat if a signal is requested.",
        "";
    DeploymentFailed = "HNA-0404", Error, "034f7a537fbe4b6c8b19fc1c6b470387",
        "A deployment failed",
        "Heat receives the status code and the end of the output.",
        "Correct the template or the script (`heat-node-agent logs ID` shows its output) and update the stack.";
    DeploymentInterrupted = "HNA-0405", Error, "ff9e3ecb3b3f43ca8f957c798de3b5d8",
        "A deployment was interrupted",
        "The machine or its unit ended while the script ran. A script is never run twice, so Heat receives FAILURE.",
        "Check how far it got, then update the stack to run it again.";
    DeploymentMalformed = "HNA-0406", Error, "20851a73a7da4fa18454b773efc8b4cd",
        "A deployment entry is malformed",
        "It cannot be run. The failure is reported to Heat if the entry says how.",
        "Correct the entry in the template and update the stack.";
    DeploymentNoHook = "HNA-0407", Error, "a97a665e1bc541df813dcf7768b70272",
        "No hook for this deployment's group",
        "There is neither a built-in hook nor an executable of that name in the hook directories.",
        "Install the hook as /usr/libexec/heat-config/hooks/GROUP, executable and writable by root alone, here and in the image, then `heat-node-agent rerun ID`; or use another group and update the stack.";
    DeploymentReattached = "HNA-0408", Info, "080aa374f5ab49568258576ccc094d7c",
        "A deployment that outlived the agent is monitored again",
        "Its unit kept running while the agent was down.",
        "";
    DeploymentForbidden = "HNA-0409", Error, "7931d9177be846f686cb90ab323c9ee4",
        "This image does not allow the deployment's group",
        "[deploy] groups in agent.toml does not list it, or [node] source says that a file configures the node.",
        "Use an allowed group, or rebuild the image with the group allowed. Configure the node by heat-params or by a deployment, not both.";
    DeploymentTimedOut = "HNA-0410", Error, "78291c69ac154fa6851c4f0b3a122f4c",
        "A deployment exceeded its time limit",
        "Every process of its unit was killed; Heat receives FAILURE with the end of the output.",
        "Make it faster and update the stack; or raise [deploy] time_limit in /etc/heat-node-agent/agent.toml, `systemctl restart heat-node-agent`, then `heat-node-agent rerun ID`.";
    DeploymentAlreadyRun = "HNA-0411", Info, "8f42f5e77a3f41d485a585c7151ea520",
        "A deployment had already been run before it was recorded",
        "The replaced tools ran it (their record is under /var/lib/heat-config/deployed), or this agent did, and its record was removed or lost since: the message says which, unless an empty file is all that is left. It is not run again. A result that Heat does not have yet is sent.",
        "`heat-node-agent rerun ID` runs it again.";
    DeploymentRerun = "HNA-0412", Notice, "6354824346b845a69bb53726e3a6dea2",
        "A deployment is run again at the operator's request",
        "Its earlier result and output are discarded; it runs and signals once more. Heat accepts the result only while the resource is in progress.",
        "`heat-node-agent status --wait` waits for its end.";
    DeploymentForgotten = "HNA-0413", Notice, "47b649c8409f4860a7380347512421b9",
        "A deployment was forgotten at the operator's request",
        "Its record, its output and any unsent result were removed. If the metadata lists it, it runs as a new one.",
        "";
    DeploymentNotStarted = "HNA-0414", Error, "02c74469ae924ab298a93539b832b953",
        "A deployment could not be started",
        "The script or hook did not run at all: its interpreter or its program is not installed, or the system refused it. Heat receives FAILURE.",
        "Install the missing program here and in the image, then `heat-node-agent rerun ID`; or correct the template and update the stack.";
    DeploymentWithdrawn = "HNA-0470", Notice, "f4d8aec811f8420089681ac1ffca309a",
        "A deployment was withdrawn because Heat no longer lists it",
        "It disappeared from the metadata before it ended. Its result is not sent. If Heat lists it again, it resumes where it was.",
        "";
    DeploymentRelisted = "HNA-0471", Notice, "782c40056d284ee6b8db0275b53d62c4",
        "A withdrawn deployment is in the metadata again",
        "Heat's metadata omitted it once and now lists it again: a known result is sent, a deployment that never ran is run, and no script runs twice.",
        "";
    DeploymentReplaced = "HNA-0479", Warning, "f49b4275968d49b7a4cdf9cf9a3e744f",
        "A running script or hook belongs to a deployment that Heat has replaced or removed",
        "Nobody waits for its result, and later deployments wait for it to end. After the grace period [deploy] replaced_grace its unit is stopped, if a fresh answer from Heat confirms it.",
        "`heat-node-agent stop ID` stops it at once; `heat-node-agent logs ID` shows its output.";
    ReplacedDeploymentStopped = "HNA-0480", Warning, "37186abdba744665bda42429c71a8c91",
        "A script or hook was stopped because Heat had replaced or removed its deployment",
        "Every process of its unit was killed. Nothing is reported to Heat, which no longer waits for this deployment. It is not run again.",
        "`heat-node-agent logs ID` shows how far it got. Make the script end by itself, or set [deploy] time_limit.";
    DeploymentStopped = "HNA-0481", Error, "85150991e09449abb8106a7895ac7b1d",
        "A script or hook was stopped at the operator's request",
        "Every process of its unit was killed. Heat receives FAILURE if it is still waiting.",
        "`heat-node-agent logs ID` shows how far it got. Update the stack to run it again, or `heat-node-agent rerun ID`.";
    DeploymentStopping = "HNA-0482", Notice, "2df5eba9667743daa1f4c76913ab1b89",
        "A script or hook is being stopped at the operator's request",
        "Its processes receive SIGTERM and, ten seconds later, SIGKILL.",
        "";
    OutputsRemoved = "HNA-0483", Notice, "aa3a71d39b1c412d8fcc5e86e2c5c288",
        "Output of old deployments was removed",
        "Deployment output may use a bounded part of the disk. The oldest output was removed; the records stay, and so do results that Heat has yet to receive.",
        "`heat-node-agent status --json` shows the budgets; the journal still has the scripts' output.";
    PhasesStarted = "HNA-0484", Info, "24a9e1e43104465399f10f159d246a09",
        "The phases of os-refresh-config are running",
        "[legacy] phases in agent.toml has them run whenever the metadata changed, before the deployments. HNA_UNIT names their unit: `journalctl -u` shows the output.",
        "";
    PhasesSucceeded = "HNA-0485", Info, "6a2cc785cbcf4379a5d59f07016cf354",
        "The phases of os-refresh-config succeeded",
        "They are not run again before the metadata changes.",
        "";
    PhasesFailed = "HNA-0486", Error, "76fb3aeb47754979a7588332ea55732a",
        "The phases of os-refresh-config failed",
        "They are tried again, ever more slowly, until they succeed. Deployments wait for them, but for no more than five minutes: what fails without the phases then fails, and Heat hears of it.",
        "`journalctl -u heat-phases.service` shows the output. Supply what the program lacks, or correct it on the node and in the image.";
    NodePlanned = "HNA-0501", Info, "a3dc45b57c254d8b85f5fee1c9352062",
        "A generation of the node was planned",
        "The parameters are valid; files, units and volumes are brought into line with them.",
        "`heat-node-agent plan` shows the changes without making them.";
    NodeParametersInvalid = "HNA-0502", Error, "aa6aa4bd9f1344ea8f4fb380df852269",
        "The node's parameters are invalid",
        "Nothing was changed. All errors are listed at once.",
        "Correct the parameters in the template and update the stack.";
    NodeConverged = "HNA-0503", Info, "ebf9fbed5a15495e8ea2b188220a8f79",
        "The node is ready",
        "It matches its parameters, and every health gate has passed.",
        "";
    NodeFailed = "HNA-0504", Error, "607acdd5241e421686ec1f8d58865c7a",
        "The node could not be brought up",
        "The step, the cause and the remedy are reported to Heat.",
        "`heat-node-agent explain` shows where it failed, why, and what to do.";
    NodeUnchanged = "HNA-0505", Info, "ce7fd872b31444038d06920e48f87575",
        "The node needs no change",
        "The parameters are those of the current generation, and nothing has drifted.",
        "";
    NodeDrift = "HNA-0506", Warning, "32af13c74cd24ca78e3161f6e2afb5be",
        "The node differs from its parameters",
        "A file was changed or a unit stopped. With DRIFT=repair it is restored.",
        "`heat-node-agent plan` shows the differences, `heat-node-agent repair` undoes them.";
    DuplicateNodeDeployment = "HNA-0507", Warning, "4a063dd68e474274826d2e594fcfef93",
        "Two kubernetes-node deployments for one server",
        "The newer one applies. Once it has begun, the older one fails if Heat waits for it; without a signal it waits until the newer one is removed. If both are of the same second, both fail, and nothing is changed.",
        "Keep one of them in the template.";
    NodeParametersSuspicious = "HNA-0508", Warning, "7d612e472d4abe50580cf5e5b1902e25",
        "A parameter of the node is suspicious",
        "The node is brought up, but something in its parameters, or the size of its machine, may not be as intended.",
        "Correct the parameter if it is not as intended. `heat-node-agent verify` lists it too.";
    DriftNotRepaired = "HNA-0513", Warning, "a8699e05d3114b5597751beb95d5976e",
        "A repeated change on the node is not repaired again",
        "Another tool keeps reverting the agent's repair. The agent does not fight it: it repairs each cause once.",
        "Find what writes the path or stops the unit (configuration management, a timer, a person), and let only one of the two manage it. A new deployment, or `heat-node-agent rerun ID`, allows a new repair.";
    RepairOrdered = "HNA-0517", Notice, "5bfe42dc78ae483181e262c3f7fb176a",
        "A repair of the node was requested",
        "The operator ran `heat-node-agent repair`. What differs from the node's parameters is put back at once, whatever DRIFT says.",
        "`heat-node-agent repair` prints what became of it.";
    RollbackBegun = "HNA-0521", Warning, "5b86ec4e316a4ccb84b9143283cd3e10",
        "An update is being rolled back",
        "It failed, or the operator ran `heat-node-agent rollback`. The node returns to the generation that was in place before: its files are restored, what the update brought is removed, and changed units are restarted.",
        "Wait for the result. Of a failed update Heat receives FAILURE with the cause and the outcome of the rollback.";
    RolledBack = "HNA-0522", Notice, "0476a9823a674d3f91c4d2ef1c8fc1eb",
        "An update was rolled back",
        "The generation that was in place before the update is in place again, and its gates have passed. The parameters of the update are tried again only by a new deployment or by `heat-node-agent rerun ID`.",
        "Correct what made the update fail, or why it was taken back, then update the stack again.";
    RollbackFailed = "HNA-0523", Error, "3a1e4e9138b149e9b31d83a9fda3dd11",
        "An update could not be rolled back",
        "The node is between two generations. Its components are still measured, and nothing more is changed automatically.",
        "`heat-node-agent status` shows what is wrong now. Correct it, then update the stack, or run `heat-node-agent rerun ID`.";
    UpdateIncomplete = "HNA-0597", Warning, "bb7cf911294f4d6ca2113c21a7c3c165",
        "A failed update left the node different from its parameters",
        "The listed changes were not made, or not finished, when the update failed. This is reported once; later changes are reported as drift (HNA-0506). Nothing is repaired until a deployment succeeds.",
        "Correct what failed and update the stack, or use `heat-node-agent rerun ID`.";
    FileWritten = "HNA-0601", Info, "6ca855286f2b4a77878187cbcfea208d",
        "A file was written",
        "It differed from what the parameters require.",
        "";
    UnitsReloaded = "HNA-0602", Info, "a14420e2c56547f38a5d0db164ac77e9",
        "systemd reloaded its unit files",
        "A unit file was written.",
        "";
    UnitEnabled = "HNA-0603", Info, "62742c13b92745ac8a7f51ee1d3c8b1c",
        "A unit was enabled",
        "It starts at every boot.",
        "";
    UnitStarted = "HNA-0604", Info, "534965afbe3e49fa8a636f3d4b794d65",
        "A unit was started",
        "It was not running.",
        "";
    UnitRestarted = "HNA-0605", Info, "166dea9ca64346858110b14c911606df",
        "A unit was restarted",
        "A file that it reads has changed.",
        "";
    UnitFailed = "HNA-0606", Error, "581c62ade1e642048186abe2e56965a4",
        "A unit failed to start",
        "The cause is the one that systemd reports.",
        "`systemctl status` and `journalctl -u` of the unit show its own messages.";
    UnitMissing = "HNA-0607", Error, "cbd450967c3e44f48cbf454cdd8048f4",
        "A unit does not exist on this machine",
        "The component is not installed in the image.",
        "Install the component in the image.";
    UnitHelperFailed = "HNA-0608", Warning, "008f115961984bac8a1f0f8649475a00",
        "A system helper unit failed",
        "This alone fails nothing: a health gate checks whether its files took effect.",
        "`systemctl status` of the unit shows why.";
    FileFailed = "HNA-0609", Error, "554bf3c2d820435c8992034a836415e1",
        "A file cannot be written",
        "The old content is unchanged.",
        "Check for a full disk, a read-only file system, or a directory with the file's name.";
    KeyGenerated = "HNA-0610", Info, "997f08da05297fc51a01279ae92977f5",
        "A private key was generated",
        "It is generated once and kept across restarts, reboots, renewals and new names.",
        "";
    CertificatesChanged = "HNA-0611", Notice, "c9327f5d1a204b3d62c492dacf96ebcd",
        "Certificates were installed",
        "The files of one directory are checked against each other and replaced together. Only units that read a changed one are restarted.",
        "";
    CertificatesWaiting = "HNA-0612", Notice, "08aeda6ce0516c9bc48dab809b0ecfc9",
        "The agent is waiting for certificates",
        "The issuer has not returned a certificate yet, but may do so later. The certificates in use stay as they are.",
        "If this persists, check from this node that Keystone and Magnum answer.";
    CertificatesFailed = "HNA-0613", Error, "56bd71001f199210297a99db462a072d",
        "The node's certificates are invalid",
        "A certificate or key that was given, generated or signed is wrong, or did not come in time. Refused credentials are HNA-0627, an issuer that is not trusted HNA-0628, clocks HNA-0629. Nothing was installed; the previous files are unchanged.",
        "Correct the certificate, its key or its CA in the parameters, and update the stack; `heat-node-agent certificates` shows those in use.";
    CertificateNearExpiry = "HNA-0614", Warning, "135300ea5dee4e59337ac69606530095",
        "A certificate is close to expiry",
        "Two thirds of its validity period have passed.",
        "Nothing, if the node renews it by itself (CERTIFICATE_RENEWAL). Otherwise set that to renew, or provide a new certificate, and update the stack.";
    CaRotationAdvanced = "HNA-0615", Notice, "75c8811c5a164f000c040d26cda20e50",
        "A CA rotation advanced one step on this node",
        "First the new CA is trusted alongside the old one, then the node's certificates are signed by it, then the old one is dropped.",
        "All nodes must complete a step before any takes the next.";
    RotationWaiting = "HNA-0616", Notice, "3fe1bbaafff064acf9fb464248bb0ed1",
        "A CA rotation is waiting for its next step",
        "All nodes must take a step before any takes the next, and only the operator knows when they have.",
        "When all nodes have reached this step and pods that use the API were restarted (`kubectl rollout restart`: most programs read its CA only when they start), set CA_ROTATION to the next step (switch, then drop-old) and update the stack, or run `heat-node-agent certificates rotate` on each node.";
    ClockWrong = "HNA-0617", Warning, "4d7d30b427531253ee3f43dcc5764a96",
        "The clock is wrong",
        "It shows a time before this agent was built. Certificates cannot be checked against it, so the agent waits for it to be set.",
        "Correct the clock: start NTP (chrony, systemd-timesyncd) and let it reach its servers.";
    RotationOrdered = "HNA-0618", Notice, "699e123e00e943f098ef25e6f65ba3fb",
        "The next step of a CA rotation was requested on this node",
        "The operator ran `heat-node-agent certificates rotate`. The step is taken at once, or when the daemon starts.",
        "All nodes must complete a step before any takes the next.";
    UnitStopped = "HNA-0619", Info, "92184af07b924b2fb2271e84d5bcb949",
        "A unit was stopped",
        "Only the update that was rolled back asked for it, and it was not running before.",
        "";
    ObjectWritten = "HNA-0620", Info, "cdb4daa22d8b0640e9f52624bd884d96",
        "A Kubernetes API object was written",
        "It was absent or differed from what the parameters require.",
        "";
    ObjectWaiting = "HNA-0621", Notice, "c19473eb84553637eba0e7b580f9e61e",
        "The agent is waiting to write a Kubernetes API object",
        "The API server does not accept it yet.",
        "If this persists, check the API server.";
    ObjectFailed = "HNA-0622", Error, "d27c614c9bbed82df5bc6fdf059baad3",
        "A Kubernetes API object could not be written",
        "The API server rejected it, or did not answer in time.",
        "Check the API server (`journalctl -u kube-apiserver -n 50`), and the rights of the certificate that the agent uses there.";
    ProgramIncompatible = "HNA-0623", Error, "c4f8fef64d55472b89cd3b4e8998c0a3",
        "An installed program does not support what the parameters require",
        "Its release is known not to support a flag or a setting that the parameters ask for, or a program that the node cannot do without is not installed. The cause names each. Nothing was written, stopped or restarted.",
        "Name the installed release in the parameters (KUBE_TAG, ETCD_TAG, FLANNEL_TAG, CONTAINERD_VERSION) and update the stack, or use an image with the requested release. `heat-node-agent verify --image` says beforehand whether an image fits.";
    ProgramReleaseDiffers = "HNA-0624", Warning, "daeddd4d94c5415aac1782928b29e86d",
        "An installed program's release differs from the one in the parameters",
        "As far as is known, it supports everything that is required of it; the node is brought up.",
        "Name the installed release in the parameters (KUBE_TAG, ETCD_TAG, FLANNEL_TAG, CONTAINERD_VERSION) and update the stack, or use an image with the requested release. `heat-node-agent verify --image` says beforehand whether an image fits.";
    UnitNotStartedAtBoot = "HNA-0625", Warning, "5d0f3b1c6a9e4d7f8b2c1e4a7d9f0b36",
        "A unit is enabled, but will not start at boot",
        "Its [Install] section names a target that this machine does not have. The agent has started the unit now; after a reboot it stays down until it is repaired (DRIFT=repair).",
        "Correct the unit's [Install] section in the image: `WantedBy=multi-user.target`.";
    HelperMissing = "HNA-0626", Warning, "b7d1c9a4e05f4c66a3f82d94716be05c",
        "A program that a component runs is not installed",
        "The node is brought up; what the component does by this program fails.",
        "Install it in the image; `verify --image` lists what an image lacks.";
    CertificatesRefused = "HNA-0627", Error, "cf5962cd3e6140c785da63e3c2906f1c",
        "The issuer of the certificates refuses this node",
        "Keystone does not accept the credentials of the parameters, or Magnum refuses what they ask for. Nothing was installed; the previous files are unchanged.",
        "Check TRUSTEE_USER_ID, TRUSTEE_PASSWORD and TRUST_ID in the parameters, and Magnum's policy; then update the stack.";
    CertificateIssuerUntrusted = "HNA-0628", Error, "4e1953ce6864443caca22a193fed368c",
        "The issuer of the certificates is not trusted",
        "The TLS certificate of Keystone or Magnum is signed by a CA that this node does not trust. Nothing was sent to it, and nothing was installed.",
        "Set OPENSTACK_CA to the CA of this cloud, as its operators give it, and update the stack.";
    CertificateNotYetValid = "HNA-0629", Error, "7ceef728e17e4900baeb503163caa572",
        "A certificate is not valid yet",
        "This node's clock, or the one of the host that signed the certificate, is wrong. Nothing was installed; the previous files are unchanged.",
        "Check `timedatectl` on this node, and the clock of the host that signs.";
    UnitMasked = "HNA-0630", Error, "a5a4e82a957c44e1aada85afa5a0c80f",
        "A unit is masked",
        "Somebody ran `systemctl mask` for it, so that systemd does not start it. The agent does not undo that.",
        "If it may run again, `systemctl unmask` it.";
    UnitProgramMissing = "HNA-0631", Error, "b8542bd1d0ee4fe2bd8bbc017e40f712",
        "The program of a unit is missing or cannot be run",
        "systemd could not even begin it (status 203/EXEC): the file is not there, or is none that this machine can run.",
        "Reinstall the program that the cause names, or make it executable, and correct the image.";
    FilesWritten = "HNA-0634", Info, "cd6e604f8d99496eb2f25c79c07fda61",
        "Files of the node were written",
        "They differed from what the parameters require. Each has a message of its own (HNA-0601) at debug priority.",
        "";
    AddOnFailed = "HNA-0635", Error, "468173d5be2c498c87410d2d3f4c89ff",
        "An add-on could not be applied",
        "Its manifests in the image are missing or wrong, the API server rejected one of their objects, or the API did not answer in time. Objects that were written before that stay.",
        "Correct the add-on's manifests in the image, or ADDONS, and update the stack.";
    AddOnLeft = "HNA-0636", Notice, "610f6c07b47d4b8582f87dc07313f16a",
        "An add-on is no longer asked for, and its objects stay",
        "Its name was taken out of ADDONS. The agent no longer applies it, and removes nothing from the cluster.",
        "Leave the objects, or delete those that carry its label heat-node-agent/add-on.";
    TaintsDiffer = "HNA-0637", Warning, "c2d6be0a64ff4c5f8f0e5f0a9a1d7b43",
        "A registered worker has other taints than its parameters ask for",
        "NODE_TAINTS or KUBELET_OPTIONS changed. A kubelet gives its node taints only when it registers it, and the API lets no kubelet change them afterwards. The update succeeded otherwise.",
        "Run the command that the message names, with the rights of an administrator of the cluster.";
    TokenKeysDiffer = "HNA-0638", Warning, "c934116c638540fbaa419a008090535a",
        "Masters do not verify each other's service account tokens",
        "The API server of one master does not have the public key by which another one signs. Requests with such a token fail with 401 at one master and succeed at the other. Each master says by digests in an annotation of its node (heat-node-agent/service-account-keys) which keys it has. While the masters are updated one after the other to another pair this is expected, until the last one has it. No update fails because of it.",
        "Once all masters are updated, give all of them the same KUBE_SERVICE_ACCOUNT_KEY and KUBE_SERVICE_ACCOUNT_PRIVATE_KEY. To replace a pair without interruption, let KUBE_SERVICE_ACCOUNT_KEY hold both public keys on all masters first.";
    TokenKeysAgree = "HNA-0639", Info, "05dc6543f1f8486dae7e70a249129488",
        "Masters verify each other's service account tokens again",
        "Every master that says its keys verifies by those with which the others sign.",
        "";
    EtcdMemberChanged = "HNA-0640", Notice, "20f4aea4e2a24ffd9fe3312e6ca58f2f",
        "This node changed the members of etcd's cluster",
        "Its own member was removed because its data is gone or its deployment was deleted, or was added, or votes now that it has caught up, under the lock that masters share. This cannot be undone; a member that is added gets its data from the others.",
        "";
    EtcdMemberWaiting = "HNA-0641", Notice, "987a4f2c4c444c2ca391523bca5da258",
        "The node's member of etcd cannot start or leave yet",
        "It has no data, and the cluster has no place for it yet, or is not known yet; or its deployment was deleted, and the others would lose their quorum; or it is a learner, and does not vote yet. Members change by one master at a time.",
        "Start or repair the other members of etcd (`etcdctl member list`, `journalctl -u etcd` on their masters).";
    EtcdMemberFailed = "HNA-0642", Error, "208206f2dfbb4f45b6870b748faa9d97",
        "The node's member of etcd cannot take its place, or leave it",
        "Its data is of another member or cluster; or it has none, and the place that the parameters name is another's, or the cluster could not give it one in time; or the others would have no quorum without it.",
        "Compare `etcdctl member list` on another master with this node's name and address, and correct ETCD_INITIAL_CLUSTER or the member there.";
    TokenKeysNotCompared = "HNA-0643", Warning, "e7b02a9f8ec74412ac955c0a57d6995b",
        "Service account keys cannot be compared with those of other masters",
        "A key file of this master cannot be read, or the API does not answer or refuses to show the masters' nodes or to change this one's. Nothing else depends on it, and it is tried again.",
        "Remove the cause: a key in PEM that the agent can read (RSA of 2048 to 4096 bits, ECDSA on P-256 or P-384), an API server that answers.";
    EtcdSnapshotTaken = "HNA-0645", Info, "d58f8b3dcc91409c91d1db70f2c99a3d",
        "A snapshot of etcd was taken",
        "It was verified and lies in /var/lib/etcd/snapshots, or in the file that the operator named. The oldest beyond [etcd] snapshots_kept were removed there.",
        "";
    EtcdSnapshotFailed = "HNA-0646", Warning, "364ede60df824552966f573f0f0f1612",
        "No snapshot of etcd could be taken",
        "etcd does not answer, its tools are not installed, or the volume has too little space. Earlier snapshots stay, etcd itself is not affected, and it is tried again within an hour. Before an upgrade it means that etcd was not healthy, and that the update goes on without a snapshot.",
        "Remove the cause, or turn snapshots off ([etcd] snapshot_interval = 0).";
    EtcdRestored = "HNA-0647", Notice, "8b15c50bb5f9412b881808d029033556",
        "etcd was restored from a snapshot",
        "The operator asked for it. This node's member is the only one of a new cluster with the keys of the snapshot; the data that it had before lies beside, as member.replaced-TIME.",
        "Have the other masters join as new members, as `heat-node-agent etcd restore` printed.";
    EtcdRestoreUnfinished = "HNA-0648", Warning, "ef3f21c0ee6c4f31ba1a077b5606c850",
        "A restore of etcd was begun and has not ended",
        "`heat-node-agent etcd restore` was interrupted, and the agent has been started since: from here on etcd lives on with the data that it has, and a later restore begins anew. If the snapshot is in place, the message says so, and the remedy is what is left to do on this master and on the others.",
        "`etcdctl member list` and a look at the data say whether the snapshot is in place. If it is not, run the restore again.";
    UpgradeSnapshotFailed = "HNA-0649", Error, "94d9c6d724bb4401a1cf05a7f2db4e5c",
        "No snapshot of etcd could be taken before an upgrade",
        "The update brings another release of Kubernetes or etcd, for which nothing but a snapshot is a way back, and etcd itself was healthy. Nothing of the node was changed.",
        "Remove the cause, or turn snapshots off ([etcd] snapshot_interval = 0).";
    LeftoversRemoved = "HNA-0690", Notice, "6a85740bffff49d79378ca4d1d1e08cc",
        "Old quarantined or leftover files were removed",
        "Unreadable state files, earlier records of the replaced tools and markers of old deployments are kept in a bounded number, the newest first. Temporary files of interrupted writes are removed at the start.",
        "";
    RenewalWaiting = "HNA-0697", Notice, "7775ba7cf1f54d91b3224fcf9b573f6f",
        "A certificate renewal or a restart is waiting",
        "A renewal restarts this master's etcd and API server, and so may a repair. Masters do this one at a time, and only while etcd keeps its quorum without this member. A certificate that has expired is renewed without waiting.",
        "If this persists, restore etcd's other members (`etcdctl endpoint health` at each of them).";
    GateWaiting = "HNA-0701", Notice, "a076b0a3c53e4acf8a01291a4456c0b5",
        "A health gate has not passed yet",
        "The agent checks again at each event of the unit, and periodically.",
        "If this persists, `heat-node-agent explain` shows what it waits for and what to do.";
    GatePassed = "HNA-0702", Info, "bec74ff347264962816a75be4f26603a",
        "A health gate passed",
        "The check succeeded several times in a row.",
        "";
    GateTimedOut = "HNA-0703", Error, "bbc3b65a9522474c8c0b9026565d4fcd",
        "A health gate did not pass in time",
        "Its own deadline has passed, or that of the node's wait condition is near: the cause says which. The failure is reported to Heat now.",
        "`heat-node-agent explain` shows the last check and what to do; `journalctl -u` of the gate's unit shows why it fails.";
    FlannelKeyWritten = "HNA-0704", Notice, "5a90f8cc7e9d4a89902ffc3b8a2a08aa",
        "Flannel's network configuration was written to etcd",
        "It was absent or differed from what the parameters require. Every flanneld in the cluster uses it; this node alone cannot undo that.",
        "";
    FlannelKeyWaiting = "HNA-0705", Notice, "3466fe2ad5cd4fab82beb17245bb5596",
        "The agent is waiting for flannel's network configuration in etcd",
        "A master writes it once its etcd is up. Without it flanneld runs but does nothing.",
        "If this persists, check etcd, and run `heat-node-agent explain` on a master.";
    FlannelKeyFailed = "HNA-0706", Error, "1e567310148c47ffafca42fd82db3c78",
        "Flannel's network configuration in etcd is wrong or missing",
        "It conflicts with the parameters, or did not appear in time. Nothing was written.",
        "Compare `etcdctl get` of flannel's key with the parameters (FLANNEL_NETWORK_CIDR, FLANNEL_BACKEND), and correct one of them.";
    RouteMissing = "HNA-0707", Warning, "defa9d7b3b524b04b044379e1b0dbcaa",
        "A route to the pods of another node is missing",
        "The node has a flannel lease, or is listed in the parameters, but the kernel has no route to its pods. flannel 0.18 to 0.21 loses events between two etcd watches; 0.5.6 does not retry failures.",
        "Restart flanneld.service (heat-node-pod-network.service for static routes), or set DRIFT=repair to have that done. flannel 0.21.5 and later loses none.";
    RouteMisdirected = "HNA-0708", Warning, "7d43cc7243994d4db1ef5bb461fdaf69",
        "A route to another node's pods goes to the wrong place",
        "Something else set a route for that subnet, or a node was replaced and the old route remained.",
        "Find out who set it (`ip route show`), remove it with `ip route del`, and restart flanneld.service, or heat-node-pod-network.service for static routes.";
    OwnSubnetRouted = "HNA-0709", Warning, "a19c62e4b141407f886ac9e6808e9572",
        "This node's own pod subnet is routed elsewhere",
        "There is a route for it through another address: packets to the node's own pods loop.",
        "Remove the route with `ip route del`; the bridge's own route serves the subnet.";
    PeerOffSegment = "HNA-0710", Error, "8bb2715a28d74555af41009c84c6bf20",
        "Another node is not on this node's network segment",
        "host-gw and static routes need all nodes on one segment: the kernel accepts no route through an address that it cannot reach directly.",
        "Put all nodes on one Neutron subnet, or set FLANNEL_BACKEND=vxlan and update the stack.";
    PodPacketsLost = "HNA-0711", Error, "8cd28e2fbf5244359580103fcd840d7d",
        "Pod traffic is dropped on the network",
        "The routes are correct. The other nodes answer this node's own address, but nothing sent from its bridge arrives.",
        "`openstack port set --allowed-address ip-address=NETWORK PORT` for the port of every node, with the pod network, and allow that network in the nodes' security groups.";
    PodNetworkRecovered = "HNA-0712", Info, "b5766b82a3c84424bc3e10e116129e8b",
        "The pod network has recovered",
        "Every route is correct, and packets arrive.",
        "";
    LeasesUnknown = "HNA-0713", Warning, "5b735a49be7f48cc8ea55ae8551794c2",
        "The subnets that flannel has allocated are unknown",
        "etcd does not answer, or flanneld has no lease on this node. The routes are left alone; whether they are correct is unknown.",
        "Check `journalctl -u etcd` on its node, and the network between it and this node.";
    RouteLeftOver = "HNA-0714", Notice, "cc89b9a155304cb9b10c7054c768eda0",
        "A route to the pods of a removed node is left over",
        "flannel does not remove the route of a lease that ended while flanneld was down.",
        "Remove it with `ip route del`. It does no harm until its subnet is allocated again.";
    PeerSilent = "HNA-0715", Warning, "08656c1334d146589dc0352c154bc37f",
        "Pod traffic does not reach one of the other nodes",
        "It reaches others: that node's port, or its security group, differs.",
        "Check allowed_address_pairs and the security groups of that node's port.";
    PodNetworkRepair = "HNA-0716", Notice, "ba2907cc358040c0b3e42af04e741392",
        "A unit is restarted to repair pod routes",
        "DRIFT=repair requests it. It is done once per cause.",
        "If the cause comes back, check the unit's journal.";
    ComponentFailed = "HNA-0720", Error, "4a9d8fcfab8176ff8c862e6df5ff7f67",
        "A component of the node has failed",
        "It was healthy after the node was brought up. Now its unit has failed, or a health gate of it reports that it is unhealthy. One that was stopped is HNA-0724, a crash loop HNA-0725, one that hangs HNA-0726. Nothing is sent to Heat: its resource is complete.",
        "Find the reason in the unit's journal (`journalctl -u UNIT -n 50`). Nothing is restarted by this message; DRIFT=repair starts a unit that is down.";
    ComponentDegraded = "HNA-0721", Warning, "734e36e1749f9699075c721543e245fe",
        "A component of the node is degraded",
        "It has been starting for minutes, or something that it needs has not been there for that long.",
        "`heat-node-agent explain` names what it waits for.";
    ComponentRecovered = "HNA-0722", Info, "98907f52855a95ec09fa28958370930b",
        "A component of the node has recovered",
        "Its unit runs and its gates pass again.",
        "";
    UnitDiedInBringUp = "HNA-0723", Warning, "18ededa8f64328d24cf4a3e2838441b8",
        "A unit dies while the node is brought up",
        "systemd restarts it, and the agent keeps waiting for it until the deadline. The message quotes its last lines, and names who holds its port and which file system is full where that is the reason.",
        "Remove the cause: the next restart of the unit then succeeds by itself.";
    ComponentStopped = "HNA-0724", Error, "af75eb7ba9c040db924bab109d18021b",
        "A component of the node does not run",
        "It was healthy after the node was brought up; since then it was stopped or masked, or ended by itself without an error. Nothing is sent to Heat: its resource is complete.",
        "See in the unit's journal whether it was stopped (`journalctl -u UNIT -n 50`). Nothing is started by this message; DRIFT=repair starts a unit that is down.";
    ComponentCrashLoops = "HNA-0725", Error, "1c8bd6c3dc0d4bd7ac2ec617232ba1f6",
        "A component of the node is crash-looping",
        "systemd has restarted it three times within ten minutes. The message quotes its last lines. It is reported again whenever the number of restarts has doubled.",
        "Remove the cause: the next restart of the unit then succeeds by itself.";
    ComponentHangs = "HNA-0726", Error, "8652b7f9b4484fb68dfa27e44f89f051",
        "A component of the node does not answer",
        "Its process runs and does not answer the questions of its health gate in time, twice in a row.",
        "See in the unit's journal why it hangs (`journalctl -u UNIT -n 50`). `systemctl restart UNIT` ends the hang; nothing is restarted by this message, nor by DRIFT=repair.";
    NodeConditionsWritten = "HNA-0730", Info, "ccdad9c9ffa24e17b3641623fec9700e",
        "The node's conditions in Kubernetes are up to date",
        "[report] node_conditions is on: the agent writes what it finds to the conditions of its own node, on changes and every 5 minutes.",
        "";
    NodeConditionsFailed = "HNA-0731", Warning, "0e0565ec6ce24feb8886a009e184de2d",
        "The node's conditions in Kubernetes cannot be written",
        "[report] node_conditions is on, and the API refuses the patch of the node's status or is unavailable. The conditions there become stale; nothing else is affected, and the agent keeps retrying.",
        "Check with the kubelet's certificate that the API answers, and that a kubelet may patch the status of its own node.";
    NodeDrained = "HNA-0740", Info, "dd3f46c22df24b4d8081e8f07277cf82",
        "The node was drained before an update, or takes pods again",
        "DRAIN=true requests it: pods that a controller makes anew elsewhere are evicted before the container runtime restarts or Kubernetes changes its minor. The node takes pods again once the update has succeeded or was rolled back, unless somebody else had cordoned it before.",
        "";
    DrainFailed = "HNA-0741", Warning, "bdcb4b32a64a4246a867bbcad81314be",
        "The node could not be drained, or stays cordoned",
        "The API refuses it to the kubelet, or is unavailable; or pods are left when their time is over, for example because of a PodDisruptionBudget. The update goes on all the same. A node that the agent cordoned stays so until an update succeeds or is rolled back.",
        "`kubectl drain NODE --ignore-daemonsets --delete-emptydir-data` before the next such update; `kubectl uncordon NODE` has the node take pods again.";
    NodeReset = "HNA-0745", Notice, "a6ac45233d296efdea6ac4f63e247404",
        "The node was taken out by `heat-node-agent reset`",
        "Its services are off, and its files, keys and the agent's state are removed. The agent is disabled and stays off after a reboot.",
        "`systemctl enable --now heat-node-agent` brings it up again as a new node if Heat still lists its deployment.";
    ResetUnfinished = "HNA-0746", Error, "473be261584f426ee9497e9d6574563d",
        "A reset of the node has not ended",
        "It was interrupted, or a step failed. The agent does not run until it has ended, so that it does not bring the node up again.",
        "Run `heat-node-agent reset` again with the same options: it resumes where it was interrupted.";
    SignalQueued = "HNA-0801", Info, "f64474a3567547648f5ed4914c529dda",
        "A signal to Heat was stored",
        "It is sent until Heat accepts it, across restarts and reboots.",
        "";
    SignalDelivered = "HNA-0802", Info, "a283c30d1382491c8346f043e3b30ff3",
        "Heat accepted a signal",
        "The request succeeded. What Zaqar accepted waits in its queue until Heat reads it.",
        "";
    SignalRetry = "HNA-0803", Warning, "a1ed24a3daf84af78455b29996bdf79f",
        "A signal was not accepted",
        "It stays stored and is sent again after a fresh poll of the metadata.",
        "Check from this node that Heat's endpoint answers; `systemctl reload heat-node-agent` then sends the signal at once.";
    SignalUndeliverable = "HNA-0804", Error, "0c251b5062904f198650d91532b2361d",
        "A signal cannot be delivered",
        "Heat refused it several times over a quarter of an hour; the agent has given up.",
        "The stack was deleted or suspended, or URL, token or user of the signal expired: update the stack, or have the stack's owner send it (`openstack stack resource signal STACK RESOURCE`).";
    SignalSuperseded = "HNA-0805", Notice, "09878907237f4fca8024eb80cff05f30",
        "A result was dropped because Heat wants something newer",
        "The deployment is no longer in the metadata, or was replaced; its late result would complete the wrong one.",
        "";
    SignalExpired = "HNA-0806", Error, "eb110bf8b3ec43428b48bf828e5a14ad",
        "A signal expired",
        "Neither Heat nor its metadata could be reached before the signal expired.",
        "Check the network between this node and Heat, then update the stack.";
    OutboxEntryCorrupt = "HNA-0807", Warning, "941e7dbaef874f6f80deafa4bf09b5db",
        "A stored signal was gone or unreadable",
        "A file that cannot be read was renamed, not deleted. A deployment's result is made again from its record and sent; the signal of a wait condition is not.",
        "Check the disk that holds /var/lib/heat-node-agent. If Heat still waits for a wait condition, `heat-node-agent rerun ID` makes it again; or send it by hand with `heat-node-agent signal`.";
    SignalUrlOld = "HNA-0808", Warning, "89a8d035fd0a4a328f51c4b3b53c3287",
        "A signal URL is older than Keystone accepts by default",
        "Keystone refuses pre-signed URLs 15 minutes after they were made ([credential] auth_ttl). The agent re-signs it with the server's own keys, or sends the signal with a token of the server's own user, if it has either.",
        "Use signal_transport HEAT_SIGNAL or TEMP_URL_SIGNAL for long deployments, or raise [credential] auth_ttl in keystone.conf. The stack's owner can send a refused signal: `openstack stack resource signal STACK RESOURCE`.";
    SignalFallback = "HNA-0809", Notice, "ad237794ecf4bf9153dd9bb7c0dad2f2",
        "A signal was sent by a different method than the one Heat gave",
        "Its URL or token had expired or was refused. The same signal was sent with the server's own keys or user, which Heat accepts for any resource of the stack.",
        "Use signal_transport HEAT_SIGNAL or TEMP_URL_SIGNAL to avoid this for long deployments.";
    SignalRefused = "HNA-0810", Warning, "2f7d6fe495234d03965788df24450341",
        "Heat refused a signal for now",
        "Heat or Keystone rejected the request (400 to 413): the stack is suspended, or the signal's URL, token or user is not accepted. It stays stored and is sent again; after several refusals over a quarter of an hour it is given up (HNA-0804).",
        "`openstack stack show STACK` shows whether the stack is suspended; `systemctl reload heat-node-agent` sends the signal at once.";
    OutboxFull = "HNA-0811", Warning, "dfe6f3d91ca6447d81b20fe5b702f770",
        "A deployment is not begun while too many signals wait for Heat",
        "Its result could not be stored. It is begun as soon as there is room; one without a signal is not held back.",
        "Find out why Heat accepts no signal: `heat-node-agent status -v` shows what answered last.";
}

/// The journal catalog in the format of systemd's catalog files.
#[must_use]
pub fn journal_catalog() -> String {
    let mut text = String::from("# The messages of heat-node-agent. Made by `heat-node-agent catalog`; do not edit.\n");
    for code in Code::ALL {
        let entry = code.entry();
        // What needs attention carries the remedy of the case in a field; the table's is its default.
        let remedy = if entry.priority < Priority::Info {
            "@HNA_REMEDY@".to_owned()
        } else {
            wrap(&entry.remedy.replace(ID, " @HNA_DEPLOYMENT_ID@`"))
        };
        let remedy = if remedy.is_empty() { remedy } else { format!("\n\nWhat to do: {remedy}") };
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "\n-- {}\nSubject: {} [{}]\nDefined-By: heat-node-agent\nSupport: man:heat-node-agent(8)\nDocumentation: man:heat-node-agent-messages(7)\n\n\
             {}{remedy}\n",
            entry.message_id,
            entry.subject,
            entry.code,
            wrap(entry.body)
        );
    }
    text
}

/// Breaks at blanks so that a line has at most 78 characters where the words allow it.
fn wrap(text: &str) -> String {
    let mut out = String::new();
    let mut width = 0;
    for word in text.split(' ') {
        if width > 0 && width + 1 + word.chars().count() > 78 {
            out.push('\n');
            width = 0;
        } else if width > 0 {
            out.push(' ');
            width += 1;
        }
        out.push_str(word);
        width += word.chars().count();
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn codes_and_ids_are_unique_ordered_and_well_formed() {
        let ids: BTreeSet<_> = Code::ALL.iter().map(|code| code.entry().message_id).collect();
        let codes: Vec<_> = Code::ALL.iter().map(|code| code.entry().code).collect();
        assert_eq!(ids.len(), Code::ALL.len());
        assert!(codes.is_sorted() && codes.windows(2).all(|pair| pair[0] != pair[1]));
        for id in ids {
            assert!(id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase()), "{id}");
        }
    }

    #[test]
    fn every_message_has_a_catalog_entry_that_says_what_to_do() {
        let shipped = include_str!("../../units/heat-node-agent.catalog");
        assert!(shipped == journal_catalog(), "renew it: heat-node-agent catalog > units/heat-node-agent.catalog");
        for code in Code::ALL {
            let entry = code.entry();
            assert!(shipped.contains(&format!("-- {}\nSubject: {}", entry.message_id, entry.subject)), "{}", entry.code);
            assert!(!entry.body.is_empty(), "{}", entry.code);
            // What needs attention says what to do.
            assert!(!entry.remedy.is_empty() || entry.priority >= Priority::Notice, "{}", entry.code);
            assert!(!entry.remedy.starts_with("Nothing needs"), "{}", entry.code);
            // A remedy is an action: who reads it has read the cause.
            let refers = ["named here", "names the", "names what", "quotes", "gives the", "say what", "ause says", "says how"];
            let of = ["he cause", "he remedy", "he message", "he step"];
            let is_pointer = |words: &&str| entry.remedy.contains(*words) && of.iter().any(|what| entry.remedy.contains(what));
            assert!(!refers.iter().any(is_pointer) && !entry.remedy.contains("named here"), "{}", entry.code);
        }
    }
}
