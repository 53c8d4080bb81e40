//! The speed of a copier beside guests: no limit while they do nothing, else one that keeps their requests almost as fast as without it.
//!
//! Now and then the copier *rests*, which shows how long guests' requests take without it. While it copies they are compared with
//! that: if they take over a quarter longer it becomes slower, and if they take less than a tenth longer it becomes faster.
//! It does not matter whether the copier keeps them from the disk or from the processor.

use block::{COPY_CLUSTER_BYTES, MAX_COPY_PIECE_BYTES};

use crate::MAX_WORKERS;
use crate::guests::GuestRequests;
use crate::speed_limit::SpeedLimit;

const MS: u64 = 1_000_000;

/// The speed beside guests at first, and at least, in bytes per second.
const FIRST_SPEED: u64 = 128 << 20;
const MIN_SPEED: u64 = 8 << 20;
/// Faster than any disk.
const MAX_SPEED: u64 = 16 << 30;

/// A sample is this long, and longer if guests have few requests.
const SAMPLE_NS: u64 = 20 * MS;
const SAMPLE_REQUESTS: u64 = 32;
const MAX_SAMPLE_NS: u64 = 500 * MS;
const MAX_REST_NS: u64 = 200 * MS;
const LOOK_INTERVAL_NS: u64 = 5 * MS;
/// Guests that have no request in this time do nothing.
const IDLE_NS: u64 = 100 * MS;
/// Between two rests.
const REST_INTERVAL_NS: u64 = 1000 * MS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Before a rest the parts in flight end.
    EndingParts,
    /// So do requests of guests that have waited for them.
    EndingRequests,
    Resting,
    Copying,
}

/// The speed beside guests.
pub(super) struct GuestSpeed {
    phase: Phase,
    phase_began_ns: u64,
    next_look_ns: u64,
    /// The beginning of a sample, and what guests had done then.
    sample_began_ns: u64,
    at_sample_begin: GuestRequests,
    /// Mean latency of guests' requests while the copier rests, in ticks.
    undisturbed_ticks: Option<u64>,
    limit: SpeedLimit,
    /// What is copied at once, if there is a limit.
    window_bytes: u64,
    /// What the copier has begun in this sample.
    sample_bytes: u64,
    /// Requests that ended, or were in flight, before a rest.
    awaited_requests: u64,
    /// Requests that do not end: parked ones.
    stuck_requests: u64,
}

impl GuestSpeed {
    /// It begins with a rest if guests have done anything so far.
    pub fn new() -> Self {
        GuestSpeed {
            phase: Phase::Copying,
            phase_began_ns: 0,
            next_look_ns: 0,
            sample_began_ns: 0,
            at_sample_begin: GuestRequests::default(),
            undisturbed_ticks: None,
            limit: SpeedLimit::default(),
            window_bytes: COPY_CLUSTER_BYTES,
            sample_bytes: 0,
            awaited_requests: 0,
            stuck_requests: 0,
        }
    }

    /// Whether no part may begin.
    pub fn is_resting(&self) -> bool {
        self.phase != Phase::Copying
    }

    /// The limit; `None`: guests do nothing.
    pub fn bytes_per_second(&self) -> Option<u64> {
        self.limit.bytes_per_second()
    }

    /// Bytes of a part, and how many parts are copied at once, if there is a limit.
    pub fn part_bytes_and_count(&self) -> (u64, usize) {
        let part = (self.window_bytes / MAX_WORKERS as u64).max(COPY_CLUSTER_BYTES);
        let part = part / COPY_CLUSTER_BYTES * COPY_CLUSTER_BYTES;
        let count = usize::try_from(self.window_bytes / part).unwrap_or(usize::MAX);
        (part, count)
    }

    /// Counts a part that begins now.
    pub fn count(&mut self, bytes: u64, now_ns: u64) {
        self.limit.count(bytes, now_ns);
        self.sample_bytes += bytes;
    }

    /// The time before which no part may begin, on the loop's clock.
    pub fn next_part_at_ns(&self) -> u64 {
        self.limit.next_part_at_ns()
    }

    /// The time of the next look.
    pub fn next_look_ns(&self) -> u64 {
        self.next_look_ns
    }

    /// Looks, if it is time, at the requests of guests so far.
    pub fn look(
        &mut self,
        now_ns: u64,
        parts_in_flight: usize,
        requests: impl Fn() -> GuestRequests,
    ) {
        if self.phase != Phase::EndingParts && now_ns < self.next_look_ns {
            return;
        }
        self.next_look_ns = now_ns + LOOK_INTERVAL_NS;
        let requests = requests();
        let seen = requests.since(self.at_sample_begin);
        let sample_ns = now_ns - self.sample_began_ns;
        match self.phase {
            Phase::Copying => self.look_while_copying(now_ns, sample_ns, seen, requests),
            Phase::EndingRequests if requests.ended >= self.awaited_requests => {
                self.stuck_requests = 0;
                self.begin_phase(Phase::Resting, now_ns, requests);
            }
            Phase::EndingRequests if sample_ns >= MAX_REST_NS => {
                // What does not end without the copier either does not wait for it.
                self.stuck_requests = if seen.ended == 0 { seen.in_flight } else { 0 };
                self.begin_copying(now_ns, seen, requests);
            }
            Phase::Resting if self.are_idle(seen) || seen.is_enough(sample_ns, MAX_REST_NS) => {
                self.undisturbed_ticks = seen.mean_ticks().or(self.undisturbed_ticks);
                self.begin_copying(now_ns, seen, requests);
            }
            Phase::Resting | Phase::EndingRequests | Phase::EndingParts => {}
        }
        if self.phase == Phase::EndingParts && parts_in_flight == 0 {
            self.awaited_requests = requests.ended + requests.in_flight;
            self.begin_phase(Phase::EndingRequests, now_ns, requests);
            self.next_look_ns = now_ns + LOOK_INTERVAL_NS;
        }
    }

    fn begin_copying(&mut self, now_ns: u64, seen: GuestRequests, requests: GuestRequests) {
        if self.bytes_per_second().is_none() && !self.are_idle(seen) {
            self.limit.set_for_next_parts(Some(FIRST_SPEED));
        }
        self.begin_phase(Phase::Copying, now_ns, requests);
    }

    fn look_while_copying(
        &mut self,
        now_ns: u64,
        sample_ns: u64,
        seen: GuestRequests,
        requests: GuestRequests,
    ) {
        let Some(speed) = self.bytes_per_second() else {
            // Guests that have been idle, or there was none.
            return match self.are_idle(seen) {
                true => self.begin_sample(now_ns, requests),
                false => self.begin_phase(Phase::EndingParts, now_ns, requests),
            };
        };
        if self.are_idle(seen) {
            if sample_ns >= IDLE_NS {
                let faster = Some(speed * 2).filter(|speed| *speed < MAX_SPEED);
                self.limit.set_for_next_parts(faster);
                self.begin_sample(now_ns, requests);
            }
            return;
        }
        if !seen.is_enough(sample_ns, MAX_SAMPLE_NS) {
            return;
        }
        if now_ns - self.phase_began_ns >= REST_INTERVAL_NS {
            return self.begin_phase(Phase::EndingParts, now_ns, requests);
        }
        match (self.undisturbed_ticks, seen.mean_ticks()) {
            (Some(undisturbed), Some(ticks)) => self.adapt(speed, sample_ns, undisturbed, ticks),
            (None, Some(_)) => return self.begin_phase(Phase::EndingParts, now_ns, requests),
            (_, None) => {}
        }
        self.begin_sample(now_ns, requests);
    }

    /// Adapts what limits the copier, its speed or what it copies at once, after a sample in which requests took so long.
    fn adapt(&mut self, speed: u64, sample_ns: u64, undisturbed_ticks: u64, ticks: u64) {
        let used = u128::from(self.sample_bytes) * 1_000_000_000 / u128::from(sample_ns.max(1));
        let used = u64::try_from(used).unwrap_or(u64::MAX);
        let is_limit_reached = used >= speed / 4 * 3;
        let mut speed = speed;
        if ticks > undisturbed_ticks / 4 * 5 {
            if is_limit_reached || self.window_bytes == COPY_CLUSTER_BYTES {
                speed = speed.min(used.saturating_mul(2)) / 4 * 3;
            } else {
                self.window_bytes = self.window_bytes / 4 * 3;
            }
        } else if ticks < undisturbed_ticks / 10 * 11 {
            if is_limit_reached {
                speed = speed / 8 * 9;
            } else {
                self.window_bytes += (self.window_bytes / 4).max(COPY_CLUSTER_BYTES);
            }
        }
        let most = MAX_WORKERS as u64 * MAX_COPY_PIECE_BYTES;
        self.window_bytes = self.window_bytes.clamp(COPY_CLUSTER_BYTES, most);
        let speed = speed.clamp(MIN_SPEED, MAX_SPEED);
        self.limit.set_for_next_parts(Some(speed));
    }

    /// Whether guests do nothing.
    fn are_idle(&self, seen: GuestRequests) -> bool {
        seen.ended == 0 && seen.in_flight <= self.stuck_requests
    }

    fn begin_phase(&mut self, phase: Phase, now_ns: u64, requests: GuestRequests) {
        (self.phase, self.phase_began_ns) = (phase, now_ns);
        self.begin_sample(now_ns, requests);
    }

    fn begin_sample(&mut self, now_ns: u64, requests: GuestRequests) {
        (self.sample_began_ns, self.at_sample_begin) = (now_ns, requests);
        self.sample_bytes = 0;
        self.next_look_ns = now_ns + SAMPLE_NS;
    }
}

impl GuestRequests {
    /// Whether the requests of a sample so far say how long requests take.
    fn is_enough(self, sample_ns: u64, max_ns: u64) -> bool {
        self.plain() >= SAMPLE_REQUESTS || sample_ns >= max_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICKS: u64 = 1000;

    /// A copier beside guests that have a request each tenth of a millisecond.
    struct Rig {
        speed: GuestSpeed,
        now_ns: u64,
        requests: GuestRequests,
        rests: u32,
        /// What the disk can do.
        most_per_ms: u64,
    }

    impl Rig {
        fn new() -> Self {
            Rig {
                speed: GuestSpeed::new(),
                now_ns: 1_000 * MS,
                requests: GuestRequests::default(),
                rests: 0,
                most_per_ms: u64::MAX,
            }
        }

        /// So many milliseconds; requests take this long while it copies.
        fn run(&mut self, ms: u64, disturbed_ticks: u64) {
            for _ in 0..ms {
                let is_resting = self.speed.is_resting();
                let ticks = if is_resting { TICKS } else { disturbed_ticks };
                self.requests.ended += 10;
                self.requests.ticks += 10 * ticks;
                if !is_resting {
                    let most = self.speed.bytes_per_second().unwrap_or(FIRST_SPEED) / 1000;
                    let now_ns = self.now_ns + MS;
                    self.speed.count(most.min(self.most_per_ms), now_ns);
                }
                self.idle(1);
            }
        }

        /// So many milliseconds without requests.
        fn idle(&mut self, ms: u64) {
            for _ in 0..ms {
                self.now_ns += MS;
                let rested = self.speed.is_resting();
                self.speed.look(self.now_ns, 0, || self.requests);
                self.rests += u32::from(!rested && self.speed.is_resting());
            }
        }
    }

    #[test]
    fn without_requests_there_is_no_limit_and_no_rest() {
        let mut rig = Rig::new();
        rig.idle(3000);
        assert_eq!((rig.speed.bytes_per_second(), rig.rests), (None, 0));
    }

    #[test]
    fn it_becomes_slower_until_requests_do_not_suffer() {
        let mut rig = Rig::new();
        rig.run(100, TICKS * 2);
        let at_first = rig.speed.bytes_per_second().expect("there are guests");
        assert!(at_first <= FIRST_SPEED, "{at_first}");
        rig.run(2000, TICKS * 2);
        assert_eq!(rig.speed.bytes_per_second(), Some(MIN_SPEED));
        rig.run(2000, TICKS);
        let faster = rig.speed.bytes_per_second().expect("there are guests");
        assert!(faster > 16 * MIN_SPEED, "{faster}");
        rig.run(500, TICKS * 6 / 5);
        let kept = rig.speed.bytes_per_second();
        assert_eq!(kept, Some(faster), "a fifth is between both");
        assert!((3..=5).contains(&rig.rests), "{}", rig.rests);
    }

    #[test]
    fn a_guest_that_begins_is_found_by_a_rest_and_one_that_ends_is_forgotten() {
        let mut rig = Rig::new();
        rig.idle(500);
        rig.run(60, TICKS);
        assert_eq!(rig.rests, 1);
        assert!(rig.speed.bytes_per_second().is_some());
        rig.idle(2000);
        assert_eq!(rig.speed.bytes_per_second(), None);
    }

    #[test]
    fn a_rest_waits_for_the_parts_in_flight() {
        let mut rig = Rig::new();
        rig.run(1, TICKS);
        rig.requests.ended += 1;
        let mut speed = GuestSpeed::new();
        speed.look(rig.now_ns, 2, || rig.requests);
        assert_eq!(speed.phase, Phase::EndingParts);
        speed.look(rig.now_ns + 1, 1, || rig.requests);
        assert_eq!(speed.phase, Phase::EndingParts);
        speed.look(rig.now_ns + 2, 0, || rig.requests);
        assert_eq!(speed.phase, Phase::EndingRequests);
    }

    #[test]
    fn a_rest_begins_when_requests_have_ended_that_waited_for_parts() {
        let mut rig = Rig::new();
        rig.requests.in_flight = 100;
        for ms in [1, 9] {
            rig.run(ms, TICKS);
            assert_eq!(rig.speed.phase, Phase::EndingRequests);
        }
        rig.run(7, TICKS);
        assert_eq!(rig.speed.phase, Phase::Resting);
    }

    #[test]
    fn requests_that_never_end_are_no_reason_to_be_slow() {
        let mut rig = Rig::new();
        rig.requests.ended = 1;
        rig.requests.in_flight = 3;
        rig.idle(5000);
        assert_eq!((rig.speed.bytes_per_second(), rig.rests), (None, 1));
    }

    #[test]
    fn more_is_copied_at_once_if_the_speed_is_not_reached_and_requests_do_not_suffer() {
        let mut rig = Rig::new();
        rig.most_per_ms = 4096;
        rig.run(100, TICKS);
        let (part, count) = rig.speed.part_bytes_and_count();
        assert_eq!(part, COPY_CLUSTER_BYTES);
        assert!(count > 1, "{count}");
        rig.run(8000, TICKS);
        assert_eq!(rig.speed.part_bytes_and_count(), (MAX_COPY_PIECE_BYTES, 8));
        assert!(rig.speed.bytes_per_second() <= Some(2 * FIRST_SPEED));
        rig.run(8000, TICKS * 2);
        assert_eq!(rig.speed.part_bytes_and_count(), (COPY_CLUSTER_BYTES, 1));
    }

    #[test]
    fn writes_that_copy_themselves_are_not_compared() {
        let mut rig = Rig::new();
        rig.run(200, TICKS);
        let before = rig.speed.bytes_per_second();
        for _ in 0..100 {
            rig.requests.ended += 10;
            rig.requests.ticks += 10 * 5 * TICKS;
            rig.requests.copying += 10;
            rig.requests.copying_ticks += 10 * 5 * TICKS;
            rig.idle(1);
        }
        assert!(rig.speed.bytes_per_second() >= before);
    }
}
