//! The checks for people, and as a document.

use serde_json::{Value, json};

use crate::kubernetes::checks::upgrade::{Release, Row, Verdict, verdict};
use crate::report::status::SCHEMA_VERSION;
use crate::report::text::{escaped, harmless, json_page, wrapped};

/// Columns of a page.
const WIDTH: usize = 100;
/// Where the text of a check begins.
const INDENT: usize = 11;

/// What there is to show.
pub(super) struct Page {
    pub(super) target: Release,
    pub(super) rows: Vec<Row>,
    /// What to do in the cluster, step by step.
    pub(super) order: Vec<String>,
}

impl Page {
    /// What there is to say in one line.
    fn summary(&self) -> String {
        let count = |of: Verdict| self.rows.iter().filter(|row| row.verdict == of).count();
        let (problems, unknown, all, target) = (count(Verdict::Problem), count(Verdict::Unknown), self.rows.len(), self.target);
        match verdict(&self.rows) {
            Verdict::Ok => format!("OK: this node may go to Kubernetes {target}; {all} checks"),
            Verdict::Problem => format!("NOT YET: {problems} of {all} checks for Kubernetes {target} found a problem"),
            Verdict::Unknown => {
                format!("NOT KNOWN: {unknown} of {all} checks for Kubernetes {target} could not be made; the others are ok")
            }
        }
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut out = self.summary() + "\n";
        let mut lines = |first: &str, text: &str| {
            for (number, line) in wrapped(&escaped(text), WIDTH - INDENT).into_iter().enumerate() {
                out.push_str(&format!("{:<INDENT$}{line}\n", if number == 0 { first } else { "" }));
            }
        };
        for row in &self.rows {
            let mut findings = row.findings.iter();
            let first = findings.next().map(String::as_str).unwrap_or_default();
            lines(word(row.verdict), &format!("{}: {first}", row.name));
            findings.for_each(|finding| lines("", finding));
            row.remedies.iter().for_each(|remedy| lines("", &format!("remedy: {remedy}")));
        }
        for (number, step) in self.order.iter().enumerate() {
            lines(if number == 0 { "order" } else { "" }, &format!("{}. {step}", number + 1));
        }
        harmless(&out)
    }

    /// For programs (docs/schemas/upgrade-check.json).
    pub(super) fn document(&self) -> String {
        let of_row = |row: &Row| json!({"name": row.name, "state": state(row.verdict), "findings": row.findings, "remedies": row.remedies});
        let document: Value = json!({
            "schema_version": SCHEMA_VERSION,
            "summary": self.summary(),
            "state": state(verdict(&self.rows)),
            "release": self.target.to_string(),
            "checks": self.rows.iter().map(of_row).collect::<Vec<_>>(),
            "order": self.order,
        });
        json_page(&document)
    }
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ok => "ok",
        Verdict::Problem => "PROBLEM",
        Verdict::Unknown => "not known",
    }
}

fn state(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ok => "ok",
        Verdict::Problem => "problem",
        Verdict::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::Role;
    use crate::kubernetes::checks::upgrade::{ApiServer, api_servers, order};
    use crate::report::schema::assert_fits;

    fn page(running: &str, target: &str) -> Page {
        let servers =
            [ApiServer { name: "this master".to_owned(), release: Release::of(running).ok_or_else(|| "it is away".to_owned()) }];
        let target = Release::of(target).unwrap();
        let rows = vec![api_servers(Role::Master, target, &servers)];
        Page { target, rows, order: order(Role::Master, target, &servers) }
    }

    #[test]
    fn the_page_says_what_is_wrong_with_its_remedy_and_the_order() {
        for (running, target, begin, words) in [
            (
                "v1.28.9",
                "1.29",
                "OK: this node may go to Kubernetes 1.29; 1 checks\nok         kube-apiserver: 1.28.9 runs at this master\n",
                "order      1. a snapshot",
            ),
            (
                "v1.28.9",
                "v1.30.2",
                "NOT YET: 1 of 1 checks for Kubernetes 1.30.2 found a problem\nPROBLEM    kube-apiserver: ",
                "\n           remedy: go to 1.29 first",
            ),
            (
                "",
                "1.29",
                "NOT KNOWN: 1 of 1 checks for Kubernetes 1.29 could not be made; the others are ok\nnot known  kube-apiserver: ",
                "\n           remedy: see that it runs",
            ),
        ] {
            let page = page(running, target);
            let text = page.text();
            assert!(text.starts_with(begin) && text.contains(words), "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
            assert_fits("upgrade-check", &crate::budgets::json::typed::<Value>(page.document()).unwrap());
        }
    }
}
