//! Tests of in-flight records that are invalid, hold random bytes, or are cleared.

use std::sync::atomic::Ordering;

use super::*;

/// A word of the record: its four 16-bit fields.
fn set(outside: &Outside, word: usize, fields: [u16; 4]) {
    let bits = (0..).step_by(16).zip(fields);
    let value = bits.fold(0, |word, (bit, field)| word | u64::from(field) << bit);
    outside.record[word].store(value, Ordering::Relaxed);
}

#[track_caller]
fn refused(outside: &Outside, base: u16) -> InflightError {
    match outside.device(base).map(|_| ()) {
        Err(RingError::Inflight(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_record_that_contradicts_the_queue_is_refused() {
    for features in [SPLIT, PACKED] {
        let outside = Outside::new(features, 8, 0x8000);
        let (found, expected) = (9, 10);
        for (version_and_entries, error) in [
            ([2, 10, 0, 0], InflightError::Version { version: 2 }),
            ([1, 9, 0, 0], InflightError::Entries { found, expected }),
        ] {
            set(&outside, 1, version_and_entries);
            assert_eq!(refused(&outside, 0x8000), error);
        }
        let mut outside = Outside::new(features, 8, 0x8000);
        outside.entries = 7;
        let (entries, size) = (7, 8);
        let error = InflightError::TooFew { entries, size };
        assert_eq!(refused(&outside, 0x8000), error);
    }
}

#[test]
fn a_split_record_of_other_rings_is_refused() {
    let outside = Outside::new(SPLIT, 8, 3);
    set(&outside, 1, [1, 10, 0, 0xfff0]);
    let error = InflightError::UsedIndex {
        used_idx: 3,
        recorded: 0xfff0,
        size: 8,
    };
    assert_eq!(refused(&outside, 3), error);
    // The last batch begins at an entry that no head has.
    set(&outside, 1, [1, 10, 9, 2]);
    assert_eq!(
        refused(&outside, 3),
        InflightError::OutOfRange { index: 9, size: 8 }
    );
}

#[test]
fn a_packed_record_with_chains_that_cannot_be_is_refused() {
    let record = || {
        let outside = Outside::new(PACKED, 4, 0x8000);
        // Nothing is free, and the queue is at its beginning.
        set(&outside, 1, [1, 6, 6, 6]);
        set(&outside, 2, [0, 0, 0x0101, 0]);
        outside
    };
    let outside = record();
    set(&outside, 2, [4, 0, 0x0101, 0]);
    let beyond = InflightError::OutOfRange { index: 4, size: 4 };
    assert_eq!(refused(&outside, 0x8000), beyond);
    // Entries are four words behind a header of four.
    let entry = |entry: u16| 4 + 4 * usize::from(entry);
    for (next, descriptors) in [(1, 0), (1, 5), (0, 2)] {
        let outside = record();
        set(&outside, entry(0), [1, next, 0, descriptors]);
        let error = InflightError::Chain {
            entry: 0,
            descriptors,
        };
        assert_eq!(refused(&outside, 0x8000), error, "{next} {descriptors}");
    }
    let outside = record();
    set(&outside, entry(0), [1, 1, 1, 2]);
    set(&outside, entry(1), [1, 6, 1, 1]);
    let error = InflightError::Chain {
        entry: 1,
        descriptors: 1,
    };
    assert_eq!(refused(&outside, 0x8000), error, "two have one entry");
}

#[test]
fn a_random_record_is_refused_or_recovered_without_harm() {
    let mut started = [0; 2];
    for seed in 0..3000 {
        let mut random = Random(seed);
        let (features, size, base) = match seed % 2 {
            0 => (SPLIT, 8, 8),
            _ => (PACKED, 5, 0x8000),
        };
        let mut outside = Outside::new(features, size, base);
        for _ in 0..6 {
            outside.add_request(random.below(6));
        }
        // Small numbers lead further than large ones.
        for word in 0..outside.record.len() {
            let mut field = || u16::try_from(random.below(12)).unwrap();
            set(&outside, word, [field(), field(), field(), field()]);
        }
        let entries = outside.entries;
        let mut field = || u16::try_from(random.below(8)).unwrap();
        set(&outside, 1, [1, entries, field(), field()]);
        if features.packed {
            set(&outside, 2, [field() % 5, field() % 5, field(), field()]);
        }
        let Ok(mut device) = outside.device(base) else {
            continue;
        };
        started[usize::from(features.packed)] += 1;
        let memory = outside.memory.guest_memory();
        for _ in 0..40 {
            match device.queue.pop(&memory, &mut device.chain) {
                Ok(Some(id)) => device.held.push((id, 0)),
                Ok(None) => device.push(random.below(64)),
                Err(_) => break,
            }
            if random.below(4) == 0 {
                device.queue.publish();
            }
        }
        outside.memory.check_canaries();
    }
    assert!(
        started.iter().all(|count| *count > 20),
        "nearly all are refused at once: {started:?} are not"
    );
}

#[test]
fn a_queue_with_a_cleared_record_starts_at_the_front_ends_base() {
    for (features, base, other) in [(SPLIT, 100, 7), (PACKED, 0x8003, 0x0002)] {
        let mut outside = Outside::new(features, 8, base);
        let mut device = outside.device(base).unwrap();
        outside.add_request(2);
        device.pop(&outside);
        outside.region().clear_if_idle();
        let mut device = outside.device(other).unwrap();
        assert!(device.queue.has_recovered_chains(), "it was in flight");
        finish(&mut outside, &mut device, &mut Random(1));
        // With nothing in flight.
        outside.region().clear_if_idle();
        let device = outside.device(other).unwrap();
        assert_eq!(device.queue.next_avail_counting_recovered(), other);
    }
}

#[test]
fn a_finishing_queue_pops_recovered_chains_only() {
    for (features, base) in [(SPLIT, 9), (PACKED, 0x8003)] {
        let mut outside = Outside::new(features, 8, base);
        let mut device = outside.device(base).unwrap();
        outside.add_request(1);
        outside.add_request(4);
        device.pop(&outside);
        drop(device);
        let mut device = outside.device(base).unwrap();
        let before = device.queue.next_avail_counting_recovered();
        device.queue.pop_only_recovered_from_now_on();
        assert!(device.queue.has_available());
        assert_eq!(device.pop(&outside), Some(0));
        assert_ne!(
            device.queue.next_avail_counting_recovered(),
            before,
            "progress shows"
        );
        assert_eq!(device.pop(&outside), None);
        assert!(!device.queue.has_available());
    }
}
