//! 55-heat-config without a hook and a Heat of its own; beside its original it is in tests/legacy.

use serde_json::json;

use super::*;
use crate::clock::Timestamp;
use crate::files::Tree;

#[test]
fn the_status_counts_whatever_is_printed() {
    for (status, out, expected) in [
        (0, "", json!({})),
        (3, "", json!({"deploy_stdout": "", "deploy_stderr": "e", "deploy_status_code": 3})),
        (0, r#"{"a": 1, "deploy_status_code": "-1"}"#, json!({"a": 1, "deploy_status_code": "-1"})),
        (3, r#"{"a": 1}"#, json!({"a": 1, "deploy_status_code": 3})),
        (3, r#"{"deploy_status_code": false}"#, json!({"deploy_status_code": 3})),
        (3, r#"{"deploy_status_code": 0.0}"#, json!({"deploy_status_code": 3})),
        (3, r#"{"deploy_status_code": "no room"}"#, json!({"deploy_status_code": "no room"})),
        (3, r#"{"deploy_status_code": 7}"#, json!({"deploy_status_code": 7})),
        (-9, r#"{"deploy_status_code": "0"}"#, json!({"deploy_status_code": -9})),
        (0, "5", json!({"deploy_stdout": "5", "deploy_stderr": "e", "deploy_status_code": 1})),
        (0, "id\n{}", json!({"deploy_stdout": "id\n{}", "deploy_stderr": "e", "deploy_status_code": 1})),
        (2, "text", json!({"deploy_stdout": "text", "deploy_stderr": "e", "deploy_status_code": 2})),
    ] {
        let heard = Heard { status, out: out.into(), err: b"e".to_vec(), is_cut: false };
        assert_eq!(result(&heard), expected, "{status} {out}");
    }
}

#[test]
fn inputs_are_texts_where_they_are_to_be_and_a_component_is_the_part_of_its_action() {
    let component = |action: &str| {
        let parts =
            json!([{"actions": ["CREATE"], "tool": "script", "config": "c"}, {"actions": ["DELETE"], "tool": "x", "config": {}}]);
        let inputs = json!([{"name": "deploy_action", "type": "String", "value": action}, {"name": "n", "type": "Number", "value": 1}, {"name": "s", "type": "String", "value": [true, null]}]);
        json!({"id": "1", "group": "component", "inputs": inputs, "config": {"configs": parts}}).as_object().unwrap().clone()
    };
    for (action, expected) in [("CREATE", Some(("script", json!("c")))), ("DELETE", Some(("x", json!({})))), ("SUSPEND", None)] {
        let mut entry = component(action);
        assert_eq!(checked(&mut entry), Ok(expected.is_some()), "{action}");
        if let Some((group, config)) = expected {
            assert_eq!((&entry["group"], &entry["config"]), (&json!(group), &config));
        }
        assert_eq!((&entry["inputs"][1]["value"], &entry["inputs"][2]["value"]), (&json!(1), &json!("[True, None]")));
    }
    for odd in [json!({}), json!({"inputs": 1}), json!({"inputs": [{"value": 1}]}), json!({"inputs": [{"name": "a"}]})] {
        let error = checked(&mut odd.as_object().unwrap().clone()).unwrap_err();
        assert!(error.to_string().contains("malformed"), "{error}");
    }
}

/// A directory with the tool in it; what it tells goes to the file `heard`, and Heat's answer is the status in `answer`.
struct ToolDirectory {
    dir: tempfile::TempDir,
    /// How many changes the disk takes.
    space: u32,
    is_own: bool,
    polled: Polled,
    clock: Clock,
}

impl ToolDirectory {
    /// Heat lists them after all that the test writes.
    fn new() -> Self {
        let now = Polled::seconds(Clock::system().now());
        let place = Self {
            dir: tempfile::tempdir().unwrap(),
            space: u32::MAX,
            is_own: true,
            polled: Polled::At(now + 60),
            clock: Clock::manual(Timestamp(u64::try_from(now + 120).unwrap() * 1000)),
        };
        let at = place.at("").display().to_string();
        place.put("notify", &format!("tr '\\n' ' ' >> {at}/heard; echo \" ${{1##*/}}\" >> {at}/heard; exit $(cat {at}/answer)"));
        place.put("deployed/none", "");
        place.answer(0);
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn put(&self, name: &str, text: &str) {
        let tree = Tree::open(self.dir.path()).unwrap();
        tree.create_dir_all(Path::new(name).parent().unwrap(), Attributes::mode(0o700)).unwrap();
        tree.write(Path::new(name), text.as_bytes(), Attributes::mode(0o600)).unwrap();
    }

    fn answer(&self, status: u8) {
        self.put("answer", &status.to_string());
    }

    fn tool(&self) -> Tool {
        let mut machine = Machine::new().unwrap();
        machine.root = machine.root.full_after(self.space).unwrap();
        let command = vec!["/bin/sh".to_owned(), self.at("notify").display().to_string()];
        Tool {
            machine,
            deployed: self.at("deployed"),
            hooks: Some("/bin".to_owned()),
            notifier: Notifier { command, is_own: self.is_own },
            polled: self.polled,
            replaced: BTreeSet::new(),
            clock: self.clock.clone(),
            log: Log::new(),
        }
    }

    /// Runs the tool with a deployment whose hook answers with the deployment, that is, with this status.
    fn run(&self, status: i32) -> Result<()> {
        self.tool().work(&[json!({"id": "a", "group": "cat", "inputs": [], "deploy_status_code": status})])
    }

    fn heard(&self) -> Vec<String> {
        let text = Tree::open(self.dir.path()).unwrap().read(Path::new("heard"), READ_LIMIT).unwrap().unwrap_or_default();
        String::from_utf8(text).unwrap().lines().map(str::to_owned).collect()
    }

    fn stamp(&self, name: &str) -> (u64, i64, i64) {
        Tree::open(self.dir.path()).unwrap().facts(Path::new(name)).unwrap().unwrap().stamp
    }

    fn names(&self) -> Vec<String> {
        let names = Tree::open(self.dir.path()).unwrap().list(Path::new("deployed")).unwrap();
        names.into_iter().map(|name| name.into_string().unwrap()).filter(|name| name != "none").collect()
    }
}

/// Attack: Heat was away for as long as heat-config-notify tries, and no later run sent the result.
#[test]
fn a_result_that_heat_does_not_take_for_now_is_sent_by_the_next_run() {
    let place = ToolDirectory::new();
    place.answer(LATER);
    for _ in 0..2 {
        let error = place.run(3).unwrap_err();
        assert!(error.kind() == ErrorKind::Transient && error.to_string().contains("every result"), "{error}");
    }
    place.answer(0);
    for _ in 0..2 {
        assert_eq!(place.run(3), Ok(()));
    }
    let heard = place.heard();
    assert_eq!(heard.len(), 3, "{heard:?}");
    assert!(heard.iter().all(|line| line.contains("\"deploy_status_code\": 3") && line.ends_with(" a.json")), "{heard:?}");
    assert_eq!(place.names(), ["a.json", "a.notify.json"]);
}

#[test]
fn what_heat_refuses_and_what_another_notifier_does_with_a_result_is_its_last_word() {
    for (is_own, answer) in [(true, 1), (false, 1), (false, LATER)] {
        let place = ToolDirectory { is_own, ..ToolDirectory::new() };
        place.answer(answer);
        assert_eq!((place.run(3), place.run(3)), (Ok(()), Ok(())));
        assert_eq!((place.heard().len(), place.names().len()), (1, 2), "{is_own} {answer}");
    }
}

/// Attack: Keystone answered 401 once while it restarted, and no later run sent the result.
#[test]
fn a_refusal_that_keystones_trouble_looks_like_is_final_once_it_has_lasted() {
    let mut place = ToolDirectory::new();
    place.answer(DOUBTFUL);
    let at = |place: &mut ToolDirectory, second: i64| {
        (place.polled, place.clock) = (Polled::At(second), Clock::manual(Timestamp(u64::try_from(second).unwrap() * 1000)));
        place.run(3).is_err()
    };
    assert!(place.run(3).is_err());
    let first = Polled::seconds(place.clock.now());
    for (minutes, is_left) in [(14, true), (15, false), (16, false)] {
        assert_eq!(at(&mut place, first + minutes * 60), is_left, "{minutes}");
    }
    assert_eq!((place.heard().len(), place.names()), (3, vec!["a.json".to_owned(), "a.notify.json".to_owned()]));
    // Attack: Heat had been away for longer than that before, and the first refusal was the last one.
    let mut place = ToolDirectory::new();
    place.answer(LATER);
    assert!(place.run(3).is_err() && at(&mut place, first + 3600));
    place.answer(DOUBTFUL);
    assert!(at(&mut place, first + 7200) && place.names().contains(&"a.unsent".to_owned()));
    // Attack: Keystone went down first and came back last, and Heat was away in between.
    place.answer(LATER);
    assert!(at(&mut place, first + 7260));
    place.answer(DOUBTFUL);
    assert!(at(&mut place, first + 8200) && at(&mut place, first + 9200), "two are too few");
    assert!(!at(&mut place, first + 9300));
    assert_eq!(place.names(), ["a.json", "a.notify.json"]);
}

/// Attack: 55-heat-config was killed while a script ran, and Heat never heard of it.
#[test]
fn what_was_cut_off_is_told_as_interrupted_once_and_not_while_it_runs() {
    let place = ToolDirectory::new();
    let path = place.at("deployed/a.json");
    let running = Unsent::begin(&place.tool().machine.root, &path, b"{}").unwrap();
    assert!(running.is_some());
    assert_eq!((place.run(0).unwrap_err().kind(), place.heard().len()), (ErrorKind::Transient, 0), "another process runs it");
    let by_hand = ToolDirectory { polled: Polled::Unsaid, ..ToolDirectory::new() };
    let running_by_hand = Unsent::begin(&by_hand.tool().machine.root, &by_hand.at("deployed/a.json"), b"{}").unwrap();
    assert_eq!((by_hand.run(0), by_hand.heard().len()), (Ok(()), 0), "no later run could do more");
    drop(running_by_hand);
    drop(running);
    assert!(place.run(0).is_err());
    assert_eq!(place.heard().len(), 0, "it may have been cut off behind the poll");
    place.answer(LATER);
    assert!(place.run(0).is_err());
    place.answer(0);
    assert_eq!((place.run(0), place.run(0)), (Ok(()), Ok(())));
    let heard = place.heard();
    assert_eq!(heard.len(), 2, "{heard:?}");
    assert!(heard.iter().all(|line| line.contains("interrupted") && line.contains("\"deploy_status_code\": 1")), "{heard:?}");
    // What the replaced tools or heat-config-rebuild-deployed made says nothing of the kind.
    place.put("deployed/a.json", "");
    assert_eq!((place.run(0), place.heard().len()), (Ok(()), 2));
}

/// A mark without a record is of a deployment that was not begun: it runs, whatever an earlier run of it left.
#[test]
fn what_was_not_begun_runs() {
    let place = ToolDirectory::new();
    place.put("deployed/a.unsent", "{}");
    place.put("deployed/a.notify.json", "{\"deploy_status_code\": 9}");
    assert_eq!(place.run(5), Ok(()));
    assert!(place.heard().len() == 1 && place.heard()[0].contains("\"deploy_status_code\": 5"), "{:?}", place.heard());
}

/// Attack: on a full disk the result was not told, or the status was 0 although nothing had run.
#[test]
fn on_a_full_disk_heat_hears_what_ran_and_the_caller_what_did_not() {
    let mut ran = 0;
    // Up to the record, to its sync, to the result's file, and beyond it.
    for space in 0..12 {
        for answer in [0, LATER] {
            let place = ToolDirectory { space, ..ToolDirectory::new() };
            place.answer(answer);
            let first = place.run(3);
            if place.names().contains(&"a.json".to_owned()) {
                ran += 1;
                assert_eq!((first.is_ok(), place.heard().len()), (answer == 0, 1), "{space}");
            } else {
                assert_eq!(first.unwrap_err().kind(), ErrorKind::Transient, "{space}");
                assert_eq!(place.heard().len(), 0, "{space}");
            }
            place.answer(0);
            let later = ToolDirectory { space: u32::MAX, ..place };
            assert_eq!(later.run(3), Ok(()), "{space}");
            assert!(later.heard().iter().all(|line| line.contains("\"deploy_status_code\": 3")), "{space}: {:?}", later.heard());
            assert!(!later.names().contains(&"a.unsent".to_owned()), "{space}");
        }
    }
    assert!(ran > 8, "{ran}");
}

/// Attack: Heat had put another deployment in the place of this one while its result could not be told, and took that for the other's.
#[test]
fn what_was_not_told_at_once_is_told_only_where_heat_has_listed_it_since() {
    let now = Polled::seconds(Clock::system().now());
    let mut place = ToolDirectory::new();
    place.answer(LATER);
    assert!(place.run(3).is_err());
    place.answer(0);
    for polled in [Polled::Earlier, Polled::At(0), Polled::At(now - 1)] {
        place.polled = polled;
        assert_eq!(place.run(3).unwrap_err().kind(), ErrorKind::Transient, "{polled:?}");
    }
    place.polled = Polled::Unsaid;
    assert_eq!((place.run(3), place.heard().len()), (Ok(()), 1), "nobody ever says it: no later run is asked for");
    assert!(place.names().contains(&"a.unsent".to_owned()), "the agent's daemon, or os-collect-config by link, takes it");
    place.polled = Polled::At(now + 60);
    assert_eq!((place.run(3), place.heard().len()), (Ok(()), 2));
}

/// The first try is made at the end of the script whoever runs the tool, as by the original.
#[test]
fn the_first_try_asks_nobody() {
    for polled in [Polled::Unsaid, Polled::Earlier, Polled::At(0)] {
        for (answer, is_left) in [(0, false), (LATER, polled != Polled::Unsaid)] {
            let place = ToolDirectory { polled, ..ToolDirectory::new() };
            place.answer(answer);
            assert_eq!((place.run(3).is_err(), place.heard().len()), (is_left, 1), "{polled:?} {answer}");
        }
    }
}

/// Attack: one deployment's own place was gone, and no other result was ever told.
#[test]
fn what_cannot_be_told_keeps_no_other_waiting() {
    let place = ToolDirectory::new();
    let list: Vec<_> = ["a", "b", "c"].map(|id| json!({"id": id, "group": "cat", "inputs": [], "deploy_status_code": 0})).into();
    place.answer(LATER);
    assert!(place.tool().work(&list).is_err() && place.heard().len() == 3);
    let at = place.at("").display().to_string();
    place.put("notify", &format!("echo ${{1##*/}} >> {at}/heard; case $1 in */a.json) exit {LATER};; esac"));
    for told in [3, 1] {
        let before = place.heard().len();
        assert!(place.tool().work(&list).is_err());
        assert_eq!(place.heard().len() - before, told, "each once in a run, and what Heat has never again");
    }
}

/// Attack: a script of half an hour ran first, and Heat had moved on when the kept result was sent behind it.
#[test]
fn what_is_left_is_told_before_anything_runs_and_not_by_a_list_that_is_old() {
    let mut place = ToolDirectory::new();
    let one = |id: &str| json!({"id": id, "group": "cat", "inputs": [], "deploy_status_code": 0});
    place.answer(LATER);
    assert!(place.tool().work(&[one("b")]).is_err());
    place.answer(0);
    assert_eq!(place.tool().work(&[one("a"), one("b")]), Ok(()));
    let sent: Vec<_> = place.heard().iter().filter_map(|line| line.split_whitespace().last().map(str::to_owned)).collect();
    assert_eq!(sent, ["b.json", "b.json", "a.json"]);
    place.answer(LATER);
    assert!(place.tool().work(&[one("c")]).is_err());
    place.answer(0);
    let now = Polled::seconds(Clock::system().now());
    place.polled = Polled::At(now + 1);
    place.clock = Clock::manual(Timestamp(u64::try_from(now + 3600).unwrap() * 1000));
    assert_eq!(place.tool().work(&[one("c")]).unwrap_err().kind(), ErrorKind::Transient);
    assert_eq!(place.heard().len(), 4);
}

/// A clock that was set back must not keep a result for years.
#[test]
fn a_result_of_the_future_is_one_of_now() {
    let mut place = ToolDirectory::new();
    place.answer(LATER);
    assert!(place.run(3).is_err());
    place.answer(0);
    let before = place.stamp("deployed/a.notify.json");
    let clock = std::mem::replace(&mut place.clock, Clock::manual(Timestamp(5000)));
    assert!(place.run(3).is_err() && place.heard().len() == 1);
    assert_ne!(before, place.stamp("deployed/a.notify.json"), "it is written again");
    place.clock = clock;
    assert_eq!((place.run(3), place.heard().len()), (Ok(()), 2));
}

#[test]
fn what_was_deployed_elsewhere_is_moved_however_large_it_is() {
    let place = ToolDirectory::new();
    let (old, deployed) = (place.at("old"), place.at("var/lib/deployed"));
    place.put("old/a.json", "{}");
    place.put("old/a.notify.json", &"x".repeat(17 << 20));
    let machine = Machine::new().unwrap();
    prepare(&machine, &deployed, &old).unwrap();
    assert_eq!(machine.root.list(&deployed).unwrap(), ["a.json", "a.notify.json"]);
    assert_eq!(machine.root.facts(&deployed.join("a.notify.json")).unwrap().unwrap().size, 17 << 20);
    assert!(machine.kind(&old).is_none());
}

/// Attack: an answer that was refused had listed a newer run, and the kept result of the replaced one was sent.
#[test]
fn no_kept_result_of_what_heat_has_replaced_is_sent() {
    let place = ToolDirectory::new();
    place.answer(LATER);
    assert!(place.run(0).is_err() && place.heard().len() == 1);
    place.answer(0);
    let run = |replaced: &[&str]| {
        let mut tool = place.tool();
        tool.replaced = replaced.iter().map(|&id| id.to_owned()).collect();
        tool.work(&[json!({"id": "a", "group": "cat", "inputs": [], "deploy_status_code": 0})])
    };
    assert_eq!((run(&["a"]).unwrap_err().kind(), place.heard().len()), (ErrorKind::Transient, 1));
    assert_eq!((run(&["b"]), place.heard().len()), (Ok(()), 2));
}

/// Attack: the list of a source that failed was used again, although another answer had listed a newer run: the replaced one was run, and its result sent.
#[test]
fn what_heat_has_replaced_is_not_begun_and_what_has_been_is_left_alone() {
    let stage = ToolDirectory::new();
    let run = |replaced: &str| {
        let mut tool = stage.tool();
        tool.replaced = BTreeSet::from([replaced.to_owned()]);
        tool.work(&[json!({"id": "a", "group": "cat", "inputs": [], "deploy_status_code": 0})])
    };
    let error = run("a").unwrap_err();
    assert!(error.kind() == ErrorKind::Transient && !stage.at("deployed/a.json").exists(), "{error}");
    run("b").unwrap();
    assert!(stage.at("deployed/a.json").exists());
    run("a").unwrap();
}
