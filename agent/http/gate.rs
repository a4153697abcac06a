//! A request that leaves only while something holds, asked as late as can be: when its connection stands.
//!
//! The head of a request is written to the connection together with the first piece of its body (HTTP/1.1, one `write`). So
//! the guard is asked where the body is taken: after the name was resolved, after the connection and the handshake of TLS, and for
//! a connection that was kept open just as for a new one. A guard that refuses ends the connection without a byte on it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};

use super::failure;
use crate::error::{Error, Result};

/// Whether a request may still leave; if not, why.
pub type SendGuard = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// A body in one piece, and what is asked before it is handed out.
struct Guarded {
    body: Option<Bytes>,
    guard: SendGuard,
}

/// A body that is taken only while the guard permits it.
pub(super) fn behind(body: Vec<u8>, guard: &SendGuard) -> reqwest::Body {
    reqwest::Body::wrap(Guarded { body: Some(body.into()), guard: Arc::clone(guard) })
}

/// What the guard said, where it kept the request back.
pub(super) fn refusal(error: &reqwest::Error) -> Option<Error> {
    failure::find::<Error>(error).cloned().map(Error::unsent)
}

impl Body for Guarded {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>>>> {
        let body = self.body.take();
        Poll::Ready(body.map(|body| (self.guard)().map(|()| Frame::data(body))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_none()
    }

    /// Known: it is sent with Content-Length.
    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.body.as_ref().map_or(0, |body| u64::try_from(body.len()).unwrap_or(u64::MAX)))
    }
}
