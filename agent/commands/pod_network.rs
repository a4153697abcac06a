//! `pod-network`: this node's part of the network of pods. Its unit runs it at each boot, before the container runtime and without
//! the daemon.
//!
//! In: the file that the agent wrote, flannel's subnet, what `ip` and `iptables` say. Out: docker's options, a bridge, routes and
//! rules; a line for each thing that was done. A second run does nothing.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use ipnet::Ipv4Net;

use super::{carry_out, note, print, print_error};
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::desired::Peer;
use crate::error::{Error, Result};
use crate::files::{Attributes, READ_LIMIT, Tree};
use crate::network::links::{self, BridgeOwnership, Words, words};
use crate::network::subnet_env::{self, Subnet};
use crate::network::{CNI_NETWORK, DOCKER_OPTIONS, DOCKER_VARIABLE, POD_NETWORK, PodNetworkFile, SUBNET_FILES};
use crate::process::exit;
use crate::programs::tool::{ask, output_of};
use crate::report::notify::Notify;
use crate::watch::{RouteNews, Watch};

/// How often somebody hears what is waited for.
const REMINDER: Duration = Duration::from_mins(1);
/// The poll under inotify.
const POLL: Duration = Duration::from_secs(2);

/// Until routes that could not be made are tried again, where nothing is heard of the network.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_mins(5));
/// docker's option that leaves packets from other nodes to containers alone.
const DIRECT: &str = "--allow-direct-routing";
/// What comes so soon after the first news is part of it.
const GATHERED: Duration = Duration::from_millis(500);
/// Who never falls silent is not waited for.
const GATHERINGS: u32 = 4;

/// Does what the file asks for. Of several routes each is tried, and each that fails is said; the unit then tries on, a run by
/// hand ends.
///
/// # Errors
/// Says what could not be done.
pub fn run() -> Result<ExitCode> {
    let root = Tree::open(Path::new("/"))?;
    let wanted: PodNetworkFile = root.read_json(Path::new(POD_NETWORK))?.ok_or_else(|| {
        Error::permanent(format!("there is no {POD_NETWORK}"))
            .remedy("the agent writes it if the node has to set up a pod network")
    })?;
    let notify = Notify::default();
    match wanted {
        PodNetworkFile::DockerBridge { network, bridge } => {
            take_away(None, &[])?;
            let subnet = subnet(&root, network)?;
            write_options(&root, &subnet)?;
            remove_stale(&root, &bridge, subnet.address)?;
            set_forwarding_rules(Some(network))?;
            masquerade(None)?;
        }
        PodNetworkFile::Cni { network } => {
            take_away(None, &[])?;
            subnet(&root, network)?;
            set_forwarding_rules(Some(network))?;
            masquerade(None)?;
        }
        PodNetworkFile::Routes { network, bridge, address, peers } => {
            let peers: Vec<Peer> = peers.into_iter().filter(|peer| peer.subnet != address.trunc()).collect();
            make_bridge(&bridge, address)?;
            take_away(Some(&bridge), &peers)?;
            set_forwarding_rules(Some(network))?;
            masquerade(Some(network))?;
            return keep_trying(&peers, notify);
        }
        PodNetworkFile::Nothing {} => {
            take_away(None, &[])?;
            set_forwarding_rules(None)?;
            masquerade(None)?;
            // The first network in their folder counts for runtimes.
            if root.remove(Path::new(CNI_NETWORK))? {
                print(&format!("removed {CNI_NETWORK}\n"))?;
            }
        }
    }
    notify.ready();
    Ok(exit::OK)
}

/// What flannel gave this node, however late: after a power cut it waits for etcd, which needs most of its members, and docker's
/// start waits in its queue for this unit. Whoever starts it has a deadline of his own. A subnet of an earlier network is waited
/// out: flanneld writes the file anew once it has a lease.
fn subnet(root: &Tree, network: Ipv4Net) -> Result<Subnet> {
    let clock = Clock::system();
    let (waited, mut output) = (clock.start(), None);
    let news = Watch::open();
    loop {
        // Watched before it is read, so that nothing is missed in between. The directories come with flanneld.
        news.add(Path::new("/run"));
        let mut why = "does not exist".to_owned();
        for file in SUBNET_FILES.map(Path::new) {
            file.parent().into_iter().for_each(|directory| news.add(directory));
            let Some(bytes) = root.read(file, READ_LIMIT)? else { continue };
            let subnet = subnet_env::parse(&String::from_utf8_lossy(&bytes))
                .map_err(|error| error.context(format!("reading {}", file.display())))?;
            if network.contains(&subnet.address) {
                return Ok(subnet);
            }
            why = format!("contains {}, which is not within {network}", subnet.address.trunc());
        }
        let waiting = format!("flannel's subnet file {} {why}", SUBNET_FILES.join(" or "));
        let elapsed = waited.elapsed();
        if output.is_none_or(|output| elapsed >= output + REMINDER) {
            output = Some(elapsed);
            print(&format!(
                "waiting, {} s: {waiting}; check `journalctl -u flanneld` for why it has no lease\n",
                elapsed.as_secs()
            ))?;
        }
        news.wait(POLL);
    }
}

/// docker's options, as Magnum's own helper writes them (magnum-node.md 1.7).
///
/// docker masquerades whatever leaves its bridge, to pods of other nodes too: they would see the node's address in place of the
/// pod's. Where flannel masquerades, and does so only for what leaves the network, docker must not: so does mk-docker-opts
/// (seed-systems.md 8c). Where it does not, docker's default stays, or pods would reach nothing outside.
fn write_options(root: &Tree, subnet: &Subnet) -> Result<()> {
    let masquerade = if subnet.masquerades { " --ip-masq=false" } else { "" };
    // From 28.2 on, without it docker drops what comes to a container from another node before any chain of ours sees it.
    let direct = if docker_help()?.is_some_and(|help| help.contains(DIRECT)) { format!(" {DIRECT}") } else { String::new() };
    let text = format!("{DOCKER_VARIABLE}=\"--bip={} --mtu={}{masquerade}{direct}\"\n", subnet.address, subnet.mtu);
    let file = Path::new(DOCKER_OPTIONS);
    if root.read(file, READ_LIMIT)?.is_some_and(|there| there == text.as_bytes()) {
        return Ok(());
    }
    if let Some(directory) = file.parent() {
        root.create_dir_all(directory, Attributes::mode(0o755))?;
    }
    root.write(file, text.as_bytes(), Attributes::mode(0o644))?;
    print(&format!("wrote {DOCKER_OPTIONS}: {text}"))
}

/// docker keeps a bridge that is there with the address it has. One of an earlier subnet goes, but never under containers.
fn remove_stale(root: &Tree, bridge: &str, address: Ipv4Net) -> Result<()> {
    let Some(there) = addresses(bridge)? else { return Ok(()) };
    if there == [address] {
        return Ok(());
    }
    let there = there.first().map_or_else(|| "no address".to_owned(), Ipv4Net::to_string);
    let used = if docker_runs(root)? {
        Some("docker is running")
    } else if has_ports(bridge)? {
        Some("containers are attached to it")
    } else {
        None
    };
    if let Some(used) = used {
        note(&format!("{bridge} has {there} and is kept, because {used}; it gets {address} when docker next starts"));
        return Ok(());
    }
    carry_out_all("ip", &[words(&format!("link del dev {bridge}"))])?;
    print(&format!("it had {there}: docker recreates it with {address}\n"))
}

/// Whether the process of docker's pid file is docker (`dockerd`, `dockerd-current`, `docker`): after a crash it may be another.
fn docker_runs(root: &Tree) -> Result<bool> {
    let Some(pid) = root.read(Path::new("run/docker.pid"), READ_LIMIT)? else { return Ok(false) };
    let Ok(pid) = String::from_utf8_lossy(&pid).trim().parse::<u32>() else { return Ok(false) };
    let name = root.read(Path::new(&format!("proc/{pid}/comm")), READ_LIMIT)?;
    Ok(name.is_some_and(|name| name.starts_with(b"docker")))
}

/// Addresses of an interface; `None` where there is none of that name.
fn addresses(interface: &str) -> Result<Option<Vec<Ipv4Net>>> {
    let answer = ask("ip", &words(&format!("-4 -o addr show dev {interface}")), "")?;
    Ok(answer.filter(|answer| answer.ok).map(|answer| links::addresses(&answer.out)))
}

/// Nothing that packets of pods pass through must be closed to them.
fn set_forwarding_rules(network: Option<Ipv4Net>) -> Result<()> {
    let missing = "iptables is not installed: its FORWARD chain is not closed, and no rule is added";
    set_rules("-S FORWARD", network, &|found, network| links::forwarding_rules("FORWARD", found, network), missing)?;
    let chain = links::DOCKER_CHAIN;
    let has_chain = || Ok::<_, Error>(ask("iptables", &waiting(words(&format!("-S {chain}"))), "")?.map(|answer| answer.ok));
    match has_chain()? {
        Some(true) => {}
        Some(false) if network.is_some() && docker_help()?.is_some() => {
            carry_out_all("iptables", &[waiting(words(&format!("-N {chain}")))])?;
        }
        _ => return Ok(()),
    }
    set_rules(&format!("-S {chain}"), network, &|found, network| links::forwarding_rules(chain, found, network), missing)
}

/// docker's own list of its options, where it is installed.
fn docker_help() -> Result<Option<String>> {
    Ok(ask("dockerd", &words("--help"), "")?.map(|answer| answer.out))
}

/// Pods reach what is outside of their network by this node's address, where nobody else sees to that.
fn masquerade(network: Option<Ipv4Net>) -> Result<()> {
    let missing = "iptables is not installed: what pods send out of their network keeps their own addresses";
    set_rules("-t nat -S POSTROUTING", network, &links::masquerade, missing)
}

/// Makes the rules of a chain what they should be, by what it has.
fn set_rules(
    chain: &str,
    network: Option<Ipv4Net>,
    changes: &dyn Fn(&str, Option<Ipv4Net>) -> Vec<Words>,
    missing: &str,
) -> Result<()> {
    // -w: docker or kube-proxy may hold the tables' lock.
    match ask("iptables", &waiting(words(chain)), "")? {
        Some(answer) if answer.ok => {
            carry_out_all("iptables", &changes(&answer.out, network).into_iter().map(waiting).collect::<Vec<_>>())
        }
        Some(answer) => Err(Error::permanent(answer.err).context(format!("iptables {chain}"))),
        None => {
            if network.is_some() {
                note(missing);
            }
            Ok(())
        }
    }
}

fn waiting(mut words: Words) -> Words {
    words.insert(0, "-w".to_owned());
    words
}

/// Takes away what an earlier network of static routes left: routes to nobody among these, and bridges of ours but this one. One
/// that something is plugged into stays until the next boot.
fn take_away(bridge: Option<&str>, peers: &[Peer]) -> Result<()> {
    let found = links::routes(&output_of("ip", &words("-4 -o route show table main"), "")?);
    carry_out_all("ip", &links::stale_route_removals(&found, peers))?;
    let ours = links::our_bridges(&output_of("ip", &words("-d -o link show"), "")?);
    for name in ours.iter().filter(|name| Some(name.as_str()) != bridge) {
        if has_ports(name)? {
            note(&format!("the bridge {name} of an earlier network is kept, because containers are attached to it"));
        } else {
            carry_out_all("ip", &[words(&format!("link del dev {name}"))])?;
        }
    }
    Ok(())
}

fn has_ports(bridge: &str) -> Result<bool> {
    Ok(!output_of("ip", &words(&format!("-o link show master {bridge}")), "")?.is_empty())
}

fn make_bridge(bridge: &str, address: Ipv4Net) -> Result<()> {
    let there = addresses(bridge)?;
    if there.is_none() {
        carry_out_all("ip", &[words(&format!("link add name {bridge} type bridge"))])?;
    }
    let there = there.unwrap_or_default();
    let link = links::link(&output_of("ip", &words(&format!("-d -o link show dev {bridge}")), "")?);
    let refused = |why: String| {
        Error::refused(why)
            .context(format!("creating the bridge {bridge}"))
            .rule("the agent recognises its bridges by their alias, and does not touch others")
            .remedy("give the pods' bridge another name (POD_BRIDGE), or remove the interface")
    };
    if !link.is_bridge {
        return Err(refused("it exists and is not a bridge".to_owned()));
    }
    match links::claim(link, &there, has_ports(bridge)?, address) {
        BridgeOwnership::AsWanted => {}
        BridgeOwnership::Foreign => {
            let has: Vec<String> = there.iter().map(Ipv4Net::to_string).collect();
            let has = if has.is_empty() { "an attached interface".to_owned() } else { has.join(", ") };
            return Err(refused(format!("it exists, the agent did not create it, and it has {has}")));
        }
        claim @ (BridgeOwnership::Free | BridgeOwnership::Ours) => {
            // First of all, so that what is given an address is known as ours whenever we are cut off.
            if claim == BridgeOwnership::Free {
                carry_out_all("ip", &[words(&format!("link set dev {bridge} alias {}", links::ALIAS))])?;
            }
            carry_out_all("ip", &links::set_address_commands(&there, address, bridge))?;
        }
    }
    if link.is_up { Ok(()) } else { carry_out_all("ip", &[words(&format!("link set dev {bridge} up"))]) }
}

/// Routes to the pods of the others, now; and, in the unit, those that cannot be made yet, whenever the network changes and
/// every few minutes: at boot it may be down, and nobody else tries again. Docker's start does not wait for that.
fn keep_trying(peers: &[Peer], mut notify: Notify) -> Result<ExitCode> {
    let (clock, news) = (Clock::system(), RouteNews::open());
    let mut failed = make_routes(peers)?;
    failed.iter().for_each(print_error);
    if failed.is_empty() {
        notify.ready();
        return Ok(exit::OK);
    }
    if !Notify::is_heard() {
        return Ok(exit::FAILED);
    }
    notify.ready();
    let (mut pauses, down) = (PAUSES, clock.start());
    while !failed.is_empty() {
        notify.status(&format!(
            "{} of {} routes are missing; the agent retries when the network changes",
            failed.len(),
            peers.len()
        ));
        // Whatever came while the last try went on wakes at once; so do routes that were made, for one try more.
        if news.wait(pauses.next_pause()) {
            pauses.reset();
        }
        news.forget();
        for _ in 0..GATHERINGS {
            if !news.wait(GATHERED) {
                break;
            }
            news.forget();
        }
        let before: Vec<String> = failed.iter().map(ToString::to_string).collect();
        // What asks may fail, too, while the network comes.
        failed = make_routes(peers).unwrap_or_else(|error| vec![error]);
        failed.iter().filter(|error| !before.contains(&error.to_string())).for_each(print_error);
    }
    print(&format!("all routes were set after {} s\n", down.elapsed().as_secs()))?;
    Ok(exit::OK)
}

/// One that cannot be made is no reason to leave out those behind it.
fn make_routes(peers: &[Peer]) -> Result<Vec<Error>> {
    let found = links::routes(&output_of("ip", &words("-4 -o route show table main"), "")?);
    let make = |peer: &Peer| -> Result<()> {
        let way = ask("ip", &words(&format!("-4 -o route get {}", peer.node)), "")?.and_then(|answer| links::way(&answer.out));
        let interface = links::interface_to(peer, way)?;
        carry_out_all("ip", links::route_to(peer, &interface, &found)?.as_slice())
    };
    Ok(peers.iter().filter_map(|peer| make(peer).err()).collect())
}

fn carry_out_all(tool: &str, commands: &[Words]) -> Result<()> {
    commands.iter().try_for_each(|arguments| carry_out(tool, arguments))
}

#[cfg(test)]
mod tests {
    /// Over any limit docker would start without its subnet, and systemd starts neither again.
    #[test]
    fn the_unit_waits_for_flannel_as_long_as_it_takes() {
        let unit = include_str!("../../units/heat-node-pod-network.service");
        let limits: Vec<&str> = unit.lines().filter(|line| line.starts_with("TimeoutStartSec=")).collect();
        assert_eq!(limits, ["TimeoutStartSec=0"]);
    }
}
