//! Answers to commands, and the places of their data.

use block::Op;
use engine::Errno;
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
fn a_command_that_asks_for_more_than_its_buffers_hold_does_nothing() {
    let mut rig = Rig::new();
    let out = pattern(1, 1);
    for (cdb, out, room) in [
        (cdb10(WRITE, 0, 2), &out[..], 0),
        (cdb10(READ, 0, 2), &[][..], BLOCK),
        // In the other direction.
        (cdb10(READ, 0, 1), &out[..], 0),
        (cdb10(WRITE, 0, 1), &[][..], BLOCK),
        (cdb10(WRITE, 0, 1), &[][..], 0),
    ] {
        let (answer, _) = rig.command(DISKS[1], &cdb, out, room);
        assert_eq!(answer.response, OVERRUN, "{cdb:x?}");
    }
    assert!(rig.queues[0].disks.bytes[1].iter().all(|byte| *byte == 0));
    assert_eq!(rig.queues[0].queue.in_flight_count(), 0);
}

#[test]
fn data_in_both_directions_is_refused() {
    let mut rig = Rig::new();
    let asked = rig.ask(DISKS[0], &cdb10(READ, 0, 1), &[1; BLOCK], BLOCK);
    rig.settle();
    assert_eq!(rig.answer(&asked).response, FAILURE);
    assert_eq!(rig.memory.read(asked.data, 1), [UNANSWERED]);
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
fn an_error_of_the_disk_becomes_sense_data_and_is_counted() {
    let mut rig = Rig::new();
    let asked = rig.ask(DISKS[2], &cdb10(READ, 0, 1), &[], BLOCK);
    rig.admit(0, 10).unwrap();
    let queue = &mut rig.queues[0];
    let (_, request) = queue.disks.submitted.remove(0);
    queue.complete(&request, Err(Errno::IO));
    let answer = rig.answer(&asked);
    assert_eq!((answer.status, answer.residual), (2, BLOCK as u32));
    assert!(answer.sense.is_some());
    let stats = &rig.queues[0].stats;
    assert_eq!(stats.of_kind(RequestKind::Read).failed.get(), 1);
    assert_eq!(stats.of_kind(RequestKind::Read).latency.total(), 0);
    let of_disks = rig.queues[0].counted.iter();
    let failed: Vec<u64> = of_disks
        .map(|disk| disk.stats.of_kind(RequestKind::Read).failed.get())
        .collect();
    assert_eq!(failed, [0, 0, 1]);
}

#[test]
fn commands_answered_without_the_disk_are_counted_by_their_kind() {
    let mut rig = Rig::new();
    let (beyond, _) = rig.command(DISKS[1], &cdb10(READ, BLOCKS as u32, 1), &[], BLOCK);
    assert_eq!(beyond.status, 2);
    rig.command(DISKS[1], &cdb10(WRITE, 0, 0), &[], 0);
    rig.command(DISKS[1], &[0xc0, 0, 0, 0, 0, 0], &[], 0);
    let queue = &rig.queues[0];
    for stats in [&queue.stats, &queue.counted[1].stats] {
        let of = |kind| {
            (
                stats.of_kind(kind).latency.total(),
                stats.of_kind(kind).invalid.get(),
            )
        };
        assert_eq!(RequestKind::ALL.map(of), [(0, 1), (1, 0), (0, 0), (0, 0)]);
    }
}

#[test]
fn commands_are_counted_by_their_first_block_request() {
    let mut rig = Rig::new();
    rig.queues[0].now = 1000;
    rig.command(DISKS[0], &cdb10(WRITE, 4, 2), &pattern(0, 2), 0);
    rig.command(DISKS[1], &cdb10(READ, 0, 4), &[], 4 * BLOCK);
    rig.command(DISKS[1], &cdb10(0x35, 0, 0), &[], 0);
    rig.command(DISKS[1], &[0x12, 0, 0, 0, 36, 0], &[], 36);
    let stats = &rig.queues[0].stats;
    let of = |kind| {
        let kind = stats.of_kind(kind);
        (kind.latency.total(), kind.bytes.get())
    };
    assert_eq!(of(RequestKind::Write), (1, 1024));
    assert_eq!(of(RequestKind::Read), (1, 2048));
    assert_eq!(of(RequestKind::Flush).0, 1);
    assert_eq!(stats.wr_highest_offset().get(), 6 * BLOCK as u64);
    assert_eq!(stats.last_success_ticks().get(), 1000);
    assert_eq!(stats.in_flight().get(), 0);
    // Each disk has its own.
    for (disk, [reads, writes, flushes], end) in
        [(0, [0, 1, 0], 6), (1, [1, 0, 1], 0), (2, [0, 0, 0], 0)]
    {
        let stats = &rig.queues[0].counted[disk].stats;
        let of = [RequestKind::Read, RequestKind::Write, RequestKind::Flush]
            .map(|kind| stats.of_kind(kind).latency.total());
        assert_eq!(of, [reads, writes, flushes], "{disk}");
        assert_eq!(stats.wr_highest_offset().get(), end * BLOCK as u64);
        assert_eq!(stats.in_flight().get(), 0);
    }
}

#[test]
fn a_disk_knows_how_many_commands_it_has() {
    let mut rig = Rig::new();
    for disk in [1, 1, 2] {
        rig.ask(DISKS[disk], &cdb10(READ, 0, 1), &[], BLOCK);
    }
    rig.admit(0, 10).unwrap();
    let depths = |rig: &Rig| {
        let counted = rig.queues[0].counted.iter();
        counted
            .map(|disk| disk.stats.in_flight().get())
            .collect::<Vec<_>>()
    };
    assert_eq!(depths(&rig), [0, 2, 1]);
    let queue = &mut rig.queues[0];
    let (_, request) = queue.disks.submitted.remove(0);
    queue.complete(&request, Ok(()));
    assert_eq!(depths(&rig), [0, 1, 1]);
}

#[test]
fn a_command_of_several_requests_goes_on_with_each_completion() {
    let mut rig = Rig::new();
    rig.command(DISKS[0], &cdb10(WRITE, 0, 4), &pattern(5, 4), 0);
    // WRITE SAME(10) of a block that is not zeroes, to all of the disk.
    let (answer, _) = rig.command(DISKS[0], &cdb10(0x41, 0, BLOCKS as u16), &pattern(9, 1), 0);
    assert_eq!(answer, GOOD);
    let disk = &rig.queues[0].disks.bytes[0];
    assert!(disk.chunks(BLOCK).all(|block| block == pattern(9, 1)));
    // COMPARE AND WRITE: what is there, and what is to be there.
    let mut cdb = [0; 16];
    (cdb[0], cdb[9], cdb[13]) = (0x89, 7, 1);
    let both = [pattern(9, 1), pattern(3, 1)].concat();
    let (answer, _) = rig.command(DISKS[0], &cdb, &both, 0);
    assert_eq!(answer, GOOD);
    let (answer, _) = rig.command(DISKS[0], &cdb, &both, 0);
    assert_eq!(answer.sense, Some((0xe, 0x1d00)), "miscompare");
    let disk = &rig.queues[0].disks.bytes[0];
    assert_eq!(disk[7 * BLOCK..8 * BLOCK], pattern(3, 1));
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
fn two_compare_and_writes_of_different_queues_take_turns() {
    let mut rig = Rig::with_queues(2);
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x89, 1);
    let asked: Vec<_> = (0..2)
        .map(|queue| {
            let header = rig.header(DISKS[0], 0, &cdb);
            let both = [vec![0; BLOCK], pattern(queue as u8 + 1, 1)].concat();
            rig.ask_by(queue, &header, &both, 0)
        })
        .collect();
    for queue in 0..2 {
        rig.admit(queue, 10).unwrap();
    }
    assert_eq!(rig.queues[1].disks.submitted.len(), 0, "it waits");
    rig.settle();
    assert!(asked.iter().all(|asked| rig.answered(asked)));
    assert_eq!(rig.queues[1].queue.in_flight_count(), 0);
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
