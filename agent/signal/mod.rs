//! Whatever happens, Heat hears.
//!
//! In: results of deployments and wait conditions. Out: HTTP requests, from an [`Outbox`] that survives
//! crashes and reboots. Never: a result that Heat no longer asks for, or a second final signal for a
//! handle and id.

mod answer;
mod cfn_url;
mod curl_line;
mod destination;
mod handle;
mod outbox;
mod send;

pub use answer::{SignalResponse, Verdict, judge};
pub use destination::Destination;
pub use handle::{Handle, Status, WaitSignal};
pub use outbox::{About, Disposition, Entry, Outbox, Sending, Sent, View};
pub use send::{DeliveryMethod, Sender};
