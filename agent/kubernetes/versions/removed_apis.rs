//! What manifests may no longer say: versions of APIs that a minor does not serve, and annotations that its kubelet does not read.
//!
//! In: what a manifest says, and a minor. Out: since when that is gone, and what takes its place. Only what the table has is known to be
//! gone: an API of somebody's own (a CustomResourceDefinition) is none of Kubernetes'.

use super::Minor;

/// A version of an API that is no longer served.
#[derive(Debug, PartialEq, Eq)]
pub struct RemovedApi {
    /// `policy/v1beta1`.
    pub api_version: &'static str,
    /// The kinds that went at once.
    pub kinds: &'static [&'static str],
    /// The first minor without them.
    pub since: Minor,
    /// The version to use in its place; empty where there is none.
    pub instead: &'static str,
}

const fn api(since: u16, api_version: &'static str, kinds: &'static [&'static str], instead: &'static str) -> RemovedApi {
    RemovedApi { api_version, kinds, since: Minor(since), instead }
}

const FLOWS: &[&str] = &["FlowSchema", "PriorityLevelConfiguration"];
const REVIEWS: &[&str] =
    &["LocalSubjectAccessReview", "SelfSubjectAccessReview", "SelfSubjectRulesReview", "SubjectAccessReview"];

/// From the Deprecated API Migration Guide of Kubernetes (kubernetes.io/docs/reference/using-api/deprecation-guide), "Removed APIs by
/// release", which begins with 1.16.
const APIS: [RemovedApi; 29] = [
    api(32, "flowcontrol.apiserver.k8s.io/v1beta3", FLOWS, "flowcontrol.apiserver.k8s.io/v1"),
    api(29, "flowcontrol.apiserver.k8s.io/v1beta2", FLOWS, "flowcontrol.apiserver.k8s.io/v1beta3"),
    api(27, "storage.k8s.io/v1beta1", &["CSIStorageCapacity"], "storage.k8s.io/v1"),
    api(26, "flowcontrol.apiserver.k8s.io/v1beta1", FLOWS, "flowcontrol.apiserver.k8s.io/v1beta2"),
    api(26, "autoscaling/v2beta2", &["HorizontalPodAutoscaler"], "autoscaling/v2"),
    api(25, "autoscaling/v2beta1", &["HorizontalPodAutoscaler"], "autoscaling/v2"),
    api(25, "batch/v1beta1", &["CronJob"], "batch/v1"),
    api(25, "discovery.k8s.io/v1beta1", &["EndpointSlice"], "discovery.k8s.io/v1"),
    api(25, "events.k8s.io/v1beta1", &["Event"], "events.k8s.io/v1"),
    api(25, "node.k8s.io/v1beta1", &["RuntimeClass"], "node.k8s.io/v1"),
    api(25, "policy/v1beta1", &["PodDisruptionBudget"], "policy/v1"),
    api(25, "policy/v1beta1", &["PodSecurityPolicy"], ""),
    api(
        22,
        "admissionregistration.k8s.io/v1beta1",
        &["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"],
        "admissionregistration.k8s.io/v1",
    ),
    api(22, "apiextensions.k8s.io/v1beta1", &["CustomResourceDefinition"], "apiextensions.k8s.io/v1"),
    api(22, "apiregistration.k8s.io/v1beta1", &["APIService"], "apiregistration.k8s.io/v1"),
    api(22, "authentication.k8s.io/v1beta1", &["TokenReview"], "authentication.k8s.io/v1"),
    api(22, "authorization.k8s.io/v1beta1", REVIEWS, "authorization.k8s.io/v1"),
    api(22, "certificates.k8s.io/v1beta1", &["CertificateSigningRequest"], "certificates.k8s.io/v1"),
    api(22, "coordination.k8s.io/v1beta1", &["Lease"], "coordination.k8s.io/v1"),
    api(22, "extensions/v1beta1", &["Ingress"], "networking.k8s.io/v1"),
    api(22, "networking.k8s.io/v1beta1", &["Ingress", "IngressClass"], "networking.k8s.io/v1"),
    api(
        22,
        "rbac.authorization.k8s.io/v1beta1",
        &["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"],
        "rbac.authorization.k8s.io/v1",
    ),
    api(22, "scheduling.k8s.io/v1beta1", &["PriorityClass"], "scheduling.k8s.io/v1"),
    api(22, "storage.k8s.io/v1beta1", &["CSIDriver", "CSINode", "StorageClass", "VolumeAttachment"], "storage.k8s.io/v1"),
    api(16, "extensions/v1beta1", &["NetworkPolicy"], "networking.k8s.io/v1"),
    api(16, "extensions/v1beta1", &["PodSecurityPolicy"], "policy/v1beta1"),
    api(16, "extensions/v1beta1", &["DaemonSet", "Deployment", "ReplicaSet"], "apps/v1"),
    api(16, "apps/v1beta1", &["Deployment", "ReplicaSet", "StatefulSet"], "apps/v1"),
    api(16, "apps/v1beta2", &["DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"], "apps/v1"),
];

/// Beginnings of a static pod's annotations that a kubelet no longer reads, since when, and the field in their place (Kubernetes' changelogs
/// of 1.16 and 1.25).
const ANNOTATIONS: [(&str, Minor, &str); 3] = [
    ("scheduler.alpha.kubernetes.io/critical-pod", Minor(16), "spec.priorityClassName"),
    ("seccomp.security.alpha.kubernetes.io/pod", Minor(25), "securityContext.seccompProfile"),
    ("container.seccomp.security.alpha.kubernetes.io/", Minor(25), "securityContext.seccompProfile"),
];

/// What is known of the end of an API that a minor does not serve any more.
#[must_use]
pub fn removed_api(minor: Minor, api_version: &str, kind: &str) -> Option<&'static RemovedApi> {
    APIS.iter().find(|api| api.since <= minor && api.api_version == api_version && api.kinds.contains(&kind))
}

/// Since when an annotation of a static pod says nothing to a kubelet, where that is so in a minor, and which field does.
#[must_use]
pub fn removed_annotation(minor: Minor, name: &str) -> Option<(Minor, &'static str)> {
    let found = ANNOTATIONS.iter().find(|(start, since, _)| *since <= minor && name.starts_with(start));
    found.map(|(_, since, instead)| (*since, *instead))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_api_is_gone_from_its_minor_on_and_not_before() {
        for (api_version, kind, first_without, instead) in [
            ("policy/v1beta1", "PodDisruptionBudget", 25, "policy/v1"),
            ("policy/v1beta1", "PodSecurityPolicy", 25, ""),
            ("extensions/v1beta1", "Ingress", 22, "networking.k8s.io/v1"),
            ("extensions/v1beta1", "Deployment", 16, "apps/v1"),
            ("storage.k8s.io/v1beta1", "StorageClass", 22, "storage.k8s.io/v1"),
            ("storage.k8s.io/v1beta1", "CSIStorageCapacity", 27, "storage.k8s.io/v1"),
            ("flowcontrol.apiserver.k8s.io/v1beta3", "FlowSchema", 32, "flowcontrol.apiserver.k8s.io/v1"),
        ] {
            assert_eq!(removed_api(Minor(first_without - 1), api_version, kind), None, "{api_version} {kind}");
            let found = removed_api(Minor(first_without), api_version, kind).unwrap();
            assert_eq!((found.since, found.instead), (Minor(first_without), instead), "{api_version} {kind}");
            assert!(removed_api(Minor::NEWEST, api_version, kind).is_some(), "{api_version} {kind}");
        }
        for (api_version, kind) in
            [("v1", "Pod"), ("apps/v1", "Deployment"), ("policy/v1", "PodDisruptionBudget"), ("example.org/v1beta1", "Ingress")]
        {
            assert_eq!(removed_api(Minor::NEWEST, api_version, kind), None, "{api_version} {kind}");
        }
    }

    #[test]
    fn no_row_names_a_replacement_that_is_gone_as_early() {
        for api in &APIS {
            for kind in api.kinds {
                assert_eq!(removed_api(api.since, api.instead, kind), None, "{} {kind}", api.api_version);
            }
        }
    }

    #[test]
    fn an_annotation_is_gone_from_its_minor_on() {
        for (name, minor, instead) in [
            ("seccomp.security.alpha.kubernetes.io/pod", 24, None),
            ("seccomp.security.alpha.kubernetes.io/pod", 25, Some("securityContext.seccompProfile")),
            ("container.seccomp.security.alpha.kubernetes.io/web", 29, Some("securityContext.seccompProfile")),
            ("scheduler.alpha.kubernetes.io/critical-pod", 15, None),
            ("scheduler.alpha.kubernetes.io/critical-pod", 16, Some("spec.priorityClassName")),
            ("example.org/anything", 37, None),
        ] {
            assert_eq!(removed_annotation(Minor(minor), name).map(|(_, instead)| instead), instead, "{name} 1.{minor}");
        }
    }
}
