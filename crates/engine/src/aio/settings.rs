//! Settings and counters of a Linux AIO engine.

/// Default of the most requests in flight and pending.
pub const DEFAULT_MAX_EVENTS: u32 = 1024;

/// Most requests that one engine may be made for: the default of `fs.aio-max-nr`, which all
/// processes of the machine share.
pub const MAX_EVENTS_LIMIT: u32 = 65_536;

/// Settings of a Linux AIO engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AioSettings {
    /// Requests in flight and pending together, `1..=MAX_EVENTS_LIMIT`.
    pub max_events: u32,
    /// Most requests in one io_submit(2); 0 means [`DEFAULT_MAX_BATCH`](crate::DEFAULT_MAX_BATCH).
    pub max_batch: u32,
}

impl Default for AioSettings {
    fn default() -> Self {
        Self {
            max_events: DEFAULT_MAX_EVENTS,
            max_batch: 0,
        }
    }
}

/// Counts of an engine since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AioStats {
    /// Requests that the kernel accepted; a resumed request counts again.
    pub submitted: u64,
    /// Calls of io_submit(2), refused ones too.
    pub submit_calls: u64,
    /// Synchronous transfers, by a read or write system call, because the disk answers within io_submit(2) anyway; a resumed
    /// one counts again. Not part of `submitted`.
    pub synchronous: u64,
    /// Requests in the largest accepted call.
    pub largest_batch: u64,
    /// Most requests in the next call.
    pub max_batch: u32,
    /// Calls that the kernel refused with `EAGAIN`.
    pub eagain: u64,
    /// Requests that the kernel refused with an error; they count as completed too.
    pub refused: u64,
    /// Short transfers that were resumed.
    pub resumed: u64,
    /// Completions that were reaped.
    pub completed: u64,
    /// Calls of io_getevents(2); zero with the completion ring.
    pub getevents_calls: u64,
}
