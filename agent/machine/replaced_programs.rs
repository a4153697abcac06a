//! Units that still run a program which was replaced on disk: by a package, or by a link that leads to another release now.

use std::collections::BTreeSet;
use std::path::Path;

use super::installed::found;
use crate::files::Tree;
use crate::gather::Gather;
use crate::systemd::UnitState;

/// What the kernel adds to the name of a file that is not there any more (proc_pid_exe(5)).
const DELETED: &str = " (deleted)";

/// The command that prints which file each of these processes runs, for [`running_files`].
pub(crate) fn command(processes: &[u32]) -> Vec<String> {
    let links = processes.iter().map(|pid| format!("/proc/{pid}/exe"));
    ["stat", "--format=%N"].into_iter().map(str::to_owned).chain(links).collect()
}

/// By process, what that command printed: `'/proc/7/exe' -> '/usr/bin/etcd (deleted)'`.
pub(crate) fn running_files(printed: &str) -> Vec<(u32, String)> {
    let line = |line: &str| {
        let (link, file) = line.split_once(" -> ")?;
        let pid = link.trim_matches('\'').strip_prefix("/proc/")?.strip_suffix("/exe")?.parse().ok()?;
        Some((pid, file.strip_prefix('\'')?.strip_suffix('\'')?.to_owned()))
    };
    printed.lines().filter_map(line).collect()
}

/// The same, for who may look at every process.
pub(crate) fn visible_files(root: &Tree, processes: &[u32]) -> Vec<(u32, String)> {
    let file = |pid: &u32| {
        let link = root.read_link(Path::new(&format!("/proc/{pid}/exe"))).ok().flatten()?;
        Some((*pid, link.to_string_lossy().into_owned()))
    };
    processes.iter().filter_map(file).collect()
}

/// The main processes of units.
pub(crate) fn processes<'a>(units: impl IntoIterator<Item = &'a UnitState>) -> Vec<u32> {
    units.into_iter().map(|unit| unit.main_pid).filter(|pid| *pid > 0).collect()
}

/// The units of which another program would run if they were restarted.
pub(crate) fn replaced<'a>(
    root: &Tree,
    units: impl IntoIterator<Item = &'a UnitState>,
    running: &[(u32, String)],
) -> BTreeSet<String> {
    let is_replaced =
        |unit: &&UnitState| running.iter().any(|(pid, file)| *pid == unit.main_pid && is_replaced(root, &unit.program, file));
    units.into_iter().filter(is_replaced).map(|unit| unit.name.clone()).gather()
}

fn is_replaced(root: &Tree, program: &str, running: &str) -> bool {
    let inode = |path: &str| root.facts_followed(Path::new(path)).ok().flatten().map(|facts| facts.stamp.0);
    let (running, is_deleted) = running.strip_suffix(DELETED).map_or((running, false), |path| (path, true));
    let in_its_place = inode(running);
    // A script that runs the program says nothing, whatever its name is.
    let is_same =
        |program: &String| Path::new(program).file_name() == Path::new(running).file_name() && !is_script(root, program);
    let by_link = found(root, program).filter(is_same).and_then(|program| inode(&program));
    if is_deleted { in_its_place.or(by_link).is_some() } else { by_link.is_some_and(|next| Some(next) != in_its_place) }
}

/// Programs are larger than what is read here.
fn is_script(root: &Tree, program: &str) -> bool {
    root.read(Path::new(program), 64 * 1024).ok().flatten().is_some_and(|bytes| bytes.starts_with(b"#!"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Attributes;

    #[test]
    fn a_program_is_replaced_where_a_restart_would_run_another_one() {
        let dir = tempfile::tempdir().unwrap();
        let root = Tree::open(dir.path()).unwrap();
        for path in ["opt/1/kubelet", "opt/2/kubelet", "usr/bin/etcd", "usr/bin/start-etcd", "usr/bin/python3"] {
            root.create_dir_all(Path::new(path).parent().unwrap(), Attributes::mode(0o755)).unwrap();
            root.write(Path::new(path), b"", Attributes::mode(0o755)).unwrap();
        }
        for path in ["usr/bin/flanneld", "opt/1/flanneld"] {
            root.write(Path::new(path), b"#!/bin/sh\nexec /opt/1/flanneld\n", Attributes::mode(0o755)).unwrap();
        }
        root.link("/opt/2/kubelet", Path::new("usr/bin/kubelet")).unwrap();
        root.link("/usr/bin", Path::new("bin")).unwrap();
        for (program, running, expected) in [
            ("/usr/bin/etcd", "/usr/bin/etcd", false),
            ("/usr/bin/etcd", "/usr/bin/etcd (deleted)", true),
            // /usr/bin and /bin are one.
            ("/bin/etcd", "/usr/bin/etcd", false),
            ("/usr/bin/kubelet", "/opt/2/kubelet", false),
            ("/usr/bin/kubelet", "/opt/1/kubelet", true),
            ("/usr/bin/kubelet", "/opt/0/kubelet (deleted)", true),
            // There is nothing to run instead.
            ("/usr/bin/gone", "/usr/bin/gone (deleted)", false),
            // By a script, or an interpreter.
            ("/usr/bin/start-etcd", "/usr/bin/etcd", false),
            ("/usr/bin/start-etcd", "/usr/bin/etcd (deleted)", true),
            ("/usr/bin/start-etcd", "/usr/bin/python3", false),
            ("/usr/bin/flanneld", "/opt/1/flanneld", false),
            // As the agent's own units have it.
            ("kubelet", "/opt/1/kubelet", true),
            ("kubelet", "/opt/2/kubelet", false),
            ("nothing", "/opt/1/nothing", false),
            ("", "/usr/bin/etcd", false),
        ] {
            assert_eq!(is_replaced(&root, program, running), expected, "{program} {running}");
        }
    }

    #[test]
    fn what_is_printed_of_processes_is_read() {
        let printed =
            "'/proc/7/exe' -> '/usr/bin/etcd (deleted)'\nstat: cannot read\n'/proc/8/exe'\n'/proc/9/exe' -> '/opt/a b/x'\n";
        let expected = [(7, "/usr/bin/etcd (deleted)"), (9, "/opt/a b/x")].map(|(pid, file)| (pid, file.to_owned()));
        assert_eq!(running_files(printed), expected);
        assert_eq!(command(&[7, 9]), ["stat", "--format=%N", "/proc/7/exe", "/proc/9/exe"]);
        let unit = |name: &str, main_pid| UnitState { name: name.to_owned(), main_pid, ..UnitState::default() };
        assert_eq!(processes(&[unit("a", 7), unit("b", 0)]), [7]);
    }
}
