//! How lines of a page for people are set: columns, wrapped texts, colours, and no text twice.

use std::collections::BTreeSet;

use crate::report::text::{escaped, shortened, wrapped};

/// The narrowest page that is set; a smaller terminal wraps by itself.
const NARROWEST: usize = 40;
/// The widest first column.
const NAME: usize = 36;
/// Lines that a text may take where not everything is asked for.
const LINES: usize = 5;

/// The label of what to do.
pub(super) const REMEDY: &str = "remedy";

/// What a terminal takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Columns.
    pub width: usize,
    /// Whether it shows colours.
    pub color: bool,
    /// Whether everything is shown, with whole texts.
    pub verbose: bool,
}

/// What a word means for who reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Severity {
    #[default]
    Plain,
    Good,
    Odd,
    Bad,
}

impl Severity {
    fn paint(self, text: &str, color: bool) -> String {
        let code = match self {
            Self::Good => "32",
            Self::Odd => "33",
            Self::Bad => "1;31",
            Self::Plain => return text.to_owned(),
        };
        if color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// A row of a table: a word a column, and what does not fit into any.
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    pub(super) cells: Vec<(String, Severity)>,
    /// In the last column, or below the row where it is long.
    pub(super) detail: String,
    /// The page says that already.
    is_said: bool,
    /// Below the row, each with its label.
    pub(super) notes: Vec<(&'static str, String)>,
}

impl Row {
    pub(super) fn new(name: &str) -> Self {
        Self { cells: vec![(name.to_owned(), Severity::Plain)], ..Self::default() }
    }

    pub(super) fn cell(mut self, text: impl Into<String>, tone: Severity) -> Self {
        self.cells.push((text.into(), tone));
        self
    }

    pub(super) fn detail(mut self, text: impl Into<String>) -> Self {
        self.detail = text.into();
        self
    }

    /// What is in the detail stands above, if this is so.
    pub(super) fn said(mut self, is_said: bool) -> Self {
        self.is_said = is_said;
        self
    }

    /// A line each.
    pub(super) fn notes(mut self, label: &'static str, texts: Vec<String>) -> Self {
        self.notes.extend(texts.into_iter().map(|text| (label, text)));
        self
    }

    pub(super) fn note(mut self, label: &'static str, text: Option<&String>) -> Self {
        self.notes.extend(text.map(|text| (label, text.clone())));
        self
    }
}

/// The page in the making.
#[derive(Debug)]
pub(super) struct PageWriter {
    style: Style,
    lines: Vec<String>,
    /// What was said: nothing is said twice.
    reported: BTreeSet<String>,
}

impl PageWriter {
    pub(super) fn new(style: Style) -> Self {
        Self { style: Style { width: style.width.max(NARROWEST), ..style }, lines: Vec::new(), reported: BTreeSet::new() }
    }

    pub(super) fn is_verbose(&self) -> bool {
        self.style.verbose
    }

    /// This is known to the reader from here on.
    pub(super) fn know(&mut self, text: &str) {
        self.reported.insert(escaped(text));
    }

    /// The first line.
    pub(super) fn headline(&mut self, text: &str, tone: Severity) {
        self.know(text);
        let lines = wrapped(&escaped(text), self.style.width);
        self.lines.extend(lines.iter().map(|line| tone.paint(line, self.style.color)));
    }

    /// Parts are set apart.
    pub(super) fn gap(&mut self) {
        if self.lines.last().is_some_and(|line| !line.is_empty()) {
            self.lines.push(String::new());
        }
    }

    /// A label and a text beside it.
    pub(super) fn fact(&mut self, label: &str, text: &str) {
        self.set(&format!("{label:<13} "), text, LINES);
    }

    /// Below a row: why it is so, or what to do. The command that helps may be the last word of a remedy.
    pub(super) fn note(&mut self, label: &str, text: &str) {
        let lines = if label == REMEDY { usize::MAX } else { LINES };
        let label = if label.is_empty() { String::new() } else { format!("{label}: ") };
        self.set(&format!("    {label}"), text, lines);
    }

    /// A text of so many lines at the most, with a hanging indent, unless it was said.
    fn set(&mut self, lead: &str, text: &str, lines: usize) {
        let text = escaped(text);
        if text.is_empty() || !self.reported.insert(text.clone()) {
            return;
        }
        let indent = lead.chars().count();
        let room = self.style.width.saturating_sub(indent).max(NARROWEST / 2);
        let text = if self.style.verbose { text } else { shortened(&text, room.saturating_mul(lines)) };
        for (at, line) in wrapped(&text, room).iter().enumerate() {
            let lead = if at == 0 { lead.to_owned() } else { " ".repeat(indent) };
            self.lines.push(format!("{lead}{line}"));
        }
    }

    /// A table with its heads. A column without a word in any row is left out.
    pub(super) fn table(&mut self, heads: &[&str], rows: &[Row]) {
        if rows.is_empty() {
            return;
        }
        self.gap();
        let cell = |row: &Row, at: usize| row.cells.get(at).map_or(String::new(), |(text, _)| shortened(&escaped(text), NAME));
        let columns = heads.len().saturating_sub(1);
        let filled: Vec<bool> = (0..columns).map(|at| rows.iter().any(|row| !cell(row, at).is_empty())).collect();
        let width =
            |at: usize, head: &str| rows.iter().map(|row| cell(row, at).chars().count()).max().unwrap_or(0).max(head.len());
        let widths: Vec<usize> = heads.iter().take(columns).enumerate().map(|(at, head)| width(at, head)).collect();
        let used: usize = widths.iter().zip(&filled).filter(|(_, filled)| **filled).map(|(width, _)| width + 2).sum();
        let room = self.style.width.saturating_sub(used);
        let fits = |row: &Row| escaped(&row.detail).chars().count() <= room;
        let mut head = String::new();
        for at in (0..columns).filter(|at| filled.get(*at) == Some(&true)) {
            let (width, text) = (widths.get(at).copied().unwrap_or(0), heads.get(at).copied().unwrap_or_default());
            head.push_str(&format!("{text:<width$}  "));
        }
        if rows.iter().any(|row| !row.detail.is_empty() && fits(row)) {
            head.push_str(heads.last().copied().unwrap_or_default());
        }
        self.lines.push(head.trim_end().to_owned());
        for row in rows {
            let mut line = String::new();
            for at in (0..columns).filter(|at| filled.get(*at) == Some(&true)) {
                let width = widths.get(at).copied().unwrap_or(0);
                let tone = row.cells.get(at).map_or(Severity::Plain, |(_, tone)| *tone);
                let text = cell(row, at);
                let blank = " ".repeat(width.saturating_sub(text.chars().count()) + 2);
                line.push_str(&format!("{}{blank}", tone.paint(&text, self.style.color)));
            }
            let is_news = !row.detail.is_empty() && !row.is_said && !self.reported.contains(&escaped(&row.detail));
            if is_news && fits(row) {
                line.push_str(&escaped(&row.detail));
                self.know(&row.detail);
            }
            self.lines.push(line.trim_end().to_owned());
            if is_news {
                self.note("", &row.detail);
            }
            for (label, text) in &row.notes {
                self.note(label, text);
            }
        }
    }

    pub(super) fn text(self) -> String {
        self.lines.join("\n") + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheet(color: bool) -> PageWriter {
        PageWriter::new(Style { width: 40, color, verbose: false })
    }

    #[test]
    fn long_texts_are_wrapped_and_no_line_is_longer_than_the_terminal() {
        let mut sheet = sheet(false);
        let long = "word ".repeat(60);
        sheet.headline(&long, Severity::Plain);
        sheet.table(
            &["NAME", "STATE", "DETAIL"],
            &[Row::new(&"n".repeat(90)).cell("ok", Severity::Good).detail(format!("x{long}"))],
        );
        sheet.note(REMEDY, &format!("y{long}`rerun it`"));
        let text = sheet.text();
        assert!(text.ends_with("`rerun it`\n"), "a remedy is whole: {text}");
        assert!(text.lines().all(|line| line.chars().count() <= 48), "{text}");
        assert!(text.contains('…'), "{text}");
    }

    #[test]
    fn the_same_text_is_said_once() {
        let mut sheet = sheet(false);
        let row =
            |name: &str| Row::new(name).cell("bad", Severity::Bad).detail("refused").note(REMEDY, Some(&"do it".to_owned()));
        sheet.table(&["NAME", "STATE", "DETAIL"], &[row("a"), row("b")]);
        assert_eq!(sheet.text(), "NAME  STATE  DETAIL\na     bad    refused\n    remedy: do it\nb     bad\n");
    }

    #[test]
    fn a_column_without_words_is_left_out_and_colours_take_no_room() {
        let mut sheet = sheet(true);
        sheet.table(
            &["NAME", "SINCE", "STATE", "DETAIL"],
            &[Row::new("a").cell("", Severity::Plain).cell("ok", Severity::Good).detail("x\x1b")],
        );
        assert_eq!(sheet.text(), "NAME  STATE  DETAIL\na     \x1b[32mok\x1b[0m     x\\u{1b}\n");
    }
}
