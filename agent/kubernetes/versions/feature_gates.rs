//! What each minor knows of the feature gates of `--feature-gates`.
//!
//! In: a minor, and the value of the flag. Out: what stops a component, and what is to be said else. Never: a guess; a gate that no table has
//! is not known.
//!
//! A component ends at a gate that it does not know, and at one that is locked and given the other value (`Set` of
//! k8s.io/component-base/featuregate). The table is `feature-gates.txt`, which `docs/flags/renew` makes of `docs/flags/feature-gates.matrix`; that
//! says of which source trees. A line is a gate, the minors that know it as in the other tables, and after it the first minor in which it is
//! locked to true (`t29`) or to false (`f32`), or deprecated (`d31`). The first minor, 12, stands for that and earlier ones.

use super::shell_words::truth;
use super::{Availability, Minor, availability, row};
use crate::report::text::shortened;

/// The first minor with a list of gates, and the last.
const LISTED: (Minor, Minor) = (Minor(12), Minor(36));

/// What is known of the gates of a flag.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Gates {
    /// Why a component would end.
    pub(super) refused: Vec<String>,
    /// What is taken, but may be wrong.
    pub(super) warnings: Vec<String>,
    /// The flag's value without what is refused.
    pub(super) rest: String,
}

/// Judges the value of `--feature-gates`: `A=true,B=false`.
pub(super) fn judge(minor: Minor, value: &str) -> Gates {
    let mut gates = Gates::default();
    let mut rest = Vec::new();
    let items: Vec<&str> = value.split(',').map(str::trim).filter(|item| !item.is_empty()).collect();
    for (at, item) in items.iter().enumerate() {
        let (name, given) = parts(item);
        // The last of those of one name is what counts.
        if items.get(at + 1..).unwrap_or_default().iter().any(|later| parts(later).0 == name) {
            continue;
        }
        match of_gate(minor, name, truth(given)) {
            Ok(warning) => {
                gates.warnings.extend(warning);
                rest.push(*item);
            }
            Err(refusal) => gates.refused.push(refusal),
        }
    }
    gates.rest = rest.join(",");
    gates
}

fn parts(item: &str) -> (&str, &str) {
    let (name, given) = item.split_once('=').unwrap_or((item, ""));
    (name.trim(), given.trim())
}

/// What there is to say of a gate that is taken; an error says why it is not.
fn of_gate(minor: Minor, name: &str, given: Option<bool>) -> Result<Option<String>, String> {
    let (first_listed, last_listed) = LISTED;
    let shown = shortened(name, 60);
    let unknown = |why: &str| Ok(Some(format!("it is unknown whether {minor} has the feature gate {shown}{why}")));
    if minor < first_listed {
        return Ok(None);
    }
    let Some(line) = row(include_str!("feature-gates.txt"), name) else { return unknown(": no table of this agent has it") };
    let (ranges, marks) = line.split_once(' ').unwrap_or((line, ""));
    let since = |mark: char| {
        let number = marks.split(' ').find_map(|word| word.strip_prefix(mark)?.parse().ok());
        number.map(Minor).filter(|since| *since <= minor)
    };
    match availability(ranges, minor.min(last_listed), "") {
        Availability::Removed { last, .. } => {
            return Err(format!("feature gate {shown} was removed: {last} is the last known to have it"));
        }
        // A patch release may have it before.
        Availability::NotYet { first } => return unknown(&format!(": {first} is the first known to have it")),
        Availability::Known => {}
        Availability::NeverThere | Availability::Unknown | Availability::Unchecked => return unknown(""),
    }
    let lock = since('t').map(|since| (true, since)).or_else(|| since('f').map(|since| (false, since)));
    if let (Some((locked, since)), Some(given)) = (lock, given)
        && locked != given
    {
        return Err(format!("feature gate {shown} cannot be {given}: it is locked to {locked} since {since}"));
    }
    if minor > last_listed {
        return unknown(&format!(": {last_listed} is the last whose gates are known"));
    }
    Ok(match (lock, since('d')) {
        (Some((locked, since)), _) => {
            Some(format!("feature gate {shown} is always {locked} since {since}; a later minor may end at it"))
        }
        (None, Some(since)) => Some(format!("feature gate {shown} is deprecated since {since}; a later minor may end at it")),
        (None, None) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(minor: u16, value: &str) -> (Vec<String>, Vec<String>, String) {
        let Gates { refused, warnings, rest } = judge(Minor(minor), value);
        (refused, warnings, rest)
    }

    #[test]
    fn a_gate_that_is_gone_or_locked_to_the_other_value_stops_a_component() {
        for (minor, value, refused) in [
            // Beta in 1.8, always on in 1.21, gone in 1.25 (Kubernetes' page "Feature Gates (removed)").
            (20, "TTLAfterFinished=false", ""),
            (23, "TTLAfterFinished=true", ""),
            (23, "TTLAfterFinished=false", "feature gate TTLAfterFinished cannot be false: it is locked to true since 1.23"),
            (24, "TTLAfterFinished=0", "feature gate TTLAfterFinished cannot be false: it is locked to true since 1.23"),
            (25, "TTLAfterFinished=true", "feature gate TTLAfterFinished was removed: 1.24 is the last known to have it"),
            (37, "TTLAfterFinished=true", "feature gate TTLAfterFinished was removed: 1.24 is the last known to have it"),
            (25, "DynamicKubeletConfig=false", ""),
            (
                26,
                "DynamicKubeletConfig=false",
                "feature gate DynamicKubeletConfig was removed: 1.25 is the last known to have it",
            ),
            (
                34,
                "AllowServiceLBStatusOnNonLB=true",
                "feature gate AllowServiceLBStatusOnNonLB cannot be true: it is locked to false since 1.32",
            ),
            (37, "NFTablesProxyMode=false", "feature gate NFTablesProxyMode cannot be false: it is locked to true since 1.33"),
            // Only the controller manager of 1.25 and 1.26 still has it.
            (26, "IPv6DualStack=true", ""),
            (27, "IPv6DualStack=true", "feature gate IPv6DualStack was removed: 1.24 is the last known to have it"),
            // The last one counts, and before the first list nothing is known.
            (24, "TTLAfterFinished=false,TTLAfterFinished=true", ""),
            (11, "TTLAfterFinished=false", ""),
            (28, "AllAlpha=true,AllBeta=false", ""),
        ] {
            let (found, _, rest) = judged(minor, value);
            assert_eq!(found, [refused].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>(), "1.{minor} {value}");
            assert_eq!(rest.is_empty(), !refused.is_empty(), "1.{minor} {value}");
        }
        let (refused, _, rest) =
            judged(25, " RotateKubeletServerCertificate = true ,TTLAfterFinished=true,, EndpointSlice=true,NodeSwap=false");
        assert_eq!((refused.len(), rest.as_str()), (2, "RotateKubeletServerCertificate = true,NodeSwap=false"));
    }

    #[test]
    fn what_is_not_known_is_said_and_nothing_is_guessed() {
        for (minor, value, warning) in [
            (28, "MyOwn=true", "it is unknown whether 1.28 has the feature gate MyOwn: no table of this agent has it"),
            (
                25,
                "SidecarContainers=true",
                "it is unknown whether 1.25 has the feature gate SidecarContainers: 1.28 is the first known to have it",
            ),
            (
                37,
                "SidecarContainers=true",
                "it is unknown whether 1.37 has the feature gate SidecarContainers: 1.36 is the last whose gates are known",
            ),
            (25, "IPv6DualStack=true", "it is unknown whether 1.25 has the feature gate IPv6DualStack"),
            (24, "TTLAfterFinished=true", "feature gate TTLAfterFinished is always true since 1.23; a later minor may end at it"),
            (
                31,
                "AllowDNSOnlyNodeCSR=true",
                "feature gate AllowDNSOnlyNodeCSR is deprecated since 1.31; a later minor may end at it",
            ),
        ] {
            assert_eq!(judged(minor, value), (Vec::new(), vec![warning.to_owned()], value.to_owned()), "1.{minor} {value}");
        }
        assert_eq!(judged(28, "SidecarContainers=true"), (Vec::new(), Vec::new(), "SidecarContainers=true".to_owned()));
    }

    #[test]
    fn every_line_of_the_table_can_be_read() {
        let (first, last) = LISTED;
        for line in include_str!("feature-gates.txt").lines() {
            let (name, rest) = line.split_once(' ').unwrap();
            let (ranges, marks) = rest.split_once(' ').unwrap_or((rest, ""));
            assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{line}");
            let known = |minor| availability(ranges, minor, "") == Availability::Known;
            assert!((first.number()..=last.number()).any(|minor| known(Minor(minor))), "{line}");
            for mark in marks.split_whitespace() {
                assert!(mark.starts_with(['t', 'f', 'd']), "{line}");
                assert!(known(Minor(mark[1..].parse().unwrap())), "{line}");
            }
        }
    }
}
