//! Cancellation of a queue's commands by task management functions: those in flight, and those still in the ring.

use block::DiskIo;
use std::sync::Arc;

use engine::Errno;

use super::Queue;
use crate::address::Address;
use crate::messages::TmfSharedByQueues;
use crate::slots::SlotState;
use crate::wire::Response;

/// A cancellation of commands that were in the ring when it came: it covers at most a ring's worth of chains, and ends when the
/// ring is found empty.
pub(super) struct RingCancellation {
    cancel: Arc<TmfSharedByQueues>,
    chains_left: u16,
}

impl Queue {
    /// Cancels commands of this queue, or only looks for them. The function is kept until the last of them has ended.
    pub fn cancel_or_find_commands(
        &mut self,
        ring: &mut virtqueue::Queue,
        cancel: &Arc<TmfSharedByQueues>,
        io: &mut impl DiskIo,
    ) {
        let concerned: Vec<u32> = self
            .slots
            .in_flight_slots()
            .filter(|(_, slot)| {
                let disk = self.disk_of_plain_transfer(slot);
                let address = disk.map_or(slot.address, |disk| disk.address);
                cancel.scope.matches(address, slot.tag)
            })
            .map(|(index, _)| index)
            .collect();
        if !concerned.is_empty() {
            cancel.mark_found();
        }
        let Some(response) = cancel.command_response else {
            return;
        };
        for index in concerned {
            self.cancel_command(ring, index, cancel, response);
        }
        self.ring_cancellations.push(RingCancellation {
            cancel: cancel.clone(),
            chains_left: self.slots.capacity(),
        });
        self.start_ready_commands(ring, io);
    }

    /// Cancels a command of this queue. One that the kernel has is finished when its block request is completed.
    fn cancel_command(
        &mut self,
        ring: &mut virtqueue::Queue,
        index: u32,
        cancel: &Arc<TmfSharedByQueues>,
        response: Response,
    ) {
        if self.slots.get(index).state == SlotState::Transfers {
            self.move_plain_transfer_to_task(index);
        }
        let slot = self.slots.get_mut(index);
        slot.cancelled.get_or_insert(response);
        if slot.state == SlotState::Waits {
            let (unit_index, attribute, ready) =
                (slot.unit_index, slot.attribute, &mut self.ready_slots);
            ready.retain(|next| *next != index);
            if let Some(tasks) = self.table.task_set_of_unit(unit_index)
                && !tasks.remove_waiting_and_start_others(index, |next| ready.push_back(next))
            {
                // Its turn had come.
                tasks.finish_task_and_start_others(attribute, |next| ready.push_back(next));
            }
            self.refuse_command(ring, index, response);
            return;
        }
        if slot.task.cancel() {
            let position = self
                .deferred_requests
                .iter()
                .position(|(slot, _)| *slot == index);
            let Some(position) = position else {
                // The kernel has it.
                self.in_flight_cancellations.push((index, cancel.clone()));
                return;
            };
            self.deferred_requests.remove(position);
            slot.task.on_step_completed(Err(Errno::CANCELED));
        }
        self.finish_command_and_ready_others(ring, index);
        self.pushed_outside_completions = true;
    }

    /// Applies the cancellations of commands in the ring to a popped chain, which they count. Returns the response if one of
    /// them ends its command.
    #[cold]
    pub(super) fn apply_ring_cancellations(
        &mut self,
        command: Option<(Address, u64)>,
    ) -> Option<Response> {
        let mut ended = None;
        self.ring_cancellations.retain_mut(|cancellation| {
            if let Some((address, tag)) = command
                && cancellation.cancel.scope.matches(address, tag)
            {
                cancellation.cancel.mark_found();
                ended = ended.or(cancellation.cancel.command_response);
            }
            cancellation.chains_left -= 1;
            cancellation.chains_left > 0
        });
        ended
    }

    /// Ends cancellations of commands in the ring: it is empty, or nothing is popped any more.
    pub fn drop_ring_cancellations(&mut self) {
        self.ring_cancellations.clear();
    }

    /// Whether a cancellation waits for commands in the ring: the queue has to be polled.
    #[must_use]
    pub fn has_ring_cancellations(&self) -> bool {
        !self.ring_cancellations.is_empty()
    }
}
