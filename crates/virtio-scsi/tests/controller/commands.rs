//! Answers to commands, and the places of their data.

use block::Op;
use telemetry::queue::{AdmissionEnd, RequestKind};

use crate::harness::{
    Answer, BLOCK, BLOCKS, DISKS, GOOD, READ, Rig, UNANSWERED, WRITE, at, cdb10, disks, pattern,
    unit,
};

const OVERRUN: u8 = 1;
const BAD_TARGET: u8 = 3;
const FAILURE: u8 = 9;

fn failed(response: u8, residual: u32) -> Answer {
    Answer {
        response,
        residual,
        ..GOOD
    }
}

#[test]
fn each_unit_reads_and_writes_its_own_disk() {
    let mut rig = Rig::new();
    for (index, address) in DISKS.into_iter().enumerate() {
        let data = pattern(index as u8, 8);
        let (answer, _) = rig.command(address, &cdb10(WRITE, 16, 8), &data, 0);
        assert_eq!(answer, GOOD);
        let disk = &rig.queues[0].disks.bytes[index];
        assert_eq!(disk[16 * BLOCK..24 * BLOCK], data);
    }
    for (index, address) in DISKS.into_iter().enumerate() {
        let asked = rig.ask(address, &cdb10(READ, 16, 8), &[], 8 * BLOCK);
        rig.admit(0, 1).unwrap();
        let submitted = rig.queues[0].disks.submitted.clone();
        let [(disk, request)] = &submitted[..] else {
            panic!("one request, not {submitted:?}");
        };
        assert_eq!((*disk, request.op), (index, Op::Read));
        // SAFETY: the list is there until the request completes.
        let segment = unsafe { &*request.iov };
        assert_eq!(rig.memory.guest_addr_of(segment), asked.data, "no copy");
        rig.settle();
        assert_eq!(rig.answer(&asked), GOOD);
        assert_eq!(
            rig.memory.read(asked.data, 8 * BLOCK),
            pattern(index as u8, 8)
        );
    }
}

#[test]
fn bytes_that_were_not_transferred_are_the_residual() {
    let mut rig = Rig::new();
    let (answer, data) = rig.command(DISKS[0], &cdb10(READ, 0, 1), &[], 4 * BLOCK);
    assert_eq!((answer.residual, data.len()), (3 * BLOCK as u32, BLOCK));
    let out = pattern(1, 4);
    let (answer, _) = rig.command(DISKS[0], &cdb10(WRITE, 0, 1), &out, 0);
    assert_eq!(answer.residual, 3 * BLOCK as u32);
    assert_eq!(rig.queues[0].disks.bytes[0][BLOCK..2 * BLOCK], [0; BLOCK]);
    // INQUIRY has less to say than there is room for.
    let (answer, data) = rig.command(DISKS[0], &[0x12, 0, 0, 0, 255, 0], &[], 255);
    assert_eq!(answer.residual as usize + data.len(), 255);
    assert!(data.len() >= 36);
    // A command that moves nothing leaves all.
    let (answer, _) = rig.command(DISKS[0], &[0; 6], &[], 100);
    assert_eq!(answer, failed(0, 100));
}

#[test]
fn a_command_that_asks_for_more_than_its_buffers_hold_or_for_both_directions_does_nothing() {
    let mut rig = Rig::new();
    let out = pattern(1, 1);
    for (cdb, out, room, expected) in [
        (cdb10(WRITE, 0, 2), &out[..], 0, OVERRUN),
        (cdb10(READ, 0, 2), &[], BLOCK, OVERRUN),
        // In the other direction.
        (cdb10(READ, 0, 1), &out, 0, OVERRUN),
        (cdb10(WRITE, 0, 1), &[], BLOCK, OVERRUN),
        (cdb10(WRITE, 0, 1), &[], 0, OVERRUN),
        (cdb10(READ, 0, 1), &out, BLOCK, FAILURE),
    ] {
        let asked = rig.ask(DISKS[1], &cdb, out, room);
        rig.settle();
        assert_eq!(rig.answer(&asked).response, expected, "{cdb:x?}");
        if room > 0 {
            assert_eq!(rig.memory.read(asked.data, room), vec![UNANSWERED; room]);
        }
    }
    assert!(rig.queues[0].disks.bytes[1].iter().all(|byte| *byte == 0));
    assert_eq!(rig.queues[0].queue.in_flight_count(), 0);
}

#[test]
fn absent_targets_and_absent_units_get_different_responses() {
    let mut rig = Rig::new();
    let (answer, _) = rig.command(at(1, 0), &[0; 6], &[], 0);
    assert_eq!(answer, failed(BAD_TARGET, 0));
    let (answer, _) = rig.command(at(0, 2), &[0; 6], &[], 0);
    assert_eq!(
        answer.sense,
        Some((5, 0x2500)),
        "a target without that unit"
    );
    let (_, data) = rig.command(at(0, 2), &[0x12, 0, 0, 0, 36, 0], &[], 36);
    assert_eq!(data[0], 0x7f);
    // As Linux asks a target of which it has seen no LUN 0.
    let (answer, data) = rig.command(DISKS[2], &[0x12, 0xe0, 0, 0, 36, 0], &[], 36);
    assert_eq!((answer, data[0]), (GOOD, 0));
    // Units of one target, and no others.
    let report = [0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0];
    let (_, data) = rig.command(at(0, 9), &report, &[], 64);
    assert_eq!(data.len(), 8 + 16);
    let (_, data) = rig.command(at(3, 0), &report, &[], 64);
    assert_eq!(data[8..], [0x41, 44, 0, 0, 0, 0, 0, 0]);
    let mut header = rig.header(DISKS[0], 0, &[0; 6]);
    header[0] = 2;
    let asked = rig.ask_by(0, &header, &[], 0);
    rig.settle();
    assert_eq!(rig.answer(&asked).response, BAD_TARGET);
}

#[test]
fn sense_data_comes_with_the_answer_as_long_as_there_is_room() {
    let mut rig = Rig::new();
    let beyond = cdb10(READ, BLOCKS as u32, 1);
    let (answer, _) = rig.command(DISKS[0], &beyond, &[], BLOCK);
    assert_eq!((answer.status, answer.sense), (2, Some((5, 0x2100))));
    assert_eq!(answer.residual, BLOCK as u32);
    // A driver that wants less of it gets less.
    assert!(rig.device.write_config(20, &18_u32.to_le_bytes()));
    let header = rig.header(DISKS[0], 0, &beyond);
    let asked = rig.ask_by(0, &header, &[], BLOCK);
    rig.settle();
    assert_eq!(rig.memory.read(asked.response, 1), [18]);
    assert_eq!(
        rig.memory.read(asked.response + 30, 1),
        [UNANSWERED],
        "data behind a shorter response, untouched"
    );
}

#[test]
fn commands_are_counted_by_their_first_block_request_for_queue_and_disk() {
    let mut rig = Rig::new();
    rig.queues[0].now = 1000;
    rig.command(DISKS[0], &cdb10(WRITE, 4, 2), &pattern(0, 2), 0);
    rig.command(DISKS[1], &cdb10(READ, 0, 4), &[], 4 * BLOCK);
    rig.command(DISKS[1], &cdb10(0x35, 0, 0), &[], 0);
    rig.command(DISKS[1], &[0x12, 0, 0, 0, 36, 0], &[], 36);
    // Without the disk: invalid, no blocks, unknown.
    rig.command(DISKS[1], &cdb10(READ, BLOCKS as u32, 1), &[], BLOCK);
    rig.command(DISKS[1], &cdb10(WRITE, 0, 0), &[], 0);
    rig.command(DISKS[1], &[0xc0, 0, 0, 0, 0, 0], &[], 0);
    let queue = &rig.queues[0];
    assert_eq!(queue.stats.last_success_ticks().get(), 1000);
    let [first, second, third] = [0, 1, 2].map(|disk| &queue.counted[disk].stats);
    // Commands, bytes and invalid ones: reads, writes, flushes.
    for (stats, expected, end) in [
        (&queue.stats, [(1, 2048, 1), (2, 1024, 0), (1, 0, 0)], 6),
        (first, [(0, 0, 0), (1, 1024, 0), (0, 0, 0)], 6),
        (second, [(1, 2048, 1), (1, 0, 0), (1, 0, 0)], 0),
        (third, [(0, 0, 0); 3], 0),
    ] {
        let of = |kind| {
            let kind = stats.of_kind(kind);
            (kind.latency.total(), kind.bytes.get(), kind.invalid.get())
        };
        let kinds = [RequestKind::Read, RequestKind::Write, RequestKind::Flush];
        assert_eq!(kinds.map(of), expected);
        assert_eq!(stats.wr_highest_offset().get(), end * BLOCK as u64);
        assert_eq!(stats.in_flight().get(), 0);
    }
}

#[test]
fn commands_wait_for_a_disk_without_room() {
    let mut rig = Rig::new();
    rig.queues[0].disks.room = 1;
    let asked: Vec<_> = (0..3)
        .map(|lba| rig.ask(DISKS[0], &cdb10(READ, lba, 1), &[], BLOCK))
        .collect();
    assert_eq!(rig.admit(0, 10), Ok(AdmissionEnd::Stalled));
    assert_eq!(rig.queues[0].disks.submitted.len(), 1);
    assert!(rig.queues[0].queue.has_deferred());
    let queue = &mut rig.queues[0];
    assert!(!queue.queue.submit_deferred(&mut queue.disks));
    rig.settle();
    assert!(!rig.queues[0].queue.has_deferred());
    for asked in asked {
        assert_eq!(rig.answer(&asked), GOOD);
    }
}

#[test]
fn disks_of_an_idle_queue_can_be_replaced() {
    let mut rig = Rig::new();
    let new = at(3, 1);
    rig.device.add_unit_and_report(new, unit("new")).unwrap();
    let (answer, _) = rig.command(new, &[0; 6], &[], 0);
    assert_eq!(answer.sense, Some((6, 0x2900)));
    let (answer, _) = rig.command(new, &cdb10(READ, 0, 1), &[], BLOCK);
    assert_eq!(answer.status, 2, "no disk is known for it");
    let queue = &mut rig.queues[0];
    queue
        .queue
        .set_disks_if_idle(&disks(&[DISKS[0], DISKS[1], DISKS[2], new]));
    queue.disks.bytes.push(pattern(8, BLOCKS));
    let (answer, data) = rig.command(new, &cdb10(READ, 0, 1), &[], BLOCK);
    assert_eq!((answer, data), (GOOD, pattern(8, 1)));
    rig.device.remove_unit_and_report(DISKS[0]);
    let (answer, _) = rig.command(DISKS[0], &cdb10(READ, 0, 1), &[], BLOCK);
    assert_eq!(answer.sense, Some((5, 0x2500)));
}
