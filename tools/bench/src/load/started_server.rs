//! A server with the queues of a load: started, driven, stopped.

use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;

use super::Load;
use super::driver::Driver;
use super::plan::Plan;
use crate::client::{
    Buffers, Commands, Doorbells, DriverRing, Layout, QueuePlace, Requests, Session, Shape,
    SharedMemory,
};
use crate::error::Result;
use crate::random::Random;

/// A server with a load's queues started, and the memory that they are in.
pub(super) struct StartedServer {
    pub session: Session,
    memory: SharedMemory,
    shape: Shape,
    queues: Vec<(QueuePlace, Buffers)>,
    doorbells: Vec<Doorbells>,
    pub blocks: u64,
}

impl StartedServer {
    pub fn new(stream: UnixStream, load: &Load) -> Result<Self> {
        let mut session = Session::negotiate(stream, load.recorded)?;
        let agreed = *session.agreed();
        load.suits(&agreed)?;
        let blocks = load.blocks_of(agreed.capacity_bytes)?;
        let shape = Shape {
            depth: load.depth,
            block_bytes: load.block_bytes,
            placement: load.placement,
            form: load.form,
        };
        if load.recorded {
            session.record(load.queues, shape.queue_size())?;
        }
        let mut layout = Layout::new();
        let queues: Vec<_> = (0..load.queues)
            .map(|_| (layout.queue(shape.queue_size()), shape.place(&mut layout)))
            .collect();
        let memory = touched_memory(layout.len_bytes())?;
        session.share(&memory)?;
        let mut doorbells = Vec::new();
        for (index, &(place, _)) in (0..=u8::MAX).zip(&queues) {
            let bells = Doorbells::new()?;
            session.start_queue(index, &memory, place, &bells)?;
            doorbells.push(bells);
        }
        session.settle()?;
        Ok(StartedServer {
            session,
            memory,
            shape,
            queues,
            doorbells,
            blocks,
        })
    }

    /// The driver of each queue. Rings are empty only once.
    pub fn drivers<P: Plan>(
        &self,
        mut plan: impl FnMut(u16) -> P,
    ) -> Vec<Driver<DriverRing<'_>, Requests<'_>, P>> {
        let event_idx = self.session.agreed().event_idx();
        let queues = (0..u16::MAX).zip(self.queues.iter().zip(&self.doorbells));
        queues
            .map(|(index, (&(place, buffers), doorbells))| {
                Driver::new(
                    DriverRing::new(&self.memory, place, event_idx, doorbells),
                    Requests::prepare(&self.memory, place, buffers, self.shape),
                    plan(index),
                )
            })
            .collect()
    }

    /// See [`scatter`].
    pub fn scatter(&self) {
        for &(place, buffers) in &self.queues {
            scatter(&Requests::prepare(&self.memory, place, buffers, self.shape));
        }
    }

    pub fn stop(mut self) -> Result<()> {
        for (index, _) in (0..=u8::MAX).zip(&self.queues) {
            self.session.stop_queue(index)?;
        }
        self.session.disconnect()
    }
}

/// Memory of which every page is there before anything is measured.
///
/// # Errors
/// As for [`SharedMemory::new`].
pub fn touched_memory(bytes: usize) -> Result<SharedMemory> {
    let memory = SharedMemory::new(bytes)?;
    for page in (0..bytes).step_by(Layout::whole_pages(1)) {
        memory.u8s(page, 1)[0].store(0, Ordering::Relaxed);
    }
    Ok(memory)
}

/// Random data, so that nothing finds it easy to write.
pub fn scatter(requests: &impl Commands) {
    let mut random = Random::new(1);
    for slot in 0..usize::from(requests.depth()) {
        for word in requests.data(slot) {
            word.store(random.below(u64::MAX), Ordering::Relaxed);
        }
    }
}
