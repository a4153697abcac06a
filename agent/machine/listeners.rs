//! Who listens on a TCP port of this machine: process and unit. Reads `/proc` and writes nothing.
//!
//! The agent's own sandbox hides the processes of others (`ProtectProc=`), so it asks by a job that runs the hidden command
//! `port-holders` outside of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::gather::Gather;

/// Who holds a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The port.
    pub port: u16,
    /// The process.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// The service or scope that it runs in.
    pub unit: Option<String>,
}

impl Holder {
    /// `port 2379 is held by nc (pid 812, foo.service)`.
    #[must_use]
    pub fn summary(&self) -> String {
        let unit = self.unit.as_ref().map(|unit| format!(", {unit}")).unwrap_or_default();
        format!("port {} is held by {} (pid {}{unit})", self.port, self.name.replace(char::is_control, "?"), self.pid)
    }

    /// What to look at, and the command that frees the port.
    #[must_use]
    pub fn remedy(&self) -> String {
        match &self.unit {
            Some(unit) if unit != "init.scope" => {
                format!("`systemctl status {unit}` shows what it is. If it is not needed, `systemctl stop {unit}` frees the port")
            }
            _ => format!("`ps -fp {pid}` shows what it is. If it is not needed, `kill {pid}` frees the port", pid = self.pid),
        }
    }
}

/// The holders of these ports, by port and process.
#[must_use]
pub fn holders(proc: &Path, ports: &BTreeSet<u16>) -> Vec<Holder> {
    let mut sockets = BTreeMap::new();
    for table in ["net/tcp", "net/tcp6"] {
        let text = std::fs::read_to_string(proc.join(table)).unwrap_or_default();
        sockets.extend(text.lines().filter_map(listening).filter(|(_, port)| ports.contains(port)));
    }
    let mut found = Vec::new();
    // Who ends meanwhile holds nothing any more.
    for entry in std::fs::read_dir(proc).into_iter().flatten().flatten().filter(|_| !sockets.is_empty()) {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let held: BTreeSet<u16> = std::fs::read_dir(entry.path().join("fd"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|file| std::fs::read_link(file.path()).ok())
            .filter_map(|target| sockets.get(socket(target.to_str()?)?).copied())
            .gather();
        let read = |name: &str| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let name = read("comm").trim().to_owned();
        found.extend(held.into_iter().map(|port| Holder { port, pid, name: name.clone(), unit: unit(&read("cgroup")) }));
    }
    found.sort_by_key(|holder| (holder.port, holder.pid));
    found
}

/// Inode and port of a socket that listens, by a line of `/proc/net/tcp` (`proc_pid_net(5)`).
fn listening(line: &str) -> Option<(String, u16)> {
    const LISTEN: &str = "0A";
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
    let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
    (*state == LISTEN).then(|| ((*inode).to_owned(), port))
}

/// The inode in `socket:[12345]`.
fn socket(target: &str) -> Option<&str> {
    target.strip_prefix("socket:[")?.strip_suffix(']')
}

/// The innermost unit of a process, by `/proc/PID/cgroup` (`cgroups(7)`): by systemd's own hierarchy, else by whichever names one. In a
/// container, one of two may show its root alone.
fn unit(cgroup: &str) -> Option<String> {
    let is_unit = |part: &&str| part.rsplit_once('.').is_some_and(|(_, kind)| matches!(kind, "service" | "scope"));
    let innermost = |line: &str| Some(line.splitn(3, ':').nth(2)?.rsplit('/').find(is_unit)?.to_owned());
    let own = cgroup.lines().filter(|line| line.contains(":name=systemd:")).find_map(innermost);
    own.or_else(|| cgroup.lines().find_map(innermost))
}

/// Ports that a program could not listen on, by what it said: `listen tcp 127.0.0.1:2379: bind: address already in use`, as the
/// standard library of Go has it, in which every component of Kubernetes is written.
#[must_use]
pub fn refused_ports(output: &[String]) -> BTreeSet<u16> {
    let port = |line: &String| {
        let (before, _) = line.split_once(": bind: address already in use")?;
        before.rsplit(':').next()?.parse::<u16>().ok()
    };
    output.iter().filter_map(port).gather()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::probe::tests::put;

    const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    fn line(address: &str, port: u16, state: &str, inode: u32) -> String {
        format!(
            "   0: {address}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0\n"
        )
    }

    fn process(root: &Path, pid: u32, name: &str, cgroup: &str, sockets: &[u32]) {
        put(root, &format!("{pid}/comm"), format!("{name}\n").as_bytes());
        put(root, &format!("{pid}/cgroup"), cgroup.as_bytes());
        put(root, &format!("{pid}/fd/.keep"), b"");
        for (number, inode) in sockets.iter().enumerate() {
            std::os::unix::fs::symlink(format!("socket:[{inode}]"), root.join(format!("{pid}/fd/{number}"))).unwrap();
        }
    }

    #[test]
    fn who_holds_a_port_is_named_with_its_unit() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let four = line("0100007F", 2379, "0A", 11) + &line("0100007F", 2380, "01", 12) + &line("00000000", 10250, "0A", 13);
        let six = line("00000000000000000000000000000000", 6443, "0A", 14);
        put(root, "net/tcp", (HEAD.to_owned() + &four).as_bytes());
        put(root, "net/tcp6", (HEAD.to_owned() + &six).as_bytes());
        process(root, 812, "nc", "9:name=systemd:/\n0::/system.slice/foo.service\n", &[11, 12, 99]);
        process(
            root,
            813,
            "hyperkube",
            "3:cpu:/system.slice/other.service\n1:name=systemd:/system.slice/runc-api.scope/init\n0::/\n",
            &[14, 14],
        );
        process(root, 1, "systemd", "0::/init.scope\n", &[13]);
        process(root, 900, "sh", "0::/user.slice/user-0.slice\n", &[13]);
        put(root, "self/comm", b"x");
        let found = holders(root, &BTreeSet::from([2379, 2380, 6443, 10_250]));
        let summaries: Vec<_> = found.iter().map(|one| (one.summary(), one.remedy())).collect();
        let expected = [
            (
                "port 2379 is held by nc (pid 812, foo.service)",
                "`systemctl status foo.service` shows what it is. If it is not needed, `systemctl stop foo.service` frees the port",
            ),
            (
                "port 6443 is held by hyperkube (pid 813, runc-api.scope)",
                "`systemctl status runc-api.scope` shows what it is. If it is not needed, `systemctl stop runc-api.scope` frees the port",
            ),
            (
                "port 10250 is held by systemd (pid 1, init.scope)",
                "`ps -fp 1` shows what it is. If it is not needed, `kill 1` frees the port",
            ),
            (
                "port 10250 is held by sh (pid 900)",
                "`ps -fp 900` shows what it is. If it is not needed, `kill 900` frees the port",
            ),
        ];
        assert_eq!(summaries, expected.map(|(summary, remedy)| (summary.to_owned(), remedy.to_owned())));
        assert!(holders(root, &BTreeSet::from([2380, 1])).is_empty(), "a connection holds no port");
        assert!(holders(&root.join("none"), &BTreeSet::from([2379])).is_empty());
    }

    #[test]
    fn the_port_is_taken_from_what_a_program_said() {
        for (line, ports) in [
            ("listen tcp 127.0.0.1:2379: bind: address already in use", &[2379][..]),
            (r#"{"level":"fatal","error":"listen tcp 192.0.2.11:2380: bind: address already in use"}"#, &[2380]),
            (
                "E1123 09:12:33.1 1 server.go:150] \"Failed\" err=\"listen tcp 0.0.0.0:10250: bind: address already in use\"",
                &[10_250],
            ),
            ("listen tcp [::]:6443: bind: address already in use", &[6443]),
            ("server.go:150] 09:12:33 address already in use", &[]),
            ("listen unix /run/docker.sock: bind: address already in use", &[]),
            ("listen tcp 127.0.0.1:99999: bind: address already in use", &[]),
        ] {
            assert_eq!(refused_ports(&[line.to_owned()]), ports.iter().copied().collect(), "{line}");
        }
    }
}
