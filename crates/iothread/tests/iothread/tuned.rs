//! Settings that change while an iothread works hold for the very next submission, and no request is lost.

use std::sync::mpsc::{Receiver, channel};

use block::Aio;
use engine::{AioSettings, FIRST_BATCH, PoolError};
use iothread::Message;
use virtqueue::queue_setup::QueueCommand;

use crate::guest::{CARRIERS, Guest, disk_by};
use crate::stepped::{SteppedIothread, started};

/// Requests that are asked at once.
const DEPTH: u64 = 60;

/// A loop with room for so many requests.
fn steps(max_events: u32) -> SteppedIothread {
    SteppedIothread::with(AioSettings {
        max_events,
        ..AioSettings::default()
    })
}

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

/// Calls to the kernel so far that submitted something.
fn calls(steps: &mut SteppedIothread, aio: Aio) -> u64 {
    let io = steps.iothread.runner().io_context();
    match aio {
        Aio::IoUring => io.ring_stats().unwrap().submit_calls,
        _ => io.aio_stats().unwrap().submit_calls,
    }
}

/// The most requests of the next call.
fn limit(steps: &mut SteppedIothread, aio: Aio) -> u32 {
    let io = steps.iothread.runner().io_context();
    match aio {
        Aio::IoUring => io.ring_stats().unwrap().max_batch,
        _ => io.aio_stats().unwrap().max_batch,
    }
}

/// Asks for as much as possible, far apart from each other and from what was asked before.
fn ask(guest: &mut Guest, write: bool, byte: u8) {
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
fn answered(steps: &mut SteppedIothread, guest: &mut Guest, byte: u8) {
    let mut done = Vec::new();
    while guest.in_flight() > 0 {
        steps.iterate();
        done.extend(guest.take_done());
    }
    done.sort_unstable_by_key(|done| done.tag);
    let tags: Vec<u64> = done.iter().map(|done| done.tag).collect();
    assert_eq!(tags, Vec::from_iter(0..DEPTH));
    assert!(
        done.iter()
            .all(|done| (done.status, done.byte) == (0, byte)),
        "{done:?}"
    );
}

#[test]
fn a_batch_limit_holds_for_the_next_submission() {
    for aio in CARRIERS {
        if aio == Aio::IoUring && !test_support::report::has_io_uring() {
            continue;
        }
        let (disk, _folder) = disk_by(aio);
        let mut steps = steps(1024);
        let mut guest = Guest::new(256, false);
        ask(&mut guest, true, 1);
        let source_index = started(&mut steps, guest.setup(&disk, 0));
        answered(&mut steps, &mut guest, 1);
        for (round, batch) in [5, 1, 60, 7, 20].into_iter().enumerate() {
            let byte = u8::try_from(round).unwrap() + 1;
            for write in [true, false] {
                let before = calls(&mut steps, aio);
                ask(&mut guest, write, byte);
                steps.send(Message::SetAioMaxBatch(batch));
                steps.send(Message::Queue(source_index, QueueCommand::Enable(true)));
                // The one iteration that reads the message, and takes and submits the requests.
                steps.iterate();
                let expected = calls_for(DEPTH, batch);
                assert_eq!(calls(&mut steps, aio) - before, expected, "{aio:?} {batch}");
                answered(&mut steps, &mut guest, byte);
            }
        }
    }
}

#[test]
fn unused_engines_are_recreated_with_new_limits() {
    for aio in CARRIERS {
        if aio == Aio::IoUring && !test_support::report::has_io_uring() {
            continue;
        }
        let (disk, _folder) = disk_by(aio);
        let mut steps = steps(2);
        let mut guest = Guest::new(256, false);
        ask(&mut guest, true, 1);
        let source_index = started(&mut steps, guest.setup(&disk, 0));
        answered(&mut steps, &mut guest, 1);
        steps.send(Message::SetAioMaxEvents(16));
        let watched = steps.watched();
        // In use, also for another queue.
        let other = Guest::new(16, false);
        let second = started(&mut steps, other.setup(&disk, 0));
        assert_eq!(limit(&mut steps, aio), 2, "{aio:?}");
        for source_index in [source_index, second] {
            let base = steps.stop(source_index);
            steps.finish(&base);
        }
        ask(&mut guest, false, 0);
        let base = u32::try_from(DEPTH).unwrap();
        let source_index = started(&mut steps, guest.setup(&disk, base));
        assert_eq!(limit(&mut steps, aio), 16, "{aio:?}");
        assert_eq!(steps.watched(), watched, "{aio:?}: none is left over");
        answered(&mut steps, &mut guest, 1);
        let base = steps.stop(source_index);
        steps.finish(&base);
    }
}

fn set_thread_pool(steps: &SteppedIothread, min: u32, max: u32) -> Receiver<Result<(), PoolError>> {
    let (reply, answer) = channel();
    steps.send(Message::SetThreadPool(min, max, reply));
    answer
}

#[test]
fn worker_limits_change_under_load() {
    let (disk, _folder) = disk_by(Aio::Threads);
    let mut steps = steps(1024);
    let mut guest = Guest::new(256, false);
    ask(&mut guest, true, 1);
    let source_index = started(&mut steps, guest.setup(&disk, 0));
    for (round, (min, max)) in [(0, 1), (3, 3), (0, 2), (4, 8)].into_iter().enumerate() {
        let answer = set_thread_pool(&steps, min, max);
        assert_eq!(steps.finish(&answer), Ok(()));
        let byte = u8::try_from(round).unwrap() + 1;
        answered(&mut steps, &mut guest, byte);
        ask(&mut guest, true, byte + 1);
        steps.send(Message::Queue(source_index, QueueCommand::Enable(true)));
        steps.iterate();
    }
    let answer = set_thread_pool(&steps, 3, 2);
    let refused = PoolError::MinOverMax {
        min_threads: 3,
        max_threads: 2,
    };
    assert_eq!(steps.finish(&answer), Err(refused));
    answered(&mut steps, &mut guest, 5);
}
