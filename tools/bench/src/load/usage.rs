//! Processor time of the server while it was measured, and which side was saturated.

use std::time::Instant;

use super::phases::Phase;
use crate::procfs::{self, Thread, Usage};

/// A thread that runs for this share of the time or more has no time left.
const BUSY: f64 = 0.95;

/// What a server's threads used in the part of a measurement that counts.
#[derive(Clone, Debug)]
pub struct ServerUsage {
    /// All threads together.
    pub used: Usage,
    /// Processor time of the one that ran longest.
    pub busiest_ns: u64,
    /// In this time.
    pub watched_ns: u64,
}

/// Who could not have done more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saturated {
    /// The client: hardly ever it found nothing to do. The server could do more.
    Client,
    /// The server: one of its threads ran all the time, with requests or in search of some.
    Server,
    /// Neither: both wait for each other, or for the disk.
    Neither,
}

impl Saturated {
    /// From the share of the time that the client found nothing to do.
    #[must_use]
    pub fn of(client_idle: f64, server: Option<&ServerUsage>) -> Self {
        let busy =
            |server: &ServerUsage| server.busiest_ns as f64 >= BUSY * server.watched_ns as f64;
        if client_idle <= 1.0 - BUSY {
            Saturated::Client
        } else if server.is_some_and(busy) {
            Saturated::Server
        } else {
            Saturated::Neither
        }
    }

    /// For tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Saturated::Client => "client",
            Saturated::Server => "server",
            Saturated::Neither => "neither",
        }
    }
}

/// Samples a server's processor time at the beginning and the end of a measurement.
pub(crate) struct UsageSampler {
    pid: Option<u32>,
    before: Option<(Vec<Thread>, Instant)>,
    used: Option<ServerUsage>,
}

impl UsageSampler {
    pub fn new(pid: Option<u32>) -> Self {
        UsageSampler {
            pid,
            before: None,
            used: None,
        }
    }

    /// To be called at the beginning of each phase. A server whose statistics cannot be read (it belongs
    /// to another user) is measured without them.
    pub fn look(&mut self, phase: Phase) {
        let threads = self.pid.and_then(|pid| procfs::threads(pid).ok());
        let now = threads.map(|threads| (threads, Instant::now()));
        match phase {
            Phase::WarmUp => {}
            Phase::Measure => self.before = now,
            Phase::Stop => {
                if let (Some((before, since)), Some((after, until))) = (self.before.take(), now) {
                    let used = procfs::used_between(&before, &after);
                    let busiest = used.iter().map(|thread| thread.usage.cpu_ns).max();
                    let watched = until.duration_since(since).as_nanos();
                    self.used = Some(ServerUsage {
                        used: procfs::total(&used),
                        busiest_ns: busiest.unwrap_or(0),
                        watched_ns: u64::try_from(watched).unwrap_or(u64::MAX),
                    });
                }
            }
        }
    }

    pub fn used(self) -> Option<ServerUsage> {
        self.used
    }
}
