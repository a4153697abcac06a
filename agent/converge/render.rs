//! A plan for people and for programs: what the command `plan` prints. Pure.

use serde_json::{Value, json};

use super::observed::PlannedStep;
use super::plan::{AttributeChange, ChangePlan, DirectoryChange, FileChange};
use super::unified_diff;
use crate::http::without_userinfo;
use crate::report::text::escaped;

/// Of larger files only the size is shown: nobody reads such a diff, and comparing takes long.
const DIFF_LIMIT: usize = 256 * 1024;

impl ChangePlan {
    /// In one line: how many of what.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut parts = Vec::new();
        let mut part = |count: usize, one: &str, many: &str, verb: &str| {
            if count > 0 {
                parts.push(format!("{count} {} {verb}", if count == 1 { one } else { many }));
            }
        };
        let (new, old): (Vec<_>, Vec<_>) = self.directories.iter().partition(|change| change.new);
        part(new.len(), "directory", "directories", "to create");
        part(old.len(), "directory", "directories", "to change");
        let files = |action: &str| self.files.iter().filter(|change| change.action() == action).count();
        part(files("create"), "file", "files", "to create");
        part(files("change"), "file", "files", "to change");
        part(files("attributes"), "file", "files", "to give another mode or owner");
        for (verb, units) in self.units() {
            part(units.len(), "unit", "units", &format!("to {verb}"));
        }
        part(self.volumes.len(), "volume", "volumes", "to bring up");
        part(self.certificates.len(), "certificate or key", "certificates or keys", "to create or update");
        let summary = match parts.as_slice() {
            [] if self.reload => "systemd's unit files to reload".to_owned(),
            [] => "Nothing to do".to_owned(),
            parts => parts.join(", "),
        };
        match self.irreversible.as_slice() {
            [] => summary,
            parts => format!("{summary}; a failure will not be rolled back: {} cannot be taken back", parts.join(", ")),
        }
    }

    /// For programs: the same as [`ChangePlan::render`] says, and nothing that it masks.
    #[must_use]
    pub fn document(&self) -> Value {
        json!({
            "schema_version": 1,
            "summary": self.summary(),
            "changes": !self.is_empty(),
            "directories": self.directories.iter().map(DirectoryChange::document).collect::<Vec<_>>(),
            "files": self.files.iter().map(FileChange::document).collect::<Vec<_>>(),
            "reload": self.reload,
            "enable": self.enable,
            "run": self.helpers,
            "start": self.start,
            "restart": self.restart,
            "volumes": texts(&self.volumes),
            "certificates": texts(&self.certificates),
            "irreversible": self.irreversible,
        })
    }

    /// What happens to units, by verb.
    fn units(&self) -> [(&'static str, &[String]); 4] {
        [("enable", &self.enable), ("run", &self.helpers), ("start", &self.start), ("restart", &self.restart)]
    }

    /// For people: a summary, a unified diff of each file, then what happens to units and volumes. Secrets are masked.
    #[must_use]
    pub fn render(&self) -> String {
        if self.is_empty() {
            return "Nothing to do.\n".to_owned();
        }
        let mut out = format!("{}\n\n", self.summary());
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
        for (verb, units) in self.units() {
            for unit in units {
                line(&mut out, format_args!("{verb} {unit}"));
            }
        }
        for volume in &self.volumes {
            line(&mut out, format_args!("bring up {}", volume.text));
        }
        for certificate in &self.certificates {
            line(&mut out, format_args!("create or update {}", escaped(&certificate.text)));
        }
        out
    }
}

fn texts(steps: &[PlannedStep]) -> Vec<&str> {
    steps.iter().map(|step| step.text.as_str()).collect()
}

impl DirectoryChange {
    fn document(&self) -> Value {
        let action = if self.new { "create" } else { "change" };
        self.attributes.beside(json!({"path": self.path, "action": action}))
    }
}

impl FileChange {
    /// What is done to it, in a word.
    fn action(&self) -> &'static str {
        match (&self.before, self.rewrites) {
            (None, _) => "create",
            (Some(_), true) => "change",
            (Some(_), false) => "attributes",
        }
    }

    fn is_large(&self) -> bool {
        self.before.as_deref().map_or(0, str::len).max(self.after.len()) > DIFF_LIMIT
    }

    /// Its unified diff, where it is shown: line by line, without what must not reach a terminal.
    fn diff(&self) -> Option<Vec<String>> {
        if !self.rewrites || self.secret || self.is_large() {
            return None;
        }
        let path = escaped(&self.path);
        let old = if self.before.is_some() { path.as_str() } else { "/dev/null" };
        let text =
            format!("--- {old}\n+++ {path}\n{}", unified_diff::hunks(self.before.as_deref().unwrap_or_default(), &self.after));
        // The file that is there may hold anything: it must not move the cursor.
        let row = |row: &str| without_userinfo(row).split('\t').map(escaped).collect::<Vec<_>>().join("\t");
        Some(text.lines().map(row).collect())
    }

    fn document(&self) -> Value {
        self.attributes.beside(json!({
            "path": escaped(&self.path),
            "action": self.action(),
            "secret": self.secret,
            "bytes_before": self.before.as_ref().map(String::len),
            "bytes_after": self.after.len(),
            "diff": self.diff().map(|rows| rows.join("\n") + "\n"),
        }))
    }
}

impl AttributeChange {
    /// These members, and behind them its own.
    fn beside(&self, mut members: Value) -> Value {
        let owner = |(user, group): (u32, u32)| format!("{user}:{group}");
        let own = [
            ("mode_before", self.mode_before.map(|mode| format!("{mode:04o}")).into()),
            ("mode", format!("{:04o}", self.mode).into()),
            ("owner_before", self.owner_before.map(owner).into()),
            ("owner", format!("{}:{}", self.owner.user, self.owner.group).into()),
            ("owner_changes", self.owner_changes.into()),
        ];
        if let Some(members) = members.as_object_mut() {
            members.extend(own.map(|(name, value): (&str, Value)| (name.to_owned(), value)));
        }
        members
    }
}

fn file(out: &mut String, change: &FileChange) {
    let path = escaped(&change.path);
    let verb = match change.action() {
        "create" => "create file",
        "change" => "change file",
        _ => "change mode or owner of",
    };
    line(out, format_args!("{verb} {path}: {}", attributes(&change.attributes)));
    if !change.rewrites {
        return;
    }
    let before = change.before.as_deref().unwrap_or_default();
    if change.secret {
        let state = if change.before.is_some() { "changed" } else { "new" };
        line(out, format_args!("    (secret, {} bytes, {state})", change.after.len()));
    } else if change.is_large() {
        line(out, format_args!("    ({} bytes before, {} bytes after: too large to show)", before.len(), change.after.len()));
    }
    for row in change.diff().unwrap_or_default() {
        line(out, format_args!("{row}"));
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
    use crate::report::schema::assert_fits;

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
        let plan = ChangePlan {
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
            certificates: vec![PlannedStep {
                about: "/etc/etcd/certs/server.crt".into(),
                text: "/etc/etcd/certs/server.crt: it expired at 2026-01-01T00:00:00Z".into(),
            }],
            volumes: vec![PlannedStep {
                about: "etcd".into(),
                text: "etcd volume 1234 (Heat calls it /dev/vdc): mounted on /var/lib/etcd, formatted if blank".into(),
            }],
            irreversible: vec!["volumes".into(), "the etcd member".into()],
        };
        assert_fits("plan", &plan.document());
        assert_fits("plan", &ChangePlan::default().document());
        let expected = "\
1 directory to create, 1 file to create, 2 files to change, 1 file to give another mode or owner, 1 unit to enable, 1 unit to run, \
1 unit to start, 1 unit to restart, 1 volume to bring up, 1 certificate or key to create or update; a failure will not be rolled back: volumes, the etcd member cannot be taken back

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
        let document = plan.document();
        assert!(!document.to_string().contains("hunter"), "{document}");
        assert_eq!(document["summary"], expected.lines().next().unwrap());
        let files: Vec<_> = document["files"].as_array().unwrap().iter().map(|file| (&file["action"], &file["diff"])).collect();
        let diff = "--- /dev/null\n+++ /etc/etcd/new\n@@ -0,0 +1 @@\n+x\n";
        assert_eq!(files[1], (&json!("create"), &json!(diff)));
        assert_eq!([files[0].0, files[2].0, files[3].0], [&json!("change"), &json!("change"), &json!("attributes")]);
        assert!(files[2].1.is_null() && files[3].1.is_null() && document["files"][2]["secret"] == true);
        assert_eq!(
            (&document["directories"][0]["mode"], &document["directories"][0]["owner"]),
            (&json!("0750"), &json!("etcd:etcd"))
        );
        assert_eq!((&document["changes"], &document["restart"]), (&json!(true), &json!(["docker.service"])));
        assert_eq!(ChangePlan::default().document()["changes"], false);
        assert_eq!(ChangePlan::default().render(), "Nothing to do.\n");
    }

    #[test]
    fn a_huge_file_is_reported_by_size() {
        let huge = "x\n".repeat(DIFF_LIMIT);
        let plan = ChangePlan { files: vec![change("/etc/huge", None, &huge, false)], ..ChangePlan::default() };
        assert!(plan.render().ends_with("(0 bytes before, 524288 bytes after: too large to show)\n"));
    }
}
