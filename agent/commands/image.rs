//! `verify --image`: whether a directory tree is ready to be booted as many machines.
//!
//! In: the root of an image, from inside of it or mounted. Out: every mistake at once, in words. It writes nothing.

use std::path::{Path, PathBuf};

use super::finding::Finding;
use crate::error::Result;
use crate::files::{FileKind, Tree};
use crate::settings::Settings;
use crate::systemd::UNIT_DIRECTORIES;

/// Where programs lie.
const PROGRAM_DIRECTORIES: [&str; 6] = ["usr/bin", "usr/sbin", "bin", "sbin", "usr/local/bin", "usr/local/sbin"];

/// Programs that the agent itself needs on every node.
pub(super) const TOOLS: [&str; 4] = ["sh", "mkfs.xfs", "systemctl", "journalctl"];

/// What an image has that Ignition sets up at its first boot: Ignition's part of the initramfs, the program, and the unit that ends
/// the first boot. Such an image has no cloud-init, and its units are enabled by the machine's own configuration (`systemd.units`).
const OF_IGNITION: [&str; 4] = [
    "usr/lib/dracut/modules.d/30ignition",
    "usr/bin/ignition",
    "usr/lib/systemd/system/ignition-firstboot-complete.service",
    "usr/lib/systemd/system/ignition-delete-config.service",
];

/// Files that belong to one machine: all that is there is refused.
const OF_ONE_MACHINE: &[(&str, &str, &str)] = &[
    ("var/lib/cloud/instance", "cloud-init has run here", "cloud-init clean --logs"),
    ("var/lib/cloud/data/instance-id", "cloud-init has run here", "cloud-init clean --logs"),
    ("var/lib/cloud/data/cfn-init-data", "it contains the credentials of another server", "remove it"),
    ("var/lib/heat-cfntools/cfn-init-data", "it contains the credentials of another server", "remove it"),
    ("var/lib/os-collect-config", "it contains the metadata of another server", "remove it"),
    ("var/lib/systemd/random-seed", "all machines would start with the same random seed", "remove it"),
    ("var/lib/systemd/credential.secret", "all machines would share this key", "remove it"),
    ("etc/sysconfig/heat-params", "it contains the parameters of another node", "remove it"),
];

/// Directories below which nobody's private key may lie: `(directory, how deep, what its name ends with)`.
const KEYS: &[(&str, u32, &str)] = &[
    ("etc/ssh", 1, "_key"),
    ("etc/kubernetes", 3, ".key"),
    ("etc/kubernetes", 3, ".pem"),
    ("srv/kubernetes", 2, ".key"),
    ("etc/etcd", 3, ".key"),
];

/// What comes after `multi-user.target`, or is it, which wants the unit.
const TOO_LATE: [&str; 4] = ["cloud-final.service", "cloud-init.target", "multi-user.target", "graphical.target"];

/// Looks at everything.
///
/// # Errors
/// If the tree cannot be read at all.
pub(crate) fn check(root: &Tree, settings: &Settings) -> Result<Vec<Finding>> {
    let mut check = Check { root, findings: Vec::new() };
    check.agent_is_installed()?;
    check.unit_is_enabled()?;
    check.unit_is_in_its_place()?;
    check.tools_are_there()?;
    check.no_machine_specific_files(settings)?;
    check.hooks_owned_by_root(settings)?;
    Ok(check.findings)
}

struct Check<'a> {
    root: &'a Tree,
    findings: Vec<Finding>,
}

impl Check<'_> {
    fn refuse(&mut self, place: &Path, what: impl Into<String>, remedy: impl Into<String>) {
        let place = Path::new("/").join(place).display().to_string();
        let (problem, remedy) = (what.into(), remedy.into());
        self.findings.push(Finding { place, problem, remedy, ..Finding::default() });
    }

    /// Program and units as the package lays them out, writable by root alone.
    fn agent_is_installed(&mut self) -> Result<()> {
        for (place, mode) in [
            ("usr/bin/heat-node-agent", 0o755),
            ("usr/lib/systemd/system/heat-node-agent.service", 0o644),
            ("usr/lib/systemd/system/heat-node-agent-guard.service", 0o644),
            ("usr/lib/systemd/system/heat-node-pod-network.service", 0o644),
            ("usr/lib/systemd/system/heat-node-firewall.service", 0o644),
            ("usr/lib/systemd/system/heat-node-firewall-again.service", 0o644),
            ("usr/lib/tmpfiles.d/heat-node-agent.conf", 0o644),
            ("usr/lib/systemd/catalog/heat-node-agent.catalog", 0o644),
        ] {
            let place = Path::new(place);
            match self.root.facts_followed(place)? {
                None => self.refuse(place, "is missing", "install the heat-node-agent package"),
                Some(facts) if facts.owner != (0, 0) || facts.mode != mode => {
                    let (user, group) = facts.owner;
                    self.refuse(
                        place,
                        format!("mode {:04o}, owner {user}:{group}", facts.mode),
                        format!("chown 0:0 and chmod {mode:04o}"),
                    );
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn unit_is_enabled(&mut self) -> Result<()> {
        // Without the guard neither etcd nor docker starts; without the network of pods docker does not.
        for (name, remedy) in [
            ("heat-node-agent.service", "systemctl unmask heat-node-agent.service"),
            ("heat-node-agent-guard.service", "systemctl unmask heat-node-agent-guard.service"),
            ("heat-node-pod-network.service", "systemctl unmask heat-node-pod-network.service"),
            ("heat-node-firewall.service", "systemctl unmask heat-node-firewall.service"),
        ] {
            let unit = Path::new("etc/systemd/system").join(name);
            if self.root.facts(&unit)?.is_some_and(|facts| facts.kind == FileKind::Link) {
                self.refuse(&unit, "the unit is masked, or replaced by a link", remedy);
            }
        }
        let wanted = ["multi-user.target.wants", "cloud-init.target.wants"]
            .map(|target| Path::new("etc/systemd/system").join(target).join("heat-node-agent.service"));
        let mut enabled = false;
        for link in &wanted {
            enabled |= self.root.facts(link)?.is_some();
        }
        if !enabled && !self.has_ignition()? {
            self.refuse(&wanted[0], "the unit is not enabled", "systemctl enable heat-node-agent.service");
        }
        for directory in ["multi-user.target.wants", "basic.target.wants"] {
            let link = Path::new("etc/systemd/system").join(directory).join("os-collect-config.service");
            if self.root.facts(&link)?.is_some() {
                self.refuse(
                    &link,
                    "os-collect-config is enabled too: each deployment would run twice",
                    "remove os-collect-config",
                );
            }
        }
        Ok(())
    }

    /// The boot does not wait for the unit, nor the unit for the end of the boot, whatever drop-ins add.
    fn unit_is_in_its_place(&mut self) -> Result<()> {
        let (mut is_late, mut is_waited_for) = (None, None);
        // Where /lib is no link, the package has nothing in it.
        for directory in UNIT_DIRECTORIES.iter().filter(|directory| !directory.starts_with("/lib/")) {
            let folder = Path::new(directory).join("heat-node-agent.service.d");
            if self.root.facts_followed(&folder)?.is_none_or(|facts| facts.kind != FileKind::Directory) {
                continue;
            }
            for name in self.root.list(&folder)? {
                let place = folder.join(name);
                // A link to /dev/null takes one of the same name out.
                if place.extension().is_none_or(|ending| ending != "conf")
                    || self.root.facts_followed(&place)?.is_none_or(|facts| facts.kind != FileKind::File)
                {
                    continue;
                }
                let bytes = self.root.read(&place, crate::files::READ_LIMIT)?.unwrap_or_default();
                let (waits, is_wanted) = order_of(&String::from_utf8_lossy(&bytes));
                is_late = is_late.or_else(|| waits.then(|| place.clone()));
                is_waited_for = is_waited_for.or_else(|| is_wanted.then_some(place));
            }
        }
        if let Some((place, _)) = is_late.zip(is_waited_for) {
            self.refuse(
                &place,
                "the agent and the end of the boot would wait for each other: systemd leaves one of them out",
                "remove After= of cloud-final.service, cloud-init.target and multi-user.target, or DefaultDependencies=yes",
            );
        }
        Ok(())
    }

    fn tools_are_there(&mut self) -> Result<()> {
        for program in TOOLS {
            let mut there = false;
            for directory in PROGRAM_DIRECTORIES {
                there |= self.root.facts_followed(&Path::new(directory).join(program))?.is_some();
            }
            if !there {
                let package = if program == "mkfs.xfs" { "xfsprogs" } else { "the distribution's base packages" };
                self.refuse(&Path::new("usr/bin").join(program), "the program is missing", format!("install {package}"));
            }
        }
        let cloud_init = (&["cloud-config.target"][..], "cloud-init, or use an image with Ignition");
        let first_boot = (!self.has_ignition()?).then_some(cloud_init);
        for (units, package) in std::iter::once((&["dbus.service", "dbus-broker.service"][..], "dbus")).chain(first_boot) {
            let mut there = false;
            for (directory, unit) in UNIT_DIRECTORIES.iter().flat_map(|directory| units.iter().map(move |unit| (directory, unit)))
            {
                there |= self.root.facts_followed(&Path::new(directory).join(unit))?.is_some();
            }
            if !there {
                let unit = units.first().copied().unwrap_or_default();
                self.refuse(&Path::new("usr/lib/systemd/system").join(unit), "the unit is missing", format!("install {package}"));
            }
        }
        Ok(())
    }

    /// Whether Ignition sets the machine up, in the place of cloud-init.
    fn has_ignition(&self) -> Result<bool> {
        for place in OF_IGNITION {
            if self.root.facts_followed(Path::new(place))?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn no_machine_specific_files(&mut self, settings: &Settings) -> Result<()> {
        for (place, what, remedy) in OF_ONE_MACHINE {
            let place = Path::new(place);
            if self.is_something(place)? {
                self.refuse(place, *what, *remedy);
            }
        }
        let state = inside(&settings.state_dir);
        if self.is_something(&state)? {
            self.refuse(&state, "the agent has run here: journal, outbox and keys of another machine", "empty the directory");
        }
        let record = inside(&settings.deploy.deployed_dir);
        if self.is_something(&record)? {
            self.refuse(
                &record,
                "deployments that ran here would be treated as already run on every machine",
                "empty the directory",
            );
        }
        let config = inside(&settings.sources.os_collect_config);
        if let Some(bytes) = self.root.read(&config, crate::files::READ_LIMIT)?
            && ["password", "secret_access_key", "metadata_url"].iter().any(|key| has_value(&bytes, key))
        {
            self.refuse(
                &config,
                "it contains the endpoint and credentials of another server",
                "remove it, or remove the credentials from it",
            );
        }
        self.machine_id()?;
        for (directory, depth, ending) in KEYS {
            self.keys(Path::new(directory), *depth, ending)?;
        }
        Ok(())
    }

    /// systemd makes one at the first boot where the file is empty, missing or says `uninitialized`.
    fn machine_id(&mut self) -> Result<()> {
        for place in ["etc/machine-id", "var/lib/dbus/machine-id"] {
            let place = Path::new(place);
            // dbus links its own to systemd's.
            if self.root.facts(place)?.is_none_or(|facts| facts.kind != FileKind::File) {
                continue;
            }
            let bytes = self.root.read(place, crate::files::READ_LIMIT)?.unwrap_or_default();
            let id = String::from_utf8_lossy(&bytes);
            if !matches!(id.trim(), "" | "uninitialized") {
                self.refuse(place, "all machines would have the same id", "truncate it to zero bytes");
            }
        }
        Ok(())
    }

    fn keys(&mut self, directory: &Path, depth: u32, ending: &str) -> Result<()> {
        if self.root.facts_followed(directory)?.is_none_or(|facts| facts.kind != FileKind::Directory) {
            return Ok(());
        }
        for name in self.root.list(directory)? {
            let place = directory.join(&name);
            match self.root.facts(&place)?.map(|facts| facts.kind) {
                Some(FileKind::Directory) if depth > 1 => self.keys(&place, depth - 1, ending)?,
                Some(FileKind::File) if name.to_string_lossy().ends_with(ending) && self.is_private_key(&place)? => {
                    self.refuse(&place, "all machines would share this private key", "remove it");
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn is_private_key(&self, place: &Path) -> Result<bool> {
        let bytes = self.root.read(place, crate::files::READ_LIMIT)?.unwrap_or_default();
        Ok(String::from_utf8_lossy(&bytes).contains("PRIVATE KEY-----"))
    }

    /// Hooks and settings run as root: who may write them is root.
    fn hooks_owned_by_root(&mut self, settings: &Settings) -> Result<()> {
        let mut places: Vec<PathBuf> = [
            "usr/lib/heat-node-agent",
            "etc/heat-node-agent",
            "usr/lib/heat-node-agent/agent.toml",
            "etc/heat-node-agent/agent.toml",
        ]
        .map(PathBuf::from)
        .to_vec();
        let fragments = ["usr/lib/heat-node-agent/agent.toml.d", "etc/heat-node-agent/agent.toml.d"].map(PathBuf::from);
        for directory in settings.deploy.hook_dirs.iter().map(|directory| inside(directory)).chain(fragments) {
            if self.root.facts_followed(&directory)?.is_some_and(|facts| facts.kind == FileKind::Directory) {
                places.extend(self.root.list(&directory)?.into_iter().map(|name| directory.join(name)));
            }
            places.push(directory);
        }
        for place in places {
            let Some(facts) = self.root.facts_followed(&place)? else { continue };
            if facts.owner.0 != 0 || facts.mode & 0o022 != 0 {
                self.refuse(
                    &place,
                    format!("mode {:04o}, owner {}: users other than root may change what root runs", facts.mode, facts.owner.0),
                    "chown root and chmod go-w",
                );
            }
        }
        Ok(())
    }

    /// Whether a file, or a directory with anything in it.
    fn is_something(&self, place: &Path) -> Result<bool> {
        Ok(match self.root.facts(place)?.map(|facts| facts.kind) {
            None => false,
            Some(FileKind::Directory) => !self.root.list(place)?.is_empty(),
            Some(_) => true,
        })
    }
}

/// A path of the booted system, as one below the image's root.
fn inside(path: &Path) -> PathBuf {
    path.strip_prefix("/").unwrap_or(path).to_owned()
}

/// Whether a drop-in orders its unit after the end of the boot, and whether it has that wait for the unit; both together are a cycle.
fn order_of(text: &str) -> (bool, bool) {
    let (mut is_unit, mut is_late, mut is_waited_for) = (false, false, false);
    for line in text.replace("\\\n", " ").lines().map(str::trim) {
        if line.starts_with('[') {
            is_unit = line == "[Unit]";
        }
        let (key, value) = line.split_once('=').filter(|_| is_unit).unwrap_or_default();
        match key.trim_end() {
            "After" => is_late |= value.split_whitespace().any(|unit| TOO_LATE.contains(&unit)),
            "DefaultDependencies" => is_waited_for = matches!(value.trim_start(), "yes" | "true" | "on" | "1" | "y" | "t"),
            _ => {}
        }
    }
    (is_late, is_waited_for)
}

/// Whether a line `key = something` stands in an INI file.
fn has_value(bytes: &[u8], key: &str) -> bool {
    String::from_utf8_lossy(bytes)
        .lines()
        .filter_map(|line| line.split_once('='))
        .any(|(name, value)| name.trim() == key && !value.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Attributes;

    fn write(root: &Tree, place: &str, text: &str, mode: u32) {
        let place = Path::new(place);
        root.create_dir_all(place.parent().unwrap(), Attributes::mode(0o755)).unwrap();
        root.write(place, text.as_bytes(), Attributes::mode(mode)).unwrap();
    }

    /// An image without a mistake, but for owners where the tests do not run as root.
    fn image(directory: &Path) -> Tree {
        let root = Tree::open(directory).unwrap();
        for program in ["usr/bin/heat-node-agent", "usr/bin/sh", "usr/sbin/mkfs.xfs", "usr/bin/systemctl", "usr/bin/journalctl"] {
            write(&root, program, "", 0o755);
        }
        for file in [
            "usr/lib/systemd/system/heat-node-agent.service",
            "usr/lib/systemd/system/heat-node-agent-guard.service",
            "usr/lib/systemd/system/heat-node-pod-network.service",
            "usr/lib/systemd/system/heat-node-firewall.service",
            "usr/lib/systemd/system/heat-node-firewall-again.service",
            "usr/lib/systemd/system/dbus.service",
            "usr/lib/systemd/system/cloud-config.target",
            "usr/lib/tmpfiles.d/heat-node-agent.conf",
            "usr/lib/systemd/catalog/heat-node-agent.catalog",
            "etc/machine-id",
        ] {
            write(&root, file, "", 0o644);
        }
        let wants = Path::new("etc/systemd/system/multi-user.target.wants");
        root.create_dir_all(wants, Attributes::mode(0o755)).unwrap();
        root.link("/usr/lib/systemd/system/heat-node-agent.service", &wants.join("heat-node-agent.service")).unwrap();
        root
    }

    fn found(root: &Tree) -> Vec<String> {
        // Owners are root's only where root runs the tests.
        let own = |finding: &Finding| nix::unistd::geteuid().is_root() || !finding.problem.contains("owner");
        let findings = check(root, &Settings::default()).unwrap();
        findings.into_iter().filter(own).map(|finding| finding.place).collect()
    }

    #[test]
    fn an_image_fit_to_boot_has_no_mistakes() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(found(&image(dir.path())), Vec::<String>::new());
    }

    #[test]
    fn whatever_belongs_to_one_machine_is_refused_each_by_its_place() {
        for (place, text) in [
            ("var/lib/heat-node-agent/node.json", "{}"),
            ("var/lib/heat-config/deployed/a.json", ""),
            ("var/lib/cloud/data/instance-id", "i-1"),
            ("var/lib/heat-cfntools/cfn-init-data", "{}"),
            ("etc/machine-id", "0123456789abcdef0123456789abcdef\n"),
            ("var/lib/systemd/random-seed", "0"),
            ("etc/ssh/ssh_host_ed25519_key", "-----BEGIN OPENSSH PRIVATE KEY-----\n"),
            ("etc/kubernetes/certs/server.key", "-----BEGIN PRIVATE KEY-----\n"),
            ("etc/os-collect-config.conf", "[cfn]\nsecret_access_key = x\n"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let root = image(dir.path());
            write(&root, place, text, 0o600);
            let found = found(&root);
            assert_eq!(found.len(), 1, "{place}: {found:?}");
            assert!(format!("/{place}").starts_with(&found[0]), "{place}: {found:?}");
        }
    }

    #[test]
    fn harmless_neighbours_pass() {
        let dir = tempfile::tempdir().unwrap();
        let root = image(dir.path());
        write(&root, "etc/machine-id", "uninitialized\n", 0o444);
        write(&root, "etc/ssh/ssh_host_ed25519_key.pub", "ssh-ed25519 AAAA", 0o644);
        write(&root, "etc/kubernetes/ca.pem", "-----BEGIN CERTIFICATE-----\n", 0o644);
        write(&root, "etc/os-collect-config.conf", "[DEFAULT]\ncommand = x\n[cfn]\nmetadata_url =\n", 0o600);
        root.create_dir_all(Path::new("var/lib/heat-node-agent"), Attributes::mode(0o700)).unwrap();
        assert_eq!(found(&root), Vec::<String>::new());
    }

    #[test]
    fn a_drop_in_that_moves_the_unit_in_the_boot_is_refused_by_its_place() {
        let own = "etc/systemd/system/heat-node-agent.service.d/late.conf";
        for (place, text, is_refused) in [
            // The one alone only makes it late, or the boot longer.
            (own, "[Unit]\nAfter=cloud-final.service\n", false),
            (own, "[Unit]\nAfter=network.target \\\n  cloud-init.target\nDefaultDependencies=on\n", true),
            (own, "[Unit]\nDefaultDependencies = yes\nAfter = multi-user.target\n", true),
            ("usr/lib/systemd/system/heat-node-agent.service.d/late.conf", "[Unit]\nDefaultDependencies=1\n", false),
            (own, "[Unit]\nDefaultDependencies=no\nAfter=cloud-init.service\n#After=cloud-final.service\n", false),
            (own, "[Service]\nAfter=cloud-final.service\n[Unit]\nBefore=cloud-final.service\n", false),
            ("etc/systemd/system/heat-node-agent.service.d/late.conf~", "[Unit]\nAfter=cloud-final.service\n", false),
            ("etc/systemd/system/etcd.service.d/late.conf", "[Unit]\nAfter=cloud-final.service\n", false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let root = image(dir.path());
            write(&root, place, text, 0o644);
            let expected = is_refused.then(|| format!("/{place}"));
            assert_eq!(found(&root), expected.into_iter().collect::<Vec<_>>(), "{place}: {text}");
        }
        let dir = tempfile::tempdir().unwrap();
        let root = image(dir.path());
        root.create_dir_all(Path::new(own).parent().unwrap(), Attributes::mode(0o755)).unwrap();
        root.link("/dev/null", Path::new(own)).unwrap();
        assert_eq!(found(&root), Vec::<String>::new());
    }

    /// Ignition's own configuration enables the unit (examples/ignition.json), and there is no cloud-init.
    #[test]
    fn an_image_with_ignition_needs_no_cloud_init_and_one_with_neither_is_refused() {
        let missing = [
            "/etc/systemd/system/multi-user.target.wants/heat-node-agent.service",
            "/usr/lib/systemd/system/cloud-config.target",
        ];
        let bare = |directory: &Path| {
            let root = image(directory);
            root.remove(Path::new("usr/lib/systemd/system/cloud-config.target")).unwrap();
            root.remove(Path::new("etc/systemd/system/multi-user.target.wants/heat-node-agent.service")).unwrap();
            root
        };
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(found(&bare(dir.path())), missing);
        for place in OF_IGNITION {
            let dir = tempfile::tempdir().unwrap();
            let root = bare(dir.path());
            if place.ends_with("30ignition") {
                root.create_dir_all(Path::new(place), Attributes::mode(0o755)).unwrap();
            } else {
                write(&root, place, "", 0o755);
            }
            assert_eq!(found(&root), Vec::<String>::new(), "{place}");
            // The rest is looked at as ever.
            root.link("/dev/null", Path::new("etc/systemd/system/heat-node-agent.service")).unwrap();
            root.remove(Path::new("usr/lib/systemd/system/dbus.service")).unwrap();
            assert_eq!(found(&root).len(), 2, "{place}");
        }
    }

    #[test]
    fn what_is_missing_masked_or_writable_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = image(dir.path());
        root.remove(Path::new("usr/sbin/mkfs.xfs")).unwrap();
        root.remove(Path::new("etc/systemd/system/multi-user.target.wants/heat-node-agent.service")).unwrap();
        root.link("/dev/null", Path::new("etc/systemd/system/heat-node-agent.service")).unwrap();
        root.set_attributes(Path::new("usr/bin/heat-node-agent"), Attributes::mode(0o775)).unwrap();
        write(&root, "usr/libexec/heat-config/hooks/ansible", "#!/bin/sh\n", 0o777);
        write(&root, "etc/heat-node-agent/agent.toml", "", 0o666);
        write(&root, "usr/lib/heat-node-agent/agent.toml.d/50-x.toml", "", 0o666);
        let places = found(&root);
        for place in [
            "/usr/bin/mkfs.xfs",
            "/etc/systemd/system/multi-user.target.wants/heat-node-agent.service",
            "/etc/systemd/system/heat-node-agent.service",
            "/usr/libexec/heat-config/hooks/ansible",
            "/etc/heat-node-agent/agent.toml",
            "/usr/lib/heat-node-agent/agent.toml.d/50-x.toml",
        ] {
            assert!(places.iter().any(|found| found == place), "{place} in {places:?}");
        }
        // The program's mode is judged with its owner, which is root's only where root runs the tests.
        assert_eq!(places.len(), if nix::unistd::geteuid().is_root() { 7 } else { 6 }, "{places:?}");
    }
}
