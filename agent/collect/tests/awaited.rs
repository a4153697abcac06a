//! What counts while nobody has answered for Heat: a source that is known and not asked yet, and files that cannot be read.

use super::*;
use crate::freshness::Freshness;

const OLD: &str = r#"{"deployments": [{"id": "old"}]}"#;

#[tokio::test]
async fn a_source_whose_first_poll_is_splayed_is_awaited() {
    for (case, in_conf, boot_copy) in [("agent.toml", false, true), ("the conf", true, true), ("no boot copy", true, false)] {
        let heat = Fake::start(vec![listing(&["new"])]).await;
        let mut machine = Machine::new();
        let mut conf = section(&heat.base, "s", "AK");
        if in_conf {
            conf.insert_str(0, "[DEFAULT]\nsplay = 3600\n");
        } else {
            machine.settings.splay = Duration::from_hours(1);
        }
        if boot_copy {
            machine.put(BOOT, OLD);
        }
        machine.put(CONF, &conf);
        let mut collector = machine.collector();
        collector.belong_to(&instance("i"), None);
        assert!(collector.changed().await.sources, "{case}");
        let snapshot = collector.snapshot();
        assert!(heat.requests().is_empty() && snapshot.lists("old") == boot_copy, "{case}");
        assert_eq!(snapshot.freshness(), Freshness::Awaited, "{case}");
        let state = &snapshot.sources["cfn"];
        assert!(
            state.next_try.is_some() && state.last_try.is_none() && state.place.contains("srv.Metadata"),
            "{case}: {state:?}"
        );
        while !collector.snapshot().lists("new") {
            collector.changed().await;
        }
        assert!(collector.snapshot().freshness().covers(Moment::EARLIER), "{case}");
        assert_eq!(heat.requests().len(), 1, "{case}");
        let codes = machine.codes();
        assert!(!codes.contains(&Code::NoSource), "{case}: {codes:?}");
        let place = |event: &&Event| event.code == Code::SourceInUse && event.message.contains("srv.Metadata");
        assert_eq!(machine.report.events().iter().filter(place).count(), 1, "{case}");
    }
}

#[tokio::test]
async fn a_file_that_may_name_a_source_and_cannot_be_read_does_not_mean_that_there_is_none() {
    let heat = Fake::start(vec![listing(&["new"])]).await;
    let large = "#".repeat(17 << 20);
    for (file, content) in [(CONF, None), (CONF, Some(large.as_str())), (BOOT, Some("{")), (BOOT, None)] {
        let machine = Machine::new();
        if file == CONF {
            machine.put(BOOT, OLD);
        }
        match content {
            Some(content) => machine.put(file, content),
            None => machine.root.create_dir_all(Path::new(file), Attributes::mode(0o755)).unwrap(),
        }
        let case = format!("{file} {:?}", content.map(str::len));
        let mut collector = machine.collector();
        for _ in 0..3 {
            collector.poll_once().await;
        }
        assert_eq!(collector.snapshot().freshness(), Freshness::Awaited, "{case}");
        let events = machine.report.events();
        let reported: Vec<_> =
            events.iter().filter(|event| event.cause.as_ref().is_some_and(|cause| cause.contains(file))).collect();
        assert!(!reported.is_empty() && reported.iter().all(|event| event.remedy.is_some()), "{case}: {reported:?}");
        // Once it can be read it says where, or that there is no source.
        if content.is_none() {
            machine.root.remove_dir_all(Path::new(file)).unwrap();
        }
        machine.put(file, if file == CONF { "" } else { OLD });
        collector.poll_once().await;
        assert_eq!(collector.snapshot().freshness(), Freshness::Unasked, "{case}");
        machine.put(CONF, &section(&heat.base, "s", "AK"));
        collector.poll_once().await;
        assert!(collector.snapshot().lists("new"), "{case}");
    }
    // Who uses no source over the network waits for none.
    let mut machine = Machine::new();
    machine.settings.sources.order = vec![SourceName::HeatLocal];
    machine.put(BOOT, OLD);
    machine.root.create_dir_all(Path::new(CONF), Attributes::mode(0o755)).unwrap();
    let mut collector = machine.collector();
    collector.poll_once().await;
    assert_eq!(collector.snapshot().freshness(), Freshness::Unasked);
}

#[tokio::test]
async fn a_source_that_is_named_without_its_settings_is_awaited_and_said() {
    let url = "http://127.0.0.1:1/v1/";
    let boot = |sources: Value| (Some(sources), String::new());
    let conf = |text: &str| (None, text.to_owned());
    for (case, source) in [
        (boot(json!({"collectors": ["cfn"]})), "cfn"),
        (boot(json!({"collectors": "cfn"})), "cfn"),
        (boot(json!({"collectors": ["request", "local"], "request": {}})), "request"),
        (boot(json!({"collectors": ["heat"], "heat": {"auth_url": null}})), "heat"),
        (boot(json!({"cfn": {"metadata_url": ""}})), "cfn"),
        (boot(json!({"cfn": "x"})), "cfn"),
        (boot(json!({"cfn": {"metadata_url": [url]}})), "cfn"),
        (boot(json!({"request": {"metadata_url": 5}})), "request"),
        (boot(json!({"heat": {"auth_url": url}})), "heat"),
        (conf("[DEFAULT]\ncollectors = cfn\n"), "cfn"),
        (conf("[DEFAULT]\ncollectors = heat\ncollectors = local\n"), "heat"),
        (conf("[DEFAULT]\ncollectors = request\n[request]\nmetadata_url =\n"), "request"),
        (conf(&format!("[cfn]\nmetadata_url = {url}\nstack_name = s\n")), "cfn"),
        (conf(&format!("[heat]\nauth_url = {url}\n")), "heat"),
    ] {
        let machine = Machine::new();
        machine.put(BOOT, &json!({"deployments": [{"id": "old"}], "os-collect-config": case.0}).to_string());
        machine.put(CONF, &case.1);
        let mut collector = machine.collector();
        collector.poll_once().await;
        assert_eq!(collector.snapshot().freshness(), Freshness::Awaited, "{case:?}");
        let state = &collector.snapshot().sources[source];
        let (cause, file) =
            (state.cause.clone().unwrap(), if case.0.is_some() { "cfn-init-data" } else { "os-collect-config.conf" });
        assert!(cause.contains(file) && cause.contains(&format!("the settings of {source} lack ")), "{case:?}: {cause}");
        assert!(state.remedy.is_some(), "{case:?}");
    }
}

#[tokio::test]
async fn a_node_that_has_only_the_boot_copy_is_not_made_to_wait() {
    let nothing = json!({"user_id": null, "auth_url": null});
    for (sources, conf) in [
        (json!({}), "[DEFAULT]\ncommand = os-refresh-config\n"),
        (json!({"collectors": ["ec2", "local"], "cfn": {"metadata_url": "http://127.0.0.1:1/v1/"}, "heat": nothing}), ""),
        (
            json!({"collectors": [], "request": {}, "heat": nothing, "cfn": null}),
            "[cfn]\nca_certificate = /ca.pem\n[heat]\nregion_name = R\n",
        ),
        // os-collect-config's default, written out.
        (json!({}), "[DEFAULT]\ncollectors = heat_local,ec2,cfn,heat,request,local,zaqar\n"),
    ] {
        let machine = Machine::new();
        machine.put(BOOT, &json!({"deployments": [{"id": "old"}], "os-collect-config": sources}).to_string());
        machine.put(CONF, conf);
        machine.put("/var/lib/heat-cfntools/cfn-metadata-server", "http://127.0.0.1:1");
        let mut collector = machine.collector();
        collector.poll_once().await;
        assert_eq!(collector.snapshot().freshness(), Freshness::Unasked, "{sources} {conf}");
        assert!(collector.snapshot().lists("old") && !machine.codes().contains(&Code::SourceFailed), "{sources} {conf}");
    }
}
