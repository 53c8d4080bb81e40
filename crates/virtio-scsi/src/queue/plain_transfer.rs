//! Begins and completes plain reads and writes without a task. A command that turns out to need one gets it, before it has
//! begun or later (see `command.rs`).

use block::{DiskIo, Request};
use libc::iovec;
use scsi::{PlainTransfer, TaskAttribute};
use telemetry::queue::RequestKind;
use virtqueue::{Chain, ChainId};

use super::Queue;
use crate::device::NEXUS;
use crate::fast_path::{FastPathChain, ReadOrWriteSegments};
use crate::slots::{Slot, SlotState};
use crate::unit_table::QueueDisk;
use crate::wire::RESPONSE_BYTES;

impl Queue {
    /// Begins a command if it is a plain read or write that may start now. False: it was not begun. Only called while no
    /// cancellation covers commands in the ring, and no tracer is attached.
    #[inline(always)]
    pub(super) fn try_begin_plain_transfer(
        &mut self,
        id: ChainId,
        chain: &Chain,
        io: &mut impl DiskIo,
    ) -> bool {
        let Some(fast_chain) = FastPathChain::parse(chain, self.fast_path_sizes) else {
            return false;
        };
        match fast_chain.data {
            ReadOrWriteSegments::Reads(data, len) => {
                self.try_begin_read_or_write::<false>(id, &fast_chain, (data, len), io)
            }
            ReadOrWriteSegments::Writes(data, len) => {
                self.try_begin_read_or_write::<true>(id, &fast_chain, (data, len), io)
            }
        }
    }

    /// Begins a read or a write, with separate code for each.
    #[inline(always)]
    fn try_begin_read_or_write<const WRITES: bool>(
        &mut self,
        id: ChainId,
        fast_chain: &FastPathChain<'_>,
        (data, data_len): (&[iovec], u64),
        io: &mut impl DiskIo,
    ) -> bool {
        // SAFETY: the chain was popped just now, with the memory that its batch holds.
        let head = unsafe { fast_chain.read_header() };
        if (head.lun != self.submission_run.lun || self.submission_run.room == 0)
            && !self.try_switch_submission_run_to_lun(head.lun, io)
        {
            return false;
        }
        let disk = self.submission_run.disk;
        let view = &self.table.disk_at(disk).view;
        let Some(transfer) = view.try_parse_transfer::<WRITES>(NEXUS, head.cdb) else {
            return false;
        };
        if transfer.len != data_len || head.attribute != TaskAttribute::Simple {
            return false;
        }
        let Some((free, slot)) = self.slots.allocate() else {
            // The path with a task reports this error.
            return false;
        };
        prefetch_response_for_write(fast_chain.response);
        self.submission_run.room -= 1;
        let (kind, read) = match WRITES {
            true => (RequestKind::Write, 0),
            false => (RequestKind::Read, transfer.len),
        };
        slot.response_address = fast_chain.response;
        slot.admit_time = self.batch_admit_time.with_kind(kind);
        slot.tag = head.tag;
        slot.id = id;
        slot.used_len = truncated_u32(self.fast_path_sizes.response as u64 + read);
        slot.len = truncated_u32(transfer.len);
        slot.disk = disk;
        slot.state = SlotState::Transfers;
        (slot.is_write, slot.fua) = (WRITES, transfer.fua);
        let (iov, iov_count) = store_segments(slot, data);
        if WRITES {
            let end = transfer.offset + transfer.len;
            self.counts.raise_highest_written_offset(disk, end);
        }
        let request = Request {
            op: transfer.op(),
            fua: transfer.fua,
            offset: transfer.offset,
            len: transfer.len,
            iov,
            iov_count,
            token: free.into(),
        };
        // SAFETY: the segments are checked guest memory, held for the slot's stamp; their list stays in the slot, which is not
        // released before the request is completed.
        unsafe { io.submit(disk, request) };
        true
    }

    /// Completes a plain read or write that has succeeded at `now`. False, and nothing done: it is another command, a command
    /// waits for it, or it must be flushed first.
    #[inline]
    pub(super) fn try_complete_plain_transfer(
        &mut self,
        ring: &mut virtqueue::Queue,
        index: u32,
        now: u64,
    ) -> bool {
        let slot = self.slots.get(index);
        let (admit_time, len, disk) = (slot.admit_time, slot.len, slot.disk);
        if slot.state != SlotState::Transfers || admit_time < self.generation_start {
            return false;
        }
        // The write cache may have been turned off since.
        if slot.is_write && !slot.fua && self.table.disk_at(disk).view.may_be_write_through() {
            return false;
        }
        let other =
            admit_time != self.completion_run.admit_time || disk != self.completion_run.disk;
        if other && !self.try_begin_completion_run(admit_time, disk, now) {
            return false;
        }
        let slot = self.slots.get(index);
        // SAFETY: the response's segment is at least this long, and its memory map is held until the slot is released. GOOD
        // status, no sense data, no residual: all zero.
        unsafe {
            let response = slot.response_address.cast::<[u8; RESPONSE_BYTES]>();
            response.write([0; RESPONSE_BYTES]);
        }
        ring.push(slot.id, slot.used_len);
        self.slots.release(index);
        self.completion_run.commands += 1;
        self.completion_run.bytes += u64::from(len);
        true
    }

    /// The disk of a plain read or write in flight.
    pub(super) fn disk_of_plain_transfer(&self, slot: &Slot) -> Option<&QueueDisk> {
        (slot.state == SlotState::Transfers).then(|| self.table.disk_at(slot.disk))
    }

    /// Gives a plain read or write in flight to a task: it was cancelled, has failed, or others wait for it.
    #[cold]
    pub(super) fn move_plain_transfer_to_task(&mut self, index: u32) {
        let slot = self.slots.get_mut(index);
        let disk = self.table.disk_at(slot.disk);
        let (write, len) = (slot.is_write, u64::from(slot.len));
        let (kind, read) = match write {
            true => (RequestKind::Write, 0),
            false => (RequestKind::Read, slot.len),
        };
        // The offset is that of the block request, which is in flight.
        let transfer = PlainTransfer {
            write,
            fua: slot.fua,
            offset: 0,
            len,
        };
        let lun = disk.address.lun;
        slot.task
            .adopt_in_flight_transfer(&disk.view, lun, NEXUS, transfer);
        let response = (slot.used_len - read) as usize;
        slot.sense_room = response - RESPONSE_BYTES;
        slot.response.clear();
        slot.response.push(iovec {
            iov_base: slot.response_address.cast(),
            iov_len: response,
        });
        (slot.address, slot.unit_index) = (disk.address, disk.unit_index);
        (slot.kind, slot.bytes, slot.data_len) = (Some(kind), len, len);
        slot.data_is_for_guest = !write;
        slot.attribute = TaskAttribute::Simple;
        slot.cancelled = None;
        slot.state = SlotState::Runs;
    }
}

/// Prefetches a cache line for writing: the guest's processor had it last.
#[inline(always)]
fn prefetch_response_for_write(at: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that has no effect on an invalid address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_ET0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// The low half of a number below 2^32: bytes of a chain, or of a transfer.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "as just said")]
fn truncated_u32(bytes: u64) -> u32 {
    bytes as u32
}

/// Stores a request's segments in its slot.
#[inline(always)]
fn store_segments(slot: &mut Slot, data: &[iovec]) -> (*mut iovec, u32) {
    if let [only] = data {
        slot.only_segment = *only;
        return (&raw mut slot.only_segment, 1);
    }
    store_segment_list(slot, data)
}

/// Stores a list of segments, for a request that has more than one.
#[inline(never)]
fn store_segment_list(slot: &mut Slot, data: &[iovec]) -> (*mut iovec, u32) {
    slot.data.clear();
    slot.data.extend_from_slice(data);
    // A list has at most as many segments as a chain.
    let count = u32::try_from(data.len()).unwrap_or(u32::MAX);
    (slot.data.as_mut_ptr(), count)
}
