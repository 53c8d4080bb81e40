//! The machine, which works and breaks: the iothread runs, kicks arrive, the kernel ends requests, processes are killed, power
//! fails.

use std::os::fd::RawFd;

use engine::Errno;
use virtqueue::store_hook::{end_simulated_process, run_with_hook};

use crate::daemon::Running;
use crate::disk::DiskOp;
use crate::failure::Failure;
use crate::guest::Guest;
use crate::model::SECTOR;
use crate::nodes::REWRITTEN_SECTORS;
use crate::plan::{End, Event};
use crate::poller::Wakeups;
use crate::random::Random;

use super::World;

/// Where the kicks of a queue go.
type Kick = (Wakeups, RawFd);

fn deliver(guest: &mut Guest, kicks: &[Option<Kick>]) {
    for (queue, kick) in guest.queues.iter_mut().zip(kicks) {
        for _ in 0..std::mem::take(&mut queue.kicks) {
            if let Some((wakeups, fd)) = kick {
                wakeups.state().kick(*fd);
            }
        }
    }
}

/// Executes an event that does not concern the daemon, also while it runs.
pub(super) fn act(guest: &mut Guest, event: &Event) {
    match *event {
        Event::Publish { queue, kicks } => guest.publish(queue.into(), kicks),
        Event::Look { queue, then } => {
            guest.look(queue.into(), then);
        }
        Event::Copy { pages, pick } => guest.copy(pages, pick),
        _ => {}
    }
}

impl World {
    fn kicks(&self) -> Vec<Option<Kick>> {
        let Some(daemon) = &self.daemon else {
            return Vec::new();
        };
        let kick = |running: Running| (daemon.wakeups(running.place.iothread), running.kick);
        daemon.queues.iter().map(|queue| queue.map(kick)).collect()
    }

    pub(super) fn deliver_kicks(&mut self) {
        deliver(&mut self.guest.borrow_mut(), &self.kicks());
        // Without a daemon they are lost.
        for queue in &mut self.guest.borrow_mut().queues {
            queue.kicks = 0;
        }
    }

    pub(super) fn late_kicks(&mut self) {
        for queue in &mut self.guest.borrow_mut().queues {
            queue.kicks += u8::from(std::mem::take(&mut queue.late_kick));
        }
        self.deliver_kicks();
    }

    pub(super) fn iterate(&mut self, pick: usize) {
        if let Some(daemon) = &self.daemon {
            let (index, iothread) = daemon.iothread(pick);
            iothread.borrow_mut().iterate();
            self.has_run(index);
        }
    }

    /// One iteration, in which the guest does something before a certain store, or another iothread runs.
    pub(super) fn between(&mut self, pick: usize, store: u8, event: &Event) {
        let kicks = self.kicks();
        let Some(daemon) = &self.daemon else {
            return;
        };
        let (index, iothread) = daemon.iothread(pick);
        let other = match *event {
            Event::Run { iothread, .. } => Some(daemon.iothread(iothread.into())),
            _ => None,
        };
        let other = other.filter(|(other, _)| *other != index);
        let ran = other.as_ref().map(|(other, _)| *other);
        let (guest, event) = (self.guest.clone(), event.clone());
        let mut left = Some(store);
        let hook = move || {
            left = left.and_then(|left| match left.checked_sub(1) {
                None => {
                    let trace = guest.borrow().trace.clone();
                    trace.say(|| format!("  (while iothread {index} runs:)"));
                    if let Some((_, other)) = &other {
                        other.borrow_mut().iterate();
                        return None;
                    }
                    let mut guest = guest.borrow_mut();
                    act(&mut guest, &event);
                    deliver(&mut guest, &kicks);
                    None
                }
                less => less,
            });
        };
        run_with_hook(Box::new(hook), || iothread.borrow_mut().iterate());
        self.has_run(index);
        if let Some(other) = ran {
            self.has_run(other);
        }
    }

    /// The process ends before a certain store of an iothread.
    pub(super) fn kill(&mut self, pick: usize, store: u16, salt: u32) {
        let Some(daemon) = &self.daemon else {
            return;
        };
        let (_, iothread) = daemon.iothread(pick);
        let run = || (0..2).for_each(|_| iothread.borrow_mut().iterate());
        let mut left = store;
        let hook = move || match left.checked_sub(1) {
            None => end_simulated_process(),
            Some(less) => left = less,
        };
        run_with_hook(Box::new(hook), run);
        self.seen.add("kills", 1);
        self.has_lost_log = self.config.inflight && self.config.suspends;
        self.ended(salt);
        if !self.config.inflight {
            let mut guest = self.guest.borrow_mut();
            let driver = guest.cache.driver;
            guest.reset(driver);
            guest.takes_back();
            drop(guest);
            self.new_queues();
        }
    }

    /// The process is gone.
    fn ended(&mut self, salt: u32) {
        let mut random = Random::new(salt.into());
        // SAFETY: the memory is mapped as long as the daemon, which is dropped behind this, and the guest.
        unsafe {
            for disk in self.kernel.state().disks() {
                disk.abandon(&mut random);
            }
        }
        self.waits = None;
        self.job = None;
        self.daemon = None;
        self.begin_throttling();
        self.client_is_gone();
        self.kernel.state().answers.clear();
        for known in &mut self.known {
            // What it has said before it stopped still holds.
            known.clean &= known.base.is_some();
            known.disabling = false;
        }
    }

    pub(super) fn power_fail(&mut self, salt: u32) {
        self.seen.add("power-failures", 1);
        let mut random = Random::new(salt.into());
        // SAFETY: as for `ended`.
        unsafe {
            for disk in self.kernel.state().disks() {
                disk.fail(&mut random);
            }
        }
        self.ended(salt);
        let mut guest = self.guest.borrow_mut();
        guest.power_failed();
        if let Err(wrong) = guest.check_disk(self.kernel.state().disk().bytes()) {
            guest.wrong = Some(format!("after a power failure: {wrong}"));
        }
        drop(guest);
        self.new_queues();
    }

    pub(super) fn complete(&mut self, pick: usize, how: End) {
        let mut state = self.kernel.state();
        let Some(daemon) = &self.daemon else {
            return;
        };
        let Some((disk, is_guests, index)) = state.pick(pick) else {
            return;
        };
        let (does, offset) = (disk.held[index].does, disk.held[index].offset);
        let len = disk.held[index].len();
        let sectors = (offset / SECTOR) as u64..(offset + len).div_ceil(SECTOR) as u64;
        self.trace.say(|| {
            let what = match does {
                DiskOp::Flush => "flush".to_owned(),
                DiskOp::Read => format!("read of {sectors:?}"),
                DiskOp::Write { .. } => format!("write of {sectors:?}"),
                DiskOp::Zeroes { .. } => format!("zeroes in {sectors:?}"),
            };
            let whose = if is_guests { "" } else { " of the target" };
            format!("kernel: ends a {what}{whose}: {how:?}")
        });
        let errno = match how {
            End::Error => {
                self.seen.add("errors", 1);
                Errno::IO
            }
            End::NoSpace => {
                self.seen.add("no-space", 1);
                Errno::NOSPC
            }
            End::Whole | End::Short(_) => {
                let max = match how {
                    // Zeroes are written, or they are not.
                    End::Short(words) if !matches!(does, DiskOp::Zeroes { .. }) => {
                        self.seen.add("short", 1);
                        (usize::from(words) + 1) * 8
                    }
                    _ => usize::MAX,
                };
                // SAFETY: who asked for it keeps the buffers until it is done.
                let (held, moved) = unsafe { disk.carry_out(index, max) };
                if state.post(held.name, i64::try_from(moved).expect("small")) {
                    daemon.wakeups(held.name.iothread).state().completed();
                }
                return;
            }
        };
        // With the rest of it all fails that was joined to one request.
        let began = (disk.held[index].began / SECTOR) as u64;
        let held = disk.held.remove(index);
        if state.post(held.name, -i64::from(errno.raw_os_error())) {
            daemon.wakeups(held.name.iothread).state().completed();
        }
        drop(state);
        self.job_may_fail();
        if !is_guests && !self.may_use_both_disks() {
            return;
        }
        let read = does == DiskOp::Read;
        self.failed(&Failure {
            read,
            flush: does == DiskOp::Flush,
            sectors: began..sectors.end,
        });
        if read && self.filters.rewrites {
            // It may be that of a write which begins later in the same block.
            self.failed(&Failure {
                read: false,
                flush: false,
                sectors: began..began + REWRITTEN_SECTORS,
            });
        }
    }

    /// The disk has failed something: whatever may be that may fail, and be parked.
    pub(super) fn failed(&mut self, failure: &Failure) {
        (self.may_be_parked, self.has_just_failed) = (true, true);
        self.guest.borrow_mut().failed(failure);
        self.client.failed(failure);
    }

    pub(super) fn work(&mut self, pick: usize, fails: bool) {
        let Some(daemon) = &self.daemon else {
            return;
        };
        let count = daemon.waiting_job_count();
        if count == 0 {
            return;
        }
        if fails {
            self.seen.add("failed-jobs", 1);
        }
        daemon.run_or_fail_job(pick % count, fails.then_some(Errno::IO));
        if fails {
            self.job_may_fail();
            for read in [true, false] {
                let (flush, sectors) = (!read, 0..u64::MAX);
                self.failed(&Failure {
                    read,
                    flush,
                    sectors,
                });
            }
        }
    }
}
