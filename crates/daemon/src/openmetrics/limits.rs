//! Limits on what a client can cost.

use std::time::Duration;

/// Longest head of a request.
pub(crate) const MAX_REQUEST_BYTES: usize = 8192;

/// Most header fields of a request.
pub(crate) const MAX_HEADERS: usize = 64;

/// Most clients at once. One more takes the place of who has asked for nothing for longest.
pub(crate) const MAX_CLIENTS: usize = 16;

/// Within which a request must be complete, however slowly it trickles in.
pub(crate) const REQUEST_TIME: Duration = Duration::from_secs(10);

/// Within which an answer must be read.
pub(crate) const ANSWER_TIME: Duration = Duration::from_secs(30);

/// How long a connection is kept for the next request: longer than the usual interval of a minute.
pub(crate) const IDLE_TIME: Duration = Duration::from_secs(90);

/// How long a client has to notice that it was hung up on.
pub(crate) const LINGER_TIME: Duration = Duration::from_secs(2);

/// How long nobody is accepted after that has failed: most likely descriptors have run out.
pub(crate) const ACCEPT_AGAIN_TIME: Duration = Duration::from_millis(100);
