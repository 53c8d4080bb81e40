//! Cancellation of commands by task management functions.

use block::DiskIo;
use std::sync::Arc;

use engine::Errno;

use super::Queue;
use crate::address::Address;
use crate::port::Cancellation;
use crate::slots::State;
use crate::wire::Response;

/// A cancellation of commands that were in the ring when it came: it covers at most a ring's worth of chains, and ends when the
/// ring is found empty.
pub(super) struct Fence {
    cancel: Arc<Cancellation>,
    chains_left: u16,
}

impl Queue {
    /// Cancels commands of this queue. The cancellation is kept until the last of them has ended.
    pub fn cancel(
        &mut self,
        ring: &mut virtqueue::Queue,
        cancel: &Arc<Cancellation>,
        io: &mut impl DiskIo,
    ) {
        let meant: Vec<u32> = self
            .slots
            .used()
            .filter(|(_, slot)| {
                let disk = self.transfers_to(slot);
                let address = disk.map_or(slot.address, |disk| disk.address);
                cancel.scope.matches(address, slot.tag)
            })
            .map(|(index, _)| index)
            .collect();
        if !meant.is_empty() {
            cancel.set_found();
        }
        let Some(response) = cancel.answer else {
            return;
        };
        for index in meant {
            self.cancel_one(ring, index, cancel, response);
        }
        self.fences.push(Fence {
            cancel: cancel.clone(),
            chains_left: self.slots.size(),
        });
        self.start_ready(ring, io);
    }

    fn cancel_one(
        &mut self,
        ring: &mut virtqueue::Queue,
        index: u32,
        cancel: &Arc<Cancellation>,
        response: Response,
    ) {
        if self.slots.get(index).state == State::Transfers {
            self.adopt(index);
        }
        let slot = self.slots.get_mut(index);
        slot.cancelled.get_or_insert(response);
        if slot.state == State::Waits {
            let (place, attribute, ready) = (slot.place, slot.attribute, &mut self.ready);
            ready.retain(|next| *next != index);
            if let Some(tasks) = self.table.tasks(place)
                && !tasks.remove_waiting(index, |next| ready.push_back(next))
            {
                // Its turn had come.
                tasks.done(attribute, |next| ready.push_back(next));
            }
            self.refuse(ring, index, response);
            return;
        }
        if slot.task.cancel() {
            let deferred = self.deferred.iter().position(|(slot, _)| *slot == index);
            let Some(deferred) = deferred else {
                // The kernel has it.
                self.cancelling.push((index, cancel.clone()));
                return;
            };
            self.deferred.remove(deferred);
            slot.task.completed(Err(Errno::CANCELED));
        }
        self.finish(ring, index);
        self.answered = true;
    }

    /// Counts a popped chain. Returns the response if a function has ended this command before it began.
    #[cold]
    pub(super) fn pass_fences(&mut self, command: Option<(Address, u64)>) -> Option<Response> {
        let mut ended = None;
        self.fences.retain_mut(|fence| {
            if let Some((address, tag)) = command
                && fence.cancel.scope.matches(address, tag)
            {
                fence.cancel.set_found();
                ended = ended.or(fence.cancel.answer);
            }
            fence.chains_left -= 1;
            fence.chains_left > 0
        });
        ended
    }

    /// Ends cancellations of commands in the ring: it is empty, or nothing is popped any more.
    pub fn end_admissions(&mut self) {
        self.fences.clear();
    }

    /// Whether a cancellation waits for commands in the ring: the queue has to be polled.
    #[must_use]
    pub fn has_fences(&self) -> bool {
        !self.fences.is_empty()
    }
}
