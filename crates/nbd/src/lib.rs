//! The NBD protocol: its wire format for both sides, the server's side as pure state machines, and a client with its connections.
//!
//! References are to "The NBD protocol" (`doc/proto.md` of the NBD project), with its extension `extension-ext-header`. Apart from the
//! client, the crate knows nothing of sockets, disks and clocks.
//!
//! | module | has |
//! |---|---|
//! | `client` | exports of servers as disks: connecting, requests, broken connections |
//! | `server` | handshake, requests and replies of a server |
//! | `wire` | constants, headers and payloads |

pub mod client;
pub mod server;
pub mod wire;
