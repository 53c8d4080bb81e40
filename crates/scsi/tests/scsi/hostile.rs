//! Tests of hostile initiators: a status comes, and nothing else happens.

use proptest::prelude::*;
use scsi::Status;

use crate::rig::{LUN, Rig, options};

/// Opcodes that mean something, and any.
fn opcode() -> impl Strategy<Value = u8> {
    let known = vec![
        0x00u8, 0x03, 0x08, 0x0a, 0x12, 0x15, 0x16, 0x17, 0x1a, 0x1b, 0x1d, 0x1e, 0x25, 0x28, 0x2a,
        0x2e, 0x2f, 0x34, 0x35, 0x41, 0x42, 0x4d, 0x55, 0x56, 0x57, 0x5a, 0x5e, 0x5f, 0x88, 0x89,
        0x8a, 0x8b, 0x8e, 0x8f, 0x90, 0x91, 0x93, 0x9e, 0xa0, 0xa3, 0xa8, 0xaa, 0xae, 0xaf,
    ];
    prop_oneof![9 => proptest::sample::select(known), 1 => any::<u8>()]
}

/// Bytes of which most are small: reserved fields empty, numbers in reach.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![6 => Just(0u8), 3 => 0..16u8, 2 => any::<u8>(), 1 => Just(0xffu8)]
}

fn cdb() -> impl Strategy<Value = Vec<u8>> {
    (opcode(), proptest::collection::vec(byte(), 0..20)).prop_map(|(opcode, mut rest)| {
        rest.insert(0, opcode);
        rest
    })
}

/// A parameter list, or data.
fn data() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => proptest::collection::vec(byte(), 0..64),
        1 => proptest::collection::vec(byte(), 0..5000),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_command_ends_with_a_status(
        commands in proptest::collection::vec(
            (0..3u16, cdb(), data(), 0..3000usize, any::<bool>()), 1..30),
        thin in any::<bool>(),
        logical_block_size in proptest::sample::select(vec![512, 4096, 32_768]),
        segment in 1..600usize,
    ) {
        let mut rig = Rig::new(scsi::UnitOptions { thin, logical_block_size, ..options() });
        rig.segment = segment;
        for (nexus, cdb, out, room, there) in commands {
            rig.nexus = scsi::NexusNumber(nexus);
            let lun = if there { LUN } else { 8 };
            let reply = rig.exchange(lun, &cdb, &out, room);
            prop_assert_eq!(
                reply.status == Status::CheckCondition,
                !reply.sense.is_empty()
            );
            prop_assert!(reply.sense.len() <= scsi::MAX_SENSE_BYTES);
            if let Some(&format) = reply.sense.first() {
                prop_assert!(matches!(format & 0x7f, 0x70 | 0x72));
            }
        }
    }
}
