//! Commands that wait for others of their queue and unit.

use crate::harness::{BLOCK, DISKS, GOOD, READ, Rig, cdb10};

const SIMPLE: u8 = 0;
const ORDERED: u8 = 1;
const HEAD: u8 = 2;

/// Reads block `lba` of a disk.
fn ask(rig: &mut Rig, disk: usize, attribute: u8, lba: u32) -> crate::harness::Asked {
    let header = rig.header(DISKS[disk], attribute, &cdb10(READ, lba, 1));
    rig.ask_by(0, &header, &[], BLOCK)
}

fn at_the_disk(rig: &Rig) -> Vec<u64> {
    let submitted = &rig.queues[0].disks.submitted;
    let blocks = submitted.iter().map(|(_, request)| request.offset / 512);
    blocks.collect()
}

#[test]
fn ordered_commands_run_alone_and_head_of_queue_commands_at_once() {
    let mut rig = Rig::new();
    let mut asked = Vec::new();
    for (attribute, lba) in [(SIMPLE, 1), (ORDERED, 2), (SIMPLE, 3), (HEAD, 4)] {
        asked.push(ask(&mut rig, 0, attribute, lba));
    }
    // Another unit has an order of its own.
    asked.push(ask(&mut rig, 1, SIMPLE, 5));
    rig.admit(0, 10).unwrap();
    assert_eq!(at_the_disk(&rig), [1, 4, 5]);
    rig.queues[0].complete_all();
    assert_eq!(at_the_disk(&rig), [2]);
    rig.queues[0].complete_all();
    assert_eq!(at_the_disk(&rig), [3]);
    rig.settle();
    for asked in asked {
        assert_eq!(rig.answer(&asked), GOOD);
    }
}

#[test]
fn a_command_answered_at_once_releases_those_that_wait_for_it() {
    let mut rig = Rig::new();
    let first = ask(&mut rig, 0, SIMPLE, 1);
    // Both are beyond the end.
    let ordered = ask(&mut rig, 0, ORDERED, 1 << 20);
    let next = ask(&mut rig, 0, ORDERED, 1 << 20);
    let last = ask(&mut rig, 0, SIMPLE, 2);
    rig.settle();
    for asked in [first, last] {
        assert_eq!(rig.answer(&asked), GOOD);
    }
    for asked in [ordered, next] {
        assert_eq!(rig.answer(&asked).sense, Some((5, 0x2100)));
    }
    assert_eq!(rig.queues[0].queue.in_flight_count(), 0);
}
