//! What must hold between the parameters of a Kubernetes node. Every rule here is one that a component would break at
//! start, or that would bring up a cluster other than asked, in silence.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::kubernetes::add_ons;
use crate::kubernetes::control_plane::{apiserver, podmaster};
use crate::kubernetes::parameters::kinds::ParameterKind;
use crate::kubernetes::parameters::mistake::{LISTED, Mistake};
use crate::kubernetes::parameters::read::Parameters;
use crate::kubernetes::parts::certificates::service_account_keys;
use crate::kubernetes::spec::cluster::{ClusterSpec, EtcdCluster, MachineFacts, UserOptions};
use crate::kubernetes::spec::words::Role;
use crate::kubernetes::spec::words::RuntimeKind;
use crate::kubernetes::versions::two_numbers;
use crate::kubernetes::versions::{Availability, CommandLine, Minor, admission_plugin, given, items, option, truth};
use crate::kubernetes::worker::kubelet::taint_name;
use crate::kubernetes::worker::node_labels::may_label;

/// The list of etcd's members.
const MEMBERS: &str = "ETCD_INITIAL_CLUSTER";

/// The version, before anything is chosen by it.
pub(in crate::kubernetes) fn minor_of(tag: &str, mistakes: &mut Vec<Mistake>) -> Option<Minor> {
    let Some(minor) = Minor::of_tag(tag) else {
        mistakes.push(Mistake::general(
            "KUBE_TAG",
            "is not a version of Kubernetes 1",
            "v1.MINOR.PATCH",
            "give the version to run",
        ));
        return None;
    };
    if minor > Minor::NEWEST {
        mistakes.push(Mistake::general(
            "KUBE_TAG",
            format!("selects {minor}, which this agent does not support"),
            format!("the agent knows flags up to {}", Minor::NEWEST),
            "give an older version, or install a newer agent in the image",
        ));
        return None;
    }
    Some(minor)
}

/// Everything that is wrong, and what the reader should know.
pub(in crate::kubernetes) struct Checks<'a> {
    pub(in crate::kubernetes) parameters: &'a Parameters,
    pub(in crate::kubernetes) spec: &'a ClusterSpec,
    pub(in crate::kubernetes) role: Role,
    pub(in crate::kubernetes) address: Option<IpAddr>,
    pub(in crate::kubernetes) mistakes: &'a mut Vec<Mistake>,
    pub(in crate::kubernetes) warnings: &'a mut Vec<Mistake>,
}

impl Checks<'_> {
    pub(in crate::kubernetes) fn run(&mut self) {
        self.tls();
        self.name();
        self.reach();
        self.addresses();
        self.networks();
        self.pod_network();
        self.etcd();
        self.runtime();
        self.node();
        self.conflicting_options();
        self.control_plane();
        self.service_accounts();
        self.registry();
        self.add_ons();
        self.ports();
        self.options();
        self.command_lines();
    }

    pub(in crate::kubernetes) fn wrong(
        &mut self,
        name: &str,
        problem: impl Into<String>,
        rule: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.mistakes.push(Mistake::general(name, problem, rule, remedy));
    }

    fn tls(&mut self) {
        let minor = self.spec.minor;
        if !self.spec.tls {
            // magnum-node.md 5.2: --insecure-port takes only 0 from 1.20 on.
            if minor.number() >= 20 {
                let rule = "without TLS the API server listens on its insecure port, which was removed in 1.20";
                self.wrong(
                    "TLS_DISABLED",
                    format!("is not supported by {minor}"),
                    rule,
                    "set TLS_DISABLED to False, or give a version up to 1.19",
                );
            }
            if self.parameters.given("CERTIFICATES").is_some_and(|source| source != "none") {
                let rule = "without TLS there are no certificates";
                self.wrong("CERTIFICATES", "is given together with TLS_DISABLED", rule, "remove one of them");
            }
            return;
        }
        self.certificates();
    }

    /// Node authorizer and NodeRestriction know a kubelet by its name in the certificate (magnum-node.md 7.5 no. 56).
    fn name(&mut self) {
        if self.spec.tls && self.spec.minor.number() >= 7 && self.spec.node_name.is_none() {
            let rule = "since 1.7 a kubelet's certificate contains the name of its node";
            self.wrong("INSTANCE_NAME", "is missing", rule, "give the name of the server");
        }
    }

    fn reach(&mut self) {
        let api = &self.spec.api;
        if self.role == Role::Minion && api.master.is_none() && api.balancer.is_none() {
            self.wrong(
                "KUBE_MASTER_IP",
                "is missing",
                "a worker must know the API server's address",
                "give the address of the API's load balancer or of a master",
            );
        }
        let (balancer, masters) = (api.balancer.is_some(), api.masters.len());
        if balancer && masters == 0 {
            self.wrong("MASTER_ADDRESSES", "is missing", "HAProxy needs the masters' addresses", "give their addresses");
        }
        if balancer && self.role == Role::Master {
            self.balancer_on_a_master();
        }
        let given = self.parameters.items("MASTER_ADDRESSES").count();
        if given != masters {
            self.wrong(
                "MASTER_ADDRESSES",
                "contains something that is not an IP address",
                "a comma-separated list of addresses",
                "correct the list",
            );
        }
    }

    /// HAProxy on a master asks the others for their minor, and shows itself to nobody.
    fn balancer_on_a_master(&mut self) {
        const FIRST_WITH_RBAC: u16 = 6;
        let anonymous = option(&self.spec.options.api_server, "anonymous-auth");
        let rule = "HAProxy asks the other masters for their release without a certificate";
        if !self.spec.tls {
            return;
        }
        if self.spec.minor.number() < FIRST_WITH_RBAC {
            let problem = format!("is haproxy on a master, and API servers of {} answer nobody unknown", self.spec.minor);
            self.wrong("API_BALANCER", problem, rule, "set it on workers only");
        } else if anonymous.as_deref().and_then(truth) == Some(false) {
            let problem = "is haproxy on a master, and KUBEAPI_OPTIONS sets --anonymous-auth=false";
            self.wrong("API_BALANCER", problem, rule, "set it on workers only, or remove the option");
        }
    }

    fn add_ons(&mut self) {
        let names = &self.spec.add_ons.names;
        let is_label = |name: &&String| ParameterKind::Label.normalised(name).is_some();
        let odd: Vec<String> = names.iter().filter(|name| !is_label(name)).cloned().collect();
        let twice = names.iter().enumerate().find(|(at, name)| names.iter().take(*at).any(|other| other == *name));
        let twice = twice.map(|(_, name)| name.clone());
        let too_old = !names.is_empty() && self.spec.minor.number() < add_ons::FIRST_MINOR;
        if let Some(odd) = odd.first() {
            let rule = format!("each name is that of a directory of the image: {}", ParameterKind::Label.rule());
            self.wrong("ADDONS", format!("contains {odd:?}"), rule, "correct the list");
        }
        if let Some(twice) = twice {
            self.wrong("ADDONS", format!("names {twice} twice"), "an add-on is applied once", "name it once");
        }
        if too_old {
            let rule = "the agent follows what an add-on runs by the API group apps/v1, which came with 1.9";
            self.wrong("ADDONS", format!("is given, and KUBE_TAG selects {}", self.spec.minor), rule, "remove ADDONS");
        }
    }

    fn etcd(&mut self) {
        if self.role != Role::Master {
            return;
        }
        let etcd = &self.spec.etcd;
        let version = Some(crate::kubernetes::parts::etcd_release::version(self.spec));
        let (joins, learner) = (etcd.joins, etcd.learner);
        let members = match &etcd.cluster {
            EtcdCluster::Static(members) => members.clone(),
            EtcdCluster::Discovery(_) => {
                // magnum-node.md 5.6: 3.7 ignores the key, and each master would form a cluster of its own.
                if version.is_some_and(|version| version >= (3, 7)) {
                    let rule = "discovery was removed in etcd 3.7, which silently ignores it";
                    self.wrong(
                        "ETCD_DISCOVERY_URL",
                        "is given to an etcd release that ignores it",
                        rule,
                        "give ETCD_INITIAL_CLUSTER instead",
                    );
                }
                Vec::new()
            }
            EtcdCluster::Single => Vec::new(),
        };
        if self.parameters.get("ETCD_INITIAL_CLUSTER").is_some() && self.parameters.get("ETCD_DISCOVERY_URL").is_some() {
            self.wrong(
                "ETCD_INITIAL_CLUSTER",
                "is given together with ETCD_DISCOVERY_URL",
                "a member finds the others in only one way",
                "remove one of them",
            );
        }
        if (joins || learner) && members.is_empty() {
            let name = if learner { "ETCD_LEARNER" } else { "ETCD_INITIAL_CLUSTER_STATE" };
            self.wrong(
                name,
                "is given without ETCD_INITIAL_CLUSTER",
                "a joining member must know the existing members",
                "give ETCD_INITIAL_CLUSTER",
            );
        }
        if learner && !joins {
            let rule = "a learner joins an existing cluster";
            self.wrong("ETCD_LEARNER", "is true in a new cluster", rule, "set ETCD_INITIAL_CLUSTER_STATE to existing");
        }
        if learner && version.is_some_and(|version| version < (3, 4)) {
            self.wrong(
                "ETCD_LEARNER",
                "is true",
                "etcd supports learners since 3.4",
                "set a newer ETCD_TAG, or do not join as a learner",
            );
        }
        if self.spec.etcd.cluster == EtcdCluster::Single && self.spec.api.masters.len() > 1 {
            let rule = "masters that do not find each other form separate clusters";
            self.wrong(MEMBERS, "is missing, and MASTER_ADDRESSES names several masters", rule, "give it, or ETCD_DISCOVERY_URL");
        }
        let minor = self.spec.minor;
        if version.is_some_and(|version| version >= (3, 6)) && minor.number() <= 5 {
            let rule = "Kubernetes up to 1.5 needs etcd's v2 API, which was removed in 3.6";
            self.wrong("ETCD_TAG", "names an etcd release without the v2 API", rule, "give etcd 3.5 or older");
        } else if let Some(version) = version {
            self.flannel_etcd_api(version);
        }
        if version.is_some_and(|version| version < (3, 0)) && minor.number() >= 6 {
            let rule = "since 1.6 the API server stores its objects through etcd's v3 API";
            self.wrong("ETCD_TAG", format!("names an etcd release that {minor} cannot use"), rule, "give etcd 3.0 or later");
        }
        self.members(&members, joins);
    }

    fn members(&mut self, members: &[String], joins: bool) {
        if members.is_empty() {
            return;
        }
        let scheme = if self.spec.tls { "https://" } else { "http://" };
        let mut names = BTreeSet::new();
        let mut own = None;
        let bad: Vec<String> = members
            .iter()
            .filter(|member| member.split_once('=').is_none_or(|(name, url)| name.is_empty() || !is_peer(url, scheme)))
            .cloned()
            .collect();
        for (name, url) in members.iter().filter_map(|member| member.split_once('=')) {
            if !names.insert(name.to_owned()) {
                self.wrong(
                    MEMBERS,
                    format!("names {name} twice"),
                    "member names must be unique",
                    "give each member its own name",
                );
            }
            let host =
                reqwest::Url::parse(url).ok().and_then(|url| url.host_str().map(|host| host.trim_matches(['[', ']']).to_owned()));
            if host.and_then(|host| host.parse::<IpAddr>().ok()).is_some_and(|host| Some(host) == self.address) {
                own = Some(name.to_owned());
            }
        }
        for member in bad {
            self.wrong(
                MEMBERS,
                format!("contains {member}"),
                format!("NAME={scheme}ADDRESS:2380 for each member"),
                "correct the entry",
            );
        }
        match (own, &self.spec.node_name) {
            (None, _) => {
                let rule = "a member recognises its own entry by KUBE_NODE_IP";
                self.wrong(MEMBERS, "does not name this node", rule, "add this node's own entry");
            }
            (Some(own), Some(name)) if own != *name => {
                let rule = "the member's name is INSTANCE_NAME";
                self.wrong(
                    MEMBERS,
                    format!("calls this node {own}, but INSTANCE_NAME is {name}"),
                    rule,
                    "use the same name in both",
                );
            }
            _ => {}
        }
        // While members join one by one, an even number passes by.
        if members.len().is_multiple_of(2) && !joins {
            let rule = "the number of members should be odd: an even number tolerates no more failures";
            self.wrong(MEMBERS, format!("names {} members", members.len()), rule, "give 1, 3 or 5 members");
        }
        // etcd makes members' ids of the cluster's token, too: with a token each they never find each other. The stack's id is no
        // token for them: Magnum gives each master a stack of its own.
        let has_id = ["CLUSTER_UUID", "BAY_UUID"].iter().any(|name| self.parameters.get(name).is_some());
        if members.len() > 1 && !joins && !has_id {
            let rule = "the members of a new etcd cluster must share a token, CLUSTER_UUID";
            self.wrong(
                "CLUSTER_UUID",
                "is missing, and ETCD_INITIAL_CLUSTER names several members",
                rule,
                "give every master the same one",
            );
        }
    }

    fn runtime(&mut self) {
        let minor = self.spec.minor;
        let containerd =
            self.parameters.given("CONTAINERD_VERSION").filter(|_| matches!(self.spec.runtime.kind, RuntimeKind::Containerd(..)));
        if containerd.is_some_and(|version| two_numbers(version).is_none_or(|version| version < (1, 0))) {
            self.wrong(
                "CONTAINERD_VERSION",
                "is not a known version",
                "MAJOR.MINOR.PATCH, 1.0 or later",
                "give the version that is installed in the image",
            );
        }
        match self.spec.runtime.kind {
            RuntimeKind::Containerd(..) | RuntimeKind::CriO if minor.number() < 7 => {
                let rule = "before 1.7 the kubelet supports only docker";
                self.wrong("CONTAINER_RUNTIME", format!("is not supported by {minor}"), rule, "set it to docker");
            }
            RuntimeKind::Containerd(1, second) if second < 6 && minor.number() >= 26 => {
                let rule = "since 1.26 the kubelet supports only CRI v1, which containerd has since 1.6";
                self.wrong("CONTAINERD_VERSION", format!("1.{second} does not support {minor}"), rule, "give 1.6 or later");
            }
            RuntimeKind::Containerd(first, _) if first > 2 => {
                self.wrong("CONTAINERD_VERSION", "is unknown", "1.x and 2.x are known", "give one of these");
            }
            _ => {}
        }
        if self.spec.runtime.cgroup_driver == "systemd" && minor.number() < 5 {
            let rule = "before 1.5 the kubelet's cgroup driver cannot be set and is cgroupfs";
            self.wrong("CGROUP_DRIVER", format!("systemd is not supported by {minor}"), rule, "set it to cgroupfs");
        }
    }

    fn node(&mut self) {
        let minor = self.spec.minor;
        if minor.number() < 6 && self.parameters.get("NODE_TAINTS").is_some() {
            let rule = "the kubelet accepts taints since 1.6";
            self.wrong(
                "NODE_TAINTS",
                format!("is not supported by {minor}"),
                rule,
                "set them through the API, or give a newer version",
            );
        }
        for name in ["NODEGROUP_ROLE", "NODEGROUP_NAME"] {
            if self.parameters.get(name).is_some_and(|value| !is_value(value)) {
                let rule =
                    "it becomes a node label: at most 63 letters, digits and . _ -, beginning and ending with a letter or digit";
                self.wrong(name, "cannot be a label's value", rule, "give another name");
            }
        }
        for (parameter, flag, form, good) in [
            ("NODE_LABELS", "node-labels", "key=value", is_label as fn(&str) -> bool),
            ("NODE_TAINTS", "register-with-taints", "key=value:NoSchedule, PreferNoSchedule or NoExecute", is_taint),
            ("KUBE_RESERVED", "kube-reserved", "cpu=100m,memory=256Mi,ephemeral-storage=1Gi", is_reservation),
            ("SYSTEM_RESERVED", "system-reserved", "cpu=100m,memory=256Mi,ephemeral-storage=1Gi", is_reservation),
        ] {
            for (name, item) in self.items_of_kubelet(parameter, flag) {
                if !good(&item) {
                    let problem =
                        if name == parameter { format!("contains {item:?}") } else { format!("--{flag} contains {item:?}") };
                    self.wrong(name, problem, format!("items of the form {form}"), "correct the item");
                } else if let Some((what, rule, remedy)) = refused_by_kubelet(minor, flag, &item) {
                    let problem =
                        if name == parameter { format!("contains {what}") } else { format!("--{flag} contains {what}") };
                    self.wrong(name, problem, rule, remedy);
                }
            }
        }
        self.repeated_taints();
    }

    /// The API refuses a node with two taints of the same key and effect, so that its kubelet would never register it.
    fn repeated_taints(&mut self) {
        let mut seen: BTreeMap<(&str, String), String> = BTreeMap::new();
        for (name, taint) in self.items_of_kubelet("NODE_TAINTS", "register-with-taints") {
            let sort = taint_name(&taint);
            // Of the parameter, what is repeated as it is, is written once.
            let is_other = |before: String| before.replace("=:", ":") != taint.replace("=:", ":") || name != "NODE_TAINTS";
            if seen.insert((name, sort.clone()), taint.clone()).is_some_and(is_other) {
                let rule = "a node has one taint of a key and effect at most, or the API refuses it";
                self.wrong(name, format!("contains {sort} more than once"), rule, "keep one of them");
            }
        }
    }

    /// The items of a list that a parameter gives, or `KUBELET_OPTIONS` by the flag that the parameter stands for.
    fn items_of_kubelet(&self, parameter: &'static str, flag: &str) -> Vec<(&'static str, String)> {
        let list = self.parameters.get(parameter).unwrap_or_default().to_owned();
        let options = given(&self.spec.options.kubelet).into_iter().filter(|(name, _)| name == flag);
        let lists = std::iter::once((parameter, list)).chain(options.map(|(_, value)| ("KUBELET_OPTIONS", value)));
        let items = |(name, list): (&'static str, String)| {
            list.split(',').filter(|item| !item.is_empty()).map(|item| (name, item.to_owned())).collect::<Vec<_>>()
        };
        lists.flat_map(items).collect()
    }

    fn control_plane(&mut self) {
        if self.role != Role::Master {
            return;
        }
        let plane = &self.spec.control_plane;
        let minor = self.spec.minor;
        if self.spec.image_prefix.is_none() && podmaster::elects(self.spec) {
            let rule = "before 1.2 the controller manager and scheduler run from images";
            self.wrong("HYPERKUBE_PREFIX", "is missing", rule, "give the prefix of the images that are in the machine image");
        }
        for plugin in plane.admission.clone() {
            let unusable = match admission_plugin(minor, &plugin) {
                Availability::Removed { last, .. } => {
                    Some((format!("contains {plugin}, which {last} was the last to support"), "it is removed from the list"))
                }
                Availability::NotYet { first } => {
                    Some((format!("contains {plugin}, which was added in {first}"), "it is removed from the list"))
                }
                Availability::NeverThere => {
                    Some((format!("contains {plugin}, which no version supports"), "it is removed from the list"))
                }
                Availability::Unknown => Some((format!("contains {plugin}, which this agent does not know"), "it is passed on")),
                Availability::Known | Availability::Unchecked => None,
            };
            if let Some((problem, what)) = unusable {
                let rule = format!("an API server does not start if it lacks a listed plugin; {what}");
                self.warnings.push(Mistake::general(
                    "ADMISSION_CONTROL_LIST",
                    problem,
                    rule,
                    "no action is needed unless the name is misspelt",
                ));
            }
        }
        if service_account_keys(self.spec, &MachineFacts::default()).is_none() {
            let options = given(&self.spec.options.api_server);
            let lists =
                options.iter().filter(|(name, _)| matches!(name.as_str(), "enable-admission-plugins" | "admission-control"));
            for (name, _) in lists.filter(|(_, list)| items(list).is_some_and(|list| list.contains(&apiserver::SERVICE_ACCOUNT)))
            {
                self.wrong(
                    "KUBEAPI_OPTIONS",
                    format!("--{name} contains {}, but no key signs tokens", apiserver::SERVICE_ACCOUNT),
                    "this plugin admits a pod only once its account has a token",
                    "remove it from the list, or give KUBE_SERVICE_ACCOUNT_KEY and KUBE_SERVICE_ACCOUNT_PRIVATE_KEY",
                );
            }
        }
        if self.parameters.given("CLOUD_PROVIDER_ENABLED") == Some("true")
            && self.spec.cloud.as_ref().is_none_or(|cloud| cloud.trust.is_none())
        {
            self.warnings.push(Mistake::general(
                "CLOUD_PROVIDER_ENABLED",
                "is true, but the cluster has no trust",
                "the cloud provider acts as the cluster's own user with TRUST_ID; without it there is no cloud configuration",
                "give TRUST_ID, AUTH_URL and the trustee, or set it to False",
            ));
        }
    }

    fn registry(&mut self) {
        let Some(registry) = &self.spec.registry else { return };
        let insecure = registry.insecure;
        if !registry.auth_url.is_empty() && ParameterKind::Url.normalised(&registry.auth_url).is_none() {
            self.wrong(
                "REGISTRY_AUTH_URL",
                "is not an http URL",
                ParameterKind::Url.rule(),
                "correct it, or set REGISTRY_ENABLED to False",
            );
        }
        if insecure {
            let rule = "the registry's password would be sent over an unauthenticated connection";
            let problem = "is true: Swift's certificate is not verified";
            self.warnings.push(Mistake::general("REGISTRY_INSECURE", problem, rule, "set it to False"));
        }
        let Some(registry) = &self.spec.registry else { return };
        let missing: Vec<&str> = [
            ("REGISTRY_AUTH_URL", &registry.auth_url),
            ("REGISTRY_USERNAME", &registry.user),
            ("REGISTRY_CONTAINER", &registry.container),
        ]
        .into_iter()
        .filter(|(_, value)| value.is_empty())
        .map(|(name, _)| name)
        .collect();
        let no_password = registry.password.reveal().is_empty();
        for name in missing.into_iter().chain(no_password.then_some("REGISTRY_PASSWORD")) {
            self.wrong(
                name,
                "is missing",
                "the node's registry stores its images in Swift as the cluster's user",
                format!("give {name}, or set REGISTRY_ENABLED to False"),
            );
        }
    }

    fn options(&mut self) {
        let role = self.role;
        for component in UserOptions::COMPONENTS.into_iter().filter(|component| UserOptions::is_component_on(*component, role)) {
            let (name, text) = (UserOptions::parameter(component), self.spec.options.of(component));
            if text.is_empty() {
                continue;
            }
            let checked = CommandLine::new(component, self.spec.minor).add_user_options(text);
            let more = checked.mistakes.len().saturating_sub(LISTED);
            let listed = checked.mistakes.into_iter().take(LISTED);
            self.mistakes.extend(listed.map(|(what, rule, remedy)| Mistake::general(name, what, rule, remedy)));
            if more > 0 {
                self.wrong(name, format!("holds {more} more words that are wrong"), "as above", "correct those above first");
            }
            let warn = |what| {
                Mistake::general(
                    name,
                    what,
                    format!("flags of {} {}", component.as_str(), self.spec.minor),
                    "no action is needed if this is intended",
                )
            };
            self.warnings.extend(checked.warnings.into_iter().take(LISTED).map(warn));
        }
    }
}

/// What a kubelet of this minor ends at, although it is well formed; why, and what to do.
fn refused_by_kubelet(minor: Minor, flag: &str, item: &str) -> Option<(String, String, &'static str)> {
    let (key, _) = item.split_once('=')?;
    match flag {
        "node-labels" if minor.number() >= 16 && !may_label(key) => {
            let rule = "since 1.16 a kubelet may set only a few labels under kubernetes.io and k8s.io on itself, and does not start with others";
            Some((key.to_owned(), rule.to_owned(), "set this label through the API"))
        }
        // The kubelet's own releases.
        "kube-reserved" | "system-reserved" => {
            let (resource, first) = [("ephemeral-storage", 8), ("pid", 14)].into_iter().find(|(name, _)| *name == key)?;
            let rule = format!("the kubelet can reserve {resource} since 1.{first}; before that it does not start with it");
            (minor.number() < first).then(|| (resource.to_owned(), rule, "remove it"))
        }
        _ => None,
    }
}

/// A URL of a peer: scheme, an address or host, a port, nothing else.
fn is_peer(url: &str, scheme: &str) -> bool {
    let parsed = reqwest::Url::parse(url).ok().filter(|_| url.starts_with(scheme));
    parsed.is_some_and(|url| {
        url.host_str().is_some() && url.port().is_some() && matches!(url.path(), "" | "/") && url.query().is_none()
    })
}

/// A qualified name of Kubernetes: an optional DNS prefix, a slash, at most 63 characters.
fn is_key(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    let good = |text: &str| {
        text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    (1..=63).contains(&name.len())
        && good(name)
        && prefix.is_none_or(|prefix| {
            // RFC 1123: each part of a domain begins and ends with a letter or digit.
            let is_domain = prefix.split('.').all(good) && !prefix.bytes().any(|b| b == b'_' || b.is_ascii_uppercase());
            prefix.len() <= 253 && is_domain
        })
}

fn is_value(text: &str) -> bool {
    text.is_empty() || (text.len() <= 63 && !text.contains('/') && is_key(text))
}

fn is_label(item: &str) -> bool {
    item.split_once('=').is_some_and(|(key, value)| is_key(key) && is_value(value))
}

fn is_taint(item: &str) -> bool {
    item.rsplit_once(':').is_some_and(|(label, effect)| {
        matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute")
            && label.split_once('=').map_or_else(|| is_key(label), |(key, value)| is_key(key) && is_value(value))
    })
}

fn is_reservation(item: &str) -> bool {
    item.split_once('=').is_some_and(|(name, amount)| {
        let digits = amount.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = amount.get(digits.len()..).unwrap_or_default();
        matches!(name, "cpu" | "memory" | "ephemeral-storage" | "pid")
            && !digits.is_empty()
            && digits.split('.').count() <= 2
            && digits.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
            && matches!(unit, "" | "m" | "k" | "M" | "G" | "T" | "Ki" | "Mi" | "Gi" | "Ti")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;
    use crate::kubernetes::spec::node::NodeSpec;
    use crate::metadata::Deployment;

    const MASTER: &[(&str, &str)] = &[
        ("ROLE", "master"),
        ("KUBE_TAG", "v1.28.9"),
        ("INSTANCE_NAME", "bay-master-0"),
        ("KUBE_NODE_IP", "10.0.0.11"),
        ("CLUSTER_UUID", "3d9f2b60-7a41-4e0c-9c55-1b2a3c4d5e6f"),
        ("CERTIFICATES", "given"),
        ("CA_CERTIFICATE", "/given/ca.crt"),
        ("CA_KEY", "/given/ca.key"),
        ("KUBE_SERVICE_ACCOUNT_KEY", "/given/service-account.pub"),
        ("KUBE_SERVICE_ACCOUNT_PRIVATE_KEY", "/given/service-account.key"),
        ("CONTAINER_RUNTIME", "containerd"),
        ("CONTAINERD_VERSION", "1.7.2"),
    ];
    const MINION: &[(&str, &str)] = &[
        ("ROLE", "minion"),
        ("KUBE_MASTER_IP", "10.0.0.17"),
        ("KUBE_NODE_IP", "10.0.0.31"),
        ("INSTANCE_NAME", "bay-node-0"),
        ("CA_KEY", ""),
        ("KUBELET_CERTIFICATE", "/given/kubelet.crt"),
        ("KUBELET_KEY", "/given/kubelet.key"),
        ("PROXY_CERTIFICATE", "/given/proxy.crt"),
        ("PROXY_KEY", "/given/proxy.key"),
    ];

    fn spec(changes: &[&[(&str, &str)]]) -> Result<NodeSpec, Vec<Mistake>> {
        let mut config = Map::new();
        for (name, value) in MASTER.iter().chain(changes.iter().copied().flatten()) {
            config.insert((*name).to_owned(), json!(value));
        }
        crate::kubernetes::node_of(
            &Deployment::parse(&json!({"id": "i", "config": config})).unwrap().unwrap(),
            &crate::kubernetes::ImagePolicy::everything(),
        )
    }

    fn mistakes(changes: &[&[(&str, &str)]]) -> Vec<String> {
        spec(changes).err().unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn of_many_wrong_words_the_first_are_listed_and_the_rest_is_counted() {
        let found = mistakes(&[&[("KUBELET_OPTIONS", &"a ".repeat(4_000))]]);
        assert_eq!(found.len(), LISTED + 1);
        assert!(found[LISTED].starts_with("KUBELET_OPTIONS: holds 3950 more words that are wrong"), "{}", found[LISTED]);
    }

    #[test]
    fn a_good_node_has_no_mistakes() {
        assert_eq!((mistakes(&[]), mistakes(&[MINION])), (vec![], vec![]));
        assert_eq!(spec(&[]).unwrap().warnings, []);
    }

    const BALANCED: &[(&str, &str)] = &[("API_BALANCER", "haproxy"), ("MASTER_ADDRESSES", "10.0.0.11")];

    #[test]
    #[allow(clippy::too_many_lines, reason = "one table")]
    fn each_contradiction_is_one_mistake() {
        let members = |list: &'static str| ("ETCD_INITIAL_CLUSTER", list);
        let three = "bay-master-0=https://10.0.0.11:2380,b=https://10.0.0.12:2380,c=https://10.0.0.13:2380";
        let old: &[(&str, &str)] =
            &[("KUBE_TAG", "v1.15.3"), ("TLS_DISABLED", "True"), ("CERTIFICATES", ""), ("CONTAINER_RUNTIME", "docker")];
        for (changes, expected) in [
            (&[&[("KUBE_TAG", "v1.99.0")][..]][..], "KUBE_TAG: selects 1.99, which this agent does not support"),
            (&[&[("TLS_DISABLED", "True"), ("CERTIFICATES", "")]], "TLS_DISABLED: is not supported by 1.28"),
            (&[old, &[("CERTIFICATES", "magnum")]], "CERTIFICATES: is given together with TLS_DISABLED"),
            (&[MINION, &[("KUBE_MASTER_IP", "")]], "KUBE_MASTER_IP: is missing"),
            (&[MINION, &[("API_BALANCER", "haproxy")]], "MASTER_ADDRESSES: is missing"),
            (&[&[("API_BALANCER", "haproxy")]], "MASTER_ADDRESSES: is missing"),
            (
                &[BALANCED, &[("KUBEAPI_OPTIONS", "--anonymous-auth=f")]],
                "API_BALANCER: is haproxy on a master, and KUBEAPI_OPTIONS sets --anonymous-auth=false",
            ),
            (
                &[BALANCED, &[("KUBE_TAG", "v1.5.8"), ("CONTAINER_RUNTIME", "docker")]],
                "API_BALANCER: is haproxy on a master, and API servers of 1.5 answer nobody unknown",
            ),
            (
                &[MINION, &[("MASTER_ADDRESSES", "10.0.0.11,master")]],
                "MASTER_ADDRESSES: contains something that is not an IP address",
            ),
            (
                &[&[("PORTAL_NETWORK_CIDR", "10.100.128.0/24")]],
                "PORTAL_NETWORK_CIDR: 10.100.128.0/24 overlaps FLANNEL_NETWORK_CIDR 10.100.0.0/16",
            ),
            (
                &[&[("CLUSTER_SUBNET_CIDR", "10.254.0.0/24")]],
                "PORTAL_NETWORK_CIDR: 10.254.0.0/16 overlaps CLUSTER_SUBNET_CIDR 10.254.0.0/24",
            ),
            (&[&[("PORTAL_NETWORK_CIDR", "10.0.0.0/24")]], "PORTAL_NETWORK_CIDR: 10.0.0.0/24 contains KUBE_NODE_IP 10.0.0.11"),
            (
                &[&[("NETWORK_DRIVER", "calico"), ("CALICO_IPV4POOL", "10.0.0.0/20")]],
                "CALICO_IPV4POOL: 10.0.0.0/20 contains KUBE_NODE_IP",
            ),
            (
                &[&[("PORTAL_NETWORK_CIDR", "10.254.0.0/31"), ("DNS_SERVICE_IP", "10.254.0.1")]],
                "PORTAL_NETWORK_CIDR: 10.254.0.0/31 is too small",
            ),
            (&[&[("PORTAL_NETWORK_CIDR", "172.0.0.0/8")]], "PORTAL_NETWORK_CIDR: 172.0.0.0/8 is too large"),
            (&[&[("DNS_SERVICE_IP", "10.253.0.10")]], "DNS_SERVICE_IP: 10.253.0.10 is not in PORTAL_NETWORK_CIDR"),
            (&[&[("DNS_SERVICE_IP", "10.254.0.1")]], "DNS_SERVICE_IP: 10.254.0.1 is the first address"),
            (
                &[&[("FLANNEL_NETWORK_SUBNETLEN", "17")]],
                "FLANNEL_NETWORK_SUBNETLEN: 17 does not fit FLANNEL_NETWORK_CIDR 10.100.0.0/16",
            ),
            (
                &[&[("ETCD_DISCOVERY_URL", "https://d.example.org/1"), ("ETCD_TAG", "v3.7.0")]],
                "ETCD_DISCOVERY_URL: is given to an etcd release that ignores it",
            ),
            (
                &[&[("ETCD_DISCOVERY_URL", "https://d.example.org/1"), members(three)]],
                "ETCD_INITIAL_CLUSTER: is given together with",
            ),
            (&[&[("ETCD_INITIAL_CLUSTER_STATE", "existing")]], "ETCD_INITIAL_CLUSTER_STATE: is given without"),
            (&[&[members(three), ("ETCD_LEARNER", "true")]], "ETCD_LEARNER: is true in a new cluster"),
            (
                &[&[
                    members(three),
                    ("ETCD_LEARNER", "true"),
                    ("ETCD_INITIAL_CLUSTER_STATE", "existing"),
                    ("ETCD_TAG", "3.3.10"),
                ]],
                "ETCD_LEARNER: is true; rule: etcd supports learners since 3.4",
            ),
            (
                &[&[members("bay-master-0=https://10.0.0.11:2380,b=https://10.0.0.12:2380")]],
                "ETCD_INITIAL_CLUSTER: names 2 members",
            ),
            (
                &[&[members(three), ("CLUSTER_UUID", "")]],
                "CLUSTER_UUID: is missing, and ETCD_INITIAL_CLUSTER names several members",
            ),
            (&[&[members("b=https://10.0.0.12:2380")]], "ETCD_INITIAL_CLUSTER: does not name this node"),
            (
                &[&[members("b=https://10.0.0.11:2380")]],
                "ETCD_INITIAL_CLUSTER: calls this node b, but INSTANCE_NAME is bay-master-0",
            ),
            (
                &[&[members("bay-master-0=https://10.0.0.11:2380,bay-master-0=https://10.0.0.12:2380,c=https://10.0.0.13:2380")]],
                "ETCD_INITIAL_CLUSTER: names bay-master-0 twice",
            ),
            (
                &[&[members("bay-master-0=https://10.0.0.11:2380,b=http://10.0.0.12:2380,c=https://10.0.0.13:2380")]],
                "ETCD_INITIAL_CLUSTER: contains b=http://10.0.0.12:2380",
            ),
            (
                &[old, &[("KUBE_TAG", "v1.5.3"), ("CONTAINER_RUNTIME", "cri-o"), ("CGROUP_DRIVER", "cgroupfs")]],
                "CONTAINER_RUNTIME: is not supported by 1.5",
            ),
            (&[&[("CONTAINERD_VERSION", "1.4.4")]], "CONTAINERD_VERSION: 1.4 does not support 1.28"),
            (&[&[("CONTAINERD_VERSION", "3.0.0")]], "CONTAINERD_VERSION: is unknown"),
            (&[old, &[("KUBE_TAG", "v1.3.2"), ("CGROUP_DRIVER", "systemd")]], "CGROUP_DRIVER: systemd is not supported by 1.3"),
            (&[&[("NODE_LABELS", "a=b,disk ssd")]], "NODE_LABELS: \"a=b,disk ssd\" is not a list"),
            (&[&[("NODE_LABELS", "a=b,-x=1")]], "NODE_LABELS: contains \"-x=1\""),
            (&[&[("NODE_LABELS", "node-role.kubernetes.io/gpu=")]], "NODE_LABELS: contains node-role.kubernetes.io/gpu"),
            // What an option says is checked as what the parameter says.
            (
                &[&[("KUBELET_OPTIONS", "--v=2 --node-labels=a=b,node-role.kubernetes.io/gpu=")]],
                "KUBELET_OPTIONS: --node-labels contains node-role.kubernetes.io/gpu",
            ),
            (&[&[("KUBELET_OPTIONS", "--node_labels=-x=1")]], "KUBELET_OPTIONS: --node-labels contains \"-x=1\""),
            (
                &[&[("KUBELET_OPTIONS", "--register-with-taints=a=b:Never")]],
                "KUBELET_OPTIONS: --register-with-taints contains \"a=b:Never\"",
            ),
            (
                &[&[("KUBELET_OPTIONS", "--kube-reserved=memory=lots")]],
                "KUBELET_OPTIONS: --kube-reserved contains \"memory=lots\"",
            ),
            // A worker reads them too, whatever quotes stand around them.
            (
                &[MINION, &[("KUBELET_OPTIONS", "--node-labels='node-role.kubernetes.io/worker='")]],
                "KUBELET_OPTIONS: --node-labels contains node-role.kubernetes.io/worker",
            ),
            (
                &[MINION, &[("KUBELET_OPTIONS", "--hostname-override=other")]],
                "KUBELET_OPTIONS: --hostname-override is other, but the node is set up with bay-node-0",
            ),
            (
                &[MINION, &[("KUBEPROXY_OPTIONS", "--hostname-override=other")]],
                "KUBEPROXY_OPTIONS: --hostname-override is other, but the node is set up with bay-node-0",
            ),
            (&[&[("KUBELET_OPTIONS", "--cgroup-driver=cgroupfs")]], "KUBELET_OPTIONS: --cgroup-driver is cgroupfs"),
            (
                &[&[("KUBEAPI_OPTIONS", "--service-cluster-ip-range=10.96.0.0/12")]],
                "KUBEAPI_OPTIONS: --service-cluster-ip-range is 10.96.0.0/12, but the node is set up with 10.254.0.0/16",
            ),
            (
                &[&[("KUBECONTROLLER_OPTIONS", "--service-cluster-ip-range=fd00::/108,10.254.0.0/16")]],
                "KUBECONTROLLER_OPTIONS: --service-cluster-ip-range is fd00::/108,10.254.0.0/16",
            ),
            (&[&[("KUBELET_OPTIONS", "--cluster-domain=blue.local")]], "KUBELET_OPTIONS: --cluster-domain is blue.local"),
            (
                &[&[("KUBELET_OPTIONS", "--cluster-dns=169.254.20.10,dns.example.org")]],
                "KUBELET_OPTIONS: --cluster-dns: dns.example.org is no address",
            ),
            (
                &[&[("KUBE_TAG", "v1.20.4"), ("KUBELET_OPTIONS", "--container-runtime=docker")]],
                "KUBELET_OPTIONS: --container-runtime is docker, but the node is set up with remote",
            ),
            (
                &[&[("SWAP", "allow"), ("KUBELET_OPTIONS", "--fail-swap-on")]],
                "KUBELET_OPTIONS: --fail-swap-on is true, but the node is set up with false",
            ),
            (
                &[
                    old,
                    &[
                        ("KUBE_SERVICE_ACCOUNT_KEY", ""),
                        ("KUBE_SERVICE_ACCOUNT_PRIVATE_KEY", ""),
                        ("KUBEAPI_OPTIONS", "--enable-admission-plugins=LimitRanger,ServiceAccount"),
                    ],
                ],
                "KUBEAPI_OPTIONS: --enable-admission-plugins contains ServiceAccount, but no key signs tokens",
            ),
            (&[&[("KUBELET_OPTIONS", "--node-ip=here")]], "KUBELET_OPTIONS: --node-ip is no address"),
            (&[&[("KUBELET_OPTIONS", "--node-ip=127.0.0.1")]], "KUBELET_OPTIONS: --node-ip is 127.0.0.1, one of the loopback"),
            (
                &[&[("KUBE_TAG", "v1.20.4"), ("KUBEPROXY_OPTIONS", "--proxy-mode=nftables")]],
                "KUBEPROXY_OPTIONS: --proxy-mode is nftables, which 1.20 does not support",
            ),
            (
                &[&[("KUBEPROXY_OPTIONS", "--proxy-mode=fast")]],
                "KUBEPROXY_OPTIONS: --proxy-mode is fast, which no version supports",
            ),
            (&[&[("NODE_LABELS", "a..b/c=1")]], "NODE_LABELS: contains \"a..b/c=1\""),
            (&[&[("NODE_TAINTS", "a.-b/c:NoSchedule")]], "NODE_TAINTS: contains \"a.-b/c:NoSchedule\""),
            (&[&[("NODE_TAINTS", "dedicated=gpu:Never")]], "NODE_TAINTS: contains \"dedicated=gpu:Never\""),
            (&[&[("NODE_TAINTS", "a=b:NoSchedule,a=c:NoSchedule")]], "NODE_TAINTS: contains a:NoSchedule more than once"),
            (&[&[("KUBE_RESERVED", "memory=lots")]], "KUBE_RESERVED: contains \"memory=lots\""),
            (&[&[("PORTAL_NETWORK_CIDR", "10.254.0.0/29")]], "PORTAL_NETWORK_CIDR: 10.254.0.0/29 is too small"),
            (
                &[&[("MASTER_ADDRESSES", "10.0.0.11,10.0.0.12")]],
                "ETCD_INITIAL_CLUSTER: is missing, and MASTER_ADDRESSES names several",
            ),
            (
                &[&[("KUBE_NODE_IP", "2001:db8::11")]],
                "PORTAL_NETWORK_CIDR: 10.254.0.0/16 is of a different address family than KUBE_NODE_IP",
            ),
            (
                &[&[("PODS_NETWORK_CIDR", "fd00:2::/56")]],
                "PORTAL_NETWORK_CIDR: 10.254.0.0/16 is of a different address family than PODS_NETWORK_CIDR",
            ),
            (
                &[old, &[("KUBE_TAG", "v1.5.3"), ("CGROUP_DRIVER", "cgroupfs"), ("NODE_TAINTS", "a=b:NoSchedule")]],
                "NODE_TAINTS: is not supported by 1.5",
            ),
            (&[&[("NODEGROUP_NAME", "a/b")]], "NODEGROUP_NAME: cannot be a label's value"),
            (&[&[("KUBE_RESERVED", "memory=1.2.3Gi")]], "KUBE_RESERVED: contains \"memory=1.2.3Gi\""),
            (&[&[("SYSTEM_RESERVED", "cpu=.")]], "SYSTEM_RESERVED: contains \"cpu=.\""),
            (&[old, &[("KUBE_TAG", "v1.12.3"), ("KUBE_RESERVED", "pid=100")]], "KUBE_RESERVED: contains pid"),
            (
                &[old, &[("KUBE_TAG", "v1.5.3"), ("CGROUP_DRIVER", "cgroupfs"), ("ETCD_TAG", "v3.6.1")]],
                "ETCD_TAG: names an etcd release without",
            ),
            (&[old, &[("ETCD_TAG", "2.3.7")]], "ETCD_TAG: names an etcd release that 1.15 cannot use"),
            (&[&[("CONTAINERD_VERSION", "weekly")]], "CONTAINERD_VERSION: is not a known version"),
            (
                &[&[members("bay-master-0=https://10.0.0.11:2380,b=https://:bad,c=https://10.0.0.13:2380")]],
                "ETCD_INITIAL_CLUSTER: contains b=https://:bad",
            ),
            (&[&[("KUBE_API_PORT", "2379")]], "KUBE_API_PORT: 2379 is the port of etcd's clients"),
            (
                &[&[("KUBE_TAG", "v1.9.3"), ("KUBE_API_PORT", "8080"), ("CONTAINER_RUNTIME", "docker")]],
                "KUBE_API_PORT: 8080 is the port of the API server (plaintext)",
            ),
            (
                &[
                    MINION,
                    &[
                        ("REGISTRY_ENABLED", "True"),
                        ("REGISTRY_CONTAINER", "c"),
                        ("REGISTRY_AUTH_URL", "auth_url"),
                        ("REGISTRY_USERNAME", "u"),
                        ("REGISTRY_PASSWORD", "p"),
                    ],
                ],
                "REGISTRY_AUTH_URL: is not an http URL",
            ),
            (&[&[("INSTANCE_NAME", "")]], "INSTANCE_NAME: is missing"),
            (&[old, &[("KUBE_TAG", "v1.1.8"), ("CGROUP_DRIVER", "cgroupfs")]], "HYPERKUBE_PREFIX: is missing"),
            (
                &[
                    MINION,
                    &[
                        ("REGISTRY_ENABLED", "True"),
                        ("REGISTRY_CONTAINER", "c"),
                        ("AUTH_URL", "https://k.example.org/v3"),
                        ("TRUSTEE_USERNAME", "u"),
                    ],
                ],
                "REGISTRY_PASSWORD: is missing",
            ),
            (&[&[("KUBELET_OPTIONS", "--allow-privileged=true")]], "KUBELET_OPTIONS: "),
            (&[&[("KUBEAPI_OPTIONS", "--insecure-port=8080")]], "KUBEAPI_OPTIONS: "),
        ] {
            let found = mistakes(changes);
            assert_eq!(found.len(), 1, "{changes:?}: {found:?}");
            assert!(found[0].starts_with(expected), "{changes:?}: {}", found[0]);
        }
    }

    #[test]
    fn what_looks_odd_and_is_right_is_taken() {
        let three = "bay-master-0=https://10.0.0.11:2380,b=https://10.0.0.12:2380,c=https://10.0.0.13:2380";
        let old_names: &[(&str, &str)] =
            &[("KUBE_TAG", "v1.6.13"), ("CONTAINER_RUNTIME", "docker"), ("CA_CERTIFICATE", crate::kubernetes::fixtures::MAIN_CA)];
        let four =
            "bay-master-0=https://10.0.0.11:2380,b=https://10.0.0.12:2380,c=https://10.0.0.13:2380,d=https://10.0.0.14:2380";
        for changes in [
            &[&[("ETCD_INITIAL_CLUSTER", three)][..]][..],
            // Members join one by one.
            &[&[
                ("ETCD_INITIAL_CLUSTER", four),
                ("ETCD_INITIAL_CLUSTER_STATE", "existing"),
                ("ETCD_LEARNER", "true"),
                ("ETCD_TAG", "v3.5.13"),
            ]],
            // The token that counts is the cluster's that is there; one member agrees with itself.
            &[&[("ETCD_INITIAL_CLUSTER", three), ("ETCD_INITIAL_CLUSTER_STATE", "existing"), ("CLUSTER_UUID", "")]],
            &[&[("ETCD_INITIAL_CLUSTER", "bay-master-0=https://10.0.0.11:2380"), ("CLUSTER_UUID", "")]],
            &[&[("ETCD_INITIAL_CLUSTER", three), ("CLUSTER_UUID", ""), ("BAY_UUID", "3d9f2b60-7a41-4e0c-9c55-1b2a3c4d5e6f")]],
            &[&[("PORTAL_NETWORK_CIDR", "172.20.0.0/16")]],
            &[&[("KUBE_NODE_IP", "2001:db8::11"), ("PORTAL_NETWORK_CIDR", "fd00:1::/108"), ("PODS_NETWORK_CIDR", "fd00:2::/56")]],
            &[&[
                ("NODE_LABELS", "node.kubernetes.io/pool=a,example.org/x=,topology.kubernetes.io/zone=az1"),
                ("NODE_TAINTS", "a=b:NoSchedule,a=b:NoExecute,c:NoExecute"),
            ]],
            &[&[("KUBE_TAG", "v1.15.3"), ("NODE_LABELS", "node-role.kubernetes.io/gpu=true"), ("CONTAINER_RUNTIME", "docker")]],
            &[
                MINION,
                &[("API_BALANCER", "haproxy"), ("MASTER_ADDRESSES", "10.0.0.11,10.0.0.12,10.0.0.13"), ("KUBE_MASTER_IP", "")],
            ],
            // On a master too; without TLS nobody shows who he is.
            &[BALANCED, &[("KUBEAPI_OPTIONS", "--anonymous-auth=true")]],
            &[
                BALANCED,
                &[("KUBE_TAG", "v1.5.8"), ("CONTAINER_RUNTIME", "docker"), ("TLS_DISABLED", "True"), ("CERTIFICATES", "")],
            ],
            &[&[("KUBE_RESERVED", "cpu=100m,memory=256Mi,ephemeral-storage=1Gi")]],
            // Options that say the same as the parameters.
            &[&[
                ("SWAP", "allow"),
                (
                    "KUBELET_OPTIONS",
                    "--hostname-override=bay-master-0 --cgroup-driver=systemd --fail-swap-on=0 --node-ip=10.0.0.11 \
                     --cluster-domain=cluster.local --cluster-dns=169.254.20.10",
                ),
                ("KUBEAPI_OPTIONS", "--service-cluster-ip-range=10.254.0.1/16,fd00::/108"),
                ("KUBEPROXY_OPTIONS", "--hostname-override=bay-master-0 --proxy-mode=ipvs"),
            ]],
            &[&[("KUBE_TAG", "v1.20.4"), ("KUBELET_OPTIONS", "--container-runtime=remote")]],
            &[old_names, &[("INSTANCE_NAME", ""), ("KUBELET_OPTIONS", "--hostname-override=10.0.0.11")]],
        ] {
            assert_eq!(mistakes(changes), Vec::<String>::new(), "{changes:?}");
        }
        let dns = |network| spec(&[&[("PORTAL_NETWORK_CIDR", network)]]).unwrap().kubernetes.unwrap().networks.dns.to_string();
        assert_eq!((dns("172.20.0.0/16"), dns("10.254.0.0/16")), ("172.20.0.10".to_owned(), "10.254.0.10".to_owned()));
    }

    #[test]
    fn plugins_that_a_version_lacks_are_warned_of() {
        let list = "NamespaceLifecycle,PodSecurityPolicy,Initializers,Imaginary";
        let warned: Vec<_> =
            spec(&[&[("ADMISSION_CONTROL_LIST", list)]]).unwrap().warnings.iter().map(ToString::to_string).collect();
        assert_eq!(warned.len(), 3, "{warned:?}");
        for (found, expected) in warned.iter().zip([
            "contains PodSecurityPolicy, which 1.24 was the last to support",
            "contains Initializers, which 1.13 was the last to support",
            "contains Imaginary",
        ]) {
            assert!(found.contains(expected), "{found}");
        }
    }
}
