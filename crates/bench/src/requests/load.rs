//! Reads at random places, always as many in flight as there are.

use std::time::{Duration, Instant};

use crate::client::{Doorbells, DriverRing, Reads, Waiter, Woken};
use crate::error::{Error, Result};
use crate::random::Random;

/// A server that does not answer for this long will not.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// The clock is read once in so many looks at the ring: a look takes nanoseconds.
const LOOKS_PER_CLOCK: u32 = 64;

/// How the client learns of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// It watches the used ring and asks for no calls.
    Polling,
    /// It sleeps until the server calls.
    Blocking,
}

impl Waiting {
    /// For tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Waiting::Polling => "polling",
            Waiting::Blocking => "blocking",
        }
    }
}

/// What was achieved.
#[derive(Clone, Copy, Debug)]
pub struct Achieved {
    /// Reads answered.
    pub completed: u64,
    /// In this time.
    pub elapsed: Duration,
}

/// The driver of one queue.
pub struct Load<'m> {
    ring: DriverRing<'m>,
    reads: Reads<'m>,
    doorbells: &'m Doorbells,
    waiter: Waiter,
    waiting: Waiting,
    random: Random,
    blocks: u64,
    in_flight: usize,
}

impl<'m> Load<'m> {
    /// On a disk of `blocks` blocks of the reads' size.
    ///
    /// # Errors
    /// [`Error::Io`] when descriptors have run out; [`Error::Unsuitable`] when the disk is empty.
    pub fn new(
        ring: DriverRing<'m>,
        reads: Reads<'m>,
        doorbells: &'m Doorbells,
        waiting: Waiting,
        blocks: u64,
    ) -> Result<Self> {
        if blocks == 0 {
            return Err(Error::Unsuitable("the disk is empty".to_owned()));
        }
        Ok(Load {
            ring,
            reads,
            doorbells,
            waiter: doorbells.waiter()?,
            waiting,
            random: Random::new(blocks),
            blocks,
            in_flight: 0,
        })
    }

    /// Runs for `duration`, and until the last read is answered.
    ///
    /// # Errors
    /// [`Error::Requests`] when a read fails or is not answered.
    pub fn run(&mut self, duration: Duration) -> Result<Achieved> {
        let start = Instant::now();
        let mut completed = 0;
        let mut looks = 0u32;
        let mut over = false;
        self.ring.suppress_calls();
        for read in 0..self.reads.depth() {
            self.send(read);
        }
        self.publish();
        while self.in_flight > 0 {
            looks += 1;
            if looks.is_multiple_of(LOOKS_PER_CLOCK) {
                over = start.elapsed() >= duration;
            }
            let batch = self.reap(!over)?;
            completed += batch;
            if batch > 0 {
                self.publish();
            } else {
                self.wait(start, duration)?;
            }
        }
        Ok(Achieved {
            completed,
            elapsed: start.elapsed(),
        })
    }

    #[inline]
    fn send(&mut self, read: usize) {
        let block = self.random.below(self.blocks);
        let head = self.reads.aim(read, block);
        self.ring.push(head);
        self.in_flight += 1;
    }

    #[inline]
    fn publish(&mut self) {
        if self.ring.publish() {
            self.doorbells.kick();
        }
    }

    /// Takes what has completed, sends it `again`, and says how many they were.
    #[inline]
    fn reap(&mut self, again: bool) -> Result<u64> {
        let mut batch = 0;
        while let Some(head) = self.ring.pop() {
            let read = self.reads.completed(head).ok_or_else(|| {
                Error::Requests(format!("the request with head {head} failed or was none"))
            })?;
            self.in_flight -= 1;
            batch += 1;
            if again {
                self.send(read);
            }
        }
        if batch > 0 {
            // The place that calls are suppressed up to moves along.
            self.ring.suppress_calls();
        }
        Ok(batch)
    }

    #[inline]
    fn wait(&mut self, start: Instant, duration: Duration) -> Result<()> {
        let lost = || Error::Requests(format!("no answer within {ANSWER_LIMIT:?}"));
        match self.waiting {
            Waiting::Polling => {
                let mut looks = 0u32;
                while !self.ring.has_used() {
                    std::hint::spin_loop();
                    looks += 1;
                    // Rare enough not to show, often enough to end.
                    if looks.is_multiple_of(1 << 16) && start.elapsed() > duration + ANSWER_LIMIT {
                        return Err(lost());
                    }
                }
            }
            Waiting::Blocking => {
                if !self.ring.request_call() && self.waiter.wait(ANSWER_LIMIT)? == Woken::TimedOut {
                    return Err(lost());
                }
                self.ring.suppress_calls();
            }
        }
        Ok(())
    }
}
