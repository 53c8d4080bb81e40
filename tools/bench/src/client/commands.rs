//! Requests of a queue, whatever kind of disk they are for.

use std::sync::atomic::AtomicU64;

use crate::error::Result;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads a block.
    Read,
    /// Writes a block.
    Write,
    /// Makes all completed writes durable; its sector is 0.
    Flush,
}

/// As many requests as may be in flight; each knows its place, its slot. On its way it has another name, its head, which the
/// queue moves.
pub trait Commands {
    /// How many.
    fn depth(&self) -> u16;

    /// Bytes of each.
    fn block_bytes(&self) -> u32;

    /// What `slot` does.
    fn kind(&self, slot: usize) -> Kind;

    /// The data of `slot`, as words of memory: for the request only while it is in flight.
    fn data(&self, slot: usize) -> &[AtomicU64];

    /// Makes `slot` a request of this `kind` at `sector`. Returns its head, to push.
    fn aim(&mut self, slot: usize, kind: Kind, sector: u64) -> u16;

    /// Which request completed, by its head.
    ///
    /// # Errors
    /// [`crate::error::Error::Requests`] when none has that head, or it failed.
    fn completed(&self, head: u32) -> Result<usize>;
}
