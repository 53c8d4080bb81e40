//! Model test of the engines: random requests on a kernel with random behaviour, compared with a model of the disk. Every
//! request completes exactly once, and all data is at its place. And what both engines do about batches, room and refusals.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use crate::aio::LinuxAio;
use crate::testing::{FakeKernel, FakeRing, Outcome};
use crate::{Completion, Errno, Full, IoBackend, Op, Request, Uring};

/// An engine under test, with the kernel under it.
pub(crate) trait Subject: IoBackend<File: Copy> {
    /// An engine with room for `max_events` requests over this disk; `plain` selects one of its two variants.
    fn new(disk: Vec<u8>, max_events: u32, plain: bool) -> Self;
    /// Whether an error of a submission is one of its first request.
    const ERRORS_REFUSE: bool;
    /// The file of its requests.
    const FILE: Self::File;
    /// Reaps until there are no more completions.
    fn reap_all(&mut self, out: &mut Vec<Completion>) {
        self.reap(out);
    }
    /// Whether polling sees completions that exist.
    fn sees_completions(&self) -> bool {
        self.has_completions()
    }
    fn set_max_batch(&mut self, max_batch: u32);
    fn pending_count(&self) -> usize;
    fn in_flight_count(&self) -> usize;
    fn is_blocked(&self) -> bool;
    /// Sets whether the disk answers within the submission. Synchronous transfers then end with `outcome`.
    fn answer_within(&mut self, within: bool, outcome: Outcome);
    /// Counts of requests that were resumed, and completed.
    fn counts(&self) -> (u64, u64);

    fn script(&mut self) -> &mut VecDeque<Result<usize, Errno>>;
    fn calls(&self) -> &[usize];
    /// Slots of the requests that the kernel has, in its order.
    fn held_slots(&self) -> Vec<u64>;
    fn complete(&mut self, index: usize, outcome: Outcome);
    fn disk(&self) -> &[u8];
}

/// The disk is cut into regions with at most one request each: overlapping requests have no
/// defined result.
const REGIONS: usize = 12;
const REGION_BYTES: usize = 48;
/// The last region ends past the end of the disk.
const DISK_BYTES: usize = REGIONS * REGION_BYTES - 29;
const MAX_EVENTS: u32 = 8;
/// The byte between and around buffers, which must not change.
const GUARD: u8 = 0xee;

#[derive(Clone, Debug)]
enum Step {
    Push {
        op: Kind,
        region: usize,
        cuts: Vec<usize>,
    },
    Submit,
    Reap,
    Complete {
        pick: usize,
        outcome: Outcome,
    },
    Answer(Result<usize, Errno>),
    /// Whether the disk answers within the submission, and how far the next transfer gets then.
    Within(bool, usize),
    Batch(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write(u8),
    Flush,
}

/// Random steps of submitter, disk and kernel.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let kind = prop_oneof![
        4 => Just(Kind::Read),
        4 => any::<u8>().prop_map(Kind::Write),
        1 => Just(Kind::Flush),
    ];
    let push = (
        kind,
        0..REGIONS,
        prop::collection::vec(0..=REGION_BYTES, 0..6),
    )
        .prop_map(|(op, region, cuts)| Step::Push { op, region, cuts });
    let outcome = prop_oneof![
        3 => Just(Outcome::Whole),
        3 => (1..REGION_BYTES).prop_map(Outcome::Short),
        1 => Just(Outcome::Error(Errno::IO)),
    ];
    let answer = prop_oneof![
        2 => Just(Err(Errno::AGAIN)),
        1 => Just(Err(Errno::BADF)),
        2 => (1..4_usize).prop_map(Ok),
    ];
    let step = prop_oneof![
        6 => push,
        3 => Just(Step::Submit),
        3 => Just(Step::Reap),
        6 => (any::<prop::sample::Index>(), outcome)
            .prop_map(|(pick, outcome)| Step::Complete { pick: pick.index(1 << 20), outcome }),
        1 => answer.prop_map(Step::Answer),
        1 => (0..10_u32).prop_map(Step::Batch),
        2 => (any::<bool>(), 1..REGION_BYTES).prop_map(|(within, bytes)| Step::Within(within, bytes)),
    ];
    prop::collection::vec(step, 1..120)
}

/// A request in flight.
struct InFlightRequest {
    kind: Kind,
    region: usize,
    /// Buffers and the guards around them.
    memory: Vec<u8>,
    /// (position in `memory`, bytes) of every buffer.
    parts: Vec<(usize, usize)>,
    _iov: Vec<libc::iovec>,
}

impl InFlightRequest {
    /// Cuts a region into buffers with guards between them.
    fn new(kind: Kind, region: usize, mut cuts: Vec<usize>, token: u64) -> (Self, Request) {
        cuts.extend([0, REGION_BYTES]);
        cuts.sort_unstable();
        let parts: Vec<_> = cuts
            .windows(2)
            .enumerate()
            .map(|(index, cut)| (cut[0] + 4 * (index + 1), cut[1] - cut[0]))
            .collect();
        let mut memory = vec![GUARD; REGION_BYTES + 4 * (parts.len() + 1)];
        if let Kind::Write(seed) = kind {
            let mut data = pattern(seed).into_iter();
            for &(at, len) in &parts {
                memory[at..at + len]
                    .iter_mut()
                    .for_each(|byte| *byte = data.next().unwrap());
            }
        }
        let base = memory.as_mut_ptr();
        let mut iov: Vec<_> = parts
            .iter()
            .map(|&(at, len)| libc::iovec {
                iov_base: base.wrapping_add(at).cast(),
                iov_len: len,
            })
            .collect();
        let io = Request {
            op: match kind {
                Kind::Read => Op::Read,
                Kind::Write(_) => Op::Write,
                Kind::Flush => Op::Flush,
            },
            fua: matches!(kind, Kind::Write(seed) if seed & 1 == 1),
            offset: (region * REGION_BYTES) as u64,
            iov: iov.as_mut_ptr(),
            iov_count: u32::try_from(iov.len()).unwrap(),
            len: REGION_BYTES as u64,
            token,
        };
        (
            Self {
                kind,
                region,
                memory,
                parts,
                _iov: iov,
            },
            io,
        )
    }

    fn data(&self) -> Vec<u8> {
        self.parts
            .iter()
            .flat_map(|&(at, len)| &self.memory[at..at + len])
            .copied()
            .collect()
    }

    fn guards_intact(&self) -> bool {
        let mut guards = self.memory.clone();
        for &(at, len) in &self.parts {
            guards[at..at + len].fill(GUARD);
        }
        guards.iter().all(|byte| *byte == GUARD)
    }
}

fn pattern(seed: u8) -> Vec<u8> {
    (0_u8..)
        .map(|i| seed ^ i.wrapping_mul(7))
        .take(REGION_BYTES)
        .collect()
}

struct World<S> {
    aio: S,
    model: Vec<u8>,
    requests: BTreeMap<u64, InFlightRequest>,
    next_token: u64,
    /// Scripted errors of the kernel, by kind; each must appear once.
    io_errors: usize,
    bad_fds: usize,
}

impl<S: Subject> World<S> {
    /// An engine on a test disk, and the model of the disk; `plain` is passed to [`Subject::new`].
    fn new(plain: bool) -> Self {
        let disk: Vec<u8> = (0..=250).cycle().take(DISK_BYTES).collect();
        let aio = S::new(disk.clone(), MAX_EVENTS, plain);
        Self {
            aio,
            model: disk,
            requests: BTreeMap::new(),
            next_token: 0,
            io_errors: 0,
            bad_fds: 0,
        }
    }

    /// Takes one step, and checks the limits of the engine.
    fn step(&mut self, step: Step) {
        match step {
            Step::Push { op, region, cuts } => self.push(op, region, cuts),
            Step::Submit => self.submit(),
            Step::Reap => self.reap(),
            Step::Complete { pick, outcome } => self.complete(pick, outcome),
            Step::Answer(answer) => self.aio.script().push_back(answer),
            Step::Within(within, bytes) => {
                self.aio.answer_within(within, Outcome::Short(bytes));
            }
            Step::Batch(batch) => self.aio.set_max_batch(batch),
        }
        assert!(
            self.aio
                .calls()
                .iter()
                .all(|count| (1..=MAX_EVENTS as usize).contains(count))
        );
        assert!(self.aio.in_flight_count() + self.aio.pending_count() <= MAX_EVENTS as usize);
        assert_eq!(self.aio.room(), MAX_EVENTS as usize - self.requests.len());
    }

    /// Pushes a request to a region, unless one is in flight there; it is taken if and only if there is room.
    fn push(&mut self, kind: Kind, region: usize, cuts: Vec<usize>) {
        if self
            .requests
            .values()
            .any(|request| request.region == region)
        {
            return;
        }
        let token = self.next_token;
        let (request, io) = InFlightRequest::new(kind, region, cuts, token);
        let room = self.aio.room();
        self.counting_bad_fds(|aio| {
            // SAFETY: `requests` keeps the buffers until the completion was seen.
            let taken = unsafe { aio.start_or_queue(S::FILE, &io) };
            assert_eq!(taken.is_ok(), room > 0);
        });
        if room > 0 {
            self.requests.insert(token, request);
            self.next_token += 1;
        }
    }

    fn submit(&mut self) {
        self.counting_bad_fds(S::submit);
        // Requests that still wait have a reason, which the loop can see.
        assert!(self.aio.pending_count() == 0 || self.aio.is_blocked());
    }

    fn complete(&mut self, pick: usize, outcome: Outcome) {
        let held = self.aio.held_slots().len();
        if held > 0 {
            self.io_errors += usize::from(matches!(outcome, Outcome::Error(_)));
            self.aio.complete(pick % held, outcome);
            assert!(self.aio.sees_completions(), "polling would not see it");
        }
    }

    /// Reaps, and checks each completed request.
    fn reap(&mut self) {
        let mut out = Vec::new();
        self.counting_bad_fds(|aio| {
            aio.reap_all(&mut out);
        });
        for Completion { token, result } in out {
            let request = self
                .requests
                .remove(&token)
                .expect("a token completes exactly once");
            assert!(
                request.guards_intact(),
                "memory outside of the buffers was changed"
            );
            self.check(&request, result);
        }
    }

    /// Checks the data of a completed read, and makes a completed write in the model.
    fn check(&mut self, request: &InFlightRequest, result: Result<(), Errno>) {
        let start = request.region * REGION_BYTES;
        let range = start..DISK_BYTES.min(start + REGION_BYTES);
        match result {
            Ok(()) => match request.kind {
                Kind::Read => {
                    let mut expected = self.model[range].to_vec();
                    expected.resize(REGION_BYTES, 0);
                    assert_eq!(request.data(), expected);
                }
                Kind::Write(seed) => {
                    assert_eq!(range.len(), REGION_BYTES, "the disk cannot hold this");
                    self.model[range].copy_from_slice(&pattern(seed));
                }
                Kind::Flush => {}
            },
            Err(errno) => {
                match errno {
                    Errno::IO => self.io_errors -= 1,
                    Errno::BADF => self.bad_fds -= 1,
                    Errno::NOSPC => assert!(range.len() < REGION_BYTES, "there was space"),
                    other => panic!("no script has {other}"),
                }
                // A failed write may have happened in part.
                if matches!(request.kind, Kind::Write(_)) {
                    self.model[range.clone()].copy_from_slice(&self.aio.disk()[range]);
                }
            }
        }
    }

    /// Counts the hard errors that the script has during `act`.
    fn counting_bad_fds(&mut self, act: impl FnOnce(&mut S)) {
        let scripted = |aio: &mut S| {
            aio.script()
                .iter()
                .filter(|answer| **answer == Err(Errno::BADF))
                .count()
        };
        let before = scripted(&mut self.aio);
        act(&mut self.aio);
        if S::ERRORS_REFUSE {
            self.bad_fds += before - scripted(&mut self.aio);
        }
    }

    /// Completes everything, and checks that no request is stuck, no error is lost, and the disk is as the model.
    fn drain(&mut self) {
        self.aio.script().clear();
        while !self.requests.is_empty() {
            let waiting = self.requests.len();
            let (resumed, _) = self.aio.counts();
            self.submit();
            while !self.aio.held_slots().is_empty() {
                self.aio.complete(0, Outcome::Whole);
            }
            self.reap();
            let moved = self.requests.len() < waiting || self.aio.counts().0 > resumed;
            assert!(moved, "requests are stuck");
        }
        assert_eq!(
            (self.aio.in_flight_count(), self.aio.pending_count()),
            (0, 0)
        );
        assert_eq!(
            (self.io_errors, self.bad_fds),
            (0, 0),
            "an error was swallowed"
        );
        assert_eq!(self.aio.counts().1, self.next_token);
        assert!(self.aio.disk() == self.model);
    }
}

fn run<S: Subject>(steps: Vec<Step>, plain: bool) {
    let mut world = World::<S>::new(plain);
    for step in steps {
        world.step(step);
    }
    world.drain();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn linux_aio_completes_every_request_once_and_data_is_right(steps in steps(), plain in any::<bool>()) {
        run::<LinuxAio<FakeKernel>>(steps, plain);
    }

    #[test]
    fn io_uring_completes_every_request_once_and_data_is_right(steps in steps(), plain in any::<bool>()) {
        run::<Uring<FakeRing>>(steps, plain);
    }
}

fn put_flush<S: Subject>(aio: &mut S, token: u64) -> Result<(), Full> {
    let flush = Request::without_data(Op::Flush, 0, 0, token);
    // SAFETY: it has no buffers.
    unsafe { aio.start_or_queue(S::FILE, &flush) }
}

fn reaped<S: Subject>(aio: &mut S) -> Vec<(u64, Result<(), Errno>)> {
    let mut out = Vec::new();
    aio.reap_all(&mut out);
    out.iter().map(|done| (done.token, done.result)).collect()
}

/// What takes the last room is submitted, and room comes with the reap.
fn full_engine_refuses<S: Subject>() {
    let mut aio = S::new(Vec::new(), 4, false);
    (0..3).for_each(|token| put_flush(&mut aio, token).unwrap());
    assert_eq!((aio.room(), aio.calls().len()), (1, 0));
    put_flush(&mut aio, 3).unwrap();
    assert_eq!((aio.room(), aio.in_flight_count()), (0, 4));
    assert_eq!(put_flush(&mut aio, 4), Err(Full));
    aio.complete(2, Outcome::Whole);
    assert_eq!(aio.room(), 0, "not reaped yet");
    assert_eq!(reaped(&mut aio), [(2, Ok(()))]);
    // One place is free, so one request is a full batch.
    put_flush(&mut aio, 4).unwrap();
    assert_eq!((aio.calls(), aio.room()), (&[4, 1][..], 0));
}

/// Refused requests wait in order for a completion or, with nothing in flight, for the next submission.
fn refused_requests_wait_in_order<S: Subject>(refusals: &[Result<usize, Errno>]) {
    for &refusal in refusals {
        let mut aio = S::new(Vec::new(), 16, false);
        aio.set_max_batch(4);
        aio.script().extend([refusal; 2]);
        put_flush(&mut aio, 0).unwrap();
        for _ in 0..2 {
            aio.submit();
            let counts = (aio.in_flight_count(), aio.pending_count());
            assert_eq!((aio.is_blocked(), counts), (true, (0, 1)), "{refusal:?}");
        }
        aio.submit();
        assert!(!aio.is_blocked());
        aio.script().push_back(refusal);
        (1..3).for_each(|token| put_flush(&mut aio, token).unwrap());
        aio.submit();
        assert!(aio.is_blocked());
        let calls = aio.calls().len();
        // Neither the submit phase nor a full batch retries before something has changed.
        aio.submit();
        (3..9).for_each(|token| put_flush(&mut aio, token).unwrap());
        assert_eq!(reaped(&mut aio), []);
        assert_eq!((aio.calls().len(), aio.pending_count()), (calls, 8));
        aio.complete(0, Outcome::Whole);
        assert_eq!(reaped(&mut aio), [(0, Ok(()))]);
        assert_eq!(aio.calls().len(), calls, "completions are seen first");
        aio.submit();
        assert!(!aio.is_blocked());
        assert_eq!(aio.held_slots(), (1..9).collect::<Vec<_>>());
    }
}

/// No call is larger than the batch, and an idle disk gets a few requests first, also while more are being pushed.
fn batches_are_limited<S: Subject>() {
    for (max_batch, calls) in [
        (1, vec![1; 70]),
        (8, vec![4, 4, 8, 8, 8, 8, 8, 8, 8, 6]),
        (0, vec![4, 4, 8, 16, 32, 6]),
    ] {
        for held_back in [true, false] {
            let mut aio = S::new(Vec::new(), 128, false);
            aio.set_max_batch(max_batch);
            if held_back {
                // All are pending at once then.
                aio.script().push_back(Err(Errno::AGAIN));
            }
            let refused = usize::from(held_back);
            for token in 0..70 {
                put_flush(&mut aio, token).unwrap();
            }
            assert_eq!(aio.is_blocked(), held_back);
            aio.submit();
            assert_eq!(aio.calls()[refused..], calls, "batch {max_batch}");
            let counts = (aio.pending_count(), aio.in_flight_count(), aio.room());
            assert_eq!(counts, (0, 70, 58));
        }
    }
}

#[test]
fn linux_aio_submits_batches_of_what_it_has_room_for() {
    full_engine_refuses::<LinuxAio<FakeKernel>>();
    refused_requests_wait_in_order::<LinuxAio<FakeKernel>>(&[Err(Errno::AGAIN), Ok(0)]);
    batches_are_limited::<LinuxAio<FakeKernel>>();
}

#[test]
fn io_uring_submits_batches_of_what_it_has_room_for() {
    full_engine_refuses::<Uring<FakeRing>>();
    let refusals = [Err(Errno::AGAIN), Err(Errno::BUSY), Ok(0)];
    refused_requests_wait_in_order::<Uring<FakeRing>>(&refusals);
    batches_are_limited::<Uring<FakeRing>>();
}
