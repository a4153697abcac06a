//! Every answer of a cluster against what may be done then; and whatever happens, at most one removal for one loss of data.

use std::time::Duration;

use proptest::prelude::*;

use super::decision::*;
use crate::converge::MemberSituation;
use crate::converge::etcd::ListedMember;
use crate::desired::EtcdJoin;
use crate::error::ErrorKind;
use crate::error::Result;

const TOKEN: &str = "c0ffee00";

fn url(number: u64) -> String {
    format!("http://192.0.2.1{number}:2380")
}

fn join_of(count: u64) -> EtcdJoin {
    let members = (1..=count).map(|number| (format!("m{number}"), url(number))).collect();
    EtcdJoin { token: TOKEN.into(), ..EtcdJoin::first_of(members) }
}

/// A member that has run, of the first cluster.
fn member(number: u64, health: MemberHealth) -> SeenMember {
    let listed = ListedMember {
        id: first_id(&[url(number)], TOKEN),
        name: format!("m{number}"),
        peers: vec![url(number)],
        clients: vec![format!("http://192.0.2.1{number}:2379")],
        votes: true,
    };
    seen(listed, health)
}

fn seen(listed: ListedMember, health: MemberHealth) -> SeenMember {
    let healthy_at = listed.clients.first().filter(|_| health == MemberHealth::Healthy).cloned();
    SeenMember { listed, health, healthy_at }
}

fn three(own: SeenMember, second: MemberHealth, third: MemberHealth) -> Vec<SeenMember> {
    vec![own, member(2, second), member(3, third)]
}

fn learner(mut member: SeenMember) -> SeenMember {
    member.listed.votes = false;
    member
}

fn dead() -> SeenMember {
    member(1, MemberHealth::Silent)
}

/// One that has not published yet where it serves clients: nobody did before the cluster had its first leader.
fn formed(number: u64, health: MemberHealth) -> SeenMember {
    let mut member = member(number, health);
    member.listed.clients.clear();
    member
}

fn with(change: impl FnOnce(&mut ListedMember)) -> SeenMember {
    let mut own = dead();
    change(&mut own.listed);
    own
}

/// The same list by each of those that answer at all.
fn views(join: &EtcdJoin, members: &[SeenMember]) -> Vec<ClusterView> {
    let answering = members.iter().filter(|member| member.health != MemberHealth::Silent);
    let cluster = first_cluster(&join.members, TOKEN);
    answering.map(|member| ClusterView { peer: member.listed.peers[0].clone(), cluster, members: members.to_vec() }).collect()
}

fn facts<'a>(join: &'a EtcdJoin, members: &[SeenMember]) -> MemberFacts<'a> {
    MemberFacts {
        join,
        situation: &DEPLOYMENT,
        data: MemberData::Blank,
        views: views(join, members),
        unasked: Vec::new(),
        has_begun: false,
    }
}

/// A run for a deployment, which has looked for the first time.
const DEPLOYMENT: MemberSituation =
    MemberSituation { unheard: Duration::ZERO, unmounted: None, is_running: false, is_up: false, may_change: true };
/// The same, and nobody was there for long.
const UNHEARD: MemberSituation = MemberSituation { unheard: Duration::from_secs(30), ..DEPLOYMENT };
/// A repair.
const REPAIR: MemberSituation = MemberSituation { may_change: false, ..DEPLOYMENT };

/// What comes next in short, or the kind of the error and its words.
fn short(decided: &Result<NextStep>) -> String {
    match decided {
        Ok(NextStep::Start) => "start".into(),
        Ok(NextStep::Unheard) => "unheard".into(),
        Ok(NextStep::Join(places)) => {
            let places: Vec<String> = places.iter().map(|(name, url)| format!("{name}={url}")).collect();
            format!("join {}", places.join(","))
        }
        Ok(NextStep::Remove(id)) => format!("remove {id:x}"),
        Ok(NextStep::Add) => "add".into(),
        Ok(NextStep::AddLearner) => "add a learner".into(),
        Ok(NextStep::SetAside) => "set aside".into(),
        Err(error) => format!("{} {}", if error.kind() == ErrorKind::Transient { "wait:" } else { "refuse:" }, error.cause()),
    }
}

/// As etcd 3.4.23 made them of this list and this token.
#[test]
fn ids_are_those_that_etcd_makes() {
    let members: Vec<(String, String)> =
        (1..=3).map(|number| (format!("m{number}"), format!("http://127.0.0.{number}:2380"))).collect();
    let ids: Vec<u64> = members.iter().map(|(_, url)| first_id(std::slice::from_ref(url), "tok")).collect();
    assert_eq!(ids, [8_160_616_549_479_273_934, 7_566_053_002_334_159_444, 3_398_796_125_834_015_410]);
    assert_eq!(first_cluster(&members, "tok"), 0x38f7_5c64_647f_a564);
}

fn check(what: &str, join: &EtcdJoin, members: &[SeenMember], expected: &str) {
    let facts = facts(join, members);
    assert_eq!(short(&decide(&facts)), expected, "{what}");
    // One whose data does not say whose it is starts.
    assert_eq!(short(&decide(&MemberFacts { data: MemberData::Present(None), ..facts.clone() })), "start", "{what}");
    assert!(short(&decide(&MemberFacts { data: MemberData::Damaged, ..facts })).starts_with("refuse: "), "{what}");
}

#[test]
fn each_answer_of_a_cluster_has_one_next_step() {
    use MemberHealth::{Healthy, Silent, Unhealthy};
    let (three_listed, five_listed) = (join_of(3), join_of(5));
    let own_id = dead().listed.id;
    let replaced = format!("remove {own_id:x}");
    let unpublished = || with(|own| own.clients.clear());
    let added = || with(|own| (own.id, own.name, own.clients) = (77, String::new(), Vec::new()));
    let places = format!(
        "join m1={},member-{:x}={},member-{:x}={}",
        url(1),
        member(2, Healthy).listed.id,
        url(2),
        member(3, Healthy).listed.id,
        url(3)
    );
    let forming = vec![unpublished(), formed(2, Unhealthy), formed(3, Silent)];
    let five = |own: SeenMember, healths: [MemberHealth; 4]| -> Vec<SeenMember> {
        std::iter::once(own).chain((2..).zip(healths).map(|(number, health)| member(number, health))).collect()
    };
    for (what, join, members, expected) in [
        // A new cluster.
        ("nobody answers", &three_listed, vec![], "unheard"),
        ("the others form it", &three_listed, forming, "start"),
        ("the others have formed it, and this one is late", &three_listed, three(unpublished(), Healthy, Healthy), "start"),
        // A machine that was replaced.
        ("the others are healthy", &three_listed, three(dead(), Healthy, Healthy), &replaced),
        ("it is to join what is there", &EtcdJoin { existing: true, ..join_of(3) }, three(dead(), Healthy, Healthy), &replaced),
        (
            "one other is dead",
            &three_listed,
            three(dead(), Healthy, Silent),
            "wait: this node's dead member of etcd cannot be replaced: 1 of 3 members are healthy (not healthy: m3)",
        ),
        (
            "no other is healthy",
            &three_listed,
            three(dead(), Unhealthy, Silent),
            "wait: this node's dead member of etcd cannot be replaced: 0 of 3 members are healthy (not healthy: m2, m3)",
        ),
        ("four others are healthy", &five_listed, five(dead(), [Healthy; 4]), &replaced),
        // A quorum is not enough: etcd up to 3.5 adds a member only where all others are connected.
        (
            "one of four others is dead",
            &five_listed,
            five(dead(), [Healthy, Healthy, Healthy, Silent]),
            "wait: this node's dead member of etcd cannot be replaced: 3 of 5 members are healthy (not healthy: m5)",
        ),
        (
            "of two one is left, which says that it is healthy",
            &join_of(2),
            vec![dead(), member(2, Healthy)],
            "wait: this node's dead member of etcd cannot be replaced: 1 of 2 members are healthy (too few for a quorum without this node's)",
        ),
        (
            "two of four others are dead",
            &five_listed,
            five(dead(), [Healthy, Healthy, Silent, Silent]),
            "wait: this node's dead member of etcd cannot be replaced: 2 of 5 members are healthy (not healthy: m4, m5)",
        ),
        (
            "of two one is left",
            &join_of(2),
            vec![dead(), member(2, Unhealthy)],
            "wait: this node's dead member of etcd cannot be replaced: 0 of 2 members are healthy (not healthy: m2)",
        ),
        // A learner's vote is missed by nobody.
        ("it was a learner, and is dead", &three_listed, three(learner(dead()), Healthy, Healthy), &replaced),
        ("it was the learner of a single one, and is dead", &join_of(2), vec![learner(dead()), member(2, Healthy)], &replaced),
        (
            "it was a learner, and the one that votes is not healthy",
            &join_of(2),
            vec![learner(dead()), member(2, Unhealthy)],
            "wait: this node's dead member of etcd cannot be replaced: 0 of 2 members are healthy (not healthy: m2)",
        ),
        // What is added, by this node or somebody.
        ("it was added", &three_listed, three(added(), Healthy, Healthy), &places),
        (
            "it was added as a learner",
            &three_listed,
            three(with(|own| (own.name, own.clients, own.votes) = (String::new(), vec![], false)), Healthy, Healthy),
            &places,
        ),
        (
            "it was added, and the others have lost their quorum since",
            &three_listed,
            three(added(), Unhealthy, Unhealthy),
            &places,
        ),
        (
            "it was added, and one of the others does not answer",
            &three_listed,
            three(added(), Healthy, Silent),
            "wait: etcd's member m3 has not confirmed the list of members",
        ),
        (
            "it never started, by one that is cut off from the others",
            &three_listed,
            three(unpublished(), Unhealthy, Silent),
            "wait: etcd's members that answer have no leader: whether this node's has ever started is not known",
        ),
    ] {
        check(what, join, &members, expected);
    }
}

#[test]
fn a_member_that_the_cluster_does_not_have_is_added_beside_healthy_ones() {
    use MemberHealth::{Healthy, Silent};
    let three_listed = join_of(3);
    for (what, join, members, expected) in [
        // It was taken out, or is new.
        ("the place is not listed", &three_listed, vec![member(2, Healthy), member(3, Healthy)], "add"),
        ("it is the sixth", &join_of(6), (2..7).map(|number| member(number, Healthy)).collect(), "add"),
        (
            "it is not listed, and one other is dead",
            &three_listed,
            vec![member(2, Healthy), member(3, Silent)],
            "wait: this node's member of etcd cannot be added: 1 of 3 members are healthy (not healthy: m3)",
        ),
        (
            "it is not listed, and another one was added that has not started",
            &three_listed,
            vec![member(2, Healthy), member(4, Healthy), {
                let mut new = formed(3, Silent);
                new.listed.name.clear();
                new
            }],
            "wait: this node's member of etcd cannot be added: 2 of 4 members are healthy (not healthy: a2979bb37aa6bad5, which never started)",
        ),
        ("it would be the second", &three_listed, vec![member(2, Healthy)], "add a learner"),
        (
            "it would be the second, and the first one is not healthy",
            &three_listed,
            vec![member(2, MemberHealth::Unhealthy)],
            "wait: this node's member of etcd cannot be added: 0 of 2 members are healthy (not healthy: m2)",
        ),
        // etcd has one learner at a time, and one that never starts costs nobody anything.
        (
            "another one is a learner",
            &three_listed,
            vec![member(2, Healthy), learner(member(3, Healthy))],
            "wait: this node's member of etcd cannot be added: 1 of 3 members are healthy (not healthy: m3, a learner)",
        ),
        (
            "another one was added as a learner, and has not started",
            &join_of(4),
            vec![member(2, Healthy), member(4, Healthy), {
                let mut new = learner(formed(3, Silent));
                new.listed.name.clear();
                new
            }],
            "wait: this node's member of etcd cannot be added: 2 of 4 members are healthy (not healthy: a2979bb37aa6bad5, which never started, a learner)",
        ),
    ] {
        check(what, join, &members, expected);
    }
}

#[test]
fn a_place_that_is_not_the_dead_members_own_is_not_taken() {
    use MemberHealth::{Healthy, Unhealthy};
    let three_listed = join_of(3);
    let unpublished = || with(|own| own.clients.clear());
    for (what, join, members, expected) in [
        (
            "it answers",
            &three_listed,
            three(member(1, Healthy), Healthy, Healthy),
            "refuse: etcd's member m1 is or may be running at http://192.0.2.11:2379, and its data is not on this machine",
        ),
        (
            "it answers badly",
            &three_listed,
            three(member(1, Unhealthy), Healthy, Healthy),
            "refuse: etcd's member m1 is or may be running at http://192.0.2.11:2379, and its data is not on this machine",
        ),
        (
            "the address is another's",
            &three_listed,
            three(with(|own| own.name = "m9".into()), Healthy, Healthy),
            "refuse: the member http://192.0.2.11:2380 is m9",
        ),
        (
            "the name is elsewhere",
            &three_listed,
            three(with(|own| own.peers = vec![url(9)]), Healthy, Healthy),
            "refuse: etcd's member m1 is at http://192.0.2.19:2380, and not at http://192.0.2.11:2380",
        ),
        (
            "the place is not listed, in a cluster of another token",
            &EtcdJoin { token: "other".into(), ..join_of(3) },
            vec![member(2, Healthy), member(3, Healthy)],
            "refuse: the members that are listed are not known to be of cluster other: none of their ids is made of it",
        ),
        (
            "it forms a cluster of another token",
            &EtcdJoin { token: "other".into(), ..join_of(3) },
            three(unpublished(), Healthy, Healthy),
            "refuse: the members that are listed are not known to be of cluster other: none of their ids is made of it",
        ),
        (
            "it was in a cluster of another token",
            &EtcdJoin { token: "other".into(), ..join_of(3) },
            three(dead(), Healthy, Healthy),
            "refuse: the members that are listed are not known to be of cluster other: none of their ids is made of it",
        ),
    ] {
        check(what, join, &members, expected);
    }
}

#[test]
fn several_places_and_lists_that_differ_are_no_ground_for_a_change() {
    use MemberHealth::{Healthy, Silent};
    let join = join_of(3);
    let twice = [three(dead(), Healthy, Healthy), vec![with(|own| (own.id, own.peers) = (5, vec![url(9)]))]].concat();
    assert!(short(&decide(&facts(&join, &twice))).starts_with("refuse: several members of etcd have the name m1 or the address"));

    let members = three(dead(), Healthy, Healthy);
    let mut differing = facts(&join, &members);
    differing.views[1].members.remove(0);
    assert!(short(&decide(&differing)).ends_with("list different members"));
    // One that is not healthy may not know of what changed.
    let half = three(dead(), Healthy, Silent);
    let mut stale = facts(&join, &half);
    stale.views.push(ClusterView { peer: url(3), cluster: stale.views[0].cluster, members: vec![member(3, Silent)] });
    assert!(short(&decide(&stale)).starts_with("wait: this node's dead member of etcd cannot be replaced: 1 of 3 "));
    stale.views[1].cluster = 5;
    assert!(short(&decide(&stale)).starts_with("refuse: the members that are listed belong to two clusters"));
}

/// One that is cut off from the others knows an old list: who joins by that fetches the cluster from members that have left it.
#[test]
fn a_member_joins_only_by_a_list_that_all_others_confirm() {
    use MemberHealth::{Healthy, Unhealthy};
    let join = join_of(3);
    let added = with(|own| (own.id, own.name, own.clients) = (77, String::new(), Vec::new()));
    let mut stale = facts(&join, &three(added.clone(), Unhealthy, Unhealthy));
    assert!(short(&decide(&stale)).starts_with("join "));
    stale.views.pop();
    assert_eq!(short(&decide(&stale)), "wait: etcd's member m3 has not confirmed the list of members");
    let mut differing = facts(&join, &three(added.clone(), Healthy, Unhealthy));
    differing.views[1].members[0].listed.id = 78;
    assert_eq!(short(&decide(&differing)), "wait: etcd's member m3 has not confirmed the list of members");
    // One that never started itself has nothing to confirm.
    let mut third = added.clone();
    (third.listed.id, third.listed.peers) = (79, vec![url(3)]);
    assert!(short(&decide(&facts(&join, &[added, member(2, Unhealthy), third]))).starts_with("join "));
}

#[test]
fn what_was_begun_goes_on() {
    use MemberHealth::{Healthy, Unhealthy};
    let join = join_of(3);
    let removed = |second| facts(&join, &[member(2, second), member(3, Healthy)]);
    assert_eq!(short(&decide(&removed(Healthy))), "add");
    assert!(short(&decide(&removed(Unhealthy))).starts_with("wait: this node's member of etcd cannot be added: 1 of 3 "));
    // One that was cut off when the cluster was new lists this member as it was then; this node knows better.
    let forming = [with(|own| own.clients.clear()), formed(2, Unhealthy), formed(3, Unhealthy)];
    let cut_off = "wait: etcd's members that answer have no leader: whether this node's has ever started is not known";
    assert_eq!(short(&decide(&facts(&join, &forming))), "start");
    assert_eq!(short(&decide(&MemberFacts { has_begun: true, ..facts(&join, &forming) })), cut_off);
    assert_eq!(short(&decide(&facts(&EtcdJoin { existing: true, ..join_of(3) }, &forming))), cut_off);
    // Of a cluster whose members were all replaced the id alone is the first one.
    let renewed = |number, health| {
        let mut member = member(number, health);
        member.listed.id = number;
        member
    };
    let all: Vec<SeenMember> = vec![renewed(1, MemberHealth::Silent), renewed(2, Healthy), renewed(3, Healthy)];
    assert_eq!(short(&decide(&facts(&join, &all))), "remove 1");
    // Who could not come back afterwards does not go: its own id alone says whose the cluster is, and goes with it.
    let mut other = facts(&join, &[dead(), renewed(2, Healthy), renewed(3, Healthy)]);
    other.views.iter_mut().for_each(|view| view.cluster = 9);
    assert!(short(&decide(&other)).starts_with("refuse: the members that are listed are not known to be of cluster"));
}

/// A member without data begins a new cluster only where nobody is there, for long, and this node never heard of its cluster.
#[test]
fn silence_makes_a_new_cluster_only_where_it_is_certain() {
    let new = join_of(3);
    let existing = EtcdJoin { existing: true, ..join_of(3) };
    let decided = |join, change: &dyn Fn(&mut MemberFacts<'_>)| {
        let mut silent = MemberFacts { situation: &UNHEARD, ..facts(join, &[]) };
        change(&mut silent);
        short(&decide(&silent))
    };
    assert_eq!(decided(&new, &|_| {}), "start");
    let short_silence = MemberSituation { unheard: Duration::from_millis(29_999), ..DEPLOYMENT };
    assert_eq!(short(&decide(&MemberFacts { situation: &short_silence, ..facts(&new, &[]) })), "unheard");
    let waits = "wait: none of etcd's other members answers, and this node's member belongs to their cluster";
    assert_eq!(decided(&existing, &|_| {}), waits);
    assert_eq!(decided(&new, &|facts| facts.has_begun = true), waits);
    // A certificate that cannot be read here, a stall, 503: it may be the cluster that is there.
    let unasked = |facts: &mut MemberFacts<'_>| facts.unasked = vec![format!("{}: no answer within 5 s", url(2))];
    assert_eq!(
        decided(&new, &unasked),
        "wait: it is not known what etcd's other members are: http://192.0.2.12:2380: no answer within 5 s"
    );
    // What is found below a mount point says nothing.
    let unmounted = MemberSituation { unmounted: Some("var-lib-etcd.mount".into()), ..UNHEARD };
    for members in [vec![], three(dead(), MemberHealth::Healthy, MemberHealth::Healthy)] {
        let decided = short(&decide(&MemberFacts { situation: &unmounted, ..facts(&new, &members) }));
        assert_eq!(decided, "wait: var-lib-etcd.mount is not active, and /var/lib/etcd/default.etcd may be on it");
    }
}

/// One that was cut off knows nobody's start; another one that knows of this member's may be there and not answer.
#[test]
fn a_new_cluster_is_joined_only_where_all_that_are_there_were_asked() {
    let join = join_of(3);
    let forming = [with(|own| own.clients.clear()), formed(2, MemberHealth::Unhealthy), formed(3, MemberHealth::Silent)];
    let unasked = vec![format!("{}: no answer within 5 s", url(3))];
    assert_eq!(
        short(&decide(&MemberFacts { unasked: unasked.clone(), ..facts(&join, &forming) })),
        "wait: it is not known what etcd's other members are: http://192.0.2.13:2380: no answer within 5 s"
    );
    // Who reaches a leader knows it.
    let late = three(with(|own| own.clients.clear()), MemberHealth::Healthy, MemberHealth::Silent);
    assert_eq!(short(&decide(&MemberFacts { unasked, ..facts(&join, &late) })), "start");
    // Where nobody starts before the others the operator alone knows.
    let error = decide(&MemberFacts { has_begun: true, ..facts(&join, &forming) }).unwrap_err();
    assert!(error.suggested_remedy().unwrap_or_default().contains("`rm /etc/etcd/join.conf && systemctl restart etcd.service`"));
}

/// etcd that is kept from starting listens for a moment at each try.
#[test]
fn the_units_own_tries_are_not_taken_for_another_machine_for_good() {
    let (join, up) = (join_of(3), MemberSituation { is_up: true, ..DEPLOYMENT });
    let members = three(member(1, MemberHealth::Unhealthy), MemberHealth::Healthy, MemberHealth::Healthy);
    let error = decide(&MemberFacts { situation: &up, ..facts(&join, &members) }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    assert!(error.suggested_remedy().unwrap_or_default().contains("`systemctl stop etcd.service`"), "{error}");
    assert_eq!(decide(&facts(&join, &members)).unwrap_err().kind(), ErrorKind::Refused);
}

/// A repair, or a renewal, comes by itself.
#[test]
fn members_change_for_a_deployment_alone() {
    let (join, healthy) = (join_of(3), MemberHealth::Healthy);
    for members in [three(dead(), healthy, healthy), vec![member(2, healthy), member(3, healthy)]] {
        let found = |situation| MemberFacts { situation, ..facts(&join, &members) };
        assert!(matches!(decide(&found(&DEPLOYMENT)), Ok(NextStep::Remove(_) | NextStep::Add)));
        let error = decide(&found(&REPAIR)).unwrap_err();
        assert!(
            error.kind() == ErrorKind::Refused && error.suggested_remedy().unwrap().contains("heat-node-agent rerun"),
            "{error}"
        );
    }
}

#[test]
fn data_of_another_cluster_or_member_is_refused_by_what_the_others_list() {
    use MemberHealth::{Healthy, Unhealthy};
    let join = join_of(3);
    let cluster = first_cluster(&join.members, TOKEN);
    let own = dead().listed.id;
    let decided = |member, cluster, members: &[SeenMember]| {
        short(&decide(&MemberFacts { data: MemberData::Present(Some(MemberIds { member, cluster })), ..facts(&join, members) }))
    };
    let all = three(dead(), Healthy, Healthy);
    assert_eq!(decided(own, cluster, &all), "start");
    assert_eq!(
        decided(own, 7, &all),
        format!(
            "refuse: /var/lib/etcd/default.etcd is of etcd's cluster 7, and the member at http://192.0.2.12:2380 belongs to cluster {cluster:x}"
        )
    );
    // The volume of another master.
    assert_eq!(decided(member(2, Healthy).listed.id, cluster, &all), "refuse: /var/lib/etcd/default.etcd is of etcd's member m2");
    assert_eq!(decided(9, cluster, &all), "set aside", "it was removed");
    let removed = MemberData::Present(Some(MemberIds { member: 9, cluster }));
    // Its successor is dead, or was added and has not started; or it runs.
    let added = seen(
        ListedMember { id: 5, name: String::new(), peers: vec![url(1)], clients: vec![], votes: true },
        MemberHealth::Silent,
    );
    let successor = |health| member(1, health);
    for (own, situation, expected) in [
        (dead(), &DEPLOYMENT, "ok"),
        (added, &DEPLOYMENT, "ok"),
        (dead(), &REPAIR, "etcd's member m1 was removed from its cluster"),
        (successor(Healthy), &DEPLOYMENT, "another machine has its place"),
        (successor(Unhealthy), &REPAIR, "another machine has its place"),
    ] {
        let found = MemberFacts { data: removed, situation, ..facts(&join, &three(own, Healthy, Healthy)) };
        assert_eq!(decide(&found).unwrap(), NextStep::SetAside);
        let said = may_come_back(&found).map_or_else(|error| error.to_string(), |()| "ok".to_owned());
        assert!(said.contains(expected), "{said}");
    }
    // One that was just added is not known to all of the others at once.
    let mut late = MemberFacts { data: removed, ..facts(&join, &all) };
    late.views[1].members[0].listed.id = 9;
    assert!(short(&decide(&late)).starts_with("wait: "), "{:?}", decide(&late));
    // One without a leader may not know of it yet, and nobody's silence is no ground.
    for members in [three(dead(), Unhealthy, Unhealthy), vec![]] {
        assert_eq!(decided(9, cluster, &members), "start");
    }
    // It has moved, or was renamed.
    for change in [|own: &mut ListedMember| own.peers = vec![url(9)], |own: &mut ListedMember| own.name = "m9".into()] {
        assert_eq!(decided(own, cluster, &three(with(change), Healthy, Healthy)), "start");
    }
}

#[test]
fn a_place_is_the_own_one_however_its_address_is_written() {
    let peer = "http://[2001:db8::1]:2380".to_owned();
    let join = EtcdJoin {
        peer: peer.clone(),
        members: vec![("m1".into(), peer), ("m2".into(), url(2)), ("m3".into(), url(3))],
        ..join_of(3)
    };
    let own = with(|own| own.peers = vec!["http://[2001:DB8:0::1]:2380".into()]);
    let id = own.listed.id;
    assert_eq!(
        short(&decide(&facts(&join, &three(own, MemberHealth::Healthy, MemberHealth::Healthy)))),
        format!("remove {id:x}")
    );
}

/// Texts of others stand in causes that go to Heat, the journal and terminals.
#[test]
fn what_others_say_is_escaped() {
    let join = join_of(3);
    let own = |change: &dyn Fn(&mut ListedMember)| {
        let mut own = member(1, MemberHealth::Unhealthy);
        change(&mut own.listed);
        three(own, MemberHealth::Healthy, MemberHealth::Healthy)
    };
    for members in [
        own(&|own| own.clients = vec!["\u{1b}[2J".into()]),
        own(&|own| own.peers = vec!["\u{1b}[2J".into()]),
        own(&|own| own.name = "\u{1b}[2J".into()),
    ] {
        let decided = short(&decide(&facts(&join, &members)));
        assert!(decided.starts_with("refuse: ") && !decided.contains('\u{1b}'), "{decided:?}");
    }
    // An operator types it.
    let mut second = member(2, MemberHealth::Healthy);
    second.healthy_at = Some("http://h;reboot".into());
    assert!(!typed(&join, &[dead(), second], None).contains("reboot"));
}

#[test]
fn what_is_typed_by_hand_is_whole() {
    let mut join = join_of(3);
    let members = three(dead(), MemberHealth::Unhealthy, MemberHealth::Healthy);
    assert_eq!(
        typed(&join, &members, Some(255)),
        "on this node `ETCDCTL_API=3 etcdctl --endpoints http://192.0.2.13:2379 member remove ff`, then `ETCDCTL_API=3 etcdctl --endpoints \
         http://192.0.2.13:2379 member add m1 --peer-urls=http://192.0.2.11:2380`"
    );
    join.identity =
        Some(crate::desired::ClientIdentity { certificate: "/c.crt".into(), key: "/c.key".into(), ca: "/ca.crt".into() });
    assert!(typed(&join, &members, None).contains(":2379 --cacert /ca.crt --cert /c.crt --key /c.key member add m1 "));
    assert!(typed(&join, &members[..2], None).starts_with("repair the other members first"));
    // Every refusal that an operator can end by these says them.
    let other = EtcdJoin { token: "other".into(), ..join_of(3) };
    let elsewhere = with(|own| own.peers = vec![url(9)]);
    for (join, own) in [(&other, dead()), (&join, elsewhere), (&join, with(|own| own.name = "m9".into()))] {
        let id = own.listed.id;
        let members = three(own, MemberHealth::Healthy, MemberHealth::Healthy);
        let error = decide(&facts(join, &members)).unwrap_err();
        let remedy = error.suggested_remedy().unwrap_or_default();
        assert!(remedy.contains(&format!("member remove {id:x}`")) && remedy.contains(" member add m1 "), "{remedy}");
    }
}

/// A list with anything in it does not get into a file that etcd's unit reads.
#[test]
fn a_url_of_somebody_else_is_plain_or_refused() {
    let join = join_of(3);
    for odd in ["http://192.0.2.13:2380\nETCD_NAME=x", "http://h\"", "http://$(x)", "a=b,c=d"] {
        let mut other = member(3, MemberHealth::Healthy);
        other.listed.peers = vec![odd.to_owned()];
        let decided = decide(&facts(&join, &[dead(), member(2, MemberHealth::Healthy), other]));
        assert!(short(&decided).starts_with("refuse: etcd lists a member at"), "{odd}: {decided:?}");
    }
}

fn health() -> impl Strategy<Value = MemberHealth> {
    prop_oneof![
        Just(MemberHealth::Healthy),
        Just(MemberHealth::Healthy),
        Just(MemberHealth::Unhealthy),
        Just(MemberHealth::Silent)
    ]
}

proptest! {
    /// Losses of data, with whatever the others do, and looks that a crash may have cut off before or after the change: nobody who may be
    /// running is removed, nobody beside one that is not healthy, nobody twice for one loss; and a member whose cluster knows that it has run
    /// never starts as it was, whatever the parameters say of the cluster.
    #[test]
    fn a_loss_of_data_is_one_removal_beside_healthy_members(
        count in 2_u64..=5,
        existing in any::<bool>(),
        rounds in prop::collection::vec(
            (prop::collection::vec(health(), 5), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()), 1..24),
    ) {
        let join = EtcdJoin { existing, ..join_of(count) };
        let mut members: Vec<SeenMember> = (1..=count).map(|number| member(number, MemberHealth::Silent)).collect();
        let (mut has_begun, mut losses, mut removals, mut adds) = (false, 1, 0, 0);
        let mut has_data = false;
        for (healths, own_answers, is_cut_off, is_unasked, loses, is_stale) in rounds {
            if has_data && loses {
                (has_data, losses) = (false, losses + 1);
                // It has run, and every start behind it left the file that keeps it from starting.
                prop_assert!(has_begun);
            }
            for (member, health) in members.iter_mut().zip(healths) {
                let is_own = member.listed.peers.contains(&join.peer);
                member.health = if is_own && !own_answers { MemberHealth::Silent } else { health };
                if is_own && member.listed.clients.is_empty() {
                    member.health = MemberHealth::Silent;
                }
                let url = member.listed.clients.first().cloned();
                member.healthy_at = url.filter(|_| member.health == MemberHealth::Healthy);
            }
            let unasked = if is_unasked { vec!["stall".to_owned()] } else { Vec::new() };
            let heard = views(&join, &members);
            let mut others: Vec<ClusterView> = heard.into_iter().filter(|view| view.peer != join.peer).collect();
            // Who was cut off when the cluster was new knows it as it was then.
            let is_healthy = |one: &SeenMember| !one.listed.peers.contains(&join.peer) && one.health == MemberHealth::Healthy;
            let is_stale = is_stale && !members.iter().any(is_healthy);
            for view in others.iter_mut().filter(|_| is_stale) {
                view.members = (1..=count).map(|number| formed(number, MemberHealth::Silent)).collect();
            }
            let data = if has_data { MemberData::Present(None) } else { MemberData::Blank };
            let is_heard = !others.is_empty();
            let found =
                MemberFacts { situation: &UNHEARD, data, unasked, has_begun, views: others, ..facts(&join, &[]) };
            let next = decide(&found);
            if !has_data && (existing || is_heard) && !matches!(next, Ok(NextStep::Join(_) | NextStep::Start)) {
                // What `settle` writes.
                has_begun = true;
            }
            let Ok(next) = next else { continue };
            let healthy_others = || {
                let others = members.iter().filter(|member| !member.listed.peers.contains(&join.peer));
                others.into_iter().all(|member| member.health == MemberHealth::Healthy)
            };
            match next {
                NextStep::Remove(id) => {
                    let gone = members.iter().find(|member| member.listed.id == id).unwrap();
                    prop_assert!(gone.health == MemberHealth::Silent && gone.listed.peers == [url(1)]);
                    prop_assert!(healthy_others() && members.len() > 2);
                    if !is_cut_off {
                        members.retain(|member| member.listed.id != id);
                        removals += 1;
                    }
                }
                NextStep::Add => {
                    prop_assert!(healthy_others() && members.len() > 1);
                    adds += 1;
                    let id = 1000 + adds;
                    let added = ListedMember { id, name: String::new(), peers: vec![url(1)], clients: vec![], votes: true };
                    members.push(seen(added, MemberHealth::Silent));
                }
                NextStep::Join(places) => {
                    prop_assert_eq!(places.len(), members.len());
                    if !is_cut_off {
                        has_data = true;
                        has_begun = true;
                        let own = members.iter_mut().find(|member| member.listed.peers.contains(&join.peer)).unwrap();
                        own.listed.name = join.name.clone();
                        own.listed.clients = vec!["http://192.0.2.11:2379".into()];
                    }
                }
                NextStep::Start if has_data => {}
                // Nobody who knows of a start was ever heard, or could be.
                NextStep::Start => {
                    prop_assert!(!has_begun && !existing && !is_unasked && losses == 1);
                    prop_assert!(is_stale || !is_heard);
                }
                NextStep::AddLearner | NextStep::Unheard | NextStep::SetAside => prop_assert!(false, "it has lasted, and its data is its own"),
            }
            prop_assert!(removals <= losses && adds <= removals);
        }
    }
}
