//! What a node keeps for itself, so that pods cannot starve it (the kubelet's kube-reserved and system-reserved).

use serde_json::{Map, Value, json};

use super::cluster::Facts;

/// What is kept; nothing where the machine is not known.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Reserved {
    /// For the kubelet and the container runtime.
    pub(super) kubernetes: Option<Map<String, Value>>,
    /// For the rest of the system.
    pub(super) system: Option<Map<String, Value>>,
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
pub(super) fn of(facts: &Facts) -> Reserved {
    let (Some(memory), Some(cpus)) = (facts.memory, facts.cpus) else { return Reserved::default() };
    let kept = if memory < 1024 { SMALLEST } else { steps(MEMORY, memory) / 100 };
    // Of a CPU, 10000 hundredths of a per cent are 1000 thousandths.
    let share = steps(CPUS, cpus.into()) / 10;
    // systemd, the journal, sshd, this agent: a twentieth of the memory between 100 MiB and 1 GiB, a tenth of a CPU.
    Reserved { kubernetes: Some(map(share, kept)), system: Some(map(100, (memory / 20).clamp(100, 1024))) }
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
            let reserved = of(&Facts { memory: Some(memory), cpus: Some(cpus), ..Facts::default() });
            assert_eq!(reserved.kubernetes.unwrap(), *json!({"cpu": kubernetes.0, "memory": kubernetes.1}).as_object().unwrap());
            assert_eq!(reserved.system.unwrap(), *json!({"cpu": "100m", "memory": system}).as_object().unwrap());
        }
        assert_eq!(of(&Facts { memory: Some(2048), ..Facts::default() }), Reserved::default());
    }
}
