//! Control blocks: a command each, as the driver's SCRIPTS want it.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use bench::Result;
use bench::client::{Commands, Kind, Layout, SECTOR_BYTES, SharedMemory, no_request};
use lsi_driver::assemble::Program;
use lsi_driver::program::{
    BLOCKS, BUFFERS, CDB, COMMAND_ENTRY, DATA, GO_RESTART, GO_START, MESSAGE_BYTES, MSG_OUT_ENTRY,
    PIECES, SAVED_POINTER, SELECT, STATUS_WORD, TAGS, TARGETS, UNITS,
};

use crate::scsi_commands::{LBA_AT, failed, transfer_cdb};

const BLOCK_BYTES: u32 = 0x100;
const BLOCK_WORDS: usize = 0x100 / 4;

/// The command begins here, so that the block's address in it is aligned.
const COMMAND_AT: u32 = CDB + 2;
const LBA_WORD: usize = (COMMAND_AT as usize + LBA_AT) / 4;
const _: () = assert!((COMMAND_AT as usize + LBA_AT).is_multiple_of(4));
const POINTER_WORD: usize = SAVED_POINTER as usize / 4;
const STATUS: usize = STATUS_WORD as usize / 4;

/// In the status word: SCRIPTS have not been there.
const PENDING: u32 = 0xffff;
/// Completed, and GOOD status.
const GOOD: u32 = 1;

/// IDENTIFY of unit 0, with the right to disconnect and without; SIMPLE QUEUE TAG.
const IDENTIFY: u8 = 0xc0;
const IDENTIFY_AND_STAY: u8 = 0x80;
const SIMPLE_TAG: u8 = 0x20;

/// Who has the SCSI bus while the disk works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bus {
    /// No target keeps the bus: each disconnects and reselects.
    Shared,
    /// A target that writes: nothing else goes on until it is done.
    HeldByWrites,
}

/// As many commands as may be in flight, all for target 0, LUN 0.
pub(crate) struct ControlBlocks<'m> {
    words: &'m [AtomicU32],
    bytes: &'m [AtomicU8],
    data: &'m [AtomicU64],
    kinds: Vec<Kind>,
    block_bytes: u32,
    bus: Bus,
    /// Of the program: where SCRIPTS move data, by direction.
    data_in: u32,
    data_out: u32,
}

impl<'m> ControlBlocks<'m> {
    /// Memory for `depth` commands of `block_bytes`, and for the driver's SCRIPTS.
    #[must_use]
    pub fn memory_bytes(depth: u16, block_bytes: u32) -> usize {
        BUFFERS as usize + stride(block_bytes) * usize::from(depth)
    }

    /// Writes all of them, as reads; at most 64: tags have six bits in these SCRIPTS.
    pub fn prepare(
        memory: &'m SharedMemory,
        program: &Program,
        depth: u16,
        block_bytes: u32,
        bus: Bus,
    ) -> Self {
        let count = usize::from(depth);
        let base = BLOCKS as usize;
        // The last entry of a list.
        let last = 8 * (PIECES - 1);
        let mut blocks = ControlBlocks {
            words: memory.u32s(base, BLOCK_WORDS * count),
            bytes: memory.u8s(base, BLOCK_BYTES as usize * count),
            data: memory.u64s(BUFFERS as usize, stride(block_bytes) / 8 * count),
            kinds: vec![Kind::Read; count],
            block_bytes,
            bus,
            data_in: program.address("data_in") + last,
            data_out: program.address("data_out") + last,
        };
        // Reselections of target 0, LUN 0 find the command by its tag.
        let poke = |addr: u32, word: u32| {
            memory.u32s(addr as usize, 1)[0].store(word.to_le(), Ordering::Relaxed);
        };
        poke(TARGETS, UNITS);
        poke(UNITS, program.address("tagged"));
        poke(UNITS + 4, TAGS);
        for slot in 0..depth {
            let block = address(slot.into());
            poke(TAGS + 4 * u32::from(slot), block);
            poke(block + SELECT, 0);
            poke(block + GO_START, program.address("select"));
            poke(block + GO_RESTART, program.address("restart"));
            blocks.turn(slot.into(), Kind::Read);
        }
        blocks
    }

    fn word(&self, slot: usize, index: usize) -> &AtomicU32 {
        &self.words[BLOCK_WORDS * slot + index]
    }

    /// Makes it a command of another kind.
    #[inline(never)]
    fn turn(&mut self, slot: usize, kind: Kind) {
        let blocks = u16::try_from(self.block_bytes / SECTOR_BYTES).unwrap_or(u16::MAX);
        let cdb = transfer_cdb(kind, blocks);
        let is_held = self.bus == Bus::HeldByWrites && kind == Kind::Write;
        let tag = u8::try_from(slot).unwrap_or(u8::MAX);
        let message: &[u8] = match is_held {
            true => &[IDENTIFY_AND_STAY],
            false => &[IDENTIFY, SIMPLE_TAG, tag << 1 | 1],
        };
        for (entry, bytes_at, bytes) in [
            (MSG_OUT_ENTRY, MESSAGE_BYTES, message),
            (COMMAND_ENTRY, COMMAND_AT, &cdb[..]),
        ] {
            let at = BLOCK_BYTES as usize * slot + bytes_at as usize;
            for (cell, byte) in self.bytes[at..].iter().zip(bytes) {
                cell.store(*byte, Ordering::Relaxed);
            }
            let len = u32::try_from(bytes.len()).unwrap_or(0);
            self.poke_entry(slot, entry, len, address(slot) + bytes_at);
        }
        let data = BUFFERS as usize + stride(self.block_bytes) * slot;
        // What one guest has here is far below 4 GiB.
        let data = u32::try_from(data).unwrap_or(0);
        self.poke_entry(slot, DATA + 8 * (PIECES - 1), self.block_bytes, data);
        self.kinds[slot] = kind;
    }

    /// Writes length and address, of which lists are made.
    fn poke_entry(&self, slot: usize, offset: u32, len: u32, addr: u32) {
        let words = &self.words[BLOCK_WORDS * slot + offset as usize / 4..];
        words[0].store(len.to_le(), Ordering::Relaxed);
        words[1].store(addr.to_le(), Ordering::Relaxed);
    }
}

fn stride(block_bytes: u32) -> usize {
    Layout::whole_pages(block_bytes as usize)
}

fn address(slot: usize) -> u32 {
    BLOCKS + BLOCK_BYTES * u32::try_from(slot).unwrap_or(0)
}

impl Commands for ControlBlocks<'_> {
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
        let words = stride(self.block_bytes) / 8;
        &self.data[words * slot..][..self.block_bytes as usize / 8]
    }

    #[inline]
    fn aim(&mut self, slot: usize, kind: Kind, sector: u64) -> u16 {
        if self.kinds[slot] != kind {
            self.turn(slot, kind);
        }
        // Disks of 2 TiB and more are not measured, and slots are few.
        #[allow(clippy::cast_possible_truncation)]
        let (lba, head) = (sector as u32, slot as u16);
        self.word(slot, LBA_WORD)
            .store(lba.to_be(), Ordering::Relaxed);
        let pointer = match kind {
            Kind::Write => self.data_out,
            _ => self.data_in,
        };
        // To be sent from its beginning.
        self.word(slot, POINTER_WORD)
            .store(pointer.to_le(), Ordering::Relaxed);
        self.word(slot, STATUS)
            .store(PENDING.to_le(), Ordering::Relaxed);
        head
    }

    #[inline]
    fn completed(&self, head: u32) -> Result<usize> {
        let slot = head as usize;
        if slot >= self.kinds.len() {
            return Err(no_request(head));
        }
        let status = self.word(slot, STATUS).load(Ordering::Relaxed);
        match u32::from_le(status) & 0xffff {
            GOOD => Ok(slot),
            word => Err(failed(word)),
        }
    }
}
