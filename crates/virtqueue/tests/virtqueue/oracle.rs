//! Comparison of the split queue with an independent implementation, the `virtio-queue` crate: the same memory gives the same
//! chains, the same completions give the same used ring and the same signals.
//!
//! - `valid`: what a correct driver does, over several rounds.
//! - `garbage`: what a hostile one may leave in memory. There, what we take, the other one reads the
//!   same way; what we refuse is left aside, because it ends such chains early instead.

mod garbage;
mod peer;
mod valid;
