//! Commands of a virtio SCSI controller's queue, as [`bench::client::Requests`] are of a virtio disk's: descriptors are written once, and
//! to send one again is to write its block's address and push its head. Virtio specification 1.2, section 5.6.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};

use bench::Result;
use bench::client::{
    CHAIN, Commands, DESC_WORDS, Kind, Layout, NEXT, QueuePlace, SECTOR_BYTES, SharedMemory, WRITE,
    describe, no_request,
};

use crate::scsi_commands::{LBA_AT, failed, transfer_cdb};

/// The first queue that takes commands: before it are the control queue and the event queue.
pub(crate) const FIRST_REQUEST_QUEUE: u8 = 2;

/// How far requests of Linux are apart at least.
const REQUEST_STRIDE: usize = 256;

/// LUN, tag, attribute, priority, reference number; and a CDB of the default length.
const HEADER_BYTES: usize = 19;
const REQUEST_BYTES: usize = HEADER_BYTES + 32;
/// Request and response are in one piece, where Linux's driver has them in its own.
const REQUEST_AT: usize = 16;
const CDB_AT: usize = REQUEST_AT + HEADER_BYTES;
const RESPONSE_AT: usize = 68;

/// Lengths of sense and data, status qualifier, status, response; and sense data of the default length.
const RESPONSE_BYTES: usize = 12 + 96;
/// Status and response, as one word.
const STATUS_AT: usize = RESPONSE_AT + 10;
const _: () =
    assert!(STATUS_AT.is_multiple_of(2) && RESPONSE_AT + RESPONSE_BYTES <= REQUEST_STRIDE);
/// Until the device has written both.
const PENDING: u16 = 0xffff;

/// Where requests, responses and data are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScsiBuffers {
    requests: usize,
    data: usize,
    depth: u16,
    block_bytes: u32,
}

impl ScsiBuffers {
    /// Room for `depth` commands of `block_bytes`.
    pub fn place(layout: &mut Layout, depth: u16, block_bytes: u32) -> Self {
        let count = usize::from(depth);
        ScsiBuffers {
            requests: layout.pages(REQUEST_STRIDE * count),
            data: layout.pages(stride(block_bytes) * count),
            depth,
            block_bytes,
        }
    }

    /// Entries that the queue needs.
    #[must_use]
    pub fn queue_size(depth: u16) -> u16 {
        (depth * CHAIN).next_power_of_two()
    }
}

fn stride(block_bytes: u32) -> usize {
    Layout::whole_pages(block_bytes as usize)
}

/// As many commands as may be in flight, all for target 0, LUN 0.
pub(crate) struct VirtioScsi<'m> {
    descriptors: &'m [AtomicU64],
    requests: &'m [AtomicU8],
    /// The same memory.
    responses: &'m [AtomicU16],
    data: &'m [AtomicU64],
    buffers: ScsiBuffers,
    kinds: Vec<Kind>,
}

impl<'m> VirtioScsi<'m> {
    /// Writes the descriptors of all commands, as reads.
    #[must_use]
    pub fn prepare(memory: &'m SharedMemory, place: QueuePlace, buffers: ScsiBuffers) -> Self {
        let depth = usize::from(buffers.depth);
        let mut commands = VirtioScsi {
            descriptors: memory.u64s(place.desc, DESC_WORDS * usize::from(CHAIN) * depth),
            requests: memory.u8s(buffers.requests, REQUEST_STRIDE * depth),
            responses: memory.u16s(buffers.requests, REQUEST_STRIDE / 2 * depth),
            data: memory.u64s(buffers.data, stride(buffers.block_bytes) / 8 * depth),
            buffers,
            kinds: vec![Kind::Read; depth],
        };
        // Target 0, LUN 0, by the flat space of addresses (5.6.6.1).
        let lun = [1, 0, 0x40, 0, 0, 0, 0, 0];
        for (slot, request) in commands.requests.chunks_exact(REQUEST_STRIDE).enumerate() {
            let tag = (slot as u64).to_le_bytes();
            for (cell, byte) in request[REQUEST_AT..].iter().zip(lun.into_iter().chain(tag)) {
                cell.store(byte, Ordering::Relaxed);
            }
        }
        for slot in 0..depth {
            commands.turn(slot, Kind::Read);
        }
        commands
    }

    /// Makes it a command of another kind: its CDB, and its chain, in which what the device reads comes before what it writes.
    #[inline(never)]
    fn turn(&mut self, slot: usize, kind: Kind) {
        let bytes = self.buffers.block_bytes;
        // A slot is no longer than data segments may be: see `Shape`.
        let cdb = transfer_cdb(
            kind,
            u16::try_from(bytes / SECTOR_BYTES).unwrap_or(u16::MAX),
        );
        let request = &self.requests[REQUEST_STRIDE * slot + CDB_AT..][..32];
        for (index, cell) in request.iter().enumerate() {
            cell.store(cdb.get(index).copied().unwrap_or(0), Ordering::Relaxed);
        }
        let base = slot * usize::from(CHAIN);
        let at = self.buffers.requests + REQUEST_STRIDE * slot;
        let data = self.buffers.data + stride(bytes) * slot;
        let mut chain = vec![(at + REQUEST_AT, REQUEST_BYTES, 0)];
        let response = (at + RESPONSE_AT, RESPONSE_BYTES, WRITE);
        chain.extend(match kind {
            Kind::Write => [(data, bytes as usize, 0), response],
            _ => [response, (data, bytes as usize, WRITE)],
        });
        let entries = self.descriptors[DESC_WORDS * base..].chunks_exact(DESC_WORDS);
        let last = chain.len() - 1;
        for (index, (entry, (addr, len, flags))) in entries.zip(chain).enumerate() {
            let next = if index < last { NEXT } else { 0 };
            describe(entry, addr, len, flags | next, base + index + 1);
        }
        self.kinds[slot] = kind;
    }

    #[inline]
    fn response(&self, slot: usize) -> &AtomicU16 {
        &self.responses[(REQUEST_STRIDE * slot + STATUS_AT) / 2]
    }

    #[inline]
    fn lba(&self, slot: usize) -> &[AtomicU8; 4] {
        let bytes = &self.requests[REQUEST_STRIDE * slot + CDB_AT + LBA_AT..];
        bytes.first_chunk().expect("a slot is longer")
    }
}

impl Commands for VirtioScsi<'_> {
    fn depth(&self) -> u16 {
        self.buffers.depth
    }

    fn block_bytes(&self) -> u32 {
        self.buffers.block_bytes
    }

    #[inline]
    fn kind(&self, slot: usize) -> Kind {
        self.kinds[slot]
    }

    fn data(&self, slot: usize) -> &[AtomicU64] {
        let words = stride(self.buffers.block_bytes) / 8;
        &self.data[words * slot..][..self.buffers.block_bytes as usize / 8]
    }

    #[inline]
    fn aim(&mut self, slot: usize, kind: Kind, sector: u64) -> u16 {
        if self.kinds[slot] != kind {
            self.turn(slot, kind);
        }
        // Disks of 2 TiB and more are not measured.
        #[allow(clippy::cast_possible_truncation)]
        let lba = sector as u32;
        for (cell, byte) in self.lba(slot).iter().zip(lba.to_be_bytes()) {
            cell.store(byte, Ordering::Relaxed);
        }
        self.response(slot).store(PENDING, Ordering::Relaxed);
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
        match self.response(slot).load(Ordering::Relaxed) {
            0 => Ok(slot),
            answer => Err(failed(answer.into())),
        }
    }
}
