//! Socket devices on a loop that is run step by step: when their sockets are polled, and which timers and turns they get.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;

use block::{BackendSettings, DiskIo, IoContext};
use iothread::event_loop::testing::FakePoller;
use iothread::event_loop::{EventLoop, Interest, PollSettings};
use iothread::{Completion, MAX_WATCHED_DESCRIPTORS, Message, QueuesRunner, SocketDevice};

use crate::guest::event;

/// What is seen of a controller.
#[derive(Default)]
struct Seen {
    /// Looks at its socket.
    looks: AtomicU64,
    turns: AtomicU64,
    /// Turns after the last time that it was asked for requests.
    kept: AtomicU64,
    /// The most that there were of these.
    most_kept: AtomicU64,
    /// How often it heard its front-end.
    heard: AtomicU64,
}

/// Its front-end says something so long after it was heard, and it wants turns without that.
#[derive(Clone, Copy, Default)]
struct Habits {
    pause_ns: u64,
    /// So many in a row.
    turns: u64,
}

struct Talks {
    poller: FakePoller,
    socket: OwnedFd,
    habits: Habits,
    seen: Arc<Seen>,
    /// When its front-end says something.
    says_ns: u64,
    said: bool,
}

impl Talks {
    fn hears(&mut self) -> bool {
        let now_ns = self.poller.state().now_ns;
        self.said |= now_ns >= self.says_ns;
        self.said
    }
}

/// After a while the only socket that is watched becomes readable; says when.
fn speaks(poller: &FakePoller, pause_ns: u64) -> u64 {
    let mut state = poller.state();
    let says_ns = state.now_ns + pause_ns;
    let mut watched = state.watched.iter();
    let (socket, _) = watched
        .find(|(_, (interest, _))| *interest == Interest::Readable)
        .unwrap();
    state.arrivals = [(says_ns, *socket)].into();
    says_ns
}

impl SocketDevice for Talks {
    fn watched_descriptors(&self) -> [Option<(BorrowedFd<'_>, Interest)>; MAX_WATCHED_DESCRIPTORS] {
        [
            Some((self.socket.as_fd(), Interest::Readable)),
            None,
            None,
            None,
        ]
    }

    fn watched_descriptors_version(&self) -> u64 {
        0
    }

    fn on_ready(&mut self, _: usize, _: u64) {
        self.said = true;
    }

    fn poll_socket(&mut self) -> bool {
        self.seen.looks.fetch_add(1, Ordering::Relaxed);
        self.hears()
    }

    /// Counts the turn, and sends the next message some time after one was received.
    fn run_turn(&mut self, _: u64) -> bool {
        let turns = self.seen.turns.fetch_add(1, Ordering::Relaxed) + 1;
        let kept = self.seen.kept.fetch_add(1, Ordering::Relaxed) + 1;
        self.seen.most_kept.fetch_max(kept, Ordering::Relaxed);
        if std::mem::take(&mut self.said) {
            self.seen.heard.fetch_add(1, Ordering::Relaxed);
            self.says_ns = speaks(&self.poller, self.habits.pause_ns);
        }
        turns < self.habits.turns
    }

    fn deadline_ns(&mut self) -> Option<u64> {
        None
    }

    fn submit(&mut self, _: &mut dyn DiskIo) -> bool {
        self.seen.kept.store(0, Ordering::Relaxed);
        true
    }

    fn complete(&mut self, _: &[Completion]) {}

    fn in_flight_count(&mut self) -> usize {
        0
    }

    fn is_connected(&self) -> bool {
        true
    }

    fn set_accepting_paused(&mut self, _: bool) {}

    fn disconnect(&mut self) {}

    fn disconnect_and_stop(&mut self) {}
}

/// A loop with one.
struct Rig {
    iothread: EventLoop<QueuesRunner>,
    poller: FakePoller,
    seen: Arc<Seen>,
}

impl Rig {
    /// A loop on a fake poller, with a socket device of these habits.
    fn new(habits: Habits) -> Self {
        let poller = FakePoller::default();
        poller.state().tick_ns = 1_000;
        let polling = PollSettings::default();
        let iothread = EventLoop::new(Box::new(poller.clone()), polling, |_, remote| {
            let waker = remote.waker();
            let io = IoContext::new(BackendSettings::default(), Arc::new(move || waker.wake()));
            Ok::<_, std::io::Error>(QueuesRunner::new(remote, io.unwrap()))
        });
        let seen = Arc::new(Seen::default());
        let mut rig = Rig {
            iothread: iothread.unwrap(),
            poller,
            seen: seen.clone(),
        };
        let controller = Talks {
            poller: rig.poller.clone(),
            socket: event(),
            habits,
            seen,
            says_ns: u64::MAX,
            said: false,
        };
        let (reply, source_index) = channel();
        let start = Message::StartSocketDevice(Box::new(controller), Vec::new(), reply);
        rig.iothread.remote().send(start).unwrap();
        rig.iterate();
        assert_eq!(source_index.recv(), Ok(0));
        speaks(&rig.poller, 0);
        rig
    }

    fn iterate(&mut self) {
        assert!(self.iothread.iterate().unwrap());
    }

    fn count(&self, of: impl Fn(&Seen) -> &AtomicU64) -> u64 {
        of(&self.seen).load(Ordering::Relaxed)
    }
}

#[test]
fn a_quick_message_of_a_front_end_is_polled_for() {
    let mut rig = Rig::new(Habits {
        pause_ns: 30_000,
        ..Habits::default()
    });
    while rig.count(|seen| &seen.heard) < 10 {
        rig.iterate();
    }
    // It has learnt by now.
    let slept_ns = rig.poller.state().slept_ns;
    while rig.count(|seen| &seen.heard) < 100 {
        rig.iterate();
    }
    assert!(rig.count(|seen| &seen.looks) >= 90);
    assert_eq!(rig.poller.state().slept_ns, slept_ns);
}

#[test]
fn the_socket_of_a_slow_front_end_is_not_polled() {
    let mut rig = Rig::new(Habits {
        pause_ns: 1_000_000_000,
        ..Habits::default()
    });
    // The first words came at once, and have to be forgotten.
    while rig.count(|seen| &seen.heard) < 50 {
        rig.iterate();
    }
    let looks = rig.count(|seen| &seen.looks);
    while rig.count(|seen| &seen.heard) < 150 {
        rig.iterate();
    }
    assert_eq!(rig.count(|seen| &seen.looks), looks);
}

#[test]
fn a_socket_device_with_more_work_gets_turns_without_a_wait() {
    let mut rig = Rig::new(Habits {
        pause_ns: 1_000_000_000,
        turns: 1000,
    });
    while rig.count(|seen| &seen.turns) < 900 {
        rig.iterate();
    }
    let waits = std::mem::take(&mut rig.poller.state().waits);
    assert!(waits.iter().all(|timeout_ns| *timeout_ns == Some(0)));
    assert_eq!(rig.poller.state().slept_ns, 0);
}

#[test]
fn requests_of_a_turn_are_submitted_before_the_next_turn() {
    let mut rig = Rig::new(Habits {
        pause_ns: 1_000_000_000,
        turns: 100,
    });
    while rig.count(|seen| &seen.turns) < 90 {
        rig.iterate();
    }
    assert_eq!(rig.count(|seen| &seen.most_kept), 1);
}
