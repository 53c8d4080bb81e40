//! Comparison of the split queue with an independent implementation, the `virtio-queue` crate: the same memory gives the same
//! chains, the same completions give the same used ring and the same signals.
//!
//! - `valid`: what a correct driver does, over several rounds.

mod peer;
mod valid;
