//! The `virtio-queue` crate's split queue, working on a copy of the guest's memory, for comparison.

use virtio_queue::{Queue, QueueT};
use virtqueue::testing::{DriverRing, TestMemory};
use vm_memory::{
    Address, Bytes, GuestAddress, GuestMemory, GuestMemoryBackend, GuestMemoryMmap, Permissions,
};

use crate::requests::Piece;

/// The segments of a chain, readable and writable ones.
pub type Pieces = (Vec<Piece>, Vec<Piece>);

/// The peer's queue and its copy of the memory.
pub struct Peer {
    memory: GuestMemoryMmap<()>,
    regions: Vec<(u64, u64)>,
    queue: Queue,
    /// The used ring, which is the device's own in each copy: address and length.
    used: Piece,
}

impl Peer {
    /// A peer for the same queue, with the same indices.
    pub fn new(regions: &[(u64, u64)], driver: &DriverRing, base: u16) -> Peer {
        let ranges: Vec<_> = regions
            .iter()
            .map(|&(addr, len)| (GuestAddress(addr), usize::try_from(len).unwrap()))
            .collect();
        let layout = driver.layout();
        let mut queue = Queue::new(layout.size).unwrap();
        queue
            .try_set_desc_table_address(GuestAddress(layout.desc))
            .unwrap();
        queue
            .try_set_avail_ring_address(GuestAddress(layout.avail))
            .unwrap();
        queue
            .try_set_used_ring_address(GuestAddress(layout.used))
            .unwrap();
        queue.set_event_idx(driver.features().event_idx);
        queue.set_next_avail(base);
        queue.set_next_used(base);
        queue.set_ready(true);
        let used = (layout.used, 6 + 8 * usize::from(layout.size));
        let memory = GuestMemoryMmap::from_ranges(&ranges).unwrap();
        let peer = Peer {
            memory,
            regions: regions.to_vec(),
            queue,
            used,
        };
        let initial = driver.memory().read(used.0, used.1);
        peer.memory
            .write_slice(&initial, GuestAddress(used.0))
            .unwrap();
        peer
    }

    /// Copies what the guest wrote: everything but the used ring.
    pub fn copy_from(&self, memory: &TestMemory) {
        let own = self.used_ring();
        for &(addr, len) in &self.regions {
            let bytes = memory.read(addr, usize::try_from(len).unwrap());
            self.memory.write_slice(&bytes, GuestAddress(addr)).unwrap();
        }
        self.memory
            .write_slice(&own, GuestAddress(self.used.0))
            .unwrap();
    }

    /// The bytes of the used ring, with the event index.
    pub fn used_ring(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.used.1];
        self.memory
            .read_slice(&mut bytes, GuestAddress(self.used.0))
            .unwrap();
        bytes
    }

    /// The next chain: its head, and its buffers cut at the borders of regions, empty ones left out.
    pub fn pop(&mut self) -> Option<(u16, Pieces)> {
        let chain = self.queue.pop_descriptor_chain(&self.memory)?;
        let head = chain.head_index();
        let (mut readable, mut writable) = (vec![], vec![]);
        for descriptor in chain {
            let len = usize::try_from(descriptor.len()).unwrap();
            let pieces = if descriptor.is_write_only() {
                &mut writable
            } else {
                &mut readable
            };
            if len == 0 {
                continue;
            }
            let mut addr = descriptor.addr();
            let access = Permissions::ReadWrite;
            for slice in GuestMemory::get_slices(&self.memory, addr, len, access).unwrap() {
                let slice = slice.unwrap();
                let host = self.memory.get_host_address(addr).unwrap();
                assert_eq!(slice.ptr_guard().as_ptr(), host);
                pieces.push((addr.raw_value(), slice.len()));
                addr = addr.checked_add(slice.len() as u64).unwrap();
            }
        }
        Some((head, (readable, writable)))
    }

    pub fn push(&mut self, head: u16, written_bytes: u32) {
        self.queue
            .add_used(&self.memory, head, written_bytes)
            .unwrap();
    }

    pub fn needs_notification(&mut self) -> bool {
        self.queue.needs_notification(&self.memory).unwrap()
    }

    pub fn enable_kicks_and_recheck(&mut self) -> bool {
        self.queue.enable_notification(&self.memory).unwrap()
    }

    pub fn disable_kicks(&mut self) {
        self.queue.disable_notification(&self.memory).unwrap();
    }
}
