//! The engine against a fake systemd, fake volumes and a fake prober.

use crate::converge::BeforeChange;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt as _};
use serde_json::{Value, json};
use tokio::sync::broadcast;

use super::flannel::PodNetwork;
use super::flannel::packets::{Question, Replies};
use super::{
    Applied, Certificates, ConvergeResult, EtcdMembership, Failure, FailureDetails, MemberChange, MemberSituation, MemberStep,
    Objects, Original, Prepared, Prober, Retired, RetiredFile, RunContext, SpecialRestarts, UnitManager, Volumes, converge,
    pending,
};
use crate::clock::{Clock, Timestamp};
use crate::desired::{
    AddOn, CaCertificate, ClientIdentity, Content, Dependency, Desired, Directory, DiskName, EtcdAccess, EtcdJoin, File,
    FlannelStore, FormatPolicy, Gate, GateProbe, Material, Object, Owner, Peer, Peers, PodRoutes, Signer, Unit, Volume,
    VolumeRole,
};
use crate::error::{Error, Result};
use crate::files::{Attributes, Tree};
use crate::machine::listeners::Holder;
use crate::network::flannel::Version;
use crate::progress::{Progress, StepId};
use crate::reach::PacketOutcome;
use crate::report::condition_state::ConditionState;
use crate::report::follow_up::FollowUp;
use crate::report::timeline::critical_path;
use crate::report::{Code, Report};
use crate::systemd::{Enabled, JobOutcome, UnitState};

/// A job that does not end.
const NEVER: u64 = u64::MAX;

/// What the next start or restart of a unit does: how long it takes, how the job ends, what the unit is then.
#[derive(Clone)]
struct Act(u64, &'static str, UnitState);

struct Fake {
    states: Mutex<BTreeMap<String, UnitState>>,
    acts: Mutex<BTreeMap<String, VecDeque<Act>>>,
    answers: Mutex<VecDeque<Result<Value>>>,
    log: Mutex<Vec<String>>,
    /// Units that had not failed, and whose starts were taken back from systemd's count.
    uncounted: Mutex<Vec<String>>,
    changes: broadcast::Sender<String>,
    clock: Clock,
    volume: Mutex<VecDeque<std::result::Result<bool, Failure>>>,
    /// Errors that the next calls give, as a bus that is away.
    away: Mutex<u32>,
    /// Volumes never get done, and services do not answer.
    hangs: bool,
    prepared: Mutex<VecDeque<std::result::Result<Prepared<()>, Failure>>>,
    objects: Mutex<VecDeque<Result<bool>>>,
    /// What comes next for etcd's member.
    member_steps: Mutex<VecDeque<Result<MemberStep>>>,
    promotions: Mutex<VecDeque<Result<bool>>>,
    /// With what it was asked for.
    situations: Mutex<Vec<MemberSituation>>,
    /// The note of pending restarts.
    pending: Option<std::path::PathBuf>,
    /// Targets that no enabled unit finds.
    absent: Vec<String>,
    /// What units said last.
    words: Vec<String>,
    /// Who listens.
    holders: Vec<Holder>,
    /// Nodes where packets of pods do not arrive.
    silent: Vec<String>,
    /// Nobody can listen to systemd for long.
    ignores_events: bool,
    /// How often somebody began to.
    listened: Mutex<u32>,
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
            uncounted: Mutex::default(),
            changes: broadcast::channel(64).0,
            clock: clock.clone(),
            volume: Mutex::default(),
            away: Mutex::default(),
            hangs: false,
            prepared: Mutex::default(),
            objects: Mutex::default(),
            member_steps: Mutex::default(),
            promotions: Mutex::default(),
            situations: Mutex::default(),
            pending: None,
            absent: Vec::new(),
            words: Vec::new(),
            holders: Vec::new(),
            silent: Vec::new(),
            ignores_events: false,
            listened: Mutex::default(),
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
        if millis == NEVER {
            std::future::pending::<()>().await;
        }
        if millis > 0 {
            self.clock.wait(Duration::from_millis(millis)).await;
        }
        self.set(after);
        self.log(format!("{result} {name}"));
        Ok(JobOutcome::new(result))
    }
}

impl UnitManager for Fake {
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
        // Of one that has not failed it only takes back the count of its starts.
        let has_failed = self.states.lock().unwrap().get(name).is_some_and(UnitState::is_failed);
        if has_failed {
            self.log(format!("reset {name}"));
        } else {
            self.uncounted.lock().unwrap().push(name.to_owned());
        }
        Ok(())
    }

    async fn reload(&self) -> Result<()> {
        self.log("reload".into());
        Ok(())
    }

    async fn enable(&self, names: &[&str]) -> Result<Enabled> {
        self.log(format!("enable {}", names.join(" ")));
        Ok(Enabled { changed: true, absent: self.absent.clone() })
    }

    async fn stop(&self, name: &str) -> Result<JobOutcome> {
        self.job("stop", name).await
    }

    async fn disable(&self, names: &[String]) -> Result<()> {
        self.log(format!("disable {}", names.join(" ")));
        Ok(())
    }

    async fn changes(&self) -> Result<BoxStream<'static, String>> {
        *self.listened.lock().unwrap() += 1;
        if self.ignores_events {
            return Ok(futures_util::stream::empty().boxed());
        }
        let receiver = self.changes.subscribe();
        Ok(futures_util::stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.ok().map(|name| (name, receiver))
        })
        .boxed())
    }
}

impl Volumes for Fake {
    async fn check_stores(&self, _desired: &Desired) -> Result<()> {
        Ok(())
    }
    async fn check_places(&self, _desired: &Desired, _deadline: Duration, _: bool) -> std::result::Result<(), Failure> {
        Ok(())
    }
    async fn bring_up(&self, volume: &Volume, _deadline: Duration) -> std::result::Result<bool, Failure> {
        self.log(format!("volume {}", volume.role));
        if self.hangs {
            std::future::pending::<()>().await;
        }
        let next = self.volume.lock().unwrap().pop_front();
        next.unwrap_or(Ok(false))
    }
}

impl Certificates for Fake {
    type Record = ();

    async fn prepare(&self, _desired: &Desired, _deadline: Duration) -> std::result::Result<Prepared<()>, Failure> {
        self.log("prepare".into());
        let next = self.prepared.lock().unwrap().pop_front();
        next.unwrap_or_else(|| Ok(Prepared::default()))
    }

    fn commit(&self, prepared: &Prepared<()>) -> std::result::Result<(), Failure> {
        let pending = self.pending.as_ref().and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        let pending: BTreeSet<String> = crate::budgets::json::typed(&pending).unwrap_or_default();
        let sets: Vec<&str> = prepared.sets.iter().map(|(_, set)| set.as_str()).collect();
        self.log(format!("commit {}, pending {pending:?}", sets.join(" ")));
        Ok(())
    }
}

impl FailureDetails for Fake {
    async fn failure_details(&self, unit: &str) -> Vec<String> {
        self.log(format!("words of {unit}"));
        self.words.clone()
    }

    async fn holders(&self, ports: &BTreeSet<u16>) -> Vec<Holder> {
        self.holders.iter().filter(|holder| ports.contains(&holder.port)).cloned().collect()
    }
}

impl Objects for Fake {
    async fn ensure(&self, object: &Object, _deadline: Duration) -> Result<bool> {
        self.log(format!("ensure {}", object.name));
        self.objects.lock().unwrap().pop_front().unwrap_or(Ok(false))
    }

    async fn apply(&self, add_on: &AddOn, _: &Tree, _: Duration, waits: &impl Fn(&Error, u32, Duration)) -> Result<Applied> {
        self.log(format!("apply {}", add_on.name));
        waits(&Error::transient("the API is away"), 1, Duration::from_secs(1));
        let made = self.objects.lock().unwrap().pop_front().unwrap_or(Ok(false))?;
        Ok(Applied { made: usize::from(made), changed: 0, unchanged: 2 })
    }
}

impl PodNetwork for Fake {
    async fn describe(&self, store: &FlannelStore, _flanneld: Option<Version>) -> Result<bool> {
        self.log(format!("describe {}", store.prefix));
        self.objects.lock().unwrap().pop_front().unwrap_or(Ok(false))
    }

    async fn refuse(&self, store: &FlannelStore, _flanneld: Option<Version>) -> Result<()> {
        if store.description.contains("refused") { Err(Error::refused("nodes have leases")) } else { Ok(()) }
    }

    async fn leases(&self, _store: &FlannelStore, _flanneld: Option<Version>) -> Result<Vec<Peer>> {
        Ok(Vec::new())
    }

    async fn send(&self, questions: &[Question]) -> Vec<Replies> {
        let far = |peer: &Peer| {
            if self.silent.contains(&peer.node.to_string()) { PacketOutcome::Silence } else { PacketOutcome::Arrived }
        };
        questions
            .iter()
            .map(|one| Replies { peer: one.peer, control: PacketOutcome::Arrived, far: far(&one.peer), near: far(&one.peer) })
            .collect()
    }
}

impl EtcdMembership for Fake {
    fn hold(&self, _: &Tree, join: &EtcdJoin) -> Result<()> {
        self.log(format!("hold {}", join.name));
        Ok(())
    }

    fn protect(&self, _: &Tree, join: &EtcdJoin) -> Result<()> {
        self.log(format!("protect {}", join.name));
        Ok(())
    }

    async fn settle(&self, _: &Tree, join: &EtcdJoin, situation: &MemberSituation) -> Result<MemberStep> {
        self.log(format!("settle {}", join.name));
        self.situations.lock().unwrap().push(situation.clone());
        self.member_steps.lock().unwrap().pop_front().unwrap_or(Ok(MemberStep::Start))
    }

    async fn promote(&self, _: &EtcdJoin) -> Result<bool> {
        let promoted = self.promotions.lock().unwrap().pop_front();
        promoted.inspect(|promoted| self.log(format!("promote {promoted:?}"))).unwrap_or(Ok(false))
    }

    async fn change(&self, _: &Tree, _: &EtcdJoin, _: &MemberSituation, change: MemberChange) -> Result<bool> {
        self.log(format!("{change:?}"));
        Ok(true)
    }
}

impl Prober for Fake {
    async fn get_json(&self, _url: &str, _identity: Option<&ClientIdentity>) -> Result<Value> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        let next = self.answers.lock().unwrap().pop_front();
        next.unwrap_or_else(|| Ok(json!({"health": "true"})))
    }

    async fn get_text(&self, _url: &str, _ca: Option<&str>, _identity: Option<&ClientIdentity>) -> Result<String> {
        Ok("ok".to_owned())
    }

    async fn answers_grpc(&self, _socket: &str) -> Result<()> {
        Ok(())
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
    progress: Progress,
    deadline: Duration,
    patience: u32,
    restarts: SpecialRestarts,
}

impl Machine {
    fn new(clock: Clock) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = Tree::open(dir.path()).unwrap();
        root.create_dir(Path::new("/etc"), Attributes::mode(0o755)).unwrap();
        let report = Report::kept();
        let progress = Progress::new(report.clone(), clock.clone());
        let deadline = Duration::from_secs(30);
        let machine =
            Self { _dir: dir, root, clock, report, progress, deadline, patience: 1, restarts: SpecialRestarts::default() };
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

    async fn converge(&self, desired: &Desired, fake: &Fake) -> ConvergeResult {
        self.go_back(desired, fake, &Retired::default()).await
    }

    /// The same, and takes these away.
    async fn go_back(&self, desired: &Desired, fake: &Fake, retired: &Retired) -> ConvergeResult {
        self.progress.begin_run(None);
        let context = RunContext {
            root: &self.root,
            systemd: fake,
            volumes: fake,
            prober: fake,
            certificates: fake,
            clock: &self.clock,
            progress: &self.progress,
            deadline: self.deadline,
            stability_period: Duration::from_secs(6),
            patience: self.patience,
            generation: 7,
            flanneld: None,
            update: retired.is_empty().then_some(BeforeChange(&|| Ok(()))),
            retired,
            restarts: &self.restarts,
        };
        converge(desired, &context, fake).await
    }

    /// What explain would show.
    fn steps(&self) -> Vec<String> {
        self.progress.steps().iter().map(|step| format!("{} {:?}", step.name, step.state)).collect()
    }

    fn codes(&self) -> Vec<Code> {
        self.report.events().iter().map(|event| event.code).collect()
    }
}

fn unit(name: &str, restart_on: &[&str], needs: &[Dependency]) -> Unit {
    Unit {
        name: name.into(),
        enable: true,
        restart_on: restart_on.iter().map(|path| (*path).to_owned()).collect(),
        needs: needs.iter().cloned().collect(),
        applies_files: false,
    }
}

fn gate(name: &str, of: Option<&str>, consecutive: u8, needs: &[Dependency]) -> Gate {
    Gate {
        name: name.into(),
        unit: of.map(str::to_owned),
        probe: GateProbe::HttpJson {
            url: "http://127.0.0.1/health".into(),
            key: "health".into(),
            value: "true".into(),
            identity: None,
        },
        consecutive,
        deadline: None,
        needs: needs.iter().cloned().collect(),
        remedy: "look at it".into(),
    }
}

fn volume(role: VolumeRole, mount_point: &str) -> Volume {
    Volume {
        role,
        disk: DiskName::Cinder("c".into()),
        hint: "/dev/vdb".into(),
        content: Content::Xfs,
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

/// Carries out a run beside something that happens meanwhile, or looks on; that is polled first each time.
async fn beside(what: impl Future<Output = ()>, run: impl Future<Output = ConvergeResult>) -> ConvergeResult {
    let what = async {
        what.await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        () = what => unreachable!(),
        outcome = run => outcome,
    }
}

/// A unit, and the gate that asks so many good answers of it.
fn x_and_its_gate(consecutive: u8) -> Desired {
    Desired {
        units: vec![unit("x.service", &[], &[])],
        gates: vec![gate("g", Some("x.service"), consecutive, &[Dependency::Unit("x.service".into())])],
        ..Desired::default()
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
            needs: BTreeSet::from([Dependency::Volume(VolumeRole::Runtime)]),
        }],
        volumes: vec![volume(VolumeRole::Runtime, "/var/lib/docker")],
        units: vec![
            Unit { applies_files: true, enable: false, ..unit("systemd-sysctl.service", &["/etc/sysctl.d/k.conf"], &[]) },
            unit(
                "docker.service",
                &["/etc/systemd/system/docker.service.d/10.conf"],
                &[Dependency::Volume(VolumeRole::Runtime), Dependency::Directory("/var/lib/docker/sub".into())],
            ),
            unit("etcd.service", &["/etc/etcd.conf"], &[]),
        ],
        gates: vec![
            gate("etcd", Some("etcd.service"), 2, &[Dependency::Unit("etcd.service".into())]),
            Gate {
                probe: GateProbe::Docker {
                    socket: "/run/docker.sock".into(),
                    storage_driver: "overlay2".into(),
                    data_root: "/var/lib/docker".into(),
                },
                ..gate("docker", Some("docker.service"), 1, &[Dependency::Unit("docker.service".into())])
            },
        ],
        ..Desired::default()
    }
}

/// All units of [`node`] run.
fn active(machine: &Machine) -> Fake {
    Fake::new(&machine.clock, &[("systemd-sysctl.service", "active"), ("docker.service", "active"), ("etcd.service", "active")])
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
    assert!(machine.codes().iter().filter(|code| **code == Code::GatePassed).count() == 2);
    // In one line, however many they are.
    let events = machine.report.events();
    let written: Vec<_> = events.iter().filter(|event| event.code == Code::FilesWritten).map(|event| &*event.message).collect();
    assert_eq!(written, ["wrote 5 files and directories"]);
    assert_eq!(machine.read("/var/lib/docker/on-volume").as_deref(), Some("x"));
    assert!(step_timings(&machine).iter().any(|timing| timing.0 == "gate docker"), "{:?}", step_timings(&machine));
    let steps = [
        "files",
        "volume runtime",
        "unit systemd-sysctl.service",
        "unit docker.service",
        "unit etcd.service",
        "gate etcd",
        "gate docker",
        "final proof",
    ];
    assert_eq!(machine.steps(), steps.map(|step| format!("{step} Ok")));

    for name in ["etcd.service", "docker.service"] {
        fake.set(state(name, "active"));
    }
    let before = machine.codes().len();
    let again = machine.converge(&node(), &fake).await.unwrap();
    assert!(!again.changed);
    assert_eq!(fake.take_log(), ["volume runtime"], "nothing is reloaded, enabled, started");
    assert_eq!(machine.codes()[before..], [Code::GatePassed, Code::GatePassed]);
    assert_eq!(machine.read("/run/heat-node-agent/pending-restarts.json"), None);

    // Nothing of it changed but the program.
    let restarts = SpecialRestarts { replaced: BTreeSet::from(["etcd.service".to_owned()]), ..SpecialRestarts::default() };
    let machine = Machine { restarts, ..machine };
    assert!(machine.converge(&node(), &fake).await.unwrap().changed);
    assert_eq!(fake.take_log(), ["volume runtime", "restart etcd.service", "done etcd.service"]);
    assert_eq!(machine.read("/run/heat-node-agent/pending-restarts.json"), None);
}

/// What `timeline` draws: each step, what it came after (the last one released it), how it ended.
fn step_timings(machine: &Machine) -> Vec<(String, String, ConditionState)> {
    machine.progress.step_timings().into_iter().map(|timing| (timing.step, timing.after.join(", "), timing.state)).collect()
}

#[tokio::test]
async fn a_lap_names_what_it_waited_for_and_begins_when_that_has_ended() {
    let machine = Machine::new(manual());
    let inactive = ["docker.service", "etcd.service", "api", "late"].map(|name| (name, "inactive"));
    let states: Vec<_> = inactive.into_iter().chain([("systemd-sysctl.service", "active")]).collect();
    let fake = Fake::new(&machine.clock, &states)
        .act("etcd.service", &[Act(3000, "done", state("etcd.service", "active"))])
        .act("late", &[Act(2000, "done", state("late", "active"))]);
    let mut desired = node();
    // What ends last comes neither first nor last in the Desired.
    desired.units.insert(0, unit("late", &[], &[Dependency::Unit("etcd.service".into())]));
    desired.units.push(unit("api", &[], &["docker.service", "late"].map(|name| Dependency::Unit(name.into()))));
    machine.converge(&desired, &fake).await.unwrap();
    let found = step_timings(&machine);
    let after = |step: &str| {
        let timing = found.iter().find(|timing| timing.0 == step).unwrap_or_else(|| panic!("{step}: {found:?}"));
        assert_eq!(timing.2, ConditionState::Ok, "{step}");
        timing.1.as_str()
    };
    // One after the other, to where the graph begins.
    let early =
        ["checks", "plan", "files", "reload", "reading the units' states", "unit systemd-sysctl.service", "volume runtime"];
    assert_eq!(after("checks"), "");
    for pair in early.windows(2) {
        assert_eq!(after(pair[1]), pair[0]);
    }
    assert_eq!(after("unit etcd.service"), "unit systemd-sysctl.service");
    assert_eq!(after("directory /var/lib/docker/sub"), "volume runtime");
    assert_eq!(after("unit docker.service"), "volume runtime, directory /var/lib/docker/sub");
    assert_eq!(after("gate docker"), "unit docker.service");
    let all = machine.progress.step_timings();
    let timing = |step: &str| all.iter().find(|timing| timing.step == step).unwrap();
    assert!(timing("unit late").ended_ms() > timing("unit docker.service").ended_ms());
    assert_eq!(after("unit api"), "unit docker.service, unit late", "in the order of their ends");
    assert_eq!(timing("unit api").began_ms, timing("unit late").ended_ms());
    // What was started has to go on answering, and the critical path says so.
    let (proof, total) = (timing("final proof"), all.iter().map(crate::report::step_timing::StepTiming::ended_ms).max().unwrap());
    assert!(proof.took_ms >= 3000 && proof.after.len() == 1 && proof.after[0].starts_with("gate "), "{proof:?}");
    let path: Vec<&str> = critical_path(&all).into_iter().map(|at| all[at].step.as_str()).collect();
    assert_eq!((path.last(), proof.ended_ms()), (Some(&"final proof"), total), "{path:?}");
    for timing in &all {
        let needs = timing.after.iter().map(|need| all.iter().find(|other| other.step == *need).unwrap().ended_ms());
        assert!(needs.max().unwrap_or_default() <= timing.began_ms, "{timing:?}");
    }
    let passed = machine.report.events().into_iter().find(|event| event.gate.as_deref() == Some("etcd")).unwrap();
    assert_eq!(passed.waited_for.as_deref(), Some("unit etcd.service"));
    assert!(
        passed.waited.unwrap() >= Duration::from_secs(3)
            && passed.message.contains("waited ")
            && passed.message.ends_with(" for unit etcd.service)"),
        "{passed:?}"
    );
}

#[tokio::test]
async fn a_failed_run_keeps_its_laps_with_the_step_that_failed_and_those_that_went_on() {
    let machine = Machine { deadline: Duration::from_secs(5), ..Machine::new(manual()) };
    let mut fake = Fake::new(&machine.clock, &[("systemd-sysctl.service", "active"), ("docker.service", "inactive")]);
    fake.hangs = true;
    let failed = UnitState { active_state: "failed".into(), ..state("etcd.service", "failed") };
    let fake = fake.act("etcd.service", &[Act(10, "failed", failed)]);
    fake.set(state("etcd.service", "inactive"));
    machine.converge(&node(), &fake).await.unwrap_err();
    let last: Vec<_> = step_timings(&machine).into_iter().skip_while(|timing| !timing.0.starts_with("volume")).collect();
    let of = |step: &str, state| (step.to_owned(), "unit systemd-sysctl.service".to_owned(), state);
    assert_eq!(last, [of("volume runtime", ConditionState::Waiting), of("unit etcd.service", ConditionState::Failed)]);
    // What did not begin says what for.
    let waits = |name: &str| machine.progress.steps().into_iter().find(|step| step.name.as_str() == name).unwrap().waits_for;
    assert_eq!(waits("gate etcd"), ["unit etcd.service"]);
    assert_eq!(waits("unit docker.service"), ["volume runtime", "directory /var/lib/docker/sub"]);

    // A failure before the graph is one of the step that was dealt with.
    *fake.away.lock().unwrap() = u32::MAX;
    machine.converge(&node(), &fake).await.unwrap_err();
    assert_eq!(step_timings(&machine).last(), Some(&("plan".into(), "checks".into(), ConditionState::Failed)));
}

#[tokio::test]
async fn only_who_reads_a_changed_file_is_restarted() {
    let machine = Machine::new(manual());
    let fake = active(&machine);
    machine.converge(&node(), &fake).await.unwrap();
    fake.take_log();
    machine.write("/etc/etcd.conf", "a=2\n");
    machine.converge(&node(), &fake).await.unwrap();
    assert_eq!(fake.take_log(), ["volume runtime", "restart etcd.service", "done etcd.service"]);
    assert_eq!(machine.read("/etc/etcd.conf").as_deref(), Some("a=1\n"));
    // Attack: a few updates within a minute reached the start limit of docker's unit by the agent's own restarts.
    assert_eq!(fake.uncounted.lock().unwrap().last().map(String::as_str), Some("etcd.service"));
}

#[tokio::test]
async fn a_restart_stays_pending_until_it_is_done() {
    let machine = Machine::new(manual());
    let mut desired = node();
    desired.units[2].needs.insert(Dependency::Volume(VolumeRole::Runtime));
    let fake = active(&machine);
    machine.converge(&desired, &fake).await.unwrap();
    machine.write("/etc/etcd.conf", "a=2\n");
    fake.volume.lock().unwrap().push_back(Err(Failure::new(Code::VolumeMissing, StepId::Volume(VolumeRole::Runtime), "no disk")));
    let failure = machine.converge(&desired, &fake).await.unwrap_err();
    assert_eq!(failure.code, Code::VolumeMissing);
    assert_eq!(machine.read("/etc/etcd.conf").as_deref(), Some("a=1\n"), "the file is right, the unit is not");
    fake.take_log();
    machine.converge(&desired, &fake).await.unwrap();
    assert_eq!(fake.take_log(), ["volume runtime", "restart etcd.service", "done etcd.service"]);
    assert_eq!(machine.read("/run/heat-node-agent/pending-restarts.json"), None);
}

/// Attack: restarts that a killed renewal had left cost etcd its quorum.
#[tokio::test]
async fn a_held_restart_stays_pending_beside_what_is_put_back_unless_the_unit_is_down() {
    let restarts = SpecialRestarts { held: BTreeSet::from(["etcd.service".to_owned()]), ..SpecialRestarts::default() };
    let machine = Machine { restarts, ..Machine::new(manual()) };
    let fake = active(&machine);
    machine.converge(&node(), &fake).await.unwrap();
    fake.take_log();
    let pending = || machine.read("/run/heat-node-agent/pending-restarts.json").unwrap_or_default();
    let note = BTreeSet::from(["docker.service", "etcd.service"].map(str::to_owned));
    pending::write(&machine.root, &note).unwrap();
    machine.converge(&node(), &fake).await.unwrap();
    assert_eq!(fake.take_log(), ["volume runtime", "restart docker.service", "done docker.service"]);
    assert!(pending().contains("etcd.service") && !pending().contains("docker.service"), "{}", pending());
    // What does not run reads its files when it is started.
    fake.set(state("etcd.service", "inactive"));
    machine.converge(&node(), &fake).await.unwrap();
    assert_eq!(fake.take_log(), ["volume runtime", "start etcd.service", "done etcd.service"]);
    assert_eq!(pending(), "");
}

/// Attack: an update of all masters at once made the restarts of etcd that had waited for the quorum.
#[tokio::test]
async fn a_restart_that_waited_before_stays_pending_unless_this_run_changes_what_the_unit_reads() {
    let held_unless_changed = BTreeSet::from(["etcd.service".to_owned()]);
    let restarts = SpecialRestarts { held_unless_changed, ..SpecialRestarts::default() };
    let machine = Machine { restarts, ..Machine::new(manual()) };
    let fake = active(&machine);
    machine.converge(&node(), &fake).await.unwrap();
    fake.take_log();
    let pending = || machine.read("/run/heat-node-agent/pending-restarts.json").unwrap_or_default();
    pending::write(&machine.root, &BTreeSet::from(["etcd.service".to_owned()])).unwrap();
    machine.write("/etc/systemd/system/docker.service.d/10.conf", "[Unit]\n");
    machine.converge(&node(), &fake).await.unwrap();
    assert_eq!(fake.take_log(), ["reload", "volume runtime", "restart docker.service", "done docker.service"]);
    assert!(pending().contains("etcd.service"), "{}", pending());
    machine.write("/etc/etcd.conf", "a=2\n");
    machine.converge(&node(), &fake).await.unwrap();
    assert_eq!(fake.take_log(), ["volume runtime", "restart etcd.service", "done etcd.service"]);
    assert_eq!(pending(), "");
    // Attack: an update wrote the file and was superseded; the next one found it right, and reported success without the restart.
    let etcd = BTreeSet::from(["etcd.service".to_owned()]);
    pending::write(&machine.root, &etcd).unwrap();
    pending::wait(&machine.root, &etcd).unwrap();
    let mut late = node();
    late.units[2].needs.insert(Dependency::Volume(VolumeRole::Runtime));
    machine.write("/etc/etcd.conf", "a=2\n");
    fake.volume.lock().unwrap().push_back(Err(Failure::new(Code::VolumeMissing, StepId::Volume(VolumeRole::Runtime), "no disk")));
    machine.converge(&late, &fake).await.unwrap_err();
    assert!(pending().contains("etcd.service") && pending::waiting(&machine.root).is_empty());
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
    log[..2].sort();
    log[2..].sort();
    assert_eq!(log, ["start a.service", "start b.service", "done a.service", "done b.service"]);
}

#[tokio::test]
async fn what_the_image_lacks_is_reported_before_a_volume_is_touched() {
    let machine = Machine::new(manual());
    let fake = Fake::new(&machine.clock, &[("systemd-sysctl.service", "active"), ("etcd.service", "active")]);
    let failure = machine.converge(&node(), &fake).await.unwrap_err();
    assert_eq!((failure.code, failure.unit.as_deref()), (Code::UnitMissing, Some("docker.service")));
    assert!(failure.changed_machine, "files were written");
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
            "x.service is failed (failed: exit-code, status 1) (its job ended with result `failed`)",
            "journalctl",
        ),
        (
            state("x.service", "inactive"),
            Act(0, "dependency", state("", "inactive")),
            "a unit that x.service requires failed to start",
            "journalctl",
        ),
        (
            state("x.service", "inactive"),
            Act(0, "done", state("", "inactive")),
            "one of the conditions of x.service is not met",
            "journalctl",
        ),
        (masked, Act(0, "done", failed), "x.service is masked", "systemctl unmask x.service"),
    ] {
        let machine = Machine::new(Clock::system());
        // The gate never passes and must not hold up the news.
        let desired =
            Desired { units: vec![unit("x.service", &[], &[])], gates: vec![gate("g", None, 1, &[])], ..Desired::default() };
        let fake = Fake::new(&machine.clock, &[]).act("x.service", &[act]);
        fake.set(before);
        fake.answers.lock().unwrap().extend((0..999).map(|_| Err(Error::transient("refused"))));
        let failure = machine.converge(&desired, &fake).await.unwrap_err();
        let code = if cause == "x.service is masked" { Code::UnitMasked } else { Code::UnitFailed };
        assert_eq!((failure.code, failure.doing().as_str()), (code, "unit x.service"));
        // The gate may have begun beside it or not.
        assert_eq!(machine.steps()[..2], ["files Ok", "unit x.service Failed"]);
        let step = machine.progress.steps().swap_remove(1);
        assert_eq!((step.cause, step.remedy), (Some(failure.cause.clone()), Some(failure.remedy.to_string())));
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
        while fake.changes.receiver_count() == 0 {
            tokio::task::yield_now().await;
        }
        fake.set(state("x.service", "active"));
        fake.changes.send("x.service".into()).unwrap();
    };
    let (outcome, ()) = tokio::join!(machine.converge(&desired, &fake), recover);
    assert!(outcome.unwrap().changed);
    let log = fake.take_log();
    assert_eq!(log, ["reset x.service", "start x.service", "canceled x.service", "start x.service", "failed x.service"]);
}

#[tokio::test]
async fn a_gate_that_stays_red_is_reported_at_the_deadline_with_its_last_answer() {
    let machine = Machine::new(manual());
    let desired = Desired { gates: vec![gate("etcd", None, 1, &[])], ..Desired::default() };
    let fake = Fake::new(&machine.clock, &[]);
    fake.answers.lock().unwrap().extend((0..999).map(|_| Ok(json!({"health": "false"}))));
    let start = machine.clock.start();
    let failure = machine.converge(&desired, &fake).await.unwrap_err();
    assert_eq!(
        (failure.code, failure.cause.as_str(), failure.remedy.as_str()),
        (
            Code::GateTimedOut,
            "health is false, not true, for 30 s; given up at the deadline of the run",
            "look at it. The agent then tries again by itself"
        )
    );
    assert_eq!(start.elapsed(), machine.deadline);
    let waiting = machine.codes().iter().filter(|code| **code == Code::GateWaiting).count();
    assert!((15..25).contains(&waiting), "the pause grows to 2 s: {waiting}");
}

fn bad(fake: &Fake) {
    fake.answers.lock().unwrap().extend((0..999).map(|_| Ok(json!({"health": "false"}))));
}

#[tokio::test]
async fn a_gate_has_a_deadline_of_its_own_from_when_it_is_measured() {
    let own = Some(Duration::from_secs(10));
    let of_run = "given up at the deadline of the run";
    // Its deadline, the operator's factor, how long its unit starts; after how many seconds it is given up, and the deadline's words.
    for (deadline, patience, starts, after, words) in [
        (own, 1, 0, 10, "for 10 s; given up after 10 s, its own deadline"),
        (own, 1, 8, 18, "for 10 s; given up after 10 s, its own deadline"),
        (own, 2, 0, 20, "for 20 s; given up after 20 s, its own deadline"),
        (own, 3, 0, 30, of_run),
        (own, u32::MAX, 0, 30, of_run),
        (own, 3, 25, 30, of_run),
        (None, 2, 0, 30, of_run),
        (Some(Duration::MAX), 2, 0, 30, of_run),
    ] {
        let machine = Machine { patience, ..Machine::new(manual()) };
        let desired = Desired {
            units: vec![unit("x.service", &[], &[])],
            gates: vec![Gate { deadline, ..gate("g", Some("x.service"), 3, &[Dependency::Unit("x.service".into())]) }],
            ..Desired::default()
        };
        let starts = [Act(starts * 1000, "done", state("x.service", "active"))];
        let fake = Fake::new(&machine.clock, &[("x.service", "inactive")]).act("x.service", &starts);
        bad(&fake);
        let begin = machine.clock.now();
        let first_shown = Mutex::new(None::<String>);
        let watch = async {
            loop {
                let until = machine
                    .progress
                    .steps()
                    .into_iter()
                    .find(|step| step.name.as_str() == "gate g")
                    .and_then(|step| step.given_up);
                let first = first_shown.lock().unwrap().take().or(until);
                *first_shown.lock().unwrap() = first;
                tokio::task::yield_now().await;
            }
        };
        let failure = beside(watch, machine.converge(&desired, &fake)).await.unwrap_err();
        assert!(failure.cause.ends_with(words), "{}", failure.cause);
        let ended = begin.after(Duration::from_secs(after));
        assert_eq!(machine.clock.now(), ended, "{words}");
        assert_eq!(first_shown.lock().unwrap().as_deref(), Some(ended.rfc3339().as_str()), "reported from the start");
    }
}

/// One whose start fails, or never ends, does not get as far as its gate.
#[tokio::test(start_paused = true)]
async fn a_unit_has_as_long_to_come_up_as_its_gate() {
    let tries_again =
        || UnitState { sub_state: "auto-restart".into(), result: "exit-code".into(), ..state("x.service", "activating") };
    let of = Some(Duration::from_secs(10));
    let endless = "x.service is still activating (auto-restart: exit-code of a command that runs before its program)";
    let hangs = "x.service has not finished starting";
    for (deadline, patience, act, after, words) in [
        (of, 1, Act(0, "failed", tries_again()), 10, format!("{endless} after 10 s, its own deadline")),
        (of, 2, Act(0, "failed", tries_again()), 20, format!("{endless} after 20 s, its own deadline")),
        (of, 9, Act(0, "failed", tries_again()), 30, format!("{endless} at the deadline of the run")),
        (None, 1, Act(0, "failed", tries_again()), 30, format!("{endless} at the deadline of the run")),
        (
            of,
            1,
            Act(NEVER, "done", state("x.service", "active")),
            10,
            format!("{hangs} after 10 s, its own deadline; it is inactive ()"),
        ),
        (
            None,
            1,
            Act(NEVER, "done", state("x.service", "active")),
            30,
            format!("{hangs} at the deadline of the run; it is inactive ()"),
        ),
    ] {
        let machine = Machine { patience, ..Machine::new(manual()) };
        let of_another = gate("other", None, 1, &[]);
        let desired = Desired {
            units: vec![unit("x.service", &[], &[])],
            gates: vec![
                Gate { deadline: Some(Duration::from_secs(1)), ..of_another },
                Gate { deadline, ..gate("g", Some("x.service"), 3, &[Dependency::Unit("x.service".into())]) },
                // Registration: as long as the run.
                gate("later", Some("x.service"), 3, &[Dependency::Unit("x.service".into())]),
            ],
            ..Desired::default()
        };
        let fake = Fake::new(&machine.clock, &[("x.service", "inactive")]).act("x.service", &[act]);
        let begin = machine.clock.now();
        let failure = machine.converge(&desired, &fake).await.unwrap_err();
        assert_eq!((failure.doing().as_str(), failure.cause.as_str()), ("unit x.service", words.as_str()));
        assert!(failure.remedy.contains("journalctl -u x.service"), "{}", failure.remedy);
        // The test's clock stands still while a job hangs.
        let after = if words.starts_with(hangs) { 0 } else { after };
        assert_eq!(machine.clock.now().since(begin), Duration::from_secs(after), "{words}");
    }
}

#[tokio::test]
async fn the_time_of_a_gate_goes_on_when_it_answered_and_begins_anew_when_it_was_replaced() {
    let machine = Machine { deadline: Duration::from_mins(2), ..Machine::new(manual()) };
    let mut desired = x_and_its_gate(3);
    desired.gates[0].deadline = Some(Duration::from_secs(10));
    let fake = Fake::new(&machine.clock, &[("x.service", "active")]);
    // One good answer after 6 s of bad ones, and then bad ones again: 4 s are left.
    let good = || Ok(json!({"health": "true"}));
    let begin = machine.clock.now();
    let answers = async {
        while machine.clock.now() < begin.after(Duration::from_secs(6)) {
            tokio::task::yield_now().await;
        }
        fake.answers.lock().unwrap().push_front(good());
    };
    bad(&fake);
    let failure = beside(answers, machine.converge(&desired, &fake)).await.unwrap_err();
    assert!(failure.cause.ends_with("; given up after 10 s, its own deadline"), "{}", failure.cause);
    assert_eq!(machine.clock.now().since(begin), Duration::from_secs(10));

    // It passes, and then its process is another one, which never passes: it has 10 s of its own.
    fake.answers.lock().unwrap().clear();
    fake.set(state("x.service", "inactive"));
    let begin = machine.clock.now();
    let before = machine.codes().len();
    let dies = async {
        while !machine.codes()[before..].contains(&Code::GatePassed) {
            tokio::task::yield_now().await;
        }
        fake.set(UnitState { main_pid: 2, n_restarts: 1, ..state("x.service", "active") });
        bad(&fake);
    };
    let failure = beside(dies, machine.converge(&desired, &fake)).await.unwrap_err();
    assert!(failure.cause.ends_with(", for 10 s; given up after 10 s, its own deadline"), "{}", failure.cause);
    // Three answers in 2 s, and what is left of the 6 s in which it has to settle.
    assert_eq!(machine.clock.now().since(begin), Duration::from_secs(16));
}

#[tokio::test]
async fn good_answers_between_bad_ones_are_not_added_up() {
    let machine = Machine::new(manual());
    let desired = Desired { gates: vec![gate("g", None, 3, &[])], ..Desired::default() };
    let fake = Fake::new(&machine.clock, &[]);
    let (good, unhealthy) = (|| Ok(json!({"health": "true"})), || Ok(json!({"health": "false"})));
    fake.answers.lock().unwrap().extend([good(), good(), unhealthy(), good(), good(), unhealthy(), good()]);
    bad(&fake);
    let failure = machine.converge(&desired, &fake).await.unwrap_err();
    assert_eq!((failure.code, failure.doing().as_str()), (Code::GateTimedOut, "gate g"));
    assert!(!machine.codes().contains(&Code::GatePassed));
}

/// One that never passes has its restarts reported, too.
#[tokio::test]
async fn restarts_of_a_unit_that_is_never_healthy_are_counted() {
    let machine = Machine::new(manual());
    let desired = Desired { gates: vec![gate("g", Some("x.service"), 1, &[])], ..Desired::default() };
    let fake = Fake::new(&machine.clock, &[]);
    let restarts = |n_restarts| fake.set(UnitState { n_restarts, ..state("x.service", "active") });
    restarts(4);
    bad(&fake);
    let begin = machine.clock.now();
    let dies = async {
        while machine.clock.now() < begin.after(Duration::from_secs(9)) {
            tokio::task::yield_now().await;
        }
        restarts(7);
    };
    let failure = beside(dies, machine.converge(&desired, &fake)).await.unwrap_err();
    let words = "for 30 s; meanwhile systemd restarted x.service 3 times; given up at the deadline of the run";
    assert!(failure.cause.ends_with(words), "{}", failure.cause);
}

#[tokio::test]
async fn good_answers_end_at_the_deadline_as_bad_ones_do() {
    let machine = Machine::new(manual());
    let mut desired = Desired { gates: vec![gate("g", Some("x.service"), 3, &[])], ..Desired::default() };
    desired.gates[0].deadline = Some(Duration::from_secs(5));
    let fake = Fake::new(&machine.clock, &[("x.service", "active")]);
    fake.answers.lock().unwrap().push_back(Ok(json!({"health": "false"})));
    let begin = machine.clock.now();
    let dies = async {
        while machine.clock.now() == begin {
            tokio::task::yield_now().await;
        }
        fake.set(UnitState { main_pid: 2, n_restarts: 1, ..state("x.service", "active") });
    };
    let failure = beside(dies, machine.converge(&desired, &fake)).await.unwrap_err();
    let cause = "it passed, but not for long enough without a restart; meanwhile systemd restarted x.service 1 times; \
                 given up after 5 s, its own deadline";
    assert_eq!(failure.cause, cause);
    // The first good answer comes 0.1 s after the bad one, the others a second apart.
    assert_eq!(machine.clock.now().since(begin), Duration::from_secs(5));
}

#[tokio::test]
async fn what_was_started_settles_while_there_is_time_and_what_ran_before_is_not_waited_for() {
    for (before, deadline, waits) in [("inactive", 30, 6), ("inactive", 3, 3), ("active", 30, 0)] {
        let machine = Machine { deadline: Duration::from_secs(deadline), ..Machine::new(manual()) };
        let desired = x_and_its_gate(1);
        let fake = Fake::new(&machine.clock, &[("x.service", before)]);
        let begin = machine.clock.now();
        machine.converge(&desired, &fake).await.unwrap();
        assert_eq!(machine.clock.now().since(begin), Duration::from_secs(waits), "{before}, {deadline} s");
    }
}

#[tokio::test]
async fn what_was_started_last_settles_as_long_as_what_was_started_first() {
    let machine = Machine::new(manual());
    let names = ["a.service", "b.service"];
    let desired = Desired {
        units: vec![unit("a.service", &[], &[]), unit("b.service", &[], &[Dependency::Gate("a.service".into())])],
        gates: names.map(|name| gate(name, Some(name), 1, &[Dependency::Unit(name.into())])).into(),
        ..Desired::default()
    };
    let late = [Act(4000, "done", state("b.service", "active"))];
    let fake = Fake::new(&machine.clock, &names.map(|name| (name, "inactive"))).act("b.service", &late);
    let begin = machine.clock.now();
    machine.converge(&desired, &fake).await.unwrap();
    assert_eq!(machine.clock.now().since(begin), Duration::from_secs(10));
}

#[tokio::test]
async fn a_bus_that_is_away_at_the_last_look_replaces_no_process() {
    let machine = Machine::new(manual());
    let desired = x_and_its_gate(1);
    let fake = Fake::new(&machine.clock, &[("x.service", "inactive")]);
    let begin = machine.clock.now();
    let goes = async {
        while !machine.codes().contains(&Code::GatePassed) {
            tokio::task::yield_now().await;
        }
        *fake.away.lock().unwrap() = 1;
    };
    beside(goes, machine.converge(&desired, &fake)).await.unwrap();
    assert_eq!((*fake.away.lock().unwrap(), machine.clock.now().since(begin)), (0, Duration::from_secs(6)));
    assert_eq!(machine.codes().iter().filter(|code| **code == Code::GatePassed).count(), 1);
}

#[tokio::test]
async fn news_of_its_own_unit_are_heard_and_nobody_elses() {
    for (received, listens, attempts) in [("x.service", 1, 60..210), ("y.service", 1, 8..13), ("", 8, 8..13)] {
        let machine = Machine { deadline: Duration::from_secs(10), ..Machine::new(manual()) };
        let desired = Desired { gates: vec![gate("g", Some("x.service"), 1, &[])], ..Desired::default() };
        let fake = Fake { ignores_events: received.is_empty(), ..Fake::new(&machine.clock, &[("x.service", "active")]) };
        bad(&fake);
        let news = async {
            loop {
                // One at a time: whoever lags behind gets no more events.
                if fake.changes.is_empty() {
                    drop(fake.changes.send(received.to_owned()));
                }
                tokio::task::yield_now().await;
            }
        };
        beside(news, machine.converge(&desired, &fake)).await.unwrap_err();
        let waiting = machine.codes().iter().filter(|code| **code == Code::GateWaiting).count();
        assert!(attempts.contains(&waiting), "{received}: {waiting}");
        // A bus that went away is asked again, one that is there is not.
        let listened = *fake.listened.lock().unwrap();
        assert!(listened >= listens && (listens > 1 || listened == 1), "{received}: {listened}");
        let events = machine.report.events();
        let last = events.iter().rfind(|event| event.code == Code::GateWaiting).unwrap();
        assert_eq!(last.attempt, u32::try_from(waiting).ok());
        // The pause starts again at each of them.
        assert_eq!(last.next_try == Some(Duration::from_millis(100)), received == "x.service", "{received}: {:?}", last.next_try);
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_never_comes_is_a_bad_one() {
    let machine = Machine::new(manual());
    let desired = Desired { gates: vec![gate("g", None, 1, &[])], ..Desired::default() };
    let fake = Fake { hangs: true, ..Fake::new(&machine.clock, &[]) };
    let failure = machine.converge(&desired, &fake).await.unwrap_err();
    assert!(failure.cause.starts_with("no answer within 5 s, for "), "{}", failure.cause);
    assert_eq!(failure.unit, None);
}

/// A route that is wrong may come right; a node that is no neighbour of anybody never does, and is reported at once.
#[tokio::test]
async fn routes_of_pods_are_right_wrong_for_a_while_or_for_good() {
    let route = |to: &str, by: &str, flags: &str| format!("eth0\t{to}\t{by}\t{flags}\t0\t0\t0\t00FFFFFF\t0\t0\t0\n");
    let (own, bridge) = (route("000200C0", "00000000", "0001"), route("0001640A", "00000000", "0001").replace("eth0", "docker0"));
    let [second, third, gone] = ["02", "03", "09"].map(|node| route(&format!("00{node}640A"), &format!("{node}0200C0"), "0003"));
    let peer = |subnet: &str, node: &str| Peer { subnet: subnet.parse().unwrap(), node: node.parse().unwrap() };
    let (near, next) = (peer("10.100.2.0/24", "192.0.2.2"), peer("10.100.3.0/24", "192.0.2.3"));
    let far = peer("10.100.4.0/24", "198.51.100.4");
    let late = "; given up at the deadline of the run";
    // Peers, routes beside the node's own, nodes that hear nothing; the cause or none, and what else is reported.
    for (peers, routes, silent, cause, reported) in [
        (vec![near, next], vec![&second, &third], &[] as &[&str], None, None),
        (vec![near, next], vec![&second], &[], Some(("there is no route to 10.100.3.0/24", Code::RouteMissing, late)), None),
        (vec![near], vec![&second, &gone], &[], None, None),
        (
            vec![far],
            vec![],
            &[],
            Some(("node 198.51.100.4 with 10.100.4.0/24 is not on the same", Code::PeerOffSegment, "eth0)")),
            None,
        ),
        (vec![near, far], vec![&second], &[], None, Some(Code::PeerOffSegment)),
        (vec![near, next], vec![&second, &third], &["192.0.2.2"], None, Some(Code::PeerSilent)),
        (vec![near], vec![&second], &["192.0.2.2"], Some(("the routes are correct, but", Code::PodPacketsLost, late)), None),
    ] {
        let machine = Machine::new(manual());
        let routes: String = routes.into_iter().map(String::as_str).collect();
        machine.write("/proc/net/route", &format!("Iface\n{own}{bridge}{routes}"));
        let trie = "Local:\n  |-- 10.100.1.1\n    /32 host LOCAL\n  |-- 192.0.2.1\n    /32 host LOCAL\n";
        machine.write("/proc/net/fib_trie", trie);
        let pods = PodRoutes {
            network: "10.100.0.0/16".parse().unwrap(),
            peers: Peers::Given(peers),
            address: Some("192.0.2.1".parse().unwrap()),
            bridge: "docker0".into(),
        };
        let gates = vec![Gate { probe: GateProbe::PodRoutes(pods), ..gate("pod routes", None, 1, &[]) }];
        let fake = Fake { silent: silent.iter().map(ToString::to_string).collect(), ..Fake::new(&machine.clock, &[]) };
        let outcome = machine.converge(&Desired { gates, ..Desired::default() }, &fake).await;
        match (outcome, cause) {
            (Ok(_), None) => {}
            (Err(failure), Some((words, code, end))) => {
                assert!(failure.cause.starts_with(words) && failure.cause.ends_with(end), "{}", failure.cause);
                assert_eq!((failure.code, failure.remedy), (code, FollowUp::TriesAgain.of(&code.remedy())));
                let waited = machine.clock.now().since(Timestamp(1_000_000));
                assert_eq!(waited.is_zero(), end != late, "{words}: {waited:?}");
            }
            (outcome, cause) => panic!("{outcome:?}, not {cause:?}"),
        }
        let besides = [Code::PeerOffSegment, Code::PeerSilent].into_iter().find(|code| machine.codes().contains(code));
        assert_eq!(besides, reported.or(cause.map(|(_, code, _)| code).filter(|code| *code == Code::PeerOffSegment)));
    }
}

/// A unit that applied settings may be down; only the settings count.
#[tokio::test]
async fn settings_are_measured_whether_their_unit_is_up_or_not() {
    let machine = Machine::new(manual());
    let sysctl = |least| Gate {
        probe: GateProbe::Sysctl(vec![("net/ipv4/ip_forward".into(), least)]),
        ..gate("sysctl", Some("systemd-sysctl.service"), 1, &[])
    };
    machine.write("/proc/sys/net/ipv4/ip_forward", "1\n");
    let fake = Fake::new(&machine.clock, &[("systemd-sysctl.service", "inactive")]);
    machine.converge(&Desired { gates: vec![sysctl(1)], ..Desired::default() }, &fake).await.unwrap();
    let failure = machine.converge(&Desired { gates: vec![sysctl(2)], ..Desired::default() }, &fake).await.unwrap_err();
    assert!(failure.cause.starts_with("net/ipv4/ip_forward is 1, not 2 or more, for 30 s"), "{}", failure.cause);
    assert_eq!(failure.unit.as_deref(), Some("systemd-sysctl.service"), "its journal stands behind the cause");
}

#[tokio::test]
async fn good_answers_of_a_service_that_keeps_restarting_are_not_health() {
    // For as long as the node is given, every so many seconds a new process: it never passes, however many good answers lie between.
    for lives in [1, 3, 5] {
        let machine = Machine { deadline: Duration::from_mins(2), ..Machine::new(manual()) };
        let desired = x_and_its_gate(3);
        let fake = Fake::new(&machine.clock, &[("x.service", "inactive")]);
        let dies = async {
            let mut restarts = 0;
            loop {
                restarts += 1;
                let until = machine.clock.now().after(Duration::from_secs(lives));
                while machine.clock.now() < until {
                    tokio::task::yield_now().await;
                }
                fake.set(UnitState { main_pid: restarts, n_restarts: restarts, ..state("x.service", "active") });
            }
        };
        let failure = beside(dies, machine.converge(&desired, &fake)).await.unwrap_err();
        assert_eq!((failure.code, failure.unit.as_deref()), (Code::GateTimedOut, Some("x.service")), "{lives}");
        assert!(failure.cause.contains("systemd restarted x.service"), "{lives}: {}", failure.cause);
    }
}

#[tokio::test]
async fn a_unit_that_was_restarted_once_passes_when_it_stays_up() {
    let machine = Machine { deadline: Duration::from_mins(2), ..Machine::new(manual()) };
    let desired = x_and_its_gate(3);
    let fake = Fake::new(&machine.clock, &[("x.service", "inactive")]);
    let begin = machine.clock.now();
    let dies = async {
        while machine.clock.now() < begin.after(Duration::from_secs(4)) {
            tokio::task::yield_now().await;
        }
        fake.set(UnitState { main_pid: 2, n_restarts: 1, ..state("x.service", "active") });
    };
    beside(dies, machine.converge(&desired, &fake)).await.unwrap();
    // Passed after 2 s, looked at once more, dead by then: from there 15 s without a restart.
    let taken = machine.clock.now().since(begin);
    assert!((Duration::from_secs(19)..Duration::from_secs(30)).contains(&taken), "{taken:?}");
    assert_eq!(machine.codes().iter().filter(|code| **code == Code::GatePassed).count(), 2);
}

#[tokio::test]
async fn the_first_good_answer_releases_who_waits_and_a_pass_is_asked_for_at_the_end() {
    let machine = Machine::new(manual());
    let desired = Desired {
        units: vec![unit("a.service", &[], &[]), unit("b.service", &[], &[Dependency::Gate("g".into())])],
        gates: vec![gate("g", Some("a.service"), 3, &[Dependency::Unit("a.service".into())])],
        ..Desired::default()
    };
    let fake = Fake::new(&machine.clock, &[("a.service", "active"), ("b.service", "inactive")]);
    let begin = machine.clock.now();
    let released = Mutex::new(None);
    let watch = async {
        while !fake.log.lock().unwrap().contains(&"start b.service".to_owned()) {
            tokio::task::yield_now().await;
        }
        *released.lock().unwrap() = Some(machine.clock.now());
    };
    beside(watch, machine.converge(&desired, &fake)).await.unwrap();
    let waited = released.lock().unwrap().unwrap().since(begin);
    assert!(waited <= Duration::from_secs(1), "{waited:?}");
    assert!(machine.clock.now().since(begin) >= Duration::from_secs(2), "three answers, a second apart");
    assert_eq!(machine.steps().last_chunk(), Some(&["gate g Ok", "final proof Ok"].map(str::to_owned)));

    // A gate that answered once and then is bad: the node fails at the deadline, although everything behind the gate was done.
    fake.set(state("b.service", "inactive"));
    let good = || Ok(json!({"health": "true"}));
    fake.answers.lock().unwrap().extend(std::iter::once(good()).chain((0..999).map(|_| Ok(json!({"health": "false"})))));
    fake.take_log();
    let failure = machine.converge(&desired, &fake).await.unwrap_err();
    assert!(fake.take_log().contains(&"done b.service".to_owned()));
    assert_eq!((failure.code, failure.doing().as_str()), (Code::GateTimedOut, "gate g"));
    assert!(failure.cause.starts_with("health is false, not true, for "), "{}", failure.cause);
}

#[tokio::test]
async fn what_a_unit_said_last_stands_behind_the_cause() {
    let machine = Machine::new(manual());
    let desired = Desired { gates: vec![gate("g", Some("x.service"), 1, &[])], ..Desired::default() };
    let mut fake = Fake::new(&machine.clock, &[("x.service", "failed")]);
    let refused = |fake: &Fake| fake.answers.lock().unwrap().push_back(Err(Error::transient("refused")));
    let cause = "x.service is failed (); gate g: refused";
    let long = "y".repeat(500);
    for (reported, quoted) in [
        (vec![], String::new()),
        (vec!["", "bind: address already in use"], " (last lines of x.service: bind: address already in use)".to_owned()),
        (vec!["one", " two\u{1b}[31m ", ""], " (last lines of x.service: one / two\\u{1b}[31m)".to_owned()),
        (vec!["0", "1", "2", "3", "4", "5"], " (last lines of x.service: 1 / 2 / 3 / 4 / 5)".to_owned()),
        (vec!["one", &long, "two"], format!(" (last lines of x.service: one / {}… / two)", "y".repeat(199))),
        (vec!["dropped", &long, &long[1..]], format!(" (last lines of x.service: {}…)", "y".repeat(199))),
        (vec!["in use", "in use", "", "in use", "bye"], " (last lines of x.service: in use / bye)".to_owned()),
    ] {
        refused(&fake);
        fake.words = reported.iter().map(|line| (*line).to_owned()).collect();
        let failure = machine.converge(&desired, &fake).await.unwrap_err();
        assert_eq!(failure.cause, format!("{cause}{quoted}"));
        // In the message, and in explain.
        assert!(machine.report.events().last().unwrap().message.ends_with(&failure.cause));
        let failed = machine.progress.steps().into_iter().find(|step| step.state == ConditionState::Failed);
        assert_eq!(failed.unwrap().cause.as_deref(), Some(failure.cause.as_str()));
    }
    // What a unit said that cannot be started now is old, and one that is not there says nothing.
    fake.take_log();
    for (name, load_state) in [("gone.service", "not-found"), ("m.service", "masked"), ("b.service", "bad-setting")] {
        fake.set(UnitState { load_state: load_state.into(), ..state(name, "inactive") });
        let desired = Desired { units: vec![unit(name, &[], &[])], ..Desired::default() };
        let failure = machine.converge(&desired, &fake).await.unwrap_err();
        assert!(!failure.cause.contains("last lines"), "{load_state}: {}", failure.cause);
    }
    assert!(!fake.take_log().iter().any(|line| line.starts_with("words")));
}

#[tokio::test]
async fn who_holds_a_port_of_a_unit_that_failed_is_named() {
    let machine = Machine::new(manual());
    let (key, value) = ("health".to_owned(), "true".to_owned());
    let asks = |url: &str| Gate {
        probe: GateProbe::HttpJson { url: url.into(), key: key.clone(), value: value.clone(), identity: None },
        ..gate("g", Some("x.service"), 1, &[])
    };
    let mut fake = Fake::new(&machine.clock, &[("x.service", "failed"), ("y.service", "active")]);
    let units = vec![unit("y.service", &[], &[])];
    let held = |port: u16, unit: Option<&str>| Holder { port, pid: 812, name: "nc".into(), unit: unit.map(str::to_owned) };
    let bind = "listen tcp 127.0.0.1:2380: bind: address already in use";
    for (url, reported, holder, expected) in [
        ("http://127.0.0.1:2379/health", "", held(2379, Some("foo.service")), "port 2379 is held by nc (pid 812, foo.service)"),
        ("http://127.0.0.1:2379/health", bind, held(2380, None), "port 2380 is held by nc (pid 812)"),
        ("http://127.0.0.1:2379/health", bind, held(2380, Some("y.service")), "port 2380 is held by nc (pid 812, y.service)"),
        // The unit itself, a service that it needs, one that serves for it, and another machine's port.
        ("http://127.0.0.1:2379/health", bind, held(2380, Some("x.service")), ""),
        ("http://127.0.0.1:2379/health", "", held(2379, Some("y.service")), ""),
        ("http://127.0.0.1:2379/health", "", held(2379, Some("runc-x.scope")), ""),
        ("http://127.0.0.1:2379/health", "", held(2379, None), ""),
        ("https://192.0.2.1:6443/healthz", "", held(6443, Some("foo.service")), ""),
    ] {
        fake.words = vec![reported.to_owned()];
        fake.holders = vec![holder];
        fake.answers.lock().unwrap().push_back(Err(Error::transient("refused")));
        let desired = Desired { gates: vec![asks(url)], units: units.clone(), ..Desired::default() };
        let failure = machine.converge(&desired, &fake).await.unwrap_err();
        let named = if failure.cause.starts_with("port ") { failure.cause.split("; ").next().unwrap() } else { "" };
        assert_eq!(named, expected, "{}", failure.cause);
        assert_eq!(failure.remedy.contains("frees the port"), !expected.is_empty(), "{}", failure.remedy);
    }
}

/// systemd tries again forever, and so would the wait.
#[tokio::test]
async fn a_program_that_is_not_there_is_reported_at_once() {
    let lacking = UnitState {
        sub_state: "auto-restart".into(),
        result: "exit-code".into(),
        exec_main_status: 203,
        program: "/usr/bin/x".into(),
        ..state("x.service", "activating")
    };
    let cause = "/usr/bin/x does not exist, so x.service cannot start (status 203/EXEC)";
    let machine = Machine::new(manual());
    let desired = Desired { units: vec![unit("x.service", &[], &[])], ..Desired::default() };
    let fake = Fake::new(&machine.clock, &[("x.service", "inactive")]).act("x.service", &[Act(0, "done", lacking.clone())]);
    let failure = machine.converge(&desired, &fake).await.unwrap_err();
    assert_eq!((failure.code, failure.cause.as_str()), (Code::UnitProgramMissing, cause));
    assert!(failure.remedy.contains("install /usr/bin/x on this node again"), "{}", failure.remedy);
    for (mode, what, remedy) in
        [(0o644, "is not executable", "chmod 755 /usr/bin/x"), (0o755, "the kernel cannot run it", "file /usr/bin/x")]
    {
        machine.root.create_dir_all(Path::new("/usr/bin"), Attributes::mode(0o755)).unwrap();
        machine.root.write(Path::new("/usr/bin/x"), b"x", Attributes::mode(mode)).unwrap();
        let fake = Fake::new(&machine.clock, &[("x.service", "inactive")]).act("x.service", &[Act(0, "done", lacking.clone())]);
        let failure = machine.converge(&desired, &fake).await.unwrap_err();
        assert!(failure.cause.contains(what) && failure.remedy.contains(remedy), "{failure:?}");
    }
    // The start was reported as done before the program was missed.
    let desired = Desired { gates: vec![gate("g", Some("x.service"), 3, &[])], ..Desired::default() };
    fake.set(lacking);
    fake.answers.lock().unwrap().push_back(Err(Error::transient("refused")));
    let (begin, failure) = (machine.clock.now(), machine.converge(&desired, &fake).await.unwrap_err());
    assert!(failure.cause.contains("203/EXEC, /usr/bin/x does not exist"), "{}", failure.cause);
    assert_eq!(machine.clock.now(), begin);
}

#[tokio::test]
async fn a_unit_that_no_boot_starts_is_reported() {
    let machine = Machine::new(manual());
    let mut fake = Fake::new(&machine.clock, &[("x.service", "inactive")]);
    fake.states.lock().unwrap().get_mut("x.service").unwrap().unit_file_state = "disabled".into();
    fake.absent = vec!["absent.target".to_owned()];
    let desired = Desired { units: vec![unit("x.service", &[], &[])], ..Desired::default() };
    machine.converge(&desired, &fake).await.unwrap();
    let events = machine.report.events();
    let event = events.iter().find(|event| event.code == Code::UnitNotStartedAtBoot).unwrap();
    assert!(event.message.contains("x.service") && event.message.contains("absent.target"), "{}", event.message);
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
    assert_eq!(
        (failure.code, failure.cause.as_str()),
        (Code::GateTimedOut, "the check passed, but x.service is inactive (), for 30 s; given up at the deadline of the run")
    );
    fake.set(state("x.service", "active"));
    machine.converge(&desired, &fake).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_hangs_is_reported_at_the_deadline() {
    let machine = Machine::new(manual());
    let desired = Desired { volumes: vec![volume(VolumeRole::Etcd, "/var/lib/etcd")], ..Desired::default() };
    let fake = Fake { hangs: true, ..Fake::new(&machine.clock, &[]) };
    let failure = machine.converge(&desired, &fake).await.unwrap_err();
    assert_eq!((failure.code, failure.doing().as_str()), (Code::VolumeFailed, "volume etcd: deadline"));
    assert_eq!(machine.codes(), [Code::VolumeFailed], "reported once");
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
    assert_eq!(failure.cause, "/etc/etcd/key must belong to etcd:etcd, which does not exist on this machine");
    assert_eq!(machine.read("/etc/etcd/key"), None, "no byte before the owner is known");
    machine.users("etcd:x:UID:GID\n");
    machine.converge(&desired, &fake).await.unwrap();
    assert_eq!(machine.read("/etc/etcd/key").as_deref(), Some("k"));
}

#[tokio::test]
async fn a_helper_that_is_not_there_has_nothing_to_apply() {
    let file = File::public("/etc/NetworkManager/conf.d/90.conf", "x");
    let desired = Desired {
        units: vec![Unit { applies_files: true, enable: false, ..unit("NetworkManager.service", &[&file.path], &[]) }],
        files: vec![file],
        ..Desired::default()
    };
    for (there, reported) in [(true, true), (false, false)] {
        let machine = Machine::new(manual());
        let states = [("NetworkManager.service", "active")];
        let fake = Fake::new(&machine.clock, if there { &states } else { &[] });
        machine.converge(&desired, &fake).await.unwrap();
        let log = fake.log.lock().unwrap().join(" ");
        assert_eq!(log.contains("NetworkManager.service"), reported, "{log}");
        assert!(!machine.codes().contains(&Code::UnitHelperFailed));
        assert!(pending::read(&machine.root).is_empty(), "the node would be reported as one that lacks a restart");
    }
}

/// docker on a node with another runtime: a condition keeps it from starting, and its restart is what stops it.
#[tokio::test]
async fn a_unit_whose_start_is_blocked_is_not_said_to_run() {
    let file = File::public("/etc/systemd/system/docker.service.d/10.conf", "[Unit]\nConditionPathExists=!/\n");
    let desired = Desired {
        units: vec![Unit { applies_files: true, enable: false, ..unit("docker.service", &[&file.path], &[]) }],
        files: vec![file],
        ..Desired::default()
    };
    for (after, message) in
        [("inactive", "docker.service applied its files and is not running"), ("active", "restarted docker.service")]
    {
        let machine = Machine::new(manual());
        let fake = Fake::new(&machine.clock, &[("docker.service", "active")])
            .act("docker.service", &[Act(0, "done", state("docker.service", after))]);
        machine.converge(&desired, &fake).await.unwrap();
        let events = machine.report.events();
        assert!(events.iter().any(|event| event.code == Code::UnitRestarted && event.message.starts_with(message)), "{events:?}");
    }
}

#[tokio::test]
async fn no_unit_of_the_node_is_bound_to_another_by_its_package() {
    let machine = Machine::new(manual());
    let at = |place: &str| Path::new("/etc/systemd/system").join(place);
    for place in ["docker.service.requires/flanneld.service", "docker.service.requires/site.service"] {
        machine.root.create_dir_all(at(place).parent().unwrap(), Attributes::mode(0o755)).unwrap();
        machine.root.link("/usr/lib/systemd/system/flanneld.service", &at(place)).unwrap();
    }
    let desired =
        Desired { units: ["docker.service", "flanneld.service"].map(|name| unit(name, &[], &[])).into(), ..Desired::default() };
    let fake = Fake::new(&machine.clock, &[("docker.service", "active"), ("flanneld.service", "active")]);
    machine.converge(&desired, &fake).await.unwrap();
    assert!(machine.root.facts(&at("docker.service.requires/flanneld.service")).unwrap().is_none());
    assert!(machine.root.facts(&at("docker.service.requires/site.service")).unwrap().is_some(), "somebody else's");
    assert_eq!(*fake.log.lock().unwrap(), ["reload"]);
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
    assert_eq!((failure.code, failure.doing().as_str()), (Code::FileFailed, "file /etc/x.conf"));
    assert!(failure.cause.contains("it exists but is not a regular file"), "{}", failure.cause);
}

#[test]
fn a_run_can_be_spawned() {
    fn is_send<T: Send>(_: T) {}
    let machine = Machine::new(manual());
    let fake = Fake::new(&machine.clock, &[]);
    let desired = Desired::default();
    is_send(machine.converge(&desired, &fake));
}

/// etcd reads a CA's certificate; an object needs its gate.
fn trusting_node() -> Desired {
    let ca = CaCertificate {
        signer: Signer::Etcd,
        path: "/etc/etcd/certs/ca.crt".into(),
        owner: Owner::root(),
        given: None,
        signing_key: None,
        key_path: None,
        signing_path: None,
    };
    let object = Object {
        name: "binding".into(),
        server: "https://127.0.0.1:6443".into(),
        collection: "/api".into(),
        object: "binding".into(),
        body: Material::Text("{}".into()),
        identity: None,
        before: None,
        needs: BTreeSet::from([Dependency::Gate("etcd".into())]),
    };
    Desired {
        units: vec![unit("etcd.service", &["/etc/etcd/certs/ca.crt"], &[]), unit("docker.service", &["/etc/docker.json"], &[])],
        gates: vec![gate("etcd", Some("etcd.service"), 1, &[Dependency::Unit("etcd.service".into())])],
        cas: vec![ca],
        objects: vec![object],
        ..Desired::default()
    }
}

#[tokio::test]
async fn who_reads_a_changed_certificate_is_noted_before_it_changes_and_restarted_after() {
    let machine = Machine::new(manual());
    let mut fake = Fake::new(&machine.clock, &[("docker.service", "active"), ("etcd.service", "active")]);
    fake.pending = Some(machine.root.base().join("run/heat-node-agent/pending-restarts.json"));
    let changed = Prepared {
        changes: BTreeSet::from(["/etc/etcd/certs/ca.crt".to_owned()]),
        sets: vec![("/etc/etcd/certs".to_owned(), "..set-1".to_owned())],
        ..Prepared::default()
    };
    fake.prepared.lock().unwrap().push_back(Ok(changed));
    fake.objects.lock().unwrap().push_back(Ok(true));
    let converged = machine.converge(&trusting_node(), &fake).await.unwrap();
    assert!(converged.changed);
    let expected =
        ["prepare", "commit ..set-1, pending {\"etcd.service\"}", "restart etcd.service", "done etcd.service", "ensure binding"];
    assert_eq!(fake.take_log(), expected);
    assert_eq!(machine.codes().iter().filter(|code| **code == Code::ObjectWritten).count(), 1);
    assert!(
        step_timings(&machine).iter().any(|timing| timing.0 == "certificates")
            && step_timings(&machine).iter().any(|timing| timing.0 == "object binding")
    );
    // The second run changes nothing.
    assert!(!machine.converge(&trusting_node(), &fake).await.unwrap().changed);
    assert_eq!(fake.take_log(), ["prepare", "commit , pending {}", "ensure binding"]);
}

#[tokio::test]
async fn a_renewal_makes_the_restarts_that_one_before_left_each_of_them_once() {
    let machine = Machine::new(manual());
    let fake = Fake::new(&machine.clock, &[("docker.service", "active"), ("etcd.service", "active")]);
    let note = BTreeSet::from(["docker.service", "etcd.service"].map(str::to_owned));
    pending::write(&machine.root, &note).unwrap();
    let changed = Prepared {
        changes: BTreeSet::from(["/etc/etcd/certs/ca.crt".to_owned()]),
        sets: vec![("/etc/etcd/certs".to_owned(), "..set-1".to_owned())],
        ..Prepared::default()
    };
    fake.prepared.lock().unwrap().push_back(Ok(changed));
    machine.converge(&trusting_node(), &fake).await.unwrap();
    let log = fake.take_log();
    let restarts = |unit: &str| log.iter().filter(|line| **line == format!("restart {unit}")).count();
    assert_eq!((restarts("etcd.service"), restarts("docker.service")), (1, 1), "{log:?}");
    assert_eq!(machine.read("/run/heat-node-agent/pending-restarts.json"), None);
}

#[tokio::test]
async fn without_its_certificates_nothing_that_reads_them_starts_and_the_first_cause_is_reported() {
    let machine = Machine::new(manual());
    let fake = Fake::new(&machine.clock, &[("docker.service", "inactive"), ("etcd.service", "inactive")]);
    let mut failure = Failure::new(Code::CertificatesFailed, "certificates", "it expired");
    fake.prepared.lock().unwrap().push_back(Err(failure.clone()));
    failure.remedy = FollowUp::TriesAgain.of(&failure.remedy);
    assert_eq!(machine.converge(&trusting_node(), &fake).await.unwrap_err(), failure);
    assert!(!fake.take_log().iter().any(|line| line.contains("etcd") || line.contains("commit")));
    assert!(machine.steps().contains(&"certificates Failed".to_owned()), "{:?}", machine.steps());
    // An object that the API refuses fails the node, too.
    fake.objects.lock().unwrap().push_back(Err(Error::permanent("403")));
    let failure = machine.converge(&trusting_node(), &fake).await.unwrap_err();
    assert_eq!((failure.code, failure.doing().as_str()), (Code::ObjectFailed, "object binding"));
}

#[tokio::test]
async fn an_add_on_is_a_step_behind_what_it_needs_and_its_failure_is_the_nodes() {
    let machine = Machine::new(manual());
    let fake = Fake::new(&machine.clock, &[("docker.service", "active"), ("etcd.service", "active")]);
    let add_on = |name: &str, needs: &[Dependency]| AddOn {
        name: name.into(),
        server: "https://127.0.0.1:6443".into(),
        identity: None,
        facts: Vec::new(),
        secrets: Vec::new(),
        needs: needs.iter().cloned().collect(),
    };
    let add_ons = vec![
        add_on("dns", &[Dependency::AddOn("network".into())]),
        add_on("network", &[Dependency::Object("binding".into()), Dependency::Unit("etcd.service".into())]),
    ];
    let node = Desired { add_ons, ..trusting_node() };
    // The image lacks them: found before anything is touched.
    let failure = machine.converge(&node, &fake).await.unwrap_err();
    assert_eq!((failure.code, failure.doing().as_str(), failure.changed_machine), (Code::AddOnFailed, "add-on dns", false));
    assert!(failure.cause.contains("ADDONS names dns") && fake.take_log().is_empty(), "{failure:?}");
    for name in ["dns", "network"] {
        let folder = format!("/usr/share/heat-node-agent/addons/{name}");
        machine.root.create_dir_all(Path::new(&folder), Attributes::mode(0o755)).unwrap();
        let text = b"{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}";
        machine.root.write(Path::new(&format!("{folder}/a.yaml")), text, Attributes::mode(0o644)).unwrap();
    }
    fake.objects.lock().unwrap().extend([Ok(false), Ok(true), Ok(false)]);
    assert!(machine.converge(&node, &fake).await.unwrap().changed);
    let log = fake.take_log();
    assert_eq!(log[log.len() - 3..], ["ensure binding", "apply network", "apply dns"]);
    let count = |code| machine.codes().iter().filter(|one| **one == code).count();
    assert_eq!((count(Code::ObjectWritten), count(Code::ObjectWaiting)), (1, 2));
    assert!(machine.steps().contains(&"add-on dns Ok".to_owned()), "{:?}", machine.steps());
    // One that the API refuses fails the node.
    fake.objects.lock().unwrap().extend([Ok(false), Err(Error::permanent("422"))]);
    let failure = machine.converge(&node, &fake).await.unwrap_err();
    assert_eq!((failure.code, failure.doing().as_str()), (Code::AddOnFailed, "add-on network"));
    assert!(!fake.take_log().contains(&"apply dns".to_owned()));
}

/// A unit that reads flannel's description, behind the key.
fn of_flannel(description: &str) -> Desired {
    let etcd = EtcdAccess { endpoint: "http://192.0.2.11:2379".into(), identity: None };
    let store = FlannelStore { etcd, prefix: "/coreos.com/network".into(), description: description.into(), writes: true };
    Desired {
        files: vec![File::public("/etc/network.json", description)],
        units: vec![unit("flanneld.service", &["/etc/network.json"], &[Dependency::FlannelKey])],
        flannel: Some(store),
        ..Desired::default()
    }
}

#[tokio::test]
async fn flanneld_is_started_behind_its_key() {
    let machine = Machine::new(manual());
    let fake = Fake::new(&machine.clock, &[("flanneld.service", "inactive")]);
    machine.converge(&of_flannel("valid"), &fake).await.unwrap();
    let calls = fake.take_log();
    let at = |call: &str| calls.iter().position(|one| one.starts_with(call)).unwrap_or_else(|| panic!("no {call} in {calls:?}"));
    assert!(at("describe /coreos.com/network") < at("start flanneld.service"));
}

/// etcd, which starts when its place is settled.
fn of_etcd() -> Desired {
    let members = [("m1", "http://192.0.2.11:2380"), ("m2", "http://192.0.2.12:2380")];
    let join = EtcdJoin::first_of(members.map(|(name, peer)| (name.to_owned(), peer.to_owned())).into());
    Desired {
        units: vec![unit("etcd.service", &[], &[Dependency::EtcdMember])],
        etcd_join: Some(Box::new(join)),
        ..Desired::default()
    }
}

#[tokio::test]
async fn etcd_starts_when_its_place_is_settled_and_does_not_run_while_members_change() {
    let machine = Machine::new(manual());
    let script = |now: &str, steps: &[Result<MemberStep>]| {
        let stopped = Act(0, "done", state("etcd.service", "inactive"));
        let fake = Fake::new(&machine.clock, &[("etcd.service", now)]);
        fake.set(UnitState { unit_file_state: "disabled".into(), ..state("etcd.service", now) });
        fake.member_steps.lock().unwrap().extend(steps.iter().cloned());
        // systemd starts it again and again: it is stopped once.
        if now == "activating" { fake.act("etcd.service", &[stopped]) } else { fake }
    };
    let (remove, add) = (MemberStep::Change(MemberChange::Remove(7)), MemberStep::Change(MemberChange::Add));
    let waits = || Err(Error::transient("etcd has no quorum").remedy("repair these members"));
    let fake = script("activating", &[waits(), Ok(remove), Ok(add), Ok(MemberStep::Start)]);
    assert!(machine.converge(&of_etcd(), &fake).await.unwrap().changed);
    let calls = fake.take_log();
    let about = |call: &&String| {
        ["hold", "enable", "settle", "stop", "start", "protect", "Remove", "Add"].iter().any(|word| call.starts_with(word))
    };
    let order: Vec<&str> = calls.iter().filter(about).map(String::as_str).collect();
    assert_eq!(
        order,
        [
            "hold m1",
            "enable etcd.service",
            "settle m1",
            "settle m1",
            "stop etcd.service",
            "Remove(7)",
            "settle m1",
            "Add",
            "settle m1",
            "start etcd.service",
            "protect m1",
            "hold m1"
        ]
    );
    let count = |code| machine.codes().iter().filter(|one| **one == code).count();
    assert_eq!((count(Code::EtcdMemberWaiting), count(Code::EtcdMemberChanged)), (1, 2));

    // One that is heard ends the silence of the others, whatever it says.
    let unheard = || Ok(MemberStep::Unheard);
    let fake = script("inactive", &[unheard(), unheard(), unheard(), waits(), unheard(), unheard()]);
    machine.converge(&of_etcd(), &fake).await.unwrap();
    let silences: Vec<bool> = fake.situations.lock().unwrap().iter().map(|one| one.unheard.is_zero()).collect();
    assert_eq!(silences, [true, false, false, false, true, false, false]);
    assert_eq!(fake.situations.lock().unwrap()[1].unheard, Duration::from_millis(250));
    let fake = script("inactive", &[unheard(), Err(Error::refused("another cluster"))]);
    let failure = machine.converge(&of_etcd(), &fake).await.unwrap_err();
    assert_eq!((failure.code, failure.doing().as_str()), (Code::EtcdMemberFailed, "etcd member"));
    assert!(!fake.take_log().iter().any(|call| call.starts_with("start etcd.service")));
    // At the deadline the last cause is what Heat hears.
    let fake = script("inactive", &vec![waits(); 2000]);
    let failure = machine.converge(&of_etcd(), &fake).await.unwrap_err();
    assert!(failure.cause.contains("no quorum") && failure.code == Code::EtcdMemberFailed, "{failure:?}");
    for steps in [vec![unheard(); 2000], vec![Ok(remove); 2000]] {
        let failure = machine.converge(&of_etcd(), &script("inactive", &steps)).await.unwrap_err();
        assert_eq!(failure.code, Code::EtcdMemberFailed, "{failure:?}");
    }
}

/// systemd goes on with etcd when nobody looks, and it may get its data and vote by a list by which it could start without.
#[tokio::test]
async fn a_run_that_fails_leaves_nothing_by_which_etcd_could_start_without_data() {
    let machine = Machine::new(manual());
    let last =
        |fake: &Fake| fake.take_log().iter().rfind(|call| call.starts_with("start ") || call.starts_with("hold ")).cloned();
    // Its own start, and another step beside it; a gate behind a unit that is active before its member has data.
    let failed = || Act(0, "failed", state("etcd.service", "failed"));
    let fake = Fake::new(&machine.clock, &[("etcd.service", "inactive")]).act("etcd.service", &[failed()]);
    machine.converge(&of_etcd(), &fake).await.unwrap_err();
    assert_eq!(last(&fake).as_deref(), Some("hold m1"));
    let mut beside = of_etcd();
    beside.units.push(unit("other.service", &[], &[Dependency::Unit("etcd.service".into())]));
    let fake = Fake::new(&machine.clock, &[("etcd.service", "inactive"), ("other.service", "inactive")])
        .act("other.service", &[Act(0, "failed", state("other.service", "failed"))]);
    let failure = machine.converge(&beside, &fake).await.unwrap_err();
    assert_eq!(failure.unit.as_deref(), Some("other.service"));
    assert_eq!(last(&fake).as_deref(), Some("hold m1"));
}

/// A learner answers as healthy, too: nobody who needs etcd starts before it votes, and each run that finds it goes on with it.
#[tokio::test]
async fn what_needs_etcd_waits_until_a_learner_votes() {
    let machine = Machine::new(manual());
    let mut desired = of_etcd();
    desired.gates.push(gate("etcd", Some("etcd.service"), 1, &[Dependency::Unit("etcd.service".into())]));
    desired.units.push(unit("apiserver.service", &[], &[Dependency::Gate("etcd".into())]));
    let late = || Err(Error::transient("it answered 412: can only promote a learner member which is in sync with leader"));
    let fake = Fake::new(&machine.clock, &[("etcd.service", "inactive"), ("apiserver.service", "inactive")]);
    fake.promotions.lock().unwrap().extend([late(), late(), Ok(true)]);
    machine.converge(&desired, &fake).await.unwrap();
    let calls = fake.take_log();
    let at = |call: &str| calls.iter().rposition(|one| one.starts_with(call)).unwrap_or_else(|| panic!("no {call}: {calls:?}"));
    assert!(at("start etcd.service") < at("promote Err") && at("promote Ok(true)") < at("start apiserver.service"), "{calls:?}");
    let count = |code| machine.codes().iter().filter(|one| **one == code).count();
    assert_eq!((count(Code::EtcdMemberWaiting), count(Code::EtcdMemberChanged)), (1, 1));
    // One that must not be promoted, and one that never catches up.
    for (why, times) in [(Error::refused("not allowed"), 1), (late().unwrap_err(), 20_000)] {
        let fake = Fake::new(&machine.clock, &[("etcd.service", "active"), ("apiserver.service", "inactive")]);
        fake.promotions.lock().unwrap().extend(vec![Err(why); times]);
        assert_eq!(machine.converge(&desired, &fake).await.unwrap_err().code, Code::EtcdMemberFailed);
        assert!(!fake.take_log().contains(&"start apiserver.service".to_owned()));
    }
}

/// A disk that the operator mounts there, and that is late.
#[tokio::test]
async fn a_mount_unit_of_the_members_data_that_is_not_active_is_known_to_it() {
    let machine = Machine::new(manual());
    for (mount, active, unmounted) in [
        ("var-lib-etcd.mount", "inactive", true),
        ("var-lib.mount", "failed", true),
        ("var-lib-etcd-default.etcd.mount", "activating", true),
        ("var-lib-etcd.mount", "active", false),
        ("srv.mount", "inactive", false),
    ] {
        let fake = Fake::new(&machine.clock, &[("etcd.service", "inactive"), (mount, active)]);
        machine.converge(&of_etcd(), &fake).await.unwrap();
        let situation = fake.situations.lock().unwrap()[0].clone();
        assert_eq!(situation.unmounted.as_deref(), unmounted.then_some(mount), "{mount} {active}");
        assert!(!situation.is_running && situation.may_change);
    }
}

/// etcd that joins may be tried again and again by a list that has changed since.
#[tokio::test(start_paused = true)]
async fn the_list_is_renewed_while_etcd_starts() {
    let machine = Machine::new(Clock::system());
    let slow = Act(25_000, "done", state("etcd.service", "active"));
    let fake = Fake::new(&machine.clock, &[("etcd.service", "inactive")]).act("etcd.service", &[slow]);
    machine.converge(&of_etcd(), &fake).await.unwrap();
    let calls = fake.take_log();
    let at = |call: &str| calls.iter().position(|one| one == call).unwrap();
    let settled = calls[at("start etcd.service")..at("protect m1")].iter().filter(|call| *call == "settle m1").count();
    assert_eq!(settled, 2, "{calls:?}");
}

/// Attack: a member that was removed while the others could not be asked says that it has started, and ends: systemd restarted it 67 times.
#[tokio::test(start_paused = true)]
async fn a_member_that_was_removed_is_stopped_and_begins_anew() {
    let machine = Machine::new(Clock::system());
    let (start, aside) = (|| Ok(MemberStep::Start), || Ok(MemberStep::Change(MemberChange::SetAside)));
    let act = |wait, now| Act(wait, "done", state("etcd.service", now));
    let late = || Err(Error::transient("connection refused"));
    for (now, acts, answers) in [
        // While it starts, and behind its start.
        ("activating", vec![act(25_000, "active"), act(0, "inactive"), act(0, "active")], vec![]),
        ("inactive", vec![act(0, "active"), act(0, "inactive"), act(0, "active")], vec![late(); 60]),
    ] {
        let fake = Fake::new(&machine.clock, &[("etcd.service", now)]).act("etcd.service", &acts);
        fake.answers.lock().unwrap().extend(answers);
        fake.member_steps.lock().unwrap().extend([start(), aside(), aside(), start()]);
        let desired = Desired {
            gates: vec![gate("etcd", Some("etcd.service"), 1, &[Dependency::Unit("etcd.service".into())])],
            ..of_etcd()
        };
        machine.converge(&desired, &fake).await.unwrap();
        let calls = fake.take_log();
        let jobs: Vec<&str> = calls
            .iter()
            .map(String::as_str)
            .filter(|call| ["start etcd.service", "stop etcd.service", "SetAside"].contains(call))
            .collect();
        assert_eq!(jobs, ["start etcd.service", "stop etcd.service", "SetAside", "start etcd.service"], "{calls:?}");
    }
}

#[tokio::test]
async fn a_network_that_is_refused_changes_nothing_before() {
    let machine = Machine::new(manual());
    let fake = Fake::new(&machine.clock, &[("flanneld.service", "inactive")]);
    let failure = machine.converge(&of_flannel("refused"), &fake).await.unwrap_err();
    assert_eq!((failure.code, failure.doing().as_str(), failure.changed_machine), (Code::FlannelKeyFailed, "flannel key", false));
    assert_eq!(machine.read("/etc/network.json"), None);
    assert_eq!(fake.take_log(), Vec::<String>::new());
}

/// The generation before asks for etcd alone; the update that failed brought a drop-in for it and a unit of its own.
#[tokio::test]
async fn going_back_takes_away_what_the_update_brought_and_restarts_who_read_it() {
    const DROP_IN: &str = "/etc/systemd/system/etcd.service.d/60-x.conf";
    let machine = Machine::new(manual());
    let desired = Desired {
        files: vec![File::public("/etc/etcd.conf", "a=1\n")],
        units: vec![unit("etcd.service", &["/etc/etcd.conf"], &[])],
        gates: vec![gate("etcd", Some("etcd.service"), 1, &[Dependency::Unit("etcd.service".into())])],
        ..Desired::default()
    };
    machine.write("/etc/etcd.conf", "a=1\n");
    machine.write(DROP_IN, "[Service]\nNice=1\n");
    machine.write("/etc/other", "ours\n");
    let file = |path: &str, written: &str, original| RetiredFile { path: path.into(), written: written.into(), original };
    let before = Original { content: b"theirs\n".to_vec(), mode: 0o600, owner: machine_owner() };
    let retired = Retired {
        files: vec![file(DROP_IN, "[Service]\nNice=1\n", None), file("/etc/other", "ours\n", Some(before))],
        readers: BTreeSet::from(["etcd.service".to_owned()]),
        stop: vec!["new.service".into(), "gone.service".into()],
        disable: vec!["new.service".into(), "gone.service".into()],
    };
    // Attack: what the update had noted of its new unit stayed, and refused each step of a CA rotation from then on.
    pending::write(&machine.root, &BTreeSet::from(["new.service".to_owned()])).unwrap();
    let fake = Fake::new(&machine.clock, &[("etcd.service", "active"), ("new.service", "active")]);
    let outcome = machine.go_back(&desired, &fake, &retired).await.unwrap();
    assert!(outcome.changed);
    assert_eq!(
        fake.take_log(),
        ["stop new.service", "done new.service", "disable new.service", "reload", "restart etcd.service", "done etcd.service"]
    );
    assert_eq!((machine.read(DROP_IN), machine.read("/etc/other").as_deref()), (None, Some("theirs\n")));
    assert!(pending::read(&machine.root).is_empty());
    assert!(machine.codes().contains(&Code::UnitStopped));
    // Once more, after a crash: what was restored stays, and nothing is restarted again.
    let fake = Fake::new(&machine.clock, &[("etcd.service", "active"), ("new.service", "inactive")]);
    machine.go_back(&desired, &fake, &retired).await.unwrap();
    assert_eq!(fake.take_log(), ["disable new.service", "reload"]);
    assert_eq!(machine.read("/etc/other").as_deref(), Some("theirs\n"));
}

/// Cut off between the first file and the restart, at a moment when nothing says any more that a file was there.
#[tokio::test]
async fn a_unit_whose_drop_in_was_taken_away_is_restarted_by_the_run_after_a_crash() {
    let machine = Machine::new(manual());
    machine.write("/etc/drop-in", "ours\n");
    let desired = Desired { units: vec![unit("x.service", &[], &[])], ..Desired::default() };
    let retired = Retired {
        files: vec![RetiredFile { path: "/etc/drop-in".into(), written: "ours\n".into(), original: None }],
        readers: BTreeSet::from(["x.service".to_owned()]),
        ..Retired::default()
    };
    let fake =
        Fake::new(&machine.clock, &[("x.service", "active")]).act("x.service", &[Act(NEVER, "done", state("x", "active"))]);
    let cut_off = async { machine.clock.wait(Duration::from_secs(1)).await };
    tokio::select! {
        _ = machine.go_back(&desired, &fake, &retired) => unreachable!(),
        () = cut_off => {}
    }
    assert_eq!(machine.read("/etc/drop-in"), None);
    let fake = Fake::new(&machine.clock, &[("x.service", "active")]);
    machine.go_back(&desired, &fake, &retired).await.unwrap();
    assert_eq!(fake.take_log(), ["restart x.service", "done x.service"]);
}

fn machine_owner() -> (u32, u32) {
    (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw())
}
