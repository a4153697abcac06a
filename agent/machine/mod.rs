//! What this machine is: the one module that looks.
//!
//! In: files, kernel, programs and sockets of the machine. Out: `MachineFacts`, releases of installed programs, who listens where.
//! Never: a change of the machine, or what follows from what is seen.

pub(super) mod add_ons;
pub(super) mod facts;
pub(super) mod image;
pub(super) mod installed;
pub mod listeners;
pub(super) mod replaced_programs;
