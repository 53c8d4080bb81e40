//! Kinds of requests that a queue counts and times separately.

/// Kinds of requests that have separate statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Reads.
    Read,
    /// Writes and write-zeroes.
    Write,
    /// Flushes.
    Flush,
    /// Discards.
    Unmap,
}

impl RequestKind {
    /// All of them.
    pub const ALL: [RequestKind; 4] = [
        RequestKind::Read,
        RequestKind::Write,
        RequestKind::Flush,
        RequestKind::Unmap,
    ];

    /// Its name in metrics, and in latencies from a monitor.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RequestKind::Read => "read",
            RequestKind::Write => "write",
            RequestKind::Flush => "flush",
            RequestKind::Unmap => "unmap",
        }
    }
}
