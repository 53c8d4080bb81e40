//! Statistics of a queue: commands that access the disk, by the kind of their first block request, and commands that are
//! answered without it, by the kind that they would have had. Each counts for its queue and for its disk.

use std::sync::Arc;

use block::Request;
use scsi::{OpAndFirstLba, Status};
use telemetry::queue::{QueueStats, RequestKind, RequestStatsWriter};

use super::transfer_runs::CompletionRun;
use crate::slots::Slot;

/// Statistics of a queue and of its disks.
pub(super) struct CommandCounts {
    pub queue: Arc<QueueStats>,
    /// By index of the disk.
    disks: Vec<Arc<QueueStats>>,
    writer: RequestStatsWriter,
}

impl CommandCounts {
    pub fn new(queue: Arc<QueueStats>) -> Self {
        CommandCounts {
            queue,
            disks: Vec::new(),
            writer: RequestStatsWriter::default(),
        }
    }

    /// Replaces the statistics of its disks. Nothing is in flight.
    pub fn set_disk_stats(&mut self, disks: Vec<Arc<QueueStats>>) {
        self.disks = disks;
    }

    /// Adds commands that have begun to use a disk to those that it has in flight.
    pub fn add_in_flight_of_disk(&self, disk: u32, commands: u32) {
        self.disks[disk as usize].in_flight().add(commands.into());
    }

    /// Raises the highest written offset to `end`.
    #[inline(never)]
    pub fn raise_highest_written_offset(&self, disk: u32, end: u64) {
        self.queue.wr_highest_offset().raise_to(end);
        self.disks[disk as usize].wr_highest_offset().raise_to(end);
    }

    /// Counts a run of plain reads and writes that have succeeded and took the same time.
    pub fn count_succeeded_run(&mut self, done: &CompletionRun) {
        let (kind, ticks) = (
            done.admit_time.kind(),
            done.admit_time.ticks_until(done.now),
        );
        let (requests, bytes) = (done.commands.into(), done.bytes);
        self.writer
            .add_succeeded(&self.queue, kind, requests, bytes, ticks);
        self.queue.last_success_ticks().set(done.now);
        let disk = &self.disks[done.disk as usize];
        disk.of_kind(kind).add_succeeded(requests, bytes, ticks);
        disk.last_success_ticks().set(done.now);
        disk.in_flight().subtract(requests);
    }

    /// Counts a block request of a command that is submitted. The first one decides the kind of the command.
    #[inline]
    pub fn count_submitted_and_set_kind(&self, slot: &mut Slot, disk: u32, request: &Request) {
        let kind = request.op.request_kind();
        if slot.kind.is_none() {
            slot.kind = Some(kind);
            self.add_in_flight_of_disk(disk, 1);
        }
        slot.bytes += request.len;
        if kind == RequestKind::Write {
            self.raise_highest_written_offset(disk, request.offset + request.len);
        }
    }

    /// Counts a command that has finished, `now` in ticks.
    #[inline]
    pub fn count_finished_command(&mut self, slot: &Slot, now: u64) {
        let (Some(kind), Some(disk)) = (slot.kind, slot.unit_index.disk) else {
            return self.count_command_without_disk(slot);
        };
        let disk = &self.disks[disk as usize];
        disk.in_flight().subtract(1);
        if slot.cancelled.is_none() && slot.task.status() == Status::Good {
            let ticks = slot.admit_time.ticks_until(now);
            self.writer
                .add_succeeded(&self.queue, kind, 1, slot.bytes, ticks);
            disk.of_kind(kind).add_succeeded(1, slot.bytes, ticks);
            self.queue.last_success_ticks().set(now);
            disk.last_success_ticks().set(now);
        }
    }

    /// Counts a command that was answered without its disk: as invalid, or as done in no time.
    #[cold]
    fn count_command_without_disk(&mut self, slot: &Slot) {
        let (None, Some(asked)) = (slot.cancelled, OpAndFirstLba::of_cdb(&slot.cdb)) else {
            return;
        };
        let kind = asked.op.request_kind();
        let disk = slot.unit_index.disk.map(|disk| &self.disks[disk as usize]);
        if slot.task.status() == Status::Good {
            self.writer.add_succeeded(&self.queue, kind, 1, 0, 0);
            if let Some(disk) = disk {
                disk.of_kind(kind).add_succeeded(1, 0, 0);
            }
        } else {
            for stats in [Some(&self.queue), disk].into_iter().flatten() {
                stats.of_kind(kind).invalid.add(1);
            }
        }
    }

    /// Counts a failed block request.
    #[cold]
    pub fn count_failed_block_request(&self, slot: &Slot) {
        if let (Some(kind), Some(disk)) = (slot.kind, slot.unit_index.disk) {
            self.queue.of_kind(kind).failed.add(1);
            self.disks[disk as usize].of_kind(kind).failed.add(1);
        }
    }

    /// Publishes the number of commands in flight at the end of a batch.
    #[inline]
    pub fn set_in_flight_count(&self, in_flight: u32) {
        self.queue.in_flight().set(in_flight.into());
    }

    /// Counts a turn of the queue.
    #[inline]
    pub fn count_turn_and_set_in_flight(&self, in_flight: u32) {
        self.queue.turns().add(1);
        self.queue.in_flight().set(in_flight.into());
    }
}
