//! Queues and guest memory, with drivers that keep the rules and drivers that do not.
//!
//! - `queue`, `packed`: well-behaved drivers; `malformed`, `packed_malformed`: the others.
//! - `oracle`: comparison with an independent implementation.
//! - `memory`, `word_access`: translation of addresses, and single stores.
//! - `dirty_log`: the dirty log of a migration.
//! - `no_alloc`: the data path does not allocate.
//! - `requests`: random requests of a driver.

#![allow(clippy::unwrap_used, reason = "a test ends when it surprises")]

mod dirty_log;
mod malformed;
mod memory;
mod no_alloc;
mod oracle;
mod packed;
mod packed_malformed;
mod queue;
mod requests;
mod word_access;
