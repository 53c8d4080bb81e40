//! The bus of a device: its interrupt line and its access to memory, as the device's [`PciHost`].

use std::sync::Arc;

use eventfd::Signaller;
use rustix::io::Errno;
use virtqueue::GuestMemory;

use crate::device::{DmaId, PciHost};
use crate::dma::{DmaDirection, DmaTransfers};
use crate::intx::Intx;
use crate::maps::DmaMaps;
use crate::wire::{DMA_READ_ALLOWED, DMA_WRITE_ALLOWED};

/// The device's side of a connection. Without one there is no memory, and the interrupt line is not connected.
pub(crate) struct DeviceBus {
    pub intx: Intx,
    pub dma: DmaTransfers,
    pub maps: DmaMaps,
    memory: Arc<GuestMemory>,
    pub now_ns: u64,
    pub connected: bool,
}

impl DeviceBus {
    /// The bus of an export's device without a front-end.
    pub fn new(export: &str) -> Self {
        let maps = DmaMaps::default();
        DeviceBus {
            intx: Intx::new(Signaller::new(export)),
            dma: DmaTransfers::default(),
            memory: maps.build_guest_memory(),
            maps,
            now_ns: 0,
            connected: false,
        }
    }

    /// Updates the memory after a change of [`DeviceBus::maps`].
    pub fn rebuild_memory(&mut self) {
        self.memory = self.maps.build_guest_memory();
    }
}

impl PciHost for DeviceBus {
    fn is_connected(&self) -> bool {
        self.connected
    }

    fn set_irq_level(&mut self, level: bool) {
        self.intx.set_level_and_signal_if_pending(level);
    }

    fn mapped_guest_memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// Begins a read, which fails at once if the front-end does not let the device read there.
    fn begin_dma_read_by_messages(&mut self, address: u64, len: usize) -> DmaId {
        if !self
            .maps
            .is_access_allowed(address, len as u64, DMA_READ_ALLOWED)
        {
            return self.dma.add_failed_transfer(Errno::FAULT);
        }
        let data = vec![0; len];
        self.dma
            .queue_or_fail_transfer(DmaDirection::Read, address, data, self.now_ns)
    }

    /// Begins a write, which fails at once if the front-end does not let the device write there.
    fn begin_dma_write_by_messages(&mut self, address: u64, data: Vec<u8>) -> DmaId {
        let len = data.len() as u64;
        if !self.maps.is_access_allowed(address, len, DMA_WRITE_ALLOWED) {
            return self.dma.add_failed_transfer(Errno::FAULT);
        }
        self.dma
            .queue_or_fail_transfer(DmaDirection::Write, address, data, self.now_ns)
    }
}
