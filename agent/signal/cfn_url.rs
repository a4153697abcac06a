//! The pre-signed URLs of heat-api-cfn, which Keystone refuses some time after they were made (heat-protocol.md 7.1), and
//! how the same signal is addressed by other ways.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::http::split;
use crate::openstack::aws_signature::{Keys, canonical_query, encode, sign};

/// Keystone's default limit for pre-signed URLs (`[credential] auth_ttl`).
pub(super) const URL_LIFE: Duration = Duration::from_mins(15);

/// When a pre-signed URL was made, if it says so (R47).
pub(super) fn made(url: &str) -> Option<Timestamp> {
    let (_, query) = url.split_once('?')?;
    let stamp = query.split('&').find_map(|pair| pair.strip_prefix("Timestamp="))?;
    Timestamp::parse_rfc3339(&stamp.replace("%3A", ":").replace("%3a", ":"))
}

/// The same resource at the API of the server's own settings, signed with its keys and without a time, which Keystone then
/// does not check. No other host gets such a signature, whatever the URL says.
pub(super) fn resigned_url(url: &str, verb: &str, metadata_url: &str, keys: &Keys) -> Option<String> {
    let (given, own) = (split(url)?, split(metadata_url)?);
    let (scheme, given) = (given.scheme, given.target.split('?').next().unwrap_or_default());
    let at = given.find("/signal/arn%3A").or_else(|| given.find("/waitcondition/arn%3A"))?;
    // What was to go over TLS is not sent without it.
    let is_weaker = (scheme, own.scheme) == ("https", "http");
    if own.userinfo || own.target.contains(['?', '#', '%']) || is_weaker {
        return None;
    }
    let path = format!("{}{}", own.target.trim_end_matches('/'), given.get(at..)?);
    // What heat-api-cfn hands to Keystone is the path decoded and quoted once more, whatever stood in the request.
    let checked = quoted(&decoded(&path)?);
    let params = [("AWSAccessKeyId", keys.access.as_str()), ("SignatureMethod", "HmacSHA256"), ("SignatureVersion", "2")];
    let signature = sign(verb, own.authority, &checked, &params, &keys.secret);
    let query = canonical_query(&params);
    Some(format!("{}://{}{path}?{query}&Signature={}", own.scheme, own.authority, encode(&signature)))
}

/// `/stacks/NAME/ID/resources/RESOURCE/signal`: the resource that a URL of either of Heat's APIs signals, as the native
/// API names it below its endpoint.
pub(super) fn native_path(url: &str) -> Option<String> {
    let path = split(url)?.target.split('?').next().unwrap_or_default();
    let path = match path.find("/arn%3A") {
        // The ARN is quoted once more than the names in it.
        Some(at) => decoded(path.get(at + 1..)?)?,
        None => path.strip_suffix("/signal")?.to_owned(),
    };
    let (_, below) = path.split_once("stacks/")?;
    let parts: Vec<_> = below.split('/').collect();
    let plain = |part: &&str| {
        !part.is_empty()
            && !matches!(*part, "." | "..")
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~%".contains(&byte))
    };
    let named = parts.len() == 4 && parts.get(2) == Some(&"resources");
    (named && parts.iter().all(plain)).then(|| format!("/stacks/{below}/signal"))
}

/// Quotes a path as heat-api-cfn does before it has a signature checked: what RFC 3986 allows in a path stays.
fn quoted(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    let mut buffer = [0; 4];
    for c in path.chars() {
        if "/!$&'()*+,;=:@".contains(c) {
            out.push(c);
        } else {
            out.push_str(&encode(c.encode_utf8(&mut buffer)));
        }
    }
    out
}

/// Undoes one percent-encoding.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first == b'%' {
            let (code, after) = after.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys() -> Keys {
        Keys { access: "AK1".into(), secret: "SK1".into() }
    }

    const WAIT: &str = "http://heat.example:8000/v1/waitcondition/arn%3Aopenstack%3Aheat%3A%3A7e2f0a%3Astacks/my%2520stack/0b1c-2d3e/resources/wait%2520handle";

    #[test]
    fn a_url_signed_afresh_is_the_one_that_heat_checks() {
        let old = format!("{WAIT}?SignatureMethod=HmacSHA256&AWSAccessKeyId=x&Timestamp=2026-03-01T11%3A59%3A58Z&Signature=old");
        let fresh = resigned_url(&old, "PUT", "http://heat.example:8000/v1/", &keys()).unwrap();
        // What a real Heat 27 took: the ARN's colons plain, the names in it quoted twice, as in the URL.
        let checked = "/v1/waitcondition/arn:openstack:heat::7e2f0a:stacks/my%20stack/0b1c-2d3e/resources/wait%20handle";
        let params = [("AWSAccessKeyId", "AK1"), ("SignatureMethod", "HmacSHA256"), ("SignatureVersion", "2")];
        let signature = encode(&sign("PUT", "heat.example:8000", &checked.replace('%', "%25"), &params, "SK1"));
        assert_eq!(
            fresh,
            format!("{WAIT}?AWSAccessKeyId=AK1&SignatureMethod=HmacSHA256&SignatureVersion=2&Signature={signature}")
        );
        assert_ne!(resigned_url(&old, "POST", "http://heat.example:8000/v1/", &keys()).unwrap(), fresh);
    }

    #[test]
    fn nothing_is_signed_for_another_place_than_the_settings_name() {
        let arn = "signal/arn%3Aopenstack%3Astacks/s/u/resources/r";
        for elsewhere in
            ["http://evil.example:8000/v1/", "http://heat.example:8000@evil.example/v1/", "http://u:p@heat.example/x/"]
        {
            let fresh =
                resigned_url(&format!("{elsewhere}{arn}?Signature=x"), "POST", "http://heat.example:8000/v1/", &keys()).unwrap();
            assert!(fresh.starts_with(&format!("http://heat.example:8000/v1/{arn}?AWSAccessKeyId=AK1&")), "{fresh}");
        }
        for (url, metadata_url) in [
            ("http://h/v1/?Action=DeleteStack", "http://h/v1/"),
            ("http://h/v1/signal/other", "http://h/v1/"),
            ("http://h/v1/signal/arn%3A%zz", "http://h/v1/"),
            ("http://h/v1/signal/arn%3Aa%3", "http://h/v1/"),
            ("no url", "http://h/v1/"),
            ("http://h/v1/signal/arn%3Aa", "http://u:p@h/v1/"),
            ("http://h/v1/signal/arn%3Aa", "http://h/v1/?a"),
            ("http://h/v1/signal/arn%3Aa", ""),
            // Attack: one 403 of Keystone's outage, and outputs went over the network in plain text.
            ("https://h/v1/signal/arn%3Aa", "http://h/v1/"),
        ] {
            assert_eq!(resigned_url(url, "POST", metadata_url, &keys()), None, "{url}");
        }
    }

    #[test]
    fn the_native_api_names_the_same_resource() {
        for (url, path) in [
            (WAIT, Some("/stacks/my%20stack/0b1c-2d3e/resources/wait%20handle/signal")),
            (
                "http://h:8000/v1/signal/arn%3Aopenstack%3Aheat%3A%3Ap%3Astacks/s/u/resources/r?Signature=x",
                Some("/stacks/s/u/resources/r/signal"),
            ),
            ("https://h/heat/v1/p/stacks/s/u/resources/r/signal", Some("/stacks/s/u/resources/r/signal")),
            ("http://h:8000/v1/signal/arn%3Aopenstack%3Aheat%3A%3Ap%3Astacks/s/u/resources/..%2Fr", None),
            ("http://h:8000/v1/signal/arn%3Aopenstack%3Aheat%3A%3Ap%3Astacks/s/u/resources/..", None),
            ("http://h:8000/v1/signal/arn%3Aopenstack%3Aheat%3A%3Ap%3Astacks/s/u/r", None),
            ("https://swift/v1/AUTH_1/stacks/o?temp_url_sig=x", None),
            ("http://h/", None),
        ] {
            assert_eq!(native_path(url).as_deref(), path, "{url}");
        }
    }

    #[test]
    fn the_time_of_a_url_is_read_in_any_spelling() {
        let at = Timestamp::parse_rfc3339("2026-03-01T11:59:58Z");
        for stamp in ["2026-03-01T11%3A59%3A58Z", "2026-03-01T11:59:58Z", "2026-03-01T11%3a59%3a58Z"] {
            assert_eq!(made(&format!("http://h/?A=1&Timestamp={stamp}&Signature=x")), at);
        }
        assert_eq!(made("http://h/?Signature=x"), None);
        assert_eq!(made("http://h/?Timestamp=soon"), None);
    }

    proptest! {
        #[test]
        fn whatever_is_encoded_is_decoded(text in any::<String>()) {
            prop_assert_eq!(decoded(&encode(&text)), Some(text));
        }

        #[test]
        fn no_url_panics(url in "http://h:8000/v1/(signal|waitcondition)/(arn%3A)?[ -~]{0,60}") {
            let _ = (resigned_url(&url, "POST", "http://h:8000/v1/", &keys()), native_path(&url), made(&url));
        }
    }
}
