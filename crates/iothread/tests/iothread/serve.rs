//! The life of a queue: it is started, kicked, enabled, stopped and started again.

use block::Aio;
use iothread::{IothreadHandle, IothreadSettings};
use virtqueue::queue_setup::{QueueCommand, StartError};

use crate::guest::{
    CARRIERS, FLUSH, Guest, add_one, disk_by, elsewhere, event, null_disk, wait_for,
};

fn iothread() -> IothreadHandle {
    IothreadHandle::spawn(IothreadSettings::with_id("test")).unwrap()
}

/// With and without event index, by each engine.
fn forms() -> impl Iterator<Item = (bool, Aio)> {
    [false, true]
        .into_iter()
        .flat_map(|event_idx| CARRIERS.map(|aio| (event_idx, aio)))
}

#[test]
fn requests_available_at_the_start_are_served_without_a_kick() {
    for (event_idx, aio) in forms() {
        let (disk, _folder) = disk_by(aio);
        let iothread = iothread();
        let mut guest = Guest::new(64, event_idx);
        for block in 0..8 {
            guest.write(block, block, 0x40 + u8::try_from(block).unwrap());
        }
        guest.driver.publish();
        let mut setup = guest.setup(&disk, 0);
        setup.queue.descriptors.kick = None;
        let vring = iothread.start_vring(setup).unwrap();
        let done = guest.wait_all();
        assert!(done.iter().all(|done| done.status == 0));
        assert_eq!(vring.stop(), Some(8));
    }
}

#[test]
fn written_data_is_read_back() {
    for (event_idx, aio) in forms() {
        let (disk, _folder) = disk_by(aio);
        let iothread = iothread();
        let mut guest = Guest::at_base(128, event_idx, 65_500);
        let _vring = iothread.start_vring(guest.setup(&disk, 65_500)).unwrap();
        for round in 0..30u8 {
            for block in 0..32 {
                guest.write(
                    block,
                    block * 3 % 97,
                    round.wrapping_mul(7) ^ u8::try_from(block).unwrap(),
                );
            }
            guest.ask(99, FLUSH, 0, 0);
            guest.submit();
            assert!(guest.wait_all().iter().all(|done| done.status == 0));
            for block in 0..32 {
                guest.read(block, block * 3 % 97);
            }
            guest.submit();
            for done in guest.wait_all() {
                let byte = round.wrapping_mul(7) ^ u8::try_from(done.tag).unwrap();
                assert_eq!((done.status, done.byte), (0, byte), "block {}", done.tag);
            }
        }
        assert_eq!(guest.driver.used_idx(), guest.driver.avail_idx());
    }
}

#[test]
fn a_disabled_queue_admits_nothing_until_it_is_enabled() {
    for event_idx in [false, true] {
        let iothread = iothread();
        let mut guest = Guest::new(64, event_idx);
        let mut setup = guest.setup(&null_disk(0), 0);
        setup.queue.enabled = false;
        guest.read(0, 0);
        guest.submit();
        let vring = iothread.start_vring(setup).unwrap();
        for round in 1..20u16 {
            // The answers come from later iterations of the loop, which had its chance each time.
            for _ in 0..4 {
                add_one(&guest.kick);
                vring.send_and_wait(|reply| {
                    QueueCommand::SetMemory(guest.memory.guest_memory(), reply)
                });
            }
            assert_eq!(guest.driver.used_idx(), round - 1, "taken while disabled");
            vring.send(QueueCommand::Enable(true));
            assert_eq!(guest.wait_all().len(), 1);
            vring.send(QueueCommand::Enable(false));
            vring
                .send_and_wait(|reply| QueueCommand::SetMemory(guest.memory.guest_memory(), reply));
            guest.read(0, 0);
            guest.submit();
        }
        assert_eq!(vring.stop(), Some(19), "the last one was not taken");
    }
}

#[test]
fn a_stop_waits_for_requests_in_flight() {
    let iothread = iothread();
    let mut guest = Guest::new(128, false);
    let disk = null_disk(30_000_000);
    let vring = iothread.start_vring(guest.setup(&disk, 0)).unwrap();
    for tag in 0..40 {
        guest.read(tag, tag);
    }
    guest.submit();
    let base = vring.stop().unwrap();
    assert_eq!(
        u32::from(guest.driver.used_idx()),
        base,
        "what was taken is answered"
    );
    let answered = guest.take_done().len();
    assert_eq!(answered, base as usize);

    // The next queue continues there.
    let _vring = iothread.start_vring(guest.setup(&disk, base)).unwrap();
    assert_eq!(guest.wait_all().len(), 40 - answered);
}

#[test]
fn a_stop_at_any_time_loses_and_repeats_no_request() {
    for (event_idx, aio) in forms() {
        let (disk, _folder) = disk_by(aio);
        let iothread = iothread();
        let mut guest = Guest::at_base(128, event_idx, 65_000);
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
    let iothread = iothread();
    let guest = Guest::new(64, false);
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
    let iothread = iothread();
    let mut guest = Guest::new(64, false);
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
    let iothread = iothread();
    let mut guest = Guest::new(64, false);
    let disk = null_disk(0);

    let mut setup = guest.setup(&disk, 0);
    setup.queue.memory = elsewhere();
    assert!(matches!(
        iothread.start_vring(setup),
        Err(StartError::Ring(_))
    ));
    let mut setup = guest.setup(&disk, 0);
    setup.queue.descriptors.kick = Some(tempfile::tempfile().unwrap().into());
    assert!(matches!(
        iothread.start_vring(setup),
        Err(StartError::Kick(_))
    ));

    let vring = iothread.start_vring(guest.setup(&disk, 0)).unwrap();
    let file = Some(tempfile::tempfile().unwrap().into());
    assert!(matches!(
        vring.send_and_wait(|reply| QueueCommand::SetKick(file, reply)),
        Some(Err(StartError::Kick(_)))
    ));
    guest.read(0, 0);
    guest.submit();
    assert_eq!(
        guest.wait_all().len(),
        1,
        "the old descriptor is still watched"
    );
}

#[test]
fn descriptors_can_be_replaced_while_the_queue_runs() {
    for event_idx in [false, true] {
        let iothread = iothread();
        let mut guest = Guest::new(64, event_idx);
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
            guest.read(tag, 0);
            guest.submit();
            assert_eq!(guest.wait_all().len(), 1);
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
        assert_eq!(guest.poll_some().len(), 1, "it polls");
        assert_eq!(vring.stop(), Some(401));
    }
}
