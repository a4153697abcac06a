//! The description of flannel's network (`PREFIX/config` in etcd): what may stand in it, by backend and by version of flanneld
//! (seed-systems.md 8a, 8b).
//!
//! flanneld's own reader skips what it does not know and waits forever on what is wrong, alive and without a word to systemd. So
//! everything is checked before it is written.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use serde_json::{Map, Value, json};

use crate::budgets::json;
use crate::error::Error;

/// A release of flannel: major, minor.
pub type Version = (u16, u16);

/// The first release that reads etcd by its v3 API, and by no other (seed-systems.md 8a).
const FIRST_BY_V3: Version = (0, 18);
/// The first release with the stricter rules for subnets (seed-systems.md 8a).
const FIRST_STRICT: Version = (0, 10);
/// The longest subnet that those rules allow.
const LONGEST: u8 = 30;
/// Where everything of flannel lies in etcd, unless its options say otherwise.
pub const PREFIX: &str = "/coreos.com/network";

/// An API of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `/v2/keys`.
    V2,
    /// The store of Kubernetes itself.
    V3,
}

/// The API by which a release finds the description and its leases. There is no way round: 0.18 never looks into v2, 0.17 never
/// into v3.
#[must_use]
pub fn api(version: Version) -> Api {
    if version < FIRST_BY_V3 { Api::V2 } else { Api::V3 }
}

/// The release that a text names: an image tag (`v0.15.1-amd64`), or what `flanneld --version` says (`Flannel v0.20.2`,
/// `0.5.5+git`).
#[must_use]
pub fn version_of(text: &str) -> Option<Version> {
    text.split_whitespace().find_map(|word| {
        let mut numbers = word.trim_start_matches('v').split(['.', '-', '+']);
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    })
}

/// How a backend's option is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// A whole number between these.
    Number(u64, u64),
    /// `true` or `false`.
    Bool,
    /// One of these words.
    Word(&'static [&'static str]),
}

/// An option, and the first release that reads it; others skip it in silence.
type BackendOption = (&'static str, Form, Version);

const PORT: Form = Form::Number(1, 65_535);
/// Least: what IPv4 must carry (RFC 791). Most: the largest packet.
const MTU: Form = Form::Number(576, 65_535);
const ANY: Version = (0, 0);

/// Backends that a node can be brought up with, the first release of each, its options (seed-systems.md 8b).
///
/// Not here: `ipsec` and a pre-shared key of wireguard, because the description is no place for a secret: every worker may read it;
/// `extension`, because it is a list of commands; those of other clouds.
const BACKENDS: &[(&str, Version, &[BackendOption])] = &[
    ("host-gw", ANY, &[]),
    (
        "vxlan",
        ANY,
        &[
            ("VNI", Form::Number(1, (1 << 24) - 1), ANY),
            ("Port", PORT, ANY),
            ("GBP", Form::Bool, ANY),
            ("DirectRouting", Form::Bool, (0, 8)),
            // flannel's pull request 1152, after 0.11.
            ("Learning", Form::Bool, (0, 12)),
            ("MTU", MTU, ANY),
        ],
    ),
    ("udp", ANY, &[("Port", PORT, ANY)]),
    ("ipip", (0, 10), &[("DirectRouting", Form::Bool, (0, 10))]),
    (
        "wireguard",
        (0, 17),
        &[
            ("ListenPort", PORT, (0, 17)),
            ("MTU", MTU, (0, 17)),
            ("Mode", Form::Word(&["separate", "auto", "ipv4", "ipv6"]), (0, 17)),
            ("PersistentKeepaliveInterval", Form::Number(0, 65_535), (0, 17)),
        ],
    ),
];

/// What a description says of subnets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnets {
    /// Every pod of the cluster.
    pub network: Ipv4Net,
    /// Prefix length of a node's part.
    pub length: u8,
    /// The first part that is dealt out; else the second of the network.
    pub min: Option<Ipv4Addr>,
    /// The last part that is dealt out; else the last of the network.
    pub max: Option<Ipv4Addr>,
}

/// What is wrong with a description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidDescription {
    /// The member of the description: `SubnetLen`, or `Backend.VNI`.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
    /// The rule.
    pub rule: String,
}

impl InvalidDescription {
    fn new(field: impl Into<String>, problem: impl Into<String>, rule: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into(), rule: rule.into() }
    }
}

/// The description, equal byte for byte on every node with the same parameters. The backend always stands in it: without one every
/// release takes udp, whatever its documentation says (seed-systems.md 8a).
#[must_use]
pub fn description(subnets: &Subnets, backend: &str, options: &Map<String, Value>) -> String {
    let mut of_backend = Map::new();
    of_backend.insert("Type".to_owned(), json!(backend));
    for (name, value) in options.iter().filter(|(name, _)| !is_type(name)) {
        of_backend.insert(canonical(backend, name).unwrap_or(name).to_owned(), value.clone());
    }
    let mut out = Map::new();
    out.insert("Network".to_owned(), json!(subnets.network.trunc().to_string()));
    out.insert("SubnetLen".to_owned(), json!(subnets.length));
    for (name, address) in [("SubnetMin", subnets.min), ("SubnetMax", subnets.max)] {
        if let Some(address) = address {
            out.insert(name.to_owned(), json!(address.to_string()));
        }
    }
    out.insert("Backend".to_owned(), Value::Object(of_backend));
    format!("{:#}\n", Value::Object(out))
}

/// Whether an option of that name would take the place of the backend itself, as flannel reads it.
fn is_type(name: &str) -> bool {
    name.eq_ignore_ascii_case("Type")
}

/// What is wrong with the names of a backend's options, before they are in a description.
#[must_use]
pub fn names(options: &Map<String, Value>) -> Option<InvalidDescription> {
    if let Some(name) = options.keys().find(|name| is_type(name)) {
        return Some(InvalidDescription::new(
            format!("Backend.{name}"),
            "would override FLANNEL_BACKEND",
            "only FLANNEL_BACKEND chooses the backend",
        ));
    }
    let mut seen = BTreeSet::new();
    let twice = options.keys().find(|name| !seen.insert(name.to_ascii_lowercase()));
    twice.map(|name| {
        InvalidDescription::new(format!("Backend.{name}"), "is given twice", "flannel reads names in any letter case")
    })
}

/// flannel's reader takes any letter case; the description has one spelling.
fn canonical(backend: &str, name: &str) -> Option<&'static str> {
    options_of(backend).iter().map(|(known, ..)| *known).find(|known| known.eq_ignore_ascii_case(name))
}

fn options_of(backend: &str) -> &'static [BackendOption] {
    BACKENDS.iter().find(|(name, ..)| *name == backend).map_or(&[], |(_, _, options)| options)
}

/// Whether a release takes a description; where the release is not known, whether all do, as far as subnets go.
///
/// # Errors
/// The first thing that is wrong, with its rule.
pub fn check(description: &str, version: Option<Version>) -> Result<(), InvalidDescription> {
    let unread = |field: &str, form: &str| InvalidDescription::new(field, "cannot be read", form);
    let document = json::answer(description.as_bytes())
        .map_err(|rejection| InvalidDescription::new("config", Error::from(rejection).to_string(), "JSON"))?;
    let text = |name: &str| document.get(name).and_then(Value::as_str);
    let network = text("Network").and_then(|text| text.parse().ok()).ok_or_else(|| unread("Network", "an IPv4 network"))?;
    let length = document.get("SubnetLen").and_then(Value::as_u64).and_then(|length| u8::try_from(length).ok());
    let address = |name: &str| match document.get(name) {
        None => Ok(None),
        Some(value) => {
            let address = value.as_str().and_then(|text| text.parse().ok());
            address.map(Some).ok_or_else(|| unread(name, "an IPv4 address"))
        }
    };
    let subnets = Subnets {
        network,
        length: length.ok_or_else(|| unread("SubnetLen", "a whole number"))?,
        min: address("SubnetMin")?,
        max: address("SubnetMax")?,
    };
    check_subnets(&subnets, version)?;
    let empty = Map::new();
    let backend = document.get("Backend").and_then(Value::as_object).unwrap_or(&empty);
    let kind = backend.get("Type").and_then(Value::as_str).unwrap_or_default();
    check_backend(kind, backend.iter().filter(|(name, _)| *name != "Type"), version)
}

fn check_subnets(subnets: &Subnets, version: Option<Version>) -> Result<(), InvalidDescription> {
    let (network, length) = (subnets.network.trunc(), subnets.length);
    let strict = version.is_none_or(|version| version >= FIRST_STRICT);
    // Before 0.10 a network and one subnet may be equal; then nothing is left for the second node.
    let (shortest, longest) = if strict { (network.prefix_len().saturating_add(2), LONGEST) } else { (network.prefix_len(), 32) };
    if !(shortest..=longest).contains(&length) {
        let rule = if strict {
            format!("flannel needs at least four subnets of at most /{LONGEST}: from {shortest} to {longest} here")
        } else {
            format!("before 0.10 flannel needs subnets smaller than the network: from {shortest} to {longest} here")
        };
        return Err(InvalidDescription::new("SubnetLen", format!("{length} does not fit {network}"), rule));
    }
    // Of the whole of IPv4 this is one too many for 32 bits.
    let size = 1u64 << (32 - u32::from(length));
    let start = u64::from(u32::from(network.network()));
    let end = u64::from(u32::from(network.broadcast()));
    let place = |address: Ipv4Addr| u64::from(u32::from(address));
    for (field, address) in [("SubnetMin", subnets.min), ("SubnetMax", subnets.max)] {
        let Some(address) = address else { continue };
        if !network.contains(&address) {
            return Err(InvalidDescription::new(
                field,
                format!("{address} is not in {network}"),
                "it must be an address of the network",
            ));
        }
        if strict && !(place(address) - start).is_multiple_of(size) {
            let rule = format!("since 0.10 flannel accepts only the first address of a /{length}");
            return Err(InvalidDescription::new(field, format!("{address} is not the first address of a subnet"), rule));
        }
    }
    let first = subnets.min.map_or(start + size, place);
    let last = subnets.max.map_or((end + 1).saturating_sub(size), place);
    if first > last {
        let field = if subnets.min.is_some() || subnets.max.is_none() { "SubnetMin" } else { "SubnetMax" };
        let problem = "leaves no subnet for any node";
        let rule = "subnets are allocated from SubnetMin (default: the network's second) to SubnetMax (default: the last)";
        return Err(InvalidDescription::new(field, problem, rule));
    }
    Ok(())
}

fn check_backend<'a>(
    kind: &str,
    options: impl Iterator<Item = (&'a String, &'a Value)>,
    version: Option<Version>,
) -> Result<(), InvalidDescription> {
    let too_new = |first: Version| version.is_some_and(|version| version < first);
    let Some((_, first, known)) = BACKENDS.iter().find(|(name, ..)| *name == kind) else {
        let names: Vec<&str> = BACKENDS.iter().map(|(name, ..)| *name).collect();
        return Err(InvalidDescription::new("Backend.Type", format!("{kind:?} is not a known backend"), names.join(", ")));
    };
    if too_new(*first) {
        let rule = format!("flannel has {kind} since {}.{}", first.0, first.1);
        return Err(InvalidDescription::new("Backend.Type", format!("selects {kind} with {}", shown(version)), rule));
    }
    for (name, value) in options {
        let field = format!("Backend.{name}");
        let Some((_, form, first)) = known.iter().find(|(known, ..)| known.eq_ignore_ascii_case(name)) else {
            let names: Vec<&str> = known.iter().map(|(name, ..)| *name).collect();
            let rule =
                if names.is_empty() { format!("{kind} has no options") } else { format!("{kind} has {}", names.join(", ")) };
            return Err(InvalidDescription::new(field, format!("is not a known option of {kind}"), rule));
        };
        if too_new(*first) {
            let rule = format!("flannel reads it since {}.{} and silently ignores it before", first.0, first.1);
            return Err(InvalidDescription::new(field, format!("is unknown to {}", shown(version)), rule));
        }
        let (good, rule) = match form {
            Form::Number(least, most) => {
                let good = value.as_u64().is_some_and(|number| (*least..=*most).contains(&number));
                (good, format!("a whole number from {least} to {most}"))
            }
            Form::Bool => (value.is_boolean(), "true or false".to_owned()),
            Form::Word(words) => (value.as_str().is_some_and(|word| words.contains(&word)), words.join(", ")),
        };
        if !good {
            return Err(InvalidDescription::new(field, format!("is {value}"), rule));
        }
    }
    Ok(())
}

fn shown(version: Option<Version>) -> String {
    version.map_or_else(|| "this flannel".to_owned(), |(major, minor)| format!("flannel {major}.{minor}"))
}

/// The UDP port that other nodes' packets come in by; none where they come as they are.
#[must_use]
pub fn port(backend: &str, options: &Map<String, Value>) -> Option<u16> {
    let (option, default) = match backend {
        "vxlan" => ("Port", 8472),
        "udp" => ("Port", 8285),
        "wireguard" => ("ListenPort", 51_820),
        _ => return None,
    };
    let given = options.iter().find(|(name, _)| name.eq_ignore_ascii_case(option)).and_then(|(_, value)| value.as_u64());
    Some(given.and_then(|port| u16::try_from(port).ok()).unwrap_or(default))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Map<String, Value> {
        json::typed(text).unwrap()
    }

    #[test]
    fn the_api_follows_the_release() {
        for (text, version, expected) in [
            ("v0.15.1", Some((0, 15)), Some(Api::V2)),
            ("0.5.5+git", Some((0, 5)), Some(Api::V2)),
            ("v0.17.0-amd64", Some((0, 17)), Some(Api::V2)),
            ("v0.18.0", Some((0, 18)), Some(Api::V3)),
            ("Flannel v0.20.2\n", Some((0, 20)), Some(Api::V3)),
            ("v1.0.0", Some((1, 0)), Some(Api::V3)),
            ("latest", None, None),
            ("", None, None),
        ] {
            assert_eq!(version_of(text), version, "{text}");
            assert_eq!(version.map(api), expected, "{text}");
        }
    }

    /// seed-systems.md 8a: the older rules, the newer ones, and for an unknown release those that hold for all.
    #[test]
    fn subnets_obey_the_rules_of_the_release() {
        const OLD: Option<Version> = Some((0, 9));
        const NEW: Option<Version> = Some((0, 10));
        for (network, length, min, max, old, new) in [
            ("10.100.0.0/16", 24, "", "", "", ""),
            ("10.100.0.0/16", 18, "", "", "", ""),
            ("10.100.0.0/16", 17, "", "", "", "SubnetLen"),
            // The default of the first subnet is the second of the network.
            ("10.100.0.0/24", 24, "", "", "SubnetMin", "SubnetLen"),
            ("10.100.0.0/24", 24, "10.100.0.0", "", "", "SubnetLen"),
            ("10.100.0.0/16", 15, "", "", "SubnetLen", "SubnetLen"),
            ("10.100.0.0/28", 30, "", "", "", ""),
            ("10.100.0.0/29", 31, "", "", "", "SubnetLen"),
            ("0.0.0.0/0", 2, "", "", "", ""),
            ("10.100.0.0/16", 24, "10.100.5.0", "10.100.9.0", "", ""),
            ("10.100.0.0/16", 24, "10.100.9.0", "10.100.9.0", "", ""),
            ("10.100.0.0/16", 24, "10.100.9.0", "10.100.5.0", "SubnetMin", "SubnetMin"),
            ("10.100.0.0/16", 24, "", "10.100.0.0", "SubnetMax", "SubnetMax"),
            ("10.100.0.0/16", 24, "10.100.5.7", "", "", "SubnetMin"),
            ("10.100.0.0/16", 24, "", "10.100.9.128", "", "SubnetMax"),
            ("10.100.0.0/16", 24, "10.101.0.0", "", "SubnetMin", "SubnetMin"),
            ("10.100.0.0/16", 24, "", "10.99.0.0", "SubnetMax", "SubnetMax"),
        ] {
            let address = |text: &str| (!text.is_empty()).then(|| text.parse().unwrap());
            let subnets = Subnets { network: network.parse().unwrap(), length, min: address(min), max: address(max) };
            let text = description(&subnets, "host-gw", &Map::new());
            for (version, expected) in [(OLD, old), (NEW, new), (Some((0, 25)), new), (None, new)] {
                let found = check(&text, version).err().map_or(String::new(), |wrong| wrong.field);
                assert_eq!(found, expected, "{network} {length} {min}-{max} {version:?}");
            }
        }
    }

    #[test]
    fn options_are_those_of_backend_and_release() {
        for (backend, given, version, wrong) in [
            ("host-gw", "{}", None, ""),
            ("host-gw", r#"{"VNI": 1}"#, None, "Backend.VNI"),
            (
                "vxlan",
                r#"{"VNI": 7, "Port": 4789, "GBP": true, "DirectRouting": true, "Learning": false, "MTU": 1450}"#,
                None,
                "",
            ),
            ("vxlan", r#"{"vni": 7}"#, Some((0, 5)), ""),
            ("vxlan", r#"{"VNI": 16777216}"#, None, "Backend.VNI"),
            ("vxlan", r#"{"VNI": "7"}"#, None, "Backend.VNI"),
            ("vxlan", r#"{"Port": 0}"#, None, "Backend.Port"),
            ("vxlan", r#"{"Port": -1}"#, None, "Backend.Port"),
            ("vxlan", r#"{"DirectRouting": 1}"#, None, "Backend.DirectRouting"),
            ("vxlan", r#"{"DirectRouting": true}"#, Some((0, 7)), "Backend.DirectRouting"),
            ("vxlan", r#"{"DirectRouting": true}"#, Some((0, 8)), ""),
            ("vxlan", r#"{"Learning": true}"#, Some((0, 11)), "Backend.Learning"),
            ("vxlan", r#"{"MacPrefix": "0E-2A"}"#, None, "Backend.MacPrefix"),
            ("udp", r#"{"Port": 8285}"#, Some((0, 5)), ""),
            ("udp", r#"{"VNI": 1}"#, Some((0, 5)), "Backend.VNI"),
            ("ipip", "{}", Some((0, 9)), "Backend.Type"),
            ("ipip", r#"{"DirectRouting": false}"#, Some((0, 10)), ""),
            ("wireguard", "{}", Some((0, 16)), "Backend.Type"),
            ("wireguard", r#"{"ListenPort": 51820, "Mode": "auto", "PersistentKeepaliveInterval": 25}"#, Some((0, 17)), ""),
            ("wireguard", r#"{"Mode": "both"}"#, None, "Backend.Mode"),
            // A secret, and commands, have no place in what every node may read.
            ("wireguard", r#"{"PSK": "x"}"#, None, "Backend.PSK"),
            ("extension", r#"{"PreStartupCommand": "x"}"#, None, "Backend.Type"),
            ("", "{}", None, "Backend.Type"),
        ] {
            let subnets = Subnets { network: "10.100.0.0/16".parse().unwrap(), length: 24, min: None, max: None };
            let text = description(&subnets, backend, &options(given));
            let found = check(&text, version).err().map_or(String::new(), |wrong| wrong.field);
            assert_eq!(found, wrong, "{backend} {given} {version:?}");
        }
    }

    #[test]
    fn one_spelling_and_never_without_a_backend() {
        let subnets = Subnets {
            network: "10.100.0.0/16".parse().unwrap(),
            length: 24,
            min: Some("10.100.5.0".parse().unwrap()),
            max: Some("10.100.9.0".parse().unwrap()),
        };
        let text = description(&subnets, "vxlan", &options(r#"{"vni": 7, "directrouting": true}"#));
        let expected = json!({"Network": "10.100.0.0/16", "SubnetLen": 24, "SubnetMin": "10.100.5.0", "SubnetMax": "10.100.9.0",
            "Backend": {"Type": "vxlan", "VNI": 7, "DirectRouting": true}});
        assert_eq!(json::typed::<Value>(&text).unwrap(), expected);
    }

    #[test]
    fn what_is_no_description_is_refused() {
        let large = format!("{{\"x\": [{}0]}}", "0,".repeat(100_000));
        for (text, field) in [
            ("", "config"),
            ("[]", "Network"),
            (&large, "config"),
            (r#"{"Network": "fd00::/64", "SubnetLen": 80}"#, "Network"),
            (r#"{"Network": "10.100.0.0/16"}"#, "SubnetLen"),
            (r#"{"Network": "10.100.0.0/16", "SubnetLen": 240000}"#, "SubnetLen"),
            (r#"{"Network": "10.100.0.0/16", "SubnetLen": 24, "SubnetMin": 5}"#, "SubnetMin"),
            (r#"{"Network": "10.100.0.0/16", "SubnetLen": 24}"#, "Backend.Type"),
        ] {
            assert_eq!(check(text, None).unwrap_err().field, field, "{text}");
        }
    }

    #[test]
    fn other_nodes_come_in_by_the_backends_port() {
        for (backend, given, expected) in [
            ("host-gw", "{}", None),
            ("ipip", "{}", None),
            ("vxlan", "{}", Some(8472)),
            ("vxlan", r#"{"port": 4789}"#, Some(4789)),
            ("udp", "{}", Some(8285)),
            ("wireguard", r#"{"ListenPort": 51000}"#, Some(51_000)),
        ] {
            assert_eq!(port(backend, &options(given)), expected, "{backend} {given}");
        }
    }
}
