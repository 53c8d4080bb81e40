//! The loop of one thread with all requests in flight.

use engine::{IoBackend, Op, Request};

use super::Buffers;
use crate::client::{Kind, Waiter, WakeReason};
use crate::error::{Error, Result};
use crate::load::driver::{ANSWER_LIMIT, Waiting};
use crate::load::meter::{Meter, Tally};
use crate::load::phases::Phases;
use crate::load::{Load, Walk};

/// Looks between two of the clock while nothing completes.
const LOOKS_PER_CHECK: u32 = 1 << 14;

/// An engine, and what its requests point to. Fields are dropped in their order: the engine, which waits for what is in flight, comes
/// first.
struct Submission<B> {
    engine: B,
    iovecs: Vec<libc::iovec>,
    _buffers: Buffers,
}

/// One thread with all requests.
pub(super) fn submitting<B: IoBackend<File: Copy>>(
    buffers: Buffers,
    (engine, file): (B, B::File),
    mut waiter: Waiter,
    mut walk: Walk,
    load: &Load,
    phases: &Phases,
) -> Result<Tally> {
    let slots = buffers.slots;
    let mut meter = Meter::new(phases, load.detail.latency);
    let mut submission = Submission {
        engine,
        iovecs: (0..slots).map(|slot| buffers.iovec(slot)).collect(),
        _buffers: buffers,
    };
    let iovecs = submission.iovecs.as_mut_ptr();
    let engine = &mut submission.engine;
    let mut sent = vec![(Kind::Read, 0); slots];
    let mut completions = Vec::with_capacity(slots);
    let mut in_flight = 0usize;
    let mut send = |engine: &mut B, slot: usize, now_ns: u64, sent: &mut [(Kind, u64)]| {
        let (block, kind) = walk.step();
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
        let pushed = unsafe { engine.start_or_queue(file, &request) };
        pushed.map_err(|full| Error::Requests(full.to_string()))
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
            wait(engine, &mut waiter, load.waiting, &mut meter)?;
        }
    }
}

fn wait(
    engine: &mut impl IoBackend,
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
