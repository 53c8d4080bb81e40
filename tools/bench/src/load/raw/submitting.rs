//! The loop of one thread with all requests in flight.

use std::mem;
use std::sync::Arc;

use engine::{Op, Request};

use super::Buffers;
use super::engine::Engine;
use crate::client::{Kind, Waiter, WakeReason};
use crate::error::{Error, Result};
use crate::load::driver::{ANSWER_LIMIT, Waiting};
use crate::load::meter::{Meter, Tally};
use crate::load::phases::Phases;
use crate::load::{Load, Walk};

/// Looks between two of the clock while nothing completes.
const LOOKS_PER_CHECK: u32 = 1 << 14;

/// An engine, and what its requests point to, which is dropped after it.
struct Submission {
    engine: Engine,
    iovecs: Vec<libc::iovec>,
    buffers: Arc<Buffers>,
}

impl Submission {
    fn new(engine: Engine, buffers: Arc<Buffers>) -> Self {
        let iovecs = (0..buffers.slots).map(|slot| buffers.iovec(slot));
        Submission {
            engine,
            iovecs: iovecs.collect(),
            buffers,
        }
    }
}

impl Drop for Submission {
    fn drop(&mut self) {
        if !self.engine.drain() {
            // Leaked, since an answer may still come.
            mem::forget(mem::take(&mut self.iovecs));
            mem::forget(Arc::clone(&self.buffers));
        }
    }
}

/// One thread with all requests.
///
/// Each of `walks` belongs to as many slots: the first one to the first of them, and so on.
pub(super) fn submitting(
    buffers: Arc<Buffers>,
    engine: Engine,
    mut walks: Vec<Walk>,
    load: &Load,
    waiting: Waiting,
    phases: &Phases,
) -> Result<Tally> {
    let slots = buffers.slots;
    let slots_per_walk = slots / walks.len();
    let walk_of: Vec<usize> = (0..slots).map(|slot| slot / slots_per_walk).collect();
    let mut meter = Meter::new(phases, load.detail.latency);
    let mut submission = Submission::new(engine, buffers);
    let iovecs = submission.iovecs.as_mut_ptr();
    let engine = &mut submission.engine;
    let mut waiter = engine.waiter()?;
    let mut sent = vec![(Kind::Read, 0); slots];
    let mut completions = Vec::with_capacity(slots);
    let mut in_flight = 0usize;
    let mut send = |engine: &mut Engine, slot: usize, now_ns: u64, sent: &mut [(Kind, u64)]| {
        let (block, kind) = walks[walk_of[slot]].step();
        sent[slot] = (kind, now_ns);
        let request = Request {
            op: match kind {
                Kind::Write => Op::Write,
                _ => Op::Read,
            },
            fua: false,
            offset: block * u64::from(load.block_bytes),
            iov: iovecs.wrapping_add(slot),
            iov_count: 1,
            len: u64::from(load.block_bytes),
            token: slot as u64,
        };
        // SAFETY: the submission frees the array and the buffers only after the engine; each slot has one request at a
        // time, so its entry has one user; the caller's file stays open.
        unsafe { engine.push(&request) }
    };
    let now_ns = meter.begin();
    for slot in 0..slots {
        send(engine, slot, now_ns, &mut sent)?;
        in_flight += 1;
    }
    engine.submit();
    loop {
        if engine.has_completions() {
            let now_ns = meter.found();
            engine.reap(&mut completions);
            for completion in completions.drain(..) {
                let slot = usize::try_from(completion.token).unwrap_or(usize::MAX);
                let (kind, sent_ns) = sent[slot];
                if let Err(errno) = completion.result {
                    return Err(Error::Requests(format!("a request failed: {errno}")));
                }
                meter.record(kind, sent_ns, now_ns);
                in_flight -= 1;
                if meter.again() {
                    send(engine, slot, now_ns, &mut sent)?;
                    in_flight += 1;
                }
            }
            engine.submit();
            meter.handled();
        } else if in_flight == 0 {
            meter.idle();
            return Ok(meter.finish());
        } else {
            wait(engine, &mut waiter, waiting, &mut meter)?;
        }
    }
}

fn wait(
    engine: &mut Engine,
    waiter: &mut Waiter,
    waiting: Waiting,
    meter: &mut Meter<'_>,
) -> Result<()> {
    let lost = || Error::Requests(format!("no request has completed for {ANSWER_LIMIT:?}"));
    if waiting == Waiting::Blocking {
        if !engine.prepare_to_block_and_recheck()
            && waiter.wait(ANSWER_LIMIT)? == WakeReason::TimedOut
        {
            return Err(lost());
        }
        return Ok(());
    }
    let mut looks = 0u32;
    let mut since = None;
    while !engine.has_completions() {
        looks = looks.wrapping_add(1);
        std::hint::spin_loop();
        if looks.is_multiple_of(LOOKS_PER_CHECK) {
            meter.idle();
            let since = since.get_or_insert_with(std::time::Instant::now);
            if since.elapsed() > ANSWER_LIMIT {
                return Err(lost());
            }
        }
    }
    Ok(())
}
