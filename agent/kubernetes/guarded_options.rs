//! Options of components that need the image's leave: those that take the place of what the agent sets for safety, and those by which
//! code or another master of the component comes from a parameter.
//!
//! One table, by component. What is not in it is the cluster's own affair. etcd, flanneld and the container runtimes take no options
//! from parameters at all. `[node] allow_options` in agent.toml lists what an image lets pass, each as `COMPONENT:--flag`.

use super::node_spec::{Role, role};
use super::parameters::{Mistake, Parameters};
use super::versions::{Component, Minor, given};

/// The group of deployments that is parameters and no code.
const NODE_GROUP: &str = "kubernetes-node";
/// What a parameter that names static pods is called in the list.
const STATIC_PODS: &str = "kubelet:--manifest-url";

/// What an image lets the metadata decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leave {
    /// None: everything.
    options: Option<Vec<String>>,
    /// Whether groups of deployments that are code are allowed, so that a static pod brings nothing that a script could not.
    code: bool,
}

impl Leave {
    /// As the settings say: `[deploy] groups` and `[node] allow_options`.
    #[must_use]
    pub fn of(groups: Option<&[String]>, options: &[String]) -> Self {
        let code = groups.is_none_or(|groups| groups.iter().any(|group| group != NODE_GROUP));
        Self { options: Some(options.to_vec()), code }
    }

    /// For a look at what was accepted before: a node in place is compared with its parameters, whatever a newer image allows.
    #[must_use]
    pub fn everything() -> Self {
        Self { options: None, code: true }
    }

    fn allows(&self, option: &str) -> bool {
        self.options.as_ref().is_none_or(|options| options.iter().any(|one| one == option))
    }
}

/// Whether a value takes safety away.
type Harms = fn(Minor, &str) -> bool;
type Row = (Component, &'static [&'static str], Harms, &'static str);

const ALWAYS: Harms = |_, _| true;
const UNLESS_TRUE: Harms = |_, value| truth(value) != Some(true);
const UNLESS_FALSE: Harms = |_, value| truth(value) != Some(false);
const UNLESS_ZERO: Harms = |_, value| value != "0";
const UNLESS_LOOPBACK: Harms = |_, value| !matches!(value, "127.0.0.1" | "::1");

const OBEYS: &str = "the agent says which API server it obeys, and as whom";
const FILE: &str = "the agent writes the file that this one would take the place of";
const CODE: &str = "it brings pods or programs that no API server checked";
const UNKNOWN: &str = "the agent lets nobody in who is not known";
const ANYTHING: &str = "the agent has every request authorized";
const TRUST: &str = "the agent says by which authority or key others are verified";
const OPEN: &str = "the agent opens no port that anybody may read or use";
const OWN_STATE: &str = "the guard of copied disks looks for its keys where the agent lets them lie";
const OF_ETCD: &str = "the agent says where etcd is, and verifies it";

/// Each option that needs leave, with what it would take the place of.
const GUARDED: [Row; 30] = [
    (Component::Kubelet, &["config", "config-dir", "init-config-dir", "dynamic-config-dir"], ALWAYS, FILE),
    (
        Component::Kubelet,
        &["kubeconfig", "bootstrap-kubeconfig", "experimental-bootstrap-kubeconfig", "api-servers", "auth-path"],
        ALWAYS,
        OBEYS,
    ),
    (
        Component::Kubelet,
        &[
            "pod-manifest-path",
            "manifest-url",
            "manifest-url-header",
            "bootstrap-checkpoint-path",
            "experimental-mounter-path",
            "rkt-path",
        ],
        ALWAYS,
        CODE,
    ),
    (Component::Kubelet, &["anonymous-auth"], UNLESS_FALSE, UNKNOWN),
    (Component::Kubelet, &["authorization-mode"], |_, value| value != "Webhook", ANYTHING),
    (Component::Kubelet, &["client-ca-file"], ALWAYS, TRUST),
    (Component::Kubelet, &["read-only-port", "cadvisor-port"], UNLESS_ZERO, OPEN),
    (Component::Kubelet, &["root-dir", "cert-dir"], ALWAYS, OWN_STATE),
    (Component::Proxy, &["config"], ALWAYS, FILE),
    (Component::Proxy, &["kubeconfig", "master"], ALWAYS, OBEYS),
    (Component::Proxy, &["write-config-to"], ALWAYS, WRITES),
    (Component::ApiServer, &["anonymous-auth"], |minor, value| minor.number() < 6 && truth(value) != Some(false), UNKNOWN),
    (Component::ApiServer, &["insecure-allow-any-token"], UNLESS_FALSE, UNKNOWN),
    (Component::ApiServer, &["authorization-mode"], weaker_modes, ANYTHING),
    (
        Component::ApiServer,
        &["authorization-config", "authorization-policy-file", "authorization-rbac-super-user"],
        ALWAYS,
        ANYTHING,
    ),
    (
        Component::ApiServer,
        &["enable-admission-plugins", "admission-control"],
        // Below 1.7 there is no such plugin.
        |minor, value| minor.number() >= 7 && !items(value).any(|plugin| plugin == "NodeRestriction"),
        NODES,
    ),
    (
        Component::ApiServer,
        &["disable-admission-plugins"],
        |_, value| items(value).any(|plugin| plugin == "NodeRestriction"),
        NODES,
    ),
    (
        Component::ApiServer,
        &["client-ca-file", "kubelet-certificate-authority", "requestheader-client-ca-file", "requestheader-allowed-names"],
        ALWAYS,
        TRUST,
    ),
    (Component::ApiServer, &["token-auth-file", "basic-auth-file"], ALWAYS, TRUST),
    (Component::ApiServer, &["service-account-key-file", "service-account-signing-key-file"], ALWAYS, TRUST),
    (Component::ApiServer, &["service-account-lookup", "kubelet-https"], UNLESS_TRUE, TRUST),
    (Component::ApiServer, &["insecure-port", "port"], UNLESS_ZERO, OPEN),
    (Component::ApiServer, &["insecure-bind-address", "address"], UNLESS_LOOPBACK, OPEN),
    (Component::ApiServer, &["secure-port"], |_, value| value == "0", OPEN),
    (
        Component::ApiServer,
        &["etcd-servers", "etcd-servers-overrides", "etcd-cafile", "etcd-certfile", "etcd-keyfile"],
        ALWAYS,
        OF_ETCD,
    ),
    (
        Component::ControllerManager,
        &["kubeconfig", "master", "authentication-kubeconfig", "authorization-kubeconfig"],
        ALWAYS,
        OBEYS,
    ),
    (
        Component::ControllerManager,
        &[
            "client-ca-file",
            "requestheader-client-ca-file",
            "root-ca-file",
            "service-account-private-key-file",
            "cluster-signing-cert-file",
            "cluster-signing-key-file",
        ],
        ALWAYS,
        TRUST,
    ),
    (Component::ControllerManager, &["use-service-account-credentials"], UNLESS_TRUE, ANYTHING),
    (Component::ControllerManager, &["insecure-experimental-approve-all-kubelet-csrs-for-group"], ALWAYS, UNKNOWN),
    (
        Component::Scheduler,
        &["kubeconfig", "master", "config", "authentication-kubeconfig", "authorization-kubeconfig", "client-ca-file"],
        ALWAYS,
        OBEYS,
    ),
];
const WRITES: &str = "it writes a file anywhere on the node, and ends";
const NODES: &str = "NodeRestriction keeps a node from speaking for others";

/// Parameters with options, and whose they are.
const OPTIONS: [(&str, Component); 5] = [
    ("KUBELET_OPTIONS", Component::Kubelet),
    ("KUBEPROXY_OPTIONS", Component::Proxy),
    ("KUBEAPI_OPTIONS", Component::ApiServer),
    ("KUBECONTROLLER_OPTIONS", Component::ControllerManager),
    ("KUBESCHEDULER_OPTIONS", Component::Scheduler),
];

/// What the parameters ask for without the image's leave.
pub(super) fn mistakes(parameters: &Parameters, leave: &Leave) -> Vec<Mistake> {
    let Some(minor) = parameters.get("KUBE_TAG").and_then(Minor::of_tag) else { return Vec::new() };
    let mut mistakes = Vec::new();
    // What no unit of the node reads does no harm.
    let workers = role(parameters) == Role::Minion;
    let read = |component| !workers || matches!(component, Component::Kubelet | Component::Proxy);
    for (name, component) in OPTIONS.into_iter().filter(|(_, component)| read(*component)) {
        for (flag, value) in given(parameters.get(name).unwrap_or_default()) {
            let Some(why) = harm(component, minor, &flag, &value, parameters.is_true("TLS_DISABLED")) else { continue };
            let option = format!("{component}:--{flag}");
            if !leave.allows(&option)
                && !mistakes.iter().any(|one: &Mistake| one.parameter == name && one.problem.contains(&option))
            {
                mistakes.push(refused(
                    name,
                    format!("holds --{flag}, for which the image gives no leave ({option})"),
                    why,
                    &option,
                ));
            }
        }
    }
    if parameters.given("STATIC_POD_URL").is_some() && !leave.code && !leave.allows(STATIC_PODS) {
        let problem = format!("is given, and the image lets metadata bring no code ({STATIC_PODS})");
        mistakes.push(refused("STATIC_POD_URL", problem, CODE, STATIC_PODS));
    }
    mistakes
}

fn refused(name: &str, problem: String, why: &str, option: &str) -> Mistake {
    let remedy = format!("leave it out, or have the image allow it: [node] allow_options = [\"{option}\"] in agent.toml");
    Mistake::general(name, problem, why.to_owned(), remedy)
}

/// What a flag with this value would take the place of. Without TLS the API is open as it is.
fn harm(component: Component, minor: Minor, flag: &str, value: &str, plain: bool) -> Option<&'static str> {
    let row = GUARDED.iter().find(|(of, flags, ..)| *of == component && flags.contains(&flag));
    row.filter(|(_, _, harms, why)| harms(minor, value) && !(plain && component == Component::ApiServer && *why == OPEN))
        .map(|(.., why)| *why)
}

/// From 1.6 on the agent asks for RBAC, from 1.7 on for the authorizer of nodes, too.
fn weaker_modes(minor: Minor, value: &str) -> bool {
    let has = |mode: &str| items(value).any(|one| one == mode);
    has("AlwaysAllow") || (minor.number() >= 6 && !has("RBAC")) || (minor.number() >= 7 && !has("Node"))
}

fn items(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim)
}

/// As Go's strconv.ParseBool reads it.
fn truth(value: &str) -> Option<bool> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fixtures::parameters;
    use crate::kubernetes::versions::{Standing, flag};

    fn found(changes: &[(&str, &str)], leave: &Leave) -> Vec<String> {
        mistakes(&parameters(changes), leave).iter().map(ToString::to_string).collect()
    }

    fn none() -> Leave {
        Leave::of(None, &[])
    }

    #[test]
    fn what_takes_safety_away_needs_leave_and_nothing_else_does() {
        for (tag, name, options, refused) in [
            (
                "v1.28.9",
                "KUBELET_OPTIONS",
                "--config=/x --authorization-mode=AlwaysAllow",
                "kubelet:--config kubelet:--authorization-mode",
            ),
            ("v1.28.9", "KUBELET_OPTIONS", "--authorization_mode AlwaysAllow", "kubelet:--authorization-mode"),
            ("v1.28.9", "KUBELET_OPTIONS", "--anonymous-auth", "kubelet:--anonymous-auth"),
            ("v1.28.9", "KUBELET_OPTIONS", "--anonymous-auth=F --read-only-port=0 --authorization-mode=Webhook --v=4", ""),
            ("v1.28.9", "KUBELET_OPTIONS", "--read-only-port=10255", "kubelet:--read-only-port"),
            ("v1.28.9", "KUBELET_OPTIONS", "--node-labels=config=x --max-pods=50 --eviction-hard=memory.available<1Gi", ""),
            (
                "v1.28.9",
                "KUBELET_OPTIONS",
                "--manifest-url=http://192.0.2.9/p --pod-manifest-path=/x",
                "kubelet:--manifest-url kubelet:--pod-manifest-path",
            ),
            ("v1.28.9", "KUBELET_OPTIONS", "--kubeconfig=/x --kubeconfig=/y", "kubelet:--kubeconfig"),
            ("v1.28.9", "KUBEPROXY_OPTIONS", "--config=/x --metrics-bind-address=0.0.0.0", "kube-proxy:--config"),
            ("v1.28.9", "KUBEAPI_OPTIONS", "--authorization-mode=Node,RBAC,Webhook --anonymous-auth=true --v=2", ""),
            ("v1.28.9", "KUBEAPI_OPTIONS", "--authorization-mode=RBAC", "kube-apiserver:--authorization-mode"),
            ("v1.28.9", "KUBEAPI_OPTIONS", "--authorization-mode=Node,RBAC,AlwaysAllow", "kube-apiserver:--authorization-mode"),
            ("v1.5.3", "KUBEAPI_OPTIONS", "--authorization-mode=ABAC --anonymous-auth=true", "kube-apiserver:--anonymous-auth"),
            ("v1.28.9", "KUBEAPI_OPTIONS", "--enable-admission-plugins=NodeRestriction,AlwaysPullImages", ""),
            (
                "v1.28.9",
                "KUBEAPI_OPTIONS",
                "--enable-admission-plugins=AlwaysPullImages",
                "kube-apiserver:--enable-admission-plugins",
            ),
            (
                "v1.28.9",
                "KUBEAPI_OPTIONS",
                "--disable-admission-plugins=NodeRestriction",
                "kube-apiserver:--disable-admission-plugins",
            ),
            ("v1.28.9", "KUBEAPI_OPTIONS", "--disable-admission-plugins=DefaultStorageClass", ""),
            ("v1.15.3", "KUBEAPI_OPTIONS", "--insecure-port=0 --insecure-bind-address=127.0.0.1 --service-account-lookup", ""),
            (
                "v1.15.3",
                "KUBEAPI_OPTIONS",
                "--insecure-port=8080 --insecure-bind-address=0.0.0.0",
                "kube-apiserver:--insecure-port kube-apiserver:--insecure-bind-address",
            ),
            (
                "v1.28.9",
                "KUBEAPI_OPTIONS",
                "--etcd-servers=http://192.0.2.9:2379 --etcd-compaction-interval=1m",
                "kube-apiserver:--etcd-servers",
            ),
            (
                "v1.28.9",
                "KUBECONTROLLER_OPTIONS",
                "--use-service-account-credentials=false --leader-elect=false",
                "kube-controller-manager:--use-service-account-credentials",
            ),
            ("v1.28.9", "KUBESCHEDULER_OPTIONS", "--config=/x --v=4", "kube-scheduler:--config"),
        ] {
            let changes = [("KUBE_TAG", tag), (name, options)];
            let said = found(&changes, &none());
            let expected: Vec<&str> = refused.split(' ').filter(|option| !option.is_empty()).collect();
            assert_eq!(said.len(), expected.len(), "{name} {options}: {said:?}");
            for (line, option) in said.iter().zip(&expected) {
                assert!(line.starts_with(&format!("{name}: holds --")) && line.contains(option), "{line}");
                assert!(line.contains(&format!("allow_options = [\"{option}\"]")), "{line}");
            }
            let allowed: Vec<String> = expected.iter().map(|&option| option.to_owned()).collect();
            assert_eq!(found(&changes, &Leave::of(None, &allowed)), Vec::<String>::new());
            assert_eq!(found(&changes, &Leave::everything()), Vec::<String>::new());
        }
        let worker = [("ROLE", "minion"), ("KUBEAPI_OPTIONS", "--token-auth-file=/x"), ("KUBELET_OPTIONS", "--config=/x")];
        let said = found(&worker, &none());
        assert!(said.len() == 1 && said[0].starts_with("KUBELET_OPTIONS"), "{said:?}");
        let plain = [("KUBE_TAG", "v1.15.3"), ("TLS_DISABLED", "true"), ("CERTIFICATES", ""), ("KUBE_API_PORT", "8080")];
        let changes = [&plain[..], &[("KUBEAPI_OPTIONS", "--insecure-bind-address=192.0.2.11")]].concat();
        assert_eq!(found(&changes, &none()), Vec::<String>::new());
    }

    /// SECURITY.md: an image whose groups bring no code gets none by a parameter either.
    #[test]
    fn static_pods_come_where_code_may_come_or_the_image_gives_leave() {
        let changes = [("STATIC_POD_URL", "https://pods.example.org/x")];
        let groups = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let leave = [STATIC_PODS.to_owned()];
        for (groups, options, refused) in [
            (None, &[][..], false),
            (Some(groups(&["script", "kubernetes-node"])), &[], false),
            (Some(groups(&["kubernetes-node"])), &[], true),
            (Some(groups(&[])), &[], true),
            (Some(groups(&["kubernetes-node"])), &leave, false),
        ] {
            let said = found(&changes, &Leave::of(groups.as_deref(), options));
            assert_eq!(!said.is_empty(), refused, "{groups:?} {options:?}: {said:?}");
        }
    }

    /// A name that no release has would guard nothing.
    #[test]
    fn every_guarded_option_is_a_flag_of_its_component() {
        for (component, flags, ..) in &GUARDED {
            for name in *flags {
                let known = (2..=Minor::NEWEST.number()).any(|minor| {
                    let minor = Minor::of_tag(&format!("v1.{minor}.0")).unwrap();
                    flag(*component, minor, name) == Standing::Known
                });
                assert!(known, "{component} --{name}");
            }
        }
    }
}
