//! Requests whose descriptors are written once: to send one again is to write its sector and push its head.
//!
//! Headers, which the server reads, are packed, and so are the status bytes, which it writes, right behind them. A cache line that
//! goes from one processor to the other is what a request costs most: with one request in flight there is one such line for both,
//! with many a line serves several. A line for each request alone was tried: fewer requests at depths 32 and 128, not more at 1 and 8.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::commands::{Commands, Kind};
use super::layout::{Layout, QueuePlace};
use super::memory::SharedMemory;
use crate::error::{Error, Result};

/// Smallest unit of the disk.
pub const SECTOR_BYTES: u32 = 512;
/// Descriptors of a request: header, data, status (virtio specification 1.2, section 5.2.6). All are in the queue itself.
pub const CHAIN: u16 = 3;
/// A flag of a descriptor (section 2.7.5): the chain goes on.
pub const NEXT: u64 = 1;
/// A flag of a descriptor: the device writes.
pub const WRITE: u64 = 2;
/// Of a descriptor, 64 bits each.
pub const DESC_WORDS: usize = 2;

/// Type and sector of a request.
const HEADER_BYTES: usize = 16;
/// Of the type, and of the header.
const SECTOR_WORD: usize = 1;
const HEADER_WORDS: usize = 2;

/// What the status byte is until the device has written it: no status of the device's.
const PENDING: u8 = 0xff;
const STATUS_OK: u8 = 0;

/// Where headers, status bytes and data of a queue's requests are.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// All headers, and all status bytes behind them.
    headers: usize,
    data: usize,
    depth: u16,
    block_bytes: u32,
}

impl Buffers {
    /// Makes room for `depth` requests, up to 256, of `block_bytes` each.
    pub fn place(layout: &mut Layout, depth: u16, block_bytes: u32) -> Self {
        let count = usize::from(depth);
        Buffers {
            headers: layout.pages((HEADER_BYTES + 1) * count),
            data: layout.pages(Layout::whole_pages(block_bytes as usize) * count),
            depth,
            block_bytes,
        }
    }
}

/// As many requests as may be in flight; each knows its place by its index.
pub struct Requests<'m> {
    headers: &'m [AtomicU64],
    statuses: &'m [AtomicU8],
    data: &'m [AtomicU64],
    /// Those of each request, one after the other.
    descriptors: &'m [AtomicU64],
    block_bytes: u32,
    kinds: Vec<Kind>,
}

impl<'m> Requests<'m> {
    /// Writes the descriptors of all requests, as reads.
    #[must_use]
    pub fn prepare(memory: &'m SharedMemory, place: QueuePlace, buffers: Buffers) -> Self {
        let Buffers {
            headers,
            data,
            depth,
            block_bytes,
        } = buffers;
        let depth = usize::from(depth);
        let stride = Layout::whole_pages(block_bytes as usize);
        let statuses = headers + HEADER_BYTES * depth;
        let mut requests = Requests {
            headers: memory.u64s(headers, HEADER_WORDS * depth),
            statuses: memory.u8s(statuses, depth),
            data: memory.u64s(data, stride / 8 * depth),
            descriptors: memory.u64s(place.desc, DESC_WORDS * usize::from(CHAIN) * depth),
            block_bytes,
            kinds: vec![Kind::Read; depth],
        };
        for slot in 0..depth {
            let first = slot * usize::from(CHAIN);
            let [_, second, third] = requests.chain_of(slot);
            describe(
                second,
                data + stride * slot,
                block_bytes as usize,
                NEXT,
                first + 2,
            );
            describe(third, statuses + slot, 1, WRITE, 0);
            let [header, ..] = requests.chain_of(slot);
            describe(
                header,
                headers + HEADER_BYTES * slot,
                HEADER_BYTES,
                NEXT,
                first + 1,
            );
            requests.turn(slot, Kind::Read);
        }
        requests
    }

    fn chain_of(&self, slot: usize) -> [&'m [AtomicU64]; CHAIN as usize] {
        let first = usize::from(CHAIN) * slot;
        [first, first + 1, first + 2]
            .map(|index| &self.descriptors[DESC_WORDS * index..DESC_WORDS * (index + 1)])
    }

    /// Makes it a request of another kind: while it runs, in mixed loads only.
    #[inline(never)]
    fn turn(&mut self, slot: usize, kind: Kind) {
        let (request_type, data_flags): (u64, _) = match kind {
            Kind::Read => (0, NEXT | WRITE),
            Kind::Write => (1, NEXT),
            Kind::Flush => (4, NEXT),
        };
        self.headers[HEADER_WORDS * slot].store(request_type.to_le(), Ordering::Relaxed);
        let [header, data, _] = self.chain_of(slot);
        // A flush has no data: from its header to its status byte.
        let next = usize::from(CHAIN) * slot + if kind == Kind::Flush { 2 } else { 1 };
        let link = HEADER_BYTES as u64 | NEXT << 32 | (next as u64) << 48;
        header[1].store(link.to_le(), Ordering::Relaxed);
        let word = u64::from_le(data[1].load(Ordering::Relaxed));
        let word = word & !(0xffff << 32) | data_flags << 32;
        data[1].store(word.to_le(), Ordering::Relaxed);
        self.kinds[slot] = kind;
    }

    #[cold]
    fn failed(&self, slot: usize, status: u8) -> Error {
        let sector = self.headers[HEADER_WORDS * slot + SECTOR_WORD].load(Ordering::Relaxed);
        let offset = u64::from_le(sector) * u64::from(SECTOR_BYTES);
        let how = match status {
            1 => "failed: the server says VIRTIO_BLK_S_IOERR",
            2 => "failed: the server says VIRTIO_BLK_S_UNSUPP",
            PENDING => "came back without a status",
            _ => "came back with a status that there is not",
        };
        let (kind, bytes) = (self.kinds[slot], self.block_bytes);
        Error::Requests(format!("{kind:?} of {bytes} bytes at {offset} {how}"))
    }
}

impl Commands for Requests<'_> {
    fn depth(&self) -> u16 {
        u16::try_from(self.kinds.len()).unwrap_or(u16::MAX)
    }

    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    #[inline]
    fn kind(&self, slot: usize) -> Kind {
        self.kinds[slot]
    }

    fn data(&self, slot: usize) -> &[AtomicU64] {
        let bytes = self.block_bytes as usize;
        &self.data[Layout::whole_pages(bytes) / 8 * slot..][..bytes / 8]
    }

    #[inline]
    fn aim(&mut self, slot: usize, kind: Kind, sector: u64) -> u16 {
        if self.kinds[slot] != kind {
            self.turn(slot, kind);
        }
        self.headers[HEADER_WORDS * slot + SECTOR_WORD].store(sector.to_le(), Ordering::Relaxed);
        self.statuses[slot].store(PENDING, Ordering::Relaxed);
        // Below the queue's size, which is 16 bits.
        #[allow(clippy::cast_possible_truncation)]
        let head = slot as u16 * CHAIN;
        head
    }

    #[inline]
    fn completed(&self, head: u32) -> Result<usize> {
        let slot = head as usize / usize::from(CHAIN);
        if slot >= self.kinds.len() || !head.is_multiple_of(u32::from(CHAIN)) {
            return Err(no_request(head));
        }
        match self.statuses[slot].load(Ordering::Relaxed) {
            STATUS_OK => Ok(slot),
            status => Err(self.failed(slot, status)),
        }
    }
}

/// The server's mistake.
#[cold]
#[must_use]
pub fn no_request(head: u32) -> Error {
    Error::Requests(format!(
        "the server completed a request with head {head}, which there is not"
    ))
}

/// Writes a descriptor. `next` counts with [`NEXT`] only.
pub fn describe(entry: &[AtomicU64], guest_addr: usize, len: usize, flags: u64, next: usize) {
    let next = if flags & NEXT == 0 { 0 } else { next };
    let rest = len as u64 | flags << 32 | (next as u64) << 48;
    entry[0].store((guest_addr as u64).to_le(), Ordering::Relaxed);
    entry[1].store(rest.to_le(), Ordering::Relaxed);
}
