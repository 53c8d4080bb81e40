//! The interface between the transport and a device: a device implements [`PciDevice`], and calls the [`PciHost`] that it gets.

use std::sync::Arc;

use rustix::io::Errno;
use virtqueue::GuestMemory;

/// The number of an access to memory that is not mapped, from [`PciHost::begin_dma_read_by_messages`] or
/// [`PciHost::begin_dma_write_by_messages`] to [`PciDevice::on_dma_done`]. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DmaId(pub(crate) u64);

/// A PCI device with an interrupt line, and without MSI.
///
/// All calls come from one thread. None of them may block. The reply to a register access is sent when the call
/// returns, before anything else is done: longer work belongs in [`PciDevice::do_pending_work`]. (A front-end may
/// serve no memory until it has the reply.)
pub trait PciDevice {
    /// Its name in messages.
    fn name(&self) -> &str;
    /// Bytes of a region, 0 if there is none: 0 to 5 are the BARs, 7 is the configuration space
    /// ([`crate::ConfigSpace`]).
    fn region_bytes(&self, region: u32) -> u64;
    /// The guest reads. The range is in the region.
    fn read_region(&mut self, host: &mut dyn PciHost, region: u32, offset: u64, data: &mut [u8]);
    /// The guest writes. The range is in the region.
    fn write_region(&mut self, host: &mut dyn PciHost, region: u32, offset: u64, data: &[u8]);
    /// Resets the device to its initial state. Requests may still be in flight: see [`PciDevice::is_reset_done`].
    fn reset(&mut self, host: &mut dyn PciHost);
    /// Whether all requests are done that were in flight at the last reset. The reset command is answered then.
    fn is_reset_done(&self) -> bool;
    /// [`PciHost::mapped_guest_memory`] has changed; the device must release the old memory as soon as no request uses
    /// it. Also called when the front-end has disconnected, which unmaps all memory.
    fn on_memory_changed(&mut self, host: &mut dyn PciHost);
    /// An access to memory has finished, with the data that were read, or the buffer that was written. Errors are those of
    /// the front-end; or `EFAULT`: the device may not access this memory; `ENOTCONN`: the front-end has disconnected;
    /// `ETIMEDOUT`: it does not reply; `EBUSY`: 256 accesses are pending already.
    fn on_dma_done(&mut self, host: &mut dyn PciHost, id: DmaId, result: Result<Vec<u8>, Errno>);
    /// Does pending work for a bounded time. True: there is more, call again soon.
    fn do_pending_work(&mut self, host: &mut dyn PciHost) -> bool;
}

/// Functions of the bus that a device may use.
pub trait PciHost {
    /// Whether a front-end is connected.
    fn is_connected(&self) -> bool;
    /// Sets the level of the interrupt line.
    fn set_irq_level(&mut self, level: bool);
    /// The guest's memory that is mapped in this process.
    fn mapped_guest_memory(&self) -> &Arc<GuestMemory>;
    /// Reads memory by a message to the front-end, also memory that is not in [`PciHost::mapped_guest_memory`].
    /// [`PciDevice::on_dma_done`] gets the data, never before this returns.
    fn begin_dma_read_by_messages(&mut self, address: u64, len: usize) -> DmaId;
    /// Writes memory by a message, in the same way.
    fn begin_dma_write_by_messages(&mut self, address: u64, data: Vec<u8>) -> DmaId;
}
