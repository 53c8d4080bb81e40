//! The flush of a queue for other threads, where the server allows one connection.

use engine::{Op, Request};

use super::ClientQueue;

/// The token of the flush, which no request of a source has.
const FLUSH_TOKEN: u64 = u64::MAX;

/// In place of a source index, since it has no source.
const NO_SOURCE: u32 = u32::MAX;

impl ClientQueue {
    /// Begins a flush for other threads, if they wait for one and none is under way.
    #[cold]
    pub(super) fn begin_requested_flush(&mut self) {
        if !self.flush_callers.is_empty() || self.room() == 0 {
            return;
        }
        self.flush_callers = self.disk.flush_calls.take();
        let flush = Request::without_data(Op::Flush, 0, 0, FLUSH_TOKEN);
        // SAFETY: a flush has no segments.
        if unsafe { self.start(&flush, NO_SOURCE, None) }.is_err() {
            unreachable!("there is room");
        }
    }

    /// Reports the end of a flush to the threads that wait for it, and takes it out of the completions.
    #[cold]
    pub(super) fn report_requested_flush(&mut self) {
        let end = self.done.iter().position(|done| done.token == FLUSH_TOKEN);
        if let Some(index) = end {
            let result = self.done.remove(index).result;
            for caller in self.flush_callers.drain(..) {
                // It may have stopped waiting.
                let _ = caller.send(result);
            }
        }
    }
}
