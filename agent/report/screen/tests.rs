use super::*;
use crate::report::component::take_in_volume_problem;
use crate::report::reason::RollbackEnd;
use crate::report::status::{AgentStatus, MetadataStatus, SCHEMA_VERSION, SignalStatus};
use crate::report::{Phase, explain};

const DAY: u64 = 86_400_000;

fn at(ago_ms: u64) -> String {
    Timestamp(now().0 - ago_ms).rfc3339()
}

fn now() -> Timestamp {
    Timestamp::parse_rfc3339("2026-03-10T12:00:00Z").unwrap()
}

fn style() -> Style {
    Style { width: 100, color: false, verbose: false }
}

fn page(status: &StatusDocument) -> String {
    screen(status, true, now(), Some("/ 3.1 of 9.8 GiB"), style())
}

fn component(name: &str, state: ComponentState) -> ComponentStatus {
    let unit = Some(format!("{name}.service"));
    ComponentStatus { name: name.into(), unit, state, since: at(3 * DAY), ..ComponentStatus::default() }
}

fn crash_loop() -> ComponentStatus {
    ComponentStatus {
        since: at(240_000),
        restarts: 11,
        problem: Some("crash-looping (11 restarts)".into()),
        cause: Some("exit status 1; its last line: \"failed to load Kubelet config file /var/lib/kubelet/config: strict decoding error: unknown field evictionHards\"".into()),
        remedy: Some("correct KUBELET_OPTIONS in the template and update the stack".into()),
        ..component("kubelet", ComponentState::Failed)
    }
}

fn deployment(name: &str, state: DeploymentState, failed: bool) -> DeploymentStatus {
    DeploymentStatus {
        id: format!("id-of-{name}"),
        name: name.into(),
        group: if name == "master" { "kubernetes-node" } else { "script" }.into(),
        state,
        status_code: Some(i32::from(failed) * 3),
        failed,
        since: Some(at(3 * DAY)),
        ..DeploymentStatus::signalled()
    }
}

fn volume(state: Option<ConditionState>) -> VolumeStatus {
    VolumeStatus {
        name: "etcd".into(),
        disk: "8c2b6d4e-5a8f-4c43-9d6a-1f6f4c1c2a11".into(),
        place: "/var/lib/etcd".into(),
        state,
        since: Some(at(3 * DAY)),
        ..VolumeStatus::default()
    }
}

fn ready() -> StatusDocument {
    StatusDocument {
        schema_version: SCHEMA_VERSION,
        agent: AgentStatus { version: "0.1.0".into(), pid: 7, started: at(4 * DAY) },
        identity: Some(IdentityStatus { instance: Some("7ee5 (SMBIOS)".into()), ..IdentityStatus::default() }),
        phase: Phase::Steady,
        summary: "watching".into(),
        sources: vec![SourceStatus {
            name: "cfn".into(),
            last_good: Some(at(12_000)),
            older: false,
            failures: 0,
            cause: None,
            remedy: None,
            next_try: None,
        }],
        deployments: vec![
            deployment("prepare", DeploymentState::Signalled, false),
            deployment("master", DeploymentState::Signalled, false),
        ],
        node: Some(NodeStatus {
            generation: 2,
            state: NodeState::Applied,
            deployment: Some("id-of-master".into()),
            role: Some("master".into()),
            name: Some("blue-master-0".into()),
            kube_version: Some("v1.28.9".into()),
            components: ["etcd", "kubelet"].map(|name| component(name, ComponentState::Healthy)).into(),
            volumes: vec![volume(Some(ConditionState::Ok))],
            certificates: Some(CertificatesStatus {
                first_to_expire: "kubelet".into(),
                first_expiry: "2027-03-09T12:00:00Z".into(),
                waits: None,
                ends: Vec::new(),
            }),
            ..NodeStatus::default()
        }),
        signals: vec![],
        conditions: vec![],
        metadata: MetadataStatus { source: Some("cfn".into()), expected: true, listed: Some(2) },
        budgets: Vec::new(),
        set_aside: Vec::new(),
    }
}

fn with_node(change: impl FnOnce(&mut NodeStatus)) -> StatusDocument {
    let mut status = ready();
    status.node.as_mut().into_iter().for_each(|node| {
        node.name = Some("blue-master-0".into());
    });
    change(status.node.as_mut().unwrap());
    status
}

fn step(name: &str, state: ConditionState) -> Condition {
    let subject = name.split_once(' ').and_then(|(kind, of)| match kind {
        "volume" => Some(Subject::Volume(of.into())),
        "unit" => Some(Subject::Unit(of.into())),
        "gate" => Some(Subject::Gate(of.into())),
        _ => None,
    });
    Condition { name: name.into(), subject, state, since: Some(at(90_000)), ..Condition::default() }
}

/// etcd's volume is not attached; the first that it holds up are shown, too.
fn waiting() -> StatusDocument {
    let volume_step = Condition {
        cause: Some("no disk with the Cinder id 8c2b6d4e-5a8f-4c43-9d6a-1f6f4c1c2a11; present: vda (10 GiB)".into()),
        remedy: Some("`openstack server volume list SERVER` shows what is attached".into()),
        given_up: Some("2026-03-10T12:20:00Z".into()),
        ..step("volume etcd", ConditionState::Waiting)
    };
    let etcd = Condition { waits_for: vec!["volume etcd".into()], ..step("unit etcd.service", ConditionState::Pending) };
    let mut status = with_node(|node| {
        node.state = NodeState::Applying;
        node.components.clear();
        node.certificates = None;
        node.volumes = vec![VolumeStatus {
            cause: volume_step.cause.clone(),
            remedy: volume_step.remedy.clone(),
            ..volume(Some(ConditionState::Waiting))
        }];
        node.steps = vec![
            step("files", ConditionState::Ok),
            volume_step,
            step("unit systemd-sysctl.service", ConditionState::Ok),
            step("unit containerd.service", ConditionState::Ok),
            step("gate containerd", ConditionState::Ok),
            etcd,
            step("gate etcd", ConditionState::Pending),
        ];
    });
    status.deployments[1].state = DeploymentState::Running;
    status.deployments[1].status_code = None;
    status
}

/// A foreign file system.
fn failed() -> StatusDocument {
    let mut status = with_node(|node| {
        node.state = NodeState::Rejected;
        node.components.clear();
        node.reason = Some("HNA-0306 volume etcd: holds ext4 (remedy: wipe it)".into());
        node.code = Some("HNA-0306".into());
        let why = Condition {
            cause: Some("it holds an ext4 file system".into()),
            remedy: Some("`wipefs -a /dev/vdc`, if nobody needs it".into()),
            ..step("volume etcd", ConditionState::Failed)
        };
        node.volumes =
            vec![VolumeStatus { cause: why.cause.clone(), remedy: why.remedy.clone(), ..volume(Some(ConditionState::Failed)) }];
        node.steps = vec![step("unit containerd.service", ConditionState::Ok), why, step("gate etcd", ConditionState::Waiting)];
    });
    status.deployments[1] = DeploymentStatus {
        reason: Some("HNA-0306 the whole reason".into()),
        ..deployment("master", DeploymentState::Signalled, true)
    };
    status
}

fn golden(name: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("agent/report/screen/golden").join(name);
    if std::env::var_os("HNA_RENEW_GOLDEN").is_some() {
        crate::files::Tree::open_or_create(path.parent().unwrap(), 0o755)
            .unwrap()
            .write(std::path::Path::new(name), text.as_bytes(), crate::files::Attributes::mode(0o644))
            .unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{name}: HNA_RENEW_GOLDEN=1 renews it");
}

/// A person reads the difference.
#[test]
fn the_screens_are_as_they_were_read() {
    let degraded = with_node(|node| node.components[1] = crash_loop());
    for (name, status) in
        [("ready.txt", ready()), ("waiting.txt", waiting()), ("failed.txt", failed()), ("degraded.txt", degraded)]
    {
        golden(name, &page(&status));
    }
    golden("verbose.txt", &screen(&waiting(), false, now(), None, Style { verbose: true, ..style() }));
}

/// An update that failed at etcd, after which the rollback did so too; the kubelet came up before, and has died since.
fn rollback_failed() -> StatusDocument {
    let mut status = with_node(|node| {
        node.state = NodeState::Rejected;
        node.code = Some("HNA-0630".into());
        node.rollback = Some("the rollback to generation 1 failed too, for the same reason".into());
        node.rollback_end = Some(RollbackEnd::SameCause);
        node.causes = vec![format!("unit etcd.service: etcd.service is masked; {}", node.rollback.as_deref().unwrap())];
        node.components[1] = crash_loop();
        (node.certificates, node.volumes) = (None, Vec::new());
        let why = Condition {
            cause: Some("etcd.service is masked".into()),
            remedy: Some("`systemctl unmask etcd.service`".into()),
            ..step("unit etcd.service", ConditionState::Failed)
        };
        node.steps =
            vec![step("unit containerd.service", ConditionState::Ok), why, step("unit kubelet.service", ConditionState::Ok)];
    });
    status.deployments[1] =
        DeploymentStatus { reason: Some("the whole reason".into()), ..deployment("master", DeploymentState::Signalled, true) };
    status
}

/// An update that failed and was rolled back.
fn rolled_back() -> StatusDocument {
    let mut status = rollback_failed();
    let node = status.node.as_mut().unwrap();
    node.in_place = Some(1);
    node.rollback = Some("rolled back: generation 1 is in place again, and healthy".into());
    node.rollback_end = Some(RollbackEnd::RolledBack);
    node.causes = vec![format!("unit etcd.service: it does not start; {}", node.rollback.as_deref().unwrap())];
    node.remedy = Some("correct ETCD_OPTIONS and update the stack".into());
    node.steps.iter_mut().for_each(|step| *step = self::step(&step.name.to_string(), ConditionState::Ok));
    node.components[1] = ready().node.unwrap().components[1].clone();
    status
}

/// Where the node is, or goes, by the operator's order.
fn by_hand(state: NodeState) -> StatusDocument {
    let mut status = rolled_back();
    status.deployments[1] = deployment("master", DeploymentState::Signalled, false);
    let node = status.node.as_mut().unwrap();
    node.state = state;
    if state == NodeState::Restored {
        (node.code, node.rollback) = (None, None);
        node.causes = vec!["generation 1 is in place by `rollback`, Heat asks for generation 2".into()];
        node.remedy = Some("`heat-node-agent rerun id-of-master` applies it again, or update the stack".into());
    } else {
        (node.in_place, node.code, node.causes, node.remedy) = (None, None, Vec::new(), None);
        node.rollback = Some("to generation 1 under way, by `heat-node-agent rollback`".into());
        node.steps[0].state = ConditionState::Waiting;
    }
    status
}

#[test]
fn what_became_of_a_node_after_a_failure_stands_on_the_page_with_how_it_is_now() {
    let text = page(&rollback_failed());
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let words = flat(&text);
    assert!(words.contains("rollback the rollback to generation 1 failed too, for the same reason"), "{text}");
    assert!(words.contains("etcd FAILED") && words.contains("why: etcd.service is masked"), "{text}");
    assert!(words.contains("kubelet FAILED") && words.contains("crash-looping (11 restarts)"), "{text}");
    assert!(words.contains("containerd up"), "{text}");
    // The failure itself, where the row of the failed step is the rollback's.
    let mut other = rollback_failed();
    let node = other.node.as_mut().unwrap();
    node.rollback = Some("the rollback to generation 1 failed too: volume etcd: the disk is full".into());
    node.rollback_end = Some(RollbackEnd::OtherCause);
    node.causes = vec![format!("gate kubelet: unknown flag; {}", node.rollback.as_deref().unwrap())];
    node.steps[1].cause = Some("the disk is full".into());
    assert!(flat(&page(&other)).contains("rollback gate kubelet: unknown flag; the rollback to generation 1 failed too"));
    for (status, expected) in [
        (
            rolled_back(),
            &["why: unit etcd.service: it does not start; rolled back: generation 1", "kubelet healthy", "remedy: correct"][..],
        ),
        (by_hand(NodeState::Restored), &["kubelet healthy", "remedy: `heat-node-agent rerun id-of-master`"]),
        (by_hand(NodeState::Restoring), &["rollback to generation 1 under way", "containerd waiting"]),
    ] {
        let text = page(&status);
        for words in expected {
            assert!(flat(&text).contains(words), "{words}: {text}");
        }
    }
}

/// Every status that is drawn here.
pub(crate) fn all() -> Vec<StatusDocument> {
    let degraded = with_node(|node| node.components[1] = crash_loop());
    [ready(), waiting(), failed(), degraded].into_iter().chain(troubles().into_iter().map(|(_, status)| status)).collect()
}

fn troubles() -> Vec<(&'static str, StatusDocument)> {
    let changed = |change: &dyn Fn(&mut StatusDocument)| {
        let mut status = ready();
        change(&mut status);
        status
    };
    let condition =
        |name: &str| Condition { state: ConditionState::Failed, cause: Some("why".into()), ..step(name, ConditionState::Failed) };
    let wrong = |node: &mut NodeStatus| {
        let driver = "static-routes".to_owned();
        node.pod_network =
            Some(PodNetworkStatus { driver, wrong: vec!["no route".into()], since: at(0), ..PodNetworkStatus::default() });
    };
    vec![
        ("READY", ready()),
        ("WAITING for volume etcd (generation 2)", waiting()),
        ("FAILED generation 2 at volume etcd (HNA-0306)", failed()),
        ("DEGRADED: kubelet crash-looping (11 restarts)", with_node(|node| node.components[1] = crash_loop())),
        ("DEGRADED: the node differs from what the stack asks for", with_node(|node| node.drifted = true)),
        ("WAITING for the first check of the node since the agent started", with_node(|node| node.unchecked = true)),
        (
            "DEGRADED: etcd degraded; /var/lib/etcd on volume 1 is full",
            with_node(|node| {
                node.drifted = true;
                node.differences = vec!["/var/lib/etcd on volume 1 is full: less than 64 MiB are free".into()];
                node.difference_fact = Some("/var/lib/etcd on volume 1 is full".into());
                node.difference_remedy = Some("extend it".into());
                node.components[0].state = ComponentState::Degraded;
            }),
        ),
        ("FAILED generation 2 at unit etcd.service (HNA-0630)", rollback_failed()),
        ("FAILED generation 2 (HNA-0630)", rolled_back()),
        ("DEGRADED: generation 1 is in place by `rollback`, not generation 2", by_hand(NodeState::Restored)),
        ("WAITING for unit containerd.service (rollback of generation 2)", by_hand(NodeState::Restoring)),
        ("DEGRADED: the network of pods", with_node(wrong)),
        (
            "DEGRADED: certificates wait for an operator",
            with_node(|node| {
                node.certificates.as_mut().unwrap().waits = Some(step("certificates", ConditionState::Waiting));
            }),
        ),
        (
            "DEGRADED: Heat's metadata cannot be read (source cfn)",
            changed(&|s| (s.sources[0].failures, s.sources[0].cause) = (3, Some("connection refused".into()))),
        ),
        ("DEGRADED: Heat does not have the result of prepare", changed(&|s| s.deployments[0].undelivered = true)),
        ("DEGRADED: a settings file is skipped", changed(&|s| s.conditions = vec![condition("settings")])),
        (
            "FAILED deployment prepare (exit status 3, HNA-0404)",
            changed(&|s| s.deployments[0] = deployment("prepare", DeploymentState::Signalled, true)),
        ),
        ("FAILED the agent's own work: why", changed(&|s| s.conditions = vec![condition("state")])),
        ("FAILED metadata: the metadata cannot be understood", changed(&|s| s.conditions = vec![condition("metadata")])),
        ("FAILED phases: why", changed(&|s| s.conditions = vec![condition("phases")])),
        (
            "WAITING for the phases of os-refresh-config, which are running",
            changed(&|s| s.conditions = vec![Condition { state: ConditionState::Waiting, ..condition("phases") }]),
        ),
        ("WAITING for deployment prepare, which is running", changed(&|s| s.deployments[0].state = DeploymentState::Running)),
        ("WAITING for deployment prepare", changed(&|s| s.deployments[0].state = DeploymentState::Seen)),
        ("WAITING for metadata: no source is known yet", changed(&|s| s.sources.clear())),
        ("WAITING for metadata: no source has answered yet", changed(&|s| s.metadata.source = None)),
        ("WAITING for metadata: no list of deployments has come yet", changed(&|s| s.metadata.listed = None)),
        (
            "WAITING for the identity of this instance",
            changed(&|s| {
                s.conditions.push(IdentityStatus::default().condition(false));
                s.identity = Some(IdentityStatus::default());
            }),
        ),
        (
            "WAITING for Heat to take 1 signal",
            changed(&|s| {
                let cause = Some("503 Service Unavailable".to_owned());
                s.signals = vec![SignalStatus {
                    to: "http://heat/signal".into(),
                    deployment: None,
                    tries: 3,
                    cause,
                    remedy: Some("`systemctl reload heat-node-agent` then sends the signal at once".into()),
                    since: Some(at(9_000)),
                    next_try: None,
                }];
            }),
        ),
    ]
}

#[test]
fn the_first_line_is_what_is_so_and_agrees_with_the_exit_code() {
    for (line, status) in troubles() {
        let page = page(&status);
        assert_eq!(page.lines().next(), Some(line), "{page}");
        assert!(headline(&status, true).0 != OverallState::Ready || !status.is_degraded(), "{line}");
        let (overall, down) = headline(&status, false);
        assert!(overall == OverallState::Down && down.ends_with(&format!("it last said: {line}")), "{down}");
    }
}

/// Two words for one state are two states for who reads both.
#[test]
fn explain_begins_with_the_same_word() {
    for (line, status) in troubles() {
        let explained = explain::headline(&explain::tree(&status, true));
        let word = explained.split([' ', ':']).next().unwrap().to_uppercase().replace("OK", "READY");
        assert_eq!(line.split([' ', ':']).next(), Some(word.as_str()), "{line} / {explained}");
    }
}

#[test]
fn it_is_one_screen_in_which_nothing_stands_twice_and_no_line_is_too_long() {
    for (line, status) in troubles() {
        for width in [60, 80, 100, 200] {
            let page = screen(&status, true, now(), Some("/ 3.1 of 9.8 GiB"), Style { width, ..style() });
            assert!(page.lines().all(|line| line.chars().count() <= width.max(90)), "{page}");
            assert!(page.lines().count() <= 30, "{page}");
        }
        let page = page(&status);
        let texts: Vec<&str> = page.lines().map(str::trim).filter(|text| text.len() > 20).collect();
        for (at, text) in texts.iter().enumerate() {
            assert!(!texts[at + 1..].contains(text), "{line}: twice: {text}\n{page}");
        }
        assert!(!page.contains(" ms"), "no timings: {page}");
    }
}

#[test]
fn nothing_commands_the_terminal_and_colours_are_there_where_they_are_asked_for() {
    let mut status = ready();
    (status.sources[0].failures, status.sources[0].cause) = (2, Some("refused\x1b[2J".into()));
    assert!(page(&status).contains("refused\\u{1b}") && !page(&status).contains('\x1b'));
    let colored = screen(&status, true, now(), None, Style { color: true, ..style() });
    assert!(colored.starts_with("\x1b[33mDEGRADED") && colored.contains("\x1b[32mhealthy"), "{colored}");
}

#[test]
fn a_copied_disk_and_an_unknown_identity_say_what_to_do() {
    let mut status = ready();
    status.identity = Some(IdentityStatus {
        copy_of: Some("b".into()),
        moved_to: Some("/aside/1".into()),
        left_over: vec!["/f".into()],
        ..status.identity.unwrap()
    });
    let text = page(&status);
    for part in [
        "instance      7ee5 (SMBIOS)\n",
        "the other instance's state is kept in /aside/1",
        "/f is ignored: this disk was copied from that of instance b, and the file is unchanged\n",
        "remedy: `openstack stack resource show STACK RESOURCE`, with stack_name and path (up to\n",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    status.identity.as_mut().unwrap().left_over_resource = Some("s node".into());
    let text = page(&status);
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(joined.contains("remedy: `openstack stack resource show s node`: if physical_resource_id is this"), "{text}");
    status.identity = Some(IdentityStatus { cause: Some("why".into()), remedy: Some("do".into()), ..IdentityStatus::default() });
    let text = page(&status);
    assert!(text.contains("instance      UNKNOWN, so nothing is run or sent: why\n    remedy: do\n"), "{text}");
}

/// Which unit a difference is about is known, and not read out of its words.
#[test]
fn what_differs_only_because_a_component_is_down_is_said_by_the_component() {
    let mut status = with_node(|node| {
        node.drifted = true;
        node.differences = vec!["etcd.service is not running".into(), "/etc/x differs".into()];
        node.difference_units = vec!["etcd.service".into(), String::new()];
        node.components[0].state = ComponentState::Failed;
    });
    let drift = |status: &StatusDocument| status.node.as_ref().unwrap().drift();
    assert_eq!(status.node.as_ref().unwrap().components[0].unit.as_deref(), Some("etcd.service"));
    assert_eq!(drift(&status).as_deref(), Some("/etc/x differs"));
    status.node.as_mut().unwrap().components[0].state = ComponentState::Healthy;
    assert_eq!(drift(&status).as_deref(), Some("etcd.service is not running, /etc/x differs"));
}

/// Readers of a transcript took "storage healthy" beside a full volume for a contradiction.
#[test]
fn storage_is_not_healthy_beside_a_volume_that_is_full() {
    let status = with_node(|node| {
        node.components.push(ComponentStatus { unit: None, ..component("storage", ComponentState::Healthy) });
        take_in_volume_problem(&mut node.components);
        node.drifted = true;
        node.differences = vec!["/var/lib/etcd on volume 1 is full: less than 64 MiB are free".into()];
        node.difference_fact = Some("/var/lib/etcd on volume 1 is full".into());
        node.difference_remedy = Some("extend it".into());
    });
    let text = page(&status);
    let row = text.lines().find(|line| line.starts_with("storage")).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(row, "storage degraded 3d 0 a volume needs an operator");
    assert!(text.starts_with("DEGRADED: /var/lib/etcd on volume 1 is full"), "{text}");
}

#[test]
fn spans_are_short() {
    for (ms, text) in
        [(59_000, "59s"), (119_000, "119s"), (120_000, "2m"), (7_199_000, "119m"), (7_200_000, "2h"), (2 * DAY, "2d")]
    {
        assert_eq!(span(std::time::Duration::from_millis(ms)), text);
    }
}

#[test]
fn a_script_that_runs_says_how_long_and_what_stops_it() {
    let mut status = ready();
    status.deployments[0] = DeploymentStatus {
        note: Some("Heat replaced it by b".into()),
        since: Some(at(245_000)),
        ..deployment("prepare", DeploymentState::Running, false)
    };
    let text = page(&status);
    let lines = "has been running for 4m05s; `heat-node-agent logs id-of-prepare` shows its output, `heat-node-agent stop id-of-prepare` ends it \
                 now and reports it as failed note: Heat replaced it by b";
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(joined.contains(lines), "{text}");
    status.deployments[0].said_last = Some("waiting for the licence".into());
    status.deployments[0].given_up = Some(Timestamp(now().0 + 115_000).rfc3339());
    let text = page(&status).split_whitespace().collect::<Vec<_>>().join(" ");
    let lines = "has been running for 4m05s, its time limit ends it in 1m55s; last output: waiting for the licence; `heat-node-agent logs";
    assert!(text.contains(lines), "{text}");
    status.deployments[0].group = "kubernetes-node".into();
    assert!(!page(&status).contains(" stop "), "nobody stops a node");
}

/// Attack: the first line said "not running" of one component, and the row of another one no longer said it.
#[test]
fn what_the_first_line_says_of_one_component_is_said_of_another_in_its_row() {
    let failed = |name: &str, problem: &str| ComponentStatus {
        problem: Some(problem.into()),
        cause: Some(format!("why of {name}")),
        ..component(name, ComponentState::Failed)
    };
    let page = page(&with_node(|node| node.components = ["etcd", "kubelet"].map(|name| failed(name, "not running")).into()));
    let row = |name: &str| page.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    assert!(page.starts_with("DEGRADED: etcd not running, and 1 more\n"), "{page}");
    assert!(!row("etcd").contains("not running") && row("kubelet").ends_with("not running"), "{page}");
}
