//! Cost of dispatching a ready descriptor while many others are registered and idle.
//!
//! One round makes some descriptors ready and runs one iteration of the loop, wait included. The
//! time is that of the whole round, divided by the number of handlers that ran.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use iothread::event_loop::iteration::RunnerContext;
use iothread::event_loop::{
    Epoll, EventLoop, HandlerId, IdleEnd, Interest, PollSettings, Readiness, Runner,
};

use super::no_kernel::NoKernel;
use super::{Cost, descriptor};
use crate::error::{Error, Result};
use crate::random::Random;

/// At most so many become ready in one round: less than the loop takes in one wait.
pub(crate) const MAX_READY: usize = 100;

/// Where descriptors become ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    Epoll,
    None,
}

/// What a handler does when it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// Counts.
    Count,
    /// Deletes itself and comes back as a new handler, which is ready at once.
    Renew,
}

struct SingleWriterU64 {
    reaction: Reaction,
    heard: usize,
    failure: Option<io::Error>,
}

impl Runner for SingleWriterU64 {
    type Handler = ();
    type Timer = ();
    type Message = ();

    fn on_ready(&mut self, cx: &mut RunnerContext<Self>, id: HandlerId, (): (), _: Readiness) {
        self.heard += 1;
        if self.reaction == Reaction::Renew
            && let Some(fd) = cx.delete(id)
            && let Err(error) = cx.add(fd, Interest::ReadableEdge, ())
        {
            self.failure = Some(error);
        }
    }

    fn on_timer(&mut self, _: &mut RunnerContext<Self>, (): ()) {}
    fn on_message(&mut self, _: &mut RunnerContext<Self>, (): ()) {}
    fn reap(&mut self, _: &mut RunnerContext<Self>) {}
    fn complete_reaped(&mut self, _: &mut RunnerContext<Self>) {}
    fn publish_and_notify(&mut self, _: &mut RunnerContext<Self>) {}
    fn admit(&mut self, _: &mut RunnerContext<Self>) {}
    fn submit(&mut self, _: &mut RunnerContext<Self>) {}
    fn has_work_for_next_iteration(&self) -> bool {
        false
    }
    fn poll_sources_once(&mut self) -> bool {
        false
    }
    fn predict_poll_deadline_ns(&mut self, _: &PollSettings, _: u64) -> u64 {
        0
    }
    fn learn_from_idle(&mut self, _: &PollSettings, _: IdleEnd) {}
    fn prepare_to_block_or_find_work(&mut self, _: &mut RunnerContext<Self>) -> bool {
        false
    }
    fn on_stop(&mut self, _: &mut RunnerContext<Self>) {}
}

/// The notification of handlers that become ready.
enum Notifier {
    Eventfds(Vec<OwnedFd>),
    Cookies(NoKernel, Vec<u64>),
}

impl Notifier {
    fn len(&self) -> usize {
        match self {
            Notifier::Eventfds(fds) => fds.len(),
            Notifier::Cookies(_, cookies) => cookies.len(),
        }
    }

    fn ring(&self, index: usize) -> Result<()> {
        match self {
            Notifier::Eventfds(fds) => {
                let written = rustix::io::write(&fds[index], &1u64.to_ne_bytes());
                written.map_err(Error::io("write an eventfd"))?;
            }
            Notifier::Cookies(poller, cookies) => {
                poller.0.borrow_mut().cookies.push(cookies[index]);
            }
        }
        Ok(())
    }
}

/// A loop with registered handlers.
pub(crate) struct Dispatch {
    iothread: EventLoop<SingleWriterU64>,
    bell: Notifier,
    next: usize,
    reaction: Reaction,
}

impl Dispatch {
    /// With `registered` handlers, of which [`MAX_READY`] (or all, if they are fewer), spread at
    /// random among them, can become ready.
    pub fn new(kernel: Kernel, registered: usize, reaction: Reaction) -> Result<Self> {
        let polling = PollSettings {
            max_ns: 0,
            ..PollSettings::default()
        };
        let audible = choose(registered);
        let no_kernel = NoKernel::default();
        let poller: Box<dyn iothread::event_loop::Poller> = match kernel {
            Kernel::Epoll => Box::new(Epoll::new().map_err(Error::io("create an epoll"))?),
            Kernel::None => Box::new(no_kernel.clone()),
        };
        let (mut fds, mut cookies) = (Vec::new(), Vec::new());
        let register = |cx: &mut RunnerContext<SingleWriterU64>| {
            for audible in audible {
                let fd = descriptor()?;
                // Only what is written needs a second descriptor.
                if audible && kernel == Kernel::Epoll {
                    fds.push(fd.try_clone()?);
                }
                let id = cx.add(fd, Interest::ReadableEdge, ())?;
                if audible {
                    cookies.push(id.cookie());
                }
            }
            Ok(SingleWriterU64 {
                reaction,
                heard: 0,
                failure: None,
            })
        };
        let iothread = EventLoop::new(poller, polling, |cx, _| register(cx));
        let iothread = iothread.map_err(Error::io::<io::Error>("register handlers"))?;
        let bell = match kernel {
            Kernel::Epoll => Notifier::Eventfds(fds),
            Kernel::None => Notifier::Cookies(no_kernel.clone(), cookies),
        };
        no_kernel.0.borrow_mut().from_the_start = reaction == Reaction::Renew;
        Ok(Dispatch {
            iothread,
            bell,
            next: 0,
            reaction,
        })
    }

    /// Runs rounds until at least `operations` handlers ran, `ready` of them in each round, and
    /// returns the cost of one in nanoseconds.
    pub fn measure(&mut self, ready: usize, operations: usize, clock_ns: f64) -> Result<f64> {
        let rounds = operations.div_ceil(ready);
        let expected = rounds * ready;
        self.iothread.runner().heard = 0;
        if self.reaction == Reaction::Renew && self.next == 0 {
            // Once is enough: they are not read, so they stay readable.
            self.ring(ready)?;
        }
        let mut cost = Cost::new(clock_ns);
        let start = Instant::now();
        for _ in 0..rounds {
            if self.reaction == Reaction::Count {
                self.ring(ready)?;
            }
            self.iothread
                .iterate()
                .map_err(Error::io("run an iteration"))?;
        }
        cost.add(start.elapsed(), expected);
        let runner = self.iothread.runner();
        if let Some(failure) = runner.failure.take() {
            return Err(Error::io("add a handler again")(failure));
        }
        if runner.heard != expected {
            return Err(Error::Unsuitable(format!(
                "{} handlers ran where {expected} were ready: the event loop is broken",
                runner.heard
            )));
        }
        Ok(cost.per_operation_ns())
    }

    /// Makes the next `ready` of those that can become ready.
    fn ring(&mut self, ready: usize) -> Result<()> {
        for _ in 0..ready {
            self.bell.ring(self.next % self.bell.len())?;
            self.next += 1;
        }
        Ok(())
    }
}

/// For each of `registered` whether it can become ready.
fn choose(registered: usize) -> Vec<bool> {
    let wanted = registered.min(MAX_READY);
    let mut random = Random::new(registered as u64);
    let mut chosen = vec![false; registered];
    let mut left = wanted;
    while left > 0 {
        let place = &mut chosen[random.index(registered)];
        if !*place {
            *place = true;
            left -= 1;
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_runs_just_the_handlers_that_are_ready() {
        for kernel in [Kernel::Epoll, Kernel::None] {
            for reaction in [Reaction::Count, Reaction::Renew] {
                for ready in [1, 5] {
                    let mut dispatch = Dispatch::new(kernel, 20, reaction).unwrap();
                    // `measure` fails when too few or too many handlers ran.
                    dispatch.measure(ready, 50, 0.0).unwrap();
                    dispatch.measure(ready, 50, 0.0).unwrap();
                }
            }
        }
    }

    #[test]
    fn requested_number_of_handlers_becomes_ready() {
        for (registered, audible) in [(3, 3), (100, 100), (1000, MAX_READY)] {
            let chosen = choose(registered);
            assert_eq!(chosen.len(), registered);
            assert_eq!(chosen.iter().filter(|chosen| **chosen).count(), audible);
        }
    }
}
