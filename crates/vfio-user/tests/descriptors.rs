//! Descriptors are closed with their connection, whichever message brought them. This is the only test of its program, since
//! it counts all descriptors.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it is"
)]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::process::{Resource, getrlimit, setrlimit};
use test_support::events::event;
use test_support::vfio_user::rig::Rig;
use test_support::vfio_user::{Message, map, memory, set_irqs};
use vfio_user::wire::{self, command};

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// A front-end that passes descriptors in all messages, and disconnects.
fn session(end: &dyn Fn(&mut Rig, &OwnedFd)) {
    let (memory, eventfd) = (memory(0x1000), event());
    let mut rig = Rig::ready();
    for page in 1..4 {
        rig.map(page << 12, 0x1000, Some(&memory)).unwrap();
    }
    rig.map(0x1000, 0x1000, Some(&memory)).unwrap_err();
    rig.map(0x8000, 0x1000, Some(&eventfd)).unwrap_err();
    for action in [wire::IRQ_ACTION_TRIGGER, wire::IRQ_ACTION_UNMASK] {
        for _ in 0..3 {
            rig.set_irqs(wire::IRQ_DATA_EVENTFD | action, 1, Some(&eventfd))
                .unwrap();
        }
        rig.set_irqs(wire::IRQ_DATA_EVENTFD | action, 1, Some(&memory))
            .unwrap_err();
    }
    let irqs = set_irqs(0, wire::IRQ_DATA_NONE | wire::IRQ_ACTION_MASK, 1, &[]);
    for (command, payload) in [
        (command::DEVICE_RESET, &[][..]),
        (command::DEVICE_SET_IRQS, &irqs),
        (command::DMA_MAP, &map(0x10_0000, 0x1000)),
        (99, &[]),
    ] {
        let fds = [memory.as_fd(); 16];
        rig.call(command, payload, &fds).unwrap_err();
    }
    end(&mut rig, &memory);
}

#[test]
fn no_descriptor_outlives_its_connection() {
    // Descriptors that are opened once and kept.
    session(&|_, _| {});
    let before = open_descriptors();
    let message = Message::command(1, command::DMA_MAP, 0, &map(0x10_0000, 0x1000)).bytes();
    session(&|_, _| {});
    session(&|rig, _| rig.reconnect());
    session(&|rig, _| rig.server.disconnect());
    session(&|rig, memory| {
        // In the middle of a message.
        rig.send(&message[..20], &[memory.as_fd()]);
        rig.turn();
        rig.reconnect();
    });
    session(&|rig, memory| {
        // As many as the kernel passes at once.
        rig.send(&message, &[memory.as_fd(); 64]);
        assert!(rig.is_hung_up());
    });
    session(&|rig, memory| {
        // Too many for one message, in pieces.
        for byte in message.chunks(1) {
            if !rig.send(byte, &[memory.as_fd(); 10]) {
                break;
            }
            rig.turn();
        }
        assert!(rig.is_hung_up());
    });
    session(&|rig, memory| {
        // The connection ends before all descriptors are received.
        rig.send(&[0; 16], &[memory.as_fd()]);
        rig.send(&message, &[memory.as_fd()]);
        assert!(rig.is_hung_up());
    });
    assert_eq!(open_descriptors(), before);

    // This process may open one of two descriptors.
    session(&|rig, memory| {
        let mut limit = getrlimit(Resource::Nofile);
        let current = limit.current;
        // The kernel uses the lowest free number, which is this one.
        let lowest = memory.try_clone().unwrap().as_raw_fd();
        limit.current = Some(u64::try_from(lowest).unwrap() + 1);
        // Before: under a lower limit descriptors that other programs of this user are sending count against it (unix(7), ETOOMANYREFS).
        rig.send(&message, &[memory.as_fd(); 2]);
        setrlimit(Resource::Nofile, limit).unwrap();
        let hung_up = rig.is_hung_up();
        limit.current = current;
        setrlimit(Resource::Nofile, limit).unwrap();
        assert!(hung_up, "lost descriptors are not ignored");
    });
    assert_eq!(open_descriptors(), before);
}
