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
    /// Requests that the disk has failed.
    pub faults: u64,
}

impl Seen {
    /// Together with another run's.
    pub fn add(&mut self, other: Seen) {
        self.answered += other.answered;
        self.kills += other.kills;
        self.power_failures += other.power_failures;
        self.stops += other.stops;
        self.migrations += other.migrations;
        self.faults += other.faults;
    }
}
