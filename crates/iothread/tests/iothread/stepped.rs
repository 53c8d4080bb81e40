//! Commands of the control plane between chosen iterations: the loop is run by hand, so that a message meets
//! exactly the state that it is to be tested with.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use block::{Aio, FaultAction, LimitKind, Node, RateLimit, ThrottleGroup, ThrottleLimits};
use engine::{Op, fair_room};
use iothread::event_loop::testing::FakePoller;
use iothread::event_loop::{EventLoop, PollSettings};
use iothread::{Message, QueuesRunner, VringSetup};
use telemetry::queue::QueueStats;
use test_support::deadline::Deadline;
use test_support::threads::status_field;
use virtqueue::GuestMemory;
use virtqueue::queue_setup::{QueueCommand, StartError};

use crate::queue_driver::{
    GET_ID, IN, OUT, QueueDriver, aio_room, counted, disk_by, event, fault, file_disk, filter,
    null_disk, queues_loop,
};

/// A loop that a test runs step by step; its poller never blocks.
pub struct SteppedIothread {
    pub iothread: EventLoop<QueuesRunner>,
    poller: FakePoller,
}

impl SteppedIothread {
    /// An iothread on a fake poller that does not poll, with room for so many requests in Linux AIO, or in a ring.
    pub fn new(aio_max_events: u32) -> SteppedIothread {
        let polling = PollSettings {
            max_ns: 0,
            ..PollSettings::default()
        };
        let poller = FakePoller::default();
        SteppedIothread {
            iothread: queues_loop(poller.clone(), polling, aio_room(aio_max_events)),
            poller,
        }
    }

    pub fn send(&self, message: Message) {
        self.iothread.remote().send(message).unwrap();
    }

    /// Sends a command with a reply.
    fn ask<T>(
        &self,
        source_index: u32,
        command: impl FnOnce(Sender<T>) -> QueueCommand,
    ) -> Receiver<T> {
        let (reply, answer) = channel();
        self.send(Message::Queue(source_index, command(reply)));
        answer
    }

    pub fn enable(&self, source_index: u32, enabled: bool) {
        self.send(Message::Queue(source_index, QueueCommand::Enable(enabled)));
    }

    /// How many descriptors the loop watches.
    pub fn watched(&self) -> usize {
        self.poller.state().watched.len()
    }

    pub fn iterate(&mut self) {
        assert!(self.iothread.iterate().unwrap());
    }

    /// Starts a queue, without looking at it yet.
    fn start(&mut self, setup: VringSetup) -> Receiver<Result<u32, StartError>> {
        let (reply, answer) = channel();
        self.send(Message::Start(Box::new(setup), reply));
        answer
    }

    pub fn stop(&self, source_index: u32) -> Receiver<u32> {
        let (reply, answer) = channel();
        self.send(Message::Stop(source_index, reply));
        answer
    }

    /// Iterates until the answer is there.
    pub fn finish<T>(&mut self, answer: &Receiver<T>) -> T {
        loop {
            match answer.try_recv() {
                Ok(answer) => return answer,
                Err(TryRecvError::Empty) => self.iterate(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Stops a queue, and iterates until it has stopped: its base.
    pub fn stopped(&mut self, source_index: u32) -> u32 {
        let answer = self.stop(source_index);
        self.finish(&answer)
    }

    fn set_memory(&self, source_index: u32, memory: Arc<GuestMemory>) -> Receiver<()> {
        self.ask(source_index, |reply| QueueCommand::SetMemory(memory, reply))
    }

    /// Iterates until the guest's queue has so many used entries.
    fn iterate_until(&mut self, guest: &QueueDriver, used: u16) {
        while guest.driver.used_idx() != used {
            self.iterate();
        }
    }
}

/// A queue whose first iteration, which starts it, takes what there is; nothing has completed then.
pub fn started(steps: &mut SteppedIothread, setup: VringSetup) -> u32 {
    let answer = steps.start(setup);
    steps.iterate();
    answer.try_recv().unwrap().unwrap()
}

#[test]
fn a_batch_has_one_signal() {
    let mut steps = SteppedIothread::new(128);
    let mut guest = QueueDriver::new(256, false);
    guest.publish_reads(60);
    started(&mut steps, guest.setup(&null_disk(0), 0));
    // A disk that is done at once is answered in the iteration that asked it.
    assert_eq!(guest.driver.used_idx(), 60);
    assert_eq!(counted(&guest.call), 1);
    guest.take_done();

    guest.driver.set_no_interrupt(true);
    guest.publish_reads(60);
    steps.enable(0, true);
    steps.iterate();
    assert_eq!(guest.driver.used_idx(), 120);
    assert_eq!(counted(&guest.call), 0, "it did not want to be signalled");
}

#[test]
fn a_queue_stops_while_requests_wait_for_room() {
    let (disk, _folder) = file_disk();
    let mut steps = SteppedIothread::new(2);
    let mut guest = QueueDriver::new(64, false);
    guest.publish_reads(10);
    let source_index = started(&mut steps, guest.setup(&disk, 0));
    let base = steps.stopped(source_index);
    assert_eq!(base, 2, "as many as there was room for");
    assert_eq!(guest.take_done().len(), 2);
    assert_eq!(guest.driver.used_flags(), 0, "the next one is to be kicked");

    let next = started(&mut steps, guest.setup(&disk, base));
    assert_eq!(next, source_index, "its index is free again");
    steps.iterate_until(&guest, 10);
    assert_eq!(guest.take_done().len(), 8);
}

#[test]
fn a_queue_that_waits_for_others_to_make_room_stops_at_once() {
    let (disk, _folder) = file_disk();
    let mut steps = SteppedIothread::new(1);
    let mut guests = [QueueDriver::new(64, false), QueueDriver::new(64, false)];
    let answers = guests.each_mut().map(|guest| {
        guest.publish_reads(1);
        steps.start(guest.setup(&disk, 0))
    });
    steps.iterate();
    let [_, second] = answers.map(|answer| answer.try_recv().unwrap().unwrap());
    let stopped = steps.stop(second);
    steps.iterate();
    assert!(stopped.try_recv().is_ok());
    steps.iterate_until(&guests[0], 1);
}

#[test]
fn a_long_queue_gets_its_first_answers_before_its_last_request_is_admitted() {
    let mut steps = SteppedIothread::new(1);
    let mut guest = QueueDriver::new(512, false);
    guest.submit_all();
    started(&mut steps, guest.setup(&null_disk(0), 0));
    let used = guest.driver.used_idx();
    assert_eq!(used, 64, "what one iteration takes of one queue");
    steps.iterate_until(&guest, 170);
}

/// Guests that always want more than there is room for. In each iteration the queues that waited longest get the room there is,
/// whenever the disk makes it: none is passed over by one that was served after it, unless it has its [share](fair_room) in
/// flight.
fn take_turns(disk: &Arc<Node>, room: u32, queues: usize) {
    const TURNS: usize = 1000;
    let mut steps = SteppedIothread::new(room);
    let mut greedy = Vec::from_iter((0..queues).map(|_| {
        let guest = QueueDriver::new(512, false);
        let setup = guest.setup(disk, 0);
        let stats = setup.stats.clone();
        let source_index = started(&mut steps, setup);
        (guest, source_index, stats)
    }));
    // As indices in rings are counted.
    let admitted = |(guest, _, stats): &(QueueDriver, u32, Arc<QueueStats>)| {
        let in_flight = u16::try_from(stats.in_flight().get()).unwrap();
        guest.driver.used_idx().wrapping_add(in_flight)
    };
    let (mut turns, mut last_turns) = (0, vec![0; queues]);
    let deadline = Deadline::default();
    for iteration in 1.. {
        deadline.check(format_args!("{turns} turns with room for {room}"));
        for (guest, source_index, _) in &mut greedy {
            guest.take_done();
            // Every other block, so that nothing is merged.
            while guest.room() > 0 {
                guest.read(0, guest.room() as u64 * 2);
            }
            guest.driver.publish();
            steps.enable(*source_index, true);
        }
        let before = Vec::from_iter(greedy.iter().map(|queue| {
            let in_flight = usize::try_from(queue.2.in_flight().get()).unwrap();
            (admitted(queue), fair_room(1, in_flight) > 0)
        }));
        steps.iterate();
        // When the queues that get something now had their last turn, and the others.
        let (mut served, mut passed_over) = (Vec::new(), Vec::new());
        for (index, last_turn) in last_turns.iter_mut().enumerate() {
            let (admitted_before, may_have_more) = before[index];
            if admitted(&greedy[index]) != admitted_before {
                served.push(std::mem::replace(last_turn, iteration));
            } else if may_have_more {
                passed_over.push(*last_turn);
            }
        }
        assert!(
            served.iter().max() <= passed_over.iter().min() || passed_over.is_empty(),
            "room for {room}, {iteration}: {served:?} before {passed_over:?}"
        );
        turns += served.len();
        if turns >= TURNS {
            return;
        }
    }
}

#[test]
fn queues_that_wait_for_room_take_turns() {
    let (disk, _folder) = file_disk();
    for room in [1, 2, 3, 7, 30, 64, 100] {
        take_turns(&disk, room, 5);
    }
}

#[test]
fn queues_that_wait_for_room_go_before_those_that_do_not() {
    // A null disk has room for 1024 requests, so 16 queues can take all of it and never wait.
    take_turns(&null_disk(0), 1, 20);
}

#[test]
fn a_queue_stops_while_used_entries_are_unpublished() {
    let mut steps = SteppedIothread::new(2);
    let mut guest = QueueDriver::new(64, false);
    guest.ask(7, GET_ID, 0, 0);
    guest.driver.publish();
    let source_index = started(&mut steps, guest.setup(&null_disk(0), 0));
    assert_eq!(guest.driver.used_idx(), 0, "answered, and not shown yet");
    let answer = steps.stop(source_index);
    steps.iterate();
    assert_eq!(answer.try_recv(), Ok(1));
    assert_eq!(guest.take_done().len(), 1);
    assert_eq!(counted(&guest.call), 1);
}

#[test]
fn a_queue_stops_before_its_first_iteration() {
    let mut steps = SteppedIothread::new(2);
    let mut guest = QueueDriver::new(64, false);
    guest.read(0, 0);
    guest.driver.publish();
    let started = steps.start(guest.setup(&null_disk(0), 0));
    let stopped = steps.stop(0);
    steps.iterate();
    assert!(started.try_recv().unwrap().is_ok());
    assert_eq!(stopped.try_recv(), Ok(0), "nothing was taken");
}

#[test]
fn a_stopping_queue_stops_in_spite_of_further_messages() {
    let (disk, _folder) = file_disk();
    let mut steps = SteppedIothread::new(2);
    let mut guest = QueueDriver::new(64, false);
    guest.publish_reads(10);
    let source_index = started(&mut steps, guest.setup(&disk, 0));
    // Its kick, and the engine's descriptor, which stays.
    let watched = steps.watched() - 1;
    let set_kick = |reply| QueueCommand::SetKick(Some(event()), reply);
    let stopped = steps.stop(source_index);
    let kicked = steps.ask(source_index, set_kick);
    let old = Arc::downgrade(&guest.memory.guest_memory());
    let mapped = steps.set_memory(source_index, guest.memory.remap());
    steps.enable(source_index, false);
    steps.enable(source_index, true);
    for command in [
        QueueCommand::SetCall(Some(event())),
        QueueCommand::SetErr(None),
    ] {
        steps.send(Message::Queue(source_index, command));
    }
    assert_eq!(steps.finish(&stopped), 2);
    assert_eq!(mapped.try_recv(), Ok(()));
    assert_eq!(guest.take_done().len(), 2);
    assert!(old.upgrade().is_none());

    // To one that is gone, too: there is no answer.
    steps.enable(source_index, true);
    let answer = steps.ask(source_index, set_kick);
    let mapped = steps.set_memory(source_index, guest.memory.guest_memory());
    steps.iterate();
    assert_eq!(mapped.try_recv(), Err(TryRecvError::Disconnected));
    assert!(kicked.try_recv().unwrap().is_ok());
    assert!(matches!(answer.try_recv(), Err(TryRecvError::Disconnected)));
    assert_eq!(guest.driver.used_idx(), 2);
    assert_eq!(steps.watched(), watched, "no descriptor is left");
}

#[test]
fn a_queue_is_disabled_and_enabled_while_requests_wait_for_room() {
    let (disk, _folder) = file_disk();
    let mut steps = SteppedIothread::new(2);
    let mut guest = QueueDriver::new(64, false);
    guest.publish_reads(10);
    let source_index = started(&mut steps, guest.setup(&disk, 0));
    steps.enable(source_index, false);
    steps.iterate_until(&guest, 2);
    for _ in 0..20 {
        steps.iterate();
    }
    assert_eq!(guest.driver.used_idx(), 2, "disabled: no more are taken");
    steps.enable(source_index, true);
    // And while it waits again: nothing happens twice.
    steps.iterate();
    steps.enable(source_index, false);
    steps.enable(source_index, true);
    steps.iterate_until(&guest, 10);
    assert_eq!(guest.take_done().len(), 10);
}

/// Replaces the memory map of a queue, with requests in flight at each of several maps.
#[test]
fn a_memory_map_is_kept_as_long_as_its_requests() {
    let mut steps = SteppedIothread::new(2);
    let mut guest = QueueDriver::new(64, false);
    let (disk, faults) = filter(&null_disk(0), &[fault(None, FaultAction::Hang)]);
    let mut maps = vec![Arc::downgrade(&guest.memory.guest_memory())];
    guest.publish_reads(2);
    let source_index = started(&mut steps, guest.setup(&disk, 0));
    for tag in 2..5 {
        let mapped = steps.set_memory(source_index, guest.memory.remap());
        maps.push(Arc::downgrade(&guest.memory.guest_memory()));
        steps.iterate();
        assert_eq!(mapped.try_recv(), Ok(()));
        guest.read(tag, tag);
        guest.driver.publish();
        steps.enable(source_index, true);
        steps.iterate();
    }
    // Under the first of these, nothing is in flight.
    let skipped = steps.set_memory(source_index, guest.memory.remap());
    let unused = Arc::downgrade(&guest.memory.guest_memory());
    steps.finish(&skipped);
    let mapped = steps.set_memory(source_index, guest.memory.remap());
    steps.finish(&mapped);
    assert!(unused.upgrade().is_none(), "nothing is in flight under it");
    let kept = maps.iter().all(|map| map.upgrade().is_some());
    assert!(kept, "a map was let go under its requests");
    assert_eq!(guest.driver.used_idx(), 0);

    faults.release_hanging_and_set_rules(None);
    steps.iterate_until(&guest, 5);
    assert_eq!(guest.take_done().len(), 5);
    let let_go = maps.iter().all(|map| map.upgrade().is_none());
    assert!(let_go, "a map was kept after its last request");
    assert_eq!(steps.stopped(source_index), 5);
}

#[test]
fn settling_waits_for_admitted_requests_and_not_for_later_ones() {
    let mut steps = SteppedIothread::new(128);
    let mut guest = QueueDriver::new(256, false);
    for tag in 0..10 {
        guest.write(tag, tag, 1);
    }
    guest.driver.publish();
    let source_index = started(&mut steps, guest.setup(&null_disk(20_000_000), 0));
    let settled = steps.ask(source_index, QueueCommand::Settle);
    let mut done = Vec::new();
    // There is always something in flight from later.
    let mut tag = 100;
    while settled.try_recv() == Err(TryRecvError::Empty) {
        if guest.room() > 10 {
            guest.write(tag, 0, 2);
            guest.driver.publish();
            tag += 1;
        }
        steps.iterate();
        done.extend(guest.take_done());
    }
    let first = done.iter().filter(|done| done.tag < 100);
    assert_eq!(first.count(), 10);
    assert!(guest.in_flight() > 0, "nothing was in flight from later");
    // With nothing in flight the answer comes at once.
    let idle = QueueDriver::new(16, false);
    let source_index = started(&mut steps, idle.setup(&null_disk(0), 0));
    let settled = steps.ask(source_index, QueueCommand::Settle);
    steps.iterate();
    assert_eq!(settled.try_recv(), Ok(()));
}

/// Those before it no longer wait for a limit, and take their slots' numbers with them: later requests get the same ones.
#[test]
fn settling_lets_no_later_request_pass_a_limit() {
    let (hanging, faults) = filter(&null_disk(0), &[fault(Some(Op::Read), FaultAction::Hang)]);
    let mut limits = ThrottleLimits::default();
    *limits.rate_mut(LimitKind::BpsWrite) = RateLimit::of(1);
    let group = ThrottleGroup::new("group", limits);
    let disk = Node::new_throttle("throttle", &hanging, &group, false, true);
    let mut steps = SteppedIothread::new(128);
    let mut guest = QueueDriver::new(64, false);
    let source_index = started(&mut steps, guest.setup(&disk, 0));
    let write_and_take_done =
        |steps: &mut SteppedIothread, guest: &mut QueueDriver, tags: Range<u64>| {
            tags.for_each(|tag| guest.write(tag, tag, 1));
            guest.submit();
            steps.enable(source_index, true);
            (0..20).for_each(|_| steps.iterate());
            let done = guest.take_done().into_iter().map(|done| done.tag);
            done.collect::<Vec<_>>()
        };
    assert_eq!(
        write_and_take_done(&mut steps, &mut guest, 0..3),
        [0],
        "the free burst"
    );
    let settled = steps.ask(source_index, QueueCommand::Settle);
    assert_eq!(write_and_take_done(&mut steps, &mut guest, 3..6), [1, 2]);
    assert_eq!(settled.try_recv(), Ok(()));

    guest.read(100, 0);
    assert_eq!(write_and_take_done(&mut steps, &mut guest, 6..9), [0; 0]);
    let settled = steps.ask(source_index, QueueCommand::Settle);
    // Their slots are free again while the settling waits for the read.
    assert_eq!(
        write_and_take_done(&mut steps, &mut guest, 9..12),
        [3, 4, 5, 6, 7, 8]
    );
    assert_eq!(write_and_take_done(&mut steps, &mut guest, 12..18), [0; 0]);
    assert_eq!(settled.try_recv(), Err(TryRecvError::Empty));
    faults.release_hanging_and_set_rules(None);
    assert_eq!(write_and_take_done(&mut steps, &mut guest, 18..20), [100]);
    assert_eq!(settled.try_recv(), Ok(()));
    group.set_limits(ThrottleLimits::default());
    assert_eq!(
        write_and_take_done(&mut steps, &mut guest, 20..21).len(),
        12
    );
    steps.stopped(source_index);
}

/// Memory of this process that is pinned, in bytes.
fn pinned() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = status_field(&status, "VmPin");
    1024 * kib.trim_end_matches(" kB").parse::<u64>().unwrap()
}

/// The only test of this program that pins memory.
#[test]
fn fixed_buffers_follow_the_memory_map_under_load() {
    if !test_support::report::has_io_uring() {
        return;
    }
    let (disk, _folder) = disk_by(Aio::IoUring);
    let mut steps = SteppedIothread::new(128);
    let mut guest = QueueDriver::new(64, false);
    let setup = |guest: &QueueDriver| VringSetup {
        fixed_buffers: true,
        ..guest.setup(&disk, 0)
    };
    let regions = guest.memory.guest_memory();
    let bytes: u64 = regions.regions().iter().map(|region| region.len).sum();
    drop(regions);
    assert_eq!(pinned(), 0);
    let source_index = started(&mut steps, setup(&guest));
    assert_eq!(pinned(), bytes);
    // A second queue pins nothing more.
    let other = started(&mut steps, setup(&guest));
    assert_eq!(pinned(), bytes);
    steps.stopped(other);
    assert_eq!(pinned(), bytes);

    for round in 1..=40 {
        // Reads find what the round before has written.
        let write = round % 2 == 1;
        let (kind, byte) = if write { (OUT, round) } else { (IN, 0) };
        for tag in 0..10 {
            guest.ask(tag, kind, tag * 16, byte);
        }
        guest.driver.publish();
        steps.enable(source_index, true);
        steps.iterate();
        assert_eq!(guest.in_flight(), 10);
        // Their map is replaced before their completions are taken.
        let mapped = steps.set_memory(source_index, guest.memory.remap());
        let settled = steps.ask(source_index, QueueCommand::Settle);
        steps.finish(&mapped);
        steps.finish(&settled);
        let mut done = guest.take_done();
        while guest.in_flight() > 0 {
            steps.iterate();
            done.extend(guest.take_done());
        }
        for done in done {
            let expected = if write { round } else { round - 1 };
            assert_eq!((done.status, done.byte), (0, expected), "round {round}");
        }
        assert_eq!(pinned(), bytes, "round {round}");
    }
    steps.stopped(source_index);
    assert_eq!(pinned(), 0);
}
