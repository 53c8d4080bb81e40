//! The state of a connection for operators: readable by any thread without waiting, also after the connection is closed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use engine::Errno;
use telemetry::counters::Scale;

use crate::request_stats::{Activity, RequestStats, now_in_ticks};

/// A cluster that has answered no request for this long counts as not answering. An OSD that is slow or restarts takes less.
const SILENCE: Duration = Duration::from_secs(5);

/// The error of all requests of a client that is on the cluster's blocklist (`EBLOCKLISTED` in Ceph's sources).
const BLOCKLISTED: Errno = Errno::SHUTDOWN;

/// What is known of the connection's cluster from its answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// It answers, as far as there are requests.
    Connected,
    /// It has refused this client's requests (`ceph osd blocklist ls`), see [`ConnectionStatus::is_blocklisted`].
    Blocklisted,
    /// It has answered no request for so long, at least 5 s, although there are some.
    NotAnswering(Duration),
}

impl ConnectionState {
    /// Names of all states, as monitors and metrics have them.
    pub const NAMES: [&'static str; 3] = ["connected", "blocklisted", "not-answering"];

    /// The name.
    #[must_use]
    pub fn name(self) -> &'static str {
        let [connected, blocklisted, not_answering] = Self::NAMES;
        match self {
            ConnectionState::Connected => connected,
            ConnectionState::Blocklisted => blocklisted,
            ConnectionState::NotAnswering(_) => not_answering,
        }
    }
}

/// A connection's identity and state. It does not keep the connection open.
pub struct ConnectionStatus {
    number: u64,
    fsid: String,
    monitors: String,
    user: String,
    images: Mutex<Vec<Weak<RequestStats>>>,
    /// A request or a call was refused since the client is on the blocklist.
    is_blocklisted: AtomicBool,
}

impl ConnectionStatus {
    /// That of a new connection, with the next number.
    pub(crate) fn new(fsid: String, monitors: String, user: String) -> Self {
        static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);
        ConnectionStatus {
            number: LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1,
            fsid,
            monitors,
            user,
            images: Mutex::default(),
            is_blocklisted: AtomicBool::new(false),
        }
    }

    /// Its number in this process, from 1.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The cluster's identity, a UUID.
    #[must_use]
    pub fn fsid(&self) -> &str {
        &self.fsid
    }

    /// Addresses of monitors, as configured (`mon_host`).
    #[must_use]
    pub fn monitors(&self) -> &str {
        &self.monitors
    }

    /// The client's name without `client.`.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Number of open images.
    #[must_use]
    pub fn images(&self) -> usize {
        self.open_images().len()
    }

    /// Requests of all images in flight.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.activity().in_flight
    }

    /// The state, as of the last answers.
    #[must_use]
    pub fn state(&self) -> ConnectionState {
        if self.is_blocklisted() {
            return ConnectionState::Blocklisted;
        }
        let ticks = self.activity().silent_ticks(now_in_ticks());
        state_after_silence(Duration::from_nanos(Scale::measure().to_ns(ticks)))
    }

    /// Whether the cluster has refused this client since it is on the blocklist. Its images have to be opened anew, with another
    /// connection.
    ///
    /// This does not end with the entry (`ceph osd blocklist rm`, or an hour): reads then succeed again, but librbd (16.2) still
    /// fails writes, flushes and the lock of each image that was open. Nor does the same connection serve an image that is
    /// opened anew: librbd does not break the lock that this client had.
    #[must_use]
    pub fn is_blocklisted(&self) -> bool {
        self.is_blocklisted.load(Ordering::Relaxed)
    }

    /// Adds an image, until its statistics are dropped.
    pub(crate) fn add_image(&self, requests: &Arc<RequestStats>) {
        let mut images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        images.retain(|image| image.strong_count() > 0);
        images.push(Arc::downgrade(requests));
    }

    /// Learns from the error of a request or a call whether the client is on the blocklist.
    pub(crate) fn learn_from_error(&self, errno: Errno) {
        if errno == BLOCKLISTED && !self.is_blocklisted.swap(true, Ordering::Relaxed) {
            tracing::error!(
                fsid = self.fsid,
                monitors = self.monitors,
                connection = self.number,
                advice = "restart, or reopen the nodes of its images (blockdev-reopen)",
                "the Ceph cluster refuses this client: it is on the blocklist (ceph osd blocklist ls)"
            );
        }
    }

    fn open_images(&self) -> Vec<Arc<RequestStats>> {
        let images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        images.iter().filter_map(Weak::upgrade).collect()
    }

    fn activity(&self) -> Activity {
        Activity::of_all(self.open_images().iter().map(|image| image.activity()))
    }
}

/// The state of a client that is not blocklisted.
fn state_after_silence(silent: Duration) -> ConnectionState {
    match silent >= SILENCE {
        true => ConnectionState::NotAnswering(silent),
        false => ConnectionState::Connected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_blocklisted_after_the_first_refusal() {
        let monitors = "192.0.2.1:3300".to_owned();
        let status = ConnectionStatus::new("id".to_owned(), monitors, "vm".to_owned());
        status.learn_from_error(Errno::IO);
        assert_eq!(status.state(), ConnectionState::Connected);
        status.learn_from_error(Errno::SHUTDOWN);
        assert_eq!(status.state(), ConnectionState::Blocklisted);
    }

    #[test]
    fn a_cluster_is_not_answering_after_5_seconds() {
        let short = Duration::from_millis(4999);
        assert_eq!(state_after_silence(short), ConnectionState::Connected);
        let state = state_after_silence(SILENCE);
        assert_eq!(state, ConnectionState::NotAnswering(SILENCE));
    }
}
