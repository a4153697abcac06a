//! `certificates [--json]`: the node's certificates as they are; `certificates new-ca`: CAs for who has none.
//! `certificates rotate` is an order ([`super::order`]).
//!
//! In: the node as the agent left it, its files; the command line. Out: a list with what to do, or new files in a directory that was
//! named. Never: a change of a certificate that is in use.

mod inspection;
mod new_ca;
mod page;

use std::path::Path;
use std::process::ExitCode;

use super::{document, print};
use crate::clock::Clock;
use crate::converge;
use crate::desired::Desired;
use crate::error::Result;
use crate::files::Tree;
use crate::keepers::certificates as keeper;
use crate::keepers::certificates::next;
use crate::kubernetes;
use crate::machine::facts;
use crate::process::exit;
use crate::settings::Settings;
use inspection::list;
pub use new_ca::run as new_ca;
use page::Page;

/// Prints what of the newest generation's certificates is there; 2 unless all are right and no CA rotation waits.
///
/// # Errors
/// If there is no generation, or its parameters or the machine cannot be read.
pub fn run(settings: &Settings, json: bool) -> Result<ExitCode> {
    crate::daemon::check_instance(&settings.state_dir)?;
    let state = document::open_state(settings)?;
    let (_, spec) = document::node_in_place(&state)?;
    let root = Tree::open(Path::new("/"))?;
    let facts = facts::of_machine(&root);
    let desired = kubernetes::render(&spec, &facts)?;
    let now = Clock::system().now();
    let inspection = keeper::inspect(&root, &desired, now)?;
    let page = Page {
        items: list(&inspection, &desired, &kubernetes::standalone_keys(&spec, &facts), &root, now),
        pending_restarts: pending_restarts(&root, &desired),
        // Above its last step nobody waits for anything.
        rotation: keeper::CertificateRecord::inspect(&state).rotation.and_then(|turn| Some((turn, next(turn.step)?))),
        now,
    };
    print(&if json { page.document() } else { page.text() })?;
    Ok(if page.is_ok() { exit::OK } else { exit::pending() })
}

/// The units that read certificates, and have a restart pending: a renewal, or a step of a rotation, is under way or was cut off.
fn pending_restarts(root: &Tree, desired: &Desired) -> Vec<String> {
    let pending = converge::pending_restarts(root);
    desired.certificate_readers().map(|unit| unit.name.clone()).filter(|name| pending.contains(name)).collect()
}
