//! Requests whose descriptors are written once: to send one again is to write its sector and push
//! its head.
//!
//! Unless they are to lie [apart](super::Placement), headers, which the server reads, are packed, and so are the status bytes,
//! which it writes, right behind them. A cache line that goes from one processor to the other is what a request costs most:
//! with one request in flight there is one such line for both, with many a line serves several.
//! A line for each request alone was tried: fewer requests at depths 32 and 128, not more at 1 and 8.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::commands::Commands;
use super::layout::QueuePlace;
use super::memory::SharedMemory;
use super::shape::{Buffers, CHAIN, Form, HEADER_BYTES, Shape};
use crate::error::{Error, Result};

/// Smallest unit of the disk.
pub const SECTOR_BYTES: u32 = 512;

/// In a header: type, then sector.
const SECTOR_WORD: usize = 1;

/// Request types.
const T_IN: u64 = 0;
const T_OUT: u64 = 1;
const T_FLUSH: u64 = 4;
const T_DISCARD: u64 = 11;

/// A flag of a descriptor (section 2.7.5): the chain goes on.
pub const NEXT: u64 = 1;
/// A flag of a descriptor: the device writes.
pub const WRITE: u64 = 2;
/// Of a descriptor, 64 bits each.
pub const DESC_WORDS: usize = 2;

/// What the status byte is until the device has written it: no status of the device's.
const PENDING: u8 = 0xff;
const STATUS_OK: u8 = 0;
const STATUS_IOERR: u8 = 1;
const STATUS_UNSUPP: u8 = 2;

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

/// As many requests as may be in flight; each knows its place by its index.
pub struct Requests<'m> {
    shape: Shape,
    headers: &'m [AtomicU64],
    statuses: &'m [AtomicU8],
    /// From one request's header to the next one's, in words, and status byte, in bytes.
    strides: (usize, usize),
    data: &'m [AtomicU64],
    /// Those of each request, one after the other.
    descriptors: &'m [AtomicU64],
    kinds: Vec<Kind>,
}

impl<'m> Requests<'m> {
    /// Writes the descriptors of all requests, as reads.
    #[must_use]
    pub fn prepare(
        memory: &'m SharedMemory,
        place: QueuePlace,
        buffers: Buffers,
        shape: Shape,
    ) -> Self {
        let depth = usize::from(shape.depth);
        let (header_stride, status_stride) = shape.strides();
        let mut requests = Requests {
            shape,
            headers: memory.u64s(buffers.headers, header_stride / 8 * depth),
            statuses: memory.u8s(
                buffers.headers + shape.status_at(),
                status_stride * (depth - 1) + 1,
            ),
            strides: (header_stride / 8, status_stride),
            data: memory.u64s(buffers.data, shape.data_stride() / 8 * depth),
            descriptors: memory.u64s(place.desc, DESC_WORDS * usize::from(CHAIN) * depth),
            kinds: vec![Kind::Write; depth],
        };
        for slot in 0..depth {
            requests.describe_chain(slot, buffers);
            requests.turn(slot, Kind::Read);
        }
        requests
    }

    fn describe_chain(&self, slot: usize, buffers: Buffers) {
        let (header_stride, status_stride) = self.shape.strides();
        let header = buffers.headers + header_stride * slot;
        let status = buffers.headers + self.shape.status_at() + status_stride * slot;
        let data = buffers.data + self.shape.data_stride() * slot + self.shape.data_offset();
        let [first, second, third] = self.chain_of(slot);
        let next = usize::from(CHAIN) * slot + 1;
        describe(first, header, HEADER_BYTES, NEXT, next);
        describe(
            second,
            data,
            self.shape.data_bytes() as usize,
            NEXT,
            next + 1,
        );
        describe(third, status, 1, WRITE, 0);
    }

    fn chain_of(&self, slot: usize) -> [&'m [AtomicU64]; CHAIN as usize] {
        let first = usize::from(CHAIN) * slot;
        [first, first + 1, first + 2]
            .map(|index| &self.descriptors[DESC_WORDS * index..DESC_WORDS * (index + 1)])
    }

    /// Makes it a request of another kind: while it runs, in mixed loads only.
    #[inline(never)]
    fn turn(&mut self, slot: usize, kind: Kind) {
        let (request_type, data_flags) = match kind {
            Kind::Read => (T_IN, NEXT | WRITE),
            Kind::Write if self.shape.form == Form::Discards => (T_DISCARD, NEXT),
            Kind::Write => (T_OUT, NEXT),
            Kind::Flush => (T_FLUSH, NEXT),
        };
        self.headers[self.strides.0 * slot].store(request_type.to_le(), Ordering::Relaxed);
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
        let sector = self.headers[self.strides.0 * slot + SECTOR_WORD].load(Ordering::Relaxed);
        let offset = u64::from_le(sector) * u64::from(SECTOR_BYTES);
        let how = match status {
            STATUS_IOERR => "failed: the server says VIRTIO_BLK_S_IOERR".to_owned(),
            STATUS_UNSUPP => "failed: the server says VIRTIO_BLK_S_UNSUPP".to_owned(),
            PENDING => "came back without a status".to_owned(),
            other => format!("came back with status {other}, which there is not"),
        };
        let what = match self.kinds[slot] {
            Kind::Read => "read",
            Kind::Write if self.shape.form == Form::Discards => "discard",
            Kind::Write => "write",
            Kind::Flush => return Error::Requests(format!("a flush {how}")),
        };
        let bytes = self.shape.block_bytes;
        Error::Requests(format!("a {what} of {bytes} bytes at {offset} {how}"))
    }
}

impl Commands for Requests<'_> {
    fn depth(&self) -> u16 {
        self.shape.depth
    }

    fn block_bytes(&self) -> u32 {
        self.shape.block_bytes
    }

    #[inline]
    fn kind(&self, slot: usize) -> Kind {
        self.kinds[slot]
    }

    fn data(&self, slot: usize) -> &[AtomicU64] {
        let stride = self.shape.data_stride() / 8;
        &self.data[stride * slot..stride * slot + self.shape.data_bytes() as usize / 8]
    }

    #[inline]
    fn aim(&mut self, slot: usize, kind: Kind, sector: u64) -> u16 {
        if self.kinds[slot] != kind {
            self.turn(slot, kind);
        }
        let (header, status) = (self.strides.0 * slot, self.strides.1 * slot);
        self.headers[header + SECTOR_WORD].store(sector.to_le(), Ordering::Relaxed);
        self.statuses[status].store(PENDING, Ordering::Relaxed);
        if self.shape.form == Form::Discards {
            let sectors = u64::from(self.shape.block_bytes / SECTOR_BYTES);
            for (word, value) in self.data(slot).iter().zip([sector, sectors]) {
                word.store(value.to_le(), Ordering::Relaxed);
            }
        }
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
        let status = self.statuses[self.strides.1 * slot].load(Ordering::Relaxed);
        if status != STATUS_OK {
            return Err(self.failed(slot, status));
        }
        Ok(slot)
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
