//! The client's side of NBD: an export of a server as a disk.
//!
//! A [`Disk`] is an opened export. Each thread that sends it requests has a [`ClientQueue`], with a connection of its own, in the
//! shape of [`engine::IoBackend`]. Where the server does not promise that flushes hold for all connections
//! (`NBD_FLAG_CAN_MULTI_CONN`) there is one connection, and so one queue.
//!
//! Connecting, and the handshake, block: they are done by whatever thread opens the disk, and later by threads of the
//! [`connector`]. What is sent after a broken connection, and what that means for writes, is in `docs/nbd-client.md`.
//!
//! Everything that a server sends is checked against the requests that it answers. A server that sends something else is
//! disconnected.

mod blocking_flush;
mod connect;
mod connection;
mod connector;
mod disk;
mod ending;
mod features;
mod flush_calls;
mod handshake;
mod idle_connection;
mod inbox;
pub mod launcher;
mod lost;
mod message;
mod options;
mod outbox;
mod queue;
mod reconnection;
mod record;
mod records;
mod reply;
mod request_group;
mod segments;
mod socket;
mod sockets;

use std::sync::Arc;
use std::time::Duration;

pub use connect::ConnectError;
pub use disk::{Disk, OpenError};
pub use features::Features;
pub use handshake::{BlockSizes, HandshakeError, Negotiated, ReplyStyle};
pub use options::{ClientOptions, ClientTls, ServerAddress};
pub use queue::{ClientQueue, MAX_IN_FLIGHT};
pub use request_group::{Cancellation, RequestGroup};
pub use sockets::SocketSet;
pub use tls::{ClientCredentials, ServerName};

/// Wakes the thread of a queue.
type Wake = Arc<dyn Fn() + Send + Sync>;

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds of the monotonic clock, as event loops use it.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let (seconds, nanoseconds) = (now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned());
    seconds * 1_000_000_000 + nanoseconds
}
