//! Shrinks a finding: removes events while the failure remains.

use crate::plan::Plan;

/// Leaves out what a plan does not need to fail: pieces of the list of events, from large ones to single events.
#[must_use]
pub fn shrink(plan: &Plan, fails: impl Fn(&Plan) -> bool) -> Plan {
    let mut smallest = plan.clone();
    let mut size = plan.events.len().div_ceil(2);
    while size > 0 {
        let mut end = smallest.events.len();
        while end > 0 {
            let start = end.saturating_sub(size);
            let mut without = smallest.clone();
            without.events.drain(start..end);
            if fails(&without) {
                smallest = without;
            }
            end = start.min(smallest.events.len());
        }
        size /= 2;
    }
    smallest
}
