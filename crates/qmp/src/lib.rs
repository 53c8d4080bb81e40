//! QMP, the protocol by which QEMU's monitors are spoken to: JSON messages over a stream.
//!
//! What a program can be asked is an [`Interface`]: commands, events and their types, each declared
//! once. Requests are checked against it, it dispatches them, and `query-qmp-schema` is written
//! from it, so the three cannot differ. A [`Server`] speaks with any number of clients on one
//! thread; commands run where the program wants them to, see [`Call`].
//!
//! A client may send anything, and may never read: see [`limits`] for what that can cost.
//! What the program does is not known here.

mod check;
mod client;
mod client_count;
mod document;
mod endpoint;
mod error;
mod format;
mod framing;
mod full;
mod interface;
pub mod limits;
mod mailbox;

mod reply;
mod request;
mod response;
mod server;
mod session;
mod types;
mod watch;

pub use client_count::ClientCount;
pub use endpoint::Endpoint;
pub use error::{Class, Error};
pub use format::to_text;
pub use interface::{Arguments, Command, Event, Interface, Product, Run};
pub use mailbox::Handle;
pub use reply::Reply;
pub use server::{Call, Server};
pub use types::{Definition, Member, Object, Type, Variants};
