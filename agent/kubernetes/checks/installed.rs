//! Whether the programs that are installed take what the parameters ask of them, before anything is written or stopped.
//!
//! In: a rendered node, and what each of its programs says of its release. Out: a [`ProgramVerdict`] a program. Only what a release is
//! known not to take is refused. Programs in containers (podman, system containers) are not asked: their release is that of an
//! image, which `KUBE_TAG` itself names.

use crate::budgets::json;
use crate::desired::Desired;
use crate::kubernetes::control_plane::{etcd, etcd_access};
use crate::kubernetes::parts::docker;
use crate::kubernetes::parts::etcd_release;
use crate::kubernetes::parts::paths::CNI_PROGRAMS;
use crate::kubernetes::spec::cluster::ClusterSpec;
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::spec::words::RuntimeKind;
use crate::kubernetes::text::environment;
use crate::kubernetes::versions::{CommandLine, Companion, Component, Minor, companion_flag, quoted, split};
use crate::kubernetes::worker::kube_proxy;
use crate::network::CNI_NETWORK;
use crate::network::flannel::{self, Api, Version, version_of};
use crate::report::text::{escaped, shortened};
use crate::storage::driver::{check_version, dropped_by};

/// A program whose release matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// The unit that runs it.
    pub unit: &'static str,
    /// Its file's name.
    pub name: &'static str,
    kind: ProgramKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProgramKind {
    Kubernetes(Component),
    Etcd,
    Flanneld,
    Docker,
    Containerd,
}

/// All that are asked.
const PROGRAMS: [Program; 9] = [
    kubernetes("kube-apiserver.service", Component::ApiServer),
    kubernetes("kube-controller-manager.service", Component::ControllerManager),
    kubernetes("kube-scheduler.service", Component::Scheduler),
    kubernetes("kubelet.service", Component::Kubelet),
    kubernetes("kube-proxy.service", Component::Proxy),
    Program { unit: "etcd.service", name: "etcd", kind: ProgramKind::Etcd },
    Program { unit: "flanneld.service", name: "flanneld", kind: ProgramKind::Flanneld },
    Program { unit: docker::UNIT, name: "dockerd", kind: ProgramKind::Docker },
    Program { unit: "containerd.service", name: "containerd", kind: ProgramKind::Containerd },
];

const fn kubernetes(unit: &'static str, component: Component) -> Program {
    Program { unit, name: component.as_str(), kind: ProgramKind::Kubernetes(component) }
}

/// What is to be made of an installed program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramVerdict {
    /// What it is known not to take: the node is not begun.
    pub refused: Vec<String>,
    /// What may be other than meant.
    pub warning: Option<String>,
    /// Whether that is so because its release is not known.
    pub is_unknown: bool,
    /// What the operator can do.
    pub remedy: String,
    /// A program that this one runs, where it is about that one.
    pub helper: Option<&'static str>,
}

impl ProgramVerdict {
    fn warning(cause: String, remedy: String) -> Self {
        Self { warning: Some(cause), remedy, ..Self::default() }
    }

    /// Nothing is known of its release.
    #[must_use]
    pub fn unknown(cause: String, remedy: String) -> Self {
        Self { is_unknown: true, ..Self::warning(cause, remedy) }
    }

    fn refused(cause: String, remedy: String) -> Self {
        Self { refused: vec![cause], remedy, ..Self::default() }
    }

    /// It is about a program that this one runs.
    fn of_helper(self, helper: &'static str) -> Self {
        Self { helper: Some(helper), ..self }
    }
}

/// The programs of a node's units, as far as it matters of which release they are.
pub fn programs<'a>(spec: &'a NodeSpec, desired: &'a Desired) -> impl Iterator<Item = Program> + 'a {
    let matters = |program: &Program| match program.kind {
        ProgramKind::Docker => dropped_by(spec.storage.driver).is_some(),
        _ => spec.kubernetes.is_some(),
    };
    // One whose start is blocked is not run.
    let is_present = |program: &Program| desired.units.iter().any(|unit| unit.name == program.unit && !unit.applies_files);
    PROGRAMS.into_iter().filter(move |program| matters(program) && is_present(program))
}

/// Where the programs of CNI lie that the runtime runs for the network that the agent describes, each with what it is for; nothing
/// where the network is another's to describe.
///
/// flannel's has the bridge made by `bridge`, whose addresses are `host-local`'s; runtimes set up the loopback of every pod by
/// `loopback` (go-cni of containerd, ocicni of CRI-O, dockershim and cri-dockerd).
#[must_use]
pub fn cni_programs(desired: &Desired) -> Vec<String> {
    let Some(file) = desired.file(CNI_NETWORK) else { return Vec::new() };
    let Ok(network) = json::typed::<serde_json::Value>(&file.content) else { return Vec::new() };
    let plugins = network.get("plugins").and_then(serde_json::Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut names = vec!["loopback"];
    for plugin in plugins {
        let kind = plugin.get("type").and_then(serde_json::Value::as_str);
        let delegates: &[&str] = if kind == Some("flannel") { &["bridge", "host-local"] } else { &[] };
        for name in kind
            .into_iter()
            .chain(plugin.pointer("/ipam/type").and_then(serde_json::Value::as_str))
            .chain(delegates.iter().copied())
        {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names.into_iter().map(|name| format!("{CNI_PROGRAMS}/{name}")).collect()
}

/// What it means that some of them are not there.
#[must_use]
pub fn lacks_cni(missing: &[String]) -> ProgramVerdict {
    let cause = format!("these CNI plugins are not installed: {}", missing.join(", "));
    let remedy = format!(
        "install them in the image (the CNI project's plugins, and flannel's own for flannel), or link {CNI_PROGRAMS} to where they are; without them no pod gets a network"
    );
    ProgramVerdict::refused(cause, remedy)
}

/// The program that forwards ports of pods (`kubectl port-forward`) where the kubelet speaks to docker itself, up to 1.23: it looks for it
/// in its own PATH, and runs it in the pod's network by `nsenter`. Other runtimes forward by themselves.
pub const FORWARDER: &str = "socat";

/// Whether the kubelet runs [`FORWARDER`].
#[must_use]
pub fn needs_forwarder(spec: &NodeSpec) -> bool {
    let runtime = spec.kubernetes.as_ref().map(|cluster| &cluster.runtime);
    runtime.is_some_and(|runtime| runtime.kind == RuntimeKind::Docker && !runtime.cri_dockerd)
}

/// What it means that it is not there.
#[must_use]
pub fn lacks_forwarder() -> ProgramVerdict {
    ProgramVerdict::warning(
        format!("{FORWARDER} is not installed: `kubectl port-forward` to pods of this node fails"),
        format!("install {FORWARDER} in the image; the kubelet runs it where it uses docker without cri-dockerd"),
    )
    .of_helper(FORWARDER)
}

/// The program by which kube-proxy keeps, in mode ipvs, the sets of addresses that its rules match. It looks for it in its own PATH, and without it uses
/// mode iptables with no more than a line in its log (`CanUseIPVSProxier` of Kubernetes 1.20), or ends.
pub const SETS: &str = "ipset";

/// Whether kube-proxy runs [`SETS`].
#[must_use]
pub fn needs_sets(spec: &NodeSpec) -> bool {
    spec.kubernetes.as_ref().and_then(kube_proxy::mode).as_deref() == Some("ipvs")
}

/// What it means that it is not there.
#[must_use]
pub fn lacks_sets() -> ProgramVerdict {
    ProgramVerdict::refused(
        format!("{SETS} is not installed: kube-proxy does not work in mode ipvs without it"),
        format!("install {SETS} in the image, or give another mode"),
    )
    .of_helper(SETS)
}

/// Where a unit finds the program, by the text of its unit file or drop-in: a path, or a name that systemd looks up. None where
/// the text runs nothing, or runs it elsewhere than on the host.
#[must_use]
pub fn command<'a>(program: &Program, text: &'a str) -> Option<&'a str> {
    let line = text.lines().rev().find_map(|line| line.strip_prefix("ExecStart=").filter(|line| !line.is_empty()))?;
    let name = |word: &'a str| word.rsplit('/').next().unwrap_or_default();
    let mut words = line.trim_start_matches(['@', '-', ':', '+', '!', '|']).split([' ', '"', '\'', '=']);
    let first = words.next()?;
    if matches!(name(first), "podman" | "docker" | "runc" | "atomic" | "nerdctl" | "ctr") {
        return None;
    }
    // A shell may stand before it: CentOS 7 starts etcd so.
    std::iter::once(first).chain(words.filter(|word| word.starts_with('/'))).find(|word| name(word) == program.name)
}

/// Characters that are shown of what a program says of itself where that is no release.
const SHOWN: usize = 80;

/// What an installed program makes of what is asked of it. `reported` is what it says of its release, `flanneld` the release of
/// flannel that is installed, if that is known.
#[must_use]
pub fn judge(spec: &NodeSpec, desired: &Desired, program: &Program, reported: &str, flanneld: Option<Version>) -> ProgramVerdict {
    let name = program.name;
    let Some(release) = version_of(reported) else {
        let cause = format!("`{name} --version` prints no release: \"{}\"", escaped(&shortened(reported.trim(), SHOWN)));
        return ProgramVerdict::unknown(cause, format!("check what is installed as {name}; its flags are not checked"));
    };
    match (program.kind, &spec.kubernetes) {
        (ProgramKind::Kubernetes(component), Some(cluster)) => of_kubernetes(cluster, desired, program, component, release),
        (ProgramKind::Etcd, Some(cluster)) => of_etcd(cluster, desired, release, flanneld),
        (ProgramKind::Flanneld, Some(cluster)) => of_flanneld(cluster, desired, program, release),
        (ProgramKind::Containerd, Some(cluster)) => of_containerd(cluster, release),
        (ProgramKind::Docker, _) => of_docker(spec, release),
        _ => ProgramVerdict::default(),
    }
}

fn of_kubernetes(
    cluster: &ClusterSpec,
    desired: &Desired,
    program: &Program,
    component: Component,
    (major, minor): Version,
) -> ProgramVerdict {
    let asked = cluster.minor;
    if (major, minor) == (1, asked.number()) {
        return ProgramVerdict::default();
    }
    let what = format!("{component} {major}.{minor} is installed, but KUBE_TAG is {}", cluster.tag);
    let remedy = format!(
        "set KUBE_TAG to v{major}.{minor} in the template and update the stack, or use an image with {component} {asked}"
    );
    let Some(installed) = Minor::of_tag(&format!("v{major}.{minor}")) else { return ProgramVerdict::warning(what, remedy) };
    let text = words(desired, program.unit).iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
    let checked = CommandLine::new(component, installed).add_user_options(&text);
    let refused: Vec<String> = checked.mistakes.into_iter().map(|(cause, ..)| cause).collect();
    if refused.is_empty() {
        return ProgramVerdict::warning(format!("{what}; it supports every flag that is required"), remedy);
    }
    ProgramVerdict::refused(format!("{what}: {}", refused.join("; ")), remedy)
}

/// Against an etcd that takes every client of its CA.
const ETCD_REMEDY: &str = "use an image with etcd 3.4 or later, or give etcd its own CA (ETCD_CA_CERTIFICATE and CA_CERTIFICATE as text, with different keys)";

/// What etcd does not know of its environment it passes over: also that clients must show certificates, or that the v2 API is on.
fn of_etcd(cluster: &ClusterSpec, desired: &Desired, release: Version, flanneld: Option<Version>) -> ProgramVerdict {
    let (major, minor) = release;
    let remedy =
        format!("set ETCD_TAG to {major}.{minor} in the template and update the stack, or use an image with another etcd");
    let installed = format!("etcd {major}.{minor} is installed");
    let settings = desired.file(etcd::SETTINGS).map_or("", |file| file.content.as_str());
    for key in settings.lines().filter_map(|line| line.split_once('=')).map(|(key, _)| key).filter(|key| *key != etcd::ENABLE_V2)
    {
        let flag = key.trim_start_matches("ETCD_").to_ascii_lowercase().replace('_', "-");
        let gone = major >= 3 && companion_flag(Companion::Etcd, minor, &flag) == Some(false);
        if gone || (release < etcd_release::TRUSTED_CA && key.ends_with("TRUSTED_CA_FILE")) {
            return ProgramVerdict::refused(format!("{installed}, which ignores {key}"), remedy);
        }
    }
    let unnamed = unnamed_clients(desired, release);
    if let Some(cause) = unnamed.as_ref().filter(|_| cluster.lets_join_by_token()) {
        return ProgramVerdict::refused(format!("{cause}; anyone with BOOTSTRAP_TOKEN can get one"), ETCD_REMEDY.to_owned());
    }
    // flanneld itself says best by which API it asks.
    let by_flannel = match flanneld {
        Some(release) if cluster.has_flannel_unit() => flannel::api(release) == Api::V2,
        _ => etcd::flannel_needs_v2(cluster),
    };
    let for_kubernetes = etcd::keeps_v2(cluster);
    if for_kubernetes || by_flannel {
        let who = if for_kubernetes { format!("Kubernetes {}", cluster.minor) } else { "flanneld".to_owned() };
        let off = companion_flag(Companion::Etcd, minor, "enable-v2") == Some(false);
        if major >= 3 && off {
            let cause = format!("{installed}, which has no v2 API (no --enable-v2); {who} uses it");
            return ProgramVerdict::refused(
                cause,
                "use an image with etcd 3.5 or older, or with flanneld 0.18 or later".to_owned(),
            );
        }
        if etcd::HIDDEN_V2.contains(&release) && variable(desired, etcd::SETTINGS, etcd::ENABLE_V2).is_none() {
            let cause =
                format!("{installed}, where the v2 API is off; {who} uses it, and ETCD_TAG names a release where it is on");
            return ProgramVerdict::refused(cause, remedy);
        }
    }
    if let Some(cause) = unnamed {
        return ProgramVerdict::warning(cause, ETCD_REMEDY.to_owned());
    }
    match etcd_release::asked(cluster) {
        Some(asked) if asked != release => ProgramVerdict::warning(
            format!("{installed}, but ETCD_TAG is {}.{}; it supports every setting", asked.0, asked.1),
            remedy,
        ),
        _ => ProgramVerdict::default(),
    }
}

/// What it means that the release does not ask clients for their name.
fn unnamed_clients(desired: &Desired, (major, minor): Version) -> Option<String> {
    variable(desired, etcd_access::FILE, etcd_access::CLIENT_VARIABLE)?;
    let knows = major >= 3 && companion_flag(Companion::Etcd, minor, etcd_access::CLIENT_FLAG) != Some(false);
    (!knows).then(|| {
        let (variable, rule) = (etcd_access::CLIENT_VARIABLE, etcd_access::RULE);
        format!("etcd {major}.{minor} is installed, which ignores {variable}: {rule}")
    })
}

fn of_flanneld(cluster: &ClusterSpec, desired: &Desired, program: &Program, release: Version) -> ProgramVerdict {
    let installed = format!("flanneld {}.{} is installed", release.0, release.1);
    let asked = cluster.networks.flannel.tag.as_deref().and_then(version_of);
    let remedy = format!(
        "set FLANNEL_TAG to v{}.{}.0 in the template and update the stack, or use an image with another flanneld",
        release.0, release.1
    );
    let unknown: Vec<String> = words(desired, program.unit)
        .into_iter()
        .filter_map(|word| word.trim_start_matches('-').split('=').next().map(str::to_owned))
        .filter(|flag| release.0 == 0 && companion_flag(Companion::Flanneld, release.1, flag) == Some(false))
        .collect();
    if !unknown.is_empty() {
        return ProgramVerdict::refused(format!("{installed}, which has no flag -{}", unknown.join(", -")), remedy);
    }
    match asked {
        Some(asked) if asked != release => {
            ProgramVerdict::warning(format!("{installed}, but FLANNEL_TAG is {}.{}", asked.0, asked.1), remedy)
        }
        _ => ProgramVerdict::default(),
    }
}

/// The first containerd with CRI v1 (its release notes).
const CRI_V1: Version = (1, 6);
/// The first Kubernetes minor whose kubelet has only that (Kubernetes' changelog of 1.26).
const CRI_V1_ONLY: u16 = 26;

fn of_containerd(cluster: &ClusterSpec, (major, minor): Version) -> ProgramVerdict {
    let RuntimeKind::Containerd(asked, _) = cluster.runtime.kind else { return ProgramVerdict::default() };
    if (major, minor) < CRI_V1 && cluster.minor.number() >= CRI_V1_ONLY {
        let cause = format!(
            "containerd {major}.{minor} is installed, which has no CRI v1; the kubelet of {} supports no other",
            cluster.tag
        );
        let remedy = "use an image with containerd 1.6 or later, or set KUBE_TAG below 1.26 in the template and update the stack";
        return ProgramVerdict::refused(cause, remedy.to_owned());
    }
    let remedy = format!(
        "set CONTAINERD_VERSION to {major}.{minor}.0 in the template and update the stack, or use an image with containerd {asked}"
    );
    let what = format!("containerd {major}.{minor} is installed, but config.toml would be written for containerd {asked}");
    match major.cmp(&asked) {
        std::cmp::Ordering::Less => {
            ProgramVerdict::refused(format!("{what}, in a format that the older release rejects"), remedy)
        }
        std::cmp::Ordering::Equal => ProgramVerdict::default(),
        std::cmp::Ordering::Greater => ProgramVerdict::warning(format!("{what}, in an old format that it still accepts"), remedy),
    }
}

fn of_docker(spec: &NodeSpec, release: Version) -> ProgramVerdict {
    let Err(error) = check_version(spec.storage.driver, release) else { return ProgramVerdict::default() };
    let cause = format!("{}; {}", error.cause(), error.broken_rule().unwrap_or_default());
    ProgramVerdict::refused(cause, error.suggested_remedy().unwrap_or_default().to_owned())
}

/// The flags that a unit's program gets: the variables that its command line names, out of its environment files.
fn words(desired: &Desired, unit: &str) -> Vec<String> {
    let content = |path: &str| desired.file(path).map_or("", |file| file.content.as_str());
    let drop_in = content(&format!("/etc/systemd/system/{unit}.d/50-heat-node-agent.conf"));
    let command = drop_in.lines().rev().find_map(|line| line.strip_prefix("ExecStart=").filter(|line| !line.is_empty()));
    let names = command.unwrap_or_default().split(' ').filter_map(|word| word.strip_prefix('$'));
    let files: Vec<&str> = drop_in.lines().filter_map(|line| line.strip_prefix("EnvironmentFile=")).collect();
    let value = |name: &str| files.iter().rev().find_map(|path| variable(desired, path, name)).unwrap_or_default();
    names.flat_map(|name| split(&value(name)).unwrap_or_default()).collect()
}

/// What an environment file sets a variable to.
fn variable(desired: &Desired, path: &str, name: &str) -> Option<String> {
    desired.file(path)?.content.lines().find_map(|line| environment::value(line, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fixtures::{ETCDS_OWN, MINORS, spec};
    use crate::kubernetes::{MachineFacts, render};

    fn verdict(changes: &[(&str, &str)], name: &str, reported: &str, flanneld: Option<Version>) -> ProgramVerdict {
        let spec = spec(changes);
        let desired = render(&spec, &MachineFacts::default()).unwrap();
        let program =
            programs(&spec, &desired).find(|program| program.name == name).unwrap_or_else(|| panic!("no {name}: {changes:?}"));
        judge(&spec, &desired, &program, reported, flanneld)
    }

    #[test]
    fn the_cni_programs_of_the_agents_own_network_are_known_with_their_delegates() {
        let containerd = ("CONTAINER_RUNTIME", "containerd");
        let routes = ("NODE_SUBNETS", "192.0.2.11=10.100.1.0/24,192.0.2.12=10.100.2.0/24");
        let static_routes = ("NETWORK_DRIVER", "static-routes");
        for (changes, expected) in [
            (
                &[("KUBE_TAG", "v1.20.4"), containerd, ("FLANNEL_RUNS_AS", "unit")][..],
                "loopback flannel bridge host-local portmap",
            ),
            (&[("KUBE_TAG", "v1.20.4"), containerd, static_routes, routes], "loopback bridge host-local portmap"),
            (&[("KUBE_TAG", "v1.28.4"), static_routes, routes], "loopback bridge host-local portmap"),
            // On docker's own bridge, and where an add-on brings network and programs.
            (&[("KUBE_TAG", "v1.20.4"), ("CONTAINER_RUNTIME", "docker"), static_routes, routes], ""),
            (&[("KUBE_TAG", "v1.20.4"), containerd], ""),
            (&[("KUBE_TAG", "v1.20.4"), containerd, ("NETWORK_DRIVER", "calico")], ""),
        ] {
            let desired = render(&spec(changes), &MachineFacts::default()).unwrap();
            let found: Vec<_> = cni_programs(&desired).iter().map(|path| path.replace("/opt/cni/bin/", "")).collect();
            assert_eq!(found.join(" "), expected, "{changes:?}");
        }
    }

    #[test]
    fn what_a_release_is_known_not_to_take_is_refused_and_nothing_else() {
        const FITS: &str = "";
        const TOKEN: (&str, &str) = ("BOOTSTRAP_TOKEN", "abcdef.0123456789abcdef");
        let (old, new) = ("Kubernetes v1.20.15\n", "Kubernetes v1.31.2");
        let (asked_old, asked_new) = (("KUBE_TAG", "v1.20.4"), ("KUBE_TAG", "v1.31.0"));
        let containerd = [("CONTAINER_RUNTIME", "containerd"), ("CONTAINERD_VERSION", "2.0.1")];
        let pool =
            [asked_old, ("DOCKER_STORAGE_DRIVER", "devicemapper"), ("DOCKER_VOLUME", "7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4")];
        let flannel = ("KUBE_TAG", "v1.9.6");
        let own = [&[asked_new, TOKEN], ETCDS_OWN].concat();
        // What is asked, the program, what it says, the release of flannel; "refused: " or "warning: ", and words of why.
        for (changes, name, reported, flanneld, expected) in [
            (&[asked_new][..], "kube-apiserver", new, None, FITS),
            (&[asked_new], "kube-scheduler", "Kubernetes v1.30.9", None, "warning: it supports every flag"),
            (&[asked_new], "kubelet", "sorry\n", None, "warning: prints no release"),
            (
                &[asked_new, ("KUBEAPI_OPTIONS", "--shutdown-send-retry-after=true")],
                "kube-apiserver",
                old,
                None,
                "refused: kube-apiserver 1.20 is installed, but KUBE_TAG is v1.31.0: --shutdown-send-retry-after was added in kube-apiserver 1.23",
            ),
            (
                &[asked_old, ("CONTAINER_RUNTIME", "docker")],
                "kubelet",
                new,
                None,
                "refused: was removed: kubelet 1.23 is the last",
            ),
            (&[asked_old], "kube-proxy", "Kubernetes v0.19.3", None, "warning: kube-proxy 0.19 is installed"),
            (&[asked_new], "etcd", "etcd Version: 3.4.23\nGit SHA: Not provided\n", None, FITS),
            (&[asked_new, ("ETCD_TAG", "3.5.12")], "etcd", "etcd Version: 3.4.23", None, "warning: ETCD_TAG is 3.5"),
            (&[asked_new], "etcd", "etcd Version: 3.3.25", None, "warning: ETCD_CLIENT_CERT_ALLOWED_HOSTNAME: any certificate"),
            (&[asked_new, TOKEN], "etcd", "etcd Version: 3.3.25", None, "refused: ignores ETCD_CLIENT_CERT_ALLOWED_HOSTNAME"),
            (&[asked_new, TOKEN], "etcd", "etcd Version: 3.4.0", None, FITS),
            (&own[..], "etcd", "etcd Version: 3.3.25", None, FITS),
            (&[asked_new], "etcd", "etcd Version: 2.0.11", None, "refused: ignores ETCD_TRUSTED_CA_FILE"),
            (&[("KUBE_TAG", "v1.1.8")], "etcd", "etcd Version: 3.5.0", None, "refused: ignores ETCD_CA_FILE"),
            (&[flannel], "etcd", "etcd Version: 3.6.1", None, "refused: has no v2 API"),
            (&[flannel], "etcd", "etcd Version: 3.6.1", Some((0, 20)), FITS),
            (&[flannel], "etcd", "etcd Version: 3.4.23", Some((0, 9)), FITS),
            (
                &[flannel, ("ETCD_TAG", "3.3.10")],
                "etcd",
                "etcd Version: 3.4.23",
                Some((0, 9)),
                "refused: where the v2 API is off",
            ),
            (&[flannel, ("ETCD_TAG", "3.3.10")], "etcd", "etcd Version: 3.3.25", Some((0, 9)), FITS),
            (&[flannel, ("FLANNEL_TAG", "v0.9.1")], "flanneld", "v0.9.0", None, FITS),
            (&[flannel, ("FLANNEL_TAG", "v0.9.1")], "flanneld", "flannel v0.15.1", None, "warning: FLANNEL_TAG is 0.9"),
            (
                &containerd,
                "containerd",
                "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+b1",
                None,
                "refused: older",
            ),
            (&containerd, "containerd", "containerd containerd.io v2.1.3 dafea", None, FITS),
            (&containerd[..1], "containerd", "containerd containerd.io v2.1.3 dafea", None, "warning: still accepts"),
            (
                &[asked_new, containerd[0]],
                "containerd",
                "containerd github.com/containerd/containerd 1.4.13~ds1 1.4.13~ds1-1~deb11u4",
                None,
                "refused: 1.4 is installed, which has no CRI v1",
            ),
            (
                &[asked_new, containerd[0]],
                "containerd",
                "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+b1",
                None,
                FITS,
            ),
            (
                &[asked_old, containerd[0]],
                "containerd",
                "containerd github.com/containerd/containerd 1.4.13~ds1 1.4.13~ds1-1~deb11u4",
                None,
                FITS,
            ),
            (&pool, "dockerd", "Docker version 25.0.3, build f417435", None, "refused: docker 25 dropped devicemapper"),
            (&pool, "dockerd", "Docker version 20.10.24+dfsg1, build 297e128", None, FITS),
        ] {
            let found = verdict(changes, name, reported, flanneld);
            let text = match (&found.warning, found.refused.is_empty()) {
                (Some(warning), true) => format!("warning: {warning}"),
                (None, false) => format!("refused: {}", found.refused.join("; ")),
                (None, true) => String::new(),
                (Some(_), false) => panic!("{found:?}"),
            };
            let (kind, words) = expected.split_once(' ').unwrap_or_default();
            assert!(
                text.starts_with(kind) && text.contains(words) && text.is_empty() == expected.is_empty(),
                "{changes:?} {reported}: {text}"
            );
            assert_eq!(found.remedy.is_empty(), expected.is_empty(), "{found:?}");
        }
    }

    /// So what an installed release is found not to take is always because it is another one.
    #[test]
    fn nothing_is_asked_of_a_release_that_its_own_table_refuses() {
        for minor in MINORS {
            for role in ["master", "minion"] {
                let tag = format!("v1.{minor}.3");
                let given = [("KUBE_TAG", tag.as_str()), ("ROLE", role), ("CERTIFICATES", "given")];
                let addresses = [("KUBE_MASTER_IP", "192.0.2.5"), ("ETCD_SERVER_IP", "192.0.2.6")];
                let spec = spec(&[&given[..], &addresses].concat());
                let desired = render(&spec, &MachineFacts::default()).unwrap();
                let mut asked = 0;
                for program in programs(&spec, &desired) {
                    let ProgramKind::Kubernetes(component) = program.kind else { continue };
                    let text = words(&desired, program.unit).iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
                    asked += usize::from(!text.is_empty());
                    let mistakes =
                        CommandLine::new(component, spec.kubernetes.as_ref().unwrap().minor).add_user_options(&text).mistakes;
                    assert!(mistakes.is_empty(), "1.{minor} {role} {component}: {mistakes:?}");
                }
                assert!(asked >= 2, "1.{minor} {role}");
            }
        }
    }

    /// What a build has by a patch is in no release's table, and not held against one.
    /// dockershim ran it for each forwarded port; every CRI runtime has its own way.
    #[test]
    fn socat_is_needed_only_where_the_kubelet_speaks_to_docker_itself() {
        let docker = ("CONTAINER_RUNTIME", "docker");
        for (changes, expected) in [
            (&[("KUBE_TAG", "v1.20.4"), docker][..], true),
            (&[("KUBE_TAG", "v1.23.17"), docker], true),
            (&[("KUBE_TAG", "v1.24.0"), docker], false),
            (&[("KUBE_TAG", "v1.20.4"), ("CONTAINER_RUNTIME", "containerd")], false),
            (&[("KUBE_TAG", ""), ("TLS_DISABLED", "true"), ("CERTIFICATES", "")], false),
        ] {
            assert_eq!(needs_forwarder(&spec(changes)), expected, "{changes:?}");
        }
    }

    #[test]
    fn ipset_is_needed_in_mode_ipvs_whichever_parameter_asks_for_it() {
        for (changes, expected) in [
            (&[][..], false),
            (&[("PROXY_MODE", "iptables")], false),
            (&[("PROXY_MODE", "ipvs")], true),
            (&[("KUBEPROXY_OPTIONS", "--v=2 --proxy-mode=ipvs")], true),
            (&[("KUBE_TAG", ""), ("TLS_DISABLED", "true"), ("CERTIFICATES", "")], false),
        ] {
            assert_eq!(needs_sets(&spec(changes)), expected, "{changes:?}");
        }
    }

    #[test]
    fn what_no_table_knows_is_not_refused() {
        let keystone = [("AUTH_URL", "https://k.example.org/v3"), ("USERNAME", "u"), ("PASSWORD", "p"), ("TENANT_NAME", "t")];
        let changes = [("KUBE_TAG", "v1.2.0"), ("TLS_DISABLED", "true"), ("CERTIFICATES", ""), ("KUBESTACK", "true")];
        let spec = spec(&[&changes[..], &keystone].concat());
        let desired = render(&spec, &MachineFacts::default()).unwrap();
        let words = words(&desired, "kube-controller-manager.service");
        assert!(words.iter().any(|word| word.starts_with("--network-provider=")), "{words:?}");
        let program = programs(&spec, &desired).find(|program| program.name == "kube-controller-manager").unwrap();
        let found = judge(&spec, &desired, &program, "Kubernetes v1.3.0", None);
        assert!(found.refused.is_empty() && found.warning.is_some(), "{found:?}");
    }

    #[test]
    fn who_is_asked_matters() {
        for (changes, names) in [
            (&[("KUBE_TAG", ""), ("TLS_DISABLED", "true"), ("CERTIFICATES", "")][..], ""),
            (
                &[("CONTAINER_RUNTIME", "containerd")],
                "kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy etcd containerd",
            ),
            (
                &[("KUBE_TAG", "v1.9.6"), ("ROLE", "minion"), ("KUBE_MASTER_IP", "192.0.2.5"), ("CONTAINER_RUNTIME", "docker")],
                "kubelet kube-proxy flanneld",
            ),
        ] {
            let spec = spec(changes);
            let desired = render(&spec, &MachineFacts::default()).unwrap();
            let found: Vec<&str> = programs(&spec, &desired).map(|program| program.name).collect();
            assert_eq!(found.join(" "), names);
        }
    }

    #[test]
    fn a_program_is_found_by_what_its_unit_runs_on_the_host() {
        let program = |name| PROGRAMS.into_iter().find(|program| program.name == name).unwrap();
        for (name, text, found) in [
            (
                "kube-apiserver",
                "[Service]\nExecStart=\nExecStart=kube-apiserver $KUBE_API_ARGS\nRestart=always\n",
                Some("kube-apiserver"),
            ),
            ("etcd", "[Service]\nExecStart=/usr/bin/etcd $DAEMON_ARGS\n", Some("/usr/bin/etcd")),
            ("etcd", "ExecStart=/bin/bash -c \"GOMAXPROCS=$(nproc) /usr/bin/etcd --name=a\"\n", Some("/usr/bin/etcd")),
            ("etcd", "ExecStart=/usr/bin/podman run --name etcd quay.io/coreos/etcd /usr/local/bin/etcd\n", None),
            ("etcd", "ExecStart=/usr/local/bin/start-etcd\n", None),
            ("dockerd", "ExecStart=-/usr/sbin/dockerd -H fd://\n", Some("/usr/sbin/dockerd")),
            ("dockerd", "[Service]\nEnvironment=A=b\n", None),
        ] {
            assert_eq!(command(&program(name), text), found, "{text}");
        }
    }
}
