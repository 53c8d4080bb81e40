//! Queues on one thread do not disturb each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use iothread::{IothreadHandle, IothreadSettings};
use virtqueue::queue_setup::QueueCommand;

use crate::guest::{Guest, add_one, elsewhere, file_disk, null_disk, wait_for};

fn iothread() -> IothreadHandle {
    IothreadHandle::spawn(IothreadSettings::with_id("test")).unwrap()
}

#[test]
fn a_broken_queue_stops_alone() {
    let (disk, _folder) = file_disk();
    let iothread = iothread();
    let mut broken = Guest::new(64, false);
    let mut good = Guest::new(64, false);
    let broken_vring = iothread.start_vring(broken.setup(&disk, 0)).unwrap();
    let good_vring = iothread.start_vring(good.setup(&disk, 0)).unwrap();
    for tag in 0..10 {
        broken.write(tag, tag, 5);
        good.read(tag, 100);
    }
    broken.driver.publish();
    broken.driver.make_available(64);
    add_one(&broken.kick);
    good.submit();
    assert_eq!(wait_for(&broken.err, "word of the broken queue"), 1);
    let done = broken.wait_all();
    assert_eq!(done.len(), 10, "what came before is done");
    assert!(done.iter().all(|done| done.status == 0));
    assert_eq!(good.wait_all().len(), 10);
    // The first request once more, where the bad entry was: a broken queue stays broken.
    broken.driver.set_avail_entry(10, 0);
    for tag in 0..500 {
        add_one(&broken.kick);
        good.read(tag, 100);
        good.submit();
        assert_eq!(good.wait_all().len(), 1);
    }
    assert_eq!(
        crate::guest::counted(&broken.err),
        0,
        "it is signalled once"
    );
    assert_eq!(broken.driver.used_idx(), 10);
    assert_eq!(crate::guest::counted(&good.err), 0);
    assert_eq!(broken_vring.stop(), Some(10));
    assert_eq!(good_vring.stop(), Some(510));
}

#[test]
fn a_ring_outside_the_new_memory_breaks_its_queue_alone() {
    let (disk, _folder) = file_disk();
    let iothread = iothread();
    let mut broken = Guest::new(64, false);
    let mut good = Guest::new(64, false);
    let broken_vring = iothread.start_vring(broken.setup(&disk, 0)).unwrap();
    let good_vring = iothread.start_vring(good.setup(&disk, 0)).unwrap();
    for tag in 0..10 {
        broken.read(tag, tag);
    }
    broken.submit();
    broken_vring.send_and_wait(|reply| QueueCommand::SetMemory(elsewhere(), reply));
    assert_eq!(wait_for(&broken.err, "word of the broken queue"), 1);
    for tag in 0..100 {
        good.read(tag, tag);
        good.submit();
        add_one(&broken.kick);
        good_vring.send_and_wait(|reply| QueueCommand::SetMemory(good.memory.remap(), reply));
        assert_eq!(good.wait_all().len(), 1);
    }
    // Requests from before are answered where the rings were.
    let base = broken_vring.stop().unwrap();
    assert_eq!(u32::from(broken.driver.used_idx()), base);
    assert_eq!(good_vring.stop(), Some(100));
}

#[test]
fn an_endless_queue_does_not_starve_others() {
    let iothread = iothread();
    let disk = null_disk(0);
    let mut endless = Guest::new(512, false);
    let endless_vring = iothread.start_vring(endless.setup(&disk, 0)).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let feeder = {
        let over = over.clone();
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                while endless.room() > 0 {
                    endless.read(0, 0);
                }
                endless.submit();
                endless.take_done();
            }
        })
    };
    let mut others: Vec<_> = (0..8).map(|_| Guest::new(64, true)).collect();
    let vrings: Vec<_> = others
        .iter()
        .map(|guest| iothread.start_vring(guest.setup(&disk, 0)).unwrap())
        .collect();
    for round in 0..100 {
        for guest in &mut others {
            guest.read(round, 0);
            guest.submit();
        }
        for guest in &mut others {
            assert_eq!(guest.wait_all().len(), 1);
        }
    }
    for vring in vrings {
        assert_eq!(vring.stop(), Some(100));
    }
    // Also the endless one stops, while its guest continues.
    assert!(endless_vring.stop().is_some());
    over.store(true, Ordering::Relaxed);
    feeder.join().unwrap();
}
