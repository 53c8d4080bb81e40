//! Commands of the control plane between chosen iterations: the loop is run by hand, so that a message meets
//! exactly the state that it is to be tested with.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Weak};

use block::{Aio, BackendSettings, IoContext, Node};
use engine::AioSettings;
use iothread::event_loop::testing::FakePoller;
use iothread::event_loop::{EventLoop, PollSettings};
use iothread::{Message, QueuesRunner, VringSetup};
use telemetry::queue::RequestKind;
use virtqueue::GuestMemory;
use virtqueue::queue_setup::{QueueCommand, StartError};

use crate::guest::{
    GET_ID, Guest, IN, OUT, REQUEST_BYTES, counted, disk_by, event, file_disk, null_disk,
};

/// A loop that a test runs step by step; its poller never blocks.
pub struct SteppedIothread {
    pub iothread: EventLoop<QueuesRunner>,
    poller: FakePoller,
}

impl SteppedIothread {
    fn new(aio_max_events: u32) -> SteppedIothread {
        SteppedIothread::with(AioSettings {
            max_events: aio_max_events,
            ..AioSettings::default()
        })
    }

    /// An iothread on a fake poller that does not poll, with these settings of Linux AIO.
    pub fn with(aio: AioSettings) -> SteppedIothread {
        let settings = BackendSettings {
            aio,
            ..BackendSettings::default()
        };
        let poller = FakePoller::default();
        let polling = PollSettings {
            max_ns: 0,
            ..PollSettings::default()
        };
        let iothread = EventLoop::new(Box::new(poller.clone()), polling, move |_, remote| {
            let waker = remote.waker();
            let io = IoContext::new(settings, Arc::new(move || waker.wake())).unwrap();
            Ok::<_, std::io::Error>(QueuesRunner::new(remote, io))
        });
        SteppedIothread {
            iothread: iothread.unwrap(),
            poller,
        }
    }

    pub fn send(&self, message: Message) {
        self.iothread.remote().send(message).unwrap();
    }

    fn queue(&self, source_index: u32, command: QueueCommand) {
        self.send(Message::Queue(source_index, command));
    }

    fn enable(&self, source_index: u32, enabled: bool) {
        self.queue(source_index, QueueCommand::Enable(enabled));
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

    fn set_memory(&self, source_index: u32, memory: Arc<GuestMemory>) -> Receiver<()> {
        let (reply, answer) = channel();
        self.queue(source_index, QueueCommand::SetMemory(memory, reply));
        answer
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
    let mut guest = Guest::new(256, false);
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
fn guests_are_signalled_before_the_submit_phase() {
    // What the device answers by itself while it is admitted is published in the same iteration
    // only where the notify phase comes last.
    let mut steps = SteppedIothread::new(128);
    let mut guest = Guest::new(64, false);
    guest.ask(0, GET_ID, 0, 0);
    guest.driver.publish();
    started(&mut steps, guest.setup(&null_disk(0), 0));
    assert_eq!(guest.driver.used_idx(), 0);
    steps.iterate();
    assert_eq!(guest.driver.used_idx(), 1);
    assert_eq!(counted(&guest.call), 1);
}

#[test]
fn requests_count_in_the_iteration_that_completes_them_while_more_are_admitted() {
    let mut steps = SteppedIothread::new(128);
    let mut guest = Guest::new(64, false);
    let setup = guest.setup(&null_disk(0), 0);
    let stats = setup.stats.clone();
    let source_index = started(&mut steps, setup);
    // More are taken in each iteration that gives some back.
    for round in 1..=5 {
        guest.publish_reads(3);
        steps.enable(source_index, true);
        steps.iterate();
        assert_eq!(stats.turns().get(), round);
        guest.take_done();
    }
    steps.iterate();
    guest.take_done();
    let reads = stats.of_kind(RequestKind::Read);
    assert_eq!(reads.latency.total(), 15);
    assert_eq!(reads.bytes.get(), 15 * u64::from(REQUEST_BYTES));
    assert_eq!(stats.in_flight().get(), 0);
}

#[test]
fn a_guest_with_event_idx_is_signalled_for_the_entry_it_waits_for() {
    let mut steps = SteppedIothread::new(128);
    let mut guest = Guest::new(256, true);
    let source_index = started(&mut steps, guest.setup(&null_disk(0), 0));
    let mut done = 0u16;
    // (entries in the batch, which of them is waited for, whether a signal comes)
    for (batch, waited, signal) in [
        (4, 0, 1),
        (4, 0, 1),
        (4, 3, 1),
        (4, 4, 0),
        (50, 49, 1),
        (50, 50, 0),
        (50, 25, 1),
        (1, 0, 1),
        (1, 65_535, 0),
    ] {
        guest.driver.set_used_event(done.wrapping_add(waited));
        guest.publish_reads(batch);
        steps.enable(source_index, true);
        steps.iterate();
        steps.iterate();
        done += u16::try_from(batch).unwrap();
        assert_eq!(guest.driver.used_idx(), done);
        assert_eq!(
            counted(&guest.call),
            signal,
            "{batch} entries, waits for {waited}"
        );
        guest.take_done();
    }
}

#[test]
fn a_queue_stops_while_requests_wait_for_room() {
    let (disk, _folder) = file_disk();
    let mut steps = SteppedIothread::new(2);
    let mut guest = Guest::new(64, false);
    guest.publish_reads(10);
    let source_index = started(&mut steps, guest.setup(&disk, 0));
    let answer = steps.stop(source_index);
    let base = steps.finish(&answer);
    assert_eq!(base, 2, "as many as there was room for");
    assert_eq!(guest.take_done().len(), 2);
    assert_eq!(guest.driver.used_flags(), 0, "the next one is to be kicked");

    let next = started(&mut steps, guest.setup(&disk, base));
    assert_eq!(next, source_index, "its place is free again");
    while guest.driver.used_idx() != 10 {
        steps.iterate();
    }
    assert_eq!(guest.take_done().len(), 8);
}

#[test]
fn a_queue_that_waits_for_others_to_make_room_stops_at_once() {
    let (disk, _folder) = file_disk();
    let mut steps = SteppedIothread::new(1);
    let mut guests = [Guest::new(64, false), Guest::new(64, false)];
    let source_indices = guests.each_mut().map(|guest| {
        guest.read(0, 0);
        guest.driver.publish();
        let setup = guest.setup(&disk, 0);
        steps.start(setup)
    });
    steps.iterate();
    let source_indices =
        source_indices.map(|source_index| source_index.try_recv().unwrap().unwrap());
    let stopped = steps.stop(source_indices[1]);
    steps.iterate();
    assert!(stopped.try_recv().is_ok());
    while guests[0].driver.used_idx() != 1 {
        steps.iterate();
    }
}

#[test]
fn a_long_queue_gets_its_first_answers_before_its_last_request_is_admitted() {
    let mut steps = SteppedIothread::new(1);
    let mut guest = Guest::new(512, false);
    while guest.room() > 0 {
        guest.read(0, 0);
    }
    guest.driver.publish();
    started(&mut steps, guest.setup(&null_disk(0), 0));
    assert_eq!(
        guest.driver.used_idx(),
        64,
        "what one iteration takes of one queue"
    );
    while guest.driver.used_idx() != 170 {
        steps.iterate();
    }
}

/// Guests that each always want more than there is room for, until they got `ANSWERS` together.
fn take_turns(disk: &Arc<Node>, room: u32, queues: usize) {
    const ANSWERS: u64 = 4000;
    let mut steps = SteppedIothread::new(room);
    let mut guests: Vec<_> = (0..queues).map(|_| Guest::new(512, false)).collect();
    let source_indices: Vec<_> = guests
        .iter()
        .map(|guest| started(&mut steps, guest.setup(disk, 0)))
        .collect();
    let mut answered = vec![0; queues];
    while answered.iter().sum::<u64>() < ANSWERS {
        for (index, guest) in guests.iter_mut().enumerate() {
            answered[index] += guest.take_done().len() as u64;
            // Every other block, so that nothing is merged.
            while guest.room() > 0 {
                guest.read(0, guest.room() as u64 * 2);
            }
            guest.driver.publish();
            steps.enable(source_indices[index], true);
        }
        steps.iterate();
    }
    let slowest = answered.iter().min().unwrap();
    assert!(
        *slowest > ANSWERS / queues as u64 / 2,
        "of {ANSWERS} answers with room for {room}: {answered:?}"
    );
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
    let mut guest = Guest::new(64, false);
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
    let mut guest = Guest::new(64, false);
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
    let mut guest = Guest::new(64, false);
    guest.publish_reads(10);
    let source_index = started(&mut steps, guest.setup(&disk, 0));
    // Its kick, and the engine's descriptor, which stays.
    let watched = steps.watched() - 1;
    let stopped = steps.stop(source_index);
    let (reply, kicked) = channel();
    steps.queue(source_index, QueueCommand::SetKick(Some(event()), reply));
    let old = Arc::downgrade(&guest.memory.guest_memory());
    let mapped = steps.set_memory(source_index, guest.memory.remap());
    steps.enable(source_index, false);
    steps.enable(source_index, true);
    steps.queue(source_index, QueueCommand::SetCall(Some(event())));
    steps.queue(source_index, QueueCommand::SetErr(None));
    assert_eq!(steps.finish(&stopped), 2);
    assert_eq!(mapped.try_recv(), Ok(()));
    assert_eq!(guest.take_done().len(), 2);
    assert!(old.upgrade().is_none());

    // To one that is gone, too: there is no answer.
    let (reply, answer) = channel();
    steps.enable(source_index, true);
    steps.queue(source_index, QueueCommand::SetKick(Some(event()), reply));
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
    let mut guest = Guest::new(64, false);
    guest.publish_reads(10);
    let source_index = started(&mut steps, guest.setup(&disk, 0));
    steps.enable(source_index, false);
    while guest.driver.used_idx() != 2 {
        steps.iterate();
    }
    for _ in 0..20 {
        steps.iterate();
    }
    assert_eq!(guest.driver.used_idx(), 2, "disabled: no more are taken");
    steps.enable(source_index, true);
    // And while it waits again: nothing happens twice.
    steps.iterate();
    steps.enable(source_index, false);
    steps.enable(source_index, true);
    while guest.driver.used_idx() != 10 {
        steps.iterate();
    }
    assert_eq!(guest.take_done().len(), 10);
}

/// Replaces the memory map of a queue under a disk with this latency, with requests in flight at
/// each of several maps. False if the disk was faster than we were.
fn replaced_under_requests(latency_ns: u64) -> bool {
    let mut steps = SteppedIothread::new(2);
    let mut guest = Guest::new(64, false);
    let mut maps: Vec<Weak<GuestMemory>> = vec![Arc::downgrade(&guest.memory.guest_memory())];
    guest.read(0, 0);
    guest.read(1, 1);
    guest.driver.publish();
    let source_index = started(&mut steps, guest.setup(&null_disk(latency_ns), 0));
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
    // Under this one, nothing is in flight.
    let skipped = steps.set_memory(source_index, guest.memory.remap());
    let unused = Arc::downgrade(&guest.memory.guest_memory());
    steps.iterate();
    assert_eq!(skipped.try_recv(), Ok(()));
    let mapped = steps.set_memory(source_index, guest.memory.remap());
    steps.iterate();
    assert_eq!(mapped.try_recv(), Ok(()));
    assert!(
        unused.upgrade().is_none(),
        "a map without requests is let go at once"
    );

    let kept = maps.iter().all(|map| map.upgrade().is_some());
    let in_time = guest.driver.used_idx() == 0;
    assert!(kept || !in_time, "a map was let go under its requests");
    while guest.driver.used_idx() != 5 {
        steps.iterate();
    }
    assert_eq!(guest.take_done().len(), 5);
    assert!(
        maps.iter().all(|map| map.upgrade().is_none()),
        "a map was kept after its last request"
    );
    let answer = steps.stop(source_index);
    assert_eq!(steps.finish(&answer), 5);
    in_time
}

#[test]
fn a_memory_map_is_kept_as_long_as_its_requests() {
    // On a busy machine the disk may win; with more and more latency it does not.
    assert!(
        (0..8).any(|attempt| replaced_under_requests(20_000_000 << attempt)),
        "no requests were in flight"
    );
}

#[test]
fn settling_waits_for_admitted_requests_and_not_for_later_ones() {
    let mut steps = SteppedIothread::new(128);
    let mut guest = Guest::new(256, false);
    for tag in 0..10 {
        guest.write(tag, tag, 1);
    }
    guest.driver.publish();
    let source_index = started(&mut steps, guest.setup(&null_disk(20_000_000), 0));
    let (reply, settled) = channel();
    steps.queue(source_index, QueueCommand::Settle(reply));
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
    let mut first: Vec<u64> = done
        .iter()
        .map(|done| done.tag)
        .filter(|tag| *tag < 100)
        .collect();
    first.sort_unstable();
    assert_eq!(first, Vec::from_iter(0..10));
    assert!(guest.in_flight() > 0, "nothing was in flight from later");
    // With nothing in flight the answer comes at once.
    let idle = Guest::new(16, false);
    let source_index = started(&mut steps, idle.setup(&null_disk(0), 0));
    let (reply, settled) = channel();
    steps.queue(source_index, QueueCommand::Settle(reply));
    steps.iterate();
    assert_eq!(settled.try_recv(), Ok(()));
}

/// Memory of this process that is pinned, in bytes.
fn pinned() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let kib: u64 = line.unwrap().trim_end_matches("kB").trim().parse().unwrap();
    kib * 1024
}

/// The only test of this program that pins memory.
#[test]
fn fixed_buffers_follow_the_memory_map_under_load() {
    if !test_support::report::has_io_uring() {
        return;
    }
    let (disk, _folder) = disk_by(Aio::IoUring);
    let mut steps = SteppedIothread::new(128);
    let mut guest = Guest::new(64, false);
    let setup = |guest: &Guest| VringSetup {
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
    let stopped = steps.stop(other);
    steps.finish(&stopped);
    assert_eq!(pinned(), bytes);

    for round in 0..40 {
        let byte = u8::try_from(round + 1).unwrap();
        let write = round % 2 == 0;
        for tag in 0..10 {
            let byte = if write { byte } else { 0 };
            let kind = if write { OUT } else { IN };
            // Reads find what the round before has written.
            guest.ask(tag, kind, tag * 16, byte);
        }
        guest.driver.publish();
        steps.enable(source_index, true);
        steps.iterate();
        assert_eq!(guest.in_flight(), 10);
        // Their map is replaced before their completions are taken.
        let mapped = steps.set_memory(source_index, guest.memory.remap());
        let (reply, settled) = channel();
        steps.queue(source_index, QueueCommand::Settle(reply));
        steps.finish(&mapped);
        steps.finish(&settled);
        let mut done = guest.take_done();
        while guest.in_flight() > 0 {
            steps.iterate();
            done.extend(guest.take_done());
        }
        for done in done {
            let expected = if write { byte } else { byte - 1 };
            assert_eq!((done.status, done.byte), (0, expected), "round {round}");
        }
        assert_eq!(pinned(), bytes, "round {round}");
    }
    let stopped = steps.stop(source_index);
    steps.finish(&stopped);
    assert_eq!(pinned(), 0);
}
