//! The reply to each command of a front-end, well-formed and malformed.

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;
use test_support::events::{event, take};
use test_support::vfio_user::rig::Rig;
use test_support::vfio_user::{Message, access, file, map, memory, result, set_irqs, unmap};
use vfio_user::testing::KEEP;
use vfio_user::testing::{ADDRESS, DATA, LEVEL, MAPPED_READ, MAPPED_WRITE, RESULT};
use vfio_user::wire::{
    self, DeviceInfo, DmaUnmap, Header, IrqInfo, RegionInfo, SmallWrite, WriteMulti, command,
};

#[test]
fn the_version_must_be_the_first_message() {
    let mut rig = Rig::new();
    rig.begin(command::DEVICE_RESET, 0, &[], &[]);
    assert!(rig.is_hung_up());
}

#[test]
fn an_unsupported_version_is_refused_and_another_may_follow() {
    let mut rig = Rig::new();
    for payload in [
        &b"\0\0\0\0{\"capabilities\":\0"[..],
        &[0, 0, 0, 0, b'{', b'}'],
        &[0, 0],
        &[&[0; 4][..], &vec![b' '; 1 << 20]].concat(),
    ] {
        let refused = rig.call(command::VERSION, payload, &[]);
        assert_eq!(refused, Err(Errno::INVAL), "{} bytes", payload.len());
    }
    let refused = rig.call(command::VERSION, &[1, 0, 0, 0], &[]);
    assert_eq!(refused, Err(Errno::NOTSUP));
    rig.agree();
    let refused = rig.call(command::VERSION, &[0; 4], &[]);
    assert_eq!(refused, Err(Errno::INVAL), "once");
    assert!(rig.read(0, 0, 1).is_ok());
}

#[test]
fn info_commands_describe_the_device() {
    let mut rig = Rig::ready();
    let mut ask = |command, words: &[u32]| {
        let payload: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        rig.call(command, &payload, &[])
    };
    let refused = ask(command::DEVICE_GET_INFO, &[15, 0, 0, 0]);
    assert_eq!(refused, Err(Errno::INVAL), "no room");
    // A client that includes the header in the size.
    let reply = ask(command::DEVICE_GET_INFO, &[32, 0, 0, 0]).unwrap();
    let info = DeviceInfo::decode(&reply).unwrap();
    assert_eq!((info.argsz, info.flags), (16, 3));
    assert_eq!((info.num_regions, info.num_irqs), (9, 5));
    for (index, expected) in [
        (2, Ok((8192, 3))),
        // No ROM.
        (6, Ok((0, 0))),
        (7, Ok((256, 3))),
        (9, Err(Errno::INVAL)),
    ] {
        let words = [RegionInfo::SIZE, 0, index, 0, 0, 0, 0, 0];
        let reply = ask(command::DEVICE_GET_REGION_INFO, &words);
        let info = reply.map(|reply| RegionInfo::decode(&reply).unwrap());
        assert!(info.is_err() || info.unwrap().index == index);
        assert_eq!(info.map(|info| (info.size, info.flags)), expected);
    }
    for (index, expected) in [
        (0, Ok((1, 7))),
        // No MSI.
        (1, Ok((0, 0))),
        // No PCI Express.
        (3, Err(Errno::INVAL)),
        (5, Err(Errno::INVAL)),
    ] {
        let reply = ask(command::DEVICE_GET_IRQ_INFO, &[IrqInfo::SIZE, 0, index, 0]);
        let info = reply.map(|reply| IrqInfo::decode(&reply).unwrap());
        assert!(info.is_err() || info.unwrap().index == index);
        assert_eq!(info.map(|info| (info.count, info.flags)), expected);
    }
}

#[test]
fn payloads_of_another_size_and_unknown_commands_are_refused() {
    let mut rig = Rig::ready();
    for command in [
        command::DMA_MAP,
        command::DMA_UNMAP,
        command::DEVICE_GET_INFO,
        command::DEVICE_GET_REGION_INFO,
        command::DEVICE_GET_IRQ_INFO,
        command::DEVICE_SET_IRQS,
        command::REGION_READ,
        command::REGION_WRITE,
        command::REGION_WRITE_MULTI,
    ] {
        for bytes in [0, 1, 7, 41] {
            let refused = rig.call(command, &vec![0; bytes], &[]);
            assert_eq!(refused, Err(Errno::INVAL), "{command}: {bytes} bytes");
        }
    }
    let of_the_device = [command::DMA_READ, command::DMA_WRITE];
    for command in [0, 6, 14, 16, 17, 18, 99].into_iter().chain(of_the_device) {
        let refused = rig.call(command, &[], &[]);
        assert_eq!(refused, Err(Errno::NOTSUP), "{command}");
    }
    let eventfd = event();
    let refused = rig.call(command::DEVICE_RESET, &[], &[eventfd.as_fd()]);
    assert_eq!(refused, Err(Errno::INVAL), "what is the descriptor for?");
}

#[test]
fn accesses_are_within_their_regions() {
    let mut rig = Rig::ready();
    rig.write(2, 8190, b"ab").unwrap();
    assert_eq!(rig.read(2, 8188, 4).unwrap(), b"\0\0ab");
    assert_eq!(rig.read(2, 0, 8192).unwrap().len(), 8192);
    for (region, offset, count) in [
        (2, 8190, 3),
        (2, 8192, 1),
        (2, u64::MAX, 1),
        (2, u64::MAX, u32::MAX),
        (2, 0, 8193),
        (2, 0, 0),
        (3, 0, 1),
        (6, 0, 1),
        (8, 0, 1),
        (9, 0, 1),
        (u32::MAX, 0, 1),
    ] {
        let data = vec![0; (count as usize).min(9000)];
        for (command, data) in [
            (command::REGION_READ, &[][..]),
            (command::REGION_WRITE, &data),
        ] {
            let refused = rig.call(command, &access(region, offset, count, data), &[]);
            assert_eq!(refused, Err(Errno::INVAL), "{region} {offset} {count}");
        }
    }
    let refused = rig.call(command::REGION_WRITE, &access(2, 0, 4, b"abc"), &[]);
    assert_eq!(refused, Err(Errno::INVAL), "less data than it says");
}

fn many(count: u64, writes: &[SmallWrite]) -> Vec<u8> {
    let mut payload = Vec::new();
    WriteMulti { count }.encode(&mut payload);
    for write in writes {
        write.encode(&mut payload);
    }
    payload
}

#[test]
fn one_message_may_have_several_writes() {
    let mut rig = Rig::ready();
    let write = |offset, count, data| SmallWrite {
        offset,
        region: 2,
        count,
        data,
    };
    let writes: Vec<_> = (0..200).map(|index| write(8 * index, 8, index)).collect();
    let reply = rig.call(command::REGION_WRITE_MULTI, &many(200, &writes), &[]);
    assert_eq!(reply.unwrap(), 200u64.to_ne_bytes());
    assert_eq!(rig.read(2, 8 * 199, 8).unwrap(), 199u64.to_ne_bytes());
    let short = [write(0, 2, 0xffff_ffff)];
    rig.call(command::REGION_WRITE_MULTI, &many(1, &short), &[])
        .unwrap();
    assert_eq!(rig.read(2, 0, 4).unwrap(), [0xff, 0xff, 0, 0]);
    for wrong in [
        many(2, &short),
        many(0, &short),
        many(u64::MAX, &short),
        many(1, &[write(0, 9, 0)]),
        many(1, &[write(8192, 1, 0)]),
    ] {
        let refused = rig.call(command::REGION_WRITE_MULTI, &wrong, &[]);
        assert_eq!(refused, Err(Errno::INVAL));
    }
}

#[test]
fn commands_with_no_reply_set_get_no_reply() {
    let mut rig = Rig::ready();
    rig.post(2, 0, b"x");
    rig.post(9, 0, b"x");
    rig.begin(command::DEVICE_RESET, wire::NO_REPLY, &[], &[]);
    rig.begin(command::DMA_UNMAP, wire::NO_REPLY, &unmap(2, 0, 0), &[]);
    assert_eq!(
        rig.read(2, 0, 1).unwrap(),
        b"x",
        "the next reply is this one's"
    );
    assert_eq!(rig.server.device_and_host().0.resets, 1);
}

#[test]
fn the_device_accesses_mapped_memory_at_guest_addresses() {
    let mut rig = Rig::ready();
    let memory = memory(0x4000);
    file(&memory).write_all_at(b"guest", 0x2010).unwrap();
    let mut payload = map(0x10_0000, 0x1000);
    payload[8..16].copy_from_slice(&0x2000u64.to_ne_bytes());
    rig.call(command::DMA_MAP, &payload, &[memory.as_fd()])
        .unwrap();
    rig.write(0, ADDRESS, &0x10_0010u32.to_le_bytes()).unwrap();
    rig.write(0, MAPPED_READ, &[1]).unwrap();
    assert_eq!(rig.read(0, DATA, 6).unwrap(), b"guest\0");
    rig.write(0, DATA, b"disk").unwrap();
    rig.write(0, MAPPED_WRITE, &[1]).unwrap();
    let mut bytes = [0; 5];
    file(&memory).read_exact_at(&mut bytes, 0x2010).unwrap();
    assert_eq!(&bytes, b"diskt");
    rig.write(0, ADDRESS, &0x10_0ffdu32.to_le_bytes()).unwrap();
    rig.write(0, MAPPED_WRITE, &[1]).unwrap();
    assert_eq!(rig.read(0, RESULT, 1).unwrap(), [14], "a part is not there");
    let refused = rig.call(command::DMA_MAP, &payload, &[memory.as_fd()]);
    assert_eq!(refused, Err(Errno::EXIST));
    let refused = rig.call(
        command::DMA_MAP,
        &payload,
        &[memory.as_fd(), memory.as_fd()],
    );
    assert_eq!(refused, Err(Errno::INVAL), "which one?");
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    assert_eq!(rig.map(0x20_0000, 0x1000, Some(&pipe)), Err(Errno::INVAL));
}

#[test]
fn unmapping_memory_in_use_delays_only_its_own_reply() {
    let mut rig = Rig::ready();
    let memory = memory(0x1000);
    rig.map(0x1000, 0x1000, Some(&memory)).unwrap();
    rig.map(0x2000, 0x1000, Some(&memory)).unwrap();
    rig.write(0, KEEP, &[1]).unwrap();
    let unmap = unmap(0, 0x1000, 0x1000);
    let id = rig.begin(command::DMA_UNMAP, 0, &unmap, &[]);
    assert_eq!(rig.receive(), None, "the device uses it");
    assert_eq!(rig.read(0, KEEP, 1).unwrap(), [1], "registers go on");
    rig.map(0x1000, 0x1000, Some(&memory)).unwrap();
    let (_, host) = rig.server.device_and_host();
    assert_eq!(host.mapped_guest_memory().regions().len(), 2);
    rig.post(0, KEEP, &[0]);
    let reply = rig.receive().expect("the device has let go");
    assert_eq!(result(&reply, id, command::DMA_UNMAP).unwrap(), unmap);
}

#[test]
fn all_memory_is_unmapped_at_once() {
    let mut rig = Rig::ready();
    let memory = memory(0x1000);
    rig.map(0x1000, 0x1000, Some(&memory)).unwrap();
    rig.map(0x2000, 0x1000, None).unwrap();
    for (flags, address, size) in [
        (2, 0x1000, 0),
        (2, 0, 0x1000),
        (4, 0, 0),
        (3, 0, 0),
        (0, 0, 0),
        // Another size than it was mapped with.
        (0, 0x1000, 0x2000),
    ] {
        let refused = rig.call(command::DMA_UNMAP, &unmap(flags, address, size), &[]);
        assert!(refused.is_err(), "{flags} {address:#x} {size:#x}");
    }
    let reply = rig.call(command::DMA_UNMAP, &unmap(2, 0, 0), &[]).unwrap();
    assert_eq!(DmaUnmap::decode(&reply).unwrap().flags, 2);
    let refused = rig.call(command::DMA_UNMAP, &unmap(0, 0x2000, 0x1000), &[]);
    assert_eq!(refused, Err(Errno::NOENT));
    let (_, host) = rig.server.device_and_host();
    assert!(host.mapped_guest_memory().regions().is_empty());
}

#[test]
fn a_reset_is_answered_when_the_device_has_settled() {
    let mut rig = Rig::ready();
    rig.write(2, 0, b"kept by a reset, as it is memory")
        .unwrap();
    rig.write(0, KEEP, &[1]).unwrap();
    let id = rig.begin(command::DEVICE_RESET, 0, &[], &[]);
    assert_eq!(rig.receive(), None);
    assert_eq!(
        rig.read(0, KEEP, 1).unwrap(),
        [0],
        "the registers are reset"
    );
    rig.post(0, KEEP, &[0]);
    let reply = rig.receive().unwrap();
    assert_eq!(result(&reply, id, command::DEVICE_RESET), Ok(Vec::new()));
}

#[test]
fn delayed_replies_are_bounded_and_all_are_sent() {
    let mut rig = Rig::ready();
    rig.write(0, KEEP, &[1]).unwrap();
    let resets = 10_000;
    let mut refused = 0;
    for _ in 0..resets {
        rig.begin(command::DEVICE_RESET, 0, &[], &[]);
        while let Some(reply) = rig.receive() {
            let id = reply.header.id;
            assert_eq!(result(&reply, id, command::DEVICE_RESET), Err(Errno::BUSY));
            refused += 1;
        }
    }
    assert!(refused > 0 && refused < resets / 2, "{refused}");
    rig.post(0, KEEP, &[0]);
    while let Some(reply) = rig.receive() {
        let id = reply.header.id;
        assert_eq!(result(&reply, id, command::DEVICE_RESET), Ok(Vec::new()));
        refused += 1;
    }
    assert_eq!(refused, resets, "each has one reply");
}

#[test]
fn interrupts_are_signalled_masked_and_unmasked() {
    let mut rig = Rig::ready();
    let call = |rig: &mut Rig, payload: Vec<u8>| rig.call(command::DEVICE_SET_IRQS, &payload, &[]);
    let trigger = event();
    let (data_none, data_bool, data_eventfd) = (1, 2, 4);
    let (mask, unmask, trigger_now) = (8, 0x10, 0x20);
    rig.set_irqs(data_eventfd | trigger_now, 1, Some(&trigger))
        .unwrap();
    // The front-end tests its own eventfd.
    rig.set_irqs(data_none | trigger_now, 1, None).unwrap();
    for boolean in [1, 0] {
        call(
            &mut rig,
            set_irqs(0, data_bool | trigger_now, 1, &[boolean]),
        )
        .unwrap();
    }
    assert_eq!(take(&trigger), 2);
    call(&mut rig, set_irqs(0, data_bool | mask, 1, &[0])).unwrap();
    rig.write(0, LEVEL, &[1]).unwrap();
    assert_eq!(take(&trigger), 1, "not masked");
    call(&mut rig, set_irqs(0, data_bool | unmask, 1, &[0])).unwrap();
    assert_eq!(take(&trigger), 0, "not unmasked");
    call(&mut rig, set_irqs(0, data_bool | unmask, 1, &[1])).unwrap();
    assert_eq!(take(&trigger), 1);
    // No descriptor: disconnected.
    rig.set_irqs(data_eventfd | trigger_now, 1, None).unwrap();
    call(&mut rig, set_irqs(0, data_none | unmask, 1, &[])).unwrap();
    assert_eq!(take(&trigger), 0);
    for index in 0..5 {
        call(&mut rig, set_irqs(index, data_none | trigger_now, 0, &[])).unwrap();
    }
    for wrong in [
        set_irqs(5, data_none | trigger_now, 0, &[]),
        set_irqs(1, data_none | trigger_now, 1, &[]),
        set_irqs(0, data_none | mask, 0, &[]),
        set_irqs(0, data_none | mask, 2, &[]),
        set_irqs(0, data_none | mask, u32::MAX, &[]),
        set_irqs(0, data_none | mask, 1, &[1]),
        set_irqs(0, data_bool | mask, 1, &[]),
        set_irqs(0, data_none | data_bool | mask, 1, &[1]),
        set_irqs(0, data_none | mask | unmask, 1, &[]),
        set_irqs(0, data_none, 1, &[]),
        set_irqs(0, mask, 1, &[]),
        set_irqs(0, data_none | mask | 0x40, 1, &[]),
        set_irqs(0, data_eventfd | mask, 1, &[]),
    ] {
        let refused = call(&mut rig, wrong.clone());
        assert_eq!(refused, Err(Errno::INVAL), "{wrong:?}");
    }
    let memory = memory(8);
    let no_eventfd = rig.set_irqs(data_eventfd | trigger_now, 1, Some(&memory));
    assert_eq!(no_eventfd, Err(Errno::INVAL));
    let payload = set_irqs(0, data_eventfd | trigger_now, 1, &[]);
    let two = [trigger.as_fd(), trigger.as_fd()];
    let refused = rig.call(command::DEVICE_SET_IRQS, &payload, &two);
    assert_eq!(refused, Err(Errno::INVAL));
}

#[test]
fn a_malformed_header_ends_the_connection_and_the_next_one_is_served() {
    let sizes = [0, 15, (1 << 20) + 33, u32::MAX].map(|size| Header {
        id: 1,
        command: command::REGION_READ,
        size,
        ..Header::default()
    });
    let types = [2, 15].map(|flags| Message::command(1, 13, flags, &[]).header);
    let reply = Message::command(1, command::DMA_READ, wire::TYPE_REPLY, &[]).header;
    for header in sizes.into_iter().chain(types).chain([reply]) {
        let mut rig = Rig::ready();
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        rig.send(&bytes, &[]);
        assert!(rig.is_hung_up(), "{header:?}");
        rig.reconnect();
        rig.agree();
        rig.read(0, 0, 1).unwrap();
    }
}

#[test]
fn disconnecting_drops_memory_and_eventfds() {
    let mut rig = Rig::ready();
    let memory = memory(0x1000);
    let trigger = event();
    let connect = wire::IRQ_DATA_EVENTFD | wire::IRQ_ACTION_TRIGGER;
    rig.map(0x1000, 0x1000, Some(&memory)).unwrap();
    rig.map(0x2000, 0x1000, None).unwrap();
    rig.set_irqs(connect, 1, Some(&trigger)).unwrap();
    rig.write(0, LEVEL, &[1]).unwrap();
    assert_eq!(take(&trigger), 1);
    rig.reconnect();
    let (_, host) = rig.server.device_and_host();
    assert!(host.mapped_guest_memory().regions().is_empty());
    rig.agree();
    rig.write(0, LEVEL, &[0]).unwrap();
    rig.write(0, LEVEL, &[1]).unwrap();
    assert_eq!(take(&trigger), 0);
    rig.map(0x1000, 0x2000, None).unwrap();
    rig.set_irqs(connect, 1, Some(&trigger)).unwrap();
    assert_eq!(take(&trigger), 1, "the line was up already");
}

#[test]
fn only_one_front_end_may_be_connected() {
    let mut rig = Rig::ready();
    let (_other, socket) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(rig.server.attach_connection(socket).is_err());
    rig.read(0, 0, 1).unwrap();
}
