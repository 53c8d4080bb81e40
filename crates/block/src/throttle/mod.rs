//! Throttle groups: limits on the operations and bytes per second of disks, each by itself or several together.
//!
//! A node of the `throttle` driver is a member of a group. Each route to it has a gate, which lets requests pass as the group
//! permits; see `group` for how the members share, and `bucket` for what a limit permits.

mod bucket;
mod cost;
mod gate;
mod group;
mod lease;
mod limits;
mod numbers;
mod stats;

pub(crate) use gate::ThrottleGate;
pub use group::{ThrottleGroup, ThrottleMember};
pub use limits::{LimitKind, RateLimit, ThrottleLimits};
pub use stats::ThrottleStats;
