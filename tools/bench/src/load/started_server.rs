//! A server with the queues of a load: started, driven, stopped.

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};

use super::driver::Driver;
use super::plan::Plan;
use super::{Load, Random};
use crate::client::{
    Buffers, CHAIN, Commands, Doorbells, DriverRing, Layout, QueuePlace, Requests, Session,
    SharedMemory,
};
use crate::error::Result;

/// A server with a load's queues started, and the memory that they are in.
pub(super) struct StartedServer {
    pub session: Session,
    memory: SharedMemory,
    queues: Vec<(QueuePlace, Buffers, Doorbells)>,
    pub blocks: u64,
}

impl StartedServer {
    pub fn new(stream: UnixStream, load: &Load) -> Result<Self> {
        let mut session = Session::negotiate(stream, load.recorded)?;
        load.suits(&session.agreed)?;
        let blocks = load.blocks_of(session.agreed.capacity_bytes)?;
        let entries = (load.depth * CHAIN).next_power_of_two();
        if load.recorded {
            session.record(load.queues, entries)?;
        }
        let mut layout = Layout::default();
        let mut queues = Vec::new();
        for _ in 0..load.queues {
            let buffers = |layout| Buffers::place(layout, load.depth, load.block_bytes);
            let place = layout.queue(entries);
            queues.push((place, buffers(&mut layout), Doorbells::new()?));
        }
        let memory = SharedMemory::new(layout.len_bytes())?;
        session.share(&memory)?;
        for (index, (place, _, doorbells)) in (0..=u8::MAX).zip(&queues) {
            session.start_queue(index, &memory, *place, doorbells)?;
        }
        session.settle()?;
        Ok(StartedServer {
            session,
            memory,
            queues,
            blocks,
        })
    }

    /// The driver of each queue. Rings are empty only once.
    pub fn drivers<P: Plan>(
        &self,
        mut plan: impl FnMut(u16) -> P,
    ) -> Vec<Driver<DriverRing<'_>, Requests<'_>, P>> {
        let event_idx = self.session.agreed.event_idx();
        let queues = (0..u16::MAX).zip(&self.queues);
        let drivers = queues.map(|(index, (place, buffers, doorbells))| {
            Driver::new(
                DriverRing::new(&self.memory, *place, event_idx, doorbells),
                Requests::prepare(&self.memory, *place, *buffers),
                plan(index),
            )
        });
        drivers.collect()
    }

    /// See [`scatter`].
    pub fn scatter(&self) {
        for (place, buffers, _) in &self.queues {
            scatter(&Requests::prepare(&self.memory, *place, *buffers));
        }
    }

    pub fn stop(mut self) -> Result<()> {
        for (index, _) in (0..=u8::MAX).zip(&self.queues) {
            self.session.stop_queue(index)?;
        }
        self.session.disconnect()
    }
}

/// Random data, so that nothing finds it easy to write.
pub fn scatter(requests: &impl Commands) {
    for slot in 0..usize::from(requests.depth()) {
        fill_randomly(requests.data(slot));
    }
}

pub(super) fn fill_randomly(words: &[AtomicU64]) {
    let mut random = Random::new(words.as_ptr() as u64);
    for word in words {
        word.store(random.below(u64::MAX), Ordering::Relaxed);
    }
}
