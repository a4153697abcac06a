//! Secrets in texts that are no JSON: YAML, environment files, headers and command lines, found by the names that stand before them.

use crate::http::MASK;
use crate::kubernetes::is_secret_parameter;

/// Names whose values are secret wherever they stand, in lower case with `_` for `-`.
const SECRET: [&str; 5] = ["authorization", "deploy_signal_id", "proxy_authorization", "wait_handle", "curl_cli"];

/// How names of secrets end, in lower case without `_` and `-`: templates, services and programs write them in every way.
const SECRET_ENDS: [&str; 9] =
    ["password", "passwd", "passphrase", "secret", "token", "adminpass", "privatekey", "apikey", "secretkey"];

/// The rest of the names that end otherwise.
const SECRET_WHOLE: [&str; 1] = ["secretaccesskey"];

/// Flags of curl whose value is a user's name and password.
const USERS: [&str; 4] = ["-u", "--user", "-U", "--proxy-user"];

/// Whether a name in any of the ways to write it is that of a secret.
pub(super) fn is_secret(name: &str) -> bool {
    let lower = name.trim().to_ascii_lowercase().replace('-', "_");
    let compact = lower.replace('_', "");
    let compact = compact.trim_end_matches(|c: char| c.is_ascii_digit());
    SECRET.contains(&lower.as_str())
        || SECRET_WHOLE.contains(&compact)
        || SECRET_ENDS.iter().any(|end| compact.ends_with(end))
        || is_secret_parameter(&lower)
}

/// The same text with the values masked that stand behind the name of a secret and a `:` or `=`, and what curl is given as `--user`.
/// Where nobody can tell where a value ends, more is masked than need be.
pub(super) fn masked_words(text: &str) -> String {
    let mut out = String::new();
    let (mut rest, mut column, mut is_curl) = (text, 0, false);
    while let Some((before, word, behind)) = next_word(rest) {
        out.push_str(before);
        column = column_after(column, before);
        let opening = before.trim_end_matches(['"', '\'', '\\']).len();
        let place = NamePosition { column: column - (before.len() - opening).min(column), in_quotes: opening < before.len() };
        out.push_str(word);
        is_curl |= word == "curl";
        let is_flag = place.in_quotes || out.len() == word.len() || before.ends_with(char::is_whitespace);
        let found = match value_begins(behind) {
            Some((at, separator)) if is_secret(word) => {
                Some((at, value_length(behind.get(at..).unwrap_or_default(), place.separated(behind, separator))))
            }
            _ if is_curl && is_flag => user_of(word, behind),
            _ => None,
        };
        let consumed = match found.filter(|(_, length)| *length > 0) {
            Some((at, length)) => {
                out.push_str(behind.get(..at).unwrap_or_default());
                out.push_str(MASK);
                at + length
            }
            None => 0,
        };
        let (masked, left) = behind.split_at(consumed);
        column = column_after(column_after(column, word), masked);
        rest = left;
    }
    out.push_str(rest);
    out
}

/// In which column a text ends that begins in this one.
fn column_after(column: usize, text: &str) -> usize {
    text.rfind('\n').map_or(column + text.len(), |at| text.len() - at - 1)
}

/// What stands before the next word of letters, digits, `_` and `-`, the word, and what stands behind it.
fn next_word(text: &str) -> Option<(&str, &str, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    let (before, from) = text.split_at(text.find(is_word)?);
    let (word, behind) = from.split_at(from.find(|c| !is_word(c)).unwrap_or(from.len()));
    Some((before, word, behind))
}

/// Where a name stands.
struct NamePosition {
    column: usize,
    in_quotes: bool,
}

/// How far an unquoted value may go.
enum Extent {
    /// A word of a shell.
    Word,
    /// The line: an INI file's, a header, or within quotes that began before the name.
    Line,
    /// The line and those below it that are indented further than its name, as in YAML.
    Block(usize),
}

impl NamePosition {
    fn separated(&self, behind: &str, separator: char) -> Extent {
        let closed = behind.starts_with(['"', '\'', '\\']);
        match separator {
            ':' => Extent::Block(self.column),
            _ if behind.starts_with([' ', '\t']) || (self.in_quotes && !closed) => Extent::Line,
            _ => Extent::Word,
        }
    }
}

/// Where the value of a name begins, and whether `:` or `=` stands before it. The name may have stood in quotes, which a text within a
/// text escapes.
fn value_begins(behind: &str) -> Option<(usize, char)> {
    let blank = |c: char| matches!(c, ' ' | '\t');
    let unquoted = behind.trim_start_matches('\\').trim_start_matches(['"', '\'']).trim_start_matches(blank);
    let separator = unquoted.chars().next().filter(|c| matches!(c, ':' | '='))?;
    let value = unquoted.trim_start_matches([':', '=', '>']).trim_start_matches(blank);
    Some((behind.len() - value.len(), separator))
}

/// The name and password behind a flag of curl: as the next word, or in the same one.
fn user_of(word: &str, behind: &str) -> Option<(usize, usize)> {
    let is_short = word.starts_with('-') && !word.starts_with("--");
    let value = if is_short && word.starts_with("-u") && behind.starts_with(':') {
        behind.get(1..)?
    } else if USERS.contains(&word) || (is_short && word.ends_with('u')) {
        behind.strip_prefix('=').unwrap_or(behind).trim_start_matches([' ', '\t'])
    } else {
        return None;
    };
    Some((behind.len() - value.len(), value_length(value, Extent::Word)))
}

/// How long a value is: in quotes it ends with them, where no word goes on behind them.
fn value_length(value: &str, extent: Extent) -> usize {
    let mut at = 0;
    let mut extent = extent;
    while let Some(length) = quoted_length(value.get(at..).unwrap_or_default()) {
        at += length;
        let ends = |c: char| c.is_whitespace() || matches!(c, ',' | ';' | '}' | ']' | ')' | '&');
        match value.get(at..).and_then(|behind| behind.chars().next()) {
            None => return at,
            Some(c) if ends(c) => return at,
            // A shell's `\'` between two quoted parts.
            Some('\\') => {
                extent = Extent::Line;
                break;
            }
            Some(_) => {}
        }
    }
    let rest = value.get(at..).unwrap_or_default();
    // Looked for only where it is needed: the next name begins behind a word, and a line may have any number of them.
    let line = || rest.find('\n').unwrap_or(rest.len());
    let length = match extent {
        Extent::Line => line(),
        Extent::Word => {
            let word = rest.find(char::is_whitespace).unwrap_or(rest.len());
            // A blank within quotes, or behind a backslash, is a part of the word.
            if rest.get(..word).unwrap_or_default().contains(['"', '\'', '\\']) { line() } else { word }
        }
        Extent::Block(column) => block_length(rest, line(), column),
    };
    at + length
}

fn block_length(rest: &str, first: usize, column: usize) -> usize {
    let is_list = rest.get(..first).unwrap_or_default().trim().is_empty();
    let mut end = first;
    while let Some(below) = rest.get(end..).and_then(|rest| rest.strip_prefix('\n')) {
        let line = below.split('\n').next().unwrap_or_default();
        let inner = line.trim_start_matches([' ', '\t']);
        let indent = line.len() - inner.len();
        let belongs = indent > column || (is_list && indent >= column && inner.starts_with('-'));
        if !belongs {
            break;
        }
        end += 1 + line.len();
    }
    end
}

/// How long a text in quotes is, quotes and the backslashes before them included; without a second one it is the whole text.
fn quoted_length(text: &str) -> Option<usize> {
    let behind_slashes = text.trim_start_matches('\\');
    let quote = behind_slashes.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let slashes = text.len() - behind_slashes.len();
    let mut run = 0;
    let inner = text.get(slashes + 1..)?;
    for (at, c) in inner.char_indices() {
        // One that is escaped once more than the first is a part of the value.
        if c == quote && run <= slashes {
            return Some(slashes + 1 + at + 1);
        }
        run = if c == '\\' { run + 1 } else { 0 };
    }
    Some(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_known_in_every_way_to_write_them() {
        for name in [
            "client-secret",
            "auth-token",
            "x-auth-token",
            "X-Subject-Token",
            "HTTP-PROXY",
            "https_proxy",
            "passwd",
            "db_passwd",
            "private_key",
            "api_key",
            "apiKey",
            "secret_key",
            "adminPass",
            "adminPassword",
            "SecretAccessKey",
            "secret_access_key",
            "password2",
            "user_token",
            "token",
            "Authorization",
            "deploy_signal_id",
            "ca_key",
        ] {
            assert!(is_secret(name), "{name}");
        }
        for name in
            ["who", "name", "key", "public_key", "tokens_path", "stack_name", "KUBE_SERVICE_ACCOUNT_KEY", "user", "pass_through"]
        {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn values_behind_the_name_of_a_secret_are_masked_as_far_as_they_may_go() {
        for (text, shown) in [
            ("- password: s3\n    s3\n  user: y", "- password: ******\n  user: y"),
            ("password = s3 s3\nb = c", "password = ******\nb = c"),
            ("Environment=\"PASSWORD=s3 s3\"\nA=b", "Environment=\"PASSWORD=******\nA=b"),
            ("PASSWORD='it'\\''s3 s3' A=b", "PASSWORD=******"),
            ("PASSWORD=a\\ s3 A=b", "PASSWORD=******"),
            ("password => 's3', a => 'b'", "password => ******, a => 'b'"),
            ("curl -uuser:s3 -su me:s3 http://h", "curl -uuser:****** -su ****** http://h"),
            ("password: s3 s3\nauth_url: http://k/v3\n", "password: ******\nauth_url: http://k/v3\n"),
            ("a: b\npassword: |\n  s3\n  s3\nb: c\n", "a: b\npassword: ******\nb: c\n"),
            ("tokens:\n  user-token:\n  - s3\nb: c", "tokens:\n  user-token:******\nb: c"),
            (r#"{"auth_url":"http://k/v3","password":"s3"x"#, r#"{"auth_url":"http://k/v3","password":******"#),
            (r#"{"password": "s3\" s3", "a": "b",}"#, r#"{"password": ******, "a": "b",}"#),
            (r#""{\"password\": \"s3\\\" s3\", \"a\": 1"#, r#""{\"password\": ******, \"a\": 1"#),
            ("{'password': 's3', 'a': 'b'}", "{'password': ******, 'a': 'b'}"),
            ("PASSWORD='s3 '\"s3 s3\" A=b", "PASSWORD=****** A=b"),
            ("http_proxy=s3 A=b", "http_proxy=****** A=b"),
            ("Authorization: Bearer s3\nAccept: x", "Authorization: ******\nAccept: x"),
            ("x-auth-token:s3", "x-auth-token:******"),
            ("curl -H 'X-Subject-Token: s3' http://h", "curl -H 'X-Subject-Token: ******"),
            ("curl -u user:s3 http://h", "curl -u ****** http://h"),
            ("curl --user='user:s3 s3' http://h", "curl --user=****** http://h"),
            ("--storage-driver-password=s3 --v=2", "--storage-driver-password=****** --v=2"),
            ("the password is not known", "the password is not known"),
            ("docker run -u user:group x", "docker run -u user:group x"),
            ("password:", "password:"),
            ("password:\nb: c", "password:\nb: c"),
            ("\"password\": \"s3", "\"password\": ******"),
        ] {
            assert_eq!(masked_words(text), shown, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_breaks_the_search(text in "([a-z:=\"'\\\\ \n-]|password|curl -u |\\PC){0,40}") {
            drop(masked_words(&text));
        }
    }
}
