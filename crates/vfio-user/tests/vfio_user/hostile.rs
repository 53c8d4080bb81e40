//! Front-ends that send anything: the server goes on, and serves the next one.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use proptest::collection::vec;
use proptest::prelude::*;
use test_support::events::event;
use test_support::vfio_user::rig::Rig;
use test_support::vfio_user::{Message, access, memory};
use vfio_user::testing::KEEP;
use vfio_user::testing::Scratch;
use vfio_user::wire::{self, command};

/// A well-formed message with any payload.
#[derive(Clone, Debug)]
struct Wild {
    command: u16,
    no_reply: bool,
    payload: Vec<u8>,
    fds: Vec<u8>,
}

/// Numbers near limits.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..10u64,
        Just(0x1000),
        Just(0x2000),
        Just(u64::from(u32::MAX)),
        Just(u64::MAX),
        Just(u64::MAX - 0xfff),
        any::<u64>(),
    ]
}

/// Payloads of any command, most of them nearly well-formed, and random bytes.
fn payload() -> impl Strategy<Value = Vec<u8>> {
    let small = vec(number().prop_map(|number| number as u32), 0..9)
        .prop_map(|words| words.iter().flat_map(|word| word.to_ne_bytes()).collect());
    let map = (0..5u32, number(), number(), number()).prop_map(|(flags, offset, address, size)| {
        let words = [32u64 | u64::from(flags) << 32, offset, address, size];
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    });
    let data = (0..10u32, number(), vec(any::<u8>(), 0..20))
        .prop_map(|(region, offset, data)| access(region, offset, data.len() as u32, &data));
    let unmap = (number(), number())
        .prop_map(|(address, size)| test_support::vfio_user::unmap(0, address, size));
    prop_oneof![small, map, data, unmap, vec(any::<u8>(), 0..70)]
}

fn wild() -> impl Strategy<Value = Wild> {
    let fds = prop_oneof![4 => Just(Vec::new()), 1 => vec(0..3u8, 1..4)];
    (0..20u16, any::<bool>(), payload(), fds).prop_map(|(command, no_reply, payload, fds)| Wild {
        command,
        no_reply,
        payload,
        fds,
    })
}

fn descriptors(kinds: &[u8]) -> Vec<OwnedFd> {
    let one = |kind: &u8| match kind {
        0 => memory(0x3000),
        1 => event(),
        _ => rustix::pipe::pipe().unwrap().0,
    };
    kinds.iter().map(one).collect()
}

/// Asserts that the server works for the next front-end, after a connection that it may have ended.
fn check_serves_next(rig: &mut Rig<Scratch>) {
    if rig.is_connected() {
        rig.reconnect();
    } else {
        *rig = Rig::new();
    }
    rig.agree();
    rig.write(2, 0, b"still here").unwrap();
    assert_eq!(rig.read(2, 0, 10).unwrap(), b"still here");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn each_command_gets_one_reply_unless_it_has_no_reply_set(messages in vec(wild(), 0..30)) {
        let mut rig = Rig::ready();
        let mut expected = BTreeMap::new();
        let check = |rig: &mut Rig, expected: &mut BTreeMap<u16, u16>| {
            while let Some(reply) = rig.receive() {
                let header = reply.header;
                if header.flags == wire::TYPE_COMMAND {
                    // A message of the device, since its registers were written.
                    assert!(matches!(header.command, command::DMA_READ | command::DMA_WRITE));
                    continue;
                }
                assert_eq!(header.flags & !wire::ERROR, wire::TYPE_REPLY);
                assert_eq!(header.flags & wire::ERROR != 0, header.errno != 0);
                assert_eq!(expected.remove(&header.id), Some(header.command), "{header:?}");
            }
        };
        for (message, id) in messages.iter().zip(1000..) {
            let fds = descriptors(&message.fds);
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            let flags = if message.no_reply { wire::NO_REPLY } else { 0 };
            if !message.no_reply {
                expected.insert(id, message.command);
            }
            let message = Message::command(id, message.command, flags, &message.payload);
            prop_assert!(rig.send(&message.bytes(), &fds));
            rig.turn();
            check(&mut rig, &mut expected);
        }
        // Replies are delayed since the device keeps the memory.
        let release = access(0, KEEP, 1, &[0]);
        let release = Message::command(0, command::REGION_WRITE, wire::NO_REPLY, &release);
        prop_assert!(rig.send(&release.bytes(), &[]));
        rig.turn();
        check(&mut rig, &mut expected);
        prop_assert!(expected.is_empty(), "no reply to {expected:?}");
        check_serves_next(&mut rig);
    }

    #[test]
    fn arbitrary_bytes_are_survived(
        ready in any::<bool>(),
        pieces in vec((vec(any::<u8>(), 1..200), vec(0..3u8, 0..3)), 0..10),
    ) {
        let mut rig = if ready { Rig::ready() } else { Rig::new() };
        for (bytes, fds) in &pieces {
            let fds = descriptors(fds);
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            if !rig.send(bytes, &fds) {
                break;
            }
            rig.turn();
        }
        check_serves_next(&mut rig);
    }

    #[test]
    fn a_message_with_a_wrong_size_is_survived(
        message in wild(),
        size in prop_oneof![0..200u32, Just(1 << 20), Just(u32::MAX)],
        flags in any::<u32>(),
    ) {
        let mut rig = Rig::ready();
        let mut message = Message::command(1, message.command, flags, &message.payload);
        message.header.size = size;
        rig.send(&message.bytes(), &[]);
        rig.turn();
        while rig.receive().is_some() {}
        check_serves_next(&mut rig);
    }
}
