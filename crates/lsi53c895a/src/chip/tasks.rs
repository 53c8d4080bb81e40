//! The table of tasks: all that were received and have not sent their status, and the order in which they reselect.
//!
//! A task's ID is its slot and a generation, which distinguishes a completion after an abort from
//! one of the slot's next task. An aborted task keeps its slot until the disk no longer uses its memory.

use std::collections::VecDeque;

use crate::chip::host_traits::{AbortOutcome, TargetAndLun, Targets, TaskSlotId};
use crate::chip::task_data::TaskData;

/// Most tasks of all targets. The next one ends with TASK SET FULL.
pub const MAX_TASKS: usize = 256;

/// The state of a slot and its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskSlotState {
    Free,
    /// Its data is being collected.
    Collecting,
    /// The target has it.
    Running,
    Finished(u8),
    /// Aborted, with memory that is still in use.
    Draining,
}

/// A slot of the table, and the task in it.
pub struct TaskSlot {
    generation: u32,
    state: TaskSlotState,
    pub nexus: TargetAndLun,
    pub tag: Option<u8>,
    pub data: TaskData,
}

/// All slots, and the finished tasks that wait to reselect.
pub struct TaskTable {
    slots: Vec<TaskSlot>,
    free: Vec<u16>,
    /// Finished, and waiting to reselect, in the order of finishing.
    ready: VecDeque<TaskSlotId>,
    running: usize,
    draining: usize,
    /// Bytes in bounce buffers of all tasks.
    pub bounced_bytes: usize,
    /// Counts tasks that were added or removed.
    change_count: u64,
}

impl TaskTable {
    /// A table without tasks.
    pub fn new() -> Self {
        let slot = || TaskSlot {
            generation: 0,
            state: TaskSlotState::Free,
            nexus: TargetAndLun { target: 0, lun: 0 },
            tag: None,
            data: TaskData::default(),
        };
        let count = u16::try_from(MAX_TASKS).expect("fits");
        TaskTable {
            slots: (0..count).map(|_| slot()).collect(),
            free: (0..count).rev().collect(),
            ready: VecDeque::with_capacity(MAX_TASKS),
            running: 0,
            draining: 0,
            bounced_bytes: 0,
            change_count: 0,
        }
    }

    /// The slot of a task, also after an abort; `None` once it was released.
    fn occupied_slot_mut(&mut self, id: TaskSlotId) -> Option<&mut TaskSlot> {
        let slot = self.slots.get_mut(usize::from(id.index))?;
        (slot.generation == id.generation && slot.state != TaskSlotState::Free).then_some(slot)
    }

    /// The task, unless it was aborted.
    pub fn unaborted(&self, id: TaskSlotId) -> Option<&TaskSlot> {
        let slot = self.slots.get(usize::from(id.index))?;
        (slot.generation == id.generation && slot.has_unaborted_task()).then_some(slot)
    }

    pub fn unaborted_mut(&mut self, id: TaskSlotId) -> Option<&mut TaskSlot> {
        self.occupied_slot_mut(id)
            .filter(|slot| slot.has_unaborted_task())
    }

    /// Allocates a slot for a task whose data is to be collected; `None`: there are too many tasks.
    pub fn allocate(&mut self, nexus: TargetAndLun, tag: Option<u8>) -> Option<TaskSlotId> {
        let index = self.free.pop()?;
        self.change_count += 1;
        let slot = &mut self.slots[usize::from(index)];
        slot.state = TaskSlotState::Collecting;
        slot.nexus = nexus;
        slot.tag = tag;
        Some(TaskSlotId {
            index,
            generation: slot.generation,
        })
    }

    /// How often a task was added or removed.
    pub fn change_count(&self) -> u64 {
        self.change_count
    }

    /// Releases the slot of a task, with the task's data.
    pub fn release_slot(&mut self, id: TaskSlotId) {
        let Some(slot) = self.occupied_slot_mut(id) else {
            return;
        };
        let before = std::mem::replace(&mut slot.state, TaskSlotState::Free);
        slot.generation = slot.generation.wrapping_add(1);
        let bounced = slot.data.clear();
        self.bounced_bytes -= bounced;
        self.change_count += 1;
        self.free.push(id.index);
        match before {
            TaskSlotState::Running => self.running -= 1,
            TaskSlotState::Draining => self.draining -= 1,
            _ => {}
        }
    }

    /// Marks a task as running, and returns its data.
    pub fn mark_running_and_get_data(&mut self, id: TaskSlotId) -> Option<&mut TaskData> {
        let slot = self.slots.get_mut(usize::from(id.index))?;
        if slot.generation != id.generation || slot.state != TaskSlotState::Collecting {
            return None;
        }
        slot.state = TaskSlotState::Running;
        self.running += 1;
        Some(&mut slot.data)
    }

    /// Marks a task as finished. It waits for reselection unless it is connected.
    pub fn mark_finished_or_release(&mut self, id: TaskSlotId, status: u8, connected: bool) {
        let Some(slot) = self.occupied_slot_mut(id) else {
            return;
        };
        match slot.state {
            TaskSlotState::Running => {
                slot.state = TaskSlotState::Finished(status);
                self.running -= 1;
                if !connected {
                    self.ready.push_back(id);
                }
            }
            TaskSlotState::Draining => self.release_slot(id),
            _ => {}
        }
    }

    /// The status byte, once there is one.
    pub fn finished_status(&self, id: TaskSlotId) -> Option<u8> {
        match self.unaborted(id)?.state {
            TaskSlotState::Finished(status) => Some(status),
            _ => None,
        }
    }

    /// Lets a task that has finished reselect, since its target has left the bus.
    pub fn queue_for_reselect_if_finished(&mut self, id: TaskSlotId) {
        if self.finished_status(id).is_some() {
            self.ready.push_back(id);
        }
    }

    /// Removes the task that has waited longest for reselection from the queue.
    pub fn take_next_to_reselect(&mut self) -> Option<TaskSlotId> {
        while let Some(id) = self.ready.pop_front() {
            if self.finished_status(id).is_some() {
                return Some(id);
            }
        }
        None
    }

    /// The task with this nexus and tag.
    pub fn find_unaborted(&self, nexus: TargetAndLun, tag: Option<u8>) -> Option<TaskSlotId> {
        // Mostly there are few tasks, in the first slots, since the slot that was released last is reused first.
        let mut left = self.slots.len() - self.free.len();
        let mut slots = self.slots.iter().enumerate();
        while left > 0 {
            let (index, slot) = slots.next()?;
            if slot.state == TaskSlotState::Free {
                continue;
            }
            left -= 1;
            if slot.has_unaborted_task() && slot.nexus == nexus && slot.tag == tag {
                return Some(self.id_of_slot(index));
            }
        }
        None
    }

    /// The ID of the task in this slot.
    fn id_of_slot(&self, index: usize) -> TaskSlotId {
        TaskSlotId {
            index: u16::try_from(index).expect("below MAX_TASKS"),
            generation: self.slots[index].generation,
        }
    }

    /// Aborts one; its slot is free again at once or when [`TaskTable::mark_finished_or_release`] says so.
    pub fn abort_and_release_or_drain<H: Targets>(&mut self, host: &mut H, id: TaskSlotId) {
        let Some(before) = self.occupied_slot_mut(id).map(|slot| slot.state) else {
            return;
        };
        let drains = match before {
            TaskSlotState::Free | TaskSlotState::Draining => return,
            TaskSlotState::Finished(_) => {
                self.ready.retain(|ready| *ready != id);
                host.release_finished_task(id, false);
                false
            }
            TaskSlotState::Collecting | TaskSlotState::Running => {
                host.abort_task(id) == AbortOutcome::Later
            }
        };
        if !drains {
            return self.release_slot(id);
        }
        if before == TaskSlotState::Running {
            self.running -= 1;
        }
        self.draining += 1;
        self.slots[usize::from(id.index)].state = TaskSlotState::Draining;
    }

    /// Aborts all tasks that meet a condition.
    pub fn abort_where<H: Targets>(&mut self, host: &mut H, concerned: impl Fn(&TaskSlot) -> bool) {
        for index in 0..self.slots.len() {
            if self.slots[index].has_unaborted_task() && concerned(&self.slots[index]) {
                self.abort_and_release_or_drain(host, self.id_of_slot(index));
            }
        }
    }

    /// Drops the memory of tasks that still collect their data, and marks it as lost.
    pub fn drop_memory_of_collecting_tasks(&mut self) {
        for slot in &mut self.slots {
            if slot.state == TaskSlotState::Collecting {
                self.bounced_bytes -= slot.data.drop_guest_memory();
            }
        }
    }

    /// Drops the memory that a task has collected, since it will fail.
    pub fn drop_memory_of_failing_task(&mut self, id: TaskSlotId) {
        if let Some(task) = self.unaborted_mut(id) {
            let bounced = task.data.clear();
            self.bounced_bytes -= bounced;
        }
    }

    /// The number of aborted tasks whose memory is still in use.
    pub fn draining_task_count(&self) -> usize {
        self.draining
    }

    /// The number of tasks whose memory is in use.
    pub fn in_flight_task_count(&self) -> usize {
        self.running + self.draining
    }
}

impl TaskSlot {
    /// Whether there is a task that was not aborted.
    fn has_unaborted_task(&self) -> bool {
        !matches!(self.state, TaskSlotState::Free | TaskSlotState::Draining)
    }
}
