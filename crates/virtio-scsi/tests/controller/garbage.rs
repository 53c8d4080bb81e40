//! Random bytes as requests: never a panic, and every one is answered.

use proptest::prelude::*;

use crate::harness::{DISKS, Rig};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn every_command_is_answered(
        commands in prop::collection::vec(
            (0..3_usize, 0..4_u8, prop::collection::vec(any::<u8>(), 1..32), 0..4096_usize, any::<bool>(), any::<bool>()),
            1..12,
        )
    ) {
        let mut rig = Rig::new();
        let mut asked = Vec::new();
        for (disk, attribute, cdb, len, out, managed) in commands {
            let header = rig.header(DISKS[disk], attribute, &cdb);
            let data = vec![0x5a; if out { len } else { 0 }];
            asked.push(rig.ask_by(0, &header, &data, if out { 0 } else { len }));
            if managed {
                rig.admit(0, 3).unwrap();
                rig.manage(u32::from(attribute), DISKS[disk], rig.tag());
            }
        }
        rig.settle();
        for asked in asked {
            prop_assert!(rig.answered(&asked));
        }
        prop_assert_eq!(rig.queues[0].queue.in_flight_count(), 0);
    }

    #[test]
    fn no_control_request_is_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..40), kind in 0..4_u8, room in 0..8_u32) {
        let mut rig = Rig::new();
        let mut bytes = bytes;
        if bytes.len() >= 4 {
            bytes[..4].copy_from_slice(&[kind, 0, 0, 0]);
        }
        if bytes.is_empty() {
            bytes.push(0);
        }
        // It may break the queue.
        let _ = rig.control(&bytes, room);
        rig.settle();
    }
}
