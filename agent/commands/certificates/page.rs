//! The list for people, 80 columns wide, and as a document.

use serde_json::{Value, json};

use super::inspection::{CertificateHealth, CertificateRow, RowKind};
use crate::certificates::judge;
use crate::certificates::x509::{Name, X509};
use crate::clock::Timestamp;
use crate::desired::Rotation;
use crate::keepers::certificates::RotationProgress;
use crate::report::status::SCHEMA_VERSION;
use crate::report::text::{escaped, json_page};

/// A terminal's width.
const WIDTH: usize = 80;
/// Where the text of an item begins.
const INDENT: usize = 9;
const DAY: u64 = 24 * 60 * 60;

/// What there is to show.
pub(super) struct Page {
    pub(super) items: Vec<CertificateRow>,
    /// A CA rotation that is under way, and the step that it waits for.
    pub(super) rotation: Option<(RotationProgress, Rotation)>,
    /// Units that go on with older files until they are restarted.
    pub(super) pending_restarts: Vec<String>,
    pub(super) now: Timestamp,
}

impl Page {
    /// Whether nobody has to look.
    pub(super) fn is_ok(&self) -> bool {
        self.rotation.is_none()
            && self.pending_restarts.is_empty()
            && self.items.iter().all(|item| item.health == CertificateHealth::Ok)
    }

    /// What there is to say in one line: a unit that goes on with older files is not OK.
    fn summary(&self) -> String {
        if self.items.is_empty() {
            return "the node's parameters require no certificates".to_owned();
        }
        let verdict = match self.items.iter().filter(|item| item.health != CertificateHealth::Ok).count() {
            0 if self.pending_restarts.is_empty() => "OK".to_owned(),
            0 => "RESTARTS PENDING".to_owned(),
            unhealthy => format!("{unhealthy} of {} NOT OK", self.items.len()),
        };
        let ends = self.items.iter().filter_map(|item| Some((item.certificate.as_ref()?.not_after, &item.name)));
        match ends.min_by_key(|(end, _)| *end) {
            Some((end, name)) => format!("{verdict}; first to expire: {}, {}", escaped(name), ends_at(end, self.now)),
            None => verdict,
        }
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut out = self.summary() + "\n";
        if let Some((turn, next)) = &self.rotation {
            let (done, next) = (turn.step.as_str(), next.as_str());
            out.push_str(&format!("CA rotation: {done} since {}, next {next},\n", turn.since.rfc3339()));
            out.push_str("once all nodes have done it: CA_ROTATION, or heat-node-agent certificates rotate\n");
        }
        if !self.pending_restarts.is_empty() {
            wrap(&format!("still with older files, and to be restarted: {}", self.pending_restarts.join(", ")), &mut out);
        }
        for item in &self.items {
            add(item, self.now, &mut out);
        }
        out
    }

    /// For programs (docs/schemas/certificates.json).
    pub(super) fn document(&self) -> String {
        let ends = self.items.iter().filter_map(|item| item.certificate.as_ref()).map(|one| one.not_after);
        let rotation = self
            .rotation
            .map(|(turn, next)| json!({"done": turn.step.as_str(), "since": turn.since.rfc3339(), "next": next.as_str()}));
        let document = json!({
            "schema_version": SCHEMA_VERSION,
            "summary": self.summary(),
            "ok": self.is_ok(),
            "first_expiry": ends.min().map(Timestamp::rfc3339),
            "rotation": rotation,
            "pending_restarts": self.pending_restarts,
            "certificates": self.items.iter().map(|item| of_item(item, self.now)).collect::<Vec<_>>(),
        });
        json_page(&document)
    }
}

fn add(item: &CertificateRow, now: Timestamp, out: &mut String) {
    out.push_str(&format!("{:<INDENT$}{}: {}\n", word(item.health), escaped(&item.name), escaped(&item.path)));
    for line in details(item, now) {
        wrap(&escaped(&line), out);
    }
}

fn word(health: CertificateHealth) -> &'static str {
    match health {
        CertificateHealth::Ok => "ok",
        CertificateHealth::NearEnd => "EXPIRING",
        CertificateHealth::Expired => "EXPIRED",
        CertificateHealth::Missing => "MISSING",
        CertificateHealth::Flawed => "INVALID",
    }
}

fn details(item: &CertificateRow, now: Timestamp) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(own) = &item.certificate {
        lines.push(own.subject.to_string());
        if !own.names.is_empty() || !own.addresses.is_empty() {
            lines.push(format!("for {}", reached_as(own).join(", ")));
        }
        // By its name alone a CA cannot be told from another: Magnum's three have the same (magnum-node.md 4.1).
        if item.kind == RowKind::Ca {
            lines.push(format!("SHA-256 {:.16}", own.fingerprint()));
        } else {
            lines.push(format!("signed by {}", own.issuer));
        }
        lines.push(format!("from {} to {}", own.not_before.rfc3339(), ends_at(own.not_after, now)));
    }
    if let Some(key) = &item.key {
        lines.push(format!("key {key}"));
        let whose = if item.is_own_key { "this master's own" } else { "the same on every master of the cluster" };
        lines.push(whose.to_owned());
    }
    if !item.readers.is_empty() {
        lines.push(format!("read by {}", item.readers.join(", ")));
    }
    lines.extend(item.cause.iter().map(|cause| format!("why:    {cause}")));
    lines.extend(item.remedy.iter().map(|remedy| format!("remedy: {remedy}")));
    lines
}

/// `2031-02-28T12:00:00Z (1824 days left)`.
fn ends_at(end: Timestamp, now: Timestamp) -> String {
    let days = days_left(end, now);
    let left = if end <= now { format!("{} days ago", -days) } else { format!("{days} days left") };
    format!("{} ({left})", end.rfc3339())
}

/// Whole days; negative once it is over.
fn days_left(end: Timestamp, now: Timestamp) -> i64 {
    let days = |duration: std::time::Duration| i64::try_from(duration.as_secs() / DAY).unwrap_or(i64::MAX);
    if end >= now { days(end.since(now)) } else { -days(now.since(end)) }
}

fn reached_as(certificate: &X509) -> Vec<String> {
    certificate.names.iter().cloned().chain(certificate.addresses.iter().map(ToString::to_string)).collect()
}

/// Breaks a line at blanks; what follows the first line stands two columns further in.
fn wrap(line: &str, out: &mut String) {
    let mut column = 0;
    for word in line.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > WIDTH {
            out.push('\n');
            column = 0;
            out.push_str(&" ".repeat(INDENT + 2));
            column += INDENT + 2;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        } else {
            out.push_str(&" ".repeat(INDENT));
            column += INDENT;
        }
        out.push_str(word);
        column += length;
    }
    out.push('\n');
}

fn of_item(item: &CertificateRow, now: Timestamp) -> Value {
    let kind = match item.kind {
        RowKind::Ca => "authority",
        RowKind::Certificate => "certificate",
        RowKind::Bootstrap => "bootstrap",
        RowKind::ServiceAccounts => "service-accounts",
    };
    let health = match item.health {
        CertificateHealth::Ok => "ok",
        CertificateHealth::NearEnd => "near-end",
        CertificateHealth::Expired => "expired",
        CertificateHealth::Missing => "missing",
        CertificateHealth::Flawed => "flawed",
    };
    let name = |name: &Name| json!({"common_name": name.common_name, "organisations": name.organisations});
    let certificate = item.certificate.as_ref().map(|own| {
        json!({
            "subject": name(&own.subject),
            "issuer": name(&own.issuer),
            "names": own.names,
            "addresses": own.addresses,
            "not_before": own.not_before.rfc3339(),
            "not_after": own.not_after.rfc3339(),
            "days_left": days_left(own.not_after, now),
            "renewal_due": judge::renewal_due(own).rfc3339(),
            "fingerprint": own.fingerprint(),
        })
    });
    json!({
        "name": item.name, "kind": kind, "path": item.path, "state": health, "cause": item.cause, "remedy": item.remedy,
        "certificate": certificate, "key_fingerprint": item.key, "readers": item.readers,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::commands::certificates::inspection::tests::{NOW, TestNode};
    use crate::report::schema::assert_fits;

    const DAY: Duration = Duration::from_hours(24);

    fn page(days: u32) -> Page {
        Page { items: TestNode::new().list(days * DAY), rotation: None, pending_restarts: Vec::new(), now: NOW.after(days * DAY) }
    }

    #[test]
    fn the_page_says_everything_within_80_columns_and_shows_no_key() {
        let text = page(0).text();
        for part in [
            "OK; first to expire: server, 2029-02-28T12:00:00Z (1095 days left)\n",
            "ok       CA kubernetes: /c/ca.crt\n         CN=blue-ca\n         SHA-256 ",
            "         for blue-0, kubernetes, 192.0.2.7\n         signed by CN=blue-ca\n         from 2026-02-28T12:00:00Z to 2029",
            "         read by kube-apiserver.service, kubelet.service\n",
            "ok       kubelet (by itself): /k/own.pem\n",
            "ok       service accounts: /c/sa.key\n         key ",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(text.contains("the same on every master of the cluster\n") && !text.contains("this master's own"), "{text}");
        let mut own = page(0);
        own.items.iter_mut().for_each(|item| item.is_own_key = item.key.is_some());
        let own = own.text();
        assert!(!own.contains("every master") && own.contains("this master's own\n"), "{own}");
        let fits = |text: &str| !text.contains("PRIVATE") && text.lines().all(|line| line.chars().count() <= WIDTH);
        assert!(fits(&text), "{text}");
        let text = page(1100).text();
        for part in
            ["2 of 4 NOT OK; ", "(5 days ago)", "EXPIRED  server: /c/server.crt\n", "\n         why:    it expired", "remedy: "]
        {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(fits(&text), "{text}");
        let turn = RotationProgress { step: Rotation::TrustBoth, generation: 1, since: NOW };
        let changing = Page { rotation: Some((turn, Rotation::Switch)), ..page(0) };
        let text = changing.text();
        assert!(text.contains("trust-both since 2026-03-01T12:00:00Z, next switch") && fits(&text), "{text}");
        assert!(!changing.is_ok() && page(0).is_ok());
        let pending = Page { pending_restarts: vec!["etcd.service".into()], ..page(0) };
        let text = pending.text();
        assert!(text.starts_with("RESTARTS PENDING; first to expire: server, ") && fits(&text) && !pending.is_ok(), "{text}");
        let cut_off = Page { pending_restarts: vec!["etcd.service".to_owned()], ..page(0) };
        assert!(!cut_off.is_ok() && cut_off.text().contains("to be restarted: etcd.service") && fits(&cut_off.text()));
        assert_fits("certificates", &crate::budgets::json::typed::<Value>(cut_off.document()).unwrap());
        assert_eq!(Page { items: vec![], ..page(0) }.text(), "the node's parameters require no certificates\n");
    }

    #[test]
    fn a_name_from_outside_does_not_command_the_operators_terminal() {
        let mut page = page(0);
        page.items[1].certificate.as_mut().unwrap().subject.common_name = Some("x\x1b[2J\ny".into());
        assert!(page.text().contains("CN=x\\u{1b}[2J\\ny"));
    }

    #[test]
    fn the_document_has_what_monitoring_asks_for() {
        let turn = RotationProgress { step: Rotation::Switch, generation: 1, since: NOW };
        let page = Page { rotation: Some((turn, Rotation::DropOld)), ..page(800) };
        let document: Value = crate::budgets::json::typed(page.document()).unwrap();
        assert_fits("certificates", &document);
        assert_eq!((document["ok"].as_bool(), &document["first_expiry"]), (Some(false), &json!("2029-02-28T12:00:00Z")));
        assert_eq!(document["rotation"], json!({"done": "switch", "since": "2026-03-01T12:00:00Z", "next": "drop-old"}));
        let one = &document["certificates"][1];
        assert_eq!((&one["state"], &one["certificate"]["days_left"]), (&json!("near-end"), &json!(295)));
        assert_eq!(one["certificate"]["renewal_due"], "2028-02-29T04:00:00Z");
        assert_eq!(document["certificates"][3]["key_fingerprint"].as_str().map(str::len), Some(64));
        assert!(!document.to_string().contains("PRIVATE"));
    }

    #[test]
    fn documents_fit_their_schema() {
        let nothing = Page { items: Vec::new(), ..page(0) };
        let lacking = Page {
            items: TestNode::new().list(DAY).into_iter().map(|item| CertificateRow { certificate: None, ..item }).collect(),
            ..page(0)
        };
        for page in [page(0), page(800), page(1100), nothing, lacking] {
            assert_fits("certificates", &crate::budgets::json::typed(page.document()).unwrap());
        }
    }
}
