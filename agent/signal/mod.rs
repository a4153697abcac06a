//! Delivers results and wait-condition signals to Heat.
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

pub use answer::SignalResponse;
pub(crate) use answer::{REFUSAL_SPAN, REFUSALS};
pub use destination::Destination;
pub use handle::{Handle, WaitSignal, WaitStatus};
pub use outbox::{Departures, Disposition, MetadataView, Outbox, QueuedSignal, Sending, SignalSubject};
pub use send::{DeliveryMethod, Sender};
