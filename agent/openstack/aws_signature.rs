//! Signature version 2 of Amazon's query API, as heat-api-cfn and Keystone's `ec2tokens` check it
//! (heat-protocol.md 2.3, RFC 3986 for the encoding). They accept version 4 as well; the replaced collector uses version 2, and every release
//! of Heat takes it.
//!
//! No Timestamp is ever added: Keystone then leaves out its clock check, so that a node whose clock
//! is wrong can still read its metadata.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

use crate::error::{Error, Result};
use crate::http;

/// An EC2 key pair of the server's own stack user.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    /// `access_key_id`: a name, no secret.
    pub access: String,
    /// `secret_access_key`, verbatim.
    pub secret: String,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("access", &self.access).finish_non_exhaustive()
    }
}

/// Percent-encodes as RFC 3986 2.3 says: letters, digits and `-_.~` stay, everything else becomes
/// `%XX` of its UTF-8 bytes. So a blank is `%20`, which form decoders read as well as `+`.
#[must_use]
pub fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push('%');
            for nibble in [byte >> 4, byte & 15] {
                out.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0').to_ascii_uppercase());
            }
        }
    }
    out
}

/// The parameters sorted by the bytes of their names, encoded, joined by `&`. `Signature` is left out.
#[must_use]
pub fn canonical_query(params: &[(&str, &str)]) -> String {
    let mut sorted: Vec<_> = params.iter().filter(|(name, _)| *name != "Signature").collect();
    sorted.sort_unstable();
    sorted.iter().map(|(name, value)| format!("{}={}", encode(name), encode(value))).collect::<Vec<_>>().join("&")
}

/// The signature (base64, not percent-encoded) of a request.
///
/// `host` is what the Host header says, port included where the URL has one; `path` is unquoted
/// (`/v1/signal/arn:openstack:heat::…`), as the server decodes it before it checks.
#[must_use]
pub fn sign(verb: &str, host: &str, path: &str, params: &[(&str, &str)], secret: &str) -> String {
    let text = format!("{verb}\n{host}\n{path}\n{}", canonical_query(params));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    STANDARD.encode(hmac::sign(&key, text.as_bytes()))
}

/// The signed URL that asks heat-api-cfn for one resource of a stack, answered as JSON.
///
/// `ContentType=JSON` must be a part of the signed query; the `Accept` header has no effect there.
///
/// # Errors
/// Permanent, if `metadata_url` is no plain `http(s)://host[:port]/path`.
pub fn describe_stack_resource_url(metadata_url: &str, stack: &str, resource: &str, keys: &Keys) -> Result<String> {
    let odd = |why: &str| {
        Error::permanent(format!("metadata_url {} {why}", http::redacted(metadata_url)))
            .rule("Heat's CloudFormation API is at http(s)://host[:port]/v1/")
            .remedy("correct metadata_url in the os-collect-config settings of this server")
    };
    let parts = http::split(metadata_url).ok_or_else(|| odd("is not an http(s) URL"))?;
    if parts.target.contains(['?', '#', '%']) || parts.userinfo {
        return Err(odd("has a query, an escape or a user name"));
    }
    // heat-api-cfn answers 404 without the slash at the end.
    let path = if parts.target.ends_with('/') { parts.target.to_owned() } else { format!("{}/", parts.target) };
    let params = [
        ("AWSAccessKeyId", keys.access.as_str()),
        ("Action", "DescribeStackResource"),
        ("ContentType", "JSON"),
        ("LogicalResourceId", resource),
        ("SignatureMethod", "HmacSHA256"),
        ("SignatureVersion", "2"),
        ("StackName", stack),
    ];
    let signature = sign("GET", parts.authority, &path, &params, &keys.secret);
    Ok(format!("{}://{}{path}?{}&Signature={}", parts.scheme, parts.authority, canonical_query(&params), encode(&signature)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn signatures_are_those_of_the_existing_client() {
        let params = |access, stack| {
            [
                ("Action", "DescribeStackResource"),
                ("StackName", stack),
                ("LogicalResourceId", "srv"),
                ("AWSAccessKeyId", access),
                ("SignatureVersion", "2"),
                ("SignatureMethod", "HmacSHA256"),
            ]
        };
        // heat-protocol.md, appendix A.
        for (host, access, stack, secret, signature) in [
            ("127.0.0.1:18000", "A", "s", "S", "S8RvV1NEpPqU7Ds86Qqs0R9sKaECsPVNAgkVvxdt2yU="),
            ("heat.example:8000", "AKID", "my stack", "SECRET", "MJqocTQhHKD0q6AdoC9TLbV/fZ7KLKEVwLK3WEzBnwc="),
        ] {
            assert_eq!(sign("GET", host, "/v1/", &params(access, stack), secret), signature);
        }
    }

    #[test]
    fn the_json_url_is_one_that_a_real_heat_answered() {
        let keys = Keys { access: "568d54131b11465392d5ffe05be6d257".into(), secret: "MqbWf^Ymgsymuo71K2*4vwC%URV6z8jq".into() };
        let expected = "http://127.0.0.1:8000/v1/?AWSAccessKeyId=568d54131b11465392d5ffe05be6d257&Action=DescribeStackResource&\
                        ContentType=JSON&LogicalResourceId=server&SignatureMethod=HmacSHA256&SignatureVersion=2&StackName=p-cfn&\
                        Signature=EQ5LAGcmcZJiaOtwoGwH7dzx5OIgtNVqshGHqgQWMgs%3D";
        for base in ["http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1"] {
            assert_eq!(describe_stack_resource_url(base, "p-cfn", "server", &keys).unwrap(), expected);
        }
    }

    #[test]
    fn a_url_that_cannot_be_signed_is_refused_without_its_secrets() {
        let keys = Keys { access: "a".into(), secret: "s".into() };
        for bad in
            ["", "heat:8000/v1/", "ftp://h/v1/", "http://u:hush@h/v1/", "http://h/v1/?hush=1", "http://h/%2e/", "http:///v1/"]
        {
            let error = describe_stack_resource_url(bad, "s", "r", &keys).unwrap_err();
            assert!(!error.to_string().contains("hush"), "{error}");
            assert!(error.broken_rule().is_some(), "{bad}");
        }
        assert!(!format!("{keys:?}").contains("\"s\""));
    }

    #[test]
    fn encoding_is_that_of_rfc_3986() {
        assert_eq!(encode("aZ09-_.~ +/=%&é"), "aZ09-_.~%20%2B%2F%3D%25%26%C3%A9");
    }

    proptest! {
        #[test]
        fn any_text_survives_encoding(text in any::<String>()) {
            let encoded = encode(&text);
            prop_assert!(encoded.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.~%".contains(&b)));
            let mut decoded = Vec::new();
            let mut rest = encoded.as_bytes();
            while let Some((first, after)) = rest.split_first() {
                if *first == b'%' {
                    decoded.push(u8::from_str_radix(std::str::from_utf8(&after[..2]).unwrap(), 16).unwrap());
                    rest = &after[2..];
                } else {
                    decoded.push(*first);
                    rest = after;
                }
            }
            prop_assert_eq!(decoded, text.into_bytes());
        }

        #[test]
        fn the_order_of_parameters_does_not_matter(a in "[ -~]{0,8}", b in "[ -~]{0,8}") {
            let (one, two) = ([("b", a.as_str()), ("a", b.as_str())], [("a", b.as_str()), ("b", a.as_str())]);
            prop_assert_eq!(sign("POST", "h", "/", &one, "k"), sign("POST", "h", "/", &two, "k"));
        }
    }
}
