//! The limit of requests in one system call.
//!
//! A call costs something once, and something for each request in it. Few requests per call waste the
//! first; many keep the disk waiting: it runs dry while the next call is put together.
//!
//! A disk with nothing to do is a case of its own, whatever the limit: the kernel tells it of a call's requests
//! when the last of them is prepared, and until then it waits. So no call is larger than what the disk
//! has to do already, or than a [first few](FIRST_BATCH): it starts on those, and each further call
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
pub const FIRST_BATCH: u32 = 4;

/// The limit of one engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchLimit {
    current: u32,
    /// What the engine has room for.
    room: u32,
}

impl BatchLimit {
    /// `wanted` as for [`set`](Self::set). `room`: as many requests as the engine has room for.
    pub(crate) fn new(wanted: u32, room: u32) -> Self {
        let mut limit = Self { current: 0, room };
        limit.set(wanted);
        limit
    }

    /// Another limit; 0: the default. More than there is room for is as much as there is room for.
    pub(crate) fn set(&mut self, wanted: u32) {
        let limit = if wanted == 0 {
            DEFAULT_MAX_BATCH
        } else {
            wanted
        };
        self.current = limit.min(self.room);
    }

    /// The limit while the disk has enough to do.
    #[inline]
    pub(crate) fn current(&self) -> u32 {
        self.current
    }

    /// The limit for the next call, when `in_flight` requests were handed over and are not taken back.
    #[inline]
    pub(crate) fn for_call(&self, in_flight: usize) -> usize {
        (self.current as usize).min(in_flight.max(FIRST_BATCH as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_with_nothing_to_do_gets_a_few_and_then_as_many_again() {
        let limit = BatchLimit::new(32, 1024);
        let mut in_flight = 0;
        let calls = [(); 6].map(|()| {
            let count = limit.for_call(in_flight);
            in_flight += count;
            count
        });
        assert_eq!(calls, [4, 4, 8, 16, 32, 32]);
        let small = BatchLimit::new(3, 1024);
        assert_eq!(small.for_call(0), 3, "a limit that was set holds");
    }

    #[test]
    fn a_limit_of_0_is_the_default_and_none_exceeds_the_room() {
        let mut limit = BatchLimit::new(0, 64);
        assert_eq!(limit.current(), DEFAULT_MAX_BATCH);
        limit.set(5);
        assert_eq!(limit.current(), 5);
        limit.set(1000);
        assert_eq!(limit.current(), 64);
        limit.set(0);
        assert_eq!(limit.current(), DEFAULT_MAX_BATCH);
        assert_eq!(BatchLimit::new(0, 20).current(), 20);
    }
}
