//! What a started virtqueue does otherwise if it is a controller's.

use block::Engines;
use engine::Completion;
use virtio_blk::Admission;
use virtqueue::Chain;

use super::{ADMIT_BUDGET, Vring};
use crate::scsi::{Around, AttachedDisk, Scsi, ScsiMail};
use crate::served::Served;

impl Vring {
    /// Its controller's part, with what that needs around it.
    fn scsi<'a>(
        &'a mut self,
        engines: &'a mut Engines,
        now: u64,
    ) -> Option<(&'a mut Scsi, Around<'a>)> {
        let Served::Scsi(scsi) = &mut self.served else {
            return None;
        };
        let around = Around {
            ring: &mut self.ring,
            memory: &self.memory,
            engines,
            now,
        };
        Some((scsi, around))
    }

    /// Its turn. `None`: the guest broke it; or it waits for something to happen, and is told then.
    #[inline(never)]
    pub(super) fn admit_scsi(
        &mut self,
        chain: &mut Chain,
        engines: &mut Engines,
    ) -> Option<Admission> {
        let now = self.clock.now();
        let (scsi, around) = self.scsi(engines, now)?;
        if !scsi.wants_chains() {
            return None;
        }
        let admission = scsi.admit(around, chain, ADMIT_BUDGET);
        self.release_old(engines);
        self.end_if_finished();
        match admission {
            Ok(admission) => Some(admission),
            Err(error) => {
                self.break_down(&error);
                None
            }
        }
    }

    /// Phase 2 of a controller's block request, `now` in ticks, and of as many of those that follow it as are returned.
    #[inline(never)]
    pub fn complete_scsi(
        &mut self,
        slot: u32,
        result: Result<(), engine::Errno>,
        following: &[Completion],
        engines: &mut Engines,
        now: u64,
    ) -> usize {
        if result.is_ok()
            && let Served::Scsi(scsi) = &mut self.served
            && let Some(others) = scsi.complete_transfers(slot, following, &mut self.ring, now)
        {
            return others;
        }
        self.complete_command(slot, result, engines, now);
        0
    }

    /// What is not a plain read or write, or is unusual otherwise.
    #[inline(never)]
    fn complete_command(
        &mut self,
        slot: u32,
        result: Result<(), engine::Errno>,
        engines: &mut Engines,
        now: u64,
    ) {
        if let Some((scsi, around)) = self.scsi(engines, now) {
            scsi.complete(slot, result, around);
        }
        self.release_old(engines);
    }

    /// Another queue of its controller has something to say. False: it was not meant.
    pub fn told(&mut self, mail: ScsiMail, engines: &mut Engines, now: u64) -> bool {
        let told = match self.scsi(engines, now) {
            Some((scsi, around)) => scsi.told(mail, around),
            None => false,
        };
        // The notify phase follows in any case.
        self.take_answered();
        self.release_old(engines);
        if self.broken {
            self.end_admissions();
        }
        self.end_if_finished();
        told
    }

    /// A queue that stops has taken the last that it still takes.
    fn end_if_finished(&mut self) {
        if self.stopping.is_some() && !self.finishes() {
            self.end_admissions();
        }
    }

    /// Hands over what found no room before. True: nothing waits any more.
    pub fn hand_over_deferred(&mut self, engines: &mut Engines) -> bool {
        match &mut self.served {
            Served::Blk(_) if self.waiting.wants_room() => {
                let now = self.clock.now();
                self.retry(engines, now)
            }
            Served::Blk(_) => true,
            Served::Scsi(scsi) => scsi.hand_over_deferred(engines),
        }
    }

    /// What was finished with an older memory map.
    fn release_old(&mut self, engines: &mut Engines) {
        while let Served::Scsi(scsi) = &mut self.served
            && let Some(taken) = scsi.take_old()
        {
            self.release(taken, 1, engines);
        }
    }

    /// Nothing is taken off the ring any more, for good: nobody waits for that.
    pub fn end_admissions(&mut self) {
        if let Served::Scsi(scsi) = &mut self.served {
            scsi.end_admissions(&mut self.ring);
        }
    }

    /// The controller's disks are others; returns those that were. Nothing is in flight.
    pub fn set_disks(&mut self, disks: Vec<AttachedDisk>) -> Vec<AttachedDisk> {
        debug_assert_eq!(self.in_flight(), 0, "commands name disks by their places");
        match &mut self.served {
            Served::Blk(_) => disks,
            Served::Scsi(scsi) => scsi.set_disks(disks),
        }
    }
}
