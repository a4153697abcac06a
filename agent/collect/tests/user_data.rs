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

#[tokio::test]
async fn a_service_without_user_data_is_asked_once_and_one_that_is_not_named_or_not_needed_never() {
    let service = Fake::start(vec![status("404 Not Found", "")]).await;
    let mut machine = Machine::new();
    machine.collector().poll_once().await;
    assert!(service.requests().is_empty(), "whoever answers at that address could name another Heat: the image has to permit it");
    machine.settings.sources.metadata_service = Some(service.base.clone());
    let mut collector = machine.collector();
    collector.poll_once().await;
    collector.poll_once().await;
    assert_eq!(service.requests().len(), 1);
    assert!(machine.codes().contains(&Code::NoSource) && !machine.codes().contains(&Code::SourceFailed));

    let heat = Fake::start(vec![listing(&["a"])]).await;
    machine.put(BOOT, &boot(&heat.base));
    let mut collector = machine.collector();
    assert!(collector.poll_once().await.answered);
    assert_eq!(service.requests().len(), 1, "cloud-init's word is the first");
}
