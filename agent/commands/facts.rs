//! What this machine is, as far as a node's files depend on it.

use std::path::Path;

use sysinfo::{CpuRefreshKind, Disk, Disks, MemoryRefreshKind, RefreshKind, System};

use crate::files::Tree;
use crate::kubernetes::Facts;

/// What resolved writes for whoever asks the servers directly.
const UPSTREAM: &str = "/run/systemd/resolve/resolv.conf";
/// Steps in which memory is told, in MiB: firmware and kernel take a little more or less from boot to boot, and a node's
/// files must not change with it.
const STEP: u64 = 64;

/// Looks at the running machine.
pub(super) fn of_machine(root: &Tree) -> Facts {
    let kinds = RefreshKind::nothing().with_memory(MemoryRefreshKind::everything()).with_cpu(CpuRefreshKind::nothing());
    let system = System::new_with_specifics(kinds).ok();
    let memory = system.as_ref().map(|system| system.total_memory() / (1024 * 1024) / STEP * STEP);
    let swap = system.as_ref().map(|system| system.total_swap() / (1024 * 1024));
    let cpus = system.and_then(|system| u32::try_from(system.cpus().len()).ok());
    let disks = Disks::new_with_refreshed_list().ok();
    let on_root = |disks: Disks| disks.iter().find(|disk| disk.mount_point() == Path::new("/")).map(Disk::available_space);
    Facts {
        // The file is at the top of the tree only where no controller is left to version 1.
        unified_cgroups: root.facts(Path::new("/sys/fs/cgroup/cgroup.controllers")).ok().flatten().is_some(),
        swap,
        memory: memory.filter(|memory| *memory > 0),
        cpus: cpus.filter(|cpus| *cpus > 0),
        disk: disks.and_then(on_root).map(|bytes| bytes / (1024 * 1024)),
        resolved: root.facts(Path::new(UPSTREAM)).ok().flatten().is_some(),
    }
}
