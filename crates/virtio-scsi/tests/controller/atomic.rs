//! COMPARE AND WRITE and ORWRITE of different queues are atomic to each other.

use crate::harness::{Answer, BLOCK, DISKS, GOOD, Rig};

const COMPARE_AND_WRITE: u8 = 0x89;
const OR_WRITE: u8 = 0x8b;

/// CDB and data for the first block: ones where zeroes are found, or ones added.
fn parts(opcode: u8) -> ([u8; 16], Vec<u8>) {
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (opcode, 1);
    let zeroes = vec![0; BLOCK];
    let ones = vec![1; BLOCK];
    match opcode {
        COMPARE_AND_WRITE => (cdb, [zeroes, ones].concat()),
        _ => (cdb, ones),
    }
}

#[test]
fn a_queue_waits_for_another_queues_command() {
    for first in [COMPARE_AND_WRITE, OR_WRITE] {
        for second in [COMPARE_AND_WRITE, OR_WRITE] {
            let mut rig = Rig::with_queues(2);
            let asked = [(0, first), (1, second)].map(|(queue, opcode)| {
                let (cdb, data) = parts(opcode);
                let header = rig.header(DISKS[0], 0, &cdb);
                let asked = rig.ask_by(queue, &header, &data, 0);
                rig.admit(queue, 10).unwrap();
                asked
            });
            let under_way = |rig: &Rig, queue: usize| rig.queues[queue].disks.submitted.len();
            // Reading, then writing; the other one has asked nothing of the disk.
            for _ in 0..2 {
                assert_eq!((under_way(&rig, 0), under_way(&rig, 1)), (1, 0));
                rig.queues[1].read_mail();
                assert!(!rig.answered(&asked[1]));
                rig.queues[0].complete_all();
            }
            assert_eq!(rig.answer(&asked[0]), GOOD);
            // The queues' disks are one.
            rig.queues[1].disks.bytes = rig.queues[0].disks.bytes.clone();
            assert!(rig.queues[1].read_mail(), "it is its turn");
            assert_eq!((under_way(&rig, 0), under_way(&rig, 1)), (0, 1));
            rig.settle();
            let answer = rig.answer(&asked[1]);
            if second == COMPARE_AND_WRITE {
                let Answer { status, sense, .. } = answer;
                assert_eq!((status, sense), (2, Some((0xe, 0x1d00))), "it found ones");
            } else {
                assert_eq!(answer, GOOD);
            }
            assert_eq!(rig.queues[1].disks.bytes[0][..BLOCK], [1; BLOCK]);
        }
    }
}
