//! The commands: one file each.
//!
//! In: a command line. Out: text for a person or a program, and an exit code. Never: imported by a module further down.

pub mod adopt;
pub mod apply;
pub mod certificates;
pub mod command_line;
pub mod etcd;
pub(super) mod finding;
pub mod firewall;
pub mod generations;
pub mod hook_run;
pub mod instance_guard;
pub mod logs;
pub mod metadata;
pub mod order;
pub mod plan;
pub mod pod_network;
pub mod port_holders;
pub mod repair;
pub mod reset;
pub mod rollback;
pub mod signal;
pub mod status;
pub mod support;
pub mod timeline;
pub mod upgrade_check;
pub mod verify;

mod deployment;
mod document;
mod image;
mod image_nodes;
mod secrets;
mod template;
mod terminal;
mod units;

pub use crate::daemon::order_files::Order;
use crate::output::carry_out;
use crate::output::note;
use crate::output::pass_on;
use crate::output::print_styled;
pub use crate::output::{print, print_error, print_usage};
pub use crate::process::{CommonOptions, exit};
