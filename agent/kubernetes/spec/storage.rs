//! How the container runtime keeps images and containers, and what its parameters may ask for (magnum-node.md 1.4, 2.4).

use super::words::RuntimeKind;
use crate::desired::{ContainerEngine, Content, StorageDriver, Store};
use crate::desired::{DiskName, FormatPolicy};
use crate::kubernetes::parameters::mistake::Mistake;
use crate::kubernetes::parameters::read::Parameters;

const DRIVER: &str = "DOCKER_STORAGE_DRIVER";
const CHANGE: &str = "DOCKER_STORAGE_CHANGE";

/// GiB of a volume that a thin pool is made on: below it docker's first layers fill it (Magnum's own API asks for as much).
const LEAST_FOR_A_POOL: u32 = 3;

/// What the parameters ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Storage {
    /// `DOCKER_STORAGE_DRIVER`.
    pub driver: StorageDriver,
    /// `DOCKER_STORAGE_CHANGE`.
    pub leaves: Option<String>,
}

impl Storage {
    /// Checks the driver against runtime and volume.
    pub(in crate::kubernetes) fn from_parameters(
        parameters: &Parameters,
        engine: ContainerEngine,
        volume: Option<&VolumeSpec>,
        mistakes: &mut Vec<Mistake>,
    ) -> Self {
        let mut wrong = |name: &str, problem: String, rule: &str, remedy: &str| {
            mistakes.push(Mistake::general(name, problem, rule, remedy));
        };
        let asked = parameters.get(DRIVER).unwrap_or_default();
        let leaves = parameters.get(CHANGE).map(str::to_owned);
        let driver = match (asked, engine) {
            ("" | "overlay2", _) => StorageDriver::Overlay2,
            ("overlay", ContainerEngine::Docker) => StorageDriver::Overlay,
            ("btrfs", ContainerEngine::Docker | ContainerEngine::Containerd) => StorageDriver::Btrfs,
            ("devicemapper", ContainerEngine::Docker) => StorageDriver::Devicemapper,
            (other, _) => {
                let rule = match engine {
                    ContainerEngine::Docker => {
                        "docker can store images with overlay2, overlay, devicemapper or btrfs here; aufs, \
                         zfs and vfs are not supported"
                    }
                    ContainerEngine::Containerd => "containerd can store images with overlayfs or btrfs here",
                    ContainerEngine::CriO => "CRI-O can store images only with overlay here",
                };
                wrong(DRIVER, format!("this version does not support: {other}"), rule, "set it to overlay2");
                return Self { driver: StorageDriver::Overlay2, leaves };
            }
        };
        if driver == StorageDriver::Devicemapper {
            let size = parameters.number("DOCKER_VOLUME_SIZE");
            if volume.is_none() {
                let rule =
                    "the devicemapper thin pool is created on a volume; loop devices on the root disk are only for testing";
                wrong(
                    "DOCKER_VOLUME",
                    "is missing".to_owned(),
                    rule,
                    "give DOCKER_VOLUME, or set DOCKER_STORAGE_DRIVER to overlay2",
                );
            } else if let Some(size) = size.filter(|size| *size < LEAST_FOR_A_POOL) {
                let rule = format!("a thin pool for docker needs at least {LEAST_FOR_A_POOL} GiB");
                wrong("DOCKER_VOLUME_SIZE", format!("is {size}"), &rule, "give a larger volume, or use overlay2");
            }
        }
        if leaves.as_deref() == Some(driver.name_for(engine)) {
            let rule = "it names the driver whose images a change to another driver abandons";
            wrong(CHANGE, format!("names the current driver {}", driver.name_for(engine)), rule, "remove it");
        }
        Self { driver, leaves }
    }

    /// What the runtime's volume is made into.
    pub(in crate::kubernetes) fn content(&self) -> Content {
        match self.driver {
            StorageDriver::Overlay2 | StorageDriver::Overlay => Content::Xfs,
            StorageDriver::Btrfs => Content::Btrfs,
            StorageDriver::Devicemapper => Content::ThinPool,
        }
    }

    /// The store at a place.
    pub(in crate::kubernetes) fn store(&self, engine: ContainerEngine, path: &str) -> Store {
        Store { engine, path: path.to_owned(), driver: self.driver, leaves: self.leaves.clone() }
    }
}

/// Whose store a node has.
pub(in crate::kubernetes) fn engine(kind: Option<RuntimeKind>) -> ContainerEngine {
    match kind {
        None | Some(RuntimeKind::Docker) => ContainerEngine::Docker,
        Some(RuntimeKind::Containerd(..)) => ContainerEngine::Containerd,
        Some(RuntimeKind::CriO) => ContainerEngine::CriO,
    }
}

/// A volume, or a disk in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSpec {
    /// How its disk is known.
    pub disk: DiskName,
    /// When it may be formatted.
    pub format: FormatPolicy,
    /// `VOLUME_ADOPT`, where it names this volume.
    pub adopt: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fixtures::{problems, spec};

    const VOLUME: (&str, &str) = ("DOCKER_VOLUME", "7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4");

    #[test]
    fn a_driver_goes_with_its_runtime_and_its_volume_or_is_refused_by_name() {
        let docker = ("CONTAINER_RUNTIME", "docker");
        let containerd = ("CONTAINER_RUNTIME", "containerd");
        let driver = |name| (DRIVER, name);
        let size = |size| ("DOCKER_VOLUME_SIZE", size);
        let cannot = |name: &str| format!("{DRIVER} this version does not support: {name}");
        for (changes, expected) in [
            (vec![docker, driver("devicemapper")], vec!["DOCKER_VOLUME is missing".to_owned()]),
            (vec![docker, driver("devicemapper"), VOLUME, size("0")], vec!["DOCKER_VOLUME is missing".to_owned()]),
            (vec![docker, driver("devicemapper"), VOLUME, size("2")], vec!["DOCKER_VOLUME_SIZE is 2".to_owned()]),
            (vec![containerd, driver("devicemapper"), VOLUME], vec![cannot("devicemapper")]),
            (vec![containerd, driver("overlay")], vec![cannot("overlay")]),
            (vec![docker, driver("aufs")], vec![cannot("aufs")]),
            (vec![("CONTAINER_RUNTIME", "cri-o"), driver("btrfs")], vec![cannot("btrfs")]),
            (vec![docker, (CHANGE, "overlay2")], vec![format!("{CHANGE} names the current driver overlay2")]),
            (vec![containerd, (CHANGE, "overlayfs")], vec![format!("{CHANGE} names the current driver overlayfs")]),
        ] {
            assert_eq!(problems(&changes), expected, "{changes:?}");
        }
        for (changes, driver, content) in [
            (vec![docker, driver("devicemapper"), VOLUME, size("3")], StorageDriver::Devicemapper, Content::ThinPool),
            (vec![docker, driver("devicemapper"), VOLUME], StorageDriver::Devicemapper, Content::ThinPool),
            (vec![docker, driver("overlay")], StorageDriver::Overlay, Content::Xfs),
            (vec![docker, driver("btrfs"), (CHANGE, "overlay2")], StorageDriver::Btrfs, Content::Btrfs),
            (vec![containerd, driver("btrfs"), VOLUME], StorageDriver::Btrfs, Content::Btrfs),
            (vec![containerd], StorageDriver::Overlay2, Content::Xfs),
        ] {
            let found = spec(&changes).storage;
            assert_eq!((found.driver, found.content()), (driver, content), "{changes:?}");
        }
    }
}
