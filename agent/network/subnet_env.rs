//! What flanneld says of the node's subnet (seed-systems.md 8c). It is written by rename, so what is read is whole.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::error::{Error, Result};

/// The smallest packet that every IPv4 link carries, in bytes (RFC 791, section 3.2).
const LEAST_MTU: u16 = 68;

/// The subnet that flannel has leased for this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// Every pod of the cluster; flannel says it from 0.5.3 on.
    pub network: Option<Ipv4Net>,
    /// The bridge's address and the length of the subnet: `10.1.7.1/24`.
    pub address: Ipv4Net,
    /// The largest packet that gets through to pods elsewhere, in bytes.
    pub mtu: u16,
    /// Whether flannel itself masquerades what leaves the network of pods.
    pub masquerades: bool,
}

/// Reads `subnet.env`: lines `KEY=VALUE`. Keys that are not of IPv4, or not known yet, are left alone.
///
/// # Errors
/// If a line is none, a value is not of its kind, the subnet or the MTU is missing, or the subnet is not within the network.
pub fn parse(text: &str) -> Result<Subnet> {
    let (mut network, mut address, mut mtu, mut masquerades) = (None, None, None, false);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let Some((key, value)) = line.split_once('=') else { return Err(wrong(line, "a line is not of the form KEY=VALUE")) };
        match key {
            "FLANNEL_NETWORK" => network = Some(net(value).ok_or_else(|| wrong(line, "not an IPv4 network"))?),
            "FLANNEL_SUBNET" => {
                address = Some(net(value).ok_or_else(|| wrong(line, "not an IPv4 address with a prefix length"))?);
            }
            "FLANNEL_MTU" => {
                let bytes = value.parse().ok().filter(|bytes| *bytes >= LEAST_MTU);
                mtu = Some(bytes.ok_or_else(|| wrong(line, "not an MTU from 68 to 65535"))?);
            }
            "FLANNEL_IPMASQ" => masquerades = value.parse().map_err(|_| wrong(line, "neither true nor false"))?,
            _ => {}
        }
    }
    let Some(address) = address else { return Err(wrong("FLANNEL_SUBNET", "it is missing")) };
    let Some(mtu) = mtu else { return Err(wrong("FLANNEL_MTU", "it is missing")) };
    if let Some(network) = network.filter(|network: &Ipv4Net| !network.contains(&address)) {
        return Err(wrong(&format!("FLANNEL_SUBNET={address}"), &format!("not within FLANNEL_NETWORK={network}")));
    }
    Ok(Subnet { network, address, mtu, masquerades })
}

/// An address that something can have, with the length of its network.
fn net(value: &str) -> Option<Ipv4Net> {
    value.parse().ok().filter(|net: &Ipv4Net| net.prefix_len() > 0 && net.addr() != Ipv4Addr::UNSPECIFIED)
}

fn wrong(what: &str, why: &str) -> Error {
    Error::permanent(format!("{what}: {why}"))
        .rule("flanneld writes FLANNEL_NETWORK, FLANNEL_SUBNET, FLANNEL_MTU and FLANNEL_IPMASQ")
        .remedy("remove the file and restart flanneld.service, which rewrites it")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_flannel_of_each_age_writes_is_read() {
        for (text, network, address, mtu, masquerades) in [
            // 0.5.0 to 0.5.2
            ("FLANNEL_SUBNET=10.1.7.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n", None, "10.1.7.1/24", 1450, false),
            // before --ip-masq was there
            ("FLANNEL_SUBNET=10.1.7.1/24\nFLANNEL_MTU=1472\n", None, "10.1.7.1/24", 1472, false),
            (
                "FLANNEL_NETWORK=10.100.0.0/16\nFLANNEL_SUBNET=10.100.26.1/24\nFLANNEL_MTU=1500\nFLANNEL_IPMASQ=true\n",
                Some("10.100.0.0/16"),
                "10.100.26.1/24",
                1500,
                true,
            ),
            // 0.15 and later, with both families
            (
                "FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.1.1/24\nFLANNEL_IPV6_NETWORK=fd00:42::/56\n\
                 FLANNEL_IPV6_SUBNET=fd00:42:0:1::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n",
                Some("10.42.0.0/16"),
                "10.42.1.1/24",
                1450,
                true,
            ),
        ] {
            let wanted =
                Subnet { network: network.map(|net| net.parse().unwrap()), address: address.parse().unwrap(), mtu, masquerades };
            assert_eq!(parse(text), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn what_is_no_subnet_is_refused_by_its_line() {
        for (text, words) in [
            ("", "FLANNEL_SUBNET: it is missing"),
            ("FLANNEL_SUBNET=10.1.7.1/24\n", "FLANNEL_MTU: it is missing"),
            ("FLANNEL_MTU=1450\n", "FLANNEL_SUBNET: it is missing"),
            ("FLANNEL_SUBNET=10.1.7.1/24\nFLANNEL_MTU=1450\nrubbish\n", "rubbish: a line is not of the form KEY=VALUE"),
            ("FLANNEL_SUBNET=10.1.7.1\nFLANNEL_MTU=1450\n", "FLANNEL_SUBNET=10.1.7.1: not an IPv4 address"),
            ("FLANNEL_SUBNET=10.1.7.1/33\nFLANNEL_MTU=1450\n", "FLANNEL_SUBNET=10.1.7.1/33: not an IPv4 address"),
            ("FLANNEL_SUBNET=0.0.0.0/24\nFLANNEL_MTU=1450\n", "FLANNEL_SUBNET=0.0.0.0/24: not an IPv4 address"),
            ("FLANNEL_SUBNET=10.1.7.1/24 --tls=false\nFLANNEL_MTU=1450\n", "--tls=false: not an IPv4 address"),
            ("FLANNEL_SUBNET=$(reboot)\nFLANNEL_MTU=1450\n", "$(reboot): not an IPv4 address"),
            ("FLANNEL_SUBNET=10.1.7.1/24\nFLANNEL_MTU=0\n", "FLANNEL_MTU=0: not an MTU"),
            ("FLANNEL_SUBNET=10.1.7.1/24\nFLANNEL_MTU=70000\n", "FLANNEL_MTU=70000: not an MTU"),
            ("FLANNEL_SUBNET=10.1.7.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=yes\n", "FLANNEL_IPMASQ=yes: neither"),
            ("FLANNEL_NETWORK=x\nFLANNEL_SUBNET=10.1.7.1/24\nFLANNEL_MTU=1450\n", "FLANNEL_NETWORK=x: not an IPv4 network"),
            (
                "FLANNEL_NETWORK=10.2.0.0/16\nFLANNEL_SUBNET=10.1.7.1/24\nFLANNEL_MTU=1450\n",
                "FLANNEL_SUBNET=10.1.7.1/24: not within FLANNEL_NETWORK=10.2.0.0/16",
            ),
        ] {
            let output = parse(text).unwrap_err().to_string();
            assert!(output.contains(words), "{text:?}: {output}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_written_there_is_read_or_refused(text in "(FLANNEL_(SUBNET|MTU|NETWORK|IPMASQ)=[0-9./a-z]{0,20}\n|\\PC{0,30}\n){0,6}") {
            if let Ok(subnet) = parse(&text) {
                prop_assert!(subnet.mtu >= LEAST_MTU && subnet.address.prefix_len() > 0);
            }
        }
    }
}
