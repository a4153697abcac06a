//! The first metadata in a server's user data, where no cloud-init took it out (heat-protocol.md 3.9): Heat writes user data as MIME with a
//! part of the type `text/x-cfninitdata` (RFC 2046).

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::oneshot;

use crate::error::{Context, Error, Result};
use crate::files::Tree;
use crate::http::{Http, Request};
use crate::storage::config_drive;

/// Nova takes no longer user data: 65535 characters of base64, and Heat's is below that.
const USER_DATA: usize = 64 * 1024;

/// What one place has of the server's metadata: the config drive or the metadata service, which are this instance's and no other one's.
#[derive(Default)]
pub(super) struct UserData {
    /// What it says, once it could be read: it never changes. Empty where it has nothing of Heat's.
    known: Option<Vec<u8>>,
    /// Why it cannot be read. It may have nothing of Heat's, so that nothing waits for it.
    unread: Option<String>,
    /// The same, where that is news.
    pub(super) failures: Vec<Error>,
}

impl UserData {
    /// Whether it was read: there is nothing more to learn.
    pub(super) fn is_known(&self) -> bool {
        self.known.is_some()
    }

    /// What it says of the server; `None` where it was not read yet or has nothing of Heat's.
    pub(super) fn known(&self) -> Option<Vec<u8>> {
        self.known.clone().filter(|known| !known.is_empty())
    }

    /// Takes over Heat's part of what was read, which may be empty; `None` where there is no user data.
    pub(super) fn take(&mut self, read: Result<Option<Vec<u8>>>) {
        let unread = read.as_ref().err().map(ToString::to_string);
        let is_news = self.unread != unread;
        self.unread = unread;
        match read {
            Ok(found) => self.known = found,
            Err(error) => self.failures.extend(Some(error).filter(|_| is_news)),
        }
    }

    /// That of the config drive.
    pub(super) fn of_drive(&mut self, root: &Tree) -> Option<Vec<u8>> {
        if !self.is_known() {
            let read = config_drive::read(&root.base().join("dev"), &["openstack", "latest", "user_data"], USER_DATA);
            self.take(read.map(|found| found.map(|found| cfn_init_data(&found).unwrap_or_default())));
        }
        self.known()
    }
}

/// The metadata service.
#[derive(Default)]
pub(super) struct MetadataService {
    pub(super) user_data: UserData,
    /// The answer that is on its way.
    awaited: Option<oneshot::Receiver<Result<Vec<u8>>>>,
}

impl MetadataService {
    /// Asks it, unless an answer is on its way.
    pub(super) fn ask(&mut self, http: &Http, address: &str, deadline: Duration) {
        if self.awaited.is_none() {
            let (answer, asked) = oneshot::channel();
            let (http, address) = (http.clone(), address.to_owned());
            tokio::spawn(async move { answer.send(user_data(&http, &address, deadline).await) });
            self.awaited = Some(asked);
        }
    }

    /// Takes the answer, if it is there.
    pub(super) fn look(&mut self) {
        match self.awaited.as_mut().map(oneshot::Receiver::try_recv) {
            Some(Ok(read)) => self.user_data.take(read.map(Some)),
            Some(Err(oneshot::error::TryRecvError::Empty)) => return,
            Some(Err(oneshot::error::TryRecvError::Closed)) | None => {}
        }
        self.awaited = None;
    }

    /// Waits for an answer that is on its way; `true` if there was one.
    pub(super) async fn wait(&mut self) -> bool {
        let Some(asked) = self.awaited.take() else { return false };
        if let Ok(read) = asked.await {
            self.user_data.take(read.map(Some));
        }
        true
    }
}

const NO_PART: &str =
    "check that the server has user_data_format SOFTWARE_CONFIG; the service is asked again until a source has answered";

/// Asks a metadata service for Heat's part of the user data: by EC2's path, which Nova's has as well (heat-protocol.md 3.9).
///
/// # Errors
/// If it cannot be reached, or has none with Heat's part.
async fn user_data(http: &Http, address: &str, deadline: Duration) -> Result<Vec<u8>> {
    let url = format!("{address}/latest/user-data");
    let mut request = Request::new("GET", &url, deadline);
    request.body_limit = USER_DATA;
    // That there is none may be so for a while only: a proxy in front of the service may not know the server's port yet.
    let none = || Error::transient("it has no user data with Heat's part, cfn-init-data").remedy(NO_PART);
    let answer = http.request(request).await.and_then(|response| match response.status {
        404 => Err(none()),
        _ if response.is_success() => cfn_init_data(&response.body).ok_or_else(none),
        status => Err(Error::transient(format!("it answered {status}"))),
    });
    answer.context(|| format!("asking the metadata service {address} for the user data"))
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
