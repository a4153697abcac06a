use super::*;
use crate::desired::{
    Content, DiskName, EtcdAccess, EtcdJoin, EtcdMember, FormatPolicy, Gate, GateProbe, KeyRequest, KeyType, Material, Object,
    Owner, Unit, Volume, VolumeRole,
};
use crate::report::Report;

fn new_unit(name: &str, reads: &[&str], needs: &[Dependency]) -> Unit {
    Unit {
        name: name.into(),
        enable: true,
        restart_on: reads.iter().map(|path| (*path).to_owned()).collect(),
        needs: needs.iter().cloned().collect(),
        applies_files: false,
    }
}

fn gate(name: &str, of: Option<&str>, needs: &[Dependency]) -> Gate {
    Gate {
        name: name.into(),
        unit: of.map(str::to_owned),
        probe: GateProbe::Socket("/run/x".into()),
        consecutive: 1,
        deadline: None,
        needs: needs.iter().cloned().collect(),
        remedy: String::new(),
    }
}

/// etcd, an API server that needs it, and a kubelet of its own.
fn before() -> Desired {
    let needs_unit = |name: &str| Dependency::Unit(name.to_owned());
    Desired {
        files: vec![File::public("/etc/etcd", "1"), File::public("/etc/api", "1"), File::public("/etc/kubelet", "1")],
        units: vec![
            new_unit("etcd.service", &["/etc/etcd"], &[]),
            new_unit("api.service", &["/etc/api"], &[Dependency::Gate("etcd".into())]),
            new_unit("kubelet.service", &["/etc/kubelet"], &[]),
        ],
        gates: vec![
            gate("etcd", Some("etcd.service"), &[needs_unit("etcd.service")]),
            gate("api", Some("api.service"), &[needs_unit("api.service")]),
            gate("kubelet", Some("kubelet.service"), &[needs_unit("kubelet.service")]),
            gate("sysctl", None, &[]),
        ],
        ..Desired::default()
    }
}

fn with_file(path: &str, content: &str) -> Desired {
    let mut desired = before();
    match desired.files.iter_mut().find(|file| file.path == path) {
        Some(file) => content.clone_into(&mut file.content),
        None => desired.files.push(File::public(path, content)),
    }
    desired
}

fn failure(step: StepId) -> Failure {
    Failure::new(Code::GateTimedOut, step, "no answer").remedy("look at it")
}

fn previous(replaced: Replaced) -> RollbackPlan {
    let spec = test_spec();
    RollbackPlan::Open(Box::new(Previous { number: 3, spec, desired: before(), replaced }))
}

/// Any node.
fn test_spec() -> NodeSpec {
    let entry = serde_json::json!({"id": "i", "group": "kubernetes-node", "config": {"ROLE": "minion", "KUBE_MASTER_IP": "192.0.2.1",
        "KUBE_NODE_IP": "192.0.2.2", "TLS_DISABLED": true}});
    spec_of(&entry).unwrap()
}

#[test]
fn what_nothing_takes_back_is_known_by_its_part() {
    let volume = Volume {
        role: VolumeRole::Etcd,
        disk: DiskName::Cinder("c".into()),
        hint: "/dev/vdc".into(),
        content: Content::Xfs,
        mount_point: "/var/lib/etcd".into(),
        root_mode: 0o700,
        root_owner: Owner::root(),
        format: FormatPolicy::IfBlank,
        format_parameter: "ETCD_VOLUME_FORMAT",
        adopt: None,
        cluster: "k".into(),
        users: Vec::new(),
    };
    let object = Object {
        name: "o".into(),
        server: String::new(),
        collection: String::new(),
        object: "o".into(),
        body: Material::Text("{}".into()),
        identity: None,
        before: None,
        needs: BTreeSet::new(),
    };
    // The labels of the node's own object are taken back.
    let node = Object { collection: "/api/v1/nodes".into(), ..object.clone() };
    let key = KeyRequest { name: "k".into(), path: "/k".into(), owner: Owner::root(), kind: KeyType::EcdsaP256 };
    for (after, parts) in [
        (with_file("/etc/api", "2"), &[][..]),
        (Desired { volumes: vec![volume], ..before() }, &[Irreversible::Volumes]),
        (Desired { keys: vec![key], ..before() }, &[Irreversible::Certificates]),
        (Desired { objects: vec![node.clone()], ..before() }, &[]),
        (Desired { objects: vec![node, object], ..before() }, &[Irreversible::Objects]),
    ] {
        assert_eq!(irreversible(&before(), &after), parts);
        assert_eq!(irreversible(&after, &before()), parts, "taken away again");
    }
    let member = |name: &str, peer: &str| {
        let access = EtcdAccess { endpoint: "http://192.0.2.1:2379".into(), identity: None };
        let (name, peer) = (name.to_owned(), peer.to_owned());
        Desired {
            etcd: Some(EtcdMember { access, peer, peer_identity: None, is_single: true, name, keeps_v2: false }),
            ..before()
        }
    };
    let (m1, other) = (member("m1", "http://192.0.2.1:2380"), member("m1", "http://192.0.2.1:2480"));
    assert_eq!(irreversible(&m1, &member("m2", "http://192.0.2.1:2380")), [], "a name is announced anew at each start");
    assert_eq!(irreversible(&m1, &other), [Irreversible::Etcd]);
}

#[test]
fn only_what_depends_on_the_change_is_a_reason_to_go_back() {
    let unit = |name: &str| StepId::Unit(name.into());
    let gate = |name: &str| StepId::Gate(name.into());
    for (path, step, depends) in [
        ("/etc/api", gate("api"), true),
        ("/etc/api", unit("api.service"), true),
        ("/etc/api", gate("kubelet"), false),
        ("/etc/api", gate("etcd"), false),
        // What it needs was changed.
        ("/etc/etcd", gate("api"), true),
        ("/etc/etcd", unit("kubelet.service"), false),
        ("/etc/unread", gate("api"), false),
        // Attack: Magnum was away, the new options were never tried, and the next restart took the API server down.
        ("/etc/api", StepId::File("/etc/api".into()), true),
        ("/etc/api", StepId::Certificates, true),
        // The cluster and the member's data decide about it.
        ("/etc/api", StepId::EtcdMember, false),
    ] {
        assert_eq!(depends_on_change(&before(), &with_file(path, "2"), &step), depends, "{path} {step}");
    }
    // A file of mode or owner alone, one that is no longer asked for, a unit and a gate that are new or otherwise.
    let mut attributes = before();
    attributes.files[1].mode = 0o600;
    assert!(depends_on_change(&before(), &attributes, &gate("api")));
    let mut fewer = before();
    fewer.files.remove(1);
    assert!(depends_on_change(&before(), &fewer, &gate("api")));
    let mut more = before();
    more.units.push(new_unit("new.service", &[], &[]));
    assert!(depends_on_change(&before(), &more, &unit("new.service")) && !depends_on_change(&before(), &more, &gate("api")));
    let mut other = before();
    other.gates[3].consecutive = 2;
    assert!(depends_on_change(&before(), &other, &gate("sysctl")));
    let mut listed = before();
    listed.etcd_join = Some(Box::new(EtcdJoin::first_of(Vec::new())));
    assert!(depends_on_change(&before(), &listed, &StepId::EtcdMember));
}

#[test]
fn a_node_goes_back_only_where_it_may_and_says_why_not() {
    let after = with_file("/etc/api", "2");
    let judge = |way: RollbackPlan, step: StepId| way.judge(&after, &failure(step)).map(|previous| previous.number);
    let healthy = || previous(Replaced::default());
    assert_eq!(judge(healthy(), StepId::Gate("api".into())), Ok(3));
    assert_eq!(judge(RollbackPlan::Nothing, StepId::Gate("api".into())), Err(None));
    let why = |way: RollbackPlan, step: StepId| judge(way, step).unwrap_err().unwrap();
    let closed = || RollbackPlan::Closed { number: 2, cause: "the update changes volumes".into() };
    assert_eq!(why(closed(), StepId::Gate("api".into())), "not rolled back to generation 2: the update changes volumes");
    assert!(why(healthy(), StepId::Gate("kubelet".into())).ends_with("what failed does not depend on what the update changed"));
    // By its unit: a gate and the unit behind it are one component.
    let unhealthy = || previous(Replaced { unhealthy: BTreeSet::from(["api".to_owned()]), ..Replaced::default() });
    assert!(why(unhealthy(), StepId::Gate("api".into())).ends_with("api was not healthy before the update either"));
    assert!(why(unhealthy(), StepId::Unit("api.service".into())).contains("not healthy before"));
    // Only where there is somewhere to go is time set aside for it.
    let minutes = Duration::from_mins;
    assert_eq!(closed().reserve(minutes(60)), Duration::ZERO);
    assert_eq!((healthy().reserve(minutes(60)), healthy().reserve(minutes(4))), (RESERVE, minutes(1)));
    // Attack: of 20 s, half of what Heat waits, an update took 15, and the way back a minute that Heat did not have.
    let seconds = Duration::from_secs;
    assert_eq!([20, 100, 200].map(|all| healthy().reserve(seconds(all))), [10, 50, 60].map(seconds));
    assert_eq!([20, 100, 200].map(|all| for_rollback(seconds(all - 2), seconds(all))), [20, 60, 60].map(seconds));
    assert_eq!(for_rollback(seconds(10), seconds(200)), seconds(190));
}

#[test]
fn what_the_update_brought_is_taken_away_and_what_it_found_is_left() {
    let mut known = before();
    let mut after = with_file("/etc/api", "2");
    after.files.push(File::public("/etc/new", "n"));
    after.files.push(File::public("/etc/theirs", "o"));
    after.units[1].restart_on.insert("/etc/new".into());
    for name in ["new.service", "ran.service", "enabled.service"] {
        after.units.push(new_unit(name, &["/etc/new"], &[]));
    }
    // Attack: of a runtime that both generations know, and only the update ran, the rollback left the unit enabled.
    for name in ["kept.service", "image.service"] {
        let unit = Unit { applies_files: true, enable: false, ..new_unit(name, &[], &[]) };
        known.units.push(unit);
        after.units.push(new_unit(name, &[], &[]));
    }
    let saved = SavedFile { content: STANDARD.encode("theirs"), mode: 0o640, owner: (7, 8) };
    let set = |name: &str| BTreeSet::from([name.to_owned()]);
    let replaced = Replaced {
        files: BTreeMap::from([("/etc/theirs".to_owned(), saved)]),
        running: set("ran.service"),
        enabled: ["enabled.service", "image.service"].map(str::to_owned).into(),
        ..Replaced::default()
    };
    let previous = Previous { number: 3, spec: test_spec(), desired: known, replaced };
    let retired = previous.retired(&after).unwrap();
    let original = Original { content: b"theirs".to_vec(), mode: 0o640, owner: (7, 8) };
    let file = |path: &str, written: &str, original| RetiredFile { path: path.into(), written: written.into(), original };
    assert_eq!(retired.files, [file("/etc/new", "n", None), file("/etc/theirs", "o", Some(original))]);
    assert_eq!(retired.readers, set("api.service"));
    assert_eq!(retired.stop, ["new.service", "enabled.service"]);
    assert_eq!(retired.disable, ["new.service", "ran.service", "kept.service"]);
    assert!(!format!("{retired:?}").contains("theirs\""), "contents are no text for logs");
}

/// Attack: a record that was lost while the update was under way was made anew, of what the update had written by then.
#[test]
fn what_an_update_replaces_is_recorded_once() {
    let (dir, report) = (tempfile::tempdir().unwrap(), Report::kept());
    let state = Tree::open(dir.path()).unwrap();
    assert!(!is_marked(&state, RECORDED, 4, &report).unwrap());
    state.write_json(Path::new(REPLACED), &Replaced { generation: 4, ..Replaced::default() }, Attributes::mode(0o600)).unwrap();
    mark(&state, RECORDED, 4).unwrap();
    state.remove(Path::new(REPLACED)).unwrap();
    assert!(is_marked(&state, RECORDED, 4, &report).unwrap(), "it is gone, and not new");
    assert!(!is_marked(&state, RECORDED, 5, &report).unwrap(), "that is another update");
}

#[test]
fn files_of_somebody_else_are_kept_or_keep_the_node_from_going_back() {
    let folder = tempfile::tempdir().unwrap();
    let root = Tree::open(folder.path()).unwrap();
    let put = |path: &str, size: usize| root.write(Path::new(path), &vec![b'x'; size], Attributes::mode(0o640)).unwrap();
    put("/small", 3);
    put("/large", 1024 * 1024);
    root.link("/small", Path::new("/link")).unwrap();
    let save = |paths: &[&str]| saved(&root, paths.iter().copied()).unwrap();
    let (files, obstacle) = save(&["/small", "/absent"]);
    assert_eq!((files.keys().map(String::as_str).collect::<Vec<_>>(), obstacle), (vec!["/small"], None));
    assert_eq!((files["/small"].content.as_str(), files["/small"].mode), ("eHh4", 0o640));
    assert_eq!(save(&["/large"]).1, None);
    assert_eq!(save(&["/small", "/large"]).1.unwrap(), "/large, which the update replaces, is too large to be kept");
    assert_eq!(save(&["/link"]).1.unwrap(), "/link, which the update replaces, is no regular file");
}

#[test]
fn the_failure_that_a_node_goes_back_from_survives_a_restart() {
    let original = failure(StepId::Gate("api".into())).unit("api.service").rule("a rule");
    let record = RollbackRecord::of(4, "d", &original);
    let text = serde_json::to_string(&record).unwrap();
    let read: RollbackRecord = crate::budgets::json::typed(&text).unwrap();
    assert_eq!((&read, read.failure()), (&record, original));
    let unit = failure(StepId::Unit("x.service".into()));
    assert_eq!(RollbackRecord::of(4, "d", &unit).failure(), unit);
    let certificates = failure(StepId::Certificates);
    assert_eq!(RollbackRecord::of(4, "d", &certificates).failure(), certificates);
    assert_eq!(RollbackRecord::of(4, "d", &failure(StepId::File("/x".into()))).failure().cause, certificates.cause);
}

#[test]
fn a_rollback_that_fails_by_the_same_fact_fails_for_the_same_cause() {
    let taken = "port 2379 is held by python3 (pid 7, x.service)";
    let mut update = failure(StepId::Unit("etcd.service".into()));
    update.cause = format!("{taken}; etcd.service is still activating (start) at the deadline of the run");
    for (why, expected) in [
        (format!("unit etcd.service: {taken}; etcd.service is still activating (auto-restart) at the deadline of the run"), true),
        (format!("unit etcd.service: {taken}"), true),
        (format!("unit kubelet.service: {taken}"), false),
        ("unit etcd.service: etcd.service is masked".to_owned(), false),
    ] {
        assert_eq!(is_same_cause(&why, &update), expected, "{why}");
    }
}
