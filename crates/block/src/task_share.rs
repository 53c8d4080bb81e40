//! Reserves part of a backend's room for requests of async tasks, so that queues with many requests do not starve them.
//!
//! In an iteration, sources are admitted before the submit phase drains the tasks' outbox. A source that always has more
//! requests than there is room for would leave no room for tasks. So the requests of tasks that the backend has refused are
//! counted, and up to half of the room after the next reap is reserved for them. More would let tasks starve the sources.

/// The share of one backend: Linux AIO, the ring, or the queue of a disk behind a network.
#[derive(Default)]
pub(crate) struct TaskRoomShare {
    /// Requests that the last submit phase left in the outbox for lack of room.
    refused: usize,
    /// Room that sources leave free, from the reap phase to the submit phase.
    reserved: usize,
    /// Whether the larger half of an odd room is reserved. It alternates, so that sources and tasks take turns at a single place.
    rounds_up: bool,
    /// Whether the room was odd.
    odd: bool,
}

impl TaskRoomShare {
    /// Room of the backend that is not for sources.
    #[inline]
    pub fn reserved_room(&self) -> usize {
        self.reserved
    }

    /// Reserves up to half of the room that the backend has after the reap phase, for tasks that were refused before.
    pub fn reserve_part_for_refused_tasks(&mut self, room: usize) {
        if self.refused == 0 {
            return;
        }
        let half = match self.rounds_up {
            true => room.div_ceil(2),
            false => room / 2,
        };
        self.reserved = half.min(self.refused);
        self.odd = room % 2 == 1;
    }

    /// Ends the reservation: the submit phase drains the outbox as far as there is room.
    pub fn release_room_reserved_for_tasks(&mut self) {
        self.refused = 0;
        self.reserved = 0;
        self.rounds_up ^= std::mem::take(&mut self.odd);
    }

    /// Counts a request in the outbox that the backend had no room for.
    pub fn record_refusal(&mut self) {
        self.refused += 1;
    }
}
