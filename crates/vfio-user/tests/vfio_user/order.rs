//! A register's reply is sent before the device does anything else: QEMU serves no memory until it has it.

use std::io::Read;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use test_support::vfio_user::rig::Rig;
use test_support::vfio_user::{Message, access};
use vfio_user::wire::{Header, NO_REPLY, command};
use vfio_user::{DmaId, PciDevice, PciHost};

/// A device that reads the front-end's end of the socket, to count the bytes that were sent.
#[derive(Default)]
struct Spy {
    front_end: Option<UnixStream>,
    writes: usize,
    /// For each turn: writes so far, and bytes that the front-end has received.
    turns: Vec<(usize, usize)>,
}

impl PciDevice for Spy {
    fn name(&self) -> &str {
        "spy"
    }

    fn region_bytes(&self, _: u32) -> u64 {
        1
    }

    fn read_region(&mut self, _: &mut dyn PciHost, _: u32, _: u64, _: &mut [u8]) {}

    fn write_region(&mut self, _: &mut dyn PciHost, _: u32, _: u64, _: &[u8]) {
        self.writes += 1;
    }

    fn reset(&mut self, _: &mut dyn PciHost) {}

    fn is_reset_done(&self) -> bool {
        true
    }

    fn on_memory_changed(&mut self, _: &mut dyn PciHost) {}

    fn on_dma_done(&mut self, _: &mut dyn PciHost, _: DmaId, _: Result<Vec<u8>, Errno>) {}

    fn do_pending_work(&mut self, _: &mut dyn PciHost) -> bool {
        if let Some(front_end) = &mut self.front_end {
            let got = front_end.read(&mut [0; 1024]).unwrap_or(0);
            self.turns.push((self.writes, got));
        }
        false
    }
}

#[test]
fn replies_are_sent_before_the_device_runs() {
    let mut rig = Rig::around(Spy::default());
    rig.agree();
    let front_end = rig.front_end.try_clone().unwrap();
    rig.server.device_and_host().0.front_end = Some(front_end);
    let write = Message::command(1, command::REGION_WRITE, 0, &access(0, 0, 1, b"x"));
    rig.send(&[write.bytes(), write.bytes()].concat(), &[]);
    rig.server.handle_readable(0);
    rig.server.do_pending_work(0);
    let replies = 2 * (Header::BYTES + 16);
    assert_eq!(rig.server.device_and_host().0.turns, [(2, replies)]);
}

/// All messages were read, so the socket does not become readable for those that wait.
#[test]
fn received_messages_are_handled_without_the_socket_becoming_readable() {
    let mut rig = Rig::around(Spy::default());
    rig.agree();
    let payload = access(0, 0, 1, b"x");
    let posted = Message::command(1, command::REGION_WRITE, NO_REPLY, &payload);
    rig.send(&posted.bytes().repeat(100), &[]);
    rig.server.handle_readable(0);
    let some = rig.server.device_and_host().0.writes;
    assert!((1..100).contains(&some), "{some}");
    while rig.server.do_pending_work(0) {}
    assert_eq!(rig.server.device_and_host().0.writes, 100);
}

/// For an iothread that polls.
#[test]
fn polling_the_socket_reads_messages_but_does_not_handle_them() {
    let mut rig = Rig::around(Spy::default());
    rig.agree();
    assert!(!rig.server.has_or_reads_message());
    let write = Message::command(1, command::REGION_WRITE, 0, &access(0, 0, 1, b"x"));
    rig.send(&write.bytes().repeat(2), &[]);
    assert!(rig.server.has_or_reads_message());
    assert!(
        rig.server.has_or_reads_message(),
        "until the messages are handled"
    );
    assert_eq!(rig.server.device_and_host().0.writes, 0);
    assert!(rig.receive().is_none());
    rig.server.do_pending_work(0);
    assert_eq!(rig.server.device_and_host().0.writes, 2);
    assert!(rig.receive().is_some());
    assert!(!rig.server.has_or_reads_message());
    rig.front_end.shutdown(std::net::Shutdown::Both).unwrap();
    assert!(rig.server.has_or_reads_message(), "disconnected");
    assert!(!rig.is_connected());
}
