//! The life of a queue: it is started, kicked, stopped and started again, and breaks alone.

use block::Aio;
use test_support::deadline::eventually;
use virtqueue::queue_setup::{QueueCommand, StartError};

use crate::queue_driver::{
    CARRIERS, QueueDriver, add_one, counted, disk_by, elsewhere, event, file_disk, iothread,
    null_disk, wait_for,
};

/// With and without event index, by each engine.
fn forms() -> impl Iterator<Item = (bool, Aio)> {
    [false, true]
        .into_iter()
        .flat_map(|event_idx| CARRIERS.map(|aio| (event_idx, aio)))
}

#[test]
fn a_queue_without_kicks_is_served() {
    for (event_idx, aio) in forms() {
        let (disk, _folder) = disk_by(aio);
        let iothread = iothread("test");
        let mut guest = QueueDriver::new(64, event_idx);
        guest.publish_reads(8);
        let mut setup = guest.setup(&disk, 0);
        setup.queue.descriptors.kick = None;
        let vring = iothread.start_vring(setup).unwrap();
        assert!(guest.wait_all().iter().all(|done| done.status == 0));
        // Nothing watches these kicks.
        (0..50).for_each(|round| guest.read_once(round));
        assert_eq!(vring.stop(), Some(58));
    }
}

#[test]
fn a_stop_at_any_time_loses_and_repeats_no_request() {
    for (event_idx, aio) in forms() {
        let (disk, _folder) = disk_by(aio);
        let iothread = iothread("test");
        let mut guest = QueueDriver::at_base(128, event_idx, 65_000);
        let mut base = 65_000;
        let (mut asked, mut answered) = (0u64, 0);
        for round in 0..300u64 {
            let vring = iothread.start_vring(guest.setup(&disk, base)).unwrap();
            let mut count = round % 17;
            while count > 0 && guest.room() > 0 {
                guest.write(asked, asked % 512, 1);
                asked += 1;
                count -= 1;
                if asked % 3 == 0 {
                    guest.submit();
                }
            }
            guest.submit();
            if round % 5 == 0 {
                answered += guest.wait_all().len();
            } else {
                for _ in 0..round % 50 {
                    std::thread::yield_now();
                }
            }
            base = vring.stop().unwrap();
            assert_eq!(u32::from(guest.driver.used_idx()), base);
            let done = guest.take_done();
            assert!(done.iter().all(|done| done.status == 0));
            answered += done.len();
        }
        let _vring = iothread.start_vring(guest.setup(&disk, base)).unwrap();
        answered += guest.wait_all().len();
        assert_eq!(answered as u64, asked);
    }
}

#[test]
fn a_handle_that_is_dropped_stops_its_queue() {
    let iothread = iothread("test");
    let guest = QueueDriver::new(64, false);
    let node = null_disk(0);
    let setup = guest.setup(&node, 0);
    let memory = std::sync::Arc::downgrade(&setup.queue.memory);
    let disk = std::sync::Arc::downgrade(&node);
    drop(node);
    drop(iothread.start_vring(setup).unwrap());
    assert!(disk.upgrade().is_none(), "the disk is let go");
    guest.memory.remap();
    assert!(memory.upgrade().is_none(), "and the memory");
}

#[test]
fn commands_to_a_stopped_thread_fail_at_once() {
    let iothread = iothread("test");
    let mut guest = QueueDriver::new(64, false);
    let disk = null_disk(20_000_000);
    let vring = iothread.start_vring(guest.setup(&disk, 0)).unwrap();
    guest.read(0, 0);
    guest.submit();
    drop(iothread);
    vring.send(QueueCommand::Enable(false));
    vring.send_and_wait(|reply| QueueCommand::SetMemory(guest.memory.guest_memory(), reply));
    let watched = vring.send_and_wait(|reply| QueueCommand::SetKick(Some(event()), reply));
    assert!(watched.is_none());
    assert_eq!(vring.stop(), None);
}

#[test]
fn a_queue_that_cannot_start_says_why_and_others_can() {
    let iothread = iothread("test");
    let mut guest = QueueDriver::new(64, false);
    let disk = null_disk(0);

    let mut setup = guest.setup(&disk, 0);
    setup.queue.memory = elsewhere();
    let started = iothread.start_vring(setup);
    assert!(matches!(started, Err(StartError::Ring(_))));
    let mut setup = guest.setup(&disk, 0);
    setup.queue.descriptors.kick = Some(tempfile::tempfile().unwrap().into());
    let started = iothread.start_vring(setup);
    assert!(matches!(started, Err(StartError::Kick(_))));

    let vring = iothread.start_vring(guest.setup(&disk, 0)).unwrap();
    let file = Some(tempfile::tempfile().unwrap().into());
    let set = vring.send_and_wait(|reply| QueueCommand::SetKick(file, reply));
    assert!(matches!(set, Some(Err(StartError::Kick(_)))));
    // The old descriptor is still watched.
    guest.read_once(0);
}

#[test]
fn descriptors_can_be_replaced_while_the_queue_runs() {
    for event_idx in [false, true] {
        let iothread = iothread("test");
        let mut guest = QueueDriver::new(64, event_idx);
        let vring = iothread.start_vring(guest.setup(&null_disk(0), 0)).unwrap();
        for tag in 0..200 {
            // A kick that goes nowhere: the new descriptor makes up for it.
            guest.read(tag, 0);
            guest.driver.publish();
            guest.kick = event();
            let kick = guest.kick.try_clone().unwrap();
            let watched = vring.send_and_wait(|reply| QueueCommand::SetKick(Some(kick), reply));
            watched.unwrap().unwrap();
            assert_eq!(guest.wait_all().len(), 1);
            guest.read_once(tag);
            // A new call descriptor is signalled once, whatever was signalled on the old one.
            guest.call = event();
            vring.send(QueueCommand::SetCall(Some(guest.call.try_clone().unwrap())));
            wait_for(&guest.call, "a signal on the new descriptor");
        }
        let watched = vring.send_and_wait(|reply| QueueCommand::SetKick(None, reply));
        watched.unwrap().unwrap();
        vring.send(QueueCommand::SetCall(None));
        guest.read(0, 0);
        guest.driver.publish();
        vring.send(QueueCommand::Enable(true));
        eventually("it polls", || !guest.take_done().is_empty());
        assert_eq!(vring.stop(), Some(401));
    }
}

#[test]
fn a_broken_queue_stops_alone() {
    let (disk, _folder) = file_disk();
    let iothread = iothread("test");
    let mut broken = QueueDriver::new(64, false);
    let mut good = QueueDriver::new(64, false);
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
        good.read_once(tag);
    }
    assert_eq!(counted(&broken.err), 0, "it is signalled once");
    assert_eq!(broken.driver.used_idx(), 10);
    assert_eq!(counted(&good.err), 0);
    assert_eq!(broken_vring.stop(), Some(10));
    assert_eq!(good_vring.stop(), Some(510));
}
