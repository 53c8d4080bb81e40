//! Limits on what clients of the metrics endpoint can cost: their number, sizes of requests, and timeouts.

use std::time::Duration;

/// Maximum size of a request's head.
pub(crate) const MAX_REQUEST_BYTES: usize = 8192;

/// Maximum number of header fields in a request.
pub(crate) const MAX_HEADERS: usize = 64;

/// Maximum number of clients. One more replaces the client that has been idle for longest.
pub(crate) const MAX_CLIENTS: usize = 16;

/// Time in which a request must be complete, however slowly it trickles in.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Time in which a client must read a response.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a connection is kept for the next request: longer than the usual scrape interval of a minute.
pub(crate) const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(90);

/// How long a client has to close its side after the server has closed its own.
pub(crate) const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
