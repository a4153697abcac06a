//! What this node has: programs, options, manifests; and how it reaches the API.

use std::net::IpAddr;

use super::row::{Release, Row, Verdict, most_behind, oldest_for};
use crate::desired::ClientIdentity;
use crate::kubernetes::parameters::mistake::Mistake;
use crate::kubernetes::parts::certificates::ADMIN;
use crate::kubernetes::spec::cluster::{MANIFESTS, host_of};
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::spec::words::Role;
use crate::kubernetes::versions::{Component, Minor, option, removed_annotation, removed_api};
use crate::kubernetes::worker::kubelet::{client_identity, node_object_name};

/// How a node asks the cluster's API, and what of the node a kubelet reads by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiAccess {
    /// `https`, or `http` in a cluster without TLS.
    scheme: &'static str,
    /// `KUBE_API_PORT`.
    port: u16,
    /// Base URL of the API server that this node's components use.
    pub server: String,
    /// As whom: the administrator on masters, else the kubelet; nobody in a cluster without TLS.
    pub identity: Option<ClientIdentity>,
    /// The name of the node's object.
    pub node: String,
    /// The masters that the parameters name.
    pub masters: Vec<IpAddr>,
    /// This node's own address.
    pub address: Option<IpAddr>,
    /// Where the kubelet finds its static pods.
    pub manifests: String,
    /// The add-ons that the parameters ask for.
    pub add_ons: Vec<String>,
}

impl ApiAccess {
    /// Base URL of the API server of one master.
    #[must_use]
    pub fn server_at(&self, host: &str) -> String {
        format!("{}://{host}:{}", self.scheme, self.port)
    }

    /// The masters that the parameters name, as hosts of a URL, but for this node.
    pub fn other_masters(&self) -> impl Iterator<Item = String> + '_ {
        self.masters.iter().filter(|address| Some(**address) != self.address).map(|address| host_of(*address))
    }
}

/// The access of a node; none where it is no node of Kubernetes.
#[must_use]
pub fn api_access(spec: &NodeSpec) -> Option<ApiAccess> {
    let cluster = spec.kubernetes.as_ref()?;
    let identity = || if spec.role == Role::Master { ADMIN.client() } else { client_identity(cluster) };
    Some(ApiAccess {
        scheme: if cluster.tls { "https" } else { "http" },
        port: cluster.api.port,
        server: cluster.server(spec.role),
        identity: cluster.tls.then(identity),
        node: node_object_name(cluster),
        masters: cluster.api.masters.clone(),
        address: spec.address,
        manifests: option(&cluster.options.kubelet, "pod-manifest-path").unwrap_or_else(|| MANIFESTS.to_owned()),
        add_ons: cluster.add_ons.names.clone(),
    })
}

/// A program of Kubernetes that is installed here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledRelease {
    /// Which.
    pub component: Component,
    /// What it says, or why that is not known.
    pub release: Result<Release, String>,
}

const INSTALL: &str = "install the programs of the release that is asked for, or ask for the one that is installed";

fn of<'a>(installed: &'a [InstalledRelease], those: &'a [Component]) -> impl Iterator<Item = &'a InstalledRelease> {
    installed.iter().filter(|one| those.contains(&one.component))
}

/// What the programs say, and those whose release is not known.
fn programs_row(name: &'static str, installed: &[InstalledRelease], those: &[Component]) -> Row {
    let mut row = Row::new(name);
    let known: Vec<String> =
        of(installed, those).filter_map(|one| Some(format!("{} {}", one.component, one.release.as_ref().ok()?))).collect();
    if !known.is_empty() {
        row.findings.push(format!("installed: {}", known.join(", ")));
    }
    for one in of(installed, those) {
        if let Err(cause) = &one.release {
            row.add(
                Verdict::Unknown,
                format!("{} does not say its release: {cause}", one.component),
                format!("check whether `{} --version` works", one.component),
            );
        }
    }
    if row.findings.is_empty() {
        row.add(Verdict::Unknown, "none of them was found on this host", "check what is installed");
    }
    row
}

/// kube-apiserver and kubelet as they are installed: not newer than what is asked for.
#[must_use]
pub fn installed_programs(role: Role, target: Release, installed: &[InstalledRelease]) -> Row {
    let those: &[Component] =
        if role == Role::Master { &[Component::ApiServer, Component::Kubelet] } else { &[Component::Kubelet] };
    let mut row = programs_row("programs", installed, those);
    let (mut older, mut newer) = (Vec::new(), Vec::new());
    for one in of(installed, those) {
        match &one.release {
            Ok(release) if release.minor > target.minor => newer.push(format!("{} {release}", one.component)),
            Ok(release) if release.minor < target.minor => older.push(one.component.as_str()),
            _ => {}
        }
    }
    if !newer.is_empty() {
        row.problem(format!("{} would run, which is newer than {}", newer.join(" and "), target.minor), INSTALL);
    }
    if !older.is_empty() && row.verdict == Verdict::Ok {
        row.findings.push(format!("to install before the deployment asks for {}: {}", target.minor, older.join(", ")));
    }
    row
}

/// kube-controller-manager and kube-scheduler: not newer than the API server, and one minor older at the most.
#[must_use]
pub fn controllers(target: Release, installed: &[InstalledRelease]) -> Row {
    let those = [Component::ControllerManager, Component::Scheduler];
    let mut row = programs_row("controllers", installed, &those);
    let oldest = target.minor.minus(1);
    for one in of(installed, &those) {
        let Ok(release) = &one.release else { continue };
        if release.minor > target.minor {
            row.problem(format!("{} {release} would be newer than an API server of {}", one.component, target.minor), INSTALL);
        } else if release.minor < oldest {
            row.problem(
                format!("{} {release} is more than one minor older than an API server of {}", one.component, target.minor),
                format!("go to {} first", release.minor.plus(1)),
            );
        }
    }
    row
}

/// kube-proxy: as the kubelet.
#[must_use]
pub fn proxy(target: Release, installed: &[InstalledRelease]) -> Row {
    let mut row = programs_row("kube-proxy", installed, &[Component::Proxy]);
    for one in of(installed, &[Component::Proxy]) {
        let Ok(release) = &one.release else { continue };
        if release.minor > target.minor {
            row.problem(format!("kube-proxy {release} would be newer than an API server of {}", target.minor), INSTALL);
        } else if release.minor < oldest_for(target.minor) {
            row.problem(
                format!("kube-proxy {release} is more than {} minors older than {}", most_behind(target.minor), target.minor),
                format!("go to {} or later first", oldest_for(target.minor)),
            );
        }
    }
    row
}

/// What the deployment's parameters ask for that the release does not have, or that its table does not know.
///
/// `mistakes` and `warnings` are those of the parameters with the release in `KUBE_TAG`, `before` the warnings with today's.
#[must_use]
pub fn options(target: Minor, mistakes: &[Mistake], warnings: &[Mistake], before: &[Mistake]) -> Row {
    let mut row = Row::new("parameters");
    for mistake in mistakes {
        row.problem(format!("{}: {}", mistake.parameter, mistake.problem), format!("{}: {}", mistake.parameter, mistake.remedy));
    }
    let is_new =
        |warning: &&Mistake| !before.iter().any(|one| one.parameter == warning.parameter && one.problem == warning.problem);
    for warning in warnings.iter().filter(is_new) {
        let (cause, remedy) =
            (format!("{}: {}", warning.parameter, warning.problem), format!("{}: {}", warning.parameter, warning.remedy));
        let verdict = if warning.problem.contains(UNKNOWN_FLAG) { Verdict::Unknown } else { Verdict::Ok };
        row.add(verdict, cause, remedy);
    }
    if row.findings.is_empty() {
        row.findings.push(format!("{target} has every flag, field and admission plugin that they ask for"));
    }
    row
}

/// What a warning says of a flag that no table knows.
const UNKNOWN_FLAG: &str = "it is unknown whether";

/// etcd, runtime and CNI plugins as they are installed: what there is to say of them, each with its remedy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherPrograms {
    /// Why they do not go with the release.
    pub refused: Vec<(String, String)>,
    /// Why nothing is known of one.
    pub unknown: Vec<(String, String)>,
    /// What may be other than meant.
    pub warnings: Vec<(String, String)>,
}

/// Whether they go with the release; `None` where the parameters do not suit it, so that nobody knows how they would be run.
#[must_use]
pub fn other_programs(found: Option<&OtherPrograms>) -> Row {
    let mut row = Row::new("other programs");
    let Some(OtherPrograms { refused, unknown, warnings }) = found else {
        row.add(
            Verdict::Unknown,
            "not looked at, because the parameters do not suit the release",
            "correct the parameters first",
        );
        return row;
    };
    for (all, verdict) in [(refused, Verdict::Problem), (unknown, Verdict::Unknown), (warnings, Verdict::Ok)] {
        for (cause, remedy) in all {
            row.add(verdict, cause.as_str(), remedy.as_str());
        }
    }
    if row.findings.is_empty() {
        row.findings.push("the container runtime, etcd and CNI plugins go with it".to_owned());
    }
    row
}

/// An object of a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManifestObject {
    /// The file, and the line in it.
    pub place: String,
    /// `policy/v1beta1`.
    pub api_version: String,
    /// `PodDisruptionBudget`.
    pub kind: String,
    /// Names of the annotations of a static pod; of other objects none.
    pub annotations: Vec<String>,
}

/// What static pods and add-ons say that the release does not take any more. `unreadable`: why a file could not be read.
#[must_use]
pub fn removed_apis(target: Minor, objects: &[ManifestObject], unreadable: &[String]) -> Row {
    let name = "removed APIs";
    let many = if objects.len() == 1 { "object" } else { "objects" };
    let mut row = Row::ok(name, format!("{} {many} of static pods and add-ons looked at", objects.len()));
    for object in objects {
        let ManifestObject { place, api_version, kind, annotations } = object;
        if let Some(api) = removed_api(target, api_version, kind) {
            let remedy = match api.instead {
                "" => format!("remove {kind} of {api_version}: nothing takes its place"),
                instead => format!("write it as {instead}"),
            };
            row.problem(format!("{place}: {api_version} {kind} is not served from {} on", api.since), remedy);
        }
        for annotation in annotations {
            if let Some((since, instead)) = removed_annotation(target, annotation) {
                row.problem(
                    format!("{place}: the kubelet does not read the annotation {annotation} from {since} on"),
                    format!("use {instead}"),
                );
            }
        }
    }
    for cause in unreadable {
        row.add(Verdict::Unknown, cause.as_str(), "correct the manifest, or look at it by hand");
    }
    row
}
