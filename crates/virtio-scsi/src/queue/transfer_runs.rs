//! Runs of plain reads and writes to one disk, in submission and in completion: checks and counts are made once per run.

use block::DiskIo;
use telemetry::queue::AdmitTimeAndKind;

use super::Queue;

/// Consecutive plain reads and writes of one turn that go to the same disk.
#[derive(Default)]
pub(super) struct SubmissionRun {
    /// Their address, as their headers have it; 0, which is no address: there is no run.
    pub lun: u64,
    /// The index of the disk.
    pub disk: u32,
    /// How many more the disk has room for.
    pub room: u32,
    /// How many it had room for before the first of them.
    room_before: u32,
}

/// Consecutive completions of plain reads or writes that were admitted together and have succeeded.
#[derive(Default)]
pub(super) struct CompletionRun {
    pub admit_time: AdmitTimeAndKind,
    pub disk: u32,
    pub commands: u32,
    pub bytes: u64,
    pub now: u64,
}

impl Queue {
    /// Begins a run to this address. False: there is no disk, it has no room, or a command has to wait.
    #[inline(never)]
    pub(super) fn try_switch_submission_run_to_lun(&mut self, lun: u64, io: &impl DiskIo) -> bool {
        self.count_and_end_submission_run();
        let Some((disk_index, disk)) = self.table.find_disk_by_header_lun(lun) else {
            return false;
        };
        if !disk.view.refresh_and_select_unit(disk.address.lun)
            || !disk.tasks.simple_tasks_may_start()
        {
            return false;
        }
        let room = u32::try_from(io.room(disk_index)).unwrap_or(u32::MAX);
        if room == 0 {
            return false;
        }
        self.submission_run = SubmissionRun {
            lun,
            disk: disk_index,
            room,
            room_before: room,
        };
        true
    }

    /// Ends the run: another address follows, or nothing.
    pub(super) fn count_and_end_submission_run(&mut self) {
        let SubmissionRun {
            lun,
            disk,
            room,
            room_before,
        } = std::mem::take(&mut self.submission_run);
        if lun != 0 {
            let commands = room_before - room;
            self.table
                .task_set_of_disk(disk)
                .add_started_simple_tasks(commands);
            self.counts.add_in_flight_of_disk(disk, commands);
        }
    }

    /// Begins a run of completions from this disk, of commands with this admit time. False: a command waits for them.
    #[inline(never)]
    pub(super) fn try_begin_completion_run(
        &mut self,
        admit_time: AdmitTimeAndKind,
        disk: u32,
        now: u64,
    ) -> bool {
        self.count_and_end_completion_run();
        if !self.table.task_set_of_disk(disk).none_waiting() {
            return false;
        }
        (
            self.completion_run.admit_time,
            self.completion_run.disk,
            self.completion_run.now,
        ) = (admit_time, disk, now);
        true
    }

    /// Ends the run of completions, and counts it.
    pub(super) fn count_and_end_completion_run(&mut self) {
        let done = std::mem::take(&mut self.completion_run);
        if done.commands > 0 {
            self.table
                .task_set_of_disk(done.disk)
                .subtract_finished_simple_tasks(done.commands);
            self.counts.count_succeeded_run(&done);
        }
    }
}
