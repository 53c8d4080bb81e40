//! Plain reads and writes: most of what a disk is asked. From the ring to the disk and back there is nothing but them, and no
//! task. What is unusual about one is left to the commands' own way, before it has begun or later.

use block::{DiskIo, Request};
use libc::iovec;
use scsi::{Attribute, Transfer};
use telemetry::queue::Kind;
use virtqueue::{Chain, ChainId};

use super::Queue;
use crate::device::NEXUS;
use crate::slots::{Slot, State};
use crate::table::Disk;
use crate::usual::{Direction, Usual};
use crate::wire::RESPONSE_BYTES;

impl Queue {
    /// Begins a command if it is a plain read or write that may go now. False: it is still to be begun. Only called while no
    /// function is about commands in the ring, and no tracer wants to see them.
    #[inline(always)]
    pub(super) fn begin_transfer(
        &mut self,
        id: ChainId,
        chain: &Chain,
        io: &mut impl DiskIo,
    ) -> bool {
        let Some(usual) = Usual::of(chain, self.usual) else {
            return false;
        };
        match usual.data {
            Direction::Reads(data, len) => self.begin::<false>(id, &usual, (data, len), io),
            Direction::Writes(data, len) => self.begin::<true>(id, &usual, (data, len), io),
        }
    }

    /// A read, or a write: code for each, so that nothing has to remember which it is.
    #[inline(always)]
    fn begin<const WRITES: bool>(
        &mut self,
        id: ChainId,
        usual: &Usual<'_>,
        (data, data_len): (&[iovec], u64),
        io: &mut impl DiskIo,
    ) -> bool {
        // SAFETY: the chain was popped just now, with the memory that its batch holds.
        let head = unsafe { usual.head() };
        if (head.lun != self.run.lun || self.run.room == 0) && !self.begin_run(head.lun, io) {
            return false;
        }
        let disk = self.run.disk;
        let view = &self.table.at(disk).view;
        let Some(transfer) = view.transfer::<WRITES>(NEXUS, head.cdb) else {
            return false;
        };
        if transfer.len != data_len || head.attribute != Attribute::Simple {
            return false;
        }
        let Some((free, slot)) = self.slots.take() else {
            // The commands' own way says so.
            return false;
        };
        fetch_for_writing(usual.response);
        self.run.room -= 1;
        let (kind, read) = match WRITES {
            true => (Kind::Write, 0),
            false => (Kind::Read, transfer.len),
        };
        slot.response_at = usual.response;
        slot.stamp = self.taken.of(kind);
        slot.tag = head.tag;
        slot.id = id;
        slot.written = low(self.usual.response as u64 + read);
        slot.len = low(transfer.len);
        slot.disk = disk;
        slot.state = State::Transfers;
        slot.writes = WRITES;
        let (iov, iov_count) = keep(slot, data);
        if WRITES {
            let end = transfer.offset + transfer.len;
            self.counts.reaches(disk, end);
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
        // given back before the request is completed.
        unsafe { io.submit(disk, request) };
        true
    }

    /// The request of a plain read or write has succeeded `now`. False: it is something else, or something waits for it, and
    /// nothing was done.
    #[inline]
    pub(super) fn complete_transfer(
        &mut self,
        ring: &mut virtqueue::Queue,
        index: u32,
        now: u64,
    ) -> bool {
        let slot = self.slots.get(index);
        let (stamp, len, disk) = (slot.stamp, slot.len, slot.disk);
        if slot.state != State::Transfers || stamp < self.generation {
            return false;
        }
        let other = stamp != self.done.stamp || disk != self.done.disk;
        if other && !self.begin_done(stamp, disk, now) {
            return false;
        }
        let slot = self.slots.get(index);
        // SAFETY: the response's segment is as long at least, and its memory map is held until it is given back. GOOD status,
        // no sense data, nothing left: all zero.
        unsafe {
            let response = slot.response_at.cast::<[u8; RESPONSE_BYTES]>();
            response.write([0; RESPONSE_BYTES]);
        }
        ring.push(slot.id, slot.written);
        self.slots.give_back(index);
        self.done.commands += 1;
        self.done.bytes += u64::from(len);
        true
    }

    /// The disk of a plain read or write that is under way.
    pub(super) fn transfers_to(&self, slot: &Slot) -> Option<&Disk> {
        (slot.state == State::Transfers).then(|| self.table.at(slot.disk))
    }

    /// Something came in between: its task has a plain read or write from now on, as any other command.
    #[cold]
    pub(super) fn adopt(&mut self, index: u32) {
        let slot = self.slots.get_mut(index);
        let disk = self.table.at(slot.disk);
        let (write, len) = (slot.writes, u64::from(slot.len));
        let (kind, read) = match write {
            true => (Kind::Write, 0),
            false => (Kind::Read, slot.len),
        };
        // Where on the disk and how is the request's, which is on its way.
        let transfer = Transfer {
            write,
            fua: false,
            offset: 0,
            len,
        };
        let lun = disk.address.lun;
        slot.task.adopt(&disk.view, lun, NEXUS, transfer);
        let response = (slot.written - read) as usize;
        slot.sense_bytes = response - RESPONSE_BYTES;
        slot.response.clear();
        slot.response.push(iovec {
            iov_base: slot.response_at.cast(),
            iov_len: response,
        });
        (slot.address, slot.place) = (disk.address, disk.place);
        (slot.kind, slot.bytes, slot.data_len) = (Some(kind), len, len);
        slot.reads = !write;
        slot.attribute = Attribute::Simple;
        slot.cancelled = None;
        slot.state = State::Runs;
    }
}

/// The processor fetches what will be written there: it is the guest that looked there last, and that takes its time.
#[inline(always)]
fn fetch_for_writing(at: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which is none where it cannot be followed.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_ET0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Of what is known to be less than 2^32: bytes of a chain, and of a transfer.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "as just said")]
fn low(bytes: u64) -> u32 {
    bytes as u32
}

/// The list of a request's segments stays in its slot.
#[inline(always)]
fn keep(slot: &mut Slot, data: &[iovec]) -> (*mut iovec, u32) {
    if let [only] = data {
        slot.segment = *only;
        return (&raw mut slot.segment, 1);
    }
    keep_list(slot, data)
}

#[inline(never)]
fn keep_list(slot: &mut Slot, data: &[iovec]) -> (*mut iovec, u32) {
    slot.data.clear();
    slot.data.extend_from_slice(data);
    // A list has at most as many segments as a chain.
    let count = u32::try_from(data.len()).unwrap_or(u32::MAX);
    (slot.data.as_mut_ptr(), count)
}
