//! QMP, the protocol of QEMU's monitors: JSON messages over a stream.
//!
//! An [`Interface`] declares the commands and events of a program and their types, each once. Requests are checked against
//! it and dispatched by it, and `query-qmp-schema` is made from it, so the three cannot differ. A [`Server`] serves any
//! number of clients on one thread; commands run on a thread of the program's choice, see [`CommandCall`].
//!
//! A client may send anything, and may never read: [`limits`] bounds what that can cost. The effects of commands are the
//! program's, not this crate's.

mod check;
mod client;
mod client_count;
mod client_limit;
mod endpoint;
mod error;
mod framing;
mod interface;
mod json_text;
pub mod limits;
mod poller;
mod reply_sender;
mod request;
mod response;
mod server;
mod server_handle;
mod session;
mod state_events;
mod strict_json;
mod types;

pub use client_count::ClientCount;
pub use endpoint::Endpoint;
pub use error::{Error, ErrorClass};
pub use interface::{Arguments, Command, CommandHandler, Event, Interface, ProgramVersion};
pub use json_text::json_to_text;
pub use reply_sender::ReplySender;
pub use server::{CommandCall, Server};
pub use server_handle::ServerHandle;
pub use state_events::StateKey;
pub use types::{Member, ObjectType, Type, TypeDefinition, Variants};
