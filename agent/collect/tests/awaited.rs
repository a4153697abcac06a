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
        let place = |event: &&Event| event.code == Code::SourceLearnt && event.message.contains("srv.Metadata");
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
        let said: Vec<_> = events.iter().filter(|event| event.cause.as_ref().is_some_and(|cause| cause.contains(file))).collect();
        assert!(!said.is_empty() && said.iter().all(|event| event.remedy.is_some()), "{case}: {said:?}");
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
