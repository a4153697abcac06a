//! The sources of os-collect-config, asked side by side, and what each said last (heat-protocol.md 2).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::unistd::getuid;
use serde_json::{Map, Value};

use super::super::log::Log;
use super::super::machine::{Machine, variable};
use super::cache::Cache;
use super::ec2;
use super::options::{Collector, Options};
use crate::budgets::{LOCAL_BYTES, LOCAL_MEMORY, json};
use crate::clock::Clock;
use crate::collect::{Entries, HINT, LOCAL_DATA, RunOrder, SingleSource, Stamp};
use crate::concurrent;
use crate::deploy::Work;
use crate::error::{Context, Error, Result};
use crate::files::{FileKind, Tree};
use crate::http::{Http, Tls};
use crate::identity::Identity;
use crate::openstack::keystone::Keystone;
use crate::settings::source_name::SourceName;
use crate::settings::{self, STATE_DIR};
use crate::storage::config_drive;

const HEAT_LOCAL: &str = "/var/lib/heat-cfntools/cfn-init-data";

/// Documents by the names of their files, in order.
pub(super) type Documents = Vec<(String, Value)>;

/// One source.
struct Source {
    collector: Collector,
    /// Over the network: whom to ask; why nobody can be asked.
    remote: Option<Result<SingleSource>>,
    /// What it said last.
    last: Option<Documents>,
    /// Whether it said that in the last round.
    is_current: bool,
}

/// Whose the cache is, by what the machine says now.
pub(super) struct Owner {
    pub(super) instance: Option<Identity>,
    /// It is not this server's.
    pub(super) is_another: bool,
    /// Whom the server before was to ask, until a command has succeeded with what this one's boot copy says.
    former: Option<Value>,
}

impl Owner {
    pub(super) fn of(cache: &Cache<'_>) -> Self {
        let boot = heat_local(cache.machine, cache.options, &mut Vec::new()).ok().and_then(|mut found| found.pop());
        let boot = boot.as_ref().map(|(_, document)| document);
        let instance = Identity::of_machine(&cache.machine.root).ok();
        Self { is_another: cache.is_anothers(instance.as_ref(), boot), former: cache.former(boot), instance }
    }

    /// Whether the settings still are those of the server before: its metadata, deployments and all, would be taken for this one's.
    fn is_formers(&self, collector: Collector, options: &Options) -> bool {
        let key = match collector {
            Collector::Cfn => "access_key_id",
            Collector::Heat | Collector::Zaqar => "user_id",
            Collector::Request => "metadata_url",
            Collector::HeatLocal | Collector::Ec2 | Collector::Local => return false,
        };
        let group = collector.as_str();
        let former = self.former.as_ref().and_then(|former| former.get(group)?.get(key)?.as_str());
        former.is_some() && former == options.values.all(group, key).last().map(String::as_str)
    }
}

/// What asking a source came to; nothing where it is not configured.
type Asked = Option<Result<Documents>>;

/// All sources that are asked, in order.
pub(super) struct Sources {
    http: Http,
    keystone: Keystone,
    clock: Clock,
    all: Vec<Source>,
    /// Of what was listed, once a round has been kept.
    order: Option<RunOrder>,
    daemon: Option<DaemonsOrder>,
}

/// Where the daemon keeps what it was told, as far as that was read.
struct DaemonsOrder {
    state: PathBuf,
    read: Stamp,
}

impl Sources {
    /// The sources that the options name.
    ///
    /// # Errors
    /// If the machine's root cannot be opened.
    pub(super) fn new(options: &Options, clock: &Clock) -> Result<Self> {
        let ca_file = variable("REQUESTS_CA_BUNDLE").filter(|file| !file.is_empty()).map(Into::into);
        let tls = Tls { ca_file, allow_insecure: false };
        let http = Http::new(tls, Arc::new(Tree::open(Path::new("/"))?), clock.clone());
        let all = options.collectors.iter().copied().map(Source::new).collect();
        Ok(Self { http, keystone: Keystone::new(clock.clone()), clock: clock.clone(), all, order: None, daemon: None })
    }

    /// The same by other options. What was listed before stays known, and what a source said last stays what it says until it answers.
    ///
    /// # Errors
    /// As [`Sources::new`].
    pub(super) fn renewed(&mut self, options: &Options) -> Result<Self> {
        let mut renewed = Self::new(options, &self.clock)?;
        renewed.order = self.order.take();
        renewed.order.iter_mut().for_each(RunOrder::moves);
        for source in &mut renewed.all {
            let before = self.all.iter().find(|before| before.collector == source.collector).and_then(Source::whole);
            source.last = before.map(|whole| source.collector.documents(whole.clone(), options, &mut Vec::new()));
        }
        Ok(renewed)
    }

    /// Asks all of them. Where `is_kept`, one that does not answer says what it said last (heat-protocol.md R11). On a copied disk the boot copy
    /// leads: it counts whether it is asked for or not, for the settings that name the sources are the other server's.
    pub(super) async fn collect(&mut self, cache: &Cache<'_>, owner: &Owner, is_kept: bool, log: &mut Log) -> Documents {
        let Cache { machine, options } = *cache;
        if owner.is_another {
            self.all.iter_mut().for_each(|source| source.last = None);
        }
        if (owner.is_another || owner.former.is_some()) && self.all.iter().all(|source| source.collector != Collector::HeatLocal)
        {
            self.all.insert(0, Source::new(Collector::HeatLocal));
        }
        let (http, keystone, clock) = (&self.http, &self.keystone, &self.clock);
        let asking = self.all.iter_mut().map(|source| {
            if owner.is_formers(source.collector, options) {
                source.remote = None;
            } else {
                source.configure(machine, options, http, keystone);
            }
            source.ask(cache, owner, http, clock)
        });
        let answers = concurrent::all(asking).await;
        let mut order = is_kept.then(|| self.order.take().unwrap_or_else(|| known_order(cache, &self.all, clock, log)));
        if let Some(order) = &mut order {
            take_over_daemons(order, &mut self.daemon, &machine.root, clock, log);
        }
        for (source, (answer, remarks)) in self.all.iter_mut().zip(answers) {
            for remark in &remarks {
                log.warning(remark);
            }
            let name = source.collector.as_str();
            let answer = match (answer, &mut order) {
                (Some(Ok(documents)), Some(order)) if source.remote.is_some() => {
                    let checked = order.check(
                        &entries(documents.iter().map(|(_, document)| document), options, source.collector),
                        name,
                        clock,
                    );
                    Some(checked.map(|()| documents))
                }
                (answer, _) => answer,
            };
            source.is_current = matches!(answer, Some(Ok(_)));
            match answer {
                None => source.last = None,
                Some(Ok(documents)) => source.last = Some(documents),
                Some(Err(error)) => {
                    log.warning(&format!("Source [{name}] Unavailable: {error}"));
                    // Of `local` each file has its own name, and none is that of the source.
                    if !is_kept || source.collector == Collector::Local {
                        source.last = None;
                        continue;
                    }
                    let kept = || Some(source.collector.documents(cache.kept(name)?, options, &mut Vec::new()));
                    source.last = source.last.take().or_else(kept);
                }
            }
        }
        if let Some(Err(error)) = order.as_mut().map(|order| cache.keep_order(order, clock)) {
            log.warning(&format!("which deployments were listed cannot be kept: {error}"));
        }
        self.order = order;
        self.in_order().into_iter().flat_map(|source| source.last.iter().flatten().cloned()).collect()
    }

    /// The sources in the order in which their documents are merged: as they are given, but what Heat said last by a way that does not answer
    /// counts less than what it says by another way now, or its new deployments would wait for a way that is gone for good.
    fn in_order(&self) -> Vec<&Source> {
        let mut heats: Vec<_> = self.all.iter().filter(|source| source.remote_name().is_some()).collect();
        heats.sort_by_key(|source| source.is_current);
        let mut heats = heats.into_iter();
        let next = |source| if Source::remote_name(source).is_some() { heats.next() } else { Some(source) };
        self.all.iter().filter_map(next).collect()
    }

    /// The ids of deployments that are listed, of whose resources some answer has listed a newer one.
    pub(super) fn replaced(&self, options: &Options) -> Vec<String> {
        let of = |source: &Source| {
            let keys = options.values.deployment_keys(source.collector.as_str());
            Some(self.order.as_ref()?.replaced(&keys, source.whole()?))
        };
        self.all.iter().filter_map(of).flatten().collect()
    }

    /// Whether there is a list of deployments, and in the last round its source has answered: of several that have a list by the same
    /// name the last one's counts, as where os-apply-config merges them. What the machine has of its boot is none of Heat's any more.
    pub(super) fn have_just_listed(&self, options: &Options) -> bool {
        let (mut known, mut is_heard) = (Vec::new(), true);
        for source in self.in_order().into_iter().rev() {
            let is_by_boot = matches!(source.collector, Collector::HeatLocal | Collector::Ec2);
            let new: Vec<String> = source.lists(options).filter(|key| !known.contains(key)).collect();
            is_heard &= new.is_empty() || (source.is_current && !is_by_boot);
            known.extend(new);
        }
        is_heard && !known.is_empty()
    }
}

/// What is known of the runs that were listed before (`collect/run_order.rs`).
fn known_order(cache: &Cache<'_>, sources: &[Source], clock: &Clock, log: &mut Log) -> RunOrder {
    let remote = || sources.iter().filter(|source| source.remote.is_some()).map(|source| source.collector);
    let list = |collector: Collector| Some(entries([&cache.kept(collector.as_str())?], cache.options, collector));
    let kept = cache.open_order(clock).unwrap_or_else(|error| {
        log.warning(&format!("which deployments were listed is learnt anew: {error}"));
        None
    });
    let mut order = kept.unwrap_or_default();
    // Also beside that record: the original keeps none, and may have been in the place of the links for a while.
    order.take_over(RunOrder::of_lists(remote().filter_map(list)));
    order
}

/// Adds what the daemon was told, before the links were put in its place or while they are used beside it: the next answer may lag behind that.
fn take_over_daemons(order: &mut RunOrder, known: &mut Option<DaemonsOrder>, root: &Tree, clock: &Clock, log: &mut Log) {
    let DaemonsOrder { state, read } = known.get_or_insert_with(|| {
        let unknown = |error| {
            log.warning(&format!("whether the agent keeps its state in another place than {STATE_DIR} is not known: {error}"));
            STATE_DIR.into()
        };
        let state = settings::load(root, None).map_or_else(unknown, |loaded| loaded.settings.state_dir);
        DaemonsOrder { state, read: None }
    });
    let stamp = RunOrder::stamp_in(root, state);
    if std::mem::replace(read, stamp) == stamp {
        return;
    }
    if let Err(error) = order.take_over_from(root, state, clock) {
        log.warning(&format!("which deployments were listed to the agent is not known: {error}"));
    }
}

/// The deployments in the documents of a source. More than may be say nothing here.
fn entries<'a>(documents: impl IntoIterator<Item = &'a Value>, options: &Options, collector: Collector) -> Entries {
    Entries::below(&options.values.deployment_keys(collector.as_str()), documents).unwrap_or_default()
}

/// The settings of a source over the network.
fn remote(
    machine: &Machine,
    options: &Options,
    name: SourceName,
    http: &Http,
    keystone: &Keystone,
) -> Result<Option<SingleSource>> {
    let group = name.as_str();
    let values = |key: &'static str| {
        let values = options.values.all(group, key);
        match (group, key) {
            ("cfn", "metadata_url") if values.is_empty() => hinted(machine, options).into_iter().collect(),
            // There it has another name.
            ("zaqar", "ca_certificate") if values.is_empty() => options.values.all(group, "ca_file"),
            _ => values,
        }
    };
    SingleSource::new(name, values, http, keystone.clone(), options.values.seconds(group, "timeout", 10.0)?)
}

/// Where heat-api-cfn is, by the file that cloud-init leaves (heat-protocol.md 2.3).
fn hinted(machine: &Machine, options: &Options) -> Option<String> {
    let file = options.values.all("cfn", "heat_metadata_hint").pop().unwrap_or_else(|| HINT.to_owned());
    let host = machine.text(&file).ok().flatten()?;
    Some(format!("{}/v1/", host.trim()))
}

impl Source {
    fn new(collector: Collector) -> Self {
        Self { collector, remote: None, last: None, is_current: false }
    }

    /// The document of which the others are made.
    fn whole(&self) -> Option<&Value> {
        let mut documents = self.last.iter().flatten();
        documents.find(|(key, _)| key == self.collector.as_str()).map(|(_, document)| document)
    }

    /// What the agent calls it, if Heat's metadata comes by it over the network.
    fn remote_name(&self) -> Option<SourceName> {
        match self.collector {
            Collector::Cfn => Some(SourceName::Cfn),
            Collector::Heat => Some(SourceName::Heat),
            Collector::Request => Some(SourceName::Request),
            Collector::Zaqar => Some(SourceName::Zaqar),
            Collector::HeatLocal | Collector::Ec2 | Collector::Local => None,
        }
    }

    /// Finds whom to ask over the network, where that was not known: cloud-init may write later where Heat is.
    fn configure(&mut self, machine: &Machine, options: &Options, http: &Http, keystone: &Keystone) {
        let Some(name) = self.remote_name() else { return };
        if !matches!(self.remote, Some(Ok(_))) {
            self.remote = remote(machine, options, name, http, keystone).transpose();
        }
    }

    /// The names of the lists of deployments in what it said last, also of empty ones.
    fn lists(&self, options: &Options) -> impl Iterator<Item = String> {
        let is_list =
            |key: &String| self.last.iter().flatten().any(|(_, document)| document.get(key).is_some_and(Value::is_array));
        options.values.deployment_keys(self.collector.as_str()).into_iter().filter(is_list)
    }

    /// What it says now, and what is to be said of that.
    async fn ask(&mut self, cache: &Cache<'_>, owner: &Owner, http: &Http, clock: &Clock) -> (Asked, Vec<String>) {
        let Cache { machine, options } = *cache;
        let mut remarks = Vec::new();
        let asked = match self.collector {
            Collector::HeatLocal => Some(heat_local(machine, options, &mut remarks)),
            Collector::Local => Some(local(machine, options, &mut remarks)),
            Collector::Ec2 => Some(ec2(cache, owner, http, clock).await),
            Collector::Cfn | Collector::Heat | Collector::Request | Collector::Zaqar => match &mut self.remote {
                None => None,
                Some(Err(error)) => Some(Err(error.clone())),
                Some(Ok(source)) => Some(
                    source.ask().await.map(|document| self.collector.documents(Value::Object(document), options, &mut remarks)),
                ),
            },
        };
        (asked, remarks)
    }
}

impl Collector {
    /// The document of a source, and behind it those of its deployments that no hook runs (heat-protocol.md 2.8).
    fn documents(self, document: Value, options: &Options, remarks: &mut Vec<String>) -> Documents {
        let mut documents = Documents::new();
        if !matches!(self, Self::HeatLocal | Self::Ec2) {
            for key in options.values.deployment_keys(self.as_str()) {
                match document.get(&key) {
                    None => {}
                    Some(Value::Array(list)) => documents.extend(list.iter().filter_map(|one| applied(one, &key, remarks))),
                    Some(_) => remarks.push(format!("{key} of {} is no list of deployments", self.as_str())),
                }
            }
        }
        documents.insert(0, (self.as_str().to_owned(), document));
        documents
    }
}

/// Name and config of a deployment, if it is one that no hook runs.
fn applied(deployment: &Value, key: &str, remarks: &mut Vec<String>) -> Option<(String, Value)> {
    let Some(name) = deployment.get("name").and_then(Value::as_str) else {
        remarks.push(format!("a deployment in {key} has no name"));
        return None;
    };
    if deployment.get("group").map_or(Some(Work::Data), |group| group.as_str().map(Work::of)) != Some(Work::Data) {
        return None;
    }
    let config = deployment.get("config");
    if config.is_none() {
        remarks.push(format!("the deployment {name} has no config"));
    }
    Some((name.to_owned(), config?.clone()))
}

/// The boot copies, one over the other.
fn heat_local(machine: &Machine, options: &Options, remarks: &mut Vec<String>) -> Result<Documents> {
    let mut all = Map::new();
    for path in options.values.paths("heat_local", HEAT_LOCAL) {
        match machine.python_json(&path) {
            Ok(None) => {}
            Ok(Some(Value::Object(document))) => all.extend(document),
            Ok(Some(_)) => remarks.push(format!("{path} is no JSON object")),
            Err(error) => remarks.push(error.to_string()),
        }
    }
    if all.is_empty() {
        return Err(Error::permanent("there is no boot copy of the metadata"));
    }
    Ok(vec![(Collector::HeatLocal.as_str().to_owned(), Value::Object(all))])
}

/// The operator's own documents, by the names of their files (heat-protocol.md 2.6). One that is not as it must be stands for all: what it
/// was to replace is not known.
fn local(machine: &Machine, options: &Options, remarks: &mut Vec<String>) -> Result<Documents> {
    let mut documents = Documents::new();
    for directory in options.values.paths("local", LOCAL_DATA) {
        let path = machine.path(&directory);
        let Some(facts) = machine.root.facts_followed(&path)? else {
            remarks.push(format!("{directory} not found. Skipping"));
            continue;
        };
        if facts.owner.0 != getuid().as_raw() || facts.mode & 0o002 != 0 {
            return Err(changed_by_others(&directory));
        }
        for name in machine.root.list(&path)? {
            let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else { continue };
            let file = path.join(name);
            let Some(facts) = machine.root.facts_followed(&file)?.filter(|facts| facts.kind != FileKind::Directory) else {
                continue;
            };
            if facts.mode & 0o002 != 0 {
                return Err(changed_by_others(&format!("{directory}/{name}")));
            }
            if let Some(document) = machine.python_json(&file)? {
                documents.push((name.to_owned(), document));
            }
        }
    }
    documents.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(documents)
}

fn changed_by_others(path: &str) -> Error {
    Error::refused(format!("{path} can be changed by other users"))
        .remedy(format!("give it to the user of os-collect-config, and chmod o-w {path}"))
}

/// The metadata service; what it once said stays, as an instance's metadata does.
async fn ec2(cache: &Cache<'_>, owner: &Owner, http: &Http, clock: &Clock) -> Result<Documents> {
    let Cache { machine, options } = *cache;
    let name = Collector::Ec2.as_str();
    let is_something = |value: &Value| value.as_object().is_some_and(|members| !members.is_empty());
    if let Some(kept) = cache.kept(name).filter(|kept| !owner.is_another && is_something(kept)) {
        return Ok(vec![(name.to_owned(), kept)]);
    }
    // The config drive comes first; one that is none, or says nothing, is passed over (heat-protocol.md 2.2).
    let dev = machine.root.base().join("dev");
    let drive = config_drive::read(&dev, &["ec2", "latest", "meta-data.json"], LOCAL_BYTES).ok().flatten();
    if let Some(found) = drive.and_then(|bytes| json::value(&bytes, LOCAL_MEMORY).ok()).filter(is_something) {
        return Ok(vec![(name.to_owned(), found)]);
    }
    let url = options.values.all(name, "metadata_url").pop().unwrap_or_else(|| ec2::USUAL.to_owned());
    let deadline: Duration = options.values.seconds(name, "timeout", 10.0)?;
    Ok(vec![(name.to_owned(), ec2::metadata(http, clock, &url, deadline).await.context(|| "asking the metadata service")?)])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Attack: a source that was gone for good kept every result from being sent again.
    #[test]
    fn the_list_that_is_merged_last_says_whether_heat_was_heard() {
        use Collector::{Cfn, Ec2, Heat, HeatLocal, Local};
        let options = Options::load(&Machine::new().unwrap(), super::super::read(&["--config-file", "/dev/null"])).unwrap();
        let (list, other) = (json!({"deployments": []}), json!({"x": 1}));
        let said = |(collector, document, is_current): (Collector, &Value, bool)| Source {
            collector,
            remote: None,
            last: Some(vec![("d".to_owned(), document.clone())]),
            is_current,
        };
        for (all, expected) in [
            (vec![], false),
            (vec![(Heat, &other, true)], false),
            (vec![(Heat, &list, true)], true),
            (vec![(Heat, &list, false)], false),
            (vec![(Cfn, &list, false), (Heat, &list, true)], true),
            (vec![(Cfn, &list, true), (Heat, &list, false)], true),
            (vec![(Cfn, &list, true), (Heat, &list, false), (Local, &list, false)], false),
            (vec![(Cfn, &list, true), (Heat, &other, false)], true),
            (vec![(HeatLocal, &list, true), (Heat, &list, true)], true),
            (vec![(Heat, &list, true), (HeatLocal, &list, true)], false),
            (vec![(Ec2, &list, true)], false),
        ] {
            let names: Vec<_> = all.iter().map(|(collector, _, is_current)| (collector.as_str(), *is_current)).collect();
            let mut sources = Sources::new(&options, &Clock::system()).unwrap();
            sources.all = all.into_iter().map(said).collect();
            assert_eq!(sources.have_just_listed(&options), expected, "{names:?}");
        }
    }

    /// Attack: one of two ways to Heat was gone for good, and its old list hid the newer one of the other.
    #[test]
    fn what_a_way_to_heat_said_last_counts_less_than_what_another_one_says_now() {
        use Collector::{Cfn, Ec2, Heat, HeatLocal, Local, Request};
        let options = Options::load(&Machine::new().unwrap(), super::super::read(&["--config-file", "/dev/null"])).unwrap();
        let order = |failed: &[Collector]| {
            let source = |collector| Source { is_current: !failed.contains(&collector), ..Source::new(collector) };
            let mut sources = Sources::new(&options, &Clock::system()).unwrap();
            sources.all = [HeatLocal, Cfn, Ec2, Heat, Request, Local].map(source).into();
            sources.in_order().into_iter().map(|source| source.collector).collect::<Vec<_>>()
        };
        for (failed, expected) in [
            (&[][..], [HeatLocal, Cfn, Ec2, Heat, Request, Local]),
            (&[Cfn], [HeatLocal, Cfn, Ec2, Heat, Request, Local]),
            (&[Request], [HeatLocal, Request, Ec2, Cfn, Heat, Local]),
            (&[HeatLocal, Ec2, Heat, Request], [HeatLocal, Heat, Ec2, Request, Cfn, Local]),
            (&[Cfn, Heat, Request, Local], [HeatLocal, Cfn, Ec2, Heat, Request, Local]),
        ] {
            assert_eq!(order(failed), expected, "{failed:?}");
        }
    }

    /// Attack: behind a reload that named another cache, a list that could not be asked for at once was gone.
    #[test]
    fn what_sources_said_outlives_a_reload() {
        let options = Options::load(&Machine::new().unwrap(), super::super::read(&["--config-file", "/dev/null"])).unwrap();
        let mut sources = Sources::new(&options, &Clock::system()).unwrap();
        let said = json!({"deployments": []});
        sources.all = vec![Source { last: Some(vec![("cfn".to_owned(), said.clone())]), ..Source::new(Collector::Cfn) }];
        let renewed = sources.renewed(&options).unwrap();
        let kept: Vec<_> = renewed.all.iter().filter_map(Source::whole).collect();
        assert_eq!(kept, [&said]);
    }

    #[test]
    fn deployments_that_no_hook_runs_are_documents_of_their_own() {
        let options = Options::load(&Machine::new().unwrap(), super::super::read(&["--config-file", "/dev/null"])).unwrap();
        let document = json!({"x": 1, "deployments": [
            {"name": "a", "config": {"k": 1}}, {"name": "b", "group": "script", "config": "c"},
            {"name": "c", "group": "os-apply-config", "config": "text"}, {"name": "d"}, {"config": {}}, 7, {"name": "e", "group": null}]});
        let mut remarks = Vec::new();
        let documents = Collector::Heat.documents(document.clone(), &options, &mut remarks);
        let expected = [("heat", document.clone()), ("a", json!({"k": 1})), ("c", json!("text"))];
        assert_eq!(documents, expected.map(|(name, value)| (name.to_owned(), value)));
        assert_eq!(remarks.len(), 3, "{remarks:?}");
        assert_eq!(Collector::HeatLocal.documents(document, &options, &mut remarks).len(), 1);
        let odd = json!({"deployments": {"a": 1}});
        assert_eq!((Collector::Cfn.documents(odd, &options, &mut remarks).len(), remarks.len()), (1, 4));
    }
}
