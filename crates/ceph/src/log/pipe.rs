//! The pipe to which librados writes its log, and the thread that reads it.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};

use super::LogContext;
use crate::thread_launcher::spawn_thread;

/// The kernel shows it as the thread's name.
const THREAD_NAME: &str = "ceph-log";

/// The most bytes of a line; the rest becomes a line of its own.
const MAX_LINE_BYTES: u64 = 8192;

/// The end of a pipe to which librados writes. The thread ends after this and librados' descriptor are closed.
#[derive(Debug)]
pub(crate) struct LogPipe(OwnedFd);

/// The end of the thread that reads a pipe.
#[derive(Debug)]
pub(crate) struct LogEnd(Receiver<()>);

impl LogPipe {
    /// A pipe whose lines become events.
    pub(crate) fn start(log: Arc<LogContext>) -> io::Result<(LogPipe, LogEnd)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        let (until_end, ended) = mpsc::channel::<()>();
        spawn_thread(THREAD_NAME, move || {
            emit_lines(File::from(read), &log);
            drop(until_end);
        })?;
        Ok((LogPipe(write), LogEnd(ended)))
    }

    /// A name under which librados can open the pipe.
    pub(crate) fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.0.as_raw_fd())
    }
}

impl LogEnd {
    /// Waits until all lines are emitted, at most this long.
    pub(crate) fn wait(&self, timeout: Duration) {
        // Nothing is ever sent; the channel ends with the thread.
        if self.0.recv_timeout(timeout) == Err(RecvTimeoutError::Timeout) {
            tracing::debug!("librados keeps its log open");
        }
    }
}

fn emit_lines(pipe: File, log: &LogContext) {
    let mut reader = BufReader::new(pipe);
    let mut line = Vec::new();
    while let Ok(1..) = (&mut reader)
        .take(MAX_LINE_BYTES)
        .read_until(b'\n', &mut line)
    {
        log.emit(&String::from_utf8_lossy(&line));
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use test_support::deadline::STUCK_AFTER;

    use super::*;

    #[test]
    fn lines_are_read_until_every_writer_has_closed_the_pipe() {
        let log = Arc::new(LogContext::new(String::new(), None));
        let (pipe, end) = LogPipe::start(Arc::clone(&log)).unwrap();
        let mut writer = File::options().append(true).open(pipe.path()).unwrap();
        drop(pipe);
        let long = "x".repeat(20_000);
        writeln!(writer, "{long}").unwrap();
        writer.write_all(b"\xff\n").unwrap();
        writeln!(writer, "2026-01-02T03:04:05.678+0000 7f0a -1 last").unwrap();
        drop(writer);
        end.wait(STUCK_AFTER);
        assert_eq!(log.last_error_detail(), " (log of librados: last)");
    }
}
