//! Front-ends of vhost-user: connections that send anything, and queues in memory that is shared with the server.
//!
//! [`Wire`](wire::Wire) is a connection: raw messages for tests of bad input, and the steps of a front-end's set-up, each of which
//! fails with [`Gone`](wire::Gone) when the server has ended. A [`Ring`](ring::Ring) is the driver's side of a queue of either form.

pub mod queue;
pub mod ring;
pub mod wire;
