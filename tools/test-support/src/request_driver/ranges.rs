//! Discards and write-zeroes requests of any range.

use virtqueue::testing::Buffer;

use super::{BLOCK, NO_STATUS, RequestDriver};

/// Bytes that describe a range (VIRTIO 1.2, section 5.2.6).
pub(super) const DESCRIPTOR_BYTES: u32 = 16;
/// `VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP`
const UNMAP: u32 = 1;

/// The description of a range, in sectors.
pub(super) fn descriptor(sector: u64, sectors: u64, flags: u32) -> Vec<u8> {
    let count = u32::try_from(sectors).unwrap();
    let rest = [count, flags].map(u32::to_le_bytes);
    [&sector.to_le_bytes()[..], rest.as_flattened()].concat()
}

impl RequestDriver {
    /// Discards or zeroes blocks in one request, from the first to the last; returns the status. `unmap`: zeroes may free the
    /// space.
    #[track_caller]
    pub fn request_range(&mut self, kind: u32, block: u64, blocks: u64, unmap: bool) -> u8 {
        let (memory, queue) = (&self.memory, &mut self.queues[0]);
        let slot = queue.slots[0];
        let per_block = BLOCK as u64 / 512;
        let flags = if unmap { UNMAP } else { 0 };
        memory.write(slot.header, &[&kind.to_le_bytes()[..], &[0; 12]].concat());
        let range = descriptor(block * per_block, blocks * per_block, flags);
        memory.write(slot.data, &range);
        memory.write(slot.status, &[NO_STATUS]);
        let buffers = [
            Buffer::readable(slot.header, 16),
            Buffer::readable(slot.data, DESCRIPTOR_BYTES),
            Buffer::writable(slot.status, 1),
        ];
        queue.asked[0] = Some(queue.virtqueue.ring.add(&buffers));
        self.submit(0);
        self.watch(0, 0);
        self.status(0, 0)
    }
}
