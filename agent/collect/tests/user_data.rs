use super::*;

/// User data as Heat makes it, with the first metadata in it.
fn user_data(metadata: &str) -> Act {
    let part =
        format!("Content-Type: text/x-cfninitdata\nContent-Disposition: attachment; filename=\"cfn-init-data\"\n\n{metadata}");
    ok(format!("Content-Type: multipart/mixed; boundary=\"=b\"\n\n--=b\n{part}\n--=b--\n"))
}

#[tokio::test]
async fn without_cloud_init_a_server_finds_heat_by_the_metadata_service() {
    let heat = Fake::start(vec![listing(&["a"])]).await;
    let service = Fake::start(vec![status("503 Unavailable", ""), user_data(&boot(&heat.base))]).await;
    let mut machine = Machine::new();
    machine.settings.sources.metadata_service = Some(service.base.clone());
    let mut collector = machine.collector();
    collector.poll_once().await;
    let failed: Vec<_> = machine.report.events().into_iter().filter(|event| event.code == Code::SourceFailed).collect();
    assert!(failed.len() == 1 && failed[0].cause.as_ref().unwrap().contains("it answered 503"), "{failed:?}");
    assert!(collector.snapshot().authority.is_none());

    assert!(collector.poll_once().await.answered);
    assert!(collector.snapshot().lists("a"));
    assert!(service.requests().iter().all(|request| request.starts_with("GET /latest/user-data HTTP")));
    machine.clock.advance(Duration::from_mins(1));
    collector.poll_once().await;
    assert_eq!(service.requests().len(), 2, "user data never changes");
}

#[tokio::test(start_paused = true)]
async fn the_daemon_asks_until_the_service_answers_and_nothing_else_waits_for_it() {
    let heat = Fake::start(vec![listing(&["a"])]).await;
    let service = Fake::start(vec![status("503 Unavailable", ""), user_data(&boot(&heat.base))]).await;
    let mut machine = Machine::new();
    machine.settings.sources.metadata_service = Some(service.base.clone());
    let mut collector = machine.collector();
    for _ in 0..100 {
        let change = collector.changed().await;
        if change.answered {
            break;
        }
    }
    assert!(collector.snapshot().lists("a"));
    assert_eq!(service.requests().len(), 2);
}

/// Attack: one 404, which a proxy gives while it does not know the server's port, was final.
#[tokio::test]
async fn a_service_without_user_data_is_asked_again_until_a_source_has_answered() {
    let heat = Fake::start(vec![listing(&["a"]), listing(&["a"]), listing(&["a"])]).await;
    let without = vec![status("404 Not Found", ""), ok("#!/bin/sh\n"), ok(""), user_data(&boot(&heat.base))];
    let service = Fake::start(without).await;
    let mut machine = Machine::new();
    machine.settings.sources.metadata_service = Some(service.base.clone());
    let mut collector = machine.collector();
    for asked in 1..=3 {
        collector.poll_once().await;
        assert_eq!(service.requests().len(), asked);
    }
    let failed = || machine.codes().iter().filter(|code| **code == Code::SourceFailed).count();
    assert!(machine.codes().contains(&Code::NoSource) && failed() == 1, "said once: {:?}", machine.codes());
    assert!(collector.poll_once().await.answered);
    collector.poll_once().await;
    assert_eq!((service.requests().len(), failed()), (4, 1));

    // Where the server is led to Heat otherwise, the service may be without for ever.
    let mut machine = Machine::new();
    machine.settings.sources.metadata_service = Some(service.base.clone());
    machine.put(CONF, &section(&heat.base, "s", "AK"));
    service.play(vec![status("404 Not Found", "")]);
    let mut collector = machine.collector();
    assert!(collector.poll_once().await.answered);
    collector.poll_once().await;
    assert_eq!(service.requests().len(), 5);
}

#[tokio::test]
async fn a_service_that_is_not_named_or_not_needed_is_never_asked() {
    let service = Fake::start(vec![]).await;
    let mut machine = Machine::new();
    machine.collector().poll_once().await;
    assert!(service.requests().is_empty(), "whoever answers at that address could name another Heat: the image has to permit it");
    machine.settings.sources.metadata_service = Some(service.base.clone());
    let heat = Fake::start(vec![listing(&["a"])]).await;
    machine.put(BOOT, &boot(&heat.base));
    let mut collector = machine.collector();
    assert!(collector.poll_once().await.answered);
    assert!(service.requests().is_empty(), "cloud-init's word is the first");
}
