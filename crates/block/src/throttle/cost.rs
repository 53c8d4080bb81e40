//! Costs of requests: units that they take of the limits of a throttle group.

use engine::{Op, Request};

use super::limits::LimitKind;

/// The direction of a request, as far as limits are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// Reads.
    Read = 0,
    /// Writes, and all else that changes data.
    Write = 1,
}

impl Direction {
    /// Both.
    pub const ALL: [Direction; 2] = [Direction::Read, Direction::Write];

    /// The direction of a request.
    #[inline]
    pub fn of(request: &Request) -> Self {
        match request.op {
            Op::Read => Direction::Read,
            _ => Direction::Write,
        }
    }

    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Direction::Read => Direction::Write,
            Direction::Write => Direction::Read,
        }
    }
}

/// What a request takes of the limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cost {
    direction: Direction,
    operations: f64,
    bytes: f64,
}

impl Cost {
    /// The cost of a request: one operation and its bytes. Where bytes count, as the reciprocal of `iops-size` says, a large
    /// request is several operations. (A product: without limits in sight, a division was a third of a gate's cost.)
    #[inline]
    #[expect(
        clippy::cast_precision_loss,
        reason = "a request has fewer than 2^53 bytes"
    )]
    pub fn of(request: &Request, operations_per_byte: f64) -> Self {
        let bytes = request.len as f64;
        Cost {
            direction: Direction::of(request),
            operations: (bytes * operations_per_byte).max(1.0),
            bytes,
        }
    }

    /// The limits that apply, with what the request takes of each.
    #[inline]
    pub fn units(&self) -> [(LimitKind, f64); 4] {
        let (iops, bps) = match self.direction {
            Direction::Read => (LimitKind::IopsRead, LimitKind::BpsRead),
            Direction::Write => (LimitKind::IopsWrite, LimitKind::BpsWrite),
        };
        [
            (LimitKind::IopsTotal, self.operations),
            (iops, self.operations),
            (LimitKind::BpsTotal, self.bytes),
            (bps, self.bytes),
        ]
    }
}
