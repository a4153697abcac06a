//! Files in TOML, whole: tables with their keys, in the order in which a person reads them.

use serde_json::Value;

/// A file in the making.
pub(in crate::kubernetes) struct TomlFile(String);

impl TomlFile {
    pub(in crate::kubernetes) fn new() -> Self {
        Self(
            "# Made by heat-node-agent from the parameters of the deployment; it is written again when they change.\n".to_owned(),
        )
    }

    /// Opens a table; each part of its name is one key, whatever dots it holds.
    pub(in crate::kubernetes) fn table(&mut self, name: &[&str]) {
        self.open("[", name, "]");
    }

    /// Opens one more table of an array of tables.
    pub(in crate::kubernetes) fn item(&mut self, name: &[&str]) {
        self.open("[[", name, "]]");
    }

    fn open(&mut self, before: &str, name: &[&str], after: &str) {
        let name: Vec<String> = name.iter().map(|part| key(part)).collect();
        self.0.push_str(&format!("\n{before}{}{after}\n", name.join(".")));
    }

    /// A key of the table that was opened last: a text, number, boolean, or a list of them.
    pub(in crate::kubernetes) fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.0.push_str(&format!("{} = {}\n", key(name), text(&value.into())));
    }

    pub(in crate::kubernetes) fn finish(self) -> String {
        self.0
    }
}

fn key(name: &str) -> String {
    let bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    if bare { name.to_owned() } else { string(name) }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => string(text),
        Value::Array(items) => format!("[{}]", items.iter().map(text).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

/// A basic string: TOML 1.0 takes JSON's escapes, but wants DEL escaped, too.
fn string(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007F")
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn what_is_written_is_what_is_read(name in "[^\u{0}]{1,12}", value in "(?s).{0,40}") {
            let mut file = TomlFile::new();
            file.table(&["plugins", &name]);
            file.set(&name, value.as_str());
            file.set("list", vec![value.clone(), name.clone()]);
            let read: toml::Table = file.finish().parse().unwrap();
            let mut inner = toml::Table::new();
            inner.insert("list".to_owned(), vec![value.clone(), name.clone()].into());
            if name != "list" {
                inner.insert(name.clone(), value.into());
            }
            let mut plugins = toml::Table::new();
            plugins.insert(name, inner.into());
            proptest::prop_assert_eq!(read.get("plugins").unwrap(), &toml::Value::from(plugins));
            proptest::prop_assert_eq!(read.len(), 1);
        }
    }
}
