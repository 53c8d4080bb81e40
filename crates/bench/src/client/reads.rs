//! Read requests whose descriptors are written once: to send one again is to write its sector and
//! push its head.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::layout::{Layout, QueuePlace};
use super::memory::SharedMemory;

/// Bytes of a read.
pub const READ_BYTES: usize = 4096;

/// Descriptors of a read: header, data, status (virtio specification 1.2, section 5.2.6).
const CHAIN: usize = 3;
const HEADER_BYTES: usize = 16;
const SECTORS: u64 = (READ_BYTES / 512) as u64;

// Descriptor flags, section 2.7.5.
const NEXT: u64 = 1;
const WRITE: u64 = 2;

/// What the status byte is until the device has written it: no status of the device's.
const PENDING: u8 = 0xff;
const STATUS_OK: u8 = 0;

/// Where the reads' headers, data and status bytes are.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    headers: usize,
    statuses: usize,
    data: usize,
    depth: u16,
}

/// As many reads as may be in flight; each knows its place by its index.
pub struct Reads<'m> {
    headers: &'m [AtomicU64],
    statuses: &'m [AtomicU8],
}

impl<'m> Reads<'m> {
    /// Entries that a queue needs for `depth` reads in flight.
    #[must_use]
    pub fn queue_size(depth: u16) -> u16 {
        (depth * 3).next_power_of_two()
    }

    /// Makes room for `depth` reads.
    pub fn place(layout: &mut Layout, depth: u16) -> Buffers {
        let count = usize::from(depth);
        Buffers {
            headers: layout.pages(HEADER_BYTES * count),
            statuses: layout.pages(count),
            data: layout.pages(READ_BYTES * count),
            depth,
        }
    }

    /// Writes the descriptors of all reads.
    #[must_use]
    pub fn prepare(memory: &'m SharedMemory, place: QueuePlace, buffers: Buffers) -> Self {
        let depth = usize::from(buffers.depth);
        let table = memory.u64s(place.desc, 2 * CHAIN * depth);
        for read in 0..depth {
            let chain = [
                (buffers.headers + HEADER_BYTES * read, HEADER_BYTES, NEXT),
                (buffers.data + READ_BYTES * read, READ_BYTES, NEXT | WRITE),
                (buffers.statuses + read, 1, WRITE),
            ];
            for (index, (guest_addr, len, flags)) in chain.into_iter().enumerate() {
                let desc = CHAIN * read + index;
                let next = if flags & NEXT == 0 { 0 } else { desc + 1 };
                let rest = len as u64 | flags << 32 | (next as u64) << 48;
                table[2 * desc].store((guest_addr as u64).to_le(), Ordering::Relaxed);
                table[2 * desc + 1].store(rest.to_le(), Ordering::Relaxed);
            }
        }
        // VIRTIO_BLK_T_IN is 0: a header of zeroes reads the first sector.
        Reads {
            headers: memory.u64s(buffers.headers, 2 * depth),
            statuses: memory.u8s(buffers.statuses, depth),
        }
    }

    /// How many there are.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.statuses.len()
    }

    /// Makes `read` one of the `block`-th [`READ_BYTES`] of the disk. Returns its head, to push.
    #[inline]
    pub fn aim(&mut self, read: usize, block: u64) -> u16 {
        self.headers[2 * read + 1].store((block * SECTORS).to_le(), Ordering::Relaxed);
        self.statuses[read].store(PENDING, Ordering::Relaxed);
        // Below the queue's size, which is 16 bits.
        #[allow(clippy::cast_possible_truncation)]
        let head = (CHAIN * read) as u16;
        head
    }

    /// Which read completed, by its head; `None` when no read has that head or it failed.
    #[inline]
    #[must_use]
    pub fn completed(&self, head: u32) -> Option<usize> {
        let head = usize::try_from(head).ok()?;
        let read = head / CHAIN;
        let status = self.statuses.get(read)?.load(Ordering::Relaxed);
        (head.is_multiple_of(CHAIN) && status == STATUS_OK).then_some(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_of_header_data_and_status() {
        let mut layout = Layout::new();
        let place = layout.queue(Reads::queue_size(5));
        assert_eq!(place.size, 16);
        let buffers = Reads::place(&mut layout, 5);
        let memory = SharedMemory::new(layout.len_bytes()).unwrap();
        let mut reads = Reads::prepare(&memory, place, buffers);
        let head = reads.aim(4, 7);
        assert_eq!(head, 12);
        let desc = |index: u16| {
            let words = memory.u64s(place.desc + 16 * usize::from(index), 2);
            let rest = words[1].load(Ordering::Relaxed);
            let addr = usize::try_from(words[0].load(Ordering::Relaxed)).unwrap();
            (addr, rest & 0xffff_ffff, rest >> 32 & 0xffff, rest >> 48)
        };
        let (header, len, flags, next) = desc(head);
        assert_eq!((len, flags, next), (16, 1, 13));
        assert_eq!(
            memory.u64s(header, 2)[0].load(Ordering::Relaxed),
            0,
            "a read"
        );
        assert_eq!(memory.u64s(header, 2)[1].load(Ordering::Relaxed), 56);
        let (_, len, flags, next) = desc(13);
        assert_eq!((len, flags, next), (4096, 3, 14));
        let (status, len, flags, _) = desc(14);
        assert_eq!((len, flags), (1, 2));

        assert_eq!(reads.completed(12), None, "not answered");
        memory.u8s(status, 1)[0].store(0, Ordering::Relaxed);
        assert_eq!(reads.completed(12), Some(4));
        assert_eq!(reads.completed(13), None, "no head");
        assert_eq!(reads.completed(15), None, "no read");
        memory.u8s(status, 1)[0].store(1, Ordering::Relaxed);
        assert_eq!(reads.completed(12), None, "VIRTIO_BLK_S_IOERR");
    }
}
