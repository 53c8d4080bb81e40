//! Iothreads in the daemon's sandbox: queues, workers and settings, under the filters of the threads that have them.

use block::Aio;
use iothread::event_loop::PollSettings;
use iothread::{IothreadHandle, IothreadSettings};
use test_support::limited_host::confined::{
    Operation, all_are_allowed, confine, is_inside, on_thread,
};

use crate::queue_driver::{
    DISCARD, FLUSH, QueueDriver, WRITE_ZEROES, disk_by, iothread, null_disk,
};
use crate::scsi::{Controller, FIRST, disk, threads};

const OPERATIONS: &[Operation] = &[
    Operation::new("iothreads serve virtio-blk", iothreads_serve_virtio_blk),
    Operation::new("iothreads serve virtio-scsi", iothreads_serve_virtio_scsi),
    Operation::new("iothreads wait by the clock", iothreads_wait_by_the_clock),
    Operation::new(
        "iothreads are changed",
        settings_of_iothreads_change_in_the_sandbox,
    ),
];

#[test]
fn every_operation_is_allowed_in_the_sandbox() {
    if !is_inside(OPERATIONS) {
        all_are_allowed(
            "confined::every_operation_is_allowed_in_the_sandbox",
            OPERATIONS,
        );
    }
}

fn on_a_control_thread(what: impl FnOnce() + Send) {
    on_thread("control", || {
        confine();
        what();
    });
}

/// One request of each kind.
fn ask_everything(guest: &mut QueueDriver) {
    for block in 0..8 {
        guest.write(block, block, 7);
    }
    guest.submit();
    assert!(guest.wait_all().iter().all(|done| done.status == 0));
    guest.read(1, 3);
    guest.ask(2, FLUSH, 0, 0);
    guest.ask_range(3, WRITE_ZEROES, 64, 8, true);
    guest.ask_range(4, WRITE_ZEROES, 72, 8, false);
    guest.ask_range(5, DISCARD, 128, 64, false);
    guest.submit();
    assert!(guest.wait_all().iter().all(|done| done.status == 0));
}

fn iothreads_serve_virtio_blk() {
    let disks = [Aio::Native, Aio::IoUring, Aio::Threads].map(disk_by);
    on_a_control_thread(|| {
        for (node, _) in &disks {
            let iothread = iothread("test");
            for event_idx in [false, true] {
                let mut guest = QueueDriver::new(64, event_idx);
                let vring = iothread.start_vring(guest.setup(node, 0)).unwrap();
                ask_everything(&mut guest);
                assert!(vring.stop().is_some());
            }
        }
    });
}

fn iothreads_serve_virtio_scsi() {
    let (node, _folder) = disk_by(Aio::Native);
    on_a_control_thread(|| {
        let (threads, disks) = (threads(), [disk(FIRST, &node)]);
        let mut guest = Controller::new(&disks);
        let vrings = guest.start(&threads, &disks);
        guest.greet(FIRST);
        // GET LBA STATUS: a worker looks.
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[13]) = (0x9e, 0x12, 64);
        guest.good(2, FIRST, &cdb, &[], 64);
        for vring in vrings {
            assert!(vring.stop().is_some());
        }
    });
}

fn iothreads_wait_by_the_clock() {
    on_a_control_thread(|| {
        let node = null_disk(2_000_000);
        let iothread = iothread("test");
        let mut guest = QueueDriver::new(64, true);
        let _vring = iothread.start_vring(guest.setup(&node, 0)).unwrap();
        (0..10).for_each(|round| guest.read_once(round));
    });
}

fn settings_of_iothreads_change_in_the_sandbox() {
    let (node, _folder) = disk_by(Aio::Native);
    on_a_control_thread(|| {
        let settings = IothreadSettings {
            cpu_affinity: vec![0],
            ..IothreadSettings::with_id("test")
        };
        let iothread = IothreadHandle::spawn(settings).unwrap();
        let polling = PollSettings::default();
        for (min, max) in [(4, 8), (0, 1), (0, 64)] {
            iothread.set_thread_pool(min, max).unwrap();
            iothread.set_cpu_affinity(&[0]).unwrap();
            iothread.set_cpu_affinity(&[]).unwrap();
            iothread.set_polling(polling).unwrap();
            iothread.set_aio_max_batch(max).unwrap();
            iothread.set_aio_max_events(128 + max).unwrap();
            let mut guest = QueueDriver::new(64, true);
            let vring = iothread.start_vring(guest.setup(&node, 0)).unwrap();
            ask_everything(&mut guest);
            assert!(iothread.cpu_time_ns() > 0);
            assert!(vring.stop().is_some());
        }
    });
}
