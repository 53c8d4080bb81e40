//! Sockets with deadlines for connecting, accepting, reading and writing.

use std::fmt::Display;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use crate::deadline::{Deadline, STUCK_AFTER};
use crate::events::wait_for_any;

/// Limits each read and each write. One that takes longer fails with [`io::ErrorKind::WouldBlock`].
#[must_use]
pub fn limited(stream: UnixStream) -> UnixStream {
    stream.set_read_timeout(Some(STUCK_AFTER)).unwrap();
    stream.set_write_timeout(Some(STUCK_AFTER)).unwrap();
    stream
}

/// A [limited] connection to a server.
///
/// # Errors
/// No server listens, or its backlog stays full.
pub fn try_connect(path: &Path) -> io::Result<UnixStream> {
    let deadline = Deadline::default();
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let stream = UnixStream::from(socket);
    // connect(2) waits for room in the backlog as long as a write may take (unix(7)).
    stream.set_write_timeout(Some(deadline.remaining()))?;
    rustix::net::connect(&stream, &SocketAddrUnix::new(path)?)?;
    Ok(limited(stream))
}

/// The same to a server that listens.
#[track_caller]
pub fn connect(path: &Path) -> UnixStream {
    let stream = try_connect(path);
    stream.unwrap_or_else(|error| panic!("no connection to {}: {error}", path.display()))
}

/// Waits for the next client, whose connection is [limited].
#[track_caller]
pub fn accept(listener: &UnixListener) -> UnixStream {
    wait_for_any(
        "a client connects",
        Deadline::default(),
        &[listener.as_fd()],
    );
    limited(listener.accept().unwrap().0)
}

/// Reads all that comes until the other side closes a [limited] connection. `what` is missing if it does not.
#[track_caller]
pub fn read_to_end(what: impl Display, stream: impl Read) -> String {
    read_to_end_before(what, Deadline::default(), stream)
}

#[track_caller]
fn read_to_end_before(what: impl Display, deadline: Deadline, mut stream: impl Read) -> String {
    let (mut all, mut some) = (Vec::new(), [0; 4096]);
    loop {
        deadline.check(&what);
        match stream.read(&mut some) {
            Ok(0) => return String::from_utf8(all).unwrap(),
            Ok(count) => all.extend_from_slice(&some[..count]),
            // This process was stopped and continued.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{what}: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SHORT: Duration = Duration::from_millis(1);

    #[test]
    #[should_panic(expected = "an answer: ")]
    fn silent_peer_is_reported_with_the_expected_message() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(SHORT)).unwrap();
        read_to_end("an answer", ours);
    }

    #[test]
    #[should_panic(expected = "not after 1ms: the end of an answer")]
    fn endless_reply_ends_at_the_deadline() {
        let deadline = Deadline::after(SHORT);
        read_to_end_before("the end of an answer", deadline, io::repeat(b'x'));
    }
}
