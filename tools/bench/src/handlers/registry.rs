//! Cost of adding and deleting a handler while many others are registered.

use std::os::fd::OwnedFd;
use std::time::Instant;

use iothread::event_loop::{Context, HandlerId, Interest, Poller};

use super::{Cost, descriptor};
use crate::error::{Error, Result};
use crate::random::Random;

/// Handlers are deleted and added again in batches, so that reading the clock does not show. A
/// batch is half of them at most: the number registered stays of the same size.
const MAX_BATCH: usize = 1000;

/// Registered handlers, over some poller.
pub(crate) struct Registry {
    cx: Context<(), ()>,
    ids: Vec<HandlerId>,
    fds: Vec<OwnedFd>,
    random: Random,
}

impl Registry {
    /// With `registered` handlers.
    pub fn new(poller: Box<dyn Poller>, registered: usize) -> Result<Self> {
        let mut registry = Registry {
            cx: Context::new(poller),
            ids: Vec::with_capacity(registered),
            fds: Vec::with_capacity(MAX_BATCH),
            random: Random::new(registered as u64),
        };
        for _ in 0..registered {
            registry.add(descriptor().map_err(Error::io("create an eventfd"))?)?;
        }
        Ok(registry)
    }

    fn add(&mut self, fd: OwnedFd) -> Result<()> {
        let id = self.cx.add(fd, Interest::ReadableEdge, ());
        self.ids.push(id.map_err(Error::io("add a handler"))?);
        Ok(())
    }

    /// Deletes and adds at least `operations` handlers, picked at random among all. Returns the
    /// costs of adding and of deleting one, in nanoseconds.
    pub fn measure(&mut self, operations: usize, clock_ns: f64) -> Result<(f64, f64)> {
        let batch = (self.ids.len() / 2).clamp(1, MAX_BATCH);
        let (mut adding, mut deleting) = (Cost::new(clock_ns), Cost::new(clock_ns));
        for _ in 0..operations.div_ceil(batch) {
            let kept = self.ids.len() - batch;
            for last in (kept..self.ids.len()).rev() {
                let victim = self.random.index(last + 1);
                self.ids.swap(last, victim);
            }
            let start = Instant::now();
            while self.ids.len() > kept
                && let Some(id) = self.ids.pop()
            {
                self.fds.extend(self.cx.delete(id));
            }
            deleting.add(start.elapsed(), batch);
            let start = Instant::now();
            while let Some(fd) = self.fds.pop() {
                self.add(fd)?;
            }
            adding.add(start.elapsed(), batch);
        }
        Ok((adding.per_operation_ns(), deleting.per_operation_ns()))
    }

    /// How many are registered.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.cx.handler_count()
    }
}
