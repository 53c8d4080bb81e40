//! A queue that always has requests: the other queues of its iothread get their turns and signals in bounded time.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use block::Node;
use iothread::event_loop::poller::Event;
use iothread::event_loop::{Epoll, EventLoop, Interest, PollSettings, Poller};
use iothread::{Message, QueuesRunner};
use test_support::deadline::Deadline;

use crate::queue_driver::{
    CARRIERS, QueueDriver, aio_room, disk_by, filter, null_disk, queues_loop,
};

/// More iterations than an empty queue stays among those that are looked at.
const LONG: usize = 300;

/// The kernel's epoll without waits, which no event would end.
struct Looks(Epoll);

impl Poller for Looks {
    fn add(&mut self, fd: BorrowedFd<'_>, interest: Interest, cookie: u64) -> io::Result<()> {
        self.0.add(fd, interest, cookie)
    }
    fn modify(&mut self, fd: BorrowedFd<'_>, interest: Interest, cookie: u64) -> io::Result<()> {
        self.0.modify(fd, interest, cookie)
    }
    fn delete(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.0.delete(fd)
    }
    fn wait(&mut self, events: &mut Vec<Event>, _: Option<u64>) -> io::Result<()> {
        self.0.wait(events, Some(0))
    }
    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }
}

/// A loop run by hand.
struct Loop(EventLoop<QueuesRunner>);

impl Loop {
    /// A loop whose engines take so many requests at a time.
    fn new(aio_max_events: u32) -> Loop {
        let poller = Looks(Epoll::new().unwrap());
        Loop(queues_loop(
            poller,
            PollSettings::default(),
            aio_room(aio_max_events),
        ))
    }

    fn start(&mut self, guest: &QueueDriver, node: &Arc<Node>) {
        let (reply, answer) = channel();
        let setup = Box::new(guest.setup(node, 0));
        let remote = self.0.remote();
        remote.send(Message::Start(setup, reply)).unwrap();
        self.iterate();
        answer.recv().unwrap().unwrap();
    }

    fn iterate(&mut self) {
        assert!(self.0.iterate().unwrap());
    }

    /// An iteration with a guest that always asks for all that it can; how many answers it got.
    fn iterate_beside(&mut self, endless: &mut QueueDriver) -> usize {
        let answered = endless.take_done().len();
        endless.submit_all();
        self.iterate();
        answered
    }
}

fn asks_for_kicks(guest: &QueueDriver) -> bool {
    guest.driver.used_flags() == 0
}

#[test]
fn an_idle_queue_costs_busy_ones_nothing_and_is_served_when_kicked() {
    let disk = null_disk(0);
    let mut looped = Loop::new(128);
    let mut endless = QueueDriver::new(512, false);
    let mut others: Vec<_> = (0..50).map(|_| QueueDriver::new(16, false)).collect();
    endless.submit_all();
    looped.start(&endless, &disk);
    for guest in &mut others {
        guest.read(0, 0);
        guest.submit();
        looped.iterate_beside(&mut endless);
        looped.start(guest, &disk);
    }
    for round in 0..3 {
        for _ in 0..LONG {
            looped.iterate_beside(&mut endless);
            assert!(!asks_for_kicks(&endless), "it never rests");
        }
        for guest in &mut others {
            assert_eq!(guest.take_done().len(), 1);
            assert!(asks_for_kicks(guest), "it is not polled any more");
            guest.read(round, 0);
            guest.submit();
        }
        // A look at the descriptors comes every 16 iterations.
        for _ in 0..20 {
            looped.iterate_beside(&mut endless);
        }
        for guest in &others {
            assert_eq!(u64::from(guest.driver.used_idx()), round + 2);
            assert!(!asks_for_kicks(guest), "it was active just now");
        }
    }
}

/// An idle queue rests when it was found empty often enough in a row.
#[test]
fn a_queue_with_occasional_requests_stays_active() {
    let disk = null_disk(0);
    let mut looped = Loop::new(128);
    let (mut endless, mut guest) = (QueueDriver::new(512, false), QueueDriver::new(16, false));
    looped.start(&endless, &disk);
    looped.iterate_beside(&mut endless);
    looped.start(&guest, &disk);
    for tag in 0..4 {
        for _ in 0..100 {
            looped.iterate_beside(&mut endless);
            assert!(!asks_for_kicks(&guest), "before request {tag}");
        }
        guest.read(tag, 0);
        guest.submit();
        looped.iterate_beside(&mut endless);
        looped.iterate_beside(&mut endless);
        assert_eq!(guest.take_done().len(), 1);
    }
}

#[test]
fn beside_requests_without_end_an_active_queue_waits_two_iterations() {
    let disk = null_disk(0);
    let mut looped = Loop::new(128);
    let mut endless: Vec<_> = (0..4).map(|_| QueueDriver::new(1024, false)).collect();
    for guest in &endless {
        looped.start(guest, &disk);
    }
    let mut guest = QueueDriver::new(64, false);
    looped.start(&guest, &disk);
    for tag in 0..200 {
        guest.read(tag, tag);
        guest.submit();
        // Once to look at descriptors: nothing was busy before the first round.
        let iterations = if tag == 0 { 20 } else { 2 };
        for _ in 0..iterations {
            for endless in &mut endless {
                endless.take_done();
                endless.submit_all();
            }
            looped.iterate();
        }
        assert_eq!(guest.take_done().len(), 1, "request {tag}");
    }
}

/// One queue asks for all that its ring holds, another one for one request after the other, of disks on the same engine. In
/// the time of one request the greedy one gets a bounded number of answers, but it gets some.
#[track_caller]
fn shares_room(greedy: &Arc<Node>, patient: &Arc<Node>, what: &str) {
    const REQUESTS: u64 = 400;
    for room in [1, 2, 4] {
        let mut looped = Loop::new(room);
        let (mut endless, mut guest) = (QueueDriver::new(256, false), QueueDriver::new(64, false));
        looped.start(&endless, greedy);
        looped.start(&guest, patient);
        let (deadline, mut total) = (Deadline::default(), 0);
        for tag in 0..REQUESTS {
            guest.read(tag, tag);
            guest.submit();
            let mut answered = 0;
            while guest.take_done().is_empty() {
                answered += looped.iterate_beside(&mut endless);
                let starved = format!("{what}, room for {room}: request {tag} is starved");
                // What is in the kernel, what is behind it when room is given, and what the loop takes
                // until it looks at its descriptors.
                let most = 32 * room as usize;
                assert!(answered <= most, "{starved}");
                deadline.check(&starved);
            }
            total += answered as u64;
        }
        assert!(total >= REQUESTS / 2, "{what}, room for {room}: {total}");
    }
}

/// Filters are tasks, whose I/O does not come straight from a ring.
#[test]
fn with_little_room_in_the_kernel_queues_and_tasks_share_it() {
    for aio in CARRIERS {
        let (disk, _folder) = disk_by(aio);
        let (filter, _) = filter(&disk, &[]);
        shares_room(&disk, &disk, &format!("{aio:?}"));
        shares_room(&disk, &filter, &format!("filter beside {aio:?}"));
        shares_room(&filter, &disk, &format!("{aio:?} beside filter"));
    }
}

#[test]
fn many_completions_are_dispatched_in_bounded_parts() {
    let latencies_ms = (0..).map(|doublings| 300 << doublings);
    let most = latencies_ms
        .map(Duration::from_millis)
        .find_map(most_answers_between_notifications);
    assert_eq!(most, Some(512));
}

/// The most requests that are answered between two notifications, after more than a thousand became due at once. `None`: the first was
/// due before all were admitted.
fn most_answers_between_notifications(latency: Duration) -> Option<usize> {
    let disk = null_disk(u64::try_from(latency.as_nanos()).unwrap());
    let mut looped = Loop::new(128);
    let mut guests: Vec<_> = (0..3).map(|_| QueueDriver::new(1024, false)).collect();
    for guest in &mut guests {
        guest.submit_all();
        looped.start(guest, &disk);
    }
    let asked = guests.iter().map(QueueDriver::in_flight).sum();
    assert!(asked > 1_000);
    // Admit all, then let all become due between two iterations: what is due within one has another notification in it.
    (0..LONG).for_each(|_| looped.iterate());
    std::thread::sleep(latency);
    let mut take_done = || guests.iter_mut().map(|guest| guest.take_done().len()).sum();
    let (mut answered, mut most) = (take_done(), 0);
    let is_in_time = answered == 0;
    while answered < asked {
        looped.iterate();
        let now: usize = take_done();
        most = most.max(now);
        answered += now;
    }
    is_in_time.then_some(most)
}
