//! The loop of one client thread: takes what has completed, sends it again, waits.
//!
//! This is what has to be light: a client that needs longer for a request than the server hides the
//! server. Per request: a head out of the used ring, a status byte, a block number, a head into the
//! available ring; per batch: a look at the clock, one index, one look whether to kick.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::Load;
use super::meter::{Meter, Tally};
use super::phase::Phases;
use super::plan::Plan;
use crate::client::{Commands, Queue, SECTOR_BYTES, Waiter, WakeReason};
use crate::error::{Error, Result};

/// A server that does not answer for this long will not.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Looks at the rings of a polling client between two looks at everything else: half a millisecond.
pub(super) const LOOKS_PER_CHECK: u32 = 1 << 14;
/// Looks before a polling client tells its processor that it only waits, which takes that longer to
/// see the answer.
const EAGER_LOOKS: u32 = 256;

/// How the client learns of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Waiting {
    /// It watches the used ring and asks for no calls.
    Polling,
    /// It sleeps until the server calls.
    Blocking,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Waiting::Polling => "polling",
            Waiting::Blocking => "blocking",
        })
    }
}

/// One queue of a thread.
pub struct Driver<Q, R, P> {
    queue: Q,
    requests: R,
    plan: P,
    sent_ns: Vec<u64>,
    sectors_per_block: u64,
    in_flight: u16,
}

impl<Q: Queue, R: Commands, P: Plan> Driver<Q, R, P> {
    /// Of a queue with nothing in flight.
    #[must_use]
    pub fn new(queue: Q, requests: R, plan: P) -> Self {
        Driver {
            sent_ns: vec![0; usize::from(requests.depth())],
            sectors_per_block: u64::from(requests.block_bytes() / SECTOR_BYTES),
            queue,
            requests,
            plan,
            in_flight: 0,
        }
    }

    /// To be waited on.
    #[must_use]
    pub fn call_fd(&self) -> BorrowedFd<'_> {
        self.queue.call_fd()
    }

    /// What it sends.
    #[must_use]
    pub fn requests(&self) -> &R {
        &self.requests
    }

    /// What decides what is sent.
    #[must_use]
    pub fn plan(&self) -> &P {
        &self.plan
    }

    /// Goes on with another plan; nothing is in flight.
    #[must_use]
    pub fn exchange<N: Plan>(self, plan: N) -> (Driver<Q, R, N>, P) {
        (Driver::new(self.queue, self.requests, plan), self.plan)
    }

    #[inline]
    fn send(&mut self, slot: usize, now_ns: u64) -> Result<()> {
        // A plan that is done leaves the slot empty.
        let Some((block, kind)) = self.plan.next(slot, &self.requests) else {
            return Ok(());
        };
        let head = self
            .requests
            .aim(slot, kind, block * self.sectors_per_block);
        self.queue.push(head)?;
        self.sent_ns[slot] = now_ns;
        self.in_flight += 1;
        Ok(())
    }

    fn start(&mut self, now_ns: u64) -> Result<()> {
        for slot in 0..self.sent_ns.len() {
            self.send(slot, now_ns)?;
        }
        self.queue.suppress_calls();
        self.queue.publish()
    }

    /// Takes what has completed and sends it again: a function of its own, so that its instructions can
    /// be counted.
    #[inline(never)]
    fn reap(&mut self, meter: &mut Meter<'_>, now_ns: u64) -> Result<()> {
        let completed = self.queue.completed();
        if completed == 0 {
            return Ok(());
        }
        if completed > self.in_flight {
            return Err(too_many(completed, self.in_flight));
        }
        let again = meter.again();
        for _ in 0..completed {
            let slot = self.requests.completed(self.queue.pop())?;
            meter.record(self.requests.kind(slot), self.sent_ns[slot], now_ns);
            self.plan.done(slot, &self.requests)?;
            self.in_flight -= 1;
            if again {
                self.send(slot, now_ns)?;
            }
        }
        self.queue.publish()?;
        self.queue.suppress_calls();
        Ok(())
    }
}

#[cold]
fn too_many(completed: u16, in_flight: u16) -> Error {
    Error::Requests(format!(
        "the server completed {completed} requests of {in_flight} that it had"
    ))
}

/// The queues of one thread, until the phases or all plans end; returns what was counted.
pub(super) fn run<Q: Queue, R: Commands, P: Plan>(
    drivers: &mut [Driver<Q, R, P>],
    waiter: &mut Waiter,
    load: &Load,
    phases: &Phases,
) -> Result<Tally> {
    let mut meter = Meter::new(phases, load.mark_interval);
    let now_ns = meter.begin();
    for driver in &mut *drivers {
        driver.start(now_ns)?;
    }
    loop {
        if drivers.iter().any(|driver| driver.queue.completed() > 0) {
            let now_ns = meter.found();
            for driver in &mut *drivers {
                driver.reap(&mut meter, now_ns)?;
            }
            meter.handled();
        } else if drivers.iter().all(|driver| driver.in_flight == 0) {
            // Only once nothing is sent again.
            meter.idle();
            if !meter.again() || drivers.iter().all(|driver| driver.plan.is_done()) {
                return Ok(meter.finish());
            }
        } else if load.waiting == Waiting::Polling {
            poll(drivers, waiter, &mut meter)?;
        } else {
            block(drivers, waiter)?;
        }
    }
}

/// Sleeps until something has completed.
fn block<Q: Queue, R: Commands, P: Plan>(
    drivers: &mut [Driver<Q, R, P>],
    waiter: &mut Waiter,
) -> Result<()> {
    let mut ready = false;
    for driver in &mut *drivers {
        ready |= driver.queue.request_call();
    }
    if !ready && waiter.wait(ANSWER_LIMIT)? == WakeReason::TimedOut {
        return Err(lost());
    }
    drivers
        .iter_mut()
        .try_for_each(|driver| driver.queue.called())
}

/// Looks at the rings until something has completed.
fn poll<Q: Queue, R: Commands, P: Plan>(
    drivers: &[Driver<Q, R, P>],
    waiter: &mut Waiter,
    meter: &mut Meter<'_>,
) -> Result<()> {
    let mut looks = 0u32;
    let mut since = None;
    while !drivers.iter().any(|driver| driver.queue.completed() > 0) {
        looks = looks.wrapping_add(1);
        if looks > EAGER_LOOKS {
            std::hint::spin_loop();
        }
        if looks.is_multiple_of(LOOKS_PER_CHECK) {
            // A server that has ended answers no more.
            waiter.wait(Duration::ZERO)?;
            meter.idle();
            if since.get_or_insert_with(Instant::now).elapsed() > ANSWER_LIMIT {
                return Err(lost());
            }
        }
    }
    Ok(())
}

#[cold]
pub(super) fn lost() -> Error {
    Error::Requests(format!("no request has completed for {ANSWER_LIMIT:?}"))
}
