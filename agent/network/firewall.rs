//! The host's firewall: from what its tools say to the commands that they get.
//!
//! A rule of ours is known by its comment, which says all of it. So a rule that is wanted and there is left alone, one that
//! says anything else is removed, and whatever lacks the comment is somebody else's. Only IPv4 is opened: nodes speak to each
//! other by nothing else here.

use std::fmt::Write;

use ipnet::Ipv4Net;

use super::{Opening, Protocol};
use crate::error::{Error, Result};

/// What the comments of our rules begin with.
const MARK: &str = "heat-node-agent: ";
/// The longest name of an opening: nft takes comments of 128 bytes.
const LONGEST: usize = 48;

/// One rule that lets packets pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirewallRule {
    /// What it is known by, and all that it says: `heat-node-agent: etcd clients tcp 2379 from 192.0.2.0/24`.
    pub comment: String,
    /// Whether it is about packets that the node forwards, in place of those that are for itself.
    pub forwarded: bool,
    /// Where packets come from.
    from: Option<Ipv4Net>,
    /// Where packets go to.
    to: Option<Ipv4Net>,
    /// `tcp` or `udp`, with the first and the last port.
    ports: Option<(&'static str, u16, u16)>,
}

impl FirewallRule {
    /// The rule in nft's words, for a table of the family ip or inet.
    fn nft(&self) -> String {
        let mut text = "meta nfproto ipv4".to_owned();
        for (word, net) in [("saddr", self.from), ("daddr", self.to)] {
            if let Some(net) = net {
                let _ = write!(text, " ip {word} {net}");
            }
        }
        if let Some((protocol, first, last)) = self.ports {
            let _ = write!(text, " {protocol} dport {}", range(first, last, '-'));
        }
        let _ = write!(text, " accept comment \"{}\"", self.comment);
        text
    }

    /// The rule in iptables' words, without the comment and what comes behind it.
    fn iptables(&self) -> String {
        let mut text = String::new();
        for (word, net) in [("-s", self.from), ("-d", self.to)] {
            if let Some(net) = net {
                let _ = write!(text, "{word} {net} ");
            }
        }
        if let Some((protocol, first, last)) = self.ports {
            let _ = write!(text, "-p {protocol} -m {protocol} --dport {} ", range(first, last, ':'));
        }
        text
    }

    /// The rule as a rich rule of firewalld, as `--list-rich-rules` prints it.
    fn rich(&self) -> String {
        let mut text = "rule family=\"ipv4\"".to_owned();
        for (word, net) in [("source", self.from), ("destination", self.to)] {
            if let Some(net) = net {
                let _ = write!(text, " {word} address=\"{net}\"");
            }
        }
        if let Some((protocol, first, last)) = self.ports {
            let _ = write!(text, " port port=\"{}\" protocol=\"{protocol}\"", range(first, last, '-'));
        }
        text.push_str(" accept");
        text
    }

    /// The chain of iptables that it belongs to.
    fn chain(&self) -> &'static str {
        if self.forwarded { "FORWARD" } else { "INPUT" }
    }
}

fn range(first: u16, last: u16, between: char) -> String {
    if first == last { first.to_string() } else { format!("{first}{between}{last}") }
}

/// The rules of these openings.
///
/// # Errors
/// If a name does not fit into a comment, ports are missing or turned round, or forwarded packets of no network are meant.
pub fn rules(open: &[Opening]) -> Result<Vec<FirewallRule>> {
    let mut rules = Vec::new();
    for Opening { what, protocol, ports, from } in open {
        let wrong = |why: &str| Err(Error::permanent(why).context(format!("opening the firewall for {what:?}")));
        let harmless = |c: char| c.is_ascii_alphanumeric() || " -_.,/()".contains(c);
        if what.is_empty() || what.len() > LONGEST || !what.chars().all(harmless) {
            return wrong("its name must be 1 to 48 letters, digits, spaces or -_.,/()");
        }
        let protocol = match protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Forwarded => {
                let (Some(network), None) = (from, ports) else {
                    return wrong("a forwarding rule needs a network and no ports");
                };
                for (direction, from, to) in [("from", Some(*network), None), ("to", None, Some(*network))] {
                    let comment = format!("{MARK}{what} {direction} {network}");
                    rules.push(FirewallRule { comment, forwarded: true, from, to, ports: None });
                }
                continue;
            }
        };
        let Some((first, last)) = ports.filter(|(first, last)| *first > 0 && first <= last) else {
            return wrong("it needs a first and a last port, from 1 to 65535");
        };
        let mut comment = format!("{MARK}{what} {protocol} {}", range(first, last, '-'));
        if let Some(from) = from {
            let _ = write!(comment, " from {from}");
        }
        rules.push(FirewallRule { comment, forwarded: false, from: *from, to: None, ports: Some((protocol, first, last)) });
    }
    Ok(rules)
}

/// Which of the wanted rules are not there, and the places of those of ours that are too many: not wanted, or there twice.
fn difference<'a>(there: &[Option<&str>], wanted: &[&'a FirewallRule]) -> (Vec<&'a FirewallRule>, Vec<usize>) {
    let wants = |comment: &str| wanted.iter().any(|rule| rule.comment == comment);
    let mut surplus = Vec::new();
    for (place, comment) in there.iter().enumerate() {
        if comment.is_some_and(|comment| !wants(comment) || there.iter().take(place).any(|earlier| *earlier == Some(comment))) {
            surplus.push(place);
        }
    }
    let missing = wanted.iter().filter(|rule| !there.contains(&Some(&rule.comment))).copied().collect();
    (missing, surplus)
}

/// A rule's comment, where it is one of ours; `before` is what stands before it in the tool's words.
fn comment<'a>(line: &'a str, before: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(before)?;
    let (comment, _) = rest.strip_prefix('"')?.split_once('"')?;
    comment.starts_with(MARK).then_some(comment)
}

// === nftables ===

/// A chain of nftables that packets come into from a hook.
#[derive(Debug, Default)]
struct Chain<'a> {
    /// Family, table and name.
    path: String,
    hook: &'a str,
    /// Whether what no rule takes is lost.
    closed: bool,
    rules: Vec<&'a str>,
}

/// What `nft -f -` gets, from `nft -a list ruleset`: nothing where all is there.
///
/// An accept ends only the chain that it stands in: packets then go on to the chains of other tables at the same hook, and a
/// drop there is final. So a table of our own opens nothing, and each closed chain gets the rules, at its top. A chain is closed by its policy
/// or by a last rule that drops or rejects whatever comes to it. One that is not, say of fail2ban, may drop what it likes.
///
/// The tables of iptables-nft are left to iptables, which does not understand a table any more that nft has written to.
#[must_use]
pub fn nft_script(output: &str, wanted: &[FirewallRule]) -> String {
    let mut script = String::new();
    for chain in chains(output) {
        let hook = chain.hook == "forward";
        // A chain that was opened for us and is not closed any more keeps nothing of ours.
        let wanted: Vec<&FirewallRule> = wanted.iter().filter(|rule| chain.closed && rule.forwarded == hook).collect();
        let there: Vec<_> = chain.rules.iter().map(|rule| comment(rule, "comment ")).collect();
        let (missing, surplus) = difference(&there, &wanted);
        for rule in missing {
            let _ = writeln!(script, "insert rule {} {}", chain.path, rule.nft());
        }
        for handle in surplus.iter().filter_map(|place| chain.rules.get(*place)?.rsplit_once("# handle ")) {
            let _ = writeln!(script, "delete rule {} handle {}", chain.path, handle.1);
        }
    }
    script
}

/// Whether any chain of the family ip or inet is closed to what comes in.
#[must_use]
pub fn nft_is_closed(output: &str) -> bool {
    chains(output).iter().any(|chain| chain.closed && chain.hook == "input")
}

/// The chains of the hooks input and forward that see packets of IPv4 and are nftables' own.
fn chains(output: &str) -> Vec<Chain<'_>> {
    let (mut table, mut found, mut open) = (String::new(), Vec::new(), None::<Chain>);
    for line in output.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["table", family, name, "{", ..] => {
                let theirs = matches!((*family, *name), ("ip", "filter" | "nat" | "mangle" | "raw" | "security"));
                // iptables-nft writes its chains in capitals; a distribution's sample may have a table ip filter of its own.
                let theirs = theirs && ["INPUT", "FORWARD"].iter().any(|chain| output.contains(&format!("\tchain {chain} {{")));
                table = if matches!(*family, "ip" | "inet") && !theirs { format!("{family} {name}") } else { String::new() };
            }
            ["chain", name, "{", ..] if !table.is_empty() => {
                open = Some(Chain { path: format!("{table} {name}"), ..Chain::default() });
            }
            ["}", ..] => {
                // A set or a map within the table ends by the same brace: then no chain is open.
                if let Some(mut chain) = open.take().filter(|chain| matches!(chain.hook, "input" | "forward")) {
                    chain.closed |= chain.rules.last().is_some_and(|rule| takes_all(rule));
                    found.push(chain);
                }
            }
            ["type", "filter", "hook", hook, ..] => {
                if let Some(chain) = &mut open {
                    (chain.hook, chain.closed) = (hook, line.contains("policy drop;"));
                }
            }
            [] => {}
            _ => open.iter_mut().for_each(|chain| chain.rules.push(line.trim())),
        }
    }
    found
}

/// Whether a rule drops or rejects without asking what it is: behind counters and logs only.
fn takes_all(rule: &str) -> bool {
    let mut words = rule.split_whitespace().peekable();
    while let Some(word) = words.next() {
        match word {
            "drop" | "reject" => return true,
            // nft puts it before a reject with a message of IPv4.
            "meta" => {
                if words.next() != Some("nfproto") || words.next() != Some("ipv4") {
                    return false;
                }
            }
            "counter" => {
                while words.next_if(|word| matches!(*word, "packets" | "bytes") || word.parse::<u64>().is_ok()).is_some() {}
            }
            "log" => while words.next_if(|word| !matches!(*word, "drop" | "reject" | "counter")).is_some() {},
            _ => return false,
        }
    }
    false
}

// === iptables ===

/// What iptables gets, a command each, from `iptables -S INPUT` and `iptables -S FORWARD` one behind the other.
///
/// Rules are removed by their number, the last one first; new ones go to the top, above the final reject.
#[must_use]
pub fn iptables_commands(output: &str, wanted: &[FirewallRule]) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    for chain in ["INPUT", "FORWARD"] {
        let begin = format!("-A {chain} ");
        let there: Vec<_> =
            output.lines().filter(|line| line.starts_with(&begin)).map(|line| comment(line, "--comment ")).collect();
        let wanted: Vec<&FirewallRule> = wanted.iter().filter(|rule| rule.chain() == chain).collect();
        let (missing, surplus) = difference(&there, &wanted);
        let number = |place: &usize| vec!["-D".to_owned(), chain.to_owned(), (place + 1).to_string()];
        commands.extend(surplus.iter().rev().map(number));
        for rule in missing {
            let mut command: Vec<String> =
                format!("-I {chain} {}", rule.iptables()).split_whitespace().map(str::to_owned).collect();
            command.extend(["-m", "comment", "--comment", &rule.comment, "-j", "ACCEPT"].map(str::to_owned));
            commands.push(command);
        }
    }
    commands
}

/// The file that `iptables.service` restores, with our rules in it. So there is no moment after its start or reload at which the
/// ports are closed, and at boot they are open before the agent comes.
///
/// Only lines of ours change. What `iptables-save` would write is more: what docker and kube-proxy have made since would come back at
/// the next boot, stale. Without a table `filter` in it a restore closes nothing, and nothing is added.
#[must_use]
pub fn saved(text: &str, wanted: &[FirewallRule]) -> String {
    let (mut out, mut in_filter, mut missing) = (String::new(), false, Vec::new());
    for line in text.lines() {
        // With counters a line begins by them: `[0:0] -A INPUT …`.
        let rule = line.strip_prefix('[').and_then(|line| line.split_once("] ")).map_or(line, |(_, rule)| rule);
        if line.starts_with('*') {
            in_filter = line.trim_end() == "*filter";
            missing = if in_filter { wanted.iter().collect() } else { Vec::new() };
        }
        // Before the first rule, behind the declarations of the chains.
        if in_filter && (rule.starts_with("-A ") || line.trim_end() == "COMMIT") {
            for rule in missing.drain(..) {
                let FirewallRule { comment, .. } = rule;
                let _ = writeln!(out, "-A {} {}-m comment --comment \"{comment}\" -j ACCEPT", rule.chain(), rule.iptables());
            }
        }
        if !(in_filter && rule.starts_with("-A ") && comment(rule, "--comment ").is_some()) {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

// === firewalld ===

/// A policy of firewalld that is all ours: the input from any zone, or what is forwarded between any two.
///
/// In a zone our rules could not be told from others', for rich rules have no comments; and which zone an interface is in is the
/// operator's. A policy's rules are looked at before those of zones (firewalld.policies(5), priority).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirewalldPolicy {
    /// Its name: 17 letters at most.
    pub name: &'static str,
    /// The zone that packets go to.
    pub egress: &'static str,
    forwarded: bool,
}

/// The two of them.
pub const POLICIES: [FirewalldPolicy; 2] = [
    FirewalldPolicy { name: "heat-node-agent", egress: "HOST", forwarded: false },
    FirewalldPolicy { name: "heat-node-pods", egress: "ANY", forwarded: true },
];

impl FirewalldPolicy {
    /// Its rich rules.
    #[must_use]
    pub fn rich_rules(&self, wanted: &[FirewallRule]) -> Vec<String> {
        wanted.iter().filter(|rule| rule.forwarded == self.forwarded).map(FirewallRule::rich).collect()
    }

    /// What makes its rules these, as options of `firewall-cmd`, from `--list-rich-rules`.
    #[must_use]
    pub fn changes(&self, output: &str, rules: &[String]) -> Vec<String> {
        let there: Vec<&str> = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let strays = there.iter().filter(|rule| !rules.iter().any(|wanted| wanted == *rule));
        let missing = rules.iter().filter(|rule| !there.contains(&rule.as_str()));
        strays
            .map(|rule| format!("--remove-rich-rule={rule}"))
            .chain(missing.map(|rule| format!("--add-rich-rule={rule}")))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opening(what: &str, protocol: Protocol, ports: Option<(u16, u16)>, from: Option<&str>) -> Opening {
        Opening { what: what.to_owned(), protocol, ports, from: from.map(|from| from.parse().unwrap()) }
    }

    fn wanted() -> Vec<FirewallRule> {
        rules(&[
            opening("etcd clients", Protocol::Tcp, Some((2379, 2380)), Some("192.0.2.0/24")),
            opening("flannel", Protocol::Udp, Some((8472, 8472)), None),
            opening("pods", Protocol::Forwarded, None, Some("10.1.0.0/16")),
        ])
        .unwrap()
    }

    const ETCD: &str = "heat-node-agent: etcd clients tcp 2379-2380 from 192.0.2.0/24";
    const FLANNEL: &str = "heat-node-agent: flannel udp 8472";
    const FROM: &str = "heat-node-agent: pods from 10.1.0.0/16";
    const TO: &str = "heat-node-agent: pods to 10.1.0.0/16";

    #[test]
    fn each_rule_is_known_by_a_comment_that_says_all_of_it() {
        let comments: Vec<_> = wanted().into_iter().map(|rule| rule.comment).collect();
        assert_eq!(comments, [ETCD, FLANNEL, FROM, TO]);
        // The longest name, network and ports are below nft's 128 bytes.
        let longest = opening(&"x".repeat(LONGEST), Protocol::Tcp, Some((10000, 65535)), Some("192.168.192.168/32"));
        assert!(rules(&[longest]).unwrap()[0].comment.len() < 128);
    }

    #[test]
    fn what_is_no_opening_is_refused() {
        for (what, protocol, ports, from) in [
            ("", Protocol::Tcp, Some((1, 1)), None),
            ("a \"quote\"", Protocol::Tcp, Some((1, 1)), None),
            ("a\nline", Protocol::Tcp, Some((1, 1)), None),
            ("$(reboot)", Protocol::Tcp, Some((1, 1)), None),
            (&*"x".repeat(49), Protocol::Tcp, Some((1, 1)), None),
            ("no ports", Protocol::Tcp, None, None),
            ("port 0", Protocol::Udp, Some((0, 5)), None),
            ("turned", Protocol::Udp, Some((6, 5)), None),
            ("no network", Protocol::Forwarded, None, None),
            ("ports", Protocol::Forwarded, Some((1, 1)), Some("10.1.0.0/16")),
        ] {
            assert!(rules(&[opening(what, protocol, ports, from)]).is_err(), "{what}");
        }
    }

    const RULESET: &str = "\
table inet filter { # handle 1
\tset allowed { # handle 9
\t\ttype ipv4_addr
\t\telements = { 192.0.2.1 }
\t}

\tchain input { # handle 1
\t\ttype filter hook input priority filter; policy drop;
\t\tiif \"lo\" accept # handle 4
\t\tct state established,related accept # handle 5
\t}

\tchain forward { # handle 2
\t\ttype filter hook forward priority filter; policy accept;
\t\tct state established accept # handle 6
\t\tmeta nfproto ipv4 counter packets 0 bytes 0 log prefix \"no: \" reject with icmp port-unreachable # handle 7
\t}

\tchain output { # handle 3
\t\ttype filter hook output priority filter; policy drop;
\t}

\tchain helper { # handle 8
\t\tdrop # handle 10
\t}
}
table inet f2b-table { # handle 2
\tchain f2b-chain { # handle 1
\t\ttype filter hook input priority filter - 1; policy accept;
\t\ttcp dport 22 ip saddr @addr-set-sshd reject with icmp port-unreachable # handle 3
\t}
}
table ip6 six { # handle 4
\tchain input { # handle 1
\t\ttype filter hook input priority filter; policy drop;
\t}
}
";

    #[test]
    fn every_closed_chain_of_nftables_is_opened_and_no_other() {
        assert_eq!(
            nft_script(RULESET, &wanted()),
            format!(
                "insert rule inet filter input meta nfproto ipv4 ip saddr 192.0.2.0/24 tcp dport 2379-2380 accept comment \"{ETCD}\"\n\
                 insert rule inet filter input meta nfproto ipv4 udp dport 8472 accept comment \"{FLANNEL}\"\n\
                 insert rule inet filter forward meta nfproto ipv4 ip saddr 10.1.0.0/16 accept comment \"{FROM}\"\n\
                 insert rule inet filter forward meta nfproto ipv4 ip daddr 10.1.0.0/16 accept comment \"{TO}\"\n"
            )
        );
        assert!(nft_is_closed(RULESET) && !nft_is_closed(RULESET.split_once("table inet f2b").unwrap().1));
    }

    #[test]
    fn what_is_there_is_left_what_is_not_wanted_goes() {
        let with = |rules: &str| RULESET.replacen("\t\tiif", &format!("{rules}\t\tiif"), 1);
        let etcd = format!("\t\tip saddr 192.0.2.0/24 tcp dport 2379-2380 accept comment \"{ETCD}\" # handle 20\n");
        let both = format!("{etcd}\t\tmeta nfproto ipv4 udp dport 8472 accept comment \"{FLANNEL}\" # handle 21\n");
        let wanted: Vec<FirewallRule> = wanted().into_iter().filter(|rule| !rule.forwarded).collect();
        assert_eq!(nft_script(&with(&both), &wanted), "");
        // Twice by two runs at once, and one for a port of earlier parameters. An operator's own comment is no business of ours.
        let more = format!(
            "{both}{}\t\ttcp dport 1 accept comment \"heat-node-agent: old tcp 1\" # handle 23\n\
             \t\ttcp dport 2 accept comment \"not heat-node-agent: mine\" # handle 24\n",
            etcd.replace("20", "22")
        );
        let script = nft_script(&with(&more), &wanted);
        assert_eq!(script, "delete rule inet filter input handle 22\ndelete rule inet filter input handle 23\n");
        assert_eq!(
            nft_script(&with(&both), &[]),
            "delete rule inet filter input handle 20\ndelete rule inet filter input handle 21\n"
        );
    }

    #[test]
    fn the_tables_of_iptables_are_left_to_it() {
        let theirs = "table ip filter { # handle 1\n\tchain INPUT { # handle 1\n\t\ttype filter hook input priority filter; policy drop;\n\t}\n}\n";
        assert_eq!(nft_script(theirs, &wanted()), "");
        assert!(!nft_is_closed(theirs));
        assert!(nft_is_closed(&theirs.replace("INPUT", "input")), "a distribution's sample has a table of that name");
    }

    const CHAINS: &str = "-P INPUT ACCEPT\n-A INPUT -m state --state RELATED,ESTABLISHED -j ACCEPT\n\
        -A INPUT -j REJECT --reject-with icmp-host-prohibited\n-P FORWARD DROP\n-A FORWARD -j DOCKER-USER\n";

    #[test]
    fn iptables_adds_what_is_missing_and_removes_what_is_left() {
        let all = iptables_commands(CHAINS, &wanted());
        let joined: Vec<_> = all.iter().map(|command| command.join("|")).collect();
        assert_eq!(
            joined,
            [
                format!("-I|INPUT|-s|192.0.2.0/24|-p|tcp|-m|tcp|--dport|2379:2380|-m|comment|--comment|{ETCD}|-j|ACCEPT"),
                format!("-I|INPUT|-p|udp|-m|udp|--dport|8472|-m|comment|--comment|{FLANNEL}|-j|ACCEPT"),
                format!("-I|FORWARD|-s|10.1.0.0/16|-m|comment|--comment|{FROM}|-j|ACCEPT"),
                format!("-I|FORWARD|-d|10.1.0.0/16|-m|comment|--comment|{TO}|-j|ACCEPT"),
            ]
        );
        let there = format!(
            "-P INPUT ACCEPT\n-A INPUT -p udp -m udp --dport 8472 -m comment --comment \"{FLANNEL}\" -j ACCEPT\n\
             -A INPUT -j ACCEPT\n-A INPUT -p tcp -m comment --comment \"heat-node-agent: old tcp 1\" -j ACCEPT\n\
             -A INPUT -p udp -m udp --dport 8472 -m comment --comment \"{FLANNEL}\" -j ACCEPT\n"
        );
        let flannel = &wanted()[1..2];
        let joined: Vec<_> = iptables_commands(&there, flannel).iter().map(|command| command.join(" ")).collect();
        assert_eq!(joined, ["-D INPUT 4", "-D INPUT 3"], "from the end on, or the numbers would change");
    }

    #[test]
    fn the_saved_file_gets_our_lines_and_keeps_every_other() {
        let file = "# sample\n*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -j MASQUERADE\nCOMMIT\n\
                    *filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n\
                    [7:9] -A INPUT -m state --state RELATED,ESTABLISHED -j ACCEPT\n-A INPUT -j REJECT\nCOMMIT\n";
        let opened = saved(file, &wanted());
        let lines = format!(
            "-A INPUT -s 192.0.2.0/24 -p tcp -m tcp --dport 2379:2380 -m comment --comment \"{ETCD}\" -j ACCEPT\n\
             -A INPUT -p udp -m udp --dport 8472 -m comment --comment \"{FLANNEL}\" -j ACCEPT\n\
             -A FORWARD -s 10.1.0.0/16 -m comment --comment \"{FROM}\" -j ACCEPT\n\
             -A FORWARD -d 10.1.0.0/16 -m comment --comment \"{TO}\" -j ACCEPT\n"
        );
        assert_eq!(opened, file.replace("[7:9] -A", &format!("{lines}[7:9] -A")));
        assert_eq!(saved(&opened, &wanted()), opened, "a second time changes nothing");
        assert_eq!(saved(&opened, &[]), file, "and all of it goes again");
        let counted = opened.replace("-A FORWARD", "[1:2] -A FORWARD");
        assert_eq!(saved(&counted, &[]), file, "with counters, too");
        let bare = "*filter\n:INPUT DROP [0:0]\nCOMMIT\n";
        assert_eq!(saved(bare, &wanted()), bare.replace("COMMIT", &format!("{lines}COMMIT")));
        let elsewhere = "*nat\n-A PREROUTING -j ACCEPT\nCOMMIT\n";
        assert_eq!(saved(elsewhere, &wanted()), elsewhere);
    }

    #[test]
    fn firewalld_keeps_a_policy_for_what_comes_in_and_one_for_what_goes_through() {
        let [input, forward] = POLICIES;
        let rich = input.rich_rules(&wanted());
        assert_eq!(
            rich,
            [
                r#"rule family="ipv4" source address="192.0.2.0/24" port port="2379-2380" protocol="tcp" accept"#,
                r#"rule family="ipv4" port port="8472" protocol="udp" accept"#,
            ]
        );
        assert_eq!(
            forward.rich_rules(&wanted()),
            [
                r#"rule family="ipv4" source address="10.1.0.0/16" accept"#,
                r#"rule family="ipv4" destination address="10.1.0.0/16" accept"#,
            ]
        );
        assert_eq!(input.changes(&rich.join("\n"), &rich), Vec::<String>::new());
        let old = r#"rule family="ipv4" port port="1" protocol="tcp" accept"#;
        assert_eq!(
            input.changes(&format!("{}\n{old}\n", rich[0]), &rich),
            [format!("--remove-rich-rule={old}"), format!("--add-rich-rule={}", rich[1])]
        );
    }
}
