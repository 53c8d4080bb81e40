//! The data phase: block moves name guest memory, and a task collects it.
//!
//! Mapped memory becomes a segment as it is. What is not mapped (memory that is not shared, or the chip's own
//! windows) has a bounce buffer: filled when it is collected, for data to the target; written back before the
//! status, for data from it.

use std::mem;

use libc::iovec;

use crate::chip::core::Chip;
use crate::chip::memory::CHUNK;
use crate::chip::ports::{Bus, Refusal, Targets, TaskId};
use crate::chip::scripts::Pause;
use crate::chip::tasks::MAX_SEGMENTS;

/// Bounce buffers in one task.
const MAX_BOUNCES: usize = 256;

/// Bytes of bounce buffers in all tasks together.
const MAX_BOUNCED_BYTES: usize = 16 << 20;

/// A piece of guest memory without a mapping.
struct Bounce {
    addr: u64,
    bytes: Vec<u8>,
}

/// Host memory in pieces.
#[derive(Default)]
struct Segments(Vec<iovec>);

// SAFETY: addresses of memory that the owner of the chip keeps for the task, and of the task's own bounce
// buffers; they are not followed here, and move between threads only with the chip.
unsafe impl Send for Segments {}

/// A task's data.
#[derive(Default)]
pub struct Data {
    pub to_initiator: bool,
    wanted: u64,
    collected: u64,
    segments: Segments,
    bounces: Vec<Bounce>,
    /// Bytes in all of these.
    bounced: usize,
    /// How many of them were written back.
    written_back: usize,
    /// Guest memory that was collected has gone.
    lost: bool,
}

impl Data {
    /// A target wants to move this much.
    pub fn expect(&mut self, to_initiator: bool, wanted: u64) {
        self.to_initiator = to_initiator;
        self.wanted = wanted;
    }

    /// For the slot's next task. A list that grew large is not kept. Gives how many bytes were in bounce buffers.
    pub fn clear(&mut self) -> usize {
        self.segments.0.clear();
        self.segments.0.shrink_to(MAX_SEGMENTS / 16);
        self.bounces = Vec::new();
        (self.wanted, self.collected, self.written_back) = (0, 0, 0);
        self.lost = false;
        mem::take(&mut self.bounced)
    }

    /// Guest memory goes away: none of it may be used any more. Gives how many bytes were in bounce buffers.
    pub fn drop_memory(&mut self) -> usize {
        if self.segments.0.is_empty() {
            return 0;
        }
        self.segments.0.clear();
        self.bounces.clear();
        self.lost = true;
        mem::take(&mut self.bounced)
    }

    fn is_complete(&self) -> bool {
        self.collected == self.wanted
    }

    /// One more piece, joined to the last if it goes on there.
    fn push(&mut self, base: *mut libc::c_void, len: usize) {
        self.collected += len as u64;
        if let Some(last) = self.segments.0.last_mut()
            && last.iov_base.wrapping_byte_add(last.iov_len) == base
        {
            last.iov_len += len;
            return;
        }
        self.segments.0.push(iovec {
            iov_base: base,
            iov_len: len,
        });
    }

    fn is_full(&self) -> bool {
        self.segments.0.len() == MAX_SEGMENTS || self.bounces.len() == MAX_BOUNCES
    }

    /// What the target is given.
    pub fn collected(&mut self) -> (&mut [iovec], u64) {
        (&mut self.segments.0, self.collected)
    }

    pub fn moved_any(&self) -> bool {
        self.collected > 0
    }
}

impl Chip {
    /// The connected task's data phase goes on with guest memory at `addr`, at most `left` bytes. Returns how many it took, 0 when the
    /// target has left the data phase.
    pub(crate) fn collect<H: Bus + Targets>(
        &mut self,
        host: &mut H,
        addr: u64,
        left: usize,
    ) -> Result<usize, Pause> {
        let Some(id) = self.connection().and_then(|connection| connection.task) else {
            return Ok(0);
        };
        let Some(task) = self.tasks.get(id) else {
            return Ok(0);
        };
        if task.data.lost {
            self.refuse(host, Refusal::DataPhase);
            return Ok(0);
        }
        let (wanted, to_initiator) = (
            task.data.wanted - task.data.collected,
            task.data.to_initiator,
        );
        let most = left.min(usize::try_from(wanted).unwrap_or(usize::MAX));
        let mapped = if self.is_own(addr) {
            None
        } else {
            host.map(addr, most, to_initiator)
        };
        let (base, len) = match mapped {
            Some((base, len)) => (base.as_ptr().cast(), len.min(most)),
            None if self.tasks.bounced >= MAX_BOUNCED_BYTES => {
                self.refuse(host, Refusal::DataPhase);
                return Ok(0);
            }
            None => self.bounce(host, id, addr, most, to_initiator)?,
        };
        let Some(task) = self.tasks.get_mut(id) else {
            return Ok(0);
        };
        task.data.push(base, len);
        if task.data.is_complete() {
            self.run_task(host, id);
        } else if task.data.is_full() {
            self.refuse(host, Refusal::DataPhase);
        }
        Ok(len)
    }

    /// A bounce buffer for what begins at `addr`.
    fn bounce<H: Bus>(
        &mut self,
        host: &mut H,
        id: TaskId,
        addr: u64,
        most: usize,
        to_initiator: bool,
    ) -> Result<(*mut libc::c_void, usize), Pause> {
        // Windows and mappings begin and end at these borders.
        let border = if self.is_own(addr) {
            0x400
        } else {
            CHUNK as u64
        };
        let len = most.min(usize::try_from(border - addr % border).expect("a page"));
        let mut bytes = vec![0; len];
        if !to_initiator {
            self.load(host, addr, &mut bytes)?;
        }
        let base = bytes.as_mut_ptr().cast();
        let task = self.tasks.get_mut(id).ok_or(Pause::Stopped)?;
        task.data.bounces.push(Bounce { addr, bytes });
        task.data.bounced += len;
        self.tasks.bounced += len;
        Ok((base, len))
    }

    /// Writes bounce buffers of data from the target back to where the guest wants it.
    pub(crate) fn write_back<H: Bus>(&mut self, host: &mut H, id: TaskId) -> Result<(), Pause> {
        while let Some(task) = self.tasks.get_mut(id)
            && task.data.to_initiator
            && let Some(bounce) = task.data.bounces.get_mut(task.data.written_back)
        {
            let (addr, bytes) = (bounce.addr, mem::take(&mut bounce.bytes));
            let stored = self.store(host, addr, &bytes);
            if let Some(task) = self.tasks.get_mut(id) {
                match stored {
                    Ok(()) => task.data.written_back += 1,
                    Err(_) => task.data.bounces[task.data.written_back].bytes = bytes,
                }
            }
            stored?;
            // What was stored may have been a register, and a reset.
            if !self.connected() {
                return Err(Pause::Stopped);
            }
        }
        if self.waits_for_memory() {
            Err(Pause::Memory)
        } else {
            Ok(())
        }
    }
}
