//! Responses to commands.

use scsi::Status;

use super::{Queue, probes};
use crate::guest_bytes::copy_to;
use crate::slots::Slot;
use crate::wire::{CommandResponse, RESPONSE_BYTES, Response};

impl Queue {
    /// Finishes a command that did not get to a task.
    #[cold]
    pub(super) fn refuse(&mut self, ring: &mut virtqueue::Queue, index: u32, response: Response) {
        let slot = self.slots.get(index);
        if probes::end_wanted() {
            probes::refused(&self.name, slot, response);
        }
        // SAFETY: the chain was popped just now, with the memory that its batch holds.
        unsafe { respond(slot, Status::Good, response, slot.data_len, &[]) };
        self.release(ring, index, 0);
        self.answered = true;
    }

    /// Finishes a command: response, used entry, and commands that waited for it.
    #[inline]
    pub(super) fn finish(&mut self, ring: &mut virtqueue::Queue, index: u32) {
        let slot = self.slots.get(index);
        let transferred = match slot.cancelled {
            None => {
                let transferred = slot.task.transferred();
                let residual = slot.data_len.saturating_sub(transferred);
                let status = slot.task.status();
                let sense = slot.task.sense();
                // SAFETY: its memory map is held until the slot is released.
                unsafe { respond(slot, status, Response::Ok, residual, sense) };
                transferred
            }
            Some(response) => {
                // SAFETY: as above.
                unsafe { respond(slot, Status::Good, response, slot.data_len, &[]) };
                0
            }
        };
        self.counts.finished(slot, self.now);
        if probes::end_wanted() {
            probes::finished(&self.name, slot, self.now);
        }
        let read = if slot.reads { transferred } else { 0 };
        let (place, attribute, ends_others) =
            (slot.place, slot.attribute, slot.cancelled.is_some());
        self.release(ring, index, read);
        if let Some(tasks) = self.table.tasks(place) {
            let ready = &mut self.ready;
            tasks.done(attribute, |next| ready.push_back(next));
        }
        if ends_others {
            self.cancelling.retain(|(slot, _)| *slot != index);
        }
    }

    /// Pushes the chain, with `read` bytes of data for the guest, and releases the slot.
    #[inline]
    pub(super) fn release(&mut self, ring: &mut virtqueue::Queue, index: u32, read: u64) {
        let slot = self.slots.get(index);
        let written = (RESPONSE_BYTES + slot.sense_bytes) as u64 + read;
        // A chain has at most 2^32 - 1 bytes.
        ring.push(slot.id, u32::try_from(written).unwrap_or(u32::MAX));
        if slot.stamp < self.generation {
            self.old.push(slot.stamp);
        }
        self.slots.release(index);
    }
}

/// # Safety
/// The slot's memory map is held.
#[inline]
unsafe fn respond(slot: &Slot, status: Status, response: Response, residual: u64, sense: &[u8]) {
    let sense = &sense[..sense.len().min(slot.sense_bytes)];
    let head = CommandResponse {
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
        unsafe { copy_to(&slot.response, &head) };
    } else {
        // SAFETY: as promised to us.
        unsafe { respond_with_sense(slot, &head, sense) };
    }
}

/// # Safety
/// As for [`respond`].
#[cold]
unsafe fn respond_with_sense(slot: &Slot, head: &[u8], sense: &[u8]) {
    // SAFETY: as promised to us.
    unsafe { copy_to(&slot.response, &[head, sense].concat()) };
}
