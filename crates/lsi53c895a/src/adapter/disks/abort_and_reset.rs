//! The end of tasks before they finish: aborts of single tasks, and resets of logical units, of targets and of the bus.

use engine::Errno;

use super::DisksAndTasks;
use crate::adapter::memory_generations::MemoryGenerations;
use crate::adapter::slot::TaskStage;
use crate::chip::{AbortOutcome, ResetScope, TaskSlotId};

impl DisksAndTasks {
    /// Aborts a task. If a request of it is in flight, its memory stays in use until that is done.
    pub fn abort_task(&mut self, memory: &mut MemoryGenerations, id: TaskSlotId) -> AbortOutcome {
        let index = id.index;
        let slot = &mut self.slots[usize::from(index)];
        let aborted = match slot.stage {
            TaskStage::Free | TaskStage::Aborted => AbortOutcome::Done,
            TaskStage::Received => {
                slot.task.cancel();
                AbortOutcome::Done
            }
            TaskStage::Waiting => {
                slot.task.cancel();
                if let Some(generation) = slot.memory_generation.take() {
                    memory.end_use_of_generation(generation);
                }
                if let Some(disk) = slot.disk {
                    let admitted = &mut self.admitted;
                    self.disks[disk]
                        .tasks
                        .remove_waiting_and_start_others(index, |next| admitted.push_back(next));
                }
                AbortOutcome::Done
            }
            TaskStage::Running => {
                slot.task.cancel();
                self.release_memory_and_admit_next(memory, index);
                AbortOutcome::Done
            }
            TaskStage::Submitted => {
                slot.task.cancel();
                match self.queued.iter().position(|(queued, _)| *queued == index) {
                    Some(at) => {
                        self.queued.remove(at);
                        slot.task.on_step_completed(Err(Errno::CANCELED));
                        self.release_memory_and_admit_next(memory, index);
                        AbortOutcome::Done
                    }
                    None => AbortOutcome::Later,
                }
            }
            // Its status waits for that of another failed task, or was not reported yet.
            TaskStage::Finished => {
                self.finished.retain(|(finished, _)| *finished != id);
                self.end_report_and_start_next(index, false);
                AbortOutcome::Done
            }
        };
        self.slots[usize::from(index)].stage = match aborted {
            AbortOutcome::Done => TaskStage::Free,
            AbortOutcome::Later => TaskStage::Aborted,
        };
        self.run_ready_tasks(memory);
        aborted
    }

    /// Resets the logical units that a reset concerns, and drops their sense data.
    pub fn reset_units(&mut self, scope: ResetScope) {
        for bus_disk in &mut self.disks {
            let (concerned, reset) = match scope {
                ResetScope::Bus => (true, scsi::BusOrUnitReset::Bus),
                ResetScope::Target(target) => {
                    (bus_disk.disk.target == target, scsi::BusOrUnitReset::Unit)
                }
                ResetScope::Unit(nexus) => (
                    (bus_disk.disk.target, bus_disk.disk.lun) == (nexus.target, nexus.lun),
                    scsi::BusOrUnitReset::Unit,
                ),
            };
            if concerned {
                bus_disk.sense.reset();
                bus_disk.disk.unit.reset(reset);
            }
        }
    }
}
