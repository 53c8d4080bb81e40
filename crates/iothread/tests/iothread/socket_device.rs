//! A device without virtqueues on an iothread, beside queues: its turns, its room, and its end, and on a loop that is run step by
//! step: when its socket is polled.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{TryRecvError, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use block::{BackendSettings, DiskIo, FaultAction, Node, Op, Request, token};
use iothread::event_loop::testing::FakePoller;
use iothread::event_loop::{EventLoop, Interest, PollSettings};
use iothread::{
    Completion, IothreadHandle, MAX_WATCHED_DESCRIPTORS, Message, QueuesRunner, SocketDevice,
    SocketDeviceCommand, SocketDeviceHandle,
};
use test_support::deadline::eventually;

use crate::queue_driver::{
    add_one, counted, event, fault, filter, iothread, null_disk, queues_loop,
};

/// Long enough that a test finds requests in flight. Also flushes take that long.
const SLOW_NS: u64 = 100_000_000;

/// What it does is seen here.
#[derive(Default)]
struct Seen {
    asked: AtomicUsize,
    done: AtomicUsize,
    connected: AtomicUsize,
    turns: AtomicUsize,
    /// So many turns it wants at least, each a while after the one before.
    alarms: AtomicUsize,
    /// Looks at its socket, and messages that were found.
    looks: AtomicUsize,
    heard: AtomicUsize,
    /// Turns since it was last asked for requests, and the most that there were of these.
    kept: AtomicUsize,
    most_kept: AtomicUsize,
}

/// A front-end that says something so long after it was heard, by the clock of a loop that is run step by step.
struct Talk {
    poller: FakePoller,
    pause_ns: u64,
    says_ns: u64,
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

/// Asks its disk for so many flushes each time its descriptor is ready.
struct Device {
    at_once: usize,
    wanted: usize,
    in_flight: usize,
    bell: OwnedFd,
    seen: Arc<Seen>,
    now_ns: u64,
    /// Turns that it wants in a row.
    turns: usize,
    /// How long each of them takes.
    turn_takes: Duration,
    talk: Option<Talk>,
    said: bool,
}

impl SocketDevice for Device {
    fn watched_descriptors(&self) -> [Option<(BorrowedFd<'_>, Interest)>; MAX_WATCHED_DESCRIPTORS] {
        let bell = Some((self.bell.as_fd(), Interest::Readable));
        [None, bell, None, None]
    }

    fn watched_descriptors_version(&self) -> u64 {
        0
    }

    fn on_ready(&mut self, descriptor: usize, _: u64) {
        assert_eq!(descriptor, 1);
        self.said = true;
        if counted(&self.bell) > 0 {
            self.wanted += self.at_once;
        }
    }

    fn poll_socket(&mut self) -> bool {
        self.seen.looks.fetch_add(1, Ordering::Relaxed);
        let talk = self.talk.as_ref();
        self.said |= talk.is_some_and(|talk| talk.poller.state().now_ns >= talk.says_ns);
        self.said
    }

    /// Counts the turn, and has the next message sent some time after one was received.
    fn run_turn(&mut self, now_ns: u64) -> bool {
        self.now_ns = now_ns;
        std::thread::sleep(self.turn_takes);
        let turns = self.seen.turns.fetch_add(1, Ordering::Relaxed) + 1;
        let kept = self.seen.kept.fetch_add(1, Ordering::Relaxed) + 1;
        self.seen.most_kept.fetch_max(kept, Ordering::Relaxed);
        if std::mem::take(&mut self.said)
            && let Some(talk) = &mut self.talk
        {
            self.seen.heard.fetch_add(1, Ordering::Relaxed);
            talk.says_ns = speaks(&talk.poller, talk.pause_ns);
        }
        turns < self.turns
    }

    fn deadline_ns(&mut self) -> Option<u64> {
        let Seen { turns, alarms, .. } = &*self.seen;
        (turns.load(Ordering::Relaxed) < alarms.load(Ordering::Relaxed))
            .then_some(self.now_ns + 100_000)
    }

    /// Submits flushes as long as there is room.
    fn submit(&mut self, io: &mut dyn DiskIo) -> bool {
        self.seen.kept.store(0, Ordering::Relaxed);
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
fn device(at_once: usize, bell: &OwnedFd, seen: &Arc<Seen>) -> Box<Device> {
    Box::new(Device {
        at_once,
        wanted: 0,
        in_flight: 0,
        bell: bell.try_clone().unwrap(),
        seen: seen.clone(),
        now_ns: 0,
        turns: 0,
        turn_takes: Duration::ZERO,
        talk: None,
        said: false,
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
        Rig::on(null_disk(latency_ns), at_once)
    }

    /// Starts an iothread, and on it the device with this node.
    fn on(node: Arc<Node>, at_once: usize) -> Self {
        let iothread = iothread("io");
        let (seen, bell) = (Arc::new(Seen::default()), event());
        let weak = Arc::downgrade(&node);
        let device = device(at_once, &bell, &seen);
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

    /// Rings the bell, and waits until this is so.
    #[track_caller]
    fn ring_until(&self, is_so: impl Fn(&Rig) -> bool) {
        add_one(&self.bell);
        self.until(is_so);
    }

    #[track_caller]
    fn until(&self, is_so: impl Fn(&Rig) -> bool) {
        eventually("what was asked is done", || is_so(self));
    }

    fn enable(&self, enabled: bool) {
        let command = SocketDeviceCommand::Enable(enabled);
        self.handle.send_unless_stopped(command);
    }

    /// The iothread has read all mail and seen all bells.
    fn passed(&self) {
        self.iothread.send_ping().recv().unwrap();
    }
}

#[test]
fn a_socket_device_gets_turns_at_its_deadlines() {
    let rig = Rig::new(1, 0);
    rig.seen.alarms.store(20, Ordering::Relaxed);
    // Where it says that, it has a turn.
    rig.ring_until(|rig| rig.seen.turns.load(Ordering::Relaxed) >= 20);
}

#[test]
fn a_deadline_of_a_socket_device_gives_no_other_a_turn() {
    let rig = Rig::new(1, 0);
    let (other, bell) = (Arc::new(Seen::default()), event());
    let quiet = device(1, &bell, &other);
    let _quiet = rig.iothread.start_socket_device(quiet, vec![null_disk(0)]);
    let turns = other.turns.load(Ordering::Relaxed);
    rig.seen.alarms.store(20, Ordering::Relaxed);
    rig.ring_until(|rig| rig.seen.turns.load(Ordering::Relaxed) >= 20);
    assert_eq!(other.turns.load(Ordering::Relaxed), turns);
}

#[test]
fn requests_of_a_socket_device_without_room_are_submitted_later() {
    // More than an iothread's null disks take at a time.
    let rig = Rig::new(10_000, 0);
    rig.ring_until(|rig| rig.done() == 10_000);
}

#[test]
fn a_disabled_socket_device_settles_and_submits_nothing() {
    let rig = Rig::new(8, SLOW_NS);
    rig.ring_until(|rig| rig.asked() == 8);
    rig.handle.send_and_wait(SocketDeviceCommand::Settle);
    assert_eq!(rig.done(), 8);
    rig.enable(false);
    // What the iothread has begun before it reads that, goes on.
    rig.passed();
    add_one(&rig.bell);
    rig.passed();
    rig.handle.send_and_wait(SocketDeviceCommand::Settle);
    assert_eq!(rig.asked(), 8);
    // Another opening of its disk.
    rig.handle
        .send_and_wait(|reply| SocketDeviceCommand::SetNode(null_disk(0), reply));
    assert!(rig.node.upgrade().is_none(), "the old one is not held");
    rig.enable(true);
    rig.until(|rig| rig.done() == 16);
}

#[test]
fn a_socket_device_changes_its_node_while_requests_hang_at_the_old_one() {
    let (filter, faults) = filter(&null_disk(0), &[fault(None, FaultAction::Hang)]);
    let rig = Rig::on(filter, 8);
    rig.ring_until(|rig| rig.asked() == 8);
    let (reply, exchanged) = channel();
    rig.handle
        .send_unless_stopped(SocketDeviceCommand::SetNode(null_disk(0), reply));
    rig.passed();
    rig.ring_until(|rig| rig.done() == 8);
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
    rig.ring_until(|rig| rig.asked() == 8);
    assert!(!rig.handle.stop_if_idle(), "requests are in flight");
    rig.handle.begin_stop();
    rig.handle.stop();
    assert_eq!(rig.done(), 8);
    assert!(rig.node.upgrade().is_none());
}

/// Another thread has it stopped, and waits for that as well.
#[test]
fn commands_to_a_socket_device_that_stops_wait_for_its_requests() {
    let rig = Rig::new(8, SLOW_NS);
    rig.ring_until(|rig| rig.asked() == 8);
    rig.handle.begin_stop();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                rig.handle.send_and_wait(SocketDeviceCommand::Settle);
                assert_eq!(rig.done(), 8);
            });
        }
        rig.handle.stop();
        assert_eq!(rig.done(), 8);
    });
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
    let device = device(1, &bell, &seen);
    let mut next = None;
    let answer = rig.handle.send_and_wait(|reply| {
        // As if another thread did so between the making of the command and its sending.
        rig.handle.stop();
        next = Some(rig.iothread.start_socket_device(device, vec![null_disk(0)]));
        SocketDeviceCommand::Settle(reply)
    });
    assert_eq!(answer, None);
    rig.enable(false);
    rig.passed();
    add_one(&bell);
    rig.until(|_| seen.done.load(Ordering::Relaxed) == 1);
    drop(next);
}

/// A loop on a fake poller, with a device that wants so many turns and whose front-end speaks.
struct Stepped {
    iothread: EventLoop<QueuesRunner>,
    poller: FakePoller,
    seen: Arc<Seen>,
}

impl Stepped {
    fn new(turns: usize, pause_ns: u64) -> Self {
        let (poller, seen) = (FakePoller::default(), Arc::new(Seen::default()));
        poller.state().tick_ns = 1_000;
        seen.connected.store(1, Ordering::Relaxed);
        let settings = BackendSettings::default();
        let mut iothread = queues_loop(poller.clone(), PollSettings::default(), settings);
        let talk = Talk {
            poller: poller.clone(),
            pause_ns,
            says_ns: u64::MAX,
        };
        let device = Box::new(Device {
            turns,
            talk: Some(talk),
            ..*device(0, &event(), &seen)
        });
        let (reply, source_index) = channel();
        let start = Message::StartSocketDevice(device, Vec::new(), reply);
        iothread.remote().send(start).unwrap();
        assert!(iothread.iterate().unwrap());
        assert_eq!(source_index.recv(), Ok(0));
        speaks(&poller, 0);
        Stepped {
            iothread,
            poller,
            seen,
        }
    }

    /// Iterates until this was counted so often; how often the socket was looked at.
    fn iterate_until(&mut self, of: impl Fn(&Seen) -> &AtomicUsize, count: usize) -> usize {
        while of(&self.seen).load(Ordering::Relaxed) < count {
            assert!(self.iothread.iterate().unwrap());
        }
        self.seen.looks.load(Ordering::Relaxed)
    }
}

/// As many NBD clients would that send what takes long.
#[test]
fn socket_devices_that_always_have_work_run_in_turn_and_for_a_limited_time() {
    const DEVICES: usize = 8;
    let poller = FakePoller::default();
    let settings = (PollSettings::default(), BackendSettings::default());
    let mut iothread = queues_loop(poller, settings.0, settings.1);
    let seen: Vec<Arc<Seen>> = (0..DEVICES).map(|_| Arc::default()).collect();
    for seen in &seen {
        let device = Box::new(Device {
            turns: usize::MAX,
            // As much as all of them may take.
            turn_takes: Duration::from_millis(1),
            ..*device(0, &event(), seen)
        });
        let (reply, _) = channel();
        let start = Message::StartSocketDevice(device, Vec::new(), reply);
        iothread.remote().send(start).unwrap();
    }
    let turns = || seen.iter().map(|seen| seen.turns.load(Ordering::Relaxed));
    assert!(iothread.iterate().unwrap());
    for _ in 0..5 * DEVICES {
        let before: usize = turns().sum();
        assert!(iothread.iterate().unwrap());
        assert_eq!(turns().sum::<usize>() - before, 1);
    }
    assert!(turns().max().unwrap() - turns().min().unwrap() <= 1);
}

#[test]
fn a_quick_message_of_a_front_end_is_polled_for() {
    let mut stepped = Stepped::new(0, 30_000);
    stepped.iterate_until(|seen| &seen.heard, 10);
    // It has learnt by now.
    let slept_ns = stepped.poller.state().slept_ns;
    assert!(stepped.iterate_until(|seen| &seen.heard, 100) >= 90);
    assert_eq!(stepped.poller.state().slept_ns, slept_ns);
}

#[test]
fn the_socket_of_a_slow_front_end_is_not_polled() {
    let mut stepped = Stepped::new(0, 1_000_000_000);
    // The first words came at once, and have to be forgotten.
    let looks = stepped.iterate_until(|seen| &seen.heard, 50);
    assert_eq!(stepped.iterate_until(|seen| &seen.heard, 150), looks);
}

#[test]
fn a_socket_device_with_more_work_submits_and_gets_turns_without_a_wait() {
    let mut stepped = Stepped::new(1000, 1_000_000_000);
    stepped.iterate_until(|seen| &seen.turns, 900);
    let waits = std::mem::take(&mut stepped.poller.state().waits);
    assert!(waits.iter().all(|timeout_ns| *timeout_ns == Some(0)));
    assert_eq!(stepped.poller.state().slept_ns, 0);
    // What a turn wants to submit is submitted before the next one.
    assert_eq!(stepped.seen.most_kept.load(Ordering::Relaxed), 1);
}
