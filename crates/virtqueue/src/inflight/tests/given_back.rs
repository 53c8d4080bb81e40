//! Chains that a queue gives back when it stops, and a device that is killed while it does.

use super::*;

/// A device that has taken four requests, and given back and published the first of them.
fn taken(outside: &mut Outside) -> Device {
    let mut device = outside.device(0).unwrap();
    for _ in 0..4 {
        outside.ask(0);
        device.take(outside);
    }
    device.give_back(0);
    device.queue.publish();
    outside.look();
    device
}

#[test]
fn what_is_given_back_is_taken_again_wherever_the_device_is_killed() {
    for stores in 0.. {
        let mut outside = Outside::new(SPLIT, 4, 0);
        let mut device = taken(&mut outside);
        let mut heads: Vec<u16> = device.held.iter().map(|(id, _)| id.id).collect();
        heads.sort_unstable();
        let ended = killed_after(stores, || {
            assert!(device.queue.unpop_all(&heads));
            // The front-end hears of it: the record has done its work.
            outside.region().forget();
            device.queue.base()
        });
        let base = ended.unwrap_or(1);
        assert_eq!(base, 1);
        let mut next = outside.device(1).unwrap();
        while next.take(&outside).is_some() {}
        let again: Vec<u64> = next.held.iter().map(|(_, number)| *number).collect();
        assert_eq!(again, [1, 2, 3]);
        finish(&mut outside, &mut next, &mut Random(1));
        if ended.is_some() {
            assert!(stores > 3, "not much was stored: {stores}");
            return;
        }
    }
}

#[test]
fn only_what_was_taken_last_is_given_back() {
    let mut outside = Outside::new(SPLIT, 4, 0);
    let mut device = taken(&mut outside);
    let heads: Vec<u16> = device.held.iter().map(|(id, _)| id.id).collect();
    assert!(!device.queue.unpop_all(&heads[..2]));
    assert!(outside.region().is_recorded());
    // What was in flight before is not behind the others in the ring.
    let mut next = outside.device(1).unwrap();
    assert!(next.queue.has_unfinished());
    assert!(!next.queue.unpop_all(&[]));
    assert!(next.take(&outside).is_some());
    assert!(!next.queue.unpop_all(&heads[..1]));
}
