//! Requests that the disk has failed and that wait, as the export's policy has it, until somebody says how to go on.
//!
//! They keep their slots, and the memory map that they came with. The others of the queue go on: no driver may rely on an
//! order among requests that are under way, and a flush is about those that were answered before it. Who waits until the queue
//! has settled does not wait for them: what they ask of the disk is decided anew when they are tried again.

use std::collections::VecDeque;

use block::Engines;
use engine::Errno;
use virtio_blk::Retried;
use virtqueue::planted::{Mistake, is_planted};

use super::Vring;
use crate::on_error::ErrorAction;
use crate::served::{Blk, Served};
use crate::waiting::Resume;

/// A block request that waits.
struct Waits {
    slot: u32,
    /// The guest's requests that were joined to it.
    requests: u32,
    errno: Errno,
}

/// Those of a queue.
#[derive(Default)]
pub(super) struct Waiting {
    /// In the order in which they failed.
    list: VecDeque<Waits>,
    /// So many of the first are to be tried again, as soon as there is room.
    retries: usize,
    /// All of them are, once the queue is enabled.
    when_enabled: bool,
    /// Requests of the guest.
    requests: u32,
    /// Those that wait when the queue stops may stay in its record.
    stay: bool,
}

impl Waiting {
    /// Some wait for room to be tried again.
    #[inline]
    pub fn wants_room(&self) -> bool {
        self.retries > 0
    }

    /// Whoever starts the queue next finds its record.
    pub fn stays(&self) -> bool {
        self.stay
    }
}

impl Vring {
    /// Requests of the guest that wait.
    pub fn waiting(&self) -> u32 {
        self.waiting.requests
    }

    /// The disk has failed a block request: what the guest is to be told, if it is told anything.
    #[cold]
    #[inline(never)]
    pub(super) fn failed(&mut self, slot: u32, errno: Errno) -> Option<Result<(), Errno>> {
        let (Some(reports), Served::Blk(Blk { queue, .. })) = (&self.reports, &self.served) else {
            return Some(Err(errno));
        };
        match reports.export.failed(queue.is_read(slot), errno) {
            ErrorAction::Ignore => return Some(Ok(())),
            ErrorAction::Stop => {}
            ErrorAction::Report => return Some(Err(errno)),
        }
        let requests = u32::try_from(queue.joined(slot).count()).unwrap_or(u32::MAX);
        reports.export.waiting().more(requests, errno);
        self.waiting.requests += requests;
        self.waiting.list.push_back(Waits {
            slot,
            requests,
            errno,
        });
        self.end_settling();
        None
    }

    /// What waits goes on. True: it was all answered, or is under way, or waits for the queue to be enabled.
    #[must_use]
    pub fn resume(&mut self, how: Resume, engines: &mut Engines, now: u64) -> bool {
        match how {
            Resume::Report => {
                while let Some(waits) = self.next_waiting() {
                    self.give_up(&waits, engines, now);
                }
                true
            }
            Resume::Retry => {
                self.waiting.retries = self.waiting.list.len();
                if is_planted(Mistake::ParkedForgotten) {
                    self.waiting.retries = self.waiting.retries.saturating_sub(1);
                }
                self.retry(engines, now)
            }
        }
    }

    /// The queue takes requests again. As for [`resume`](Self::resume).
    #[must_use]
    pub fn resume_enabled(&mut self, engines: &mut Engines, now: u64) -> bool {
        let waits = self.enabled && std::mem::take(&mut self.waiting.when_enabled);
        !waits || self.resume(Resume::Retry, engines, now)
    }

    /// Tries as many as there is room for; true: all that are to be tried again. None while the queue is disabled: its disk
    /// may be about to be exchanged.
    pub(super) fn retry(&mut self, engines: &mut Engines, now: u64) -> bool {
        while self.waiting.retries > 0 {
            if !self.enabled {
                self.waiting.retries = 0;
                self.waiting.when_enabled = true;
                return true;
            }
            let Served::Blk(blk) = &self.served else {
                return true;
            };
            if engines.room(&blk.route) == 0 {
                return false;
            }
            let Some(waits) = self.next_waiting() else {
                return true;
            };
            let Served::Blk(blk) = &mut self.served else {
                return true;
            };
            if blk.retry(waits.slot, engines) == Retried::Beyond {
                self.give_up(&waits, engines, now);
            }
        }
        true
    }

    /// Whoever starts the queue next finds the record, if there is one.
    pub fn leave_waiting(&mut self) {
        self.waiting.stay = true;
    }

    /// The queue stops, and nothing else is in flight. What is recorded stays so if it [may](Self::leave_waiting), and is
    /// found there. Else what was taken last is given back as if it had not been taken: whoever
    /// goes on with the ring takes it again. If others were taken after the first that waits, which the ring cannot say, the
    /// guest is told that they failed.
    pub fn return_waiting(&mut self, engines: &mut Engines, now: u64) {
        let Served::Blk(Blk { queue, .. }) = &self.served else {
            return;
        };
        let list = self.waiting.list.iter();
        let slots = list.flat_map(|waits| queue.joined(waits.slot));
        let chains: Vec<_> = slots.map(|slot| queue.chain(slot)).collect();
        if chains.is_empty() {
            return;
        }
        let stay = self.waiting.stay && self.ring.has_recorder();
        let given_back = stay || self.ring.unpop_all(&chains);
        if stay {
            tracing::info!(
                queue = self.served.name().to_string(),
                requests = chains.len(),
                "requests that waited after an error stay in the front-end's record of what is in flight"
            );
        } else if !given_back {
            tracing::warn!(
                queue = self.served.name().to_string(),
                requests = chains.len(),
                advice = "to keep such requests, resume or end them before their front-end stops the queue",
                "requests that waited after an error are reported as failed: the queue stops"
            );
        }
        while let Some(waits) = self.next_waiting() {
            if !given_back {
                self.give_up(&waits, engines, now);
            } else if let Served::Blk(Blk { queue, .. }) = &mut self.served {
                let taken = queue.taken(waits.slot);
                queue.take_back(waits.slot);
                if taken < self.generation {
                    self.release(taken, waits.requests, engines);
                }
            }
        }
    }

    /// How many of those that wait were taken before the present generation.
    pub(super) fn waiting_from_before(&self) -> u32 {
        let Served::Blk(Blk { queue, .. }) = &self.served else {
            return 0;
        };
        let list = self.waiting.list.iter();
        let older = list.filter(|waits| queue.taken(waits.slot) < self.generation);
        older.map(|waits| waits.requests).sum()
    }

    /// Tells of requests that were taken in this time and are not done. Those that wait have been told of.
    pub fn look_for_late(&self, after: u64, until: u64) {
        let (Some(reports), Served::Blk(Blk { queue, .. })) = (&self.reports, &self.served) else {
            return;
        };
        let list = self.waiting.list.iter();
        let waiting: Vec<u32> = list.flat_map(|waits| queue.joined(waits.slot)).collect();
        let (requests, oldest) = queue.older(after, until, |slot| waiting.contains(&slot));
        if requests > 0 {
            let oldest_ticks = self.clock.now().saturating_sub(oldest);
            reports.export.late(reports.queue, requests, oldest_ticks);
        }
    }

    fn next_waiting(&mut self) -> Option<Waits> {
        let Waiting {
            list,
            retries,
            requests,
            ..
        } = &mut self.waiting;
        let waits = list.pop_front()?;
        *retries = retries.saturating_sub(1);
        *requests -= waits.requests;
        if let Some(reports) = &self.reports {
            reports.export.waiting().less(waits.requests);
        }
        Some(waits)
    }

    /// The guest is told that it failed.
    fn give_up(&mut self, waits: &Waits, engines: &mut Engines, now: u64) {
        if let (Some(reports), Served::Blk(Blk { queue, .. })) = (&self.reports, &self.served) {
            reports
                .export
                .reported(queue.is_read(waits.slot), waits.errno);
        }
        self.answer(waits.slot, Err(waits.errno), engines, now);
        // Seldom enough to be told one by one, whatever the loop is at. What it has on its list is still to be settled.
        self.publish(|| ());
        self.unsettled |= self.unpublished;
    }
}
