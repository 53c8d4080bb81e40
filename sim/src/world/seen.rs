//! What a run came to, in figures.

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Requests that were answered.
    pub answered: u64,
    /// Processes that were killed.
    pub kills: u64,
    /// Power failures.
    pub power_failures: u64,
    /// Queues that stopped.
    pub stops: u64,
    /// Migrations that came to their end.
    pub migrations: u64,
    /// What went wrong on the disk.
    pub faults: Faults,
}

/// What went wrong on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Requests that failed with an error.
    pub errors: u64,
    /// Requests for which there was no space.
    pub no_space: u64,
    /// Requests that were carried out in part.
    pub short: u64,
    /// Jobs of worker threads that failed.
    pub jobs: u64,
}

impl Seen {
    /// Together with another run's.
    pub fn add(&mut self, other: Seen) {
        self.answered += other.answered;
        self.kills += other.kills;
        self.power_failures += other.power_failures;
        self.stops += other.stops;
        self.migrations += other.migrations;
        self.faults.errors += other.faults.errors;
        self.faults.no_space += other.faults.no_space;
        self.faults.short += other.faults.short;
        self.faults.jobs += other.faults.jobs;
    }
}
