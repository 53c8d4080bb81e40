//! Server log: the output of a server and its successors, in one file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Limit of the output in an error, because a server may log each request.
const MAX_BYTES: u64 = 64 << 10;

/// The file that the processes write to.
#[derive(Debug)]
pub(crate) struct ServerLog {
    file: File,
    /// Where what no guest's report has begins.
    unreported: AtomicU64,
}

impl ServerLog {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            file: tempfile::tempfile()?,
            unreported: AtomicU64::new(0),
        })
    }

    /// For the output of a process.
    pub(crate) fn writer(&self) -> std::io::Result<File> {
        self.file.try_clone()
    }

    /// All of it; of a long one its end.
    pub(crate) fn all(&self) -> String {
        self.read(0, self.end())
    }

    /// What came since the last call, for the report of a guest: with the first guest's the start of the server.
    pub(crate) fn unreported(&self) -> String {
        let end = self.end();
        self.read(self.unreported.swap(end, Ordering::Relaxed), end)
    }

    fn end(&self) -> u64 {
        self.file.metadata().map_or(0, |metadata| metadata.len())
    }

    /// Read by position: the server writes at the offset that it shares with us.
    fn read(&self, offset: u64, end: u64) -> String {
        let begin = offset.max(end.saturating_sub(MAX_BYTES));
        let len = end.saturating_sub(begin);
        let mut bytes = vec![0; usize::try_from(len).unwrap_or_default()];
        // Part of an error message or a transcript: what cannot be read is left out.
        let read = self.file.read_at(&mut bytes, begin).unwrap_or_default();
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    }
}

/// The lines of a log that are warnings or errors.
pub(crate) fn warnings(log: &str) -> Vec<String> {
    log.lines()
        .filter(|line| {
            // The level is the word behind the time.
            let level = line.split_whitespace().nth(1);
            matches!(level, Some("WARN" | "ERROR")) || line.starts_with("blockplane: error")
        })
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn each_line_is_reported_once_and_of_a_long_log_the_end_is_kept() {
        let log = ServerLog::new().unwrap();
        let mut writer = log.writer().unwrap();
        writer.write_all(b"one\n").unwrap();
        assert_eq!(log.unreported(), "one\n");
        writer.write_all(b"two\n").unwrap();
        assert_eq!(log.all(), "one\ntwo\n");
        assert_eq!(log.unreported(), "two\n");
        assert_eq!(log.unreported(), "");
        writer
            .write_all(&vec![b'x'; usize::try_from(MAX_BYTES).unwrap()])
            .unwrap();
        writer.write_all(b"last\n").unwrap();
        assert!(log.all().ends_with("xlast\n"));
    }

    #[test]
    fn warnings_and_errors_are_found_by_their_level() {
        let log = "2026-01-01T00:00:00Z  INFO a: WARN is no level here\n\
                   2026-01-01T00:00:00Z  WARN vhost_user: bad\n\
                   2026-01-01T00:00:00Z ERROR vhost_user: worse\n";
        assert_eq!(warnings(log).len(), 2);
    }
}
