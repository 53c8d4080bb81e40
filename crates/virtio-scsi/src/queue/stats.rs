//! Counts of a queue: commands that ask the disk, by what they ask first, and those that it is spared, by what they
//! would have asked. Each counts for its queue and for its disk.

use std::sync::Arc;

use block::Request;
use scsi::{Asked, Status};
use telemetry::queue::{Kind, QueueStats, Tally};

use super::together::Done;
use crate::slots::Slot;

/// A queue's figures, and those of its disks.
pub(super) struct Counts {
    pub queue: Arc<QueueStats>,
    /// By their places.
    disks: Vec<Arc<QueueStats>>,
    tally: Tally,
}

impl Counts {
    pub fn new(queue: Arc<QueueStats>) -> Self {
        Counts {
            queue,
            disks: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// Of its disks from now on. Nothing is in flight.
    pub fn set_disks(&mut self, disks: Vec<Arc<QueueStats>>) {
        self.disks = disks;
    }

    /// Commands ask their disk.
    pub fn ask(&self, disk: u32, commands: u32) {
        self.disks[disk as usize].in_flight().add(commands.into());
    }

    /// One that writes does, which ends there.
    #[inline(never)]
    pub fn reaches(&self, disk: u32, end: u64) {
        self.queue.highest_offset().raise(end);
        self.disks[disk as usize].highest_offset().raise(end);
    }

    /// Plain reads and writes have succeeded, which took the same time.
    pub fn succeeded(&mut self, done: &Done) {
        let (kind, ticks) = (done.stamp.kind(), done.stamp.ticks_until(done.now));
        let (requests, bytes) = (done.commands.into(), done.bytes);
        self.tally.add(&self.queue, kind, requests, bytes, ticks);
        self.queue.last_ticks().set(done.now);
        let disk = &self.disks[done.disk as usize];
        disk.of(kind).succeeded(requests, bytes, ticks);
        disk.last_ticks().set(done.now);
        let in_flight = disk.in_flight();
        in_flight.set(in_flight.get().saturating_sub(requests));
    }

    /// A command asks its disk for something.
    #[inline]
    pub fn asks(&self, slot: &mut Slot, disk: u32, request: &Request) {
        let kind = request.op.kind();
        if slot.kind.is_none() {
            slot.kind = Some(kind);
            self.ask(disk, 1);
        }
        slot.bytes += request.len;
        if kind == Kind::Write {
            self.reaches(disk, request.offset + request.len);
        }
    }

    /// A command is over, `now` in ticks.
    #[inline]
    pub fn finished(&mut self, slot: &Slot, now: u64) {
        let (Some(kind), Some(disk)) = (slot.kind, slot.place.disk) else {
            return self.was_spared(slot);
        };
        let disk = &self.disks[disk as usize];
        disk.in_flight()
            .set(disk.in_flight().get().saturating_sub(1));
        if slot.cancelled.is_none() && slot.task.status() == Status::Good {
            let ticks = slot.stamp.ticks_until(now);
            self.tally.add(&self.queue, kind, 1, slot.bytes, ticks);
            disk.of(kind).succeeded(1, slot.bytes, ticks);
            self.queue.last_ticks().set(now);
            disk.last_ticks().set(now);
        }
    }

    /// It was answered without its disk: as refused, or as done, which took no time.
    #[cold]
    fn was_spared(&mut self, slot: &Slot) {
        let (None, Some(asked)) = (slot.cancelled, Asked::by(&slot.cdb)) else {
            return;
        };
        let kind = asked.op.kind();
        let disk = slot.place.disk.map(|disk| &self.disks[disk as usize]);
        if slot.task.status() == Status::Good {
            self.tally.add(&self.queue, kind, 1, 0, 0);
            if let Some(disk) = disk {
                disk.of(kind).succeeded(1, 0, 0);
            }
        } else {
            for stats in [Some(&self.queue), disk].into_iter().flatten() {
                stats.of(kind).invalid.add(1);
            }
        }
    }

    /// The disk has failed.
    #[cold]
    pub fn failed(&self, slot: &Slot) {
        if let (Some(kind), Some(disk)) = (slot.kind, slot.place.disk) {
            self.queue.of(kind).failed.add(1);
            self.disks[disk as usize].of(kind).failed.add(1);
        }
    }

    /// What was completed so far is published, and so many commands are in flight.
    #[inline]
    pub fn end_batch(&self, in_flight: u32) {
        self.queue.in_flight().set(in_flight.into());
    }

    /// The queue had its turn.
    #[inline]
    pub fn end_turn(&self, in_flight: u32) {
        self.queue.turns().add(1);
        self.queue.in_flight().set(in_flight.into());
    }
}
