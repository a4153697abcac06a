//! Makes the manual pages and the shell completions from the tables of the agent, into a directory tree:
//! `cargo run --example manuals -- DIR` (image-build/documents does it).
//!
//! heat-node-agent(8) comes from the command line, heat-node-agent.toml(5) from the keys of the settings,
//! heat-node-agent-parameters(7) from the parameters of `kubernetes-node`, heat-node-agent-messages(7) from the journal's messages: the
//! same tables by which the agent works.

use std::path::Path;

use clap::builder::{StyledStr, ValueRange};
use clap::{Arg, Command, CommandFactory as _};
use clap_complete::Shell;
use heat_node_agent::clock::Timestamp;
use heat_node_agent::commands::command_line::Cli;
use heat_node_agent::error::{Error, Result};
use heat_node_agent::files::{Attributes, Tree};
use heat_node_agent::kubernetes::parameters::table::TABLE;
use heat_node_agent::report::Code;
use heat_node_agent::settings::KEYS;

const NAME: &str = "heat-node-agent";

/// Headings of the messages, by the two digits after `HNA-`.
const SECTIONS: &[(&str, &str)] = &[
    ("01", "The agent and its settings"),
    ("02", "Metadata sources"),
    ("03", "Volumes"),
    ("04", "Deployments"),
    ("05", "The node"),
    ("06", "Files and units"),
    ("07", "Gates"),
    ("08", "Signals"),
];

/// What is typed most, by whom and when.
const EXAMPLES: &[(&str, &str)] = &[
    ("heat-node-agent status", "Whether this node is in order, and if not, what is wrong and what to do."),
    ("heat-node-agent explain", "Why the node is not ready: the first condition that is not met, since when, and what to do."),
    (
        "journalctl -x -u heat-node-agent -p warning",
        "What went wrong so far, each line with its text of heat-node-agent-messages(7).",
    ),
    ("heat-node-agent logs kubelet", "What the kubelet said last, with the known secrets masked."),
    ("heat-node-agent plan --metadata FILE", "What a changed template would change on this node, as a diff; nothing is touched."),
    (
        "heat-node-agent verify --metadata TEMPLATE.yaml",
        "Before a stack is made or updated: every mistake in a Heat template, or in a server's metadata, at once and without a node.",
    ),
    ("heat-node-agent verify --image", "In an image's build: whether the image has what the agent needs."),
    ("heat-node-agent verify --image --metadata node.yaml", "The same, and what the nodes of this template need."),
    ("heat-node-agent rerun ID", "Run a failed deployment again once its cause is gone; Heat gets the new result."),
];

fn main() -> Result<()> {
    let directory = std::env::args_os()
        .nth(1)
        .ok_or_else(|| Error::permanent("no directory given").remedy("cargo run --example manuals -- DIR"))?;
    let tree = Tree::open(Path::new(&directory))?;
    let put = |path: &str, content: &[u8]| {
        let path = Path::new(path);
        tree.create_dir_all(path.parent().unwrap_or(path), Attributes::mode(0o755))?;
        tree.write(path, content, Attributes::mode(0o644))
    };
    let mut command = shown(&Cli::command());
    let man = "/usr/share/man";
    put(&format!("{man}/man8/{NAME}.8"), commands(&command).as_bytes())?;
    put(&format!("{man}/man5/{NAME}.toml.5"), settings().as_bytes())?;
    put(&format!("{man}/man7/{NAME}-parameters.7"), parameters().as_bytes())?;
    put(&format!("{man}/man7/{NAME}-messages.7"), messages().as_bytes())?;
    for (shell, path) in [
        (Shell::Bash, format!("/usr/share/bash-completion/completions/{NAME}")),
        (Shell::Zsh, format!("/usr/share/zsh/vendor-completions/_{NAME}")),
        (Shell::Fish, format!("/usr/share/fish/vendor_completions.d/{NAME}.fish")),
    ] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command, NAME, &mut script);
        put(&path, &script)?;
    }
    Ok(())
}

/// The command line as users see it: without what the agent calls by itself.
fn shown(whole: &Command) -> Command {
    Command::new(NAME)
        .version(env!("CARGO_PKG_VERSION"))
        .about(whole.get_about().cloned().unwrap_or_default())
        .args(whole.get_arguments().filter(|arg| !arg.is_hide_set()).cloned())
        .subcommand_required(true)
        .subcommands(whole.get_subcommands().filter(|command| !command.is_hide_set()).cloned())
}

// --- the pages --------------------------------------------------------------------------------------

fn commands(root: &Command) -> String {
    let mut page = Page::new(NAME, "8", &plain(root.get_about()));
    page.section("SYNOPSIS");
    page.line(&format!(".B {}", escaped(NAME)));
    page.text("[\u{1}OPTION\u{2}…] \u{1}COMMAND\u{2} [\u{1}ARGUMENT\u{2}…]");
    page.section("DESCRIPTION");
    page.text(
        "One small daemon, baked into a guest image, that takes an OpenStack instance from first boot to a healthy Kubernetes node that Heat \
         knows about. It polls Heat for the server's metadata, runs the deployments in it, finds, checks, formats and mounts the node's \
         Cinder volumes, writes the configuration of the node's components, starts them through systemd, measures their health, and tells \
         Heat how it went. It listens on nothing.",
    );
    page.text(
        "Without settings it learns where Heat is from what cloud-init left. `systemctl enable heat-node-agent.service` starts it at each boot.",
    );
    page.section("OPTIONS");
    options(&mut page, root);
    page.item("`-h`, `--help`", "Help, of the whole or of a command.");
    page.item("`-V`, `--version`", "The version.");
    page.section("COMMANDS");
    for command in root.get_subcommands() {
        describe(&mut page, command, "");
    }
    page.section("EXIT STATUS");
    for (code, meaning) in [
        ("0", "Success."),
        ("1", "Failed. For `run --once`: a deployment failed, or a signal waits."),
        (
            "2",
            "Only plan, status and certificates: changes are pending, something is degraded or near its end, or the daemon is down.",
        ),
        ("64", "Usage, or settings that cannot be used; systemd does not restart into them."),
        ("75", "The time limit of a wait was reached."),
    ] {
        page.item(&format!("`{code}`"), meaning);
    }
    page.section("FILES");
    for (path, meaning) in [
        ("/etc/heat-node-agent/agent.toml", "Settings; see heat-node-agent.toml(5)."),
        ("/etc/os-collect-config.conf", "The replaced collector's settings, taken over."),
        ("/var/lib/heat-cfntools/cfn-init-data, /var/lib/cloud/data/cfn-init-data", "The first metadata, from cloud-init."),
        ("/var/lib/heat-node-agent", "Directory for journal, outbox and caches; mode 0700."),
        ("/run/heat-node-agent/status.json", "The state for monitoring, without secrets."),
        ("/var/lib/heat-config/deployed", "The replaced tools' records, respected and kept up to date."),
    ] {
        page.item(&format!("\u{1}{path}\u{2}"), meaning);
    }
    page.section("EXAMPLES");
    for (command, purpose) in EXAMPLES {
        page.item(&format!("`{command}`"), purpose);
    }
    page.section("SEE ALSO");
    page.text("heat-node-agent.toml(5), heat-node-agent-parameters(7), heat-node-agent-messages(7), journalctl(1), systemctl(1)");
    page.done()
}

/// One command, and those below it.
fn describe(page: &mut Page, command: &Command, before: &str) {
    let name = format!("{before}{}", command.get_name());
    let usage: Vec<_> = command.get_arguments().filter(|arg| !arg.is_hide_set()).map(usage).collect();
    page.heading(&format!("`{name}` {}", usage.join(" ")));
    let about = plain(command.get_long_about().or_else(|| command.get_about()));
    for paragraph in about.split("\n\n") {
        page.text(&sentence(paragraph));
    }
    options(page, command);
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        describe(page, below, &format!("{name} "));
    }
}

fn options(page: &mut Page, command: &Command) {
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
        let help = plain(arg.get_long_help().or_else(|| arg.get_help()));
        page.item(&label(arg), &sentence(&help));
    }
}

/// `--settings FILE`.
fn label(arg: &Arg) -> String {
    let mut names: Vec<_> = arg.get_short().map(|short| format!("`-{short}`")).into_iter().collect();
    names.extend(arg.get_long().map(|long| format!("`--{long}`")));
    if names.is_empty() {
        return value(arg);
    }
    let names = names.join(", ");
    if !arg.get_action().takes_values() {
        return names;
    }
    let (optional, equals) =
        (arg.get_num_args().is_some_and(|range: ValueRange| range.min_values() == 0), arg.is_require_equals_set());
    match (optional, equals) {
        (true, true) => format!("{names}[={}]", value(arg)),
        (true, false) => format!("{names} [{}]", value(arg)),
        (false, true) => format!("{names}={}", value(arg)),
        (false, false) => format!("{names} {}", value(arg)),
    }
}

/// The same for the line of the command: in brackets where it can be left out.
fn usage(arg: &Arg) -> String {
    let label = label(arg);
    let many =
        arg.get_num_args().is_some_and(|range| range.max_values() > 1) || matches!(arg.get_action(), clap::ArgAction::Append);
    let label = if many { format!("{label}…") } else { label };
    if arg.is_required_set() { label } else { format!("[{label}]") }
}

fn value(arg: &Arg) -> String {
    let words: Vec<_> = arg
        .get_possible_values()
        .iter()
        .filter(|word| !word.is_hide_set())
        .map(|word| format!("`{}`", word.get_name()))
        .collect();
    if !words.is_empty() && arg.get_action().takes_values() {
        return words.join("|");
    }
    let names = match arg.get_value_names() {
        Some(names) => names.iter().map(ToString::to_string).collect(),
        None => vec![arg.get_id().as_str().to_uppercase()],
    };
    names.iter().map(|name| format!("\u{1}{name}\u{2}")).collect::<Vec<_>>().join(" ")
}

fn settings() -> String {
    let mut page = Page::new("heat-node-agent.toml", "5", "Settings of heat-node-agent");
    page.section("SYNOPSIS");
    for place in ["/usr/lib", "/run", "/etc"] {
        page.line(&format!(".I {}/heat\\-node\\-agent/agent.toml", escaped(place)));
        page.line(".br");
        page.line(&format!(".I {}/heat\\-node\\-agent/agent.toml.d/*.toml", escaped(place)));
        if place != "/etc" {
            page.line(".br");
        }
    }
    page.section("DESCRIPTION");
    page.text(
        "All files are optional, and so are all keys. Of the three \u{1}agent.toml\u{2} a later one wins key by key: that in \u{1}/run\u{2} over that in \
         \u{1}/usr/lib\u{2}, that in \u{1}/etc\u{2} over both. Then come the drop-ins of all three directories by file name; a file in \u{1}/etc\u{2} masks one of \
         the same name in \u{1}/run\u{2} or \u{1}/usr/lib\u{2}, and a link to \u{1}/dev/null\u{2} masks too.",
    );
    page.text(
        "An unknown key is a warning. A drop-in with a mistake is skipped with a warning; a mistake in an \u{1}agent.toml\u{2} ends the agent with \
         status 64. `heat-node-agent verify` lists every mistake at once.",
    );
    page.section("KEYS");
    let mut at = None;
    for key in KEYS {
        let (section, name) = key.path.rsplit_once('.').unwrap_or(("", key.path));
        if at != Some(section) {
            at = Some(section);
            page.heading(&if section.is_empty() { "At the top of the file".to_owned() } else { format!("`[{section}]`") });
        }
        let default = if key.default.is_empty() { String::new() } else { format!(" Default: {}.", key.default) };
        page.item(&format!("`{name} =` \u{1}{}\u{2}", key.rule()), &format!("{}.{default}", key.meaning.trim_end_matches('.')));
    }
    page.section("EXAMPLE");
    page.verbatim("polling_interval = 30\n\n[tls]\nca_file = \"/etc/ssl/certs/cloud-ca.pem\"\n\n[deploy]\ngroups = [\"kubernetes-node\", \"script\"]\n");
    page.section("SEE ALSO");
    page.text("heat-node-agent(8), heat-node-agent-parameters(7), heat-node-agent-messages(7)");
    page.done()
}

fn parameters() -> String {
    let mut page = Page::new("heat-node-agent-parameters", "7", "Parameters of the deployment group kubernetes-node");
    page.section("DESCRIPTION");
    page.text(
        "A deployment of the group `kubernetes-node` makes the server a Kubernetes node. Its inputs, or the assignments of its config in the form of \
         Magnum's heat-params, are these parameters: those of Magnum's templates from the first release to the last Heat driver, and the agent's own. \
         Names may be in any letter case. An empty value counts as none. An unknown name is an error in the inputs and a warning in heat-params.",
    );
    page.text(
        "`heat-node-agent verify --metadata` \u{1}FILE\u{2} checks a document; `heat-node-agent explain` \u{1}COMPONENT\u{2} shows on a node which \
         parameters a component was made from.",
    );
    page.section("PARAMETERS");
    let mut rows: Vec<_> = TABLE.iter().collect();
    rows.sort_by_key(|row| row.name);
    for row in rows {
        let default = if row.default.is_empty() { String::new() } else { format!(" Default: `{}`.", row.default) };
        let secret = if row.secret { " Its value is never shown." } else { "" };
        let meaning = capitalised(row.meaning);
        page.item(&format!("`{}`", row.name), &format!("{meaning}. Value: {}.{default}{secret}", row.kind.rule()));
    }
    page.section("EXAMPLE");
    page.verbatim(
        "resources:\n  config:\n    type: OS::Heat::StructuredConfig\n    properties:\n      group: kubernetes-node\n      config: {}\n      inputs:\n      \
         - {name: ROLE, default: minion}\n      - {name: KUBE_TAG, default: v1.28.4}\n      - {name: KUBE_MASTER_IP}\n",
    );
    page.section("SEE ALSO");
    page.text("heat-node-agent(8), heat-node-agent-messages(7)");
    page.done()
}

fn capitalised(text: &str) -> String {
    // A word that begins in lower case on purpose is a value: `haproxy: …`.
    let is_value = text.split_whitespace().next().is_some_and(|word| word.ends_with(':'));
    let mut letters = text.chars();
    match letters.next() {
        Some(first) if !is_value => first.to_uppercase().chain(letters).collect(),
        _ => text.to_owned(),
    }
}

fn messages() -> String {
    let mut page = Page::new("heat-node-agent-messages", "7", "Messages of heat-node-agent in the journal");
    page.section("DESCRIPTION");
    page.text(
        "Every line of the agent in the journal has a code, in `HNA_CODE`, and a `MESSAGE_ID`; both keep their meaning. `journalctl -x -u \
         heat-node-agent` shows the texts of this page beside each line, and `journalctl HNA_CODE=`\u{1}CODE\u{2} finds the lines of one message.",
    );
    let mut section = None;
    for code in Code::ALL {
        let entry = code.entry();
        let here = entry.code.get(4..6);
        if section != here {
            section = here;
            let title = SECTIONS.iter().find(|(digits, _)| Some(*digits) == here).map_or("Others", |(_, title)| title);
            page.section(&title.to_uppercase());
        }
        page.heading(&format!("{} {}", entry.code, entry.subject));
        let priority = format!("{:?}", entry.priority).to_lowercase();
        page.text(&format!("{}, {priority}", entry.name));
        page.line(".br");
        page.line(&styled(&format!("`MESSAGE_ID={}`", entry.message_id)));
        page.text(entry.body);
        page.text(&format!("What to do: {}", entry.remedy));
    }
    page.section("SEE ALSO");
    page.text("heat-node-agent(8), heat-node-agent.toml(5), journalctl(1)");
    page.done()
}

// --- man(7) -----------------------------------------------------------------------------------------

/// A page as it grows. In texts `words` in backquotes are bold, and what stands between U+0001 and U+0002 is italic.
struct Page(String);

impl Page {
    fn new(name: &str, section: &str, about: &str) -> Self {
        // The day of the source, so that the same source gives the same page.
        let seconds = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|seconds| seconds.parse::<u64>().ok()).unwrap_or_default();
        let day = Timestamp(seconds * 1000).rfc3339();
        let day = day.split('T').next().unwrap_or_default();
        let mut page = Self(format!(
            ".\\\" Made by image-build/manuals.rs.\n.TH {} {section} {day} \"{NAME} {}\" \"OpenStack nodes\"\n",
            escaped(&name.to_uppercase()),
            env!("CARGO_PKG_VERSION")
        ));
        page.section("NAME");
        page.line(&format!("{} \\- {}", escaped(name), escaped(about.trim_end_matches('.'))));
        page
    }

    fn line(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
    }

    fn section(&mut self, title: &str) {
        self.line(&format!(".SH \"{}\"", escaped(title)));
    }

    fn heading(&mut self, title: &str) {
        self.line(&format!(".SS \"{}\"", styled(title).replace('"', "\\(dq")));
    }

    /// A paragraph.
    fn text(&mut self, text: &str) {
        // After a heading the paragraph has begun already.
        let begun = self.0.lines().last().is_some_and(|last| last.starts_with(".S") || last.starts_with(".B "));
        if !begun {
            self.line(".PP");
        }
        self.line(&guarded(&styled(text)));
    }

    /// A term and what it means.
    fn item(&mut self, term: &str, meaning: &str) {
        self.line(".TP");
        self.line(&guarded(&styled(term)));
        self.line(&guarded(&styled(meaning)));
    }

    /// As it stands.
    fn verbatim(&mut self, text: &str) {
        self.line(".nf");
        for line in text.lines() {
            self.line(&guarded(&escaped(line)));
        }
        self.line(".fi");
    }

    fn done(self) -> String {
        self.0
    }
}

/// On one line, with its full stop.
fn sentence(text: &str) -> String {
    format!("{}.", text.split_whitespace().collect::<Vec<_>>().join(" ").trim_end_matches('.'))
}

fn plain(text: Option<&StyledStr>) -> String {
    text.map(ToString::to_string).unwrap_or_default()
}

/// A blank or a control line as text.
fn guarded(line: &str) -> String {
    if line.is_empty() || line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line.to_owned() }
}

fn styled(text: &str) -> String {
    let mut bold = false;
    let mut out = String::new();
    for letter in escaped(text).chars() {
        match letter {
            '`' => {
                bold = !bold;
                out.push_str(if bold { "\\fB" } else { "\\fR" });
            }
            '\u{1}' => out.push_str("\\fI"),
            '\u{2}' => out.push_str("\\fR"),
            other => out.push(other),
        }
    }
    out
}

/// Without meaning for the formatter.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\e"),
            '-' => out.push_str("\\-"),
            '…' => out.push_str("..."),
            '→' => out.push_str("\\(->"),
            other => out.push(other),
        }
    }
    out
}
