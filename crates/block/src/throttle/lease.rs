//! Leases: tokens that an iothread has taken out of the account of a queue, and lets requests pass with.

use super::cost::Cost;
use super::limits::LimitKind;
use super::numbers::{as_f64, to_whole};

/// Tokens for each [`LimitKind`]; infinitely many where there is no limit. Negative: debts.
pub(super) type Tokens = [f64; LimitKind::ALL.len()];

/// Tokens that an iothread has taken out of an account.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    /// The generation of limits that they are for.
    pub generation: u64,
    /// None is negative.
    pub tokens: Tokens,
    /// See [`Cost::of`].
    pub operations_per_byte: f64,
}

impl Lease {
    /// A lease without tokens, of a generation that no group has: they count from 1.
    pub const NONE: Lease = Lease {
        generation: 0,
        tokens: [0.0; LimitKind::ALL.len()],
        operations_per_byte: 0.0,
    };

    /// Whether it has the tokens that something costs.
    pub fn covers(&self, cost: &Cost) -> bool {
        cost.units()
            .iter()
            .all(|(kind, units)| self.tokens[*kind as usize] >= *units)
    }

    /// Takes the tokens that something costs, which it covers.
    pub fn take(&mut self, cost: &Cost) {
        for (kind, units) in cost.units() {
            self.tokens[kind as usize] -= units;
        }
    }

    /// How many requests of so many bytes it covers, whatever their directions, up to a number.
    pub fn covered_requests(&self, bytes: u64, most: u32) -> u32 {
        let mut covered = f64::from(most);
        for kind in LimitKind::ALL {
            let units = if kind.counts_bytes() {
                as_f64(bytes)
            } else {
                1.0
            };
            covered = covered.min(self.tokens[kind as usize] / units);
        }
        u32::try_from(to_whole(covered)).unwrap_or(most)
    }

    /// The largest request that is a single operation, in bytes.
    pub fn bytes_of_one_operation(&self) -> u64 {
        to_whole(1.0 / self.operations_per_byte)
    }
}
