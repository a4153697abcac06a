//! URLs of members, as parameters and etcd's own list write them: pure.

use std::net::IpAddr;

use crate::http::split;

/// Host and port of a URL. The host is an address as it is written shortest, without brackets, or a name in small letters.
pub(super) fn host_and_port(url: &str) -> Option<(String, u16)> {
    let parts = split(url)?;
    let (host, port) = match parts.authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (parts.authority, if parts.scheme == "https" { 443 } else { 80 }),
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let host = bare.parse::<IpAddr>().map_or_else(|_| bare.to_ascii_lowercase(), |address| address.to_string());
    Some((host, port))
}

/// Whether both lead to the same place in the same way, however an address is written.
pub(super) fn is_same(one: &str, other: &str) -> bool {
    let place = |url| split(url).map(|parts| parts.scheme).zip(host_and_port(url));
    one == other || place(one).is_some_and(|place_of_one| place(other) == Some(place_of_one))
}

/// Whether a URL of somebody else is fit for a file that a unit reads, and for a shell.
pub(super) fn is_plain(url: &str) -> bool {
    url.bytes().all(|byte| byte.is_ascii_alphanumeric() || b":/.-_[]".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_the_same_however_its_address_is_written() {
        let own = "https://[2001:db8::1]:2380";
        for (url, same) in [
            (own, true),
            ("https://[2001:DB8:0:0::1]:2380", true),
            ("HTTPS://[2001:0db8::0001]:2380/", true),
            ("http://[2001:db8::1]:2380", false),
            ("https://[2001:db8::1]:2381", false),
            ("https://[2001:db8::10]:2380", false),
            ("https://[2001:db8::1]", false),
            ("", false),
        ] {
            assert_eq!(is_same(own, url), same, "{url}");
        }
        assert!(is_same("http://Master-1.example:80", "http://master-1.example"));
        assert_eq!(host_and_port("https://[2001:db8::1]"), Some(("2001:db8::1".to_owned(), 443)));
        assert_eq!(host_and_port("https://192.0.2.1:x"), None);
    }
}
