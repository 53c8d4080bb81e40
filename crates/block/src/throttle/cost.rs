//! Costs of requests: units that they take of the limits of a throttle group.

use engine::{Op, Request};

use super::limits::LimitKind;
use super::numbers::as_f64;
use crate::route::gate::PassedRequests;

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
    /// request is several operations.
    pub fn of(request: &Request, operations_per_byte: f64) -> Self {
        let bytes = as_f64(request.len);
        Cost {
            direction: Direction::of(request),
            operations: (bytes * operations_per_byte).max(1.0),
            bytes,
        }
    }

    /// The cost of requests that each count as one operation.
    pub fn of_passed(direction: Direction, passed: PassedRequests) -> Self {
        Cost {
            direction,
            operations: f64::from(passed.requests),
            bytes: as_f64(passed.bytes),
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
