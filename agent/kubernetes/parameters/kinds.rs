//! What a parameter's value may look like: each kind with its rule in words, so that a mistake
//! can be named together with the rule that it breaks.
//!
//! Values are hostile: every kind bounds the length and refuses control characters, so that no
//! value can end a line of a file that it is written to.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use reqwest::Url;
use serde_json::Value;

use crate::http::split;

/// The form of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterKind {
    /// `True` or `False` in any letter case, as Heat renders booleans.
    Bool,
    /// One word: tags, identifiers, image prefixes.
    Word,
    /// One line of text.
    Text,
    /// Items between commas, without blanks.
    List,
    /// A DNS label (RFC 1123), which a node's name must be.
    Label,
    /// A domain name: labels between dots.
    Domain,
    /// An IPv4 or IPv6 address.
    Ip,
    /// A network.
    Cidr,
    /// A TCP port.
    Port,
    /// `host` or `host:port`, no scheme.
    HostPort,
    /// An OpenStack id.
    Uuid,
    /// An http or https URL.
    Url,
    /// A whole number from the first to the second.
    Number(u32, u32),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A Kubernetes version or image tag that begins with one.
    Version,
    /// PEM text; line ends may be the two characters `\` `n` (Magnum sends them so).
    Pem,
    /// PEM text, or the absolute path of a file on the node that holds it.
    Material,
    /// A bootstrap token of Kubernetes: its public id and its secret.
    BootstrapToken,
    /// Further command line options of a component.
    Options,
    /// A wait condition's handle: a URL, or the map that the handle's `signal` attribute gives.
    Handle,
    /// A map of plain values, as JSON.
    Map,
}

impl ParameterKind {
    /// The rule in words.
    #[must_use]
    pub fn rule(self) -> String {
        match self {
            Self::Bool => "true or false".to_owned(),
            Self::Word => "one word of at most 255 letters, digits and . _ : / @ + = ~ -".to_owned(),
            Self::Text => "one line of at most 4096 characters".to_owned(),
            Self::List => "comma-separated items without spaces, at most 4096 characters".to_owned(),
            Self::Label => {
                "1 to 63 lower-case letters, digits and -, neither beginning nor ending with - (a DNS label, RFC 1123)".to_owned()
            }
            Self::Domain => "DNS labels separated by dots, at most 253 characters".to_owned(),
            Self::Ip => "an IPv4 or IPv6 address".to_owned(),
            Self::Cidr => "an IPv4 or IPv6 network: address/prefix length".to_owned(),
            Self::Port => "a whole number from 1 to 65535".to_owned(),
            Self::HostPort => "host or host:port, without a scheme".to_owned(),
            Self::Uuid => "an OpenStack id: 8-4-4-4-12 lower-case hexadecimal digits".to_owned(),
            Self::Url => "http://host… or https://host…, at most 2048 characters".to_owned(),
            Self::Number(least, most) => format!("a whole number from {least} to {most}"),
            Self::Choice(words) => format!("one of {}", words.join(", ")),
            Self::Version => "v1.MINOR or v1.MINOR.PATCH, optionally with a suffix".to_owned(),
            Self::Pem => "PEM text of at most 64 KiB".to_owned(),
            Self::Material => "PEM text of at most 64 KiB, or the absolute path of a file on the node".to_owned(),
            Self::BootstrapToken => "6 and 16 lower-case letters or digits, separated by a dot".to_owned(),
            Self::Options => "one line of at most 8192 characters".to_owned(),
            Self::Map => "a JSON map of words, numbers and booleans, at most 4096 characters".to_owned(),
            Self::Handle => {
                "the URL of the handle, the map of its \"signal\" attribute, {endpoint, token}, or its curl_cli line".to_owned()
            }
        }
    }

    /// Whether nearly any word obeys the rule.
    #[must_use]
    pub fn is_free(self) -> bool {
        matches!(self, Self::Word | Self::Text | Self::List | Self::Options | Self::HostPort | Self::Domain)
    }

    /// Whether a value is an address that may hold a user name and password.
    #[must_use]
    pub fn is_address(self) -> bool {
        matches!(self, Self::Url | Self::Handle | Self::HostPort)
    }

    /// Whether a value may have several lines.
    #[must_use]
    pub fn has_lines(self) -> bool {
        matches!(self, Self::Pem | Self::Material)
    }

    /// How a value that breaks the rule is called: `is not an IPv4 network`.
    #[must_use]
    pub fn problem(self) -> &'static str {
        match self {
            Self::Bool => "is neither true nor false",
            Self::Word => "is not one plain word",
            Self::Text | Self::Options => "is not one line of text",
            Self::List => "is not a list",
            Self::Label => "is not a DNS label",
            Self::Domain => "is not a domain name",
            Self::Ip => "is not an IP address",
            Self::Cidr => "is not a network",
            Self::Port => "is not a port",
            Self::HostPort => "is not a host with a port",
            Self::Uuid => "is not an OpenStack id",
            Self::Url => "is not an http URL",
            Self::Number(..) => "is not a number in the range",
            Self::Choice(_) => "is not allowed",
            Self::Version => "is not a Kubernetes version",
            Self::Pem => "is not PEM",
            Self::Material => "is neither PEM nor an absolute path",
            Self::BootstrapToken => "is not a bootstrap token",
            Self::Handle => "is not a wait condition's handle",
            Self::Map => "is not a map",
        }
    }

    /// The value in its one spelling, or nothing if it breaks the rule.
    #[must_use]
    pub fn normalised(self, text: &str) -> Option<String> {
        let plain = |limit: usize| text.len() <= limit && !text.chars().any(char::is_control);
        let good = match self {
            Self::Bool => {
                let lower = text.to_ascii_lowercase();
                return matches!(lower.as_str(), "true" | "false").then_some(lower);
            }
            Self::Choice(words) => {
                let lower = text.to_ascii_lowercase();
                return words.contains(&lower.as_str()).then_some(lower);
            }
            Self::Number(least, most) => return number(text).filter(|n| (least..=most).contains(n)).map(|n| n.to_string()),
            Self::Port => return number(text).filter(|n| (1..=65_535).contains(n)).map(|n| n.to_string()),
            Self::Ip => return text.parse::<IpAddr>().ok().map(|ip| ip.to_string()),
            Self::Word => plain(255) && text.chars().all(|c| c.is_ascii_alphanumeric() || "._:/@+=~-".contains(c)),
            Self::Text => plain(4096),
            Self::Options => plain(8192),
            Self::List => plain(4096) && !text.contains(char::is_whitespace) && !text.contains(['"', '\'', '\\']),
            Self::Label => is_label(text),
            Self::Domain => text.len() <= 253 && text.split('.').all(is_label),
            Self::Cidr => return network(text),
            Self::HostPort => is_host_port(text),
            Self::Uuid => is_uuid(text),
            Self::Url => is_http_url(text),
            Self::Version => is_version(text),
            Self::Pem => is_pem(text),
            Self::Material => is_pem(text) || is_path(text),
            Self::BootstrapToken => is_bootstrap_token(text),
            Self::Map => return plain(4096).then(|| plain_map(text)).flatten(),
            // `null`, which is what a handle without the attribute gives, is explained by who reads the handle.
            Self::Handle => {
                plain(8192) && (text.starts_with('{') || text.starts_with("curl ") || text == "null" || is_http_url(text))
            }
        };
        good.then(|| text.to_owned())
    }
}

/// The map in one spelling, without blanks.
fn plain_map(text: &str) -> Option<String> {
    let Value::Object(map) = crate::budgets::json::small(text.as_bytes())? else { return None };
    map.values().all(|value| value.is_string() || value.is_u64() || value.is_boolean()).then(|| Value::Object(map).to_string())
}

/// Decimal digits only: `u32::from_str` would also take a leading plus sign.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// `30000-32767`: first and last, in this order.
pub(in crate::kubernetes) fn port_range(text: &str) -> Option<(u16, u16)> {
    let port = |text| ParameterKind::Port.normalised(text)?.parse().ok();
    let (first, last) = text.split_once('-')?;
    Some((port(first)?, port(last)?)).filter(|(first, last)| first <= last)
}

fn is_label(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// The network with its host bits cleared, as every reader of a CIDR takes it.
fn network(text: &str) -> Option<String> {
    let (_, length) = text.split_once('/')?;
    let plain = number(length)?.to_string() == length;
    text.parse::<IpNet>().ok().filter(|_| plain).map(|network| network.trunc().to_string())
}

fn is_host_port(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.ends_with(':') && (!host.contains(':') || host.ends_with(']')) => (host, Some(port)),
        _ => (text, None),
    };
    let host_is_good = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(inner) => inner.parse::<Ipv6Addr>().is_ok(),
        None => host.len() <= 253 && host.to_ascii_lowercase().split('.').all(is_label),
    };
    host_is_good && port.is_none_or(|port| ParameterKind::Port.normalised(port).is_some())
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, b)| match at {
            8 | 13 | 18 | 23 => b == b'-',
            _ => b.is_ascii_digit() || (b'a'..=b'f').contains(&b),
        })
}

fn is_http_url(text: &str) -> bool {
    // The URL parser drops tabs and line ends in silence, and repairs backslashes and missing slashes: such a text is no URL here,
    // because what masks a password looks for it where it belongs.
    let odd = |c: char| c.is_control() || c.is_whitespace() || c == '\\' || c == '"';
    text.len() <= 2048
        && !text.contains(odd)
        && split(text).is_some()
        && Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
}

fn is_version(text: &str) -> bool {
    let rest = text.strip_prefix('v').unwrap_or(text);
    let numbers = rest.split(['-', '+']).next().unwrap_or_default();
    let parts: Vec<_> = numbers.split('.').collect();
    text.len() <= 63
        && matches!(parts.len(), 2 | 3)
        && parts.first() == Some(&"1")
        && parts.iter().all(|part| !part.is_empty() && part.len() <= 4 && number(part).is_some())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || ".-+_".contains(c))
}

fn is_pem(text: &str) -> bool {
    text.len() <= 64 * 1024
        && text.starts_with("-----BEGIN ")
        && text.contains("-----END ")
        && text.chars().all(|c| c == '\n' || c == '\r' || !c.is_control())
}

/// Absolute, without a step back, in characters that need no quoting anywhere.
fn is_path(text: &str) -> bool {
    text.len() <= 255
        && text.starts_with('/')
        && !text.ends_with('/')
        && text.split('/').all(|part| part != "." && part != "..")
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._:/@+=~-".contains(c))
}

fn is_bootstrap_token(text: &str) -> bool {
    let plain = |part: &str, length| part.len() == length && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    text.split_once('.').is_some_and(|(id, secret)| plain(id, 6) && plain(secret, 16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_takes_what_heat_sends_and_refuses_the_rest() {
        let id = "7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4";
        for (kind, good, bad) in [
            (ParameterKind::Bool, &["True", "false", "TRUE"][..], &["yes", "1", "", "truе"][..]),
            (ParameterKind::Word, &["v1.23.3-rancher1", "mirror.example.org/rancher/"], &["a b", "a\"b", "$(x)", "é"]),
            (ParameterKind::Text, &["pa ss$'\"`"], &["a\nb", "\u{7f}"]),
            (ParameterKind::List, &["a,b", "10.0.0.0/8,.svc"], &["a, b", "a\\b"]),
            (ParameterKind::Label, &["bay-master-0", "a"], &["A", "-a", "a-", "a_b", "a.b", ""]),
            (ParameterKind::Domain, &["cluster.local"], &["cluster..local", ".", "a/b"]),
            (ParameterKind::Ip, &["192.0.2.1", "2001:db8::1"], &["192.0.2", "192.0.2.256", "host", "192.0.2.1/24"]),
            (
                ParameterKind::Cidr,
                &["10.100.0.0/16", "0.0.0.0/0", "2001:db8::/64"],
                &["10.100.0.0/33", "10.100.0.0", "10.0.0.0/016", "10.0.0.0/+8", "2001:db8::/129", "10.0.0/8"],
            ),
            (ParameterKind::Port, &["1", "65535"], &["0", "65536", "-1", "+80", "8o"]),
            (
                ParameterKind::HostPort,
                &["registry.example.org:5000", "192.0.2.1", "[2001:db8::1]:5000"],
                &["http://x", "x:0", "a b:1", ""],
            ),
            (ParameterKind::Uuid, &[id], &["7C1F4D0E-93A2-4B86-8D55-2F60C6B1A9E4", "7c1f4d0e93a24b868d552f60c6b1a9e4", ""]),
            (
                ParameterKind::Url,
                &["http://192.0.2.1:8000/v1?a=b", "https://u:p@proxy.example.org"],
                &["ftp://x", "x", "http://", "http://a\tb/", "http://a b/", "file:///etc/passwd", "http:\\\\x"],
            ),
            (
                ParameterKind::Url,
                &["HTTPS://u:p@h"],
                &[
                    "https:/u:p@h",
                    "https:u:p@h",
                    "https:///u:p@h",
                    "https://u:p@",
                    "//u:p@h",
                    "https://u:p/q@h",
                    "https://u:p%40h",
                ],
            ),
            (ParameterKind::Number(0, 30), &["0", "30"], &["31", "-1", "1.5", "", "99999999999999999999"]),
            (ParameterKind::Choice(&["a-b", "c"]), &["a-b", "C"], &["d", ""]),
            (ParameterKind::Version, &["v1.23.3-rancher1", "1.31", "v1.2.0"], &["latest", "v2.0", "v1", "v1..3", "v1.2 --x"]),
            (
                ParameterKind::Pem,
                &["-----BEGIN CERTIFICATE-----\\nAA\\n-----END CERTIFICATE-----"],
                &["AA", "-----BEGIN X-----\0-----END X-----"],
            ),
            (
                ParameterKind::Material,
                &["-----BEGIN CERTIFICATE-----\\nAA\\n-----END CERTIFICATE-----", "/etc/pki/ca.crt"],
                &["ca.crt", "/", "/etc/../ca.crt", "/etc/pki/", "/etc/a b", "/etc/a\nb", "AA"],
            ),
            (
                ParameterKind::BootstrapToken,
                &["abcdef.0123456789abcdef"],
                &[
                    "abcdef",
                    "abcdef.0123456789abcde",
                    "Abcdef.0123456789abcdef",
                    "abcdef.0123456789abcdef.x",
                    "abcdef-0123456789abcdef",
                ],
            ),
            (ParameterKind::Map, &[r#"{"VNI": 7, "GBP": true}"#, "{}"], &["[]", "VNI", r#"{"a": {}}"#, r#"{"a": -1}"#, ""]),
            (ParameterKind::Options, &["--v=2 --feature-gates=A=true"], &["--v=2\n--x"]),
            (
                ParameterKind::Handle,
                &["http://192.0.2.1:8000/v1/waitcondition/x", "{\"alarm_url\": \"http://x\"}"],
                &["wget http://x", "token"],
            ),
        ] {
            for text in good {
                assert!(kind.normalised(text).is_some(), "{kind:?} {text}");
            }
            for text in bad {
                assert_eq!(kind.normalised(text), None, "{kind:?} {text:?}");
            }
        }
    }

    #[test]
    fn one_spelling_for_one_value() {
        assert_eq!(ParameterKind::Bool.normalised("True").as_deref(), Some("true"));
        assert_eq!(ParameterKind::Number(0, 99).normalised("007").as_deref(), Some("7"));
        assert_eq!(ParameterKind::Ip.normalised("2001:DB8:0::1").as_deref(), Some("2001:db8::1"));
        assert_eq!(ParameterKind::Map.normalised("{\"VNI\": 7}").as_deref(), Some("{\"VNI\":7}"));
        assert_eq!(ParameterKind::Cidr.normalised("10.100.7.9/16").as_deref(), Some("10.100.0.0/16"));
    }

    proptest::proptest! {
        #[test]
        fn no_value_can_end_a_line(text in ".{0,40}[\n\r\0].{0,40}") {
            for kind in [ParameterKind::Bool, ParameterKind::Word, ParameterKind::Text, ParameterKind::List, ParameterKind::Label, ParameterKind::Domain, ParameterKind::Ip, ParameterKind::Cidr, ParameterKind::Port,
                ParameterKind::HostPort, ParameterKind::Uuid, ParameterKind::Url, ParameterKind::Number(0, 9), ParameterKind::Choice(&["a"]), ParameterKind::Version, ParameterKind::BootstrapToken, ParameterKind::Options, ParameterKind::Handle, ParameterKind::Map] {
                proptest::prop_assert_eq!(kind.normalised(&text), None);
            }
        }
    }
}
