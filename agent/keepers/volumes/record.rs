//! How far the agent came with a volume: `volumes/<role>.json` in its state directory.

use std::path::{Path, PathBuf};

use super::attempt::{AttemptResult, failed};
use super::keeper::{VolumeBackend, VolumeKeeper};
use crate::converge::Failure;
use crate::desired::{Volume, VolumeRole};
use crate::error::Result;
use crate::files::Attributes;
use crate::report::Code;
use crate::storage::marker::{SCHEMA, VolumeRecord, VolumeState};

impl<H: VolumeBackend> VolumeKeeper<H> {
    /// What is recorded of a role, whatever volume has it. A damaged record says nothing: without it less is allowed, never more.
    pub(super) fn record_of(&self, role: VolumeRole) -> Result<Option<VolumeRecord>> {
        let record: Option<VolumeRecord> =
            self.state.read_state(&path_of(role), self.progress.report(), Code::StateFileQuarantined)?;
        Ok(record.filter(|record| record.schema == SCHEMA && record.role == role))
    }

    /// Whether a volume with this role was ever put in place, as far as is known: one that never was has not been lost.
    #[must_use]
    pub fn was_in_place(&self, role: VolumeRole) -> bool {
        self.record_of(role).map_or(true, |record| record.is_some())
    }

    /// The record of this volume; that of another one that had its role before says nothing.
    pub(super) fn record(&self, volume: &Volume) -> Result<Option<VolumeRecord>> {
        Ok(self.record_of(volume.role)?.filter(|record| record.volume == volume.disk.as_str()))
    }

    pub(super) fn write_record(
        &self,
        volume: &Volume,
        fs_type: &str,
        fs_uuid: &str,
        size: u64,
        state: VolumeState,
        what: Option<String>,
    ) -> AttemptResult<VolumeRecord> {
        let record = VolumeRecord {
            schema: SCHEMA,
            role: volume.role,
            cluster: volume.cluster.clone(),
            volume: volume.disk.to_string(),
            fs_type: fs_type.to_owned(),
            fs_uuid: fs_uuid.to_owned(),
            state,
            what,
            size,
            at: self.clock.now(),
        };
        let write = || {
            self.state.create_dir(Path::new("volumes"), Attributes::mode(0o700))?;
            self.state.write_json(&record_path(volume), &record, Attributes::mode(0o600))
        };
        write().map_err(|error| Failure { code: Code::StateWriteFailed, ..failed("record", &error) })?;
        Ok(record)
    }
}

pub(super) fn record_path(volume: &Volume) -> PathBuf {
    path_of(volume.role)
}

fn path_of(role: VolumeRole) -> PathBuf {
    PathBuf::from(format!("volumes/{role}.json"))
}
