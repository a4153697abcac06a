//! Brings a volume into its place: find, check, format, mount, mark.
//!
//! What may be done is decided by [`decide`](crate::storage::interlock::decide) alone. A file each: `evidence` reads what the decision needs, `format` and
//! `mounting` carry it out, `record` notes each step before the next, so that a crash at any point is taken up where it
//! happened; `pool`, `data_move` and `growth` are for what lies on a volume. One that is in place costs one look at sysfs
//! and the mount table.
//!
//! In: a [`Volume`](crate::desired::Volume) of the `Desired`, the disks of the machine. Out: a mounted volume, or why not. Never: a byte
//! on a disk that the interlock did not allow.

mod attempt;
mod bring_up;
mod data_move;
mod evidence;
mod format;
mod growth;
mod growth_retries;
mod keeper;
mod mounting;
mod place;
mod pool;
mod pool_usage;
mod preflight;
mod record;
mod stores;
#[cfg(test)]
mod test_keeper;
#[cfg(test)]
mod tests;

pub use self::data_move::KEY as MOVE_KEY;
pub use self::growth_retries::GrowthRetries;
pub use self::keeper::{ProgramOutput, VolumeBackend, VolumeKeeper};
pub use self::place::misplaced;
pub use self::pool_usage::{PoolInspection, PoolUsageCache};
