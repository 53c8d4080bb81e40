//! Memory that the device accesses by messages to the front-end.

use rustix::io::Errno;
use test_support::vfio_user::rig::Rig;
use test_support::vfio_user::{Message, access, map};
use vfio_user::testing::{ADDRESS, DATA, DMA_READ, DMA_WRITE, RESULT};
use vfio_user::wire::{self, DmaAccess, command};

/// A front-end with a page that it does not share, and the message of a device that accesses it.
fn device_request(register: u64) -> (Rig, Message) {
    let mut rig = Rig::ready();
    rig.map(0x1000, 0x1000, None).unwrap();
    rig.write(0, DATA, b"disk").unwrap();
    rig.write(0, ADDRESS, &0x1010u32.to_le_bytes()).unwrap();
    rig.write(0, register, &[1]).unwrap();
    let question = rig.receive().expect("the device asks");
    (rig, question)
}

/// Replies to a DMA command of the device, as the front-end, and lets the server handle the reply.
fn reply(rig: &mut Rig, to: &Message, flags: u32, errno: u32, data: &[u8]) {
    let payload = match flags & wire::ERROR {
        0 => [&to.payload[..DmaAccess::BYTES], data].concat(),
        _ => Vec::new(),
    };
    let (id, command) = (to.header.id, to.header.command);
    let mut reply = Message::command(id, command, wire::TYPE_REPLY | flags, &payload);
    reply.header.errno = errno;
    assert!(rig.send(&reply.bytes(), &[]));
    rig.turn();
}

fn finished(rig: &mut Rig) -> u64 {
    rig.server.device_and_host().0.finished
}

fn errno(rig: &mut Rig) -> i32 {
    assert_eq!(finished(rig), 1);
    rig.read(0, RESULT, 1).unwrap()[0].into()
}

#[test]
fn registers_are_accessible_during_a_dma_read() {
    let (mut rig, question) = device_request(DMA_READ);
    assert_eq!(question.header.command, command::DMA_READ);
    assert_eq!(question.header.flags, wire::TYPE_COMMAND);
    let access = DmaAccess::decode(&question.payload).unwrap();
    assert_eq!((access.address, access.count), (0x1010, 16));
    assert_eq!(rig.read(0, DATA, 4).unwrap(), b"disk", "answered before");
    rig.write(2, 0, b"too").unwrap();
    assert_eq!(finished(&mut rig), 0);
    reply(&mut rig, &question, 0, 0, b"sixteen bytes...");
    assert_eq!(errno(&mut rig), 0);
    assert_eq!(rig.read(0, DATA, 16).unwrap(), b"sixteen bytes...");
}

#[test]
fn a_dma_write_sends_its_data() {
    let (mut rig, question) = device_request(DMA_WRITE);
    assert_eq!(question.header.command, command::DMA_WRITE);
    assert_eq!(question.payload[DmaAccess::BYTES..], *b"disk");
    reply(&mut rig, &question, 0, 0, &[]);
    assert_eq!(errno(&mut rig), 0);
}

#[test]
fn errors_of_the_front_end_reach_the_device() {
    let (mut rig, question) = device_request(DMA_WRITE);
    let fault = Errno::FAULT.raw_os_error();
    reply(&mut rig, &question, wire::ERROR, fault.cast_unsigned(), &[]);
    assert_eq!(errno(&mut rig), fault);
    for silly in [0, u32::MAX, 5000] {
        let (mut rig, question) = device_request(DMA_READ);
        reply(&mut rig, &question, wire::ERROR, silly, &[]);
        assert_eq!(errno(&mut rig), Errno::IO.raw_os_error());
    }
}

#[test]
fn the_device_cannot_access_unmapped_addresses() {
    let (read, write) = (wire::DMA_READ_ALLOWED, wire::DMA_WRITE_ALLOWED);
    for (register, flags, address) in [
        (DMA_READ, read | write, 0x1ff1u32),
        (DMA_WRITE, read | write, 0x1ffd),
        (DMA_READ, write, 0x1000),
        (DMA_WRITE, read, 0x1000),
    ] {
        let mut rig = Rig::ready();
        let mut map = map(0x1000, 0x1000);
        map[4..8].copy_from_slice(&flags.to_ne_bytes());
        rig.call(command::DMA_MAP, &map, &[]).unwrap();
        rig.write(0, ADDRESS, &address.to_le_bytes()).unwrap();
        rig.write(0, register, &[1]).unwrap();
        assert!(rig.receive().is_none(), "{register:#x} at {address:#x}");
        assert_eq!(errno(&mut rig), Errno::FAULT.raw_os_error());
    }
}

#[test]
fn dma_fails_when_the_front_end_is_silent_or_disconnects() {
    let (mut rig, question) = device_request(DMA_READ);
    rig.now_ns = rig.server.deadline_ns().expect("not for ever");
    rig.turn();
    assert_eq!(rig.server.deadline_ns(), None);
    assert_eq!(errno(&mut rig), Errno::TIMEDOUT.raw_os_error());
    reply(&mut rig, &question, 0, 0, b"sixteen bytes...");
    assert_eq!(finished(&mut rig), 1, "too late");
    assert_eq!(rig.read(0, DATA, 4).unwrap(), b"disk");

    let (mut rig, question) = device_request(DMA_READ);
    rig.reconnect();
    assert_eq!(finished(&mut rig), 1);
    rig.agree();
    assert_eq!(errno(&mut rig), Errno::NOTCONN.raw_os_error());
    let bytes = Message::command(question.header.id, command::DMA_READ, wire::TYPE_REPLY, &[]);
    rig.send(&bytes.bytes(), &[]);
    assert!(rig.is_hung_up(), "that was another connection's");
}

#[test]
fn messages_are_not_read_while_the_front_end_does_not_read_replies() {
    let mut rig = Rig::ready();
    let reads = 3000;
    let messages: Vec<u8> = (0..reads)
        .flat_map(|id| {
            let payload = access(2, 0, 8192, &[]);
            Message::command(id, command::REGION_READ, 0, &payload).bytes()
        })
        .collect();
    assert!(rig.send(&messages, &[]));
    for _ in 0..reads {
        rig.turn();
    }
    assert!(!rig.server.wants_read(), "3000 answers wait, of 8 KiB each");
    assert!(rig.server.wants_write());
    for id in 0..reads {
        while rig
            .receive()
            .map(|reply| assert_eq!(reply.header.id, id))
            .is_none()
        {
            rig.turn();
        }
    }
    assert!(!rig.server.wants_write());
    rig.read(0, 0, 1).unwrap();
}
