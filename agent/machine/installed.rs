//! What the node's programs say of their releases, and what is to be made of it: `run` asks before anything is written or stopped,
//! `plan` to say whether `run` would begin at all.

use std::path::Path;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;

use crate::concurrent;
use crate::desired::Desired;
use crate::error::{Error, Result};
use crate::files::{FileKind, READ_LIMIT, Tree};
use crate::kubernetes::NodeSpec;
use crate::kubernetes::checks::installed::{
    FORWARDER, Program, ProgramVerdict, SETS, cni_programs, command, judge, lacks_cni, lacks_forwarder, lacks_sets,
    needs_forwarder, needs_sets, programs,
};
use crate::network::flannel::{Version, version_of};
use crate::systemd::{Systemd, UNIT_DIRECTORIES};

/// Where systemd looks for a program without a path.
pub(crate) const PLACES: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
/// A program that has not said its release after so long is not waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The rule that a refusal follows.
pub(crate) const RULE: &str =
    "a program gets only settings that its release supports; this is checked before anything is changed";

/// Who says which file a unit is.
#[derive(Clone, Copy)]
pub(crate) enum UnitFiles<'a> {
    /// The systemd that runs.
    Running(&'a Systemd),
    /// An image, where none runs.
    Image,
}

impl UnitFiles<'_> {
    /// The file of a unit; `None` where there is no such unit.
    async fn file(self, root: &Tree, unit: &str) -> Result<Option<String>> {
        match self {
            Self::Running(systemd) => Ok(Some(systemd.unit(unit).await?.fragment_path).filter(|path| !path.is_empty())),
            Self::Image => Ok(unit_file(root, unit)),
        }
    }
}

/// The file of a unit by its name, or its template's.
pub(crate) fn unit_file(root: &Tree, unit: &str) -> Option<String> {
    let template = unit.split_once('@').and_then(|(name, rest)| Some(format!("{name}@.{}", rest.rsplit_once('.')?.1)));
    let names = std::iter::once(unit.to_owned()).chain(template);
    let mut paths = names.flat_map(|name| UNIT_DIRECTORIES.map(|place| format!("{place}/{name}")));
    paths.find(|path| root.facts(Path::new(path)).is_ok_and(|facts| facts.is_some()))
}

/// Whose programs are asked.
pub(crate) struct InstalledPrograms<'a> {
    pub(crate) root: &'a Tree,
    pub(crate) units: UnitFiles<'a>,
    pub(crate) spec: &'a NodeSpec,
    pub(crate) desired: &'a Desired,
}

/// What `PATH --version` says, on whichever stream it says it.
pub(crate) type Ask<'a> = dyn Fn(&'static str, String) -> LocalBoxFuture<'a, Result<String>> + 'a;

/// Where a program is.
enum Place {
    File(String),
    /// Nowhere; how that is seen.
    Missing(String),
    /// In an image, which is not asked.
    Container,
}

/// What became of asking.
#[derive(Default)]
pub(crate) struct Verdicts {
    /// The release of flannel, where the node has one and it says so.
    pub(crate) flanneld: Option<Version>,
    /// What may be other than meant.
    pub(crate) warnings: Vec<(Program, ProgramVerdict)>,
    /// A program that one of them runs and that is not there, without which the node works but for one thing.
    pub(crate) lacking: Option<(Program, ProgramVerdict)>,
    /// Programs that are not on this host, and how that is seen; who brings the node up learns it by their units.
    pub(crate) missing: Vec<(Program, String)>,
    /// Why the node is not begun, with the program where it is one.
    pub(crate) refusals: Vec<(Option<Program>, ProgramVerdict)>,
}

impl Verdicts {
    /// That nothing is refused.
    ///
    /// # Errors
    /// If something is.
    pub(crate) fn check(&self) -> Result<()> {
        let refused = self.refused();
        if refused.is_empty() {
            return Ok(());
        }
        Err(Error::refused(refused).rule(RULE).remedy(self.remedy()).context("asking the installed programs for their versions"))
    }

    /// Why the node is not begun, one after the other; empty where nothing is refused.
    pub(crate) fn refused(&self) -> String {
        self.refusals.iter().flat_map(|(_, verdict)| verdict.refused.clone()).collect::<Vec<_>>().join("; ")
    }

    /// What to do about that.
    pub(crate) fn remedy(&self) -> String {
        let mut remedies: Vec<&str> = self.refusals.iter().map(|(_, verdict)| verdict.remedy.as_str()).collect();
        remedies.dedup();
        remedies.join("; ")
    }
}

impl InstalledPrograms<'_> {
    /// Asks each program. `flanneld`: its release, where it is known already.
    pub(crate) async fn judge(&self, ask: &Ask<'_>, flanneld: Option<Version>) -> Verdicts {
        let output = |program: Program| async move {
            match self.place(&program).await {
                Ok(Place::File(path)) => (program, Ok(ask(program.name, path).await)),
                Ok(place) => (program, Err(place)),
                Err(error) => (program, Ok(Err(error))),
            }
        };
        let all = concurrent::all(programs(self.spec, self.desired).map(output)).await;
        let of_flanneld = all.iter().find(|(program, _)| program.name == "flanneld");
        let of_flanneld = of_flanneld.and_then(|(_, output)| version_of(output.as_ref().ok()?.as_ref().ok()?));
        let mut verdicts = Verdicts { flanneld: of_flanneld.or(flanneld), ..Verdicts::default() };
        // In a container the image has its own helpers.
        let without = |name: &str, helper: &str| {
            let on_host = all.iter().find(|(program, output)| program.name == name && output.is_ok());
            on_host.filter(|_| found(self.root, helper).is_none()).map(|(program, _)| *program)
        };
        if let Some(kubelet) = without("kubelet", FORWARDER).filter(|_| needs_forwarder(self.spec)) {
            verdicts.lacking = Some((kubelet, lacks_forwarder()));
        }
        if let Some(proxy) = without("kube-proxy", SETS).filter(|_| needs_sets(self.spec)) {
            verdicts.refusals.push((Some(proxy), lacks_sets()));
        }
        for (program, output) in all {
            let verdict = match output {
                Ok(Ok(output)) => judge(self.spec, self.desired, &program, &output, verdicts.flanneld),
                Ok(Err(error)) => ProgramVerdict::unknown(
                    format!("{} does not report its release: {error}", program.name),
                    format!("check whether `{} --version` works; its flags are not checked", program.name),
                ),
                Err(Place::Missing(cause)) => {
                    verdicts.missing.push((program, cause));
                    continue;
                }
                Err(_) => continue,
            };
            if verdict.warning.is_some() {
                verdicts.warnings.push((program, verdict));
            } else if !verdict.refused.is_empty() {
                verdicts.refusals.push((Some(program), verdict));
            }
        }
        let lacking = lacking_cni(self.root, self.desired);
        if !lacking.is_empty() {
            verdicts.refusals.push((None, lacks_cni(&lacking)));
        }
        verdicts
    }

    /// The file that a unit runs: as our drop-in says, else as its unit file does.
    async fn place(&self, program: &Program) -> Result<Place> {
        let Some(text) = self.text(program.unit).await? else {
            return Ok(Place::Missing(format!("there is no unit {}", program.unit)));
        };
        let Some(command) = command(program, &text) else { return Ok(Place::Container) };
        let missing = || Place::Missing(format!("{} runs {command}, which is not there", program.unit));
        Ok(found(self.root, command).map_or_else(missing, Place::File))
    }

    /// The text that says what a unit runs; none where there is no such unit.
    pub(super) async fn text(&self, unit: &str) -> Result<Option<String>> {
        let folder = format!("/etc/systemd/system/{unit}.d/");
        let drop_ins = self.desired.files.iter().filter(|file| file.path.starts_with(&folder));
        let ours = drop_ins.rev().find(|file| file.content.contains("\nExecStart="));
        // The unit itself may be one that the parameters bring.
        let ours = ours.or_else(|| self.desired.file(&format!("/etc/systemd/system/{unit}")));
        if let Some(file) = ours {
            return Ok(Some(file.content.clone()));
        }
        let Some(fragment) = self.units.file(self.root, unit).await? else { return Ok(None) };
        let bytes = self.root.read(Path::new(&fragment), READ_LIMIT)?.unwrap_or_default();
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }
}

/// The stream on which a program says its release: flanneld takes standard error (seed-systems.md 8a).
pub(crate) fn release(out: String, err: String) -> String {
    if version_of(&out).is_some() { out } else { err }
}

/// The CNI plugins of the agent's own network that root cannot run.
pub(super) fn lacking_cni(root: &Tree, desired: &Desired) -> Vec<String> {
    cni_programs(desired).into_iter().filter(|path| !is_program(root, path)).collect()
}

/// Whether root can run it.
pub(crate) fn is_program(root: &Tree, path: &str) -> bool {
    let facts = root.facts_followed(Path::new(path)).ok().flatten();
    facts.is_some_and(|facts| facts.kind == FileKind::File && facts.mode & 0o111 != 0)
}

/// The file that systemd takes for the first word of a command line.
pub(crate) fn found(root: &Tree, command: &str) -> Option<String> {
    let there = |path: &String| root.facts_followed(Path::new(path)).is_ok_and(|facts| facts.is_some());
    if command.starts_with('/') {
        return Some(command.to_owned()).filter(there);
    }
    PLACES.iter().map(|place| format!("{place}/{command}")).find(there)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::File;
    use crate::files::Attributes;
    use crate::network::CNI_NETWORK;

    /// Without them the node was Ready, and every pod failed.
    #[test]
    fn cni_plugins_that_cannot_be_run_are_missing() {
        let dir = tempfile::tempdir().unwrap();
        let root = Tree::open(dir.path()).unwrap();
        for path in ["/opt/cni/bin", "/usr/lib/cni"] {
            root.create_dir_all(Path::new(path), Attributes::mode(0o755)).unwrap();
        }
        let network = r#"{"plugins": [{"type": "flannel"}, {"type": "portmap"}]}"#;
        let desired = Desired { files: vec![File::public(CNI_NETWORK, network)], ..Desired::default() };
        let lacking = || lacking_cni(&root, &desired).join(" ").replace("/opt/cni/bin/", "");
        assert_eq!(lacking(), "loopback flannel bridge host-local portmap");
        for (name, mode) in [("loopback", 0o755), ("bridge", 0o644), ("flannel", 0o755)] {
            root.write(&Path::new("/opt/cni/bin").join(name), b"x", Attributes::mode(mode)).unwrap();
        }
        // A link to where the distribution has it is as good, and one to nothing is none.
        root.write(Path::new("/usr/lib/cni/portmap"), b"x", Attributes::mode(0o755)).unwrap();
        root.link("../../../usr/lib/cni/portmap", Path::new("/opt/cni/bin/portmap")).unwrap();
        root.link("../../../usr/lib/cni/host-local", Path::new("/opt/cni/bin/host-local")).unwrap();
        assert_eq!(lacking(), "bridge host-local");
        assert_eq!(lacking_cni(&root, &Desired::default()), Vec::<String>::new(), "another's network");
    }

    /// Distributions have the plugins elsewhere: the whole directory may be a link to it, absolute or not, as may the one above.
    #[test]
    fn the_directory_of_cni_plugins_may_be_a_link_to_where_the_distribution_has_them() {
        let network = r#"{"plugins": [{"type": "bridge", "ipam": {"type": "host-local"}}, {"type": "portmap"}]}"#;
        let desired = Desired { files: vec![File::public(CNI_NETWORK, network)], ..Desired::default() };
        for (target, link) in
            [("/usr/lib/cni", "/opt/cni/bin"), ("../../usr/lib/cni", "/opt/cni/bin"), ("/usr/lib/of-cni", "/opt/cni")]
        {
            let dir = tempfile::tempdir().unwrap();
            let root = Tree::open(dir.path()).unwrap();
            for folder in ["/usr/lib/cni", "/usr/lib/of-cni/bin", &link[..link.rfind('/').unwrap()]] {
                root.create_dir_all(Path::new(folder), Attributes::mode(0o755)).unwrap();
            }
            root.link(target, Path::new(link)).unwrap();
            assert_eq!(lacking_cni(&root, &desired).len(), 4, "{target}");
            for name in ["loopback", "bridge", "host-local", "portmap"] {
                root.write(&Path::new("/opt/cni/bin").join(name), b"x", Attributes::mode(0o755)).unwrap();
            }
            assert_eq!(lacking_cni(&root, &desired), Vec::<String>::new(), "{target}");
            root.create_dir(Path::new("/opt/cni/bin"), Attributes::mode(0o700)).unwrap();
            assert_eq!(
                root.facts_followed(Path::new("/opt/cni/bin")).unwrap().unwrap().mode,
                0o755,
                "what it leads to is as it was"
            );
        }
    }
}
