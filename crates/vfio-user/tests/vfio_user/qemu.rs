//! Replayed messages of QEMU: whole, and split wherever the kernel may split them.

use std::os::fd::{AsFd, BorrowedFd};

use test_support::events::{event, signal, take};
use test_support::vfio_user::rig::{QEMU_VERSION, Rig};
use test_support::vfio_user::{Message, access, map, memory, set_irqs};
use vfio_user::testing::LEVEL;
use vfio_user::wire::{self, command};

use crate::transcript::replay;

const Q35: &str = include_str!("captures/q35-qtest.txt");
const KVM: &str = include_str!("captures/kvm-intx.txt");

#[test]
fn a_session_with_qemu_is_answered_byte_for_byte() {
    replay(&mut Rig::new(), Q35);
}

#[test]
fn a_device_can_be_reset_and_used_in_the_next_session() {
    let mut rig = Rig::new();
    replay(&mut rig, Q35);
    rig.reconnect();
    rig.agree();
    assert_eq!(rig.read(1, 0x12, 1).unwrap(), [0x77], "it was kept");
    rig.call(command::DEVICE_RESET, &[], &[]).unwrap();
    assert_eq!(rig.read(1, 0x12, 1).unwrap(), [0]);
    assert_eq!(rig.read(7, 0x10, 4).unwrap(), [1, 0, 0, 0]);
}

#[test]
fn kvm_replaces_eventfds_of_a_masked_line_and_unmasks_by_eventfd() {
    let mut rig = Rig::ready();
    replay(&mut rig, KVM);
    // At the end of the transcript the line is masked.
    let (trigger, unmask) = (event(), event());
    for (action, eventfd) in [
        (wire::IRQ_ACTION_TRIGGER, &trigger),
        (wire::IRQ_ACTION_UNMASK, &unmask),
    ] {
        rig.set_irqs(wire::IRQ_DATA_EVENTFD | action, 1, Some(eventfd))
            .unwrap();
    }
    rig.write(0, LEVEL, &[1]).unwrap();
    assert_eq!(take(&trigger), 0);
    for (level, signals) in [(1, 1), (1, 1), (0, 0)] {
        rig.write(0, LEVEL, &[level]).unwrap();
        signal(&unmask);
        rig.turn();
        assert_eq!(take(&trigger), signals, "level {level}");
    }
    // Without KVM, QEMU removes both eventfds.
    rig.set_irqs(wire::IRQ_DATA_NONE | wire::IRQ_ACTION_TRIGGER, 0, None)
        .unwrap();
    assert!(rig.server.unmask_fd().is_none());
    rig.write(0, LEVEL, &[1]).unwrap();
    assert_eq!(take(&trigger), 0);
}

/// A short session with descriptors and data in both directions.
fn short_session() -> Vec<(Vec<u8>, usize)> {
    let version = [&[0; 4], QEMU_VERSION.as_bytes(), &[0]].concat();
    let trigger = set_irqs(0, wire::IRQ_DATA_EVENTFD | wire::IRQ_ACTION_TRIGGER, 1, &[]);
    let posted = wire::NO_REPLY;
    [
        (command::VERSION, 0, version, 0),
        (command::DEVICE_RESET, wire::NO_REPLY, Vec::new(), 0),
        (command::DMA_MAP, 0, map(0x1000, 0x1000), 1),
        (command::DEVICE_SET_IRQS, 0, trigger, 1),
        (command::REGION_WRITE, posted, access(1, 16, 4, b"disk"), 0),
        (command::REGION_READ, 0, access(1, 16, 4, &[]), 0),
        (command::REGION_READ, 0, access(9, 16, 4, &[]), 0),
        (99, 0, vec![1, 2, 3], 0),
    ]
    .into_iter()
    .zip(1..)
    .map(|((command, flags, payload, fds), id)| {
        (Message::command(id, command, flags, &payload).bytes(), fds)
    })
    .collect()
}

/// Sends a stream that is split before the bytes at `cuts`. Returns the replies, and whether memory was mapped.
fn answers(messages: &[(Vec<u8>, usize)], cuts: &dyn Fn(usize) -> bool) -> (Vec<Message>, bool) {
    let (memory, eventfd) = (memory(0x1000), event());
    let mut rig = Rig::new();
    let mut at = 0;
    let mut answers = Vec::new();
    for (index, (bytes, fds)) in messages.iter().enumerate() {
        let all = [if index == 2 { &memory } else { &eventfd }.as_fd()];
        let mut fds: &[BorrowedFd<'_>] = &all[..*fds];
        let mut piece = Vec::new();
        for byte in bytes {
            if cuts(at) && !piece.is_empty() {
                rig.send(&piece, fds);
                (piece, fds) = (Vec::new(), &[]);
                rig.turn();
            }
            piece.push(*byte);
            at += 1;
        }
        rig.send(&piece, fds);
    }
    rig.turn();
    while let Some(answer) = rig.receive() {
        answers.push(answer);
    }
    let memory = rig.server.device_and_host().1.mapped_guest_memory();
    let is_mapped = memory.host_addr_of_range(0x1000, 0x1000).is_ok();
    (answers, is_mapped)
}

#[test]
fn messages_may_be_split_anywhere() {
    let messages = short_session();
    let whole = answers(&messages, &|_| false);
    assert_eq!(whole.0.len(), 6);
    assert!(whole.1);
    assert_eq!(answers(&messages, &|_| true), whole, "byte by byte");
    let bytes: usize = messages.iter().map(|(bytes, _)| bytes.len()).sum();
    for cut in 1..bytes {
        assert_eq!(answers(&messages, &|at| at == cut), whole, "before {cut}");
    }
}
