//! Tests of each rule of the engine, on a ring that tests control.

use std::collections::VecDeque;

use super::*;
use crate::Op;
use crate::testing::{Buffers, FakeRing, Outcome};

type Fake = Uring<FakeRing>;

/// An engine on a ring that the test controls.
fn engine(max_events: u32, max_batch: u32) -> Fake {
    let disk = (0..=255).collect();
    let settings = UringSettings {
        max_events,
        max_batch,
        ..UringSettings::default()
    };
    Uring::with_ring(
        FakeRing::new(disk, max_events.next_power_of_two()),
        settings,
    )
}

const FILE: File = File::Registered(5);

impl Fake {
    fn put(&mut self, request: Request) {
        // SAFETY: the tests keep buffers until their requests are completed.
        unsafe { self.start_or_queue(FILE, &request) }.unwrap();
    }

    fn put_flush(&mut self, token: u64) -> Result<(), Full> {
        self.put_without_data(Op::Flush, token)
    }

    fn put_without_data(&mut self, op: Op, token: u64) -> Result<(), Full> {
        let request = Request::without_data(op, 0, 0, token);
        // SAFETY: it has no buffers.
        unsafe { self.start_or_queue(FILE, &request) }
    }

    fn reaped(&mut self) -> Vec<(u64, Result<(), Errno>)> {
        let mut out = Vec::new();
        self.reap(&mut out);
        out.iter().map(|c| (c.token, c.result)).collect()
    }
}

#[test]
fn requests_that_complete_with_eagain_are_retried_in_order_and_not_for_ever() {
    let mut ring = engine(8, 0);
    let mut buffers: Vec<_> = (0..3).map(|_| Buffers::sized(&[4], 0xee)).collect();
    for (token, buffer) in (0..).zip(&mut buffers) {
        ring.put(buffer.io(Op::Read, 10 * token, token));
    }
    ring.submit();
    for again in [Errno::AGAIN, Errno::INTR] {
        ring.ring.complete(0, Outcome::Error(again));
        ring.ring.complete(0, Outcome::Error(again));
        assert_eq!(ring.reaped(), []);
        ring.submit();
        let held: Vec<_> = ring.ring.held.iter().map(|h| h.user_data).collect();
        assert_eq!(held, [2, 0, 1]);
        ring.ring.held.rotate_left(1);
    }
    assert_eq!(ring.stats().retried, 4);
    let mut rounds = 0;
    let failed = loop {
        ring.ring.complete(0, Outcome::Error(Errno::AGAIN));
        let done = ring.reaped();
        if !done.is_empty() {
            break done;
        }
        rounds += 1;
        ring.submit();
        ring.ring.held.rotate_right(1);
    };
    assert_eq!((failed, rounds), (vec![(0, Err(Errno::AGAIN))], 14));
    ring.ring.complete(1, Outcome::Whole);
    ring.ring.complete(0, Outcome::Whole);
    assert_eq!(ring.reaped().len(), 2);
    assert_eq!(buffers[1].bytes(), [10, 11, 12, 13]);
}

#[test]
fn durable_writes_stay_durable_when_they_are_resumed() {
    let mut ring = engine(8, 0);
    let mut buffer = Buffers::sized(&[11], 0xee);
    ring.put(Request {
        fua: true,
        ..buffer.io(Op::Write, 20, 1)
    });
    ring.submit();
    ring.ring.complete(0, Outcome::Short(5));
    assert_eq!(ring.reaped(), []);
    ring.submit();
    let rest = &ring.ring.held[0];
    assert_eq!((rest.offset, rest.rw_flags), (25, libc::RWF_DSYNC));
    ring.ring.complete(0, Outcome::Whole);
    assert_eq!(ring.reaped(), [(1, Ok(()))]);
    assert!(ring.ring.disk[20..31].iter().all(|byte| *byte == 0xee));
}

#[test]
fn flushes_and_ranges_leave_half_of_the_kernels_workers() {
    // Before the ring, whose end waits for the reads.
    let mut buffers: Vec<_> = (0..40).map(|_| Buffers::sized(&[1], 0xee)).collect();
    let mut ring = engine(128, 0);
    for (token, buffer) in (0..).zip(&mut buffers) {
        ring.put(buffer.io(Op::Read, token, token));
    }
    let ops = [Op::Flush, Op::Discard, Op::WriteZeroes { unmap: false }];
    for token in 100..132 {
        assert!(ring.free_workers() > 0, "reads need none: {token}");
        let op = ops[(token % 3) as usize];
        ring.put_without_data(op, token).unwrap();
    }
    assert_eq!(ring.free_workers(), 0, "there are 64");
    ring.submit();
    ring.ring.complete(0, Outcome::Whole);
    assert_eq!(ring.reaped(), [(0, Ok(()))]);
    assert_eq!(ring.free_workers(), 0, "a read has ended");
    ring.ring.complete(60, Outcome::Error(Errno::AGAIN));
    assert_eq!(ring.reaped(), []);
    assert_eq!(ring.free_workers(), 0, "it is retried");
    ring.ring.complete(61, Outcome::Whole);
    assert_eq!(ring.reaped().len(), 1);
    assert_eq!(ring.free_workers(), 1);
}

/// A loop that blocks is woken, or does not block; a loop that is awake gets no signal.
#[test]
fn a_completion_signals_a_blocked_loop_only() {
    for can_disable_eventfd in [true, false] {
        let mut ring = engine(8, 0);
        ring.ring.can_disable_eventfd = can_disable_eventfd;
        (0..3).for_each(|token| ring.put_flush(token).unwrap());
        ring.submit();
        // Awake.
        ring.ring.complete(0, Outcome::Whole);
        assert_eq!(ring.ring.woken, !can_disable_eventfd);
        assert!(
            ring.prepare_to_block_and_recheck(),
            "there is a completion already"
        );
        assert_eq!(ring.reaped().len(), 1);
        // About to block.
        ring.ring.woken = false;
        assert!(!ring.prepare_to_block_and_recheck());
        ring.ring.complete(0, Outcome::Whole);
        assert!(ring.ring.woken);
        assert_eq!(ring.reaped().len(), 1);
        // Awake again.
        ring.ring.woken = false;
        ring.ring.complete(0, Outcome::Whole);
        assert_eq!(ring.ring.woken, !can_disable_eventfd);
        assert_eq!(ring.reaped().len(), 1);
        // Nothing in flight: no signal.
        let flushes = ring.ring.flushes;
        assert!(!ring.prepare_to_block_and_recheck());
        assert_eq!(ring.ring.flushes, flushes);
    }
}

#[test]
fn a_late_flag_does_not_keep_an_idle_loop_awake() {
    let mut engine = engine(4, 0);
    engine.put_flush(1).unwrap();
    engine.submit();
    engine.ring.complete(0, Outcome::Whole);
    assert!(engine.has_completions());
    assert_eq!(engine.reaped(), [(1, Ok(()))]);
    engine.ring.stale = true;
    assert!(!engine.has_completions());
    assert!(!engine.prepare_to_block_and_recheck(), "it may block");
    let flushes = engine.ring.flushes;
    assert!(engine.reaped().is_empty());
    assert_eq!(engine.ring.flushes, flushes);
}

#[test]
fn no_call_is_made_without_work() {
    let mut ring = engine(8, 0);
    ring.put_flush(0).unwrap();
    ring.submit();
    for _ in 0..5 {
        assert_eq!(ring.reaped(), []);
        ring.submit();
    }
    assert_eq!((ring.ring.flushes, ring.ring.calls.len()), (0, 1));
    // One call submits and flushes.
    ring.ring.complete(0, Outcome::Whole);
    ring.put_flush(1).unwrap();
    ring.submit();
    assert_eq!((ring.ring.flushes, ring.ring.calls.len()), (1, 2));
    assert_eq!(ring.reaped(), [(0, Ok(()))]);
    assert_eq!(ring.stats().getevents_calls, 0);
}

impl crate::model_tests::Subject for Fake {
    fn new(disk: Vec<u8>, max_events: u32, plain: bool) -> Self {
        let mut ring = FakeRing::new(disk, max_events);
        ring.can_disable_eventfd = !plain;
        let settings = UringSettings {
            max_events,
            ..UringSettings::default()
        };
        Uring::with_ring(ring, settings)
    }

    const FILE: File = File::Descriptor(3);
    const ERRORS_REFUSE: bool = false;

    /// Repeats, since completions that overflowed appear at the next reap.
    fn reap_all(&mut self, out: &mut Vec<Completion>) {
        while self.has_completions() {
            self.reap(out);
        }
    }

    fn set_max_batch(&mut self, max_batch: u32) {
        self.set_max_batch(max_batch);
    }

    fn pending_count(&self) -> usize {
        self.pending_count()
    }

    fn in_flight_count(&self) -> usize {
        self.in_flight_count()
    }

    fn is_blocked(&self) -> bool {
        self.is_blocked()
    }

    /// A ring has no synchronous mode.
    fn answer_within(&mut self, _: bool, _: Outcome) {}

    fn counts(&self) -> (u64, u64) {
        (self.stats().resumed, self.stats().completed)
    }

    fn script(&mut self) -> &mut VecDeque<Result<usize, Errno>> {
        &mut self.ring.script
    }

    fn calls(&self) -> &[usize] {
        &self.ring.calls
    }

    fn held_slots(&self) -> Vec<u64> {
        self.ring.held.iter().map(|held| held.user_data).collect()
    }

    fn complete(&mut self, index: usize, outcome: Outcome) {
        self.ring.complete(index, outcome);
    }

    fn disk(&self) -> &[u8] {
        &self.ring.disk
    }
}
