//! The command line that Heat and Magnum hand out for a wait condition (`curl_cli`, WAIT_CURL): read, never run.

/// Options of curl whose value is the next word, or the rest of the same one. What takes no value needs no mention.
const SHORT: &str = "AbcCdDeEFHKmoPQrtTuUwxXYyz";
const LONG: &[&str] = &[
    "cacert",
    "capath",
    "cert",
    "ciphers",
    "config",
    "connect-timeout",
    "cookie",
    "data",
    "data-ascii",
    "data-binary",
    "data-raw",
    "data-urlencode",
    "form",
    "header",
    "interface",
    "json",
    "key",
    "max-time",
    "noproxy",
    "output",
    "proxy",
    "referer",
    "request",
    "resolve",
    "retry",
    "retry-delay",
    "retry-max-time",
    "upload-file",
    "url",
    "user",
    "user-agent",
    "write-out",
];

/// What of the line matters for a signal.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct CurlLine {
    pub(super) url: String,
    /// The value of X-Auth-Token.
    pub(super) token: Option<String>,
    /// `-k` or `--insecure`.
    pub(super) insecure: bool,
}

impl CurlLine {
    /// Whether a text means to be one.
    pub(super) fn looks_like_curl(text: &str) -> bool {
        text.split_whitespace().next().is_some_and(|program| program == "curl" || program.ends_with("/curl"))
    }

    /// The parts of the line; `None` without a URL, with two of them, or with a quote that does not end.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut words = shell_words(line)?.into_iter().skip(1);
        let mut parsed = Self::default();
        while let Some(word) = words.next() {
            if let Some(name) = word.strip_prefix("--") {
                match name {
                    "insecure" => parsed.insecure = true,
                    _ if LONG.contains(&name) => parsed.option(name, &words.next()?)?,
                    _ => {}
                }
            } else if let Some(letters) = word.strip_prefix('-') {
                for (at, letter) in letters.char_indices() {
                    if letter == 'k' {
                        parsed.insecure = true;
                    } else if SHORT.contains(letter) {
                        let rest = letters.get(at + 1..).unwrap_or_default();
                        let value = if rest.is_empty() { words.next()? } else { rest.to_owned() };
                        parsed.option(if letter == 'H' { "header" } else { "" }, &value)?;
                        break;
                    }
                }
            } else {
                parsed.option("url", &word)?;
            }
        }
        (!parsed.url.is_empty()).then_some(parsed)
    }

    fn option(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "url" if !self.url.is_empty() => return None,
            "url" => value.clone_into(&mut self.url),
            "header" => {
                let token = value.split_once(':').filter(|(name, _)| name.trim().eq_ignore_ascii_case("x-auth-token"));
                self.token = token.map(|(_, token)| token.trim().to_owned()).or(self.token.take());
            }
            _ => {}
        }
        Some(())
    }
}

/// Words as a shell splits them: quotes and backslashes count, nothing is expanded. `None` where a quote stays open.
fn shell_words(line: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (Some(open), c) if open == c => quote = None,
            (None | Some('"'), '\\') => match (quote, chars.next()?) {
                // A line that goes on.
                (_, '\n') => {}
                (None, c) | (_, c @ ('"' | '\\' | '$' | '`')) => word.get_or_insert_default().push(c),
                (_, c) => word.get_or_insert_default().extend(['\\', c]),
            },
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_are_split_as_a_shell_does() {
        for (line, words) in [
            (r"a  b	c", Some(vec!["a", "b", "c"])),
            (r#"a 'b c' "d e" '' f'g'"h""#, Some(vec!["a", "b c", "d e", "", "fgh"])),
            (r#"a\ b "c\"d" "\e" 'f\' \'g"#, Some(vec!["a b", "c\"d", "\\e", "f\\", "'g"])),
            ("a \\\n  b", Some(vec!["a", "b"])),
            ("", Some(vec![])),
            ("a 'b", None),
            ("a \"b", None),
            ("a \\", None),
        ] {
            let expected = words.map(|words| words.into_iter().map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(shell_words(line), expected, "{line}");
        }
    }

    #[test]
    fn every_spelling_of_the_line_gives_the_same() {
        let url = "https://heat.example.org:8004/v1/8d2b/stacks/bay-0/2f7a/resources/master_wait_handle/signal";
        for (line, insecure) in [
            // As Heat writes it, and as Magnum's fragments go on with it.
            (
                "curl -i -X POST -H 'X-Auth-Token: 5f0e_-' -H 'Content-Type: application/json' -H 'Accept: application/json' URL",
                false,
            ),
            ("curl --insecure -i -X POST -H 'X-Auth-Token: 5f0e_-' -H 'Accept: application/json' URL", true),
            (
                r#"curl -i -X POST -H 'X-Auth-Token: 5f0e_-' URL --data-binary '{"status": "SUCCESS", "reason": "see http://x/"}'"#,
                false,
            ),
            (r#"curl -k -H "x-auth-token:5f0e_-" -d "{\"status\": \"FAILURE\"}" "URL""#, true),
            ("/usr/bin/curl -sikXPOST -HX-Auth-Token:\\ 5f0e_- --url URL", true),
            ("curl \\\n  --request POST \\\n  --header 'X-AUTH-TOKEN:   5f0e_-' \\\n  --proxy http://proxy:3128 URL", false),
            ("curl --retry 5 --max-time 30 -x http://proxy:3128 -o /dev/null -H 'X-Auth-Token: 5f0e_-' URL", false),
            ("curl -s -w '%{http_code}' -e http://from/ -H 'X-Auth-Token: 5f0e_-' URL", false),
        ] {
            let line = line.replace("URL", url);
            assert!(CurlLine::looks_like_curl(&line));
            let parsed = CurlLine::parse(&line).unwrap();
            assert_eq!(
                (parsed.url.as_str(), parsed.token.as_deref(), parsed.insecure),
                (url, Some("5f0e_-"), insecure),
                "{line}"
            );
        }
        let swift = CurlLine::parse("curl -i -X PUT 'https://s/v1/A/c/o?temp_url_sig=1&temp_url_expires=2'").unwrap();
        assert_eq!((swift.url.as_str(), swift.token), ("https://s/v1/A/c/o?temp_url_sig=1&temp_url_expires=2", None));
    }

    #[test]
    fn a_line_with_no_or_two_places_is_none() {
        for bad in ["curl", "curl -X POST", "curl http://a http://b", "curl 'http://a", "curl http://a -H", "curl --url"] {
            assert!(CurlLine::parse(bad).is_none(), "{bad}");
        }
        assert!(!CurlLine::looks_like_curl("wget http://a") && !CurlLine::looks_like_curl(""));
    }

    proptest! {
        #[test]
        fn no_line_panics_and_quoting_is_undone(text in ".{0,100}", plain in "[ -~]{0,40}") {
            let _ = CurlLine::parse(&format!("curl {text}"));
            let quoted = format!("a '{}' b", plain.replace('\'', r"'\''"));
            prop_assert_eq!(shell_words(&quoted), Some(vec!["a".to_owned(), plain, "b".to_owned()]));
        }
    }
}
