//! The first metadata in a server's user data, where no cloud-init took it out (heat-protocol.md 3.9): Heat writes user data as MIME with a
//! part of the type `text/x-cfninitdata` (RFC 2046).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::files::Tree;
use crate::storage::config_drive;

/// Nova takes no longer user data: 65535 characters of base64, and Heat's is below that.
const USER_DATA: usize = 64 * 1024;

/// The server's metadata on the config drive, which is this instance's and no other one's.
#[derive(Default)]
pub(super) struct Drive {
    /// What it says, once it could be read: a drive never changes. Empty where it has nothing of Heat's.
    known: Option<Vec<u8>>,
    /// Why it cannot be read. It may have nothing of Heat's, so that nothing waits for it.
    unread: Option<String>,
    /// The same, where that is news.
    pub(super) warnings: Vec<String>,
}

impl Drive {
    /// What it says of the server; `None` where it cannot be read or has nothing of Heat's.
    pub(super) fn read(&mut self, root: &Tree) -> Option<Vec<u8>> {
        if let Some(known) = &self.known {
            return Some(known.clone()).filter(|known| !known.is_empty());
        }
        let read = config_drive::read(&root.base().join("dev"), &["openstack", "latest", "user_data"], USER_DATA);
        let unread = read.as_ref().err().map(ToString::to_string);
        self.warnings = unread.iter().filter(|now| self.unread.as_ref() != Some(now)).cloned().collect();
        self.unread = unread;
        let found = read.ok()??;
        let found = self.known.insert(cfn_init_data(&found).unwrap_or_default());
        Some(found.clone()).filter(|found| !found.is_empty())
    }
}

/// The server's metadata, as Heat attached it; `None` where the user data has none, as RAW user data.
pub(super) fn cfn_init_data(user_data: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(user_data).ok()?.replace("\r\n", "\n");
    let (head, body) = text.split_once("\n\n")?;
    let boundary = parameter(&header(head, "content-type")?, "boundary")?;
    let delimiter = format!("\n--{boundary}");
    let body = format!("\n{body}");
    body.split(delimiter.as_str()).skip(1).find_map(|part| {
        let (head, content) = part.strip_prefix('\n')?.split_once("\n\n")?;
        let is_wanted = header(head, "content-type")?.to_ascii_lowercase().starts_with("text/x-cfninitdata")
            && header(head, "content-disposition").and_then(|value| parameter(&value, "filename")).as_deref()
                == Some("cfn-init-data");
        let is_encoded = header(head, "content-transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("base64"));
        match is_encoded {
            _ if !is_wanted => None,
            true => STANDARD.decode(content.split_ascii_whitespace().collect::<String>()).ok(),
            false => Some(content.as_bytes().to_vec()),
        }
    })
}

/// A header's value, its further lines joined.
fn header(head: &str, name: &str) -> Option<String> {
    let head = head.replace("\n ", " ").replace("\n\t", " ");
    let of_name = |line: &str| {
        line.split_once(':').filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned())
    };
    head.lines().find_map(of_name)
}

/// A parameter of a header's value, without its quotes.
fn parameter(value: &str, name: &str) -> Option<String> {
    let parts = value.split(';').skip(1).filter_map(|part| part.trim().split_once('='));
    parts.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim_matches('"').to_owned()).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user_data(part: &str) -> String {
        format!(
            "Content-Type: multipart/mixed; boundary=\"===============89==\"\nMIME-Version: 1.0\n\n\
             --===============89==\nContent-Type: text/cloud-config; charset=\"us-ascii\"\nMIME-Version: 1.0\n\
             Content-Transfer-Encoding: 7bit\nContent-Disposition: attachment; filename=\"cloud-config\"\n\n#cloud-config\n\
             --===============89==\n{part}\n--===============89==--\n"
        )
    }

    #[test]
    fn heats_part_is_found_plain_and_encoded_and_no_other_one() {
        let head = "Content-Type: text/x-cfninitdata; charset=\"us-ascii\"\nMIME-Version: 1.0\nContent-Transfer-Encoding: ";
        let named = |encoding: &str, name: &str, text: &str| {
            format!("{head}{encoding}\nContent-Disposition: attachment;\n filename=\"{name}\"\n\n{text}")
        };
        let json = "{\"deployments\": [], \"x\": \"é\"}";
        let lines = STANDARD
            .encode(json)
            .as_bytes()
            .chunks(20)
            .map(|line| String::from_utf8(line.to_vec()).unwrap())
            .collect::<Vec<_>>()
            .join("\n");
        for (part, expected) in [
            (named("7bit", "cfn-init-data", json), Some(json)),
            (named("base64", "cfn-init-data", &lines), Some(json)),
            (named("base64", "cfn-init-data", "*"), None),
            (named("7bit", "cfn-userdata", json), None),
            (format!("Content-Type: text/plain\n\n{json}"), None),
        ] {
            for text in [user_data(&part), user_data(&part).replace('\n', "\r\n")] {
                assert_eq!(cfn_init_data(text.as_bytes()).as_deref(), expected.map(str::as_bytes), "{text}");
            }
        }
        for other in ["#cloud-config\n\nx: y\n", "", "\u{1}", "Content-Type: multipart/mixed\n\n--\n"] {
            assert_eq!(cfn_init_data(other.as_bytes()), None, "{other}");
        }
    }
}
