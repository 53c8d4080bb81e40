//! Unsuitable file descriptors for kicks, calls and memory.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use test_support::events::signal;
use test_support::repeating_thread::RepeatingThread;

use crate::front_end::*;
use crate::memory::memory_file;
use crate::row::Answer::{self, Accepted, Dropped};
use crate::row::{OK, Rows};
use crate::wire::*;

pub fn pipe() -> (OwnedFd, OwnedFd) {
    pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap()
}

pub fn read_only_file() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

/// A pipe that takes no more bytes.
fn full_pipe() -> (OwnedFd, OwnedFd) {
    let (read, write) = pipe();
    while rustix::io::write(&write, &[0; 4096]) != Err(Errno::AGAIN) {}
    (read, write)
}

/// What a descriptor is, and how one is made when its row is tried.
pub type Kind = (&'static str, fn() -> OwnedFd);

/// Descriptors that are no eventfds: to watch or write them may do anything, or take any time.
const KINDS: [Kind; 9] = [
    ("a regular file", || tempfile::tempfile().unwrap().into()),
    ("a directory", || File::open("/").unwrap().into()),
    ("/dev/null", read_only_file),
    ("a pipe to read from", || full_pipe().0),
    ("a full pipe", || full_pipe().1),
    ("a pipe without a reader", || pipe().1),
    ("a socket whose other end is closed", || {
        UnixStream::pair().unwrap().0.into()
    }),
    ("an epoll descriptor", || {
        epoll::create(epoll::CreateFlags::CLOEXEC).unwrap()
    }),
    ("memory", || memory_file(4096)),
];

/// Rows of descriptors that are no eventfds, in messages that need one.
pub fn rows(rows: &mut Rows) {
    const NO_EVENTFD: &str = "descriptor that is no eventfd";
    for (message, request) in [
        ("kick", SET_VRING_KICK),
        ("call", SET_VRING_CALL),
        ("err", SET_VRING_ERR),
    ] {
        for (what, make) in KINDS {
            let row = rows.negotiated(format!("{message}: {what}"), Dropped, move |guest| {
                guest.set_up_first();
                guest.ask(request, &u64s(&[0]), &[make().as_fd()])
            });
            row.says(NO_EVENTFD);
        }
        let what = format!("{message}: a pipe, for a queue that runs");
        let row = rows.running(what, Dropped, move |guest| {
            guest.ask(request, &u64s(&[0]), &[pipe().1.as_fd()])
        });
        row.says(NO_EVENTFD);
    }
    let row = rows.running("kick: the connection itself", Dropped, |guest| {
        guest.ask(SET_VRING_KICK, &u64s(&[0]), &[guest.wire.socket()])
    });
    row.says(NO_EVENTFD);
    eventfds(rows);
}

/// An eventfd that counts no further.
fn full_event() -> OwnedFd {
    let event = event();
    rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    event
}

/// Eventfds in a state, or at a place, that they should not be in.
fn eventfds(rows: &mut Rows) {
    rows.negotiated("kick: none, the guest is to be polled", Accepted, |guest| {
        guest.set_up_first();
        guest.ask(SET_VRING_KICK, &u64s(&[NO_FD]), &[])
    });
    rows.running("kick: one descriptor for both queues", OK, |guest| {
        for index in [1, 0] {
            guest.must(
                SET_VRING_KICK,
                &u64s(&[index]),
                &[guest.queues[0].kick.as_fd()],
            );
        }
        guest.read_sector()
    });
    rows.running("call: the descriptor of the kicks", OK, |guest| {
        let kick = guest.queues[0].kick.try_clone().unwrap();
        call_with(guest, &kick)
    });
    rows.running("call: a full eventfd", OK, |guest| {
        call_with(guest, &full_event())
    });
    rows.running("call: a full eventfd that blocks at first", OK, |guest| {
        let call = full_event();
        rustix::fs::fcntl_setfl(&call, rustix::fs::OFlags::empty()).unwrap();
        call_with(guest, &call)
    });
    rows.running("call: set 500 times while requests run", OK, |guest| {
        for _ in 0..500 {
            guest.must(SET_VRING_CALL, &u64s(&[0]), &[event().as_fd()]);
        }
        guest.must(SET_VRING_CALL, &u64s(&[0]), &[guest.queues[0].call.as_fd()]);
        guest.read_sector()
    });
    let row = rows.running("err: a full eventfd of a broken queue", Accepted, |guest| {
        guest.must(SET_VRING_ERR, &u64s(&[0]), &[full_event().as_fd()]);
        guest.make_available(&[500]);
        // Nothing says when; the other queue of this iothread says that it was not held up.
        assert_eq!(guest.verified_io(1, 3, 0x11), Ok(()));
        guest.still_there()
    });
    row.says("names descriptor 500");
    rows.running("kicks without end from another thread", OK, |guest| {
        let kick = guest.queues[0].kick.try_clone().unwrap();
        let _kicking = RepeatingThread::start(move |_| signal(&kick));
        let mut answers = (0..5).map(|_| guest.read_sector());
        answers.find(|answer| *answer != OK).unwrap_or(OK)
    });
}

/// Requests on a queue that calls there. The guest does not hear of it and looks at the ring.
fn call_with(guest: &mut HostileFrontEnd, call: &OwnedFd) -> Answer {
    guest.must(SET_VRING_CALL, &u64s(&[0]), &[call.as_fd()]);
    let mut answers = (0..3).map(|_| {
        let answer = guest.read_sector_without_call();
        // The other queue of the same iothread is called as ever.
        assert_eq!(guest.verified_io(1, 3, 0x11), Ok(()));
        answer
    });
    answers.find(|answer| *answer != OK).unwrap_or(OK)
}
