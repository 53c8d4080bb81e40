//! A session with an independent client: rust-vmm's, which Cloud Hypervisor uses.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rust_vmm_vfio_user::Client;
use test_support::deadline::eventually;
use test_support::events::{becomes_readable, event, take};
use test_support::vfio_user::{file, memory};
use unix_socket::listener::Listener;
use vfio_user::ServerThread;
use vfio_user::testing::{ADDRESS, DATA, LEVEL, MAPPED_WRITE, Scratch};
use vfio_user::wire::{IRQ_ACTION_TRIGGER, IRQ_ACTION_UNMASK, IRQ_DATA_EVENTFD, IRQ_DATA_NONE};

fn wait(fd: &OwnedFd) -> u64 {
    assert!(becomes_readable(fd), "the line is signalled");
    take(fd)
}

#[test]
fn cloud_hypervisors_client_can_connect_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device.sock");
    let listener = Listener::bind(&path).unwrap();
    let _driver = ServerThread::spawn(listener, Scratch::default()).unwrap();
    for session in 0..3u8 {
        let mut client = Client::new(&path).unwrap();
        let sizes: Vec<_> = (0..9)
            .map(|index| client.region(index).unwrap().size)
            .collect();
        assert_eq!(sizes, [256, 0x400, 0x2000, 0, 0, 0, 0, 256, 0]);
        let mut ids = [0; 4];
        client.region_read(7, 0, &mut ids).unwrap();
        assert_eq!(ids, [0x00, 0x10, 0x12, 0x00]);
        let mut before = [0; 1];
        client.region_read(2, 0x100, &mut before).unwrap();
        assert_eq!(before, [session], "the device keeps its state");
        client.region_write(2, 0x100, &[session + 1]).unwrap();

        let memory = memory(1 << 20);
        client.dma_map(0, 0, 1 << 20, memory.as_raw_fd()).unwrap();
        client.region_write(0, ADDRESS, &[0, 0, 8, 0]).unwrap();
        client.region_write(0, DATA, &[session + 1; 4]).unwrap();
        client.region_write(0, MAPPED_WRITE, &[1]).unwrap();
        // The reply to the write was sent before the access to memory.
        eventually("what was written is in memory", || {
            let mut written = [0; 4];
            file(&memory).read_exact_at(&mut written, 0x8_0000).unwrap();
            written == [session + 1; 4]
        });
        let intx = client.get_irq_info(0).unwrap();
        assert_eq!((intx.count, intx.flags), (1, 7));
        let (trigger, unmask) = (event(), event());
        for (action, fd) in [(IRQ_ACTION_TRIGGER, &trigger), (IRQ_ACTION_UNMASK, &unmask)] {
            let flags = IRQ_DATA_EVENTFD | action;
            client.set_irqs(0, flags, 0, 1, &[fd.as_raw_fd()]).unwrap();
        }
        client.region_write(0, LEVEL, &[1]).unwrap();
        assert_eq!(wait(&trigger), 1);
        rustix::io::write(&unmask, &1u64.to_ne_bytes()).unwrap();
        assert_eq!(wait(&trigger), 1, "the line is still up");
        client.region_write(0, LEVEL, &[0]).unwrap();
        let flags = IRQ_DATA_NONE | IRQ_ACTION_TRIGGER;
        client.set_irqs(0, flags, 0, 0, &[]).unwrap();
        client.dma_unmap(0, 1 << 20).unwrap();
        client.reset().unwrap();
        client.shutdown().unwrap();
    }
}

#[test]
fn a_second_front_end_waits_until_the_first_disconnects() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device.sock");
    let listener = Listener::bind(&path).unwrap();
    let driver = ServerThread::spawn(listener, Scratch::default()).unwrap();
    let mut first = Client::new(&path).unwrap();
    let second = {
        let path = path.clone();
        std::thread::spawn(move || Client::new(&path).unwrap())
    };
    first.region_write(2, 0, b"first").unwrap();
    first.shutdown().unwrap();
    let mut second = second.join().unwrap();
    let mut data = [0; 5];
    second.region_read(2, 0, &mut data).unwrap();
    assert_eq!(&data, b"first");
    drop(driver);
    assert!(
        second.region_read(2, 0, &mut data).is_err(),
        "the server has gone"
    );
    assert!(!path.exists());
}
