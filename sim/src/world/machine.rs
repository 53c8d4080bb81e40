//! What goes by itself, and what breaks: the iothread runs, kicks arrive, the kernel ends requests, processes are killed, power
//! fails.

use engine::Errno;
use virtqueue::steps::{kill, watched};

use crate::disk::Does;
use crate::guest::Guest;
use crate::model::SECTOR;
use crate::plan::{End, Event};
use crate::poller::Wakeups;
use crate::random::Random;

use super::World;

fn deliver(guest: &mut Guest, wakeups: &Wakeups, kicks: &[Option<i32>]) {
    for (queue, kick) in guest.queues.iter_mut().zip(kicks) {
        for _ in 0..std::mem::take(&mut queue.kicks) {
            if let Some(kick) = kick {
                wakeups.state().kick(*kick);
            }
        }
    }
}

/// What somebody beside the daemon does, also while it runs.
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
    fn kicks(&self) -> Vec<Option<i32>> {
        let queues = self.daemon.iter().flat_map(|daemon| &daemon.queues);
        queues
            .map(|queue| queue.map(|running| running.kick))
            .collect()
    }

    pub(super) fn deliver_kicks(&mut self) {
        if let Some(daemon) = &self.daemon {
            deliver(&mut self.guest.borrow_mut(), &daemon.wakeups, &self.kicks());
        }
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

    pub(super) fn iterate(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            daemon.iterate();
            self.has_run();
        }
    }

    /// One iteration, in which the guest does something before a certain store.
    pub(super) fn between(&mut self, store: u8, event: &Event) {
        let kicks = self.kicks();
        let Some(daemon) = &mut self.daemon else {
            return;
        };
        let (guest, wakeups, event) = (self.guest.clone(), daemon.wakeups.clone(), event.clone());
        let mut left = Some(store);
        let watcher = move || {
            left = left.and_then(|left| match left.checked_sub(1) {
                None => {
                    let mut guest = guest.borrow_mut();
                    guest
                        .trace
                        .say(|| "  (while the iothread runs:)".to_owned());
                    act(&mut guest, &event);
                    deliver(&mut guest, &wakeups, &kicks);
                    None
                }
                less => less,
            });
        };
        watched(Box::new(watcher), || daemon.iterate());
        self.has_run();
    }

    /// The process ends before a certain store.
    pub(super) fn kill(&mut self, store: u16, salt: u32) {
        let Some(daemon) = &mut self.daemon else {
            return;
        };
        let mut left = store;
        let watcher = move || match left.checked_sub(1) {
            None => kill(),
            Some(less) => left = less,
        };
        let ended = watched(Box::new(watcher), || (0..2).for_each(|_| daemon.iterate()));
        self.trace.say(|| match ended {
            None => format!("the process is killed before store {store}"),
            Some(()) => "the process is killed".to_owned(),
        });
        self.seen.kills += 1;
        self.has_lost_log = self.config.inflight && self.config.suspends;
        self.ended(salt);
        if !self.config.inflight {
            self.trace
                .say(|| "guest: nobody knows what was in flight: resets its device".to_owned());
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
        unsafe { self.kernel.state().disk.abandon(&mut random) };
        self.waits = None;
        self.daemon = None;
        self.kernel.state().answers.clear();
        for known in &mut self.known {
            // What it has said before it stopped still holds.
            known.clean &= known.base.is_some();
            known.disabling = false;
        }
    }

    pub(super) fn power_fail(&mut self, salt: u32) {
        self.trace.say(|| "power fails".to_owned());
        self.seen.power_failures += 1;
        let mut random = Random::new(salt.into());
        // SAFETY: as for `ended`.
        unsafe { self.kernel.state().disk.fail(&mut random) };
        self.ended(salt);
        let mut guest = self.guest.borrow_mut();
        guest.power_failed();
        if let Err(wrong) = guest.check_disk(self.kernel.state().disk.bytes()) {
            guest.wrong = Some(format!("after a power failure: {wrong}"));
        }
        drop(guest);
        self.new_queues();
    }

    pub(super) fn complete(&mut self, pick: usize, how: End) {
        let mut state = self.kernel.state();
        let count = state.disk.held.len();
        let Some(daemon) = self.daemon.as_ref().filter(|_| count > 0) else {
            return;
        };
        let index = pick % count;
        let (does, offset) = (state.disk.held[index].does, state.disk.held[index].offset);
        let len = state.disk.held[index].len();
        let sectors = (offset / SECTOR) as u64..(offset + len).div_ceil(SECTOR) as u64;
        self.trace.say(|| {
            let what = match does {
                Does::Flush => "flush".to_owned(),
                Does::Read => format!("read of {sectors:?}"),
                Does::Write { .. } => format!("write of {sectors:?}"),
                Does::Zeroes { .. } => format!("zeroes in {sectors:?}"),
            };
            format!("kernel: ends a {what}: {how:?}")
        });
        let errno = match how {
            End::Error => {
                self.seen.faults.errors += 1;
                Errno::IO
            }
            End::NoSpace => {
                self.seen.faults.no_space += 1;
                Errno::NOSPC
            }
            End::Whole | End::Short(_) => {
                let max = match how {
                    // Zeroes are written, or they are not.
                    End::Short(words) if !matches!(does, Does::Zeroes { .. }) => {
                        self.seen.faults.short += 1;
                        (usize::from(words) + 1) * 8
                    }
                    _ => usize::MAX,
                };
                // SAFETY: who asked for it keeps the buffers until it is done.
                let (held, moved) = unsafe { state.disk.carry_out(index, max) };
                if state.post(held.cookie, i64::try_from(moved).expect("small")) {
                    daemon.wakeups.state().completed();
                }
                return;
            }
        };
        (self.may_be_parked, self.has_just_failed) = (true, true);
        // With the rest of it all fails that was joined to one request.
        let began = (state.disk.held[index].began / SECTOR) as u64;
        self.guest
            .borrow_mut()
            .failed(does == Does::Read, does == Does::Flush, began..sectors.end);
        let held = state.disk.held.remove(index);
        if state.post(held.cookie, -i64::from(errno.raw_os_error())) {
            daemon.wakeups.state().completed();
        }
    }

    pub(super) fn work(&mut self, pick: usize, fails: bool) {
        let Some(daemon) = &mut self.daemon else {
            return;
        };
        let io = daemon.io();
        let count = io.jobs();
        if count == 0 {
            return;
        }
        self.trace.say(|| {
            format!(
                "a worker does a job{}",
                if fails { ", which fails" } else { "" }
            )
        });
        if fails {
            self.seen.faults.jobs += 1;
            (self.may_be_parked, self.has_just_failed) = (true, true);
            let mut guest = self.guest.borrow_mut();
            guest.failed(true, false, 0..u64::MAX);
            guest.failed(false, true, 0..u64::MAX);
        }
        io.run_job(pick % count, fails.then_some(Errno::IO));
    }
}
