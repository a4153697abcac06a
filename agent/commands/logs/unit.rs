//! The journal of a unit: what its own processes and systemd say of it since boot, an entry at a time, with secrets masked.

use serde_json::Value;

use crate::budgets::json;
use crate::clock::Timestamp;
use crate::commands::secrets::known_secrets;
use crate::commands::{note, pass_on};
use crate::daemon::masking::EntryMask;
use crate::error::Result;
use crate::programs::lines::{Line, each};
use crate::report::text::{escaped, harmless};
use crate::settings::Settings;

/// Bytes of the longest entry, with all its fields as JSON, that is shown.
const LONGEST: usize = 256 * 1024;

/// How much of a journal is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// The newest entries.
    pub(super) lines: u32,
    /// Whether those that come are shown too.
    pub(super) follow: bool,
}

/// Prints the journal of a unit.
pub(super) fn show(settings: &Settings, unit: &str, extent: Extent) -> Result<()> {
    let (known, unread) = known_secrets(settings);
    if let Some(error) = unread {
        note(&format!("not all secrets are known, so some may NOT be masked: {error}"));
    }
    let mut mask = known.mask().by_entry();
    let mut shown = 0_u64;
    each("journalctl", &arguments(unit, extent), LONGEST, |line| {
        shown += 1;
        pass_on(&entry(line, &mut mask))
    })?;
    if shown == 0 {
        note(&format!("the journal has no entry of {unit} since boot; `systemctl status {unit}` shows its state"));
    }
    Ok(())
}

fn arguments(unit: &str, extent: Extent) -> Vec<String> {
    // An entry of JSON is one line, whatever is in it; without --all a long message would be null.
    let mut words = ["--quiet", "--boot", "--no-pager", "--output=json", "--all"].map(str::to_owned).to_vec();
    words.extend([format!("--unit={unit}"), format!("--lines={}", extent.lines)]);
    words.extend(extent.follow.then(|| "--follow".to_owned()));
    words
}

/// An entry as people read it.
fn entry(line: Line<'_>, mask: &mut EntryMask) -> String {
    let fields = match line {
        Line::TooLong => return format!("[an entry of more than {} KiB was left out]\n", LONGEST / 1024),
        Line::Whole(bytes) => json::small(bytes),
    };
    let Some(Value::Object(fields)) = fields else { return "[an entry that cannot be read was left out]\n".to_owned() };
    let text = |name: &str| fields.get(name).map(text_of).unwrap_or_default();
    let micros = text("__REALTIME_TIMESTAMP").parse::<u64>().ok();
    let time = micros.map_or_else(|| "-".to_owned(), |micros| Timestamp(micros / 1000).rfc3339());
    let who = [text("SYSLOG_IDENTIFIER"), text("_COMM"), "-".to_owned()].into_iter().find(|who| !who.is_empty());
    let pid = [text("_PID"), text("SYSLOG_PID")].into_iter().find(|pid| !pid.is_empty());
    let pid = pid.map_or_else(String::new, |pid| format!("[{pid}]"));
    // Masked before it is escaped: what is escaped is not known any more.
    let message = harmless(mask.masked(&text("MESSAGE")).trim_end());
    // A line of a message must not look like an entry.
    let message = message.replace('\n', "\n    ");
    let who = escaped(&mask.masked(&format!("{}{pid}", who.unwrap_or_default())));
    format!("{time} {who}: {message}\n")
}

/// A field: a text, its bytes where they are no printable text, or several of one name, of which the first counts.
fn text_of(field: &Value) -> String {
    let byte = |value: &Value| value.as_u64().and_then(|byte| u8::try_from(byte).ok());
    match field {
        Value::String(text) => text.clone(),
        Value::Array(items) => match items.first() {
            Some(first @ (Value::String(_) | Value::Array(_))) => text_of(first),
            _ => String::from_utf8_lossy(&items.iter().filter_map(byte).collect::<Vec<u8>>()).into_owned(),
        },
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::daemon::masking::KnownSecrets;

    #[test]
    fn an_entry_is_one_line_with_what_is_secret_masked_and_nothing_that_a_terminal_obeys() {
        let mut known = KnownSecrets::default();
        known.learn(&json!({"inputs": [{"name": "db_password", "value": "s3-known-value"}]}));
        let mut mask = known.mask().by_entry();
        let at = "1764000000123456";
        let bytes = |text: &str| Value::from(text.as_bytes().to_vec());
        for (fields, shown) in [
            (
                json!({"__REALTIME_TIMESTAMP": at, "SYSLOG_IDENTIFIER": "kubelet", "_PID": "7", "MESSAGE": "a s3-known-value"}),
                "2025-11-24T16:00:00Z kubelet[7]: a ******\n",
            ),
            (
                json!({"__REALTIME_TIMESTAMP": at, "_COMM": "etcd", "MESSAGE": bytes("\u{1b}[2J s3-known-value\nb")}),
                "2025-11-24T16:00:00Z etcd: \\u{1b}[2J ******\n    b\n",
            ),
            (
                json!({"__REALTIME_TIMESTAMP": at, "SYSLOG_IDENTIFIER": ["a", "b"], "MESSAGE": ["one", "two"]}),
                "2025-11-24T16:00:00Z a: one\n",
            ),
            (json!({"MESSAGE": null}), "- -: \n"),
            (json!([1]), "[an entry that cannot be read was left out]\n"),
        ] {
            assert_eq!(entry(Line::Whole(fields.to_string().as_bytes()), &mut mask), shown);
        }
        assert_eq!(entry(Line::TooLong, &mut mask), "[an entry of more than 256 KiB was left out]\n");
    }

    #[test]
    fn the_journal_is_asked_for_one_unit_and_so_many_entries() {
        let asked = |follow| arguments("kubelet.service", Extent { lines: 7, follow }).join(" ");
        assert_eq!(asked(false), "--quiet --boot --no-pager --output=json --all --unit=kubelet.service --lines=7");
        assert!(asked(true).ends_with(" --follow"));
    }
}
