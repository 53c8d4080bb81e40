//! The data phase: collects the guest memory of block moves as the segments of a task, and bounce buffers where it is
//! not mapped.
//!
//! Mapped memory becomes a segment as it is. What is not mapped (memory that is not shared, or the chip's own
//! windows) has a bounce buffer: filled when it is collected, for data to the target; written back before the
//! status, for data from it.

use std::mem;

use libc::iovec;

use crate::chip::Chip;
use crate::chip::host_traits::{CheckConditionCause, PciBus, Targets, TaskSlotId};
use crate::chip::memory_access::MAX_ACCESS_BYTES;
use crate::chip::pause_reason::PauseReason;

/// Most segments of one task.
pub const MAX_SEGMENTS: usize = 4096;

/// Bounce buffers in one task.
const MAX_BOUNCES: usize = 256;

/// Bytes of bounce buffers in all tasks together.
const MAX_BOUNCE_BYTES: usize = 16 << 20;

/// A piece of guest memory without a mapping.
struct BounceBuffer {
    addr: u64,
    bytes: Vec<u8>,
}

/// Host memory in pieces.
#[derive(Default)]
struct HostSegments(Vec<iovec>);

// SAFETY: addresses of memory that the owner of the chip keeps for the task, and of the task's own bounce
// buffers; they are not followed here, and move between threads only with the chip.
unsafe impl Send for HostSegments {}

/// A task's data.
#[derive(Default)]
pub struct TaskData {
    pub to_initiator: bool,
    wanted_bytes: u64,
    collected_bytes: u64,
    segments: HostSegments,
    bounces: Vec<BounceBuffer>,
    /// Bytes in all of these.
    bounced_bytes: usize,
    /// How many of them were written back.
    bounces_written_back: usize,
    /// Guest memory that was collected has gone.
    memory_lost: bool,
}

impl TaskData {
    /// Sets how much a target wants to move, and in which direction.
    pub fn set_direction_and_wanted_bytes(&mut self, to_initiator: bool, wanted_bytes: u64) {
        self.to_initiator = to_initiator;
        self.wanted_bytes = wanted_bytes;
    }

    /// Clears it for the slot's next task. A list that grew large is not kept. Returns how many bytes were in bounce
    /// buffers.
    pub fn clear(&mut self) -> usize {
        self.segments.0.clear();
        self.segments.0.shrink_to(MAX_SEGMENTS / 16);
        self.bounces = Vec::new();
        (
            self.wanted_bytes,
            self.collected_bytes,
            self.bounces_written_back,
        ) = (0, 0, 0);
        self.memory_lost = false;
        mem::take(&mut self.bounced_bytes)
    }

    /// Forgets guest memory that is removed: none of it may be used any more. Returns how many bytes were in bounce
    /// buffers.
    pub fn drop_guest_memory(&mut self) -> usize {
        if self.segments.0.is_empty() {
            return 0;
        }
        self.segments.0.clear();
        self.bounces.clear();
        self.memory_lost = true;
        mem::take(&mut self.bounced_bytes)
    }

    /// Whether it has as much guest memory as the target wants to move.
    fn has_collected_all(&self) -> bool {
        self.collected_bytes == self.wanted_bytes
    }

    /// Adds a segment of host memory, joined to the last if it is contiguous.
    fn push_segment(&mut self, base: *mut libc::c_void, len: usize) {
        self.collected_bytes += len as u64;
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

    /// Whether it can have no further segment or bounce buffer.
    fn has_reached_segment_or_bounce_limit(&self) -> bool {
        self.segments.0.len() == MAX_SEGMENTS || self.bounces.len() == MAX_BOUNCES
    }

    /// The segments and their bytes in sum, which the target gets.
    pub fn segments_and_len(&mut self) -> (&mut [iovec], u64) {
        (&mut self.segments.0, self.collected_bytes)
    }

    /// Whether it has collected any guest memory.
    pub fn has_collected_any(&self) -> bool {
        self.collected_bytes > 0
    }
}

impl Chip {
    /// Collects guest memory at `addr`, at most `left` bytes, for the connected task, and runs the task when it has
    /// all. Returns how many bytes it took, 0 when the target has left the data phase.
    pub(crate) fn collect_guest_memory_and_run_if_full<H: PciBus + Targets>(
        &mut self,
        host: &mut H,
        addr: u64,
        left: usize,
    ) -> Result<usize, PauseReason> {
        let Some(id) = self.connection().and_then(|connection| connection.task) else {
            return Ok(0);
        };
        let Some(task) = self.tasks.unaborted(id) else {
            return Ok(0);
        };
        if task.data.memory_lost {
            self.fail_connected_task(host, CheckConditionCause::DataPhase);
            return Ok(0);
        }
        let (wanted, to_initiator) = (
            task.data.wanted_bytes - task.data.collected_bytes,
            task.data.to_initiator,
        );
        let most = left.min(usize::try_from(wanted).unwrap_or(usize::MAX));
        let mapped = if self.is_own_window(addr) {
            None
        } else {
            host.first_contiguous_part(addr, most, to_initiator)
        };
        let (base, len) = match mapped {
            Some((base, len)) => (base.as_ptr().cast(), len.min(most)),
            None if self.tasks.bounced_bytes >= MAX_BOUNCE_BYTES => {
                self.fail_connected_task(host, CheckConditionCause::DataPhase);
                return Ok(0);
            }
            None => self.add_and_load_bounce_buffer(host, id, addr, most, to_initiator)?,
        };
        let Some(task) = self.tasks.unaborted_mut(id) else {
            return Ok(0);
        };
        task.data.push_segment(base, len);
        if task.data.has_collected_all() {
            self.run_connected_task_and_maybe_disconnect(host, id);
        } else if task.data.has_reached_segment_or_bounce_limit() {
            self.fail_connected_task(host, CheckConditionCause::DataPhase);
        }
        Ok(len)
    }

    /// Adds a bounce buffer for guest memory at `addr` that is not mapped, and reads the memory if the target needs it.
    /// Returns the buffer's address and length, at most `most`.
    fn add_and_load_bounce_buffer<H: PciBus>(
        &mut self,
        host: &mut H,
        id: TaskSlotId,
        addr: u64,
        most: usize,
        to_initiator: bool,
    ) -> Result<(*mut libc::c_void, usize), PauseReason> {
        // Windows and mappings begin and end at these borders.
        let border = if self.is_own_window(addr) {
            0x400
        } else {
            MAX_ACCESS_BYTES as u64
        };
        let len = most.min(usize::try_from(border - addr % border).expect("a page"));
        let mut bytes = vec![0; len];
        if !to_initiator {
            self.load_bytes(host, addr, &mut bytes)?;
        }
        let base = bytes.as_mut_ptr().cast();
        let task = self.tasks.unaborted_mut(id).ok_or(PauseReason::Stopped)?;
        task.data.bounces.push(BounceBuffer { addr, bytes });
        task.data.bounced_bytes += len;
        self.tasks.bounced_bytes += len;
        Ok((base, len))
    }

    /// Writes bounce buffers of data from the target back to where the guest wants it.
    pub(crate) fn write_back_bounce_buffers<H: PciBus>(
        &mut self,
        host: &mut H,
        id: TaskSlotId,
    ) -> Result<(), PauseReason> {
        while let Some(task) = self.tasks.unaborted_mut(id)
            && task.data.to_initiator
            && let Some(bounce) = task.data.bounces.get_mut(task.data.bounces_written_back)
        {
            let (addr, bytes) = (bounce.addr, mem::take(&mut bounce.bytes));
            let stored = self.store_bytes(host, addr, &bytes);
            if let Some(task) = self.tasks.unaborted_mut(id) {
                match stored {
                    Ok(()) => task.data.bounces_written_back += 1,
                    Err(_) => task.data.bounces[task.data.bounces_written_back].bytes = bytes,
                }
            }
            stored?;
            // What was stored may have been a register, and a reset.
            if !self.is_connected() {
                return Err(PauseReason::Stopped);
            }
        }
        if self.waits_for_memory() {
            Err(PauseReason::Memory)
        } else {
            Ok(())
        }
    }
}
