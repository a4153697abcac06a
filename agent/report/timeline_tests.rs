//! Laps drawn: golden texts, and what must hold of any step_timings.

use proptest::prelude::*;

use super::*;
use ConditionState::{Failed, Ok as Done, Waiting};

fn timing(step: &str, began_ms: u64, ended_ms: u64, after: &[&str]) -> StepTiming {
    let after = after.iter().map(|need| (*need).to_owned()).collect();
    StepTiming { step: step.into(), began_ms, took_ms: ended_ms - began_ms, after, state: Done }
}

/// A master: etcd is what everything waits for.
fn master() -> Vec<StepTiming> {
    vec![
        timing("checks", 0, 2, &[]),
        timing("plan", 2, 40, &["checks"]),
        timing("files", 40, 100, &["plan"]),
        timing("volume etcd", 100, 4100, &["files"]),
        timing("certificates", 100, 1400, &["files"]),
        timing("unit docker.service", 100, 2100, &["files"]),
        timing("unit etcd.service", 4120, 5000, &["certificates", "volume etcd"]),
        timing("gate etcd", 5000, 7000, &["unit etcd.service"]),
        timing("gate docker", 2100, 2100, &["unit docker.service"]),
    ]
}

fn path_of(step_timings: &[StepTiming]) -> Vec<&str> {
    critical_path(step_timings).into_iter().map(|at| step_timings[at].step.as_str()).collect()
}

#[test]
fn the_critical_path_leads_from_the_last_end_back_through_the_need_that_ended_last() {
    let mut failed = master();
    // What fails is what counts, not what ended a moment later.
    (failed[6].state, failed[7].state) = (Failed, Waiting);
    failed.truncate(8);
    for (case, step_timings, path) in [
        ("nothing ran", vec![], vec![]),
        ("a step without needs", vec![timing("a", 0, 5, &[])], vec!["a"]),
        ("a master", master(), vec!["checks", "plan", "files", "volume etcd", "unit etcd.service", "gate etcd"]),
        ("it failed", failed, vec!["checks", "plan", "files", "volume etcd", "unit etcd.service"]),
        (
            "needs that ended at the same moment: the one that is listed last released it",
            vec![timing("a", 0, 5, &[]), timing("b", 0, 5, &[]), timing("c", 5, 9, &["b", "a"])],
            vec!["a", "c"],
        ),
        (
            "steps that took no time",
            vec![timing("a", 0, 0, &[]), timing("b", 0, 0, &["a"]), timing("c", 0, 0, &["b"])],
            vec!["a", "b", "c"],
        ),
        ("a need that nobody recorded", vec![timing("a", 0, 3, &[]), timing("b", 3, 4, &["a", "?"])], vec!["a", "b"]),
        ("a circle, from a damaged record", vec![timing("a", 0, 3, &["b"]), timing("b", 3, 4, &["a"])], vec!["a", "b"]),
    ] {
        assert_eq!(path_of(&step_timings), path, "{case}");
    }
}

/// It counts up to where the next one began: a gate that answers releases who needs it before it has passed.
#[test]
fn a_step_that_released_the_next_before_its_end_is_not_counted_twice() {
    let step_timings = [timing("gate etcd", 0, 50, &[]), timing("unit api", 20, 90, &["gate etcd"])];
    assert_eq!(sums(&step_timings, &critical_path(&step_timings)), (90, 90));
}

#[test]
fn the_page_has_a_row_a_step_and_marks_the_critical_path() {
    let page = page("generation 1 applied", &master(), 100);
    assert_eq!(
        page,
        "\
generation 1 applied
                      0           2s          4s          6s
# checks              #                                               2ms
# plan                #                                              38ms  after checks
# files               #                                              60ms  after plan
# volume etcd         #########################                      4.0s  after files
  certificates        ========                                       1.3s  after files
  unit docker.service ============                                   2.0s  after files
# unit etcd.service                            #####                880ms  after volume etcd
# gate etcd                                         #############    2.0s  after unit etcd.service
  gate docker                     |                                   0ms  after unit docker.service
total 7.0s, critical path (#) 6.9s:
  checks 2ms > plan 38ms > files 60ms > volume etcd 4.0s > unit etcd.service 880ms > gate etcd 2.0s
"
    );
}

#[test]
fn a_failed_run_and_a_narrow_terminal() {
    let mut step_timings = master();
    step_timings.truncate(7);
    (step_timings[4].state, step_timings[6].state) = (Waiting, Failed);
    let text = page("generation 1 rejected", &step_timings, 50);
    assert_eq!(
        text,
        "\
generation 1 rejected
                  0 1s 2s 3s 4s 5s
# checks          #                  2ms
# plan            #                 38ms
# files           #                 60ms
# volume etcd     ###########       4.0s
  certificates    ===               1.3s  not done
  unit docker.se… =====             2.0s
# unit etcd.serv…            ###   880ms  FAILED
total 5.0s, critical path (#) 4.9s:
  checks 2ms > plan 38ms > files 60ms
    > volume etcd 4.0s > unit etcd.service 880ms
"
    );
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    let long = "unit a-very-long-name-that-somebody-gave-to-a-component-of-theirs.service";
    let mut step_timings = master();
    step_timings.push(timing(long, 7000, 8000, &["gate etcd"]));
    step_timings.push(timing("gate x\x1b[2J", 8000, 8100, &[long]));
    for width in [0, 40, 69, 70, 100, 101, 250] {
        let page = page("t", &step_timings, width);
        for line in page.lines() {
            assert!(line.chars().count() <= width.max(40), "{width}: {line}");
        }
        assert!(!page.contains('\x1b'), "{page}");
    }
}

#[test]
fn the_picture_is_well_formed_and_marks_the_critical_path_by_more_than_its_colour() {
    let mut step_timings = master();
    step_timings[8].step = "gate <&\"\u{1}\u{ffff}]]>".into();
    let picture = svg("generation 1 \"applied\" & <ok>", &step_timings);
    let texts = read_xml(&picture);
    for text in ["generation 1 \"applied\" & <ok>", "gate <&\"\\u{1}\u{fffd}]]>", "7.0s"] {
        assert!(texts.iter().any(|one| one.contains(text)), "{text} in {texts:?}");
    }
    let titles = picture.matches("<title>").count();
    assert_eq!(titles, 1 + step_timings.len());
    assert_eq!(picture.matches("height=\"14\"").count(), 6, "thick bars");
    assert_eq!(picture.matches("class=\"h\"").count(), 5, "joined");
    assert_eq!(picture.matches("; on the critical path</title>").count(), 6);
    assert!(texts.iter().any(|one| one
        == "unit etcd.service: began after 4.1s, took 880ms; waited for certificates, volume etcd; on the critical path"));
    for active in ["<script", "href", "url(", "@import", "javascript", " on"] {
        assert!(!picture.replace("; on the", "").contains(active), "{active}");
    }
}

/// The texts of a document; panics where it is not well-formed: tags that match, attributes in quotes and once each, no bare
/// `&` or `<`, no character that XML has not.
fn read_xml(document: &str) -> Vec<String> {
    let plain = |text: &str| {
        for piece in text.split('&').skip(1) {
            assert!(["amp;", "lt;", "gt;", "quot;"].iter().any(|entity| piece.starts_with(entity)), "&{piece}");
        }
        assert!(!text.contains("]]>") && !text.contains(['<', '\u{fffe}', '\u{ffff}']), "{text}");
        assert!(text.chars().all(|c| !c.is_control() || c == '\n'), "{text:?}");
        text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
    };
    let (mut open, mut texts, mut rest) = (Vec::new(), Vec::new(), document);
    while let Some((text, tag)) = rest.split_once('<') {
        texts.push(plain(text));
        let (tag, after) = tag.split_once('>').unwrap();
        rest = after;
        assert!(!open.is_empty() || texts.len() == 1, "one root");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
            continue;
        }
        let (tag, empty) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let (name, mut attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        let mut seen = Vec::new();
        while !attributes.is_empty() {
            let (key, value) = attributes.split_once("=\"").unwrap();
            let (value, more) = value.split_once('"').unwrap();
            assert!(!seen.contains(&key) && key.chars().all(char::is_alphanumeric), "{tag}");
            seen.push(key);
            plain(value);
            attributes = more.trim_start();
        }
        if !empty {
            open.push(name);
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest}");
    texts
}

/// Laps as a run records them: each begins a little after the last of what it needs ended.
fn run() -> impl Strategy<Value = Vec<StepTiming>> {
    let step = (0..5_u64, 0..50_u64, proptest::collection::vec(any::<proptest::sample::Index>(), 0..4));
    proptest::collection::vec(step, 1..20).prop_map(|steps| {
        let mut step_timings: Vec<StepTiming> = Vec::new();
        for (number, (pause, took, needs)) in steps.into_iter().enumerate() {
            let mut needs: Vec<&StepTiming> =
                needs.iter().filter(|_| number > 0).map(|need| &step_timings[need.index(number.max(1))]).collect();
            needs.sort_by_key(|need| need.ended_ms());
            let began = needs.last().map_or(0, |need| need.ended_ms() + pause);
            let after: Vec<&str> = needs.iter().map(|need| need.step.as_str()).collect();
            let next = timing(&format!("s{number}"), began, began + took, &after);
            step_timings.push(next);
        }
        step_timings
    })
}

proptest! {
    #[test]
    fn each_lap_of_the_critical_path_begins_when_the_one_before_it_has_ended(step_timings in run()) {
        let path = critical_path(&step_timings);
        for pair in path.windows(2) {
            prop_assert!(step_timings[pair[1]].began_ms >= step_timings[pair[0]].ended_ms());
            // No need of it ended later.
            let latest = step_timings[pair[1]].after.iter().map(|need| step_timings.iter().find(|timing| timing.step == *need).unwrap().ended_ms()).max();
            prop_assert_eq!(Some(step_timings[pair[0]].ended_ms()), latest);
        }
        let (total, sum) = sums(&step_timings, &path);
        prop_assert!(step_timings[path[0]].after.is_empty() && step_timings[*path.last().unwrap()].ended_ms() == total && sum <= total);
    }

    /// A record may be damaged, or of a later version.
    #[test]
    fn any_laps_can_be_drawn(
        step_timings in proptest::collection::vec((".*", any::<u64>(), any::<u64>(), proptest::collection::vec("[a-c]", 0..3)), 0..6),
        width: usize,
    ) {
        let step_timings: Vec<StepTiming> = step_timings
            .into_iter()
            .map(|(step, began_ms, took_ms, after)| StepTiming { step, began_ms, took_ms, after, state: ConditionState::default() })
            .collect();
        read_xml(&svg("t", &step_timings));
        let _ = page("t", &step_timings, width);
    }
}
