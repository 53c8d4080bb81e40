//! Detects files whose requests complete within io_submit(2), so that their transfers can be made by pread(2) and pwrite(2) instead.
//!
//! On a tmpfs, say, the kernel carries out the whole transfer before io_submit(2) returns. Then nothing runs in parallel,
//! and a control block, an event and a write to an eventfd are only overhead: pread(2) or pwrite(2) in the same place does
//! the same work, and keeps the loop no longer. The [`SyncDetector`] decides which files are in this *pread/pwrite mode*,
//! where transfers are synchronous. It considers only files that are [watched](SyncDetector::watch_file), since a disk that
//! may answer later must not stop the loop, nor the other disks that the loop serves:
//!
//! - *Entry*: a file must answer within [`CALLS_TO_ENTER`] calls in a row.
//! - *Probe*: after [`PROBE_EVERY`] requests a batch goes by io_submit(2) again. If its last request is not done when the
//!   call returns, the file leaves pread/pwrite mode.
//! - *Clock*: each [`REQUESTS_PER_STEP`] requests are timed. If they took longer than a disk in memory can, the file
//!   leaves at once, and the rest of the batch goes by io_submit(2).
//! - *Re-entry*: each time a file leaves, the next entry takes twice as many calls, up to [`MAX_CALLS_TO_ENTER`].
//!
//! Flushes and durable writes always go by io_submit(2), for disks that take time for them.

use std::os::fd::RawFd;

/// Calls in a row within which a file must answer to enter pread/pwrite mode.
pub(super) const CALLS_TO_ENTER: u32 = 64;

/// The same for a file that has left several times, at most.
const MAX_CALLS_TO_ENTER: u32 = 1 << 16;

/// Synchronous requests between two probes by io_submit(2).
pub(super) const PROBE_EVERY: u32 = 2048;

/// Synchronous requests between two readings of the clock. A disk that becomes slow delays the loop by so many, once.
pub(super) const REQUESTS_PER_STEP: u32 = 8;

/// Time limit of a request, apart from its data.
const REQUEST_LIMIT_NS: u64 = 50_000;

/// Time limit of a byte: several times that of a copy, including the allocation and clearing of a page.
const BYTE_LIMIT_NS: u64 = 1;

/// The states of the watched files of one engine.
#[derive(Debug, Default)]
pub(super) struct SyncDetector {
    /// Indexed by descriptor; `None`: not watched.
    files: Vec<Option<SyncFileState>>,
}

/// A number of requests that were carried out by read or write system calls.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SynchronousTransferTotals {
    pub(super) requests: u32,
    pub(super) bytes: u64,
    pub(super) took_ns: u64,
}

impl SyncDetector {
    /// Watches `fd`.
    pub(super) fn watch_file(&mut self, fd: RawFd) {
        let Ok(index) = usize::try_from(fd) else {
            return;
        };
        if self.files.len() <= index {
            self.files.resize(index + 1, None);
        }
        self.files[index] = Some(SyncFileState::new());
    }

    /// Watches `fd`, and one call is enough to enter.
    #[cfg(test)]
    pub(super) fn watch_file_eagerly(&mut self, fd: RawFd) {
        self.watch_file(fd);
        if let Some(state) = self.state_mut(fd) {
            state.calls_to_enter = 1;
        }
    }

    /// Stops watching `fd`: its requests go by io_submit(2).
    pub(super) fn unwatch_file(&mut self, fd: RawFd) {
        if let Some(entry) = usize::try_from(fd)
            .ok()
            .and_then(|index| self.files.get_mut(index))
        {
            *entry = None;
        }
    }

    /// Whether the next transfers of `fd` are to be made by pread(2) and pwrite(2).
    #[inline]
    pub(super) fn next_uses_pread_pwrite(&self, fd: RawFd) -> bool {
        let entry = usize::try_from(fd).ok().and_then(|i| self.files.get(i));
        matches!(entry, Some(Some(state)) if state.next_uses_pread_pwrite())
    }

    /// Observes a call of io_submit(2) whose last request was a transfer of `fd`. `within` tells whether that request was
    /// done when the call returned; it is called for watched files only.
    #[inline]
    pub(super) fn observe_submit(&mut self, fd: RawFd, within: impl FnOnce() -> bool) {
        if let Some(state) = self.state_mut(fd) {
            let before = state.is_in_pread_pwrite_mode();
            state.observe_submit(within());
            if state.is_in_pread_pwrite_mode() != before {
                tracing::debug!(fd, within = !before, "a disk changed how it answers");
            }
        }
    }

    /// Observes synchronous transfers of `fd`.
    #[inline]
    pub(super) fn observe_transfers(&mut self, fd: RawFd, transfers: SynchronousTransferTotals) {
        if let Some(state) = self.state_mut(fd)
            && !state.observe_transfers(transfers)
        {
            tracing::debug!(
                fd,
                took_ns = transfers.took_ns,
                "a disk in memory became slow"
            );
        }
    }

    /// The state of a file, if it is watched.
    fn state_mut(&mut self, fd: RawFd) -> Option<&mut SyncFileState> {
        self.files.get_mut(usize::try_from(fd).ok()?)?.as_mut()
    }
}

/// The mode of one watched file, and what it takes to enter pread/pwrite mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SyncFileState {
    mode: TransferMode,
    /// Calls in a row within which it must answer to enter.
    calls_to_enter: u32,
}

/// How the transfers of a file reach the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransferMode {
    /// By io_submit(2). The file has answered within so many calls in a row.
    IoSubmit { calls_within: u32 },
    /// By pread(2) and pwrite(2), on the loop's thread. After so many more requests a batch is submitted as a probe.
    PreadPwrite { requests_left: u32 },
}

impl SyncFileState {
    fn new() -> Self {
        Self {
            mode: TransferMode::IoSubmit { calls_within: 0 },
            calls_to_enter: CALLS_TO_ENTER,
        }
    }

    /// Also while a probe by io_submit(2) is due, unlike [`SyncFileState::next_uses_pread_pwrite`].
    fn is_in_pread_pwrite_mode(&self) -> bool {
        matches!(self.mode, TransferMode::PreadPwrite { .. })
    }

    fn next_uses_pread_pwrite(&self) -> bool {
        matches!(self.mode, TransferMode::PreadPwrite { requests_left: 1.. })
    }

    /// Observes a call; `within`: its last request was done when it returned.
    fn observe_submit(&mut self, within: bool) {
        match self.mode {
            TransferMode::IoSubmit { .. } if !within => {
                self.mode = TransferMode::IoSubmit { calls_within: 0 }
            }
            TransferMode::IoSubmit { calls_within } if calls_within + 1 < self.calls_to_enter => {
                self.mode = TransferMode::IoSubmit {
                    calls_within: calls_within + 1,
                };
            }
            TransferMode::PreadPwrite { .. } if !within => self.leave_pread_pwrite_mode(),
            TransferMode::IoSubmit { .. } | TransferMode::PreadPwrite { .. } => {
                self.mode = TransferMode::PreadPwrite {
                    requests_left: PROBE_EVERY,
                };
            }
        }
    }

    /// Observes synchronous transfers. False: they took too long, and the file leaves pread/pwrite mode.
    fn observe_transfers(&mut self, transfers: SynchronousTransferTotals) -> bool {
        let limit_ns =
            u64::from(transfers.requests) * REQUEST_LIMIT_NS + transfers.bytes * BYTE_LIMIT_NS;
        if transfers.took_ns > limit_ns {
            self.leave_pread_pwrite_mode();
            return false;
        }
        if let TransferMode::PreadPwrite { requests_left } = &mut self.mode {
            *requests_left = requests_left.saturating_sub(transfers.requests);
        }
        true
    }

    /// Leaves pread/pwrite mode; to enter it again takes twice as many calls.
    fn leave_pread_pwrite_mode(&mut self) {
        self.mode = TransferMode::IoSubmit { calls_within: 0 };
        self.calls_to_enter = (self.calls_to_enter * 2).min(MAX_CALLS_TO_ENTER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many calls in a row, each answered within, it takes to enter.
    fn calls_until_pread_pwrite_mode(state: &mut SyncFileState) -> u32 {
        let mut calls = 0;
        while !state.is_in_pread_pwrite_mode() {
            state.observe_submit(true);
            calls += 1;
        }
        calls
    }

    #[test]
    fn a_file_that_is_too_slow_leaves() {
        for (requests, bytes, took_ns, leaves) in [
            (1, 0, 50_000, false),
            (1, 0, 50_001, true),
            (8, 0, 400_000, false),
            (8, 0, 400_001, true),
            // Large requests may take longer.
            (1, 1 << 20, 1_000_000, false),
            (1, 1 << 20, 1_200_000, true),
        ] {
            let mut state = SyncFileState::new();
            calls_until_pread_pwrite_mode(&mut state);
            let stays = state.observe_transfers(SynchronousTransferTotals {
                requests,
                bytes,
                took_ns,
            });
            assert_eq!(state.is_in_pread_pwrite_mode(), stays);
            assert_eq!(stays, !leaves, "{requests} took {took_ns} ns");
        }
    }

    #[test]
    fn a_file_that_has_left_needs_more_calls_to_enter() {
        let mut state = SyncFileState::new();
        let mut calls_to_enter = CALLS_TO_ENTER;
        for _ in 0..20 {
            assert_eq!(calls_until_pread_pwrite_mode(&mut state), calls_to_enter);
            state.observe_submit(false);
            calls_to_enter = (calls_to_enter * 2).min(MAX_CALLS_TO_ENTER);
        }
        assert_eq!(calls_to_enter, MAX_CALLS_TO_ENTER);
    }

    #[test]
    fn files_that_are_not_watched_have_no_state() {
        let mut detector = SyncDetector::default();
        detector.watch_file(5);
        for fd in [-1, 0, 4, 6, i32::MAX] {
            for _ in 0..2 * CALLS_TO_ENTER {
                detector.observe_submit(fd, || panic!("it is not watched"));
            }
            detector.unwatch_file(fd);
            assert!(!detector.next_uses_pread_pwrite(fd), "{fd}");
        }
        (0..CALLS_TO_ENTER).for_each(|_| detector.observe_submit(5, || true));
        assert!(detector.next_uses_pread_pwrite(5));
        // Another file may get the number.
        detector.unwatch_file(5);
        detector.watch_file(5);
        assert!(!detector.next_uses_pread_pwrite(5));
    }
}
