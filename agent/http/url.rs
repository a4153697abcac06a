//! URLs: kept byte for byte, shown without their secrets.
//!
//! In: a URL as it was given. Out: its parts, a form that may be shown, whether a proxy applies. Never: a connection, or a byte of the URL changed.

use std::borrow::Cow;
use std::net::IpAddr;

use reqwest::Url;

use crate::error::{Error, Result};

/// A URL taken apart without changing a byte of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Parts<'a> {
    /// `http` or `https`.
    pub scheme: &'static str,
    /// Whether a user name or password stands before the host.
    pub userinfo: bool,
    /// `host` or `host:port`, without user name and password.
    pub authority: &'a str,
    /// Path and query, from the first `/` or `?` on; may be empty.
    pub target: &'a str,
}

/// Takes an absolute http(s) URL apart; `None` for anything else. White space, control characters and quotes stand in no authority
/// (RFC 3986, 3.2), and where one did, what masks texts could not know where the password ends.
#[must_use]
pub fn split(url: &str) -> Option<Parts<'_>> {
    let (scheme, rest) = url.split_once("://")?;
    let scheme = match scheme {
        _ if scheme.eq_ignore_ascii_case("http") => "http",
        _ if scheme.eq_ignore_ascii_case("https") => "https",
        _ => return None,
    };
    let (before, target) = rest.split_at(rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len()));
    if before.contains(|c: char| c.is_whitespace() || c.is_control() || c == '"') {
        return None;
    }
    let (userinfo, authority) = match before.rsplit_once('@') {
        Some((_, authority)) => (true, authority),
        None => (false, before),
    };
    (!authority.is_empty()).then_some(Parts { scheme, userinfo, authority, target })
}

/// A URL for people: without user name, password and query, which hold secrets.
#[must_use]
pub fn redacted(url: &str) -> String {
    // Only what the parser understood is shown: in a malformed URL a password may stand anywhere.
    let Some(parsed) = parse(url) else { return "an unusable URL".to_owned() };
    let Some(host) = parsed.host_str() else { return format!("{}:…", parsed.scheme()) };
    let port = parsed.port().map(|port| format!(":{port}")).unwrap_or_default();
    let query = if parsed.query().is_some() || parsed.fragment().is_some() { "?…" } else { "" };
    // Of a URL within a URL: `http://http://user:password@host/`.
    let path = if parsed.path().contains('@') { "/…" } else { parsed.path() };
    format!("{}://{host}{port}{path}{query}", parsed.scheme())
}

/// Stands where a text was cut (`report::text::shortened`). What hides secrets looks there for what the cut left of one.
pub const CUT: char = '…';

/// What stands in the place of a secret.
pub const MASK: &str = "******";

/// A text for people: user name and password of every URL in it are masked, wherever it stands and whatever quotes it. Of what only
/// resembles a URL more is masked than need be, never less.
#[must_use]
pub fn without_userinfo(text: &str) -> Cow<'_, str> {
    if !may_have_userinfo(text) {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    let mut rest = text;
    let mut masked = false;
    while let Some((before, after)) = rest.split_once(':') {
        let slashes = slashes(before, after);
        let (slashes, behind) = after.split_at(slashes);
        out.push_str(before);
        out.push(':');
        out.push_str(slashes);
        rest = behind;
        if (!slashes.is_empty() || is_web(before))
            && let Some(length) = userinfo(behind)
        {
            out.push_str(MASK);
            rest = behind.get(length..).unwrap_or_default();
            masked = true;
        }
    }
    if !masked {
        return Cow::Borrowed(text);
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Whether there may be anything that [`without_userinfo`] masks: a quick look, at many texts at once where they stand in one.
#[must_use]
pub fn may_have_userinfo(text: &str) -> bool {
    text.contains(['@', CUT])
}

/// Whether `http` or `https` stands at the end of what is before a colon.
fn is_web(before: &str) -> bool {
    let lower = before.get(before.len().saturating_sub(5)..).or_else(|| before.get(before.len().saturating_sub(4)..));
    lower.is_some_and(|end| end.to_ascii_lowercase().ends_with("http") || end.eq_ignore_ascii_case("https"))
}

/// How many bytes of slashes stand between a scheme's colon and the authority. Readers of http URLs repair any number of them
/// (WHATWG URL, 4.4, special authority slashes), so the mask takes them all too; another scheme has two or no authority.
fn slashes(before: &str, after: &str) -> usize {
    if is_web(before) {
        after.len() - after.trim_start_matches(['/', '\\']).len()
    } else if after.starts_with("//") {
        2
    } else {
        0
    }
}

/// How long user name and password are, up to the `@` behind them. What cannot be a host and port is a user name and a password with
/// a `/`, `?` or `#` that nobody encoded: then they end at the last `@` of the word.
fn userinfo(text: &str) -> Option<usize> {
    let (authority, rest) = text.split_at(authority_end(text, &['/', '?', '#']));
    let port = authority.rsplit_once(':').map(|(_, port)| port);
    // `a,http://b`: the colon is that of the next URL.
    let is_host = port.is_none_or(|port| {
        if port.is_empty() {
            rest.starts_with("//")
        } else {
            port.bytes().all(|b| b.is_ascii_digit()) || authority.starts_with('[')
        }
    });
    let authority = if is_host || authority.contains('@') { authority } else { text.get(..authority_end(text, &[]))? };
    authority.rfind('@').or_else(|| cut_userinfo(text))
}

/// Where a URL was cut within its authority, no `@` says any more what stood there: what cannot be the beginning of a host and port is
/// taken for a user name and a password.
fn cut_userinfo(text: &str) -> Option<usize> {
    let end = authority_end(text, &[CUT]);
    let (left, behind) = text.split_at(end);
    let (host, port) = left.split_once(':').filter(|_| behind.starts_with(CUT))?;
    let port = port.split(['/', '?', '#']).next().unwrap_or_default();
    let is_host = host.starts_with('[')
        || host.contains(['/', '?', '#'])
        || (port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit()));
    (!is_host).then_some(end)
}

/// Whether a URL in a text has a user name or password.
#[must_use]
pub fn has_userinfo(text: &str) -> bool {
    without_userinfo(text) != text
}

/// Where user name, password, host and port end at the latest: at one of these characters or with the word. A quote ends them only
/// where no word goes on behind it: it may be a part of a password.
fn authority_end(text: &str, stops: &[char]) -> usize {
    let mut escaped = false;
    let ends = |(at, c): &(usize, char)| {
        let was_escaped = escaped;
        escaped = *c == '\\' && !was_escaped;
        let behind = || text.get(at + 1..).and_then(|rest| rest.chars().next());
        let closes =
            || behind().is_none_or(|next| next.is_whitespace() || matches!(next, ',' | ':' | ';' | ']' | '}' | ')' | '>'));
        c.is_whitespace() || stops.contains(c) || (*c == '"' && !was_escaped && closes())
    };
    text.char_indices().find(ends).map_or(text.len(), |(at, _)| at)
}

/// Parses; escapes in a host are refused, because the parser without Unicode tables does not take every one.
fn parse(text: &str) -> Option<Url> {
    let authority = split(text).map_or(text, |parts| parts.authority);
    (!authority.contains('%')).then(|| Url::parse(text).ok())?
}

/// A URL that can be sent as it is written.
#[derive(Clone)]
pub(super) struct Target {
    /// For the client.
    pub(super) url: Url,
    /// Host and port as written.
    pub(super) authority: String,
    /// The host alone.
    pub(super) host: String,
    /// Whether TLS is spoken.
    pub(super) secure: bool,
}

impl Target {
    /// Parses and makes sure that parsing changed nothing that a signature covers.
    pub(super) fn new(text: &str) -> Result<Self> {
        let unusable = || {
            Error::permanent(format!("{} cannot be called", redacted(text)))
                .rule("an absolute http(s) URL (RFC 9110 4.2)")
                .remedy("correct the URL at its origin: the template, os-collect-config.conf, Heat's configuration")
        };
        let parts = split(text).ok_or_else(unusable)?;
        let url = parse(text).ok_or_else(unusable)?;
        let host = url.host_str().ok_or_else(unusable)?.to_owned();
        let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
        let sent = format!("{}{query}", url.path());
        if sent != if parts.target.is_empty() { "/" } else { parts.target } {
            return Err(Error::permanent(format!("{} would not be sent byte for byte", redacted(text)))
                .rule(
                    "a signed URL must be requested byte for byte, so dot segments, spaces and fragments must be percent-encoded",
                )
                .remedy("correct the URL at its origin: the template, os-collect-config.conf, Heat's configuration"));
        }
        Ok(Self { authority: parts.authority.to_owned(), host, secure: parts.scheme == "https", url })
    }

    /// The metadata address and this machine are reached directly, whatever the environment says (heat-protocol.md R26).
    pub(super) fn never_proxied(&self) -> bool {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        match host.parse::<IpAddr>().map(|address| address.to_canonical()) {
            Ok(IpAddr::V4(v4)) => v4.is_loopback() || v4.is_link_local(),
            Ok(IpAddr::V6(v6)) => v6.is_loopback() || v6.is_unicast_link_local(),
            Err(_) => host == "localhost" || host.ends_with(".localhost"),
        }
    }
}

/// The proxy that the environment names, as the client library looks it up.
fn proxies(names: &'static [&'static str]) -> impl Iterator<Item = String> {
    names.iter().filter_map(|name| std::env::var(name).ok()).filter(|value| !value.is_empty())
}

/// Whether the environment names a proxy for a scheme; the host may be exempt all the same.
pub(super) fn proxy_set(secure: bool) -> bool {
    let names = if secure {
        &["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"]
    } else {
        &["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"]
    };
    proxies(names).next().is_some()
}

/// Whether a proxy is itself spoken to over TLS.
pub(super) fn proxy_over_tls() -> bool {
    proxies(&["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"]).any(|proxy| proxy.starts_with("https:"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Attack: of a URL that was cut within its password, most of that was shown, because no `@` followed.
    #[test]
    fn what_a_cut_leaves_of_a_user_and_password_is_masked() {
        for (text, shown) in [
            ("at http://user:s3cret-pa…", "at http://******…"),
            ("at https://user:s3cret/pa… | next", "at https://******… | next"),
            ("at \"https://user:s3…\" and http://h/", "at \"https://******…\" and http://h/"),
            ("amqp://user:pass…", "amqp://******…"),
            // No port has six digits.
            ("at http://user:123456…", "at http://******…"),
            ("at http://host:80…", "at http://host:80…"),
            ("at http://host.example…", "at http://host.example…"),
            ("at http://host:8000/a:b…", "at http://host:8000/a:b…"),
            ("at http://[2001:db8::5]:80…", "at http://[2001:db8::5]:80…"),
            ("at http://[2001:db8:…", "at http://[2001:db8:…"),
            ("http://a:8000/v1/…/resources/node", "http://a:8000/v1/…/resources/node"),
            ("waiting: one…", "waiting: one…"),
        ] {
            assert_eq!(without_userinfo(text), shown);
        }
    }

    #[test]
    fn a_url_is_sent_as_written_or_not_at_all() {
        for exact in [
            "http://h:8000/v1/signal/arn%3Aopenstack%3Aheat%3A%3A9d1c%3Astacks/my%2520stack/a?Signature=X%2B%2Fy%3D&Timestamp=2026-03-01T11%3A59%3A58Z",
            "http://Heat.Example:8000/v1/",
            "https://h/a+b%2F%2F?c=d+e",
            "http://h//double//?x=%7e",
            "http://[::1]:8000/v1/?a",
            "http://h",
            "HTTP://h:80/",
        ] {
            let target = Target::new(exact).unwrap();
            let sent = format!("{}{}", target.url.path(), target.url.query().map(|q| format!("?{q}")).unwrap_or_default());
            assert!(exact.ends_with(&sent) || exact == "http://h", "{exact}: {sent}");
        }
        for changed in [
            "http://h/a/../b",
            "http://h/%2e%2e/b",
            "http://h/a b",
            "http://h/a#b",
            "http://h/?a='b'",
            "http://h\\a",
            "http://h/é",
            " http://h/",
            "http://h/a\n",
            "http://h?x",
        ] {
            let error = Target::new(changed).err().unwrap();
            assert!(error.broken_rule().is_some(), "{changed}");
        }
        for unusable in [
            "",
            "h/v1",
            "ftp://h/",
            "file:///etc/shadow",
            "http://",
            "http:///x",
            "http://h:99999/",
            "javascript:x",
            "http://A%Aa",
            "http://%41/",
        ] {
            assert!(Target::new(unusable).is_err(), "{unusable}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        for (url, shown) in [
            ("http://u:hush@h:8000/v1/?Signature=hush", "http://h:8000/v1/?…"),
            ("https://h/a#hush", "https://h/a?…"),
            ("https://h/a", "https://h/a"),
            ("http://u:hu/sh@h/", "an unusable URL"),
            ("no url at all hush", "an unusable URL"),
            ("data:hush", "data:…"),
            ("http://http://u:hush@h/v1/", "http://http/…"),
        ] {
            assert_eq!(redacted(url), shown);
            assert!(!Target::new(url).err().is_some_and(|error| error.lines().join("").contains("hush")), "{url}");
        }
    }

    #[test]
    fn user_names_and_passwords_are_masked_in_every_url_of_a_text() {
        for (text, shown) in [
            ("http://u:hush@h:8000/v1/?x", "http://******@h:8000/v1/?x"),
            ("https://hush@h", "https://******@h"),
            ("a http://u:hu@sh@h/ and http://h/a@b", "a http://******@h/ and http://h/a@b"),
            ("K=\"--url=http://u:hu\\\"sh@h/\"", "K=\"--url=http://******@h/\""),
            ("url: \"http://u:hu\"sh'@h/p\"", "url: \"http://******@h/p\""),
            ("{\"a\":\"http://h:1\",\"b\":\"me@x\"}", "{\"a\":\"http://h:1\",\"b\":\"me@x\"}"),
            ("http://u:hush@[::1]:80", "http://******@[::1]:80"),
            ("socks5://u:hush@h,http://v:hush@i", "socks5://******@h,http://******@i"),
            ("me@example.org http://h/", "me@example.org http://h/"),
            ("http://u:hush@", "http://******@"),
            ("://", "://"),
            ("", ""),
            ("see https:/u:hush@h/p", "see https:/******@h/p"),
            ("https:u:hush@h", "https:******@h"),
            ("HTTPS:///u:hush@h", "HTTPS:///******@h"),
            ("http:\\u:hush@h", "http:\\******@h"),
            ("\"https://u:hu/sh@h/p\" and me@x", "\"https://******@h/p\" and me@x"),
            ("https://u:hu?s#h@h", "https://******@h"),
            ("http://h:80/a@b https://[::1]/a@b", "http://h:80/a@b https://[::1]/a@b"),
            ("http://h,http://u:hush@i", "http://h,http://******@i"),
            ("file:///etc/a@b.service http: me@x", "file:///etc/a@b.service http: me@x"),
        ] {
            assert_eq!(without_userinfo(text), shown, "{text}");
            assert_eq!((has_userinfo(text), has_userinfo(shown)), (text != shown, false), "{text}");
        }
    }

    #[test]
    fn neither_the_metadata_address_nor_this_machine_is_proxied() {
        for (url, never) in [
            ("http://169.254.169.254/x", true),
            ("http://127.0.0.1:8000/", true),
            ("http://[::1]/", true),
            ("http://[::ffff:169.254.169.254]/", true),
            ("http://localhost/", true),
            ("http://10.0.0.1/", false),
            ("http://localhost.example/", false),
        ] {
            assert_eq!(Target::new(url).unwrap().never_proxied(), never, "{url}");
        }
    }

    #[test]
    fn what_stands_in_no_authority_makes_no_url() {
        for url in ["http:// @$", "http://user name:hush@host/", "http://\":hush@host/", "http://a\tb@host/"] {
            assert!(split(url).is_none() && Target::new(url).is_err(), "{url}");
        }
        assert!(split("http://host/a b\"c").is_some(), "in a path they are the server's matter");
    }

    proptest! {
        #[test]
        fn whatever_is_called_was_not_changed(text in "(http|https)://[ -~]{0,30}") {
            if let Ok(target) = Target::new(&text) {
                let parts = split(&text).unwrap();
                prop_assert!(parts.target.is_empty() || target.url.as_str().ends_with(parts.target));
            }
            prop_assert!(!redacted(&text).is_empty());
            prop_assert!(!split(&text).is_some_and(|parts| parts.userinfo) || has_userinfo(&text));
        }
    }
}
