//! Batches, room in the sink, and queues that the guest broke.

use telemetry::queue::AdmissionEnd;
use virtio_blk::{DeviceOptions, RequestError};
use virtqueue::RingError;
use virtqueue::testing::{Buffer, TestMemory};

use crate::harness::{FLUSH, IN, OK, OUT, Rig, header};

fn rig(request_merging: bool) -> Rig {
    Rig::new(DeviceOptions {
        request_merging,
        ..DeviceOptions::default()
    })
}

#[test]
fn a_disk_without_room_stalls_the_queue_and_loses_no_request() {
    for request_merging in [true, false] {
        for room in 1..12 {
            let mut rig = rig(request_merging);
            let mut waiting = std::collections::HashMap::new();
            for index in 0..40u64 {
                // Adjacent, apart, in both directions, with flushes between.
                let asked = match index % 5 {
                    0 => rig.ask(FLUSH, 0, &[], 0),
                    1 | 2 => rig.write(index, 1, 1),
                    _ => rig.read(index, 1),
                };
                waiting.insert(asked.head, asked);
            }
            rig.sink.room = 0;
            assert_eq!(rig.admit(64), Ok(AdmissionEnd::Stalled));
            assert_eq!(rig.queue.in_flight(), 0, "nothing was taken without room");
            let mut rounds = 0;
            while !waiting.is_empty() {
                rig.sink.room = room;
                let admission = rig.admit(64).unwrap();
                assert_ne!(admission, AdmissionEnd::Budget);
                assert!(!rig.sink.submitted.is_empty(), "there was room");
                rig.complete_all();
                for (head, _) in rig.used() {
                    let asked = waiting.remove(&head).expect("answered once");
                    assert_eq!(rig.status(&asked), OK);
                }
                rounds += 1;
            }
            assert!(rounds <= 40);
            rig.sink.room = 1;
            assert_eq!(rig.admit(64), Ok(AdmissionEnd::Drained));
            assert_eq!(rig.queue.in_flight(), 0);
        }
    }
}

/// Requests of one memory map are distinguished from those of the next, also when the clock stands still or
/// runs backwards.
#[test]
fn generations_are_distinguished_whatever_the_clock_does() {
    let mut rig = Rig::new(DeviceOptions::default());
    let mut begins = Vec::new();
    for times in [[5000, 4000], [4000, 4000], [0, 0]] {
        begins.push(rig.queue.begin_generation());
        for now in times {
            rig.now = now;
            rig.read(3, 1);
            rig.admit_all();
        }
    }
    let submitted = std::mem::take(&mut rig.sink.submitted);
    assert_eq!(submitted.len(), 6);
    let generation = |admitted| begins.iter().filter(|begin| admitted >= **begin).count();
    for (request, expected) in submitted.iter().zip([1, 1, 2, 2, 3, 3]) {
        rig.complete(request, Ok(()));
        let old = rig.queue.pop_finished_of_older_generation();
        assert_eq!(
            old.is_some(),
            expected < 3,
            "those of the current one are not reported"
        );
        if let Some((admitted, requests)) = old {
            assert_eq!((generation(admitted), requests), (expected, 1));
        }
    }
}

#[test]
fn a_request_without_a_whole_header_or_a_status_byte_breaks_the_queue() {
    let headless = (0..16).map(|bytes| (IN, bytes, RequestError::ShortHeader(bytes.into())));
    let mute = [IN, OUT, FLUSH, 99].map(|kind| (kind, 16 + 512, RequestError::NoStatus));
    for (kind, readable, error) in headless.chain(mute) {
        let mut rig = rig(true);
        let good = [rig.write(0, 1, 1), rig.write(1, 1, 2)];
        let request = [&header(kind, 0)[..], &[0; 512]].concat();
        let start = rig.memory.alloc_bytes(&request);
        let answer = rig.memory.alloc(513, 512);
        let mut buffers = Vec::new();
        if readable > 0 {
            buffers.push(Buffer::readable(start, readable));
        }
        if error != RequestError::NoStatus {
            buffers.push(Buffer::writable(answer, 513));
        }
        rig.driver.add(&buffers);
        rig.write(9, 1, 3);
        // What came before is submitted and completed.
        assert_eq!(rig.admit(64), Err(error.into()));
        assert_eq!(rig.sink.submitted.len(), 1, "the good ones, merged");
        rig.complete_all();
        assert_eq!(rig.used().len(), 2);
        assert_eq!(rig.queue.in_flight(), 0);
        assert_eq!(good.map(|asked| rig.status(&asked)), [OK; 2]);
    }
}

#[test]
fn a_broken_ring_breaks_the_queue() {
    let mut rig = rig(true);
    rig.write(0, 1, 1);
    rig.write(1, 1, 2);
    rig.driver.publish();
    rig.driver.make_available(300);
    let error = RingError::HeadOutOfRange {
        head: 300,
        size: 128,
    };
    assert_eq!(rig.admit(0), Ok(AdmissionEnd::Budget));
    // `publish` in `admit_from_ring` would take the raw entry back.
    rig.driver.make_available(0);
    let memory = rig.memory.guest_memory();
    let admission =
        rig.queue
            .admit_from_ring(&mut rig.ring, &memory, &mut rig.chain, &mut rig.sink, 64);
    assert_eq!(admission, Err(error.into()));
    assert_eq!(rig.sink.submitted.len(), 1);
}

#[test]
fn more_requests_in_flight_than_the_ring_has_entries_break_the_queue() {
    let memory = TestMemory::new(1 << 20);
    let mut rig = Rig::with(DeviceOptions::default(), memory, 4);
    let asked = rig.read(0, 1);
    rig.driver.publish();
    for _ in 0..3 {
        rig.driver.make_available(asked.head);
    }
    assert_eq!(rig.admit(64), Ok(AdmissionEnd::Drained));
    assert_eq!(rig.queue.in_flight(), 4);
    rig.driver.make_available(asked.head);
    assert_eq!(rig.admit(64), Err(RequestError::TooMany(4).into()));
    assert_eq!(rig.queue.in_flight(), 4);
    rig.complete_all();
    assert_eq!(rig.queue.in_flight(), 0);
}
