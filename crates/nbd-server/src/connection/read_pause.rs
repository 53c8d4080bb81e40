//! Pauses between polls of a Unix socket whose client is busy.
//!
//! A polling iothread that is faster than its client reads each request as soon as it is sent. Both then take the locks of the socket for
//! each request, at the same time: a client that has 16 writes in flight to a null disk loses a tenth of its IOPS by that. A client that
//! has not read replies yet while it sends requests does not wait for them: it loses nothing if its requests are read later, several at
//! once.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::ioctl::{Getter, Opcode, ioctl};
use rustix::net::{AddressFamily, getsockname};

/// One of so many reads looks for unread replies.
const READS_PER_SAMPLE: u8 = 8;

/// The longest pause: some requests of a client on the same host, which takes about 4 us for each.
const MAX_PAUSE_NS: u64 = 16_000;

/// How fast pauses grow while the client is busy. They lose a quarter when it is not.
const GROWTH_NS: u64 = 1_000;

/// Bytes that were sent and not read: unix(7). Of the same value as this request to a terminal.
#[allow(clippy::cast_possible_truncation, reason = "0x5411")]
const SIOCOUTQ: Opcode = libc::TIOCOUTQ as Opcode;

/// The time from one read to the next.
pub(super) struct ReadPause {
    pause_ns: u64,
    next_read_ns: u64,
    reads_to_sample: u8,
    is_unix_socket: bool,
}

impl ReadPause {
    /// None at first, and never any for a TCP socket: its unread bytes are those that have not arrived yet.
    pub fn new(socket: BorrowedFd<'_>) -> Self {
        let address = getsockname(socket);
        ReadPause {
            pause_ns: 0,
            next_read_ns: 0,
            reads_to_sample: READS_PER_SAMPLE,
            is_unix_socket: address.is_ok_and(|it| it.address_family() == AddressFamily::UNIX),
        }
    }

    /// Whether the socket is to be polled.
    pub fn is_over(&self) -> bool {
        self.pause_ns == 0 || block::clock_ns() >= self.next_read_ns
    }

    /// Begins after a poll that has read requests, before they are replied to.
    pub fn begin(&mut self, socket: impl AsFd) {
        if !self.is_unix_socket {
            return;
        }
        self.reads_to_sample -= 1;
        if self.reads_to_sample == 0 {
            self.reads_to_sample = READS_PER_SAMPLE;
            self.pause_ns = match has_unread_bytes(socket.as_fd()) {
                true => MAX_PAUSE_NS.min(self.pause_ns + GROWTH_NS),
                false if self.pause_ns <= GROWTH_NS => 0,
                false => self.pause_ns / 4 * 3,
            };
        }
        if self.pause_ns > 0 {
            self.next_read_ns = block::clock_ns() + self.pause_ns;
        }
    }
}

/// Whether the peer of a Unix socket has not read all that was sent.
fn has_unread_bytes(socket: BorrowedFd<'_>) -> bool {
    // SAFETY: this request writes an `int`, and has no other effect.
    let unread = unsafe { ioctl(socket, Getter::<SIOCOUTQ, libc::c_int>::new()) };
    unread.is_ok_and(|bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Begins so many pauses as samples.
    fn sample(pause: &mut ReadPause, socket: impl AsFd, samples: usize) {
        for _ in 0..samples * usize::from(READS_PER_SAMPLE) {
            pause.begin(socket.as_fd());
        }
    }

    #[test]
    fn pauses_grow_while_the_client_leaves_replies_unread_and_end_when_it_waits() {
        let (mut server, mut client) = UnixStream::pair().unwrap();
        let mut pause = ReadPause::new(server.as_fd());
        sample(&mut pause, &server, 3);
        assert_eq!(pause.pause_ns, 0, "the client has read all that was sent");
        assert!(pause.is_over());

        server.write_all(b"reply").unwrap();
        sample(&mut pause, &server, 3);
        assert_eq!(pause.pause_ns, 3 * GROWTH_NS);
        sample(&mut pause, &server, 1000);
        assert_eq!(pause.pause_ns, MAX_PAUSE_NS);

        client.read_exact(&mut [0; 5]).unwrap();
        sample(&mut pause, &server, 12);
        assert_eq!(pause.pause_ns, 0);
        assert!(pause.is_over());
    }

    #[test]
    fn tcp_sockets_have_no_pauses_while_their_buffers_are_full() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        server.set_nonblocking(true).unwrap();
        while server.write(&[0; 1 << 16]).is_ok() {}
        assert!(has_unread_bytes(server.as_fd()));
        let mut pause = ReadPause::new(server.as_fd());
        sample(&mut pause, &server, 3);
        assert_eq!(pause.pause_ns, 0);
    }
}
