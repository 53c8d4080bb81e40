//! Log line when monitors have as many clients as they take: those that come then wait and get no answer.

use std::time::{Duration, Instant};

use crate::limits::MAX_CLIENTS;

/// How often it is said at most: clients may come and go all the time.
const AGAIN_TIME: Duration = Duration::from_secs(60);

/// Knows when it was said last.
#[derive(Default)]
pub(crate) struct Full(Option<Instant>);

impl Full {
    /// Says it, unless that was just now.
    pub fn say(&mut self) {
        let now = Instant::now();
        if self.0.is_some_and(|said| now - said < AGAIN_TIME) {
            return;
        }
        self.0 = Some(now);
        tracing::warn!(
            clients = MAX_CLIENTS,
            advice = "look for who leaves connections open (ss -xp); query-chardev names the monitors' sockets",
            "monitors have as many clients as they take: another one waits until one leaves"
        );
    }
}
