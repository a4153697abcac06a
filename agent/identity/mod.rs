//! Which instance this is, and whose the state on this disk is (design.md 4, "Identity").
//!
//! In: SMBIOS and what cloud-init said in this boot; the record in the state directory. Out: the [`Identity`] of the
//! machine, the [`InstanceRecord`] of whom the state belongs to, and, on a disk that was copied, the state set aside.
//! Never: the machine-id, which a copied disk brings along.

mod record;

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Context, Error, Result};
use crate::files::Tree;
pub use record::{
    ASIDE, InstanceRecord, LEARNT, Leftovers, Predecessor, bytes_aside, claim, may_start, owner, prune_beside, succeed,
    take_back, take_back_deployed,
};

/// Readable by root alone.
const PRODUCT_UUID: &str = "/sys/devices/virtual/dmi/id/product_uuid";

/// Written at every boot as soon as the data source is known, on a tmpfs: the copy in /var/lib/cloud/data is that of the
/// boot before until then, and on a copied disk that of another instance (cloud-init 0.7.7 and later, stages.py).
const INSTANCE_ID: &str = "/run/cloud-init/.instance-id";

/// Left by systemd, docker and podman in a container. Its SMBIOS is that of the host: the same in all containers there.
const CONTAINER: [&str; 3] = ["/run/systemd/container", "/.dockerenv", "/run/.containerenv"];

/// UUIDs that vendors leave in place of one of their own.
const NO_UUIDS: [&str; 3] =
    ["03000200-0400-0500-0006-000700080009", "00020003-0004-0005-0006-000700080009", "12345678-1234-5678-90ab-cddeefaabbcc"];

/// What cloud-init says where the data source named no instance.
const NO_INSTANCES: [&str; 2] = ["iid-datasource-none", "nocloud"];

/// Where an identity comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdentityOrigin {
    /// SMBIOS: Nova sets it to the server's UUID.
    Smbios,
    /// The data source of cloud-init.
    CloudInit,
}

/// What tells this instance from every other one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Who says so.
    pub origin: IdentityOrigin,
    /// A UUID in small letters, or cloud-init's word.
    pub value: String,
}

impl Identity {
    /// The identity of this machine, as far as it is known in this boot.
    ///
    /// # Errors
    /// Transient, with the remedy, while it is not known.
    pub fn of_machine(root: &Tree) -> Result<Self> {
        let in_container = CONTAINER.iter().any(|path| root.facts(Path::new(path)).ok().flatten().is_some());
        if !in_container
            && let Some(value) = line(root, PRODUCT_UUID)?.map(|text| text.to_ascii_lowercase()).filter(|text| is_own_uuid(text))
        {
            return Ok(Self { origin: IdentityOrigin::Smbios, value });
        }
        if let Some(value) = line(root, INSTANCE_ID)?.filter(|text| is_instance_id(text)) {
            let value = if is_uuid(&value) { value.to_ascii_lowercase() } else { value };
            return Ok(Self { origin: IdentityOrigin::CloudInit, value });
        }
        let smbios = if in_container { "a container shows its host's SMBIOS" } else { "SMBIOS has no UUID of this machine" };
        Err(Error::transient(format!("{smbios}, and cloud-init has not recorded an instance id in this boot"))
            .rule(format!("{PRODUCT_UUID}, otherwise {INSTANCE_ID}; never the machine-id"))
            .remedy(format!(
                "check `cloud-init status --long`; without cloud-init, have the boot process write the instance's id to {INSTANCE_ID}"
            )))
    }

    /// What `openstack server` calls this machine; a word in its place where that is not known.
    #[must_use]
    pub fn server(root: &Tree) -> String {
        Self::of_machine(root)
            .ok()
            .map(|identity| identity.value)
            .filter(|value| is_uuid(value))
            .unwrap_or_else(|| "SERVER".to_owned())
    }

    /// Whether both are the same instance. Kernels before 4.2 and old SMBIOS tables give the first three fields of a UUID
    /// in the other byte order: an upgrade must not look like another instance.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.value == other.value || swapped(&self.value).is_some_and(|swapped| swapped == other.value)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = match self.origin {
            IdentityOrigin::Smbios => "SMBIOS",
            IdentityOrigin::CloudInit => "cloud-init",
        };
        write!(f, "{} ({origin})", self.value)
    }
}

/// The text of a small file; none if it is empty or not there.
fn line(root: &Tree, path: &str) -> Result<Option<String>> {
    // sysfs gives a page whatever its size.
    let bytes = root.read(Path::new(path), 4096).context(|| "determining the instance's identity")?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()).filter(|text| !text.is_empty()))
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

/// A UUID that is not the same for a whole series of machines.
fn is_own_uuid(text: &str) -> bool {
    let digits = || text.bytes().filter(|byte| *byte != b'-');
    is_uuid(text) && digits().any(|byte| Some(byte) != digits().next()) && !NO_UUIDS.contains(&text)
}

fn is_instance_id(text: &str) -> bool {
    text.len() <= 255 && text.bytes().all(|byte| byte.is_ascii_graphic()) && !NO_INSTANCES.contains(&text)
}

/// The UUID with its first three fields in the other byte order.
fn swapped(uuid: &str) -> Option<String> {
    const ORDER: [usize; 18] = [6, 7, 4, 5, 2, 3, 0, 1, 8, 11, 12, 9, 10, 13, 16, 17, 14, 15];
    let (head, tail) = uuid.split_at_checked(ORDER.len()).filter(|_| is_uuid(uuid))?;
    let head: String = ORDER.iter().filter_map(|at| head.as_bytes().get(*at)).map(|byte| char::from(*byte)).collect();
    Some(head + tail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Attributes;

    const UUID: &str = "4f8b2c1d-93a2-4b86-8d55-2f60c6b1a9e4";

    fn machine(files: &[(&str, &str)]) -> Result<Identity> {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        for (path, content) in files {
            let path = Path::new(path);
            tree.create_dir_all(path.parent().unwrap(), Attributes::mode(0o755)).unwrap();
            tree.write(path, content.as_bytes(), Attributes::mode(0o600)).unwrap();
        }
        Identity::of_machine(&tree)
    }

    #[test]
    fn a_virtual_machine_is_known_by_smbios_a_container_by_cloud_init() {
        let upper = format!("{}\n", UUID.to_ascii_uppercase());
        let stale = ("/var/lib/cloud/data/instance-id", "of-the-boot-before\n");
        let named = (INSTANCE_ID, "i-00000001\n");
        let smbios = (PRODUCT_UUID, upper.as_str());
        for (files, found) in [
            (vec![smbios, named, stale], Some((IdentityOrigin::Smbios, UUID))),
            (vec![smbios], Some((IdentityOrigin::Smbios, UUID))),
            (vec![smbios, named, ("/run/systemd/container", "systemd-nspawn")], Some((IdentityOrigin::CloudInit, "i-00000001"))),
            (vec![smbios, named, ("/.dockerenv", "")], Some((IdentityOrigin::CloudInit, "i-00000001"))),
            (vec![smbios, ("/run/systemd/container", "lxc"), stale], None),
            (vec![named], Some((IdentityOrigin::CloudInit, "i-00000001"))),
            (vec![(INSTANCE_ID, upper.as_str())], Some((IdentityOrigin::CloudInit, UUID))),
            (vec![(PRODUCT_UUID, "Not Settable\n"), named], Some((IdentityOrigin::CloudInit, "i-00000001"))),
            (vec![(PRODUCT_UUID, "00000000-0000-0000-0000-000000000000\n"), stale], None),
            (vec![(PRODUCT_UUID, "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF\n")], None),
            (vec![(PRODUCT_UUID, "03000200-0400-0500-0006-000700080009\n")], None),
            (vec![(INSTANCE_ID, "iid-datasource-none\n")], None),
            (vec![(INSTANCE_ID, "\n")], None),
            (vec![(INSTANCE_ID, "a\u{1b}[2J\n")], None),
            (vec![stale, ("/etc/machine-id", "0123456789abcdef0123456789abcdef\n")], None),
        ] {
            let identity = machine(&files);
            let known = identity.as_ref().ok().map(|identity| (identity.origin, identity.value.as_str()));
            assert_eq!(known, found, "{files:?}");
            assert!(found.is_some() || identity.unwrap_err().suggested_remedy().unwrap().contains("cloud-init status"));
        }
    }

    #[test]
    fn the_byte_order_of_old_tables_is_no_other_instance() {
        let of = |value: &str| Identity { origin: IdentityOrigin::Smbios, value: value.to_owned() };
        assert_eq!(swapped("00112233-4455-6677-8899-aabbccddeeff").unwrap(), "33221100-5544-7766-8899-aabbccddeeff");
        assert!(of(UUID).is(&of(UUID)) && of(UUID).is(&of(&swapped(UUID).unwrap())));
        assert!(of(UUID).is(&Identity { origin: IdentityOrigin::CloudInit, value: UUID.to_owned() }), "Nova gives both the same");
        assert!(!of(UUID).is(&of("4f8b2c1d-93a2-4b86-8d55-2f60c6b1a9e5")) && !of("i-1").is(&of("i-2")));
    }
}
