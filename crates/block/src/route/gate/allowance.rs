//! The allowance of a gate: requests that may pass without asking it, as long as they are not large. The gate learns later
//! what has passed. So a gate that is far from its limits costs next to nothing.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::{Op, Request};

/// What a gate allows.
#[derive(Debug, Default)]
pub(crate) struct Allowance {
    /// How many requests may still pass.
    requests: Cell<u32>,
    /// A request of more bytes has to ask.
    max_bytes: Cell<u64>,
    /// The allowance is void once this is no longer `granted_in`.
    generation: Arc<AtomicU64>,
    granted_in: Cell<u64>,
    reads: Cell<PassedRequests>,
    /// All that changes data.
    writes: Cell<PassedRequests>,
}

/// Requests that have passed by an allowance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PassedRequests {
    pub requests: u32,
    pub bytes: u64,
}

impl Allowance {
    /// An allowance of nothing, until something is granted.
    pub fn new(generation: Arc<AtomicU64>) -> Self {
        Allowance {
            generation,
            ..Self::default()
        }
    }

    /// Grants that so many requests may pass, none of more bytes than `max_bytes`.
    pub fn grant(&self, requests: u32, max_bytes: u64, generation: u64) {
        self.requests.set(requests);
        self.max_bytes.set(max_bytes);
        self.granted_in.set(generation);
    }

    /// Lets a request pass if it is allowed.
    #[inline]
    pub fn take(&self, request: &Request) -> bool {
        let allowed = self.requests.get();
        if allowed == 0
            || request.len > self.max_bytes.get()
            || self.generation.load(Ordering::Relaxed) != self.granted_in.get()
        {
            return false;
        }
        self.requests.set(allowed - 1);
        let passed = match request.op {
            Op::Read => &self.reads,
            _ => &self.writes,
        };
        let PassedRequests { requests, bytes } = passed.get();
        passed.set(PassedRequests {
            requests: requests + 1,
            bytes: bytes + request.len,
        });
        true
    }

    /// Ends the allowance. Returns what has passed: reads, and what changes data.
    pub fn end(&self) -> [PassedRequests; 2] {
        self.requests.set(0);
        [self.reads.take(), self.writes.take()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(op: Op, len: u64) -> Request {
        Request::without_data(op, 0, len, 0)
    }

    #[test]
    fn what_is_allowed_passes_and_is_counted_by_direction() {
        let allowance = Allowance::default();
        let (read, discard) = (request(Op::Read, 4096), request(Op::Discard, 512));
        assert!(!allowance.take(&read), "nothing is allowed");
        allowance.grant(3, 4096, 0);
        assert!(!allowance.take(&request(Op::Read, 4097)), "too large");
        let passed = [&read, &discard, &read, &read].map(|request| allowance.take(request));
        assert_eq!(passed, [true, true, true, false]);
        let counted = |requests, bytes| PassedRequests { requests, bytes };
        assert_eq!(allowance.end(), [counted(2, 8192), counted(1, 512)]);
        assert_eq!(allowance.end(), [counted(0, 0); 2]);
        assert!(!allowance.take(&read), "it has ended");
    }
}
