//! A plan for people: what the command `plan` prints. Pure.

use super::plan::{AttributeChange, FileChange, Plan};
use super::unified;
use crate::http::without_userinfo;
use crate::report::text::escaped;

/// Of larger files only the size is shown: nobody reads such a diff, and comparing takes long.
const DIFF_LIMIT: usize = 256 * 1024;

impl Plan {
    /// For people: a unified diff of each file, then what happens to units and volumes. Secrets are masked.
    #[must_use]
    pub fn render(&self) -> String {
        if self.is_empty() {
            return "Nothing to do.\n".to_owned();
        }
        let mut out = String::new();
        for change in &self.directories {
            let verb = if change.new { "create directory" } else { "change directory" };
            line(&mut out, format_args!("{verb} {}: {}", change.path, attributes(&change.attributes)));
        }
        for change in &self.files {
            file(&mut out, change);
        }
        if self.reload {
            out.push_str("reload systemd's unit files\n");
        }
        for (verb, units) in
            [("enable", &self.enable), ("run", &self.helpers), ("start", &self.start), ("restart", &self.restart)]
        {
            for unit in units {
                line(&mut out, format_args!("{verb} {unit}"));
            }
        }
        for volume in &self.volumes {
            line(&mut out, format_args!("bring up {volume}"));
        }
        for certificate in &self.certificates {
            line(&mut out, format_args!("create or update {}", escaped(certificate)));
        }
        out
    }
}

fn file(out: &mut String, change: &FileChange) {
    let path = escaped(&change.path);
    let verb = match (&change.before, change.rewrites) {
        (None, _) => "create file",
        (Some(_), true) => "change file",
        (Some(_), false) => "change mode or owner of",
    };
    line(out, format_args!("{verb} {path}: {}", attributes(&change.attributes)));
    if !change.rewrites {
        return;
    }
    let before = change.before.as_deref().unwrap_or_default();
    if change.secret {
        let state = if change.before.is_some() { "changed" } else { "new" };
        line(out, format_args!("    (secret, {} bytes, {state})", change.after.len()));
    } else if before.len().max(change.after.len()) > DIFF_LIMIT {
        line(out, format_args!("    ({} bytes before, {} bytes after: too large to show)", before.len(), change.after.len()));
    } else {
        let old = if change.before.is_some() { path.as_str() } else { "/dev/null" };
        let text = format!("--- {old}\n+++ {path}\n{}", unified::hunks(before, &change.after));
        for row in text.lines() {
            // The file that is there may hold anything: it must not move the cursor.
            let row = without_userinfo(row);
            let row: Vec<String> = row.split('\t').map(escaped).collect();
            line(out, format_args!("{}", row.join("\t")));
        }
    }
}

fn attributes(change: &AttributeChange) -> String {
    let owner = format!("{}:{}", change.owner.user, change.owner.group);
    let mode = match change.mode_before {
        Some(before) if before != change.mode => format!("mode {before:04o} -> {:04o}", change.mode),
        _ => format!("mode {:04o}", change.mode),
    };
    match change.owner_before {
        Some((user, group)) if change.owner_changes => format!("{mode}, owner {user}:{group} -> {owner}"),
        _ => format!("{mode}, owner {owner}"),
    }
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.push_str(&text.to_string());
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::converge::plan::DirectoryChange;
    use crate::desired::Owner;

    fn attributes(before: Option<u32>, mode: u32) -> AttributeChange {
        AttributeChange {
            mode_before: before,
            mode,
            owner_before: before.map(|_| (0, 0)),
            owner: Owner::named("etcd"),
            owner_number: Some((101, 101)),
            owner_changes: true,
        }
    }

    fn change(path: &str, before: Option<&str>, after: &str, secret: bool) -> FileChange {
        FileChange {
            path: path.into(),
            before: before.map(str::to_owned),
            after: after.into(),
            rewrites: before != Some(after),
            attributes: attributes(before.map(|_| 0o644), 0o640),
            secret,
        }
    }

    #[test]
    fn a_plan_reads_like_a_diff_and_hides_secrets() {
        let plan = Plan {
            directories: vec![DirectoryChange { path: "/etc/etcd".into(), new: true, attributes: attributes(None, 0o750) }],
            files: vec![
                change("/etc/etcd/etcd.conf", Some("a=1\nb=\x1b[2J\t2\nc=3\n"), "a=1\nb=4\nc=3", false),
                change("/etc/etcd/new", None, "x\n", false),
                change("/etc/etcd/key", Some("hunter1"), "hunter2", true),
                change("/etc/etcd/same", Some("kept\n"), "kept\n", false),
            ],
            reload: true,
            enable: vec!["etcd.service".into()],
            helpers: vec!["systemd-sysctl.service".into()],
            start: vec!["etcd.service".into()],
            restart: vec!["docker.service".into()],
            certificates: vec!["/etc/etcd/certs/server.crt: it expired at 2026-01-01T00:00:00Z".into()],
            volumes: vec!["etcd volume 1234 (Heat calls it /dev/vdc): mounted on /var/lib/etcd, formatted if blank".into()],
        };
        let expected = "\
create directory /etc/etcd: mode 0750, owner etcd:etcd
change file /etc/etcd/etcd.conf: mode 0644 -> 0640, owner 0:0 -> etcd:etcd
--- /etc/etcd/etcd.conf
+++ /etc/etcd/etcd.conf
@@ -1,3 +1,3 @@
 a=1
-b=\\u{1b}[2J\t2
-c=3
+b=4
+c=3
\\ No newline at end of file
create file /etc/etcd/new: mode 0640, owner etcd:etcd
--- /dev/null
+++ /etc/etcd/new
@@ -0,0 +1 @@
+x
change file /etc/etcd/key: mode 0644 -> 0640, owner 0:0 -> etcd:etcd
    (secret, 7 bytes, changed)
change mode or owner of /etc/etcd/same: mode 0644 -> 0640, owner 0:0 -> etcd:etcd
reload systemd's unit files
enable etcd.service
run systemd-sysctl.service
start etcd.service
restart docker.service
bring up etcd volume 1234 (Heat calls it /dev/vdc): mounted on /var/lib/etcd, formatted if blank
create or update /etc/etcd/certs/server.crt: it expired at 2026-01-01T00:00:00Z
";
        assert_eq!(plan.render(), expected);
        assert!(!format!("{plan:?}").contains("hunter"));
        assert_eq!(Plan::default().render(), "Nothing to do.\n");
    }

    #[test]
    fn a_huge_file_is_told_of_by_size() {
        let huge = "x\n".repeat(DIFF_LIMIT);
        let plan = Plan { files: vec![change("/etc/huge", None, &huge, false)], ..Plan::default() };
        assert!(plan.render().ends_with("(0 bytes before, 524288 bytes after: too large to show)\n"));
    }
}
