//! What the server itself may speak to Heat with, as its sources know it.

use crate::collect::Ways;
use crate::signal::Own;

/// What the server may speak to Heat with: credentials and the address that the same document named for them.
pub(crate) fn own(ways: &Ways) -> Own {
    let Ways { cfn, user, ca } = ways.clone();
    Own { cfn, user, ca }
}
