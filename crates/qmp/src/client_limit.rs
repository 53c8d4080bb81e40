//! Rate-limited log warning that monitors have as many clients as they accept: further ones wait, and get no greeting.

use std::time::{Duration, Instant};

use crate::limits::MAX_CLIENTS;

/// Shortest time between two warnings: clients may come and go all the time.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Writes the warning, at most once in [`WARNING_INTERVAL`].
#[derive(Default)]
pub(crate) struct ClientLimitWarning {
    last_at: Option<Instant>,
}

impl ClientLimitWarning {
    /// Writes the warning, unless that was done a short time ago.
    pub fn warn_if_due(&mut self) {
        let now = Instant::now();
        if self
            .last_at
            .is_some_and(|last_at| now - last_at < WARNING_INTERVAL)
        {
            return;
        }
        self.last_at = Some(now);
        tracing::warn!(
            clients = MAX_CLIENTS,
            advice = "find programs that leave connections open (ss -xp); query-chardev lists the monitors' sockets",
            "monitors have as many clients as they accept: further ones wait until one disconnects"
        );
    }
}
