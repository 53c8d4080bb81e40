//! An NBD server on iothreads. One thread accepts clients and negotiates with all of them; a client that has chosen an export becomes
//! a [socket device](iothread::SocketDevice) of one of the export's iothreads, which has the socket from then on.
//!
//! | module | has |
//! |---|---|
//! | `buffers` | buffers for data, which a connection reuses |
//! | `connection` | a connection in the transmission phase, on an iothread |
//! | `contexts` | metadata contexts of an export |
//! | `export` | an export with its connections |
//! | `export_list` | the exports of a server, as clients find them |
//! | `listener` | listening sockets |
//! | `negotiation` | clients in the handshake |
//! | `server` | the thread, and its control |
//! | `socket` | the socket of a client, plain or with TLS |
//! | [`testing`] | an export for unit tests |
//! | `tls` | certificates, and the clients that are let in |

mod buffers;
mod connection;
mod contexts;
mod export;
mod export_list;
mod listener;
mod negotiation;
mod peer;
mod server;
mod socket;
pub mod testing;
mod tls;

pub use connection::DEPTH;
pub use export::{Export, ExportSettings};
pub use listener::NbdListener;
pub use nbd::server::BlockSizes;
pub use server::{NbdServer, ServerSettings};
pub use tls::ServerTls;
