//! The number of requests that a queue admits in one turn: fewer while its requests are costly.
//!
//! Most requests cost this thread about the same. Large ones, and those that need worker threads, take it up to a hundred times
//! longer, which the other queues of the iothread would wait for.

/// Limit of requests admitted from one queue per turn. It bounds how long the other queues of the iothread wait for their
/// turn, and the guest for its completions.
pub(crate) const ADMIT_BUDGET: usize = 64;

/// The [cost](block::IoContext::submission_cost) of a turn above which the next one is shorter. It is that of the largest
/// request that merging makes.
const MAX_TURN_COST: u64 = 1 << 20;

/// The budget of a queue's next turn.
#[derive(Clone, Copy)]
pub(crate) struct AdmitBudget(usize);

impl Default for AdmitBudget {
    fn default() -> Self {
        AdmitBudget(ADMIT_BUDGET)
    }
}

impl AdmitBudget {
    /// Most requests of the next turn.
    #[inline]
    pub fn requests(self) -> usize {
        self.0
    }

    /// Adapts the budget after a turn of this cost.
    #[inline]
    pub fn adapt(&mut self, cost: u64) {
        if cost > MAX_TURN_COST {
            let factor = usize::try_from(cost / MAX_TURN_COST).unwrap_or(usize::MAX);
            self.0 = (self.0 / factor.saturating_add(1)).max(1);
        } else if cost <= MAX_TURN_COST / 2 {
            self.0 = (2 * self.0).min(ADMIT_BUDGET);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lengths of turns of a queue that always has requests of this cost.
    fn turns(budget: &mut AdmitBudget, cost: u64) -> [usize; 8] {
        [(); 8].map(|()| {
            let requests = budget.requests();
            budget.adapt(requests as u64 * cost);
            requests
        })
    }

    #[test]
    fn turns_with_costly_requests_are_short_and_grow_when_these_end() {
        let mut budget = AdmitBudget::default();
        assert_eq!(turns(&mut budget, 4096), [64; 8]);
        assert_eq!(turns(&mut budget, 16 << 10), [64; 8]);
        assert_eq!(turns(&mut budget, 1 << 20), [64, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(turns(&mut budget, 4096), [1, 2, 4, 8, 16, 32, 64, 64]);
        // Unaligned requests: each needs a worker.
        assert_eq!(turns(&mut budget, 264 << 10), [64, 3, 3, 3, 3, 3, 3, 3]);
        assert_eq!(turns(&mut budget, 32 << 20), [3, 1, 1, 1, 1, 1, 1, 1]);
    }
}
