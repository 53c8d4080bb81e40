//! Crash tests of the return of popped chains when a queue stops.

use super::*;

/// A device that has popped four requests, and pushed and published the first of them.
fn taken(outside: &mut Outside, base: u16) -> Device {
    let mut device = outside.device(base).unwrap();
    for request in 0..4 {
        // Packed: of one, two and three descriptors.
        outside.add_request(if outside.features().packed {
            request % 3
        } else {
            0
        });
        device.pop(outside);
    }
    device.push(0);
    device.queue.publish();
    outside.take_used_entries();
    device
}

/// In an order that is not that of the ring.
fn held(device: &Device) -> Vec<ChainId> {
    let mut chains: Vec<_> = device.held.iter().map(|(id, _)| *id).collect();
    chains.sort_unstable_by_key(|chain| chain.id);
    chains
}

/// A split queue of four entries, and packed ones of seven, in either lap and across its end; and where each stands once the first request
/// is done.
const FORMS: [(RingFeatures, u16, u16, u16); 4] = [
    (SPLIT, 4, 0, 1),
    (PACKED, 7, 0x8000, 0x8001),
    (PACKED, 7, 0x0005, 0x0006),
    (PACKED, 7, 0x8006, 0x0000),
];

#[test]
fn returned_chains_are_popped_again_wherever_the_device_is_killed() {
    for (features, size, begin, stands) in FORMS {
        for stores in 0.. {
            let mut outside = Outside::new(features, size, begin);
            let mut device = taken(&mut outside, begin);
            let chains = held(&device);
            let ended = ended_after_stores(stores, || {
                assert!(device.queue.try_unpop_chains_and_mark_dirty(&chains));
                // The front-end hears of it: the record has done its work.
                outside.region().clear_if_idle();
                device.queue.base()
            });
            if let Some(base) = ended {
                assert_eq!((base & 0xffff) as u16, stands);
            }
            let mut next = outside.device(stands).unwrap();
            while next.pop(&outside).is_some() {}
            let again: Vec<u64> = next.held.iter().map(|(_, number)| *number).collect();
            assert_eq!(again, [1, 2, 3]);
            finish(&mut outside, &mut next, &mut Random(1));
            if ended.is_some() {
                assert!(stores > 3, "not much was stored: {stores}");
                break;
            }
        }
    }
}

#[test]
fn only_chains_that_were_popped_last_are_returned() {
    for (features, size, begin, stands) in FORMS {
        let mut outside = Outside::new(features, size, begin);
        let mut device = taken(&mut outside, begin);
        let chains = held(&device);
        for others in [&chains[..2], &[chains[0]; 3], &chains.repeat(9)] {
            assert!(!device.queue.try_unpop_chains_and_mark_dirty(others));
        }
        // One that was taken later is done, and all of that is published.
        device.push(2);
        device.queue.publish();
        assert!(!device.queue.try_unpop_chains_and_mark_dirty(&held(&device)));
        assert!(outside.region().has_record());
        // What was in flight before is not behind the others in the ring.
        let mut next = outside.device(stands).unwrap();
        assert!(next.queue.has_recovered_chains());
        assert!(!next.queue.try_unpop_chains_and_mark_dirty(&[]));
        assert!(next.pop(&outside).is_some());
        assert!(!next.queue.try_unpop_chains_and_mark_dirty(&held(&next)));
    }
}
