//! How many requests go to the kernel in one call, at most.
//!
//! A call costs something once, and something for each request in it. Few requests per call waste the
//! first; many keep the disk waiting: it runs dry while the next call is put together. The best
//! number depends on the disk. [`DefaultBatch::Adaptive`] finds it by what each call leaves
//! behind: how many of its *own* requests have completed by the time it returns. That costs a
//! look at two indices per call, and no clock.
//!
//! - None, and it is not even done with what was there before: it has work all the time. Fewer, larger
//!   calls do not keep it waiting: a full one raises the limit by a step.
//! - None, but it is done with what was there before: it was idle until the call, and with a larger
//!   one it would have been for longer. The limit stays.
//! - More than half: the disk takes less than half of the call, and idles until the next. The limit
//!   becomes half of the call's size.
//! - Some: the limit stays. The width of this range is what a halving is, so that a steady disk
//!   sees no swinging.
//! - All of them: the kernel did the work inside of the call, as for a file in memory. Nothing runs beside
//!   us that could idle, only the cost per call counts, and a full call raises the limit.
//!
//! How many are a call's own is a subtraction: completions that are there and not yet taken, less what
//! was in flight before it. It counts too few, never too many, where the disk answers out of order.
//! A ring of io_uring's shows only what the kernel has finished, which it does in portions (Linux 6.18: 20 in
//! a call). A call that leaves unfinished ones says nothing, and under a flood most do: then the limit stays.
//!
//! A disk with nothing to do is a case of its own, whatever the limit: the kernel tells it of a call's requests
//! when the last of them is prepared, and until then it waits. So no call is larger than what the disk
//! has to do already, or than a [first few](DEFAULT_FIRST_BATCH): it starts on those, and each further call
//! doubles what it has. Disks that answer in bursts have nothing to do after each of them.
//!
//! What this does not do: completions are looked at once per iteration of the loop, however many calls it
//! makes. How long the first waits for that is bounded by what a queue may submit in an iteration,
//! not here.

/// Most requests in one call unless told otherwise. With 1024 the kernel is busy submitting while
/// the first of them are long finished; 32 measured best over queue depths.
pub const DEFAULT_MAX_BATCH: u32 = 32;

/// Most requests in the first call to a disk that has nothing to do. Measured against none on a disk that
/// answers in bursts, at depth 32: 12 % more requests per second; 1, 2 and 8 are as good within noise.
pub const DEFAULT_FIRST_BATCH: u32 = 4;

/// The adaptive limit's lower bound: what a call costs once is always shared by so many.
pub const MIN_ADAPTIVE_BATCH: u32 = 8;

/// Its upper bound: what two queues may bring in an iteration. More would spare less than one call in
/// it, and a disk that has become fast meanwhile halves this one to the lower bound in four calls.
pub const MAX_ADAPTIVE_BATCH: u32 = 128;

/// How much a full call that could have been larger raises the limit.
const STEP: u32 = 8;

/// What a limit of 0 means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultBatch {
    /// [`DEFAULT_MAX_BATCH`], whatever the disk is like.
    #[default]
    Fixed,
    /// From [`MIN_ADAPTIVE_BATCH`] to [`MAX_ADAPTIVE_BATCH`], as the disk wants it.
    Adaptive,
}

/// The limit of one engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchLimit {
    now: u32,
    /// Of a call when nothing is in flight.
    first: usize,
    /// What the engine has room for.
    room: u32,
    default: DefaultBatch,
    adapts: bool,
}

impl BatchLimit {
    /// `wanted` as for [`set`](Self::set). `first`: the limit while nothing is in flight, 0: no other than
    /// else. `room`: as many requests as the engine has room for.
    pub(crate) fn new(wanted: u32, default: DefaultBatch, first: u32, room: u32) -> Self {
        let mut limit = Self {
            now: 0,
            first: match first {
                0 => usize::MAX,
                first => first as usize,
            },
            room,
            default,
            adapts: false,
        };
        limit.set(wanted);
        limit
    }

    /// A fixed limit; 0: the default. More than there is room for is as much as there is room for.
    pub(crate) fn set(&mut self, wanted: u32) {
        self.adapts = wanted == 0 && self.default == DefaultBatch::Adaptive;
        let now = if wanted == 0 {
            DEFAULT_MAX_BATCH
        } else {
            wanted
        };
        self.now = now.min(self.room);
    }

    /// The limit while the disk has enough to do.
    #[inline]
    pub(crate) fn now(&self) -> u32 {
        self.now
    }

    /// Whether calls are to be [learnt](Self::learn) from.
    #[inline]
    pub(crate) fn adapts(&self) -> bool {
        self.adapts
    }

    /// The limit for the next call, when `in_flight` requests were handed over and are not taken back.
    /// One that adapts learns from full calls alone, and finds out about idle disks by itself.
    #[inline]
    pub(crate) fn of_call(&self, in_flight: usize) -> usize {
        let now = self.now as usize;
        if self.adapts {
            return now;
        }
        now.min(in_flight.max(self.first))
    }

    /// A call has handed over `count` requests, all that it was given. `in_flight` were there before it
    /// and not taken back since; `completed` of all these together can be taken back now.
    pub(crate) fn learn(&mut self, count: usize, in_flight: usize, completed: usize) {
        debug_assert!(self.adapts && completed <= in_flight + count);
        let own = completed.saturating_sub(in_flight);
        // No more than the limit, or than a node with a lower limit of its own lets there be.
        let count32 = u32::try_from(count).unwrap_or(u32::MAX);
        let disk_was_busy = own == 0 && completed < in_flight;
        if disk_was_busy || own >= count {
            if count32 >= self.now {
                let most = MAX_ADAPTIVE_BATCH.min(self.room);
                self.now = (self.now + STEP).min(most);
            }
        } else if own > count / 2 {
            let least = MIN_ADAPTIVE_BATCH.min(self.room);
            self.now = self.now.min(count32 / 2).max(least);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that answers in order. Time is counted in requests handed over.
    #[derive(Clone, Copy)]
    enum Disk {
        /// Takes so long, for as many as there are at the same time.
        Takes(usize),
        /// Is finished before the kernel looks at the next request.
        Synchronous,
    }

    fn adaptive(room: u32) -> BatchLimit {
        BatchLimit::new(0, DefaultBatch::Adaptive, 0, room)
    }

    /// A call of `count` requests, with `older` ones before it that complete before its own.
    fn call(limit: &mut BatchLimit, disk: Disk, count: usize, older: usize) {
        let own = match disk {
            Disk::Takes(requests) => count.saturating_sub(requests),
            Disk::Synchronous => count,
        };
        let completed = if own > 0 { older + own } else { older / 2 };
        limit.learn(count, older, completed);
    }

    /// Full calls with more waiting; the limit after each.
    fn flood(limit: &mut BatchLimit, disk: Disk, calls: usize) -> Vec<u32> {
        let one = |_| {
            let count = limit.now() as usize;
            call(limit, disk, count, 40);
            limit.now()
        };
        (0..calls).map(one).collect()
    }

    #[test]
    fn a_slow_disk_gets_large_batches() {
        let mut limit = adaptive(1024);
        assert_eq!(limit.now(), DEFAULT_MAX_BATCH);
        let limits = flood(&mut limit, Disk::Takes(200), 20);
        assert_eq!(&limits[..3], [40, 48, 56]);
        assert_eq!(&limits[11..], [MAX_ADAPTIVE_BATCH; 9]);
    }

    #[test]
    fn a_fast_disk_gets_small_batches_soon() {
        let mut limit = adaptive(1024);
        flood(&mut limit, Disk::Takes(500), 20);
        let limits = flood(&mut limit, Disk::Takes(3), 6);
        assert_eq!(limits, [64, 32, 16, 8, 8, 8]);
    }

    #[test]
    fn a_disk_that_does_all_in_the_call_gets_large_batches() {
        let mut limit = adaptive(1024);
        flood(&mut limit, Disk::Takes(2), 10);
        assert_eq!(limit.now(), MIN_ADAPTIVE_BATCH);
        let limits = flood(&mut limit, Disk::Synchronous, 15);
        assert_eq!(limits.last(), Some(&MAX_ADAPTIVE_BATCH));
    }

    /// Whatever the disk takes, from either side: within 20 calls the limit stays where it is, and there the
    /// disk takes between half of a call and a whole one, as far as the bounds let it.
    #[test]
    fn it_comes_to_rest_where_the_disk_has_just_finished_the_first() {
        for takes in 1..200 {
            for start in [Disk::Takes(1), Disk::Takes(1000)] {
                let mut limit = adaptive(1024);
                flood(&mut limit, start, 20);
                flood(&mut limit, Disk::Takes(takes), 20);
                let rest = limit.now();
                assert_eq!(
                    flood(&mut limit, Disk::Takes(takes), 20),
                    [rest; 20],
                    "{takes}"
                );
                let takes = u32::try_from(takes).unwrap();
                assert!(rest > takes || rest == MAX_ADAPTIVE_BATCH, "{rest} {takes}");
                assert!(
                    rest <= 2 * takes || rest == MIN_ADAPTIVE_BATCH || rest <= takes + STEP,
                    "{rest} {takes}"
                );
            }
        }
    }

    #[test]
    fn calls_that_are_not_full_lower_the_limit_and_never_raise_it() {
        let mut limit = adaptive(1024);
        for disk in [Disk::Takes(50), Disk::Synchronous] {
            call(&mut limit, disk, 31, 0);
            assert_eq!(limit.now(), 32);
        }
        call(&mut limit, Disk::Takes(4), 20, 7);
        assert_eq!(limit.now(), 10, "half of what was too many");
        call(&mut limit, Disk::Takes(0), 1, 0);
        call(&mut limit, Disk::Takes(1), 2, 0);
        assert_eq!(limit.now(), 10, "half is not too many");
        call(&mut limit, Disk::Takes(1), 3, 0);
        assert_eq!(limit.now(), MIN_ADAPTIVE_BATCH);
    }

    /// What completes during a call and was there before it says nothing about the call's size.
    #[test]
    fn older_completions_do_not_count() {
        let mut limit = adaptive(1024);
        limit.learn(32, 100, 99);
        assert_eq!(limit.now(), 40);
        limit.learn(40, 100, 100);
        limit.learn(40, 0, 0);
        assert_eq!(limit.now(), 40, "the disk was idle before the call");
        limit.learn(40, 100, 121);
        assert_eq!(limit.now(), 20);
    }

    #[test]
    fn a_small_engine_bounds_it() {
        for room in [1, 5, 20, 100] {
            let mut limit = adaptive(room);
            assert_eq!(limit.now(), room.min(DEFAULT_MAX_BATCH));
            flood(&mut limit, Disk::Takes(1000), 20);
            assert_eq!(limit.now(), room);
            flood(&mut limit, Disk::Takes(2), 20);
            assert_eq!(limit.now(), room.min(MIN_ADAPTIVE_BATCH));
        }
    }

    #[test]
    fn a_disk_with_nothing_to_do_gets_a_few_and_then_as_many_again() {
        let limit = BatchLimit::new(32, DefaultBatch::Fixed, 4, 1024);
        let mut in_flight = 0;
        let calls = [(); 6].map(|()| {
            let count = limit.of_call(in_flight);
            in_flight += count;
            count
        });
        assert_eq!(calls, [4, 4, 8, 16, 32, 32]);
        let small = BatchLimit::new(3, DefaultBatch::Fixed, 4, 1024);
        assert_eq!(small.of_call(0), 3, "a limit that was set holds");
        let none = BatchLimit::new(32, DefaultBatch::Fixed, 0, 1024);
        assert_eq!(none.of_call(0), 32);
    }

    #[test]
    fn a_limit_that_was_set_is_fixed() {
        let mut limit = BatchLimit::new(0, DefaultBatch::Fixed, 0, 1024);
        assert_eq!((limit.now(), limit.adapts()), (DEFAULT_MAX_BATCH, false));
        let mut adaptive = adaptive(64);
        flood(&mut adaptive, Disk::Takes(1000), 3);
        for limit in [&mut limit, &mut adaptive] {
            limit.set(5);
            assert_eq!((limit.now(), limit.adapts()), (5, false));
        }
        adaptive.set(1000);
        assert_eq!(adaptive.now(), 64);
        adaptive.set(0);
        assert_eq!(
            (adaptive.now(), adaptive.adapts()),
            (DEFAULT_MAX_BATCH, true)
        );
    }
}
