//! What a device sees of a virtqueue, whichever of the two forms it has.
//!
//! A device takes chains and gives them back; where they lie, who is signalled and when is the
//! owner's of the queue. The choice between the forms is made once per batch, by calling a function
//! that is generic over [`Virtqueue`], and not once per chain.

use crate::chain::Chain;
use crate::error::RingError;
use crate::memory::GuestMemory;

/// How a chain is called between its pop and its push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainId {
    /// Split: the first descriptor. Packed: the driver's name for the buffer, any number; in a queue
    /// that [records](crate::InflightRegion) what it takes, where it has recorded the chain.
    pub id: u16,
    /// Packed: how many descriptors of the ring the chain takes. Split: 0, nobody needs it.
    pub descriptors: u16,
}

/// A started virtqueue, as the device uses it.
pub trait Virtqueue {
    /// Takes the next chain that the driver made available into `chain`; `Ok(None)` when there is
    /// none.
    ///
    /// # Errors
    /// [`RingError`] for everything a driver must not do: the queue is then broken.
    fn pop(
        &mut self,
        memory: &GuestMemory,
        chain: &mut Chain,
    ) -> Result<Option<ChainId>, RingError>;

    /// Gives a chain back, with `written_bytes` written to the beginning of its writable segments.
    /// The driver does not see it yet.
    fn push(&mut self, chain: ChainId, written_bytes: u32);
}
