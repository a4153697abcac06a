//! A component that runs as a unit: its environment file, the drop-in that adapts the unit to it, the unit itself.
//!
//! The drop-in drops the command line and the environment files of whatever unit the image has and gives ours: so no
//! flag is lost because a distribution's unit lacks a variable (magnum-node.md 7.3 no. 25). systemd looks up a program
//! without a path in its own fixed directories, so that it may lie in /usr/bin or /usr/local/bin. Where the image has Kubernetes' programs of several
//! releases side by side, the command line names that of `KUBE_TAG`: an update that fails is taken back with its programs.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::desired::{ClientIdentity, Dependency, Desired, File, Gate, GateProbe, Owner, Unit};
use crate::gather::Gather;
use crate::kubernetes::parts::directories::directory;
use crate::kubernetes::parts::paths::GUARDED;
use crate::kubernetes::spec::cluster::{ClusterSpec, MachineFacts};
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::text::MADE;
use crate::kubernetes::text::environment::line;
use crate::kubernetes::versions::{Availability, Checked, CommandLine, Component, Minor, flag, quoted};
use crate::storage::health::LEAST_FREE;

/// Up to this minor flags stand in the variables that distributions' units expand; later one variable holds them all.
const LAST_WITH_VARIABLES: u16 = 9;
/// Read by every component of that band before its own file.
const SHARED: &str = "/etc/kubernetes/config";
/// Known to 1.2, the oldest minor with a list, but not to 1.0 (magnum-node.md 5.1 to 5.4).
const NEW_IN_1_1_OR_1_2: &[&str] =
    &["etcd-quorum-read", "kubelet-certificate-authority", "kubelet-client-certificate", "kubelet-client-key", "leader-elect"];

/// Which flags stand in which variable; one without flags is a variable of the shared file.
pub(in crate::kubernetes) type Variables = &'static [(&'static str, &'static [&'static str])];

/// A component's flags in the making.
pub(in crate::kubernetes) struct Flags {
    component: Component,
    minor: Minor,
    line: CommandLine,
    /// Words that no release has, for builds that do.
    patched: Vec<String>,
}

impl Flags {
    pub(in crate::kubernetes) fn new(component: Component, minor: Minor) -> Self {
        Self { component, minor, line: CommandLine::new(component, minor), patched: Vec::new() }
    }

    /// Sets one of our own flags where the minor knows it. Below the oldest list that is what 1.2 knows and 1.0 knew:
    /// there the command line itself takes anything.
    pub(in crate::kubernetes) fn set(&mut self, name: &'static str, value: impl Into<String>) -> bool {
        self.knows(name) && self.line.set(name, value)
    }

    /// The same for a flag that is given once for each value.
    pub(in crate::kubernetes) fn set_all(&mut self, name: &'static str, values: &[&str]) -> bool {
        self.knows(name) && self.line.set_all(name, values)
    }

    /// Whether the minor is known to take a flag.
    pub(in crate::kubernetes) fn knows(&self, name: &str) -> bool {
        let old = self.minor < Minor::OLDEST_CHECKED;
        flag(self.component, self.minor.max(Minor::OLDEST_CHECKED), name) == Availability::Known
            && !(old && NEW_IN_1_1_OR_1_2.contains(&name))
    }

    /// Sets a flag that no release has but a build with a patch, which the parameters ask for.
    pub(in crate::kubernetes) fn set_patched(&mut self, name: &'static str, value: &'static str) {
        self.patched.push(format!("--{name}={value}"));
    }

    /// A word a flag, ours first.
    pub(in crate::kubernetes) fn words(&self) -> Vec<String> {
        self.line.words().into_iter().chain(self.patched.iter().cloned()).collect()
    }

    /// Adds a user's options, which win. What is wrong with them was said when the parameters were read.
    pub(in crate::kubernetes) fn add_user_options(&mut self, text: &str) -> Checked {
        self.line.add_user_options(text)
    }

    /// The value that holds in the end.
    pub(in crate::kubernetes) fn value(&self, name: &str) -> Option<String> {
        let prefix = format!("--{name}=");
        self.line.words().iter().rev().find_map(|word| word.strip_prefix(&prefix).map(str::to_owned))
    }

    /// A port as it is in the end; none where it was switched off.
    pub(in crate::kubernetes) fn port(&self, name: &str, default: u16) -> Option<u16> {
        let port = self.value(name).map_or(Ok(default), |text| text.parse()).unwrap_or_default();
        (port != 0).then_some(port)
    }
}

/// Those of the files that flags name: the component is restarted when they change.
pub(in crate::kubernetes) fn read_files<'a>(flags: &Flags, files: impl IntoIterator<Item = &'a File>) -> Vec<String> {
    let words = flags.line.words();
    let named = |path: &str| words.iter().any(|word| word.split_once('=').is_some_and(|(_, value)| value == path));
    files.into_iter().map(|file| file.path.clone()).filter(|path| named(path)).collect()
}

/// Whether flags stand in the variables of distributions' units.
pub(in crate::kubernetes) fn has_variables(minor: Minor) -> bool {
    minor.number() <= LAST_WITH_VARIABLES
}

/// One component.
pub(in crate::kubernetes) struct Daemon {
    /// `kubelet.service`.
    pub(in crate::kubernetes) unit: &'static str,
    /// `kubelet`, or where the image has that of this release.
    pub(in crate::kubernetes) program: String,
    /// Its environment file: `/etc/kubernetes/kubelet`.
    pub(in crate::kubernetes) environment_file: &'static str,
    /// Variables in the order in which the command line names them; the values are words, quoted as the unit splits them.
    pub(in crate::kubernetes) variables: Vec<(&'static str, String)>,
    /// Further environment files that stand before its own.
    pub(in crate::kubernetes) shared: &'static [&'static str],
    /// Variables of those files, which the command line names first.
    pub(in crate::kubernetes) shared_variables: Vec<&'static str>,
    /// Further assignments of the environment file, which the command line does not expand.
    pub(in crate::kubernetes) unexpanded: Vec<(&'static str, String)>,
    /// Whether the environment file holds a secret.
    pub(in crate::kubernetes) secret: bool,
    /// Further files whose change needs a restart.
    pub(in crate::kubernetes) restart_on: Vec<String>,
    /// What must be there before it is started.
    pub(in crate::kubernetes) needs: BTreeSet<Dependency>,
    /// Units that it is ordered after at boot.
    pub(in crate::kubernetes) after: Vec<&'static str>,
    /// Further lines of the unit section.
    pub(in crate::kubernetes) unit_lines: String,
    /// Further lines of the service section.
    pub(in crate::kubernetes) service_lines: String,
}

impl Daemon {
    pub(in crate::kubernetes) fn new(unit: &'static str, program: impl Into<String>, environment_file: &'static str) -> Self {
        Self {
            unit,
            program: program.into(),
            environment_file,
            variables: Vec::new(),
            shared: &[],
            shared_variables: Vec::new(),
            unexpanded: Vec::new(),
            secret: false,
            restart_on: Vec::new(),
            needs: BTreeSet::new(),
            after: Vec::new(),
            unit_lines: String::new(),
            service_lines: String::new(),
        }
    }

    /// Takes the flags: up to 1.9 spread over the variables that distributions' units expand, what is left in `rest`;
    /// later all of them in `rest`.
    pub(in crate::kubernetes) fn take(&mut self, flags: &Flags, cluster: &ClusterSpec, variables: Variables, rest: &'static str) {
        let mut words = flags.words();
        if has_variables(cluster.minor) {
            self.shared = &[SHARED];
            for (variable, names) in variables {
                if names.is_empty() {
                    self.shared_variables.push(variable);
                    continue;
                }
                let (here, left): (Vec<_>, Vec<_>) = words.into_iter().partition(|word| names.contains(&name_of(word)));
                self.variables.push((variable, joined(&here)));
                words = left;
            }
        }
        self.variables.push((rest, joined(&words)));
    }

    /// Adds file, drop-in and unit to the component's part; the gate is its own.
    pub(in crate::kubernetes) fn add(self, part: &mut Desired) {
        let folder = format!("/etc/systemd/system/{}.d", self.unit);
        let drop_in = format!("{folder}/50-heat-node-agent.conf");
        let mut assignments = String::from(MADE);
        for (key, value) in self.unexpanded.iter().chain(&self.variables) {
            assignments.push_str(&line(key, value));
        }
        part.directories.push(directory(&folder));
        let mode = if self.secret { 0o600 } else { 0o644 };
        let text = self.drop_in();
        part.files.push(File {
            path: self.environment_file.to_owned(),
            mode,
            owner: Owner::root(),
            content: assignments,
            secret: self.secret,
        });
        part.files.push(File::public(drop_in.clone(), text));
        let own = [drop_in, self.environment_file.to_owned()].into_iter();
        let restart_on = own.chain(self.shared.iter().map(|&path| path.to_owned())).chain(self.restart_on).gather();
        part.units.push(Unit { name: self.unit.to_owned(), enable: true, restart_on, needs: self.needs, applies_files: false });
    }

    fn drop_in(&self) -> String {
        let mut out = format!("# Made by heat-node-agent.\n[Unit]\n{GUARDED}");
        if !self.after.is_empty() {
            out.push_str(&format!("After={}\n", self.after.join(" ")));
        }
        out.push_str(&self.unit_lines);
        out.push_str(
            "# With Restart=always: never give up on a service that waits for its peers.\nStartLimitIntervalSec=0\n\n[Service]\n",
        );
        out.push_str("# The empty lines clear the image's own settings, so that only ours apply.\nEnvironmentFile=\n");
        for path in self.shared.iter().chain([&self.environment_file]) {
            out.push_str(&format!("EnvironmentFile={path}\n"));
        }
        let own = self.variables.iter().map(|(key, _)| key);
        let words: String = self.shared_variables.iter().chain(own).map(|key| format!(" ${key}")).collect();
        out.push_str(&format!("ExecStart=\nExecStart={}{words}\nRestart=always\nRestartSec=5\n", self.program));
        out.push_str(&self.service_lines);
        out
    }
}

/// `/etc/kubernetes/config`: what every component of the first releases reads (magnum-node.md 1.0). With TLS the server
/// stands in each component's kubeconfig.
pub(in crate::kubernetes) fn shared_part(spec: &NodeSpec, cluster: &ClusterSpec, _facts: &MachineFacts) -> Desired {
    if !has_variables(cluster.minor) {
        return Desired::default();
    }
    let role = spec.role;
    let master = if cluster.tls { String::new() } else { quoted(&format!("--master={}", cluster.server(role))) };
    let mut out = String::from(MADE);
    for (key, value) in [
        ("KUBE_LOGTOSTDERR", "--logtostderr=true"),
        ("KUBE_LOG_LEVEL", "--v=0"),
        ("KUBE_ALLOW_PRIV", &format!("--allow-privileged={}", cluster.control_plane.allow_privileged)),
        ("KUBE_MASTER", &master),
    ] {
        out.push_str(&line(key, value));
    }
    Desired { files: vec![File::public(SHARED, out)], ..Desired::default() }
}

fn joined(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// `v` of `--v=2`.
fn name_of(word: &str) -> &str {
    word.trim_start_matches('-').split('=').next().unwrap_or_default()
}

/// A start takes as long as it takes. 0 is no limit to every systemd; before 229 `infinity` is a limit that is over at once
/// (issue 629 of buildkite/elastic-ci-stack-for-aws, with systemd 219).
pub(in crate::kubernetes) const NO_START_TIMEOUT: &str = "TimeoutStartSec=0\n";

/// Waits for room on a store before its program starts, which would end at once, again and again. A `df` that fails holds up nobody.
pub(in crate::kubernetes) fn wait_for_space(store: &str) -> String {
    let least = LEAST_FREE >> 10;
    format!(
        "ExecStartPre=/bin/sh -c 'while set -- $$(df -Pk {store} | tail -n 1); [ \"$$4\" -lt {least} ]; do \
         echo \"{store} is full: waiting for {} MiB\"; sleep 10; done'\n",
        least >> 10
    )
}

/// The store on a volume for whose free space this unit waits before its program starts.
#[must_use]
pub fn awaited_store<'a>(desired: &'a Desired, unit: &str) -> Option<&'a str> {
    let drop_ins = format!("/etc/systemd/system/{unit}.d/");
    let waits = |store: &&str| {
        let line = wait_for_space(store);
        desired.files.iter().any(|file| file.path.starts_with(&drop_ins) && file.content.contains(&line))
    };
    desired.volumes.iter().map(|volume| volume.mount_point.as_str()).find(waits)
}

/// How many good answers in a row make the gate of a service pass (magnum-node.md 7.2 no. 22).
pub(in crate::kubernetes) const GOOD_IN_A_ROW: u8 = 3;

/// How long a gate of this node alone is waited for, by what it speaks for: so long that nothing of a slow cloud ends a node (cold
/// disks, stolen processors, a unit that pulls its image first), so short that no wait condition of hours hides a dead service.
///
/// What another machine holds up has no deadline but the run's: the API of a worker, and with it its kube-proxy; a node's
/// registration; several members of etcd; leases and routes of pods; and OpenStack, which a built-in cloud provider asks before its
/// component is healthy.
pub(in crate::kubernetes) mod deadline {
    use std::time::Duration;

    /// Settings of the kernel are there once their helper ran; what is left is for a module that comes a moment later.
    pub(in crate::kubernetes) const KERNEL: Duration = Duration::from_mins(2);
    /// What reads little before it answers: kubelet, kube-proxy, scheduler, controller manager.
    pub(in crate::kubernetes) const SERVICE: Duration = Duration::from_mins(10);
    /// What first reads all that it keeps: etcd its snapshot and log, up to gigabytes; the API server everything in etcd; engines
    /// their images and containers.
    pub(in crate::kubernetes) const STORE: Duration = Duration::from_mins(20);
}

/// A component's deadline, unless it ends where OpenStack does not answer it.
pub(in crate::kubernetes) fn unless_cloud(cluster: &ClusterSpec, deadline: Duration) -> Option<Duration> {
    Some(deadline).filter(|_| !cluster.has_built_in_cloud())
}

/// Whom a component is shown when it is asked how it is.
pub(in crate::kubernetes) enum ProbeIdentity {
    /// Nobody; an https server is signed by this CA.
    Nobody(Option<&'static str>),
    /// This node, where the component serves TLS.
    Known(ClientIdentity),
}

/// A gate that asks a component of this node over HTTP until it answers `ok`.
pub(in crate::kubernetes) fn ok_gate(
    name: &str,
    unit: &str,
    url: String,
    asks: ProbeIdentity,
    deadline: Option<Duration>,
) -> Gate {
    let (ca, identity) = match asks {
        ProbeIdentity::Nobody(ca) => (ca, None),
        ProbeIdentity::Known(identity) => (None, Some(identity)),
    };
    let with = ca.map_or_else(|| curl_options(identity.as_ref()), |path| format!("--max-time 5 --cacert {path} "));
    Gate {
        name: name.to_owned(),
        unit: Some(unit.to_owned()),
        remedy: format!("`journalctl -u {unit} -n 50`; `curl {with}{url}`"),
        probe: GateProbe::Http { url, body: Some("ok".to_owned()), ca: ca.map(str::to_owned), identity },
        consecutive: GOOD_IN_A_ROW,
        deadline,
        needs: BTreeSet::from([Dependency::Unit(unit.to_owned())]),
    }
}

/// What has curl show this identity and not wait forever for a process that hangs, with a space behind it.
pub(in crate::kubernetes) fn curl_options(identity: Option<&ClientIdentity>) -> String {
    let options = |one: &ClientIdentity| format!("--cacert {} --cert {} --key {} ", one.ca, one.certificate, one.key);
    format!("--max-time 5 {}", identity.map(options).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kubernetes::fixtures::{MINORS, arguments, assignments, content, master, node, spec};
    use crate::kubernetes::{MachineFacts, program_of_release, render};

    #[test]
    fn a_release_that_the_image_has_in_its_own_folder_is_run_from_there() {
        let paths = Component::ALL.map(|one| program_of_release("v1.31.3", one.as_str()));
        let facts = MachineFacts { releases: paths.into(), ..MachineFacts::default() };
        for (tag, folder) in [("v1.31.3", "/opt/kubernetes/v1.31.3/bin/"), ("v1.31.4", "")] {
            let node = render(&spec(&[("KUBE_TAG", tag)]), &facts).unwrap();
            for component in Component::ALL {
                let drop_in = content(&node, &format!("/etc/systemd/system/{component}.service.d/50-heat-node-agent.conf"));
                assert!(drop_in.contains(&format!("\nExecStart={folder}{component} $")), "{drop_in}");
            }
        }
    }

    #[test]
    fn the_first_releases_read_variables_and_the_later_ones_one() {
        let old = master(5, &[("KUBE_ALLOW_PRIV", "false")]);
        let drop_in = content(&old, "/etc/systemd/system/kube-apiserver.service.d/50-heat-node-agent.conf");
        assert!(drop_in.contains(
            "ExecStart=\nExecStart=kube-apiserver $KUBE_LOGTOSTDERR $KUBE_LOG_LEVEL $KUBE_ALLOW_PRIV $KUBE_ETCD_SERVERS $KUBE_API_ADDRESS \
             $KUBE_API_PORT $KUBE_SERVICE_ADDRESSES $KUBE_ADMISSION_CONTROL $KUBE_API_ARGS\n"
        ));
        assert!(
            drop_in.contains(
                "EnvironmentFile=\nEnvironmentFile=/etc/kubernetes/config\nEnvironmentFile=/etc/kubernetes/apiserver\n"
            )
        );
        assert_eq!(
            assignments(content(&old, "/etc/kubernetes/config")),
            [
                ("KUBE_LOGTOSTDERR", "--logtostderr=true"),
                ("KUBE_LOG_LEVEL", "--v=0"),
                ("KUBE_ALLOW_PRIV", "--allow-privileged=false"),
                ("KUBE_MASTER", "")
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
        );
        assert_eq!(old.files.iter().filter(|file| file.path == SHARED).count(), 1);
        let new = master(10, &[]);
        let drop_in = content(&new, "/etc/systemd/system/kube-apiserver.service.d/50-heat-node-agent.conf");
        assert!(drop_in.contains("ExecStart=kube-apiserver $KUBE_API_ARGS\n"));
        assert!(!drop_in.contains("/etc/kubernetes/config"));
    }

    /// magnum-node.md 7.5 no. 64 and 66, design.md 5: enabled, restarted, never on a copy of a disk, by root.
    #[test]
    fn every_component_comes_back_and_is_guarded() {
        for minor in MINORS {
            let desired = master(minor, &[]);
            for unit in ["kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
                let Some(found) = desired.units.iter().find(|one| one.name == format!("{unit}.service")) else {
                    assert!(minor < 2 && unit != "kube-apiserver", "{unit} {minor}");
                    continue;
                };
                assert!(found.enable);
                let drop_in = content(&desired, &format!("/etc/systemd/system/{unit}.service.d/50-heat-node-agent.conf"));
                for line in
                    ["Restart=always\n", "StartLimitIntervalSec=0\n", "User=root\n", "Requires=heat-node-agent-guard.service\n"]
                {
                    assert!(drop_in.contains(line), "{unit} {minor} {line}");
                }
            }
        }
    }

    /// What a step waits for, and what a unit is restarted for, is there in every minor, on masters and workers.
    #[test]
    fn nothing_waits_for_what_nobody_brings() {
        use std::collections::BTreeSet;

        for minor in MINORS {
            let tag = format!("v1.{minor}.3");
            let worker = [("KUBE_TAG", tag.as_str()), ("ROLE", "minion"), ("KUBE_MASTER_IP", "192.0.2.5")];
            for desired in [master(minor, &[]), node(&worker)] {
                let all = desired.directories.iter().flat_map(|one| &one.needs);
                let all = all.chain(desired.units.iter().flat_map(|one| &one.needs));
                for need in all.chain(desired.gates.iter().flat_map(|one| &one.needs)) {
                    assert!(desired.provides(need), "{need:?} {minor}");
                }
                for unit in &desired.units {
                    for path in &unit.restart_on {
                        let there = desired.files.iter().any(|file| file.path == *path);
                        assert!(there || desired.trusted_paths().contains(path.as_str()), "{} {path} {minor}", unit.name);
                    }
                }
                // Each path once, and below a directory that is made or that every system has.
                let mut paths = BTreeSet::new();
                for file in &desired.files {
                    assert!(paths.insert(&file.path), "{} twice, {minor}", file.path);
                    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
                    let made = desired.directories.iter().any(|one| one.path == folder);
                    let usual = ["/etc", "/etc/modules-load.d", "/etc/sysctl.d", "/etc/systemd/system", "/etc/sysconfig"];
                    assert!(made || usual.contains(&folder), "{} {minor}", file.path);
                }
                let names: BTreeSet<_> = desired.gates.iter().map(|gate| &gate.name).collect();
                assert_eq!(names.len(), desired.gates.len(), "{minor}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Whatever stands in users' options or names: each line of a file assigns one of our variables, and what the unit gets are
        /// the words of the command line, no more.
        #[test]
        fn no_option_injects_a_line_a_flag_or_a_directive(
            minor in prop::sample::select(MINORS.to_vec()),
            options in "(--v=[0-9] )?(--[a-z-]{1,12}=\"?[ -~]{0,30}\"? ?){0,3}",
        ) {
            let mut spec = spec(&[("KUBE_TAG", &format!("v1.{minor}.3"))]);
            let plain = render(&spec, &MachineFacts::default()).unwrap();
            // Past the checks of parameters, which refuse most of it.
            spec.kubernetes.as_mut().unwrap().options.api_server.clone_from(&options);
            let desired = render(&spec, &MachineFacts::default()).unwrap();
            let path = "/etc/kubernetes/apiserver";
            let keys = |desired| assignments(content(desired, path)).into_iter().map(|(key, _)| key).collect::<Vec<_>>();
            prop_assert_eq!(keys(&desired), keys(&plain));
            let drop_in = "/etc/systemd/system/kube-apiserver.service.d/50-heat-node-agent.conf";
            prop_assert_eq!(content(&desired, drop_in), content(&plain, drop_in));
            let mut flags = Flags::new(Component::ApiServer, Minor::of_tag(&format!("v1.{minor}")).unwrap());
            drop(flags.add_user_options(&options));
            let found = arguments(&desired, "kube-apiserver.service");
            for word in flags.words() {
                prop_assert!(found.contains(&word), "{} {:?}", word, found);
            }
            for word in &found {
                prop_assert!(word.starts_with("--") && !word.contains(['\n', '\r']), "{:?}", found);
            }
        }
    }
}
