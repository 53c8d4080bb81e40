//! Counts of what happened in a run.

use std::collections::BTreeMap;

/// All that is counted: answers of the guest's requests and of those `sent` without a ring; processes and queues that ended; events that
/// came to their end; what [throttle groups](crate::throttle_model) did; jobs by their end; faults of the disk and of workers.
const NAMES: &str = "answered sent kills power-failures stops migrations disabled tables resets upgrades exchanges \
    waited let-go limits throttle-exchanges full-backups incremental-backups pulled-backups switch-overs mirrored-copies \
    aborted-jobs job-errors waits-for-copies errors no-space short failed-jobs";

/// Counts of events in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage(BTreeMap<&'static str, u64>);

impl Coverage {
    /// So many more.
    pub fn add(&mut self, name: &'static str, count: u64) {
        *self.0.entry(name).or_default() += count;
    }

    /// How many.
    #[must_use]
    pub fn of(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Together with another run's.
    pub fn add_all(&mut self, other: &Coverage) {
        for (name, count) in &other.0 {
            self.add(name, *count);
        }
    }

    /// What has happened less often than this.
    pub fn rarer_than(&self, count: u64) -> impl Iterator<Item = &'static str> {
        NAMES
            .split_whitespace()
            .filter(move |name| self.of(name) < count)
    }
}
