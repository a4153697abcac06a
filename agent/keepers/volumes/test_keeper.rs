//! What the tests of this folder share: a keeper whose machine is a directory, and whose other modules are a fake.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use super::keeper::VolumeKeeper;
use crate::clock::{Clock, Timestamp};
use crate::files::{Attributes, Tree};
use crate::progress::Progress;
use crate::report::Report;
use crate::storage::probe::DiskProbe;
use crate::storage::probe::tests::put;

/// The link by which udev names the volume's disk.
pub(super) const LINK: &str = "dev/disk/by-id/virtio-7c1f4d0e-93a2-4b86-8";

/// Over a directory that `machine` of the probe's tests made.
pub(super) fn keeper<H>(root: &Path, backend: H) -> VolumeKeeper<H> {
    link(root, LINK, "../../vdb");
    let tree = Tree::open(root).unwrap();
    tree.create_dir_all(Path::new("etc/systemd/system"), Attributes::mode(0o755)).unwrap();
    tree.create_dir_all(Path::new("state"), Attributes::mode(0o700)).unwrap();
    let clock = Clock::manual(Timestamp(1_772_366_399_000));
    VolumeKeeper {
        backend,
        probe: DiskProbe::at(root),
        state: Arc::new(tree.subtree(Path::new("state")).unwrap()),
        root: Arc::new(tree),
        progress: Progress::new(Report::kept(), clock.clone()),
        clock,
        growths: Rc::default(),
    }
}

/// Makes a link, in the place of one that may be there.
pub(super) fn link(root: &Path, path: &str, target: &str) {
    put(root, path, b"");
    Tree::open(root).unwrap().remove(Path::new(path)).unwrap();
    std::os::unix::fs::symlink(target, root.join(path)).unwrap();
}

/// The kernel shows a disk of this size.
pub(super) fn extend(root: &Path, mib: u64) {
    put(root, "sys/class/block/vdb/size", format!("{}\n", mib * 2048).as_bytes());
}
