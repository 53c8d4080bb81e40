//! Finishes commands: writes the response to the guest's memory, pushes the used entry, and releases the slot.

use scsi::Status;

use super::{Queue, probes};
use crate::guest_bytes::copy_to_guest;
use crate::slots::Slot;
use crate::wire::{CommandResponseHeader, RESPONSE_BYTES, Response};

impl Queue {
    /// Finishes a command that did not get to a task.
    #[cold]
    pub(super) fn refuse_command(
        &mut self,
        ring: &mut virtqueue::Queue,
        index: u32,
        response: Response,
    ) {
        let slot = self.slots.get(index);
        if probes::is_end_traced() {
            probes::fire_refused(&self.name, slot, response);
        }
        // SAFETY: the chain was popped just now, with the memory that its batch holds.
        unsafe { write_response(slot, Status::Good, response, slot.data_len, &[]) };
        self.push_and_release(ring, index, 0);
        self.pushed_outside_completions = true;
    }

    /// Finishes a command: response, used entry, and commands that waited for it.
    #[inline]
    pub(super) fn finish_command_and_ready_others(
        &mut self,
        ring: &mut virtqueue::Queue,
        index: u32,
    ) {
        let slot = self.slots.get(index);
        let transferred = match slot.cancelled {
            None => {
                let transferred = slot.task.transferred_bytes();
                let residual = slot.data_len.saturating_sub(transferred);
                let status = slot.task.status();
                let sense = slot.task.sense();
                // SAFETY: its memory map is held until the slot is released.
                unsafe { write_response(slot, status, Response::Ok, residual, sense) };
                transferred
            }
            Some(response) => {
                // SAFETY: as above.
                unsafe { write_response(slot, Status::Good, response, slot.data_len, &[]) };
                0
            }
        };
        self.counts.count_finished_command(slot, self.now);
        if probes::is_end_traced() {
            probes::fire_finished(&self.name, slot, self.now);
        }
        let read = if slot.data_is_for_guest {
            transferred
        } else {
            0
        };
        let (unit_index, attribute, ends_others) =
            (slot.unit_index, slot.attribute, slot.cancelled.is_some());
        self.push_and_release(ring, index, read);
        if let Some(tasks) = self.table.task_set_of_unit(unit_index) {
            let ready = &mut self.ready_slots;
            tasks.finish_task_and_start_others(attribute, |next| ready.push_back(next));
        }
        if ends_others {
            self.in_flight_cancellations
                .retain(|(slot, _)| *slot != index);
        }
    }

    /// Pushes the chain, with `read` bytes of data for the guest, and releases the slot.
    #[inline]
    pub(super) fn push_and_release(&mut self, ring: &mut virtqueue::Queue, index: u32, read: u64) {
        let slot = self.slots.get(index);
        let written = (RESPONSE_BYTES + slot.sense_room) as u64 + read;
        // A chain has at most 2^32 - 1 bytes.
        ring.push(slot.id, u32::try_from(written).unwrap_or(u32::MAX));
        if slot.admit_time < self.generation_start {
            self.finished_old.push(slot.admit_time);
        }
        self.slots.release(index);
    }
}

/// Writes the response to a command, and its sense data if it has any, to the guest's memory.
///
/// # Safety
/// The slot's memory map is held.
#[inline]
unsafe fn write_response(
    slot: &Slot,
    status: Status,
    response: Response,
    residual: u64,
    sense: &[u8],
) {
    let sense = &sense[..sense.len().min(slot.sense_room)];
    let head = CommandResponseHeader {
        // At most what sense data can be.
        sense_len: u32::try_from(sense.len()).unwrap_or(0),
        residual: u32::try_from(residual).unwrap_or(u32::MAX),
        status_qualifier: 0,
        status: status as u8,
        response: response as u8,
    }
    .to_bytes();
    if sense.is_empty() {
        // SAFETY: as promised to us.
        unsafe { copy_to_guest(&slot.response, &head) };
    } else {
        // SAFETY: as promised to us.
        unsafe { write_response_with_sense(slot, &head, sense) };
    }
}

/// Writes a response that has sense data, which is seldom.
///
/// # Safety
/// As for [`write_response`].
#[cold]
unsafe fn write_response_with_sense(slot: &Slot, head: &[u8], sense: &[u8]) {
    // SAFETY: as promised to us.
    unsafe { copy_to_guest(&slot.response, &[head, sense].concat()) };
}
