//! Commands that somebody ends.

use block::DiskIo;
use std::sync::Arc;

use engine::Errno;

use super::Queue;
use crate::address::Address;
use crate::cancel::Cancel;
use crate::slots::State;
use crate::wire::Response;

/// A function that is also about what lay in the ring when it came: at most a ring's worth of chains, or until it
/// is found empty.
pub(super) struct Fence {
    cancel: Arc<Cancel>,
    chains_left: u16,
}

impl Queue {
    /// A task management function is about commands. It is kept as long as one of them is here.
    pub fn cancel(
        &mut self,
        ring: &mut virtqueue::Queue,
        cancel: &Arc<Cancel>,
        io: &mut impl DiskIo,
    ) {
        let meant: Vec<u32> = self
            .slots
            .used()
            .filter(|(_, slot)| {
                let disk = self.transfers_to(slot);
                let address = disk.map_or(slot.address, |disk| disk.address);
                cancel.scope.has(address, slot.tag)
            })
            .map(|(index, _)| index)
            .collect();
        if !meant.is_empty() {
            cancel.finds();
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
        self.go_on(ring, io);
    }

    fn cancel_one(
        &mut self,
        ring: &mut virtqueue::Queue,
        index: u32,
        cancel: &Arc<Cancel>,
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
                && !tasks.forget(index, |next| ready.push_back(next))
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

    /// Another chain was taken off the ring: whether a function has ended this command before it began.
    #[cold]
    pub(super) fn pass_fences(&mut self, command: Option<(Address, u64)>) -> Option<Response> {
        let mut ended = None;
        self.fences.retain_mut(|fence| {
            if let Some((address, tag)) = command
                && fence.cancel.scope.has(address, tag)
            {
                fence.cancel.finds();
                ended = ended.or(fence.cancel.answer);
            }
            fence.chains_left -= 1;
            fence.chains_left > 0
        });
        ended
    }

    /// Nothing that functions could be about lies in the ring: it is empty, or nothing is taken off it any more.
    pub fn end_admissions(&mut self) {
        self.fences.clear();
    }

    /// Whether a function waits for what lies in the ring: it is to be looked at.
    #[must_use]
    pub fn has_fences(&self) -> bool {
        !self.fences.is_empty()
    }
}
