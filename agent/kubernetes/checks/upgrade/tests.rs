use std::time::Duration;

use super::*;
use crate::kubernetes::fixtures::{parameters, spec};
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::spec::words::Role;
use crate::kubernetes::versions::Component;

const MASTER: Role = Role::Master;
const WORKER: Role = Role::Minion;

fn release(text: &str) -> Release {
    Release::of(text).unwrap()
}

/// `a=1.28.9 b=? c=1.27.1`.
fn servers(text: &str) -> Vec<ApiServer> {
    let one = |(name, release): (&str, &str)| ApiServer {
        name: name.to_owned(),
        release: Release::of(release).ok_or_else(|| "it is away".to_owned()),
    };
    text.split_whitespace().filter_map(|word| word.split_once('=')).map(one).collect()
}

fn nodes(text: &str) -> Vec<Kubelet> {
    let one = |(node, release): (&str, &str)| Kubelet {
        node: node.to_owned(),
        release: Release::of(release),
        is_master: node.starts_with('m'),
    };
    text.split_whitespace().filter_map(|word| word.split_once('=')).map(one).collect()
}

/// `ok: `, `unknown: ` or `problem: `, then all findings and remedies.
fn shown(row: &Row) -> String {
    assert!(!row.findings.is_empty() && (row.verdict == Verdict::Ok || !row.remedies.is_empty()), "{row:?}");
    let verdict = format!("{:?}", row.verdict).to_lowercase();
    format!("{verdict}: {} / {}", row.findings.join("; "), row.remedies.join("; "))
}

fn assert_shows(row: &Row, expected: &str, about: &str) {
    let (verdict, words) = expected.split_once(": ").unwrap();
    let found = shown(row);
    assert!(
        found.starts_with(&format!("{verdict}: ")) && words.split(" | ").all(|part| found.contains(part)),
        "{about}\n{found}\n{expected}"
    );
}

#[test]
fn a_release_is_read_from_tags_and_from_what_programs_say() {
    for (text, expected, tag) in [
        ("1.21", "1.21", "v1.21.0"),
        ("v1.21.3", "1.21.3", "v1.21.3"),
        ("Kubernetes v1.28.9\n", "1.28.9", "v1.28.9"),
        ("v1.23.3-rancher1", "1.23.3", "v1.23.3"),
        ("v1.29.0-rc.1", "1.29.0", "v1.29.0"),
        ("v1.28+", "1.28", "v1.28.0"),
    ] {
        assert_eq!((release(text).to_string().as_str(), release(text).tag().as_str()), (expected, tag), "{text}");
    }
    for text in ["", "2.1", "latest", "1", "1.x"] {
        assert_eq!(Release::of(text), None, "{text}");
    }
}

#[test]
fn api_servers_go_one_minor_at_a_time_and_stay_within_one_of_each_other() {
    for (role, target, running, expected) in [
        (MASTER, "1.29", "a=1.28.9", "ok: 1.28.9 runs at a"),
        (MASTER, "1.28.10", "a=1.28.9 b=1.28.9", "ok: 1.28.9 runs at a, b"),
        (MASTER, "1.28.1", "a=1.28.9", "ok: 1.28.9 runs at a"),
        // One master is done.
        (MASTER, "1.29", "a=1.29.4 b=1.28.9", "ok: 1.28.9 runs at b | 1.29.4 runs at a"),
        (MASTER, "1.30", "a=1.28.9", "problem: 1.30 is 2 minors newer than 1.28 | go to 1.29 first"),
        (MASTER, "1.30", "a=1.29.4 b=1.28.9", "problem: 1.30 is 2 minors newer than 1.28 | go to 1.29 first"),
        (MASTER, "1.27", "a=1.28.9", "problem: 1.28 runs: 1.27 would be a downgrade | etcd restore"),
        (MASTER, "1.28", "a=1.28.9 b=1.29.4", "problem: 1.29 runs: 1.28 would be a downgrade"),
        (
            MASTER,
            "1.29",
            "a=1.26.1 b=1.28.9",
            "problem: a serves 1.26 and b 1.28: API servers may be one minor apart | of a to 1.27 first",
        ),
        (MASTER, "1.29", "a=1.28.9 b=?", "unknown: 1.28.9 runs at a | b does not say its release: it is away | systemctl status"),
        (MASTER, "1.30", "a=1.28.9 b=?", "problem: 2 minors newer | b does not say"),
        (MASTER, "1.29", "a=?", "unknown: a does not say"),
        (WORKER, "1.29", "a=1.29.4", "ok: 1.29.4 runs at a"),
        (WORKER, "1.28", "a=1.29.4", "ok: 1.29.4 runs at a"),
        (
            WORKER,
            "1.29",
            "a=1.28.9",
            "problem: of 1.29 would be newer than an API server of 1.28 | upgrade every master to 1.29 first",
        ),
        (WORKER, "1.29", "a=1.29.4 b=1.28.9", "problem: newer than an API server of 1.28"),
        (WORKER, "1.25", "a=1.28.9", "ok: 1.28.9"),
        (
            WORKER,
            "1.24",
            "a=1.28.9",
            "problem: a kubelet of 1.24 is too old for an API server of 1.28, which takes 1.25 and newer",
        ),
        (WORKER, "1.24", "a=1.27.3", "problem: too old for an API server of 1.27, which takes 1.25 and newer"),
    ] {
        assert_shows(&api_servers(role, release(target), &servers(running)), expected, &format!("{role:?} {target} {running}"));
    }
}

#[test]
fn kubelets_are_not_newer_and_two_or_three_minors_older_at_the_most() {
    let api = servers("a=1.28.9");
    for (role, target, api, found, expected) in [
        (MASTER, "1.29", "a=1.28.9", "m=1.28.9 w=1.26.4", "ok: 1.26.4 to 1.28.9 on 2 nodes"),
        (MASTER, "1.29", "a=1.28.9", "m=1.28.9", "ok: 1.28.9 on 1 node"),
        (
            MASTER,
            "1.29",
            "a=1.28.9",
            "m=1.28.9 w=1.25.4 x=1.25.1",
            "problem: the kubelet of w, x is more than 3 minors older than 1.29 | upgrade these nodes to 1.26 or later first",
        ),
        (MASTER, "1.28", "a=1.27.9", "w=1.25.4", "ok: 1.25.4"),
        (MASTER, "1.28", "a=1.27.9", "w=1.24.4", "problem: more than 3 minors older than 1.28"),
        // Before 1.28 two at the most.
        (MASTER, "1.27", "a=1.26.9", "w=1.25.4", "ok: 1.25.4"),
        (
            MASTER,
            "1.27",
            "a=1.26.9",
            "w=1.24.4",
            "problem: more than 2 minors older than 1.27 | upgrade these nodes to 1.25 or later",
        ),
        (MASTER, "1.29", "a=1.28.9 b=1.29.1", "m=1.29.1", "ok: 1.29.1 on 1 node"),
        // A master's kubelet asks its own API server, a worker's any.
        (
            MASTER,
            "1.29",
            "a=1.28.9 b=1.29.1",
            "w=1.29.1",
            "problem: the kubelet of w is newer than an API server that it asks | upgrade the masters first",
        ),
        (MASTER, "1.29", "a=1.28.9", "m=1.29.1", "problem: the kubelet of m is newer"),
        (MASTER, "1.29", "a=1.28.9", "m=1.28.9 w=?", "unknown: w has not reported | kubectl get nodes"),
        (MASTER, "1.29", "a=1.28.9", "", "unknown: no node has reported"),
        (WORKER, "1.29", "a=1.29.4", "w=1.28.9", "ok: 1.28.9 on 1 node"),
        (WORKER, "1.29", "a=1.29.4", "w=1.26.9", "ok: 1.26.9"),
        (WORKER, "1.28", "a=1.29.4", "w=1.29.4", "problem: 1.29 runs: 1.28 would be a downgrade"),
    ] {
        assert_shows(
            &kubelets(role, release(target), &servers(api), &Ok(nodes(found))),
            expected,
            &format!("{role:?} {target} {api} {found}"),
        );
    }
    assert_shows(
        &kubelets(MASTER, release("1.29"), &api, &Err("403".to_owned())),
        "unknown: could not be read: 403",
        "no answer",
    );
    assert!(other_nodes(MASTER).is_none());
    assert_eq!(other_nodes(WORKER).unwrap().verdict, Verdict::Unknown);
}

#[test]
fn programs_are_not_newer_than_what_is_asked_for_and_controllers_one_older_at_the_most() {
    use Component::{ApiServer, ControllerManager, Kubelet, Proxy, Scheduler};
    let all = |text: &str| {
        let one = |(component, text): (Component, &str)| InstalledRelease {
            component,
            release: Release::of(text).ok_or_else(|| "it does not start".to_owned()),
        };
        [ApiServer, ControllerManager, Scheduler, Kubelet, Proxy].into_iter().zip(text.split(' ')).map(one).collect::<Vec<_>>()
    };
    let same = |release: &str| [release; 5].join(" ");
    for (which, target, installed, expected) in [
        (
            "programs",
            "1.29",
            same("1.28.9"),
            "ok: installed: kube-apiserver 1.28.9, kubelet 1.28.9 | to install before the deployment asks for 1.29: kube-apiserver, kubelet",
        ),
        ("programs", "1.29", same("1.29.4"), "ok: installed: kube-apiserver 1.29.4"),
        (
            "programs",
            "1.29",
            same("1.30.1"),
            "problem: kube-apiserver 1.30.1 and kubelet 1.30.1 would run, which is newer than 1.29",
        ),
        (
            "programs",
            "1.29",
            same("?"),
            "unknown: kube-apiserver does not say its release: it does not start | kube-apiserver --version",
        ),
        ("controllers", "1.29", same("1.28.9"), "ok: installed: kube-controller-manager 1.28.9, kube-scheduler 1.28.9"),
        ("controllers", "1.29", same("1.29.4"), "ok: 1.29.4"),
        (
            "controllers",
            "1.29",
            "1.29.4 1.27.9 1.29.4 1.29.4 1.29.4".to_owned(),
            "problem: kube-controller-manager 1.27.9 is more than one minor older | go to 1.28 first",
        ),
        (
            "controllers",
            "1.28",
            "1.28.9 1.28.9 1.29.4 1.28.9 1.28.9".to_owned(),
            "problem: kube-scheduler 1.29.4 would be newer than an API server of 1.28",
        ),
        ("proxy", "1.29", same("1.26.9"), "ok: installed: kube-proxy 1.26.9"),
        ("proxy", "1.29", same("1.25.9"), "problem: kube-proxy 1.25.9 is more than 3 minors older than 1.29"),
        ("proxy", "1.27", same("1.24.9"), "problem: more than 2 minors older"),
        ("proxy", "1.28", same("1.29.4"), "problem: kube-proxy 1.29.4 would be newer"),
        ("proxy", "1.28", String::new(), "unknown: none of them was found"),
    ] {
        let (target, installed) = (release(target), if installed.is_empty() { Vec::new() } else { all(&installed) });
        let row = match which {
            "programs" => installed_programs(MASTER, target, &installed),
            "controllers" => controllers(target, &installed),
            _ => proxy(target, &installed),
        };
        assert_shows(&row, expected, which);
    }
    let what = |cause: &str| vec![(cause.to_owned(), "use another image".to_owned())];
    let refused = OtherPrograms { refused: what("containerd 1.4 is installed"), ..OtherPrograms::default() };
    assert_shows(&other_programs(Some(&refused)), "problem: containerd 1.4 is installed | use another image", "");
    // Attack: a containerd that was removed, could not be run or named no release was "ok".
    let unknown = OtherPrograms { unknown: what("containerd prints no release"), ..OtherPrograms::default() };
    assert_shows(&other_programs(Some(&unknown)), "unknown: containerd prints no release | use another image", "");
    let warned = OtherPrograms { warnings: what("etcd 3.4 is installed, but ETCD_TAG is 3.5"), ..OtherPrograms::default() };
    assert_shows(&other_programs(Some(&warned)), "ok: but ETCD_TAG is 3.5", "");
    assert_shows(&other_programs(Some(&OtherPrograms::default())), "ok: go with it", "");
    // Attack: they were judged for the release in place.
    assert_shows(&other_programs(None), "unknown: not looked at | correct the parameters first", "");
}

#[test]
fn what_parameters_ask_for_and_the_release_lacks_is_named() {
    let at = |tag: &str, options: &str| -> (Vec<crate::kubernetes::Mistake>, Vec<crate::kubernetes::Mistake>) {
        let parameters = parameters(&[("KUBE_TAG", tag), ("KUBEAPI_OPTIONS", options), ("CONTAINER_RUNTIME", "containerd")]);
        match NodeSpec::from_parameters(&parameters) {
            Ok(spec) => (Vec::new(), spec.warnings),
            Err(mistakes) => (mistakes, Vec::new()),
        }
    };
    for (from, to, options_text, expected) in [
        ("v1.28.9", "v1.29.0", "--v=3", "ok: 1.29 has every flag"),
        (
            "v1.32.1",
            "v1.33.0",
            "--cloud-config=/etc/x",
            "problem: KUBEAPI_OPTIONS: --cloud-config was removed: kube-apiserver 1.32 is the last known to have it",
        ),
        (
            "v1.28.9",
            "v1.29.0",
            "--of-somebody=1",
            "unknown: KUBEAPI_OPTIONS: | --of-somebody: it is unknown whether kube-apiserver 1.29 has it",
        ),
        ("v1.37.0", "v1.38.0", "--v=3", "problem: KUBE_TAG: selects 1.38, which this agent does not support | newer agent"),
    ] {
        let before = at(from, options_text).1;
        let (mistakes, warnings) = at(to, options_text);
        assert_shows(&options(release(to).minor, &mistakes, &warnings, &before), expected, options_text);
    }
    let unknown = crate::kubernetes::Mistake::general(
        "KUBEAPI_OPTIONS",
        "--x: it is unknown whether kube-apiserver 1.29 has it",
        "",
        "check it",
    );
    assert_shows(
        &options(release("1.29").minor, &[], &[unknown], &[]),
        "unknown: KUBEAPI_OPTIONS: --x: it is unknown | check it",
        "",
    );
}

#[test]
fn removed_apis_are_named_with_file_and_replacement() {
    let object = |api_version: &str, kind: &str, annotation: &str| ManifestObject {
        place: "/etc/kubernetes/manifests/a.yaml, line 1".to_owned(),
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        annotations: Some(annotation.to_owned()).into_iter().filter(|name| !name.is_empty()).collect(),
    };
    let seccomp = "seccomp.security.alpha.kubernetes.io/pod";
    for (target, object, expected) in [
        ("1.24", object("policy/v1beta1", "PodDisruptionBudget", ""), "ok: 1 object of static pods and add-ons"),
        (
            "1.25",
            object("policy/v1beta1", "PodDisruptionBudget", ""),
            "problem: a.yaml, line 1: policy/v1beta1 PodDisruptionBudget is not served from 1.25 on | write it as policy/v1",
        ),
        ("1.25", object("policy/v1beta1", "PodSecurityPolicy", ""), "problem: not served | nothing takes its place"),
        ("1.24", object("v1", "Pod", seccomp), "ok: 1 object"),
        (
            "1.25",
            object("v1", "Pod", seccomp),
            "problem: does not read the annotation seccomp.security.alpha.kubernetes.io/pod from 1.25 on | use securityContext.seccompProfile",
        ),
    ] {
        assert_shows(&removed_apis(release(target).minor, &[object], &[]), expected, target);
    }
    assert_shows(
        &removed_apis(release("1.29").minor, &[], &["b.yaml: broken".to_owned()]),
        "unknown: b.yaml: broken | by hand",
        "",
    );
}

fn member(name: &str, release: &str, healthy: bool) -> EtcdMemberState {
    EtcdMemberState {
        name: name.to_owned(),
        release: Some(release.to_owned()).filter(|text| !text.is_empty()),
        healthy,
        started: !name.starts_with("http"),
    }
}

#[test]
fn etcd_goes_one_minor_at_a_time_and_never_back() {
    let installed =
        |text: &str| if text.is_empty() { Err("it is not there".to_owned()) } else { Ok(format!("etcd Version: {text}")) };
    for (new, running, expected) in [
        ("3.4.23", &["3.4.23"][..], "ok: 3.4 runs, 3.4.23 is installed"),
        ("3.5.1", &["3.4.23", "3.4.23"], "ok: 3.4 runs, 3.5.1 is installed"),
        ("3.5.1", &["3.5.1", "3.4.23"], "ok: 3.4 to 3.5 run"),
        ("3.6.0", &["3.4.23"], "problem: etcd goes one minor at a time | the minor after 3.4 first"),
        ("3.6.0", &["3.5.1", "3.4.23"], "problem: etcd goes one minor at a time"),
        ("3.4.23", &["3.5.1"], "problem: would be a downgrade | install etcd 3.5 or later"),
        ("3.0.17", &["2.3.8"], "ok: 2.3 runs"),
        ("3.1.0", &["2.3.8"], "problem: one minor at a time"),
        ("3.4.23", &[""], "unknown: no member says its release"),
        ("3.4.23", &["3.4.23", ""], "unknown: m1 does not say its release"),
        ("", &["3.4.23"], "unknown: 3.4 runs; the installed etcd does not say its release: it is not there"),
        ("nonsense", &["3.4.23"], "unknown: names no release"),
    ] {
        let members = running.iter().enumerate().map(|(number, text)| member(&format!("m{number}"), text, true)).collect();
        assert_shows(&etcd_release(&installed(new), &Ok(members)), expected, &format!("{new} {running:?}"));
    }
    assert_shows(
        &etcd_release(&installed("3.4.23"), &Err("it is away".to_owned())),
        "unknown: the members are not known: it is away",
        "",
    );
}

#[test]
fn every_member_must_be_healthy_and_a_snapshot_recent() {
    for (members, expected) in [
        (vec![member("a", "3.4.1", true)], "ok: 1 of 1 member healthy"),
        (vec![member("a", "3.4.1", true), member("b", "3.4.1", true)], "ok: 2 of 2 members healthy"),
        (
            vec![member("a", "3.4.1", true), member("b", "", false)],
            "problem: 1 of 2 members healthy; member b is not healthy | journalctl -u etcd",
        ),
        (
            vec![member("a", "3.4.1", true), member("https://192.0.2.3:2380", "", false)],
            "problem: https://192.0.2.3:2380 has not started yet",
        ),
    ] {
        assert_shows(&etcd_members(&Ok(members)), expected, expected);
    }
    assert_shows(&etcd_members(&Err("it is away".to_owned())), "unknown: it is away", "");
    for (newest, expected) in [
        (LatestSnapshot::Taken(Duration::from_mins(17)), "ok: 17 minutes old"),
        (LatestSnapshot::Taken(Duration::from_hours(1)), "ok: 60 minutes old"),
        (LatestSnapshot::Taken(Duration::from_mins(61)), "problem: 61 minutes old | `heat-node-agent etcd snapshot`"),
        (LatestSnapshot::Taken(Duration::from_hours(72)), "problem: 3 days old"),
        (LatestSnapshot::None, "problem: has none | `heat-node-agent etcd snapshot`"),
        (LatestSnapshot::NoVolume, "unknown: no etcd volume | `heat-node-agent etcd snapshot FILE`"),
        (LatestSnapshot::OfV2, "unknown: v2 store | etcdctl backup"),
        (LatestSnapshot::Unreadable("x".to_owned()), "unknown: could not be listed: x | etcd snapshot"),
    ] {
        assert_shows(&etcd_snapshot(&newest), expected, expected);
    }
}

#[test]
fn the_worst_check_counts_and_the_order_names_masters_that_are_older() {
    let (ok, unknown) = (Row::ok("a", "x"), Row::unknown("b", "x", "y"));
    let mut problem = Row::ok("c", "x");
    problem.problem("x", "y");
    assert_eq!(verdict(std::slice::from_ref(&ok)), Verdict::Ok);
    assert_eq!(verdict(&[ok.clone(), unknown.clone()]), Verdict::Unknown);
    assert_eq!(verdict(&[problem, ok, unknown]), Verdict::Problem);
    let steps = order(MASTER, release("1.29.4"), &servers("m1=1.29.4 m2=1.28.9")).join("\n");
    for words in [
        "etcd snapshot",
        "masters (still older: m2), one after another: drain",
        "KUBE_TAG=v1.29.4",
        "workers, once every master serves 1.29",
    ] {
        assert!(steps.contains(words), "{words} in {steps}");
    }
    let places: Vec<_> =
        ["kube-apiserver", "kube-controller-manager", "kubelet", "kube-proxy"].iter().map(|name| steps.find(name)).collect();
    assert!(places.is_sorted() && places[0].is_some(), "{steps}");
    assert!(order(MASTER, release("1.29"), &servers("m1=?")).join("\n").contains("KUBE_TAG=v1.29.PATCH"));
    // Where it cannot go there is no order.
    for target in ["1.30", "1.27"] {
        assert_eq!(order(MASTER, release(target), &servers("m1=1.28.9")), Vec::<String>::new(), "{target}");
    }
}

#[test]
fn each_role_asks_the_api_as_it_may() {
    let address = |text: &str| text.parse().unwrap();
    for (changes, server, certificate, others) in [
        (&[][..], "https://127.0.0.1:6443", Some("/etc/kubernetes/certs/admin.crt"), ""),
        (
            &[
                ("MASTER_ADDRESSES", "192.0.2.11,192.0.2.12,192.0.2.13"),
                (
                    "ETCD_INITIAL_CLUSTER",
                    "blue-master-0=https://192.0.2.11:2380,b=https://192.0.2.12:2380,c=https://192.0.2.13:2380",
                ),
            ],
            "https://127.0.0.1:6443",
            Some("/etc/kubernetes/certs/admin.crt"),
            "192.0.2.12 192.0.2.13",
        ),
        (
            &[("ROLE", "minion"), ("KUBE_MASTER_IP", "192.0.2.5")],
            "https://192.0.2.5:6443",
            Some("/etc/kubernetes/certs/kubelet.crt"),
            "",
        ),
        (
            &[("TLS_DISABLED", "true"), ("CERTIFICATES", ""), ("KUBE_API_PORT", "8080"), ("KUBE_TAG", "v1.18.0")],
            "http://127.0.0.1:8080",
            None,
            "",
        ),
    ] {
        let access = api_access(&spec(changes)).unwrap();
        assert_eq!(
            (access.server.as_str(), access.identity.as_ref().map(|one| one.certificate.as_str())),
            (server, certificate),
            "{changes:?}"
        );
        assert_eq!(access.other_masters().collect::<Vec<_>>().join(" "), others, "{changes:?}");
        assert_eq!(
            (access.node.as_str(), access.address, access.manifests.as_str()),
            ("blue-master-0", Some(address("192.0.2.11")), "/etc/kubernetes/manifests")
        );
    }
    let moved = api_access(&spec(&[("KUBELET_OPTIONS", "--pod-manifest-path=/srv/pods")])).unwrap();
    assert_eq!((moved.manifests.as_str(), moved.server_at("192.0.2.12").as_str()), ("/srv/pods", "https://192.0.2.12:6443"));
}
