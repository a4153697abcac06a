//! The engine against a fake systemd, fake volumes and a fake prober.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt as _};
use serde_json::{Value, json};
use tokio::sync::broadcast;

use super::{Context, Failure, Outcome, Prober, Units, Volumes, converge};
use crate::clock::{Clock, Timestamp};
use crate::desired::{Desired, Directory, File, FormatPolicy, Gate, Need, Owner, Probe, Unit, Volume, VolumeRole};
use crate::error::{Error, Result};
use crate::files::{Attributes, Tree};
use crate::report::{Code, Report};
use crate::systemd::{JobOutcome, UnitState};

/// What the next start or restart of a unit does: how long it takes, how the job ends, what the unit is then.
#[derive(Clone)]
struct Act(u64, &'static str, UnitState);

struct Fake {
    states: Mutex<BTreeMap<String, UnitState>>,
    acts: Mutex<BTreeMap<String, VecDeque<Act>>>,
    answers: Mutex<VecDeque<Result<Value>>>,
    log: Mutex<Vec<String>>,
    changes: broadcast::Sender<String>,
    clock: Clock,
    volume: Mutex<VecDeque<std::result::Result<bool, Failure>>>,
    /// Errors that the next calls give, as a bus that is away.
    away: Mutex<u32>,
    /// Volumes never get done.
    hangs: bool,
}

fn state(name: &str, active: &str) -> UnitState {
    UnitState {
        name: name.into(),
        load_state: "loaded".into(),
        active_state: active.into(),
        unit_file_state: "enabled".into(),
        ..UnitState::default()
    }
}

impl Fake {
    fn new(clock: &Clock, states: &[(&str, &str)]) -> Self {
        Self {
            states: Mutex::new(states.iter().map(|(name, active)| ((*name).to_owned(), state(name, active))).collect()),
            acts: Mutex::default(),
            answers: Mutex::default(),
            log: Mutex::default(),
            changes: broadcast::channel(64).0,
            clock: clock.clone(),
            volume: Mutex::default(),
            away: Mutex::default(),
            hangs: false,
        }
    }

    fn act(self, name: &str, acts: &[Act]) -> Self {
        self.acts.lock().unwrap().insert(name.to_owned(), acts.iter().cloned().collect());
        self
    }

    fn set(&self, state: UnitState) {
        self.states.lock().unwrap().insert(state.name.clone(), state);
    }

    fn log(&self, line: String) {
        self.log.lock().unwrap().push(line);
    }

    fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut *self.log.lock().unwrap())
    }

    async fn job(&self, verb: &str, name: &str) -> Result<JobOutcome> {
        self.log(format!("{verb} {name}"));
        let act = self.acts.lock().unwrap().get_mut(name).and_then(VecDeque::pop_front);
        let Act(millis, result, mut after) = act.unwrap_or_else(|| Act(0, "done", state(name, "active")));
        after.name = name.into();
        if millis > 0 {
            self.clock.wait(Duration::from_millis(millis)).await;
        }
        self.set(after);
        self.log(format!("{result} {name}"));
        Ok(JobOutcome::new(result))
    }
}

impl Units for Fake {
    async fn unit(&self, name: &str) -> Result<UnitState> {
        let mut away = self.away.lock().unwrap();
        if *away > 0 {
            *away -= 1;
            return Err(Error::transient("the bus is away"));
        }
        let missing = || UnitState { unit_file_state: String::new(), load_state: "not-found".into(), ..state(name, "inactive") };
        Ok(self.states.lock().unwrap().get(name).cloned().unwrap_or_else(missing))
    }

    async fn start(&self, name: &str) -> Result<JobOutcome> {
        self.job("start", name).await
    }

    async fn restart(&self, name: &str) -> Result<JobOutcome> {
        self.job("restart", name).await
    }

    async fn reset_failed(&self, name: &str) -> Result<()> {
        self.log(format!("reset {name}"));
        Ok(())
    }

    async fn reload(&self) -> Result<()> {
        self.log("reload".into());
        Ok(())
    }

    async fn enable(&self, names: &[&str]) -> Result<bool> {
        self.log(format!("enable {}", names.join(" ")));
        Ok(true)
    }

    async fn changes(&self) -> Result<BoxStream<'static, String>> {
        let receiver = self.changes.subscribe();
        Ok(futures_util::stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.ok().map(|name| (name, receiver))
        })
        .boxed())
    }
}

impl Volumes for Fake {
    async fn bring_up(&self, volume: &Volume, _deadline: Duration) -> std::result::Result<bool, Failure> {
        self.log(format!("volume {}", volume.role));
        if self.hangs {
            std::future::pending::<()>().await;
        }
        let next = self.volume.lock().unwrap().pop_front();
        next.unwrap_or(Ok(false))
    }
}

impl Prober for Fake {
    async fn get_json(&self, _url: &str) -> Result<Value> {
        let next = self.answers.lock().unwrap().pop_front();
        next.unwrap_or_else(|| Ok(json!({"health": "true"})))
    }

    async fn docker(&self, _socket: &str, path: &str) -> Result<Value> {
        assert_eq!(path, "/info");
        Ok(json!({"Driver": "overlay2", "DockerRootDir": "/var/lib/docker"}))
    }
}

/// A machine in a directory, whose root is whoever runs the tests.
struct Machine {
    _dir: tempfile::TempDir,
    root: Tree,
    clock: Clock,
    report: Report,
    deadline: Duration,
}

impl Machine {
    fn new(clock: Clock) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = Tree::open(dir.path()).unwrap();
        root.create_dir(Path::new("/etc"), Attributes::mode(0o755)).unwrap();
        let machine = Self { _dir: dir, root, clock, report: Report::kept(), deadline: Duration::from_secs(30) };
        machine.users("");
        machine
    }

    fn users(&self, more: &str) {
        let (user, group) = (nix::unistd::geteuid(), nix::unistd::getegid());
        let more = more.replace("UID", &user.to_string()).replace("GID", &group.to_string());
        self.write("/etc/passwd", &format!("root:x:{user}:{group}::/:\n{more}"));
        self.write("/etc/group", &format!("root:x:{group}:\n{more}"));
    }

    fn write(&self, path: &str, text: &str) {
        self.root.create_dir_all(Path::new(path).parent().unwrap(), Attributes::mode(0o755)).unwrap();
        self.root.write(Path::new(path), text.as_bytes(), Attributes::mode(0o644)).unwrap();
    }

    fn read(&self, path: &str) -> Option<String> {
        Some(String::from_utf8(self.root.read(Path::new(path), 1 << 20).unwrap()?).unwrap())
    }

    async fn converge(&self, desired: &Desired, fake: &Fake) -> Outcome {
        let context = Context {
            root: &self.root,
            systemd: fake,
            volumes: fake,
            prober: fake,
            clock: &self.clock,
            report: &self.report,
            deadline: self.deadline,
            generation: 7,
        };
        converge(desired, &context).await
    }

    /// What explain would show.
    fn steps(&self) -> Vec<String> {
        self.report.steps().iter().map(|step| format!("{} {:?}", step.name, step.state)).collect()
    }

    fn codes(&self) -> Vec<Code> {
        self.report.events().iter().map(|event| event.code).collect()
    }
}

fn unit(name: &str, restart_on: &[&str], needs: &[Need]) -> Unit {
    Unit {
        name: name.into(),
        enable: true,
        restart_on: restart_on.iter().map(|path| (*path).to_owned()).collect(),
        needs: needs.iter().cloned().collect(),
        applies_files: false,
    }
}

fn gate(name: &str, of: Option<&str>, consecutive: u8, needs: &[Need]) -> Gate {
    Gate {
        name: name.into(),
        unit: of.map(str::to_owned),
        probe: Probe::HttpJson { url: "http://127.0.0.1/health".into(), key: "health".into(), value: "true".into() },
        consecutive,
        needs: needs.iter().cloned().collect(),
        remedy: "look at it".into(),
    }
}

fn volume(role: VolumeRole, mount_point: &str) -> Volume {
    Volume {
        role,
        cinder_id: "c".into(),
        hint: "/dev/vdb".into(),
        mount_point: mount_point.into(),
        root_mode: 0o711,
        root_owner: Owner::root(),
        format: FormatPolicy::IfBlank,
        format_parameter: "DOCKER_VOLUME_FORMAT",
        adopt: None,
        cluster: "k".into(),
        users: vec![],
    }
}

fn manual() -> Clock {
    Clock::manual(Timestamp(1_000_000))
}

/// Modules, a volume, docker on it, etcd beside it, a gate each.
fn node() -> Desired {
    Desired {
        files: vec![
            File::public("/etc/sysctl.d/k.conf", "net.ipv4.ip_forward=1\n"),
            File::public("/etc/systemd/system/docker.service.d/10.conf", "[Service]\n"),
            File::public("/var/lib/docker/on-volume", "x"),
            File::public("/etc/etcd.conf", "a=1\n"),
        ],
        directories: vec![Directory {
            path: "/var/lib/docker/sub".into(),
            mode: 0o700,
            owner: Owner::root(),
            needs: BTreeSet::from([Need::Volume(VolumeRole::Runtime)]),
        }],
        volumes: vec![volume(VolumeRole::Runtime, "/var/lib/docker")],
        units: vec![
            Unit { applies_files: true, enable: false, ..unit("systemd-sysctl.service", &["/etc/sysctl.d/k.conf"], &[]) },
            unit(
                "docker.service",
                &["/etc/systemd/system/docker.service.d/10.conf"],
                &[Need::Volume(VolumeRole::Runtime), Need::Directory("/var/lib/docker/sub".into())],
            ),
            unit("etcd.service", &["/etc/etcd.conf"], &[]),
        ],
        gates: vec![
            gate("etcd", Some("etcd.service"), 2, &[Need::Unit("etcd.service".into())]),
            Gate {
                probe: Probe::Docker {
                    socket: "/run/docker.sock".into(),
                    storage_driver: "overlay2".into(),
                    data_root: "/var/lib/docker".into(),
                },
                ..gate("docker", Some("docker.service"), 1, &[Need::Unit("docker.service".into())])
            },
        ],
    }
}

#[tokio::test]
async fn a_fresh_node_comes_up_in_order_and_a_second_run_does_nothing() {
    let machine = Machine::new(manual());
    let fake = Fake::new(
        &machine.clock,
        &[("systemd-sysctl.service", "active"), ("docker.service", "inactive"), ("etcd.service", "inactive")],
    );
    fake.volume.lock().unwrap().push_back(Ok(true));
    fake.states.lock().unwrap().get_mut("etcd.service").unwrap().unit_file_state = "disabled".into();
    let converged = machine.converge(&node(), &fake).await.unwrap();
    assert!(converged.changed);
    let log = fake.take_log();
    assert_eq!(log[..4], ["enable etcd.service", "reload", "restart systemd-sysctl.service", "done systemd-sysctl.service"]);
    let at = |line: &str| log.iter().position(|entry| entry == line).unwrap_or_else(|| panic!("{line}: {log:?}"));
    assert!(at("volume runtime") < at("start docker.service"));
    assert!(at("start etcd.service") > 3);
    assert!(machine.codes().iter().filter(|code| **code == Code::GateGreen).count() == 2);
    assert_eq!(machine.read("/var/lib/docker/on-volume").as_deref(), Some("x"));
    assert!(converged.timings.iter().any(|(step, _)| step == "gate docker"), "{:?}", converged.timings);
    let steps = [
        "files",
        "volume runtime",
        "unit systemd-sysctl.service",
        "unit docker.service",
        "unit etcd.service",
        "gate etcd",
        "gate docker",
    ];
    assert_eq!(machine.steps(), steps.map(|step| format!("{step} Ok")));

    for name in ["etcd.service", "docker.service"] {
        fake.set(state(name, "active"));
    }
    let told = machine.codes().len();
    let again = machine.converge(&node(), &fake).await.unwrap();
    assert!(!again.changed);
    assert_eq!(fake.take_log(), ["volume runtime"], "nothing is reloaded, enabled, started");
    assert_eq!(machine.codes()[told..], [Code::GateGreen, Code::GateGreen]);
    assert_eq!(machine.read("/run/heat-node-agent/restarts-owed.json"), None);
}

#[tokio::test]
async fn only_who_reads_a_changed_file_is_restarted() {
    let machine = Machine::new(manual());
    let fake = Fake::new(
        &machine.clock,
        &[("systemd-sysctl.service", "active"), ("docker.service", "active"), ("etcd.service", "active")],
    );
    machine.converge(&node(), &fake).await.unwrap();
    fake.take_log();
    machine.write("/etc/etcd.conf", "a=2\n");
    machine.converge(&node(), &fake).await.unwrap();
    assert_eq!(fake.take_log(), ["volume runtime", "restart etcd.service", "done etcd.service"]);
    assert_eq!(machine.read("/etc/etcd.conf").as_deref(), Some("a=1\n"));
}

#[tokio::test]
async fn a_restart_is_owed_until_it_is_done() {
    let machine = Machine::new(manual());
    let mut desired = node();
    desired.units[2].needs.insert(Need::Volume(VolumeRole::Runtime));
    let fake = Fake::new(
        &machine.clock,
        &[("systemd-sysctl.service", "active"), ("docker.service", "active"), ("etcd.service", "active")],
    );
    machine.converge(&desired, &fake).await.unwrap();
    machine.write("/etc/etcd.conf", "a=2\n");
    fake.volume.lock().unwrap().push_back(Err(Failure::new(Code::VolumeMissing, "volume runtime", "no disk")));
    let failure = machine.converge(&desired, &fake).await.unwrap_err();
    assert_eq!(failure.code, Code::VolumeMissing);
    assert_eq!(machine.read("/etc/etcd.conf").as_deref(), Some("a=1\n"), "the file is right, the unit is not");
    fake.take_log();
    machine.converge(&desired, &fake).await.unwrap();
    assert_eq!(fake.take_log(), ["volume runtime", "restart etcd.service", "done etcd.service"]);
    assert_eq!(machine.read("/run/heat-node-agent/restarts-owed.json"), None);
}

#[tokio::test]
async fn what_is_independent_runs_side_by_side() {
    let machine = Machine::new(Clock::system());
    let desired = Desired { units: vec![unit("a.service", &[], &[]), unit("b.service", &[], &[])], ..Desired::default() };
    let slow = |name| [Act(60, "done", state(name, "active"))];
    let fake = Fake::new(&machine.clock, &[("a.service", "inactive"), ("b.service", "inactive")])
        .act("a.service", &slow("a.service"))
        .act("b.service", &slow("b.service"));
    machine.converge(&desired, &fake).await.unwrap();
    let mut log = fake.take_log();
    crate::order::sort(&mut log[..2]);
    crate::order::sort(&mut log[2..]);
    assert_eq!(log, ["start a.service", "start b.service", "done a.service", "done b.service"]);
}

#[tokio::test]
async fn what_the_image_lacks_is_told_before_a_volume_is_touched() {
    let machine = Machine::new(manual());
    let fake = Fake::new(&machine.clock, &[("systemd-sysctl.service", "active"), ("etcd.service", "active")]);
    let failure = machine.converge(&node(), &fake).await.unwrap_err();
    assert_eq!((failure.code, failure.unit.as_deref()), (Code::UnitMissing, Some("docker.service")));
    assert!(!fake.take_log().contains(&"volume runtime".to_owned()));
    assert_eq!(machine.codes().last(), Some(&Code::UnitMissing));
    let steps = machine.steps();
    assert!(steps.contains(&"unit docker.service Failed".to_owned()) && steps.contains(&"volume runtime Pending".to_owned()));
}

#[tokio::test]
async fn a_unit_that_fails_ends_the_run_at_once_and_says_why() {
    let failed = UnitState { sub_state: "failed".into(), result: "exit-code".into(), exec_main_status: 1, ..state("", "failed") };
    let masked = UnitState { load_state: "masked".into(), ..state("x.service", "inactive") };
    for (before, act, cause, remedy) in [
        (
            state("x.service", "inactive"),
            Act(0, "failed", failed.clone()),
            "its job ended with `failed`; it is failed (failed: exit-code, status 1)",
            "journalctl",
        ),
        (
            state("x.service", "inactive"),
            Act(0, "dependency", state("", "inactive")),
            "a unit that it requires did not start",
            "journalctl",
        ),
        (state("x.service", "inactive"), Act(0, "done", state("", "inactive")), "one of its conditions is not met", "journalctl"),
        (masked, Act(0, "done", failed), "x.service is masked", "systemctl unmask x.service"),
    ] {
        let machine = Machine::new(Clock::system());
        // The gate never becomes green and must not hold up the news.
        let desired =
            Desired { units: vec![unit("x.service", &[], &[])], gates: vec![gate("g", None, 1, &[])], ..Desired::default() };
        let fake = Fake::new(&machine.clock, &[]).act("x.service", &[act]);
        fake.set(before);
        fake.answers.lock().unwrap().extend((0..999).map(|_| Err(Error::transient("refused"))));
        let failure = machine.converge(&desired, &fake).await.unwrap_err();
        assert_eq!((failure.code, failure.step.as_str()), (Code::UnitFailed, "unit x.service"));
        // The gate may have begun beside it or not.
        assert_eq!(machine.steps()[..2], ["files Ok", "unit x.service Failed"]);
        let step = machine.report.steps().swap_remove(1);
        assert_eq!((step.cause, step.remedy), (Some(failure.cause.clone()), Some(failure.remedy.clone())));
        assert!(failure.cause.contains(cause), "{}", failure.cause);
        assert!(failure.remedy.contains(remedy), "{}", failure.remedy);
    }
}

#[tokio::test]
async fn while_systemd_tries_again_so_do_we() {
    let machine = Machine::new(Clock::system());
    let desired = Desired { units: vec![unit("x.service", &[], &[])], ..Desired::default() };
    let retrying = UnitState { sub_state: "auto-restart".into(), result: "exit-code".into(), ..state("x.service", "activating") };
    let fake = Fake::new(&machine.clock, &[("x.service", "failed")])
        .act("x.service", &[Act(0, "canceled", state("", "inactive")), Act(0, "failed", retrying)]);
    let recover = async {
        Clock::system().wait(Duration::from_millis(50)).await;
        fake.set(state("x.service", "active"));
        fake.changes.send("x.service".into()).unwrap();
    };
    let (outcome, ()) = tokio::join!(machine.converge(&desired, &fake), recover);
    assert!(outcome.unwrap().changed);
    let log = fake.take_log();
    assert_eq!(log, ["reset x.service", "start x.service", "canceled x.service", "start x.service", "failed x.service"]);
}

#[tokio::test]
async fn a_gate_that_stays_red_is_told_at_the_deadline_with_its_last_answer() {
    let machine = Machine::new(manual());
    let desired = Desired { gates: vec![gate("etcd", None, 1, &[])], ..Desired::default() };
    let fake = Fake::new(&machine.clock, &[]);
    fake.answers.lock().unwrap().extend((0..999).map(|_| Ok(json!({"health": "false"}))));
    let start = machine.clock.start();
    let failure = machine.converge(&desired, &fake).await.unwrap_err();
    assert_eq!(
        (failure.code, failure.cause.as_str(), failure.remedy.as_str()),
        (Code::GateRed, "health is false, not true", "look at it")
    );
    assert_eq!(start.elapsed(), machine.deadline);
    let waiting = machine.codes().iter().filter(|code| **code == Code::GateWaiting).count();
    assert!((15..25).contains(&waiting), "the pause grows to 2 s: {waiting}");
}

#[tokio::test]
async fn good_answers_of_a_service_that_keeps_restarting_are_not_health() {
    let machine = Machine::new(Clock::system());
    let desired = Desired {
        units: vec![unit("x.service", &[], &[])],
        gates: vec![gate("g", Some("x.service"), 2, &[])],
        ..Desired::default()
    };
    let fake = Fake::new(&machine.clock, &[("x.service", "active")]);
    let restarts = async {
        for restart in 1..4 {
            fake.set(UnitState { main_pid: restart, n_restarts: restart, ..state("x.service", "active") });
            Clock::system().wait(Duration::from_millis(240)).await;
        }
    };
    let taken = machine.clock.start();
    let (outcome, ()) = tokio::join!(machine.converge(&desired, &fake), restarts);
    outcome.unwrap();
    assert!(taken.elapsed() >= Duration::from_millis(500), "{:?}", taken.elapsed());
}

#[tokio::test]
async fn a_gate_does_not_wait_for_a_unit_that_failed_for_good() {
    let machine = Machine::new(manual());
    let desired = Desired { gates: vec![gate("g", Some("x.service"), 1, &[])], ..Desired::default() };
    let fake = Fake::new(&machine.clock, &[("x.service", "failed")]);
    fake.answers.lock().unwrap().push_back(Err(Error::transient("connection refused")));
    let failure = machine.converge(&desired, &fake).await.unwrap_err();
    assert_eq!((failure.code, failure.unit.as_deref()), (Code::UnitFailed, Some("x.service")));
    assert_eq!(failure.cause, "x.service is failed (); gate g: connection refused");
}

#[tokio::test]
async fn a_good_answer_counts_only_while_the_units_own_process_is_up() {
    let machine = Machine::new(manual());
    let desired = Desired { gates: vec![gate("g", Some("x.service"), 1, &[])], ..Desired::default() };
    let fake = Fake::new(&machine.clock, &[("x.service", "inactive")]);
    let failure = machine.converge(&desired, &fake).await.unwrap_err();
    assert_eq!((failure.code, failure.cause.as_str()), (Code::GateRed, "the answer is good, but x.service is inactive ()"));
    fake.set(state("x.service", "active"));
    machine.converge(&desired, &fake).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_hangs_is_told_at_the_deadline() {
    let machine = Machine::new(manual());
    let desired = Desired { volumes: vec![volume(VolumeRole::Etcd, "/var/lib/etcd")], ..Desired::default() };
    let fake = Fake { hangs: true, ..Fake::new(&machine.clock, &[]) };
    let failure = machine.converge(&desired, &fake).await.unwrap_err();
    assert_eq!((failure.code, failure.step.as_str()), (Code::VolumeFailed, "volume etcd: deadline"));
    assert_eq!(machine.codes(), [Code::VolumeFailed], "told once");
}

#[tokio::test]
async fn an_owner_that_a_helper_makes_is_waited_for() {
    let machine = Machine::new(manual());
    let mut secret = File::public("/etc/etcd/key", "k");
    (secret.mode, secret.owner) = (0o600, Owner::named("etcd"));
    let desired = Desired {
        files: vec![secret, File::public("/etc/sysusers.d/etcd.conf", "u etcd")],
        units: vec![Unit {
            applies_files: true,
            enable: false,
            ..unit("systemd-sysusers.service", &["/etc/sysusers.d/etcd.conf"], &[])
        }],
        ..Desired::default()
    };
    let fake = Fake::new(&machine.clock, &[("systemd-sysusers.service", "active")]);
    let failure = machine.converge(&desired, &fake).await.unwrap_err();
    assert_eq!(failure.code, Code::FileFailed);
    assert_eq!(failure.cause, "/etc/etcd/key is to belong to etcd:etcd, which this machine does not have");
    assert_eq!(machine.read("/etc/etcd/key"), None, "no byte before the owner is known");
    machine.users("etcd:x:UID:GID\n");
    machine.converge(&desired, &fake).await.unwrap();
    assert_eq!(machine.read("/etc/etcd/key").as_deref(), Some("k"));
}

#[tokio::test]
async fn a_bus_that_is_away_for_a_moment_is_waited_for() {
    let machine = Machine::new(manual());
    let fake = Fake::new(&machine.clock, &[("x.service", "inactive")]);
    let desired = Desired { units: vec![unit("x.service", &[], &[])], ..Desired::default() };
    *fake.away.lock().unwrap() = 3;
    machine.converge(&desired, &fake).await.unwrap();
    *fake.away.lock().unwrap() = 999;
    let failure = machine.converge(&desired, &fake).await.unwrap_err();
    assert_eq!((failure.code, failure.cause.as_str()), (Code::UnitFailed, "the bus is away"));
}

#[tokio::test]
async fn a_directory_in_place_of_a_file_fails_with_its_path() {
    let machine = Machine::new(manual());
    machine.root.create_dir_all(Path::new("/etc/x.conf"), Attributes::mode(0o755)).unwrap();
    let desired = Desired { files: vec![File::public("/etc/x.conf", "x")], ..Desired::default() };
    let failure = machine.converge(&desired, &Fake::new(&machine.clock, &[])).await.unwrap_err();
    assert_eq!((failure.code, failure.step.as_str()), (Code::FileFailed, "file /etc/x.conf"));
    assert!(failure.cause.contains("something that is no file is in its place"), "{}", failure.cause);
}

#[test]
fn a_run_can_be_spawned() {
    fn is_send<T: Send>(_: T) {}
    let machine = Machine::new(manual());
    let fake = Fake::new(&machine.clock, &[]);
    let desired = Desired::default();
    is_send(machine.converge(&desired, &fake));
}
