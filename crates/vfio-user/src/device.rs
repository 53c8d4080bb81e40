//! The seam to the device: what it is, and what it may ask for.

use std::sync::Arc;

use rustix::io::Errno;
use virtqueue::GuestMemory;

/// Names an access to memory that is not mapped, from [`Host::dma_read`] or [`Host::dma_write`] to
/// [`PciDevice::dma_done`]. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DmaId(pub(crate) u64);

/// A PCI device with an interrupt line, and without MSI.
///
/// All calls come from one thread. None of them may block. An access to a register is answered when the call
/// returns, before anything else is done: what takes longer belongs into [`PciDevice::run`]. (A front-end may
/// serve no memory until its access is answered.)
pub trait PciDevice {
    /// What messages call it.
    fn name(&self) -> &str;
    /// Bytes of a region, 0 if it is not there: 0 to 5 are the BARs, 7 is the configuration space
    /// ([`crate::ConfigSpace`]).
    fn region_bytes(&self, region: u32) -> u64;
    /// The guest reads. The range is in the region.
    fn read(&mut self, host: &mut dyn Host, region: u32, offset: u64, data: &mut [u8]);
    /// The guest writes. The range is in the region.
    fn write(&mut self, host: &mut dyn Host, region: u32, offset: u64, data: &[u8]);
    /// Back to how it was made. What is under way need not be over: see [`PciDevice::settled`].
    fn reset(&mut self, host: &mut dyn Host);
    /// Whether all is over that was under way at the last reset. The guest hears of the reset then.
    fn settled(&self) -> bool;
    /// [`Host::memory`] is another one now; the old one must be let go as soon as nothing under way uses it. Also when
    /// the front-end has gone, with all of its memory.
    fn memory_changed(&mut self, host: &mut dyn Host);
    /// An access to memory has come to its end: what was read, or the buffer that was written. Errors are those of
    /// the front-end; or `EFAULT`: the device may not access this memory; `ENOTCONN`: the front-end has gone;
    /// `ETIMEDOUT`: it does not answer; `EBUSY`: nor has it answered 256 others.
    fn dma_done(&mut self, host: &mut dyn Host, id: DmaId, result: Result<Vec<u8>, Errno>);
    /// Does for a bounded time what is to be done. True: there is more, call again soon.
    fn run(&mut self, host: &mut dyn Host) -> bool;
}

/// What a device may ask for.
pub trait Host {
    /// Whether there is a front-end. What a guest's program does without one, nobody sees.
    fn is_connected(&self) -> bool;
    /// The level of the interrupt line.
    fn set_irq(&mut self, level: bool);
    /// The memory of the guest that can be used where it is.
    fn memory(&self) -> &Arc<GuestMemory>;
    /// Reads memory by a message to the front-end, also such as is not in [`Host::memory`]. The data come by
    /// [`PciDevice::dma_done`], never before this returns.
    fn dma_read(&mut self, address: u64, len: usize) -> DmaId;
    /// Writes it, as above.
    fn dma_write(&mut self, address: u64, data: Vec<u8>) -> DmaId;
}
