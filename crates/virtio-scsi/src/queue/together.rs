//! Plain reads and writes that go to one disk together, or come back together: what is the same for all of them is done once.

use block::DiskIo;
use telemetry::queue::AdmitTime;

use super::Queue;

/// Those that go to the same disk, one after the other within one turn.
#[derive(Default)]
pub(super) struct Run {
    /// Their address, as it stands in their headers; 0, which is none: there are none.
    pub lun: u64,
    /// Its place.
    pub disk: u32,
    /// How many more the disk takes for sure.
    pub room: u32,
    /// How many it took before the first of them.
    room_before: u32,
}

/// Those that were taken together, of one kind, and have succeeded together.
#[derive(Default)]
pub(super) struct Done {
    pub stamp: AdmitTime,
    pub disk: u32,
    pub commands: u32,
    pub bytes: u64,
    pub now: u64,
}

impl Queue {
    /// What comes now is for this address. False: there is no disk, or it takes nothing, or something has to wait.
    #[inline(never)]
    pub(super) fn begin_run(&mut self, lun: u64, io: &impl DiskIo) -> bool {
        self.end_run();
        let Some((place, disk)) = self.table.disk(lun) else {
            return false;
        };
        if !disk.view.look_at(disk.address.lun) || !disk.tasks.is_open() {
            return false;
        }
        let room = u32::try_from(io.room(place)).unwrap_or(u32::MAX);
        if room == 0 {
            return false;
        }
        self.run = Run {
            lun,
            disk: place,
            room,
            room_before: room,
        };
        true
    }

    /// Something else comes, or nothing more.
    pub(super) fn end_run(&mut self) {
        let Run {
            lun,
            disk,
            room,
            room_before,
        } = std::mem::take(&mut self.run);
        if lun != 0 {
            let commands = room_before - room;
            self.table.tasks_of(disk).went(commands);
            self.counts.ask(disk, commands);
        }
    }

    /// What is over now was taken then, and has asked this disk. False: somebody waits for it.
    #[inline(never)]
    pub(super) fn begin_done(&mut self, stamp: AdmitTime, disk: u32, now: u64) -> bool {
        self.end_done();
        if !self.table.tasks_of(disk).nobody_waits() {
            return false;
        }
        (self.done.stamp, self.done.disk, self.done.now) = (stamp, disk, now);
        true
    }

    /// Nothing more is over, or something else.
    pub(super) fn end_done(&mut self) {
        let done = std::mem::take(&mut self.done);
        if done.commands > 0 {
            self.table.tasks_of(done.disk).ended(done.commands);
            self.counts.succeeded(&done);
        }
    }
}
