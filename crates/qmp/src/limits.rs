//! Limits of QMP clients: their number, the size and depth of a message, waiting requests and output. QEMU allows 64
//! MiB per message; here every limit is small, since no command needs more.

/// Most bytes of a request. The longest, a node with every option, has a few thousand.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Most levels of nested objects and lists. Parsers and checks recurse; no command goes beyond ten.
pub const MAX_DEPTH: usize = 64;

/// Most clients at a time, of all monitors together. Further ones wait to be accepted.
pub const MAX_CLIENTS: usize = 128;

/// Most requests of one client that wait for the program; no more are read then. QEMU has the same limit.
pub const MAX_PENDING: usize = 8;

/// Bytes of output that wait for a client to read them; with more, its requests are not read.
pub const FULL_OUTPUT_BYTES: usize = 64 << 10;

/// Bytes of output that wait for a client above which the next event disconnects it. Responses alone stay below: [`FULL_OUTPUT_BYTES`]
/// and [`MAX_PENDING`] more of them.
pub const MAX_OUTPUT_BYTES: usize = 4 << 20;
