//! Flushes for callers that wait for them: threads that have no queue.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::connect::{Connected, DeadlineStream};
use super::disk::{Disk, connect_by_launcher};
use super::handshake::ReplyStyle;
use super::options::ServerAddress;
use super::reply::{Reply, ReplyContent};
use super::socket::{Encryption, Socket};
use crate::wire::{EXTENDED_REQUEST_MAGIC, ExtendedRequest, REQUEST_MAGIC, Request, command};

/// How long such a flush may take, with new connections for it.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(30);

impl Disk {
    /// Makes all answered writes stable, and waits for that: for half a minute at most, or twice that behind another caller's flush.
    ///
    /// # Errors
    /// The server's error, or that of the connection.
    pub fn flush_blocking(&self) -> io::Result<()> {
        self.flush_within(FLUSH_TIMEOUT)
    }

    /// The same with another limit of time.
    ///
    /// # Errors
    /// The same.
    pub fn flush_within(&self, timeout: Duration) -> io::Result<()> {
        if !self.features().flush {
            return Ok(());
        }
        // Another caller's flush may lack what was answered since, or fail.
        let _only_flush = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.has_unflushed.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let flushed = self.flush_answered(Instant::now() + timeout);
        if flushed.is_err() {
            self.has_unflushed.store(true, Ordering::Release);
        }
        flushed
    }

    /// Whether something was written and not flushed.
    #[must_use]
    pub fn may_have_unflushed(&self) -> bool {
        self.has_unflushed.load(Ordering::Acquire)
    }

    /// Has no later flush wait for what was written before: its content is of no use. The server may be gone.
    pub fn forget_unflushed(&self) {
        self.has_unflushed.store(false, Ordering::Release);
    }

    fn flush_answered(&self, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        let by_queue = self.begin_flush_of_only_queue();
        if let Some(flushed) = by_queue.and_then(|result| result.wait(left)) {
            return flushed;
        }
        let connected = match self.take_idle_connection() {
            Some(connected) => connected,
            None => self.connect_anew(deadline)?,
        };
        let connected = match self.flush_on(connected, deadline) {
            // It may have broken unnoticed while it was idle.
            Err(error) if is_broken_connection(&error) => {
                self.count_loss();
                self.flush_on(self.connect_anew(deadline)?, deadline)?
            }
            flushed => flushed?,
        };
        self.return_connection(connected);
        Ok(())
    }

    fn connect_anew(&self, deadline: Instant) -> io::Result<Connected> {
        let deadline = deadline.min(Instant::now() + self.options().attempt_timeout);
        let connected = connect_by_launcher(self.launcher(), self.options(), deadline);
        let connected =
            connected.and_then(|connected| self.check_unchanged(&connected).map(|()| connected));
        connected.map_err(|error| io::Error::other(error.to_string()))
    }

    /// Flushes on a connection without requests. An error of the server is of the kind `Other`.
    fn flush_on(&self, connected: Connected, deadline: Instant) -> io::Result<Connected> {
        let Connected { socket, negotiated } = connected;
        let Socket { fd, mut tls } = socket;
        rustix::io::ioctl_fionbio(&fd, false)?;
        let fd: OwnedFd = match self.options().server {
            ServerAddress::Inet { .. } => {
                let stream = TcpStream::from(fd);
                let mut stream = DeadlineStream { stream, deadline };
                flush_on_stream(&mut stream, tls.as_deref_mut(), negotiated.replies)?;
                stream.stream.into()
            }
            ServerAddress::Unix { .. } => {
                let stream = UnixStream::from(fd);
                let mut stream = DeadlineStream { stream, deadline };
                flush_on_stream(&mut stream, tls.as_deref_mut(), negotiated.replies)?;
                stream.stream.into()
            }
        };
        rustix::io::ioctl_fionbio(&fd, true)?;
        let socket = Socket { fd, tls };
        Ok(Connected { socket, negotiated })
    }
}

/// Whether an error of a flush is none of the server, which has answered, and none of its silence.
fn is_broken_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{Other, TimedOut, WouldBlock};
    !matches!(error.kind(), Other | TimedOut | WouldBlock)
}

/// Sends a flush, and reads the reply.
fn flush_on_stream(
    stream: &mut (impl Read + Write),
    tls: Option<&mut Encryption>,
    replies: ReplyStyle,
) -> io::Result<()> {
    match tls {
        Some(tls) => exchange_flush(&mut tls.stream(stream), replies),
        None => exchange_flush(stream, replies),
    }
}

fn exchange_flush(stream: &mut (impl Read + Write), replies: ReplyStyle) -> io::Result<()> {
    const COOKIE: u64 = 0x666c_7573_6800_0000;
    let flush = Request {
        magic: REQUEST_MAGIC,
        command: command::FLUSH,
        cookie: COOKIE,
        ..Request::default()
    };
    let extended = ExtendedRequest {
        magic: EXTENDED_REQUEST_MAGIC,
        command: command::FLUSH,
        cookie: COOKIE,
        ..ExtendedRequest::default()
    };
    match replies {
        ReplyStyle::Extended => stream.write_all(&extended.encode())?,
        ReplyStyle::Simple | ReplyStyle::Structured => stream.write_all(&flush.encode())?,
    }
    let (mut bytes, mut errno) = (Vec::new(), None);
    loop {
        let violation =
            |error: &dyn ToString| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
        let Some((reply, _)) = Reply::parse(replies, &bytes).map_err(|error| violation(&error))?
        else {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            bytes.push(byte[0]);
            continue;
        };
        bytes.clear();
        match reply.content {
            _ if reply.cookie != COOKIE => return Err(violation(&"a reply to no request")),
            ReplyContent::Success | ReplyContent::Nothing => {}
            ReplyContent::Error(error) => errno = Some(error),
            ReplyContent::Data { .. } | ReplyContent::Hole { .. } => {
                return Err(violation(&"data for a flush"));
            }
        }
        if reply.is_last {
            let failed = errno.map(|error| io::Error::other(format!("the server's: {error}")));
            return failed.map_or(Ok(()), Err);
        }
    }
}
