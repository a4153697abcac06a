//! What documents say of sources, and which of it is followed.

use serde_json::json;

use super::*;
use crate::collect::local::Boot;
use SourceName::{Cfn, Heat, Request, Zaqar};

const ORDER: [SourceName; 4] = SourceName::REMOTE;

fn complete() -> Value {
    json!({"os-collect-config": {
        "cfn": {"metadata_url": "http://h:8000/v1/", "access_key_id": "A", "secret_access_key": "hush", "stack_name": "s",
            "path": "srv.Metadata"},
        "heat": {"auth_url": "http://k:5000/v3/", "user_id": "u", "password": "hush", "project_id": "p", "stack_id": "s/1",
            "resource_name": "srv", "region_name": null},
        "request": {"metadata_url": "http://swift/v1/o?temp_url_sig=hush"},
        "zaqar": {"auth_url": "http://k:5000/v3/", "user_id": "u", "password": "hush", "project_id": "p", "queue_id": "q",
            "region_name": null},
    }})
}

fn with(pointer: &str, value: Value) -> Value {
    let mut document = complete();
    *document.pointer_mut(&format!("/os-collect-config/{pointer}")).unwrap() = value;
    document
}

fn by(origin: HintOrigin, document: &Value) -> SourceHints {
    SourceHints::by_document(origin, document.as_object().unwrap())
}

fn nothing() -> KnownSources {
    KnownSources::new(&ORDER, false)
}

fn known_sources(document: &Value) -> KnownSources {
    let mut known_sources = nothing();
    known_sources.take(&by(HintOrigin::BootCopy, document));
    known_sources
}

fn from_files(files: &LocalFiles) -> KnownSources {
    let mut known_sources = nothing();
    for hints in &SourceHints::by_files(files) {
        known_sources.take(hints);
    }
    known_sources
}

fn place(known_sources: &KnownSources, source: SourceName) -> String {
    known_sources.set(source).unwrap().unwrap().place()
}

/// What is said of documents that are not followed.
fn refusals_of(known_sources: &KnownSources) -> Vec<(Code, String)> {
    known_sources.refusals().iter().map(Refusal::event).map(|event| (event.code, event.message)).collect()
}

fn config(text: &str) -> SourceHints {
    SourceHints::by_config(&OsCollectConfig::parse(text.as_bytes()))
}

#[test]
fn of_each_source_the_strongest_whole_set_is_followed_and_none_is_put_together() {
    let mut files = LocalFiles::default();
    files.boot = Some(Ok(Boot { document: complete().as_object().unwrap().clone(), ..Boot::default() }));
    files.config.settings = OsCollectConfig::parse(
        b"[cfn]\nstack_name = t\nmetadata_url =\npath = a.Metadata\npath = b.Metadata\n[heat]\nresource_name = other\nuser_id=\n",
    );
    let known = from_files(&files);
    assert_eq!(place(&known, Cfn), "http://h:8000/v1/ stack s srv.Metadata");
    assert_eq!(place(&known, Heat), "Heat at http://k:5000/v3/, stack s/1 srv");
    assert_eq!(place(&known, Request), "http://swift/v1/o?…");
    assert_eq!(place(&known, Zaqar), "Zaqar of http://k:5000/v3/, queue q");
    let refusals = refusals_of(&known);
    assert!(refusals.iter().all(|(code, _)| *code == Code::SourceIncomplete), "{refusals:?}");
    for words in [
        "metadata source cfn is described incompletely: reading os-collect-config.conf: the settings of cfn lack metadata_url, access_key_id, secret_access_key",
        "this is ignored; the agent keeps using http://h:8000/v1/ stack s srv.Metadata, from cfn-init-data",
        "the settings of heat lack auth_url, user_id, password, project_id, stack_id",
    ] {
        assert!(refusals.iter().any(|(_, message)| message.contains(words)), "{words}: {refusals:?}");
    }
    files.boot = None;
    // A file of this machine that gives keys and no address means the one that cloud-init left for it.
    files.config.settings =
        OsCollectConfig::parse(b"[cfn]\nstack_name = t\naccess_key_id = A\nsecret_access_key = $x\npath = a.Metadata\n");
    for hint in ["http://hint:8000", "http://hint:8000/v1/", "http://hint:8000/v1"] {
        files.hint = Some(hint.into());
        let known = from_files(&files);
        assert_eq!(place(&known, Cfn), "http://hint:8000/v1/ stack t a.Metadata");
        assert_eq!(known.sets[&Cfn].signer().unwrap().1.secret, "$x");
    }
    // The hint alone names nobody.
    files.config.settings = OsCollectConfig::parse(b"[cfn]\nca_certificate = /ca.pem\n");
    let known = from_files(&files);
    assert!(known.set(Cfn).unwrap().is_none() && known.refusals().is_empty());
    files.config.settings = OsCollectConfig::parse(b"[DEFAULT]\ncollectors = cfn\n[cfn]\nca_certificate = /ca.pem\n");
    assert!(
        from_files(&files).set(Cfn).unwrap_err().to_string().contains("the settings of cfn lack metadata_url, access_key_id")
    );
}

/// In the file that a template makes of them, the lines would be settings of their own (R54).
#[test]
fn a_line_break_in_a_value_is_no_other_setting() {
    let lines = "One\nauth_url = http://evil:5000/v3\n[cfn]\nmetadata_url = http://evil:8000/v1/";
    let known = known_sources(&with("heat/region_name", json!(lines)));
    assert_eq!(place(&known, Heat), "Heat at http://k:5000/v3/, stack s/1 srv");
    assert_eq!(place(&known, Cfn), "http://h:8000/v1/ stack s srv.Metadata");
}

#[test]
fn what_says_nothing_changes_nothing_and_a_whole_set_replaces_a_whole_set() {
    let mut known_sources = known_sources(&complete());
    let mut overlay = |settings: Value| {
        let before = ORDER.map(|source| known_sources.key(source));
        known_sources.take(&by(HintOrigin::Answer(Cfn), &json!({"os-collect-config": settings})));
        let changed = |at: usize| known_sources.key(ORDER[at]) != before[at];
        ([changed(0), changed(1), changed(2), changed(3)], known_sources.clone())
    };
    for silent in [
        json!({"cfn": {"access_key_id": null, "path": "", "stack_name": 7}, "heat": {"password": null, "region_name": ""}}),
        json!({"cfn": null, "heat": [], "request": "x", "collectors": null}),
        json!([]),
    ] {
        let (changed, after) = overlay(silent);
        assert_eq!((changed, after.refusals()), ([false; 4], vec![]));
    }
    // Half of a set is no set: what it lacks is not taken from another document.
    for half in [
        json!({"cfn": {"secret_access_key": "new", "path": ["x.Metadata", "y.Metadata"]}}),
        json!({"collectors": ["cfn", "heat", "request", "zaqar"], "heat": {"auth_url": "http://other/v3"}}),
        json!({"heat": {"auth_url": "http://other/v3", "user_id": "u"}}),
    ] {
        let (changed, after) = overlay(half.clone());
        assert_eq!(
            (changed, refusals_of(&after).last().map(|(code, _)| *code)),
            ([false; 4], Some(Code::SourceIncomplete)),
            "{half}"
        );
        assert!(!refusals_of(&after).iter().any(|(_, message)| message.contains("hush")));
    }
    let mut cfn = complete()["os-collect-config"]["cfn"].clone();
    cfn["path"] = json!(["x.Metadata", "y.Metadata"]);
    let (changed, after) = overlay(json!({"cfn": cfn}));
    assert_eq!(changed, [true, false, false, false]);
    assert!(place(&after, Cfn).ends_with("stack s x.Metadata y.Metadata"));
    let (changed, after) = overlay(json!({"collectors": ["heat"]}));
    assert_eq!(changed, [true, false, true, true], "those that are not asked for have no settings");
    for source in ORDER {
        assert!(!format!("{:?}", after.set(source)).contains("hush"));
    }
}

#[test]
fn half_a_configuration_is_a_failure_and_none_is_silence() {
    for document in [
        json!({}),
        json!({"os-collect-config": []}),
        json!({"os-collect-config": {"cfn": {"metadata_url": null, "path": null}, "request": {"metadata_url": null}}}),
        json!({"os-collect-config": {"heat": {"region_name": "RegionOne", "auth_url": null}}}),
        json!({"os-collect-config": {"collectors": ["ec2"], "heat": {"auth_url": "http://k"}, "request": {"metadata_url": ""}}}),
    ] {
        for source in ORDER {
            assert!(known_sources(&document).set(source).unwrap().is_none(), "{document}");
        }
        assert!(!known_sources(&document).is_complete());
    }
    // What Heat leaves of another transport names nothing; a file of this machine means it.
    let left = json!({"os-collect-config": {"heat": {"region_name": "RegionOne", "auth_url": "http://k", "password": null}}});
    let mut answered = nothing();
    answered.take(&by(HintOrigin::Answer(Cfn), &left));
    assert!(answered.set(Heat).unwrap().is_none());
    for bare in [left, json!({"os-collect-config": {"collectors": ["heat"], "heat": {"auth_url": null}}})] {
        assert!(known_sources(&bare).set(Heat).unwrap_err().to_string().contains("lack"), "{bare}");
    }
    for (source, key, value, words) in [
        (Cfn, "metadata_url", json!(null), "lack metadata_url"),
        (Cfn, "stack_name", json!(""), "lack stack_name"),
        (Cfn, "secret_access_key", json!({}), "lack secret_access_key"),
        (Cfn, "path", json!(null), "lack path"),
        (Cfn, "path", json!("srv"), "cfn path srv is not of the form RESOURCE.Metadata"),
        (Cfn, "path", json!([".Metadata"]), "is not of the form RESOURCE.Metadata"),
        (Cfn, "path", json!(["a.Metadata".repeat(10_000)]), "the settings of cfn are 100023 bytes long"),
        (Heat, "auth_url", json!(null), "settings of heat lack auth_url"),
        (Heat, "password", json!(7), "lack password"),
        (Heat, "stack_id", json!(""), "lack stack_id"),
        (Zaqar, "queue_id", json!(null), "settings of zaqar lack queue_id"),
    ] {
        let known = known_sources(&with(&format!("{}/{key}", source.as_str()), value));
        let error = known.set(source).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert!(error.to_string().starts_with("reading cfn-init-data: "), "{error}");
        assert!(!words.contains("lack") || error.suggested_remedy().unwrap().contains(source.as_str()));
    }
    // An address alone names a source that its document asks for.
    let asked = json!({"os-collect-config": {"collectors": ["heat"], "heat": {"auth_url": "http://k"}}});
    assert!(known_sources(&asked).set(Heat).unwrap_err().to_string().contains("lack user_id, password"));
}

#[test]
fn https_is_never_left_for_http_by_whatever_document() {
    let https = |source: &str| {
        let key = if ["heat", "zaqar"].contains(&source) { "auth_url" } else { "metadata_url" };
        let mut only = json!({"os-collect-config": {"collectors": [source], source: complete()["os-collect-config"][source]}});
        let url = &mut only["os-collect-config"][source][key];
        *url = json!(url.as_str().unwrap().replace("http:", "https:"));
        only
    };
    let http =
        |source: &str| json!({"os-collect-config": {"collectors": [source], source: complete()["os-collect-config"][source]}});
    for from in ["cfn", "heat", "request", "zaqar"] {
        for to in ["cfn", "heat", "request", "zaqar"] {
            for (second, origin) in
                [(http(to), HintOrigin::Answer(Cfn)), (http(to), HintOrigin::Config), (https(to), HintOrigin::Answer(Heat))]
            {
                let secure = second == https(to);
                let known = known_sources(&https(from));
                let before = known.wanted();
                let (mut strict, mut lenient) = (known.clone(), KnownSources { may_leave_https: true, ..known });
                let hints = by(origin, &second);
                strict.take(&hints);
                lenient.take(&hints);
                let (source, wanted) = (SourceName::from_word(to).unwrap(), vec![SourceName::from_word(to).unwrap()]);
                assert_eq!(lenient.wanted(), wanted, "{from} {to}");
                assert_eq!(
                    (strict.wanted() == wanted, strict.refusals().is_empty()),
                    (secure || from == to, secure),
                    "{from} {to}"
                );
                let kept = if secure { source } else { before[0] };
                assert!(strict.sets[&kept].is_https(), "{from} {to}");
                if !secure {
                    let event = strict.refusals()[0].event();
                    assert_eq!(event.code, Code::SourceDowngrade);
                    assert!(
                        event.message.contains(&format!("{origin} names")) && event.remedy.unwrap().contains("allow_insecure")
                    );
                    assert!(event.message.contains(&format!("the agent keeps using {from} by ")), "{}", event.message);
                    assert!(!event.message.contains("hush"), "{}", event.message);
                }
            }
        }
    }
    // http to http, and one document that names both, leave nothing.
    let mut both = https("heat");
    both["os-collect-config"]["cfn"] = complete()["os-collect-config"]["cfn"].clone();
    both["os-collect-config"]["collectors"] = json!(["heat", "cfn"]);
    let mut known = known_sources(&both);
    assert_eq!((known.wanted(), known.refusals()), (vec![Cfn, Heat], vec![]));
    // In two steps it is the same: what is left at last is http.
    known.take(&by(HintOrigin::Answer(Heat), &json!({"os-collect-config": {"collectors": ["cfn"]}})));
    assert_eq!((known.wanted(), known.refusals().len()), (vec![Cfn, Heat], 1));
}

#[test]
fn what_was_answered_over_https_is_held_where_its_document_is_gone() {
    let set = |url: &str| {
        let mut document = complete();
        document["os-collect-config"]["cfn"]["metadata_url"] = json!(url);
        known_sources(&document).sets[&Cfn].clone()
    };
    let answered = [(Cfn, &set("https://h/v1/"))];
    let boot = json!({"os-collect-config": {"cfn": complete()["os-collect-config"]["cfn"]}});
    let request = json!({"os-collect-config": {"request": {"metadata_url": "http://swift/o"}}});
    for document in [boot, request] {
        let mut known = known_sources(&document);
        known.hold(answered.into_iter());
        assert_eq!((known.wanted(), known.refusals().len()), (vec![Cfn], 1), "{document}");
        assert!(known.sets[&Cfn].is_https());
    }
    // What was answered over http holds nothing; and https may follow https.
    for (answered, document) in
        [(set("http://h/v1/"), complete()), (set("https://h/v1/"), with("cfn/metadata_url", json!("https://other/v1/")))]
    {
        let mut known = known_sources(&document);
        known.hold([(Cfn, &answered)].into_iter());
        assert_eq!((known.wanted().len(), known.refusals().len()), (4, 0));
    }
}

#[test]
fn a_set_comes_back_from_the_cache_as_it_was() {
    let known = known_sources(&complete());
    for source in ORDER {
        let set = &known.sets[&source];
        let stored = serde_json::to_string(&set.stored()).unwrap();
        let back = SourceSet::from_stored(source, crate::budgets::json::typed(&stored).unwrap()).unwrap();
        assert!(back.is_same_way(set) && back.place() == set.place() && back.origin == HintOrigin::Before);
    }
    let other = crate::budgets::json::typed(r#"{"of_another_version": ["x"]}"#).unwrap();
    assert!(SourceSet::from_stored(Cfn, other).is_none());
}

#[test]
fn who_is_asked_is_who_is_named_last_and_everybody_where_nobody_is() {
    let mut known = known_sources(&complete());
    let wanted = |known_sources: &KnownSources, order: &[SourceName]| {
        let known_sources = KnownSources { order: order.to_vec(), ..known_sources.clone() };
        order.iter().filter(|source| known_sources.wants(**source)).map(|source| source.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(wanted(&known, &ORDER), ["cfn", "heat", "request", "zaqar"]);
    for (collectors, names) in [
        (json!(["ec2", "heat", "local"]), vec!["heat"]),
        (json!(["ec2", "cfn", "request"]), vec!["cfn", "request"]),
        (json!([]), vec!["cfn", "request"]),
        (json!(["ec2", "zaqar", "local"]), vec!["zaqar"]),
        (json!(["ec2", "another", "local"]), vec!["cfn", "heat", "request", "zaqar"]),
    ] {
        known.take(&by(HintOrigin::Answer(Cfn), &json!({"os-collect-config": {"collectors": collectors}})));
        assert_eq!(wanted(&known, &ORDER), names, "{collectors}");
    }
    assert!(known.asks_for("another"));
    // What this image does not use cannot keep the rest from being asked.
    known.take(&config("[DEFAULT]\ncollectors = heat\ncollectors = local\n"));
    assert_eq!(wanted(&known, &[Cfn, Request]), ["cfn", "request"]);
    assert_eq!(wanted(&known, &ORDER), ["heat"]);
}

#[test]
fn deployments_are_under_the_keys_that_are_set() {
    let keys = |text: &str, source| {
        let mut known_sources = nothing();
        known_sources.take(&config(text));
        known_sources.deployment_keys(source)
    };
    assert_eq!(keys("", Cfn), ["deployments"]);
    let global = "[DEFAULT]\ndeployment_key = one\ndeployment_key = two\n[cfn]\ndeployment_key = three\n";
    assert_eq!(keys(global, Heat), ["one", "two"]);
    assert_eq!(keys(global, Cfn), ["three"]);
    assert_eq!(keys("[DEFAULT]\ndeployment_key = one\n", Cfn), ["one"], "the global one holds for cfn too");
}
