//! What a run came to, in figures.

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Requests that were answered.
    pub answered: u64,
    /// Requests of a client without a ring that were answered.
    pub sent: u64,
    /// Processes that were killed.
    pub kills: u64,
    /// Power failures.
    pub power_failures: u64,
    /// Queues that stopped.
    pub stops: u64,
    /// Migrations that came to their end.
    pub migrations: u64,
    /// Queues that were disabled.
    pub disabled: u64,
    /// Changes of the guest's memory table.
    pub tables: u64,
    /// Devices that were reset, each for another driver.
    pub resets: u64,
    /// Live upgrades that came to their end.
    pub upgrades: u64,
    /// Nodes that took the place of another one.
    pub exchanges: u64,
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
        self.sent += other.sent;
        self.kills += other.kills;
        self.power_failures += other.power_failures;
        self.stops += other.stops;
        self.migrations += other.migrations;
        self.disabled += other.disabled;
        self.tables += other.tables;
        self.resets += other.resets;
        self.upgrades += other.upgrades;
        self.exchanges += other.exchanges;
        self.faults.errors += other.faults.errors;
        self.faults.no_space += other.faults.no_space;
        self.faults.short += other.faults.short;
        self.faults.jobs += other.faults.jobs;
    }
}
