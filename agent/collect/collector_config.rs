//! os-collect-config.conf, the settings of the replaced collector: where the server's sources are, and whose they are.

use std::path::Path;

use super::file_origins::{FileOrigins, read_safe};
use super::former_lists::FormerPlace;
use crate::digest;
use crate::error::Error;
use crate::files::READ_LIMIT;
use crate::files::Tree;
use crate::report::text::{argument, escaped};
use crate::settings::os_collect_config::OsCollectConfig;

/// Longer names of stack and resource are not repeated: Heat's have at most 255 characters each (heat/common/short_id.py makes shorter ones).
const RESOURCE_WORDS: usize = 160;

/// The file, read again at each look and parsed again only if a byte changed.
#[derive(Default)]
pub(super) struct CollectorConfig {
    raw: Option<String>,
    /// What it said when it could be read last; nothing while it is another instance's.
    pub(super) settings: OsCollectConfig,
    /// Why it cannot be read now.
    pub(super) unread: Option<Error>,
    /// Whether it says who the server is. One that only says how to look for metadata is the image's.
    leads: bool,
    /// Whose metadata it leads to: stack and resource, as words of a command.
    pub(super) resource: Option<String>,
    /// Where the collector before the agent kept what it was told, as far as that was read.
    pub(super) former_place: Option<Box<FormerPlace>>,
}

impl CollectorConfig {
    /// Reads the file anew. Gives its oddities when it changed.
    pub(super) fn refresh(&mut self, root: &Tree, path: &Path, origins: &mut FileOrigins) -> Vec<String> {
        let content = read_safe(root, path, READ_LIMIT).map(Option::unwrap_or_default);
        let raw = match &content {
            Ok(bytes) => digest::hex(bytes),
            Err(error) => error.to_string(),
        };
        let remedied = |error: &Error| {
            let remedy =
                format!("make {0} a regular file of at most {READ_LIMIT} bytes, or remove it (ls -l {0})", path.display());
            let given = error.suggested_remedy().map(str::to_owned);
            error.clone().remedy(given.unwrap_or(remedy))
        };
        self.unread = content.as_ref().err().map(remedied);
        let changed = self.raw.as_ref() != Some(&raw);
        self.raw = Some(raw);
        if changed && let Ok(bytes) = &content {
            self.settings = OsCollectConfig::parse(bytes);
            self.leads = self.settings.names_a_server();
            self.resource = resource(&self.settings);
        }
        let own = content.map(|bytes| !self.leads || origins.own(path, Some(bytes)).is_some());
        let mut warnings = Vec::new();
        match own {
            Ok(true) if changed => {
                let lines = self.settings.suspicious_lines.iter();
                warnings.extend(lines.map(|line| format!("{} line {line}: neither a section nor key = value", path.display())));
                warnings.extend(self.settings.invalid_numbers().map(|what| format!("{} {what}", path.display())));
            }
            Ok(false) => self.settings = OsCollectConfig::default(),
            // What it said last stays in force where it cannot be read.
            Ok(true) | Err(_) => {}
        }
        warnings
    }
}

/// Stack and resource of `[cfn]`, as words of a command.
fn resource(config: &OsCollectConfig) -> Option<String> {
    let resource = config.get("cfn", "path")?.strip_suffix(".Metadata")?;
    let words = format!("{} {}", argument(config.get("cfn", "stack_name")?), argument(resource));
    (words.len() <= RESOURCE_WORDS && escaped(&words) == words).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resource_of_the_settings_is_named_where_a_command_can_take_it() {
        let named = |text: &str| resource(&OsCollectConfig::parse(text.as_bytes()));
        assert_eq!(named("[cfn]\nstack_name = s\npath = node.Metadata\n").as_deref(), Some("s node"));
        assert_eq!(named("[cfn]\nstack_name = a b;c\npath = node.Metadata\n").as_deref(), Some("'a b;c' node"));
        let long = format!("[cfn]\nstack_name = {}\npath = node.Metadata\n", "s".repeat(200));
        for without in
            ["", "[cfn]\nstack_name = s\n", "[cfn]\npath = node.Metadata\n", "[cfn]\nstack_name = s\npath = node\n", &long]
        {
            assert_eq!(named(without), None);
        }
    }
}
