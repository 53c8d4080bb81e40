//! A clock for durations, which reads the processor's time-stamp counter where the kernel uses it, and the conversion of its ticks
//! into nanoseconds.
//!
//! A null disk answers in half a microsecond. Two calls of clock_gettime(2) for its latency would take a tenth of that, two
//! readings of the processor's counter take a thirtieth. So where the kernel uses that counter for its clock (it checks that
//! it runs evenly, and alike on all processors), we read it directly. Durations are kept in its ticks; readers convert them
//! into nanoseconds by a [`Scale`]. Elsewhere a tick is a nanosecond.
//!
//! Readings of two processes, or of two machines, are unrelated.

use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant};

/// The file that names the kernel's clock source.
const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// A scale taken over this time is exact to less than a part in a million, and is final.
const FINAL_SCALE_TIME: Duration = Duration::from_secs(1);

/// The shortest time over which a scale is taken: exact to some parts in a million.
const MIN_SCALE_TIME: Duration = Duration::from_millis(10);

/// A clock for durations.
#[derive(Clone, Copy, Debug)]
pub struct TickClock {
    /// It reads the processor's counter; otherwise a tick is a nanosecond of the kernel's clock.
    counter: bool,
}

impl TickClock {
    /// The clock of this process.
    #[must_use]
    pub fn of_process() -> Self {
        clock_origin().clock
    }

    /// The current time in ticks.
    #[inline(always)]
    #[must_use]
    pub fn now(self) -> u64 {
        self.now_if_counter().unwrap_or_else(ns_since_first_call)
    }

    /// The current time in ticks, if it is the processor's counter; `None`: it takes a call of the kernel. For callers that
    /// combine this with another reason for their slow path.
    #[inline(always)]
    #[must_use]
    pub fn now_if_counter(self) -> Option<u64> {
        #[cfg(target_arch = "x86_64")]
        if self.counter {
            return Some(read_tsc());
        }
        None
    }

    /// Reads both clocks at the same moment: the closest of several tries.
    fn read_both_clocks(self) -> ClockReading {
        let tries = (0..8).map(|_| {
            let before = self.now();
            let ns = ns_since_first_call();
            let took = self.now().saturating_sub(before);
            let ticks = before + took / 2;
            (took, ClockReading { ticks, ns })
        });
        let closest = tries.min_by_key(|(took, _)| *took);
        closest.map(|(_, pair)| pair).unwrap_or_default()
    }
}

impl Default for TickClock {
    fn default() -> Self {
        TickClock::of_process()
    }
}

/// One moment in ticks and in nanoseconds.
#[derive(Clone, Copy, Default)]
struct ClockReading {
    ticks: u64,
    ns: u64,
}

/// The process's clock, and the moment from which its scale is measured.
struct ClockOrigin {
    clock: TickClock,
    begin: ClockReading,
}

/// The clock of this process, chosen at the first call.
fn clock_origin() -> &'static ClockOrigin {
    static ORIGIN: OnceLock<ClockOrigin> = OnceLock::new();
    ORIGIN.get_or_init(|| {
        let source = std::fs::read_to_string(CLOCK_SOURCE);
        let counter = cfg!(target_arch = "x86_64") && source.is_ok_and(|name| name.trim() == "tsc");
        let clock = TickClock { counter };
        let begin = clock.read_both_clocks();
        ClockOrigin { clock, begin }
    })
}

/// The processor's counter. The compiler's intrinsic is declared to access memory, which would make callers reload values.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn read_tsc() -> u64 {
    let (upper, lower): (u64, u64);
    // SAFETY: every processor of this architecture has the instruction, which writes these registers, their upper halves
    // with zeroes, and nothing else.
    unsafe {
        std::arch::asm!(
            "rdtsc",
            out("rdx") upper,
            out("rax") lower,
            options(nomem, nostack, preserves_flags)
        );
    }
    upper << 32 | lower
}

/// Nanoseconds on the kernel's clock since the first call. Cold path.
#[cold]
#[inline(never)]
fn ns_since_first_call() -> u64 {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(BEGIN.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// The length of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Nanoseconds per 2^32 ticks.
    ns: u64,
}

impl Scale {
    /// The scale of this process's clock. In the first 10 ms of the process it waits for their end. After a second it does
    /// not change any more, so that two readings of a statistic can be subtracted.
    #[must_use]
    pub fn measure() -> Self {
        static FINAL: OnceLock<Scale> = OnceLock::new();
        let ClockOrigin { clock, begin } = clock_origin();
        if !clock.counter {
            return Scale { ns: 1 << 32 };
        }
        if let Some(scale) = FINAL.get() {
            return *scale;
        }
        let age = || Duration::from_nanos(ns_since_first_call().saturating_sub(begin.ns));
        while let Some(rest) = MIN_SCALE_TIME
            .checked_sub(age())
            .filter(|rest| !rest.is_zero())
        {
            std::thread::sleep(rest);
        }
        let now = clock.read_both_clocks();
        let scale = Scale::from_readings(*begin, now);
        match Duration::from_nanos(now.ns - begin.ns) >= FINAL_SCALE_TIME {
            true => *FINAL.get_or_init(|| scale),
            false => scale,
        }
    }

    /// The scale by which both clocks have advanced from one reading to the other.
    fn from_readings(begin: ClockReading, end: ClockReading) -> Self {
        let ticks = u128::from(end.ticks.saturating_sub(begin.ticks).max(1));
        let ns = u128::from(end.ns.saturating_sub(begin.ns)) << 32;
        let ns = u64::try_from(ns / ticks).unwrap_or(u64::MAX).max(1);
        Scale { ns }
    }

    /// A duration in nanoseconds.
    #[must_use]
    pub fn to_ns(self, ticks: u64) -> u64 {
        let ns = (u128::from(ticks) * u128::from(self.ns)) >> 32;
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// The shortest duration, in ticks, that takes so many nanoseconds.
    #[must_use]
    pub fn to_ticks_rounded_up(self, ns: u64) -> u64 {
        let ticks = (u128::from(ns) << 32).div_ceil(self.ns.into());
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }
}

impl Default for Scale {
    fn default() -> Self {
        Scale::measure()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the clock is: it goes forward, and as fast as the kernel's.
    #[test]
    fn it_runs_as_the_kernels_clock_does() {
        let clock = TickClock::of_process();
        let scale = Scale::measure();
        let (begin, begin_ns) = (clock.now(), ns_since_first_call());
        std::thread::sleep(Duration::from_millis(20));
        let (inner, inner_ns) = (clock.now() - begin, ns_since_first_call() - begin_ns);
        let outer = clock.now() - begin;
        // Each was read between two readings of the other.
        assert!(scale.to_ns(inner) <= inner_ns + inner_ns / 1000);
        assert!(scale.to_ns(outer) >= inner_ns - inner_ns / 1000);
    }

    #[test]
    fn a_scale_is_exact_and_does_not_overflow() {
        let at = |ticks, ns| ClockReading { ticks, ns };
        let scale = Scale::from_readings(at(500, 1_000), at(500 + 2_500_000_000, 1_000_001_000));
        assert_eq!(scale.to_ns(2_500_000_000), 999_999_999);
        let century = 100 * 365 * 86_400 * 2_500_000_000;
        assert!(scale.to_ns(century) > 99 * 365 * 86_400 * 1_000_000_000);
        assert_eq!(
            Scale::from_readings(at(5, 5), at(5, 5)).to_ns(7),
            0,
            "no time at all"
        );
    }

    #[test]
    fn ticks_of_a_time_are_the_first_that_take_it() {
        let at = |ticks, ns| ClockReading { ticks, ns };
        for ticks_per_us in [300, 1000, 2500] {
            let scale = Scale::from_readings(at(0, 0), at(ticks_per_us * 1_000_000, 1_000_000_000));
            for ns in [1, 2, 3, 999, 1000, 1001, 123_456_789, 86_400_000_000_000] {
                let ticks = scale.to_ticks_rounded_up(ns);
                assert!(scale.to_ns(ticks) >= ns && scale.to_ns(ticks - 1) < ns);
            }
            assert_eq!(scale.to_ticks_rounded_up(0), 0);
        }
        assert_eq!(Scale { ns: 1 }.to_ticks_rounded_up(u64::MAX), u64::MAX);
    }
}
