//! A component that runs as a unit: its environment file, the drop-in that bends the unit to it, the unit itself.
//!
//! The drop-in drops the command line and the environment files of whatever unit the image has and gives ours: so no
//! flag is lost because a distribution's unit lacks a variable (magnum-node.md 7.3 no. 25). systemd looks up a program
//! without a path in its own fixed directories, so that it may lie in /usr/bin or /usr/local/bin.

use std::collections::BTreeSet;

use super::environment_file::line;
use super::host::{GUARDED, directory};
use crate::desired::{Desired, File, Need, Owner, Unit};

/// One component.
pub(super) struct Daemon {
    /// `kubelet.service`.
    pub(super) unit: &'static str,
    /// `kubelet`.
    pub(super) program: &'static str,
    /// Its environment file: `/etc/kubernetes/kubelet`.
    pub(super) settings: &'static str,
    /// Variables in the order in which the command line names them; the values are words, quoted as the unit splits them.
    pub(super) variables: Vec<(&'static str, String)>,
    /// Further environment files that stand before its own.
    pub(super) shared: &'static [&'static str],
    /// Whether the environment file holds a secret.
    pub(super) secret: bool,
    /// Further files whose change needs a restart.
    pub(super) restart_on: Vec<String>,
    /// What must be there before it is started.
    pub(super) needs: BTreeSet<Need>,
    /// Units that it is ordered after at boot.
    pub(super) after: Vec<&'static str>,
    /// Further lines of the unit section.
    pub(super) unit_lines: String,
    /// Further lines of the service section.
    pub(super) service_lines: String,
}

impl Daemon {
    pub(super) fn new(unit: &'static str, program: &'static str, settings: &'static str) -> Self {
        Self {
            unit,
            program,
            settings,
            variables: Vec::new(),
            shared: &[],
            secret: false,
            restart_on: Vec::new(),
            needs: BTreeSet::new(),
            after: Vec::new(),
            unit_lines: String::new(),
            service_lines: String::new(),
        }
    }

    /// Adds file, drop-in and unit; the gate is the component's own.
    pub(super) fn add(self, desired: &mut Desired) {
        let folder = format!("/etc/systemd/system/{}.d", self.unit);
        let drop_in = format!("{folder}/50-heat-node-agent.conf");
        let mut settings = String::from(
            "# Made by heat-node-agent from the parameters of the deployment; it is written again when they change.\n",
        );
        for (key, value) in &self.variables {
            settings.push_str(&line(key, value));
        }
        desired.directories.push(directory(&folder));
        let mode = if self.secret { 0o600 } else { 0o644 };
        let text = self.drop_in();
        desired.files.push(File {
            path: self.settings.to_owned(),
            mode,
            owner: Owner::root(),
            content: settings,
            secret: self.secret,
        });
        desired.files.push(File::public(drop_in.clone(), text));
        let own = [drop_in, self.settings.to_owned()].into_iter();
        let restart_on = own.chain(self.shared.iter().map(|&path| path.to_owned())).chain(self.restart_on).collect();
        desired.units.push(Unit {
            name: self.unit.to_owned(),
            enable: true,
            restart_on,
            needs: self.needs,
            applies_files: false,
        });
    }

    fn drop_in(&self) -> String {
        let mut out = format!("# Made by heat-node-agent.\n[Unit]\n{GUARDED}");
        if !self.after.is_empty() {
            out.push_str(&format!("After={}\n", self.after.join(" ")));
        }
        out.push_str(&self.unit_lines);
        out.push_str("# With Restart=always: what waits for its peers is not given up.\nStartLimitIntervalSec=0\n\n[Service]\n");
        out.push_str("# The empty lines drop the image's own, so that ours alone decide.\nEnvironmentFile=\n");
        for path in self.shared.iter().chain([&self.settings]) {
            out.push_str(&format!("EnvironmentFile={path}\n"));
        }
        let words: String = self.variables.iter().map(|(key, _)| format!(" ${key}")).collect();
        out.push_str(&format!("ExecStart=\nExecStart={}{words}\nRestart=always\nRestartSec=5\n", self.program));
        out.push_str(&self.service_lines);
        out
    }
}
