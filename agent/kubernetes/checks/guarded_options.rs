//! Options of components that need the image's permission: those that take the place of what the agent sets for safety, and those by which
//! code or another master of the component comes from a parameter.
//!
//! One table, by component. What is not in it is the cluster's own affair. etcd, flanneld and the container runtimes take no options
//! from parameters at all. `[node] allow_options` in agent.toml lists what an image lets pass, each as `COMPONENT:--flag`.

use crate::kubernetes::parameters::mistake::Mistake;
use crate::kubernetes::parameters::read::Parameters;
use crate::kubernetes::spec::cluster::UserOptions;
use crate::kubernetes::spec::words::role;
use crate::kubernetes::versions::{Component, Minor, given, items, port, truth};
use crate::settings::Settings;

/// What a parameter that names static pods is called in the list.
const STATIC_PODS: &str = "kubelet:--manifest-url";

/// What an image lets the metadata decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagePolicy {
    /// None: everything.
    options: Option<Vec<String>>,
    /// Whether groups of deployments that run code are allowed, so that a static pod brings nothing that a script could not.
    code: bool,
}

impl ImagePolicy {
    /// As the settings say: `[deploy] groups` and `[node] allow_options`. Of the groups only those count that run code: one that is data,
    /// or that nothing in the image runs, brings none.
    #[must_use]
    pub fn of(settings: &Settings, runs_code: impl Fn(&str) -> bool) -> Self {
        let code = settings.deploy.groups.as_ref().is_none_or(|groups| groups.iter().any(|group| runs_code(group)));
        Self { options: Some(settings.allow_options.clone()), code }
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
type Row = (&'static [Component], &'static [&'static str], Harms, &'static str);

const KUBELET: &[Component] = &[Component::Kubelet];
const PROXY: &[Component] = &[Component::Proxy];
const API_SERVER: &[Component] = &[Component::ApiServer];
const MANAGER: &[Component] = &[Component::ControllerManager];
const SCHEDULER: &[Component] = &[Component::Scheduler];
/// They ask the API server who a client is and what it may do.
const DELEGATING: &[Component] = &[Component::ControllerManager, Component::Scheduler];
/// All whose flags come from one library: a server's certificate, the log's files.
const SERVING: &[Component] = &[Component::ApiServer, Component::ControllerManager, Component::Scheduler];
const ALL: &[Component] = &Component::ALL;

const ALWAYS: Harms = |_, _| true;
const UNLESS_TRUE: Harms = |_, value| truth(value) != Some(true);
const UNLESS_FALSE: Harms = |_, value| truth(value) != Some(false);
const UNLESS_ZERO: Harms = |_, value| value != "0";
const UNLESS_A_LOG: Harms = |_, value| !is_log(value);
const UNLESS_LOOPBACK: Harms = |_, value| !matches!(value, "127.0.0.1" | "::1");

const OBEYS: &str = "the agent sets which API server it uses, and as whom";
const FILE: &str = "it would replace a file that the agent writes";
const CODE: &str = "it adds pods or programs that no API server has admitted";
const UNKNOWN: &str = "the agent allows no anonymous access";
const ANYTHING: &str = "the agent requires every request to be authorized";
const TRUST: &str = "the agent sets the CA or key that others are verified with";
const OPEN: &str = "the agent opens no unauthenticated port";
const OWN_STATE: &str = "the protection of copied disks relies on the keys being where the agent puts them";
const OF_ETCD: &str = "the agent sets where etcd is, and verifies it";
const WRITES: &str =
    "it makes the component write to the node, where a file may become code: only a plain path under /var/log is allowed";
const ENDS: &str = "it writes a file anywhere on the node, and exits";
const NODES: &str = "NodeRestriction keeps a node from speaking for others";
const ADMITS: &str = "the agent sets what the API server admits";
const NAMES: &str = "the agent sets who may assert a user's name and groups";

const TOKENS: &str = "BOOTSTRAP_TOKEN lets nodes join by token, with the precautions that keep their certificates away from etcd";
/// SECURITY.md: secrets are never in command lines.
const SECRET: &str = "every user of the machine can read command lines, and its value is a secret";
const RUNTIME: &str = "CONTAINER_RUNTIME says which runtime the kubelet uses";

/// Each option that needs the image's permission, with what it would take the place of.
const GUARDED: [Row; 48] = [
    (KUBELET, &["config", "config-dir", "init-config-dir", "dynamic-config-dir"], ALWAYS, FILE),
    (
        KUBELET,
        &["kubeconfig", "bootstrap-kubeconfig", "experimental-bootstrap-kubeconfig", "api-servers", "auth-path"],
        ALWAYS,
        OBEYS,
    ),
    (
        KUBELET,
        &[
            "pod-manifest-path",
            "manifest-url",
            "manifest-url-header",
            "bootstrap-checkpoint-path",
            "experimental-mounter-path",
            "rkt-path",
            "rkt-stage1-image",
            "volume-plugin-dir",
            "network-plugin-dir",
            "cni-bin-dir",
            "cni-conf-dir",
            "image-credential-provider-bin-dir",
            "image-credential-provider-config",
        ],
        ALWAYS,
        CODE,
    ),
    (KUBELET, &["container-runtime-endpoint", "image-service-endpoint", "docker-endpoint"], ALWAYS, RUNTIME),
    (KUBELET, &["storage-driver-password"], ALWAYS, SECRET),
    (KUBELET, &["anonymous-auth"], UNLESS_FALSE, UNKNOWN),
    (KUBELET, &["authorization-mode"], |_, value| value != "Webhook", ANYTHING),
    (KUBELET, &["client-ca-file"], ALWAYS, TRUST),
    (KUBELET, &["read-only-port", "cadvisor-port"], UNLESS_ZERO, OPEN),
    (KUBELET, &["root-dir", "cert-dir"], ALWAYS, OWN_STATE),
    (KUBELET, &["lock-file", "cni-cache-dir", "experimental-dockershim-root-directory"], UNLESS_A_LOG, WRITES),
    (ALL, &["log-dir", "log-file"], UNLESS_A_LOG, WRITES),
    (SERVING, &["cert-dir"], UNLESS_A_LOG, WRITES),
    (PROXY, &["config"], ALWAYS, FILE),
    (PROXY, &["kubeconfig", "master"], ALWAYS, OBEYS),
    (&[Component::Proxy, Component::Scheduler], &["write-config-to"], ALWAYS, ENDS),
    // `-` is the standard output.
    (API_SERVER, &["audit-log-path"], |_, value| value != "-" && !is_log(value), WRITES),
    (API_SERVER, &["ir-password"], ALWAYS, SECRET),
    // The API server makes the key that it does not find there.
    (API_SERVER, &["ssh-keyfile", "debug-socket-path"], UNLESS_A_LOG, WRITES),
    (API_SERVER, &["anonymous-auth"], |minor, value| minor.number() < 6 && truth(value) != Some(false), UNKNOWN),
    (API_SERVER, &["insecure-allow-any-token"], UNLESS_FALSE, UNKNOWN),
    (API_SERVER, &["enable-bootstrap-token-auth", "experimental-bootstrap-token-auth"], UNLESS_FALSE, TOKENS),
    (API_SERVER, &["authorization-mode"], weaker_modes, ANYTHING),
    (
        API_SERVER,
        &[
            "authorization-config",
            "authorization-policy-file",
            "authorization-rbac-super-user",
            "authorization-webhook-config-file",
        ],
        ALWAYS,
        ANYTHING,
    ),
    (
        API_SERVER,
        &["enable-admission-plugins", "admission-control"],
        // Below 1.7 there is no such plugin.
        |minor, value| minor.number() >= 7 && !items(value).is_some_and(|plugins| plugins.contains(&"NodeRestriction")),
        NODES,
    ),
    (
        API_SERVER,
        &["disable-admission-plugins"],
        |_, value| items(value).is_none_or(|plugins| plugins.contains(&"NodeRestriction")),
        NODES,
    ),
    (API_SERVER, &["admission-control-config-file"], ALWAYS, ADMITS),
    (API_SERVER, &["client-ca-file", "kubelet-certificate-authority", "peer-ca-file", "tls-ca-file"], ALWAYS, TRUST),
    (
        API_SERVER,
        &[
            "authentication-config",
            "authentication-token-webhook-config-file",
            "experimental-keystone-url",
            "experimental-keystone-ca-file",
            "oidc-ca-file",
            "oidc-client-id",
            "oidc-groups-claim",
            "oidc-groups-prefix",
            "oidc-issuer-url",
            "oidc-required-claim",
            "oidc-signing-algs",
            "oidc-username-claim",
            "oidc-username-prefix",
            "requestheader-uid-headers",
        ],
        ALWAYS,
        NAMES,
    ),
    (
        SERVING,
        &[
            "requestheader-allowed-names",
            "requestheader-client-ca-file",
            "requestheader-extra-headers-prefix",
            "requestheader-group-headers",
            "requestheader-username-headers",
        ],
        ALWAYS,
        NAMES,
    ),
    // Of the port in the clear, which the agent has on the loopback where it does not close it.
    (DELEGATING, &["address"], UNLESS_LOOPBACK, OPEN),
    // Where the agent closes that port it gives no address, and without one it is open to everybody.
    (MANAGER, &["port"], |minor, value| minor.number() >= 12 && value != "0", OPEN),
    (SCHEDULER, &["port"], |minor, value| minor.number() >= 13 && value != "0", OPEN),
    (DELEGATING, &["authentication-skip-lookup"], UNLESS_FALSE, NAMES),
    (DELEGATING, &["authorization-always-allow-paths"], more_than_health, ANYTHING),
    (API_SERVER, &["token-auth-file", "basic-auth-file"], ALWAYS, TRUST),
    (API_SERVER, &["service-account-key-file", "service-account-signing-key-file"], ALWAYS, TRUST),
    (API_SERVER, &["service-account-lookup", "kubelet-https"], UNLESS_TRUE, TRUST),
    (API_SERVER, &["insecure-port", "port"], UNLESS_ZERO, OPEN),
    (API_SERVER, &["insecure-bind-address", "address"], UNLESS_LOOPBACK, OPEN),
    (API_SERVER, &["secure-port"], |_, value| port(value).is_none_or(|port| port == 0), OPEN),
    (API_SERVER, &["etcd-servers", "etcd-servers-overrides", "etcd-cafile", "etcd-certfile", "etcd-keyfile"], ALWAYS, OF_ETCD),
    (MANAGER, &["kubeconfig", "master", "authentication-kubeconfig", "authorization-kubeconfig"], ALWAYS, OBEYS),
    (
        MANAGER,
        &[
            "client-ca-file",
            "root-ca-file",
            "service-account-private-key-file",
            "cluster-signing-cert-file",
            "cluster-signing-key-file",
            "cluster-signing-kube-apiserver-client-cert-file",
            "cluster-signing-kube-apiserver-client-key-file",
            "cluster-signing-kubelet-client-cert-file",
            "cluster-signing-kubelet-client-key-file",
            "cluster-signing-kubelet-serving-cert-file",
            "cluster-signing-kubelet-serving-key-file",
            "cluster-signing-legacy-unknown-cert-file",
            "cluster-signing-legacy-unknown-key-file",
        ],
        ALWAYS,
        TRUST,
    ),
    (MANAGER, &["flex-volume-plugin-dir"], ALWAYS, CODE),
    (MANAGER, &["use-service-account-credentials"], UNLESS_TRUE, ANYTHING),
    (MANAGER, &["insecure-experimental-approve-all-kubelet-csrs-for-group"], ALWAYS, UNKNOWN),
    (
        SCHEDULER,
        &["kubeconfig", "master", "config", "authentication-kubeconfig", "authorization-kubeconfig", "client-ca-file"],
        ALWAYS,
        OBEYS,
    ),
];

/// What the parameters ask for without the image's permission.
pub(in crate::kubernetes) fn mistakes(parameters: &Parameters, policy: &ImagePolicy) -> Vec<Mistake> {
    let Some(minor) = parameters.get("KUBE_TAG").and_then(Minor::of_tag) else { return Vec::new() };
    let mut mistakes = Vec::new();
    // What no unit of the node reads does no harm.
    let role = role(parameters);
    for component in UserOptions::COMPONENTS.into_iter().filter(|component| UserOptions::is_component_on(*component, role)) {
        let name = UserOptions::parameter(component);
        for (flag, value) in given(parameters.get(name).unwrap_or_default()) {
            let Some(why) = harm(component, minor, &flag, &value, parameters.is_true("TLS_DISABLED")) else { continue };
            let option = format!("{component}:--{flag}");
            if !policy.allows(&option)
                && !mistakes.iter().any(|one: &Mistake| one.parameter == name && one.problem.contains(&option))
            {
                mistakes.push(refused(
                    name,
                    format!("contains --{flag}, which the image does not allow ({option})"),
                    why,
                    &option,
                ));
            }
        }
    }
    if parameters.given("STATIC_POD_URL").is_some() && !policy.code && !policy.allows(STATIC_PODS) {
        let problem = format!("is given, but the image does not allow metadata to bring code ({STATIC_PODS})");
        mistakes.push(refused("STATIC_POD_URL", problem, CODE, STATIC_PODS));
    }
    mistakes
}

fn refused(name: &str, problem: String, why: &str, option: &str) -> Mistake {
    let remedy = format!("remove it, or have the image allow it: [node] allow_options = [\"{option}\"] in agent.toml");
    Mistake::general(name, problem, why.to_owned(), remedy)
}

/// What a flag with this value would take the place of. Without TLS the API is open as it is, and so is the port that the agent then leaves
/// to controller manager and scheduler, on the loopback.
fn harm(component: Component, minor: Minor, flag: &str, value: &str, plain: bool) -> Option<&'static str> {
    let row = GUARDED.iter().find(|(of, flags, ..)| of.contains(&component) && flags.contains(&flag));
    let is_open_anyway = |why| plain && why == OPEN && (component == Component::ApiServer || flag == "port");
    row.filter(|(_, _, harms, why)| harms(minor, value) && !is_open_anyway(*why)).map(|(.., why)| *why)
}

/// From 1.6 on the agent asks for RBAC, from 1.7 on for the authorizer of nodes, too. A mode that is not in the list of those that
/// take nothing away needs the image's permission: the policy of ABAC and the webhook's address are guarded by rows of their own.
fn weaker_modes(minor: Minor, value: &str) -> bool {
    let Some(modes) = items(value) else { return true };
    modes.iter().any(|mode| !matches!(*mode, "Node" | "RBAC" | "ABAC" | "Webhook" | "AlwaysDeny"))
        || (minor.number() >= 6 && !modes.contains(&"RBAC"))
        || (minor.number() >= 7 && !modes.contains(&"Node"))
}

/// Whether anybody may ask for more than how the component is.
fn more_than_health(_: Minor, value: &str) -> bool {
    items(value).is_none_or(|paths| paths.iter().any(|path| !matches!(*path, "/healthz" | "/livez" | "/readyz")))
}

/// Whether a path is /var/log or lies below it as it is written, with nothing that a component or the kernel would have to resolve.
fn is_log(path: &str) -> bool {
    let Some(rest) = path.strip_prefix("/var/log") else { return false };
    rest.is_empty() || rest.strip_prefix('/').is_some_and(|rest| rest.split('/').all(|part| !matches!(part, "" | "." | "..")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::kubernetes::fixtures::{arguments, master, parameters};
    use crate::kubernetes::versions::{Availability, flag};

    fn found(changes: &[(&str, &str)], policy: &ImagePolicy) -> Vec<String> {
        mistakes(&parameters(changes), policy).iter().map(ToString::to_string).collect()
    }

    fn none() -> ImagePolicy {
        ImagePolicy::of(&Settings::default(), |_| true)
    }

    #[test]
    fn what_takes_safety_away_needs_permission_and_nothing_else_does() {
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
            let reported = found(&changes, &none());
            let expected: Vec<&str> = refused.split(' ').filter(|option| !option.is_empty()).collect();
            assert_eq!(reported.len(), expected.len(), "{name} {options}: {reported:?}");
            for (line, option) in reported.iter().zip(&expected) {
                assert!(line.starts_with(&format!("{name}: contains --")) && line.contains(option), "{line}");
                assert!(line.contains(&format!("allow_options = [\"{option}\"]")), "{line}");
            }
            let allow_options = expected.iter().map(|&option| option.to_owned()).collect();
            let allowing = Settings { allow_options, ..Settings::default() };
            assert_eq!(found(&changes, &ImagePolicy::of(&allowing, |_| true)), Vec::<String>::new());
            assert_eq!(found(&changes, &ImagePolicy::everything()), Vec::<String>::new());
        }
        let worker = [("ROLE", "minion"), ("KUBEAPI_OPTIONS", "--token-auth-file=/x"), ("KUBELET_OPTIONS", "--config=/x")];
        let reported = found(&worker, &none());
        assert!(reported.len() == 1 && reported[0].starts_with("KUBELET_OPTIONS"), "{reported:?}");
        let plain = [("KUBE_TAG", "v1.15.3"), ("TLS_DISABLED", "true"), ("CERTIFICATES", ""), ("KUBE_API_PORT", "8080")];
        let changes = [&plain[..], &[("KUBEAPI_OPTIONS", "--insecure-bind-address=192.0.2.11")]].concat();
        assert_eq!(found(&changes, &none()), Vec::<String>::new());
    }

    /// Whether each value of these options needs the image's permission on a master of 1.28, or of another release.
    fn needs_permission(rows: &[(&str, &str, &str, bool)]) {
        for (tag, name, options, refused) in rows {
            let reported = found(&[("KUBE_TAG", tag), (name, options)], &none());
            assert_eq!(!reported.is_empty(), *refused, "{tag} {name} {options}: {reported:?}");
        }
    }

    /// pflag reads a list as a line of CSV, in which `"AlwaysAllow"` is AlwaysAllow; and what no list of good modes has is none.
    #[test]
    fn a_list_is_judged_as_the_component_reads_it() {
        let api = "KUBEAPI_OPTIONS";
        needs_permission(&[
            ("v1.28.9", api, r#"'--authorization-mode=Node,RBAC,"AlwaysAllow"'"#, true),
            ("v1.28.9", api, r#"'--authorization-mode="Node","RBAC"'"#, true),
            ("v1.28.9", api, r#"'--authorization-mode="Node,RBAC"'"#, true),
            ("v1.28.9", api, "--authorization-mode=Node,RBAC,Webhook", false),
            ("v1.28.9", api, "--authorization-mode=Node,RBAC,ABAC,AlwaysDeny", false),
            ("v1.28.9", api, "--authorization-mode=Node,RBAC,alwaysallow", true),
            ("v1.28.9", api, "'--authorization-mode=Node,RBAC, AlwaysAllow'", true),
            ("v1.28.9", api, "--authorization-mode=Node,RBAC,Someday", true),
            ("v1.28.9", api, "--authorization-mode=", true),
            ("v1.28.9", api, r#"'--disable-admission-plugins="NodeRestriction"'"#, true),
            ("v1.28.9", api, r#"'--disable-admission-plugins=DefaultStorageClass,"NodeRestriction"'"#, true),
            ("v1.28.9", api, "--disable-admission-plugins=DefaultStorageClass", false),
            ("v1.28.9", api, r#"'--enable-admission-plugins="A,NodeRestriction"'"#, true),
            ("v1.8.0", api, r#"'--admission-control="A",NodeRestriction'"#, true),
        ]);
    }

    /// OpenID Connect, webhooks and proxies that vouch for others name users and groups, system:masters among them.
    #[test]
    fn who_names_users_and_groups_needs_permission() {
        let (api, manager, scheduler) = ("KUBEAPI_OPTIONS", "KUBECONTROLLER_OPTIONS", "KUBESCHEDULER_OPTIONS");
        needs_permission(&[
            ("v1.28.9", api, "--oidc-issuer-url=https://issuer.example.org", true),
            ("v1.28.9", api, "--oidc-client-id x", true),
            ("v1.28.9", api, "--oidc_groups_claim=groups", true),
            ("v1.30.0", api, "--authentication-config=/etc/kubernetes/x", true),
            ("v1.30.0", api, "--authorization-config=/etc/kubernetes/x", true),
            ("v1.28.9", api, "--authentication-token-webhook-config-file=/etc/kubernetes/x", true),
            ("v1.28.9", api, "--authentication-token-webhook-cache-ttl=1m", false),
            ("v1.28.9", api, "--authorization-webhook-config-file=/etc/kubernetes/x", true),
            ("v1.28.9", api, "--requestheader-group-headers=X-Group", true),
            ("v1.28.9", api, "--admission-control-config-file=/etc/kubernetes/x", true),
            ("v1.9.1", api, "--experimental-keystone-url=https://192.0.2.9:5000", true),
            ("v1.28.9", manager, "--requestheader-client-ca-file=/x", true),
            ("v1.28.9", manager, "--authentication-skip-lookup", true),
            ("v1.28.9", manager, "--authentication-skip-lookup=false", false),
            ("v1.28.9", manager, "--authorization-always-allow-paths=/healthz,/readyz,/livez", false),
            ("v1.28.9", manager, "--authorization-always-allow-paths=/healthz,/metrics", true),
            ("v1.28.9", manager, "--cluster-signing-kubelet-client-key-file=/x", true),
            ("v1.28.9", scheduler, "--authorization-always-allow-paths=/*", true),
            ("v1.28.9", scheduler, r#"'--authorization-always-allow-paths="/debug/pprof"'"#, true),
            ("v1.28.9", scheduler, "--authentication-kubeconfig=/x", true),
            ("v1.28.9", scheduler, "--requestheader-username-headers=X-User", true),
        ]);
    }

    #[test]
    fn what_goes_round_a_parameters_precautions_needs_permission() {
        let (api, manager, scheduler, kubelet) =
            ("KUBEAPI_OPTIONS", "KUBECONTROLLER_OPTIONS", "KUBESCHEDULER_OPTIONS", "KUBELET_OPTIONS");
        needs_permission(&[
            ("v1.28.9", api, "--enable-bootstrap-token-auth", true),
            ("v1.28.9", api, "--enable-bootstrap-token-auth=T", true),
            ("v1.28.9", api, "--enable-bootstrap-token-auth=false", false),
            ("v1.7.3", api, "--experimental-bootstrap-token-auth=true", true),
            ("v1.15.3", manager, "--address=0.0.0.0 --port=10252", true),
            ("v1.15.3", manager, "--address=127.0.0.1", false),
            ("v1.15.3", manager, "--port=10252", true),
            ("v1.12.3", manager, "--port=10252", true),
            ("v1.12.3", scheduler, "--port=10251", false),
            ("v1.15.3", manager, "--port=0", false),
            ("v1.9.1", manager, "--port=20252", false),
            ("v1.9.1", manager, "--port=10252 --address=0.0.0.0", true),
            ("v1.18.2", manager, "--port=10252 --address=0.0.0.0", true),
            ("v1.20.15", manager, "--port=10252 --address=0.0.0.0", true),
            ("v1.9.1", scheduler, "--port=10251 --address=0.0.0.0", true),
            ("v1.18.2", scheduler, "--port=10251 --address=0.0.0.0", true),
            ("v1.20.15", scheduler, "--port=10251 --address 0.0.0.0", true),
            ("v1.15.3", scheduler, "--address=::", true),
            ("v1.15.3", scheduler, "--port=10251", true),
            ("v1.28.9", scheduler, "--bind-address=0.0.0.0", false),
            ("v1.28.9", kubelet, "--container-runtime-endpoint=unix:///run/x.sock", true),
            ("v1.20.3", kubelet, "--image-service-endpoint unix:///run/x.sock", true),
            ("v1.15.3", kubelet, "--docker-endpoint=tcp://192.0.2.9:2375", true),
        ]);
    }

    /// A log holds what its writer was told, so a log at the right place is a script.
    #[test]
    fn what_a_component_writes_stays_below_var_log() {
        for (tag, name, flag) in [
            ("v1.25.3", "KUBELET_OPTIONS", "log-file"),
            ("v1.25.3", "KUBELET_OPTIONS", "log-dir"),
            ("v1.28.9", "KUBELET_OPTIONS", "lock-file"),
            ("v1.23.3", "KUBELET_OPTIONS", "cni-cache-dir"),
            ("v1.25.3", "KUBEPROXY_OPTIONS", "log-file"),
            ("v1.28.9", "KUBEAPI_OPTIONS", "audit-log-path"),
            ("v1.28.9", "KUBEAPI_OPTIONS", "cert-dir"),
            ("v1.30.0", "KUBEAPI_OPTIONS", "debug-socket-path"),
            ("v1.25.3", "KUBECONTROLLER_OPTIONS", "log-dir"),
            ("v1.28.9", "KUBECONTROLLER_OPTIONS", "cert-dir"),
            ("v1.25.3", "KUBESCHEDULER_OPTIONS", "log-file"),
        ] {
            for (path, refused) in [
                ("/etc/profile.d/x.sh", true),
                ("/var/log/kubernetes/x.log", false),
                ("/var/log", false),
                ("/var/log/../../etc/profile.d/x.sh", true),
                ("/var/log/./x", true),
                ("/var/log//x", true),
                ("/var/logs/x", true),
                ("//var/log/x", true),
                ("var/log/x", true),
                ("", true),
            ] {
                needs_permission(&[(tag, name, &format!("--{flag}={path}"), refused)]);
            }
        }
        needs_permission(&[
            ("v1.28.9", "KUBEAPI_OPTIONS", "--audit-log-path=-", false),
            ("v1.28.9", "KUBEPROXY_OPTIONS", "--write-config-to=/var/log/x", true),
            ("v1.28.9", "KUBESCHEDULER_OPTIONS", "--write-config-to=/var/log/x", true),
        ]);
    }

    #[test]
    fn directories_of_programs_need_permission() {
        needs_permission(&[
            ("v1.28.9", "KUBELET_OPTIONS", "--volume-plugin-dir=/x", true),
            ("v1.28.9", "KUBELET_OPTIONS", "--image-credential-provider-bin-dir=/x", true),
            ("v1.28.9", "KUBELET_OPTIONS", "--image-credential-provider-config=/x", true),
            ("v1.20.1", "KUBELET_OPTIONS", "--cni-bin-dir=/x", true),
            ("v1.28.9", "KUBECONTROLLER_OPTIONS", "--flex-volume-plugin-dir=/x", true),
        ]);
    }

    /// pflag reads a number in any base.
    #[test]
    fn a_port_that_is_zero_in_another_way_is_none() {
        for (value, refused) in
            [("0", true), ("00", true), ("0x0", true), ("+0", true), ("-0", true), ("0_0", true), ("8443", false)]
        {
            needs_permission(&[("v1.18.2", "KUBEAPI_OPTIONS", &format!("--secure-port={value}"), refused)]);
        }
    }

    /// The flags of all releases.
    const TABLES: [(Component, &str); 5] = [
        (Component::Kubelet, include_str!("../versions/kubelet.txt")),
        (Component::Proxy, include_str!("../versions/kube-proxy.txt")),
        (Component::ApiServer, include_str!("../versions/kube-apiserver.txt")),
        (Component::ControllerManager, include_str!("../versions/kube-controller-manager.txt")),
        (Component::Scheduler, include_str!("../versions/kube-scheduler.txt")),
    ];

    /// A flag that names a file or a directory is guarded, or was looked at and is only read: one that comes anew fails here.
    #[test]
    fn every_flag_that_names_a_file_is_guarded_or_only_read() {
        const ONLY_READ: [&str; 11] = [
            "audit-policy-file",
            "audit-webhook-config-file",
            "boot-id-file",
            "egress-selector-config-file",
            "machine-id-file",
            "policy-config-file",
            "proxy-client-cert-file",
            "proxy-client-key-file",
            "tls-cert-file",
            "tls-private-key-file",
            "tracing-config-file",
        ];
        for (component, table) in TABLES {
            let names = table.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(' ').next());
            let paths = ["file", "dir", "-path", "directory", "-to"];
            for name in names.filter(|name| paths.iter().any(|end| name.ends_with(end)) && !ONLY_READ.contains(name)) {
                let guarded = GUARDED.iter().any(|(of, flags, ..)| of.contains(&component) && flags.contains(&name));
                assert!(guarded, "{component} --{name}");
            }
        }
    }

    /// A flag that the agent sets itself is guarded, or was looked at and takes no safety away: one that comes anew fails here.
    #[test]
    fn what_the_agent_sets_is_guarded_or_takes_no_safety_away() {
        /// By the reason why it takes no safety away.
        const LOOKED_AT: [(&str, &str); 23] = [
            // Which addresses and ports; all ask who comes.
            ("kube-apiserver", "advertise-address bind-address"),
            ("kube-controller-manager", "bind-address secure-port"),
            ("kube-scheduler", "bind-address secure-port"),
            ("kubelet", "address node-ip port"),
            // In the clear, and asked for from outside by those who measure: it shows figures alone.
            ("kube-proxy", "metrics-bind-address"),
            // A parameter asks for the same.
            ("kube-apiserver", "allow-privileged service-cluster-ip-range"),
            (
                "kube-controller-manager",
                "allocate-node-cidrs cluster-cidr cluster-name node-cidr-mask-size service-cluster-ip-range",
            ),
            ("kubelet", "allow-privileged cluster-dns cluster-domain container-runtime cgroup-driver network-plugin"),
            ("kube-proxy", "cluster-cidr"),
            // Only read: whom others believe is theirs to say.
            ("kube-apiserver", "kubelet-client-certificate kubelet-client-key proxy-client-cert-file proxy-client-key-file"),
            ("kube-apiserver", "tls-cert-file tls-private-key-file"),
            ("kube-controller-manager", "tls-cert-file tls-private-key-file"),
            ("kube-scheduler", "tls-cert-file tls-private-key-file"),
            ("kubelet", "tls-cert-file tls-private-key-file"),
            // For whom tokens are good; the key that signs them stays.
            ("kube-apiserver", "api-audiences service-account-api-audiences service-account-issuer"),
            // Fewer may come: by a token nobody.
            ("kubelet", "authentication-token-webhook"),
            // NODE_LABELS' and NODE_TAINTS' checks look at it, or the API server holds the node to its certificate.
            ("kubelet", "node-labels register-with-taints register-schedulable hostname-override require-kubeconfig"),
            ("kube-proxy", "hostname-override"),
            // How it works.
            ("kube-apiserver", "kubelet-preferred-address-types storage-backend logtostderr v"),
            ("kube-controller-manager", "leader-elect logtostderr v"),
            ("kube-scheduler", "leader-elect logtostderr v"),
            ("kubelet", "fail-swap-on runtime-cgroups logtostderr v"),
            ("kube-proxy", "logtostderr v"),
        ];
        let looked_at: BTreeSet<String> = LOOKED_AT
            .into_iter()
            .flat_map(|(component, flags)| flags.split(' ').map(move |flag| format!("{component} {flag}")))
            .collect();
        let mut open = BTreeSet::new();
        for minor in (4..=Minor::NEWEST.number()).filter(|minor| *minor != 5) {
            let desired = master(minor, &[]);
            for (component, _) in TABLES {
                let set = arguments(&desired, &format!("{component}.service"));
                let flags = set.iter().filter_map(|word| word.strip_prefix("--")?.split('=').next());
                let is_guarded =
                    |flag: &&str| GUARDED.iter().any(|(of, flags, ..)| of.contains(&component) && flags.contains(flag));
                open.extend(flags.filter(|flag| !is_guarded(flag)).map(|flag| format!("{component} {flag}")));
            }
        }
        assert_eq!(open, looked_at);
    }

    /// SECURITY.md: secrets are never in command lines. A flag that may carry one is guarded, or was looked at: one that comes anew
    /// fails here.
    #[test]
    fn no_secret_is_given_as_an_option() {
        /// Numbers, names, switches, and paths of files that hold the secret.
        const NO_SECRETS: [&str; 13] = [
            "add-dir-header",
            "authentication-token-webhook",
            "authentication-token-webhook-cache-ttl",
            "authentication-token-webhook-version",
            "concurrent-serviceaccount-token-syncs",
            "docker-tls-key",
            "google-json-key",
            "kubelet-client-key",
            "legacy-service-account-token-clean-up-period",
            "service-account-extend-token-expiration",
            "service-account-max-token-expiration",
            "skip-headers",
            "skip-log-headers",
        ];
        let words = ["password", "passwd", "token", "secret", "credential", "header"];
        for (component, table) in TABLES {
            let names = table.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(' ').next());
            let may = |name: &&str| words.iter().any(|word| name.contains(word)) || name.ends_with("-key");
            for name in names.filter(may).filter(|name| !NO_SECRETS.contains(name)) {
                let guarded = GUARDED.iter().any(|(of, flags, ..)| of.contains(&component) && flags.contains(&name));
                assert!(guarded || name == "tls-sni-cert-key", "{component} --{name}");
            }
        }
        needs_permission(&[
            ("v1.20.15", "KUBELET_OPTIONS", "--storage-driver-password=hunter2", true),
            ("v1.20.15", "KUBELET_OPTIONS", "--storage_driver_password hunter2", true),
            ("v1.5.3", "KUBEAPI_OPTIONS", "--ir-password=hunter2", true),
            ("v1.20.15", "KUBELET_OPTIONS", "--storage-driver-user=root", false),
        ]);
        let reported = found(&[("KUBE_TAG", "v1.20.15"), ("KUBELET_OPTIONS", "--storage-driver-password=hunter2")], &none());
        assert!(
            reported.len() == 1 && reported[0].contains("remedy: remove it") && !reported[0].contains("hunter2"),
            "{reported:?}"
        );
    }

    /// SECURITY.md: an image whose groups bring no code gets none by a parameter either.
    #[test]
    fn static_pods_come_where_code_may_come_or_the_image_permits_them() {
        let changes = [("STATIC_POD_URL", "https://pods.example.org/x")];
        let groups = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let policy = [STATIC_PODS.to_owned()];
        for (groups, options, refused) in [
            (None, &[][..], false),
            (Some(groups(&["script", "kubernetes-node"])), &[], false),
            (Some(groups(&["kubernetes-node"])), &[], true),
            (Some(groups(&["kubernetes-node", "Heat::Ungrouped", "scrpit"])), &[], true),
            (Some(groups(&[])), &[], true),
            (Some(groups(&["kubernetes-node"])), &policy, false),
        ] {
            let mut settings = Settings { allow_options: options.to_vec(), ..Settings::default() };
            settings.deploy.groups.clone_from(&groups);
            let reported = found(&changes, &ImagePolicy::of(&settings, |group| group == "script"));
            assert_eq!(!reported.is_empty(), refused, "{groups:?} {options:?}: {reported:?}");
        }
    }

    /// A name that no release has would guard nothing.
    #[test]
    fn every_guarded_option_is_a_flag_of_its_component() {
        for (components, flags, ..) in &GUARDED {
            for component in *components {
                for name in *flags {
                    assert!(is_flag(*component, name), "{component} --{name}");
                    let rows = GUARDED.iter().filter(|(of, flags, ..)| of.contains(component) && flags.contains(name));
                    assert_eq!(rows.count(), 1, "{component} --{name}: only the first row would be read");
                }
            }
        }
    }

    fn is_flag(component: Component, name: &str) -> bool {
        (2..=Minor::NEWEST.number()).any(|minor| {
            let minor = Minor::of_tag(&format!("v1.{minor}.0")).unwrap();
            flag(component, minor, name) == Availability::Known
        })
    }
}
