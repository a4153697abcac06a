//! What a node keeps for itself, so that pods cannot starve it (the kubelet's kube-reserved and system-reserved).

use serde_json::{Map, Value, json};

use crate::kubernetes::parameters::mistake::Mistake;
use crate::kubernetes::spec::cluster::{ClusterSpec, MachineFacts};
use crate::kubernetes::versions::option;

/// What is kept; nothing where the machine is not known.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::kubernetes) struct Reserved {
    /// For the kubelet and the container runtime.
    pub(in crate::kubernetes) kubernetes: Option<Map<String, Value>>,
    /// For the rest of the system.
    pub(in crate::kubernetes) system: Option<Map<String, Value>>,
}

/// Shares of memory in per cent, each up to so many MiB.
///
/// Kubernetes and its runtime need the more the more pods there may be. These steps are those that Google Kubernetes Engine
/// documents for its nodes ("Plan node sizes", memory and CPU reservations); other clouds took them over.
const MEMORY: &[(u64, u64)] = &[(4096, 25), (8192, 20), (16_384, 10), (131_072, 6), (u64::MAX, 2)];
/// What a machine of less than 1 GiB keeps there, in MiB.
const SMALLEST: u64 = 255;
/// Shares of CPUs in hundredths of a per cent, each up to so many CPUs; from the same page.
const CPUS: &[(u64, u64)] = &[(1, 600), (2, 100), (4, 50), (u64::MAX, 25)];

/// Computed from the machine.
pub(in crate::kubernetes) fn of(facts: &MachineFacts) -> Reserved {
    let (Some(memory), Some(cpus)) = (facts.memory, facts.cpus) else { return Reserved::default() };
    let kept = if memory < 1024 { SMALLEST } else { steps(MEMORY, memory) / 100 };
    // Of a CPU, 10000 hundredths of a per cent are 1000 thousandths.
    let share = steps(CPUS, cpus.into()) / 10;
    // systemd, the journal, sshd, this agent: a twentieth of the memory between 100 MiB and 1 GiB, a tenth of a CPU.
    Reserved { kubernetes: Some(map(share, kept)), system: Some(map(100, (memory / 20).clamp(100, 1024))) }
}

/// MiB of memory below which a kubelet evicts pods, unless its settings say otherwise; it keeps them, too.
const EVICTS: u64 = 100;

/// What is reserved beyond what the machine has: a kubelet ends on it, or leaves no pod any room.
pub(in crate::kubernetes) fn too_large(cluster: &ClusterSpec, facts: &MachineFacts) -> Vec<Mistake> {
    let computed = of(facts);
    // A user's flag takes the place of ours.
    let asked = |flag: &str, parameter: &'static str, given: &Option<String>, computed: &Option<Map<String, Value>>| {
        let flagged = option(&cluster.options.kubelet, flag);
        let (parameter, text) = match (flagged, given) {
            (Some(text), _) => ("KUBELET_OPTIONS", text),
            (None, Some(text)) => (parameter, text.clone()),
            (None, None) => {
                let one = |(name, amount): (&String, &Value)| format!("{name}={}", amount.as_str().unwrap_or_default());
                ("", computed.iter().flatten().map(one).collect::<Vec<_>>().join(","))
            }
        };
        (parameter, text)
    };
    let both = [
        asked("kube-reserved", "KUBE_RESERVED", &cluster.node.kube_reserved, &computed.kubernetes),
        asked("system-reserved", "SYSTEM_RESERVED", &cluster.node.system_reserved, &computed.system),
    ];
    // What nobody has asked for is preflight's to judge.
    let Some((name, _)) = both.iter().find(|(parameter, _)| !parameter.is_empty()) else { return Vec::new() };
    let mib = |memory: u64| memory * 1024 * 1024 * 1000;
    let there = [("cpu", facts.cpus.map(|cpus| u64::from(cpus) * 1000), 0), ("memory", facts.memory.map(mib), mib(EVICTS))];
    let mut mistakes = Vec::new();
    for (resource, there, besides) in there {
        let Some(there) = there else { continue };
        let kept = both.iter().map(|(_, text)| amount(text, resource)).fold(besides, u64::saturating_add);
        if kept >= there {
            let unit = |amount: u64| if resource == "cpu" { format!("{amount}m") } else { format!("{} MiB", amount / mib(1)) };
            let besides = if besides > 0 {
                format!(", including {} for the kubelet's eviction threshold,", unit(besides))
            } else {
                String::new()
            };
            mistakes.push(Mistake::general(
                name,
                format!(
                    "leaves pods no {resource}: {} are reserved in total{besides} and the machine has {}",
                    unit(kept),
                    unit(there)
                ),
                "KUBE_RESERVED and SYSTEM_RESERVED together must be less than the machine has, or the kubelet does not start",
                "reserve less, or use a larger flavor",
            ));
        }
    }
    mistakes
}

/// The items of a list such as `cpu=100m,memory=256Mi`.
pub(super) fn quantities(text: &str) -> impl DoubleEndedIterator<Item = (&str, &str)> {
    text.split(',').filter_map(|item| item.split_once('='))
}

/// Thousandths of a resource in a list such as `cpu=100m,memory=256Mi`; nothing of what is no quantity, which is named elsewhere.
fn amount(text: &str, resource: &str) -> u64 {
    quantities(text)
        .filter(|(name, _)| *name == resource)
        .map(|(_, amount)| thousandths(amount).unwrap_or_default())
        .next_back()
        .unwrap_or_default()
}

/// A quantity of Kubernetes in thousandths: `1.5Gi`, `100m`, `2`.
fn thousandths(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor: u64 = match text.get(digits.len()..)? {
        "m" => 1,
        "" => 1000,
        "k" => 1_000_000,
        "M" => 1_000_000_000,
        "G" => 1_000_000_000_000,
        "T" => 1_000_000_000_000_000,
        "Ki" => 1000 << 10,
        "Mi" => 1000 << 20,
        "Gi" => 1000 << 30,
        "Ti" => 1000 << 40,
        _ => return None,
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let part = part.char_indices().nth(3).and_then(|(at, _)| part.get(..at)).unwrap_or(part);
    let scale = 10_u64.pow(u32::try_from(part.len()).ok()?);
    // Larger than any machine is as large as it gets.
    let whole =
        whole.bytes().all(|b| b.is_ascii_digit()).then(|| whole.parse().unwrap_or(u64::MAX)).filter(|_| !whole.is_empty())?;
    let part: u64 = if part.is_empty() { 0 } else { part.parse().ok()? };
    Some(whole.saturating_mul(factor).saturating_add(part.saturating_mul(factor) / scale))
}

fn steps(steps: &[(u64, u64)], whole: u64) -> u64 {
    let (mut kept, mut below) = (0, 0);
    for &(up_to, share) in steps {
        kept += (whole.min(up_to) - below) * share;
        if whole <= up_to {
            break;
        }
        below = up_to;
    }
    kept
}

fn map(thousandths: u64, mebibytes: u64) -> Map<String, Value> {
    Map::from_iter([("cpu".to_owned(), json!(format!("{thousandths}m"))), ("memory".to_owned(), json!(format!("{mebibytes}Mi")))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fixtures::spec;

    #[test]
    fn more_than_the_machine_has_is_refused() {
        let small = MachineFacts { memory: Some(2048), cpus: Some(2), ..MachineFacts::default() };
        for (changes, facts, expected) in [
            (&[][..], &small, ""),
            (&[("KUBE_RESERVED", "cpu=100m,memory=256Mi")], &small, ""),
            (&[("KUBE_RESERVED", "memory=3Gi")], &MachineFacts::default(), ""),
            (
                &[("KUBE_RESERVED", "memory=3Gi")],
                &small,
                "KUBE_RESERVED leaves pods no memory: 3274 MiB are reserved in total, including 100 MiB for the kubelet's eviction \
                 threshold, and the machine has 2048 MiB",
            ),
            (&[("KUBE_RESERVED", "memory=1.5G")], &small, ""),
            (
                &[("KUBE_RESERVED", "cpu=1,memory=1Gi"), ("SYSTEM_RESERVED", "cpu=1.0,memory=924Mi")],
                &small,
                "KUBE_RESERVED leaves pods no cpu: 2000m are reserved in total and the machine has 2000m|\
                 KUBE_RESERVED leaves pods no memory: 2048 MiB are reserved in total, including 100 MiB for the kubelet's eviction \
                 threshold, and the machine has 2048 MiB",
            ),
            (
                &[("SYSTEM_RESERVED", "cpu=5000m")],
                &small,
                "SYSTEM_RESERVED leaves pods no cpu: 5070m are reserved in total and the machine has 2000m",
            ),
            (
                &[("KUBELET_OPTIONS", "--system-reserved=cpu=3")],
                &small,
                "KUBELET_OPTIONS leaves pods no cpu: 3070m are reserved in total and the machine has 2000m",
            ),
            (&[("KUBE_RESERVED", "ephemeral-storage=1Ti")], &small, ""),
        ] {
            let found = too_large(spec(changes).kubernetes.as_ref().unwrap(), facts);
            let found: Vec<_> = found.iter().map(|mistake| format!("{} {}", mistake.parameter, mistake.problem)).collect();
            assert_eq!(found.join("|"), expected, "{changes:?}");
        }
        for (text, expected) in [
            ("100m", Some(100)),
            ("2", Some(2000)),
            ("1.5", Some(1500)),
            ("1.0005", Some(1000)),
            ("256Mi", Some(256_000 << 20)),
            ("9999999Ti", Some(u64::MAX)),
            ("99999999999999999999", Some(u64::MAX)),
            ("", None),
            ("Mi", None),
            ("1x", None),
        ] {
            assert_eq!(thousandths(text), expected, "{text}");
        }
    }

    #[test]
    fn shares_fall_with_the_size_of_the_machine() {
        for (memory, cpus, kubernetes, system) in [
            (512, 1, ("60m", "255Mi"), "100Mi"),
            (1024, 1, ("60m", "256Mi"), "100Mi"),
            (2048, 2, ("70m", "512Mi"), "102Mi"),
            (8192, 4, ("80m", "1843Mi"), "409Mi"),
            (16_384, 8, ("90m", "2662Mi"), "819Mi"),
            (262_144, 64, ("230m", "12165Mi"), "1024Mi"),
        ] {
            let reserved = of(&MachineFacts { memory: Some(memory), cpus: Some(cpus), ..MachineFacts::default() });
            assert_eq!(reserved.kubernetes.unwrap(), *json!({"cpu": kubernetes.0, "memory": kubernetes.1}).as_object().unwrap());
            assert_eq!(reserved.system.unwrap(), *json!({"cpu": "100m", "memory": system}).as_object().unwrap());
        }
        assert_eq!(of(&MachineFacts { memory: Some(2048), ..MachineFacts::default() }), Reserved::default());
    }
}
