//! Counts of what happened in a run.

/// Counts of events in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
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
    /// What throttle groups did.
    pub throttles: Throttles,
    /// Jobs that have ended.
    pub jobs: Jobs,
    /// What went wrong on the disk.
    pub faults: Faults,
}

/// Jobs that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Jobs {
    /// Backups of the whole disk.
    pub full: u64,
    /// Backups of what was dirty in a bitmap.
    pub incremental: u64,
    /// Copies of the disk as of the moment of a backup, by a client.
    pub pulled: u64,
    /// Mirrors whose guest has gone over to the target.
    pub switch_overs: u64,
    /// Mirrors that have ended as a copy.
    pub mirrored: u64,
    /// Those that have failed, or were cancelled.
    pub aborted: u64,
    /// Errors that their copiers have reported.
    pub errors: u64,
    /// How often a write has waited for a copy.
    pub waits: u64,
}

/// What throttle groups did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttles {
    /// Requests that waited more than a millisecond.
    pub waited: u64,
    /// Requests that were under way when something let them go.
    pub let_go: u64,
    /// Changes of limits.
    pub limits: u64,
    /// Throttled nodes that came or went.
    pub exchanges: u64,
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

impl Coverage {
    fn counts_mut(&mut self) -> [(&'static str, &mut u64); 27] {
        [
            ("answered", &mut self.answered),
            ("sent", &mut self.sent),
            ("kills", &mut self.kills),
            ("power-failures", &mut self.power_failures),
            ("stops", &mut self.stops),
            ("migrations", &mut self.migrations),
            ("disabled", &mut self.disabled),
            ("tables", &mut self.tables),
            ("resets", &mut self.resets),
            ("upgrades", &mut self.upgrades),
            ("exchanges", &mut self.exchanges),
            ("waited", &mut self.throttles.waited),
            ("let-go", &mut self.throttles.let_go),
            ("limits", &mut self.throttles.limits),
            ("throttle-exchanges", &mut self.throttles.exchanges),
            ("full-backups", &mut self.jobs.full),
            ("incremental-backups", &mut self.jobs.incremental),
            ("pulled-backups", &mut self.jobs.pulled),
            ("switch-overs", &mut self.jobs.switch_overs),
            ("mirrored-copies", &mut self.jobs.mirrored),
            ("aborted-jobs", &mut self.jobs.aborted),
            ("job-errors", &mut self.jobs.errors),
            ("waits-for-copies", &mut self.jobs.waits),
            ("errors", &mut self.faults.errors),
            ("no-space", &mut self.faults.no_space),
            ("short", &mut self.faults.short),
            ("failed-jobs", &mut self.faults.jobs),
        ]
    }

    /// All of them, with their names in JSON.
    pub fn counts(mut self) -> [(&'static str, u64); 27] {
        self.counts_mut().map(|(name, count)| (name, *count))
    }

    /// Together with another run's.
    pub fn add(&mut self, other: Coverage) {
        for ((_, sum), (_, count)) in self.counts_mut().into_iter().zip(other.counts()) {
            *sum += count;
        }
    }
}
