//! Throttle groups of a run: their limits, and the disks that share them.

use block::{LimitKind, RateLimit, ThrottleLimits};

use crate::random::Random;

/// Throttle groups, and the nodes that are members.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throttling {
    /// Limits of the disks' group, until they are changed.
    pub limits: ThrottleLimits,
    /// How many nodes are members. Queues and the client take turns among them, as if they were disks of several guests.
    pub members: u8,
    /// Limits of a second group, with a member below each of these nodes.
    pub tenant: Option<ThrottleLimits>,
}

impl Throttling {
    pub(super) fn of(random: &mut Random) -> Option<Self> {
        random.one_in(3).then(|| Throttling {
            limits: limits(random),
            members: random.pick(&[1, 1, 2, 3]),
            tenant: random.one_in(4).then(|| limits(random)),
        })
    }
}

/// Limits that some tens of requests reach; sometimes none.
pub(super) fn limits(random: &mut Random) -> ThrottleLimits {
    use LimitKind::{BpsRead, BpsTotal, BpsWrite, IopsRead, IopsTotal, IopsWrite};
    let mut limits = ThrottleLimits::default();
    let [iops, bps] = random.pick(&[[true, false], [false, true], [true, true], [true, false]]);
    if random.one_in(10) {
        return limits;
    }
    if iops {
        for kind in kinds(random, [IopsTotal, IopsRead, IopsWrite]) {
            *limits.rate_mut(kind) = rate(random, &[5, 20, 100, 1000]);
        }
        limits.iops_size = random.pick(&[0, 0, 512, 1500]);
    }
    if bps {
        for kind in kinds(random, [BpsTotal, BpsRead, BpsWrite]) {
            *limits.rate_mut(kind) = rate(random, &[4000, 20_000, 200_000, 2_000_000]);
        }
    }
    limits
}

/// The total, or parts of it.
fn kinds(random: &mut Random, [total, read, write]: [LimitKind; 3]) -> Vec<LimitKind> {
    match random.below(5) {
        0 => vec![read],
        1 => vec![write],
        2 => vec![read, write],
        _ => vec![total],
    }
}

fn rate(random: &mut Random, rates: &[u64]) -> RateLimit {
    let rate = random.pick(rates);
    let (burst_rate, burst_seconds) = match random.below(4) {
        0 => (rate * random.pick(&[1, 2, 10]), random.pick(&[1, 1, 3])),
        _ => (0, 1),
    };
    RateLimit {
        rate,
        burst_rate,
        burst_seconds,
    }
}
