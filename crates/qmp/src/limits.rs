//! Limits of a client. The field allows 64 MiB per message; here every bound is small, since
//! nothing that can be said needs more.

/// Bytes of a request at most. The longest, a node with every option, has a few thousand.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Objects and lists inside each other at most. Parsers and checks recurse; nothing goes beyond ten.
pub const MAX_DEPTH: usize = 64;

/// Clients at once, of all monitors together. More wait to be accepted.
pub const MAX_CLIENTS: usize = 128;

/// Requests of one client that wait for the program at most; more are not read. The field's number.
pub const MAX_PENDING: usize = 8;

/// Answers that wait for a client to read them, in bytes; with more its requests are not read.
pub const FULL_OUTPUT_BYTES: usize = 64 << 10;

/// As many events and answers that wait for a client end its connection when one more event is due.
/// Answers alone stay below: [`FULL_OUTPUT_BYTES`] and [`MAX_PENDING`] more of them.
pub const MAX_OUTPUT_BYTES: usize = 4 << 20;
