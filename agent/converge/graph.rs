//! What waits for what: the steps of a `Desired` after its files, each startable when all its needs are done. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::needs_of_file;
use crate::desired::{Desired, Gate, Need};

/// One step; the number is the place in the list of the `Desired`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Volume(usize),
    Directory(usize),
    File(usize),
    /// All of them, in one step: they belong together.
    Certificates,
    Unit(usize),
    Gate(usize),
    Object(usize),
    /// The description of flannel's network in etcd.
    FlannelKey,
}

/// The steps that are left and what is done.
#[derive(Debug)]
pub(crate) struct Graph {
    waiting: BTreeMap<Step, BTreeSet<Step>>,
    /// Who waited for what that is done, in the order of the ends.
    waited: Vec<(Step, Step)>,
}

impl Graph {
    /// All steps; directories and files only where they lie on something that has to come first. `done` are units
    /// that were dealt with before.
    ///
    /// # Errors
    /// In words, if a need names nothing, or steps wait for each other.
    pub(crate) fn new(desired: &Desired, done: &BTreeSet<String>) -> Result<Self, String> {
        let mut waiting: BTreeMap<Step, BTreeSet<Need>> = BTreeMap::new();
        for (index, _) in desired.volumes.iter().enumerate() {
            waiting.insert(Step::Volume(index), BTreeSet::new());
        }
        for (index, directory) in desired.directories.iter().enumerate() {
            if !directory.needs.is_empty() {
                waiting.insert(Step::Directory(index), directory.needs.clone());
            }
        }
        let mut late_files = BTreeMap::new();
        for (index, file) in desired.files.iter().enumerate() {
            let needs = needs_of_file(desired, &file.path);
            if !needs.is_empty() {
                late_files.insert(file.path.as_str(), Step::File(index));
                waiting.insert(Step::File(index), needs);
            }
        }
        let places = desired.trusted_paths();
        if !places.is_empty() {
            waiting.insert(Step::Certificates, BTreeSet::new());
        }
        for (index, unit) in desired.units.iter().enumerate() {
            if !done.contains(&unit.name) {
                waiting.insert(Step::Unit(index), unit.needs.clone());
            }
        }
        for (index, gate) in desired.gates.iter().enumerate() {
            waiting.insert(Step::Gate(index), gate.needs.clone());
        }
        for (index, object) in desired.objects.iter().enumerate() {
            waiting.insert(Step::Object(index), object.needs.clone());
        }
        if let Some(flannel) = &desired.flannel {
            // A member on this node comes first; where it is another's, its address is all there is to wait for.
            let of_etcd = |gate: &&Gate| flannel.writes && gate.name == ETCD;
            let needs = desired.gates.iter().filter(of_etcd).map(|gate| Need::Gate(gate.name.clone())).collect();
            waiting.insert(Step::FlannelKey, needs);
        }
        let mut steps: BTreeMap<Step, BTreeSet<Step>> = BTreeMap::new();
        for (step, needs) in &waiting {
            let mut befores = BTreeSet::new();
            for need in needs {
                let before = find(desired, need)
                    .ok_or_else(|| format!("{} needs {need:?}, which no step provides", name(desired, *step)))?;
                // A directory without needs and a unit that was dealt with are no steps of the graph: they are done.
                if waiting.contains_key(&before) {
                    befores.insert(before);
                }
            }
            if *step == Step::FlannelKey
                && desired.flannel.as_ref().is_some_and(|store| store.etcd.identity.is_some())
                && waiting.contains_key(&Step::Certificates)
            {
                // etcd is shown one of them.
                befores.insert(Step::Certificates);
            }
            if let Step::Unit(index) = step
                && let Some(unit) = desired.units.get(*index)
            {
                befores.extend(unit.restart_on.iter().filter_map(|path| late_files.get(path.as_str())));
                // Who reads a certificate is started with it.
                befores.extend(unit.restart_on.iter().any(|path| places.contains(path.as_str())).then_some(Step::Certificates));
            }
            steps.insert(*step, befores);
        }
        let graph = Self { waiting: steps, waited: Vec::new() };
        graph.check(desired)?;
        Ok(graph)
    }

    /// Takes out the steps that can start now.
    pub(crate) fn take_ready(&mut self) -> Vec<Step> {
        let ready: Vec<Step> = self.waiting.iter().filter(|(_, befores)| befores.is_empty()).map(|(step, _)| *step).collect();
        for step in &ready {
            self.waiting.remove(step);
        }
        ready
    }

    /// Says that a step is done.
    pub(crate) fn finish(&mut self, step: Step) {
        for (waiter, befores) in &mut self.waiting {
            if befores.remove(&step) {
                self.waited.push((*waiter, step));
            }
        }
    }

    /// What a step that can start waited for, in the order of the ends.
    pub(crate) fn after(&self, step: Step) -> impl Iterator<Item = Step> {
        self.waited.iter().filter(move |(waiter, _)| *waiter == step).map(|(_, need)| *need)
    }

    /// What each step that is left waits for now, for people.
    pub(crate) fn waits(&self, desired: &Desired) -> Vec<(String, Vec<String>)> {
        let names = |befores: &BTreeSet<Step>| -> Vec<String> {
            // Before the walk through the graph begins: what comes before all of it.
            let first = befores.is_empty().then(|| FILES.to_owned());
            befores.iter().map(|before| name(desired, *before)).chain(first).collect()
        };
        self.waiting.iter().map(|(step, befores)| (name(desired, *step), names(befores))).collect()
    }

    fn check(&self, desired: &Desired) -> Result<(), String> {
        let mut dry = Self { waiting: self.waiting.clone(), waited: Vec::new() };
        loop {
            let ready = dry.take_ready();
            if ready.is_empty() {
                break;
            }
            for step in ready {
                dry.finish(step);
            }
        }
        if dry.waiting.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = dry.waiting.keys().map(|step| name(desired, *step)).collect();
        Err(format!("these steps wait for each other: {}", names.join(", ")))
    }
}

/// The step that directories, files, enablement and the daemon-reload are together, for people.
pub(crate) const FILES: &str = "files";

/// The step in which keys and certificates are made and put in place, for people.
pub(crate) const CERTIFICATES: &str = "certificates";

/// The step in which etcd gets, or must have, the description of flannel's network, for people.
pub(crate) const FLANNEL_KEY: &str = "flannel key";

/// The gate of a member of etcd on this node.
const ETCD: &str = "etcd";

/// Every step that is shown, in the order of the `Desired`.
pub(crate) fn names(desired: &Desired) -> Vec<String> {
    let volumes = (0..desired.volumes.len()).map(Step::Volume);
    let units = (0..desired.units.len()).map(Step::Unit);
    let gates = (0..desired.gates.len()).map(Step::Gate);
    let objects = (0..desired.objects.len()).map(Step::Object);
    let certificates = (!desired.trusted_paths().is_empty()).then_some(Step::Certificates);
    let flannel = desired.flannel.as_ref().map(|_| Step::FlannelKey);
    let named =
        volumes.chain(certificates).chain(flannel).chain(units).chain(gates).chain(objects).map(|step| name(desired, step));
    std::iter::once(FILES.to_owned()).chain(named).collect()
}

/// `unit etcd.service`: the step in journal, timings and failures.
pub(crate) fn name(desired: &Desired, step: Step) -> String {
    match step {
        Step::Volume(index) => named("volume", desired.volumes.get(index).map(|volume| volume.role.as_str())),
        Step::Directory(index) => named("directory", desired.directories.get(index).map(|directory| directory.path.as_str())),
        Step::File(index) => named("file", desired.files.get(index).map(|file| file.path.as_str())),
        Step::Certificates => CERTIFICATES.to_owned(),
        Step::FlannelKey => FLANNEL_KEY.to_owned(),
        Step::Object(index) => named("object", desired.objects.get(index).map(|object| object.name.as_str())),
        Step::Unit(index) => named("unit", desired.units.get(index).map(|unit| unit.name.as_str())),
        Step::Gate(index) => named("gate", desired.gates.get(index).map(|gate| gate.name.as_str())),
    }
}

fn named(kind: &str, name: Option<&str>) -> String {
    format!("{kind} {}", name.unwrap_or("?"))
}

fn find(desired: &Desired, need: &Need) -> Option<Step> {
    match need {
        Need::Volume(role) => desired.volumes.iter().position(|volume| volume.role == *role).map(Step::Volume),
        Need::Directory(path) => desired.directories.iter().position(|directory| directory.path == *path).map(Step::Directory),
        Need::Unit(name) => desired.units.iter().position(|unit| unit.name == *name).map(Step::Unit),
        Need::Gate(name) => desired.gates.iter().position(|gate| gate.name == *name).map(Step::Gate),
        Need::Object(name) => desired.objects.iter().position(|object| object.name == *name).map(Step::Object),
        Need::FlannelKey => desired.flannel.as_ref().map(|_| Step::FlannelKey),
        Need::Certificates => (!desired.trusted_paths().is_empty()).then_some(Step::Certificates),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::{
        Certificate, ClientIdentity, Directory, EtcdAccess, File, FlannelStore, Material, Object, Owner, Signer, Unit,
    };

    fn unit(name: &str, needs: &[&str]) -> Unit {
        Unit {
            name: name.into(),
            enable: true,
            restart_on: BTreeSet::new(),
            needs: needs.iter().map(|need| Need::Unit((*need).to_owned())).collect(),
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
            waves.push(ready.iter().map(|step| name(desired, *step)).collect());
            for step in ready {
                graph.finish(step);
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

    /// Of a worker too, whose flanneld asks another node's etcd: no gate of its own comes before.
    #[test]
    fn flannels_key_waits_for_the_certificate_that_etcd_is_shown() {
        let with = |identity: Option<ClientIdentity>| Desired {
            units: vec![Unit { needs: BTreeSet::from([Need::FlannelKey]), ..unit("flanneld", &[]) }],
            certificates: vec![certificate("flanneld", "/c/flanneld")],
            flannel: Some(FlannelStore {
                etcd: EtcdAccess { endpoint: "https://192.0.2.6:2379".into(), identity },
                prefix: "/p".into(),
                description: "{}".into(),
                writes: false,
            }),
            ..Desired::default()
        };
        let identity = ClientIdentity { certificate: String::new(), key: String::new(), authority: String::new() };
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
            identity: ClientIdentity { certificate: String::new(), key: String::new(), authority: String::new() },
            needs: BTreeSet::from([Need::Unit("api".into())]),
        };
        let after = Unit { needs: BTreeSet::from([Need::Object("o".into())]), ..unit("after", &[]) };
        let desired = Desired {
            units: vec![reader("api", "/c/server.key"), reader("other", "/c/other"), after],
            certificates: vec![certificate("server", "/c/server")],
            objects: vec![object],
            ..Desired::default()
        };
        let waves = [vec!["certificates", "unit other"], vec!["unit api"], vec!["object o"], vec!["unit after"]];
        assert_eq!(order(&desired, &[]).unwrap(), waves);
        assert_eq!(names(&desired), ["files", "certificates", "unit api", "unit other", "unit after", "object o"]);
    }

    /// What asks for a name in a certificate is written once the certificate bears it, and read by who is started then.
    #[test]
    fn a_file_may_wait_for_certificates() {
        let folder =
            Directory { path: "/n".into(), mode: 0o755, owner: Owner::root(), needs: BTreeSet::from([Need::Certificates]) };
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
            units: vec![Unit { needs: BTreeSet::from([Need::Object("o".into())]), ..unit("a", &[]) }],
            ..Desired::default()
        };
        assert!(order(&object, &[]).unwrap_err().starts_with("unit a needs Object(\"o\")"));
        let circle = Desired { units: vec![unit("a", &["b"]), unit("b", &["a"]), unit("c", &[])], ..Desired::default() };
        assert_eq!(order(&circle, &[]).unwrap_err(), "these steps wait for each other: unit a, unit b");
    }
}
