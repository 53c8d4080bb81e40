//! Settings that change while an iothread works hold for the very next submission, and no request is lost.

use block::Aio;
use engine::FIRST_BATCH;
use iothread::Message;

use crate::queue_driver::{CARRIERS, Done, QueueDriver, disk_by};
use crate::stepped::{SteppedIothread, started};

/// Requests that are asked at once.
const DEPTH: u64 = 60;

/// How many calls hand over so many requests to a disk that has none: none is larger than what the disk has
/// already, or than the first few.
fn calls_for(requests: u64, batch: u32) -> u64 {
    let (mut in_flight, mut calls) = (0, 0);
    while in_flight < requests {
        in_flight += u64::from(batch).min(in_flight.max(FIRST_BATCH.into()));
        calls += 1;
    }
    calls
}

/// Calls to the kernel so far that submitted something, and the most requests of the next one.
fn calls_and_limit(steps: &mut SteppedIothread, aio: Aio) -> (u64, u32) {
    let io = steps.iothread.runner().io_context();
    match aio {
        Aio::IoUring => io.ring_stats().map(|it| (it.submit_calls, it.max_batch)),
        _ => io.aio_stats().map(|it| (it.submit_calls, it.max_batch)),
    }
    .unwrap()
}

/// The engines of this machine.
fn carriers() -> impl Iterator<Item = Aio> {
    let is_there = |aio: &Aio| *aio != Aio::IoUring || test_support::report::has_io_uring();
    CARRIERS.into_iter().filter(is_there)
}

/// Asks for as much as possible, far apart from each other and from what was asked before.
fn ask(guest: &mut QueueDriver, write: bool, byte: u8) {
    for tag in 0..DEPTH {
        if write {
            guest.write(tag, tag * 16, byte);
        } else {
            guest.read(tag, tag * 16);
        }
    }
    guest.driver.publish();
}

/// Each request is answered once, and well.
fn answered(steps: &mut SteppedIothread, guest: &mut QueueDriver, byte: u8) {
    let mut done = Vec::new();
    while guest.in_flight() > 0 {
        steps.iterate();
        done.extend(guest.take_done());
    }
    done.sort_unstable_by_key(|done| done.tag);
    let good = (0..DEPTH).map(|tag| Done {
        tag,
        status: 0,
        byte,
    });
    assert_eq!(done, Vec::from_iter(good));
}

#[test]
fn a_batch_limit_holds_for_the_next_submission() {
    for aio in carriers() {
        let (disk, _folder) = disk_by(aio);
        let mut steps = SteppedIothread::new(1024);
        let mut guest = QueueDriver::new(256, false);
        ask(&mut guest, true, 1);
        let source_index = started(&mut steps, guest.setup(&disk, 0));
        answered(&mut steps, &mut guest, 1);
        for (round, batch) in [5, 1, 60, 7, 20].into_iter().enumerate() {
            let byte = u8::try_from(round).unwrap() + 1;
            for write in [true, false] {
                let (before, _) = calls_and_limit(&mut steps, aio);
                ask(&mut guest, write, byte);
                steps.send(Message::SetAioMaxBatch(batch));
                steps.enable(source_index, true);
                // The one iteration that reads the message, and takes and submits the requests.
                steps.iterate();
                let (after, _) = calls_and_limit(&mut steps, aio);
                assert_eq!(after - before, calls_for(DEPTH, batch), "{aio:?} {batch}");
                answered(&mut steps, &mut guest, byte);
            }
        }
    }
}

#[test]
fn unused_engines_are_recreated_with_new_limits() {
    for aio in carriers() {
        let (disk, _folder) = disk_by(aio);
        let mut steps = SteppedIothread::new(2);
        let mut guest = QueueDriver::new(256, false);
        ask(&mut guest, true, 1);
        let source_index = started(&mut steps, guest.setup(&disk, 0));
        answered(&mut steps, &mut guest, 1);
        steps.send(Message::SetAioMaxEvents(16));
        let watched = steps.watched();
        // In use, also for another queue.
        let other = QueueDriver::new(16, false);
        let second = started(&mut steps, other.setup(&disk, 0));
        assert_eq!(calls_and_limit(&mut steps, aio).1, 2, "{aio:?}");
        for source_index in [source_index, second] {
            steps.stopped(source_index);
        }
        ask(&mut guest, false, 0);
        let base = u32::try_from(DEPTH).unwrap();
        let source_index = started(&mut steps, guest.setup(&disk, base));
        assert_eq!(calls_and_limit(&mut steps, aio).1, 16, "{aio:?}");
        assert_eq!(steps.watched(), watched, "{aio:?}: none is left over");
        answered(&mut steps, &mut guest, 1);
        steps.stopped(source_index);
    }
}
