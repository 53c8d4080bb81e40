//! Sessions of a device on a thread with an independent front-end: rust-vmm's, which Cloud Hypervisor uses.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};

use rust_vmm_vfio_user::Client;
use rustix::event::{PollFd, PollFlags, poll};
use test_support::deadline::eventually;
use test_support::events::{becomes_readable, event, signal, take};
use test_support::vfio_user::{file, memory};
use vfio_user::Server;
use vfio_user::testing::{ADDRESS, DATA, LEVEL, MAPPED_WRITE, Scratch};
use vfio_user::wire;

/// Serves front-ends one after the other.
fn serve(sockets: impl Iterator<Item = UnixStream>) {
    let mut server = Server::new(Scratch::default());
    for socket in sockets {
        server.attach_connection(socket).unwrap();
        while let Some(socket) = server.socket() {
            let more = if server.wants_write() {
                PollFlags::OUT
            } else {
                PollFlags::empty()
            };
            let mut fds = vec![PollFd::from_borrowed_fd(socket, PollFlags::IN | more)];
            fds.extend(
                server
                    .unmask_fd()
                    .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
            );
            poll(&mut fds, None).unwrap();
            server.handle_readable(0);
            server.handle_writable();
            server.handle_unmask();
            while server.do_pending_work(0) {}
        }
    }
}

fn wait(line: &OwnedFd) -> u64 {
    assert!(becomes_readable(line), "the line is signalled");
    take(line)
}

#[test]
fn cloud_hypervisors_client_can_connect_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        serve(listener.incoming().take(3).map(Result::unwrap));
    });
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
        for (action, fd) in [
            (wire::IRQ_ACTION_TRIGGER, &trigger),
            (wire::IRQ_ACTION_UNMASK, &unmask),
        ] {
            let flags = wire::IRQ_DATA_EVENTFD | action;
            client.set_irqs(0, flags, 0, 1, &[fd.as_raw_fd()]).unwrap();
        }
        client.region_write(0, LEVEL, &[1]).unwrap();
        assert_eq!(wait(&trigger), 1);
        signal(&unmask);
        assert_eq!(wait(&trigger), 1, "the line is still up");
        client.region_write(0, LEVEL, &[0]).unwrap();
        let flags = wire::IRQ_DATA_NONE | wire::IRQ_ACTION_TRIGGER;
        client.set_irqs(0, flags, 0, 0, &[]).unwrap();
        client.dma_unmap(0, 1 << 20).unwrap();
        client.reset().unwrap();
        client.shutdown().unwrap();
    }
    server.join().unwrap();
}
