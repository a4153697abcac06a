//! `firewall`: the ports of the node's services, opened in the host's own firewall. Its unit runs it after the firewall's, at each
//! boot, start and reload of that.
//!
//! In: the file that the agent wrote, what the firewall's tool says. Out: commands of that tool, each said once it is done. A second
//! run does nothing.

use std::path::Path;
use std::process::ExitCode;

use super::{carry_out, note, print};
use crate::error::{Error, Result};
use crate::files::{Attributes, READ_LIMIT, Tree};
use crate::network::firewall::{self, FirewallRule, FirewalldPolicy, POLICIES};
use crate::network::{FIREWALL, FirewallFile, FirewallTool};
use crate::process::exit;
use crate::programs::tool::{ask, output_of};

/// What `iptables.service` of Fedora's iptables-services restores.
const SAVED: &str = "/etc/sysconfig/iptables";

/// Opens what the file asks for, and closes what it asks for no more.
///
/// # Errors
/// Says what could not be done.
pub fn run() -> Result<ExitCode> {
    let root = Tree::open(Path::new("/"))?;
    let wanted: FirewallFile = root.read_json(Path::new(FIREWALL))?.ok_or_else(|| {
        Error::permanent(format!("there is no {FIREWALL}")).remedy("the agent writes it if FIREWALL names the host's firewall")
    })?;
    let rules = firewall::rules(&wanted.open)?;
    let opened = wanted.tool.map_or(Ok(()), |tool| apply(&root, tool, &rules));
    // Whatever became of these: what is asked for no more goes.
    let cleared: Vec<Result<()>> = wanted.cleared.iter().map(|tool| clear(&root, *tool)).collect();
    opened?;
    cleared.into_iter().collect::<Result<()>>()?;
    Ok(exit::OK)
}

fn apply(root: &Tree, tool: FirewallTool, rules: &[FirewallRule]) -> Result<()> {
    match tool {
        FirewallTool::Nftables => nftables(rules),
        FirewallTool::Firewalld => firewalld(rules),
        FirewallTool::IptablesServices => save(root, rules).and_then(|()| iptables(rules)),
    }
}

/// Takes our rules out of a firewall that is named no more. One that is not installed has none; of firewalld that does not run they
/// go with its next start, which runs this unit again.
fn clear(root: &Tree, tool: FirewallTool) -> Result<()> {
    let is_present = match tool {
        FirewallTool::Nftables => ask("nft", &["--version"], "")?.is_some(),
        FirewallTool::IptablesServices => ask("iptables", &["--version"], "")?.is_some(),
        FirewallTool::Firewalld => match ask("firewall-cmd", &["--state"], "")? {
            Some(answer) if answer.ok => true,
            Some(_) => {
                note("firewalld is not running: the agent's policies are removed when it starts");
                false
            }
            None => false,
        },
    };
    if is_present { apply(root, tool, &[]) } else { Ok(()) }
}

fn nftables(rules: &[FirewallRule]) -> Result<()> {
    let ruleset = output_of("nft", &["-a", "list", "ruleset"], "")?;
    if !rules.is_empty() && !firewall::nft_is_closed(&ruleset) {
        note("no nftables input chain drops or rejects by its policy or last rule: nothing needs to be opened there");
    }
    let script = firewall::nft_script(&ruleset, rules);
    if script.is_empty() {
        return Ok(());
    }
    // One transaction: all of it or nothing.
    output_of("nft", &["-f", "-"], &script)?;
    print(&script)
}

fn iptables(rules: &[FirewallRule]) -> Result<()> {
    // -w: docker or kube-proxy may hold the tables' lock.
    let mut chains = output_of("iptables", &["-w", "-S", "INPUT"], "")?;
    chains.push_str(&output_of("iptables", &["-w", "-S", "FORWARD"], "")?);
    for mut command in firewall::iptables_commands(&chains, rules) {
        command.insert(0, "-w".to_owned());
        carry_out("iptables", &command)?;
    }
    Ok(())
}

fn save(root: &Tree, rules: &[FirewallRule]) -> Result<()> {
    let file = Path::new(SAVED);
    let (Some(bytes), Some(facts)) = (root.read(file, READ_LIMIT)?, root.facts_followed(file)?) else {
        if !rules.is_empty() {
            note(&format!("there is no {SAVED}: iptables.service restores nothing, and nothing is saved"));
        }
        return Ok(());
    };
    let text = String::from_utf8(bytes).map_err(|error| Error::permanent(error).context(format!("reading {SAVED}")))?;
    let saved = firewall::saved(&text, rules);
    if saved == text {
        return Ok(());
    }
    root.write(file, saved.as_bytes(), Attributes { mode: facts.mode, owner: Some(facts.owner) })?;
    print(&format!("wrote {SAVED}\n"))
}

/// A new policy is in force from firewalld's next reload on, which is asked for once. Rules of one that is there are changed in
/// both of its configurations: a reload would drop whatever an operator has not made permanent.
fn firewalld(rules: &[FirewallRule]) -> Result<()> {
    match ask("firewall-cmd", &["--state"], "")? {
        Some(answer) if answer.ok => {}
        Some(_) => {
            return Err(Error::transient("firewalld is not running")
                .context("opening the firewall")
                .remedy("systemctl start firewalld"));
        }
        None => {
            return Err(Error::permanent("firewall-cmd is not installed")
                .context("opening the firewall")
                .remedy("install firewalld in the image, or set FIREWALL to the firewall that is installed"));
        }
    }
    let permanent = output_of("firewall-cmd", &["--permanent", "--get-policies"], "")
        .map_err(|error| error.remedy("policies need firewalld 0.9 or later; with an older one open the ports by other means"))?;
    let running = output_of("firewall-cmd", &["--get-policies"], "")?;
    let mut reload = false;
    for policy in &POLICIES {
        let rich = policy.rich_rules(rules);
        let is_in = |list: &str| list.split_whitespace().any(|name| name == policy.name);
        if rich.is_empty() {
            // What runs lets nothing in any more; its name goes with firewalld's next reload.
            if is_in(&running) {
                change(policy, &[], &[])?;
            }
            if is_in(&permanent) {
                command(&["--permanent", &format!("--delete-policy={}", policy.name)])?;
            }
            continue;
        }
        if !is_in(&permanent) {
            command(&["--permanent", &format!("--new-policy={}", policy.name)])?;
        }
        let named = format!("--policy={}", policy.name);
        for (direction, zone) in [("ingress", "ANY"), ("egress", policy.egress)] {
            let zones = output_of("firewall-cmd", &["--permanent", &named, &format!("--list-{direction}-zones")], "")?;
            if zones.trim() != zone {
                command(&["--permanent", &named, &format!("--add-{direction}-zone={zone}")])?;
            }
        }
        change(policy, &["--permanent"], &rich)?;
        if is_in(&running) {
            change(policy, &[], &rich)?;
        } else {
            reload = true;
        }
    }
    if reload { command(&["--reload"]) } else { Ok(()) }
}

/// Makes the rules of a policy these, in the configuration that runs or the permanent one.
fn change(policy: &FirewalldPolicy, which: &[&str], rich: &[String]) -> Result<()> {
    let named = format!("--policy={}", policy.name);
    let arguments =
        |option: &str| -> Vec<String> { which.iter().copied().chain([named.as_str(), option]).map(str::to_owned).collect() };
    let there = output_of("firewall-cmd", &arguments("--list-rich-rules"), "")?;
    for option in policy.changes(&there, rich) {
        command(&arguments(&option))?;
    }
    Ok(())
}

fn command<S: AsRef<str>>(arguments: &[S]) -> Result<()> {
    carry_out("firewall-cmd", arguments)
}
