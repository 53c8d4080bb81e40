//! A device without virtqueues on an iothread, beside queues: its turns, its room, and its end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{TryRecvError, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use block::{
    DiskIo, FaultAction, FaultRule, FaultRules, Faults, Node, NodeOptions, NullOptions, Op,
    Request, token,
};
use iothread::event_loop::Interest;
use iothread::{
    Completion, IothreadHandle, IothreadSettings, MAX_WATCHED_DESCRIPTORS, SocketDevice,
    SocketDeviceCommand, SocketDeviceHandle,
};

use crate::guest::{add_one, event};

/// What has not happened by then never will.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// Long enough that a test finds requests in flight.
const SLOW_NS: u64 = 100_000_000;

/// Also flushes take that long.
fn slow_disk(latency_ns: u64) -> Arc<Node> {
    let options = NodeOptions::Null(NullOptions {
        size: 1 << 20,
        read_zeroes: false,
        latency_ns,
    });
    Node::open("null", false, &options).unwrap()
}

/// What it does is seen here.
#[derive(Default)]
struct Seen {
    asked: AtomicUsize,
    done: AtomicUsize,
    connected: AtomicUsize,
    turns: AtomicUsize,
    /// So many turns it wants at least, each a while after the one before.
    alarms: AtomicUsize,
}

/// Asks its disk for so many flushes each time its descriptor is ready.
struct Flushes {
    at_once: usize,
    wanted: usize,
    in_flight: usize,
    bell: OwnedFd,
    seen: Arc<Seen>,
    now_ns: u64,
}

impl SocketDevice for Flushes {
    fn watched_descriptors(&self) -> [Option<(BorrowedFd<'_>, Interest)>; MAX_WATCHED_DESCRIPTORS] {
        let bell = Some((self.bell.as_fd(), Interest::Readable));
        [None, bell, None, None]
    }

    fn watched_descriptors_version(&self) -> u64 {
        0
    }

    fn on_ready(&mut self, descriptor: usize, _: u64) {
        assert_eq!(descriptor, 1);
        rustix::io::read(&self.bell, &mut [0; 8]).unwrap();
        self.wanted += self.at_once;
    }

    fn run_turn(&mut self, now_ns: u64) -> bool {
        self.now_ns = now_ns;
        self.seen.turns.fetch_add(1, Ordering::Relaxed);
        false
    }

    fn deadline_ns(&mut self) -> Option<u64> {
        let Seen { turns, alarms, .. } = &*self.seen;
        (turns.load(Ordering::Relaxed) < alarms.load(Ordering::Relaxed))
            .then_some(self.now_ns + 100_000)
    }

    /// Submits flushes as long as there is room.
    fn submit(&mut self, io: &mut dyn DiskIo) -> bool {
        while self.wanted > 0 {
            if io.room(0) == 0 {
                return false;
            }
            let number = self.seen.asked.fetch_add(1, Ordering::Relaxed) as u64;
            let request = Request::without_data(Op::Flush, 0, 0, number);
            self.wanted -= 1;
            self.in_flight += 1;
            // SAFETY: a flush has no segments.
            unsafe { io.submit(0, request) };
        }
        true
    }

    /// Checks that the completions are of requests that were submitted, and counts them.
    fn complete(&mut self, done: &[Completion]) {
        for completion in done {
            assert_eq!(completion.result, Ok(()));
            let slot = token::request_number(completion.token) as usize;
            assert!(slot < self.seen.asked.load(Ordering::Relaxed));
        }
        self.in_flight -= done.len();
        self.seen.done.fetch_add(done.len(), Ordering::Relaxed);
    }

    fn in_flight_count(&mut self) -> usize {
        self.in_flight
    }

    fn is_connected(&self) -> bool {
        self.seen.connected.load(Ordering::Relaxed) > 0
    }

    fn set_accepting_paused(&mut self, _: bool) {}

    fn disconnect(&mut self) {
        self.seen.connected.store(0, Ordering::Relaxed);
    }

    fn disconnect_and_stop(&mut self) {
        self.disconnect();
    }
}

/// A device that listens to this bell.
fn flushes(at_once: usize, bell: &OwnedFd, seen: &Arc<Seen>) -> Box<Flushes> {
    Box::new(Flushes {
        at_once,
        wanted: 0,
        in_flight: 0,
        bell: bell.try_clone().unwrap(),
        seen: seen.clone(),
        now_ns: 0,
    })
}

/// One that runs on an iothread, with the bell that it listens to.
struct Rig {
    iothread: IothreadHandle,
    handle: SocketDeviceHandle,
    seen: Arc<Seen>,
    bell: OwnedFd,
    node: Weak<Node>,
}

impl Rig {
    fn new(at_once: usize, latency_ns: u64) -> Self {
        Rig::on(slow_disk(latency_ns), at_once)
    }

    /// Starts an iothread, and on it the device with this node.
    fn on(node: Arc<Node>, at_once: usize) -> Self {
        let iothread = IothreadHandle::spawn(IothreadSettings::with_id("io")).unwrap();
        let (seen, bell) = (Arc::new(Seen::default()), event());
        let weak = Arc::downgrade(&node);
        let device = flushes(at_once, &bell, &seen);
        let handle = iothread.start_socket_device(device, vec![node]);
        Rig {
            handle: handle.unwrap(),
            iothread,
            seen,
            bell,
            node: weak,
        }
    }

    fn asked(&self) -> usize {
        self.seen.asked.load(Ordering::Relaxed)
    }

    fn done(&self) -> usize {
        self.seen.done.load(Ordering::Relaxed)
    }

    /// Waits until this is so; panics if it takes too long.
    fn until(&self, is_so: impl Fn(&Rig) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(
                start.elapsed() < STUCK_AFTER,
                "{} asked, {} done",
                self.asked(),
                self.done()
            );
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// The iothread has read all mail and seen all bells.
    fn passed(&self) {
        self.iothread.send_ping().recv().unwrap();
    }
}

#[test]
fn a_socket_device_gets_turns_and_completions() {
    let rig = Rig::new(3, 0);
    for round in 1..=100 {
        add_one(&rig.bell);
        rig.until(|rig| rig.done() == 3 * round);
    }
    assert_eq!(rig.asked(), 300);
}

#[test]
fn a_socket_device_gets_turns_at_its_deadlines() {
    let rig = Rig::new(1, 0);
    rig.seen.alarms.store(20, Ordering::Relaxed);
    // Where it says that, it has a turn.
    add_one(&rig.bell);
    rig.until(|rig| rig.seen.turns.load(Ordering::Relaxed) >= 20);
}

#[test]
fn requests_of_a_socket_device_without_room_are_submitted_later() {
    // More than an iothread's null disks take at a time.
    let rig = Rig::new(10_000, 0);
    add_one(&rig.bell);
    rig.until(|rig| rig.done() == 10_000);
}

#[test]
fn a_disabled_socket_device_settles_and_submits_nothing() {
    let rig = Rig::new(8, SLOW_NS);
    add_one(&rig.bell);
    rig.until(|rig| rig.asked() == 8);
    rig.handle.send_and_wait(SocketDeviceCommand::Settle);
    assert_eq!(rig.done(), 8);
    rig.handle
        .send_unless_stopped(SocketDeviceCommand::Enable(false));
    // What the iothread has begun before it reads that, goes on.
    rig.passed();
    add_one(&rig.bell);
    rig.passed();
    rig.handle.send_and_wait(SocketDeviceCommand::Settle);
    assert_eq!(rig.asked(), 8);
    // Another opening of its disk.
    rig.handle
        .send_and_wait(|reply| SocketDeviceCommand::SetNode(slow_disk(0), reply));
    assert!(rig.node.upgrade().is_none(), "the old one is not held");
    rig.handle
        .send_unless_stopped(SocketDeviceCommand::Enable(true));
    rig.until(|rig| rig.done() == 16);
}

#[test]
fn a_socket_device_changes_its_node_while_requests_hang_at_the_old_one() {
    let rule = FaultRule {
        begins: None,
        op: None,
        bytes: None,
        times: None,
        one_in: 1,
        action: FaultAction::Hang,
    };
    let (rules, seed) = (vec![rule], 0);
    let faults = Faults::new(FaultRules { rules, seed });
    let filter = Node::new_filter("null", &slow_disk(0), faults.clone(), false, true);
    let rig = Rig::on(filter, 8);
    add_one(&rig.bell);
    rig.until(|rig| rig.asked() == 8);
    let (reply, exchanged) = channel();
    rig.handle
        .send_unless_stopped(SocketDeviceCommand::SetNode(slow_disk(0), reply));
    rig.iothread.send_ping().recv().unwrap();
    add_one(&rig.bell);
    rig.until(|rig| rig.done() == 8);
    assert_eq!(exchanged.try_recv(), Err(TryRecvError::Empty));
    assert!(rig.node.upgrade().is_some(), "it is in use");
    faults.release_hanging_and_set_rules(None);
    assert_eq!(exchanged.recv(), Ok(()));
    assert_eq!(rig.done(), 16);
    assert!(rig.node.upgrade().is_none());
    assert_eq!(Arc::strong_count(&faults), 1);
}

#[test]
fn the_end_of_a_socket_device_waits_for_requests_and_releases_the_disk() {
    let rig = Rig::new(8, SLOW_NS);
    add_one(&rig.bell);
    rig.until(|rig| rig.asked() == 8);
    assert!(!rig.handle.stop_if_idle(), "requests are in flight");
    rig.handle.begin_stop();
    rig.handle.stop();
    assert_eq!(rig.done(), 8);
    assert!(rig.node.upgrade().is_none());
}

#[test]
fn a_socket_device_stops_at_once_only_without_a_front_end() {
    let rig = Rig::new(1, 0);
    rig.seen.connected.store(1, Ordering::Relaxed);
    assert!(!rig.handle.stop_if_idle());
    rig.seen.connected.store(0, Ordering::Relaxed);
    assert!(rig.handle.stop_if_idle());
    assert!(rig.node.upgrade().is_none());
}

#[test]
fn commands_do_not_reach_the_next_device_at_its_place() {
    let rig = Rig::new(1, 0);
    let (seen, bell) = (Arc::new(Seen::default()), event());
    let device = flushes(1, &bell, &seen);
    let mut next = None;
    let answer = rig.handle.send_and_wait(|reply| {
        // As if another thread did so between the making of the command and its sending.
        rig.handle.stop();
        next = Some(rig.iothread.start_socket_device(device, vec![slow_disk(0)]));
        SocketDeviceCommand::Settle(reply)
    });
    assert_eq!(answer, None);
    rig.handle
        .send_unless_stopped(SocketDeviceCommand::Enable(false));
    rig.passed();
    add_one(&bell);
    rig.until(|_| seen.done.load(Ordering::Relaxed) == 1);
    drop(next);
}
