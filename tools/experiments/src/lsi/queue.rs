//! The two queues between a driver and its SCRIPTS.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use bench::Result;
use bench::client::{Queue, SharedMemory};
use lsi_driver::assemble::Program;
use lsi_driver::offsets::{DSP, ISTAT0};
use lsi_driver::program::{BLOCKS, DONE_QUEUE, IDLE, QUEUE_ROOM, START_QUEUE, registers, tables};

use super::slot::Slot;

/// ISTAT0: the driver has something for SCRIPTS.
const SIGP: u8 = 0x20;

const BLOCK_BYTES: u32 = 0x100;
const ROOM: usize = QUEUE_ROOM as usize;

/// The chip, running.
pub(crate) struct ChipQueue<'m> {
    slot: Slot,
    start: &'m [AtomicU32],
    done: &'m [AtomicU32],
    /// Entries that are used next.
    queued: usize,
    taken: usize,
}

impl<'m> ChipQueue<'m> {
    /// Starts `program` on the chip.
    pub fn start(slot: Slot, memory: &'m SharedMemory, program: &Program) -> Result<Self> {
        for (addr, word) in tables(program) {
            memory.u32s(addr as usize, 1)[0].store(word.to_le(), Ordering::Relaxed);
        }
        let queue = |at: u32, empty: u32| {
            let entries = memory.u32s(at as usize, 2 * ROOM);
            for (index, entry) in (1..).zip(entries.chunks_exact(2)) {
                let next = at + 8 * (index % QUEUE_ROOM);
                entry[0].store(empty.to_le(), Ordering::Relaxed);
                entry[1].store(next.to_le(), Ordering::Relaxed);
            }
            entries
        };
        let (start, done) = (queue(START_QUEUE, IDLE), queue(DONE_QUEUE, 0));
        slot.load(&program.bytes());
        for (register, bytes, value) in registers(program) {
            slot.post(register, &value.to_le_bytes()[..bytes])?;
        }
        slot.post(DSP, &program.address("start").to_le_bytes())?;
        Ok(ChipQueue {
            slot,
            start,
            done,
            queued: 0,
            taken: 0,
        })
    }
}

fn after(index: usize) -> usize {
    if index + 1 == ROOM { 0 } else { index + 1 }
}

impl Queue for ChipQueue<'_> {
    fn call_fd(&self) -> BorrowedFd<'_> {
        self.slot.socket()
    }

    /// Tells SCRIPTS of each, as Linux does.
    #[inline]
    fn push(&mut self, head: u16) -> Result<()> {
        let next = after(self.queued);
        self.start[2 * next].store(IDLE.to_le(), Ordering::Relaxed);
        let block = BLOCKS + BLOCK_BYTES * u32::from(head);
        self.start[2 * self.queued].store(block.to_le(), Ordering::Release);
        self.queued = next;
        self.slot.post(ISTAT0, &[SIGP])
    }

    #[inline]
    fn publish(&mut self) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn completed(&self) -> u16 {
        let mut at = self.taken;
        let mut count = 0;
        while self.done[2 * at].load(Ordering::Acquire) != 0 {
            at = after(at);
            count += 1;
        }
        count
    }

    #[inline]
    fn pop(&mut self) -> u32 {
        let entry = &self.done[2 * self.taken];
        let block = u32::from_le(entry.load(Ordering::Relaxed));
        entry.store(0, Ordering::Relaxed);
        self.taken = after(self.taken);
        block.wrapping_sub(BLOCKS) / BLOCK_BYTES
    }

    fn suppress_calls(&mut self) {}

    fn request_call(&mut self) -> bool {
        self.completed() > 0
    }

    fn called(&mut self) -> Result<()> {
        Ok(())
    }
}
