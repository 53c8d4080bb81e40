//! The NBD protocol: its wire format for both sides, and the server's side as pure state machines.
//!
//! References are to "The NBD protocol" (`doc/proto.md` of the NBD project), with its extension `extension-ext-header`. The crate knows
//! nothing of sockets, disks and clocks.
//!
//! | module | has |
//! |---|---|
//! | `server` | handshake, requests and replies of a server |
//! | `wire` | constants, headers and payloads |

pub mod server;
pub mod wire;
