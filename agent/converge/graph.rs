//! What waits for what: the steps of a `Desired` after its files, each startable when all its needs are done. Pure.

use std::collections::BTreeSet;

use super::plan::needs_of_file;
use crate::desired::{AddOn, Dependency, Desired, Directory, EtcdJoin, File, FlannelStore, Gate, Object, Unit, Volume};
use crate::gather::Gather;
use crate::progress::StepId;

/// One step: what of the `Desired` it makes true.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GraphStep<'a> {
    Volume(&'a Volume),
    Directory(&'a Directory),
    File(&'a File),
    /// All of them, in one step: they belong together.
    Certificates,
    Unit(&'a Unit),
    Gate(&'a Gate),
    Object(&'a Object),
    AddOn(&'a AddOn),
    /// The description of flannel's network in etcd.
    FlannelKey(&'a FlannelStore),
    /// How the node's member of etcd starts.
    EtcdMember(&'a EtcdJoin),
}

impl GraphStep<'_> {
    pub(crate) fn id(self) -> StepId {
        match self {
            Self::Volume(volume) => StepId::Volume(volume.role),
            Self::Directory(directory) => StepId::Directory(directory.path.clone()),
            Self::File(file) => StepId::File(file.path.clone()),
            Self::Certificates => StepId::Certificates,
            Self::Unit(unit) => StepId::Unit(unit.name.clone()),
            Self::Gate(gate) => StepId::Gate(gate.name.clone()),
            Self::Object(object) => StepId::Object(object.name.clone()),
            Self::AddOn(add_on) => StepId::AddOn(add_on.name.clone()),
            Self::FlannelKey(_) => StepId::FlannelKey,
            Self::EtcdMember(_) => StepId::EtcdMember,
        }
    }
}

/// A step that has not begun, and what it still waits for.
#[derive(Clone, Debug)]
struct Waiting<'a> {
    id: StepId,
    step: GraphStep<'a>,
    needs: BTreeSet<StepId>,
}

/// The steps that are left and what is done.
#[derive(Clone, Debug)]
pub(crate) struct Graph<'a> {
    /// In the order in which those begin that are ready at the same time.
    waiting: Vec<Waiting<'a>>,
    /// Who waited for what that is done, in the order of the ends.
    waited: Vec<(StepId, StepId)>,
}

impl<'a> Graph<'a> {
    /// All steps; directories and files only where they lie on something that has to come first. `done` are units
    /// that were dealt with before.
    ///
    /// # Errors
    /// In words, if a need names nothing, two steps have one name, or steps wait for each other.
    pub(crate) fn new(desired: &'a Desired, done: &BTreeSet<String>) -> Result<Self, String> {
        let steps = steps(desired, done);
        let ids: BTreeSet<StepId> = steps.iter().map(|(step, _)| step.id()).gather();
        let late_files: BTreeSet<&str> = steps
            .iter()
            .filter_map(|(step, _)| if let GraphStep::File(file) = step { Some(file.path.as_str()) } else { None })
            .gather();
        let places = desired.trusted_paths();
        let mut waiting: Vec<Waiting<'_>> = Vec::with_capacity(steps.len());
        for (step, wanted) in steps {
            let id = step.id();
            if waiting.iter().any(|other| other.id == id) {
                return Err(format!("two steps are {id}"));
            }
            let mut needs = BTreeSet::new();
            for need in &wanted {
                let before = find(desired, need).ok_or_else(|| format!("{id} needs {need:?}, which no step provides"))?;
                // A directory without needs and a unit that was dealt with are no steps of the graph: they are done.
                needs.extend(ids.get(&before).cloned());
            }
            match step {
                // etcd is shown one of them.
                GraphStep::FlannelKey(store) if store.etcd.identity.is_some() => {
                    needs.extend(ids.get(&StepId::Certificates).cloned());
                }
                GraphStep::EtcdMember(join) if join.identity.is_some() => {
                    needs.extend(ids.get(&StepId::Certificates).cloned());
                }
                GraphStep::Unit(unit) => {
                    let late = unit.restart_on.iter().filter(|path| late_files.contains(path.as_str()));
                    needs.extend(late.map(|path| StepId::File(path.clone())));
                    // Who reads a certificate is started with it.
                    let reads = unit.restart_on.iter().any(|path| places.contains(path.as_str()));
                    needs.extend(reads.then_some(StepId::Certificates));
                }
                _ => {}
            }
            waiting.push(Waiting { id, step, needs });
        }
        let graph = Self { waiting, waited: Vec::new() };
        graph.check()?;
        Ok(graph)
    }

    /// Has the units that are restarted follow each other: those of a group wait until those before them pass the gates that need nothing but
    /// the unit. Units that are not restarted hold up nobody. Where that cannot be, nothing is changed.
    pub(crate) fn restart_in_order(&mut self, order: &[&[&str]], gates: &[Gate], is_restarted: impl Fn(&str) -> bool) {
        let mut ordered = self.clone();
        let mut before: BTreeSet<StepId> = BTreeSet::new();
        for group in order {
            let restarted: Vec<StepId> =
                group.iter().filter(|name| is_restarted(name)).map(|name| StepId::Unit((*name).to_owned())).collect();
            for waiter in ordered.waiting.iter_mut().filter(|waiter| restarted.contains(&waiter.id)) {
                waiter.needs.extend(before.iter().cloned());
            }
            let of_unit =
                |need: &Dependency| matches!(need, Dependency::Unit(name) if restarted.contains(&StepId::Unit(name.clone())));
            let answers = gates.iter().filter(|gate| !gate.needs.is_empty() && gate.needs.iter().all(of_unit));
            before.extend(answers.map(|gate| StepId::Gate(gate.name.clone())));
            before.extend(restarted);
        }
        // One that is not there, or is done, is waited for by nobody.
        let left: BTreeSet<StepId> = ordered.waiting.iter().map(|waiter| waiter.id.clone()).gather();
        for waiter in &mut ordered.waiting {
            waiter.needs.retain(|need| left.contains(need));
        }
        if ordered.check().is_ok() {
            *self = ordered;
        }
    }

    /// Takes out the steps that can start now.
    pub(crate) fn take_ready(&mut self) -> Vec<GraphStep<'a>> {
        self.waiting.extract_if(.., |one| one.needs.is_empty()).map(|one| one.step).collect()
    }

    /// Says that a step is done.
    pub(crate) fn finish(&mut self, step: &StepId) {
        for waiter in &mut self.waiting {
            if waiter.needs.remove(step) {
                self.waited.push((waiter.id.clone(), step.clone()));
            }
        }
    }

    /// What a step that can start waited for, in the order of the ends.
    pub(crate) fn after(&self, step: &StepId) -> Vec<StepId> {
        self.waited.iter().filter(|(waiter, _)| waiter == step).map(|(_, need)| need.clone()).collect()
    }

    /// What each step that is left waits for now.
    pub(crate) fn waits(&self) -> Vec<(StepId, Vec<StepId>)> {
        let needs = |one: &Waiting<'_>| {
            // Before the walk through the graph begins: what comes before all of it.
            let first = one.needs.is_empty().then_some(StepId::Files);
            one.needs.iter().cloned().chain(first).collect()
        };
        self.waiting.iter().map(|one| (one.id.clone(), needs(one))).collect()
    }

    fn check(&self) -> Result<(), String> {
        let mut dry = Self { waiting: self.waiting.clone(), waited: Vec::new() };
        loop {
            let ready = dry.take_ready();
            if ready.is_empty() {
                break;
            }
            for step in ready {
                dry.finish(&step.id());
            }
        }
        if dry.waiting.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = dry.waiting.iter().map(|one| one.id.to_string()).collect();
        Err(format!("these steps wait for each other: {}", names.join(", ")))
    }
}

/// Every step with its needs as the `Desired` has them.
fn steps<'a>(desired: &'a Desired, done: &BTreeSet<String>) -> Vec<(GraphStep<'a>, BTreeSet<Dependency>)> {
    let nothing = BTreeSet::new;
    let mut steps: Vec<(GraphStep<'_>, BTreeSet<Dependency>)> = Vec::new();
    steps.extend(desired.volumes.iter().map(|volume| (GraphStep::Volume(volume), nothing())));
    let late = desired.directories.iter().filter(|directory| !directory.needs.is_empty());
    steps.extend(late.map(|directory| (GraphStep::Directory(directory), directory.needs.clone())));
    let files = desired.files.iter().map(|file| (GraphStep::File(file), needs_of_file(desired, &file.path)));
    steps.extend(files.filter(|(_, needs)| !needs.is_empty()));
    if !desired.trusted_paths().is_empty() {
        steps.push((GraphStep::Certificates, nothing()));
    }
    let units = desired.units.iter().filter(|unit| !done.contains(&unit.name));
    steps.extend(units.map(|unit| (GraphStep::Unit(unit), unit.needs.clone())));
    steps.extend(desired.gates.iter().map(|gate| (GraphStep::Gate(gate), gate.needs.clone())));
    steps.extend(desired.objects.iter().map(|object| (GraphStep::Object(object), object.needs.clone())));
    steps.extend(desired.add_ons.iter().map(|add_on| (GraphStep::AddOn(add_on), add_on.needs.clone())));
    if let Some(flannel) = &desired.flannel {
        // A member on this node comes first; where it is another's, its address is all there is to wait for.
        let of_etcd = |gate: &&Gate| flannel.writes && gate.name == ETCD;
        let needs = desired.gates.iter().filter(of_etcd).map(|gate| Dependency::Gate(gate.name.clone())).gather();
        steps.push((GraphStep::FlannelKey(flannel), needs));
    }
    steps.extend(desired.etcd_join.iter().map(|join| (GraphStep::EtcdMember(join), join.needs.clone())));
    steps
}

/// The gate of a member of etcd on this node.
const ETCD: &str = "etcd";

/// Every step that is shown, in the order in which people read them.
pub(crate) fn shown(desired: &Desired) -> Vec<StepId> {
    let volumes = desired.volumes.iter().map(GraphStep::Volume);
    let certificates = (!desired.trusted_paths().is_empty()).then_some(GraphStep::Certificates);
    let flannel = desired.flannel.as_ref().map(GraphStep::FlannelKey);
    let member = desired.etcd_join.as_deref().map(GraphStep::EtcdMember);
    let units = desired.units.iter().filter(|unit| !unit.is_start_blocked()).map(GraphStep::Unit);
    let gates = desired.gates.iter().map(GraphStep::Gate);
    let objects = desired.objects.iter().map(GraphStep::Object);
    let objects = objects.chain(desired.add_ons.iter().map(GraphStep::AddOn));
    let steps = volumes.chain(certificates).chain(member).chain(flannel).chain(units).chain(gates).chain(objects);
    let proof = (!desired.gates.is_empty()).then_some(StepId::Proof);
    std::iter::once(StepId::Files).chain(steps.map(GraphStep::id)).chain(proof).collect()
}

/// The step that provides what is needed, where the `Desired` has it.
fn find(desired: &Desired, need: &Dependency) -> Option<StepId> {
    let (is_present, id) = match need {
        Dependency::Volume(role) => (desired.volumes.iter().any(|volume| volume.role == *role), StepId::Volume(*role)),
        Dependency::Directory(path) => {
            (desired.directories.iter().any(|directory| directory.path == *path), StepId::Directory(path.clone()))
        }
        Dependency::Unit(name) => (desired.units.iter().any(|unit| unit.name == *name), StepId::Unit(name.clone())),
        Dependency::Gate(name) => (desired.gates.iter().any(|gate| gate.name == *name), StepId::Gate(name.clone())),
        Dependency::Object(name) => (desired.objects.iter().any(|object| object.name == *name), StepId::Object(name.clone())),
        Dependency::AddOn(name) => (desired.add_ons.iter().any(|add_on| add_on.name == *name), StepId::AddOn(name.clone())),
        Dependency::FlannelKey => (desired.flannel.is_some(), StepId::FlannelKey),
        Dependency::EtcdMember => (desired.etcd_join.is_some(), StepId::EtcdMember),
        Dependency::Certificates => (!desired.trusted_paths().is_empty(), StepId::Certificates),
    };
    is_present.then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::{
        Certificate, ClientIdentity, Directory, EtcdAccess, File, FlannelStore, GateProbe, Material, Object, Owner, Signer, Unit,
    };

    fn unit(name: &str, needs: &[&str]) -> Unit {
        Unit {
            name: name.into(),
            enable: true,
            restart_on: BTreeSet::new(),
            needs: needs.iter().map(|need| Dependency::Unit((*need).to_owned())).collect(),
            applies_files: false,
        }
    }

    fn certificate(name: &str, stem: &str) -> Certificate {
        Certificate {
            name: name.into(),
            signer: Signer::Kubernetes,
            common_name: name.into(),
            organisations: vec![],
            names: vec![],
            addresses: vec![],
            serves: false,
            path: format!("{stem}.crt"),
            key: format!("{stem}.key"),
            owner: Owner::root(),
            given: None,
        }
    }

    fn order(desired: &Desired, done: &[&str]) -> Result<Vec<Vec<String>>, String> {
        let mut graph = Graph::new(desired, &done.iter().map(|name| (*name).to_owned()).collect())?;
        let mut waves = Vec::new();
        loop {
            let ready = graph.take_ready();
            if ready.is_empty() {
                return Ok(waves);
            }
            waves.push(ready.iter().map(|step| step.id().to_string()).collect());
            for step in ready {
                graph.finish(&step.id());
            }
        }
    }

    #[test]
    fn a_step_is_ready_when_all_its_needs_are_done() {
        let desired = Desired {
            units: vec![unit("c", &["a", "b"]), unit("a", &[]), unit("b", &["a"]), unit("d", &[])],
            ..Desired::default()
        };
        assert_eq!(order(&desired, &[]).unwrap(), [vec!["unit a", "unit d"], vec!["unit b"], vec!["unit c"]]);
        assert_eq!(order(&desired, &["a", "d"]).unwrap(), [["unit b"], ["unit c"]]);
    }

    #[test]
    fn units_that_are_restarted_follow_each_other_once_they_answer() {
        let gate = |name: &str, of: &[&str]| Gate {
            name: name.into(),
            unit: None,
            remedy: String::new(),
            probe: GateProbe::File("/f".into()),
            consecutive: 1,
            deadline: None,
            needs: of.iter().map(|unit| Dependency::Unit((*unit).to_owned())).collect(),
        };
        let desired = Desired {
            units: vec![unit("proxy", &[]), unit("kubelet", &[]), unit("manager", &[]), unit("scheduler", &[]), unit("api", &[])],
            // The last one is not of the unit alone.
            gates: vec![gate("api", &["api"]), gate("kubelet", &["kubelet"]), gate("whole", &["kubelet", "runtime"])],
            ..Desired::default()
        };
        let desired = Desired { units: [desired.units.clone(), vec![unit("runtime", &[])]].concat(), ..desired };
        let groups: [&[&str]; 4] = [&["api"], &["manager", "scheduler"], &["kubelet"], &["proxy"]];
        let waves = |restarted: &[&str]| {
            let mut graph = Graph::new(&desired, &BTreeSet::new()).unwrap();
            graph.restart_in_order(&groups, &desired.gates, |unit| restarted.contains(&unit));
            let mut waves = Vec::new();
            loop {
                let ready = graph.take_ready();
                if ready.is_empty() {
                    return waves;
                }
                waves.push(ready.iter().map(|step| step.id().to_string()).collect::<Vec<_>>().join(", "));
                for step in ready {
                    graph.finish(&step.id());
                }
            }
        };
        assert_eq!(
            waves(&["api", "manager", "scheduler", "kubelet", "proxy"]),
            [
                "unit api, unit runtime",
                "gate api",
                "unit manager, unit scheduler",
                "unit kubelet",
                "gate kubelet, gate whole",
                "unit proxy"
            ]
        );
        let at_once = "unit proxy, unit kubelet, unit manager, unit scheduler, unit api, unit runtime";
        assert_eq!(waves(&[]), [at_once, "gate api, gate kubelet, gate whole"]);
        assert_eq!(waves(&["kubelet"]), [at_once, "gate api, gate kubelet, gate whole"]);
        assert_eq!(
            waves(&["proxy", "api"]),
            [
                "unit kubelet, unit manager, unit scheduler, unit api, unit runtime",
                "gate api, gate kubelet, gate whole",
                "unit proxy"
            ]
        );
    }

    /// Of a worker too, whose flanneld asks another node's etcd: no gate of its own comes before.
    #[test]
    fn flannels_key_waits_for_the_certificate_that_etcd_is_shown() {
        let with = |identity: Option<ClientIdentity>| Desired {
            units: vec![Unit { needs: BTreeSet::from([Dependency::FlannelKey]), ..unit("flanneld", &[]) }],
            certificates: vec![certificate("flanneld", "/c/flanneld")],
            flannel: Some(FlannelStore {
                etcd: EtcdAccess { endpoint: "https://192.0.2.6:2379".into(), identity },
                prefix: "/p".into(),
                description: "{}".into(),
                writes: false,
            }),
            ..Desired::default()
        };
        let identity = ClientIdentity { certificate: String::new(), key: String::new(), ca: String::new() };
        assert_eq!(order(&with(Some(identity)), &[]).unwrap(), [["certificates"], ["flannel key"], ["unit flanneld"]]);
        assert_eq!(order(&with(None), &[]).unwrap(), [vec!["certificates", "flannel key"], vec!["unit flanneld"]]);
    }

    #[test]
    fn who_reads_a_certificate_waits_for_it_and_objects_wait_for_their_needs() {
        let reader = |name: &str, path: &str| Unit { restart_on: BTreeSet::from([path.to_owned()]), ..unit(name, &[]) };
        let object = Object {
            name: "o".into(),
            server: "https://127.0.0.1:6443".into(),
            collection: "/api/v1/namespaces".into(),
            object: "o".into(),
            body: Material::Text("{}".into()),
            identity: None,
            before: None,
            needs: BTreeSet::from([Dependency::Unit("api".into())]),
        };
        let after = Unit { needs: BTreeSet::from([Dependency::Object("o".into())]), ..unit("after", &[]) };
        let desired = Desired {
            units: vec![reader("api", "/c/server.key"), reader("other", "/c/other"), after],
            certificates: vec![certificate("server", "/c/server")],
            objects: vec![object],
            ..Desired::default()
        };
        let waves = [vec!["certificates", "unit other"], vec!["unit api"], vec!["object o"], vec!["unit after"]];
        assert_eq!(order(&desired, &[]).unwrap(), waves);
        let shown: Vec<String> = shown(&desired).iter().map(StepId::to_string).collect();
        assert_eq!(shown, ["files", "certificates", "unit api", "unit other", "unit after", "object o"]);
    }

    /// What asks for a name in a certificate is written once the certificate bears it, and read by who is started then.
    #[test]
    fn a_file_may_wait_for_certificates() {
        let folder =
            Directory { path: "/n".into(), mode: 0o755, owner: Owner::root(), needs: BTreeSet::from([Dependency::Certificates]) };
        let reader = Unit { restart_on: BTreeSet::from(["/n/names".to_owned()]), ..unit("etcd", &[]) };
        let desired = Desired {
            directories: vec![folder],
            files: vec![File::public("/n/names", ""), File::public("/other", "")],
            units: vec![reader],
            certificates: vec![certificate("server", "/c/server")],
            ..Desired::default()
        };
        let waves = [["certificates"], ["directory /n"], ["file /n/names"], ["unit etcd"]];
        assert_eq!(order(&desired, &[]).unwrap(), waves);
        let without = Desired { certificates: Vec::new(), ..desired };
        assert!(order(&without, &[]).unwrap_err().starts_with("directory /n needs Certificates"));
    }

    #[test]
    fn needs_that_cannot_be_met_are_found_before_anything_is_touched() {
        let unknown = Desired { units: vec![unit("a", &["z"])], ..Desired::default() };
        assert!(order(&unknown, &[]).unwrap_err().starts_with("unit a needs Unit(\"z\")"));
        let object = Desired {
            units: vec![Unit { needs: BTreeSet::from([Dependency::Object("o".into())]), ..unit("a", &[]) }],
            ..Desired::default()
        };
        assert!(order(&object, &[]).unwrap_err().starts_with("unit a needs Object(\"o\")"));
        let circle = Desired { units: vec![unit("a", &["b"]), unit("b", &["a"]), unit("c", &[])], ..Desired::default() };
        assert_eq!(order(&circle, &[]).unwrap_err(), "these steps wait for each other: unit a, unit b");
    }
}
