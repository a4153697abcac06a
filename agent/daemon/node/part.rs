//! A node that has only a part of what was asked, because its last update failed on the way: it is looked at like any other, and
//! nothing is put back. That would carry out the update that failed.

use super::Node;
use super::drift::{Cause, Found};
use crate::desired::Desired;
use crate::error::Result;
use crate::report::text::shortened;
use crate::report::{Code, Event};
use crate::systemd::Systemd;

/// What is listed of it.
const LIMIT: usize = 2000;

impl Node {
    /// Whether somebody changed the node since its update failed. What the update left undone is reported once.
    pub(super) async fn compare_part(&self, desired: &Desired, systemd: &Systemd, generation: u64) -> Result<bool> {
        let volumes = self.volumes(systemd);
        let Some(sight) = self.see(desired, &volumes, systemd, generation).await? else { return Ok(true) };
        let (is_whole, is_sick) = (!sight.is_arriving, sight.is_sick);
        let Found { left, news } = self.remembered.sort_out(generation, sight.found, is_whole)?;
        let tell = |code, message, causes: &[Cause]| {
            let texts: Vec<&str> = causes.iter().map(|cause| cause.text.as_str()).collect();
            let event = Event::new(code, message).generation(generation).step("drift");
            self.host.report.emit(event.cause(shortened(&texts.join(", "), LIMIT)));
        };
        if !left.is_empty() {
            tell(Code::UpdateLeft, "the failed update left the node different from its parameters", &left);
        }
        if !news.is_empty() {
            tell(Code::NodeDrift, "the node was changed after its update failed", &news);
        }
        Ok(is_sick || !news.is_empty())
    }
}
